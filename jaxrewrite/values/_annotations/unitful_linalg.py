"""Linear algebra on arrays with units: solves, factorisations and decompositions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun
from jaxtyping import ArrayLike

import jaxrewrite
from jaxrewrite import register

from .declaration import annotation_rule, like
from .unitful import (
    NO_UNITS,
    Unitful,
    array_of,
    bind_numbers,
    same_units,
    units_of,
    with_units,
)
from .units import FreeUnits, UnitsError


# The units of each result, as a power of those of the matrix.
_FACTORS: dict[str, tuple[Fraction | int, ...]] = {
    "cholesky": (Fraction(1, 2),),
    "eig": (1, 0, 0),
    "eigh": (0, 1),
    # Below it are vectors that reflect, without units: see `_reflect`.
    "hessenberg": (1, 0),
    # The factors for the columns are packed with those for the rows, which have no units,
    # and are read by solves with a unit diagonal.
    "lu": (1, 0, 0),
    "qr": (0, 1, 0),
    "schur": (1, 0),
    "svd": (1, 0, 0),
    "tridiagonal": (1, 1, 1, 0),
}


@annotation_rule(Unitful, *_FACTORS)
def _factorise(x: Unitful, *, primitive: Any, **params: Any) -> Any:
    results = jaxrewrite.bind(primitive, x.array, **params)
    units = [x.units**power for power in _FACTORS[primitive.name]]
    if not primitive.multiple_results:
        return with_units(units[0], results)
    return list(map(with_units, units, results))  # There may be fewer results.


@annotation_rule(Unitful, "householder_product", "ormqr")
def _reflect(*operands: Any, primitive: Any, **params: Any) -> Any:
    """Reflections by vectors that are packed with a factor, and do not have its units."""
    _, _, *reflected = operands
    units = units_of(*reflected) if reflected else NO_UNITS
    return bind_numbers(primitive, operands, units, params)


@annotation_rule(Unitful, "triangular_solve")
def _solve_triangular(a: Any, b: Any, *, primitive: Any, **params: Any) -> Any:
    units = units_of(b) / (NO_UNITS if params["unit_diagonal"] else units_of(a))
    return bind_numbers(primitive, (a, b), units, params)


@annotation_rule(Unitful, "tridiagonal_solve")
def _solve_tridiagonal(*operands: Any, primitive: Any, **params: Any) -> Any:
    *diagonals, b = operands
    units = units_of(b) / same_units(primitive.name, diagonals)
    return bind_numbers(primitive, operands, units, params)


@annotation_rule(Unitful, "custom_linear_solve")
def _solve(*operands: Any, primitive: Any, const_lengths: Any, jaxprs: Any) -> Any:
    """Solve for the numbers. The function that solves tells their units."""
    start = sum(const_lengths[:2])
    consts = operands[start : start + const_lengths.solve]
    right = operands[sum(const_lengths) :]
    # Any numbers have these units, so no structure is looked for.
    dense = [with_units(units_of(x), like(array_of(x))) for x in (*consts, *right)]
    solutions = jax.eval_shape(jaxrewrite.transform(jaxpr_as_fun(jaxprs.solve)), *dense)
    params = {"const_lengths": const_lengths, "jaxprs": jaxprs}
    numbers = jaxrewrite.bind(primitive, *map(array_of, operands), **params)
    units = list(map(units_of, solutions))
    if all(isinstance(units_of(x), FreeUnits) for x in right):
        units = list(map(FreeUnits, units))  # The solution of zeros is zeros.
    return list(map(with_units, units, numbers))


# --- functions of JAX that are recognised as a whole --------------------------------------


@register(jnp.linalg.det)
def _determinant(x: Unitful, *, primitive: Any) -> Any:
    """As a whole, since JAX computes it by logarithms."""
    (result,) = jaxrewrite.bind(primitive, x.array)
    return with_units(x.units ** x.shape[-1], result)


@register(jnp.linalg.lstsq)
def _least_squares(*operands: Unitful | ArrayLike, primitive: Any) -> Any:
    a, b, *tolerance = operands
    if any(map(units_of, tolerance)):
        raise UnitsError(
            f"lstsq needs an rcond without units; got {units_of(tolerance[0])}."
        )
    results = jaxrewrite.bind(primitive, *map(array_of, operands))
    units = (units_of(b) / units_of(a), units_of(b) ** 2, NO_UNITS, units_of(a))
    return list(map(with_units, units, results))
