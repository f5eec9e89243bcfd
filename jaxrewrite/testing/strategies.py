"""Strategies for `hypothesis`: values of your own type, and programs to run on them.

This module needs ``hypothesis``, which the rest of the package does not.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
from hypothesis.extra import numpy as of_numpy

from jaxrewrite import Value

from ._random_programs import BLOCKS, OPERATIONS, Program as Program


V = TypeVar("V", bound=Value)


def arrays(
    shape: tuple[int, ...],
    dtype: Any = "float32",
    elements: st.SearchStrategy[Any] | None = None,
) -> st.SearchStrategy[jax.Array]:
    """JAX arrays of a shape and a dtype.

    Floating and complex numbers are eighths from -2 to 2 by default, which all dtypes of 16
    bits or more hold exactly; integers are 0 to 3. Numbers that the dtype does not hold are
    cast to it. ``elements`` draws other numbers.

    Examples
    --------
    >>> import hypothesis
    >>> from jaxrewrite.testing import strategies
    >>> hypothesis.find(strategies.arrays((2,), "int32"), lambda x: x.sum() > 5)
    Array([3, 3], dtype=int32)
    """
    kind = jnp.dtype(dtype)
    drawn = _ELEMENTS[_kind(kind)] if elements is None else elements
    wide = {"f": np.float64, "c": np.complex128, "i": np.int64, "b": np.bool_}[_kind(kind)]
    numbers = of_numpy.arrays(wide, shape, elements=drawn)
    return numbers.map(lambda x: jnp.asarray(x.astype(kind)))


def _kind(dtype: Any) -> str:
    for kind, of in (("f", jnp.floating), ("c", jnp.complexfloating), ("i", jnp.integer)):
        if jnp.issubdtype(dtype, of):
            return kind
    return "b"


_EIGHTHS = st.integers(-16, 16).map(lambda i: i / 8)
_ELEMENTS: dict[str, st.SearchStrategy[Any]] = {
    "f": _EIGHTHS,
    "c": st.builds(complex, _EIGHTHS, _EIGHTHS),
    "i": st.integers(0, 3),
    "b": st.booleans(),
}


def values_of(
    cls: Callable[..., V],
    /,
    *,
    sizes: Mapping[str, int | st.SearchStrategy[int]] | None = None,
    elements: st.SearchStrategy[Any] | None = None,
    **fields: Any,
) -> st.SearchStrategy[V]:
    """Values of a type, from the annotations of its fields.

    A field with a jaxtyping annotation, such as ``Float[Array, "n k"]``, gets an array. A
    name of an axis has one size in all fields of a value, and the first of these dtypes that
    the annotation allows is taken: float32, int32, bool, complex64. Fields with a default
    keep it.

    Parameters
    ----------
    cls
        The type.
    sizes
        The sizes of named axes, or strategies for them. By default they are 1 to 4.
    elements
        The numbers of all arrays; see `arrays`.
    **fields
        For each field that its annotation does not describe, or that is to be drawn
        otherwise: a strategy, or what the field is.

    Raises
    ------
    TypeError
        If a field's annotation does not say the shape, or allows none of these dtypes, and
        nothing is given for the field; if there is no such field; or if ``cls`` is not a
        class.

    Examples
    --------
    >>> import hypothesis, jax, jaxrewrite, jax.numpy as jnp
    >>> from jaxtyping import Array, Float
    >>> from jaxrewrite.testing import strategies
    >>> class Outer(jaxrewrite.ArrayValue):
    ...     '''The outer product of two vectors.'''
    ...     a: Float[Array, "n"]
    ...     b: Float[Array, "m"]
    ...     def materialise(self):
    ...         return jnp.outer(self.a, self.b)
    >>> @hypothesis.given(strategies.values_of(Outer, sizes={"n": 2}))
    ... @hypothesis.settings(max_examples=5, deadline=None)
    ... def test_its_entries(v):
    ...     assert v.shape[0] == 2
    ...     assert v.materialise()[1, 0] == v.a[1] * v.b[0]
    >>> test_its_entries()
    """
    if not isinstance(cls, type):
        raise TypeError(
            f"values_of: takes a class; got an instance of {type(cls).__name__}."
        )
    name = cls.__name__
    all_fields = {f.name: f for f in dataclasses.fields(typing.cast(Any, cls)) if f.init}
    unknown = fields.keys() - all_fields.keys()
    if unknown:
        raise TypeError(f"values_of: {name} has no field {', '.join(sorted(unknown))}.")
    caller = sys._getframe(1)  # whose local names annotations may refer to
    names = {**caller.f_globals, **caller.f_locals}
    hints = typing.get_type_hints(cls, localns=names, include_extras=True)
    strategies = {
        k: v if isinstance(v, st.SearchStrategy) else st.just(v) for k, v in fields.items()
    }
    arrays: dict[str, _Array] = {}
    for key, field in all_fields.items():
        if key not in strategies and not _has_default(field):
            arrays[key] = _Array.of(hints[key], f"{name}.{key}")
    axes = dict.fromkeys(axis for array in arrays.values() for axis in array.names())
    sizes_of_axes = {
        axis: _size((sizes or {}).get(axis, st.integers(1, 4))) for axis in axes
    }

    @st.composite
    def drawn(draw: st.DrawFn) -> V:
        size = {axis: draw(strategy) for axis, strategy in sizes_of_axes.items()}
        drawn_fields = {
            key: draw(array.strategy(size, elements)) for key, array in arrays.items()
        }
        return cls(
            **drawn_fields, **{key: draw(strategy) for key, strategy in strategies.items()}
        )

    return drawn()


def _size(size: int | st.SearchStrategy[int]) -> st.SearchStrategy[int]:
    return size if isinstance(size, st.SearchStrategy) else st.just(size)


def _has_default(field: Any) -> bool:
    return (
        field.default is not dataclasses.MISSING
        or field.default_factory is not dataclasses.MISSING
    )


class _Array(typing.NamedTuple):
    """The axes and the dtype that an annotation gives an array."""

    axes: tuple[str, ...]
    dtype: str

    @staticmethod
    def of(hint: Any, field: str) -> _Array:
        if not (isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray)):
            raise TypeError(
                f"values_of: the annotation of {field} does not say its shape. Annotate it as "
                f'Float[Array, "n m"], or give a strategy: values_of(..., '
                f"{field.rpartition('.')[2]}=strategies.arrays((2, 3)))."
            )
        allowed = hint.dtypes
        for dtype in ("float32", "int32", "bool", "complex64"):
            if not isinstance(allowed, (list, tuple)) or dtype in allowed:
                return _Array(tuple(hint.dim_str.split()), dtype)
        raise TypeError(
            f"values_of: there are no arrays for {field}, whose dtypes are {allowed}."
        )

    def names(self) -> list[str]:
        named = (axis for axis in self.axes if not axis.startswith(("*", "...")))
        return [name for axis in named for name in re.findall(r"[^\W\d_]\w*", axis)]

    def strategy(self, sizes: Mapping[str, int], elements: Any) -> st.SearchStrategy[Any]:
        # Any number of axes, "..." and "*batch", is none; axes without a name have size 2.
        shape = [
            2 if axis == "_" else int(eval(axis.lstrip("#"), {}, dict(sizes)))  # noqa: S307
            for axis in self.axes
            if not axis.startswith(("*", "..."))
        ]
        return arrays(tuple(shape), self.dtype, elements)


_INDEX = st.integers(0, 5)
_OPERATION = st.tuples(st.sampled_from(sorted(OPERATIONS)), _INDEX, _INDEX)


def programs(max_leaves: int = 6) -> st.SearchStrategy[Program]:
    """Programs on square matrices of one shape, (n, n), of any n from 2 on.

    A program takes any number of them, one at least, and returns one more. It has operations
    that act entry by entry, are linear, reduce, or index, on their own and inside of
    ``jit``, ``checkpoint``, branches, loops, ``vmap`` and custom rules, nested in each other.
    ``max_leaves`` bounds the nesting.

    Examples
    --------
    >>> import hypothesis, jaxrewrite, jax.numpy as jnp, numpy as np
    >>> from jaxrewrite.testing import strategies
    >>> from jaxrewrite.values import Diagonal
    >>> @hypothesis.given(strategies.programs())
    ... @hypothesis.settings(max_examples=3, deadline=None)
    ... def test_agrees_with_dense_code(program):
    ...     v = Diagonal(jnp.arange(1.0, 4))
    ...     implicit = jaxrewrite.transform(program, materialise="allow")
    ...     got, want = jaxrewrite.materialise(implicit(v)), program(v.materialise())
    ...     np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    >>> test_agrees_with_dense_code()
    """
    steps = st.recursive(
        st.lists(_OPERATION, min_size=1, max_size=3),
        lambda inner: st.lists(
            st.one_of(
                _OPERATION,
                st.tuples(
                    st.tuples(st.sampled_from(sorted(BLOCKS)), inner), _INDEX, _INDEX
                ),
            ),
            min_size=1,
            max_size=3,
        ),
        max_leaves=max_leaves,
    )
    return steps.map(Program)
