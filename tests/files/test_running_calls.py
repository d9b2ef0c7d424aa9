"""A process that is killed during a tool call: the next one notices, and nobody's work is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.agent.agent import Agent
from sessiontree.agent.tools import builtin_tools
from sessiontree.config import FileSettings
from sessiontree.files.git_command import SnapshotError
from sessiontree.files.restore_plan import INTERRUPTED
from sessiontree.files.running_calls import RunningCall
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import Notice
from sessiontree.ops.move_files import FileMover
from sessiontree.session import Session
from tests.files.conftest import Workspace

CHILD = """
import os, sys
import sessiontree as st

def edit_and_die() -> str:
    "Change files, then die."
    open("agents", "w").write("half of the work")
    os.unlink("old")
    os.kill(os.getpid(), 9)
    return ""

with st.open(sys.argv[1]) as session:
    agent = st.Agent(session, st.ScriptedModel([st.ToolCall("1", "edit_and_die", {})]), [edit_and_die], snapshots=True)
    agent.run_sync("Change files")
"""


def kill_in_a_call(folder: Path, file: Path) -> None:
    with st.create(file=file) as session:
        session.append(st.user("Hello"))
        session.append(st.assistant("Hello."))
    (folder / "old").write_text("old")
    ran = subprocess.run([sys.executable, "-c", CHILD, str(file)], cwd=folder, capture_output=True, check=False)
    assert ran.returncode == -signal.SIGKILL, ran.stderr.decode()


def find_mover(session: Session, folder: Path) -> FileMover:
    return FileMover.find(session.head, FileSettings(), str(folder))


def test_the_changes_of_a_killed_call_are_kept_unless_they_are_named(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "talk.jsonl"
    kill_in_a_call(folder, file)
    (folder / "mine").write_text("written after the kill")

    with st.open(file) as session:
        mover = find_mover(session, folder)
        (told,) = mover.record_interrupted_calls()
        assert "3 files changed since it started" in told
        start = session.head.path()[1].id
        plan = mover.plan(start)
        assert plan.changes == ()
        assert {(item.path, item.reason) for item in plan.conflicts} == {
            (name, INTERRUPTED) for name in ("agents", "mine", "old")
        }
        mover.restore(plan.take(["agents", "old"]))

        assert sorted(os.listdir(folder)) == ["mine", "old"]
        (record,) = [record for record in mover.log.records if record.kind == "call"]
        assert record.is_interrupted
        assert find_mover(session, folder).record_interrupted_calls() == []


async def test_the_next_agent_tells_the_user_about_a_killed_call(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "talk.jsonl"
    kill_in_a_call(folder, file)
    hooks, texts = Hooks(), list[str]()
    hooks.listen(lambda event: texts.append(event.text) if isinstance(event, Notice) else None)

    with st.open(file) as session:
        model = st.ScriptedModel([[st.ToolCall("2", "bash", {"command": "echo 2 > new"})], "Done."])
        agent = Agent(session, model, builtin_tools(), hooks, cwd=str(folder), snapshots=True)
        await agent.run("Go on")

        killed, second = find_mover(session, folder).log.records
        assert killed.is_interrupted
        assert not second.is_interrupted
        assert second.before == killed.commit
    (text,) = texts
    assert "a tool call was interrupted; 2 files changed" in text


async def test_a_call_of_a_running_process_is_not_interrupted(folder: Path, tmp_path: Path) -> None:
    found: list[str] = []

    def look() -> str:
        """Look from another process."""
        code = f"""
import sessiontree as st
from tests.files.test_running_calls import find_mover
from pathlib import Path
with st.open({str(tmp_path / "talk.jsonl")!r}) as session:
    print(find_mover(session, Path({str(folder)!r})).record_interrupted_calls())
"""
        (folder / "a").write_text("a")
        found.append(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        return ""

    with st.create(file=tmp_path / "talk.jsonl") as session:
        model = st.ScriptedModel([[st.ToolCall("1", "look", {})], [st.ToolCall("2", "look", {})], "Done."])
        await Agent(session, model, [look], cwd=str(folder), snapshots=True).run("Go")

        mover = find_mover(session, folder)
        assert mover.store is not None
        assert os.listdir(os.path.join(mover.store.path, "calls")) == []
    assert found == ["[]\n", "[]\n"]


def test_no_file_is_restored_while_an_agent_runs_a_call(workspace: Workspace) -> None:
    first = workspace.call(lambda: workspace.write("a", "1"))
    workspace.call(lambda: workspace.write("a", "2"))
    code = """
import sys
from sessiontree.files.running_calls import RunningCall
from sessiontree.files.snapshot_store import SnapshotStore
call = RunningCall(SnapshotStore.open(sys.argv[1]), session="other", branch="main", place=None, before="0" * 40)
print("runs", flush=True)
sys.stdin.read()
call.end()
"""
    command = [sys.executable, "-c", code, str(workspace.folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "runs\n"
        with pytest.raises(SnapshotError, match="a tool call is running in"):
            workspace.go(first)
        assert (workspace.folder / "a").read_text() == "2"
        other.communicate("")

    own = RunningCall(workspace.store, session="own", branch="main", place=None, before="0" * 40)
    with pytest.raises(SnapshotError, match="a tool call is running in"):
        workspace.go(first)
    own.is_running = False  # it ended, but its result is not written yet
    workspace.go(first)
    own.end()
    assert (workspace.folder / "a").read_text() == "1"
