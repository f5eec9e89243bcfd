"""JAX's own checks of jaxprs, of which each question is asked once.

With ``jax_enable_checks`` JAX checks a jaxpr where it is made, where it is transformed, and with
each one that holds it. The type of an equation follows from its primitive, the types of its
operands, and its parameters. So a jaxpr that was checked is not checked again, and an equation
like another one has the type that the other has.
"""

from typing import Any

from jax import lax
from jax._src import core, util  # JAX has no public hook for its checks


# JAX checks these by rules of their own, of which each needs the types of the operands alone.
BY_RULE = (lax.broadcast_in_dim_p, lax.dynamic_slice_p, lax.iota_p, lax.reshape_p)


def install() -> None:
    core.check_eqn = once(core.check_eqn)
    for primitive in BY_RULE:
        core.custom_typechecks[primitive] = by_types(primitive)
    core.check_jaxpr = util.weakref_lru_cache(core.check_jaxpr)


def once(check_eqn: Any) -> Any:
    """A check of an equation that is not asked about one like another."""

    @util.cache()
    def type_of(primitive: Any, avals: Any, params: Any) -> Any:
        return check_eqn(primitive, avals, dict(params))

    def check_eqn_once(primitive: Any, avals: Any, params: Any) -> Any:
        if all(type(aval) is core.ShapedArray for aval in avals) and _are_data(params):
            return type_of(primitive, tuple(avals), tuple(params.items()))
        return check_eqn(primitive, avals, params)

    return check_eqn_once


def by_types(primitive: Any) -> Any:
    """The rule of a primitive for the check of an equation, asked once for some types."""
    rule = core.custom_typechecks[primitive]

    class Operand:  # as much of an operand as the rule reads
        def __init__(self, aval: Any) -> None:
            self.aval = aval

    check = once(lambda _, avals, params: rule(None, *map(Operand, avals), **params))
    return lambda _, *atoms, **params: check(primitive, [x.aval for x in atoms], params)


def _are_data(params: Any) -> bool:
    """Whether parameters can be kept: no function, and no program, which may close over much."""
    try:
        hash(tuple(params.values()))
    except TypeError:
        return False
    return not (any(map(callable, params.values())) or any(core.jaxprs_in_params(params)))
