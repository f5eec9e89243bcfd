"""The tables of rules, which decide which rule applies to which operands.

A table has one `multipledispatch.Dispatcher` for each primitive. The dispatcher finds the
signatures that match. This module orders these few, by precedence and then by how specific
they are. multipledispatch would order the whole table, and only warn of an ambiguity.
"""

from __future__ import annotations

import difflib
import itertools
import math
import numbers
import sys
import threading
import typing
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple, Protocol, TypeVar

import jax.numpy as jnp
from jax.errors import InconclusiveDimensionOperation
from multipledispatch.conflict import supercedes
from multipledispatch.dispatcher import Dispatcher
from multipledispatch.variadic import isvariadic

from .. import _compat
from .._compat import Literal, Primitive
from . import hooks
from .annotations import Dense, Number, Signature, guards_hold, read_signature, shown
from .avals import avals_of
from .caches import WeakCaches
from .errors import AmbiguousRuleError, add_note
from .pytree import prepare_defined
from .value import Operand, Value, is_value


_F = TypeVar("_F", bound=Callable[..., Any])


class Ranked(Protocol):
    """A candidate that is chosen by precedence and types: a rule, or an entry of a pass."""

    fn: Callable[..., Any]
    precedence: int


class Rule:
    """A user's rule for some primitives, as it was registered.

    ``exchange`` also registers a twin, for operands in the opposite order. A mirrored twin
    exchanges the operands before it calls the function.
    """

    __slots__ = ("fn", "is_twin", "literals", "mirrored", "precedence", "signature")

    def __init__(
        self,
        fn: Callable[..., Any],
        signature: Signature,
        precedence: int,
        is_twin: bool = False,
        mirrored: bool = False,
    ):
        self.fn = fn
        self.signature = signature
        self.precedence = precedence
        self.is_twin = is_twin
        self.mirrored = mirrored
        self.literals = signature.literals()

    def __call__(
        self,
        primitive: Primitive,
        params: Mapping[str, Any],
        atoms: Sequence[Any],
        *operands: Any,
    ) -> Any:
        """Call the function on operands; ``atoms`` tells which operands are literals."""
        if self.mirrored:
            operands, atoms = operands[::-1], atoms[::-1]
        arguments = list(operands)
        for i in self.literals:
            if type(atoms[i]) is Literal:
                arguments[i] = atoms[i]
        own = {"primitive": primitive} if self.signature.takes_primitive else {}
        try:
            return self.fn(*arguments, **params, **own)
        except InconclusiveDimensionOperation:  # As in `call_rule`, with one frame fewer.
            return NotImplemented
        except Exception as error:
            is_in_order = ", on operands in the order of the program (exchange='types')"
            how = is_in_order if self.is_twin and not self.mirrored else ""
            add_note(error, f"jaxrewrite: raised by the rule {self}{how}.")
            if isinstance(error, RecursionError):
                add_note(
                    error,
                    "If it applies its primitive to a value that it is for, as by an "
                    "operator, it calls itself. Apply the primitive to the value's fields.",
                )
            if "unexpected keyword argument" in str(error):
                add_note(error, "Rules take a primitive's parameters as **params.")
            raise

    def name_for(self, primitive: Primitive) -> str:
        """The rule's name in profiles; the function of many rules is named ``_``."""
        return getattr(self.fn, "__name__", "_").strip("_") or f"{primitive.name}_rule"

    def __str__(self) -> str:
        return shown(self.fn) + (", mirrored" if self.mirrored else "")


def _twin(rule: Rule, exchange: str) -> Rule:
    """The same rule for its two operands in the opposite order."""
    signature, count = rule.signature, len(rule.signature.operands)
    if count != 2 or signature.variadic:
        raise TypeError(
            f"exchange={exchange!r} needs a rule with two operands; "
            f"{getattr(rule.fn, '__name__', rule.fn)} has {count}."
        )
    is_mirrored = exchange == "operands"
    turned = signature if is_mirrored else signature.reversed()
    return Rule(rule.fn, turned, rule.precedence, is_twin=True, mirrored=is_mirrored)


# The checks of other rooms for each rule, with its primitives, before a table has it. They
# raise `TypeError` for a rule that it should not have.
checks: list[Callable[[Rule, Sequence[Primitive]], None]] = []

# Functions that return the primitive for another object, such as a function, or ``None``.
finders: list[Callable[[Any], Primitive | None]] = []


def is_of_a_library(rule: Ranked) -> bool:
    """Whether a rule is in a package that says ``__jaxrewrite_library__ = True``."""
    package, _, _ = (getattr(rule.fn, "__module__", None) or "").partition(".")
    return getattr(sys.modules.get(package), "__jaxrewrite_library__", None) is True


class Declined(NamedTuple):
    """A rule whose types match, but that declined, and why."""

    rule: Ranked
    why: str


class Entry:
    """A rule for one combination of the types that its annotations allow."""

    __slots__ = ("guards", "rule", "types")

    def __init__(self, rule: Ranked, types: tuple[Any, ...], guards: tuple[Any, ...]):
        self.rule: Any = rule
        self.types = types
        self.guards = guards

    def is_guarded(self) -> bool:
        return any(guard is not None for guard in self.guards)

    def outer(self, types: tuple[type, ...]) -> float:
        """The greatest ``outer`` of the operands that the rule names by their type."""
        # The last type of a variadic signature is for all remaining operands.
        named: Any = itertools.zip_longest(self.types, types, fillvalue=self.types[-1])
        return max(
            (
                operand.outer
                for annotated, operand in named
                if issubclass(operand, Value) and _names_its_type(annotated, operand)
            ),
            default=-math.inf,
        )

    def beats(self, other: Entry) -> bool:
        """Whether this entry is strictly more specific than the other."""
        if self.types == other.types:
            return self.is_guarded() and not other.is_guarded()
        return supercedes(self.types, other.types) and not supercedes(
            other.types, self.types
        )


def _names_its_type(annotated: Any, operand: type[Value]) -> bool:
    """Whether the annotation of an operand names its type, and not just any value."""
    choices = annotated.variadic_type if isvariadic(annotated) else (annotated,)
    return any(
        choice is not object
        and "_is_any" not in vars(choice)
        and issubclass(operand, choice)
        for choice in choices
    )


class _Dispatcher(Dispatcher):
    """A `Dispatcher` that does not order its matches, which would take quadratic time."""

    __slots__ = ()

    def reorder(self, on_ambiguity: object = None) -> list[Any]:
        ordering = self._ordering = list(self.funcs)  # type: ignore[misc]
        return ordering

    @classmethod
    def get_func_annotations(cls, func: object) -> None:
        """Do nothing: `multipledispatch` would read the annotations of ``func``."""


class Table:
    """A table of rules, and of the entries of passes."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._dispatchers: dict[Primitive, _Dispatcher] = {}
        self._dense: dict[Primitive, Rule] = {}
        self._with_literals: set[Primitive] = set()
        self._matches: dict[tuple[Any, ...], list[Entry]] = {}
        self._of_passes: dict[hooks.Pass, tuple[Any, ...]] = {}
        self.version: int = 0
        # The programs that were rewritten with it; they live no longer than the table.
        self.programs = WeakCaches(1024)
        self._ref = weakref.ref(self)

    def register(
        self,
        primitive: Primitive | str | Callable[..., Any],
        *more: Primitive | str | Callable[..., Any],
        precedence: int = 0,
        exchange: typing.Literal["operands", "types"] | None = None,
        types: Sequence[Any] | None = None,
    ) -> Callable[[_F], _F]:
        """Register a rule for one primitive or function, or several; a decorator.

        The rule's positional parameters are the primitive's operands. Their annotations
        decide which operands the rule applies to: a value type, an array type
        (`jaxtyping.ArrayLike`, `jax.Array`: any dense operand), `Value` or `ArrayValue`
        (any value), a union, or nothing (anything). ``*xs: T`` is any number of operands.
        A jaxtyping annotation is also a guard: the rule applies only if shapes and dtypes
        match. `jax.extend.core.Literal` is a number in the program itself, which the rule
        gets as that literal: ``x.val``. Keyword-only parameters are the primitive's
        parameters; one named ``primitive`` is the primitive.

        A rule returns one result, or a sequence of results if the primitive has several.
        Each is a value or an array, of the shape and dtype that the primitive would give.
        ``NotImplemented`` passes to the next rule. A rule runs with tracers as leaves, like
        a function under `jax.jit`, and its trace is kept for each structure of operands.

        If a field of an operand is itself a value, the rule sees an array of its aval.
        What the rule does to that array is later dispatched on the field's own type. An
        operand annotated with `Value` or `ArrayValue` stays a value. So when a rule for
        ``(T, ArrayValue)`` combines a field with the other operand, the result is
        dispatched on an array and that value. If ``T`` has ``rules_see_values = True``,
        fields stay values, too. Only `bind` and `transform` accept such a field, and
        dispatch on both.

        A rule for dense operands alone rewrites ordinary programs. A rule that allows a
        value is never tried on dense operands alone.

        Parameters
        ----------
        primitive, *more
            A `jax.extend.core.Primitive`, or its name, such as ``"dot_general"``; or a
            function that JAX stages as a call of its own, such as `jax.numpy.linalg.det` or
            a user's function under `jax.jit`, `jax.custom_jvp` or `jax.custom_vjp`. The
            arrays in its arguments are then the operands, and static arguments are
            keyword-only parameters. See :ref:`rules-for-functions`.
        precedence
            Rules of higher precedence are tried first. A rule for the same types as an
            earlier one of the table replaces it, whatever the precedence of the two.
        exchange
            Register the rule also for its two operands in the opposite order, unless there
            is a rule for that order. With ``"operands"`` it is then called with the operands
            exchanged, in the order of its parameters: for `primitives.COMMUTATIVE`. With
            ``"types"`` it gets them in the order of the program. The types of its parameters
            then say which two operands meet, not which of them comes first.
        types
            The annotations of the positional parameters, in place of the rule's own: for
            rules that a loop over types defines.

        Returns
        -------
        Callable
            A decorator that returns the rule unchanged.

        Raises
        ------
        ValueError
            If a name is not the name of a primitive, or ``exchange`` is another word.
        TypeError
            If the rule's annotations cannot be dispatched on, a rule with ``exchange`` does
            not have two operands, one with ``"operands"`` is for a primitive where their
            order matters, or the rule can never be called.

        Examples
        --------
        A difference that stays in metres, in either order of its operands:

        >>> import jax, jax.numpy as jnp, jaxrewrite
        >>> from jaxtyping import ArrayLike
        >>> class Metres(jaxrewrite.ArrayValue):
        ...     x: jax.Array
        ...     def materialise(self):
        ...         return self.x
        >>> @jaxrewrite.register("sub", exchange="types")
        ... def _(a: Metres, b: ArrayLike, **params):
        ...     number = lambda v: v.x if isinstance(v, Metres) else v
        ...     return Metres(number(a) - number(b))
        >>> (Metres(jnp.ones(2)) - 3).x, (3 - Metres(jnp.ones(2))).x
        (Array([-2., -2.], dtype=float32), Array([2., 2.], dtype=float32))

        A norm in metres, by a rule for the function of `jax.numpy`:

        >>> @jaxrewrite.register(jnp.linalg.norm)
        ... def _(v: Metres, *, axis: int | None):
        ...     return Metres(jnp.linalg.norm(v.x, axis=axis))
        >>> jaxrewrite.transform(lambda v: jnp.linalg.norm(v, axis=0))(Metres(jnp.ones(4)))
        Metres(2., dtype=float32)
        """
        if exchange not in (None, "operands", "types"):
            raise ValueError(f"exchange is 'operands' or 'types'; got {exchange!r}.")
        if not isinstance(precedence, numbers.Real) or precedence != precedence:
            raise TypeError(f"The precedence of a rule is a number; got {precedence!r}.")
        refuse_namesakes(p for p in (primitive, *more) if isinstance(p, Primitive))
        primitives = [look_up_primitive(p) for p in (primitive, *more)]
        prepare_defined()

        def decorate(fn: _F) -> _F:
            if not callable(fn):
                raise TypeError(f"A rule must be a function, not a {type(fn).__name__}.")
            signature = read_signature(fn, sys._getframe(1).f_locals, types)
            rule = Rule(fn, signature, precedence)
            twin = None if exchange is None else _twin(rule, exchange)
            for check in checks:
                check(twin or rule, primitives)
            self._add(primitives, rule, twin)
            return fn

        return decorate

    def add_entry(
        self, pass_: hooks.Pass, entry: Any, replaces: Callable[[Any], bool] | None = None
    ) -> None:
        """Add an entry of a pass, which runs on all programs that have this table in force.

        Parameters
        ----------
        pass_
            The pass, a registered one.
        entry
            What the pass gets. The table only keeps it.
        replaces
            Tells for an earlier entry of the pass whether this one takes its place.

        Raises
        ------
        ValueError
            If the pass is not registered.
        """
        if pass_ not in hooks.passes:
            raise ValueError(
                f"{type(pass_).__name__} is no registered pass. Call "
                "jaxrewrite.extend.register_pass with this object first."
            )
        with self._lock:
            kept = self.entries_of(pass_)
            if replaces is not None:
                kept = tuple(earlier for earlier in kept if not replaces(earlier))
            self._of_passes[pass_] = (*kept, entry)
            self.version += 1

    def entries_of(self, pass_: hooks.Pass) -> tuple[Any, ...]:
        """The entries of a pass, in the order in which they were added."""
        return self._of_passes.get(pass_, ())

    def _add(self, primitives: Sequence[Primitive], rule: Rule, twin: Rule | None) -> None:
        entries = list(self._entries(rule))
        twins = [Entry(twin, x.types[::-1], x.guards[::-1]) for x in entries if twin]
        with self._lock:
            for primitive in primitives:
                for entry in entries:
                    self._put(primitive, entry)
                for entry in twins:
                    if not self._has(primitive, entry):
                        self._put(primitive, entry)
            self._matches = {}
            self.version += 1

    @staticmethod
    def _entries(rule: Rule) -> Iterator[Entry]:
        is_dense = rule.signature.is_dense()
        for types, guards in rule.signature.combinations():
            if is_dense or not all(map(_is_dense, types)):
                yield Entry(rule, types, guards)

    def _cell(self, primitive: Primitive, types: tuple[Any, ...]) -> dict[Any, Entry]:
        """The entries of one signature, by their guards."""
        dispatcher = self._dispatchers.get(primitive)
        if dispatcher is None:
            dispatcher = self._dispatchers[primitive] = _Dispatcher(primitive.name)
        if types not in dispatcher.funcs:
            dispatcher.add(types, {})
        return dispatcher.funcs[types]

    def _put(self, primitive: Primitive, entry: Entry) -> None:
        self._cell(primitive, entry.types)[entry.guards] = entry
        if entry.rule.signature.is_dense():
            self._dense[primitive] = entry.rule
        if entry.rule.literals:
            self._with_literals.add(primitive)

    def _has(self, primitive: Primitive, entry: Entry) -> bool:
        present = self._cell(primitive, entry.types).get(entry.guards)
        return present is not None and not present.rule.is_twin

    def entries(self) -> Iterator[tuple[Primitive, Entry]]:
        """Each primitive with each of its entries, as they were registered."""
        with self._lock:
            tables = {p: dict(d.funcs) for p, d in self._dispatchers.items()}
        for primitive, cells in tables.items():
            for cell in cells.values():
                for entry in cell.values():
                    yield primitive, entry

    def dense_rules(self) -> Mapping[Primitive, Rule]:
        """The primitives that have a rule for dense operands alone, with one of these rules."""
        return self._dense

    def primitives_with_literals(self) -> Set[Primitive]:
        """The primitives that have a rule for literals."""
        return self._with_literals

    def matches(self, primitive: Primitive, types: tuple[type, ...]) -> list[Entry]:
        """The entries with matching types, in any order."""
        key = (primitive, types)
        entries = self._matches.get(key)
        if entries is None:
            with self._lock:
                dispatcher = self._dispatchers.get(primitive)
                cells = dispatcher.dispatch_iter(*types) if dispatcher else ()
                entries = [entry for cell in cells for entry in cell.values()]
                if all(map(_is_dense, types)):
                    entries = [e for e in entries if e.rule.signature.is_dense()]
                if any(issubclass(t, Value) and t._has_to_be_named for t in types):
                    entries = [e for e in entries if e.outer(types) == math.inf]
                self._matches[key] = entries
        return entries


global_rules = Table()
register = global_rules.register
add_entry = global_rules.add_entry


class RulesInForce:
    """The tables in which one rewriting looks up rules, the nearest first.

    The last ``num_later`` tables belong to a transform around this one, which is going to
    rewrite what this one makes of arrays. Their rules for arrays alone, and their
    entries of passes, are left to it, because the results of a rule are final. Only if
    ``has_values`` are these entries in force: the transform around may not meet the values.
    """

    __slots__ = ("has_values", "num_later", "tables")

    def __init__(
        self,
        tables: tuple[Table, ...] = (global_rules,),
        num_later: int = 0,
        has_values: bool = False,
    ):
        self.tables = tables
        self.num_later = num_later
        self.has_values = has_values

    def over(self, tables: Sequence[Table]) -> RulesInForce:
        """These tables with others on top."""
        new = [table for table in tables if table not in self.tables]
        if not new:
            return self
        return RulesInForce((*new, *self.tables), self.num_later, self.has_values)

    def of_traced(self) -> RulesInForce:
        """The tables for transforms inside of a function that is traced to be rewritten."""
        return RulesInForce(self.tables, len(self.tables))

    def of_values(self) -> RulesInForce:
        """The tables for a program of values."""
        return RulesInForce(self.tables, self.num_later, has_values=True)

    def own_tables(self) -> tuple[Table, ...]:
        """The tables of which nothing is left for later."""
        return self.tables[: len(self.tables) - self.num_later]

    def left(self) -> tuple[Any, ...]:
        """The part of a cache's key that tells which rules are left for later; hashable."""
        return self.num_later, self.has_values

    def matter_inside(self) -> bool:
        """Whether traces with these tables may differ from traces without a transform."""
        may_differ = global_rules.dense_rules() or any(global_rules._of_passes.values())
        return self.tables != (global_rules,) or bool(may_differ)

    def state(self) -> tuple[Any, ...]:
        """The part of a cache's key that stands for the rules; hashable. It holds no table."""
        return tuple((rules._ref, rules.version) for rules in self.tables)

    def dense_primitives(self) -> frozenset[Primitive]:
        primitives = frozenset().union(
            *(rules.dense_rules() for rules in self.own_tables())
        )
        return primitives.union(*(pass_.primitives for pass_ in self.passes()))

    def passes(self) -> dict[hooks.Pass, list[tuple[int, Any]]]:
        """The passes that have entries, each with the number of its table, the nearest first."""
        tables = self.tables if self.has_values else self.own_tables()
        in_force = {}
        for pass_ in hooks.passes:
            entries = [
                (i, entry)
                for i, rules in enumerate(tables)
                for entry in rules.entries_of(pass_)
            ]
            if entries:
                in_force[pass_] = entries
        return in_force

    def primitives_with_literals(self) -> frozenset[Primitive]:
        return frozenset().union(
            *(rules.primitives_with_literals() for rules in self.tables)
        )

    def choice(self, primitive: Primitive, operands: Sequence[Operand]) -> Choice:
        """The rules for operands of an equation, values and atoms of a jaxpr."""
        types = tuple(map(type_of, operands))
        declined: list[Declined] = []

        def levels() -> Iterator[list[Entry]]:
            for rules in self.tables if any(map(is_value, operands)) else self.own_tables():
                entries = rules.matches(primitive, types)
                if any(entry.is_guarded() for entry in entries):
                    entries = guarded(entries, avals_of(operands), declined)
                yield entries

        return Choice(primitive, types, levels(), declined)


def guarded(
    entries: list[Entry], avals: Sequence[Any], declined: list[Declined]
) -> list[Entry]:
    """The entries whose guards hold."""
    held = []
    for entry in entries:
        if guards_hold(entry.guards, avals):
            held.append(entry)
        else:
            declined.append(Declined(entry.rule, "its shapes or dtypes do not fit"))
    return held


def type_of(operand: Operand) -> type:
    """The type that an operand is dispatched on as."""
    if is_value(operand):
        return type(operand)
    return Number if type(operand) is Literal else Dense


def _is_dense(annotated: Any) -> bool:
    if isvariadic(annotated):
        return all(map(_is_dense, annotated.variadic_type))
    return issubclass(annotated, Dense)


class Choice:
    """The rules for one equation, in the order in which they are to be asked.

    Whoever iterates over it asks each rule, and puts its result into ``results``:
    ``NotImplemented`` if it declined, which makes room for the next rules. While several are
    tied (``is_tied``), a rule that raises an error gives a `Failure`, because another may yet
    apply. After the iteration ``result`` is from the foremost rule that did not decline, and
    ``rule`` is that rule.

    Parameters
    ----------
    levels
        The entries of one table after the other.
    declined
        Gets the rules that came first and declined.
    ambiguity
        Makes the message of the error if several apply, as `_ambiguity` does.

    Raises
    ------
    AmbiguousRuleError
        In the iteration, if two rules apply and neither comes before the other.
    """

    def __init__(
        self,
        primitive: Primitive,
        types: tuple[type, ...],
        levels: Iterable[list[Entry]],
        declined: list[Declined],
        ambiguity: Callable[..., str] | None = None,
    ):
        self.declined = declined
        self.results: dict[Ranked, Any] = {}
        self.rule: Ranked | None = None
        self.result: Any = NotImplemented
        self.is_tied = False
        self._primitive = primitive
        self._types = types
        self._levels = levels
        self._ambiguity = ambiguity or _ambiguity

    def __iter__(self) -> Iterator[Any]:
        for entries in self._levels:
            while entries:
                foremost = list(
                    dict.fromkeys(e.rule for e in foremost_of(entries, self._types))
                )
                self.is_tied = len(foremost) > 1
                yield from (rule for rule in foremost if rule not in self.results)
                out = [rule for rule in foremost if self.results[rule] is NotImplemented]
                if not out:
                    self._end(foremost)
                    return
                self.declined += [Declined(r, "it returned NotImplemented") for r in out]
                entries = [entry for entry in entries if entry.rule not in out]

    def _end(self, rules: list[Ranked]) -> None:
        if len({rule.fn for rule in rules}) > 1:
            raise AmbiguousRuleError(self._ambiguity(self._primitive, self._types, rules))
        self.rule = rules[0]
        self.result = result = self.results[self.rule]
        if isinstance(result, Failure):
            raise result.error


class Failure(NamedTuple):
    """The error that a rule raised. Such a rule has not declined."""

    error: Exception


def foremost_of(entries: list[Entry], types: tuple[type, ...]) -> list[Entry]:
    """The entries that no other entry comes before."""
    highest = max(entry.rule.precedence for entry in entries)
    level = [entry for entry in entries if entry.rule.precedence == highest]
    first = [e for e in level if not any(other.beats(e) for other in level)]
    if len(first) > 1:
        outermost = max(entry.outer(types) for entry in first)
        first = [entry for entry in first if entry.outer(types) == outermost]
    return first


def names_of_types(types: tuple[type, ...]) -> list[str]:
    return ["Array" if _is_dense(t) else t.__name__ for t in types]


def _ambiguity(
    primitive: Primitive, types: tuple[type, ...], rules: Sequence[Ranked]
) -> str:
    names = names_of_types(types)
    listed = "\n".join(f"  {rule}" for rule in rules)
    parameters = ", ".join(
        f"{chr(ord('x') + i) if i < 3 else f'x{i}'}: {name}" for i, name in enumerate(names)
    )
    # A primitive for a function says so, and is registered for without quotation marks.
    kind, shown = getattr(primitive, "said", ("Primitive", repr(primitive.name)))
    return (
        f"{kind} {shown} on ({', '.join(names)}) has several rules of precedence "
        f"{rules[0].precedence}, and none is more specific than the others:\n{listed}\n"
        "Ways out: register a rule for just these types,\n"
        f"  @jaxrewrite.register({shown})\n"
        f"  def _({parameters}, **params): ...\n"
        "or give one of the classes a higher outer = ..., or one of the rules a higher precedence=; or apply "
        "them in turn by nested transforms: transform(transform(fn, filter_spec=...), filter_spec=...)."
    )


# --- primitives by name --------------------------------------------------------


def look_up_primitive(primitive: Primitive | str | Callable[..., Any]) -> Primitive:
    """Return the primitive of a name, or that stands for a function; `ValueError` if none."""
    if isinstance(primitive, Primitive):
        return primitive
    if not isinstance(primitive, str):
        for called in (find(primitive) for find in finders):
            if called is not None:
                return called
        raise TypeError(
            "A primitive or the name of one is needed, such as 'add', or a function that JAX "
            f"stages as a call; got a {type(primitive).__name__}. "
            "jax.make_jaxpr(fn)(*arrays) shows the primitives of a function."
        )
    found = _compat.primitive_of_name(primitive)
    if found is None:
        close = difflib.get_close_matches(primitive, _compat.primitives_by_name(), 3)
        hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
        if hasattr(jnp, primitive):
            hint = f" jax.make_jaxpr(jax.numpy.{primitive})(*arrays) shows those of that function."
        raise ValueError(f"JAX has no primitive {primitive!r}.{hint}")
    return found


def refuse_namesakes(primitives: Iterable[Primitive]) -> None:
    """Raise `ValueError` for a primitive that handlers and rules would take for one of JAX's."""
    for primitive in filter(_compat.is_namesake, primitives):
        raise ValueError(
            f"JAX has a primitive {primitive.name!r}, and here is another one of that name. "
            f"Rules are found by names: give yours another, such as Primitive('my_{primitive.name}')."
        )
