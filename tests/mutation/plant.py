"""Single defects in the source of a function, as syntax trees."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple


def place(file: str, line: int, is_in_lambda: bool) -> str:
    """A line as a record has it. What makes a lambda on the line may run without the lambda."""
    return f"{file}:{line}" + " in a lambda" * is_in_lambda


class Defect(NamedTuple):
    """A change of one place: ``edit`` changes the node at ``index`` of a walk over the module."""

    file: str
    line: int
    is_in_lambda: bool
    kind: str
    text: str
    index: int
    variant: int

    @property
    def place(self) -> str:
        return place(self.file, self.line, self.is_in_lambda)

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.kind}: {self.text}"


def _is_declined(node: ast.AST) -> bool:
    """Whether a statement is ``if ...: return NotImplemented``."""
    return (
        isinstance(node, ast.If)
        and not node.orelse
        and len(node.body) == 1
        and isinstance(node.body[0], ast.Return)
        and isinstance(node.body[0].value, ast.Name)
        and node.body[0].value.id == "NotImplemented"
    )


# What no longer runs stays written: a function with fewer variables of the one around it could
# not take the place of the function without the defect.
def _skip_decline(node: Any) -> None:
    node.test = ast.BoolOp(ast.And(), [ast.Constant(False), node.test])


def _exchange(node: Any) -> None:
    node.left, node.right = node.right, node.left


def _exchange_arguments(node: Any) -> None:
    node.args[0], node.args[1] = node.args[1], node.args[0]


def _drop_right(node: Any) -> None:
    node.right = ast.IfExp(ast.Constant(False), node.right, ast.Constant(0))


def _other_axis(node: Any) -> None:
    for keyword in node.keywords:
        if keyword.arg in _AXES:
            keyword.value = ast.Constant(_changed(keyword.value))


def _other_subscript(node: Any) -> None:
    node.slice = ast.Constant(_changed(node.slice))


def _negate(node: Any) -> None:
    node.test = ast.UnaryOp(ast.Not(), node.test)


def _strict(node: Any) -> None:
    swaps: dict[type, type] = {
        ast.Lt: ast.LtE,
        ast.LtE: ast.Lt,
        ast.Gt: ast.GtE,
        ast.GtE: ast.Gt,
    }
    node.ops = [swaps[type(node.ops[0])]()]


def _other_quantifier(node: Any) -> None:
    node.func.id = {"any": "all", "all": "any"}[node.func.id]


def _drop_unary(node: Any) -> None:
    node.op = ast.UAdd()


_AXES = ("axis", "axes", "dimension")

# Functions that are the same with their arguments exchanged.
_COMMUTATIVE = {
    *("add", "multiply", "equal", "not_equal", "maximum", "minimum", "max", "min", "mul"),
    *("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or"),
    *("broadcast_shapes", "result_type", "promote_types", "array_equal"),
}


def _number(node: ast.AST) -> int | None:
    try:
        value = ast.literal_eval(node)  # type: ignore[arg-type]
    except (ValueError, TypeError):
        return None
    return value if type(value) is int else None


def _changed(node: ast.AST) -> int:
    number = _number(node)
    assert number is not None
    return {0: 1, 1: 0, -1: -2, -2: -1}[number]


def _has_axis(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and any(
        k.arg in _AXES and _number(k.value) in (0, 1, -1, -2) for k in node.keywords
    )


def _is_sum(node: ast.AST, ops: tuple[type, ...]) -> bool:
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ops)
        and not any(
            isinstance(x, (ast.Constant, ast.JoinedStr, ast.Tuple, ast.List))
            for x in (node.left, node.right)
        )
    )


def _is_product(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(
        node.op, (ast.Mult, ast.MatMult, ast.Div)
    )


Test = Callable[[Any], bool]
Edit = Callable[[Any], None]

KINDS: dict[str, tuple[Test, Edit]] = {
    "skipped decline": (_is_declined, _skip_decline),
    "exchanged operands": (
        lambda n: _is_sum(n, (ast.Sub, ast.Div, ast.MatMult, ast.FloorDiv)),
        _exchange,
    ),
    "dropped term": (
        lambda n: (
            _is_sum(n, (ast.Sub,))
            or (_is_sum(n, (ast.Add,)) and any(map(_is_product, (n.left, n.right))))
        ),
        _drop_right,
    ),
    "wrong axis": (_has_axis, _other_axis),
    "wrong entry": (
        lambda n: (
            isinstance(n, ast.Subscript)
            and isinstance(n.ctx, ast.Load)
            and _number(n.slice) in (0, 1, -1, -2)
        ),
        _other_subscript,
    ),
    "negated condition": (
        lambda n: isinstance(n, (ast.If, ast.IfExp)) and not _is_declined(n),
        _negate,
    ),
    "other bound": (
        lambda n: (
            isinstance(n, ast.Compare)
            and len(n.ops) == 1
            and isinstance(n.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE))
        ),
        _strict,
    ),
    "other quantifier": (
        lambda n: (
            isinstance(n, ast.Call)
            and isinstance(n.func, ast.Name)
            and n.func.id in ("any", "all")
        ),
        _other_quantifier,
    ),
    "dropped sign": (
        lambda n: (
            isinstance(n, ast.UnaryOp)
            and isinstance(n.op, ast.USub)
            and not isinstance(n.operand, ast.Constant)
        ),
        _drop_unary,
    ),
    "exchanged arguments": (
        lambda n: (
            isinstance(n, ast.Call)
            and isinstance(n.func, ast.Attribute)
            and ast.unparse(n.func.value)
            in ("jnp", "lax", "np", "jnp.linalg", "jaxrewrite")
            and n.func.attr not in _COMMUTATIVE
            and len(n.args) == 2
            and not any(isinstance(a, (ast.Starred, ast.Constant)) for a in n.args)
            and ast.unparse(n.args[0]) != ast.unparse(n.args[1])
        ),
        _exchange_arguments,
    ),
}


def _in_functions(
    node: ast.AST, function: ast.AST | None = None
) -> Iterator[tuple[ast.AST, ast.AST]]:
    """The nodes of the bodies of functions, with the innermost function, which may be a lambda."""
    for name, field in ast.iter_fields(node):
        own = function
        if isinstance(node, (ast.FunctionDef, ast.Lambda)) and name != "decorator_list":
            if name != "body":  # Annotations and defaults
                continue
            own = node
        for child in field if isinstance(field, list) else [field]:
            if isinstance(child, ast.AST):
                if own is not None:
                    yield child, own
                yield from _in_functions(child, own)


def defects(file: str, source: str) -> Iterator[Defect]:
    """All defects that can be planted in the functions of a module."""
    tree = ast.parse(source)
    numbers = {id(node): i for i, node in enumerate(ast.walk(tree))}
    for node, function in _in_functions(tree):
        for variant, (kind, (applies, _)) in enumerate(KINDS.items()):
            if applies(node):
                line = _first_line(node)
                text = ast.unparse(node).splitlines()[0][:80]
                where = file, line, isinstance(function, ast.Lambda)
                yield Defect(*where, kind, text, numbers[id(node)], variant)


def _first_line(node: ast.AST) -> int:
    """The line that runs first of what has the defect: ``if not (`` may stand alone on a line."""
    names = (
        x.lineno for x in ast.walk(getattr(node, "test", node)) if isinstance(x, ast.Name)
    )
    return min(names, default=node.lineno)  # type: ignore[attr-defined]


def planted(source: str, defect: Defect) -> ast.Module:
    """The module's tree with a defect in it."""
    tree = copy.deepcopy(ast.parse(source))
    node = next(n for i, n in enumerate(ast.walk(tree)) if i == defect.index)
    KINDS[defect.kind][1](node)
    return ast.fix_missing_locations(tree)
