"""Values that annotate an array: units, names of axes, masks, bounds, tags; keys."""

import functools
import itertools
import pickle
from fractions import Fraction

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest
from choose import every
from hypothesis.extra.numpy import arrays
from jax import lax
from oracle import forbid
from reference import batched

import jaxrewrite
from jaxrewrite import values
from jaxrewrite.values import (
    Diagonal,
    Interval,
    Kronecker,
    Masked,
    Named,
    Product,
    Scaled,
    Sum,
    Tagged,
    Threefry,
    Tridiagonal,
    Unitful,
    Units,
    UnitsError,
)
from jaxrewrite.values._annotations.declaration import highest, lowest
from jaxrewrite.values._annotations.interval import _is_one_large, _rounding


pytestmark = pytest.mark.usefixtures("no_leak_checks")


def leaves(tree, cls):
    return jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, cls))


NUMBERS = jnp.asarray(np.random.default_rng(0).uniform(0.5, 2.0, (3, 4)), jnp.float32)


@jax.custom_jvp
def halved_square(x):
    return x * x


@halved_square.defjvp
def _(primals, tangents):
    """Half of the derivative, to tell it from JAX's own."""
    (x,), (t,) = primals, tangents
    return halved_square(x), x * t


@jax.custom_vjp
def tripled(x):
    """Only its derivative is."""
    return x


tripled.defvjp(lambda x: (x, None), lambda _, g: (3 * g,))


@jax.custom_batching.custom_vmap
def batched_twice(x):
    return x * 2


batched_twice.def_vmap(lambda size, batched, x: (x * 2, True))


@pytest.mark.parametrize("annotated", [Unitful, Tagged])
def test_what_is_annotated_may_change_in_loops_and_branches(annotated):
    def thrice(x):
        return lax.fori_loop(0, 2, lambda i, carry: carry + x, x)

    x = annotated(Kronecker(NUMBERS[:2, :2], NUMBERS[:2, 2:]), "m")
    y = annotated(Diagonal(NUMBERS[0]), "m")
    tripled = jaxrewrite.transform(thrice, materialise="allow")(x)
    branches = lambda which, x, y: lax.cond(which, lambda: x, lambda: y)
    chosen = jaxrewrite.transform(branches, materialise="allow")(jnp.array(True), x, y)
    kron = np.kron(NUMBERS[:2, :2], NUMBERS[:2, 2:])
    for result, expected in (tripled, 3 * kron), (chosen, kron):
        assert type(result) is annotated
        np.testing.assert_allclose(result.array, expected, 1e-6)


# --- units ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("m s^-2", "m s^-2"),
        ("kg*m/s^2", "kg m s^-2"),
        ("kg·m / s**2", "kg m s^-2"),
        ("m^(1/2) m^1/2", "m"),
        ("1/s", "s^-1"),
        ("m/s*s", "m"),
        ("", "1"),
        ("1", "1"),
        ("W/(m K)", "W K^-1 m^-1"),
        ("W / (m^2*K)^2 s", "W s K^-2 m^-4"),
        ("((m)/( s / kg ))**(1/2)", "kg^(1/2) m^(1/2) s^(-1/2)"),
        ("(1) m/(1/s)", "m s"),
    ],
)
def test_units_are_read(text, shown):
    assert str(Units(text)) == shown


@pytest.mark.parametrize(
    ("text", "at"),
    [
        *(("m s^", 2), ("2 m", 0), ("m^x", 0), ("m//s", 1), ("m^(1/2", 0), ("%", 0)),
        *(("s m^1e3", 2), ("m²", 0), ("m2", 0), ("m^(1/2)s", 0), ("m^1/0", 3), ("* m", 0)),
        *(("m *", 2), ("m^٣", 0), ("m^2^3", 0)),
        *(("m/(s", 1), ("m)", 1), ("m ()", 2), ("m/(s 2)", 5), ("m(s)", 0), ("(m)s", 0)),
    ],
)
def test_units_that_cannot_be_read(text, at):
    with pytest.raises(ValueError, match=f"Units: can't read .* at position {at}"):
        Units(text)


@pytest.mark.parametrize("name", ["m s", "m^2", "m2", "", "1", 1])
def test_names_of_units_are_words(name):
    with pytest.raises(ValueError, match="is not the name of a unit"):
        Units({name: 1})


@hypothesis.given(st.text("mskg_12² ^*()/·.-+e", max_size=8))
def test_units_that_are_read_are_shown_so_that_they_can_be_read(text):
    try:
        units = Units(text)
    except ValueError as error:
        assert repr(text.rstrip()) in str(error)
    else:
        assert Units(str(units)) == units


@pytest.mark.parametrize("dtype", ["int32", "int8", "uint8", "float32", "bfloat16"])
def test_conversions_of_integers_do_not_wrap(dtype):
    x = Unitful(jnp.array([5]).astype(dtype), "m")
    result = jnp.float32 if jnp.issubdtype(dtype, jnp.integer) else x.dtype
    for unit, number in {"nm": 5e9, "km": 0.005}.items():
        assert x.to(unit).dtype == result
        np.testing.assert_allclose(x.to(unit).array.astype(float), number, rtol=4e-3)
    assert x.to("m").dtype == x.dtype


some_units = st.dictionaries(
    st.sampled_from(["m", "kg", "s", "mol"]), st.fractions(-3, 3, max_denominator=4)
).map(Units)


def test_the_aval_is_that_of_the_array_in_jax():
    """NumPy has arrays in dtypes that JAX turns into narrower ones."""
    for array in (np.arange(3.0), np.arange(3), 2.0, Diagonal(jnp.arange(3.0))):
        value = Unitful(array, "m")
        assert (value.aval().shape, value.aval().dtype) == (value.shape, value.dtype)


@hypothesis.given(some_units, some_units)
def test_units_are_a_group(a, b):
    assert Units(str(a)) == a and hash(Units(str(a))) == hash(a)
    assert a * b == b * a and a * b / b == a and not a / a
    assert (a**2) ** 0.5 == a and (a ** Fraction(1, 3)) ** 3 == a
    assert pickle.loads(pickle.dumps(a)) == a


def test_units_cannot_be_changed():
    with pytest.raises(AttributeError, match="changed"):
        Units("m").exponents = ()
    assert Units("m") != "m"


LENGTH = Unitful(NUMBERS, "m")

OF_LENGTH = {
    "m": [
        *(jnp.negative, jnp.abs, jnp.sum, jnp.mean, jnp.max, jnp.transpose, jnp.sort),
        *(lambda x: x + x, lambda x: 2 * x - x, lambda x: jnp.sqrt(x * x)),
        *(lambda x: jnp.cbrt(x**3), lambda x: jnp.maximum(x, x[0]), jnp.cumsum),
        *(lambda x: jnp.where(x > x.mean(), x, -x), jnp.linalg.norm),
        *(lambda x: x.reshape(2, 6)[:, 1:], lambda x: x[jnp.array([2, 0])]),
        *(lambda x: jnp.concatenate([x, x]), lambda x: jnp.stack([x, x])),
        *(lambda x: x.at[0].set(x[1]), lambda x: x.at[0].add(x[1])),
        *(lambda x: jnp.clip(x, x[0], x[1]), lambda x: x.astype(jnp.bfloat16)),
        *(lambda x: lax.pad(x, x[0, 0], [(1, 1, 0)] * 2), lambda x: lax.rem(x, x[::-1])),
        *(lambda x: lax.top_k(x, 2)[0], lambda x: jnp.split(x, 2, 1)[0], jnp.real),
        *(lambda x: lax.dynamic_update_slice(x, x[:1], (1, 0)), lambda x: x @ jnp.ones(4)),
        lambda x: jax.vmap(lambda row: row / row.sum() * row)(x),
        lambda x: lax.cond(x[0, 0] > x[0, 1], lambda x: x, lambda x: 2 * x, x),
        lambda x: lax.fori_loop(0, 3, lambda i, c: c + x, x),
        lambda x: lax.scan(lambda c, row: (c + row, c * row), x[0], x)[0],
        *(lambda x: (x**3) ** (1 / 3), lambda x: jnp.power(x * x, 0.5)),
        jax.checkpoint(lambda x: x * jnp.sin(x / x)),
    ],
    "m^2": [
        *(jnp.square, lambda x: x * x, lambda x: x @ x.T, lambda x: x**2),
        *(halved_square, lambda x: jnp.einsum("ij,ij->i", x, x)),
        lambda x: lax.conv(x[None, None], x[None, None, :2, :2], (1, 1), "VALID"),
        lambda x: lax.scan(lambda c, row: (c + row, c * row), x[0], x)[1],
    ],
    "m^12": [jnp.prod],
    "m^(1/2)": [lambda x: x**0.5],
    "m^-1": [lambda x: 1 / x, lambda x: x**-1],
    "m^(-1/2)": [lax.rsqrt],
}


@pytest.mark.parametrize("units", OF_LENGTH)
def test_units_of_results(units, bulk):
    fns = OF_LENGTH[units]
    together = lambda x: [fn(x) for fn in fns]
    results = forbid(together)(LENGTH)
    assert {str(x.units) for x in results} == {units}
    want = jax.jit(together)(NUMBERS)
    for i, (got, x) in enumerate(zip(results, want, strict=True)):
        np.testing.assert_allclose(got.array, x, rtol=1e-5, err_msg=str(i))


ZEROS = {
    "m": [
        *(lambda x: jnp.maximum(x, 0), jax.nn.relu, jnp.tril, jnp.std, lambda x: 0.0 * x),
        *(lambda x: jnp.pad(x, 1), lambda x: jnp.clip(x, 0, None), lambda x: x + 0),
        *(lambda x: jnp.where(x > x[0], x, jnp.nan), lambda x: jnp.zeros(4) + x[0]),
        *(lambda x: x.at[0].set(0.0), lambda x: jnp.minimum(x, jnp.inf)),
        lambda x: jax.ops.segment_sum(x, jnp.array([0, 1, 1]), 2),
        lambda x: jnp.concatenate([x, jnp.zeros((1, 4))]),
        lambda x: lax.cond(x[0, 0] > x[0, 1], lambda: x, lambda: jnp.zeros_like(x)),
        lambda x: lax.fori_loop(0, 3, lambda i, c: c + x, jnp.zeros((3, 4))),
        lambda x: lax.fori_loop(0, 3, lambda i, c: c.at[i].set(x[i]), jnp.zeros((3, 4))),
        lambda x: lax.scan(lambda c, y: (c + y.sum(), c), 0.0, x)[1],
        lambda x: jax.jit(lambda x, y: x * y)(x, 0.0),
        # Twice a loop, a call in between, and a product that keeps zeros of any units.
        lambda x: lax.fori_loop(
            0,
            2,
            lambda i, c: jax.jit(
                lambda c: lax.fori_loop(0, 2, lambda j, d: x + 2.0 * d, c)
            )(c),
            jnp.zeros((3, 4)),
        ),
        # Both a number of seconds and one of metres start at zero.
        lambda x: lax.fori_loop(
            0, 2, lambda i, c: (c[0] + x, c[1] + 1.0, c[2] * x), (0.0 * x, 0.0, 0.0 * x)
        )[0],
        lambda x: jnp.where(x > x[0], 0.0, -0.0) + x,
        # JAX chooses among zeros where updates might meet each other.
        jax.grad(lambda x: jnp.sum(jnp.zeros((3, 4)).at[jnp.array([2, 0, 1])].set(x) ** 2)),
        jax.grad(lambda x: jnp.sum(jax.nn.relu(x) ** 2)),
        jax.grad(lambda x: lax.fori_loop(0, 3, lambda i, c: c + (x * x).sum(), 0.0)),
    ],
    "m^2": [jnp.var, lambda x: lax.scan(lambda c, y: (c + y @ y, c), 0.0, x)[0]],
    "none": [
        lambda x: lax.fori_loop(0, 2, lambda i, c: (c[0] + x, c[1] + 1.0), (0.0 * x, 0.0))[
            1
        ],
        lambda x: lax.fori_loop(0, 2, lambda i, c: (c[0] + x, c[1] * 2), (0.0 * x, 0.0))[1],
        lambda x: jnp.where(x > 0, 0.0, 1.0),
        lambda x: jax.jit(lambda x, y: (x, jnp.exp(y)))(x, 0.0)[1],
        lambda x: jax.jit(lambda x, y: (x, lax.nextafter(y, y)))(x, 0.0)[1],
        lambda x: jax.jit(lambda x, y: (x, y.astype(int)))(x, jnp.inf)[1],
        lambda x: jax.jit(lambda x, y: (x, y**0))(x, 0.0)[1],
        lambda x: jax.jit(lambda x, i: x.at[i].get().sum() / x[i, 0])(x, 0),
        # Zero metres are zeros, also where numbers without units are the other branch.
        lambda x: lax.cond(
            x[0, 0] < 0,
            jax.jit(lambda x, y: y * x),
            lambda x, y: jnp.ones((3, 4)),
            *(x, jnp.zeros((3, 4))),
        ),
    ],
}


@pytest.mark.parametrize("units", ZEROS)
def test_zeros_of_a_program_have_any_units(units, bulk):
    together = lambda x: [fn(x) for fn in ZEROS[units]]
    results = forbid(together)(LENGTH)
    found = [str(x.units) if isinstance(x, Unitful) else "none" for x in results]
    assert set(found) == {units}
    want = jax.jit(together)(NUMBERS)
    for i, (got, x) in enumerate(zip(results, want, strict=True)):
        got = got.array if isinstance(got, Unitful) else got
        np.testing.assert_allclose(got, x, rtol=1e-5, err_msg=str(i))


def test_places_in_sorted_arrays_of_the_same_units(bulk):
    edges, x = jnp.array([0.0, 1.0, 3.0]), jnp.array([0.5, 2.0, 2.5])
    a, v = Unitful(edges, "m"), Unitful(x, "m")
    for fn in (
        jnp.searchsorted,
        lambda a, v: jnp.digitize(v, a),
        lambda a, v: jnp.histogram(v, a)[0],
    ):
        np.testing.assert_array_equal(forbid(fn)(a, v), fn(edges, x))
    with pytest.raises(UnitsError, match="needs operands of equal units; got s and m"):
        forbid(jnp.searchsorted)(a, Unitful(x, "s"))


def test_zeros_that_no_program_writes():
    finite = [
        lambda x: x + jnp.full((3, 4), jnp.inf).astype(bool).astype(x.dtype),
        lambda x: x + jnp.full((3, 4), jnp.nan).astype(int).astype(x.dtype),
        lambda x: x + jnp.full((3, 4), complex(jnp.inf, 1)),
        lambda x: (
            x + lax.div(jnp.ones((3, 4), int), jnp.zeros((3, 4), int)).astype(x.dtype)
        ),
    ]
    for fn in (*finite, lambda x: jnp.add(x, jnp.array(NUMBERS) - NUMBERS)):
        with pytest.raises(UnitsError, match="add needs operands of equal units"):
            forbid(fn)(LENGTH)
    with pytest.raises(UnitsError, match="add needs operands of equal units; got m and 1"):
        forbid(jnp.add)(LENGTH, jnp.zeros((3, 4)))
    # Integers may be places.
    with pytest.raises(UnitsError, match="max needs operands of equal units"):
        forbid(lambda x: jnp.maximum(x, 0))(Unitful(jnp.arange(3), "m"))
    grows = lambda x, y: lax.fori_loop(0, 2, lambda i, c: (c + x) * y, jnp.zeros((3, 4)))
    with pytest.raises(
        UnitsError, match="add needs operands of equal units; got m s and m"
    ):
        forbid(grows)(LENGTH, Unitful(2.0, "s"))


class Adopting(jaxrewrite.ArrayValue):
    array: jax.Array

    def materialise(self):
        return self.array

    def adopt(self, array, primitive):
        return Adopting(jnp.ones(5))


def test_a_type_adopts_arrays_of_the_same_aval():
    with pytest.raises(
        TypeError, match=r"Adopting.adopt returned .* where the array is f32"
    ):
        jaxrewrite.transform(lambda x: x + 0.0)(Adopting(jnp.ones(2)))


class Marked(jaxrewrite.ArrayValue):
    array: jax.Array
    mark: str = jaxrewrite.field(static=True)
    outer = 5
    rules_see_values = True

    def materialise(self):
        raise TypeError("it is marked.")

    def aval(self):
        return jax.ShapeDtypeStruct(jnp.shape(self.array), self.array.dtype)

    def adopt(self, array, primitive):
        return WithAnyMark(array, "none")

    def join(self, other):
        if not isinstance(other, Marked):
            return NotImplemented
        cls, mark = mark_of([self, other])
        return cls(self.array, mark), cls(other.array, mark)


class WithAnyMark(Marked):
    def materialise(self):
        return self.array


def mark_of(operands):
    marks = {x.mark for x in operands if not isinstance(x, WithAnyMark)}
    assert len(marks) <= 1, "marks differ"
    return (Marked, *marks) if marks else (WithAnyMark, "none")


@values.annotation_rule(Marked, "add", "max", "mul", "convert_element_type")
def marked(*operands, primitive, **params):
    cls, mark = mark_of(x for x in operands if isinstance(x, Marked))
    arrays = [x.array if isinstance(x, Marked) else x for x in operands]
    return cls(jaxrewrite.bind(primitive, *arrays, **params), mark)


def test_adopted_numbers_of_a_type_of_ones_own_are_of_a_subclass_until_something_tells():
    x = Marked(jnp.arange(3.0), "a")

    def program(x):
        def turn(i, carry):
            total, highest, unused = carry
            return total + x, jnp.maximum(highest, x), 2 * unused

        start = jnp.zeros(3), jnp.full(3, -jnp.inf), jnp.zeros(3)
        total, highest, unused = jax.lax.fori_loop(0, 2, turn, start)
        return total, highest, unused, jnp.maximum(x, 0.0)

    run = jaxrewrite.transform(program, materialise="forbid")
    total, highest, unused, positive = jax.jit(run)(x)
    for value, wanted in ((total, 2 * x.array), (highest, x.array), (positive, x.array)):
        assert type(value) is Marked and value.mark == "a"
        np.testing.assert_array_equal(value.array, wanted)
    assert isinstance(unused, jax.Array)
    np.testing.assert_array_equal(unused, 0)


METRES = Unitful(jnp.arange(3.0), "m")


class OuterMarked(Marked):
    """Around units, with the same rules."""

    outer = 35


@pytest.mark.parametrize(
    "value",
    [
        OuterMarked(METRES, "a"),
        Unitful(Marked(METRES.array, "a"), "m"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_of_two_annotations_adopts_numbers(value):
    def program(x):
        total, unused = lax.fori_loop(
            0, 2, lambda i, c: (c[0] + x, c[1]), (jnp.zeros(3), jnp.zeros(3))
        )
        chosen = lax.cond(jnp.array(True), lambda: x, lambda: jnp.zeros(3))
        return x + jnp.zeros(3), total, chosen, jnp.maximum(x, 0.0), unused

    run = jax.jit(jaxrewrite.transform(program, materialise="forbid"))
    *results, unused = run(value)
    for result, factor in zip(results, (1, 2, 1, 1), strict=True):
        inner = result.array
        assert {getattr(x, "units", None) for x in (result, inner)} == {None, METRES.units}
        assert {getattr(x, "mark", None) for x in (result, inner)} == {None, "a"}
        np.testing.assert_array_equal(inner.array, factor * jnp.arange(3.0))
    assert isinstance(unused, jax.Array)


@pytest.mark.parametrize("cls", [int, "Money", None])
def test_an_annotation_rule_is_for_a_type_of_values(cls):
    with pytest.raises(TypeError, match=rf"annotation_rule takes .* no such type: {cls!r}"):
        values.annotation_rule(cls, "neg")


def test_a_method_that_is_not_called_any_more_is_an_error():
    with pytest.raises(
        TypeError, match=r"Old\.settled is not used any more: adopt returns"
    ):

        class Old(jaxrewrite.ArrayValue):
            def settled(self):
                return self


def test_what_has_no_units_is_plain():
    fns = [
        *(lambda x: jnp.sin(x / x), lambda x: x > x[0], jnp.sign, jnp.argmax, jnp.isfinite),
        *(lambda x: jnp.arctan2(x, x), lambda x: x.astype(bool), lambda x: x**0),
        *(lambda x: jax.nn.relu(x / x[0]), lambda x: jax.nn.softmax(x / x.max())),
        lambda x: lax.top_k(x, 2)[1],
    ]
    results = forbid(lambda x: [fn(x) for fn in fns])(LENGTH)
    assert not any(isinstance(x, Unitful) for x in results)
    one = Unitful(NUMBERS, "1")
    assert (jaxrewrite.materialise(one) == NUMBERS).all()
    np.testing.assert_allclose(forbid(lambda x: jnp.exp(x) + 1)(one), jnp.exp(NUMBERS) + 1)


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda x: x + x * x, r"add needs operands of equal units; got m and m\^2"),
        (lambda x: x + 1, "add needs operands of equal units; got m and 1"),
        (lambda x: x < 1, "lt needs"),
        (lambda x: jnp.maximum(x, 1), "max needs"),
        (lambda x: jnp.concatenate([x, jnp.ones((1, 4))]), "concatenate needs"),
        (lambda x: jnp.where(x > x[0], x, 1), "select_n needs"),
        (lambda x: x.at[0].set(1.0), "scatter needs"),
        (lambda x: x.at[0].apply(jnp.sin), "scatter needs operands without"),
        (lambda x: x.at[9].get(mode="fill", fill_value=1.0), "gather needs"),
        (lambda x: jnp.pad(x, 1, constant_values=1), "pad needs"),
        (jnp.exp, "exp needs operands without units; got m"),
        (jnp.floor, "floor needs operands without"),
        (lambda x: x ** x[0, 0], "pow needs operands without"),
        (lambda x: 2.0**x, "pow needs operands without"),
        (lambda x: x ** (0.5 + 1j), "pow needs operands without"),
        (lambda x: x**jnp.inf, "pow needs operands without"),
        (lambda x: x**jnp.nan, "pow needs operands without"),
        (jnp.cumprod, "cumprod needs operands without"),
        (lambda x: lax.cond(jnp.arange(2)[1] > 0, lambda: x, lambda: x * x), "conditional"),
        (lambda x: lax.scan(lambda c, row: (c + row, 0), jnp.ones(4), x), "add needs"),
    ],
)
def test_units_that_do_not_agree(fn, message):
    with pytest.raises(UnitsError, match=message):
        forbid(fn)(LENGTH)


def test_a_power_that_is_near_no_small_fraction_has_no_units():
    with pytest.raises(UnitsError, match="pow needs operands without"):
        forbid(lambda x: x**0.12345)(LENGTH)


def test_errors_speak_of_zeros_in_any_units_as_of_quantities():
    def loops(x):
        inner = lambda c: lax.fori_loop(0, 2, lambda i, d: c * x, jnp.ones((3, 4)))
        return lax.fori_loop(0, 2, lambda i, c: inner(c), jnp.zeros((3, 4)))

    with pytest.raises(UnitsError, match="got m and 1") as raised:
        forbid(loops)(LENGTH)
    notes = " ".join(raised.value.__notes__)
    assert "(Unitful:f32[3,4], Unitful:f32[3,4])" in notes, notes


def test_the_root_of_complex_numbers_has_units():
    root = forbid(lambda x: x**0.5)(Unitful(jnp.array([-4.0 + 0j]), "m^2"))
    assert root.units == Units("m")
    np.testing.assert_allclose(root.array, [2j], atol=1e-6)


def test_units_are_never_lost():
    with pytest.raises(jaxrewrite.MaterialisationError, match="units, m"):
        np.asarray(LENGTH)
    assert repr(LENGTH).endswith("] m, dtype=float32)")
    large = Unitful(jnp.ones((30, 40)), "m")
    assert repr(large) == "Unitful<f32[30,40], 4.8 kB>(array=f32[30,40], units=Units('m'))"


def test_units_of_derivatives():
    gradient = forbid(jax.grad(lambda x: jnp.sum(x**3)))(LENGTH)
    assert gradient.units == Units("m^2")
    np.testing.assert_allclose(gradient.array, 3 * NUMBERS**2, rtol=1e-6)
    # The derivative is that of the custom rule, for the leaves and inside.
    outside = jax.grad(lambda x: forbid(halved_square)(x).array.sum())(LENGTH)
    inside = forbid(jax.grad(lambda x: halved_square(x).sum()))(LENGTH)
    for got in (outside, inside):
        np.testing.assert_allclose(got.array, NUMBERS, rtol=1e-6)
    assert inside.units == Units("m")
    _, tangent = jax.jvp(forbid(halved_square), (LENGTH,), (LENGTH,))
    assert tangent.units == Units("m^2")


@jax.custom_vjp
def _scaled_and_squared(x, c, y):
    """With zeros as the gradient of ``y``, to tell it from JAX's own."""
    return x * c, x * x


_scaled_and_squared.defvjp(
    lambda x, c, y: ((x * c, x * x), (x, c, y)),
    lambda kept, g: (
        jnp.where(kept[0] > 0, g[0] * kept[1] + 2 * g[1] * kept[0], 0),
        (g[0] * kept[0]).sum(),
        jnp.zeros_like(kept[2]),
    ),
)


@pytest.mark.parametrize("unused", [False, True])
def test_units_of_cotangents(unused, bulk):
    """They are the inverse ones, so that a backward rule multiplies as it should."""

    def loss(x, c, y, call=lambda fn: fn):
        a, b = call(lambda *xs: _scaled_and_squared(*xs))(x, c, y)
        a, b = (getattr(v, "array", v) for v in (a, b))
        return jnp.sum(a) if unused else jnp.sum(a) + jnp.sum(b)

    operands = NUMBERS, jnp.float32(2.0), NUMBERS + 1
    x, c, y = operands
    slope = jax.jit(jax.grad(functools.partial(loss, call=forbid), (0, 1, 2)))
    got = slope(Unitful(x, "m"), c, Unitful(y, "s"))
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-6),
        jax.tree.leaves(got),
        list(jax.grad(loss, (0, 1, 2))(*operands)),
    )


def test_cotangents_of_quantities_that_hold_values(bulk):
    def loss(d, call=lambda fn: fn, x=lambda d: jnp.diag(d)):
        scaled, squared = call(lambda *xs: _scaled_and_squared(*xs))(x(d), 2.0, d)
        return sum(jnp.sum(y) for y in jax.tree.leaves((scaled, squared)))

    implicit = functools.partial(jaxrewrite.transform, materialise="allow")
    slope = jax.grad(lambda d: loss(d, implicit, lambda d: Unitful(Diagonal(d), "m")))
    got = jax.jit(slope)(NUMBERS[0])
    np.testing.assert_allclose(got, jax.jit(jax.grad(loss))(NUMBERS[0]), rtol=1e-6)


def test_cotangents_of_a_matrix_with_units_meet_zeros_of_a_branch(bulk):
    """They have inverse units there, too, whatever the matrix knows of division."""
    doubling = jax.custom_vjp(lambda v: v)
    doubling.defvjp(lambda v: (v, None), lambda _, cotangent: (2 * cotangent,))
    zeros = lambda v: jnp.zeros_like(v)
    program = lambda p, v: lax.cond(p, zeros, doubling, v)
    number = lambda p, d: jnp.sum(
        forbid(program)(p, Unitful(Diagonal(d), "m")).array @ NUMBERS
    )
    slope = jax.grad(number, 1)
    want = 2 * jnp.sum(NUMBERS, 1)
    for p in (True, False):
        np.testing.assert_array_equal(slope(jnp.array(p), NUMBERS[:, 0]), want * (not p))


@pytest.mark.parametrize("order", [1, -1])
def test_branches_with_units_inside_of_a_matrix_and_around_one(order):
    d = jnp.arange(1.0, 4)
    inside, around = Diagonal(Unitful(d, "m")), Unitful(jnp.diag(d), "m")
    program = lambda p, *vs: lax.cond(p, lambda: vs[0], lambda: vs[1])
    allowed = jaxrewrite.transform(program, materialise="allow")
    got = allowed(jnp.arange(2)[1] > 0, *[inside, around][::order])
    assert isinstance(got, Unitful) and got.units == Units("m")
    np.testing.assert_array_equal(got.array, jnp.diag(d))


def test_units_with_vmap_and_stacks():
    rows = jax.vmap(forbid(lambda row: row * row.sum()))(LENGTH)
    assert rows.units == Units("m^2") and rows.shape == (3, 4)
    stack = jaxrewrite.stack([LENGTH, LENGTH])
    total = forbid(lambda xs: lax.scan(lambda c, x: (c + x, None), xs[0], xs)[0])(stack)
    assert total.units == Units("m")


# --- names ------------------------------------------------------------------------------


NAMED = Named(NUMBERS, ("a", "b"))


@pytest.mark.parametrize(
    ("fn", "names"),
    [
        (jnp.sin, ("a", "b")),
        (lambda x: x - x.mean(0), ("a", "b")),
        (lambda x: x - x.mean(1, keepdims=True), ("a", "b")),
        (lambda x: x.sum(1), ("a",)),
        (lambda x: jnp.argmax(x, axis=0), ("b",)),
        (jnp.transpose, ("b", "a")),
        (lambda x: x[None], (None, "a", "b")),
        (lambda x: x[1], ("b",)),
        (lambda x: x[1:, ::2], ("a", "b")),
        (lambda x: x[jnp.array([2, 0])], (None, "b")),
        (lambda x: jnp.take(x, jnp.array([[2, 0]]), axis=1), ("a", None, None)),
        (lambda x: jax.vmap(lambda row, i: row[i])(x, jnp.arange(3)), ("a",)),
        (lambda x: x.reshape(3, 2, 2), ("a", None, None)),
        (lambda x: x.reshape(3, 1, 4), ("a", None, "b")),
        (lambda x: x.reshape(12), (None,)),
        (lambda x: x.reshape(3, 4), ("a", "b")),
        (lambda x: x @ jnp.ones((4, 5)), ("a", None)),
        (lambda x: jnp.einsum("ab,cb->ca", x, jnp.ones((5, 4))), (None, "a")),
        (lambda x: jnp.einsum("ab,ab->b", x, x), ("b",)),
        (lambda x: x @ x.T, (None, None)),
        (lambda x: x[:, None, :] * x[None], (None, None, "b")),
        (lambda x: jnp.kron(x, x), (None, None)),
        (lambda x: jnp.concatenate([x, x], 1), ("a", "b")),
        (lambda x: jnp.stack([x, x], 1), ("a", None, "b")),
        (lambda x: jnp.split(x, 2, 1)[0], ("a", "b")),
        (lambda x: x.at[0].set(1.0), ("a", "b")),
        (lambda x: jnp.where(x > 1, x, 0.0), ("a", "b")),
        (lambda x: jnp.pad(x, 1), ("a", "b")),
        (jax.nn.softmax, ("a", "b")),
        (jax.nn.relu, ("a", "b")),
        (lambda x: lax.top_k(x, 2)[1], ("a", "b")),
        (lambda x: lax.scan(lambda c, r: (c + r, None), jnp.zeros(4), x)[0], ("b",)),
        (lambda x: lax.scan(lambda c, r: (c, 2 * r), 0, x)[1], ("b",)),
        (lambda x: lax.cond(jnp.arange(2)[1] > 0, jnp.sin, jnp.ones_like, x), ("a", "b")),
        (jax.grad(lambda x: jnp.sin(x[1:]).sum()), ("a", "b")),
        (jax.vmap(lambda row: row * row.sum()), ("a", "b")),
    ],
)
def test_names_of_results(fn, names):
    got = forbid(fn)(NAMED)
    assert got.names == names
    np.testing.assert_allclose(got.array, fn(NUMBERS), rtol=1e-5)


def test_slices_have_no_name_for_the_first_axis():
    slices = NAMED.sliceable()
    assert slices.names == ("b",)
    assert slices.sliceable() is slices


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda x, y: x + y, "add aligns an axis named 'a' with one named 'b'"),
        (lambda x, y: jnp.einsum("ab,ab->", x, y), "dot_general aligns an axis named"),
        (lambda x, y: x[:, :1] * y[:1], "two axes the same name|aligns"),
        (lambda x, y: jnp.concatenate([x, y]), "concatenate aligns"),
        (lambda x, y: jnp.where(x > 1, x, y), "select_n aligns"),
        *(
            (lambda x, y, how=how: getattr(x.at[0], how)(y[0]), "scatter.* aligns")
            for how in ("set", "add", "subtract", "mul", "min", "max")
        ),
        (lambda x, y: x.at[:, jnp.array([0, 2])].set(y[:, :2]), "scatter aligns"),
        (
            lambda x, y: jax.vmap(lambda x, y, i: x.at[i].set(y[i]))(x, y, jnp.arange(3)),
            "scatter aligns",
        ),
        (lambda x, y: lax.dynamic_update_slice(x, y[:1], (1, 0)), "update_slice aligns"),
        (lambda x, y: jnp.clip(x, y, 2.0), "max aligns|clamp aligns"),
        (lambda x, y: lax.sort((x, y)), "sort aligns"),
    ],
)
def test_names_that_do_not_agree(fn, message):
    with pytest.raises(ValueError, match=message):
        forbid(fn)(Named(jnp.ones((3, 3)), ("a", "b")), Named(jnp.ones((3, 3)), ("b", "a")))


@pytest.mark.parametrize("names", [("a",), ("a", "a"), ("a", 1), ("a", "b", "c")])
def test_names_that_cannot_be(names):
    with pytest.raises(ValueError, match="Named: names must"):
        Named(NUMBERS, names)


def test_updates_give_their_names():
    row = Named(jnp.ones(4), ("b",))
    assert forbid(lambda x, row: x.at[1].set(row))(NUMBERS, row).names == (None, "b")
    rows = Named(jnp.ones((2, 4)), ("k", "b"))
    got = forbid(lambda x, rows: x.at[jnp.array([0, 2])].add(rows))(NAMED, rows)
    assert got.names == ("a", "b")


def test_axes_by_name():
    assert NAMED.axis("b") == 1
    with pytest.raises(ValueError, match="No axis is named 'c'"):
        NAMED.axis("c")


def test_names_that_a_branch_changes():
    fn = lambda x, y: lax.cond(jnp.arange(2)[1] > 0, lambda: x, lambda: y)
    assert forbid(fn)(NAMED, Named(NUMBERS, ("a", "c"))).names == ("a", None)
    assert forbid(fn)(Named(NUMBERS, (None, "b")), NAMED).names == (None, "b")
    assert forbid(fn)(NUMBERS, NAMED).names == ("a", "b")


# --- masks ------------------------------------------------------------------------------


def masked(seed, shape=(3, 4)):
    """The same in this library and in NumPy; one column and one row are all missing."""
    rng = np.random.default_rng(seed)
    array, mask = rng.normal(size=shape).astype("float32"), rng.random(shape) < 0.3
    mask[:, 1] = mask[2] = True
    ours = Masked(jnp.asarray(np.where(mask, np.nan, array)), jnp.asarray(mask))
    return ours, np.ma.array(array, mask=mask)


PLAIN = np.linspace(-1, 1, 12, dtype="float32").reshape(3, 4)

AS_NUMPY = {
    "sin": (jnp.sin, np.ma.sin),
    "add": (lambda x: x + PLAIN[0],) * 2,
    "mul": (lambda x: x * x,) * 2,
    "compare": (lambda x: x > 0.1,) * 2,
    "where": (lambda x: jnp.where(x > 0, x, -x), lambda x: np.ma.where(x > 0, x, -x)),
    "sum": (lambda x: x.sum(0),) * 2,
    "all": (lambda x: x.sum(),) * 2,
    "prod": (lambda x: x.prod(1),) * 2,
    "max": (lambda x: x.max(0),) * 2,
    "min": (lambda x: x.min(1),) * 2,
    "any": (lambda x: (x > 0).any(1),) * 2,
    "every": (lambda x: (x > 0).all(1),) * 2,
    "integers": (lambda x: (x * 10).astype(int).max(1),) * 2,
    "cumsum": (lambda x: x.cumsum(1),) * 2,
    "cumprod": (lambda x: x.cumprod(1),) * 2,
    "sort": (lambda x: jnp.sort(x, 1), lambda x: np.ma.sort(x, 1)),
    "transpose": (lambda x: x.T,) * 2,
    "reshape": (lambda x: x.reshape(2, 6),) * 2,
    "slice": (lambda x: x[1:, ::2],) * 2,
    "rows": (lambda x: x[np.array([2, 0])],) * 2,
    "concatenate": (
        lambda x: jnp.concatenate([x, PLAIN]),
        lambda x: np.ma.concatenate([x, PLAIN]),
    ),
    "dot": (lambda x: x @ PLAIN.T, lambda x: np.ma.dot(x, PLAIN.T)),
    "rdot": (lambda x: PLAIN.T @ x, lambda x: np.ma.dot(PLAIN.T, x)),
    "gram": (lambda x: x @ x.T, lambda x: np.ma.dot(x, x.T)),
    "batched": (
        lambda x: jnp.einsum("ij,ijk->ik", x, jnp.stack([PLAIN] * 2, -1)),
        lambda x: np.ma.stack([(x * PLAIN).sum(1)] * 2, 1),
    ),
}


def same_masked(got, want, name):
    mask = np.ma.getmaskarray(want)
    np.testing.assert_array_equal(got.mask, mask, err_msg=name)
    there = np.asarray(got.array)[~mask]
    np.testing.assert_allclose(there, np.ma.getdata(want)[~mask], rtol=1e-5, err_msg=name)


def test_masked_is_as_numpy_has_it(bulk):
    x, theirs = masked(0)
    got = forbid(lambda x: {name: fn(x) for name, (fn, _) in AS_NUMPY.items()})(x)
    for name, (_, fn) in AS_NUMPY.items():
        same_masked(got[name], fn(theirs), name)


def test_masked_with_masked():
    (x, a), (y, b) = masked(1), masked(2)
    same_masked(forbid(jnp.multiply)(x, y), a * b, "mul")
    same_masked(forbid(lambda x, y: x @ y.T)(x, y), np.ma.dot(a, b.T), "dot")
    same_masked(forbid(lambda x, y: x.at[0].add(y[1]))(x, y)[0], a[0] + b[1], "scatter-add")
    same_masked(forbid(lambda x, y: x.at[0].set(y[1]))(x, y)[0], b[1], "scatter")
    assert forbid(jnp.where)(x > 0, x, 0.0).mask.sum() == x.mask.sum()
    same_masked(forbid(lambda x: x.at[:2].apply(jnp.negative))(x)[:2], -a[:2], "apply")


@pytest.mark.parametrize("preferred", [None, "float32"])
def test_masked_products_have_the_dtype_that_is_asked_for(preferred):
    x, theirs = masked(1)
    product = lambda x: jnp.matmul(
        x, PLAIN.T.astype(jnp.bfloat16), preferred_element_type=preferred
    )
    got = forbid(product)(Masked(x.array.astype(jnp.bfloat16), x.mask))
    assert got.dtype == (preferred or jnp.bfloat16)
    np.testing.assert_allclose(
        got.filled(0), np.ma.dot(theirs, PLAIN.T).filled(0), atol=0.05
    )


@pytest.mark.parametrize("is_double", [False, True])
def test_windows_of_padding_alone_hold_nothing_that_is_missing(is_double):
    with jax.enable_x64(is_double):
        x, kernel = jnp.ones((1, 1, 4), "float32"), jnp.ones((1, 1, 2), "float32")
        convolve = forbid(lambda x: lax.conv_general_dilated(x, kernel, (1,), [(2, 2)]))
        found = convolve(Masked(x, jnp.arange(4).reshape(x.shape) == 3))
        np.testing.assert_array_equal(found.filled(7)[0, 0], [0, 1, 2, 2, 1, 7, 0])


def test_masked_through_programs():
    x, theirs = masked(3)
    total, rows = forbid(lambda x: lax.scan(lambda c, r: (c + r.sum(), c), 0.0, x))(x)
    assert total.mask and rows.shape == (3,)  # one row has nothing
    softmax = forbid(jax.nn.softmax)(x).filled(0).sum(1)
    np.testing.assert_allclose(softmax, [1, 1, 0], rtol=1e-6)
    out_of_bounds = forbid(lambda x: jnp.take(x, jnp.array([0, 7]), 0, mode="fill"))(x)
    assert out_of_bounds.mask[1].all()
    assert forbid(lambda x: jnp.pad(x, 1))(x).mask.sum() == x.mask.sum()
    window = lambda x: lax.conv(x[None, None], jnp.ones((1, 1, 2, 2)), (1, 1), "VALID")
    got = forbid(window)(x)
    want = [[theirs.mask[i : i + 2, j : j + 2].all() for j in range(3)] for i in range(2)]
    np.testing.assert_array_equal(got.mask[0, 0], want)


def test_missing_entries_in_functions_of_two_operands_and_of_bits():
    x, theirs = masked(1)
    edges = jnp.array([0.0, 0.5])
    places = functools.partial(jnp.searchsorted, method="compare_all")
    got = forbid(places)(edges, x)
    np.testing.assert_array_equal(got.mask, theirs.mask)
    np.testing.assert_array_equal(
        got.filled(0), np.where(theirs.mask, 0, places(edges, x.array))
    )
    for fn in (lax.erf, lax.digamma):
        slope = jax.grad(lambda x, fn=fn: fn(x).sum())
        got = forbid(slope)(x)
        np.testing.assert_array_equal(got.mask, theirs.mask)
        want = np.where(theirs.mask, 0, slope(x.filled(1)))
        np.testing.assert_allclose(got.filled(0), want, rtol=1e-5)


def test_nothing_is_missing_where_there_is_nothing(bulk):
    """Sums of no entries, and windows of a convolution that are all padding."""
    empty = Masked(jnp.zeros((2, 0)), jnp.zeros((2, 0), bool))
    for fn in (
        lambda x: jnp.sum(x, 1),
        lambda x: jnp.all(x != 0),
        lambda x: x @ jnp.ones((0, 3)),
        lambda x: x @ x.T,
    ):
        assert not forbid(fn)(empty).mask.any()
    row = Masked(jnp.ones((1, 1, 4)), jnp.array([[[0, 0, 1, 1]]], bool))
    padded = lambda x, k: lax.conv_general_dilated(x, k, (1,), ((3, 3),))
    got = forbid(padded)(row, jnp.ones((1, 1, 2))).mask[0, 0]
    np.testing.assert_array_equal(got, [0, 0, 0, 0, 0, 1, 1, 0, 0])
    padded = lambda x, k: lax.conv_general_dilated(x, k, (1, 1), ((0, 0), (3, 3)))
    got = forbid(padded)(row[:, :, None], jnp.ones((1, 1, 1, 2))).mask[0, 0, 0]
    np.testing.assert_array_equal(got, [0, 0, 0, 0, 0, 1, 1, 0, 0])


COUNTING = {
    "mean": jnp.mean,
    "columns": lambda x: jnp.mean(x, 0, keepdims=True),
    "narrow": lambda x: jnp.mean(x.astype("float16")),
    "flags": lambda x: jnp.mean(x > 0, 1),
    "mapped": jax.vmap(jnp.mean),
    "called": jax.jit(lambda x: jnp.mean(x)),
    "scanned": lambda x: lax.scan(lambda c, row: (c, row.mean()), 0, x)[1],
    "branch": lambda x: lax.cond(jnp.arange(2)[1] > 0, jnp.mean, jnp.sum, x),
    "where": lambda x: jnp.mean(x, where=PLAIN > 0),
    "average": jnp.average,
    "weights": lambda x: jnp.average(x, weights=PLAIN, axis=1),
    "var around": lambda x: jnp.var(x, mean=0.0),
    "std where": lambda x: jnp.std(x, where=PLAIN > 0),
    "slope of std": jax.grad(jnp.std),
    "quantile": lambda x: jnp.quantile(x, 0.3, axis=0),
    "percentile": lambda x: jnp.percentile(x, 30),
    "cov": jnp.cov,
    "corrcoef": jnp.corrcoef,
    "standardize": jax.nn.standardize,
}


@pytest.mark.parametrize("name", COUNTING)
def test_missing_entries_are_not_counted(name):
    x, _ = masked(0)
    around = Tagged(x, "t"), Named(x, ("a", "b")), Unitful(x, "m")
    for value in (x, *(around if name in ("columns", "weights", "quantile") else ())):
        with pytest.raises(TypeError, match="Masked: .* count"):
            forbid(COUNTING[name])(value)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_spread_and_median_are_those_of_what_is_there(bulk, dtype):
    x, theirs = masked(0)
    array, mask = 10 * x.array, x.mask.at[:, 0].set(True)
    x = Masked(array.astype(dtype), mask)
    theirs = np.ma.array(np.asarray(x.array, float), mask=mask)
    for axis, keepdims in (
        (None, False),
        (0, False),
        (1, True),
        (-1, False),
        ((0, 1), True),
    ):
        options = {"axis": axis, "keepdims": keepdims}
        ddof = int(axis is None)  # Elsewhere too few entries are there.
        fns = {
            "std": lambda np, x, options=options, ddof=ddof: np.std(
                x, ddof=ddof, **options
            ),
            "var": lambda np, x, options=options: np.var(x, **options),
            "median": lambda np, x, options=options: np.median(x, **options),
        }
        got = forbid(lambda x, fns=fns: {name: fn(jnp, x) for name, fn in fns.items()})(x)
        for name, result in got.items():
            same_masked(result, fns[name](np.ma, theirs), f"{name} {options}")
    rows = forbid(jax.vmap(lambda x: (jnp.std(x), jnp.median(x))))(x)
    for result, fn in zip(rows, (np.ma.std, np.ma.median), strict=True):
        same_masked(result, fn(theirs, axis=1), "rows")


AROUND = {
    "tags": lambda v: Tagged(v, "t"),
    "names": lambda v: Named(v, ("a", "b")),
    "units": lambda v: Unitful(v, "m"),
    "all": lambda v: Tagged(Named(Unitful(v, "m"), ("a", "b")), "t"),
}
SPREADS = {
    "std": jnp.std,
    "var": lambda x: jnp.var(x, axis=0, ddof=1, keepdims=True),
    "median": lambda x: jnp.median(x, axis=1),
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("name", SPREADS)
def test_spread_and_median_of_what_is_there_within_annotations(bulk, name, around):
    fn, annotate = SPREADS[name], AROUND[around]
    x, _ = masked(0)
    got, alone = forbid(fn)(annotate(x)), forbid(fn)(x)
    like = forbid(fn)(annotate(x.array))
    # It carries what the function of an array does, around the function of what is there.
    while isinstance(like, Tagged | Named | Unitful):
        assert type(got) is type(like)
        for kind in ("tags", "names", "units"):
            assert getattr(got, kind, None) == getattr(like, kind, None)
        got, like = got.array, like.array
    np.testing.assert_array_equal(got.filled(-1), alone.filled(-1))


def test_a_number_that_is_no_number_is_there():
    x = Masked(jnp.array([1.0, jnp.nan, 3.0]), jnp.array([False, False, True]))
    assert jnp.isnan(forbid(jnp.median)(x).filled(0))
    assert forbid(jnp.median)(Masked(x.array, jnp.isnan(x.array))).filled(0) == 2


def test_sums_that_are_no_means(bulk):
    """Halves, quotients by sums of what is there, sums over one entry, and NumPy's own names."""
    x, theirs = masked(0)
    there = jnp.float32((~theirs.mask).sum())

    @jax.jit
    def median(x):
        return x.max()

    fns = {
        "half": (lambda x: x.sum() / 2, theirs.sum() / 2),
        "there": (lambda x: x.sum() / there, theirs.mean()),
        "share": (lambda x: x / x.sum(), theirs / theirs.sum()),
        "weighted entries": (
            lambda x: x * PLAIN / (PLAIN + 2),
            theirs * PLAIN / (PLAIN + 2),
        ),
        "one": (lambda x: x[:1].mean(0), theirs[0]),
        "nanmean": (lambda x: jnp.nanmean(x, 1), theirs.mean(1)),
        "nanvar": (lambda x: jnp.nanvar(x, 1), theirs.var(1)),
        "own": (median, theirs.max()),
        "carry": (
            lambda x: lax.scan(lambda c, row: (c + row.max(), None), x.sum(), x[:2])[0],
            theirs.sum() + theirs[0].max() + theirs[1].max(),
        ),
    }
    got = forbid(lambda x: {name: fn(x) for name, (fn, _) in fns.items()})(x)
    for name, result in got.items():
        same_masked(result, fns[name][1], name)


def test_masked_counts_what_is_there():
    x, theirs = masked(4)
    same_masked(x.mean(axis=0), theirs.mean(0), "mean")
    np.testing.assert_array_equal(x.count(axis=1), theirs.count(1))
    np.testing.assert_allclose(x.filled(7), theirs.filled(7))


def test_a_number_that_fills_in_beyond_an_array_is_not_missing():
    x, _ = masked(0)
    got = forbid(lambda x: x.at[9].get(mode="fill", fill_value=7.0))(x)
    assert got.filled(0).tolist() == [7] * 4


@pytest.mark.parametrize(("dtype", "low"), [(float, -jnp.inf), (np.uint8, 0)])
def test_the_place_of_the_greatest_is_no_missing_entry(dtype, low):
    x = Masked(
        jnp.array([[7, low], [3, low]]).astype(dtype), jnp.array([[1, 0], [0, 1]], bool)
    )
    assert forbid(lambda x: jnp.argmax(x, axis=1))(x).filled(9).tolist() == [1, 0]


@pytest.mark.parametrize("hidden", [[5.0, 3.0], [3.0, jnp.nan]])
def test_numbers_under_a_mask_do_not_order_indices(hidden):
    x = Masked(jnp.array([*hidden, 1.0]), jnp.array([1, 1, 0], bool))
    assert forbid(jnp.argsort)(x).tolist() == [2, 0, 1]


def test_masked_means_and_maxima_of_rare_dtypes():
    x = Masked(jnp.full(100, 1000, jnp.float16), jnp.arange(100) == 0)
    assert x.mean().filled(0) == 1000
    assert np.mean(x).filled(0) == 1000  # NumPy gives a dtype and an array for the result.
    assert np.mean(x, axis=0, keepdims=True).shape == (1,)
    assert np.mean(x, dtype=np.float32).dtype == np.float32
    with pytest.raises(NotImplementedError, match="'out' argument"):
        np.mean(x, out=np.zeros(()))
    complexes = Masked(jnp.array([3 + 1j, 2]), jnp.array([1, 0], bool))
    assert forbid(jnp.max)(complexes).filled(0) == 2


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "bfloat16", "int8"])
def test_masked_maxima_of_dtypes_without_infinity(dtype):
    x = Masked(jnp.array([1, 2, 3]).astype(dtype), jnp.array([1, 0, 0], bool))
    low, high, at = forbid(lambda x: (x.min(), x.max(), jnp.argmin(x)))(x)
    assert (low.filled(0), high.filled(0), at.filled(9)) == (2, 3, 1)


def test_sums_over_segments_are_missing_where_any_term_is():
    x = Masked(jnp.arange(4.0), jnp.array([0, 1, 0, 0], bool))
    sums = forbid(lambda x: jax.ops.segment_sum(x, jnp.array([0, 0, 1, 1]), 3))(x)
    assert sums.filled(-1).tolist() == [-1, 5, 0]


def test_what_is_missing_has_no_gradient():
    x, _ = masked(5)
    dense = x.filled(3.0)

    def loss(array):
        squares = lambda x: jax.nn.relu(x) ** 2 + halved_square(x) + tripled(x)
        return forbid(squares)(Masked(array, x.mask)).filled(0).sum()

    gradient = jax.grad(loss)(dense)
    want = jnp.where(x.mask, 0, 2 * jax.nn.relu(dense) + dense + 3)
    np.testing.assert_allclose(gradient, want, rtol=1e-6)
    inside = forbid(jax.grad(lambda x: jnp.sum(x**2)))(x)
    np.testing.assert_array_equal(inside.mask, x.mask)


def test_bad_masks():
    for mask in (jnp.zeros(4, bool), jnp.zeros((3, 4))):
        with pytest.raises(ValueError, match="Masked: mask must be boolean and have"):
            Masked(NUMBERS, mask)
    with pytest.raises(jaxrewrite.MaterialisationError, match="filled"):
        jaxrewrite.materialise(masked(0)[0])
    with pytest.raises(jaxrewrite.MaterialisationError, match="'lu' on Masked"):
        jaxrewrite.transform(lambda x: jax.scipy.linalg.lu(x)[0])(masked(0)[0])


# --- bounds -----------------------------------------------------------------------------


WEIGHT = jnp.asarray(np.random.default_rng(1).normal(size=(4, 3)), jnp.float32)

BOUNDED = {
    **{
        name: getattr(jnp, name)
        for name in ["sin", "cos", "tan", "exp", "abs", "square", "floor", "sign"]
    },
    **{
        name: getattr(jnp, name)
        for name in ["tanh", "arctan", "cosh", "sinh", "negative", "cbrt"]
    },
    **{
        name: getattr(jax.nn, name)
        for name in ["relu", "gelu", "softplus", "softmax", "elu"]
    },
    "log": lambda x: jnp.log(jnp.abs(x) + 0.1),
    "sqrt": lambda x: jnp.sqrt(x + 1),
    "arcsin": lambda x: jnp.arcsin(x / 100),
    "arctan2": lambda x: jnp.arctan2(x, x + 1),
    "powers": lambda x: [
        *(x**3, x**4, x**-1, x**-2, x**-3, jnp.abs(x) ** 1.5),
        x ** jnp.array([2, 3, -1, 0]),
    ],
    "products": lambda x: [x * x[0], -2 * x, x / x[0], 1 / x, x / 3],
    "dot": lambda x: [x @ WEIGHT, WEIGHT.T @ x.T, x @ x.T],
    "reductions": lambda x: [x.sum(0), x.mean(), x.max(1), jnp.var(x, 1), jnp.cumsum(x, 0)],
    "compare": lambda x: [x < 1, x >= x[0], x == x, x != 0, ~((x > 0) & (x < 1))],
    "unless NaN": lambda x: [jnp.nanmax(x, 0), jnp.median(x, 0), jnp.logaddexp(x, x[0])],
    "where": lambda x: [jnp.where(x > 0, x, -2 * x), jnp.clip(x, -0.1, x[0])],
    "move": lambda x: [x.T, x.reshape(-1)[1:], jnp.roll(x, 1), x[jnp.array([2, 0])]],
    "assemble": lambda x: [jnp.concatenate([x, x]), jnp.pad(x, 1), x.at[0].add(x[1])],
    "sort": lambda x: jnp.sort(x, 1),
    "cast": lambda x: [x.astype(int), x.astype(bool), jnp.isfinite(x)],
    "window": lambda x: lax.conv(
        x[None, None], WEIGHT[None, None, :2, :2].astype(x.dtype), (1, 1), "SAME"
    ),
    "network": lambda x: jnp.tanh(jax.nn.relu(x @ WEIGHT) @ WEIGHT.T).sum(1),
    "normalised": lambda x: x * lax.rsqrt(jnp.var(x, 1, keepdims=True) + 1e-3),
    "scan": lambda x: lax.scan(lambda c, r: (jnp.sin(c + r), c * r), jnp.zeros(4), x),
    "cond": lambda x: lax.cond(jnp.arange(2)[1] > 0, jnp.sin, jnp.cos, x),
    "gradient": jax.grad(lambda x: jnp.sum(jnp.tanh(x @ WEIGHT) ** 2)),
}


# What takes longest to compile is for the slow test.
BOUNDED_BRIEFLY = [
    *("sin", "tan", "exp", "gelu", "powers", "products", "dot", "compare", "where"),
    *("reductions", "network"),
]

BOUNDED_ENTRYWISE = [
    *(
        "unless NaN",
        "cos",
        "abs",
        "square",
        "floor",
        "sign",
        "tanh",
        "arctan",
        "cosh",
        "sinh",
    ),
    *("negative", "cbrt", "relu", "softplus", "elu", "log", "sqrt", "arcsin"),
    *("arctan2", "cast"),
]


@pytest.fixture(scope="module")
def compiled():
    """Both the bounds and the numbers of some of the programs."""

    @functools.cache
    def compile_once(names):
        together = lambda x: {name: BOUNDED[name](x) for name in names}
        return jax.jit(forbid(together)), jax.jit(together)

    return compile_once


def check_bounds(bounds, values):
    for (path, bound), value in zip(
        jax.tree.leaves_with_path(bounds, is_leaf=lambda x: isinstance(x, Interval)),
        jax.tree.leaves(values),
        strict=True,
    ):
        assert isinstance(bound, Interval), path
        below, above, value = (
            np.asarray(x, "float64") for x in (bound.lower, bound.upper, value)
        )
        size = np.fmax(*(np.where(np.isfinite(x), abs(x), 0) for x in (below, above)))
        slack = 1e-5 * (
            1 + size
        )  # Each entry has its own: one may be far larger than others.
        inside = (below - slack <= value) & (value <= above + slack)
        assert (inside | np.isnan(value)).all(), jax.tree_util.keystr(path)


numbers = st.floats(-3, 3, width=32)
in_shape = lambda elements: arrays("float32", (3, 4), elements=elements)


def bounds_hold(compiled, centre, radius, where):
    bounds, values = compiled
    lower, upper = centre - radius, centre + radius
    point = np.clip(centre + where * radius, lower, upper)
    for x in (lower, upper, point):
        x[abs(x) < 1e-12] = 0  # Some threads of XLA take subnormal powers for zero.
    # A quotient by an interval that ends in zero leaves out zero.
    ends_in_zero = (point == 0) & ((lower == 0) != (upper == 0))
    point = np.where(ends_in_zero, (lower + upper) / 2, point)
    check_bounds(bounds(Interval(lower, upper)), values(point))


@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(
    in_shape(numbers),
    in_shape(st.sampled_from([0, 0.01, 0.5, 4]).map(np.float32)),
    in_shape(st.sampled_from([-1, -0.5, 0, 0.3, 1]).map(np.float32)),
)
def test_bounds_hold(compiled, centre, radius, where):
    bounds_hold(compiled(tuple(BOUNDED_BRIEFLY)), centre, radius, where)


def test_bounds_that_are_values_are_those_of_the_dense_program():
    """A value rounds its products in another way, of which the bounds of a point know nothing."""
    draw = np.random.default_rng(0)
    product = lambda x, v: lax.dot_general(x, v, (((0,), (0,)), ((), ())))
    for _ in range(5):
        a, b, x = (
            jnp.asarray(draw.normal(size=shape), jnp.float32)
            for shape in ((4, 2), (2, 4), (4, 2))
        )
        bound = values.LowRank(a, b)
        bounds = Interval(bound, bound)
        got = jaxrewrite.transform(product, materialise="allow")(x, bounds)
        dense = product(x, jaxrewrite.materialise(bound))
        assert (got.lower <= dense).all() and (dense <= got.upper).all()


def test_bounds_of_more_functions_hold_on_a_grid(compiled):
    """On numbers of both signs; the slow test has random ones."""
    centre = np.linspace(-4, 4, 12, dtype="float32").reshape(3, 4)
    together = compiled(tuple(BOUNDED_ENTRYWISE))
    for radius in (0, 0.3, 2.0):
        for where in (-1, -0.5, 0.3, 1):
            bounds_hold(together, centre, np.full_like(centre, radius), where)


# One operation has an operand twice, or its bounds are no numbers.
NOT_TIGHT = {"softplus", "elu", "arctan2", "unless NaN"}


@pytest.mark.parametrize("radius", [0, 0.25, 2.0])
def test_bounds_are_no_wider_than_what_is_between_them(compiled, radius):
    """At extrema, jumps and zeros, and beside them: by as much as 33 numbers in each tell."""
    bounds, fn = compiled(tuple(BOUNDED_ENTRYWISE))
    centre = np.array([-4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 2, 3, 4], "float32")
    low, high = (centre.reshape(3, 4) + sign * np.float32(radius) for sign in (-1, 1))
    got = bounds(Interval(low, high))
    between = [fn(low + (high - low) * np.float32(k / 32)) for k in range(33)]
    for name in {*BOUNDED_ENTRYWISE} - NOT_TIGHT:
        for bound, *numbers in zip(
            leaves(got[name], Interval),
            *(jax.tree.leaves(x[name]) for x in between),
            strict=True,
        ):
            numbers = np.array(numbers, "float64")
            least, most = numbers.min(0), numbers.max(0)
            slack = 1e-4 * (1 + abs(least) + abs(most)) + 0.05 * (most - least)
            is_tight = (bound.lower >= least - slack) & (bound.upper <= most + slack)
            assert (is_tight | np.isnan(most)).all(), (name, bound)


@pytest.mark.slow
@hypothesis.settings(max_examples=1000, deadline=None)
@hypothesis.given(
    in_shape(st.floats(-100, 100, width=32)),
    in_shape(st.floats(0, 10, width=32)),
    in_shape(st.floats(-1, 1, width=32)),
)
def test_bounds_hold_of_many(compiled, centre, radius, where):
    bounds_hold(compiled(tuple(BOUNDED)), centre, radius, where)


def rows(fn):
    return lambda x: fn(x.reshape(-1, 4))


# One operation each, so that bounds hold for what is computed.
OPERATIONS = {
    **{name: getattr(lax, name) for name in ("neg", "sign", "square")},
    "abs": jnp.abs,
    **{f"power {n}": functools.partial(lax.integer_pow, y=n) for n in (2, 3, 5)},
    "sum": rows(lambda x: lax.reduce_sum_p.bind(x, axes=(1,), **_MORE)),
    "cumsum": rows(lambda x: lax.cumsum(x, 1)),
    "window": rows(
        lambda x: lax.reduce_window(x, x.dtype.type(0), lax.add, (1, 2), (1, 1), "VALID")
    ),
    "scatter-add": rows(lambda x: x.at[:, jnp.array([0, 0])].add(x[:, 2:])),
    "scatter-sub": rows(lambda x: x.at[:, jnp.array([0, 0])].subtract(x[:, 2:])),
    "sort": rows(lax.sort),
    "self": lambda x: [x + x[::-1], x - x[::-1], x * x[::-1], x == x[::-1], x < x[::-1]],
    "casts": lambda x: [
        x.astype(d) for d in ("int8", "uint8", "int16", "uint32", "float16")
    ],
    "flags": lambda x: [x.astype(bool), x >= x, jnp.maximum(x, x[::-1])],
}
OPERATIONS_ON_FLOATS = {
    **{
        name: getattr(lax, name)
        for name in ("sin", "cos", "tan", "exp", "log", "tanh", "rsqrt", "acosh", "erf")
    },
    **{f"power {n}": functools.partial(lax.integer_pow, y=n) for n in (-1, -2)},
    "quotients": lambda x: [
        x / x,
        x / x[::-1],
        1 / x,
        jnp.exp(x / x),
        jnp.tanh(jnp.tan(x)),
    ],
    "powers": lambda x: [lax.pow(x, x[::-1]), lax.pow(x, x.dtype.type(-0.5) + 0 * x)],
    "products": rows(
        lambda x: [x @ jnp.ones(4, x.dtype), x @ jnp.eye(4, 3, dtype=x.dtype)]
    ),
    "comparisons": lambda x: [x <= jnp.inf, x >= -jnp.inf, jnp.isfinite(x)],
}
_MORE = {} if jax.__version_info__ < (0, 11) else {"out_sharding": None}


def ends_of(dtype):
    """The ends of a dtype, numbers next to them, and those where functions turn."""
    if jnp.issubdtype(dtype, jnp.integer):
        low, high = int(jnp.iinfo(dtype).min), int(jnp.iinfo(dtype).max)
        found = {low, low + 1, low // 2, 0, 1, 2, 5, 10, high // 2, high - 1, high}
        return [n for n in sorted(found | {-1, -2}) if low <= n]
    info = jnp.finfo(dtype)
    found = [
        0,
        0.5,
        1,
        1 + float(info.eps),
        np.pi / 2,
        4.7123885,
        3e4,
        0.4 * float(info.max),
    ]
    found += [float(info.tiny), float(info.max), np.inf]
    return sorted({float(np.asarray(sign * n, dtype)) for n in found for sign in (1, -1)})


def boxes_of(dtype):
    """Boxes between all of these ends, boxes to the next number, and points inside of them."""
    ends = np.array(ends_of(dtype)).astype(dtype)
    low, high = (x.ravel() for x in np.meshgrid(ends, ends))
    if not jnp.issubdtype(dtype, jnp.integer):
        poles = ((np.arange(-40, 40) + 0.5) * np.pi).astype(dtype)
        low = np.concatenate([low, poles, np.nextafter(poles, np.array(-np.inf, dtype))])
        high = np.concatenate([high, np.nextafter(poles, np.array(np.inf, dtype)), poles])
    low, high = low[low <= high], high[low <= high]
    size = len(low) // 4 * 4
    order = np.random.default_rng(0).permutation(len(low))[:size]
    low, high = low[order], high[order]
    zero = np.zeros_like(low)
    middle = (
        (low.astype(float) / 2 + high.astype(float) / 2).clip(-1e300, 1e300).astype(dtype)
    )
    inside = [low, high, middle, zero, -zero, zero + 1, low + zero + 1, high - 1]
    return (low, high), [np.where((low <= x) & (x <= high), x, low) for x in inside]


@pytest.mark.parametrize(
    "dtype",
    [
        *("int8", "uint32", "float32"),
        *(
            pytest.param(dtype, marks=pytest.mark.slow)
            for dtype in ("uint8", "int32", "float16", "bfloat16")
        ),
    ],
)
def test_no_number_in_a_box_leaves_its_bounds(dtype, bulk):
    is_integer = jnp.issubdtype(dtype, jnp.integer)
    fns = OPERATIONS if is_integer else OPERATIONS | OPERATIONS_ON_FLOATS
    together = lambda x: {name: fn(x) for name, fn in fns.items()}
    with np.errstate(all="ignore"):
        (low, high), points = boxes_of(jnp.dtype(dtype))
    bounds = jax.jit(forbid(together))(Interval(jnp.asarray(low), jnp.asarray(high)))
    bounds = jax.tree.leaves_with_path(bounds, is_leaf=lambda x: isinstance(x, Interval))
    dense = jax.jit(together)
    for point in points:
        values = jax.tree.leaves(dense(jnp.asarray(point)))
        for (path, bound), value in zip(bounds, values, strict=True):
            check_strictly(bound, value, jax.tree_util.keystr(path))


def check_strictly(bound, value, name):
    assert (bound.lower <= bound.upper).all(), name
    inside = np.array(bound.contains(value))
    if jnp.issubdtype(value.dtype, jnp.floating):
        info = jnp.finfo(value.dtype)
        lower, upper, value = (
            np.asarray(x).astype("float64") for x in (bound.lower, bound.upper, value)
        )
        # XLA's code for several functions at once differs from that for one in the last bits.
        slack = float(info.tiny) + 8 * float(info.eps) * np.where(
            np.isinf(value), 0, abs(value)
        )
        inside |= (lower - slack <= value) & (value <= upper + slack)
    at = ~inside
    assert inside.all(), (name, bound.lower[at], bound.upper[at], np.asarray(value)[at])


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.sum(-1),
        lambda x: x.sum((1, 2)),
        lambda x: x[:1, :1].sum(),
        lambda x: jnp.cumsum(x, 2),
        lambda x: x.at[0].add(x[1]),
    ],
)
def test_sums_of_integers_along_axes_of_size_one(fn):
    lower, upper = jnp.zeros((2, 2, 1), "int32"), jnp.ones((2, 2, 1), "int32")
    bounds = jaxrewrite.transform(fn)(Interval(lower, upper))
    np.testing.assert_array_equal(bounds.lower, fn(lower))
    np.testing.assert_array_equal(bounds.upper, fn(upper))


def test_integers_that_wrap_alike_keep_their_bounds():
    x = Interval(jnp.uint8([250, 0, 3]), jnp.uint8([255, 10, 9]))
    more, less = forbid(lambda x: (x + jnp.uint8(10), x - jnp.uint8(5)))(x)
    assert (more.lower.tolist(), more.upper.tolist()) == ([4, 10, 13], [9, 20, 19])
    assert (less.lower.tolist(), less.upper.tolist()) == ([245, 0, 0], [250, 255, 255])
    around = Interval.around(jnp.uint8([3, 254]), jnp.uint8([5, 5]))
    assert (around.lower.tolist(), around.upper.tolist()) == ([0, 249], [8, 255])


@pytest.mark.parametrize("fn", [jax.nn.logsumexp, jax.nn.softmax, jax.nn.log_softmax])
def test_derivatives_of_bounds_are_those_of_the_bounds(fn):
    low, high = jnp.array([0.0, 1.0]), jnp.array([0.5, 2.5])
    weights = jnp.array([1.0, 0.3])

    def loss(low, high):
        bounds = forbid(fn)(Interval(low, high))
        return jnp.sum(weights * bounds.lower) - jnp.sum(weights[::-1] * bounds.upper)

    jax.test_util.check_grads(loss, (low, high), 1, ["rev"], 2e-2, 2e-2, 1e-2)
    # A program's own holds an array constant.
    still = lambda x: forbid(lambda x: x * lax.stop_gradient(x))(Interval(x, x)).upper.sum()
    np.testing.assert_allclose(jax.grad(still)(high), high)


def test_the_derivative_of_a_width_does_not_stop():
    still = lambda low, high: forbid(lax.stop_gradient)(Interval(low, high))
    for end, slopes in (("lower", (0.5, -0.5)), ("upper", (-0.5, 0.5))):
        number = lambda low, high, end=end: getattr(still(low, high), end)
        assert jax.grad(number, (0, 1))(1.0, 4.0) == slopes


def test_bounds_are_as_tight_as_they_can_be():
    x = Interval(jnp.array([-1.0, 1.0, -2.0]), jnp.array([2.0, 2.0, -1.0]))
    for fn, lower, upper in (
        (jnp.square, [0, 1, 1], [4, 4, 4]),
        (lambda x: x**3, [-1, 1, -8], [8, 8, -1]),
        (jnp.abs, [0, 1, 1], [2, 2, 2]),
        (jnp.cos, [np.cos(2), np.cos(2), np.cos(2)], [1, np.cos(1), np.cos(1)]),
        (lambda x: 1 / x, [-np.inf, 0.5, -1], [np.inf, 1, -0.5]),
        (lambda x: jnp.ones(3) @ x, -2, 3),
        (lambda x: x > 0, [0, 1, 0], [1, 1, 0]),
        (lambda x: jnp.where(x > 0, 10 + x, x), [-1, 11, -2], [12, 12, -1]),
        (jax.nn.relu, [0, 1, 0], [2, 2, 0]),
        (lambda x: 1 / (x + 2), [0.25, 0.25, -np.inf], [1, 1 / 3, np.inf]),
        (lambda x: 1 / jax.nn.relu(x), [-np.inf, 0.5, -np.inf], [np.inf, 1, np.inf]),
    ):
        got = forbid(fn)(x)
        np.testing.assert_allclose(got.lower, lower, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(got.upper, upper, rtol=1e-6, atol=1e-6)


def test_bounds_around_integers_wrap_only_where_they_must():
    x = Interval.around(jnp.array([3, 127, -128], "int8"), jnp.array([0, 1, 1], "int8"))
    np.testing.assert_array_equal(x.lower, [3, 126, -128])
    np.testing.assert_array_equal(x.upper, [3, 127, -127])


def test_bounds_of_functions_that_round_are_apart():
    """On both sides by as much as the functions err, but not beyond their ends."""
    low, high = Interval(jnp.float32(0.5), jnp.float32(0.75)), jnp.float32(200)
    for fn in (jnp.exp, jnp.sin, jnp.tanh, jnp.log):
        got = forbid(fn)(low)
        assert got.lower < fn(low.lower) and got.upper > fn(low.upper)
    assert forbid(jnp.tanh)(Interval(-high, high)).upper == 1


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_bounds_keep_the_dtype(dtype):
    with jax.enable_x64(dtype == "float64"):
        x = NUMBERS.astype(dtype)
        for name, fn in BOUNDED.items():
            want = jax.eval_shape(fn, x)
            got = jax.eval_shape(forbid(fn), Interval(x, x))
            for g, w in zip(leaves(got, Interval), jax.tree.leaves(want), strict=True):
                assert (g.shape, g.dtype) == (w.shape, w.dtype), name


def test_bounds_of_comparisons_in_the_total_order():
    edges, x = jnp.array([0.0, 1.0, 3.0]), jnp.array([0.5, 1.0, 3.0])
    bounds = Interval(x - 0.1, x + 0.1)
    for name in ("lt", "le", "eq"):
        got = forbid(functools.partial(jaxrewrite.bind, f"{name}_to"))(edges, bounds)
        want = forbid(functools.partial(jaxrewrite.bind, name))(edges, bounds)
        np.testing.assert_array_equal(got.lower, want.lower)
        np.testing.assert_array_equal(got.upper, want.upper)
    places = functools.partial(jnp.searchsorted, method="compare_all")
    assert forbid(places)(edges, bounds).contains(places(edges, x)).all()


def test_a_bound_of_zero_has_no_sign_in_the_total_order():
    ends = jnp.array([-0.0, 0.0, 1.0, jnp.inf])
    x, y = jnp.meshgrid(ends, ends)
    for name in ("lt_to", "le_to", "eq_to"):
        fn = functools.partial(jaxrewrite.bind, name)
        unsigned = Interval(abs(x), abs(x))
        for a, b in ((unsigned, y), (x, Interval(y, y)), (Interval(-x, x), y)):
            assert forbid(fn)(a, b).contains(fn(x, y)).all()
        same = forbid(fn)(Interval(x, x), x)
        assert (same.lower == same.upper)[x != 0].all()


def test_a_point_stays_a_point():
    point = Interval(NUMBERS, NUMBERS)
    got = forbid(lambda x: jax.nn.gelu(x @ WEIGHT).sum())(point)
    np.testing.assert_allclose(got.lower, got.upper, rtol=1e-6)
    bounds = Interval.around(NUMBERS, 0.1)
    assert bounds.contains(NUMBERS).all() and not bounds.contains(NUMBERS + 1).any()
    ends = jnp.array([-jnp.inf, 0.0, jnp.inf])
    finite = forbid(jnp.isfinite)(Interval(ends, ends))
    for bound in (finite.lower, finite.upper):
        np.testing.assert_array_equal(bound, jnp.isfinite(ends))


def test_bounds_can_be_trained():
    """The gradient of a bound, through functions with derivative rules of their own."""
    x = Interval.around(NUMBERS, jnp.float32(0.1))
    worst = lambda w: forbid(lambda x, w: jax.nn.relu(x @ w))(x, w).upper.sum()
    by_hand = lambda w: jax.nn.relu(NUMBERS @ w + 0.1 * abs(w).sum(0)).sum()
    np.testing.assert_allclose(
        jax.grad(worst)(WEIGHT), jax.grad(by_hand)(WEIGHT), rtol=1e-4, atol=1e-5
    )


def test_the_first_of_conditions_may_be_one_that_is_missing():
    conditions = [
        Masked(jnp.array([True, False, True, False]), jnp.array([1, 1, 0, 0], bool)),
        jnp.array([True, False, True, True]),
    ]
    choices = [jnp.arange(4.0), 10 + jnp.arange(4.0)]
    got = forbid(lambda conditions: jnp.select(conditions, choices, -1.0))(conditions)
    assert got.mask.tolist() == [True, True, False, False]
    assert got.filled(0).tolist() == [0, 0, 2, 13]
    flags = Masked(jnp.array([False, True, False]), jnp.array([0, 0, 1], bool))
    index = forbid(jnp.argmax)(flags)
    assert (index.filled(9), forbid(jnp.argmin)(flags).filled(9)) == (1, 0)


@pytest.mark.parametrize("apply", [lambda fn: fn, jax.jit, jax.vmap])
def test_a_piece_of_a_missing_condition_is_missing(apply):
    def fn(x):
        return jnp.piecewise(x, [x < 1.5, x > 2.5], [lambda x: -x, 7.0, 5.0])

    x = jnp.array([[1.0, 1.0, 3.0], [2.0, 2.0, 1.0]])
    missing = jnp.array([[False, True, False], [True, False, False]])
    got = forbid(apply(fn))(Masked(x, missing))
    np.testing.assert_array_equal(got.mask, missing)
    np.testing.assert_array_equal(got.filled(0), jnp.where(missing, 0, fn(x)))


def test_the_place_at_which_most_conditions_hold():
    flags = Masked(
        jnp.array([[0, 1, 0], [1, 0, 1], [1, 1, 0]], bool), jnp.eye(3, dtype=bool)
    )
    as_numbers = forbid(lambda x: jnp.argmax(x.astype(jnp.int8), axis=1))(flags)
    assert as_numbers.filled(9).tolist() == [9, 0, 0]
    most = forbid(lambda x: jnp.argmax(jnp.cumsum(x, axis=1), axis=1))(flags)
    assert most.mask.all()  # One more may hold where it is missing.
    numbers = Masked(jnp.array([1, 0, 3]), jnp.array([0, 1, 0], bool))
    assert forbid(lambda x: jnp.argmax(jnp.cumsum(x)))(numbers).filled(9) == 2


def test_bounds_at_a_negative_zero():
    x = Interval(jnp.array([-0.0]), jnp.array([4.0]))
    for fn in (lax.rsqrt, lambda x: x ** jnp.array([-1.0])):
        bounds = forbid(fn)(x)
        assert bounds.lower <= fn(4.0) and bounds.upper == jnp.inf


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x * jnp.array([jnp.nan]),
        lambda x: x / jnp.array([jnp.nan]),
        lambda x: jnp.where(x > 0.5, x, jnp.nan),
        *(lambda x: x / (0 * x), lambda x: jnp.sqrt(x - 0.5), lambda x: jnp.exp(x / x)),
        *(lambda x: jnp.maximum(x / x, 0), lambda x: jnp.log(x) * (x - x)),
    ],
)
def test_what_may_be_nan_has_no_bounds(fn):
    bounds = forbid(fn)(Interval(jnp.array([0.0]), jnp.array([1.0])))
    assert (bounds.lower, bounds.upper) == (-jnp.inf, jnp.inf)


def test_bounds_that_rounding_has_exchanged():
    """Bounds that rounding has exchanged still make an array equal to itself."""
    x = jnp.array([0.3, -0.7])
    compare = forbid(lambda v: (v == v, v != v, v < v, v <= v))
    # Of tracers no order is known.
    equal = jax.jit(lambda x: compare(Interval(x + 1e-7, x)))(x)
    assert equal[0].upper.all() and not equal[1].lower.any()
    assert not equal[2].lower.any() and equal[3].upper.all()
    scaled = Interval(Scaled(x, jnp.float32(1.7)), Scaled(x, jnp.float32(1.7)))
    for fn in (lambda v: jnp.logaddexp(v, v), jax.nn.softplus):
        implicit = jaxrewrite.transform(fn, materialise="allow")
        bounds, at = jax.jit(implicit)(scaled), fn(x * 1.7)
        assert (bounds.lower <= at + 1e-5).all() and (at - 1e-5 <= bounds.upper).all()


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (jnp.argmax, "'argmax' on Interval, which can't be made dense: it is known"),
        (lax.lgamma, "'lgamma' on Interval"),
        (lambda x: lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x), "of type Interval"),
        (lambda x: lax.sort((x, x), num_keys=1), "no bounds of sort that takes"),
        (lambda x: x.at[0].apply(jnp.negative), "no bounds of scatter that applies"),
        (lambda x: NUMBERS[x[0].astype(int)], "on Interval, which can't be made dense"),
        (lambda x: x.astype(int) // 2, "no bounds of div on integers"),
        (jnp.fft.fft, "no bounds of convert_element_type to complex numbers"),
        (lambda x: x.at[x[0].astype(int)].set(1.0), "'scatter' on Interval, which can't"),
    ],
)
def test_what_has_no_bounds(fn, message):
    with pytest.raises(TypeError, match=message):
        jaxrewrite.transform(fn)(Interval.around(NUMBERS, 0.1))


@pytest.mark.parametrize(
    ("lower", "upper", "message"),
    [
        (jnp.ones(2), jnp.ones(3), "one shape and dtype"),
        (jnp.ones(2), jnp.ones(2, int), "one shape and dtype"),
        (jnp.ones(2), jnp.zeros(2), "lower must not be above upper"),
        (jnp.full(2, jnp.nan), jnp.zeros(2), "nor NaN"),
        (float("nan"), 1.0, "nor NaN"),
        (2.0, 1.0, "lower must not be above upper"),
        (jnp.ones(2, complex), jnp.ones(2, complex), "lower must be real"),
    ],
)
def test_bad_bounds(lower, upper, message):
    with pytest.raises(ValueError, match=message):
        Interval(lower, upper)


# --- tags -------------------------------------------------------------------------------


def tags(tree):
    """The tags of each result, in one string."""
    found = leaves(tree, Tagged)
    return ["".join(sorted(x.tags)) if isinstance(x, Tagged) else "" for x in found]


def test_tags_follow_what_depends_on_them():
    a, b = Tagged(NUMBERS, "a"), Tagged(NUMBERS, "b")
    fn = lambda a, b, c: [
        *(a, a * c, a + b, c * 2, jnp.concatenate([a, c]), c.at[0].set(b[0]), jnp.sort(a)),
        *(*jnp.split(b, 2, 1), jax.nn.relu(a), jnp.linalg.qr(b)[1], lax.top_k(a, 2)[1]),
        lax.optimization_barrier((a, b, c)),
        *(jnp.linalg.solve(jnp.eye(3), a), batched_twice(b)),
    ]
    want = ["a", "a", "ab", "", "a", "b", "a", "b", "b", "a", "b", "a", "a", "b", ""]
    want += ["a", "b"]
    assert tags(forbid(fn)(a, b, jnp.ones((3, 4)))) == want


@pytest.mark.parametrize("mode", ["fill", "clip", "wrap"])
def test_tags_of_what_is_looked_up(mode):
    a, b = Tagged(NUMBERS, "a"), Tagged(jnp.array([2, 0]), "b")
    take = lambda x, at: jnp.take(x, at, axis=0, mode=mode)
    assert tags(forbid(take)(a, b.array)) == ["a"]
    assert tags(forbid(take)(NUMBERS, b)) == ["b"]
    assert tags(forbid(take)(a, b)) == ["ab"]


def test_tags_in_a_backward_pass():
    def loss(w, v, x):
        return jnp.sum(jnp.tanh(x @ w)), jnp.sum(v**2)

    def backward(w, v, x, cotangents):
        return jax.vjp(loss, w, v, x)[1](cotangents)

    cotangents = Tagged(jnp.ones(()), "first"), Tagged(jnp.ones(()), "second")
    got = forbid(backward)(WEIGHT, WEIGHT, NUMBERS, cotangents)
    assert tags(got) == ["first", "second", "first"]


def test_tags_in_loops_and_branches():
    a, b = Tagged(NUMBERS, "a"), Tagged(NUMBERS, "b")
    assert tags(
        forbid(lambda a, b: lax.cond(jnp.arange(2)[1] > 0, lambda: a, lambda: b))(a, b)
    ) == ["ab"]
    assert tags(
        forbid(
            lambda a: lax.cond(
                jnp.arange(2)[1] > 0, lambda: a, lambda: a.at[0].get() + NUMBERS
            )
        )(a)
    )
    carry = lambda a, b: lax.fori_loop(0, 3, lambda i, c: (c[1], c[0] + a), (b, NUMBERS))
    assert tags(forbid(carry)(a, b)) == ["ab", "ab"]
    branch = lambda a, b: lax.cond(a[0, 0] > 0, lambda: (NUMBERS, b), lambda: (b, 2 * b))
    assert tags(forbid(branch)(a, b)) == ["ab", "ab"]
    chosen = lambda a: lax.cond(a[0, 0] > 0, jnp.sin, jnp.cos, NUMBERS)
    assert tags(forbid(chosen)(a)) == ["a"]
    n = Tagged(jnp.array(2), "n")  # It decides how often the body runs.
    turns = lambda n: [
        lax.fori_loop(0, n, lambda i, x: x + i, NUMBERS),
        lax.fori_loop(n, 3, lambda i, x: x + i, NUMBERS),
    ]
    assert tags(jaxrewrite.transform(turns)(n)) == ["", "n"]


def test_tags_and_derivatives_from_outside():
    a = Tagged(NUMBERS, {"a", "b"})
    result, tangent = jax.jvp(jaxrewrite.transform(jax.nn.relu), (a,), (a,))
    assert tags([result, tangent]) == ["ab", "ab"]
    loss = lambda x: jaxrewrite.transform(halved_square)(x).array.sum()
    gradient = jax.grad(loss)(a)
    np.testing.assert_allclose(gradient.array, NUMBERS, rtol=1e-6)


@pytest.mark.parametrize("given", [(), [1], {"a", 2}])
def test_bad_tags(given):
    with pytest.raises(ValueError, match="Tagged: tags must be strings"):
        Tagged(NUMBERS, given)


# --- keys -------------------------------------------------------------------------------


def draws(key):
    """What programs do with keys."""
    first, *others = jax.random.split(key, 4)
    batch = jax.random.split(jax.random.fold_in(key, 7), (2, 3))
    loop = lambda k, _: (jax.random.split(k)[0], jax.random.normal(k, (2,)))
    return {
        "draws": [
            jax.random.normal(first, (3,)),
            jax.random.permutation(others[1], 6),
            jax.random.bernoulli(others[2], 0.5, (4,)),
            jax.random.bits(batch[1, 2], (3,)),
            jax.vmap(jax.random.uniform)(batch[0]),
            jax.random.key_data(jax.random.clone(key)),
        ],
        "keys": [
            others[0],
            batch,
            batch.reshape(3, 2).T[0],
            jnp.concatenate([batch, batch]),
        ],
        "loop": lax.scan(loop, key, None, 3),
        "cond": lax.cond(jnp.arange(2)[1] > 0, lambda: first, lambda: jax.random.key(3)),
    }


def test_keys_are_those_of_jax(bulk):
    got = jax.jit(forbid(draws))(Threefry.seed(5))
    want = jax.jit(draws)(jax.random.key(5, impl="threefry2x32"))
    is_key = lambda x: isinstance(x, Threefry)
    for g, w in zip(leaves(got, Threefry), jax.tree.leaves(want), strict=True):
        assert is_key(g) == jax.dtypes.issubdtype(w.dtype, jax.dtypes.prng_key)
        if is_key(g):
            assert (g.shape, g.dtype) == (w.shape, w.dtype)
            g, w = g.data, jax.random.key_data(w)
        # The bits are the same; a function of them is rounded as the program has it.
        tolerance = 1e-6 if jnp.issubdtype(w.dtype, jnp.inexact) else 0
        np.testing.assert_allclose(g, w, rtol=tolerance)


def test_keys_beside_derivatives_and_batches():
    keys = forbid(lambda key: jax.random.split(key, 3))(Threefry.seed(1))
    dropout = lambda x, key: jnp.where(
        jax.random.bernoulli(key, 0.5, x.shape), x, 0.0
    ).sum()
    got = jax.vmap(jax.grad(forbid(dropout)), (None, 0))(NUMBERS, keys)
    want = jax.vmap(jax.grad(dropout), (None, 0))(NUMBERS, keys.materialise())
    np.testing.assert_array_equal(got, want)
    assert (Threefry.of(keys.materialise()).data == keys.data).all()
    scan = lambda ks: lax.scan(lambda c, k: (c, jax.random.bits(k)), 0, ks)[1]
    scanned = forbid(scan)(keys)
    np.testing.assert_array_equal(scanned, jax.vmap(jax.random.bits)(keys.materialise()))


def test_bad_keys():
    for data in (jnp.zeros(2), jnp.zeros(3, jnp.uint32), jnp.uint32(1)):
        with pytest.raises(ValueError, match="Threefry: data must have"):
            Threefry(data)
    for key in (jnp.zeros(2, jnp.uint32), jax.random.key(0, impl="rbg")):
        with pytest.raises(ValueError, match="Threefry: key must be"):
            Threefry.of(key)


# --- one within another -------------------------------------------------------------------


OUTERMOST_FIRST = {
    "tagged": Tagged(NUMBERS, "t"),
    "named": NAMED,
    "unitful": LENGTH,
    "masked": Masked(NUMBERS, NUMBERS > 1),
    "interval": Interval(NUMBERS, NUMBERS + 1),
}


@pytest.mark.parametrize("one", OUTERMOST_FIRST)
def test_the_outer_annotation_wraps_the_inner(one):
    order = list(OUTERMOST_FIRST)
    for other in order:
        outer, inner = (
            OUTERMOST_FIRST[name] for name in sorted([one, other], key=order.index)
        )
        pair = OUTERMOST_FIRST[one], OUTERMOST_FIRST[other]
        for fn in (jnp.multiply, lambda x, y: jnp.einsum("ab,ab->b", x, y)):
            result = forbid(fn)(*pair)
            assert type(result) is type(outer)
            if one != other:
                assert type(jax.tree.leaves(result, is_leaf=_is_within)[0]) is type(inner)


def _is_within(x):
    return isinstance(x, jaxrewrite.Value) and not any(
        isinstance(getattr(x, name, None), jaxrewrite.Value) for name in ("array", "lower")
    )


def test_several_of_them_together():
    a, b = OUTERMOST_FIRST["tagged"], OUTERMOST_FIRST["masked"]
    for fn in (
        lambda a, b: jnp.concatenate([b, a, NUMBERS]),
        lambda a, b: jnp.where(NUMBERS > 1, b, a),
        lambda a, b: jnp.clip(b, a, 2.0),
    ):
        result = forbid(fn)(a, b)
        assert isinstance(result, Tagged) and isinstance(result.array, Masked)


@pytest.mark.parametrize("first", [True, False])
def test_several_arrays_are_placed_at_once(first):
    x, _ = masked(6)
    y = jnp.ones(3)
    operands = (x, y) if first else (y, x)
    placed = forbid(lambda *both: jax.device_put(both))(*operands)
    got, other = placed if first else placed[::-1]
    np.testing.assert_array_equal(got.mask, x.mask)
    np.testing.assert_array_equal(got.filled(0), x.filled(0))
    np.testing.assert_array_equal(other, y)


def test_an_array_meets_itself():
    """A rule is told so: each number is equal to itself, and a square is not negative."""
    inf = jnp.inf
    x = Interval(jnp.array([-2.0, 1.0, -inf, -inf]), jnp.array([1.0, 1.0, 2.0, inf]))
    some, none, all_ = (jnp.array([*[a] * 3, b]) for a, b in ((0, 1), (0, 0), (1, 1)))
    comparisons = {
        **dict.fromkeys((lax.eq, lax.le, lax.ge), (1 - some, all_)),
        **dict.fromkeys((lax.lt, lax.gt), (none, none)),
        **{lax.ne: (none, some), jnp.isnan: (none, some)},
    }
    for compare, (surely, maybe) in comparisons.items():
        fn = compare if compare is jnp.isnan else lambda x, compare=compare: compare(x, x)
        found = forbid(fn)(x)
        np.testing.assert_array_equal(found.lower, surely, str(compare))
        np.testing.assert_array_equal(found.upper, maybe, str(compare))
    square = forbid(lambda x: x * x)(x)
    np.testing.assert_array_equal(square.lower, [0, 1, 0, -inf])
    np.testing.assert_array_equal(square.upper, [4, 1, inf, inf])
    same_numbers = forbid(lambda x, y: x * y)(x, Interval(x.lower, x.upper))
    np.testing.assert_array_equal(same_numbers.lower, [-2, 1, -inf, -inf])


def test_medians_of_bounds_are_bounded():
    x = Interval(jnp.array([0.0, 1.0]), jnp.array([0.1, 1.1]))
    for fn in (jnp.median, lambda x: jnp.quantile(x, 0.5)):
        found = forbid(fn)(x)
        np.testing.assert_allclose([found.lower, found.upper], [0.5, 0.6], rtol=1e-5)


def test_powers_by_integers_are_bounded():
    x = Interval(jnp.array([-1.0, -1.0, 2.0, -1.0]), jnp.array([1.0, 0.5, 4.0, 1.0]))
    found = forbid(lambda x: x ** jnp.array([2, 3, -1, -2]))(x)
    np.testing.assert_allclose(found.lower, [0, -1, 0.25, -jnp.inf], rtol=1e-5)
    np.testing.assert_allclose(found.upper, [1, 0.125, 0.5, jnp.inf], rtol=1e-5)


def test_powers_of_integers_have_bounds_up_to_the_last_that_does_not_wrap():
    x = Interval(jnp.int8([-11, -11]), jnp.int8([11, 12]))
    bounds = forbid(lambda x: lax.integer_pow(x, 2))(x)
    np.testing.assert_array_equal(bounds.lower, [0, -128])
    np.testing.assert_array_equal(bounds.upper, [121, 127])


@pytest.mark.filterwarnings("ignore::jaxrewrite.MaterialisationWarning")
@pytest.mark.parametrize(
    "around",
    [
        lambda v: Scaled(v, jnp.float32(2.0)),
        lambda v: Sum((v, NUMBERS)),
        lambda v: Kronecker(v, jnp.ones((1, 1))),
    ],
    ids=["Scaled", "Sum", "Kronecker"],
)
@pytest.mark.parametrize(
    "fn",
    [
        lambda w: jnp.maximum(w, 1.5),
        lambda w: jnp.sin(w) * jnp.cos(w),
        lambda w: jnp.maximum(w, 2 * w[::-1]),
        lambda w: lax.scan(lambda c, _: (jnp.sin(c) + w, c), w, None, length=2)[0],
        lambda w: lax.cond(w.shape[0] > 2, jnp.sin, lambda w: w, w),
        lambda w: lax.cond(w.shape[0] < 2, jnp.sin, lambda w: w, w),
        lambda w: lax.while_loop(
            lambda s: s[0] < 2, lambda s: (s[0] + 1, s[1] / 2), (0, w)
        )[1],
        lambda w: jax.vmap(lambda row: jnp.maximum(row, 1.5) + row)(w),
        jax.jit(lambda w: jnp.exp(w) + w),
    ],
)
def test_what_is_around_an_annotation_becomes_dense_alone(fn, around):
    """The annotation stays, and its rules answer; it may be one that is never dense."""
    mask = jnp.zeros((3, 4), bool).at[0, 1].set(True)
    run = jaxrewrite.transform(lambda w: jnp.tanh(fn(w)), materialise="allow")
    result = run(around(Masked(NUMBERS, mask)))
    wanted = jnp.tanh(fn(around(NUMBERS).materialise()))
    known = ~jnp.isnan(result.filled(jnp.nan))
    assert known.sum() >= 10
    np.testing.assert_allclose(
        jnp.where(known, result.filled(0), 0), jnp.where(known, wanted, 0), rtol=1e-6
    )
    tagged = run(around(Tagged(NUMBERS, "a")))
    assert tagged.tags == frozenset("a")
    np.testing.assert_allclose(tagged.materialise(), wanted, rtol=1e-6)


def test_the_policy_is_asked_for_what_is_around_an_annotation():
    value = Sum((Masked(Diagonal(NUMBERS[0]), jnp.zeros((4, 4), bool)),))
    with pytest.raises(jaxrewrite.MaterialisationError, match="'max' .* of Sum"):
        forbid(lambda w: jnp.maximum(w, 1.5))(value)
    with pytest.warns(jaxrewrite.MaterialisationWarning) as warned:
        jaxrewrite.transform(lambda w: jnp.maximum(w, 1.5))(value)
    assert [x.message.args[0].split(",")[0] for x in warned] == [
        "No rule for primitive 'max' holds for what is inside of Sum",
        "No rule for primitive 'max' on Diagonal",
    ]


SCALES = Diagonal(NUMBERS[0, :3])
LAZY = {
    "Product": lambda v: Product((SCALES, v)),
    "Kronecker": lambda v: Kronecker(v, jnp.eye(2)),
    "Scaled": lambda v: Scaled(v, jnp.float32(2.0)),
    "Sum": lambda v: Sum((v, v)),
    "transpose": lambda v: jaxrewrite.transform(jnp.transpose)(Product((v, SCALES))),
    "deep": lambda v: Product((Scaled(v, jnp.float32(2.0)), SCALES)),
}
# Each with the power of the matrix's units that the result has.
OF_LAZY = {
    "rows": (lambda w: w @ jnp.ones(w.shape[1]), 1),
    "columns": (lambda w: jnp.ones((2, w.shape[0])) @ w, 1),
    "transposed": (lambda w: w.T @ jnp.ones((w.shape[0], 2)), 1),
    "trace": (jnp.trace, 1),
    "diagonal": (jnp.diagonal, 1),
    "row": (lambda w: w[1], 1),
    "sum": (lambda w: w.sum(0), 1),
    "square": (lambda w: (w @ w) @ jnp.ones(w.shape[1]), 2),
    "solution": (lambda w: jnp.linalg.solve(w, jnp.ones(w.shape[0])), -1),
    "inverse": (lambda w: jnp.linalg.inv(w) @ jnp.ones(w.shape[0]), -1),
}


@pytest.mark.parametrize("around", LAZY)
def test_rules_see_an_annotation_in_a_field_as_an_array(around):
    """So it takes part in whatever a rule computes of the field, by its own rules."""
    square = NUMBERS[:, :3] + 3 * jnp.eye(3)
    program = lambda w: {key: fn(w) for key, (fn, _) in OF_LAZY.items()}
    want = jax.jit(program)(LAZY[around](square).materialise())
    # Not all are solved without factors.
    transformed = jax.jit(jaxrewrite.transform(program, materialise="allow"))

    def run(w):
        results = transformed(w).items()
        return {key: x.x * x.scale if isinstance(x, Scaled) else x for key, x in results}

    got = run(LAZY[around](Unitful(square, "m")))
    for key, (_, power) in OF_LAZY.items():
        assert got[key].units == Units("m") ** power, key
        np.testing.assert_allclose(got[key].array, want[key], rtol=1e-4, err_msg=key)
    tagged = run(LAZY[around](Tagged(square, "a")))
    for key, x in tagged.items():
        assert x.tags == frozenset("a"), key
        np.testing.assert_allclose(x.materialise(), want[key], rtol=1e-4, err_msg=key)


def test_a_stack_of_annotations_in_a_field_is_an_array_to_rules():
    """Its content stands for no array by itself, so that no rule sees that as one."""
    tagged = jaxrewrite.Batched(Tagged(NUMBERS, "a"), 3)
    nested = jaxrewrite.Batched(Sum((Tagged(NUMBERS, "a"), NUMBERS)), 3)
    for stack, dense in ((tagged, NUMBERS), (nested, 2 * NUMBERS)):
        for around in (lambda v: Sum((v, NUMBERS)), lambda v: Scaled(v, jnp.float32(2))):
            for fn in (lambda w: w * 3, lambda w: w.sum(0), lambda w: w.T @ jnp.ones(3)):
                got = jaxrewrite.transform(fn, materialise="allow")(around(stack))
                want = fn(around(dense).materialise())
                np.testing.assert_allclose(
                    jaxrewrite.materialise(got), want, rtol=1e-6, err_msg=str(got)
                )


@pytest.mark.parametrize("around", ["Product", "Kronecker", "Scaled", "deep"])
def test_stacks_of_lazy_values_around_an_annotation_keep_it(around):
    square = NUMBERS[:, :3] + 3 * jnp.eye(3)
    elements = [LAZY[around](Unitful(factor * square, "m")) for factor in (1, 2)]
    stacked = jaxrewrite.stack(elements)
    assert type(stacked) is type(elements[0])
    programs = (
        lambda s: s.sum(0) @ jnp.ones(s.shape[-1]),
        lambda s: jax.vmap(lambda w: w.T @ jnp.ones(w.shape[0]))(s),
        lambda s: lax.scan(lambda c, w: (c, w @ jnp.ones(w.shape[1])), 0.0, s)[1],
    )
    dense = jnp.stack([LAZY[around](factor * square).materialise() for factor in (1, 2)])
    for fn in programs:
        got = jaxrewrite.transform(fn, materialise="allow")(stacked)
        got = got.x * got.factor() if isinstance(got, Scaled) else got
        assert got.units == Units("m")
        np.testing.assert_allclose(got.array, fn(dense), rtol=1e-5)


@pytest.mark.parametrize(
    "around", [lambda v: Scaled(v, jnp.float32(1.0)), lambda v: Sum((v,))]
)
def test_annotations_inside_of_another_operand_are_seen(around):
    """A rule sees the units of an operand, and not those inside of a sum of arrays."""
    run = jaxrewrite.transform(lambda f, x, y: f(x, y), materialise="allow")
    x, y = Unitful(NUMBERS, "m"), around(Unitful(NUMBERS, "s"))
    for fn in (jnp.multiply, lambda x, y: y * x):
        assert run(fn, x, y).units == Units("m s")
    with pytest.raises(UnitsError, match="m and s"):
        run(jnp.add, x, y)
    same = around(Unitful(NUMBERS, "m"))
    for fn in (
        jnp.add,
        lambda x, y: jnp.where(x > y, x, y),
        lambda x, y: jnp.stack([x, y]),
    ):
        assert run(fn, x, same).units == Units("m")
    mask = jnp.zeros((3, 4), bool)
    one, other = (
        Masked(NUMBERS, mask.at[0, 0].set(True)),
        Masked(NUMBERS, mask.at[1, 1].set(True)),
    )
    assert run(jnp.add, one, around(other)).mask.sum() == 2
    both = run(jnp.add, Tagged(NUMBERS, "a"), around(Tagged(NUMBERS, "b")))
    assert both.tags == frozenset("ab")
    with pytest.raises(ValueError, match="aligns an axis named 'i'"):
        run(jnp.add, Named(NUMBERS, ("i", None)), around(Named(NUMBERS, ("j", None))))
    # A barrier tells nothing of the one operand to the other.
    barrier = jaxrewrite.transform(lax.optimization_barrier, materialise="forbid")
    assert type(barrier((x, same))[1]) is type(same)


def test_bounds_at_the_ends_of_an_integer_type_stay():
    """The ends themselves can be converted, and what is beyond them has no bounds."""
    for low, high, wanted in [(-128, 5, (-128, 5)), (-5, 127, (-5, 127))]:
        ends = jnp.float32(low), jnp.float32(high)
        found = jaxrewrite.transform(lambda x: x.astype("int8"))(Interval(*ends))
        assert (int(found.lower), int(found.upper)) == wanted
    beyond = jaxrewrite.transform(lambda x: x.astype("int8"))
    for low, high in [(-129.5, 5), (-5, 128)]:
        found = beyond(Interval(jnp.float32(low), jnp.float32(high)))
        assert (int(found.lower), int(found.upper)) == (-128, 127)


def test_rounding_of_a_convolution_is_that_of_its_sums():
    """What the sums are at most is no less than any sum."""
    x, y = jnp.ones((1, 5, 4)), jnp.arange(1.0, 17).reshape(4, 4, 1)[:, :, [0, 0, 0]]
    numbers = jax.lax.conv_dimension_numbers(
        x.shape, y[..., :2].shape, ("NHC", "IHO", "NHC")
    )
    params = {"dimension_numbers": numbers}
    kernel = y[..., :2]
    size, margin = _rounding(x, kernel, jax.lax.conv_general_dilated_p, params)
    assert size == kernel.sum((0, 1)).max()
    assert 0 < margin < 1e-3 * size


def test_powers_of_a_base_that_may_be_zero_are_bounded_where_the_exponent_is_not_negative():
    base = Interval(jnp.zeros(3), jnp.array([2.0, 3.0, 4.0]))
    got = forbid(jnp.power)(base, jnp.array([2.0, 0.5, 0.0]))
    np.testing.assert_allclose(got.lower, [0, 0, 1], rtol=1e-5)
    np.testing.assert_allclose(got.upper, [4, 3**0.5, 1], rtol=1e-5)
    got = forbid(jnp.power)(base, jnp.array([-1.0, -0.5, -2.0]))
    np.testing.assert_array_equal(got.upper, jnp.inf)


def test_an_interval_is_large_beside_an_array_of_a_thirtysecond_of_its_size():
    interval = lambda n: Interval(jnp.zeros(n), jnp.ones(n))
    for n, is_large in [(64, True), (63, False)]:
        assert _is_one_large(interval(n), jnp.ones(2)) is is_large
        assert _is_one_large(jnp.ones(2), interval(n)) is is_large
    assert not _is_one_large(interval(64), interval(2))
    assert not _is_one_large(interval(2), jnp.ones(64))


def test_a_product_is_dense_where_a_factor_has_an_annotation_inside():
    bands = [jnp.arange(1.0, n) for n in (4, 5, 4)]
    plain = Tridiagonal(*bands)
    tagged = Tridiagonal(*bands[:2], Tagged(bands[2], "leaf"))
    v = Product((plain, tagged, jnp.ones((4, 4))))
    one = jaxrewrite.materialise(plain)
    np.testing.assert_allclose(
        jaxrewrite.materialise(v), one @ one @ jnp.ones((4, 4)), 1e-6
    )


@pytest.mark.parametrize(
    "rules", [None, jaxrewrite.patterns.linalg], ids=["none", "linalg"]
)
def test_products_of_a_stack_that_is_never_dense_are_refused_in_any_order(rules):
    entries = Masked(jnp.ones((1, 1)), jnp.zeros((1, 1), bool))
    v, a, b = batched([entries] * 3), jnp.ones((1, 2)), jnp.ones((2, 2))
    product = jaxrewrite.transform(lambda v: v @ a @ b, rules=rules, materialise="allow")
    with pytest.raises(jaxrewrite.MaterialisationError, match="Masked can't be made dense"):
        product(v)


def test_the_lowest_number_of_a_dtype_is_infinite_where_there_is_infinity():
    assert (lowest(jnp.float32), highest(jnp.bfloat16)) == (-jnp.inf, jnp.inf)
    assert (lowest(jnp.float8_e4m3fn), highest(jnp.float8_e4m3fn)) == (-448, 448)
    assert (lowest(jnp.int8), highest(jnp.uint8)) == (-128, 255)
    assert (lowest(jnp.bool_), highest(jnp.bool_)) == (False, True)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "bool"])
def test_all_bits_of_what_is_there(dtype):
    x, mask = jnp.array([3, 7, 0]).astype(dtype), jnp.array([False, False, True])
    found = jaxrewrite.transform(lambda x: lax.reduce_and(x, (0,)))(Masked(x, mask))
    assert not found.mask and found.array == (3 if dtype != "bool" else True)


def test_bounds_of_points_hold_in_products_by_sign():
    """To the last bit, where the product of the array is rounded otherwise."""
    rng = np.random.default_rng(0)
    w = jnp.asarray(rng.normal(size=(64, 64)), "float32")
    x = jnp.asarray(rng.normal(size=64), "float32")
    assert jaxrewrite.transform(jnp.matmul)(Interval(w, w), x).contains(w @ x).all()


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_the_power_of_zero_of_bounds_is_one(dtype):
    x = Interval(jnp.array([-1, 0]).astype(dtype), jnp.array([3, 2]).astype(dtype))
    power = jaxrewrite.transform(lambda x: lax.integer_pow(x, 0))(x)
    assert (power.lower == 1).all() and (power.upper == 1).all()


def test_an_array_with_nan_joins_bounds_that_are_none():
    x, y = Interval(jnp.zeros(2), jnp.ones(2)), jnp.array([jnp.nan, 2.0])
    choose = jax.jit(lambda p, x, y: lax.cond(p, lambda: x, lambda: y))
    chosen = jaxrewrite.transform(choose)(jnp.array(False), x, y)
    assert chosen.contains(y).all() and not jnp.isnan(chosen.lower).any()


@pytest.mark.parametrize("other", [Diagonal(jnp.ones(3)), values.Constant(2.0, (3, 3))])
def test_bounds_join_other_values(other):
    bounds = Interval(jnp.zeros((3, 3)), jnp.ones((3, 3)))
    choose = jax.jit(lambda p, x, y: lax.cond(p, lambda: x, lambda: y))
    chosen = jaxrewrite.transform(choose, materialise="allow")(
        jnp.array(True), other, bounds
    )
    assert type(chosen) is Interval and chosen.contains(other.materialise()).all()


def test_in_the_total_order_something_is_above_infinity():
    x = Interval(jnp.float32(-jnp.inf), jnp.float32(jnp.inf))
    is_less = jaxrewrite.transform(
        lambda x: jaxrewrite.bind("lt_to", jnp.float32(jnp.inf), x)
    )
    assert not is_less(x).lower and is_less(x).upper


def test_a_slice_of_a_sum_remembers_its_terms():
    """A mean would count what is missing, also of a part that is cut out."""
    x = Masked(jnp.ones((4, 3)), jnp.zeros((4, 3), bool).at[0].set(True))
    cuts = [
        lambda x: x[1:2],
        lambda x: lax.dynamic_slice(x, (1,), (1,)),
        lambda x: jnp.split(x, 3)[1],
        lambda x: x[jnp.array([1])],
    ]
    for cut in cuts:
        with pytest.raises(TypeError, match="as jnp.mean does"):
            jaxrewrite.transform(lambda x, cut=cut: cut(x.sum(0)) / 4)(x)


def test_the_norm_of_a_quantity_without_axes():
    norm = jaxrewrite.transform(jnp.linalg.norm)(Unitful(jnp.float32(-3), "m"))
    assert norm.units == Units("m") and norm.array == 3


def below_maximum(x):
    e = jnp.exp(x - jnp.max(x, axis=-1, keepdims=True))
    return e / jnp.sum(e, axis=-1, keepdims=True)


MOST = jnp.array([[True, False, True, True], [True, True, False, True]])
SOFTMAXES = {
    "softmax": jax.nn.softmax,
    "by hand": below_maximum,
    "axis 0": lambda x: jax.nn.softmax(x, axis=0),
    "all axes": lambda x: jax.nn.softmax(x, axis=(0, 1)),
    "of some": lambda x: jax.nn.softmax(x, where=MOST),
    "in a loop": lambda x: lax.map(jax.nn.softmax, x),
    "log": jax.nn.log_softmax,
    "log of some": lambda x: jax.nn.log_softmax(x, where=MOST),
    "logsumexp": lambda x: jax.nn.logsumexp(x, axis=-1),
    "logsumexp of some": lambda x: jax.nn.logsumexp(x, axis=-1, where=MOST),
}


def test_as_many_of_the_last_entries_may_be_nan_as_there_are_that_may_be():
    x = Interval(jnp.array([-jnp.inf, 1.0, 0.5]), jnp.array([jnp.inf, 2.0, 0.5]))
    got = forbid(jnp.sort)(x)  # Of unknown numbers, NaN is one, which comes last.
    np.testing.assert_array_equal(got.lower, [-jnp.inf, 0.5, -jnp.inf])
    np.testing.assert_array_equal(got.upper, [0.5, 2.0, jnp.inf])


@pytest.mark.parametrize("name", SOFTMAXES)
def test_bounds_of_a_softmax_are_tight(name):
    """The bounds of each result are its numbers at two corners of the box."""
    fn = SOFTMAXES[name]
    draw = np.random.default_rng(0)
    low = jnp.asarray(draw.normal(size=(2, 4)) * 3, "float32")
    high = low + jnp.asarray(draw.uniform(0, 4, size=(2, 4)), "float32")
    bounds = jaxrewrite.transform(fn)(Interval(low, high))
    corners = jnp.array([*itertools.product([False, True], repeat=8)]).reshape(-1, 2, 4)
    results = jax.vmap(lambda corner: fn(jnp.where(corner, high, low)))(corners)
    assert jax.vmap(bounds.contains)(results).all()
    assert jnp.allclose(bounds.lower, results.min(0), rtol=1e-4, atol=1e-5)
    assert jnp.allclose(bounds.upper, results.max(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", every(2, ["float32", "float16", "bfloat16"]))
@pytest.mark.parametrize("scale", every(2, [1e-3, 1.0, 10.0, 1e3]))
def test_bounds_of_a_softmax_hold_where_it_is_rounded(dtype, scale):
    fns = lambda x: (
        jax.nn.softmax(x), jax.nn.log_softmax(x), jax.nn.logsumexp(x, axis=-1),
    )  # fmt: skip
    for length in (1, 2, 300):
        x = jnp.asarray(
            np.random.default_rng(length).normal(size=(16, length)) * scale, dtype
        )
        bounds = jaxrewrite.transform(fns)(Interval(x, x))
        for bound, result in zip(bounds, fns(x), strict=True):
            assert bound.contains(result).all()


def test_bounds_of_a_softmax_of_infinite_numbers():
    """They are unbounded only where it may be NaN."""
    inf = jnp.inf
    softmax = jaxrewrite.transform(jax.nn.softmax)
    some = softmax(Interval(jnp.array([-inf, 0.0, 1.0]), jnp.array([-inf, 1.0, 2.0])))
    assert some.lower[0] == some.upper[0] == 0
    assert 0.1 < some.lower[1] < some.upper[2] < 0.9
    for low, high in (([-inf, -inf], [0.0, 1.0]), ([0.0, 0.0], [inf, 1.0])):
        none = softmax(Interval(jnp.array(low), jnp.array(high)))
        assert (none.lower == -inf).all() and (none.upper == inf).all()


@pytest.mark.parametrize("options", [{}, {"is_causal": True}])
@pytest.mark.parametrize("groups", every(2, [1, 2], start=1))
def test_bounds_of_attention_are_of_the_size_of_the_values(options, groups):
    q = jnp.asarray(
        np.random.default_rng(0).normal(size=(2, 3, 2 * groups, 4)) * 9, "float32"
    )
    k, v = q[:, :, :2] / 2, jnp.ones((2, 3, 2, 4))
    attend = lambda q, k, v: jax.nn.dot_product_attention(q, k, v, **options)
    bounds = jaxrewrite.transform(attend)(
        Interval.around(q, 2.0), Interval.around(k, 2.0), v
    )
    assert bounds.contains(attend(q, k, v)).all()
    assert (bounds.lower >= -1e-5).all() and (bounds.upper <= 3 + 1e-5).all()


def test_bounds_of_a_softmax_of_nothing():
    nothing = Interval(jnp.zeros((3, 0)), jnp.zeros((3, 0)))
    assert jaxrewrite.transform(jax.nn.softmax)(nothing).shape == (3, 0)


def test_derivatives_of_bounds_of_a_softmax_are_numbers():
    def width(low, high):
        bounds = jaxrewrite.transform(jax.nn.softmax)(Interval(low, high))
        return jnp.sum((bounds.upper - bounds.lower) ** 2)

    check = lambda *ends: jax.test_util.check_grads(width, ends, 1, modes="rev", rtol=2e-2)
    check(jnp.array([0.0, 0.5, -1.0]), jnp.array([0.3, 1.5, 2.0]))
    for x in (jnp.ones(1), jnp.array([0.0, 300.0])):
        assert all(jnp.isfinite(g).all() for g in jax.grad(width, (0, 1))(x, x))


def test_only_programs_on_bounds_look_for_a_softmax():
    decisions = lambda x: {s.decision for s in jaxrewrite.explain(jax.nn.softmax)(x).steps}
    assert decisions(Interval(NUMBERS, NUMBERS)) == {"pattern"}
    assert "pattern" not in decisions(Tagged(NUMBERS, "tag"))


SOME = values.Masked(
    jnp.linspace(1.0, 3.0, 12).reshape(3, 4),
    jnp.zeros((3, 4), bool).at[1].set(True).at[0, 2].set(True),
)


@pytest.mark.parametrize(
    "mean",
    [
        lambda x: -jnp.sum(x) / x.size,
        lambda x: 2 * jnp.sum(x) / x.size,
        lambda x: jnp.stack([jnp.sum(x), jnp.sum(x)]) / x.size,
        lambda x: jnp.where(jnp.array(True), jnp.sum(x), 0) / x.size,
        lambda x: -(jnp.sum(x) * 0.5).astype("float16") / x.size,
    ],
)
def test_a_multiple_of_a_sum_that_is_divided_by_the_number_of_terms_is_refused(mean):
    with pytest.raises(TypeError, match="divides a sum of 12 entries by 12"):
        forbid(mean)(SOME)
    counted = lambda x: jnp.sum(x) ** 2 / x.size - jnp.sum(x) * (1 / x.size)
    forbid(counted)(SOME)


@pytest.mark.parametrize("around", [lambda x: x, lambda x: values.Tagged(x, "t")])
def test_a_product_of_masked_quantities_has_no_units(around):
    """They depend on how many entries are there."""
    x = SOME
    with pytest.raises(values.UnitsError, match="depend on how many are there"):
        forbid(jnp.prod)(around(values.Unitful(x, "m")))
    pure = forbid(jnp.prod)(around(values.Unitful(x, "1")))
    want = forbid(jnp.prod)(around(x))
    assert jaxrewrite.same_structure(pure, want)
    jax.tree.map(np.testing.assert_array_equal, pure, want)
    one = values.Unitful(values.Masked(jnp.array([2.0]), jnp.array([False])), "m")
    assert forbid(jnp.prod)(one).units == values.Units("m")


@pytest.mark.parametrize(
    "carry",
    [
        lambda x: values.Unitful(x, "m"),
        lambda x: values.Tagged(x, "t"),
        lambda x: values.Interval(x, x + 1),
    ],
)
def test_the_mean_of_what_carries_something_inside_of_a_mask(carry):
    x = SOME
    mean = values.Masked(carry(x.array), x.mask).mean(axis=1)
    (first, *_), want = jax.tree.leaves(mean.filled(0)), x.mean(axis=1)
    np.testing.assert_allclose(first, want.filled(0), rtol=1e-6)
    np.testing.assert_array_equal(mean.mask, want.mask)


@pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "int64", "float16", "float64"])
def test_a_median_of_64_bits_has_the_dtype_of_jax(dtype):
    with jax.enable_x64(True):
        x = values.Masked(jnp.array([1, 3, 2, 9], dtype), jnp.array([0, 0, 0, 1], bool))
        for fn in (jnp.median, jax.jit(jnp.median), jax.jit(jax.jit(jnp.median))):
            got, want = forbid(fn)(x), jnp.median(x.array[:3])
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got.filled(0), want)
        with pytest.raises(TypeError, match="uses the number of all entries"):
            forbid(jax.jit(jnp.quantile, static_argnums=1))(x.astype("float64"), 0.5)


@pytest.mark.parametrize(
    "make",
    [
        lambda u: values.Diagonal(u([1.0, 2.0])),
        lambda u: values.Tridiagonal(u([1.0]), u([1.0, 2.0]), u([3.0])),
        lambda u: values.Triangular(u([[1.0, 0.0], [3.0, 4.0]])),
        lambda u: values.BlockDiagonal(u([[[1.0, 2.0], [3.0, 4.0]]])),
        lambda u: values.LowRank(u([[1.0], [2.0]]), jnp.ones((1, 2))),
    ],
)
@pytest.mark.parametrize("kind", ["jvp", "vjp"])
def test_derivative_rules_of_matrices_with_units_in_their_fields(make, kind):
    def forward(x):
        return 3 * x, None

    if kind == "jvp":
        treble = jax.custom_jvp(lambda x: 3 * x)
        treble.defjvp(lambda p, t: (3 * p[0], 3 * t[0]))
    else:
        treble = jax.custom_vjp(lambda x: 3 * x)
        treble.defvjp(forward, lambda _, g: (3 * g,))
    v = make(lambda x: values.Unitful(jnp.array(x), "m"))

    def slopes(fn):
        total = lambda v: jaxrewrite.transform(lambda x: fn(x).sum(), materialise="allow")(
            v
        )
        return jax.grad(lambda v: total(v).array)(v)

    got, want = slopes(treble), slopes(lambda x: 3 * x)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    jax.tree.map(np.testing.assert_allclose, got, want)
