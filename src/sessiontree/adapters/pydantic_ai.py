"""Conversations of pydantic-ai as sessions: a store for `ConversationStore` of that framework.

Every conversation is a session with its id as the name. A message is one entry, and a request with several tool results
one entry for each. A record on the same branch keeps the other data of the framework. So the head of the branch always
shows which save was the last, and moves of other programs count as saves.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import orjson

try:
    from pydantic import ConfigDict, TypeAdapter, ValidationError
    from pydantic_ai.conversation_store import (
        ConversationConflict,
        ConversationEntry,
        ConversationRecord,
        ConversationStore,
    )
    from pydantic_ai.exceptions import UserError
    from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelRequest, ModelResponse
    from pydantic_core import PydanticSerializationError
except ImportError as error:
    raise ImportError(f"TreeConversationStore needs `pip install 'sessiontree[pydantic-ai]'` ({error})") from error

from sessiontree.adapters.named_sessions import NamedSessions, walk_up_messages
from sessiontree.adapters.session_pool import SessionPlace
from sessiontree.convert.pydantic_ai import restore_pydantic_ai, starts_message, store_pydantic_ai
from sessiontree.core.context import Context, build_path_context, build_shared_context
from sessiontree.core.entries import Body, Custom, Entry, EntryId, JsonObject, Message
from sessiontree.core.messages import convert_for_model, get_role, is_object
from sessiontree.errors import BranchMoved, Conflict, InvalidOperation
from sessiontree.library.catalog import fork
from sessiontree.model.adapter.conversion import build_usage
from sessiontree.session import Item, Session
from sessiontree.store.jsonl import Durability

RECORD_TYPE = "pydantic-ai.conversation"
"""The `custom_type` of the entries that hold records."""
EXTRA_KEY = "pydanticAi"
"""The field of a line for what a stored message cannot hold: the whole `message`, or the entry that it is `partOf`."""
MAX_LOCATED = 10_000
"""For how many entries the store remembers their conversation."""

MESSAGE_TYPES = frozenset({"message", "custom_message", "compaction", "branch_summary"})
"""The types of entries that the model sees."""
PLAIN_TYPES = frozenset({"message", "custom", "label", "session_info", "branch_point"})
"""The types of entries that do not change what the model sees of the entries before."""
STORED_ROLES = frozenset({"user", "assistant", "toolResult", "system"})

_RECORD = TypeAdapter(ConversationRecord)
_MESSAGE: TypeAdapter[ModelMessage] = TypeAdapter(
    ModelMessage, config=ConfigDict(defer_build=True, ser_json_bytes="base64", val_json_bytes="base64")
)
"""Writes one message as `ModelMessagesTypeAdapter` writes it in a list."""


class TreeConversationStore(ConversationStore):
    """Keeps conversations as sessions, in a folder, in a database, or in the usual place.

    Several processes may use the same conversations. `delete` moves a conversation to the trash, from where
    `sessiontree restore` brings it back and `sessiontree purge` erases it.
    """

    def __init__(self, place: SessionPlace = None, *, durability: Durability = "fsync") -> None:
        self._sessions = NamedSessions(place, durability)
        self._locations: OrderedDict[str, str] = OrderedDict()
        """The conversation that each entry was last seen in."""
        self._readers: WeakKeyDictionary[Session, _HistoryReader] = WeakKeyDictionary()

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        return await asyncio.to_thread(self._read_record_sync, conversation_id)

    async def read_records(self, *, scope: str | None = None, limit: int | None = None) -> Sequence[ConversationRecord]:
        return await asyncio.to_thread(self._read_records_sync, scope, limit)

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        try:
            await asyncio.to_thread(self._write_record_sync, record, list(new_entries), expected_revision)
        except InvalidOperation as error:
            raise UserError(str(error)) from error

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        await asyncio.to_thread(self._delete_record_sync, conversation_id, expected_revision)

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        return (await self.read_history(entry_id))[-1]

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        if head_id is None or limit == 0:
            return []
        return await asyncio.to_thread(self._read_history_sync, head_id, limit)

    def close(self) -> None:
        """Close all open sessions. The next call opens them again."""
        self._sessions.close()

    # In a worker thread, because the disk may be slow

    def _read_record_sync(self, id: str) -> ConversationRecord | None:
        session = self._sessions.open(id)
        stored = None if session is None else _read_conversation(session, id)
        if stored is None:
            return None
        self._locate(id, [stored.record.head_id, *stored.record.branches])
        return stored.record

    def _read_records_sync(self, scope: str | None, limit: int | None) -> list[ConversationRecord]:
        records: list[ConversationRecord] = []
        for name, session in self._sessions.iter_sessions(RECORD_TYPE.encode()):
            with session:
                stored = _read_conversation(session, name)
            if stored is not None and stored.is_saved and scope in (None, stored.record.scope):
                records.append(stored.record)
        records.sort(key=lambda record: record.updated_at, reverse=True)
        return records[:limit]

    def _read_history_sync(self, head_id: str, limit: int | None) -> list[ConversationEntry]:
        session = self._find_session(head_id)
        if session is None:
            raise LookupError(f"entry {head_id!r} is not in the store")
        with session.hold_lock():
            history = self._get_reader(session).read(session, head_id)
        return history if limit is None else history[-limit:]

    def _get_reader(self, session: Session) -> _HistoryReader:
        return self._readers.setdefault(session, _HistoryReader())

    def _find_session(self, entry: EntryId) -> Session | None:
        """Return the session that has an entry. One that was not read before is searched for."""
        name = self._locations.get(entry)
        session = None if name is None else self._sessions.open(name)
        if session is not None and entry in session.tree:
            return session
        for name, found in self._sessions.iter_sessions(entry.encode("utf-8", "replace")):
            if entry in found.tree:
                self._locate(name, [entry])
                return found
        return None

    def _locate(self, name: str, entries: Iterable[EntryId | None]) -> None:
        for entry in entries:
            if entry is not None:
                self._locations[entry] = name
        while len(self._locations) > MAX_LOCATED:
            self._locations.popitem(last=False)

    def _write_record_sync(
        self, record: ConversationRecord, entries: list[ConversationEntry], expected: str | None
    ) -> None:
        name = record.conversation_id
        _check_messages(entries)
        session = self._sessions.open(name)
        if session is None:
            if expected is not None:
                raise ConversationConflict(name)
            with self._sessions.hold_name(name):
                session = self._sessions.open(name) or self._create(name, _find_anchor(record, entries))
        texts = _dump_messages(entries)
        while not _append_record(session, record, entries, texts, expected):
            pass  # another program appended something: look at it first
        with session.hold_lock():
            self._get_reader(session).add(entries, texts)
        if session.address is None or not self._sessions.repository.exists(session.address):
            raise ConversationConflict(name)  # deleted in the meantime
        self._locate(name, [entry.id for entry in entries] or [record.head_id])

    def _create(self, name: str, anchor: EntryId | None) -> Session:
        """Create a session. If its history starts with entries of another one, it is a fork of that one."""
        source = None if anchor is None else self._find_session(anchor)
        if anchor is None:
            return self._sessions.create(name)
        if source is None:
            raise ConversationConflict(name)
        fork(source, at=source.tree[anchor], name=name).close()
        session = self._sessions.open(name)
        assert session is not None  # the lock of the name is held
        return session

    def _delete_record_sync(self, id: str, expected: str) -> None:
        session = self._sessions.open(id)
        stored = None if session is None else _read_conversation(session, id)
        if session is None or stored is None or stored.record.revision != expected:
            raise ConversationConflict(id)
        # A new revision first: programs that loaded the conversation cannot save it while it is being deleted.
        ended = replace(stored.record, revision=f"{expected}-deleted")
        self._write_record_sync(ended, [], expected)
        assert session.address is not None
        self._sessions.forget(id)
        self._sessions.repository.delete(session.address)
        session.close()


class _StoredConversation(NamedTuple):
    """A conversation as it is in a session."""

    record: ConversationRecord
    head: EntryId | None
    """The head of the branch, which may be the record itself."""
    is_saved: bool
    """Whether the store wrote a record. Otherwise another program made the session."""


def _read_conversation(session: Session, name: str) -> _StoredConversation | None:
    """Return the conversation at the head of the current branch, or `None` if the session is empty."""
    with session.hold_lock():
        tree, head = session.tree, session.heads.leaf
        above: list[Entry] = []
        found: ConversationRecord | None = None
        for entry in tree.walk_up(head):
            found = _parse_record(entry, name)
            if found is not None:
                break
            above.append(entry)
        is_last = found is not None and not above
        saved = found or _find_last_record(session, name)
        if saved is None and head is None:
            return None
        if is_last and saved is not None:
            return _StoredConversation(saved, head, is_saved=True)
        # Another program appended or moved since: its messages count, and the revision names the place.
        messages = [entry.id for entry in tree.walk_up(head) if entry.type in MESSAGE_TYPES]
        record = saved or ConversationRecord(conversation_id=name, head_id=None, updated_at=_read_time(session, head))
        left = [id for id in (record.head_id,) if id is not None and id not in messages]
        moved = replace(
            record,
            head_id=messages[0] if messages else None,
            deferred_tool_requests=None,
            branches=[*(id for id in record.branches if id not in left), *left],
            revision=f"{record.revision if saved else ''}@{head or 'root'}",
        )
        return _StoredConversation(moved, head, is_saved=saved is not None)


def _parse_record(entry: Entry, name: str) -> ConversationRecord | None:
    """Return the record of this conversation that an entry holds. A fork also has records of the other conversation."""
    if entry.type != "custom" or entry.custom_type != RECORD_TYPE:
        return None
    body = entry.body
    try:
        record = _RECORD.validate_python(body.data) if isinstance(body, Custom) else None
    except ValidationError:
        return None
    return record if record is not None and record.conversation_id == name else None


def _find_last_record(session: Session, name: str) -> ConversationRecord | None:
    records = [entry for entry in session.tree if entry.custom_type == RECORD_TYPE]
    return next((record for entry in reversed(records) if (record := _parse_record(entry, name)) is not None), None)


def _read_time(session: Session, head: EntryId | None) -> datetime:
    stamp = session.header.timestamp if head is None else session.tree[head].timestamp
    try:
        return datetime.fromisoformat(stamp).astimezone(UTC)
    except ValueError:
        return datetime.fromtimestamp(0, UTC)


class _HistoryReader:
    """Reads the history at an entry. The JSON of messages that were read before is not built again."""

    def __init__(self) -> None:
        self._ids: list[EntryId] = []
        self._texts: list[bytes] = []
        """The messages of the last history. They are kept as JSON because every caller gets new objects."""

    def read(self, session: Session, head: EntryId) -> list[ConversationEntry]:
        """Return what the model sees at an entry, as entries of the framework."""
        if not self._follow(session, head):
            path = session.tree.path(head)
            restored = _restore_messages(session, build_shared_context(session.tree, head))
            self._ids, self._texts = [id for id, _ in restored], [text for _, text in restored]
            if not all(entry.type in PLAIN_TYPES for entry in path):
                history = self._build(len(self._ids))
                self._ids, self._texts = [], []  # a compaction changes the messages before it
                return history
        return self._build(self._ids.index(head) + 1 if head in self._ids else len(self._ids))

    def add(self, entries: Sequence[ConversationEntry], texts: Sequence[bytes]) -> None:
        """Remember messages that were just written, if they continue the last history."""
        if entries and self._ids and entries[0].parent_id == self._ids[-1]:
            self._ids += [entry.id for entry in entries]
            self._texts += texts

    def _follow(self, session: Session, head: EntryId) -> bool:
        """Add the messages since the last history. Returns whether `head` continues from one of its messages."""
        known = {id: index for index, id in enumerate(self._ids)}
        added: list[Entry] = []
        for entry in session.tree.walk_up(head):
            if entry.id in known:
                break
            added.append(entry)
        else:
            return False
        if not added:
            return True
        context = build_path_context(added[::-1])
        is_plain = all(entry.type in PLAIN_TYPES for entry in added)
        if not is_plain or not (context.messages and starts_message(context.messages[0])):
            return False
        shared = known[entry.id] + 1
        restored = _restore_messages(session, context)
        self._ids[shared:] = [id for id, _ in restored]
        self._texts[shared:] = [text for _, text in restored]
        return True

    def _build(self, size: int) -> list[ConversationEntry]:
        messages = ModelMessagesTypeAdapter.validate_json(b"[" + b",".join(self._texts[:size]) + b"]")
        parents = [None, *self._ids]
        return [
            ConversationEntry(id=id, parent_id=parent, message=message)
            for id, parent, message in zip(self._ids, parents, messages, strict=False)
        ]


def _restore_messages(session: Session, context: Context) -> list[tuple[EntryId, bytes]]:
    """Return the messages of a context as JSON, each with its entry."""
    found: list[tuple[EntryId, bytes]] = []
    waiting: list[tuple[EntryId, JsonObject]] = []

    def restore_waiting() -> None:
        for index, message in restore_pydantic_ai([message for _, message in waiting]):
            found.append((waiting[index][0], ModelMessagesTypeAdapter.dump_json([message])[1:-1]))
        waiting.clear()

    for id, message in zip(context.sources, context.messages, strict=True):
        kept = (session.tree[id].extra or {}).get(EXTRA_KEY)
        if is_object(kept) and "partOf" in kept:
            continue
        if is_object(kept) and "message" in kept:
            restore_waiting()
            found.append((id, orjson.dumps(kept["message"])))
            continue
        sent = message if get_role(message) in STORED_ROLES else convert_for_model(message)
        if sent is not None:
            waiting.append((id, sent))
    restore_waiting()
    return found


def _check_messages(entries: Iterable[ConversationEntry]) -> None:
    for entry in entries:
        if not isinstance(entry.message, ModelRequest | ModelResponse):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not check types
            raise UserError(f"a conversation holds ModelMessage objects, not {type(entry.message).__name__}")


def _find_anchor(record: ConversationRecord, entries: Sequence[ConversationEntry]) -> EntryId | None:
    """Return the entry that a save continues from."""
    return entries[0].parent_id if entries else record.head_id


def _append_record(
    session: Session,
    record: ConversationRecord,
    entries: Sequence[ConversationEntry],
    texts: Sequence[bytes],
    expected: str | None,
) -> bool:
    """Append messages and a record if the revision is the expected one. Return whether it was."""
    name = record.conversation_id
    with session.require_unchanged():
        session.refresh()
        stored = _read_conversation(session, name)
        is_new = stored is None or (expected is None and not stored.is_saved and _is_fresh_fork(session))
        if (None if is_new or stored is None else stored.record.revision) != expected:
            raise ConversationConflict(name)
        anchor = _find_anchor(record, entries)
        if anchor is not None and anchor not in session.tree:
            raise ConversationConflict(name)
        above = None if anchor is None else session.tree[anchor]
        if stored is not None and stored.head is not None and stored.record.head_id == anchor:
            above = session.tree[stored.head]  # the record is between the messages
        items = _build_items(entries, texts, walk_up_messages(session, None if above is None else above.id))
        items.append(Item(Custom(custom_type=RECORD_TYPE, data=_RECORD.dump_python(record, mode="json"))))
        try:
            session.extend(items, parent=above, expected=session.heads.leaf)
        except (Conflict, BranchMoved):
            return False
    return True


def _is_fresh_fork(session: Session) -> bool:
    """Return whether a session was forked by this store, and the record of the fork is not written yet."""
    return session.forked_from is not None and session.heads.leaf == session.forked_from


def _dump_messages(entries: Sequence[ConversationEntry]) -> list[bytes]:
    """Return the messages as JSON."""
    try:
        return [_MESSAGE.dump_json(entry.message) for entry in entries]
    except (PydanticSerializationError, ValueError, TypeError) as error:
        raise UserError(f"a message cannot be stored as JSON: {error}") from error


def _build_items(
    entries: Sequence[ConversationEntry], texts: Sequence[bytes], earlier: Iterable[JsonObject]
) -> list[Body | Item]:
    """Return the entries to write. What the stored form of a message does not give back is in a field of its line.

    `texts` are the messages as JSON, and `earlier` the stored messages before them, the last one first.
    """
    items: list[Body | Item] = []
    stored = store_pydantic_ai([entry.message for entry in entries], earlier)
    for entry, text, bodies in zip(entries, texts, stored, strict=True):
        if isinstance(entry.message, ModelResponse):
            for body in bodies:
                body.message["usage"] = build_usage(entry.message, None)
        restored = [message for _, message in restore_pydantic_ai([body.message for body in bodies])]
        is_whole = len(restored) == 1 and _MESSAGE.dump_json(restored[0]) == text
        *parts, last = bodies or [_describe_message(entry.message)]
        part_of = None if is_whole else {EXTRA_KEY: {"partOf": entry.id}}
        items += [Item(part, part_of) for part in parts]
        items.append(Item(last, None if is_whole else {EXTRA_KEY: {"message": orjson.loads(text)}}, id=entry.id))
    return items


def _describe_message(message: ModelMessage) -> Message:
    """Return a readable message for one whose parts have no stored form."""
    texts: list[str] = []
    for part in cast("Iterable[Any]", message.parts):
        describe = getattr(part, "model_response", None)
        texts.append(str(describe()) if callable(describe) else f"[{part.part_kind}]")
    role = "assistant" if isinstance(message, ModelResponse) else "user"
    return Message({"role": role, "content": [{"type": "text", "text": text} for text in texts]})
