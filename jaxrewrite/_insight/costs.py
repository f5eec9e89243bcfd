"""Costs of equations: floating-point operations and bytes, from one table.

Operations are counted as XLA's cost analysis does, where it counts them: one for each
entry of an elementwise result, two for each multiply-add of a product. For factorisations,
sorting and Fourier transforms, which XLA leaves out or counts as calls, they are the leading
terms of the textbook algorithms [1]_. Bytes are counted of the operands and results, as if
each equation read and wrote memory; a compiler fuses many of them. A scan costs its body
times its length, and a Pallas kernel its body times its grid, with the bytes of the arrays that
it takes and returns. A loop of unknown length costs one turn, and a conditional costs its most
expensive branch, or the one for the default platform if it chooses by platform.

.. [1] G. H. Golub and C. F. Van Loan, *Matrix Computations*, 4th ed., tables of operation
   counts in sections 3.2, 4.2, 5.2, 8.3 and 8.6; 5 n log2(n) for a Fourier transform of n
   complex numbers is the usual convention.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
from jax import lax

from .._compat import JaxprEqn, Literal


class Cost(NamedTuple):
    """Floating-point operations, and bytes read and written."""

    flops: float = 0.0
    bytes: float = 0.0

    def plus(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.bytes + other.bytes)

    def times(self, n: float) -> Cost:
        return Cost(self.flops * n, self.bytes * n)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


def total(costs: Iterable[Cost]) -> Cost:
    return functools.reduce(Cost.plus, costs, Cost())


def of_jaxpr(jaxpr: Any) -> Cost:
    """The cost of a jaxpr, with or without constants."""
    return total(map(of_equation, jaxpr.eqns))


def of_equation(eqn: JaxprEqn) -> Cost:
    """The cost of an equation with all jaxprs inside of it."""
    of_bodies = [of_jaxpr(body) for body in bodies_that_run(eqn)]
    if not of_bodies:
        return Cost(_flops(eqn), _bytes(eqn))
    if eqn.primitive.name == "cond":
        return max(of_bodies)
    turns = trip_count(eqn)
    cost = total(of_bodies).times(1 if turns is None else turns)
    # What a kernel reads and writes while it runs is not in memory.
    return Cost(cost.flops, _bytes(eqn)) if eqn.primitive.name == "pallas_call" else cost


def bodies_that_run(eqn: JaxprEqn) -> list[Any]:
    """The jaxprs inside of an equation that run with it; of a conditional one of them."""
    name = eqn.primitive.name
    bodies = list(jex_core.jaxprs_in_params(eqn.params))
    if not bodies or name in _WITH_ENTRYWISE_BODY:
        return []
    if name == "cond":
        platforms = eqn.params.get("branches_platforms")
        return bodies if platforms is None else [bodies[_branch_here(platforms)]]
    if name == "while":
        return bodies
    if name in ("custom_linear_solve", "linear_call"):
        # Of a solve only the solve runs, and of a linear call only its function.
        return [_forward(eqn)]
    # A call, with derivative rules that do not run or are jaxprs made later.
    return bodies[:1]


def _branch_here(platforms: Sequence[Sequence[str] | None]) -> int:
    """The branch of `jax.lax.platform_dependent` for the default platform."""
    here = jax.default_backend()
    return next(i for i, names in enumerate(platforms) if names is None or here in names)


def trip_count(eqn: JaxprEqn) -> int | None:
    """How often the bodies of an equation run; ``None`` if it is not known."""
    if eqn.primitive.name == "scan":
        return eqn.params["length"]
    if eqn.primitive.name == "pallas_call":
        grid = eqn.params["grid_mapping"].grid
        return math.prod(grid) if all(isinstance(n, int) for n in grid) else None
    return None if eqn.primitive.name == "while" else 1


def _forward(eqn: JaxprEqn) -> Any:
    if eqn.primitive.name == "custom_linear_solve":
        return eqn.params["jaxprs"].solve
    return eqn.params["callee"]


# The functions in these say how entries are combined, and are counted for each entry.
_WITH_ENTRYWISE_BODY = _names(
    "reduce reduce_window scatter scatter-add scatter-mul scatter-min scatter-max "
    "scatter-sub"
)


def _bytes(eqn: JaxprEqn) -> float:
    operands = {id(x): x.aval for x in eqn.invars if type(x) is not Literal}
    results = [var.aval for var in eqn.outvars]
    return sum(map(bytes_of, (*operands.values(), *results)))


def bytes_of(aval: Any) -> float:
    if not hasattr(aval, "shape"):
        return 0.0
    dtype = aval.dtype
    is_integer = jnp.issubdtype(dtype, jnp.integer)
    width = jnp.iinfo(dtype).bits / 8 if is_integer else dtype.itemsize
    return math.prod(aval.shape) * width


def _flops(eqn: JaxprEqn) -> float:
    name = eqn.primitive.name
    if name in _FREE:
        return 0.0
    count = _COUNTS.get(name, _result_size)
    return float(count(eqn))


# They move, make or reinterpret numbers.
_FREE = _names(
    "all_gather all_to_all axis_index bitcast_convert_type broadcast broadcast_in_dim "
    "concatenate copy copy_p create_token device_put dynamic_slice dynamic_update_slice "
    "empty empty2 gather get iota optimization_barrier pad pbroadcast pcast ppermute "
    "platform_index pvary random_bits random_fold_in random_seed random_split "
    "random_unwrap random_wrap real reshape rev scatter slice split squeeze stack stop_gradient swap tile transpose "
    "threefry2x32 unstack"
)


def _shape(atom: Any) -> tuple[int, ...]:
    """The shape of a variable; tokens and references have none."""
    return getattr(atom.aval, "shape", ())


def _size(atom: Any) -> float:
    return math.prod(_shape(atom))


def _result_size(eqn: JaxprEqn) -> float:
    return sum(map(_size, eqn.outvars))


def _operand_size(eqn: JaxprEqn) -> float:
    return _size(eqn.invars[0])


def _product(eqn: JaxprEqn) -> float:
    (contracted, _), _ = eqn.params["dimension_numbers"]
    shape = _shape(eqn.invars[0])
    return 2 * _result_size(eqn) * math.prod(shape[axis] for axis in contracted)


def _product_of_groups(eqn: JaxprEqn) -> float:
    """A product of each row, or of each number that is summed, with the matrix of its group."""
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    (contracted, _), _ = numbers.dot_dimension_numbers
    shape, (groups,) = _shape(eqn.invars[0]), _shape(eqn.invars[2])[-1:]
    products = _result_size(eqn) * math.prod(shape[axis] for axis in contracted)
    is_sum_of_groups = set(numbers.lhs_ragged_dimensions) <= set(contracted)
    return 2 * products / (groups if is_sum_of_groups else 1)


def _product_of_digits(eqn: JaxprEqn) -> float:
    """A product with each of the four digits, as `Quantised` arrays are multiplied."""
    labels = (*eqn.params["own"], *eqn.params["xs"])
    shapes = (*_shape(eqn.invars[0]), *_shape(eqn.invars[1]))
    return 4 * 2 * math.prod(dict(zip(labels, shapes, strict=True)).values())


def _product_of_a_row(eqn: JaxprEqn) -> float:
    """A product of a `Quantised` array, whose codes come first, and one row."""
    return 2 * _size(eqn.invars[0])


def _sparse_product(eqn: JaxprEqn) -> float:
    """A product of a matrix of which only some entries are stored, which come first."""
    columns = _result_size(eqn) / max(_shape(eqn.outvars[0])[0], 1)
    return 2 * _size(eqn.invars[0]) * columns


def _convolution(eqn: JaxprEqn) -> float:
    """Two operations for each entry of a kernel at each index of the result.

    Of an operand with zeros in between, as in a transposed convolution, an index of the result
    meets the other numbers alone. XLA does not count products with padding. At the border of
    an image this counts them.
    """
    kernel = _shape(eqn.invars[1])
    _, features, *window = eqn.params["dimension_numbers"].rhs_spec
    entries = kernel[features] * math.prod(kernel[axis] for axis in window)
    return 2 * _result_size(eqn) * entries / math.prod(eqn.params["lhs_dilation"])


def _power(eqn: JaxprEqn) -> float:
    """Repeated squaring, and a division for a negative power."""
    power = abs(eqn.params["y"])
    products = max(power.bit_length() + power.bit_count() - 2, 0)
    return (products + (eqn.params["y"] < 0)) * _result_size(eqn)


def _window(eqn: JaxprEqn) -> float:
    return _result_size(eqn) * math.prod(eqn.params["window_dimensions"])


def _updates(eqn: JaxprEqn) -> float:
    return _size(eqn.invars[-1])


def _sort(eqn: JaxprEqn) -> float:
    n = _shape(eqn.invars[0])[eqn.params["dimension"]]
    return _operand_size(eqn) * math.log2(max(n, 2))


def _fourier(eqn: JaxprEqn) -> float:
    n = math.prod(eqn.params["fft_lengths"])
    size = max(map(_size, (*eqn.invars, *eqn.outvars)))
    is_real = eqn.params["fft_type"] in (lax.FftType.RFFT, lax.FftType.IRFFT)
    return 5 * size * math.log2(max(n, 2)) / (2 if is_real else 1)


def _matrices(eqn: JaxprEqn) -> tuple[float, int, int]:
    """The number of matrices, and the larger and the smaller of their sizes."""
    *batch, n, m = _shape(eqn.invars[0])
    return math.prod(batch), max(n, m), min(n, m)


def _per_matrix(count: Callable[[int, int], float]) -> Callable[[JaxprEqn], float]:
    def flops(eqn: JaxprEqn) -> float:
        batch, n, m = _matrices(eqn)
        return batch * count(n, m)

    return flops


def _triangular_solve(eqn: JaxprEqn) -> float:
    n = _shape(eqn.invars[0])[-1]
    return n * _size(eqn.invars[1])


_COUNTS: dict[str, Callable[[JaxprEqn], float]] = {
    "dot_general": _product,
    "ragged_dot_general": _product_of_groups,
    "integer_dot": _product_of_digits,
    "rows_dot": _product_of_a_row,
    "bcoo_dot_general": _sparse_product,
    "bcsr_dot_general": _sparse_product,
    "conv_general_dilated": _convolution,
    "select_and_scatter_add": _operand_size,
    "sort": _sort,
    "top_k": lambda eqn: _operand_size(eqn) * math.log2(max(eqn.params["k"], 2)),
    "integer_pow": _power,
    "polynomial": lambda eqn: 2 * (len(eqn.invars) - 2) * _result_size(eqn),
    "fft": _fourier,
    "cholesky": _per_matrix(lambda n, m: n**3 / 3),
    "lu": _per_matrix(lambda n, m: n * m**2 - m**3 / 3),
    "qr": _per_matrix(lambda n, m: 4 * n * m**2 - 4 * m**3 / 3),
    "eigh": _per_matrix(lambda n, m: 9 * n**3),
    "eig": _per_matrix(lambda n, m: 25 * n**3),
    "schur": _per_matrix(lambda n, m: 25 * n**3),
    "hessenberg": _per_matrix(lambda n, m: 10 * n**3 / 3),
    "svd": _per_matrix(lambda n, m: 14 * n * m**2 + 8 * m**3),
    "tridiagonal": _per_matrix(lambda n, m: 4 * n**3 / 3),
    "tridiagonal_solve": lambda eqn: 8 * _result_size(eqn),
    "triangular_solve": _triangular_solve,
}
_FAMILIES = {
    _per_matrix(lambda n, m: 2 * n * m**2 - 2 * m**3 / 3): (
        "geqrf geqp3 householder_product"
    ),
    _window: (
        "reduce_window reduce_window_sum reduce_window_max reduce_window_min "
        "select_and_gather_add"
    ),
    _operand_size: (
        "reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor "
        "argmax argmin reduce cumsum cumprod cummax cummin cumlogsumexp psum "
        "psum_invariant pmax pmin reduce_scatter"
    ),
    _updates: ("scatter-add scatter-mul scatter-min scatter-max scatter-sub"),
}
for _count, _family in _FAMILIES.items():
    _COUNTS |= dict.fromkeys(_names(_family), _count)
