"""A jaxpr under construction, and the finished jaxpr."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from jax.tree_util import PyTreeDef, tree_map, tree_unflatten

from .. import _compat
from .._compat import AnyJaxpr, Jaxpr, JaxprEqn, Literal, SourceInfo, Var
from .dead_code import live_equations
from .notices import Notice
from .value import Like, Operand, is_value


class Applied(NamedTuple):
    """One use of a rule: the equations that it added, and its jaxpr.

    ``traced`` is the jaxpr of the rule. ``operands`` and ``results`` are the atoms for its
    ``invars`` and ``outvars``.
    """

    traced: Jaxpr
    operands: list[Operand]
    results: list[Any]
    eqns: Sequence[JaxprEqn]


class Rewritten(NamedTuple):
    """A jaxpr rewritten for operands of one structure.

    The ``jaxpr`` takes ``consts`` first and then the leaves of the operands. It returns the
    leaves of the results, and ``out_tree`` is the treedef of the results. ``closed`` is the
    jaxpr as the parameter of an equation: one object for all equations that share it,
    because JAX lowers each object once. ``changed`` tells whether a rule or a value changed
    anything. ``warnings`` are the notices about values that became dense in it,
    ``applied`` are the uses of rules, and ``noted`` is what its policy notes about it.
    """

    jaxpr: Jaxpr
    closed: AnyJaxpr
    consts: list[Any]
    out_tree: PyTreeDef
    changed: bool
    warnings: tuple[Notice, ...]
    applied: tuple[Applied, ...]
    noted: Any = None

    def results(self) -> list[Any]:
        """The results, with variables of the jaxpr as leaves."""
        return tree_unflatten(self.out_tree, self.jaxpr.outvars)


class Builder:
    """A jaxpr under construction."""

    def __init__(self) -> None:
        self.eqns: list[JaxprEqn] = []
        self.changed = False
        # Whether JAX has to expand some of the primitives before it can compile.
        self.is_high = False
        # The uses of rules, for the code that runs the program.
        self.applied: list[Applied] = []
        # The notices for the whole program when it is finished; a dictionary keeps order.
        self._warnings: dict[Notice, None] = {}
        self._consts: dict[int, tuple[Var, Any]] = {}
        # The operands of the program that is rewritten; those of this one, and all constants.
        self.arguments: set[Any] = set()
        self.inputs: set[Any] = set()

    # --- operands ---------------------------------------------------------------

    def const(self, value: Any, var: Var | None = None) -> Var:
        """The variable of a constant, which becomes an operand of the jaxpr."""
        entry = self._consts.get(id(value))
        if entry is None:
            var = var or Var(_compat.leaf_aval(value))
            entry = self._consts[id(value)] = var, value
            self.inputs.add(var)
        return entry[0]

    def constants(self, jaxpr: Jaxpr, consts: Sequence[Any]) -> list[Any]:
        """The operands of a jaxpr's constants, its first ``invars``."""
        return [self.const(c, var) for c, var in zip(consts, jaxpr.invars, strict=False)]

    @staticmethod
    def operand(var: Var, like: Like) -> Operand:
        """An operand in place of the variable of a jaxpr that will run in this builder.

        If ``like`` is the aval of the variable, it is the variable itself, so that
        equations on it stay the same. If ``like`` is a value on avals, it is a value on new
        variables.
        """
        if is_value(like):
            return tree_map(Var, like)
        return var if var.aval == like else Var(like)

    # --- equations --------------------------------------------------------------

    def emit(
        self,
        eqn: JaxprEqn,
        operands: Sequence[Any],
        outvars: Sequence[Var],
        source_info: SourceInfo,
        params: dict[str, Any] | None = None,
        effects: _compat.Effects | None = None,
    ) -> None:
        """Add an equation with other atoms or parameters."""
        if effects is None:
            effects = eqn.effects
            if effects:
                names = dict(_pairs(eqn.invars, operands))
                effects = _compat.rename_effects(effects, names)
        if params is not None:
            self.is_high |= _compat.has_high_parameters(eqn.primitive, operands, params)
        self.eqns.append(
            eqn.replace(
                invars=list(operands),
                outvars=list(outvars),
                params=params,
                effects=effects,
                source_info=source_info,
            )
        )

    def notice(self, notices: Iterable[Notice]) -> None:
        """Warn when the program is finished."""
        self._warnings.update(dict.fromkeys(notices))

    # --- the end ----------------------------------------------------------------

    def finish(
        self,
        invars: Sequence[Var],
        outvars: Sequence[Any],
        out_tree: PyTreeDef,
        debug_info: _compat.DebugInfo,
    ) -> Rewritten:
        consts = list(self._consts.values())
        operands = [*(var for var, _ in consts), *invars]
        eqns = live_equations(self.eqns, outvars)
        jaxpr = _compat.new_jaxpr(operands, outvars, eqns, debug_info, self.is_high)
        closed, values = _compat.close_jaxpr(jaxpr), [value for _, value in consts]
        notices, applied = tuple(self._warnings), tuple(self.applied)
        finished = Rewritten(
            jaxpr, closed, values, out_tree, self.changed, notices, applied
        )
        # Code that JAX calls later may hold a site, and the caches hold that code.
        vars(self).clear()
        return finished


def _pairs(invars: Sequence[Any], operands: Sequence[Operand]) -> Iterator[tuple[Any, Any]]:
    for var, operand in zip(invars, operands, strict=True):
        if type(var) is not Literal:
            yield var, operand
