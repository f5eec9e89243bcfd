"""Adapters with dropout: their factor does not see all entries of what it is multiplied with."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

import jaxrewrite
from jaxrewrite.extend import warn_from_rule

from .._base.contract import sides
from .._base.structured import Structured
from .._matrices.low_rank import LowRank
from .coded import check_blocks
from .lora import Lora, convolved, multiplied


class Dropped(Structured):
    r"""A factor of inputs, for one step of training with dropout.

    In a product with an array that sums the inputs, each entry of the array is kept with
    probability :math:`1 - p`, and is then divided by it, and is zero otherwise. All entries are drawn
    apart, as by ``torch.nn.Dropout`` in front of ``lora_A`` of peft. As an array, and in products that
    sum the ranks, it is the factor itself, of which such products are the mean.

    Parameters
    ----------
    w
        The factor. Its last axis is that of the ranks.
    seed
        Seeds of dtype uint32, of as many axes as ``w``, each of length one or of that of ``w``.
        The first one is used.
    rate
        The probability :math:`p`.

    Examples
    --------
    >>> import jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values._weights.dropped import Dropped
    >>> v = Dropped(jnp.eye(3), jnp.zeros((1, 1), "uint32"), 0.5)
    >>> jaxrewrite.transform(lambda x, v: x @ v)(jnp.ones((2, 3)), v)
    Array([[0., 0., 2.],
           [2., 0., 2.]], dtype=float32)
    """

    # Its products are not those of its dense array, so that no policy may take that for cheaper.
    materialise_policy = "warn"

    axes = {"w": "...", "seed": ".../block"}

    w: Array
    seed: Array
    rate: float = jaxrewrite.field(static=True)

    def __post_init__(self) -> None:
        check_blocks("Dropped", w=self.w, seed=self.seed)

    def aval(self) -> Any:
        return jax.core.ShapedArray(self.w.shape, self.w.dtype)

    def materialise(self) -> Any:
        return self.w

    def dropping(self, x: Any) -> Any:
        """An array without the entries that this factor does not see."""
        key = jax.random.key(self.seed.reshape(-1)[0])
        kept = jax.random.bernoulli(key, 1 - self.rate, jnp.shape(x))
        return jnp.where(kept, x / jnp.asarray(1 - self.rate, x.dtype), 0)

    def with_factor(self, w: Any) -> Self:
        return dataclasses.replace(self, w=w)


@jaxrewrite.register("neg", "convert_element_type")
def _(v: Dropped, *, primitive, **params) -> Any:
    return v.with_factor(primitive.bind(v.w, **params))


@jaxrewrite.register("mul", exchange="operands")
@jaxrewrite.register("div")
def _(v: Dropped, y: ArrayLike, *, primitive, **params) -> Any:
    product = primitive.bind(v.w, y, **params)
    return v.with_factor(product) if product.shape == v.shape else NotImplemented


@jaxrewrite.register("dot_general", exchange="types")
def _(x: Dropped, y: ArrayLike, *, primitive, dimension_numbers, **params) -> Any:
    seen = sides(Dropped, x, y, dimension_numbers)
    other = seen.other
    if seen.of_v[-1] in seen.out:
        other = seen.v.dropping(jnp.asarray(other))
    operands = seen.operands(seen.v.w, other)
    return primitive.bind(*operands, dimension_numbers=dimension_numbers, **params)


@jaxrewrite.register("conv_general_dilated")
def _(x: ArrayLike, v: Dropped, *, primitive, **params) -> Any:
    return primitive.bind(v.dropping(jnp.asarray(x)), v.w, **params)


class Dropping(Lora):
    """A `Lora` whose factor ``a`` is a `Dropped`, of what its rows meet.

    To a rule of a `Lora` its factors are arrays. So the type says that a product has entries to drop.
    """

    def _image(self, w: Any, change: LowRank, frozen: bool) -> Dropping:
        return Dropping(w, change.a, change.b, self.scale, change.rows, change.cols, frozen)


def _warn_of_rows(v: Dropping, summed: Iterable[int]) -> None:
    """Warn of a product that sums these axes, and none of the rows.

    The product of a cotangent sums what the product of the program keeps, and has nothing to drop.
    """
    if {axis % v.ndim for axis in v.rows}.isdisjoint(summed):
        warn_from_rule(
            f"dropout: this product sums the axes {tuple(summed)} of a Lora of shape {v.shape} whose "
            f"rows are {v.rows}. Entries are dropped of what is summed with the rows, and so none here. "
            "Let the rows be the inputs: adapt(..., axes=jaxrewrite.values.weight_axes(fn, params, x)) "
            "finds out which axes these are.",
            is_forward=True,
        )


@jaxrewrite.register("dot_general", exchange="types")
def _(x: Dropping, y: ArrayLike, *, dimension_numbers, **params) -> Any:
    v, side = (x, 0) if isinstance(x, Dropping) else (y, 1)
    _warn_of_rows(v, dimension_numbers[0][side])
    return multiplied(x, y, dimension_numbers=dimension_numbers, **params)


@jaxrewrite.register("conv_general_dilated")
def _(x: ArrayLike, v: Dropping, *, dimension_numbers, **params) -> Any:
    _warn_of_rows(v, dimension_numbers.rhs_spec[1:])
    return convolved(x, v, dimension_numbers=dimension_numbers, **params)
