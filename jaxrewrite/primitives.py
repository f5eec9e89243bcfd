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
Constant([0.7080735 0.7080735 0.7080735], length=3, dtype=float32)
"""

from __future__ import annotations

from . import _compat
from ._core.rewrite import IDENTITIES


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

COMPARISON = _present("eq ne lt le gt ge eq_to le_to lt_to")
"""Two operands, entry by entry, with booleans as results. Those that end in ``_to`` compare in the
total order of floating-point numbers, as `jax.numpy.searchsorted` does."""

ADDITIVE = _present("add add_any sub")
"""Linear in both operands together."""

COMMUTATIVE = _present("add add_any mul max min and or xor eq ne eq_to")
"""Two operands, entry by entry, whose order does not matter."""

BINARY = (
    *_present(
        "add add_any sub mul div rem max min pow atan2 nextafter and or xor shift_left "
        "shift_right_arithmetic shift_right_logical igamma igammac polygamma zeta"
    ),
    *COMPARISON,
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

# --- linear, in all operands together or in each ------------------------------------------

LINEAR = _present(
    "add add_any sub neg real imag conj copy copy_p broadcast_in_dim reshape rev slice squeeze "
    "transpose concatenate pad split stack unstack tile reduce_sum cumsum fft "
    "reduce_window_sum"
)
"""Linear over the real numbers in all operands together, with any parameters."""

MULTILINEAR = _present("mul dot_general conv_general_dilated")
"""Linear in each operand, if the other one is fixed."""

LINEAR_OPERANDS: dict[str, tuple[int, ...]] = {
    name: positions
    for name, positions in {
        "div": (0,),
        "dynamic_slice": (0,),
        "dynamic_update_slice": (0, 1),
        "gather": (0,),
        "scatter-add": (0, 2),
        "scatter-sub": (0, 2),
        "select_n": (1, 2),
        "triangular_solve": (1,),
    }.items()
    if name in _by_name
}
"""For primitives that are linear in some operands together if the others are fixed: the
positions of these operands. ``gather`` is linear if nothing is filled in."""

# --- other rooms of the primitives ----------------------------------------------------------

LINEAR_ALGEBRA = _present(
    "cholesky cholesky_update eig eigh geqp3 geqrf hessenberg householder_product lu "
    "lu_pivots_to_permutation ormqr qr schur svd symmetric_product triangular_solve "
    "tridiagonal tridiagonal_solve"
)
"""Factorisations and solves of matrices, or of stacks of matrices."""

COLLECTIVE = _present(
    "all_gather all_gather_invariant all_gather_reduced all_to_all axis_index pmax pmin "
    "ppermute psum psum_invariant ragged_all_to_all reduce_scatter unreduced_pmax "
    "unreduced_pmin unreduced_psum unreduced_reduce_scatter"
)
"""They exchange entries among the devices of a mesh axis, or the elements of a mapped axis."""

RANDOM = _present(
    "random_bits random_clone random_fold_in random_gamma random_seed random_split "
    "random_unwrap random_wrap rng_bit_generator rng_uniform threefry2x32 threefry4x32 "
    "philox2x32 philox4x32 iota_2x32_shape"
)
"""They make, split and use random keys."""
