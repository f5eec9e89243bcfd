"""A pytree of values as a dictionary of plain arrays, and back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import jax
import numpy as np

from jaxrewrite import Value

from ._leaves import (
    described,
    empty,
    form,
    is_array,
    is_stored,
    is_value,
    restored,
    stored,
)


_T = TypeVar("_T")

# The name of the entry that says what the others were.
ABOUT = "jaxrewrite"

# Names that are no array's, in this format or in that of safetensors.
_KEPT = (ABOUT, "__metadata__")

# Files of another version are refused.
VERSION = 1

# How many differences an error names.
_NAMED = 5


def to_storable(tree: Any) -> dict[str, Any]:
    """Turn a pytree of values and arrays into plain arrays, for any library that stores such.

    The arrays have dtypes that all libraries store: booleans, integers of 8 to 64 bits, and
    ``float16``, ``bfloat16``, ``float32``, ``float64``. All others become bytes, four-bit
    integers two in a byte. An array without entries is left out.

    It can be traced. ``jax.eval_shape(to_storable, tree)``, or ``to_storable`` of a pytree of
    `jax.ShapeDtypeStruct`, gives the shapes and dtypes for libraries that ask for them.
    Arrays that are sharded over several devices stay so.

    Parameters
    ----------
    tree
        A pytree of arrays, values, and Python numbers. Other leaves, such as functions, are
        not stored.

    Returns
    -------
    dict
        An array for each leaf, by the path of the leaf, such as ``"dense/kernel/codes"``; and
        one more, ``"jaxrewrite"``, which holds the types and dtypes of the pytree as text.

    Raises
    ------
    ValueError
        If two leaves have one path, as those of ``{"a/b": x, "a": {"b": y}}``.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from jaxrewrite.checkpoints import from_storable, to_storable
    >>> from jaxrewrite.values import Quantised
    >>> codes = jnp.array([[1, -2], [3, 4]], jnp.int4)
    >>> params = {"kernel": Quantised(codes, jnp.ones((1, 2))), "bias": jnp.zeros(2)}
    >>> arrays = to_storable(params)
    >>> for name in ("bias", "kernel/q", "kernel/scale"):
    ...     print(name, arrays[name].dtype, arrays[name].shape)
    bias float32 (2,)
    kernel/q uint8 (2, 1)
    kernel/scale float32 (1, 2)
    >>> from_storable(arrays, like=params)["kernel"].q
    Array([[1, -2],
           [3, 4]], dtype=int4)
    """
    arrays = {}
    for name, leaf in _leaves(tree).items():
        if is_stored(leaf):
            try:
                arrays[name] = stored(leaf)
            except ValueError as error:
                raise ValueError(f"to_storable: {name}: {error}.") from error
    text = json.dumps(_about(tree)).encode()
    return {**arrays, ABOUT: np.frombuffer(text, np.uint8)}


def from_storable(arrays: Any, like: _T) -> _T:
    """Turn the arrays of `to_storable` back into a pytree.

    Parameters
    ----------
    arrays
        What `to_storable` returned. It may be another mapping, such as an open file of
        `numpy.load`, or a pytree whose leaves have the same paths, such as nested dictionaries.
    like
        A pytree of the same structure, with arrays of the same shapes and dtypes. Only these
        are used, and its leaves that are not arrays. So `jax.ShapeDtypeStruct` may take the
        place of arrays, as in the result of `jax.eval_shape`. Arrays go to the devices of
        those of ``like`` that are sharded over several.

    Returns
    -------
    Any
        A pytree of the structure of ``like``. It is exactly that which was stored.

    Raises
    ------
    ValueError
        If the arrays do not come from `to_storable`, or come from a pytree of another
        structure: other names, shapes, dtypes, types of values, or static fields. Then
        nothing is returned.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from jaxrewrite.checkpoints import from_storable, to_storable
    >>> from jaxrewrite.values import Float8
    >>> bits, scale = jnp.ones((2, 2), jnp.uint8), jnp.ones((1, 1))
    >>> arrays = to_storable(Float8(bits, scale, "float8_e4m3fn"))
    >>> from_storable(arrays, like=Float8(bits, scale, "float8_e5m2"))
    Traceback (most recent call last):
    ValueError: from_storable: what was stored differs from `like`: leaf is Float8(format='float8_e4m3fn') there and Float8(format='float8_e5m2') in `like`
    """
    return assemble("from_storable", _named(arrays), like)


def assemble(by: str, arrays: Mapping[str, Any], like: Any) -> Any:
    """`from_storable` of arrays by name, for errors in the name of a function."""
    stored = _entry(by, arrays.get(ABOUT))
    wanted = _about(like)
    differences = list(_differences(_by_name(stored), _by_name(wanted)))
    if differences:
        more = "; ..." if len(differences) > _NAMED else ""
        named = "; ".join(differences[:_NAMED])
        raise ValueError(f"{by}: what was stored differs from `like`: {named}{more}")
    leaves = _leaves(like)
    checked = _checked(by, arrays, {n: x for n, x in leaves.items() if is_stored(x)})
    restored_leaves = {}
    for name, leaf in leaves.items():
        try:
            restored_leaves[name] = (
                restored(checked[name], leaf) if name in checked else empty(leaf)
            )
        except ValueError as error:
            raise ValueError(f"{by}: {name}: {error}.") from error
    leaves_of_like, treedef = jax.tree_util.tree_flatten_with_path(like)
    new = [restored_leaves.get(_name(path), leaf) for path, leaf in leaves_of_like]
    return jax.tree_util.tree_unflatten(treedef, new)


def _checked(
    by: str, arrays: Mapping[str, Any], leaves: Mapping[str, Any]
) -> dict[str, Any]:
    """The arrays, if they are the arrays that are stored for these leaves."""
    for name in sorted(leaves.keys() ^ (arrays.keys() - {ABOUT})):
        what = "lacks an array" if name in leaves else "has an array too many"
        raise ValueError(f"{by}: what was stored {what}: {name}.")
    checked = {}
    for name, leaf in leaves.items():
        array = _with_dtype(arrays[name], form(leaf).dtype)
        wanted, got = described(form(leaf)), _what(array)
        # An integer of Python that needs the last bit is stored without a sign.
        is_integer = type(leaf) is int and got in ("int64[]", "uint64[]")
        if wanted != got and not is_integer:
            raise ValueError(f"{by}: the array {name} should be {wanted} and is {got}.")
        checked[name] = array
    return checked


def _with_dtype(array: Any, dtype: Any) -> Any:
    """The array as bfloat16 if it is, and lost that in a file of NumPy."""
    is_void = isinstance(array, np.ndarray) and array.dtype == np.dtype("V2")
    return array.view(dtype) if is_void and dtype.itemsize == 2 else array


def _what(x: Any) -> str:
    return described(x) if is_array(x) else f"a {type(x).__name__}"


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/") or "leaf"


def _named(tree: Any) -> dict[str, Any]:
    # A file of NumPy, for one, is a mapping and no pytree.
    tree = dict(tree) if isinstance(tree, Mapping) else tree
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {_name(path): leaf for path, leaf in leaves}


def _leaves(tree: Any) -> dict[str, Any]:
    """The arrays of a pytree, by their paths."""
    by_path: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if is_array(leaf):
            name = _name(path)
            if name in by_path or name in _KEPT:
                raise ValueError(
                    f"to_storable: the name {name!r} belongs to another array, or to what a file "
                    "says of itself. Rename a key of the pytree."
                )
            by_path[name] = leaf
    return by_path


# --- what the arrays were ---------------------------------------------------------------


def _about(tree: Any) -> dict[str, Any]:
    nodes, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_value)
    return {
        "version": VERSION,
        "values": {
            _name(path): " ".join(_texts(jax.tree_util.tree_structure(node)))
            for path, node in nodes
            if is_value(node)
        },
        "leaves": {name: described(leaf) for name, leaf in _leaves(tree).items()},
    }


def _texts(treedef: Any) -> Iterator[str]:
    """The types in a value, with their metadata."""
    data = treedef.node_data()
    if data is not None and data[0] not in (dict, list, tuple, type(None)):
        yield _without_addresses(_text(*data))
    for child in treedef.children():
        yield from _texts(child)


def _text(cls: type, metadata: Any) -> str:
    fields = getattr(cls, "__dataclass_fields__", None)
    if not issubclass(cls, Value) or not isinstance(metadata, tuple) or fields is None:
        return f"{cls.__qualname__}({metadata!r})"
    static = [f for f in fields.values() if f.metadata.get("static", False)]
    # A field that has its default is left out, so that a type may get more fields. One that the
    # constructor does not take follows from the others.
    shown = [
        f"{f.name}={content!r}"
        for f, content in zip(static, metadata[1:], strict=True)
        if f.init and content is not f.default and content != f.default
    ]
    return f"{cls.__qualname__}({', '.join(shown)})"


def _without_addresses(text: str) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def _entry(by: str, about: Any) -> dict[str, Any]:
    """The contents of the entry of `to_storable` that describes the arrays."""
    try:
        entry = json.loads(bytes(np.asarray(about, np.uint8)))
        version, parts = entry["version"], (entry["values"], entry["leaves"])
    except (TypeError, ValueError, KeyError) as error:
        raise ValueError(
            f"{by}: this was not stored by jaxrewrite.checkpoints: the entry {ABOUT!r}, which "
            "says what the arrays were, is missing or damaged."
        ) from error
    if version != VERSION or not all(isinstance(part, dict) for part in parts):
        raise ValueError(
            f"{by}: this was stored in version {version} of the format; this jaxrewrite reads "
            f"version {VERSION}."
        )
    return entry


def _by_name(about: Mapping[str, Any]) -> dict[str, str]:
    """What the arrays and values are. A value that is the whole may have an array of its name."""
    leaves, values = about["leaves"], about["values"]
    both = {name: f"{values[name]} of {leaves[name]}" for name in leaves.keys() & values}
    return {**leaves, **values, **both}


def _differences(stored: Mapping[str, str], wanted: Mapping[str, str]) -> Iterator[str]:
    for name in sorted({*stored, *wanted}):
        if name not in stored:
            yield f"{name} is missing there"
        elif name not in wanted:
            yield f"{name} is not in `like`"
        elif stored[name] != wanted[name]:
            yield f"{name} is {stored[name]} there and {wanted[name]} in `like`"
