"""`Matrix`: the base class of matrices with structure.

A `Matrix` is a linear map that acts along an axis of an array. All products with arrays
follow from that. Two matrices make a lazy `Product` or `Sum` if they have no closed form. If
the entries of a type are the entries of its leaves, its attribute ``entries`` says so, and
functions that act entry by entry act on the leaves.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Inexact, Int, Shaped

import jaxrewrite
from jaxrewrite import ArrayValue, bind, same_structure, transform

from .._base.contract import contract
from .._base.shapes import Shapes, check_shapes, same_shape
from .._base.structured import Structured, fields_of, inexact, is_value, placed_as, vary_as
from .algebra import LinearAlgebra, on_arrays, solve_columns


class Matrix(LinearAlgebra, Structured):
    r"""Base class of matrices with structure, or of stacks of them.

    A value has the shape (\*batch, n, m), and each of its leaves has the same batch axes in
    front. A subclass defines ``aval``, ``materialise`` and ``apply``, and ``transposed`` if the
    transpose has a form of its own. It overrides any other method for which it has something
    better than the dense form.

    Attributes
    ----------
    entries
        ``"all"`` if each entry of the matrix is an entry of a leaf, ``"pattern"`` if the
        other entries are zeros, ``None`` if the entries are anything else.
    movable
        Whether leaves define the places of the entries. Then two values of one structure
        may have their entries at different places.

    Examples
    --------
    The matrix that reverses the order of entries, which is its own inverse:

    >>> import jax, jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite import values
    >>> class Exchange(values.Matrix):
    ...     like: jax.Array  # of shape (*batch, n)
    ...     def aval(self):
    ...         shape = (*self.like.shape, self.like.shape[-1])
    ...         return jax.core.ShapedArray(shape, self.like.dtype)
    ...     def materialise(self):
    ...         n = self.like.shape[-1]
    ...         reversed = jnp.eye(n, dtype=self.like.dtype)[::-1]
    ...         return jnp.broadcast_to(reversed, self.shape)
    ...     def apply(self, x, axis, precision=None):
    ...         return jnp.flip(x, axis)
    ...     def transposed(self):
    ...         return self
    ...     def known_inverse(self):
    ...         return self
    >>> v = Exchange(jnp.zeros(3))
    >>> v @ jnp.arange(3.0), v.inverse() @ jnp.arange(3.0)
    (Array([2., 1., 0.], dtype=float32), Array([2., 1., 0.], dtype=float32))
    >>> values.Diagonal(jnp.ones(3)) + 2 * v
    Sum[Diagonal, Scaled[Exchange]]([[1.  · 2.]
                                     [ · 3.  ·]
                                     [2.  · 1.]], dtype=float32)
    """

    _is_base = True
    _required = (*Structured._required, "apply")
    outer = -70
    axes = staticmethod(
        lambda *leaves: {"self": "... n m", **dict.fromkeys(leaves, "... *more")}
    )
    entries: ClassVar[str | None] = None
    movable: ClassVar[bool] = False

    # --- what a type has to define, besides `aval` and `materialise` -----------------------

    @abc.abstractmethod
    def apply(
        self, x: Shaped[Array, "*batch *axes"], axis: int, precision: Any = None
    ) -> Shaped[Array, "*batch *out_axes"] | Any:
        """Multiply along an axis of an array.

        Parameters
        ----------
        x
            An array with the matrix's batch axes in front, of length m along ``axis``.
        axis
            The axis that is summed over.
        precision
            The ``precision`` of `jax.lax.dot_general`, for types that use it.

        Returns
        -------
        Array
            An array like ``x``, of length n along ``axis``.
        """

    def transposed(self) -> Matrix | Any:
        """The matrix with its last two axes exchanged.

        By default, and where it returns NotImplemented, the transpose is a matrix that holds this
        one and applies the linear transpose of ``apply``, which JAX derives.
        """
        return _Transposed(self)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.entries not in ("pattern", "all", None):
            raise TypeError(
                f"{cls.__name__}.entries has to be 'pattern', 'all' or None; it is {cls.entries!r}."
            )
        check_shapes(cls, _SHAPES)
        if "transposed" in vars(cls):  # Whoever asks for the transpose gets one.
            cls.transposed = _or_lazy(cls.transposed)  # type: ignore[method-assign]

    def reversed(self) -> Matrix | Any:
        """The matrix with its rows and its columns in the opposite order, as a matrix.

        NotImplemented makes it dense.
        """
        return NotImplemented

    # --- products and sums in closed form; NotImplemented makes them lazy or dense -----------

    def times_number(self, factor: Shaped[Array, ""]) -> Matrix | Any:
        """The matrix times a number, an array of shape ()."""
        if self.entries is None:
            return NotImplemented
        return self.map_entries(lambda x: x * factor)

    def scaled_rows(self, factors: Shaped[Array, "*batch n"]) -> Matrix | Any:
        r"""``diag(factors) @ self``, for factors of shape (\*batch, n)."""
        return NotImplemented

    def times(self, other: ArrayValue) -> Matrix | Any:
        """``self @ other`` in closed form; ``other`` is a value with the same batch axes."""
        return NotImplemented

    def rtimes(self, other: ArrayValue) -> Matrix | Any:
        """``other @ self`` in closed form."""
        return NotImplemented

    def plus(self, other: ArrayValue) -> ArrayValue | Any:
        """``self + other`` in closed form; ``other`` is a value of the same shape."""
        return NotImplemented

    def hadamard(self, other: ArrayValue | Shaped[Array, "*batch n m"]) -> ArrayValue | Any:
        """``self * other``, entry by entry, in closed form.

        ``other`` is a value, or also an array if the type has no ``entries``.
        """
        return NotImplemented

    def join(self, other: Any) -> Any:
        """The join with a matrix that takes this structure where it is added to zeros of it.

        So does the identity, with which many a loop over matrices begins.
        """
        if self.entries is None or self.movable or not isinstance(other, Matrix):
            return NotImplemented
        same = closed_sum(self.map_entries(jnp.zeros_like), other)
        return (self, same) if same_structure(self, same) else NotImplemented

    # --- entries and batch axes; right for types with entries as leaves ----------------------

    @on_arrays
    def cast(self, dtype: Any) -> Self | Any:
        """The matrix in another dtype: any dtype if it has ``entries``, else an inexact one.

        The leaves are cast. A type that rounds its leaves at its peril, such as an inverse,
        defines another cast, or returns NotImplemented, which makes the matrix dense.
        """
        if self.entries is None:
            return jax.tree.map(lambda x: x.astype(dtype) if inexact(x) else x, self)
        return self.map_entries(lambda x: x.astype(dtype))

    @on_arrays
    def map_entries(self, fn: Callable[..., Any], *others: Self) -> Self:
        """The matrix after a function that acts on the leaves that are entries."""
        return jax.tree.map(fn, self, *others)

    def pick(self, dense: Shaped[Array, "*batch n m"]) -> Self:
        """A value of this structure with the entries of ``dense`` at their places.

        Types with ``entries`` define it. ``dense`` is an array of this shape.
        NotImplemented if no value of this structure has such entries, because the entries
        of this type repeat.
        """
        name = type(self).__name__
        raise NotImplementedError(
            f"{name} says that it has entries, and does not define pick."
        )

    def entries_at(
        self, i: Int[Array, "*k"], j: Int[Array, "*k"]
    ) -> Shaped[Array, "*k"] | Any:
        """The entries at rows and columns, arrays of one shape, of one matrix, not a stack."""
        return NotImplemented

    def rows_at(self, i: Int[Array, "*k"]) -> Shaped[Array, "*k m"] | Any:
        """The rows at indices in range, as an array, of one matrix, not a stack."""
        columns = jnp.arange(self.shape[-1])
        return self.entries_at(*jnp.broadcast_arrays(i[..., None], columns))

    def block(self, i: Int[Array, " k"], j: Int[Array, " l"]) -> Shaped[Array, "k l"] | Any:
        """The entries of some rows and columns, as an array, of one matrix, not a stack."""
        return self.entries_at(*jnp.meshgrid(i, j, indexing="ij"))

    def _times_entries(self, other: Any, i: Any, j: Any) -> Any:
        """``self * other``, if ``other`` knows its entries at the places of those of this matrix."""
        if self.batch or not isinstance(other, Matrix):
            return NotImplemented
        entries = other.entries_at(i, j)
        if entries is NotImplemented:
            return NotImplemented
        return self.map_entries(lambda x: x * entries)

    def known_diagonal(self) -> Any:
        rows = jnp.arange(min(self.shape[-2:]))
        return NotImplemented if self.batch else self.entries_at(rows, rows)

    def same_pattern(self, other: Any) -> bool:
        """Whether the entries of this and another value are at the same places."""
        return not self.movable and same_structure(self, other)

    def row_sums(self) -> Shaped[Array, "*batch n"]:
        """The sum of each row."""
        ones = jnp.ones((*self.batch, self.shape[-1]), self.dtype)
        return self.apply(ones, self.ndim - 2)

    # --- linear algebra of square matrices: `solve` and what `LinearAlgebra` asks for --------

    @property
    def solvable(self) -> bool:
        """Whether the type knows how to ``solve``."""
        n, m = self.shape[-2:]
        return n == m and type(self).solve is not Matrix.solve

    # --- what follows from the above --------------------------------------------------------

    def hermitian_part(self) -> Any:
        if self.is_hermitian:
            return self
        twice = closed_sum(self, adjoint(self))
        return twice if twice is NotImplemented else transform(lambda x: x / 2)(twice)

    @property
    def has_zeros(self) -> bool:
        return self.entries == "pattern" or super().has_zeros

    def tangent(self, leaf_tangents: Any) -> Any:
        # The entries are linear in the floating leaves. The others may be the places of the
        # entries, which a tangent has as well.
        if self.entries is None:
            return NotImplemented
        return jax.tree.map(lambda x, t: t if inexact(x) else x, self, leaf_tangents)

    def lift_tangent(self, tangent: Any) -> Any:
        if type(tangent) is type(self):  # One that carries units in a field is never dense.
            return tangent
        return NotImplemented if self.entries is None else self.pick(tangent)

    def tangent_space(self) -> Literal["all", "entries", "repeated"]:
        # The other entries of a pattern are zeros. Without a pattern entries repeat.
        return "entries" if self.entries == "pattern" else "repeated"


def _along(x: Any, axis: int, length: int) -> tuple[int, ...]:
    shape = list(x.shape)
    shape[axis] = length
    return tuple(shape)


# What the methods return, for classes of users.
_SHAPES: Shapes = {
    "apply": lambda v, x, axis, precision=None: _along(x, axis, v.shape[-2]),
    "solve": lambda v, x, axis: tuple(x.shape),
    "transposed": lambda v: (*v.batch, *v.shape[:-3:-1]),
    "times": lambda v, other: (*v.shape[:-1], other.shape[-1]),
    "rtimes": lambda v, other: (*other.shape[:-1], v.shape[-1]),
    "entries_at": lambda v, i, j: jnp.broadcast_shapes(i.shape, j.shape),
    "rows_at": lambda v, i: (*i.shape, v.shape[-1]),
    "block": lambda v, i, j: (*i.shape, *j.shape),
    "row_sums": lambda v: tuple(v.shape[:-1]),
    "known_diagonal": lambda v: (*v.batch, min(v.shape[-2:])),
    "known_singular_values": lambda v: (*v.batch, min(v.shape[-2:])),
    "known_eigenvalues": lambda v: (*v.batch, v.shape[-1]),
    "known_solution": lambda v, b: tuple(b.shape),
    **dict.fromkeys(("cast", "hadamard", "pick", "plus", "reversed"), same_shape),
    **dict.fromkeys(("scaled_rows", "times_number", "known_cholesky"), same_shape),
    **dict.fromkeys(("known_exponential", "known_inverse"), same_shape),
    **dict.fromkeys(("known_lower_part", "known_triangle"), same_shape),
}


def _or_lazy(transposed: Callable[[Any], Any]) -> Any:
    @functools.wraps(transposed)
    def method(self: Any) -> Any:
        result = transposed(self)
        return _Transposed(self) if result is NotImplemented else result

    return method


class _Transposed(Matrix):
    """The transpose of a matrix whose type has no form for it."""

    matrix: Any

    rules_see_values = True

    def aval(self) -> Any:
        *batch, n, m = self.matrix.shape
        return jax.core.ShapedArray((*batch, m, n), self.matrix.dtype)

    def materialise(self) -> Any:
        return jnp.swapaxes(jaxrewrite.materialise(self.matrix), -1, -2)

    def apply(self, x: Any, axis: int, precision: Any = None) -> Any:
        if not inexact(x):  # JAX can't transpose every function of integers.
            return apply_dense(self.materialise(), x, axis, precision)
        return self._transpose(lambda y: self.matrix.apply(y, axis, precision), x, axis)

    @property
    def solvable(self) -> bool:
        return bool(self.matrix.solvable)

    def solve(self, b: Any, axis: int) -> Any:
        if not self.solvable:
            return super().solve(b, axis)
        return self._transpose(lambda y: self.matrix.solve(y, axis), b, axis)

    def _transpose(self, fn: Callable[[Any], Any], x: Any, axis: int) -> Any:
        shape = (*x.shape[:axis], self.shape[-2], *x.shape[axis + 1 :])
        # What varies less over a mesh than its product does has a transpose that adds up devices.
        # Both are split over a mesh as the result is, but for the axis.
        arrays = [x, *jax.tree.leaves(self.matrix)]
        zeros = jnp.zeros_like(x).sum(axis, x.dtype, keepdims=True)
        like = vary_as(jnp.broadcast_to(zeros, shape), arrays)
        on_array = lambda y: jaxrewrite.materialise(fn(y))
        ct = vary_as(placed_as(x, jax.typeof(zeros)), arrays)
        (y,) = jax.linear_transpose(on_array, like)(ct)
        return y

    def transposed(self) -> Any:
        return self.matrix

    def cast(self, dtype: Any) -> Any:
        cast = self.matrix.cast(dtype)
        return cast if cast is NotImplemented else _Transposed(cast)

    def entries_at(self, i: Any, j: Any) -> Any:
        return jaxrewrite.materialise(self.matrix.entries_at(j, i))


def nan_if_any_is(x: Inexact[Array, "*batch ..."], batch: int) -> Any:
    """Make all numbers of a matrix NaN if one is, as LAPACK does when it fails."""
    axes = tuple(range(batch, x.ndim))
    return nan_where(jnp.isnan(x).any(axes, keepdims=True), x) if axes else x


def nan_where(is_nan: Any, x: Any) -> Any:
    """Make some numbers NaN, and their derivatives, which those of a chosen constant are not."""
    factor = jnp.where(is_nan, jnp.nan, 1)
    if jnp.iscomplexobj(x):  # A product with a complex one would be NaN for infinities.
        return lax.complex(x.real * factor, x.imag * factor)
    return x * factor


def check_square(cls: str, field: str, x: Any) -> None:
    """Raise a `ValueError` unless an array is a square matrix, or a stack of them."""
    shape = jnp.shape(x)
    if len(shape) < 2 or shape[-2] != shape[-1]:
        raise ValueError(f"{cls}: {field} has shape {shape}, which is not square.")


def check_has_matrices(cls: str, field: str, x: Any) -> None:
    """Raise a `ValueError` unless an array has the two axes of a matrix, and others before them."""
    if jnp.ndim(x) < 2:
        raise ValueError(
            f"{cls}: {field} has shape {jnp.shape(x)}, but needs two axes or more."
        )


# --- arrays along an axis ---------------------------------------------------------------


def on_axis(d: Shaped[Array, "*batch n"], batch: int, ndim: int, axis: int) -> Any:
    r"""Reshape ``d``, (\*batch, n), to broadcast along an axis of an array of ``ndim`` axes."""
    ones = [1] * (ndim - batch)
    ones[axis - batch] = d.shape[-1]
    return d.reshape(*d.shape[:-1], *ones)


def apply_dense(
    a: Shaped[Array, "*batch n m"] | ArrayValue,
    x: Shaped[Array, "*batch ..."],
    axis: int,
    precision: Any = None,
) -> Any:
    r"""Multiply an array along an axis by matrices ``a`` of shape (\*batch, n, m)."""
    xs = tuple(range(x.ndim))
    batch = xs[: a.ndim - 2]
    out = tuple("row" if label == axis else label for label in xs)
    return contract(x, xs, a, (*batch, "row", axis), out, precision=precision)


def solve_dense(
    a: Shaped[Array, "*batch n n"] | ArrayValue, x: Shaped[Array, "*batch ..."], axis: int
) -> Any:
    r"""Solve along an axis with matrices ``a`` of shape (\*batch, n, n), made dense."""
    solve = functools.partial(jaxrewrite.transform(jnp.linalg.solve), a)
    return solve_columns(solve, x, axis, a.ndim - 2)


def solve_factor(
    factor: Shaped[Array, "*batch n n"] | ArrayValue,
    x: Shaped[Array, "*batch ..."],
    axis: int,
) -> Any:
    """Solve along an axis with an array, or with a matrix that may know how to solve."""
    if isinstance(factor, LinearAlgebra) and factor.solvable:
        return factor.solve(x, axis)
    return solve_dense(factor, x, axis)


def unpivoted(v: Matrix) -> tuple[Any, Any]:
    """The pivots and the permutation of an LU factorisation that exchanges no rows."""
    rows = jnp.arange(min(v.shape[-2:]), dtype=jnp.int32)
    everywhere = jnp.broadcast_to(rows, (*v.batch, *rows.shape))
    return everywhere, everywhere


# --- two values ----------------------------------------------------------------------


def swapped(x: ArrayValue | Shaped[Array, "*batch n m"]) -> Any:
    """A value or an array with its last two axes exchanged."""
    if isinstance(x, LinearAlgebra):
        return x.transposed()
    batch = range(x.ndim - 2)
    return bind(lax.transpose_p, x, permutation=(*batch, x.ndim - 1, x.ndim - 2))


def turned(x: ArrayValue | Shaped[Array, "*batch n m"]) -> Any:
    """A value or an array with its rows and its columns in the opposite order."""
    return bind(lax.rev_p, x, dimensions=(x.ndim - 2, x.ndim - 1))


def at(x: Any, *places: Any) -> Any:
    """The entries of a value or an array at rows and columns in range, or whole rows."""
    if isinstance(x, Matrix):
        return x.entries_at(*places) if len(places) == 2 else x.rows_at(*places)
    take = lambda x, *places: x.at[places].get(mode="promise_in_bounds")
    return jaxrewrite.materialise(transform(take)(x, *places))


def adjoint(x: Any) -> Any:
    """A value or an array, transposed and conjugated."""
    x = swapped(x)
    if not jnp.iscomplexobj(x):
        return x
    return bind(lax.conj_p, x, input_dtype=x.dtype)


def closed_product(x: Any, y: Any) -> Any:
    """``x @ y`` in closed form, or NotImplemented."""
    return _closed("times", "rtimes", x, y)


def closed_sum(x: Any, y: Any) -> Any:
    """``x + y`` in closed form, or NotImplemented."""
    return _closed("plus", "plus", x, y)


def closed_hadamard(x: Any, y: Any) -> Any:
    """``x * y``, entry by entry, in closed form, or NotImplemented."""
    return _closed("hadamard", "hadamard", x, y)


def _closed(hook: str, hook_of_second: str, x: Any, y: Any) -> Any:
    """What the first of two values knows by a method, else what the second one does."""
    closed = getattr(x, hook)(y) if isinstance(x, Matrix) else NotImplemented
    if closed is NotImplemented and isinstance(y, Matrix):
        closed = getattr(y, hook_of_second)(x)
    return closed


def negated(x: Any) -> Any:
    return bind(lax.neg_p, x) if isinstance(x, jaxrewrite.Value) else -x


# So many parts a small matrix may have, too. A kernel of a Gaussian process has a dozen terms.
_FEW_PARTS = 64


def lazily(v: Any) -> Any:
    """A lazy result, or NotImplemented if it has more parts than an array would pay for.

    Each operation goes through all parts, and an unrolled recursion, such as Newton's for an
    inverse, doubles them with each turn. Products with the parts take more time than those with
    the array before there are as many parts as rows.
    """
    parts = _count(v)
    return v if parts <= _FEW_PARTS or parts <= min(v.shape[-2:]) // 4 else NotImplemented


def _count(v: Any) -> int:
    """How many values without values in them. One with many leaves is no lazy result."""
    inside = [_count(x) for x in fields_of(v)[0] if is_value(x)]
    return sum(inside) if inside else 1
