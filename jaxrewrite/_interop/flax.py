"""Values in `flax.serialization`, which asks for functions of each class by itself.

Flax is not imported here. Its table is filled as it is imported, be that before or after a
class of values is defined.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from jax.tree_util import keystr, tree_flatten_with_path, tree_unflatten


_MODULE = "flax.serialization"

_classes: list[type] = []


def register(cls: type) -> None:
    """Let Flax serialise the values of a class, now or once it is imported."""
    _classes.append(cls)
    module = sys.modules.get(_MODULE)
    if module is not None:
        _register_in(module, cls)


def _register_in(module: ModuleType, cls: type) -> None:
    if not module.is_serializable(cls):
        module.register_serialization_state(cls, _to_state_dict, _from_state_dict)


def _to_state_dict(value: Any) -> dict[str, Any]:
    flax: Any = sys.modules[_MODULE]
    names, fields, _ = _fields(value)
    return {name: flax.to_state_dict(x) for name, x in zip(names, fields, strict=True)}


def _from_state_dict(value: Any, state: dict[str, Any]) -> Any:
    flax: Any = sys.modules[_MODULE]
    names, fields, treedef = _fields(value)
    told = {name for name, x in zip(names, fields, strict=True) if x is not None}
    stored = {name for name, x in state.items() if x is not None}
    if told != stored or not {*names} <= {*state}:
        raise ValueError(
            f"The state dict of a {type(value).__name__} has the fields {sorted(stored)}, and "
            f"the target has {sorted(told)}, at path {flax.current_path()}."
        )
    each = zip(names, fields, strict=True)
    return tree_unflatten(
        treedef, [flax.from_state_dict(x, state[name], name=name) for name, x in each]
    )


def _fields(value: Any) -> tuple[list[str], list[Any], Any]:
    """The names and contents of the fields that are not metadata; None among them."""
    paths, treedef = tree_flatten_with_path(value, is_leaf=lambda x: x is not value)
    return [keystr(path, simple=True) for path, _ in paths], [x for _, x in paths], treedef


class _Watch(importlib.abc.MetaPathFinder):
    """Finds Flax's module by the other finders, and fills its table after its import."""

    _is_asking = False

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != _MODULE or self._is_asking:
            return None
        self._is_asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_asking = False
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            for cls in _classes:
                _register_in(module, cls)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if _MODULE not in sys.modules:
    sys.meta_path.insert(0, _Watch())
