"""`ArrayValue`: a value that users can treat like an array."""

from __future__ import annotations

import abc
import functools
import math
import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_flatten, tree_leaves, tree_unflatten
from jax.typing import ArrayLike, DTypeLike

from . import _display
from ._axes.declaration import declare
from ._axes.methods import METHODS, check_rank
from ._core.avals import aval_of, avals_of, dense_aval, rule_children
from ._core.dense import policy_on
from ._core.errors import MaterialisationError, MaterialisationWarning, add_note
from ._core.notices import Notice, warn
from ._core.pytree import dataclass_fields, is_static
from ._core.settings import current_settings
from ._core.value import Value, is_value
from ._staging.materialise import materialise
from ._staging.transform import transform


_Operand: TypeAlias = ArrayLike | Value
# An array, or a value of a type that depends on the rules for the operands: `Any` stands for
# that, as in a call of a transformed function.
_Result: TypeAlias = jax.Array | Any
_F = TypeVar("_F")


# Of these Python's error names the two types. What is no array is not equal to one, but JAX refuses
# to compare an array with a container.
_NO_OPERANDS = (str, bytes, type(None))
_CONTAINERS = (list, tuple, dict, set)


def _operator(fn: Callable[..., Any], reflected: bool = False) -> Callable[[_F], _F]:
    """Give a declared method its body: ``fn``, transformed."""

    is_equality = fn in (operator.eq, operator.ne)
    refused = _NO_OPERANDS if is_equality else (*_NO_OPERANDS, *_CONTAINERS)

    def decorate(declared: Any) -> Any:
        @functools.wraps(declared)
        def method(self: Any, *args: Any) -> Any:
            if args and isinstance(args[0], refused):
                return NotImplemented
            if reflected:
                return transform(fn)(*args, self)
            return transform(fn)(self, *args)

        method.__doc__ = f"``transform({fn.__name__})`` of this value."
        return method

    return decorate


def _is_mask(x: Any) -> bool:
    is_array = isinstance(x, (jax.Array, np.ndarray))
    return is_array and x.dtype == bool and not isinstance(x, jax.core.Tracer)


@functools.cache
def _attribute(name: str) -> Any:
    return transform(lambda x: getattr(x, name))


class ArrayValue(Value):
    """Base class of types that stand for an array.

    A subclass defines how to build the array, in ``materialise``, and need not define
    anything else. See `Value` for how it becomes a pytree, and `picture` for how it is shown.

    Python's operators work on a value as on an array; they are transformed. NumPy's
    ``np.asarray`` makes it dense. Outside of a transform JAX's functions reject it, as they
    reject any object that is not an array.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, jaxrewrite
    >>> class LowRank(jaxrewrite.ArrayValue):
    ...     a: jax.Array
    ...     b: jax.Array
    ...     def materialise(self):
    ...         return self.a @ self.b
    >>> v = LowRank(jnp.ones((3, 1)), jnp.ones((1, 4)))
    >>> v.shape, v.dtype, jnp.ndim(v)
    ((3, 4), dtype('float32'), 2)

    Attributes
    ----------
    axes
        How the leaves lie in the array: a dict from the name of each field to its axes, in the
        notation of jaxtyping and einops, and from ``"self"`` to those of the array. Without
        ``"self"`` the array has the axes of the first field. An entry of the array depends on the
        entries of leaves with the same indices, everywhere in the same way. Then transposes,
        reshapes, slices, lookups, loops, stacks and meshes need no rules and no methods, and what
        is defined by hand comes first. ``None`` says nothing of the leaves. The terms are

        - ``i``, the name of an axis. If the array has it not, it is one of the leaf alone.
        - ``i/b``, an axis in blocks: one entry for ``b`` of the array, where the length of the
          leaf's axis divides that of the array's. ``b`` is a number, the name of a static field
          that holds one, or any other name for whatever fits.
        - ``...`` and ``.../b``, any number of axes. If all begin so, a value with one more axis in
          front of each leaf is a stack of values, also where it leaves `jax.vmap`.
        - ``2`` and ``*more``, axes of the leaf alone, of this size and any number.

        A static field in the dict holds the sizes of its axes: an integer for one axis, else
        a tuple. Other metadata stay as they are. The last axes of the array may be in no field.
        The type makes them, and they stay whole. In a base class ``axes`` may be a static method
        that makes the dict of the names of the fields. `jaxrewrite.testing.check_value` checks what
        it says.

    Raises
    ------
    TypeError
        Where a class is defined, if its ``axes`` is no such dict.
    """

    axes: ClassVar[Mapping[str, str] | Callable[..., Mapping[str, str]] | None] = None

    # Fields whose arrays may become as large as the dense array where entries move.
    _may_grow: ClassVar[frozenset[str]] = frozenset()

    _is_any: ClassVar[bool] = True
    _is_base: ClassVar[bool] = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        declare(cls, METHODS)

    @abc.abstractmethod
    def materialise(self) -> Any:
        """Return the dense array, or raise if the type is never dense."""

    def aval(self) -> Any:
        """Return the abstract array that this value stands for.

        By default this is the aval of the array that ``materialise`` returns. A type
        overrides it if its ``materialise`` raises; see `Value.aval`.
        """
        check_rank(self)
        leaves, treedef = rule_children(self)
        try:
            return dense_aval(type(self), treedef, avals_of(leaves))
        except Exception as error:
            name = type(self).__name__
            for field, content in _numbers_of_python(self):
                add_note(
                    error,
                    f"jaxrewrite: {field} of {name} is annotated as {content}, but is an array to "
                    "JAX, whose number is not known while a program is made. If shapes depend on "
                    f"it, declare it as metadata: {field}: {content} = jaxrewrite.field(static=True).",
                )
            add_note(
                error,
                f"jaxrewrite: {name} does not define aval(), so the shape and dtype of a "
                f"{name} are those of the array that materialise() returns. But "
                "this call gave no array. A type that is never dense has to define aval().",
            )
            raise

    @property
    def shape(self) -> tuple[int, ...]:
        return aval_of(self).shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return aval_of(self).dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def picture(self) -> Any:
        """Say how ``repr``, f-strings and notebooks show this value if it is small.

        By default that is the dense array, where a dot stands for an entry that is zero
        whatever floating-point numbers are stored. A value is small if the array has at most
        100 entries, and the leaves at most 200. A larger one is shown by the types of its
        fields.

        Returns
        -------
        Any
            An array, a value, or a tuple of arrays, values and texts, which are shown one
            after the other. Masked entries of a `numpy.ma.MaskedArray` are shown as ``--``.
            Or ``NotImplemented``, for the default.

        Examples
        --------
        >>> import jax, jax.numpy as jnp, jaxrewrite
        >>> class Measured(jaxrewrite.ArrayValue):
        ...     x: jax.Array
        ...     error: jax.Array
        ...     def materialise(self):
        ...         return self.x
        ...     def picture(self):
        ...         return self.x, " ± ", self.error
        >>> Measured(jnp.array([1.0, 2.0]), jnp.array([0.1, 0.2]))
        Measured([1. 2.] ± [0.1 0.2], dtype=float32)
        >>> f"{Measured(jnp.float32(9.81), jnp.float32(0.05)):.2f}"
        '9.81 ± 0.05'
        """
        return NotImplemented

    def _summary(self) -> str:
        """The type and the types of its fields, for a value that is not small."""
        return super().__repr__()

    def __repr__(self) -> str:
        return _display.as_repr(self, self._summary)

    def __str__(self) -> str:
        return _display.as_str(self, self._summary)

    def __format__(self, spec: str) -> str:
        return _display.as_format(self, spec, self._summary)

    def _repr_html_(self) -> str:
        return _display.as_html(self, self._summary)

    # This makes an array operator defer to a value on its right.
    __array_ufunc__ = None

    def __array__(
        self, dtype: Any = None, copy: bool | None = None
    ) -> np.ndarray[Any, Any]:
        if any(isinstance(leaf, jax.core.Tracer) for leaf in tree_leaves(self)):
            raise TypeError(
                f"A {type(self).__name__} whose arrays are traced can't become a NumPy array. "
                f"{_CALL_TRANSFORMED}."
            )
        if sys._getframe(1).f_globals.get("__name__", "").startswith("jax."):
            _say_if_jax_may_convert(type(self))
        return np.asarray(materialise(self), dtype=dtype)

    def __float__(self) -> float:
        return float(materialise(self))

    def __int__(self) -> int:
        return int(materialise(self))

    def __complex__(self) -> complex:
        return complex(materialise(self))

    def __setitem__(self, index: Any, entries: Any) -> None:
        raise TypeError(
            f"A {type(self).__name__} can't be changed in place, as an array of JAX can't. Make "
            "another one: jaxrewrite.transform(lambda x: x.at[index].set(entries))(value)."
        )

    def __bool__(self) -> bool:
        raise TypeError(
            f"The truth value of a {type(self).__name__} is not known. Use "
            "bool(jaxrewrite.materialise(value)), or jnp functions under transform."
        )

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"len() of an unsized {type(self).__name__}")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        # Without this Python would index until an IndexError, but JAX's indexing never
        # raises one.
        return (self[i] for i in range(len(self)))

    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    @_operator(operator.eq)
    def __eq__(self, other: _Operand) -> _Result: ...  # type: ignore[override]

    @_operator(operator.ne)
    def __ne__(self, other: _Operand) -> _Result: ...  # type: ignore[override]

    @_operator(operator.lt)
    def __lt__(self, other: _Operand) -> _Result: ...

    @_operator(operator.le)
    def __le__(self, other: _Operand) -> _Result: ...

    @_operator(operator.gt)
    def __gt__(self, other: _Operand) -> _Result: ...

    @_operator(operator.ge)
    def __ge__(self, other: _Operand) -> _Result: ...

    @_operator(operator.neg)
    def __neg__(self) -> _Result: ...

    @_operator(operator.pos)
    def __pos__(self) -> _Result: ...

    @_operator(operator.abs)
    def __abs__(self) -> _Result: ...

    @_operator(operator.invert)
    def __invert__(self) -> _Result: ...

    def __round__(self, ndigits: int | None = None) -> _Result:
        """``transform(round)`` of this value."""
        return transform(round)(self, *([] if ndigits is None else [ndigits]))

    @_operator(operator.add)
    def __add__(self, other: _Operand) -> _Result: ...

    @_operator(operator.sub)
    def __sub__(self, other: _Operand) -> _Result: ...

    @_operator(operator.mul)
    def __mul__(self, other: _Operand) -> _Result: ...

    @_operator(operator.matmul)
    def __matmul__(self, other: _Operand) -> _Result: ...

    @_operator(operator.truediv)
    def __truediv__(self, other: _Operand) -> _Result: ...

    @_operator(operator.floordiv)
    def __floordiv__(self, other: _Operand) -> _Result: ...

    @_operator(operator.mod)
    def __mod__(self, other: _Operand) -> _Result: ...

    @_operator(divmod)
    def __divmod__(  # type: ignore[empty-body]
        self, other: _Operand
    ) -> tuple[_Result, _Result]: ...

    @_operator(operator.pow)
    def __pow__(self, other: _Operand) -> _Result: ...

    @_operator(operator.and_)
    def __and__(self, other: _Operand) -> _Result: ...

    @_operator(operator.or_)
    def __or__(self, other: _Operand) -> _Result: ...

    @_operator(operator.xor)
    def __xor__(self, other: _Operand) -> _Result: ...

    @_operator(operator.lshift)
    def __lshift__(self, other: _Operand) -> _Result: ...

    @_operator(operator.rshift)
    def __rshift__(self, other: _Operand) -> _Result: ...

    @_operator(operator.add, reflected=True)
    def __radd__(self, other: _Operand) -> _Result: ...

    @_operator(operator.sub, reflected=True)
    def __rsub__(self, other: _Operand) -> _Result: ...

    @_operator(operator.mul, reflected=True)
    def __rmul__(self, other: _Operand) -> _Result: ...

    @_operator(operator.matmul, reflected=True)
    def __rmatmul__(self, other: _Operand) -> _Result: ...

    @_operator(operator.truediv, reflected=True)
    def __rtruediv__(self, other: _Operand) -> _Result: ...

    @_operator(operator.floordiv, reflected=True)
    def __rfloordiv__(self, other: _Operand) -> _Result: ...

    @_operator(operator.mod, reflected=True)
    def __rmod__(self, other: _Operand) -> _Result: ...

    @_operator(divmod, reflected=True)
    def __rdivmod__(  # type: ignore[empty-body]
        self, other: _Operand
    ) -> tuple[_Result, _Result]: ...

    @_operator(operator.pow, reflected=True)
    def __rpow__(self, other: _Operand) -> _Result: ...

    @_operator(operator.and_, reflected=True)
    def __rand__(self, other: _Operand) -> _Result: ...

    @_operator(operator.or_, reflected=True)
    def __ror__(self, other: _Operand) -> _Result: ...

    @_operator(operator.xor, reflected=True)
    def __rxor__(self, other: _Operand) -> _Result: ...

    @_operator(operator.lshift, reflected=True)
    def __rlshift__(self, other: _Operand) -> _Result: ...

    @_operator(operator.rshift, reflected=True)
    def __rrshift__(self, other: _Operand) -> _Result: ...

    def __getitem__(self, index: Any) -> _Result:
        """``transform(getitem)`` of this value. The numbers of a mask stay known, as JAX needs them."""
        leaves, treedef = tree_flatten(index, is_leaf=is_value)
        masks = [x if _is_mask(x) else None for x in leaves]
        if not any(mask is not None for mask in masks):
            return transform(operator.getitem)(self, index)

        def getitem(x: Any, others: list[Any]) -> Any:
            pairs = zip(masks, others, strict=True)
            known = [other if mask is None else mask for mask, other in pairs]
            return x[tree_unflatten(treedef, known)]

        others = [None if _is_mask(x) else x for x in leaves]
        return transform(getitem)(self, others)

    @property
    def T(self) -> _Result:
        """``transform`` of the array's ``T``."""
        return _attribute("T")(self)

    @property
    def mT(self) -> _Result:
        """``transform`` of the array's ``mT``."""
        return _attribute("mT")(self)

    @property
    def real(self) -> _Result:
        """``transform`` of the array's ``real``."""
        return _attribute("real")(self)

    @property
    def imag(self) -> _Result:
        """``transform`` of the array's ``imag``."""
        return _attribute("imag")(self)

    def astype(self, dtype: DTypeLike) -> _Result:
        """``transform`` of the array's ``astype``."""
        return transform(jnp.astype)(self, dtype)

    def reshape(self, *shape: Any) -> _Result:
        """``transform`` of the array's ``reshape``."""
        return transform(jnp.reshape)(self, shape[0] if len(shape) == 1 else shape)

    def transpose(self, *axes: Any) -> _Result:
        """``transform`` of the array's ``transpose``."""
        if not axes:
            return self.T
        return transform(jnp.transpose)(self, axes[0] if len(axes) == 1 else axes)

    # To a type checker, an attribute that is not declared above is an error.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Say what to write for a method that an array has and a value has not."""
            cls = type(self)
            if name.startswith("__"):  # JAX asks for these often.
                raise AttributeError(name, name=name, obj=self)
            if hasattr(cls, name):
                # A property raised an AttributeError, which is the one to show.
                return object.__getattribute__(self, name)
            text = f"{cls.__name__!r} object has no attribute {name!r}"
            if hasattr(jax.Array, name) or name in _OF_ARRAYS_THAT_EXIST:
                text += (
                    f". Arrays have it: use it in a transformed function{_namesake(name)}."
                )
            raise AttributeError(text, name=name, obj=self)


# JAX's type for all arrays does not have them.
_OF_ARRAYS_THAT_EXIST = {"block_until_ready", "tolist"}


_CALL_TRANSFORMED = (
    "A model, or another function of JAX, takes it only as an argument of a transformed function: "
    "call jaxrewrite.transform(fn)(value), or jax.jit(jaxrewrite.transform(fn))(value), and pass "
    "as an argument what fn closes over"
)


def _say_if_jax_may_convert(cls: type[Value]) -> None:
    """Apply the policy where `jax.numpy.asarray` makes a value dense, as many models call it."""
    policy = policy_on(cls, current_settings().policy)
    text = f"jax.numpy.asarray makes a {cls.__name__} dense, outside of a transformed function."
    if policy == "forbid":
        raise MaterialisationError(f"{text} {_CALL_TRANSFORMED}.")
    if policy == "warn":
        text += f" {_CALL_TRANSFORMED}; or jaxrewrite.materialise(value) if this is meant."
        about = text, "asarray", cls.__name__, _CALL_TRANSFORMED
        warn([Notice(MaterialisationWarning, about)])


def _numbers_of_python(value: Value) -> Iterator[tuple[str, str]]:
    """The fields that are annotated as numbers or texts of Python, and are no metadata."""
    for f in dataclass_fields(type(value)):
        annotation = getattr(f.type, "__name__", f.type)
        if annotation in ("int", "bool", "str") and not is_static(f):
            yield f.name, annotation


def _namesake(name: str) -> str:
    """How to call the function of a namespace that has the name of a method."""
    if callable(getattr(jnp, name, None)):
        return f", or call jaxrewrite.numpy.{name}(value)"
    if name == "nbytes":
        return ". What a value stores is jaxrewrite.values.nbytes(value).implicit"
    return ", or on jaxrewrite.materialise(value)"
