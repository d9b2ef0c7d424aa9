"""Replay: a tracked swarm and one read from the file have the same state, and invalid files can be read."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

import sessiontree as st
from sessiontree.core.entries import AgentAction, Custom
from sessiontree.errors import NotFound
from sessiontree.model.base import ModelError
from sessiontree.model.scripted import ScriptedStop
from sessiontree.session import Session
from sessiontree.store.memory import MemoryStore
from sessiontree.swarm.journal import SwarmJournal, list_swarms
from sessiontree.swarm.records import (
    SWARM_RECORD_TYPE,
    AgentSpec,
    CancelledRecord,
    CompletedRecord,
    CreatedRecord,
    FailAction,
    PausedRecord,
    SpawnAction,
    SwarmRecord,
    build_action_body,
    build_record_body,
    read_action,
    read_record,
)
from sessiontree.swarm.replay import SwarmTracker
from sessiontree.swarm.swarm import Swarm
from tests.swarm.conftest import CallGate, build_model


def reopen(session: Session) -> Session:
    store = MemoryStore()
    store.create(session.read_lines())
    return Session(store)


@pytest.mark.parametrize("strategy", ["parallel", "map-reduce", "pipeline", "tree"])
async def test_a_reopened_swarm_has_the_same_status(session: Session, strategy: str) -> None:
    swarm = Swarm(session, "crowd", "Do it", strategy=strategy, model=build_model())

    status = await swarm.run()

    assert list_swarms(reopen(session)) == [status]


async def test_a_truncated_answer_is_reported_as_the_agents_error(session: Session) -> None:
    answers = {"one": ["Half of an ans", ScriptedStop("length")], "two": "Whole."}
    model = build_model(lambda request: answers[str(request.messages[-1]["content"]).split()[-1]])
    specs = [AgentSpec(name=name, task=f"Do {name}") for name in answers]

    status = await Swarm(session, "crowd", "Do it", agents=specs, model=model).run()

    assert [(agent.status, agent.text, agent.error) for agent in status.agents] == [
        ("completed", "Half of an ans", "its answer was cut off"),
        ("completed", "Whole.", None),
    ]


async def test_the_status_of_a_running_swarm_is_current(session: Session) -> None:
    doors = CallGate()
    swarm = Swarm(session, "crowd", "Do it", model=build_model(doors))
    await swarm.start()
    await doors.wait_for_calls(2)

    (status,) = list_swarms(reopen(session))

    assert (status.status, status.progress) == ("running", 0)
    assert [(agent.status, agent.attempts) for agent in status.agents] == [("running", 1), ("running", 1)]
    await swarm.cancel()


@pytest.mark.parametrize("renamed", [{"from": "crowd", "to": 7}, {"from": "crowd"}, ["crowd", "other"], None])
async def test_an_invalid_rename_record_renames_no_branch_of_a_swarm(session: Session, renamed: Any) -> None:
    await Swarm(session, "crowd", "Do it", model=build_model()).run()
    data = {**session.heads.build_record().data, "renamed": renamed}
    line = {
        "type": "custom",
        "id": "odd",
        "parentId": session.head.leaf,
        "customType": "sessiontree.head",
        "data": data,
    }
    store = MemoryStore()
    store.create([*session.read_lines(), msgspec.json.encode(line)])

    (status,) = list_swarms(Session(store))

    assert status.branch == "crowd"


async def test_a_swarm_with_only_failed_agents_has_no_progress(session: Session) -> None:
    model = build_model(lambda request: ModelError("m", "auth", "no key"))

    status = await Swarm(session, "crowd", "Do it", agents=3, model=model).run()

    assert [agent.status for agent in status.agents] == ["failed"] * 3
    assert (status.status, status.progress) == ("failed", 0)


async def test_the_progress_of_a_cancelled_swarm_counts_completed_agents(session: Session) -> None:
    doors = CallGate()
    swarm = Swarm(session, "crowd", "Do it", agents=4, model=build_model(doors))
    await swarm.start()
    await doors.wait_for_calls(4)
    doors.open()
    while not any(agent.status == "completed" for agent in swarm.status().agents):
        await asyncio.sleep(0)

    await swarm.cancel()

    assert (swarm.status().status, swarm.status().progress) == ("cancelled", 0.25)


async def test_agents_cancelled_by_scaling_do_not_count_as_remaining_work(session: Session) -> None:
    doors = CallGate()
    swarm = Swarm(session, "crowd", "Do it", agents=4, model=build_model(doors))
    await swarm.start()
    await doors.wait_for_calls(4)
    await swarm.scale(2)
    while sum(agent.status == "cancelled" for agent in swarm.status().agents) < 2:
        await asyncio.sleep(0)
    doors.open()
    while not any(agent.status == "completed" for agent in swarm.status().agents):
        await asyncio.sleep(0)

    assert swarm.status().progress == 0.5
    await swarm.cancel()


async def test_the_time_of_a_running_swarm_advances_without_writes(session: Session) -> None:
    doors, later = CallGate(), [0]
    swarm = Swarm(
        session,
        "crowd",
        "Do it",
        agents=1,
        model=build_model(doors),
        now=lambda: time.time_ns() // 1_000_000 + later[0],
    )
    await swarm.start()
    await doors.wait_for_calls(1)
    before = swarm.status()

    later[0] = 60_000
    after = swarm.status()

    assert after.seconds >= before.seconds + 60
    assert after.agents[0].seconds >= before.agents[0].seconds + 60
    await swarm.cancel()


async def test_later_messages_on_an_agents_branch_do_not_count_as_the_agents(session: Session) -> None:
    swarm = Swarm(session, "crowd", "Do it", agents=1, model=build_model())
    status = await swarm.run()

    session.append(st.user("And now?"), branch="crowd/worker-1")
    session.append(st.assistant("Now.", usage={"input": 1, "output": 1, "cost": 9}), branch="crowd/worker-1")

    assert swarm.status() == status


@pytest.mark.parametrize(
    "fact", [CreatedRecord(swarm="a", name="b", task="c", strategy="d", agents=1), PausedRecord(swarm="a")]
)
def test_records_are_read_as_they_were_written(fact: Any) -> None:
    assert read_record(build_record_body(fact)) == fact


@pytest.mark.parametrize(
    "deed",
    [SpawnAction(swarm="a", role="b", task="c", branch="d", reads=("e",)), FailAction(swarm="a", error="b", attempt=1)],
)
def test_actions_are_read_as_they_were_written(deed: Any) -> None:
    assert read_action(build_action_body("x", deed)) == deed


json = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=5),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
EVENTS = [kind.__struct_config__.tag for kind in SwarmRecord.__subclasses__()]
ACTIONS = ["spawn", "begin", "complete", "fail", "cancel", "branch", "join", "fork", "nonsense"]
FIELDS = [
    "swarm", "name", "task", "strategy", "agents", "role", "branch", "error", "attempt", "retry",
    "parts", "budget", "scope", "kind", "level", "used", "limit", "reason",
]  # fmt: skip
words = some.sampled_from(["s", "a", "main", "x", ""])


@given(
    some.lists(
        some.tuples(
            some.booleans(),
            some.sampled_from([*EVENTS, "nonsense"]),
            some.sampled_from(ACTIONS),
            words,
            some.dictionaries(
                some.sampled_from(FIELDS),
                json | words | some.just(1) | some.just({"cost": 0}),
            ),
        ),
        max_size=8,
    )
)
def test_any_swarm_entries_in_a_file_can_be_read(lines: list[Any]) -> None:
    session = st.memory()
    session.append(build_record_body(CreatedRecord(swarm="s", name="main", task="t", strategy="p", agents=1)))
    for is_fact, event, action, agent, data in lines:
        fields = {"swarm": "s", **data}
        if is_fact:
            session.append(Custom(custom_type=SWARM_RECORD_TYPE, data={"event": event, **fields}))
        else:
            session.append(AgentAction(action=action, agent=agent, data=fields))
        session.append(st.assistant("x", usage={"input": 1, "cost": 1}))

    told = list_swarms(session)

    assert told[0].id == "s"
    assert told == list_swarms(reopen(session))


async def test_only_the_first_end_record_counts(session: Session) -> None:
    swarm = await Swarm.create(session, "crowd", "Do it", model=build_model())
    for fact in (
        CancelledRecord(swarm=swarm.id, reason="enough"),
        CompletedRecord(swarm=swarm.id),
        PausedRecord(swarm=swarm.id),
    ):
        session.append(build_record_body(fact), branch="crowd")

    assert (swarm.status().status, swarm.status().reason) == ("cancelled", "enough")
    await swarm.destroy()
    assert swarm.status().status == "destroyed"


async def test_the_first_of_two_records_with_the_same_id_counts(session: Session) -> None:
    swarm = await Swarm.create(session, "crowd", "Do it", model=build_model())
    session.append(
        build_record_body(CreatedRecord(swarm=swarm.id, name="main", task="Take over", strategy="x", agents=99))
    )

    assert swarm.status().task == "Do it"


async def test_records_are_appended_after_entries_of_other_writers(tmp_path: Any) -> None:
    file = tmp_path / "s.jsonl"
    session = st.create(file=file)
    swarm = await Swarm.create(session, "crowd", "Do it", model=build_model())
    with st.open(file) as other:
        other.append(st.user("Me too"), branch="crowd")

    await SwarmJournal(session, swarm.id).append_record(PausedRecord(swarm=swarm.id))

    assert [entry.type for entry in session.branch("crowd").path()][-2:] == ["message", "custom"]
    assert not session.problems


@pytest.mark.parametrize("whole", [True, False])
async def test_a_fork_copies_messages_but_no_swarms(session: Session, whole: bool) -> None:
    swarm = await Swarm.create(session, "crowd", "Do it", model=build_model())

    forked = session.fork(at="crowd", whole=whole)

    assert "sessiontree.swarm" in {entry.custom_type for entry in forked.tree.entries}
    assert list_swarms(forked) == []
    assert [status.id for status in list_swarms(reopen(session))] == [swarm.id]
    with pytest.raises(NotFound):
        Swarm.open(forked, swarm.id)


def test_a_swarm_without_a_session_id_belongs_to_its_session(session: Session) -> None:
    session.append(
        build_record_body(CreatedRecord(swarm="old", name="main", task="Do it", strategy="parallel", agents=1))
    )

    assert [status.id for status in list_swarms(session)] == ["old"]


def test_a_session_without_swarms_lists_none() -> None:
    assert list_swarms(st.memory()) == []
    assert SwarmTracker(st.memory()).read().swarms == {}


async def test_the_state_of_a_swarm_is_read_from_its_creation_on(tmp_path: Path) -> None:
    file = tmp_path / "long.jsonl"
    with st.create(file=file) as long:
        for number in range(40):
            long.extend([st.user(f"{number} {count} " + "x" * 200) for count in range(100)])
        long.append(st.Compaction(summary="Much was said.", first_kept=long.head.leaf, tokens_before=9))
        swarm = Swarm(long, "crowd", "Do it", model=build_model())
        status = await swarm.run()

    with st.open(file) as session:
        state = SwarmJournal(session, swarm.id).state
        assert (state.status, len(state.agents)) == ("completed", 2)
        assert Swarm.open(session, swarm.id).status() == status
        assert session.tree.is_partial
        assert Swarm.open(session, "crowd").status() == status  # by its name
        session.tree.load()
        assert SwarmJournal(session, swarm.id).state.build_status(None, session.id) == status
        assert list_swarms(session) == [status]


async def test_a_tracked_swarm_stays_the_same_when_earlier_entries_are_loaded(tmp_path: Path) -> None:
    file = tmp_path / "long.jsonl"
    with st.create(file=file) as long:
        long.extend([st.user(f"{count} " + "x" * 2000) for count in range(400)])
        long.append(st.Compaction(summary="Much was said.", first_kept=long.head.leaf, tokens_before=9))
        swarm = Swarm(long, "crowd", "Do it", model=build_model())
        await swarm.run()

    with st.open(file) as session:
        journal = SwarmJournal(session, swarm.id)
        turns = [agent.turns for agent in journal.state.agents.values()]
        assert turns == [1, 1]
        session.tree.load()
        session.append(st.user("one more"))
        assert [agent.turns for agent in journal.state.agents.values()] == turns
