"""Types that use only public names pass the same oracle as the ready types."""

import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_ready_types as ready
from choose import often
from jaxtyping import ArrayLike
from oracle import materialised
from reference import CASES, COMPLEX, FLOATS, Case, uniform

import jaxrewrite
from jaxrewrite import ArrayValue, values
from jaxrewrite.testing import assert_same, check_value


class Householder(values.Matrix):
    """A matrix: a reflection at the hyperplane perpendicular to a vector."""

    v: jax.Array

    def aval(self):
        return jax.core.ShapedArray((*self.v.shape, self.v.shape[-1]), self.v.dtype)

    def materialise(self):
        n = self.v.shape[-1]
        eye = jnp.broadcast_to(jnp.eye(n, dtype=self.v.dtype), self.shape)
        return self.apply(eye, len(self.batch))

    def apply(self, x, axis, precision=None):
        x = jnp.moveaxis(x, axis, -1)
        v = self.v.reshape(*self.batch, *(1,) * (x.ndim - self.v.ndim), -1)
        along = (x * v).sum(-1, keepdims=True) / (v * v).sum(-1, keepdims=True)
        return jnp.moveaxis(x - 2 * along * v, -1, axis)

    def transposed(self):
        return self

    def solve(self, x, axis):
        return self.apply(x, axis)

    def known_inverse(self):
        return self

    def known_determinant(self):
        return values.Determinant.of(jnp.full((*self.batch, 1), -1, self.dtype))


class Ternary(values.Coded):
    """A format of weights, by levels."""

    codes: jax.Array
    scale: jax.Array

    def levels(self):
        return self.codes.astype(self.scale.dtype)


class Stamped(values.Structured):
    """Something that an array carries: when it was last written to."""

    array: jax.Array
    time: int = jaxrewrite.field(static=True)

    outer = 5
    rules_see_values = True
    materialise_policy = "allow"

    def aval(self):
        return jax.core.ShapedArray(jnp.shape(self.array), self.array.dtype)

    def materialise(self):
        return self.array

    def sliceable(self):
        return self

    @staticmethod
    def default(primitive, operands, params):
        if primitive.name in jaxrewrite.primitives.IDENTITY:
            return NotImplemented
        time = max(x.time for x in operands if isinstance(x, Stamped))
        arrays = [x.array if isinstance(x, Stamped) else x for x in operands]
        results = jaxrewrite.bind(primitive, *arrays, **params)
        if primitive.multiple_results:
            return [Stamped(result, time) for result in results]
        return Stamped(results, time)


@values.annotation_rule(Stamped)
def _(*operands, primitive, **params):
    return Stamped.default(primitive, operands, params)


def _householder(rng, dtype, n, m):
    return Householder(uniform(rng, (n,), dtype))


def _ternary(rng, dtype, n, m):
    scale = uniform(rng, (1, m), dtype)
    return Ternary(jnp.asarray(rng.integers(-1, 2, (n, m)), jnp.int8), scale)


def _stamped(rng, dtype, n, m):
    return Stamped(uniform(rng, (n, m), dtype), 3)


OUTSIDE = {
    "householder": Case(_householder, True, FLOATS, False, True),
    "ternary": Case(_ternary, False, FLOATS, False, True),
    "stamped": Case(_stamped, False, COMPLEX, False, True),
}


@pytest.fixture(autouse=True)
def _added(monkeypatch):
    for name, case in OUTSIDE.items():
        monkeypatch.setitem(CASES, name, case)


outside = pytest.mark.parametrize("name", OUTSIDE)
one_outside = pytest.mark.parametrize("name", often(OUTSIDE, ("householder",)))


@one_outside
def test_forward(name, bulk):
    ready.check_forward(name, "float32")


@pytest.mark.slow
@outside
def test_gradient(name, bulk):
    ready.test_gradient(name, bulk)


@outside
def test_modes_without_jit_and_repr(name):
    ready.test_modes_without_jit(name)
    ready.test_what_is_shown_says_type_shape_dtype_and_bytes(name)


@pytest.mark.slow
@outside
def test_everything_that_is_done_with_values(name, bulk):
    ready.test_scan_over_a_stack(name, bulk)
    check_value(CASES[name].value(np.random.default_rng(0), "float32", (3, 3)))


OPERATIONS = {
    "sum": lambda v, w: v + w,
    "difference": lambda v, w: w - v,
    "product by entries": lambda v, w: v * w,
    "product": lambda v, w: v @ w,
    "product from the right": lambda v, w: w @ v,
}


# One ready type of each kind of rule for any other value.
MET = ("zero", "scaled_diagonal", "sum", "diagonal", "low_rank", "lora", "constant")


@outside
def test_pairs_with_the_ready_types(name, bulk):
    rng = np.random.default_rng(0)
    make = lambda name: CASES[name].value(rng, "float32", (4, 4))
    v = make(name)
    others = {other: make(other) for other in (*MET, *OUTSIDE)}

    def everything(v, others):
        return {
            (operation, other): fn(v, w)
            for operation, fn in OPERATIONS.items()
            for other, w in others.items()
        }

    got = jax.jit(materialised(everything))(v, others)
    dense = jaxrewrite.materialise((v, others))
    assert_same(got, jax.jit(everything)(*dense), 1e-4)


# --- who is outermost, and what rules for any other value are given -------------------------


class Logged(ArrayValue):
    x: jax.Array

    def materialise(self):
        return jaxrewrite.materialise(self.x)


@jaxrewrite.register("mul", exchange="types")
def _(a: Logged, b: ArrayLike | ArrayValue, **params):
    operands = [v.x if isinstance(v, Logged) else v for v in (a, b)]
    return Logged(jaxrewrite.bind("mul", *operands))


def test_a_type_of_ones_own_is_inside_of_units_and_outside_of_matrices():
    ones = jnp.ones((2, 2))
    for carrying in (values.Unitful(ones, "m"), values.Tagged(ones, "a")):
        for product in (carrying * Logged(ones), Logged(ones) * carrying):
            assert type(product) is type(carrying)
    length = values.Unitful(ones, "m") * Logged(ones)
    assert type(length.array) is Logged
    assert type((Logged(ones) * values.Unitful(ones, "m")).array) is Logged
    for matrix in (values.Diagonal(ones[0]), values.Zero((2, 2)), values.Scaled(ones, 2.0)):
        assert type(matrix * Logged(ones)) is Logged
        assert type(Logged(ones) * matrix) is Logged


class Inner(ArrayValue):
    x: jax.Array

    def materialise(self):
        return self.x


class Other(ArrayValue):
    x: jax.Array

    def materialise(self):
        return self.x


@jaxrewrite.register("mul")
def _(a: Inner, b: Other, **params):
    return Inner(a.x * b.x)


@jaxrewrite.register("mul")
def _(a: ArrayLike, b: Other, **params):
    return Other(a * b.x)


@pytest.mark.parametrize("sees_values", [False, True])
def test_what_a_rule_for_any_other_value_is_given(sees_values):
    seen = []

    class Outer(ArrayValue):
        x: jax.Array
        rules_see_values = sees_values

        def materialise(self):
            return jaxrewrite.materialise(self.x)

    @jaxrewrite.register("mul")
    def _(a: Outer, b: ArrayValue, **params):
        seen.extend([isinstance(a.x, Inner), isinstance(b, Other)])
        return Outer(jaxrewrite.bind("mul", a.x, b))

    multiply = jaxrewrite.transform(lambda v, w: v * w, materialise="allow")
    product = multiply(Outer(Inner(2 * jnp.ones(3))), Other(3 * jnp.ones(3)))
    assert seen == [sees_values, True]
    assert type(product.x) is (Inner if sees_values else Other)
    np.testing.assert_array_equal(np.asarray(product), 6 * np.ones(3))


def test_an_annotation_of_values_dispatches_on_both():
    d = values.Diagonal(jnp.arange(3.0))
    product = jaxrewrite.transform(jnp.matmul, materialise="forbid")(Stamped(d, 1), 2 * d)
    assert type(product) is Stamped and type(product.array) is values.Diagonal
    np.testing.assert_array_equal(np.asarray(product), np.diag([0.0, 2.0, 8.0]))


def test_what_is_annotated_in_variadic_rules_has_its_outer():
    """Two annotations that both take any value beside them, concatenated."""
    one, other = Stamped(jnp.ones(2), 1), values.Tagged(jnp.ones(2), "a")
    for pair in ((one, other), (other, one)):
        whole = jaxrewrite.numpy.concatenate(pair)
        assert type(whole) is values.Tagged and type(whole.array) is Stamped


# --- a matrix whose leaves hold the places of its entries ------------------------------------


class OnePerRow(values.Matrix):
    """The entry d[i] in row i, at a column that is an integer leaf."""

    d: jax.Array
    columns: jax.Array

    entries = "pattern"
    movable = True

    def aval(self):
        return jax.core.ShapedArray((*self.d.shape, self.d.shape[-1]), self.d.dtype)

    def materialise(self):
        there = self.columns[..., None] == jnp.arange(self.d.shape[-1])
        d = self.d[..., None]
        return jnp.where(there, d, jnp.zeros_like(d))

    def apply(self, x, axis, precision=None):
        return NotImplemented

    def map_entries(self, fn, *others):
        return OnePerRow(fn(self.d, *(other.d for other in others)), self.columns)

    def pick(self, dense):
        picked = jnp.take_along_axis(dense, self.columns[..., None], -1)
        return OnePerRow(picked[..., 0], self.columns)


def test_a_tangent_has_its_entries_where_the_matrix_has_them():
    v = OnePerRow(jnp.array([1.0, -2.0, 3.0]), jnp.array([2, 0, 1]))
    check_value(v, only=["custom_jvp_call", "custom_vjp_call"])
    relu = jaxrewrite.transform(jax.nn.relu, materialise="allow")
    result, tangent = jax.jvp(
        lambda d: relu(OnePerRow(d, v.columns)), (v.d,), (jnp.arange(1.0, 4.0),)
    )
    assert type(result) is OnePerRow
    np.testing.assert_array_equal(result.d, [1, 0, 3])
    np.testing.assert_array_equal(tangent.d, [1, 0, 3])


class Phases(values.Matrix):
    """A diagonal of phases, whose conjugate has other angles."""

    angles: jax.Array

    def aval(self):
        return jax.core.ShapedArray(
            (*self.angles.shape, self.angles.shape[-1]), jnp.complex64
        )

    def materialise(self):
        return jnp.exp(1j * self.angles)[..., None] * jnp.eye(self.angles.shape[-1])

    def apply(self, x, axis, precision=None):
        return jnp.moveaxis(jnp.moveaxis(x, axis, -1) * jnp.exp(1j * self.angles), -1, axis)


class Turned(Phases):
    """The same, and a complex number for all."""

    scale: jax.Array

    def materialise(self):
        return self.scale * super().materialise()

    def apply(self, x, axis, precision=None):
        return self.scale * super().apply(x, axis, precision)


def test_a_matrix_is_conjugated_leaf_by_leaf_where_its_program_says_so(bulk):
    angles = jnp.array([0.5, 1.0])
    for v in (Phases(angles), Turned(angles, jnp.complex64(2j))):
        for fn in (jnp.conj, lambda v: jnp.linalg.norm(v @ v.mT.conj()), jnp.vdot):
            operands = (v, v) if fn is jnp.vdot else (v,)
            got = jaxrewrite.transform(fn, materialise="allow")(*operands)
            assert_same(got, fn(*map(jaxrewrite.materialise, operands)), 1e-5)
    x = jnp.array([1 + 2j, 3 - 1j])
    conj = jaxrewrite.transform(jnp.conj, materialise="forbid")
    assert_same(conj(values.Circulant(x)), values.Circulant(x).materialise().conj(), 1e-6)


class Halves(values.Linear):
    """Its parts are real, and the array is complex."""

    re: jax.Array
    im: jax.Array

    def materialise(self):
        return self.re + 1j * self.im

    def map_parts(self, fn):
        return Halves(fn(self.re), fn(self.im))


PARTS = Halves(jnp.ones((2, 2)), jnp.arange(4.0).reshape(2, 2))
MULTIPLIED = {
    "number": lambda v: v * 2.0,
    "array": lambda v: v * jnp.array([1j, 2.0]),
    "square": lambda v: v * v,
    "products": lambda v: [v @ jnp.array([1j, 2.0]), v @ v],
    "tangent": lambda v: jax.jvp(lambda x: x * v, (v + 1,), (v + 2,))[1],
}


@pytest.mark.parametrize("name", MULTIPLIED)
def test_parts_of_another_dtype_are_multiplied(name):
    got = jaxrewrite.transform(MULTIPLIED[name], materialise="allow")(PARTS)
    assert_same(got, MULTIPLIED[name](PARTS.materialise()), 1e-6)


class OfANumber(Phases):
    """It says a number where a determinant is asked for."""

    def known_determinant(self):
        return jnp.prod(jnp.exp(1j * self.angles))


class Multiple(values.Linear):
    """A part and a coefficient, which is none."""

    c: jax.Array
    x: jax.Array

    def materialise(self):
        return self.c * self.x

    def map_parts(self, fn):
        return Multiple(self.c, fn(self.x))


class Cast(Multiple):
    def map_parts(self, fn):
        return Cast(self.c, fn(self.x))

    def cast(self, dtype):
        return Cast(self.c.astype(dtype), self.x.astype(dtype))


@pytest.mark.parametrize("cls", [Multiple, Cast])
def test_a_leaf_that_is_no_part_keeps_its_dtype_or_is_cast(cls):
    v, y = cls(jnp.float32(3), jnp.ones((2, 3))), jnp.ones((3, 2))
    narrow = lambda v: v.astype("bfloat16")
    got = jaxrewrite.transform(narrow, materialise="allow")(v)
    assert isinstance(got, Cast) == (cls is Cast)
    assert_same(jaxrewrite.materialise(got), jnp.full((2, 3), 3, "bfloat16"))
    product = lambda v, y: jnp.matmul(v, y, preferred_element_type="bfloat16")
    got = jaxrewrite.transform(product, materialise="allow")(v, y)
    assert_same(jaxrewrite.materialise(got), jnp.full((2, 2), 9, "bfloat16"))
    assert isinstance(jaxrewrite.transform(jnp.matmul)(v, y), cls)


@pytest.mark.parametrize("fn", [jnp.linalg.det, lambda v: jnp.linalg.slogdet(v)[1]])
def test_a_determinant_that_is_a_number_is_told_by_its_method(fn):
    with pytest.raises(TypeError, match="OfANumber.known_determinant must return a Determ"):
        jaxrewrite.transform(fn)(OfANumber(jnp.arange(3.0)))


def test_what_the_entries_of_a_matrix_are_is_one_of_three():
    with pytest.raises(TypeError, match="Wrong.entries has to be 'pattern', 'all' or None"):
        type("Wrong", (values.Matrix,), {"entries": "patern"})


@pytest.mark.parametrize("axes", [{}, {"axes": {"array": "...", "errors": "..."}}])
def test_an_annotated_type_with_two_arrays_is_refused(axes):
    """What an annotated type carries is static."""
    fields = {"__annotations__": {"array": jax.Array, "errors": jax.Array}}
    with pytest.raises(
        TypeError, match="WithErrors has 2 fields .*: array, errors. .* static"
    ):
        type("WithErrors", (values.Annotated,), {**fields, **axes})


# --- methods that return another shape than they are to ------------------------------------------


class Short(values.Matrix):
    """Each of its methods returns too few numbers."""

    d: jax.Array

    def aval(self):
        return jax.core.ShapedArray((*self.d.shape, self.d.shape[-1]), self.d.dtype)

    def materialise(self):
        return jnp.diag(self.d)

    def apply(self, x, axis, precision=None):
        return x[:-1]

    def solve(self, x, axis):
        return x[:-1]

    def entries_at(self, i, j):
        return jnp.zeros(7)

    def known_diagonal(self):
        return self.d[:-1]

    def known_inverse(self):
        return list(self.d)

    def times_number(self, factor):
        return Short(self.d[:-1] * factor)


_VECTOR = jnp.arange(1.0, 4.0)


@pytest.mark.parametrize(
    "method, fn, message",
    [
        ("apply", lambda v: v @ _VECTOR, r"shape \(2,\), and .* shape \(3,\) here"),
        ("entries_at", lambda v: v[1, 2], r"shape \(7,\), and .* shape \(1, 1\)"),
        ("known_diagonal", jnp.trace, r"shape \(2,\), and .* shape \(3,\)"),
        ("known_inverse", jnp.linalg.inv, r"a list, and .* shape \(3, 3\)"),
        ("times_number", lambda v: 2 * v, r"shape \(2, 2\), and .* shape \(3, 3\)"),
    ],
)
def test_a_method_that_returns_another_shape_is_named(method, fn, message):
    with pytest.raises(TypeError, match=rf"^Short\.{method} returned {message}"):
        jaxrewrite.transform(fn, materialise="allow")(Short(_VECTOR))


class ShortCodes(values.Coded):
    codes: jax.Array
    scale: jax.Array

    def levels(self):
        return self.codes[1:].astype(self.scale.dtype)


def test_levels_of_another_shape_are_named():
    v = ShortCodes(jnp.ones((4, 2), jnp.int8), jnp.ones((1, 2)))
    with pytest.raises(TypeError, match=r"^ShortCodes\.levels returned shape \(3, 2\)"):
        jaxrewrite.numpy.matmul(jnp.ones(4), v)


def test_the_methods_of_a_library_are_not_asked(monkeypatch):
    library = types.ModuleType("somelibrary")
    library.__jaxrewrite_library__ = True
    monkeypatch.setitem(sys.modules, library.__name__, library)

    def levels(self):
        return self.codes

    fields = {"codes": jax.Array, "scale": jax.Array}
    members = {"__module__": "somelibrary.formats", "__annotations__": fields}
    of_library = type("Codes", (values.Coded,), {**members, "levels": levels})
    assert of_library.levels is levels


def test_a_matrix_that_cannot_multiply_is_an_error_where_it_is_made():
    class NoProduct(values.Matrix):
        x: jax.Array

        def aval(self):
            return jax.core.ShapedArray(2 * self.x.shape, self.x.dtype)

        def materialise(self):
            return jnp.diag(self.x)

    with pytest.raises(TypeError, match=r"NoProduct has to define apply\(\)"):
        NoProduct(jnp.ones(3))
