"""What JAX makes of a function of small arrays, and whether that is one call."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .. import _compat


# Some functions are a call for arrays of one rank or dtype alone.
_SMALL = [
    jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
    for dtype in ("float32", "complex64", "int32")
    for shape in ((3, 3), (3,), ())
]


class Traced(NamedTuple):
    """The jaxpr of a function, without dead code, and how many constants come first."""

    jaxpr: Any
    consts: int

    def calls(self) -> Iterator[Any]:
        """The jaxprs of the functions of which this is a call, if it is one on its operands."""
        call = None if self.consts else only_call(self.jaxpr)
        while call is not None:
            body = _compat.body_of(call[0])
            yield body
            call = only_call(_compat.open_jaxpr(body)[0])


def traces_of(
    fn: Callable[..., Any], count: int, statics: Iterable[Mapping[str, Any]] = ({},)
) -> Iterator[Traced]:
    """Traces of a function on so many small arrays, as far as it takes such."""
    for keywords in statics:
        for aval in _SMALL:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # No user has called the function.
                    made = jax.make_jaxpr(functools.partial(fn, **keywords))(
                        *[aval] * count
                    )
            except Exception:  # noqa: BLE001 - not a function of these arrays
                continue
            jaxpr, consts = _compat.open_jaxpr(made)
            yield Traced(_compat.drop_dead_code(jaxpr), len(consts))


def only_call(jaxpr: Any, depth: int = 0) -> tuple[Any, list[int]] | None:
    """The call of which a jaxpr consists, on its operands.

    ``depth`` is how often `jax.vmap` has acted. It repeats results that are the same for all
    elements. Their positions come second.
    """
    if not jaxpr.eqns:
        return None
    eqn, *rest = jaxpr.eqns
    if _compat.body_of(eqn) is None or list(eqn.invars) != list(jaxpr.invars):
        return None
    repeated = {
        other.outvars[0]: other.invars[0]
        for other in rest
        if depth and other.primitive.name == "broadcast_in_dim"
    }
    results = []
    for var in jaxpr.outvars:
        while type(var) is not _compat.Literal and var in repeated:
            var = repeated[var]
        results.append(var)
    if len(repeated) < len(rest) or results != list(eqn.outvars):
        return None
    same = [i for i, x in enumerate(jaxpr.outvars) if x is not results[i]]
    axes = {jaxpr.outvars[i].aval.ndim - results[i].aval.ndim for i in same}
    return (eqn, same) if axes <= {depth} else None  # Some differ along one of the axes.
