"""Solves and log-determinants from products alone, by the caller's explicit choice.

Both are approximations. No rule uses them.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

import jaxrewrite

from .._base.loops import scan
from .._base.structured import promoted


BY_PRODUCTS = (
    "If it is positive definite, jaxrewrite.values.conjugate_gradients solves by its products alone, "
    "and stochastic_logdet estimates the logarithm of its determinant"
)
"""What to do where a matrix has no factors with structure."""


def conjugate_gradients(
    matrix: Any,
    b: Float[Array, "n ..."],
    *,
    tol: float = 1e-5,
    max_steps: int | None = None,
) -> tuple[Float[Array, "n ..."], Bool[Array, "*k"]]:
    """Solve with a real symmetric positive definite matrix by its products alone.

    This is `jax.scipy.sparse.linalg.cg` for each column, and a check of the residual. The
    matrix is never made dense. Derivatives are those of the exact solution, computed by
    further solves of the same kind.

    Parameters
    ----------
    matrix
        A value or an array of shape (n, n). Only products with it are needed.
    b
        The right side, of shape (n,) or (n, k).
    tol
        The norm of the residual, relative to that of a column of ``b``, at which to stop.
    max_steps
        The largest number of steps; 10 n by default.

    Returns
    -------
    x
        The approximate solution, of the shape of ``b``.
    converged
        For each column, whether the norm of its residual is at most the tolerance, up to
        rounding.

    Raises
    ------
    ValueError
        If the shapes do not fit.
    MaterialisationError
        If the matrix has no product with a vector.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from jaxrewrite import values
    >>> a = values.Diagonal(jnp.arange(1.0, 6.0)) + values.LowRank(jnp.ones((5, 2)), jnp.ones((2, 5)))
    >>> x, converged = values.conjugate_gradients(a, jnp.ones(5))
    >>> bool(converged), bool(abs(a @ x - 1).max() < 1e-4)
    (True, True)
    """
    _check_square("conjugate_gradients", matrix)
    if b.ndim not in (1, 2) or b.shape[0] != matrix.shape[0]:
        raise ValueError(
            f"conjugate_gradients: b has shape {b.shape}, but the matrix {matrix.shape}."
        )

    b = b.astype(promoted(b.dtype, jnp.result_type(matrix.dtype, float)))

    def one(b: Any) -> Any:
        times = lambda x: _product(matrix, x)
        x = jax.scipy.sparse.linalg.cg(times, b, tol=tol, maxiter=max_steps)[0]
        left = jnp.linalg.norm(b - times(x))
        # The steps update the residual, which differs from the true one by rounding.
        rounding = 10 * float(jnp.finfo(b.dtype).eps)
        return x, left <= (1.1 * tol + rounding) * jnp.linalg.norm(b)

    if b.ndim == 1:
        return one(b)
    return jax.vmap(one, 1, (1, 0))(b)


def stochastic_logdet(
    matrix: Any, key: Any, *, probes: int = 16, steps: int = 32
) -> Float[Array, ""]:
    r"""Estimate the log-determinant of a real symmetric positive definite matrix.

    .. math:: \log\det A = E[z^T \log(A) z]

    for vectors z of random signs. The Lanczos process approximates each of these numbers by
    ``steps`` products [1]_. The estimate is random: its standard deviation falls with the
    root of ``probes``. Its derivative is the estimate
    :math:`E[z^T A^{-1} dA\, z]` of the exact one, from the same products.

    Parameters
    ----------
    matrix
        A value or an array of shape (n, n). Only products with it are needed.
    key
        A key of `jax.random`.
    probes
        The number of random vectors.
    steps
        The number of steps of the Lanczos process, which keeps ``steps * n`` numbers for
        each vector; n at most.

    Raises
    ------
    ValueError
        If the matrix is not square, or ``probes`` or ``steps`` are not positive.
    MaterialisationError
        If the matrix has no product with a vector.

    References
    ----------
    .. [1] S. Ubaru, J. Chen and Y. Saad, "Fast estimation of tr(f(A)) via stochastic Lanczos
       quadrature", SIAM Journal on Matrix Analysis and Applications 38 (2017).

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from jaxrewrite import values
    >>> a = values.Diagonal(jnp.full(100, 2.0)) + values.LowRank(jnp.ones((100, 1)), jnp.ones((1, 100)))
    >>> found = values.stochastic_logdet(a, jax.random.key(0), probes=64)
    >>> exact = 99 * jnp.log(2.0) + jnp.log(102.0)
    >>> bool(abs(found - exact) < 2)
    True
    """
    _check_square("stochastic_logdet", matrix)
    if probes < 1 or steps < 1:
        raise ValueError(
            f"stochastic_logdet: probes is {probes} and steps is {steps}; both must be "
            "positive."
        )
    n = matrix.shape[0]
    if n == 0:
        return jnp.zeros((), matrix.dtype)
    z = jax.random.rademacher(key, (probes, n), matrix.dtype)
    fixed = lax.stop_gradient(matrix)
    logs, solved = jax.vmap(lambda z: _quadrature(fixed, z, min(steps, n)))(z)
    # The product has no value of its own here, only its derivative.
    forms = jax.vmap(lambda z, x: x @ _product(matrix, z))(z, lax.stop_gradient(solved))
    return (logs + forms - lax.stop_gradient(forms)).mean()


def _quadrature(matrix: Any, z: Any, steps: int) -> tuple[Any, Any]:
    """:math:`z^T \\log(A) z` and :math:`A^{-1} z` from one Lanczos process."""
    size = jnp.linalg.norm(z)

    def step(carry: Any, i: Any) -> Any:
        basis, v = carry
        basis = basis.at[i].set(v)
        w = _product(matrix, v)
        main = v @ w
        # Two projections keep the basis orthogonal in spite of rounding.
        for _ in range(2):
            w = w - basis.T @ (basis @ w)
        beside = jnp.linalg.norm(w)
        # If the vectors span an invariant subspace, the rest of the matrix is not needed.
        is_done = beside <= 10 * jnp.finfo(z.dtype).eps * abs(main)
        v = jnp.where(is_done, 0, w / jnp.where(is_done, 1, beside))
        return (basis, v), (main, jnp.where(is_done, 0, beside))

    basis = jnp.zeros((steps, len(z)), z.dtype)
    (basis, _), (main, beside) = scan(step, (basis, z / size), jnp.arange(steps))
    # Steps after the last are those of an identity, which changes nothing.
    main = jnp.where((basis != 0).any(1), main, 1)
    small = jnp.diag(main) + jnp.diag(beside[:-1], 1) + jnp.diag(beside[:-1], -1)
    values, vectors = jnp.linalg.eigh(small)
    first = vectors[0] * size
    return (first**2 * jnp.log(values)).sum(), basis.T @ (vectors @ (first / values))


def _product(matrix: Any, x: Any) -> Any:
    multiply = jaxrewrite.transform(jnp.matmul, materialise="forbid")
    return jaxrewrite.materialise(multiply(matrix, x))


def _check_square(name: str, matrix: Any) -> None:
    if len(matrix.shape) != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"{name}: the matrix has shape {matrix.shape}, not (n, n).")
