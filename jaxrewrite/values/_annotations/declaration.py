"""Rules for types that annotate an array: with tags, names, units, a mask or bounds.

A rule of such a type is written once. Each of its operands may be annotated or not. This
module registers the rule for all signatures that follow: for one operand, two, or any
number, and for operands that are other values, which become fields of the result.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

import jaxrewrite
from jaxrewrite import ArrayValue, register
from jaxrewrite._axes.declaration import annotated_fields
from jaxrewrite.primitives import BINARY, COLLECTIVE

from .._base.scatters import SCATTER
from .._base.structured import fields_of, is_annotation
from .operators import Carrying


TWO = (
    *(*BINARY, "complex", "conv_general_dilated", "dot_general", "pad"),
    *("select_and_gather_add", "select_and_scatter_add"),
)
"""Primitives of two operands, each of which may be annotated."""

SEVERAL = (
    *("clamp", "concatenate", "dynamic_update_slice", "select_n", "sort", "stack"),
    *("ragged_dot_general", "scatter-mul", *SCATTER),
)
"""Primitives of more operands, each of which may be annotated."""

# The same, where few types have a rule of their own.
_TWO_NAMED = (*TWO, "cholesky_update", "householder_product", "triangular_solve")
_SEVERAL_NAMED = (
    *(*SEVERAL, "custom_linear_solve", "custom_vmap_call", "ormqr"),
    "tridiagonal_solve",
)

REDUCING = ("reduce_sum", "reduce_max", "reduce_min")

_PLACES = {
    "gather": slice(1, 2),
    "dynamic_slice": slice(1, None),
    "dynamic_update_slice": slice(2, None),
    "ragged_dot_general": slice(2, None),
    **dict.fromkeys(("scatter-mul", *SCATTER), slice(1, 2)),
}
"""The operands of a primitive that are places of entries, or sizes of groups of them, and not
entries themselves."""

MOVING = (
    *jaxrewrite.primitives.SHAPE,
    *("split", "tile", "unstack", "device_put", "sharding_constraint", "reshard"),
)
"""Primitives of one operand, where each entry of a result is an entry of the operand."""


def like(x: Any) -> Any:
    """The aval of an array or a value."""
    if x is None:  # JAX would take it for a number.
        raise TypeError("There is no array.")
    return jax.core.ShapedArray(jnp.shape(x), jnp.result_type(x))


class Annotated(Carrying):
    """Base class of an array and what it carries, which is metadata: units, names, tags.

    A subclass has a field ``array``, an array or another value, and static fields alone. It has an
    ``outer`` above zero, and its rules come from `annotation_rule`. They see other values as
    values. Slices, stacks and shards of the array carry the same, and so does what a derivative
    rule returns for it. ``join`` says what two branches or turns of a loop carry together, if
    they carry different things, or if one of them carries nothing.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite import values
    >>> class From(values.Annotated):
    ...     array: jax.Array
    ...     source: str = jaxrewrite.field(static=True)
    ...     outer = 5
    ...     def join(self, other):
    ...         if not isinstance(other, From):
    ...             return NotImplemented
    ...         return From(self.array, "several"), From(other.array, "several")
    >>> @values.annotation_rule(From, "add", "mul")
    ... def of_sources(*operands, primitive, **params):
    ...     sources = {x.source for x in operands if isinstance(x, From)}
    ...     arrays = [x.array if isinstance(x, From) else x for x in operands]
    ...     source = sources.pop() if len(sources) == 1 else "several"
    ...     return From(jaxrewrite.bind(primitive, *arrays, **params), source)
    >>> def program(p, x, y):
    ...     return jax.lax.map(lambda row: 2 * row, x), jax.lax.cond(p, lambda: x, lambda: y + 1)
    >>> x, y = From(jnp.ones((2, 2)), "file"), From(jnp.ones((2, 2)), "network")
    >>> jaxrewrite.transform(program, materialise="forbid")(jnp.array(True), x, y)
    (From([[2. 2.]
           [2. 2.]], source='file', dtype=float32),
     From([[1. 1.]
           [1. 1.]], source='several', dtype=float32))
    """

    _is_base = True
    _array_fields = 1
    axes = {"array": "..."}

    # An array that is itself a value meets other values as that value.
    rules_see_values = True

    if TYPE_CHECKING:  # Each subclass has this field.
        array: Any

    def __init_subclass__(cls, **kwargs: Any) -> None:
        _refuse_arrays(cls)  # Else an error would ask for the axes of the second one.
        super().__init_subclass__(**kwargs)

    def aval(self) -> Any:
        """The aval of the array."""
        return like(self.array)

    def materialise(self) -> Any:
        """Return the array without its annotation."""
        return self.array

    def lift_tangent(self, tangent: Any) -> Any:
        """Give a tangent from a custom derivative rule what this array carries."""
        is_alike = isinstance(tangent, Annotated) and tangent.outer == self.outer
        return self._with_array(tangent.array if is_alike else tangent)

    def _with_array(self, array: Any) -> Any:
        """Another array with what this one carries."""
        _, treedef = fields_of(self)
        return jax.tree.unflatten(treedef, [array])


def _refuse_arrays(cls: type) -> None:
    arrays = [name for name, is_static in annotated_fields(cls).items() if not is_static]
    if len(arrays) > 1:
        raise TypeError(
            f"{cls.__name__} has {len(arrays)} fields that are arrays: {', '.join(arrays)}. What an "
            "Annotated type carries beside its array are static fields; a type that carries arrays "
            "is an ArrayValue with rules by annotation_rule."
        )


def annotation_rule(
    cls: type[ArrayValue], *names: str | Callable[..., Any]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a rule for operands of which at least one is annotated: a decorator.

    It is for types that hold an array and an annotation, such as units. The primitive
    decides which operands may be annotated and what the other operands may be: arrays and
    values of any other type. An index is never annotated. The rule is called as
    ``rule(*operands, primitive=primitive, **params)``. Each operand is a ``cls`` or looks
    like an array. If that array is another value, what the rule does to it is dispatched to
    the rules of that value, so that ``Unitful(x) * diagonal`` has a `Diagonal` inside.

    Such a type is an outer type, so give it an ``outer`` above zero. With
    ``rules_see_values = True``, the rule sees other values as values, both as operands and
    as the annotated array. It then calls `jaxrewrite.bind`, which dispatches on them.

    Parameters
    ----------
    cls
        The type that annotates.
    *names
        The names of primitives, and functions that `jaxrewrite.register` takes: what is inside may
        know a function as a whole. Without any, the rule is for all primitives that may have
        several annotated operands. The ``default`` of a type is for the others.

    Returns
    -------
    Callable
        A decorator that returns the rule unchanged.

    Raises
    ------
    TypeError
        If ``cls`` is no type of values.
    ValueError
        If a name is not the name of a primitive.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite import values
    >>> class Stamped(jaxrewrite.ArrayValue):
    ...     array: jax.Array
    ...     time: int = jaxrewrite.field(static=True)
    ...     outer = 5
    ...     rules_see_values = True
    ...     def materialise(self):
    ...         return self.array
    >>> @values.annotation_rule(Stamped, "add", "mul", "dot_general", "neg")
    ... def latest(*operands, primitive, **params):
    ...     time = max(x.time for x in operands if isinstance(x, Stamped))
    ...     arrays = [x.array if isinstance(x, Stamped) else x for x in operands]
    ...     return Stamped(jaxrewrite.bind(primitive, *arrays, **params), time)
    >>> 2 * Stamped(jnp.ones(2), 3) + Stamped(jnp.ones(2), 7)
    Stamped([3. 3.], time=7, dtype=float32)
    >>> values.Diagonal(jnp.ones(2)) @ Stamped(jnp.ones((2, 2)), 3)
    Stamped([[1. 1.]
             [1. 1.]], time=3, dtype=float32)
    """

    if not (isinstance(cls, type) and issubclass(cls, ArrayValue)):
        raise TypeError(
            "annotation_rule takes the type that annotates, a subclass of values.Annotated or "
            f"ArrayValue, and then names of primitives. This is no such type: {cls!r}."
        )

    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        def apply(*operands: Any, primitive: Any, **params: Any) -> Any:
            places = range(len(operands))[_PLACES.get(primitive.name, slice(0))]
            annotated = {i for i, x in enumerate(operands) if isinstance(x, cls)}
            if not annotated or not annotated.isdisjoint(places):
                return NotImplemented
            if any(_is_around(x, cls) for i, x in enumerate(operands) if i not in places):
                return NotImplemented  # It leaves first, where no rule of its own answers.
            if primitive.name in COLLECTIVE and _reduces(**params):
                return NotImplemented  # The rule for a reduction knows what that leaves.
            on_arrays = functools.partial(fn, primitive=primitive, **params)
            if cls.rules_see_values or not any(_is_other(x, cls) for x in operands):
                return on_arrays(*operands)
            return jaxrewrite.transform(on_arrays, lambda x: _is_other(x, cls))(*operands)

        _call_it_like(apply, fn)
        for name in names or (*TWO, *SEVERAL):
            _register(cls, name, apply)
        _leads_to(apply, fn)
        return fn

    return decorate


def _reduces(axes: Sequence[Any] = (), **params: Any) -> bool:
    """Whether a collective is over axes of the array, as one over what `jax.vmap` has mapped."""
    return any(isinstance(axis, int) for axis in axes)


def _is_other(x: Any, cls: type[ArrayValue]) -> bool:
    return isinstance(x, jaxrewrite.Value) and not isinstance(x, cls)


def _is_around(x: Any, cls: type[ArrayValue]) -> bool:
    """Whether an operand is an annotation around one of a class, and is outside of it."""
    if not is_annotation(x) or isinstance(x, cls) or x.outer <= cls.outer:
        return False
    is_of_class = lambda y: isinstance(y, cls)
    return any(map(is_of_class, jax.tree.leaves(x, is_leaf=is_of_class)))


def _register(cls: Any, name: str | Callable[..., Any], apply: Callable[..., Any]) -> None:
    anything = cls | ArrayLike | ArrayValue
    if name in _TWO_NAMED:

        def pair(x: Any, y: Any, *, primitive: Any, **params: Any) -> Any:
            return apply(x, y, primitive=primitive, **params)

        _call_it_like(pair, apply)
        register(name, types=(cls, cls))(pair)
        register(name, types=(cls, ArrayLike | ArrayValue), exchange="types")(pair)
        _leads_to(pair, apply)
    elif not (isinstance(name, str) or _has_several_operands(name)):

        def only(x: Any, *, primitive: Any, **params: Any) -> Any:
            return apply(x, primitive=primitive, **params)

        _call_it_like(only, apply)
        register(name, types=(cls,))(only)
        _leads_to(only, apply)
    elif name in _SEVERAL_NAMED or not isinstance(name, str):
        # For operands of this kind alone it must beat the rules for any value with structure.
        register(name, types=(cls | ArrayLike,))(apply)
        register(name, types=(anything,))(apply)
    else:

        def first(x: Any, *rest: Any, primitive: Any, **params: Any) -> Any:
            if rest and name in MOVING:
                return NotImplemented  # Several operands are placed at once, leaf by leaf.
            return apply(x, *rest, primitive=primitive, **params)

        _call_it_like(first, apply)
        # Indices may carry something else, such as names.
        register(name, types=(cls, ArrayLike | Annotated))(first)
        _leads_to(first, apply)


def _has_several_operands(function: Callable[..., Any]) -> bool:
    """Whether a function has to get more operands than one, or takes any number of them."""
    parameters = inspect.signature(function).parameters.values()
    needed = [p for p in parameters if p.default is p.empty]
    return len(needed) > 1 or needed[0].kind is inspect.Parameter.VAR_POSITIONAL


def _call_it_like(fn: Callable[..., Any], rule: Callable[..., Any]) -> None:
    """Give a rule the name that errors and profiles show; it keeps its own signature."""
    fn.__name__, fn.__qualname__ = rule.__name__, rule.__qualname__


def _leads_to(fn: Callable[..., Any], rule: Callable[..., Any]) -> None:
    """Let reports and errors show the place of the rule; registration reads ``fn`` itself."""
    vars(fn)["__wrapped__"] = rule


def mapped(fn: Callable[[Any], Any], primitive: Any, results: Any) -> Any:
    """``fn`` of the result, or of each result if the primitive has several."""
    if primitive.multiple_results:
        return [fn(result) for result in results]
    return fn(results)


def lowest(dtype: Any) -> Any:
    """The least number of a dtype: minus infinity, if the dtype has it."""
    if dtype == jnp.bool_:
        return False
    return _limits(dtype).min if _is_bounded(dtype) else -jnp.inf


def highest(dtype: Any) -> Any:
    """The greatest number of a dtype: infinity, if the dtype has it."""
    if dtype == jnp.bool_:
        return True
    return _limits(dtype).max if _is_bounded(dtype) else jnp.inf


def _is_bounded(dtype: Any) -> bool:
    """Whether a dtype has no infinity: integers, and floats such as ``float8_e4m3fn``."""
    return not (jnp.issubdtype(dtype, jnp.inexact) and np.isinf(np.asarray(np.inf, dtype)))


def _limits(dtype: Any) -> Any:
    return jnp.finfo(dtype) if jnp.issubdtype(dtype, jnp.inexact) else jnp.iinfo(dtype)
