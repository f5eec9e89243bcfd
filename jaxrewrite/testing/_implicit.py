"""`assert_implicit`: nothing becomes dense."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._insight.explain import explain
from .._insight.report import Report


def assert_implicit(fn: Callable[..., Any], /, *values: Any, **kwargs: Any) -> Report:
    """Assert that no value becomes dense in a program.

    The program is staged and rewritten, and is not run.

    Parameters
    ----------
    fn
        A function of arrays.
    *values, **kwargs
        Its arguments: arrays and values, or pytrees of them.

    Returns
    -------
    Report
        What `jaxrewrite.explain` tells of the program.

    Raises
    ------
    AssertionError
        If a value becomes dense. The message is the report, with the first lines of each
        rule that is missing.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from jaxrewrite.testing import assert_implicit
    >>> from jaxrewrite.values import Diagonal
    >>> v = Diagonal(jnp.ones(3))
    >>> assert_implicit(lambda v, x: v @ x, v, jnp.ones(3)).steps[0].decision
    'rule'
    >>> assert_implicit(jnp.sort, v)
    Traceback (most recent call last):
    ...
    AssertionError: 1 value became dense in a program that should stay implicit.
    ...
    """
    report = explain(fn)(*values, **kwargs)
    dense = len(report.dense)
    if dense:
        became = "1 value became" if dense == 1 else f"{dense} values became"
        raise AssertionError(
            f"{became} dense in a program that should stay implicit.\n\n{report}"
        )
    return report
