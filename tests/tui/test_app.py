"""The app: the tree, prompts for arguments, other processes, and when a session is kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.config import Config, SummarySettings
from sessiontree.errors import NotFound, StoreError
from sessiontree.library.other_processes import PresenceLock, is_session_open
from sessiontree.model.base import Model, ModelError
from sessiontree.model.scripted import Delay, ScriptedModel
from sessiontree.session import Session
from sessiontree.tui.app import find_resume_command
from sessiontree.tui.services.input import DraftFile, EditorDraft
from tests.interop.conformance import FIXTURES

from .conftest import NoModels, Running, ScriptedModels


@pytest.fixture
def talk(project: Path) -> Session:
    """Two questions with answers, and a branch that replaces the second."""
    session = st.create("talk")
    session.append(st.user("first question"))
    session.append(st.assistant("first answer"))
    here = session.heads.leaf
    session.append(st.user("second question"))
    session.append(st.assistant("second answer"))
    session.create_branch("other", at=session.tree[here], current=False)
    return session


# The tree


@pytest.mark.parametrize("keys", [("ctrl+t",), ("escape", "escape")])
async def test_a_key_opens_the_tree_and_choosing_an_entry_navigates(
    running: Running, talk: Session, keys: tuple[str, ...]
) -> None:
    async with running(session=talk) as app:
        await app.press(*keys)
        await app.wait_for_text("← active", "type to search")
        await app.press("up", "enter")
        await app.wait_for_text("Summarize the branch you're leaving?")
        await app.press("enter")
        await app.wait_until(lambda: app.editor.text == "second question")

        assert "second answer" not in app.screen
        assert [entry.type for entry in talk.head.path()] == ["session_info", "message", "message"]


async def test_the_abandoned_branch_is_summarized(running: Running, talk: Session) -> None:
    async with running("It was about seconds.", session=talk) as app:
        await app.press("ctrl+t")
        await app.wait_for_text("← active")
        await app.press("up", "enter")
        await app.wait_for_text("Summarize the branch")
        await app.press("down", "enter")
        await app.wait_for_text("◆ Branch summary")

        assert app.editor.text == "second question"
        assert talk.tree[talk.heads.leaf or ""].type == "branch_summary"


async def test_a_failed_summary_changes_nothing(running: Running, talk: Session) -> None:
    before = talk.heads.leaf
    async with running(ModelError("scripted:scripted", "auth", "no key"), session=talk) as app:
        await app.press("ctrl+t")
        await app.wait_for_text("← active")
        await app.press("up", "ctrl+s")
        await app.wait_for_text("✗ scripted:scripted: no key", "nothing changed")

        assert talk.heads.leaf == before
        assert app.editor.text == ""
        assert not app.chat.status_line.activity


async def test_a_summary_can_be_aborted(running: Running, talk: Session) -> None:
    before = talk.heads.leaf
    async with running([Delay(30)], session=talk) as app:
        await app.press("ctrl+t")
        await app.wait_for_text("← active")
        await app.press("up", "ctrl+s")
        await app.wait_for_text("summarizing", "Esc to abort")
        await app.press("escape")
        await app.wait_for_text("Cancelled. Nothing changed.")

        assert talk.heads.leaf == before


async def test_a_run_is_aborted_only_after_an_entry_is_chosen(running: Running, talk: Session) -> None:
    async with running(["Long ", Delay(30)], session=talk) as app:
        await app.submit("Go on")
        await app.wait_for_text("Long")
        await app.press("ctrl+t")
        await app.wait_for_text("type to search")
        assert app.app.controller.is_running
        await app.press("escape")
        assert app.app.controller.is_running
        await app.press("ctrl+t")
        await app.wait_for_text("type to search")
        await app.press("home", "enter")
        await app.wait_for_text("Summarize the branch")
        await app.press("enter")
        await app.wait_until(lambda: app.editor.text == "first question")

        assert not app.app.controller.is_running


async def test_the_summary_question_can_be_skipped(running: Running, talk: Session) -> None:
    settings = Config(summary=SummarySettings(skip_prompt=True))
    async with running(session=talk, settings=settings) as app:
        await app.press("ctrl+t")
        assert await app.wait_for_text("← active")
        await app.press("up", "enter")
        assert await app.wait_until(lambda: app.editor.text == "second question")


async def test_double_escape_runs_the_configured_action(running: Running, talk: Session) -> None:
    async with running(session=talk, settings=Config(double_escape="fork")) as app:
        await app.press("escape", "escape")
        await app.wait_for_text("Fork before message", "second question")
        await app.press("escape")
    async with running(session=st.create(), settings=Config(double_escape="none")) as app:
        await app.press("escape", "escape")
        await app.pilot.pause(0.1)
        assert len(app.app.screen_stack) == 1


async def test_double_escape_does_nothing_while_the_editor_has_text(running: Running, talk: Session) -> None:
    async with running(session=talk) as app:
        await app.type("words")
        await app.press("escape", "escape")
        await app.pilot.pause(0.1)
        assert len(app.app.screen_stack) == 1


# Choosing missing arguments


async def test_branches_command_switches_to_the_chosen_branch(running: Running, talk: Session) -> None:
    async with running(session=talk) as app:
        await app.submit("/branches")
        assert await app.wait_for_text("Switch to branch", "● main", "other")
        await app.press("down", "enter")
        await app.wait_until(lambda: talk.heads.current == "other")
        assert await app.wait_for_text("On branch other")


async def test_a_branch_with_one_entry_is_listed_in_singular(running: Running) -> None:
    session = st.create()
    session.append(st.user("alone"))
    async with running(session=session, models=NoModels()) as app:
        await app.submit("/branches")
        await app.wait_for_text("Switch to branch", " 1 entry  ")


@pytest.mark.parametrize("line", ["/export", "/export-branch", "/export-branch other"])
async def test_export_without_a_file_reports_the_path(
    running: Running, talk: Session, project: Path, line: str
) -> None:
    async with running(session=talk) as app:
        await app.submit(line)
        (page,) = await app.wait_until(lambda: list(project.glob("*.html")))
        await app.wait_until(lambda: any(str(page) in block for block in app.blocks))


async def test_missing_arguments_are_asked_for(running: Running, talk: Session) -> None:
    talk.append(st.user("tried elsewhere"), branch="other")
    async with running("What was done there.", session=talk) as app:
        await app.submit("/merge")
        assert await app.wait_for_text("Merge which branch?", "other")
        await app.press("enter")
        assert await app.wait_for_text("other is merged", "◆ Merge")


async def test_a_command_is_cancelled_if_its_argument_is_not_given(running: Running, talk: Session) -> None:
    async with running(session=talk) as app:
        lines = len(talk.tree)
        for line in ("/merge", "/cherry-pick", "/pop", "/fork", "/branches"):
            await app.submit(line)
            await app.wait_until(lambda: len(app.app.screen_stack) == 2)
            await app.press("escape")
            await app.wait_until(lambda: len(app.app.screen_stack) == 1)

        assert len(talk.tree) == lines


async def test_activity_is_still_shown_after_closing_the_tree(running: Running, talk: Session) -> None:
    async with running(["It begins.", Delay(30)], session=talk) as app:
        await app.submit("go on")
        await app.wait_for_text("It begins.", "working")
        await app.press("ctrl+t")
        await app.wait_for_text("type to search")
        await app.press("escape")
        await app.wait_until(lambda: app.app.screen is app.chat)
        await app.pilot.pause()
        assert await app.wait_for_text("working", "Esc to abort")
        await app.press("escape")
        assert await app.wait_for_text("aborted")


async def test_streamed_text_stays_visible_when_an_entry_is_labeled(running: Running, talk: Session) -> None:
    async with running(["It begins.", Delay(30)], session=talk) as app:
        await app.submit("go on")
        await app.wait_for_text("It begins.")
        await app.submit("/label here")
        assert await app.wait_for_text("It begins.", "Labeled")
        await app.press("escape")
        assert "It begins." in await app.wait_for_text("aborted")


async def test_a_shell_command_stays_visible_when_an_entry_is_labeled(running: Running, talk: Session) -> None:
    async with running(session=talk) as app:
        await app.submit("!echo one; sleep 30")
        await app.wait_for_text("! echo one")
        await app.submit("/label here")
        assert "! echo one" in await app.wait_for_text("Labeled")
        await app.press("escape")
        await app.wait_until_idle()
        assert sum("! echo one" in block for block in app.blocks) == 1


async def test_the_tree_shows_the_question_of_the_command(running: Running, talk: Session) -> None:
    async with running(session=talk) as app:
        for line, asked in (("/fork", "Fork from which entry?"), ("/cherry-pick", "/cherry-pick PLACE")):
            await app.submit(line)
            assert "Enter choose · Esc close" in await app.wait_for_text(asked)
            await app.press("escape")
            await app.wait_until(lambda: app.app.screen is app.chat)


async def test_a_session_with_a_deleted_file_can_be_forked(running: Running, talk: Session) -> None:
    async with running("Still here.", session=talk) as app:
        Path(talk.address or "").unlink()
        await app.submit("are you there?")
        assert await app.wait_for_text("✗ another program deleted the session file; use /fork to save")
        await app.wait_until(lambda: app.editor.text == "are you there?")
        assert sum("deleted the session file" in block for block in app.blocks) == 1
        app.editor.clear_text()
        await app.submit("/fork HEAD")
        await app.wait_for_text("Forked to session")
        await app.submit_and_wait("and now?")
        said = [block for block in app.blocks if block.startswith("user")]
        assert said == ["user: first question", "user: second question", "user: and now?"]


async def test_an_unwritable_file_is_reported_with_advice(
    running: Running, talk: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    denied = StoreError(f"{talk.address}.lock", "Permission denied")
    async with running(session=talk, size=(160, 30)) as app:
        app.chat.show_error(denied)
        assert app.blocks[-1] == f"error: {denied}", "permissions are not the cause"
        monkeypatch.setattr(os, "access", lambda path, mode: False)  # tests may run as root
        app.chat.show_error(denied)
        assert app.blocks[-1] == f"error: {denied}; use /fork to continue in a new session"


async def test_the_app_quits_if_the_session_file_was_deleted(running: Running, talk: Session) -> None:
    async with running(session=talk) as app:
        Path(talk.address or "").unlink()
        await app.press("ctrl+d")
        assert await app.wait_until(lambda: not app.app.is_running)
        assert "another program deleted the file" in str(app.app._exit_renderables)
        assert app.app.return_code == 0


async def test_fork_opens_a_new_session_at_the_entry_chosen_in_the_tree(running: Running, talk: Session) -> None:
    file = talk.file
    async with running(session=talk) as app:
        await app.submit("/fork")
        assert await app.wait_for_text("type to search")
        await app.press("up", "enter")
        await app.wait_until(lambda: app.app.controller.session.file != file)
        await app.wait_until(lambda: app.editor.text == "second question")
        assert await app.wait_for_text("first answer")


async def test_pop_returns_to_a_message_with_a_summary(running: Running, talk: Session) -> None:
    async with running("In short.", session=talk) as app:
        await app.submit("/pop")
        await app.wait_for_text("Go back to which message?", "second question", "first question")
        await app.press("enter")
        await app.wait_for_text("◆ Branch summary")
        assert app.editor.text == "second question"


async def test_long_output_opens_in_a_dialog(running: Running, talk: Session) -> None:
    for number in range(60):
        talk.label("HEAD", f"label {number}")
        talk.append(st.user(f"more {number}"))
    async with running(session=talk) as app:
        await app.submit("/label")
        assert await app.wait_for_text("Esc to close", "[label 0]")
        await app.press("escape")
        assert await app.wait_until(lambda: len(app.app.screen_stack) == 1)


async def test_an_exported_page_opens_in_the_browser_if_there_is_a_display(
    running: Running, talk: Session, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    async with running(session=talk) as app:
        monkeypatch.setattr(app.app, "open_url", opened.append)
        monkeypatch.setenv("DISPLAY", ":0")
        await app.submit("/export page.html")
        await app.wait_until(lambda: opened)

        assert opened == [(project / "page.html").as_uri()]
        assert (project / "page.html").exists()

        await app.submit("/export")
        await app.wait_until(lambda: len(opened) == 2)
        assert opened[1] == next(path for path in project.iterdir() if path.name != "page.html").as_uri()


# Other processes


async def test_another_process_is_reported_and_can_be_followed(running: Running, talk: Session) -> None:
    other = PresenceLock(talk)
    assert other.is_alone
    async with running(session=st.open(talk.file), ready=False) as app:
        await app.wait_for_text("Another process has this session open")
        await app.press("enter")
        await app.wait_until(app.app.ready.is_set)
        talk.append(st.user("written elsewhere"))
        await app.wait_for_text("written elsewhere")
    other.release()


async def test_a_shared_session_can_continue_on_a_new_branch(running: Running, talk: Session) -> None:
    other = PresenceLock(talk)
    async with running("In parallel.", session=st.open(talk.file), ready=False) as app:
        await app.wait_for_text("Another process")
        await app.press("down", "enter")
        await app.wait_until(app.app.model_found.is_set)
        await app.submit_and_wait("On my own")
        await app.wait_for_text("on parallel-2", "In parallel.")
        talk.refresh()
        assert talk.heads.current == "main"
        assert "On my own" not in str([entry.raw for entry in talk.head.path()])
    other.release()


async def test_the_new_branch_of_a_shared_session_moves_in_the_tree(running: Running, talk: Session) -> None:
    other, before = PresenceLock(talk), talk.heads.leaf
    async with running(session=st.open(talk.file), ready=False) as app:
        await app.wait_for_text("Another process")
        await app.press("down", "enter")
        await app.wait_until(app.app.model_found.is_set)
        await app.press("ctrl+t")
        await app.wait_for_text("on branch parallel-2", "[branch parallel-2] (parallel-2) ← active")
        await app.press("up", "up", "enter")
        await app.wait_for_text("Summarize the branch you're leaving?")
        await app.press("enter")
        await app.wait_until(lambda: app.editor.text == "second question")
        await app.wait_for_text("on parallel-2")
        talk.refresh()
        assert (talk.heads.current, talk.heads.leaf) == ("main", before)
        assert talk.branch("parallel-2").leaf == talk.tree.path(before)[-3].id
    other.release()


async def test_processes_sharing_a_session_have_separate_drafts(running: Running, talk: Session) -> None:
    other = PresenceLock(talk)
    DraftFile(talk).write(EditorDraft(text="typed there"))
    async with running(session=st.open(talk.file), ready=False) as app:
        await app.wait_for_text("Another process")
        await app.press("enter")
        await app.wait_until(app.app.model_found.is_set)
        assert app.editor.text == ""
        await app.type("typed here")
        await app.wait_until(lambda: DraftFile(talk, second=True).read().text == "typed here")
        assert DraftFile(talk).read().text == "typed there"
    other.release()


async def test_a_shared_session_can_be_opened_read_only(running: Running, talk: Session) -> None:
    other = PresenceLock(talk)
    async with running(session=st.open(talk.file), ready=False) as app:
        assert await app.wait_for_text("Another process")
        await app.press("down", "down", "enter")
        assert await app.wait_for_text("read-only")
        await app.wait_until(app.app.model_found.is_set)
        await app.submit("Hello")
        assert await app.wait_for_text("✗", "use /fork to continue in a new session")
    other.release()


async def test_a_prompt_to_a_session_of_another_program_is_one_error_and_stays_in_the_editor(running: Running) -> None:
    file = next((FIXTURES / "claude/subagent/projects/-project").glob("*.jsonl"))
    before = file.read_bytes()
    async with running(session=st.open(file)) as app:
        await app.submit("Hello")
        assert await app.wait_for_text("✗", "use /fork to continue in a new session")
        await app.wait_until(lambda: app.editor.text == "Hello")
        assert len([block for block in app.blocks if block.startswith("error")]) == 1
    assert file.read_bytes() == before


async def test_fork_is_not_suggested_if_the_session_cannot_be_forked(running: Running, talk: Session) -> None:
    assert talk.file is not None
    talk.file.write_bytes(talk.file.read_bytes().replace(b'"version":3', b'"version":9', 1))
    async with running(session=st.open(talk.file)) as app:
        await app.submit("Hello")
        await app.wait_until(lambda: app.blocks[-1].startswith("error: read-only: format version 9"))
        assert "/fork" not in app.blocks[-1]


@pytest.mark.parametrize("way", ["/resume talk", "ctrl+r"])
async def test_switching_to_a_shared_session_asks_how_to_open_it(running: Running, talk: Session, way: str) -> None:
    other = PresenceLock(talk)
    async with running("In parallel.") as app:
        if way == "ctrl+r":
            await app.press("ctrl+r")
            await app.wait_for_text("talk  4 messages")
            await app.press(*"talk", "enter")
        else:
            await app.submit(way)
        await app.wait_for_text("Another process has this session open")
        await app.press("down", "enter")
        await app.wait_for_text("on parallel-2", "second answer")
        await app.submit_and_wait("On my own")
        talk.refresh()
        assert talk.heads.current == "main"
    other.release()


async def test_escape_at_the_shared_session_question_keeps_the_current_session(running: Running, talk: Session) -> None:
    other = PresenceLock(talk)
    async with running("Yes.") as app:
        before = app.app.controller.session
        for key in ("escape", "ctrl+c"):
            await app.submit(f"/resume {talk.id}")
            await app.wait_for_text("Another process has this session open")
            await app.press(key)
            await app.wait_for_text("Cancelled. Nothing changed.")
            await app.wait_until_idle()
        assert app.app.controller.session is before
        assert is_session_open(before.location)
        other.release()
        assert not is_session_open(talk.location)
        await app.submit_and_wait("Still here?")


async def test_escape_at_the_shared_session_question_quits_if_the_session_was_requested(
    running: Running, talk: Session
) -> None:
    other = PresenceLock(talk)
    async with running(session=st.open(talk.file), ready=False) as app:
        await app.wait_for_text("Another process has this session open")
        await app.press("escape")
        await app.wait_until(lambda: not app.app.is_running)
    other.release()
    assert not is_session_open(talk.location)


async def test_escape_at_the_shared_session_question_returns_to_the_picker(running: Running, talk: Session) -> None:
    with st.create("Something else") as free:
        free.append(st.user("hello"))
    other = PresenceLock(talk)
    async with running(picks=True, ready=False) as app:
        for name in ("talk", "Something"):
            await app.wait_for_text("Sessions", "Something else")
            await app.press(*name)
            await app.wait_for_text("1 of 2")
            await app.press("enter")
            if name == "talk":
                await app.wait_for_text("Another process has this session open")
                await app.press("escape")
        await app.wait_until(app.app.ready.is_set)
        assert app.app.controller.session.id == free.id
    other.release()


async def test_the_current_session_can_be_reopened(running: Running, talk: Session) -> None:
    async with running(session=st.open(talk.file)) as app:
        await app.submit(f"/resume {talk.id}")
        await app.wait_for_text("Opened session")
        assert is_session_open(talk.location)
        other = PresenceLock(talk)
        await app.submit(f"/resume {talk.id}")
        await app.wait_for_text("Another process has this session open")
        await app.press("escape")
        await app.wait_for_text("Cancelled. Nothing changed.")
        other.release()
        assert is_session_open(talk.location)
    assert not is_session_open(talk.location)


async def test_switching_sessions_moves_the_presence_lock(running: Running, talk: Session) -> None:
    async with running(session=st.open(talk.file)) as app:
        assert is_session_open(talk.location)
        await app.submit("/clone")
        await app.wait_for_text("Forked to session")
        assert (is_session_open(talk.location), is_session_open(app.app.controller.session.location)) == (False, True)


async def test_entries_of_other_processes_are_shown(running: Running, talk: Session) -> None:
    async with running(session=st.open(talk.file)) as app:
        talk.append(st.user("from another program"))
        assert await app.wait_for_text("▌ from another program", "Another process is writing")


# Which sessions are kept


async def test_a_new_session_without_messages_is_deleted_on_exit(running: Running) -> None:
    session = st.create()
    async with running(session=session, fresh=True) as app:
        await app.type("a draft")
        await app.press("ctrl+c")
        await app.press("ctrl+d")
        await app.wait_until(lambda: not app.app.is_running)

    assert session.file is not None
    assert not session.file.exists()


async def test_a_new_session_without_messages_is_deleted_when_switching(running: Running, talk: Session) -> None:
    session = st.create()
    async with running(session=session, fresh=True) as app:
        await app.submit(f"/resume {talk.id}")
        await app.wait_until(lambda: app.app.controller.session.id == talk.id)
        await app.wait_until_idle()
        await app.submit("/new")
        await app.wait_until(lambda: app.app.controller.session.id != talk.id)
        await app.wait_until_idle()
        await app.press("ctrl+d")
        await app.wait_until(lambda: not app.app.is_running)

    assert [summary.id for summary in st.sessions()] == [talk.id]


async def test_a_new_session_written_by_another_process_is_kept(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessiontree.tui.app.REFRESH_SECONDS", 3600.0)  # no refresh during the test
    session = st.create()
    async with running(session=session, fresh=True) as app:
        with st.open(session.location) as other:
            other.append(st.user("said elsewhere"))
        await app.press("ctrl+d")
        await app.wait_until(lambda: not app.app.is_running)

    assert [summary.first_message for summary in st.sessions()] == ["said elsewhere"]


@pytest.mark.parametrize("left", ["/new", "/quit"])
async def test_a_new_session_open_in_another_process_is_kept(running: Running, left: str) -> None:
    session = st.create()
    async with running(session=session, fresh=True) as app:
        with st.open(session.location) as other:
            mark = PresenceLock(other)
            await app.submit(left)
            await app.wait_until(lambda: app.app.controller.session is not session or not app.app.is_running)
            mark.release()
            other.append(st.user("said later"))

    assert "said later" in [summary.first_message for summary in st.sessions()]


async def test_a_new_session_with_a_message_is_kept(running: Running) -> None:
    session = st.create()
    async with running("Yes.", session=session, fresh=True) as app:
        await app.submit_and_wait("Hello")
        await app.press("ctrl+d")
        await app.wait_until(lambda: not app.app.is_running)

    assert session.file is not None
    assert session.file.exists()


async def test_the_session_picker_opens_at_startup(running: Running, talk: Session, project: Path) -> None:
    from sessiontree.model.scripted import ScriptedModel
    from sessiontree.tui.app import AppOptions, SessionApp

    from .conftest import Driver, ScriptedModels

    model = ScriptedModel()
    app = SessionApp(AppOptions(session=None, cwd=str(project)), models=ScriptedModels(model))
    async with app.run_test(size=(100, 30)) as pilot:
        driver = Driver(app, pilot, model)
        assert await driver.wait_for_text("Sessions", "talk")
        await driver.press("enter")
        assert await driver.wait_for_text("second answer")


async def test_a_missing_model_is_reported_unless_it_was_never_known(running: Running) -> None:
    class Usual(ScriptedModels):
        def find(self, name: str | None = None) -> Model:
            if name is not None:
                raise NotFound("model", name)
            return super().find(name)

    def create_session_with(provider: str) -> Session:
        session = st.create()
        session.append(st.user("Hi"))
        session.append(st.assistant("Ho", provider=provider, model="x"))
        return session

    async with running(session=create_session_with("vanished"), models=Usual(ScriptedModel())) as app:
        await app.wait_until(
            lambda: [each for each in app.app._notifications if "using the default model" in each.message]
        )
    async with running(session=create_session_with("unknown"), models=Usual(ScriptedModel())) as app:
        await app.pilot.pause()
        assert app.app.controller.model is not None
        assert not list(app.app._notifications)


async def test_damage_is_reported(running: Running, talk: Session) -> None:
    assert talk.file is not None
    talk.file.write_bytes(talk.file.read_bytes() + b"{not json}\n")
    async with running(session=st.open(talk.file)) as app:
        await app.wait_for_text("✗ not an entry", "sessiontree doctor`")


async def test_the_user_is_asked_to_trust_a_project_at_startup(running: Running, project: Path) -> None:
    folder = project / ".sessiontree" / "extensions"
    folder.mkdir(parents=True)
    (folder / "mark.py").write_text("open('ran', 'w')\ndef setup(api): pass\n")

    async with running(ready=False) as app:
        await app.wait_for_text("Trust this project", "extensions/mark.py")
        assert not Path("ran").exists()
        await app.press("y")
        await app.wait_until(Path("ran").exists)


PAGE = Path(__file__).parents[2] / "docs" / "command.md"


async def test_every_command_of_the_app_is_documented(running: Running) -> None:
    text = PAGE.read_text()

    async with running() as app:
        assert [command.name for command in app.app.controller.commands if f"`/{command.name}" not in text] == []


def test_the_command_to_continue_opens_the_same_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with st.create(name="here") as found, st.create(file="a poem.jsonl") as elsewhere:
        found.append(st.user("Hello"))
        elsewhere.append(st.user("Hello"))

        assert find_resume_command(found.location) == "sessiontree -c"
        assert find_resume_command(elsewhere.location) == f"sessiontree chat --session '{elsewhere.location}'"
