"""The tree screen: choosing an entry, labels and details."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
import time

import pytest
from textual.widgets import Input

import sessiontree as st
from sessiontree.config import Config, SummarySettings
from sessiontree.core.entries import Compaction
from sessiontree.core.messages import assistant, tool_call, tool_result, user
from sessiontree.tui.screens import tree_screen
from sessiontree.tui.screens.tree_screen import (
    TreeApp,
    TreeChoice,
    TreeScreen,
    render_context,
    render_entry,
)
from sessiontree.tui.widgets.tree_view import TreeView
from tests.builders import MESSAGES_AND_FAILURES
from tests.tui.test_tree_view import OpenTree, create_two_branches


def find_entry(session, words):
    [found] = [entry for entry in session.tree if words in str(entry.body)]
    return found.id


async def choose_with_keys(session, *keys, settings=None, app=None):
    """Press keys in the tree and return its result; `...` if it is still open."""
    app = app or TreeApp(session, settings or Config())
    async with OpenTree(session, app=app) as tree:
        for key in keys:
            if not app.is_running or len(app.screen_stack) < 2:
                break
            await tree.pilot.press(key)
            await tree.pilot.pause(0.05)
        await tree.pilot.pause(0.1)
        return ... if len(app.screen_stack) > 1 and app.return_value is None and not app._exit else app.return_value


async def test_a_notice_is_shown_until_the_cursor_moves():
    async with OpenTree(create_two_branches()) as tree:
        await tree.press("L", *"here", "enter")
        await tree.wait_for_text("Label set")
        await tree.press("up")
        await tree.wait_for_text("· Label set", there=False)
        await tree.wait_for_text("Enter go")


async def test_the_tree_app_reports_unknown_keys_and_uses_defaults():
    async with OpenTree(create_two_branches(), keys={"tree_filter": "ctrl+nonsense"}) as tree:
        await tree.wait_for_text("'ctrl+nonsense'")
        await tree.press("ctrl+f")
        await tree.wait_for_text("no-tools")


# Choosing


async def test_enter_asks_whether_to_summarize_the_abandoned_branch():
    session = create_two_branches()
    dict_done = find_entry(session, "The dict is done.")

    assert await choose_with_keys(session, "end", "enter") is ...
    assert await choose_with_keys(session, "end", "enter", "enter") == TreeChoice(entry=dict_done)
    assert await choose_with_keys(session, "end", "enter", "down", "enter") == TreeChoice(
        entry=dict_done, summarize=True
    )


async def test_a_summary_can_have_a_focus_or_be_written_by_the_user():
    session = create_two_branches()
    at = find_entry(session, "The dict is done.")
    focused = await choose_with_keys(session, "end", "enter", "down", "down", "enter", *"speed", "ctrl+s")
    own = await choose_with_keys(session, "end", "enter", "down", "down", "down", "enter", *"no good", "ctrl+s")

    assert focused == TreeChoice(entry=at, summarize=True, instructions="speed")
    assert own == TreeChoice(entry=at, summary="no good")


@pytest.mark.parametrize("keys", [["enter", "escape"], ["enter", "down", "down", "enter", "x", "escape"]])
async def test_escape_from_the_question_returns_to_the_tree(keys):
    session = create_two_branches()
    app = TreeApp(session, Config())

    async with OpenTree(session, app=app) as tree:
        await tree.press("end")
        for key in keys:
            await tree.pilot.press(key)
            await tree.pilot.pause(0.05)
        assert isinstance(app.screen, TreeScreen)
        assert "The dict is done." in tree.cursor
        await tree.press("up")
        assert "With a dict." in tree.cursor


async def test_no_question_is_asked_if_nothing_is_abandoned():
    session = create_two_branches()

    assert await choose_with_keys(session, "enter") == TreeChoice(entry=session.heads.leaf)


async def test_the_configuration_can_disable_the_question():
    session = create_two_branches()
    settings = Config(summary=SummarySettings(skip_prompt=True))

    choice = await choose_with_keys(session, "home", "enter", settings=settings)

    assert choice == TreeChoice(entry=find_entry(session, "faster"))


@pytest.mark.parametrize("key", ["shift+enter", "ctrl+s"])
async def test_a_key_summarizes_without_a_question(key):
    session = create_two_branches()

    choice = await choose_with_keys(session, "home", key)

    assert choice == TreeChoice(entry=find_entry(session, "faster"), summarize=True)


@pytest.mark.parametrize("key", ["escape", "ctrl+c"])
async def test_closing_the_tree_returns_none(key):
    assert await choose_with_keys(create_two_branches(), "up", key) is None


async def test_escape_clears_the_search_first():
    session = create_two_branches()

    assert await choose_with_keys(session, "d", "escape") is ...
    assert await choose_with_keys(session, "d", "escape", "escape") is None


async def test_browsing_and_choosing_do_not_navigate():
    session = create_two_branches()
    before = (session.heads.leaf, len(session.tree))

    await choose_with_keys(session, "home", "tab", "tab", "ctrl+k", "down", "ctrl+k", "enter", "enter")

    assert (session.heads.leaf, len(session.tree)) == before


# Labels and copying


async def test_a_label_is_edited_in_place_and_written():
    session = create_two_branches()
    at = find_entry(session, "The cache is done.")

    async with OpenTree(session) as tree:
        await tree.press("L")
        assert tree.screen.query_one(Input).display
        await tree.pilot.press(*"good", "enter")
        await tree.wait_until_idle()
        assert session.tree.label(at) == "good"
        assert "[good] assistant: The cache is done." in tree.cursor
        await tree.press("L", *["backspace"] * 4, "enter")
        assert session.tree.label(at) is None
        assert "good" not in tree.cursor


async def test_escape_keeps_the_label_unchanged():
    session = create_two_branches()
    count = len(session.tree)

    async with OpenTree(session) as tree:
        await tree.press("L", *"no", "escape")
        assert not tree.screen.query_one(Input).display
        await tree.press("up")
        assert "With a cache." in tree.cursor
    assert len(session.tree) == count


async def test_a_read_only_session_shows_the_reason(tmp_path):
    with st.create(cwd=tmp_path, file=tmp_path / "s.jsonl") as made:
        made.append(user("hi"))
    session = st.open(tmp_path / "s.jsonl", read_only=True)

    async with OpenTree(session, size=(300, 40)) as tree:  # wide enough for any path
        await tree.press("L", "x", "enter")
        await tree.wait_for_text("read-only")


async def test_the_text_of_an_entry_is_copied():
    async with OpenTree(create_two_branches()) as tree:
        await tree.press("ctrl+x")
        assert tree.app.clipboard == "The cache is done."
        await tree.wait_for_text("Sent 18 characters to the terminal's clipboard")


# Details


async def test_the_conversation_above_follows_the_cursor():
    session = st.memory()
    session.append(user("How fast is it?"))
    session.append(assistant("It takes **two seconds**.", model="m", provider="p"))
    session.append(user("Make it faster"))

    async with OpenTree(session, size=(80, 24)) as tree:
        await tree.wait_for_text("▌ Make it faster")
        await tree.press("up")
        await tree.wait_for_text("▌ Make it faster", there=False)
        await tree.wait_for_text("   It takes two seconds.")


async def test_failed_answers_calls_and_commands_are_marked_in_their_rows():
    session = st.memory()
    session.append(user("Run it"))
    session.append(assistant([tool_call("c1", "bash", {"command": "false"})], model="m", provider="p"))
    session.append(tool_result("c1", "bash", "exit code 1", error=True))
    session.append(assistant("Done.", model="m", provider="p"))

    async with OpenTree(session) as tree:
        rows = tree.read_rows()
        assert [row.strip() for row in rows if "✗" in row] == ["• ✗ [bash: false]"]


async def test_the_rows_of_failed_messages_have_the_sign_for_failures():
    session = st.memory()
    session.head.extend([body for body, _ in MESSAGES_AND_FAILURES])

    async with OpenTree(session) as tree:
        tree.view.action_filter("all")
        await tree.wait_until_idle()
        assert ["✗" in row for row in tree.read_rows()] == [failed for _, failed in MESSAGES_AND_FAILURES]


@pytest.mark.parametrize(("width", "height", "rows"), [(80, 24, 14), (120, 40, 17), (200, 50, 22), (60, 10, 3)])
async def test_the_tree_has_enough_rows_and_its_hints_fit(width, height, rows):
    async with OpenTree(create_two_branches(), size=(width, height)) as tree:
        shown = await tree.wait_for_text("Enter go")
        assert tree.view.size.height >= rows
        foot = shown.rstrip("\n").split("\n")[-1]
        assert "…" not in foot
        assert len(foot.rstrip()) <= width
        assert ("Ctrl+K mark" in foot) == (width > 80)


async def test_the_pane_cycles_between_conversation_entry_context_and_nothing():
    session = st.memory()
    session.append(user("line one\nline two"))
    session.append(assistant("fine", model="m", provider="p", usage={"input": 1000, "output": 500, "cost": 0.25}))

    async with OpenTree(session, size=(100, 40)) as tree:
        await tree.press("tab")
        await tree.wait_for_text("p/m · 2k tokens · $0.25")
        await tree.press("tab")
        await tree.wait_for_text("From here the model sees 2 of 2 entries")
        await tree.press("up")
        await tree.wait_for_text("From here the model sees 1 of 1 entry")
        await tree.press("tab")
        await tree.wait_for_text("From here the model sees", there=False)
        assert not tree.screen.query_one(".pane").display
        await tree.press("tab")
        await tree.wait_for_text("▌ line two")


async def test_two_marked_entries_are_compared():
    session = create_two_branches()

    async with OpenTree(session, size=(100, 40)) as tree:
        await tree.press("ctrl+k", "end", "ctrl+k")
        shown = await tree.wait_for_text("diverge at")
        assert any("The cache is done." in line and "The dict is done." in line for line in shown.splitlines())
        assert [row[1] for row in tree.read_rows() if "is done" in row] == ["1", "2"]
        await tree.press("ctrl+k")
        await tree.wait_for_text("diverge at", there=False)


async def test_a_comparison_that_was_cancelled_while_it_was_built_is_built_again(monkeypatch):
    build, asked, released = TreeScreen._build_sides, [], threading.Event()

    def build_slowly_at_first(screen, marks):
        asked.append(marks)
        if len(asked) == 1:
            released.wait(10)
        return build(screen, marks)

    monkeypatch.setattr(TreeScreen, "_build_sides", build_slowly_at_first)
    async with OpenTree(create_two_branches(), size=(100, 40)) as tree:
        await tree.press("ctrl+k", "end", "ctrl+k")
        while not asked:
            await asyncio.sleep(0.01)
        tree.screen.query_one(TreeView).post_message(TreeView.Changed())
        await tree.wait_for_text("diverge at")
        released.set()


# A real terminal


@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
def test_an_entry_is_chosen_in_a_real_terminal(tmp_path):
    file = tmp_path / "s.jsonl"
    with st.create("real", cwd=tmp_path, file=file) as session:
        session.append(user("first"))
        session.append(assistant("answer"))
        session.append(user("second"))
        session.append(assistant("another"))
    program = f"{sys.executable} -c 'from sessiontree.cli import main; main()'"
    command = f"{program} tree {file} --interactive; echo gone; sleep 20"
    tmux = ["tmux", "-L", f"sessiontree-{os.getpid()}", "-f", "/dev/null"]

    def wait_for_text(words, seconds=20.0):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            shown = subprocess.run([*tmux, "capture-pane", "-p"], capture_output=True, text=True, timeout=10).stdout
            if words in shown:
                return shown
            time.sleep(0.1)
        raise AssertionError(f"{words!r} never came; the screen is\n{shown}")

    def press(*keys):
        subprocess.run([*tmux, "send-keys", *keys], check=True, timeout=10)

    environment = {**os.environ, "SESSIONTREE_HOME": str(tmp_path / "home"), "TERM": "xterm-256color"}
    subprocess.run(
        [*tmux, "new-session", "-d", "-x", "80", "-y", "24", command], check=True, timeout=10, env=environment
    )
    try:
        assert "› • assistant: another (main) ← active" in wait_for_text("← active")
        press("Up", "Up")
        wait_for_text("› • assistant: answer")
        press("Enter")
        wait_for_text("No summary")
        press("Enter")
        wait_for_text("gone")
    finally:
        subprocess.run([*tmux, "kill-server"], timeout=10)
    assert st.open(file).head.path()[-1].body.message["content"][0]["text"] == "answer"


def test_the_command_fails_without_a_terminal(tmp_path):
    file = tmp_path / "s.jsonl"
    st.create(cwd=tmp_path, file=file).close()

    from click.testing import CliRunner

    from sessiontree.cli.app import app

    result = CliRunner().invoke(app, ["tree", str(file), "--interactive"])

    assert result.exit_code == 2
    assert "needs a terminal" in result.output


def test_details_have_time_branch_label_tokens_and_cost():
    session = st.memory()
    made = session.append(assistant("done", provider="p", model="m", usage={"input": 3000, "output": 1, "cost": 0.5}))
    session.label(made, "good")

    first, _, rest = render_entry(session, made.id).plain.partition("\n\n")

    assert first.startswith(f"{made.id[:8]} · assistant · {made.timestamp[:10]} ")
    assert first.endswith(" · [good] · on main · p/m · 3k tokens · $0.50")
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
    assert lines[3] == "✓ user: kept"


def test_a_long_path_is_listed_from_its_end(monkeypatch):
    monkeypatch.setattr(tree_screen, "MAX_PATH_ENTRIES", 2)
    session = st.memory()
    session.extend([user(str(number)) for number in range(5)])

    assert render_context(session.tree, session.heads.leaf).plain.splitlines()[2:] == [
        "… 3 earlier",
        "✓ user: 3",
        "✓ user: 4",
    ]


def test_hostile_text_is_escaped():
    session = st.memory()
    one = session.append(user("\x1b[2J"))

    texts = [
        render_entry(session, one.id),
        render_context(session.tree, one.id),
    ]

    assert not any("\x1b" in text.plain or "\x07" in text.plain for text in texts)
