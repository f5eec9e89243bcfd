"""Programs that were wrong or crashed in the sweep, as small as it could make them."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import every

import jaxrewrite
from jaxrewrite.values import (
    Banded,
    BlockDiagonal,
    Circulant,
    Diagonal,
    Kronecker,
    Lora,
    LowRank,
    Masked,
    NMSparse,
    OneHot,
    Permutation,
    Scaled,
    Sparse,
    Toeplitz,
    Tridiagonal,
)
from sweep.oracle import judge
from sweep.programs import Program


LORA = "Lora(u(101, 2, 2), u(102, 2, 2), u(103, 2, 2), 1.0, frozen=False)"
TRIDIAGONAL = "Tridiagonal(Tagged(u(107, 1), 'leaf'), u(111, 2), u(110, 1))"

# Operands, what is done to them, and, where it is not eager, how.
FOUND = [
    ((f"Unitful({LORA}, '')",), "jnp.logaddexp(2, v0)", "jvp"),
    ((f"Named({LORA}, ('a', None))",), "jax.nn.relu(v0)", "jvp"),
    ((f"Tagged({LORA}, 'a')",), "jax.nn.relu(v0)", "grad"),
    ((f"Kronecker(u(109, 1, 1), {TRIDIAGONAL})",), "v0[1:]"),
    ((f"Kronecker(u(109, 1, 1), {TRIDIAGONAL})",), "jnp.linalg.slogdet(v0)"),
    ((f"Kronecker(u(109, 1, 1), {TRIDIAGONAL})",), "jnp.linalg.solve(v0, u(1, 2))"),
    ((f"Product((u(109, 2, 2), {TRIDIAGONAL}))", "Diagonal(u(1, 2))"), "v0 @ v1"),
    (
        (
            "Kronecker(u(101, 2, 1), u(102, 2, 0))",
            "Kronecker(u(103, 1, 1), u(104, 4, 0))",
        ),
        "jnp.array([v0, v1])",
    ),
    (
        ("BlockDiagonal(u(1, 2, 2, 2))", "BlockDiagonal(u(2, 1, 4, 4))"),
        "jnp.stack([v0, v1])",
    ),
    (
        ("Masked(u(149, 2, 2), jnp.zeros((2, 2), bool))",),
        "v0.at[jnp.array([-9, 1])].get(mode='fill', fill_value=7.0)",
    ),
    (
        ("Masked(u(149, 0, 2), jnp.zeros((0, 2), bool))",),
        "v0.sum(0)",
    ),
    (("Tagged(idx(1, 5, 3), 'a')",), "jnp.zeros(5).at[v0].add(1.0)"),
    (("Tagged(idx(1, 5, 3), 'a')",), "jnp.unique(v0, size=3)"),
    (
        ("OneHot(idx(101, 3, 3), 3, -2, 'int32')",),
        "jnp.reshape(v0, (-1, 3), order='F')",
    ),
    (
        ("Sparse.from_dense(some(1, 2, 4), 8)",),
        "jnp.reshape(v0, (4, 2), order='F')",
    ),
    (("Masked(u(149, 2, 0), jnp.zeros((2, 0), bool))",), "jnp.cumsum(jnp.all(v0)[None])"),
    (("Constant(Known(0, 'float32'), (2, 2))",), "jax.nn.relu(v0)", "jvp"),
    (
        ("Masked(Named(u(130, 0, 2), (None, 'c')), jnp.zeros((0, 2), bool))",),
        "jnp.logaddexp(u(100, 0, 1), v0)",
        "grad",
    ),
]


@pytest.mark.parametrize(
    "found",
    every(8, [pytest.param(case, id=case[1]) for case in FOUND]),
)
def test_what_the_sweep_found(found, bulk):
    operands, step, mode = (*found, "eager")[:3]
    verdict = judge(Program(operands, (step,), "t0", mode=mode))
    assert verdict.kind == "ok", verdict


def found_programs():
    """More of them, in a file: each line has the fields of a `Program`."""
    lines = pathlib.Path(__file__).with_name("found.jsonl").read_text().splitlines()
    for i, line in enumerate(lines):
        fields = json.loads(line)
        operands, steps = (tuple(fields.pop(name)) for name in ("operands", "steps"))
        program = Program(operands, steps, **fields)
        yield pytest.param(program, id=f"{i}: {steps[-1]}")


@pytest.mark.parametrize("program", every(20, found_programs()))
def test_what_else_the_sweep_found(program, bulk):
    verdict = judge(program)
    assert verdict.kind == "ok", verdict


INDEX_PROGRAMS = {
    "gather": lambda i: jnp.arange(5.0)[i],
    "scatter": lambda i: jnp.zeros(5).at[i].set(1.0),
    "scatter-add": lambda i: jnp.zeros(5).at[i].add(1.0),
    "dynamic_slice": lambda i: jax.lax.dynamic_slice(jnp.arange(5.0), (i[0],), (2,)),
}


@pytest.mark.parametrize("name", INDEX_PROGRAMS)
def test_where_entries_go_is_not_said_by_what_may_be_missing(name):
    """One clear error; it was one of JAX's about an operand that it can't interpret."""
    index = Masked(jnp.array([0, 1, 1]), jnp.zeros(3, bool))
    with pytest.raises(jaxrewrite.MaterialisationError, match=f"'{name}' on Masked"):
        jaxrewrite.transform(INDEX_PROGRAMS[name])(index)


def test_ranks_are_not_promoted(bulk):
    """What the user's program may not do the library does not do for it."""
    x, e = jnp.arange(1.0, 4), 3 * jnp.eye(4) + 1
    banded = Banded.from_dense(3 * jnp.eye(4), 1, 1)
    stack = BlockDiagonal(jnp.ones((3, 2, 2, 2)) + 2 * jnp.eye(2))
    values = [
        *(Circulant(x), Toeplitz(x, x), Permutation(jnp.arange(3)), banded),
        *(OneHot(jnp.arange(3), 3), Sparse.from_dense(e, 16), NMSparse.prune(e, 2, 4)),
    ]
    programs = [
        *[(jnp.negative, v) for v in values],
        *[(fn, banded) for fn in (jnp.linalg.det, jnp.linalg.cholesky, jnp.linalg.inv)],
        (jnp.linalg.cholesky, Banded(jnp.ones((3, 2, 4)) + 1, 1, 0)),
        (jnp.linalg.inv, stack),
        (lambda v: v[jnp.array([0, 1])], values[-2]),
        (lambda v: jnp.flip(v, 0), values[-2]),
        (lambda v: jnp.concatenate([v, v], 0), values[-2]),
        (lambda v: v.reshape(2, 8), values[-2]),
    ]
    for fn, v in programs:
        implicit = jaxrewrite.transform(fn, materialise="allow")
        both = lambda v, fn=implicit: jaxrewrite.materialise((fn(v), v))
        with jax.numpy_rank_promotion("raise"):
            jax.eval_shape(both, v)


def test_a_scaled_matrix_is_solved_with_by_the_matrix(bulk):
    """By a number that only a run tells."""
    tridiagonal = Tridiagonal(jnp.ones(3), jnp.full(4, 4.0), 0.5 * jnp.ones(3))
    factors = 3 * jnp.eye(2) + 1, Diagonal(jnp.arange(1.0, 3))
    b = jnp.arange(8.0).reshape(4, 2)

    def programs(v, s, b):
        scaled = v / s
        inverse = jnp.linalg.inv(scaled)
        solved = jnp.linalg.solve(scaled, b), jnp.linalg.solve(scaled.T, b[:, 0])
        return inverse, solved, jnp.linalg.det(scaled), jnp.linalg.slogdet(scaled)

    for v in (Diagonal(jnp.arange(1.0, 5)), tridiagonal, Kronecker(*factors)):
        s = jnp.float32(-1.5)
        implicit = jaxrewrite.transform(programs, materialise="forbid")
        got = jax.jit(lambda *xs, fn=implicit: jaxrewrite.materialise(fn(*xs)))(v, s, b)
        want = jax.jit(programs)(v.materialise(), s, b)
        for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)
    assert Scaled(tridiagonal, jnp.float32(2)).solvable


def test_products_that_say_how_their_result_is_sharded(bulk):
    mesh = jax.make_mesh((2,), ("x",), (jax.sharding.AxisType.Explicit,))
    u = jnp.arange(16.0).reshape(4, 4)
    p = jax.sharding.PartitionSpec
    with jax.set_mesh(mesh):
        x, w = jax.device_put(u, p(None, "x")), jax.device_put(u, p("x", None))
        factors = w[:, :1], jax.device_put(u[:1], p(None, None))
        multiply = lambda x, v: jnp.einsum("ij,jk->ik", x, v, out_sharding=p("x", None))
        for v in (Lora(w, *factors), LowRank(*factors)):
            got = jaxrewrite.transform(multiply, materialise="allow")(x, v)
            want = multiply(x, jaxrewrite.materialise(v))
            np.testing.assert_allclose(got, want, rtol=1e-5)
            assert jax.typeof(got) == jax.typeof(want)
