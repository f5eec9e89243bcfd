"""What structure an operation gives: each matrix type, and each pair of types.

``python tests/values/structure.py`` writes docs/structure.rst; a test compares parts of it.
"""

import functools
import math
import operator
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import operations
from jax.experimental.sparse import BCOO

import jaxrewrite
from jaxrewrite import values
from jaxrewrite.values import Sparse


PAGE = pathlib.Path(__file__).parents[2] / "docs" / "structure.rst"


def matrices(n, of=None):
    """A value of each type with n rows and columns; n is a square.

    ``of`` makes the numbers that it holds.
    """
    rng = np.random.default_rng(0)
    of = of or (lambda *shape: jnp.asarray(np.float32(rng.uniform(0.25, 1, shape))))
    k = math.isqrt(n)
    places = jnp.asarray(np.tile(np.arange(n, dtype=np.int32)[:, None], 2))
    return {
        "Diagonal": values.Diagonal(of(n)),
        "ScalarMatrix": values.ScalarMatrix(jnp.float32(2), n),
        "Identity": values.Identity(n),
        "Permutation": values.Permutation(jnp.asarray(np.arange(n)[::-1])),
        "Triangular": values.Triangular(of(n, n)),
        "Symmetric": values.Symmetric(of(n, n)),
        "BlockDiagonal": values.BlockDiagonal(of(k, k, k)),
        "Kronecker": values.Kronecker(of(k, k), of(k, k)),
        "Toeplitz": values.Toeplitz(of(n), of(n)),
        "Circulant": values.Circulant(of(n)),
        "Tridiagonal": values.Tridiagonal(of(n - 1), of(n), of(n - 1)),
        "Banded": values.Banded(of(4, n), 1, 2),
        "LowRank": values.LowRank(of(n, 2), of(2, n)),
        "Sparse": Sparse(BCOO((of(n), places), shape=(n, n), unique_indices=True)),
    }


PAIRS = {
    "products, ``x @ y``": operator.matmul,
    "sums, ``x + y``": operator.add,
    "products entry by entry, ``x * y``": operator.mul,
    "Kronecker products, ``jnp.kron(x, y)``": jnp.kron,
}

ALONE = {
    "inverse": jnp.linalg.inv,
    "``v @ v @ v``": lambda v: jnp.linalg.matrix_power(v, 3),
    "``expm``": jax.scipy.linalg.expm,
    "``tril``": jnp.tril,
    "``triu``": jnp.triu,
    "transpose": lambda v: v.T,
    "block": lambda v: v[1:4, 2:5],
    "``cholesky``": jnp.linalg.cholesky,
    "``abs``": jnp.abs,
}


# What is done with a matrix, and a vector as long as its rows.
USES = {
    "``v @ x``": lambda v, x: v @ x,
    "solve": jnp.linalg.solve,
    "``slogdet``": lambda v, x: jnp.linalg.slogdet(v),
}


def result(fn, *operands):
    """What the result is, without computing it; ``None`` if a value has to become dense."""
    try:
        return jax.eval_shape(jaxrewrite.transform(fn, materialise="forbid"), *operands)
    except jaxrewrite.MaterialisationError:
        return None


def kind(found):
    if found is None:
        return "dense"
    return type(found).__name__ if isinstance(found, jaxrewrite.Value) else "array"


def size(found):
    """The numbers that a result holds."""
    return sum(leaf.size for leaf in jax.tree.leaves(found))


SIZES = (1024, 16384)
GROWTHS = {
    "1": lambda n: 1,
    "n": lambda n: n,
    "n log n": lambda n: n * math.log(n),
    "n√n": lambda n: n**1.5,
    "n²": lambda n: n**2,
    "n²√n": lambda n: n**2.5,
    "n³": lambda n: n**3,
}


def growth(small, large, names=tuple(GROWTHS)):
    """How two numbers, for the two sizes, grow with n."""
    ratio = max(large, 1) / max(small, 1)

    def off(name):
        one, other = map(GROWTHS[name], SIZES)
        return abs(math.log(ratio * one / other))

    return min(names, key=off)


def numbers(small, large):
    """How the numbers that a result holds grow with n."""
    return growth(size(small), size(large), ("1", "n", "n√n", "n²"))


@functools.cache
def shapes(n):
    """The matrices, with avals in place of numbers."""
    of = lambda *shape: jnp.zeros(shape, jnp.float32)
    found = jax.eval_shape(lambda: list(matrices(n, of).values()))
    return dict(zip(matrices(4), found, strict=True))


def cost(fn, *names, vector=False):
    """How the operations grow with n, or ``None`` if a value has to become dense."""
    counts = []
    for n in SIZES:
        operands = [shapes(n)[name] for name in names]
        if vector:
            operands.append(jax.ShapeDtypeStruct((n,), jnp.float32))
        try:
            implicit = jaxrewrite.transform(fn, materialise="forbid")
            counts.append(operations.count(implicit, *operands))
        except jaxrewrite.MaterialisationError:
            return None
        except operations.Unknown:
            return "not known"
    return growth(*counts)


def cell_of_use(fn, name):
    return cost(fn, name, vector=True) or "dense"


def cell_alone(fn, name):
    small, large = (result(fn, shapes(n)[name]) for n in SIZES)
    found = kind(small)
    if found == "dense":
        return found
    made = cost(fn, name)
    if found == "array":
        return f"array ({made})"
    held = numbers(small, large)
    return f"``{found}``, {held} ({made})"


def cell_of_pairs(fn, name, others=None):
    """The results of a type with each type, grouped by what they are."""
    own = shapes(SIZES[0])
    groups = {}
    for other in others or own:
        found = kind(result(fn, own[name], own[other]))
        made = None if found == "dense" else cost(fn, name, other)
        groups.setdefault((found, made), []).append(other)
    most = max(groups, key=lambda found: len(groups[found]))
    parts = []
    for found, those in sorted(groups.items(), key=lambda item: item[0] == most):
        shown = found[0] if found[0] in ("dense", "array") else f"``{found[0]}``"
        shown += f" ({found[1]})" if found[1] else ""
        which = "any other" if found == most and len(groups) > 1 else ", ".join(those)
        parts.append(f"{shown}: {which}" if len(groups) > 1 else f"{shown}: all")
    return "; ".join(parts)


def table(head, rows):
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in (head, *rows):
        lines += [
            f"   {'  -' if i else '* -'} {text}".rstrip() for i, text in enumerate(row)
        ]
    return "\n".join(lines) + "\n"


HEAD = """What structure an operation gives
=================================

.. generated by tests/values/structure.py

The type of the result for each type of square matrix of n rows, and how many numbers the result holds. The blocks of
``BlockDiagonal`` and the factors of ``Kronecker`` have √n rows here, and a ``LowRank`` array has rank 2.

- A named type is a closed form. It is exact up to rounding, as the dense result is.
- What follows in parentheses is how the number of operations grows that make the result. It is counted in the rewritten programs of
  two sizes, as are the costs in the first table: of a product with a vector, a solve for one right side, and a determinant. A dense
  matrix takes n², n³ and n³. A solve with a ``Sparse`` matrix is that of SciPy, whose cost depends on where the entries are.
- ``Product`` and ``Sum`` are lazy: exact, and they hold their factors or terms, no more. A recursion that is unrolled, such as Newton's
  for an inverse, would double these with each turn: what would have more than 64 parts, and more than a quarter of its rows, is
  dense by the policy.
- *array* is a dense result, of n² numbers, of a rule that knows the entries. *dense* means that the operands become dense first, as
  the policy ``materialise=`` allows: by default with a warning.

A chain of products and sums holds no more numbers than its operands together, or than a dense array, up to a few vectors. A closed
form that would hold more is not made:

- A product of two ``Banded`` or two ``LowRank`` matrices that would fill the array is lazy, or dense by the policy.
- The product of a ``Sum`` and a matrix is a sum of products only if that does not repeat the matrix.
"""


def page():
    own = shapes(SIZES[0])
    parts = [HEAD, "Operations with one matrix\n--------------------------\n"]
    head = ["", "holds", *USES]
    rows = [
        [
            f"``{name}``",
            numbers(*(shapes(n)[name] for n in SIZES)),
            *(cell_of_use(fn, name) for fn in USES.values()),
        ]
        for name in own
    ]
    parts.append(table(head, rows))
    parts.append("Functions of one matrix\n-----------------------\n")
    head = ["", *ALONE]
    rows = [
        [
            f"``{name}``",
            *(cell_alone(fn, name) for fn in ALONE.values()),
        ]
        for name in own
    ]
    parts.append(table(head, rows))
    for title, fn in PAIRS.items():
        title = f"Two matrices: {title}"
        parts.append(f"{title}\n{'-' * len(title)}\n")
        parts.append(
            table(
                ["x", "result: y"],
                [[f"``{name}``", cell_of_pairs(fn, name)] for name in own],
            )
        )
    return "\n".join(parts)


# What follows on the page is written by hand, and then by accuracy.py.
BY_HAND = "\nCholesky factors of sums\n------------------------\n"
ERRORS = "\nErrors in single precision\n--------------------------\n"


def parts_of_file():
    """The page as it is: what this module writes, what is written by hand, and the errors."""
    own, rest = PAGE.read_text(encoding="utf-8").split(BY_HAND)
    by_hand, errors = rest.split(ERRORS)
    return own, BY_HAND + by_hand, errors


def write(own, errors):
    """The page with other parts."""
    _, by_hand, _ = parts_of_file()
    PAGE.write_text(own + by_hand + ERRORS + errors, encoding="utf-8")


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8")
    write(page(), parts_of_file()[2])
