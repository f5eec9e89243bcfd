"""`rules` and `which`: the registered rules, and the rule that would answer."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any

from .._compat import Primitive
from .._core.annotations import Dense
from .._core.errors import add_note
from .._core.rewrite import handlers, leafwise_handlers, owner_of_default
from .._core.rules import (
    Entry,
    Rule,
    RulesInForce,
    foremost_of,
    look_up_primitive,
    type_of,
)
from .._core.settings import current_settings, use_settings
from .._core.value import Value
from .._functions.called import Called
from .._patterns.index import forms_of
from .._patterns.outline import PATTERNS, pattern_p
from .._patterns.pattern import Pattern
from .._patterns.rules import patterns_of
from .._signatures import checked, known
from .._staging.transform import Tables, tables_of
from .explain import concerns, explain, info_of, info_of_default, missing_rule
from .report import MadeDense, RuleInfo
from .text import located, table


@dataclasses.dataclass(frozen=True)
class Registered:
    """A rule for one primitive and one combination of types.

    Attributes
    ----------
    primitive
        The primitive's name.
    types
        The names of the types of its operands: ``"Array"`` for any dense operand, ``"any"``
        for whatever comes, ``"*Array"`` for any number of operands.
    rule
        The rule's name, file and line.
    precedence
        Rules of higher precedence are asked first.
    guarded
        Whether shapes or dtypes have to fit, too.
    """

    primitive: str
    types: tuple[str, ...]
    rule: RuleInfo
    precedence: int
    guarded: bool


class RuleList(tuple[Registered, ...]):
    """Registered rules, in the order in which they are asked. It prints as a table."""

    def __str__(self) -> str:
        rows = [
            (
                r.primitive,
                ", ".join(r.types) + (" (guarded)" if r.guarded else ""),
                with_location(r.rule),
            )
            for r in self
        ]
        return table(("primitive", "operands", "rule"), rows)


def rules(primitive: Any = None, type: Any = None) -> RuleList:  # noqa: A002
    """List the rules that are in force.

    Parameters
    ----------
    primitive
        A primitive or its name, or a function: only its rules. ``"pattern"``: only pattern rules. A value
        type, or a value: as ``type``.
    type
        A value type, or a value: only the rules with an annotation that takes this type.

    Returns
    -------
    RuleList
        A tuple of `Registered`, by primitive, and then those that are asked first.

    Raises
    ------
    ValueError
        If JAX has no primitive of this name.
    TypeError
        If ``primitive`` is none, and no type either, or ``type`` is not a value type.

    Examples
    --------
    >>> import jaxrewrite
    >>> from jaxrewrite.values import Diagonal
    >>> [rule.types for rule in jaxrewrite.rules("lu", Diagonal)]
    [('Matrix',)]
    """
    if type is None and _type_asked(primitive) is not None:
        primitive, type = None, primitive  # noqa: A001
    cls = _type_asked(type)
    if type is not None and cls is None:
        raise TypeError(f"rules: `type` must be a value type; got {type!r}.")
    wanted = None
    if primitive is not None:
        is_pattern = primitive == pattern_p.name
        wanted = pattern_p if is_pattern else look_up_primitive(primitive)
    registered: list[Registered] = []
    for rule_table in current_settings().rules.tables:
        entries: dict[Primitive, list[Entry]] = {}
        for p, entry in rule_table.entries():
            if (wanted is None or p is wanted) and (cls is None or _takes(entry, cls)):
                entries.setdefault(p, []).append(entry)
        for p in sorted(entries, key=lambda p: p.name):
            ordered = _most_specific_first(entries[p])
            registered += [_registered(p, entry) for entry in ordered]
        if wanted in (None, pattern_p):
            patterns = sorted(patterns_of(rule_table), key=lambda p: -p.precedence)
            for entry in (e for p in patterns for e in entries_of(p)):
                if cls is None or _takes(entry, cls):
                    registered.append(_registered(pattern_p, entry))
    return RuleList(dict.fromkeys(registered))  # Two of its types may be shown alike.


def _type_asked(x: Any) -> type[Value] | None:
    """The value type that a class or a value stands for."""
    cls: Any = x if inspect.isclass(x) else x.__class__
    return cls if issubclass(cls, Value) else None


def entries_of(pattern: Pattern) -> Iterator[Entry]:
    """The combinations of types that a pattern rule takes."""
    for types, guards in pattern.signature.combinations():
        yield Entry(pattern, types, guards)


def _patterns_with(primitive: Primitive) -> list[tuple[RuleInfo, str]]:
    """The pattern rules that look for this primitive and for others."""
    return [
        (info_of(pattern), "it is for several equations, of which this may be one")
        for _, pattern in current_settings().rules.passes().get(PATTERNS, ())
        if primitive in forms_of(pattern).core()
    ]


def _takes(entry: Entry, cls: type) -> bool:
    return any(issubclass(cls, choice) for choice in choices(entry) if choice is not object)


def choices(entry: Entry) -> Iterator[Any]:
    """The types that an entry takes, at any position."""
    for annotated in entry.types:
        yield from getattr(annotated, "variadic_type", None) or (annotated,)


def _most_specific_first(entries: list[Entry]) -> list[Entry]:
    """By precedence; within a precedence, each entry before all entries that it beats."""
    ordered: list[Entry] = []
    rest = sorted(entries, key=lambda entry: -entry.rule.precedence)
    while rest:
        first = next(
            e
            for e in rest
            if not any(o.rule.precedence == e.rule.precedence and o.beats(e) for o in rest)
        )
        ordered.append(first)
        rest = [e for e in rest if e is not first]
    return ordered


def _registered(primitive: Primitive, entry: Entry) -> Registered:
    rule = entry.rule
    return Registered(
        primitive.name,
        tuple(map(type_name, entry.types)),
        info_of(rule),
        rule.precedence,
        entry.is_guarded(),
    )


def type_name(annotated: Any) -> str:
    choices = getattr(annotated, "variadic_type", None)
    if choices is not None:
        return "*" + " | ".join(map(type_name, choices))
    if annotated is object:
        return "any"
    return "Array" if issubclass(annotated, Dense) else annotated.__name__


def with_location(rule: RuleInfo) -> str:
    return located(rule, rule.file)


# --- which rule would answer ------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Which:
    """What would answer for an equation on some operands. It prints as a short text.

    Attributes
    ----------
    primitive, operands
        The primitive, and the types of its operands, with avals where they are known.
    decision
        As for `Step`. With types alone it is ``"rule"`` if one rule matches, and ``"unknown"`` if
        several do: a rule may decline.
    rule
        The rule that answers, or the first that is asked if only types were given.
    others
        The other rules whose types match, and why each does not answer.
    missing
        If no rule answers: the first lines of one that would.
    changed_by
        The names of the passes and of the hooks for operands that change the equation first.
    dense
        The values that become dense for it, also those inside of an operand, whose rules are
        asked by the one that answers. It is empty if only types were given.
    """

    primitive: str
    operands: tuple[str, ...]
    decision: str
    rule: RuleInfo | None
    others: tuple[tuple[RuleInfo, str], ...]
    missing: str
    changed_by: tuple[str, ...] = ()
    dense: tuple[MadeDense, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.primitive} on ({', '.join(self.operands)}): {self.decision}"]
        if self.changed_by:
            lines.append(f"  changed by {', '.join(self.changed_by)}")
        if self.rule is not None:
            lines.append(f"  {with_location(self.rule)}")
        lines += [f"  not {with_location(rule)}: {why}" for rule, why in self.others]
        if self.missing:
            lines += [
                "  this rule would answer:",
                *("    " + x for x in self.missing.split("\n")),
            ]
        elif self.decision != "dense":
            for made_dense in self.dense:
                lines += [
                    f"  inside, {made_dense.type}:{made_dense.aval} becomes dense: {made_dense.why}",
                    *("    " + x for x in made_dense.repair.split("\n")),
                ]
        return "\n".join(lines)


def which(
    primitive: Primitive | str | Callable[..., Any],
    /,
    *operands: Any,
    rules: Tables = None,
    **params: Any,
) -> Which:
    """Tell which rule would answer for a primitive on some operands.

    Parameters
    ----------
    primitive
        A primitive or its name, or a function that a rule may be for.
    *operands
        Values and arrays, as in a call of `bind`. Then rules are asked, and those that
        decline are told apart. Or types: value types, and `jax.Array` for a dense operand.
        Then rules are listed in the order in which they would be asked.
    rules
        A table of rules, or several, that are in force as in `transform`.
    **params
        The primitive's parameters, with operands that are not types. Those that may be
        ``None`` are, by default.

    Returns
    -------
    Which
        The rule, and why each of the others that match would not answer.

    Raises
    ------
    ValueError
        If JAX has no primitive of this name.
    TypeError
        If some operands are types and others are not, or there are parameters with types; or
        the primitive does not take so many operands, or such a parameter.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import Diagonal
    >>> v = Diagonal(jnp.ones(3))
    >>> jaxrewrite.which("neg", v).decision
    'rule'
    >>> print(jaxrewrite.which("fft", Diagonal).missing)
    @jaxrewrite.register("fft")
    def _(x: Diagonal, **params): ...
    """
    primitive = look_up_primitive(primitive)
    _check_call(primitive, operands, params)
    with use_settings(current_settings().refined(tables_of(rules), "warn")):
        return _which(primitive, operands, params)


def _which(primitive: Primitive, operands: Sequence[Any], params: dict[str, Any]) -> Which:
    are_types = [inspect.isclass(x) for x in operands]
    if any(are_types):
        if not all(are_types) or params:
            raise TypeError("which takes operands and parameters, or types alone.")
        return _by_types(primitive, operands)
    return _by_operands(primitive, operands, params)


def _check_call(primitive: Primitive, operands: Sequence[Any], params: Any) -> None:
    """Check operands and parameters of a primitive, whose own errors do not name it."""
    takes = known(primitive)
    if not operands:
        accepted = f"takes {takes}" if takes else "takes operands"
        raise TypeError(
            f"which: {primitive.name!r} {accepted}; got no operands. Pass values and arrays, or "
            f"types, as in which({primitive.name!r}, Diagonal)."
        )
    if takes is None:
        return
    unknown = sorted(params.keys() - set(takes.params))
    if unknown or takes.operands not in (None, len(operands)):
        passed = [f"{len(operands)} operand{'' if len(operands) == 1 else 's'}", *unknown]
        raise TypeError(
            f"which: {primitive.name!r} takes {takes}; got {', '.join(passed)}."
        )


def _by_types(primitive: Primitive, types: Sequence[type]) -> Which:
    kinds = tuple(cls if issubclass(cls, Value) else Dense for cls in types)
    groups = [
        [entry.rule for entry in group if concerns(entry.rule, kinds)]
        for rule_table in current_settings().rules.tables
        for group in _in_order(rule_table.matches(primitive, kinds), kinds)
    ]
    groups = [group for group in groups if group]
    # A rule and its twin for the opposite order are one function, and not ambiguous.
    ordered = list({rule.fn: rule for group in groups for rule in group}.values())
    tied = {rule.fn for rule in groups[0]} if groups else set()
    others = tuple((info_of(rule), _why_later(rule, tied)) for rule in ordered[1:])
    others += tuple(_patterns_with(primitive))
    decision = "rule" if len(ordered) == 1 else "unknown"
    rule = info_of(ordered[0]) if ordered else None
    if not ordered:
        decision, owner = _without_rules(primitive, types)
        rule = None if owner is None else info_of_default(owner)
    return Which(
        primitive.name,
        tuple(cls.__name__ if issubclass(cls, Value) else "Array" for cls in types),
        decision,
        rule,
        others,
        missing_rule(primitive.name, types) if decision == "dense" else "",
    )


def _in_order(entries: list[Entry], types: tuple[type, ...]) -> Iterator[list[Entry]]:
    """The entries in the order in which they are asked; entries of a group are tied."""
    while entries:
        foremost = foremost_of(entries, types)
        yield foremost
        rules = {entry.rule for entry in foremost}
        entries = [entry for entry in entries if entry.rule not in rules]


def _without_rules(
    primitive: Primitive, types: Sequence[type]
) -> tuple[str, type[Value] | None]:
    """The decision where no rule matches, and the type whose ``default`` answers, if any."""
    if primitive.name in handlers or isinstance(primitive, Called):
        return "handler", None
    owner = owner_of_default(primitive, [cls for cls in types if issubclass(cls, Value)])
    if owner is not None:
        return "default", owner
    is_leafwise = primitive.name in leafwise_handlers.keys() - _FOR_ZEROS
    return ("identity" if is_leafwise else "dense"), None


# Types do not tell whether the array beside a value is one of zeros.
_FOR_ZEROS = {"concatenate", "pad"}


def _why_later(rule: Rule, tied: Set[Any]) -> str:
    if rule.fn in tied:
        return "it is tied with the first: if both answer, they are ambiguous"
    return "it is asked only if those before it decline"


def _by_operands(primitive: Primitive, operands: Sequence[Any], params: Any) -> Which:
    complete = checked(primitive, params)

    def apply(*xs: Any) -> Any:
        return primitive.bind(*xs, **primitive.get_bind_params(complete))

    try:
        report = explain(apply, materialise="allow")(*operands)
    except Exception as error:
        note = f"jaxrewrite: which binds {primitive.name!r} as a program would"
        add_note(error, f"{note}; it takes all of its operands and parameters.")
        raise
    steps = [step for step in report.tree if step.primitive == primitive.name]
    kinds = tuple(map(type_of, operands))
    matching = _rules_matching(current_settings().rules, primitive, kinds)
    dense = tuple(made_dense for _, made_dense in report.dense)
    if not steps:
        changed_by = report.passes
        return Which(
            primitive.name, report.arguments, "dense", None, (), "", changed_by, dense
        )
    (step,) = steps
    others = [(d.rule, d.why) for d in step.declined]
    known = {step.rule, *(rule for rule, _ in others)}
    others += [(info, "a rule before it answers") for info in matching if info not in known]
    others += _patterns_with(primitive)
    missing = missing_rule(primitive.name, operands) if step.decision == "dense" else ""
    return Which(
        primitive.name,
        step.operands,
        step.decision,
        step.rule,
        tuple(others),
        missing,
        step.changed_by,
        dense,
    )


def _rules_matching(
    in_force: RulesInForce, primitive: Primitive, kinds: tuple[type, ...]
) -> list[RuleInfo]:
    matches = [e for rules in in_force.tables for e in rules.matches(primitive, kinds)]
    named = [entry.rule for entry in matches if concerns(entry.rule, kinds)]
    return list(dict.fromkeys(map(info_of, named)))
