"""Programs with symbolic sizes, as `jax.export` has them, for a model of any batch size."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from choose import often
from jax import lax
from oracle import allow, make, materialised

import jaxrewrite
from jaxrewrite._axes import sizes
from jaxrewrite.testing import assert_same
from jaxrewrite.values import (
    Circulant,
    Diagonal,
    Interval,
    LowRank,
    Permutation,
    Sum,
    Toeplitz,
    Tridiagonal,
)


(B,) = jax.export.symbolic_shape("b")
N = M = 4


def floats(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def indices(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def attention(v, x):
    q = x @ v
    weights = jax.nn.softmax(jnp.einsum("btd,bsd->bts", q, jnp.tanh(q)))
    return weights @ q @ v.T


# Programs of a matrix and of data, and the type of the data. In the first ones a weight stays
# implicit.
IMPLICIT = {
    "rows": (lambda v, x: x @ v, floats(B, N)),
    "columns": (lambda v, x: v @ x.T, floats(B, M)),
    "lookup": (lambda v, i: v[i], indices(B)),
    "rows of each": (lambda v, i: jax.vmap(lambda i: v[i] @ jnp.ones(M))(i), indices(B)),
    "merged": (lambda v, x: (x @ v).reshape(-1), floats(B, 3, N)),
    "layers": (
        lambda v, x: lax.scan(lambda c, _: (c @ v @ v.T, None), x, None, length=2)[0],
        floats(B, N),
    ),
    "gradient": (jax.grad(lambda v, x: (jnp.tanh(x @ v) ** 2).sum(), 1), floats(B, N)),
    "attention": (attention, floats(B, 3, N)),
}
DENSE = {
    "scaled": (lambda v, x: (v * x).sum(0), floats(B, 1, 1)),
    "side by side": (lambda v, x: jnp.concatenate([v * x, x * v]), floats(B, 1, 1)),
    "added": (lambda v, x: v * x + v, floats(B, 1, 1)),
    "repeated": (lambda v, x: jnp.tile(v, (x.shape[0], 1)), floats(B)),
    "stacked": (lambda v, x: jnp.stack([v * x, x * v]), floats(B, 1, 1)),
    "a window": (lambda v, x: (v * x)[:, 1:3], floats(B, 1, 1)),
    "one of all": (lambda v, x: (v * x)[0], floats(B, 1, 1)),
    "without an axis": (lambda v, x: (v * x).reshape(x.shape[0], -1), floats(B, 1, 1)),
    "a row of each": (lambda v, x: jax.vmap(lambda r: (v * r)[0])(x), floats(B)),
    "entries": (lambda v, i: v[i, i], indices(B)),
    "gradient of a lookup": (
        lambda v, i: jax.grad(lambda x: (v * x)[i].sum())(1.0),
        indices(B),
    ),
}
EXPERTS = lambda v, i: jnp.stack([v, 2 * v])[i], indices(B)

TYPES = (
    *("nf4", "microscaled", "quantised affine blocks", "low_rank", "lora", "product"),
    *("diagonal", "permutation", "sparse", "Named"),
)
# Those that stay implicit in all programs of `IMPLICIT`.
IN_FORM = ("nf4", "microscaled", "quantised affine blocks")


def everything(programs):
    return lambda v, data: {name: fn(v, data[name]) for name, (fn, _) in programs.items()}


def data_of(programs):
    return {name: data for name, (_, data) in programs.items()}


def concrete(size, data):
    """Data of this size."""
    shape = [size if n is B else n for n in data.shape]
    numbers = np.arange(np.prod(shape)).reshape(shape)
    return jnp.asarray(numbers % 2 + (data.dtype != jnp.int32), data.dtype)


# Those whose programs are exported in the default run; of the others they are traced alone.
EXPORTED = ("nf4", "permutation")


@pytest.mark.parametrize("name", [name for name in TYPES if name not in EXPORTED])
def test_programs_of_any_number_of_rows_are_traced(name, bulk):
    """Comparing sizes was an error, as a number may be less for some of them only."""
    programs = {**IMPLICIT, **DENSE, "experts": EXPERTS}
    fn = jaxrewrite.transform(everything(programs), materialise="allow")
    jax.eval_shape(fn, make(name, shape=(N, M)), data_of(programs))


@pytest.mark.parametrize("name", IN_FORM)
def test_weights_stay_implicit_for_any_number_of_rows(name, bulk):
    programs = {**IMPLICIT, "experts": EXPERTS}
    fn = jaxrewrite.transform(everything(programs), materialise="forbid")
    jax.eval_shape(fn, make(name, shape=(N, M)), data_of(programs))


@pytest.mark.parametrize("name", often(TYPES, EXPORTED))
def test_exported_programs_take_any_number_of_rows(name, bulk):
    programs, v = {**IMPLICIT, **DENSE, "experts": EXPERTS}, make(name, shape=(N, M))
    fn = jax.jit(materialised(everything(programs)))
    exported = jax.export.export(fn)(v, data_of(programs))
    data = jax.tree.map(functools.partial(concrete, 3), data_of(programs))
    assert_same(exported.call(v, data), fn(v, data), 1e-4)


def test_the_leaves_of_a_value_may_have_symbolic_sizes(bulk):
    fn = lambda v, x: (v @ x[..., None], (v + v)[0], jnp.linalg.det(v), v.reshape(-1, N))
    exported = jax.export.export(jax.jit(materialised(fn)))
    v, x = Diagonal(jnp.linspace(1, 2, 3 * N).reshape(3, N)), jnp.ones((3, N))
    program = exported(Diagonal(floats(B, N)), floats(B, N))
    assert_same(program.call(v, x), materialised(fn)(v, x), 1e-5)


(K,) = jax.export.symbolic_shape("k", constraints=["k >= 4"])


def spread(k):
    return jnp.linspace(1.0, 2.0, k).at[0].add(k)


MATRICES = {
    "circulant": (Circulant(floats(K)), lambda k: Circulant(spread(k))),
    "diagonal": (Diagonal(floats(K)), lambda k: Diagonal(spread(k))),
    "permutation": (
        Permutation(indices(K)),
        lambda k: Permutation(jnp.roll(jnp.arange(k), 2)),
    ),
    "sum": (
        Sum((Diagonal(floats(K)), LowRank(floats(K, 1), floats(1, K)))),
        lambda k: Sum((Diagonal(spread(k)), LowRank(jnp.ones((k, 1)), jnp.ones((1, k))))),
    ),
    "toeplitz": (Toeplitz(floats(K), floats(K)), lambda k: Toeplitz(*[spread(k)] * 2)),
    "tridiagonal": (
        Tridiagonal(floats(K - 1), floats(K), floats(K - 1)),
        lambda k: Tridiagonal(spread(k)[1:], 5 * spread(k), spread(k)[1:]),
    ),
}
ALGEBRA = {
    "product": lambda v, x: v @ x,
    "from the left": lambda v, x: x @ v @ v,
    "solve": jnp.linalg.solve,
    "inverse": lambda v, x: jnp.linalg.inv(v) @ x,
    "determinant": lambda v, x: jnp.linalg.slogdet(v),
    "triangle": lambda v, x: jnp.tril(v) @ x,
    "exponentials": lambda v, x: jnp.exp(v / 9) @ x,
    "inner product": lambda v, x: jnp.einsum("ij,ij->", v, v),
}


@pytest.mark.parametrize("kind", MATRICES)
def test_programs_of_matrices_of_any_size_are_traced(kind, bulk):
    symbolic, of_size = MATRICES[kind]
    fn = jaxrewrite.transform(
        lambda v, x: {name: program(v, x) for name, program in ALGEBRA.items()},
        materialise="allow",
    )
    jax.eval_shape(fn, symbolic, floats(K))


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGEBRA)
@pytest.mark.parametrize("kind", MATRICES)
def test_exported_programs_take_a_matrix_of_any_size(kind, name, bulk):
    symbolic, of_size = MATRICES[kind]
    fn = jax.jit(jaxrewrite.transform(ALGEBRA[name], materialise="allow"))
    exported = jax.export.export(fn)(symbolic, floats(K))
    for k in (4, 7):
        v, x = of_size(k), jnp.linspace(-1.0, 1.0, k)
        assert_same(exported.call(v, x), ALGEBRA[name](v.materialise(), x), 1e-3)


class Halved(jaxrewrite.ArrayValue):
    """An array of a user, who thinks of numbers."""

    x: jax.Array

    def materialise(self):
        return self.x / 2

    @staticmethod
    def default(primitive, values, params):
        return NotImplemented if values[0].size > 4 else -values[0].x / 2


@jaxrewrite.register("mul")
def _(v: Halved, x: jax.Array, **params):
    return v.x * (x / 2) if v.size > 4 else NotImplemented


def test_a_rule_declines_where_it_compares_symbolic_sizes():
    for fn in (lambda v: v * v.shape[0], lambda v: v * jnp.ones(v.shape), lambda v: -v):
        program = jax.export.export(jax.jit(allow(fn)))(Halved(floats(B)))
        x = jnp.arange(3.0)
        assert_same(program.call(Halved(x)), fn(x / 2))


def test_bounds_of_a_product_are_as_close_for_a_symbolic_size():
    """A sum of any length was taken for one of a million."""
    product = allow(lambda x, v: x @ v)
    exported = jax.export.export(jax.jit(product))(
        floats(K), Interval(floats(K), floats(K))
    )
    args = jnp.ones(5), Interval(jnp.arange(5.0), jnp.arange(5.0) + 1)
    bounds, expected = exported.call(*args), product(*args)
    assert_same((bounds.lower, bounds.upper), (expected.lower, expected.upper), 1e-6)


def test_what_is_known_of_sizes():
    assert sizes.is_less(B, 2 * B) and sizes.is_at_most(1, B)
    assert not sizes.is_less(B, 4) and not sizes.is_at_most(4, B)
    assert sizes.is_divisor(B, 4 * B) and not sizes.is_divisor(4, B)
    assert not sizes.is_divisor(0, 4)
    assert sizes.count_of(1, B, 1) == B - 1 and sizes.count_of(1, 6, 2) == 3
    assert sizes.least_bound(4 * B, B) == sizes.least_bound(B, 4 * B) == B
    assert sizes.least_bound(4, B) == 4 and sizes.least_bound(B, 4) == B
    assert sizes.common_divisor(B, 4 * B) == B and sizes.common_divisor(B, 4) == 1
    assert sizes.common_divisor(6, 4) == 2
    assert sizes.common_multiple(B, 1, 4 * B) == 4 * B and sizes.common_multiple(6, 4) == 12
    assert sizes.known(4) == 4
    with pytest.raises(jax.errors.InconclusiveDimensionOperation, match="b is not known"):
        sizes.known(B)
    with pytest.raises(jax.errors.InconclusiveDimensionOperation, match="b, 4 is not"):
        sizes.common_multiple(B, 4)
