"""Dialogs, and the `Ui` with which commands, handlers and extensions ask questions."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from textual import events
from textual.screen import ModalScreen
from textual.widgets import Button, Static

import sessiontree as st
from sessiontree.config import Config
from sessiontree.core.entries import Custom, CustomMessage
from sessiontree.hooks.bus import Hooks
from sessiontree.slash_commands.models import ConfiguredModels

from .conftest import Driver, Running


def open_dialog(app: Driver, *question: str) -> asyncio.Task[str | None]:
    return asyncio.create_task(app.app.ui.editor(*question))


async def test_ctrl_c_copies_the_selection_and_keeps_the_text(running: Running) -> None:
    async with running() as app:
        answer = open_dialog(app, "Summary?")
        await app.wait_for_text("Summary?")
        await app.press(*"begun", "ctrl+c")
        assert app.app.clipboard == ""
        await app.press("shift+left", "shift+left", "ctrl+c", "ctrl+s")

        assert await answer == "begun"
        assert app.app.clipboard == "un"


async def test_a_cancelled_text_is_restored_the_next_time(running: Running) -> None:
    async with running() as app:
        given_up: list[Any] = []
        for words in ("one", " two"):
            answer = open_dialog(app, "Summary?")
            await app.wait_for_text("Summary?")
            await app.press(*words, "escape")
            given_up.append(await answer)
        other = open_dialog(app, "Another?")
        await app.wait_for_text("Another?")
        await app.press("ctrl+s")
        again = open_dialog(app, "Summary?")
        await app.wait_for_text("one two")
        await app.press("ctrl+s")
        anew = open_dialog(app, "Summary?")
        await app.wait_for_text("Summary?")
        await app.press("ctrl+s")

        assert given_up == [None, None]
        assert (await other, await again, await anew) == ("", "one two", "")


async def test_a_given_text_is_not_replaced_by_a_cancelled_one(running: Running) -> None:
    async with running() as app:
        for _ in range(2):
            answer = open_dialog(app, "Text?", "given")
            await app.wait_for_text("Text?", "given")
            assert "changed" not in app.screen
            await app.press(*"changed", "escape")
            assert await answer is None


def open_question(app: Driver, question: Any) -> asyncio.Task[Any]:
    """Start a question and return its task."""
    return asyncio.create_task(question)


async def test_an_option_is_selected_by_searching(running: Running) -> None:
    async with running() as app:
        answer = open_question(app, app.app.ui.select("Which?", ["apple pie", "plum cake", "apple cake"]))
        await app.wait_for_text("Which?", "apple pie", "plum cake")
        await app.press(*"cake", "space", *"app")
        await app.wait_until(lambda: "plum" not in app.screen)
        await app.press("enter")

        assert await answer == "apple cake"


async def test_the_select_dialog_starts_at_the_given_option(running: Running) -> None:
    async with running() as app:
        answer = open_question(app, app.app.ui.select("Which?", ["a", "b", "c"], at="b"))
        await app.wait_for_text("Which?")
        await app.press("enter")
        assert await answer == "b"

        answer = open_question(app, app.app.ui.select("And then?", ["a", "b", "c"], at="z"))
        await app.wait_for_text("And then?")
        await app.press("enter")
        assert await answer == "a"


async def test_the_thinking_dialog_starts_at_the_current_level(running: Running) -> None:
    async with running(settings=Config(thinking="medium")) as app:
        await app.submit("/thinking")
        await app.wait_for_text("Thinking level")
        await app.press("down", "enter")
        assert await app.wait_for_text("Thinking level: high")


@pytest.mark.parametrize("key", ["escape", "ctrl+c"])
async def test_a_cancelled_question_returns_none(running: Running, key: str) -> None:
    async with running() as app:
        for question in (app.app.ui.select("Q", ["a"]), app.app.ui.input("Q"), app.app.ui.editor("Q")):
            answer = open_question(app, question)
            await app.wait_until(lambda: len(app.app.screen_stack) == 2)
            await app.press(key)
            assert await answer is None


@pytest.mark.parametrize(("key", "default", "yes"), [("y", False, True), ("n", True, False), ("enter", True, True)])
async def test_confirm_returns_the_answer(running: Running, key: str, default: bool, yes: bool) -> None:
    async with running() as app:
        answer = open_question(app, app.app.ui.confirm("Really?", "It is [bold]serious[/].", default=default))
        await app.wait_for_text("Really?", "It is [bold]serious[/].")
        await app.press(key)

        assert await answer is yes


async def test_input_and_editor_return_their_text(running: Running) -> None:
    async with running() as app:
        answer = open_question(app, app.app.ui.input("Name?", placeholder="such as Ann"))
        await app.wait_for_text("such as Ann")
        await app.press(*"Bob", "enter")
        assert await answer == "Bob"

        answer = open_question(app, app.app.ui.editor("Text?", "one"))
        await app.wait_for_text("Text?", "one")
        await app.press("enter", *"two", "ctrl+s")
        assert await answer == "one\ntwo"


async def test_cancelling_the_caller_closes_the_question(running: Running) -> None:
    async with running() as app:
        answer = open_question(app, app.app.ui.select("Which?", ["a", "b"]))
        assert await app.wait_for_text("Which?")
        answer.cancel()
        assert await app.wait_until(lambda: len(app.app.screen_stack) == 1)


async def test_statuses_stay_in_the_footer_until_removed(running: Running) -> None:
    async with running() as app:
        app.app.ui.status("build", "building \x1b[31m")
        assert await app.wait_for_text("building \\x1b[31m")
        app.app.ui.status("build", None)
        assert await app.wait_until(lambda: "building" not in app.screen)


async def test_notifications_do_not_cover_the_editor_the_footer_or_the_last_message(running: Running) -> None:
    async with running(*["It is. " * 40] * 3, size=(80, 24)) as app:
        for question in ("Is it?", "Really?", "And now?"):
            await app.submit_and_wait(question)
        await app.type("Then I will")
        before = app.screen.splitlines()

        app.app.ui.notify("something long that one should know of, " * 4, "warning")
        after = (await app.wait_for_text("should know of")).splitlines()

        assert after[8:-1] == before[8:-1]
        assert after[-1].endswith("scripted")


async def test_notifications_do_not_cover_the_search_input(running: Running) -> None:
    async with running(size=(80, 24)) as app:
        await app.press("ctrl+r")
        await app.wait_for_text("Sessions · 1 of 1", "Search names")
        before = app.screen.splitlines()

        app.app.ui.notify("something long that one should know of, " * 4, "warning")
        after = (await app.wait_for_text("should know of")).splitlines()

        assert after[:2] == before[:2]
        assert after[-2:] == before[-2:]


async def test_notify_works_from_a_thread(running: Running) -> None:
    async with running() as app:
        thread = threading.Thread(target=lambda: app.app.ui.notify("from [afar]", "warning"))
        thread.start()
        assert await app.wait_for_text("from [afar]")
        thread.join()


class Pick(ModalScreen[str]):
    def compose(self) -> Any:
        yield Button("press me")

    def on_button_pressed(self) -> None:
        self.dismiss("pressed")


class Field(Static, can_focus=True):
    def key_x(self) -> None:
        self.screen.dismiss("x was pressed")


async def test_a_custom_screen_or_widget_keeps_the_focus_until_dismissed(running: Running) -> None:
    async with running() as app:
        answer = open_question(app, app.app.ui.custom(Pick()))
        await app.wait_for_text("press me")
        await app.press("enter")
        assert await answer == "pressed"

        answer = open_question(app, app.app.ui.custom(Field("my own")))
        await app.wait_for_text("my own")
        await app.press("x")
        assert await answer == "x was pressed"

        with pytest.raises(TypeError, match="expected a Textual screen or widget, got int"):
            await app.app.ui.custom(1)


EXTENSION = """
import sys

from rich.text import Text

class Odd:
    def __rich_console__(self, console, options):
        yield 1 / 0

def setup(api):
    api.register_renderer("plain", lambda entry: f"**shown** {entry.body.content}")
    api.register_renderer("rich", lambda entry: Text("drawn by Rich \\x1b[2J"))
    api.register_renderer("bad", lambda entry: 1 / 0)
    api.register_renderer("size", lambda entry: entry.body.data)
    api.register_renderer("number", lambda entry: len(entry.body.content))
    api.register_renderer("odd", lambda entry: Odd())
    api.register_renderer("end", lambda entry: sys.exit(1))

    @api.register_command("ask")
    async def ask(text, ctx):
        "Asks"
        api.ui.notify(f"you chose {await ctx.ui.select('Colour?', ['red', 'blue'])}")

    @api.register_shortcut("f7", help="says hello")
    async def hello(ctx):
        api.ui.notify("hello from f7")
"""


FAILING = """
import sys
import threading

from sessiontree.errors import InvalidOperation

released = threading.Event()

def setup(api):
    @api.register_shortcut("f7", help="fails")
    async def fail(ctx):
        raise InvalidOperation("it is broken")

    @api.register_shortcut("f8", help="asks")
    async def ask(ctx):
        ctx.ui.notify(f"you chose {await ctx.ui.select('Colour?', ['red', 'blue'])}")

    @api.register_shortcut("f9", help="ends")
    def end(ctx):
        sys.exit(4)

    @api.register_command("deploy", complete=lambda controller, begun: 1 / 0)
    def deploy(text, ctx):
        "Deploys"
        sys.exit(3)

    @api.register_command("wait", complete=lambda controller, begun: released.wait() and [])
    def wait(text, ctx):
        "Lets go of what waits"
        released.set()

    @api.register_command("odd")
    async def odd(text, ctx):
        "Shows what is no text"
        ctx.ui.status("n", 17)
        ctx.ui.notify(18)
        picked = await ctx.ui.select(19, [20, 21])
        ctx.ui.notify(f"of {picked} confirmed {await ctx.ui.confirm(22, 23)}")
        ctx.ui.notify(f"so {await ctx.ui.input(24, placeholder=25)} and {await ctx.ui.editor(26, 27)}")
"""


async def test_an_extension_can_render_entries_ask_and_bind_keys(running: Running, project: Path) -> None:
    (project / "mine.py").write_text(EXTENSION)
    session = st.create()
    for kind in ("plain", "rich", "bad"):
        session.append(CustomMessage(custom_type=kind, content=f"words of {kind}"))
    async with running(session=session, extensions=("mine.py",)) as app:
        assert await app.wait_for_text(
            "shown words of plain", "drawn by Rich \\x1b[2J", "words of bad", "renderer failed"
        )
        await app.press("f7")
        assert await app.wait_for_text("hello from f7")
        await app.submit("/ask")
        assert await app.wait_for_text("Colour?")
        await app.press("down", "enter")
        assert await app.wait_for_text("you chose blue")
        await app.press("f1")
        assert await app.wait_for_text("Keys")
        await app.press("end")
        assert await app.wait_for_text("mine               says hello")


async def test_a_component_that_cannot_be_drawn_is_shown_as_text(running: Running, project: Path) -> None:
    (project / "mine.py").write_text(EXTENSION)
    session = st.create()
    session.append(Custom(custom_type="size", data=17))
    for kind in ("number", "odd", "end"):
        session.append(CustomMessage(custom_type=kind, content=f"words of {kind}"))
    async with running(session=session, extensions=("mine.py",)) as app:
        assert await app.wait_for_text(
            "size\n   17", "words of number", "cannot draw the result of the renderer: NotRenderableError"
        )
        assert await app.wait_for_text(
            "words of odd",
            "cannot draw the result of the renderer: ZeroDivisionError",
            "renderer failed: SystemExit: 1",
        )


async def test_a_repeated_error_of_a_shortcut_is_shown_again(running: Running, project: Path) -> None:
    (project / "mine.py").write_text(FAILING)
    async with running(extensions=("mine.py",)) as app:
        await app.wait_until(lambda: any(worker.group == "watch" for worker in app.app.workers))
        for count in (1, 2):
            await app.press("f7")
            await app.wait_until(lambda count=count: sum("it is broken" in block for block in app.blocks) == count)


async def test_errors_in_an_extension_do_not_stop_the_app(running: Running, project: Path) -> None:
    (project / "mine.py").write_text(FAILING)
    async with running(extensions=("mine.py",)) as app:
        await app.wait_until(lambda: any(worker.group == "watch" for worker in app.app.workers))
        await app.press("f9")
        await app.wait_for_text("extension mine: f9 failed with SystemExit: 4")
        await app.submit("/deploy")
        await app.wait_for_text("extension mine: /deploy failed with SystemExit: 3")
        app.editor.clear_text()
        for letter in "/deploy ab":
            await app.type(letter)
        failed = "extension mine: the completion of /deploy failed with ZeroDivisionError: division by zero"
        await app.wait_until(lambda: f"error: {failed}" in app.blocks)
        await app.type("c")
        await app.wait_until(lambda: not any(worker.group == "completion" for worker in app.app.workers))
        assert app.blocks.count(f"error: {failed}") == 1


async def test_a_shortcut_can_ask_a_question(running: Running, project: Path) -> None:
    (project / "mine.py").write_text(FAILING)
    async with running(extensions=("mine.py",)) as app:
        await app.wait_until(lambda: any(worker.group == "watch" for worker in app.app.workers))
        app.app.post_message(events.Key("f8", None))  # do not wait, the action never returns
        await app.wait_for_text("Colour?")
        await app.press("down", "enter")
        assert await app.wait_for_text("you chose blue")


async def test_a_hanging_completion_blocks_nothing_else(running: Running, project: Path) -> None:
    (project / "mine.py").write_text(FAILING)
    async with running(extensions=("mine.py",)) as app:
        await app.wait_until(lambda: any(worker.group == "watch" for worker in app.app.workers))
        for letter in f"/wait {'x' * 40}":
            await app.type(letter)
        async with asyncio.timeout(60):
            await asyncio.to_thread(str)
        await app.press("enter")
        await app.wait_until(lambda: not app.editor.text)


async def test_values_shown_by_an_extension_are_converted_to_text(running: Running, project: Path) -> None:
    (project / "mine.py").write_text(FAILING)
    async with running(extensions=("mine.py",)) as app:
        await app.wait_until(lambda: any(worker.group == "watch" for worker in app.app.workers))
        await app.submit("/odd")
        await app.wait_for_text("19", "20", "21")
        await app.press("down", "enter")
        await app.wait_for_text("22", "23", "[y/N]")
        await app.press("y")
        await app.wait_for_text("24", "25")
        await app.press("x", "enter")
        await app.wait_for_text("26", "27")
        await app.press("ctrl+s")
        assert await app.wait_for_text("17", "of 21 confirmed True", "so x and 27")


async def test_a_changed_extension_is_reloaded(running: Running, project: Path) -> None:
    says = "def setup(api):\n    api.on('session_start', lambda event, ctx: ctx.ui.notify('{}'))\n"
    file = project / "mine.py"
    file.write_text(says.format("first form"))
    async with running(extensions=("mine.py",)) as app:
        await app.wait_until(lambda: any(worker.group == "watch" for worker in app.app.workers))
        for _ in range(20):  # until the watcher has started
            file.write_text(says.format("second form"))
            await asyncio.sleep(0.3)
            if "second form" in app.screen:
                break
        assert await app.wait_for_text("second form")


async def test_a_missing_extension_is_reported(running: Running) -> None:
    async with running(extensions=("nowhere.py",)) as app:
        assert await app.wait_for_text("nowhere.py")


async def test_keys_open_their_screens(running: Running) -> None:
    async with running() as app:
        await app.press("ctrl+l")
        assert await app.wait_for_text("Model", "scripted:scripted (current)", "scripted:other")
        await app.press("escape")
        await app.press("shift+tab")
        assert await app.wait_for_text("thinking minimal")
        await app.press("f1")
        assert await app.wait_for_text("Keys")
        await app.press("escape")
        assert await app.wait_until(lambda: len(app.app.screen_stack) == 1)


async def test_the_selected_option_is_visible_without_colors(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with running() as app:
        asked = asyncio.create_task(app.app.ui.select("Which?", ["one", "two"]))
        await app.wait_for_text("Which?", "two")
        strips = app.app.screen._compositor.render_strips(app.app.size)
        looks = {
            segment.text.strip(): segment.style and segment.style.underline
            for strip in strips
            for segment in strip
            if segment.text.strip() in ("one", "two")
        }
        assert looks == {"one": True, "two": None}
        await app.press("escape")
        await asked


async def test_the_chosen_model_becomes_the_default_and_sessions_keep_theirs(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    models = ConfiguredModels(Config(), Hooks())
    first = st.create()
    async with running(models=models, session=first, model="openai:gpt-4.1") as app:
        await app.submit("/model openai:gpt-6-sol")
        await app.wait_for_text("Model: openai:gpt-6-sol")
        await app.submit("/model")
        assert await app.wait_for_text("openai:gpt-6-sol  (current)", "openai:chatgpt-4o-latest")
        await app.press("escape")

    async with running(models=models) as app:
        assert app.app.controller.model.info.name == "openai:gpt-6-sol"
        await app.submit("/model openai:gpt-5.4")
        await app.wait_for_text("Model: openai:gpt-5.4")

    async with running(models=models, session=st.open(first.file)) as app:
        assert app.app.controller.model.info.name == "openai:gpt-6-sol"
