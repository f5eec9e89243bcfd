"""`check_pattern`: a pattern rule on some operands, against the function that it replaces."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _compat
from .._core.settings import current_settings
from .._core.site import describe_operand
from .._core.value import is_value
from .._insight.explain import explain, info_of
from .._insight.misses import near_misses
from .._patterns.outline import PATTERNS
from .._patterns.pattern import Pattern
from .._patterns.rules import Rules, patterns_of
from .._staging.transform import tables_of
from ._compare import Outcome, Program, compare, note
from ._oracle import MODES
from ._outcome import Checked, Findings, error_summary


def check_pattern(
    rule: Callable[..., Any],
    /,
    *operands: Any,
    rules: Rules | None = None,
    modes: Sequence[str] = tuple(MODES),
    tolerance: float | None = None,
    seed: int = 0,
    **statics: Any,
) -> Checked:
    """Assert that a pattern rule agrees with what it takes the place of.

    What the rule looks for is called on the operands, once as it is and once with the rule
    in force, which has to answer. Shapes, dtypes and numbers are compared: of the call as it
    is (``"eager"``), compiled (``"jit"``), over a new leading axis (``"vmap"``), and of both
    derivatives (``"jvp"`` and ``"grad"``), in 32 bits and in 64 bits.

    Parameters
    ----------
    rule
        A function that `jaxrewrite.rewrite` registered.
    *operands
        Arrays and values, or `jax.ShapeDtypeStruct` for random arrays. A Python scalar for
        an operand that is a number in the program.
    rules
        The table of rules that the pattern is in; by default the global one.
    modes
        Some of ``"eager"``, ``"jit"``, ``"vmap"``, ``"jvp"``, ``"grad"``.
    tolerance
        How much numbers may differ, relative to the greatest of them. By default it depends
        on the dtype.
    seed
        The seed of random operands.
    **statics
        The static parameters of what is looked for.

    Returns
    -------
    Checked
        What was checked. A mode in which dense code raises is skipped.

    Raises
    ------
    AssertionError
        If a result differs, or the rule does not answer. All modes that fail are in the
        message.
    ValueError
        If the function is no pattern rule of the table, or there is no such mode.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.testing import check_pattern
    >>> rules = jaxrewrite.Rules()
    >>> @rules.rewrite(lambda x: jnp.log(1 + x))
    ... def careless(x):
    ...     return x
    >>> x = jax.ShapeDtypeStruct((2,), jnp.float32)
    >>> check_pattern(careless, x, rules=rules, modes=["eager"])
    Traceback (most recent call last):
    ...
    AssertionError: careless on (f32[2]): 2 of 4 checks failed.
      eager in 32 bits: 2 of 2 numbers differ: ... at [...] where dense code has ...
        reproduce: jaxrewrite.testing.check_pattern(careless, *operands, modes=['eager'])
      eager in 64 bits: 2 of 2 numbers differ: ... at [...] where dense code has ...
        reproduce: jaxrewrite.testing.check_pattern(careless, *operands, modes=['eager'])
    """
    for mode in modes:
        if mode not in MODES:
            raise ValueError(f"check_pattern: there is no mode {mode!r}; see {[*MODES]}.")
    patterns = _registered(rule, rules)
    name = getattr(rule, "__name__", "pattern")
    findings = Findings(f"{name} on ({', '.join(map(_described, operands))})")
    keywords = "".join(f", {key}={content!r}" for key, content in statics.items())
    call = f"jaxrewrite.testing.check_pattern({name}, *operands{keywords}"
    table = Rules()
    for pattern in patterns:
        table.add_entry(PATTERNS, pattern)
    for bits in (32, 64):
        with jax.enable_x64(True) if bits == 64 else contextlib.nullcontext():
            arrays = [_operand(x, i + seed, bits) for i, x in enumerate(operands)]
            program = _program(patterns[0], arrays, statics)
            inputs = [x for x in arrays if not isinstance(x, (int, float, complex))]
            again = f"print(jaxrewrite.explain({name}, ...)(*operands{keywords}))"
            answers = _answers(patterns, program, inputs, table)
            note(findings, f"answers in {bits} bits", answers, again)
            programs = {name: Program(name, program, inputs)}
            for mode in modes:
                (outcome,) = compare(
                    programs, mode, rules=table, tolerance=tolerance
                ).values()
                reproduce = f"{call}, modes=[{mode!r}])"
                note(findings, f"{mode} in {bits} bits", outcome, reproduce)
    return findings.result()


def _registered(rule: Any, rules: Rules | None) -> list[Pattern]:
    """The patterns for which a function is registered."""
    registered = [
        pattern
        for table in current_settings().rules.over(tables_of(rules)).tables
        for pattern in patterns_of(table)
        if pattern.fn is rule
    ]
    if not registered:
        label = getattr(rule, "__name__", repr(rule))
        raise ValueError(
            f"check_pattern: {label} is not registered as a pattern rule in this table, or "
            "was registered again since. Pass the table as rules=."
        )
    return registered


def _described(operand: Any) -> str:
    is_array = is_value(operand) or not isinstance(operand, (int, float, complex))
    return describe_operand(operand) if is_array else repr(operand)


def _operand(operand: Any, seed: int, bits: int) -> Any:
    """An operand in this precision, with random numbers if only its shape is known."""
    if isinstance(operand, (int, float, complex)):
        return operand
    if isinstance(operand, jax.ShapeDtypeStruct):
        operand = _random(operand, seed)
    return jax.tree.map(lambda x: _wide(x) if bits == 64 else jnp.asarray(x), operand)


def _random(like: Any, seed: int) -> Any:
    numbers = np.random.default_rng(seed).normal(size=like.shape)
    if jnp.issubdtype(like.dtype, jnp.inexact):
        return jnp.asarray(np.abs(numbers) + 0.1, like.dtype)
    return jnp.asarray(np.abs(3 * numbers), like.dtype)


_WIDE = {jnp.float32: jnp.float64, jnp.complex64: jnp.complex128}


def _wide(leaf: Any) -> Any:
    for narrow, wide in _WIDE.items():
        if _compat.leaf_aval(leaf).dtype == narrow:
            return jnp.asarray(leaf, wide)
    return jnp.asarray(leaf)


def _program(pattern: Pattern, operands: Sequence[Any], statics: Any) -> Any:
    """The function that the pattern looks for, as a function of its arrays."""
    is_number = [isinstance(x, (int, float, complex)) for x in operands]

    def before(*arrays: Any) -> Any:
        rest = iter(arrays)
        arguments = [
            x if number else next(rest)
            for x, number in zip(operands, is_number, strict=True)
        ]
        return pattern.before(*arguments, **statics)

    return before


def _answers(
    patterns: Sequence[Pattern], program: Any, operands: Sequence[Any], rules: Rules
) -> Outcome:
    """Whether a pattern gives the result for the program that it looks for."""
    try:
        report = explain(program, rules=rules, materialise="allow")(*operands)
    except Exception as error:  # noqa: BLE001 - the user's rules raise anything
        return Outcome(error_summary(error), error)
    infos = {info_of(pattern) for pattern in patterns}
    if any(step.decision == "pattern" and step.rule in infos for step in report.steps):
        return Outcome()
    why = [
        declined.why
        for step in report.steps
        for declined in step.declined
        if declined.rule in infos
    ]
    why += [miss.why for miss in near_misses(program, rules=rules)(*operands)]
    return Outcome(
        f"the pattern does not answer{''.join(f': {reason}' for reason in why[:1])}"
    )
