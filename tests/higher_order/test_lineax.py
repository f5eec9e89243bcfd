"""Linear solves of Lineax, and the solvers of Optimistix, on values; where these are installed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import often
from oracle import forbid

import jaxrewrite
from jaxrewrite.values import (
    Annotated,
    BlockDiagonal,
    Circulant,
    Diagonal,
    Kronecker,
    LowRank,
    Named,
    Scaled,
    Symmetric,
    Tagged,
    Tridiagonal,
    Unitful,
    Units,
)


lx = pytest.importorskip("lineax")


pytestmark = pytest.mark.usefixtures("double")

N = 16


def normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def positive(seed, n):
    a = normal(seed, n, n)
    return a @ a.T + n * jnp.eye(n)


def kernel():
    return Kronecker(Symmetric(positive(2, 4)), Symmetric(positive(3, 4)))


MATRICES = {
    "sum": lambda: (
        Diagonal(2 + normal(0, N) ** 2) + LowRank(normal(1, N, 2), normal(1, N, 2).T)
    ),
    "kronecker": kernel,
    "circulant": lambda: Circulant(jnp.zeros(N).at[jnp.array([0, 1, -1])].set([5.0, 1, 1])),
    "tridiagonal": lambda: Tridiagonal(jnp.ones(N - 1), jnp.full(N, 4.0), jnp.ones(N - 1)),
    "scaled": lambda: Scaled(kernel(), jnp.float64(2)),
    "blocks": lambda: BlockDiagonal(jnp.stack([positive(i, 4) for i in range(4)])),
}

T = 1e-11
SOLVERS = {
    "cg": lambda: lx.CG(T, T),
    "gmres": lambda: lx.GMRES(T, T, restart=N, stagnation_iters=N),
    "bicgstab": lambda: lx.BiCGStab(T, T),
    "lu": lambda: lx.LU(),
    "cholesky": lambda: lx.Cholesky(),
    "lsmr": lambda: lx.LSMR(T, T),
    "normal": lambda: lx.Normal(lx.CG(T, T)),
    "svd": lambda: lx.SVD(),
}

QUICK = [("cholesky", "blocks")]
REFUSED = {("svd", name) for name in ("sum", "circulant", "tridiagonal")}


def solve(solver, a, b):
    operator = lx.MatrixLinearOperator(a, lx.positive_semidefinite_tag)
    return lx.linear_solve(operator, b, solver).value


@pytest.mark.parametrize(
    ("solver", "name"),
    often([(s, n) for s in SOLVERS for n in MATRICES if (s, n) not in REFUSED], QUICK),
)
def test_value_and_derivatives(solver, name, bulk):
    """Against dense solves, plainly, mapped, and differentiated by each argument."""
    made, v = SOLVERS[solver](), MATRICES[name]()
    b = jnp.stack([normal(5, N), normal(6, N)])

    def programs(solve):
        loss = lambda v, b: jnp.sin(3 * solve(v, b)).sum()
        wrapped = forbid(loss) if solve is not dense else loss
        slopes = jax.value_and_grad(wrapped, (0, 1))
        many = jax.tree.map(
            lambda x: jnp.stack([x, 1.5 * x]) if jnp.issubdtype(x.dtype, float) else x, v
        )
        axes = jax.tree.map(lambda x: 0 if jnp.issubdtype(x.dtype, float) else None, v)
        return [
            jax.jit(slopes)(v, b[0]),
            jax.vmap(slopes, (None, 0))(v, b),
            jax.vmap(slopes, (axes, 0))(many, b),
            jax.jvp(jax.grad(wrapped, 1), (v, b[0]), (v, b[1])),
        ]

    dense = lambda v, b: jnp.linalg.solve(v.materialise(), b)
    got = programs(lambda v, b: solve(made, v, b))
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(programs(dense)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-8)


@pytest.mark.slow
def test_maps_inside(bulk):
    v, b = MATRICES["sum"](), jnp.stack([normal(i, 3, N) for i in range(2)])
    one = lambda v, b: solve(lx.CG(T, T), v, b)
    program = jax.vmap(jax.vmap(one, (None, 0)), (None, 0))
    got = jax.jit(forbid(program))(v, b)
    np.testing.assert_allclose(got, jnp.linalg.solve(v.materialise(), b[..., None])[..., 0])


def test_a_mapped_product(bulk):
    """Leaves of a lazy product have batch axes only where its factors have."""
    a, b = normal(0, 3, 4, 4), normal(1, 4)
    v = Circulant(1 + normal(2, 3, 4) ** 2) @ BlockDiagonal(a.reshape(3, 2, 2, 4)[..., :2])
    one = lambda v, b: lx.linear_solve(lx.MatrixLinearOperator(v), b, lx.LU()).value
    got = jaxrewrite.transform(jax.vmap(one, (0, None)), materialise="allow")(v, b)
    dense = jaxrewrite.materialise(v)
    np.testing.assert_allclose(got, [np.linalg.solve(x, b) for x in dense], rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["normal", "lsmr"])
def test_least_squares(name, bulk):
    """The derivative of the pseudo-inverse, of an operator with more rows than columns."""
    v = Kronecker(normal(0, 4, 2), normal(1, 3, 2))
    b = normal(2, 12)

    def loss(solver, v):
        return jnp.sin(lx.linear_solve(lx.MatrixLinearOperator(v), b, solver).value).sum()

    dense = lambda v: jnp.sin(jnp.linalg.pinv(v.materialise()) @ b).sum()
    want = jax.tree.leaves(jax.value_and_grad(dense)(v))
    got = jax.value_and_grad(forbid(lambda v: loss(SOLVERS[name](), v)))(v)
    for x, y in zip(jax.tree.leaves(got), want, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-8)


def test_results(bulk):
    """What did not succeed says so as it does on arrays."""

    def fn(v, b, solver):
        found = lx.linear_solve(lx.MatrixLinearOperator(v), b, solver, throw=False)
        return found.value, found.result == lx.RESULTS.successful

    b = jnp.ones(4)
    singular = Diagonal(jnp.array([1.0, 0.0, 2.0, 3.0]))
    hard = Diagonal(10.0 ** jnp.arange(0, 16, 4))
    for v, solver in ((singular, lx.LU()), (hard, lx.GMRES(T, T, max_steps=1, restart=1))):
        got = forbid(lambda v, b, s=solver: fn(v, b, s))(v, b)
        want = fn(v.materialise(), b, solver)
        assert not got[1] and not want[1]
    with pytest.raises(ValueError, match="Vector and operator structures do not match"):
        forbid(lambda v, b: solve(lx.CG(T, T), v, b))(singular, jnp.ones(5))


@pytest.mark.parametrize("name", often(["lu", "cholesky", "svd", "cg"], ["lu"]))
def test_a_solution_has_the_tags_of_its_matrix_and_its_right_side(name, bulk):
    """Also where a policy forbids to lose any: no operand becomes an array without them."""
    a, b = positive(0, 3), normal(1, 3)
    fn = lambda a, b: solve(SOLVERS[name](), a, b)
    for operands in (
        (Tagged(a, "a"), b),
        (a, Tagged(b, "b")),
        (Tagged(a, "a"), Tagged(b, "b")),
    ):
        got = forbid(fn)(*operands)
        tags = frozenset().union(*(x.tags for x in operands if isinstance(x, Tagged)))
        assert got.tags == tags
        np.testing.assert_allclose(got.array, jnp.linalg.solve(a, b), rtol=1e-8)


@pytest.mark.parametrize("name", often(["lu", "cholesky", "svd", "cg", "gmres"], ["lu"]))
def test_derivatives_of_tagged_solves_are_those_of_lineax(name, bulk):
    """Also by a matrix without tags, and those that need the transpose of a solve."""
    a, b = positive(0, 3), normal(1, 3)
    fn = lambda a, b: (solve(SOLVERS[name](), a, b) ** 2).sum()
    gradient = jax.grad(fn, (0, 1))
    want = gradient(a, b), jax.hessian(fn, 1)(a, b)
    tagged = lambda a, b: forbid(fn)(Tagged(a, "a"), b).array
    of_one = lambda a, b: forbid(fn)(a, Tagged(b, "b")).array
    for each in (tagged, of_one):
        got = jax.grad(each, (0, 1))(a, b), jax.hessian(each, 1)(a, b)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), got, want)
    inside = forbid(gradient)(Tagged(a, "a"), Tagged(b, "b"))
    for x, y in zip(inside, want[0], strict=True):
        np.testing.assert_allclose(x.array, y, rtol=1e-6)


class Kept(Annotated):
    """An annotation of a user, which each result has."""

    array: jax.Array
    outer = 5

    def join(self, other):
        return self, other if isinstance(other, Kept) else Kept(other)

    @staticmethod
    def default(primitive, xs, params):
        inside = [x.array if isinstance(x, Kept) else x for x in xs]
        results = jaxrewrite.bind(primitive, *inside, **params)
        return list(map(Kept, results)) if primitive.multiple_results else Kept(results)


class Lost(Annotated):
    """One that says nothing of results."""

    array: jax.Array
    outer = 60


@pytest.mark.parametrize("name", often(["lu", "cg"], ["cg"]))
def test_a_solution_has_what_says_so_of_any_equation(name, bulk):
    """Names do not: an iteration would add a vector of rows to one of columns."""
    a, b = positive(0, 3), normal(1, 3)
    fn = lambda a, b: solve(SOLVERS[name](), a, b)
    want = fn(a, b)
    allow = jaxrewrite.transform(fn, materialise="allow")
    named = Named(a, ("row", "column"))
    for v, w in ((named, b), (named, Named(b, ("other",))), (a, Lost(b))):
        np.testing.assert_allclose(allow(v, w), want, rtol=1e-8)
    for v in (Tagged(named, "a"), Named(Tagged(a, "a"), ("row", "column"))):
        got = allow(v, b)
        assert isinstance(got, Tagged)
        np.testing.assert_allclose(got.array, want, rtol=1e-8)
    got = forbid(fn)(a, Kept(b))
    assert isinstance(got, Kept)
    np.testing.assert_allclose(got.array, want, rtol=1e-8)
    with pytest.raises(jaxrewrite.MaterialisationError, match="'linear_solve' on Lost"):
        forbid(fn)(a, Lost(b))


def test_a_solution_of_quantities_has_units(bulk):
    a, b = positive(0, 3), normal(1, 3)
    v, w = Unitful(a, "s"), Unitful(b, "m")
    fn = lambda a, b: solve(lx.AutoLinearSolver(well_posed=True), a, b)
    want, of_b = jax.value_and_grad(lambda b: jnp.linalg.solve(a, b).sum())(b)
    got = forbid(fn)(v, w)
    assert got.units == Units("m/s")
    np.testing.assert_allclose(got.array.sum(), want)
    inside = forbid(lambda a, b: jax.grad(lambda b: fn(a, b).sum())(b))(v, w)
    assert inside.units == Units("1/s")
    outside = jax.grad(lambda b: forbid(fn)(v, b).array.sum())(w)
    for gradient in (inside, outside):
        np.testing.assert_allclose(gradient.array, of_b)
    stacked = forbid(jax.vmap(fn, (None, 0)))(v, Unitful(jnp.stack([b, 2 * b]), "m"))
    assert stacked.units == Units("m/s")
    np.testing.assert_allclose(stacked.array[1], 2 * got.array)


def test_operators_of_functions(bulk):
    """A value that a function closes over, and a preconditioner that is a value."""
    v, p, b = MATRICES["sum"](), Diagonal(1 / (2 + normal(0, N) ** 2)), normal(5, N)

    def fn(v, p, b):
        psd = lx.positive_semidefinite_tag
        operator = lx.FunctionLinearOperator(lambda x: v @ x, jax.typeof(b), psd)
        options = {"preconditioner": lx.MatrixLinearOperator(p, psd)}
        return lx.linear_solve(operator, b, lx.CG(T, T), options=options).value

    got = jax.jit(forbid(fn))(v, p, b)
    np.testing.assert_allclose(got, jnp.linalg.solve(v.materialise(), b), rtol=1e-8)


@pytest.mark.slow
def test_root_find(bulk):
    optx = pytest.importorskip("optimistix")
    v, b = MATRICES["sum"](), normal(5, N)

    def root(v):
        residual = lambda y, v: v @ y + jnp.tanh(y) / 10 - b
        return optx.root_find(residual, optx.Newton(T, T), jnp.zeros(N), args=v).value

    loss = lambda fn: lambda v: jnp.sin(fn(v)).sum()
    got = jax.jit(jax.value_and_grad(loss(forbid(root))))(v)
    want = jax.jit(jax.value_and_grad(loss(lambda v: root(v.materialise()))))(v)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["GaussNewton", "LevenbergMarquardt", "Dogleg", "Chord"])
@pytest.mark.parametrize("name", ["sum", "tridiagonal"])
def test_solvers_whose_state_starts_as_zeros(solver, name, bulk):
    """A Jacobian in their state is a value from the first turn on."""
    optx = pytest.importorskip("optimistix")
    v, b = MATRICES[name](), normal(5, N)

    def found(v, b):
        residual = lambda y, v: v @ y + jnp.tanh(y) / 10 - b
        made = getattr(optx, solver)(1e-9, 1e-9)
        solve = optx.root_find if solver == "Chord" else optx.least_squares
        return solve(residual, made, jnp.zeros(N), args=v).value

    got = jax.jit(forbid(found))(v, b)
    np.testing.assert_allclose(got, found(v.materialise(), b), rtol=1e-7, atol=1e-9)
    allowed = jaxrewrite.transform(found, materialise="allow")
    slope = lambda fn: jax.jit(jax.grad(lambda v: jnp.sin(fn(v, b)).sum()))
    got, want = slope(allowed)(v), slope(lambda v, b: found(v.materialise(), b))(v)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-8), got, want
    )
