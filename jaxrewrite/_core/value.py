"""`Value`: the base class of users' array types.

A value is a pytree with an aval. `pytree` makes a class a pytree. `avals` gives the fields
and the aval of a value.
"""

from __future__ import annotations

import abc
import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from types import NotImplementedType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, dataclass_transform

import jax

from .. import _compat
from .._compat import Atom, Aval, ShapedArray
from .pytree import PyTree, dataclass_fields


if TYPE_CHECKING:
    from typing_extensions import TypeIs


def field(*, static: bool = False, **kwargs: Any) -> Any:
    """Declare a field of a value, as `dataclasses.field` does.

    Parameters
    ----------
    static
        Whether the field is metadata: part of the pytree's structure and not a child with
        arrays in it. A program is compiled for each content of a static field. It must be
        hashable and comparable. Contents that are equal by ``==`` are one and the same, to JAX
        as here: 1, 1.0 and True; 0.0 and -0.0. Convert a number to one type in ``__post_init__``.
    **kwargs
        The arguments of `dataclasses.field`: ``default``, ``repr``, ``kw_only`` ...

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


# The checks of other rooms for each class, where it is defined. They raise `TypeError`.
checks: list[Callable[[type[Any]], None]] = []


@dataclass_transform(
    eq_default=False, frozen_default=True, field_specifiers=(field, dataclasses.field)
)
class Value(PyTree):
    """Base class of all objects, besides arrays, that a program can run on.

    Most types derive from `ArrayValue`. A `Value` that does not is never dense. Its
    ``aval`` gives the array that it stands for, and rules or its ``default`` have to cover
    each primitive that meets it.

    A subclass becomes a frozen dataclass and a pytree when the next one is defined, a rule is
    registered, or its first instance is made, so that its decorators come first. Annotated attributes are children, and those declared with
    ``field(static=True)`` are metadata. A class that is a pytree already, by its own
    decorator or as an `equinox.Module`, stays as it is. ``__init__`` and ``__post_init__``
    check a value that a user constructs. They do not run when JAX rebuilds a value from
    leaves, which may then be tracers, ``None`` or bare objects.

    Attributes
    ----------
    materialise_policy
        The policy for this type if `transform` has its default, or ``"cheapest"``: ``"warn"``,
        ``"allow"`` or ``"forbid"``. ``None`` leaves it to the call.
    outer
        A number that orders types from the inside to the outside. If two rules apply and
        neither is more specific, the rule of the type with the greater number is tried
        first. Quantised arrays with units are ``Unitful(Quantised(...))`` if `jaxrewrite.values.Unitful` is
        the outer type.
    rules_see_values
        Whether rules get a field that is a value as that value, and not as an array of its
        aval. Use it if rules of the type `bind` a field together with another value, which
        dispatches on both. An annotation, of ``outer`` above zero, is an array to them, too.
    """

    materialise_policy: ClassVar[str | None] = None
    outer: ClassVar[float] = 0
    rules_see_values: ClassVar[bool] = False

    # Whether rules get one object for operands that are one. Other rules tell them apart by `is`.
    _meets_itself: ClassVar[bool] = False

    # Whether zeros may have its structure. Metadata may say what zeros are not.
    _may_be_zero: ClassVar[bool] = True

    # How many of its first fields hold the array, or bounds of it, entry for entry. Another
    # annotation says the same of these as of the whole.
    _array_fields: ClassVar[int] = 0

    # Whether the value in its field has stacked leaves, and stands for no array by itself.
    _holds_stacked_leaves: ClassVar[bool] = False

    # Whether rules of a type around it hold, which add up terms and leave out zeros.
    _distributes: ClassVar[bool] = True

    # Whether the array has the numbers that it has without this. So what a field carries is
    # said of the whole.
    _is_said_of_the_whole: ClassVar[bool] = False

    # Whether programs see its dense array anyway, so that no policy stands in the way of that.
    _is_seen_dense: ClassVar[bool] = False

    # By the primitives that make the type dense: remedies that are better than a rule for them.
    _remedies: ClassVar[Mapping[str, str]] = {}

    # Whether derivatives are those of a function's equations, because a custom rule says
    # nothing about what this stands for.
    _ignores_custom_rules: ClassVar[bool] = False

    # Tables that are in force in programs on one, and in no other: for rules of several equations.
    _tables: ClassVar[tuple[Any, ...]] = ()

    # Whether it is for rules alone that name it. Its ``outer`` is infinite.
    _has_to_be_named: ClassVar[bool] = False

    # Whether a function may make one of an array that turns out to be of the same type. Units,
    # say, that meet an argument unseen are an error.
    _holds_its_own: ClassVar[bool] = True

    # Whether an annotation with this class itself, not a subclass, means any value.
    _is_any: ClassVar[bool] = True
    _is_base: ClassVar[bool] = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for check in checks:
            check(cls)

    @property
    def __jax_array__(self) -> Any:
        # A value is no array, so JAX finds nothing here. Where JAX is going to raise an error
        # for that, the error says what to do.
        if _compat.is_refused(sys._getframe(1)):
            raise TypeError(
                f"Functions of JAX take a {type(self).__name__} only as an argument of a "
                "transformed function. Call jaxrewrite.transform(fn)(value). If a transformed "
                "function closes over the value, pass it as an argument. Or call the function "
                "of the same name in jaxrewrite.numpy, or use an operator such as x @ value, or "
                "make the value dense by jaxrewrite.materialise(value)."
            )
        raise AttributeError("__jax_array__")

    def _merged(self) -> Any:
        """The same array as one value, where this one holds another of its own type.

        What carries units, say, carries them once. Constructors see to that, and this method
        does where a rule has made one of an array that turns out to be a value.
        """
        return self

    @abc.abstractmethod
    def aval(self) -> ShapedArray | jax.ShapeDtypeStruct:
        """Return the abstract array that this value stands for.

        It depends only on the value's structure: its metadata and the avals of its leaves.
        It is called with tracers as leaves, and the result is kept. Return a
        `jax.core.ShapedArray` or a `jax.ShapeDtypeStruct`. Its type is weak, as that of a
        number of Python, also if the types of all leaves of the array's dtype are.
        """

    def materialise(self) -> Any:
        """Return the value as a dense array, or raise if it is never dense."""
        raise TypeError(f"{type(self).__name__} has no dense form.")

    @staticmethod
    def default(
        primitive: _compat.Primitive, values: Sequence[Any], params: dict[str, Any]
    ) -> Any:
        """Apply a primitive for which there is no rule.

        A type overrides it if it treats every primitive in the same way.

        Parameters
        ----------
        primitive
            The primitive to apply.
        values
            The operands: at least one value of this type; dense arrays; values of other
            types that do not override ``default`` or have a smaller ``outer``.
        params
            The parameters of the primitive.

        Returns
        -------
        Any
            One result, or a sequence of results if ``primitive.multiple_results``; or
            ``NotImplemented``, which makes the operands dense.
        """
        return NotImplemented

    def join(self, other: Any) -> Any:
        """Bring this value and another operand for the same array to one structure.

        It is called if the branches of a conditional, or the carry of a loop before and
        after a turn, differ outside of fields that are values. If both are values, the
        one of the outer type is asked first. Without a result both become dense.

        Parameters
        ----------
        other
            A value or an array, of this value's shape and dtype. It shows the structure that
            this value meets. Its arrays may not exist when this value is converted. Written
            zeros are an array, and without a result a `jaxrewrite.extend.Zeros`.

        Returns
        -------
        tuple
            This value and ``other``, each the same array as before, as two values of one
            structure: the same type and metadata, and leaves of the same shapes and
            dtypes. Neither may depend on the arrays of the other. Or ``NotImplemented``.

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
        >>> jaxrewrite.transform(branch)(jnp.array(True), v, w).a.shape
        (3, 2)
        """
        return NotImplemented

    def adopt(self, array: Any, primitive: _compat.Primitive | None) -> Result:
        """Return an array beside this value, all zero, infinite or NaN, as a value.

        Such numbers are the same in all units, for example. It is called for an array or a
        number that the program fills with them, where the two are operands of one equation,
        or where two branches or turns of a loop return them; and for such a result of a
        jaxpr inside.

        The value may be of a subclass without ``adopt`` of its own, for numbers of which it is
        open what they are. Rules and ``join`` then say by their results what they have become,
        which beside an array may be an array. Where the program ends, and nothing has told, it
        becomes what its ``materialise`` returns, an array or a value, whatever the policy.

        Parameters
        ----------
        array
            Stands for an array of any shape, of floating-point or complex numbers, or of
            integers that a call turns into such. It can be put into a value and not be
            computed with.
        primitive
            The primitive whose operands the two are. It is ``None`` where it has a jaxpr inside,
            and where the array is no operand.

        Returns
        -------
        Value
            A value of the array's shape and dtype. Or ``NotImplemented``, which leaves it an
            array.
        """
        return NotImplemented

    def sliceable(self) -> Result:
        """Return the same array, with leaves that can be sliced along its first axis.

        It is called where a program slices values, as a scan does with its xs, and where it
        stacks them, as with its ys: what is in this form already is a stack of elements. A type
        that declares the axes of its leaves (``ArrayValue.axes``) has this method from that, as
        it has `leaf_specs`.

        Returns
        -------
        Value
            A value of this value's shape. Each of its leaves has a leading axis as long as the
            value's own, and slices of all leaves at one index, with the same metadata, are the
            slice of the array. Repeat a leaf that is shared along the axis. It is ``self`` if
            this is so already, and then such values are stacked leaf by leaf. Or
            ``NotImplemented``, by default: then the whole becomes dense where it is sliced, and
            a stack is a `Batched` value.

        Examples
        --------
        >>> import jax, jax.numpy as jnp, jaxrewrite
        >>> class Multiple(jaxrewrite.ArrayValue):
        ...     factor: jax.Array  # of a whole array, or of each along leading axes
        ...     x: jax.Array
        ...     def materialise(self):
        ...         ones = [1] * (self.x.ndim - self.factor.ndim)
        ...         return self.factor.reshape(*self.factor.shape, *ones) * self.x
        ...     def sliceable(self):
        ...         if self.factor.ndim:
        ...             return self
        ...         return Multiple(jnp.broadcast_to(self.factor, self.x.shape[:1]), self.x)
        >>> v = Multiple(jnp.float32(2), jnp.arange(6.0).reshape(3, 2))
        >>> rows = jaxrewrite.transform(lambda v: jax.lax.map(lambda row: row, v))(v)
        >>> rows
        Multiple([[ 0.  2.]
                  [ 4.  6.]
                  [ 8. 10.]], dtype=float32)
        """
        return NotImplemented

    def tangent(self, leaf_tangents: Any) -> Any:
        """Return the tangent of this array for tangents of its leaves.

        A custom derivative rule (`jax.custom_jvp`) gets it as the tangent of an operand. A
        type overrides it if its tangents have a better form than a dense array: a linear
        type its own form, a type with units the same units.

        Parameters
        ----------
        leaf_tangents
            A value like this one, with tangents as leaves. Integer leaves have tangents of
            dtype ``float0``. A field that is a value has its own tangent there.

        Returns
        -------
        Any
            An array or a value of this value's shape, linear in ``leaf_tangents``. Or
            ``NotImplemented``, which gives the derivative of ``materialise``.
        """
        return NotImplemented

    def lift_tangent(self, tangent: Any) -> Any:
        """Return tangents of the leaves that `tangent` maps to ``tangent``.

        It is the inverse of `tangent`, or one of several. The result of a function with a
        custom derivative rule stays a value if its type defines this method.

        Parameters
        ----------
        tangent
            An array of this value's shape. For a type that is never dense, a result of its
            `tangent`.

        Returns
        -------
        Any
            A value like this one, with tangents as leaves, linear in ``tangent``. Its
            integer leaves are not used. If a type does not define this, the result becomes
            dense, or, if it cannot be dense, cannot be differentiated. If the leaves cannot
            make any tangent, `tangent_space` says so.

        Examples
        --------
        A change of ``w + a @ b`` may be a change of ``w`` alone:

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

    def tangent_space(
        self,
    ) -> Literal["all", "entries", "repeated"] | NotImplementedType:
        """Return which tangents `lift_tangent` is right for.

        A type with fewer numbers than entries, such as a diagonal matrix, has no way back for
        most tangents: what a derivative rule puts beside the diagonal would be lost. The
        result of a function with such a rule then stays a value only where the rule shows
        that its tangents are in the space. Such a type defines `tangent`, too, and returns
        a value of the type with the tangents as floating leaves.

        Returns
        -------
        str
            ``"all"``: the leaves can make any tangent. ``"entries"``: each of
            their numbers is one entry, and all other entries are zero for any leaves.
            ``"repeated"``: each may be several entries, as in a symmetric matrix. By
            default it is ``NotImplemented``: then it is ``"all"`` if `lift_tangent` and
            the derivative of `materialise` show that each entry of a tangent comes back, or a
            multiple of it, and else ``"repeated"``.

        Examples
        --------
        >>> import jax, jax.numpy as jnp, jaxrewrite
        >>> class Diagonal(jaxrewrite.ArrayValue):
        ...     d: jax.Array
        ...     def materialise(self):
        ...         return jnp.diag(self.d)
        ...     def tangent(self, leaf_tangents):
        ...         return leaf_tangents
        ...     def lift_tangent(self, tangent):
        ...         return Diagonal(jnp.diagonal(tangent))
        ...     def tangent_space(self):
        ...         return "entries"
        """
        return NotImplemented

    def leaf_specs(self, spec: Any) -> Any:
        """Return how the leaves are sharded if the array is.

        `jax.shard_map` calls it for an operand or a result that is split over a mesh. A
        replicated value has replicated leaves.

        Parameters
        ----------
        spec
            The `jax.sharding.PartitionSpec` of the array.

        Returns
        -------
        Any
            A value like this one, with a `jax.sharding.PartitionSpec` for each leaf, so
            that the shards of the leaves make up the shard of the array. Or
            ``NotImplemented``, which makes it dense.
        """
        return NotImplemented

    def __repr__(self) -> str:
        names = [f.name for f in dataclass_fields(type(self)) if f.repr] or list(vars(self))
        shown = (f"{name}={_short(getattr(self, name, None))}" for name in names)
        return f"{type(self).__name__}({', '.join(shown)})"


# An operand of an equation, and its structure, which has avals in place of arrays.
Operand: TypeAlias = Atom | Value
Like: TypeAlias = Aval | Value
# The results of an equation, if it was rewritten in the way at hand.
Results: TypeAlias = Sequence[Operand] | NotImplementedType
# An argument of users' functions, and the result of a type's method for one array.
ArrayOrValue: TypeAlias = jax.Array | Value
Result: TypeAlias = ArrayOrValue | NotImplementedType


def is_value(x: object) -> TypeIs[Value]:
    return isinstance(x, Value)


def _short(x: object) -> str:
    """Short text for an array, like ``f32[3,4]``, also within tuples; else the repr."""
    if isinstance(x, (bool, int, float, complex)):
        return repr(x)
    if type(x) is tuple:
        return f"({', '.join(map(_short, x))}{',' if len(x) == 1 else ''})"
    try:
        return repr(x) if is_value(x) else _compat.short(_compat.leaf_aval(x))
    except TypeError:
        return repr(x)
