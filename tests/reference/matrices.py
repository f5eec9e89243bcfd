"""Matrices with structure."""

from jaxrewrite.values import (
    Constant,
    Diagonal,
    Identity,
    Known,
    Product,
    ScalarMatrix,
    Scaled,
    Sum,
    Zero,
)

from . import COMPLEX, case, uniform


@case("diagonal", square=True, dtypes=COMPLEX)
def _(rng, dtype, n, m):
    return Diagonal(uniform(rng, (n,), dtype))


@case("identity", square=True)
def _(rng, dtype, n, m):
    return Identity(n, dtype)


@case("scalar_matrix", square=True, dtypes=COMPLEX, variant=True)
def _(rng, dtype, n, m):
    return ScalarMatrix(uniform(rng, (), dtype), n)


@case("scaled", dtypes=COMPLEX)
def _(rng, dtype, n, m):
    return Scaled(uniform(rng, (n, m), dtype), uniform(rng, (), dtype))


@case("scaled_diagonal", square=True, variant=True)
def _(rng, dtype, n, m):
    return Scaled(Diagonal(uniform(rng, (n,), dtype)), uniform(rng, (), dtype))


@case("sum", square=True)
def _(rng, dtype, n, m):
    return Sum((Diagonal(uniform(rng, (n,), dtype)), uniform(rng, (n, n), dtype)))


@case("product")
def _(rng, dtype, n, m):
    return Product((Diagonal(uniform(rng, (n,), dtype)), uniform(rng, (n, m), dtype)))


@case("zero", dtypes=COMPLEX)
def _(rng, dtype, n, m):
    return Zero((n, m), dtype)


@case("constant", dtypes=COMPLEX)
def _(rng, dtype, n, m):
    return Constant(uniform(rng, (), dtype), (n, m))


@case("constant_known", variant=True)
def _(rng, dtype, n, m):
    return Constant(Known(0.75, dtype), (n, m))
