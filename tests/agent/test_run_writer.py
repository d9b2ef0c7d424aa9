"""Answers that do not fit or cannot be written: they are kept in the entry, in a file, or in memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sessiontree as st
from sessiontree.agent.agent import Agent
from sessiontree.agent.run_writer import (
    MAX_MESSAGE_BYTES,
    UnsavedMessages,
    find_write_problem,
    fit_message,
    make_message_jsonable,
)
from sessiontree.agent.tool import tool
from sessiontree.config import Config, ModelSettings
from sessiontree.core.messages import ToolCall, assistant, extract_text, tool_call
from sessiontree.errors import OutcomeUnknown, StoreError
from sessiontree.format.json_line import write_value
from sessiontree.format.nesting import NESTING_LIMIT
from sessiontree.hooks.events import Notice
from sessiontree.library import catalog
from sessiontree.model.adapter import ProviderModel
from sessiontree.model.base import INCOMPLETE_CALL, TextDelta, ToolCallDelta, ToolCallStart
from sessiontree.model.providers import ModelTarget
from sessiontree.model.scripted import INFO, ScriptedModel
from sessiontree.session import Session
from tests.agent.conftest import format_messages, get_last_message, get_messages, record_events
from tests.agent.test_tool import build_nested, build_recursive
from tests.model.fake_server import Answer, FakeServer
from tests.store.test_file_operations import limit_file_size

MEGABYTE = 1 << 20


@pytest.fixture(autouse=True)
def _full_disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Turn the file size limit into an error instead of a signal, and keep `/tmp` clean."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGXFSZ, before)


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return st.create(file=tmp_path / "s.jsonl")


def create_model(server: FakeServer) -> ProviderModel:
    target = ModelTarget(provider="vllm", model="qwen", api="openai-completions", base_url=server.url, key="secret")
    return ProviderModel(target, ModelSettings(context_window=100_000))


def read_overflow(message: dict[str, Any]) -> Path:
    """Read the overflow file that the message names."""
    path = Path(message["restPath"])
    assert str(path) in message["content"][-1]["text"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return path


# Too long for an entry


async def test_an_answer_of_80_mb_is_split_into_its_entry_and_a_file(
    session: Session,
) -> None:
    words = "".join(f"{number:07} " for number in range(10 * MEGABYTE))
    with FakeServer([Answer(text=words, piece=MEGABYTE)]) as server:
        made = Agent(session.head, create_model(server), system="")
        reported = record_events(made.hooks)

        outcome = await made.run("Go on for long")

    assert outcome.ok
    with st.open(session.file) as again:
        message = get_last_message(again.head)
        rest = read_overflow(message)
        assert message["content"][0]["text"] + rest.read_text() == words
        assert message["stopReason"] == "stop"
        assert rest.parent == session.file.parent
        assert not [problem for problem in again.problems if problem.severity == "fault"]
        assert again.file.stat().st_size > 60 * MEGABYTE
    assert any(isinstance(event, Notice) and str(rest) in event.text for event in reported)


async def test_the_overflow_file_is_next_to_the_session_file(session: Session, home: Path) -> None:
    made = Agent(session.head, ScriptedModel(["x" * (MAX_MESSAGE_BYTES + 1000)]), system="")
    await made.run("Go")
    rest = read_overflow(get_last_message(session.head))
    session.close()

    catalog.delete(session.file)
    assert not rest.exists()
    catalog.restore(session.file)
    assert rest.exists()


async def test_the_overflow_of_a_session_in_memory_goes_to_the_home(home: Path) -> None:
    session = st.memory()
    await Agent(session.head, ScriptedModel(["x" * (MAX_MESSAGE_BYTES + 1000)]), system="").run("Go")

    rest = read_overflow(get_last_message(session.head))
    assert rest.is_relative_to(home / ".sessiontree" / "answers")
    assert stat.S_IMODE(rest.parent.stat().st_mode) == 0o700


async def test_the_result_of_a_tool_that_is_too_long_is_kept(session: Session) -> None:
    @tool
    def dump() -> str:
        """Dump."""
        return "line\n" * (MAX_MESSAGE_BYTES // 4)

    model = ScriptedModel([[ToolCall("c1", "dump", {})], "Done."])
    made = Agent(session.head, model, [dump], system="")

    assert (await made.run("Go")).text == "Done."

    result = next(message for message in get_messages(session.head.path()) if message["role"] == "toolResult")
    assert not result["isError"]
    assert result["content"][0]["text"] + read_overflow(result).read_text() == "line\n" * (MAX_MESSAGE_BYTES // 4)
    assert 40_000 < len(result["content"][0]["text"]) <= 50_000, "a model is shown what fits its window"


def test_a_message_is_cut_at_the_byte_limit_for_all_characters() -> None:
    for character in ("x", '"', "\n", "\x00", "ü", "語", "🌳"):
        message = {"role": "assistant", "content": [{"type": "text", "text": character * 50_000}], "stopReason": "stop"}
        fitted = fit_message(message, 20_000)

        assert len(write_value(fitted.message)) <= 20_000
        kept = fitted.message["content"][0]["text"]
        assert kept + fitted.overflow[0]["text"] == character * 50_000
        assert len(write_value(kept)) > 10_000, "much more would have fitted"


def test_blocks_after_the_first_that_does_not_fit_overflow() -> None:
    call = {"type": "toolCall", "id": "c1", "name": "write", "arguments": {"content": "x" * 50_000}}
    content = [
        {"type": "thinking", "thinking": "Hm.", "thinkingSignature": "s"},
        call,
        {"type": "text", "text": "Done"},
    ]
    message = {"role": "assistant", "content": content, "stopReason": "toolUse"}

    fitted = fit_message(message, 20_000)

    assert fitted.message["content"] == content[:1]
    assert fitted.overflow == content[1:]


def test_a_truncated_thinking_block_loses_its_signature() -> None:
    content = [{"type": "thinking", "thinking": "x" * 50_000, "thinkingSignature": "s"}]

    fitted = fit_message({"role": "assistant", "content": content, "stopReason": "stop"}, 20_000)

    assert "thinkingSignature" not in fitted.message["content"][0]


def test_details_that_do_not_fit_go_to_the_overflow_file() -> None:
    message = {"role": "toolResult", "content": [{"type": "text", "text": "x"}], "details": {"all": "y" * 50_000}}

    fitted = fit_message(message, 20_000)

    assert "details" not in fitted.message
    assert fitted.message["content"] == message["content"]
    assert fitted.overflow == [{"type": "details", "details": {"all": "y" * 50_000}}]


def test_a_message_that_fits_does_not_change() -> None:
    message = {"role": "assistant", "content": [{"type": "text", "text": "x"}], "stopReason": "stop"}

    assert fit_message(message).message is message


# Endless


class Endless:
    """A model that streams until it is closed."""

    info = INFO

    def __init__(self, *first: Any, more: Any) -> None:
        self._first = first
        self._more = more
        self.asked = 0
        self.closed = False

    async def stream(self, request: Any) -> Any:
        self.asked += 1
        try:
            for event in self._first:
                yield event
            while True:
                yield self._more
        finally:
            self.closed = True


async def test_an_endless_answer_is_cut_off_at_the_limit_and_kept(session: Session) -> None:
    model = Endless(more=TextDelta("word " * 100))
    made = Agent(session.head, model, system="", settings=Config(answer_limit=100_000))
    reported = record_events(made.hooks)

    outcome = await asyncio.wait_for(made.run("Go"), 60)

    assert model.closed
    assert outcome.cut_off
    assert 100_000 <= len(outcome.text) <= 101_000
    assert get_last_message(session.head)["stopReason"] == "length"
    assert any(isinstance(event, Notice) and "answer_limit" in event.text for event in reported)


async def test_an_endless_answer_from_a_real_server_closes_the_connection(session: Session) -> None:
    with FakeServer([Answer(text="word " * 4_000_000, piece=50_000)]) as server:
        made = Agent(session.head, create_model(server), system="", settings=Config(answer_limit=200_000))

        outcome = await asyncio.wait_for(made.run("Go"), 60)

        assert outcome.cut_off
        assert server.wait_for(lambda server: server.disconnects == 1, 30)
    assert 200_000 <= len(outcome.text) <= 300_000


async def test_an_endless_tool_call_is_kept_as_text_and_neither_run_nor_retried(
    session: Session,
) -> None:
    model = Endless(
        ToolCallStart("c1", "write"), ToolCallDelta("c1", '{"content": "'), more=ToolCallDelta("c1", "x" * 99)
    )
    made = Agent(session.head, model, system="", settings=Config(answer_limit=10_000))

    outcome = await asyncio.wait_for(made.run("Go"), 60)

    assert model.asked == 1
    assert outcome.cut_off
    answer = next(message for message in get_messages(session.head.path()) if message["role"] == "assistant")
    assert answer["content"][0]["text"].startswith(INCOMPLETE_CALL.format(name="write") + '{"content": "xxx')


# Nothing can be written


async def test_an_unsaved_answer_stays_in_memory_and_is_written_before_the_next_prompt(session: Session) -> None:
    filled = asyncio.Event()

    async def answer(request: Any) -> str:
        await filled.wait()
        return "It took long and cost much. " * 100

    made = Agent(session.head, ScriptedModel([answer, "Two."]), system="")
    asking = asyncio.create_task(made.run("1"))
    while not format_messages(session.head):
        await asyncio.sleep(0)
    with limit_file_size(session.file.stat().st_size):
        filled.set()
        outcome = await asking

    assert isinstance(outcome.error, UnsavedMessages)
    assert outcome.error.path is None
    assert "File too large" in str(outcome.error)
    assert "in memory" in str(outcome.error)
    assert outcome.text == "It took long and cost much. " * 100
    assert format_messages(session.head) == ["user: 1"]
    assert [extract_text(message["content"]) for message in made.unsaved] == [outcome.text]

    assert (await made.run("2")).text == "Two."
    assert format_messages(session.head) == ["user: 1", f"assistant: {outcome.text}", "user: 2", "assistant: Two."]
    assert made.unsaved == []


async def test_unsaved_tool_results_are_kept_and_can_be_saved_elsewhere(session: Session, tmp_path: Path) -> None:
    @tool(concurrent=True)
    def look(at: str) -> str:
        """Look."""
        return f"{at} " * 1000

    model = ScriptedModel([[ToolCall("c1", "look", {"at": "a"}), ToolCall("c2", "look", {"at": "b"})], "Never."])
    made = Agent(session.head, model, [look], system="")
    full = contextlib.ExitStack()
    made.hooks.on("tool_start", lambda event, context: full.enter_context(limit_file_size(session.file.stat().st_size)))
    with full:
        outcome = await made.run("Go")

    assert isinstance(outcome.error, StoreError)
    assert format_messages(session.head) == ["user: Go", "assistant: "]
    assert [message["toolCallId"] for message in outcome.unsaved] == ["c1", "c2"]
    outcome.save_to(tmp_path / "kept.jsonl")
    assert stat.S_IMODE((tmp_path / "kept.jsonl").stat().st_mode) == 0o600
    lines = (tmp_path / "kept.jsonl").read_text().splitlines()
    assert [json.loads(line)["content"][0]["text"] for line in lines] == ["a " * 1000, "b " * 1000]
    with pytest.raises(StoreError, match="exists"):
        outcome.save_to(tmp_path / "kept.jsonl")


async def test_an_answer_with_an_unknown_write_outcome_is_saved_elsewhere_and_not_rewritten(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Agent(session.head, ScriptedModel(["One."]), system="")

    def lost(*_: Any, **__: Any) -> None:
        raise OutcomeUnknown("db", "the connection was lost")

    made.hooks.on("before_request", lambda event, context: monkeypatch.setattr(session._store, "append", lost))
    outcome = await made.run("1")

    assert isinstance(outcome.error, UnsavedMessages)
    assert outcome.text == "One."
    assert made.unsaved == []
    assert outcome.error.path is not None
    assert json.loads(Path(outcome.error.path).read_text())["content"][0]["text"] == "One."


async def test_an_unsaved_answer_is_a_late_entry_if_the_branch_was_moved(session: Session) -> None:
    made = Agent(session.head, ScriptedModel(["Lost?", "Two."]), system="")
    full = contextlib.ExitStack()
    made.hooks.on("before_request", lambda event, context: fill() if not full_once else None)
    full_once: list[bool] = []

    def fill() -> None:
        full_once.append(True)
        full.enter_context(limit_file_size(session.file.stat().st_size))

    with full:
        assert isinstance((await made.run("1")).error, UnsavedMessages)
    asked = session.head.path()[-1]
    session.append(st.user("Another writer continues"))

    assert (await made.run("2")).text == "Two."

    (late,) = [entry for entry in session.tree if isinstance(entry.body, st.Message) and _build_text(entry) == "Lost?"]
    assert late.parent == asked.id
    assert format_messages(session.head) == ["user: 1", "user: Another writer continues", "user: 2", "assistant: Two."]


def _build_text(entry: st.Entry) -> str:
    assert isinstance(entry.body, st.Message)
    return extract_text(entry.body.message.get("content"))


ON_A_SMALL_DISK = """
import asyncio, json, os, subprocess, sys
import sessiontree as st
from sessiontree.model.scripted import ScriptedModel

folder = sys.argv[1]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", folder], check=True)
session = st.create(file=os.path.join(folder, "s.jsonl"))
agent = st.Agent(session.head, ScriptedModel(["paid " * 20_000, "Two."]), system="")
outcome = asyncio.run(agent.run("1"))
print(json.dumps({"error": str(outcome.error), "path": outcome.error.path, "text": outcome.text}))
"""


def can_mount() -> bool:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    tried = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False)
    return tried.returncode == 0


@pytest.mark.skipif(not can_mount(), reason="only root can mount a small disk, and not everywhere")
def test_an_answer_on_a_full_disk_goes_to_the_temporary_folder(tmp_path: Path) -> None:
    small, temporary = tmp_path / "small", tmp_path / "temporary"
    small.mkdir()
    temporary.mkdir()
    done = subprocess.run(
        ["unshare", "-m", sys.executable, "-c", ON_A_SMALL_DISK, str(small)],
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reported = json.loads(done.stdout)

    assert "No space left on device" in reported["error"]
    assert reported["path"] in reported["error"]
    assert reported["text"] == "paid " * 20_000
    saved = Path(reported["path"])
    assert saved.parent == temporary
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    assert json.loads(saved.read_text())["content"][0]["text"] == "paid " * 20_000


# Messages as JSON: a part of every message can be written

DEEPEST = NESTING_LIMIT - 5
"""An argument is nested in the arguments, the block, the content, the message and the line."""


def test_only_the_deeply_nested_parts_of_a_message_become_text() -> None:
    fine, deep = (
        tool_call("1", "read", {"x": build_nested(DEEPEST)}),
        tool_call("2", "read", {"x": build_nested(DEEPEST + 1)}),
    )
    message = assistant([{"type": "text", "text": "Hm."}, fine, deep]).message

    made = make_message_jsonable(
        {**message, "content": [*message["content"], build_nested(300)], "odd": build_nested(300)}
    )

    assert find_write_problem(made) is None
    assert made["content"][:2] == message["content"][:2]
    assert made["content"][2] == {**deep, "arguments": '{"x":' + "[" * (DEEPEST + 1) + "1" + "]" * (DEEPEST + 1) + "}"}
    assert isinstance(made["content"][3], str)
    assert isinstance(made["odd"], str)
    assert made["role"] == "assistant"
    assert make_message_jsonable(made) is made
    assert isinstance(make_message_jsonable({"role": "user", "content": {"x": build_nested(300)}})["content"], str)


@pytest.mark.parametrize("odd", [object(), build_nested(300), build_recursive()], ids=["object", "deep", "endless"])
def test_an_unwritable_message_has_a_reason(odd: Any) -> None:
    assert find_write_problem({"role": "user", "content": "x"}) is None
    assert find_write_problem({"role": "user", "content": "x", "odd": odd})


def test_a_message_that_fills_more_than_a_line_cannot_be_written() -> None:
    around = len('{"content":""}')

    assert find_write_problem({"content": "x" * (MAX_MESSAGE_BYTES - around)}) is None
    assert find_write_problem({"content": "x" * (MAX_MESSAGE_BYTES - around + 1)}) == (
        f"its {MAX_MESSAGE_BYTES + 1} bytes exceed the {MAX_MESSAGE_BYTES} bytes that an entry can hold"
    )
