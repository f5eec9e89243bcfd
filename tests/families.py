"""Programs with every higher-order primitive, on a value and an array of shape (3, 3).

`FAMILIES` has each by name, with the modes that JAX itself does not support for it:
``reverse`` (reverse-mode derivatives), ``forward`` (forward mode), ``vmap``, ``second``
(derivatives), ``leak checks``.
"""

from typing import Any, NamedTuple

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap
from jax.experimental import pallas as pl


class Family(NamedTuple):
    fn: Any
    without: frozenset


FAMILIES = {}


def family(name, *without):
    def add(fn):
        FAMILIES[name] = Family(fn, frozenset(without))
        return fn

    return add


def each(x, n=2):
    return jnp.stack([x * (i + 1) for i in range(n)])


# --- scan -----------------------------------------------------------------------

family("scan const")(
    lambda v, x: lax.scan(lambda c, _: (jnp.tanh(c @ v), c[0]), x, None, length=3)
)
family("scan carry kept")(lambda v, x: lax.scan(lambda c, y: (c, y @ c), v, each(x)))
family("scan carry scaled")(
    lambda v, x: lax.scan(lambda c, y: (0.5 * c, c @ y), v, each(x))
)
family("scan carry transposed")(
    lambda v, x: lax.scan(lambda c, y: (c.T, y @ c), v, each(x))
)
family("scan carry grows dense")(
    lambda v, x: lax.scan(lambda c, y: (c + y, c.sum()), v, each(x))
)
family("scan carries swapped")(
    lambda v, x: lax.scan(lambda c, y: ((c[1], c[0]), c[0] @ y), (v, x), each(x))
)
family("scan carries passed along")(
    lambda v, x: lax.scan(
        lambda c, y: ((c[1], c[2], jnp.sin(y)), c[0] * y), (v, v, v), each(x, 4)
    )
)
family("scan ys")(lambda v, x: lax.scan(lambda c, y: (c + y, (v, -v)), x, each(x)))
family("scan xs")(lambda v, x: lax.scan(lambda c, row: (c + row @ x, row), x[0], v))
family("scan no carry")(lambda v, x: lax.scan(lambda c, y: (c, y @ v), None, each(x)))
family("scan reversed")(
    lambda v, x: lax.scan(
        lambda c, y: (jnp.sin(c @ v) + y, c), x, each(x, 4), reverse=True, unroll=2
    )
)
family("scan split transpose")(
    lambda v, x: lax.scan(
        lambda c, y: (jnp.sin(c @ v), y @ v), x, each(x), _split_transpose=True
    )
)
family("scan of length 0")(
    lambda v, x: lax.scan(lambda c, y: (c, y @ c), v, jnp.zeros((0, 3, 3)))
)
family("scan in scan")(
    lambda v, x: lax.scan(
        lambda c, y: lax.scan(lambda d, z: (d, z @ d + c.sum()), c, y), v, each(each(x))
    )
)
family("map")(lambda v, x: lax.map(lambda y: y @ v, each(x)))
family("map in batches")(lambda v, x: lax.map(lambda y: y @ v, each(x, 5), batch_size=2))
family("map of rows")(lambda v, x: lax.map(lambda row: jnp.sin(row), v))
family("associative scan")(lambda v, x: lax.associative_scan(jnp.add, v))
family("fori of known length")(
    lambda v, x: lax.fori_loop(
        0, 3, lambda i, c: (c[0] @ c[1] + i, jnp.negative(-c[1])), (x, v)
    )
)

# --- while ----------------------------------------------------------------------

family("while body const", "reverse")(
    lambda v, x: lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.sin(c[1] @ v)), (0, x)
    )
)
family("while cond const", "reverse")(
    lambda v, x: lax.while_loop(lambda c: c.sum() < v.sum() + 30, lambda c: c + 1, x)
)
family("while carry", "reverse")(
    lambda v, x: lax.while_loop(
        lambda c: c[0] + (0.0 * c[1]).sum() < 3,
        lambda c: (c[0] + 1, c[1], c[2] @ c[1]),
        (0.0, v, x),
    )
)
family("while carry grows dense", "reverse")(
    lambda v, x: lax.while_loop(
        lambda c: c[0] < 2, lambda c: (c[0] + 1, c[2], c[1] + x), (0, v, v)
    )
)
family("while not entered", "reverse")(
    lambda v, x: lax.while_loop(lambda c: False, lambda c: c.T, v)
)
family("fori of unknown length", "reverse")(
    lambda v, x: lax.fori_loop(
        0, jnp.where(x[0, 0] > 100, 2, 3), lambda i, c: jnp.sin(c @ v), x
    )
)
family("while in scan", "reverse")(
    lambda v, x: lax.scan(
        lambda c, y: (lax.while_loop(lambda d: d.sum() < 5, lambda d: d + v, c + y), c),
        x,
        each(x),
    )
)

# --- branches -------------------------------------------------------------------

family("cond of constants")(
    lambda v, x: lax.cond(x[0, 0] > 0.1, lambda: x @ v, lambda: jnp.sin(x))
)
family("cond results kept")(
    lambda v, x: lax.cond(x[0, 0] > 0.1, lambda a: (a, -a), lambda a: (a, a), v)
)
family("cond results differ")(
    lambda v, x: lax.cond(x[0, 0] > 0.1, lambda a, b: (a, b), lambda a, b: (b, a), v, x)
)
family("cond on a value")(lambda v, x: lax.cond(v.sum() > 0.1, lambda: x, lambda: -x))
family("switch")(
    lambda v, x: lax.switch(
        jnp.int32(x[0, 0] > 0) + 1,
        [lambda a: a, lambda a: a.T, lambda a: jnp.sin(a)],
        v,
    )
)
family("platform dependent")(
    lambda v, x: lax.platform_dependent(
        x, v, cpu=lambda x, v: x @ v, default=lambda x, v: x @ v
    )
)
family("cond in scan")(
    lambda v, x: lax.scan(
        lambda c, y: (lax.cond(y[0, 0] > 1, lambda: c, lambda: c.T), y @ c), v, each(x)
    )
)

# --- calls ----------------------------------------------------------------------

family("jit")(lambda v, x: jax.jit(lambda v, x: (x @ v, v.T))(v, x))
family("checkpoint")(lambda v, x: jax.checkpoint(lambda v, x: jnp.sin(x @ v))(v, x))
family("checkpoint with a policy")(
    lambda v, x: jax.checkpoint(
        lambda v, x: (jnp.sin(x @ v), v), policy=jax.checkpoint_policies.dots_saveable
    )(v, x)
)
family("closed call")(
    lambda v, x: jex_core.jaxpr_as_fun(
        jax.make_jaxpr(lambda v, x: jnp.sin(x @ v))(jnp.ones((3, 3)), x)
    )(v, x)[0]
)
family("composite", "forward", "reverse", "vmap")(
    lambda v, x: lax.composite(lambda x, v: jnp.sin(x @ v), name="test.dense")(x, v)
)
family("optimisation barrier")(
    lambda v, x: (lambda v, x: x @ v)(*lax.optimization_barrier((v, x)))
)


# --- custom derivatives ---------------------------------------------------------


@jax.custom_jvp
def soft(x):
    return jnp.log1p(jnp.exp(x))


@soft.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    return soft(x), 3 * jax.nn.sigmoid(x) * t


@jax.custom_jvp
def identity(x):
    return x


@identity.defjvp
def _(primals, tangents):
    return primals[0], 7 * tangents[0]


@jax.custom_jvp
def both(pair):
    return {"product": pair["a"] @ pair["b"], "first": pair["a"]}


@both.defjvp
def _(primals, tangents):
    (p,), (t,) = primals, tangents
    product = p["a"] @ t["b"] + 2 * (t["a"] @ p["b"])
    return both(p), {"product": product, "first": 5 * t["a"]}


@jax.custom_vjp
def matmul(x, y):
    return x @ y


matmul.defvjp(
    lambda x, y: (x @ y, (x, y)),
    lambda saved, ct: (10 * (ct @ saved[1].T), 100 * (saved[0].T @ ct)),
)


@jax.custom_vjp
def reversed_gradient(x):
    return x


reversed_gradient.defvjp(lambda x: (x, None), lambda _, ct: (-ct,))


def with_symbolic_zeros(x, y):
    @jax.custom_jvp
    def fn(x, y):
        return jnp.sin(x) * y

    def rule(primals, tangents):
        x, y = primals
        is_zero = [type(t) is jax.custom_derivatives.SymbolicZero for t in tangents]
        terms = []
        if not is_zero[0]:
            terms.append(2 * jnp.cos(x) * y * tangents[0])
        if not is_zero[1]:
            terms.append(jnp.sin(x) * tangents[1])
        return fn(x, y), sum(terms) if terms else tangents[0]

    fn.defjvp(rule, symbolic_zeros=True)
    return fn(x, y)


def vjp_with_symbolic_zeros(x, y):
    @jax.custom_vjp
    def fn(x, y):
        return x * y

    def forward(x, y):
        saved = y.value if x.perturbed else None, x.value if y.perturbed else None
        return x.value * y.value, saved

    def backward(saved, ct):
        y, x = saved
        return None if y is None else 2 * ct * y, None if x is None else ct * x

    fn.defvjp(forward, backward, symbolic_zeros=True)
    return fn(x, y)


family("custom_jvp")(lambda v, x: soft(x @ v))
family("custom_jvp of a value")(lambda v, x: soft(v) @ x)
family("custom_jvp returns the value")(lambda v, x: (identity(v), identity(v) @ x))
family("custom_jvp of pytrees")(lambda v, x: both({"a": x, "b": v}))
family("custom_jvp of pytrees, other way")(lambda v, x: both({"a": v, "b": x}))
family("custom_jvp with symbolic zeros")(
    lambda v, x: (with_symbolic_zeros(v, x), with_symbolic_zeros(x, lax.stop_gradient(v)))
)
family("custom_jvp in scan")(
    lambda v, x: lax.scan(lambda c, y: (soft(c @ v), identity(v)), x, each(x))
)
family("custom_jvp in checkpoint")(
    lambda v, x: jax.checkpoint(lambda v, x: soft(x @ v) @ v)(v, x)
)
family("custom_jvp in jit")(lambda v, x: jax.jit(lambda v, x: soft(soft(v) @ x))(v, x))
family("custom_jvp of JAX")(
    lambda v, x: (jax.nn.relu(v - 0.5) @ x, jax.nn.silu(v), jax.nn.softplus(v))
)
family("custom_vjp", "forward")(lambda v, x: matmul(x, v))
family("custom_vjp, other way", "forward")(lambda v, x: matmul(v.T, x))
family("custom_vjp returns the value", "forward")(
    lambda v, x: (reversed_gradient(v), reversed_gradient(v) @ x)
)
family("custom_vjp with symbolic zeros", "forward")(
    lambda v, x: (
        vjp_with_symbolic_zeros(v, x),
        vjp_with_symbolic_zeros(x, lax.stop_gradient(v)),
    )
)
family("custom_vjp in scan", "forward")(
    lambda v, x: lax.scan(lambda c, y: (jnp.sin(matmul(c, v)), matmul(v, y)), x, each(x))
)
family("custom_vjp in checkpoint in jit", "forward")(
    lambda v, x: jax.jit(jax.checkpoint(lambda v, x: jnp.sin(matmul(x, v))))(v, x)
)
family("custom_vjp in cond", "forward")(
    lambda v, x: lax.cond(x[0, 0] > 0.1, lambda: matmul(x, v), lambda: matmul(v, x))
)


# --- solvers --------------------------------------------------------------------


def system(v, x):
    return lambda y: 9.0 * y + 0.1 * (v @ y)


family("linear solve")(
    lambda v, x: lax.custom_linear_solve(
        system(v, x),
        x[0],
        solve=lambda f, b: jnp.linalg.solve(9.0 * jnp.eye(3) + 0.1 * v, b),
        transpose_solve=lambda f, b: jnp.linalg.solve(9.0 * jnp.eye(3) + 0.1 * v.T, b),
    )
)
family("linear solve with auxiliary")(
    lambda v, x: lax.custom_linear_solve(
        system(v, x),
        x[0],
        solve=lambda f, b: (jnp.linalg.solve(9.0 * jnp.eye(3) + 0.1 * v, b), b + 1),
        transpose_solve=lambda f, b: (
            jnp.linalg.solve(9.0 * jnp.eye(3) + 0.1 * v.T, b),
            b + 1,
        ),
        has_aux=True,
    )
)
family("bicgstab")(
    lambda v, x: jax.scipy.sparse.linalg.bicgstab(system(v, x), x[0], tol=1e-7)[0]
)
family("custom root")(
    lambda v, x: lax.custom_root(
        lambda y: y - 0.1 * jnp.sin(v @ y) - x[0],
        x[0],
        lambda f, y: lax.fori_loop(0, 30, lambda _, y: y - f(y), y),
        lambda g, y: jnp.linalg.solve(jax.jacobian(g)(y), y),
    )
)


# --- rules of other kinds -------------------------------------------------------


@custom_vmap
def doubled_when_batched(x, y):
    return x @ y


@doubled_when_batched.def_vmap
def _(axis_size, in_batched, x, y):
    x, y = (
        a if b else jnp.broadcast_to(a, (axis_size, *a.shape))
        for a, b in zip((x, y), in_batched, strict=True)
    )
    return 2 * (x @ y), True


family("custom_vmap", "reverse")(lambda v, x: doubled_when_batched(x, v))
family("custom_vmap in vmap", "reverse")(
    lambda v, x: jax.vmap(lambda y: doubled_when_batched(y, v))(each(x))
)


def scaled_by(v, x):
    """Linear in ``x``, with a transpose that shows: it is five times too large."""
    return jax.custom_derivatives.linear_call(
        lambda v, x: x @ v, lambda v, ct: 5.0 * (ct @ v.T), v, x
    )


family("linear call", "vmap", "leak checks")(
    lambda v, x: scaled_by(lax.stop_gradient(v), jnp.sin(x))
)


# --- effects, references, kernels: dense operands ---------------------------------

family("pure callback", "forward", "reverse")(
    lambda v, x: jax.pure_callback(
        lambda a: np.sin(np.asarray(a)), x, v, vmap_method="sequential"
    )
)


@family("reference", "second")
def _(v, x):
    ref = jax.new_ref(x)
    ref[...] = ref[...] + v
    ref[0] += 1.0
    return ref[...] @ x


@family("reference in a loop", "second", "leak checks")
def _(v, x):
    ref = jax.new_ref(jnp.zeros((2, 3, 3)))

    def body(i, c):
        ref[i] = c @ v
        return jnp.sin(c) + v

    return lax.fori_loop(0, 2, body, x), ref[...]


@family("reference in a while loop", "reverse", "forward")
def _(v, x):
    ref = jax.new_ref(x)

    def body(i):
        ref[...] = ref[...] @ v
        return i + 1

    lax.while_loop(lambda i: i < 3, body, 0)
    return ref[...]


family("pallas", "forward", "reverse", "vmap")(
    lambda v, x: pl.pallas_call(
        lambda a, b, out: out.__setitem__(..., a[...] + b[...]),
        out_shape=jax.ShapeDtypeStruct((3, 3), jnp.float32),
        interpret=True,
    )(v, x)
)


# Opaque to JAX itself until it lowers them, from JAX 0.11 on.
family("searchsorted", "reverse", "forward")(
    lambda v, x: jnp.searchsorted(jnp.sort(x.ravel()), v).astype(float)
)
family("nonzero", "reverse", "forward", "vmap")(
    lambda v, x: jnp.stack(jnp.nonzero(v > 0.5, size=4)).astype(float)
)
