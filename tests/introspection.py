"""Prints, as JSON, JAX's primitives and the parameters that their rules take.

Run by itself, because it imports all of JAX.
"""

import contextlib
import functools
import importlib
import inspect
import io
import json
import pkgutil
import sys
import warnings

import jax
import jax.extend.core as jex_core
from jax._src import core
from jax._src.interpreters import ad, batching, mlir, partial_eval
from jax._src.state import discharge


NOT_IMPORTED = ("test_util", "jax2tf", "testing", "_test", "tools", "array_serialization")


def import_all_of_jax():
    for root in ("jax._src", "jax.experimental", "jax.interpreters", "jax.extend"):
        path = importlib.import_module(root).__path__
        for module in pkgutil.walk_packages(path, root + ".", onerror=lambda name: None):
            if any(part in module.name for part in NOT_IMPORTED):
                continue
            # Many need hardware, or another library, to be imported.
            with contextlib.suppress(Exception, SystemExit):
                importlib.import_module(module.name)


def primitives():
    return {
        thing
        for name, module in list(sys.modules.items())
        if name.split(".")[0] in ("jax", "jaxlib")
        for thing in list(vars(module).values())
        if isinstance(thing, jex_core.Primitive)
    }


def functions_in(rule, depth=0):
    """The functions that a registered rule comes down to, through its wrappers."""
    if depth > 6:
        return
    if isinstance(rule, functools.partial):
        for part in (rule.func, *rule.args):
            yield from functions_in(part, depth + 1)
    rule = getattr(rule, "rule", rule)
    rule = getattr(rule, "__func__", rule)
    if inspect.isfunction(rule):
        yield rule
        for cell in rule.__closure__ or ():
            with contextlib.suppress(ValueError):  # an empty cell
                if callable(cell.cell_contents):
                    yield from functions_in(cell.cell_contents, depth + 1)
        yield from functions_in(getattr(rule, "__wrapped__", None), depth + 1)


TABLES = [
    getattr(module, name, {})
    for module, name in (
        (ad, "primitive_jvps"),
        (ad, "primitive_transposes"),
        (ad, "fancy_transposes"),
        (ad, "primitive_linearizations"),
        (batching, "fancy_primitive_batchers"),
        (partial_eval, "custom_partial_eval_rules"),
        (core, "custom_typechecks"),
        (discharge, "_discharge_rules"),
        (mlir, "_lowerings"),
    )
]


def parameters(primitive):
    own = vars(primitive)
    rules = [own.get(name) for name in ("abstract_eval", "impl", "to_lojax")]
    rules += [table.get(primitive) for table in TABLES]
    rules += [t.get(primitive) for t in mlir._platform_specific_lowerings.values()]
    return {
        parameter.name
        for rule in rules
        for function in functions_in(rule)
        for parameter in inspect.signature(
            function, follow_wrapped=False
        ).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    }


def main():
    warnings.simplefilter("ignore")
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        import_all_of_jax()
        found = {}
        for primitive in primitives():
            found.setdefault(primitive.name, set()).update(parameters(primitive))
    json.dump({name: sorted(own) for name, own in sorted(found.items())}, sys.stdout)


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    main()
