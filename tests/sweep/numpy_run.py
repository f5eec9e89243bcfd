"""Programs without XLA: jaxprs evaluated by NumPy, equation by equation.

Compiling takes nearly all of the time of a small program that runs once. `run` stages a
function as JAX does, by `jax.make_jaxpr`, and evaluates what came of it. What has no entry in
`TABLE`, such as a decomposition or a sort, is JAX's own, compiled once for each shape.

Nothing is concluded from these numbers but that two programs agree; where they don't, JAX runs
both. ``test_numpy_run.py`` compares the table with JAX.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.fft
import scipy.linalg
import scipy.special
from jax.extend import core
from jax.lax import GatherScatterMode

from jaxrewrite._compat import expand, scan_counts


class NotStaged(Exception):
    """A function that only arrays can tell the results of, or that has keys among them."""


class Broken(Exception):
    """A fault of this module."""


def run(fn: Callable[..., Any], *args: Any) -> Any:
    """The results of ``fn``, a pytree of NumPy arrays, of pytrees of arrays."""
    return staged(fn, *args)(*args)


def staged(fn: Callable[..., Any], *args: Any) -> Callable[..., Any]:
    """A function of arrays of the same shapes and dtypes, which is traced now.

    Its attribute ``avals`` has the results' shapes, dtypes and weak types.
    """
    jaxpr, shapes = jax.make_jaxpr(fn, return_shape=True)(*args)
    treedef = jax.tree.structure(shapes)

    def call(*args: Any) -> Any:
        leaves = [_array(x) for x in jax.tree.leaves(args)]
        try:
            with np.errstate(all="ignore"):
                return treedef.unflatten(evaluate(jaxpr, leaves))
        except NotStaged:
            raise
        except Exception as error:
            raise Broken(jaxpr) from error

    call.avals = treedef.unflatten(jaxpr.out_avals)  # type: ignore[attr-defined]
    return call


def evaluate(closed: Any, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    jaxpr = getattr(closed, "jaxpr", closed)
    consts = map(_array, getattr(closed, "consts", ()))
    return _evaluate(jaxpr, zip(jaxpr.constvars, consts, strict=True), args)


def _array(x: Any) -> np.ndarray:
    if isinstance(x, jax.core.Tracer):
        raise NotStaged
    if jax.dtypes.issubdtype(jnp.result_type(x), jax.dtypes.extended):
        raise NotStaged
    return np.asarray(x)


def _evaluate(jaxpr: Any, known: Any, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    values: dict[Any, np.ndarray] = dict(known)
    values.update(zip(jaxpr.invars, args, strict=True))

    def read(atom: Any) -> np.ndarray:
        if isinstance(atom, core.Literal):
            return np.asarray(atom.val, atom.aval.dtype)
        return values[atom]

    for eqn in jaxpr.eqns:
        operands = [read(atom) for atom in eqn.invars]
        function = TABLE.get(eqn.primitive.name, _by_jax)
        results = function(eqn, *operands)
        if not isinstance(results, (list, tuple)):
            results = [results]
        for var, result in zip(eqn.outvars, results, strict=True):
            values[var] = like(result, var.aval)
    return [read(atom) for atom in jaxpr.outvars]


def like(result: Any, aval: Any) -> np.ndarray:
    if aval.dtype == jax.dtypes.float0:
        return np.zeros(aval.shape, bool)
    result = np.asarray(result)
    if is_key(aval):
        assert result.shape == (*aval.shape, 2), (result.shape, aval)
        return result
    if result.dtype != aval.dtype:
        result = result.astype(aval.dtype)
    assert result.shape == aval.shape, (result.shape, aval)
    return result


def _by_jax(eqn: Any, *operands: np.ndarray) -> Any:
    for var in (*eqn.invars, *eqn.outvars):
        if jax.dtypes.issubdtype(var.aval.dtype, jax.dtypes.extended):
            raise NotStaged
    operands = tuple(
        map(jax.device_put, operands)
    )  # `jnp.asarray` is compiled for each shape
    results = eqn.primitive.bind(*operands, **eqn.params)
    if not eqn.primitive.multiple_results:
        return np.asarray(results)
    return [np.asarray(x) for x in results]


TABLE: dict[str, Callable[..., Any]] = {}


def rule(*names: str) -> Callable[..., Any]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        TABLE.update(dict.fromkeys(names, function))
        return function

    return add


# --- entry by entry ---------------------------------------------------------------------------


def _wide(x: np.ndarray) -> np.ndarray:
    """Numbers of 16 bits are computed in 32, as XLA does."""
    return x.astype(np.float32) if jnp.finfo(x.dtype).bits < 32 else x


def _entrywise(name: str, function: Callable[..., Any]) -> None:
    def call(eqn: Any, *xs: np.ndarray) -> Any:
        if jnp.issubdtype(xs[0].dtype, jnp.floating):
            xs = tuple(map(_wide, xs))
        return function(*xs)

    TABLE[name] = call


def _ones(x: np.ndarray) -> np.ndarray:
    return np.bitwise_count(x.view(f"u{x.dtype.itemsize}"))


def _clz(x: np.ndarray) -> np.ndarray:
    bits = x.dtype.itemsize * 8
    lengths = [int(n).bit_length() for n in x.view(f"u{x.dtype.itemsize}").ravel()]
    return (bits - np.array(lengths, dtype=int)).reshape(x.shape)


def _quotient(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.dtype.kind not in "iu":
        return x / y
    safe = np.where(y == 0, 1, y)
    quotient = x // safe
    towards_zero = quotient + ((quotient < 0) & (quotient * safe != x))
    return np.where(y == 0, np.array(-1).astype(x.dtype), towards_zero)


def _remainder(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (
        np.where(y == 0, x, np.fmod(x, np.where(y == 0, 1, y)))
        if x.dtype.kind in "iu"
        else np.fmod(x, y)
    )


def _shift(function: Callable[..., Any], beyond: Callable[..., Any]) -> Callable[..., Any]:
    def shift(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        bits = x.dtype.itemsize * 8
        inside = (y >= 0) & (y < bits)
        return np.where(inside, function(x, np.where(inside, y, 0)), beyond(x))

    return shift


def _logical_shift(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    kind = f"u{x.dtype.itemsize}"
    return (x.view(kind) >> y.astype(kind)).view(x.dtype)


def _logistic(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _sign(x: np.ndarray) -> np.ndarray:
    if x.dtype.kind == "c":
        return np.where(x == 0, 0, x / np.abs(x))
    return np.sign(x)


def _not(x: np.ndarray) -> np.ndarray:
    return ~x


_ENTRYWISE = {
    "neg": np.negative,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log1p": np.log1p,
    "expm1": np.expm1,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "cbrt": np.cbrt,
    "log2": np.log2,
    "logistic": _logistic,
    "erf": scipy.special.erf,
    "erfc": scipy.special.erfc,
    "erf_inv": scipy.special.erfinv,
    "abs": np.abs,
    "sign": _sign,
    "floor": np.floor,
    "ceil": np.ceil,
    "square": np.square,
    "one_minus_square": lambda x: 1 - np.square(x),
    "is_finite": np.isfinite,
    "real": np.real,
    "imag": np.imag,
    "conj": np.conj,
    "not": _not,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "population_count": _ones,
    "clz": _clz,
    "copy": np.array,
    "copy_p": np.array,
    "add": np.add,
    "add_any": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _quotient,
    "rem": _remainder,
    "max": np.maximum,
    "min": np.minimum,
    "atan2": np.arctan2,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "complex": lambda x, y: x + 1j * y,
    "shift_left": _shift(np.left_shift, np.zeros_like),
    "shift_right_logical": _shift(_logical_shift, np.zeros_like),
    "shift_right_arithmetic": _shift(np.right_shift, lambda x: np.where(x < 0, -1, 0)),
}
for _name, _function in _ENTRYWISE.items():
    _entrywise(_name, _function)


@rule("pow")
def _(eqn: Any, x: np.ndarray, y: np.ndarray) -> Any:
    if x.dtype.kind in "iu":
        raise NotStaged
    return np.power(_wide(x) if jnp.issubdtype(x.dtype, jnp.floating) else x, y)


@rule("integer_pow")
def _(eqn: Any, x: np.ndarray) -> Any:
    n = eqn.params["y"]
    wide = _wide(x) if jnp.issubdtype(x.dtype, jnp.floating) else x
    power = functools.reduce(np.multiply, [wide] * abs(n), np.ones_like(wide))
    return power if n >= 0 else 1 / power


@rule("nextafter")
def _(eqn: Any, x: np.ndarray, y: np.ndarray) -> Any:
    return np.nextafter(x, y)


@rule("round")
def _(eqn: Any, x: np.ndarray) -> Any:
    wide = _wide(x)
    if int(eqn.params["rounding_method"]) == 1:
        return np.round(wide)
    whole = np.trunc(wide)
    return np.where(np.abs(wide - whole) >= 0.5, whole + np.sign(wide), whole)


@rule("convert_element_type")
def _(eqn: Any, x: np.ndarray) -> Any:
    return _cast(x, np.dtype(eqn.params["new_dtype"]))


def _cast(x: np.ndarray, new: Any) -> np.ndarray:
    if x.dtype.kind == "c" and new.kind != "c":
        x = x.real if new.kind != "b" else x
    if new.kind in "iu" and jnp.issubdtype(x.dtype, jnp.floating):
        limits = np.iinfo(new)
        x = np.nan_to_num(np.asarray(x, np.float64), nan=0.0)
        beyond = np.where(x >= limits.max, limits.max, limits.min)
        inside = (x > limits.min) & (x < limits.max)
        return np.where(inside, np.where(inside, x, 0).astype(new), beyond.astype(new))
    return x.astype(new)


@rule("bitcast_convert_type")
def _(eqn: Any, x: np.ndarray) -> Any:
    new = np.dtype(eqn.params["new_dtype"])
    shape = eqn.outvars[0].aval.shape
    # NumPy has bytes for integers of few bits.
    if shape != x.shape and (x.dtype.kind == "V" or new.kind == "V"):
        return _by_jax(eqn, x)
    return np.ascontiguousarray(x).view(new).reshape(shape)


@rule("select_n")
def _(eqn: Any, which: np.ndarray, *cases: np.ndarray) -> Any:
    if which.dtype == bool:
        return np.where(which, cases[1], cases[0])
    which = np.broadcast_to(which, cases[0].shape)
    return np.select([which == i for i in range(len(cases))], cases)


@rule("clamp")
def _(eqn: Any, low: np.ndarray, x: np.ndarray, high: np.ndarray) -> Any:
    return np.minimum(np.maximum(low, x), high)


@rule("optimization_barrier")
def _(eqn: Any, *xs: np.ndarray) -> Any:
    return list(xs)


@rule("stop_gradient", "name")
def _(eqn: Any, x: np.ndarray) -> Any:
    return x


@rule("empty", "empty2")
def _(eqn: Any, *_: np.ndarray) -> Any:
    return np.zeros(eqn.outvars[0].aval.shape)


@rule("tile")
def _(eqn: Any, x: np.ndarray) -> Any:
    return np.tile(x, eqn.params["reps"])


@rule("platform_index")
def _(eqn: Any) -> Any:
    """Of the branches of `jax.lax.platform_dependent`, the last may be that of all others."""
    cases = eqn.params["platforms"]
    return next(i for i, names in enumerate(cases) if names is None or "cpu" in names)


# --- shapes -------------------------------------------------------------------------------------


@rule("broadcast_in_dim")
def _(eqn: Any, x: np.ndarray) -> Any:
    shape, axes = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    own = [1] * len(shape)
    for axis, n in zip(axes, x.shape, strict=True):
        own[axis] = n
    return np.broadcast_to(x.reshape(own), shape)


@rule("reshape")
def _(eqn: Any, x: np.ndarray) -> Any:
    dimensions = eqn.params.get("dimensions")
    return (x if dimensions is None else x.transpose(dimensions)).reshape(
        eqn.params["new_sizes"]
    )


@rule("transpose")
def _(eqn: Any, x: np.ndarray) -> Any:
    return x.transpose(eqn.params["permutation"])


@rule("squeeze")
def _(eqn: Any, x: np.ndarray) -> Any:
    return np.squeeze(x, eqn.params["dimensions"])


@rule("rev")
def _(eqn: Any, x: np.ndarray) -> Any:
    return np.flip(x, eqn.params["dimensions"])


@rule("concatenate")
def _(eqn: Any, *xs: np.ndarray) -> Any:
    return np.concatenate(xs, eqn.params["dimension"])


@rule("stack")
def _(eqn: Any, *xs: np.ndarray) -> Any:
    return np.stack(xs, eqn.params["axis"])


@rule("unstack")
def _(eqn: Any, x: np.ndarray) -> Any:
    return list(np.moveaxis(x, eqn.params["axis"], 0))


@rule("iota")
def _(eqn: Any) -> Any:
    shape, axis = eqn.params["shape"], eqn.params["dimension"]
    sizes = [n if i == axis else 1 for i, n in enumerate(shape)]
    return np.broadcast_to(np.arange(shape[axis]).reshape(sizes), shape)


@rule("slice")
def _(eqn: Any, x: np.ndarray) -> Any:
    p = eqn.params
    strides = p["strides"] or [1] * len(p["start_indices"])
    parts = zip(p["start_indices"], p["limit_indices"], strides, strict=True)
    return x[tuple(slice(*part) for part in parts)]


@rule("split")
def _(eqn: Any, x: np.ndarray) -> Any:
    places = np.cumsum(eqn.params["sizes"])[:-1]
    return list(np.split(x, places, eqn.params["axis"]))


@rule("pad")
def _(eqn: Any, x: np.ndarray, fill: np.ndarray) -> Any:
    for axis, (low, high, between) in enumerate(eqn.params["padding_config"]):
        n = x.shape[axis]
        sizes = list(x.shape)
        sizes[axis] = n + max(n - 1, 0) * between
        spread = np.full(sizes, fill, x.dtype)
        spread[(slice(None),) * axis + (slice(None, None, between + 1),)] = x
        sizes[axis] += low + high
        result = np.full(sizes, fill, x.dtype)
        whole = sizes[axis] - low - high
        start, stop = max(-low, 0), min(whole, whole + high)
        if stop > start:
            into = slice(start + low, stop + low)
            part = (slice(None),) * axis
            result[(*part, into)] = spread[(*part, slice(start, stop))]
        x = result
    return x


def _starts(x: np.ndarray, sizes: Sequence[int], starts: Sequence[Any]) -> Any:
    return tuple(
        slice(low := int(np.clip(int(s), 0, n - size)), low + size)
        for s, n, size in zip(starts, x.shape, sizes, strict=True)
    )


@rule("dynamic_slice")
def _(eqn: Any, x: np.ndarray, *starts: np.ndarray) -> Any:
    return x[_starts(x, eqn.params["slice_sizes"], starts)]


@rule("dynamic_update_slice")
def _(eqn: Any, x: np.ndarray, update: np.ndarray, *starts: np.ndarray) -> Any:
    x = x.copy()
    x[_starts(x, update.shape, starts)] = update
    return x


# --- reductions ---------------------------------------------------------------------------------


def _reduction(name: str, function: Callable[..., Any]) -> None:
    def call(eqn: Any, x: np.ndarray) -> Any:
        wide = _wide(x) if jnp.issubdtype(x.dtype, jnp.floating) else x
        return function(wide, eqn.params["axes"])

    TABLE[name] = call


def _limit(dtype: Any, high: bool) -> Any:
    if dtype.kind == "b":
        return high
    if dtype.kind in "iu":
        return np.iinfo(dtype).max if high else np.iinfo(dtype).min
    return np.inf if high else -np.inf


_reduction("reduce_sum", lambda x, axes: np.sum(x, axes, dtype=x.dtype))
_reduction("reduce_prod", lambda x, axes: np.prod(x, axes, dtype=x.dtype))
_reduction("reduce_and", lambda x, axes: np.bitwise_and.reduce(x, axes))
_reduction("reduce_or", lambda x, axes: np.bitwise_or.reduce(x, axes))
_reduction("reduce_xor", lambda x, axes: np.bitwise_xor.reduce(x, axes))
_reduction("reduce_max", lambda x, axes: np.max(x, axes, initial=_limit(x.dtype, False)))
_reduction("reduce_min", lambda x, axes: np.min(x, axes, initial=_limit(x.dtype, True)))


@rule("argmax", "argmin")
def _(eqn: Any, x: np.ndarray) -> Any:
    (axis,) = eqn.params["axes"]
    if jnp.issubdtype(x.dtype, jnp.floating):
        x = _wide(x)
    return (np.argmax if eqn.primitive.name == "argmax" else np.argmin)(x, axis)


@rule("cumsum", "cumprod", "cummax", "cummin")
def _(eqn: Any, x: np.ndarray) -> Any:
    axis = eqn.params["axis"]
    ufunc = {
        "cumsum": np.add,
        "cumprod": np.multiply,
        "cummax": np.maximum,
        "cummin": np.minimum,
    }
    x = _wide(x) if jnp.issubdtype(x.dtype, jnp.floating) else x
    x = np.flip(x, axis) if eqn.params["reverse"] else x
    x = ufunc[eqn.primitive.name].accumulate(x, axis, dtype=x.dtype)
    return np.flip(x, axis) if eqn.params["reverse"] else x


@rule("reduce")
def _(eqn: Any, *xs: np.ndarray) -> Any:
    """By a program of one entry of each array: the entries are taken one by one."""
    axes, n = eqn.params["dimensions"], len(xs) // 2
    kept = eqn.outvars[0].aval.shape
    size = math.prod(xs[0].shape[axis] for axis in axes)
    rows = [np.moveaxis(x, axes, range(len(axes))).reshape(size, *kept) for x in xs[:n]]
    outs = [np.empty(kept, x.dtype) for x in rows]
    for place in np.ndindex(kept):
        found = list(xs[n:])
        for entries in zip(*(x[:, *place] for x in rows), strict=True):
            found = evaluate(eqn.params["jaxpr"], [*found, *map(np.asarray, entries)])
        for out, x in zip(outs, found, strict=True):
            out[place] = x
    return outs


@rule("sort")
def _(eqn: Any, *xs: np.ndarray) -> Any:
    keys = xs[: eqn.params["num_keys"]]
    if any(x.dtype.kind == "c" for x in keys):
        return _by_jax(eqn, *xs)
    axis = eqn.params["dimension"]
    wide = [_wide(x) if jnp.issubdtype(x.dtype, jnp.floating) else x for x in keys]
    order = np.lexsort([np.moveaxis(x, axis, -1) for x in reversed(wide)])
    order = np.moveaxis(order, -1, axis)
    return [np.take_along_axis(x, order, axis) for x in xs]


@rule("dot_general")
def _(eqn: Any, x: np.ndarray, y: np.ndarray) -> Any:
    (xc, yc), (xb, yb) = eqn.params["dimension_numbers"]
    dtype = np.result_type(eqn.outvars[0].aval.dtype)
    work = (
        np.dtype(np.float32)
        if jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4
        else dtype
    )
    if x.dtype.kind == "c" and work.kind != "c":
        work = x.dtype
    elif work.kind in "iu" and jnp.issubdtype(x.dtype, jnp.inexact):
        work = np.result_type(x.dtype if x.dtype.kind == "f" else np.float32, np.float32)
    own_x = [i for i in range(x.ndim) if i not in (*xc, *xb)]
    own_y = [i for i in range(y.ndim) if i not in (*yc, *yb)]
    batch = [x.shape[i] for i in xb]
    sizes = lambda a, axes: int(np.prod([a.shape[i] for i in axes], dtype=int))
    left = x.transpose(*xb, *own_x, *xc).reshape(*batch, sizes(x, own_x), sizes(x, xc))
    right = y.transpose(*yb, *yc, *own_y).reshape(*batch, sizes(y, yc), sizes(y, own_y))
    product = left.astype(work) @ right.astype(work)
    return _cast(product, dtype).reshape(eqn.outvars[0].aval.shape)


# --- decompositions, by what JAX itself calls on a CPU ------------------------------------------


@rule("fft")
def _(eqn: Any, x: np.ndarray) -> Any:
    lengths = eqn.params["fft_lengths"]
    name = eqn.params["fft_type"].name.lower().removesuffix("fft")
    if 0 in (*x.shape, *eqn.outvars[0].aval.shape):
        return _by_jax(eqn, x)
    axes = tuple(range(-len(lengths), 0))
    return getattr(scipy.fft, f"{name}fftn")(x, lengths, axes)


def _of_matrices(name: str, function: Callable[..., Any]) -> None:
    """``function`` of the parameters and of one matrix of each stack."""

    def call(eqn: Any, *xs: np.ndarray) -> Any:
        if 0 in eqn.outvars[0].aval.shape:
            return _by_jax(eqn, *xs)
        outs = [np.empty(v.aval.shape, v.aval.dtype) for v in eqn.outvars]
        for place in np.ndindex(xs[0].shape[:-2]):
            results = function(eqn.params, *(x[place] for x in xs))
            for out, x in zip(outs, results, strict=True):
                out[place] = x
        return outs if eqn.primitive.multiple_results else outs[0]

    TABLE[name] = call


def _solved(params: Any, a: np.ndarray, b: np.ndarray) -> Any:
    if params["conjugate_a"]:
        a = a.conj()
    (solve,) = scipy.linalg.get_blas_funcs(("trsm",), (a, b))
    flags = {
        "side": not params["left_side"],
        "lower": params["lower"],
        "trans_a": params["transpose_a"],
        "diag": params["unit_diagonal"],
    }
    return [solve(1, a, b, **flags)]


def _cholesky(params: Any, x: np.ndarray) -> Any:
    (factorise,) = scipy.linalg.get_lapack_funcs(("potrf",), (x,))
    factor, info = factorise(x, lower=True, clean=True)
    return [np.full_like(x, np.nan) if info else factor]


def _lu(params: Any, x: np.ndarray) -> Any:
    (factorise,) = scipy.linalg.get_lapack_funcs(("getrf",), (x,))
    factors, pivots, _ = factorise(x)
    return [factors, pivots, _order(pivots, len(x))]


@rule("lu_pivots_to_permutation")
def _(eqn: Any, pivots: np.ndarray) -> Any:
    orders = np.empty(eqn.outvars[0].aval.shape, int)
    for place in np.ndindex(pivots.shape[:-1]):
        orders[place] = _order(pivots[place], eqn.params["permutation_size"])
    return orders


def _order(pivots: np.ndarray, n: int) -> np.ndarray:
    order = np.arange(n)
    for i, k in enumerate(pivots):
        order[[i, k]] = order[[k, i]]
    return order


_of_matrices("triangular_solve", _solved)
_of_matrices("cholesky", _cholesky)
_of_matrices("lu", _lu)


# --- gathers and scatters -----------------------------------------------------------------------


def _fill(dtype: Any) -> Any:
    if jnp.issubdtype(dtype, jnp.inexact):
        return np.nan
    if dtype.kind == "b":
        return True
    return np.iinfo(dtype).min if dtype.kind == "i" else np.iinfo(dtype).max


def _windows(
    shape: Sequence[int],
    sizes: Sequence[int],
    indices: np.ndarray,
    axes: Any,
    batching: Any,
) -> tuple[list[np.ndarray], np.ndarray]:
    """The places of the windows along each axis, and which windows are inside."""
    batch = indices.shape[:-1]
    starts = np.zeros((*batch, len(shape)), np.int64)
    for k, axis in enumerate(axes):
        starts[..., axis] = indices[..., k]
    for axis, along in zip(*batching, strict=True):
        own = [n if i == along else 1 for i, n in enumerate(batch)]
        starts[..., axis] = np.arange(batch[along]).reshape(own)
    most = np.array([n - size for n, size in zip(shape, sizes, strict=True)], np.int64)
    inside = ((starts >= 0) & (starts <= most)).all(-1)
    starts = np.clip(starts, 0, most)
    places = []
    for axis, size in enumerate(sizes):
        window = [size if i == axis else 1 for i in range(len(shape))]
        first = starts[..., axis].reshape(*batch, *(1 for _ in shape))
        places.append(first + np.arange(size).reshape(window))
    return places, inside


@rule("gather")
def _(eqn: Any, x: np.ndarray, indices: np.ndarray) -> Any:
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    batching = numbers.operand_batching_dims, numbers.start_indices_batching_dims
    places, inside = _windows(x.shape, sizes, indices, numbers.start_index_map, batching)
    shape = eqn.outvars[0].aval.shape
    if 0 in shape:
        return np.zeros(shape, x.dtype)
    result = x[tuple(places)]
    if eqn.params["mode"] == GatherScatterMode.FILL_OR_DROP:
        fill = eqn.params["fill_value"]
        fill = _fill(x.dtype) if fill is None else fill
        inside = inside.reshape(*inside.shape, *(1 for _ in x.shape))
        result = np.where(inside, result, np.asarray(fill).astype(x.dtype))
    gone = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    batch = inside.ndim if inside.ndim == indices.ndim - 1 else indices.ndim - 1
    result = result.squeeze(tuple(batch + axis for axis in gone))
    of_batch = iter(range(batch))
    of_window = iter(range(batch, len(shape)))
    order = [
        next(of_window if i in numbers.offset_dims else of_batch) for i in range(len(shape))
    ]
    return result.transpose(order)


@rule(
    *("scatter", "scatter-add", "scatter-sub", "scatter-mul", "scatter-min", "scatter-max")
)
def _(eqn: Any, x: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> Any:
    numbers, mode = eqn.params["dimension_numbers"], eqn.params["mode"]
    if eqn.primitive.name == "scatter" and eqn.params["update_jaxpr"] is not None:
        raise NotStaged  # of a function, by x.at[i].apply(f)
    gone = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    window = numbers.update_window_dims
    batch = [i for i in range(updates.ndim) if i not in window]
    updates = updates.transpose(*batch, *window)
    updates = np.expand_dims(updates, tuple(len(batch) + axis for axis in sorted(gone)))
    sizes = updates.shape[len(batch) :]
    if not updates.size:
        return x
    batching = numbers.operand_batching_dims, numbers.scatter_indices_batching_dims
    axes = numbers.scatter_dims_to_operand_dims
    places, inside = _windows(x.shape, sizes, indices, axes, batching)
    if mode == GatherScatterMode.CLIP:
        inside = np.ones_like(inside)
    flat = [np.broadcast_to(p, updates.shape)[inside].ravel() for p in places]
    updates = updates[inside].ravel()
    result = x.astype(np.float32) if x.dtype == jnp.bfloat16 else x.copy()
    name = eqn.primitive.name
    if name == "scatter":
        result[tuple(flat)] = updates
        return result
    ufunc = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
    ufunc |= {"min": np.minimum, "max": np.maximum}
    ufunc[name.removeprefix("scatter-")].at(
        result, tuple(flat), updates.astype(result.dtype)
    )
    return result


# --- random numbers, of keys of Threefry, which are here their two words along a last axis ------


def is_key(aval: Any) -> bool:
    """Whether it is an array of keys of JAX's default generator."""
    return not isinstance(aval.dtype, np.dtype) and str(aval.dtype) == "key<fry>"


# What moves keys as it moves numbers.
MOVES_KEYS = {"slice", "squeeze", "unstack"}


def _threefry(
    keys: np.ndarray, high: np.ndarray, low: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Threefry-2x32 of 20 rounds: Salmon et al., Parallel random numbers (2011)."""
    words = [keys[..., 0], keys[..., 1]]
    words.append(words[0] ^ words[1] ^ np.uint32(0x1BD11BDA))
    x, y = high + words[0], low + words[1]
    for i in range(5):
        for turn in ((13, 15, 26, 6), (17, 29, 16, 24))[i % 2]:
            x = x + y
            y = x ^ (y << np.uint32(turn) | y >> np.uint32(32 - turn))
        x, y = x + words[(i + 1) % 3], y + words[(i + 2) % 3] + np.uint32(i + 1)
    return x, y


def _counted(keys: np.ndarray, shape: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Two words for each entry of an array of this shape, for each key."""
    low = np.arange(math.prod(shape), dtype=np.uint32).reshape(shape)
    keys = keys.reshape(*keys.shape[:-1], *[1] * len(shape), 2)
    return _threefry(keys, np.zeros_like(low), low)


def _words(seed: np.ndarray) -> np.ndarray:
    """The key of a seed."""
    high = seed.astype(np.uint64) >> np.uint64(32) if seed.dtype.itemsize > 4 else 0 * seed
    return np.stack([high.astype(np.uint32), seed.astype(np.uint32)], -1)


@rule("random_seed")
def _(eqn: Any, seeds: np.ndarray) -> Any:
    if not is_key(eqn.outvars[0].aval):
        raise NotStaged
    return _words(seeds)


@rule("random_wrap", "random_unwrap", "random_clone")
def _(eqn: Any, x: np.ndarray) -> Any:
    if not any(is_key(v.aval) for v in (*eqn.invars, *eqn.outvars)):
        raise NotStaged
    return x


@rule("random_split")
def _(eqn: Any, keys: np.ndarray) -> Any:
    return np.stack(_counted(keys, eqn.params["shape"]), -1)


@rule("random_fold_in")
def _(eqn: Any, keys: np.ndarray, numbers: np.ndarray) -> Any:
    seeds = _words(numbers)
    return np.stack(_threefry(keys, seeds[..., 0], seeds[..., 1]), -1)


@rule("random_bits")
def _(eqn: Any, keys: np.ndarray) -> Any:
    width = eqn.params["bit_width"]
    high, low = _counted(keys, eqn.params["shape"])
    if width == 64:
        return high.astype(np.uint64) << np.uint64(32) | low
    return (high ^ low).astype(f"uint{width}")


# --- programs in programs -----------------------------------------------------------------------


@rule("jit", "pjit", "closed_call", "core_call", "remat2", "remat", "checkpoint")
def _(eqn: Any, *xs: np.ndarray) -> Any:
    return evaluate(eqn.params.get("jaxpr") or eqn.params["call_jaxpr"], xs)


@rule("custom_jvp_call", "custom_vjp_call")
def _(eqn: Any, *xs: np.ndarray) -> Any:
    return evaluate(eqn.params["call_jaxpr"], xs)


@rule("call_hi_primitive")
def _(eqn: Any, *xs: np.ndarray) -> Any:
    return run(lambda *xs: expand(eqn, xs), *xs)


@rule("custom_lin")
def _(eqn: Any, *xs: np.ndarray) -> Any:
    """The tangent of what has a backward rule only, which JAX refuses when it runs."""
    raise NotStaged


@rule("cond")
def _(eqn: Any, which: np.ndarray, *xs: np.ndarray) -> Any:
    branches = eqn.params["branches"]
    return evaluate(branches[int(np.clip(int(which), 0, len(branches) - 1))], xs)


_LONGEST = 1000


@rule("while")
def _(eqn: Any, *xs: np.ndarray) -> Any:
    p = eqn.params
    of_cond, of_body = p["cond_nconsts"], p["cond_nconsts"] + p["body_nconsts"]
    carry = list(xs[of_body:])
    for _turn in range(_LONGEST):
        (more,) = evaluate(p["cond_jaxpr"], [*xs[:of_cond], *carry])
        if not more.any():
            return carry
        new = evaluate(p["body_jaxpr"], [*xs[of_cond:of_body], *carry])
        # Of a loop that is mapped, each element goes on for itself.
        going = [more.reshape(more.shape + (1,) * (x.ndim - more.ndim)) for x in new]
        carry = [np.where(*parts) for parts in zip(going, new, carry, strict=True)]
    raise NotStaged("a long loop")


@rule("scan")
def _(eqn: Any, *xs: np.ndarray) -> Any:
    p = eqn.params
    n_consts, n_carry = scan_counts(p)
    consts, carry = xs[:n_consts], list(xs[n_consts : n_consts + n_carry])
    rows = xs[n_consts + n_carry :]
    outs = [np.zeros(v.aval.shape, v.aval.dtype) for v in eqn.outvars[n_carry:]]
    turns = range(p["length"])
    for i in reversed(turns) if p["reverse"] else turns:
        results = evaluate(p["jaxpr"], [*consts, *carry, *(x[i] for x in rows)])
        carry = results[:n_carry]
        for out, y in zip(outs, results[n_carry:], strict=True):
            out[i] = y
    return [*carry, *outs]


@rule("custom_linear_solve")
def _(eqn: Any, *xs: np.ndarray) -> Any:
    lengths, jaxprs = eqn.params["const_lengths"], eqn.params["jaxprs"]
    before = lengths.matvec + lengths.vecmat
    consts = xs[before : before + lengths.solve]
    b = xs[before + lengths.solve + lengths.transpose_solve :]
    return evaluate(jaxprs.solve, [*consts, *b])
