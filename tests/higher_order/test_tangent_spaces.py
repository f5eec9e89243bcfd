"""Derivative rules on types whose leaves cannot make any tangent, such as diagonal matrices.

The oracle is the program on the dense array of the leaves.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import often, slow
from jax import lax
from oracle import floating
from reference import CASES, uniform

import jaxrewrite
from jaxrewrite import transform, values
from jaxrewrite.testing import assert_same


pytestmark = pytest.mark.usefixtures("bulk")
N = 4
RNG = np.random.default_rng(7)
X, MASK = uniform(RNG, (N, N), "float32"), jnp.asarray(RNG.uniform(size=(N, N)) > 0.4)
ORDER = jnp.array([2, 0, 3, 1])

# --- rules: a program on an array and another one, which is dense -------------------------

RULES = {}


def backward(name, bwd, fn=lambda x: +x):
    """A function of one array whose backward rule maps the array and a cotangent."""
    rule = jax.custom_vjp(fn)
    rule.defvjp(lambda x: (fn(x), x), lambda x, ct: (bwd(x, ct),))
    RULES[f"vjp {name}"] = lambda w, x: rule(w)


def forward(name, jvp, fn=lambda x: +x):
    """The same, with a rule that maps the array and a tangent."""
    rule = jax.custom_jvp(fn)
    rule.defjvp(lambda primals, tangents: (fn(primals[0]), jvp(*primals, *tangents)))
    RULES[f"jvp {name}"] = lambda w, x: rule(w)


def rule(fn):
    RULES[fn.__name__.replace("_", " ")] = fn
    return fn


LINEAR = {
    "reversed gradient": lambda x, t: -t,
    "by elements": lambda x, t: t * jnp.cos(x),
    "times an array": lambda x, t: t * X,
    "masked": lambda x, t: jnp.where(MASK, t, 0.0),
    "where positive": lambda x, t: jnp.where(x > 0.5, t, 0),
    "transposed": lambda x, t: t.T,
    "symmetric part": lambda x, t: (t + t.T) / 2,
    "reversed": lambda x, t: t[::-1],
    "permuted": lambda x, t: t[:, ORDER],
    "rolled": lambda x, t: jnp.roll(t, 1, 0),
    "cumulative": lambda x, t: jnp.cumsum(t, 0),
    "sums of rows": lambda x, t: jnp.broadcast_to(t.sum(0), t.shape),
    "the mean": lambda x, t: jnp.full_like(t, t.mean()),
    "a product": lambda x, t: X @ t,
    "a product with the operand": lambda x, t: x @ t,
    "of the mean": lambda x, t: t * x.mean() + x * t.mean(),
    "solve": lambda x, t: jnp.linalg.solve(x + 3 * jnp.eye(N), t),
    "a loop": lambda x, t: lax.fori_loop(0, 2, lambda i, t: t[::-1] * 0.5 + t, t),
    "a branch": lambda x, t: lax.cond(x[0, 0] > 9, lambda t: t, lambda t: t.T, t),
    "nothing": lambda x, t: jnp.zeros_like(t),
}
for name, linear in LINEAR.items():
    backward(name, linear)
    forward(name, linear)

NONLINEAR = {
    "clipped by norm": lambda x, g: g * jnp.minimum(1.0, 1.0 / jnp.linalg.norm(g)),
    "clipped": lambda x, g: jnp.clip(g, -0.3, 0.3),
    "over the mean": lambda x, g: g / jnp.abs(g).mean(),
    "sign": lambda x, g: jnp.sign(g),
    "relu": lambda x, g: jax.nn.relu(g) * (x > 0.3),
    "softmax": lambda x, g: jax.nn.softmax(g),
    "squared": lambda x, g: g * jnp.abs(g),
    "over its size": lambda x, g: g / jnp.abs(g),
    "over the operand": lambda x, g: g / (x + 1),
}
for name, nonlinear in NONLINEAR.items():
    backward(name, nonlinear)

backward("straight through", lambda x, g: g, lambda x: jnp.round(x))
backward("sign of the operand", lambda x, g: g * jnp.sign(x), jnp.abs)
forward("straight through", lambda x, t: t, lambda x: jnp.round(x))
backward("of a square", lambda x, g: 2 * x * g, jnp.square)
forward("of a square", lambda x, t: 2 * x * t, jnp.square)
backward("of a transpose", lambda x, g: g.T, lambda x: x.T)
backward("of a transpose, not transposed", lambda x, g: g, lambda x: x.T)
forward("of a transpose", lambda x, t: t.T, lambda x: x.T)
backward("of a sum", lambda x, g: jnp.broadcast_to(g, x.shape), lambda x: x.sum(0))
backward("of a product", lambda x, g: X.T @ g, lambda x: X @ x)


@jax.custom_jvp
def own(x):
    return 2 * x


own.defjvps(lambda t, result, x: t * result)


@jax.custom_vjp
def crossed(x, y):
    return x * y


crossed.defvjp(lambda x, y: (x * y, (x, y)), lambda r, g: (g @ r[1], r[0].T @ g))


@jax.custom_vjp
def times(x, y):
    return x * y


times.defvjp(lambda x, y: (x * y, (x, y)), lambda r, g: (3 * g * r[1], r[0] * g))


@jax.custom_jvp
def added(x, y):
    return x * 2, x * y.sum()


@added.defjvp
def _(primals, tangents):
    (x, y), (tx, ty) = primals, tangents
    return added(x, y), (tx * 2 + ty, tx * y.sum() + x * ty.sum())


@jax.custom_vjp
def both(x, y):
    return {"swapped": +x, "own": (2 * y, -x)}


def both_backward(_, cts):
    one, (two, three) = cts["swapped"], cts["own"]
    return three - two, one


both.defvjp(lambda x, y: (both(x, y), None), both_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 2))
def limited(limit, x, power):
    return x


limited.defvjp(
    lambda limit, x, power: (x, None),
    lambda limit, power, _, g: (jnp.clip(g, -limit, limit) * jnp.abs(g).max() ** power,),
)


@jax.custom_vjp
def scaled(x, number):
    return x * number


scaled.defvjp(
    lambda x, number: (x * number, (x, number)),
    lambda r, g: (g * r[1], (g * r[0]).sum()),
)


def told_of_zeros(by_entry):
    """Rules that are told what is zero."""
    move = (lambda g: g) if by_entry else (lambda g: g[::-1])

    @jax.custom_vjp
    def back(x):
        return 2 * x

    back.defvjp(
        lambda x: (2 * x.value, x.perturbed),
        lambda perturbed, g: (move(g) if perturbed else None,),
        symbolic_zeros=True,
    )

    @jax.custom_jvp
    def fore(x, y):
        return x * y

    def jvp(primals, tangents):
        terms = [
            move(t) * other
            for t, other in zip(tangents, primals[::-1], strict=True)
            if type(t) is not jax.custom_derivatives.SymbolicZero
        ]
        return fore(*primals), sum(terms)

    fore.defjvp(jvp, symbolic_zeros=True)
    return lambda w, x: back(w) + fore(w, x) + fore(w, 2.0 * w)


RULES["several that are told of zeros"] = told_of_zeros(True)
RULES["several that are told of zeros, mixed"] = told_of_zeros(False)


@jax.custom_jvp
def alone(x, y):
    return x * y


def mixed_where_one_is_zero(primals, tangents):
    (x, y), zeros = primals, jax.custom_derivatives.SymbolicZero
    of_x, of_y = (0 if type(t) is zeros else t for t in tangents)
    if any(type(t) is zeros for t in tangents):
        of_x, of_y = (t if type(t) is int else t[::-1] for t in (of_x, of_y))
    return alone(x, y), of_x * y + of_y * x


alone.defjvp(mixed_where_one_is_zero, symbolic_zeros=True)


@rule
def calls_itself(w, x):
    return own(w)


@rule
def crossed_operands(w, x):
    return crossed(w, x)


@rule
def operands_of_one_structure(w, x):
    return crossed(w, 2 * w)


@rule
def entry_by_entry_with_an_array(w, x):
    return times(w, x)


@rule
def entry_by_entry(w, x):
    return times(w, w)


@rule
def a_number(w, x):
    return scaled(w, x[0, 0])


@rule
def several_results(w, x):
    one, two = added(w, x)
    return x @ one + two @ x


@rule
def swapped_cotangents(w, x):
    tree = both(w, 3 * w)
    return tree["swapped"] @ x + x @ tree["own"][0] + tree["own"][1]


@rule
def swapped_cotangents_with_an_array(w, x):
    tree = both(w, x)
    return tree["swapped"] @ x + x @ tree["own"][0] + tree["own"][1]


@rule
def limits_that_are_static(w, x):
    return limited(0.2, w, 0) + limited(0.2, w, 1)


@rule
def through_a_scan(w, x):
    return lax.scan(lambda c, _: (RULES["vjp clipped by norm"](c, x), c @ x), w, None, 2)


@rule
def through_a_scan_by_entry(w, x):
    return lax.scan(lambda c, _: (RULES["vjp by elements"](c, x), c @ x), w, None, 2)


@rule
def under_vmap(w, x):
    return jax.vmap(lambda s: RULES["vjp reversed"](w * s, x))(jnp.arange(2.0))


@rule
def rows_under_vmap(w, x):
    return jax.vmap(lambda row: RULES["vjp clipped by norm"](row, x))(w)


@rule
def in_a_branch(w, x):
    return lax.cond(x[0, 0] > 0, lambda w: RULES["jvp reversed"](w, x), lambda w: w, w)


@rule
def under_jit(w, x):
    return jax.jit(lambda w: jax.nn.relu(RULES["jvp by elements"](w, x) - 0.5))(w)


@rule
def under_checkpoint(w, x):
    return jax.checkpoint(lambda w: RULES["vjp transposed"](w, x))(w)


@rule
def chained(w, x):
    return RULES["vjp clipped"](
        RULES["jvp reversed"](RULES["vjp over the mean"](w, x), x), x
    )


@rule
def known_functions(w, x):
    return jax.nn.relu(w) @ x + jnp.logaddexp(w, x) + jax.nn.softmax(w) + jax.nn.gelu(w)


# --- values -------------------------------------------------------------------------------

AROUND = {
    "Tagged": lambda v: values.Tagged(v, "tag"),
    "Named": lambda v: values.Named(v, ("rows", None)),
    "Unitful": lambda v: values.Unitful(v, ""),
    "Named of Tagged": lambda v: values.Named(values.Tagged(v, "tag"), (None, "columns")),
    "Scaled": lambda v: values.Scaled(v, jnp.float32(1.5)),
}
INSIDE = ("diagonal", "symmetric", "circulant", "sparse", "picked", "identity", "lora")


def make(name, seed=3):
    around, _, inside = name.rpartition(" around ")
    v = CASES[inside].value(np.random.default_rng(seed), "float32", (N, N))
    return AROUND[around](v) if around else v


NESTED = [f"{a} around {i}" for a in AROUND for i in INSIDE]
TYPES = [*CASES, *NESTED]
SHORT = ("diagonal", "symmetric", "circulant", "sparse", "Tagged around diagonal")


def loss(fn):
    """A number whose cotangent has entries everywhere."""
    ramp = lambda y: jnp.sin(y + jnp.arange(y.size, dtype=y.dtype).reshape(y.shape) / 5)
    return lambda w, x: sum(
        ramp(y if y.ndim < 2 else x @ y).sum() for y in jax.tree.leaves(fn(w, x))
    )


def derivatives(run, value, filled, how="grad"):
    """Derivatives of a program in the leaves of a value and in the other array."""

    def of_leaves(leaves, x):
        return run(value(filled(leaves)), x)

    def along(leaves, x):
        wave = lambda a: jnp.cos(jnp.arange(a.size, dtype=a.dtype)).reshape(a.shape)
        return jax.jvp(of_leaves, (leaves, x), jax.tree.map(wave, (leaves, x)))

    gradient = along if how == "jvp" else jax.grad(of_leaves, (0, 1))
    return jax.vmap(gradient, (0, None), axis_size=2) if how == "vmap" else gradient


def implicit(name, policy="allow"):
    run = transform(loss(RULES[name]), materialise=policy)
    return lambda w, x: jaxrewrite.materialise(run(w, x))


def rules_for(how):
    """JAX has no forward mode through a custom_vjp."""
    return [n for n in RULES if how != "jvp" or n.startswith(("jvp", "known", "calls"))]


# Each of these types has a part of the rules in the default run; the long one has all.
PARTS = 4
DEFAULT = {("diagonal", how, part) for how in ("grad", "jvp") for part in range(PARTS)}
DEFAULT |= {(name, "grad", i) for i, name in enumerate(SHORT[1:])} | {
    ("symmetric", "vmap", 0)
}


@pytest.mark.parametrize(
    ("name", "how", "part"),
    often(list(itertools.product(TYPES, ("grad", "vmap", "jvp"), range(PARTS))), DEFAULT),
)
def test_derivatives_are_those_of_the_dense_program(name, how, part):
    leaves, filled = floating(make(name))
    if how == "vmap":
        leaves = [jnp.stack([a, a * 1.3]) for a in leaves]
    rules = rules_for(how)[part::PARTS]
    everything = lambda run, value: jax.jit(
        lambda *args: {n: derivatives(run(n), value, filled, how)(*args) for n in rules}
    )
    want = everything(lambda n: loss(RULES[n]), jaxrewrite.materialise)(leaves, X)
    assert_same(everything(implicit, lambda v: v)(leaves, X), want, 1e-4)


@pytest.mark.parametrize("name", often(["vjp by elements", "jvp of the mean"], []))
@pytest.mark.parametrize("kind", SHORT)
def test_second_derivatives(kind, name):
    leaves, filled = floating(make(kind))

    def second(run, value):
        gradient = derivatives(run, value, filled)
        total = lambda *args: sum(
            jnp.sin(g).sum() for g in jax.tree.leaves(gradient(*args))
        )
        return jax.jit(jax.grad(total, (0, 1)))(leaves, X)

    got = second(implicit(name), lambda v: v)
    assert_same(got, second(loss(RULES[name]), jaxrewrite.materialise), 1e-4)


# --- what stays implicit ------------------------------------------------------------------

# Everything else about these types becomes dense.
LINEAR_BY_ENTRY = {"reversed gradient", "by elements", "where positive", "nothing"}
ARRAYS = {"times an array", "masked"}
STAYS = {
    "diagonal": {
        *(f"{way} {n}" for way in ("vjp", "jvp") for n in LINEAR_BY_ENTRY | ARRAYS),
        *(f"vjp {n}" for n in ("clipped", "sign", "squared", "over its size")),
        *("vjp over the operand", "vjp sign of the operand", "calls itself"),
        *(f"{way} straight through" for way in ("vjp", "jvp")),
        *(f"{way} of a square" for way in ("vjp", "jvp")),
        *("jvp transposed", "jvp symmetric part", "jvp a product with the operand"),
        *("jvp of the mean", "jvp of a transpose", "vjp of a transpose, not transposed"),
        *("entry by entry", "entry by entry with an array", "jvp a branch"),
        "several that are told of zeros",
    },
    "symmetric": {
        *(f"{way} {n}" for way in ("vjp", "jvp") for n in LINEAR_BY_ENTRY),
        *("vjp over the operand", "vjp sign of the operand", "calls itself"),
        *(f"{way} straight through" for way in ("vjp", "jvp")),
        *(f"{way} of a square" for way in ("vjp", "jvp")),
        *("jvp transposed", "jvp symmetric part", "jvp of the mean", "jvp of a transpose"),
        *("vjp of a transpose, not transposed", "entry by entry", "jvp a branch"),
        "under jit",
    },
    "sparse": {
        *(f"{way} {n}" for way in ("vjp", "jvp") for n in LINEAR_BY_ENTRY | ARRAYS),
        *(f"vjp {n}" for n in ("clipped", "sign", "squared", "over its size")),
        *("vjp over the operand", "vjp sign of the operand", "calls itself"),
        *(f"{way} straight through" for way in ("vjp", "jvp")),
        *(f"{way} of a square" for way in ("vjp", "jvp")),
        *("entry by entry", "entry by entry with an array"),
    },
}


def stays(fn, v, policy="allow"):
    return isinstance(jax.eval_shape(transform(fn, materialise=policy), v, X), type(v))


@pytest.mark.parametrize("name", often(STAYS, ["diagonal"]))
def test_what_stays_implicit(name):
    v = make(name)
    assert {n for n in RULES if stays(RULES[n], v)} == STAYS[name]


def test_entries_that_repeat_are_multiplied_by_none_or_only_by_what_repeats_too():
    by_both = jax.custom_vjp(lambda w, x: w)
    by_both.defvjp(lambda w, x: (w, (w, x)), lambda r, ct: (ct * r[0] * r[1], 0 * r[1]))
    v = make("symmetric")
    assert stays(RULES["vjp reversed gradient"], v)
    assert not stays(by_both, v)


# Their `lift_tangent` says so: entries repeat, or are chosen by the leaves.
KNOW_NO_WAY_BACK = ("picked", "n_of_m", "scalar_matrix")


@pytest.mark.parametrize(
    "name", often([n for n in CASES if n not in KNOW_NO_WAY_BACK], SHORT[:4])
)
def test_functions_of_jax_stay_implicit_where_their_equations_do(name):
    """Where a type keeps ``relu`` without its rule, it does so with it, if it knows a way back."""
    v = make(name)
    is_inherited = type(v).lift_tangent is jaxrewrite.Value.lift_tangent
    if is_inherited or getattr(v, "entries", "own") is None:
        pytest.skip("it knows no way back")
    without_rule = lambda x, _: jnp.maximum(x, 0)
    assert stays(lambda x, _: jax.nn.relu(x), v) == stays(without_rule, v)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("rule", ["vjp clipped by norm", "jvp reversed"])
@pytest.mark.parametrize("name", ["diagonal", "Tagged around symmetric"])
def test_where_nothing_may_be_dense_it_is_an_error_to_differentiate(name, rule, wrap):
    v = make(name)
    leaves, filled = floating(v)
    run = transform(lambda w, x: x @ RULES[rule](w, x), materialise="forbid")
    assert_same(jaxrewrite.materialise(run(v, X)), X @ jaxrewrite.materialise(v), 1e-5)
    number = lambda leaves: jaxrewrite.materialise(run(filled(leaves), X)).sum()
    with pytest.raises(jaxrewrite.MaterialisationError, match=r"may mix .* entry by entry"):
        wrap(jax.grad(number))(leaves)


def test_a_rule_is_told_which_operands_have_no_tangent():
    """It would move entries if the mask had one, which a mask never has."""
    masked = jax.custom_vjp(lambda x, mask: x * mask)

    def fwd(x, mask):
        return x.value * mask.value, (mask.value, mask.perturbed)

    def bwd(saved, ct):
        mask, is_mask_perturbed = saved
        return mask * (ct[::-1] if is_mask_perturbed else ct), None

    masked.defvjp(fwd, bwd, symbolic_zeros=True)
    assert stays(lambda w, _: masked(w, MASK), make("diagonal"))


def test_a_warning_says_why_a_result_is_dense():
    with pytest.warns(jaxrewrite.MaterialisationWarning, match="acts entry by entry"):
        transform(lambda w: RULES["vjp clipped by norm"](w, X))(make("diagonal"))


def test_a_rule_that_fails_fails_only_where_jax_calls_it():
    @jax.custom_jvp
    def fn(x):
        return 2 * x

    @fn.defjvp
    def _(primals, tangents):
        raise NotImplementedError("no derivative")

    v = make("diagonal")
    run = lambda v: jaxrewrite.materialise(transform(fn, materialise="allow")(v))
    assert_same(run(v), 2 * jaxrewrite.materialise(v), 1e-6)
    with pytest.raises(NotImplementedError, match="no derivative"):
        jax.grad(lambda v: run(v).sum())(v)


class Corner(jaxrewrite.ArrayValue):
    """One number in the corner of a matrix, as a user writes it."""

    x: jax.Array
    space: str = jaxrewrite.field(static=True, default="entries")

    def materialise(self):
        return jnp.zeros((N, N)).at[0, 0].set(self.x)

    def tangent(self, leaf_tangents):
        return leaf_tangents

    def lift_tangent(self, tangent):
        return Corner(tangent[0, 0], self.space)

    def tangent_space(self):
        return self.space


@jaxrewrite.register("neg")
def _(v: Corner):
    return Corner(-v.x, v.space)


@pytest.mark.parametrize("name", ["vjp clipped", "vjp clipped by norm", "jvp reversed"])
def test_a_type_of_a_user(name):
    v = Corner(jnp.float32(0.7))
    assert stays(RULES[name], v) == (name == "vjp clipped")
    leaves, filled = floating(v)
    got = derivatives(implicit(name), lambda v: v, filled)(leaves, X)
    dense = derivatives(loss(RULES[name]), jaxrewrite.materialise, filled)(leaves, X)
    assert_same(got, dense, 1e-5)


def test_a_space_that_is_none_is_named():
    with pytest.raises(
        ValueError, match=r"Corner\.tangent_space must .* returned 'diagonal'"
    ):
        transform(RULES["vjp clipped"])(Corner(jnp.float32(1), "diagonal"), X)


class Projection(jaxrewrite.ArrayValue):
    """A diagonal matrix as a user writes it who thinks of no other tangents."""

    d: jax.Array

    def materialise(self):
        return jnp.diag(self.d)

    def lift_tangent(self, tangent):
        return Projection(jnp.diagonal(tangent))


class Multiple(jaxrewrite.ArrayValue):
    """Its way back gives a multiple of each entry, and all tangents come back."""

    x: jax.Array
    factor: jax.Array

    def materialise(self):
        return self.x * self.factor

    def lift_tangent(self, tangent):
        return Multiple(tangent / self.factor, jnp.zeros_like(self.factor))


@jaxrewrite.register("neg")
def _(v: Projection):
    return Projection(-v.d)


@jaxrewrite.register("neg")
def _(v: Multiple):
    return Multiple(-v.x, v.factor)


@pytest.mark.parametrize(
    "v, is_kept",
    [
        (Projection(jnp.arange(1.0, N + 1)), False),
        (Multiple(jnp.arange(float(N * N)).reshape(N, N), jnp.float32(2)), True),
    ],
)
def test_a_type_that_does_not_say_which_tangents_it_can_hold(v, is_kept):
    name = "vjp clipped by norm"
    assert stays(RULES[name], v) == is_kept
    leaves, filled = floating(v)
    got = derivatives(implicit(name), lambda v: v, filled)(leaves, X)
    dense = derivatives(loss(RULES[name]), jaxrewrite.materialise, filled)(leaves, X)
    assert_same(got, dense, 1e-5)


def test_what_has_no_tangents_is_projected_from_nowhere():
    """Tags of integers, which meet a function with a rule beside an array with tangents."""
    mask, i = jnp.zeros((N, N), bool), jnp.arange(N)
    fn = transform(lambda v: jnp.logaddexp(v, i))
    tagged = lambda x: values.Masked(values.Tagged(x, "tag"), mask)
    got = jax.grad(lambda x: fn(tagged(x)).array.array.sum())(X)
    assert_same(got, jax.grad(lambda x: jnp.logaddexp(x, i).sum())(X), 1e-6)


# --- leaves that an array does not depend on ------------------------------------------------


class Half(jaxrewrite.ArrayValue):
    """It depends on one of its leaves."""

    x: jax.Array
    name: jax.Array
    fixed: jax.Array

    def materialise(self):
        return 2 * self.x + lax.stop_gradient(self.fixed)


FORWARD = {
    "alone": lambda w, x: RULES["vjp clipped by norm"](w, x) @ x,
    "beside an array": lambda w, x: times(w, lax.stop_gradient(x)) @ x,
    "scan": lambda w, x: lax.scan(
        lambda c, _: (RULES["vjp clipped by norm"](w, x) @ c, None), x, None, 2
    )[0],
    "vmap": lambda w, x: jax.vmap(lambda s: RULES["vjp reversed"](w * s, x))(X[0]) @ x,
}


@pytest.mark.parametrize("wrap", [lambda f: f, slow(jax.jit)])
@pytest.mark.parametrize("program", FORWARD)
@pytest.mark.parametrize("kind", ["identity", "Tagged around identity", "Half"])
def test_forward_mode_through_a_backward_rule_on_constant_arrays(kind, program, wrap):
    """Dense, nothing there has a tangent, for which JAX would have no rule."""
    fn = FORWARD[program]
    v = Half(X, X + 1, X + 2) if kind == "Half" else make(kind)
    run = wrap(
        lambda w, x: jaxrewrite.materialise(transform(fn, materialise="allow")(w, x))
    )

    def with_leaves(leaves, x):
        if kind == "Half":
            return run(Half(v.x, *leaves), x)
        return run(jax.tree.unflatten(jax.tree.structure(v), leaves), x)

    leaves = [v.name, v.fixed] if kind == "Half" else jax.tree.leaves(v)
    got = jax.jvp(with_leaves, (leaves, X), (leaves, X))
    want = jax.jvp(functools.partial(fn, jaxrewrite.materialise(v)), (X,), (X,))
    assert_same(got, want, 1e-5)


def test_rules_for_zeros_are_tried_with_each_choice_of_them():
    """Where one tangent alone is zero, this rule leaves the diagonal."""
    v, x = make("diagonal"), 1 + X**2
    run = transform(lambda w, x: alone(w, x) @ x, materialise="allow")
    got = jax.grad(lambda d: run(values.Diagonal(d), x).sum())(v.d)
    want = jax.grad(lambda d: (alone(jnp.diag(d), x) @ x).sum())(v.d)
    assert_same(got, want)
