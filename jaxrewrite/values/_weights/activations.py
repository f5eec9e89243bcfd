"""Products and convolutions of quantised weights with arrays that are rounded to 8 bits.

The product is that of the rounded array, in integers where the entries that are summed share
a scale, and in floating point elsewhere. So the numbers do not depend on the formulation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import ArrayLike

import jaxrewrite
from jaxrewrite.extend import warn_from_rule

from .._base.contract import Labels, along_result
from .._base.structured import promoted
from .coded import blockwise, convolved, scale_in
from .digits import MOST_SUMMED, integer_products, is_summable, largest
from .products import are_integers_fast, multiplied
from .quantised import Quantised
from .rows import is_for_rows
from .terms import is_scaled_after, rows_of, scaled, terms_of


MOST = 127

# XLA on a CPU makes int4 wider one by one, which takes as long as a product with many rows.
LEAST_ROWS_OF_INT4 = 16


def _is_rounded(v: Any, x: Any) -> bool:
    """Whether the first operand is a weight that rounds the second one."""
    is_rounding = isinstance(v, Quantised) and v.activations is not None
    return is_rounding and jnp.issubdtype(x.dtype, jnp.floating)


def _is_range_of(v: Quantised, summed: Iterable[int], kept: Iterable[int]) -> bool:
    """Whether a weight has a range for products that sum some of its axes and keep others.

    A range that was found from data is repeated along the axes that the products summed. It
    says nothing about other products, such as those of cotangents, which sum what these kept.
    A range that is repeated along both tells neither from the other.
    """
    if v.activations != "static":
        return True
    activation_range: Any = v.activation_range
    sizes = activation_range.shape
    if max(sizes, default=1) <= 1:
        return True

    def is_along(axes: Iterable[int]) -> bool:
        long = [i for i in axes if v.shape[i] > 1]
        return bool(long) and all(sizes[i] > 1 for i in long)

    return is_along(summed) and not is_along(kept)


def _scale(v: Quantised, x: Any, axes: Sequence[int]) -> Any:
    """The step of rounding, for all entries along some axes together.

    It is NaN if one of them is not finite, since integers could not show that.
    """
    wide = lax.stop_gradient(x).astype(promoted(x.dtype, jnp.float32))
    most = lax.expand_dims(largest(wide, axes), axes)
    finite = jnp.isfinite(most)
    if v.activations == "static":
        activation_range: Any = v.activation_range
        most = lax.stop_gradient(activation_range).max().astype(wide.dtype)
    return jnp.where(finite, scale_in(wide.dtype, most * (1 / MOST), MOST), jnp.nan)


def _straight_through(
    x: Any,
    scale: Any,
    q: Any,
    integers: Callable[[Any, Any], Any],
    floats: Callable[[Any, Any], Any],
) -> Any:
    """``integers(round(x / scale), q)``, with the derivative of ``floats(x / scale, q)``.

    Rounding has no derivative. Entries that were cut off have a derivative of zero.
    """

    @jax.custom_jvp
    def apply(x: Any, scale: Any, q: Any) -> Any:
        rounded = jnp.round(x.astype(scale.dtype) / scale)
        return integers(jnp.clip(rounded, -MOST, MOST).astype(jnp.int8), q)

    @apply.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        x, scale, q = primals
        inside = abs(x.astype(scale.dtype)) < (MOST + 0.5) * scale
        along = jnp.where(inside, tangents[0].astype(scale.dtype) / scale, 0)
        return apply(*primals), floats(along, q)

    return apply(x, scale, q)


def _rounded(x: Any, scale: Any) -> Any:
    """The array of the same dtype that the integers stand for."""
    levels = _straight_through(
        x, scale, None, lambda x, _: x.astype(scale.dtype), lambda x, _: x
    )
    return (levels * scale).astype(x.dtype)


def _unit(q: Any, dtype: Any) -> Quantised:
    """The integers as a weight."""
    return Quantised(q, jnp.ones((1,) * q.ndim, dtype))


def _not_in(others: Labels, labels: Labels) -> list[int]:
    """The axes of an operand that are not among others; of the result, those that are summed."""
    return [i for i, label in enumerate(labels) if label not in others]


def _warn_of_floats(v: Quantised) -> None:
    """Warn that a product sums entries with several scales, so that it is none of integers.

    The product of a cotangent sums what the product of the program keeps. So with the best
    scales for the latter it has several, and there is nothing to mend.
    """
    warn_from_rule(
        f"Quantised: this product sums entries of a weight of shape {v.shape} with several "
        f"scales, {v.scale.shape} in all, so it is one of floats in spite of "
        f'activations="{v.activations}", which only rounds here. Give one scale for each '
        "output: quantise(params, where, axes=jaxrewrite.values.weight_axes(fn, params, x), "
        f'activations="{v.activations}") finds out what is summed. Or leave out activations.',
        is_forward=True,
    )


@jaxrewrite.register("dot_general", exchange="types")
def _(x: Quantised, y: ArrayLike, **params) -> Any:
    if not (_is_rounded(x, y) or _is_rounded(y, x)):
        return NotImplemented
    v, x, terms = terms_of(x, y, **params)
    if not _is_range_of(v, _not_in(terms.out, terms.v), _not_in(terms.x, terms.v)):
        return NotImplemented
    summed = _not_in(terms.out, terms.x)
    scale = _scale(v, x, summed)
    fits = is_summable(terms.v, terms.x, terms.out, v.shape)
    is_slow = v.q.dtype == jnp.int4 and rows_of(x, terms) < LEAST_ROWS_OF_INT4
    is_slow = (
        is_slow or rows_of(x, terms) == 1 and is_for_rows(v, x, terms, are_integers_fast())
    )
    is_in_blocks = not is_scaled_after(v, terms)
    if is_in_blocks:
        _warn_of_floats(v)
    if v.zero is not None or not fits or is_slow or is_in_blocks:
        return multiplied(v, _rounded(x, scale), terms)
    wide, labels = terms._replace(dtype=terms.wide), (terms.v, terms.x, terms.out)
    raw = _straight_through(
        *(x, scale, v.q.astype(jnp.int8)),
        lambda x, q: integer_products(q, x[None], *labels)[0].astype(terms.wide),
        lambda x, q: multiplied(_unit(q, terms.wide), x.astype(terms.wide), wide),
    )
    # The row's scale comes last. Before the weight's, it would give infinity for large rows.
    product = scaled(raw, v, wide) * along_result(scale, terms.x, terms.out)
    return product.astype(terms.dtype)


@jaxrewrite.register("conv_general_dilated")
def _(x: ArrayLike, v: Quantised, *, preferred_element_type, **params) -> Any:
    numbers = params["dimension_numbers"]
    features, *summed = numbers.rhs_spec
    if not (_is_rounded(v, x) and _is_range_of(v, summed, [features])):
        return NotImplemented
    x = jnp.asarray(x)
    dtype = preferred_element_type or jnp.result_type(x, v.dtype)
    # If there are groups of the batch, images of several groups meet in one of the result.
    batch_axis = numbers.lhs_spec[0] if params["batch_group_count"] == 1 else None
    scale = _scale(v, x, [i for i in range(x.ndim) if i != batch_axis])
    is_scaled_before = any(k > 1 for i, k in enumerate(v.scale.shape) if i != features)
    fits = v.size // max(v.shape[features], 1) <= MOST_SUMMED
    if is_scaled_before:
        _warn_of_floats(v)
    if v.zero is not None or not fits or is_scaled_before:
        kind = {"preferred_element_type": preferred_element_type}
        return convolved(_rounded(x, scale), v, **kind, **params)
    wide = {"preferred_element_type": scale.dtype, **params}
    raw = _straight_through(
        *(x, scale, v.q.astype(jnp.int8)),
        lambda x, q: _convolved_integers(x, q, scale.dtype, params),
        lambda x, q: convolved(x, _unit(q, scale.dtype), **wide),
    )
    batch, feature = numbers.out_spec[:2]
    of_images, of_features = ([1] * raw.ndim for _ in range(2))
    of_images[batch], of_features[feature] = scale.size, v.scale.size
    own_scale = v.scale.astype(raw.dtype).reshape(of_features)
    # The scale of the images comes last, as that of rows does.
    product = blockwise(jnp.multiply, raw, own_scale) * scale.reshape(of_images)
    return product.astype(dtype)


def _convolved_integers(x: Any, q: Any, dtype: Any, params: dict[str, Any]) -> Any:
    """The convolution of integers, as floats; of floats where there may be none of integers."""

    def convolve(x: Any, q: Any, sums: Any) -> Any:
        params_of_sums = {"preferred_element_type": jnp.dtype(sums), **params}
        return lax.conv_general_dilated_p.bind(x, q, **params_of_sums).astype(dtype)

    return lax.platform_dependent(
        *(x, q),
        cpu=lambda x, q: convolve(x, q, jnp.int32),
        default=lambda x, q: convolve(x.astype(dtype), q.astype(dtype), dtype),
    )
