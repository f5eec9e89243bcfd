"""What a run compiles is kept whole, and where pytest deletes it."""

import os
import pathlib
import types

import compile_cache
import jax
import pytest
from jax._src.lru_cache import LRUCache


def test_what_is_kept_is_complete_for_every_process(tmp_path, monkeypatch):
    cache, seen = LRUCache(str(tmp_path / "new"), max_size=-1), []
    kind = type(cache.path)
    replace = kind.replace

    def told(self, target):
        seen.append((self.read_bytes(), target.exists()))
        return replace(self, target)

    monkeypatch.setattr(kind, "replace", told)
    cache.put("key", b"program")
    cache.put("key", b"program")
    assert cache.get("key") == b"program"
    assert seen == [(b"program", False), (b"program", True)]
    assert len(list((tmp_path / "new").iterdir())) == 1


def test_cache_clear_deletes_what_is_kept(tmp_path, monkeypatch, request):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")  # is restored afterwards
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    before = jax.config.jax_compilation_cache_dir
    cache = pytest.Cache(tmp_path, request.config, _ispytest=True)
    try:
        compile_cache.keep_compiled_programs(types.SimpleNamespace(cache=cache))
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
    folder = pathlib.Path(os.environ["JAX_COMPILATION_CACHE_DIR"])
    assert jax.__version__ in folder.name
    (folder / "key-cache").write_bytes(b"program")
    pytest.Cache.clear_cache(tmp_path, _ispytest=True)
    assert not folder.exists()
