"""What a turn of an agent takes with our adapters, compared with the default store of each framework.

    bench/adapters.py                50 turns of each
    bench/adapters.py --turns 20

A turn loads the conversation, asks a model that answers at once, and stores the result. All stores take every turn one
after the other, so other load on the machine affects them equally. A ratio is the median of the ratios of all turns.
Ours runs twice, with `durability="fsync"`, the default, and with `"flush"`, which leaves the time of writing to the
system. The ratio of processor time is that of the default.

The turns of the Claude Agent SDK are those of the real command that it brings, in a network namespace with a model on
the loopback interface. `bench/adapter_stores.py` measures sizes, and what a batch costs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, NamedTuple

Turn = Callable[[int], Awaitable[None]]
AIM = 1.2


class AdapterRow(NamedTuple):
    """One row of the table: a framework, its default store, and how to make a turn with it and with both of ours."""

    framework: str
    default: str
    prepare: Callable[[Path], tuple[Turn, Turn, Turn]]


class TurnFigures(NamedTuple):
    """Median seconds of a turn, and the ratios of ours to the default store."""

    default: float
    ours: float
    ratio: float
    flush_ratio: float | None = None
    processor_ratio: float | None = None


def prepare_pydantic_ai(folder: Path) -> tuple[Turn, Turn, Turn]:
    from pydantic_ai import Agent, Conversation, UsageLimits
    from pydantic_ai.conversation_store import ConversationStore, InMemoryConversationStore
    from pydantic_ai.models.test import TestModel

    from sessiontree.adapters.pydantic_ai import TreeConversationStore

    agent = Agent(TestModel(call_tools=["weather"], custom_output_text="It rains. " * 20))
    agent.tool_plain(lambda city: f"Rain in {city}. " * 20, name="weather")

    def build_turn(store: ConversationStore) -> Turn:
        async def take_turn(number: int) -> None:
            conversation = await store.load("c") or Conversation(conversation_id="c")
            limits = UsageLimits(request_limit=None)
            await store.save(await agent.run(f"Question {number}", conversation=conversation, usage_limits=limits))

        return take_turn

    return (
        build_turn(InMemoryConversationStore()),
        build_turn(TreeConversationStore(folder / "fsync")),
        build_turn(TreeConversationStore(folder / "flush", durability="flush")),
    )


def prepare_openai_agents(folder: Path) -> tuple[Turn, Turn, Turn]:
    from agents import Agent, Model, ModelResponse, RunConfig, Runner, SQLiteSession, Usage, function_tool
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

    from sessiontree.adapters.openai_agents import TreeSession

    class QuickModel(Model):
        """Calls a tool, then answers."""

        async def get_response(self, system_instructions: Any, input: Any, *args: Any, **options: Any) -> ModelResponse:
            if input[-1].get("type") == "function_call_output":
                text = ResponseOutputText(text="It rains. " * 20, type="output_text", annotations=[], logprobs=[])
                output: list[Any] = [
                    ResponseOutputMessage(
                        id="msg_1", content=[text], role="assistant", status="completed", type="message"
                    )
                ]
            else:
                arguments = '{"city":"Ulm"}'
                call = f"call_{len(input)}"
                output = [
                    ResponseFunctionToolCall(call_id=call, name="weather", arguments=arguments, type="function_call")
                ]
            usage = Usage(requests=1, input_tokens=100, output_tokens=10, total_tokens=110)
            return ModelResponse(output=output, usage=usage, response_id=None)

        def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
            raise NotImplementedError

    @function_tool
    def weather(city: str) -> str:
        """Return the weather."""
        return f"Rain in {city}. " * 20

    agent = Agent(name="a", model=QuickModel(), tools=[weather])

    def build_turn(session: Any) -> Turn:
        async def take_turn(number: int) -> None:
            await Runner.run(agent, f"Question {number}", session=session, run_config=RunConfig(tracing_disabled=True))

        return take_turn

    return (
        build_turn(SQLiteSession("s", folder / "sessions.db")),
        build_turn(TreeSession("s", folder / "fsync")),
        build_turn(TreeSession("s", folder / "flush", durability="flush")),
    )


def prepare_langgraph(folder: Path) -> tuple[Turn, Turn, Turn]:
    import sqlite3

    from langchain_core.messages import HumanMessage
    from langgraph.checkpoint.sqlite import SqliteSaver

    from adapter_stores import build_graph
    from sessiontree.adapters.langgraph import TreeSaver

    def build_turn(saver: Any) -> Turn:
        graph, config = build_graph(saver), {"configurable": {"thread_id": "thread"}}

        async def take_turn(number: int) -> None:
            graph.invoke({"messages": [HumanMessage(f"Question {number}. " * 20)]}, config)

        return take_turn

    database = sqlite3.connect(folder / "checkpoints.db", check_same_thread=False)
    return (
        build_turn(SqliteSaver(database)),
        build_turn(TreeSaver(folder / "fsync")),
        build_turn(TreeSaver(folder / "flush", durability="flush")),
    )


ROWS = [
    AdapterRow("pydantic-ai", "InMemoryConversationStore", prepare_pydantic_ai),
    AdapterRow("OpenAI Agents SDK", "SQLiteSession", prepare_openai_agents),
    AdapterRow("LangGraph", "SqliteSaver", prepare_langgraph),
]
CLAUDE_TURNS = 8


async def measure(row: AdapterRow, turns: int) -> TurnFigures:
    """Measure the turns of one framework with all stores."""
    with tempfile.TemporaryDirectory() as folder:
        sides = row.prepare(Path(folder))
        times: list[list[float]] = [[] for _ in sides]
        processor_times: list[list[float]] = [[] for _ in sides]
        for number in range(turns):
            for shift in range(len(sides)):
                side = (number + shift) % len(sides)
                start, processor_start = perf_counter(), process_time()
                await sides[side](number)
                times[side].append(perf_counter() - start)
                processor_times[side].append(process_time() - processor_start)
        default, ours, flushed = times
        return TurnFigures(
            statistics.median(default),
            statistics.median(ours),
            compute_ratio(default, ours),
            compute_ratio(default, flushed),
            compute_ratio(*processor_times[:2]),
        )


def compute_ratio(default: list[float], ours: list[float]) -> float:
    """Return the median of the ratios of all turns but the first, which loads modules and creates the session."""
    return statistics.median(mine / other for other, mine in list(zip(default, ours, strict=True))[1:])


def measure_claude(turns: int) -> TurnFigures:
    """Return what `measure` returns without the last two ratios, for the real command of the Claude Agent SDK."""
    peers = Path(__file__).parents[1] / "tests" / "peers"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "project").mkdir()
        env = {
            "HOME": str(folder / "user"),
            "PATH": os.environ["PATH"],
            "SESSIONTREE_HOME": str(folder / "home"),
            "ANTHROPIC_BASE_URL": "http://127.0.0.1:8799",
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        argv = [sys.executable, str(peers / "claude_turns.py"), str(folder / "sessions"), str(turns)]
        commands, log = folder / "commands.json", folder / "log.json"
        commands.write_text(json.dumps([{"argv": argv, "cwd": str(folder / "project"), "env": env}]))
        namespace = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]
        server = [sys.executable, str(peers / "loopback_model.py"), str(log), str(commands)]
        subprocess.run([*namespace, *server], check=True)
        said = json.loads(log.read_text())[0]["said"]
    seconds = json.JSONDecoder().raw_decode(said[said.index("{") :])[0]["seconds"]
    default, ours = seconds["memory"], seconds["tree"]
    return TurnFigures(statistics.median(default), statistics.median(ours), compute_ratio(default, ours))


def report(framework: str, store: str, figures: TurnFigures) -> None:
    text = f"{store} {figures.default * 1000:.1f} ms, ours {figures.ours * 1000:.1f} ms, ratio {figures.ratio:.2f}"
    if figures.flush_ratio is not None:
        text += f", with flush {figures.flush_ratio:.2f}, of processor time {figures.processor_ratio:.2f}"
    print(f"  {framework:20} {text}{'' if figures.ratio <= AIM else '  MISSED'}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=50)
    turns = parser.parse_known_args()[0].turns
    print(f"A turn with the adapters, after up to {turns} turns (aim: at most {AIM} times)")
    for row in ROWS:
        report(row.framework, row.default, asyncio.run(measure(row, turns)))
    if shutil.which("unshare") is None:
        print("  Claude Agent SDK     not measured: unshare was not found")
    else:
        report("Claude Agent SDK", "InMemorySessionStore", measure_claude(min(turns, CLAUDE_TURNS)))


if __name__ == "__main__":
    main()
