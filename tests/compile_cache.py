"""What a run of the tests compiles is kept for the next one."""

import atexit
import hashlib
import os
import shutil
import tempfile

import jax
from jax._src.lru_cache import LRUCache  # JAX has no public hook for what it keeps


def _put_whole(self, key, value):
    """Keep what was compiled, by a name that no other process sees before it is complete.

    JAX writes in place, and never again: what an interrupted run leaves would stay a part.
    """
    self.path.mkdir(parents=True, exist_ok=True)
    part = self.path / f"{key}-{os.getpid()}"
    part.write_bytes(value)
    part.replace(self.path / f"{key}-cache")


LRUCache.put = _put_whole


# The bytes that compiled programs may take; more are deleted, all at once.
_MOST_KEPT = 1_000_000_000


def keep_compiled_programs(config):
    """Compiling takes most of the time: what one process has compiled, no other compiles.

    Programs are kept between runs, in pytest's cache, which ``--cache-clear`` empties.
    """
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        cache = getattr(config, "cache", None)  # not with -p no:cacheprovider
        if cache is None:
            folder = tempfile.mkdtemp(prefix="jaxrewrite-tests-")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
        else:
            settings = os.environ["XLA_FLAGS"] + os.environ["JAX_PLATFORMS"]
            digest = hashlib.sha256(settings.encode()).hexdigest()[:8]
            folder = cache.mkdir(f"compiled-by-jax-{jax.__version__}-{digest}")
            if sum(file.stat().st_size for file in folder.iterdir()) > _MOST_KEPT:
                shutil.rmtree(folder)
        # For the processes that the tests start, and for the workers of pytest-xdist.
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
