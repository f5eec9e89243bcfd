"""`lax.composite`: its decomposition takes its place.

A backend that knows the composite by its name expects the original operands, and leaves are
others. So values run the decomposition, as on any backend that does not know the name. A
rule for ``composite`` comes first.
"""

from __future__ import annotations

from .. import _compat
from .._core.bodies import inlined
from .._core.rewrite import handlers
from .._core.site import Site
from .._core.value import Operand, Results, is_value


def composite_handler(site: Site, operands: list[Operand]) -> Results:
    if not any(map(is_value, operands)):
        return NotImplemented  # The equation stays as it is.
    body = site.params[_compat.body_name(site.primitive)]
    return inlined(site, body, operands)


handlers["composite"] = composite_handler
