"""Tests for a value type of your own.

`check_value` runs a value through everything that the library does with values, and
compares with dense code. `check_rule` does so for one primitive, and `check_pattern` for what a
pattern rule looks for. `assert_implicit` tells
what becomes dense, and `assert_same` compares arrays and values. `jaxrewrite.testing.fixtures` has a fixture for pytest.
"""

from ._implicit import assert_implicit as assert_implicit
from ._oracle import assert_same as assert_same, numbers as numbers
from ._outcome import Checked as Checked, Skipped as Skipped
from ._pattern import check_pattern as check_pattern
from ._rule import check_rule as check_rule
from ._value import check_value as check_value
