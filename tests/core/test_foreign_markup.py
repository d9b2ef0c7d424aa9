"""Marks of other agent programs in the messages of a user."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.core.entry_text import format_entry
from sessiontree.core.foreign_markup import format_program_text, has_only_program_text
from sessiontree.export.entry_view import build_view

COMMAND = (
    "<command-message>review is running…</command-message>\n<command-name>/review</command-name>\n"
    "<command-args>the parser</command-args>"
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("How large?", "How large?"),
        ("Is <b>x</b> < y?", "Is <b>x</b> < y?"),
        ("Why does <command-name>/x</command-name> appear?", "Why does <command-name>/x</command-name> appear?"),
        (COMMAND, "/review the parser"),
        ("<command-name>/clear</command-name>\n   <command-args></command-args>", "/clear"),
        ("<local-command-stdout>Set to \x1b[1mOpus\x1b[22m</local-command-stdout>", "Set to Opus"),
        ("<bash-input>ls -l</bash-input>", "! ls -l"),
        ("<bash-stdout>a &lt; b</bash-stdout><bash-stderr>warning</bash-stderr>", "a < b warning"),
        (
            "<task-notification>\n<task-id>a1</task-id>\n<status>completed</status>\n"
            "<summary>Agent &quot;count&quot; finished</summary>\n<result>Three.</result>\n</task-notification>",
            'Agent "count" finished',
        ),
        ("<task-notification>Done <b>now</b>.</task-notification>", "Done  now ."),
        ("<system-reminder>Be short.</system-reminder>", "system reminder: Be short."),
        ("<system-reminder>Be short.</system-reminder>\nHow large?", "How large?"),
        ("How large?\n<system-reminder>Be short.</system-reminder>", "How large?"),
        ("<ide_opened_file>The user opened a.py</ide_opened_file>\nFix it.", "Fix it."),
        ("<ide_opened_file>The user opened a.py</ide_opened_file>", "ide opened file: The user opened a.py"),
        ("<local-command-caveat>Generated.</local-command-caveat>", "local command caveat: Generated."),
        ("<environment_context>\n  <cwd>/project</cwd>\n</environment_context>", "environment context: /project"),
        ("<turn_aborted>The user interrupted.</turn_aborted>", "turn aborted: The user interrupted."),
        ('<image name=[Image #1] path="/dot.png">\n</image>\nWhat is it?', "[Image #1] What is it?"),
        ("<command-name>/cut", "/cut"),
        ("<bash-stdout></bash-stdout><bash-stderr></bash-stderr>", "bash stdout:"),
    ],
)
def test_rows_show_text_of_programs_without_its_marks(text: str, shown: str) -> None:
    assert format_program_text(text).strip() == shown


def test_a_page_shows_what_a_subagent_answered_and_folds_what_the_model_sees(tmp_path: Path) -> None:
    text = (
        "<task-notification>\n<task-id>a1</task-id>\n<summary>Agent &quot;count&quot; finished</summary>\n"
        "<result>There are <b>three</b>:\n\n- a.py</result>\n</task-notification>"
    )
    session = st.create(dir=tmp_path)
    session.append(st.CustomMessage(custom_type="claude.note", content=text))

    readable = 'Agent "count" finished:\n\nThere are <b>three</b>:\n\n- a.py'
    assert format_program_text(text, with_results=True) == readable
    view = build_view(session.tree[session.head.leaf or ""])
    assert [(part.kind, part.name, part.text) for part in view.parts] == [
        ("prose", "", readable),
        ("data", "as the model sees it", text),
    ]


@pytest.mark.parametrize(
    ("text", "is_only"),
    [
        ("How large?", False),
        ("<b>How</b> large?", False),
        (COMMAND, True),
        ("<task-notification>Done.</task-notification>\nFull transcript: /tmp/a", True),
        ("<system-reminder>Be short.</system-reminder>", True),
        ("<system-reminder>Be short.</system-reminder>\nHow large?", False),
        ("<ide_selection>x = 1</ide_selection>\nExplain.", False),
        ('<image name=[Image #1] path="/dot.png"></image>', False),
    ],
)
def test_a_question_after_a_reminder_is_of_the_user(text: str, is_only: bool) -> None:
    assert has_only_program_text(text) is is_only


def test_titles_are_readable_and_the_stored_message_stays(tmp_path: Path) -> None:
    text = "<ide_opened_file>The user opened a.py</ide_opened_file>\nFix it."
    with st.create(dir=tmp_path) as session:
        stored = session.head.append(st.user(text))
    [summary] = st.sessions(dir=tmp_path)
    opened = st.open(summary.file)

    assert summary.first_message == "Fix it."
    assert str(opened.tree) == "• user: Fix it."
    assert format_entry(opened.tree[stored.id]) == "Fix it."
    assert b"<title>Fix it." in opened.export("html").content
    assert opened.tree[stored.id].text == text
    assert opened.context().messages[0]["content"] == text


@pytest.mark.parametrize("text", ["<system-reminder>" * 300_000, "<bash-stdout>x</bash-stdout>" * 200_000])
def test_long_text_with_marks_is_fast(text: str) -> None:
    before = time.process_time()
    format_program_text(text)
    has_only_program_text(text)
    assert time.process_time() - before < 1
