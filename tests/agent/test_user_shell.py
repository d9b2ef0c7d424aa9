"""Commands of the user: where their output is written, and that a session is not closed before that."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

import sessiontree as st
from sessiontree.agent.agent import Agent
from sessiontree.agent.tools.bash_tool import CommandError, CommandResult
from sessiontree.agent.user_shell import UserShell
from sessiontree.core.entries import Entry
from sessiontree.core.messages import extract_text, get_role
from sessiontree.errors import BranchMoved
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import BeforeCompact, Input, InputAnswer, ToolUpdate
from sessiontree.model.scripted import Delay
from sessiontree.session import Session
from tests.agent.conftest import MakeAgent, get_last_message, get_messages, get_scripted_model


class StartedCommand:
    """A command that has started and runs until `finish`."""

    def __init__(self, agent: Agent, fifo: Path) -> None:
        self.agent = agent
        self._fifo = fifo
        self.task: asyncio.Task[CommandResult]

    async def start(self) -> None:
        os.mkfifo(self._fifo)
        waiting = asyncio.create_task(wait_for_output(self.agent.hooks, "begun"))
        await asyncio.sleep(0)
        self.task = asyncio.create_task(self.agent.run_bash(f"echo begun; cat {self._fifo}"))
        await waiting

    async def finish(self) -> None:
        await asyncio.to_thread(self._fifo.write_text, "over")
        assert (await asyncio.wait_for(self.task, 20)).output == "begun\nover"


async def wait_for_output(hooks: Hooks, word: str) -> None:
    """Wait until a command has printed a word."""
    said = asyncio.Event()
    off = hooks.listen(lambda event: said.set() if isinstance(event, ToolUpdate) and word in event.text else None)
    await asyncio.wait_for(said.wait(), 20)
    off()


@pytest.fixture
def begun(tmp_path: Path) -> Any:
    async def begin(agent: Agent, name: str = "end") -> StartedCommand:
        made = StartedCommand(agent, tmp_path / name)
        await made.start()
        return made

    return begin


def append_messages(session: Session, *texts: str) -> list[Entry]:
    return [session.append(st.assistant(text) if turn % 2 else st.user(text)) for turn, text in enumerate(texts)]


def list_commands(session: Session) -> list[Entry]:
    """Return the written command messages."""
    said = [(entry, message) for entry in session.tree.entries for message in get_messages([entry])]
    return [entry for entry, message in said if get_role(message) == "bashExecution"]


def list_roles(session: Session) -> list[str]:
    return [get_role(message) for message in get_messages(session.head.path())]


async def test_output_of_a_command_is_written_to_the_branch_where_it_started(
    agent: MakeAgent, session: Session, begun: Any
) -> None:
    *_, answer = append_messages(session, "one", "two")
    made = agent()
    command = await begun(made)
    made.branch = session.create_branch("other", at=session.tree.entries[0])

    await command.finish()

    (written,) = list_commands(session)
    assert (written.branch, written.parent) == ("main", answer.id)
    assert session.heads.heads["main"] == written.id
    assert session.heads.current == "other"
    assert list_roles(session) == ["user"]


async def test_after_a_move_up_the_output_is_a_late_entry_where_the_command_started(
    agent: MakeAgent, session: Session, begun: Any
) -> None:
    first, _, third = append_messages(session, "one", "two", "three")
    command = await begun(agent())
    session.move(first)

    await command.finish()

    (written,) = list_commands(session)
    assert (written.branch, written.parent) == (None, third.id)
    assert session.head.leaf == first.id


async def test_moving_down_counts_as_a_move(agent: MakeAgent, session: Session, begun: Any) -> None:
    first, _, third = append_messages(session, "one", "two", "three")
    session.move(first)
    command = await begun(agent())
    session.move(third)

    await command.finish()

    (written,) = list_commands(session)
    assert (written.branch, written.parent) == (None, first.id)
    assert session.head.leaf == third.id


async def test_messages_during_a_command_are_not_a_move(agent: MakeAgent, session: Session, begun: Any) -> None:
    made = agent("Fine.")
    command = await begun(made)
    await made.run("Meanwhile")

    await command.finish()

    assert list_roles(session) == ["user", "assistant", "bashExecution"]


async def test_the_command_that_ends_first_is_written_first(agent: MakeAgent, session: Session, begun: Any) -> None:
    made = agent()
    one, two = await begun(made, "one"), await begun(made, "two")

    await two.finish()
    await one.finish()

    shown = [message["command"].rpartition("/")[2] for message in get_messages(session.head.path())]
    assert shown == ["two", "one"]


async def test_a_run_on_another_branch_is_not_affected_by_a_command(
    agent: MakeAgent, session: Session, begun: Any
) -> None:
    made = agent([Delay(30), "never"])
    command = await begun(made)
    made.branch = session.create_branch("other")
    asking = asyncio.create_task(made.run("Go"))
    async with asyncio.timeout(60):
        while not get_scripted_model(made).requests:
            await asyncio.sleep(0.01)

    await command.finish()
    (written,) = list_commands(session)
    made.abort()
    await asking

    assert written.branch == "main"
    assert list_roles(session) == ["user", "assistant"]


async def test_a_prompt_cancelled_by_a_handler_leaves_nothing_queued(
    agent: MakeAgent, session: Session, begun: Any
) -> None:
    made, gate = agent(), asyncio.Event()

    async def refuse(event: Input, context: Any) -> InputAnswer:
        await gate.wait()
        return InputAnswer(cancel=True)

    made.hooks.on(Input, refuse)
    command = await begun(made)
    asking = asyncio.create_task(made.run("Go"))
    await asyncio.sleep(0)
    assert made.running
    await command.finish()
    gate.set()

    assert (await asking).cancelled
    assert list_roles(session) == ["bashExecution"]


async def test_output_of_a_command_is_written_after_a_running_compaction(
    agent: MakeAgent, session: Session, begun: Any
) -> None:
    append_messages(session, *["word " * 20_000] * 6)
    made, gate = agent("A summary.", "And more."), asyncio.Event()

    async def wait(event: BeforeCompact, context: Any) -> None:
        await gate.wait()

    made.hooks.on(BeforeCompact, wait)
    compacting = asyncio.create_task(made.compact())
    await asyncio.sleep(0)
    command = await begun(made)
    await command.finish()
    assert not list_commands(session)
    gate.set()

    assert (await compacting).entry is not None
    assert [entry.type for entry in session.head.path()][-2:] == ["compaction", "message"]
    assert list_roles(session)[-1] == "bashExecution"


async def test_output_of_a_command_is_written_after_a_failed_run(
    agent: MakeAgent, session: Session, begun: Any
) -> None:
    made = agent("never")

    async def move(event: Any, context: Any) -> None:
        await made.run_bash("echo side")
        session.append(st.user("Another writer was first."))

    made.hooks.on("run_start", move)

    with pytest.raises(BranchMoved):
        await made.run("Go")

    (written,) = list_commands(session)
    assert get_messages([written])[0]["output"] == "side"


async def test_shutdown_waits_until_results_are_written(agent: MakeAgent, session: Session, begun: Any) -> None:
    made = agent()
    await begun(made)

    await made.abort_and_wait()

    assert (get_last_message(session.head)["output"], get_last_message(session.head)["cancelled"]) == ("begun", True)


async def test_a_command_cancelled_twice_keeps_its_output(agent: MakeAgent, session: Session) -> None:
    made = agent()
    asked = asyncio.create_task(wait_for_output(made.hooks, "asked"))
    began = asyncio.create_task(wait_for_output(made.hooks, "begun"))
    await asyncio.sleep(0)
    running = asyncio.create_task(
        made.run_bash("trap 'while :; do echo asked; sleep 0.05; done' TERM; echo begun; while :; do sleep 0.05; done")
    )
    await began

    made.abort()
    await asked
    made.abort()

    assert (await asyncio.wait_for(running, 20)).aborted
    assert get_last_message(session.head)["output"].startswith("begun")


async def test_cancelling_the_caller_ends_the_command_and_keeps_its_output(
    agent: MakeAgent, session: Session, begun: Any
) -> None:
    command = await begun(agent())

    command.task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(command.task, 20)
    assert (get_last_message(session.head)["output"], get_last_message(session.head)["cancelled"]) == ("begun", True)


async def test_a_command_cancelled_before_it_starts_is_not_run(session: Session, tmp_path: Path) -> None:
    async def write(record: object, message: object) -> None:
        raise AssertionError("there is nothing to write")

    shell = UserShell(Hooks(), write)
    running = asyncio.create_task(shell.run("touch made", session.head, cwd=str(tmp_path)))
    await asyncio.sleep(0)

    shell.abort()

    with pytest.raises(CommandError, match="cancelled before it started"):
        await running
    await shell.shutdown()
    assert not list(tmp_path.iterdir())


async def test_truncated_output_is_marked_if_no_file_could_be_written(
    agent: MakeAgent, session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))

    await agent().run_bash("seq 1 30000")

    message = get_last_message(session.head)
    assert message["truncated"] is True
    assert "fullOutputPath" not in message
    assert "The output is truncated." in extract_text(session.head.context().to_llm()[-1]["content"])
