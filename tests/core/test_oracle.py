"""The oracle: ``transform(f)(*values)``, materialised, equals ``f`` on the dense arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import every, often, slow
from functions import FUNCTIONS, NEEDS_ROWS
from jax import lax
from oracle import allow, everything, on_arrays
from reference import OWN

import jaxrewrite
from jaxrewrite.testing import assert_same


def make(kind, shape=(3, 4), dtype=jnp.float32, seed=0):
    return OWN[kind].value(np.random.default_rng(seed), dtype, shape)


def test_keys_are_the_same_if_their_numbers_are():
    keys = jax.random.split(jax.random.key(0), 2)
    assert_same(keys, keys)
    with pytest.raises(AssertionError, match="numbers differ"):
        assert_same(keys, keys[::-1])


def summed(fn):
    """A scalar of the floating results of ``fn``, for gradients."""

    def total(v):
        leaves = jax.tree.leaves(jaxrewrite.materialise(fn(v)))
        return sum(
            (jnp.sin(x).sum() for x in leaves if jnp.issubdtype(x.dtype, jnp.floating)), 0.0
        )

    return total


# The others are for the long run of the suite.
FEW = ("zero", "lora_of_quantised")
few_kinds = pytest.mark.parametrize(
    "kind",
    often(OWN, FEW),
)


# Without jit, the others are for the long run too.
one_kind = pytest.mark.parametrize("kind", often(OWN, ("lora",)))
nested_kind = pytest.mark.parametrize("kind", often(OWN, ("lora_of_quantised",)))


def check_together(names, value, rtol):
    """Some functions, compiled as one program."""
    fns = {name: FUNCTIONS[name] for name in names}
    got = jax.jit(allow(everything(fns)))(value)
    want = on_arrays(everything, tuple(names))(jaxrewrite.materialise(value))
    for name in names:
        assert_same(got[name], want[name], rtol)


@few_kinds
def test_forward(kind, bulk):
    check_together(FUNCTIONS, make(kind), 2e-5)


@one_kind
@pytest.mark.parametrize("name", every(2, FUNCTIONS))
def test_forward_without_jit(name, kind, bulk):
    value, fn = make(kind), FUNCTIONS[name]
    assert_same(allow(fn)(value), fn(jaxrewrite.materialise(value)), 2e-5)


@nested_kind
def test_gradient_with_respect_to_leaves(kind, bulk):
    def gradients(wrapped):
        return jax.jit(
            lambda v: {
                name: jax.grad(summed(wrapped(fn)), allow_int=True)(v)
                for name, fn in FUNCTIONS.items()
            }
        )

    value = make(kind)
    of_value = gradients(allow)(value)
    of_dense = gradients(lambda fn: lambda v: fn(jaxrewrite.materialise(v)))(value)
    for (path, g), w in zip(
        jax.tree.leaves_with_path(of_value), jax.tree.leaves(of_dense), strict=True
    ):
        assert g.dtype == w.dtype
        if g.dtype != jax.dtypes.float0:
            where = jax.tree_util.keystr(path)
            np.testing.assert_allclose(g, w, rtol=2e-4, atol=2e-5, err_msg=where)


SOME = ["sin", "mul self", "matmul", "softmax", "transpose", "jit", "several"]


@one_kind
@pytest.mark.parametrize("name", every(2, SOME))
def test_modes(name, kind, leak_checks):
    """vmap, jvp, grad and jit, inside and outside; leak checks on."""
    value, fn = make(kind), FUNCTIONS[name]
    dense = jaxrewrite.materialise(value)
    assert_same(allow(jax.jit(fn))(value), fn(dense), 2e-5)
    assert_same(allow(jax.grad(summed(fn)))(value), jax.grad(summed(fn))(dense), 2e-4)

    leaves, treedef = jax.tree.flatten(value)
    if leaves:
        values = [make(kind, seed=seed) for seed in range(3)]
        batch = jax.tree.map(lambda *xs: jnp.stack(xs), *values)
        want = jax.vmap(fn)(jnp.stack([jaxrewrite.materialise(v) for v in values]))
        through = lambda v: jaxrewrite.materialise(allow(fn)(v))
        assert_same(jax.vmap(through)(batch), want, 2e-5)

    is_float = [jnp.issubdtype(x.dtype, jnp.floating) for x in leaves]
    floats = [x for x, f in zip(leaves, is_float, strict=True) if f]

    def of_floats(fn):
        def call(floats):
            rest = iter(floats)
            filled = [next(rest) if f else x for x, f in zip(leaves, is_float, strict=True)]
            return jaxrewrite.materialise(fn(jax.tree.unflatten(treedef, filled)))

        return call

    got = jax.jvp(of_floats(allow(fn)), (floats,), (floats,))
    want = jax.jvp(of_floats(lambda v: fn(jaxrewrite.materialise(v))), (floats,), (floats,))
    assert_same(got, want, 1e-4)


@few_kinds
@pytest.mark.parametrize(
    "shape",
    [slow(pytest.param(s)) if s[0] == 3 else s for s in [(1, 4), (3, 1), (0, 4), (3, 0)]],
    ids=str,
)
def test_odd_shapes(kind, shape, bulk):
    if kind == "lora_of_zeros":
        pytest.skip("zeros of any shape are zeros")
    names = [n for n in FUNCTIONS if not (n in NEEDS_ROWS and 0 in shape)]
    check_together(names, make(kind, shape), 2e-5)


@few_kinds
@pytest.mark.parametrize("dtype", ["bfloat16", slow("float16")])
def test_narrow_dtypes(kind, dtype, bulk):
    names = ("sin", "add", "mul scalar", "matmul", "transpose", "sum rows", "where")
    check_together(names, make(kind, dtype=dtype), 0.1)


@nested_kind
def test_double_precision(kind, bulk):
    with jax.enable_x64(True):
        value = make(kind, dtype=jnp.float64)
        dense = jaxrewrite.materialise(value)
        assert dense.dtype == jnp.float64
        for name in ("sin", "add", "mul scalar", "matmul", "softmax", "several"):
            assert_same(allow(FUNCTIONS[name])(value), FUNCTIONS[name](dense), 1e-12)


def test_weak_types():
    class Held(jaxrewrite.ArrayValue):
        x: jax.Array

        def materialise(self):
            return self.x

    half = jnp.ones(3, jnp.bfloat16)
    weak, strong = Held(jnp.asarray(2.0)), Held(jnp.float32(2.0))
    assert allow(lambda v, y: v * y)(weak, half).dtype == jnp.bfloat16
    assert allow(lambda v, y: v * y)(strong, half).dtype == jnp.float32
    assert allow(lambda v: v * 2)(weak).weak_type
    assert allow(lambda v: v * 2)(Held(2.0)).weak_type


@pytest.mark.parametrize("is_weak", [True, False])
def test_a_dense_array_has_a_weak_type_if_the_value_says_so(is_weak):
    class Declared(jaxrewrite.ArrayValue):
        x: jax.Array

        def aval(self):
            return jax.core.ShapedArray((), jnp.float32, weak_type=is_weak)

        def materialise(self):
            return self.x * (jnp.float32(1) if is_weak else 1)

    v = Declared(jnp.float32(2.0))
    assert allow(lambda v: v.reshape(1))(v).weak_type == is_weak
    assert jaxrewrite.materialise(v).weak_type == is_weak


WITH_WEAK_CARRIES = {
    "scan": lambda v: lax.scan(lambda c, _: (c * 2, None), v, None, length=3)[0],
    "ys": lambda v: lax.scan(lambda c, _: (c * 2, c), v, None, length=3)[1],
    "fori_loop": lambda v: lax.fori_loop(0, 3, lambda i, c: c * 2, v),
    "while_loop": lambda v: lax.while_loop(lambda c: c < 9, lambda c: c * 2, v),
    "strong": lambda v: lax.fori_loop(0, 3, lambda i, c: c * jnp.float32(2), v),
    "cond": lambda v: lax.cond(v > 0, lambda v: v * 2, lambda v: 3.0, v),
    "half": lambda v: lax.fori_loop(0, 3, lambda i, c: c * 2, v) * jnp.bfloat16(1),
}


@pytest.mark.parametrize("fn", WITH_WEAK_CARRIES.values(), ids=WITH_WEAK_CARRIES)
@pytest.mark.parametrize("leaf", [2.0, jnp.float32(2.0)], ids=["weak", "strong"])
def test_weak_types_of_what_goes_through_loops(fn, leaf):
    class Held(jaxrewrite.ArrayValue):
        x: jax.Array

        def materialise(self):
            return self.x

    rules = jaxrewrite.Rules()

    @rules.register("mul")
    def _(v: Held, y: jax.Array | float, **params):
        return Held(v.x * y)

    implicit = jaxrewrite.transform(fn, rules=rules, materialise="allow")
    got, want = jaxrewrite.materialise(implicit(Held(leaf))), fn(leaf)
    assert (got.dtype, got.weak_type) == (want.dtype, want.weak_type)
    np.testing.assert_allclose(got, want)
