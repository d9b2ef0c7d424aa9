"""Simple Markdown takes a fast path with the same result as the full renderer."""

from __future__ import annotations

import string

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as some

from sessiontree.export.safe_html import convert_markdown, highlight_code
from sessiontree.export.simple_markdown import render_simple_markdown

WORDS = some.sampled_from(
    [
        *(
            "a",
            "word",
            "snake_case",
            "_x_",
            "__init__",
            "a.b",
            "x > y",
            "<b>",
            "</script>",
            "&amp;",
            "& co",
            '"quoted"',
        ),
        *(
            "it's",
            '"quoted"',
            "`code`",
            "`a < b & c`",
            "` x `",
            "` `",
            "``two``",
            "`open",
            "**bold**",
            "**bold",
            "*it*",
        ),
        *(
            "2 * 3",
            "**a b**",
            "**a**b",
            "x**a**",
            "[link](https://a.org)",
            "[x]",
            "[a]: b",
            "![i](j)",
            "a\\*b",
            "~~s~~",
        ),
        *(
            "https://a.org/?a=b&c=d",
            "<https://a.org>",
            "a|b",
            "1.",
            "-",
            "#",
            "café",
            "漢字",
            "✅",
            "\u00a0",
            "\u200f",
            "\t",
        ),
    ]
)
LINES = some.one_of(
    some.sampled_from(
        [
            *(
                "",
                " ",
                "---",
                "===",
                "***",
                "```",
                "```python",
                "``` x",
                "  ```",
                "~~~",
                "# head",
                "## a #",
                "#no",
                "- item",
            ),
            *(
                "- ",
                "-",
                "* item",
                "+ item",
                "1. one",
                "2. two",
                "1) one",
                "  - nested",
                "    code",
                "> quote",
                "| a | b |",
            ),
            *(
                "| a | b |",
                "|---|---|",
                "- # x",
                "- - x",
                "- 1. x",
                "- ```",
                "def f(x): return '<b>' & \"y\"",
                "a  ",
                "a ",
                " a",
            ),
        ]
    ),
    some.lists(WORDS, max_size=5).map(" ".join),
    some.lists(WORDS, max_size=3).map(lambda words: "- " + " ".join(words)),
    some.lists(WORDS, max_size=3).map(lambda words: "1. " + " ".join(words)),
    some.lists(WORDS, max_size=3).map(lambda words: "## " + " ".join(words)),
    some.lists(WORDS, max_size=4).map("".join),
    some.text(alphabet=string.printable, max_size=12),
)


@settings(max_examples=400)
@given(some.lists(LINES, max_size=7).map("\n".join))
@example("1. a\n2. b\n\n- c\n\ntext\n- d")
@example("```python\nx = '<b>'\n```\nafter")
def test_simple_markdown_is_what_the_full_renderer_makes_of_it(text: str) -> None:
    assert render_simple_markdown(text, highlight_code) in (None, convert_markdown(text))


@pytest.mark.parametrize(
    "text",
    [
        "Plain words, and more.",
        "One line\nand the next.\n\nAnother paragraph.",
        "## A heading\n\nUse `x < y` and **bold words** in snake_case_names.",
        "Steps:\n\n1. one\n2. two\n\nPoints:\n- `a`: b\n- c",
        "Code:\n\n```python\nprint('<script>')\n```\n\nDone.",
        "Run `this` and\nnot `that\n\n- `cut off",
    ],
)
def test_usual_answers_are_simple(text: str) -> None:
    simple = render_simple_markdown(text, highlight_code)

    assert simple is not None
    assert simple == convert_markdown(text)


@pytest.mark.parametrize("text", ["<img src=x onerror=alert(1)>", "[x](javascript:alert(1))", "&lt;b&gt;", "a\u202eb"])
def test_text_that_could_be_markup_needs_the_full_renderer(text: str) -> None:
    assert render_simple_markdown(text, highlight_code) is None
