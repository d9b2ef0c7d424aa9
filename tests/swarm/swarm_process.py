"""A process that runs a swarm until it is killed: `python -m tests.swarm.swarm_process FILE CALLS STRATEGY`.

Its model writes a line to the file CALLS for every call. The parent process counts the lines.
The process kills itself, as a crash would, when the number of lines that the session has grows to KILL_AT.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import sessiontree as st
from sessiontree.core.messages import extract_text
from sessiontree.model.base import Request
from sessiontree.model.scripted import ScriptedAnswer, ScriptedModel
from sessiontree.session import Session
from sessiontree.swarm.journal import list_swarms
from sessiontree.swarm.records import SwarmStatus
from sessiontree.swarm.swarm import Swarm


def build_model(calls: str) -> ScriptedModel:
    async def answer(request: Request) -> ScriptedAnswer:
        asked = extract_text(request.messages[-1].get("content"))
        with open(calls, "a") as file:
            print(asked.replace("\n", " ")[-60:], file=file, flush=True)
        return "part one\npart two" if asked.startswith("Split") else f"did {asked[-20:]!r}"

    return ScriptedModel([answer] * 1000)


async def run(session: Session, calls: str, strategy: str) -> SwarmStatus:
    known = list_swarms(session)
    options = {"model": build_model(calls), "system": "Be brief."}
    if known:
        swarm = Swarm.open(session, known[0].id, **options)
    else:
        swarm = await Swarm.create(session, "crowd", "Do it", agents=3, strategy=strategy, **options)
    if swarm.status().status in ("completed", "failed"):
        return swarm.status()
    return await swarm.run()


def main() -> None:
    file, calls, strategy = sys.argv[1:4]
    kill_at = int(os.environ["KILL_AT"])
    session = st.open(file)
    store = session._store
    written, append = 0, store.append

    def append_and_count(lines, *, after):
        nonlocal written
        cursor = append(lines, after=after)
        written += 1
        if written == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return cursor

    store.append = append_and_count
    print(asyncio.run(run(session, calls, strategy)).status)


if __name__ == "__main__":
    main()
