"""Matrices with structure, their lazy products and sums, and sparse matrices.

There is a module for each type or close family. `matrix` defines what each type must have.
`rules`, `linalg`, `lu`, `functions`, `norms`, `pairs` and `determinant` hold what all types share. The
import of this package registers their rules.
"""

from . import (
    doubled as doubled,
    functions as functions,
    kronecker_sum as kronecker_sum,
    least_squares as least_squares,
    linalg as linalg,
    low_rank_functions as low_rank_functions,
    low_rank_products as low_rank_products,
    low_rank_sums as low_rank_sums,
    lu as lu,
    pairs as pairs,
    rules as rules,
    woodbury as woodbury,
)
