"""Which parameters of equations are the same, also those that differ in one place alone."""

import functools

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend import linear_util

from jaxrewrite import _compat
from jaxrewrite._analyses.graph import flatten
from jaxrewrite._analyses.same import same, same_equation


def scaled(factor, *, by=1.0):
    return lambda x, y=2.0: x * factor + y * by


def nested(number):
    """A function whose code is the same up to a number in the code of a function in it."""
    source = f"lambda x: (1, list(map(lambda y: y + {number}, x)))"
    return eval(source)


def jaxpr(fn, *args):
    return jax.make_jaxpr(fn)(*args or (jnp.ones(2),))


@linear_util.transformation2
def first(fn, number, *args):
    return fn(*args) + number


@linear_util.transformation2
def second(fn, number, *args):
    return fn(*args) * number


def transformed(*transformations):
    """JAX's wrapper of a function, as derivative rules have it."""
    wrapped = linear_util.wrap_init(len, debug_info=jaxpr(jnp.sin).jaxpr.debug_info)
    for transformation, number in transformations:
        wrapped = transformation(wrapped, number)
    return wrapped


class Awkward:
    """A parameter that cannot be compared."""

    def __eq__(self, other):
        raise TypeError

    __hash__ = object.__hash__


AWKWARD = Awkward()

# A way to make a parameter, and parts of which no two are the same.
DIFFERENT = {
    "numbers": (lambda n: n, [3, 3.0, 2, 0.0, -0.0, 1j, True, "1", None]),
    "of two lengths": (lambda n: (1,) * n, [0, 1, 2]),
    "the first of a tuple": (lambda n: (n, 3), [1, 2, (1, 2), 1.0]),
    "the last of a list": (lambda n: [3, n], [1, 2, (1, 2), 1.0]),
    "a content": (lambda n: {"a": 3, "b": n}, [1, 2, (1,)]),
    "a key": (lambda k: {"a": 3, k: 1}, ["b", "c", "a"]),
    "an array": (np.array, [[1, 2], [1, 3], [[1, 2]], [1.0, 2.0], 1]),
    "an array within": (lambda n: (np.arange(2), np.array([3, n])), [1, 2]),
    "an equation": (
        lambda fn: jaxpr(lambda x: fn(x) + 1),
        [jnp.sin, jnp.cos, lambda x: x, lambda x: jnp.sin(x) * 1],
    ),
    "an operand": (
        lambda i: jaxpr(lambda x, y: x - (x, y)[i], jnp.ones(2), jnp.ones(2)),
        [0, 1],
    ),
    "a result": (lambda i: jaxpr(lambda x: (x, (x, x + 1)[i])), [0, 1]),
    "the number of results": (lambda n: jaxpr(lambda x: (x,) * n), [1, 2]),
    "a number in a jaxpr": (lambda n: jaxpr(lambda x: x + n), [1.0, 2.0]),
    "a constant": (lambda n: jaxpr(lambda x: x + np.array([1.0, n])), [1.0, 2.0]),
    "a parameter": (lambda n: jaxpr(lambda x: jnp.ones((2, 2)).sum(n) + x), [0, 1]),
    "a body": (
        lambda n: jaxpr(lambda x: lax.fori_loop(0, n, lambda i, c: c * 2, x)),
        [2, 3],
    ),
    "what is closed over": (scaled, [1.0, 2.0, (1.0,), (2.0,), [1.0], {"a": 1.0}]),
    "the last that is closed over": (lambda n: scaled(1.0, by=n), [1.0, 2.0, 1]),
    "captured, the first": (lambda n: scaled((n, 3.0)), [1.0, 2.0]),
    "captured, the last": (lambda n: scaled({"a": 3.0, "b": n}), [1.0, 2.0]),
    "code within": (nested, [1, 2, 1.0]),
    "partial": (lambda n: functools.partial(scaled, n), [1.0, 2.0]),
    "partial, by name": (lambda n: functools.partial(scaled, by=n), [1.0, 2.0]),
    "partial, of another": (lambda f: functools.partial(f, 1.0), [scaled, nested]),
    "transformed": (
        lambda pairs: transformed(*pairs),
        [
            *([], [(first, 1)], [(first, 2)], [(second, 1)], [(first, 1), (second, 1)]),
            *(
                [(first, 1), (second, 2)],
                [(first, 2), (second, 1)],
                [(second, 1), (first, 1)],
            ),
        ],
    ),
    "functions in C": (lambda f: f, [max, min, len]),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_parameters_that_differ_in_one_place(name):
    make, parts = DIFFERENT[name]
    for i, a in enumerate(parts):
        for j, b in enumerate(parts):
            assert same(make(a), make(b)) == (i == j), (a, b)


def test_what_cannot_be_compared_differs():
    assert same(AWKWARD, AWKWARD) and not same(AWKWARD, Awkward())
    one, other = jax.random.key(0), jax.random.key(0)
    assert same(one, one) and not same(one, other)

    def traced(x):
        assert same(x, x) and not same(x, x + 0) and not same(1.0, x) and not same(x, 1.0)
        return x

    jax.make_jaxpr(traced)(1.0)


def sort_of(*dtypes):
    def program(*xs):
        return lax.sort(xs, num_keys=1)

    return jaxpr(program, *(jnp.ones(2, dtype) for dtype in dtypes)).eqns[0]


def test_equations_that_differ_in_the_type_of_a_result():
    """The primitive and all parameters are the same."""
    one, other = sort_of("float32", "int32"), sort_of("float32", "float32")
    assert one.params == other.params
    assert same_equation(one, sort_of("float32", "int32"))
    assert not same_equation(one, other) and not same_equation(one, sort_of("float32"))


def test_the_axes_of_a_reduction_come_in_any_order():
    def sum_over(*axes):
        return jaxpr(lambda x: lax.reduce_sum_p.bind(x, axes=axes), jnp.ones((2, 2, 2)))

    def transposed(*axes):
        return jaxpr(lambda x: lax.transpose(x, axes), jnp.ones((2, 2, 2)))

    assert same(sum_over(0, 1), sum_over(1, 0)) and not same(sum_over(0, 1), sum_over(0, 2))
    assert not same(transposed(0, 2, 1), transposed(1, 0, 2))


@pytest.mark.parametrize("parameter", ["name", "out_trees", "ft_in", "axes"])
def test_a_primitive_of_a_user_has_parameters_of_its_own(parameter):
    """Names that are labels of JAX's primitives may say what another one computes."""
    choose = jax.extend.core.Primitive("reduce_by_choice")
    choose.def_abstract_eval(lambda x, **params: x)

    def equation(choice):
        return jaxpr(lambda x: choose.bind(x, **{parameter: choice})).eqns[0]

    assert same_equation(equation((0, 1)), equation((0, 1)))
    assert not same_equation(equation((0, 1)), equation((1, 0)))


def with_derivatives(by_jvp):
    """A function with two results that are the same, and whose derivatives are not."""

    def fn(x):
        return jnp.sin(x), jnp.sin(x)

    if by_jvp:
        own = jax.custom_jvp(fn)
        own.defjvp(lambda xs, tangents: (fn(*xs), (tangents[0], 2 * tangents[0])))
    else:
        own = jax.custom_vjp(fn)
        own.defvjp(lambda x: (fn(x), None), lambda _, ys: (ys[0] + 2 * ys[1],))
    return own


@pytest.mark.parametrize("by_jvp", [True, False])
def test_calls_of_which_other_results_are_used_have_other_derivatives(by_jvp):
    fn = with_derivatives(by_jvp)

    def call(used):
        def program(x):
            results = fn(x)
            return [results[i] for i in used]

        return _compat.drop_dead_code(_compat.open_jaxpr(jaxpr(program, 1.0))[0]).eqns[0]

    used = [(0,), (1,), (0, 1)]
    for one in used:
        for other in used:
            assert same_equation(call(one), call(other)) == (one == other)


def test_programs_of_one_form_differ_in_numbers_alone():
    form = lambda fn: flatten(jax.make_jaxpr(fn)(1.0, 1.0).jaxpr).form()
    assert form(lambda x, y: x - 2 * y) == form(lambda x, y: x - 3 * y)
    assert form(lambda x, y: x - 2 * y) != form(lambda x, y: 2 * y - x)
    assert form(lambda x, y: x - y) != form(lambda x, y: x - x)
