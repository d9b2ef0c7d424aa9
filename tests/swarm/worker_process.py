"""Worker processes for tests that are killed at a certain point. They are forked from a process with all imports.

`KILL_AT` in their environment is that point: `before` or `after` the model's answer of that number is written. At
`STOP_AT` they are suspended instead, like a machine that sleeps. `ISLAND` names their network namespace.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import pydantic_ai.direct  # noqa: F401 - it takes long to import

import sessiontree.cli.swarm_worker
import sessiontree.extensions.loader
import sessiontree.model.adapter
import sessiontree.slash_commands.controller
import sessiontree.swarm.durable.worker  # noqa: F401
from sessiontree.cli.app import run
from sessiontree.core.entries import Entry, Message
from sessiontree.core.messages import get_role
from sessiontree.session import Item
from sessiontree.store.lock import get_lock_path
from sessiontree.swarm.durable.exactly_once import IdempotentSession
from tests.swarm import network_island as island

STOP_SCRIPT = """
import fcntl, os, signal, sys, time
fcntl.flock(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX)
os.kill(int(sys.argv[2]), signal.SIGSTOP)
while open(f"/proc/{sys.argv[2]}/stat").read().rpartition(")")[2].split()[0] != "T":
    time.sleep(0.01)
"""


def send_signal(session: IdempotentSession, number: int) -> None:
    """Send this process a signal while another process holds the lock of the session, so no thread here holds it."""
    if number == signal.SIGSTOP and session.file is not None:
        subprocess.run(
            [sys.executable, "-c", STOP_SCRIPT, get_lock_path(str(session.file)), str(os.getpid())], check=True
        )
    else:
        os.kill(os.getpid(), number)


def send_signal_at(when: str, number: int, signal: int) -> None:
    """Send this process a signal when it writes an answer of a model."""
    extend, written = IdempotentSession.extend, 0

    def extend_and_count(self: IdempotentSession, bodies: Iterable[Any], **options: Any) -> list[Entry]:
        nonlocal written
        items = list(bodies)
        for item in items:
            body = item.body if isinstance(item, Item) else item
            written += isinstance(body, Message) and get_role(body.message) == "assistant"
        if written == number and when == "before":
            send_signal(self, signal)
        entries = extend(self, items, **options)
        if written == number and when == "after":
            send_signal(self, signal)
        return entries

    IdempotentSession.extend = extend_and_count  # type: ignore[method-assign]


def main(environment: Mapping[str, str], log: str, options: list[str]) -> int:
    """Run `sessiontree worker` with these options and environment. Its output goes to a file."""
    os.environ.clear()
    os.environ.update(environment)
    for number, file in ((0, os.devnull), (1, log), (2, log)):
        os.dup2(os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), number)
    if "ISLAND" in environment:
        island.enter(environment["ISLAND"])
    for name, number in (("KILL_AT", signal.SIGKILL), ("STOP_AT", signal.SIGSTOP)):
        if name in environment:
            when, _, answer = environment[name].partition(" ")
            send_signal_at(when, int(answer), number)
    return run(["worker", *options])


def run_fork_server() -> None:
    """Fork workers and report how they end. Each input line gets one output line."""
    for line in sys.stdin:
        asked = json.loads(line)
        if isinstance(asked, int):
            ended, status = os.waitpid(asked, os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if ended else None
        else:
            answer = os.fork()
            if answer == 0:
                os._exit(main(*asked))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    run_fork_server()
