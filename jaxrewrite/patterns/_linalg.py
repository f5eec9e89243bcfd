"""Inverses, determinants and products of matrices, and what computes the same for less.

What takes the place of a formula is equal to it in exact arithmetic, for finite numbers.
Products are summed in another order. Values stay implicit: what is put in place of a formula
is dispatched to their own rules.

.. [H] N. J. Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd ed., 2002.
.. [GV] G. H. Golub and C. F. Van Loan, *Matrix Computations*, 4th ed., 2013.
.. [C] T. H. Cormen, C. E. Leiserson, R. L. Rivest and C. Stein, *Introduction to
   Algorithms*, 4th ed., section 14.2.
.. [V] C. F. Van Loan, *The ubiquitous Kronecker product*, J. Comput. Appl. Math. 123, 2000.
"""

import ast
import inspect
import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import jax.scipy as jsp
from jax.lax import dot_general_p
from jaxtyping import AbstractDtype, Array, Complex64, Complex128, Float32, Float64, Inexact

import jaxrewrite
from jaxrewrite import Axis, MaterialisationError, Rules, Value

from .._compat import JaxprEqn
from .._core.settings import current_settings, use_settings
from .._insight.costs import of_jaxpr
from .._patterns.nested import Nesting
from ..values._base.structured import promoted


rules = Rules()

# Arrays and values of real or complex numbers. LAPACK has no half precision.
RealSquare = (
    Float32[Array, "*batch n n"]
    | Float64[Array, "*batch n n"]
    | Float32[Value, "*batch n n"]
    | Float64[Value, "*batch n n"]
)
Square = (
    RealSquare
    | Complex64[Array, "*batch n n"]
    | Complex128[Array, "*batch n n"]
    | Complex64[Value, "*batch n n"]
    | Complex128[Value, "*batch n n"]
)

if TYPE_CHECKING:
    from jaxtyping import Inexact as Ranged
else:

    class Ranged(AbstractDtype):
        """The dtypes in which products may come in another order.

        In float16, which ends at 65504, what is finite in one order overflows in another.
        """

        dtypes = ("bfloat16", "float32", "float64", "complex64", "complex128")


Matrix = Ranged[Array, "_ _"] | Ranged[Value, "_ _"]
Rows = Ranged[Array, "*_ _"] | Ranged[Value, "*_ _"]
Columns = (
    Ranged[Array, "_"] | Ranged[Array, "_ _"] | Ranged[Value, "_"] | Ranged[Value, "_ _"]
)
DenseMatrix = Ranged[Array, "_ _"]
DenseVector = Ranged[Array, "_"]
DenseColumns = Ranged[Array, "_"] | Ranged[Array, "_ _"]


def on(fn: Callable[..., Any], *operands: Any) -> Any:
    """Call a function of JAX on arrays, or its transform on values."""
    if any(isinstance(x, Value) for x in operands):
        fn = jaxrewrite.transform(fn)
    return fn(*operands)


def check_sizes(*pairs: tuple[Sequence[int], Sequence[int]]) -> None:
    """Raise if the sizes of axes over which products are summed differ."""
    if any(math.prod(one) != math.prod(other) for one, other in pairs):
        raise ValueError("The sizes of the factors differ.")


def of_one_precision(*factors: Any) -> bool:
    """Whether no product, or sum, of some factors is rounded to fewer digits than the whole."""
    return len({jnp.finfo(x.dtype).dtype for x in factors}) == 1


def of_shapes(*shapes: tuple[int, ...]) -> tuple[jax.ShapeDtypeStruct, ...]:
    """A probe: most functions are traced at operands of equal sizes, and these cannot be."""
    return tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)


# --- inverses and determinants --------------------------------------------------------


def transposed(x: Any) -> Any:
    return x if x.ndim == 1 else on(lambda y: jnp.swapaxes(y, -1, -2), x)


def _solve_takes(a: Any, b: Any) -> bool:
    """Whether the type of the right side has no sharding, which ``solve`` of JAX refuses."""
    return not any(b.sharding.spec)


def _solve_takes_first(b: Any, a: Any) -> bool:
    return _solve_takes(a, b)


@rules.rewrite(lambda a, b: jnp.linalg.inv(a) @ b, when=_solve_takes)
@rules.rewrite(lambda a, b: jsp.linalg.inv(a) @ b, when=_solve_takes)
def inverse_times(a: Square, b: Inexact[Array, "n"] | Inexact[Array, "*batch n m"]):
    """``solve(a, b)``: a third of the work, and the residual is small ([H]_, 14.1)."""
    return on(jnp.linalg.solve, a, b)


@rules.rewrite(lambda a, b: -jnp.linalg.inv(a) @ b, when=_solve_takes)
def negative_inverse_times(
    a: Square, b: Inexact[Array, "n"] | Inexact[Array, "*batch n m"]
):
    """The same with a sign, as in Newton's method."""
    return -on(jnp.linalg.solve, a, b)


@rules.rewrite(lambda b, a: b @ jnp.linalg.inv(a), when=_solve_takes_first)
@rules.rewrite(lambda b, a: b @ jsp.linalg.inv(a), when=_solve_takes_first)
def times_inverse(b: Inexact[Array, "n"] | Inexact[Array, "*batch m n"], a: Square):
    """The transpose of ``solve(a.T, b.T)`` ([H]_, 14.1)."""
    solution = on(jnp.linalg.solve, transposed(a), transposed(b))
    # A vector has one for each matrix of a batch, and they are no columns.
    return solution if b.ndim == 1 else transposed(solution)


@jax.custom_jvp
def slogdet(a):
    """The function of JAX; its derivative is not a number where a matrix is singular."""
    return tuple(jnp.linalg.slogdet(a))


@slogdet.defjvp
def _(primals, tangents):
    (a,), (t,) = primals, tangents
    sign, logarithm = slogdet(a)
    is_regular = sign != 0
    some = jnp.where(is_regular[..., None, None], a, jnp.eye(a.shape[-1], dtype=a.dtype))
    slope = jnp.trace(jnp.linalg.solve(some, t), axis1=-1, axis2=-2).real
    return (sign, logarithm), (jnp.zeros_like(sign), jnp.where(is_regular, slope, 0))


def logarithm_of_determinant(a: Any) -> Any:
    """The sign of the determinant, and the logarithm of its absolute value."""
    return on(jnp.linalg.slogdet, a) if isinstance(a, Value) else slogdet(a)


@rules.rewrite(lambda a: jnp.log(jnp.linalg.det(a)))
def log_determinant(a: RealSquare):
    """``slogdet``: no overflow; not a number for negative determinants ([H]_, 14.6)."""
    return on(of_positive, *logarithm_of_determinant(a))


def of_positive(sign: Any, logarithm: Any) -> Any:
    return logarithm + jnp.where(sign < 0, jnp.nan, 0)


@rules.rewrite(lambda a: jnp.log(jnp.abs(jnp.linalg.det(a))))
def log_absolute_determinant(a: Square):
    """The second result of ``slogdet``: no overflow ([H]_, 14.6)."""
    return logarithm_of_determinant(a)[1]


# --- parts of products ----------------------------------------------------------------


def entries(a: Any, b: Any) -> Any:
    """The products that the diagonal of ``a @ b`` sums, one row for each entry of it.

    Half precision is widened, as in the sums of a product.
    """
    count = min(a.shape[0], b.shape[1])
    dtype = jnp.result_type(a, b)
    wide = promoted(dtype, jnp.float32)
    return a[:count].astype(wide) * b[:, :count].T.astype(wide)


@rules.rewrite(lambda a, b: jnp.trace(a @ b))
def trace_of_product(a: Inexact[Array, "_ _"], b: Inexact[Array, "_ _"]):
    """``sum(a * b.T)``: n m products rather than n n m."""
    return jnp.sum(entries(a, b)).astype(jnp.result_type(a, b))


# A matrix that is not square is cut before its diagonal is taken.
_OBLONG = [of_shapes((2, 3), (3, 4)), of_shapes((4, 3), (3, 2))]


# `jax.numpy.diag` of a matrix calls `jax.numpy.diagonal`.
@rules.rewrite(lambda a, b: jnp.diagonal(a @ b), probes=_OBLONG)
def diagonal_of_product(a: Inexact[Array, "_ _"], b: Inexact[Array, "_ _"]):
    """``sum(a * b.T, axis=1)``: n m products rather than n n m."""
    return jnp.sum(entries(a, b), axis=1).astype(jnp.result_type(a, b))


def _sum_of_product(a, b, *, axis: Axis):
    return jnp.sum(a @ b, axis=axis)


@rules.rewrite(_sum_of_product)
def sum_of_product(a: DenseMatrix, b: DenseMatrix, *, axis):
    """The sum of rows, or of columns, comes before the product."""
    if not of_one_precision(a, b):
        return NotImplemented
    if axis == 0:
        return jnp.sum(a, axis=0) @ b
    if axis == 1:
        return a @ jnp.sum(b, axis=1)
    return jnp.sum(a, axis=0) @ jnp.sum(b, axis=1)


def _is_thin(a, b, c, d):
    if not of_one_precision(a, b, c, d):
        return False
    (rows, inner), (other, columns) = a.shape, d.shape
    return inner * other * (rows + columns) < rows * columns * (inner + other)


@rules.rewrite(lambda a, b, c, d: jnp.sum((a @ b) * (c @ d)), when=_is_thin)
def sum_of_products(a: DenseMatrix, b: DenseMatrix, c: DenseMatrix, d: DenseMatrix):
    """``sum((a.T @ c) * (b @ d.T))``, the inner product of two thin factorisations."""
    return jnp.sum((a.T @ c) * (b @ d.T))


# --- matrices with structure ----------------------------------------------------------


@rules.rewrite(lambda d, x: jnp.diag(d) @ x)
def diagonal_times(d: Inexact[Array, "_"], x: Inexact[Array, "_"] | Inexact[Array, "_ _"]):
    """Scaled rows."""
    return d * x if x.ndim == 1 else d[:, None] * x


@rules.rewrite(lambda x, d: x @ jnp.diag(d))
def times_diagonal(x: Inexact[Array, "*_ _"], d: Inexact[Array, "_"]):
    """Scaled columns."""
    return x * d


@rules.rewrite(lambda u, v, x: jnp.outer(u, v) @ x)
def outer_times(u: DenseVector, v: DenseVector, x: DenseColumns):
    """The product with one row."""
    return u * (v @ x) if x.ndim == 1 else jnp.outer(u, v @ x)


@rules.rewrite(lambda x, u, v: x @ jnp.outer(u, v))
def times_outer(x: DenseColumns, u: DenseVector, v: DenseVector):
    """The product with one column."""
    product = x @ u
    return product * v if x.ndim == 1 else jnp.outer(product, v)


def kron_times_columns(a: Any, b: Any, x: Any) -> Any:
    """``kron(a, b) @ x`` by one product with each of the two ([GV]_, 12.3.5; [V]_)."""
    (p, q), (r, s) = a.shape, b.shape
    columns = math.prod(x.shape[1:])
    x = (a @ x.reshape(q, s * columns)).reshape(p, s, columns)
    x = b @ x.transpose(1, 0, 2).reshape(s, p * columns)
    return x.reshape(r, p, columns).transpose(1, 0, 2).reshape(p * r, columns)


_KRON = [of_shapes((2, 3), (4, 5), (15,)), of_shapes((2, 3), (4, 5), (15, 7))]
_KRON_LAST = [of_shapes((8,), (2, 3), (4, 5)), of_shapes((7, 8), (2, 3), (4, 5))]


# Operands whose sizes do not fit are tried in every program that multiplies entry by entry and
# then sums. Tracing takes much longer to find that out.


def _kron_times(a, b, x):
    check_sizes((a.shape[-1:] + b.shape[-1:], x.shape[:1]))
    return jnp.kron(a, b) @ x


def _times_kron(x, a, b):
    check_sizes((x.shape[-1:], a.shape[:1] + b.shape[:1]))
    return x @ jnp.kron(a, b)


@rules.rewrite(_kron_times, probes=_KRON)
def kron_times(a: Matrix, b: Matrix, x: DenseColumns):
    """One product with each of the two matrices ([GV]_, 12.3.5; [V]_)."""
    product = kron_times_columns(a, b, x)
    return product.reshape(product.shape[:1] + x.shape[1:])


@rules.rewrite(_times_kron, probes=_KRON_LAST)
def times_kron(x: DenseColumns, a: Matrix, b: Matrix):
    """One product with each of the two matrices ([GV]_, 12.3.5; [V]_)."""
    product = kron_times_columns(transposed(a), transposed(b), transposed(x))
    return product.reshape(-1) if x.ndim == 1 else product.T


# --- chains of products ---------------------------------------------------------------

# The cost of a product: how many values become dense in it, then its operations.
Cost = tuple[int, float]


def pair(x: Any, y: Any) -> tuple[Cost, Any]:
    """The cost of ``x @ y`` and what it gives, as values and arrays of avals.

    A dense product counts by its shapes. A product with a value counts as the equations
    that the rules of its type make of it.
    """
    shape = (*x.shape[:-1], *y.shape[1:])
    result = jax.ShapeDtypeStruct(shape, jnp.result_type(x.dtype, y.dtype))
    if not isinstance(x, Value) and not isinstance(y, Value):
        return (0, 2.0 * math.prod(shape) * y.shape[0]), result
    for dense, policy in enumerate(("forbid", "allow")):
        try:
            jaxpr = jaxrewrite.make_jaxpr(jnp.matmul, materialise=policy)(x, y)
            product = jaxrewrite.transform(jnp.matmul, materialise=policy)
            return (dense, of_jaxpr(jaxpr).flops), jax.eval_shape(product, x, y)
        except MaterialisationError:
            continue
    return (2, math.inf), result


class Plan:
    """The costs of the products of a chain, by which of its operands they multiply."""

    def __init__(self, operands: Sequence[Any]):
        self.count = len(operands)
        self.known: dict[Any, tuple[Cost, Any]] = {
            i: ((0, 0.0), x) for i, x in enumerate(operands)
        }

    def of(self, order: Any) -> tuple[Cost, Any]:
        """The cost and the result of the products in an order, a tree of pairs."""
        if order not in self.known:
            (left, x), (right, y) = map(self.of, order)
            (product_cost, result) = pair(x, y)
            cost = (
                left[0] + right[0] + product_cost[0],
                left[1] + right[1] + product_cost[1],
            )
            self.known[order] = cost, result
        return self.known[order]

    def cheapest(self) -> Any:
        """The order of least cost, by dynamic programming on subchains [C]_."""
        best: dict[tuple[int, int], Any] = {(i, i): i for i in range(self.count)}
        for length in range(1, self.count):
            for i in range(self.count - length):
                j = i + length
                orders = [(best[i, k], best[k + 1, j]) for k in range(i, j)]
                best[i, j] = min(orders, key=lambda order: self.of(order)[0])
        return best[0, self.count - 1]


def product_in_order(factors: Sequence[Any], order: Any) -> Any:
    """The function that is looked for: the product of factors in an order."""
    check_sizes(*((x.shape[-1:], y.shape[:1]) for x, y in itertools.pairwise(factors)))
    return multiplied(factors, order)


def multiplied(operands: Sequence[Any], order: Any) -> Any:
    if isinstance(order, int):
        return operands[order]
    x, y = (multiplied(operands, part) for part in order)
    return on(jnp.matmul, x, y)


def cheapest_product(operands: Sequence[Any], order: str) -> Any:
    """The product in the cheapest order; ``NotImplemented`` if that is ``order``."""
    if not of_one_precision(*operands):
        return NotImplemented
    plan = Plan(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), operands))
    written = ast.literal_eval(order)
    # The products that are tried are no part of the program, nor of what explains it.
    with use_settings(current_settings()._replace(recorder=None)):
        best = plan.cheapest()
        is_cheapest = plan.of(best)[0] >= plan.of(written)[0]
    if is_cheapest:
        return NotImplemented
    return multiplied(operands, best)


Of3 = Literal["((0, 1), 2)", "(0, (1, 2))"]
Of4 = Literal[
    "(((0, 1), 2), 3)",
    "((0, (1, 2)), 3)",
    "((0, 1), (2, 3))",
    "(0, ((1, 2), 3))",
    "(0, (1, (2, 3)))",
]


def _product_of_3(a, b, c, *, order: Of3):
    return product_in_order((a, b, c), ast.literal_eval(order))


@rules.rewrite(_product_of_3)
def product_of_3(a: Rows, b: Matrix, c: Columns, *, order):
    """Three factors in the cheapest order [C]_."""
    return cheapest_product((a, b, c), order)


def _product_of_4(a, b, c, d, *, order: Of4):
    return product_in_order((a, b, c, d), ast.literal_eval(order))


@rules.rewrite(_product_of_4)
def product_of_4(a: Rows, b: Matrix, c: Matrix, d: Columns, *, order):
    """Four factors in the cheapest order [C]_, or more, in whatever order they come."""
    return cheapest_product((a, b, c, d), order)


def _is_matrix_product(eqn: JaxprEqn) -> bool:
    """Whether a product is ``@`` of matrices, or of a matrix and a vector at an end."""
    avals: list[Any] = [atom.aval for atom in eqn.invars]
    x, y = (len(aval.shape) for aval in avals)
    expected = (((x - 1,), (0,)), ((), ()))
    return 0 < y <= 2 and x > 0 and bool(eqn.params["dimension_numbers"] == expected)


def _leaves(order: Any) -> int:
    return 1 if isinstance(order, int) else sum(map(_leaves, order))


def _product_in_order(order: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """What is looked for, and the rule, for a chain of factors that come in this order."""
    count = _leaves(order)
    types = [Rows, *[Matrix] * (count - 2), Columns]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(f"x{i}", kind) for i in range(count)]

    def before(*factors: Any) -> Any:
        return product_in_order(factors, order)

    def product(*factors: Any) -> Any:
        return cheapest_product(factors, repr(order))

    product.__annotations__ = {f"x{i}": t for i, t in enumerate(types)}
    product.__name__ = product.__qualname__ = f"product_of_{count}"
    for fn in (before, product):
        vars(fn)["__signature__"] = inspect.Signature(parameters)
    return before, product


vars(product_of_4)["family"] = Nesting(
    dot_general_p, _is_matrix_product, 5, _product_in_order
)
