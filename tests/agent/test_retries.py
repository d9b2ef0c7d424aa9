"""Broken streams: the partial answer is kept and the request is retried."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import sessiontree as st
from sessiontree.agent.agent import Agent
from sessiontree.config import CompactionSettings, Config, ModelSettings, RetrySettings
from sessiontree.core.messages import ToolCall
from sessiontree.hooks.events import RetryScheduled, RunEnd
from sessiontree.model.adapter import ProviderModel
from sessiontree.model.base import ModelError
from sessiontree.model.providers import ModelTarget
from sessiontree.model.scripted import ScriptedModel
from sessiontree.session import Session
from tests.agent.conftest import (
    MakeAgent,
    format_messages,
    format_request,
    get_last_message,
    get_messages,
    get_scripted_model,
    record_events,
)
from tests.model.fake_server import FakeServer, cut

SOON = Config(retry=RetrySettings(base_delay=0.01))
BROKEN = ModelError("scripted:scripted", "network", "the stream was cut off")


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


def create_agent(session: Session, server: FakeServer, settings: Config = SOON) -> Agent:
    target = ModelTarget(provider="vllm", model="qwen", api="openai-completions", base_url=server.url, key="secret")
    return Agent(session.head, ProviderModel(target, ModelSettings()), system="", settings=settings)


async def test_a_broken_connection_is_retried_without_losing_anything(server: FakeServer, session: Session) -> None:
    server.add(cut("This is not"), cut("This is nearly"), "This is whole.")
    made = create_agent(session, server)
    reported = record_events(made.hooks)

    outcome = await made.run("Go")

    assert outcome.ok
    assert format_messages(session.head) == [
        "user: Go",
        "assistant: This is not",
        "assistant: This is nearly",
        "assistant: This is whole.",
    ]
    assert [message["stopReason"] for message in get_messages(session.head.path())[1:]] == ["error", "error", "stop"]
    retries = [event for event in reported if isinstance(event, RetryScheduled)]
    assert [(retry.attempt, retry.attempts) for retry in retries] == [(1, 4), (2, 4)]
    assert "the stream was cut off" in retries[0].text
    assert retries[0].text.endswith("Retrying (1 of 3)")
    asked = [request["messages"] for request in server.requests]
    assert asked[0] == asked[1] == asked[2], "what was cut off is not sent"


async def test_a_connection_that_keeps_breaking_is_an_error_after_three_retries(
    server: FakeServer, session: Session
) -> None:
    server.add(*[cut("Half")] * 4, "Never.")
    made = create_agent(session, server)

    outcome = await made.run("Go")

    assert isinstance(outcome.error, ModelError)
    assert len(server.requests) == 4
    assert format_messages(session.head) == ["user: Go", *["assistant: Half"] * 4]


async def test_each_turn_has_its_own_retries(agent: MakeAgent) -> None:
    call = ToolCall("c1", "none", {})
    made = agent(["A", BROKEN], ["B", BROKEN], call, ["C", BROKEN], ["D", BROKEN], "Done.", settings=SOON)
    reported = record_events(made.hooks)

    assert (await made.run("Go")).text == "Done."

    assert [event.attempt for event in reported if isinstance(event, RetryScheduled)] == [1, 2, 1, 2]


@pytest.mark.parametrize("kind", ["auth", "rejected", "overflow"])
async def test_a_permanent_failure_is_not_retried(agent: MakeAgent, kind: str) -> None:
    error = ModelError("scripted:scripted", kind, "no")  # pyright: ignore[reportArgumentType]
    made = agent(
        ["Half", error], "Never.", settings=Config(retry=SOON.retry, compaction=CompactionSettings(enabled=False))
    )

    assert (await made.run("Go")).error is error
    assert len(get_scripted_model(made).requests) == 1


async def test_a_failure_before_the_stream_starts_is_retried_by_the_model_itself(agent: MakeAgent) -> None:
    made = agent(BROKEN, "Never.", settings=SOON)

    assert (await made.run("Go")).error is BROKEN


async def test_waiting_for_a_retry_can_be_aborted(agent: MakeAgent, session: Session) -> None:
    made = agent(["Half ", BROKEN], "Later.", settings=Config(retry=RetrySettings(base_delay=3600)))
    reported = record_events(made.hooks)
    scheduled = asyncio.Event()
    made.hooks.listen(lambda event: scheduled.set() if isinstance(event, RetryScheduled) else None)
    asking = asyncio.create_task(made.run("Go"))
    await asyncio.wait_for(scheduled.wait(), 60)

    made.abort()
    outcome = await asyncio.wait_for(asking, 60)

    assert outcome.aborted
    assert not outcome.cancelled
    assert isinstance(reported[-1], RunEnd)
    assert get_last_message(session.head)["stopReason"] == "error"
    assert format_messages(session.head) == ["user: Go", "assistant: Half "]
    assert (await made.continue_()).text == "Later."
    assert format_request(made) == ["user: Go"]


async def test_a_tool_call_from_a_broken_stream_is_not_run(session: Session) -> None:
    made_calls: list[str] = []

    @st.tool
    def act() -> str:
        """Act."""
        made_calls.append("act")
        return "done"

    model = ScriptedModel([[ToolCall("c1", "act", {}), BROKEN], "Done."])
    made = Agent(session.head, model, [act], system="", settings=SOON)

    assert (await made.run("Go")).text == "Done."
    assert made_calls == []
