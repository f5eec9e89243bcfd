"""Formulas that the ready tables of patterns look for, as programs write them."""

from .conditions import axis_of, kind, ndim, nonempty, square
from .programs import op


ENTRYWISE = (
    *(
        "jnp.log(jnp.exp({x}) + jnp.exp({y}))",
        "jnp.log(1 + jnp.exp({x}))",
        "jnp.log(jnp.exp({x}))",
    ),
    *(
        "jnp.log(1 - jnp.exp(-abs({x})))",
        "jnp.exp({x}) / (1 + jnp.exp({x}))",
        "1 / (1 + jnp.exp(-{x}))",
    ),
    *(
        "1 - jax.nn.sigmoid({x})",
        "jnp.log(jax.nn.sigmoid({x}))",
        "jnp.log(1 - jax.nn.sigmoid({x}))",
    ),
    *(
        "jnp.exp({x}) - 1",
        "1 - jnp.exp({x})",
        "jnp.log(1 + {x})",
        "1 - jnp.cos({x})",
        "1 - lax.erf({x})",
    ),
    *("1 - jnp.tanh({x}) ** 2", "jnp.log(1 - jnp.tanh({x}) ** 2)", "{x} ** 2 - {y} ** 2"),
    *(
        "jnp.sqrt(abs({x}) + 2) - jnp.sqrt(abs({x}))",
        "1 / {x} - 1 / ({x} + 2)",
        "2 / (1 + jnp.exp({x}))",
    ),
    *(
        "jnp.log({x} + 2) - jnp.log({x})",
        "jnp.sqrt({x} ** 2 + {y} ** 2)",
        "(jnp.exp({x}) - jnp.exp(-{x})) / 2",
    ),
    *(
        "(jnp.exp({x}) + jnp.exp(-{x})) / 2",
        "jnp.log((1 + {x}) / (1 - {x}))",
        "jax.scipy.special.ndtr({x})",
    ),
    *(
        "jnp.log({x} + jnp.sqrt({x} ** 2 + 1))",
        "jnp.hypot({x}, {y})",
        "jnp.log(jax.scipy.special.ndtr({x}))",
    ),
)
ALONG = (
    *(
        "jnp.log(jnp.sum(jnp.exp({x}), axis={axis}))",
        "jnp.log(jnp.mean(jnp.exp({x}), axis={axis}))",
    ),
    *(
        "jnp.exp({x}) / jnp.sum(jnp.exp({x}), axis={axis}, keepdims=True)",
        "jnp.log(jnp.prod(abs({x}), axis={axis}))",
    ),
    *(
        "jnp.log(jax.nn.softmax({x}, axis={axis}))",
        "jnp.mean({x} ** 2, axis={axis}) - jnp.mean({x}, axis={axis}) ** 2",
    ),
    "(lambda z: z / z.sum({axis}, keepdims=True))(jnp.exp({x} - {x}.max({axis}, keepdims=True)))",
    "jnp.exp({x}) / jnp.sum(jnp.exp({x}))",
)


@op("formula", 2)
def stable_formula(b):
    v = b.pick(kind("f"))
    scale = b.s.choice(("", "", "", " * 30", " * 1e-3"))
    x = f"({v.text}{scale})" if scale else v.text
    if v.ndim and v.array.size and b.s.chance(0.4):
        return b.s.choice(ALONG).format(x=x, axis=axis_of(b, v))
    return b.s.choice(ENTRYWISE).format(x=x, y=b.array(v.shape, v.dtype))


@op("formula", 2)
def matrix_formula(b):
    v = b.pick(kind("f"), square, ndim(2), nonempty)
    x, n = v.text, v.shape[0]
    same, thin, one = (b.array(s, v.dtype) for s in ((n, n), (n, 2), (n,)))
    eye = f"jnp.eye({n}, dtype={v.dtype!r})"
    number = b.array((), v.dtype)
    options = [
        *(
            f"jnp.trace({x} @ {same})",
            f"jnp.diagonal({x} @ {same})",
            f"jnp.sum({x} @ {same})",
        ),
        *(f"(({x} @ {same}).sum(0))", f"jnp.diag({one}) @ {x}", f"{x} @ jnp.diag({one})"),
        *(f"jnp.outer({one}, {one}) @ {x}", f"{x} @ jnp.outer({one}, {one})"),
        *(f"{x} @ {same} @ {thin}", f"{thin}.T @ {x} @ {same} @ {thin}"),
        f"jnp.kron({x}, {b.array((2, 2), v.dtype)}) @ {b.array((2 * n, 2), v.dtype)}",
        *(
            f"{x} + {eye}",
            f"{x} + {number} * {eye}",
            f"{x} + jnp.diag({one})",
            f"{x} - 2 * {eye}",
        ),
        *(
            f"{x}.at[jnp.diag_indices({n})].add({number})",
            f"{x}.at[jnp.diag_indices({n})].add({one})",
        ),
        f"jnp.kron({x}, jnp.eye(2, dtype={v.dtype!r})) + jnp.kron({eye}, {b.array((2, 2), v.dtype)})",
    ]
    good = f"(abs({x}) + 9 * {eye})"
    options += [
        *(f"jnp.linalg.inv({good}) @ {thin}", f"{thin}.T @ jnp.linalg.inv({good})"),
        *(f"jnp.log(jnp.linalg.det({good}))", f"jnp.log(abs(jnp.linalg.det({good})))"),
    ]
    return b.s.choice(options)


@op("formula", 1.5)
def loop_formula(b):
    v = b.pick(kind("f"), ndim(1, 2), nonempty)
    x, n = v.text, v.shape[0]
    w = b.array((v.shape[-1], 2), v.dtype)
    how = b.s.choice(("sum(0)", "mean(0)", "max(0)", "sum()"))
    step = b.s.choice(("r * 2", "jnp.sin(r)", f"r @ {w}", "c + r", "r.sum()"))
    start = f"jnp.zeros({v.shape[1:]}, {v.dtype!r})"
    return b.s.choice(
        [
            f"lax.map(lambda r: {step.replace('c + r', 'r')}, {x}).{how}",
            f"lax.scan(lambda c, r: (c + r, {step}), {start}, {x})[1].{how}",
            f"lax.scan(lambda c, r: (c * 0.5, {step}), {start}, {x})[1][-1]",
            f"jnp.where(jnp.bool_(True), {x}.at[jnp.int32(1)].set(2), {x})"
            if n > 1
            else f"-{x}",
            f"jnp.where({x}.sum() > 0, lax.dynamic_update_slice_in_dim({x}, {x}[:1], jnp.int32(0), 0), {x})",
        ]
    )


@op("formula", 1)
def attention_formula(b):
    v = b.pick(kind("f"), ndim(2, 3), nonempty)
    q = v.text
    k = b.array((*v.shape[:-2], 5, v.shape[-1]), v.dtype)
    w = b.array((*v.shape[:-2], 5, 3), v.dtype)
    logits = b.s.choice(
        (f"{q} @ {k}.mT / 2", f"jnp.einsum('...qd,...kd->...qk', {q}, {k}) * 0.5")
    )
    if b.s.chance(0.4):
        logits = f"jnp.where(mask({b.s.seed()}, {v.shape[-2]}, 5), {logits}, -1e9)"
    return f"jax.nn.softmax({logits}, axis=-1) @ {w}"
