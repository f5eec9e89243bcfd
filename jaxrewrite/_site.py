"""`Site`: an equation that values meet, and its place in the program.

Rules, handlers and whatever else adds equations in the place of one are given its site.
It says what is to be computed, for whom, and what the new equations are said to come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from . import _compat
from ._avals import aval_of
from ._compat import JaxprEqn, Primitive, SourceInfo, Var
from ._errors import place
from ._value import is_value


class Site(NamedTuple):
    """An equation, where its results go, and, if a rule made it, where that was applied.

    Results that are arrays are written to ``outvars`` where that is possible. ``origin``
    is ``None`` for an equation of the program itself.
    """

    eqn: JaxprEqn
    outvars: Sequence[Var]
    origin: SourceInfo | None = None

    @classmethod
    def of(cls, eqn: JaxprEqn) -> Site:
        """The site of an equation to what is in one of its own jaxprs.

        That is a program of its own, whichever rule the equation may come from.
        """
        return cls(eqn, eqn.outvars)

    @property
    def primitive(self) -> Primitive:
        return self.eqn.primitive

    @property
    def params(self) -> dict[str, Any]:
        return self.eqn.params

    @property
    def context(self) -> Any:
        """JAX's own settings that the equation was traced under."""
        return self.eqn.ctx

    @property
    def is_in_rule(self) -> bool:
        """Whether a rule made the equation, which is final then as far as it is dense."""
        return self.origin is not None

    @property
    def source_info(self) -> SourceInfo:
        """Where the equations come from that take the place of this one."""
        return source_within(self.origin, self.eqn.source_info)

    @property
    def line(self) -> tuple[str, int, str] | None:
        """The user's file, line and function: of a rule, where it was applied."""
        return _compat.source_location(self.origin or self.eqn.source_info)

    def giving(self, outvars: Sequence[Var]) -> Site:
        """This site for something else that is computed on its behalf."""
        return self._replace(outvars=outvars)

    def with_params(self, **params: Any) -> Site:
        """This site for the same primitive with some other parameters."""
        return self._replace(eqn=self.eqn.replace(params={**self.params, **params}))


def source_within(origin: SourceInfo | None, inner: SourceInfo) -> SourceInfo:
    """Where an equation of a rule comes from: where the rule was applied."""
    if origin is None:
        return inner
    if not inner.name_stack.stack:
        return origin
    return origin.replace(name_stack=origin.name_stack + inner.name_stack)


def describe(site: Site, operands: Sequence[Any]) -> str:
    """A note that names an equation, its operands and the user's line."""
    shown = ", ".join(map(describe_operand, operands))
    line = place(_compat.source_location(site.eqn.source_info))
    return f"jaxrewrite: in primitive {site.primitive.name!r} on ({shown}){line}"


def describe_operand(operand: Any) -> str:
    if not is_value(operand):
        return _compat.short(_compat.leaf_aval(operand))
    return f"{type(operand).__name__}:{_compat.short(aval_of(operand))}"
