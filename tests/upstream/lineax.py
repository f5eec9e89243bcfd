"""Lineax's own tests as a source of programs: ``python -m upstream.lineax CHECKOUT``.

``CHECKOUT`` is one of Lineax, of the version that is installed. What the tests give to
``lineax.linear_solve``, and to functions that Equinox jits, maps or differentiates, is also run
with values in the place of arrays. Other arguments are pytest's and those of `upstream`. The
module is its own plugin.
"""

import functools
import os
import sys
from pathlib import Path

import pytest

from . import hooks


# What is not checked, by patterns of tests, with reasons.
SKIPS = {
    "test_misc.py*": "of Lineax's own helpers, not of arrays",
}


def pytest_addoption(parser):
    hooks.add_options(parser, draws=1)


def pytest_configure(config):
    import equinox
    import jax
    import lineax

    jax.config.update("jax_disable_most_optimizations", True)
    config.checker = config.keys = None
    lineax.linear_solve = _checked_solve(config, lineax.linear_solve)
    equinox.filter_jvp = _checked_jvp(config, equinox.filter_jvp)
    for name in ("filter_jit", "filter_vmap"):
        setattr(equinox, name, _checked(config, getattr(equinox, name)))


def pytest_collection_modifyitems(config, items):
    hooks.select(config, items, SKIPS)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    item.checker = item.config.checker = hooks.checker_of(item, lenient=True)
    item.config.keys = item.funcargs.get("getkey")
    yield
    item.config.checker = None


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    hooks.report_values(item, call, (yield).get_result())


def _checked_solve(config, original):
    @functools.wraps(original)
    def linear_solve(operator, vector, *args, **kwargs):
        drawn = _Drawn(config)
        solution = original(operator, vector, *args, **kwargs)
        if config.checker is not None:
            solve = lambda a, b: original(a, b, *args, **kwargs).value
            _check(config, drawn, solve, operator, vector)
        return solution

    return linear_solve


def _checked(config, made_by):
    """`equinox.filter_jit` and kin: what is called with arrays is also called with values."""

    @functools.wraps(made_by)
    def wrapper(*args, **options):
        made = made_by(*args, **options)
        if not args or not callable(made):
            return made

        @functools.wraps(made)
        def call(*args, **kwargs):
            drawn = _Drawn(config)
            results = made(*args, **kwargs)
            if config.checker is not None:
                _check(config, drawn, functools.partial(made, **kwargs), *args)
            return results

        return call

    return wrapper


def _checked_jvp(config, original):
    @functools.wraps(original)
    def filter_jvp(fn, primals, tangents, **kwargs):
        drawn = _Drawn(config)
        results = original(fn, primals, tangents, **kwargs)
        if config.checker is not None:
            of_fn = lambda *args: original(fn, args, tangents, **kwargs)
            _check(config, drawn, of_fn, *primals)
        return results

    return filter_jvp


class _Drawn:
    """The random numbers that the test has drawn so far.

    A function may draw more, such as an operator of another nonlinear function. All its calls
    have to draw the same ones.
    """

    def __init__(self, config):
        self._keys = config.keys
        self._count = self._keys and self._keys.call

    def again(self, fn, *args):
        if self._keys is None:
            return fn(*args)
        now, self._keys.call = self._keys.call, self._count
        try:
            return fn(*args)
        finally:
            self._keys.call = now


def _check(config, drawn, fn, *args):
    import equinox
    import jax

    arrays, rest = equinox.partition(args, equinox.is_array)
    if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(arrays)):
        return
    on_arrays = lambda arrays: equinox.filter(
        drawn.again(fn, *_combined(arrays, rest)), equinox.is_array
    )
    config.checker(on_arrays, (arrays,), {}, _same)


def _combined(arrays, rest):
    """As `equinox.combine`, where an array may have become a value, which is a pytree."""
    import jax

    import jaxrewrite

    is_leaf = lambda x: x is None or isinstance(x, jaxrewrite.Value)
    own, treedef = jax.tree.flatten(arrays, is_leaf=is_leaf)
    others = jax.tree.leaves(rest, is_leaf=lambda x: x is None)
    return treedef.unflatten(
        [y if x is None else x for x, y in zip(own, others, strict=True)]
    )


def _same(x, y):
    import jax.numpy as jnp
    import numpy as np

    if jnp.issubdtype(y.dtype, jnp.inexact):
        size = float(np.nan_to_num(np.abs(np.asarray(y, complex)), posinf=0).max(initial=1))
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-7 * size)
    else:
        np.testing.assert_array_equal(x, y)


def main(args):
    if not args or not (tests := Path(args[0]) / "tests").is_dir():
        print("usage: python -m upstream.lineax CHECKOUT [pytest's options]")
        return 2
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    named = [arg for arg in args[1:] if (tests / arg).is_file()]
    options = [arg for arg in args[1:] if arg not in named]
    return pytest.main(
        [
            *("-c", os.devnull, "--rootdir", args[0], "-p", "no:cacheprovider"),
            *("-p", "upstream.lineax", "-q", "--tb", "short", *options),
            *map(str, [tests / name for name in named] or [tests]),
        ]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
