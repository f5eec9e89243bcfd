"""Numbers of a program that choose a branch.

`lax.switch` by a number of Python, or a flag that is ``True``, is an equation with all branches,
of which one ever runs. If the function with the branches is under `jax.jit`, the number is an
operand of the call. Beside values it becomes a literal there, so that the branch is known.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np

from .. import _compat
from .._compat import Jaxpr, Literal, Var
from .._core.hooks import OperandsHook, register_operands_hook
from .._core.value import is_value
from .adopting import is_inexact
from .written import CALLS


class Choosing(OperandsHook):
    """Gives bodies beside values the numbers that choose among branches."""

    primitives: Container[str] = ()

    def __init__(self, analysis: Any) -> None:
        """It is shown no equations, and so needs no analysis."""

    @classmethod
    def known(cls, jaxpr: Any, operands: Sequence[Any]) -> Mapping[int, Literal]:
        literals = {i: x for i, x in enumerate(operands) if _can_choose(x)}
        if not literals or not any(map(is_value, operands)):
            return {}
        inner, consts = _compat.open_jaxpr(jaxpr)
        invars = inner.invars[len(consts) :]
        return {i: x for i, x in literals.items() if _chooses(inner, invars[i])}


register_operands_hook(Choosing)


def _can_choose(operand: Any) -> bool:
    return type(operand) is Literal and not np.ndim(operand.val) and not is_inexact(operand)


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
        elif name in CALLS:
            inner, consts = _compat.open_jaxpr(eqn.params[CALLS[name]])
            if any(_chooses(inner, inner.invars[len(consts) + i]) for i in at):
                return True
    return False
