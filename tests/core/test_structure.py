"""The shape of the package: what imports what, and what is public."""

import ast
import collections
import configparser
import functools
import importlib
import pathlib
import re
import subprocess
import sys
import traceback

import jax
import jax.numpy as jnp
import pytest
from imports import imports, imports_in, module_files, name_of, nodes, room_of

import jaxrewrite


PACKAGE = pathlib.Path(jaxrewrite.__file__).parent

# The rooms, and those that each may import besides itself. The core stands alone: what serves one
# feature, or one other library, comes in by `_core.hooks`.
ROOMS_BELOW = {
    "_compat": set(),
    "_core": {"_compat"},
    "primitives": {"_compat", "_core"},
    "_signatures": {"_compat", "_core", "primitives"},
    "_analyses": {"_compat", "_core"},
    "_joins": {"_analyses", "_compat", "_core", "_staging"},
    "_functions": {"_compat", "_core"},
    "_staging": {"_compat", "_core", "_signatures"},
    "_display": {"_compat", "_core", "_staging"},
    "_axes": {"_core", "_staging"},
    "_array_value": {"_axes", "_core", "_display", "_staging"},
    "_members": {"_core"},
    "_batched": {"_array_value", "_axes", "_compat", "_core", "_display", "_staging"},
    "_placement": {"_compat", "_core"},
    "_handlers": {
        *("_analyses", "_axes", "_batched", "_compat", "_core", "_functions", "_joins"),
        *("_placement", "_signatures", "_staging", "primitives"),
    },
    "_interop": {"_analyses", "_compat", "_core", "_handlers", "_joins", "_staging"},
    "_patterns": {"_analyses", "_compat", "_core", "_staging", "primitives"},
    "_warn": {"_core"},
    "extend": {"_core", "_joins", "_warn"},
    "numpy": {"_staging"},
    "_insight": {
        *("_compat", "_core", "_functions", "_patterns", "_signatures", "_staging"),
    },
    "_cheapest": {"_compat", "_core", "_insight", "_staging"},
    "__main__": {"_insight"},
    "values": {
        *("__init__", "_axes", "_compat", "_core", "_display", "_staging", "extend"),
        "primitives",
    },
    "testing": {
        *("__init__", "_analyses", "_axes", "_compat", "_core", "_functions"),
        *(
            "_handlers",
            "_insight",
            "_patterns",
            "_placement",
            "_signatures",
            "_staging",
            "primitives",
        ),
    },
    "checkpoints": {"__init__", "values"},
    "patterns": {
        "__init__",
        "_analyses",
        "_compat",
        "_core",
        "_insight",
        "_patterns",
        "_staging",
        "values",
    },
}

# What a module may import besides JAX and what comes with it.
WITH_JAX = {"jax", "jaxtyping", "multipledispatch", "numpy", *sys.stdlib_module_names}
OF_OTHERS = {
    "_insight.plot": {"matplotlib"},
    "_interop.lineax": {"equinox", "lineax"},
    "values._annotations.quantities": {"matplotlib", "scipy"},
    # JAX needs SciPy itself.
    "values._matrices.sparse_solves": {"scipy"},
    "checkpoints._files": {"safetensors"},
    "testing.fixtures": {"pytest"},
    "testing.strategies": {"hypothesis"},
}


def short(name):
    return name.removeprefix("jaxrewrite.") if name != "jaxrewrite" else "__init__"


def test_rooms_import_only_the_rooms_below():
    leaks = set()
    for name, imported in imports().items():
        own = room_of(name)
        if own == "__init__":
            continue
        assert own in ROOMS_BELOW, f"{name} is in no room"
        for other in imported:
            room = room_of(other) if other.partition(".")[0] == "jaxrewrite" else own
            if room != own and room not in ROOMS_BELOW[own]:
                leaks.add((short(name), room))
    assert not leaks


def test_the_rooms_are_not_in_a_circle():
    depths = {"__init__": 0}

    def depth(room, above=()):
        assert room not in above, f"a circle: {above}"
        if room not in depths:
            below = ROOMS_BELOW[room]
            depths[room] = 1 + max((depth(x, (*above, room)) for x in below), default=0)
        return depths[room]

    assert all(map(depth, ROOMS_BELOW))


def test_no_module_is_in_a_circle():
    done, doing = set(), []

    def visit(name):
        assert name not in doing, f"a circle: {doing[doing.index(name) :]}"
        if name not in done:
            doing.append(name)
            # Whoever uses public names imports the package, which imports the rooms below it.
            for other in imports().get(name, frozenset()) - {"jaxrewrite"}:
                visit(other)
            done.add(doing.pop())

    for name in imports():
        visit(name)


def test_other_libraries_are_imported_in_their_rooms():
    for name, imported in imports().items():
        tops = {other.partition(".")[0] for other in imported} - {"jaxrewrite"}
        assert tops - WITH_JAX == OF_OTHERS.get(short(name), set()), name


LIBRARIES = {
    *(
        "astropy",
        "blackjax",
        "chex",
        "diffrax",
        "distrax",
        "equinox",
        "flax",
        "haiku",
        "lineax",
    ),
    *("numpyro", "optax", "optimistix", "orbax", "peft", "pint", "quax", "safetensors"),
    *("tensorflow", "torch", "transformers"),
}

# What the ready types look up besides: the units of two packages, which users may pass.
NAMED = {"values._annotations.units": {"astropy", "pint"}}


def libraries_named_in(nodes):
    """The libraries whose modules are strings of a module, such as keys of `sys.modules`."""
    strings = (node.value for node in nodes if isinstance(node, ast.Constant))
    return {x.partition(".")[0] for x in strings if isinstance(x, str)} & LIBRARIES


def test_other_libraries_are_looked_up_by_name_in_their_rooms():
    in_source = lambda source: libraries_named_in(ast.walk(ast.parse(source)))
    assert in_source("sys.modules.get('equinox.nn')") == {"equinox"}
    assert in_source("raise TypeError('flax has no such module')") == set()
    for path in module_files():
        name = short(name_of(path))
        if room_of(f"jaxrewrite.{name}") not in ("_compat", "_interop", "checkpoints"):
            assert libraries_named_in(nodes(path)) == NAMED.get(name, set()), name


@pytest.mark.parametrize(
    "source, found",
    [
        ("import jaxrewrite.values", {"jaxrewrite.values"}),
        ("def f():\n    from jaxrewrite import values", {"jaxrewrite.values"}),
        ("from ..values import Diagonal", {"jaxrewrite.values"}),
        ("from .. import values", {"jaxrewrite.values"}),
        ("from . import walk", {"jaxrewrite._core"}),
        ("from .rules import Rules", {"jaxrewrite._core.rules"}),
        ("importlib.import_module('flax')", {"flax"}),
        ("if TYPE_CHECKING:\n    import flax", set()),
    ],
)
def test_all_kinds_of_imports_are_seen(source, found):
    tree = ast.parse(source)
    assert imports_in(tree, "jaxrewrite._core.walk", is_package=False) == found


# The rooms of the ready types, from the bottom up.
ROOMS = [
    {"_base"},
    {"_matrices"},
    {"_uniform", "_weights", "_annotations"},
    {"_adapters", "_level", "_strict", "_trees"},
    {"__init__"},
]
ROOM_OF = {name: level for level, names in enumerate(ROOMS) for name in names}
VALUES = PACKAGE / "values"


def imports_within(path):
    """The modules of `jaxrewrite.values` that a file of it imports, anywhere in it."""
    folder = path.parent.relative_to(VALUES).parts
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and node.level:
            above = folder[: len(folder) - node.level + 1]
            if node.module:
                yield (*above, *node.module.split("."))
            else:
                yield from ((*above, alias.name) for alias in node.names)


# What ready types take from the package besides its public names, and why: a value's
# fields, to call a method on them as arrays; the jaxprs of functions of JAX, to recognise them;
# a call that waits for its operands; which releases compile what well; how much a value takes;
# moves of types that declare no axes, or of which the results become dense; what an annotation is;
# methods that users call, also where they forbid promotions; what is known of sizes; which rows are
# in a group; which fields of a class that is being defined hold arrays.
PRIVATE = {
    ("algebra", "jaxrewrite._core.avals"),
    ("blocks", "jaxrewrite._axes"),
    ("blocks", "jaxrewrite._compat"),
    ("recognised", "jaxrewrite._compat"),
    ("coded", "jaxrewrite._axes"),
    ("coded", "jaxrewrite._compat"),
    ("coded", "jaxrewrite._staging"),
    ("concatenated", "jaxrewrite._axes"),
    ("declaration", "jaxrewrite._axes"),
    ("gathers", "jaxrewrite._axes"),
    ("gguf_blocks", "jaxrewrite._compat"),
    ("masked", "jaxrewrite._compat"),
    ("products", "jaxrewrite._compat"),
    ("ragged", "jaxrewrite._axes"),
    ("ragged", "jaxrewrite._compat"),
    ("rescaled", "jaxrewrite._axes"),
    ("sizes", "jaxrewrite._axes"),
    ("sparse", "jaxrewrite._display"),
    ("structured", "jaxrewrite._axes"),
    ("structured", "jaxrewrite._compat"),
    ("structured", "jaxrewrite._core.avals"),
    ("structured", "jaxrewrite._display"),
}


def test_ready_types_are_written_by_public_names():
    found = set()
    for path in VALUES.rglob("*.py"):
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
                found |= {(path.stem, n) for n in names if n.startswith("jaxrewrite._")}
    room = re.compile(r"jaxrewrite\._(?:core\.\w+|\w+)")
    modules = {(stem, room.match(name)[0]) for stem, name in found}
    assert modules == PRIVATE


def test_rooms_import_downwards_and_no_module_in_a_circle():
    graph = {}
    for path in sorted(VALUES.rglob("*.py")):
        own = path.relative_to(VALUES).with_suffix("").parts
        graph[own] = set(imports_within(path))
        for other in graph[own]:
            if other[0] != own[0]:
                assert ROOM_OF[other[0]] < ROOM_OF[own[0]], f"{own} imports {other}"
    done, doing = set(), []

    def visit(module):
        assert module not in doing, f"a circle: {doing}"
        if module in graph and module not in done:
            doing.append(module)
            for other in graph[module]:
                visit(other)
            done.add(doing.pop())

    for module in graph:
        visit(module)


@pytest.mark.parametrize("path", module_files(), ids=lambda p: p.stem)
def test_private_jax_only_in_compat(path):
    if path.parent.name == "_compat":
        return
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom):
            assert not (node.module or "").startswith("jax._src")
        elif isinstance(node, ast.Import):
            assert not any(alias.name.startswith("jax._src") for alias in node.names)
    assert "jax._src" not in path.read_text()
    assert "__version_" not in path.read_text() or path.name == "__init__.py"


def release(text):
    return tuple(map(int, text.split(".")))


def test_no_flag_of_a_release_is_dead():
    """Each release of JAX that `_compat` asks about is one above the oldest supported."""
    setup = configparser.ConfigParser()
    setup.read(PACKAGE.parent / "setup.cfg")
    (floor,) = re.findall(r"^jax >= ([\d.]+)$", setup["options"]["install_requires"], re.M)
    source = "".join(path.read_text() for path in (PACKAGE / "_compat").glob("*.py"))
    flags = re.findall(r"^JAX_GE_(\w+) = _RELEASE >= \(([\d, ]+)\)$", source, re.M)
    assert len(flags) == len(re.findall(r"^JAX_GE_", source, re.M))
    for name, numbers in flags:
        assert name.replace("_", ".") == numbers.replace(", ", ".")
        assert release(name.replace("_", ".")) > release(floor), f"JAX_GE_{name} is dead"
        assert len(re.findall(rf"JAX_GE_{name}(?! as)(?!,)", source)) > 1, (
            f"JAX_GE_{name} is not used"
        )


@pytest.mark.parametrize("path", module_files(), ids=lambda p: p.stem)
def test_releases_are_not_guessed_from_what_is_there(path):
    """JAX's version says what JAX does; a flag in `_compat` names the release."""
    if path.relative_to(PACKAGE).parts[0] == "values":
        return  # whose rules ask which of several primitives they are for
    for node in nodes(path):
        if path.parent.name == "_compat" and isinstance(node, ast.Name):
            assert node.id != "hasattr", f"line {node.lineno}"
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            looked_in = ast.unparse(node.comparators[0])
            asks_for_a_name = isinstance(node.left, ast.Constant) and "params" in looked_in
            assert not asks_for_a_name, f"line {node.lineno}"


@functools.cache
def modules():
    """The modules of the package that can be imported here, with their syntax trees."""
    imported = []
    for path in module_files():
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        name = ".".join(parts).removesuffix(".__init__")
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            assert not error.name.startswith("jaxrewrite")  # It is for another library.
            continue
        imported.append((module, nodes(path)))
    return imported


def is_exception(x):
    return isinstance(x, type) and issubclass(x, BaseException)


def found(module, expression):
    """What a name, dotted or not, is in a module."""
    try:
        return eval(ast.unparse(expression), dict(vars(module)))
    except (NameError, AttributeError):
        return None


def test_exceptions_have_public_names():
    """So users can catch each of them: there is no other that could leave the library."""
    public = [jaxrewrite, jaxrewrite.checkpoints, jaxrewrite.patterns]
    public += [jaxrewrite.testing, jaxrewrite.values]
    for module, tree in modules():
        for node in tree:
            if isinstance(node, ast.ClassDef) and any(
                is_exception(found(module, base)) for base in node.bases
            ):
                cls = getattr(module, node.name, None)
                assert any(getattr(of, node.name, None) is cls for of in public), node.name


# Exceptions of functions of the user.
OF_USERS = {"traced", "result.error"}


@functools.cache
def results_of_functions():
    """What the functions of the package return, by their names, with their modules."""
    results = collections.defaultdict(list)
    for module, tree in modules():
        for node in tree:
            if isinstance(node, ast.FunctionDef):
                returned = [x.value for x in ast.walk(node) if isinstance(x, ast.Return)]
                results[node.name] += [(value, module, tree) for value in returned]
    return results


def says_something(node, module, tree):
    """Whether an expression is an exception with a text."""
    if not isinstance(node, ast.Call):
        return False
    if is_exception(found(module, node.func)):
        text = node.args[0] if node.args else ast.Constant("")
        return not isinstance(text, ast.Constant) or bool(text.value)
    # A function of the package makes the exception, or a short one beside it.
    name = ast.unparse(node.func).split(".")[-1]
    short = [value for value in assigned(tree, name) if isinstance(value, ast.Lambda)]
    results = [*results_of_functions()[name], *((x.body, module, tree) for x in short)]
    return bool(results) and all(says_something(*result) for result in results)


def assigned(tree, name):
    for node in tree:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            yield node.value


def test_exceptions_have_a_text():
    """Also those of assertions. What an ``except`` raises again is not the library's."""
    for module, tree in modules():
        for node in tree:
            place = f"{module.__name__}, line {getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Assert):
                assert node.msg is not None, place
            elif isinstance(node, ast.Raise) and node.exc is not None:
                raised = [node.exc]
                if isinstance(node.exc, ast.Name):
                    raised = list(assigned(tree, node.exc.id))
                is_own = ast.unparse(node.exc) not in OF_USERS
                if is_own:
                    assert raised, place
                    assert all(says_something(x, module, tree) for x in raised), place


def test_public_names_are_the_package_own_and_documented():
    public = {name for name in vars(jaxrewrite) if not name.startswith("_")}
    public -= {"checkpoints", "extend", "numpy", "patterns", "primitives", "testing"}
    public -= {"values"}
    assert public == {
        "AmbiguousRuleError",
        "ArrayValue",
        "Axis",
        "Batched",
        "MaterialisationError",
        "MaterialisationWarning",
        "Rules",
        "Value",
        "bind",
        "clear_caches",
        "field",
        "make_jaxpr",
        "materialise",
        "no_materialise",
        "place",
        "register",
        "rewrite",
        "same_structure",
        "shardings",
        "stack",
        "transform",
    }
    for name in (*public, "Report", "explain", "rules", "which"):
        thing = getattr(jaxrewrite, name)
        assert thing.__module__.startswith("jaxrewrite"), name
        assert thing.__doc__, name


class Counted(jaxrewrite.ArrayValue):
    x: jax.Array

    def materialise(self):
        return self.x


@pytest.mark.parametrize(
    ("fn", "most"),
    [
        (lambda v: -v, 12),
        (lambda v: jax.lax.scan(lambda v, _: (-v, None), v, length=3)[0], 20),
    ],
    ids=["direct", "in a scan"],
)
def test_a_rule_is_few_functions_below_the_call(fn, most):
    """Whoever debugs a rule sees these in the traceback."""
    rules, seen = jaxrewrite.Rules(), []

    @rules.register("neg")
    def _(v: Counted, **params):
        files = [frame.filename for frame in traceback.extract_stack()]
        seen.append(sum(PACKAGE in pathlib.Path(file).parents for file in files))
        return Counted(-v.x)

    jaxrewrite.transform(fn, rules=rules)(Counted(jnp.ones(2)))
    assert seen
    assert max(seen) <= most


DOCS = PACKAGE.parent / "docs"


def test_changelog_knows_this_version():
    text = (DOCS / "changelog.rst").read_text()
    titles = re.findall(r"^(.+)\n-+$", text, re.M)
    assert titles[0] == "Unreleased"
    for title in titles[1:]:
        assert re.fullmatch(r"\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)", title), title
    assert titles[1].startswith(f"{jaxrewrite.__version__} ")
    headings = re.findall(r"\n\n(\w[^\n.:]*)\n\n\*", text)
    assert {*headings} <= {"New features", "Changes", "Bug fixes", "Performance"}


def test_paths_that_contributors_are_told_exist():
    text = (DOCS / "contributing.rst").read_text()
    paths = re.findall(r"(?:tests|bench|docs|jaxrewrite)/[\w/]+\.(?:py|rst)", text)
    assert paths
    for path in paths:
        assert (PACKAGE.parent / path).exists(), path


def test_index_lists_every_page():
    for folder in (DOCS, *(path.parent for path in DOCS.glob("*/index.rst"))):
        index = (folder / "index.rst").read_text()
        for path in folder.glob("*.rst"):
            if path.name not in ("index.rst", "readme.rst"):  # which is the README itself
                assert f"<{path.name}>`_" in index, path


# What one process loads, and when.
LOADED = """
import jax, sys
import jaxrewrite
late = ("checkpoints", "extend", "numpy", "patterns", "testing", "values")
late = {"flax", "safetensors", *("jaxrewrite." + name for name in late)}
assert not late & {*sys.modules}
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized()
jaxrewrite.Rules().register("dot_general")(lambda x, y, **params: x)
assert not xla_bridge.backends_are_initialized()
assert jaxrewrite.numpy.add

sys.modules["pytest"] = sys.modules["hypothesis"] = None
assert jaxrewrite.testing.check_value
assert "jaxrewrite.values" not in sys.modules

listed = {*dir(jaxrewrite)}
assert {"explain", "Report", "values", "numpy", "transform"} <= listed
assert all(hasattr(jaxrewrite, name) for name in listed)
from jaxrewrite import patterns, values
assert "Sparse" in dir(values) and "stable" in dir(patterns)
from jaxrewrite.patterns import *
from jaxrewrite.values import *
assert Sparse is values.Sparse and Diagonal is values.Diagonal
assert stable is patterns.stable and "importlib" not in globals()
"""


def test_import_does_no_jax_work_and_names_are_loaded_late_and_are_listed():
    """No namespace is loaded with the package, and no test package with the checks."""
    subprocess.run([sys.executable, "-c", LOADED], check=True)


def test_the_core_stands_alone():
    """Without the other rooms it is loaded, and applies a rule to a program."""
    script = pathlib.Path(__file__).with_name("core_alone.py")
    subprocess.run([sys.executable, str(script), str(PACKAGE)], check=True)


def test_the_core_is_read_in_an_afternoon():
    files = (PACKAGE / "_core").glob("*.py")
    assert sum(len(path.read_text().splitlines()) for path in files) <= 4500


def annotations(path):
    """The annotations of a file: of parameters, of results, and of variables."""
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef):
            yield node.returns
        elif isinstance(node, (ast.AnnAssign, ast.arg)):
            yield node.annotation


def test_annotations_tell_types():
    """A bare ``Any`` says nothing; few are left where the program is rewritten."""
    counts = collections.Counter()
    for room in ("_core", "_handlers", "_staging"):
        for path in (PACKAGE / room).glob("*.py"):
            given = [x for x in annotations(path) if x is not None]
            counts[room] += len(given)
            counts[room, "Any"] += [ast.unparse(x) for x in given].count("Any")
        assert counts[room, "Any"] <= 0.12 * counts[room], room


def test_ready_types_are_documented():
    from jaxrewrite import values

    page = (PACKAGE.parent / "docs" / "values.rst").read_text()
    names = {n for n in vars(values) if not n.startswith("_")} | {"Sparse"}
    tables = {name for name in names if isinstance(getattr(values, name), jaxrewrite.Rules)}
    assert all(name in page for name in tables)
    for name in names - tables:
        thing = getattr(values, name)
        assert thing.__module__.startswith("jaxrewrite.values"), name
        assert thing.__doc__ and ("Examples\n" in thing.__doc__ or name in WITHOUT_EXAMPLE)
        assert name in page, name


# What the docstring of another one shows.
WITHOUT_EXAMPLE = {
    *("Known", "Units", "UnitsError", "WeightAxes", "choose_adapters", "combine"),
}
