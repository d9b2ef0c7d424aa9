"""Totals: sums and facts over the decoded entries of a session.

`format.digest` computes the same from raw lines without decoding most of them. A property test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable

from sessiontree.core.entries import Body, Entry, Message, SessionInfo, shorten_to_line
from sessiontree.core.messages import extract_text, get_model, get_role, list_usages, sum_usage
from sessiontree.core.tree import NAME_WHITESPACE


class EntryTotals:
    """Counts entries one at a time: messages, tokens, cost, models, and the facts that a listing shows."""

    def __init__(self) -> None:
        self.entries = 0
        self.messages = 0
        self.tokens = 0.0
        self.cost = 0.0
        """In US dollars."""
        self.first_message: str | None = None
        """The user's first message with text, on one line."""
        self.is_named = False
        """Whether an entry sets or clears the name of the session."""
        self.name: str | None = None
        self.models: dict[str, None] = {}
        """The models that wrote messages, as `provider:model`, in order of their first message."""

    def extend(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.add(entry)

    def add(self, entry: Entry) -> Body:
        """Count one entry and return its body, which is not cached."""
        body = entry.decode()
        self.entries += 1
        for usage in map(sum_usage, list_usages(body)):
            if usage is not None:
                self.tokens += usage.tokens
                self.cost += usage.cost
        match body:
            case Message(message):
                self.messages += 1
                if self.first_message is None and get_role(message) == "user":
                    self.first_message = shorten_to_line(extract_text(message.get("content"))) or None
                model = get_model(message)
                if model is not None and model != ("unknown", "unknown"):
                    self.models[":".join(model)] = None
            case SessionInfo(name):
                self.is_named, self.name = True, (name or "").strip(NAME_WHITESPACE) or None
            case _:
                pass
        return body
