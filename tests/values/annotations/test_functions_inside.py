"""Functions of annotated values: what is inside knows them as a whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrewrite
from jaxrewrite import values
from jaxrewrite.values import Diagonal, Kronecker, Masked, Named, Scaled, Tagged, Unitful


class Source(values.Annotated):
    """An annotation of a user, with no rule for any function."""

    array: jax.Array
    name: str = jaxrewrite.field(static=True)
    outer = 60

    @staticmethod
    def default(primitive, operands, params):
        arrays = [x.array if isinstance(x, Source) else x for x in operands]
        (name,) = {x.name for x in operands if isinstance(x, Source)}
        results = jaxrewrite.bind(primitive, *arrays, **params)
        if primitive.multiple_results:
            return [Source(x, name) for x in results]
        return Source(results, name)


def close(got, wanted):
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


D = jnp.array([1.0, 2.0, 4.0])
DENSE = jnp.array([[2.0, 1.0, 0.0], [1.0, 3.0, 1.0], [0.0, 1.0, 4.0]])
METRES = Unitful(DENSE, "m")


@pytest.mark.parametrize(
    ("fn", "power"),
    [(jnp.linalg.det, 3), (lambda x: jnp.ldexp(x, 2), 1)],
    ids=["det", "ldexp"],
)
@pytest.mark.parametrize("around", [Tagged, Source])
def test_units_inside_of_an_annotation_know_a_function(around, fn, power):
    result = jaxrewrite.transform(fn)(around(METRES, "a"))
    assert type(result) is around
    assert result.array.units == METRES.units**power
    close(result.array.array, fn(DENSE))
    batched = jax.vmap(jaxrewrite.transform(fn))(around(Unitful(DENSE[None], "m"), "a"))
    close(batched.array.array[0], fn(DENSE))


@pytest.mark.parametrize(
    "around",
    [
        lambda x: Tagged(x, "a"),
        lambda x: Source(x, "a"),
        lambda x: Named(x, ("a", "b")),
        lambda x: Unitful(x, "m"),
        lambda x: Named(Unitful(x, "m"), ("a", "b")),
    ],
    ids=["Tagged", "Source", "Named", "Unitful", "Named Unitful"],
)
def test_structure_stays_under_an_annotation(around):
    value = around(Diagonal(D))
    result = jaxrewrite.transform(jnp.tril, materialise="forbid")(value)
    of_array = jaxrewrite.transform(jnp.tril)(around(jnp.diag(D)))
    while isinstance(result, values.Annotated):
        static = lambda x: {k: y for k, y in vars(x).items() if k != "array"}
        assert type(result) is type(of_array) and static(result) == static(of_array)
        result, of_array = result.array, of_array.array
    assert type(result) is Diagonal
    close(result.materialise(), of_array)


@pytest.mark.parametrize(
    "around",
    [lambda x: Tagged(x, "a"), lambda x: Unitful(x, "m")],
    ids=["Tagged", "Unitful"],
)
def test_the_inverse_keeps_structure(around):
    inverse = jaxrewrite.transform(jnp.linalg.inv, materialise="forbid")
    result = inverse(around(Diagonal(D)))
    assert type(result.array) is Diagonal
    close(result.array.d, 1 / D)
    pseudo = jaxrewrite.transform(jnp.linalg.pinv, materialise="forbid")
    result = pseudo(around(Diagonal(D)))
    assert isinstance(result.array, jaxrewrite.Value)
    assert not isinstance(result, Unitful) or result.units == METRES.units**-1
    close(result.array.materialise(), jnp.diag(1 / D))


def test_an_annotation_that_an_array_would_lose_is_not_lost_silently():
    inverse = jaxrewrite.transform(jnp.linalg.inv, materialise="forbid")
    with pytest.raises(jaxrewrite.MaterialisationError, match="'lu' on Named"):
        inverse(Named(Diagonal(D), ("a", "b")))


def test_a_median_counts_what_is_there_under_any_annotation():
    masked = Masked(jnp.arange(5.0), jnp.arange(5) > 2)
    for around in (lambda x: Tagged(x, "a"), lambda x: Unitful(x, "m")):
        result = jaxrewrite.transform(jnp.median)(around(masked))
        assert float(result.array.array) == 1.0


MATRICES = {
    "Diagonal": lambda x: Diagonal(x(D)),
    "Symmetric": lambda x: values.Symmetric(x(DENSE)),
    "Triangular": lambda x: values.Triangular(x(DENSE)),
    "Circulant": lambda x: values.Circulant(x(jnp.array([4.0, 1.0, 0.5]))),
    "Kronecker": lambda x: Kronecker(x(DENSE[:1, :1]), DENSE),
    "Scaled": lambda x: Scaled(Diagonal(D), x(jnp.array(2.0))),
}


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("around", [lambda x: Unitful(x, "m"), lambda x: Tagged(x, "a")])
@pytest.mark.parametrize("has_units", [False, True])
def test_a_solution_carries_what_a_field_of_the_matrix_does(name, around, has_units):
    """What the field carries is said of the whole, also beside a plain array."""
    value, dense = MATRICES[name](around), MATRICES[name](lambda x: x).materialise()
    b = jnp.arange(1.0, 4.0)
    right = around(b) if has_units else b
    solve = jaxrewrite.transform(jnp.linalg.solve)
    result, wanted = solve(value, right), solve(around(dense), right)
    assert type(result) is type(wanted)
    if isinstance(wanted, values.Annotated):  # Lengths over lengths have no units.
        assert jax.tree.structure(result) == jax.tree.structure(wanted)
        result, wanted = result.array, wanted.array
    close(result, wanted)


def test_units_of_a_field_are_those_of_a_product():
    value = Unitful(Diagonal(D), "m")
    other = Diagonal(Unitful(D, "s"))
    kron = jaxrewrite.transform(jnp.kron, materialise="allow")
    for result in map(kron, (value, other), (other, value)):
        total = jaxrewrite.transform(jnp.sum)(result)
        assert total.units == Unitful(1.0, "m*s").units
        close(total.array, 49.0)


SIGNED = jnp.array([-1.0, 0.0, 2.0, -0.0, jnp.nan, -jnp.inf])


@pytest.mark.parametrize(
    ("fn", "operands", "units"),
    [
        (jnp.signbit, ("m",), None),
        (jnp.copysign, ("m", "s"), "m"),
        (jnp.copysign, ("m", None), "m"),
        (jnp.copysign, (None, "s"), None),
        (jnp.heaviside, ("m", "s"), "s"),
        (jnp.heaviside, ("m", None), None),
        (jnp.heaviside, (None, "s"), "s"),
    ],
)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.vmap], ids=["", "jit", "vmap"])
def test_signs_and_steps_of_quantities(fn, operands, units, wrap):
    arrays = [SIGNED, -SIGNED][: len(operands)]
    given = [
        x if u is None else Unitful(x, u) for x, u in zip(arrays, operands, strict=True)
    ]
    result, wanted = jaxrewrite.transform(wrap(fn))(*given), fn(*arrays)
    if units is not None:
        assert result.units == Unitful(1.0, units).units
        result = result.array
    np.testing.assert_array_equal(result, wanted)
    np.testing.assert_array_equal(jnp.signbit(result), jnp.signbit(wanted))


def test_the_sign_of_a_quantity_inside_of_an_annotation():
    result = jaxrewrite.transform(jnp.signbit)(Tagged(Unitful(SIGNED, "m"), "a"))
    assert type(result) is Tagged
    np.testing.assert_array_equal(result.array, jnp.signbit(SIGNED))


def test_derivatives_of_signs_and_steps_of_quantities():
    sign = jax.grad(lambda x, s: jnp.sum(jnp.copysign(x, s)))
    result = jaxrewrite.transform(sign)(Unitful(D, "m"), Unitful(-D, "s"))
    np.testing.assert_array_equal(result, -jnp.ones(3))
    step = jax.grad(lambda x, at_zero: jnp.sum(jnp.heaviside(x, at_zero)), argnums=1)
    result = jaxrewrite.transform(step)(Unitful(D - 1, "m"), Unitful(D, "s"))
    np.testing.assert_array_equal(result, [1.0, 0.0, 0.0])


def test_a_report_has_what_is_inside_alone():
    """What the result carries is found out on no numbers, by equations of no result."""
    report = jaxrewrite.explain(jnp.linalg.det)(Tagged(METRES, "a"))
    found = [(step.decision, step.rule.name) for step in report.steps]
    assert found == [("rule", "_call"), ("rule", "_determinant")]
