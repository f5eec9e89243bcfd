"""`ArrayValue`: a value that users can treat like an array."""

from __future__ import annotations

import abc
import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from ._avals import aval_of, avals_of, dense_aval, layer
from ._materialise import materialise
from ._transform import transform
from ._value import Value


# What a result is depends on the rules for the operands, so no type tells more than `Any`.
_Operand: TypeAlias = ArrayLike | Value


def _method(fn: Callable[..., Any], reflected: bool = False) -> Callable[..., Any]:
    def method(self: Any, *args: Any) -> Any:
        if reflected:
            return transform(fn)(*args, self)
        return transform(fn)(self, *args)

    method.__doc__ = f"``transform({fn.__name__})`` of this value."
    return method


def _unary(fn: Callable[..., Any]) -> Callable[[Any], Any]:
    return _method(fn)


def _binary(
    fn: Callable[..., Any], reflected: bool = False
) -> Callable[[Any, _Operand], Any]:
    return _method(fn, reflected)


def _property(name: str) -> property:
    fn = operator.attrgetter(name)

    def get(self: Any) -> Any:
        return _attribute(fn)(self)

    get.__doc__ = f"``transform`` of the array's ``{name}``."
    return property(get)


@functools.cache
def _attribute(fn: Callable[[Any], Any]) -> Any:
    return transform(lambda x: fn(x))


class ArrayValue(Value):
    """Base class of types that stand for an array.

    A subclass defines how to build the array, in ``materialise``, and need not define
    anything else. See `Value` for how it becomes a pytree.

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
    """

    _is_any: ClassVar[bool] = True
    _is_base: ClassVar[bool] = True

    @abc.abstractmethod
    def materialise(self) -> Any:
        """Return the dense array, or raise if the type is never dense."""

    def aval(self) -> Any:
        """Return the abstract array that this value stands for.

        By default this is the aval of the array that ``materialise`` returns. A type
        overrides it if its ``materialise`` raises; see `Value.aval`.
        """
        leaves, treedef = layer(self)
        try:
            return dense_aval(type(self), treedef, avals_of(leaves))
        except Exception as error:
            name = type(self).__name__
            error.add_note(
                f"jaxrewrite: {name} does not define aval(), so the shape and dtype of a "
                f"{name} are those of the array that materialise() returns. But "
                "materialise() raised. A type that is never dense has to define aval()."
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
        return int(np.prod(self.shape, dtype=np.int64))

    # This makes an array operator defer to a value on its right.
    __array_ufunc__ = None

    def __array__(
        self, dtype: Any = None, copy: bool | None = None
    ) -> np.ndarray[Any, Any]:
        return np.asarray(materialise(self), dtype=dtype)

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

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: _Operand) -> Any:  # type: ignore[override]
        """``transform(eq)`` of this value."""
        return transform(operator.eq)(self, other)

    def __ne__(self, other: _Operand) -> Any:  # type: ignore[override]
        """``transform(ne)`` of this value."""
        return transform(operator.ne)(self, other)

    __lt__ = _binary(operator.lt)
    __le__ = _binary(operator.le)
    __gt__ = _binary(operator.gt)
    __ge__ = _binary(operator.ge)

    __neg__ = _unary(operator.neg)
    __pos__ = _unary(operator.pos)
    __abs__ = _unary(operator.abs)
    __invert__ = _unary(operator.invert)
    __round__ = _method(round)

    __add__ = _binary(operator.add)
    __sub__ = _binary(operator.sub)
    __mul__ = _binary(operator.mul)
    __matmul__ = _binary(operator.matmul)
    __truediv__ = _binary(operator.truediv)
    __floordiv__ = _binary(operator.floordiv)
    __mod__ = _binary(operator.mod)
    __divmod__ = _binary(divmod)
    __pow__ = _binary(operator.pow)
    __and__ = _binary(operator.and_)
    __or__ = _binary(operator.or_)
    __xor__ = _binary(operator.xor)
    __lshift__ = _binary(operator.lshift)
    __rshift__ = _binary(operator.rshift)

    __radd__ = _binary(operator.add, reflected=True)
    __rsub__ = _binary(operator.sub, reflected=True)
    __rmul__ = _binary(operator.mul, reflected=True)
    __rmatmul__ = _binary(operator.matmul, reflected=True)
    __rtruediv__ = _binary(operator.truediv, reflected=True)
    __rfloordiv__ = _binary(operator.floordiv, reflected=True)
    __rmod__ = _binary(operator.mod, reflected=True)
    __rdivmod__ = _binary(divmod, reflected=True)
    __rpow__ = _binary(operator.pow, reflected=True)
    __rand__ = _binary(operator.and_, reflected=True)
    __ror__ = _binary(operator.or_, reflected=True)
    __rxor__ = _binary(operator.xor, reflected=True)
    __rlshift__ = _binary(operator.lshift, reflected=True)
    __rrshift__ = _binary(operator.rshift, reflected=True)

    __getitem__ = _method(operator.getitem)

    T = _property("T")
    mT = _property("mT")
    real = _property("real")
    imag = _property("imag")

    def astype(self, dtype: DTypeLike) -> Any:
        """``transform`` of the array's ``astype``."""
        return transform(jnp.astype)(self, dtype)

    def reshape(self, *shape: Any) -> Any:
        """``transform`` of the array's ``reshape``."""
        return transform(jnp.reshape)(self, shape[0] if len(shape) == 1 else shape)

    def transpose(self, *axes: Any) -> Any:
        """``transform`` of the array's ``transpose``."""
        if not axes:
            return self.T
        return transform(jnp.transpose)(self, axes[0] if len(axes) == 1 else axes)
