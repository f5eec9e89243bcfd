"""Mistakes of a first day: what the error names, and what it says to write."""

import re
import warnings

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxrewrite
from jaxrewrite import transform
from jaxrewrite.values import (
    Circulant,
    Constant,
    Diagonal,
    Interval,
    Kronecker,
    Lora,
    LowRank,
    Masked,
    Named,
    Quantised,
    Unitful,
    adapt,
    freeze,
    quantise,
)


class Pair(jaxrewrite.ArrayValue):
    a: jax.Array
    b: jax.Array

    def materialise(self):
        return self.a @ self.b


class Full(jaxrewrite.ArrayValue):
    fill: jax.Array
    n: int

    def materialise(self):
        return jnp.full(self.n, self.fill)


class Mode(jaxrewrite.ArrayValue):
    x: jax.Array
    mode: str

    def materialise(self):
        return self.x


WEIGHT = jnp.ones((8, 4))
X = jnp.ones((2, 8))
CODES = Quantised.quantise(WEIGHT, 8, axis=0)
PAIR = Pair(jnp.ones((8, 2)), jnp.ones((2, 4)))
MODEL = flax.linen.Dense(4)
PARAMS = {"params": {"kernel": WEIGHT, "bias": jnp.ones(4)}}
CODED = {"params": {"kernel": CODES, "bias": jnp.ones(4)}}
KEY = jax.random.key(0)
GRAVITY = Unitful(jnp.float32(9.81), "m/s^2")
TIME = Unitful(jnp.ones(8), "s")


def is_kernel(path, leaf):
    return path.endswith("kernel")


def is_nothing(path, leaf):
    return path.endswith("Kernel")


def set_entry(v):
    v[0] = 1.0


def branch_on(v):
    return v if v.sum() > 0 else -v


def negated_by_itself():
    rules = jaxrewrite.Rules()

    @rules.register("neg")
    def _(v: Pair, **params):
        return -v

    return transform(jnp.negative, rules=rules)(PAIR)


def without_parameters():
    @jaxrewrite.register("dot_general")
    def _(x: jax.Array, y: Pair):
        return x


def of_another_shape():
    rules = jaxrewrite.Rules()

    @rules.register("dot_general")
    def _(x: jax.Array, y: Pair, **params):
        return x

    return transform(jnp.matmul, rules=rules)(X, PAIR)


def misspelt_method():
    class Misspelt(jaxrewrite.ArrayValue):
        x: jax.Array

        def materialize(self):
            return self.x

    return Misspelt(X)


def chosen_by_an_interval(x):
    return lax.cond(x > 0, lambda: 1.0, lambda: 2.0)


# What is called, and what the message has to name and to say.
MISTAKES = {
    "a value is closed over": (
        lambda: transform(lambda x: jnp.dot(x, CODES))(X),
        ["CODES (Quantised)", "Pass it as an argument", "x @ value"],
    ),
    "a primitive on a value that is closed over": (
        lambda: transform(lambda x: lax.dot(x, CODES))(X),
        ["closes over CODES (Quantised)", "Pass it as an argument"],
    ),
    "parameters that are closed over": (
        lambda: transform(lambda x: jnp.dot(x, CODED["params"]["kernel"]))(X),
        ["closes over CODED (Quantised)", "Pass it as an argument"],
    ),
    "a model that closes over its parameters": (
        lambda: transform(lambda x: MODEL.apply(CODED, x))(X),
        ["Quantised dense", "pass as an argument what fn closes over"],
    ),
    "a value that is closed over in a branch": (
        lambda: transform(lambda x: lax.cond(True, lambda: CODES, lambda: x))(WEIGHT),
        ["closes over CODES (Quantised)", "Pass it as an argument"],
    ),
    "the bytes of a value": (
        lambda: PAIR.nbytes,
        ["'Pair'", "jaxrewrite.values.nbytes(value).implicit"],
    ),
    "units that are closed over": (
        lambda: transform(lambda t: GRAVITY * t**2)(TIME),
        ["Unitful of a Unitful", "closes over GRAVITY (Unitful)", "Pass it as an argument"],
    ),
    "units that are closed over, in a sum": (
        lambda: transform(lambda t: GRAVITY * t**2 + Unitful(X[0], "m"))(TIME),
        ["m s^-2 and m", "closes over GRAVITY (Unitful)", "Pass it as an argument"],
    ),
    "units that are closed over, met by the arguments": (
        lambda: transform(lambda t: GRAVITY * t + GRAVITY)(TIME),
        ["s and 1", "closes over GRAVITY (Unitful)", "Pass it as an argument"],
    ),
    "units that are closed over, under jit": (
        lambda: jax.jit(transform(lambda t: jnp.sum(GRAVITY * t)))(TIME),
        ["closes over GRAVITY (Unitful)", "Pass it as an argument"],
    ),
    "units that are closed over, without transform": (
        lambda: jax.jit(lambda t: jnp.sum(GRAVITY * t))(TIME),
        ["Unitful", "pass it as an argument"],
    ),
    "a function of JAX on a value": (
        lambda: jnp.sum(PAIR),
        ["Pair", "jaxrewrite.transform(fn)(value)", "jaxrewrite.numpy"],
    ),
    "jit without transform": (
        lambda: jax.jit(jnp.exp)(Diagonal(jnp.ones(3))),
        ["Diagonal", "jaxrewrite.transform(fn)(value)"],
    ),
    "a model without transform": (
        lambda: MODEL.apply(CODED, X),
        ["Quantised dense", "jaxrewrite.transform(fn)(value)"],
    ),
    "a model without transform under jit": (
        lambda: jax.jit(MODEL.apply)(CODED, X),
        ["Quantised", "jax.jit(jaxrewrite.transform(fn))(value)"],
    ),
    "a method of arrays": (
        lambda: CODES.sum(),
        ["Quantised", "jaxrewrite.numpy.sum(value)"],
    ),
    "an entry is set": (lambda: set_entry(PAIR), ["Pair", "x.at[index].set(entries)"]),
    "a branch of Python": (
        lambda: transform(branch_on)(CODES),
        ["branch_on", "Quantised", "lax.cond"],
    ),
    "a truth value": (lambda: bool(PAIR), ["Pair", "jaxrewrite.materialise(value)"]),
    "a number of Python without static=True": (
        lambda: transform(jnp.exp)(Full(2.0, 3)),
        ["Full", "n: int = jaxrewrite.field(static=True)"],
    ),
    "a text without static=True": (
        lambda: transform(jnp.exp)(Mode(X, "fast")),
        ["Mode", "jaxrewrite.field(static=True)"],
    ),
    "a list for an array": (
        lambda: Pair([1.0, 2.0], X),
        ["Pair", "a is a list", "jax.numpy.asarray"],
    ),
    "a type without materialise": (
        misspelt_method,
        ["Misspelt", "define materialise()"],
    ),
    "a format in capitals": (
        lambda: quantise(PARAMS, is_kernel, "NF4"),
        ["quantise", "'NF4'", "'nf4'"],
    ),
    "a format in place of what chooses": (
        lambda: quantise(PARAMS, "nf4"),
        ["quantise", "where, the second argument", "lambda path, leaf"],
    ),
    "no leaf to quantise": (
        lambda: quantise(PARAMS, is_nothing),
        ["quantise", "params/kernel", "params/bias"],
    ),
    "no leaf to adapt": (
        lambda: adapt(PARAMS, is_nothing, 2, KEY),
        ["adapt", "params/kernel", "params/bias"],
    ),
    "a leaf that has no blocks": (
        lambda: quantise(PARAMS, lambda path, leaf: True, block=(8, 1)),
        ["params/bias", "block", "(4,)"],
    ),
    "a number for a key": (
        lambda: adapt(PARAMS, is_kernel, 2, 0),
        ["adapt", "key is 0", "jax.random.key(0)"],
    ),
    "a rank that is no low rank": (
        lambda: adapt(PARAMS, is_kernel, 200, KEY),
        ["params/kernel", "(8, 4)", "lower rank"],
    ),
    "factors that do not fit": (
        lambda: Lora(WEIGHT, jnp.ones((4, 2)), jnp.ones((2, 8))),
        ["Lora", "(8, 4)", "`a` and `b`"],
    ),
    "a name for a class": (
        lambda: freeze(PARAMS, {"Lora": ["w"]}),
        ["freeze", "'Lora' is no class", '{Lora: ["w"]}'],
    ),
    "a list of factors": (
        lambda: Kronecker([jnp.eye(2), jnp.eye(2)]),
        ["Kronecker", "Kronecker(a, b)"],
    ),
    "units that differ": (
        lambda: Unitful(X, "km") + Unitful(X, "m"),
        ["km and m", "Unitful.to"],
    ),
    "a number without units": (
        lambda: Unitful(X, "m") + 1,
        ["m and 1", "Unitful(1.0, 'm')"],
    ),
    "an angle": (
        lambda: transform(jnp.sin)(Unitful(X, "rad")),
        ["sin", "rad", 'x.to("1")'],
    ),
    "a length as an angle": (
        lambda: transform(jnp.exp)(Unitful(X, "m")),
        ["exp", "Divide by a unit", 'Unitful(1.0, "m")'],
    ),
    "units as a NumPy array": (
        lambda: np.asarray(Unitful(X, "m")),
        ["Unitful", "units, m"],
    ),
    "axes of other names": (
        lambda: Named(jnp.ones((2, 2)), "ab") + Named(jnp.ones((2, 2)), "ba"),
        ["'a'", "'b'", "Transpose", "Named(x.array, names)"],
    ),
    "the name of an axis in a transformed function": (
        lambda: transform(lambda x, y: jnp.sum(x * y, axis="batch"))(
            Named(X, ["batch", None]), X
        ),
        ["numbers alone", "jaxrewrite.numpy take names"],
    ),
    "a sum of two points": (
        lambda: Unitful(X, "degC") + Unitful(X, "degC"),
        ["degC has an offset", "delta_degC"],
    ),
    "a predicate that is not known": (
        lambda: transform(chosen_by_an_interval)(Interval(-1.0, 1.0)),
        ["Interval", "chooses a branch", "cond"],
    ),
    "a factor that is dense": (
        lambda: transform(jnp.linalg.cholesky)(
            Diagonal(jnp.ones(4)) + LowRank(jnp.ones((4, 1)), jnp.ones((1, 4)))
        ),
        ["Sum", "cholesky", "pattern_tables.rst"],
    ),
    "a factor that is no matrix": (
        lambda: transform(lambda a: jnp.sort(jax.scipy.linalg.cho_factor(a)[0]))(
            Circulant(jnp.array([3.0, 1.0, 0.0, 1.0]))
        ),
        ["CholeskyFactor", "stands for a factor", "jnp.linalg.solve(matrix, b)"],
    ),
    "a function for a primitive": (
        lambda: jaxrewrite.register("matmul"),
        ["'matmul'", "jax.make_jaxpr(jax.numpy.matmul)(*arrays)"],
    ),
    "a number for a primitive": (
        lambda: jaxrewrite.register(3),
        ["such as 'add'", "jax.make_jaxpr(fn)(*arrays)"],
    ),
    "a rule without parameters": (
        without_parameters,
        ["dot_general", "dimension_numbers", "**params"],
    ),
    "a rule that returns another shape": (
        of_another_shape,
        ["of_another_shape", "f32[2,8]", "f32[2,4]"],
    ),
    "a rule that calls itself": (
        negated_by_itself,
        ["Pair", "it calls itself", "the value's fields"],
    ),
    "a word that is no policy": (
        lambda: transform(jnp.sum, materialise="forbidden")(CODES),
        ["'warn', 'allow', 'forbid'", "'forbidden'"],
    ),
    "a result for a function": (
        lambda: transform(jnp.sum(WEIGHT))(X),
        ["transform takes a function"],
    ),
    "operands that do not fit": (
        lambda: transform(jnp.matmul)(X, Diagonal(jnp.ones(3))),
        ["(8,)", "(3,)", "Diagonal:f32[3,3]"],
    ),
    "a field of a value in a program": (
        lambda: transform(lambda v: v.d * 2)(Diagonal(X[0])),
        ["no attribute d", "of type Diagonal are arrays in", "have no d there"],
    ),
    "a method of a value in a program": (
        lambda: transform(lambda v, x: x @ v.merge())(
            Lora(WEIGHT, jnp.ones((8, 2)), jnp.ones((2, 4))), X
        ),
        ["no attribute merge", "of type Lora are arrays in", "have no merge there"],
    ),
    "one number of many": (lambda: f"{PAIR:.2f}", ["Pair", "(8, 4)", "value[0]"]),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_the_message_says_what_to_write(name):
    make, said = MISTAKES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises((Exception, UserWarning)) as caught:
            make()
    message = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert [part for part in said if part not in message] == []
    # JAX prints classes with their modules.
    assert "jaxrewrite.values._" not in re.sub("<class '.*?'>", "", message)


class Mute:
    """An object that has something to say when JAX asks whether it is an array."""

    @property
    def __jax_array__(self):
        raise ValueError("Nobody reads this.")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("operand", [Mute(), CODES])
def test_an_operand_of_a_primitive_has_no_say_in_the_message_of_jax(operand):
    """JAX asks in compiled code, which ignores errors. If that changes, values can speak."""
    with pytest.raises(TypeError) as caught:
        lax.add(operand, 1.0)
    assert str(caught.value).startswith(
        "Error interpreting argument to add as a JAX value."
    )
    assert f"{type(operand)}" in str(caught.value)


def test_flax_compares_shapes_of_leaves_before_a_value_is_asked_anything():
    packed = quantise(PARAMS, is_kernel, 4)
    with pytest.raises(flax.errors.ScopeParamShapeError, match="kernel"):
        MODEL.apply(packed, X)
    assert transform(MODEL.apply)(packed, X).shape == (2, 4)


def solver(c, z):
    doubled = c * 2.0
    factor = jnp.linalg.cholesky(doubled)  # This line is the one to name.
    return jnp.sort(factor) @ z


def test_notes_name_the_line_of_the_program():
    """Also where JAX's own function holds the equation, whose body knows no user's line."""
    with pytest.raises(jaxrewrite.MaterialisationError) as caught:
        transform(solver, materialise="forbid")(Circulant(jnp.ones(4)), jnp.ones(4))
    places = [
        line
        for note in caught.value.__notes__
        for line in note.splitlines()
        if " at " in line
    ]
    line = solver.__code__.co_firstlineno + 2
    assert places == [f"  at {__file__}:{line} (solver)"]


READY = {
    "Diagonal": lambda: Diagonal(jnp.ones(3)),
    "Lora": lambda: Lora(WEIGHT, jnp.ones((8, 2)), jnp.ones((2, 4))),
    "Named": lambda: Named(X, "ab"),
    "Interval": lambda: Interval(X, X + 1),
    "Masked": lambda: Masked(X, X > 0),
    "Pair": lambda: PAIR,
}


@pytest.mark.parametrize("how", [transform, lambda fn: jax.jit(transform(fn))])
@pytest.mark.parametrize("name", READY)
def test_every_type_that_is_closed_over_is_named(name, how):
    held = READY[name]()
    with pytest.raises(TypeError) as caught:
        how(lambda x: jnp.sum(held) + x)(TIME)
    assert f"closes over held ({name})" in "".join(caught.value.__notes__)


def test_what_a_function_makes_is_not_closed_over():
    def program(x):
        made = Diagonal(x)
        return lax.map(lambda y: jnp.sum(made) + y, x)

    with pytest.raises(TypeError) as caught:
        transform(program)(Constant(1.0, (3,)))
    assert "closes over" not in "".join(caught.value.__notes__)


def test_numbers_of_scalars_are_those_of_the_array():
    assert float(Constant(2.5, ())) == 2.5
    assert int(Constant(2, ())) == 2
    assert complex(Constant(2j, ())) == 2j
    with pytest.raises(jaxrewrite.MaterialisationError, match="Unitful.*units, m"):
        float(Unitful(jnp.float32(1), "m"))
