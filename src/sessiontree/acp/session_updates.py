"""Session updates: the history and the events of a session in the wire form of the protocol.

`ConversationUpdates` turns entries and events into updates. `UpdateStream` sends them in order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from uuid import uuid4

from sessiontree.acp.tool_call_display import (
    MAX_OUTPUT_CHARS,
    build_output_content,
    describe_call,
    describe_result,
    quote_output,
)
from sessiontree.agent.tool import Tool
from sessiontree.agent.tools.todo_tool import read_items, todo
from sessiontree.core.entries import BranchSummary, Compaction, CustomMessage, Entry, JsonObject, Message
from sessiontree.core.message_views import Image, Text, Thinking, view_blocks
from sessiontree.core.messages import ToolCall, extract_text, get_answered_call, get_role, get_tool_calls
from sessiontree.hooks.events import (
    Compacted,
    CompactFailed,
    Event,
    MessageDelta,
    MessageEnd,
    MessageStart,
    Notice,
    RetryScheduled,
    RunEnd,
    ToolStart,
    ToolUpdate,
)

USER, AGENT, THOUGHT = "user_message_chunk", "agent_message_chunk", "agent_thought_chunk"
CHUNKS = (USER, AGENT, THOUGHT)
PLAN_STATUS = {"pending": "pending", "in_progress": "in_progress", "done": "completed"}
"""The status of a step in the words of the protocol."""
NOT_ANSWERED = "The call was not run."


def build_text_chunk(kind: str, text: str, message: str) -> JsonObject:
    """Return a piece of a message, by the id of the message."""
    return {"sessionUpdate": kind, "content": {"type": "text", "text": text}, "messageId": message}


def build_notice(text: str) -> JsonObject:
    """Return a separate message for the user."""
    return build_text_chunk(AGENT, f"{text}\n\n", uuid4().hex)


def build_plan(arguments: object) -> JsonObject:
    """Return the list of the todo tool as the plan of the protocol."""
    entries = [
        {"content": " ".join(item.text.split()), "priority": "medium", "status": PLAN_STATUS[item.status]}
        for item in read_items(arguments)
    ]
    return {"sessionUpdate": "plan", "entries": entries}


class ConversationUpdates:
    """Turns entries and events of one session into updates."""

    def __init__(self, get_tools: Callable[[], Mapping[str, Tool]], get_cwd: Callable[[], str]) -> None:
        self._get_tools = get_tools
        self._get_cwd = get_cwd
        self._message = uuid4().hex
        """The id of the message that is streamed."""
        self._has_streamed = False
        """Whether any text of that message was sent."""
        self._calls: dict[str, tuple[str, ToolCall | None]] = {}
        """The calls without a result, by the id that the model gave: the id for the client, and the call."""
        self._used: set[str] = set()
        """The ids of calls that the client knows. Models may use an id again; clients may not."""
        self._outputs: dict[str, str] = {}
        """The output of running calls so far, by the id for the client."""

    def get_call_id(self, call: ToolCall) -> str:
        """Return the id of a call for the client."""
        return self._calls[call.id][0] if call.id in self._calls else call.id

    # Entries

    def replay(self, path: Iterable[Entry]) -> Iterator[JsonObject]:
        """Yield the conversation of a path."""
        for entry in path:
            yield from self.show_entry(entry)
        yield from self._close_calls()

    def show_entry(self, entry: Entry) -> Iterator[JsonObject]:
        """Yield an entry as updates; nothing for an entry that is not part of the conversation."""
        match entry.body:
            case Message(message) if get_role(message) == "user":
                yield from self._show_blocks(USER, entry.id, message)
            case Message(message) if get_role(message) == "assistant":
                yield from self._show_blocks(AGENT, entry.id, message)
                yield from self._show_calls(message, is_new=False)
            case Message(message) if get_role(message) == "toolResult":
                yield from self._show_result(message)
            case Message(message) if get_role(message) == "bashExecution":
                text = f"$ {message.get('command')}\n{message.get('output') or ''}"
                yield build_text_chunk(USER, quote_output(text), entry.id)
            case CustomMessage(content=content, display=True):
                if text := extract_text(content):
                    yield build_text_chunk(AGENT, text, entry.id)
            case Compaction(summary=summary):
                yield build_text_chunk(AGENT, f"Summary of the earlier conversation:\n\n{summary}", entry.id)
            case BranchSummary(summary=summary):
                yield build_text_chunk(AGENT, f"Summary of another branch:\n\n{summary}", entry.id)
            case _:
                return

    def _show_blocks(self, kind: str, id: str, message: JsonObject) -> Iterator[JsonObject]:
        for block in view_blocks(message.get("content")):
            match block:
                case Text(text) if text:
                    yield build_text_chunk(kind, text, id)
                case Thinking(text, _) if text:
                    yield build_text_chunk(THOUGHT, text, id)
                case Image():
                    (shown,) = build_output_content([block.raw])
                    yield {"sessionUpdate": kind, "content": shown["content"], "messageId": id}
                case _:
                    pass

    def _show_calls(self, message: JsonObject, *, is_new: bool) -> Iterator[JsonObject]:
        for call in get_tool_calls(message):
            known = call.id in self._calls
            id = self._calls[call.id][0] if known else self._choose_id(call.id)
            self._calls[call.id] = id, call
            fields = describe_call(call, self._get_tools().get(call.name), self._get_cwd(), is_new=is_new)
            kind = "tool_call_update" if known else "tool_call"
            yield {"sessionUpdate": kind, "toolCallId": id, "status": "pending", **fields}
            if call.name == todo.name:
                yield build_plan(call.arguments)

    def _show_result(self, message: JsonObject) -> Iterator[JsonObject]:
        id, call = self._calls.pop(get_answered_call(message) or "", (None, None))
        if id is not None:
            self._outputs.pop(id, None)
            tool = None if call is None else self._get_tools().get(call.name)
            fields = describe_result(message, call, tool, self._get_cwd())
            yield {"sessionUpdate": "tool_call_update", "toolCallId": id, **fields}

    def _close_calls(self) -> Iterator[JsonObject]:
        """Mark the calls that got no result as failed."""
        for id, _ in self._calls.values():
            content = build_output_content([{"type": "text", "text": NOT_ANSWERED}])
            yield {"sessionUpdate": "tool_call_update", "toolCallId": id, "status": "failed", "content": content}
        self._calls.clear()
        self._outputs.clear()

    def _choose_id(self, wanted: str) -> str:
        id = wanted if wanted and wanted not in self._used else uuid4().hex
        self._used.add(id)
        return id

    # Events

    def show_event(self, event: Event) -> Iterator[JsonObject]:
        """Yield an event of a run as updates."""
        match event:
            case MessageStart():
                self._message, self._has_streamed = uuid4().hex, False
            case MessageDelta(kind="tool_call", call=str(call), name=str(name)) if call not in self._calls:
                id = self._choose_id(call)
                self._calls[call] = id, None
                yield {"sessionUpdate": "tool_call", "toolCallId": id, "title": name, "status": "pending"}
            case MessageDelta(kind="text" | "thinking") if event.text:
                self._has_streamed = True
                yield build_text_chunk(AGENT if event.kind == "text" else THOUGHT, event.text, self._message)
            case MessageEnd(entry=entry):
                yield from self._show_written(entry)
            case ToolStart(call=call):
                yield from self._update_call(call, {"status": "in_progress"})
            case ToolUpdate(call=call):
                yield from self._show_output(call, event.text)
            case RetryScheduled():
                yield build_text_chunk(THOUGHT, f"{event.text} in {event.delay:.0f} s…\n\n", uuid4().hex)
            case Compacted():
                yield build_notice("The earlier conversation was replaced by a summary.")
            case CompactFailed(aborted=False):
                yield build_notice(f"Compaction failed: {event.error}")
            case Notice(level="warning" | "error"):
                yield build_notice(f"{event.level.capitalize()}: {event.text}")
            case RunEnd():
                yield from self._close_calls()
            case _:
                return

    def _show_written(self, entry: Entry) -> Iterator[JsonObject]:
        """Yield the entries that were written and not streamed. The client knows the prompt itself."""
        match entry.body:
            case Message(message) if get_role(message) == "assistant":
                if not self._has_streamed:
                    yield from self._show_blocks(AGENT, self._message, message)
                yield from self._show_calls(message, is_new=True)
            case Message(message) if get_role(message) == "user":
                return
            case _:
                yield from self.show_entry(entry)

    def _update_call(self, call: ToolCall, fields: JsonObject) -> Iterator[JsonObject]:
        if call.id in self._calls:
            yield {"sessionUpdate": "tool_call_update", "toolCallId": self._calls[call.id][0], **fields}

    def _show_output(self, call: ToolCall, text: str) -> Iterator[JsonObject]:
        id = self.get_call_id(call)
        output = self._outputs[id] = (self._outputs.get(id, "") + text)[-MAX_OUTPUT_CHARS:]
        yield from self._update_call(call, {"content": build_output_content([{"type": "text", "text": output}])})


class UpdateStream:
    """Sends the updates of a session in order, from `open` on. Waiting pieces of one message are joined."""

    def __init__(self, send: Callable[[JsonObject], Awaitable[None]]) -> None:
        self._send = send
        self._waiting: deque[JsonObject] = deque()
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Start sending. Before that, the client does not know the session."""
        if self._task is None:
            self._task = asyncio.create_task(self._send_all())
            self._start()

    def put(self, updates: Iterable[JsonObject]) -> None:
        """Send updates soon. Any thread may call it."""
        self._waiting.extend(updates)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._loop.call_soon_threadsafe(self._start)
        else:
            self._start()

    def _start(self) -> None:
        if self._waiting and self._task is not None:
            self._idle.clear()
            self._wake.set()

    async def flush(self) -> None:
        """Wait until everything is sent."""
        await self._idle.wait()

    async def close(self) -> None:
        """Send all waiting updates, and stop."""
        await self.flush()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _send_all(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                await self._send(self._take_next())
            self._idle.set()

    def _take_next(self) -> JsonObject:
        update = self._waiting.popleft()
        texts: list[str] = []
        while self._waiting and _can_join(update, self._waiting[0]):
            texts.append(self._waiting.popleft()["content"]["text"])
        if not texts:
            return update
        text = "".join([update["content"]["text"], *texts])
        return {**update, "content": {"type": "text", "text": text}}


def _can_join(one: JsonObject, next: JsonObject) -> bool:
    return (
        one["sessionUpdate"] in CHUNKS
        and one["sessionUpdate"] == next["sessionUpdate"]
        and one.get("messageId") == next.get("messageId")
        and one["content"]["type"] == next["content"]["type"] == "text"
    )
