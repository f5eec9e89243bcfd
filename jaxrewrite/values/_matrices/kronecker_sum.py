r"""Kronecker sums: :math:`A \otimes I + I \otimes B`, and so for more factors.

Such a sum is a `Sum` of `Kronecker` products in each of which all factors but one are multiples of
the identity. It is the matrix of a Sylvester equation, or of a Laplacian on a grid. The terms
commute, so the exponential is :math:`e^A \otimes e^B` [1]_. If A and B are Hermitian, with the
decompositions :math:`U \Lambda U^*` and :math:`V M V^*`, the eigenvectors are
:math:`U \otimes V`, and the eigenvalues the sums of theirs.

References
----------
.. [1] N. J. Higham, "Functions of Matrices", 2008, chapter 10.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

import jax
import jax.numpy as jnp

import jaxrewrite

from .algebra import dense_eigh, is_known_hermitian, known_of, known_or
from .kronecker import Kronecker, of_pairs
from .matrix import adjoint
from .monomial import ScalarMatrix
from .spectral import Spectrum, number_of_identity, spectra_of_sums
from .sum import Sum, exponentials_of_sums, sum_of


def _parts(total: Sum) -> list[Any] | None:
    """The matrices whose Kronecker sum a sum is, or ``None`` if it is none."""
    products = [x for x in total.terms if isinstance(x, Kronecker)]
    if not products or len(products[0].factors) < 2:
        return None
    sizes = [x.shape[-2:] for x in products[0].factors]
    if any(n != m for n, m in sizes):
        return None
    positions: list[list[Any]] = [[] for _ in sizes]
    for term in total.terms:
        number = number_of_identity(term)
        if number is None:
            if not isinstance(term, Kronecker):
                return None
            if [x.shape[-2:] for x in term.factors] != sizes:
                return None
            numbers = list(map(number_of_identity, term.factors))
            others = [i for i, c in enumerate(numbers) if c is None]
            if len(others) > 1:
                return None
            known = [c for c in numbers if c is not None]
            number = functools.reduce(jnp.multiply, known)
            if others:
                (i,) = others
                positions[i].append(_times(term.factors[i], number))
                continue
        positions[0].append(ScalarMatrix(number.astype(total.dtype), sizes[0][0]))
    return [
        sum_of(terms) if terms else ScalarMatrix(jnp.zeros(total.batch, total.dtype), n)
        for terms, (n, _) in zip(positions, sizes, strict=True)
    ]


def _times(x: Any, number: Any) -> Any:
    beside = number[..., None, None].astype(x.dtype)
    return jaxrewrite.transform(jnp.multiply)(x, beside)


@spectra_of_sums
def _(total: Sum) -> Spectrum | None:
    parts = _parts(total)
    if parts is None or not all(map(is_known_hermitian, parts)):
        return None
    decompositions = [known_or(x, "known_eigh", dense_eigh, True) for x in parts]
    numbers = jaxrewrite.materialise([values for values, _ in decompositions])
    values = functools.reduce(functools.partial(of_pairs, operator.add), numbers)
    return Spectrum(values, Kronecker(*(vectors for _, vectors in decompositions)))


@exponentials_of_sums
def _(total: Sum) -> Any:
    """Multiples of the identity are moved between the parts, if one grows much more than another.

    Else the exponential of one could be infinite, and that of another one zero. No more is moved
    than that takes, because the exponential of a very negative matrix loses digits.
    """
    parts = _parts(total)
    if parts is None:
        return NotImplemented
    growths = [jax.lax.stop_gradient(_growth(x)) for x in parts]
    mean = sum(growths) / len(growths)
    most = functools.reduce(jnp.maximum, [abs(of_part - mean) for of_part in growths])
    harmless = math.log(float(jnp.finfo(total.dtype).max)) / 4
    moved = 1 - harmless / jnp.maximum(most, harmless)
    exponentials = []
    for part, of_part in zip(parts, growths, strict=True):
        shift = moved * (mean - of_part)
        shifted = ScalarMatrix(shift.astype(total.dtype), part.shape[-1])
        exponentials.append(_exponential(jaxrewrite.transform(jnp.add)(part, shifted)))
    return Kronecker(*exponentials)


def _growth(part: Any) -> Any:
    """The largest eigenvalue of the Hermitian part: the logarithm of a bound of the exponential."""
    eigenvalues = lambda x: jnp.linalg.eigvalsh((x + adjoint(x)) / 2)
    values = jaxrewrite.transform(eigenvalues, materialise="allow")(part)
    return jaxrewrite.materialise(values).max(-1, initial=-jnp.inf)


def _exponential(part: Any) -> Any:
    """The result holds as many numbers as the dense part if the type knows none."""
    known = known_of(part, "known_exponential")
    if known is not NotImplemented:
        return known
    return jax.scipy.linalg.expm(jaxrewrite.materialise(part))
