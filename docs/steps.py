"""The figure of docs/how_it_works.rst: ``python docs/steps.py``."""

import pathlib

import matplotlib


matplotlib.use("agg")

import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.patches import FancyBboxPatch  # noqa: E402


PATH = pathlib.Path(__file__).resolve().parent / "images" / "steps.png"
BLUE, GREY, GREEN, RED = "#d7e6f4", "#eeeeee", "#dcefdc", "#f7dddd"


def box(axes, x, y, text, color, width=2.5, height=0.62):
    patch = FancyBboxPatch(
        (x - width / 2, y - height / 2),
        *(width, height),
        boxstyle="round,pad=0.02,rounding_size=0.08",
        facecolor=color,
        edgecolor="#555555",
        linewidth=0.8,
    )
    axes.add_patch(patch)
    axes.text(x, y, text, ha="center", va="center", fontsize=8)


def arrow(axes, start, end, text="", at=(0.12, 0)):
    axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": "#555555"})
    x, y = (start[0] + end[0]) / 2 + at[0], (start[1] + end[1]) / 2 + at[1]
    axes.text(x, y, text, fontsize=7, color="#333333", va="center", style="italic")


def draw(axes):
    axes.set_xlim(0, 10), axes.set_ylim(-0.2, 6), axes.axis("off")
    axes.text(1.6, 5.75, "A program", ha="center", fontsize=9, weight="bold")
    left = [
        (5.2, "your function, on values", BLUE),
        (3.75, "a jaxpr on arrays", GREY),
        (2.3, "a jaxpr on the leaves", GREY),
        (0.85, "results, as values", BLUE),
    ]
    steps = ["stage, by shape and dtype\n(kept for the next call)"]
    steps += ["rewrite each equation\nthat a value meets (kept)", "run, on the leaves"]
    for y, text, color in left:
        box(axes, 1.6, y, text, color)
    for (y, *_), (below, *_), step in zip(left, left[1:], steps, strict=False):
        arrow(axes, (1.6, y - 0.35), (1.6, below + 0.35), step)

    axes.text(6.3, 5.75, "An equation", ha="center", fontsize=9, weight="bold")
    right = [
        (
            5.2,
            "a rule for these types?",
            "its equations take the place,\nand are dispatched on fields",
        ),
        (3.98, "a program inside?", "it is rewritten in the same way"),
        (2.76, "a default of the type?", "it is called"),
        (1.54, "only moves arrays?", "the leaves are moved"),
    ]
    for y, question, answer in right:
        box(axes, 5.2, y, question, GREY, width=2.3)
        box(axes, 8.6, y, answer, GREEN, width=2.7)
        arrow(axes, (6.4, y), (7.2, y), "yes", at=(-0.15, 0.14))
    for y, *_ in right:
        arrow(
            axes, (5.2, y - 0.35), (5.2, y - 0.88), "no, or it declines" if y > 5 else "no"
        )
    box(axes, 5.2, 0.32, "dense values", RED, width=2.3)
    axes.text(6.5, 0.32, "as materialise= allows", fontsize=7, va="center", style="italic")


def main():
    figure = plt.figure(figsize=(8.2, 4.9), dpi=110)
    draw(figure.add_axes((0.0, 0.0, 1.0, 1.0)))
    figure.savefig(PATH, metadata={"Software": None})


if __name__ == "__main__":
    main()
