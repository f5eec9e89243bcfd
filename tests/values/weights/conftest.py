"""What tests of quantised weights share."""

import jax
import pytest

import jaxrewrite
from jaxrewrite.values._weights import digits, products, ragged


@pytest.fixture
def on_one_device(monkeypatch):
    """Products are chosen as on a machine with one device; the tests run on eight."""
    monkeypatch.setattr(products, "_may_be_split", lambda: False)
    for module in (digits, ragged):
        monkeypatch.setattr(module, "may_be_split", lambda: False)
    jaxrewrite.clear_caches()
    jax.clear_caches()
