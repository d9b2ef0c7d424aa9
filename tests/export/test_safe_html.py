"""Plain text takes a fast path with the same result as Markdown."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as some

from sessiontree.export.safe_html import convert_markdown, markdown_to_html

ALMOST_PLAIN = string.ascii_letters + string.digits + " ,.;:?'/()%+=-#*_<&\"\n"


@given(some.text(alphabet=ALMOST_PLAIN, max_size=40))
def test_a_plain_line_is_rendered_like_markdown(text: str) -> None:
    assert markdown_to_html(text) == convert_markdown(text)


@pytest.mark.parametrize(
    "text",
    [
        "1. one",
        "- one",
        "+ one",
        "a  b",
        "a ",
        "https://example.org/x?a=b",
        "mailto:a",
        "a: b",
        "x = (1 + 2) / 3 - 4%",
        "it's",
    ],
)
def test_an_almost_plain_line_is_rendered_as_markdown(text: str) -> None:
    assert markdown_to_html(text) == convert_markdown(text)
