"""Functions that a pattern does not know: the bodies of scans.

While the looked-for function is traced, such a function is a *hole*: one equation of a
primitive of its own, with the results that the body in the program has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.tree_util import tree_flatten, tree_unflatten

from .. import _compat
from .._analyses.same import same
from .._compat import JaxprEqn, Primitive, ShapedArray


hole_p = Primitive("hole")
hole_p.multiple_results = True
hole_p.def_abstract_eval(lambda *_, avals, num_carry: list(avals))


class Hole(NamedTuple):
    """A function that stands for a body with these results, of which the carry is first.

    ``avals`` is ``None`` in a probe. Then the carry is returned unchanged, and there are
    ``num_ys`` other results.
    """

    avals: tuple[Any, ...] | None = None
    num_carry: int = 0
    num_ys: int = 1

    def function(self) -> Callable[..., Any]:
        def hole(*args: Any) -> Any:
            if not 1 <= len(args) <= 2:
                raise TypeError(
                    "The body of a scan takes a carry and a slice, that of lax.map a slice."
                )
            carry, carry_tree = tree_flatten(args[0] if len(args) == 2 else ())
            leaves, _ = tree_flatten(args)
            avals, num_carry = self.avals, self.num_carry
            if avals is None:
                last = leaves[-1] if leaves else np.float32(0)
                shown = [*carry, *[last] * self.num_ys]
                avals = tuple(_compat.strong(_compat.leaf_aval(x)) for x in shown)
                num_carry = len(carry)
            if num_carry != len(carry):
                raise TypeError("The scan has another number of carries.")
            outs = hole_p.bind(*leaves, avals=avals, num_carry=num_carry)
            return results_of(len(args), carry_tree, outs, num_carry)

        return hole


def results_of(count: int, carry_tree: Any, outs: Sequence[Any], num_carry: int) -> Any:
    """The results of a body as its caller expects them, for this number of arguments."""
    ys = outs[num_carry:]
    y = ys[0] if len(ys) == 1 else tuple(ys)
    return y if count == 1 else (tree_unflatten(carry_tree, outs[:num_carry]), y)


class Group(tuple[Any, ...]):
    """The atoms of an operand that is a pytree in the program: a carry, or the xs of a scan.

    ``length`` is the number of turns of a scan without xs.
    """

    length: int | None = None

    @classmethod
    def of(cls, atoms: Sequence[Any], length: int | None = None) -> Any:
        """The atoms as one operand; a single one is itself."""
        if len(atoms) == 1:
            return atoms[0]
        group = cls(atoms)
        group.length = None if atoms else length
        return group

    def same(self, other: Any) -> bool:
        return len(self) == len(other) and all(
            a is not None and type(a) is type(b) and a.same(b)
            for a, b in zip(self, other, strict=True)
        )

    def argument(self) -> Any:
        """The argument at which the function is traced."""
        if self.length is not None:
            return empty_slices(self.length)
        return tuple(atom.aval for atom in self)


def empty_slices(length: int) -> ShapedArray:
    """An aval that stands for the xs of a scan without xs."""
    return ShapedArray((length, 0), np.dtype("float32"))


class Body(NamedTuple):
    """The body of a scan in a program: its equation, and the atoms of its constants.

    ``ys`` are the numbers of its results for each step, in the order in which a pattern has
    them.
    """

    eqn: JaxprEqn
    consts: tuple[Any, ...]
    ys: tuple[int, ...]

    @classmethod
    def of(cls, eqn: JaxprEqn, consts: Sequence[Any], first: int) -> Body:
        """The body with one of its ys in front of the others."""
        _, num_carry = _compat.scan_counts(eqn.params)
        others = (y for y in range(len(eqn.outvars) - num_carry) if y != first)
        ys = (first, *others) if len(eqn.outvars) > num_carry else ()
        return cls(eqn, tuple(consts), ys)

    def same(self, other: Any) -> bool:
        return self.eqn is other.eqn and self.ys == other.ys

    def result(self, k: int) -> int:
        """Which result of the scan the pattern has as its result ``k``."""
        _, num_carry = _compat.scan_counts(self.eqn.params)
        return k if k < num_carry else num_carry + self.ys[k - num_carry]

    def hole(self) -> Hole:
        _, num_carry = _compat.scan_counts(self.eqn.params)
        jaxpr, _ = _compat.open_jaxpr(self.eqn.params["jaxpr"])
        order = map(self.result, range(len(jaxpr.outvars)))
        return Hole(tuple(jaxpr.outvars[k].aval for k in order), num_carry)


def is_hole_scan(eqn: JaxprEqn) -> bool:
    """Whether an equation is a scan whose body is a hole and nothing else."""
    if eqn.primitive.name != "scan":
        return False
    body, _ = _compat.open_jaxpr(eqn.params["jaxpr"])
    if len(body.eqns) != 1 or body.eqns[0].primitive is not hole_p:
        return False
    (hole,) = body.eqns
    rest = iter(hole.outvars)  # Dead code is dropped, so that some may be missing.
    return (
        len(hole.invars) == len(body.invars)
        and all(x is y for x, y in zip(hole.invars, body.invars, strict=True))
        and all(any(var is other for other in rest) for var in body.outvars)
    )


# Parameters that do not change the results of a scan, or are compared with its body.
_PASSED_ON = {"jaxpr", "unroll", "_split_transpose", "linear", "num_consts", "num_carry"}


def same_scan(mine: JaxprEqn, other: JaxprEqn, body: Body) -> bool:
    """Whether a scan of a program is the scan of a hole, but for this body."""
    if other.primitive.name != "scan" or other is not body.eqn:
        return False
    (consts, carry), (others, other_carry) = map(
        _compat.scan_counts, (mine.params, other.params)
    )
    ignored = _PASSED_ON | _compat.TREES_OF_SCAN
    return (
        carry == other_carry
        and _operands_without_empty(mine) - consts == len(other.invars) - others
        and len(mine.outvars) == len(other.outvars)
        and all(
            _compat.same_array_type(var.aval, other.outvars[body.result(k)].aval)
            for k, var in enumerate(mine.outvars)
        )
        and all(
            same(value, other.params[key])
            for key, value in mine.params.items()
            if key not in ignored
        )
    )


def _operands_without_empty(eqn: JaxprEqn) -> int:
    return sum(not is_empty_slices(atom.aval) for atom in eqn.invars)


def is_empty_slices(aval: Any) -> bool:
    """Whether an aval stands for the xs of a scan without xs (`empty_slices`)."""
    return len(aval.shape) == 2 and aval.shape[1] == 0


def groups(eqn: JaxprEqn, atoms: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """The constants, the carry and the xs among the operands of a scan."""
    consts, carry = _compat.scan_counts(eqn.params)
    start = consts + carry
    return list(atoms[:consts]), list(atoms[consts:start]), list(atoms[start:])


def atoms_of(operands: Sequence[Any]) -> Iterator[Any]:
    """All atoms among operands, also in groups and among bodies' constants."""
    for operand in operands:
        if isinstance(operand, Body):
            yield from operand.consts
        elif isinstance(operand, Group):
            yield from operand
        else:
            yield operand
