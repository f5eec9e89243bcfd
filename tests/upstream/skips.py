"""Tests of other people that are known not to concern values, with reasons.

The keys are patterns of `fnmatch` for the last parts of a test's name.
"""

SKIPS: dict[str, str] = {}
