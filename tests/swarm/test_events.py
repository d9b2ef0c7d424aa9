"""The event log: numbers, filters, following, several writers, torn lines, and the events of a swarm."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.core.messages import ToolCall
from sessiontree.errors import InvalidOperation, StoreError
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import Notice
from sessiontree.model.base import ModelError, Request
from sessiontree.model.scripted import Delay, ScriptedModel, Thinking
from sessiontree.session import Session
from sessiontree.swarm.events import (
    EVENT_TYPES,
    INDEX_STEP,
    AgentComplete,
    AgentStart,
    ErrorEvent,
    EventLog,
    SwarmEvent,
    SwarmTextDelta,
    SwarmToolCallEnd,
    SwarmToolCallStart,
    SwarmTurnEnd,
    build_spool_path,
)
from sessiontree.swarm.swarm import Swarm
from tests.swarm.conftest import build_model, read_all_messages


@pytest.fixture
def log(tmp_path: Path) -> EventLog:
    return EventLog(tmp_path / "swarms" / "a.events.jsonl")


def fill(log: EventLog, count: int) -> EventLog:
    for number in range(count):
        log.append(SwarmTextDelta(delta=str(number), agent=f"agent-{number % 2}"))
    return log


def test_events_are_numbered_from_one_and_read_back_as_they_were(log: EventLog) -> None:
    first = log.append(SwarmEvent(status="running", swarm="s"))
    second = log.append(ErrorEvent(message="ü\n", agent="a", branch="b"))

    assert (first.seq, second.seq, log.last) == (1, 2, 2)
    assert log.read() == [first, second]
    assert second.time.endswith("Z")
    assert [event.type for event in log.read()] == ["swarm", "error"]


def test_a_missing_event_log_is_empty(log: EventLog) -> None:
    assert (log.last, log.read()) == (0, [])
    assert not os.path.exists(log.path)


def test_the_event_log_is_private(log: EventLog) -> None:
    log.append(SwarmEvent(status="running"))

    assert stat.S_IMODE(os.stat(log.path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.dirname(log.path)).st_mode) == 0o700


@pytest.mark.parametrize(
    "after", [0, 1, INDEX_STEP - 1, INDEX_STEP, INDEX_STEP + 1, 3 * INDEX_STEP, 3 * INDEX_STEP + 9, 10_000]
)
def test_reading_starts_after_any_number(log: EventLog, after: int) -> None:
    fill(log, 3 * INDEX_STEP + 10)

    for reader in (log, EventLog(log.path)):
        assert [event.seq for event in reader.read(after)] == list(range(after + 1, 3 * INDEX_STEP + 11))


def test_a_negative_event_number_is_refused(log: EventLog) -> None:
    with pytest.raises(InvalidOperation, match="numbers start at 1"):
        log.read(-1)


def test_events_are_chosen_by_type_and_agent_and_limited(log: EventLog) -> None:
    fill(log, 10)
    log.append(SwarmEvent(status="completed"))

    assert [event.seq for event in log.read(types=["swarm"])] == [11]
    assert [event.seq for event in log.read(agent="agent-1")] == [2, 4, 6, 8, 10]
    assert [event.seq for event in log.read(after=3, agent="agent-1", limit=2)] == [4, 6]


async def test_follow_yields_old_and_new_events_once_and_in_order(log: EventLog) -> None:
    fill(log, 5)
    seen: list[int] = []

    async def follow() -> None:
        async for event in log.follow(after=2):
            seen.append(event.seq)
            if event.seq == 8:
                return

    following = asyncio.create_task(follow())
    while len(seen) < 3:
        await asyncio.sleep(0)
    EventLog(log.path).append(SwarmTextDelta(delta="another writer"))
    fill(log, 2)
    async with asyncio.timeout(60):
        await following

    assert seen == [3, 4, 5, 6, 7, 8]


def test_several_writers_share_one_numbering(log: EventLog) -> None:
    other = EventLog(log.path)

    for _ in range(20):
        log.append(SwarmTextDelta(delta="a"))
        other.append(SwarmTextDelta(delta="b"))

    assert [event.seq for event in log.read()] == list(range(1, 41))
    assert log.read() == other.read()


def test_writers_in_other_processes_share_one_numbering(log: EventLog) -> None:
    script = (
        "import sys\nfrom sessiontree.swarm.events import EventLog, SwarmTextDelta\nlog = EventLog(sys.argv[1])\n"
        "for _ in range(200): log.append(SwarmTextDelta(delta='x' * 50))"
    )
    writers = [subprocess.Popen([sys.executable, "-c", script, log.path]) for _ in range(2)]

    assert [writer.wait(60) for writer in writers] == [0, 0]
    assert [event.seq for event in log.read(limit=500)] == list(range(1, 401))


def test_a_torn_line_is_skipped_and_later_lines_are_read(log: EventLog) -> None:
    fill(log, 2)
    with open(log.path, "ab") as file:
        file.write(b'{"type":"text_delta","seq":3,"de')

    fresh = EventLog(log.path)
    assert [event.seq for event in fresh.read()] == [1, 2]
    fresh.append(SwarmTextDelta(delta="after"))
    log.append(SwarmTextDelta(delta="more"))
    assert [event.seq for event in log.read()] == [1, 2, 3, 4]


def test_lines_of_unknown_types_are_skipped(log: EventLog) -> None:
    fill(log, 1)
    with open(log.path, "ab") as file:
        file.write(b'{"type":"from_the_future","seq":2}\nno json\n\xff\n')

    assert [event.seq for event in log.read()] == [1]


def test_an_event_longer_than_one_read_is_read_completely(log: EventLog) -> None:
    log.append(SwarmTextDelta(delta="x" * 1_000_000))
    log.append(SwarmTextDelta(delta="y"))

    assert [len(event.delta) for event in EventLog(log.path).read()] == [1_000_000, 1]


def test_an_event_log_that_cannot_be_written_raises(tmp_path: Path) -> None:
    (tmp_path / "swarms").write_text("no folder")

    with pytest.raises(StoreError):
        EventLog(tmp_path / "swarms" / "a.events.jsonl").append(SwarmEvent(status="running"))


def test_a_temporary_event_log_is_deleted_on_close() -> None:
    log = EventLog()
    log.append(SwarmEvent(status="running"))
    path = log.path
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600

    del log

    assert not os.path.exists(path)


def test_a_swarm_id_cannot_escape_the_spool_folder() -> None:
    folder = os.path.dirname(build_spool_path("a"))

    for name in ("../../etc/passwd", "/etc/passwd", "", "a/b\0c", "x" * 500):
        assert os.path.dirname(os.path.abspath(build_spool_path(name))) == folder


# Events of a swarm


@st.tool
def look() -> str:
    """Look."""
    return "seen " * 500


async def test_a_run_emits_events_from_start_to_end(session: Session) -> None:
    def answer(request: Request) -> object:
        if "seen" in read_all_messages(request):
            return [Thinking("so it is"), "Done, I think."]
        return [ToolCall("c1", "look", {})]

    swarm = Swarm(session, "crowd", "Look", agents=1, model=build_model(answer), tools=[look])
    status = await swarm.run()

    events = swarm.events.read()
    assert [event.type for event in events] == [
        "branch",
        "swarm",
        "swarm",
        "branch",
        "agent_start",
        "turn_start",
        "tool_call_start",
        "tool_call_end",
        "turn_end",
        "turn_start",
        "thinking",
        "text_delta",
        "turn_end",
        "agent_complete",
        "swarm",
    ]
    assert {event.swarm for event in events} == {swarm.id}
    assert {event.agent for event in events[4:-1]} == {"worker-1"}
    assert {event.branch for event in events[4:-1]} == {"crowd/worker-1"}
    by_type = {event.type: event for event in events}
    assert isinstance(by_type["agent_start"], AgentStart)
    assert by_type["agent_start"].task == "Look"
    call, result = by_type["tool_call_start"], by_type["tool_call_end"]
    assert isinstance(call, SwarmToolCallStart)
    assert (call.call, call.tool, call.arguments) == ("c1", "look", {})
    assert isinstance(result, SwarmToolCallEnd)
    assert (result.ok, len(result.text)) == (True, 500)
    turn, done = by_type["turn_end"], by_type["agent_complete"]
    assert isinstance(turn, SwarmTurnEnd)
    assert (turn.number, turn.cost, turn.tokens) == (2, 0.1, 15)
    assert session.tree[turn.entry or ""].type == "message"
    assert isinstance(done, AgentComplete)
    assert (done.text, done.cost, done.tokens) == ("Done, I think.", 0.2, 30)
    assert set(by_type) < set(EVENT_TYPES)
    assert status.cost == 0.2


async def test_failures_and_retries_emit_events(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessiontree.swarm.agent_runner.FIRST_DELAY", 0.001)
    answers = iter([ModelError("m", "server", "down"), ModelError("m", "auth", "no key")])
    swarm = Swarm(session, "crowd", "Try", agents=1, model=build_model(lambda request: next(answers)))
    await swarm.run()

    error, failed = swarm.events.read(types=["error", "agent_fail"])[:2]

    assert error.message.startswith("m: down; retrying in")
    assert (failed.error, failed.attempts) == ("m: no key", 2)


async def test_deltas_are_joined_before_they_are_emitted(session: Session) -> None:
    """A thousand deltas make few events, and a pause flushes earlier deltas."""
    words = " ".join(str(number) for number in range(1000))
    swarm = Swarm(session, "crowd", "Talk", agents=1, model=ScriptedModel([[words, Delay(0.2), "The end."]]))
    await swarm.start()
    while not (told := swarm.events.read(types=["text_delta"])):
        await asyncio.sleep(0.01)
    status = await swarm.wait()

    told = swarm.events.read(types=["text_delta"])
    assert 2 <= len(told) < 100
    assert "".join(event.delta for event in told) == words + "The end."
    assert status.status == "completed"


async def test_a_reader_that_does_not_read_blocks_no_writer(session: Session) -> None:
    swarm = await Swarm.create(session, "crowd", "Talk", agents=2, model=build_model(lambda request: "word " * 200))
    stalled = swarm.events.follow()
    await anext(stalled)

    async with asyncio.timeout(60):
        status = await swarm.run()

    assert status.status == "completed"
    rest = [(await anext(stalled)).seq for _ in range(swarm.events.last - 1)]
    assert rest == list(range(2, swarm.events.last + 1))


async def test_events_of_a_session_on_disk_can_be_read_from_another_process(home: Path) -> None:
    session = st.create()
    swarm = Swarm(session, "crowd", "Do it", agents=1, model=build_model())
    await swarm.run()

    assert swarm.events.path == str(home / ".sessiontree" / "swarms" / f"{swarm.id}.events.jsonl")
    assert EventLog(build_spool_path(swarm.id)).read() == swarm.events.read()


async def test_without_event_streaming_nothing_is_written_and_nothing_can_be_read(home: Path) -> None:
    session = st.create()
    swarm = Swarm(session, "crowd", "Do it", agents=1, model=build_model(), enable_event_streaming=False)

    assert (await swarm.run()).status == "completed"

    with pytest.raises(InvalidOperation, match="swarm crowd does not have event streaming enabled"):
        swarm.events.read()
    with pytest.raises(InvalidOperation, match="event streaming"):
        Swarm.open(session, swarm.id).events.read()
    assert not list((home / ".sessiontree").rglob("*.events.jsonl"))
    await swarm.destroy()


async def test_a_swarm_continues_if_its_events_cannot_be_written(home: Path) -> None:
    session = st.create()
    hooks, notices = Hooks(), []
    hooks.listen(lambda event: notices.append(event) if isinstance(event, Notice) else None)
    swarm = await Swarm.create(session, "crowd", "Do it", agents=1, model=build_model(), hooks=hooks)
    swarm.events.delete()
    os.mkdir(swarm.events.path)

    status = await swarm.run()

    assert status.status == "completed"
    assert notices
    assert notices[0].text.startswith("swarm events were lost:")
