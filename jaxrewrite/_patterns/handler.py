"""The equation that stands for a match of pattern rules: the rules, or the equations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.tree_util import tree_flatten, tree_leaves, tree_map

from .. import _compat
from .._compat import Literal, Primitive
from .._core.avals import avals_of
from .._core.errors import add_note
from .._core.rewrite import handlers
from .._core.rules import Choice, Declined, Entry, Failure, guarded, names_of_types, type_of
from .._core.site import Site
from .._core.traces import Flat, RuleResult, checked_result
from .._core.value import is_value
from .._staging.transform import transform
from .bodies import Body, results_of
from .outline import PATTERNS, Option, Packed, outline, pattern_p
from .pattern import Pattern, count_of_batches, without_batch


class _PatternResult(NamedTuple):
    """The result of a pattern rule.

    ``inputs`` are the operands of the equation that the rule takes, and ``opaque`` the
    positions of inputs that it takes as arrays, even if they are values.
    """

    result: RuleResult
    inputs: Sequence[int]
    opaque: Sequence[int]

    @property
    def traced(self) -> Any:
        return self.result.traced


_DECLINED = _PatternResult(RuleResult(NotImplemented), (), ())


def pattern_handler(site: Site, operands: list[Any]) -> Any:
    declined: list[Declined] = []
    rewriting, record = site.builder.rewriting, site.builder.record
    key = (*_key(site, operands), *Flat.of(operands, site.context).structure)
    # An explanation tells of each rule that declines.
    result = rewriting.kept(key) if record is None else None
    if result is None:
        result = _first_result(site, operands, declined)
        if record is None:
            rewriting.keep(key, result)
        else:
            record.declined += declined
    if result is not _DECLINED:
        flat = _flat(site, operands, result.inputs, result.opaque)
        return site.inline_trace(result.result, flat)
    covered = site.params["jaxpr"]
    inputs = [
        x for atom, x in zip(site.eqn.invars, operands, strict=True)
        if type(atom) is not Literal
    ]  # fmt: skip
    values = {v for v, x in zip(covered.invars, inputs, strict=True) if is_value(x)}
    plan = site.params["plan"]
    without = plan.without | {option.pattern for option in plan.options}
    patterns = site.builder.rewriting.passes.get(PATTERNS, [])
    jaxpr = outline(covered, patterns, values, without)
    return site.builder.run(jaxpr, inputs)


handlers[pattern_p.name] = pattern_handler


def _key(site: Site, operands: Sequence[Any]) -> tuple[Any, ...]:
    """Equal for matches of the same patterns, on operands of the same structure."""
    options = (
        (
            option.pattern,
            option.match.depth,
            option.match.variant,
            _statics(option),
            *(
                o.positions if isinstance(o, Packed) else o
                for o in option.operands
                if isinstance(o, (int, Packed))
            ),
            *_keys(option),
            *option.results,
        )
        for option in site.params["plan"].options
    )
    # A number is dispatched on as one.
    numbers = (type(x) is Literal for x in operands)
    return ("match", *numbers, *options)


def _statics(option: Option) -> tuple[Any, ...]:
    return tuple((name, repr(value)) for name, value in option.match.statics.items())


def _flat(
    site: Site, operands: Sequence[Any], inputs: Sequence[int], opaque: Sequence[int]
) -> Flat:
    return Flat.of([operands[o] for o in inputs], site.context, opaque)


def _first_result(site: Site, operands: Sequence[Any], declined: list[Declined]) -> Any:
    """The result of the first pattern that does not decline."""
    plan = site.params["plan"]
    num_own = len(site.settings.rules.own_tables())
    for group in _groups(plan.options):
        inputs = [operands[o] for option in group for o in positions(option)]
        if group[0].match.depth >= num_own and not any(map(is_value, inputs)):
            continue  # It is left to a transform around this one.
        result = _of_group(site, operands, group, declined)
        if result is not NotImplemented:
            return result
    return _DECLINED


def _groups(options: Sequence[Option]) -> list[list[Option]]:
    """The options that can be compared: of one table, on the same operands."""
    groups: dict[Any, list[Option]] = {}
    for option in options:
        on = frozenset(o for o in option.operands if isinstance(o, int))
        groups.setdefault((option.match.depth, on), []).append(option)
    return list(groups.values())


def _of_group(
    site: Site,
    operands: Sequence[Any],
    group: Sequence[Option],
    declined: list[Declined],
) -> Any:
    order = sorted(o for o in set(group[0].operands) if isinstance(o, int))
    types = tuple(type_of(operands[i]) for i in order)
    options = {option.pattern: option for option in group}
    entries = []
    for option in group:
        shown = [_shown(operands, o) for o in option.operands]
        for entry in _entries(option, shown, declined):
            entries.append(_in_order(entry, option, order))

    choice = Choice(pattern_p, types, [entries], declined, _ambiguity)
    unwanted = set()
    for pattern in choice:
        try:
            result: Any = NotImplemented
            if _may_be_batched(operands, options[pattern]):
                if _is_wanted(operands, options[pattern]):
                    result = _apply(site, operands, options[pattern])
                else:
                    unwanted.add(pattern)
        except Exception as error:  # noqa: BLE001 - raised again if no other answers
            if not choice.is_tied:
                raise
            result = Failure(error)
        choice.results[pattern] = result
        if result is not NotImplemented and site.builder.record is not None:
            site.builder.record.rule = pattern
    result = choice.result
    declined[:] = [
        x._replace(why="its condition, when=, does not hold") if x.rule in unwanted else x
        for x in declined
    ]
    return result


def _ambiguity(
    primitive: Primitive, types: tuple[type, ...], patterns: Sequence[Pattern]
) -> str:
    listed = "\n".join(f"  {pattern}" for pattern in patterns)
    return (
        f"Several pattern rules of precedence {patterns[0].precedence} match the same "
        f"equations on ({', '.join(names_of_types(types))}), and none is more specific than "
        f"the others:\n{listed}\nWays out: annotate the operands of one more closely; or "
        "give one a higher precedence=; or apply them one after the other with nested "
        "transforms."
    )


def _shown(operands: Sequence[Any], o: Any) -> Any:
    """The array or value that an operand is dispatched on: of several, the first value."""
    if isinstance(o, int):
        return operands[o]
    if not isinstance(o, Packed):
        return o.atom
    arrays = [operands[p] for p in o.positions] if o.body is None else []
    return next(filter(is_value, arrays), arrays[0] if arrays else _NO_ARRAY)


_NO_ARRAY = _compat.Var(_compat.ShapedArray((), jnp.dtype("float32")))


def _entries(option: Option, shown: Sequence[Any], declined: list[Declined]) -> list[Entry]:
    """The combinations of types of a pattern that its operands have."""
    types = tuple(map(type_of, shown))
    entries = [
        Entry(option.pattern, allowed, guards)
        for allowed, guards in option.pattern.signature.combinations()
        if all(map(issubclass, types, allowed))
    ]
    if not entries:
        declined.append(Declined(option.pattern, "its operands are of other types"))
    return guarded(entries, without_batch(avals_of(shown), option.match.variant), declined)


def _in_order(entry: Entry, option: Option, order: Sequence[int]) -> Entry:
    """An entry with its types in the order of the equation's operands."""
    first = [option.operands.index(i) for i in order]
    return Entry(
        entry.rule,
        tuple(entry.types[p] for p in first),
        tuple(entry.guards[p] for p in first),
    )


def _filled(option: Option, arrays: Sequence[Any]) -> list[Any]:
    """The arguments of a pattern rule, for the arrays at the positions that it takes."""
    remaining = iter(arrays)
    return [_argument(o, remaining) for o in option.operands]


def _may_be_batched(operands: Sequence[Any], option: Option) -> bool:
    """Whether no operand in a batch is a value, whose leaves have no axis for that."""
    variant, opaque = option.match.variant, list(_opaque(option))
    return variant is None or not any(
        is_value(operands[o]) and o not in opaque
        for i, o in enumerate(option.operands)
        if count_of_batches(variant, i)
    )


def _is_wanted(operands: Sequence[Any], option: Option) -> bool:
    """Whether the condition of a pattern rule holds, if it has one."""
    pattern, match = option.pattern, option.match
    if pattern.when is None:
        return True
    avals = [tree_map(_compat.leaf_aval, operands[o]) for o in positions(option)]
    seen = without_batch(_filled(option, avals), match.variant)
    return bool(_call(pattern, pattern.when, seen, match.statics))


def _apply(site: Site, operands: Sequence[Any], option: Option) -> Any:
    """The result of a pattern rule, or ``NotImplemented``."""
    pattern, match = option.pattern, option.match
    inputs = list(positions(option))
    opaque = list(_opaque(option))

    def apply(*arrays: Any) -> Any:
        return _compat.call_rule(
            _call,
            pattern,
            pattern.batched(pattern.fn, (), match.statics, match.variant),
            _filled(option, arrays),
            {},
        )

    def check(results: Any) -> list[Any]:
        return _checked(site, option, results)

    name = getattr(pattern.fn, "__name__", "_").strip("_") or "pattern_rule"
    apply.__name__ = name
    key = (
        "pattern",
        pattern,
        match.variant,
        _statics(option),
        option.results,
        *_keys(option),
    )
    opaque_inputs = [i for i, o in enumerate(inputs) if o in opaque]
    flat = _flat(site, operands, inputs, opaque_inputs)
    result = site.builder.rewriting.by_function(apply, key, flat, check)
    if result.traced is NotImplemented:
        return NotImplemented
    return _PatternResult(result, inputs, opaque_inputs)


def positions(option: Option) -> Iterator[int]:
    """The operands of the equation that a pattern takes, in the pattern's order."""
    for o in option.operands:
        if isinstance(o, Packed):
            yield from o.positions
        elif isinstance(o, int):
            yield o


def _opaque(option: Option) -> Iterator[int]:
    """The operands of the equation that a pattern takes as arrays, even if they are values.

    The rule's operations on them are dispatched. They are the operands without annotation.
    """
    slots = option.pattern.signature.operands
    for o, alternatives in zip(option.operands, slots, strict=True):
        if isinstance(o, Packed):
            yield from o.positions
        elif isinstance(o, int) and all(a.type is object for a in alternatives):
            yield o


def _keys(option: Option) -> Iterator[Any]:
    """The parts of a trace's key for operands that are no arrays."""
    for o in option.operands:
        if isinstance(o, Packed):
            body = o.body and (o.body.eqn.params["jaxpr"], o.body.ys)
            yield len(o.positions), o.length, body
        elif not isinstance(o, int):
            yield repr(o.plain())


def _argument(o: Any, remaining: Iterator[Any]) -> Any:
    """An argument of a pattern rule, made of the next arrays."""
    if isinstance(o, int):
        return next(remaining)
    if not isinstance(o, Packed):
        return o.plain()
    arrays = [next(remaining) for _ in o.positions]
    if o.body is not None:
        return _body_function(o.body, arrays)
    return tuple(arrays) if o.length is None else jnp.zeros((o.length, 0), jnp.float32)


def _body_function(scan_body: Body, consts: Sequence[Any]) -> Callable[..., Any]:
    """The body of a scan as a function of a carry and a slice, or of all its operands."""
    eqn = scan_body.eqn
    run = transform(_compat.function_of(eqn.params["jaxpr"]))
    _, num_carry = _compat.scan_counts(eqn.params)
    has_xs = len(eqn.invars) > len(consts) + num_carry

    def body(*args: Any) -> Any:
        if not 1 <= len(args) <= 2:
            raise TypeError(
                "The body of a scan takes a carry and a slice, or all that it takes."
            )
        carry, carry_tree = tree_flatten(
            args[0] if len(args) == 2 else (), is_leaf=is_value
        )
        leaves = tree_leaves(args if has_xs else args[:-1], is_leaf=is_value)
        results = run(*consts, *leaves)
        outs = [results[scan_body.result(k)] for k in range(len(results))]
        return results_of(len(args), carry_tree, outs, num_carry)

    return body


def _call(
    pattern: Pattern, fn: Any, args: Sequence[Any], statics: Mapping[str, Any]
) -> Any:
    try:
        return fn(*args, **statics)
    except Exception as error:
        add_note(error, f"jaxrewrite: raised by the pattern rule {pattern}.")
        raise


def _checked(site: Site, option: Option, results: Any) -> list[Any]:
    """The results of a pattern rule in the order of the equation's."""
    pattern, expected = option.pattern, option.match.out_tree
    leaves, out_tree = tree_flatten(results, is_leaf=is_value)
    if out_tree != expected:
        raise TypeError(
            f"The pattern rule {pattern} returned {out_tree}, and what it stands for "
            f"returns {expected}." + pattern.both()
        )
    ordered: list[Any] = [None] * len(site.outvars)
    what, wanted = f"The pattern rule {pattern}", "what it stands for gives"
    for leaf, position in zip(leaves, option.results, strict=True):
        aval = site.outvars[position].aval
        ordered[position] = checked_result(leaf, aval, what, wanted, pattern.both)
    return ordered
