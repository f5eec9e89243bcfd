"""`Value`: what a user's array type is to the rest of the package.

A value is a pytree with an aval. How a class becomes a pytree is in `_pytree`; what
a value is made of, and as what array it stands in a jaxpr, in `_avals`.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, dataclass_transform

from . import _compat
from ._pytree import PyTree, dataclass_fields


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


@dataclass_transform(frozen_default=True, field_specifiers=(field, dataclasses.field))
class Value(PyTree):
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
        names = [f.name for f in dataclass_fields(type(self)) if f.repr] or list(vars(self))
        shown = (f"{name}={_short(getattr(self, name, None))}" for name in names)
        return f"{type(self).__name__}({', '.join(shown)})"


def is_value(x: Any) -> bool:
    return isinstance(x, Value)


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
