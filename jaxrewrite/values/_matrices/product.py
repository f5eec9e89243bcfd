"""`Product`: a lazy product of matrices."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import jaxrewrite
from jaxrewrite import bind, register

from .._base.contract import contract
from .._base.sizes import is_less
from .._base.structured import fields_of, with_ndim
from .algebra import (
    LinearAlgebra,
    dense_singular_values,
    dense_svd,
    diagonal_of,
    is_known_unitary,
    is_square,
    known_of,
    known_or,
)
from .determinant import Determinant
from .matrix import Matrix, apply_dense, at, closed_product, solve_factor, swapped


class Product(Matrix):
    r"""A lazy product of matrices, :math:`F_1 F_2 \cdots F_k`.

    It is the product of values with structure that has no closed form. A product with an
    array multiplies it by one factor after the other, the last one first.

    Attributes
    ----------
    factors
        Two or more arrays or values, of shapes (\*batch, n, k), (\*batch, k, m) and so on, with
        the same batch axes and one dtype.

    Raises
    ------
    ValueError
        If there are no factors, or their shapes or dtypes do not fit.

    Examples
    --------
    >>> import jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import Circulant, Diagonal
    >>> v = Diagonal(jnp.arange(3.0)) @ Circulant(jnp.arange(3.0))
    >>> type(v).__name__, v.nbytes
    ('Product', 24)
    >>> v @ jnp.ones(3)
    Array([0., 3., 6.], dtype=float32)
    """

    factors: tuple[Any, ...]

    # The type of a factor decides how it is multiplied with another value.
    rules_see_values = True

    def __post_init__(self) -> None:
        if not self.factors:
            raise ValueError("Product: factors is empty.")
        for x, y in zip(self.factors, self.factors[1:], strict=False):
            if x.shape[-1] != y.shape[-2] or x.shape[:-2] != y.shape[:-2]:
                raise ValueError(
                    f"Product: factors of shapes {x.shape} and {y.shape} do not fit."
                )
            if x.dtype != y.dtype:
                raise ValueError(
                    f"Product: factors have different dtypes: {x.dtype} and {y.dtype}."
                )

    def aval(self) -> Any:
        first, last = self.factors[0], self.factors[-1]
        return jax.core.ShapedArray((*first.shape[:-1], last.shape[-1]), first.dtype)

    def materialise(self) -> Any:
        # The factor that becomes dense is one whose entries are not to meet the zeros of others: one
        # without zeros, or else none that moves or scales rows and columns.
        moves = lambda x: (_has_zeros(x), is_known_unitary(x), is_diagonal(x))
        first = min(range(len(self.factors)), key=lambda i: moves(self.factors[i]))
        product = jaxrewrite.materialise(self.factors[first])
        for factor in reversed(self.factors[:first]):
            product = _multiplied(factor, product, product.ndim - 2)
        for factor in self.factors[first + 1 :]:
            product = _multiplied(swapped(factor), product, product.ndim - 1)
        return product

    def leaf_specs(self, spec: Any) -> Any:
        """Split the rows of the first factor, and the columns of the last one."""
        whole = [*spec, *[None] * (self.ndim - len(spec))]
        axes = [[*whole[:-2], None, None] for _ in self.factors]
        axes[0][-2], axes[-1][-1] = whole[-2:]
        _, treedef = fields_of(self)
        return treedef.unflatten([type(spec)(*of_factor) for of_factor in axes])

    def apply(self, x: Any, axis: int, precision: Any = None) -> Any:
        for factor in reversed(self.factors):
            x = apply_dense(factor, x, axis, precision)
        return x

    def transposed(self) -> Any:
        return Product(tuple(swapped(factor) for factor in reversed(self.factors)))

    def times_number(self, factor: Any) -> Any:
        first, *rest = self.factors
        return Product((first * factor, *rest))

    def cast(self, dtype: Any) -> Any:
        return Product(tuple(factor.astype(dtype) for factor in self.factors))

    def times(self, other: Any) -> Any:
        last = closed_product(self.factors[-1], other)
        if last is not NotImplemented:
            return _of(*self.factors[:-1], last)
        return Product((*self.factors, *_factors(other)))

    def rtimes(self, other: Any) -> Any:
        first = closed_product(other, self.factors[0])
        if first is not NotImplemented:
            return _of(first, *self.factors[1:])
        return Product((*_factors(other), *self.factors))

    def rows_at(self, i: Any) -> Any:
        """Rows of the first factor, multiplied by one factor after the other."""
        scaled = self._scaled_at(i)
        if scaled is not NotImplemented:
            return scaled
        first, *rest = self.factors
        rows_of_first = _rows_of(first, i.reshape(-1))
        rows = functools.reduce(jaxrewrite.transform(jnp.matmul), rest, rows_of_first)
        return jaxrewrite.materialise(rows).reshape(*i.shape, self.shape[-1])

    def entries_at(self, i: Any, j: Any) -> Any:
        """Rows of all factors but the last, times columns of that one.

        It is not known for so many entries that these take more memory than the dense matrix.
        """
        scaled = self._scaled_at(i, j)
        if scaled is not NotImplemented:
            return scaled
        *before, last = self.factors
        if is_less(self.size, i.size * last.shape[-2]):
            return NotImplemented
        rows = _of(*before)
        # JAX takes the rows of an empty matrix right at indices of one axis alone.
        of_each = _rows_of(rows, i.reshape(-1)), _rows_of(swapped(last), j.reshape(-1))
        dense = map(jaxrewrite.materialise, of_each)
        left, right = (x.reshape(*i.shape, x.shape[-1]) for x in dense)
        axes = tuple(range(i.ndim))
        return contract(left, (*axes, "summed"), right, (*axes, "summed"), axes)

    def _scaled_at(self, *places: Any) -> Any:
        """Entries at rows and columns, or whole rows, where the first or last factor scales them.

        The zeros of such a factor are not to meet the entries of the others.
        """
        (first, *after), (*before, last) = self.factors, self.factors
        if after and _scales(first):
            rest, numbers = after, diagonal_of(first)[places[0]]
        elif before and _scales(last) and len(places) == 2:
            rest, numbers = before, diagonal_of(last)[places[1]]
        else:
            return NotImplemented
        entries = at(_of(*rest), *places)
        known = entries is not NotImplemented
        return with_ndim(numbers, entries.ndim) * entries if known else NotImplemented

    def block(self, i: Any, j: Any) -> Any:
        if is_less(j.size, i.size):
            return self.transposed().rows_at(j)[:, i].T
        return self.rows_at(i)[:, j]

    def known_diagonal(self) -> Any:
        """That of the one factor that is not diagonal, with its rows and columns scaled.

        If there are more, it sums the rows of all factors but the last, times columns of that one.
        """
        others = [x for x in self.factors if not is_diagonal(x)]
        if len(others) <= 1 and all(map(is_square, self.factors)):
            return functools.reduce(operator.mul, map(diagonal_of, self.factors))
        if not is_square(self):
            return super().known_diagonal()
        *first, last = self.factors
        batch = tuple(range(self.ndim - 2))
        rows, columns = (*batch, "row", "summed"), (*batch, "summed", "row")
        return jaxrewrite.materialise(
            contract(_of(*first), rows, last, columns, (*batch, "row"))
        )

    @property
    def solvable(self) -> bool:
        is_known = lambda x: (
            not isinstance(x, jaxrewrite.Value)
            or (isinstance(x, LinearAlgebra) and x.solvable)
        )
        return all(is_square(x) and is_known(x) for x in self.factors)

    def solve(self, x: Any, axis: int) -> Any:
        if not self.solvable:
            return super().solve(x, axis)
        for factor in self.factors:
            x = solve_factor(factor, x, axis)
        return x

    def known_inverse(self) -> Any:
        if not self.solvable:
            return NotImplemented
        inverse = lambda x: known_or(x, "known_inverse", jnp.linalg.inv)
        return _of(*map(inverse, reversed(self.factors)))

    def known_determinant(self) -> Any:
        """The product of the determinants of the factors, if they are square."""
        if not all(map(is_square, self.factors)):
            return NotImplemented
        determinants = [
            known_or(x, "known_determinant", Determinant.of_arrays) for x in self.factors
        ]
        return functools.reduce(Determinant.times, determinants)

    @property
    def is_unitary(self) -> bool:
        return all(map(is_known_unitary, self.factors))

    def known_svd(self) -> Any:
        return self._decomposed("known_svd")

    def known_reduced_svd(self) -> Any:
        return self._decomposed("known_reduced_svd")

    def known_singular_values(self) -> Any:
        core = self._core()
        if core is None:
            return NotImplemented
        hook = "known_singular_values"
        return _known_or_of_array(self.factors[core], hook, dense_singular_values)

    def _core(self) -> int | None:
        """The one factor that has the singular values, if all others are unitary."""
        others = [i for i, x in enumerate(self.factors) if not is_known_unitary(x)]
        return None if len(others) > 1 else [*others, 0][0]

    def _decomposed(self, hook: str) -> Any:
        core = self._core()
        if core is None:
            return NotImplemented
        decomposition = _known_or_of_array(self.factors[core], hook, dense_svd)
        if decomposition is NotImplemented:
            return NotImplemented
        u, size, vh = decomposition
        times = jaxrewrite.transform(jnp.matmul)
        # The vectors of a real matrix may be complex.
        for factor in reversed(self.factors[:core]):
            u = times(factor.astype(u.dtype), u)
        for factor in self.factors[core + 1 :]:
            vh = times(vh, factor.astype(vh.dtype))
        return u, size, vh


@register("conj")
def _(v: Product, **params: Any) -> Any:
    return Product(tuple(bind("conj", factor, **params) for factor in v.factors))


def _of(*factors: Any) -> Any:
    """The product of factors; the first or last is new and may combine with its neighbour."""
    if len(factors) == 1:
        return factors[0]
    if len(factors) == 2:
        return matrix_product(*factors)
    return Product(factors)


def _rows_of(x: Any, i: Any) -> Any:
    """The rows of a factor at indices in range."""
    return jaxrewrite.transform(lambda x: jnp.take(x, i, axis=0, mode="clip"))(x)


def is_diagonal(x: Any) -> bool:
    return isinstance(x, Matrix) and x.is_triangular(True) and x.is_triangular(False)


def _scales(x: Any) -> bool:
    return is_diagonal(x) and is_square(x)


def _has_zeros(x: Any) -> bool:
    return isinstance(x, Matrix) and x.has_zeros


def _multiplied(factor: Any, x: Any, axis: int) -> Any:
    """An array multiplied along an axis, by a matrix itself if it knows of its zeros."""
    if _has_zeros(factor):
        return jaxrewrite.materialise(factor.apply(x, axis))
    return apply_dense(jaxrewrite.materialise(factor), x, axis)


def _known_or_of_array(x: Any, hook: str, fn: Callable[[Any], Any]) -> Any:
    return known_of(x, hook) if isinstance(x, jaxrewrite.Value) else fn(x)


def _factors(x: Any) -> tuple[Any, ...]:
    return x.factors if isinstance(x, Product) else (x,)


def matrix_product(x: Any, y: Any) -> Any:
    """``x @ y`` of two values, in closed form if they know one, else lazily."""
    closed = closed_product(x, y)
    return Product((x, y)) if closed is NotImplemented else closed
