"""Worker processes for tests, killed at a certain point: forked from one that has imported everything already.

`KILL_AT` in their environment says where: `before` or `after` the model's answer of that number is written; `STOP_AT`
where they are stopped instead, as a machine that sleeps. `ISLAND` names the network namespace that they are in.
"""

from __future__ import annotations

import os
import signal
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
from sessiontree.swarm.durable.once import OnceSession
from tests.swarm import island


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
            os.kill(os.getpid(), signal)
        entries = extend(self, items, **options)
        if written == number and when == "after":
            os.kill(os.getpid(), signal)
        return entries

    OnceSession.extend = counted  # type: ignore[method-assign]


def main(environment: Mapping[str, str], log: str, options: list[str]) -> None:
    """`sessiontree worker` with these options, in an environment of its own; what it prints goes to a file."""
    os.environ.clear()
    os.environ.update(environment)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    if "ISLAND" in environment:
        island.enter(environment["ISLAND"])
    for name, number in (("KILL_AT", signal.SIGKILL), ("STOP_AT", signal.SIGSTOP)):
        if name in environment:
            when, _, answer = environment[name].partition(" ")
            hit_at(when, int(answer), number)
    sys.exit(run(["worker", *options]))
