"""The shape of the package: what imports what, and what is public."""

import ast
import configparser
import pathlib
import re
import subprocess
import sys

import pytest

import jaxrewrite


PACKAGE = pathlib.Path(jaxrewrite.__file__).parent

# From the bottom up; a module imports only from levels below its own.
LEVELS = [
    {"_errors", "_caches", "_collector", "_compat"},
    {"_dead_code", "_flax", "_lines", "_notices", "_operands"},
    {"_pytree"},
    {"_value"},
    {"_annotations", "_avals", "_fills"},
    {"_patterns", "_variables"},
    {"_costs", "_dense", "_rules", "_site"},
    {"_record", "_transposes"},
    {"_draft", "_settings"},
    {"_traces"},
    {"_rewrite"},
    {"_known_zeros"},
    {"_join", "_placement", "_restage"},
    {"_program", "_shardings"},
    {"_closures", "_keepers"},
    {"_stage", "primitives"},
    {"_transform"},
    {"_materialise", "_namespace"},
    {"_array_value", "numpy"},
    {"_batched", "_lineax"},
    {"_higher_order", "_insight"},
    {"__init__", "__main__"},
    {"testing", "values"},  # these two rows are loaded when they are first used
    {"checkpoints", "patterns"},
]
LEVEL_OF = {name: level for level, names in enumerate(LEVELS) for name in names}


def module_files():
    return sorted(PACKAGE.rglob("*.py"))


def top_module(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


class NotForCheckers(ast.NodeTransformer):
    """Drops what only type checkers read."""

    def visit_If(self, node):
        if ast.unparse(node.test).endswith("TYPE_CHECKING"):
            node.body = [ast.Pass()]
        return self.generic_visit(node)


def imported_modules(path):
    """The modules of the package that a file imports, by their top name."""
    depth = len(path.relative_to(PACKAGE).parts)
    for node in ast.walk(NotForCheckers().visit(ast.parse(path.read_text()))):
        if isinstance(node, ast.ImportFrom) and node.level == depth:
            if node.module:
                yield node.module.split(".")[0]
            else:
                yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("path", module_files(), ids=lambda p: p.stem)
def test_imports_go_downwards(path):
    own = top_module(path)
    assert own in LEVEL_OF, f"{own} has no place in the table of levels"
    for name in imported_modules(path):
        assert LEVEL_OF[name] < LEVEL_OF[own], f"{own} imports {name}"


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
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            above = folder[: len(folder) - node.level + 1]
            if node.module:
                yield (*above, *node.module.split("."))
            else:
                yield from ((*above, alias.name) for alias in node.names)


# What ready types take from the package besides its public names, and why: a value's
# fields, to call a method on them as arrays; the jaxprs of functions of JAX, to recognise them;
# a call that waits for its operands; which releases compile what well.
PRIVATE = {
    ("algebra", "jaxrewrite._core.avals"),
    ("blocks", "jaxrewrite._compat"),
    ("recognised", "jaxrewrite._compat"),
    ("coded", "jaxrewrite._compat"),
    ("products", "jaxrewrite._compat"),
}


def test_ready_types_are_written_by_public_names():
    found = set()
    for path in VALUES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
                found |= {(path.stem, n) for n in names if n.startswith("jaxrewrite._")}
    modules = {(stem, ".".join(name.split(".")[:2])) for stem, name in found}
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
    if path.name == "_compat.py":
        return
    for node in ast.walk(ast.parse(path.read_text())):
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
    source = (PACKAGE / "_compat.py").read_text()
    flags = re.findall(r"^JAX_GE_(\w+) = _RELEASE >= \(([\d, ]+)\)$", source, re.M)
    assert len(flags) == len(re.findall(r"^JAX_GE_", source, re.M))
    for name, numbers in flags:
        assert name.replace("_", ".") == numbers.replace(", ", ".")
        assert release(name.replace("_", ".")) > release(floor), f"JAX_GE_{name} is dead"
        assert source.count(f"JAX_GE_{name}") > 1, f"JAX_GE_{name} is not used"


@pytest.mark.parametrize("path", module_files(), ids=lambda p: p.stem)
def test_releases_are_not_guessed_from_what_is_there(path):
    """JAX's version says what JAX does; a flag in `_compat` names the release."""
    if top_module(path) == "values":
        return  # whose rules ask which of several primitives they are for
    for node in ast.walk(ast.parse(path.read_text())):
        if path.name == "_compat.py" and isinstance(node, ast.Name):
            assert node.id != "hasattr", f"line {node.lineno}"
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            looked_in = ast.unparse(node.comparators[0])
            asks_for_a_name = isinstance(node.left, ast.Constant) and "params" in looked_in
            assert not asks_for_a_name, f"line {node.lineno}"


def test_public_names_are_the_package_own_and_documented():
    public = {name for name in vars(jaxrewrite) if not name.startswith("_")}
    public -= {"checkpoints", "numpy", "patterns", "primitives", "testing", "values"}
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


def test_readme_lists_every_module():
    readme = (PACKAGE.parent / "README.rst").read_text()
    listed = readme[readme.index("Package structure") :]
    for names in LEVELS:
        for name in names - {"__init__"}:
            assert f"``{name}``" in listed, name


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


def test_import_loads_no_namespace_and_does_no_jax_work():
    code = (
        "import jax, sys; import jaxrewrite;"
        "names = ('checkpoints', 'numpy', 'patterns', 'testing', 'values');"
        "late = {'jaxrewrite.' + name for name in names} | {'flax', 'safetensors'};"
        "assert not late & {*sys.modules};"
        "from jax._src import xla_bridge;"
        "assert not xla_bridge.backends_are_initialized();"
        "jaxrewrite.Rules().register('dot_general')(lambda x, y, **params: x);"
        "assert not xla_bridge.backends_are_initialized();"
        "assert jaxrewrite.numpy.add"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_names_that_are_loaded_late_are_listed():
    code = """if True:
        import jaxrewrite
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
    subprocess.run([sys.executable, "-c", code], check=True)


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
WITHOUT_EXAMPLE = {"Known", "Units", "UnitsError", "choose_adapters", "combine"}
