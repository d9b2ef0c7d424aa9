"""Snapshots around tool calls: what the agent changed is told apart from what others changed."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.agent import file_recorder, loop
from sessiontree.agent.agent import Agent
from sessiontree.agent.factory import load_agent_options
from sessiontree.agent.tool import Tool, tool
from sessiontree.agent.tools import builtin_tools
from sessiontree.config import Config, FileSettings
from sessiontree.core.messages import ToolCall
from sessiontree.files.file_records import FilesLog, FilesRecord
from sessiontree.files.restore_plan import INTERRUPTED, LEFT_OUT
from sessiontree.files.snapshot_store import SnapshotStore, build_folder_key
from sessiontree.hooks.events import Notice, SnapshotProgress
from sessiontree.ops.move_files import FileMover
from sessiontree.session import Session
from tests.agent.conftest import MakeAgent, format_request, record_events
from tests.files.conftest import run_git


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    return path


def list_records(session: Session, folder: Path) -> list[FilesRecord]:
    return FilesLog(session.tree, build_folder_key(str(folder))).records


def diff_record(folder: Path, record: FilesRecord) -> list[str]:
    return [change.path.decode() for change in SnapshotStore.open(str(folder)).diff(record.before, record.commit)]


def call(command: str, id: str = "c1") -> ToolCall:
    return ToolCall(id, "bash", {"command": command})


async def test_a_call_that_changes_files_gets_a_record_on_its_result(
    agent: MakeAgent, session: Session, folder: Path
) -> None:
    (folder / "old").write_text("1")
    answers = [[call("echo 2 > old; echo 1 > new; echo 3 > 'with space'")], "Done."]

    await agent(*answers, tools=builtin_tools(), cwd=str(folder), snapshots=True).run("Change files\nplease")

    (record,) = list_records(session, folder)
    result = session.tree[record.place or ""]
    assert result.role == "toolResult"
    assert (record.added, record.changed, record.deleted, record.branch) == (2, 1, 0, "main")
    assert diff_record(folder, record) == ["new", "old", "with space"]
    store = SnapshotStore.open(str(folder))
    after, before = store.read_commits(record.commit)
    assert (after.author, after.entry, after.session, after.prompt) == ("agent", result.id, session.id, "Change files")
    assert (before.author, before.commit) == ("person", record.before)


async def test_records_move_no_head_and_are_not_sent_to_the_model(
    agent: MakeAgent, session: Session, folder: Path
) -> None:
    works = agent([call("touch a")], "Done.", tools=builtin_tools(), cwd=str(folder), snapshots=True)

    await works.run("Go")

    assert session.head.path()[-1].text == "Done."
    assert not any(entry.custom_type == "sessiontree.files" for entry in session.head.path())
    assert format_request(works)[1:3] == ["assistant: ", "toolResult: (no output)"]
    assert session.problems == []


async def test_nothing_is_recorded_if_nothing_changed(agent: MakeAgent, session: Session, folder: Path) -> None:
    (folder / "a").write_text("a")

    await agent([call("cat a")], "Done.", tools=builtin_tools(), cwd=str(folder), snapshots=True).run("Go")

    assert list_records(session, folder) == []


async def test_changes_of_others_between_calls_are_not_the_agents(
    agent: MakeAgent, session: Session, folder: Path
) -> None:
    def edit_then_answer(request: object) -> list[ToolCall]:
        (folder / "mine").write_text("edited while the model answered")
        return [call("touch agents-2", "c2")]

    answers = [[call("touch agents-1")], edit_then_answer, "Done."]
    await agent(*answers, tools=builtin_tools(), cwd=str(folder), snapshots=True).run("Go")

    first, second = list_records(session, folder)
    assert [diff_record(folder, record) for record in (first, second)] == [["agents-1"], ["agents-2"]]
    changes = SnapshotStore.open(str(folder)).diff(first.commit, second.before)
    assert [change.path for change in changes] == [b"mine"]


async def test_tools_that_only_read_take_no_snapshot(agent: MakeAgent, folder: Path) -> None:
    (folder / "a").write_text("a")
    reads = ToolCall("c1", "read", {"path": "a"})

    await agent([reads], "Done.", tools=builtin_tools(), cwd=str(folder), snapshots=True).run("Go")

    assert SnapshotStore.find(str(folder)) is None


async def test_calls_that_run_at_the_same_time_share_one_record(
    agent: MakeAgent, session: Session, folder: Path
) -> None:
    async def write(name: str) -> str:
        """Write a file."""
        (folder / name).write_text(name)
        await asyncio.sleep(0.05)
        return "written"

    both: Tool = tool(write, concurrent=True)
    calls = [ToolCall(f"c{number}", "write", {"name": f"{number}"}) for number in range(2)]

    await agent(calls, "Done.", tools=[both], cwd=str(folder), snapshots=True).run("Go")

    (record,) = list_records(session, folder)
    assert diff_record(folder, record) == ["0", "1"]


async def test_two_calls_in_a_row_have_a_record_each_and_share_a_check(
    agent: MakeAgent, session: Session, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = agent(
        [call("touch a"), call("touch b", "c2")], "Done.", tools=builtin_tools(), cwd=str(folder), snapshots=True
    )
    monkeypatch.setattr(file_recorder, "REUSE_SECONDS", 60)

    await works.run("Go")

    first, second = list_records(session, folder)
    assert second.before == first.commit
    assert [diff_record(folder, record) for record in (first, second)] == [["a"], ["b"]]


async def test_a_failing_snapshot_is_reported_once_and_the_run_continues(
    agent: MakeAgent, session: Session, folder: Path
) -> None:
    (folder / "rules").write_text("x")
    (folder / ".gitignore").symlink_to("rules")  # git warns about it
    works = agent(
        [call("touch a")], [call("touch b", "c2")], "Done.", tools=builtin_tools(), cwd=str(folder), snapshots=True
    )
    events = record_events(works.hooks)

    outcome = await works.run("Go")

    assert outcome.text == "Done."
    assert (folder / "b").exists()
    (notice,) = [event for event in events if isinstance(event, Notice)]
    assert "going back to this place will not restore files" in notice.text
    assert list_records(session, folder) == []


async def test_a_folder_that_cannot_have_snapshots_is_reported_once(agent: MakeAgent, home: Path) -> None:
    home.mkdir()
    works = agent(
        [call("touch a")], [call("touch b", "c2")], "Done.", tools=builtin_tools(), cwd=str(home), snapshots=True
    )
    events = record_events(works.hooks)

    assert (await works.run("Go")).text == "Done."
    (notice,) = [event for event in events if isinstance(event, Notice)]
    assert "home folder" in notice.text


async def test_an_aborted_call_still_has_its_record(agent: MakeAgent, session: Session, folder: Path) -> None:
    async def write_and_wait() -> str:
        """Write a file and wait."""
        (folder / "partial").write_text("x")
        works.abort()
        await asyncio.sleep(60)
        return ""

    works = agent([ToolCall("c1", "write_and_wait", {})], tools=[write_and_wait], cwd=str(folder), snapshots=True)

    outcome = await works.run("Go")

    assert outcome.aborted
    (record,) = list_records(session, folder)
    assert diff_record(folder, record) == ["partial"]


@pytest.mark.parametrize("way", ["rule", "tracked", "nested"])
async def test_a_file_that_a_call_only_made_visible_is_not_the_agents(
    agent: MakeAgent, session: Session, folder: Path, way: str
) -> None:
    run_git(folder, "init", "-q")
    (folder / ".gitignore").write_text("*.env\n")
    (folder / "sub").mkdir()
    run_git(folder / "sub", "init", "-q")
    mine = [folder / "sub/mine", folder / "mine.env"]
    for path in mine:
        path.write_text("mine")
        os.utime(path, ns=(1, 1))
    await asyncio.sleep(0.03)  # the clock of files is coarse
    commands = {
        "rule": "echo > .gitignore; mkdir new; echo 1 > new/file",
        "tracked": "git add -f mine.env; echo 1 > file",
        "nested": "rm -r sub/.git; echo 1 > sub/file",
    }
    start = session.append(st.user("Hello")).id
    answers = [[call(commands[way])], [call("echo 2 > mine.env; echo 2 > sub/mine", "c2")], "Done."]

    await agent(*answers, tools=builtin_tools(), cwd=str(folder), snapshots=True).run("Go")

    mover = FileMover.find(session.head, FileSettings(), str(folder))
    first = list_records(session, folder)[0]
    assert not {"mine.env", "sub/mine"} & {*diff_record(folder, first)}
    mover.restore(mover.plan(first.place))
    visible = mine[0] if way == "nested" else mine[1]
    assert visible.read_text() == "mine"
    mover.restore(mover.plan(start))
    assert visible.read_text() == "mine"
    assert all(path.exists() for path in mine)


async def test_a_folder_that_a_call_renames_is_renamed_back(agent: MakeAgent, session: Session, folder: Path) -> None:
    (folder / "old").mkdir()
    (folder / "old/a").write_text("a")
    await asyncio.sleep(0.03)
    start = session.append(st.user("Hello")).id

    await agent([call("mv old new")], "Done.", tools=builtin_tools(), cwd=str(folder), snapshots=True).run("Go")
    mover = FileMover.find(session.head, FileSettings(), str(folder))
    mover.restore(mover.plan(start))

    assert [path.name for path in folder.iterdir()] == ["old"]


async def test_a_file_that_became_too_large_between_two_calls_is_kept(
    agent: MakeAgent, session: Session, folder: Path
) -> None:
    def grow_then_answer(request: object) -> list[ToolCall]:
        (folder / "big").write_bytes(b"x" * 6_000_000)
        return [call("echo small > big", "c2")]

    await agent(
        [call("touch a")], grow_then_answer, "Done.", tools=builtin_tools(), cwd=str(folder), snapshots=True
    ).run("Go")
    first, _ = list_records(session, folder)

    plan = FileMover.find(session.head, FileSettings(), str(folder)).plan(first.place)

    assert [(conflict.path, conflict.reason) for conflict in plan.conflicts] == [("big", LEFT_OUT)]
    assert plan.changes == ()


@pytest.mark.parametrize("ends", ["before the next turn", "during the next turn"])
async def test_work_of_a_person_after_an_aborted_call_is_not_the_agents(
    agent: MakeAgent, session: Session, folder: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.setattr(loop, "GRACE_SECONDS", 0.01)
    may_end, ended = asyncio.Event(), asyncio.Event()

    async def write_slowly() -> str:
        """Write a file, and take long to stop."""
        (folder / "agents").write_text("x")
        works.abort()
        try:
            await asyncio.sleep(60)
        finally:
            await may_end.wait()
            asyncio.get_running_loop().call_soon(ended.set)
        return ""

    async def write_more() -> str:
        """Write another file."""
        (folder / "more").write_text("x")
        may_end.set()
        await ended.wait()
        return ""

    answers = [[ToolCall("c1", "write_slowly", {})], [ToolCall("c2", "write_more", {})], "Done."]
    works = agent(*answers, tools=[write_slowly, write_more], cwd=str(folder), snapshots=True)
    start = session.append(st.user("Hello")).id
    assert (await works.run("Go")).aborted
    aborted = session.head.leaf
    if ends == "before the next turn":
        may_end.set()
        await ended.wait()
    recorder = works.file_recorder
    assert recorder is not None
    while recorder._ending is not None:
        await asyncio.sleep(0)
    (folder / "mine").write_text("mine")
    await works.run("Go on")

    plan = FileMover.find(session.head, FileSettings(), str(folder)).plan(start)
    if ends == "before the next turn":
        assert [change.path for change in plan.changes] == ["agents", "more"]
        first, _ = list_records(session, folder)
        assert (diff_record(folder, first), first.place) == (["agents"], aborted)
    else:
        assert plan.changes == ()
        assert {conflict.reason for conflict in plan.conflicts} == {INTERRUPTED}


async def test_the_next_agent_continues_the_history_of_the_path(
    agent: MakeAgent, session: Session, folder: Path
) -> None:
    for name in ("a", "b"):
        works = agent([call(f"touch {name}")], "Done.", tools=builtin_tools(), cwd=str(folder), snapshots=True)
        await works.run("Go")
        await works.close()

    first, second = list_records(session, folder)
    assert second.before == first.commit
    assert len(list(SnapshotStore.open(str(folder)).read_commits(second.commit))) == 3


async def test_the_session_file_in_the_folder_is_not_part_of_a_snapshot(folder: Path) -> None:
    with st.create(file=folder / "talk.jsonl") as session:
        works = Agent(
            session,
            st.ScriptedModel([[call("touch a")], "Done."]),
            builtin_tools(),
            cwd=str(folder),
            snapshots=True,
        )
        await works.run("Go")

        (record,) = list_records(session, folder)
    store = SnapshotStore.open(str(folder))
    assert list(store.list_files(record.commit)) == [b"a"]


async def test_a_folder_that_is_reached_through_a_link_is_one_folder(
    agent: MakeAgent, session: Session, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(folder)
    answers = [[call("touch a")], [call("touch b", "c2")], "Done."]
    works = agent(*answers, tools=builtin_tools(), cwd=str(tmp_path / "link"), snapshots=True)
    opened: list[str] = []
    create = file_recorder.FolderSnapshots
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_recorder, "FolderSnapshots", lambda *a, **o: opened.append("") or create(*a, **o))
        await works.run("Go")

    assert len(list_records(session, folder)) == 2
    assert len(opened) == 1


async def test_the_first_snapshot_of_a_large_folder_reports_progress(
    agent: MakeAgent, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_recorder, "MIN_REPORTED", 600)
    for number in range(600):
        (folder / str(number)).touch()
    works = agent(
        [call("touch a")], [call("touch b", "c2")], "Done.", tools=builtin_tools(), cwd=str(folder), snapshots=True
    )
    events = record_events(works.hooks)

    await works.run("Go")

    told = [event.text for event in events if isinstance(event, SnapshotProgress)]
    assert told == ["saving files: 500 of 600", "saving files: 600 of 600"]


async def test_a_call_that_writes_many_files_reports_the_progress_of_saving_them(
    agent: MakeAgent, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_recorder, "MIN_REPORTED", 600)
    works = agent([call("seq 600 | xargs touch")], "Done.", tools=builtin_tools(), cwd=str(folder), snapshots=True)
    events = record_events(works.hooks)

    await works.run("Go")

    told = [event.text for event in events if isinstance(event, SnapshotProgress)]
    assert told == ["saving files: 500 of 600", "saving files: 600 of 600"]


def test_front_ends_take_snapshots_and_library_agents_do_not(session: Session) -> None:
    assert load_agent_options(Config()).snapshots
    assert not load_agent_options(Config(files=FileSettings(snapshots=False))).snapshots
    assert Agent(session, st.ScriptedModel([])).file_recorder is None
