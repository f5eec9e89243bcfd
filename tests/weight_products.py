"""Products with quantised weights of 24 x 20, and how tests compare them."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxrewrite.testing import assert_same


PRODUCTS = {
    "x @ v": (lambda v, x: x @ v, (3, 24)),
    "vector": (lambda v, x: x @ v, (24,)),
    "v @ x": (lambda v, x: v @ x, (20, 3)),
    "x @ v.T": (lambda v, x: x @ v.T, (2, 3, 20)),
    "einsum": (lambda v, x: jnp.einsum("ij,kil->lkj", v, x), (2, 24, 3)),
    "no rows": (lambda v, x: x @ v, (0, 24)),
}


def same(got, want, tolerance=3e-6):
    """Compare in float32, where the results wanted may be wider."""
    assert_same(got, jax.tree.map(lambda w: np.asarray(w, "float32"), want), tolerance)
