"""Primitives for which values need not be dense: the list, and those that are identities.

They return their operands unchanged, as mathematics goes, or move them as a whole, and
what can be done to the array can be done to its leaves. They are asked after a type's
``default``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.tree_util import tree_leaves

from ._placement import constrain, device_put, reshard
from ._rewrite import Scope, keepers
from ._site import Site


# The primitives that return what they are given.
IDENTITIES = ("copy", "copy_p", "name", "optimization_barrier", "pvary", "stop_gradient")


def _sink(scope: Scope, site: Site, operands: Sequence[Any]) -> list[Any]:
    """Apply a primitive that takes one operand and has no result to each leaf."""
    for leaf in tree_leaves(list(operands)):
        scope.copy(site, [leaf], [])
    return []


keepers.update(dict.fromkeys((*IDENTITIES, "xla_metadata_value"), Scope.map_leaves))
keepers.update(
    dce_sink=_sink,
    device_put=device_put,
    sharding_constraint=constrain,
    reshard=reshard,
)
