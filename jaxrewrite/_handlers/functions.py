"""Rules for functions, which are looked up before the jaxpr of a call is rewritten.

In a call under `jax.vmap` the rule gets the stacks if the function takes stacks itself. Else it
runs under `jax.vmap`, on the elements that the operands stand for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax import lax
from jax.tree_util import tree_flatten, tree_leaves, tree_map, tree_unflatten

from .. import _compat
from .._compat import Literal, Primitive
from .._core.avals import avals_of, children, rule_children
from .._core.errors import MaterialisationError
from .._core.rewrite import before_rules, new_rewriter
from .._core.rules import Declined, Failure, Rule, checks, is_of_a_library
from .._core.settings import current_settings
from .._core.site import Site
from .._core.traces import Flat, Rewriting, RuleResult, checked_result
from .._core.value import is_value
from .._functions.called import Called, check_is_staged, rules_at
from .._functions.recognise import (
    Call,
    Names,
    calls_of,
    check_arguments,
    domain_of_default,
    domains_of,
    is_among,
    is_default,
    names_of,
    statics_for,
    takes_operands,
)
from .._functions.traced import is_increasing
from .derivatives import can_be_lifted, confinement, derivative, lift
from .outward import BY_LOGARITHMS, by_turned_operands
from .stacking import element, element_like, in_slices, on_vars, stacked_where


_UNRECOGNISED = "it is for other static arguments, or another function"
_OTHERS = "it is for other static arguments, or other operands"

# How often `jax.vmap` may have acted on a call.
_DEPTH = 3


def function_handler(site: Site, operands: list[Any]) -> Any:
    body = _compat.body_of(site.eqn)
    origin = None if body is None else _compat.origin_of(body)
    if origin is None or (site.is_in_rule and not any(map(is_value, operands))):
        return NotImplemented
    rules_of = rules_at(site.settings.rules, origin)
    if any(called.fn in BY_LOGARITHMS for called in rules_of):
        results = by_turned_operands(site, operands)
        if results is not NotImplemented:
            return results
    for called, rules in rules_of.items():
        domains = _domains(called, rules)
        counts = frozenset(len(rule.signature.operands) for rule in rules)
        is_recognised = False
        for depth in range(_DEPTH + 1):
            for call in calls_of(called, site.eqn, domains, depth, counts):
                is_recognised = True
                results = _apply(site, called, call, operands)
                if results is NotImplemented:
                    break  # Rules declined. Another way to see the call is the same call.
                if results is not None:
                    return results
        if not is_recognised:
            _tell_of_rules(site, called, operands)
    return NotImplemented


def _tell_of_rules(site: Site, called: Called, operands: Sequence[Any]) -> None:
    """Record that the rules for these operands were not asked."""
    record = site.builder.record
    if record is None:
        return
    choice = site.settings.rules.choice(called, operands)
    for rule in choice:
        choice.results[rule] = NotImplemented
        record.declined.append(Declined(rule, _UNRECOGNISED))


before_rules.append(function_handler)


def _domains(called: Called, rules: Sequence[Rule]) -> dict[str, tuple[Any, ...]]:
    """The static arguments that the rules in force tell apart, with their values."""
    domains: dict[str, tuple[Any, ...]] = {}
    for_each = [domains_of(called, rule) for rule in rules]
    for name in dict.fromkeys(name for of_rule in for_each for name in of_rule):
        # A rule that does not name a static argument is for its default.
        unnamed = domain_of_default(called, name)
        domains[name] = tuple(x for of_rule in for_each for x in of_rule.get(name, unnamed))
    return domains


def _check_rule(rule: Rule, primitives: Sequence[Primitive]) -> None:
    """Raise `TypeError` for a rule for a function that JAX inlines, or has no such argument."""
    for called in primitives:
        if isinstance(called, Called):
            check_arguments(called, rule)
            statics = statics_for(called, rule)
            if not is_of_a_library(rule):
                count = len(rule.signature.operands)
                is_variadic = rule.signature.variadic is not None
                counts = range(max(count, 1), count + 4) if is_variadic else (count,)
                check_is_staged(called, counts, statics)


checks.append(_check_rule)


# --- asking the rules ---------------------------------------------------------------------


def _apply(site: Site, called: Called, call: Call, operands: Sequence[Any]) -> Any:
    """The results of the first rule that does not decline a call, or ``None`` if it asks none.

    The rule sees the axes of `jax.vmap` in front, where some may be elsewhere in the program.
    """
    inputs = [operands[i] for i in call.order]
    if all(map(is_increasing, (*call.fronts, *call.orders))):
        return _apply_in_front(site, called, call, inputs)
    if not _stay_implicit(site, inputs, call.fronts):
        return None
    inputs = _permuted(site, inputs, call.fronts)
    # What the rule gives has its axes in front, and is no result of the equation yet.
    likes = _permuted(site.scratch(), site.outvars, call.orders)
    in_front = site.giving([_compat.Var(aval) for aval in avals_of(likes)])
    results = _apply_in_front(in_front, called, call, inputs)
    if results is None or results is NotImplemented:
        return results
    return _permuted(site, results, _inverses(call.orders))


def _permuted(site: Site, xs: Sequence[Any], orders: Iterable[Sequence[int]]) -> list[Any]:
    """Operands or results with their axes in other orders."""

    def permuted(x: Any, order: Sequence[int]) -> Any:
        if is_increasing(order):
            return x
        return site.call_on_arrays(lambda x: [lax.transpose(x, order)], [x])[0]

    return [permuted(x, order) for x, order in zip(xs, orders, strict=True)]


def _inverses(orders: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    return [tuple(map(order.index, range(len(order)))) for order in orders]


def _stay_implicit(site: Site, xs: Sequence[Any], orders: Iterable[Sequence[int]]) -> bool:
    """Whether values among operands or results stay so with their axes in other orders."""
    pairs = [
        (x, order)
        for x, order in zip(xs, orders, strict=True)
        if is_value(x) and not is_increasing(order)
    ]
    if not pairs:
        return True
    values, orders = zip(*pairs, strict=True)
    settings = site.settings._replace(policy="forbid", recorder=None)
    trial = site._replace(builder=new_rewriter(Rewriting(settings)))
    try:
        _permuted(trial, list(map(on_vars, values)), orders)
    except MaterialisationError:
        return False
    return True


def _apply_in_front(site: Site, called: Called, call: Call, inputs: Sequence[Any]) -> Any:
    """`_apply` for operands and results with the axes of `jax.vmap` in front."""
    split = _split(site, inputs, call)
    if split is None:
        return None
    inputs, elements = split
    count = len(inputs) - len(call.moving)
    if not all(map(_can_move, (elements[i] for i in call.moving))) or any(
        map(is_value, elements[count:])
    ):
        return None
    # In reports and errors the equation has the name of the function.
    site = site._replace(eqn=site.eqn.replace(primitive=called))
    flat = Flat.of(inputs, site.context)
    choice = site.settings.rules.choice(called, elements[:count])
    unasked = set()
    for rule in choice:
        statics = _statics(rule, called, call)
        if statics is None or not takes_operands(called, rule, call):
            unasked.add(rule)
            choice.results[rule] = NotImplemented
            continue
        try:
            result: Any = _ask(site, rule, called, call, statics, inputs, flat)
        except Exception as error:  # noqa: BLE001 - raised again if no other answers
            if not choice.is_tied:
                raise
            result = Failure(error)
        choice.results[rule] = result
    record = site.builder.record
    if record is not None:
        record.site = site
        record.rule = choice.rule
        declined = [
            Declined(x.rule, _OTHERS) if x.rule in unasked else x for x in choice.declined
        ]
        record.declined += [x for x in declined if x not in record.declined]
    if choice.result is NotImplemented:
        return None if unasked.issuperset(choice.results) else NotImplemented
    return site.inline_trace(choice.result, flat, inputs)


def _ask(
    site: Site,
    rule: Rule,
    called: Called,
    call: Call,
    statics: Mapping[str, Any],
    operands: Sequence[Any],
    flat: Flat,
) -> Any:
    def apply(*elements: Any) -> Any:
        results = rule(called, statics, operands, *elements)
        if results is NotImplemented:
            return NotImplemented
        return _leaves(site, rule, call, results)

    def check(results: Any) -> list[Any]:
        return _checked(site, rule, call, results)

    mapped = _along(apply, call.moving) if call.moving else _mapped(apply, call)
    mapped.__name__ = rule.name_for(called)
    literals: list[Any] = []
    if rule.literals:
        literals = [
            _compat.literal_key(x) if type(x) is Literal else None for x in operands
        ]
    # The numbers 1 and True are equal, and are not the same argument.
    key = ("function", called, rule, *call, repr(call.statics), *literals)
    key = (*key, *avals_of(site.outvars))
    result: RuleResult = site.builder.rewriting.by_function(mapped, key, flat, check)
    traced = result.traced
    if traced is NotImplemented:
        return NotImplemented
    # A value that would be dense where the program has its axes is no gain over what is inside.
    results = tree_unflatten(traced.out_tree, traced.jaxpr.outvars)
    stay = _stay_implicit(site, results, _inverses(call.orders))
    return result if stay else NotImplemented


def _statics(rule: Rule, called: Called, call: Call) -> Mapping[str, Any] | None:
    """The static arguments for a rule, or ``None`` if it is not for these."""
    domains = domains_of(called, rule)
    statics = {}
    for name, value in call.statics:
        if name in domains:
            if not is_among(value, domains[name]):
                return None
            statics[name] = value
        elif rule.signature.any_keyword:
            statics[name] = value
        elif not is_default(called, name, value):
            return None
    return statics


def _leaves(site: Site, rule: Rule, call: Call, results: Any) -> list[Any]:
    """The results of a rule for the function, as a list of arrays and values."""
    leaves = tree_leaves(results, is_leaf=is_value)
    if len(leaves) != len(call.names):
        raise TypeError(
            f"The rule {rule} returned {len(leaves)} arrays or values for "
            f"{site.primitive.name!r}, which returns {len(call.names)}. Return what the function "
            "returns."
        )
    names = names_of(results)
    if not all(map(_is_named, names, call.names)):
        raise TypeError(
            f"The rule {rule} returned {_listed(names)} for {site.primitive.name!r}, which returns "
            f"{_listed(call.names)}. Return what the function returns."
        )
    return leaves


def _is_named(names: Names, wanted: Names) -> bool:
    """Whether a result is at the same keys. A tuple may be in the place of a named one."""
    keys = tuple(x for x in wanted if x[0] != "GetAttrKey")
    return names in (wanted, keys)


def _listed(names: Sequence[Names]) -> str:
    return ", ".join(
        ".".join(str(name) for _, name in of_one) or "an array" for of_one in names
    )


def _checked(site: Site, rule: Rule, call: Call, results: Sequence[Any]) -> list[Any]:
    """The results of the equation, among the results of a rule for the function."""
    what, wanted = f"The rule {rule}", f"{site.primitive.name!r} gives"
    return [
        checked_result(results[i], var.aval, what, wanted)
        for i, var in zip(call.wanted, site.outvars, strict=True)
    ]


# --- under jax.jvp ------------------------------------------------------------------------


def _can_move(x: Any) -> bool:
    """Whether the leaves of an operand can have any tangent that its array can have."""
    if not is_value(x):
        return True
    like = tree_map(_compat.leaf_aval, x)
    is_plain = not any(map(is_value, children(like)[0]))
    return is_plain and can_be_lifted(like) and confinement(like) is None


def _along(fn: Callable[..., Any], moving: Sequence[int]) -> Callable[..., Any]:
    """A function of operands and tangents of some: its results, and their tangents."""

    def along(*xs: Any) -> Any:
        count = len(xs) - len(moving)
        primals, tangents = xs[:count], dict(zip(moving, xs[count:], strict=True))
        settings = current_settings()
        leaves, treedef = tree_flatten(list(primals))
        leaf_tangents: list[Any] = []
        for i, x in enumerate(primals):
            if i not in tangents:
                leaf_tangents += [None] * len(tree_leaves(x))
            elif is_value(x):
                leaf_tangents += lift(x, tangents[i], settings)
            else:
                leaf_tangents.append(tangents[i])
        differentiated = [i for i, t in enumerate(leaf_tangents) if t is not None]
        trees: list[Any] = []

        def on_leaves(*moving_leaves: Any) -> list[Any]:
            every = list(leaves)
            for i, x in zip(differentiated, moving_leaves, strict=True):
                every[i] = x
            results = fn(*tree_unflatten(treedef, every))
            trees.append(None if results is NotImplemented else tree_flatten(results)[1])
            return [] if results is NotImplemented else tree_leaves(results)

        result_leaves, tangent_leaves = jax.jvp(
            on_leaves,
            [leaves[i] for i in differentiated],
            [leaf_tangents[i] for i in differentiated],
        )
        if trees[-1] is None:
            return NotImplemented
        results, their_tangents = (
            tree_unflatten(trees[-1], x) for x in (result_leaves, tangent_leaves)
        )
        return [*results, *map(_tangent, results, their_tangents)]

    return along


def _tangent(result: Any, tangent: Any) -> Any:
    """The tangent of the array that a result is."""
    return derivative(result, tangent) if is_value(result) else tangent


# --- under jax.vmap -----------------------------------------------------------------------


class _Map(NamedTuple):
    """One `jax.vmap` of a function from arrays and values to a list of arrays and values.

    The results at the positions ``same`` are the results of one element.
    """

    fn: Callable[..., Any]
    axes: tuple[int | None, ...]
    same: frozenset[int]

    def __call__(self, *stacks: Any) -> Any:
        flat = [rule_children(x) if is_value(x) else ([x], None) for x in stacks]
        leaves = [stack_leaves for stack_leaves, _ in flat]
        in_axes = [
            [axis] * len(stack_leaves)
            for stack_leaves, axis in zip(leaves, self.axes, strict=True)
        ]
        size = self._size(stacks)
        trees: list[Any] = []

        def on_leaves(leaves: Any) -> list[Any]:
            elements = [
                x if axis is None else element(x)
                for x, axis in zip(_rebuilt(leaves, flat), self.axes, strict=True)
            ]
            results = self.fn(*elements)
            trees.append(None if results is NotImplemented else tree_flatten(results)[1])
            return [] if results is NotImplemented else tree_leaves(results)

        result_leaves = jax.vmap(on_leaves, in_axes=(in_axes,), axis_size=size)(leaves)
        if trees[-1] is None:
            return NotImplemented
        results = tree_unflatten(trees[-1], result_leaves)
        return [
            tree_map(lambda x: x[0], x) if i in self.same else _as_stack(x, size)
            for i, x in enumerate(results)
        ]

    def _size(self, stacks: Sequence[Any]) -> int:
        avals = avals_of(stacks)
        (size,) = {
            x.shape[0] for x, axis in zip(avals, self.axes, strict=True) if axis == 0
        }
        return size


def _rebuilt(leaves: Sequence[Any], flat: Sequence[Any]) -> Iterator[Any]:
    for field_leaves, (_, treedef) in zip(leaves, flat, strict=True):
        yield field_leaves[0] if treedef is None else tree_unflatten(treedef, field_leaves)


def _as_stack(x: Any, size: int) -> Any:
    return stacked_where(x, tree_map(lambda _: True, x), size) if is_value(x) else x


def _mapped(fn: Callable[..., Any], call: Call) -> Callable[..., Any]:
    mapped_fn: Callable[..., Any] = fn
    for axes in reversed(call.levels):
        mapped_fn = _Map(mapped_fn, axes, call.same).__call__

    def mapped(*operands: Any) -> Any:
        return mapped_fn(*operands)

    return mapped


def _split(
    site: Site, operands: Sequence[Any], call: Call
) -> tuple[list[Any], list[Any]] | None:
    """The operands in a form that `jax.vmap` can slice, and one element of each.

    It is ``None`` if the elements of an operand are not values of a type.
    """
    stacks = list(operands)
    elements = list(operands)
    for axes in call.levels:
        for i, axis in enumerate(axes):
            x = elements[i]
            if axis is None:
                continue
            length = avals_of([x])[0].shape[0]
            if not is_value(x):
                aval = _compat.without_leading_axis(avals_of([x])[0], length)
                elements[i] = _compat.Var(aval)
                continue
            if x is stacks[i]:
                stacks[i] = x = in_slices(site, x)
            elements[i] = element_like(site, x, length)
            if elements[i] is NotImplemented:
                return None
    return stacks, elements
