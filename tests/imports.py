"""What each module of the library imports, by any kind of import."""

from __future__ import annotations

import ast
import functools
import pathlib
from collections.abc import Iterator

import jaxrewrite


PACKAGE = pathlib.Path(jaxrewrite.__file__).parent


def module_files() -> list[pathlib.Path]:
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path: pathlib.Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def modules() -> dict[str, pathlib.Path]:
    return {name_of(path): path for path in module_files()}


@functools.cache
def nodes(path: pathlib.Path) -> tuple[ast.AST, ...]:
    """The nodes of a module's syntax tree, the module first; read once for all tests."""
    return tuple(ast.walk(ast.parse(path.read_text())))


def _not_for_checkers(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a tree, without what only type checkers read."""
    left = [tree]
    while left:
        node = left.pop()
        yield node
        is_for_checkers = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(
            node.test
        )
        left += node.orelse if is_for_checkers else ast.iter_child_nodes(node)


def _absolute(name: str, is_package: bool, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = name.split(".") if is_package else name.split(".")[:-1]
    above = package[: len(package) - node.level + 1]
    return ".".join([*above, *([node.module] if node.module else [])])


def imports_in(tree: ast.AST, name: str, is_package: bool) -> set[str]:
    """The modules that a module imports, by its syntax tree: absolute, relative, late, by name.

    ``from package import thing`` is an import of the module ``thing`` if there is one.
    """
    found: set[str] = set()
    for node in _not_for_checkers(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(name, is_package, node)
            for alias in node.names:
                inside = f"{base}.{alias.name}"
                found.add(inside if inside in modules() else base)
        elif isinstance(node, ast.Call) and _is_import_call(node):
            argument = node.args[0]
            if isinstance(argument, ast.Constant):
                found.add(str(argument.value))
    return found


def _is_import_call(node: ast.Call) -> bool:
    called = ast.unparse(node.func)
    return bool(node.args) and called.rsplit(".", 1)[-1] in (
        "import_module",
        "__import__",
        "find_spec",
    )


@functools.cache
def imports() -> dict[str, frozenset[str]]:
    return {
        name: frozenset(
            imports_in(nodes(path)[0], name, path.name == "__init__.py") - {name}
        )
        for name, path in modules().items()
    }


def room_of(name: str) -> str:
    """The first folder or module below the package; the package itself is ``__init__``."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else "__init__"
