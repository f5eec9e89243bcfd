"""Fixtures for pytest. Import them in a ``conftest.py``, which makes them known to tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import jaxrewrite


@pytest.fixture
def never_dense() -> Iterator[None]:
    """Run a test within `jaxrewrite.no_materialise`: no value may become dense.

    Use it as an argument of a test, or for a module in
    ``pytestmark = pytest.mark.usefixtures("never_dense")``.

    Raises
    ------
    MaterialisationError
        Inside of the test, when a value has to become dense.
    """
    with jaxrewrite.no_materialise():
        yield
