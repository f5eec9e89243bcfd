"""The declaration `ArrayValue.axes`: its notation, and its errors."""

from __future__ import annotations

import abc
import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from .._core.pytree import dataclass_fields, is_static
from .._core.value import Value


SELF = "self"
"""The key of the array's own axes."""

BATCH = "..."


class Term(NamedTuple):
    """An axis of a leaf: the name of an axis, and its block if the axis is in blocks.

    ``is_rest`` marks axes that the array has not: axes with a size in place of a name, and any
    number of axes, as in ``"*rest"``.
    """

    name: str
    block: str | None = None
    is_rest: bool = False


class Axes(NamedTuple):
    """The declaration of a type, read.

    Attributes
    ----------
    array
        The names of the array's axes that leaves have, in order; `BATCH` for any number.
    leafless
        The names of the array's last axes, which no leaf has: the type makes these axes.
    leaves
        The axes of each field that holds arrays.
    sizes
        For static fields, the axes whose sizes they hold.
    blocks
        The static fields that hold the size of a block.
    """

    array: tuple[str, ...]
    leafless: tuple[str, ...]
    leaves: Mapping[str, tuple[Term, ...]]
    sizes: Mapping[str, tuple[str, ...]]
    blocks: frozenset[str]

    @property
    def has_batch(self) -> bool:
        return BATCH in self.array

    def is_entrywise(self, field: str) -> bool:
        """Whether each entry of the array has an entry of its own in this field."""
        without_blocks = {term.name for term in self.leaves[field] if term.block is None}
        return without_blocks.issuperset(self.array)


Fields: TypeAlias = dict[str, bool]
"""The fields of a class, and whether each is metadata."""

_TERM = re.compile(r"(\.\.\.|[^\W\d]\w*)(?:/([^\W\d]\w*|[1-9]\d*))?|(\*[^\W\d]\w*|\d+)")


class Declared(Value, metaclass=abc.ABCMeta):
    """All types with ``axes``, as an annotation of rules."""

    _is_base = True

    @classmethod
    def __subclasshook__(cls, other: type) -> Any:
        return True if axes_of(other) is not None else NotImplemented


def declaration_of(cls: type) -> Any:
    """The attribute ``axes``, if it is a declaration and no field, method or property."""
    attribute = inspect.getattr_static(cls, "axes", None)
    if attribute is None or "axes" in annotated_fields(cls):
        return None
    if isinstance(attribute, (Mapping, staticmethod)):
        return attribute
    if callable(attribute) or hasattr(attribute, "__get__"):
        return None
    raise _declaration_error(
        cls, f"it is a {type(attribute).__name__}, but must be a dict of strings."
    )


def axes_of(cls: type) -> Axes | None:
    """The declaration of a class, read; ``None`` if the class has none."""
    if not issubclass(cls, Value):
        return None
    if "_jaxrewrite_axes" not in vars(cls):
        cls._jaxrewrite_axes = _read(cls, _fields_of(cls))  # type: ignore[attr-defined]
    axes: Axes | None = vars(cls)["_jaxrewrite_axes"]
    return axes


def _read(cls: type, fields: Fields) -> Axes | None:
    declared = declaration_of(cls)
    names = [name for name, is_static in fields.items() if not is_static]
    if isinstance(declared, staticmethod):
        declared = declared.__func__(*names) if names else None
    if declared is None or vars(cls).get("_is_base", False):
        return None
    return read(cls, declared, fields)


def _fields_of(cls: type) -> Fields:
    """The fields of a class; the annotated names if the class is no dataclass."""
    fields = dataclass_fields(cls)
    return _by_name(fields) if fields else annotated_fields(cls)


def annotated_fields(cls: type) -> Fields:
    """The fields of a class whose decorators may not have run yet."""
    fields: dict[str, bool] = {}
    for base in reversed(cls.__mro__[1:]):
        fields |= _by_name(dataclass_fields(base))
    for name, annotation in inspect.get_annotations(cls).items():
        default = vars(cls).get(name)
        if isinstance(default, dataclasses.Field):
            fields |= _by_name([default], name)
        elif "ClassVar" not in str(annotation):
            fields[name] = False
    return fields


def _by_name(fields: Iterable[dataclasses.Field[Any]], name: str = "") -> Fields:
    return {name or f.name: is_static(f) for f in fields}


# --- the notation -----------------------------------------------------------------------


def read(cls: type, declared: Mapping[str, str], fields: Fields) -> Axes:
    """Read a declaration; a `TypeError` names the class, and the field that is wrong."""
    for key, text in declared.items():
        if not isinstance(text, str):
            raise _declaration_error(
                cls, f"{key!r} has {text!r} in place of a string such as 'i j'."
            )
        if key != SELF and key not in fields:
            known = ", ".join(map(repr, fields)) or "none"
            raise _declaration_error(
                cls, f"{key!r} is no field of the class, whose fields are {known}."
            )
    missing = [k for k, is_static in fields.items() if not is_static and k not in declared]
    if missing:
        raise _declaration_error(
            cls, f"it does not say which axes the field {missing[0]!r} has."
        )
    keys = [key for key in declared if key != SELF]
    if not keys:
        raise _declaration_error(cls, "it has no field.")
    terms = {key: _terms(cls, key, declared[key]) for key in keys}
    array_text = declared.get(SELF, declared[keys[0]])
    array = _terms(cls, SELF if SELF in declared else keys[0], array_text)
    for term in array:
        if term.block or term.is_rest:
            hint = (
                "The array has axes of any number by '...'"
                if SELF in declared
                else f"Say by the key {SELF!r} which axes the array has"
            )
            raise _declaration_error(
                cls,
                f"the array has the axes {array_text!r}, which may be names and '...' alone. {hint}.",
            )
    names = tuple(term.name for term in array)
    leaves, sizes = {}, {}
    for key in keys:
        for term in terms[key]:
            _check(cls, key, term, names, fields)
        if fields[key]:
            sizes[key] = tuple(term.name for term in terms[key])
        else:
            leaves[key] = tuple(
                term._replace(is_rest=term.name not in names) for term in terms[key]
            )
    in_fields = {term.name for of in terms.values() for term in of}
    leafless = _leafless_axes(cls, names, in_fields)
    blocks = {term.block for of in leaves.values() for term in of if term.block in fields}
    array_names = names[: len(names) - len(leafless)]
    return Axes(array_names, leafless, leaves, sizes, frozenset(filter(None, blocks)))


def _terms(cls: type, key: str, text: str) -> tuple[Term, ...]:
    terms = []
    for word in text.split():
        match = _TERM.fullmatch(word)
        if match is None:
            raise _declaration_error(
                cls,
                f"{key!r} has {word!r}, which is none of: a name, a name in blocks such as "
                "'i/b', '...', '.../b', '*rest', and a size.",
            )
        name, block, rest = match.groups()
        terms.append(Term(name or rest, block, rest is not None))
    for term in terms:
        alike = [other for other in terms if other.name == term.name]
        if len(alike) > 1 and not term.name.isdigit():
            raise _declaration_error(cls, f"{key!r} has the axis {term.name!r} twice.")
    if sum(term.name.startswith("*") for term in terms) > 1:
        raise _declaration_error(cls, f"{key!r} has several terms for any number of axes.")
    return tuple(terms)


def _check(cls: type, key: str, term: Term, names: Sequence[str], fields: Fields) -> None:
    if term.name == BATCH and BATCH not in names:
        raise _declaration_error(cls, f"{key!r} has '...', and the array has not.")
    if term.block is not None and term.name not in names:
        raise _declaration_error(
            cls, f"{key!r} has {term.name!r} in blocks, which is no axis of the array."
        )
    if term.block in names:
        raise _declaration_error(
            cls, f"{key!r} has blocks of the size {term.block!r}, which is an axis."
        )
    if term.block in fields and not fields[term.block]:
        raise _declaration_error(
            cls,
            f"{key!r} has blocks of the size {term.block!r}, a field that holds arrays. Only a "
            "static field can hold the size of a block.",
        )
    if fields[key] and (term.block is not None or term.name not in names):
        raise _declaration_error(
            cls,
            f"{key!r} is a static field. It can hold the sizes of axes of the array, which "
            f"{term.name + ('/' + term.block if term.block else '')!r} is not.",
        )


def _leafless_axes(
    cls: type, names: tuple[str, ...], in_fields: Iterable[str]
) -> tuple[str, ...]:
    leafless = [name for name in names if name not in in_fields]
    if BATCH in leafless:
        raise _declaration_error(cls, "no field has '...', which the array has.")
    if tuple(leafless) != names[len(names) - len(leafless) :]:
        raise _declaration_error(
            cls,
            f"no field has the axis {leafless[0]!r}, so that the type makes it. Such axes come last.",
        )
    return tuple(leafless)


def _declaration_error(cls: type, why: str) -> TypeError:
    owner = next(base for base in cls.__mro__ if "axes" in vars(base))
    inherited = "" if owner is cls else f", declared by {owner.__name__}"
    return TypeError(f"{cls.__name__}.axes{inherited}: {why}")


# --- at the end of a class statement ----------------------------------------------------


def declare(cls: type, methods: Mapping[str, Callable[..., Any]]) -> None:
    """Give a class with a declaration of its own the methods that follow from it.

    Raises
    ------
    TypeError
        If the declaration, or the declaration of a base, is not right for this class.
    """
    declared = declaration_of(cls)
    if declared is None:
        return
    _read(cls, annotated_fields(cls))
    if vars(cls).get("axes") is not None:
        for name, method in methods.items():
            if name not in vars(cls):
                setattr(cls, name, method)
