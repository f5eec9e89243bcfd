"""The families of primitives: what each promises, by numbers; and that none is left out."""

import functools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxrewrite import _compat, _signatures, primitives
from jaxrewrite._core.rewrite import handlers
from jaxrewrite._core.rules import look_up_primitive


ALIASES = {
    "not": "bitwise_not",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "add_any": "add",
    "copy": "neg",  # JAX exports no function of it that is not an identity on all trees.
    "scatter-add": "scatter_add",
    "scatter-sub": "scatter_sub",
}
STATIC = {"integer_pow": (3,), "reduce_precision": (8, 10)}
INTEGERS = {
    *("clz", "not", "population_count", "and", "or", "xor"),
    *("shift_left", "shift_right_arithmetic", "shift_right_logical"),
}
POSITIVE = {
    "sqrt",
    "log",
    "log2",
    "rsqrt",
    "cbrt",
    "digamma",
    "lgamma",
    "igamma",
    "igammac",
}
ABOVE_ONE = {"acosh"}


def function(name):
    fn = getattr(lax, ALIASES.get(name, name), None)
    if fn is None:  # JAX exports no function, for example of one_minus_square.
        primitive = _compat.primitives_by_name()[name]
        return primitive.bind
    return lambda *xs: fn(*xs, *STATIC.get(name, ()))


def samples(name, seed=0, count=31):
    rng = np.random.default_rng(seed)
    if name in INTEGERS:
        return jnp.asarray(rng.integers(0, 9, count), "int32")
    low, high = (0.05, 0.95) if name in POSITIVE else (-0.95, 0.95)
    if name in ABOVE_ONE:
        low, high = 1.1, 3.0
    x = jnp.asarray(np.sort(rng.uniform(low, high, count)), "float32")
    return x + 1j * x[::-1] if name in ("real", "imag", "conj") else x


def same(got, want, name, tolerance=1e-5):
    np.testing.assert_allclose(got, want, tolerance, tolerance, err_msg=name)


@pytest.mark.parametrize("family", ["INCREASING", "DECREASING"])
def test_they_are_monotone(family):
    sign = 1 if family == "INCREASING" else -1
    for name in getattr(primitives, family):
        steps = sign * np.diff(function(name)(samples(name)))
        assert (steps >= 0).all(), name
        assert (steps > 0).any() or name in ("floor", "ceil", "round", "sign"), name


def test_they_are_zero_at_zero():
    for name in primitives.ZERO_PRESERVING:
        zero = samples(name)[:2] * 0
        assert not np.any(function(name)(zero)), name


@pytest.mark.parametrize("family", ["UNARY", "LINEAR_UNARY"])
def test_entries_of_the_result_are_those_of_an_entry(family):
    names = getattr(primitives, family)

    @jax.jit
    def all_of(xs):
        return {name: function(name)(x) for name, x in xs.items()}

    xs = {name: samples(name) for name in names}
    whole = all_of(xs)
    turned = all_of({name: x[::-1] for name, x in xs.items()})
    for name in names:
        assert whole[name].shape == xs[name].shape, name
        np.testing.assert_array_equal(turned[name], whole[name][::-1], err_msg=name)


def test_entries_of_the_result_are_those_of_two_entries():
    names = (*primitives.BINARY, *primitives.COMPARISON, *primitives.ADDITIVE)

    @jax.jit
    def all_of(pairs):
        return {name: function(name)(*pair) for name, pair in pairs.items()}

    pairs = {name: (samples(name), samples(name, 1)) for name in names}
    whole = all_of(pairs)
    turned = all_of({name: (x[::-1], y[::-1]) for name, (x, y) in pairs.items()})
    for name in names:
        assert whole[name].shape == pairs[name][0].shape, name
        np.testing.assert_array_equal(turned[name], whole[name][::-1], err_msg=name)
    assert all(whole[name].dtype == bool for name in primitives.COMPARISON)


def test_the_order_of_operands_matters_but_for_commutative_ones():
    pairs = {name: (samples(name), samples(name, 1)) for name in primitives.BINARY}
    for name, (x, y) in pairs.items():
        if np.isnan(function(name)(x, y)).all():
            continue
        alike = np.array_equal(function(name)(x, y), function(name)(y, x), equal_nan=True)
        assert alike == (name in primitives.COMMUTATIVE), name


def superposed(fn, xs, ys):
    """``fn`` of a combination of operands, and the combination of its results."""
    together = fn(*(2 * x - 3 * y for x, y in zip(xs, ys, strict=True)))
    combine = lambda a, b: 2 * a - 3 * b
    return together, jax.tree.map(combine, fn(*xs), fn(*ys))


PARAMETERS = {
    "broadcast_in_dim": lambda x: lax.broadcast_in_dim(x, (2, 4, 4), (1, 2)),
    "reshape": lambda x: x.reshape(2, 8),
    "rev": lambda x: lax.rev(x, (0,)),
    "slice": lambda x: lax.slice(x, (1, 0), (3, 2)),
    "squeeze": lambda x: lax.squeeze(x[None], (0,)),
    "transpose": lambda x: lax.transpose(x, (1, 0)),
    "concatenate": lambda x, y: lax.concatenate([x, y], 0),
    "pad": lambda x, y: lax.pad(x, y[0, 0], [(1, 0, 0), (0, 2, 1)]),
    "split": lambda x: lax.split(x, (1, 3)),
    "stack": lambda x, y: jnp.stack([x, y]),
    "unstack": lambda x: jnp.unstack(x),
    "tile": lambda x: jnp.tile(x, (2, 3)),
    "reduce_sum": lambda x: jnp.sum(x, 0),
    "cumsum": lambda x: lax.cumsum(x, 1),
    "fft": lambda x: jnp.fft.rfft(x),
    "reduce_window_sum": lambda x: lax.reduce_window(
        x, 0.0, lax.add, (2, 2), (1, 1), "VALID"
    ),
    "dot_general": lambda x, y: x @ y,
    "conv_general_dilated": lambda x, y: lax.conv(
        x[None, None], y[None, None, :2, :2], (1, 1), "SAME"
    ),
    "mul": lambda x, y: x * y,
    "real": lambda x: lax.real(x + 1j * x.T),
    "imag": lambda x: lax.imag(x + 1j * x.T),
    "conj": lambda x: lax.conj(x + 1j * x.T),
    "neg": lambda x: -x,
    "copy": lambda x: jnp.copy(x),
    "copy_p": lambda x: jnp.copy(x),
    "add": lambda x, y: x + y,
    "add_any": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
}


def matrices(seed, count):
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.normal(size=(4, 4)), "float32") for _ in range(count)]


def test_they_are_linear_in_all_operands_together():
    for name in primitives.LINEAR:
        fn = PARAMETERS[name]
        count = fn.__code__.co_argcount
        together, apart = superposed(fn, matrices(0, count), matrices(1, count))
        jax.tree.map(functools.partial(same, name=name), together, apart)
    assert {*primitives.ADDITIVE, *primitives.LINEAR_UNARY} <= {*primitives.LINEAR}


def test_they_are_linear_in_each_operand():
    for name in primitives.MULTILINEAR:
        fn, (x, y), (z,) = PARAMETERS[name], matrices(0, 2), matrices(1, 1)
        for own in (lambda x, y=y, fn=fn: fn(x, y), lambda y, x=x, fn=fn: fn(x, y)):
            same(*superposed(own, [x], [z]), name)


PARTLY = {
    "div": lambda x: x / (1 + jnp.arange(16.0).reshape(4, 4)),
    "dynamic_slice": lambda x: lax.dynamic_slice(x, (1, jnp.int32(0)), (2, 2)),
    "dynamic_update_slice": lambda x, y: lax.dynamic_update_slice(x, y[:2, :2], (1, 1)),
    "gather": lambda x: x[jnp.array([2, 0])],
    "scatter-add": lambda x, y: x.at[jnp.array([2, 0])].add(y[:2]),
    "scatter-sub": lambda x, y: x.at[jnp.array([2, 0])].subtract(y[:2]),
    "select_n": lambda x, y: lax.select_n(jnp.arange(16).reshape(4, 4) > 7, x, y),
    "triangular_solve": lambda b: lax.linalg.triangular_solve(
        jnp.tri(4) + jnp.eye(4), b, left_side=True, lower=True
    ),
}


def test_they_are_linear_in_some_operands():
    for name, places in primitives.LINEAR_OPERANDS.items():
        fn, count = PARTLY[name], len(places)
        same(*superposed(fn, matrices(0, count), matrices(1, count)), name)
        eqns = jax.make_jaxpr(fn)(*matrices(0, count)).eqns
        (eqn,) = [eqn for eqn in _all(eqns) if eqn.primitive.name == name]
        variables = {id(x) for x in eqn.invars if type(x) is not _compat.Literal}
        assert all(id(eqn.invars[i]) in variables for i in places), name


def _all(eqns):
    for eqn in eqns:
        yield eqn
        for inner in jax.extend.core.jaxprs_in_params(eqn.params):
            yield from _all(inner.eqns)


def test_entries_are_moved_only():
    x = jnp.arange(16.0).reshape(4, 4) + 5
    programs = {**PARAMETERS, **PARTLY}
    for name in (*primitives.SHAPE, *primitives.INDEXING):
        got = programs[name](x)
        assert {*np.ravel(got).tolist()} <= {*np.ravel(x).tolist()}, name


def test_axes_are_reduced_or_accumulated_along():
    x = jnp.arange(1, 13).reshape(3, 4)
    for name in primitives.REDUCTION:
        fn = getattr(lax, name)
        own = x > 3 if name in ("reduce_and", "reduce_or", "reduce_xor") else x
        got = fn(own, 0, jnp.int32) if name.startswith("arg") else fn(own, (0,))
        assert got.shape == (4,), name
    for name in primitives.CUMULATIVE:
        whole = getattr(lax, name)(x * 0.1, axis=0)
        same(getattr(lax, name)(x[:2] * 0.1, axis=0), whole[:2], name)


# --- none is left out -----------------------------------------------------------------------

# Primitives in no family, by the reason.
OTHERS = {
    "A rule depends on its parameters, which decide what it computes.": (
        "approx_top_k bitcast_convert_type clamp complex convert_element_type "
        "reduce reduce_window reduce_window_max reduce_window_min scatter scatter-max "
        "scatter-min scatter-mul select_and_gather_add select_and_scatter "
        "select_and_scatter_add sort top_k ragged_dot_general scaled_dot "
        "dot_product_attention_fwd"
    ),
    "It is a special function of several operands, or of parameters.": (
        "igamma_grad_a mulhi reciprocal regularized_incomplete_beta"
    ),
    "It has no array among its operands, or makes one of nothing.": (
        "after_all create_token empty empty2 iota zeros_like create_linear dim_as_value "
        "dimension_size broadcast_to multiple_of platform_index shape_assertion unreachable "
        "num_programs program_id"
    ),
    "It places an array, or says how it varies over a mesh.": (
        "device_put reshard sharding_constraint layout_constraint inspect_sharding relayout "
        "with_memory_space_constraint pbroadcast pbroadcast_dynamic preduced pin unpin tie "
        "reduced_vary_cast vary_unreduced_cast reduced_vary_cast_p vary_unreduced_cast_p"
    ),
    "It is a collective in two halves, which only a schedule makes.": (
        "all_gather_done all_gather_reduced_start all_gather_start all_to_all_done "
        "all_to_all_start ppermute_done ppermute_start precv psend psum_done psum_start "
        "psum_invariant_start reduce_scatter_done reduce_scatter_start pbroadcast_done "
        "pbroadcast_start unreduced_psum_start unreduced_reduce_scatter_start"
    ),
    "It reads, writes or orders references, logs or effects.": (
        "accum_grad_in_ref addupdate box_get box_set check debug_callback debug_print delay "
        "empty_ref free_ref freeze get get_global io_callback log_extend log_read masked_load "
        "masked_swap new_box new_log new_ref pure_callback run_scoped run_state "
        "semaphore_read semaphore_signal semaphore_wait swap"
    ),
    "It calls code that is none of JAX's.": (
        "call_exported cudnn_fusion custom_partitioning dot_product_attention_bwd "
        "dot_product_attention_bwd_wrapper dot_product_attention_fp8_bwd "
        "dot_product_attention_fp8_bwd_wrapper dot_product_attention_fp8_fwd "
        "dot_product_attention_fp8_fwd_wrapper dot_product_attention_fwd_wrapper ffi_call "
        "pallas_call scaled_matmul scaled_matmul_wrapper core_map mpmd_map"
    ),
    "It is made by JAX's own transformations, and is in no program of a user.": (
        "call call_hi_primitive_linearized custom_jvp_call_jaxpr custom_lin dce_sink "
        "from_edtype jaxpr_call remat_opt stage to_edtype xla_metadata_value"
    ),
}


def test_each_primitive_is_in_a_family_or_has_a_reason():
    families = [v for k, v in vars(primitives).items() if k.isupper() and k != "IDENTITIES"]
    known = {name for names in families for name in names}
    listed = {name for names in OTHERS.values() for name in names.split()}
    # Other tests load modules of JAX with primitives of their own.
    command = "from jaxrewrite import _compat as c; print(*c.primitives_by_name())"
    ran = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=True
    )
    installed = set(ran.stdout.split())
    assert installed - known - listed - handlers.keys() == set()
    assert known <= installed
    assert not known & listed


LATE = """
import sys
import jaxrewrite
jaxrewrite.rules("add")  # The modules of then are looked through.
assert not {"jax.experimental.pallas", "jax.experimental.sparse"} & {*sys.modules}
import jax.experimental.pallas
from jax.experimental import sparse
@jaxrewrite.register("pallas_call", sparse.bcoo_dot_general_p.name)
def _(v: jaxrewrite.ArrayValue, *rest, **params):
    return NotImplemented
(rule,) = jaxrewrite.rules(sparse.bcoo_dot_general_p)
assert rule.primitive == "bcoo_dot_general"
(rule,) = jaxrewrite.rules("pallas_call")

import gc
from jax.extend.core import Primitive
from jaxrewrite import _compat
made = [x for x in gc.get_objects() if isinstance(x, Primitive)]
assert len(made) > 200 and not any(map(_compat.is_namesake, made))
"""


def test_a_primitive_has_its_name_once_its_module_is_imported():
    subprocess.run([sys.executable, "-c", LATE], check=True)


def test_each_known_signature_is_of_an_equation_of_its_primitive():
    # Without the caches, which rules of the library have filled.
    for name in _signatures._programs.__wrapped__():
        primitive, _ = _signatures._by_name.__wrapped__(name)
        assert primitive is look_up_primitive(name), name
