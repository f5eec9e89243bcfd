"""Convolutions with kernels of low rank: one to as many features as the rank, then a product."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import ArrayLike

import jaxrewrite

from .._base.contract import contract, transpose
from .._base.linear import multiply_by_parts
from .low_rank import LowRank, factors
from .low_rank_factors import RANK, Factor


@jaxrewrite.register("conv_general_dilated")
def convolved(x: ArrayLike, v: LowRank, *, preferred_element_type, **params) -> Any:
    r"""Convolve with one factor, and multiply the features by the other.

    .. math:: x * (a b) = (x * a) b = (x a) * b

    where one factor has the output features of the kernel as its only axis beside the rank, as
    in adapters of convolutions [1]_, or has the input features, as in their gradients.

    .. [1] E. Hu et al. (2021), LoRA: Low-Rank Adaptation of Large Language Models,
       arXiv:2106.09685; its authors' library does so for convolutions.
    """
    x = jnp.asarray(x)
    preferred = {"preferred_element_type": preferred_element_type}
    if v.rank == 0 or not multiply_by_parts(x, v, preferred, LowRank):
        return NotImplemented
    out, features, *_ = params["dimension_numbers"].rhs_spec
    dtype = preferred_element_type or jnp.result_type(x, v.dtype)
    x = x.astype(dtype)
    a, b = (factor._replace(x=factor.x.astype(dtype)) for factor in factors(v))
    for first, second in ((a, b), (b, a)):
        if set(second.labels) == {out, RANK}:
            return _product_last(x, first, second, out, params)
        if set(first.labels) == {features, RANK}:
            return _product_first(x, first, second, features, params)
    return NotImplemented


def _product_last(
    x: Any, first: Factor, second: Factor, out: int, params: dict[str, Any]
) -> Any:
    """All groups, of features or of the batch, share the first factor."""
    groups = params["feature_group_count"] * params["batch_group_count"]
    kernel = lax.concatenate([_kernel(first, out)] * groups, out)
    y = _convolved(x, kernel, params)
    # The factor keeps the order of its axes, which may tell it which of them is the rank.
    at, shape = second.labels.index(out), second.x.shape
    split = (*shape[:at], groups, shape[at] // groups, *shape[at + 1 :])
    labels = (*second.labels[:at], "group", "new", *second.labels[at + 1 :])
    axis = params["dimension_numbers"].out_spec[1]
    return _features(y, axis, groups, second.x.reshape(split), labels, params)


def _product_first(
    x: Any, first: Factor, second: Factor, features: int, params: dict[str, Any]
) -> Any:
    # What is summed here are the features, and the rank is what is new.
    new = {RANK: "new", features: RANK}
    labels = tuple(new[label] for label in first.labels)
    axis = params["dimension_numbers"].lhs_spec[1]
    groups = params["feature_group_count"]
    x = _features(x, axis, groups, first.x, labels, params)
    return _convolved(x, _kernel(second, features), params)


def _kernel(factor: Factor, axis: int) -> Any:
    """A factor as a kernel, with the rank in the place of an axis."""
    labels = [RANK if i == axis else i for i in range(len(factor.labels))]
    return transpose(factor.x, factor.labels, tuple(labels))


def _convolved(x: Any, kernel: Any, params: dict[str, Any]) -> Any:
    return lax.conv_general_dilated_p.bind(x, kernel, preferred_element_type=None, **params)


def _features(
    x: Any,
    axis: int,
    groups: int,
    factor: Any,
    labels: tuple[Any, ...],
    params: dict[str, Any],
) -> Any:
    """Multiply the features of each group, along an axis, by a matrix."""
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    left = [("left", i) for i in range(len(before))]
    right = [("right", i) for i in range(len(after))]
    # The sizes are given, because of an empty batch none could be inferred.
    x = x.reshape(*before, groups, x.shape[axis] // groups, *after)
    y = contract(
        *(x, (*left, "group", RANK, *right)),
        *(factor, labels),
        (*left, "group", "new", *right),
        precision=params["precision"],
    )
    return y.reshape(*before, groups * y.shape[axis + 1], *after)
