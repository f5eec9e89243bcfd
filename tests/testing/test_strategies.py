"""The strategies draw what the annotations say, and say what they do not."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array, Bool, Complex, Float, Int, Shaped

import jaxrewrite
from jaxrewrite.testing import strategies
from jaxrewrite.testing.strategies import Program, programs, values_of


class Many(jaxrewrite.ArrayValue):
    a: Float[Array, "n m"]
    b: Int[Array, "m 2"]
    c: Complex[Array, "*batch n"]
    d: Bool[Array, " n+1"]
    e: Shaped[Array, ""]
    f: Float[jax.Array, "_ #m"]
    name: str = jaxrewrite.field(static=True)
    rank: int = jaxrewrite.field(static=True, default=7)

    def materialise(self):
        return self.a


def some(strategy, examples=10):
    drawn = []

    @hypothesis.settings(max_examples=examples, database=None, deadline=None)
    @hypothesis.given(strategy)
    def collect(x):
        drawn.append(x)

    collect()
    return drawn


def test_fields_are_as_they_are_annotated():
    drawn = some(values_of(Many, sizes={"m": st.integers(2, 3)}, name="it"))
    assert {v.a.shape[1] for v in drawn} == {2, 3}
    for v in drawn:
        n, m = v.a.shape
        assert 1 <= n <= 4
        assert (v.b.shape, v.c.shape, v.d.shape, v.e.shape) == ((m, 2), (n,), (n + 1,), ())
        assert v.f.shape == (2, m)
        dtypes = [x.dtype for x in (v.a, v.b, v.c, v.d, v.e, v.f)]
        assert dtypes == ["float32", "int32", "complex64", "bool", "float32", "float32"]
        assert (v.name, v.rank) == ("it", 7)
    assert len({float(v.e) for v in drawn}) > 1


def test_fields_and_numbers_may_be_given():
    ones = st.just(1)
    v = some(values_of(Many, name=st.just("x"), a=jnp.zeros((2, 2)), elements=ones))[0]
    assert v.a.shape == (2, 2) and (v.e, v.name) == (1, "x")


class Bare(jaxrewrite.ArrayValue):
    x: jax.Array
    y: Float[Array, "n"] | None = None

    def materialise(self):
        return self.x


def test_what_is_not_said_is_asked_for():
    with pytest.raises(TypeError, match=r"Bare\.x does not say its shape.*x=strategies"):
        values_of(Bare)
    with pytest.raises(TypeError, match="Bare has no field z"):
        values_of(Bare, x=jnp.ones(2), z=1)
    with pytest.raises(TypeError, match="takes a class; got an instance of Bare"):
        values_of(Bare(jnp.ones(2)))
    assert some(values_of(Bare, x=strategies.arrays((3,), "bfloat16")), 1)[0].shape == (3,)

    class Halves(Bare):
        x: Half

    with pytest.raises(TypeError, match=r"no arrays for Halves\.x"):
        values_of(Halves)


class Half(Float[Array, "n"]):
    dtypes = ["float16"]


def test_a_program_is_what_its_repr_says():
    for program in some(programs(), 5):
        assert repr(eval(repr(program))) == repr(program)
    x = jnp.full((2, 2), 0.5)
    assert jnp.array_equal(Program([("add", 0, 0), ("transpose", 0, 0)])(x), x + x)
    assert jnp.array_equal(Program([("add", 0, 1)])(x, 3 * x), 4 * x)
    assert jnp.array_equal(Program([("add", 1, 1)])(x, 3 * x), 2 * x)


def test_a_program_can_be_jitted():
    program = Program([("add", 0, 1), (("jit", [("neg", 0, 0)]), 0, 0)])
    assert (jax.jit(program)(*[jnp.ones((2, 2))] * 2) == -2).all()


def test_each_operation_and_block_runs_on_any_size(bulk):
    from jaxrewrite.testing._random_programs import BLOCKS, OPERATIONS

    inner = (("add", 0, 1),)
    steps = [(name, 0, 1) for name in OPERATIONS]
    steps += [((name, inner), 0, 1) for name in BLOCKS]
    for n in (2, 5):
        out = jax.eval_shape(Program(steps), *[jnp.ones((n, n))] * 2)
        assert out.shape == (n, n)
