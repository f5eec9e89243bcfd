"""Errors of linear algebra on matrices with structure, beside those of the dense program.

``python tests/values/accuracy.py`` writes the tables at the end of docs/structure.rst. A matrix of
each type has 16 rows and singular values from one to the inverse of the condition number, as
far as the type allows. What is exact is found by SciPy in double precision, from the dense form
of the same leaves.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jax.experimental.sparse import BCOO
from oracle import forbid
from structure import parts_of_file, table, write

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
        x = np.asarray(self.rng.normal(size=shape))
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
        half[[0, -1]] = abs(half[[0, -1]])  # These are real numbers.
        return np.fft.irfft(half, N)

    def tridiagonal(self, power=1.0):
        h = scipy.linalg.hessenberg(self.positive(power=power))
        return (np.diagonal(h, k).copy() for k in (-1, 0, 1))


def _banded(draw):
    """The product of two tridiagonal matrices, dense."""

    def factor():
        parts = draw.tridiagonal(0.5)
        return sum(np.diag(x, k) for k, x in zip((-1, 0, 1), parts, strict=True))

    return factor() @ factor()


def _sparse(draw):
    a = _banded(draw)
    rows, columns = np.nonzero(abs(np.subtract.outer(np.arange(N), np.arange(N))) <= 2)
    mixed = draw.rng.permutation(N)
    places = np.stack([mixed[rows], mixed[::-1][columns]], -1)
    return values.Sparse(
        BCOO((jnp.asarray(a[rows, columns]), jnp.asarray(places)), shape=(N, N))
    )


def _low_rank(draw, rank=2):
    return values.LowRank(draw.normal(N, rank) / N**0.5, draw.normal(rank, N) / N**0.5)


def _noise(draw):
    """A multiple of the identity, with the reciprocal of the condition number."""
    dtype = np.dtype("complex128" if draw.is_complex else "float64")
    return values.Scaled(values.Identity(N, dtype), dtype.type(1 / draw.c))


def _definite(draw, power):
    return values.Kronecker(*(values.Symmetric(draw.positive(4, power)) for _ in range(2)))


def _blocks(make):
    return values.BlockDiagonal(np.stack([make(4) for _ in range(4)]))


def _plus_low_rank(make):
    return lambda draw: values.Sum((make(draw), _low_rank(draw)))


# How each matrix is made, and what is asked of it: solves (l), determinants (d), a Cholesky
# factor (c), eigenvectors of a Hermitian matrix (e), singular vectors (s), a pseudo-inverse
# and least squares (p).
CASES = {
    "Diagonal": (
        lambda d: values.Diagonal(d.sizes() * d.phases().real.clip(0.5)),
        "ldcesp",
    ),
    "Triangular": (lambda d: values.Triangular(np.linalg.qr(d.general())[1].T), "ld"),
    "Symmetric": (lambda d: values.Symmetric(d.positive()), "ldcesp"),
    "BlockDiagonal": (lambda d: _blocks(d.general), "ldsp"),
    "BlockDiagonal, positive": (lambda d: _blocks(d.positive), "ldcesp"),
    "Kronecker": (
        lambda d: values.Kronecker(d.general(4, 0.5), d.general(4, 0.5)),
        "ldsp",
    ),
    "Kronecker, positive": (lambda d: _definite(d, 0.5), "ldcesp"),
    "Circulant": (lambda d: values.Circulant(d.circulant()), "ldp"),
    "Tridiagonal": (lambda d: values.Tridiagonal(*d.tridiagonal()), "ldc"),
    "Banded": (lambda d: values.Banded.from_dense(_banded(d), 2, 2), "ld"),
    "Sparse": (_sparse, "l"),
    "LowRank": (_low_rank, "p"),
    "noise + LowRank": (_plus_low_rank(_noise), "ld"),
    "Diagonal + LowRank": (
        _plus_low_rank(
            lambda d: values.Diagonal(d.sizes() * (d.phases(1) if d.is_complex else 1))
        ),
        "ld",
    ),
    "Circulant + LowRank": (
        _plus_low_rank(lambda d: values.Circulant(d.circulant())),
        "ld",
    ),
    "Tridiagonal + LowRank": (
        _plus_low_rank(lambda d: values.Tridiagonal(*d.tridiagonal())),
        "ld",
    ),
    "Kronecker + noise": (lambda d: values.Sum((_definite(d, 1), _noise(d))), "lde"),
    "Circulant + noise": (
        lambda d: values.Sum((values.Circulant(d.circulant()), _noise(d))),
        "ld",
    ),
    "Scaled": (
        lambda d: values.Scaled(values.Circulant(d.circulant()), 3 + d.normal()),
        "ldp",
    ),
    "Product": (
        lambda d: values.Product(
            (
                _blocks(lambda n: d.general(n, 0.5)),
                values.Kronecker(d.general(4, 0.25), d.general(4, 0.25)),
            )
        ),
        "ld",
    ),
}

# Their types are Hermitian only with real numbers.
REAL = {"Symmetric", "Kronecker, positive", "Kronecker + noise"}


def cases(is_complex):
    return [name for name in CASES if not (is_complex and name in REAL)]


def with_numbers(v, change):
    """A value after a function of its floating leaves.

    An identity, whose dtype is metadata, takes that of the number before it.
    """

    def cast(x):
        return change(x) if x.dtype.kind in "fc" else x

    whole = jax.tree.map(cast, v)
    dtypes = {x.dtype for x in jax.tree.leaves(whole) if x.dtype.kind in "fc" and x.size}
    (dtype,) = dtypes or {v.dtype}
    leaves = jax.tree.leaves(whole)
    one = jax.tree.map(lambda x: x, v, is_leaf=lambda x: isinstance(x, values.Identity))
    like = jax.tree.map(
        lambda x: values.Identity(N, dtype) if isinstance(x, values.Identity) else x,
        one,
        is_leaf=lambda x: isinstance(x, values.Identity),
    )
    return jax.tree.structure(like).unflatten(leaves)


@functools.cache
def batch(name, is_complex, is_single):
    """Matrices of all condition numbers and draws as one value with a batch axis."""
    make, _ = CASES[name]
    found = [make(Draw(seed, c, is_complex)) for c in CONDITIONS for seed in range(DRAWS)]
    whole = jax.tree.map(lambda *xs: jnp.asarray(np.stack(xs)), *found)
    return with_numbers(whole, _single) if is_single else whole


def _single(x):
    return x.astype("complex64" if x.dtype.kind == "c" else "float32")


# --- programs -----------------------------------------------------------------------------


def program(does, a, b):
    """What is asked of one matrix and of two right sides, (n, 2)."""
    found = {}
    if "l" in does:
        lu = jax.scipy.linalg.lu_factor(a)
        found["solve"] = jnp.linalg.solve(a, b)
        found["transposed solve"] = jnp.linalg.solve(a.T, b)
        found["lu_solve"] = jax.scipy.linalg.lu_solve(lu, b)
        found["inv"] = jnp.linalg.inv(a) @ b
    if "d" in does:
        found["slogdet"] = tuple(jnp.linalg.slogdet(a))
    if "c" in does:
        found["cholesky"] = jnp.linalg.cholesky(a)
        found["cho_solve"] = jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(a), True), b)
    if "e" in does:
        found["eigh"] = tuple(jnp.linalg.eigh(a))
    if "s" in does:
        found["svd"] = tuple(jnp.linalg.svd(a))
    if "p" in does:
        found["pinv"] = jnp.linalg.pinv(a, rtol=RTOL) @ b
        found["lstsq"] = jnp.linalg.lstsq(a, b, rcond=RTOL)[0]
    return found


# No singular value is nearly this.
RTOL = 3e-4


def loss(does, a, b):
    if "l" not in does:
        return jnp.real(jnp.sum(b[:, 1] * (jnp.linalg.pinv(a, rtol=RTOL) @ b[:, 0])))
    solved = jnp.real(jnp.sum(b[:, 1] * jnp.linalg.solve(a, b[:, 0])))
    return solved + jnp.linalg.slogdet(a)[1] if "d" in does else solved


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
    return {**found, "gradient": gradient(of, name, v, b)}


def gradient(of, name, v, b):
    fn = functools.partial(loss, CASES[name][1])
    return jax.jit(jax.vmap(functools.partial(slopes, of(fn))))(v, b)


# --- errors -------------------------------------------------------------------------------


def wide(x):
    x = np.asarray(x)
    return x.astype("complex128" if np.iscomplexobj(x) else "float64")


def errors(name, v, found):
    """For each result its errors for the condition numbers, the largest of all draws.

    Of solutions and gradients the norm of the error, of determinants that of the logarithm, all
    relative; of factors that of the matrix that they multiply to, and of the singular values.
    """
    with jax.enable_x64(True):
        double = with_numbers(v, lambda x: jnp.asarray(wide(x)))
        exact = wide(jax.jit(jax.vmap(jaxrewrite.materialise))(double))
        b = jnp.asarray(wide(right_sides(v)))
        found = {**found, "wanted": gradient(dense, name, double, b)}
    rows = []
    for i in range(len(exact)):
        own = jax.tree.map(lambda x, i=i: wide(x)[i], found)
        wanted = own.pop("wanted")
        with np.errstate(all="ignore"):
            row = {
                key: _error(key, exact[i], wide(b[i]), x, wanted) for key, x in own.items()
            }
        rows.append({key: np.inf if np.isnan(x) else x for key, x in row.items()})
    of_condition = lambda k: rows[k * DRAWS : (k + 1) * DRAWS]
    return {
        key: [max(row[key] for row in of_condition(k)) for k in range(len(CONDITIONS))]
        for key in rows[0]
    }


def _norm(x):
    return float(np.linalg.norm(x))


def _error(key, a, b, x, wanted):
    adjoint = lambda x: np.conj(x.T)
    if key == "gradient":
        pairs = list(zip(jax.tree.leaves(x), jax.tree.leaves(wanted), strict=True))
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
    if key in ("pinv", "lstsq"):
        want = scipy.linalg.pinv(a, rtol=RTOL) @ b
    else:
        want = scipy.linalg.solve(a.T if key == "transposed solve" else a, b)
    return _norm(x - want) / _norm(want)


# --- the tables ---------------------------------------------------------------------------


HEAD = """
.. generated by tests/values/accuracy.py

Relative errors in float32 against SciPy in float64, and in parentheses those of the dense program, which gets the same matrix
rounded to float32. A matrix has 16 rows. As far as its type allows, it has singular values from 1 to 0.01, 10\\ :sup:`-6` and
10\\ :sup:`-10`. The errors are the largest of three draws. The first table has those of a solution and of the logarithm of a determinant. The
second one has those of the matrix that factors multiply to and of solutions by pseudo-inverses, for any condition number. *None* is NaN or
infinity: a pivot or an eigenvalue of a matrix that is singular in float32.

Tests hold each error, for gradients and complex matrices, too, to ten times that of the dense program or ten times the bound of a backward
stable method. The bound is the rounding unit times the condition number. In float64 the error is held to 30 times that bound. Only
``Circulant`` matrices need the bound. The rounding errors of a Fourier transform are relative to the largest eigenvalue, so the least has
few right digits. The pivots of LU may have more.
"""

COLUMNS = ("solve", "slogdet")
FACTORS = ("cholesky", "eigh", "svd", "pinv", "lstsq")


def _cell(mine, other):
    shown = [
        "none" if not np.isfinite(x) else f"{x:.0e}".replace("e-0", "e-")
        for x in (mine, other)
    ]
    return f"{shown[0]} ({shown[1]})"


def _found(name):
    v = batch(name, False, True)
    return [errors(name, v, answers(of, name, v)) for of in (forbid, dense)]


def section():
    own = {name: _found(name) for name in cases(False)}
    rows = [
        [
            f"``{name}``",
            *(
                cell
                for key in COLUMNS
                for cell in (
                    map(_cell, mine[key], other[key])
                    if key in mine
                    else [""] * len(CONDITIONS)
                )
            ),
        ]
        for name, (mine, other) in own.items()
        if "solve" in mine
    ]
    head = [
        f"{key}, {c:.0e}".replace("e+0", "e").replace("e+", "e")
        for key in COLUMNS
        for c in CONDITIONS
    ]
    factors = [
        [f"``{name}``", *(_of_all(mine, other, key) for key in FACTORS)]
        for name, (mine, other) in own.items()
        if any(key in mine for key in FACTORS)
    ]
    heads = [f"``{key}``" for key in FACTORS]
    return "\n".join([HEAD, table(["", *head], rows), table(["", *heads], factors)])


def _of_all(mine, other, key):
    if key not in mine:
        return ""
    finite = [
        pair for pair in zip(mine[key], other[key], strict=True) if np.isfinite(pair).all()
    ]
    return _cell(*map(max, zip(*finite, strict=True)))


if __name__ == "__main__":
    jax.config.update("jax_disable_most_optimizations", True)
    with jax.enable_x64(True):
        write(parts_of_file()[0], section())
