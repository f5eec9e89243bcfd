"""Programs of which a part has 64 bits, where the rest, and the session, have 32."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import often
from oracle import make
from reference import CASES

import jaxrewrite
from jaxrewrite import ArrayValue, register, testing, values
from jaxrewrite.values import Banded


def wide(fn):
    """A function as a part of a program that has 64 bits."""

    @functools.wraps(fn)
    def region(*args):
        with jax.enable_x64(True):
            return fn(*args)

    return region


def third(n):
    return jnp.arange(float(n)) / 3


PROGRAMS = {
    "a cast": lambda v: jnp.sin(v.astype("float64") * 1e-9) * 1e9,
    "a product": lambda v: v @ third(v.shape[1]),
    "from the left": lambda v: third(v.shape[0]) @ v,
    "a sum": lambda v: v + third(v.shape[1]),
    "row sums": lambda v: v.astype("float64").sum(1) / 3,
    "back": lambda v: (v.astype("float64") @ third(v.shape[1])).astype("float32"),
    "a loop": lambda v: jax.lax.fori_loop(
        0, 3, lambda i, c: c * (1 + 1e-10), v.astype("float64")
    ),
    "a branch": lambda v: jax.lax.cond(
        v.sum() > 0, lambda v: v.astype("float64") / 3, lambda v: v.astype("float64"), v
    ),
    "a batch": lambda v: jax.vmap(lambda x: v @ x)(jnp.full((2, v.shape[1]), 1 / 3)),
    "integers": lambda v: (v[0, 0] * 0).astype("int64") + 2**40,
}


# JAX lowers primitives of these in the mode around the whole of a compiled program.
WITH_THE_SESSION = {"sparse"}


@pytest.mark.parametrize(
    "name", often(CASES, ("diagonal", "low_rank", "lora", "quantised", "zero", "sum"))
)
def test_a_part_of_a_program_has_its_own_digits(name, bulk, xla):
    v = make(name)
    every = lambda v: {name: wide(fn)(v) for name, fn in PROGRAMS.items()}
    want = every(jaxrewrite.materialise(v))
    implicit = jaxrewrite.transform(every, materialise="allow")
    compiled = jax.jit(implicit)
    for run in (implicit, wide(compiled) if name in WITH_THE_SESSION else compiled):
        jax.tree.map(assert_digits, jaxrewrite.materialise(run(v)), want)


@pytest.mark.parametrize("name", ["symmetric", "kronecker_square", "block_diagonal_square"])
def test_determinants_in_a_part_of_a_compiled_program(name, xla):
    v = make(name, shape=(4, 4))
    sign_and_log = wide(lambda v: jnp.linalg.slogdet(v.astype("float64")))
    got = jax.jit(jaxrewrite.transform(sign_and_log, materialise="forbid"))(v)
    jax.tree.map(assert_digits, got, sign_and_log(v.materialise()))


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64:UserWarning")
@pytest.mark.parametrize(
    "fn", [jnp.linalg.solve, lambda v, b: jnp.linalg.det(v)], ids=["solve", "det"]
)
def test_banded_solves_in_a_part_of_a_compiled_program_raise_the_error_of_jax(fn, xla):
    """docs/sharp_bits.rst says so, and that the mode around the program is the way out."""
    v = Banded.from_dense(4 * jnp.eye(3) + jnp.eye(3, k=1) + jnp.eye(3, k=-1), 1, 1)
    program = wide(lambda v: fn(v.astype("float64"), third(3)))
    implicit = jaxrewrite.transform(program, materialise="forbid")
    with pytest.raises(
        TypeError, match="reduce operand dtypes should match .* initial value"
    ):
        jax.jit(implicit)(v)
    assert_digits(wide(jax.jit(implicit))(v), program(v.materialise()))


def assert_digits(got, want):
    assert got.dtype == want.dtype
    # The leaves of a value and its array are rounded to 32 bits before.
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-5, atol=1e-6)


def test_no_digit_is_lost_between_a_cast_and_another(bulk):
    @wide
    def digits(v):
        v = v.astype("float64")
        return ((v - v * (1 + 1e-10)) * 1e10).astype("float32")

    v = values.Diagonal(jnp.array([1.0, 2.0, -3.0]))
    for fn in (digits, jax.jit(digits)):
        got = jaxrewrite.materialise(jaxrewrite.transform(fn, materialise="forbid")(v))
        np.testing.assert_allclose(got, -v.materialise(), rtol=1e-5)


class Thirds(ArrayValue):
    """An array over three."""

    x: jax.Array

    def materialise(self):
        return self.x / 3


@register("mul")
def _(v: Thirds, y: jax.Array, **params):
    return Thirds(v.x * y + jnp.zeros(v.x.shape))


def test_what_a_rule_makes_has_the_bits_of_the_program():
    v, y = Thirds(jnp.arange(3.0)), 1 + 1e-12
    double = wide(lambda v: v.astype("float64") * jnp.float64(y) - v.astype("float64"))
    got = jaxrewrite.transform(double, materialise="allow")(v)
    testing.assert_same(got, double(v.materialise()))
    assert got.dtype == "float64"
