"""Which operands the results of a jaxpr depend on, and whether entry by entry.

A derivative rule is a function of arrays. One that acts entry by entry on a tangent leaves
zeros where they are, so that the tangent of a diagonal matrix stays diagonal. The jaxpr of
the rule shows that.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from .. import _compat, primitives
from .._analyses.calls import PLAIN_CALLS, called
from .._compat import AnyJaxpr, Atom, JaxprEqn, Literal
from .._core.avals import avals_of


class Kind(enum.IntEnum):
    """How an array depends on its sources, which are some operands of a jaxpr."""

    ZERO = 0  # It is filled with zeros.
    FIXED = 1  # It depends on none of them.
    SAME = 2  # It is its one source.
    LINEAR = 3  # Each entry is a multiple of the entry of a source, or a sum of multiples.
    ENTRYWISE = 4  # Each entry is a function of the entries of sources at its index.
    MIXED = 5


class Dependence(NamedTuple):
    """How an array depends on operands of a jaxpr.

    ``sources`` are the labels of the sources. ``beside`` are the labels of the other operands
    if it depends on these entry by entry, too, or on the same number for all entries;
    otherwise it is ``None``.
    """

    kind: Kind
    sources: frozenset[Any] = frozenset()
    beside: frozenset[Any] | None = None


_NUMBER: frozenset[Any] = frozenset()
ZERO, FIXED = Dependence(Kind.ZERO, beside=_NUMBER), Dependence(Kind.FIXED)

_IDENTITIES = frozenset(primitives.IDENTITY)
_ENTRYWISE = frozenset(
    {
        *primitives.IDENTITY,
        *primitives.UNARY,
        *primitives.BINARY,
        *("clamp", "convert_element_type", "select_n"),
    }
)
_LINEAR = frozenset({*primitives.LINEAR, *primitives.IDENTITY, "convert_element_type"})


def source(label: Hashable) -> Dependence:
    return Dependence(Kind.SAME, frozenset({label}), _NUMBER)


def beside(label: Hashable) -> Dependence:
    """The dependence of an operand that is no source."""
    return Dependence(Kind.FIXED, beside=frozenset({label}))


def dependences(jaxpr: AnyJaxpr, operands: Sequence[Dependence]) -> list[Dependence]:
    """The dependences of the results of a jaxpr, of those of its operands."""
    env: dict[Any, Dependence] = dict(zip(jaxpr.invars, operands, strict=True))

    def read(atom: Atom) -> Dependence:
        if type(atom) is not Literal:
            return env[atom]
        if np.ndim(atom.val):
            return FIXED
        is_zero = np.result_type(atom.val) == jax.dtypes.float0 or atom.val == 0
        return ZERO if is_zero else FIXED._replace(beside=_NUMBER)

    for eqn in jaxpr.eqns:
        results = _of_equation(eqn, list(map(read, eqn.invars)))
        env.update(zip(eqn.outvars, results, strict=True))
    return list(map(read, jaxpr.outvars))


def _of_equation(eqn: JaxprEqn, operands: list[Dependence]) -> list[Dependence]:
    name = eqn.primitive.name
    if not eqn.outvars:  # It has an effect, such as printing.
        return []
    if name in PLAIN_CALLS:
        inner, consts = _compat.open_jaxpr(called(eqn))
        return dependences(inner, [FIXED] * len(consts) + operands)
    if name in _IDENTITIES:
        return operands  # Each result is the operand at its position.
    kind = _kind(eqn, operands)
    if kind == Kind.ZERO:
        return [ZERO] * len(eqn.outvars)
    sources = frozenset().union(*(x.sources for x in operands))
    return [Dependence(kind, sources, _beside(eqn, operands))] * len(eqn.outvars)


def _kind(eqn: JaxprEqn, operands: Sequence[Dependence]) -> Kind:
    name, kinds = eqn.primitive.name, [x.kind for x in operands]
    if max(kinds, default=Kind.FIXED) <= Kind.FIXED:
        return Kind.ZERO if kinds and _is_linear(name, kinds) else Kind.FIXED
    result, *avals = avals_of([eqn.outvars[0], *eqn.invars])
    is_entrywise = name in _ENTRYWISE and all(
        kind <= Kind.FIXED or aval.shape == result.shape
        for kind, aval in zip(kinds, avals, strict=True)
    )
    if not is_entrywise or Kind.MIXED in kinds:
        return Kind.MIXED
    return Kind.LINEAR if _is_linear(name, kinds) else Kind.ENTRYWISE


def _is_linear(name: str, kinds: Sequence[Kind]) -> bool:
    """Whether a result is linear in the sources, and so zero if all operands are."""
    linear = [kind in (Kind.ZERO, Kind.SAME, Kind.LINEAR) for kind in kinds]
    if name in _LINEAR:
        return all(linear)
    if name in primitives.MULTILINEAR:
        return any(linear) and sum(kind > Kind.FIXED for kind in kinds) <= 1
    if name == "div":
        return linear[0] and kinds[1] <= Kind.FIXED
    if name == "select_n":
        return all(linear[1:]) and kinds[0] <= Kind.FIXED
    return False


def _beside(eqn: JaxprEqn, operands: Sequence[Dependence]) -> frozenset[Any] | None:
    result, *avals = avals_of([eqn.outvars[0], *eqn.invars])
    if not result.shape:
        return _NUMBER
    is_number = eqn.primitive.name == "broadcast_in_dim" and not avals[0].shape
    if not (is_number or eqn.primitive.name in _ENTRYWISE):
        return None
    labels = _NUMBER
    for x, aval in zip(operands, avals, strict=True):
        sources = x.beside if aval.shape else _NUMBER
        if sources is None:
            return None
        labels |= sources
    return labels
