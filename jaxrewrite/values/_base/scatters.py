"""The primitives that write entries into an array at indices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


SCATTER = ("scatter", "scatter-add", "scatter-sub", "scatter-max", "scatter-min")
"""Updates that are entries of the array, or are added to some; ``scatter-mul`` is another."""


def applies_function(primitive: Any, params: Mapping[str, Any]) -> bool:
    """Whether a scatter is ``x.at[i].apply(f)``, which has the name of ``x.at[i].set(y)``."""
    return primitive.name == "scatter" and params["update_jaxpr"] is not None
