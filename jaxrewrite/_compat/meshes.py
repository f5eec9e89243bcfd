"""Steps that JAX cannot place on the explicit axes of a mesh by itself."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

# JAX raises this error where the operands of a step leave it open how the result is split.
from jax._src.core import ShardingTypeError
from jax.sharding import AxisType, PartitionSpec
from jax.tree_util import tree_leaves

from .avals import leaf_aval, mesh_of
from .jaxprs import trace_to_jaxpr
from .modes import with_standard_promotion
from .types import Jaxpr, ShapedArray


# The other error is of a size, or of an axis to map, that does not fit the mesh.
_NOT_PLACED = (ShardingTypeError, ValueError)

Placing = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Makes a function whose steps are placed in some way."""


@with_standard_promotion
def call_on_mesh(fn: Callable[..., Any], *operands: Any) -> Any:
    """Call a function that may not say how each of its steps is placed.

    If JAX cannot tell that on explicit axes, the compiler decides it, and each device has the
    whole of the results.
    """
    try:
        return fn(*operands)
    except _NOT_PLACED:
        if not _are_split(tree_leaves(operands)):
            raise
    return _by_compiler(fn)(*operands)


def trace_on_mesh(
    fn: Callable[..., Sequence[Any]], avals: Sequence[Any], debug_info: Any
) -> tuple[Jaxpr, list[Any]]:
    """Trace a function whose first argument makes another one, within it, place its steps.

    As `call_on_mesh`, without the steps that were traced in vain.
    """
    try:
        return trace_to_jaxpr(functools.partial(fn, _by_jax), avals, debug_info)
    except _NOT_PLACED:
        if not _are_split(avals):
            raise
    return trace_to_jaxpr(functools.partial(fn, _by_compiler), avals, debug_info)


def _by_jax(fn: Callable[..., Any]) -> Callable[..., Any]:
    return fn


def _by_compiler(fn: Callable[..., Any]) -> Callable[..., Any]:
    def placed(*operands: Any) -> Any:
        declined: list[Any] = []

        def results(*operands: Any) -> Any:
            out = fn(*operands)
            if out is NotImplemented:
                declined.append(out)
                return ()
            return out

        with mesh_of(map(leaf_aval, tree_leaves(operands))):
            out = jax.sharding.auto_axes(results, out_sharding=PartitionSpec())(*operands)
        return NotImplemented if declined else out

    return placed


def _are_split(leaves: Iterable[Any]) -> bool:
    """Whether any of these is split over explicit axes of a mesh."""
    return any(map(_is_split, map(leaf_aval, leaves)))


def _is_split(aval: Any) -> bool:
    if not isinstance(aval, ShapedArray) or aval.sharding.mesh.empty:
        return False
    is_explicit = AxisType.Explicit in aval.sharding.mesh.axis_types
    return is_explicit and any(axes is not None for axes in aval.sharding.spec)
