"""Solves with a sparse matrix by a factorisation, where a singular matrix is no error."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import scipy.sparse
from jax.custom_batching import sequential_vmap
from jax.experimental.sparse.linalg import spsolve
from jax.extend.core import Primitive
from jax.interpreters import mlir
from scipy.sparse.linalg import splu


# On a CPU, JAX's own primitive calls SciPy as well, but an error or warning there ends the program.
solve_rows_p = Primitive("solve_rows")


@sequential_vmap
def solve_rows(data: Any, indices: Any, indptr: Any, b: Any) -> Any:
    """The solution for one vector and a matrix row by row; NaN where it is found to be singular."""
    return solve_rows_p.bind(data, indices, indptr, b)


@solve_rows_p.def_impl
def _(*operands: Any) -> Any:
    with jax.disable_jit(False):  # Without a compiled program, this would call itself.
        return jax.jit(solve_rows_p.bind)(*operands)


# How SciPy says that a matrix is singular. It has the same kind of error for a lack of memory.
_SINGULAR = "exactly singular", "failed to factorize"


def _by_scipy(data: Any, indices: Any, indptr: Any, b: Any) -> tuple[np.ndarray]:
    """The rows are the columns of the transpose, of which SciPy's other function would warn."""
    transpose = scipy.sparse.csc_matrix((data, indices, indptr), shape=(b.size, b.size))
    try:
        return (splu(transpose).solve(b, "T").astype(b.dtype),)
    except RuntimeError as error:
        if not any(text in str(error) for text in _SINGULAR):
            raise
        return (np.full_like(b, np.nan),)


def _lowered_on_cpu(ctx: Any, *operands: Any) -> Any:
    results, *_ = mlir.emit_python_callback(
        *(ctx, _by_scipy, None, operands, ctx.avals_in, ctx.avals_out),
        has_side_effect=False,
        returns_token=False,
    )
    return results


solve_rows_p.def_abstract_eval(lambda data, indices, indptr, b: b)
mlir.register_lowering(solve_rows_p, mlir.lower_fun(spsolve, multiple_results=False))
mlir.register_lowering(solve_rows_p, _lowered_on_cpu, platform="cpu")
