"""`check_value` finds what is wrong with a type on one value, and names the function."""

import pytest
from wrong_types import WRONG

from jaxrewrite.testing import check_value


def failures(value, **chosen):
    with pytest.raises(AssertionError) as caught:
        check_value(value, **chosen)
    return str(caught.value)


@pytest.mark.parametrize("what", WRONG)
def test_the_check_that_finds_it_names_the_function(what, bulk):
    value, by, check = WRONG[what]
    text = failures(value, only=[check])
    assert f"\n  {check}: " in text
    assert by in text


@pytest.mark.slow
@pytest.mark.parametrize("what", WRONG)
def test_nobody_has_to_name_the_check(what, bulk):
    value, by, check = WRONG[what]
    text = failures(value)
    assert f"\n  {check}: " in text
    assert by in text
