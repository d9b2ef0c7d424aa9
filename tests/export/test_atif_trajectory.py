"""Trajectories pass the models of the `atif` package, which the schema publishes."""

from __future__ import annotations

from pathlib import Path

import pytest
from atif import Trajectory
from hypothesis import given

import sessiontree as st
from sessiontree.export import export
from tests.interop.conformance import FIXTURES, read_file
from tests.strategies import sessions

RECORDED = sorted(FIXTURES.glob("claude/*/projects/*/*.jsonl")) + sorted(FIXTURES.glob("codex/**/rollout-*.jsonl"))
PIXEL = {"type": "image", "mimeType": "image/png", "data": "iVBORw0KGgo="}


def write(session: st.Session) -> Trajectory:
    return Trajectory.model_validate_json(session.export("atif").content)


def test_a_turn_with_a_call_is_one_step_with_its_result() -> None:
    session = st.memory(cwd="/project")
    session.append(st.user([{"type": "text", "text": "What is this?"}, PIXEL]))
    thinking = {"type": "thinking", "thinking": "Hm."}
    usage = {"input": 10, "output": 5, "cacheRead": 3, "cost": {"total": 0.01}}
    calls = [thinking, st.tool_call("c1", "look", {"at": 1})]
    session.append(st.assistant(calls, model="m", provider="p", usage=usage))
    session.append(st.tool_result("c1", "look", "a dot", error=True))
    session.append(st.assistant("A dot.", model="m", provider="p"))

    made = write(session)

    assert [step.source for step in made.steps] == ["user", "agent", "agent"]
    turn = made.steps[1]
    assert (turn.reasoning_content, turn.model_name) == ("Hm.", "m")
    assert turn.tool_calls is not None
    assert turn.tool_calls[0].arguments == {"at": 1}
    assert turn.observation is not None
    assert turn.observation.results[0].source_call_id == "c1"
    assert turn.observation.results[0].content == "a dot"
    assert turn.metrics is not None
    assert (turn.metrics.prompt_tokens, turn.metrics.cached_tokens, turn.metrics.cost_usd) == (13, 3, 0.01)
    assert made.final_metrics is not None
    assert made.final_metrics.total_prompt_tokens == 13
    assert made.has_multimodal_content()


def test_a_compaction_is_a_step_and_what_it_replaced_stays() -> None:
    session = st.memory()
    session.append(st.user("Old"))
    kept = session.append(st.assistant("Kept", model="m", provider="p"))
    session.append(st.Compaction(summary="They talked.", first_kept=kept.id))
    session.append(st.user("New"))

    made = write(session)

    assert [(step.source, (step.extra or {}).get("type")) for step in made.steps] == [
        ("user", None), ("agent", None), ("system", "compaction"), ("user", None),
    ]  # fmt: skip


def test_a_subagent_is_embedded_where_its_call_is_answered() -> None:
    [path] = FIXTURES.glob("claude/subagent/projects/*/*.jsonl")
    [conversation] = read_file(path)

    made = Trajectory.model_validate_json(export(conversation.lines, "atif").content)

    assert (made.agent.name, made.agent.version) == ("claude", "2.1.326")
    assert made.subagent_trajectories is not None
    [agent] = made.subagent_trajectories
    references = [
        (result.source_call_id, reference.trajectory_id)
        for step in made.steps
        for result in (step.observation.results if step.observation else ())
        for reference in result.subagent_trajectory_ref or ()
    ]
    assert [reference for _, reference in references] == [agent.trajectory_id]
    assert references[0][0] is not None
    assert agent.steps


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem[-12:])
def test_every_recorded_session_is_a_valid_trajectory(path: Path) -> None:
    for conversation in read_file(path):
        assert Trajectory.model_validate_json(export(conversation.lines, "atif").content).steps


@given(sessions())
def test_any_session_is_a_valid_trajectory(data: bytes) -> None:
    assert Trajectory.model_validate_json(export(data.split(b"\n")[:-1], "atif").content)
