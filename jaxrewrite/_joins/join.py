"""Where two structures meet: the branches of a conditional, the turns of a loop.

The *structure* of an operand is its pytree with all metadata, and the avals of its leaves:
all that a jaxpr fixes. Two operands for the same array may have different structures. They
are brought to their *join*, which is the first of these that exists:

- the same structure, if they are equal;
- the structure of the other, if one is known to be zeros and the other can hold zeros, by
  its ``materialise`` or by its join with an array;
- the join of their children that are values, if they differ only in these;
- the result of the types' own `Value.join`;
- the join of what they are up to an annotation, where other layers are around one;
- the dense array.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.tree_util import PyTreeDef, tree_flatten, tree_leaves, tree_map, tree_unflatten

from .. import _compat
from .._analyses.written import Written
from .._compat import Aval, Literal, Tree, Var
from .._core.avals import (
    aval_of,
    avals_of,
    children,
    is_adopted,
    is_annotation,
    rule_children,
    same_treedef,
    values_inside,
)
from .._core.dead_code import live_equations
from .._core.dense import Reason
from .._core.site import Site, is_hiding
from .._core.value import Like, Operand, Value, is_value
from .zeros import (
    Zeros,
    as_arrays,
    has_zeros,
    is_zero_anyway,
    is_zero_where_parts_are,
    is_zeros,
    with_zeros,
)


# `rule_children` or `children`.
PartsOf = Callable[[Any], tuple[list[Any], PyTreeDef]]


class Structure(NamedTuple):
    """All that two operands must have in common to be the same for a jaxpr.

    Weak types are not compared, because JAX's loops and branches do not compare them.
    """

    treedef: PyTreeDef
    avals: tuple[Any, ...]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Structure)
            and same_treedef(self.treedef, other.treedef)
            and self._strong_avals() == other._strong_avals()
        )

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((self.treedef, *self._strong_avals()))

    def _strong_avals(self) -> list[Any]:
        return list(map(_compat.strong, self.avals))

    def like(self) -> Like:
        """An aval, or a value with avals as leaves."""
        return tree_unflatten(self.treedef, self.avals)


def structure_of(operand: Tree) -> Structure:
    leaves, treedef = tree_flatten(operand)
    return Structure(treedef, tuple(map(_compat.leaf_aval, leaves)))


def dense_structure(structure: Structure) -> Structure:
    """The structure of the dense form of operands of a structure."""
    (aval,) = avals_of([structure.like()])
    return structure_of(aval)


def join(site: Site, a: Structure, b: Structure) -> Structure:
    """The least structure, as far as the types know, for operands of either structure."""
    if a == b:
        return a
    x, y = a.like(), b.like()
    if not (is_value(x) or is_value(y)):
        return structure_of(site.scratch().vary(Var(x), y))
    joined = _join_children(site, x, y)
    if joined is None:
        return _join_denser(site, a, b)
    both = structure_of(joined)
    # A type's `join` may not give one structure for both. Then it cannot be used.
    fit = fits(site, a, both) and fits(site, b, both)
    return both if fit else _join_denser(site, a, b)


def _join_denser(site: Site, a: Structure, b: Structure) -> Structure:
    """The join of what two structures are up to an annotation; dense where there is none."""
    denser = [_up_to_annotation(site, structure) for structure in (a, b)]
    return dense_structure(a) if denser == [a, b] else join(site, *denser)


def _up_to_annotation(site: Site, structure: Structure) -> Structure:
    like = structure.like()
    if not is_around_annotation(like):
        return structure
    operand = tree_map(Var, like)
    return structure_of(site.scratch().materialise(operand, _DIFFERS, is_annotation))


def is_around_annotation(x: Any) -> bool:
    return not is_annotation(x) and any(map(is_annotation, values_inside(x)))


def join_all(site: Site, structures: Sequence[Structure]) -> Structure:
    """The join of several structures, to which operands of each can be brought."""
    joined = functools.reduce(lambda a, b: join(site, a, b), structures)
    if all(fits(site, structure, joined) for structure in structures):
        return joined
    return dense_structure(joined)


def together(site: Site, operands: Sequence[Any]) -> Any:
    """Operands for one array, and a structure for all; ``None`` if it is dense.

    Operands that differ are shown `with_zeros`. If their structure has zeros then, too, they stay
    as they were, as the results of branches do.
    """
    structures = list(map(structure_of, operands))
    shown = operands
    first, *others = structures
    if any(structure != first for structure in others):
        written = site.builder.analysis(Written)
        shown = [with_zeros(written, x) for x in operands]
    structure = join_all(site, list(map(structure_of, shown)))
    if has_zeros(structure.like()):
        shown, structure = operands, join_all(site, structures)
    return (shown, structure) if is_value(structure.like()) else None


def _join_children(site: Site, x: Like, y: Like) -> Like | None:
    """The join as a value on avals; ``None`` if it is dense, or dense up to an annotation."""
    for zeros, other in ((x, y), (y, x)):
        if is_zeros(zeros):
            if fits(site, structure_of(zeros), structure_of(other)):
                return other
            return _join_beside(site, zeros, other)
    if any(map(is_around_annotation, (x, y))) and any(map(is_annotation, (x, y))):
        return None
    parts_of: Any = rule_children
    if not _same_parts(x, y, rule_children):
        if any(map(is_hiding, (x, y))):
            return None
        pair = _call_join(site.scratch(), tree_map(Var, x), tree_map(Var, y))
        if pair is None:
            return _join_zero(site, x, y)
        x, y = (structure_of(result).like() for result in pair)
        parts_of = common_parts(x, y)
        if parts_of is None:
            return None
    return with_parts_joined(x, y, parts_of, lambda a, b: join(site, a, b))


def _join_beside(site: Site, zeros: Like, other: Like) -> Like:
    """The join of zeros and of another that has to change its structure for them."""
    joined = join(site, structure_of(as_arrays(zeros)), structure_of(other)).like()
    if is_value(joined) or not (isinstance(zeros, Zeros) and is_value(other)):
        return joined
    pair = _call_join(site.scratch(), zeros, tree_map(Var, other))
    return joined if pair is None else structure_of(pair[1]).like()


def _join_zero(site: Site, x: Like, y: Like) -> Like | None:
    """The join of a value that is always zero and of another, as of `Zeros` and that one."""
    for zero, other in ((x, y), (y, x)):
        if is_value(other) and is_zero_anyway(zero):
            return join(site, structure_of(_zeros_of(zero)), structure_of(other)).like()
    return None


def _zeros_of(x: Any) -> Zeros:
    return Zeros(_compat.strong(aval_of(x)))


def with_parts_joined(
    x: Like, y: Like, parts_of: PartsOf, joining: Callable[..., Structure]
) -> Like:
    """A value with the joins of the parts of two values on avals."""
    xs, treedef = parts_of(x)
    ys, _ = parts_of(y)
    pairs = zip(map(structure_of, xs), map(structure_of, ys), strict=True)
    return tree_unflatten(treedef, [joining(*pair).like() for pair in pairs])


def fits(site: Site, structure: Structure, joined: Structure) -> bool:
    """Whether operands of one structure can be brought to another."""
    if structure == joined or not is_value(joined.like()):
        return True
    return coerce(site.scratch(), tree_map(Var, structure.like()), joined) is not None


_DIFFERS = Reason(
    "{cls} can't keep one structure through primitive {primitive!r}", method="join"
)
_BESIDE_AN_ARRAY = _DIFFERS._replace(
    remedy="Another turn or branch has an array in its place: see jaxrewrite.explain. Let that be a "
    "{cls}, too, or make this one dense before"
)


def coerce(site: Site, operand: Operand, structure: Structure) -> Operand | None:
    """Add the equations that bring an operand to a structure; ``None`` if there is no way.

    It depends on the structures alone whether there is one. So `fits` tells it.
    """
    if structure_of(operand) == structure:
        return operand
    like = structure.like()
    if is_zeros(operand):
        if not is_value(like):
            return filled(site, structure, _zeros_like)
        if is_zero_where_parts_are(like):
            parts, treedef = rule_children(like)
            zeros = [Zeros(_compat.strong(aval)) for aval in avals_of(parts)]
            return _coerce_parts(site, zeros, parts, treedef)
    if not is_value(like):
        if is_value(operand) and is_adopted(operand):
            # Its ``materialise`` says what it is where nothing else tells: here an array does.
            array = _through_types(site, operand, like)
            operand = operand if array is None else array
        has_join = is_value(operand) and type(operand).join is not Value.join
        dense = site.materialise(operand, _BESIDE_AN_ARRAY if has_join else _DIFFERS)
        return _placed(site, site.vary(dense, like), like)
    if is_around_annotation(operand) and is_annotation(like):
        return coerce(site, site.materialise(operand, _DIFFERS, is_annotation), structure)
    parts_of: Any = rule_children
    if not _same_parts(operand, like, rule_children):
        joined = _through_types(site, operand, like)
        if joined is None and is_zero_anyway(operand) and not isinstance(operand, Zeros):
            return coerce(site, _zeros_of(operand), structure)
        operand = joined
        parts_of = None if operand is None else common_parts(operand, like)
        if parts_of is None:
            return None
    parts, treedef = parts_of(operand)
    return _coerce_parts(site, parts, parts_of(like)[0], treedef)


def _placed(site: Site, atom: Any, like: Any) -> Any:
    """An array, split over explicit axes of a mesh as another one, as JAX has it of a carry."""
    if _compat.strong(atom.aval) == _compat.strong(like):
        return atom
    return site.call_on_arrays(lambda x: [_compat.placed_as(x, like)], [atom])[0]


def _coerce_parts(
    site: Site, parts: Sequence[Any], likes: Sequence[Any], treedef: PyTreeDef
) -> Any:
    """A value with parts that are brought to the structures of others; ``None`` without a way."""
    pairs = zip(parts, likes, strict=True)
    brought = [coerce(site, part, structure_of(like)) for part, like in pairs]
    return None if any(x is None for x in brought) else tree_unflatten(treedef, brought)


def _zeros_like(aval: Any) -> jax.Array:
    return _compat.full(aval, 0)


def _same_parts(x: Operand | Like, y: Operand | Like, parts_of: PartsOf) -> bool:
    """Whether two operands differ at most inside of parts that are values.

    The parts are the children that rules see (`rule_children`), or all `children`.
    """
    if not (is_value(x) and is_value(y)):
        return False
    xs, treedef = parts_of(x)
    ys, other = parts_of(y)
    return same_treedef(treedef, other) and all(
        _compat.same_array_type(a, b)
        for a, b in zip(avals_of(xs), avals_of(ys), strict=True)
    )


def common_parts(x: Operand | Like, y: Operand | Like) -> PartsOf | None:
    """`rule_children` or `children` if two operands differ only inside of these, else ``None``.

    A type whose rules see all leaves may have other types in its children.
    """
    return next((of for of in (rule_children, children) if _same_parts(x, y, of)), None)


def _call_join(site: Site, x: Operand, y: Operand) -> Sequence[Operand] | None:
    """The result of `Value.join` for two operands; ``None`` if there is none."""
    # The outer type comes first, whichever operand it is: units stay around the array inside.
    pairs = [
        (value, other, swapped)
        for value, other, swapped in ((x, y, False), (y, x, True))
        if is_value(value) and type(value).join is not Value.join
    ]
    for value, other, swapped in sorted(pairs, key=lambda pair: -type(pair[0]).outer):
        aval = aval_of(value)
        outvars = [Var(aval), Var(aval)]
        cls = type(value)

        def check(pair: object, cls: type = cls, aval: Aval = aval) -> list[Any]:
            return _checked_pair(pair, cls, aval)

        key = cls.join, "join"
        pair = site.giving(outvars).call(cls.join, key, [value, other], check)
        if pair is not NotImplemented:
            return pair[::-1] if swapped else pair
    return None


def _checked_pair(pair: object, cls: type, aval: Aval) -> list[Any]:
    hook = f"{cls.__name__}.join"
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise TypeError(
            f"{hook} must return a pair, itself and the other in one structure, or "
            f"NotImplemented; it returned a {type(pair).__name__}."
        )
    for subject, joined in zip(("itself", "the other"), avals_of(pair), strict=True):
        if not _compat.same_array_type(joined, aval):
            raise TypeError(
                f"{hook} returned {subject} as {_compat.short(joined)}; it stands for "
                f"{_compat.short(aval)}."
            )
    return list(pair)


def _through_types(site: Site, operand: Operand, like: Like) -> Any:
    """An operand as `Value.join` returns it where it meets an operand that is ``like``.

    It is ``None`` if there is no join. Raises `TypeError` if it depends on the leaves of the
    other operand, which do not exist when a branch or a turn ends.
    """
    other = tree_map(Var, like)
    start, known_dense = len(site.builder.eqns), dict(site.builder.dense)
    zeros = operand if isinstance(operand, Zeros) else None
    if zeros is not None:  # A type that joins with any array need not know of zeros.
        operand = filled(site, structure_of(zeros.aval()), _zeros_like)
    pair = _call_join(site, operand, other)
    if pair is None and zeros is not None:
        pair = _call_join(site, zeros, other)
    if pair is None:
        return None
    result: Any = pair[0]
    if zeros is not None:
        parts, treedef = children(result)
        written = site.builder.analysis(Written)
        result = tree_unflatten(treedef, [with_zeros(written, part) for part in parts])
    leaves = tree_leaves(result)
    site.builder.eqns[start:] = live_equations(site.builder.eqns[start:], leaves)
    site.builder.dense = known_dense  # What made more of them may be gone.
    read = {
        atom
        for eqn in site.builder.eqns[start:]
        for atom in eqn.invars
        if type(atom) is not Literal
    }
    read.update(leaf for leaf in leaves if type(leaf) is not Literal)
    if not read.isdisjoint(tree_leaves(other)):
        names = [type(x).__name__ if is_value(x) else "an array" for x in (operand, like)]
        raise TypeError(
            f"The join of {' and '.join(names)} mixes the arrays of the two. Each of the pair that it "
            "returns must be the same array as before, in another structure."
        )
    return result


def filled(site: Site, structure: Structure, make: Callable[[Any], Any]) -> Operand:
    """An operand of a structure; a function makes its leaves from their avals."""
    leaves = site.call_on_arrays(lambda: list(map(make, structure.avals)), [])
    return of_structure(site, structure, leaves)


def of_structure(site: Site, structure: Structure, leaves: Sequence[Any]) -> Operand:
    """An operand of a structure, with arrays as leaves."""
    return tree_unflatten(
        structure.treedef,
        [site.vary(x, aval) for x, aval in zip(leaves, structure.avals, strict=True)],
    )
