"""Whether a compiler may split the arrays of a program over devices."""

from __future__ import annotations

import jax


def may_be_split() -> bool:
    """Whether a compiler may split arrays over devices.

    A loop over parts of an array that is split would gather it at each step.
    """
    return jax.device_count() > 1 and not is_manual()


def is_manual() -> bool:
    """Whether this is the program of one device, within `jax.shard_map`."""
    types = jax.sharding.get_abstract_mesh().axis_types
    return bool(types) and all(kind == jax.sharding.AxisType.Manual for kind in types)
