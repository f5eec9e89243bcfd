"""`strict_zeros`: rules by which structural zeros times infinity or NaN are NaN."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

import jaxrewrite
from jaxrewrite import ArrayValue

from ._base.structured import Structured, inexact, is_number
from ._matrices.scaled import by_number


strict_zeros: jaxrewrite.Rules = jaxrewrite.Rules()
"""Rules for exact products with structural zeros, whatever multiplies these zeros.

Without these rules, the numbers that multiply zeros which no leaf holds are taken to be
finite. So ``Diagonal(d) @ x`` can be NaN only in rows where ``x`` itself is infinite or NaN.
With ``transform(fn, rules=strict_zeros)`` the products of such a value are those of the
dense array. It is made dense as the policy ``materialise=`` allows; a number times such a
value is a `Scaled`. Everything that is not a product agrees with the dense array in any
case, but for the sign of the zeros that no leaf holds, which stay positive in ``-v``.

Examples
--------
>>> import jax.numpy as jnp, jaxrewrite
>>> from jaxrewrite.values import Diagonal, strict_zeros
>>> v, x = Diagonal(jnp.ones(2)), jnp.array([1.0, jnp.inf])
>>> v @ x
Array([ 1., inf], dtype=float32)
>>> jaxrewrite.transform(jnp.matmul, rules=strict_zeros, materialise="allow")(v, x)
Array([nan, inf], dtype=float32)
"""

_Operand = Array | ArrayValue


class WithZeros(Structured):
    """A value with its zeros written out, which serves only as a dense array."""

    x: Any

    def aval(self) -> Any:
        return self.x.aval() if isinstance(self.x, ArrayValue) else self.x.aval

    def materialise(self) -> Any:
        return self.x


@strict_zeros.register("mul", "dot_general", "conv_general_dilated", "ragged_dot_general")
def _(x: _Operand, y: _Operand, *sizes: Array, primitive: Any, **params: Any) -> Any:
    if not any(map(_has_zeros, (x, y))):
        return NotImplemented
    pairs: Any = ((x, y), (y, x))
    for v, factor in pairs:
        is_factor = not isinstance(factor, ArrayValue) and is_number(factor)
        if primitive.name == "mul" and is_factor and inexact(v):
            return by_number(jnp.multiply, v, factor)
    both = (WithZeros(z) if _has_zeros(z) else z for z in (x, y))
    return jaxrewrite.bind(primitive, *both, *sizes, **params)


def _has_zeros(x: Any) -> bool:
    # An annotation has rules of its own, which multiply the array inside.
    if not isinstance(x, Structured) or isinstance(x, WithZeros) or x.outer > 0:
        return False
    return x.has_zeros
