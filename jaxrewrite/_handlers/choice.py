"""`lax.select_n` where one truth value chooses for a whole array, or for each of a batch.

`jax.numpy.where` of one truth value does so, and `jax.vmap` of a conditional whose condition is
mapped: all branches run then. The condition has the shape of the results, so only the equation
before it tells that it is the same for all entries, or for all entries of an element of the batch.
A result that one branch leaves uninitialised, because only the backward pass of another needs it,
is not read. A condition that is a value chooses entry by entry, by the rules of its type.

A mask chooses for each entry. Where it chooses between a value and zeros that the program has
written, a rule of the type may keep the structure. So a rule that takes `Zeros` is shown them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax import lax
from jax.tree_util import tree_leaves, tree_structure, tree_unflatten
from multipledispatch.variadic import isvariadic

from .. import _compat
from .._analyses.growing import Producers
from .._analyses.written import Fact, Written
from .._compat import JaxprEqn
from .._core.hooks import OperandsHook, operands_hooks
from .._core.rewrite import leafwise_handlers
from .._core.rules import Entry, Table, type_of
from .._core.settings import Settings
from .._core.site import Site
from .._core.value import Operand, Results, Value, is_value
from .._joins.join import Structure, coerce, filled, structure_of, together
from .._joins.zeros import Zeros, is_filled_where_parts_are, with_zeros
from .stacking import in_slices, is_batch


def choose(site: Site, operands: Sequence[Operand]) -> Results:
    condition, *cases = operands
    if is_value(condition):
        return _by_entries(site, condition, cases)
    if len(cases) == 2:
        written = site.builder.analysis(Written)
        read = [x for x in cases if is_value(x) or not written(x).is_uninitialised]
        if len(read) == 1 and is_value(read[0]):
            return read
    row = _repeated(site, condition)
    if row is None:
        return NotImplemented
    depth = row.aval.ndim
    alike = _alike(site, cases, depth)
    if alike is None:
        return NotImplemented
    cases = alike
    leaves, *others = map(tree_leaves, cases)
    # Leaves that all have in common, such as integers without a derivative, need no choice.
    differing = [i for i, x in enumerate(leaves) if any(of[i] is not x for of in others)]
    count = len(differing)

    def leaf_by_leaf(row: jax.Array, *leaves: jax.Array) -> list[Any]:
        results = []
        for k in range(count):
            cases_of_leaf = leaves[k::count]
            along = lax.broadcast_in_dim(row, cases_of_leaf[0].shape, range(depth))
            results.append(lax.select_n(along, *cases_of_leaf))
        return results

    choices = [of[i] for of in (leaves, *others) for i in differing]
    results = site.call_on_arrays(leaf_by_leaf, [row, *choices])
    for i, leaf in zip(differing, results, strict=True):
        leaves[i] = leaf
    return [tree_unflatten(tree_structure(cases[0]), leaves)]


leafwise_handlers["select_n"] = choose


def _by_entries(site: Site, condition: Value, cases: Sequence[Any]) -> Results:
    """Let a value, such as ``x > 0``, choose between another and numbers that fill an array.

    A rule for values of one structure answers if the numbers are such a value, too.
    """
    like = next((structure_of(x) for x in cases if is_value(x)), None)
    if like is None or all(map(is_value, cases)):
        return NotImplemented
    written = site.builder.analysis(Written)
    brought = [x if is_value(x) else _filled(site, written(x), like) for x in cases]
    alike = [x for x in brought if x is not None]
    if type(condition) is not type(like.like()) or len(alike) < len(cases):
        return NotImplemented
    return site.builder.apply(site, [condition, *alike])


def _filled(site: Site, fact: Fact, structure: Structure) -> Operand | None:
    """A value of a structure that a known number fills; ``None`` if there is none."""
    like: Any = structure.like()
    if not fact.is_number or not is_filled_where_parts_are(like, fact.number):
        return None
    return filled(site, structure, lambda aval: _compat.full(aval, fact.number))


def _alike(site: Site, cases: Sequence[Any], depth: int) -> list[Any] | None:
    """The cases in the structure that all can have, as the results of branches.

    ``None`` if it is dense, or if its leaves can't be chosen for an element of a batch.
    """
    joined = together(site, cases)
    if joined is None:
        return None
    cases, structure = joined
    if depth and not is_batch(site, structure.like(), depth):
        return None
    alike = [coerce(site, case, structure) for case in cases]
    return [in_slices(site, case) for case in alike] if depth else alike


def _repeated(site: Site, condition: Any) -> Any:
    """The condition for each element of a batch, if it is repeated along all other axes.

    It has no axes if one truth value chooses for all.
    """
    if not condition.aval.shape:
        return condition
    eqn = site.builder.analysis(Producers)(condition)
    if eqn is None or eqn.primitive.name != "broadcast_in_dim":
        return None
    row: Any = eqn.invars[0]
    depth, axes = row.aval.ndim, tuple(eqn.params["broadcast_dimensions"])
    is_in_front = (
        axes == tuple(range(depth)) and condition.aval.shape[:depth] == row.aval.shape
    )
    return row if is_in_front and depth < condition.aval.ndim else None


# --- masks over values ----------------------------------------------------------------


class Masking(OperandsHook):
    """Shows the zeros beside a masked value as `Zeros`, if a rule of its type takes these."""

    primitives = frozenset({"select_n"})

    def __init__(self, analysis: Callable[[type], Any]) -> None:
        self._analysis = analysis

    def operands(
        self, eqn: JaxprEqn, operands: Sequence[Any]
    ) -> tuple[JaxprEqn, Sequence[Any]]:
        if len(operands) != 3:
            return eqn, operands
        condition, *cases = operands
        if is_value(condition):
            return eqn, operands
        written = self._analysis(Written)
        shown = [x if is_value(x) else with_zeros(written, x) for x in cases]
        # A rule for a value beside zeros is asked, and none for two values.
        is_beside = (
            any(map(is_value, cases)) and shown != cases and all(map(is_value, shown))
        )
        tables = self._analysis(Settings).rules.tables
        if is_beside and _is_taken(tables, operands, [condition, *shown]):
            return eqn, [condition, *shown]
        return eqn, operands


operands_hooks.append(Masking)


def _is_taken(tables: Sequence[Table], beside: Sequence[Any], shown: Sequence[Any]) -> bool:
    """Whether a rule for a choice takes `Zeros`, and no rule for arrays comes before it.

    Such a rule is of a nearer table, or for a more specific type.
    """
    for table in tables:
        for_arrays, for_zeros = (
            table.matches(lax.select_n_p, tuple(map(type_of, operands)))
            for operands in (beside, shown)
        )
        for_zeros = [entry for entry in for_zeros if Zeros in entry.types]
        if for_arrays or for_zeros:
            own = {cls for entry in for_zeros for cls in _types_of(entry)}
            others = {cls for entry in for_arrays for cls in _types_of(entry)}
            return bool(own) and not any(
                cls is not other and issubclass(cls, other)
                for cls in others
                for other in own
            )
    return False


def _types_of(entry: Entry) -> Iterator[type[Value]]:
    """The types of values that a rule is for."""
    for annotated in entry.types:
        classes = annotated.variadic_type if isvariadic(annotated) else (annotated,)
        yield from (
            cls for cls in classes if issubclass(cls, Value) and not issubclass(cls, Zeros)
        )
