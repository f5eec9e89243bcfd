"""Implicit arrays for JAX, by rewriting jaxprs.

Subclass `ArrayValue`, `register` rules for the primitives that your type computes better
than dense code does, and call ``transform(fn)(*values)``. The program ``fn`` knows nothing
of the type.
"""

import typing as _typing


# The library's own rules are checked by its tests: see `extend`.
__jaxrewrite_library__ = True

from ._array_value import ArrayValue as ArrayValue
from ._batched import Batched as Batched, stack as stack
from ._core.caches import clear_caches as clear_caches
from ._core.errors import (
    AmbiguousRuleError as AmbiguousRuleError,
    MaterialisationError as MaterialisationError,
    MaterialisationWarning as MaterialisationWarning,
)
from ._core.hooks import Policy as _Policy, policies as _policies
from ._core.rules import register as register
from ._core.value import Value as Value, field as field
from ._patterns.domains import Axis as Axis
from ._patterns.rules import Rules as Rules, rewrite as rewrite
from ._placement.shardings import place as place, shardings as shardings
from ._staging.materialise import (
    materialise as materialise,
    no_materialise as no_materialise,
)
from ._staging.structure import same_structure as same_structure
from ._staging.transform import (
    bind as bind,
    make_jaxpr as make_jaxpr,
    transform as transform,
)


# The rooms that register something: handlers, hooks and checks. Patterns have done so.
from . import _analyses, _axes, _handlers, _interop, _members  # isort: skip


del _analyses, _axes, _handlers, _interop, _members


def _cheapest() -> _Policy:
    from ._cheapest.policy import Cheapest

    return Cheapest()


_policies["cheapest"] = _cheapest


# These are loaded at their first use.
if _typing.TYPE_CHECKING:
    from . import (
        checkpoints as checkpoints,
        extend as extend,
        numpy as numpy,
        patterns as patterns,
        primitives as primitives,
        testing as testing,
        values as values,
    )
    from ._cheapest.policy import Cheapest as Cheapest
    from ._insight.explain import explain as explain
    from ._insight.lookup import rules as rules, which as which
    from ._insight.misses import near_misses as near_misses
    from ._insight.report import Report as Report
else:
    _LATER = {
        "Cheapest": "_cheapest.policy",
        "Report": "_insight.report",
        "explain": "_insight.explain",
        "near_misses": "_insight.misses",
        "rules": "_insight.lookup",
        "which": "_insight.lookup",
    }

    _MODULES = (
        *("checkpoints", "extend", "numpy", "patterns", "primitives", "testing"),
        "values",
    )

    def __getattr__(name: str) -> object:
        import importlib

        if name in _MODULES:
            return importlib.import_module(f".{name}", __name__)
        if name in _LATER:
            module = importlib.import_module(f".{_LATER[name]}", __name__)
            return getattr(module, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *_LATER, *_MODULES})


__version__ = "0.2.0"
