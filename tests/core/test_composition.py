"""`transform` among JAX's other transformations, in any order."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import every, often
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P
from oracle import allow as transform, assert_same_leaves

import jaxrewrite


class Scaled(jaxrewrite.ArrayValue):
    """``x * s``, which is bilinear in its leaves."""

    x: jax.Array
    s: jax.Array

    def materialise(self):
        return self.x * self.s


@jaxrewrite.register("neg")
def _(v: Scaled):
    return Scaled(-v.x, v.s)


X = jnp.array([0.3, -0.2, 0.5])
V = Scaled(X, jnp.float32(2.0))
DENSE = X * 2


close = functools.partial(assert_same_leaves, tolerance=1e-4)


def of_dense(fn):
    return lambda v, *args: fn(jaxrewrite.materialise(v), *args)


@pytest.fixture
def mesh():
    return jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))


def loop(a, xs):
    return lax.scan(lambda c, x: (c * x + a, c), jnp.ones(3), xs)[0].sum()


@jax.custom_jvp
def wrong_slope(x, y):
    return jnp.sin(x) * y


@wrong_slope.defjvp
def _(primals, tangents):
    return wrong_slope(*primals), 100.0 * tangents[0] + tangents[1]


@jax.custom_vjp
def wrong_pullback(x, y):
    return jnp.sin(x) * y


wrong_pullback.defvjp(
    lambda x, y: (wrong_pullback(x, y), (x, y)),
    lambda res, ct: (1000.0 * ct * res[1], ct * res[0]),
)

SCALAR_FUNCTIONS = [
    lambda a: jnp.sin(-a).sum(),
    lambda a: loop(-a, jnp.arange(6.0).reshape(2, 3) / 7),
    lambda a: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2), (0, -a))[
        1
    ].sum(),
    lambda a: lax.cond(a[0] > 0, lambda a: -a, lambda a: a + 1.0, a).sum(),
    lambda a: lax.switch(jnp.arange(2)[1], [jnp.cos, jnp.sin], -a).sum(),
    lambda a: jax.checkpoint(lambda a: jnp.sin(jnp.sin(-a)))(a).sum(),
    lambda a: wrong_slope(-a, X).sum(),
    lambda a: wrong_pullback(-a, X).sum(),
    lambda a: (jax.nn.relu(a) + jax.nn.softplus(a)).sum() + jax.nn.logsumexp(a),
    lambda a: lax.fori_loop(0, 3, lambda i, c: c + a * i, jnp.zeros(3)).sum(),
    lambda a: lax.map(jnp.sin, a).sum(),
    lambda a: lax.associative_scan(jnp.add, -a)[1],
    lambda a: jnp.linalg.solve(jnp.eye(3) + jnp.outer(a, a), a).sum(),
]
IDS = range(len(SCALAR_FUNCTIONS))


@pytest.mark.parametrize("i", every(2, IDS, 1))
def test_forward(i):
    fn = SCALAR_FUNCTIONS[i]
    want = jax.jit(fn)(DENSE)
    close(transform(fn)(V), want)
    ways = [transform(fn), transform(jax.jit(fn)), transform(transform(fn))]
    for got in jax.jit(lambda v: [way(v) for way in ways])(V):
        close(got, want)


@pytest.mark.parametrize("i", every(4, IDS))
def test_gradients(i):
    fn = SCALAR_FUNCTIONS[i]
    if i == 2:
        tangent = Scaled(jnp.ones(3), jnp.float32(0.5))
        close(
            jax.jvp(transform(fn), (V,), (tangent,)),
            jax.jvp(of_dense(fn), (V,), (tangent,)),
        )
        return
    want = jax.jit(jax.grad(of_dense(fn)))(V)
    close(jax.grad(transform(fn))(V), want)
    ways = [transform(fn), jax.jit(transform(fn)), jax.checkpoint(transform(fn))]
    for got in jax.jit(lambda v: [jax.grad(way)(v) for way in ways])(V):
        close(got, want)
    inside = lambda v: jaxrewrite.materialise(transform(jax.grad(fn))(v))
    close(jax.jit(inside)(V), jax.jit(jax.grad(fn))(DENSE))


@pytest.mark.parametrize("i", every(2, IDS, 1))
def test_batched(i):
    fn = SCALAR_FUNCTIONS[i]
    batch = Scaled(jnp.stack([X, X + 1]), jnp.array([2.0, 3.0]))
    dense = jax.jit(fn)
    close(jax.vmap(transform(fn))(batch), jnp.stack([dense(X * 2), dense((X + 1) * 3)]))
    whole = Scaled(jnp.stack([X, X + 1]), jnp.float32(2.0))
    want = jnp.stack([dense(X * 2), dense((X + 1) * 2)])
    close(jax.jit(transform(jax.vmap(fn)))(whole), want)


@pytest.mark.parametrize("i", often((0, 8), (8,)))
def test_second_derivatives(i):
    fn = SCALAR_FUNCTIONS[i]
    of_x = lambda x: transform(fn)(Scaled(x, jnp.float32(2.0)))
    want = jax.jit(jax.hessian(lambda x: fn(2 * x)))(X)
    close(jax.jit(jax.hessian(of_x))(X), want)
    close(jax.jacfwd(jax.jacrev(of_x))(X), want)


def test_linearize_and_vjp():
    tangent = Scaled(X, jnp.float32(0.5))
    want, want_tangent = jax.jvp(of_dense(jnp.sin), (V,), (tangent,))
    out, linear = jax.linearize(transform(jnp.sin), V)
    close(out, want)
    close(linear(tangent), want_tangent)
    _, pull = jax.vjp(transform(jnp.sin), V)
    close(pull(jnp.ones(3)), jax.vjp(of_dense(jnp.sin), V)[1](jnp.ones(3)))


def test_integer_leaves_have_float0_cotangents():
    class Permuted(jaxrewrite.ArrayValue):
        x: jax.Array
        index: jax.Array

        def materialise(self):
            return self.x[self.index]

    v = Permuted(X, jnp.array([2, 0, 1]))
    grad = jax.grad(transform(lambda a: (a * jnp.arange(3.0)).sum()), allow_int=True)(v)
    assert grad.index.dtype == jax.dtypes.float0
    close(grad.x, jnp.array([1.0, 2.0, 0.0]))


def test_key_leaves():
    class Noise(jaxrewrite.ArrayValue):
        key: jax.Array
        s: jax.Array

        def materialise(self):
            return jax.random.normal(self.key, (3,)) * self.s

    keys = jax.random.split(jax.random.key(1), 4)
    noises = jax.vmap(lambda k: Noise(k, jnp.float32(2.0)))(keys)
    want = jnp.stack([jax.random.normal(k, (3,)) * 2 for k in keys])
    close(jax.vmap(transform(lambda a: a + 0.0))(noises), want)


def test_eval_shape():
    out = jax.eval_shape(transform(lambda a: -a), V)
    assert isinstance(out, Scaled)
    assert isinstance(out.x, jax.ShapeDtypeStruct)


def test_results_of_other_kinds():
    def fn(a, n, flag, name="q"):
        return (-a if flag else a), name, None, jnp.arange(n), jnp.sin, {"k": (a, 1.5)}

    out = transform(fn)(V, 3, True, name="zz")
    close(jaxrewrite.materialise(out[0]), -DENSE)
    assert out[1:3] == ("zz", None)
    assert out[4] is jnp.sin
    assert out[5]["k"][1] == 1.5
    assert isinstance(out[5]["k"][0], Scaled)


def test_collectives():
    total = lambda a: lax.psum(a, "b")
    batch = Scaled(jnp.ones((4, 3)), jnp.arange(4.0))
    close(jax.vmap(transform(total), axis_name="b")(batch), 6 * np.ones((4, 3)))
    whole = Scaled(jnp.ones((4, 3)), jnp.float32(2.0))
    close(transform(jax.vmap(total, axis_name="b"))(whole), 8 * np.ones((4, 3)))


def test_a_collective_along_an_axis_of_the_array_and_one_around():
    fn = jax.vmap(lambda a: lax.psum(a, ("around", "own")), axis_name="own")
    run = transform(fn)
    batch = Scaled(jnp.ones((4, 2, 3)), jnp.arange(4.0))
    close(jax.vmap(run, axis_name="around")(batch), 12 * np.ones((4, 2, 3)))
    x = jnp.arange(24.0).reshape(4, 2, 3)
    lengths = jax.vmap(
        lambda x: run(jaxrewrite.values.Unitful(x, "m")), axis_name="around"
    )(x)
    assert lengths.units == jaxrewrite.values.Units("m")
    close(lengths.array, jax.vmap(fn, axis_name="around")(x))


def test_inside_and_around_shard_map(mesh):
    def body(x):
        fn = transform(lambda a, x: lax.psum(jnp.sin(a) * x, "i"))
        return fn(Scaled(x, jnp.float32(2.0)), x)

    inside = jax.shard_map(body, mesh=mesh, in_specs=P("i"), out_specs=P())
    x = jnp.arange(4.0)
    want = (jnp.sin(2 * x) * x).reshape(2, 2).sum(0)
    close(inside(x), want)
    close(jax.jit(inside)(x), want)

    around = jax.shard_map(
        lambda w, x: lax.psum(x @ w, "i"), mesh=mesh, in_specs=(P(), P("i")), out_specs=P()
    )
    w = Scaled(jnp.eye(3), jnp.float32(3.0))
    rows = jnp.arange(6.0).reshape(2, 3)
    close(transform(around)(w, rows), around(w.materialise(), rows))


def test_sharded_leaves_stay_sharded(mesh):
    sharding = NamedSharding(mesh, P("i"))
    v = Scaled(jax.device_put(jnp.ones((4, 3)), sharding), jnp.float32(2.0))
    for fn in (transform(lambda a: -a), jax.jit(transform(lambda a: -a))):
        assert fn(v).x.sharding.is_equivalent_to(sharding, 2)


def test_explicitly_sharded_leaves():
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        rows = P("i", None)
        x = jax.device_put(jnp.arange(8.0).reshape(4, 2), NamedSharding(mesh, rows))
        v = Scaled(x, jnp.float32(2.0))

        def fn(a):
            return jnp.concatenate([a, jax.reshard(jnp.ones((4, 2)), rows)]) + (a * a).sum()

        close(transform(fn)(v), fn(2 * x))
        close(jax.jit(transform(fn))(v), fn(2 * x))


def test_arrays_that_jax_cannot_place_on_explicit_axes():
    class Taken(jaxrewrite.ArrayValue):
        x: jax.Array
        rows: jax.Array

        def aval(self):
            return jax.core.ShapedArray((*self.rows.shape, 2), self.x.dtype)

        def materialise(self):
            return self.x[self.rows]

    class Found(Taken):  # its aval is that of the array
        aval = jaxrewrite.ArrayValue.aval

    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Explicit,))
    numbers, rows = np.arange(8.0).reshape(4, 2), np.array([2, 0])
    with jax.set_mesh(mesh):
        split = jax.device_put(numbers, NamedSharding(mesh, P("i", None)))
        for cls in (Taken, Found):
            v = cls(split, jnp.asarray(rows))
            close(jaxrewrite.materialise(v), numbers[rows])
            close(transform(lambda v: 2 * v)(v), 2 * numbers[rows])


def test_what_is_known_when_compiled():
    """JAX then runs the operations on arrays, and traces those on tracers."""
    fn = transform(lambda v, x: (jnp.sin(v) + x, -v))

    @jax.jit
    def compiled(v, x):
        with jax.ensure_compile_time_eval():
            (known, negative), (traced, _) = fn(V, X), fn(v, x)
        np.testing.assert_allclose(known, np.sin(DENSE) + np.array(X), rtol=1e-5)
        assert not isinstance(negative.x, jax.core.Tracer)
        return known + traced

    close(compiled(V, X), 2 * (jnp.sin(DENSE) + X))


def test_checkify():
    from jax.experimental import checkify

    def fn(a):
        checkify.check(a[0] > 10, "too small")
        return -a

    for checked in (transform(checkify.checkify(fn)), checkify.checkify(transform(fn))):
        error, _ = checked(V)
        assert "too small" in error.get()


def test_pallas_takes_dense_operands():
    pallas = pytest.importorskip("jax.experimental.pallas")

    def kernel(i, o):
        o[...] = i[...] + 1

    shape = jax.ShapeDtypeStruct((3,), jnp.float32)
    fn = lambda a: pallas.pallas_call(kernel, out_shape=shape, interpret=True)(a)
    close(transform(fn)(V), DENSE + 1)


def test_values_made_or_closed_over_inside():
    def fn(a):
        inner = Scaled(a, jnp.float32(3.0))
        return transform(lambda b: -b)(inner), a @ V

    made, product = transform(fn)(V)
    assert isinstance(made, Scaled)
    close(jaxrewrite.materialise(made), -DENSE * 3)
    close(product, DENSE @ DENSE)
