"""Annotations of arrays, around matrices and around each other, and values inside of others."""

import jax.numpy as jnp

from jaxrewrite.values import (
    Constant,
    Diagonal,
    Interval,
    Lora,
    LowRank,
    Masked,
    Named,
    Rescaled,
    Scaled,
    Sum,
    Tagged,
    Unitful,
)

from . import CASES, NESTED, batched, case, uniform


def missing(n, m):
    return jnp.eye(n, m, 1, dtype=bool)


AROUND = {
    "Tagged": lambda x: Tagged(x, "t"),
    "Named": lambda x: Named(x, ("a", "b")),
    "Masked": lambda x: Masked(x, missing(*x.shape)),
    # What is computed of bounds that meet has one result.
    "Interval": lambda x: Interval(x, x),
    "Unitful": lambda x: Unitful(x, "m"),
}


def nested(name, square=False):
    return case(name, square=square, dtypes=("float32",), among=NESTED)


def annotated(name):
    """The annotations of a name, around the case that is its last word, or an array."""
    words = name.split()
    inner = None if words[-1] in AROUND else CASES[words.pop()]

    @nested(name, inner is not None and inner.square)
    def _(rng, dtype, n, m):
        if inner is not None:
            x = inner.make(rng, dtype, n, m)
        else:
            x = uniform(rng, (n, m), dtype)
            if "Masked" in words:  # The sum of what is there is that of all.
                x = jnp.where(missing(n, m), 0, x)
        for word in reversed(words):
            x = AROUND[word](x)
        return x


# The modules are imported by name, so that there are the cases of matrices.
for name in (
    *AROUND,
    *("Tagged diagonal", "Named diagonal", "Masked diagonal", "Unitful diagonal"),
    *("Interval scaled_diagonal", "Tagged zero", "Tagged lora", "Unitful lora"),
    *("Named Unitful", "Unitful Named", "Named Masked", "Masked Interval"),
    *("Unitful Interval", "Tagged Named diagonal", "Tagged Unitful diagonal"),
):
    annotated(name)


@nested("lora of Tagged")
def _(rng, dtype, n, m):
    w = Tagged(uniform(rng, (n, m), dtype), "t")
    return Lora(w, uniform(rng, (n, 1), dtype), uniform(rng, (1, m), dtype))


@nested("lora of rescaled factors")
def _(rng, dtype, n, m):
    """A weight of VeRA."""
    a = Rescaled(uniform(rng, (n, 2), dtype), uniform(rng, (1, 2), dtype))
    b = Rescaled(uniform(rng, (2, m), dtype), uniform(rng, (1, m), dtype))
    return Lora(uniform(rng, (n, m), dtype), a, b, frozen=False)


@nested("rescaled lora")
def _(rng, dtype, n, m):
    lora = CASES["lora"].make(rng, dtype, n, m)
    return Rescaled(lora, uniform(rng, (1, m), dtype))


@nested("diagonal of Tagged", square=True)
def _(rng, dtype, n, m):
    return Diagonal(Tagged(uniform(rng, (n,), dtype), "t"))


@nested("scaled of Tagged")
def _(rng, dtype, n, m):
    return Scaled(Tagged(uniform(rng, (n, m), dtype), "t"), uniform(rng, (), dtype))


@nested("sum of matrices", square=True)
def _(rng, dtype, n, m):
    a, b = uniform(rng, (n, 1), dtype), uniform(rng, (1, n), dtype)
    return Sum((Diagonal(uniform(rng, (n,), dtype)), LowRank(a, b)))


@nested("stack of constants")
def _(rng, dtype, n, m):
    return batched([Constant(uniform(rng, (), dtype), (m,)) for _ in range(n)])


@nested("stack of Named")
def _(rng, dtype, n, m):
    return batched([Named(uniform(rng, (m,), dtype), ("a",)) for _ in range(n)])
