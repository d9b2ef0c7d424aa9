"""A long session: hundreds of turns with tools, compactions, branches and merges, with constant memory."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import msgspec
import pytest

import sessiontree as st
from sessiontree.agent.agent import Agent
from sessiontree.agent.tool import tool
from sessiontree.core.messages import ToolCall, get_answered_call, get_role, get_tool_calls
from sessiontree.model.base import ModelEvent, Request
from sessiontree.model.scripted import INFO, ScriptedModel
from sessiontree.ops.merge import merge
from sessiontree.ops.navigate import navigate
from sessiontree.ops.summarize import SummaryRequest
from tests.reliability.harness import times

OUTPUT = "data " * 1600
"""The output of a tool: 8,000 bytes, which fills 30,000 tokens after a dozen turns."""


@tool
def fetch() -> str:
    """Fetch."""
    return OUTPUT


class Worker(ScriptedModel):
    """Answers every prompt with a call, every result with a sentence, and summarizes when asked."""

    def __init__(self) -> None:
        super().__init__(info=msgspec.structs.replace(INFO, context_window=30_000))
        self.count = self.summaries = 0

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent]:
        self.count += 1
        check(request)
        if not request.tools:
            self.summaries += 1
            self.add("What was said so far.")
        elif get_role(request.messages[-1]) == "user":
            self.add(ToolCall(f"c{self.count}", "fetch", {}))
        else:
            self.add("It is done.")
        async for event in super().stream(request):
            yield event
        self.requests.clear()


def check(request: Request) -> None:
    """Check that every call has its result right after its turn."""
    waiting: list[str] = []
    for message in request.messages:
        if (call := get_answered_call(message)) is not None:
            assert call == waiting.pop(0)
        else:
            assert not waiting
            waiting = [call.id for call in get_tool_calls(message)]
    assert not waiting


@pytest.fixture
def unmeasured_threads() -> Iterator[None]:
    """Do not measure coverage of threads: it keeps a tracer for every thread, and each tool call has one."""
    before = threading.gettrace()
    threading.settrace(None)
    yield
    threading.settrace(before)


@pytest.mark.usefixtures("unmeasured_threads")
async def test_a_long_conversation_stays_complete_and_memory_does_not_grow(tmp_path: Path) -> None:
    turns = times(120, torture=2000)
    file = tmp_path / "s.jsonl"
    session = st.create(file=file, durability="none")
    model = Worker()
    agent = Agent(session.head, model, [fetch], system="")
    memory: list[int] = []
    tracemalloc.start()
    try:
        for turn in range(1, turns + 1):
            assert (await agent.run(f"turn {turn}")).ok
            if turn % 20 == 0:
                branch = session.create_branch(f"side-{turn}", current=False)
                side = Agent(branch, model, [fetch], system="")
                assert (await side.run("beside")).ok
                await side.close()
                assert (
                    await merge(branch, session.head, hooks=agent.hooks, summary=SummaryRequest(model=model))
                ).summary_entry
                session.archive_branch(branch.name)
            if turn % 30 == 0:
                back = [entry for entry in session.head.path() if entry.type == "message"][-6]
                moved = await navigate(session, back, hooks=agent.hooks, summary=SummaryRequest(model=model))
                assert moved.summary_entry
            memory.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()

    quarter = turns // 4
    early, late = min(memory[quarter : 2 * quarter]), min(memory[-quarter:])
    assert file.stat().st_size > turns * len(OUTPUT)
    assert (late - early) / (2 * quarter) < len(OUTPUT) / 2, "bodies outside of the context stay in memory"
    assert model.summaries > turns // 20
    context = session.head.context()
    session.close()
    assert st.open(file).context() == context
    assert [problem for problem in st.open(file).problems if problem.severity == "fault"] == []
