"""Write sessions that other programs resume: the request, the result, and what all writers share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from sessiontree.convert.cleanup import CallIds
from sessiontree.core.context import Context
from sessiontree.core.conversion_result import Omission
from sessiontree.core.entries import CustomMessage, Entry, EntryId, JsonObject, Message
from sessiontree.core.messages import coerce_string, convert_for_model, get_role, is_failed_turn, is_object

SILENT_TYPES = frozenset(
    {
        "custom",
        "label",
        "session_info",
        "usage",
        "alias",
        "original",
        "branch_point",
        "model_change",
        "thinking_level_change",
    }
)
"""Types of entries that a model does not see and that do not change the context."""


class ResumeRequest(Struct, frozen=True, kw_only=True):
    """What `write` turns into a session of another program."""

    context: Context
    """What the model sees at the place where the conversation continues."""
    path: Sequence[Entry]
    """All entries up to that place, oldest first."""
    id: str
    """The id of the new session. A format that needs another kind of id derives it from this one."""
    cwd: str
    now: int
    """The current time in milliseconds since the epoch."""
    title: str | None = None
    original: bytes | None = None
    """The file that the session was imported from, if it is of the format to write."""
    is_unchanged: bool = False
    """Whether the conversation ends where the program would continue the original."""
    settings: Any = None
    """The JSON value in the `settings_file` of the format, if there is such a file."""


class ResumeFile(Struct, frozen=True, kw_only=True):
    path: str
    """Where the program looks for it, relative to its own folder, such as `~/.claude`."""
    content: bytes


class JsonEntry(Struct, frozen=True, kw_only=True):
    """A value that a JSON file of the program must have, unless it has one there already."""

    path: str
    """The file, relative to the folder of the program. It is created if it is missing."""
    keys: tuple[str, ...]
    value: Any


class ResumableSession(Struct, frozen=True, kw_only=True):
    """A session that another program can resume."""

    id: str
    files: Sequence[ResumeFile]
    """The first one holds the conversation."""
    command: Sequence[str]
    """The shell command that resumes it, in the folder of the session."""
    import_command: Sequence[str] = ()
    """The command that must run first, to which the path of the first file is added."""
    json_entries: Sequence[JsonEntry] = ()
    omitted: Sequence[Omission] = ()
    """The differences that the format forces."""


def split_path(
    path: Sequence[Entry], find: Callable[[EntryId], EntryId | None]
) -> tuple[EntryId | None, list[Entry] | None]:
    """Return the last place of a path that the original has, and the messages that were added after it.

    `find` returns the id in the original for an entry, or `None`. The messages are `None` if something else was added
    that changes the context, such as a compaction.
    """
    added: list[Entry] = []
    for entry in reversed(path):
        found = find(entry.id)
        if found is not None:
            added.reverse()
            is_plain = all(isinstance(entry.body, Message | CustomMessage) for entry in added)
            return found, added if is_plain else None
        if entry.type not in SILENT_TYPES:
            added.append(entry)
    return None, None


def convert_entries(entries: Iterable[Entry]) -> Iterator[tuple[EntryId, JsonObject]]:
    """Yield the messages of entries that a model is sent, each with its entry."""
    for entry in entries:
        body = entry.body
        if isinstance(body, CustomMessage):
            yield entry.id, {"role": "user", "content": body.content}
        elif isinstance(body, Message) and not is_failed_turn(body.message):
            message = convert_for_model(body.message)
            if message is not None:
                yield entry.id, message


def starts_with_summary(context: Context) -> bool:
    """Return whether the first message of a request is the summary of a compaction."""
    request = context.build_request()
    first = next(iter(context.sources), None)
    return bool(request) and request[0][0] == first and get_role(context.messages[0]) == "compactionSummary"


class ResumeWriter:
    """What writers of all formats share: the ids of tool calls, times, and the list of differences."""

    def __init__(self, request: ResumeRequest) -> None:
        self.omitted: list[Omission] = []
        self._request = request
        self._ids = CallIds()

    def _assign_call_id(self, block: JsonObject, source: EntryId, wanted: str | None = None) -> str:
        """Return the id of a tool call in the new session, and note a change."""
        stored = coerce_string(block.get("id"))
        id = self._ids.assign_id(stored, wanted)
        if id != stored:
            self._omit(source, "toolCall.id", f"the id {stored[:80]!r} was replaced by {id!r}")
        return id

    def _read_arguments(self, block: JsonObject, source: EntryId) -> JsonObject:
        """Return the arguments of a tool call as an object, and note a change."""
        arguments = block.get("arguments")
        if is_object(arguments):
            return arguments
        self._omit(source, "toolCall.arguments", "the arguments are not an object, so they are in one")
        return {"unreadable": arguments}

    def _get_time(self, message: JsonObject) -> int:
        moment = message.get("timestamp")
        return moment if isinstance(moment, int) else self._request.now

    def _omit(self, source: EntryId, block: str, reason: str) -> None:
        self.omitted.append(Omission(block=block, reason=reason, entry=source))
