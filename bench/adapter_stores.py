"""Measure the stores of adapters beside the stores that the frameworks bring, in one run.

    python bench/adapter_stores.py [TURNS]

LangGraph: a graph with one node, and a conversation of as many turns. `SqliteSaver` and `TreeSaver` take turns, so that
the ratio of the times does not depend on the load of the machine. The sizes are those of all files.

Claude Agent SDK: what a store adds to a turn, as the SDK calls it: one batch with the records of a prompt and an
answer. `tests/peers/claude_turns.py` measures whole turns with the real CLI.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import statistics
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Annotated, Any, TypedDict

import claude_agent_sdk as sdk
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

from sessiontree.adapters.claude import TreeSessionStore
from sessiontree.adapters.langgraph import TreeSaver

TEXT = "a sentence of an ordinary length, as people and models write it. " * 5


class State(TypedDict):
    messages: Annotated[list[Any], add_messages]


def answer(state: State) -> State:
    return {"messages": [AIMessage(f"{uuid.uuid4()} {TEXT}")]}


def build_graph(saver: Any) -> Any:
    graph = StateGraph(State)
    graph.add_node("model", answer)
    graph.add_edge(START, "model")
    graph.add_edge("model", END)
    return graph.compile(checkpointer=saver)


def measure_size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def measure_langgraph(turns: int, root: Path) -> None:
    (root / "sqlite").mkdir()
    savers = {
        "SqliteSaver": SqliteSaver(sqlite3.connect(root / "sqlite" / "db", check_same_thread=False)),
        "TreeSaver": TreeSaver(root / "tree"),
    }
    graphs = {name: build_graph(saver) for name, saver in savers.items()}
    seconds: dict[str, list[float]] = {name: [] for name in savers}
    config = {"configurable": {"thread_id": "thread"}}
    print("messages   SqliteSaver      TreeSaver      median of a turn: SqliteSaver, TreeSaver, ratio")
    for turn in range(1, turns + 1):
        for name, graph in graphs.items():
            started = time.perf_counter()
            graph.invoke({"messages": [HumanMessage(f"{turn} {TEXT}")]}, config)
            seconds[name].append(time.perf_counter() - started)
        if turn in (turns // 4, turns // 2, turns):
            theirs, ours = (statistics.median(each[-turn // 2 :]) for each in seconds.values())
            sizes = measure_size(root / "sqlite"), measure_size(root / "tree")
            print(
                f"{2 * turn:8}{sizes[0] / 1e6:11.2f} MB{sizes[1] / 1e6:12.2f} MB"
                f"{theirs * 1000:24.1f} ms{ours * 1000:8.1f} ms{ours / theirs:8.2f}"
            )


def build_batch(parent: str | None) -> list[Any]:
    """Return the records of a prompt and its answer."""
    prompt, reply = str(uuid.uuid4()), str(uuid.uuid4())
    question = {"role": "user", "content": TEXT}
    said = {
        "id": reply,
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": TEXT}],
    }
    return [
        {"type": "user", "uuid": prompt, "parentUuid": parent, "message": question},
        {"type": "assistant", "uuid": reply, "parentUuid": prompt, "message": said},
    ]


async def measure_claude(turns: int, root: Path) -> None:
    key: sdk.SessionKey = {"project_key": "project", "session_id": str(uuid.uuid4())}
    stores = {"InMemorySessionStore": sdk.InMemorySessionStore(), "TreeSessionStore": TreeSessionStore(root / "claude")}
    seconds: dict[str, list[float]] = {name: [] for name in stores}
    parent = None
    for _ in range(turns):
        batch = build_batch(parent)
        parent = batch[-1]["uuid"]
        for name, store in stores.items():
            started = time.perf_counter()
            await store.append(key, batch)
            seconds[name].append(time.perf_counter() - started)
    print("\nmedian of a batch:", {name: f"{statistics.median(each) * 1000:.2f} ms" for name, each in seconds.items()})


def main() -> None:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SESSIONTREE_HOME"] = f"{folder}/home"
        measure_langgraph(turns, Path(folder))
        asyncio.run(measure_claude(turns, Path(folder)))


if __name__ == "__main__":
    main()
