"""Replaces text, numbers, names and tool call ids that sessions may hold but that providers reject.

Examples are lone surrogates, NUL characters, numbers that JSON does not allow, and duplicate call ids. One of them in a
stored message would make every later request fail. Only the request changes. The stored messages stay as they are.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import deque
from typing import Any

from sessiontree.core.messages import is_list, is_object

REPLACEMENT = "\ufffd"

_UNSENDABLE = re.compile("[\x00\ud800-\udfff]")
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def clean_text(text: str) -> str:
    return _UNSENDABLE.sub(REPLACEMENT, text)


def clean_json(value: Any) -> Any:
    """Return `value` with clean strings. Numbers that JSON does not allow become null."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if is_object(value):
        return {clean_text(key): clean_json(item) for key, item in value.items()}
    if is_list(value):
        return [clean_json(item) for item in value]
    return value


def clean_id(id: str) -> str:
    """Return a tool call id that every provider accepts. The same id always gives the same result."""
    if _ID.fullmatch(id):
        return id
    return f"call_{hashlib.sha256(id.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"


class CallIds:
    """Makes the tool call ids of a request unique: some servers restart at 0 in every answer.

    A repeated id gets a number, and so does the result that belongs to it. The new ids of a turn do not depend on later
    turns, so a longer request starts with the same bytes as the one before and providers can cache it.
    """

    def __init__(self) -> None:
        self._used: dict[str, int] = {}
        """How often each id was requested."""
        self._pending: dict[str, tuple[int, deque[str]]] = {}
        """By stored id: the last turn that used it, and the assigned ids of its calls that have no result yet."""
        self._turn = 0

    def start_turn(self) -> None:
        """Start the next turn."""
        self._turn += 1

    def assign_id(self, id: str, wanted: str | None = None) -> str:
        """Return a unique id for a call of this turn: `wanted` or `id` if it is still free."""
        unique = base = clean_id(id if wanted is None else wanted)
        while unique in self._used:
            self._used[base] += 1
            unique = f"{base[:54]}_{self._used[base]}"
        self._used[unique] = 1
        turn, waiting = self._pending.get(id, (0, deque[str]()))
        if turn != self._turn:
            waiting = deque[str]()
            self._pending[id] = self._turn, waiting
        waiting.append(unique)
        return unique

    def match_result(self, id: str) -> str:
        """Return the assigned id of the call that a result belongs to.

        This is the first call without a result in the last turn that used the id.
        """
        _, waiting = self._pending.get(id, (0, None))
        return waiting.popleft() if waiting else clean_id(id)


def clean_name(name: str) -> str:
    """Return a tool name that every provider accepts."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64] or "unnamed"
