"""NumPy gives what JAX gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import every
from jax import lax

from sweep import numpy_run, oracle
from sweep.programs import program


def _summed_and_smallest(so_far, entries):
    return so_far[0] + entries[0], lax.min(so_far[1], entries[1])


FLOATING = {
    "entry by entry": lambda x: (
        *(f(x) for f in (jnp.sin, jnp.exp, jnp.tanh, jnp.sign, jnp.round, jnp.floor)),
        *(
            x**3,
            x**-1,
            x**0.5,
            jnp.log2(abs(x)),
            1 - x**2,
            lax.logistic(x),
            lax.rsqrt(abs(x)),
            lax.erf(x),
        ),
        *(lax.round(x), lax.nextafter(x, -x), x % 0.7, x // 0.7, jnp.log1p(abs(x))),
        *(x.astype("int8"), x.astype(bool), jnp.isfinite(x / 0), jnp.clip(x, 0, 1)),
    ),
    "shapes": lambda x: (
        *(x.T, x[::-1, 1:], x[0], jnp.pad(x, ((1, 0), (0, 2)), constant_values=3)),
        lax.pad(x, x[0, 0], ((-1, 2, 1), (1, -1, 0))),
        *(jnp.concatenate([x, x], 1), jnp.stack([x, x], 1), jnp.split(x, 2, axis=1)),
        *(lax.dynamic_slice(x, (2, 1), (2, 2)), jnp.roll(x, 1), jnp.eye(2, 3), x.ravel()),
        *(lax.dynamic_update_slice(x, x[:1], (9, 0)), jnp.tile(x, (2, 1)), jnp.array(x)),
    ),
    "reductions": lambda x: (
        *(x.sum(0), x.prod(1), x.max(), x.min(0), jnp.argmax(x, 1), jnp.argmin(x)),
        *(jnp.cumsum(x, 0), lax.cummax(x, 1, reverse=True), x[:0].sum(0), jnp.any(x > 1)),
        *(jnp.linalg.norm(x), jax.nn.logsumexp(x, 0), jnp.sort(x, 0), jnp.var(x)),
        lax.dot(x[:1], x[:1].T, preferred_element_type="int32"),
        lax.sort((jnp.round(x / 3), x), dimension=1, num_keys=1),
        lax.reduce((x, x), (x[0, 0], x[0, 1]), _summed_and_smallest, (0,)),
        lax.reduce(x[:0], x[0, 0], lax.add, (0, 1)),
    ),
    "decompositions": lambda x: (
        *(jnp.fft.fft2(x), jnp.fft.ifft(x), lax.linalg.lu(x), lax.linalg.lu(x[:, :2])),
        *(
            lax.linalg.lu(x - x),
            lax.linalg.cholesky(x @ x.conj().T),
            jnp.linalg.inv(x @ x.T),
        ),
        *(lax.linalg.cholesky(-x @ x.conj().T), jnp.linalg.det(jnp.stack([x[:, :3]] * 2))),
        *(
            lax.linalg.triangular_solve(
                *(x[:, :3], x[:, :left] if left else x[:2, 1:]),
                left_side=bool(left),
                lower=lower,
                transpose_a=transpose,
                conjugate_a=conjugate,
                unit_diagonal=lower,
            )
            for left in (0, 2)
            for lower in (True, False)
            for transpose in (True, False)
            for conjugate in (True, False)
        ),
    ),
    "transforms": lambda x: (jnp.fft.rfft(x), jnp.fft.irfft2(x), jnp.fft.irfft(x, 5)),
    "products": lambda x: (
        *(x @ x.T, jnp.einsum("ij,ik->jk", x, x), jnp.einsum("ij,ij->i", x, x)),
        jnp.einsum("ij,kj->", x, x),
    ),
    "gathers": lambda x: (
        *(x[jnp.array([0, 9, -1])], x[:, jnp.array([[1], [0]])], x[jnp.array([1]), 2]),
        x.at[jnp.array([0, 9, -9])].get(mode="clip"),
        x.at[jnp.array([0, 9, -9])].get(mode="fill", fill_value=5),
        jnp.take_along_axis(x, jnp.array([[1, 0, 9, 3]]), axis=0),
        jax.vmap(lambda r, i: r[i])(x, jnp.arange(3)),
    ),
    "scatters": lambda x: (
        *(x.at[jnp.array([0, 9])].set(2), x.at[jnp.array([1, 1])].add(2)),
        *(x.at[:, 1].mul(3), x.at[jnp.array([0, 2])].max(0), x.at[1:, 2].min(0)),
        x.at[jnp.array([7, -9])].add(1, mode="clip"),
        x.at[jnp.array([1, 1])].subtract(2),
        jax.vmap(lambda r, i: r.at[i].set(7))(x, jnp.arange(3)),
        jax.grad(lambda x: (x[jnp.array([0, 0, 9])] ** 2).sum())(jnp.nan_to_num(x)),
    ),
    "programs": lambda x: (
        lax.scan(lambda c, r: (c + r, c * r), x[0], x),
        lax.scan(lambda c, r: (r, c), x[0], x, reverse=True),
        lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * x), (0, x)),
        jax.vmap(lambda r: lax.while_loop(lambda c: c.sum() < 9, lambda c: c + 1, r))(x),
        lax.cond(x[0, 0] > 0, lambda a: a, lambda a: -a, x),
        lax.platform_dependent(x, cuda=jnp.cos, cpu=jnp.sin),
        lax.platform_dependent(x, cuda=jnp.cos, default=jnp.tan),
        *(
            lax.stop_gradient(x),
            lax.optimization_barrier(x),
            jax.grad(jnp.sum)(jnp.tanh(x)),
        ),
        *(jax.nn.relu(x), jax.checkpoint(jnp.sin)(x), jax.jvp(jax.nn.softmax, (x,), (x,))),
    ),
}
WITHOUT_16_BITS = ("decompositions", "transforms")
INTEGERS = {
    "entry by entry": lambda x: (
        *(-x, x // 3, x % 3, lax.div(x, x - 1), lax.rem(x, x), x << 2, x >> 1, x**3),
        *(lax.shift_right_logical(x, 1), lax.clz(x), lax.population_count(x), ~x, x & 3),
        *(x.astype("uint8"), x.astype("float32") / 3, abs(x), jnp.sign(x), x == 0),
    ),
    "shapes": FLOATING["shapes"],
    "gathers": lambda x: (x[jnp.array([0, 9])], x.at[jnp.array([1, 1])].add(2)),
    "reductions": lambda x: (x.sum(0), x.max(1), jnp.cumsum(x), x @ x.T, x[:0].prod()),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    every(
        4,
        [
            *[(name, "float32") for name in FLOATING],
            *[(name, "bfloat16") for name in FLOATING if name not in WITHOUT_16_BITS],
            *[(name, "int32") for name in INTEGERS],
            *[(name, "complex64") for name in ("shapes", "products", "decompositions")],
        ],
    ),
)
def test_each_entry_of_the_table(name, dtype, bulk, xla):
    fn = (INTEGERS if dtype == "int32" else FLOATING)[name]
    x = jnp.asarray([[1, -2, 0, 3], [0.3, 2, -1, 7], [4, -1, 0.5, 0]], dtype)
    if dtype == "float32":
        x = x.at[1, 1].set(jnp.nan) if name in ("reductions", "gathers") else x
    got, want = jax.tree.leaves(numpy_run.run(fn, x)), jax.tree.leaves(jax.jit(fn)(x))
    assert oracle.kinds(got) == oracle.kinds(want)
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        assert oracle.same(g, w, 0.1 if dtype == "bfloat16" else None), (i, g, w)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(0, 400, 3))
def test_programs_of_the_sweep(seed, bulk, xla):
    made = program(seed)
    if made is None or "Threefry" in made[0].operands[0]:
        pytest.skip("no program of arrays")
    with jax.enable_x64(made[0].x64):
        arrays = oracle.dense(oracle.operands_of(made[0]))
        f = oracle.function_of(made[0])
        got, want = numpy_run.run(f, *arrays), jax.jit(f)(*arrays)
        for g, w in zip(*map(jax.tree.leaves, (got, want)), strict=True):
            assert oracle.kinds(g) == oracle.kinds(w)
            assert oracle.same(g, w) or made[1].tainted


def test_a_fault_of_the_table_is_none_of_a_program(monkeypatch):
    def wrong(eqn, x):
        raise ValueError

    monkeypatch.setitem(numpy_run.TABLE, "sin", wrong)
    with pytest.raises(numpy_run.Broken):
        numpy_run.run(jnp.sin, np.ones(2, "float32"))
    monkeypatch.setitem(numpy_run.TABLE, "sin", lambda eqn, x: x[0])
    with pytest.raises(numpy_run.Broken):
        numpy_run.run(jnp.sin, np.ones(2, "float32"))
