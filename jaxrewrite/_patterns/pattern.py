"""`Pattern`: a rule for several equations, as it was registered."""

from __future__ import annotations

import inspect
import operator
import typing
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, NamedTuple

import jax
from jax.tree_util import PyTreeDef, tree_flatten, tree_unflatten

from .. import _compat
from .._analyses.calls import can_match
from .._analyses.graph import Graph, flatten
from .._analyses.same import same_function
from .._compat import Literal
from .._core.annotations import (
    Dense,
    Signature,
    name_of,
    read_hints,
    read_signature,
    written,
)
from .._core.caches import BoundedCache
from .._core.dead_code import drop_dead_code
from .._core.errors import add_note
from .bodies import Hole
from .domains import Statics, read_statics
from .numbering import merged
from .search import root


class Traced(NamedTuple):
    """The looked-for function at some operands.

    ``start`` is the node that a search starts from, or ``None`` if some result is not the
    result of an equation.
    """

    graph: Graph
    out_tree: PyTreeDef
    start: int | None


# How the looked-for function is batched: ``None``, or for each `jax.vmap` around it, the
# outermost first, which of its operands are mapped.
Variant = tuple[tuple[bool, ...], ...] | None


def _is_callable(annotation: Any) -> bool:
    origin = typing.get_origin(annotation) or annotation
    return origin is Callable or origin is typing.Callable


def _annotation(annotation: Any) -> Any:
    """The annotation of an operand as a rule of one equation would have it."""
    if annotation in _SCALARS:
        return Literal
    return Any if _is_callable(annotation) else annotation


def allows_arrays(cls: type) -> bool:
    """Whether an annotation of a type allows operands that are no values."""
    return cls is object or issubclass(cls, Dense)


# Annotations of operands that are numbers in the program itself.
_SCALARS = (int, float, complex)


class Pattern:
    """A function that a user looks for, and the rule that replaces it."""

    def __init__(
        self,
        before: Callable[..., Any],
        fn: Callable[..., Any],
        namespace: Mapping[str, Any],
        *,
        when: Callable[..., bool] | None,
        precedence: int,
        probes: Sequence[Any],
        keep: bool,
    ):
        if when is not None and not callable(when):
            raise TypeError(f"when= must be a function, not a {type(when).__name__}.")
        self.before = before
        self.fn = fn
        self.when = when
        self.precedence = operator.index(precedence)
        self.keep = keep
        parameters = _parameters(before, "The function that a pattern looks for")
        rule_parameters = _parameters(fn, "A pattern rule")
        rule_hints = read_hints(fn, name_of(fn), namespace)
        hints = {**rule_hints, **_hints_or_none(before, namespace)}
        self.names = _operand_names(parameters, rule_parameters, self)
        annotations = [rule_hints.get(name, Any) for name in self.names]
        # The operands that are numbers in the program, with their types.
        self.scalars = {i: t for i, t in enumerate(annotations) if t in _SCALARS}
        # The operands that are functions: bodies of scans.
        self.bodies = [i for i, t in enumerate(annotations) if _is_callable(t)]
        # How many results for each step are told apart. A single result may be any of them.
        self.num_ys: int = getattr(fn, "num_ys", 1)
        if len(self.bodies) > 1:
            raise TypeError("A pattern has at most one Callable operand." + self.both())
        annotations = [_annotation(t) for t in annotations]
        self.signature: Signature = read_signature(fn, namespace, annotations)
        keywords = {n: p for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
        self.statics: Statics = read_statics(
            keywords, hints, definition_of(before), self.both()
        )
        # Whether the annotations allow everything.
        self.is_free = all(
            a.type is object and a.guard is None
            for slot in self.signature.operands
            for a in slot
        )
        # Whether some operand has to be a value.
        self.needs_value = not any(
            all(allows_arrays(t) for t in types)
            for types, _ in self.signature.combinations()
        )
        _check_keywords(rule_parameters, self)
        self.probes = [_as_probe(probe, self) for probe in probes]
        self._traces = BoundedCache(4096)
        # The forms that the function is known to take, by trace context, and the indices of
        # which this is the first pattern.
        self.known = BoundedCache(16)
        self.indices = BoundedCache(16)
        # The patterns of longer chains that `nested` made for this one.
        self.longer = BoundedCache(64)

    def replaces(self, other: Pattern) -> bool:
        """Whether this is the same pattern registered again."""
        return (
            same_function(self.before, other.before)
            and self.statics == other.statics
            and list(self.signature.combinations()) == list(other.signature.combinations())
            and self.scalars == other.scalars
            and (
                self.when is other.when
                or (
                    self.when is not None
                    and other.when is not None
                    and same_function(self.when, other.when)
                )
            )
        )

    def __str__(self) -> str:
        return f"{name_of(self.fn)} ({definition_of(self.fn)})"

    def both(self) -> str:
        """Where the two functions of the pattern are, for errors."""
        return (
            f"\n  looked for: {name_of(self.before)} ({definition_of(self.before)})"
            f"\n  rule: {name_of(self.fn)} ({definition_of(self.fn)})"
        )

    # --- traces -----------------------------------------------------------------

    def trace(
        self, args: Sequence[Any], statics: Mapping[str, Any], variant: Variant = None
    ) -> Traced | Exception:
        """Trace the looked-for function at avals and Python scalars, once for each.

        Returns the error if it cannot be traced there.
        """
        key = (
            tuple(map(_key, args)),
            tuple((name, repr(value)) for name, value in statics.items()),
            variant,
            _compat.trace_context(),
        )
        traced = self._traces.get(key)
        if traced is None:
            traced = self._trace(args, statics, variant)
            self._traces.put(key, traced)
        return traced

    def _trace(
        self, args: Sequence[Any], statics: Mapping[str, Any], variant: Variant
    ) -> Traced | Exception:
        out: list[Any] = []
        before = self.batched(self.before, args, statics, variant)
        leaves, tree = tree_flatten(list(args), is_leaf=lambda x: isinstance(x, Hole))
        avals = [leaf for leaf in leaves if isinstance(leaf, _compat.ShapedArray)]

        def flat(*tracers: Any) -> list[Any]:
            rest = iter(tracers)
            operands = [
                next(rest)
                if isinstance(leaf, _compat.ShapedArray)
                else leaf.function()
                if isinstance(leaf, Hole)
                else leaf
                for leaf in leaves
            ]
            results, out_tree = tree_flatten(before(*tree_unflatten(tree, operands)))
            out.append(out_tree)
            return results

        debug_info = _compat.new_debug_info(name_of(self.before), self.before)
        try:
            with _compat.mesh_of(avals), _compat.unfiltered_errors():
                jaxpr, consts = _compat.trace_to_jaxpr(flat, avals, debug_info)
        except Exception as error:  # noqa: BLE001 - a user's function raises anything
            return _without_frames(error)
        if any(isinstance(const, _compat.Tracer) for const in consts):
            return TypeError("it closes over a tracer")
        jaxpr = drop_dead_code(jaxpr)
        graph = merged(flatten(jaxpr, consts)).numbered(operand_names(args))
        if not graph.results or any(ref[0] != "node" for ref in graph.results):
            return Traced(graph, out[0], None)
        core, kept = graph.core()
        return Traced(graph, out[0], kept[root(core)])

    def batched(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        statics: Mapping[str, Any],
        variant: Variant,
    ) -> Callable[..., Any]:
        """A function of the pattern with its static parameters, batched as the variant says.

        Python scalars among the operands are no operands of `jax.vmap`.
        """
        if variant is None:
            return lambda *operands: fn(*operands, **statics)

        def call(*operands: Any) -> Any:
            declined = False

            def checked(*operands: Any) -> Any:
                nonlocal declined
                results = fn(*operands, **statics)
                declined = results is NotImplemented  # It can't leave `jax.vmap`.
                return () if declined else results

            batched = checked
            for mapped in reversed(variant):
                batched = _mapped(batched, mapped)
            results = batched(*operands)
            return NotImplemented if declined else results

        return call

    def check(self, traced: Traced) -> None:
        """Raise if no pattern can be made of a trace."""
        graph = traced.graph
        effects = [node.eqn for node in graph.nodes if not can_match(node.eqn)]
        if effects:
            raise TypeError(
                f"A pattern looks for primitive {effects[0].primitive.name!r}, which has "
                "effects, is random, or must stay where it is. Such equations are never "
                "part of a match." + self.both()
            )
        if any(ref[0] == "const" for ref in graph.refs()):
            raise TypeError(
                "What a pattern looks for has an array in it. Make it an operand, or compute "
                "it in the function, so that it can be found in a program." + self.both()
            )
        if not graph.nodes and not any(ref[0] == "operand" for ref in graph.results):
            raise TypeError("A pattern looks for a function of no equations." + self.both())
        for ref in graph.results:
            if ref[0] != "node":
                kind = "an operand unchanged" if ref[0] == "operand" else "a constant"
                raise TypeError(
                    f"A pattern looks for a function that returns {kind}. Each result must "
                    "be that of an equation." + self.both()
                )


def _without_frames(error: Exception) -> Exception:
    """An error that may be kept: the frames it was raised in hold tracers of the callers."""
    where = _compat.raised_at(error)
    if where is not None:
        add_note(error, f"jaxrewrite: raised at {where[0]}:{where[1]}.")
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is not None and current.__traceback__ is not None:
            current.__traceback__ = None
            pending += current.__cause__, current.__context__
    return error


def _mapped(fn: Callable[..., Any], mapped: Sequence[bool]) -> Callable[..., Any]:
    """`jax.vmap` of a function over some of its operands, where others are no arrays."""
    positions = [i for i, is_mapped in enumerate(mapped) if is_mapped]

    def call(*operands: Any) -> Any:
        def on_rows(*rows: Any) -> Any:
            inner = list(operands)
            for i, row in zip(positions, rows, strict=True):
                inner[i] = row
            return fn(*inner)

        return jax.vmap(on_rows)(*(operands[i] for i in positions))

    return call


def count_of_batches(variant: Variant, i: int) -> int:
    """Over how many leading axes an operand is batched."""
    return sum(mapped[i] for mapped in variant or ())


def without_batch(avals: Sequence[Any], variant: Variant) -> list[Any]:
    """The avals of the operands of a batched pattern, as the pattern itself takes them."""
    unbatched = list(avals)
    for i in range(len(unbatched)):
        for _ in range(count_of_batches(variant, i)):
            unbatched[i] = _compat.without_leading_axis(unbatched[i], unbatched[i].shape[0])
    return unbatched


def _key(arg: Any) -> Any:
    is_known = isinstance(arg, (_compat.ShapedArray, tuple))
    return arg if is_known else (type(arg), repr(arg))


def operand_names(args: Sequence[Any]) -> list[Any]:
    """The names of the arrays among the arguments in a graph: ``i``, or ``(i, leaf)``."""
    names: list[Any] = []
    for i, arg in enumerate(args):
        if isinstance(arg, _compat.ShapedArray):
            names.append(i)
        elif isinstance(arg, tuple) and not isinstance(arg, Hole):
            names += [(i, leaf) for leaf in range(len(arg))]
    return names


# --- reading the two functions --------------------------------------------------------


def definition_of(fn: Any) -> str:
    """File and line of a function, or its name."""
    code = getattr(written(fn), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else name_of(fn)


def _parameters(fn: Any, described: str) -> Mapping[str, inspect.Parameter]:
    if not callable(fn):
        raise TypeError(f"{described} must be a function, not a {type(fn).__name__}.")
    try:
        return inspect.signature(fn).parameters
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{described} must have a signature that Python can tell; {name_of(fn)} has none. "
            "Wrap it in a function of its operands."
        ) from error


def _hints_or_none(fn: Any, namespace: Mapping[str, Any]) -> Mapping[str, Any]:
    """The annotations of a function that may be a library's own."""
    if not isinstance(inspect.unwrap(fn), FunctionType):
        return {}
    try:
        hints = typing.get_type_hints(inspect.unwrap(fn), localns=dict(namespace))
    except (NameError, TypeError):  # Names that only a type checker imports.
        return {}
    return hints


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _operand_names(
    parameters: Mapping[str, inspect.Parameter],
    rule_parameters: Mapping[str, inspect.Parameter],
    pattern: Pattern,
) -> list[str]:
    """The names of the operands; `TypeError` if the two functions do not take the same."""
    if any(
        p.kind is p.VAR_POSITIONAL
        for p in (*parameters.values(), *rule_parameters.values())
    ):
        raise TypeError(
            "A pattern has a fixed number of operands: *args has no meaning."
            + pattern.both()
        )
    needed = [
        name
        for name, p in parameters.items()
        if p.kind in _POSITIONAL and p.default is p.empty
    ]
    possible = [name for name, p in parameters.items() if p.kind in _POSITIONAL]
    names = [name for name, p in rule_parameters.items() if p.kind in _POSITIONAL]
    if names != possible[: len(names)] or len(names) < len(needed):
        raise TypeError(
            "A pattern's two functions take the same operands, by the same names: "
            f"({', '.join(needed)}) is looked for, and the rule takes ({', '.join(names)})."
            + pattern.both()
        )
    if not names:
        raise TypeError("A pattern needs at least one operand." + pattern.both())
    return names


def _check_keywords(
    rule_parameters: Mapping[str, inspect.Parameter], pattern: Pattern
) -> None:
    takes_any = any(p.kind is p.VAR_KEYWORD for p in rule_parameters.values())
    accepted = {name for name, p in rule_parameters.items() if p.kind is p.KEYWORD_ONLY}
    needed = {
        n
        for n, p in rule_parameters.items()
        if p.kind is p.KEYWORD_ONLY and p.default is p.empty
    }
    static_names = {name for name, _ in pattern.statics.domains}
    if not needed <= static_names or not (takes_any or static_names <= accepted):
        raise TypeError(
            "The keyword-only parameters of a pattern's two functions are the same: "
            f"({', '.join(sorted(static_names))}) are looked for, and the rule takes "
            f"({', '.join(sorted(accepted))})." + pattern.both()
        )


def _as_probe(probe: Any, pattern: Pattern) -> tuple[Any, ...]:
    args = probe if isinstance(probe, (tuple, list)) else (probe,)
    if len(args) != len(pattern.names):
        raise TypeError(
            f"A probe has an array, or its shape and dtype, for each of the "
            f"{len(pattern.names)} operands; one of probes= has {len(args)}."
            + pattern.both()
        )
    try:
        return tuple(
            arg if i in pattern.scalars else _compat.strong(_compat.leaf_aval(arg))
            for i, arg in enumerate(args)
        )
    except TypeError as error:
        add_note(error, "jaxrewrite: in probes= of a pattern." + pattern.both())
        raise
