"""Entries: the lines of a session, and the typed bodies of each entry type.

An `Entry` knows its line and where its bytes are. Its *body* is a frozen value that is decoded on first access. Bodies
do not know ids, files or wire names; those are in `format.codec`. The first line of each body class states whether the
body reaches the model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, Protocol, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from sessiontree.core.message_views import (
    AssistantMessage,
    MessagePreview,
    TokenUsage,
    ToolCall,
    TypedMessage,
    view_blocks,
    view_message,
    view_usage,
)
from sessiontree.core.message_views import Text as TextBlock

EntryId: TypeAlias = str
JsonObject: TypeAlias = dict[str, Any]

NO_ID: EntryId = "(no id)"
"""Replaces an invalid entry id in a line, such as a number. No entry has this id."""

HEAD_RECORD = "sessiontree.head"
"""The `custom_type` of head records."""

EXPERIMENT_RECORD = "sessiontree.experiment"
"""The `custom_type` of the plan and the scored runs of experiments."""

FILES_RECORD = "sessiontree.files"
"""The `custom_type` of annotations that name a snapshot of the files."""


TEXT_LENGTH = 200
"""How much of a text one line of a listing holds, in characters."""


SCAN_LENGTH = TEXT_LENGTH + 20
"""How much of a text usually fills a line."""


def shorten_to_line(text: str) -> str:
    """Return `text` on one line with single spaces, cut to what a line of a listing holds."""
    line = text[:TEXT_LENGTH]
    if line.isprintable() and "  " not in line and line[:1] != " " != line[-1:]:
        return line
    line = " ".join(text[:SCAN_LENGTH].split())
    if len(line) >= TEXT_LENGTH or len(text) <= SCAN_LENGTH:
        return line[:TEXT_LENGTH]
    return " ".join(text[: TEXT_LENGTH * 4].split(None, TEXT_LENGTH // 2))[:TEXT_LENGTH]


class Description(Struct, frozen=True, kw_only=True):
    """How people see an entry that is not part of the conversation, in listings, exports and searches."""

    title: str = ""
    """Heading in an export."""
    subject: str = ""
    """A name from the file that completes the title."""
    facts: tuple[str, ...] = ()
    """Short values shown next to the title."""
    line: str = ""
    """The entry in one line of a listing; empty shows the type of the entry."""
    texts: tuple[str, ...] = ()
    """What a search looks through, besides the strings inside `data`."""
    data: Any = None
    """A JSON value shown in full below the title."""
    data_name: str = "data"
    is_setting: bool = True
    """Whether an export styles it as a setting; otherwise as a note."""


class Message(Struct, frozen=True):
    """A message of the conversation, in wire form. In context: yes."""

    message: JsonObject


class ModelChange(Struct, frozen=True, kw_only=True):
    """Changes the model from here on. In context: no, but it is state."""

    provider: str | None = None
    model: str | None = None
    role: str | None = None
    """The purpose of the model. Only `None` and `"default"` set the model of the conversation."""

    def describe(self) -> Description:
        name = "/".join(filter(None, (self.provider, self.model))) or "?"
        purpose = f" for {self.role}" if self.role and self.role != "default" else ""
        return Description(
            title="Model",
            facts=(f"{name}{purpose}",),
            line=f"model: {self.model or '?'}",
            texts=(self.provider or "", self.model or ""),
        )


class ThinkingLevelChange(Struct, frozen=True):
    """Changes the thinking level from here on. In context: no, but it is state."""

    level: str | None

    def describe(self) -> Description:
        level = self.level or "off"
        return Description(title="Thinking level", facts=(level,), line=f"thinking: {level}", texts=(self.level or "",))


class Compaction(Struct, frozen=True, kw_only=True):
    """A summary that replaces everything before `first_kept`. In context: yes."""

    summary: str
    first_kept: EntryId | None = None
    """The first entry that stays in the context after the summary; the compaction's own id means none."""
    tokens_before: int = 0
    details: Any = None
    from_hook: bool | None = None
    usage: JsonObject | None = None
    system_message: JsonObject | None = None
    state: JsonObject | None = None
    """Model, thinking level, mode and rules at this point. A reader that walks up can stop here."""


class BranchSummary(Struct, frozen=True, kw_only=True):
    """A summary of an abandoned or merged branch. In context: yes, unless empty."""

    summary: str
    abandoned_leaf: EntryId | None = None
    """The leaf of the abandoned branch; `"root"` if it was empty."""
    details: Any = None
    from_hook: bool | None = None
    usage: JsonObject | None = None


class Custom(Struct, frozen=True, kw_only=True):
    """State of an extension. In context: no."""

    custom_type: str
    data: Any = None

    def describe(self) -> Description:
        if self.custom_type == HEAD_RECORD:
            return Description(
                title="custom:", subject=self.custom_type, line="heads", data=self.data, is_setting=False
            )
        return Description(
            title="custom:",
            subject=self.custom_type,
            line=f"custom: {self.custom_type}",
            texts=(self.custom_type,),
            data=self.data,
            is_setting=False,
        )


class CustomMessage(Struct, frozen=True, kw_only=True):
    """A message added by an extension. In context: yes, as a user message."""

    custom_type: str
    content: Any
    display: bool = True
    details: Any = None


class Label(Struct, frozen=True, kw_only=True):
    """A bookmark on `target`; no text removes it. In context: no."""

    target: EntryId
    text: str | None = None

    def describe(self) -> Description:
        return Description(
            title="Label on",
            subject=self.target,
            facts=(self.text or "(cleared)",),
            line=f"label: {self.text or '(cleared)'}",
            texts=(self.text or "",),
        )


class SessionInfo(Struct, frozen=True):
    """The session's name; an empty name removes it. In context: no."""

    name: str | None

    def describe(self) -> Description:
        name = self.name or "(cleared)"
        return Description(title="Name", facts=(name,), line=f"name: {name}", texts=(self.name or "",))


class Usage(Struct, frozen=True, kw_only=True):
    """Tokens spent outside the conversation. In context: no; it counts in totals."""

    kind: str
    provider: str | None = None
    model: str | None = None
    usage: JsonObject | None = None
    note: str | None = None

    def describe(self) -> Description:
        model = "/".join(filter(None, (self.provider, self.model)))
        return Description(
            title="Usage",
            facts=(self.kind, model, self.note or ""),
            texts=(self.kind, self.note or ""),
            is_setting=False,
        )


class ContextEdit(Struct, frozen=True, kw_only=True):
    """Changes what `target` contributes to the context from here on; `None` removes it. In context: no."""

    target: EntryId
    replacement: JsonObject | None = None

    def describe(self) -> Description:
        done = "left out" if self.replacement is None else "replaced"
        return Description(
            title="Context edit:", subject=self.target, facts=(done,), line=f"edit of {self.target}", is_setting=False
        )


class BranchPoint(Struct, frozen=True, kw_only=True):
    """The start of a named branch. In context: no."""

    name: str
    description: str | None = None

    def describe(self) -> Description:
        description = self.description or ""
        return Description(
            title="Branch",
            subject=self.name,
            facts=(description,),
            line=f"branch {self.name}" + (f": {shorten_to_line(description)}" if self._has_more_to_say() else ""),
            texts=(self.name, description),
        )

    def _has_more_to_say(self) -> bool:
        """Return whether the description is more than the words of the name."""
        return re.sub(r"\W+", "-", self.description or "").strip("-").casefold() not in self.name.casefold()


class AgentAction(Struct, frozen=True, kw_only=True):
    """An action of a swarm agent (spawn, complete, fork, branch, fail). In context: no."""

    action: str
    agent: str
    data: Any = None

    def describe(self) -> Description:
        return Description(
            title="Agent",
            subject=self.agent,
            facts=(self.action,),
            line=f"agent {self.agent}: {self.action}",
            texts=(self.agent, self.action),
            data=self.data,
        )


class ModeChange(Struct, frozen=True, kw_only=True):
    """Changes the mode from here on; `"none"` leaves the mode. In context: no, but it is state."""

    mode: str
    data: Any = None

    def describe(self) -> Description:
        return Description(
            title="Mode", facts=(self.mode,), line=f"mode: {self.mode}", texts=(self.mode,), data=self.data
        )


class RuleInjection(Struct, frozen=True):
    """Rules injected into the conversation. In context: no, but they are state."""

    rules: tuple[str, ...]

    def describe(self) -> Description:
        return Description(title="Rules", facts=(", ".join(self.rules),), texts=self.rules)


class ResetBoundary(Struct, frozen=True):
    """Nothing before this entry reaches the model. In context: no."""

    def describe(self) -> Description:
        return Description(title="Reset", facts=("nothing above reaches the model",))


class Original(Struct, frozen=True, kw_only=True):
    """A piece of the file that another program wrote and the session was imported from. In context: no."""

    program: str
    """The name of its format, such as `claude`."""
    file: str
    offset: int = 0
    """Where the piece starts in the file, in bytes."""
    size: int = 0
    content: str = ""
    """The bytes of the piece, compressed with zlib, in base64."""
    heads: JsonObject | None = None
    """The heads of the branches in the file, in the last piece of an import."""

    def describe(self) -> Description:
        return Description(title="Original", subject=self.file, facts=(self.program,), line=f"original: {self.file}")


class Opaque(Struct, frozen=True, kw_only=True):
    """An entry of an unknown type. Its bytes are preserved. In context: no."""

    type: str
    fields: JsonObject
    """All fields except type, id, parent, timestamp and branch, in wire form."""

    def describe(self) -> Description:
        return Description(subject=self.type, line=self.type, data=self.fields, data_name="fields", is_setting=False)


NO_MESSAGE = Message({})
"""The body of a message line without a message."""

UNREADABLE = Opaque(type="", fields={})
"""The body of a line that starts like an entry but is not valid JSON."""

Body: TypeAlias = (
    Message
    | ModelChange
    | ThinkingLevelChange
    | Compaction
    | BranchSummary
    | Custom
    | CustomMessage
    | Label
    | SessionInfo
    | Usage
    | ContextEdit
    | BranchPoint
    | AgentAction
    | ModeChange
    | RuleInjection
    | ResetBoundary
    | Original
    | Opaque
)


class LinePreview(Struct, gc=False, kw_only=True):
    """A message line, read in one pass: a preview of its message, its timestamp, and whether its bytes are sound."""

    message: MessagePreview
    timestamp: Any = None
    is_sound: bool = False
    """Whether the line is valid UTF-8, has the usual form, and repeats no key of its head."""


class Source(Protocol):
    """Where entries read their bytes from: a file or memory."""

    def read_raw(self, line: int) -> bytes:
        """Return the bytes of a line, without the newline."""
        ...

    def read_raws(self, lines: Iterable[int]) -> Iterator[bytes]:
        """Yield the bytes of several lines. Fast if the lines are close together and in order."""
        ...

    def get_line(self, number: int) -> int:
        """Return the number of a line in the file, counting from 1."""
        ...

    def detach(self, line: int) -> Source:
        """Return a source that holds the bytes of this line in memory."""
        ...

    def decode_timestamp(self, raw: bytes) -> str: ...

    def decode_body(self, raw: bytes) -> Body: ...

    def can_read(self, raw: bytes) -> bool:
        """Return whether a line is valid JSON, without building its body."""
        ...

    def decode_extra(self, raw: bytes) -> JsonObject:
        """Return the fields of a line that no body has, in wire form."""
        ...

    def find_hidden_keys(self, raw: bytes) -> Sequence[str]:
        """Return the head keys that a line repeats after its message, where readers ignore them, in wire form."""
        ...

    def decode_line(self, raw: bytes) -> LinePreview | None:
        """Decode a message line for a listing; `None` if only `decode_body` can read it."""
        ...

    def decode_preview(self, raw: bytes) -> MessagePreview | None:
        """Decode the parts of a message that a listing needs; `None` if the line cannot be read."""
        ...


class Entry(Struct, gc=False, eq=False, kw_only=True):
    """One line of a session. An entry never changes after it was appended.

    It holds only what the tree needs. Bytes, timestamp and body are read on access.
    """

    id: EntryId
    parent: EntryId | None
    """The parent as written in the line. `Tree.parent` gives the effective parent."""
    type: str
    number: int
    """Number of the line in `source`, which may hold only the end of a file."""
    source: Source
    branch: str | UnsetType | None = UNSET
    """The branch it was written on; `None` for a late tool result; unset if a peer wrote the line."""
    current: str | None = None
    """The session's current branch if that differs from `branch`."""
    custom_type: str | None = None
    cached_body: Body | None = None
    """The decoded body, once it was accessed."""

    @property
    def line(self) -> int:
        """Number of the line in the file, counting from 1."""
        return self.source.get_line(self.number)

    @property
    def raw(self) -> bytes:
        """The line's bytes, without the newline."""
        return self.source.read_raw(self.number)

    @property
    def timestamp(self) -> str:
        return self.source.decode_timestamp(self.raw)

    @property
    def body(self) -> Body:
        """The typed content of this line, decoded once and cached."""
        if self.cached_body is None:
            self.cached_body = self.decode()
        return self.cached_body

    def decode(self) -> Body:
        """Decode the body without caching it. Use this to visit every entry of a large session."""
        return self.source.decode_body(self.raw) if self.cached_body is None else self.cached_body

    @property
    def message(self) -> TypedMessage | None:
        """The message of this entry as a typed value; `None` if the entry is not a message."""
        body = self.body
        return view_message(body.message) if isinstance(body, Message) else None

    @property
    def role(self) -> str | None:
        """The role of a message, such as `"user"`; `None` for every other type."""
        return None if self.message is None else self.message.role

    @property
    def text(self) -> str:
        """The text of a message or of a summary; empty for every other type."""
        match self.body:
            case Message(message):
                return view_message(message).text
            case Compaction(summary=summary) | BranchSummary(summary=summary):
                return summary
            case CustomMessage(content=content):
                return "\n".join(block.text for block in view_blocks(content) if isinstance(block, TextBlock))
            case _:
                return ""

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The tool calls of an assistant message."""
        return [] if not isinstance(self.message, AssistantMessage) else self.message.tool_calls

    @property
    def usage(self) -> TokenUsage | None:
        """The tokens and cost that this entry records; `None` if it records none."""
        match self.body:
            case Message(message):
                return view_usage(message.get("usage"))
            case Usage(usage=usage) | Compaction(usage=usage) | BranchSummary(usage=usage):
                return view_usage(usage)
            case _:
                return None

    @property
    def extra(self) -> JsonObject:
        """Further fields of the line, in wire form: the `extra` of `append`, and fields of other programs."""
        return self.source.decode_extra(self.raw)

    @property
    def is_readable(self) -> bool:
        """Whether the line is valid JSON. A damaged line can start like an entry and end early."""
        return self.cached_body is not UNREADABLE if self.cached_body is not None else self.source.can_read(self.raw)

    @property
    def is_head_record(self) -> bool:
        return self.type == "custom" and self.custom_type == HEAD_RECORD

    @property
    def is_annotation(self) -> bool:
        """Whether it describes the session and never moves a head."""
        return is_annotation(self.type, self.custom_type)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles carry the bytes of the line, not the source that they were read from."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__ if name != "cached_body"}
        return partial(Entry, **{**fields, "number": self.line, "source": self.source.detach(self.number)}), ()

    def __repr__(self) -> str:
        text = shorten_to_line(self.text)
        said = f" {self.role or self.type}" + (f" {text[:60]!r}" if text else "")
        return f"<Entry {self.id}{said} under {self.parent}>"


class Chain(Struct, eq=False, kw_only=True, gc=False):
    """Consecutive messages: each on the next line, a child of the one before, on the same branch.

    Nearly every line of a session is in a chain. `Entry` objects are built on access.
    """

    ids: list[EntryId]
    parent: EntryId | None
    """The parent of the first message."""
    number: int
    """The number of the first line in `source`."""
    source: Source
    branch: str | UnsetType | None = UNSET
    current: str | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def build_entry(self, index: int) -> Entry:
        return Entry(
            id=self.ids[index],
            parent=self.get_parent(index),
            type="message",
            number=self.number + index,
            source=self.source,
            branch=self.branch,
            current=self.current,
        )

    def build_entries(self, start: int, stop: int) -> Iterator[Entry]:
        """Yield several entries, in less time than `build_entry` for each of them."""
        source, branch, current = self.source, self.branch, self.current
        above, ids = self.get_parent(start), self.ids[start:stop]
        for number, id in enumerate(ids, self.number + start):
            yield Entry(
                id=id, parent=above, type="message", number=number, source=source, branch=branch, current=current
            )
            above = id

    def get_parent(self, index: int) -> EntryId | None:
        return self.ids[index - 1] if index else self.parent


def iter_entries(items: Iterable[Entry | Chain]) -> Iterator[Entry]:
    """Yield every entry, including the entries of chains."""
    for item in items:
        if isinstance(item, Chain):
            yield from item.build_entries(0, len(item))
        else:
            yield item


def read_raws(entries: Iterable[Entry]) -> Iterator[bytes]:
    """Yield the bytes of entries. Fast if they are close together and in file order."""
    for source, group in groupby(entries, key=_get_source):
        yield from source.read_raws(map(_get_number, group))


def sort_by_line(entries: Sequence[Entry]) -> list[int]:
    """Return the positions of entries in the list, sorted by their lines in the file."""
    lines = list(map(_get_number, entries))
    if len(set(map(id, map(_get_source, entries)))) > 1:
        lines = [entry.line for entry in entries]
    return sorted(range(len(lines)), key=lines.__getitem__)


_get_source: Callable[[Entry], Source] = attrgetter("source")
_get_number: Callable[[Entry], int] = attrgetter("number")


def parse_entry_id(value: object) -> EntryId | None:
    """Return the entry id that a JSON value holds. `NO_ID` replaces a value that is neither a string nor `None`."""
    return value if value is None or isinstance(value, str) else NO_ID


def is_annotation(type: str, custom_type: str | None) -> bool:
    return custom_type in ANNOTATING_CUSTOM_TYPES if type == "custom" else type in ANNOTATION_TYPES


class TypeFacts(Struct, frozen=True):
    """Facts about every entry of a type, independent of its body."""

    is_annotation: bool = False
    """It describes the session and never moves a head."""
    is_bookkeeping: bool = False
    """The default view of the tree hides it."""
    in_transcript: bool = False
    """The chat of the terminal app shows it as a note."""
    unsent_reason: str = ""
    """Why it does not reach the model."""


ENTRY_TYPES = {
    "message": TypeFacts(),
    "compaction": TypeFacts(),
    "branch_summary": TypeFacts(unsent_reason="an empty summary"),
    "custom_message": TypeFacts(),
    "model_change": TypeFacts(is_bookkeeping=True, in_transcript=True, unsent_reason="a setting"),
    "thinking_level_change": TypeFacts(is_bookkeeping=True, in_transcript=True, unsent_reason="a setting"),
    "mode_change": TypeFacts(is_bookkeeping=True, unsent_reason="a setting"),
    "ttsr_injection": TypeFacts(is_bookkeeping=True, unsent_reason="a setting"),
    "reset_boundary": TypeFacts(is_bookkeeping=True, unsent_reason="a reset"),
    "custom": TypeFacts(is_bookkeeping=True, unsent_reason="state of an extension"),
    "context_edit": TypeFacts(is_bookkeeping=True, unsent_reason="an edit of another entry"),
    "branch_point": TypeFacts(in_transcript=True, unsent_reason="marks the start of a branch"),
    "agent_action": TypeFacts(unsent_reason="a record of what an agent did"),
    "label": TypeFacts(is_annotation=True, is_bookkeeping=True),
    "session_info": TypeFacts(is_annotation=True, is_bookkeeping=True),
    "usage": TypeFacts(is_annotation=True, is_bookkeeping=True),
    "alias": TypeFacts(is_annotation=True, is_bookkeeping=True),
    "original": TypeFacts(is_annotation=True, is_bookkeeping=True),
    # Types that only peers write. They have no body class here.
    "model_usage": TypeFacts(is_annotation=True, is_bookkeeping=True),
    "title_change": TypeFacts(is_annotation=True, is_bookkeeping=True),
    "credential_pin": TypeFacts(is_annotation=True, is_bookkeeping=True),
    "service_tier_change": TypeFacts(is_bookkeeping=True),
    "session_init": TypeFacts(is_bookkeeping=True),
}
"""The facts about each known type. A type that is not here has none of them."""

ANNOTATION_TYPES = frozenset(type for type, facts in ENTRY_TYPES.items() if facts.is_annotation)
BOOKKEEPING_TYPES = frozenset(type for type, facts in ENTRY_TYPES.items() if facts.is_bookkeeping)
TRANSCRIPT_TYPES = frozenset(type for type, facts in ENTRY_TYPES.items() if facts.in_transcript)
ANNOTATING_CUSTOM_TYPES = frozenset({HEAD_RECORD, FILES_RECORD, "session_exit"})


class Problem(Struct, frozen=True, kw_only=True):
    """One problem of a session. Damage is reported as a value, never hidden."""

    kind: str
    severity: str
    """`"fault"` for damage, `"note"` for information."""
    message: str
    entry: EntryId | None = None
    line: int | None = None
    """Number of the line in the file, counting from 1."""
    offset: int | None = None
    """The byte offset of the line in the file."""


class Header(Struct, frozen=True, kw_only=True):
    """The first line, which identifies the session. It is not part of the tree."""

    raw: bytes
    id: str
    version: int
    """The version in the file, before migration."""
    timestamp: str = ""
    cwd: str = ""
    parent_session: str | None = None
    forked_from: EntryId | None = None
    title: str | None = None
    """A name that peers store in the header or in a title slot; a `session_info` entry overrides it."""
    redacted: bool = False
    """Whether secrets were removed from the lines. A redacted session cannot be continued."""
    origin: JsonObject | None = None
    """The program that the session was imported from: its name as `program`, and its `version` if known."""

    @property
    def origin_name(self) -> str:
        """The program that the session was imported from, and its version; empty if there is none."""
        found = ((self.origin or {}).get(key) for key in ("program", "version"))
        return " ".join(value for value in found if isinstance(value, str))
