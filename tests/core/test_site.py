"""The site of the documentation: the API reference is whole, and the gallery is true."""

import configparser
import inspect
import re
import sys
from pathlib import Path

import pytest

import jaxrewrite
from jaxrewrite import Value, checkpoints, extend, patterns, primitives, testing, values


DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS))
import gallery  # noqa: E402
import rooms  # noqa: E402


def documented(page):
    text = (DOCS / "api" / f"{page}.rst").read_text(encoding="utf-8")
    return set(re.findall(r"^\.\. (?:auto|py:)\w+:: (\w+)$", text, re.M))


def names_of(module, late=()):
    """The names that a module defines or imports as themselves, and those that it loads late."""
    found = re.findall(r"(\w+) as (\w+)", inspect.getsource(module))
    own = (x.__name__ for x in vars(module).values() if inspect.isfunction(x))
    defined = {name for name in own if getattr(module, name).__module__ == module.__name__}
    names = {name for own, name in found if own == name} | defined | {*late}
    return {name for name in names if not inspect.ismodule(getattr(module, name, None))}


@pytest.mark.parametrize(
    ("page", "module", "late"),
    [
        ("jaxrewrite", jaxrewrite, jaxrewrite._LATER),
        ("values", values, ["Sparse"]),
        ("checkpoints", checkpoints, []),
        ("patterns", patterns, [*patterns._TABLES, "attention_rules"]),
        ("testing", testing, []),
        ("extend", extend, []),
    ],
)
def test_the_api_reference_has_every_public_name(page, module, late):
    names = {name for name in names_of(module, late) if not name.startswith("_")}
    assert names == documented(page)
    assert all(hasattr(module, name) for name in names)


def test_the_families_of_primitives_have_docstrings():
    source = Path(primitives.__file__).read_text(encoding="utf-8")
    names = [name for name in vars(primitives) if name.isupper() and name != "IDENTITIES"]
    assert names
    for name in names:
        start = re.search(rf"\n{name}(: .*)? = ", source).start()
        assert '\n"""' in source[start : source.find("\n\n", start)], name


BASES = {"Annotated", "Linear", "Structured", "Matrix", "Coded"}


def test_the_picture_of_the_rooms_shows_the_imports():
    assert rooms.PATH.read_text(encoding="utf-8") == rooms.svg()


def test_the_gallery_has_every_type():
    kinds = {name for name in documented("values") if is_type(getattr(values, name))}
    assert {*gallery.names()} == kinds - BASES - {"Known"}
    for name in gallery.names():
        path = gallery.PAGES / f"{name.lower()}.png"
        assert 0 < path.stat().st_size < 10_000, name


def is_type(thing):
    return inspect.isclass(thing) and issubclass(thing, Value)


def test_parts_of_the_gallery():
    pages = {path.stem: path.read_text("utf-8") for path in gallery.PAGES.glob("*.rst")}
    assert gallery.overview() in pages["index"]
    assert gallery.section("Threefry") in pages["annotated"]


@pytest.mark.slow
@pytest.mark.parametrize("key", gallery.PAGES_OF_TYPES)
def test_the_gallery(key, bulk):
    page = (gallery.PAGES / f"{key}.rst").read_text(encoding="utf-8")
    assert gallery.page(key) == page


README = (DOCS.parent / "README.rst").read_text(encoding="utf-8")


def test_the_readme_is_short_and_begins_with_use():
    assert len(README.splitlines()) <= 120
    assert len(README.split()) <= 700
    assert "dimension_numbers" not in README
    titles = re.findall(r"^(.+)\n-+$", README, re.M)
    assert titles[0] == "What it costs and saves"
    assert titles.index("Install") < titles.index("A type of your own")


def test_the_readme_has_the_two_commands():
    setup = "    python3 -m venv .venv && .venv/bin/python -m pip install -e '.[{extra}]' && .venv/bin/python -m {run}\n"
    for extra, run in (("test", "pytest -n auto"), ("bench", "bench")):
        assert setup.format(extra=extra, run=run) in README


def test_what_the_readme_links_to_is_there():
    links = re.findall(r"<(docs/[^>]+)>`_|image:: (\S+)", README)
    paths = [page or image for page, image in links]
    assert {"docs/quickstart.rst", "docs/which_type.rst"} <= {*paths}
    assert all((DOCS.parent / path).exists() for path in paths), paths


# Which measurements the numbers in the table of the README are, row after row.
FIGURES = [
    ("types", "Lora on NF4", "4,096", ("wall time", "memory", "setting up")),
    ("model", "LoRA weights", "", ("wall time", "memory", "trace")),
    (
        *("overhead", "MLP with LoRA", "96"),
        ("jitted call", "memory", "trace", "trace of the gradient"),
    ),
    ("scale", "70B on 8 devices, FSDP, training", "", ("memory", "trace")),
]


def test_the_numbers_of_the_readme_are_measured():
    table = README[README.index(".. list-table::") : README.index("\nInstall\n")]
    rows = re.split(r"\n   \* - ", table)[2:]
    for row, (page, case, size, quantities) in zip(rows, FIGURES, strict=True):
        assert f"<docs/measurements/{page}.rst>" in row
        said = re.findall(r"\d\.\d\d", row)
        assert said == [f"{measured(page, case, size, what):.2f}" for what in quantities]


def measured(page, case, size, what):
    """The first ratio in a line of a measurement page."""
    text = (DOCS / "measurements" / f"{page}.rst").read_text(encoding="utf-8")
    line = rf"^{case} +{size} +{what}  .*?(\d+\.\d\d\d)\b"
    return float(re.search(line, text, re.M)[1])


def test_each_ready_type_has_an_aim():
    page = (DOCS / "which_type.rst").read_text(encoding="utf-8")
    assert all(f"``{name}``" in page for name in gallery.names())
    index = (DOCS / "index.rst").read_text(encoding="utf-8")
    assert re.findall(r"^\* `.*<(.+)>`_", index, re.M)[:2] == [
        "quickstart.rst",
        "which_type.rst",
    ]


def test_type_checkers_follow_an_editable_install():
    """Without a package directory, setuptools finds packages by a hook, which checkers can't see."""
    config = configparser.ConfigParser()
    config.read(DOCS.parent / "setup.cfg")
    assert config["options"]["package_dir"].split() == ["=", "."]
