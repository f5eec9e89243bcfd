"""Custom derivative rules on values: tangents and cotangents, there and back.

JAX carries the tangents of a value's leaves. A rule, written for arrays, takes the tangent
of the array. The derivative of ``materialise`` maps the first to the second, and its
transpose maps cotangents back. `Value.lift_tangent` gives leaf tangents for a result.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.tree_util import (
    PyTreeDef,
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_structure,
    tree_unflatten,
)

from .. import _compat
from .._analyses.adopting import adopted, adopters_of
from .._analyses.same import same
from .._compat import Tree
from .._core import avals
from .._core.annotations import named_in_errors
from .._core.avals import (
    aval_of,
    avals_of,
    dense_aval,
    is_adopted,
    is_annotation,
    mismatch,
    rule_children,
    values_inside,
)
from .._core.bodies import rewrite_jaxpr
from .._core.builder import Rewritten
from .._core.caches import BoundedCache
from .._core.dense import Reason, policy_on
from .._core.errors import MaterialisationError, add_note
from .._core.rewrite import Rewriter
from .._core.settings import Settings, use_settings
from .._core.site import Site, describe, in_form
from .._core.traces import Rewriting
from .._core.value import ArrayOrValue, Operand, Value, is_value
from .._joins.join import Structure, join_all, structure_of
from .._staging.materialise import materialise
from .._staging.program import run_on_values
from .._staging.transform import transform
from .adapters import Coerce, MakeDenser, make_denser
from .entrywise import FIXED, Kind, dependences, source


# A tangent or a cotangent of an array.
Tangent: TypeAlias = ArrayOrValue | SymbolicZero


@contextlib.contextmanager
def noting(site: Site, operands: Sequence[Operand]) -> Iterator[None]:
    """Add the equation to errors of a rule, which JAX calls long after it was rewritten."""
    try:
        yield
    except Exception as error:
        if isinstance(error, jax.errors.UnexpectedTracerError):
            add_note(error, _CLOSES_OVER)
        add_note(error, describe(site, operands))
        raise


_CLOSES_OVER = (
    "jaxrewrite: the derivative rule holds an array of a trace that has ended. Pass it to the "
    "function of the rule as an argument, or return it from the forward rule as a residual."
)


# --- which results stay values ---------------------------------------------------


_NOT_LIFTED = Reason(
    "A custom derivative rule in {primitive!r} gives a {cls}, which says no way back "
    "for its tangents",
    method="lift_tangent",
)
_NOT_WITHIN = Reason(
    "The derivative rule in {primitive!r} may mix the entries of a tangent or put some where "
    "a {cls} has no numbers, so that its leaves cannot take the derivative",
    "Write the rule so that it acts entry by entry",
)


class Call(NamedTuple):
    """The rewritten function of a custom rule.

    ``refused`` are the results that remain values although their leaves cannot hold all
    tangents of the rule, because nothing may become dense.
    """

    rewritten: Rewritten
    refused: frozenset[int]

    def refusal(self, site: Site, i: int) -> MaterialisationError:
        """The error if a derivative reaches such a result."""
        cls = type(self.rewritten.results()[i])
        error = _NOT_WITHIN.refusal(site.primitive, cls)
        return MaterialisationError(
            f"{error} {_NOT_WITHIN.remedy}, or make the operand dense before the call "
            "(jaxrewrite.materialise), or pass materialise='allow'."
        )


# Selects, of some results whose leaves cannot make every tangent, the results for which the rule
# gives only tangents that they can make.
Within = Callable[[Rewritten, Sequence[int], Settings, Settings], Collection[int]]


def rewrite_call(site: Site, operands: Sequence[Operand], within: Within) -> Call:
    """Rewrite the function of a custom rule, with results that can carry tangents.

    Where nothing may become dense, the other results stay as they are, too. It is an error
    to differentiate them then.
    """
    jaxpr = site.params["call_jaxpr"]
    rewritten = rewrite_jaxpr(site, jaxpr, operands)
    if not any(is_inexact(x) and x.size for x in avals_of(tree_leaves(operands))):
        return Call(rewritten, frozenset())  # No derivative can reach the results.
    settings = site.settings
    steps: list[tuple[int, Reason]] = []
    while True:
        results = {
            i: x
            for i, x in enumerate(map(on_avals, rewritten.results()))
            if is_value(x) and is_inexact(aval_of(x))
        }
        spaces = {i: _space_of(x) for i, x in results.items()}
        confined = [i for i, space in spaces.items() if space in _CONFINED]
        outside = {*confined} - {
            *_within(settings, site, operands, rewritten, confined, within)
        }
        dense = [
            (i, _NOT_WITHIN if i in outside else _NOT_LIFTED)
            for i, x in results.items()
            if (i in outside or spaces[i] is None) and _may_be_denser(x, site)
        ]
        if not dense:
            return Call(rewritten, frozenset(outside))
        steps += dense
        leaving = MakeDenser(tuple(steps))
        rewritten = rewrite_jaxpr(site, jaxpr, operands, leaving=leaving)


@dataclasses.dataclass(frozen=True, eq=False)
class _Assumption:
    """That a function with a rule, on operands of a structure, keeps some of its results.

    A rule often calls its own function. So that the result does not depend on itself, without
    end, it is assumed while the rule is tried, and that no other function keeps any.
    """

    params: dict[str, Any]
    structure: Structure
    kept: Collection[int]

    def kept_by(self, params: dict[str, Any], structure: Structure) -> Collection[int]:
        is_this = structure == self.structure and same(params, self.params)
        return self.kept if is_this else ()


def _within(
    settings: Settings,
    site: Site,
    operands: Sequence[Operand],
    rewritten: Rewritten,
    confined: Sequence[int],
    within: Within,
) -> Collection[int]:
    """The results for which a rule gives only tangents that their leaves can hold."""
    if not confined:
        return ()
    structure = structure_of(list(operands))
    if settings.assumed is not None:
        return settings.assumed.kept_by(site.params, structure)
    settings = settings._replace(recorder=None)
    assumed = _Assumption(site.params, structure, confined)
    try:
        return within(
            rewritten,
            confined,
            settings,
            settings._replace(policy="allow", assumed=assumed),
        )
    except Exception:  # noqa: BLE001 - the user's rule; where JAX calls it, it raises again
        return ()


# The tangent spaces from which `Value.lift_tangent` projects, the narrower one last.
_CONFINED = ["entries", "repeated"]


def _space_of(value: Value) -> str | None:
    """The tangents that a value on avals can hold; ``None`` if it knows no way back."""
    return confinement(value) or "all" if can_be_lifted(value) else None


def confinement(value: Value) -> str | None:
    """The narrowest tangent space of a value and of the values among its children."""
    space = tangent_space(value)
    inside = [confinement(field) for field in parts(value)[0] if is_value(field)]
    spaces = [x for x in (space, *inside) if x in _CONFINED]
    return max(spaces, key=_CONFINED.index, default=None)


def tangent_space(value: Value) -> str:
    """The tangents that the leaves of a value on avals can make: `Value.tangent_space`."""
    space = value.tangent_space()
    if space is NotImplemented:
        return "all" if _lifts_all(value) else "repeated"
    if space not in ("all", *_CONFINED):
        raise ValueError(
            f"{type(value).__name__}.tangent_space must return 'all', 'entries' or 'repeated'; "
            f"it returned {space!r}."
        )
    return space


_lifting_all = BoundedCache(1024)


def _lifts_all(value: Value) -> bool:
    """Whether each entry of a tangent comes back, as a multiple, from the leaves made of it."""
    if not (is_inexact(aval_of(value)) and _has_way_back(value) and loses_its_layer(value)):
        return True  # There are no tangents, or none is projected, or they are no arrays.
    children, treedef = parts(value)
    like = aval_of(value).to_tangent_aval()
    key = (treedef, tuple(avals_of(children)), like, _compat.trace_context())
    if (known := _lifting_all.get(key)) is None:
        known = _returns_entries(treedef, avals_of(children), like)
        _lifting_all.put(key, known)
    return known


@_compat.with_standard_promotion
def _returns_entries(treedef: PyTreeDef, children: Sequence[Any], like: Any) -> bool:
    def there_and_back(*args: Any) -> Any:
        *leaves, tangent = args
        value = tree_unflatten(treedef, leaves)
        lifted = named_in_errors(value.lift_tangent, tangent)
        if lifted is NotImplemented:
            return tangent
        return _tangent_by_materialise(treedef, leaves, _tangents_in(lifted, value))

    jaxpr = jax.make_jaxpr(there_and_back)(*children, like)
    inner, consts = _compat.open_jaxpr(jaxpr)
    facts = [*[FIXED] * (len(consts) + len(children)), source(0)]
    return all(Kind.SAME <= x.kind <= Kind.LINEAR for x in dependences(inner, facts))


def _may_be_denser(value: Value, site: Site) -> bool:
    """Whether a value on avals can become dense, or what is around or inside of an annotation."""
    inside = [field for field in parts(value)[0] if is_value(field)]
    if is_annotation(value) and inside:
        return all(_may_be_denser(field, site) for field in inside)
    if policy_on(type(value), site.settings.policy) == "forbid":
        return False
    if can_be_dense(value):
        return True
    try:
        make_denser(site.scratch(), tree_map(_compat.Var, value), _NOT_LIFTED)
    except Exception:  # noqa: BLE001 - a type that is never dense raises anything
        return False
    return True


def ignores_custom_rules(operands: Iterable[Any]) -> bool:
    """Whether an operand, or a value in a field, is of a type that ignores custom rules."""
    values = (y for x in operands if is_value(x) for y in (x, *values_inside(x)))
    return any(x._ignores_custom_rules for x in values)


def call_function(
    site: Site, fn: Callable[..., Any], rewritten: Rewritten, operands: Sequence[Operand]
) -> Sequence[Operand]:
    """Add a call of a function with a custom rule, and return its results.

    Integers that come out as they went in, such as the indices of a sparse matrix, do not go
    through the call. For it may be a call of tangents, all results of which JAX takes for
    tangents that it has to transpose.
    """
    leaves = [*site.take_over(rewritten), *tree_leaves(operands)]
    results = site.call_on_arrays(fn, leaves)
    inputs = dict(zip(rewritten.jaxpr.invars, leaves, strict=True))
    return tree_unflatten(
        rewritten.out_tree,
        [
            inputs.get(var, result)
            if type(var) is _compat.Var and not is_inexact(var.aval)
            else result
            for var, result in zip(rewritten.jaxpr.outvars, results, strict=True)
        ],
    )


def is_inexact(aval: Any) -> bool:
    return jnp.issubdtype(aval.dtype, jnp.inexact)


def parts(value: Value) -> tuple[list[Any], Any]:
    """The children of a value that have tangents of their own, values among them.

    These are its children even if the rules of its type see all leaves. The leaf tangents of
    a value in a field are not the tangent of the array that it stands for.
    """
    of = rule_children if value._holds_stacked_leaves else avals.children
    return of(value)


def _has_way_back(value: Value) -> bool:
    return type(value).lift_tangent is not Value.lift_tangent


@_compat.with_standard_promotion
def can_be_lifted(value: Value) -> bool:
    """Whether a value, on avals, and all values among its children know a way back."""
    children, treedef = parts(value)
    if not _has_way_back(value):
        return False
    if not all(can_be_lifted(field) for field in children if is_value(field)):
        return False
    if not can_be_dense(value):
        return True  # Its tangents are no arrays.
    lifted: list[Any] = []

    def lift_abstractly(children: Sequence[Any], tangent: Any) -> None:
        method = tree_unflatten(treedef, children).lift_tangent
        tangents = named_in_errors(method, tangent)
        lifted.append(tangents is not NotImplemented)

    # A base class may define the method, and return ``NotImplemented`` for its subclasses.
    jax.eval_shape(lift_abstractly, avals_of(children), aval_of(value))
    return bool(lifted[0])


def can_be_dense(value: Value) -> bool:
    """Whether a value, on avals, can become dense."""
    children, _ = parts(value)
    inside = (can_be_dense(field) for field in children if is_value(field))
    return all(inside) and loses_its_layer(value)


def loses_its_layer(value: Value) -> bool:
    """Whether a value becomes dense if the values among its children do, or are arrays."""
    children, treedef = parts(value)
    try:
        dense_aval(type(value), treedef, avals_of(children))
    except Exception:  # noqa: BLE001 - a type that is never dense raises anything
        return False
    return True


def on_avals(operand: Tree) -> Any:
    return tree_map(_compat.leaf_aval, operand)


# --- results in the structures of the program -------------------------------------


def targets(rewritten: Rewritten) -> list[Structure]:
    return list(map(structure_of, rewritten.results()))


def bring_primals(
    primals: Sequence[Any],
    structures: Sequence[Structure],
    recompute: Callable[[], Sequence[Any]],
) -> list[Any]:
    """The primal results of a rule, in the structures of the function's own results.

    A rule may compute the same array in another way, and so in another structure. Then the
    function's own results are taken.
    """
    if list(map(structure_of, primals)) == list(structures):
        return list(primals)
    return [
        result if structure_of(primal) != wanted else primal
        for result, primal, wanted in zip(recompute(), primals, structures, strict=True)
    ]


def is_array(structure: Structure) -> bool:
    return not is_value(structure.like())


def has_array_tangents(structure: Structure) -> bool:
    """Whether a rule's tangent is an array, as it is unless its type is never dense."""
    like = structure.like()
    return not is_value(like) or can_be_dense(like)


# --- tangents and cotangents ------------------------------------------------------


def zero_tangent(leaf: object, symbolic: bool) -> Tangent:
    aval = _compat.leaf_aval(leaf).to_tangent_aval()
    return SymbolicZero(aval) if symbolic else instantiated(SymbolicZero(aval))


def instantiated(tangent: Any) -> Any:
    """A tangent that is not a symbolic zero."""
    if type(tangent) is not SymbolicZero:
        return tangent
    aval: Any = tangent.aval
    if aval.dtype == jax.dtypes.float0:
        return np.zeros(aval.shape, aval.dtype)
    return _compat.full(aval, 0)


def adopted_zero(cotangent: Tangent, result: ArrayOrValue) -> Tangent:
    """A cotangent that is not a symbolic zero: zeros are as if the program wrote them."""
    zeros = instantiated(cotangent)
    if type(cotangent) is not SymbolicZero or not is_value(result):
        return zeros
    return adopted(adopters_of([result]), zeros) if is_inexact(zeros) else zeros


def tangent_of(
    operand: ArrayOrValue, leaf_tangents: Sequence[Any], symbolic: bool, settings: Settings
) -> Tangent:
    """The tangent of an operand, for a rule: an array, a value or a symbolic zero.

    ``symbolic`` tells whether the rule takes symbolic zeros. Zeros of leaves are symbolic in
    any case, so the tangent of a value that nothing depends on is not computed.
    """
    if not is_value(operand):
        return leaf_tangents[0] if symbolic else instantiated(leaf_tangents[0])
    are_zero = all(type(t) is SymbolicZero for t in leaf_tangents)
    if are_zero and (symbolic or not _has_tangent_hook(operand)):
        return zero_tangent(aval_of(operand), symbolic)
    treedef = tree_flatten(operand)[1]
    tangents = tree_unflatten(treedef, list(map(instantiated, leaf_tangents)))
    with use_settings(settings):
        return derivative(operand, tangents)


def _has_tangent_hook(value: Value) -> bool:
    """Whether a tangent of the value has its own form, even if it is zero."""
    return type(value).tangent is not Value.tangent


@_compat.with_standard_promotion
def derivative(value: Value, leaf_tangents: Value) -> ArrayOrValue:
    """The derivative of the array that a value stands for, along tangents of its leaves."""
    aval = aval_of(value)
    if not is_inexact(aval):
        return instantiated(SymbolicZero(aval.to_tangent_aval()))
    children, treedef = parts(value)
    tangents = [
        derivative(field, t) if is_value(field) else t
        for field, t in zip(children, parts(leaf_tangents)[0], strict=True)
    ]
    apply: Callable[..., Any] = functools.partial(
        _tangent_by_type if _has_tangent_hook(value) else _tangent_by_materialise,
        treedef,
    )
    if any(map(is_value, children)):
        apply = transform(apply, materialise="allow")
    tangent = apply(children, tangents)
    return tangent if _is_sum_of_linear(tangent) else _as_dense_as_can_be(tangent)


def _is_sum_of_linear(tangent: ArrayOrValue) -> bool:
    """Whether a type is linear in its arrays wherever a tangent has any.

    A sum of others may mix the factors that are tangents with those that are not. For example,
    the sum of ``dt @ b`` and ``a @ dt`` as one product of low rank is ``[dt, a] @ [b; dt]``,
    which JAX cannot transpose.
    """
    if not is_value(tangent):
        return True
    children = parts(tangent)[0]
    is_in_its_arrays = (
        all(map(is_value, children))
        or (is_annotation(tangent) and len(children) == 1)
        or (_has_tangent_hook(tangent) and tangent.tangent(tangent) is not NotImplemented)
    )
    return is_in_its_arrays and all(map(_is_sum_of_linear, children))


def _tangent_by_type(
    treedef: PyTreeDef, children: Sequence[Any], tangents: Sequence[Any]
) -> ArrayOrValue:
    value = tree_unflatten(treedef, children)
    tangent = named_in_errors(value.tangent, tree_unflatten(treedef, tangents))
    if tangent is NotImplemented:
        return _tangent_by_materialise(treedef, children, tangents)
    hook = f"{type(value).__name__}.tangent"
    problem = mismatch(tangent, aval_of(value).to_tangent_aval(), hook, "the tangent is")
    if problem:
        raise TypeError(problem)
    return tangent


def _tangent_by_materialise(
    treedef: PyTreeDef, children: Sequence[Any], tangents: Sequence[Any]
) -> ArrayOrValue:
    def dense(*children: ArrayOrValue) -> jax.Array:
        return tree_unflatten(treedef, children).materialise()

    # Tangents of dtype float0 are made anew, because no operation takes them.
    tangents = [
        t if is_inexact(f) else zero_tangent(f, False)
        for f, t in zip(children, tangents, strict=True)
    ]
    return jax.jvp(dense, tuple(children), tuple(tangents))[1]


def lift(value: Value, tangent: ArrayOrValue, settings: Settings) -> list[Any]:
    """Tangents of the leaves of a result, for the tangent that a rule returned."""
    with use_settings(settings):
        return _lift(value, tangent)


@_compat.with_standard_promotion
def _lift(value: Value, tangent: ArrayOrValue) -> list[Any]:
    leaves = tree_leaves(value)
    if not any(map(is_inexact, avals_of(leaves))):
        return [zero_tangent(leaf, False) for leaf in leaves]
    children, treedef = parts(value)
    apply: Callable[..., Any] = functools.partial(_lift_by_type, treedef)
    if any(map(is_value, children)):
        # The tangent stays a value if its type is never dense.
        apply = transform(apply, (True, (True, False), {}), materialise="allow")
    else:
        tangent = _as_dense_as_can_be(tangent)
    lifted = apply(children, tangent)
    leaf_tangents: list[Any] = []
    for field, t in zip(children, lifted, strict=True):
        if is_value(field):
            leaf_tangents += _lift(field, t)
        else:
            leaf_tangents.append(
                materialise(t) if is_inexact(field) else zero_tangent(field, False)
            )
    return leaf_tangents


def _lift_by_type(
    treedef: PyTreeDef, children: Sequence[Any], tangent: ArrayOrValue
) -> list[Any]:
    value = tree_unflatten(treedef, children)
    cls = type(value).__name__
    lifted = named_in_errors(value.lift_tangent, tangent)
    if lifted is NotImplemented:
        raise TypeError(
            f"A {cls} is the result of a function with a custom derivative rule, but "
            f"{cls}.lift_tangent, which maps its tangent to tangents of its leaves, "
            "is not defined."
        )
    return _tangents_in(lifted, value)


def _tangents_in(lifted: Any, value: Value) -> list[Any]:
    """The tangents of a value's children that its ``lift_tangent`` has returned, checked."""
    cls, (children, _) = type(value).__name__, parts(value)
    tangents = parts(lifted)[0] if type(lifted) is type(value) else []
    if len(tangents) != len(children):
        raise TypeError(
            f"{cls}.lift_tangent must return a {cls} with a tangent for each leaf; it returned "
            f"{lifted!r}."
        )
    for expected, t in zip(avals_of(children), tangents, strict=True):
        if is_inexact(expected):
            wrong = mismatch(t, expected, f"{cls}.lift_tangent", "a leaf is")
            if wrong:
                raise TypeError(wrong)
    return tangents


def pull_back(
    operand: ArrayOrValue, cotangent: ArrayOrValue | None, settings: Settings, site: Site
) -> list[Any]:
    """Cotangents of the leaves of an operand; ``None`` for leaves without any."""
    if not is_value(operand) and not _is_never_dense(cotangent):
        return [None if cotangent is None else materialise(cotangent)]
    leaves, treedef = tree_flatten(operand if is_value(operand) else operand.aval)
    if cotangent is None:
        return [None] * len(leaves)
    free = list(map(_is_float, leaves))

    def tangent(float_tangents: list[Any]) -> ArrayOrValue:
        rest = iter(float_tangents)
        tangents = [
            next(rest) if is_free else zero_tangent(leaf, False)
            for leaf, is_free in zip(leaves, free, strict=True)
        ]
        if not is_value(operand):
            return float_tangents[0]
        with use_settings(settings):
            derived = derivative(operand, tree_unflatten(treedef, tangents))
        return _as_dense_as_can_be(derived)

    floats = [leaf for leaf, is_free in zip(leaves, free, strict=True) if is_free]
    form = jax.eval_shape(tangent, floats)
    bring: Callable[[Any], Any] = materialise
    if is_value(form) or _is_never_dense(cotangent):
        cotangent, bring = _meeting(_as_dense_as_can_be(cotangent), form, settings, site)
    else:
        cotangent = materialise(cotangent)
        if _is_float(form):  # A rule may sum in more digits than the array has.
            cotangent = cotangent.astype(form.dtype)

    def on_floats(floats: list[Any]) -> list[Any]:
        brought = bring(tangent(floats))
        if is_value(cotangent):
            # Whatever the cotangent holds for an entry that it lacks, which the rule may have spread.
            brought = _held(cotangent, brought, settings)
        return _floats_of(brought)

    (pulled,) = jax.linear_transpose(on_floats, floats)(_floats_of(cotangent))
    rest = iter(pulled)
    return [next(rest) if is_free else None for is_free in free]


def _held(cotangent: Value, tangent: Value, settings: Settings) -> Any:
    """A tangent, as far as a cotangent of its structure holds one."""
    leaves, treedef = tree_flatten(cotangent)
    tangents = [
        t if _is_float(leaf) else zero_tangent(leaf, False)
        for leaf, t in zip(leaves, tree_leaves(tangent), strict=True)
    ]
    with use_settings(settings):
        return derivative(cotangent, tree_unflatten(treedef, tangents))


@_compat.with_standard_promotion
def _as_dense_as_can_be(tangent: Any) -> Any:
    """A tangent without values, except for values of types that are never dense."""
    if not is_value(tangent) or is_adopted(tangent):
        return tangent  # Or an array that another value adopted.
    if can_be_dense(on_avals(tangent)):
        return materialise(tangent)
    children, treedef = parts(tangent)
    if not loses_its_layer(on_avals(tangent)):
        return tree_unflatten(treedef, map(_as_dense_as_can_be, children))
    dense = lambda *children: tree_unflatten(treedef, children).materialise()
    return _as_dense_as_can_be(transform(dense, materialise="allow")(*children))


def dual(tangent: Value) -> Value:
    """A tangent of a type that is never dense, as a cotangent, or one as a tangent.

    The product of the two is a number. So a cotangent has the metadata of one divided by a
    tangent: that of a quantity has the inverse units.
    """
    aval = aval_of(tangent)
    divide = transform(lambda x: jnp.ones((), aval.dtype) / x, materialise="forbid")
    # A matrix with structure may have no inverse entry by entry. Its fields have the metadata.
    has_none = lambda x: is_value(x) and can_be_dense(on_avals(x))
    inside, treedef = tree_flatten(tangent, has_none)
    try:
        inverse = jax.eval_shape(divide, tree_unflatten(treedef, avals_of(inside)))
    except Exception:  # noqa: BLE001 - a type that is never dense raises anything
        inverse = None
    if is_value(inverse) and len(tree_leaves(inverse)) == len(inside):
        return tree_unflatten(tree_structure(inverse), inside)
    fields, treedef = parts(tangent)
    return tree_unflatten(treedef, [dual(x) if _is_never_dense(x) else x for x in fields])


def _meeting(
    cotangent: Any, form: Any, settings: Settings, site: Site
) -> tuple[Any, Callable[[Any], Any]]:
    """A cotangent that a rule returned for a type that is never dense, as a tangent.

    And a function that brings it and tangents like ``form`` to one structure. The cotangent of an
    array may be of such a type, too.
    """
    wanted = dual(form) if is_value(form) else form
    count, treedef = len(tree_leaves(wanted)), tree_structure(wanted)
    if is_value(cotangent) and is_adopted(cotangent):
        # An array that another value adopted is a value of any metadata.
        leaves = tree_leaves(cotangent)
        if len(leaves) == count:
            cotangent = tree_unflatten(treedef, leaves)
    structures = structure_of(wanted), structure_of(on_avals(cotangent))
    if structures[0] == structures[1]:
        return dual(cotangent), lambda tangent: tangent
    scratch = site._replace(builder=Rewriter(Rewriting(settings)))
    # A tangent may hold one of its own type, where what is between them has no tangents of its own.
    # Then it may have no join with an array, and has one as one value.
    as_it_is: Callable[[Any], Any] = lambda x: x
    as_one: Callable[[Any], Any] = lambda x: in_form(x, lambda fn, leaves: fn(*leaves))
    for change in (as_it_is, as_one):
        changed = structure_of(jax.eval_shape(change, wanted))
        joined = join_all(scratch, (changed, structures[1]))
        like = joined.like()
        if is_value(like):
            break
    else:
        whose = f"{type(form).__name__}, which is never dense and whose cotangents are {wanted!r}"
        raise TypeError(
            f"A custom derivative rule returned a cotangent {on_avals(cotangent)!r} for "
            f"{f'a {whose}' if is_value(form) else 'an array'}."
        )
    bring = functools.partial(_brought, settings=settings, site=site)
    of_tangents = structure_of(dual(like))
    return dual(bring(cotangent, joined)), lambda x: bring(change(x), of_tangents)


def _is_never_dense(x: Any) -> bool:
    return is_value(x) and not can_be_dense(on_avals(x))


def _brought(
    operand: ArrayOrValue, structure: Structure, settings: Settings, site: Site
) -> Any:
    """An operand in another structure, one of which its own has a join with."""
    identity = lambda x: [x]
    debug_info = _compat.new_debug_info("cotangent", identity)
    jaxpr, _ = _compat.trace_to_jaxpr(identity, avals_of([operand]), debug_info)
    leaving = Coerce((structure_of(operand),), (structure,))
    return run_on_values(settings, jaxpr, [operand], site, leaving)[0]


def cotangent_of(
    result: ArrayOrValue, leaf_cotangents: Sequence[Any], settings: Settings
) -> Tangent:
    """The cotangent of a result, for a rule, from the cotangents of its leaves."""
    if not is_value(result):
        return leaf_cotangents[0]
    aval = aval_of(result)
    if all(type(ct) is SymbolicZero for ct in leaf_cotangents) or not is_inexact(aval):
        return SymbolicZero(aval.to_tangent_aval())
    leaves, treedef = tree_flatten(result)
    free = list(map(_is_float, leaves))

    def lifted(tangent: ArrayOrValue) -> list[Any]:
        tangents = lift(result, tangent, settings)
        return [t for t, is_free in zip(tangents, free, strict=True) if is_free]

    form: Any = _compat.strong(aval)
    if not can_be_dense(on_avals(result)):
        zeros = [zero_tangent(leaf, False) for leaf in leaves]
        form = derivative(result, tree_unflatten(treedef, zeros))
    cotangents = [
        instantiated(ct)
        for ct, is_free in zip(leaf_cotangents, free, strict=True)
        if is_free
    ]
    on_floats = lambda floats: lifted(_with_floats(form, floats))
    (floats,) = jax.linear_transpose(on_floats, _floats_of(form))(cotangents)
    cotangent = _with_floats(form, floats)
    return dual(cotangent) if is_value(cotangent) else cotangent


# A tangent of a type that is never dense may hold integers, such as a mask. JAX does not
# transpose these.


def _is_float(leaf: object) -> bool:
    return is_inexact(_compat.leaf_aval(leaf))


def _floats_of(tangent: Tree) -> list[Any]:
    return list(filter(_is_float, tree_leaves(tangent)))


def _with_floats(tangent: Tree, floats: Sequence[Any]) -> Tree:
    rest = iter(floats)
    return tree_map(lambda leaf: next(rest) if _is_float(leaf) else leaf, tangent)


def chunks(leaves: Sequence[Any], operands: Sequence[Operand]) -> list[list[Any]]:
    """Group leaves by the operand that they belong to."""
    rest = iter(leaves)
    return [[next(rest) for _ in tree_leaves(operand)] for operand in operands]
