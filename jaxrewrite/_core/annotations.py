"""The signature of a rule, read from its annotations.

Annotations are read with `typing.get_type_hints`, so strings and
``from __future__ import annotations`` work. They become the plain types that
`multipledispatch` takes, each with the jaxtyping guard of its annotation.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar, Union

import jax
import jaxtyping
import numpy as np
from multipledispatch.variadic import Variadic

from .._compat import Literal, choices_of
from .errors import add_note
from .value import Value


# All dense operands are dispatched on as this one type, whether they are arrays, tracers or
# scalars. A tracer's class is not a subclass of jax.Array, and a rule must not depend on
# the transformations around the program.
Dense = jax.Array


class Number(jax.Array):
    """The dispatch type of a jaxpr's literal: a dense operand with a known number."""


_DENSE_TYPES = (jax.Array, jax.core.Tracer, np.ndarray, np.generic, int, float, complex)


class Alternative(NamedTuple):
    """One type that an operand may have, and the guard on its aval."""

    type: type
    guard: Any = None  # A jaxtyping annotation over Any, or None.


class Signature(NamedTuple):
    """The positional parameters of a rule."""

    operands: tuple[tuple[Alternative, ...], ...]
    variadic: tuple[Alternative, ...] | None
    takes_primitive: bool
    keywords: frozenset[str] = frozenset()  # keyword-only parameters,
    required: frozenset[str] = frozenset()  # parameters without a default,
    any_keyword: bool = True  # and whether any other may be given.
    hints: tuple[tuple[str, Any], ...] = ()  # The annotations of keyword-only parameters.

    def is_dense(self) -> bool:
        """Whether the rule is for dense operands alone."""
        slots = [*self.operands, *([self.variadic] if self.variadic else [])]
        return all(issubclass(a.type, Dense) for slot in slots for a in slot)

    def literals(self) -> tuple[int, ...]:
        """The positions of the operands that must be literals."""
        return tuple(
            i for i, slot in enumerate(self.operands) for a in slot if a.type is Number
        )

    def reversed(self) -> Signature:
        """The signature with the operands in the opposite order."""
        return self._replace(operands=self.operands[::-1])

    def combinations(self) -> Iterator[tuple[tuple[type, ...], tuple[Any, ...]]]:
        """All combinations of types, with their guards, that the annotations allow."""
        for combination in itertools.product(*self.operands):
            guards = tuple(a.guard for a in combination)
            if self.variadic is None:
                yield tuple(a.type for a in combination), guards
                continue
            # A variadic operand is one slot, so that one call may mix operands of several
            # of its types.
            last = Variadic[tuple(dict.fromkeys(a.type for a in self.variadic))]
            yield (*(a.type for a in combination), last), (*guards, self._variadic_guard())

    def _variadic_guard(self) -> object:
        # `isinstance` asks each guard of a tuple, and none of a `Union`.
        guards = tuple(a.guard for a in self.variadic or ())
        return None if None in guards else guards


def read_signature(
    rule: Callable[..., Any],
    namespace: Mapping[str, Any] | None = None,
    annotations: Sequence[Any] | None = None,
) -> Signature:
    """Read the signature of a rule; `TypeError` if it cannot be dispatched on.

    ``namespace`` holds local names that string annotations may refer to. ``annotations``,
    if given, replace the rule's own annotations of its positional parameters.
    """
    name = getattr(rule, "__name__", repr(rule))
    try:
        parameters = inspect.signature(rule).parameters.values()
    except (TypeError, ValueError) as error:
        raise TypeError(f"A rule must be a function; {name} is not.") from error
    if annotations is None:
        hints = read_hints(rule, name, namespace)
    else:
        given = _given_hints(annotations, name, parameters)
        hints = {**_keyword_hints(rule, parameters, namespace), **given}

    operands: list[tuple[Alternative, ...]] = []
    variadic = None
    keywords: dict[str, bool] = {}
    any_keyword = False
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            any_keyword = True
            continue
        if parameter.kind is parameter.KEYWORD_ONLY:
            keywords[parameter.name] = parameter.default is parameter.empty
            continue
        annotation = hints.get(parameter.name, parameter.empty)
        alternatives = tuple(dict.fromkeys(_alternatives(annotation, name, parameter)))
        _check_literals(alternatives, name, parameter)
        if parameter.kind is parameter.VAR_POSITIONAL:
            variadic = alternatives
        else:
            operands.append(alternatives)
    takes_primitive = keywords.pop("primitive", None) is not None
    required = frozenset(name for name, is_required in keywords.items() if is_required)
    return Signature(
        tuple(operands),
        variadic,
        takes_primitive,
        frozenset(keywords),
        required,
        any_keyword,
        tuple((name, hints[name]) for name in keywords if name in hints),
    )


def written(rule: Callable[..., Any]) -> Callable[..., Any]:
    """The function that a user wrote, in a decorator, a `functools.partial` or an object."""
    rule = inspect.unwrap(rule)
    rule = written(rule.func) if isinstance(rule, functools.partial) else rule
    return rule if inspect.isroutine(rule) else type(rule).__call__


def name_of(rule: Callable[..., Any]) -> str:
    """The name of the function that a user wrote."""
    return getattr(written(rule), "__qualname__", repr(rule))


def shown(rule: Callable[..., Any]) -> str:
    """The name of a rule, and where it is written."""
    code = getattr(written(rule), "__code__", None)
    where = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
    return name_of(rule) + where


def named_in_errors(fn: Callable[..., Any], *args: Any, by: object = None) -> Any:
    """``fn(*args)``, in whose errors a note names it, or the method ``by`` that it calls."""
    try:
        return fn(*args)
    except Exception as error:
        if callable(by := by or fn):
            add_note(error, f"jaxrewrite: raised by {shown(by)}.")
        raise


def read_hints(
    rule: Callable[..., Any], name: str, namespace: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    """The annotations of a rule; `TypeError` if they have a name that does not exist."""
    try:
        return typing.get_type_hints(
            written(rule), localns=dict(namespace or {}), include_extras=True
        )
    except NameError as error:
        raise TypeError(
            f"The annotations of rule {name} can't be read: {error}."
        ) from error


def _keyword_hints(rule: Any, parameters: Any, namespace: Any) -> Mapping[str, Any]:
    """The annotations of keyword-only parameters: texts where a name in them does not exist."""
    keywords = {p.name: p.annotation for p in parameters if p.kind is p.KEYWORD_ONLY}
    alone = types.SimpleNamespace(__annotations__=keywords)
    scope = {**getattr(written(rule), "__globals__", {}), **(namespace or {})}
    try:
        return typing.get_type_hints(alone, scope, include_extras=True)
    except NameError:
        return keywords


def _given_hints(
    annotations: Sequence[Any], name: str, parameters: Iterable[inspect.Parameter]
) -> Mapping[str, Any]:
    named = [
        parameter.name
        for parameter in parameters
        if parameter.kind not in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD)
    ]
    if len(named) != len(annotations):
        raise TypeError(
            f"types= has {len(annotations)} types, but rule {name} has {len(named)} operands: "
            f"{', '.join(named)}."
        )
    return dict(zip(named, annotations, strict=True))


def _check_literals(
    alternatives: Sequence[Alternative], rule: str, parameter: inspect.Parameter
) -> None:
    types = [a.type for a in alternatives]
    if Number in types and (
        parameter.kind is parameter.VAR_POSITIONAL or {Dense, object} & set(types)
    ):
        raise TypeError(
            f"Parameter {parameter.name!r} of rule {rule} takes a Literal or other dense "
            "operands. A parameter must take one or the other: register two rules."
        )


def _alternatives(
    annotation: object, rule: str, parameter: inspect.Parameter
) -> Iterator[Alternative]:
    origin = typing.get_origin(annotation)
    if annotation in (inspect.Parameter.empty, Any, object):
        yield Alternative(object)
    elif origin in (Union, types.UnionType):
        for choice in choices_of(annotation):
            yield from _alternatives(choice, rule, parameter)
    elif origin is Annotated:
        yield from _alternatives(typing.get_args(annotation)[0], rule, parameter)
    elif isinstance(annotation, TypeVar):
        choices = annotation.__constraints__ or (annotation.__bound__ or Any,)
        for choice in choices:
            yield from _alternatives(choice, rule, parameter)
    elif isinstance(annotation, type) and issubclass(annotation, jaxtyping.AbstractArray):
        guard = annotation.dtype[Any, annotation.dim_str]
        for type_, _ in _alternatives(annotation.array_type, rule, parameter):
            yield Alternative(type_, guard)
    elif isinstance(annotation, type) and issubclass(annotation, Value):
        yield Alternative(annotation)
    elif annotation is Literal:
        yield Alternative(Number)
    elif isinstance(annotation, type) and issubclass(annotation, _DENSE_TYPES):
        yield Alternative(Dense)
    elif isinstance(origin, type):
        yield from _alternatives(origin, rule, parameter)
    else:
        raise TypeError(
            f"Parameter {parameter.name!r} of rule {rule} is annotated with "
            f"{annotation!r}, which can't be dispatched on. Annotate an operand with a "
            "subclass of jaxrewrite.Value, an array type (jax.Array, ArrayLike, a jaxtyping "
            "annotation), jax.extend.core.Literal, a union of these, or nothing. Make the "
            "parameters of the primitive keyword-only."
        )


def guards_hold(guards: Sequence[Any], avals: Sequence[Any]) -> bool:
    """Whether the shapes and dtypes of operands match the guards of a rule.

    A name of a dimension has one size in all operands.
    """
    if len(avals) > len(guards):  # The last guard of a variadic rule is for the rest.
        guards = [*guards, *[guards[-1]] * (len(avals) - len(guards))]
    with jaxtyping.jaxtyped("context"):
        return all(
            guard is None or isinstance(aval, guard)
            for guard, aval in zip(guards, avals, strict=False)
        )
