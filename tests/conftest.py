"""What every test runs under: JAX's own checks, and programs compiled quickly."""

import gc
import os
import resource


# Eight simulated devices, for the tests with shardings; before JAX is imported.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)

import jax
import pytest
from rule_coverage import RuleCoverage


# Every jaxpr that the library builds is type checked.
jax.config.update("jax_enable_checks", True)

# The programs are many and small: compiling them well takes longer than running them.
jax.config.update("jax_disable_most_optimizations", True)


# Leak checks collect garbage at each trace: what is imported is none, and looking
# at it over and over takes most of the time.
gc.collect()
gc.freeze()


def pytest_addoption(parser):
    group = parser.getgroup("jaxrewrite")
    group.addoption(
        "--rule-coverage",
        action="store_true",
        help="list the rules of jaxrewrite.values that no test met, and print the share",
    )
    group.addoption(
        "--leak-checks",
        action="store_true",
        help="check all tests for leaked tracers, not only those made for it; slow",
    )


def pytest_configure(config):
    if config.getoption("--rule-coverage"):
        config.pluginmanager.register(RuleCoverage(config))


# When its peak is beyond so many kB, a process gives back what it compiled.
_limits = iter(range(2_000_000, 20_000_000, 500_000))
_limit = next(_limits)


@pytest.fixture(scope="module", autouse=True)
def _bounded_memory():
    """Modules share what is compiled, until that takes much memory."""
    global _limit
    yield
    if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > _limit:
        jax.clear_caches()
        _limit = next(_limits)


@pytest.fixture(scope="session", autouse=True)
def _leak_checks_everywhere(request):
    if request.config.getoption("--leak-checks"):
        jax.config.update("jax_check_tracer_leaks", True)


def during(setting, value):
    """Set one of JAX's settings, and back."""
    before = getattr(jax.config, setting)
    jax.config.update(setting, value)
    yield
    jax.config.update(setting, before)


@pytest.fixture
def leak_checks():
    """For tests made for it: no tracer may leak. JAX traces everything anew meanwhile."""
    yield from during("jax_check_tracer_leaks", True)


@pytest.fixture
def no_leak_checks():
    """For tests of caches: JAX itself keeps nothing while it checks for leaks."""
    yield from during("jax_check_tracer_leaks", False)


@pytest.fixture
def bulk(no_leak_checks):
    """For many programs that differ little: an oracle is check enough."""
    yield from during("jax_enable_checks", False)


@pytest.fixture
def optimised():
    """For tests of what is compiled: as well as a user has it."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(autouse=True)
def _fresh_caches():
    """Each test stages and rewrites for itself."""
    yield
    import jaxrewrite

    jaxrewrite.clear_caches()
