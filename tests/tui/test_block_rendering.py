"""Rendering of blocks: Markdown pieces, folding, and no control sequences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiontree.tui.theme import DARK, LIGHT, build_styles
from sessiontree.tui.widgets.block_rendering import BlockRenderer
from sessiontree.tui.widgets.markdown import split_pieces
from sessiontree.tui.widgets.transcript_blocks import BlockBuilder, TranscriptBlock

RENDERER = BlockRenderer(build_styles(DARK))
HOSTILE = "\x1b]0;owned\x07\x1b]52;c;aGk=\x07\x1b[2J\x9b31m\u202e\r\x08\x7f"


def render_text(block: TranscriptBlock, width: int = 60, unfolded: bool = False) -> str:
    return "\n".join(strip.text.rstrip() for strip in RENDERER.render(block, width, unfolded))


def test_pieces_end_at_blank_lines_outside_of_fences_and_lists() -> None:
    words = "one\ntwo\n\n- a\n\n  b\n\n```\ncode\n\nmore\n```\n\nend\n"

    assert [piece.strip() for piece in split_pieces(words)] == [
        "one\ntwo",
        "- a\n\n  b",
        "```\ncode\n\nmore\n```",
        "end",
    ]


@given(st.lists(st.sampled_from(["word", "", "- item", "  deep", "```", "~~~~", "# head", "1. n", "> q", "| a |"])))
def test_splitting_into_pieces_loses_no_text(lines: list[str]) -> None:
    words = "\n".join(lines)

    assert [line for piece in split_pieces(words) for line in piece.split("\n") if line.strip()] == [
        line for line in lines if line.strip()
    ]


def test_only_the_last_piece_is_rendered_again_while_streaming() -> None:
    block = TranscriptBlock("answer", text="first\n\nsecond")
    render_text(block)
    first = block.render_cache["pieces"][0][1]

    block.text += " grows\n\nthird"
    block.invalidate()
    assert render_text(block) == "  first\n\n  second grows\n\n  third"
    assert block.render_cache["pieces"][0][1] is first


def test_markdown_is_rendered_and_html_is_shown_as_text() -> None:
    shown = render_text(
        TranscriptBlock("answer", text="# Head\n\n**bold** <b>tag</b> [link](http://example.org)\n\n```py\nx = 1\n```")
    )

    assert shown == "  Head\n\n  bold <b>tag</b> link (http://example.org)\n\n  │ x = 1"


def test_list_numbers_continue_in_the_next_piece() -> None:
    assert "3" in render_text(TranscriptBlock("answer", text="1. one\n2. two\n\n```\nx\n```\n\n3. three"))


@pytest.mark.parametrize("kind", ["user", "answer", "thought", "tool", "summary", "custom", "note", "output", "error"])
@pytest.mark.parametrize("unfolded", [False, True])
def test_no_control_sequence_is_rendered(kind: str, unfolded: bool) -> None:
    text = f"{HOSTILE}\n\n```sh\n{HOSTILE}\n```\n\n[{HOSTILE}](http://x{HOSTILE})"
    for block in (
        TranscriptBlock(kind, head=HOSTILE, text=text),
        TranscriptBlock(kind, head=HOSTILE, text=text, state="live", is_diff=True),
    ):
        for strip in RENDERER.render(block, 50, unfolded):
            assert not any(ord(letter) < 32 or 0x7F <= ord(letter) <= 0x9F for letter in strip.text)
            assert "\u202e" not in strip.text
            for segment in strip:
                assert segment.control is None
                assert segment.style is None or segment.style.link is None


@pytest.mark.parametrize("kind", ["user", "answer", "thought", "tool", "summary", "custom", "note", "output", "error"])
@given(text=st.text(max_size=300), width=st.integers(20, 100), unfolded=st.booleans())
def test_no_line_is_longer_than_the_width(kind: str, text: str, width: int, unfolded: bool) -> None:
    block = TranscriptBlock(kind, head=text, text=text)

    assert all(strip.cell_length <= width for strip in RENDERER.render(block, width, unfolded))


def test_bash_output_is_collapsed_to_its_end() -> None:
    lines = "\n".join(map(str, range(100)))

    assert render_text(TranscriptBlock("tool", head="$ seq", text=lines, shows_tail=True)).split("\n")[1:3] == [
        "  … 95 more lines",
        "  95",
    ]
    assert render_text(TranscriptBlock("tool", head="read a", text=lines)).split("\n")[-1] == "  … 95 more lines"
    assert "more lines" not in render_text(TranscriptBlock("tool", head="read a", text=lines), unfolded=True)


def test_a_collapsed_block_names_the_key_that_expands_it() -> None:
    renderer, lines = BlockRenderer(build_styles(DARK), unfold_hint="Ctrl+O to expand"), "\n".join(map(str, range(100)))
    block = TranscriptBlock("tool", head="read a", text=lines)

    assert renderer.render(block, 60, False)[-1].text.strip() == "… 95 more lines, Ctrl+O to expand"


DIFF = """--- a/x
+++ b/x
@@ -8,4 +8,5 @@
 eight
-nine
+9
+9.5
 ten
 eleven
@@ -98,2 +99 @@
 ninety-eight
--- not a head
\\ No newline at end of file
"""


def test_a_diff_has_line_numbers() -> None:
    shown = render_text(TranscriptBlock("tool", head="edit x", text=DIFF, is_diff=True)).split("\n")[1:]

    assert [line.rstrip() for line in shown] == [
        "   8   eight",
        "   9 - nine",
        "   9 + 9",
        "  10 + 9.5",
        "  11   ten",
        "  12   eleven",
        "     ⋯",
        "  99   ninety-eight",
        "  99 - -- not a head",
        "       (no newline at end of file)",
    ]


def test_added_and_removed_lines_of_a_diff_are_colored() -> None:
    strips = RENDERER.render(TranscriptBlock("tool", head="edit x", text=DIFF, is_diff=True), 60, False)
    colors = {
        sign: {
            segment.style.color
            for strip in strips
            for segment in strip
            if segment.style and segment.text.strip() == words
        }
        for sign, words in (("+", "+ 9.5"), ("-", "- nine"), (" ", "ten"))
    }

    assert all(len(found) == 1 for found in colors.values())
    assert len(set.union(*colors.values())) == 3


def test_a_diff_in_another_format_is_shown_as_text() -> None:
    shown = render_text(TranscriptBlock("tool", head="edit x", text="  8 eight\n- 9 nine\n+ 9 9", is_diff=True)).split(
        "\n"
    )[1:]

    assert shown == ["    8 eight", "  - 9 nine", "  + 9 9"]


@given(text=st.text(max_size=300), width=st.integers(20, 100), unfolded=st.booleans())
def test_no_line_of_a_diff_is_longer_than_the_width(text: str, width: int, unfolded: bool) -> None:
    block = TranscriptBlock("tool", head=text, text=f"@@ -1,9 +999999,9 @@\n{text}", is_diff=True)

    assert all(strip.cell_length <= width for strip in RENDERER.render(block, width, unfolded))


def test_a_block_folded_by_the_user_does_not_follow_the_others() -> None:
    block = TranscriptBlock("tool", head="x", text="\n".join("abcdefghij"), is_unfolded=True)

    assert "more lines" not in render_text(block)
    block.is_unfolded = False
    assert "more lines" in render_text(block, unfolded=True)


def test_the_last_column_of_a_table_wraps_below_itself() -> None:
    block = TranscriptBlock("output", text="/name  what it is called, at length\n/x     short")

    assert render_text(block, 30) == "  /name  what it is called, at\n         length\n  /x     short"


def test_both_themes_render_the_same_text() -> None:
    block = TranscriptBlock("answer", text="# a\n\n`b`")
    words = [strip.text for strip in RENDERER.render(block, 40, False)]

    assert [strip.text for strip in BlockRenderer(build_styles(LIGHT)).render(block, 40, False)] == words


def test_a_call_without_a_result_is_marked() -> None:
    import sessiontree as tree

    session = tree.memory()
    session.append(tree.assistant([{"type": "toolCall", "id": "c", "name": "bash", "arguments": {"command": "ls"}}]))

    (block,) = BlockBuilder().build_all(session.head.path())
    assert (block.state, block.text) == ("failed", "(no result)")
