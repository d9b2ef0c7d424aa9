"""Shared helpers of swarm tests: a session, scripted models, and readers of the written entries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import sessiontree as st
from sessiontree.core.entries import AgentAction, Custom, Message
from sessiontree.core.messages import extract_text, get_role
from sessiontree.model.base import ModelInfo, Request
from sessiontree.model.scripted import ScriptedAnswer, ScriptedModel, ScriptedUsage
from sessiontree.session import Session
from sessiontree.swarm.records import SWARM_RECORD_TYPE

PRICED = ScriptedUsage({"input": 10, "output": 5, "cost": 0.1})
"""The usage of every answer of `build_model`: 15 tokens and ten cents."""


@pytest.fixture
def session() -> Session:
    """A session with a short conversation."""
    session = st.memory()
    session.append(st.user("Hello"))
    session.append(st.assistant("What is to be done?"))
    return session


def read_last_message(request: Request) -> str:
    """Return the last message that the model received."""
    return extract_text(request.messages[-1].get("content"))


def read_all_messages(request: Request) -> str:
    """Return the text of all messages of a request."""
    return "\n".join(extract_text(message.get("content")) for message in request.messages)


def build_model(
    answer: Callable[[Request], Any] | None = None, *, name: str = "scripted", window: int = 128_000
) -> ScriptedModel:
    """Build a model that answers every request with the result of the function, or "Done."."""

    async def reply(request: Request) -> ScriptedAnswer:
        given = "Done." if answer is None else answer(request)
        if asyncio.iscoroutine(given):
            given = await given
        parts = [given] if isinstance(given, str) or not isinstance(given, list) else given
        return [*parts, PRICED]

    return ScriptedModel([reply] * 200, info=ModelInfo(provider="scripted", model=name, context_window=window))


def list_messages(session: Session, branch: str) -> list[str]:
    """Return the messages on a branch, each as `role: text`."""
    bodies = [entry.body for entry in session.branch(branch).path()]
    return [f"{get_role(b.message)}: {extract_text(b.message['content'])}" for b in bodies if isinstance(b, Message)]


def list_actions(session: Session) -> list[tuple[str, str]]:
    """Return agent and action of each agent action, in file order."""
    bodies = [entry.body for entry in session.tree.entries]
    return [(body.agent, body.action) for body in bodies if isinstance(body, AgentAction)]


def list_records(session: Session) -> list[str]:
    """Return the events of all swarm records."""
    bodies = [entry.body for entry in session.tree.entries]
    return [body.data["event"] for body in bodies if isinstance(body, Custom) and body.custom_type == SWARM_RECORD_TYPE]


class CallGate:
    """Releases model calls one by one, when the test decides."""

    def __init__(self) -> None:
        self.waiting = 0
        self.calls = 0
        self._open = asyncio.Semaphore(0)
        self._called = asyncio.Event()

    async def __call__(self, request: Request) -> str:
        self.calls += 1
        self.waiting += 1
        self._called.set()
        try:
            await self._open.acquire()
        finally:
            self.waiting -= 1
        return f"Done with {read_last_message(request)!r}."

    def open(self, count: int = 1) -> None:
        for _ in range(count):
            self._open.release()

    async def wait_for_calls(self, calls: int) -> None:
        """Wait for this number of calls."""
        async with asyncio.timeout(60):
            while self.calls < calls:
                self._called.clear()
                await self._called.wait()
