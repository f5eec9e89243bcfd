"""Ready tables of pattern rules.

Each table is a `jaxrewrite.Rules`, and nothing is in force unless a program asks for it:
``transform(fn, rules=patterns.stable)``. A table is made when it is first used, and the
functions that its patterns look for are traced when a program first may contain them.

``stable``
    Formulas that lose digits or overflow, and those that do not.
``linalg``
    Inverses, determinants and products of matrices, and what computes the same for less.
``attention``
    Attention as libraries write it, and the function of JAX for it. Another table,
    ``attention_rules("cudnn")``, asks for NVIDIA's fused implementation.
``loops``
    Loops that keep what they need not keep, or compute what they need not compute.
``normal``
    Densities of normal distributions whose covariance is a sum with structure.
``structured``
    Diagonals that a program adds to a matrix with structure, and Kronecker sums.
"""

import importlib
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from jaxrewrite import Rules

    from ._attention import attention_rules as attention_rules


attention: "Rules"
"""Attention as libraries write it, and the function of JAX for it."""
linalg: "Rules"
"""Inverses, determinants and products of matrices, and what computes the same for less."""
loops: "Rules"
"""Loops that keep what they need not keep, or compute what they need not compute."""
normal: "Rules"
"""Densities of normal distributions whose covariance is a sum with structure."""
stable: "Rules"
"""Formulas that lose digits or overflow, and those that do not."""
structured: "Rules"
"""Diagonals that a program adds to a matrix with structure, and Kronecker sums."""


# Each table is ``rules`` of the module ``_<name>``. A module of the table's own name would
# take the table's place in this namespace when it is imported.
_TABLES = ("attention", "linalg", "loops", "normal", "stable", "structured")


if not TYPE_CHECKING:  # To checkers, all other names are errors.

    def __getattr__(name: str) -> Any:
        # A table is loaded at its first use.
        if name == "attention_rules":
            return importlib.import_module("._attention", __name__).attention_rules
        if name not in _TABLES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        table = importlib.import_module(f"._{name}", __name__).rules
        globals()[name] = table
        return table

    __all__ = [*_TABLES, "attention_rules"]


def __dir__() -> list[str]:
    return sorted({*globals(), *_TABLES, "attention_rules"})
