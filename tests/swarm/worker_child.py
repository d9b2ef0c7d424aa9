"""Worker processes for tests, killed at a certain point: forked from one that has imported everything already.

`KILL_AT` in their environment says where: `before` or `after` the model's answer of that number is written. `ISLAND`
names the network namespace that they are in.
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


def killed_at(when: str, number: int) -> None:
    """Have this process killed when it writes an answer of a model."""
    extend, written = OnceSession.extend, 0

    def counted(self: OnceSession, bodies: Iterable[Any], **options: Any) -> list[Entry]:
        nonlocal written
        items = list(bodies)
        for item in items:
            body = item.body if isinstance(item, Item) else item
            written += isinstance(body, Message) and role(body.message) == "assistant"
        if written == number and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        entries = extend(self, items, **options)
        if written == number and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
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
    if "KILL_AT" in environment:
        when, _, number = environment["KILL_AT"].partition(" ")
        killed_at(when, int(number))
    sys.exit(run(["worker", *options]))
