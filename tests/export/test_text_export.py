"""Markdown, plain text and JSON exports, compared with reviewed files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given

import sessiontree as st
from sessiontree.core.messages import build_bash_execution
from sessiontree.core.outline import build_outline
from sessiontree.errors import InvalidOperation, NotFound
from sessiontree.export import export
from sessiontree.export.entry_view import make_visible
from sessiontree.export.safe_html import markdown_to_html
from sessiontree.export.snapshot import read_snapshot
from sessiontree.export.text_export import split_into_sections
from tests.export.sessions import make_story
from tests.strategies import sessions

DATA = Path(__file__).parent / "data"


@pytest.mark.parametrize(("form", "name"), [("md", "story.md"), ("text", "story.txt")])
def test_the_exported_story_matches_the_stored_text(form: str, name: str) -> None:
    """With SESSIONTREE_RECORD=1 the files are rewritten; review them before you commit."""
    made = export(make_story().read_lines(), form).content.decode()
    if os.environ.get("SESSIONTREE_RECORD"):
        (DATA / name).write_text(made)

    assert made == (DATA / name).read_text()


@given(sessions())
def test_every_shown_entry_is_in_one_section(data: bytes) -> None:
    whole = read_snapshot(data.split(b"\n")[:-1])

    told = [entry.id for run in split_into_sections(whole) for entry in run.entries if not entry.is_annotation]

    assert sorted(told) == sorted(entry.id for entry in whole.tree if not entry.is_annotation)


@pytest.mark.parametrize("form", ["md", "text"])
def test_one_entry_uses_the_singular(form: str) -> None:
    session = st.memory()
    session.append(st.user("alone"))

    assert "1 entry" in export(session.read_lines(), form).content.decode()


def test_a_label_is_not_a_branch() -> None:
    session = st.memory("labeled")
    first = session.append(st.user("first"))
    session.label(first, "here")
    session.append(st.assistant("second"))
    session.label(first, "there")

    assert [run.title for run in split_into_sections(read_snapshot(session.read_lines()))] == ["main"]


def test_a_session_without_branches_has_no_branch_headings() -> None:
    session = st.memory("one way")
    session.append(st.user("only this"))

    assert "Branch" not in export(session.read_lines(), "md").content.decode()


def test_branches_without_visible_entries_are_exported_as_markdown() -> None:
    session = st.memory("nothing said")
    session.append(st.assistant(""))
    session.append(st.ModelChange(provider="p", model="m"), parent=None)

    content = export(session.read_lines(), "md").content.decode()

    assert "# nothing said" in content
    assert "Branch" in content


def test_messages_cannot_change_the_structure_of_the_markdown() -> None:
    session = st.memory("a * b # c")
    session.append(st.user("# heading\n\n```\nnever closed"))
    session.append(st.assistant("after"))

    made = export(session.read_lines(), "md").content.decode()

    assert made.startswith("# a \\* b \\# c\n")
    assert "#### heading" in made
    assert made.count("```") == 2


def test_json_has_every_entry_with_its_parent_and_branch_statistics() -> None:
    session = make_story()

    made = json.loads(export(session.read_lines(), "json").content)

    assert [entry["id"] for entry in made["entries"]] == [entry.id for entry in session.tree]
    assert made["branch"] == "dict"
    assert {branch["name"]: branch["current"] for branch in made["branches"]} == {
        "main": False,
        "cache": False,
        "dict": True,
    }
    assert made["labels"] == {session.resolve_place("two ways"): "two ways"}


def test_the_drawn_tree_is_the_same_as_in_the_terminal() -> None:
    session = make_story()

    made = export(session.read_lines(), "text").content.decode()

    for row in build_outline(session.tree, session.heads.leaf):
        assert any(line.startswith(row.prefix) for line in made.split("\n"))
    assert "└─ [branch cache: remember results]" in made


def test_invisible_characters_are_shown_as_symbols() -> None:
    assert make_visible("\x1b[31mred\x1b[0m\x07\u202e\ud800\r\nx\ty") == "red␇⟨U+202E⟩\ufffd\nx\ty"
    assert make_visible("a\u200b\U000e0041") == "a⟨U+200B⟩⟨U+E0041⟩"


@pytest.mark.parametrize("spelled", ["&#x202e;", "&#8238;", "&rlm;", "&#xfeff;", "&#x2066;", "&#x200b;"])
def test_invisible_characters_in_markdown_entities_are_shown_as_symbols(spelled: str) -> None:
    html = markdown_to_html(
        f"pay {spelled}evil [{spelled}](https://x.org/{spelled} '{spelled}') ![{spelled}](https://x.org)"
    )

    assert html.replace("\n", "").isprintable()
    assert "pay ⟨U+" in html


def test_invalid_exports_are_refused_with_a_reason() -> None:
    lines = make_story().read_lines()

    with pytest.raises(InvalidOperation, match="no format 'pdf'"):
        export(lines, "pdf")
    with pytest.raises(InvalidOperation, match="not both"):
        export(lines, branch="main", subtree="main")
    with pytest.raises(InvalidOperation, match="root is not an entry"):
        export(lines, subtree="root")
    with pytest.raises(NotFound):
        export(lines, branch="nowhere")


def test_truncated_output_names_the_full_output_file() -> None:
    session = st.memory("cut")
    session.append(build_bash_execution("seq 9", "9", exit_code=0, truncated=True, full_output="/tmp/all"))
    session.append(build_bash_execution("seq 8", "8", exit_code=0, truncated=True))

    made = export(session.read_lines(), "text").content.decode()

    assert "seq 9 (exit code 0, truncated; full output in /tmp/all," in made
    assert "seq 8 (exit code 0, truncated," in made
