"""The hyperparameters of a Gaussian process on a grid, sampled by blackjax.

The covariance of a field on a grid of n x m points is a Kronecker product of two small
matrices, plus noise. The log-likelihood is written with `jnp.linalg.solve` and `slogdet`, as
for any matrix. On the structured covariance both take the eigenvalues of the small matrices,
and NUTS, unchanged, samples with the gradients. Value and gradient are those of the dense
program, of nm x nm numbers.

Run it with ``python docs/examples/gaussian_process.py [--plot FILE]``. It needs blackjax and,
for the figure, matplotlib.
"""

import argparse
from collections.abc import Callable
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from blackjax.mcmc.hmc import HMCState

import jaxrewrite
from jaxrewrite import ArrayValue
from jaxrewrite.values import Identity, Kronecker, Symmetric, nbytes


jax.config.update("jax_enable_x64", True)
ROWS, COLUMNS = jnp.linspace(0, 1, 10), jnp.linspace(0, 2, 12)
TRUE = jnp.log(jnp.array([0.4, 0.7, 0.1]))  # two lengths, and the variance of the noise


# An ordinary program, for any matrix.
def log_likelihood(covariance: jax.Array, y: jax.Array) -> jax.Array:
    fit: jax.Array = y @ jnp.linalg.solve(covariance, y)
    logdet: jax.Array = jnp.linalg.slogdet(covariance)[1]
    return -(fit + logdet + len(y) * jnp.log(2 * jnp.pi)) / 2


def covariance(theta: jax.Array) -> ArrayValue:
    lengths, noise = jnp.exp(theta[:2]), jnp.exp(theta[2])

    def kernel(x: jax.Array, length: jax.Array) -> Symmetric:
        return Symmetric(jnp.exp(-(((x[:, None] - x) / length) ** 2) / 2))

    field = Kronecker(kernel(ROWS, lengths[0]), kernel(COLUMNS, lengths[1]))
    noisy = field + noise * Identity(field.shape[0], field.dtype)
    assert isinstance(noisy, ArrayValue)
    return noisy


def main(plot: str | None = None) -> None:
    root = jnp.linalg.cholesky(jaxrewrite.materialise(covariance(TRUE)))
    y = root @ jax.random.normal(jax.random.key(0), (len(root),))
    implicit = jaxrewrite.transform(log_likelihood, materialise="forbid")

    def prior(theta: jax.Array) -> jax.Array:
        return -jnp.sum((theta + 1) ** 2) / 2

    def posterior(theta: jax.Array) -> jax.Array:
        likelihood: jax.Array = implicit(covariance(theta), y)
        return prior(theta) + likelihood

    def dense(theta: jax.Array) -> jax.Array:
        return prior(theta) + log_likelihood(jaxrewrite.materialise(covariance(theta)), y)

    got = jax.jit(jax.value_and_grad(posterior))(TRUE)
    want = jax.jit(jax.value_and_grad(dense))(TRUE)
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-8), got, want)
    print(f"Log-posterior {got[0]:.6f} and its gradient are those of the dense program.")

    print(f"The covariance takes {nbytes(covariance(TRUE))}.")

    keys = jax.random.split(jax.random.key(1), 2)
    adaptation = blackjax.window_adaptation(blackjax.nuts, posterior)
    run: Callable[..., Any] = adaptation.run  # Its annotation lacks the number of steps.
    (state, parameters), _ = run(keys[0], TRUE, 100)
    step = blackjax.nuts(posterior, **parameters).step

    def sample(state: HMCState, key: jax.Array) -> tuple[HMCState, jax.Array]:
        new, _ = step(key, state)
        assert isinstance(new, HMCState) and isinstance(new.position, jax.Array)
        return new, new.position

    keys = jax.random.split(keys[1], 200)
    samples = jnp.exp(jax.lax.scan(sample, state, keys)[1])
    low, high = jnp.quantile(samples, jnp.array([0.01, 0.99]), axis=0)
    names = "length of rows", "length of columns", "noise"
    for name, a, b, true in zip(names, low, high, jnp.exp(TRUE), strict=True):
        print(
            f"{name}: 98 % of the samples are in {a:.2f} to {b:.2f}; the truth is {true:.2f}."
        )
        assert a < true < b
    if plot:
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(1, 3, figsize=(8, 2.5), layout="constrained")
        for axis, name, column, true in zip(
            axes, names, samples.T, jnp.exp(TRUE), strict=True
        ):
            axis.hist(column, bins=20)
            axis.axvline(true, color="black", label="truth")
            axis.set(xlabel=name)
        axes[0].legend()
        figure.savefig(plot, dpi=60)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plot", metavar="FILE", help="draw the figure to this file")
    main(parser.parse_args().plot)
