"""Warnings that a rule gives the user at whose line it is applied."""

from __future__ import annotations

from ._core.notices import Notice, warn


def warn_from_rule(
    message: str, category: type[Warning] = UserWarning, *, is_forward: bool = False
) -> None:
    """Warn, from within a rule, the user at whose line the rule is applied.

    A rule is traced once for each structure of operands, so that ``warnings.warn`` in it would
    come once, with a line of the rule. This comes for each line of the program to which the
    rule is applied, when that is rewritten, and is shown as often as Python shows a warning
    of one line.

    Parameters
    ----------
    message
        What the user is told.
    category
        The class of the warning, which can be made from the message alone.
    is_forward
        Whether it says nothing of the equations of cotangents in the rewritten program of
        a gradient. These are on the same lines.

    Examples
    --------
    >>> import warnings, jax, jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.extend import warn_from_rule
    >>> class Scaled(jaxrewrite.ArrayValue):
    ...     x: jax.Array
    ...     def materialise(self):
    ...         return 2 * self.x
    >>> @jaxrewrite.register("cumsum")
    ... def _(v: Scaled, **params):
    ...     warn_from_rule("cumsum of Scaled is slow")
    ...     return Scaled(jax.lax.cumsum(v.x, **params))
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     v = jaxrewrite.transform(jnp.cumsum)(Scaled(jnp.ones(3)))
    >>> [str(w.message) for w in caught]
    ['cumsum of Scaled is slow']
    """
    warn([Notice(category, (message,), is_forward=is_forward)])
