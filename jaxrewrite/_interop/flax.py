"""Values in `flax.serialization`, which asks for functions of each class by itself.

Flax is not imported here. Its table gets the classes of values when a class is defined or, if
Flax is imported after that, when the next value is made.
"""

from __future__ import annotations

import sys
from typing import Any

from jax.tree_util import keystr, tree_flatten_with_path, tree_unflatten

from .._core import hooks


_MODULE = "flax.serialization"


class _Serialisation:
    """The hook for classes, which fills the table of Flax."""

    def is_ready(self) -> bool:
        # A module that is being imported is listed before its functions exist.
        return hasattr(sys.modules.get(_MODULE), "register_serialization_state")

    def defined(self, cls: type) -> None:
        flax: Any = sys.modules[_MODULE]
        if not flax.is_serializable(cls):
            flax.register_serialization_state(cls, _to_state_dict, _from_state_dict)


def _to_state_dict(value: Any) -> dict[str, Any]:
    flax: Any = sys.modules[_MODULE]
    names, fields, _ = _fields(value)
    return {name: flax.to_state_dict(x) for name, x in zip(names, fields, strict=True)}


def _from_state_dict(value: Any, state: dict[str, Any]) -> Any:
    flax: Any = sys.modules[_MODULE]
    names, fields, treedef = _fields(value)
    present = {name for name, x in zip(names, fields, strict=True) if x is not None}
    stored = {name for name, x in state.items() if x is not None}
    if present != stored or not {*names} <= {*state}:
        raise ValueError(
            f"The state dict of a {type(value).__name__} has the fields {sorted(stored)}, and "
            f"the target has {sorted(present)}, at path {flax.current_path()}."
        )
    each = zip(names, fields, strict=True)
    return tree_unflatten(
        treedef, [flax.from_state_dict(x, state[name], name=name) for name, x in each]
    )


def _fields(value: Any) -> tuple[list[str], list[Any], Any]:
    """The names and contents of the fields that are not metadata; None among them."""
    paths, treedef = tree_flatten_with_path(value, is_leaf=lambda x: x is not value)
    return [keystr(path, simple=True) for path, _ in paths], [x for _, x in paths], treedef


hooks.add_class_hook(_Serialisation())
