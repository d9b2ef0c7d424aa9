"""Slash commands and the controller move files with the conversation."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.agent.factory import AgentOptions
from sessiontree.agent.tools import builtin_tools
from sessiontree.config import FileSettings
from sessiontree.core.messages import ToolCall
from sessiontree.errors import InvalidOperation
from sessiontree.files.private_folder import create_branch_folder
from sessiontree.files.snapshot_store import get_stores_folder
from sessiontree.hooks.events import Notice
from sessiontree.ops.move_files import FileMover
from sessiontree.session import Session
from sessiontree.slash_commands.controller import SessionController
from sessiontree.slash_commands.host import list_files_choices
from tests.files.conftest import interrupt_restore
from tests.slash_commands.conftest import FakeHost, ScriptedModels, ScriptedUser, make_scripted_model, record_events


def build_controller(session: Session, *answers: object, **options: object) -> SessionController:
    return SessionController(
        session,
        model=make_scripted_model("usual", *answers),
        models=ScriptedModels(),
        options=AgentOptions(tools=builtin_tools(), system="Be brief.", snapshots=True),
        **options,
    )


def call(command: str, id: str) -> list[ToolCall]:
    return [ToolCall(id, "bash", {"command": command})]


@pytest.fixture
def folder(session: Session) -> Path:
    return Path(session.cwd)


ANSWERS = (call("echo 1 > a", "c1"), "Done.", call("echo 2 > a; echo 2 > b", "c2"), "Done.")


async def start(session: Session, *more: object, **options: object) -> SessionController:
    controller = build_controller(session, *ANSWERS, *more, **options)
    await controller.submit("first")
    await controller.submit("second")
    return controller


async def find_second(controller: SessionController) -> str:
    return next(entry.id for entry in controller.session.tree if entry.text == "second")


async def test_tree_with_files_goes_back_and_undo_with_files_comes_back(session: Session, folder: Path) -> None:
    controller = await start(session)

    done = await controller.submit(f"/tree {await find_second(controller)} --files")
    assert done.text.splitlines()[1:] == ["Restored 1 file, deleted 1 file."]
    assert (folder / "a").read_text() == "1\n"

    done = await controller.submit("/undo --files")
    assert done.text.splitlines()[1:] == ["Restored 2 files."]
    assert (folder / "a").read_text() == "2\n"


async def test_undo_with_files_brings_back_the_files_from_before_although_the_conversation_moved_alone_first(
    session: Session, folder: Path
) -> None:
    controller = await start(session)
    second = await find_second(controller)
    first = next(entry.id for entry in session.tree if entry.text == "first")
    await controller.submit(f"/tree {second}")
    await controller.submit(f"/tree {first} --files")
    assert list(folder.iterdir()) == []

    await controller.submit("/undo --files")

    assert {path.name: path.read_text() for path in folder.iterdir()} == {"a": "2\n", "b": "2\n"}


async def test_undo_with_files_leaves_a_restore_alone_that_belongs_to_an_earlier_move(
    session: Session, folder: Path
) -> None:
    controller = await start(session)
    second = await find_second(controller)
    last, (*_, result) = session.heads.leaf, [entry.id for entry in session.tree if entry.role == "toolResult"]
    await controller.submit(f"/tree {second} --files")
    await controller.submit(f"/tree {result} --files")
    await controller.submit(f"/tree {last}")

    await controller.submit("/undo --files")

    assert session.heads.leaf == result
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"a": "2\n", "b": "2\n"}


async def test_moves_without_the_option_leave_the_files(session: Session, folder: Path) -> None:
    controller = await start(session)

    await controller.submit(f"/tree {await find_second(controller)}")
    await controller.submit("/undo")

    assert (folder / "a").read_text() == "2\n"


async def test_a_person_is_shown_the_preview_and_chooses(session: Session, folder: Path) -> None:
    person = ScriptedUser("Conversation and files", "No summary")
    controller = await start(session, ui=person, host=FakeHost())

    await controller.submit(f"/tree {await find_second(controller)}")

    title, options = person.questions[0]
    assert title == "What should move? 1 file to change, 1 file to delete"
    assert options[0] == "Conversation"
    assert (folder / "a").read_text() == "1\n"


@pytest.mark.parametrize(
    ("answer", "text", "moves"),
    [("Conversation", "1\n", True), ("and files", "2\n", True), ("Files only", "2\n", False)],
)
async def test_undo_asks_a_person_what_to_move(
    session: Session, folder: Path, answer: str, text: str, moves: bool
) -> None:
    controller = await start(session, ui=ScriptedUser(answer), host=FakeHost())
    leaf = controller.branch.leaf
    await controller.navigate(await find_second(controller), files="both")

    await controller.submit("/undo")

    assert (folder / "a").read_text() == text
    assert (controller.branch.leaf == leaf) is moves


async def test_switch_to_the_files_of_a_branch_alone(session: Session, folder: Path) -> None:
    controller = await start(session, ui=ScriptedUser("Files only", "Files only"), host=FakeHost())
    await controller.submit(f"/branch-here other {await find_second(controller)}")
    await controller.submit("/tree HEAD --files-only")

    done = await controller.submit("/switch main")

    assert done.text == "Restored 2 files."
    assert controller.branch.name == "other"
    assert (folder / "a").read_text() == "2\n"


async def test_switch_between_branches_with_their_own_folders_asks_nothing(session: Session, folder: Path) -> None:
    person = ScriptedUser()
    controller = await start(session, ui=person, host=FakeHost())
    other = session.create_branch("other", at=await find_second(controller), current=False)
    create_branch_folder(other, str(folder), FileSettings())

    await controller.submit("/switch other")

    assert person.questions == []
    assert controller.branch.name == "other"
    assert (folder / "a").read_text() == "2\n"


async def test_prompts_and_shell_commands_work_in_the_private_folder_of_the_branch(
    session: Session, folder: Path
) -> None:
    controller = await start(session, call("echo own > a", "c3"), "Done.", call("echo shared > b", "c4"), "Done.")
    other = session.create_branch("other", current=False)
    private = Path(create_branch_folder(other, str(folder), FileSettings()).path)

    await controller.submit("/switch other")
    await controller.submit("third")
    shown = await controller.submit("!pwd; touch mine")
    here = controller.cwd
    await controller.submit("/switch main")
    await controller.submit("fourth")

    assert here == shown.text == str(private)
    assert (private / "a").read_text() == "own\n"
    assert (private / "mine").exists()
    assert controller.cwd == str(folder)
    assert (folder / "a").read_text() == "2\n"
    assert (folder / "b").read_text() == "shared\n"
    assert not (folder / "mine").exists()


async def test_an_agent_never_uses_the_shared_folder_instead_of_a_private_one(session: Session, folder: Path) -> None:
    controller = await start(session, call("echo wrong > a", "c3"), "Done.")
    private = create_branch_folder(session.create_branch("other", current=False), str(folder), FileSettings())
    marker = Path(private.root, "private.json")
    known = json.loads(marker.read_text())
    marker.write_text(
        json.dumps({**known, "method": "overlay", "tree": "0" * 40, "path": f"{private.root}/files/gone"})
    )
    events = record_events(controller)

    await controller.submit("/switch other")
    with pytest.raises(InvalidOperation, match="cannot use the private folder of 'other'"):
        await controller.submit("third")
    with pytest.raises(InvalidOperation, match="cannot use the private folder of 'other'"):
        await controller.submit("!echo wrong > a")
    await controller.submit("/switch main")
    ran = await controller.submit("!cat a")

    assert any(isinstance(event, Notice) and event.level == "error" for event in events)
    assert ran.text == "2"
    marker.write_text(json.dumps(known))


async def test_missing_snapshots_are_reported_and_the_conversation_moves(session: Session, folder: Path) -> None:
    person = ScriptedUser("No summary")
    controller = await start(session, ui=person, host=FakeHost())
    leaf, warnings = controller.branch.leaf, []
    person.notify = lambda text, level="info": warnings.append((level, text))
    shutil.rmtree(get_stores_folder())

    await controller.submit(f"/tree {await find_second(controller)}")

    assert warnings == [("warning", "files cannot be restored: the snapshots of this session are not on this machine")]
    assert controller.branch.leaf != leaf


async def test_a_conflict_is_restored_by_name_with_a_switch(session: Session, folder: Path) -> None:
    controller = await start(session)
    await controller.submit(f"/branch-here other {await find_second(controller)}")
    (folder / "a").write_text("mine\n")

    outcome = await controller.switch("other", files="files", take=["a"])

    assert outcome.files is not None
    assert outcome.files.conflicts == ()
    assert (folder / "a").read_text() == "1\n"


async def test_a_person_who_cancels_the_question_changes_nothing(session: Session, folder: Path) -> None:
    controller = await start(session, ui=ScriptedUser(None), host=FakeHost())
    leaf = controller.branch.leaf

    await controller.submit(f"/tree {await find_second(controller)}")

    assert controller.branch.leaf == leaf
    assert (folder / "a").read_text() == "2\n"


async def test_files_only_keeps_the_conversation(session: Session, folder: Path) -> None:
    controller = await start(session)
    leaf = controller.branch.leaf

    done = await controller.submit("/tree root --files-only")

    assert done.text == "Deleted 2 files."
    assert controller.branch.leaf == leaf
    assert not (folder / "a").exists()


async def test_undo_reverts_a_restore_of_files_alone_with_the_conflicts_that_it_took(
    session: Session, folder: Path
) -> None:
    controller = await start(session)
    leaf, second = controller.branch.leaf, await find_second(controller)
    (folder / "a").write_text("mine\n")
    await controller.navigate(second, files="files", take=["a"])
    assert (folder / "a").read_text() == "1\n"

    done = await controller.submit("/undo --files-only")

    assert done.text == "Restored 2 files."
    assert controller.branch.leaf == leaf
    assert (folder / "a").read_text() == "mine\n"
    assert (folder / "b").exists()


async def test_undo_reverts_a_restore_of_files_alone_before_an_earlier_move(session: Session, folder: Path) -> None:
    person = ScriptedUser()
    host = FakeHost()
    controller = await start(session, ui=person, host=host)
    second, end = await find_second(controller), controller.branch.leaf
    await controller.navigate(second, files="both")
    leaf = controller.branch.leaf
    await controller.navigate(session.tree[end or ""], files="files")
    assert (folder / "a").read_text() == "2\n"

    plan = await controller.plan_undo_files()
    assert list(list_files_choices(plan)) == ["Conversation", "Files only"]
    await controller.submit("/undo --files")
    assert ((folder / "a").read_text(), controller.branch.leaf) == ("1\n", leaf)
    await controller.submit("/undo --files")
    assert ((folder / "a").read_text(), controller.branch.leaf) == ("2\n", end)


async def test_undo_of_a_switch_keeps_the_files_of_a_private_folder(session: Session, folder: Path) -> None:
    controller = await start(session, call("echo own > a", "c3"), "Done.")
    other = session.create_branch("other", current=False)
    private = Path(create_branch_folder(other, str(folder), FileSettings()).path)
    await controller.submit("/switch other")
    await controller.submit("third")

    await controller.submit("/undo --files")

    assert controller.branch.name == "main"
    assert (private / "a").read_text() == "own\n"
    assert (folder / "a").read_text() == "2\n"


async def test_switch_takes_the_files_of_the_branch_along(session: Session, folder: Path) -> None:
    controller = await start(session, call("echo other > a", "c3"), "Done.")
    await controller.submit(f"/branch-here other {await find_second(controller)}")
    assert (await controller.submit("/tree HEAD --files-only")).text == "Restored 1 file, deleted 1 file."
    await controller.submit("third")
    assert (folder / "a").read_text() == "other\n"

    done = await controller.submit("/switch main --files")

    assert "Restored 2 files." in done.text
    assert ((folder / "a").read_text(), (folder / "b").read_text()) == ("2\n", "2\n")


async def test_the_preview_names_other_branches_that_work_in_the_folder(session: Session, folder: Path) -> None:
    controller = await start(session, call("echo other > c", "c3"), "Done.")
    await controller.submit("/branch-here other")
    await controller.submit("third")
    await controller.submit("/switch main")

    plan = await controller.plan_files(await find_second(controller))

    assert plan.others == ("branch other",)


async def test_pop_with_files_goes_back_to_the_last_prompt(session: Session, folder: Path) -> None:
    controller = await start(session, "A summary.")

    await controller.submit(f"/pop {await find_second(controller)} --files")

    assert (folder / "a").read_text() == "1\n"
    assert controller.branch.path()[-1].type == "branch_summary"
    done = await controller.submit("/undo --files")
    assert "Restored 2 files." in done.text


@pytest.mark.parametrize(("answer", "text"), [("Finish", "1\n"), ("Revert", "2\n")])
async def test_an_interrupted_restore_is_finished_or_reverted_at_the_next_start(
    session: Session, folder: Path, answer: str, text: str
) -> None:
    person = ScriptedUser(answer)
    controller = await start(session, ui=person, host=FakeHost())
    interrupt_restore(session, controller.plan_navigation(await find_second(controller)).new_leaf)

    await controller.start()

    assert person.questions[0][0].startswith("Restoring files was interrupted.")
    assert (folder / "a").read_text() == text
    assert FileMover.find(session.head, FileSettings()).find_interrupted() == []


@pytest.mark.parametrize(("answer", "text"), [("Finish", "1\n"), ("Revert", "2\n")])
async def test_a_restore_of_another_session_is_finished_or_reverted_too(
    session: Session, folder: Path, answer: str, text: str
) -> None:
    controller = await start(session)
    place = controller.plan_navigation(await find_second(controller)).new_leaf
    interrupt_restore(session, place)
    person, other = ScriptedUser(answer), st.create("other", cwd=folder)

    await build_controller(other, ui=person, host=FakeHost()).start()

    assert person.questions[0][0].startswith("Another session was interrupted while it restored files here.")
    assert (folder / "a").read_text() == text
    assert FileMover.find(session.head, FileSettings()).find_interrupted() == []


async def test_an_interrupted_restore_is_reported_without_a_user(session: Session, folder: Path) -> None:
    controller = await start(session)
    interrupt_restore(session, None)
    events = record_events(controller)

    await controller.start()

    assert any("files recover" in event.text for event in events if isinstance(event, Notice))
    assert (folder / "a").read_text() == "2\n"
