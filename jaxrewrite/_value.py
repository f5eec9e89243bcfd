"""`Value`: what a user's array type is to the rest of the package.

A value is a pytree with an aval. The rewriting never looks inside one but
through the two questions answered here: what are its fields one layer down
(`layer`), and as what array does it stand in a jaxpr (`aval_of`)?
"""

from __future__ import annotations

import abc
import dataclasses
import dis
import functools
import itertools
import pickle
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, ClassVar, dataclass_transform

import jax
import jax.export
from jax.tree_util import (
    PyTreeDef,
    register_dataclass,
    tree_flatten,
    tree_leaves,
    tree_unflatten,
)

from . import _compat
from ._caches import bounded_cache
from ._compat import ShapedArray


def field(*, static: bool = False, **kwargs: Any) -> Any:
    """Declare a field of a value, as `dataclasses.field` does.

    Parameters
    ----------
    static
        Whether the field is metadata: part of the pytree's structure, so of
        what a program is compiled for, instead of a child with arrays in it.
        Static fields must be hashable and comparable.
    **kwargs
        What `dataclasses.field` takes: ``default``, ``repr``, ``kw_only`` ...

    Examples
    --------
    >>> import jax, jax.numpy as jnp, jaxrewrite
    >>> class Full(jaxrewrite.ArrayValue):
    ...     fill: jax.Array
    ...     length: int = jaxrewrite.field(static=True)
    ...     def materialise(self):
    ...         return jnp.full(self.length, self.fill)
    >>> jax.tree_util.tree_leaves(Full(2.0, length=3))
    [2.0]
    """
    metadata = {**(kwargs.pop("metadata", None) or {}), "static": static}
    return dataclasses.field(metadata=metadata, **kwargs)


class _LazyFields:
    """The fields of a subclass, which becomes a dataclass when they are asked for."""

    def __get__(self, instance: Any, owner: type) -> Any:
        is_hidden = "_is_base" in owner.__dict__ or owner is _registering.cls
        if not is_hidden and _is_ours(owner):
            _make_dataclass(owner)
            fields = owner.__dict__["_jaxrewrite_fields"]
            # A class without any is no dataclass to a subclass, which may then be
            # a frozen one or not, as its decorator says.
            if fields:
                return fields
        raise AttributeError("__dataclass_fields__")


@dataclass_transform(frozen_default=True, field_specifiers=(field, dataclasses.field))
class Value:
    """Base class of everything that a program can be run on besides arrays.

    Most types derive from `ArrayValue`. A `Value` that does not is never
    dense: it says in ``aval`` what it stands for, and rules or its ``default``
    have to cover each primitive that meets it.

    A subclass becomes a frozen dataclass and a pytree by itself, when it is
    defined: one with decorators when the next one is defined, a rule is
    registered, or its first instance is made, whichever is first. Annotated
    attributes are children, those declared with ``field(static=True)`` are
    metadata. A class that is a pytree already, by its own decorator or as an
    `equinox.Module`, is left as it is. What ``__init__`` or ``__post_init__``
    check is checked when a user constructs a value, and not when JAX rebuilds
    one from its leaves, which may then be tracers, ``None`` or bare objects.

    Attributes
    ----------
    materialise_policy
        What becoming dense means for this type where `transform` is left at
        its default: ``"warn"``, ``"allow"`` or ``"forbid"``. ``None`` leaves
        it to the call.
    outer
        How far out this type belongs where it meets another: a number. Of two
        rules that apply, neither more specific than the other, that of the type
        with the greater one is asked first. Arrays in metres whose numbers are
        quantised are ``Unitful(Quantised(...))`` if `Unitful` is the outer one.
    rules_see_values
        Whether rules are given a field that is a value as that value, and not as an
        array of its aval. For types whose rules hand a field on together with another
        value, by `bind`, which then dispatches on both.
    """

    materialise_policy: ClassVar[str | None] = None
    outer: ClassVar[float] = 0
    rules_see_values: ClassVar[bool] = False

    # Whether an annotation with this class, and not a subclass, means any value.
    _is_any: ClassVar[bool] = True
    _is_base: ClassVar[bool] = True
    __dataclass_fields__ = _LazyFields()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        prepare_defined()
        _defined.append(cls)
        if not _is_decorated(sys._getframe(1)):
            prepare_defined()

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if "_jaxrewrite_ready" not in cls.__dict__:
            _prepare(cls)
        return super().__new__(cls)

    @abc.abstractmethod
    def aval(self) -> Any:
        """Return the abstract array that this value stands for.

        A function of the value's structure alone (its metadata, and the avals
        of its leaves), since it is called with tracers as leaves and its
        answer is remembered. A `jax.core.ShapedArray` or
        `jax.ShapeDtypeStruct`.
        """

    def materialise(self) -> Any:
        """Return the value as a dense array; raising means "never dense"."""
        raise TypeError(f"{type(self).__name__} has no dense form.")

    @staticmethod
    def default(
        primitive: _compat.Primitive,
        values: Sequence[Any],
        params: dict[str, Any],
    ) -> Any:
        """Apply a primitive for which there is no rule.

        Overridden by types that have one answer for every primitive.

        Parameters
        ----------
        primitive
            The primitive to apply.
        values
            Its operands: at least one value of this type; dense arrays; values
            of other types, that don't override ``default`` or are less far out.
        params
            Its parameters.

        Returns
        -------
        Any
            One result, or a sequence of them if ``primitive.multiple_results``;
            or ``NotImplemented``, which leaves the operands to be made dense.
        """
        return NotImplemented

    def join(self, other: Any) -> Any:
        """Bring this value and another operand for the same array to one structure.

        Asked where the branches of a conditional, or a loop's carry before and
        after a turn, differ in more than fields that are values. Without an
        answer both become dense.

        Parameters
        ----------
        other
            A value, or an array, of this value's shape and dtype. It stands
            for whatever meets this value, and need not be there when this
            value is converted.

        Returns
        -------
        tuple
            This value and ``other``, each the same array as before, as two
            values of one structure: one type, one metadata, leaves of one
            shape and dtype each. Neither may depend on the arrays of the
            other. Or ``NotImplemented``.

        Examples
        --------
        >>> import jax, jax.numpy as jnp, jaxrewrite
        >>> class LowRank(jaxrewrite.ArrayValue):
        ...     a: jax.Array
        ...     b: jax.Array
        ...     def materialise(self):
        ...         return self.a @ self.b
        ...     def padded(self, rank):
        ...         more = rank - self.a.shape[1]
        ...         return LowRank(jnp.pad(self.a, ((0, 0), (0, more))),
        ...                        jnp.pad(self.b, ((0, more), (0, 0))))
        ...     def join(self, other):
        ...         if not isinstance(other, LowRank):
        ...             return NotImplemented
        ...         rank = max(self.a.shape[1], other.a.shape[1])
        ...         return self.padded(rank), other.padded(rank)
        >>> v = LowRank(jnp.ones((3, 1)), jnp.ones((1, 4)))
        >>> w = LowRank(jnp.ones((3, 2)), jnp.ones((2, 4)))
        >>> branch = lambda p, v, w: jax.lax.cond(p, lambda: v, lambda: w)
        >>> jaxrewrite.transform(branch)(jnp.array(True), v, w)
        LowRank(a=f32[3,2], b=f32[2,4])
        """
        return NotImplemented

    def stacked(self, size: int) -> Any:
        """Return what ``size`` values of this structure are when stacked.

        Asked where a program stacks values, as a scan does with what each turn
        gives.

        Parameters
        ----------
        size
            The length of the new leading axis.

        Returns
        -------
        Value
            A value of this value's shape with ``size`` before it. ``self`` has
            the metadata of one value, and leaves that are stacked already: each
            has a leading axis of this size. Or ``NotImplemented``, which gives
            a `Batched` value.
        """
        return NotImplemented

    def unstacked(self) -> Any:
        """Return one element along the leading axis.

        Asked where a program takes values apart, as a scan does with what it
        is run over, if each leaf of what `sliceable` gives has a leading axis as
        long as the value's own.

        Returns
        -------
        Value
            A value of this value's shape without the first axis. ``self`` has
            the metadata of the whole, and leaves that are sliced already. Or
            ``NotImplemented``, which makes the whole dense.
        """
        return NotImplemented

    def sliceable(self) -> Any:
        """Return the same array with leaves that can be sliced along its first axis.

        Asked before `unstacked`. For types of which a leaf may be shared along an axis
        of the array, or metadata says how long it is: there, that leaf is to be repeated.

        Returns
        -------
        Value
            A value of this value's shape, each leaf of which has a leading axis as long
            as the value's own. By default ``self``.
        """
        return self

    def tangent(self, leaf_tangents: Any) -> Any:
        """Return the tangent of this array for tangents of its leaves.

        What a custom derivative rule (`jax.custom_jvp`) is given as the tangent
        of an operand. Overridden by types whose tangents have a better form
        than a dense array: a linear type's own, the same units.

        Parameters
        ----------
        leaf_tangents
            A value like this one, with tangents as leaves; integer leaves have
            tangents of dtype ``float0``. A field that is a value has its own
            tangent there.

        Returns
        -------
        Any
            An array or a value of this value's shape, linear in
            ``leaf_tangents``. Or ``NotImplemented``, which gives the derivative
            of ``materialise``.
        """
        return NotImplemented

    def lift_tangent(self, tangent: Any) -> Any:
        """Return tangents of the leaves that make up a tangent of this array.

        The inverse of ``tangent``, or one of several. A result of a function
        with a custom derivative rule stays a value if its type defines this.

        Parameters
        ----------
        tangent
            An array of this value's shape. For a type that is never dense, what
            its ``tangent`` returns.

        Returns
        -------
        Any
            A value like this one, with tangents as leaves, linear in
            ``tangent``; what is there for integer leaves is not looked at.
            Where a type does not define this, the result becomes dense, or, if
            it refuses, can't be differentiated.

        Examples
        --------
        A change of ``w + a @ b`` is one of ``w`` alone:

        >>> import jax, jax.numpy as jnp, jaxrewrite
        >>> class Lora(jaxrewrite.ArrayValue):
        ...     w: jax.Array
        ...     a: jax.Array
        ...     b: jax.Array
        ...     def materialise(self):
        ...         return self.w + self.a @ self.b
        ...     def lift_tangent(self, tangent):
        ...         return Lora(tangent, jnp.zeros_like(self.a), jnp.zeros_like(self.b))
        """
        return NotImplemented

    def leaf_specs(self, spec: Any) -> Any:
        """Say how the leaves are sharded when the array is.

        Asked by `jax.shard_map` where an operand or a result is split over a
        mesh. One that is replicated has replicated leaves.

        Parameters
        ----------
        spec
            The `jax.sharding.PartitionSpec` of the array.

        Returns
        -------
        Any
            A value like this one, with a `jax.sharding.PartitionSpec` for each
            leaf, such that the shards of the leaves make up the shard of the
            array. Or ``NotImplemented``, which makes it dense.
        """
        return NotImplemented

    def __repr__(self) -> str:
        names = [f.name for f in _fields(type(self)) if f.repr] or list(vars(self))
        shown = (f"{name}={_short(getattr(self, name, None))}" for name in names)
        return f"{type(self).__name__}({', '.join(shown)})"


def is_value(x: Any) -> bool:
    return isinstance(x, Value)


def is_hollow(x: Any) -> bool:
    """Whether a value has no leaves, so that `jax.vmap` has nothing to give batch axes."""
    return is_value(x) and not tree_leaves(x)


def _short(x: Any) -> str:
    """``f32[3,4]`` for an array, also within tuples, its repr for anything else."""
    if isinstance(x, (bool, int, float, complex)):
        return repr(x)
    if type(x) is tuple:
        return f"({', '.join(map(_short, x))}{',' if len(x) == 1 else ''})"
    try:
        return repr(x) if is_value(x) else _compat.short(_compat.leaf_aval(x))
    except TypeError:
        return repr(x)


# --- becoming a dataclass and a pytree ----------------------------------------


# Metadata of every class, and the first: the class itself. JAX's `==` of treedefs
# compares the metadata of registered dataclasses and not their classes, and would
# take two types with fields of the same names for one. JAX rebuilds a dataclass by
# calling it with all fields as keywords, so that the first of those being this one
# also tells a construction by JAX from one by the user.
_CLASS = "__class__"

_preparing = threading.RLock()

# Classes whose decorators, which may make them pytrees, are still to come.
_defined: list[type] = []


class _Registering(threading.local):
    cls: type | None = None


# The class that is being registered on this thread. It shows no dataclass fields
# then, because JAX takes no other metadata of a class that has some.
_registering = _Registering()


def _fields(cls: type) -> Sequence[dataclasses.Field[Any]]:
    return dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()


def _field_names(cls: type) -> list[str]:
    return [f.name for f in _fields(cls)]


def _is_ours(cls: type) -> bool:
    """Whether no other library's metaclass (Equinox's, say) makes the class."""
    return type(cls) in (type, abc.ABCMeta)


def _make_dataclass(cls: Any) -> None:
    with _preparing:
        if not {"__dataclass_fields__", "_jaxrewrite_fields"}.isdisjoint(cls.__dict__):
            return
        own_init = "__init__" in cls.__dict__
        frozen = all(
            base.__dataclass_params__.frozen
            for base in cls.__mro__
            if "__dataclass_params__" in base.__dict__
        )
        dataclasses.dataclass(frozen=frozen, eq=False, repr=False, init=not own_init)(cls)
        if own_init and frozen:
            # An `__init__` of the class's own sets each field, once.
            cls.__setattr__ = _set_once
        _hide_fields(cls)


def _hide_fields(cls: Any) -> None:
    """Move the fields of a dataclass, so that they are found through `Value` alone."""
    if "__dataclass_fields__" in cls.__dict__:
        cls._jaxrewrite_fields = cls.__dict__["__dataclass_fields__"]
        del cls.__dataclass_fields__


def _set_once(self: Any, name: str, value: Any) -> None:
    if name not in _field_names(type(self)) or name in vars(self):
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _is_decorated(frame: FrameType) -> bool:
    """Whether something is done to a class before it is bound to its name.

    ``frame`` is that of the class statement, which just calls what makes the class.
    """
    code, position = frame.f_code.co_code, frame.f_lasti + 2
    while dis.opname[code[position]] in ("CACHE", "EXTENDED_ARG"):
        position += 2
    return not dis.opname[code[position]].startswith("STORE_")


def prepare_defined() -> None:
    """Make the classes pytrees that were defined, and decorated, until now.

    So that pickled treedefs and exported programs find them, which know nothing of
    what is done when an instance is made.
    """
    while _defined:
        cls = _defined.pop()
        is_whole = not ("_is_base" in cls.__dict__ or _missing(cls))
        # One that makes its instances in its own way says itself what it is.
        if is_whole and _is_ours(cls) and cls.__new__ is Value.__new__:
            _prepare(cls)


def _missing(cls: type) -> list[str]:
    """The methods that a class has to define and does not."""
    return [
        name
        for name in ("aval", "materialise")
        if getattr(getattr(cls, name), "__isabstractmethod__", False)
    ]


def _prepare(cls: Any) -> None:
    """Make ``cls`` a pytree, unless it is one."""
    with _preparing:
        if "_jaxrewrite_ready" in cls.__dict__:
            return
        for name in _missing(cls):
            raise TypeError(f"{cls.__name__} has to define {name}().")
        if _is_ours(cls) and not _is_registered(cls):
            _make_dataclass(cls)
            _hide_fields(cls)
            _register(cls)
        cls._jaxrewrite_ready = True


def _is_registered(cls: type) -> bool:
    try:
        bare: Any = object.__new__(cls)
    except TypeError:  # abstract: it has no instances to flatten
        return True
    try:
        return jax.tree_util.default_registry.flatten_one_level(bare) is not None
    except Exception:  # noqa: BLE001 - its own flattening, on an empty instance
        return True


def _register(cls: Any) -> None:
    fields = [f for f in _fields(cls) if f.init]
    static = [f.name for f in fields if f.metadata.get("static", False)]
    children = [f.name for f in fields if f.name not in static]
    _registering.cls = cls
    try:
        register_dataclass(cls, children, [_CLASS, *static])
    finally:
        _registering.cls = None
    _register_for_export(cls)
    cls.__init__ = _constructor(cls, cls.__init__, [*children, *static], static)
    if cls.__new__ is not Value.__new__:
        cls.__new__ = _maker(cls.__new__)


def _maker(user_new: Any) -> Any:
    @functools.wraps(user_new)
    def __new__(cls: type, *args: Any, **kwargs: Any) -> Any:
        return object.__new__(cls) if _CLASS in kwargs else user_new(cls, *args, **kwargs)

    return __new__


def _constructor(cls: Any, user_init: Any, names: list[Any], static: list[Any]) -> Any:
    @functools.wraps(user_init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in kwargs:
            if name == _CLASS:
                del kwargs[_CLASS]
                self.__dict__.update(kwargs)
                return
            break
        user_init(self, *args, **kwargs)
        if type(self) is cls:
            for name in names:
                if not hasattr(self, name):
                    raise TypeError(f"{cls.__name__}.__init__ sets no {name!r}.")
            check_static_fields(self, static)

    return __init__


def check_static_fields(value: Value, names: Sequence[str] | None = None) -> None:
    """Raise `TypeError` if a static field can't be part of a cache's key."""
    if names is None:
        fields = getattr(value, "__dataclass_fields__", {}).values()
        names = [f.name for f in fields if f.metadata.get("static", False)]
    for name in names:
        content = getattr(value, name)
        try:
            hash(content)
            bool(content == content)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"The static field {name!r} of {type(value).__name__} holds a "
                f"{type(content).__name__}, which can't be hashed and compared, so "
                "that no program could be cached for it. Make it a tuple or another "
                "immutable object, or, if it holds arrays, a field that is not static."
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


# --- structure ----------------------------------------------------------------


def same_treedef(a: PyTreeDef, b: PyTreeDef) -> bool:
    """Whether two pytrees are of one structure, their classes included.

    JAX's ``==`` does not compare the classes of dataclasses that are registered by
    others than this package. Their hashes, of 64 bits, do differ.
    """
    return a == b and hash(a) == hash(b)


def same_structure(x: Any, y: Any) -> bool:
    """Say whether two pytrees of arrays and values are alike but for their numbers.

    Parameters
    ----------
    x, y
        Values, arrays or pytrees of them.

    Returns
    -------
    bool
        Whether they have the same classes and metadata, nested ones included, and
        leaves of the same shapes and dtypes.

    Examples
    --------
    >>> import jax.numpy as jnp, jaxrewrite
    >>> from jaxrewrite.values import Circulant, Diagonal
    >>> x = jnp.ones(3)
    >>> jaxrewrite.same_structure(Diagonal(x), Diagonal(2 * x))
    True
    >>> jaxrewrite.same_structure(Diagonal(x), Circulant(x))
    False
    """
    xs, treedef = tree_flatten(x)
    ys, other = tree_flatten(y)
    return same_treedef(treedef, other) and all(
        _compat.same_array_type(_compat.leaf_aval(a), _compat.leaf_aval(b))
        for a, b in zip(xs, ys, strict=True)
    )


def layer(value: Value) -> tuple[list[Any], PyTreeDef]:
    """Flatten one layer: leaves that are values themselves stay whole."""
    is_leaf = None if value.rules_see_values else lambda x: x is not value and is_value(x)
    leaves, treedef = tree_flatten(value, is_leaf=is_leaf)
    if len(leaves) == 1 and leaves[0] is value:
        raise no_pytree(value)
    return leaves, treedef


def fields(value: Value) -> tuple[list[Any], PyTreeDef]:
    """The fields that are values, and all other leaves: a layer of any type.

    `layer` is what a rule sees, which for some types is all leaves.
    """
    return tree_flatten(value, is_leaf=lambda x: x is not value and is_value(x))


def no_pytree(value: Value) -> TypeError:
    """The error for a value that has no leaves to work on."""
    return TypeError(
        f"{type(value).__name__} is no pytree, so that it has no leaves to work on. A "
        "subclass of jaxrewrite.Value is made one by itself when it is constructed; a "
        "class that goes another way has to be registered with jax.tree_util."
    )


def avals_of(operands: Sequence[Any]) -> list[Any]:
    """The avals that values and arrays (or atoms of a jaxpr) stand for."""
    return [aval_of(x) if is_value(x) else _compat.leaf_aval(x) for x in operands]


_avals = bounded_cache(4096)


def aval_of(value: Value) -> Any:
    """The aval of a value, whose leaves may be arrays, tracers, avals or atoms.

    Asked of each structure once. Leaves carry more than a user's ``aval`` says
    (axes of a mesh, memory space); that is taken from ``materialise``.
    """
    leaves, treedef = layer(value)
    try:
        avals = tuple(avals_of(leaves))
    except TypeError as error:
        _check_is_whole(value, error)
        raise TypeError(
            f"{type(value).__name__} holds something that is no array: {error} "
            "Declare such a field with jaxrewrite.field(static=True)."
        ) from error
    key = (treedef, avals, _compat.trace_context())
    try:
        known = _avals.get(key)
    except TypeError:  # unhashable metadata
        check_static_fields(value)
        return _infer_aval(type(value), treedef, avals)
    if known is None:
        try:
            known = _infer_aval(type(value), treedef, avals)
        except Exception as error:
            _check_is_whole(value, error)
            raise
        _avals.put(key, known)
    return known


def _check_is_whole(value: Value, error: Exception) -> None:
    """Raise `TypeError` if an error is one of a value that has lost some leaves."""
    empty = list(_empty_fields(value))
    if empty:
        raise TypeError(
            f"This {type(value).__name__} is half empty, so that it stands for no array: "
            f"there is None in {', '.join(empty)}, as in what jaxrewrite.values.partition, or "
            "a filter of another library, makes of a pytree. Put the parts together first "
            "(combine)."
        ) from error


def _empty_fields(value: Value) -> Iterator[str]:
    for f in getattr(value, "__dataclass_fields__", {}).values():
        content = getattr(value, f.name, None)
        if isinstance(content, Value):
            yield from (f"{f.name}.{name}" for name in _empty_fields(content))
        elif content is None and f.default is not None and not f.metadata.get("static"):
            yield f.name


def _infer_aval(cls: type[Value], treedef: PyTreeDef, avals: tuple[Any, ...]) -> Any:
    declared: list[Any] = []

    def ask(*leaves: Any) -> list[Any]:
        declared.append(_as_aval(cls, tree_unflatten(treedef, leaves).aval()))
        return []

    debug_info = _compat.new_debug_info(f"{cls.__name__}.aval", cls.aval)
    with _compat.mesh_of(avals):
        _compat.trace_to_jaxpr(ask, avals, debug_info)
    (aval,) = declared
    if all(map(_compat.is_plain, avals)) or not isinstance(aval, ShapedArray):
        return aval
    try:
        whole = dense_aval(cls, treedef, avals)
    except Exception:  # noqa: BLE001 - a type that is never dense raises anything
        return aval
    return whole.update(weak_type=aval.weak_type)


def dense_aval(cls: type[Value], treedef: PyTreeDef, avals: Sequence[Any]) -> Any:
    """The aval of what ``materialise`` returns for leaves of these avals."""
    found: list[Any] = []

    def dense(*leaves: Any) -> list[Any]:
        found.extend(avals_of([tree_unflatten(treedef, leaves).materialise()]))
        return []

    debug_info = _compat.new_debug_info(f"{cls.__name__}.materialise", cls.materialise)
    with _compat.mesh_of(avals):
        _compat.trace_to_jaxpr(dense, avals, debug_info)
    return found[0]


def _as_aval(cls: type[Value], declared: Any) -> Any:
    if isinstance(declared, jax.core.AbstractValue):
        return declared
    if isinstance(declared, jax.ShapeDtypeStruct) or _compat.is_array(declared):
        return _compat.leaf_aval(declared)
    raise TypeError(
        f"{cls.__name__}.aval() must return a jax.core.ShapedArray or a "
        f"jax.ShapeDtypeStruct; it returned a {type(declared).__name__}."
    )
