"""Linear algebra on arrays with units: the numbers of JAX, and the units that they have."""

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
import pytest
from jax import lax

import jaxrewrite
from jaxrewrite.values import Diagonal, Kronecker, Unitful, Units, UnitsError


RNG = np.random.default_rng(0)
MATRIX = RNG.normal(size=(4, 4)).astype("float32")
STIFFNESS = Unitful(jnp.asarray(MATRIX @ MATRIX.T + 4 * np.eye(4, dtype="float32")), "N/m")
SHEAR = Unitful(jnp.asarray(MATRIX), "N/m")
FORCE = Unitful(jnp.asarray(RNG.normal(size=4).astype("float32")), "N")


def implicit_euler(k, f):
    step = lambda i, x: jnp.linalg.solve(k + jnp.diag(jnp.diagonal(k)), f - k @ x)
    return lax.fori_loop(0, 3, step, jnp.zeros(4))


def fixed_point(k, f):
    step = lambda i, x: jnp.linalg.solve(k, x) * k[0, 0] / 2 + jnp.linalg.solve(k, f)
    return lax.fori_loop(0, 3, step, jnp.zeros(4))


def turn(k, f):
    return lambda x, _: (jnp.linalg.solve(k, f - jnp.diagonal(k) * x),) * 2


def zeros(k, f):
    return jnp.zeros(4)


def tridiagonal(k, f):
    zero = jnp.zeros(1)
    lower = jnp.concatenate([zero, jnp.diagonal(k, -1)])
    upper = jnp.concatenate([jnp.diagonal(k, 1), zero])
    return lax.linalg.tridiagonal_solve(lower, jnp.diagonal(k), upper, f[:, None])


def reflected(a, f):
    packed, scales = lax.linalg.hessenberg(a)
    return lax.linalg.ormqr(packed[1:, :3], scales, f[1:, None], left=True)


def work(k, f):
    return f @ jnp.linalg.solve(k, f)


# What a symmetric positive definite matrix and a vector give, and in what units.
OF_STIFFNESS = {
    "solve": (jnp.linalg.solve, "m"),
    "cholesky solve": (lambda k, f: jsp.linalg.solve(k, f, assume_a="pos"), "m"),
    "cho_solve": (lambda k, f: jsp.linalg.cho_solve(jsp.linalg.cho_factor(k), f), "m"),
    "cholesky": (lambda k, f: jnp.linalg.cholesky(k), "N^(1/2) m^(-1/2)"),
    "eigh": (lambda k, f: jnp.linalg.eigh(k)[0], "N/m"),
    "conjugate gradients": (lambda k, f: jsp.sparse.linalg.cg(lambda x: k @ x, f)[0], "m"),
    "triangular": (lambda k, f: jsp.linalg.solve_triangular(k, f, trans=1), "m"),
    "tridiagonal": (tridiagonal, "m"),
    "tridiagonal form": (lambda k, f: lax.linalg.tridiagonal(k)[1], "N/m"),
    "scales of its reflections": (lambda k, f: lax.linalg.tridiagonal(k)[3], ""),
    "updated factor": (lambda k, f: lax.linalg.cholesky_update(jnp.triu(k), k[0]), "N/m"),
    "implicit Euler": (implicit_euler, "m"),
    "of zeros": (
        lambda k, f: jnp.linalg.solve(k, jnp.zeros(4)) + jnp.linalg.solve(k, f),
        "m",
    ),
    "of a state from zeros": (fixed_point, "m"),
    "in a scan": (lambda k, f: lax.scan(turn(k, f), jnp.zeros(4), None, 3)[1], "m"),
    "or zeros": (lambda k, f: lax.cond(f[0] > f[1], jnp.linalg.solve, zeros, k, f), "m"),
    "of size 1": (lambda k, f: jnp.linalg.solve(k[:1, :1], f[:1]), "m"),
    "derivative by the force": (jax.grad(work, 1), "m"),
    "derivative by the matrix": (jax.grad(work), "m^2"),
}
OF_SHEAR = {
    "lu_solve": (lambda a, f: jsp.linalg.lu_solve(jsp.linalg.lu_factor(a), f, 1), "m"),
    "columns": (lambda a, f: jnp.linalg.solve(a, jnp.outer(f, jnp.ones(2))), "m"),
    "mapped": (
        lambda a, f: jax.vmap(lambda s: jnp.linalg.solve(a * s, f))(jnp.arange(1.0, 3.0)),
        "m",
    ),
    "least squares": (lambda a, f: jnp.linalg.lstsq(a[:, :2], f)[0], "m"),
    "residuals": (lambda a, f: jnp.linalg.lstsq(a[:, :2], f)[1], "N^2"),
    "of numbers": (lambda a, f: jnp.linalg.solve(a, jnp.ones(4)), "m/N"),
    "by numbers": (lambda a, f: jnp.linalg.solve(jnp.eye(4) + jnp.ones(4), f), "N"),
    "inverse": (lambda a, f: jnp.linalg.inv(a), "m/N"),
    "pseudo-inverse": (lambda a, f: jnp.linalg.pinv(a[:2]), "m/N"),
    "determinant": (lambda a, f: jnp.linalg.det(a), "N^4 m^-4"),
    "determinant of 3 rows": (lambda a, f: jnp.linalg.det(a[:3, :3]), "N^3 m^-3"),
    "determinants": (lambda a, f: jax.vmap(jnp.linalg.det)(a.reshape(4, 2, 2)), "N^2 m^-2"),
    "norm": (lambda a, f: jnp.linalg.norm(a, 2), "N/m"),
    "qr": (lambda a, f: jnp.linalg.qr(a)[1], "N/m"),
    "svd": (lambda a, f: jnp.linalg.svd(a)[1], "N/m"),
    "hessenberg": (lambda a, f: jsp.linalg.hessenberg(a), "N/m"),
    "basis of hessenberg": (lambda a, f: jsp.linalg.hessenberg(a, calc_q=True)[1], ""),
    "in that basis": (reflected, "N"),
    "condition": (lambda a, f: jnp.linalg.cond(a), ""),
    "power": (lambda a, f: jnp.linalg.matrix_power(a, -2), "m^2 N^-2"),
}


@pytest.mark.parametrize(
    ("matrix", "cases"), [(STIFFNESS, OF_STIFFNESS), (SHEAR, OF_SHEAR)], ids=["pd", "any"]
)
def test_results_are_those_of_the_numbers_with_their_units(matrix, cases, bulk):
    def program(a, f):
        return [fn(a, f) for fn, _ in cases.values()]

    got = jax.jit(jaxrewrite.transform(program))(matrix, FORCE)
    expected = jax.jit(program)(matrix.array, FORCE.array)
    for (name, (_, units)), x, y in zip(cases.items(), got, expected, strict=True):
        if units:
            assert x.units == Unitful(0.0, units).units, name
            x = x.array
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5, err_msg=name)


def test_a_matrix_with_structure_is_solved_and_factorised_as_such():
    k = Unitful(Diagonal(jnp.array([1.0, 2.0, 4.0, 8.0])), "N/m")

    def program(k, f):
        return jnp.linalg.solve(k, f), jnp.linalg.cholesky(k), jnp.linalg.det(k)

    x, factor, det = jaxrewrite.transform(program, materialise="forbid")(k, FORCE)
    np.testing.assert_allclose(x.array, FORCE.array / k.array.d, rtol=1e-6)
    assert isinstance(factor.array, Diagonal)
    assert (float(det.array), str(det.units)) == (64.0, "N^4 m^-4")

    # This type does not know its factors, and is solved without them.
    k = Unitful(Kronecker(jnp.eye(2) * 3, jnp.eye(2) + 1), "N/m")
    x = jaxrewrite.transform(jnp.linalg.solve, materialise="forbid")(k, FORCE)
    np.testing.assert_allclose((k @ x).array, FORCE.array, rtol=1e-4)


def test_a_matrix_with_structure_has_a_trace_and_a_diagonal_with_units():
    k = Unitful(Kronecker(jnp.eye(2) * 3, jnp.eye(2) + 1), "N/m")
    fn = lambda k: (jnp.trace(k), jnp.diagonal(k))
    trace, diagonal = jaxrewrite.transform(fn, materialise="forbid")(k)
    assert (float(trace.array), str(trace.units)) == (24.0, str(k.units))
    np.testing.assert_array_equal(diagonal.array, np.full(4, 6.0))
    assert diagonal.units == k.units


def test_a_function_of_a_user_with_the_name_of_one_of_jax_has_units_of_its_own():
    @jax.jit
    def _lstsq(a, b):
        return a * b

    got = jaxrewrite.transform(_lstsq, materialise="forbid")(FORCE, FORCE)
    assert got.units == FORCE.units**2


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (lambda a, f: jnp.linalg.slogdet(a), "log needs operands without units"),
        (lambda a, f: jnp.linalg.solve(a, f) + f, "add needs operands of equal units"),
        (lambda a, f: jsp.linalg.expm(a), "needs operands without units"),
        (lambda a, f: jsp.linalg.lu(a), "needs operands of equal units"),
        (lambda a, f: jsp.sparse.linalg.gmres(lambda x: a @ x, f)[0], "of equal units"),
        (lambda a, f: jsp.sparse.linalg.bicgstab(lambda x: a @ x, f)[0], "of equal units"),
        (lambda a, f: jax.grad(jnp.linalg.det)(a), "cumprod needs operands without units"),
    ],
)
def test_what_units_forbid_is_an_error(program, message):
    with pytest.raises(UnitsError, match=message):
        jaxrewrite.transform(program)(SHEAR, FORCE)


def test_numbers_of_the_derivative_of_a_determinant_are_right_from_outside():
    got = jax.grad(lambda a: jaxrewrite.transform(jnp.linalg.det)(a).array)(SHEAR)
    np.testing.assert_allclose(got.array, jax.grad(jnp.linalg.det)(SHEAR.array), rtol=1e-4)


@pytest.mark.parametrize("power", [1.5, -0.5])
def test_derivatives_of_a_power_have_units(power):
    """The exponent of a derivative is a number that equations make of numbers."""

    def drag(v):
        return (v**power).sum()

    speed = Unitful(jnp.array([1.0, 4.0]), "m/s")
    second = lambda v: jax.jvp(jax.grad(drag), (v,), (jnp.ones_like(v) * v.sum(),))[1]
    for order, fn in enumerate((drag, jax.grad(drag), jax.hessian(drag))):
        got = jaxrewrite.transform(fn)(speed)
        assert got.units == speed.units ** (power - order)
        np.testing.assert_allclose(got.array, fn(speed.array), rtol=1e-6)
    assert jaxrewrite.transform(second)(speed).units == speed.units ** (power - 1)


def test_units_of_all_results_of_least_squares():
    a, b = Unitful(2 * jnp.eye(3)[:, :2], "m"), Unitful(jnp.ones(3), "s")
    x, residuals, rank, sizes = jaxrewrite.transform(jnp.linalg.lstsq)(a, b)
    assert [str(v.units) for v in (x, residuals, sizes)] == ["s m^-1", "s^2", "m"]
    assert rank == 2


def test_a_tolerance_of_least_squares_has_no_units():
    a = Unitful(jnp.arange(15.0).reshape(5, 3) % 7, "m")
    b, solve = Unitful(jnp.arange(5.0), "s"), jaxrewrite.transform(jnp.linalg.lstsq)
    assert solve(a, b, Unitful(jnp.float32(0.3), ""))[0].units == Units("s/m")
    with pytest.raises(UnitsError, match="lstsq needs an rcond without units; got m"):
        solve(a, b, Unitful(jnp.float32(0.3), "m"))
