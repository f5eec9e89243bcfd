"""`Scaled`: a lazy product of a number and an array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

import jaxrewrite
from jaxrewrite import ArrayValue, bind, primitives, register, same_structure, transform

from .._base.linear import Linear
from .._base.structured import fields_of, inexact, is_number, with_ndim
from .algebra import (
    LinearAlgebra,
    diagonal_of,
    is_known_hermitian,
    is_square,
    known_of,
    known_or,
    trace_of,
)
from .block_diagonal import sorted_eigh
from .determinant import Determinant
from .low_rank import LowRank
from .matrix import Matrix, lazily, negated
from .sum import Sum, sum_of


class Scaled(LinearAlgebra, Linear):
    r"""A number times an array, :math:`s X`, which is not multiplied out.

    Linear maps and products act on the array. Where they make a dense array of a value, the
    number multiplies that. Numbers multiply the number; in 16 bits, the entries of a matrix inside.
    Functions that are not linear, and sums, act on the product of the two. Entries are summed or
    multiplied before the number multiplies them, so they may overflow where those of the product
    do not. If the number is infinite, the result may be infinite where the dense result is NaN.

    The quotient of a matrix with structure and a number that only the run knows is a
    `Scaled`, so that a division by zero makes NaN of its zeros. In 16 bits its entries are divided
    at once, and its own number is 1, unless the divisor is zero or NaN.

    Attributes
    ----------
    x
        An array or a value, of any shape and an inexact dtype.
    scale
        The number, an array of shape () and the same dtype. After `jax.vmap` it has the
        leading batch axes of ``x``, with a number for each element.

    Raises
    ------
    ValueError
        If ``scale`` has axes, or ``scale`` and ``x`` have different dtypes.

    Examples
    --------
    >>> import jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import Scaled
    >>> v = Scaled(jnp.ones((2, 3)), jnp.float32(4))
    >>> (v * 0.5).T
    Scaled([[2. 2.]
            [2. 2.]
            [2. 2.]], dtype=float32)
    >>> jaxrewrite.numpy.sum(v, axis=0)
    Scaled([8. 8. 8.], dtype=float32)
    """

    outer = -20

    x: Any
    scale: Array

    # The type of the array decides how it is multiplied with another value.
    rules_see_values = True

    def __post_init__(self) -> None:
        if jnp.ndim(self.scale):
            raise ValueError(f"Scaled: scale has shape {jnp.shape(self.scale)}, not ().")
        if jnp.result_type(self.scale) != self.x.dtype:
            raise ValueError(
                f"Scaled: scale has dtype {jnp.result_type(self.scale)}, but x has "
                f"{self.x.dtype}."
            )
        if getattr(self.scale, "weak_type", isinstance(self.scale, (float, complex))):
            # So that a transpose, whose scale is not weak, has the same one.
            vars(self)["scale"] = jnp.asarray(self.scale, self.x.dtype)

    def aval(self) -> Any:
        return jax.core.ShapedArray(self.x.shape, self.x.dtype)

    def materialise(self) -> Any:
        return jaxrewrite.materialise(self.x) * self.factor()

    @property
    def number(self) -> Any:
        """The scale as an array, also where it is a number that the program knows."""
        return jaxrewrite.materialise(self.scale)

    def factor(self) -> Any:
        """The number, or one for each element of a batch, with as many axes as the array."""
        return with_ndim(self.number, len(self.x.shape))

    def rescaled(self, scale: Any) -> Scaled:
        """The array with another number, or other numbers, as its scale."""
        (x, _), treedef = fields_of(self)
        return treedef.unflatten([x, jnp.asarray(scale, self.dtype)])

    def sliceable(self) -> Any:
        """The same array, with a number for each element of the first axis."""
        if jnp.ndim(self.number) or not self.x.shape:
            return self
        return self.rescaled(jnp.broadcast_to(self.number, self.x.shape[:1]))

    def leaf_specs(self, spec: Any) -> Any:
        _, treedef = fields_of(self)
        return treedef.unflatten([spec, type(spec)(*spec[: jnp.ndim(self.number)])])

    def map_parts(self, fn: Callable[[Any], Any]) -> Any:
        if jnp.ndim(self.number):
            # A linear map need not keep the batch axes.
            multiplied = self.multiplied()
            return multiplied if multiplied is NotImplemented else fn(multiplied)
        image = fn(self.x)
        if isinstance(self.x, jaxrewrite.Value) and not isinstance(image, jaxrewrite.Value):
            # It takes no less room than its product with the number.
            return image * self.number.astype(image.dtype)
        return _lazy_multiple(image, self.number)

    def join(self, other: Any) -> Any:
        """The join with a value like the array inside: that value times one."""
        if not isinstance(self.x, jaxrewrite.Value) or not same_structure(self.x, other):
            return NotImplemented
        return self, Scaled(other, jnp.ones((), self.dtype))

    def multiplied(self) -> Any:
        """``s X`` as an array or as a value without `Scaled`; else NotImplemented.

        The result would keep zeros that no leaf holds, even if the number is not finite. So
        an array with such zeros gives NotImplemented.
        """
        if not isinstance(self.x, jaxrewrite.Value):
            return self.x * self.factor()
        if getattr(self.x, "has_zeros", False):
            return NotImplemented
        is_batch = jnp.ndim(self.number) > 0
        product = transform(jnp.multiply)(
            self.x, self.factor() if is_batch else self.number
        )
        return NotImplemented if isinstance(product, Scaled) and not is_batch else product

    # --- linear algebra, as in a `Matrix` -----------------------------------------------

    @property
    def solvable(self) -> bool:
        return isinstance(self.x, LinearAlgebra) and self.x.solvable

    def known_diagonal(self) -> Any:
        diagonal = diagonal_of(self.x)
        if self._scales_rows():
            return diagonal * self.number[..., : diagonal.shape[-1]]
        return diagonal * self._of_matrices(1)

    def trace(self) -> Any:
        if self._scales_rows():
            return self.known_diagonal().sum(-1)
        return trace_of(self.x) * self._of_matrices(0)

    def known_inverse(self) -> Any:
        """The array's inverse divided by the number, if the array knows its inverse."""
        inverse = known_of(self.x, "known_inverse")
        if inverse is NotImplemented:
            return NotImplemented
        return multiple(inverse, 1 / self.number)

    def known_determinant(self) -> Any:
        r"""The number to the power n, times the determinant of an array of n rows.

        The function for dense arrays makes multiples of a value, so it must not be asked for
        the determinant of one here.
        """
        if not is_square(self) or self._scales_rows():
            return NotImplemented
        if isinstance(self.x, jaxrewrite.Value):
            determinant = known_of(self.x, "known_determinant")
            if determinant is NotImplemented:
                return NotImplemented
            determinant = jaxrewrite.materialise(determinant)
        else:
            determinant = Determinant.of_arrays(self.x)
        scale = jnp.broadcast_to(self._of_matrices(0), determinant.unit.shape)
        number = Determinant.of(scale[..., None]) ** self.shape[-1]
        return number.times(determinant)

    @property
    def is_hermitian(self) -> bool:
        return is_known_hermitian(self.x) and not jnp.iscomplexobj(self.number)

    def hermitian_part(self) -> Any:
        """A real multiple of that of the array."""
        part = known_of(self.x, "hermitian_part")
        if part is NotImplemented or jnp.iscomplexobj(self.number):
            return NotImplemented
        return multiple(part, self.number)

    def known_cholesky(self) -> Any:
        """The factor of the array, with the sign of the number, times the root of the number.

        So the array tells whether the factor exists, and which zeros one has that does not.
        """
        if not isinstance(self.x, LinearAlgebra) or jnp.iscomplexobj(self.number):
            return NotImplemented
        size = abs(self.number)
        sign = self.rescaled(jnp.where(size > 0, jnp.sign(self.number), jnp.nan))
        signed = transform(jnp.multiply)(self.x, sign.factor())
        if isinstance(signed, Scaled):
            return NotImplemented  # A multiple of the array is of no kind that knows more.
        factor = known_of(signed, "known_cholesky")
        if factor is NotImplemented:
            return NotImplemented
        # A root that is NaN has made NaN of the factor already.
        root = self.rescaled(jnp.sqrt(jnp.where(size > 0, size, 1)))
        return transform(jnp.multiply)(factor, root.factor())

    def is_triangular(self, lower: bool) -> bool:
        return isinstance(self.x, LinearAlgebra) and self.x.is_triangular(lower)

    def known_triangle(self, lower: bool, unit_diagonal: bool) -> Any:
        triangle = (
            NotImplemented
            if unit_diagonal
            else known_of(self.x, "known_triangle", lower, False)
        )
        return triangle if triangle is NotImplemented else multiple(triangle, self.number)

    def known_eigh(self, lower: bool) -> Any:
        decomposition = known_of(self.x, "known_eigh", lower)
        if decomposition is NotImplemented or jnp.iscomplexobj(self.number):
            return NotImplemented
        values, vectors = decomposition
        values = jaxrewrite.materialise(values) * self._of_matrices(1)
        return sorted_eigh(values, vectors)

    def known_svd(self) -> Any:
        """The sign, or the phase, of the number goes to the vectors on the left."""
        return self._decomposed("known_svd")

    def known_reduced_svd(self) -> Any:
        return self._decomposed("known_reduced_svd")

    def _decomposed(self, hook: str) -> Any:
        decomposition = known_of(self.x, hook)
        if decomposition is NotImplemented:
            return NotImplemented
        u, size, vh = decomposition
        size = jaxrewrite.materialise(size) * abs(self._of_matrices(1))
        if jnp.iscomplexobj(self.number):
            is_zero = self.number == 0
            phase = self.number / jnp.where(is_zero, 1, abs(self.number))
            phase = jnp.where(is_zero, 1, phase)
        else:
            phase = jnp.where(self.number < 0, -1, 1)
        return multiple(u, phase.astype(u.dtype)), size, vh

    def known_singular_values(self) -> Any:
        singular_values = known_of(self.x, "known_singular_values")
        if singular_values is NotImplemented:
            return NotImplemented
        return jaxrewrite.materialise(singular_values) * abs(self._of_matrices(1))

    def known_eigenvalues(self) -> Any:
        if not is_square(self) or self._scales_rows():
            return NotImplemented
        eigenvalues = known_or(self.x, "known_eigenvalues", jnp.linalg.eigvals)
        return jaxrewrite.materialise(eigenvalues) * self._of_matrices(1)

    def _scales_rows(self) -> bool:
        """Whether it is a batch of multiples of vectors, each with a number of its own."""
        return jnp.ndim(self.number) > len(self.batch)

    def _of_matrices(self, more: int) -> Any:
        """The number of each matrix in a stack, with ``more`` axes of size 1 at the end."""
        if not jnp.ndim(self.number):
            return self.number
        factor = self.factor()
        return factor.reshape(factor.shape[: factor.ndim - 2 + more])

    def solve(self, x: Any, axis: int) -> Any:
        if not self.solvable:
            return super().solve(x, axis)
        return self.x.solve(x, axis) / with_ndim(self.number, x.ndim)


def multiple(x: Any, scale: Any) -> Scaled:
    """An array times a number, or times one for each element of a batch."""
    return Scaled(x, jnp.zeros((), x.dtype)).rescaled(scale)


def _lazy_multiple(x: Any, scale: Any) -> Any:
    """A number times an array; the product, if the array is itself a number, like a loss."""
    scale = jnp.asarray(scale, x.dtype)
    if x.shape == () and not isinstance(x, jaxrewrite.Value):
        return x * scale
    return Scaled(x, scale)


@register("mul", "dot_general")
def _(v: Scaled, w: Scaled, *, primitive: Any, **params: Any) -> Any:
    if jnp.ndim(v.number) or jnp.ndim(w.number):
        return _on_products(primitive, v, w, **params)
    product = bind(primitive, v.x, w.x, **params)
    if product.dtype != v.dtype and not inexact(v):
        return NotImplemented  # Entries of the operands may wrap.
    a, b = (jnp.asarray(x.number, product.dtype) for x in (v, w))
    return _lazy_multiple(product, a * b)


@register("dot_general", exchange="types")
def _(x: Scaled, y: Array, *, dimension_numbers: Any, **params: Any) -> Any:
    """The product of a batch with a number for each element, which multiplies the result."""
    position, v = next((i, z) for i, z in enumerate((x, y)) if isinstance(z, Scaled))
    scale, batch = v.number, dimension_numbers[1][position]
    if not scale.ndim or tuple(batch[: scale.ndim]) != tuple(range(scale.ndim)):
        return NotImplemented
    operands = [z.x if isinstance(z, Scaled) else z for z in (x, y)]
    product = bind("dot_general", *operands, dimension_numbers=dimension_numbers, **params)
    return (product * with_ndim(scale, product.ndim)).astype(product.dtype)


@register("transpose")
def _(v: Scaled, *, permutation: Any) -> Any:
    kept = tuple(range(jnp.ndim(v.number)))
    if tuple(permutation[: len(kept)]) != kept:
        return NotImplemented
    return multiple(bind("transpose", v.x, permutation=permutation), v.number)


def by_number(fn: Callable[[Any, Any], Any], v: Any, number: Any) -> Scaled:
    """A value times a number, or divided by one, with NaN for zeros that do not stay zeros.

    In 16 bits the number acts on the entries at once, where the structure stays the same: products
    of entries may overflow where those of the multiples do not. It is left to the `Scaled` only if
    it makes NaN of zeros. In more bits that overflows rarely, and a number that `jax.vmap` maps over
    would take a matrix for each.
    """
    x, scale = (v.x, v.number) if isinstance(v, Scaled) else (v, jnp.ones((), v.dtype))
    number, one = jnp.reshape(number, ()), jnp.ones((), v.dtype)
    if v.dtype.itemsize > 2:
        return multiple(x, fn(scale, number))
    keeps_zeros = fn(jnp.zeros((), v.dtype), number) == 0
    closed = _entries_by_number(fn, x, lax.select(keeps_zeros, number, one))
    if closed is NotImplemented or not same_structure(closed, x):
        return multiple(x, fn(scale, number))
    return multiple(closed, fn(scale, lax.select(keeps_zeros, one, number)))


def _entries_by_number(fn: Callable[[Any, Any], Any], x: Any, number: Any) -> Any:
    if isinstance(x, Sum):
        terms = [_entries_by_number(fn, term, number) for term in x.terms]
        return NotImplemented if any(t is NotImplemented for t in terms) else sum_of(terms)
    if isinstance(x, LowRank) or not isinstance(x, jaxrewrite.Value):
        return transform(fn)(x, number)
    if not isinstance(x, Matrix):
        return NotImplemented
    if x.entries is None:
        closed = x.times_number(fn(jnp.ones((), x.dtype), number))
    else:
        closed = x.map_entries(lambda entry: fn(entry, number))
    return closed if type(closed) is type(x) else NotImplemented


@register("mul", exchange="operands")
def _(v: Scaled, factor: Array, **params: Any) -> Any:
    if not is_number(factor):
        return NotImplemented
    if isinstance(v.x, jaxrewrite.Value) and inexact(v):
        return by_number(jnp.multiply, v, factor)
    return v.rescaled(v.number * jnp.reshape(factor, ()))


@register("div")
def _(v: Scaled, divisor: Array | ArrayValue, *, primitive: Any, **params: Any) -> Any:
    if not inexact(v):
        return _on_products(primitive, v, divisor, **params)  # Each quotient is rounded.
    if isinstance(divisor, ArrayValue) or not is_number(divisor):
        return v.map_parts(lambda part: bind("div", part, divisor))
    if isinstance(v.x, jaxrewrite.Value):
        return by_number(jnp.divide, v, divisor)
    return v.rescaled(v.number / jnp.reshape(divisor, ()))


@register("div")
def _(v: Sum, divisor: Array, **params: Any) -> Any:
    if not is_number(divisor) or not inexact(v):
        return NotImplemented
    return by_number(jnp.divide, v, divisor)


@register("abs", "square", "integer_pow", "conj")
def _(v: Scaled, *, primitive: Any, **params: Any) -> Any:
    """Each of these functions maps a product of two numbers to the product of its results."""
    # A product of integers may wrap, and has another sign then.
    wraps = primitive.name == "abs" and not inexact(v)
    if wraps or jnp.ndim(v.number):
        product = _on_products(primitive, v, **params)
        if wraps or product is not NotImplemented:
            return product
    x, scale = (bind(primitive, part, **params) for part in (v.x, v.number))
    return multiple(x, scale)


_MULTIPLICATIVE = ("neg", "abs", "square", "integer_pow", "conj")

# A function that is not linear acts on the product, which takes no more room than the two.
_OTHERS = [name for name in primitives.BINARY if name not in ("mul", "div")]


def _on_products(primitive: Any, *operands: Any, **params: Any) -> Any:
    multiplied = [x.multiplied() if isinstance(x, Scaled) else x for x in operands]
    if not any(x is NotImplemented for x in multiplied):
        return bind(primitive, *multiplied, **params)
    if primitive.name not in primitives.ADDITIVE or len({x.shape for x in operands}) > 1:
        return NotImplemented
    x, y = operands
    return lazily(sum_of([x, negated(y) if primitive.name == "sub" else y]))


@register(
    *[name for name in primitives.UNARY if name not in _MULTIPLICATIVE],
    *[name for name in primitives.REDUCTION if name != "reduce_sum"],
    *[name for name in primitives.CUMULATIVE if name != "cumsum"],
)
def _(v: Scaled, *, primitive: Any, **params: Any) -> Any:
    return _on_products(primitive, v, **params)


@register("div", types=(Array, Scaled))
@register(*_OTHERS, "div", types=(Scaled, Scaled))
@register(*_OTHERS, exchange="types")
def _(x: Scaled, y: Array | ArrayValue, *, primitive: Any, **params: Any) -> Any:
    return _on_products(primitive, x, y, **params)
