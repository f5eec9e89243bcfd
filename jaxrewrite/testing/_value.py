"""`check_value`: a value in everything that the library does with values."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any

from jaxrewrite import Value

from ._compare import Outcome, Program, compare, mapped_inside, note
from ._culprits import Culprits
from ._export import check_export
from ._function_programs import function_programs
from ._more_programs import more_programs, programs_on_two
from ._oracle import DERIVATIVES, own_stack, tolerance_of
from ._outcome import Checked, Findings, error_summary
from ._programs import BY_DEFAULT, OF_DENSE, OF_PAIRS, OF_VARIANTS, programs
from ._registered import RuleOfType, rules_that_name
from ._structure import CHECKS, FIRST
from ._variants import Variant, variants


_INSIDE = "vmap inside"
_MODES = ("jit", "vmap", _INSIDE, "jvp", "grad")
_NAMES = {_INSIDE: ("vmap", _INSIDE)}

# Structures meet in them, by methods of the types.
_STRUCTURES = ("cond", "scan")


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

    - ``"pytree"``, ``"pickle"``: the value is the same after a round trip, and so is its array.
    - ``"metadata"``: that of a copy is equal and has the same hash.
    - ``"static fields"``: values that differ in one differ in structure.
    - ``"aval"``: shape and dtype are those of ``materialise()``, and so are ``ndim`` and ``size``.
    - ``"axes"``: the leaves have the axes that ``axes`` says; where they are cut, reversed and
      transposed as the array, they make that array; and they take batch axes in front if it
      begins with ``"..."``.
    - ``"shards"``: the shards that ``leaf_specs`` makes are those of the array.
    - ``"stack"``: `jaxrewrite.stack` of this value and one with other numbers.
    - ``"batch"``: with one more axis in front of each leaf, as after `jax.vmap`, it is a
      batch. This is not required, so a type that does otherwise does not fail: the check is
      among those not made.
    - ``"tangents"``: tangents of the leaves make that of the array by ``tangent`` as by the derivative
      of ``materialise``, and ``lift_tangent`` gives those of which the same tangent is made: of any,
      or of those that leaves can make, as ``tangent_space`` says.
    - ``"matrix"``: what the methods say that a class of yours defines for a `values.Matrix`, such as
      ``known_svd``, ``scaled_rows`` or ``is_triangular``, is so for this matrix, and for a stack.
    - a name for each program: a primitive that acts entry by entry, moves entries, reduces,
      sorts, slices, joins or multiplies, with the operands that it needs; a branch or a loop
      with the value; a function with a rule of derivatives; or a function of the value alone for
      which the type has a rule, as in ``"det jit"``. Each is compared with dense
      code compiled (``"jit"``); over a new leading axis of all leaves, with `jax.vmap` around
      the rewritten program (``"vmap"``) and inside of it (``"vmap inside"``); and in both
      derivatives with respect to floating leaves (``"jvp"`` and ``"grad"``), as in
      ``"neg jit"``. Floating leaves take other numbers of the same signs there, so hold codes
      in integers, and check a second value where signs matter and no rule makes the negative.
      Derivatives of functions with corners, such as ``abs`` and ``max``, are not
      compared. The primitives are those with a rule that names the type, and a sample of the
      others; all of them for a type with its own ``default``, or if ``only`` names them.
    - a name for each of these programs on another value of the type, as in
      ``"neg (one row) jit"``. It is made of this one: its negative, if a rule makes it; a stack; leaves in ``bfloat16`` and
      ``complex64``, unless their annotations exclude that; one or no row and column; NaN and
      infinity; another content, with another array, of each static field that is a number, a
      tuple, an enumeration, annotated as ``Literal``, or may be ``None``; and integer leaves, or the numbers, in another
      order, other numbers in one of several leaves, and leaves that are shorter where the array is not, unless they seem to depend on each
      other. The last five, and other numbers, also meet the value,
      as in ``"add of two (other integers) jit"``. A value that cannot be made is left out, so
      let the constructor refuse what is none. ``skip=["(in complex64)"]`` leaves one out.
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
    ('pytree', 'sin jit', 'sin vmap', 'sin vmap inside', 'sin jvp', 'sin grad')
    >>> @jaxrewrite.register("neg")
    ... def _(v: Shifted):
    ...     return Shifted(-v.x)
    >>> check_value(v, only=["neg jit"])
    Traceback (most recent call last):
    ...
    AssertionError: Shifted: 1 of 1 checks failed.
      neg jit: 3 of 3 numbers differ: 1 at [0] where dense code has -1
        by _ (...)
        reproduce: jaxrewrite.testing.check_value(value, only=['neg jit'])
    """
    if not isinstance(value, Value):
        raise TypeError(f"check_value takes a value; got a {type(value).__name__}.")
    selection = _Selection(skip, only)
    findings = Findings(type(value).__name__)
    checks = CHECKS | ({"export": check_export} if export or "export" in only else {})
    for name, check in checks.items():
        if selection.has(name):
            _check(name, check, value, selection, findings)
    missing = findings.not_passed() & {*FIRST}
    if missing:
        findings.skip("programs", f"they need what {' and '.join(sorted(missing))} checks")
    elif not selection.only or not selection.only <= checks.keys():
        _check_programs(value, selection, tolerance, findings)
    if not findings:
        raise ValueError(f"check_value: there is no check of the name {', '.join(only)}.")
    return findings.result()


class _Selection:
    """The checks that a caller selects."""

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
    selection: _Selection,
    findings: Findings,
) -> None:
    try:
        reason = check(value)
    except selection.refusals as error:
        findings.skip(name, str(error))
    except AssertionError as error:
        findings.fail(name, str(error), _reproduce(name))
    except Exception as error:  # noqa: BLE001 - the user's type raises anything
        findings.fail(name, error_summary(error), _reproduce(name), error)
    else:
        if reason is None:
            findings.passed(name)
        else:
            findings.skip(name, reason)


def _check_programs(
    value: Any, selection: _Selection, tolerance: float | None, findings: Findings
) -> None:
    rules = list(rules_that_name(type(value)))
    culprits = Culprits(type(value), [rule.fn for rule in rules if rule.is_own])
    wanted = _Wanted(type(value), rules)
    common, rare = programs(value), more_programs(value)
    common |= function_programs(value, rules, {*common, *rare})
    stacks = {id(value): own_stack(value)}
    known = tolerance_of(value) if tolerance is None else tolerance
    for mode in _MODES:
        to_run = {
            name: program
            for name, program in {**common, **rare}.items()
            if selection.has(
                name, program.primitive, *_NAMES.get(mode, (mode,)), f"{name} {mode}"
            )
            and _has_mode(program, mode)
            and (selection.only or wanted.in_mode(program, mode, name in rare))
        }
        if mode == _INSIDE:
            mapped = {name: mapped_inside(p, stacks) for name, p in to_run.items()}
            to_run = {name: p for name, p in mapped.items() if p is not None}
        outcomes = compare(
            to_run,
            "jit" if mode == _INSIDE else mode,
            tolerance=known,
            culprits=culprits,
        )
        for name, outcome in outcomes.items():
            _note(f"{name} {mode}", outcome, selection, findings)
    if not selection.only or any("(" in name for name in selection.only):
        _check_variants(value, wanted, selection, tolerance, culprits, findings)
    if not selection.only:
        met = {p.primitive for p in (*common.values(), *rare.values())}
        _note_left_out(rules, met, findings)


def _has_mode(program: Program, mode: str) -> bool:
    if mode == "jvp" and program.primitive == "custom_vjp_call":
        return False  # JAX has no forward derivative of it.
    return program.is_smooth or mode not in DERIVATIVES


def _note(check: str, outcome: Outcome, selection: _Selection, findings: Findings) -> None:
    if isinstance(outcome.error, selection.refusals):
        why = f"{type(outcome.error).__name__}: {outcome.error}"
        outcome = outcome._replace(is_skipped=True, why=why)
    note(findings, check, outcome, _reproduce(check))


class _Wanted:
    """Selects the programs to run if a caller names none."""

    def __init__(self, cls: type[Value], rules: Sequence[RuleOfType]):
        self.with_own_rules = {rule.primitive for rule in rules if rule.is_own}
        self.with_rules = {rule.primitive for rule in rules}
        self.has_default = cls.default is not Value.default

    def in_mode(self, program: Program, mode: str, is_rare: bool) -> bool:
        primitive = program.primitive
        if primitive in self.with_own_rules:
            return True
        is_ruled = self.has_default or primitive in self.with_rules
        if mode == "jit" and is_ruled:
            return True
        if is_rare or not (self.has_default or primitive in BY_DEFAULT):
            return False
        # The library's rules, and their common parts, are the same in each mode.
        sample = OF_VARIANTS | OF_DENSE if is_ruled else OF_DENSE
        return mode == "jit" or (primitive in sample and (is_ruled or mode != _INSIDE))

    def of_variant(self, value: Any, variant: Variant) -> dict[str, Program]:
        """The programs of rules on a variant alone, and on it and the value."""
        other = variant.value
        alone = {**programs(other), **more_programs(other)} if variant.alone else {}
        both = programs_on_two(value, other) if variant.pairs else {}
        to_run = {name: p for name, p in alone.items() if self._has_rule(p, OF_VARIANTS)}
        to_run |= {name: p for name, p in both.items() if self._has_rule(p, OF_PAIRS)}
        return {f"{name} ({variant.label})": program for name, program in to_run.items()}

    def _has_rule(self, program: Program, sample: Set[str]) -> bool:
        """Whether a user's rule is for a program, or a library's, which calls methods."""
        primitive = program.primitive
        if primitive in self.with_own_rules or primitive in _STRUCTURES:
            return True
        return primitive in sample and (self.has_default or primitive in self.with_rules)


def _check_variants(
    value: Any,
    wanted: _Wanted,
    selection: _Selection,
    tolerance: float | None,
    culprits: Culprits,
    findings: Findings,
) -> None:
    """Run the programs of rules on other values of the type, and on two that differ."""
    for variant in variants(value):
        to_run = {
            name: program
            for name, program in wanted.of_variant(value, variant).items()
            if selection.has(name, f"({variant.label})", f"{name} jit")
            and selection.without.isdisjoint((program.primitive, "jit"))
        }
        known = tolerance_of(variant.value) if tolerance is None else tolerance
        outcomes = compare(
            to_run,
            "jit",
            tolerance=known,
            culprits=culprits,
            are_finite=variant.is_finite,
        )
        failing = [
            name
            for name, outcome in outcomes.items()
            if outcome.why and not outcome.is_skipped
        ]
        if variant.may_be_none and any(" of two" not in name for name in failing):
            findings.skip(f"({variant.label})", "its leaves seem to depend on each other")
            continue
        for name, outcome in outcomes.items():
            _note(f"{name} jit", outcome, selection, findings)


def _note_left_out(
    rules: Sequence[RuleOfType], primitives: set[str], findings: Findings
) -> None:
    """Tell of the type's rules that no program can have met."""
    for rule in rules:
        if rule.primitive not in primitives:
            findings.skip(str(rule), "no operands are made for it; see check_rule")
        elif rule.needs_another_type:
            findings.skip(str(rule), "it needs a value of another type; see check_rule")
