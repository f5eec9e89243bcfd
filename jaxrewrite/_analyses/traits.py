"""Whether operands change the primitives of a function, by primitive.

JAX writes most functions with the same primitives whatever operands they are called with, up
to moves and conversions. So there is no need to trace them at many operands to know that.
"""

# Primitives that a function has for all ranks, sizes and dtypes, and if it is batched.
_ALWAYS = """
    acos acosh asin asinh atan atan2 atanh cbrt cos cosh cumlogsumexp cumprod cumsum digamma
    dot_general eigh erf erf_inv erfc exp exp2 expm1 fft lgamma log log1p logistic lu qr
    reduce_prod reduce_sum rsqrt scan sin sinh sqrt tan tanh
"""

# Batching may replace a primitive: `dynamic_slice` by `gather`, `dynamic_update_slice` by
# `scatter`. A function has one of these.
_SLICES = frozenset({"dynamic_slice", "gather"})
_UPDATES = frozenset({"dynamic_update_slice", "scatter"})
LASTING = {name: frozenset({name}) for name in _ALWAYS.split()}
LASTING |= {"dynamic_slice": _SLICES, **dict.fromkeys(_UPDATES, _UPDATES)}

# Primitives of functions that seldom ask for the dtypes of their operands.
_OF_ALL_DTYPES = """
    add div integer_pow max min mul neg pow reduce_max reduce_min square stop_gradient sub
"""
OF_ALL_DTYPES = frozenset((_ALWAYS + _OF_ALL_DTYPES).split())

# Primitives whose batching rules give the same primitive, with operands that are moved.
_BATCHED_LIKEWISE = """
    abs and argmax argmin ceil concatenate conj custom_jvp_call custom_vjp_call cummax cummin
    eq floor ge gt imag iota is_finite le lt ne nextafter not or pad real reduce_and reduce_or
    rem rev round select_n shift_left shift_right_arithmetic shift_right_logical sign
    split xor
"""
BATCHED_LIKEWISE = (OF_ALL_DTYPES - {"scan"}).union(_BATCHED_LIKEWISE.split())

# Primitives of functions that have no formulas of their own for small operands, as
# determinants have. A function with a derivative of its own may be anything.
_OF_SOME_SIZES = {"custom_jvp_call", "custom_vjp_call", "eigh", "lu", "qr"}
OF_ALL_SIZES = BATCHED_LIKEWISE - _OF_SOME_SIZES
