"""Programs on operands, in each mode, against dense code."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun
from jax.tree_util import tree_leaves, tree_structure, tree_unflatten

import jaxrewrite

from ._culprits import Culprits
from ._oracle import (
    MODES,
    Function,
    difference,
    difference_by,
    difference_in_type,
    greatest,
    on_arrays,
    on_values,
    stacked_leaves,
)
from ._outcome import Findings, error_summary


class Program(NamedTuple):
    """A function, its operands, and whether the derivative of dense code is the only one."""

    primitive: str
    fn: Function
    operands: Sequence[Any]
    is_smooth: bool = True


def mapped_inside(program: Program, stacks: Mapping[int, Any]) -> Program | None:
    """A program that maps another one over stacks of its operands, ``None`` if it has none.

    ``stacks`` has a value's stack, or ``None`` for a value that is to be the same each time, by
    its identity.
    """
    stacked = [stacks[id(x)] if id(x) in stacks else _stack(x) for x in program.operands]
    axes = [None if stack is None else 0 for stack in stacked]
    if all(axis is None for axis in axes):
        return None
    operands = [
        x if y is None else y for x, y in zip(program.operands, stacked, strict=True)
    ]
    return program._replace(fn=jax.vmap(program.fn, axes), operands=operands)


def _stack(operand: Any) -> Any:
    # A predicate that is mapped would make a branch a choice.
    is_predicate = jnp.issubdtype(jnp.result_type(operand), jnp.bool_)
    return None if is_predicate and not jnp.ndim(operand) else stacked_leaves(operand)


class Outcome(NamedTuple):
    """The outcome of a program in a mode: ``why`` is empty if it agrees with dense code.

    ``by``: a line that names the user's functions that the program calls.
    """

    why: str = ""
    error: Exception | None = None
    is_skipped: bool = False
    by: str = ""


class _Staged(NamedTuple):
    """A function as a jaxpr, with its operands, so that it is traced only once."""

    jaxpr: Any
    leaves: list[Any]
    results: Any

    @staticmethod
    def of(fn: Function, operands: Any) -> _Staged:
        jaxpr, results = jax.make_jaxpr(fn, return_shape=True)(*operands)
        return _Staged(jaxpr, tree_leaves(operands), results)

    def __call__(self, leaves: Any) -> Any:
        return tree_unflatten(
            tree_structure(self.results), jaxpr_as_fun(self.jaxpr)(*leaves)
        )


def compare(
    programs: Mapping[str, Program],
    mode: str,
    *,
    rules: Any = None,
    tolerance: float | None = None,
    culprits: Culprits | None = None,
    are_finite: bool = True,
) -> dict[str, Outcome]:
    """The outcome of each program in one mode.

    All programs that can be traced are compiled at once. ``culprits`` name the user's functions
    in the outcome of a program that fails. ``are_finite`` tells whether all numbers of the
    operands are.
    """
    change = MODES[mode]
    outcomes: dict[str, Outcome] = {}
    ready: dict[str, tuple[_Staged, _Staged]] = {}
    for name, program in programs.items():
        fns = change(on_values(program.fn, rules)), change(on_arrays(program.fn))
        staged = _stage(*fns, tuple(program.operands))
        if isinstance(staged, Outcome):
            outcomes[name] = staged
        else:
            outcomes[name], ready[name] = Outcome(), staged
    if mode == "eager":
        implicit = _eager(programs, ready, functools.partial(on_values, rules=rules))
        dense = _eager(programs, ready, on_arrays)
    else:
        staged_programs = {
            (name, i): pair[i] for name, pair in ready.items() for i in (0, 1)
        }
        results = _results(staged_programs)
        implicit, dense = ({name: results[name, i] for name in ready} for i in (0, 1))
    scales: dict[int, float] = {}
    for name in ready:
        least = _least(programs[name].operands, scales)
        outcomes[name] = _outcome(
            implicit[name], dense[name], tolerance, mode, are_finite, least
        )
    if culprits is not None:
        for name, outcome in outcomes.items():
            if outcome.why and not outcome.is_skipped:
                run = change(on_values(programs[name].fn, rules))
                by = culprits.of(run, programs[name].operands)
                outcomes[name] = outcome._replace(by=by)
    return outcomes


def _least(operands: Sequence[Any], scales: dict[int, float]) -> float:
    """The least scale of a result: 1, or the numbers of the operand that has the smallest.

    Programs share operands: ``scales`` has those of the operands so far, by identity.
    """
    for x in operands:
        if id(x) not in scales:
            scales[id(x)] = greatest(jaxrewrite.materialise(x))
    return min(filter(None, [1.0, *(scales[id(x)] for x in operands)]))


def _outcome(
    implicit: Any,
    dense: Any,
    tolerance: float | None,
    mode: str,
    are_finite: bool,
    least: float,
) -> Outcome:
    if isinstance(dense, Exception):
        return _dense_raises(dense)
    if isinstance(implicit, Exception):
        return Outcome(error_summary(implicit), implicit)
    return Outcome(difference(implicit, dense, tolerance, mode, are_finite, least) or "")


def _eager(
    programs: Mapping[str, Program], names: Any, run: Callable[[Function], Function]
) -> dict[str, Any]:
    def result(program: Program) -> Any:
        return _result(lambda: run(program.fn)(*program.operands))

    return {name: result(programs[name]) for name in names}


# The programs are many and small: compiling them well takes longer than running them.
_QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def _results(staged: Mapping[Any, _Staged]) -> dict[Any, Any]:
    """The result of each program, or the error that it raises.

    They are one compiled program, which computes common parts once.
    """
    if not staged:
        return {}

    def together(arrays: Mapping[int, Any]) -> list[Any]:
        return [fn([arrays[id(x)] for x in fn.leaves]) for fn in staged.values()]

    arrays = {id(x): x for fn in staged.values() for x in fn.leaves}
    results = _result(lambda: jax.jit(together, compiler_options=_QUICKLY)(arrays))
    if not isinstance(results, Exception):
        return dict(zip(staged, results, strict=True))
    if len(staged) == 1:
        return dict.fromkeys(staged, results)
    # Halves tell which of them raises.
    names = [*staged]
    halves = names[: len(names) // 2], names[len(names) // 2 :]
    first, second = (_results({name: staged[name] for name in half}) for half in halves)
    return first | second


def _result(call: Callable[[], Any]) -> Any:
    try:
        return jax.block_until_ready(call())
    except Exception as error:  # noqa: BLE001 - the user's rules raise anything
        return error


def _dense_raises(error: Exception) -> Outcome:
    return Outcome(f"dense code raises {type(error).__name__}", error, True)


def _stage(
    implicit: Function, dense: Function, operands: Any
) -> Outcome | tuple[_Staged, _Staged]:
    """Trace both; where dense code does not run, nothing is promised."""
    try:
        staged_dense = _Staged.of(dense, operands)
    except Exception as error:  # noqa: BLE001 - dense code may reject the operands
        return _dense_raises(error)
    if not tree_leaves(staged_dense.results):
        return Outcome("there is nothing to differentiate", is_skipped=True)
    try:
        staged_implicit = _Staged.of(implicit, operands)
    except Exception as error:  # noqa: BLE001 - the user's rules raise anything
        return Outcome(error_summary(error), error)
    results = staged_implicit.results, staged_dense.results
    why = difference_by(difference_in_type, *results)
    return Outcome(why) if why else (staged_implicit, staged_dense)


def note(findings: Findings, check: str, outcome: Outcome, reproduce: str) -> None:
    """Put an outcome among the findings."""
    if outcome.is_skipped:
        findings.skip(check, outcome.why)
    elif outcome.why:
        why = f"{outcome.why}\n{outcome.by}" if outcome.by else outcome.why
        findings.fail(check, why, reproduce, outcome.error)
    else:
        findings.passed(check)
