import pytest

import sessiontree as st
from sessiontree.core.entries import Compaction, CustomMessage, ModelChange
from sessiontree.core.messages import assistant, tool_call, tool_result, user
from sessiontree.tui.screens import tree_screen
from sessiontree.tui.screens.tree_screen import get_entry_text, render_context, render_entry
from tests.builders import entry, say


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (user("two\nlines"), "two\nlines"),
        (
            assistant([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "so"}]),
            "(thinking) hm\n\nso",
        ),
        (assistant([tool_call("c", "read", {"path": "é.py"})]), '→ read {"path": "é.py"}'),
        (assistant("", stop_reason="error", error="too long"), "error: too long"),
        (tool_result("c", "read", "what it said"), "what it said"),
        (user([{"type": "image", "data": "…"}]), "(image)"),
        (say("bashExecution", command="ls", output="a.py"), "ls\na.py"),
        (CustomMessage(custom_type="note", content="see"), "see"),
        (Compaction(summary="all of it", tokens_before=5), "all of it"),
        (ModelChange(provider="p", model="m"), "p\nm"),
    ],
)
def test_an_entry_is_copied_as_readable_text(body, words):
    assert get_entry_text(entry("a", None, body)) == words


def test_an_entry_without_text_is_shown_as_json():
    assert get_entry_text(entry("a", None, {"type": "reset_boundary"})).startswith('{"id":"a"')


def test_details_have_time_branch_label_tokens_and_cost():
    session = st.memory()
    made = session.append(assistant("done", provider="p", model="m", usage={"input": 3000, "output": 1, "cost": 0.5}))
    session.label(made, "good")

    first, _, rest = render_entry(session, made.id).plain.partition("\n\n")

    assert first.startswith(f"{made.id[:8]} · assistant · {made.timestamp[:10]} ")
    assert first.endswith(" · [good] · on main · p/m · 3k tokens · $0.5000")
    assert rest == "done"


def test_a_huge_entry_is_truncated_with_a_count(monkeypatch):
    monkeypatch.setattr(tree_screen, "MAX_CHARACTERS", 10)
    session = st.memory()
    made = session.append(user("x" * 25))

    assert render_entry(session, made.id).plain.endswith(
        "xxx\n\n… 15 more characters; `sessiontree show` prints the rest"
    )


def test_the_context_view_explains_hidden_entries():
    session = st.memory()
    session.append(user("old"))
    kept = session.append(user("kept"))
    session.append(Compaction(summary="so far", first_kept=kept.id, tokens_before=100))

    lines = render_context(session.tree, session.heads.leaf).plain.splitlines()

    assert lines[0].startswith("From here the model sees 2 of 3 entries, about ")
    assert lines[2].startswith("· user: old — summarized by a compaction ")
    assert lines[3] == "✓ user: kept — as it is"


def test_a_long_path_is_listed_from_its_end(monkeypatch):
    monkeypatch.setattr(tree_screen, "MAX_PATH_ENTRIES", 2)
    session = st.memory()
    session.extend([user(str(number)) for number in range(5)])

    assert render_context(session.tree, session.heads.leaf).plain.splitlines()[2:] == [
        "… 3 earlier",
        "✓ user: 3 — as it is",
        "✓ user: 4 — as it is",
    ]


def test_hostile_text_is_escaped():
    session = st.memory()
    one = session.append(user("\x1b[2J"))

    texts = [
        render_entry(session, one.id),
        render_context(session.tree, one.id),
    ]

    assert not any("\x1b" in text.plain or "\x07" in text.plain for text in texts)
