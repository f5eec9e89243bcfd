"""Sparse matrices."""

import jax.numpy as jnp
import numpy as np

from jaxrewrite.values import NMSparse, Sparse

from . import COMPLEX, case, uniform


def some(rng, shape, dtype):
    """Numbers, four in ten of them zero; at least one is not."""
    kept = rng.permutation(np.arange(np.prod(shape)) % 5 < 3).reshape(shape)
    return uniform(rng, shape, dtype) * jnp.asarray(kept, dtype)


@case("sparse", dtypes=COMPLEX)
def _(rng, dtype, n, m):
    # With room for more entries than there are.
    return Sparse.from_dense(some(rng, (n, m), dtype), nse=n * m)


def group(rows):
    """A number of rows that divides them."""
    return next(m for m in (4, 3, 5, 2, 1) if rows % m == 0)


@case("n_of_m", dtypes=COMPLEX)
def _(rng, dtype, n, m):
    size = group(n)
    return NMSparse.prune(uniform(rng, (n, m), dtype), -(-size // 2), size)
