"""Permutations, blocks, Kronecker products, Toeplitz and one-hot matrices."""

import jax.numpy as jnp

from jaxrewrite.values import (
    BlockDiagonal,
    Circulant,
    Diagonal,
    Kronecker,
    OneHot,
    Permutation,
    Picked,
    Toeplitz,
)

from . import COMPLEX, case, uniform


@case("permutation", square=True)
def _(rng, dtype, n, m):
    return Permutation(jnp.asarray(rng.permutation(n)), dtype)


@case("block_diagonal", dtypes=COMPLEX, variant=True)
def _(rng, dtype, n, m):
    k = 2 if n % 2 == m % 2 == 0 else 1
    return BlockDiagonal(uniform(rng, (k, n // k, m // k), dtype))


@case("block_diagonal_square", square=True)
def _(rng, dtype, n, m):
    k = 2 if n % 2 == 0 else n
    return BlockDiagonal(uniform(rng, (k, n // k, n // k), dtype))


@case("kronecker", dtypes=COMPLEX, variant=True)
def _(rng, dtype, n, m):
    k, p = (2 if n % 2 == 0 else 1), (2 if m % 2 == 0 else 1)
    a, b = uniform(rng, (k, p), dtype), uniform(rng, (n // k, m // p), dtype)
    return Kronecker(a, b)


@case("kronecker_square", square=True)
def _(rng, dtype, n, m):
    k = 2 if n % 2 == 0 else 1
    a, b = Diagonal(-uniform(rng, (k,), dtype)), uniform(rng, (n // k, n // k), dtype)
    return Kronecker(a, b)


@case("toeplitz", dtypes=COMPLEX, empty=False)
def _(rng, dtype, n, m):
    return Toeplitz(uniform(rng, (n,), dtype), uniform(rng, (m,), dtype))


@case("circulant", square=True, dtypes=COMPLEX, empty=False)
def _(rng, dtype, n, m):
    return Circulant(uniform(rng, (n,), dtype))


@case("one_hot", empty=False)
def _(rng, dtype, n, m):
    return OneHot(jnp.asarray(rng.integers(m, size=n)), m, of_dtype=dtype)


@case("one_hot_transposed", variant=True, empty=False)
def _(rng, dtype, n, m):
    return OneHot(jnp.asarray(rng.integers(n, size=m)), n, -2, dtype)


@case("picked", dtypes=COMPLEX, empty=False)
def _(rng, dtype, n, m):
    return Picked(uniform(rng, (n,), dtype), jnp.asarray(rng.integers(m, size=n)), m)


@case("picked_transposed", variant=True, empty=False)
def _(rng, dtype, n, m):
    return Picked(uniform(rng, (m,), dtype), jnp.asarray(rng.integers(n, size=m)), n, -2)
