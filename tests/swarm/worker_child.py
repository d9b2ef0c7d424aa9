"""A worker that is killed at a certain point: `python -m tests.swarm.worker_child [OPTIONS OF sessiontree worker]`.

KILL_AT says where: `before` or `after` the model's answer of that number is written to the session. READY names a file
that is made when everything is imported, and GO one that is waited for then, so that a test need not wait for imports.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pydantic_ai.direct  # noqa: F401 - what takes long to import, before one is told to begin

from sessiontree.cli.app import run
from sessiontree.core.entries import Entry, Message
from sessiontree.core.messages import role
from sessiontree.session import Item
from sessiontree.swarm.durable.once import OnceSession


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


if __name__ == "__main__":
    if "KILL_AT" in os.environ:
        when, _, number = os.environ["KILL_AT"].partition(" ")
        killed_at(when, int(number))
    if "GO" in os.environ:
        Path(os.environ["READY"]).touch()
        while not os.path.exists(os.environ["GO"]):
            time.sleep(0.02)
    sys.exit(run(["worker", *sys.argv[1:]]))
