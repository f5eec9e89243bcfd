"""The types of results: docs/structure.rst, right answers, and how much a chain holds."""

import random
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from choose import every

import jaxrewrite
from jaxrewrite import values


sys.path.insert(0, str(Path(__file__).parents[1]))
import structure as page  # noqa: E402


TYPES = list(page.matrices(16))


def test_parts_of_the_page():
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.cell_alone(page.ALONE["inverse"], "Circulant") in text
    row = [page.cell_of_use(fn, "Circulant") for fn in page.USES.values()]
    assert "\n     - ".join(["``Circulant``", "n", *row]) in text


@pytest.mark.parametrize(
    ("name", "use", "expected"),
    [
        ("Diagonal", "solve", "n"),
        ("Toeplitz", "``v @ x``", "n log n"),
        ("Kronecker", "``v @ x``", "n√n"),
        ("BlockDiagonal", "``slogdet``", "n²"),
        ("Triangular", "solve", "n²"),
        ("Symmetric", "solve", "n³"),
        ("Toeplitz", "solve", "dense"),
        ("Sparse", "solve", "not known"),
    ],
)
def test_costs_that_formulas_promise(name, use, expected):
    assert page.cell_of_use(page.USES[use], name) == expected


@pytest.mark.slow
def test_the_page():
    assert page.page() == page.parts_of_file()[0]


def answers(own):
    def everything(v, others):
        alone = {name: fn(v) for name, fn in page.ALONE.items() if name != "``cholesky``"}
        kron = page.PAIRS["Kronecker products, ``jnp.kron(x, y)``"]
        pairs = [
            (fn(v, w), fn(w, v)) for w in others for fn in page.PAIRS.values() if fn != kron
        ]
        return alone, pairs, jnp.kron(v, others[0]) @ jnp.ones(256)

    made = page.matrices(16)
    v, others = made[own], list(made.values())
    implicit = jaxrewrite.transform(everything, materialise="allow")
    got = jax.jit(lambda v, ws: jaxrewrite.materialise(implicit(v, ws)))(v, others)
    want = jax.jit(everything)(*jaxrewrite.materialise((v, others)))
    if own in ("LowRank", "Banded", "Tridiagonal"):
        got[0].pop("inverse"), want[0].pop("inverse")  # nearly singular
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-3 * float(abs(y).max()))


@pytest.mark.slow
@pytest.mark.parametrize("own", TYPES)
def test_answers_are_right(own, bulk):
    answers(own)


def operands(kind):
    rng = np.random.default_rng(0)
    of = lambda *shape: jnp.asarray(rng.normal(size=shape))
    if kind == "real":
        return values.BlockDiagonal(of(2, 2, 2)), values.Circulant(of(4))
    return values.Diagonal(of(4) + 1j * of(4)), values.Circulant(of(4) + 1j * of(4))


@pytest.mark.parametrize("kind", every(2, ["complex", "real"]))
def test_closed_forms_in_double_precision(kind, bulk):
    @jax.jit
    def programs(v, w):
        kron = jnp.kron(v, w)
        return [
            jnp.linalg.inv(v) @ w,
            kron @ jnp.ones(kron.shape[1]),
            *(fn(v, k=k) @ w for fn in (jnp.tril, jnp.triu) for k in (-1, 0, 1)),
            jnp.tril(w, -3),
            *(jax.scipy.linalg.expm(x) for x in (v, w)),
        ]

    with jax.enable_x64(True):
        v, w = operands(kind)
        a, b = map(np.asarray, jaxrewrite.materialise((v, w)))
        implicit = jaxrewrite.transform(programs, materialise="allow")
        got = jax.jit(lambda v, w: jaxrewrite.materialise(implicit(v, w)))(v, w)
        parts = [fn(a, k) @ b for fn in (np.tril, np.triu) for k in (-1, 0, 1)]
        want = [np.linalg.inv(a) @ b, np.kron(a, b).sum(1), *parts, np.tril(b, -3)]
        want += map(scipy.linalg.expm, (a, b))
        for x, y in zip(got, want, strict=True):
            np.testing.assert_allclose(x, y, atol=1e-10)


@pytest.mark.slow
def test_gradients_of_closed_forms(bulk):
    with jax.enable_x64(True):
        blocks = values.BlockDiagonal(
            jnp.asarray(np.random.default_rng(0).normal(size=(2, 2, 2)))
        )

        def loss(v):
            found = [
                jnp.linalg.inv(v),
                jax.scipy.linalg.expm(v),
                jnp.tril(v),
                jnp.kron(v, v),
            ]
            return sum((abs(x @ jnp.ones(x.shape[1])) ** 3).sum() for x in found)

        implicit = jaxrewrite.transform(loss, materialise="allow")
        got = jax.jit(jax.grad(implicit))(blocks)
        want = jax.jit(jax.grad(lambda v: loss(v.materialise())))(blocks)
        np.testing.assert_allclose(got.blocks, want.blocks, atol=1e-9)


def test_products_entry_by_entry_of_low_rank(bulk):
    v, w = (
        page.matrices(64)["LowRank"],
        values.LowRank(jnp.ones((64, 3)), jnp.ones((3, 64))),
    )
    d = values.Diagonal(jnp.arange(64.0))
    times = jaxrewrite.transform(jnp.multiply, materialise="forbid")
    for x, y, kind in (
        (v, w, values.LowRank),
        (v, d, values.Diagonal),
        (d, v, values.Diagonal),
    ):
        found = times(x, y)
        assert isinstance(found, kind)
        want = x.materialise() * y.materialise()
        np.testing.assert_allclose(found.materialise(), want, rtol=1e-5)
    high = values.LowRank(jnp.ones((64, 20)), jnp.ones((20, 64)))
    with pytest.raises(jaxrewrite.MaterialisationError):
        times(high, high)


OPERATIONS = [
    lambda x, y: x @ y,
    lambda x, y: x + y,
    lambda x, y: x * y,
    lambda x, y: x.T @ y,
    lambda x, y: 2 * x - y,
]


def check_chain(seed, own):
    """No result holds more than a dense array, or than all operands, but for a few vectors."""
    choose = random.Random(seed)
    x = own[choose.choice(TYPES)]
    n, held = x.shape[0], page.size(x)
    for _ in range(choose.randint(1, 4)):
        y = own[choose.choice(TYPES)]
        x = page.result(choose.choice(OPERATIONS), x, y)
        if not isinstance(x, jaxrewrite.Value):
            return  # a dense array, or one that the policy decides about
        held += page.size(y)
        assert page.size(x) <= max(held, n * n) + 4 * n


@pytest.mark.parametrize("seeds", every(2, [range(8), range(8, 300)]), ids=str)
def test_chains_hold_no_more_than_their_operands(seeds):
    own = page.matrices(64)
    for seed in seeds:
        check_chain(seed, own)
