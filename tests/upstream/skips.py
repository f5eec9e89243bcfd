"""Tests of other people that are known not to say anything about values, with reasons.

By the last parts of a test's name, as a pattern of `fnmatch`.
"""

SKIPS: dict[str, str] = {}
