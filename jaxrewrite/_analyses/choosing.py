"""Numbers of a program that choose a branch.

`lax.switch` by a number of Python, or a flag that is ``True``, is an equation with all branches,
of which one ever runs. If the function with the branches is under `jax.jit`, the number is an
operand of the call. Beside values it is known there, so that the branch is.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from .. import _compat
from .._compat import Jaxpr, Var
from .._core.hooks import Analysis, OperandsHook, operands_hooks
from .._core.value import is_value
from .adopting import is_inexact
from .calls import ALL_CALLS, called
from .written import Fact, Written


class Choosing(OperandsHook):
    """Gives bodies beside values the numbers that choose among branches."""

    primitives: Container[str] = ()

    def __init__(self, analysis: Callable[[type], Any]) -> None:
        self._analysis = analysis

    def known(
        self, jaxpr: Any, operands: Sequence[Any]
    ) -> Mapping[type[Analysis], Mapping[int, Fact]]:
        if not any(map(is_value, operands)):
            return {}
        facts = self._analysis(Written).among(operands)
        inner, consts = _compat.open_jaxpr(jaxpr)
        invars = inner.invars[len(consts) :]
        choosing = {
            i: fact
            for i, fact in facts.items()
            if fact.is_number and _may_choose(operands[i]) and _chooses(inner, invars[i])
        }
        return {Written: choosing}


operands_hooks.append(Choosing)


def _may_choose(atom: Any) -> bool:
    return not atom.aval.shape and not is_inexact(atom)


def _chooses(jaxpr: Jaxpr, number: Var) -> bool:
    """Whether an operand of a jaxpr is the index of branches, as it is or clamped."""
    same = {number}
    for eqn in jaxpr.eqns:
        at = [i for i, x in enumerate(eqn.invars) if type(x) is Var and x in same]
        if not at:
            continue
        name = eqn.primitive.name
        if name in ("convert_element_type", "clamp"):
            same.update(eqn.outvars)
        elif name == "cond" and at[0] == 0:
            return True
        elif name in ALL_CALLS:
            inner, consts = _compat.open_jaxpr(called(eqn))
            if any(_chooses(inner, inner.invars[len(consts) + i]) for i in at):
                return True
    return False
