"""What every test runs under: JAX's own checks, and no state left behind."""

import gc
import os


# Eight simulated devices, for the tests with shardings; before JAX is imported.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)

import jax
import pytest


# Every jaxpr that the library builds is type checked, and no tracer may leak.
jax.config.update("jax_enable_checks", True)
jax.config.update("jax_check_tracer_leaks", True)


# Leak checks collect garbage at each trace: what is imported is none, and looking
# at it over and over takes most of the time.
gc.collect()
gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _small_heap():
    """For the same reason: each module of tests leaves nothing in JAX's caches."""
    yield
    jax.clear_caches()


@pytest.fixture
def no_leak_checks():
    """For tests of caches: JAX itself keeps nothing while it checks for leaks."""
    jax.config.update("jax_check_tracer_leaks", False)
    yield
    jax.config.update("jax_check_tracer_leaks", True)


@pytest.fixture
def bulk(no_leak_checks):
    """For many small programs: compiled quickly rather than well."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(autouse=True)
def _fresh_caches():
    """Each test stages and rewrites for itself."""
    yield
    import jaxrewrite

    jaxrewrite.clear_caches()
