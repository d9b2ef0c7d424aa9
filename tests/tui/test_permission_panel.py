"""The question panel takes no key that was meant for the editor."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from textual import events

from sessiontree.agent.permission_rules import read_user_rules
from sessiontree.config import Config, PermissionSettings
from sessiontree.core.messages import ToolCall
from sessiontree.home import get_home
from sessiontree.tui.widgets.permission_panel import GRACE_SECONDS

from .conftest import Driver, Running

T = TypeVar("T")
REMOVE = [ToolCall("c1", "bash", {"command": "rm -rf precious"})]


@pytest.fixture
def precious(project: Path) -> Path:
    folder = project / "precious"
    folder.mkdir()
    return folder


class Time:
    """A clock that tests advance."""

    def __init__(self, app: Driver) -> None:
        self.now = 0.0
        self._panel = app.chat.permission
        self._panel.clock = lambda: self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self._panel.check_focus()


async def ask_for_permission(app: Driver) -> Time:
    """Start a run whose tool call needs permission, and wait for the question."""
    time = Time(app)
    await app.submit("tidy up")
    await app.wait_for_text("Allow bash?", "rm -rf precious", "Allow once")
    time.advance(0)  # the question is visible now
    return time


async def wait_for_panel(app: Driver) -> Time:
    """Wait until the panel has taken the focus."""
    time = await ask_for_permission(app)
    time.advance(GRACE_SECONDS)
    await app.wait_until(lambda: app.chat.permission.has_focus)
    return time


async def test_letters_typed_when_the_question_appears_go_to_the_editor(running: Running, precious: Path) -> None:
    async with running(REMOVE, "Done.") as app:
        time = await ask_for_permission(app)
        await app.press(*"yes")
        time.advance(10)
        await app.press("y", "1", "2")
        await app.wait_until(lambda: app.editor.text == "yesy12")

        assert app.chat.permission.question is not None
        assert precious.exists()


async def test_enter_right_after_the_question_appears_is_not_an_answer(running: Running, precious: Path) -> None:
    async with running(REMOVE, "Done.") as app:
        time = await ask_for_permission(app)
        time.advance(GRACE_SECONDS / 2)
        await app.press("enter", "down", "enter")

        assert app.chat.permission.question is not None
        assert precious.exists()


async def test_a_key_press_restarts_the_grace_period(running: Running, precious: Path) -> None:
    async with running(REMOVE, "Done.") as app:
        time = await ask_for_permission(app)
        time.advance(GRACE_SECONDS / 2)
        await app.press("a", "backspace")
        time.advance(GRACE_SECONDS * 0.9)
        await app.pilot.pause()
        assert app.editor.has_focus
        time.advance(GRACE_SECONDS)
        await app.wait_until(lambda: app.chat.permission.has_focus)


async def test_a_draft_keeps_the_focus_until_the_panel_key_is_pressed(running: Running, precious: Path) -> None:
    async with running(REMOVE, "Done.") as app:
        time = await ask_for_permission(app)
        await app.press(*"half a", "space")
        time.advance(100)
        await app.pilot.pause()
        assert app.editor.has_focus
        await app.press("alt+p", "enter")
        await app.wait_until_idle()

        assert not precious.exists()
        assert app.editor.text == "half a "
        assert app.editor.has_focus


async def test_the_panel_key_of_a_terminal_that_sends_a_letter_with_it_types_nothing(
    running: Running, precious: Path
) -> None:
    async with running(REMOVE, "Done.") as app:
        await ask_for_permission(app)
        await app.press(*"half a")
        app.app.post_message(events.Key("alt+p", "p"))  # as Textual reads it from tmux and xterm
        await app.wait_until(lambda: app.chat.permission.has_focus)

        assert app.editor.text == "half a"
        assert precious.exists()


async def test_enter_allows_once_after_the_grace_period(running: Running, precious: Path) -> None:
    async with running(REMOVE, REMOVE, "Done.") as app:
        await wait_for_panel(app)
        await app.press("enter")
        await app.wait_until(lambda: not precious.exists())
        await app.wait_for_text("Allow bash?")  # the same call again
        app.chat.controller.abort()
        await app.wait_until_idle()


async def test_escape_denies_the_tool_call(running: Running, precious: Path) -> None:
    async with running(REMOVE, "As you like.") as app:
        await wait_for_panel(app)
        await app.press("escape")
        await app.wait_until_idle()

        assert precious.exists()
        assert "denied by the user" in str(app.model.requests[-1].messages[-1])


async def test_a_letter_typed_in_the_panel_goes_to_the_editor(running: Running, precious: Path) -> None:
    async with running(REMOVE, "Done.") as app:
        await wait_for_panel(app)
        await app.press("y", "e", "s")

        assert app.editor.text == "yes"
        assert app.editor.has_focus
        assert app.chat.permission.question is not None
        assert precious.exists()


async def test_allowing_for_the_session_does_not_ask_again(running: Running, precious: Path) -> None:
    async with running(REMOVE, REMOVE, "Done.") as app:
        await wait_for_panel(app)
        await app.press("down", "enter")
        await app.wait_until_idle()

        assert len(app.model.requests) == 3
        assert app.chat.permission.question is None


async def test_always_allow_is_written_to_the_user_rules(running: Running, precious: Path, project: Path) -> None:
    async with running(REMOVE, "Done.") as app:
        await wait_for_panel(app)
        await app.press("down", "down", "enter")
        await app.wait_until_idle()

    assert read_user_rules(get_home()).folders[str(project)].allow == ("bash:rm -rf precious",)


async def test_the_reason_for_declining_is_sent_to_the_model(running: Running, precious: Path) -> None:
    async with running(REMOVE, "I see.") as app:
        await wait_for_panel(app)
        await app.press("up", "enter")
        await app.wait_for_text("Reason (sent to the model)")
        await app.press(*"keep", "enter")
        await app.wait_until_idle()

        assert "denied by the user: keep" in str(app.model.requests[-1].messages[-1])


async def test_aborting_the_run_removes_the_question(running: Running, precious: Path) -> None:
    async with running(REMOVE, "Done.") as app:
        await ask_for_permission(app)
        await app.press("escape")
        await app.wait_until_idle()

        assert app.chat.permission.question is None
        assert "Allow bash?" not in app.screen
        assert precious.exists()


async def test_a_long_call_can_be_shown_in_full(running: Running, project: Path) -> None:
    command = "\n".join(f"echo {number}" for number in range(40)) + "\nrm -rf precious"
    async with running([ToolCall("c1", "bash", {"command": command})], "Done.", size=(100, 40)) as app:
        time = Time(app)
        await app.submit("go")
        await app.wait_for_text("Allow bash?", "more lines")
        time.advance(0)
        time.advance(GRACE_SECONDS)
        await app.wait_until(lambda: app.chat.permission.has_focus)
        await app.press("up", "enter")
        await app.wait_for_text("echo 20")


async def test_all_answers_to_a_long_call_are_visible_in_a_small_terminal(running: Running, project: Path) -> None:
    steps = [{"text": f"step {number}", "status": "pending"} for number in range(5)]
    command = "\n".join(f"echo {'日本' * 60} {number}" for number in range(40))
    calls = [ToolCall("c1", "todo", {"items": steps})], [ToolCall("c2", "bash", {"command": command})]
    async with running(*calls, "Done.", size=(80, 24)) as app:
        time = Time(app)
        await app.submit("go")
        await app.wait_for_text("Allow bash?", "more lines")
        time.advance(0)
        time.advance(GRACE_SECONDS)
        shown = await app.wait_for_text("Enter to answer", "ask")
        for text in ("Allow once", "Allow for this session", "No, and tell", "Show the whole call", "Type a message"):
            assert text in shown
        assert app.app.screen.max_scroll_y == 0  # the whole screen fits
        await app.press("down")  # the rule of the chosen answer is shown in full
        await app.wait_for_text("Show the whole call", "Type a message")
        app.chat.controller.abort()
        await app.wait_until_idle()


async def test_a_question_covered_by_a_screen_waits_until_visible(running: Running, precious: Path) -> None:
    async with running(REMOVE, "Done.") as app:
        time = Time(app)
        await app.submit("tidy up")
        await app.wait_until(lambda: app.chat.permission.question is not None)
        await app.press("ctrl+t")
        await app.wait_until(lambda: app.app.screen is not app.chat)
        time.advance(100)
        await app.press("escape")
        await app.wait_until(lambda: app.app.screen is app.chat)
        time.advance(0)
        await app.press("enter")

        assert precious.exists()
        assert app.chat.permission.question is not None


async def test_user_rules_decide_without_a_question(running: Running, precious: Path) -> None:
    settings = Config(permissions=PermissionSettings(allow=("bash:rm *",)))
    async with running(REMOVE, "Done.", settings=settings) as app:
        await app.submit_and_wait("tidy up")

        assert not precious.exists()


# Questions of extensions


def ask(app: Driver, question: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    return asyncio.create_task(question)


@pytest.mark.parametrize("draft", ["half a sentence", ""])
async def test_an_extension_question_is_not_answered_by_keys_for_the_editor(running: Running, draft: str) -> None:
    async with running("Done.") as app:
        time = Time(app)
        await app.press(*("x", *draft.replace(" ", "_")))
        answer = ask(app, app.app.ui.confirm("Delete all?", "It cannot be undone.", default=True))
        await app.wait_for_text("Delete all?", "It cannot be undone.", "Yes")
        time.advance(0)
        await app.press("y", "e", "n", "enter")

        assert not answer.done()
        assert app.chat.permission.question is not None
        sent = f"user: x{draft.replace(' ', '_')}yen"
        await app.wait_until(lambda: sent in app.blocks)
        await app.press("alt+p", "down", "enter")
        assert await answer is False


async def test_an_extension_question_after_a_prompt_ignores_keys_during_the_grace_period(running: Running) -> None:
    async with running("Done.") as app:
        time = Time(app)
        await app.submit_and_wait("Hello")
        answer = ask(app, app.app.ui.select("Colour?", ["red", "blue"]))
        await app.wait_for_text("Colour?", "blue")
        time.advance(0)
        await app.press("b", "backspace")
        assert not answer.done()
        time.advance(GRACE_SECONDS)
        time.advance(GRACE_SECONDS)
        await app.wait_until(lambda: app.chat.permission.has_focus)
        await app.press("down", "enter")
        assert await answer == "blue"


async def test_a_text_dialog_is_announced_while_the_user_types(running: Running) -> None:
    async with running() as app:
        await app.press(*"dra")
        answer = ask(app, app.app.ui.input("Name?"))
        many = ask(app, app.app.ui.select("Number?", [str(number) for number in range(100)]))
        await app.wait_for_text("Name?", "Answer")
        await app.press("f", "t", "alt+p", "enter")
        await app.wait_until(lambda: app.app.screen is not app.chat)
        await app.press(*"Ann", "enter")
        assert await answer == "Ann"
        assert app.editor.text == "draft"
        await app.wait_for_text("Number?", "Answer")
        await app.press("alt+p", "escape")
        assert await many is None


async def test_a_user_command_asks_immediately(running: Running) -> None:
    async with running() as app:
        await app.press(*"/thinking", "escape", "enter")
        await app.wait_until(lambda: app.app.screen is not app.chat)
        await app.press("escape")
