"""Programs on operands, in each mode, against dense code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax

from .._core.avals import same_treedef
from ._oracle import MODES, Function, difference, difference_in_type, on_arrays, on_values
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
    got, want = (_results(fns, ready, mode != "eager") for fns in (implicit, dense))
    for name in ready:
        found[name] = _outcome(got[name], want[name], tolerance, mode)
    return found


def _outcome(got: Any, want: Any, tolerance: float | None, mode: str) -> Outcome:
    if isinstance(want, Exception):
        return _dense_raises(want)
    if isinstance(got, Exception):
        return Outcome(told(got), got)
    return Outcome(difference(got, want, tolerance, mode) or "")


def _results(
    fns: Mapping[str, Function], operands: Mapping[str, Any], compiled: bool
) -> dict[str, Any]:
    """The result of each function on its operands, or the error that it raises."""

    def together(operands: Mapping[str, Any]) -> dict[str, Any]:
        return {name: fns[name](*xs) for name, xs in operands.items()}

    if compiled:
        try:
            return jax.block_until_ready(jax.jit(together)(operands))
        except Exception:  # noqa: BLE001 - one by one, they tell which of them raises
            pass
    return {name: _result(fns[name], xs) for name, xs in operands.items()}


def _result(fn: Function, operands: Any) -> Any:
    try:
        return jax.block_until_ready(fn(*operands))
    except Exception as error:  # noqa: BLE001 - the user's rules raise anything
        return error


def _dense_raises(error: Exception) -> Outcome:
    return Outcome(f"dense code raises {type(error).__name__}", error, True)


def _staged(implicit: Function, dense: Function, operands: Any) -> Outcome:
    """Trace both; where dense code does not run, nothing is promised."""
    try:
        want = jax.eval_shape(dense, *operands)
    except Exception as error:  # noqa: BLE001 - dense code may reject the operands
        return _dense_raises(error)
    if not jax.tree.leaves(want):
        return Outcome("there is nothing to differentiate", is_skipped=True)
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
