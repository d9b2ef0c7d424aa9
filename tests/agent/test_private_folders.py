"""Agents that run beside each other work in private folders, and their files are merged back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sessiontree as st
from sessiontree.agent.factory import AgentOptions, create_agent, needs_private_folder, open_branch_agent
from sessiontree.agent.fan_out import Variant, fan_out
from sessiontree.agent.permissions import Permissions
from sessiontree.agent.system_prompt import build_coding_prompt
from sessiontree.agent.tools import builtin_tools
from sessiontree.config import FileSettings
from sessiontree.core.messages import ToolCall
from sessiontree.files.folder_merge import MergeConflict
from sessiontree.files.private_folder import (
    PrivateFolder,
    find_private_folder,
    list_private_folders,
    remove_private_folder,
)
from sessiontree.home import get_home
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import Notice
from sessiontree.ops.merge import promote as promote_branch
from sessiontree.ops.merge_files import merge_branch_files, remove_branch_folders
from sessiontree.ops.move_files import FileMover
from sessiontree.session import Session
from tests.files.conftest import read_folder, run_git

SETTINGS = FileSettings()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "project"
    path.mkdir()
    (path / "shared.txt").write_text("start\n")
    yield path
    for private in list_private_folders():  # an overlay would stay mounted
        remove_private_folder(private, SETTINGS)


def build_model(command: str) -> st.ScriptedModel:
    return st.ScriptedModel([[ToolCall("c1", "bash", {"command": command})], "Done."])


def build_options(folder: Path) -> AgentOptions:
    return AgentOptions(tools=builtin_tools(), cwd=str(folder), snapshots=True)


async def run_both(session: Session, folder: Path, first: str, second: str) -> None:
    session.append(st.user("How?"))
    await fan_out(
        session,
        "HEAD",
        [
            Variant(name="a", prompt="First way", model=build_model(first)),
            Variant(name="b", prompt="Second way", model=build_model(second)),
        ],
        options=build_options(folder),
    )


def get_folder(session: Session, branch: str) -> PrivateFolder:
    found = find_private_folder(session.id, branch)
    assert found is not None
    return found


async def test_two_agents_that_write_the_same_file_do_not_overwrite_each_other(session: Session, folder: Path) -> None:
    await run_both(session, folder, "echo a > shared.txt", "echo b > shared.txt; touch new")

    assert Path(get_folder(session, "a").path, "shared.txt").read_text() == "a\n"
    assert Path(get_folder(session, "b").path, "shared.txt").read_text() == "b\n"
    assert list(read_folder(folder)) == ["shared.txt"]
    assert (folder / "shared.txt").read_text() == "start\n"


async def test_the_files_of_a_branch_are_merged_into_the_project_and_go_back_with_it(
    session: Session, folder: Path
) -> None:
    await run_both(session, folder, "echo a > a.txt", "echo b > b.txt; rm shared.txt")
    before = session.head.leaf
    (folder / "mine.txt").write_text("a person wrote this")
    session.append(st.assistant("Merged."))

    merged = merge_branch_files(session.branch("b"), session.head, SETTINGS, old_leaf=session.head.leaf)

    assert merged is not None
    assert (merged.written, merged.deleted, merged.conflicts) == (("b.txt",), ("shared.txt",), ())
    assert sorted(read_folder(folder)) == ["b.txt", "mine.txt"]
    mover = FileMover.find(session.head, SETTINGS, str(folder))
    mover.restore(mover.plan(before))
    assert sorted(read_folder(folder)) == ["mine.txt", "shared.txt"]
    assert remove_branch_folders(session, ["a", "b"], SETTINGS) == ["a", "b"]
    assert list_private_folders() == []


async def promote(session: Session, branch: str) -> None:
    outcome = await promote_branch(session.branch(branch), session.head, hooks=Hooks(), summary="Chosen.")
    assert outcome.files is not None
    assert not outcome.files.conflicts


async def test_undo_of_a_promotion_takes_the_merged_files_back(session: Session, folder: Path) -> None:
    await run_both(session, folder, "echo a > shared.txt; echo a > a.txt", "true")
    (folder / "mine.txt").write_text("a person wrote this")
    await promote(session, "a")
    assert (folder / "shared.txt").read_text() == "a\n"
    mover = FileMover.find(session.head, SETTINGS, str(folder))

    files = mover.plan_undo(session.plan_undo)
    session.undo()
    mover.restore(files)

    assert files.conflicts == ()
    assert sorted(read_folder(folder)) == ["mine.txt", "shared.txt"]
    assert (folder / "shared.txt").read_text() == "start\n"


async def test_after_a_promotion_each_call_of_the_winner_can_be_reverted(session: Session, folder: Path) -> None:
    await run_both(session, folder, "echo a > shared.txt; echo a > a.txt", "true")
    async with open_branch_agent(
        session.branch("a"), build_model("echo more > shared.txt; rm a.txt"), None, build_options(folder)
    ) as agent:
        await agent.run("Go on")
    await promote(session, "a")
    assert (folder / "shared.txt").read_text() == "more\n"
    mover = FileMover.find(session.head, SETTINGS, str(folder))
    second = next(entry.id for entry in session.tree if entry.text == "Go on")

    plan = mover.plan(session.tree.parent(second))
    mover.restore(plan)

    assert plan.conflicts == ()
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"a.txt": "a\n", "shared.txt": "a\n"}
    mover.restore(mover.plan(None))
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"shared.txt": "start\n"}


async def test_a_conflict_changes_no_file(session: Session, folder: Path) -> None:
    await run_both(session, folder, "echo a > shared.txt; touch other.txt", "true")
    (folder / "shared.txt").write_text("a person wrote this\n")
    before = read_folder(folder)

    merged = merge_branch_files(session.branch("a"), session.head, SETTINGS, old_leaf=session.head.leaf)

    assert merged is not None
    assert [conflict.path for conflict in merged.conflicts] == ["shared.txt"]
    assert "1 conflict: shared.txt (both sides changed it)" in merged.summary
    assert read_folder(folder) == before


async def run_turns(session: Session, folder: Path, *commands: str) -> None:
    """Let an agent run commands in the private folder of the branch `a`, each in an answer of its own."""
    session.append(st.user("How?"))
    calls = [[ToolCall(f"c{number}", "bash", {"command": command})] for number, command in enumerate(commands)]
    variant = Variant(name="a", prompt="Do it", model=st.ScriptedModel([*calls, "Done."]))
    await fan_out(
        session, "HEAD", [variant, Variant(name="b", model=build_model("true"))], options=build_options(folder)
    )


async def test_a_merge_keeps_a_file_that_the_project_tracks_although_it_is_ignored(
    session: Session, folder: Path
) -> None:
    (folder / ".gitignore").write_text("*.log\n")
    (folder / "tracked.log").write_text("tracked")
    run_git(folder, "init", "-q")
    run_git(folder, "add", "--force", ".")
    await run_turns(session, folder, "touch a.txt", "echo more >> tracked.log")

    merged = merge_branch_files(session.branch("a"), session.head, SETTINGS, old_leaf=session.head.leaf)

    assert merged is not None
    assert (merged.written, merged.deleted, merged.conflicts) == (("a.txt", "tracked.log"), (), ())
    assert (folder / "tracked.log").read_text() == "trackedmore\n"


@pytest.mark.parametrize(
    ("command", "written"),
    [("echo '*.txt' > .gitignore", (".gitignore", "new")), ("mkdir sub/.git; echo x > sub/old.txt", ("new",))],
    ids=["ignored", "nested repository"],
)
async def test_a_merge_deletes_no_file_that_the_private_folder_only_leaves_out_of_its_snapshots(
    session: Session, folder: Path, command: str, written: tuple[str, ...]
) -> None:
    (folder / "sub").mkdir()
    (folder / "sub/old.txt").write_text("old")
    await run_turns(session, folder, "touch new", command, "printf old > sub/old.txt")

    merged = merge_branch_files(session.branch("a"), session.head, SETTINGS, old_leaf=session.head.leaf)

    assert merged is not None
    assert (merged.written, merged.deleted, merged.conflicts) == (written, (), ())
    assert (folder / "sub/old.txt").read_text() == "old"
    assert (folder / "shared.txt").read_text() == "start\n"


async def test_a_changed_file_that_snapshots_leave_out_is_a_conflict_of_a_merge(session: Session, folder: Path) -> None:
    await run_turns(session, folder, "touch new; truncate -s 6M shared.txt")
    before = read_folder(folder)

    merged = merge_branch_files(session.branch("a"), session.head, SETTINGS, old_leaf=session.head.leaf)

    assert merged is not None
    assert merged.conflicts == (MergeConflict("shared.txt", "left out of a snapshot"),)
    assert read_folder(folder) == before


async def test_a_merge_that_would_overwrite_an_ignored_file_changes_nothing(session: Session, folder: Path) -> None:
    await run_turns(session, folder, "touch new; echo agent > out.txt")
    (folder / ".gitignore").write_text("out.txt\n")
    (folder / "out.txt").write_text("a person wrote this")
    before = read_folder(folder)

    merged = merge_branch_files(session.branch("a"), session.head, SETTINGS, old_leaf=session.head.leaf)

    assert merged is not None
    assert merged.conflicts == (MergeConflict("out.txt", "changed on disk since"),)
    assert read_folder(folder) == before


async def test_a_branch_starts_with_the_files_of_the_branch_that_it_continues(session: Session, folder: Path) -> None:
    await run_both(session, folder, "echo a > step1.txt", "true")
    next_branch = session.create_branch("next", at="a", current=False)

    async with open_branch_agent(
        next_branch, build_model("cat step1.txt > step2.txt"), None, build_options(folder)
    ) as agent:
        await agent.run("Go on")

    assert Path(get_folder(session, "next").path, "step2.txt").read_text() == "a\n"


async def test_an_agent_without_a_folder_works_in_the_private_folder_of_its_branch(
    session: Session, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    branch = session.create_branch("own", folder="private", current=False)

    async with st.Agent(branch, build_model("echo own > shared.txt"), builtin_tools(), snapshots=True) as agent:
        await agent.run("Go on")

    assert (folder / "shared.txt").read_text() == "start\n"
    assert Path(get_folder(session, "own").path, "shared.txt").read_text() == "own\n"


async def test_agents_of_swarms_and_runs_of_experiments_work_in_private_folders_with_snapshots(
    session: Session, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    session.append(st.user("How?"))

    def answer(request: st.Request) -> list[str | ToolCall]:
        if request.messages[-1]["role"] == "user":
            return [ToolCall("c1", "bash", {"command": "pwd >> shared.txt"})]
        return ["Done."]

    options: dict[str, Any] = {"model": st.ScriptedModel([answer] * 40), "tools": builtin_tools(), "snapshots": True}
    swarm = st.Swarm(session, "team", "Work", agents=2, **options)
    await swarm.start()
    await swarm.wait()
    arms = [st.Arm(name="a", prompt="First way"), st.Arm(name="b", prompt="Second way")]
    await st.experiment(session, "HEAD", arms, runs=1, **options)

    folders = list_private_folders(session.id)
    assert len(folders) == 4
    assert (folder / "shared.txt").read_text() == "start\n"
    for private in folders:
        assert Path(private.path, "shared.txt").read_text() == f"start\n{private.path}\n"


async def test_a_branch_without_a_private_folder_has_nothing_to_merge(session: Session, folder: Path) -> None:
    session.append(st.user("How?"))
    other = session.create_branch("other", current=False)

    assert merge_branch_files(other, session.head, SETTINGS, old_leaf=None) is None
    assert remove_branch_folders(session, ["other"], SETTINGS) == []


def test_only_agents_that_may_change_files_get_a_private_folder(folder: Path) -> None:
    def needs(**options: object) -> bool:
        return needs_private_folder(AgentOptions(**{"tools": builtin_tools(), "snapshots": True, **options}))  # type: ignore[arg-type]

    assert needs()
    assert not needs(snapshots=False)
    assert not needs(tools=builtin_tools("read"))
    assert not needs(permissions=Permissions("read-only"))
    assert not needs(permissions=Permissions("ask"))
    assert needs(permissions=Permissions("ask", allow=["bash:make *"]))
    assert needs(permissions=Permissions("allow-edits"))
    assert not needs(folder="shared")
    assert needs(folder="private", snapshots=False)


async def test_the_prompt_names_the_original_folder(session: Session, folder: Path) -> None:
    await run_both(session, folder, "true", "true")
    path = get_folder(session, "a").path

    (part,) = [part.text for part in build_coding_prompt(path, []) if part.name == "folder"]

    assert part.startswith(f"The working folder is {path}, a copy of {folder} that only you use.")


async def test_a_private_folder_that_the_home_does_not_have_is_reported(
    session: Session, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await run_both(session, folder, "echo a > shared.txt", "true")
    home = get_home()

    async def run(branch: str) -> list[str]:
        hooks, events = Hooks(), list[object]()
        hooks.listen(events.append)
        async with create_agent(session.branch(branch), build_model("touch x"), hooks, build_options(folder)) as agent:
            await agent.run("Go on")
        return [event.text for event in events if isinstance(event, Notice)]

    monkeypatch.setenv("SESSIONTREE_HOME", str(tmp_path / "other"))
    warnings = await run("a")
    again = await run("a")
    other = await run("b")
    monkeypatch.setenv("SESSIONTREE_HOME", home)

    assert warnings == [
        f"branch 'a' worked in a private folder, which {tmp_path / 'other'} does not have; "
        f"its agent now changes the files in {folder}"
    ]
    assert (again, other) == ([], [])
