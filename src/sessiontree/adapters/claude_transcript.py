"""Transcripts of the Claude Agent SDK as branches of a session.

A transcript is a list of records: the lines of Claude Code. Records of the conversation become messages, below the
entry of the parent that the record names. Custom entries at the end of the branch keep all other records, so the
transcript can be returned unchanged. The main transcript is on the first branch, and on further ones where the user
went back. Each subagent has a branch below the call that started it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct, field

from sessiontree.adapters.shared_strings import restore_strings, share_strings
from sessiontree.convert.anthropic_messages import from_anthropic
from sessiontree.core.entries import (
    Body,
    Compaction,
    Custom,
    CustomMessage,
    Entry,
    EntryId,
    JsonObject,
    Message,
    ResetBoundary,
)
from sessiontree.core.heads import MAIN
from sessiontree.core.messages import coerce_number, coerce_string, extract_text, is_list, is_object
from sessiontree.core.place_names import find_free_name
from sessiontree.core.timestamps import parse_timestamp
from sessiontree.errors import FormatError, InvalidOperation
from sessiontree.interop.base import get_object
from sessiontree.interop.claude_code import build_user_body, describe_answer, join_answer
from sessiontree.interop.claude_lines import get_blocks, get_text, list_preserved
from sessiontree.session import Session
from sessiontree.session.writer import Item

RECORDS_FIELD = "claudeRecords"
"""The field of an entry with the records that it was made from, and more about them."""
LINES = "claude.lines"
"""The custom type of entries with records that are not part of the conversation, in `data`."""
DELETED = "claude.deleted"
"""The custom type of an entry that deletes a subagent's transcript."""

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class TranscriptNode(Struct, gc=False):
    """What the place of later records depends on, for one entry."""

    parent: EntryId | None
    passes: bool
    """Whether a record may follow here that names an entry above as its parent: after lines, tool results, and further
    parts of an answer."""
    calls: frozenset[str] = frozenset()
    """The tool calls that it answers."""


class ClaudeTranscript(Struct):
    """One transcript of a session: the main one, or that of a subagent."""

    branch: str
    """The branch of the last record."""
    carriers: list[Entry] = field(default_factory=list[Entry])
    """The entries with records, in order."""
    places: dict[str, EntryId | None] = field(default_factory=dict[str, EntryId | None])
    """The entry of each uuid."""
    answers: set[str] = field(default_factory=set[str])
    """The ids of the answers whose usage is recorded."""
    has_talk: bool = False


class TranscriptIndex:
    """The transcripts of one session."""

    def __init__(self) -> None:
        self.transcripts: dict[str, ClaudeTranscript] = {}
        """By subpath; the main transcript has the empty one."""
        self.nodes: dict[EntryId, TranscriptNode] = {}
        self.tools: dict[str, str] = {}
        """The names of tools, by call id."""
        self.callers: dict[str, EntryId] = {}
        """The entries that made tool calls."""
        self.summary: JsonObject | None = None

    def add(self, entry: Entry) -> None:
        body = entry.decode() if entry.type == "custom" else None
        if isinstance(body, Custom) and body.custom_type == DELETED:
            self.transcripts.pop(coerce_string(get_object({"data": body.data}, "data").get("subpath")), None)
        if isinstance(body, Custom) and body.custom_type not in (LINES, DELETED):
            return
        facts = get_object(entry.extra, RECORDS_FIELD)
        if not facts:
            return
        if is_object(facts.get("summary")):
            self.summary = facts["summary"]
        subpath = coerce_string(facts.get("subpath"))
        branch = entry.branch if isinstance(entry.branch, str) else MAIN
        transcript = self.transcripts.setdefault(subpath, ClaudeTranscript(branch))
        records = body.data if isinstance(body, Custom) else facts.get("records")
        transcript.branch = branch
        if not is_list(records) or not records:  # the first entries of a record that became several
            self.nodes[entry.id] = TranscriptNode(entry.parent, passes=True)
            return
        transcript.carriers.append(entry)
        self.note(transcript, entry.id, entry.parent, [record for record in records if is_object(record)], entry.type)

    def note(
        self, transcript: ClaudeTranscript, id: EntryId, parent: EntryId | None, records: list[JsonObject], type: str
    ) -> None:
        """Note where later records may go that follow these."""
        calls = frozenset(_iter_calls(records, "tool_result", "tool_use_id")) if type == "message" else frozenset[str]()
        answer = get_object(records[-1], "message").get("id")
        continues = isinstance(answer, str) and answer in transcript.answers
        self.nodes[id] = TranscriptNode(parent, passes=type == "custom" or bool(calls) or continues, calls=calls)
        for record in records:
            uuid = record.get("uuid")
            if isinstance(uuid, str):
                above = find_parent_uuid(record)
                transcript.places[uuid] = transcript.places.get(above or "") if type == "custom" else id
        if type == "custom":
            return
        transcript.has_talk = True
        for record in records:
            if isinstance(get_object(record, "message").get("id"), str):
                transcript.answers.add(record["message"]["id"])
            for block in get_blocks(record):
                if block.get("type") == "tool_use" and isinstance(block.get("id"), str):
                    self.tools[block["id"]] = coerce_string(block.get("name"))
                    self.callers[block["id"]] = id


def find_parent_uuid(record: JsonObject) -> str | None:
    return get_text(record, "parentUuid") or get_text(record, "logicalParentUuid")


def _iter_calls(records: Iterable[JsonObject], kind: str, key: str) -> Iterator[str]:
    for record in records:
        yield from (coerce_string(block.get(key)) for block in get_blocks(record) if block.get("type") == kind)


def read_records(session: Session, entry: Entry) -> list[Any]:
    """Return the records that an entry was made from. Raises `FormatError` if they are damaged."""
    body = entry.decode()
    if isinstance(body, Custom):
        return body.data
    facts = get_object(entry.extra, RECORDS_FIELD)
    parts = facts.get("parts")
    bodies = [session.tree[id].decode() for id in parts if id in session.tree] if is_list(parts) else []
    messages = [_get_content(part) for part in (*bodies, body)]
    records = restore_strings(facts.get("records"), messages)
    if not is_list(records):
        raise FormatError(session.location, f"entry {entry.id!r} has no records")
    return records


def _get_content(body: Body) -> JsonObject:
    """Return the part of a body that shares strings with its records."""
    match body:
        case Message(message):
            return message
        case CustomMessage(content=content):
            return {"content": content}
        case Compaction(summary=summary):
            return {"content": summary}
        case _:
            return {}


class RecordGroup(Struct):
    """Records that become one entry, or several if one record has several messages."""

    kind: str
    """`answer`, `user`, `compaction` or `lines`."""
    records: list[JsonObject]


def group_records(records: Iterable[JsonObject]) -> list[RecordGroup]:
    """Join the lines of an answer, and lines that are not part of the conversation."""
    groups: list[RecordGroup] = []
    for record in records:
        message = record.get("message")
        kind = "lines"
        if is_object(message) and isinstance(record.get("uuid"), str):
            if record.get("type") == "assistant":
                kind = "answer"
            elif record.get("type") == "user":
                kind = "compaction" if record.get("isCompactSummary") is True else "user"
        last = groups[-1] if groups else None
        if last is not None and last.kind == kind and (kind == "lines" or _is_same_answer(last.records[-1], record)):
            last.records.append(record)
        else:
            groups.append(RecordGroup(kind, [record]))
    return groups


def _is_same_answer(a: JsonObject, b: JsonObject) -> bool:
    id = get_object(a, "message").get("id")
    return isinstance(id, str) and b.get("type") == "assistant" and get_object(b, "message").get("id") == id


class EntryRun(Struct):
    """Entries to write in one step: at the head of a branch, or on a new branch."""

    branch: str
    items: list[Item] = field(default_factory=list[Item])
    expected: EntryId | None = None
    """The head that the branch must have."""
    start: EntryId | None = None
    """Where a new branch starts."""
    is_new: bool = False
    description: str | None = None


class RunBuilder:
    """Places new records of a transcript. Nothing is written."""

    def __init__(self, session: Session, index: TranscriptIndex, subpath: str) -> None:
        self._session = session
        self._index = index
        self._subpath = subpath
        self._new_branches: set[str] = set()
        self.runs: list[EntryRun] = []
        known = index.transcripts.get(subpath)
        if known is None:
            known = index.transcripts[subpath] = ClaudeTranscript(MAIN)
            if subpath:
                self._start_subagent(known)
        self._transcript = known
        self._branch = known.branch
        self._tip = self.runs[-1].items[-1].id if self.runs else session.heads.heads.get(known.branch)

    def add(self, records: Iterable[JsonObject]) -> None:
        """Add records to `runs`, the entries to write."""
        for group in group_records(records):
            self._add_group(group)

    def _start_subagent(self, transcript: ClaudeTranscript) -> None:
        """Start the branch of a subagent. Its model does not see the entries above."""
        name = _clean_branch_name(self._subpath.rpartition("/")[2])
        if not name or name in self._session.heads.heads or name in self._session.tree:
            name = find_free_name(name or "agent", self._session.heads.heads)
        transcript.branch = name
        start = self._session.heads.heads.get(self._get_main().branch)
        run = EntryRun(name, is_new=True, start=start)
        run.items.append(Item(ResetBoundary(), id=self._session.generate_id()))
        self.runs.append(run)

    def _get_main(self) -> ClaudeTranscript:
        return self._index.transcripts.get("", ClaudeTranscript(MAIN))

    def describe_subagent(self, records: Iterable[JsonObject]) -> None:
        """Move the start of a new subagent's branch to the call that its metadata names."""
        for record in records:
            if record.get("type") != "agent_metadata" or not self.runs or not self.runs[0].is_new:
                continue
            caller = self._index.callers.get(coerce_string(record.get("toolUseId")))
            self.runs[0].start = caller or self.runs[0].start
            self.runs[0].description = get_text(record, "description") or get_text(record, "agentType")

    def _add_group(self, group: RecordGroup) -> None:
        bodies = self._build_bodies(group)
        first = group.records[0]
        if not isinstance(bodies[0], Custom):
            calls = set(_iter_calls(group.records, "tool_result", "tool_use_id"))
            parent = self._find_place(first)
            if not self._can_follow(parent, calls):
                self._start_branch(parent)
        self._append(group, bodies)

    def _find_place(self, record: JsonObject) -> EntryId | None:
        """Return the entry that talk belongs below; the end of the branch if its parent is not known."""
        uuid = find_parent_uuid(record)
        if uuid is None:
            return None if self._transcript.has_talk and "parentUuid" in record else self._tip
        return self._transcript.places.get(uuid, self._tip)

    def _can_follow(self, parent: EntryId | None, calls: set[str]) -> bool:
        """Return whether an entry below `parent` may go to the end of the branch.

        Lines may be between, and results of other calls: results of parallel calls hang below their calls.
        """
        at = self._tip
        while at != parent:
            node = None if at is None else self._index.nodes.get(at)
            if node is None or not node.passes or not calls.isdisjoint(node.calls):
                return not self._transcript.has_talk
            at = node.parent
        return True

    def _start_branch(self, parent: EntryId | None) -> None:
        stem = f"{self._transcript.branch}-rewind" if self._subpath else "rewind"
        name = find_free_name(stem, {*self._session.heads.heads, *self._new_branches})
        self._new_branches.add(name)
        self.runs.append(EntryRun(name, is_new=True, start=parent))
        self._branch, self._tip = name, parent

    def _append(self, group: RecordGroup, bodies: list[Body]) -> None:
        if not self.runs or self.runs[-1].branch != self._branch:
            self.runs.append(EntryRun(self._branch, expected=self._tip))
        run, records = self.runs[-1], group.records
        uuid = coerce_string(records[-1].get("uuid"))
        is_free = _UUID.fullmatch(uuid) is not None and uuid not in self._session.tree
        id = uuid if is_free and not isinstance(bodies[-1], Custom) else self._session.generate_id()
        time = next((time for record in records if (time := _read_time(record)) is not None), None)
        facts: JsonObject = {"subpath": self._subpath} if self._subpath else {}
        parts: list[EntryId] = []
        for body in bodies[:-1]:
            part = self._session.generate_id()
            run.items.append(Item(body, extra={RECORDS_FIELD: {**facts, "part": True}}, id=part, timestamp=time))
            self._index.nodes[part] = TranscriptNode(self._tip, passes=True)
            parts.append(part)
            self._tip = part
        if isinstance(bodies[-1], Custom):
            facts["lines"] = len(records)
            type = "custom"
        else:
            facts["records"] = share_strings(records, [_get_content(body) for body in bodies])
            type = "message"
        if parts:
            facts["parts"] = parts
        run.items.append(Item(bodies[-1], extra={RECORDS_FIELD: facts}, id=id, timestamp=time))
        self._index.note(self._transcript, id, self._tip, records, type)
        self._tip = id

    def _build_bodies(self, group: RecordGroup) -> list[Body]:
        records = group.records
        bodies: list[Body] = []
        try:
            match group.kind:
                case "answer":
                    answers = list(from_anthropic([join_answer(records)]))
                    bodies = [Message(self._describe(body.message, records[-1])) for body in answers]
                case "user":
                    messages = list(from_anthropic([dict(records[0]["message"])]))
                    bodies = [build_user_body(body.message, records[0], self._index.tools) for body in messages]
                case "compaction":
                    bodies = [self._build_compaction(records[0])]
                case _:
                    pass
        except InvalidOperation:  # what it means is not known, but it is kept
            bodies = []
        return bodies or [Custom(custom_type=LINES, data=records)]

    def _describe(self, message: JsonObject, record: JsonObject) -> JsonObject:
        described = describe_answer(message, record)
        if get_text(get_object(record, "message"), "id") in self._transcript.answers:
            described.pop("usage", None)  # every line of an answer has the usage of the whole
        return described

    def _build_compaction(self, record: JsonObject) -> Body:
        content = get_object(record, "message").get("content")
        summary = extract_text(content)
        if get_object(record, "summarizeMetadata").get("direction") == "from":
            return CustomMessage(custom_type="claude.note", content=summary)
        facts = get_object(self._find_boundary(record), "compactMetadata")
        preserved = (self._transcript.places.get(uuid) for uuid in list_preserved(facts))
        kept = next((id for id in preserved if id is not None and self._is_above(id)), None)
        tokens = max(0, int(coerce_number(facts.get("preTokens"))))
        return Compaction(summary=summary, first_kept=kept, tokens_before=tokens)

    def _is_above(self, id: EntryId) -> bool:
        at = self._tip
        while at is not None and at != id:
            node = self._index.nodes.get(at)
            at = self._session.tree.parent(at) if node is None else node.parent
        return at is not None

    def _find_boundary(self, record: JsonObject) -> JsonObject:
        """Return the line before a summary, which has the facts about the compaction."""
        uuid = get_text(record, "parentUuid")
        pending = [item.body.data for run in self.runs for item in run.items if isinstance(item.body, Custom)]
        stored = (read_records(self._session, entry) for entry in reversed(self._transcript.carriers[-8:]))
        for records in (*reversed(pending), *stored):
            for line in records:
                if is_object(line) and uuid is not None and line.get("uuid") == uuid:
                    return line
        return {}


def _read_time(record: JsonObject) -> str | None:
    time = record.get("timestamp")
    return time if isinstance(time, str) and parse_timestamp(time) is not None else None


def _clean_branch_name(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip("-.")[:64]


def check_records(records: Sequence[Any]) -> list[JsonObject]:
    """Return the records of a batch. Raises `InvalidOperation` if one is not a JSON object."""
    for number, record in enumerate(records, 1):
        if not is_object(record):
            raise InvalidOperation(f"record {number} of the batch is not a JSON object but {type(record).__name__}")
    return list(records)
