"""Every ready value type against the oracle: the results on the dense array."""

import html
import re

import jax
import jax.numpy as jnp
import pytest
from choose import every, often
from functions import FUNCTIONS
from oracle import everything, floating, make, materialised, on_arrays, programs
from reference import CASES

import jaxrewrite
from jaxrewrite._display import brief
from jaxrewrite.testing import assert_same
from jaxrewrite.values import nbytes


TOLERANCE = {"float32": 2e-4, "complex64": 2e-4, "bfloat16": 0.1, "float64": 1e-10}


def check_forward(name, dtype, shape=(4, 6)):
    value = make(name, dtype, shape)
    dense = jax.jit(jaxrewrite.materialise)(value)
    assert (dense.shape, dense.dtype) == (value.shape, value.dtype) and dense.ndim == 2
    fns = programs(dtype, dense.shape)
    want = on_arrays(everything, tuple(fns))(dense)
    assert_same(jax.jit(materialised(everything(fns)))(value), want, TOLERANCE[dtype])


# Of the ready types one of ten: the others' rules are met by tests of their own.
@pytest.mark.parametrize("name", every(10, CASES))
def test_forward(name, bulk):
    check_forward(name, "float32")


@pytest.mark.parametrize("name", every(2, CASES))
def test_each_program_has_an_answer(name, bulk):
    """Of the right shape and dtype, which the library checks. Nothing is compiled."""
    value = make(name, "float32", (3, 3))
    fns = everything(programs("float32", value.shape))
    jaxrewrite.make_jaxpr(fns, materialise="allow")(value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype"),
    [(n, d) for n, c in CASES.items() for d in c.dtypes if d != "float32"],
)
def test_dtypes(name, dtype, bulk):
    with jax.enable_x64(dtype == "float64"):
        check_forward(name, dtype)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        (name, shape)
        for name, case in CASES.items()
        for shape in [(1, 1), (1, 5), (5, 1), (6, 4), (0, 4), (4, 0)]
        if case.empty or 0 not in shape
    ],
    ids=str,
)
def test_shapes(name, shape, bulk):
    check_forward(name, "float32", shape)


SMOOTH = [
    *("neg", "sin", "tanh", "gelu", "integer_pow", "add", "radd", "mul", "mul scalar"),
    *("mul self", "sub row", "div", "sum", "sum rows", "mean", "cumsum", "softmax"),
    *("matmul", "rmatmul", "matmul transposed", "matmul self", "einsum", "outer"),
    *("batched", "transpose", "reshape", "broadcast", "concatenate", "pad", "slice"),
    *("gather", "jit", "scan", "cond", "remat", "vmap"),
]


def total(fns):
    """A scalar that depends on every result."""

    def scalar(x):
        results = jax.tree.leaves(jaxrewrite.materialise(everything(fns)(x)))
        return sum(jnp.sin(r).sum() for r in results)

    return scalar


def slope(fns):
    return jax.grad(total(fns))


def chosen(names):
    return {name: FUNCTIONS[name] for name in names}


@pytest.mark.parametrize("name", often(CASES, ("nf4",)))
def test_gradient(name, bulk):
    """The gradient through each program, with respect to the leaves."""
    leaves, filled = floating(make(name))
    if not leaves:
        pytest.skip("no leaf has a derivative")
    scalar = total(chosen(SMOOTH))
    got = jax.jit(jax.grad(lambda xs: materialised(scalar)(filled(xs))))(leaves)
    # The chain rule in two parts, of which the longer one is compiled once for all types.
    dense = lambda xs: jaxrewrite.materialise(filled(xs))
    cotangent = on_arrays(slope, tuple(SMOOTH))(jax.jit(dense)(leaves))
    want = jax.jit(lambda xs, ct: jax.vjp(dense, xs)[1](ct)[0])(leaves, cotangent)
    assert_same(got, want, 5e-4)


@pytest.mark.parametrize("name", every(4, CASES, 1))
def test_modes_without_jit(name):
    """Eagerly, under JAX's own checks; the gradient inside; a scan over a stack."""
    value = make(name)
    dense = jaxrewrite.materialise(value)
    x = jnp.linspace(0, 1, 3 * dense.shape[0]).reshape(3, -1)
    assert_same(materialised(lambda v, x: x @ v)(value, x), x @ dense, 2e-4)
    inside = jax.grad(lambda x, v: jnp.sin(x @ v).sum())
    assert_same(materialised(inside)(x, value), inside(x, dense), 2e-4)


@pytest.mark.parametrize("name", every(3, CASES, 1))
def test_scan_over_a_stack(name, bulk):
    values = [make(name, seed=seed) for seed in range(3)]
    if len({jax.tree.structure(v) for v in values}) > 1:
        pytest.skip("its structure depends on the numbers")
    stack = jaxrewrite.stack(values)
    dense = jnp.stack([jaxrewrite.materialise(v) for v in values])
    x = jnp.linspace(0, 1, dense.shape[1])
    fn = lambda vs: jax.lax.scan(lambda c, v: (c + 1, (c * x) @ v), 0.5, vs)
    assert_same(jax.jit(materialised(fn))(stack), jax.jit(fn)(dense), 2e-4)


@pytest.mark.parametrize("name", every(2, CASES))
def test_what_is_shown_says_type_shape_dtype_and_bytes(name):
    value = make(name)
    summary, text = brief(value), repr(value)
    assert type(value).__name__ in summary and type(value).__name__ in text
    assert all(str(n) in summary for n in value.shape), summary
    assert "B" in summary, summary
    assert text == summary or f"dtype={value.dtype}" in text
    assert html.escape(text) in value._repr_html_()
    leaves = jax.tree.leaves(value)
    assert jax.tree.unflatten(jax.tree.structure(value), leaves).shape == value.shape


ASKED = (lambda v: v.shape, lambda v: v.dtype, lambda v: nbytes(v).dense)


@pytest.mark.filterwarnings("ignore:shape requires:DeprecationWarning")
@pytest.mark.parametrize("name", every(20, CASES, 13))
def test_values_without_some_of_their_arrays_say_so(name):
    """With None, as in a part of a pytree, or bare objects, as JAX puts them there."""
    v = make(name, CASES[name].dtypes[0])
    leaves, treedef = jax.tree.flatten(v)
    known = [ask(v) for ask in ASKED]
    for empty in (None, object()):
        for missing in (*range(len(leaves)), None):
            part = treedef.unflatten(
                empty if missing in (i, None) else leaf for i, leaf in enumerate(leaves)
            )
            for ask, answer in zip(ASKED, known, strict=True):
                try:
                    assert ask(part) == answer
                except TypeError as error:
                    assert re.search("lacks some of its arrays|bare objects", str(error))
            assert type(v).__name__ in repr(part)
    avals = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), v)
    assert (avals.shape, avals.dtype, nbytes(avals)) == (v.shape, v.dtype, nbytes(v))
