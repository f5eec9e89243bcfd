"""`Site`: an equation that values meet, and its place in the program.

Rules, handlers and all other code that replaces an equation get its site. The site knows
the equation, the variables for its results, and the source info for the new equations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .. import _compat
from .._compat import JaxprEqn, Primitive, SourceInfo, Var
from .avals import aval_of
from .errors import place
from .value import is_value


class Site(NamedTuple):
    """An equation, its result variables, and the source of the rule that made it.

    Results that are arrays are written to ``outvars`` if possible. ``origin`` tells where
    the rule was applied. It is ``None`` for an equation of the program itself.
    """

    eqn: JaxprEqn
    outvars: Sequence[Var]
    origin: SourceInfo | None = None

    @classmethod
    def of(cls, eqn: JaxprEqn) -> Site:
        """The site of an equation, for code in one of the equation's own jaxprs.

        Such a jaxpr is a program of its own, whichever rule the equation comes from.
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
        """The JAX settings under which the equation was traced."""
        return self.eqn.ctx

    @property
    def is_in_rule(self) -> bool:
        """Whether a rule made the equation. Without values it is then final."""
        return self.origin is not None

    @property
    def source_info(self) -> SourceInfo:
        """The source info for the equations that replace this one."""
        return source_within(self.origin, self.eqn.source_info)

    @property
    def line(self) -> tuple[str, int, str] | None:
        """The user's file, line and function, for a rule those where it was applied.

        An equation in the body of a function of JAX itself has none.
        """
        return _compat.source_location(self.origin or self.eqn.source_info)

    def giving(self, outvars: Sequence[Var]) -> Site:
        """This site with other result variables, for another computation on its behalf."""
        return self._replace(outvars=outvars)

    def with_params(self, **params: Any) -> Site:
        """This site with some other parameters of the same primitive."""
        return self._replace(eqn=self.eqn.replace(params={**self.params, **params}))


def source_within(origin: SourceInfo | None, inner: SourceInfo) -> SourceInfo:
    """The source info of an equation in a rule: that of the place where it was applied."""
    if origin is None:
        return inner
    if not inner.name_stack.stack:
        return origin
    return origin.replace(name_stack=origin.name_stack + inner.name_stack)


def describe(site: Site, operands: Sequence[Any]) -> str:
    """A note that names an equation, its operands and the user's line."""
    shown = ", ".join(map(describe_operand, operands))
    where = _compat.source_location(site.eqn.source_info) or _compat.current_location()
    return f"jaxrewrite: in primitive {site.primitive.name!r} on ({shown}){place(where)}"


def describe_operand(operand: Any) -> str:
    if not is_value(operand):
        return _compat.short(_compat.leaf_aval(operand))
    return f"{type(operand).__name__}:{_compat.short(aval_of(operand))}"
