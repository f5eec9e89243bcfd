"""What a program writes itself, beside a value: in branches, in carries and by selection."""

from .conditions import kind, ndim, nonempty, square
from .programs import op


def written(b, v, name):
    """An expression of a constant of a variable's shape; ``name`` is one of a value there."""
    shape, dtype = v.shape, v.dtype
    numbers = {
        "f": ("jnp.inf", "jnp.nan", "2"),
        "c": ("jnp.nan", "1j"),
        "i": ("7",),
        "b": (),
    }
    options = [
        f"jnp.zeros({shape}, {dtype!r})",
        f"jnp.zeros({shape}, {dtype!r})",
        f"jnp.zeros_like({name})",
        f"jnp.ones({shape}, {dtype!r})",
        f"jnp.ones_like({name})",
        *(f"jnp.full({shape}, {x}, {dtype!r})" for x in numbers[v.kind]),
        f"jnp.full_like({name}, 1)",
        f"jnp.zeros({shape}, {dtype!r}).at[0].set(1)" if shape and shape[0] else name,
    ]
    if square(v) and v.ndim == 2:
        options += [f"jnp.eye({shape[0]}, dtype={dtype!r})"] * 2
        options += [f"jnp.tril(jnp.ones({shape}, {dtype!r}))"]
    return b.s.choice(options)


def flag(b, v):
    return b.s.choice(
        (
            *("jnp.bool_(True)", "jnp.bool_(False)", f"jnp.any({v.text} != 0)"),
            f"{b.array((), 'float32')} > 0.4",
        )
    )


def branch(b, v):
    """A function of ``a``, a value: that value, of its structure, or what is written."""
    zero = written(b, v, "a")
    return b.s.choice(
        [
            *["lambda a: a"] * 7,
            *[f"lambda a: {zero}"] * 8,
            *("lambda a: -a", "lambda a: a * 2" if v.kind != "b" else "lambda a: ~a"),
            f"lambda a: a + {zero}" if v.kind != "b" else f"lambda a: a | {zero}",
            f"jax.jit(lambda a: {zero})",
            "jax.jit(lambda a: a)",
            f"jax.checkpoint(lambda a: {zero})",
            f"lambda a: lax.cond({flag(b, v)}, lambda a: a, lambda a: {zero}, a)",
            f"lambda a: lax.cond({flag(b, v)}, lambda a: {zero}, lambda a: {zero}, a)",
            f"lambda a: jnp.where(a != 0, a, {zero})",
        ]
    ).replace("-a", "-a" if v.kind != "b" else "~a")


@op("written", 6, safe=True)
def written_branch(b):
    v = b.pick(kind("fcib"))
    x = v.text
    one, two = branch(b, v), branch(b, v)
    zero = written(b, v, x)
    pairs = f"lambda a: (a, {zero}), lambda a: ({zero}, a)"
    options = [
        *[f"lax.cond({flag(b, v)}, {one}, {two}, {x})"] * 4,
        f"lax.switch({b.s.choice((0, 1, 2))} + 0 * jnp.int32(1), [{one}, {two}, lambda a: a], {x})",
        f"lax.cond({flag(b, v)}, {pairs}, {x})",
        f"lax.cond({flag(b, v)}, lambda: {x}, lambda: {zero})",
        f"jax.vmap(lambda p: lax.cond(p, lambda: {x}, lambda: {zero}))(jnp.array([True, False]))",
        f"jax.vmap(lambda p: lax.cond(p, {one}, {two}, {x}))(jnp.array([True, False]))",
        f"jax.jit(lambda a: lax.cond({flag(b, v)}, {one}, {two}, a))({x})",
        f"-lax.cond({flag(b, v)}, {one}, {two}, {x}).T" if v.kind != "b" else x,
    ]
    if v.ndim > 1 and v.shape[0]:
        options += [
            f"jax.vmap(lambda r: lax.cond({flag(b, v)}, lambda a: a, lambda a: 0 * a, r))({x})"
        ]
    return b.s.choice(options)


@op("written", 6, safe=True)
def written_carry(b):
    v = b.pick(kind("fci"))
    x, zero, inner = v.text, written(b, v, v.text), written(b, v, "c")
    step = branch(b, v)
    return b.s.choice(
        [
            f"lax.scan(lambda c, _: (c + {x}, c), {zero}, None, length=2)",
            f"lax.scan(lambda c, _: ({x}, c), {zero}, None, length=2)",
            f"lax.scan(lambda c, _: ({inner}, c), {x}, None, length=2)",
            f"lax.scan(lambda c, i: (jnp.where(i > 0, c, {inner}), c), {x}, jnp.arange(2))",
            f"lax.scan(lambda c, i: (({step})(c), c), {x}, jnp.arange(2))",
            f"lax.scan(lambda c, i: (lax.cond(i > 0, {step}, lambda a: a, c), None), {x}, jnp.arange(2))[0]",
            f"lax.scan(lambda c, i: ((c[1], c[0]), c[0]), ({x}, {zero}), jnp.arange(3))",
            f"lax.scan(lambda c, i: (c, lax.cond(i > 0, {step}, lambda a: {zero}, {x})), 0, jnp.arange(2))[1]",
            f"lax.fori_loop(0, 2, lambda i, c: {inner}, {x})",
            f"lax.fori_loop(0, 2, lambda i, c: {x}, {zero})",
            f"lax.fori_loop(0, 3, lambda i, c: c + {x}, {zero})",
            f"lax.fori_loop(0, jnp.int32(3), lambda i, c: ({step})(c), {x})",
            f"lax.fori_loop(0, 3, lambda i, c: jnp.where(i == 1, c, {inner}), {x})",
            f"lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, ({step})(c[1])), (0, {x}))[1]",
            f"lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, {x}), (0, {zero}))[1]",
        ]
    )


@op("written", 3, safe=True)
def written_selection(b):
    v = b.pick(kind("fcib"))
    x, zero = v.text, written(b, v, v.text)
    chosen, other = (x, zero) if b.s.chance(0.5) else (zero, x)
    return b.s.choice(
        [
            f"jnp.where({flag(b, v)}, {chosen}, {other})",
            f"lax.select({flag(b, v)}, {chosen}, {other})",
            f"jnp.where({x} != 0, {chosen}, {other})",
            f"jnp.where({flag(b, v)}, {x}, 0)" if v.kind != "b" else f"{x} & {zero}",
            f"{x} + {zero}" if v.kind != "b" else f"{x} | {zero}",
            f"jnp.where({flag(b, v)}, {x}, jnp.where({flag(b, v)}, {zero}, {x}))",
            f"jnp.stack([{chosen}, {other}])",
        ]
    )


@op("gather", 5, safe=True)
def masked_lookup(b):
    """Indices beyond the array, whose rows are left out of what follows: padding."""
    v = b.pick(kind("fc"), ndim(2, 3), nonempty)
    x, n, m = v.text, v.shape[0], v.shape[-1]
    low = "jnp.array([0, -1, 9, 1])"
    ids = b.s.choice((f"jnp.array([0, {n}, {n - 1}, 9])", low, "jnp.array([9, 0])"))
    last = f"jnp.where({ids} < {m}, jnp.take({x}, {ids}, axis=-1), 0)"
    there = (
        f"(({ids} >= 0) & ({ids} < {n})).reshape(-1, {', '.join('1' for _ in v.shape[1:])})"
    )
    fill = {"f": "5.0", "c": "1j"}[v.kind]
    taken = b.s.choice(
        [
            *[f"jnp.take({x}, {ids}, axis=0)"] * 2,
            f"{x}[{ids}]",
            *(
                f"jnp.take({x}, {ids}, axis=0, mode={m!r})"
                for m in ("clip", "wrap", "fill")
            ),
            f"{x}.at[{ids}].get(mode='fill', fill_value=0)",
            f"{x}.at[{ids}].get(mode='fill', fill_value={fill})",
            f"jax.vmap(lambda i: jnp.take({x}, i, axis=0))({ids})",
        ]
    )
    seen = f"jnp.where({there}, {taken}, 0)"
    options = [
        *[seen] * 3,
        f"{seen}.sum()",
        last,
        f"jnp.where({there}, {taken} * 2, 1)",
        # Where an index is promised to be in range, nothing fills in NaN.
        f"jnp.where(jnp.isnan(jnp.take({x}, {ids}, axis=0)), 0, jnp.take({x}, {ids}, axis=0))",
        f"jnp.where(jnp.arange({n}) < 1, lax.dynamic_slice_in_dim({x}, 9, 1, 0)[..., :1], 0)"
        if v.ndim == 2
        else seen,
        f"jnp.where({ids}[:2] < {m}, {x}[..., {ids}[:2]], 0)",
    ]
    if v.kind == "f":
        options += [
            f"jax.grad(lambda a: jnp.where({there}, jnp.take(a, {ids}, axis=0), 0).sum())({x})"
        ]
    return b.s.choice(options)
