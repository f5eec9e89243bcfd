"""Values are made of arrays: of JAX or NumPy, known while JAX traces or not, in one program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxrewrite
from jaxrewrite import values
from jaxrewrite.testing import assert_same
from jaxrewrite.values import Interval
from jaxrewrite.values._base import structured


LOWER = np.tri(6, dtype=np.float32)
FULL = np.arange(1, 37, dtype=np.float32).reshape(6, 6) ** 2
RING = np.stack([np.roll(np.arange(6, dtype=np.float32), i) for i in range(6)], 1)
NAN = np.full((6, 6), np.nan, np.float32)

# How a value is made of an array, one that is accepted, and one that is not.
MAKERS = {
    "Quantised": (values.Quantised.quantise, FULL, NAN),
    "NF4": (lambda x: values.NF4.quantise(x, 6), FULL, NAN),
    "Float8": (values.Float8.quantise, FULL, NAN),
    "Microscaled": (lambda x: values.Microscaled.quantise(x, block=6), FULL, NAN),
    "NMSparse.prune": (lambda x: values.NMSparse.prune(x, 2, 3), FULL, NAN),
    "NMSparse": (lambda x: values.NMSparse.from_dense(x, 2, 3), np.eye(6), FULL),
    "Sparse": (lambda x: values.Sparse.from_dense(x, nse=21), LOWER, FULL),
    "Sparse of all": (values.Sparse.from_dense, LOWER, None),
    "Triangular": (values.Triangular.from_dense, LOWER, FULL),
    "Banded": (lambda x: values.Banded.from_dense(x, 1, 1), np.eye(6), FULL),
    "Tridiagonal": (values.Tridiagonal.from_dense, np.eye(6), FULL),
    "Symmetric": (values.Symmetric.from_dense, FULL + FULL.T, FULL),
    "BlockDiagonal": (lambda x: values.BlockDiagonal.from_dense(x, 2), np.eye(6), FULL),
    "Toeplitz": (values.Toeplitz.from_dense, RING, FULL),
    "Circulant": (values.Circulant.from_dense, RING, FULL),
    "Permutation": (values.Permutation.from_dense, np.eye(6)[::-1], FULL),
    "OneHot": (values.OneHot.from_dense, np.eye(6)[::-1], FULL),
}


@pytest.mark.parametrize("as_array", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
@pytest.mark.parametrize("name", MAKERS)
def test_arrays_that_are_known_while_jax_traces(name, as_array):
    make, good, bad = MAKERS[name]
    x = as_array(np.asarray(good, np.float32))
    want = make(x).materialise()
    assert_same(jax.jit(lambda: make(x).materialise())(), want, 1e-6)
    assert_same(jax.vmap(lambda t: t + make(x).materialise())(jnp.zeros(2))[1], want, 1e-6)
    jax.grad(lambda t: (t * make(x).materialise()).sum())(2.0)
    if bad is None:
        return
    x = as_array(np.asarray(bad, np.float32))
    for call in (make, lambda x: jax.jit(lambda: make(x).materialise())()):
        with pytest.raises(ValueError, match=name.split(".")[0].split()[0]):
            call(x)


@pytest.mark.parametrize(
    "name", ["Triangular", "Banded", "Tridiagonal", "BlockDiagonal", "Toeplitz"]
)
def test_a_nan_stays_where_it_is(name):
    make, good, _ = MAKERS[name]
    x = np.array(good, np.float32)
    x[0, 0] = np.nan
    if name == "Toeplitz":
        x[np.diag_indices(6)] = np.nan
    np.testing.assert_array_equal(np.asarray(make(x).materialise()), x)


def test_a_nan_elsewhere_is_not_a_zero():
    x = np.tri(6, dtype=np.float32)
    x[0, 5] = np.nan
    with pytest.raises(ValueError, match="upper triangle"):
        values.Triangular.from_dense(x)


def test_a_circulant_matrix_holds_an_array_of_numpy():
    v = values.Circulant(RING[:, 0])
    assert_same(jax.jit(lambda: jaxrewrite.materialise(v))(), RING, 1e-6)


def test_an_interval_of_which_one_bound_is_known():
    between = lambda upper: Interval(np.zeros(2, np.float32), upper)
    assert_same(jax.jit(between)(jnp.ones(2)).upper, np.ones(2), 1e-6)


@pytest.mark.parametrize("name", ["Quantised", "NF4", "Float8", "Microscaled"])
def test_arrays_are_quantised_by_one_program(name):
    make, good, _ = MAKERS[name]
    quantise = jax.make_jaxpr(lambda w: jax.tree.leaves(make(w)))(jnp.asarray(good))
    decode = jax.make_jaxpr(lambda v: v.materialise())(make(jnp.asarray(good)))
    assert [len(program.eqns) for program in (quantise, decode)] == [1, 1]


# --- arrays that have a structure ---------------------------------------------------------

# How a value is made of an array that has its structure, and a random such array.
RANDOM = np.random.default_rng(1).normal(size=(6, 6))
RANDOM_RING = np.stack([np.roll(RANDOM[0], i) for i in range(6)], 1)
STRUCTURED = {
    "Triangular": (values.Triangular.from_dense, np.tril(RANDOM)),
    "Banded": (lambda x: values.Banded.from_dense(x, 1, 0), np.tril(np.triu(RANDOM, -1))),
    "Tridiagonal": (
        values.Tridiagonal.from_dense,
        np.tril(np.triu(RANDOM, -1), 1),
    ),
    "Symmetric": (values.Symmetric.from_dense, RANDOM + RANDOM.T),
    "BlockDiagonal": (
        lambda x: values.BlockDiagonal.from_dense(x, 2),
        np.kron(np.eye(2), RANDOM[:3, :3]),
    ),
    "Toeplitz": (values.Toeplitz.from_dense, RANDOM_RING),
    "Circulant": (values.Circulant.from_dense, RANDOM_RING),
    "NMSparse": (lambda x: values.NMSparse.from_dense(x, 1, 3), np.diag(RANDOM[0])),
    "Permutation": (values.Permutation.from_dense, np.eye(6)[::-1]),
    "OneHot": (values.OneHot.from_dense, np.eye(6)[[1, 1, 3]]),
}


@pytest.mark.parametrize("name", STRUCTURED)
def test_numpy_arrays_of_64_bits_have_their_structure_in_32_bits(name):
    make, x = STRUCTURED[name]
    got = jaxrewrite.materialise(make(x))
    np.testing.assert_array_equal(np.asarray(got), x.astype(got.dtype))


@pytest.mark.parametrize("as_array", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
@pytest.mark.parametrize("name", ["Triangular", "Banded", "Tridiagonal"])
def test_a_subnormal_number_is_not_zero(name, as_array):
    make, x = STRUCTURED[name]
    x = np.array(x, np.float32)
    x[0, 5] = 1e-40
    with pytest.raises(ValueError, match=name):
        make(as_array(x))


@pytest.mark.parametrize("name", STRUCTURED)
def test_checks_leave_arrays_on_their_devices(name, monkeypatch, xla):
    make, x = STRUCTURED[name]
    x = jnp.asarray(x, jnp.float32)
    monkeypatch.setattr(
        type(x), "__array__", lambda *args, **kwargs: pytest.fail("the array is fetched")
    )
    monkeypatch.setattr(type(x), "__buffer__", None, raising=False)
    monkeypatch.setattr(structured, "is_on_cpu", lambda x: False)
    make(x)


def test_checks_of_arrays_in_memory_compile_nothing(caplog, xla):
    lower, upper = jnp.zeros(3), jnp.ones(3)
    with jax.log_compiles():
        Interval(lower, upper)
    assert "Compiling" not in caplog.text


def test_indices_whose_dtype_does_not_hold_the_number_of_classes():
    for indices in (np.array([0, 127], np.int8), jnp.array([0, 127], jnp.int8)):
        assert values.OneHot(indices, 1000).shape == (2, 1000)
        assert values.OneHot(0 * indices, 1).shape == (2, 1)
        with pytest.raises(ValueError, match="indices"):
            values.OneHot(indices, 127)


WITH_SIZES = {
    "Zero: of_shape": (lambda n: values.Zero((2, n)), (2, 3)),
    "Constant: of_shape": (lambda n: values.Constant(1.0, (2, n)), (2, 3)),
    "Identity: rows": (values.Identity, (3, 3)),
    "ScalarMatrix: rows": (lambda n: values.ScalarMatrix(jnp.ones(()), n), (3, 3)),
    "OneHot: classes": (lambda n: values.OneHot(jnp.array([0]), n), (1, 3)),
    "Picked: classes": (lambda n: values.Picked(jnp.ones(1), jnp.array([0]), n), (1, 3)),
    "Banded: lower": (lambda n: values.Banded(jnp.ones((4, 5)), n, 0), (5, 5)),
}


@pytest.mark.parametrize("field", WITH_SIZES)
def test_sizes_are_integers(field):
    make, shape = WITH_SIZES[field]
    for size in (3, np.int64(3), jnp.array(3)):
        v = make(size)
        assert v.shape == shape and isinstance(hash(jax.tree.structure(v)), int)
    for size in (3.0, "3", None, (3, 3)):
        with pytest.raises(TypeError, match=f"{field} is .*, not an integer"):
            make(size)
    with pytest.raises(ValueError, match=f"{field} is -1, which is negative"):
        make(-1)


WITH_FLAGS = {
    "Triangular: lower": lambda flag: values.Triangular(jnp.eye(2), flag),
    "Symmetric: positive": lambda flag: values.Symmetric(jnp.eye(2), flag),
    "NMSparse: in_rows": lambda flag: values.NMSparse(
        jnp.ones((1, 1, 1)), jnp.zeros((1, 1, 1), int), in_rows=flag
    ),
}


@pytest.mark.parametrize("field", WITH_FLAGS)
def test_flags_are_booleans(field):
    for flag in (True, np.bool_(False)):
        assert isinstance(WITH_FLAGS[field](flag), jaxrewrite.Value)
    for flag in ("upper", None, 1):
        with pytest.raises(TypeError, match=f"{field} is {flag!r}, not True or False"):
            WITH_FLAGS[field](flag)


def test_a_shape_may_be_one_size():
    assert values.Zero(3).shape == values.Constant(1.0, 3).shape == (3,)


@pytest.mark.filterwarnings("ignore:.*truncated")
@pytest.mark.parametrize("dtype", [int, float, complex, "float64", "int8"])
def test_dtypes_are_those_of_jax_in_32_bits(dtype):
    """As those of `jnp.zeros`, which has 32 bits where 64 are not on."""
    x = jnp.ones(2, dtype)
    for v in (
        values.Zero((2, 2), dtype),
        values.Identity(2, dtype),
        values.OneHot(jnp.array([0, 1]), 2, of_dtype=dtype),
        values.Permutation(jnp.array([1, 0]), dtype),
    ):
        assert v.dtype == jaxrewrite.materialise(v).dtype == x.dtype
        assert_same(jaxrewrite.numpy.matmul(v, x), v.materialise() @ x, 0)
        added = jaxrewrite.transform(jax.lax.add, materialise="allow")(v, v.materialise())
        assert_same(added, 2 * v.materialise(), 0)


def test_weights_are_pruned_by_one_program():
    program = jax.make_jaxpr(lambda w: jax.tree.leaves(values.NMSparse.prune(w)))
    assert len(program(jnp.ones((8, 3))).eqns) == 1


@pytest.mark.parametrize("format", ["bcoo", "bcsr", "bcsc"])
def test_entries_are_gathered_by_one_program(format):
    make = lambda w: values.Sparse.from_dense(w, nse=6, format=format)
    w = jnp.asarray(np.diag(RANDOM[0]), jnp.float32)
    assert len(jax.make_jaxpr(lambda w: jax.tree.leaves(make(w)))(w).eqns) == 1
    for v in (make(w), values.Sparse.from_dense(w, format=format)):
        np.testing.assert_array_equal(jaxrewrite.materialise(v), w)


SMALL = np.arange(1.0, 17.0, dtype=np.float32).reshape(4, 4) / 16


@pytest.mark.parametrize(
    "make", [values.Quantised, values.NF4, values.Float8, values.Microscaled]
)
def test_a_value_is_quantised_as_its_dense_array(make):
    d = jnp.asarray(SMALL[0])
    got = make.quantise(values.Diagonal(d), block=2)
    want = make.quantise(jnp.diag(d), block=2)
    np.testing.assert_array_equal(*map(jaxrewrite.materialise, (got, want)))


@pytest.mark.parametrize("format", ["bcoo", "bcsr", "bcsc"])
@pytest.mark.parametrize("nse", [None, 6])
def test_a_sparse_matrix_is_made_of_booleans(format, nse):
    v = values.Sparse.from_dense(np.eye(4, dtype=bool), nse=nse, format=format)
    np.testing.assert_array_equal(jaxrewrite.materialise(v), np.eye(4))
