"""The settings of every test: JAX's own checks, and quick compilation."""

import functools
import gc
import importlib.metadata
import os
import resource
import zlib

import both_ends
import bytecode


bytecode.keep()

# All of this is read as JAX is imported, here and in the processes that tests start.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

# Eight simulated devices, for the tests with shardings.
_flags = ["--xla_force_host_platform_device_count=8"]
IS_OLD = importlib.metadata.version("jaxlib").startswith("0.10.")
if IS_OLD:
    # The older emitters compile in a third of the time. Later releases have no other.
    _flags.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *_flags])

os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import checked_once  # noqa: E402
import compile_cache  # noqa: E402
import jax  # noqa: E402
import numpy as np  # noqa: E402
import numpy_backend  # noqa: E402
import pytest  # noqa: E402
import repeats  # noqa: E402
from jax._src import traceback_util  # noqa: E402 - JAX has no public hook for its tracebacks
from jax._src.interpreters import mlir  # noqa: E402 - nor for the contexts of what it lowers
from rule_coverage import RuleCoverage  # noqa: E402


# The latest release of JAX checks the types of every jaxpr that the library builds. The older one does
# where JAX_ENABLE_CHECKS=1 says so: that takes an eighth of the time.
if not IS_OLD:
    jax.config.update("jax_enable_checks", True)
checked_once.install()

# JAX asks of each frame of each exception whether its file is one of JAX's.
traceback_util._path_starts_with = functools.cache(traceback_util._path_starts_with)


def _is_under_reraiser(error):
    """As JAX's own, which reads for each frame whether its file has changed."""
    frame = error.__traceback__ and error.__traceback__.tb_frame.f_back
    while frame is not None:
        if frame.f_code.co_name == "reraise_with_filtered_traceback":
            return True
        frame = frame.f_back
    return False


# It asks of each exception whether another of its functions is going to see it.
traceback_util._is_under_reraiser = _is_under_reraiser


def _one_of_several(make, uses=10):
    """What makes a context once for so many uses, as later releases of JAX do themselves.

    What is lowered while something else is, as where that asks for numbers, has one of its own.
    """
    made, left = None, 0

    def context():
        nonlocal made, left
        if mlir.ir.Context.current is not None:
            return make()
        if not left:
            made, left = make(), uses
        left -= 1
        return made

    return context


if IS_OLD:
    # Making one takes longer than lowering a small program.
    mlir.make_ir_context = _one_of_several(mlir.make_ir_context)

# The programs are many and small: compiling them well takes longer than running them.
jax.config.update("jax_disable_most_optimizations", True)


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
        help="check all tests for leaked tracers, but those of caches and of bulk; slow",
    )
    group.addoption(
        "--xla",
        action="store_true",
        help="compile all programs, also the small ones that NumPy evaluates otherwise; slow",
    )


def pytest_configure(config):
    both_ends.install(config)
    compile_cache.keep_compiled_programs(config)
    if not config.getoption("--xla"):
        numpy_backend.install()
    if config.getoption("--rule-coverage"):
        config.pluginmanager.register(RuleCoverage(config))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Each process has the tests of whole files, and what it traces for one serves the next.

    One that is done takes tests of another. By default, two processes share out each file.
    """
    if config.option.dist != "load":
        return None
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc):
    """Make no cases for the long run where that is not asked for: they are three of four.

    One is left, for which pytest says that a test has been deselected.
    """
    result = yield
    if metafunc.config.option.markexpr == "not slow":
        is_slow = metafunc.definition.get_closest_marker("slow") is not None
        calls = [] if is_slow else [c for c in metafunc._calls if not _is_slow(c)]
        metafunc._calls = calls or metafunc._calls[:1]
    return result


def _is_slow(case):
    return any(mark.name == "slow" for mark in case.marks)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    repeats.mark(config, items)


def pytest_collection_finish():
    """Collect garbage rarely, and not among what is imported and collected by now.

    Each collection visits all objects; of the time of all tests it took a tenth.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(500_000, 20, 20)


def pytest_sessionfinish():
    """Collect garbage once more, of which exceptions are told, and not as often as pytest does."""
    gc.collect()
    gc.freeze()


# A process drops its compiled programs when its peak memory exceeds this number of kB.
_limits = iter(range(2_000_000, 20_000_000, 500_000))
_limit = next(_limits)


@pytest.fixture(scope="module", autouse=True)
def _bounded_memory():
    """Keep compiled programs for other modules, until they take much memory."""
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
    """Change one of JAX's settings for a test."""
    before = getattr(jax.config, setting)
    jax.config.update(setting, value)
    yield
    jax.config.update(setting, before)


@pytest.fixture
def leak_checks():
    """Check that no tracer leaks. JAX traces everything anew meanwhile.

    Where JAX looks for one it collects garbage, and not among what is there by now.
    """
    gc.freeze()
    yield from during("jax_check_tracer_leaks", True)


@pytest.fixture
def no_leak_checks():
    """Turn leak checks off, for tests of caches: JAX keeps nothing while it checks."""
    yield from during("jax_check_tracer_leaks", False)


@pytest.fixture
def bulk(no_leak_checks):
    """Turn JAX's checks off, for many programs with an oracle."""
    yield from during("jax_enable_checks", False)


@pytest.fixture
def double():
    """Compute in double precision, for tests that compare many digits."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def xla():
    """Compile all programs, for tests of where, how often and how exactly something runs."""
    with numpy_backend.compiled():
        yield


@pytest.fixture
def optimised(xla):
    """Turn XLA's optimisations on, as users have them, for tests of compiled programs."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture
def own_table(monkeypatch):
    """Have a table of units of its own, for tests that register some."""
    from jaxrewrite.values._annotations import units

    units._define_known()
    monkeypatch.setattr(units, "_TABLE", dict(units._TABLE))


@pytest.fixture(autouse=True)
def _own_numbers(request):
    """Let the generator ``RNG`` of a module begin anew for each test, by the test's name.

    The numbers of a test would depend else on which tests have drawn some before it.
    """
    rng = getattr(getattr(request.node, "module", None), "RNG", None)
    if rng is not None:
        seed = zlib.crc32(request.node.name.encode())
        rng.bit_generator.state = np.random.default_rng(seed).bit_generator.state


@pytest.fixture(autouse=True)
def _fresh_caches():
    """Clear the caches, so that each test stages and rewrites its own programs."""
    yield
    import jaxrewrite

    jaxrewrite.clear_caches()
