"""What each module of the library imports, by any kind of import."""

from __future__ import annotations

import ast
import functools
import pathlib

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


class _NotForCheckers(ast.NodeTransformer):
    """Drops what only type checkers read."""

    def visit_If(self, node: ast.If) -> ast.AST:
        if ast.unparse(node.test).endswith("TYPE_CHECKING"):
            node.body = [ast.Pass()]
        return self.generic_visit(node)


def _absolute(name: str, is_package: bool, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = name.split(".") if is_package else name.split(".")[:-1]
    above = package[: len(package) - node.level + 1]
    return ".".join([*above, *([node.module] if node.module else [])])


def imports_in(source: str, name: str, is_package: bool) -> set[str]:
    """The modules that a module's source imports: absolute, relative, late, by name.

    ``from package import thing`` is an import of the module ``thing`` if there is one.
    """
    found: set[str] = set()
    for node in ast.walk(_NotForCheckers().visit(ast.parse(source))):
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
            imports_in(path.read_text(), name, path.name == "__init__.py") - {name}
        )
        for name, path in modules().items()
    }


def room_of(name: str) -> str:
    """The first folder or module below the package; the package itself is ``__init__``."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else "__init__"
