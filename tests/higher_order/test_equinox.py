"""Loops with buffers, and errors, of Equinox on values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import often
from oracle import forbid
from reference.own import Shared

import jaxrewrite
from jaxrewrite.values import Diagonal, LowRank, Quantised, Tagged, Unitful, Units


eqx = pytest.importorskip("equinox")
eqxi = pytest.importorskip("equinox.internal")


choice = pytest.importorskip("equinox.internal._loop.common")._select_if_vmap


def dense(v):
    return v.array if isinstance(v, Unitful) else jaxrewrite.materialise(v)


DIAGONAL = Diagonal(jnp.arange(1.0, 4))
METRES = Unitful(jnp.arange(6.0).reshape(2, 3), "m")


def assert_equal_metres(got, want):
    assert got.units == want.units
    np.testing.assert_array_equal(got.array, want.array)


def repeated(kind, fill=0.0):
    def fn(x):
        def turn(carry):
            i, y, buffer = carry
            return i + 1, 2.0 * y, buffer.at[i].set(y)

        carry = 0, x, jnp.full((4, *jnp.shape(x)), fill, "float32")
        loop = {"max_steps": 4, "buffers": lambda carry: carry[2], "kind": kind}
        return eqxi.while_loop(lambda carry: carry[0] < 3, turn, carry, **loop)[2]

    return fn


# A buffer of a checkpointed loop goes through a custom rule, as an array.
LOOPS = ["checkpointed m", "bounded diagonal", "lax diagonal", "bounded m", "lax m"]


@pytest.mark.parametrize("case", often(LOOPS, [*LOOPS[:2], "lax m"]))
def test_an_item_of_a_buffer_is_set(case):
    kind, name = case.split()
    fn, x = repeated(kind), {"m": METRES, "diagonal": DIAGONAL}[name]
    stack = forbid(fn)(x)
    assert type(stack) is type(x)
    np.testing.assert_array_equal(dense(stack), fn(dense(x)))
    several = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), x)
    stack = forbid(jax.vmap(fn))(several)
    assert type(stack) is type(x)
    np.testing.assert_array_equal(dense(stack), jax.vmap(fn)(dense(several)))


def late(v, start):
    """The first item is zeros that no value is known of yet."""

    def turn(carry):
        i, item, buffer = carry
        return i + 1, v, buffer.at[i].set(item)

    carry = start, jnp.zeros((3, 3)), jnp.zeros((4, 3, 3))
    loop = {"max_steps": 4, "buffers": lambda carry: carry[2], "kind": "lax"}
    return eqxi.while_loop(lambda carry: carry[0] < 3, turn, carry, **loop)[2]


def test_zeros_are_set_before_the_first_value():
    stack = forbid(late)(DIAGONAL, 0)
    assert isinstance(stack, Diagonal)
    np.testing.assert_array_equal(dense(stack), late(dense(DIAGONAL), 0))


none = lambda: jnp.zeros((2, 3))
ZEROS = {
    "choice": lambda: choice(jnp.array(True), none(), none(), False),
    "identity": lambda: eqxi.nonbatchable(eqxi.nondifferentiable_backward(none())),
    "buffer": lambda: repeated("lax")(none())[1],
    "buffers": lambda: jax.vmap(repeated("lax"))(jnp.zeros((2, 2, 3)))[1, 2],
}


@pytest.mark.parametrize("name", ZEROS)
def test_zeros_that_equinox_hands_on_have_any_units(name):
    assert_equal_metres(forbid(lambda x: ZEROS[name]() + x)(METRES), METRES)


def called(chosen):
    """Zeros that leave a call beside a value have any units."""

    def scaled(x, s):
        zeros, x = jax.jit(lambda x: (none(), x))(x)
        return s * chosen(zeros) + x

    return scaled


def carried(x, s):
    """The search for the structure of the carry shows the zeros to the choice."""

    def turn(carry, _):
        zeros, total = carry
        zeros = choice(jnp.array(True), zeros, zeros, False)
        return (zeros, total + s * zeros), None

    return jax.lax.scan(turn, (jnp.zeros(x.shape), x), length=2)[0][1]


CHOICES = {
    "the other is written": lambda zeros: choice(jnp.array(True), zeros, none(), False),
    "the first is written": lambda zeros: choice(jnp.array(True), none(), zeros, False),
    "both have any units": lambda zeros: choice(jnp.array(True), zeros, zeros, False),
}


@pytest.mark.parametrize("name", [*CHOICES, "carry"])
def test_a_choice_of_zeros_of_any_units_has_any_units(name):
    scaled = carried if name == "carry" else called(CHOICES[name])
    assert_equal_metres(forbid(scaled)(METRES, Unitful(jnp.array(2.0), "s")), METRES)


@pytest.mark.parametrize("name", ["choice", "buffer"])
def test_other_numbers_have_none(name):
    number = {
        "choice": lambda x: choice(jnp.array(True), none(), 1 + none(), False),
        "buffer": repeated("lax", 1.0),
    }
    with pytest.raises(ValueError, match="equal units; got 1 and m"):
        forbid(lambda x: number[name](none())[0] + x)(METRES)


def filled(buffer, item, place):
    """Each turn sets the same item."""
    turn = lambda carry: (carry[0] + 1, carry[1].at[place].set(item))
    loop = {"max_steps": 4, "buffers": lambda carry: carry[1], "kind": "lax"}
    return eqxi.while_loop(lambda carry: carry[0] < 3, turn, (0, buffer), **loop)[1]


def test_an_item_is_dense_in_a_buffer_of_numbers_and_at_a_place_with_tags():
    allow = lambda fn: jaxrewrite.transform(fn, materialise="allow")
    fn = repeated("lax", fill=1.0)
    np.testing.assert_array_equal(allow(fn)(DIAGONAL), fn(dense(DIAGONAL)))
    buffer, place = jnp.zeros((4, 3, 3)), Tagged(jnp.int32(1), "place")
    for fn in (late, lambda v, place: filled(buffer, v, place)):
        got = jaxrewrite.materialise(allow(fn)(DIAGONAL, place))
        np.testing.assert_array_equal(got, fn(dense(DIAGONAL), 1))


@pytest.mark.slow
def test_gradients_through_buffers():
    fn = repeated("checkpointed", jnp.inf)
    area = lambda x: jnp.sum(fn(x)[:3] ** 2)
    gradient = forbid(jax.grad(area))(METRES)
    assert gradient.units == Units("m")
    np.testing.assert_allclose(gradient.array, jax.grad(area)(METRES.array), rtol=1e-6)


def assert_gradients(area, operands):
    """Those of an area have the numbers without units, and its units over each operand's."""
    places = tuple(range(len(operands)))
    gradients = forbid(jax.grad(area, places))(*operands)
    want = jax.grad(area, places)(*map(dense, operands))
    for gradient, numbers, operand in zip(gradients, want, operands, strict=True):
        assert gradient.units == Units("m^2") / operand.units
        np.testing.assert_allclose(gradient.array, numbers, rtol=1e-5)


# A frequency, a place, a velocity and a step in time.
SPRING = (
    Unitful(jnp.array(2.0), "1/s"),
    Unitful(jnp.array([1.0, 2.0]), "m"),
    Unitful(jnp.array([1.0, -1.0]), "m/s"),
    Unitful(jnp.array(0.1), "s"),
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["checkpointed", "bounded"])
def test_gradients_through_stages_of_which_nothing_reads_the_slopes(kind):
    """The last stage is the result. So the cotangents of the slopes are zeros from the start."""

    def area(frequency, place, velocity, dt):
        slopes_of = lambda place, velocity: (velocity, -(frequency**2) * place)

        def stage(carry):
            j, _, slopes = carry
            starts = zip((place, velocity), slopes, strict=True)
            state = tuple(x + dt * slope[j] for x, slope in starts)
            new = zip(slopes, slopes_of(*state), strict=True)
            return j + 1, state, tuple(slope.at[j + 1].set(x) for slope, x in new)

        first = slopes_of(place, velocity)
        slopes = tuple(jnp.zeros((3, *x.shape)).at[0].set(x) for x in first)
        carry = 0, (place, velocity), slopes
        loop = {"max_steps": 2, "buffers": lambda carry: carry[2], "kind": kind}
        _, state, _ = eqxi.while_loop(lambda carry: carry[0] < 2, stage, carry, **loop)
        return jnp.sum(state[0] ** 2)

    assert_gradients(area, SPRING)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["Tsit5", "Dopri5", "Dopri8", "Bosh3", "Heun"])
def test_gradients_of_solves_by_diffrax(solver):
    """All but the last solver begin a step with the slope at the end of the step before."""
    diffrax = pytest.importorskip("diffrax")

    def area(frequency, place, velocity, dt):
        term = diffrax.ODETerm(lambda t, y, _: (y[1], -(frequency**2) * y[0]))
        start, method = (place, velocity), getattr(diffrax, solver)()
        solution = diffrax.diffeqsolve(term, method, 0 * dt, 4 * dt, dt, start)
        return jnp.sum(solution.ys[0] ** 2)

    assert_gradients(area, SPRING)


def test_a_place_that_is_no_item():
    def corner(x):
        carry = 0, jnp.zeros((4, 2, 3))

        def turn(carry):
            i, buffer = carry
            return i + 1, buffer.at[i, :, :2].set(x[:, :2])

        return eqxi.while_loop(
            lambda c: c[0] < 3, turn, carry, max_steps=4, buffers=lambda c: c[1], kind="lax"
        )[1]

    with pytest.raises(ValueError, match="maybe_set needs operands without units; got m"):
        forbid(corner)(METRES)


def test_a_buffer_that_has_no_slices_is_dense():
    scale, item = jnp.float32(3), jnp.arange(2.0)
    fn = jaxrewrite.transform(filled, materialise="allow")
    buffer = Shared(jnp.ones((4, 2)), scale)
    want = filled(buffer.materialise(), item, 1)
    np.testing.assert_array_equal(fn(buffer, item, 1), want)
    several = lambda buffers: jax.vmap(lambda buffer: filled(buffer, item, 1))(buffers)
    buffers = Shared(jnp.ones((2, 4, 2)), scale)
    got = jaxrewrite.transform(several, materialise="allow")(buffers)
    np.testing.assert_array_equal(got, several(buffers.materialise()))


RAISING = {
    "diagonal": DIAGONAL,
    "m": METRES,
    "low rank": LowRank(jnp.ones((3, 1)), jnp.ones((1, 4))),
    "8 bits": Quantised.quantise(jnp.ones((4, 4))),
}


@pytest.mark.parametrize("name", often(RAISING, ["low rank"]))
def test_an_error_leaves_a_value_alone(name):
    """The branch that raises has no result, so the other one says the structure."""
    v = RAISING[name]
    fn = forbid(lambda v, p: eqx.error_if(v, p, "too bad"))
    for run in (fn, eqx.filter_jit(fn)):
        same = run(v, jnp.array(False))
        assert jax.tree.structure(same) == jax.tree.structure(v)
        jax.tree.map(np.testing.assert_array_equal, same, v)
        with pytest.raises(Exception, match="too bad"):
            jax.block_until_ready(jax.tree.leaves(run(v, jnp.array(True))))


def test_times_have_units_in_what_solvers_use():
    """The numbers beside a time, and marks of what has no derivative or batch."""

    def around(t):
        t = eqxi.nondifferentiable_backward(eqxi.nonbatchable(t))
        return eqxi.prevbefore(t), eqxi.nextafter(t)

    times = Unitful(jnp.array([0.0, 2.0]), "s")
    programs = {
        "one": lambda t: around(t[1]),
        "mapped": jax.vmap(lambda t: (eqxi.prevbefore(t), eqxi.nextafter(t))),
        "derivative": jax.grad(lambda t: eqxi.nextafter(t).sum() ** 2),
    }
    for name, fn in programs.items():
        got, want = forbid(fn)(times), fn(times.array)
        for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_array_equal(x, y, err_msg=name)
        units = [x.units for x in (got if isinstance(got, tuple) else (got,))]
        assert units == [Units("s")] * len(units)
