"""Write to an adapter while its disk is full, and while it is read-only, and print what came of it.

Run `python -m tests.adapters.disk_failures NAME FOLDER` in a private mount namespace, where only this
process sees the small disk.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from sessiontree.errors import SessionTreeError

TEXTS = ("first", "full", "after full", "read-only", "after read-only")


class Place(NamedTuple):
    """A conversation in an adapter."""

    write: Callable[[str], Awaitable[object]]
    read: Callable[[], Awaitable[list[str]]]
    close: Callable[[], object]


def open_pydantic_ai(folder: str) -> Place:
    from pydantic_ai import Conversation
    from pydantic_ai.messages import ModelRequest, UserPromptPart

    from sessiontree.adapters.pydantic_ai import TreeConversationStore

    store = TreeConversationStore(folder)

    async def write(text: str) -> None:
        conversation = await store.load("a") or Conversation(conversation_id="a")
        conversation.messages.append(ModelRequest(parts=[UserPromptPart(text)]))
        await store.save(conversation)

    async def read() -> list[str]:
        conversation = await store.load("a")
        assert conversation is not None
        return [str(part.content) for message in conversation.messages for part in message.parts]

    return Place(write, read, store.close)


def open_openai_agents(folder: str) -> Place:
    from sessiontree.adapters.openai_agents import TreeSession

    session = TreeSession("a", folder)

    async def write(text: str) -> None:
        await session.add_items([{"role": "user", "content": text}])

    async def read() -> list[str]:
        items: list[Any] = await session.get_items()
        return [item["content"] for item in items]

    return Place(write, read, session.close)


def open_claude(folder: str) -> Place:
    from sessiontree.adapters.claude import TreeSessionStore

    store = TreeSessionStore(folder)
    key: Any = {"project_key": "-p", "session_id": "a"}

    async def write(text: str) -> None:
        record: Any = {"type": "user", "uuid": text, "message": {"role": "user", "content": text}}
        await store.append(key, [record])

    async def read() -> list[str]:
        records: Any = await store.load(key)
        return [record["message"]["content"] for record in records]

    return Place(write, read, store.close)


def open_langgraph(folder: str) -> Place:
    from langchain_core.messages import HumanMessage
    from langgraph.checkpoint.base import empty_checkpoint

    from sessiontree.adapters.langgraph import TreeSaver

    saver = TreeSaver(folder)
    start: Any = {"configurable": {"thread_id": "a", "checkpoint_ns": ""}}

    async def write(text: str) -> None:
        last = await saver.aget_tuple(start)
        known: Any = [] if last is None else last.checkpoint["channel_values"]["messages"]
        version = len(known) + 1
        checkpoint: Any = empty_checkpoint() | {
            "channel_values": {"messages": [*known, HumanMessage(text)]},
            "channel_versions": {"messages": version},
        }
        await saver.aput(start if last is None else last.config, checkpoint, {}, {"messages": version})

    async def read() -> list[str]:
        last = await saver.aget_tuple(start)
        assert last is not None
        return [message.text for message in last.checkpoint["channel_values"]["messages"]]

    return Place(write, read, saver.close)


OPENERS = {
    "pydantic-ai": open_pydantic_ai,
    "openai-agents": open_openai_agents,
    "claude": open_claude,
    "langgraph": open_langgraph,
}


async def fail_and_go_on(open_place: Callable[[str], Place], folder: str) -> dict[str, Any]:
    """Return the errors of the writes that failed, and what this process and a new one read afterwards."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs", folder], check=True)
    first, full, after_full, read_only, after_read_only = TEXTS
    errors: list[str] = []

    async def fail(place: Place, text: str) -> None:
        try:
            await place.write(text)
        except SessionTreeError as error:
            errors.append(str(error))

    place = open_place(folder)
    await place.write(first)
    ballast = os.path.join(folder, "ballast")
    with open(ballast, "wb", buffering=0) as file:
        while fill(file):
            pass
    await fail(place, full + " " * 50_000)
    os.unlink(ballast)
    await place.write(after_full)
    place.close()  # a disk with files that are open to write cannot become read-only

    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    place = open_place(folder)
    await fail(place, read_only)
    seen = await place.read()
    subprocess.run(["mount", "-o", "remount,rw", folder], check=True)
    await place.write(after_read_only)
    ends = [await place.read(), await open_place(folder).read()]
    return {"errors": errors, "while_read_only": seen, "at_the_end": ends}


def fill(file: Any) -> bool:
    try:
        return bool(file.write(bytes(4096)))
    except OSError:
        return False


if __name__ == "__main__":
    print(json.dumps(asyncio.run(fail_and_go_on(OPENERS[sys.argv[1]], sys.argv[2]))))
