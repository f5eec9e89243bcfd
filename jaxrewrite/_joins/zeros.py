"""`Zeros`: an operand that is known to be zero everywhere, the least of all structures.

What a loop carries often starts as zeros of the right shape, and the first turn replaces them
by a value. So that the carry can be of the value's type from the start, the search for its
structure begins with `Zeros`, which join with any value that is zero where its leaves are. So
do zeros that one branch of a conditional returns, a turn of a loop, or a case of a choice. No
program runs with them: where they would remain they are the array that they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax.tree_util import PyTreeDef, tree_leaves, tree_map, tree_unflatten

from .. import _compat
from .._analyses.written import UNKNOWN, Fact, Written, facts_of, filled
from .._compat import Literal, Primitive, ShapedArray, Tree
from .._core.avals import avals_of, children, is_adopted, rule_children, values_inside
from .._core.builder import Rewritten
from .._core.caches import BoundedCache
from .._core.dense import make_dense, materialised
from .._core.notices import collected
from .._core.rewrite import leafwise_handlers
from .._core.site import Site
from .._core.value import ArrayOrValue, Like, Operand, Value, field, is_value
from .._staging.transform import bind


_ADDITIONS = {"add", "add_any"}


class Zeros(Value):
    """An array that a program has filled with zeros.

    `Value.join` is shown it as an array. If there is no join with an array, it is shown it as
    this, so that a type whose leaves are not zeros where it is zero can say what they are. A rule
    for ``select_n`` that takes it beside a value is asked where a mask chooses between the two.

    A value plus it is the value; all else that computes gets it dense.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.extend import Zeros
    >>> class Exponential(jaxrewrite.ArrayValue):
    ...     x: jax.Array
    ...     def materialise(self):
    ...         return jnp.exp(self.x)
    ...     def join(self, other):
    ...         if not isinstance(other, Zeros):
    ...             return NotImplemented
    ...         return self, Exponential(jnp.full_like(self.x, -jnp.inf))
    >>> choose = lambda p, v: jax.lax.cond(p, lambda: v, lambda: jnp.zeros(3))
    >>> jaxrewrite.transform(choose)(jnp.array(False), Exponential(jnp.ones(3)))
    Exponential([0. 0. 0.], dtype=float32)
    """

    materialise_policy = "allow"

    # They are dense before the default of any other type is asked, and before rules that do not
    # name them.
    outer = math.inf
    _has_to_be_named = True

    of_aval: Any = field(static=True)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.of_aval.shape

    @property
    def dtype(self) -> Any:
        return self.of_aval.dtype

    def aval(self) -> ShapedArray:
        return self.of_aval

    def materialise(self) -> ArrayOrValue:
        return _compat.full(self.of_aval, 0)

    @staticmethod
    def default(primitive: Primitive, values: Sequence[Any], params: dict[str, Any]) -> Any:
        handler = leafwise_handlers.get(primitive.name)
        # A choice whose rule has declined is left to the policy, as one beside an array is, and
        # padding and joining to the handlers that know of zeros.
        left = ("select_n", "pad", "concatenate")
        if handler is Site.map_leaves or primitive.name in left:
            return NotImplemented
        others = [x for x in values if not isinstance(x, Zeros)]
        if primitive.name in _ADDITIONS and len(others) == 1 and is_value(others[0]):
            value_aval, *avals = avals_of([*others, *values])
            # The shapes may differ by axes of length 1, as below `jax.vmap`.
            if all(aval.shape == value_aval.shape for aval in avals):
                return others[0]
        dense = [x.materialise() if isinstance(x, Zeros) else x for x in values]
        return bind(primitive, *dense, **params)

    def lift_tangent(self, tangent: object) -> Zeros:
        return self


def with_zeros(written: Callable[[Any], Fact], operand: Any) -> Any:
    """The operand, with `Zeros` for an array that equations have filled with zeros.

    It may be inside of a value that has adopted the array. Negative zeros are not shown: a program
    may divide by them, and a value of which all leaves are zero has positive ones.
    """
    return _shown(operand, lambda x: type(x) is not Literal and written(x).is_positive_zero)


def with_zeros_of_literals(written: Callable[[Any], Fact], operand: Any) -> Any:
    """The same, also for a literal."""
    return _shown(operand, lambda x: written(x).is_positive_zero)


def _shown(operand: Any, is_zero: Callable[[Any], bool]) -> Any:
    if is_value(operand):
        if not is_adopted(operand):
            return operand
        parts, treedef = children(operand)
        new_parts = [_shown(part, is_zero) for part in parts]
        is_same = all(x is part for x, part in zip(new_parts, parts, strict=True))
        return operand if is_same else tree_unflatten(treedef, new_parts)
    return Zeros(_compat.strong(operand.aval)) if is_zero(operand) else operand


def results_with_zeros(site: Site, body: Rewritten, operands: Sequence[Any]) -> list[Any]:
    """The results of a body on these operands, of which the last may be missing, `with_zeros`."""
    of_operands = site.builder.analysis(Written)
    invars = body.jaxpr.invars[len(body.consts) :]
    pairs = zip(invars, tree_leaves(operands), strict=False)
    written = Written(body.jaxpr.eqns, {var: of_operands(leaf) for var, leaf in pairs})
    return [with_zeros(written, result) for result in body.results()]


def is_zeros(x: object) -> bool:
    """Whether an operand is `Zeros`, or a value that has adopted them."""
    if not is_value(x) or isinstance(x, Zeros):
        return is_value(x)
    return is_adopted(x) and all(map(is_zeros, children(x)[0]))


def has_zeros(like: Tree) -> bool:
    """Whether an operand is `Zeros`, or holds some."""
    return any(map(_is_bare, tree_leaves(like, is_leaf=_is_bare)))


def as_arrays(like: Operand | Like) -> Operand | Like:
    """An operand on avals, with the aval of an array in place of `Zeros`."""
    return tree_map(lambda x: x.aval() if _is_bare(x) else x, like, is_leaf=_is_bare)


def _is_bare(x: object) -> bool:
    return isinstance(x, Zeros)


_kept = BoundedCache(1024)


def is_zero_where_parts_are(like: Value) -> bool:
    """Whether a value of this structure is zero if all that a rule sees of it is zero."""
    may_be_zero = all(x._may_be_zero for x in (like, *values_inside(like)))
    return may_be_zero and _fact_about(like, 0).is_positive_zero


def is_zero_where_leaves_are(like: Like | Operand) -> bool:
    """Whether an operand is zero, and so is each value inside of it, if all leaves are zero."""
    return not is_value(like) or (
        is_zero_where_parts_are(like)
        and all(map(is_zero_where_leaves_are, children(like)[0]))
    )


def is_zero_anyway(like: Like | Operand) -> bool:
    """Whether an operand is a value that is zero for any leaves."""
    return is_value(like) and _fact_about(like, None).is_positive_zero


def is_filled_where_parts_are(like: Value, number: Any) -> bool:
    """Whether a number fills a value of this structure if it fills all that a rule sees of it.

    The parts have the dtype of the value, so that each can hold the number.
    """
    dtype, *others = {aval.dtype for aval in avals_of([like, *rule_children(like)[0]])}
    if others:
        return False
    # A value inside may have a number of its own, which is metadata.
    inside = filter(is_value, children(like)[0])
    return _fact_about(like, number) == filled(number, dtype) and all(
        is_filled_where_parts_are(part, number) for part in inside
    )


def _fact_about(like: Value, number: Any) -> Fact:
    """The fact about a value of this structure if a number fills all that a rule sees of it.

    With ``None`` that may be anything. The program of its ``materialise`` tells, once for each
    structure.
    """
    parts, treedef = rule_children(like)
    avals = tuple(avals_of(parts))
    if number is None:
        facts = (UNKNOWN,) * len(avals)
    elif all(map(_is_numeric, avals)):
        facts = tuple(filled(number, aval.dtype) for aval in avals)
    else:
        return UNKNOWN
    key = treedef, avals, facts, _compat.trace_context()
    try:
        fact = _kept.get(key)
    except TypeError:  # The metadata is not hashable.
        return _fact_of_parts(type(like), treedef, avals, facts)
    if fact is None:
        fact = _fact_of_parts(type(like), treedef, avals, facts)
        _kept.put(key, fact)
    return fact


def _fact_of_parts(
    cls: type[Value], treedef: PyTreeDef, avals: Sequence[Any], facts: Sequence[Fact]
) -> Fact:
    def dense(*parts: Any) -> list[Any]:
        value = tree_unflatten(treedef, parts)
        return [make_dense(value, lambda value, checked: checked(materialised(value)))]

    debug_info = _compat.new_debug_info(f"{cls.__name__}.materialise", cls.materialise)
    try:
        # Its warnings are given where a value becomes dense.
        with collected(), _compat.mesh_of(avals):
            jaxpr, consts = _compat.trace_to_jaxpr(dense, avals, debug_info)
    except Exception:  # noqa: BLE001 - a type that is never dense raises anything
        return UNKNOWN
    return facts_of(jaxpr, [*[UNKNOWN] * len(consts), *facts])[0]


def _is_numeric(aval: ShapedArray) -> bool:
    return jnp.issubdtype(aval.dtype, jnp.number) or aval.dtype == jnp.bool_
