"""Abstract values: shapes, dtypes, weak types, mesh axes."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from types import FrameType
from typing import Any

import jax
import jax.extend.core as jex_core
import numpy as np
from jax import lax

# The function by which jax.numpy refuses operands has no hook for a hint. It asks each of
# them for __jax_array__.
from jax._src.numpy.util import check_arraylike
from jax.typing import ArrayLike

from .types import JaxprEqn, Primitive, ShapedArray


def leaf_aval(leaf: Any) -> Any:
    """The aval of an array, tracer, atom, scalar, or of an aval.

    Raises `TypeError` for any other object.
    """
    try:
        return leaf.aval
    except AttributeError:
        if isinstance(leaf, jax.core.AbstractValue):
            return leaf
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return ShapedArray(leaf.shape, leaf.dtype, weak_type=leaf.weak_type)
        return jax.typeof(leaf)


def is_array(leaf: Any) -> bool:
    """Whether a leaf of a program's arguments is an array (or a reference)."""
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic, jax.Ref))


def is_plain(aval: Any) -> bool:
    """Whether an aval consists of shape, dtype and weak type only."""
    return not isinstance(aval, ShapedArray) or (
        aval.sharding.mesh.empty
        and not aval.manual_axis_type.varying
        and aval.memory_space == jax.memory.Space.Device
    )


def mesh_of(avals: Iterable[Any]) -> Any:
    """A context manager that sets the mesh of the arrays of these avals, if they have one.

    It differs from the mesh of the surrounding program where that leaves some axes to the
    compiler for a while (`jax.sharding.auto_axes`).
    """
    for aval in avals:
        if isinstance(aval, ShapedArray) and not aval.sharding.mesh.empty:
            return jax.sharding.use_abstract_mesh(aval.sharding.mesh)
    return contextlib.nullcontext()


def varying_axes(aval: Any) -> frozenset[Any]:
    """The axes of a mesh over which an array varies, inside `jax.shard_map`."""
    is_array = isinstance(aval, ShapedArray)
    return frozenset(aval.manual_axis_type.varying) if is_array else frozenset()


def varying_as(aval: ShapedArray, avals: Sequence[Any]) -> ShapedArray:
    """The aval of an array that varies over the mesh axes over which some others vary."""
    varying = [x for x in avals if varying_axes(x)]
    if not varying:
        return aval
    spec = jax.sharding.PartitionSpec(*[None] * len(aval.shape))
    return aval.update(
        sharding=jax.sharding.NamedSharding(varying[0].sharding.mesh, spec),
        manual_axis_type=type(aval.manual_axis_type)(
            varying=frozenset().union(*map(varying_axes, varying))
        ),
    )


def vary_over(x: Any, axes: Set[Any]) -> Any:
    """The same array, of the type of one that varies over some more mesh axes."""
    return jax.lax.pcast(x, tuple(sorted(axes)), to="varying") if axes else x


def vary_as(x: Any, others: Iterable[Any]) -> Any:
    """The same array, of the type of one that varies wherever it or one of the others does."""
    axes = frozenset().union(*(varying_axes(leaf_aval(other)) for other in others))
    return vary_over(x, axes - varying_axes(leaf_aval(x)))


def full(aval: ShapedArray, number: ArrayLike) -> jax.Array:
    """An array of an aval, filled with a number, and placed on a mesh as the aval is."""
    filled = lax.full(aval.shape, number, aval.dtype, sharding=split_as(aval))
    axes = varying_axes(aval) - varying_axes(leaf_aval(filled))
    return vary_over(filled, axes)


def split_as(aval: ShapedArray) -> jax.sharding.Sharding | None:
    """How an array is split over a mesh, if its aval tells; else ``None``."""
    is_split = any(axis is not None for axis in aval.sharding.spec)
    return aval.sharding if is_split else None


def placed_as(x: Any, aval: Any) -> Any:
    """An array, split over the explicit axes of a mesh as its aval is to be."""
    if not isinstance(aval, ShapedArray) or aval.sharding.mesh.empty:
        return x
    wanted, present = aval.sharding, leaf_aval(x).sharding
    is_explicit = jax.sharding.AxisType.Explicit in wanted.mesh.axis_types
    if not is_explicit or present.spec == wanted.spec:
        return x
    return jax.sharding.reshard(x, wanted)


def is_weak(aval: Any) -> bool:
    """Whether an aval has a weak type."""
    return isinstance(aval, ShapedArray) and aval.weak_type


def strong(aval: Any) -> Any:
    """The aval without its weak type."""
    return aval.update(weak_type=False) if is_weak(aval) else aval


def as_weak(array: Any) -> Any:
    """The array with a weak type."""
    return jax.lax.convert_element_type_p.bind(
        array, new_dtype=array.dtype, weak_type=True, sharding=None
    )


def as_weak_as(array: Any, aval: Any) -> Any:
    """The array with a weak type if the type of ``aval`` is weak, else with a strong type."""
    if is_weak(leaf_aval(array)) == is_weak(aval):
        return array
    return (
        as_weak(array) if is_weak(aval) else jax.lax.convert_element_type(array, aval.dtype)
    )


def without_leading_axis(aval: Any, length: int) -> Any:
    """The aval of one of ``length`` slices along the first axis."""
    return without_axis(aval, length, 0)


def without_axis(aval: Any, length: int, axis: int) -> Any:
    """The aval of one of ``length`` slices along an axis."""
    return jex_core.mapped_aval(length, axis, aval)


def with_leading_axis(aval: Any, length: int) -> Any:
    """The aval of ``length`` arrays stacked along a new first axis."""
    return jex_core.unmapped_aval(length, 0, aval)


def same_array_type(aval: Any, expected: Any) -> bool:
    """Whether two avals agree in shape and dtype."""
    if not isinstance(expected, ShapedArray) or not isinstance(aval, ShapedArray):
        return type(aval) is type(expected)
    return aval.shape == expected.shape and aval.dtype == expected.dtype


def short(aval: Any) -> str:
    """An aval as short text, like ``f32[3,4]``."""
    return aval.str_short(short_dtypes=True)


def is_refused(frame: FrameType | None) -> bool:
    """Whether the code of a frame is about to refuse an object that is no array."""
    # The frames of the check of one object, of the loop over all, and of their caller.
    for _ in range(3):
        if frame is not None and frame.f_code is check_arraylike.__code__:
            return not frame.f_locals["emit_warning"]
        frame = frame and frame.f_back
    return False


@functools.cache
def primitives_by_name() -> Mapping[str, Primitive]:
    """Every primitive of the modules of JAX that were imported when it was first called.

    `primitive_of_name` also finds those of modules that came later.

    Some, such as those of `jax.shard_map` and `lax.composite`, have no public name, but
    users write rules for them, too.
    """
    loaded = list(sys.modules.items())
    of = lambda package: [m for name, m in loaded if name.startswith(package)]
    modules = [*of("jax.experimental."), *of("jax._src.")]
    modules += [jax.lax, jex_core.primitives]  # An exported primitive beats its namesake.
    return {
        primitive.name: primitive
        for module in modules
        for primitive in list(vars(module).values())
        if isinstance(primitive, Primitive)
    }


def primitive_of_name(name: str) -> Primitive | None:
    """The primitive of a name, also where its module has been imported since others were found."""
    if name not in primitives_by_name():
        primitives_by_name.cache_clear()
    return primitives_by_name().get(name)


def is_namesake(primitive: Primitive) -> bool:
    """Whether a primitive is not JAX's own, and one of JAX's has its name."""
    return primitives_by_name().get(primitive.name, primitive) is not primitive


def result_avals(eqn: JaxprEqn, avals: Sequence[Any]) -> list[Any]:
    """The avals of the results of an equation's primitive for operands of these avals."""
    with eqn.ctx.manager:
        out, _ = eqn.primitive.abstract_eval(*avals, **eqn.params)
    return list(out) if eqn.primitive.multiple_results else [out]
