"""Matrices with structure, their lazy products and sums, and sparse matrices.

There is a module for each type or close family. `matrix` defines what each type must have.
`rules`, `linalg` and `determinant` hold what all types share. The import of this package
registers their rules.
"""

from . import linalg as linalg, rules as rules, woodbury as woodbury
