"""Staging: from a function and its arguments to a rewritten program.

The function is traced once over the avals of its arguments. A value that ``filter_spec``
chooses is one array of its aval; any other argument goes in leaf by leaf. The jaxpr is then
rewritten for the values that were passed.
"""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import operator
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    MutableMapping,
    MutableSequence,
    MutableSet,
    Sequence,
)
from types import FunctionType
from typing import Any, NamedTuple

import jax
from jax.tree_util import (
    PyTreeDef,
    keystr,
    tree_flatten,
    tree_flatten_with_path,
    tree_leaves,
    tree_map,
    tree_unflatten,
)

from .. import _compat
from .._compat import Jaxpr, ShapedArray, Tree
from .._core import hooks
from .._core.avals import aval_of, avals_of, children, is_adopted, values_inside
from .._core.dead_code import drop_dead_code
from .._core.errors import add_note, at_line
from .._core.notices import Notice, warn
from .._core.pytree import dataclass_fields
from .._core.rewrite import Rewriter, new_rewriter
from .._core.rules import Rule, RulesInForce, global_rules
from .._core.settings import Settings, use_settings
from .._core.site import describe_operand, in_form
from .._core.traces import Rewriting
from .._core.value import Operand, Value, is_value
from . import collector
from .aliases import READING, WITH_RULES, with_results_of_sources
from .closures import Staging, bodies_close_over, run_of, with_arrays_of_call
from .donation import without_shared_donations
from .program import Program


# A predicate on leaves, or a pytree prefix of the function, its arguments and keywords.
FilterSpec = bool | Callable[[Any], Any] | tuple[Any, Any, Any]


class Arguments(NamedTuple):
    """A transformed function and the arguments of a call.

    ``tree`` is ``(fn, args, kwargs)``. Its ``fn`` is ``None`` if the function is not a
    pytree, so that no cache holds the function.
    """

    fn: Callable[..., Any]
    tree: tuple[Any, tuple[Any, ...], dict[str, Any]]


class Staged(NamedTuple):
    """A program, and how its leaves relate to the leaves of arguments and results.

    ``positions`` are the leaves of the arguments that the program takes. The results have
    ``out_tree``, with arrays and values as leaves. Classes of users in it are made of these alone, as
    `jax.jit` makes them: a class may look at its leaves. ``items_tree`` is that of the list of
    the arrays and values, or ``None`` if there are arrays alone. ``out_leaves`` has the results
    that are not arrays, and ``None`` for the others. If there are ``changing`` hooks, the result is
    a pair of the function's own result and of what each of them stores.
    """

    program: Program
    positions: list[int]
    out_tree: PyTreeDef
    items_tree: PyTreeDef | None
    out_leaves: list[Any] | None
    out_positions: list[int]
    # For rules that close over arrays; ``None`` if no rule does.
    staging: Staging | None
    # Whether a value among the results has no leaves.
    has_leafless: bool
    changing: Sequence[hooks.StagingHook]
    # A rule that uses the program again passes them on.
    warnings: Sequence[Notice]
    # Whether it is for this call alone, because its results are without derivatives.
    is_of_call: bool = False

    def is_cacheable(self) -> bool:
        """Whether the program is the same at each call."""
        is_of_a_trace = self.staging is not None and self.staging.is_of_a_trace()
        hidden = itertools.chain.from_iterable(
            map(_compat.tracers_hidden_in, self.out_leaves or ())
        )
        hides_none = next(hidden, None) is None
        is_kept = hides_none and not (is_of_a_trace or self.is_of_call)
        return is_kept and self.program.is_cacheable()

    def is_spent(self) -> bool:
        """Whether the program holds arrays of a call that has ended."""
        return self.staging is not None and self.staging.is_spent

    def __call__(self, leaves: Sequence[Any]) -> Tree:
        operands = [leaves[i] for i in self.positions]
        # While nothing is traced, no derivative rule runs.
        if self.staging is None or _compat.nothing_is_traced():
            results = self.program(operands)
        else:
            with run_of(self.staging, operands):
                results = self.program(operands)
        results = self.program.for_user(results)
        if self.out_leaves is not None:
            filled = list(map(_own, self.out_leaves))
            for i, result in zip(self.out_positions, results, strict=True):
                filled[i] = result
            results = filled
        if self.items_tree is not None:
            results = tree_unflatten(self.items_tree, results)
        return tree_unflatten(self.out_tree, results)


@_compat.without_internal_frames
def stage(arguments: Arguments, filter_spec: FilterSpec, settings: Settings) -> Staged:
    """Trace a function over its arguments' avals, and rewrite it for the values."""
    operands, tree = tree_flatten(arguments.tree, is_leaf=is_value)
    settings = _with_tables_of(settings, filter(is_value, operands))
    # With many operands, their names would cost more than the rest of staging.
    names = _operand_names(arguments) if len(operands) < 64 else None
    inputs = _inputs(operands, _chosen(filter_spec, arguments, operands), names)
    with use_settings(settings.of_traced()):
        traced, consts, out = _trace_user_function(arguments, tree, inputs, settings)
        is_of_call = False
        if out.changing:  # A loop may store what it read, as layers of flax.nnx do.
            traced, is_of_call = _with_results_read(traced)
    with collector.paused():
        builder = new_rewriter(Rewriting(settings))
        jaxpr = drop_dead_code(traced, builder.rewriting.data_flow(traced))
        symbolic = [
            builder.operand(var, like)
            for var, like in zip(jaxpr.invars[len(consts) :], inputs.likes, strict=True)
        ]
        call = functools.partial(_call, builder)
        ordered = [in_form(x, call) for x in symbolic]
        operands = [*builder.constants(jaxpr, consts), *ordered]
        builder.arguments = {*jaxpr.invars}
        builder.inputs = {*tree_leaves(operands)}
        results = builder.run(builder.after_passes(jaxpr, operands), operands)
        if out.changing:  # What was read alone is stored as it was, and in no other form.
            given = dict(zip(jaxpr.invars[len(consts) :], symbolic, strict=True))
            results = [given.get(v, x) for v, x in zip(_vars(jaxpr), results, strict=True)]
        if builder.changed:
            results = [
                _as_weak_as(builder, x, var.aval)
                for x, var in zip(results, traced.outvars, strict=True)
            ]
        rest = iter(map(_told, results))
        items = [item.filled(rest) for item in out.items]
        _check_nesting(out.items, items, arguments.fn, inputs.likes)
        leaves, items_tree = tree_flatten(items)
        is_static = [isinstance(leaf, _Static) for leaf in leaves]
        outvars = [leaf for leaf, s in zip(leaves, is_static, strict=True) if not s]
        rewritten = builder.finish(
            tree_leaves(symbolic), outvars, items_tree, jaxpr.debug_info
        )
        program = without_shared_donations(rewritten.jaxpr)
    if settings.recorder is not None:
        settings.recorder.add_program(jaxpr, program)
    warn(rewritten.warnings)
    statics = [x.leaf if s else None for x, s in zip(leaves, is_static, strict=True)]
    staging = _staging(traced, consts, inputs.likes)
    of_call = functools.partial(with_arrays_of_call, settings, builder)
    return Staged(
        Program(
            program,
            rewritten.consts,
            rewritten.applied,
            differentiated=None if staging is None else of_call,
        ),
        inputs.positions,
        out.tree,
        items_tree if any(map(is_value, items)) else None,
        statics if any(is_static) else None,
        [i for i, s in enumerate(is_static) if not s],
        staging,
        any(map(is_leafless, tree_leaves(items, is_leafless))),
        out.changing,
        rewritten.warnings,
        is_of_call,
    )


def _told(result: Operand) -> Operand:
    """A result without the annotations that are as for any array, of which nothing has told more."""
    while is_value(result) and is_adopted(result):
        result = result.materialise()
    return result


def _with_results_read(jaxpr: Jaxpr) -> tuple[Jaxpr, bool]:
    """The program, which returns arrays that it only read as they were, and whether it has no derivative.

    While nothing is traced, a function with a derivative rule does no more than that either.
    """
    read = with_results_of_sources(jaxpr, READING)
    if not _compat.nothing_is_traced():
        return read, False
    whole = with_results_of_sources(jaxpr, READING | WITH_RULES)
    return whole, whole.outvars != read.outvars


def _vars(jaxpr: Jaxpr) -> list[Any]:
    """The results of a program that are variables, and ``None`` for others."""
    return [None if isinstance(v, _compat.Literal) else v for v in jaxpr.outvars]


def _with_tables_of(settings: Settings, values: Iterable[Value]) -> Settings:
    """The settings for a program on these values: the tables of their types come last."""
    tables = dict.fromkeys(table for value in values for table in value._tables)
    given = settings.rules
    new = [table for table in tables if table not in given.tables]
    if not new:
        return settings
    num_later = given.num_later and given.num_later + len(new)
    joined = RulesInForce((*given.tables, *new), num_later, given.has_values)
    return settings._replace(rules=joined)


def _check_nesting(
    returned: Sequence[_Item],
    items: Sequence[Any],
    fn: Callable[..., Any],
    likes: Sequence[Any],
) -> None:
    """Raise `TypeError` if a value that the function made holds one of its own type, but must not.

    It was made of an array that stands for an argument, which turned out to be that type. What
    rules made may hold what the arguments hold. Where an argument, one of the ``likes``, has
    such a value inside, what is made of its parts has one more around it.
    """
    for item, value in zip(returned, items, strict=True):
        if not item.is_made or not is_value(value) or value._holds_its_own:
            continue  # A value that is no pytree is its own leaf.
        cls = type(value)
        if cls in map(type, children(value)[0]) and not any(
            type(x) is cls for like in likes for x in values_inside(like)
        ):
            name = cls.__name__
            raise TypeError(
                f"{getattr(fn, '__qualname__', fn)} returns a {name} of a {name}. A value that it "
                "closes over, or makes, has met an argument, which it saw as an array. Pass the "
                "value as an argument."
            )


def _as_weak_as(builder: Rewriter, result: Operand, aval: ShapedArray) -> Operand:
    """A result with the weak or strong type that it has in the program.

    What rules make of a weak type may be strong, and the other way round. The type of a value
    is that of its leaves.
    """
    is_weak = _compat.is_weak(aval)

    def convert(atom: Any) -> Operand:
        if atom.aval.dtype != aval.dtype or not (is_weak or _compat.is_weak(atom.aval)):
            return atom
        # A variable of the program may have a weak type where the result of its rule has none.
        operand = _compat.strong(atom.aval) if is_weak else atom.aval
        return _call(builder, lambda x: [_compat.as_weak_as(x, aval)], [atom], [operand])[0]

    return tree_map(convert, result)


def _call(
    builder: Rewriter,
    fn: Callable[..., list[Any]],
    atoms: Sequence[Any],
    avals: Sequence[Any] | None = None,
) -> list[Any]:
    """Add the equations of a function of atoms, which may be traced for other avals."""
    avals = avals_of(atoms) if avals is None else avals
    jaxpr, consts = _compat.trace_to_jaxpr(fn, avals, _compat.new_debug_info("staged", fn))
    return builder.run(jaxpr, [*builder.constants(jaxpr, consts), *atoms])


def _staging(jaxpr: Jaxpr, consts: Sequence[Any], likes: Sequence[Any]) -> Staging | None:
    primitives = set(map(operator.attrgetter("primitive"), jaxpr.eqns))
    names = {primitive.name for primitive in primitives}
    if names.isdisjoint(_compat.OWN_RULES) and not any(map(bodies_close_over, jaxpr.eqns)):
        return None
    return Staging(jaxpr, consts, tree_flatten(list(likes))[1])


class _Inputs(NamedTuple):
    """The flat arguments of a staged function, and how to rebuild its arguments.

    ``avals`` and ``names`` are those of the flat arguments. ``likes`` has an aval for each,
    or a value with avals as leaves. ``rebuild`` has a function for each operand, which
    makes it from an iterator over the tracers. ``positions`` are the leaves of the
    arguments that the program takes.
    """

    avals: list[Any]
    names: list[str] | None
    likes: list[Any]
    rebuild: list[Callable[[Any], Any]]
    positions: list[int]


def _inputs(
    operands: Sequence[Any], is_flattened: Sequence[bool], names: Sequence[str] | None
) -> _Inputs:
    inputs = _Inputs([], None if names is None else [], [], [], [])
    count = 0
    for i, operand in enumerate(operands):
        if _compat.is_array(operand):
            leaves = avals = [_compat.leaf_aval(operand)]
            inputs.rebuild.append(next)
            inputs.likes.extend(avals)
            inputs.positions.append(count)
        elif is_value(operand) and is_flattened[i]:
            leaves, treedef = tree_flatten(operand)
            avals = [aval_of(operand)]
            inputs.rebuild.append(next)
            inputs.likes.append(tree_unflatten(treedef, avals_of(leaves)))
            inputs.positions.extend(range(count, count + len(leaves)))
        else:
            leaves, treedef = tree_flatten(operand)
            dynamic = [_compat.is_array(leaf) for leaf in leaves]
            avals = avals_of([x for x, d in zip(leaves, dynamic, strict=True) if d])
            inputs.rebuild.append(_rebuilder(treedef, leaves, dynamic))
            inputs.likes.extend(avals)
            inputs.positions.extend(count + j for j, d in enumerate(dynamic) if d)
        inputs.avals.extend(avals)
        if names is not None and inputs.names is not None:
            inputs.names.extend([names[i]] * len(avals))
        count += len(leaves)
    return inputs


class _Static:
    """A result that is not an array, as a leaf among arrays."""

    __slots__ = ("leaf",)

    def __init__(self, leaf: object):
        self.leaf = leaf


_RESULT = object()


class _Item(NamedTuple):
    """One leaf of what a function returns, where values are leaves, as the leaves of its own.

    Those that the program computes are ``_RESULT``. A value is made by the function itself.
    """

    treedef: PyTreeDef
    leaves: list[Any]
    is_made: bool

    @classmethod
    def of(cls, x: Any) -> tuple[_Item, list[Any]]:
        """The item, and the arrays in it."""
        leaves, treedef = tree_flatten(x)
        is_result = [_compat.is_array(leaf) for leaf in leaves]
        arrays = [leaf for leaf, r in zip(leaves, is_result, strict=True) if r]
        held = [_RESULT if r else leaf for leaf, r in zip(leaves, is_result, strict=True)]
        return cls(treedef, held, is_value(x)), arrays

    def filled(self, results: Iterator[Any]) -> Any:
        """The item with the next of the results for its arrays."""
        leaves = [next(results) if x is _RESULT else _Static(x) for x in self.leaves]
        return tree_unflatten(self.treedef, leaves)


def _check_statics(leaves: Sequence[Any], fn: Callable[..., Any]) -> None:
    """Raise `TypeError` if an object that JAX sees as one leaf holds arrays of the trace."""
    for x in leaves:
        if any(map(_compat.is_of_current_trace, _compat.tracers_hidden_in(x))):
            raise TypeError(
                f"{getattr(fn, '__qualname__', fn)} returns a {type(x).__name__} that holds arrays, "
                "which JAX does not see: it is no pytree. Return them in a pytree, such as a "
                "dictionary, or register the class."
            )


_MUTABLE = (MutableMapping, MutableSequence, MutableSet)


def _own(x: object) -> object:
    """A result that is no array, for one caller: a collection that can change is copied."""
    return copy.copy(x) if isinstance(x, _MUTABLE) else x


class _Returned(NamedTuple):
    """What a function returns: a pytree of items. ``changing`` are hooks that store something."""

    tree: PyTreeDef
    items: list[_Item]
    changing: Sequence[hooks.StagingHook]


def _rebuilder(
    treedef: PyTreeDef, leaves: Sequence[Any], dynamic: Sequence[bool]
) -> Callable[[Any], Any]:
    static = [None if d else leaf for leaf, d in zip(leaves, dynamic, strict=True)]

    def rebuild(tracers: Iterator[jax.Array]) -> Tree:
        return tree_unflatten(
            treedef,
            [next(tracers) if d else s for s, d in zip(static, dynamic, strict=True)],
        )

    return rebuild


def _trace_user_function(
    arguments: Arguments, tree: PyTreeDef, inputs: _Inputs, settings: Settings
) -> tuple[Any, list[Any], _Returned]:
    fn = arguments.fn
    out: list[_Returned] = []

    def flat(*tracers: jax.Array) -> list[Any]:
        rest = iter(tracers)
        rebuilt = tree_unflatten(tree, [build(rest) for build in inputs.rebuild])
        before = [(hook, hook.before(rebuilt)) for hook in hooks.staging_hooks]
        called, args, kwargs = rebuilt
        results = (fn if called is None else called)(*args, **kwargs)
        after = [(hook, hook.after(state)) for hook, state in before]
        changed = [(hook, change) for hook, change in after if change]
        if changed:
            results = results, [change for _, change in changed]
        leaves, out_tree = tree_flatten(results, is_leaf=is_value)
        pairs = [_Item.of(x) for x in leaves]
        _check_statics(
            [x for item, _ in pairs for x in item.leaves if x is not _RESULT], fn
        )
        items = [item for item, _ in pairs]
        out.append(_Returned(out_tree, items, [hook for hook, _ in changed]))
        return [x for _, arrays in pairs for x in arrays]

    debug_info = _compat.new_debug_info(
        getattr(fn, "__name__", type(fn).__name__),
        inspect.unwrap(fn),
        inputs.names,
    )
    try:
        jaxpr, consts = _compat.trace_program(flat, inputs.avals, debug_info)
    except Exception as error:
        name = getattr(fn, "__qualname__", type(fn).__name__)
        _note_staging(error, name, inputs.likes)
        if not any(map(is_value, inputs.likes)):
            for rule in local_dense_rules(settings.rules)[:1]:
                add_note(
                    error,
                    f"jaxrewrite: {name} is staged without any value among its arguments "
                    f"because of rules for dense operands, such as {rule}.",
                )
        raise
    return jaxpr, consts, out[0]


def local_dense_rules(in_force: RulesInForce) -> list[Rule]:
    """The rules for dense operands alone in tables that a transform was given."""
    return [
        rule
        for rules in in_force.own_tables()
        if rules is not global_rules
        for rule in rules.dense_rules().values()
    ]


_NEEDS_A_NUMBER = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


def is_leafless(x: object) -> bool:
    """Whether a value has no leaves, so that `jax.vmap` cannot add batch axes to it."""
    return is_value(x) and not tree_leaves(x)


def _note_staging(error: Exception, name: str, likes: Sequence[Any]) -> None:
    """Add the line to an error in the user's function, or in JAX's functions that it calls."""
    shown = ", ".join(map(describe_operand, likes))
    line = at_line(_compat.raised_at(error))
    add_note(error, f"jaxrewrite: in staging {name} on ({shown}){line}")
    # JAX takes a text for axes of a mesh.
    has_names = any(callable(getattr(type(like), "axis", None)) for like in likes)
    if isinstance(error, NameError) and has_names:
        add_note(
            error,
            f"jaxrewrite: the axes of arrays have numbers alone in {name}. The functions of "
            "jaxrewrite.numpy take names, outside of a transformed function.",
        )
    if isinstance(error, AttributeError) and isinstance(error.obj, _compat.Tracer):
        asked = str(error.name)
        for cls in dict.fromkeys(type(like) for like in likes if _has(like, asked)):
            add_note(
                error,
                f"jaxrewrite: values of type {cls.__name__} are arrays in {name}, as functions of "
                f"JAX see them, and have no {asked} there. Use that outside, and pass what comes of it.",
            )
    if isinstance(error, _NEEDS_A_NUMBER):
        add_note(
            error,
            f"jaxrewrite: {name} is staged before it is evaluated, as under jax.jit, so "
            "its arrays have no concrete values. Use lax.cond and its kin, or pass what is "
            "known beforehand as a Python scalar, which is static.",
        )


def _has(like: Any, name: str) -> bool:
    """Whether a value has a field or a method of that name."""
    if not is_value(like):
        return False
    is_field = any(f.name == name for f in dataclass_fields(type(like)))
    return is_field or hasattr(type(like), name)


def _operand_names(arguments: Arguments) -> list[str]:
    """The names of the operands in JAX's errors."""
    fn, (_, args, _) = arguments
    parameters = _parameter_names(fn, args)

    def name(path: tuple[Any, ...]) -> str:
        if path[0].idx == 0:
            return f"the function{keystr(path[1:])}"
        if path[0].idx == 2:
            return f"{path[1].key}{keystr(path[2:])}"
        i = path[1].idx
        first = parameters[i] if i < len(parameters) else f"args[{i}]"
        return f"{first}{keystr(path[2:])}"

    paths = tree_flatten_with_path(arguments.tree, is_leaf=is_value)[0]
    return [name(path) for path, _ in paths]


def _parameter_names(fn: Callable[..., Any], args: Sequence[Any]) -> Sequence[str]:
    if type(fn) is FunctionType and not hasattr(fn, "__wrapped__"):
        return fn.__code__.co_varnames[: fn.__code__.co_argcount]
    try:  # This takes ten times as long.
        return list(inspect.signature(fn).bind_partial(*args).arguments)
    except (TypeError, ValueError):
        return []


# --- which values are rewritten ---------------------------------------------------


def _chosen(
    filter_spec: FilterSpec, arguments: Arguments, operands: Sequence[Any]
) -> Sequence[bool]:
    """Whether the filter chooses each of the operands."""
    if isinstance(filter_spec, bool):
        return [filter_spec] * len(operands)
    if callable(filter_spec):
        return [bool(filter_spec(operand)) for operand in operands]
    try:
        spread = tree_map(
            lambda flag, subtree: [flag] * len(tree_leaves(subtree, is_leaf=is_value)),
            filter_spec,
            arguments.tree,
        )
    except ValueError as error:
        raise ValueError(
            "filter_spec must be True, False, a predicate on leaves, or a pytree prefix "
            f"of booleans of (fn, args, kwargs): {error}"
        ) from error
    flags = tree_leaves(spread)
    if len(flags) != len(operands) or not all(isinstance(f, bool) for f in flags):
        raise ValueError(
            "filter_spec must be True, False, a predicate on leaves, or a pytree prefix "
            f"of booleans of (fn, args, kwargs); got {filter_spec!r}."
        )
    return flags
