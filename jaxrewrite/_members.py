"""What a class of values may define by names that have a meaning, checked where it is defined.

Else a mistake would show where a program meets a value, or another type, and name neither the
class nor what is wrong with it.
"""

from __future__ import annotations

import functools
import numbers
from types import FunctionType

from ._core import hooks
from ._core.value import Value, checks


# What a type could define once, and what it defines now.
_GONE = {
    "compiles_materialise": "a trace of materialise tells whether it can be compiled. Leave it out.",
    "settled": "adopt returns a value of a subclass, whose materialise says it.",
    "dual": "cotangents have the metadata that one divided by a tangent has, by the rule for div.",
    **dict.fromkeys(
        ("stacked", "unstacked"), "sliceable says both, or the axes of the type."
    ),
}

# The methods that programs call; Python's own may also be ``None``.
_METHODS = [
    name
    for name, member in vars(Value).items()
    if isinstance(member, (FunctionType, staticmethod)) and not name.startswith("_")
]

# What programs read from the class.
_OF_THE_CLASS = ("outer", "materialise_policy", "rules_see_values")

# What arrays say of themselves.
_OF_THE_AVAL = ("shape", "dtype", "ndim", "size")

_POLICIES = (None, "warn", "allow", "forbid")


def _check_members(cls: type[Value]) -> None:
    """Raise `TypeError` for a name that has a meaning and something else behind it."""
    for name in filter(vars(cls).__contains__, _GONE):
        raise TypeError(f"{cls.__name__}.{name} is not used any more: {_GONE[name]}")
    for name in _METHODS:
        kind = _kind_of_data(cls, name)
        if kind is not None:
            raise TypeError(
                f"{cls.__name__}.{name} is a {kind}, but has to be a method, as Value.{name} is. "
                "Give anything else another name."
            )
    for name in filter(vars(cls).__contains__, _OF_THE_AVAL):
        if _is_data(cls, name) and _owner_of_property(cls, name):
            raise TypeError(
                f"{cls.__name__}.{name} is a {type(vars(cls)[name]).__name__}, but a value has the "
                f"{name} of its aval. Leave it out: what materialise() returns, or aval(), tells it."
            )
    default = vars(cls).get("default")
    if isinstance(default, FunctionType) and default.__code__.co_varnames[:1] == ("self",):
        raise TypeError(
            f"{cls.__name__}.default takes self, but is called without a value: it has the primitive, "
            "the operands and the parameters. Write @staticmethod above it."
        )
    for name, member in vars(cls).items():
        owner = isinstance(member, FunctionType) and _owner_of_property(cls, name)
        if owner:
            raise TypeError(
                f"{cls.__name__}.{name} is a method, but has to be a property, as "
                f"{owner.__name__}.{name} is: write @property above it."
            )
    for name in filter(functools.partial(_is_field, cls), _OF_THE_CLASS):
        raise TypeError(
            f"{cls.__name__}.{name} is a field, but is to be one for all values of the class: "
            f"give it in the class without a type, as in {name} = {getattr(Value, name)!r}."
        )
    if not isinstance(cls.outer, numbers.Real) or cls.outer != cls.outer:
        raise TypeError(f"{cls.__name__}.outer has to be a number; it is {cls.outer!r}.")
    if cls.materialise_policy not in _POLICIES:
        raise TypeError(
            f"{cls.__name__}.materialise_policy has to be one of {_POLICIES}; it is "
            f"{cls.materialise_policy!r}."
        )


def _kind_of_data(cls: type, name: str) -> str | None:
    """What a class has in the place of a method; ``None`` if it has the method, or says nothing."""
    if name in vars(cls):
        member = vars(cls)[name]
        return None if _can_be_called(member) else type(member).__name__.lower()
    if isinstance(vars(Value)[name], staticmethod):
        return None  # It is looked up in the class, where a field without a default is not.
    return "field" if _is_field(cls, name) else None


def _is_data(cls: type, name: str) -> bool:
    """Whether a class itself has something under a name that is no method, property or field."""
    return not (_is_field(cls, name) or _is_descriptor(vars(cls)[name]))


def _owner_of_property(cls: type, name: str) -> type | None:
    """The base that has a property of the name, if a class inherits one."""
    owner = next((base for base in cls.__mro__[1:] if name in vars(base)), None)
    member = vars(owner)[name] if owner else None
    return owner if isinstance(member, (property, functools.cached_property)) else None


def _is_field(cls: type, name: str) -> bool:
    annotation = _annotations(cls).get(name)
    return annotation is not None and "ClassVar" not in str(annotation)


def _annotations(cls: type) -> dict[str, object]:
    """The annotations of the class itself, as they are written or evaluated."""
    return vars(cls).get("__annotations__", {})


def _can_be_called(member: object) -> bool:
    """Whether an attribute of a class is a method, be it in a descriptor of its own kind."""
    if isinstance(member, (property, functools.cached_property)):
        return False
    return callable(member) or _is_descriptor(member)


def _is_descriptor(member: object) -> bool:
    return hasattr(type(member), "__get__")


checks.append(_check_members)


# What a decorator `dataclasses.dataclass` adds to a class. Those of values are of arrays.
_GENERATED = ("__eq__", "__ge__", "__gt__", "__hash__", "__le__", "__lt__", "__repr__")


class _Decorated:
    """Takes from a decorated class the operators that are not in its body."""

    def is_ready(self) -> bool:
        return True

    def defined(self, cls: type) -> None:
        own = vars(cls)
        body = own.get("_jaxrewrite_body")
        if "__dataclass_params__" in own and body is not None:
            for name in _GENERATED:
                if name in own and name not in body:
                    delattr(cls, name)


hooks.add_class_hook(_Decorated())
