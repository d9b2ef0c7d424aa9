"""A client of version 2 of the protocol, which records what the agent sends and answers its questions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from acp.connection import Connection, StreamDirection, StreamEvent

from sessiontree.acp.editor_session import EditorOptions
from sessiontree.core.entries import JsonObject
from tests.acp.editor import SECONDS, run_agent


class DraftClient:
    def __init__(self) -> None:
        self.connection: Connection
        self.messages: list[tuple[str, str, Any]] = []
        """Every message of the agent: `request` or `response`, the method, and the content."""
        self.updates: list[JsonObject] = []
        self.questions: list[JsonObject] = []
        self.outcome = {"outcome": "selected", "optionId": "once"}
        """The answer to permission questions."""
        self._sent: dict[Any, str] = {}
        self._changed = asyncio.Event()

    def observe(self, event: StreamEvent) -> None:
        message = event.message
        if event.direction == StreamDirection.OUTGOING:
            if "method" in message and "id" in message:
                self._sent[message["id"]] = message["method"]
            return
        if "method" in message:
            self.messages.append(("request", message["method"], message["params"]))
            if message["method"] == "session/update":
                self.updates.append(message["params"]["update"])
        elif "result" in message:
            self.messages.append(("response", self._sent[message["id"]], message["result"]))
        self._changed.set()

    async def handle(self, method: str, params: Any, is_notification: bool) -> Any:
        if method == "session/request_permission":
            self.questions.append(params)
            return {"outcome": self.outcome}
        return None

    async def request(self, method: str, **params: Any) -> Any:
        return await asyncio.wait_for(self.connection.send_request(method, params), SECONDS)

    async def prompt(self, session: str, text: str) -> JsonObject:
        """Send a prompt, wait until the session is idle again, and return the last state."""
        count = len(self.read("state_update", "idle"))
        await self.request("session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}])
        await self.wait_for(lambda: len(self.read("state_update", "idle")) > count)
        return self.read("state_update", "idle")[-1]

    def read(self, kind: str, state: str | None = None) -> list[JsonObject]:
        """Return the updates of a kind."""
        return [
            update
            for update in self.updates
            if update["sessionUpdate"] == kind and state in (None, update.get("state"))
        ]

    def read_text(self) -> str:
        return "".join(update["content"]["text"] for update in self.read("agent_message_chunk"))

    async def wait_for(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(SECONDS):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def start_draft_client() -> AsyncGenerator[DraftClient]:
    """Start the agent in this process with version 2 offered, and connect over pipes."""
    async with run_agent(EditorOptions(offers_v2=True)) as transport:
        client = DraftClient()
        client.connection = Connection(client.handle, transport, observers=[client.observe])
        await client.request("initialize", protocolVersion=2, info={"name": "test", "version": "1"})
        yield client
    await client.connection.close()
