"""Every adapter passes on how durable its writes must be."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from pydantic_ai import Conversation
from pydantic_ai.messages import ModelRequest, UserPromptPart

from sessiontree.adapters.claude import TreeSessionStore
from sessiontree.adapters.langgraph import TreeSaver
from sessiontree.adapters.openai_agents import TreeSession
from sessiontree.adapters.pydantic_ai import TreeConversationStore
from sessiontree.library.folder_repository import FolderRepository
from sessiontree.store.base import Store
from sessiontree.store.jsonl import Durability


class RecordingRepository(FolderRepository):
    """Remembers which durability was asked for."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.asked: set[str] = set()

    def get_store(self, location: str, durability: Durability = "fsync") -> Store:
        self.asked.add(durability)
        return super().get_store(location, durability)


async def write_pydantic_ai(place: Any, **options: Any) -> None:
    store = TreeConversationStore(place, **options)
    messages: list[Any] = [ModelRequest(parts=[UserPromptPart("a")])]
    await store.save(Conversation(conversation_id="a", messages=messages))
    await store.fork("a", new_conversation_id="b")


async def write_openai_agents(place: Any, **options: Any) -> None:
    session = TreeSession("a", place, **options)
    await session.add_items([{"role": "user", "content": "a"}])
    await session.add_items([{"role": "user", "content": "b"}])
    session.close()


async def write_claude(place: Any, **options: Any) -> None:
    store = TreeSessionStore(place, **options)
    record: Any = {"type": "user", "uuid": "u1", "message": {"role": "user", "content": "a"}}
    await store.append({"project_key": "-p", "session_id": "a"}, [record])
    store.close()


async def write_langgraph(place: Any, **options: Any) -> None:
    saver = TreeSaver(place, **options)
    checkpoint = empty_checkpoint() | {"channel_values": {"messages": [HumanMessage("a")]}}
    await saver.aput({"configurable": {"thread_id": "a", "checkpoint_ns": ""}}, checkpoint, {}, {"messages": 1})
    await saver.acopy_thread("a", "b")
    saver.close()


@pytest.mark.parametrize("write", [write_pydantic_ai, write_openai_agents, write_claude, write_langgraph])
@pytest.mark.parametrize("durability", ["fsync", "flush"])
async def test_every_write_has_the_durability_that_was_asked_for(
    durability: str, write: Callable[..., Awaitable[None]], tmp_path: Path
) -> None:
    repository = RecordingRepository(str(tmp_path / "sessions"))

    await write(repository, **({} if durability == "fsync" else {"durability": durability}))

    assert repository.asked == {durability}
