"""Ask the CLI that the Claude Agent SDK brings, and report how long each turn took.

Run it in a network namespace with a model on the loopback interface: `python claude_turns.py FOLDER TURNS`. The stores
of the SDK and of sessiontree take turns, so that the ratio does not depend on the load of the machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

import claude_agent_sdk as sdk

from sessiontree.adapters.claude import TreeSessionStore


async def ask(prompt: str, store: sdk.SessionStore, session: str | None) -> tuple[str, float, list[str]]:
    """Ask in a session, a new one by default. Returns its id, the seconds, and the errors of the store."""
    options = sdk.ClaudeAgentOptions(session_store=store, resume=session, cwd=os.getcwd())
    errors: list[str] = []
    started = time.perf_counter()
    async for message in sdk.query(prompt=prompt, options=options):
        if isinstance(message, sdk.ResultMessage):
            session = message.session_id
        elif isinstance(message, sdk.MirrorErrorMessage):
            errors.append(str(message))
    assert session is not None
    return session, time.perf_counter() - started, errors


async def main(folder: str, turns: int) -> dict[str, Any]:
    stores: dict[str, sdk.SessionStore] = {"memory": sdk.InMemorySessionStore(), "tree": TreeSessionStore(folder)}
    sessions: dict[str, str | None] = dict.fromkeys(stores)
    seconds: dict[str, list[float]] = {name: [] for name in stores}
    errors: list[str] = []
    for turn in range(turns):
        for name, store in stores.items():
            sessions[name], taken, failed = await ask(f"question {turn}", store, sessions[name])
            seconds[name].append(taken)
            errors += failed
    return {"session": sessions["tree"], "seconds": seconds, "errors": errors}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1], int(sys.argv[2])))))
