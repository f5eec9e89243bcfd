"""The site of the documentation: the API reference is whole, and the gallery is true."""

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


def documented(page):
    text = (DOCS / "api" / f"{page}.rst").read_text(encoding="utf-8")
    return set(re.findall(r"^\.\. (?:auto|py:)\w+:: (\w+)$", text, re.M))


def names_of(module, late=()):
    """The names that a module imports as themselves, and those that it loads late."""
    found = re.findall(r"(\w+) as (\w+)", inspect.getsource(module))
    names = {name for own, name in found if own == name} | {*late}
    return {name for name in names if not inspect.ismodule(getattr(module, name, None))}


@pytest.mark.parametrize(
    ("page", "module", "late"),
    [
        ("jaxrewrite", jaxrewrite, jaxrewrite._INSIGHT),
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


BASES = {"Linear", "Structured", "Matrix", "Coded"}


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
