"""Usage is counted incrementally, in a thread for large sessions."""

from __future__ import annotations

from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.model.scripted import ScriptedUsage
from sessiontree.tui.widgets import footer

from .conftest import Running

COST = {"input": 900, "output": 100, "cost": 0.01}


async def test_a_large_session_is_counted_incrementally_in_a_thread(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(footer, "THREAD_ENTRIES", 3)
    session = st.create("large")
    for number in range(5):
        session.append(st.assistant(f"answer {number}", usage=COST))
    async with running([ScriptedUsage({"input": 40_000, "output": 960, "cost": 0.25}), "Yes."], session=session) as app:
        assert await app.wait_for_text("5k tokens · $0.05 · 1% of 128k")
        await app.submit_and_wait("and now?")
        assert await app.wait_for_text("46k tokens · $0.30 · 32% of 128k")


async def test_navigating_changes_the_context_size_but_not_the_cost(running: Running) -> None:
    session = st.create("two")
    session.append(st.user("Hello"))
    session.append(st.assistant("Yes.", usage={"input": 63_000, "output": 1000, "cost": 0.5}))
    async with running(session=session) as app:
        assert await app.wait_for_text("64k tokens · $0.50 · 50% of 128k")
        await app.submit("/clear")
        assert await app.wait_for_text("64k tokens · $0.50 · 0% of 128k")


async def test_another_session_is_counted_from_the_start(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footer, "THREAD_ENTRIES", 1)
    with st.create("other") as other:
        other.append(st.assistant("Yes.", usage=COST))
    session = st.create("first")
    session.extend([st.assistant("Yes.", usage=COST)] * 3)
    async with running(session=session) as app:
        assert await app.wait_for_text("first · on main", "3k tokens · $0.03")
        await app.submit("/resume other")
        assert await app.wait_for_text("other · on main", "1k tokens · $0.01")


def test_the_branch_of_the_repository_around_a_folder_is_found(tmp_path: Path) -> None:
    inner = tmp_path / "src" / "deep"
    inner.mkdir(parents=True)
    assert footer.read_git_branch(str(inner)) == ""

    head = tmp_path / ".git" / "HEAD"
    head.parent.mkdir()
    head.write_text("ref: refs/heads/feature/one\n")
    assert footer.read_git_branch(str(inner)) == "feature/one"
    head.write_text("0123456789abcdef0123456789abcdef01234567\n")
    assert footer.read_git_branch(str(inner)) == "01234567"

    worktree = inner / ".git"
    worktree.write_text(f"gitdir: {head.parent}\n")
    assert footer.read_git_branch(str(inner)) == "01234567"
    worktree.write_bytes(b"\xff")
    assert footer.read_git_branch(str(inner)) == ""
