"""`Rescaled`: an array with trained multipliers along some axes, as in IA3 and DoRA."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike

import jaxrewrite
from jaxrewrite import primitives
from jaxrewrite._axes.moves import LAST

from .._base.contract import along_result, sides
from .._base.ragged import groups_of, of_rows
from .._base.structured import inexact, is_value
from .._matrices.algebra import diagonal_of, is_square
from .._matrices.matrix import Matrix
from .._matrices.product import Product, is_diagonal
from .coded import Multiplied, blockwise, check_blocks, spread
from .concatenated import side_by_side


class Rescaled(Multiplied):
    r"""An array times numbers that belong to the indices of some axes.

    .. math:: v_{ij} = w_{ij} \, s_j \quad \text{or} \quad v_{ij} = w_{ij} \, s_i

    It is what IA3 [1]_ trains: ``w`` stays as it is, and each output, or each input, of a layer
    has a multiplier. In a product with an array the numbers multiply the result, or the
    array, and never ``w``. So ``w`` may be a value, such as a quantised weight. Transposes,
    reshapes, slices, scaling by numbers or along axes, and casts keep the form. A sum with an
    array, as of a bias, is an array if ``w`` is one. Rows that are looked up, and everything
    else, are dense.

    Parameters
    ----------
    w
        An array or a value of an inexact dtype, which is the dtype of the whole.
    scale
        The numbers: of as many axes as ``w``, each of length one or of the length of that axis
        of ``w``. If a length divides that of ``w``, consecutive entries share a number.

    Raises
    ------
    ValueError
        If the shapes do not fit, or ``w`` is of integers.

    References
    ----------
    .. [1] H. Liu et al. (2022), Few-Shot Parameter-Efficient Fine-Tuning is Better and Cheaper
       than In-Context Learning, arXiv:2205.05638.

    Examples
    --------
    >>> import jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import Quantised, Rescaled
    >>> v = Rescaled(Quantised.quantise(jnp.ones((3, 2)), axis=-1), jnp.array([[1.0, 2.0]]))
    >>> multiply = jaxrewrite.transform(lambda v, x: x @ v, materialise="forbid")
    >>> multiply(v, jnp.ones(3))
    Array([3., 6.], dtype=float32)
    """

    outer = -45

    axes = {"w": "...", "scale": ".../block"}

    w: Array
    scale: Array

    def __post_init__(self) -> None:
        check_blocks("Rescaled", w=self.w, scale=self.scale)
        if not jnp.issubdtype(self.w.dtype, jnp.inexact):
            raise ValueError(f"Rescaled: `w` must be floating; got {self.w.dtype}.")

    def aval(self) -> Any:
        return jax.ShapeDtypeStruct(self.w.shape, self.w.dtype)

    def materialise(self) -> Any:
        w = jaxrewrite.materialise(self.w)
        return blockwise(jnp.multiply, w, self.scale.astype(w.dtype))

    def scaled_axes(self) -> set[int]:
        """The axes along which the numbers differ."""
        return {i for i, n in enumerate(self.scale.shape) if n != 1}

    def numbers(self) -> Any:
        """The numbers in their own dtype, one for each index of such an axis."""
        pairs = zip(self.shape, self.scale.shape, strict=True)
        grid = [n if k != 1 else 1 for n, k in pairs]
        return spread(self.scale, grid)

    def factor(self) -> Any:
        """These numbers in the dtype of the array."""
        return self.numbers().astype(self.w.dtype)


@jaxrewrite.register(*primitives.ADDITIVE, exchange="types")
def _(x: Rescaled, y: ArrayLike, *, primitive, **params) -> Any:
    """A sum with an array, as of a bias, takes the numbers into ``w``, by the rules of its type."""
    operands = (z.materialise() if isinstance(z, Rescaled) else z for z in (x, y))
    return primitive.bind(*operands, **params)


@jaxrewrite.register("convert_element_type")
def _(v: Rescaled, *, new_dtype, **params) -> Any:
    if not jnp.issubdtype(new_dtype, jnp.inexact):
        return NotImplemented
    w, scale = (x.astype(new_dtype) for x in (v.w, v.scale))
    return dataclasses.replace(v, w=w, scale=scale)


def beside(vs: Sequence[Rescaled], axis: int) -> Any:
    """Weights along an axis, as one, or side by side where no product would take their numbers.

    Where all have numbers of other axes, they would make one for each pair of two indices.
    """
    if all(v.scaled_axes() and _has_one_number(v, axis) for v in vs):
        return side_by_side(vs, axis)
    return jaxrewrite.bind("concatenate", *vs, dimension=axis)


def _has_one_number(v: Rescaled, axis: int) -> bool:
    """Whether the entries along an axis, which is not that of a stack of one, share a number."""
    is_stack = v.ndim > 2 and v.shape[axis] == 1
    return v.scale.shape[axis] == 1 and not is_stack


@jaxrewrite.register("dot_general", types=(Rescaled, Rescaled))
@jaxrewrite.register("dot_general", exchange="types")
def _(x: Rescaled, y: ArrayLike, *, dimension_numbers, primitive, **params) -> Any:
    """Multiply the array before the product, or the result after it."""
    seen = sides(Rescaled, x, y, dimension_numbers)
    v = seen.v
    along = {seen.of_v[i] for i in v.scaled_axes()}
    multiply = lambda other: jaxrewrite.bind(
        primitive, *seen.operands(v.w, other), dimension_numbers=dimension_numbers, **params
    )
    if along.issubset(seen.out):
        product = multiply(seen.other)
        factor = along_result(v.factor(), seen.of_v, seen.out)
        return product * factor.astype(product.dtype)
    if along.issubset(seen.of_other):
        return multiply(seen.other * along_result(v.factor(), seen.of_v, seen.of_other))
    return NotImplemented


@jaxrewrite.register("ragged_dot_general")
def _(x: ArrayLike, v: Rescaled, sizes: ArrayLike, *, primitive, **params) -> Any:
    """Multiply each row before the product, or after it, by the numbers of its group."""
    groups = groups_of(x, v, sizes, **params)
    if groups is None:
        return NotImplemented
    own = v.scaled_axes()
    along = tuple(label for i, label in enumerate(groups.y) if i in own)
    multiply = lambda x: primitive.bind(x, v.w, sizes, **params)
    factor = v.factor().squeeze([i for i in range(v.ndim) if i not in own])
    if {*along} <= {*groups.out, groups.group}:
        product = multiply(x)
        factor, along = of_rows(factor, along, x, groups)
        return product * along_result(factor, along, groups.out).astype(product.dtype)
    if {*along} <= {*groups.x, groups.group}:
        factor, along = of_rows(factor, along, x, groups)
        return multiply(x * along_result(factor, along, groups.x))
    return NotImplemented


@jaxrewrite.register("conv_general_dilated")
def _(x: ArrayLike, v: Rescaled, *, dimension_numbers, primitive, **params) -> Any:
    """Multiply the features of the result, or those of the image."""
    out, features, *_ = dimension_numbers.rhs_spec
    convolve = lambda x: primitive.bind(
        x, v.w, dimension_numbers=dimension_numbers, **params
    )

    def along(x: Any, axis: int) -> Any:
        factor = v.factor().astype(x.dtype).reshape(-1)
        return x * lax.expand_dims(factor, [i for i in range(x.ndim) if i != axis])

    if v.scaled_axes() <= {out}:
        return along(convolve(x), dimension_numbers.out_spec[1])
    is_one_group = params["feature_group_count"] == params["batch_group_count"] == 1
    if v.scaled_axes() <= {features} and is_one_group:
        return convolve(along(x, dimension_numbers.lhs_spec[1]))
    return NotImplemented


# --- products of diagonal matrices and a weight -------------------------------------------

# Such a `Product`, as a fitted weight is, is a `Rescaled` where no rule of matrices applies: where it
# is cut, joined with others, or has other axes than a matrix.


def _rescaled(v: Product | Rescaled) -> Any:
    """A weight between diagonal matrices with their numbers, else NotImplemented."""
    if isinstance(v, Rescaled):
        return v
    cores = [i for i, x in enumerate(v.factors) if not (is_diagonal(x) and is_square(x))]
    if len(cores) != 1 or not inexact(v):
        return NotImplemented
    (core,) = cores
    w = v.factors[core]
    if not is_value(w) or isinstance(w, Matrix):
        return NotImplemented  # An array takes no more room where it is multiplied out.
    for x in reversed(v.factors[:core]):
        w = Rescaled(w, diagonal_of(x)[..., :, None])
    for x in v.factors[core + 1 :]:
        w = Rescaled(w, diagonal_of(x)[..., None, :])
    return w


@jaxrewrite.register(*primitives.SHAPE, "dynamic_slice", precedence=LAST - 1)
def _(v: Product, *starts: ArrayLike, primitive, **params) -> Any:
    w = _rescaled(v)
    return w if w is NotImplemented else jaxrewrite.bind(primitive, w, *starts, **params)


@jaxrewrite.register("concatenate", precedence=LAST - 1)
def _(*vs: Product | Rescaled, dimension) -> Any:
    ws = [_rescaled(v) for v in vs]
    if any(w is NotImplemented for w in ws):
        return NotImplemented
    is_new = any(w is not v for v, w in zip(vs, ws, strict=True))
    return beside(ws, dimension) if is_new else NotImplemented
