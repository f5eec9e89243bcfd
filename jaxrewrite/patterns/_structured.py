"""Diagonals that a program adds to a matrix with structure, and Kronecker sums.

A program that knows nothing of values writes ``k + noise * jnp.eye(n)``. The identity is an
array of the size of the matrix, and so the sum would be an array, too. The formula here is equal,
and holds only the numbers that are added. Nothing here matches arrays
alone.

.. [V] C. F. Van Loan, *The ubiquitous Kronecker product*, J. Comput. Appl. Math. 123, 2000.
"""

import operator
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Inexact

from jaxrewrite import ArrayValue, Rules
from jaxrewrite.values import Diagonal, Identity, Kronecker, ScalarMatrix

from ..values._matrices.algebra import LinearAlgebra


rules = Rules()

Matrix = Inexact[ArrayValue, "*batch n m"]
Square = Inexact[ArrayValue, "*batch n n"]
Number = Inexact[Array, ""]
OneSquare = Inexact[ArrayValue, "n n"]
Column = Inexact[Array, "n"]
Row = Inexact[Array, "m"]

# How a matrix ``a`` and what is added to it, ``x``, come together.
Form = Literal["a + x", "a - x", "x - a"]

_FORMS = {
    "a + x": operator.add,
    "a - x": operator.sub,
    "x - a": lambda a, x: x - a,
}


def together(form: str, a: Any, x: Any) -> Any:
    return _FORMS[form](a, x)


def implicit(form: str, a: Any, x: Any) -> Any:
    """The same with a value for ``x``, if the type of ``a`` has lazy sums."""
    return together(form, a, x) if isinstance(a, LinearAlgebra) else NotImplemented


def identity(a: Any) -> Any:
    """The identity as a program makes it."""
    return jnp.eye(a.shape[-1], dtype=a.dtype)


def multiple(a: Any, s: Any) -> ScalarMatrix:
    return ScalarMatrix(jnp.broadcast_to(s, a.shape[:-2]), a.shape[-1])


def diagonal(a: Any, d: Any) -> Diagonal:
    return Diagonal(jnp.broadcast_to(d, a.shape[:-1]))


# --- what is added to the diagonal ------------------------------------------------------
#
# A program may use one identity several times, and what is no match keeps it. `jax.numpy.eye`
# without a dtype has its own, and is converted next to another matrix.


def _identity(a, *, form: Form):
    return together(form, a, identity(a))


def _plain_identity(a, *, form: Form):
    return together(form, a, jnp.eye(a.shape[-1]))


def _multiple(a, s, *, form: Form):
    return together(form, a, s * identity(a))


def _plain_multiple(a, s, *, form: Form):
    return together(form, a, s * jnp.eye(a.shape[-1]))


def _diagonal(a, d, *, form: Form):
    return together(form, a, jnp.diag(d))


@rules.rewrite(_identity, keep=True)
@rules.rewrite(_plain_identity, keep=True)
def with_identity(a: Square, *, form):
    """The identity holds no numbers."""
    return implicit(form, a, Identity(a.shape[-1], a.dtype, a.shape[:-2]))


@rules.rewrite(_multiple, keep=True)
@rules.rewrite(_plain_multiple, keep=True)
def with_multiple(a: Square, s: Number, *, form):
    """A multiple of the identity holds one number."""
    return implicit(form, a, multiple(a, s))


@rules.rewrite(_diagonal, keep=True)
def with_diagonal(a: Square, d: Column, *, form):
    """A diagonal matrix holds its diagonal."""
    return implicit(form, a, diagonal(a, d))


def _multiples(a, s, *, form: Form):
    return jax.vmap(lambda a, s: _multiple(a, s, form=form))(a, s)


def _diagonals(a, d, *, form: Form):
    return jax.vmap(lambda a, d: _diagonal(a, d, form=form))(a, d)


@rules.rewrite(_multiples, keep=True)
def with_multiples(a: Inexact[ArrayValue, "b n n"], s: Inexact[Array, "b"], *, form):
    """A multiple for each matrix of a stack, as `jax.vmap` over both makes it."""
    return implicit(form, a, ScalarMatrix(s, a.shape[-1]))


@rules.rewrite(_diagonals, keep=True)
def with_diagonals(a: Inexact[ArrayValue, "b n n"], d: Inexact[Array, "b n"], *, form):
    """A diagonal for each matrix of a stack."""
    return implicit(form, a, Diagonal(d))


def _places(a: Any) -> Any:
    return jnp.diag_indices(a.shape[-1])


@rules.rewrite(lambda a, s: a.at[_places(a)].add(s), keep=True)
def number_at_diagonal(a: OneSquare, s: Number):
    """A multiple of the identity is added."""
    return implicit("a + x", a, multiple(a, s))


@rules.rewrite(lambda a, d: a.at[_places(a)].add(d), keep=True)
def numbers_at_diagonal(a: OneSquare, d: Column):
    """A diagonal matrix is added."""
    return implicit("a + x", a, diagonal(a, d))


# --- sums of Kronecker products ------------------------------------------------------------


def _kronecker_sum(a, b):
    return jnp.kron(a, identity(b)) + jnp.kron(identity(a), b)


def _plain_kronecker_sum(a, b):
    return jnp.kron(a, jnp.eye(b.shape[0])) + jnp.kron(jnp.eye(a.shape[0]), b)


# For matrices of one size, both identities are one.
_OF_TWO_SIZES = [tuple(jax.ShapeDtypeStruct((n, n), jnp.float32) for n in (2, 3))]


@rules.rewrite(_kronecker_sum, keep=True, probes=_OF_TWO_SIZES)
@rules.rewrite(_plain_kronecker_sum, keep=True, probes=_OF_TWO_SIZES)
def kronecker_sum(a: OneSquare, b: Inexact[ArrayValue, "m m"]):
    """The decompositions of the factors give that of the sum ([V]_, section 4)."""
    if not (isinstance(a, LinearAlgebra) and isinstance(b, LinearAlgebra)):
        return NotImplemented
    n, m = a.shape[0], b.shape[0]
    return Kronecker(a, Identity(m, b.dtype)) + Kronecker(Identity(n, a.dtype), b)


# --- products ---------------------------------------------------------------------------


@rules.rewrite(lambda d, a: jnp.diag(d) @ a, keep=True)
def diagonal_times(d: Column, a: Matrix):
    """Scaled rows."""
    return d[:, None] * a if isinstance(a, LinearAlgebra) else NotImplemented


@rules.rewrite(lambda a, d: a @ jnp.diag(d), keep=True)
def times_diagonal(a: Matrix, d: Row):
    """Scaled columns."""
    return a * d if isinstance(a, LinearAlgebra) else NotImplemented
