"""Results of conversions between stored messages and the message forms of other SDKs.

The converters are in `sessiontree.convert`. The types are here because `Context` has methods that return them.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from sessiontree.core.entries import EntryId, Message


class Omission(Struct, frozen=True, kw_only=True):
    """Something that the target of a conversion cannot hold."""

    block: str
    """What it is: the type of a content block, the role of a message, or the name of a field."""
    reason: str
    """Why it was left out or changed, as one sentence."""
    entry: EntryId | None = None
    """The entry that it comes from, in conversions of a context."""
    position: str | None = None
    """Its position in the input, such as `messages[3].content[0]`, in conversions to stored messages."""

    def __str__(self) -> str:
        return f"{self.position or self.entry or 'the context'}: {self.block}: {self.reason}"


# The elements are typed as `Any` so that type checkers accept the list where an SDK declares its own types.
class ConvertedMessages(list[Any]):
    """Messages in the form of another SDK. Pass the list to the SDK as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.omitted: list[Omission] = []
        """What the format cannot hold."""
        self.system = ""
        """The system prompt, if the format takes it as a separate argument. Empty if there is none."""


class ConvertedBodies(list[Message]):
    """Messages in the form that sessions store. Pass the list to `extend` of a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.omitted: list[Omission] = []
        """What stored messages cannot hold, or hold only for the format that it came from."""
