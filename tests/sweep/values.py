"""Values of every ready type, and of types of users, as Python expressions.

`TYPES` has a maker for each: given a `Source` of random choices, a dtype, the numbers of rows
and columns and batch axes in front, it gives an expression of the vocabulary of ``names``.
`value` nests them.
"""

import math
import random
from collections.abc import Callable
from typing import Any, NamedTuple


FLOATS = ("float32", "float64", "bfloat16", "float16")
INEXACT = (*FLOATS, "complex64")
ANY = (*INEXACT, "int32", "bool")


class Type(NamedTuple):
    make: Callable[..., str]
    square: bool
    dtypes: tuple[str, ...]
    empty: bool
    batch: bool
    holds: bool  # other values


TYPES: dict[str, Type] = {}


class Refused(Exception):
    """There is no such value, or program."""


def a_type(name, *, square=False, dtypes=INEXACT, empty=True, batch=True, holds=False):
    def add(make):
        TYPES[name] = Type(make, square, dtypes, empty, batch, holds)
        return make

    return add


class Source:
    """Random choices, from which a program is made."""

    def __init__(self, seed: Any) -> None:
        self.random = random.Random(seed)
        self.seeds = 100
        self.spoil = False

    def chance(self, p: float) -> bool:
        return self.random.random() < p

    def choice(self, options: Any) -> Any:
        return self.random.choice(list(options))

    def seed(self) -> int:
        self.seeds += 1
        return self.seeds

    def u(self, *shape: int, dtype: str = "float32", more: str = "") -> str:
        """An expression of an array."""
        sizes = "".join(f", {n}" for n in shape)
        kind = "" if dtype == "float32" else f", dtype={dtype!r}"
        text = f"u({self.seed()}{sizes}{kind}{more})"
        if self.spoil and dtype in INEXACT and shape and math.prod(shape):
            number = self.choice(("jnp.nan", "jnp.inf", "-jnp.inf"))
            if self.chance(0.5):
                return f"spoilt({text}, {number})"
        return text

    def leaf(self, *shape: int, dtype: str) -> str:
        """The same; now and then one that is a value."""
        if self.spoil or not self.chance(0.06):
            return self.u(*shape, dtype=dtype)
        text = self.u(*shape, dtype=dtype)
        options = [f"Tagged({text}, 'leaf')", f"Zero({shape}, {dtype!r})"]
        options.append(f"Constant({self.u(dtype=dtype)}, {shape})")
        if dtype in INEXACT:
            options.append(f"Scaled({text}, {self.u(dtype=dtype)})")
        if dtype in FLOATS:
            options.append(f"Quantised.quantise({text})")
        return self.choice(options)


# --- matrices with structure ------------------------------------------------------------


@a_type("Diagonal", square=True)
def _(s, dtype, n, m, batch):
    return f"Diagonal({s.leaf(*batch, n, dtype=dtype)})"


@a_type("Identity", square=True, dtypes=ANY)
def _(s, dtype, n, m, batch):
    return f"Identity({n}, {dtype!r}, {batch})"


@a_type("Banded", square=True)
def _(s, dtype, n, m, batch):
    lower, upper = s.choice([(0, 0), (1, 0), (0, 1), (1, 2), (2, 1), (1, 1), (0, 3)])
    leaf = s.leaf(*batch, lower + upper + 1, n, dtype=dtype)
    return f"Banded({leaf}, {lower}, {upper})"


@a_type("Tridiagonal", square=True, empty=False)
def _(s, dtype, n, m, batch):
    off = [s.leaf(*batch, n - 1, dtype=dtype) for _ in range(2)]
    main = s.u(*batch, n, dtype=dtype, more=", low=2, high=3, signed=False")
    return f"Tridiagonal({off[0]}, {main}, {off[1]})"


@a_type("Triangular", square=True)
def _(s, dtype, n, m, batch):
    lower = s.choice((True, False))
    return f"Triangular({s.leaf(*batch, n, n, dtype=dtype)}, {lower})"


@a_type("Symmetric", square=True)
def _(s, dtype, n, m, batch):
    if dtype in ("float32", "float64") and s.chance(0.4) and not s.spoil:
        return f"Symmetric(spd({s.u(*batch, n, n, dtype=dtype)}), True)"
    return f"Symmetric({s.leaf(*batch, n, n, dtype=dtype)})"


@a_type("Permutation", square=True, dtypes=ANY, batch=False)
def _(s, dtype, n, m, batch):
    return f"Permutation(order({s.seed()}, {n}), {dtype!r})"


@a_type("BlockDiagonal")
def _(s, dtype, n, m, batch):
    ks = [k for k in (1, 2, 3, 4) if n % k == m % k == 0]
    k = s.choice(ks)
    return f"BlockDiagonal({s.leaf(*batch, k, n // k, m // k, dtype=dtype)})"


@a_type("Toeplitz", dtypes=ANY, empty=False)
def _(s, dtype, n, m, batch):
    return f"Toeplitz({s.u(*batch, n, dtype=dtype)}, {s.u(*batch, m, dtype=dtype)})"


@a_type("Circulant", square=True, dtypes=ANY, empty=False)
def _(s, dtype, n, m, batch):
    return f"Circulant({s.leaf(*batch, n, dtype=dtype)})"


@a_type("OneHot", dtypes=ANY, empty=False)
def _(s, dtype, n, m, batch):
    if s.chance(0.5):
        index = f"idx({s.seed()}, {m}, {', '.join(map(str, (*batch, n)))})"
        return f"OneHot({index}, {m}, of_dtype={dtype!r})"
    index = f"idx({s.seed()}, {n}, {', '.join(map(str, (*batch, m)))})"
    return f"OneHot({index}, {n}, -2, {dtype!r})"


@a_type("Picked", empty=False)
def _(s, dtype, n, m, batch):
    by_rows = s.chance(0.5)
    length, classes = (n, m) if by_rows else (m, n)
    index = f"idx({s.seed()}, {classes}, {', '.join(map(str, (*batch, length)))})"
    values = s.leaf(*batch, length, dtype=dtype)
    return f"Picked({values}, {index}, {classes}, {-1 if by_rows else -2})"


@a_type("LowRank")
def _(s, dtype, n, m, batch):
    rank = s.choice((1, 2, 2, 3))
    left = s.leaf(*batch, n, rank, dtype=dtype)
    right = s.leaf(*batch, rank, m, dtype=dtype)
    if s.chance(0.15):
        left, right = s.u(*batch, m, rank, dtype=dtype), s.u(*batch, rank, n, dtype=dtype)
        return f"LowRank({left}, {right}, (-1,), (-2,))"
    return f"LowRank({left}, {right})"


@a_type("Sparse", dtypes=ANY)
def _(s, dtype, n, m, batch):
    sizes = ", ".join(map(str, (*batch, n, m)))
    form = s.choice(("bcoo", "bcoo", "bcsr", "bcsc"))
    dense = f"some({s.seed()}, {sizes}, dtype={dtype!r})"
    return f"Sparse.from_dense({dense}, {n * m}, {form!r})"


@a_type("NMSparse", dtypes=(*INEXACT, "int32"))
def _(s, dtype, n, m, batch):
    rows = next(k for k in (4, 3, 2, 1) if n % k == 0)
    columns = next(k for k in (4, 3, 2, 1) if m % k == 0)
    if s.chance(0.7):
        return f"NMSparse.prune({s.u(*batch, n, m, dtype=dtype)}, {-(-rows // 2)}, {rows})"
    dense = s.u(*batch, m, n, dtype=dtype)
    return f"NMSparse.prune({dense}, {-(-columns // 2)}, {columns}).mT"


# --- weights ------------------------------------------------------------------------------


@a_type("Concatenated", dtypes=FLOATS)
def _(s, dtype, n, m, batch):
    """Parts of some rows, or of some columns, as `quantise` makes them."""
    is_rows = s.chance(0.5)
    length = n if is_rows else m
    first = s.choice(range(1, length)) if length > 1 else length
    sizes = [k for k in (first, length - first) if k or not length]
    shapes = [(*batch, k, m) if is_rows else (*batch, n, k) for k in sizes]
    how = f"axis={tuple(range(len(batch)))}" if batch else s.choice(("", "axis=-1"))
    arrays = [s.u(*shape, dtype=dtype) for shape in shapes]
    parts = "".join(
        f"Quantised.quantise({x}, {s.choice((8, 4, 3))}, {how}), " for x in arrays
    )
    return f"Concatenated(({parts}), {-2 if is_rows else -1})"


@a_type("Quantised", dtypes=FLOATS)
def _(s, dtype, n, m, batch):
    half = lambda k: k // 2 if k and k % 2 == 0 else max(k, 1)
    any_ = "None, " * len(batch)
    bits = s.choice((8, 8, 4, 2, 3, 6))
    if bool(batch):
        how = s.choice([f"axis={tuple(range(len(batch)))}", f"block=({any_}1, None)"])
    else:
        how = s.choice(
            [
                "",
                "axis=-1",
                "axis=0",
                f"block={half(n)}",
                f"block=(1, {half(m)}), symmetric=False",
                f"block=({half(n)}, {half(m)})",
                "symmetric=False",
            ]
        )
    return f"Quantised.quantise({s.u(*batch, n, m, dtype=dtype)}, {bits}, {how})"


@a_type("NF4", dtypes=FLOATS, batch=False)
def _(s, dtype, n, m, batch):
    half = lambda k: k // 2 if k and k % 2 == 0 else max(k, 1)
    block = s.choice((half(n), f"(1, {half(m)})"))
    scale = max(half(m), 1)
    return f"NF4.quantise({s.u(n, m, dtype=dtype)}, {block}, scale_block={scale})"


@a_type("Float8", dtypes=FLOATS, batch=False)
def _(s, dtype, n, m, batch):
    how = s.choice(("", "axis=-1", f"block=({max(n, 1)}, 1)"))
    kind = s.choice(("'float8_e4m3fn'", "'float8_e5m2'"))
    return f"Float8.quantise({s.u(n, m, dtype=dtype)}, {kind}, {how})"


@a_type("Microscaled", dtypes=("float32", "float64", "bfloat16"), batch=False)
def _(s, dtype, n, m, batch):
    kind = s.choice(
        ("mxfp4", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp8_e4m3", "mxfp8_e5m2", "nvfp4")
    )
    block = s.choice((f"({max(n, 1)}, 1)", f"(1, {max(m, 1)})", "1"))
    return f"Microscaled.quantise({s.u(n, m, dtype=dtype)}, {kind!r}, {block})"


@a_type("GGUF", dtypes=FLOATS)
def _(s, dtype, n, m, batch):
    kind = s.choice(("Q8_0", "Q4_1", "Q5_0", "Q4_K", "Q6_K"))
    sizes = ", ".join(map(str, (*batch, n, m)))
    return f"gguf({s.seed()}, {kind!r}, {dtype!r}, {sizes})"


@a_type("FakeQuantised", dtypes=FLOATS, batch=False)
def _(s, dtype, n, m, batch):
    how = s.choice(("8", "4, axis=-1", "3, axis=0, symmetric=False"))
    return f"FakeQuantised({s.u(n, m, dtype=dtype)}, {how})"


@a_type("Lora", dtypes=INEXACT, holds=True)
def _(s, dtype, n, m, batch, inner=None):
    w = inner("", n, m) if inner else s.u(*batch, n, m, dtype=dtype)
    a, b = s.leaf(*batch, n, 2, dtype=dtype), s.leaf(*batch, 2, m, dtype=dtype)
    scale = s.choice(("0.5", "1.0", "0.0", "2"))
    return f"Lora({w}, {a}, {b}, {scale}, frozen={s.chance(0.3)})"


@a_type("Dora", dtypes=FLOATS, holds=True)
def _(s, dtype, n, m, batch, inner=None):
    w = inner("", n, m) if inner else s.u(*batch, n, m, dtype=dtype)
    a, b = s.leaf(*batch, n, 2, dtype=dtype), s.leaf(*batch, 2, m, dtype=dtype)
    magnitude = s.leaf(*batch, 1, m, dtype=dtype)
    return f"Dora({w}, {a}, {b}, {magnitude}, 0.5, frozen={s.chance(0.3)})"


@a_type("Rescaled", dtypes=INEXACT, holds=True)
def _(s, dtype, n, m, batch, inner=None):
    w = inner("", n, m) if inner else s.u(*batch, n, m, dtype=dtype)
    sizes = s.choice(((1, m), (n, 1), (1, 1)))
    spoil = s.spoil
    s.spoil = spoil and inner is None  # A structural zero takes the numbers to be finite.
    scale = s.leaf(*batch, *sizes, dtype=dtype)
    s.spoil = spoil
    return f"Rescaled({w}, {scale})"


# --- repeated numbers -------------------------------------------------------------------------


@a_type("Zero", dtypes=ANY)
def _(s, dtype, n, m, batch):
    return f"Zero({(*batch, n, m)}, {dtype!r})"


@a_type("Constant", dtypes=ANY)
def _(s, dtype, n, m, batch):
    fill = s.u(dtype=dtype)
    if dtype in FLOATS and s.chance(0.2):
        fill = f"jnp.asarray({s.choice(('0.0', 'jnp.nan', '1.0', 'jnp.inf'))}, {dtype!r})"
    return f"Constant({fill}, {(*batch, n, m)})"


@a_type("Known", dtypes=ANY)
def _(s, dtype, n, m, batch):
    number = {"bool": "True", "int32": "2", "complex64": "(1+2j)"}.get(dtype, "0.75")
    return f"Constant(Known({s.choice((number, '0', '1'))}, {dtype!r}), {(*batch, n, m)})"


# --- lazy -------------------------------------------------------------------------------------


@a_type("Scaled", holds=True)
def _(s, dtype, n, m, batch, inner=None):
    x = inner("", n, m) if inner else s.leaf(*batch, n, m, dtype=dtype)
    return f"Scaled({x}, {s.u(dtype=dtype)})"


@a_type("Sum", dtypes=(*INEXACT, "int32"), holds=True)
def _(s, dtype, n, m, batch, inner=None):
    inner = inner or (lambda what, n, m: s.leaf(*batch, n, m, dtype=dtype))
    terms = [inner("", n, m) for _ in range(s.choice((1, 2, 2, 3)))]
    return f"Sum(({', '.join(terms)},))"


@a_type("Product", holds=True)
def _(s, dtype, n, m, batch, inner=None):
    inner = inner or (lambda what, n, m: s.leaf(*batch, n, m, dtype=dtype))
    k = s.choice((n, m))
    factors = [inner("", n, k), inner("", k, m)]
    if s.chance(0.2):
        factors.append(s.u(*batch, m, m, dtype=dtype))
    return f"Product(({', '.join(factors)},))"


@a_type("Kronecker", holds=True)
def _(s, dtype, n, m, batch, inner=None):
    inner = inner or (lambda what, n, m: s.leaf(*batch, n, m, dtype=dtype))
    k = s.choice([k for k in (1, 2, 3) if n % k == 0])
    p = k if n == m else s.choice([k for k in (1, 2, 3) if m % k == 0])
    parts = [inner("", k, p), inner("", n // k, m // p)]
    return f"Kronecker({', '.join(parts)})"


# --- what annotates ------------------------------------------------------------------------------


def inside(s, dtype, n, m, batch, inner):
    return inner("", n, m) if inner else s.u(*batch, n, m, dtype=dtype)


@a_type("Tagged", dtypes=ANY, holds=True)
def _(s, dtype, n, m, batch, inner=None):
    return f"Tagged({inside(s, dtype, n, m, batch, inner)}, {s.choice('ab')!r})"


@a_type("Named", dtypes=ANY, holds=True)
def _(s, dtype, n, m, batch, inner=None):
    rows, cols = s.choice([("r", None), (None, "c"), ("r", "c"), (None, None)])
    names = (*(None for _ in batch), rows, cols)
    return f"Named({inside(s, dtype, n, m, batch, inner)}, {names})"


@a_type("Unitful", dtypes=ANY, holds=True)
def _(s, dtype, n, m, batch, inner=None):
    units = s.choice(("", "", "m"))
    return f"Unitful({inside(s, dtype, n, m, batch, inner)}, {units!r})"


@a_type("Masked", dtypes=ANY, holds=True)
def _(s, dtype, n, m, batch, inner=None):
    shape = (*batch, n, m)
    return f"Masked({inside(s, dtype, n, m, batch, inner)}, jnp.zeros({shape}, bool))"


@a_type("Interval", dtypes=("float32", "float64", "int32", "bool"), holds=True)
def _(s, dtype, n, m, batch, inner=None):
    x = inside(s, dtype, n, m, batch, inner)
    return f"Interval({x}, {x})"


@a_type("Batched", dtypes=ANY, batch=False, holds=True)
def _(s, dtype, n, m, batch, inner=None):
    """Of ``m`` rows, each a value: the only matrices there are."""
    if not n:
        raise Refused
    element = s.choice(("tagged", "constant", "scaled", "masked"))
    if element == "scaled" and dtype in INEXACT:
        rows = [f"Scaled({s.u(m, dtype=dtype)}, {s.u(dtype=dtype)})" for _ in range(n)]
    elif element == "constant":
        rows = [f"Constant({s.u(dtype=dtype)}, ({m},))" for _ in range(n)]
    elif element == "masked":
        rows = [f"Masked({s.u(m, dtype=dtype)}, jnp.zeros({m}, bool))" for _ in range(n)]
    else:
        rows = [f"Tagged({s.u(m, dtype=dtype)}, 'row')" for _ in range(n)]
    return f"batched([{', '.join(rows)}])"


# --- types of users -----------------------------------------------------------------------


@a_type("OwnReflection", square=True, dtypes=FLOATS)
def _(s, dtype, n, m, batch):
    return f"OwnReflection({s.leaf(*batch, n, dtype=dtype)})"


@a_type("OwnAntidiagonal", square=True)
def _(s, dtype, n, m, batch):
    return f"OwnAntidiagonal({s.leaf(*batch, n, dtype=dtype)})"


@a_type("OwnTernary", dtypes=FLOATS, batch=False)
def _(s, dtype, n, m, batch):
    rows, columns = s.choice((1, n)) if n else 0, s.choice((1, m)) if m else 0
    scale = s.leaf(rows, columns, dtype=dtype)
    return f"OwnTernary(idx({s.seed()}, 3, {n}, {m}) - 1, {scale})"


@a_type("OwnAffine", dtypes=FLOATS)
def _(s, dtype, n, m, batch):
    rows = s.choice([k for k in (1, 2, 3) if n % k == 0]) if n else 0
    scale, least = (s.u(*batch, rows, m, dtype=dtype) for _ in range(2))
    shape = ", ".join(map(str, (*batch, n, m)))
    return f"OwnAffine(idx({s.seed()}, 4, {shape}), {scale}, {least})"


@a_type("OwnTwo", holds=True)
def _(s, dtype, n, m, batch, inner=None):
    first = inside(s, dtype, n, m, batch, inner)
    return f"OwnTwo({first}, {s.u(*batch, n, m, dtype=dtype)})"


@a_type("OwnSource", dtypes=ANY, holds=True)
def _(s, dtype, n, m, batch, inner=None):
    return f"OwnSource({inside(s, dtype, n, m, batch, inner)}, {s.choice('ab')!r})"


def around(name):
    """A type of a user that holds an array alone."""

    @a_type(name, dtypes=ANY, holds=True)
    def _(s, dtype, n, m, batch, inner=None):
        return f"{name}({inside(s, dtype, n, m, batch, inner)})"


for name in ("OwnAround", "OwnDefault", "OwnWithin"):
    around(name)


@a_type("OwnSquare", dtypes=INEXACT)
def _(s, dtype, n, m, batch):
    return f"OwnSquare({s.u(*batch, n, m, dtype=dtype)}, {s.choice((0.0, 0.5))})"


def value(s, name, dtype, n, m, batch=(), within=()):
    """An expression of a value of a type; ``within`` are types to nest in it, outer first."""
    kind = TYPES[name]
    if dtype not in kind.dtypes or (kind.square and n != m):
        raise Refused
    if not kind.empty and 0 in (n, m):
        raise Refused
    stacked = batch and (not kind.batch or s.chance(0.25)) and name != "Interval"
    if stacked:
        state, seeds, texts = s.random.getstate(), s.seeds, []
        for i in range(batch[0]):
            s.random.setstate(state)
            s.seeds = seeds + 50 * i
            texts.append(value(s, name, dtype, n, m, batch[1:], within))
        return f"jaxrewrite.stack([{', '.join(texts)}])"
    if not within or not kind.holds or name == "Batched":
        return kind.make(s, dtype, n, m, batch)
    inner_name, *rest = within

    def inner(what, n, m):
        if inner_name == "Interval":  # its results are compared where they are seen
            return s.u(*batch, n, m, dtype=dtype)
        if name in ("Sum", "Product", "Kronecker") and s.chance(0.4):
            return s.u(*batch, n, m, dtype=dtype)
        try:
            return value(s, inner_name, dtype, n, m, batch, tuple(rest))
        except Refused:
            return s.u(*batch, n, m, dtype=dtype)

    return kind.make(s, dtype, n, m, batch, inner)
