"""How the files of branches differ, in the comparison view and as pairs of lines."""

from __future__ import annotations

from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.agent.agent import Agent
from sessiontree.agent.tools import BUILTIN_TOOLS
from sessiontree.core.messages import ToolCall
from sessiontree.model.scripted import ScriptedModel
from sessiontree.session import Session
from sessiontree.tui.widgets.files_diff import DiffRow, iter_diff_rows

from .conftest import Running


async def run_agent(session: Session, folder: Path, prompt: str, command: str) -> None:
    model = ScriptedModel([[ToolCall("c1", "bash", {"command": command})], "Done."])
    agent = Agent(session.head, model, [BUILTIN_TOOLS["bash"]], cwd=str(folder), snapshots=True)
    await agent.run(prompt)
    await agent.close()


@pytest.fixture
async def ways(project: Path) -> Session:
    """Two branches on which an agent wrote different poems."""
    session = st.create("ways", cwd=project)
    await run_agent(session, project, "Write a poem", "printf 'roses\\nred\\n' > poem.txt")
    session.create_branch("blue")
    await run_agent(session, project, "Make it blue", "printf 'roses\\nblue\\n' > poem.txt; rm -f other; echo 1 > new")
    session.switch("main")
    return session


async def test_the_comparison_shows_the_files_that_differ_and_then_the_diff(running: Running, ways: Session) -> None:
    async with running(session=ways, size=(120, 40)) as app:
        await app.submit("/compare main blue")
        await app.wait_for_text("main and blue · files: 2 files differ", "poem.txt +1 -1", "new +1 -0")
        assert "│ blue" not in app.screen.partition("files differ")[2].partition("Write")[0]
        await app.press("ctrl+o")
        await app.wait_for_text("diff --git a/poem.txt b/poem.txt")
        row = next(line for line in app.screen.splitlines() if "red" in line)
        assert row.split() == ["red", "│", "blue"]


async def test_a_narrow_terminal_shows_one_side_after_the_other(running: Running, ways: Session) -> None:
    async with running(session=ways, size=(80, 40)) as app:
        await app.submit("/diff main blue")
        await app.wait_for_text("main and blue · files: 2 files differ")
        await app.press("ctrl+o")
        await app.wait_for_text("-red", "+blue")


async def test_a_comparison_without_changed_files_does_not_mention_files(running: Running, project: Path) -> None:
    session = st.create("talk", cwd=project)
    session.append(st.user("Hello"))
    session.create_branch("other")
    session.append(st.assistant("Hi"))
    async with running(session=session, size=(120, 30)) as app:
        await app.submit("/compare main other")
        await app.wait_for_text("Hi")
        assert "files:" not in app.screen


def test_lines_of_a_diff_are_paired() -> None:
    diff = "diff --git a/f b/f\nindex 1..2\n--- a/f\n+++ b/f\n@@ -1,4 +1,3 @@\n same\n-one\n---two\n+1\n end\n+new\n"

    rows = list(iter_diff_rows(diff))

    assert [(row.old, row.new) for row in rows if not row.is_heading] == [
        ("same", "same"),
        ("one", "1"),
        ("--two", None),
        ("end", "end"),
        (None, "new"),
    ]
    assert rows[0] == DiffRow("diff --git a/f b/f", "diff --git a/f b/f", is_heading=True)
