"""The figure of docs/tutorials/units.rst: ``python docs/unit_axes.py``."""

import pathlib

import matplotlib


matplotlib.use("agg")

import jax.numpy as jnp  # noqa: E402
import matplotlib.pyplot as plt  # noqa: E402

from jaxrewrite import transform, values  # noqa: E402


PATH = pathlib.Path(__file__).resolve().parent / "images" / "unit_axes.png"


def draw(axes):
    @transform
    def height(start, speed, g, time):
        return start + speed * time - g * time**2 / 2

    values.plot_units()
    time = values.Unitful(jnp.linspace(0, 0.9, 91), "s")
    start, speed = values.parse("2 m"), values.parse("9 km/h").to("m/s")
    axes.plot(time, height(start, speed, values.constant("g"), time))
    axes.axhline(values.parse("1500 mm"), color="gray", linestyle="dashed")


def main():
    figure, axes = plt.subplots(figsize=(4.6, 2.6), layout="constrained")
    draw(axes)
    figure.savefig(PATH, dpi=130, metadata={"Software": None})


if __name__ == "__main__":
    main()
