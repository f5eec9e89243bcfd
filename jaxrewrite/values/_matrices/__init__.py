"""Matrices with structure, lazy products and sums of them, and sparse ones.

A module a type, or a close family. `matrix` says what each has to define; `rules`, `linalg`
and `determinant` hold what is true of all. Importing this package registers those rules.
"""

from . import linalg as linalg, rules as rules
