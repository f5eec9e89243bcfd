"""What JAX makes of a function of small arrays, and whether that is one call."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
            body = _compat.body_of(call.eqn)
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


def is_increasing(order: Sequence[int]) -> bool:
    return list(order) == sorted(order)


class OnlyCall(NamedTuple):
    """The call of which a jaxpr consists, on its operands.

    `jax.vmap` repeats the results ``same``, which are the same for all elements. In others it
    brings its axes to the front, by the permutation ``orders`` of the axes of each result.
    """

    eqn: Any
    same: list[int]
    orders: list[tuple[int, ...]]

    @property
    def is_whole(self) -> bool:
        """Whether its results are those of the jaxpr."""
        return not self.same and all(map(is_increasing, self.orders))


def _repeats(eqn: Any) -> bool:
    """Whether an equation gives an array new axes in front, and does nothing else."""
    (x,), (result,) = eqn.invars, eqn.outvars
    added = len(result.aval.shape) - len(x.aval.shape)
    axes = eqn.params.get("broadcast_dimensions")
    is_in_front = axes == (*range(added, len(result.aval.shape)),)
    return is_in_front and result.aval.shape[added:] == x.aval.shape


def only_call(jaxpr: Any, depth: int = 0) -> OnlyCall | None:
    """The call of which a jaxpr consists, after `jax.vmap` has acted on it ``depth`` times."""
    if not jaxpr.eqns:
        return None
    eqn, *rest = jaxpr.eqns
    if _compat.body_of(eqn) is None or list(eqn.invars) != list(jaxpr.invars):
        return None
    makers = {
        other.outvars[0]: other
        for other in rest
        if depth and other.primitive.name in ("broadcast_in_dim", "transpose")
    }
    if len(makers) < len(rest) or len(jaxpr.outvars) != len(eqn.outvars):
        return None
    same, orders = [], []
    for i, (result, var) in enumerate(zip(jaxpr.outvars, eqn.outvars, strict=True)):
        made = result
        order = tuple(range(len(result.aval.shape)))
        while made is not var:
            maker = None if type(made) is _compat.Literal else makers.get(made)
            if maker is None:
                return None
            (made,) = maker.invars
            permutation = maker.params.get("permutation", ())
            if len(permutation) == len(order):
                order = tuple(permutation[k] for k in order)
            elif not _repeats(maker):
                return None
        orders.append(order)
        repeats = len(order) - len(var.aval.shape)
        if repeats not in (0, depth):
            return None  # It is the same along some of the axes alone.
        if not is_increasing(order[depth:]):
            return None  # It is transposed, too.
        if repeats:
            same.append(i)
    return OnlyCall(eqn, same, orders)
