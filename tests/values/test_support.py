"""The table of what stays implicit, in docs/values.rst, agrees with the rules."""

import pytest
import support
from choose import slow


SAMPLE = {"Diagonal", "Lora"}


def page():
    """The cells of the page by the name of the type."""
    rows = support.written().split("   * - ")[1:]
    return {cells[0]: cells[1:] for cells in (row.split("\n     - ") for row in rows)}


@pytest.mark.parametrize("names", [SAMPLE, slow(None)], ids=["some", "all"])
def test_the_page_says_what_the_rules_do(names, bulk):
    found = {f"``{label}``": cells for label, cells in support.rows(names)}
    written = {label: [cell.strip() for cell in cells] for label, cells in page().items()}
    assert found == {label: written[label] for label in found}
    if names is None:
        assert set(found) == set(written)
