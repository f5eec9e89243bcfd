"""`explain`: stage and rewrite a program, run nothing, and report the rewriting."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

from jax.tree_util import tree_leaves

from .. import _compat
from .._compat import Jaxpr, JaxprEqn, Var
from .._core.annotations import name_of, written
from .._core.avals import aval_of
from .._core.dense import NO_RULE
from .._core.notices import collected
from .._core.record import (
    Body as RecordedBody,
    MadeDense as RecordedDense,
    Record,
    Recorder,
)
from .._core.rules import Entry, Ranked, Rule, is_of_a_library, type_of
from .._core.settings import Settings, current_settings
from .._core.site import describe_operand
from .._core.value import Value, is_value
from .._patterns.outline import pattern_p
from .._staging.stage import Arguments, stage
from .._staging.transform import (
    FilterSpec,
    Policy,
    Tables,
    check_function,
    function_tree,
    known_policy,
    tables_of,
)
from . import costs
from .report import Body, Declined, MadeDense, Report, RuleInfo, Step
from .text import with_short_location


def explain(
    fn: Callable[..., Any],
    filter_spec: FilterSpec = True,
    *,
    rules: Tables = None,
    materialise: Policy = "warn",
) -> Callable[..., Report]:
    """Make a function that reports how `transform` rewrites ``fn`` for its arguments.

    The program is staged and rewritten, and is not run. The report is what the rewriting
    itself records for each equation that meets a value. Nothing warns, and with
    ``materialise="forbid"`` all that would become dense is in the report.

    Parameters
    ----------
    fn, filter_spec, rules, materialise
        As for `transform`.

    Returns
    -------
    Callable
        A function of the arguments of ``fn`` that returns a `Report`.

    Raises
    ------
    TypeError, ValueError
        As `transform` raises them.

    Examples
    --------
    >>> import jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import Diagonal
    >>> v = Diagonal(jnp.arange(1.0, 101))
    >>> report = jaxrewrite.explain(lambda v, x: jnp.sin(v) @ x)(v, jnp.ones(100))
    >>> [(step.primitive, step.decision, step.results) for step in report.steps]
    [('sin', 'rule', ('Diagonal:f32[100,100]',)), ('dot_general', 'rule', ('f32[100]',))]
    >>> report.flops
    (30000.0, 200.0)
    """
    check_function("explain", fn)
    policy = known_policy(materialise)
    # A report has all that would become dense.
    while_explained = "allow" if isinstance(policy, str) else policy

    def report(*args: Any, **kwargs: Any) -> Report:
        settings = current_settings().refined(tables_of(rules), policy)
        recorder = Recorder()
        noting = settings._replace(policy=while_explained, recorder=recorder)
        note_rewriting(fn, args, kwargs, filter_spec, noting)
        program = recorder.programs[-1]
        passes = _note_passes(recorder)
        both = _dense_cost(recorder), costs.of_jaxpr(program.rewritten)
        live = frozenset[Any]().union(*(_equations(x.rewritten) for x in recorder.programs))
        arrays = [
            describe_operand(x)
            for x in tree_leaves((args, kwargs), is_leaf=is_value)
            if is_value(x) or _compat.is_array(x)
        ]
        return Report(
            getattr(fn, "__qualname__", type(fn).__name__),
            tuple(arrays),
            str(settings.policy),
            _steps(program, live, 1, _compat.current_location() or ("", 0, "")),
            (both[0].flops, both[1].flops),
            (both[0].bytes, both[1].bytes),
            len(program.rewritten.eqns),
            passes,
        )

    return report


def note_rewriting(
    fn: Callable[..., Any],
    args: Any,
    kwargs: Any,
    filter_spec: FilterSpec,
    noting: Settings,
) -> None:
    """Stage and rewrite a program for settings whose recorder takes note, and run nothing."""
    with collected():
        stage(Arguments(fn, (function_tree(fn), args, kwargs)), filter_spec, noting)


def _dense_cost(recorder: Recorder) -> costs.Cost:
    """The cost of a program, with the transforms that it calls itself as they were written.

    The program was staged with what they became. Those that a rule calls are in no program of the
    user, and have lists of records of their own.
    """
    *nested, program = recorder.programs
    cost = costs.of_jaxpr(program.original)
    for each in nested:
        if each.records is program.records:
            became = costs.of_jaxpr(each.rewritten)
            cost = cost.plus(costs.of_jaxpr(each.original)).plus(became.times(-1))
    return cost


# --- passes -----------------------------------------------------------------------------


def _note_passes(recorder: Recorder) -> tuple[str, ...]:
    """Note in the records which passes made or changed their equations; return all passes.

    A pass with primitives of its own, as the pass of patterns, is known by their equations.
    """
    changes = [change for change in recorder.passes if not change[0].primitives]
    makers: dict[Var, list[type]] = {}
    for pass_, before, after in changes:
        known = set(map(_identity, before.eqns))
        for eqn in after.eqns:
            if _identity(eqn) not in known:
                for var in eqn.outvars:
                    makers.setdefault(var, []).append(type(pass_))
    if makers:
        for program in recorder.programs:
            _note_makers(program.records, makers)
    return tuple(dict.fromkeys(type(pass_).__name__ for pass_, *_ in changes))


def _identity(eqn: JaxprEqn) -> Hashable:
    params = tuple((name, id(value)) for name, value in eqn.params.items())
    return eqn.primitive, params, *map(id, eqn.invars), *map(id, eqn.outvars)


def _note_makers(records: Iterable[Record], makers: Mapping[Var, list[type]]) -> None:
    for record in records:
        outvars = record.site.eqn.outvars
        record.changed_by[:0] = makers.get(outvars[0], ()) if outvars else ()
        _note_makers(record.inner, makers)
        for body in record.bodies:
            _note_makers(body.records, makers)


# --- steps ------------------------------------------------------------------------------


# A file, a line and a function.
SourceLine = tuple[str, int, str]


def _steps(
    body: RecordedBody, live: Set[Any], times: int | None, caller: SourceLine
) -> tuple[Step, ...]:
    """The steps of a body; steps without a line of their own get the caller's.

    ``live`` has the equations that are in the program around it, or in a nested transform.
    """
    live = live | _equations(body.rewritten)
    return tuple(_steps_of(body.records, live, times, caller))


def _equations(jaxpr: Jaxpr) -> Set[Any]:
    """The equations that a program has, by their identity and by their results."""
    return {id(eqn) for eqn in jaxpr.eqns} | {v for eqn in jaxpr.eqns for v in eqn.outvars}


def _steps_of(
    records: Iterable[Record], live: Set[Any], times: int | None, caller: SourceLine
) -> Iterator[Step]:
    """A step for each record; for a match where all patterns declined, its equations' steps.

    The last of these steps tells which patterns declined. Of a match on arrays alone there is a
    step for that. A rule may hold equations on arrays that were looked at as if there were values
    among them. They are no steps.
    """
    for record in records:
        if not _met_a_value(record):
            continue
        is_answered = record.site.primitive is not pattern_p or record.rule is not None
        if is_answered or not record.inner:
            yield _step(record, live, times, caller)
            continue
        record.inner[-1].declined[:0] = record.declined
        yield from _steps_of(record.inner, live, times, caller)


def _met_a_value(record: Record) -> bool:
    """Whether an equation, or one inside of it, met a value, was answered, or a pattern declined."""
    inside = itertools.chain(record.inner, *(body.records for body in record.bodies))
    return (
        record.way != "dense"
        or any(map(is_value, [*record.operands, *record.results]))
        or not all(isinstance(declined.rule, Rule) for declined in record.declined)
        or any(map(_met_a_value, inside))
    )


def _step(record: Record, live: Set[Any], times: int | None, caller: SourceLine) -> Step:
    eqn = record.site.eqn
    added = [
        new for new in record.added if id(new) in live or not live.isdisjoint(new.outvars)
    ]
    before = costs.of_equation(eqn)
    after = costs.total(map(costs.of_equation, added))
    line = record.site.line or caller
    return Step(
        eqn.primitive.name,
        *line,
        tuple(map(describe_operand, record.operands)),
        tuple(map(describe_operand, record.results)),
        _decision(record),
        _rule_info(record),
        tuple(_declined(record)),
        tuple(new.primitive.name for new in added),
        (before.flops, after.flops),
        (before.bytes, after.bytes),
        tuple(_made_dense(became_dense, record) for became_dense in record.dense),
        tuple(
            f"{slot}: {describe_operand(old)} became {describe_operand(new)}"
            for slot, old, new in record.joined
        ),
        times,
        tuple(_bodies(record, live, times, line)),
        tuple(_steps_of(record.inner, live, times, line)),
        _covered(eqn),
        tuple(dict.fromkeys(cls.__name__ for cls in record.changed_by)),
        record.choice,
    )


def _decision(record: Record) -> str:
    if record.site.primitive is not pattern_p:
        return record.way
    return "dense" if record.rule is None else "pattern"


def _covered(eqn: JaxprEqn) -> tuple[str, ...]:
    """The primitives of the equations that a match stands for."""
    if eqn.primitive is not pattern_p:
        return ()
    return tuple(covered.primitive.name for covered in eqn.params["jaxpr"].eqns)


def _declined(record: Record) -> Iterable[Declined]:
    """The rules that declined and are worth telling of."""
    types = tuple(map(type_of, record.operands))
    for rule, why in record.declined:
        if not isinstance(rule, Rule) or concerns(rule, types):
            yield Declined(info_of(rule), why)


def concerns(rule: Rule, types: tuple[type, ...]) -> bool:
    """Whether a rule is worth telling of for operands of these types.

    It names the type of a value among them, or a user wrote it for any value. A library's rules
    for any value are for annotated arrays, and decline where there is none.
    """
    if not is_of_a_library(rule):
        return True
    in_order = types[::-1] if rule.mirrored else types
    entries = (Entry(rule, *each) for each in rule.signature.combinations())
    return any(entry.outer(in_order) > -math.inf for entry in entries)


def _bodies(
    record: Record, live: Set[Any], times: int | None, line: SourceLine
) -> Iterable[Body]:
    turns = costs.trip_count(record.site.eqn)
    inside = None if times is None or turns is None else times * turns
    for i, body in enumerate(record.bodies):
        yield Body(_name_of(body, record, i), inside, _steps(body, live, inside, line))


def _name_of(body: RecordedBody, record: Record, i: int) -> str:
    """The name of the parameter that holds a body, with a number if it holds several."""
    for name, value in record.site.params.items():
        if value is body.original:
            return name
        if isinstance(value, tuple):
            for j, item in enumerate(value):
                if item is body.original:
                    return f"{name}[{j}]"
    return f"body {i}"


def _rule_info(record: Record) -> RuleInfo | None:
    is_pattern = record.site.primitive is pattern_p
    if (is_pattern or record.way == "rule") and record.rule is not None:
        return info_of(record.rule)
    if record.way == "default" and record.owner is not None:
        return info_of_default(record.owner)
    return None


def info_of_default(owner: type[Value]) -> RuleInfo:
    return _info(owner.default, f"{owner.__name__}.default")


def info_of(rule: Ranked) -> RuleInfo:
    return _info(rule.fn, name_of(rule.fn))


def _info(fn: Callable[..., Any], name: str) -> RuleInfo:
    code = getattr(written(fn), "__code__", None)
    if code is None:
        return RuleInfo(name, "", 0)
    return RuleInfo(name, code.co_filename, code.co_firstlineno)


# --- values that became dense ---------------------------------------------------------------


def _made_dense(became_dense: RecordedDense, record: Record) -> MadeDense:
    primitive, cls = record.site.primitive, type(became_dense.value)
    aval = aval_of(became_dense.value)
    why = became_dense.reason.on(primitive, cls)
    repair = became_dense.reason.remedy_of(primitive, cls)
    if became_dense.reason == NO_RULE:
        repair = missing_rule(primitive.name, record.operands)
        rules = dict.fromkeys(x.rule for x in record.declined)
        of_user = [x for x in rules if isinstance(x, Rule) and not is_of_a_library(x)]
        if of_user:
            declined = (with_short_location(info_of(x)) for x in of_user)
            why = f"{why} answers; {', '.join(declined)} declined"
    return MadeDense(cls.__name__, _compat.short(aval), costs.bytes_of(aval), why, repair)


def missing_rule(primitive: str, operands: Sequence[Any]) -> str:
    """The first lines of the rule that would answer for these operands."""
    names = list(map(_annotation, operands))
    letters = [f"x{i}" if len(names) > 3 else "xyz"[i] for i in range(len(names))]
    if len(set(names)) == 1 and len(names) > 3:
        parameters = f"*xs: {names[0]}"
    else:
        parameters = ", ".join(map("{}: {}".format, letters, names))
    return f'@jaxrewrite.register("{primitive}")\ndef _({parameters}, **params): ...'


def _annotation(operand: Any) -> str:
    """The annotation for an operand, or for operands of a type."""
    cls = operand if isinstance(operand, type) else type(operand)
    return cls.__name__ if issubclass(cls, Value) else "ArrayLike"
