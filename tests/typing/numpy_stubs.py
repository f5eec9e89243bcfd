"""Write the stubs of ``jaxrewrite.numpy``, from those of the installed JAX.

``python tests/typing/numpy_stubs.py``, with the oldest JAX that the library supports, writes
them, and ``ruff check --fix jaxrewrite/numpy; ruff format jaxrewrite/numpy`` formats them. A
checker can't know what ``jaxrewrite.numpy`` has, because its functions are made at their first
use. In the stubs, each function takes values where that of `jax.numpy` takes arrays, and has
the first words of its docstring, for editors to show.
"""

import ast
import inspect
import pathlib
import re
import textwrap

import jax.numpy as jnp

from jaxrewrite._staging.namespace import _AXES


FOLDER = pathlib.Path(__file__).parents[2] / "jaxrewrite" / "numpy"
SOURCES = {"__init__": jnp, "fft": jnp.fft, "linalg": jnp.linalg}

HEAD = '''"""{title}

The signatures are those of JAX (Copyright 2018 The JAX Authors, Apache License 2.0).
"""

import builtins
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeAlias, overload

import jax
import jax.typing
import numpy as _np
from jax.lax import PrecisionLike
from jax.sharding import NamedSharding, PartitionSpec as P, Sharding as _Sharding

from .._core.value import Value as _Value
'''

ALIASES = """
_Array: TypeAlias = jax.Array | _Value
_Result: TypeAlias = jax.Array | Any  # An array, or a value, as the rules say.
ArrayLike: TypeAlias = jax.typing.ArrayLike | _Value
DTypeLike: TypeAlias = jax.typing.DTypeLike
_Axis: TypeAlias = int | str | Sequence[int | str] | None
_Device: TypeAlias = Any  # JAX does not say which type it is.
"""

# The annotations of JAX that keep their names. Any other becomes ``Any``.
KNOWN = {
    "ArrayLike",
    "Any",
    "BinaryUfunc",
    "Callable",
    "DTypeLike",
    "Literal",
    "NamedSharding",
}
KNOWN |= {
    "P",
    "PrecisionLike",
    "Sequence",
    "_Axis",
    "_Device",
    "_Sharding",
    "_np",
    "builtins",
}
KNOWN |= {"bytes", "complex", "float", "int", "list", "slice", "str", "tuple"}


class _Annotation(ast.NodeTransformer):
    """An annotation for functions of values."""

    def __init__(self, is_result):
        self.array = ast.Name("_Result" if is_result else "_Array")

    def visit_Name(self, node):
        if node.id == "bool":
            return ast.parse("builtins.bool", mode="eval").body
        if node.id == "Array":
            return self.array
        return ast.Name(node.id if node.id in KNOWN else "Any")

    def visit_Attribute(self, node):
        if ast.unparse(node) in ("builtins.bool", "_np.ndarray"):
            return node
        return ast.Name("Any")

    def visit_BinOp(self, node):
        node = self.generic_visit(node)
        return node.left if ast.unparse(node) == "Any | Any" else node

    def visit_Subscript(self, node):
        node = self.generic_visit(node)
        is_unknown = isinstance(node.value, ast.Name) and node.value.id == "Any"
        return ast.Name("Any") if is_unknown else node


def _annotation(node, is_result=False):
    if node is None:
        return ast.Name("Any")
    text = ast.unparse(_Annotation(is_result).visit(node))
    text = re.sub(r"ndarray(?!\[)", "ndarray[Any, Any]", text)
    text = re.sub(r"Callable(?!\[)", "Callable[..., Any]", text)
    return ast.parse(text, mode="eval").body


def _declaration(fn):
    """The function with the annotations of a stub."""
    every = [*fn.args.posonlyargs, *fn.args.args, *fn.args.kwonlyargs]
    for arg in (*every, *filter(None, (fn.args.vararg, fn.args.kwarg))):
        if arg.arg != "self":
            arg.annotation = _annotation(arg.annotation)
            if arg.arg in _AXES and fn.name != "tensordot":
                text = re.sub(r"\bint\b", "int | str", ast.unparse(arg.annotation))
                arg.annotation = ast.parse(text, mode="eval").body
    fn.args.defaults = [ast.Constant(...) for _ in fn.args.defaults]
    fn.args.kw_defaults = [d and ast.Constant(...) for d in fn.args.kw_defaults]
    fn.returns = _annotation(fn.returns, is_result=True)
    fn.body = [ast.Expr(ast.Constant(...))]
    fn.decorator_list = [d for d in fn.decorator_list if ast.unparse(d) != "export"]
    return fn


def _summary(module, name):
    """What JAX says of a function in its first paragraph, and who says more."""
    first = inspect.getdoc(getattr(module, name)).partition("\n\n")[0]
    lines = textwrap.wrap(" ".join(first.split()), 84)
    more = f"`transform` of `{module.__name__}.{name}`."
    return "\n".join([*lines, "", more, ""])


def _takes_arrays(fn):
    every = (*fn.args.posonlyargs, *fn.args.args, *fn.args.kwonlyargs, fn.args.vararg)
    given = [ast.unparse(arg.annotation) for arg in every if arg and arg.annotation]
    return fn.name in ("array", "asarray") or any("Array" in text for text in given)


def _definitions(module):
    """The functions and other names of a module of JAX, as declarations."""
    if module is jnp:
        path = pathlib.Path(jnp.__file__).with_suffix(".pyi")
        yield from ast.parse(path.read_text()).body
        return
    for name in sorted(n for n in dir(module) if not n.startswith("_")):
        fn = inspect.unwrap(getattr(module, name))
        (found,) = ast.parse(inspect.getsource(fn)).body
        found.name, found.decorator_list = name, []
        yield found


def stub(name):
    """The text of a stub, not formatted."""
    module = SOURCES[name]
    own, others, described = [], set(), set()
    nodes = list(_definitions(module))
    functions = [n for n in nodes if isinstance(n, ast.FunctionDef)]
    on_arrays = {fn.name for fn in functions if _takes_arrays(fn)}
    for node in nodes:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            if node.name in on_arrays:
                declared = _declaration(node)
                if node.name not in described:  # An overload is described once.
                    declared.body = [ast.Expr(ast.Constant(_summary(module, node.name)))]
                described.add(node.name)
                own.append(ast.unparse(declared))
            else:
                others.add(node.name)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if hasattr(module, target.id) and not target.id.startswith("_"):
                if ast.unparse(getattr(node, "annotation", target)) == "BinaryUfunc":
                    summary = _summary(module, target.id)
                    own.append(f'{ast.unparse(node)}\n"""{summary}"""')
                else:
                    others.add(target.id)
        elif isinstance(node, ast.ClassDef) and node.name == "BinaryUfunc":
            node.body = [_declaration(fn) for fn in node.body]
            own.append(ast.unparse(node))
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            others.add(node.name)
    title = f"`{module.__name__}`, with every function transformed."
    parts = [HEAD.format(title=title)]
    if module is jnp:
        parts.append("from . import fft as fft, linalg as linalg\n")
    path = module.__name__
    parts += [f"from {path} import {n} as {n}\n" for n in sorted(others)]
    newer = "def __getattr__(name: str) -> Any: ..."  # Names of newer releases of JAX.
    return "".join([*parts, ALIASES, "\n".join([*own, newer]), "\n"])


if __name__ == "__main__":
    for name in SOURCES:
        (FOLDER / f"{name}.pyi").write_text(stub(name))
