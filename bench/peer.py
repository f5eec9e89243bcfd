"""Other libraries, where they are installed: Quax, with our values as its values, and Qwix."""

from __future__ import annotations

import importlib
from typing import Any

import jax

from .values import Lora, Zero


def quax_values() -> Any:
    """The module of Quax's values, or ``None`` without Quax."""
    return _with_others("quax_values")


def qwix_products() -> Any:
    """The module of Qwix's products, or ``None`` without Qwix."""
    return _with_others("qwix_products")


def _with_others(module: str) -> Any:
    try:
        return importlib.import_module(f".{module}", __package__)
    except ImportError:
        return None


def to_quax(peer: Any, tree: Any) -> Any:
    """Convert our values to those of Quax."""

    def convert(x: Any) -> Any:
        if isinstance(x, Lora):
            return peer.Lora(x.w, x.a, x.b)
        return peer.Zero(x.shape, x.dtype) if isinstance(x, Zero) else x

    return jax.tree.map(convert, tree, is_leaf=lambda x: isinstance(x, (Lora, Zero)))
