"""JAX's own checks of jaxprs, of which each question is asked once.

With ``jax_enable_checks`` JAX checks a jaxpr where it is made, where it is transformed, and with
each one that holds it. The type of an equation follows from its primitive, the types of its
operands, and its parameters. So a jaxpr that was checked is not checked again, and an equation
like another one has the type that the other has.
"""

import functools
from typing import Any

from jax import lax
from jax._src import core, util  # JAX has no public hook for its checks


# JAX has checks of its own for these, which say the same as that of any primitive: the types of
# the results are those of the types of the operands.
OF_TYPES_ALONE = (lax.broadcast_in_dim_p, lax.dynamic_slice_p, lax.iota_p, lax.reshape_p)


@functools.cache
def install() -> None:
    """Replace JAX's checks, in a process once."""
    check_eqn = core.check_eqn

    @util.cache()
    def type_of(primitive: Any, avals: Any, params: Any) -> Any:
        return check_eqn(primitive, avals, dict(params))

    def check_eqn_once(primitive: Any, avals: Any, params: Any) -> Any:
        if all(type(aval) is core.ShapedArray for aval in avals) and _are_data(params):
            return type_of(primitive, tuple(avals), tuple(params.items()))
        return check_eqn(primitive, avals, params)

    core.check_eqn = check_eqn_once
    for primitive in OF_TYPES_ALONE:
        del core.custom_typechecks[primitive]
    core.check_jaxpr = util.weakref_lru_cache(core.check_jaxpr)


def _are_data(params: Any) -> bool:
    """Whether parameters can be kept: no function, and no program, which may close over much."""
    try:
        hash(tuple(params.values()))
    except TypeError:
        return False
    return not (any(map(callable, params.values())) or any(core.jaxprs_in_params(params)))
