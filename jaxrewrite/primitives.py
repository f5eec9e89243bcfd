"""Families of JAX's primitives, for rules that serve for a whole family.

Each is a tuple of the names of primitives that the running version of JAX has. ``x`` stands
for the operand, or for the first of several.

Examples
--------
>>> import jax, jax.numpy as jnp, jaxrewrite
>>> class Constant(jaxrewrite.ArrayValue):
...     fill: jax.Array
...     length: int = jaxrewrite.field(static=True)
...     def materialise(self):
...         return jnp.full(self.length, self.fill)
>>> @jaxrewrite.register(*jaxrewrite.primitives.UNARY)
... def _(v: Constant, *, primitive, **params):
...     return Constant(jaxrewrite.bind(primitive, v.fill, **params), v.length)
>>> jaxrewrite.transform(lambda v: jnp.sin(v) ** 2)(Constant(jnp.float32(1), 3))
Constant(fill=f32[], length=3)
"""

from __future__ import annotations

from . import _compat
from ._keepers import IDENTITIES


_by_name = _compat.primitives_by_name()


def _present(names: str) -> tuple[str, ...]:
    return tuple(name for name in names.split() if name in _by_name)


# --- one operand, entry by entry ----------------------------------------------------

IDENTITY = _present(" ".join(IDENTITIES))
"""They return their operands."""

LINEAR_UNARY = _present("neg real imag conj")
"""Entry by entry, and linear over the real numbers."""

INCREASING = _present(
    "sqrt cbrt exp exp2 expm1 log log1p log2 asin atan sinh tanh asinh atanh erf erf_inv "
    "logistic floor ceil round sign"
)
"""Entry by entry, of real numbers, and nowhere decreasing."""

DECREASING = _present("neg rsqrt acos erfc")
"""Entry by entry, of real numbers, and nowhere increasing."""

ZERO_PRESERVING = _present(
    "neg real imag conj abs sign floor ceil round sqrt cbrt square sin tan asin atan sinh "
    "tanh asinh atanh expm1 log1p erf erf_inv"
)
"""Entry by entry, and zero at zero. ``integer_pow`` and ``pow`` with positive exponents are
zero at zero, too."""

UNARY = _present(
    "abs acos acosh asin asinh atan atanh bessel_i0e bessel_i1e cbrt ceil clz conj cos cosh "
    "digamma erf erf_inv erfc exp exp2 expm1 floor imag integer_pow is_finite lgamma log "
    "log1p log2 logistic neg not one_minus_square population_count real reduce_precision "
    "round rsqrt sign sin sinh sqrt square tan tanh"
)
"""Entry by entry; ``convert_element_type`` is not among them."""

# --- two operands, entry by entry -----------------------------------------------------

COMPARISON = _present("eq ne lt le gt ge")
"""Two operands, entry by entry, with booleans as results."""

ADDITIVE = _present("add add_any sub")
"""Linear in both operands together."""

BINARY = _present(
    "add add_any sub mul div rem max min pow atan2 nextafter and or xor shift_left "
    "shift_right_arithmetic shift_right_logical igamma igammac eq ne lt le gt ge"
)
"""Two operands, entry by entry."""

# --- where entries go -----------------------------------------------------------------

SHAPE = _present("broadcast_in_dim reshape rev slice squeeze transpose")
"""They have one operand, and each entry of the result is an entry of the operand."""

INDEXING = _present("dynamic_slice gather")
"""Each entry of the result is an entry of ``x``, at an index that is another operand; or
``gather`` fills it in."""

REDUCTION = _present(
    "argmax argmin reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum "
    "reduce_xor"
)
"""They reduce axes of their one operand."""

CUMULATIVE = _present("cumlogsumexp cummax cummin cumprod cumsum")
"""They accumulate along an axis of their one operand."""
