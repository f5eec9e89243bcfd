"""The site of the documentation: ``python -m sphinx -W -n -b html docs build/docs``."""

import inspect
import os
import pathlib

import sphinx.addnodes
from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util.nodes import make_refnode

import jaxrewrite


project = "jaxrewrite"
author = "The authors of jaxrewrite"
copyright = author  # noqa: A001
version = release = jaxrewrite.__version__

extensions = ["numpydoc", "sphinx.ext.autodoc", "sphinx_copybutton"]
html_theme = "furo"
html_math_renderer = "mathml"  # of this file: it needs no script from elsewhere
html_title = "jaxrewrite"
html_static_path = ["static"]
html_css_files = ["tables.css"]
html_show_copyright = False
html_show_sphinx = False

# A copied example has neither prompts nor results.
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True

# Types stand in the descriptions of parameters. Methods that only repeat those of a base are
# described there.
autodoc_typehints = "none"
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
add_module_names = False
numpydoc_show_class_members = False

# `name` in a docstring is a link where there is something of this name.
default_role = "py:obj"
nitpick_ignore_regex = [
    # Objects of other packages, whose pages a build does not read.
    (
        r"py:.*",
        r"(jax|jaxtyping|equinox|numpy|scipy|optax|dataclasses|hypothesis|pytest)\b.*",
    ),
    # What the functions that report return. The page of reports describes these.
    (r"py:obj", r"NearMiss|Registered"),
]


class LinksBetweenFiles(SphinxTransform):
    """Make links to .rst files, which code hosts follow, links to pages of the site.

    A link, or the path of an image, is relative to the file that it stands in, which may be an
    included one.
    """

    default_priority = 5

    def apply(self) -> None:
        docs = pathlib.Path(self.env.srcdir)
        for link in list(self.document.findall(nodes.reference)):
            path = link.get("refuri", "")
            if not path.endswith(".rst") or ":" in path:
                continue
            file = os.path.relpath(_folder_of(link) / path, docs)
            page = "readme" if file == "../README.rst" else file.removesuffix(".rst")
            link.replace_self(_link_to_page(page, link, self.env.docname))
        page_folder = pathlib.Path(self.document["source"]).parent
        for image in self.document.findall(nodes.image):
            path = _folder_of(image) / image["uri"]
            image["uri"] = os.path.relpath(path, page_folder)


def _folder_of(node: nodes.Node) -> pathlib.Path:
    while not getattr(node, "source", None):
        node = node.parent
    return pathlib.Path(node.source).parent


def _link_to_page(page: str, link: nodes.reference, here: str) -> nodes.Node:
    found = sphinx.addnodes.pending_xref(
        refdomain="std",
        reftype="doc",
        reftarget=f"/{page}",
        refdoc=here,
        refexplicit=True,
        refwarn=True,
    )
    found += nodes.inline(link.astext(), link.astext())
    return found


def signature_of_type(app, what, name, thing, options, signature, returned):
    """The parameters of a value type, whose metaclass hides them."""
    if what != "class" or not issubclass(thing, jaxrewrite.Value):
        return None
    found = inspect.signature(thing)
    shown = [p for p in found.parameters.values() if not p.name.startswith("_")]
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in shown]
    return str(inspect.Signature(bare)), ""


def by_last_name(app, env, node, text):
    """Find `Lora` for a docstring of another module, where one object has this last name."""
    if node["refdomain"] != "py":
        return None
    objects, dotted = env.get_domain("py").objects, f".{node['reftarget']}"
    found = [name for name in objects if name.endswith(dotted)]
    if len(found) != 1:
        return text if found else None
    page, anchor = objects[found[0]][:2]
    return make_refnode(app.builder, node["refdoc"], page, anchor, text, found[0])


def formula(translator, node):
    translator.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def displayed_formula(translator, node):
    translator.body.append(
        f'<div class="math">{tex2mathml(node.astext(), as_block=True)}</div>'
    )
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    app.add_transform(LinksBetweenFiles)
    app.connect("autodoc-process-signature", signature_of_type)
    app.connect("missing-reference", by_last_name)
    app.add_html_math_renderer("mathml", (formula, None), (displayed_formula, None))
