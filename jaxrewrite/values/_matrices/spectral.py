r"""Sums of a matrix with known eigenvectors and of multiples of the identity.

A normal matrix is :math:`W \operatorname{diag}(\lambda) W^*` with a unitary W. If a type
knows both, as `Circulant` does and as a `Kronecker` product of symmetric matrices does, a
multiple c of the identity turns :math:`\lambda` into :math:`\lambda + c`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import jaxrewrite

from .algebra import dot_of, known_of, on_fields
from .block_diagonal import sorted_eigh
from .determinant import Determinant
from .matrix import nan_where, swapped
from .monomial import Diagonal, Identity, MultipleOfIdentity, OnDiagonal, svd_of_spectrum
from .scaled import Scaled
from .sum import Sum, solves_sums


class Spectrum(NamedTuple):
    r"""The eigenvalues of a normal matrix, (\*batch, n), and a unitary matrix of vectors.

    The arrays that its methods take have the shape (\*batch, n, k), or transposed.
    """

    values: Any
    vectors: Any

    @property
    def is_constant(self) -> bool:
        """Whether the eigenvectors hold no numbers, and so are the same for all values."""
        return all(leaf.size == 0 for leaf in jax.tree.leaves(self.vectors))

    def to(self, x: Any) -> Any:
        """Columns in the basis of the eigenvectors."""
        return jnp.conj(dot_of(swapped(self.vectors), jnp.conj(x)))

    def back(self, x: Any) -> Any:
        """Columns in the standard basis, the inverse of `to`."""
        return dot_of(self.vectors, x)

    def of_rows(self, x: Any) -> Any:
        """The product of rows and the matrix of eigenvectors."""
        return jnp.swapaxes(dot_of(swapped(self.vectors), jnp.swapaxes(x, -1, -2)), -1, -2)


def spectrum_of(x: Any) -> Spectrum | None:
    """The spectrum of a matrix or of a lazy sum or multiple, if it is known."""
    if isinstance(x, Scaled):
        spectrum = spectrum_of(x.x)
        if spectrum is None:
            return None
        return spectrum._replace(values=spectrum.values * _finite(x)[..., None])
    if isinstance(x, Sum):
        return _spectrum_of_sum(x)
    spectrum = known_of(x, "known_spectrum")
    return None if spectrum is NotImplemented else Spectrum(*spectrum)


_spectra: list[Callable[[Sum], Spectrum | None]] = []


def spectra_of_sums(find: Callable[[Sum], Spectrum | None]) -> Callable[..., Any]:
    """Register a function that knows the spectrum of some sums, and else gives ``None``."""
    _spectra.append(find)
    return find


def _spectrum_of_sum(total: Sum) -> Spectrum | None:
    for find in _spectra:
        spectrum = find(total)
        if spectrum is not None:
            return spectrum
    multiples = [number_of_identity(x) for x in total.terms]
    others = [x for x, c in zip(total.terms, multiples, strict=True) if c is None]
    spectrum = spectrum_of(others[0]) if len(others) == 1 else None
    if spectrum is None:
        return None
    more = sum(c[..., None] for c in multiples if c is not None)
    return spectrum._replace(values=spectrum.values + more)


def number_of_identity(x: Any) -> Any:
    r"""The numbers c, of shape (\*batch), of a multiple of the identity, or ``None``."""
    if isinstance(x, MultipleOfIdentity):
        return on_fields(lambda x: x.c, x)
    if isinstance(x, Scaled) and isinstance(x.x, Identity):
        return jnp.broadcast_to(_finite(x), x.batch)
    return None


def _finite(x: Scaled) -> Any:
    """The number of a multiple, or NaN if the zeros of the matrix times it are NaN."""
    return nan_where(~jnp.isfinite(x.number), x.number)


def as_diagonal(x: Any) -> Any:
    """A diagonal matrix as a `Diagonal`, and anything else as it is."""
    if isinstance(x, OnDiagonal):
        return on_fields(lambda x: x.as_diagonal(), x)
    if isinstance(x, Scaled) and isinstance(x.x, OnDiagonal):
        scaled = x.rescaled(_finite(x))
        return Diagonal(jaxrewrite.materialise(scaled.diagonal()))
    return x


class _Shifted(NamedTuple):
    """A sum with a known spectrum."""

    spectrum: Spectrum
    is_real: bool

    def solve(self, b: Any) -> Any:
        values, _ = self.spectrum
        x = self.spectrum.back(self.spectrum.to(b) / values[..., None])
        return x.real if self.is_real else x

    def determinant(self) -> Any:
        determinant = Determinant.of(self.spectrum.values)
        return determinant.real() if self.is_real else determinant

    def eigh(self) -> Any:
        values, vectors = self.spectrum
        return sorted_eigh(values.real, vectors)

    def reduced_svd(self) -> Any:
        return svd_of_spectrum(*self.spectrum)


@solves_sums
def _(total: Sum) -> _Shifted | None:
    spectrum = _spectrum_of_sum(total)
    return None if spectrum is None else _Shifted(spectrum, not jnp.iscomplexobj(total))
