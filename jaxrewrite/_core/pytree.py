"""How a class of values becomes a frozen dataclass and a pytree.

The base class `PyTree` does it. It decides which fields of a subclass are children and
which are metadata, and the name under which the class is exported.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import inspect
import itertools
import pickle
import re
import threading
from collections.abc import Iterable, Sequence
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import jax
import jax.export
import jaxtyping
from jax.tree_util import register_dataclass

from . import hooks


# The first metadata of every class is the class itself. JAX's `==` of treedefs compares the
# metadata of registered dataclasses but not their classes, so it would confuse two types
# with fields of the same names. JAX rebuilds a dataclass with all fields as keyword
# arguments. This field comes first, so it tells whether JAX or the user constructs a value.
_CLASS = "__class__"

_preparing = threading.RLock()

# Classes of which the decorators may not have run yet. A decorator may make a class a pytree.
_defined: list[type] = []


class _Registering(threading.local):
    cls: type | None = None


# The class that this thread is registering. It hides its dataclass fields meanwhile,
# because JAX accepts no other metadata of a class that has some.
_registering = _Registering()


class _LazyFields:
    """The fields of a subclass, which becomes a dataclass when they are first read.

    Each subclass has this itself, so that it never finds the fields of a base alone.
    """

    def __get__(self, instance: Any, owner: type) -> Any:
        is_hidden = "_is_base" in owner.__dict__ or owner is _registering.cls
        if not is_hidden:
            _make_dataclass(owner)
            # A class without fields is not a dataclass for its subclasses. They may then
            # be frozen or not, as their decorators say.
            if fields := owner.__dict__.get("_jaxrewrite_fields"):
                return fields
        raise AttributeError("__dataclass_fields__")


class _LazySignature:
    """The attribute that `inspect.signature` reads first. There a class becomes a dataclass.

    Without it a base class, or a class with a decorator and no instance yet, would have the
    signature of `PyTree.__new__`.
    """

    def __get__(self, instance: Any, owner: type) -> inspect.Signature | None:
        if "_is_base" in owner.__dict__:
            return inspect.Signature()
        if instance is None:
            _make_dataclass(owner)
        return None  # It is the signature of the constructor.


class PyTree:
    """Base class of classes that become frozen dataclasses and pytrees.

    A class with ``_is_base`` in its own body is only a base class, so it stays as it is.
    """

    _is_base: ClassVar[bool] = True
    _jaxrewrite_body: ClassVar[frozenset[str]]
    _required: ClassVar[tuple[str, ...]] = ("aval", "materialise")

    if not TYPE_CHECKING:  # Checkers know the signature of a dataclass by themselves.
        __signature__ = _LazySignature()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        prepare_defined()
        if _is_ours(cls) and "__dataclass_fields__" not in cls.__dict__:
            cls.__dataclass_fields__ = _LazyFields()  # type: ignore[attr-defined]
        if "_jaxrewrite_body" not in cls.__dict__:  # A decorator may make the class anew.
            cls._jaxrewrite_body = frozenset(cls.__dict__)
        _defined.append(cls)

    def __new__(cls, /, *args: Any, **kwargs: Any) -> Any:
        if "_jaxrewrite_ready" not in cls.__dict__:
            _prepare(cls)
        return super().__new__(cls)


def is_static(f: dataclasses.Field[Any]) -> bool:
    """Whether a field is metadata, and not a child with arrays in it."""
    return bool(f.metadata.get("static", False))


def dataclass_fields(cls: type) -> Sequence[dataclasses.Field[Any]]:
    """The fields of a class; none if it is no dataclass."""
    return dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()


def _is_ours(cls: type) -> bool:
    """Whether the class has no metaclass of another library, such as Equinox."""
    return type(cls) in (type, abc.ABCMeta, type(Protocol))


def _make_dataclass(cls: Any) -> None:
    """Make a class a dataclass, unless it is a pytree by another library or decorator."""
    if not _is_ours(cls):
        return
    with _preparing:
        _hide_fields(cls)
        if "_jaxrewrite_fields" in cls.__dict__ or _is_registered(cls):
            return
        own_init = "__init__" in cls.__dict__
        frozen = all(
            base.__dataclass_params__.frozen
            for base in cls.__mro__
            if "__dataclass_params__" in base.__dict__
        )
        dataclasses.dataclass(frozen=frozen, eq=False, repr=False, init=not own_init)(cls)
        if own_init and frozen:
            # The class's own `__init__` sets each field, once.
            cls.__setattr__ = _set_once
        _hide_fields(cls)


def _hide_fields(cls: Any) -> None:
    """Keep the fields where only `_LazyFields` finds them, if the class is a dataclass by now."""
    fields = cls.__dict__["__dataclass_fields__"]
    if isinstance(fields, dict):
        cls._jaxrewrite_fields = fields
        cls.__dataclass_fields__ = _LazyFields()


def _set_once(self: object, name: str, value: object) -> None:
    is_field = any(f.name == name for f in dataclass_fields(type(self)))
    if not is_field or name in vars(self):
        cure = f". Annotate it in {type(self).__name__}, as in {name}: jax.Array"
        text = f"cannot assign to field {name!r}{'' if is_field else cure}"
        raise dataclasses.FrozenInstanceError(text)
    object.__setattr__(self, name, value)


def prepare_defined() -> None:
    """Make pytrees of the classes that are defined and decorated by now.

    Those are all classes when the next one is defined, or a rule is registered. Pickled treedefs
    and exported programs need the classes without an instance, whose construction is the last
    occasion.
    """
    while _defined:
        cls = _defined.pop()
        is_whole = not ("_is_base" in cls.__dict__ or _missing(cls))
        # A class with its own `__new__` decides itself when it becomes a pytree.
        if is_whole and _is_ours(cls) and cls.__new__ is PyTree.__new__:
            # Mistakes in a class are reported where it has an instance, and not where another
            # class is defined.
            _prepare(cls, TypeError, ValueError)


def _missing(cls: type[PyTree]) -> list[str]:
    """The methods that a class must define and does not."""
    is_missing = lambda name: getattr(getattr(cls, name), "__isabstractmethod__", False)
    return list(filter(is_missing, cls._required))


def _prepare(cls: Any, *ignored: type[Exception]) -> None:
    """Make ``cls`` a pytree, unless it is one already, or has mistakes that are ignored."""
    with _preparing:
        if "_jaxrewrite_ready" in cls.__dict__:
            return
        try:
            for name in _missing(cls):
                raise TypeError(f"{cls.__name__} has to define {name}().")
            if _is_ours(cls) and not _is_registered(cls):
                _make_dataclass(cls)
                _check_names(cls)
                _register(cls)
        except ignored:
            return
        cls._jaxrewrite_ready = True
        hooks.class_defined(cls)


def _check_names(cls: type) -> None:
    """Raise `TypeError` if a property of a base class is in the place of a field."""
    for name in (f.name for f in dataclass_fields(cls)):
        owner = next((base for base in cls.__mro__ if name in base.__dict__), None)
        if owner not in (None, cls) and isinstance(owner.__dict__[name], property):
            raise TypeError(
                f"{cls.__name__}.{name} is a field, but {owner.__name__}.{name} is a property, "
                "which would be read in its place. Give the field another name."
            )


def _is_registered(cls: type) -> bool:
    if inspect.isabstract(cls):
        return False  # It has no instances to flatten.
    try:
        bare: Any = object.__new__(cls)
        return jax.tree_util.default_registry.flatten_one_level(bare) is not None
    except Exception:  # noqa: BLE001 - its own flattening, on an empty instance
        return True


def _register(cls: Any) -> None:
    fields = dataclass_fields(cls)
    static = [f.name for f in fields if is_static(f)]
    children = [f.name for f in fields if f.name not in static]
    _registering.cls = cls
    try:
        register_dataclass(cls, children, [_CLASS, *static])
    finally:
        _registering.cls = None
    _register_for_export(cls)
    arrays = {f.name for f in fields if _is_array(f.type)} & {*children}
    cls.__init__ = _constructor(cls, cls.__init__, [*children, *static], static, arrays)
    if cls.__new__ is not PyTree.__new__:
        cls.__new__ = _maker(cls.__new__)


def _maker(user_new: Any) -> Any:
    @functools.wraps(user_new)
    def __new__(cls: type, /, *args: Any, **kwargs: Any) -> Any:
        return object.__new__(cls) if _CLASS in kwargs else user_new(cls, *args, **kwargs)

    return __new__


# An array as jaxtyping annotates it: its name of the dtype, and a shape.
_SHAPED = re.compile(r"(?:jaxtyping\.)?(\w+)\[(?:jax\.)?Array, [^\[\]]+\]")


def _is_array(annotation: object) -> bool:
    """Whether a field is annotated as one array, by JAX's type or by types of jaxtyping."""
    text = (
        annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    )
    if annotation is jax.Array or text in ("Array", "jax.Array"):
        return True
    shaped = _SHAPED.fullmatch(text)
    # A tuple may have the same parameters, and so may a PyTree of jaxtyping.
    dtype = getattr(jaxtyping, shaped[1], None) if shaped else None
    return isinstance(dtype, type) and issubclass(dtype, jaxtyping.AbstractDtype)


def _constructor(
    cls: Any, user_init: Any, names: list[Any], static: list[Any], arrays: set[str]
) -> Any:
    is_slotted = any(
        isinstance(getattr(cls, name, None), MemberDescriptorType) for name in names
    )
    code = getattr(user_init, "__code__", None)
    parameters = code.co_varnames[1 : code.co_argcount] if code else ()

    def refuse_lists(
        arguments: Iterable[tuple[str, Any]], cause: Exception | None = None
    ) -> None:
        for name, content in arguments:
            if name in arrays and isinstance(content, (list, tuple)):
                raise TypeError(
                    f"{cls.__name__}: {name} is a {type(content).__name__}, but must "
                    "be one array: see jax.numpy.asarray and jax.numpy.stack."
                ) from cause

    @functools.wraps(user_init)
    def __init__(self: Any, /, *args: Any, **kwargs: Any) -> None:
        if next(iter(kwargs), None) == _CLASS:
            del kwargs[_CLASS]
            if is_slotted:
                for field, content in kwargs.items():
                    object.__setattr__(self, field, content)
            else:
                self.__dict__.update(kwargs)
            return
        try:
            user_init(self, *args, **kwargs)
        except Exception as error:
            # The error for a list in place of an array says more than the user's error.
            refuse_lists((*zip(parameters, args, strict=False), *kwargs.items()), error)
            raise
        if type(self) is cls:
            for name in names:
                if not hasattr(self, name):
                    raise TypeError(f"{cls.__name__}.__init__ does not set {name!r}.")
            refuse_lists((name, getattr(self, name)) for name in arrays)
            check_static_fields(self, static)
            hooks.ask_waiting()

    return __init__


def check_static_fields(value: object, names: Sequence[str] | None = None) -> None:
    """Raise `TypeError` if a static field cannot be part of a cache's key."""
    if names is None:
        names = [f.name for f in dataclass_fields(type(value)) if is_static(f)]
    for name in names:
        content = getattr(value, name)
        try:
            hash(content)
            bool(content == content)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"The static field {name!r} of {type(value).__name__} holds a "
                f"{type(content).__name__}, which can't be hashed and compared. So no "
                "program could be cached for it. Make it a tuple or another immutable "
                "object, or, if it holds arrays, a field that is not static."
            ) from error


def _register_for_export(cls: type) -> None:
    name = f"{cls.__module__}.{cls.__qualname__}"
    # A class that is defined again, as in a notebook, takes the next free name.
    for attempt in itertools.count(2):
        try:
            jax.export.register_pytree_node_serialization(
                cls,
                serialized_name=name,
                serialize_auxdata=lambda metadata: pickle.dumps(metadata[1:]),
                deserialize_auxdata=lambda data: (cls, *pickle.loads(data)),
            )
            return
        except ValueError:
            name = f"{cls.__module__}.{cls.__qualname__}#{attempt}"
