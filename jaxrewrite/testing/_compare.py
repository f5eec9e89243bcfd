"""Programs on operands, in each mode, against dense code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax

from .._avals import same_treedef
from ._oracle import (
    MODES,
    Function,
    difference,
    difference_in_type,
    on_arrays,
    on_values,
)
from ._outcome import Findings, told


class Program(NamedTuple):
    """A function, its operands, and whether the derivative of dense code is the only one."""

    primitive: str
    fn: Function
    operands: Sequence[Any]
    is_smooth: bool = True


class Outcome(NamedTuple):
    """What became of a program in a mode: nothing is said if it agrees with dense code."""

    why: str = ""
    error: Exception | None = None
    is_skipped: bool = False


def compare(
    programs: Mapping[str, Program],
    mode: str,
    *,
    rules: Any = None,
    tolerance: float | None = None,
) -> dict[str, Outcome]:
    """The outcome of each program in one mode.

    All that can be traced are compiled at once.
    """
    change = MODES[mode]
    implicit = {name: change(on_values(p.fn, rules)) for name, p in programs.items()}
    dense = {name: change(on_arrays(p.fn)) for name, p in programs.items()}
    operands = {name: tuple(p.operands) for name, p in programs.items()}
    found = {
        name: _staged(implicit[name], dense[name], xs) for name, xs in operands.items()
    }
    ready = {name: xs for name, xs in operands.items() if not found[name].why}
    if mode == "eager":
        together = {
            name: (implicit[name](*xs), dense[name](*xs)) for name, xs in ready.items()
        }
    else:
        got, want = _run(implicit, ready), _run(dense, ready)
        together = {name: (got[name], want[name]) for name in ready}
    for name, (g, w) in together.items():
        found[name] = Outcome(difference(g, w, tolerance, mode) or "")
    return found


def _run(fns: Mapping[str, Function], operands: Mapping[str, Any]) -> dict[str, Any]:
    """All functions on their operands, as one compiled program."""
    return jax.jit(lambda operands: {k: fns[k](*xs) for k, xs in operands.items()})(
        operands
    )


def _staged(implicit: Function, dense: Function, operands: Any) -> Outcome:
    """Trace both; where dense code does not run, nothing is promised."""
    try:
        want = jax.eval_shape(dense, *operands)
    except Exception as error:  # noqa: BLE001 - dense code may reject the operands
        return Outcome(f"dense code raises {type(error).__name__}", error, True)
    try:
        got = jax.eval_shape(implicit, *operands)
    except Exception as error:  # noqa: BLE001 - the user's rules raise anything
        return Outcome(told(error), error)
    return Outcome(_difference_of_types(got, want))


def _difference_of_types(got: Any, want: Any) -> str:
    (gots, treedef), (wants, other) = map(jax.tree.flatten, (got, want))
    if not same_treedef(treedef, other):
        return f"the result is {treedef} where dense code has {other}"
    differences = (difference_in_type(g, w) for g, w in zip(gots, wants, strict=True))
    return next(filter(None, differences), "")


def note(findings: Findings, check: str, found: Outcome, reproduce: str) -> None:
    """Put an outcome among the findings."""
    if found.is_skipped:
        findings.skip(check, found.why)
    elif found.why:
        findings.fail(check, found.why, reproduce, found.error)
    else:
        findings.passed(check)
