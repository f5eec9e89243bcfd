"""What the formulas of the table `jaxrewrite.patterns.stable` are in exact arithmetic.

For each rule a function of NumPy arrays of a wider precision. It gives the value and, for each
operand, the derivative, for all finite numbers and without cancellation. Reductions are over
the last of two axes, of size 2. Where a result has this size, too, the derivative is that of
its sum with `WEIGHTS`.
"""

import numpy as np
import scipy.special


# The sum of a softmax is constant.
WEIGHTS = (1, -1)


def sigmoid(x):
    e = np.exp(-np.abs(x))
    return np.where(x > 0, 1, e) / (1 + e)


def softplus(x):
    return np.logaddexp(0, x)


def log1mexp(x):
    return np.where(x > -0.7, np.log(-np.expm1(x)), np.log1p(-np.exp(x)))


def log_expm1(x):
    return np.where(x < 1, np.log(np.expm1(np.minimum(x, 1))), x + log1mexp(-x))


def sech_squared(x):
    return 4 * sigmoid(2 * x) * sigmoid(-2 * x)


def log_sech_squared(x):
    near = np.log1p(-(np.tanh(np.clip(x, -1, 1)) ** 2))
    far = 2 * (np.log(x.dtype.type(2)) - np.abs(x) - np.log1p(np.exp(-2 * np.abs(x))))
    return np.where(np.abs(x) < 0.5, near, far)


def pairs(x):
    return x[..., 0], x[..., 1]


def joined(x, y):
    return np.stack([x, y], -1)


def shares(x, y):
    return joined(sigmoid(x - y), sigmoid(y - x))


def log_sum_exp(x):
    x, y = pairs(x)
    return np.logaddexp(x, y), shares(x, y)


def log_mean_exp(x):
    x, y = pairs(x)
    value = np.logaddexp(x, y) - np.log(x.dtype.type(2))
    with_digits = np.log1p((np.expm1(x) + np.expm1(y)) / 2)
    return np.where(np.abs(value) < 0.5, with_digits, value), shares(x, y)


def log_weighted_sum_exp(x, weights):
    """The weights are not negative."""
    x, y, *logs = *pairs(x), *map(np.log, pairs(weights))
    x_less, y_less = x + logs[0], y + logs[1]
    value = np.logaddexp(x_less, y_less)
    return value, shares(x_less, y_less), joined(np.exp(x - value), np.exp(y - value))


def log_subtract_exp(x, y):
    d = y - x
    value = np.where(d == 0, -np.inf, x + log1mexp(d))
    near = np.log1p(np.expm1(x) - np.exp(y))
    value = np.where(np.abs(value) < 0.5, np.where(d < 0, near, value), value)
    return value, -1 / np.expm1(d), -1 / np.expm1(-d)


def log_product(x):
    x, y = pairs(x)
    return np.log(x * y), joined(1 / x, 1 / y)


def softmax(x):
    p = shares(*pairs(x))
    slope = 2 * p[..., 0] * p[..., 1]
    return p, joined(slope, -slope)


def log_softmax(x):
    x, y = pairs(x)
    one = np.ones_like(x) + 0 * (x - y)
    return joined(-softplus(y - x), -softplus(x - y)), joined(one, -one)


def square_roots_subtracted(x, c):
    value = c / (np.sqrt(x + c) + np.sqrt(x))
    return value, -value / np.sqrt(x + c) / np.sqrt(x) / 2


def reciprocals_subtracted(x, c):
    y = x + c
    return c / y / x, -c * (1 + x / y) / y / x / x


def logarithms_subtracted(x, c):
    y = x + c
    ratio = c / x
    value = np.where(ratio < -0.5, np.log(y / x), np.log1p(ratio))
    return np.where(x < 0, np.nan, value), -c / y / x


def variance(x):
    x, y = pairs(x)
    half = (x - y) / 2
    return half * half, joined(half, -half)


def square_root_of_squares(x, y):
    h = np.hypot(x, y)
    return h, x / h, y / h


def negated(fn):
    return lambda *args: tuple(-a for a in fn(*args))


EXACT = {
    "log_sum_exp": log_sum_exp,
    "log_mean_exp": log_mean_exp,
    "log_weighted_sum_exp": log_weighted_sum_exp,
    "log_add_exp": lambda x, y: (np.logaddexp(x, y), sigmoid(x - y), sigmoid(y - x)),
    "log_subtract_exp": log_subtract_exp,
    "softplus": lambda x: (softplus(x), sigmoid(x)),
    "log_one_minus_exp": lambda x: (log1mexp(x), -1 / np.expm1(-x)),
    "inverse_softplus": lambda x: (log_expm1(x), -1 / np.expm1(-x)),
    "log_exp": lambda x: (x, np.ones_like(x)),
    "log_product": log_product,
    "softmax": softmax,
    "softmax_of_all": softmax,
    "log_softmax": log_softmax,
    "sigmoid_of_negative": lambda x, c: (c * sigmoid(-x), -c * sigmoid(x) * sigmoid(-x)),
    "logistic": lambda x: (sigmoid(x), sigmoid(x) * sigmoid(-x)),
    "one_minus_sigmoid": lambda x: (sigmoid(-x), -sigmoid(x) * sigmoid(-x)),
    "log_sigmoid": lambda x: (-softplus(-x), sigmoid(-x)),
    "log_one_minus_sigmoid": lambda x: (-softplus(x), -sigmoid(x)),
    "exp_minus_one": lambda x: (np.expm1(x), np.exp(x)),
    "one_minus_exp": lambda x: (-np.expm1(x), -np.exp(x)),
    "log_one_plus": lambda x: (np.log1p(x), 1 / (1 + x)),
    "log_one_minus": lambda x: (np.log1p(-x), -1 / (1 - x)),
    "one_minus_cos": lambda x: (2 * np.sin(x / 2) ** 2, np.sin(x)),
    "cos_minus_one": lambda x: (-2 * np.sin(x / 2) ** 2, -np.sin(x)),
    "one_minus_erf": lambda x: (
        scipy.special.erfc(x),
        -2 / np.sqrt(np.pi) * np.exp(-x * x),
    ),
    "one_plus_erf": lambda x: (scipy.special.erfc(-x), 2 / np.sqrt(np.pi) * np.exp(-x * x)),
    "one_minus_tanh_squared": lambda x: (
        sech_squared(x),
        -2 * np.tanh(x) * sech_squared(x),
    ),
    "log_one_minus_tanh_squared": lambda x: (log_sech_squared(x), -2 * np.tanh(x)),
    # A difference of equal numbers is +0.
    "squares_subtracted": lambda x, y: ((x - y) * (x + y) + 0.0, 2 * x, -2 * y),
    "square_roots_subtracted": square_roots_subtracted,
    "reciprocals_subtracted": reciprocals_subtracted,
    "reciprocals_subtracted_from": negated(reciprocals_subtracted),
    "logarithms_subtracted": logarithms_subtracted,
    "variance": variance,
    "square_root_of_squares": square_root_of_squares,
    "hyperbolic_sine": lambda x: (np.sinh(x), np.cosh(x)),
    "hyperbolic_cosine": lambda x: (np.cosh(x), np.sinh(x)),
    "hyperbolic_tangent": lambda x: (np.tanh(x), sech_squared(x)),
    "twice_atanh": lambda x: (2 * np.arctanh(x), 2 / ((1 - x) * (1 + x))),
    "asinh": lambda x: (np.arcsinh(x), 1 / np.hypot(1, x)),
}
