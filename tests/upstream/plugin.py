"""The pytest plugin that has JAX's own test harness call the checks."""

import functools

import jax
import numpy as np
import pytest

from . import hooks
from .skips import SKIPS


def pytest_addoption(parser):
    group = hooks.add_options(parser, draws=4)
    group.addoption(
        "--lenient",
        action="store_true",
        help="check under JAX's usual promotion, and not that of its harness",
    )
    group.addoption(
        "--abstract", action="store_true", help="check shapes and dtypes alone: quick"
    )


def pytest_configure(config):
    import jax.test_util
    from jax._src import test_util

    # Many small programs: compiled quickly rather than well.
    jax.config.update("jax_disable_most_optimizations", True)
    # What checks are made for: the test that runs.
    config.checker = None
    case = test_util.JaxTestCase
    case._CompileAndCheck = _also_on_values(config, case._CompileAndCheck)
    if config.getoption("abstract"):
        case._CheckAgainstNumpy = lambda self, *args, **options: None
    check_grads = _also_grads_on_values(config, test_util.check_grads)
    test_util.check_grads = jax.test_util.check_grads = check_grads
    for name in ("jit", "grad", "vmap"):
        setattr(jax, name, _checked(config, getattr(jax, name)))


def pytest_collection_modifyitems(config, items):
    hooks.select(config, items, SKIPS)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    how = {name: item.config.getoption(name) for name in ("lenient", "abstract")}
    item.checker = item.config.checker = hooks.checker_of(item, **how)
    yield
    item.config.checker = None


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    hooks.report_values(item, call, (yield).get_result())


def pytest_terminal_summary(terminalreporter, config):
    terminalreporter.write_line(f"values: draws of {config.getoption('draws')} a function")


def _also_on_values(config, original):
    @functools.wraps(original)
    def check(self, fun, args_maker, *, tol=None, rtol=None, atol=None, **options):
        if not config.getoption("abstract"):
            original(self, fun, args_maker, tol=tol, rtol=rtol, atol=atol, **options)
        if config.checker is not None:
            config.checker(fun, args_maker(), {}, _same(tol, rtol, atol))

    return check


def _also_grads_on_values(config, original):
    @functools.wraps(original)
    def check(f, args, *rest, **options):
        if not config.getoption("abstract"):
            original(f, args, *rest, **options)
        if config.checker is not None:
            config.checker(f, args, {}, _same(None, None, None))

    return check


def _checked(config, made_by):
    """`jax.jit` and the like, as tests call them. Calls with arrays are repeated with values."""

    @functools.wraps(made_by)
    def wrapper(*args, **options):
        made = made_by(*args, **options)
        is_jit = made_by.__name__ == "jit"
        if config.checker is None or not callable(made) or (is_jit and options):
            return made  # what is static is not known here
        return _Checked(config.checker, args[0] if is_jit else made, made)

    return wrapper


class _Checked:
    """A function that JAX made and that is checked when it is first called."""

    def __init__(self, checker, fn, made):
        functools.update_wrapper(self, made, updated=())
        self._checker, self._fn, self._made = checker, fn, made

    def __call__(self, *args, **kwargs):
        results = self._made(*args, **kwargs)
        leaves = jax.tree.leaves((args, kwargs, results))
        if not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            self._checker(self._fn, args, kwargs, _same(None, None, None))
        return results

    def __get__(self, instance, owner=None):
        return self if instance is None else functools.partial(self, instance)

    def __getattr__(self, name):
        return getattr(self._made, name)


def _same(tol, rtol, atol):
    """How JAX's harness compares numbers, and as loosely as the test says, or more."""
    from jax._src import test_util

    def same(x, y):
        x, y = np.asarray(x), np.asarray(y)
        default = 20 * test_util.default_tolerance().get(x.dtype, 0)
        rough = [
            max(test_util.tolerance(x.dtype, given or tol), default)
            for given in (rtol, atol)
        ]
        # Rounding errors are as large as those of the largest number.
        finite = y[np.isfinite(y)] if y.dtype.kind in "fc" else np.empty(0)
        scale = max(1.0, float(np.abs(finite).max())) if finite.size else 1.0
        test_util._assert_numpy_allclose(x, y, rtol=rough[0], atol=rough[1] * scale)

    return same
