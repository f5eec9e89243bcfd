"""Linear systems whose right side is a matrix with structure, beside the dense ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from oracle import forbid

import jaxrewrite
from jaxrewrite.testing import assert_same
from jaxrewrite.values import (
    BlockDiagonal,
    Circulant,
    Diagonal,
    Identity,
    Kronecker,
    LowRank,
    OneHot,
    Permutation,
    Product,
    ScalarMatrix,
    Scaled,
    Sum,
    Symmetric,
    Triangular,
    Tridiagonal,
    Unitful,
)
from jaxrewrite.values._matrices.solutions import solution


def _cho_solve(a, b):
    return jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(a, lower=True), b)


def _triangular_solves(a, b):
    left = jax.scipy.linalg.solve_triangular(a, b, lower=True, trans=1)
    return left, lax.linalg.triangular_solve(a, b, lower=True)


def _positive(a, b):
    return jax.scipy.linalg.solve(a, b, assume_a="pos")


_BY_FACTORS = (_cho_solve, _triangular_solves)
_EACH = (jnp.linalg.solve, *_BY_FACTORS)
_D, _BLOCKS = Diagonal(jnp.arange(1.0, 5)), BlockDiagonal(jnp.ones((2, 2, 2)) + jnp.eye(2))
_TWO = Kronecker(Symmetric(_BLOCKS.blocks[0]), Symmetric(_BLOCKS.blocks[0]))
_LOW = LowRank(jnp.ones((4, 1)), jnp.arange(4.0)[None])
_TURNED = Permutation(jnp.array([2, 0, 3, 1]))
_RIGHT_SIDES = {
    "diagonal": (_D, _D, _EACH, Diagonal),
    "multiple of the identity": (
        ScalarMatrix(jnp.float32(2), 4),
        ScalarMatrix(jnp.float32(3), 4),
        _EACH,
        ScalarMatrix,
    ),
    "identity": (_D, Identity(4), _EACH, Diagonal),
    "of the identity": (Identity(4), _BLOCKS, _EACH, BlockDiagonal),
    "blocks": (_BLOCKS, 2 * _BLOCKS, _EACH, BlockDiagonal),
    "blocks and a diagonal": (_BLOCKS, _D, _EACH, BlockDiagonal),
    "Kronecker": (_TWO, _TWO, (_cho_solve,), Kronecker),
    "Circulant": (
        Circulant(jnp.array([9.0, 1, 0, 2])),
        Circulant(jnp.ones(4)),
        (jnp.linalg.solve,),
        Circulant,
    ),
    "triangles": (
        Triangular(jnp.eye(4) + 1),
        Triangular(jnp.ones((4, 4))),
        (jnp.linalg.solve,),
        Triangular,
    ),
    "triangle and a diagonal": (
        Triangular(jnp.eye(4) + 1),
        _D,
        (jnp.linalg.solve,),
        Triangular,
    ),
    "one-hot rows": (_TURNED, OneHot(jnp.arange(4), 4), (jnp.linalg.solve,), OneHot),
    "lazily": (_D, _TWO, _BY_FACTORS, Product),
    "low rank": (_BLOCKS, _LOW, _BY_FACTORS, LowRank),
    "low rank beside a band": (
        Tridiagonal(jnp.ones(3), 4 * jnp.ones(4), jnp.ones(3)),
        _LOW,
        _BY_FACTORS,
        LowRank,
    ),
    "low rank beside an array": (
        jnp.eye(4) + 1,
        _LOW,
        (_triangular_solves,),
        LowRank,
    ),
    "multiples": (
        Scaled(_D, jnp.float32(2)),
        Scaled(_BLOCKS, jnp.float32(3)),
        _BY_FACTORS,
        Scaled,
    ),
    "sum": (_BLOCKS, Sum((Identity(4), _LOW)), _BY_FACTORS, Sum),
    "product on the right": (_D, Product((_D, _TURNED)), _BY_FACTORS, Product),
    "definite": (_D, _BLOCKS, (_positive,), BlockDiagonal),
}


@pytest.mark.parametrize("name", _RIGHT_SIDES)
def test_right_sides_with_structure(name, bulk):
    a, b, functions, cls = _RIGHT_SIDES[name]
    got = [forbid(fn)(a, b) for fn in functions]
    is_value = lambda x: isinstance(x, jaxrewrite.Value)
    assert {type(x) for x in jax.tree.leaves(got, is_leaf=is_value)} == {cls}
    want = [fn(*jaxrewrite.materialise((a, b))) for fn in functions]
    assert_same(got, want)


def test_stacks_and_units_of_right_sides(bulk):
    double = lambda v: jax.tree.map(lambda x: jnp.stack([x, 2 * x]), v)
    a, b = double(_D), double(_BLOCKS)
    metres, seconds = Unitful(_D, "m"), Unitful(_BLOCKS, "s")
    for fn in (jnp.linalg.solve, _cho_solve, _positive):
        got = forbid(jax.vmap(fn))(a, b)
        assert type(got) is BlockDiagonal
        assert_same(got, jax.vmap(fn)(*jaxrewrite.materialise((a, b))))
        of_units = forbid(fn)(metres, seconds)
        assert (type(of_units.array), str(of_units.units)) == (BlockDiagonal, "s m^-1")


def test_derivatives_of_solutions_with_structure(bulk):
    """Those of a definite matrix go through the matrix, because its factor has none."""

    def loss(a, b, to_dense=lambda v: v):
        a, b = to_dense(a), to_dense(b)
        gain = [fn(a, b) for fn in (jnp.linalg.solve, _cho_solve, _positive)]
        return sum(jnp.sin(x @ jnp.arange(4.0)).sum() for x in gain)

    gradient = jax.grad(loss, (0, 1))
    want = jax.grad(lambda a, b: loss(a, b, jaxrewrite.materialise), (0, 1))(_D, _BLOCKS)
    got = jax.grad(forbid(loss), (0, 1))(_D, _BLOCKS)
    jax.tree.map(assert_same, got, want)
    inside = jaxrewrite.transform(gradient, materialise="allow")(_D, _BLOCKS)
    assert_same(inside, gradient(*jaxrewrite.materialise((_D, _BLOCKS))))


def test_matrices_that_are_not_definite_have_no_solutions(bulk):
    a = Diagonal(jnp.array([1.0, -1, 2, 3]))
    for solve in (_positive, _cho_solve):
        assert np.isnan(forbid(solve)(a, _D).diagonal()).all()
    stack = forbid(jax.vmap(_positive))(
        *(Diagonal(jnp.stack([x.d, abs(x.d)])) for x in (a, _D))
    )
    assert np.isnan(stack.diagonal()).all(-1).tolist() == [True, False]


def test_a_triangle_stands_for_the_other_one(bulk):
    """The blocks may differ from their transposes, which only a matrix without values shows."""
    blocks = BlockDiagonal(jnp.array([[[4.0, 1], [0, 3]]] * 2))
    got = jaxrewrite.transform(_positive, materialise="allow")(blocks, _D)
    assert_same(got, _positive(*jaxrewrite.materialise((blocks, _D))))


def test_functions_of_a_user_that_solve_are_asked(bulk):
    def solved(a, b):
        return lax.custom_linear_solve(
            lambda x: a @ x, b, lambda _, b: 0 * b, symmetric=True
        )

    allowed = lambda fn: jaxrewrite.transform(fn, materialise="allow")
    assert_same(allowed(solved)(_D, _BLOCKS), jnp.zeros((4, 4)))
    same = lambda b: lax.custom_linear_solve(lambda x: x, b, lambda _, b: b, symmetric=True)
    assert_same(jaxrewrite.materialise(allowed(same)(_D)), _D.materialise())
    factors = jax.scipy.linalg.lu_factor(_D.materialise())
    solve = lambda _, b: jax.scipy.linalg.lu_solve(factors, b)
    for matvec in (lambda x, a: (a * x) @ a, lambda x, a: (a @ x).T, lambda x, a: a * x):
        by_user = lambda a, b, matvec=matvec: lax.custom_linear_solve(
            lambda x: matvec(x, a), b, solve
        )
        want = by_user(_D.materialise(), _BLOCKS.materialise())
        assert_same(jaxrewrite.materialise(allowed(by_user)(_D, _BLOCKS)), want)


def test_a_function_of_a_user_with_the_name_of_one_of_jax_solves_another_system(bulk):
    @jax.jit
    def _lu_solve(b):
        return -b / jnp.arange(1.0, 5)[:, None]

    def by_user(a, b):
        return lax.custom_linear_solve(lambda x: -(a @ x), b, lambda _, b: _lu_solve(b))

    got = jaxrewrite.transform(by_user, materialise="allow")(_D, _BLOCKS)
    assert_same(jaxrewrite.materialise(got), -solution(_D, _BLOCKS).materialise())


def test_no_inverse_of_blocks_is_multiplied(bulk):
    """The solution is as accurate as the dense one, also of matrices that are nearly singular."""
    blocks = jnp.array([[[1.0, 1], [1, 1.0001]]] * 2)
    a, b = BlockDiagonal(blocks), BlockDiagonal(blocks @ jnp.array([[1.0, 2], [3, 4]]))
    for v, w in (
        (a, b),
        (Kronecker(blocks[0], blocks[0]), Kronecker(b.blocks[0], b.blocks[0])),
    ):
        x = solution(v, w)
        x = x.materialise()
        residual = np.abs(v.materialise() @ x - w.materialise()).max()
        assert residual < 1e-5


def test_solutions_that_would_be_dense_are_arrays(bulk):
    band = Tridiagonal(jnp.ones(3), 4 * jnp.ones(4), jnp.ones(3))
    for fn in (jnp.linalg.solve, _triangular_solves):
        with pytest.raises(jaxrewrite.MaterialisationError):
            forbid(fn)(_BLOCKS, band)
