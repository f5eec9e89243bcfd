"""The structure of a loop's carry: the least fixed point of joining.

A body is rewritten for a carry of given structures, and returns a carry that may have other
structures. Each slot that differs takes the join of the two, and the body is rewritten
again. If no structure differs, which is the common case, the body is rewritten once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .._draft import Restaged
from .._join import Coerce, Structure, dense_structure, fits, join, structure_of
from .._rewrite import Scope
from .._site import Site
from .._value import is_value


# How often a slot may change. If the joins of a type never end, for example because a rank
# grows with each turn, the slot becomes dense.
_MAX_CHANGES = 4

Rewrite = Callable[[Sequence[Structure], Coerce | None], Restaged]


def body_inputs(jaxpr: Any, operands: Sequence[Any]) -> list[Any]:
    """The operands of a body: values, and the aval of the body's variable for an array."""
    return [
        operand if is_value(operand) else aval
        for operand, aval in zip(operands, jaxpr.in_avals, strict=True)
    ]


def fixed_point(
    scope: Scope, site: Site, initial: Sequence[Structure], rewrite: Rewrite
) -> tuple[list[Structure], Restaged]:
    """Find structures that a loop's carry keeps, and the body for them.

    Parameters
    ----------
    initial
        The structures of the operands of the first turn.
    rewrite
        Rewrites the body for a carry of given structures. The carry comes first among the
        results of the body.
    """
    carry = list(initial)
    changes = [0] * len(carry)
    while True:
        body = rewrite(carry, None)
        results = list(map(structure_of, body.results()))
        joined = [
            own
            if own == result or changes[i] > _MAX_CHANGES
            # The join must be possible for the initial operands, too.
            else _rise(scope, site, initial[i], own, result, changes[i])
            for i, (own, result) in enumerate(zip(carry, results, strict=False))
        ]
        if joined == carry:
            break
        for i, (before, after) in enumerate(zip(carry, joined, strict=True)):
            if before != after:
                changes[i] = changes[i] + 1 if is_value(after.like()) else _MAX_CHANGES + 1
                if scope.recorder is not None:
                    scope.recorder.joined(f"carry {i}", before.like(), after.like())
        carry = joined
    if results[: len(carry)] != carry:
        rest = [None] * (len(results) - len(carry))
        body = rewrite(carry, Coerce((*carry, *rest)))
    return carry, body


def _rise(
    scope: Scope,
    site: Site,
    initial: Structure,
    own: Structure,
    result: Structure,
    changes: int,
) -> Structure:
    if changes < _MAX_CHANGES:
        joined = join(scope, own, result, site)
        if fits(scope, initial, joined, site):
            return joined
    return dense_structure(own)
