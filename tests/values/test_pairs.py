"""Every ordered pair of ready value types, added, multiplied, and as a matrix product.

Each stays implicit or becomes dense by the policy. Types that are never dense refuse
operations without a meaning. No pair is ambiguous.
"""

import functools
import operator
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import every
from jax import lax
from oracle import make
from reference import CASES

import jaxrewrite
from jaxrewrite.testing import assert_same
from jaxrewrite.values import Constant, Rescaled, Zero


OPERATORS = {"add": operator.add, "mul": operator.mul, "matmul": operator.matmul}


@functools.cache
def values(seed):
    """One of each type, compiled together, which takes less time than one by one."""
    rng = np.random.default_rng(seed)
    make = lambda: {name: c.value(rng, "float32", (4, 4)) for name, c in CASES.items()}
    return jax.jit(make)()


def pair(left, right):
    return values(0)[left], values(1)[right]


def is_implicit(fn, *operands):
    try:
        jaxrewrite.make_jaxpr(fn, materialise="forbid")(*operands)
    except jaxrewrite.MaterialisationError:
        return False
    return True


# The errors of types with named axes, for names that do not fit.
REFUSED = "aligns an axis named|gives two axes the same name"


def names_fit(fn, *operands):
    """Whether a pair has an answer. Only the errors of `REFUSED` are allowed."""
    try:
        jaxrewrite.make_jaxpr(fn, materialise="allow")(*operands)
    except ValueError as error:
        if not re.search(REFUSED, str(error)):
            raise
        return False
    return True


@pytest.mark.parametrize("left", every(4, CASES))
def test_each_pair_has_an_answer(left, bulk):
    """The shape and dtype of each answer are checked by the library itself."""
    for right in CASES:
        for fn in OPERATORS.values():
            answered = names_fit(fn, *pair(left, right))
            assert answered or "Named" in left and "Named" in right


@pytest.mark.slow
@pytest.mark.parametrize("left", CASES)
def test_each_answer_is_right(left, bulk):
    def everything(v, ws):
        return {
            (name, right): fn(v, w)
            for right, w in ws.items()
            for name, fn in OPERATORS.items()
            if not ("Named" in left and "Named" in right)  # those may be refused
        }

    implicit = jaxrewrite.transform(everything, materialise="allow")
    operands = values(0)[left], values(1)
    got = jax.jit(lambda v, ws: jaxrewrite.materialise(implicit(v, ws)))(*operands)
    dense = jaxrewrite.materialise(operands)
    assert_same(got, jax.jit(everything)(*dense), 1e-4)


# Of any two of these types the sum and the product stay implicit.
CLOSED = ("zero", "scaled_diagonal", "diagonal", "identity", "product", "sum")


@pytest.mark.parametrize("name", ["add", "matmul"])
def test_structure_survives(name):
    for left in CLOSED:
        for right in CLOSED:
            assert is_implicit(OPERATORS[name], *pair(left, right)), (left, right)


def test_products_of_two_dtypes_have_an_answer(bulk):
    """Where JAX takes two dtypes, rules that multiply leaves decline."""
    halves = [make(name, "bfloat16", (4, 4)) for name in (*CLOSED, "low_rank", "sparse")]
    product = lambda x, y: lax.dot(x, y, preferred_element_type="float32")
    for left in (*CLOSED, "low_rank", "sparse"):
        for other in halves:
            for pair in ((values(0)[left], other), (other, values(0)[left])):
                jaxrewrite.make_jaxpr(product, materialise="allow")(*pair)


def test_a_product_with_a_constant_has_the_type_of_one_with_its_number():
    number = jax.numpy.float32(2)

    def type_of_product(x, v):
        product = jaxrewrite.transform(operator.mul, materialise="allow")
        return type(jax.eval_shape(product, x, v))

    for name, v in values(0).items():
        constant = Constant(number, v.shape)
        assert type_of_product(constant, v) is type_of_product(number, v), name


# Dtypes that no operator promotes beside bfloat16, or that JAX multiplies to another one.
BESIDE = ("float16", "float8_e4m3fn", "float8_e5m2", "int8", "float32")


@pytest.mark.parametrize(
    "name", every(8, [name for name, case in CASES.items() if "bfloat16" in case.dtypes])
)
def test_products_of_two_dtypes(name, bulk):
    """`jax.lax.dot_general` takes them as they are, and with the dtype that is wanted."""
    rng = np.random.default_rng(0)
    v = CASES[name].value(rng, "bfloat16", (4, 4))
    xs = [jnp.asarray(rng.uniform(0.5, 1, (4, 4)), dtype) for dtype in BESIDE]
    wanted = functools.partial(
        lax.dot_general,
        dimension_numbers=(((1,), (0,)), ((), ())),
        preferred_element_type=jnp.float32,
    )

    def products(v, xs):
        return [[lax.dot(x, v), lax.dot(v, x), wanted(x, v), wanted(v, x)] for x in xs]

    got = jax.jit(jaxrewrite.transform(products, materialise="allow"))(v, xs)
    assert_same(got, jax.jit(products)(jaxrewrite.materialise(v), xs), 0.05)


@pytest.mark.parametrize("name", ["diagonal", "kronecker", "scaled", "sum", "symmetric"])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_products_of_floats_of_eight_bits(name, dtype):
    """JAX promotes them to no other dtype."""
    v = CASES[name].value(np.random.default_rng(0), "float32", (4, 4))
    x = jnp.linspace(0.5, 1, 4).astype(dtype)
    dot = functools.partial(jnp.dot, preferred_element_type=jnp.float32)
    product = lambda v: (dot(v.astype(dtype), x), dot(x, v.astype(dtype)))
    got = jaxrewrite.transform(product, materialise="allow")(v)
    assert_same(got, product(jaxrewrite.materialise(v)), 0.15)


def test_an_axis_of_size_one_meets_a_value_of_another_kind():
    """Which of the two has more matrices, and which repeats its own fields, is no matter."""
    make_one = lambda name: CASES[name].value(np.random.default_rng(0), "float32", (2, 2))
    bias = jnp.arange(4.0).reshape(2, 1, 2)
    many = [
        Constant(jnp.float32(2), (2, 1, 2)),
        Rescaled(bias, jnp.ones((2, 1, 1))),
        Zero((2, 1, 2)),
    ]
    for name in ("lora", "low_rank", "diagonal", "quantised", "sum"):
        v = make_one(name)
        for other in many:
            for fn in (operator.add, operator.sub, operator.mul):
                for pair in ((v, other), (other, v)):
                    got = jaxrewrite.transform(fn, materialise="allow")(*pair)
                    want = fn(*map(jaxrewrite.materialise, pair))
                    assert_same(got, want, 1e-5)
