"""The tool that plants defects: which it plants, and that tests find one."""

import ast

import pytest

from mutation.plant import defects, planted


SOURCE = """
def rule(x, y, axis):
    if x.ndim != 2:
        return NotImplemented
    if x.shape[0] < 3:
        return x @ y - y
    return jnp.sum(x, axis=-1)
"""


@pytest.mark.parametrize(
    "kind, line",
    [
        ("skipped decline", "if False:"),
        ("wrong entry", "if x.shape[1] < 3:"),
        ("other bound", "if x.shape[0] <= 3:"),
        ("negated condition", "if not x.shape[0] < 3:"),
        ("exchanged operands", "return y @ x - y"),
        ("exchanged operands", "return y - x @ y"),
        ("dropped term", "return x @ y - 0"),
        ("wrong axis", "return jnp.sum(x, axis=-2)"),
    ],
)
def test_defects_that_are_planted(kind, line):
    found = [d for d in defects("rule.py", SOURCE) if d.kind == kind]
    texts = [ast.unparse(planted(SOURCE, defect)) for defect in found]
    assert any(line in text for text in texts), texts
    assert all(text != ast.unparse(ast.parse(SOURCE)) for text in texts)
