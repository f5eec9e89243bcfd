"""Bytecode is kept by the tests where Python and installers keep none."""

import importlib.util
import os
import sys
import types

import bytecode
import pytest


@pytest.mark.parametrize(
    ("writes_none", "is_installed"), [(True, False), (True, True), (False, False)]
)
def test_bytecode_is_kept_where_nobody_else_does(
    writes_none, is_installed, tmp_path, monkeypatch
):
    (tmp_path / "there.pyc").touch()
    cached = tmp_path / ("there.pyc" if is_installed else "missing.pyc")
    spec = types.SimpleNamespace(cached=str(cached))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(sys, "dont_write_bytecode", writes_none)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", "")
    bytecode.keep()
    is_kept = writes_none and not is_installed
    folder = str(bytecode.FOLDER) if is_kept else None
    assert sys.pycache_prefix == folder
    assert os.environ["PYTHONPYCACHEPREFIX"] == (folder or "")
    assert ("PYTHONDONTWRITEBYTECODE" in os.environ) != is_kept
