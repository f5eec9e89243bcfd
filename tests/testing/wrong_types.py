"""Types and rules as users write them, each with one defect that `check_value` has to find.

`WRONG` has for each defect a value, the function that is wrong, and one of the checks that fail.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

import jaxrewrite
from jaxrewrite import ArrayValue, field, register, values
from jaxrewrite.testing import numbers


class Wrong(NamedTuple):
    """A plain value of a wrong type: what ``by`` names is wrong, and ``check`` finds it."""

    value: Any
    by: str
    check: str


WRONG: dict[str, Wrong] = {}


class Plain(ArrayValue):
    """The base of types with a right array."""

    x: jax.Array

    def materialise(self):
        return self.x


def a_rule(what, check, primitive, types="v", value=None, **keywords):
    """A subclass of `Plain` with a wrong rule, the decorated function."""

    def add(rule):
        cls = type("PlainWith" + rule.__name__.title().replace("_", ""), (Plain,), {})
        operands = [{"v": cls, "a": jax.Array}[operand] for operand in types]
        register(primitive, types=operands, **keywords)(rule)
        WRONG[what] = Wrong(cls(X if value is None else value), rule.__name__, check)
        return rule

    return add


def a_method(what, check, *arguments):
    """A class with a wrong method, the last that it defines."""

    def add(cls):
        name = [
            k for k, x in vars(cls).items() if callable(x) or isinstance(x, staticmethod)
        ]
        own = [k for k in name if k in _METHODS]
        WRONG[what] = Wrong(cls(*arguments), f"{cls.__name__}.{own[-1]}", check)
        return cls

    return add


_METHODS = "aval materialise apply transposed solve determinant at join tangent lift_tangent tangent_space"
_METHODS = (
    *_METHODS.split(),
    "sliceable",
    "default",
    "times",
    "plus",
    "leaf_specs",
)
_METHODS += ("known_diagonal", "row_sums", "pick", "is_triangular")

X = numbers((3, 4))
D = numbers((3,))
N = jnp.array([[2, 0, 1]], "int32")[0]


# --- matrices whose methods are wrong for a stack ------------------------------------------


class Diagonal(values.Matrix):
    """A right diagonal matrix."""

    d: jax.Array

    def aval(self):
        return jax.core.ShapedArray((*self.d.shape, self.d.shape[-1]), self.d.dtype)

    def materialise(self):
        return self.d[..., None] * jnp.eye(self.d.shape[-1], dtype=self.d.dtype)

    def along(self, d, ndim, axis):
        ones = [1] * (ndim - len(self.batch))
        ones[axis - len(self.batch)] = d.shape[-1]
        return d.reshape(*d.shape[:-1], *ones)

    def apply(self, x, axis, precision=None):
        return self.along(self.d, x.ndim, axis) * x

    def transposed(self):
        return self


@a_method("apply, for a stack", "dot_general with an array (a stack) jit", D)
class ApplyOfOne(Diagonal):
    def apply(self, x, axis, precision=None):
        first = self.d.reshape(-1, self.d.shape[-1])[0]
        ones = [1] * x.ndim
        ones[axis] = -1
        return first.reshape(ones) * x


@a_method("transposed, for a stack", "transpose vmap inside", numbers((3, 3)))
class TransposedOfOne(values.Matrix):
    a: jax.Array

    def aval(self):
        return jax.core.ShapedArray(self.a.shape, self.a.dtype)

    def materialise(self):
        return self.a

    def apply(self, x, axis, precision=None):
        return jnp.moveaxis(
            jnp.matmul(self.a, jnp.moveaxis(x, axis, -2))
            if x.ndim > len(self.batch) + 1
            else jnp.matmul(self.a, x[..., None])[..., 0],
            -2 if x.ndim > len(self.batch) + 1 else -1,
            axis,
        )

    def transposed(self):
        return dataclasses.replace(self, a=jnp.swapaxes(self.a, 0, -1))


@a_method("solve, for a stack", "custom_linear_solve with an array (a stack) jit", D)
class SolveOfOne(Diagonal):
    def solve(self, x, axis):
        first = self.d.reshape(-1, self.d.shape[-1])[:1]
        return x / self.along(jnp.broadcast_to(first, self.d.shape), x.ndim, axis)


# What is wrong for a diagonal matrix, and for a stack of them alone where that is said.
WRONG_ANSWERS = {
    "scaled_rows": lambda v, factors: type(v)(v.d + factors),
    "known_inverse": lambda v: v,
    "known_diagonal": lambda v: v.d[..., ::-1],
    "row_sums": lambda v: 2 * v.d,
    "known_determinant": lambda v: values.Determinant.of(v.d.reshape(-1)),  # of a stack
    "known_eigenvalues": lambda v: v.d + 1,
    "known_spectrum": lambda v: (-v.d, type(v)(jnp.ones_like(v.d))),
    "known_eigh": lambda v, lower: (v.d[..., ::-1], jnp.eye(3)[:, ::-1]),  # not in order
    "known_svd": lambda v: (jnp.eye(3), v.d, jnp.eye(3)),  # not in order
    "known_reduced_svd": lambda v: (jnp.eye(3), 1 / v.d, jnp.eye(3)),
    "known_singular_values": lambda v: v.d + 7,
    "known_cholesky": lambda v: v,
    "known_triangle": lambda v, lower, unit_diagonal: v,
    "known_lower_part": lambda v, k: v,
    "known_lu": lambda v: (jnp.ones(v.shape), None, jnp.arange(3)),
    "known_exponential": lambda v: v,
    "known_solution": lambda v, b: b,
    "is_unitary": property(lambda v: True),
}
for _name, _answer in WRONG_ANSWERS.items():
    _cls = type(f"Wrong_{_name}", (Diagonal,), {_name: _answer})
    WRONG[f"{_name} of a matrix"] = Wrong(_cls(D), f"{_cls.__name__}.{_name}", "matrix")

# The product is right, and the vectors have not the length of one.
_UNORTHOGONAL = {
    "known_svd": lambda v: (2 * jnp.eye(3)[:, ::-1], v.d[::-1], jnp.eye(3)[::-1] / 2),
    "known_reduced_svd": lambda v: (v.materialise(), jnp.ones_like(v.d), jnp.eye(3)),
}
for _name, _answer in _UNORTHOGONAL.items():
    _cls = type(f"Unorthogonal_{_name}", (Diagonal,), {_name: _answer})
    _what = f"{_name} of a matrix, with vectors of other lengths"
    WRONG[_what] = Wrong(_cls(D), f"{_cls.__name__}.{_name}", "matrix")


@a_method("is_triangular", "matrix", numbers((3, 3)))
class SaidToBeTriangular(TransposedOfOne):
    def is_triangular(self, lower):
        return lower


@a_method("row_sums, for a stack", "reduce_sum along axis 2 (a stack) jit", D)
class SumsOfOne(Diagonal):
    def row_sums(self):
        return jnp.broadcast_to(self.d.reshape(-1, self.d.shape[-1])[0], self.d.shape)


@a_method("known_diagonal, not of the diagonal", "gather of the diagonal jit", D)
class DiagonalReversed(Diagonal):
    def known_diagonal(self):
        return self.d[..., ::-1]


@a_method(
    "times, of the first one twice", "dot_general of two, in a row (other numbers) jit", D
)
class TimesItself(Diagonal):
    def times(self, other):
        if not isinstance(other, TimesItself):
            return NotImplemented
        return TimesItself(self.d * self.d)


# --- rules that do not read a parameter ---------------------------------------------------------


@a_rule("sign of a remainder", "rem with a negative array jit", "rem", "va")
def remainder(v, y):
    return type(v)(jnp.mod(v.x, y))


@a_rule(
    *("one start for all axes", "dynamic_update_slice of one entry jit"),
    *("dynamic_update_slice", "vaaa"),
)
def overwritten(v, update, i, j):
    return type(v)(lax.dynamic_update_slice(v.x, update, (i, i)))


@a_rule(
    *("sides along one axis", "concatenate with an array, along the last axis jit"),
    *("concatenate", "va"),
)
def beside(v, y, *, dimension):
    pair = [v.x, y] if dimension == 0 else [y, v.x]
    return type(v)(lax.concatenate(pair, dimension))


@a_rule("an upper bound", "clamp between numbers jit", "clamp", "ava")
def clamped(least, v, most):
    is_number = least.ndim == 0
    return type(v)(lax.max(v.x, least) if is_number else lax.clamp(least, v.x, most))


@a_rule("integer_pow, right for 3", "integer_pow to -1 jit", "integer_pow")
def cube(v, *, y, **params):
    return v.x * v.x ** (y - 1) if y > 0 else v.x**3


@a_rule("integer_pow, right for positive ones", "integer_pow to -2 jit", "integer_pow")
def absolute_power(v, *, y, **params):
    return v.x ** abs(y)


@a_rule("integer_pow to 0", "integer_pow to 0 jit", "integer_pow")
def power_but_zero(v, *, y, **params):
    return v.x ** (y or 1)


@a_rule("one of several axes", "reduce_sum jit", "reduce_sum")
def sum_over_first_axis(v, *, axes, **params):
    out = v.x.sum(axes[0])
    return out if len(axes) == 1 else out[0]


@a_rule("another axis", "reduce_max along axis 1 jit", "reduce_max", value=numbers((3, 3)))
def largest_along_first(v, *, axes, **params):
    return jnp.max(v.x, 0 if len(axes) == 1 else axes)


@a_rule("batch axes of products", "dot_general for each row jit", "dot_general", "va")
def product_without_batch(v, y, *, dimension_numbers, **params):
    (ours, theirs), batch = dimension_numbers
    if batch != ((), ()):
        return lax.dot_general(v.x * 0.5, y, dimension_numbers)
    return lax.dot_general(v.x, y, dimension_numbers)


@a_rule(
    "the other side of a product",
    "dot_general of both first axes jit",
    "dot_general",
    "va",
    value=numbers((3, 3)),
)
def product_from_the_right(v, y, *, dimension_numbers, **params):
    if len(dimension_numbers[0][0]) != 1 or dimension_numbers[1] != ((), ()):
        return NotImplemented
    return lax.dot_general(v.x, y, (((1,), dimension_numbers[0][1]), ((), ())))


@a_rule(
    "an inverse permutation", "transpose in turn jit", "transpose", value=numbers((2, 2, 2))
)
def transpose_back(v, *, permutation, **params):
    return type(v)(jnp.transpose(v.x, [permutation.index(i) for i in range(v.x.ndim)]))


@a_rule(
    "an inverse permutation, of a matrix", "transpose in turn (a stack) jit", "transpose"
)
def transpose_backwards(v, *, permutation, **params):
    return type(v)(jnp.transpose(v.x, [permutation.index(i) for i in range(v.x.ndim)]))


@a_rule("the dtype of a result", "exp (in bfloat16) jit", "exp")
def wide_exponential(v, **params):
    return type(v)(jnp.exp(v.x) * jnp.float32(1))


@a_rule(
    "the dtype of a product", "dot_general in another precision jit", "dot_general", "va"
)
def product_in_its_dtype(v, y, *, dimension_numbers, **params):
    return lax.dot_general(v.x, y, dimension_numbers)


@a_rule("strides", "slice of every second row jit", "slice")
def slice_without_strides(v, *, start_indices, limit_indices, strides, **params):
    out = lax.slice(v.x, start_indices, limit_indices)
    if strides is None:
        return out
    rows = [
        -(-(b - a) // s)
        for a, b, s in zip(start_indices, limit_indices, strides, strict=True)
    ]
    return out[tuple(map(slice, rows))]


@a_rule("indices out of range", "gather out of range, fill jit", "gather", "va")
def gather_in_range(v, indices, *, mode, **params):
    return jaxrewrite.bind(
        "gather", v.x, indices, mode=lax.GatherScatterMode.CLIP, **params
    )


@a_rule("repeated indices", "scatter-add jit", "scatter-add", "vaa")
def scatter_once(v, indices, updates, **params):
    return jaxrewrite.bind("scatter-add", v.x, indices, updates / 2, **params)


@a_rule("direction of a sum", "cumsum along axis 0, reversed jit", "cumsum")
def running_sum(v, *, axis, reverse, **params):
    return jnp.cumsum(v.x, axis)


@a_rule("strictness", "lt of an array, equal in part jit", "lt", "av")
def at_most(x, v, **params):
    return x <= v.x


@a_rule("strictness, on the left", "gt with an array, equal in part jit", "gt", "va")
def at_least(v, x, **params):
    return v.x >= x


@a_rule("polarity of a choice", "select_n of an array jit", "select_n", "aav")
def choose_the_other(which, x, v, **params):
    return jnp.where(which, x, v.x)


@a_rule(
    "the last of three cases",
    "select_n of two in three cases (other numbers) jit",
    "select_n",
    "avvv",
)
def choose_of_the_first_two(which, x, y, z, **params):
    return Plain(jnp.where(which.astype(bool), y.x, x.x))


@a_rule("padding that cuts", "pad with fewer rows at an end jit", "pad", "va")
def pad_without_cutting(v, x, *, padding_config, **params):
    return lax.pad(v.x, x, [(max(a, 0), max(b, 0), c) for a, b, c in padding_config])


@a_rule(
    "the axis that is summed",
    "dot_general over the first axis with a vector jit",
    "dot_general",
    "va",
    value=X[:, :3],
)
def product_of_rows(v, x, *, dimension_numbers, **params):
    contracted, batch = dimension_numbers
    if x.ndim != 1 or len(contracted[0]) != 1 or batch[0]:
        return NotImplemented
    return v.x @ x


@a_rule(
    "the start along an axis",
    "dynamic_slice from the second along axis 1 jit",
    "dynamic_slice",
    "vaa",
)
def slice_of_rows(v, row, column, *, slice_sizes, **params):
    return lax.dynamic_slice(v.x, (row, 0 * column), slice_sizes)


@a_rule("order of operands", "sub of an array jit", "sub", "va", exchange="types")
def difference_of_either(x, y, **params):
    v, array = (x, y) if isinstance(x, Plain) else (y, x)
    return type(v)(v.x - array)


@a_rule("a constant of the shape", "reduce_sum along axis 0 (one row) jit", "reduce_sum")
def sum_of_three_rows(v, *, axes, **params):
    return v.x.mean(axes) * (3 * 4 if len(axes) == 2 else (3, 4)[axes[0]])


@a_rule("one column", "rev along axis 1 (one column) jit", "rev")
def reverse_many(v, *, dimensions, **params):
    return type(v)(lax.rev(v.x, dimensions) * (1 if v.shape[-1] > 1 else 2))


@a_rule("no rows", "reduce_prod along axis 0 (no rows) jit", "reduce_prod")
def product_of_some(v, *, axes, **params):
    return v.x.prod(axes) if v.x.size else v.x.sum(axes)


@a_rule("not square", "transpose jit", "transpose")
def transpose_of_square(v, *, permutation, **params):
    return jnp.transpose(v.x, permutation).reshape(v.shape)


@a_rule("NaN", "reduce_max along axis 0 (NaN and infinity) jit", "reduce_max")
def largest_number(v, *, axes, **params):
    return jnp.nanmax(v.x, axes)


@a_rule("infinity", "is_finite (NaN and infinity) jit", "is_finite")
def is_a_number(v, **params):
    return v.x == v.x


@a_rule("imaginary parts", "abs (in complex64) jit", "abs")
def absolute_of_real(v, **params):
    return jnp.sqrt(v.x * v.x).real


@a_rule("conjugate", "conj jit", "conj", value=numbers((3, 4), "complex64"))
def conjugate_of_real(v, **params):
    return v


@a_rule("a derivative", "sin grad", "sin")
def constant_sine(v, **params):
    return jnp.sin(lax.stop_gradient(v.x))


# --- rules that do not read all of their operands ------------------------------------------------


class Coded(ArrayValue):
    """Integers in place of numbers."""

    codes: jax.Array
    scale: jax.Array

    def materialise(self):
        return self.codes * self.scale


def coded(name, primitive, check, rule):
    cls = type(name, (Coded,), {})
    register(primitive, types=(cls, cls))(rule)
    codes = jnp.array([[1, 5, 2], [3, 0, 4]], "int8")
    return Wrong(cls(codes, jnp.float32(0.5)), rule.__name__, check)


def sum_of_scales(v, w, **params):
    return dataclasses.replace(v, scale=v.scale + w.scale)


WRONG["the other's integers"] = coded(
    "CodedSum", "add", "add of two (other integers) jit", sum_of_scales
)


class Ramp(ArrayValue):
    """The numbers from 0 on, times a slope."""

    slope: jax.Array
    size: int = field(static=True, default=3)

    def materialise(self):
        return self.slope * jnp.arange(self.size, dtype=self.slope.dtype)


@register("neg")
def downwards(v: Ramp, **params):
    return dataclasses.replace(v, slope=-v.slope)


@register("reduce_max")
def of_the_last_number(v: Ramp, *, axes, **params):
    return v.slope * (v.size - 1)


WRONG["a sign"] = Wrong(
    Ramp(jnp.float32(0.5)), "of_the_last_number", "reduce_max (its negative) jit"
)


class Powers(ArrayValue):
    """Numbers to a power."""

    x: jax.Array
    power: int = field(static=True, default=1)

    def materialise(self):
        return self.x**self.power


class Square(Plain):
    pass


@register("dot_general")
def product_of_squares(v: Square, w: Square, **params):
    return lax.dot_general(w.x, v.x, **params)


WRONG["the order of a product"] = Wrong(
    Square(numbers((3, 3))),
    "product_of_squares",
    "dot_general of two, in a row (numbers in another order) jit",
)


class Clipping(Plain):
    pass


@register("scatter-add")
def clipped(v: Clipping, i: jax.Array, x: jax.Array, *, mode, **params):
    params["mode"] = lax.GatherScatterMode.CLIP
    return jaxrewrite.bind("scatter-add", v.x, i, x, **params)


WRONG["a mode"] = Wrong(Clipping(X), "clipped", "scatter-add jit")


class PowersProduct(Powers):
    pass


@register("mul")
def product_of_powers(v: PowersProduct, w: PowersProduct, **params):
    return dataclasses.replace(v, x=v.x * w.x)


WRONG["the other's static field"] = Wrong(
    PowersProduct(X), "product_of_powers", "mul of two (another 'power') jit"
)


class PowersNegative(Powers):
    pass


@register("neg")
def negative_power(v: PowersNegative, **params):
    return dataclasses.replace(v, x=-v.x)


WRONG["a static field"] = Wrong(
    PowersNegative(X), "negative_power", "neg (another 'power') jit"
)


class Order(enum.Enum):
    ROWS = "rows"
    COLUMNS = "columns"


class Stored(ArrayValue):
    x: jax.Array
    order: Order = field(static=True, default=Order.ROWS)
    sign: Literal["plus", "minus"] = field(static=True, default="plus")

    def materialise(self):
        x = self.x if self.order is Order.ROWS else self.x[::-1]
        return x if self.sign == "plus" else -x


@register("exp")
def exponential_of_stored(v: Stored, **params):
    return jnp.exp(v.x if v.order is Order.ROWS else v.x[::-1])


WRONG["a choice of words"] = Wrong(
    Stored(X), "exponential_of_stored", "exp (another 'sign') jit"
)


class StoredRows(Stored):
    pass


@register("exp")
def exponential_of_rows(v: StoredRows, **params):
    return jnp.exp(v.x if v.sign == "plus" else -v.x)


WRONG["an enumeration"] = Wrong(
    StoredRows(X), "exponential_of_rows", "exp (another 'order') jit"
)


# --- methods --------------------------------------------------------------------------------


@a_method("aval, in one dtype", "aval", X)
class AvalOfSingle(Plain):
    def aval(self):
        return jax.core.ShapedArray(self.x.shape, jnp.float32)


class DependsOnDtype(Plain):
    def materialise(self):
        return self.x if self.x.dtype != jnp.bfloat16 else self.x + 1


@register("neg")
def negative_in_any_dtype(v: DependsOnDtype):
    return DependsOnDtype(-v.x)


WRONG["materialise, in one dtype"] = Wrong(
    DependsOnDtype(X), "negative_in_any_dtype", "neg (in bfloat16) jit"
)


@a_method("join", "cond with an array, second jit", X)
class JoinOfZeros(Plain):
    def join(self, other):
        if isinstance(other, ArrayValue):
            return NotImplemented
        return self, JoinOfZeros(jnp.zeros_like(self.x))


@a_method("join of two", "cond of two, second (another 'power') jit", X)
class JoinOfPowers(Powers):
    def join(self, other):
        if not isinstance(other, JoinOfPowers):
            return NotImplemented
        return JoinOfPowers(self.x), JoinOfPowers(other.x)


@a_method("tangent", "custom_jvp_call jvp", X)
class TangentTwice(Plain):
    def tangent(self, leaf_tangents):
        return 2 * leaf_tangents.x


@a_method("lift_tangent", "custom_vjp_call grad", X)
class LiftTwice(Plain):
    def lift_tangent(self, tangent):
        return LiftTwice(2 * tangent)


@a_method("sliceable, for stacks", "scan with ys jit", D, jnp.float32(2))
class StackedAsItIs(ArrayValue):
    x: jax.Array
    scale: jax.Array

    def materialise(self):
        return self.x * self.scale

    def sliceable(self):
        return self


@a_method("sliceable, for slices", "scan with xs jit", X)
class SliceableMore(Plain):
    def sliceable(self):
        return SliceableMore(self.x + 1)


@a_method("default, for one primitive", "exp jit", X)
class DefaultTwice(Plain):
    @staticmethod
    def default(primitive, operands, params):
        if primitive.name == "exp":
            return 2 * jnp.exp(operands[0].x)
        return NotImplemented


@a_method(
    "join of other sizes",
    "cond of two, first (shorter leaves) jit",
    numbers((3, 2)),
    numbers((2, 4)),
)
class Factors(ArrayValue):
    a: jax.Array
    b: jax.Array

    def materialise(self):
        return self.a @ self.b

    def join(self, other):
        if not isinstance(other, Factors):
            return NotImplemented
        rank = min(len(self.b), len(other.b))
        return tuple(Factors(v.a[:, :rank], v.b[:rank]) for v in (self, other))


class OverLength(ArrayValue):
    """A part of it is not made of a part of its leaf, as its axes say."""

    x: jax.Array
    axes = {"x": "... i"}

    def materialise(self):
        return self.x / self.x.shape[-1]


WRONG["axes, for a part"] = Wrong(OverLength(D), "OverLength.axes", "axes")


@a_method("leaf_specs", "shards", X)
class Reversed(Plain):
    def materialise(self):
        return self.x[::-1]

    def leaf_specs(self, spec):
        return Reversed(spec)


@a_method("tangent space of what repeats", "tangents", X)
class Repeating(Plain):
    def materialise(self):
        return jnp.concatenate([self.x, self.x])

    def tangent(self, leaf_tangents):
        return leaf_tangents

    def lift_tangent(self, tangent):
        return Repeating((tangent[: len(self.x)] + tangent[len(self.x) :]) / 2)

    def tangent_space(self):
        return "entries"


@a_method("tangent space of zeros", "tangents", D)
class HasDiagonal(Plain):
    def materialise(self):
        return jnp.diag(self.x)

    def lift_tangent(self, tangent):
        return HasDiagonal(jnp.diagonal(tangent))

    def tangent_space(self):
        return "all"


@a_method("lift_tangent", "tangents", X)
class LiftsDoubled(Plain):
    def materialise(self):
        return 2 * self.x

    def lift_tangent(self, tangent):
        return LiftsDoubled(tangent)


@a_method("tangent", "tangents", X)
class TangentWithConstant(Plain):
    def materialise(self):
        return 1 + self.x

    def tangent(self, leaf_tangents):
        return leaf_tangents


class Always:
    """Metadata that is equal to any other."""

    def __init__(self, factor):
        self.factor = factor

    def __eq__(self, other):
        return isinstance(other, Always)

    def __hash__(self):
        return 0


class Labelled(Plain):
    label: Always = field(static=True)

    def materialise(self):
        return self.x * self.label.factor


class Forgotten(Plain):
    def __post_init__(self):
        object.__setattr__(self, "twice", 2 * self.x)

    def materialise(self):
        return self.twice


WRONG["an array in no field"] = Wrong(Forgotten(X), "'twice'", "pytree")
WRONG["equality of metadata"] = Wrong(Labelled(X, Always(2)), "'factor'", "static fields")


class Unequal(Always):
    def __eq__(self, other):
        return isinstance(other, Unequal)

    def __hash__(self):
        return id(self)


class LabelledAnew(Labelled):
    pass


WRONG["hash of metadata"] = Wrong(LabelledAnew(X, Unequal(2)), "another hash", "metadata")


@a_rule("a function", "det jit", jnp.linalg.det, value=numbers((3, 3)))
def wrong_determinant(v):
    return 2 * jnp.linalg.det(v.x)


@a_rule("a function's gradient", "softplus grad", jax.nn.softplus)
def still_softplus(v):
    return lax.stop_gradient(jax.nn.softplus(v.x))


@a_rule("a static argument", "median with axis=0 jit", jnp.median, value=numbers((3, 3)))
def median_of_rows(v, *, axis: int | None):
    return jnp.median(v.x, None if axis is None else 1)


@a_rule("several operands", "sort of two (numbers in another order) jit", "sort")
def sorted_apart(*vs, dimension, is_stable, num_keys):
    return [jnp.sort(v.x, dimension) for v in vs]


@a_rule("the dtype of an index", "argmax along axis 0 as int32 jit", "argmax")
def index_of_one_dtype(v, *, axes, index_dtype):
    return lax.argmax(v.x, axes[0], jnp.int8)
