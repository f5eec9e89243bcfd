"""Kernels for products of quantised weights with few rows, interpreted on any platform."""

import contextlib
import functools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from oracle import normal

import jaxrewrite
from jaxrewrite import _compat
from jaxrewrite.values import NF4, Lora, Quantised, gpu_kernels
from jaxrewrite.values._weights import kernels
from jaxrewrite.values._weights.terms import Terms


# For blocks of 32 entries along an axis.
KINDS = {
    "int8": lambda w, block: Quantised.quantise(w, block=block),
    "int4": lambda w, block: Quantised.quantise(w, 4, block=block),
    "nf4": lambda w, block: NF4.quantise(w, block, scale_block=64),
    "int8 columns": lambda w, block: Quantised.quantise(w, axis=block.index(1)),
    "int4 columns": lambda w, block: Quantised.quantise(w, 4, axis=block.index(1)),
    "int4 together": lambda w, block: Quantised.quantise(w, 4, block=(32, 32)),
}


def weight(kind, shape, axis=0, dtype="float32"):
    block = (32, 1) if axis == 0 else (1, 32)
    return jax.jit(KINDS[kind], static_argnums=1)(normal(*shape, dtype=dtype), block)


def wide(x):
    return np.asarray(jaxrewrite.materialise(x), np.float64)


def terms_of(v, x, is_transposed):
    own = ("n", "k") if is_transposed else ("k", "n")
    return Terms(own, ("m", "k"), ("m", "n"), None, None).of(v, x)


def interpreted(v, x, is_transposed):
    terms = terms_of(v, x, is_transposed)
    plan = kernels.plan_for(v, x, terms)
    return jax.jit(lambda v, x: kernels.product(v, x, terms, plan, interpret=True))(v, x)


@pytest.fixture
def anywhere(monkeypatch):
    """Kernels are used on any platform, for small weights, and are interpreted."""
    run = functools.partial(kernels.product, interpret=True)
    calls = []
    monkeypatch.setattr(kernels, "product", lambda *args: calls.append(args) or run(*args))
    monkeypatch.setattr(kernels, "PLATFORM", jax.default_backend())
    monkeypatch.setattr(kernels, "SMALLEST", 0)
    monkeypatch.setattr(kernels, "has_gpu", lambda: True)
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    kernels._works.cache_clear()
    yield calls
    kernels._works.cache_clear()


def on_gpu(fn):
    return jaxrewrite.transform(fn, rules=gpu_kernels, materialise="forbid")


CASES = [
    (kind, is_transposed, rows)
    for kind in KINDS
    for is_transposed in (False, True)
    for rows in (1, 3, 7, 16)
]
IN_SHORT = [("int4", True, 7), ("int8", False, 1)]


@pytest.mark.parametrize(
    "kind, is_transposed, rows",
    [pytest.param(*c, marks=[] if c in IN_SHORT else pytest.mark.slow) for c in CASES],
)
@pytest.mark.parametrize(
    "dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)]
)
def test_against_float64(kind, is_transposed, rows, dtype):
    shape = (192, 160) if is_transposed else (160, 192)
    v = weight(kind, shape, int(is_transposed), dtype)
    x = normal(rows, 160, dtype=dtype, seed=1)
    got = interpreted(v, x, is_transposed)
    dense = wide(v.astype("float32")) if dtype == "bfloat16" else wide(v)
    want = wide(x) @ (dense.T if is_transposed else dense)
    assert got.dtype == dtype
    bound = {"float32": 2e-5, "bfloat16": 2e-2}[dtype]
    np.testing.assert_allclose(wide(got), want, atol=bound * abs(want).max(), rtol=bound)


def test_each_code_of_a_byte_has_the_scale_of_its_column():
    v, x = weight("int4", (32, 64)), normal(1, 32, seed=1)
    np.testing.assert_allclose(interpreted(v, x, False), wide(x) @ wide(v), atol=1e-4)


@pytest.mark.parametrize("is_transposed", [False, True])
def test_codes_that_are_looked_up(is_transposed):
    """The numbers are those of the long run; here is a program, which is quicker."""
    block = (1, 32) if is_transposed else (32, 1)
    v = jax.eval_shape(lambda w: KINDS["nf4"](w, block), jnp.zeros((64, 64)))
    product = functools.partial(interpreted, is_transposed=is_transposed)
    got = jax.eval_shape(product, v, jax.ShapeDtypeStruct((3, 64), "float32"))
    assert (got.shape, got.dtype) == ((3, 64), "float32")


def on_wide_arrays(fn):
    return lambda *args: fn(*(a.astype("float64") for a in jaxrewrite.materialise(args)))


def loss(v, x):
    return (jnp.tanh(x @ v) ** 2).sum()


def floating(tree):
    return [x for x in jax.tree.leaves(tree) if x.dtype != jax.dtypes.float0]


PROGRAMS = {
    "grad": lambda of, v, x: floating(jax.grad(of(loss), (0, 1), allow_int=True)(v, x)),
    "jvp": lambda of, v, x: jax.jvp(lambda x: of(jnp.matmul)(x, v), (x,), (x,)),
    "remat": lambda of, v, x: jax.grad(of(jax.checkpoint(loss)), 1)(v, x),
    "rows of a batch": lambda of, v, x: jax.vmap(of(jnp.matmul), (0, None))(x, v),
    "gradient of a batch": lambda of, v, x: jax.grad(
        lambda x: (jax.vmap(of(jnp.matmul), (0, None))(x, v) ** 2).sum()
    )(x),
    "nested batches": lambda of, v, x: jax.vmap(
        jax.vmap(of(jnp.matmul), (0, None)), (0, None)
    )(x[:, None], v),
    "batch within": lambda of, v, x: of(lambda x, v: jax.vmap(lambda x: x @ v)(x))(x, v),
    "large batch": lambda of, v, x: jax.vmap(of(jnp.matmul), (0, None))(
        jnp.stack([x] * 7), v
    ),
    "batch of weights": lambda of, v, x: jax.vmap(of(jnp.matmul), (None, 0))(
        x, jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), v)
    ),
    "scan": lambda of, v, x: of(
        lambda v, x: lax.scan(lambda x, _: (x @ v / 8, x.sum()), x, length=2)
    )(v, x),
    "adapter": lambda of, v, x: of(jnp.matmul)(x, Lora(v, x.T[:, :2], x[:2])),
    "transposed": lambda of, v, x: of(lambda v, x: v.T @ x.T)(v, x),
    "precise": lambda of, v, x: of(lambda v, x: jnp.matmul(x, v, precision="highest"))(
        v, x
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nf4", "int4"])
def test_in_programs(anywhere, kind):
    """Against the same programs on dense arrays of float64."""
    v, x = weight(kind, (64, 64)), normal(3, 64, seed=1)
    programs = lambda of, v, x: {name: fn(of, v, x) for name, fn in PROGRAMS.items()}
    got = jax.jit(functools.partial(programs, on_gpu))(v, x)
    assert anywhere
    with jax.enable_x64(True):
        want = programs(on_wide_arrays, v, jnp.asarray(x, "float64"))
    for name in PROGRAMS:
        pairs = zip(jax.tree.leaves(got[name]), jax.tree.leaves(want[name]), strict=True)
        for g, w in (map(np.asarray, pair) for pair in pairs):
            np.testing.assert_allclose(
                g, w, rtol=2e-4, atol=2e-4 * max(1, abs(w).max()), err_msg=name
            )


@pytest.mark.filterwarnings("ignore:Quantised. this product sums:UserWarning")
def test_what_does_not_fit_is_multiplied_as_before(anywhere):
    x = jax.ShapeDtypeStruct((3, 64), "float32")
    quantised = functools.partial(Quantised.quantise, bits=4, block=32)
    odd = [
        (quantised, (64, 60), x),
        (functools.partial(quantised, block=4), (64, 64), x),
        (functools.partial(quantised, block=None, axis=1), (64, 64), x),  # XLA fuses it.
        (functools.partial(quantised, symmetric=False), (64, 64), x),
        (functools.partial(quantised, activations="dynamic"), (64, 64), x),
        (functools.partial(quantised, block=(1, 32, 1)), (2, 64, 64), x),
        (quantised, (64, 64), x.update(shape=(17, 64))),
        (quantised, (64, 64), x.update(shape=(0, 64))),
        (quantised, (64, 64), x.update(dtype="int32")),
        (functools.partial(quantised, block=None), (0, 64), x.update(shape=(3, 0))),
    ]
    for make, shape, x in odd:
        v = jax.eval_shape(make, jax.ShapeDtypeStruct(shape, "float32"))
        jax.eval_shape(on_gpu(jnp.matmul), x, v)
        assert not anywhere


def unknown(*args):
    raise NotImplementedError("no such kernel")


def wrong(v, x, terms, plan):
    return jnp.zeros((len(x), v.shape[1]))


@pytest.mark.parametrize("broken, why", [(unknown, "no such kernel"), (wrong, "numbers")])
def test_a_kernel_that_does_not_work_is_no_error(anywhere, monkeypatch, broken, why):
    v, x = weight("nf4", (64, 64)), normal(3, 64)
    monkeypatch.setattr(kernels, "product", broken)
    with pytest.warns(RuntimeWarning, match=why):
        got = on_gpu(jnp.matmul)(x, v)
    np.testing.assert_allclose(got, wide(x) @ wide(v), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("kind, parts", [(NF4, 2), (Quantised, 2), (Quantised, 1)])
def test_a_kernel_is_tried_on_a_product_that_it_fits(
    anywhere, monkeypatch, kind, parts, is_transposed
):
    plans = []

    def dense(v, x, terms, plan):
        plans.append((plan.is_transposed, plan.parts))
        return x @ (v.materialise().T if is_transposed else v.materialise())

    monkeypatch.setattr(kernels, "product", dense)
    assert kernels._works(kind, True, is_transposed, parts, jnp.dtype("float32"))
    assert plans == [(is_transposed, parts)]


def test_programs_for_a_cpu_are_as_they_were():
    v, x = jax.eval_shape(NF4.quantise, jnp.zeros((2048, 2048))), jnp.zeros((1, 2048))
    texts = [
        jax.jit(jaxrewrite.transform(lambda v, x: x @ v, rules=rules)).lower(v, x).as_text()
        for rules in (None, gpu_kernels)
    ]
    assert texts[0] == texts[1]


def lowered_for_cuda(fn, *operands):
    context = contextlib.nullcontext()
    if _compat.JAX_GE_0_11_0:
        # The lowering asks for the kind of the device.
        device = jax.sharding.AbstractDevice("NVIDIA H100", None, "cuda")
        mesh = jax.sharding.AbstractMesh((), (), abstract_device=device)
        context = jax.sharding.use_abstract_mesh(mesh)
    call = jax.export.DisabledSafetyCheck.custom_call("__gpu$xla.gpu.triton")
    with context:
        exported = jax.export.export(
            jax.jit(fn), platforms=["cuda"], disabled_checks=[call]
        )
        return exported(*operands).mlir_module()


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend:DeprecationWarning")
@pytest.mark.parametrize(
    "kind, is_transposed, rows",
    [pytest.param(*c, marks=[] if c in IN_SHORT else pytest.mark.slow) for c in CASES],
)
def test_lowering_for_a_gpu(kind, is_transposed, rows):
    v, x = weight(kind, (256, 256), int(is_transposed)), normal(rows, 256)
    terms = terms_of(v, x, is_transposed)
    plan = kernels.plan_for(v, x, terms)
    text = lowered_for_cuda(lambda v, x: kernels.product(v, x, terms, plan), v, x)
    assert text.count("__gpu$xla.gpu.triton") == 1 and "quantised_product" in text


@pytest.mark.slow
def test_pallas_is_not_loaded_on_a_cpu():
    program = """
import sys, jax.numpy as jnp, jaxrewrite
from jaxrewrite.values import NF4, gpu_kernels
v = NF4.quantise(jnp.ones((2048, 2048)))
jaxrewrite.transform(lambda v, x: x @ v, rules=gpu_kernels)(v, jnp.ones((1, 2048)))
assert "jax.experimental.pallas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
