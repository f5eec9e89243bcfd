"""Screenshots of the built site, and of values in a notebook: ``python docs/screens.py SITE``.

SITE is the folder in which Sphinx has built the site. Chromium draws the pages. What a notebook
shows of a value is drawn from its ``_repr_html_``, below the line that made it.
"""

import html
import pathlib
import subprocess
import sys
import tempfile

import jax
import jax.numpy as jnp
from PIL import Image

from jaxrewrite import values


IMAGES = pathlib.Path(__file__).resolve().parent / "images"

# The pages, and how much of each is shown.
PAGES = {
    "readme": ("readme.html", 1150, 1150),
    "index": ("index.html", 1150, 900),
    "which_type": ("which_type.html", 1150, 1000),
}

HEAD = """<meta charset=utf-8>
<style>body { font-family: sans-serif; margin: 12px; zoom: 1.1 }
.cell { background: #f2f2f2; padding: 6px; margin: 14px 0 6px }</style>"""


def shown_in_a_notebook():
    weight = jax.random.normal(jax.random.key(0), (256, 64))
    lora = values.Lora(
        values.Quantised.quantise(weight), jnp.ones((256, 8)), jnp.ones((8, 64))
    )
    return {
        "Diagonal(jnp.array([1.0, 2.5, 4.0]))": values.Diagonal(jnp.array([1.0, 2.5, 4.0])),
        'Unitful(jnp.array([1.0, 2.0, 3.0]), "m")': values.Unitful(jnp.arange(1.0, 4), "m"),
        "Lora(Quantised.quantise(weight), a, b)": lora,
    }


def notebook():
    cells = (
        f'<pre class="cell">{html.escape(line)}</pre>{value._repr_html_()}'
        for line, value in shown_in_a_notebook().items()
    )
    return HEAD + "".join(cells)


def draw(name, url, width, height):
    path = IMAGES / f"screen_{name}.png"
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
    size = f"--window-size={width},{height}"
    command = ("chromium", *options, size, f"--screenshot={path}", url)
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    # Few colours take a quarter of the bytes.
    small = Image.open(path).convert("RGB").resize((width * 2 // 3, height * 2 // 3))
    small.quantize(64).save(path, optimize=True)


def main(site):
    for name, (page, width, height) in PAGES.items():
        draw(name, (pathlib.Path(site).resolve() / page).as_uri(), width, height)
    with tempfile.NamedTemporaryFile("w", suffix=".html") as file:
        file.write(notebook())
        file.flush()
        draw("notebook", pathlib.Path(file.name).as_uri(), 720, 760)


if __name__ == "__main__":
    main(sys.argv[1])
