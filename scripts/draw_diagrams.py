"""Draw the diagrams of the explanations: a tree with its heads, a context, an append, and an experiment.

Run it after an explanation has changed: `.venv/bin/python scripts/draw_diagrams.py`. It writes SVG files to
`docs/images`, with colours that are readable on light and on dark pages.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from sessiontree.swarm.experiment.statistics import TrendPoint, estimate_difference

IMAGES = Path(__file__).parents[1] / "docs" / "images"
TEAL, DARK_TEAL, BLUE, SLATE, GREY = "#0d9488", "#115e59", "#2563eb", "#475569", "#94a3b8"
TEXT = "#64748b"
BOX = (128, 40)


class Box(NamedTuple):
    """A filled box with a text, by its top left corner."""

    x: int
    y: int
    text: str
    color: str = TEAL
    width: int = BOX[0]

    def draw(self) -> str:
        middle = self.x + self.width // 2
        return (
            f'<rect x="{self.x}" y="{self.y}" width="{self.width}" height="{BOX[1]}" rx="7" fill="{self.color}"/>'
            + write(middle, self.y + 25, self.text, color="#ffffff", anchor="middle")
        )


def write(x: float, y: float, text: str, *, color: str = TEXT, anchor: str = "start", weight: int = 400) -> str:
    style = f'fill="{color}" font-size="13" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text x="{x:g}" y="{y:g}" {style}>{escape(text)}</text>'


def connect(parent: Box, child: Box) -> str:
    """Draw the line from a box to one that is to its right."""
    x, y = parent.x + parent.width, parent.y + BOX[1] // 2
    end = child.y + BOX[1] // 2
    half = (x + child.x) // 2
    return f'<path d="M{x} {y} C{half} {y} {half} {end} {child.x} {end}" fill="none" stroke="{GREY}" stroke-width="2"/>'


def draw_heads() -> Iterator[str]:
    root, answer = Box(8, 70, "How?"), Box(168, 70, "Which way?")
    cache = [Box(338, 16, "Try a cache"), Box(498, 16, "40 ms")]
    dictionary = [Box(338, 124, "Try a dict"), Box(498, 124, "25 ms")]
    for parent, child in [(root, answer), *((answer, way[0]) for way in (cache, dictionary)), cache, dictionary]:
        yield connect(parent, child)
    for box in (root, answer, *cache, *dictionary):
        yield box.draw()
    for way, name in ((cache, "cache"), (dictionary, "dict = HEAD")):
        x, y = way[-1].x + BOX[0], way[-1].y + BOX[1] // 2
        yield f'<path d="M{x + 34} {y} H{x + 8} m6 -5 l-6 5 l6 5" fill="none" stroke="{BLUE}" stroke-width="2"/>'
        yield write(x + 40, y + 5, name, color=BLUE, weight=700)


def draw_context() -> Iterator[str]:
    texts = ["user 1", "assistant 1", "user 2", "assistant 2", "compaction", "user 3"]
    width, step = 96, 116
    path = [Box(8 + step * i, 60, text, SLATE if i < 2 else TEAL, width) for i, text in enumerate(texts)]
    sibling = Box(8 + step * 4, 130, "other branch", SLATE, width)
    yield from (connect(parent, child) for parent, child in [*pairwise(path), (path[3], sibling)])
    yield from (box.draw() for box in (*path, sibling))
    yield write(8, 42, "summarized, not sent")
    yield write(path[2].x, 42, "kept", color=TEAL, weight=700)
    yield write(path[4].x, 42, "summary, sent first", color=TEAL, weight=700)
    yield write(sibling.x + width + 12, sibling.y + 25, "never sent")


def draw_append() -> Iterator[str]:
    steps = ["lock", "compare head", "write line", "sync disk", "unlock", "return"]
    boxes = [Box(8 + 118 * i, 44, text, DARK_TEAL if i < 4 else TEAL, 108) for i, text in enumerate(steps)]
    yield from (connect(*pair) for pair in pairwise(boxes))
    yield from (box.draw() for box in boxes)
    yield write(boxes[1].x, 30, "moved: refused, nothing written")
    yield write(boxes[3].x, 108, "fails: the line is taken back")
    yield write(boxes[5].x + 108, 30, "safe from here on", color=TEAL, anchor="end", weight=700)


def simulate_experiment() -> list[TrendPoint]:
    """Two arms that succeed in 90 % and in 50 % of runs, estimated after each pair of runs."""
    chance = random.Random(17)
    arms = [[float(chance.random() < rate) for _ in range(40)] for rate in (0.9, 0.5)]
    return [estimate_difference(arms[0][:n], arms[1][:n], proportions=True) for n in range(2, 41)]


def draw_experiment(points: Sequence[TrendPoint]) -> Iterator[str]:
    def place(pairs: float, difference: float) -> str:
        return f"{60 + pairs * 15:.1f},{120 - difference * 90:.1f}"

    bounds = [(point.pairs, point.low or 0.0, point.high or 0.0) for point in points]
    band = [place(n, high) for n, _, high in bounds] + [place(n, low) for n, low, _ in reversed(bounds)]
    line = " ".join(place(point.pairs, point.difference) for point in points)
    yield f'<polygon points="{" ".join(band)}" fill="{TEAL}" fill-opacity="0.25"/>'
    yield f'<polyline points="{line}" fill="none" stroke="{TEAL}" stroke-width="2.5"/>'
    yield f'<path d="M60 120 H670" stroke="{GREY}" stroke-dasharray="5 4"/>'
    for share in (1, 0, -1):
        yield write(50, 125 - share * 90, f"{share:+d}" if share else "equal", anchor="end")
    for pairs in (10, 20, 30, 40):
        yield write(60 + pairs * 15, 236, f"{pairs} pairs", anchor="middle")
    first = next(n for n, low, _ in bounds if low > 0)
    x = 60 + first * 15
    yield f'<path d="M{x} 24 V212" stroke="{BLUE}" stroke-width="1.5"/>'
    yield write(x + 8, 200, f"a winner after {first} pairs", color=BLUE, weight=700)


def build_picture(description: str, width: int, height: int, parts: Iterator[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
    label = f'aria-label="{escape(description)}" font-family="system-ui, sans-serif">'
    return "\n".join([f"{head} {label}", *parts, "</svg>\n"])


def draw_all() -> dict[str, str]:
    """Return the diagrams by the names of their files."""
    trend = draw_experiment(simulate_experiment())
    return {
        "heads.svg": build_picture(
            "A tree of six messages. Two branches point at their last entries", 768, 180, draw_heads()
        ),
        "context.svg": build_picture("A path with a compaction: what the model sees of it", 720, 180, draw_context()),
        "append.svg": build_picture("The steps of an append, from the lock to the return", 730, 124, draw_append()),
        "interval.svg": build_picture(
            "The interval of a difference shrinks with each pair of runs, until it leaves zero", 720, 248, trend
        ),
    }


if __name__ == "__main__":
    for name, picture in draw_all().items():
        (IMAGES / name).write_text(picture)
