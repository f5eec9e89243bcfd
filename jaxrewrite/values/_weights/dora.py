"""`Dora`: a weight with an adapter for its directions, and trained lengths of its columns."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

import jaxrewrite
from jaxrewrite import primitives

from .._base.sizes import is_at_most
from .._base.structured import promoted
from .._matrices.algebra import on_fields
from .lora import Adapted, Lora
from .rescaled import Rescaled, beside


# Primitives for which a `Rescaled` has a rule.
_AS_RESCALED = {
    *primitives.SHAPE,
    *primitives.INDEXING,
    *("mul", "div", "neg", "convert_element_type"),
    *("dot_general", "conv_general_dilated", "ragged_dot_general"),
}


class Dora(Adapted):
    r"""A weight whose directions have a change of low rank and whose lengths are trained.

    .. math:: v_{ij} = m_j \, \frac{(w + s \, a b)_{ij}}{\lVert (w + s \, a b)_{\cdot j} \rVert}

    as in DoRA [1]_: a column of the weight, all that an output sums, has the length :math:`m_j`. The
    lengths of the columns of :math:`w + s \, a b` come from those of ``w``, the product
    :math:`w^\top a`, and the small matrix :math:`a^\top a`:

    .. math::

        \lVert (w + s \, a b)_{\cdot j} \rVert^2 = \lVert w_{\cdot j} \rVert^2
        + 2 s \sum_k (w^\top a)_{jk} b_{kj} + s^2 \sum_{kl} b_{kj} (a^\top a)_{kl} b_{lj}

    so that the sum with the change is never made. In products, convolutions, transposes, reshapes,
    slices, scaling and casts, and side by side with others, a `Dora` is a `Rescaled` around a `Lora`,
    with the numbers :math:`m_j / \lVert \cdot \rVert`. Everything else makes it dense. Where the change takes away
    a column but for a part :math:`q` of its length, a length has an error of rounding, relative to
    itself, that is :math:`q^{-2}` times as large.

    Parameters
    ----------
    w, a, b, scale, rows, cols
        As in a `Lora`. ``w`` may be a value, such as a quantised weight.
    magnitude
        The lengths :math:`m`, of as many axes as the weight, with length one along ``rows``.
    frozen
        Whether ``w`` and the lengths of the columns are constants to derivatives, as section 4.3
        of [1]_ has them.

    Raises
    ------
    ValueError
        As for a `Lora`; or if ``magnitude`` has another shape.

    References
    ----------
    .. [1] S.-Y. Liu et al. (2024), DoRA: Weight-Decomposed Low-Rank Adaptation,
       arXiv:2402.09353.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from jaxrewrite.values import Dora, Lora
    >>> lora = Lora(jnp.ones((4, 2)), jnp.ones((4, 1)), jnp.zeros((1, 2)))
    >>> v = Dora.of(lora)  # the lengths are those of the columns of w, here 2
    >>> jnp.ones(4) @ v
    Array([4., 4.], dtype=float32)
    >>> v.magnitude
    Array([[2., 2.]], dtype=float32)
    """

    outer = -48

    magnitude: Array

    def __init__(
        self,
        w: Any,
        a: Any,
        b: Any,
        magnitude: Any,
        scale: float = 1.0,
        rows: Iterable[int] | None = None,
        cols: Iterable[int] | None = None,
        frozen: bool = True,
    ):
        lora = Lora(w, a, b, scale, rows, cols, frozen)
        own = {f.name: getattr(lora, f.name) for f in dataclasses.fields(lora)}
        if hasattr(w, "dtype") and jnp.issubdtype(w.dtype, jnp.complexfloating):
            raise ValueError(f"Dora: `w` must be real; got {w.dtype}.")
        if all(hasattr(x, "shape") for x in (a, b, magnitude)):
            wanted = _shape_of_lengths(lora)
            if jnp.shape(magnitude) != wanted:
                raise ValueError(
                    f"Dora: `magnitude` has shape {jnp.shape(magnitude)}; a weight of shape "
                    f"{lora.shape} with rows={lora.rows} needs {wanted}."
                )
        self.__dict__.update(own, magnitude=magnitude)

    @classmethod
    def of(cls, lora: Lora) -> Dora:
        """The same array as a `Lora`, with the lengths that its columns have."""
        magnitude = on_fields(_lengths, lora)
        own = {f.name: getattr(lora, f.name) for f in dataclasses.fields(lora)}
        return cls(**own, magnitude=magnitude)

    @property
    def lora(self) -> Lora:
        """The weight with its change, before its columns have their lengths."""
        return Lora(self.w, self.a, self.b, self.scale, self.rows, self.cols, self.frozen)

    def aval(self) -> Any:
        return self.lora.aval()

    def rescaled(self) -> Rescaled:
        """The same array, in which the lengths of the columns are numbers, not computed anew.

        It is for a model that is no longer trained.
        """
        return on_fields(_rescaled, self)

    def materialise(self) -> Any:
        dense = dataclasses.replace(self, w=jaxrewrite.materialise(self.w))
        merged = dense.lora.materialise()
        return merged * _factor(dense).astype(merged.dtype)

    @staticmethod
    def default(primitive: Any, values: Any, params: Any) -> Any:
        if primitive.name not in _AS_RESCALED:
            return NotImplemented
        operands = [_rescaled(x) if isinstance(x, Dora) else x for x in values]
        return jaxrewrite.bind(primitive, *operands, **params)

    def sliceable(self) -> Any:
        lora = self.lora.sliceable()
        if lora is NotImplemented or -lora.ndim in (*lora.rows, *lora.cols):
            return NotImplemented
        magnitude = self.magnitude
        whole = jnp.broadcast_to(magnitude, (lora.shape[0], *magnitude.shape[1:]))
        return dataclasses.replace(self, w=lora.w, a=lora.a, b=lora.b, magnitude=whole)

    def leaf_specs(self, spec: Any) -> Any:
        specs = self.lora.leaf_specs(spec)
        ndim = self.magnitude.ndim
        rows = {axis % ndim for axis in self.rows}
        whole = (*spec, *[None] * (ndim - len(spec)))
        if any(whole[i] is not None for i in rows):
            return NotImplemented  # The length of a column is that of the whole column.
        own: Any = jax.sharding.PartitionSpec(*whole)
        return dataclasses.replace(self, w=specs.w, a=specs.a, b=specs.b, magnitude=own)


@jaxrewrite.register("concatenate")
def _(*vs: Dora, dimension) -> Any:
    return beside([_rescaled(v) for v in vs], dimension)


def _shape_of_lengths(v: Lora) -> tuple[int, ...]:
    shape = list(v.shape)
    for axis in v.rows:
        shape[axis] = 1
    return tuple(shape)


def _rescaled(v: Dora) -> Rescaled:
    lora: Any = v.lora
    return Rescaled(lora, _factor(v))


def _factor(v: Dora) -> Any:
    """What multiplies the columns of the weight with its change."""
    lengths = _lengths(v.lora)
    if v.frozen:
        lengths = lax.stop_gradient(lengths)
    # A column of zeros has no direction: it stays zero.
    return v.magnitude / jnp.where(lengths == 0, 1, lengths)


def _lengths(v: Lora) -> Any:
    """The lengths of the columns, from products of the weight and the factors.

    Columns of few rows are added up first. Else a change that almost takes such a column away
    would leave the rounding errors of the products.
    """
    ndim = v.ndim
    rows, cols = ([axis % ndim for axis in axes] for axes in (v.rows, v.cols))
    axes = [*range(ndim)]
    batch = [i for i in axes if i not in rows and i not in cols]
    kept = [i for i in axes if i not in rows]
    r, s = ndim, ndim + 1  # The rank, twice.
    dtype = promoted(v.dtype, jnp.float32)
    w = v.w if v.w.ndim == ndim else jnp.broadcast_to(v.w, v.shape)
    a, b = v.a.astype(dtype) * v.scale, v.b.astype(dtype)
    dot = functools.partial(jnp.einsum, precision="highest", preferred_element_type=dtype)
    if is_at_most(math.prod(v.shape[i] for i in rows), a.shape[-1]):
        whole = v.materialise().astype(dtype)
        return _roots(dot(whole, axes, whole, axes, kept), rows).astype(v.dtype)
    squares = dot(w, axes, w, axes, kept)
    w_a = dot(w, axes, a, [*batch, *rows, r], [*batch, *cols, r])
    crossed = dot(w_a, [*batch, *cols, r], b, [*batch, r, *cols], kept)
    a_a = dot(a, [*batch, *rows, r], a, [*batch, *rows, s], [*batch, r, s])
    a_a_b = dot(a_a, [*batch, r, s], b, [*batch, s, *cols], [*batch, r, *cols])
    of_change = dot(a_a_b, [*batch, r, *cols], b, [*batch, r, *cols], kept)
    # Rounding may leave less than nothing where the change takes the weight away.
    total = jnp.maximum(squares + 2 * crossed + of_change, 0)
    return _roots(total, rows).astype(v.dtype)


def _roots(squares: Any, rows: list[int]) -> Any:
    is_zero = squares <= 0  # What is not a number stays so.
    lengths = jnp.where(is_zero, 0, jnp.sqrt(jnp.where(is_zero, 1, squares)))
    return lax.expand_dims(lengths, rows)
