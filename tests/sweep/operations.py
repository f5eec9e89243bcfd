"""The operations of programs: each returns an expression of variables of a `Builder`."""

import numpy as np

from .conditions import axes_of, axis_of, kind, ndim, nonempty, some_axes, square
from .programs import op
from .values import Refused


# --- contractions ----------------------------------------------------------------------------


@op("contraction", 6)
def einsum(b):
    """Letters for the axes of one operand, some of them those of another."""
    v = b.pick(ndim(1, 2, 3), kind("fci"))
    letters, sizes = list("ijklmn"), {}
    own = []
    for n in v.shape:
        same = [a for a in own if sizes[a] == n]
        if same and b.s.chance(0.12):
            own.append(b.s.choice(same))
            continue
        own.append(letters.pop(0))
        sizes[own[-1]] = n
    terms, texts = ["".join(own)], [v.text]
    for _ in range(b.s.choice((0, 1, 1, 1, 1, 1, 2))):
        letter = [a for a in sizes if b.s.chance(0.6)]
        if b.s.chance(0.4):
            letter.append(letters.pop(0))
            sizes[letter[-1]] = b.s.choice((2, 3, 4))
        b.s.random.shuffle(letter)
        if len(letter) > 1 and b.s.chance(0.05):
            letter.append(letter[0])
        terms.append("".join(letter[:3]))
        texts.append(b.array(tuple(sizes[a] for a in letter[:3]), v.dtype))
    if b.s.chance(0.5):
        terms, texts = terms[::-1], texts[::-1]
    used = sorted(set("".join(terms)))
    out = [a for a in used if b.s.chance(0.6)]
    b.s.random.shuffle(out)
    return f"jnp.einsum({','.join(terms) + '->' + ''.join(out)!r}, {', '.join(texts)})"


@op("contraction", 3)
def known_einsum(b):
    v = b.pick(square, ndim(2), kind("fci"))
    n = v.shape[0]
    one, two = b.array((n,), v.dtype), b.array((n, n), v.dtype)
    return b.s.choice(
        [
            f"jnp.einsum('ij,ij->', {v.text}, {two})",
            f"jnp.einsum('ij,ij->ij', {two}, {v.text})",
            f"jnp.einsum('ij,ij->i', {v.text}, {two})",
            f"jnp.einsum('ij,ji->j', {v.text}, {two})",
            f"jnp.einsum('ij,ji->', {v.text}, {v.text})",
            f"jnp.einsum('ii->i', {v.text})",
            f"jnp.einsum('ii', {v.text})",
            f"jnp.trace({v.text})",
            f"jnp.einsum('ij,j->i', {v.text}, {one})",
            f"jnp.einsum('i,ij->ij', {one}, {v.text})",
            f"jnp.einsum('i,ij,j->', {one}, {v.text}, {one})",
            f"jnp.einsum('ij->ji', {v.text})",
            f"jnp.einsum('ij->', {v.text})",
            f"jnp.einsum('ij,jk,kl->il', {two}, {v.text}, {two})",
        ]
    )


@op("contraction", 6)
def matmul(b):
    v = b.pick(ndim(1, 2, 3, 4), kind("fci"))
    k = v.shape[-1]
    if b.s.chance(0.5):
        shapes = [(k,), (k, 3), (k, 4)] + ([(k, k)] if k else [])
        if v.ndim > 2:
            shapes += [(*v.shape[:-2], k, 2), (1, k, 3)]
        return f"{v.text} @ {b.array(b.s.choice(shapes), v.dtype)}"
    k = v.shape[-2] if v.ndim > 1 else k
    shapes = [(k,), (3, k), (k, k), (2, 3, k)]
    if v.ndim > 2:
        shapes += [(*v.shape[:-2], 2, k)]
    return f"{b.array(b.s.choice(shapes), v.dtype)} @ {v.text}"


@op("contraction", 3)
def dot(b):
    v = b.pick(ndim(1, 2, 3), kind("fcib"))
    same, k = b.array(v.shape, v.dtype), v.shape[-1]
    return b.s.choice(
        [
            f"jnp.vdot({v.text}, {same})",
            f"jnp.vdot({same}, {v.text})",
            f"jnp.inner({v.text}, {b.array((3, k), v.dtype)})",
            f"jnp.inner({b.array((k,), v.dtype)}, {v.text})",
            f"jnp.dot({v.text}, {b.array((k, 2), v.dtype)})",
            f"jnp.dot({v.text}, {b.array((k,), v.dtype)})",
            f"jnp.outer({v.text}, {b.array((2,), v.dtype)})",
            f"jnp.outer({b.array((2,), v.dtype)}, {v.text})",
            f"jnp.vecdot({v.text}, {same})",
            f"jnp.tensordot({v.text}, {same}, {b.s.random.randint(0, 1) if v.ndim > 1 else 1})"
            if v.shape[0] == v.shape[-1]
            else f"jnp.tensordot({v.text}, {same}, {v.ndim})",
            f"jnp.tensordot({v.text}, {same}, ((0,), (0,)))",
            f"jnp.tensordot({same}, {v.text}, (({v.ndim - 1},), ({v.ndim - 1},)))",
            f"jnp.kron({v.text}, {b.array((2, 1), v.dtype)})",
            f"jnp.kron({b.array((1, 2), v.dtype)}, {v.text})",
        ]
    )


@op("contraction", 2)
def dot_general(b):
    """With batch axes, of either order, and a dtype of the result."""
    v = b.pick(ndim(2, 3), kind("fci"))
    batch = b.s.random.sample(range(v.ndim), b.s.random.randint(0, v.ndim - 1))
    rest = [i for i in range(v.ndim) if i not in batch]
    summed = b.s.random.sample(rest, b.s.random.randint(0, len(rest)))
    own = [*batch, *summed]
    b.s.random.shuffle(own)
    sizes = [v.shape[i] for i in own] + ([2] if b.s.chance(0.6) else [])
    y = b.array(tuple(sizes), v.dtype)
    where = lambda axes: tuple(own.index(i) for i in axes)
    numbers = ((tuple(summed), where(summed)), (tuple(batch), where(batch)))
    prefer = {"float32": ", preferred_element_type='float32'"}.get(v.dtype, "")
    prefer = prefer if b.s.chance(0.3) else ""
    if b.s.chance(0.4):
        (p, q), (r, t) = numbers
        return f"lax.dot_general({y}, {v.text}, {((q, p), (t, r))}{prefer})"
    return f"lax.dot_general({v.text}, {y}, {numbers}{prefer})"


@op("contraction", 0.7)
def convolve(b):
    v = b.pick(ndim(2), kind("f"), nonempty)
    n, m = v.shape
    return b.s.choice(
        [
            f"jnp.convolve({v.text}[0], {b.array((2,), v.dtype)}, 'same')",
            f"lax.conv({v.text}[None, None], {b.array((1, 1, 1, 1), v.dtype)}, (1, 1), 'SAME')",
            f"lax.conv({b.array((1, 1, n + 1, m), v.dtype)}, {v.text}[None, None], (1, 1), 'VALID')",
            f"lax.conv({b.array((2, m, 5), v.dtype)}, {v.text}[:, :, None], (1,), 'SAME')",
        ]
    )


# --- entry by entry ----------------------------------------------------------------------------

FLOAT_UNARY = (
    *("-{x}", "+{x}", "abs({x})", "{x} ** 2", "{x} ** 3", "{x} ** -1", "1 / {x}"),
    *("jnp.sin({x})", "jnp.cos({x})", "jnp.tanh({x})", "jnp.exp({x})", "jnp.expm1({x})"),
    *("jnp.sqrt(abs({x}))", "jnp.log1p(abs({x}))", "jnp.sign({x})", "jnp.floor({x})"),
    *("jnp.ceil({x})", "jnp.round({x})", "jnp.square({x})", "jnp.cbrt({x})"),
    *("jax.nn.sigmoid({x})", "jax.nn.relu({x})", "jax.nn.gelu({x})", "jax.nn.silu({x})"),
    *("jax.nn.softplus({x})", "jnp.isnan({x})", "jnp.isfinite({x})", "jnp.arctan({x})"),
    *("jnp.sinh({x})", "jax.scipy.special.erf({x})", "jnp.signbit({x})", "{x} != {x}"),
    *("jnp.nan_to_num({x})", "jnp.clip({x}, -0.5, 0.5)", "jnp.clip({x}, 0.3)"),
    *("lax.stop_gradient({x})", "lax.reduce_precision({x}, 8, 10)", "jnp.trunc({x})"),
    *("jax.nn.leaky_relu({x})", "jax.nn.elu({x})", "jax.nn.hard_tanh({x})"),
    *("jnp.heaviside({x}, 0.5)", "{x} * {x}", "{x} + {x}", "{x} - {x}", "jnp.copy({x})"),
    *("lax.optimization_barrier({x})", "jnp.log(abs({x}))", "lax.rsqrt(abs({x}))"),
    *("jnp.real({x})", "jnp.imag({x})", "jnp.conj({x})", "jnp.exp2({x})"),
    *("lax.bitcast_convert_type({x}, 'int32')", "abs({x}) ** 0.5", "2.0 ** {x}"),
    *(
        "jnp.angle({x})",
        "jnp.logical_not({x})",
        "jnp.ones_like({x})",
        "jnp.zeros_like({x})",
    ),
)
COMPLEX_UNARY = (
    *("-{x}", "abs({x})", "{x} ** 2", "jnp.exp({x})", "jnp.real({x})", "jnp.imag({x})"),
    *("jnp.conj({x})", "jnp.sin({x})", "jnp.square({x})", "jnp.angle({x})", "{x} * {x}"),
    *("jnp.sqrt({x})", "{x} ** 3", "jnp.isnan({x})", "{x} != 0", "jnp.tanh({x})"),
)
INT_UNARY = (
    *("-{x}", "abs({x})", "{x} ** 2", "~{x}", "{x} // 2", "{x} % 3", "{x} << 1"),
    *("{x} >> 1", "jnp.sign({x})", "lax.population_count({x})", "jnp.sin({x})"),
    *("{x} ** 3", "{x} / 2", "{x} & 3", "{x} | 1", "{x} ^ 2", "jnp.logical_not({x})"),
    *("lax.clz({x})", "jnp.clip({x}, -1, 2)", "jnp.invert({x})", "{x} != 0"),
)
BOOL_UNARY = (
    *("~{x}", "jnp.logical_not({x})", "{x} ^ True", "{x} * 2.0", "{x} + 1", "{x} & True"),
    *("jnp.invert({x})", "{x} | False", "{x} == False"),
)


@op("entrywise", 7, safe=True)
def unary(b):
    v = b.pick()
    options = {"f": FLOAT_UNARY, "c": COMPLEX_UNARY, "i": INT_UNARY, "b": BOOL_UNARY}
    text = b.s.choice(options[v.kind])
    if "1 /" in text or "** -1" in text or "{x} * {x}" in text:
        return product(b, text.format(x=v.text), v)
    return text.format(x=v.text)


def product(b, text, *factors):
    """Marks the program where what is multiplied, or the result, is not finite."""
    from .programs import finite

    if not all(finite(v.array) for v in factors):
        b.tainted = True
    return text


SAFE_BINARY = {
    "f": (
        *("{x} + {y}", "{x} + {y}", "{x} - {y}", "{x} - {y}", "jnp.maximum({x}, {y})"),
        *("jnp.minimum({x}, {y})", "{x} > {y}", "{x} <= {y}", "{x} == {y}", "{x} != {y}"),
        *("jnp.hypot({x}, {y})", "jnp.arctan2({x}, {y})", "jnp.logaddexp({x}, {y})"),
        *("lax.nextafter(*jnp.broadcast_arrays({x}, {y}))", "jnp.copysign({x}, {y})"),
    ),
    "c": ("{x} + {y}", "{x} - {y}", "{x} == {y}", "{x} != {y}"),
    "i": (
        *("{x} + {y}", "{x} - {y}", "jnp.maximum({x}, {y})", "jnp.minimum({x}, {y})"),
        *("{x} > {y}", "{x} == {y}", "{x} & {y}", "{x} | {y}", "{x} ^ {y}", "{x} * {y}"),
        *("{x} // (abs({y}) + 1)", "{x} % (abs({y}) + 1)", "{x} << (abs({y}) % 3)"),
    ),
    "b": ("{x} & {y}", "{x} | {y}", "{x} ^ {y}", "{x} == {y}", "{x} != {y}", "{x} > {y}"),
}
PRODUCTS = {
    "f": (
        *("{x} * {y}", "{x} * {y}", "{x} * {y}", "{x} / {y}", "{x} / {y}"),
        *("abs({x}) ** {y}", "{x} // {y}", "{x} % {y}", "jnp.fmod({x}, {y})"),
    ),
    "c": ("{x} * {y}", "{x} / {y}"),
    "i": ("{x} * {y}", "{x} / (abs({y}) + 1)"),
    "b": ("{x} * {y}",),
}


def beside(b, v):
    """A shape that broadcasts against one: the same, size-1 axes, fewer or more axes."""
    shape = v.shape
    options = [shape] * 4 + [()]
    if v.ndim:
        options += [shape[-1:], tuple(1 for _ in shape), (1,)]
        ones = tuple(1 if b.s.chance(0.5) else n for n in shape)
        options += [ones, ones]
    if v.ndim == 2:
        options += [(2, *shape), (shape[0], 1), (1, shape[1]), (2, 1, 1), (3, 1, shape[1])]
    options += [tuple(b.s.choice((2, 4)) if n == 1 else n for n in shape)]
    return b.s.choice(options)


def dtype_beside(b, v):
    if b.s.chance(0.85):
        return v.dtype
    options = ["float32", "int32", "bool"]
    if v.kind in "fi":
        options += ["bfloat16", "complex64"]
    return b.s.choice(options)


def two(b, table):
    v = b.pick()
    other = b.literal(v) if b.s.chance(0.3) else None
    text = b.s.choice(table[v.kind])
    if other is None:
        shape, dtype = beside(b, v), dtype_beside(b, v)
        other = b.array(shape, dtype)
    x, y = (v.text, other) if b.s.chance(0.6) else (other, v.text)
    return text.format(x=x, y=y)


@op("entrywise", 7, safe=True)
def binary(b):
    return two(b, SAFE_BINARY)


@op("entrywise", 7)
def times(b):
    return two(b, PRODUCTS)


@op("entrywise", 3, safe=True)
def where(b):
    v = b.pick()
    shape = v.shape
    condition = b.s.choice(
        [
            f"mask({b.s.seed()}, {', '.join(map(str, shape)) or '()'})"
            if shape
            else "True",
            f"{b.array(shape, 'float32')} > 0.5",
            f"{v.text} > 0.4" if v.kind in "fi" else f"{v.text} != 0",
            "jnp.bool_(True)",
            f"jnp.arange({shape[-1]}) < 2" if shape else "False",
        ]
    )
    other = b.s.choice((b.array(shape, v.dtype), b.literal(v), f"-{v.text}", "0", "0.0"))
    if v.kind == "b":
        other = "True"
    x, y = (v.text, other) if b.s.chance(0.5) else (other, v.text)
    return f"jnp.where({condition}, {x}, {y})"


@op("entrywise", 1.5, safe=True)
def select(b):
    v = b.pick(kind("fib"))
    same = b.array(v.shape, v.dtype)
    options = [
        f"lax.select({v.text} != 0, {v.text}, {same})",
        f"lax.select({same} != 0, {v.text}, {v.text})",
        f"lax.select_n({v.text} != 0, {same}, {v.text})",
        f"jnp.where({v.text} != 0, {same}, 0)",
        f"jnp.select([{v.text} > 0, {same} != 0], [{v.text}, {same}], 2)",
    ]
    if v.kind in "fi":
        options += [
            f"lax.clamp({same}, {v.text}, {same})",
            f"lax.clamp(jnp.asarray(-1, {v.dtype!r}), {v.text}, jnp.asarray(1, {v.dtype!r}))",
            f"jnp.clip({v.text}, {same}, None)",
            f"jnp.clip({same}, None, {v.text})",
        ]
    return b.s.choice(options)


@op("entrywise", 3, safe=True)
def cast(b):
    v = b.pick()
    to = b.s.choice(
        ("int32", "bool", "float32", "complex64", "bfloat16", "float16", "int8", "uint8")
    )
    if v.kind == "c" and to not in ("complex64", "bool"):
        raise Refused
    if v.kind == "f" and to in ("int32", "int8", "uint8"):
        a = np.asarray(v.array).astype(np.float64)
        if not (np.abs(a) < 100).all() or (to == "uint8" and (a < 0).any()):
            raise Refused
    text = f"{v.text}.astype({to!r})"
    if b.s.chance(0.3):
        text = f"({text}).astype({v.dtype!r})"
        if to == "complex64" and v.kind != "c":
            raise Refused
    return text


# --- reductions -------------------------------------------------------------------------------


@op("reduction", 6)
def reduce(b):
    v = b.pick(some_axes)
    axis = axes_of(b, v)
    keep = ", keepdims=True" if b.s.chance(0.25) else ""
    names = ["sum", "sum", "sum", "mean", "any", "all", "count_nonzero", "prod"]
    if v.array.size:
        names += ["max", "min"] if v.kind != "c" else []
        names += ["var", "std", "nansum", "ptp"] if v.kind == "f" else []
    return f"jnp.{b.s.choice(names)}({v.text}, axis={axis}{keep})"


@op("reduction", 3)
def reduce_more(b):
    v = b.pick(some_axes, nonempty, kind("fi"))
    axis, one = axes_of(b, v), axis_of(b, v)
    x = v.text
    options = [
        f"jnp.argmax({x}, axis={one})",
        f"jnp.argmin({x}, axis={one})",
        f"jnp.argmax({x})",
        f"jnp.sum({x}, axis={axis}, where={x} > 0.3)",
        f"jnp.sum({x}, axis={axis}, initial=2)",
        f"jnp.max({x}, axis={axis}, initial=0)",
        f"jnp.sum({x}, axis={axis}, dtype='float32')",
        f"jnp.max(abs({x}), axis={axis})",
        f"jnp.average({x}, axis={one}, weights={b.array((v.shape[one],), 'float32')} + 2)",
    ]
    if v.kind == "f":
        options += [
            f"jnp.linalg.norm({x})",
            f"jnp.linalg.norm({x}, axis={one})",
            f"jnp.linalg.norm({x}, ord=1, axis={one})",
            f"jnp.linalg.norm({x}, ord=jnp.inf, axis={one})",
            f"jax.nn.logsumexp({x}, axis={axis})",
            f"jax.nn.softmax({x}, axis={one})",
            f"jax.nn.log_softmax({x}, axis={one})",
            f"jnp.median({x}, axis={one})",
            f"jnp.nanmax({x}, axis={axis})",
            f"jax.nn.logsumexp({x}, axis={one}, b={x})",
        ]
        # Where all has cancelled, as in x - x, rounding is divided by a small number.
        if np.asarray(v.array).any():
            options += [f"jax.nn.standardize({x} * 2, axis={one})"]
        if v.ndim == 2:
            options += [f"jnp.linalg.norm({x}, ord='fro')", f"jnp.linalg.norm({x}, ord=1)"]
    return b.s.choice(options)


@op("reduction", 2)
def cumulative(b):
    v = b.pick(some_axes, nonempty)
    axis, x = axis_of(b, v) % v.ndim, v.text
    options = [
        f"jnp.cumsum({x}, axis={axis})",
        f"jnp.cumprod({x}, axis={axis})",
        f"jnp.cumsum({x})",
        f"jnp.diff({x}, axis={axis})",
    ]
    if v.kind in "fi":
        options += [
            f"lax.cummax({x}, axis={axis})",
            f"lax.cummin({x}, axis={axis}, reverse=True)",
            f"lax.cumsum({x}, axis={axis}, reverse=True)",
        ]
    if v.kind == "f":
        options += [f"lax.cumlogsumexp({x}, axis={axis})"]
        if v.ndim == 2:
            options += [
                f"lax.reduce_window({x}, 0.0, lax.add, (2, 1), (1, 1), 'VALID')",
                f"lax.reduce_window({x}, -jnp.inf, lax.max, (2, 2), (1, 1), 'SAME')",
                f"lax.reduce({x}, jnp.asarray(0, {v.dtype!r}), lax.add, (0,))",
                f"lax.reduce({x}, jnp.asarray(-9, {v.dtype!r}), lax.max, (1,))",
            ]
    return b.s.choice(options)


# --- shapes ------------------------------------------------------------------------------------


@op("shape", 5, safe=True)
def move(b):
    v = b.pick(some_axes)
    x, axis = v.text, axis_of(b, v)
    perm = list(range(v.ndim))
    b.s.random.shuffle(perm)
    options = [
        f"{x}.T",
        f"jnp.transpose({x}, {tuple(perm)})",
        f"jnp.flip({x}, {axis})",
        f"jnp.flip({x})",
        f"jnp.roll({x}, {b.s.choice((1, -1, 5))}, axis={axis})",
        f"jnp.roll({x}, 2)",
        f"jnp.expand_dims({x}, {axis})",
        f"{x}[None]",
        f"{x}[..., None]",
        f"jnp.repeat({x}, 2, axis={axis})",
        f"jnp.tile({x}, {b.s.choice((2, (2, 1), (1, 2), (2, 1, 1)))})",
        f"jnp.broadcast_to({x}, {(2, *v.shape)})",
        f"jnp.moveaxis({x}, {axis}, 0)",
        f"jnp.atleast_3d({x})",
        f"jnp.squeeze({x})",
        f"lax.rev({x}, (0,))",
    ]
    if v.ndim >= 2:
        options += [
            f"jnp.swapaxes({x}, 0, -1)",
            f"{x}.mT",
            f"jnp.rot90({x})",
            f"jnp.tril({x})",
            f"jnp.triu({x}, 1)",
            f"jnp.diagonal({x})",
            f"jnp.diagonal({x}, {b.s.choice((1, -1))})",
        ]
        if 1 in v.shape:
            options += [f"jnp.squeeze({x}, {v.shape.index(1)})"] * 3
    if v.ndim == 1:
        options += [f"jnp.diag({x})", f"jnp.diag({x}, 1)"]
    return b.s.choice(options)


@op("shape", 3, safe=True)
def reshape(b):
    v = b.pick()
    size = v.array.size
    if not size:
        return f"{v.text}.reshape(-1)"
    options = [(-1,), (1, -1), (-1, 1)]
    for k in (2, 3, 4, 6):
        if size % k == 0:
            options += [(k, -1), (-1, k)]
    if v.ndim >= 2:
        n, m = v.shape[-2:]
        front = v.shape[:-2]
        options += [(*front, n * m), (*front, n, 1, m), (1, *v.shape)]
        if m % 2 == 0:
            options += [(*front, n, 2, m // 2), (*front, n, m // 2, 2)]
        if n % 2 == 0:
            options += [(*front, 2, n // 2, m), (*front, n // 2, 2, m)]
        if front:
            options += [(front[0] * n, *v.shape[2:])]
    order = ", order='F'" if b.s.chance(0.07) else ""
    return f"jnp.reshape({v.text}, {b.s.choice(options)}{order})"


@op("shape", 4, safe=True)
def slices(b):
    v = b.pick(some_axes)
    options = (
        ":",
        ":",
        "1:",
        ":-1",
        "::2",
        "::-1",
        "1::2",
        "0",
        "-1",
        "0:1",
        "None",
        "2:2",
    )
    parts = []
    for n in v.shape:
        part = b.s.choice(options)
        if n == 0 and part in ("0", "-1"):
            part = ":"
        parts.append(part)
        if b.s.chance(0.3):
            break
    if b.s.chance(0.1) and len(parts) < v.ndim:
        parts.append("...")
    return f"{v.text}[{', '.join(parts)}]"


@op("shape", 3, safe=True)
def pad(b):
    v = b.pick(some_axes)
    x = v.text
    number = {"f": b.s.choice(("0.0", "1.5", "jnp.nan")), "c": "1j", "i": "7", "b": "True"}
    widths = tuple((b.s.choice((0, 1)), b.s.choice((0, 2))) for _ in v.shape)
    lo = tuple(
        (b.s.choice((0, 1, -1)), b.s.choice((0, 1)), b.s.choice((0, 1))) for _ in v.shape
    )
    options = [
        f"jnp.pad({x}, 1)",
        f"jnp.pad({x}, {widths})",
        f"jnp.pad({x}, {widths}, constant_values={number[v.kind]})",
        f"lax.pad({x}, jnp.asarray({number[v.kind]}, {v.dtype!r}), {lo})",
        f"lax.pad({x}, jnp.asarray(0, {v.dtype!r}), {lo})",
    ]
    if v.array.size:
        options += [
            f"jnp.pad({x}, 1, mode='edge')",
            f"jnp.pad({x}, 1, mode='wrap')",
            f"jnp.pad({x}, 1, mode='symmetric')",
        ]
    return b.s.choice(options)


@op("shape", 4, safe=True)
def assemble(b):
    v = b.pick(some_axes)
    x, axis = v.text, axis_of(b, v)
    y = b.s.choice((x, b.array(v.shape, v.dtype)))
    options = [
        f"jnp.concatenate([{x}, {y}], axis={axis})",
        f"jnp.concatenate([{y}, {x}, {x}], axis={axis})",
        f"jnp.stack([{x}, {y}], axis={axis})",
        f"jnp.stack([{y}, {x}])",
        f"jnp.hstack([{x}, {y}])",
        f"jnp.vstack([{y}, {x}])",
        f"jnp.append({x}, {y}, axis={axis})",
        f"jnp.block([[{x}, {y}], [{y}, {x}]])",
        f"jnp.array([{x}, {y}])",
    ]
    if v.shape[axis] % 2 == 0 and v.shape[axis]:
        options += [
            f"jnp.split({x}, 2, axis={axis})",
            f"jnp.split({x}, [1], axis={axis})",
            f"jnp.array_split({x}, 3, axis={axis})",
        ]
    if v.shape[0]:
        options += [f"tuple({x})[-1]", f"jnp.unstack({x}, axis={axis})[0]"]
        options += [f"jnp.insert({x}, 1, {y}[0], axis=0)", f"jnp.delete({x}, 0, axis=0)"]
    return b.s.choice(options)


@op("sort", 2)
def sort(b):
    v = b.pick(some_axes, nonempty, kind("fi"))
    x, axis = v.text, axis_of(b, v)
    flat = b.array((3,), v.dtype)
    return b.s.choice(
        [
            f"jnp.sort({x}, axis={axis})",
            f"jnp.argsort({x}, axis={axis})",
            f"jnp.sort({x}, axis=None)",
            f"jnp.sort({x}, axis={axis}, descending=True)",
            f"lax.top_k({x}, 1)",
            f"jnp.searchsorted(jnp.sort({x}.ravel()), {flat})",
            f"jnp.searchsorted(jnp.sort({flat}), {x})",
            f"jnp.nonzero({x} > 0.5, size=3)",
            f"jnp.percentile({x}.astype('float32'), 30, axis={axis})",
            f"lax.sort(({x}, {b.array(v.shape, v.dtype)}), num_keys=1)[1]",
            f"jnp.digitize({x}, jnp.array([0.0, 0.5]))",
            f"jnp.unique({x}, size=3)",
            f"jnp.bincount(abs({x}.ravel()).astype(int), length=3)",
        ]
    )


# --- gathers and scatters ------------------------------------------------------------------------


def indices(b, limit, *shape):
    """Some of them out of range, at times; of these JAX's derivatives are not its results'."""
    if b.s.chance(0.3) and not b.differentiated:
        return b.s.choice(("jnp.array([0, 9, -1])", "jnp.array([-9, 1])", "jnp.array([9])"))
    return f"idx({b.s.seed()}, {limit}, {', '.join(map(str, shape or (3,)))})"


@op("gather", 5, safe=True)
def gather(b):
    v = b.pick(some_axes, nonempty)
    x, axis, n = v.text, axis_of(b, v), v.shape[0]
    i = indices(b, n)
    mode = b.s.choice(("fill", "clip", "wrap"))
    fill = {"f": "7.0", "c": "1j", "i": "7", "b": "True"}[v.kind]
    options = [
        f"{x}[{i}]",
        f"{x}[{indices(b, n, 2, 2)}]",
        f"{x}[..., {indices(b, v.shape[-1])}]",
        f"jnp.take({x}, {indices(b, v.shape[axis])}, axis={axis}, mode={mode!r})",
        f"jnp.take({x}, {i}, axis=0, mode='fill', fill_value={fill})",
        f"jnp.take({x}, jnp.int32({n - 1}), axis=0)",
        f"{x}.at[{i}].get(mode={mode!r})",
        f"{x}.at[{i}].get(mode='fill', fill_value={fill})",
        f"jnp.take({x}, idx({b.s.seed()}, {v.array.size}, 2, 2))",
        f"lax.dynamic_index_in_dim({x}, jnp.int32({b.s.choice((0, 1, 9))}), {axis})",
        f"lax.dynamic_slice_in_dim({x}, jnp.int32({b.s.choice((0, 1))}), 1, {axis})",
        f"{x}[idx({b.s.seed()}, {n})]",
    ]
    if v.ndim >= 2:
        m = v.shape[1]
        k = b.s.choice((1, 2))
        options += [
            f"{x}[{i}[:, None], idx({b.s.seed()}, {m}, 2)]",
            f"{x}[idx({b.s.seed()}, {n}, 3), idx({b.s.seed()}, {m}, 3)]",
            f"{x}[:, idx({b.s.seed()}, {m}, 3)]",
            f"{x}[0, {indices(b, m)}]",
            f"{x}[1:, idx({b.s.seed()}, {m}, 2)]",
            f"jnp.take_along_axis({x}, idx({b.s.seed()}, {v.shape[axis]}, {', '.join(map(str, v.shape))}), axis={axis})",
            f"{x}[jnp.argmax({x} != 0, axis=0), jnp.arange({m})]"
            if v.ndim == 2
            else x + "[0]",
            f"lax.dynamic_slice({x}, (jnp.int32({k}), *([0] * {v.ndim - 1})), {(1, *v.shape[1:])})",
            f"lax.dynamic_slice({x}, [jnp.int32(1)] * {v.ndim}, {tuple(max(n - 1, 1) for n in v.shape)})",
            f"{x}[jnp.arange({min(n, m)}), jnp.arange({min(n, m)})]",
        ]
    return b.s.choice(options)


@op("gather", 4, safe=True)
def scatter(b):
    v = b.pick(some_axes, nonempty)
    x, n = v.text, v.shape[0]
    i = indices(b, n)
    mode = b.s.choice(("", ", mode='drop'", ", mode='clip'"))
    row = b.s.choice((b.literal(v), b.array(v.shape[1:], v.dtype)))
    how = b.s.choice(("set", "add", "max", "min", "mul") if v.kind in "fi" else ("set",))
    zeros = f"jnp.zeros({(5, *v.shape[1:])}, {v.dtype!r})"
    k = b.s.choice((0, 1))
    options = [
        f"{x}.at[{i}].{how}({row}{mode})",
        f"{x}.at[0].{how}({row})",
        f"{x}.at[-1].{how}({row})",
        f"{x}.at[..., :1].{how}({b.literal(v)})",
        f"{x}.at[::2].{how}({b.literal(v)})",
        f"{zeros}.at[jnp.arange({n})].{how}({x}{mode})",
        f"{zeros}.at[1:].set({x})" if n == 4 else f"{zeros}.at[0].{how}({x}[0])",
        f"{x}.at[idx({b.s.seed()}, {n}, {n})].{how}({b.array(v.shape, v.dtype)})",
        f"lax.dynamic_update_slice_in_dim({x}, {x}[:1] * 0, jnp.int32({k}), 0)",
        f"lax.dynamic_update_slice_in_dim({b.array(v.shape, v.dtype)}, {x}[:1], jnp.int32({k}), 0)",
        f"lax.dynamic_update_slice({x}, {b.array(v.shape, v.dtype)}, ({', '.join(['jnp.int32(0)'] * v.ndim)},))",
        f"jax.ops.segment_sum({x}, idx({b.s.seed()}, 3, {n}), 3)",
    ]
    if v.ndim == 2:
        options += [
            f"{x}.at[jnp.diag_indices({min(v.shape)})].{how}({b.literal(v)})",
            f"{x}.at[0, 0].{how}({b.literal(v)})",
            f"{x}.at[:, 0].{how}({b.literal(v)})",
            f"jnp.where(jnp.eye({v.shape[0]}, {v.shape[1]}, dtype=bool), {x}, 0)",
        ]
    return b.s.choice(options)


@op("gather", 1)
def as_index(b):
    """A value's entries are the indices."""
    v = b.pick(some_axes, nonempty, kind("fib"))
    table = b.array((4, 3), "float32")
    index = f"abs(2 * {v.text}).astype(int)"
    if float(np.abs(np.asarray(v.array).astype(np.float64)).max()) > 100:
        raise Refused
    return b.s.choice(
        [
            f"{table}[{index} % 4]",
            f"jnp.take({table}, {index}, axis=0, mode='clip')",
            f"{table}[{index}.ravel()[0]]",
            f"jnp.zeros(5).at[{index}].add(1.0)",
            f"jax.nn.one_hot({index}, 3)",
            f"lax.dynamic_slice({table}, ({index}.ravel()[0], 0), (1, 3))",
        ]
    )


# --- loops ---------------------------------------------------------------------------------------


@op("loop", 4)
def scan(b):
    v = b.pick(some_axes, nonempty, kind("fi"))
    x, shape, dtype = v.text, v.shape, v.dtype
    zero = f"jnp.zeros({shape}, {dtype!r})"
    if len(shape) < 2:
        row = f"jnp.zeros({shape[1:]}, {dtype!r})"
    else:
        row = b.array(shape[1:], dtype)
    reverse = b.s.choice(("", "", ", reverse=True", ", unroll=2"))
    each = b.array((3, *shape), dtype) if v.array.size <= 24 else None
    options = [
        f"lax.scan(lambda c, r: (c + r, c), {row}, {x}{reverse})",
        f"lax.scan(lambda c, r: (c, r), {row}, {x}{reverse})[1]",
        f"lax.scan(lambda c, r: (c * r, r + 1), {row}, {x}{reverse})",
        f"lax.scan(lambda c, _: (c + {x}, c.sum()), {zero}, None, length=3)",
        f"lax.scan(lambda c, _: (c, c), {x}, None, length=2)",
        f"lax.scan(lambda c, _: (-c, c), {x}, None, length=3)",
        f"lax.scan(lambda c, _: (c + 1, {x}), 0, None, length=2)[1]",
        f"lax.scan(lambda c, i: (c, {x} * i), None, jnp.arange(2).astype({dtype!r}))[1]",
        f"lax.scan(lambda c, r: ((c[1], c[0]), r), ({x}, {zero}), jnp.arange(3))[0]",
        f"lax.scan(lambda c, r: (c + 1, (r, c)), 0, ({x}, jnp.arange({shape[0]}))){reverse and ''}[1][0][0]",
        f"lax.map(lambda r: r * 2, {x})",
        f"lax.map(lambda r: r.sum(), {x})",
        f"lax.map(lambda i: {x}[i], jnp.arange({shape[0]}))",
        f"lax.associative_scan(jnp.add, {x})",
    ]
    if each:
        options += [
            f"lax.scan(lambda c, y: (c + y, c), {x}, {each}{reverse})",
            f"lax.scan(lambda c, y: (c, c * y), {x}, {each}{reverse})[1]",
            f"lax.scan(lambda c, y: (c * 0.5 + y, y - {x}), {zero}, {each}{reverse})"
            if v.kind == "f"
            else f"lax.scan(lambda c, y: (c + y, y - {x}), {zero}, {each})",
        ]
    if len(shape) == 2:
        n, m = shape
        options += [
            f"lax.scan(lambda c, _: (c @ {x}, c), {b.array((2, n), dtype)}, None, length=2)"
            if n == m
            else f"lax.scan(lambda c, _: (c, c @ {x}), {b.array((2, n), dtype)}, None, length=2)",
        ]
        if n == m:
            options += [
                f"lax.scan(lambda c, _: (c.T, c[0]), {x}, None, length=3)",
                f"lax.scan(lambda c, _: (c @ c, c), {x}, None, length=2)",
            ]
    if len(shape) == 3:
        y = b.array((2, shape[1]), dtype)
        options += [
            f"lax.scan(lambda c, w: (c, c @ w), {y}, {x})[1]",
            f"lax.scan(lambda c, w: (c, w.mT), 0, {x})[1]",
            f"lax.map(lambda w: {y} @ w, {x})",
        ] * 2
    return b.s.choice(options)


@op("loop", 3)
def loop(b):
    v = b.pick(kind("fi"))
    x, shape, dtype = v.text, v.shape, v.dtype
    y = b.array(shape, dtype)
    bound = "jnp.int32(3)" if b.s.chance(0.5) else "3"
    return b.s.choice(
        [
            f"lax.fori_loop(0, {bound}, lambda i, c: c + {x}, {y})",
            f"lax.fori_loop(0, {bound}, lambda i, c: c + {y}, {x})",
            f"lax.fori_loop(0, {bound}, lambda i, c: -c, {x})",
            f"lax.fori_loop(0, {bound}, lambda i, c: c * i.astype({dtype!r}), {x})",
            f"lax.fori_loop(0, {bound}, lambda i, c: (c[1], c[0]), ({x}, {y}))",
            f"lax.fori_loop(0, 0, lambda i, c: c + 1, {x})",
            f"lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] + {x}), (0, {y}))[1]",
            f"lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1] * 2), (0, {x}))[1]",
            f"lax.while_loop(lambda c: jnp.sum(c[0] * 0) + c[1] < 2, lambda c: (c[0], c[1] + 1), ({x}, 0))[0]",
            f"lax.while_loop(lambda c: c < jnp.sum(({x} != 0).astype(int)), lambda c: c + 1, 0)",
            f"lax.while_loop(lambda c: False, lambda c: c + 1, {x})",
        ]
    )


# --- branches and calls ----------------------------------------------------------------------------


@op("branch", 4)
def cond(b):
    v = b.pick(kind("fci"))
    x, shape, dtype = v.text, v.shape, v.dtype
    y = b.array(shape, dtype)
    of_value = f"jnp.any({x} != 0)"
    which = b.s.choice(
        ("jnp.bool_(True)", "jnp.bool_(False)", of_value, f"jnp.sum({y}) .real > 0")
    )
    branches = [
        "lambda a, c: a, lambda a, c: c",
        "lambda a, c: c, lambda a, c: a",
        "lambda a, c: a, lambda a, c: -a",
        "lambda a, c: a, lambda a, c: a + c",
        "lambda a, c: a * 2, lambda a, c: a",
        "lambda a, c: jnp.zeros_like(a), lambda a, c: a",
        "lambda a, c: a, lambda a, c: jnp.ones_like(a)",
        "lambda a, c: (a, c), lambda a, c: (c, a)",
        "lambda a, c: a.sum(), lambda a, c: (a * c).sum()",
        "lambda a, c: jnp.sin(a), lambda a, c: jnp.cos(c)",
    ]
    if v.ndim == 2 and shape[0] == shape[1]:
        branches += [
            "lambda a, c: a, lambda a, c: a.T",
            "lambda a, c: a @ c, lambda a, c: a",
            "lambda a, c: a, lambda a, c: c @ a",
        ]
    if b.s.chance(0.25):
        index = b.s.choice(("jnp.int32(1)", "jnp.int32(9)", f"{of_value}.astype(int)"))
        return f"lax.switch({index}, [lambda a: a, lambda a: -a, lambda a: a * 0.5 + 1], {x})".replace(
            "0.5", "0.5" if v.kind != "i" else "2"
        )
    return f"lax.cond({which}, {b.s.choice(branches)}, {x}, {y})"


@op("call", 2)
def call(b):
    v = b.pick(kind("fci"))
    x, y = v.text, b.array(v.shape, v.dtype)
    return b.s.choice(
        [
            f"jax.jit(lambda a, c: (a + c, -a))({x}, {y})",
            f"jax.jit(lambda a: a)({x})",
            f"jax.jit(lambda a, c: a * c, inline=True)({x}, {y})",
            f"jax.checkpoint(lambda a, c: jnp.sin(a * c))({x}, {y})",
            f"jax.checkpoint(lambda a: -a)({x})",
            f"jax.jit(jax.checkpoint(lambda a: (a.T, a.sum())))({x})",
            f"(lambda g: g({x}) + g(g({x})))(jax.jit(lambda a: a * 2))",
        ]
    )


@op("vmap", 4)
def vmap(b):
    v = b.pick(ndim(2, 3), nonempty, kind("fci"))
    x, axis = v.text, b.s.random.randrange(v.ndim)
    rest = tuple(n for i, n in enumerate(v.shape) if i != axis)
    y = b.array(rest, v.dtype)
    xs = b.array((3, v.shape[-2]), v.dtype)
    out = b.s.choice(("", ", out_axes=-1"))
    options = [
        f"jax.vmap(lambda a: a * 2, in_axes={axis}{out})({x})",
        f"jax.vmap(lambda a, c: a + c, in_axes=({axis}, None){out})({x}, {y})",
        f"jax.vmap(lambda a, c: a * c, in_axes=({axis}, None))({x}, {y})",
        f"jax.vmap(lambda a: a.sum(), in_axes={axis})({x})",
        f"jax.vmap(lambda a: jnp.cumsum(a), in_axes={axis})({x})",
        f"jax.vmap(lambda c, a: c @ a, (0, None))({xs}, {x})"
        if v.ndim == 2
        else f"jax.vmap(jnp.negative)({x})",
        f"jax.vmap(lambda i: {x}[i])(jnp.arange({v.shape[0]}))",
        f"jax.vmap(lambda i: jnp.take({x}, i, axis=-1))(jnp.arange({v.shape[-1]}))",
        f"jax.vmap(lambda s: {x} * s)({b.array((2,), v.dtype)})",
        f"jax.vmap(lambda s: {x} + s{out})({b.array((2,), v.dtype)})",
        f"jax.vmap(lambda s: s.sum())({x})",
    ]
    if v.ndim == 2:
        options += [
            f"jax.vmap(lambda a: jax.vmap(lambda c: a @ c, 1)({x}))({xs})",
            f"jax.vmap(jnp.dot, (0, None))({x}, {b.array(v.shape[1:], v.dtype)})",
        ]
    else:
        k = v.shape[-1]
        options += [
            f"jax.vmap(lambda w, a: w @ a, (0, None))({x}, {b.array((k,), v.dtype)})",
            f"jax.vmap(lambda w: w.mT @ w)({x})",
            f"jax.vmap(lambda a, w: a @ w)({b.array(v.shape[:2], v.dtype)}, {x})",
        ] * 2
    return b.s.choice(options)


@op("derivative", 4)
def derivative(b):
    v = b.pick(kind("f"), nonempty, ndim(1, 2))
    x, n = v.text, v.shape[0]
    y, same = b.array((2, n), v.dtype), b.array(v.shape, v.dtype)
    return b.s.choice(
        [
            f"jax.grad(lambda c: jnp.sin(c @ {x}).sum())({y})",
            f"jax.grad(lambda c: (c * {x}).sum())({same})",
            f"jax.grad(lambda a: jnp.sum(a * {same}))({x})",
            f"jax.grad(lambda a: jnp.sum({y} @ a))({x})",
            f"jax.grad(lambda a: jnp.sum(a ** 2))({x})",
            f"jax.grad(lambda a: jax.nn.logsumexp({y} @ a))({x})",
            f"jax.grad(lambda a: jax.nn.relu(a).sum())({x})",
            f"jax.jvp(lambda a: a * {same}, ({x},), ({same},))[1]",
            f"jax.jvp(lambda c: c @ {x}, ({y},), ({y},))",
            f"jax.jvp(jnp.sin, ({same},), ({x},))[1]",
            f"jax.jvp(lambda a: {y} @ a, ({x},), ({x},))[1]",
            f"jax.jacfwd(lambda c: c @ {x})({b.array((n,), v.dtype)})",
            f"jax.jacrev(lambda c: jnp.tanh(c @ {x}))({b.array((n,), v.dtype)})",
            f"jax.hessian(lambda c: jnp.sum(jnp.sin(c @ {x})))({b.array((n,), v.dtype)})",
            f"jax.vjp(lambda c: c * {x}, {same})[1]({x})[0]",
            f"jax.vjp(lambda a: a.T, {x})[1]({same}.T)[0]",
            f"jax.linearize(lambda c: c @ {x}, {y})[1]({y})",
            f"jax.grad(lambda a: lax.scan(lambda c, r: (c + r.sum(), None), jnp.zeros((), {v.dtype!r}), a)[0])({x})",
            f"jax.grad(lambda c: lax.fori_loop(0, 2, lambda i, d: d * {x}, c).sum())({same})",
            f"jax.jvp(jax.nn.relu, ({x},), ({same},))",
            f"jax.jvp(jax.nn.softmax, ({x},), ({same},))[1]",
            f"jax.value_and_grad(lambda a: jnp.linalg.norm(a))({x})[1]",
        ]
    )


@op("custom", 2)
def custom(b):
    v = b.pick(kind("f"), nonempty, some_axes)
    x = v.text
    return b.s.choice(
        [
            f"jax.nn.relu({x})",
            f"jax.nn.relu6({x} * 8)",
            f"jax.nn.softmax({x})",
            f"jax.nn.logsumexp({x})",
            f"jax.nn.silu({x})",
            f"jax.nn.log_sigmoid({x})",
            f"jax.nn.celu({x})",
            f"jnp.logaddexp({x}, {b.array(v.shape, v.dtype)})",
            f"jnp.sinc({x})",
            f"jax.scipy.special.xlogy(abs({x}), abs({b.array(v.shape, v.dtype)}))",
            f"jax.nn.glu({x}, axis=-1)" if v.shape[-1] % 2 == 0 else f"jax.nn.selu({x})",
            f"jax.nn.relu(jax.jit(jax.nn.relu)({x}))",
        ]
    )


# --- linear algebra ----------------------------------------------------------------------------------


def conditioned(b, positive=False):
    """An expression of a square matrix that is well conditioned, of a variable."""
    v = b.pick(square, lambda v: v.dtype in ("float32", "float64", "complex64"), ndim(2, 3))
    a = np.asarray(v.array).astype(np.complex128)
    if not a.size or not np.isfinite(a).all():
        raise Refused
    hermitian = np.abs(a - np.conj(np.swapaxes(a, -1, -2))).max() < 1e-6
    good = np.linalg.cond(a).max() < 100
    definite = hermitian and np.linalg.eigvalsh(a).min() > 0.1
    if (definite if positive else good) and b.s.chance(0.85):
        return v, v.text, hermitian
    eye = f"jnp.eye({v.shape[-1]}, dtype={v.dtype!r})"
    if positive:
        if v.kind == "c":
            raise Refused
        return v, f"({v.text} @ {v.text}.mT + {eye})", True
    if np.linalg.cond(a + 4 * np.eye(a.shape[-1])).max() > 100:
        raise Refused
    return v, b.s.choice((f"({v.text} + 4 * {eye})", f"(4 * {eye} + {v.text})")), hermitian


@op("linalg", 6)
def linalg(b):
    v, a, hermitian = conditioned(b)
    n = v.shape[-1]
    front = v.shape[:-2]
    vector, several = b.array((n,), v.dtype), b.array((*front, n, 3), v.dtype)
    one = vector if not front else several
    options = [
        f"jnp.linalg.solve({a}, {one})",
        f"jnp.linalg.solve({a}, {several})",
        f"jnp.linalg.solve({a}.mT, {several})",
        f"jnp.linalg.inv({a})",
        f"jnp.linalg.inv({a}) @ {several}",
        f"jnp.linalg.det({a})",
        f"jnp.linalg.slogdet({a})",
        f"(lambda q, r: q @ r)(*jnp.linalg.qr({a}))",
        f"abs(jnp.linalg.qr({a}, mode='r'))",
        f"jnp.linalg.svd({a}, compute_uv=False)",
        f"(lambda u, s, w: (u * s[..., None, :]) @ w)(*jnp.linalg.svd({a}))",
        f"(lambda p, l, u: p @ l @ u)(*jax.scipy.linalg.lu({a}))",
        f"jax.scipy.linalg.lu_solve(jax.scipy.linalg.lu_factor({a}), {one})",
        f"lax.linalg.triangular_solve({a}, {several}, left_side=True, lower={b.s.chance(0.5)})",
        f"lax.linalg.triangular_solve({a}, {several}.mT, transpose_a={b.s.chance(0.5)})",
        f"jnp.linalg.matrix_power({a}, {b.s.choice((0, 1, 2, 3, -1))})",
        f"jnp.linalg.pinv({a})",
        f"jnp.linalg.cond({a})",
        f"jnp.linalg.matrix_rank({a})",
        f"jnp.linalg.norm({a}, ord=2, axis=(-2, -1))",
        f"jnp.linalg.multi_dot([{a}, {a}, {several}])" if not front else f"{a} @ {several}",
        f"jnp.linalg.solve({b.s.u(n, n, dtype=v.dtype)} + 4 * jnp.eye({n}, dtype={v.dtype!r}), {a})",
        f"lax.linalg.triangular_solve(jnp.tril({b.s.u(n, n, dtype=v.dtype)}) + 2 * jnp.eye({n}, dtype={v.dtype!r}), {v.text}, left_side=True, lower=True)"
        if not front
        else f"jnp.linalg.inv({a})",
    ]
    if not front:
        options += [
            f"jax.scipy.linalg.solve_triangular({a}, {one}, lower={b.s.chance(0.5)}, trans={b.s.choice((0, 1))})",
            f"jax.scipy.linalg.solve_triangular({a}, {several}, lower=True, unit_diagonal=True)",
            f"jax.scipy.linalg.expm({a} * 0.2)",
            f"jnp.linalg.lstsq({a}, {several})[0]",
            f"jax.scipy.sparse.linalg.gmres({a}, {vector}, tol=1e-7)[0]",
            f"jax.scipy.linalg.inv({a})",
            f"jax.scipy.linalg.det({a})",
            f"jax.scipy.linalg.solve({a}, {one})",
            f"jax.scipy.linalg.block_diag({a}, {several})",
        ]
    if hermitian:
        options += [
            f"jnp.linalg.eigvalsh({a})",
            f"(lambda w, q: (q * w[..., None, :]) @ jnp.conj(q.mT))(*jnp.linalg.eigh({a}))",
        ] * 2
    if v.kind == "f" and not hermitian:
        options += [f"jnp.linalg.eigvalsh({a} + {a}.mT)"]
    options += [f"jnp.sort(abs(jnp.linalg.eigvals({a})), axis=-1)"]
    return b.s.choice(options)


@op("linalg", 2.5)
def positive(b):
    v, a, _ = conditioned(b, positive=True)
    n = v.shape[-1]
    several = b.array((*v.shape[:-2], n, 2), v.dtype)
    options = [
        f"jnp.linalg.cholesky({a})",
        f"jnp.linalg.cholesky({a}, upper=True)",
        f"(lambda w, q: (q * w[..., None, :]) @ q.mT)(*jnp.linalg.eigh({a}))",
        f"jnp.linalg.eigvalsh({a})",
        f"lax.linalg.triangular_solve(jnp.linalg.cholesky({a}), {several}, left_side=True, lower=True)",
        f"jnp.linalg.slogdet({a})[1]",
    ]
    if v.ndim == 2:
        options += [
            f"jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor({a}), {several})",
            f"jax.scipy.linalg.solve({a}, {several}, assume_a='pos')",
            f"jax.scipy.linalg.cholesky({a}, lower=True)",
            f"jax.scipy.sparse.linalg.cg({a}, {several}, tol=1e-7)[0]",
            f"jax.scipy.linalg.sqrtm({a}).real",
        ]
    return b.s.choice(options)
