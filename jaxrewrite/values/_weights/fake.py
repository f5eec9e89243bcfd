"""Weights that are trained as if they were quantised."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
from jaxtyping import Array

import jaxrewrite

from .._base.structured import Structured, on_dense
from .coded import check_floating, sizes_of
from .quantised import Quantised, check_bits, rounded


class FakeQuantised(Structured):
    r"""A floating weight that programs see rounded, for quantisation-aware training [1]_.

    It stands for the array that ``Quantised.quantise`` of a finite ``w`` stands for, with
    ranges that follow ``w`` at each call. Where ``w`` is not finite, it is not finite either.
    Rounding has no derivative, so gradients pass straight through it [2]_: the gradient with
    respect to ``w`` is that with respect to the rounded array. The usual clipping of this
    gradient outside of the range of integers has no effect here, since the range is that of
    ``w`` itself.

    An optimiser trains ``w``, in a program that knows nothing of it. `quantised` then gives
    the same array in few bits. Every primitive gets the rounded array, and so do loops and
    branches that can't keep the weight as it is. None of this is an error or a warning.

    Parameters
    ----------
    w
        The weight, an array of real floating numbers.
    bits, axis, block, symmetric
        As in `Quantised.quantise`. ``w`` may have more axes in front than ``block`` has
        numbers: each index of these has its own ranges. So a value that leaves `jax.vmap`
        is a stack of weights, and a loop takes one weight of a stack at a time if its first
        axis is among ``axis``.

    Raises
    ------
    ValueError
        If ``w`` is not real floating, or an option is not one of `Quantised.quantise`.

    References
    ----------
    .. [1] B. Jacob et al. (2018), Quantization and Training of Neural Networks for
       Efficient Integer-Arithmetic-Only Inference, arXiv:1712.05877, section 3.
    .. [2] Y. Bengio, N. Léonard, A. Courville (2013), Estimating or Propagating Gradients
       Through Stochastic Neurons for Conditional Computation, arXiv:1308.3432; R.
       Krishnamoorthi (2018), Quantizing deep convolutional networks for efficient
       inference, arXiv:1806.08342, section 2.4.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import FakeQuantised
    >>> v = FakeQuantised(jnp.array([[0.9, -3.0], [7.0, 0.2]]), bits=4)
    >>> jaxrewrite.materialise(v)
    Array([[ 1., -3.],
           [ 7.,  0.]], dtype=float32)
    >>> loss = jaxrewrite.transform(lambda v, x: (x @ v).sum())
    >>> jax.grad(loss)(v, jnp.array([1.0, 2.0])).w
    Array([[1., 1.],
           [2., 2.]], dtype=float32)
    >>> v.quantised()
    Quantised[Nibbles]([[ 1. -3.]
                        [ 7.  0.]], dtype=float32)
    """

    _is_seen_dense = True

    w: Array
    bits: int = jaxrewrite.field(static=True)
    block: tuple[int, ...] = jaxrewrite.field(static=True)
    symmetric: bool = jaxrewrite.field(static=True)

    def __init__(
        self,
        w: Any,
        bits: int = 8,
        *,
        axis: int | Sequence[int] | None = None,
        block: int | Sequence[int | None] | None = None,
        symmetric: bool = True,
    ):
        check_floating("FakeQuantised", "w", w)
        check_bits("FakeQuantised", bits)
        sizes = sizes_of("FakeQuantised", w.shape, axis, block)
        self.__dict__.update(w=w, bits=int(bits), block=sizes, symmetric=bool(symmetric))

    def aval(self) -> Any:
        return jax.core.ShapedArray(self.w.shape, self.w.dtype)

    def materialise(self) -> Any:
        return _rounded(self.w, self.bits, self._sizes, self.symmetric)

    def quantised(self) -> Quantised:
        """The same array, as integers."""
        return Quantised.quantise(
            self.w, self.bits, block=self._sizes, symmetric=self.symmetric
        )

    @property
    def _sizes(self) -> tuple[int, ...]:
        return (1,) * (self.w.ndim - len(self.block)) + self.block

    default = staticmethod(on_dense)

    def sliceable(self) -> Any:
        if len(self.block) < self.w.ndim:
            return self
        return (
            self._with(self.w, self.block[1:]) if self.block[:1] == (1,) else NotImplemented
        )

    def leaf_specs(self, spec: Any) -> Any:
        """Shards of a block do not know the range of the whole."""
        own = zip(self._sizes, spec, strict=False)
        if any(size != 1 and name is not None for size, name in own):
            return NotImplemented
        return self._with(spec, self.block)

    def _with(self, w: Any, block: tuple[int, ...]) -> FakeQuantised:
        new: Any = object.__new__(type(self))
        new.__dict__.update(self.__dict__, w=w, block=block)
        return new


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2, 3))
def _rounded(w: Any, bits: int, sizes: tuple[int, ...], symmetric: bool) -> Any:
    return Quantised(*rounded(w, bits, sizes, symmetric)).materialise()


@_rounded.defjvp
def _(bits: int, sizes: Any, symmetric: bool, primals: Any, tangents: Any) -> Any:
    return _rounded(*primals, bits, sizes, symmetric), *tangents
