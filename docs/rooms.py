"""The picture of the rooms, docs/images/rooms.svg: ``python docs/rooms.py``.

The arrows are the imports of the modules themselves; a test compares the picture with them.
"""

import collections
import html
import pathlib
import sys


DOCS = pathlib.Path(__file__).resolve().parent
PATH = DOCS / "images" / "rooms.svg"
sys.path.append(str(DOCS.parent / "tests"))

from imports import imports, room_of  # noqa: E402


# For each room the middle of its box, and what is in it. The height follows from the imports.
ROOMS = {
    "patterns": (300, "ready tables of patterns"),
    "checkpoints": (560, "values in files"),
    "testing": (110, "checks against dense code"),
    "values": (520, "the ready types"),
    "jaxrewrite": (360, "the public names"),
    "_insight": (110, "reports, the look-up of rules"),
    "_cheapest": (300, "implicit or dense by cost"),
    "_interop": (500, "other libraries"),
    "_patterns": (100, "rules for several equations"),
    "_handlers": (420, "programs inside of equations"),
    "_functions": (236, "functions as calls"),
    "_axes": (620, "how leaves lie in arrays"),
    "_joins": (262, "where structures meet"),
    "_analyses": (85, "what a program writes"),
    "_array_value, _batched, _display, _members, numpy": (
        500,
        "what users subclass and call",
    ),
    "_staging": (390, "from a function to a program"),
    "_signatures": (390, "what primitives take"),
    "_placement": (556, "meshes of devices"),
    "primitives": (696, "families of primitives"),
    "extend": (815, "ways in"),
    "_core": (430, "the interpreter"),
    "_compat": (430, "what JAX keeps private"),
}

# Modules that are drawn in one box with others.
TOGETHER = {
    "__init__": "jaxrewrite",
    "__main__": "_insight",
    "_warn": "extend",
    **dict.fromkeys(
        ("_array_value", "_batched", "_display", "_members", "numpy"),
        "_array_value, _batched, _display, _members, numpy",
    ),
}

FLOOR, HEIGHT, MARGIN = 68, 40, 14


def graph():
    """The rooms that each room imports."""
    found = collections.defaultdict(set)
    for name, imported in imports().items():
        own = TOGETHER.get(room_of(name), room_of(name))
        rooms = {room_of(other) for other in imported if other.startswith("jaxrewrite")}
        found[own] |= {TOGETHER.get(room, room) for room in rooms} - {own}
    return found


def below(found, room):
    """The rooms that a room imports, directly or through others."""
    return found[room].union(*(below(found, other) for other in found[room]))


def arrows(found):
    """The imports that no others imply: an arrow that goes over another room is left out."""
    for room, imported in found.items():
        implied = set().union(*(below(found, other) for other in imported))
        yield from ((room, other) for other in sorted(imported - implied))


def floor(found, room):
    return max((1 + floor(found, other) for other in found[room]), default=0)


def svg():
    found = graph()
    assert {*found} == {*ROOMS}, {*found} ^ {*ROOMS}
    floors = {room: floor(found, room) for room in ROOMS}
    top = max(floors.values())
    y = {room: MARGIN + (top - number) * FLOOR for room, number in floors.items()}
    width, height = 890, 2 * MARGIN + top * FLOOR + HEIGHT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" text-anchor="middle">',
        '<marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#555"/></marker>',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for room, other in sorted(arrows(found)):
        start, end = (ROOMS[room][0], y[room] + HEIGHT), (ROOMS[other][0], y[other])
        lines.append(
            f'<path d="M{start[0]} {start[1]}L{end[0]} {end[1]}" stroke="#555" '
            'marker-end="url(#tip)"/>'
        )
    for room, (x, what) in ROOMS.items():
        half = max(7.2 * len(room), 5.4 * len(what)) / 2 + 10
        colour = "#d7e6f4" if room.startswith("_") else "#dcefdc"
        lines += [
            f'<rect x="{x - half:.0f}" y="{y[room]}" width="{2 * half:.0f}" '
            f'height="{HEIGHT}" rx="6" fill="{colour}" stroke="#555"/>',
            f'<text x="{x}" y="{y[room] + 17}" font-size="13">{html.escape(room)}</text>',
            f'<text x="{x}" y="{y[room] + 32}" font-size="10.5" fill="#333">'
            f"{html.escape(what)}</text>",
        ]
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    PATH.write_text(svg(), encoding="utf-8")
