"""Derivative rules that a program writes: those that keep a structure, and those that don't."""

from .conditions import axis_of, kind, ndim, nonempty, square
from .programs import op


def linear(b, v, t, x):
    """Expressions of a tangent, or a cotangent, that are linear in it."""
    axis, shape = axis_of(b, v), v.shape
    options = [
        *(t, f"{t} * 3", f"-{t}", f"{t} * {x}", f"jnp.where({x} > 0, {t}, 0)"),
        *(f"jnp.cumsum({t}, axis={axis})", f"jnp.flip({t}, {axis})", f"{t} - {t}.mean()"),
        *(f"jnp.roll({t}, 1, axis={axis})", f"jnp.broadcast_to({t}.sum(), {shape})"),
        f"jnp.broadcast_to({t}.sum({axis}, keepdims=True), {shape})",
        *(f"{t} * {b.array(shape, v.dtype)}", f"{t}[order({b.s.seed()}, {shape[0]})]"),
        *(f"{t} * jnp.cos({x})", f"{t} * 0", f"jnp.sort({x}) * {t}"),
    ]
    if square(v) and v.ndim == 2:
        options += [
            f"{t}.T",
            f"({t} + {t}.T) / 2",
            f"jnp.tril({t})",
            f"{t} @ {x}",
            f"{x} @ {t}",
        ]
    return b.s.choice(options)


def any_rule(b, v, g, x):
    """Expressions of a cotangent: also what is not linear."""
    options = [
        f"{g} * jnp.minimum(1.0, 1.0 / jnp.linalg.norm({g}))"
        if v.ndim <= 2
        else f"{g} * 0.5",
        *(f"jnp.clip({g}, -0.1, 0.1)", f"jnp.sign({g})", f"{g} + 1", f"jnp.ones_like({g})"),
        *(f"jnp.where(jnp.abs({g}) > 0.3, 0, {g})", f"{g} / (1 + jnp.abs({g}).max())"),
        *(f"jnp.nan_to_num({g})", f"jnp.where(jnp.isfinite({g}), {g}, 0)", x, f"{g} ** 2"),
    ]
    if b.s.chance(0.5):
        return f"({b.s.choice(options)}).astype({x}.dtype)"
    return f"({linear(b, v, g, x)}).astype({x}.dtype)"


FUNCTIONS = ("a", "a", "jnp.round(a)", "jnp.sin(a)", "a * 2", "jnp.maximum(a, 0)", "-a")
REDUCTIONS = ("a.sum()", "jnp.linalg.norm(a)", "(a ** 2).sum()")


def around(b, call, x):
    """A call of a function with a rule, as programs have it: in a transformation, in a loop."""
    return b.s.choice(
        [
            *[f"{call}({x})"] * 4,
            f"jax.jit({call})({x})",
            f"lax.fori_loop(0, 2, lambda i, c: {call}(c), {x})",
            f"lax.scan(lambda c, _: ({call}(c), None), {x}, None, length=2)[0]",
            f"jax.checkpoint({call})({x})",
            f"{call}({call}({x}))",
            f"lax.cond(jnp.arange(2)[1] > 0, {call}, lambda a: a, {x})",
        ]
    )


def differentiated(b, v, call, y):
    """A derivative, in the program, of what depends on a function with a rule."""
    x, weights = v.text, b.array(v.shape, v.dtype)
    options = [
        *[f"jax.grad(lambda a: ({around(b, call, 'a')} * {weights}).sum())({x})"] * 2,
        f"jax.grad(lambda a: (({around(b, call, 'a')} * {weights}) ** 2).sum())({x})",
        f"jax.grad(lambda s: ({call}({x} * s) * {weights}).sum())(jnp.ones((), {v.dtype!r}))",
        f"jax.vjp({call}, {x})[1]({weights})[0]",
        f"jax.vjp({call}, {x})[1](jnp.ones({v.shape}, {v.dtype!r}))[0]",
    ]
    if v.ndim == 2:
        options += [
            f"jax.grad(lambda a: (({y} @ {around(b, call, 'a')}) ** 2).sum())({x})",
            f"jax.grad(lambda a: ({y} @ {call}(a)).sum())({x})",
            f"jax.vmap(jax.grad(lambda a: ({call}(a)[0] ** 2).sum()))(jnp.stack([{x}, {x}]))",
        ]
    return b.s.choice(options)


@op("rules", 6)
def custom_backward(b):
    v = b.pick(kind("f"), nonempty, ndim(1, 2, 3))
    x = v.text
    rule = any_rule(b, v, "g", "x")
    call = f"backward(lambda a: {b.s.choice(FUNCTIONS)}, lambda g, x: {rule})"
    if b.differentiated and b.s.chance(0.6):
        return around(b, call, x)
    return differentiated(b, v, call, b.array((3, v.shape[0]), v.dtype))


@op("rules", 5)
def custom_tangent(b):
    v = b.pick(kind("f"), nonempty, ndim(1, 2, 3))
    x = v.text
    rule = f"({linear(b, v, 't', 'x')}).astype(x.dtype)"
    call = f"forward(lambda a: {b.s.choice(FUNCTIONS)}, lambda t, x: {rule})"
    if b.differentiated and b.s.chance(0.6):
        return around(b, call, x)
    if b.s.chance(0.5):
        return f"jax.jvp({call}, ({x},), ({b.array(v.shape, v.dtype)},))"
    return differentiated(b, v, call, b.array((3, v.shape[0]), v.dtype))


@op("rules", 4)
def custom_number(b):
    """A function that forgets its operand, and whose rule does not, beside that operand."""
    v = b.pick(kind("f"), nonempty, ndim(1, 2))
    x, rule = v.text, b.s.choice(("forward", "backward"))
    linear_in = linear(b, v, "t", "x")
    fill = b.s.choice(("jnp.zeros_like(a)", "jnp.zeros_like(a)", "jnp.ones_like(a)"))
    call = f"{rule}(lambda a: {fill}, lambda t, x: ({linear_in}).astype(x.dtype))"
    flag = f"{b.array((), 'float32')} > 0.4"
    return b.s.choice(
        [
            f"jnp.where({flag}, {x}, {call}({x}))",
            f"lax.cond({flag}, lambda: {x}, lambda: {call}({x}))",
            f"lax.cond({flag}, lambda a: a, {call}, {x})",
            f"jnp.where({b.array(v.shape, 'float32')} > 0.4, {x}, {call}({x}))",
            f"lax.scan(lambda c, _: (jnp.where({flag}, c, {x}), None), {call}({x}), None, length=2)[0]",
            f"{x} + {call}({x})",
            f"{x} * {call}({x})",
        ]
    )


@op("rules", 5)
def custom_mixture(b):
    """Rules of two operands, which exchange, mix or reduce what they are given."""
    v = b.pick(kind("f"), nonempty, ndim(1, 2))
    x, y = v.text, b.array(v.shape, v.dtype)
    one, two = (linear(b, v, "g", b.s.choice("xy")) for _ in range(2))
    both = b.s.choice(
        [
            *(
                "g * y, g * x",
                "g, g",
                "g * x, g * y",
                "g * 0, g",
                "g.sum() * x, g.sum() * y",
            ),
            *("g - g.mean(), -g", f"{one}, {two}", "jnp.cumsum(g, 0), g * y"),
        ]
    )
    fn = b.s.choice(
        ("a + c", "a * c", "a", "c", "jnp.maximum(a, c)", "a - c", "jnp.round(a) + c")
    )
    call = f"backward(lambda a, c: {fn}, lambda g, x, y: ({both}))"
    tangent = b.s.choice(("t + s", "t * y + s * x", "t - s", "s", "jnp.cumsum(t, 0) + s"))
    jvp = f"forward(lambda a, c: {fn}, lambda t, s, x, y: {tangent})"
    weights = b.array(v.shape, v.dtype)
    if b.differentiated and b.s.chance(0.5):
        return f"{b.s.choice((call, jvp))}({x}, {y})"
    options = [
        f"jax.grad(lambda a, c: ({call}(a, c) * {weights}).sum(), (0, 1))({x}, {y})",
        f"jax.grad(lambda a: ({call}(a, a) ** 2).sum())({x})",
        f"jax.grad(lambda a, c: ({jvp}(a, c) ** 2).sum(), (0, 1))({x}, {y})",
        f"jax.jvp({jvp}, ({x}, {y}), ({weights}, {y}))",
        f"jax.grad(lambda a: jax.jit({call})(a, {y}).sum())({x})",
    ]
    return b.s.choice(options)


@op("rules", 2)
def custom_inner(b):
    """A number of two arrays: the rule spreads its cotangent over both."""
    v = b.pick(kind("f"), nonempty, ndim(1, 2))
    x, y = v.text, b.array(v.shape, v.dtype)
    fn = b.s.choice(("(a * c).sum()", "jnp.vdot(a, c)", "(a * c).mean()", "(a + c).max()"))
    cotangents = b.s.choice(("g * y, g * x", "g * y * 2, g * jnp.cos(x)", "g * x, g * y"))
    call = f"backward(lambda a, c: {fn}, lambda g, x, y: ({cotangents}))"
    if b.s.chance(0.3):
        tangent = "(t * y).sum() + (s * x).sum()"
        call = f"forward(lambda a, c: {fn}, lambda t, s, x, y: {tangent})"
    if b.differentiated and b.s.chance(0.6):
        return f"{call}({x}, {y})"
    return b.s.choice(
        [
            f"jax.grad(lambda a, c: {call}(a, c) ** 2, (0, 1))({x}, {y})",
            f"jax.grad({call}, 1)({x}, {y})",
            f"jax.grad(lambda a: {call}(a, a))({x})",
        ]
    )


@op("rules", 1.5)
def custom_reduction(b):
    v = b.pick(kind("f"), nonempty, ndim(1, 2))
    x, weights = v.text, b.array(v.shape, v.dtype)
    rule = b.s.choice(
        ("g * x", f"jnp.broadcast_to(g, {v.shape})", f"g * {weights}", "g * x / 2")
    )
    tangent = b.s.choice(
        ("(t * x).sum()", "t.sum()", f"(t * {weights}).max()", "t.ravel()[0]")
    )
    tangent = tangent.replace(".max()", ".sum()")
    call = f"backward(lambda a: {b.s.choice(REDUCTIONS)}, lambda g, x: {rule})"
    if b.s.chance(0.5):
        call = f"forward(lambda a: {b.s.choice(REDUCTIONS)}, lambda t, x: {tangent})"
    if b.differentiated and b.s.chance(0.5):
        return f"{call}({x})"
    return f"jax.grad(lambda a: {call}(a) ** 2)({x})"
