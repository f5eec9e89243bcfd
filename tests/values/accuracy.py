"""Errors of linear algebra on matrices with structure, beside those of the dense program.

``python tests/values/accuracy.py`` writes the table at the end of docs/structure.rst. A matrix of
each type has 16 rows and singular values from one to the inverse of the condition number, as
far as the type allows. What is exact is found by SciPy in double precision, from the dense form
of the same leaves.
"""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jax.experimental.sparse import BCOO
from structure import PAGE

import jaxrewrite
from jaxrewrite import values


N = 16
CONDITIONS = (1e2, 1e6, 1e10)
DRAWS = 3


# --- matrices of a condition number, in double precision ----------------------------------


class Draw:
    """Random parts of matrices; ``c`` is the condition number."""

    def __init__(self, seed, c, is_complex):
        self.rng, self.c, self.is_complex = np.random.default_rng(seed), c, is_complex

    def normal(self, *shape):
        x = self.rng.normal(size=shape)
        return x + 1j * self.rng.normal(size=shape) if self.is_complex else x

    def sizes(self, n=N, power=1.0):
        return np.logspace(0, -power * np.log10(self.c), n)

    def unitary(self, n=N):
        return np.linalg.qr(self.normal(n, n))[0]

    def general(self, n=N, power=1.0):
        return (self.unitary(n) * self.sizes(n, power)) @ self.unitary(n)

    def positive(self, n=N, power=1.0):
        u = self.unitary(n)
        a = (u * self.sizes(n, power)) @ np.conj(u.T)
        return (a + np.conj(a.T)) / 2

    def phases(self, n=N):
        return np.exp(2j * np.pi * self.rng.uniform(size=n))

    def circulant(self):
        if self.is_complex:
            return np.fft.ifft(self.rng.permutation(self.sizes()) * self.phases())
        half = self.sizes(N // 2 + 1) * self.phases(N // 2 + 1)
        half[[0, -1]] = half[[0, -1]].real
        return np.fft.irfft(half, N)

    def tridiagonal(self, power=1.0):
        h = scipy.linalg.hessenberg(self.positive(power=power))
        return (np.diagonal(h, k).copy() for k in (-1, 0, 1))


def _banded(draw):
    """The product of two tridiagonal matrices."""
    found = 1
    for _ in range(2):
        low, middle, high = draw.tridiagonal(0.5)
        found = found @ (np.diag(middle) + np.diag(low, -1) + np.diag(high, 1)) if np.ndim(
            found
        ) else np.diag(middle) + np.diag(low, -1) + np.diag(high, 1)
    return found


def _sparse(draw):
    a = _banded(draw)
    rows, columns = np.nonzero(abs(np.subtract.outer(np.arange(N), np.arange(N))) <= 2)
    mixed = draw.rng.permutation(N)
    places = np.stack([mixed[rows], mixed[::-1][columns]], -1)
    return values.Sparse(
        BCOO((jnp.asarray(a[rows, columns]), jnp.asarray(places)), shape=(N, N))
    )


def _low_rank(draw, rank=2, is_definite=False):
    u = draw.normal(N, rank) / N**0.5
    return values.LowRank(u, np.conj(u.T) if is_definite else draw.normal(rank, N) / 4)


# What each case can do: solve and determinant always, and what its letters say: a Cholesky
# factorisation (c), eigenvectors of a Hermitian matrix (e), singular vectors (s), a
# pseudo-inverse (p).
CASES = {
    "Diagonal": (lambda d: values.Diagonal(d.sizes() * d.phases().real.clip(0.5, 1)), "cesp"),
    "Triangular": (lambda d: values.Triangular(np.linalg.qr(d.general())[1].T), ""),
    "Symmetric": (lambda d: values.Symmetric(d.positive()), "cesp"),
    "BlockDiagonal": (
        lambda d: values.BlockDiagonal(np.stack([d.general(4) for _ in range(4)])),
        "sp",
    ),
    "BlockDiagonal, positive": (
        lambda d: values.BlockDiagonal(np.stack([d.positive(4) for _ in range(4)])),
        "cesp",
    ),
    "Kronecker": (lambda d: values.Kronecker(d.general(4, 0.5), d.general(4, 0.5)), "sp"),
    "Kronecker, positive": (
        lambda d: values.Kronecker(
            *(values.Symmetric(d.positive(4, 0.5)) for _ in range(2))
        ),
        "cesp",
    ),
    "Circulant": (lambda d: values.Circulant(d.circulant()), "p"),
    "Tridiagonal": (lambda d: values.Tridiagonal(*d.tridiagonal()), "c"),
    "Banded": (lambda d: values.Banded.from_dense(_banded(d), 2, 2), ""),
    "Sparse": (_sparse, ""),
    "Sum: noise and low rank": (
        lambda d: values.Sum(
            (
                values.Scaled(values.Identity(N, _dtype(d)), _dtype(d).type(1 / d.c)),
                _low_rank(d, is_definite=True),
            )
        ),
        "",
    ),
    "Sum: diagonal and low rank": (
        lambda d: values.Sum((values.Diagonal(d.sizes() + 0j * d.normal(1)), _low_rank(d)))
        if d.is_complex
        else values.Sum((values.Diagonal(d.sizes()), _low_rank(d))),
        "",
    ),
    "Sum: Circulant and low rank": (
        lambda d: values.Sum((values.Circulant(d.circulant()), _low_rank(d))),
        "",
    ),
    "Sum: Tridiagonal and low rank": (
        lambda d: values.Sum((values.Tridiagonal(*d.tridiagonal()), _low_rank(d))),
        "",
    ),
    "Sum: Kronecker and noise": (
        lambda d: values.Sum(
            (
                values.Kronecker(
                    *(values.Symmetric(d.positive(4, 1.0)) for _ in range(2))
                ),
                values.Scaled(values.Identity(N, _dtype(d)), _dtype(d).type(1 / d.c)),
            )
        ),
        "e",
    ),
    "Scaled": (
        lambda d: values.Scaled(values.Circulant(d.circulant()), _dtype(d).type(3)),
        "p",
    ),
    "Product": (
        lambda d: values.Product(
            (
                values.BlockDiagonal(np.stack([d.general(4, 0.5) for _ in range(4)])),
                values.Kronecker(d.general(4, 0.25), d.general(4, 0.25)),
            )
        ),
        "",
    ),
}

# Their types say that they are real, or take real numbers only where they are Hermitian.
REAL = {
    "Symmetric",
    "Kronecker, positive",
    "Sum: Kronecker and noise",
}


def _dtype(draw):
    return np.dtype("complex128" if draw.is_complex else "float64")


def cases(is_complex):
    return [name for name in CASES if not (is_complex and name in REAL)]


@functools.cache
def batch(name, is_complex, is_single):
    """Matrices of all condition numbers and draws as one value with a batch axis."""
    make, _ = CASES[name]
    found = [
        make(Draw(seed, c, is_complex)) for c in CONDITIONS for seed in range(DRAWS)
    ]

    def stacked(*xs):
        x = np.stack(xs)
        if is_single and x.dtype.kind in "fc":
            x = x.astype("complex64" if x.dtype.kind == "c" else "float32")
        return jnp.asarray(x)

    whole = jax.tree.map(stacked, *found)
    return _cast_metadata(whole) if is_single else whole


def _cast_metadata(v):
    """Identities know their dtype as metadata, in a lazy multiple."""
    if not isinstance(v, values.Sum):
        return v

    def cast(term):
        if not (isinstance(term, values.Scaled) and isinstance(term.x, values.Identity)):
            return term
        one = values.Identity(N, term.scale.dtype)
        like = jax.tree.map(lambda x: jnp.zeros((len(term.scale), *x.shape), x.dtype), one)
        return values.Scaled(like, term.scale)

    return values.Sum(tuple(map(cast, v.terms)))


# --- programs -----------------------------------------------------------------------------


def program(does, a, b):
    """What is asked of one matrix and of two right sides, (n, 2)."""
    lu = jax.scipy.linalg.lu_factor(a)
    found = {
        "solve": jnp.linalg.solve(a, b),
        "transposed solve": jnp.linalg.solve(a.T, b),
        "lu_solve": jax.scipy.linalg.lu_solve(lu, b),
        "inv": jnp.linalg.inv(a) @ b,
        "slogdet": jnp.linalg.slogdet(a),
    }
    if "c" in does:
        found["cholesky"] = jnp.linalg.cholesky(a)
        found["cho_solve"] = jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(a), True), b)
    if "e" in does:
        found["eigh"] = tuple(jnp.linalg.eigh(a))
    if "s" in does:
        found["svd"] = tuple(jnp.linalg.svd(a))
        found["lstsq"] = jnp.linalg.lstsq(a, b)[0]
    if "p" in does:
        found["pinv"] = jnp.linalg.pinv(a, rtol=RTOL) @ b
    return found


# No singular value is nearly this.
RTOL = 3e-4


def loss(a, b):
    solved = jnp.linalg.solve(a, b[:, 0])
    return jnp.real(jnp.sum(b[:, 1] * solved)) + jnp.linalg.slogdet(a)[1]


def slopes(fn, v, b):
    """The gradient of `loss` by the floating leaves and the right side."""
    leaves, treedef = jax.tree.flatten(v)
    moves = [jnp.issubdtype(x.dtype, jnp.inexact) and x.size > 0 for x in leaves]

    def of(own, b):
        rest = iter(own)
        return fn(
            treedef.unflatten(
                [next(rest) if m else x for m, x in zip(moves, leaves, strict=True)]
            ),
            b,
        )

    own = [x for m, x in zip(moves, leaves, strict=True) if m]
    return jax.grad(of, (0, 1))(own, b)


def implicit(fn):
    return jaxrewrite.transform(fn, materialise="forbid")


def dense(fn):
    return lambda v, b: fn(jaxrewrite.materialise(v), b)


def right_sides(v):
    rng = np.random.default_rng(7)
    b = rng.normal(size=(len(CONDITIONS) * DRAWS, N, 2))
    if jnp.iscomplexobj(v):
        b = b + 1j * rng.normal(size=b.shape)
    return jnp.asarray(b, v.dtype)


def mapped(of, fn, inside=False):
    """A function of a batch, rewritten by ``of``, with the map outside or inside of that."""
    if inside:
        return jax.jit(lambda v, b: jaxrewrite.materialise(of(jax.vmap(fn))(v, b)))
    return jax.jit(jax.vmap(lambda v, b: jaxrewrite.materialise(of(fn)(v, b))))


def answers(of, name, v, inside=False):
    does = CASES[name][1]
    b = right_sides(v)
    found = mapped(of, functools.partial(program, does), inside)(v, b)
    by_leaves = jax.jit(jax.vmap(functools.partial(slopes, of(loss))))(v, b)
    return {**found, "gradient": by_leaves}


# --- errors -------------------------------------------------------------------------------


def wide(x):
    x = np.asarray(x)
    return x.astype("complex128" if np.iscomplexobj(x) else "float64")


def widened(v):
    cast = lambda x: jnp.asarray(wide(x)) if jnp.issubdtype(x.dtype, jnp.inexact) else x
    return jax.tree.map(cast, v)


def errors(name, v, found):
    """For each result its errors for the condition numbers, the largest of all draws.

    Of solutions and gradients the norm of the error, of determinants that of the logarithm, both
    relative; of factors that of the matrix that they multiply to.
    """
    exact = wide(_dense_of(v))
    b = wide(right_sides(v))
    slope = jax.tree.map(wide, _exact_slopes(name, v))
    rows = [
        {
            key: _error(key, exact[i], b[i], jax.tree.map(lambda x, i=i: wide(x)[i], x), i, slope)
            for key, x in found.items()
        }
        for i in range(len(exact))
    ]
    return {
        key: [
            max(row[key] for row in rows[k * DRAWS : (k + 1) * DRAWS])
            for k in range(len(CONDITIONS))
        ]
        for key in found
    }


def _dense_of(v):
    with jax.enable_x64(True):
        return jax.jit(jaxrewrite.materialise)(_double(v))


def _double(v):
    """The same numbers in double precision, also where the dtype is metadata."""
    return _cast_metadata(widened(v))


@functools.cache
def _exact_slopes_of(name, is_complex, is_single):
    v = batch(name, is_complex, is_single)
    with jax.enable_x64(True):
        wide_v = _double(v)
        b = jnp.asarray(wide(right_sides(v)))
        return jax.jit(jax.vmap(functools.partial(slopes, dense(loss))))(wide_v, b)


def _exact_slopes(name, v):
    is_single = v.dtype in (np.dtype("float32"), np.dtype("complex64"))
    return _exact_slopes_of(name, jnp.iscomplexobj(v), is_single)


def _norm(x):
    return float(np.linalg.norm(x))


def _error(key, a, b, x, i, slope):
    with np.errstate(all="ignore"):
        found = _error_of(key, a, b, x, i, slope)
    return np.inf if np.isnan(found) else found


def _error_of(key, a, b, x, i, slope):
    adjoint = lambda x: np.conj(x.T)
    if key == "gradient":
        want = jax.tree.map(lambda x: x[i], slope)
        pairs = list(zip(jax.tree.leaves(x), jax.tree.leaves(want), strict=True))
        off = sum(_norm(g - w) ** 2 for g, w in pairs)
        return (off / sum(_norm(w) ** 2 for _, w in pairs)) ** 0.5
    if key == "slogdet":
        sign, log = np.linalg.slogdet(a)
        return abs(x[1] - log) / max(1, abs(log)) + abs(x[0] - sign)
    if key == "cholesky":
        return _norm(x @ adjoint(x) - a) / _norm(a)
    if key == "eigh":
        own, vectors = x
        off = abs(own - scipy.linalg.eigvalsh(a)).max() / abs(own).max()
        return off + _norm(vectors * own @ adjoint(vectors) - a) / _norm(a)
    if key == "svd":
        u, s, vh = x
        off = abs(s - scipy.linalg.svdvals(a)).max() / s.max()
        return off + _norm(u * s @ vh - a) / _norm(a)
    if key == "pinv":
        want = scipy.linalg.pinv(a, rtol=RTOL) @ b
    elif key == "lstsq":
        want = None
    else:
        want = scipy.linalg.solve(a.T if key == "transposed solve" else a, b)
    if want is None:
        # What is small is cut off at a number that depends on the precision.
        return _norm(a @ x - b) / _norm(b)
    return _norm(x - want) / _norm(want)
