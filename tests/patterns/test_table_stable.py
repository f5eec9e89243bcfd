"""The patterns of `jaxrewrite.patterns.stable`: what they find, and that they are better."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from choose import often
from pattern_tables import look_alikes, spied
from patterns import stable_exact

import jaxrewrite
from jaxrewrite import patterns


pytestmark = pytest.mark.usefixtures("bulk")

TABLE = patterns.stable

# Numbers of all sizes, and those that are special to some of the formulas.
SIZES = np.concatenate([[0.0], np.logspace(-37, 37, 75), np.logspace(-3, 2.2, 80)])
SPECIAL = [np.inf, -np.inf, np.nan, 1, -1, 88, -88, 104, -104, 0.5, -0.5]
NUMBERS = np.concatenate([SIZES, -SIZES, SPECIAL]).astype(np.float32)


def _cases(rank):
    for n, pattern in enumerate(TABLE.patterns):
        for statics in pattern.statics.combinations(rank):
            if statics.get("axis", 1) == 1:
                words = "-".join(str(v) for k, v in statics.items() if k != "axis")
                name = f"{n}-{pattern.fn.__name__}-{words}"
                yield pytest.param(pattern, statics, id=name)


# Each pattern, with each choice of its static parameters at matrices.
CASES = list(_cases(2))


def scalars(pattern):
    return [[2.0], [-2.0], [1e10]] if pattern.scalars else [[]]


def names_in(pattern):
    return pattern.before.__code__.co_names


def numbers_for(pattern):
    """Arrays for the operands: for reductions pairs of numbers, for pairs all combinations."""
    rng = np.random.default_rng(0)
    count = len(pattern.names) - len(pattern.scalars)
    if any(name == "axis" for name, _ in pattern.statics.domains):
        rows = [
            np.stack([NUMBERS, np.roll(NUMBERS, 1)], 1),
            rng.choice(NUMBERS, (300, 2)),
            rng.normal(size=(100, 2)) * 100,
            rng.normal(size=(100, 2)) + 1e4,
        ]
        x = np.concatenate(rows).astype(np.float32)
        second = np.abs(rng.choice(NUMBERS, x.shape))
        second = np.where(second < 1e6, second, 2).astype(np.float32)
        second[:50] = 0
        return [x, second][:count]
    if count == 1:
        return [NUMBERS]
    some = np.concatenate([NUMBERS[::6], [np.inf, -np.inf, 0, 1, -1]])
    near = rng.normal(size=500)
    x, y = (m.ravel() for m in np.meshgrid(some, some))
    y = np.concatenate([y, near * (1 + 1e-4 * rng.normal(size=500))])
    return [np.concatenate([x, near]).astype(np.float32), y.astype(np.float32)]


def value_and_gradients(fn, args):
    out, pull = jax.vjp(fn, *args)
    weights = np.resize(np.asarray([1, -2, 0.5], out.dtype), out.shape)
    return [np.asarray(a, np.float64) for a in (out, *pull(weights))]


@jax.numpy_dtype_promotion("standard")
def compared(pattern, statics, numbers):
    """Value and gradients of both functions in single precision, and in double precision."""
    args = numbers_for(pattern)
    both = [
        jax.jit(lambda *a, fn=fn: fn(*a, *numbers, **statics))
        for fn in (pattern.before, pattern.fn)
    ]
    narrow = [value_and_gradients(fn, [jnp.asarray(a) for a in args]) for fn in both]
    with jax.enable_x64(True):
        wide = [jnp.asarray(a.astype(np.float64)) for a in args]
        exact = [value_and_gradients(fn, wide) for fn in both]
    return *narrow, *exact


def error(got, exact):
    """The relative error, infinite for what should or should not be a number."""
    with np.errstate(all="ignore"):
        relative = np.abs(got - exact) / np.maximum(np.abs(exact), 1e-30)
        same = (got == exact) | (np.isnan(got) & np.isnan(exact))
        too_large = (np.abs(exact) > 3.4e38) & np.isinf(got)
    return np.nan_to_num(np.where(same | too_large, 0, relative), nan=np.inf)


# A softmax's derivative in a constant direction, and the logarithms of numbers next to 1,
# have no relative precision; their errors are those of one rounding.
ABSOLUTE = {"softmax", "log_softmax", "log_mean_exp", "shifted_softmax"}


def test_some_formulas_in_one_program():
    """At 80 and at 1e-5 all of these lose all of their digits, and none does afterwards."""

    def formulas(x, y):
        far = 300 * x + y
        return {
            "log_sum_exp": jnp.log(jnp.sum(jnp.exp(x + 20), axis=-1)),
            "softplus": jnp.log(1 + jnp.exp(x + 20))[:, 0],
            "log_one_minus_exp": jnp.log(1 - jnp.exp(-y))[:, 0],
            "exp_minus_one": (jnp.exp(y) - 1)[:, 0],
            "log_sigmoid": jnp.log(jax.nn.sigmoid(-x - 40))[:, 0],
            "variance": jnp.mean(far**2, axis=1) - jnp.mean(far, axis=1) ** 2,
            "square_root_of_squares": jnp.sqrt((1e30 * x) ** 2 + (1e30 * y) ** 2)[:, 0],
        }

    rules, answers = spied(TABLE, list(formulas(jnp.ones((1, 1)), jnp.ones((1, 1)))))
    x = np.asarray([[80.0, 79.0], [60.0, 61.0]], np.float32)
    y = np.asarray([[1e-5, 1e-5], [1e-6, 1e-6]], np.float32)
    rewritten = jaxrewrite.transform(formulas, rules=rules)

    def total(fn):
        def of(*args):
            results = fn(*args)
            return sum(value.sum() for value in results.values()), results

        return of

    both = jax.jit(jax.grad(total(rewritten), (0, 1), has_aux=True))
    gradients, results = both(x, y)
    assert sorted(answers) == sorted(results)
    with jax.enable_x64(True):
        wide = jax.jit(jax.grad(total(formulas), (0, 1), has_aux=True))
        exact, expected = wide(x.astype(np.float64), y.astype(np.float64))
    for name, value in results.items():
        np.testing.assert_allclose(value, expected[name], 2e-6, err_msg=name)
    for got, want in zip(gradients, exact, strict=True):
        np.testing.assert_allclose(got, want, 1e-5)


def test_each_rule_is_its_formula_at_harmless_numbers():
    """And a number at large ones, where no pattern is looked for in what it returns."""
    rows = np.linspace(0.2, 0.9, 12, dtype=np.float32).reshape(2, 3, 2)
    for case in CASES:
        pattern, statics = case.values
        (number, *_) = scalars(pattern)
        args = [rows[1], rows[0]][: len(pattern.names) - len(number)]
        finite = []
        for sign in (1, -1):
            operands = *(sign * x for x in args), *number
            got = pattern.fn(*operands, **statics)
            finite.append(np.isfinite(got).all())
            wanted = pattern.before(*operands, **statics)
            np.testing.assert_allclose(got, wanted, 1e-4, 1e-6, err_msg=case.id)
        assert any(finite), case.id  # Some formulas are of negative numbers alone.
        if pattern.keep:
            got = pattern.fn(*[400 * rows[1]] * len(args), *number, **statics)
            assert np.isfinite(got).all(), case.id


@pytest.mark.slow
@pytest.mark.parametrize("pattern, statics", CASES)
def test_no_value_and_no_gradient_is_worse(pattern, statics, xla):
    """NumPy has numbers below the least normal one, which XLA on a CPU has not."""
    for numbers in scalars(pattern):
        before, after, exact, exact_after = compared(pattern, statics, numbers)
        for old, new, *exacts in zip(before, after, exact, exact_after, strict=True):
            assert not (np.isnan(new) & ~np.isnan(old)).any()
            # In double precision, too, one of the two may be the better.
            errors = [np.minimum(*(error(x, e) for e in exacts)) for x in (old, new)]
            worse = errors[1] / 8 > np.maximum(errors[0], 1e-6)
            if pattern.fn.__name__ in ABSOLUTE:
                with np.errstate(invalid="ignore"):
                    worse &= ~(np.abs(new - exacts[1]) <= 1e-6)
            assert not worse.any(), [a[worse] for a in (*numbers_for(pattern), old, new)]


@pytest.mark.slow
@pytest.mark.parametrize("pattern, statics", CASES)
def test_second_derivatives_stay_numbers(pattern, statics):
    """Not so at -0, where the infinite terms of some have opposite signs."""
    (number, *_) = scalars(pattern)
    args = [
        jnp.asarray(a[(np.isfinite(a) & (a != 0)).reshape(len(a), -1).all(1)][:400])
        for a in numbers_for(pattern)
    ]
    args = [a[: min(map(len, args))] for a in args]

    def second(fn):
        slope = lambda *a: jax.jvp(  # noqa: E731
            lambda *b: fn(*b, *number, **statics), a, tuple(map(jnp.ones_like, a))
        )[1]
        return np.asarray(
            jax.jit(lambda *a: jax.jvp(slope, a, tuple(map(jnp.ones_like, a)))[1])(*args)
        )

    old, new = second(pattern.before), second(pattern.fn)
    # At the borders of their domains functions have derivatives that are infinite.
    worse = np.isnan(new) & np.isfinite(old)
    assert not worse.any(), [a[worse] for a in (*args, old)]


@pytest.mark.slow
@pytest.mark.parametrize("pattern, statics", CASES)
def test_each_formula_is_found_and_its_look_alikes_are_not(pattern, statics):
    (number, *_) = scalars(pattern)
    fn = lambda *a: pattern.before(*a, *number, **statics)  # noqa: E731
    args = [jnp.full((3, 3), 0.5)] * (len(pattern.names) - len(pattern.scalars))
    rules, answers = spied(TABLE, [pattern])
    for dtype in (jnp.float32, jnp.bfloat16):
        # JAX's normal distribution is for single and double precision.
        if dtype == jnp.float32 or not {"ndtr", "log_ndtr"} & {*names_in(pattern)}:
            operands = [x.astype(dtype) for x in args]
            jaxpr = jaxrewrite.make_jaxpr(fn, rules=rules)(*operands)
            assert len(answers) == 1
            answers.clear()
            assert jaxpr.out_avals[0].dtype == dtype
    alike = dict(look_alikes(fn, *args, scalars=number, keeps=pattern.keep))
    # A function of a library is one equation, in which nothing can be changed.
    assert len(alike) >= 5 or pattern.fn.__name__.startswith("library")
    for what, program in alike.items():
        jaxrewrite.make_jaxpr(program, rules=rules)(*args)
        assert not answers, what


# Formulas that look like one of the table, and a rule that must not answer.
OTHER = {
    "log_sum_exp": [
        lambda x: jnp.log(jnp.sum((e := jnp.exp(x)), axis=1)) + e.sum(),
        lambda x: jnp.log(jnp.max(jnp.exp(x), axis=1)),
        lambda x: jnp.log1p(jnp.sum(jnp.exp(x), axis=1)),
        lambda x: jnp.log(jnp.sum(jnp.exp2(x), axis=1)),
        lambda x: jnp.log(jnp.cumsum(jnp.exp(x), axis=1)),
        lambda x: jnp.log(jnp.sum(jnp.exp(x), axis=1) + 1e-6),
    ],
    "softmax": [
        lambda x: jnp.exp(x) / jnp.sum(jnp.exp(x), axis=1),
        lambda x: jnp.exp(x) / jnp.sum(jnp.exp(-x), axis=1, keepdims=True),
        lambda x: jnp.exp(x) / jnp.sum(jnp.exp(x.T), axis=1, keepdims=True),
        lambda x: jnp.exp(x) / jnp.max(jnp.exp(x), axis=1, keepdims=True),
        lambda x: jnp.exp(x) * jnp.sum(jnp.exp(x), axis=1, keepdims=True),
    ],
    "variance": [
        lambda x: jnp.mean(x * x, axis=1) - jnp.mean(x, axis=0) ** 2,
        lambda x: jnp.mean(x * x, axis=1) - jnp.mean(x, axis=1),
        lambda x: jnp.mean(x**3, axis=1) - jnp.mean(x, axis=1) ** 2,
        lambda x: jnp.mean(x * x, axis=1) + jnp.mean(x, axis=1) ** 2,
        lambda x: jnp.sum(x * x, axis=1) / 2 - jnp.mean(x, axis=1) ** 2,
    ],
    "log_softmax": [
        lambda x: jnp.log(jax.nn.softmax(x, axis=1) + 1e-6),
        lambda x: jnp.log(jax.nn.softmax(x, axis=1).sum(1)),
        lambda x: jnp.log1p(jax.nn.softmax(x, axis=1)),
        lambda x: jnp.log(jnp.clip(jax.nn.softmax(x, axis=1), 1e-6)),
        lambda x: jnp.log(jax.nn.softmax(x, axis=1, where=x > 0)),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHER)
def test_other_formulas_stay(name):
    x = jnp.ones((3, 3))
    rules, answers = spied(TABLE, [name])
    for fn in OTHER[name]:
        jaxrewrite.make_jaxpr(fn, rules=rules)(x)
    assert not answers


def test_what_jax_shifts_is_found_as_stable():
    x = jnp.ones((3, 4))
    for fn, name in (
        (jax.nn.softmax, "shifted_softmax"),
        (jax.nn.log_softmax, "shifted_log_sum_exp"),
    ):
        used = jaxrewrite.explain(fn, rules=TABLE)(x).rules
        assert [rule.name for rule in used] == [name]


@pytest.mark.slow
def test_sums_of_nothing():
    x = jnp.ones((3, 0))
    for fn in [
        lambda x: jnp.log(jnp.sum(jnp.exp(x), axis=1)),
        lambda x: jnp.log(jnp.mean(jnp.exp(x), axis=1)),
        lambda x: jnp.log(jnp.sum(x * jnp.exp(x), axis=1)),
        lambda x: jnp.exp(x) / jnp.sum(jnp.exp(x), axis=1, keepdims=True),
    ]:
        rewritten = jaxrewrite.transform(fn, rules=TABLE)
        np.testing.assert_array_equal(rewritten(x), fn(x))


@pytest.mark.parametrize("x, y", [(-1, -1), (-1, 1), (1, -1), (-3, -2)])
def test_equal_squares_have_a_difference_without_sign(x, y):
    fn = jaxrewrite.transform(lambda x, y: 1 / (x**2 - y**2), rules=TABLE)
    assert fn(jnp.float32(x), jnp.float32(y)) == (np.inf if x * x == y * y else 0.2)


@pytest.mark.parametrize("x", [0.0, -0.0])
def test_poles_have_the_sign_of_zero(x):
    """As they have in what was written, where it takes the sign into account."""
    for fn in (
        lambda x: jnp.log(-jnp.expm1(x)),
        lambda x: jnp.log(jnp.expm1(x)),
        lambda x: jnp.log(1 - jnp.exp(x)),
        lambda x: jnp.log(jnp.exp(x) - 1),
    ):
        assert jaxrewrite.explain(fn, rules=TABLE)(x).rules
        found = jaxrewrite.transform(fn, rules=TABLE)
        assert jax.grad(found)(x) == jax.grad(fn)(x)


@pytest.mark.slow
def test_derivatives_in_half_precision_do_not_overflow():
    for fn, at in [
        (lambda x: jnp.log(x + 1e4) - jnp.log(x), 11.0),
        (lambda x: jnp.sqrt(x + 1e4) - jnp.sqrt(x), 2.0**-23),
    ]:
        x = jnp.float16(at)
        exact = jax.grad(fn)(jnp.float32(at))
        got = jax.jit(
            jax.grad(lambda x, fn=fn: 0.25 * jaxrewrite.transform(fn, rules=TABLE)(x))
        )(x)
        np.testing.assert_allclose(got, exact * 0.25, 1e-2)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_lengths_of_all_small_numbers_have_derivatives(dtype):
    """Also second ones, of which those here are multiplied by the size."""
    fn = jaxrewrite.transform(lambda x, y: jnp.sqrt(x * x + y * y), rules=TABLE)

    @jax.jit
    def derivatives(size):
        args = jnp.asarray(3 * size, dtype), jnp.asarray(4 * size, dtype)
        (first, second), hessian = (
            jax.grad(fn, (0, 1))(*args),
            jax.hessian(fn)(*args) * size,
        )
        return jnp.stack([first, second, hessian]).astype(jnp.float32)

    for exponent in range(-100, 0):
        got = derivatives(2.0**exponent)
        np.testing.assert_allclose(got, [0.6, 0.8, 0.128], 1e-2, err_msg=str(exponent))


@pytest.mark.parametrize("x", [0.0, 8.0, 30.0])
def test_logarithms_of_probabilities_have_second_derivatives(x):
    for fn, at in [
        (lambda x: jnp.log(jax.nn.sigmoid(x)), -x),
        (lambda x: jnp.log(1 / (1 + jnp.exp(-x))), -x),
        (lambda x: jnp.log(1 - jax.nn.sigmoid(x)), x),
    ]:
        got = jax.hessian(jaxrewrite.transform(fn, rules=TABLE))(jnp.float32(at))
        np.testing.assert_allclose(got, -np.exp(-x) / (1 + np.exp(-x)) ** 2, 1e-5)


def test_derivatives_of_negative_products_stay():
    """A program may select something else where the logarithm is no number."""
    fn = lambda x: jnp.log(jnp.prod(x))  # noqa: E731
    x = jnp.array([2.0, -4.0])
    rewritten = jaxrewrite.transform(fn, rules=TABLE)
    assert jnp.isnan(rewritten(x))
    np.testing.assert_allclose(jax.grad(rewritten)(x), jax.grad(fn)(x))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16])
def test_weights_of_exponentials_may_be_huge(dtype):
    weights = jnp.array([jnp.finfo(dtype).max, 1, 0], dtype)
    fn = lambda x: jnp.log(jnp.sum(weights * jnp.exp(x)))  # noqa: E731
    rewritten = jaxrewrite.transform(fn, rules=TABLE)
    for x in [(0.0, -1.0, 1.0), (50.0, 3.0, 0.0), (3.0, 5.0, 5.0)]:
        exact = np.log(np.sum(np.asarray(weights, np.float64) * np.exp(x)))
        value, slopes = jax.value_and_grad(rewritten)(jnp.array(x, dtype))
        np.testing.assert_allclose(value, exact, 1e-3)
        share = np.asarray(weights, np.float64) * np.exp(np.asarray(x) - exact)
        np.testing.assert_allclose(slopes, share, 1e-2, 1e-4)


def test_weights_of_exponentials_may_be_zero():
    """Also where second derivatives are computed, as of a mixture by Newton's method."""
    fn = lambda x, weights: jnp.log(jnp.sum(weights * jnp.exp(x)))  # noqa: E731
    args = jnp.array([0.5, -0.3, 0.2]), jnp.array([1.0, 0.0, 2.0])
    old, new = (
        jax.hessian(f, (0, 1))(*args) for f in (fn, jaxrewrite.transform(fn, rules=TABLE))
    )
    np.testing.assert_allclose(new, old, 1e-5, 1e-6)


@pytest.mark.parametrize("dtype, accuracy", [("float32", 2e-6), ("float64", 1e-12)])
def test_derivatives_of_logarithms_of_normal_probabilities(dtype, accuracy):
    with jax.enable_x64(True):
        x = np.concatenate([np.linspace(-40, 3, 87), [-7.0, -30.0]]).astype(dtype)
        wide = x.astype(np.float64)
        log_density = -(wide**2) / 2 - np.log(2 * np.pi) / 2
        slope = np.exp(log_density - scipy.special.log_ndtr(wide))
        fn = jaxrewrite.transform(lambda x: jnp.log(jax.scipy.special.ndtr(x)), rules=TABLE)
        first = jax.grad(fn)
        np.testing.assert_allclose(jax.vmap(first)(x), slope, accuracy)
        second = jax.vmap(jax.grad(first))(x)
        # The sum of the two terms loses digits for large -x, where the result is about -1.
        np.testing.assert_allclose(second, -slope * (wide + slope), 1e-3, 1e-3)


# --- numbers of 16 bits ---------------------------------------------------------------------


SHORT = [np.dtype(np.float16), np.dtype(jnp.bfloat16)]

# JAX's normal distribution is for single and double precision. What is stable stays.
NOT_SHORT = {
    *("log_normal_probability", "log_normal_survival", "library_hypot", "library_ndtr"),
    *(
        "library_log_ndtr",
        "shifted_softmax",
        "shifted_log_sum_exp",
        "softmax_below_maximum",
    ),
}


def test_each_formula_of_numbers_of_16_bits_is_known():
    names = {pattern.fn.__name__ for pattern in TABLE.patterns}
    assert names - NOT_SHORT == set(stable_exact.EXACT)


def all_numbers(dtype):
    """All numbers of 16 bits, of which some are infinite or not a number."""
    return np.arange(2**16, dtype=np.uint16).view(dtype)


def some_numbers(dtype, step):
    """Powers of two with both signs, what is next to the ends, and what is special."""
    info = jnp.finfo(dtype)
    powers = 2.0 ** np.arange(info.minexp - info.nmant, info.maxexp, step)
    ends = [info.max, info.tiny, 3 * float(info.smallest_subnormal), np.inf]
    sizes = np.concatenate([powers, np.asarray(ends, float), [0, 1, 1.5, 3, 11, 88]])
    return np.concatenate([sizes, -sizes, [np.nan]]).astype(dtype)


def short_operands(pattern, dtype, step):
    rng = np.random.default_rng(0)
    count = len(pattern.names) - len(pattern.scalars)
    x = all_numbers(dtype)
    if count > 1 or is_reduction(pattern):
        x = x[::step]
    others = [x, -x, np.roll(x, 1), rng.permutation(x)]
    reciprocals = (1 / x.astype(np.float64)).astype(dtype)
    if count == 1 and not is_reduction(pattern):
        return [x]
    if count == 1:
        others = [*others, 0 * reciprocals, reciprocals]
        return [np.concatenate([np.stack([x, y], 1) for y in others])]
    if is_reduction(pattern):
        weights = np.abs(x[np.isfinite(x)])
        near = (rng.normal(size=(2, 50_000, 2)) * 5).astype(dtype)
        near[1] = np.abs(near[1])
        far = rng.choice(x, (50_000, 2)), rng.choice(weights, (50_000, 2))
        return [np.concatenate(both) for both in zip(far, near, strict=True)]
    some = np.meshgrid(*[some_numbers(dtype, step)] * 2)
    return [
        np.concatenate([some[0].ravel(), *[x] * len(others)]),
        np.concatenate([some[1].ravel(), *others]),
    ]


def is_reduction(pattern):
    has_axis = any(name == "axis" for name, _ in pattern.statics.domains)
    return has_axis or pattern.fn.__name__ == "softmax_of_all"


def value_and_slopes(fn, args):
    """The value, the gradients, and the tangent that a function of one operand has."""
    out, pull = jax.vjp(fn, *args)
    if out.ndim == 2:
        weights = jnp.asarray(stable_exact.WEIGHTS, out.dtype)
        return [out, *pull(jnp.broadcast_to(weights, out.shape))]
    slopes = pull(jnp.ones_like(out))
    if len(args) == 1 and args[0].ndim == 1:
        slopes = *slopes, jax.jvp(fn, args, (jnp.ones_like(args[0]),))[1]
    return [out, *slopes]


def places(got, exact, dtype):
    """The error in units of the last place of the exact result.

    An infinity counts as the first power of two that is too large.
    """
    info = jnp.finfo(dtype)
    limit = 2.0**info.maxexp
    exponent = np.clip(np.log2(np.abs(exact)), info.minexp, info.maxexp - 1)
    unit = 2.0 ** (np.floor(exponent) - info.nmant)
    error = np.abs(np.clip(got, -limit, limit) - np.clip(exact, -limit, limit)) / unit
    error = np.where(np.isnan(exact), np.where(np.isnan(got), 0, np.inf), error)
    return np.where(np.isnan(got) & ~np.isnan(exact), np.inf, error)


def exact_results(name, operands, numbers):
    """The exact results, also for operands of which subnormal ones are taken for zeros."""
    normal = 0 if operands[0].dtype == np.float16 else 2.0**-126
    wide = [x.astype(np.float64) for x in operands]
    flushed = [np.where(np.abs(x) < normal, np.copysign(0, x), x) for x in wide]
    both = [stable_exact.EXACT[name](*x, *numbers) for x in (wide, flushed)]
    # The last slope is also the tangent.
    return [(*results, results[-1]) for results in both]


def name_of(case):
    pattern, _ = case.values
    return pattern.fn.__name__


@np.errstate(all="ignore")
def assert_no_result_is_worse(pattern, statics, dtype, numbers, run, step):
    """Compare all results with exact ones.

    The error is not larger than that of the formula, or 0.51 units in the last place: it is
    rounded once. In bfloat16, whose range is that of float32, XLA for a CPU takes numbers for
    zero that are not normal ones, and twice the smallest normal one may be lost.
    """
    operands = short_operands(pattern, dtype, step)
    numbers = [float(np.asarray(number, dtype)) for number in numbers]
    exact = exact_results(pattern.fn.__name__, operands, numbers)
    lost = 0 if dtype == np.float16 else 2.0**-125

    def results(fn):
        def of(*args):
            return fn(*args, *numbers, **statics)

        one = jax.vmap(of) if pattern.fn.__name__ == "softmax_of_all" else of
        found = run(lambda *args: value_and_slopes(one, args))(*map(jnp.asarray, operands))
        assert all(x.dtype == dtype for x in found)
        return [np.asarray(x).astype(np.float64) for x in found]

    every = zip(results(pattern.before), results(pattern.fn), *exact, strict=False)
    for n, (old, new, wanted, flushed) in enumerate(every):
        errors = [
            np.minimum(places(x, wanted, dtype), places(x, flushed, dtype))
            for x in (old, new)
        ]
        worse = (errors[1] > np.maximum(errors[0], 0.51)) & ~(np.abs(new - wanted) <= lost)
        worse |= np.isnan(new) & ~np.isnan(old)
        if n:  # A derivative beside infinity: there is none, and the formula has none.
            worse &= ~(np.isnan(old) & np.isnan(wanted))
        else:  # A zero that has a sign keeps it; that of a number too small is not its own.
            lost_sign = np.signbit(old) & ~np.signbit(new) & (wanted == 0)
            worse |= (old == 0) & (new == 0) & lost_sign & np.signbit(wanted)
        rows = worse.reshape(len(worse), -1).any(1)
        assert not rows.any(), (n, *(x[rows][:3] for x in (*operands, old, new, wanted)))


SHORT_CASES = [
    case
    for case in CASES
    if name_of(case) not in NOT_SHORT and not case.values[1].get("keepdims")
]
FIRST_CASES = {name_of(case): case for case in reversed(SHORT_CASES)}.values()
# They lose numbers that XLA takes for zero, and NumPy does not.
TAKEN_FOR_ZERO = {"logarithms_subtracted", "hyperbolic_tangent"}
STATICS = [-2.0, 1e-3, -1e-4, 6e4, 1e30]


@pytest.mark.parametrize("dtype", SHORT, ids=str)
@pytest.mark.parametrize("pattern, statics", often(SHORT_CASES, FIRST_CASES))
def test_nothing_is_worse_at_any_number_of_16_bits(pattern, statics, dtype, request):
    if pattern.fn.__name__ in TAKEN_FOR_ZERO and dtype != np.float16:
        request.getfixturevalue("xla")
    number = [2.0] * len(pattern.scalars)
    assert_no_result_is_worse(pattern, statics, dtype, number, jax.jit, 11)


@pytest.mark.slow
@pytest.mark.parametrize("run", [jax.jit, lambda fn: fn], ids=["jit", "eager"])
@pytest.mark.parametrize("dtype", SHORT, ids=str)
@pytest.mark.parametrize("pattern, statics", SHORT_CASES)
@pytest.mark.usefixtures("optimised")
def test_nothing_is_worse_at_any_number_of_16_bits_compiled_or_not(
    pattern, statics, dtype, run
):
    for number in [2.0, *STATICS] if pattern.scalars else [None]:
        numbers = [number] * len(pattern.scalars)
        if dtype != np.float16 or number is None or abs(number) < 1e5:
            assert_no_result_is_worse(pattern, statics, dtype, numbers, run, 1)


def test_numbers_of_programs_are_those_of_their_dtype():
    """A number of 16 bits is shown as a shorter decimal, which is another number."""
    number = np.float16(0.1)
    x = jnp.float16(-0.10003662)
    difference = lambda x: 1 / x - 1 / (x + number)
    got = jaxrewrite.transform(difference, rules=patterns.stable)(x)
    exact = 1 / float(x) - 1 / (float(x) + float(number))
    np.testing.assert_allclose(got, exact, rtol=1e-3)


def test_differences_of_squares_of_two_dtypes():
    squares = lambda x, y: jnp.square(x) - jnp.square(y)
    with jax.enable_x64(True):
        args = jnp.float32(1), jnp.float64(1e100)
        got = jaxrewrite.transform(squares, rules=patterns.stable)(*args)
        np.testing.assert_allclose(got, squares(*args), rtol=1e-12)


def test_the_gradient_of_a_mean_of_very_many_exponentials():
    """One of them is all of the mean, which less one is -1 up to rounding."""
    x = jnp.full(2**25, -50.0).at[0].set(2.0)
    mean = lambda x: jnp.log(jnp.mean(jnp.exp(x)))
    gradient = jax.grad(jaxrewrite.transform(mean, rules=patterns.stable))(x)
    np.testing.assert_allclose(gradient[:2], [1, np.exp(-52)], rtol=1e-4)
