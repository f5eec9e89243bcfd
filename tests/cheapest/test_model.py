"""The model of the time of equations: a roofline, with what a compiler fuses."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxrewrite._cheapest import model
from jaxrewrite._cheapest.model import (
    BANDWIDTH,
    CACHED,
    CACHED_SPEEDUP,
    FRESH,
    FRESH_SLOWDOWN,
    RATE,
    START,
)


def seconds(fn, *shapes):
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return model.seconds_of_jaxpr(jax.make_jaxpr(fn)(*args).jaxpr)


N = 1024
BYTES = 4 * N * N


def test_a_large_product_is_its_arithmetic():
    assert seconds(jnp.matmul, (N, N), (N, N)) == START + 2 * N**3 / RATE


def test_a_product_with_a_vector_is_its_traffic():
    small = 2 * 4 * N / CACHED_SPEEDUP  # The vectors are in a cache.
    assert BYTES > CACHED
    expected = START + (BYTES + small) / BANDWIDTH
    assert seconds(jnp.matmul, (N, N), (N,)) == pytest.approx(expected)


def test_what_is_fused_is_read_and_written_once():
    one = seconds(lambda x: x + 1, (N, N))
    assert one == pytest.approx(START + 2 * BYTES / BANDWIDTH)
    three = seconds(lambda x: jnp.where(x > 0, x + 1, 2 * x), (N, N))
    assert one <= three < 1.5 * one
    # A product is not fused, so that its operand is written and read.
    made = seconds(lambda x, y: (x + 1) @ y, (N, N), (N,))
    assert made == pytest.approx(one + seconds(jnp.matmul, (N, N), (N,)))


def test_other_names_of_arrays_cost_nothing():
    one = seconds(lambda x: x + 1, (N, N))
    assert seconds(lambda x: x.reshape(N, 2, -1) + 1, (N, N)) == one
    assert seconds(lambda x: (x + 1).reshape(N, 2, -1), (N, N)) == one
    made = seconds(lambda x, y: (x + 1).reshape(N, N) @ y, (N, 2, N // 2), (N,))
    assert made == pytest.approx(one + seconds(jnp.matmul, (N, N), (N,)))


def test_large_arrays_are_written_to_fresh_pages():
    n = 4 * N
    assert 4 * n * n >= FRESH
    expected = START + 4 * n * n * (1 + FRESH_SLOWDOWN) / BANDWIDTH
    assert seconds(lambda x: x + 1, (n, n)) == pytest.approx(expected)


def test_a_slice_reads_what_it_gives():
    few = seconds(lambda x: x[:8] + 1, (N, N))
    assert few == pytest.approx(seconds(lambda x: x + 1, (8, N)))
    assert seconds(lambda x: x.reshape(-1), (N, N)) == 0


def test_loops_and_branches():
    def turn(c, _):
        return jnp.tanh(c @ c), None

    loop = lambda n: lambda x: lax.scan(turn, x, None, length=n)[0]
    assert seconds(loop(20), (N, N)) == pytest.approx(2 * seconds(loop(10), (N, N)))

    def branch(x):
        return lax.cond(x[0, 0] > 0, lambda: x @ x, lambda: x)

    def alike(x):
        return lax.cond(x[0, 0] > 0, lambda: x @ x, lambda: x @ x.T)

    product = seconds(jnp.matmul, (N, N), (N, N))
    assert seconds(branch, (N, N)) > product
    assert seconds(alike, (N, N)) < 1.5 * product
    called = seconds(lambda x: jax.jit(jnp.matmul)(x, x), (N, N))
    assert called == seconds(lambda x: x @ x, (N, N))


def test_entries_in_no_order_take_longer():
    gather = lambda x: x[jnp.arange(N)[::-1] % 7]
    assert seconds(gather, (N, N)) > seconds(lambda x: x + 1, (N, N))
    of_entries = lambda x: x.reshape(-1)[jnp.arange(N * N)[::-1] % 7]
    assert seconds(of_entries, (N, N)) > 2 * seconds(gather, (N, N))
    scatter = lambda x: x.at[jnp.arange(N) % 7].add(1.0)
    assert seconds(scatter, (N, N)) > seconds(gather, (N, N))


def test_rows_take_as_long_from_a_taller_array():
    i = jnp.arange(8)[::-1] % 7
    read = lambda x: x.at[i].get(mode="promise_in_bounds")
    assert seconds(read, (N, N)) == seconds(read, (8 * N, N))
    write = lambda x, rows: x.at[i].set(rows, mode="promise_in_bounds")
    copy = lambda x: x + 1
    short, tall = (
        seconds(write, (n, N), (8, N)) - seconds(copy, (n, N)) for n in (N, 2 * N)
    )
    assert short == pytest.approx(tall)
