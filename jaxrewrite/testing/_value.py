"""`check_value`: a value in everything that the library does with values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jaxrewrite import Value

from ._compare import compare, note
from ._export import check_export
from ._oracle import DERIVATIVES
from ._outcome import Checked, Findings, told
from ._programs import BY_DEFAULT, programs
from ._registered import RuleOfType, rules_that_name
from ._structure import CHECKS, FIRST


_MODES = ("jit", "vmap", "jvp", "grad")


def check_value(
    value: Value,
    *,
    skip: Sequence[str | type[Exception]] = (),
    only: Sequence[str] = (),
    export: bool = False,
    tolerance: float | None = None,
) -> Checked:
    """Assert that a value of your own type agrees with its dense array in everything.

    These are the checks, by name:

    - ``"pytree"``, ``"pickle"``: the value is the same after a round trip.
    - ``"metadata"``: that of a copy is equal and has the same hash.
    - ``"static fields"``: values that differ in one differ in structure.
    - ``"aval"``: shape and dtype are those of ``materialise()``.
    - ``"stack"``: `jaxrewrite.stack` of this value and one with other numbers.
    - ``"batch"``: with one more axis in front of each leaf, as after `jax.vmap`, it is a
      batch. This is not required, so a type that does otherwise does not fail: the check is
      among those not made.
    - ``"zero"``: with zeros as leaves it is zero, if ``zero_if_leaves_are`` says so.
    - a name for each program: a primitive that acts entry by entry, moves entries, reduces,
      sorts, slices, joins or multiplies, with the operands that it needs; a branch or a loop
      with the value; or a function with a rule of derivatives. Each is compared with dense
      code compiled (``"jit"``), over a new leading axis of all leaves (``"vmap"``), and in
      both derivatives with respect to floating leaves (``"jvp"`` and ``"grad"``), as in
      ``"neg jit"``. Floating leaves take other numbers there, so hold signs and codes in
      integers. Derivatives of functions with corners, such as ``abs`` and ``max``, are not
      compared. The primitives are those with a rule that names the type, and a sample of the
      others; all of them for a type with its own ``default``, or if ``only`` names them.
    - ``"export"``: an exported program runs in another process.

    Parameters
    ----------
    value
        The value. Take it small, and with numbers that are different from each other.
    skip
        Names of what is not checked: a check, a program, a primitive, or a mode. Or classes
        of the errors by which the type refuses a program, as a type with units does, or
        refuses to be dense.
    only
        Names of what is checked, alone. By default everything is.
    export
        Whether to check ``"export"``, which takes seconds. It is not checked by default.
    tolerance
        How much numbers may differ, relative to the greatest of them. By default it depends
        on the dtype: 1e-4 for ``float32``.

    Returns
    -------
    Checked
        What was checked, and what was not, with the reason. Among the latter are the type's
        rules for which operands are not made automatically: see `check_rule`.

    Raises
    ------
    AssertionError
        If anything fails. All failures are in the message, each with a line that reproduces
        it. The cause is the first error that was raised.
    TypeError
        If ``value`` is not a value, or ``skip`` or ``only`` is one name and no list.
    ValueError
        If no check has a name of ``only``.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.testing import check_value
    >>> class Shifted(jaxrewrite.ArrayValue):
    ...     x: jax.Array
    ...     def materialise(self):
    ...         return self.x + 1
    >>> v = Shifted(jnp.arange(3.0))
    >>> check_value(v, only=["pytree", "sin"]).checked
    ('pytree', 'sin jit', 'sin vmap', 'sin jvp', 'sin grad')
    >>> @jaxrewrite.register("neg")
    ... def _(v: Shifted):
    ...     return Shifted(-v.x)
    >>> check_value(v, only=["neg jit"])
    Traceback (most recent call last):
    ...
    AssertionError: Shifted: 1 of 1 checks failed.
      neg jit: 3 of 3 numbers differ: 1 at [0] where dense code has -1
        reproduce: jaxrewrite.testing.check_value(value, only=['neg jit'])
    """
    if not isinstance(value, Value):
        raise TypeError(f"check_value takes a value; got a {type(value).__name__}.")
    chosen = _Chosen(skip, only)
    findings = Findings(type(value).__name__)
    checks = CHECKS | ({"export": check_export} if export or "export" in only else {})
    for name, check in checks.items():
        if chosen.has(name):
            _check(name, check, value, chosen, findings)
    missing = findings.not_passed() & {*FIRST}
    if missing:
        findings.skip("programs", f"they need what {' and '.join(sorted(missing))} checks")
    elif not chosen.only or not chosen.only <= checks.keys():
        _check_programs(value, chosen, tolerance, findings)
    if not findings:
        raise ValueError(f"check_value: there is no check of the name {', '.join(only)}.")
    return findings.result()


class _Chosen:
    """What a caller chose to check."""

    def __init__(self, skip: Sequence[str | type[Exception]], only: Sequence[str]):
        for keyword, names in (("skip", skip), ("only", only)):
            if isinstance(names, str):
                raise TypeError(f"check_value: {keyword}= takes a list; pass [{names!r}].")
        self.without = {x for x in skip if isinstance(x, str)}
        self.only = {*only}
        self.refusals: tuple[type[Exception], ...] = tuple(
            x for x in skip if isinstance(x, type)
        )

    def has(self, *names: str) -> bool:
        """Whether a check with these names is made."""
        is_in = not self.only or not self.only.isdisjoint(names)
        return is_in and self.without.isdisjoint(names)


def _reproduce(check: str) -> str:
    return f"jaxrewrite.testing.check_value(value, only=[{check!r}])"


def _check(
    name: str,
    check: Callable[[Any], str | None],
    value: Any,
    chosen: _Chosen,
    findings: Findings,
) -> None:
    try:
        reason = check(value)
    except chosen.refusals as error:
        findings.skip(name, str(error))
    except AssertionError as error:
        findings.fail(name, str(error), _reproduce(name))
    except Exception as error:  # noqa: BLE001 - the user's type raises anything
        findings.fail(name, told(error), _reproduce(name), error)
    else:
        if reason is None:
            findings.passed(name)
        else:
            findings.skip(name, reason)


def _check_programs(
    value: Any, chosen: _Chosen, tolerance: float | None, findings: Findings
) -> None:
    made = programs(value)
    rules = list(rules_that_name(type(value)))
    if type(value).default is Value.default and not chosen.only:
        wanted = BY_DEFAULT.union(rule.primitive for rule in rules)
        made = {name: p for name, p in made.items() if p.primitive in wanted}
    for mode in _MODES:
        asked = {
            name: program
            for name, program in made.items()
            if chosen.has(name, program.primitive, mode, f"{name} {mode}")
            and (program.is_smooth or mode not in DERIVATIVES)
        }
        for name, found in compare(asked, mode, tolerance=tolerance).items():
            check = f"{name} {mode}"
            if isinstance(found.error, chosen.refusals):
                found = found._replace(is_skipped=True)
            note(findings, check, found, _reproduce(check))
    if not chosen.only:
        _note_left_out(rules, {p.primitive for p in made.values()}, findings)


def _note_left_out(
    rules: Sequence[RuleOfType], primitives: set[str], findings: Findings
) -> None:
    """Tell of the type's rules that no program can have met."""
    for rule in rules:
        if rule.primitive not in primitives:
            findings.skip(str(rule), "no operands are made for it; see check_rule")
        elif rule.needs_another_type:
            findings.skip(str(rule), "it needs a value of another type; see check_rule")
