"""The oracle: results of dense code, and the modes in which a program is compared with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import (
    keystr,
    tree_flatten,
    tree_flatten_with_path as flatten_with_path,
    tree_leaves,
    tree_map,
    tree_unflatten,
)

import jaxrewrite

from .._core.avals import same_treedef


Function = Callable[..., Any]


def numbers(shape: tuple[int, ...], dtype: Any = "float32") -> jax.Array:
    """Return an array of some numbers, the same at each call.

    Parameters
    ----------
    shape, dtype
        Those of the array.

    Returns
    -------
    jax.Array
        Floating numbers from 1/4 to 1, integers from 1 to 7, or booleans.

    Examples
    --------
    >>> from jaxrewrite.testing import numbers
    >>> numbers((4,))
    Array([0.25 , 0.625, 1.   , 0.5  ], dtype=float32)
    """
    counted = np.arange(np.prod(shape, dtype=int)).reshape(shape) * 3 % 7
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return jnp.asarray((counted + 2) * (0.125 + 0.0625j), dtype)
    if jnp.issubdtype(dtype, jnp.inexact):
        return jnp.asarray((counted + 2) / 8, dtype)
    if jnp.issubdtype(dtype, jnp.bool_):
        return jnp.asarray(counted % 2 == 0)
    return jnp.asarray(counted + 1, dtype)


# --- a program on values, and on arrays --------------------------------------------------


def on_values(fn: Function, rules: jaxrewrite.Rules | None = None) -> Function:
    """The program by the rules in force, with a dense result."""
    transformed = jaxrewrite.transform(fn, rules=rules, materialise="allow")
    return lambda *operands: jaxrewrite.materialise(transformed(*operands))


def on_arrays(fn: Function) -> Function:
    """The program on the dense arrays that values stand for."""
    return lambda *operands: fn(*jaxrewrite.materialise(operands))


# --- modes: each makes a function of the same operands -------------------------------------


def is_floating(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)


def neighbour(tree: Any) -> Any:
    """The same pytree with other numbers in its floating leaves."""
    return tree_map(lambda x: 0.75 * x if is_floating(x) else x, tree)


def stacked_leaves(tree: Any) -> Any:
    """A pytree and its neighbour, with a new leading axis of each leaf."""
    return tree_map(lambda *leaves: jnp.stack(leaves), tree, neighbour(tree))


def own_stack(value: Any) -> Any:
    """The stack of a value and its neighbour as one value of the same type, or ``None``.

    All leaves have one more axis in front, or those alone that have the array's shape.
    """
    try:
        both = jaxrewrite.materialise([value, neighbour(value)])
    except Exception:  # noqa: BLE001 - a type refuses to be dense by any error
        return None
    entries = tree_map(
        lambda x: jnp.stack([x, x]) if jnp.shape(x) == value.shape else x, value
    )
    for stack, want in ((stacked_leaves(value), both), (entries, both[:1] * 2)):
        if _is_dense_form(stack, jnp.stack(want)):
            return stack
    return None


def _is_dense_form(value: Any, want: Any) -> bool:
    try:
        return difference(jaxrewrite.materialise(value), want, None) is None
    except Exception:  # noqa: BLE001 - leaves of other shapes may make no array at all
        return False


def _floating(tree: Any) -> tuple[list[Any], Callable[[Any], Any]]:
    """The floating leaves of a pytree, and a function that puts others in their place."""
    leaves, treedef = tree_flatten(tree)
    positions = [i for i, leaf in enumerate(leaves) if is_floating(leaf)]

    def filled(new: Any) -> Any:
        replaced = dict(zip(positions, new, strict=True))
        return tree_unflatten(treedef, [replaced.get(i, x) for i, x in enumerate(leaves)])

    return [jnp.asarray(leaves[i]) for i in positions], filled


def _some_tangents(tree: Any) -> Any:
    return tree_map(lambda x: numbers(x.shape, x.dtype), tree)


def _mapped(fn: Function) -> Function:
    def run(*operands: Any) -> Any:
        batches = stacked_leaves(operands)
        return jax.vmap(lambda xs: fn(*xs), axis_size=2)(batches)

    return run


def _floating_results(fn: Function, operands: Any) -> tuple[list[Any], Function]:
    """The floating leaves of operands, and the floating results as a function of them."""
    leaves, filled = _floating(operands)
    return leaves, lambda new: [x for x in tree_leaves(fn(*filled(new))) if is_floating(x)]


def _pushed_forward(fn: Function) -> Function:
    def run(*operands: Any) -> Any:
        leaves, results = _floating_results(fn, operands)
        return jax.jvp(results, (leaves,), (_some_tangents(leaves),))[1]

    return run


def _pulled_back(fn: Function) -> Function:
    def run(*operands: Any) -> Any:
        leaves, results = _floating_results(fn, operands)
        out, back = jax.vjp(results, leaves)
        return back(_some_tangents(out)) if out else []

    return run


MODES: dict[str, Callable[[Function], Function]] = {
    "eager": lambda fn: fn,
    "jit": jax.jit,
    "vmap": _mapped,
    "jvp": _pushed_forward,
    "grad": _pulled_back,
}
DERIVATIVES = ("jvp", "grad")


# --- comparing ----------------------------------------------------------------------------


def assert_same(got: Any, want: Any, tolerance: float | None = None) -> None:
    """Assert that two pytrees of arrays and values are the same arrays.

    Parameters
    ----------
    got, want
        Pytrees of one structure, once their values are dense. Their leaves have to agree in
        shape and dtype, too; NaN is equal to NaN.
    tolerance
        How much numbers may differ, relative to the greatest of an array, or to 1 if that is
        more. By default it depends on the dtype: 1e-4 for ``float32``. It is at least 20 times
        the precision of the dtype, or 0, for equal numbers.

    Raises
    ------
    AssertionError
        If they differ. The message has the place and the first number that does.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from jaxrewrite.testing import assert_same
    >>> from jaxrewrite.values import Diagonal
    >>> assert_same({"a": Diagonal(jnp.ones(2))}, {"a": jnp.eye(2)})
    >>> assert_same({"a": Diagonal(jnp.ones(2))}, {"a": jnp.ones((2, 2))})
    Traceback (most recent call last):
    ...
    AssertionError: at ['a']: 2 of 4 numbers differ: 0 at [0, 1] where dense code has 1
    """
    message = difference(
        jaxrewrite.materialise(got), jaxrewrite.materialise(want), tolerance
    )
    if message is not None:
        raise AssertionError(message)


def difference(
    got: Any,
    want: Any,
    tolerance: float | None,
    mode: str = "",
    are_finite: bool = True,
    least: float = 1.0,
) -> str | None:
    """The difference of two pytrees of arrays as a message, or ``None``.

    A derivative that is not finite in dense code is not compared. It is often 0 * inf there.
    If numbers of the operands are not finite, NaN may be in the place of infinity. Numbers may
    differ by as much as if the greatest of the array were ``least``.
    """

    def compare(got: Any, want: Any) -> str | None:
        if mode in DERIVATIVES:
            return _difference_of_arrays(got, want, tolerance, lambda g: True, least)
        is_any = (lambda g: False) if are_finite else (lambda g: ~np.isfinite(g))
        return _difference_of_arrays(got, want, tolerance, is_any, least)

    return difference_by(compare, got, want)


def difference_by(
    compare: Callable[[Any, Any], str | None], got: Any, want: Any
) -> str | None:
    """The first difference of two pytrees, of which ``compare`` tells that of two leaves."""
    (got_leaves, got_tree), (want_leaves, want_tree) = map(flatten_with_path, (got, want))
    if not same_treedef(got_tree, want_tree):
        return f"the result is {got_tree} where dense code has {want_tree}"
    for (path, g), (_, w) in zip(got_leaves, want_leaves, strict=True):
        message = compare(g, w)
        if message is not None:
            path_text = keystr(path)
            return f"at {path_text}: {message}" if path_text else message
    return None


def difference_in_type(got: Any, want: Any) -> str | None:
    actual, expected = (f"{_dtype(x)}{[*jnp.shape(x)]}" for x in (got, want))
    return None if actual == expected else f"it is {actual} where dense code has {expected}"


def greatest(x: Any) -> float:
    """The greatest magnitude of the finite numbers of an array, or zero."""
    numbers = _wide(x)
    return float(np.abs(numbers[np.isfinite(numbers)]).max(initial=0))


def _difference_of_arrays(
    got: Any,
    want: Any,
    tolerance: float | None,
    is_any: Callable[[Any], Any],
    least: float,
) -> str | None:
    """``is_any`` tells which numbers may be where dense code has one that is not finite."""
    message = difference_in_type(got, want)
    if message is not None:
        return message
    if jax.dtypes.float0 in (_dtype(got), _dtype(want)):
        return None
    g, w = _wide(got), _wide(want)
    rtol = _relative(_dtype(want), tolerance)
    finite = np.isfinite(w)
    # Sums that cancel are as exact as their terms, of which the largest entry is a measure.
    scale = max(greatest(w), least) if rtol else 0.0
    close = np.isclose(g, w, rtol=rtol, atol=rtol * scale, equal_nan=True)
    wrong = ~close & (finite | ~np.asarray(is_any(g)))
    if not wrong.any():
        return None
    index = tuple(map(int, np.argwhere(wrong)[0]))
    where = f" at {list(index)}" if index else ""
    return (
        f"{int(wrong.sum())} of {wrong.size} numbers differ: "
        f"{g[index]:.7g}{where} where dense code has {w[index]:.7g}"
    )


def _dtype(x: Any) -> Any:
    dtype = getattr(x, "dtype", None)
    return dtype if dtype == jax.dtypes.float0 else jnp.result_type(x)


def _wide(x: Any) -> np.ndarray:
    if jnp.issubdtype(_dtype(x), jax.dtypes.extended):
        x = jax.random.key_data(x)
    return np.asarray(x).astype(np.complex128 if jnp.iscomplexobj(x) else np.float64)


def _relative(dtype: Any, tolerance: float | None) -> float:
    if tolerance == 0 or not jnp.issubdtype(dtype, jnp.inexact):
        return 0.0
    eps = float(jnp.finfo(dtype).eps)
    return max(20 * eps, min(1000 * eps, 1e-4) if tolerance is None else tolerance)


def tolerance_of(value: Any) -> float | None:
    """The least tolerance of results computed from a value, if 16 bits hold its numbers."""
    if not jnp.issubdtype(value.dtype, jnp.inexact):
        return None
    eps = float(jnp.finfo(value.dtype).eps)
    return 20 * eps if eps > 1e-6 else None
