"""Find the tool calls that tool results answer."""

from __future__ import annotations

from collections.abc import Sequence

from sessiontree.core.entries import EntryId
from sessiontree.core.entry_text import preview_entry
from sessiontree.core.message_views import MessagePreview, ToolCall
from sessiontree.core.tree import Tree

CALL_SEARCH_LIMIT = 256
"""How many entries above a tool result are searched for its call."""


class CallLookup:
    """Finds the calls that tool results answer, on demand.

    Branches may reuse a call id, so the nearest call above with the id counts. The search stops at a user message,
    because a result never answers a call from before it.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._calls: dict[EntryId, dict[str, ToolCall]] = {}
        """The calls of recently visited messages by call id. Several results may answer one message."""
        self._has_calls: dict[EntryId, bool | None] = {}
        """Whether recently visited entries call tools; `None` for user messages."""
        self._callers: dict[EntryId, tuple[EntryId | None, int]] = {}
        """The nearest entry above that calls tools, and the distance to it; `None` if it is too far up."""

    def get(self, id: EntryId, /) -> ToolCall | None:
        message = self._preview(id)
        if message is None or message.role != "toolResult":
            return None
        return self.find(id, message.tool_call_id)

    def add(self, id: EntryId, role: str, calls: Sequence[ToolCall]) -> None:
        """Remember the calls of a message that was decoded anyway, to avoid reading it again."""
        if len(self._has_calls) > CALL_SEARCH_LIMIT * 16:
            self._has_calls.clear()
        self._has_calls[id] = None if role == "user" else bool(calls)
        if calls:
            if len(self._calls) >= CALL_SEARCH_LIMIT:
                self._calls.clear()
            self._calls[id] = {call.id: call for call in reversed(calls)}

    def find(self, id: EntryId, answered: str) -> ToolCall | None:
        """Return the call `answered` that the result `id` answers."""
        above, reached = self._find_caller(id)
        while above is not None and reached < CALL_SEARCH_LIMIT:
            found = self._get_calls(above).get(answered)
            if found is not None:
                return found
            above, steps = self._find_caller(above)
            reached += steps
        return None

    def _find_caller(self, id: EntryId) -> tuple[EntryId | None, int]:
        """Return the nearest entry above `id` that calls tools, and the distance to it."""
        if len(self._callers) > CALL_SEARCH_LIMIT * 16:
            self._callers.clear()
        walked: list[EntryId] = []
        at, caller, steps = id, None, 0
        while len(walked) < CALL_SEARCH_LIMIT * 2:
            if at in self._callers:
                caller, steps = self._callers[at]
                break
            walked.append(at)
            above = self._tree.parent(at)
            stops = None if above is None else self._check_for_calls(above)
            if above is None or stops is None:
                break
            if stops:
                caller = above
                break
            at = above
        else:
            del walked[CALL_SEARCH_LIMIT:]  # entries further up may have a call within the limit
        for step, entry in enumerate(reversed(walked), steps + 1):
            self._callers[entry] = caller, step
        return self._callers[id]

    def _check_for_calls(self, id: EntryId) -> bool | None:
        if id not in self._has_calls:
            if len(self._has_calls) > CALL_SEARCH_LIMIT * 16:
                self._has_calls.clear()
            message = self._preview(id)
            if message is None or message.role != "user":
                calls = self._get_calls(id, message) if message is not None else {}
                self._has_calls[id] = bool(calls)
            else:
                self._has_calls[id] = None
        return self._has_calls[id]

    def _get_calls(self, id: EntryId, message: MessagePreview | None = None) -> dict[str, ToolCall]:
        calls = self._calls.get(id)
        if calls is None:
            if len(self._calls) >= CALL_SEARCH_LIMIT:
                self._calls.clear()
            message = self._preview(id) if message is None else message
            calls = {} if message is None else {call.id: call for call in reversed(message.calls)}
            if calls:
                self._calls[id] = calls
        return calls

    def _preview(self, id: EntryId) -> MessagePreview | None:
        return preview_entry(self._tree.peek(id))
