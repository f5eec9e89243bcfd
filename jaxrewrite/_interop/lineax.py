"""Lineax's operators and solvers on values.

Only `equinox` beside it imports this module, when a program has a solve of Lineax's in it.

A solve is one equation, and Lineax knows its derivative, transpose and batching in terms of an
operator and a solver. So the rewritten solve is the same primitive, on an operator and a solver
that call the user's own through `transform`. Its operands are the leaves of the values. Lineax
differentiates the product of the operator and a vector along tangents of leaves, so the
derivative with respect to leaves is exact and nothing becomes dense.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import equinox.internal as eqxi
import lineax as lx
from jax.tree_util import tree_flatten, tree_leaves, tree_map, tree_unflatten

from .._core.settings import Settings, use_settings
from .._core.value import is_value
from .._staging.materialise import materialise
from .._staging.transform import transform


class _Rewritten(eqx.Module):
    """What calls methods of an operator or a solver that has values in it."""

    inside: Any
    settings: Settings = eqx.field(static=True)

    def _call(self, fn: Callable[..., Any], *args: Any) -> Any:
        """The result of a function of ``inside``; objects that are no arrays stay as they are."""
        traced = []

        def arrays(*args: Any) -> list[Any]:
            traced.append(tree_flatten(fn(*args)))
            return [x for x in traced[-1][0] if eqx.is_array(x)]

        with use_settings(self.settings):
            results = iter(transform(arrays)(self.inside, *args))
        leaves, treedef = traced[-1]
        return tree_unflatten(
            treedef, [next(results) if eqx.is_array(x) else x for x in leaves]
        )


_CHECKS = (
    lx.has_unit_diagonal,
    lx.is_diagonal,
    lx.is_lower_triangular,
    lx.is_negative_semidefinite,
    lx.is_positive_semidefinite,
    lx.is_symmetric,
    lx.is_tridiagonal,
    lx.is_upper_triangular,
)

_WHEN_TRANSPOSED = {
    lx.is_lower_triangular: lx.is_upper_triangular,
    lx.is_upper_triangular: lx.is_lower_triangular,
}


class Facts(NamedTuple):
    """The facts about an operator without its numbers; hashable.

    The flattened structures of a vector and of its image, and the checks that are true.
    """

    vector: Any
    image: Any
    checks: frozenset[Any]

    @classmethod
    def of(cls, operator: lx.AbstractLinearOperator) -> Facts:
        checks = frozenset(check for check in _CHECKS if check(operator))
        vector, image = map(
            tree_flatten, (operator.in_structure(), operator.out_structure())
        )
        return cls(_hashable(vector), _hashable(image), checks)

    def transposed(self) -> Facts:
        checks = frozenset(_WHEN_TRANSPOSED.get(check, check) for check in self.checks)
        return Facts(self.image, self.vector, checks)


def _hashable(flat: Any) -> Any:
    leaves, treedef = flat
    return tuple(leaves), treedef


class Operator(_Rewritten, lx.AbstractLinearOperator):
    """A linear operator that has values in it."""

    facts: Facts = eqx.field(static=True)

    def mv(self, vector: Any) -> Any:
        return materialise(self._call(lambda inside, x: inside.mv(x), vector))

    def as_matrix(self) -> Any:
        return self.part(lambda inside: inside.as_matrix())

    def part(self, fn: Callable[[Any], Any]) -> Any:
        """The results of a function of the operator, arrays."""
        return materialise(self._call(fn))

    def transpose(self) -> Operator:
        return self._of(lambda inside: inside.transpose(), self.facts.transposed())

    def conj(self) -> Operator:
        return self._of(lx.conj, self.facts)

    def _of(self, fn: Callable[[Any], Any], facts: Facts) -> Operator:
        return Operator(self._call(fn), self.settings, facts)

    def in_structure(self) -> Any:
        leaves, treedef = self.facts.vector
        return tree_unflatten(treedef, leaves)

    def out_structure(self) -> Any:
        leaves, treedef = self.facts.image
        return tree_unflatten(treedef, leaves)


@lx.linearise.register(Operator)
@lx.materialise.register(Operator)
def _(operator: Operator) -> Operator:
    return operator


for _check in _CHECKS:
    _check.register(Operator, lambda operator, check=_check: check in operator.facts.checks)

for _part in (lx.diagonal, lx.tridiagonal):
    _part.register(Operator, lambda operator, part=_part: operator.part(part))


@lx.conj.register(Operator)
def _(operator: Operator) -> Operator:
    return operator.conj()


class Solver(_Rewritten, lx.AbstractLinearSolver):
    """A solver whose state or options have values in them.

    A state of operators needs nothing more than their products. Any other state, such as the
    factors of a matrix, may be values itself.
    """

    def init(self, operator: Any, options: Any) -> Any:
        raise NotImplementedError("The state is that of the program.")

    def compute(self, *args: Any) -> Any:
        return materialise(self._method("compute", *args))

    def transpose(self, *args: Any) -> Any:
        return self._method("transpose", *args)

    def conj(self, *args: Any) -> Any:
        return self._method("conj", *args)

    def _method(self, name: str, *args: Any) -> Any:
        if any(map(is_value, tree_leaves(args, is_leaf=_is_value_or_operator))):
            return self._call(lambda inside, *args: getattr(inside, name)(*args), *args)
        return getattr(self.inside, name)(*args)

    def assume_full_rank(self) -> bool:
        return self.inside.assume_full_rank()


def _is_value_or_operator(x: Any) -> bool:
    return is_value(x) or isinstance(x, Operator)


def _is_operator(x: Any) -> bool:
    return isinstance(x, lx.AbstractLinearOperator)


def facts_of(args: Any) -> list[Facts]:
    """The facts about each operator among the arguments of the primitive."""
    leaves = tree_leaves(args, is_leaf=_is_operator)
    return [Facts.of(x) for x in leaves if _is_operator(x)]


def solve(primitive: Any, settings: Settings, args: Any, facts: Sequence[Facts]) -> Any:
    """Lineax's solve, of operators and a solver that are rewritten.

    ``args`` are the arguments of the primitive, with values in them.
    """
    *args, solver, throw = args
    rest = iter(facts)

    def rewritten(x: Any) -> Any:
        return Operator(x, settings, next(rest)) if _is_operator(x) else x

    operator, state, vector, options = tree_map(rewritten, args, is_leaf=_is_operator)
    if _factorises_definite(solver):
        state = tree_map(_of_definite, state, is_leaf=is_value)
    return eqxi.filter_primitive_bind(
        primitive,
        operator,
        state,
        materialise(vector),
        options,
        Solver(solver, settings),
        throw,
    )


def _factorises_definite(solver: lx.AbstractLinearSolver) -> bool:
    """Whether all Cholesky factors of a solver are of matrices tagged as definite."""
    if isinstance(solver, lx.Normal):
        return _factorises_definite(solver.inner_solver)
    return isinstance(solver, (lx.Cholesky, lx.AutoLinearSolver))


def _of_definite(x: Any) -> Any:
    return x.of_definite() if hasattr(x, "of_definite") else x
