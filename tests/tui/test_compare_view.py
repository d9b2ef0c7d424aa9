"""The comparison view, from commands and from two marks in the tree."""

from __future__ import annotations

from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.branch_comparison import compare, diff
from sessiontree.core.messages import build_bash_execution, tool_call
from sessiontree.session import Session
from sessiontree.tui.screens import compare_view
from sessiontree.tui.screens.compare_view import build_comparison_sides, build_diff_sides

from .conftest import Running


@pytest.fixture
def ways(project: Path) -> Session:
    """A question, and two branches that answer it."""
    session = st.create("ways")
    session.append(st.user("How do I make this faster?"))
    here = session.tree[session.heads.leaf or ""]
    session.append(st.assistant("With a cache: 40 ms.", usage={"input": 900, "output": 100, "cost": 0.02}))
    session.create_branch("dict", at=here, current=False)
    with_dict = [tool_call("c", "edit", {"path": "shop.py"})]
    session.append(st.assistant(with_dict, usage={"input": 400, "output": 100, "cost": 0.01}), branch="dict")
    session.append(st.tool_result("c", "edit", "done"), branch="dict")
    session.append(st.assistant("With a dict: 25 ms."), branch="dict")
    return session


def find_line(screen: str, words: str) -> str:
    return next(line for line in screen.splitlines() if words in line)


async def test_branches_are_compared_in_columns_below_their_statistics(running: Running, ways: Session) -> None:
    async with running(session=ways, size=(120, 30)) as app:
        await app.submit("/compare dict")
        await app.wait_for_text("main, dict · winner: dict (lowest cost)", "40 ms", "25 ms")
        assert "1 entry · 0 tool calls" in find_line(app.screen, "4 entries · 1 tool call")
        assert "1k tokens · $0.0200" in find_line(app.screen, "500 tokens · $0.0100")
        assert "file shop.py" in app.screen
        assert find_line(app.screen, "40 ms") == find_line(app.screen, "branch dict"), "both begin on the same line"
        await app.press("escape")
        await app.wait_until(lambda: app.app.screen is app.chat)


async def test_sides_are_stacked_in_a_narrow_terminal(running: Running, ways: Session) -> None:
    async with running(session=ways, size=(80, 24)) as app:
        await app.submit("/compare main dict")
        await app.wait_for_text("main: 1 entry", "dict: 4 entries", "── main ─", "── dict ─")
        assert app.screen.index("40 ms") < app.screen.index("── dict ─") < app.screen.index("25 ms")


async def test_columns_scroll_together_below_their_statistics(running: Running, ways: Session) -> None:
    for branch in ("main", "dict"):
        ways.append(st.assistant("\n\n".join(f"{branch} {number}" for number in range(40))), branch=branch)
    async with running(session=ways, size=(120, 20)) as app:
        await app.submit("/compare dict")
        await app.wait_for_text("main 5")
        await app.press("pagedown")
        await app.wait_for_text("5 entries", "main 9", "dict 7")
        assert "main 5" in app.screen, "nothing is passed over: the last line is the first one now"
        assert "main 4" not in app.screen
        await app.press("end")
        await app.wait_for_text("dict 39")
        await app.press("home")
        await app.wait_for_text("40 ms")


async def test_left_and_right_show_more_columns(running: Running, ways: Session) -> None:
    for name in ("list", "trie"):
        ways.create_branch(name, at="main~1", current=False)
    async with running(session=ways, size=(120, 30)) as app:
        await app.submit("/compare main dict list trie")
        await app.wait_for_text("40 ms", "25 ms")
        await app.press("right", "right", "right")
        await app.wait_for_text("branch list", "branch trie")
        assert "40 ms" not in app.screen
        await app.press("left", "left")
        await app.wait_for_text("40 ms")


async def test_collapsed_blocks_can_be_expanded(running: Running, ways: Session) -> None:
    ways.append(build_bash_execution("seq 20", "\n".join(map(str, range(100, 120))), exit_code=0))
    async with running(session=ways, size=(120, 60)) as app:
        await app.submit("/compare dict")
        await app.wait_for_text("! seq 20", "119")
        assert "104" not in app.screen
        await app.press("ctrl+o")
        await app.wait_for_text("104")


async def test_a_diff_starts_where_the_paths_diverge(running: Running, ways: Session) -> None:
    async with running(session=ways, size=(120, 30)) as app:
        await app.submit("/diff dict")
        await app.wait_for_text("HEAD and dict diverge at", "40 ms", "25 ms")
        assert "How do I make this faster?" not in app.screen.replace("▌", "")


async def test_a_single_other_branch_is_compared_without_a_question(running: Running, ways: Session) -> None:
    async with running(session=ways, size=(120, 30)) as app:
        await app.submit("/compare")
        assert await app.wait_for_text("main, dict · winner")


async def test_one_or_all_of_several_branches_can_be_chosen(running: Running, ways: Session) -> None:
    ways.create_branch("list", at="main", current=False)
    async with running(session=ways, size=(160, 30)) as app:
        await app.submit("/compare")
        assert await app.wait_for_text("Compare main with which branch?", "All of them")
        await app.press("up", "enter")
        assert await app.wait_for_text("main, dict, list · ", "25 ms", "branch list")


async def test_leaves_without_a_branch_are_offered_with_their_texts(running: Running, ways: Session) -> None:
    here = ways.tree[ways.heads.leaf or ""].id
    for text in ("A first try.", "A second try."):
        ways.append(st.assistant(text))
        ways.move(here)
    async with running(session=ways, size=(120, 30)) as app:
        await app.submit("/compare")
        await app.wait_for_text("assistant: A first try.", "assistant: A second try.")
        await app.press(*"second", "enter")
        shown = await app.wait_for_text("(no entries)", "A second try.")
        assert "A first try." not in shown
        second = next(leaf.leaf for leaf in ways.unnamed_leaves if "second" in str(ways.tree[leaf.leaf].body))
        assert f"main, {second[:8]}" in shown
        assert second not in shown


async def test_compare_fails_without_another_branch(running: Running) -> None:
    async with running() as app:
        await app.submit("/compare")
        assert await app.wait_for_text("no other branch to compare with")


async def test_diff_without_arguments_asks_for_an_entry_in_the_tree(running: Running, ways: Session) -> None:
    async with running(session=ways, size=(120, 30)) as app:
        await app.submit("/diff")
        assert await app.wait_for_text("type to search")
        await app.press("end", "enter")
        assert await app.wait_for_text("diverge at", "40 ms", "25 ms")


async def test_two_marked_entries_are_compared_on_the_whole_screen(running: Running, ways: Session) -> None:
    async with running(session=ways, size=(120, 30)) as app:
        await app.press("ctrl+t")
        assert await app.wait_for_text("type to search")
        await app.press("ctrl+e")
        assert await app.wait_for_text("Mark two entries first")
        await app.press("ctrl+k", "end", "ctrl+k")
        assert await app.wait_for_text("diverge at", "25 ms")
        await app.press("ctrl+e")
        assert await app.wait_for_text("Esc to close", "25 ms")
        await app.press("escape")
        assert await app.wait_for_text("type to search")


def test_a_long_side_is_truncated_and_an_empty_one_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_view, "MAX_ENTRIES", 2)
    session = st.memory()
    session.extend([st.user(str(number)) for number in range(5)])
    leaf, root = session.heads.leaf, session.tree.path(session.heads.leaf)[0].id

    long, empty = build_diff_sides(diff(session.tree, ("a", leaf), ("b", root))).sides

    assert (len(long.blocks), long.hidden_count) == (2, 2)
    assert (empty.blocks, empty.hidden_count) == ((), 0)


def test_names_of_files_and_branches_are_escaped() -> None:
    session = st.memory()
    session.append(st.user("one"))
    session.append(st.assistant([tool_call("c", "read", {"path": "\x1b]0;x\x07"})], model="m\x1b", provider="p"))
    places = [("main", session.heads.leaf), ("a\x1b[2J", None)]

    sides = build_comparison_sides(session.tree, compare(session.tree, places))

    shown = [sides.title, *(word for side in sides.sides for word in (side.name, *side.stats))]
    assert not any("\x1b" in word or "\x07" in word for word in shown)


async def test_a_leaf_without_a_branch_can_be_compared(running: Running) -> None:
    session = st.create("left")
    session.append(st.user("one"))
    session.append(st.assistant("left behind"))
    async with running("new way", session=session) as app:
        await app.submit("/clear")
        await app.wait_until(lambda: "left behind" not in app.screen)
        await app.submit_and_wait("another way")
        await app.submit("/compare")
        await app.wait_for_text("left behind", "new way")
