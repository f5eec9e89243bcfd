"""`check_rule`: one primitive on some operands, against dense code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jaxrewrite

from .._compat import Primitive
from .._core.rules import look_up_primitive
from .._core.settings import current_settings
from .._core.site import describe_operand
from .._insight.explain import explain, info_of
from .._insight.lookup import with_location
from .._insight.report import RuleInfo
from .._patterns.rules import Rules
from .._signatures import checked
from .._staging.transform import tables_of
from ._compare import Outcome, Program, compare, note
from ._oracle import MODES
from ._outcome import Checked, Findings, error_summary


def check_rule(
    rule_or_primitive: Callable[..., Any] | Primitive | str,
    /,
    *operands: Any,
    rules: Rules | None = None,
    modes: Sequence[str] = tuple(MODES),
    tolerance: float | None = None,
    **params: Any,
) -> Checked:
    """Assert that a primitive on values agrees with dense code.

    Shapes, dtypes and numbers are compared: of the call as it is (``"eager"``), compiled
    (``"jit"``), over a new leading axis of all leaves (``"vmap"``), and of both derivatives
    with respect to all floating leaves (``"jvp"`` and ``"grad"``).

    Parameters
    ----------
    rule_or_primitive
        A primitive or its name. Or a registered rule, which also has to be the one that
        answers. For a rule of several primitives, pass the name as ``primitive=``.
    *operands
        Values and arrays.
    rules
        A table of rules, as for `jaxrewrite.transform`.
    modes
        Some of ``"eager"``, ``"jit"``, ``"vmap"``, ``"jvp"``, ``"grad"``.
    tolerance
        How much numbers may differ, relative to the greatest of them. By default it depends
        on the dtype: 1e-4 for ``float32``.
    **params
        The primitive's parameters. Those that may be ``None`` are, by default.

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
        If there is no such primitive or mode, or a rule is for several primitives.
    Exception
        What JAX raises for the primitive on dense operands.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.testing import check_rule
    >>> class Shifted(jaxrewrite.ArrayValue):
    ...     x: jax.Array
    ...     def materialise(self):
    ...         return self.x + 1
    >>> @jaxrewrite.register("neg")
    ... def negative(v: Shifted):
    ...     return Shifted(-v.x)
    >>> check_rule(negative, Shifted(jnp.zeros(2)), modes=["jit"])
    Traceback (most recent call last):
    ...
    AssertionError: neg on (Shifted:f32[2]): 1 of 2 checks failed.
      jit: 2 of 2 numbers differ: 1 at [0] where dense code has -1
        reproduce: jaxrewrite.testing.check_rule('neg', *operands, modes=['jit'])
    """
    for mode in modes:
        if mode not in MODES:
            raise ValueError(f"check_rule: there is no mode {mode!r}; see {[*MODES]}.")
    name = params.pop("primitive", None)
    if isinstance(rule_or_primitive, (str, Primitive)):
        primitive, rule = look_up_primitive(rule_or_primitive), None
    else:
        primitive, rule = _registered(rule_or_primitive, rules, name)
    complete = checked(primitive, params)

    def apply(*xs: Any) -> Any:
        return primitive.bind(*xs, **primitive.get_bind_params(complete))

    apply.__name__ = primitive.name
    apply(*jaxrewrite.materialise(operands))  # JAX's own error comes before any finding.
    shown = ", ".join(map(describe_operand, operands))
    findings = Findings(f"{primitive.name} on ({shown})")
    keywords = "".join(f", {key}={content!r}" for key, content in params.items())
    call = f"jaxrewrite.testing.check_rule({primitive.name!r}, *operands{keywords}"
    if rule is not None:
        again = f"print(jaxrewrite.which({primitive.name!r}, *operands{keywords}))"
        note(findings, "answers", _answers(rule, apply, operands, rules), again)
    program = {primitive.name: Program(primitive.name, apply, operands)}
    for mode in modes:
        (outcome,) = compare(program, mode, rules=rules, tolerance=tolerance).values()
        note(findings, mode, outcome, f"{call}, modes=[{mode!r}])")
    return findings.result()


def _registered(
    rule: Any, rules: Rules | None, name: str | None
) -> tuple[Primitive, RuleInfo]:
    """The primitive for which a function is registered as a rule, and the rule."""
    tables = current_settings().rules.over(tables_of(rules)).tables
    registered = {
        p: info_of(entry.rule)
        for table in tables
        for p, entry in table.entries()
        if entry.rule.fn is rule and name in (None, p.name)
    }
    if len(registered) == 1:
        return registered.popitem()
    label = getattr(rule, "__name__", repr(rule))
    if not registered:
        for_primitive = "" if name is None else f" for {name!r}"
        raise ValueError(
            f"check_rule: {label} is not registered as a rule{for_primitive}, or a later rule for the "
            "same types has replaced it."
        )
    first, *_ = names = sorted(p.name for p in registered)
    raise ValueError(
        f"check_rule: {label} is a rule for several primitives: {', '.join(names)}. Pass "
        f"the name of one, as in primitive={first!r}."
    )


def _answers(rule: RuleInfo, apply: Any, operands: Any, rules: Rules | None) -> Outcome:
    """Whether this rule gives the result for these operands."""
    try:
        report = explain(apply, rules=rules, materialise="allow")(*operands)
    except Exception as error:  # noqa: BLE001 - the user's rules raise anything
        return Outcome(error_summary(error), error)
    (step,) = report.tree or (None,)
    if step is None:
        return Outcome("no operand is a value, and no rule is asked")
    if step.rule == rule:
        return Outcome()
    why = [declined.why for declined in step.declined if declined.rule == rule]
    answer = (
        f"{with_location(step.rule)} does"
        if step.rule
        else f"the decision is {step.decision}"
    )
    return Outcome(
        f"the rule does not answer, {answer}{''.join(f' ({reason})' for reason in why)}"
    )
