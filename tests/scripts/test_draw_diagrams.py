"""The diagrams of the explanations."""

from __future__ import annotations

from pathlib import Path

from scripts.draw_diagrams import IMAGES, draw_all

EXPLANATIONS = Path(__file__).parents[2] / "docs" / "explanation"


def test_the_diagrams_in_the_documentation_are_those_that_the_script_draws() -> None:
    assert {name: (IMAGES / name).read_text() for name in draw_all()} == draw_all()


def test_every_diagram_is_on_a_page() -> None:
    pages = "".join(page.read_text() for page in EXPLANATIONS.glob("*.md"))

    assert [name for name in draw_all() if name not in pages] == []
