"""The tables that users make, which also hold pattern rules; and `rewrite`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from .._core.hooks import Pass
from .._core.rules import Table, global_rules
from .outline import PATTERNS
from .pattern import Pattern


_F = TypeVar("_F", bound=Callable[..., Any])


class Rules(Table):
    """A table of rules.

    The rules of `jaxrewrite.register` are in one global table. Another table, passed as
    ``transform(fn, rules=...)``, lies over it: if one of its own rules applies, that rule
    is taken, else the global rules are tried. The global table never changes by that.

    Examples
    --------
    >>> import jax.numpy as jnp, jaxrewrite
    >>> from jax import lax
    >>> from jaxtyping import Array
    >>> rules = jaxrewrite.Rules()
    >>> @rules.register(lax.tanh_p)
    ... def fast_tanh(x: Array, **params):
    ...     return x / (1 + abs(x))
    >>> jaxrewrite.transform(jnp.tanh, rules=rules)(jnp.ones(2))
    Array([0.5, 0.5], dtype=float32)
    """

    def rewrite(
        self,
        before: Callable[..., Any],
        *,
        when: Callable[..., bool] | None = None,
        precedence: int = 0,
        probes: Sequence[Any] = (),
        keep: bool = False,
    ) -> Callable[[_F], _F]:
        """Register a rule for the equations of a function; a decorator.

        Wherever a program computes what ``before`` computes, by the same equations, the
        decorated function takes their place.

        Parameters
        ----------
        before
            A function of arrays: what is looked for. Its keyword-only parameters are
            unknown static parameters, annotated with `typing.Literal`, ``bool`` or
            `jaxrewrite.Axis`.
        when
            A predicate on the operands, by the parameters of ``before``. It gets avals, or
            values with avals as leaves.
        precedence
            Of matches that overlap, the one of higher precedence is taken, then the
            larger, then the earlier.
        probes
            Operands, or `jax.ShapeDtypeStruct`, at which ``before`` is traced to learn
            which forms it takes: a tuple for each probe. They are needed only for
            functions that take a form of their own for special shapes.
        keep
            Whether to match even if other equations use what ``before`` computes on its
            way to the results. These equations then stay.

        Returns
        -------
        Callable
            A decorator that returns the decorated function unchanged. That function takes
            the operands of ``before``, by the same names. Its annotations say, as those of
            any rule, which operands it applies to; an operand annotated with ``float`` or
            ``int`` is a number in the program. A value for an operand without annotation is
            an array to the function, and what it does with that array is dispatched. It may
            return ``NotImplemented``.

        Raises
        ------
        TypeError
            If the two functions do not take the same parameters, or their annotations have
            no meaning here. What only shows when ``before`` is traced is raised when it
            first is: by a program that may contain it.

        Examples
        --------
        >>> import jax, jax.numpy as jnp, jaxrewrite
        >>> from jaxtyping import Array, Float
        >>> rules = jaxrewrite.Rules()
        >>> @rules.rewrite(lambda x: jnp.log(jnp.sum(jnp.exp(x), axis=-1)))
        ... def stable(x: Float[Array, "*batch n"]):
        ...     return jax.nn.logsumexp(x, axis=-1)
        >>> def log_partition(x):
        ...     return jnp.log(jnp.exp(x).sum(-1))
        >>> x = jnp.array([1000.0, 1000.0])
        >>> float(log_partition(x)), float(jaxrewrite.transform(log_partition, rules=rules)(x))
        (inf, 1000.693...)
        """

        def decorate(fn: _F) -> _F:
            pattern = Pattern(
                before,
                fn,
                sys._getframe(1).f_locals,
                when=when,
                precedence=precedence,
                probes=probes,
                keep=keep,
            )
            self.add_entry(PATTERNS, pattern, pattern.replaces)
            return fn

        return decorate

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """The pattern rules, in the order in which they were registered."""
        return patterns_of(self)


class _Global(Rules):
    """The way to the global table, which the core makes."""

    def add_entry(
        self, pass_: Pass, entry: Any, replaces: Callable[[Any], bool] | None = None
    ) -> None:
        global_rules.add_entry(pass_, entry, replaces)


rewrite = _Global().rewrite


def patterns_of(table: Table) -> tuple[Pattern, ...]:
    """The pattern rules of any table, in the order in which they were registered."""
    return table.entries_of(PATTERNS)
