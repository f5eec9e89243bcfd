"""`near_misses`: the pattern rules that almost match, and what is in their way."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from .. import _compat
from .._core.record import Recorder
from .._core.settings import current_settings
from .._patterns.outline import PATTERNS
from .._staging.transform import FilterSpec, Tables, check_function, tables_of
from .explain import info_of, note_rewriting
from .report import RuleInfo
from .text import with_short_location


@dataclasses.dataclass(frozen=True)
class NearMiss:
    """A pattern rule that does not match, although some of its equations are there.

    Attributes
    ----------
    rule
        The rule's name, file and line.
    file, line, function
        The user's place of the equation that would be the last of the match.
    found
        How many of its equations are there.
    why
        What is in the way: the equation that differs, or the result that is used elsewhere.
    """

    rule: RuleInfo
    file: str
    line: int
    function: str
    found: int
    why: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.file else "an unknown place"
        return f"{with_short_location(self.rule)} at {where}: {self.why}"


class NearMisses(tuple[NearMiss, ...]):
    """Near misses, the nearest first. It prints as a text."""

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "No pattern rule almost matches."


def near_misses(
    fn: Callable[..., Any], filter_spec: FilterSpec = True, *, rules: Tables = None
) -> Callable[..., NearMisses]:
    """Make a function that tells which pattern rules almost match ``fn``, and why not.

    The program is staged and rewritten, and is not run.

    Parameters
    ----------
    fn, filter_spec, rules
        As for `transform`.

    Returns
    -------
    Callable
        A function of the arguments of ``fn`` that returns a tuple of `NearMiss`.

    Raises
    ------
    TypeError, ValueError
        As `transform` raises them.

    Examples
    --------
    >>> import jax.numpy as jnp, jaxrewrite
    >>> rules = jaxrewrite.Rules()
    >>> @rules.rewrite(lambda x, y: jnp.sqrt(x * x + y * y))
    ... def hypotenuse(x, y):
    ...     return jnp.hypot(x, y)
    >>> (miss,) = jaxrewrite.near_misses(lambda x, y: jnp.sqrt(x**2 + y * y), rules=rules)(
    ...     jnp.ones(3), jnp.ones(3)
    ... )
    >>> print(miss.why)
    there is primitive 'integer_pow' at ..., where it has 'mul'
    """
    check_function("near_misses", fn)

    def report(*args: Any, **kwargs: Any) -> NearMisses:
        settings = current_settings().refined(tables_of(rules), "allow")
        recorder = Recorder()
        misses = recorder.misses[PATTERNS] = []
        note_rewriting(fn, args, kwargs, filter_spec, settings._replace(recorder=recorder))
        nearest: dict[Any, NearMiss] = {}
        for miss in sorted(misses, key=lambda m: -m.num_found):
            if miss.num_found < 2:
                continue
            location = _compat.source_location(miss.eqn.source_info) or ("", 0, "")
            near = NearMiss(info_of(miss.pattern), *location, miss.num_found, miss.why)
            nearest.setdefault((near.rule, location), near)
        return NearMisses(nearest.values())

    return report
