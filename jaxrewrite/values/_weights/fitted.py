"""Quantised weights that are fitted to what they are multiplied with.

Each function takes a weight as a matrix, whose rows are summed, of shape (k, n), and the statistics of
what it was multiplied with. They run in NumPy, since each row depends on those before. Integers are
fitted to the scales as they are stored, which are rounded to the dtype of the weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import jax
import numpy as np

from .coded import scale_in
from .gathered import Inputs


class Fitted(NamedTuple):
    """Integers of shape (k, n), scales of blocks of rows, and what the rows were multiplied with.

    The weight is ``codes * scale / rows``, with a number for each row, or None for one. ``blocks``
    has the number of rows of each block. Scales, and the inverses of the numbers of rows, are numbers
    of the dtype of the weight, by which it is multiplied in the end.
    """

    codes: np.ndarray
    scale: np.ndarray
    blocks: Sequence[int]
    rows: np.ndarray | None = None

    def dense(self) -> np.ndarray:
        w = self.codes * np.repeat(self.scale, self.blocks, 0)
        return w if self.rows is None else w / self.rows[:, None]


class Options(NamedTuple):
    """The largest integer, the rows of each block, their ranges, and the damping of GPTQ.

    ``dtype`` is that of the weight.
    """

    top: int
    blocks: Sequence[int]
    ranges: Any = "max"
    damping: float = 0.01
    dtype: Any = np.float32


Fit = Callable[[np.ndarray, Inputs, Options], Fitted]


def range_from(
    xp: ModuleType, ranges: Any, most: Any, mean_square: Callable[[], Any]
) -> Any:
    """The range of numbers with this largest magnitude and mean square, by NumPy or JAX."""
    kind, number = ranges if isinstance(ranges, tuple) else (ranges, 1.0)
    if kind == "max":
        return number * most
    return xp.minimum(most, number * xp.sqrt(mean_square()))


def ranges_of(w: np.ndarray, options: Options) -> np.ndarray:
    """The largest magnitude that the integers of each column stand for, of a block of rows."""
    most = abs(w).max(0)
    if options.ranges != "search":
        return range_from(np, options.ranges, most, lambda: (w**2).mean(0))
    best, least = most, np.full(w.shape[1], np.inf)
    for part in np.linspace(1, 0.3, 36):
        scale = _scale(part * most, options)
        error = ((w - scale * _codes(w, scale, options.top)) ** 2).sum(0)
        best = np.where(error < least, part * most, best)
        least = np.minimum(error, least)
    return best


def _scale(most: np.ndarray, options: Options) -> np.ndarray:
    """The scales of these ranges, which are numbers of the dtype of the weight, in float32."""
    wide = (most / options.top).astype(np.float32)
    return np.asarray(_scale_in(options.dtype, wide, options.top), np.float32)


# Compiled as a whole, since it is called for each block.
_scale_in = jax.jit(scale_in, static_argnums=(0, 2))


def _with_inverse_in(dtype: Any, rows: np.ndarray) -> np.ndarray:
    """The nearest numbers whose inverses are numbers of a dtype, in float32."""
    return 1 / (1 / rows).astype(dtype).astype(np.float32)


def _codes(w: np.ndarray, scale: np.ndarray, top: int) -> np.ndarray:
    return np.clip(np.round(w / scale), -top, top)


def nearest(w: np.ndarray, inputs: Inputs, options: Options) -> Fitted:
    """Each entry rounded to the nearest."""
    blocks = np.split(w, np.cumsum(options.blocks)[:-1])
    scale = np.stack([_scale(ranges_of(block, options), options) for block in blocks])
    codes = _codes(w, np.repeat(scale, options.blocks, 0), options.top)
    return Fitted(codes.astype(np.int8), scale, options.blocks)


# So many rows are rounded before what they leave is taken to all rows below.
_ROWS_AT_ONCE = 128


def gptq(w: np.ndarray, inputs: Inputs, options: Options) -> Fitted:
    r"""Round row by row, and let the rows below make up for the error (GPTQ [1]_, algorithm 1).

    With the Hessian :math:`H = X^T X + \lambda I`, where :math:`\lambda` is ``damping`` times the mean of
    the diagonal, and the Cholesky factor :math:`H^{-1} = U^T U`, row :math:`i` is rounded, and row
    :math:`j > i` changes by :math:`-U_{ij} (w_i - \hat w_i) / U_{ii}`. The scale of a block is taken
    when its first row is reached.

    References
    ----------
    .. [1] E. Frantar et al. (2023), GPTQ: Accurate Post-Training Quantization for Generative
       Pre-trained Transformers, arXiv:2210.17323.
    """
    w, count = w.astype(np.float64), len(w)
    upper = _factor(inputs.gram, options.damping)
    codes, scales = np.zeros(w.shape, np.int8), []
    ends = np.cumsum(options.blocks)
    end_of = dict(zip(ends - options.blocks, ends, strict=True))
    for start in range(0, count, _ROWS_AT_ONCE):
        stop = min(start + _ROWS_AT_ONCE, count)
        errors = np.zeros((stop - start, w.shape[1]))
        for i in range(start, stop):
            if i in end_of:
                # Rows of the block below have not seen the errors since ``start`` yet.
                block = w[i : end_of[i]].copy()
                late = slice(max(stop, i), end_of[i])
                block[late.start - i :] -= upper[start:i, late].T @ errors[: i - start]
                scales.append(_scale(ranges_of(block, options), options))
            codes[i] = _codes(w[i], scales[-1], options.top)
            errors[i - start] = (w[i] - codes[i] * scales[-1]) / upper[i, i]
            w[i + 1 : stop] -= np.outer(upper[i, i + 1 : stop], errors[i - start])
        w[stop:] -= upper[start:stop, stop:].T @ errors
    return Fitted(codes, np.stack(scales), options.blocks)


def _factor(gram: np.ndarray, damping: float) -> np.ndarray:
    """The upper Cholesky factor of the inverse of the damped Hessian."""
    hessian = gram.astype(np.float64)
    diagonal = np.diag(hessian).copy()
    diagonal[diagonal == 0] = 1
    np.fill_diagonal(hessian, diagonal + damping * diagonal.mean())
    # The factor of the inverse is the inverse of the factor that begins with the last row.
    lower = np.linalg.cholesky(hessian[::-1, ::-1])
    return np.linalg.inv(lower)[::-1, ::-1]


# The strengths of scaling that AWQ tries.
_STRENGTHS = np.arange(20) / 20


def awq(w: np.ndarray, inputs: Inputs, options: Options) -> Fitted:
    r"""Multiply rows that meet large numbers, so that rounding changes them less (AWQ [1]_).

    Row :math:`i` is multiplied with :math:`s_i = a_i^\alpha`, where :math:`a_i` is the mean magnitude of what
    it meets, divided by the root of the largest times the least of them, and rounded to the nearest.
    Of 20 :math:`\alpha` the one with the least error of the product, :math:`\|X (W - \hat W)\|`, is taken.

    References
    ----------
    .. [1] J. Lin et al. (2024), AWQ: Activation-aware Weight Quantization for On-Device LLM
       Compression and Acceleration, arXiv:2306.00978, section 3.2.
    """
    magnitude = np.maximum(inputs.total / max(inputs.total.max(), 1e-30), 1e-4)
    fits, errors = [], []
    for strength in _STRENGTHS:
        rows = magnitude**strength
        rows = _with_inverse_in(options.dtype, rows / np.sqrt(rows.max() * rows.min()))
        fit = nearest(rows[:, None] * w, inputs, options)._replace(rows=rows)
        difference = w - fit.dense()
        fits.append(fit)
        errors.append(np.sum(difference * (inputs.gram @ difference)))
    return fits[int(np.argmin(errors))]


def smoothquant(w: np.ndarray, inputs: Inputs, options: Options) -> Fitted:
    r"""Move the range of what is multiplied into the weight (SmoothQuant [1]_, equation 4).

    Row :math:`i` is multiplied with :math:`s_i = \max|x_i|^{1/2} / \max|w_i|^{1/2}`, and what it meets is
    divided by it, so that both can be rounded to 8 bits.

    References
    ----------
    .. [1] G. Xiao et al. (2023), SmoothQuant: Accurate and Efficient Post-Training Quantization
       for Large Language Models, arXiv:2211.10438.
    """
    most = np.maximum(abs(w).max(1), 1e-5)
    rows = _with_inverse_in(options.dtype, np.sqrt(np.maximum(inputs.most, 1e-5) / most))
    return nearest(rows[:, None] * w, inputs, options)._replace(rows=rows)


METHODS: dict[str, Fit] = {"gptq": gptq, "awq": awq, "smoothquant": smoothquant}
