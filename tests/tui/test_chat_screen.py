"""The chat screen: prompts, answers, queue, shell commands and drafts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from textual import events

import sessiontree as st
from sessiontree.agent.tools.file_access import MAX_IMAGE_FILE_BYTES
from sessiontree.config import CompactionSettings, Config, RetrySettings
from sessiontree.core.entries import BranchSummary, CustomMessage
from sessiontree.core.entry_text import format_entry
from sessiontree.core.messages import ToolCall, extract_text
from sessiontree.model.base import ModelError
from sessiontree.model.scripted import INFO, Delay, ScriptedModel, ScriptedUsage, Thinking
from sessiontree.session import Session
from sessiontree.slash_commands.models import Models
from sessiontree.tui.app import SessionApp
from sessiontree.tui.screens import chat_screen
from sessiontree.tui.services.input import DraftFile, EditorDraft
from sessiontree.tui.widgets.transcript_blocks import TranscriptBlock
from tests.store.test_file_operations import limit_file_size

from .conftest import Driver, NoModels, Running, ScriptedModels


async def test_prompt_and_answer_are_shown_and_written(running: Running) -> None:
    async with running("It is **forty-two**.") as app:
        await app.submit_and_wait("What is it?")

        await app.wait_for_text("What is it?", "It is forty-two.")
        assert app.editor.text == ""
        assert [entry.type for entry in app.app.controller.branch.path()] == ["model_change", "message", "message"]


async def test_an_answer_is_shown_while_it_streams(running: Running) -> None:
    async with running(["The beginning ", Delay(30), "and the end."]) as app:
        await app.submit("Tell")

        assert await app.wait_for_text("The beginning", "working", "Esc to abort")
        await app.press("escape")
        await app.wait_until_idle()
        assert await app.wait_for_text("The beginning", "aborted")


async def test_thoughts_and_tool_output_can_be_expanded(running: Running) -> None:
    call = ToolCall("c", "bash", {"command": "seq 1 30"})
    async with running([Thinking("first line\nsecond thought"), call], "Done.", size=(80, 60), allow=("bash",)) as app:
        await app.submit_and_wait("Count")

        await app.wait_for_text("✻ thinking: first line second thought", "$ seq 1 30", "… 25 more lines", "30", "Done.")
        assert "\n  second thought" not in app.screen
        await app.press("ctrl+o")
        await app.wait_for_text("\n   second thought", " 13\n")
        assert "more lines" not in app.screen
        await app.press("ctrl+o")
        await app.wait_for_text("… 25 more lines")


async def test_a_single_block_can_be_expanded(running: Running) -> None:
    first, second = (ToolCall(name, "bash", {"command": f"echo {name}; seq 1 20"}) for name in "ab")
    async with running([first, second], "Done.", size=(80, 60), allow=("bash",)) as app:
        await app.submit_and_wait("Count")

        await app.press("ctrl+up", "up", "enter")
        await app.wait_until(lambda: app.screen.count("… 16 more lines") == 1)
        await app.press("escape")
        assert app.editor.has_focus


async def test_an_edit_shows_its_diff(running: Running, project: Path) -> None:
    (project / "a.py").write_text("one\ntwo\nthree\n")
    call = ToolCall("c", "edit", {"path": "a.py", "old_text": "two", "new_text": "2"})
    async with running(call, "Done.", permission_mode="allow-edits") as app:
        await app.submit_and_wait("Edit")

        assert await app.wait_for_text("edit a.py", "1   one", "2 - two", "2 + 2", "3   three")


async def test_a_written_file_shows_its_collapsed_content_with_a_hint(running: Running) -> None:
    content = "".join(f"line {number}\n" for number in range(1, 31))
    call = ToolCall("c", "write", {"path": "new.txt", "content": content})
    async with running(call, "Done.", size=(80, 50), permission_mode="allow-edits") as app:
        await app.submit_and_wait("Write")

        screen = await app.wait_for_text("write new.txt, 30 lines", "line 5", "… 25 more lines, Ctrl+O to expand")
        assert "line 6" not in screen
        await app.press("ctrl+o")
        await app.wait_for_text("line 30")


async def test_an_overwritten_file_shows_its_diff(running: Running, project: Path) -> None:
    (project / "a.py").write_text("one\ntwo\nthree\n")
    call = ToolCall("c", "write", {"path": "a.py", "content": "one\n2\nthree\n"})
    async with running(call, "Done.", permission_mode="allow-edits") as app:
        await app.submit_and_wait("Write")

        assert await app.wait_for_text("write a.py, 3 lines", "1   one", "2 - two", "2 + 2", "3   three")


async def test_content_of_a_failed_write_is_shown_below_the_error(running: Running, project: Path) -> None:
    (project / "folder").mkdir()
    call = ToolCall("c", "write", {"path": "folder", "content": "the content\n"})
    async with running(call, "Done.", permission_mode="allow-edits") as app:
        await app.submit_and_wait("Write")

        assert await app.wait_for_text("✗ write folder, 1 line", "folder is a folder", "the content")


async def test_a_failed_tool_is_marked(running: Running) -> None:
    async with running(ToolCall("c", "read", {"path": "nowhere"}), "Hm.") as app:
        await app.submit_and_wait("Read")

        assert await app.wait_for_text("✗ read nowhere")


async def test_the_footer_shows_session_branch_and_usage(running: Running) -> None:
    async with running("Yes.", session=st.create("my work")) as app:
        await app.submit_and_wait("Is it?")

        last = "\n".join(app.screen.split("\n")[-2:])
        for word in ("my work · on main · /", "tokens", "of 128k", "scripted"):
            assert word in last


async def test_the_footer_shows_the_permission_mode_and_the_branch_of_git(running: Running, project: Path) -> None:
    (project / ".git").mkdir()
    (project / ".git" / "HEAD").write_text("ref: refs/heads/topic\n")
    async with running(size=(120, 30)) as app:
        await app.wait_for_text("(git: topic)", "ask · scripted")
        await app.submit("/permissions read-only")
        await app.wait_for_text("read-only · scripted")


async def test_the_list_of_the_agent_is_shown_until_it_is_done(running: Running) -> None:
    def call(id: str, *states: str) -> ToolCall:
        return ToolCall(id, "todo", {"items": [{"text": f"step {n}", "status": s} for n, s in enumerate(states)]})

    started = [call("a", "done", "in_progress", "pending")]
    async with running(started, "Begun.", [call("b", "done", "done", "done")], "Finished.") as app:
        await app.submit_and_wait("Go")
        await app.wait_for_text("☑ step 0", "▶ step 1", "☐ step 2", "1 of 3 done")
        await app.submit_and_wait("Go on")
        await app.wait_until(lambda: "of 3 done" not in app.screen)
        session = app.app.controller.session
        [first] = [entry for entry in session.tree if entry.text == "Begun."]
        await app.submit(f"/branch-here side {first.id}")
        await app.wait_for_text("1 of 3 done")


async def test_a_plan_is_approved_in_the_app(running: Running, project: Path) -> None:
    write = ToolCall("c1", "write", {"path": "a.txt", "content": "x"})
    async with running("1. Write a.txt", [write], "Done.", permission_mode="allow-all") as app:
        await app.submit("/plan Write a file")
        await app.wait_for_text("Write a.txt", "Plan mode: what next?")
        await app.press("enter")
        await app.wait_for_text("Done.", "allow-all · scripted")
        assert (project / "a.txt").read_text() == "x"


async def test_an_image_for_a_model_without_images_is_announced(running: Running, project: Path) -> None:
    (project / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 30)
    blind = ScriptedModel(["Which image?"], info=replace(INFO, images=False))
    async with running(models=ScriptedModels(blind)) as app:
        await app.submit("See @a.png")
        await app.wait_for_text("scripted takes no images; it gets a note instead")


async def test_the_permission_mode_is_chosen_from_a_list(running: Running) -> None:
    async with running() as app:
        await app.submit("/permissions")
        await app.wait_for_text("Permission mode of this session", "ask before edits and commands", "Show the rules")
        await app.press(*"read-only", "enter")
        await app.wait_for_text("Permission mode: read-only")


async def test_queued_messages_say_when_they_are_sent(running: Running) -> None:
    async with running([Delay(30), "First."], "Second.") as app:
        await app.submit("One")
        await app.wait_for_text("working")
        await app.submit("Steer")
        await app.type("Follow " + "up " * 100)
        await app.press("alt+enter")

        shown = await app.wait_for_text("⋯ Steer · after this step", "… · after the run", "2 queued")
        assert all(len(line) <= 100 for line in shown.split("\n"))


async def test_the_content_of_a_new_file_has_line_numbers(running: Running) -> None:
    call = ToolCall("c", "write", {"path": "a.txt", "content": "first\nsecond\n"})
    async with running(call, "Done.", allow=("write",)) as app:
        await app.submit_and_wait("Write")

        await app.wait_for_text("  1 first\n", "  2 second\n")


async def test_a_long_run_ends_with_an_alert_only_without_focus(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    monkeypatch.setattr("sessiontree.tui.app.notify_desktop", lambda app, text: sent.append(text))
    slow = [Delay(0.3), "Done."]
    async with running(slow, slow, slow) as app:
        for seconds, is_focused, expected in ((-1.0, True, 0), (100.0, False, 0), (-1.0, False, 1)):
            monkeypatch.setattr(chat_screen, "LONG_RUN_SECONDS", seconds)
            await app.submit("Go")
            await app.wait_for_text("working")
            app.app.app_focus = is_focused
            await app.wait_until_idle()
            assert sent == ["The answer is ready"] * expected


async def test_the_footer_formats_small_costs_like_other_views(running: Running) -> None:
    async with running([ScriptedUsage({"input": 8, "output": 2, "cost": 0.000012}), "Yes."]) as app:
        await app.submit_and_wait("Is it?")
        assert await app.wait_for_text("10 tokens · $0.000012")


async def test_a_model_error_is_shown_in_one_line(running: Running) -> None:
    async with running(ModelError("scripted:scripted", "auth", "the key was refused")) as app:
        await app.submit_and_wait("Hello")

        errors = [block for block in app.blocks if block.startswith("error")]
        assert len(errors) == 1
        assert "the key was refused" in errors[0]


async def test_an_interrupted_stream_shows_the_seconds_until_the_retry(running: Running) -> None:
    broken = ModelError("scripted:scripted", "network", "the stream was cut off")
    settings = Config(retry=RetrySettings(base_delay=3600))
    async with running(["Half of it", broken], "Never.", settings=settings) as app:
        await app.submit("Hello")
        await app.wait_for_text("the stream was cut off. Retrying (1 of 3) in", "Half of it")
        first = read_retry_seconds(app)
        await app.wait_until(lambda: read_retry_seconds(app) < first)
        await app.press("escape")
        await app.wait_until_idle()


def read_retry_seconds(app: Driver) -> int:
    """Return the seconds until the retry."""
    shown = re.search(r"Retrying \(1 of 3\) in (\d+) s", app.screen)
    assert shown is not None
    return int(shown[1])


async def test_an_answer_that_cannot_be_written_stays_on_the_screen(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    session = st.create(file=tmp_path / "s.jsonl")
    full = contextlib.ExitStack()
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def answer(request: Any) -> str:
        full.enter_context(limit_file_size(session.file.stat().st_size))
        return "It cost much."

    try:
        async with running(answer, "Two.", session=session, size=(300, 50)) as app:
            with full:
                await app.submit_and_wait("Hello")
                assert await app.wait_for_text("It cost much.", "File too large", "it is saved in")
            await app.submit_and_wait("Again")
            assert [block for block in app.blocks if block.startswith("answer")][-2:] == [
                "answer: It cost much.",
                "answer: Two.",
            ]
    finally:
        signal.signal(signal.SIGXFSZ, before)


async def test_a_prompt_during_a_run_is_queued_and_sent_after_the_turn(running: Running) -> None:
    async with running(["One", Delay(3)], "Two") as app:
        await app.submit("First")
        await app.wait_for_text("One")
        await app.submit("Second")
        await app.wait_for_text("⋯ Second", "Alt+Up to edit")
        await app.wait_until(lambda: len(app.model.requests) == 2)
        await app.wait_until_idle()

        assert "⋯" not in app.screen
        assert [block for block in app.blocks if block.startswith("user")] == ["user: First", "user: Second"]


async def test_queued_prompts_can_be_edited(running: Running) -> None:
    async with running(["One", Delay(30)]) as app:
        await app.submit("First")
        await app.wait_for_text("One")
        await app.submit("Second")
        await app.type("Third")
        await app.press("alt+enter")
        await app.wait_for_text("⋯ Second", "⋯ Third")
        await app.press("alt+up")
        await app.wait_until(lambda: app.editor.text == "Second\n\nThird")

        assert "⋯" not in app.screen
        await app.press("escape")


async def test_aborting_moves_queued_prompts_to_the_editor(running: Running) -> None:
    async with running(["One", Delay(30)]) as app:
        await app.submit("First")
        assert await app.wait_for_text("One")
        await app.submit("Second")
        assert await app.wait_for_text("⋯ Second")
        await app.press("escape")

        assert await app.wait_until(lambda: app.editor.text == "Second")


# During a summary


class Slowly:
    """An answer that waits for an event."""

    def __init__(self, answer: str | Exception) -> None:
        self.go = asyncio.Event()
        self._answer = answer

    async def __call__(self, request: object) -> str:
        await self.go.wait()
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def create_conversation() -> Session:
    session = st.create()
    session.extend([st.user("one"), st.assistant("1"), st.user("two"), st.assistant("2")])
    return session


def list_prompts(app: Driver) -> list[str]:
    return [format_entry(entry) for entry in app.app.controller.branch.path() if not entry.type.endswith("_change")]


async def test_a_prompt_during_a_summary_is_sent_at_the_destination(running: Running) -> None:
    summary = Slowly("What was left.")
    async with running(summary, "Here.", "And here.", session=create_conversation()) as app:
        await app.submit("/pop HEAD~1")
        await app.wait_for_text("summarizing", "Esc to abort")
        await app.submit("Where are we?")
        await app.wait_for_text("⋯ Where are we?")
        await app.type("And now?")
        await app.press("alt+enter")
        await app.wait_for_text("⋯ And now?")
        summary.go.set()
        await app.wait_until(lambda: len(app.model.requests) == 3)
        await app.wait_until_idle()

        assert "⋯" not in app.screen
        first, second, left, *rest = list_prompts(app)
        assert (first, second, rest) == ("one", "1", ["Where are we?", "Here.", "And now?", "And here."])
        assert "What was left." in left
        assert app.editor.text == "two"


@pytest.mark.parametrize("ended", ["fails", "is aborted"])
async def test_a_failed_summary_moves_queued_prompts_to_the_editor(running: Running, ended: str) -> None:
    summary = Slowly(ModelError("scripted:scripted", "auth", "no summaries today"))
    async with running(summary, session=create_conversation()) as app:
        await app.submit("/pop HEAD~1")
        await app.wait_for_text("summarizing")
        await app.submit("Where are we?")
        await app.wait_for_text("⋯ Where are we?")
        if ended == "fails":
            summary.go.set()
        else:
            await app.press("escape")
        await app.wait_until(lambda: app.editor.text == "Where are we?")
        await app.wait_until_idle()

        assert list_prompts(app) == ["one", "1", "two", "2"]
        assert len(app.model.requests) == 1
        assert "⋯" not in app.screen


async def test_switching_sessions_is_refused_during_a_summary(running: Running) -> None:
    other = st.create("other")
    other.append(st.user("elsewhere"))
    summary = Slowly("What was left.")
    async with running(summary, session=create_conversation()) as app:
        await app.submit("/pop HEAD~1")
        await app.wait_for_text("summarizing")
        await app.submit(f"/resume {other.id}")
        await app.wait_for_text("a move or a merge is in progress")
        assert app.editor.text == f"/resume {other.id}"
        summary.go.set()
        await app.wait_until_idle()

        assert list_prompts(app)[:2] == ["one", "1"]


async def test_keys_and_commands_do_not_disturb_a_summary_and_escape_aborts_it(running: Running) -> None:
    summary = Slowly("What was left.")
    async with running(summary, session=create_conversation()) as app:
        await app.press("ctrl+t")
        await app.wait_for_text("two", "one")
        await app.press("up", "up", "enter")
        await app.wait_for_text("Summarize")
        await app.press("down", "enter")
        await app.wait_for_text("summarizing")
        await app.press("f1")
        await app.wait_for_text("newline")
        await app.press("escape")
        await app.submit("/name kept")
        await app.submit("!true")
        await app.wait_until(lambda: app.app.controller.session.name == "kept" and not app.chat._shell_activity)
        await app.wait_for_text("summarizing", "Esc to abort")
        await app.press("ctrl+t")
        await app.wait_until(lambda: app.app.screen is not app.chat)
        await app.press("home", "enter")
        await app.wait_until(lambda: app.app.screen is app.chat or "Summarize" in app.screen)
        if app.app.screen is not app.chat:
            await app.press("enter")
        await app.wait_for_text("a move or a merge is in progress")
        await app.wait_for_text("summarizing")
        await app.press("escape")
        await app.wait_for_text("Cancelled. Nothing changed.")
        await app.wait_until_idle()

        assert list_prompts(app)[:4] == ["one", "1", "two", "2"]


@pytest.mark.parametrize("keys", [("ctrl+t", "ctrl+t"), ("ctrl+r", "ctrl+t"), ("ctrl+l", "ctrl+l")])
async def test_quick_key_presses_open_one_screen(running: Running, keys: tuple[str, str]) -> None:
    async with running(session=create_conversation()) as app:
        for key in keys:
            app.app.simulate_key(key)
        await app.wait_until(lambda: app.app.screen is not app.chat)
        await app.press("escape")
        await app.wait_until(lambda: app.app.screen is app.chat and not app.app.workers)


# The queue at the end of a run


async def test_a_prompt_during_a_compaction_is_sent_after_it(running: Running) -> None:
    summary = Slowly("What was said.")
    settings = Config(compaction=CompactionSettings(keep_recent_tokens=1))
    async with running(summary, "What was asked.", "Here.", session=create_conversation(), settings=settings) as app:
        await app.submit("/compact")
        await app.wait_for_text("compacting")
        await app.submit("Where are we?")
        await app.wait_for_text("⋯ Where are we?")
        summary.go.set()
        await app.wait_until(lambda: list_prompts(app)[-2:] == ["Where are we?", "Here."])
        await app.wait_until_idle()
        assert "⋯" not in app.screen


@pytest.mark.parametrize("ended", ["fails", "is aborted"])
async def test_a_failed_compaction_moves_queued_prompts_to_the_editor(running: Running, ended: str) -> None:
    summary = Slowly(ModelError("scripted:scripted", "auth", "no summaries today"))
    settings = Config(compaction=CompactionSettings(keep_recent_tokens=1))
    async with running(summary, session=create_conversation(), settings=settings) as app:
        await app.submit("/compact")
        await app.wait_for_text("compacting")
        await app.submit("Where are we?")
        await app.wait_for_text("⋯ Where are we?")
        if ended == "fails":
            summary.go.set()
        else:
            await app.press("escape")
        await app.wait_until(lambda: app.editor.text == "Where are we?")
        await app.wait_until_idle()

        assert list_prompts(app) == ["one", "1", "two", "2"]
        assert "⋯" not in app.screen


async def test_a_failed_run_moves_queued_prompts_to_the_editor(running: Running) -> None:
    answer = Slowly(ModelError("scripted:scripted", "auth", "the key was refused"))
    async with running(answer, "Two.") as app:
        await app.submit("First")
        await app.wait_until(lambda: app.model.requests)
        await app.submit("Second")
        await app.wait_for_text("⋯ Second")
        answer.go.set()
        await app.wait_until(lambda: app.editor.text == "Second")
        await app.wait_until_idle()

        assert "⋯" not in app.screen
        assert len(app.model.requests) == 1


async def test_a_prompt_at_the_end_of_a_run_is_sent_after_it(running: Running) -> None:
    ends, go = asyncio.Event(), asyncio.Event()

    async def hold(event: Any, ctx: Any) -> None:
        ends.set()
        await go.wait()

    async with running("One.", "Two.") as app:
        off = app.app.controller.hooks.on("run_end", hold)
        await app.submit("First")
        await asyncio.wait_for(ends.wait(), 20)
        off()
        await app.submit("Second")
        await app.wait_for_text("⋯ Second")
        go.set()
        await app.wait_until(lambda: len(app.model.requests) == 2)
        await app.wait_until_idle()

        assert list_prompts(app) == ["First", "One.", "Second", "Two."]


async def test_the_queue_of_a_session_is_not_shown_or_saved_in_another(running: Running) -> None:
    session = create_conversation()
    async with running(session=session) as app:
        await app.app.controller.agent.steer("For here alone")
        await app.wait_for_text("⋯ For here alone")
        await app.submit("/new")
        await app.wait_until(lambda: app.app.controller.session is not session)
        await app.wait_until_idle()

        assert "⋯" not in app.screen
        assert app.editor.text == ""
        assert DraftFile(app.app.controller.session).read().is_empty
        assert DraftFile(session).read().queued == ("For here alone",)


async def test_the_model_sees_a_shell_command_with_one_exclamation_mark(running: Running) -> None:
    async with running("Seen.") as app:
        await app.submit("!echo seen")
        await app.wait_until(
            lambda: any("! echo seen" in block for block in app.blocks) and not app.chat.status_line.activity
        )
        await app.submit("!!echo secret")
        await app.wait_until(
            lambda: any("secret" in block for block in app.blocks) and not app.chat.status_line.activity
        )
        await app.submit_and_wait("What did I run?")

        sent = str(app.model.requests[-1].messages)
        assert "echo seen" in sent
        assert "secret" not in sent
        await app.wait_for_text("! echo secret (not sent to the model)")


async def test_a_shell_command_runs_without_a_model_and_can_be_aborted(running: Running) -> None:
    async with running(models=NoModels()) as app:
        await app.wait_for_text("no model is available: there is no key")
        await app.submit("!echo seen; sleep 60")
        await app.wait_for_text("! echo seen; sleep 60", "seen", "running")
        await app.press("escape")
        await app.wait_until_idle()
        await app.submit("!echo again")
        await app.wait_until(lambda: "tool: ! echo again" in app.blocks and not app.chat.status_line.activity)

        ran = [entry.body.message for entry in app.app.controller.branch.path()]
        assert [(one["command"], one["cancelled"]) for one in ran] == [
            ("echo seen; sleep 60", True),
            ("echo again", False),
        ]


@pytest.mark.parametrize("models", [None, NoModels()], ids=["a model", "no model"])
async def test_escape_aborts_a_shell_command_after_another_command(running: Running, models: Models | None) -> None:
    async with running(models=models) as app:
        await app.submit("!echo begun; sleep 60")
        await app.wait_until(lambda: list_blocks(app, "begun"))
        await app.submit("/name other")
        await app.wait_until(lambda: app.app.controller.session.name == "other" and "running" in app.screen)
        await app.press("escape")
        await app.wait_until_idle()

        (ran,) = [entry.body.message for entry in app.app.controller.branch.path() if entry.type == "message"]
        assert (ran["output"], ran["cancelled"]) == ("begun", True)


async def test_two_shell_commands_show_their_own_output_and_the_running_one_is_indicated(
    running: Running, project: Path
) -> None:
    os.mkfifo(project / "end")
    async with running() as app:
        await app.submit("!echo slow; cat end; sleep 60")
        await app.wait_until(lambda: list_blocks(app, "slow"))
        await app.submit("!echo quick")
        await app.wait_until(lambda: len(app.app.controller.branch.path()) == 1)
        assert [block.text for block in app.chat.transcript.blocks if block.kind == "tool"] == ["slow\n", "quick"]
        assert await app.wait_for_text("running")
        await asyncio.to_thread((project / "end").write_text, "more")
        await app.wait_until(lambda: list_blocks(app, "slow\nmore"))
        await app.press("escape")
        await app.wait_until_idle()
        assert "running" not in app.screen


async def test_a_shell_command_during_a_run_is_shown_once(running: Running) -> None:
    async with running(["It begins.", Delay(30)]) as app:
        await app.submit("Go")
        await app.wait_for_text("It begins.")
        await app.submit("!echo beside")
        await app.wait_until(
            lambda: any(block.head == "! echo beside" and block.state == "done" for block in list_tools(app))
        )
        assert await app.wait_for_text("working")
        await app.press("escape")
        await app.wait_until(lambda: [block.entry_id for block in list_tools(app)] == [app.app.controller.branch.leaf])


@pytest.mark.parametrize("models", [None, NoModels()], ids=["a model", "no model"])
@pytest.mark.parametrize("leave", ["/new", "/quit"])
async def test_output_of_a_shell_command_is_kept_on_exit(running: Running, leave: str, models: Models | None) -> None:
    session = st.create()
    session.append(st.user("hi"))
    async with running(models=models, session=session) as app:
        await app.submit("!echo begun; sleep 60")
        await app.wait_until(lambda: list_blocks(app, "begun"))
        await app.submit(leave)
        await app.wait_until(lambda: app.app.controller.session is not session or not app.app.is_running)
        assert "is closed" not in str(app.blocks)

    with st.open(session.file) as again:
        assert again.head.path()[-1].body.message["output"] == "begun"


@pytest.mark.parametrize(
    ("go", "where"),
    [("/branch-here other", "on branch 'main'"), ("/clear", "in the tree, below the entry where it started")],
)
async def test_a_shell_command_that_finishes_on_another_path_is_reported(
    running: Running, project: Path, go: str, where: str
) -> None:
    os.mkfifo(project / "end")
    session = st.create()
    begun = session.append(st.user("hi"))
    async with running(session=session, size=(120, 30)) as app:
        await app.submit("!echo begun; cat end")
        await app.wait_until(lambda: list_blocks(app, "begun"))
        await app.submit(go)
        await app.wait_until(
            lambda: app.app.controller.branch.leaf != begun.id or app.app.controller.branch.name == "other"
        )
        await asyncio.to_thread((project / "end").write_text, "over")

        assert await app.wait_for_text(f"! echo begun; cat end finished; its output is {where}")
        assert not list_tools(app)


async def test_a_repeated_error_of_a_key_is_shown_again(running: Running) -> None:
    async with running(models=NoModels()) as app:
        for count in (1, 2):
            await app.press("shift+tab")
            await app.wait_until(
                lambda count=count: len([block for block in app.blocks if "no model: choose one" in block]) == count
            )


def list_tools(app: Driver) -> list[TranscriptBlock]:
    return [block for block in app.chat.transcript.blocks if block.kind == "tool"]


def list_blocks(app: Driver, text: str) -> bool:
    return any(block.text.startswith(text) for block in list_tools(app))


async def test_an_unknown_command_is_reported_and_restored_to_the_editor(running: Running) -> None:
    async with running() as app:
        await app.submit("/modle")

        await app.wait_for_text("command '/modle' not found", "/model")
        assert app.editor.text == "/modle"


@pytest.mark.parametrize("line", ["/tree nowhere", "!"])
async def test_typing_after_a_failed_command_replaces_it(running: Running, line: str) -> None:
    async with running("One.") as app:
        await app.submit_and_wait("Question")
        await app.submit(line)
        await app.wait_until(lambda: app.blocks[-1].startswith("error: "))
        await app.wait_until(lambda: app.editor.text == line)
        await app.press(*"/tree")

        assert app.editor.text == "/tree"


async def test_a_failed_command_can_be_edited(running: Running) -> None:
    async with running("One.") as app:
        await app.submit_and_wait("Question")
        await app.submit("/tree nowher")
        await app.wait_until(lambda: app.editor.text == "/tree nowher")
        await app.press("right", "e")

        assert app.editor.text == "/tree nowhere"


async def test_choosing_a_message_in_the_tree_moves_the_draft_to_the_history(running: Running) -> None:
    async with running("One.", "Two.") as app:
        await app.submit_and_wait("First question")
        await app.submit_and_wait("Second question")
        await app.type("a long draft")
        await app.press("ctrl+t")
        await app.wait_for_text("on branch main")
        await app.press("up", "enter")
        await app.wait_for_text("No summary")
        await app.press("enter")
        await app.wait_until(lambda: app.editor.text == "Second question")
        await app.wait_for_text("Draft saved to history · Up on the first line to restore it")
        await app.press("up")
        assert app.editor.text == "a long draft"
        await app.press("down")
        assert app.editor.text == "Second question"


async def test_a_draft_with_a_paste_is_moved_to_the_history_in_full(running: Running) -> None:
    pasted = "\n".join(f"line {number}" for number in range(40))
    async with running("One.") as app:
        await app.submit_and_wait("Question")
        await app.type("!cat ")
        app.editor.post_message(events.Paste(pasted))
        await app.wait_until(lambda: "[paste" in app.editor.text)
        app.chat.edit_message("Question")
        await app.press("up")

        assert app.editor.full_text == f"!cat {pasted}"


async def test_without_a_draft_there_is_no_notification(running: Running) -> None:
    async with running("One.") as app:
        await app.submit_and_wait("Question")
        app.chat.edit_message("Question")
        await app.pilot.pause()

        assert "Draft" not in app.screen


async def test_the_root_of_a_session_with_messages_is_not_greeted_as_a_new_session(running: Running) -> None:
    async with running("One.") as app:
        await app.wait_for_text("New session")
        await app.submit_and_wait("Question")
        await app.submit("/clear")
        await app.wait_until(lambda: app.app.controller.branch.leaf is None)
        await app.wait_for_text("/undo")

        assert "New session" not in app.screen
        assert await app.wait_for_text("Start of the session")


async def test_a_path_is_not_a_command(running: Running) -> None:
    async with running("A path.") as app:
        await app.submit_and_wait("/etc/hosts is what?")

        assert await app.wait_for_text("A path.")


async def test_a_mentioned_image_is_sent(running: Running, project: Path) -> None:
    (project / "dot.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 30)
    async with running("A dot.") as app:
        await app.submit_and_wait("What is in @dot.png ?")

        await app.wait_for_text("[image: png, 38 bytes]")
        assert [block["type"] for block in app.model.requests[0].messages[-1]["content"]] == ["text", "image"]


async def test_prompts_keep_their_order_while_an_image_is_read(
    running: Running, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "dot.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 30)
    read, images = threading.Event(), chat_screen.read_mentioned_images

    def read_slowly(*given: object) -> object:
        assert read.wait(20)
        return images(*given)

    monkeypatch.setattr(chat_screen, "read_mentioned_images", read_slowly)
    async with running("One.", "Two.") as app:
        await app.submit("first @dot.png ")
        await app.submit("second")
        read.set()
        await app.wait_for_text("One.", "Two.")

        said = [entry.body.message for entry in app.app.controller.session.head.path() if entry.type == "message"]
        assert [extract_text(message["content"])[:6] for message in said if message["role"] == "user"] == [
            "first ",
            "second",
        ]


async def test_an_image_that_is_too_large_for_models_is_refused(running: Running, project: Path) -> None:
    (project / "large.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(MAX_IMAGE_FILE_BYTES))
    async with running() as app:
        await app.submit("What is in @large.png ?")
        await app.wait_for_text("✗ large.png is too large: images are limited to 3.75 MB")

        assert app.editor.text == "What is in @large.png ?"
        assert not app.app.controller.session.tree.real_count


async def test_mentions_use_the_current_folder_if_the_folder_of_the_session_is_missing(
    running: Running, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "dot.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 30)
    shown: list[str] = []
    monkeypatch.setattr(SessionApp, "open_in_browser", lambda app, path: shown.append(path))
    async with running("A dot.", session=st.create(cwd=project / "gone")) as app:
        await app.type("What is in @do")
        await app.wait_for_text("dot.png")
        await app.press("tab")
        await app.press("enter")
        await app.wait_for_text("[image: png, 38 bytes]", "A dot.")

        await app.submit("/export talk.html")
        await app.wait_until(lambda: shown)
        assert shown == [str(project / "talk.html")]
        assert (project / "talk.html").exists()


async def test_custom_messages_are_hidden_or_shown_in_a_separate_style(running: Running) -> None:
    session = st.create()
    session.append(CustomMessage(custom_type="note", content="to be seen"))
    session.append(CustomMessage(custom_type="note", content="not to be seen", display=False))
    async with running(session=session) as app:
        await app.wait_for_text("▪ note", "to be seen")
        assert "not to be seen" not in app.screen


async def test_a_long_conversation_loads_earlier_entries_on_scrolling_up(running: Running) -> None:
    session = st.create()
    for number in range(200):
        session.append(st.user(f"question {number}"))
    async with running(session=session) as app:
        await app.wait_for_text("question 199")
        assert len(app.chat.transcript.blocks) == 60
        for _ in range(40):
            await app.press("pageup")
        await app.wait_until(lambda: len(app.chat.transcript.blocks) == 200)
        for _ in range(40):
            await app.press("pageup")
        await app.wait_for_text("question 0")


async def test_the_end_stays_visible_unless_the_user_scrolled_up(running: Running) -> None:
    long = "\n\n".join(f"line {number}" for number in range(60))
    async with running(long, "short", size=(80, 24)) as app:
        await app.submit_and_wait("Tell")
        await app.wait_for_text("line 59")
        await app.press("pageup", "pageup")
        seen = app.screen.split("\n")[:5]
        app.chat.show_output("something new")
        await app.pilot.pause()
        assert app.screen.split("\n")[:5] == seen
        await app.submit_and_wait("And?")
        await app.wait_for_text("short")


# Drafts


async def test_a_draft_is_restored_after_a_crash(running: Running) -> None:
    session = st.create()
    session.append(st.user("before"))
    file = session.file
    async with running(session=session) as app:
        await app.type("half a thought")
        await app.wait_until(lambda: DraftFile(session).read().text == "half a thought")
        assert Path(DraftFile(session).path).stat().st_mode & 0o777 == 0o600

    async with running(session=st.open(file)) as app:
        await app.wait_until(lambda: app.editor.text == "half a thought")


async def test_the_next_new_session_in_a_folder_adopts_the_draft(running: Running) -> None:
    async with running() as app:
        await app.type("begun")
        await app.wait_until(lambda: not DraftFile(app.app.controller.session).read().is_empty)

    async with running() as app:
        assert await app.wait_until(lambda: app.editor.text == "begun")


async def test_an_orphan_draft_is_not_adopted_if_the_editor_has_text(running: Running) -> None:
    left = DraftFile(st.create())
    left.write(EditorDraft(text="begun"))

    async with running(ready=False) as app:
        await app.type("quick")
        await app.wait_until(app.app.ready.is_set)
        assert app.editor.text == "quick"
        assert left.read().text == "begun"


async def test_the_queue_is_restored_after_a_crash(running: Running) -> None:
    session = st.create()
    session.append(st.user("before"))
    DraftFile(session).write(EditorDraft(text="typed", queued=("queued",)))
    async with running(session=session) as app:
        assert await app.wait_until(lambda: app.editor.text == "queued\n\ntyped")


async def test_a_queued_message_is_shown_as_one_line(running: Running) -> None:
    async with running([Delay(30)]) as app:
        await app.submit("Begin")
        await app.wait_until(lambda: app.model.requests)
        await app.submit("one\n\ntwo")
        assert await app.wait_for_text("⋯ one two")
        await app.press("escape")
        assert await app.wait_until(lambda: app.editor.text == "one\n\ntwo")


async def test_a_failed_compaction_is_reported_once(running: Running) -> None:
    session = st.create()
    for number in range(4):
        session.extend([st.user(f"question {number}"), st.assistant("an answer " * 20)])
    settings = Config(compaction=CompactionSettings(keep_recent_tokens=10))
    refused = ModelError("scripted:scripted", "auth", "no summaries today")
    async with running(refused, refused, session=session, settings=settings) as app:
        for times in (1, 2):
            await app.submit("/compact")
            await app.wait_until(lambda times=times: len(app.model.requests) == times)
            await app.wait_until_idle()
            assert await app.wait_until(lambda times=times: str(app.blocks).count("no summaries today") == times)
            await app.press("ctrl+c")


async def test_a_sent_prompt_leaves_no_draft(running: Running) -> None:
    async with running("Yes.") as app:
        await app.submit_and_wait("Said")

        assert DraftFile(app.app.controller.session).read().is_empty


async def test_a_sent_prompt_is_not_adopted_by_the_next_new_session(running: Running) -> None:
    async with running("Yes.") as app:
        draft = DraftFile(app.app.controller.session)
        await app.type("Said")
        await app.wait_until(lambda: draft.read().text == "Said")
        await app.press("enter")
        await app.wait_until(lambda: app.model.requests)
        await app.wait_until_idle()

    assert draft.read().is_empty
    assert DraftFile(st.create()).read().is_empty


async def test_a_failed_prompt_is_restored_to_the_editor(running: Running) -> None:
    session = st.create()
    session.append(st.user("before"))
    async with running(session=st.open(session.file, read_only=True)) as app:
        await app.submit("Hello")

        await app.wait_for_text("read", "✗")
        await app.wait_until(lambda: app.editor.text == "Hello")
        assert "read-only" in app.screen


async def test_a_prompt_aborted_before_it_was_written_is_restored_to_the_editor(running: Running) -> None:
    at_work = asyncio.Event()

    async def hang(event: Any, ctx: Any) -> None:
        at_work.set()
        await asyncio.Event().wait()

    async with running("Never.") as app:
        app.app.controller.hooks.on("before_message", hang)
        await app.submit("Precious words")
        await asyncio.wait_for(at_work.wait(), 20)

        await app.press("escape")
        await app.wait_until_idle()

        await app.wait_until(lambda: app.editor.text == "Precious words")
        assert "Cancelled" not in app.screen


# Quitting


async def test_control_c_clears_and_twice_quits(running: Running) -> None:
    async with running() as app:
        await app.type("words")
        await app.press("ctrl+c")
        assert app.editor.text == ""
        await app.press("ctrl+z")
        assert app.editor.text == "words"
        await app.press("ctrl+c", "ctrl+c")
        assert app.app.is_running
        await app.press("ctrl+c")
        await app.wait_until(lambda: not app.app.is_running)


@pytest.mark.parametrize("line", ["/quit"])
async def test_quitting_closes_the_session(running: Running, line: str) -> None:
    async with running("Yes.") as app:
        await app.submit_and_wait("Hello")
        await app.submit(line)
        await app.wait_until(lambda: not app.app.is_running)

        assert app.app.controller.session._is_closed


async def test_keys_follow_the_configuration(running: Running) -> None:
    settings = Config(keys={"unfold": "ctrl+e", "follow_up": ["f5", "f6"]})
    async with running([Thinking("a\nb"), "Yes."], settings=settings) as app:
        await app.submit_and_wait("Hello")
        await app.press("ctrl+e")
        assert app.chat.transcript.is_unfolded
        await app.press("ctrl+o")
        assert app.chat.transcript.is_unfolded
        await app.submit("/hotkeys")
        await app.wait_for_text("f5, f6")


async def test_the_key_list_shows_names_and_full_help_in_a_narrow_terminal(running: Running) -> None:
    async with running(size=(80, 24)) as app:
        await app.press("f1")
        assert await app.wait_for_text("newline", "insert a line break (or type a", "backslash before Enter)")


async def test_an_unknown_key_name_is_reported(running: Running) -> None:
    async with running(settings=Config(keys={"jump": "f9"})) as app:
        assert await app.wait_for_text("'jump'")


async def test_the_footer_counts_usage_of_all_branches_and_summaries(running: Running, project: Path) -> None:
    session = st.create("counted")
    for number in range(100):
        session.append(st.assistant(f"answer {number}", usage={"input": 900, "output": 100, "cost": 0.01}))
    session.append(BranchSummary(summary="left", usage={"input": 1000, "output": 0, "cost": 0.5}), parent=None)
    async with running([ScriptedUsage({"input": 800, "output": 200, "cost": 0.25}), "Yes."], session=session) as app:
        assert await app.wait_for_text("101k tokens · $1.50")
        await app.submit_and_wait("and now?")
        assert await app.wait_for_text("102k tokens · $1.75")
