"""Primitives that need no dense operands: identities, and primitives that move whole arrays.

Such a primitive can be applied to each leaf of a value in place of the array. It is applied to
the leaves if the type has no ``default`` for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.tree_util import tree_leaves

from .._core.rewrite import IDENTITIES, leafwise_handlers
from .._core.site import Site
from .._core.value import Operand
from .._placement.leafwise import constrain, device_put, reshard, vary


def _sink(site: Site, operands: Sequence[Operand]) -> list[Any]:
    """Apply a primitive that takes one operand and has no result to each leaf."""
    for leaf in tree_leaves(list(operands)):
        site.emit([leaf], [])
    return []


leafwise_handlers.update(
    dict.fromkeys((*IDENTITIES, "xla_metadata_value"), Site.map_leaves)
)
leafwise_handlers.update(
    dce_sink=_sink,
    device_put=device_put,
    sharding_constraint=constrain,
    reshard=reshard,
    pvary=vary,
)
