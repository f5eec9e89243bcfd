"""Which function a call in a program is a call of, with which static arguments, and how.

The jaxpr of a call has to be the jaxpr of the function on the same avals. JAX does not keep static
arguments, so all values that they may have are tried. `jax.vmap` rewrites the jaxpr of a call, so
the function is also traced under `jax.vmap`.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
from jax.tree_util import SequenceKey, tree_leaves, tree_leaves_with_path

from .. import _compat
from .._core.caches import WeakCaches, cached
from .._core.rules import Rule
from .._core.value import is_value
from .called import Called
from .traced import only_call


# The keys and attributes at which an array is in a pytree, the outermost first.
Names: TypeAlias = tuple[tuple[str, Any], ...]


def names_of(tree: Any) -> tuple[Names, ...]:
    """The names of each array or value in a pytree. Positions in sequences are none."""
    return tuple(
        tuple(
            (type(step).__name__, getattr(step, "key", getattr(step, "name", None)))
            for step in path
            if not isinstance(step, SequenceKey)
        )
        for path, _ in tree_leaves_with_path(tree, is_leaf=is_value)
    )


class Call(NamedTuple):
    """How an equation calls a function.

    ``statics`` are the static arguments. ``order`` has, for each operand of the function, its
    position among the operands of the equation, and ``paths`` has the parameter that it is
    given for, with the keys inside of that, as far as they are known. The equation has ``wanted`` of the function's
    results, which have ``names`` (`names_of`). ``levels`` are the axes of each `jax.vmap` that it was under, the
    outermost first: 0 or ``None`` for each operand, once its axes are permuted by the order that
    ``fronts`` has for it. Some results, ``same``, do not have these axes, because they are the same for all
    elements. The others have them in front if their axes are permuted by ``orders``, one for
    each result that is wanted.

    Under `jax.jvp` the tangents of the operands ``moving`` come after all operands, and the
    tangents of the results after all results.
    """

    statics: tuple[tuple[str, Any], ...]
    order: tuple[int, ...]
    paths: tuple[tuple[Any, ...], ...]
    wanted: tuple[int, ...]
    same: frozenset[int]
    names: tuple[Names, ...]
    orders: tuple[tuple[int, ...], ...]
    levels: tuple[tuple[int | None, ...], ...]
    fronts: tuple[tuple[int, ...], ...]
    moving: tuple[int, ...]


# --- static arguments ---------------------------------------------------------------------


class Axis:
    """The domain of the annotation ``int``: the number of any axis."""

    @staticmethod
    def of_rank(rank: int) -> list[Any]:
        return [*range(rank), *range(-rank, 0)]

    @staticmethod
    def holds(value: Any) -> bool:
        return type(value) is int


class Axes:
    """The domain of the annotation ``tuple[int, ...]``: two or more axes, in their order."""

    @staticmethod
    def of_rank(rank: int) -> list[Any]:
        numbers = range(2, rank + 1)
        return [x for n in numbers for x in itertools.combinations(range(rank), n)]

    @staticmethod
    def holds(value: Any) -> bool:
        return type(value) is tuple and all(type(x) is int for x in value)


_OPEN = (Axis, Axes)
_AXIS, _AXES = Axis(), Axes()


@cached(1024)
def domains_of(called: Called, rule: Rule) -> dict[str, tuple[Any, ...]]:
    """The values that the static arguments may have for a rule that names them.

    Raises `TypeError` if the function has no such parameter, or its values are not known.
    """
    hints = dict(rule.signature.hints)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in called.parameters.values())
    domains = {}
    for name in rule.signature.keywords:
        if name not in called.parameters and not takes_any and called.parameters:
            raise TypeError(
                f"Rule {rule} takes a static argument {name!r}, and {called.name} has no "
                f"such parameter. It has {', '.join(called.parameters)}."
            )
        hint = hints.get(name)
        domains[name] = (
            domain_of_default(called, name) if hint is None else (*_values(hint),)
        )
        if not domains[name]:
            annotated = f"annotated with {hint!r}" if hint is not None else "not annotated"
            raise TypeError(
                f"Static argument {name!r} of rule {rule} is {annotated}. "
                "Annotate it with bool, int (an axis), tuple[int, ...] (axes), None, typing.Literal[...] or a "
                "union of these, which tell the values that it may have."
            )
    return domains


def domain_of_default(called: Called, name: str) -> tuple[Any, ...]:
    """The values of a static argument that a rule does not annotate: the default, or both."""
    parameter = called.parameters.get(name)
    if parameter is None or parameter.default is parameter.empty:
        return ()
    return (True, False) if type(parameter.default) is bool else (parameter.default,)


def check_arguments(called: Called, rule: Rule) -> None:
    """Raise `TypeError` for a rule with too many operands, or too few for the function."""
    signature = rule.signature
    count = len(signature.operands)
    arrays = _parameters_for_arrays(called)
    if arrays is not None and count > len(arrays):
        raise TypeError(
            f"Rule {rule} takes {count} operands, so that it can never be called: of the arguments of "
            f"{called.name} only {', '.join(arrays)} can be arrays. Static arguments are keyword-only "
            "parameters of a rule."
        )
    if signature.variadic is not None or signature.any_keyword:
        return
    needed = [
        name
        for name, parameter in called.parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and name not in signature.keywords
    ]
    if len(needed) > count:
        raise TypeError(
            f"Rule {rule} takes {count} of the arguments {', '.join(needed)} that {called.name} "
            "needs, so that it can never be called. Operands are positional parameters of a rule. Static arguments are "
            "keyword-only parameters, annotated with the values that they may have. A rule for a "
            "method is for that of an object."
        )


# Annotations of one array or number, and of what is none, in JAX's own functions. Any other may be
# a pytree of several.
_ONE = {*("ArrayLike", "Array", "jax.Array", "Key", "int", "float", "complex", "bool")}
_NONE = {*("None", "str", "Axis", "DTypeLike", "DTypeLikeFloat", "PrecisionLike")}


def _parameters_for_arrays(called: Called) -> list[str] | None:
    """The parameters that can be one array each, or ``None`` if the annotations do not tell."""
    if (getattr(called.fn, "__module__", None) or "").partition(".")[0] != "jax":
        return None  # The same names may be those of a user's types, which are pytrees.
    arrays = []
    for name, parameter in called.parameters.items():
        hint = parameter.annotation
        text = hint.__name__ if isinstance(hint, type) else str(hint)
        choices = set(text.split(" | "))
        is_open = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if is_open or not choices <= _ONE | _NONE:
            return None
        if choices & _ONE:
            arrays.append(name)
    return arrays or None


def statics_for(called: Called, rule: Rule) -> list[dict[str, Any]]:
    """Some static arguments that a rule is for, without defaults."""
    combinations = _combinations(called, domains_of(called, rule), rank=2)
    return [_without_defaults(called, x) for x in itertools.islice(combinations, 8)]


def _values(hint: Any) -> Iterator[Any]:
    origin = typing.get_origin(hint)
    if hint is bool:
        yield from (False, True)
    elif hint is int:
        yield _AXIS
    elif origin is tuple and set(typing.get_args(hint)) <= {int, Ellipsis}:
        yield _AXES
    elif hint is None or hint is type(None):
        yield None
    elif origin is typing.Literal:
        yield from typing.get_args(hint)
    elif origin in (typing.Union, types.UnionType):
        for choice in typing.get_args(hint):
            yield from _values(choice)


def _without_defaults(called: Called, statics: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in statics.items() if not is_default(called, k, v)}


def is_default(called: Called, name: str, value: Any) -> bool:
    parameter = called.parameters.get(name)
    default = parameter.default if parameter is not None else inspect.Parameter.empty
    return _same(value, default)


def is_among(value: Any, domain: Sequence[Any]) -> bool:
    """Whether a static argument is among the values that a rule is for."""
    return any(
        choice.holds(value) if isinstance(choice, _OPEN) else _same(value, choice)
        for choice in domain
    )


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and a == b


# Each combination costs a trace.
_MANY = 256


def _combinations(
    called: Called, domains: Mapping[str, Sequence[Any]], rank: int
) -> Iterator[dict[str, Any]]:
    """Static arguments to try: first the defaults."""
    choices = []
    for name, domain in domains.items():
        parameter = called.parameters.get(name)
        defaults = [] if parameter is None else [parameter.default]
        candidates: list[Any] = [x for x in defaults if is_among(x, domain)]
        for choice in domain:
            values = choice.of_rank(rank) if isinstance(choice, _OPEN) else [choice]
            candidates += [x for x in values if not any(_same(x, y) for y in candidates)]
        choices.append(candidates)
    for combination in itertools.islice(itertools.product(*choices), _MANY):
        yield dict(zip(domains, combination, strict=True))


# --- arguments --------------------------------------------------------------------------


_POSITIONAL = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD

# How the operands of a call make the arguments of the function: the operand's position in the
# order of the parameters, and a function of the operands, in the order of the call.
Caller = Callable[[Mapping[str, Any], Sequence[Any]], Any]


def _callers(
    called: Called, names: Sequence[str] | None, count: int, statics: Collection[str]
) -> Iterator[Any]:
    """Ways to call the function with operands of a jaxpr, whose names JAX may tell.

    Each has the order and the paths of the operands, as in `Call`. ``statics`` are the names of
    static arguments.
    """
    if names is not None and len(names) == count:
        named = _by_names(called, names)
        if named is not None:
            yield named
    by_position = _by_position(called, count, statics)
    if by_position is not None:
        yield by_position


def _by_position(called: Called, count: int, statics: Collection[str]) -> Any:
    """The way with one argument for each operand; ``None`` if the function takes less."""
    parameters = called.parameters
    ranks = [name for name, p in parameters.items() if p.kind in _POSITIONAL]
    names = [name for name in ranks if name not in statics][:count]
    takes_more = not parameters or any(
        p.kind is p.VAR_POSITIONAL for p in parameters.values()
    )
    if len(names) < count and not takes_more:
        return None
    order = tuple(range(count))
    paths = tuple((name,) for name in names)
    if names == ranks[:count]:
        return order, paths, lambda statics, xs: called.fn(*xs, **statics)

    def call(statics: Mapping[str, Any], xs: Sequence[Any]) -> Any:
        arguments = {**dict(zip(names, xs, strict=True)), **statics}
        return _apply(called, arguments, {*names, *statics})

    return order, paths, call


def function_of(called: Called, statics: Mapping[str, Any], count: int) -> Any:
    """The function of so many operands, with these static arguments."""
    ranks = [name for name, p in called.parameters.items() if p.kind in _POSITIONAL]
    names = [name for name in ranks if name not in statics][:count]
    if len(names) < count:
        return lambda *xs: called.fn(*xs, **statics)

    def call(*xs: Any) -> Any:
        arguments = {**dict(zip(names, xs, strict=True)), **statics}
        return _apply(called, arguments, arguments)

    return call


def _by_names(called: Called, names: Sequence[str]) -> Any:
    parameters = called.parameters
    paths = [path for path in map(_path, names) if path and path[0] in parameters]
    if len(paths) < len(names):
        return None
    roots = list(dict.fromkeys(path[0] for path in paths))
    ranks = {name: i for i, name in enumerate(parameters)}
    split = _split(parameters, roots)
    if split is None:
        return None
    order = tuple(sorted(range(len(paths)), key=lambda i: (ranks[paths[i][0]], i)))

    def call(statics: Mapping[str, Any], xs: Sequence[Any]) -> Any:
        trees = {}
        for root in roots:
            leaves = [
                (path[1:], x) for path, x in zip(paths, xs, strict=True) if path[0] == root
            ]
            trees[root] = _tree(leaves)
        return _apply(called, {**trees, **statics}, {*split, *statics})

    return order, tuple(paths[i] for i in order), call


def _split(
    parameters: Mapping[str, inspect.Parameter], roots: Sequence[str]
) -> Sequence[str] | None:
    """The arguments that are passed by position: `jax.jit` puts keywords after them, sorted."""
    ranks = list(parameters)
    in_order = sorted(roots, key=ranks.index)
    for k in range(len(roots), -1, -1):
        first, rest = in_order[:k], in_order[k:]
        kinds = [parameters[name].kind for name in first]
        if inspect.Parameter.KEYWORD_ONLY in kinds:
            continue
        if [*first, *sorted(rest)] == list(roots):
            return first
    return None


def _apply(called: Called, arguments: dict[str, Any], positional: Any) -> Any:
    """Call with arguments by name, by position as far as they may be and none is left out."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    is_whole = True
    for name, parameter in called.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            args += arguments.get(name, ())
        elif parameter.kind is parameter.VAR_KEYWORD:
            kwargs |= arguments.get(name, {})
        elif name in arguments:
            is_positional = parameter.kind is not parameter.KEYWORD_ONLY
            if is_positional and is_whole and name in positional:
                args.append(arguments[name])
            else:
                kwargs[name] = arguments[name]
        else:
            is_whole = False
    kwargs |= {k: v for k, v in arguments.items() if k not in called.parameters}
    return called.fn(*args, **kwargs)


def takes_operands(called: Called, rule: Rule, call: Call) -> bool:
    """Whether the operands of a call are those that a rule takes.

    A rule takes them by their order, which does not tell of an argument that a call leaves out,
    such as a bias before a mask. So it has to name those that come after such a one, and one that
    it names is no other.
    """
    static = {*_compat.static_names(called.fn), *(name for name, _ in call.statics)}
    given = {path[0] for path in call.paths}
    optional, uncertain, is_certain = set(), set(), True
    for name, parameter in called.parameters.items():
        is_optional = parameter.default is not parameter.empty and name not in static
        if is_optional:
            optional.add(name)
        if not is_certain or parameter.kind is parameter.VAR_KEYWORD:
            uncertain.add(name)
        is_left_out = is_optional and name not in given
        is_certain &= not (is_left_out or parameter.kind is parameter.VAR_POSITIONAL)
    return all(
        name in path or not (name in optional or path[0] in uncertain)
        for name, path in itertools.zip_longest(_operand_names(rule), call.paths)
        if path
    )


@cached(1024)
def _operand_names(rule: Rule) -> list[str]:
    parameters = inspect.signature(rule.fn).parameters.values()
    names = [p.name for p in parameters if p.kind in _POSITIONAL]
    return names[::-1] if rule.mirrored else names


_PATH = re.compile(r"^(\w+)((?:\[[^\[\]]*\])*)$")


def _path(name: str) -> tuple[Any, ...] | None:
    """The parameter and the keys of an operand that JAX names ``p['w'][0]``."""
    match = _PATH.match(name)
    if match is None:
        return None
    keys = re.findall(r"\[([^\[\]]*)\]", match[2])
    try:
        return (match[1], *map(ast.literal_eval, keys))
    except (SyntaxError, ValueError):
        return None


def _tree(leaves: Sequence[tuple[tuple[Any, ...], Any]]) -> Any:
    """The nested tuples and dictionaries that have these leaves."""
    if leaves[0][0] == ():
        return leaves[0][1]
    groups: dict[Any, list[Any]] = {}
    for (key, *rest), leaf in leaves:
        groups.setdefault(key, []).append((tuple(rest), leaf))
    trees = {key: _tree(subtree) for key, subtree in groups.items()}
    return tuple(trees.values()) if list(trees) == [*range(len(trees))] else trees


# --- calls ------------------------------------------------------------------------------


_found = WeakCaches(64)


# A product of two operands, one of which is mapped, may be one where the other is.
_MOST_CALLS = 8


def calls_of(
    called: Called,
    eqn: Any,
    domains: Mapping[str, Sequence[Any]],
    depth: int,
    counts: frozenset[int],
) -> Iterator[Call]:
    """The ways in which an equation is a call of a function, under so many `jax.vmap`.

    ``counts`` are the numbers of operands that the function may have, for calls under `jax.jvp`.
    Each is only looked for when it is asked for.
    """
    start = 0
    for _ in range(_MOST_CALLS if depth else 1):
        found = _next_call(called, eqn, domains, depth, counts, start)
        if found is None:
            return
        position, call = found
        yield call
        start = position + 1


def _next_call(
    called: Called,
    eqn: Any,
    domains: Mapping[str, Sequence[Any]],
    depth: int,
    counts: frozenset[int],
    start: int,
) -> tuple[int, Call] | None:
    """The first of `_calls` from an attempt on."""
    body = _compat.body_of(eqn)
    cache = _found.of(body)
    key = (
        id(called),
        repr(sorted(domains.items())),
        depth,
        counts,
        start,
        eqn.ctx,
        _compat.trace_context(),
    )
    kept = cache.get(key)
    # The function is kept with the call, so that no other function gets its identity.
    if kept is None:
        found = _calls(called, eqn, body, domains, depth, counts, start)
        kept = called, next(found, None)
        cache.put(key, kept)
    return kept[1]


def _calls(
    called: Called,
    eqn: Any,
    body: Any,
    domains: Mapping[str, Sequence[Any]],
    depth: int,
    counts: frozenset[int],
    start: int,
) -> Iterator[tuple[int, Call]]:
    """The ways in which an equation is a call of a function, each with the number of the attempt.

    The attempts before the number ``start`` are left out.
    """
    jaxpr, consts = _compat.open_jaxpr(body)
    avals: list[Any] = [var.aval for var in jaxpr.invars[len(consts) :]]
    if not all(isinstance(aval, _compat.ShapedArray) for aval in avals):
        return
    rank = max((len(aval.shape) for aval in avals), default=0)
    wanted = _compat.fingerprint(body)
    # Where `jax.vmap` has not acted, a stack is asked for element by element only if no rule
    # takes the stack itself, with the same static arguments.
    combinations = list(_combinations(called, domains, rank))
    if depth and _compat.names_of_results(body) is not None:
        direct = calls_of(called, eqn, domains, 0, counts)
        combinations = [dict(call.statics) for call in direct]
    ways = _ways(called, eqn, body, avals, domains, depth, counts)
    attempts = enumerate(_attempts(list(ways), combinations))
    for number, (how, statics) in itertools.islice(attempts, start, None):
        nondefault = _without_defaults(called, statics)
        results = how.results_like(nondefault, avals, eqn, wanted, len(jaxpr.outvars))
        if results is not None:
            levels = tuple(
                tuple(None if axes[i] is None else 0 for i in how.order)
                for axes in how.levels
            )
            fronts = tuple(_front(how.levels, i, avals[i]) for i in how.order)
            items = tuple(statics.items())
            yield (
                number,
                Call(items, how.order, how.paths, *results, levels, fronts, how.moving),
            )


def _attempts(
    ways: Sequence[_Way], combinations: Sequence[dict[str, Any]]
) -> Iterator[tuple[_Way, dict[str, Any]]]:
    """Ways with static arguments, those first that are likelier."""
    in_front = [how for how in ways if how.is_in_front]
    others = [how for how in ways if not how.is_in_front]
    yield from itertools.islice(itertools.product(in_front, combinations), 4 * _MANY)
    # The static arguments of a program are mostly the defaults, which come first.
    pairs = ((how, statics) for statics in combinations for how in others)
    yield from itertools.islice(pairs, 4 * _MANY)


def _front(levels: Sequence[Sequence[int | None]], i: int, aval: Any) -> tuple[int, ...]:
    """The axes of an operand, those of `jax.vmap` first."""
    rest = list(range(len(aval.shape)))
    axes = [axes_of_level[i] for axes_of_level in levels]
    first = [rest.pop(axis) for axis in axes if axis is not None]
    return (*first, *rest)


class _Results(NamedTuple):
    """What a `Call` has of results."""

    wanted: tuple[int, ...]
    same: frozenset[int]
    names: tuple[Names, ...]
    orders: tuple[tuple[int, ...], ...]


def _ways(
    called: Called,
    eqn: Any,
    body: Any,
    avals: Sequence[Any],
    statics: Collection[str],
    depth: int,
    counts: frozenset[int],
) -> Iterator[_Way]:
    """The ways in which an equation may call a function of operands of these avals."""
    names = _compat.names_of_operands(body)
    # JAX keeps the names except where it differentiates.
    is_of_derivative = eqn.primitive.name == "jit" and names is None
    if is_of_derivative:
        for count in counts if depth == 0 else ():
            for moving in _moving(avals, count):
                order = tuple(range(len(avals)))
                for _, paths, call in _callers(called, None, count, statics):
                    yield _Way(call, order, paths, (), moving)
        # What is left of a derivative may be the function, as of one that is linear. That is
        # rarely so, and not with many operands.
    # The names of results tell that `jax.vmap` has not acted.
    is_mapped = _compat.names_of_results(body) is None
    is_anywhere = is_mapped and (depth == 1 or len(avals) == 1)
    most = 2 if is_of_derivative else 4
    for levels in _levels(avals, depth, most, is_anywhere):
        for order, paths, call in _callers(called, names, len(avals), statics):
            yield _Way(call, order, paths, levels, ())


def _moving(avals: Sequence[Any], count: int) -> Iterator[tuple[int, ...]]:
    """The operands of which the avals after the first so many may be tangents."""
    tangents = [aval.strip_weak_type() for aval in avals[count:]]
    if not tangents:
        return
    for positions in itertools.islice(
        itertools.combinations(range(count), len(tangents)), _MANY
    ):
        if [avals[i].to_tangent_aval().strip_weak_type() for i in positions] == tangents:
            yield positions


def _levels(
    avals: Sequence[Any], depth: int, most: int, is_anywhere: bool = False
) -> Iterator[tuple[tuple[Any, ...], ...]]:
    """The axes that so many `jax.vmap` may have acted on.

    Of more than ``most`` operands, it has acted on all. It has acted on the first axes; if
    ``is_anywhere``, perhaps on the second ones, the third and so on, or the last ones.
    """
    if not depth:
        yield ()
        return
    count = len(avals)
    several = (
        list(itertools.product((True, False), repeat=count))
        if count <= most
        else [(True,) * count]
    )
    ranks = [len(aval.shape) for aval in avals]
    others = [*range(1, max(ranks, default=0)), -1] if is_anywhere else []
    seen = set()
    for axis, is_mapped in itertools.product([0, *others], several):
        axes = tuple(
            (rank - 1 if axis < 0 else axis) if is_one else None
            for rank, is_one in zip(ranks, is_mapped, strict=True)
        )
        mapped = [(aval, k) for aval, k in zip(avals, axes, strict=True) if k is not None]
        if axes in seen or not all(0 <= k < len(aval.shape) for aval, k in mapped):
            continue
        seen.add(axes)
        if len({aval.shape[k] for aval, k in mapped}) != 1:
            continue
        inner = [
            aval if k is None else _compat.without_axis(aval, aval.shape[k], k)
            for aval, k in zip(avals, axes, strict=True)
        ]
        for rest in _levels(inner, depth - 1, most, is_anywhere):
            yield (axes, *rest)


class _Way(NamedTuple):
    """A way in which an equation may call a function, but for the static arguments."""

    call: Caller
    order: tuple[int, ...]
    paths: tuple[tuple[Any, ...], ...]
    levels: tuple[tuple[Any, ...], ...]
    moving: tuple[int, ...]

    @property
    def is_in_front(self) -> bool:
        """Whether each `jax.vmap` acts on first axes."""
        return all(axis in (0, None) for axes in self.levels for axis in axes)

    def results_like(
        self,
        statics: Mapping[str, Any],
        avals: Sequence[Any],
        eqn: Any,
        wanted: Any,
        count: int,
    ) -> _Results | None:
        """The results of the equation, or ``None`` if it calls something else."""

        names: list[tuple[Names, ...]] = []

        def fn(*xs: Any) -> list[Any]:
            results = self.call(statics, xs)
            names.append(names_of(results))
            return tree_leaves(results)

        if self.moving:
            fn = with_tangents(fn, self.moving)
        for axes in reversed(self.levels):
            fn = jax.vmap(fn, in_axes=axes)
        try:
            with eqn.ctx.manager:
                jaxpr, consts = _compat.trace_to_jaxpr(
                    fn, avals, _compat.new_debug_info("called")
                )
        except Exception:  # noqa: BLE001 - these are no arguments of the function
            return None
        if consts:
            return None
        total = len(jaxpr.outvars)
        if count > total:
            return None
        # A call whose results are all there may have an operand that no result needs.
        complete = [(tuple(range(total)), jaxpr)] if count == total else []
        parts = itertools.islice(itertools.combinations(range(total), count), _MANY)
        dropped = (
            (kept_results, _compat.with_results(jaxpr, kept_results))
            for kept_results in parts
        )
        for kept_results, part in itertools.chain(complete, dropped):
            call = only_call(part, len(self.levels))
            while call is not None:
                if _is_same(call.eqn, eqn, wanted):
                    same = frozenset(kept_results[i] for i in call.same)
                    return _Results(kept_results, same, names[-1], tuple(call.orders))
                inner, _ = _compat.open_jaxpr(_compat.body_of(call.eqn))
                call = only_call(inner) if call.is_whole else None
        return None


def with_tangents(fn: Callable[..., list[Any]], moving: Sequence[int]) -> Any:
    """A function of operands and tangents of some, to its results and their tangents."""

    def on_pairs(*xs: Any) -> list[Any]:
        primals, tangents = xs[: -len(moving)], xs[-len(moving) :]

        def of_moving(*moving_operands: Any) -> list[Any]:
            operands = list(primals)
            for i, x in zip(moving, moving_operands, strict=True):
                operands[i] = x
            return fn(*operands)

        results = jax.jvp(of_moving, [primals[i] for i in moving], list(tangents))
        return [*results[0], *results[1]]

    return on_pairs


def _is_same(call_eqn: Any, eqn: Any, wanted: Any) -> bool:
    return _compat.fingerprint(_compat.body_of(call_eqn)) == wanted and (
        call_eqn.primitive is not eqn.primitive or _compat.same_derivatives(call_eqn, eqn)
    )
