"""One measurement of a peer in Python, in a separate process: `python peers.py PEER TASK '{"file": ...}'`.

Runs in an environment that has the peers and not sessiontree. Imports are not timed. Prints one line of
JSON; times are in seconds. The task `version` reports whether the peer is installed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Callable
from importlib import metadata
from time import perf_counter
from typing import Any

Json = dict[str, Any]
PACKAGES = {"pp": "pp-coding-agent", "openai": "openai-agents", "langgraph": "langgraph-checkpoint-sqlite"}


def pp_context(file: str) -> Json:
    from pi_coding_agent.core.session_manager import SessionManager

    start = perf_counter()
    found = SessionManager.open(file).build_session_context()
    return {"seconds": perf_counter() - start, "messages": len(found.messages)}


def pp_append(file: str, count: int, scratch: str) -> Json:
    from pi_coding_agent.core import session_manager

    wires = messages(file, count)
    typed = [session_manager._message_from_raw(wire) for wire in wires]  # what it reads from files
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        manager = session_manager.SessionManager.create("/project", folder)
        for message in typed[:20]:
            manager.append_message(message)
        start = perf_counter()
        for message in typed:
            manager.append_message(message)
        seconds = (perf_counter() - start) / len(typed)
        size = os.path.getsize(manager.get_session_file() or "")
    return {"seconds": seconds, "disk": size / payload([*wires, *wires[:20]])}


def openai_append(file: str, count: int, scratch: str) -> Json:
    from agents import SQLiteSession

    wires = messages(file, count)

    async def run(path: str) -> float:
        session = SQLiteSession("s", path)
        await session.add_items(wires[:1])  # type: ignore[arg-type]
        start = perf_counter()
        for wire in wires:
            await session.add_items([wire])  # type: ignore[list-item]
        seconds = perf_counter() - start
        session.close()
        return seconds

    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        seconds = asyncio.run(run(os.path.join(folder, "s.db"))) / len(wires)
        size = sum(entry.stat().st_size for entry in os.scandir(folder))
    return {"seconds": seconds, "disk": size / payload([*wires, *wires[:1]])}


def langgraph_append(file: str, count: int, scratch: str) -> Json:
    """Each checkpoint holds the whole conversation so far, which is how the saver is used."""
    from langgraph.checkpoint.base import empty_checkpoint
    from langgraph.checkpoint.sqlite import SqliteSaver

    wires = messages(file, count)
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        with SqliteSaver.from_conn_string(os.path.join(folder, "s.db")) as saver:
            saver.setup()
            config: Any = {"configurable": {"thread_id": "s", "checkpoint_ns": ""}}
            start = perf_counter()
            for step in range(len(wires)):
                checkpoint: Any = {
                    **empty_checkpoint(),
                    "channel_values": {"messages": wires[: step + 1]},
                    "channel_versions": {"messages": step + 1},
                }
                config = saver.put(config, checkpoint, {"source": "loop", "step": step}, {"messages": step + 1})
            seconds = (perf_counter() - start) / len(wires)
        size = sum(entry.stat().st_size for entry in os.scandir(folder))
    return {"seconds": seconds, "disk": size / payload(wires)}


def messages(file: str, count: int) -> list[Json]:
    found: list[Json] = []
    with open(file, "rb") as lines:
        for line in lines:
            wire = json.loads(line)
            if wire["type"] == "message":
                found.append(wire["message"])
            if len(found) == count:
                break
    return found


def payload(wires: list[Json]) -> int:
    return sum(len(json.dumps(wire, separators=(",", ":"), ensure_ascii=False).encode()) for wire in wires)


TASKS: dict[str, Callable[..., Json]] = {
    task.__name__: task for task in (pp_context, pp_append, openai_append, langgraph_append)
}


def answer(peer: str, task: str, given: Json) -> Json:
    if task == "version":
        __import__(
            {"pp": "pi_coding_agent.core.session_manager", "openai": "agents"}.get(peer, "langgraph.checkpoint.sqlite")
        )
        return {"version": metadata.version(PACKAGES[peer])}
    name = f"{peer}_{task}"
    warm_up(peer)
    return TASKS[name](**given)


def warm_up(peer: str) -> None:
    """Import before the clock runs."""
    answer(peer, "version", {})


if __name__ == "__main__":
    print(json.dumps(answer(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))))
