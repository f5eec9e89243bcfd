"""Programs on operands, in each mode, against dense code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun
from jax.tree_util import tree_flatten, tree_leaves, tree_structure, tree_unflatten

from .._core.avals import same_treedef
from ._culprits import Culprits
from ._oracle import (
    MODES,
    Function,
    difference,
    difference_in_type,
    on_arrays,
    on_values,
    stacked_leaves,
)
from ._outcome import Findings, told


class Program(NamedTuple):
    """A function, its operands, and whether the derivative of dense code is the only one."""

    primitive: str
    fn: Function
    operands: Sequence[Any]
    is_smooth: bool = True


def mapped_inside(program: Program, stacks: Mapping[int, Any]) -> Program | None:
    """A program that maps this one over stacks of its operands, ``None`` if it has none.

    ``stacks`` has a value's stack, or ``None`` for a value that is to be the same each time, by
    its identity.
    """
    given = [stacks[id(x)] if id(x) in stacks else _stack(x) for x in program.operands]
    axes = [None if stack is None else 0 for stack in given]
    if all(axis is None for axis in axes):
        return None
    operands = [x if y is None else y for x, y in zip(program.operands, given, strict=True)]
    return program._replace(fn=jax.vmap(program.fn, axes), operands=operands)


def _stack(operand: Any) -> Any:
    # A predicate that is mapped would make a branch a choice.
    is_predicate = jnp.issubdtype(jnp.result_type(operand), jnp.bool_)
    return None if is_predicate and not jnp.ndim(operand) else stacked_leaves(operand)


class Outcome(NamedTuple):
    """What became of a program in a mode: nothing is said if it agrees with dense code.

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
) -> dict[str, Outcome]:
    """The outcome of each program in one mode.

    All that can be traced are compiled at once. ``culprits`` name the user's functions in
    the outcome of a program that fails.
    """
    change = MODES[mode]
    found: dict[str, Outcome] = {}
    ready: dict[str, tuple[_Staged, _Staged]] = {}
    for name, program in programs.items():
        fns = change(on_values(program.fn, rules)), change(on_arrays(program.fn))
        staged = _stage(*fns, tuple(program.operands))
        if isinstance(staged, Outcome):
            found[name] = staged
        else:
            found[name], ready[name] = Outcome(), staged
    if mode == "eager":
        got, want = (
            _eager(programs, ready, run) for run in (on_values_by(rules), on_arrays)
        )
    else:
        both = {(name, i): pair[i] for name, pair in ready.items() for i in (0, 1)}
        results = _results(both)
        got, want = ({name: results[name, i] for name in ready} for i in (0, 1))
    for name in ready:
        found[name] = _outcome(got[name], want[name], tolerance, mode)
    if culprits is not None:
        for name, outcome in found.items():
            if outcome.why and not outcome.is_skipped:
                run = change(on_values(programs[name].fn, rules))
                by = culprits.of(run, programs[name].operands)
                found[name] = outcome._replace(by=by)
    return found


def on_values_by(rules: Any) -> Callable[[Function], Function]:
    return lambda fn: on_values(fn, rules)


def _outcome(got: Any, want: Any, tolerance: float | None, mode: str) -> Outcome:
    if isinstance(want, Exception):
        return _dense_raises(want)
    if isinstance(got, Exception):
        return Outcome(told(got), got)
    return Outcome(difference(got, want, tolerance, mode) or "")


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

    They are one compiled program, which computes what several of them have in common once.
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
        want = _Staged.of(dense, operands)
    except Exception as error:  # noqa: BLE001 - dense code may reject the operands
        return _dense_raises(error)
    if not tree_leaves(want.results):
        return Outcome("there is nothing to differentiate", is_skipped=True)
    try:
        got = _Staged.of(implicit, operands)
    except Exception as error:  # noqa: BLE001 - the user's rules raise anything
        return Outcome(told(error), error)
    why = _difference_of_types(got.results, want.results)
    return Outcome(why) if why else (got, want)


def _difference_of_types(got: Any, want: Any) -> str:
    (gots, treedef), (wants, other) = map(tree_flatten, (got, want))
    if not same_treedef(treedef, other):
        return f"the result is {treedef} where dense code has {other}"
    differences = (difference_in_type(g, w) for g, w in zip(gots, wants, strict=True))
    return next(filter(None, differences), "")


def note(findings: Findings, check: str, found: Outcome, reproduce: str) -> None:
    """Put an outcome among the findings."""
    if found.is_skipped:
        findings.skip(check, found.why)
    elif found.why:
        why = f"{found.why}\n{found.by}" if found.by else found.why
        findings.fail(check, why, reproduce, found.error)
    else:
        findings.passed(check)
