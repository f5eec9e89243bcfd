"""The gallery of ready types: docs/gallery, with a picture and a table for each.

``python docs/gallery.py`` writes the pages and the pictures; a test compares the pages. What
stays implicit is found by staging programs with `jaxrewrite.testing`'s primitives under
``materialise="forbid"``, so the tables say what the rules do.
"""

import collections
import io
import pathlib
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np

import jaxrewrite
from jaxrewrite import primitives, values
from jaxrewrite._display import brief
from jaxrewrite.testing._programs import programs
from jaxrewrite.values._base.structured import bytes_text, nbytes_of, short
from jaxrewrite.values._weights.packed import Integers


DOCS = pathlib.Path(__file__).resolve().parent
PAGES = DOCS / "gallery"

# --- the values -------------------------------------------------------------------------

RANDOM = np.random.default_rng(0)


def some(*shape):
    """Numbers away from zero, in tenths, of which none depends on a backend."""
    return jnp.asarray(RANDOM.integers(2, 10, shape) / 10, "float32")


def weight():
    return jnp.asarray(RANDOM.integers(-9, 10, (8, 8)) / 10, "float32")


def blocks():
    """Eight rows of one block of Q8_0, of which the first columns are kept."""
    codes = (np.arange(8 * 32).reshape(8, 32) * 37 % 181 - 90).astype(np.int8)
    scale = np.full((8, 1), 1 / 100, np.float16)
    data = np.concatenate([scale.view(np.uint8), codes.view(np.uint8)], -1)
    return values.GGUF.from_bytes(data, "Q8_0")[:, :8]


def short_last_block():
    """Blocks of five rows, of which the last one has three."""
    is_all = lambda path, leaf: True
    return values.quantise({"w": weight()}, is_all, 4, block=5)["w"]


def sparse():
    return jnp.where(jnp.asarray(RANDOM.random((8, 8)) < 0.15), some(8, 8), 0)


def lora():
    return values.Lora(weight(), some(8, 1), -some(1, 8))


def permutation():
    return values.Permutation(jnp.asarray(RANDOM.permutation(8)))


PAGES_OF_TYPES = {
    "repeated": (
        "Entries that repeat",
        {
            "Zero": lambda: values.Zero((8, 8), "float32"),
            "Constant": lambda: values.Constant(jnp.float32(0.5), (8, 8)),
            "Identity": lambda: values.Identity(8, "float32"),
            "ScalarMatrix": lambda: values.ScalarMatrix(jnp.float32(0.5), 8),
            "OneHot": lambda: values.OneHot(jnp.array([2, 0, 7, 3, 3, 1, 5, 4]), 8),
            "Picked": lambda: values.Picked(
                some(8), jnp.array([2, 0, 7, 3, 3, 1, 5, 4]), 8
            ),
        },
    ),
    "matrices": (
        "Matrices with structure",
        {
            "Diagonal": lambda: values.Diagonal(some(8)),
            "Tridiagonal": lambda: values.Tridiagonal(-some(7), some(8), -some(7)),
            "Banded": lambda: values.Banded(some(4, 8), lower=1, upper=2),
            "Triangular": lambda: values.Triangular(some(8, 8)),
            "Symmetric": lambda: values.Symmetric(some(8, 8)),
            "Permutation": permutation,
            "BlockDiagonal": lambda: values.BlockDiagonal(some(4, 2, 2)),
            "Kronecker": lambda: values.Kronecker(some(4, 4), some(2, 2)),
            "Toeplitz": lambda: values.Toeplitz(some(8), some(8).at[0].set(0)),
            "Circulant": lambda: values.Circulant(some(8)),
        },
    ),
    "few_numbers": (
        "Matrices with few numbers",
        {
            "LowRank": lambda: values.LowRank(some(8, 2), some(2, 8)),
            "Sparse": lambda: values.Sparse.from_dense(sparse()),
            "NMSparse": lambda: values.NMSparse.prune(some(8, 8), n=2, m=4),
        },
    ),
    "lazy": (
        "Lazy sums and products",
        {
            "Sum": lambda: values.Sum(
                (values.Diagonal(some(8)), values.LowRank(some(8, 1), some(1, 8)))
            ),
            "Product": lambda: values.Product((permutation(), values.Circulant(some(8)))),
            "Scaled": lambda: values.Scaled(some(8, 8), jnp.float32(0.5)),
        },
    ),
    "weights": (
        "Weights",
        {
            "Lora": lora,
            "Dora": lambda: values.Dora.of(lora()),
            "Rescaled": lambda: values.Rescaled(weight(), jnp.asarray([some(8)])),
            "Quantised": lambda: values.Quantised.quantise(weight(), 8, axis=-1),
            "Concatenated": short_last_block,
            "Float8": lambda: values.Float8.quantise(weight()),
            "NF4": lambda: values.NF4.quantise(weight(), (8, 1)),
            "Microscaled": lambda: values.Microscaled.quantise(weight(), block=8),
            "GGUF": blocks,
            "FakeQuantised": lambda: values.FakeQuantised(weight(), bits=4),
        },
    ),
    "annotated": (
        "Annotated arrays",
        {
            "Unitful": lambda: values.Unitful(some(8, 8), "m/s"),
            "Named": lambda: values.Named(some(8, 8), ("batch", "feature")),
            "Masked": lambda: values.Masked(some(8, 8), sparse() > 0),
            "Interval": lambda: values.Interval(-some(8, 8), some(8, 8)),
            "Tagged": lambda: values.Tagged(some(8, 8), "input"),
            "Threefry": lambda: values.Threefry.seed(0),
        },
    ),
}


def make(name):
    """The instance of a type. It does not depend on those made before."""
    global RANDOM
    RANDOM = np.random.default_rng(sum(map(ord, name)))
    for _, types in PAGES_OF_TYPES.values():
        if name in types:
            return types[name]()
    raise KeyError(name)


def names():
    return [name for _, types in PAGES_OF_TYPES.values() for name in types]


# --- what stays implicit ------------------------------------------------------------------

LINEAR_ALGEBRA = {
    "solve": lambda v: jnp.linalg.solve(v, jnp.ones(v.shape[0], v.dtype)),
    "inv": jnp.linalg.inv,
    "det": jnp.linalg.det,
    "cholesky": jnp.linalg.cholesky,
    "eigh": lambda v: jnp.linalg.eigh(v)[1],
    "svd": lambda v: jnp.linalg.svd(v, full_matrices=False),
    "pinv": jnp.linalg.pinv,
    "expm": jax.scipy.linalg.expm,
}

RANDOM_KEYS = {
    "random_bits": jax.random.bits,
    "random_fold_in": lambda key: jax.random.fold_in(key, 1),
    "random_gamma": lambda key: jax.random.gamma(key, 2.0),
    "random_split": jax.random.split,
    "random_unwrap": jax.random.key_data,
}

# So that the pages are the same with every release of JAX that the library supports.
NEWER = {"log2", "one_minus_square"}

FAMILIES = {
    "One operand, entry by entry": [p for p in primitives.UNARY if p not in NEWER],
    "Two operands, entry by entry": primitives.BINARY,
    "Where entries go": (*primitives.SHAPE, "concatenate", "pad", "dynamic_update_slice"),
    "Entries by index": primitives.INDEXING,
    "Reductions": primitives.REDUCTION,
    "Along an axis": primitives.CUMULATIVE,
    "Products": ("dot_general",),
    "Casts and choices": ("convert_element_type", "select_n", "clamp"),
    "Loops and branches": ("cond", "scan", "while", "jit"),
    "Linear algebra": tuple(LINEAR_ALGEBRA),
    "Random keys": tuple(RANDOM_KEYS),
}


def stays(fn, operands):
    """Whether a program stays implicit, or ``None`` where dense code does not run either."""
    try:
        jax.eval_shape(fn, *map(stand_in, operands))
    except (TypeError, ValueError, NotImplementedError):
        return None
    try:
        jaxrewrite.make_jaxpr(fn, materialise="forbid")(*operands)
    except (jaxrewrite.MaterialisationError, TypeError, ValueError, NotImplementedError):
        return False
    return True


def stand_in(operand):
    if isinstance(operand, jaxrewrite.Value):
        return jax.ShapeDtypeStruct(operand.shape, operand.dtype)
    return operand


def support(value):
    """For each family: the primitives that stay implicit, in part, and not."""
    found = collections.defaultdict(list)
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        ran = [(name, fn, (value,)) for name, fn in RANDOM_KEYS.items()]
    else:
        ran = [(p.primitive, p.fn, p.operands) for p in programs(value).values()]
    if len(value.shape) == 2 and jnp.issubdtype(value.dtype, jnp.floating):
        ran += [(name, fn, (value,)) for name, fn in LINEAR_ALGEBRA.items()]
    for primitive, fn, operands in ran:
        found[primitive].append(stays(fn, operands))
    found = {name: {*told} - {None} for name, told in found.items()}
    for family, members in FAMILIES.items():
        known = {name: found[name] for name in members if found.get(name)}
        if known:
            yield (
                family,
                [name for name, told in known.items() if told == {True}],
                [name for name, told in known.items() if len(told) == 2],
                [name for name, told in known.items() if told == {False}],
            )


# --- the pages ----------------------------------------------------------------------------


def of(some_names, others):
    """A cell: the names of primitives, or that these are all of the family."""
    if some_names and not any(others):
        return "all"
    return ", ".join(f"``{name}``" for name in some_names)


def table(rows):
    head = ("Operations", "stay implicit", "in part", "become dense, or are refused")
    lines = [".. list-table::", "   :header-rows: 1", "   :widths: 22 36 16 26", ""]
    for row in (head, *rows):
        lines += [
            f"   {'  -' if i else '* -'} {cell}".rstrip() for i, cell in enumerate(row)
        ]
    return "\n".join(lines)


def summary(name):
    """The first sentence of the docstring, with code where it has links."""
    first = getattr(values, name).__doc__.strip().split("\n\n")[0]
    first = re.sub(r"(?<![:\w`])`([^`]+)`(?![`\w])", r"``\1``", " ".join(first.split()))
    return re.sub(r" \[\d+\]_", "", first)


def section(name):
    value = make(name)
    rows = [
        (family, of(yes, (partly, no)), of(partly, [partly]), of(no, (yes, partly)))
        for family, yes, partly, no in support(value)
    ]
    shown = re.sub(r"\s+", " ", brief(value))
    return f"""{name}
{"-" * len(name)}

{summary(name)}

.. image:: {name.lower()}.png
   :alt: {name}: the array on the left, what is stored on the right

``{shown}``

{table(rows)}
"""


INTRODUCTION = """Gallery of value types
======================

Each ready type of ``jaxrewrite.values`` has a picture here: on the left the array that a value stands for, on the right what is
stored. Blue is positive, red is negative, white is zero. Below it, a table tells which primitives of JAX keep the value implicit.
The entries are found by staging a small program for each primitive, with ``materialise="forbid"``. *In part* means that it depends
on the other operand, or on the parameters.

`Ready value types <../values.rst>`_ explains the rules, and the `API reference <../api/values.rst>`_ has the mathematics.

"""


def overview():
    lines = [INTRODUCTION]
    for page, (title, types) in PAGES_OF_TYPES.items():
        listed = ", ".join(f"``{name}``" for name in types)
        lines.append(f"* `{title} <{page}.rst>`_: {listed}.\n")
    lines.append("\n.. toctree::\n   :hidden:\n\n")
    lines += [f"   {page}\n" for page in PAGES_OF_TYPES]
    return "".join(lines)


def page(key):
    title, types = PAGES_OF_TYPES[key]
    parts = [".. Written by docs/gallery.py.\n", f"{title}\n{'=' * len(title)}\n"]
    return "\n".join([*parts, *map(section, types)])


def pages():
    yield "index", ".. Written by docs/gallery.py.\n\n" + overview()
    for key in PAGES_OF_TYPES:
        yield key, page(key)


# --- the pictures -------------------------------------------------------------------------

CELL = 0.13  # inches
GAP = 0.45


def picture(value):
    """A PNG: the dense array, and the leaves at the same scale."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    panels = list(panels_of(value))
    widths = [max(matrix.shape[1] * CELL, 0.75) for _, matrix in panels]
    height = max(matrix.shape[0] for _, matrix in panels) * CELL
    full = sum(widths) + GAP * (len(panels) + 1), height + 0.85
    figure = plt.figure(figsize=full, dpi=100)
    left = GAP
    for i, ((label, matrix), width) in enumerate(zip(panels, widths, strict=True)):
        own = matrix.shape[1] * CELL, matrix.shape[0] * CELL
        x = left + (width - own[0]) / 2
        y = 0.62 + (height - own[1]) / 2
        box = x / full[0], y / full[1], own[0] / full[0], own[1] / full[1]
        axes = figure.add_axes(box)
        axes.matshow(matrix, cmap="RdBu", vmin=-1.2, vmax=1.2, aspect="auto")
        axes.set_xticks([]), axes.set_yticks([])
        middle = (left + width / 2) / full[0]
        figure.text(middle, 0.05 / full[1], label, ha="center", va="bottom", fontsize=7)
        if i == 0 and label.startswith("the array"):
            line = (left + width + GAP / 2) / full[0]
            figure.add_artist(plt.Line2D([line, line], [0.1, 0.9], color="0.7", lw=0.8))
        left += width + GAP
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    plt.close(figure)
    return buffer.getvalue()


def panels_of(value):
    """The labels and the matrices to draw: the dense array, if there is one, and the leaves."""
    try:
        dense = jaxrewrite.materialise(value)
        size = bytes_text(nbytes_of(dense))
        yield f"the array\n{short(value)}\n{size}", np.asarray(dense, "float32")
    except (jaxrewrite.MaterialisationError, TypeError):
        pass  # It is never dense, or a key.
    # Two codes of four bits are in a byte, and drawn apart. Blocks of GGUF are drawn as bytes.
    is_leaf = lambda x: isinstance(x, Integers)
    leaves = jax.tree_util.tree_leaves_with_path(value, is_leaf=is_leaf)
    arrays = ((path, jnp.asarray(jaxrewrite.materialise(leaf))) for path, leaf in leaves)
    leaves = [(path, leaf) for path, leaf in arrays if leaf.size]
    if not leaves:
        yield "nothing\nis stored", np.full((1, 1), np.nan)
    for path, leaf in leaves:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        yield f"{name}\n{short(leaf)}\n{bytes_text(nbytes_of(leaf))}", as_matrix(leaf)


def as_matrix(leaf):
    """Something to draw for a leaf of any rank, with gaps between blocks, within -1 and 1."""
    x = np.asarray(leaf, "float32")
    largest = np.abs(x).max(initial=0)
    x = x / largest * 0.8 if largest > 1 else x
    if x.ndim < 2:
        return x.reshape(-1, 1)
    if x.ndim == 2:
        return x
    if x.shape[-2] == 1:  # One block in each row.
        return x.squeeze(-2)
    blocks = x.reshape(-1, *x.shape[-2:])
    gap = np.full((x.shape[-2], 1), np.nan)
    return np.concatenate([part for block in blocks for part in (block, gap)][:-1], axis=1)


def same_picture(path, data):
    """Whether a file has the pixels of a picture, whichever version of a library wrote it."""
    from PIL import Image, ImageChops

    if not path.exists():
        return False
    old, new = (Image.open(x).convert("RGB") for x in (path, io.BytesIO(data)))
    return old.size == new.size and ImageChops.difference(old, new).getbbox() is None


def smaller(data):
    from PIL import Image

    buffer = io.BytesIO()
    image = Image.open(io.BytesIO(data)).convert("RGB").quantize(32)
    image.save(buffer, format="png", optimize=True)
    return buffer.getvalue()


def main():
    PAGES.mkdir(exist_ok=True)
    for key, text in pages():
        (PAGES / f"{key}.rst").write_text(text, encoding="utf-8")
    for name in names():
        data = smaller(picture(make(name)))
        path = PAGES / f"{name.lower()}.png"
        if not same_picture(path, data):
            path.write_bytes(data)


if __name__ == "__main__":
    sys.exit(main())
