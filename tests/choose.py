"""Which cases of a test are in the default run; the others are for the long run."""

import pytest


def slow(case):
    """A case for the long run, as `pytest.mark.parametrize` takes it.

    A tuple is a case of several names.
    """
    if not isinstance(case, type(pytest.param())):
        case = pytest.param(*(case if type(case) is tuple else (case,)))
    return pytest.param(*case.values, id=case.id, marks=(*case.marks, pytest.mark.slow))


def often(cases, names):
    """The cases, of which those that are among ``names`` are in the default run."""
    return [case if case in names else slow(case) for case in cases]


def every(n, cases, start=0):
    """The cases, of which one of each ``n`` is in the default run."""
    return [case if i % n == start else slow(case) for i, case in enumerate(cases)]
