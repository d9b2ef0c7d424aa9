"""One measurement of swarms, in a separate process: `python swarms.py TASK '{"scratch": ...}'`, as `ours.py`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import sessiontree as st
from sessiontree.core.messages import ToolCall
from sessiontree.model.base import Request
from sessiontree.model.scripted import ScriptedAnswer, ScriptedModel
from sessiontree.store.jsonl import JsonlStore
from sessiontree.swarm.events import EventLog, SwarmTextDelta

AGENTS = 16


def appends(turns: int, scratch: str) -> dict[str, Any]:
    """Agents at work on one session, all at once; and the very same lines put one by one into a bare store. All synced.

    The model answers from a script at once, so what is left is the swarm, its agents, and their events.
    """

    @st.tool
    async def look() -> str:
        """Look."""
        return "seen " * 100

    def answer(request: Request) -> ScriptedAnswer:
        seen = sum(message["role"] == "toolResult" for message in request.messages)
        return "Done." if seen == turns else ["I look at it. ", ToolCall(f"c{seen}", "look", {})]

    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        os.environ["SESSIONTREE_HOME"] = folder
        # A small one first: what a swarm imports when it is first run is not counted.
        asyncio.run(st.Swarm(st.memory(), "first", "Look", agents=1, model=ScriptedModel(["Done."])).run())
        session = st.create(file=os.path.join(folder, "swarm.jsonl"))
        model = ScriptedModel([answer] * (AGENTS * (turns + 1)))
        swarm = st.Swarm(session, "bench", "Look", agents=AGENTS, model=model, tools=[look], system="Be brief.")
        start = perf_counter()
        status = asyncio.run(swarm.run())
        seconds = perf_counter() - start
        assert status.status == "completed", status.reason
        lines = session.read_lines()
        events = swarm.events.last
        session.close()
        store = JsonlStore(os.path.join(folder, "bare.jsonl"))
        cursor = store.create(lines[:1])
        start = perf_counter()
        for line in lines[1:]:
            cursor = store.append([line], after=cursor)
        bare = perf_counter() - start
        store.close()
    count = len(lines) - 1
    return {"ours": seconds / count, "bare": bare / count, "appends": count, "events": events}


def events(count: int, scratch: str) -> dict[str, Any]:
    """Events into the spool, and the same bytes with bare `os.write`, by turns; then all of them read again."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        log = EventLog(os.path.join(folder, "a.events.jsonl"))
        delta = SwarmTextDelta(
            delta="a few words of the answer ", swarm="s" * 16, agent="worker-1", branch="bench/worker-1"
        )
        bare = os.open(os.path.join(folder, "bare"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        log.append(delta)
        line = Path(log.path).read_bytes()
        times: dict[str, list[float]] = {"ours": [], "bare": []}
        for _ in range(count // 100):
            start = perf_counter()
            for _ in range(100):
                log.append(delta)
            times["ours"].append((perf_counter() - start) / 100)
            start = perf_counter()
            for _ in range(100):
                os.write(bare, line)
            times["bare"].append((perf_counter() - start) / 100)
        start = perf_counter()
        found = len(log.read(limit=count + 1))
        reading = perf_counter() - start
        os.close(bare)
        log.close()
    assert found == count // 100 * 100 + 1
    return {**times, "read": reading / found}


TASKS: dict[str, Callable[..., dict[str, Any]]] = {task.__name__: task for task in (appends, events)}

if __name__ == "__main__":
    print(json.dumps(TASKS[sys.argv[1]](**json.loads(sys.argv[2]))))
