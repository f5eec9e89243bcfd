"""The table of docs/pattern_tables.rst: what formulas lose, before and after.

``python -m patterns.stable_errors``, in the folder of the tests, prints it.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import nn
from jax.scipy.special import erf, ndtr

import jaxrewrite
from jaxrewrite import patterns


# A formula, and where it is computed. The numbers are rounded to single precision.
ROWS = [
    ("log(sum(exp(x)))", [104, 103]),
    ("log(mean(exp(x)))", [-150, -150.5]),
    ("log(sum(array([0.25, 0.5]) * exp(x)))", [-120, -120.5]),
    ("log(exp(x) + exp(x + 1))", [-120, 96]),
    ("log(exp(x + 1) - exp(x))", [-80, 96]),
    ("log(1 + exp(x))", [-18, 96]),
    ("log(1 - exp(x))", [-18, -(2.0**-20)]),
    ("log(exp(x) - 1)", [2.0**-20, 96]),
    ("log(exp(x))", [-120, 96]),
    ("log(prod(x))", [2.0**-100, 2.0**-90]),
    ("exp(x) / sum(exp(x))", [104, 103]),
    ("log(softmax(x))", [0, -120]),
    ("1 / (1 + exp(-x))", [-80, 2]),
    ("exp(x) / (1 + exp(x))", [-4, 96]),
    ("1 - sigmoid(x)", [12, 20]),
    ("log(sigmoid(x))", [-120, 14]),
    ("log(1 - sigmoid(x))", [-14, 20]),
    ("exp(x) - 1", [2.0**-20, 1]),
    ("1 - exp(x)", [2.0**-20, 1]),
    ("log(1 + x)", [1.25e-7, 0.5]),
    ("log(1 - x)", [1.25e-7, 0.5]),
    ("1 - cos(x)", [0.0003, 1]),
    ("cos(x) - 1", [0.0003, 1]),
    ("1 - erf(x)", [3, 5]),
    ("1 + erf(x)", [-5, -3]),
    ("1 - tanh(x)**2", [6, 10]),
    ("log(1 - tanh(x)**2)", [6, 10]),
    ("sqrt(x + 1) - sqrt(x)", [2.0**10, 2.0**30]),
    ("1 / x - 1 / (x + 1)", [2.0**10, 2.0**30]),
    ("log(x + 1) - log(x)", [2.0**10, 2.0**30]),
    ("mean(x**2) - mean(x)**2", [4096, 4097]),
    ("sqrt(x**2 + (2 * x)**2)", [2.0**-80, 2.0**80]),
    ("(exp(x) - exp(-x)) / 2", [2.0**-20, 89]),
    ("(exp(x) + exp(-x)) / 2", [2.0**-20, 89]),
    ("(exp(x) - exp(-x)) / (exp(x) + exp(-x))", [2.0**-20, 96]),
    ("log((1 + x) / (1 - x))", [2.0**-20, 0.5]),
    ("log(x + sqrt(x**2 + 1))", [-4096, 2.0**70]),
    ("log(ndtr(x))", [-20, 1]),
    ("log(1 - ndtr(x))", [-1, 20]),
]

NAMES = {
    **vars(jnp),
    "softmax": nn.softmax,
    "sigmoid": nn.sigmoid,
    "erf": erf,
    "ndtr": ndtr,
}


def value_and_gradient(fn, x):
    out, pull = jax.vjp(fn, x)
    weights = np.resize(np.asarray([1, -1], out.dtype), out.shape)
    return [np.asarray(a, np.float64) for a in (out, *pull(weights))]


def errors():
    """For each formula the errors of value and gradient, as written and rewritten."""
    for text, numbers in ROWS:
        formula = jax.jit(eval(f"lambda x: {text}", NAMES))
        x = np.asarray(numbers, np.float32)
        with jax.enable_x64(True):
            exact = value_and_gradient(
                jax.jit(jaxrewrite.transform(formula, rules=patterns.stable)),
                x.astype(np.float64),
            )
        found = []
        for fn in (formula, jax.jit(jaxrewrite.transform(formula, rules=patterns.stable))):
            for got, want in zip(value_and_gradient(fn, x), exact, strict=True):
                found.append(_error(got, want))
        yield text, numbers, [found[i] for i in (0, 2, 1, 3)]


def _error(got, exact):
    """The largest relative error; of a gradient, relative to the largest entry."""
    with np.errstate(all="ignore"):
        error = np.max(np.abs(got - exact) / np.maximum(np.abs(exact), 1e-37))
    return error if np.isfinite(error) else np.nan


def shown(error):
    return "none" if np.isnan(error) else f"{max(error, 6e-8):.0e}"


def table():
    """The rows as lines of reStructuredText."""
    lines = []
    for text, numbers, found in errors():
        at = ", ".join(f"{x:.3g}" for x in numbers)
        lines.append(
            f"``{text}``".ljust(46)
            + at.ljust(20)
            + "  ".join(f"{shown(e):7}" for e in found)
        )
    return [line.rstrip() for line in lines]


if __name__ == "__main__":
    print("\n".join(table()))
