"""Worker processes for tests, killed at a certain point: forked from one that has imported everything already.

`KILL_AT` in their environment says where: `before` or `after` the model's answer of that number is written; `STOP_AT`
where they are stopped instead, as a machine that sleeps. `ISLAND` names the network namespace that they are in.
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

import sessiontree.cli.worker
import sessiontree.commands.desk
import sessiontree.extensions.extensions
import sessiontree.model.adapter
import sessiontree.swarm.durable.worker  # noqa: F401
from sessiontree.cli.app import run
from sessiontree.core.entries import Entry, Message
from sessiontree.core.messages import role
from sessiontree.session import Item
from sessiontree.store.lock import lock_of
from sessiontree.swarm.durable.once import OnceSession
from tests.swarm import island

STOPPING = """
import fcntl, os, signal, sys, time
fcntl.flock(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX)
os.kill(int(sys.argv[2]), signal.SIGSTOP)
while open(f"/proc/{sys.argv[2]}/stat").read().rpartition(")")[2].split()[0] != "T":
    time.sleep(0.01)
"""


def hit(session: OnceSession, number: int) -> None:
    """Send this process a signal. It is stopped while another has the lock of the session: no thread stops with it."""
    if number == signal.SIGSTOP and session.file is not None:
        subprocess.run([sys.executable, "-c", STOPPING, lock_of(str(session.file)), str(os.getpid())], check=True)
    else:
        os.kill(os.getpid(), number)


def hit_at(when: str, number: int, signal: int) -> None:
    """Have this process hit by a signal when it writes an answer of a model."""
    extend, written = OnceSession.extend, 0

    def counted(self: OnceSession, bodies: Iterable[Any], **options: Any) -> list[Entry]:
        nonlocal written
        items = list(bodies)
        for item in items:
            body = item.body if isinstance(item, Item) else item
            written += isinstance(body, Message) and role(body.message) == "assistant"
        if written == number and when == "before":
            hit(self, signal)
        entries = extend(self, items, **options)
        if written == number and when == "after":
            hit(self, signal)
        return entries

    OnceSession.extend = counted  # type: ignore[method-assign]


def main(environment: Mapping[str, str], log: str, options: list[str]) -> int:
    """`sessiontree worker` with these options, in an environment of its own; what it prints goes to a file."""
    os.environ.clear()
    os.environ.update(environment)
    for number, file in ((0, os.devnull), (1, log), (2, log)):
        os.dup2(os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), number)
    if "ISLAND" in environment:
        island.enter(environment["ISLAND"])
    for name, number in (("KILL_AT", signal.SIGKILL), ("STOP_AT", signal.SIGSTOP)):
        if name in environment:
            when, _, answer = environment[name].partition(" ")
            hit_at(when, int(answer), number)
    return run(["worker", *options])


def nursery() -> None:
    """Fork workers, and tell how they end: a line in, a line out."""
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
    nursery()
