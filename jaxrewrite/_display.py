"""The texts of a value: its numbers if it is small, and a summary of its parts if not.

``repr``, ``str``, f-strings and notebooks all show the result of `_shown`.
"""

from __future__ import annotations

import contextlib
import functools
import html
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.tree_util import keystr, tree_leaves, tree_leaves_with_path, tree_map

from . import _compat
from ._core.avals import aval_of, children
from ._core.pytree import dataclass_fields, is_static
from ._core.settings import current_settings, in_force
from ._core.value import Value, is_value
from ._staging.transform import dense


LARGEST = 100
"""The most entries of an array that is shown, which may be stored in twice as many numbers."""

OUTSIDE = "·"
"""In place of an entry that is zero whatever floating-point numbers are stored."""

MISSING = "--"
"""In place of an entry that is masked."""


class Numbers(NamedTuple):
    """An array to show, and the entries in whose place there is a mark."""

    array: np.ndarray
    is_marked: np.ndarray | None = None
    mark: str = ""


class _Showing(threading.local):
    now = False


# Whether this thread is showing a value. What is shown of the parts of a value, or by a
# `materialise` that prints the value, is then a summary.
_showing = _Showing()


# --- as text ------------------------------------------------------------------------------


def as_repr(value: Any, summary: Callable[[], str]) -> str:
    """The text that ``repr`` gives: numbers and their metadata, or the summary."""
    parts = _shown(value)
    text = "" if parts is None else _within(lambda: _in_constructor(value, parts), "")
    return text or _within(summary, f"{type(value).__name__}(...)")


def as_str(value: Any, summary: Callable[[], str]) -> str:
    """The numbers and their metadata, without the type; or the summary."""
    parts = _shown(value)
    return as_repr(value, summary) if parts is None else _laid_out(parts, 0)


def _in_constructor(value: Any, parts: Sequence[Numbers | str]) -> str:
    head = _name(value) + "("
    is_told = any(isinstance(part, str) for part in parts)
    about = [*([] if is_told else _metadata(value)), f"dtype={value.dtype}"]
    if not value.size:
        about.insert(0, f"shape={value.shape}")
    return f"{head}{_laid_out(parts, len(head))}, {', '.join(about)})"


def as_format(value: Any, spec: str, summary: Callable[[], str]) -> str:
    """The text in an f-string: the specification formats the numbers of a scalar."""
    if not spec:
        return as_str(value, summary)
    name = type(value).__name__
    if value.shape:
        raise TypeError(
            f"The format {spec!r} is for one number, and this {name} has the shape "
            f"{value.shape}. Format its entries, such as value[0]."
        )
    parts = _shown(value)
    if parts is None:
        raise TypeError(
            f"The format {spec!r} needs the number of this {name}, which is traced or has no "
            "dense form. jax.debug.callback has the number when a program runs."
        )
    return "".join(x if isinstance(x, str) else _formatted(x, spec) for x in parts)


def brief(x: Any) -> str:
    """The repr of an object, with a summary of each value in it."""
    return _within(lambda: repr(x), f"{type(x).__name__}(...)")


def _within(fn: Callable[[], str], otherwise: str) -> str:
    before, _showing.now = _showing.now, True
    try:
        return fn()
    except Exception:  # noqa: BLE001 - a repr never raises, whatever a leaf is
        return otherwise
    finally:
        _showing.now = before


def _name(value: Value) -> str:
    inside = ", ".join(_name(x) for x in children(value)[0] if is_value(x))
    return type(value).__name__ + (f"[{inside}]" if inside else "")


def _metadata(value: Any) -> Iterator[str]:
    """The static fields that tell more than the shape, the dtype and the defaults do."""
    for f in dataclass_fields(type(value)):
        if f.repr and is_static(f):
            content = getattr(value, f.name)
            # A dtype is equal to a text that names it, such as "f".
            told = (value.shape, value.dtype, f.default)
            if not any(type(content) is type(x) and content == x for x in told):
                yield f"{f.name}={content!r}"


def _formatted(numbers: Numbers, spec: str) -> str:
    is_marked = numbers.is_marked is not None and numbers.is_marked.item()
    return numbers.mark if is_marked else format(numbers.array.item(), spec)


def _laid_out(parts: Sequence[Any], column: int) -> str:
    """The parts one after the other, where arrays of several lines keep their left margin."""
    text = ""
    for part in parts:
        at = column + len(text) if "\n" not in text else len(text) - text.rindex("\n") - 1
        text += part if isinstance(part, str) else _array_text(part, at)
    return text


def _array_text(numbers: Numbers, column: int) -> str:
    array, is_marked, mark = numbers
    if not array.size:
        return "[]"
    if is_marked is None:
        is_marked = np.zeros(array.shape, bool)
    texts = np.full(array.shape, mark, object)
    texts[~is_marked] = _texts(array[~is_marked])
    if not array.ndim:
        return texts.item().strip()
    width = max(map(len, texts.flat))
    return np.array2string(
        np.arange(array.size).reshape(array.shape),
        formatter={"int": lambda i: texts.flat[i].rjust(width)},
        prefix=" " * column,
        threshold=sys.maxsize,
    )


def _texts(array: np.ndarray) -> list[str]:
    """The numbers of a vector as texts, as NumPy prints them side by side."""
    if not array.size:
        return []
    between = "\n"
    text = np.array2string(
        array, separator=between, threshold=sys.maxsize, max_line_width=sys.maxsize
    )
    return text[1:-1].split(between)


# --- the numbers that are shown -----------------------------------------------------------


def _shown(value: Any) -> list[Numbers | str] | None:
    """The arrays and texts to show, or ``None`` if there is only a summary of the value."""
    if _showing.now:
        return None
    _showing.now = True
    try:
        if not _is_small(value):
            return None
        with _at_any_place():
            return _parts(tree_map(_read, value))
    except Exception:  # noqa: BLE001 - a repr never raises, and some types are never dense
        return None
    finally:
        _showing.now = False


@contextlib.contextmanager
def _at_any_place() -> Iterator[None]:
    """Compute also where a function is traced, nothing may become dense, or NaN is an error."""
    settings = current_settings()._replace(policy="allow")
    with (
        in_force(settings),
        jax.ensure_compile_time_eval(),
        jax.default_device(_cpu()),
        jax.transfer_guard("allow"),
        jax.debug_nans(False),
        jax.debug_infs(False),
    ):
        yield


@functools.cache
def _cpu() -> Any:
    """A processor that can compute while a callback holds up the others, if JAX may use it."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None


def _read(leaf: Any) -> Any:
    """A copy of an array that lies where the default device is, or on the mesh of the context."""
    is_numbers = isinstance(leaf, jax.Array) and not _is_extended(leaf.dtype)
    return jax.numpy.asarray(np.asarray(leaf)) if is_numbers else leaf


def _is_extended(dtype: Any) -> bool:
    """Whether it is a dtype of JAX's own, such as the dtype of random keys."""
    return bool(jax.dtypes.issubdtype(dtype, jax.dtypes.extended))


def _is_small(value: Value) -> bool:
    leaves = tree_leaves(value)
    sizes = [np.size(x) for x in leaves if _has_numbers(x)]
    is_whole = len(sizes) == len(leaves)
    return is_whole and _size(aval_of(value)) <= LARGEST and sum(sizes) <= 2 * LARGEST


def _has_numbers(leaf: Any) -> bool:
    """Whether the numbers of a leaf are here: it is not traced, and none lies elsewhere."""
    if not isinstance(leaf, jax.Array):
        return isinstance(leaf, (bool, int, float, complex, np.ndarray, np.generic))
    is_traced = isinstance(leaf, jax.core.Tracer)
    return not is_traced and not leaf.is_deleted() and leaf.is_fully_addressable


def _size(aval: Any) -> int:
    return int(np.prod(aval.shape, dtype=np.int64))


def _picture(value: Any) -> Any:
    method = type(value).picture
    return method(value) if callable(method) else NotImplemented  # It may be a field.


def _parts(x: Any) -> list[Numbers | str]:
    if isinstance(x, str):
        return [x]
    if isinstance(x, np.ma.MaskedArray):
        return [Numbers(np.asarray(x.data), np.ma.getmaskarray(x), MISSING)]
    if not is_value(x):
        return [Numbers(np.asarray(x))]
    picture = _picture(x)
    if picture is NotImplemented:
        array = np.asarray(dense(x))
        return [Numbers(array, _is_outside(x, array), OUTSIDE)]
    items = picture if isinstance(picture, tuple) else (picture,)
    return [part for item in items for part in _parts(item)]


def _is_outside(value: Any, array: np.ndarray) -> np.ndarray:
    """Which entries are zero for other numbers in the leaves, too."""
    is_zero = array == 0
    if not array.ndim or not is_zero.any():
        return np.zeros(array.shape, bool)
    other = tree_map(lambda leaf: _other_numbers(leaf, array.dtype), value)
    return is_zero & (np.asarray(dense(other)) == 0)


def _other_numbers(leaf: Any, dtype: np.dtype) -> Any:
    """Numbers of no pattern in place of floating-point ones, or of those of the array's dtype.

    Other integers are places of entries, or codes, and stay.
    """
    leaf_dtype = _compat.leaf_aval(leaf).dtype
    if not (leaf_dtype == dtype or jax.numpy.issubdtype(leaf_dtype, np.inexact)):
        return leaf
    numbers = 1.5 + np.sin(np.arange(np.size(leaf)) ** 2).reshape(np.shape(leaf))
    return jax.numpy.asarray(numbers.astype(leaf_dtype))


# --- for notebooks ------------------------------------------------------------------------

_BOX = 120
_COLOUR = "#1a6b3c"


def as_html(value: Any, summary: Callable[[], str]) -> str:
    """A picture of the array and of the stored arrays, their bytes, and the numbers."""
    parts = _shown(value) or []
    arrays = [part for part in parts if isinstance(part, Numbers)]
    figure = _within(lambda: _figure(value, arrays[0] if arrays else None), "")
    text = html.escape(as_repr(value, summary))
    # Rows of numbers stay rows; a summary is one long line.
    style = "" if parts else ' style="white-space: pre-wrap"'
    return f'<div class="jaxrewrite-value">{figure}<pre{style}>{text}</pre></div>'


def _figure(value: Any, numbers: Numbers | None) -> str:
    aval = aval_of(value)
    leaves = [
        (keystr(path).lstrip("."), _compat.leaf_aval(leaf))
        for path, leaf in tree_leaves_with_path(value)
    ]
    stored = sum(nbytes_of(leaf) for _, leaf in leaves)
    longest = max(n for x in (aval, *(leaf for _, leaf in leaves)) for n in _sides(x))
    scale = _BOX / max(longest, 1)
    cells = None if numbers is None or numbers.array.shape != aval.shape else numbers
    pictures = [
        _outline("", aval, scale, cells),
        *(_outline(name, leaf, scale) for name, leaf in leaves),
    ]
    return (
        f"<div><b>{html.escape(_name(value))}</b> {html.escape(_compat.short(aval))}, "
        f"{bytes_text(stored)} stored, {bytes_text(nbytes_of(aval))} dense</div>"
        f'<div style="display: flex; flex-wrap: wrap; gap: 1em; align-items: flex-start">'
        f"{''.join(pictures)}</div>"
    )


def _sides(aval: Any) -> Sequence[int]:
    """The height and the width of an array: the lengths of its last two axes."""
    return (1, 1, *aval.shape)[-2:]


def _outline(name: str, aval: Any, scale: float, cells: Numbers | None = None) -> str:
    """An array in its proportions, with its name and its type; stored arrays are filled."""
    height, width = (max(3.0, round(n * scale, 1)) for n in _sides(aval))
    label = html.escape(f"{name} {_compat.short(aval)}".strip())
    inside = "" if cells is None else "".join(_cells(cells, height, width))
    opacity = 0.3 if name else 0
    return (
        '<figure style="margin: 0">'
        f'<svg width="{width + 2:g}" height="{height + 2:g}" role="img">'
        f"<title>{label}</title>{inside}"
        f'<rect x="1" y="1" width="{width:g}" height="{height:g}" fill="{_COLOUR}" '
        f'fill-opacity="{opacity}" stroke="{_COLOUR}"/></svg>'
        f"<figcaption><small>{label}</small></figcaption></figure>"
    )


def _cells(numbers: Numbers, height: float, width: float) -> Iterator[str]:
    """A square for each entry of the first matrix that has no mark, the darker the larger."""
    array, is_marked, _ = numbers
    if not array.size or array.dtype.kind not in "biufcV":
        return
    rows, columns = (1, 1, *array.shape)[-2:]
    sizes = np.abs(array.astype(complex)).reshape(-1, rows, columns)[0]
    sizes = np.nan_to_num(sizes, posinf=np.inf)
    largest = sizes[np.isfinite(sizes)].max(initial=0) or 1
    hidden = np.zeros(array.shape, bool) if is_marked is None else is_marked
    hidden = hidden.reshape(-1, rows, columns)[0]
    for i, j in np.argwhere(~hidden):
        opacity = 0.2 + 0.8 * min(sizes[i, j] / largest, 1)
        yield (
            f'<rect x="{1 + j * width / columns:.4g}" y="{1 + i * height / rows:.4g}" '
            f'width="{width / columns:.4g}" height="{height / rows:.4g}" '
            f'fill="{_COLOUR}" fill-opacity="{opacity:.2g}"/>'
        )


# --- bytes --------------------------------------------------------------------------------


def nbytes_of(leaf: Any) -> int:
    """The bytes of an array, or of a leaf in place of one; int4 takes half a byte."""
    dtype = jax.numpy.result_type(leaf)
    if _is_extended(dtype):
        key = jax.ShapeDtypeStruct(leaf.shape, dtype)
        return sum(map(nbytes_of, tree_leaves(jax.eval_shape(jax.random.key_data, key))))
    if jax.numpy.issubdtype(dtype, np.integer):
        bits = jax.numpy.iinfo(dtype).bits
    else:
        bits = dtype.itemsize * 8
    return -(-int(np.prod(np.shape(leaf), dtype=np.int64)) * bits // 8)


def bytes_text(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 999.5 or unit == "TB":
            break
        count /= 1000
    return f"{count:.3g} {unit}"
