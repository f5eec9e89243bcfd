"""`Masked`: arrays with missing entries."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Literal
from jaxtyping import Array, ArrayLike, Bool

import jaxrewrite
from jaxrewrite import _compat
from jaxrewrite.extend import unrecorded
from jaxrewrite.primitives import BINARY, UNARY

from .._base import in_blocks
from .._base.contract import along_result, sides
from .._base.scatters import applies_function
from .._base.structured import inexact
from .declaration import MOVING, Annotated, annotation_rule, highest, like, lowest
from .operators import Carrying
from .unitful import Unitful, array_of, needs_units
from .units import UnitsError


class Masked(Carrying):
    r"""An array with a mask of its missing entries, like those of `numpy.ma`.

    With :math:`m` for the mask, which is true where an entry is **missing**,

    .. math:: m_{f(x, y)} = m_x \lor m_y, \qquad
        \Bigl(\sum_i x_i\Bigr) = \sum_{i : \lnot m_i} x_i, \qquad
        m_{\sum_i x_i} = \bigwedge_i m_i,

    entry by entry and for reductions. Reductions skip missing entries: they count as 0 in a
    sum, as 1 in a product, and not at all in a maximum. A result is missing if all its
    entries are missing; a sum of no entries is 0 and is there. In a product of matrices
    :math:`(xy)_{ij}` is missing if each pair :math:`x_{ik}, y_{kj}` has a missing entry, as
    in `numpy.ma.dot`; all other entries are taken to be finite. Cumulative sums skip missing entries and leave them missing.
    What adds to entries of an array, such as ``x.at[i].add(y)`` or ``jax.ops.segment_sum``, is no
    reduction: as in :math:`x + y`, an entry is missing if any of its terms is.
    ``sort`` puts them last, and so first if it is descending. A result of ``where`` is missing if the condition or the chosen
    entry is missing. The numbers under the mask are never used and may be anything, such as
    NaN. Unlike in `numpy.ma`, a division by zero does not mask its result.

    Gradients from outside, of a transformed function, do use them: as with ``jnp.where``, the
    derivative of a function at such a number is multiplied by zero, and what is NaN or infinite
    there makes gradients NaN, also those of other entries. For these, put numbers under the
    mask at which all functions are finite: ``Masked(jnp.where(mask, 1, x), mask)``. A result
    that is missing because nothing is there, such as the maximum of no entries, has 1 there.

    Take gradients from outside, as in ``jax.grad`` of a transformed function. Inside of
    ``transform``, ``jax.grad`` differentiates the dense program, whose cotangents know of no
    mask: a sum passes on ones for all its entries. So ``transform(jax.grad(f))`` also counts
    terms of ``f`` that are missing.

    A masked value is never dense, so that no program takes a missing entry for a number:
    see `filled`.

    ``jnp.var``, ``std`` and ``median`` are those of the entries that are there, with ``ddof``,
    ``axis`` and ``keepdims``, also of a masked array within `Annotated` types.

    Other functions that divide by the number of entries count those that are missing, because
    that number is part of the program. So there is a `TypeError` where a program calls
    ``jnp.quantile``, ``percentile``, ``cov``, ``corrcoef`` or `jax.nn.standardize`, or the three
    with ``where=``, under derivatives in the program, or under a ``jax.vmap`` along another axis than the first; divides the sum of n entries by the number n, as ``jnp.mean`` and
    ``average`` do; or divides a sum of weighted or chosen entries by an array, as they do with
    ``weights=`` and ``where=``. `mean` is the mean of the entries that are not missing, and
    ``x.sum() * (1 / n)`` is one of all entries. ``jnp.nanmean`` counts those that are there.

    Parameters
    ----------
    array
        An array, or another value, of any shape and dtype. Of one with a mask, entries are
        missing that either mask says.
    mask
        A boolean array of the same shape, true where an entry is missing.
    terms
        For rules: how many entries each entry is the sum of, and whether they have weights.
    most
        For rules: of how many conditions each entry counts those that hold, if it does.

    Raises
    ------
    ValueError
        If the mask is not boolean or has another shape.
    TypeError
        If a program would count missing entries.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import Masked
    >>> x = Masked(jnp.array([[1.0, 2.0], [3.0, jnp.nan]]), jnp.array([[0, 0], [0, 1]], bool))
    >>> jaxrewrite.transform(lambda x: jnp.sum(x**2, axis=0))(x).filled(0)
    Array([10.,  4.], dtype=float32)
    >>> x.mean(axis=0).filled(0), x.count()
    (Array([2., 2.], dtype=float32), Array(3, dtype=int32))
    >>> shifted = lambda shift, x: jnp.sum(x - shift)
    >>> jax.grad(lambda shift: jaxrewrite.transform(shifted)(shift, x).filled(0))(0.0)
    Array(-3., dtype=float32, weak_type=True)
    >>> jaxrewrite.transform(jax.grad(shifted))(0.0, x)  # This counts the missing entry.
    Array(-4., dtype=float32, weak_type=True)
    >>> jaxrewrite.materialise(x)
    Traceback (most recent call last):
    ...
    jaxrewrite.MaterialisationError: Masked can't be made dense: some entries may be
    missing; filled(number) says what to put there.
    """

    outer = 20
    _array_fields = 1
    axes = {"array": "...", "mask": "..."}
    _distributes = False  # Nothing plus nothing is nothing, which zeros would not be.

    array: Array
    mask: Bool[Array, ...]
    terms: tuple[int, bool] | None = jaxrewrite.field(static=True, default=None, repr=False)
    most: int | None = jaxrewrite.field(static=True, default=None, repr=False)

    def __post_init__(self) -> None:
        shape, dtype = jnp.shape(self.mask), jnp.result_type(self.mask)
        if dtype != jnp.bool_ or shape != jnp.shape(self.array):
            raise ValueError(
                f"Masked: mask must be boolean and have the array's shape "
                f"{jnp.shape(self.array)}; got {dtype} of shape {shape}."
            )
        if isinstance(self.array, Masked):  # Entries of either mask are missing.
            inner = self.array
            mask, terms = self.mask | inner.mask, self.terms or inner.terms
            vars(self).update(array=inner.array, mask=mask, terms=terms)

    def _merged(self) -> Any:
        return dataclasses.replace(self)

    def filled(self, number: Any) -> Any:
        """Return the array with a number in place of each missing entry."""
        return jaxrewrite.transform(_fill)(self.array, self.mask, number)

    def count(self, axis: Any = None, keepdims: bool = False) -> Any:
        """Return the number of entries that are not missing, in all or along axes."""
        return jnp.sum(~self.mask, axis, keepdims=keepdims)

    def mean(
        self,
        axis: Any = None,
        keepdims: bool = False,
        *,
        dtype: Any = None,
        out: None = None,
    ) -> Masked:
        """Return the mean of the entries that are not missing; missing if all are.

        `numpy.mean` of a masked array is this, too. As in JAX, ``out`` has to be ``None``.
        """
        is_missing, counted = self.counted(axis, keepdims)

        def mean(array: Any) -> Any:
            return jnp.mean(array, axis, dtype, out, keepdims, where=counted)

        return _finite(jaxrewrite.transform(mean)(self.filled(0)), is_missing)

    def counted(self, axis: Any, keepdims: bool) -> tuple[Any, Any]:
        """Where no entry is there along axes, and the entries to count.

        These are all entries where none is there, so that no number is divided by zero.
        """
        counted = ~self.mask | (self.count(axis, keepdims=True) == 0)
        return self.count(axis, keepdims) == 0, counted

    def aval(self) -> Any:
        """The aval of the array."""
        return like(self.array)

    def materialise(self) -> Any:
        """Raise: use `filled`."""
        raise TypeError(
            "some entries may be missing; filled(number) says what to put there."
        )

    def picture(self) -> Any:
        return np.ma.MaskedArray(np.asarray(self.array), np.asarray(self.mask))

    def join(self, other: Any) -> Any:
        """An array is a masked array without missing entries."""
        if not isinstance(other, Masked):
            return self, dataclasses.replace(self, array=other, mask=_mask(other))
        return Masked(self.array, self.mask), Masked(other.array, other.mask)

    def tangent(self, leaf_tangents: Any) -> Any:
        """A tangent with the same missing entries, whatever the array is a sum of."""
        # Cotangents of a backward rule for missing entries must not reach the numbers there.
        filled = Masked(leaf_tangents.array, self.mask).filled(0)
        return Masked(filled, self.mask)

    def lift_tangent(self, tangent: Any) -> Any:
        # A product with a value around a masked array has the masks of both.
        while isinstance(tangent, Masked):
            tangent = tangent.filled(0)
        return dataclasses.replace(self, array=tangent)


def _fill(array: Any, mask: Any, number: Any) -> Any:
    return jnp.where(mask, jnp.asarray(number, array.dtype), array)


def _finite(array: Any, mask: Any) -> Masked:
    """A result whose missing entries would be 0 or infinite, because nothing is there.

    It has ones in their places. At these the derivatives of most functions are finite, and a
    gradient takes zero times a derivative for a missing entry. What else carries something has
    zeros there, which need no units.
    """
    if isinstance(array, jaxrewrite.Value):
        return Masked(jaxrewrite.transform(_fill)(array, mask, 0), mask)
    return Masked(_fill(array, mask, 1), mask)


def _array(x: Any) -> Any:
    return x.array if isinstance(x, Masked) else x


def _mask(x: Any) -> Any:
    return x.mask if isinstance(x, Masked) else jnp.zeros_like(x, bool)


def _filled(x: Any, number: Any) -> Any:
    return _fill(x.array, x.mask, number) if isinstance(x, Masked) else x


def _all_missing(mask: Any, axes: Sequence[int]) -> Any:
    """Where there are entries along the axes, and all of them are missing."""
    has_entries = all(mask.shape[axis] for axis in axes)
    return mask.all(tuple(axes)) if has_entries else mask.any(tuple(axes))


def _any_mask(operands: Sequence[Any], shape: Sequence[int]) -> Any:
    masks = [x.mask for x in operands if isinstance(x, Masked)]
    return jnp.broadcast_to(functools.reduce(operator.or_, masks), shape)


# --- entry by entry -----------------------------------------------------------------


@annotation_rule(
    Masked, *dict.fromkeys((*UNARY, *BINARY, "complex", "clamp", "convert_element_type"))
)
def _entry_by_entry(*operands: Any, primitive: Any, **params: Any) -> Any:
    result = primitive.bind(*map(_array, operands), **params)
    return Masked(result, _any_mask(operands, result.shape), _weighted(primitive, operands))


def _weighted(primitive: Any, operands: Sequence[Any]) -> tuple[int, bool] | None:
    """The terms of entries that a plain array weighs, or that stay what they are."""
    plain = [x for x in operands if not isinstance(x, Masked)]
    is_multiple = len(plain) == len(operands) - 1 and not any(map(jnp.ndim, plain))
    if primitive.name in _MULTIPLES and is_multiple:
        return _terms_of_any(operands)
    is_weighted = primitive.name == "mul" and any(map(jnp.ndim, plain))
    return (1, True) if is_weighted else None


# Of a sum they are the sums of multiples, if the other operand is a number.
_MULTIPLES = {"convert_element_type", "neg", "real", "imag", "conj", "abs", "mul", "div"}


def _terms(x: Any) -> tuple[int, bool] | None:
    return x.terms if isinstance(x, Masked) else None


def _terms_of_any(operands: Sequence[Any]) -> tuple[int, bool] | None:
    """The terms of the first of some operands that is a sum."""
    return next(filter(None, map(_terms, operands)), None)


@annotation_rule(Masked, "convert_element_type")
def _convert(x: Masked, *, primitive: Any, **params: Any) -> Any:
    most = 1 if x.dtype == jnp.bool_ else x.most
    return dataclasses.replace(x, array=primitive.bind(x.array, **params), most=most)


@annotation_rule(Masked, "div")
def _divide(x: Any, y: Any, *, primitive: Any, **params: Any) -> Any:
    terms, is_weighted = _terms(x) or (1, False)
    if terms > 1 and is_weighted and not isinstance(y, Masked):
        raise TypeError(
            f"Masked: div divides a sum of {terms} weighted or chosen entries by an array, as "
            "jnp.average and jnp.mean do. The array counts entries that are missing. Divide "
            "by a sum of weights that are missing as well, or multiply by 1 / array."
        )
    return _entry_by_entry(x, y, primitive=primitive, **params)


@jaxrewrite.register(jnp.ldexp)
def _times_power_of_two(x: Masked | ArrayLike, power: Masked | ArrayLike) -> Any:
    """As a whole, which has a transpose, where JAX writes it in bits, which have none."""
    result = jnp.ldexp(_array(x), _array(power))
    return Masked(result, _any_mask((x, power), result.shape))


def _within(*operands: Any) -> list[Masked]:
    """The masked arrays among some operands, and within those that annotate one."""
    is_masked = lambda x: isinstance(x, Masked)
    return [x for x in jax.tree.leaves(operands, is_leaf=is_masked) if is_masked(x)]


# The types that annotate a masked array hand on no literals, and bodies of calls equation by
# equation, so that these rules need to come before theirs.
_ANNOTATED = Masked | Annotated


@jaxrewrite.register("div", types=(_ANNOTATED, Literal), precedence=1)
def _divide_by_number(x: Any, y: Any, **params: Any) -> Any:
    for masked in _within(x):
        terms, _ = masked.terms or (1, False)
        if terms > 1 and y.val == terms:
            raise TypeError(
                f"Masked: div divides a sum of {terms} entries by {terms}, as jnp.mean does, "
                "which counts entries that are missing. Masked.mean counts those that are "
                f"there. To count all, multiply by 1 / {terms}."
            )
    return NotImplemented


_COUNTING = {
    **{"_std": jnp.std, "_var": jnp.var, "cov": jnp.cov, "corrcoef": jnp.corrcoef},
    **{"median": jnp.median, "quantile": jnp.quantile, "percentile": jnp.percentile},
    "standardize": jax.nn.standardize,
}
"""Functions of JAX that use the number of all entries, by the names of their calls."""


@jaxrewrite.register(jnp.std, jnp.var)
def _spread(
    x: Masked,
    correction: ArrayLike,
    *,
    primitive: Any,
    axis: int | tuple[int, ...] | None,
    keepdims: bool,
) -> Any:
    """Of the entries that are there; missing if there are none."""
    is_missing, counted = x.counted(axis, keepdims)
    spread = getattr(jnp, primitive.name)
    result = spread(
        x.filled(0), axis, correction=correction, keepdims=keepdims, where=counted
    )
    return _finite(result, is_missing)


@jaxrewrite.register(jnp.median)
def _median(x: Masked, *, axis: int | tuple[int, ...] | None, keepdims: bool) -> Any:
    """Of the entries that are there, and NaN if one of them is; missing if there are none."""
    is_missing, counted = x.counted(axis, keepdims)
    array = x.filled(0)
    array = array.astype(jax.eval_shape(jnp.median, array).dtype)
    result = jnp.nanmedian(jnp.where(counted, array, jnp.nan), axis, keepdims=keepdims)
    is_nan = jnp.any(jnp.isnan(array) & counted, axis, keepdims=keepdims)
    return _finite(jnp.where(is_nan, jnp.nan, result), is_missing)


@jaxrewrite.register(jnp.std, jnp.var)
def _spread_around(
    x: Annotated,
    correction: ArrayLike
    | Unitful,  # Zero has taken any units, which it has not as a number.
    *,
    primitive: Any,
    axis: int | tuple[int, ...] | None,
    keepdims: bool,
) -> Any:
    """Of a masked array inside; it carries what the result of an array would."""
    if needs_units(correction) or not _within(x):
        return NotImplemented
    options = {"axis": axis, "keepdims": keepdims, "correction": array_of(correction)}
    apply = jaxrewrite.transform(functools.partial(getattr(jnp, primitive.name), **options))
    with unrecorded():
        of_array = jax.eval_shape(apply, x._with_array(like(x)))
    inside = apply(x.array)
    return of_array._with_array(inside) if isinstance(of_array, type(x)) else inside


@jaxrewrite.register("jit", types=(_ANNOTATED | ArrayLike,), precedence=1)
def _refuse_to_count(*operands: Any, name: str, jaxpr: Any, **params: Any) -> Any:
    fn: Any = _COUNTING.get(name)
    if fn is None or _compat.file_of(jaxpr) != inspect.unwrap(fn).__code__.co_filename:
        return NotImplemented
    body, _ = _compat.open_jaxpr(jaxpr)
    if not _within(*operands) or [eqn.params.get("name") for eqn in body.eqns] == [name]:
        return NotImplemented  # It calls the function, and that call is looked at.
    raise TypeError(
        f"Masked: {name.removeprefix('_')} of jax.numpy or jax.nn uses the number of all "
        "entries and would count those that are missing. Masked.mean and Masked.count do not: "
        "a variance is ((x - x.mean()) ** 2).mean()."
    )


@jaxrewrite.register("reduce_prod", types=(Annotated,), precedence=1)
def _refuse_units(x: Annotated, *, axes: Any, **params: Any) -> Any:
    layers, count = [x], math.prod(x.shape[axis] for axis in axes)
    while isinstance(layers[-1], Annotated):
        layers.append(layers[-1].array)
    if isinstance(layers[-1], Masked) and count > 1 and any(map(needs_units, layers)):
        raise UnitsError(
            "reduce_prod skips missing entries, so the units of the product depend on how many "
            "are there. Fill them with a quantity, or take the sum of logarithms of numbers."
        )
    return NotImplemented


@annotation_rule(Masked, "bitcast_convert_type")
def _bits(x: Masked, *, primitive: Any, **params: Any) -> Any:
    """The bits of each entry, if they are one number, as in derivatives of `jax.lax.erf`."""
    result = primitive.bind(x.array, **params)
    return Masked(result, x.mask) if result.shape == x.shape else NotImplemented


@annotation_rule(Masked, "select_n")
def _select(which: Any, *cases: Any, primitive: Any, **params: Any) -> Any:
    result = primitive.bind(_array(which), *map(_array, cases))
    mask = primitive.bind(_array(which), *map(_mask, cases))
    is_chosen = not isinstance(which, Masked) and jnp.ndim(which)
    terms = (1, True) if is_chosen else _terms_of_any(cases)
    return Masked(result, mask | _mask(which), terms)


# --- reductions ---------------------------------------------------------------------


_NEUTRAL: dict[str, Callable[[Any], Any]] = {
    "reduce_sum": lambda dtype: 0,
    "reduce_prod": lambda dtype: 1,
    "reduce_max": lowest,
    "reduce_min": highest,
    "reduce_and": lambda dtype: np.asarray(-1).astype(dtype),
    "reduce_or": lambda dtype: 0,
    "reduce_xor": lambda dtype: 0,
    "argmax": lowest,
    "argmin": highest,
    "cumsum": lambda dtype: 0,
    "cumprod": lambda dtype: 1,
    "cummax": lowest,
    "cummin": highest,
    "pmax": lowest,
    "pmin": highest,
}


def _without(x: Masked, primitive: Any, params: Any) -> Any:
    number = _NEUTRAL[primitive.name](x.dtype)
    return primitive.bind(_filled(x, number), **params)


@annotation_rule(Masked, *(name for name in _NEUTRAL if name.startswith("reduce")))
def _reduce(x: Masked, *, primitive: Any, axes: Any, **params: Any) -> Any:
    result = _without(x, primitive, {"axes": axes, **params})
    result = _finite(result, _all_missing(x.mask, axes))
    count = math.prod(x.shape[axis] for axis in axes)
    if primitive.name != "reduce_sum" or not isinstance(count, int):
        return result
    terms, is_weighted = x.terms or (1, False)
    return dataclasses.replace(result, terms=(count * terms, is_weighted))


@annotation_rule(Masked, "psum", "psum_invariant", "reduce_scatter")
def _sum_over_devices(x: Masked, *, primitive: Any, **params: Any) -> Any:
    parts = x.filled(0), _numbers(~x.mask)
    array, count = (primitive.bind(part, **params) for part in parts)
    terms, is_weighted = x.terms or (1, False)
    result = _finite(array, count == 0)
    return dataclasses.replace(result, terms=(_devices(**params) * terms, is_weighted))


def _devices(
    *, axes: Any = (), axis_index_groups: Any = None, axis_size: Any = None, **params: Any
) -> int:
    """Of how many devices entries are added up."""
    if axis_index_groups is not None:
        return len(axis_index_groups[0])
    return axis_size or math.prod(map(lax.axis_size, axes))


@annotation_rule(Masked, "pmax", "pmin")
def _extremum_over_devices(x: Masked, *, primitive: Any, axes: Any, **params: Any) -> Any:
    count = lax.psum(_numbers(~x.mask), axes, **params)
    return _finite(_without(x, primitive, {"axes": axes, **params}), count == 0)


@annotation_rule(Masked, "argmax", "argmin")
def _reduce_to_index(x: Masked, *, primitive: Any, axes: Any, **params: Any) -> Any:
    """Of conditions it is the first index, which that of an earlier missing entry might be.

    `jax.numpy.select` takes the first condition that holds in this way, and `jax.numpy.piecewise`
    the last one, as the first place at which most of them hold.
    """
    index = _without(x, primitive, {"axes": axes, **params})
    (axis,) = axes
    most = 1 if x.dtype == jnp.bool_ else x.most
    if most is None:
        # A missing entry is found only where none is better, so the first that is there is it.
        at = jnp.expand_dims(index, axis)
        is_missing = jnp.take_along_axis(x.mask, at, axis).squeeze(axis)
        first = lax.argmin(x.mask, axis, index.dtype)
        return Masked(jnp.where(is_missing, first, index), _all_missing(x.mask, axes))
    count = x.array.astype(jnp.int32)
    decides = ~x.mask & (count >= most if primitive.name == "argmax" else count == 0)
    earlier = lax.cumsum(decides.astype(jnp.int32), axis) == 0
    return Masked(index, (x.mask & earlier).any(axis))


@annotation_rule(Masked, *(name for name in _NEUTRAL if name.startswith("cum")))
def _cumulate(x: Masked, *, primitive: Any, **params: Any) -> Any:
    result = _finite(_without(x, primitive, params), x.mask)
    if primitive.name != "cumsum" or x.most is None:
        return result
    return dataclasses.replace(result, most=x.most * x.shape[params["axis"]])


@annotation_rule(Masked, "cumlogsumexp")
def _cumulate_exponentials(x: Masked, *, primitive: Any, **params: Any) -> Any:
    """Forward derivatives of this primitive are NaN after two neighbours that are -inf."""
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return _finite(primitive.bind(x.filled(-jnp.inf), **params), x.mask)
    result = primitive.bind(x.filled(jnp.finfo(x.dtype).min), **params)
    is_nothing = lax.cummax(x.filled(-jnp.inf), **params) == -jnp.inf
    return _finite(jnp.where(is_nothing, -jnp.inf, result), x.mask)


@annotation_rule(Masked, "sort")
def _sort(
    *operands: Any, primitive: Any, dimension: int, is_stable: bool, num_keys: int
) -> Any:
    keys, others = operands[:num_keys], operands[num_keys:]
    missing = functools.reduce(operator.or_, map(_mask, keys))
    masks = [x.mask for x in operands if isinstance(x, Masked)]
    # The numbers under a mask must not order what is taken along, such as indices.
    arrays = [missing, *(_filled(key, 1) for key in keys), *map(_array, others), *masks]
    _, *results = lax.sort(arrays, dimension, is_stable, num_keys + 1)
    sorted_masks = iter(results[len(operands) :])
    return [
        Masked(result, next(sorted_masks)) if isinstance(x, Masked) else result
        for x, result in zip(operands, results, strict=False)
    ]


# --- products -----------------------------------------------------------------------


@annotation_rule(Masked, "dot_general")
def _multiply(
    x: Any, y: Any, *, primitive: Any, dimension_numbers: Any, **params: Any
) -> Any:
    params["dimension_numbers"] = dimension_numbers
    result = _product(x, y, params)
    if result is NotImplemented:
        result = primitive.bind(_filled(x, 0), _filled(y, 0), **params)
    return _finite(result, _nothing_there(x, y, dimension_numbers, result.shape))


def _product(x: Any, y: Any, params: Any) -> Any:
    """The product with the one operand that is masked, or NotImplemented."""
    if isinstance(x, Masked) and isinstance(y, Masked):
        return NotImplemented
    is_first = isinstance(x, Masked)
    masked, other = (x, y) if is_first else (y, x)
    if not inexact(masked.array):
        return NotImplemented
    fill = functools.partial(_fill, number=0)
    return in_blocks.dot(fill, (masked.array, masked.mask), other, is_first, **params)


def _nothing_there(x: Any, y: Any, numbers: Any, shape: Sequence[int]) -> Any:
    if isinstance(x, Masked) and isinstance(y, Masked):
        x_there, y_there = (_numbers(~operand.mask) for operand in (x, y))
        pairs = math.prod(x.shape[axis] for axis in numbers[0][0])
        return lax.dot_general(x_there, y_there, numbers) < min(pairs, 1)
    # With one mask no product is needed: only the summed axes matter.
    seen = sides(Masked, x, y, numbers)
    summed = [i for i, label in enumerate(seen.of_v) if label not in seen.out]
    left = tuple(label for label in seen.of_v if label in seen.out)
    missing = along_result(_all_missing(seen.v.mask, summed), left, seen.out)
    return jnp.broadcast_to(missing, shape)


@annotation_rule(Masked, "conv_general_dilated", "ragged_dot_general")
def _bilinear(x: Any, y: Any, *sizes: Any, primitive: Any, **params: Any) -> Any:
    """Rows after the last group, and windows without entries, are there: their zeros are no sums."""
    result = primitive.bind(_filled(x, 0), _filled(y, 0), *sizes, **params)
    params["preferred_element_type"] = jnp.dtype("float32")
    count = lambda *arrays: primitive.bind(*arrays, *sizes, **params)
    there = count(*(_numbers(~_mask(operand)) for operand in (x, y)))
    if not sizes and not _may_be_padding(y.shape, **params):
        return _finite(result, there == 0)
    pairs = count(*(jnp.ones(operand.shape, "float32") for operand in (x, y)))
    return _finite(result, there < jnp.minimum(pairs, 1))


def _may_be_padding(
    kernel: Sequence[int],
    *,
    dimension_numbers: Any,
    padding: Any,
    lhs_dilation: Any,
    rhs_dilation: Any,
    **params: Any,
) -> bool:
    """Whether a window may hold no entry, and so none that is missing."""
    sizes = [kernel[axis] for axis in dimension_numbers.rhs_spec[2:]]
    return any(
        hole > 1 or max(pads) > (size - 1) * step
        for size, pads, hole, step in zip(
            sizes, padding, lhs_dilation, rhs_dilation, strict=True
        )
    )


def _numbers(flags: Any) -> Any:
    return flags.astype(jnp.float32)


# --- where entries go -----------------------------------------------------------------


@annotation_rule(Masked, *MOVING, "all_to_all", "dynamic_slice")
def _move(x: Masked, *starts: Any, primitive: Any, **params: Any) -> Any:
    array, mask = (primitive.bind(part, *starts, **params) for part in (x.array, x.mask))
    if primitive.multiple_results:
        return [Masked(*parts, x.terms, x.most) for parts in zip(array, mask, strict=True)]
    return Masked(array, mask, x.terms, x.most)


@annotation_rule(Masked, "concatenate", "stack", "pad")
def _assemble(*operands: Any, primitive: Any, **params: Any) -> Any:
    array = primitive.bind(*map(_array, operands), **params)
    mask = primitive.bind(*map(_mask, operands), **params)
    terms = {x.terms for x in operands if isinstance(x, Masked)}
    return Masked(array, mask, terms.pop() if len(terms) == 1 else None)


@annotation_rule(Masked, "gather")
def _gather(x: Masked, indices: Any, *, primitive: Any, **params: Any) -> Any:
    """A number that fills in beyond the array is not missing; NaN or no number is."""
    fill = params["fill_value"]
    is_missing = fill is None or bool(fill != fill)
    # As in `_finite`, a missing entry gets a number at which functions have derivatives.
    hidden = {"fill_value": 1} if is_missing else {}
    array = primitive.bind(x.array, indices, **params | hidden)
    mask = primitive.bind(x.mask, indices, **params | {"fill_value": is_missing})
    return Masked(array, mask, x.terms)


@annotation_rule(Masked, "dynamic_update_slice")
def _update(x: Any, update: Any, *starts: Any, primitive: Any, **params: Any) -> Any:
    array = primitive.bind(_array(x), _array(update), *starts)
    return Masked(array, primitive.bind(_mask(x), _mask(update), *starts))


@annotation_rule(Masked, "scatter")
def _scatter(x: Any, indices: Any, updates: Any, *, primitive: Any, **params: Any) -> Any:
    array = primitive.bind(_array(x), indices, _array(updates), **params)
    if applies_function(primitive, params):
        return Masked(array, _mask(x))
    return Masked(array, primitive.bind(_mask(x), indices, _mask(updates), **params))


@annotation_rule(Masked, "scatter-add", "scatter-sub")
def _scatter_add(
    x: Any, indices: Any, updates: Any, *, primitive: Any, **params: Any
) -> Any:
    array = primitive.bind(_array(x), indices, _filled(updates, 0), **params)
    if not isinstance(updates, Masked):
        return Masked(array, x.mask)
    where = {k: v for k, v in params.items() if k not in ("update_jaxpr", "update_consts")}
    masks = (part.astype(jnp.uint8) for part in (_mask(x), updates.mask))
    mask = lax.scatter_max(next(masks), indices, next(masks), **where)
    return Masked(array, mask.astype(bool))
