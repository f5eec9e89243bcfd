"""The masks of triangles that a program writes: the index of a row compared with that of a column.

`jax.numpy.tril` does so, and functions of JAX that read one triangle of a matrix, or clear one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from .. import _compat
from .._compat import JaxprEqn, Literal, Var
from .calls import ALL_CALLS, called
from .growing import Producers
from .written import Written


class Triangle(NamedTuple):
    """The entries on one side of a diagonal, with the diagonal itself.

    Of a lower triangle these are the columns j <= i + k of row i, as `jax.numpy.tril` counts
    diagonals, and of an upper one j >= i + k.
    """

    lower: bool
    k: int

    def others(self) -> Triangle:
        """The triangle of all other entries."""
        return Triangle(not self.lower, self.k + (1 if self.lower else -1))


class _Index(NamedTuple):
    """Of each entry the index along an axis, plus a number."""

    axis: int
    offset: int


# Whether the comparison is of a lower triangle where the row is on its left, and what it adds.
_COMPARISONS = {"ge": (True, 0), "gt": (True, -1), "le": (False, 0), "lt": (False, 1)}


class Triangles:
    """The analysis that tells the triangle of the last two axes where a mask is true, or ``None``.

    It goes backward from a mask, since few programs have any.
    """

    def __init__(self, eqns: Sequence[JaxprEqn], facts: Mapping[Var, Triangle]):
        self._facts = facts
        self._producer = Producers(eqns, {})
        self._written = Written(eqns, {})

    def __call__(self, atom: Any) -> Triangle | None:
        if type(atom) is Literal or not _is_mask(atom.aval):
            return None
        if atom in self._facts:
            return self._facts[atom]
        eqn = self._producer(atom)
        if eqn is None:
            return None
        name = eqn.primitive.name
        if name in _COMPARISONS:
            return self._compared(eqn)
        if name in ALL_CALLS:
            return self._called(eqn, atom)
        inner = self(eqn.invars[0]) if name in ("not", "broadcast_in_dim", "copy") else None
        if inner is None:
            return None
        if name == "broadcast_in_dim" and not _keeps_matrices(eqn):
            return None
        return inner.others() if name == "not" else inner

    def _compared(self, eqn: Any) -> Triangle | None:
        shape = eqn.outvars[0].aval.shape
        left, right = (self._index_along(x, shape) for x in eqn.invars)
        ndim = len(shape)
        if left is None or right is None or {left.axis, right.axis} != {ndim - 2, ndim - 1}:
            return None
        lower, more = _COMPARISONS[eqn.primitive.name]
        k = left.offset - right.offset
        if left.axis == ndim - 2:
            return Triangle(lower, k + more)
        return Triangle(not lower, -k - more)

    def _index(self, atom: Any) -> _Index | None:
        """The index that an array of signed integers holds, if its dtype can hold all of it."""
        if type(atom) is Literal or not jnp.issubdtype(atom.aval.dtype, jnp.signedinteger):
            return None
        eqn = self._producer(atom)
        index = None if eqn is None else self._computed(eqn)
        return index if index is not None and _is_held(index, atom.aval) else None

    def _index_along(self, atom: Any, shape: Sequence[Any]) -> _Index | None:
        """The index that an operand holds, unless that axis has length 1 and grows to the result's."""
        index = self._index(atom)
        is_whole = index is not None and atom.aval.shape[index.axis] == shape[index.axis]
        return index if is_whole else None

    def _computed(self, eqn: Any) -> _Index | None:
        name = eqn.primitive.name
        if name == "iota":
            return _Index(eqn.params["dimension"], 0)
        if name in ("add", "sub"):
            return self._moved(eqn)
        index = self._index(eqn.invars[0]) if name in _OF_THE_SAME else None
        if index is None or name != "broadcast_in_dim":
            return index
        axis = eqn.params["broadcast_dimensions"][index.axis]
        sizes = eqn.invars[0].aval.shape[index.axis], eqn.outvars[0].aval.shape[axis]
        return index._replace(axis=axis) if sizes[0] == sizes[1] else None

    def _moved(self, eqn: Any) -> _Index | None:
        """An index plus a number that the program writes, or minus one."""
        x, y = eqn.invars
        is_sum = eqn.primitive.name == "add"
        if is_sum and self._written(x).is_number:
            x, y = y, x
        index, by = self._index_along(x, eqn.outvars[0].aval.shape), self._written(y)
        if index is None or not by.is_number:
            return None
        number = int(by.number) if is_sum else -int(by.number)
        return index._replace(offset=index.offset + number)

    def _called(self, eqn: JaxprEqn, atom: Any) -> Triangle | None:
        jaxpr, consts = _compat.open_jaxpr(called(eqn))
        invars = jaxpr.invars[len(consts) :]
        if len(invars) != len(eqn.invars):
            return None
        pairs = ((var, self(x)) for var, x in zip(invars, eqn.invars, strict=True))
        facts = {var: triangle for var, triangle in pairs if triangle is not None}
        return Triangles(jaxpr.eqns, facts)(jaxpr.outvars[eqn.outvars.index(atom)])


# The primitives that keep an index as it is, but for its axis.
_OF_THE_SAME = ("broadcast_in_dim", "copy", "convert_element_type")


def _is_mask(aval: Any) -> bool:
    # What is no array, such as a reference or a token, may have no dtype.
    return getattr(aval, "dtype", None) == jnp.bool_ and len(aval.shape) >= 2


def _is_held(index: _Index, aval: Any) -> bool:
    """Whether no index overflows the dtype. A symbolic size may be any."""
    size = aval.shape[index.axis]
    return isinstance(size, int) and abs(index.offset) <= jnp.iinfo(aval.dtype).max - size


def _keeps_matrices(eqn: Any) -> bool:
    """Whether the last two axes are those of the operand, at their full sizes."""
    before, after = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    axes = eqn.params["broadcast_dimensions"]
    is_last = axes[-2:] == (len(after) - 2, len(after) - 1)
    return is_last and before[-2:] == after[-2:]
