"""Sessions of the Claude Agent SDK: `TreeSessionStore` is its `SessionStore`.

Each session of the SDK is a session here, with the id of the SDK as its name. Its transcripts are branches; see
`claude_transcript`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any, TypeVar, cast
from weakref import WeakValueDictionary

import orjson

try:
    from anyio import Lock
    from anyio.lowlevel import RunVar
    from anyio.to_thread import run_sync
    from claude_agent_sdk import (
        SessionKey,
        SessionListSubkeysKey,
        SessionStore,
        SessionStoreEntry,
        SessionStoreListEntry,
        SessionSummaryEntry,
        fold_session_summary,
    )
except ImportError as error:
    raise ImportError(f"TreeSessionStore needs `pip install 'sessiontree[claude-agent-sdk]'` ({error})") from error

from sessiontree.adapters.claude_transcript import (
    DELETED,
    RECORDS_FIELD,
    RunBuilder,
    TranscriptIndex,
    check_records,
    read_records,
)
from sessiontree.adapters.session_pool import IndexedSession, SessionPlace, SessionPool, write_on_new_branch
from sessiontree.core.entries import Custom, JsonObject
from sessiontree.core.messages import is_object
from sessiontree.errors import BranchMoved, InvalidOperation, SessionTreeError
from sessiontree.interop.base import get_object
from sessiontree.library.repository import StoredSession
from sessiontree.library.session_files import resolve_folder
from sessiontree.session.writer import MAX_APPEND_ATTEMPTS
from sessiontree.store.jsonl import Durability

T = TypeVar("T")

PROGRAM = "claude-agent-sdk"
_SUMMARY_MARK = b'"' + RECORDS_FIELD.encode() + b'":'

_locks: RunVar[WeakValueDictionary[tuple[int, str, str], Lock]] = RunVar("sessiontree_claude_locks")
"""One lock for each store and session, to write batches in the order of the calls."""


class TreeSessionStore(SessionStore):
    """Keeps the transcripts of the Claude Agent SDK in sessions.

    `place` is a folder, an address such as `postgresql://host/database`, or a repository; by default the usual place.
    """

    def __init__(self, place: SessionPlace = None, *, durability: Durability = "fsync") -> None:
        self._pool = SessionPool(place, TranscriptIndex, durability)

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Add records to a transcript. Records whose `uuid` it has already are skipped."""
        async with self._take_turn(key):
            await run_sync(self._append, key, list(entries))

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Return the records of a transcript as they were added; `None` if it has none."""
        async with self._take_turn(key):
            return await run_sync(self._load, key)

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """Return the sessions of a project with the times of their last records."""
        found = await self._run(lambda: list(self._iter_summaries(project_key)))
        return [{"session_id": each["session_id"], "mtime": each["mtime"]} for each in found]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """Return the summaries of a project's sessions, as the SDK folds them. Only the ends of sessions are read."""
        return await self._run(lambda: list(self._iter_summaries(project_key)))

    async def delete(self, key: SessionKey) -> None:
        """Move a session to the trash, or delete the transcript of one subagent."""
        async with self._take_turn(key):
            await run_sync(self._delete, key)

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """Return the subpaths of the subagents of a session."""
        return await self._run(partial(self._list_subkeys, cast(SessionKey, key)))

    def close(self) -> None:
        """Close all open sessions."""
        self._pool.close()

    def _take_turn(self, key: SessionKey) -> Lock:
        project, session, _ = _split_key(key)
        try:
            locks = _locks.get()
        except LookupError:
            locks = WeakValueDictionary[tuple[int, str, str], Lock]()
            _locks.set(locks)
        return locks.setdefault((id(self), project, session), Lock())

    async def _run(self, work: Callable[[], T]) -> T:
        return await run_sync(work)

    # Synchronous parts, which run in threads

    def _append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        project, session_id, subpath = _split_key(key)
        records = check_records(entries)
        if not records:
            return
        with self._pool.use_or_create((PROGRAM, project, session_id), _find_folder(records)) as opened:
            for _ in range(MAX_APPEND_ATTEMPTS):
                try:
                    self._write(opened, key, subpath, records)
                    opened.update()
                    return
                except BranchMoved:  # another process was first
                    opened.invalidate()
                    opened.update()
                except BaseException:
                    opened.invalidate()  # it knows of records that are not written
                    raise
            raise InvalidOperation(f"other processes keep writing to session {session_id!r}; retry later")

    def _write(
        self, opened: IndexedSession[TranscriptIndex], key: SessionKey, subpath: str, records: list[JsonObject]
    ) -> None:
        new = _skip_known(opened.index, subpath, records)
        if not new:
            return
        try:
            builder = RunBuilder(opened.session, opened.index, subpath)
            builder.describe_subagent(new)
            builder.add(new)
        except RecursionError:
            raise InvalidOperation("a record is nested too deeply to be stored") from None
        if not subpath:
            facts = builder.runs[-1].items[-1].extra
            assert facts is not None
            facts[RECORDS_FIELD]["summary"] = self._fold(opened.index, key, new)
        for run in builder.runs:
            if run.is_new:
                write_on_new_branch(
                    opened.session,
                    run.branch,
                    run.start,
                    run.items,
                    is_current=not subpath,
                    description=run.description,
                )
            else:
                opened.session.extend(run.items, branch=run.branch, expected=run.expected)

    def _fold(self, index: TranscriptIndex, key: SessionKey, records: list[JsonObject]) -> JsonObject:
        before = index.summary
        folded = fold_session_summary(
            None if before is None else cast(SessionSummaryEntry, before), key, cast("list[SessionStoreEntry]", records)
        )
        earlier = before["mtime"] if before is not None and isinstance(before.get("mtime"), int) else 0
        # Two appends in one millisecond have different times.
        return {**folded, "mtime": max(time.time_ns() // 1_000_000, earlier + 1)}

    def _load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        project, session_id, subpath = _split_key(key)
        with self._pool.use((PROGRAM, project, session_id)) as opened:
            transcript = None if opened is None else opened.index.transcripts.get(subpath)
            if opened is None or transcript is None:
                return None
            return [record for entry in transcript.carriers for record in read_records(opened.session, entry)]

    def _delete(self, key: SessionKey) -> None:
        project, session_id, subpath = _split_key(key)
        if not subpath:
            self._pool.delete((PROGRAM, project, session_id))
            return
        with self._pool.use((PROGRAM, project, session_id)) as opened:
            if opened is None or subpath not in opened.index.transcripts:
                return
            branch = opened.index.transcripts[subpath].branch
            opened.session.extend([Custom(custom_type=DELETED, data={"subpath": subpath})], branch=branch)
            opened.update()

    def _list_subkeys(self, key: SessionKey) -> list[str]:
        project, session_id, _ = _split_key(key)
        with self._pool.use((PROGRAM, project, session_id)) as opened:
            return [] if opened is None else [subpath for subpath in opened.index.transcripts if subpath]

    def _iter_summaries(self, project_key: str) -> Iterator[SessionSummaryEntry]:
        for stored in self._pool.list_group((PROGRAM, project_key)):
            summary = self._read_summary(stored)
            if summary is not None:
                yield summary

    def _read_summary(self, stored: StoredSession) -> SessionSummaryEntry | None:
        """Return the last summary in a session; `None` if it has no main transcript, or cannot be read."""
        try:
            with closing(self._pool.repository.get_store(stored.location)) as store:
                for data, _ in store.read_backward(store.read_end().cursor):
                    for line in reversed(data.split(b"\n")):
                        summary = _parse_summary(line) if _SUMMARY_MARK in line else None
                        if summary is not None:
                            return summary
        except (OSError, SessionTreeError):  # a damaged session must not hide the others
            pass
        return None


def _parse_summary(line: bytes) -> SessionSummaryEntry | None:
    try:
        record: Any = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    summary = get_object(record, RECORDS_FIELD).get("summary") if is_object(record) else None
    if not is_object(summary) or not isinstance(summary.get("session_id"), str):
        return None
    return cast(SessionSummaryEntry, summary) if is_object(summary.get("data")) and "mtime" in summary else None


def _split_key(key: SessionKey) -> tuple[str, str, str]:
    subpath = key.get("subpath")
    if subpath is not None and (not isinstance(subpath, str) or not subpath):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not check types
        raise InvalidOperation(f"a subpath is text that is not empty, not {subpath!r}; omit it for the main transcript")
    return key["project_key"], key["session_id"], subpath or ""


def _find_folder(records: list[JsonObject]) -> str:
    """Return the folder that the first record with one names, or else the current one."""
    for record in records:
        cwd = record.get("cwd")
        if isinstance(cwd, str) and os.path.isabs(cwd):
            return cwd
    return resolve_folder(".")


def _skip_known(index: TranscriptIndex, subpath: str, records: list[JsonObject]) -> list[JsonObject]:
    """Return the records whose uuid is new. The SDK repeats a batch if it does not know whether it was written."""
    transcript = index.transcripts.get(subpath)
    known = set[str]() if transcript is None else set(transcript.places)
    new: list[JsonObject] = []
    for record in records:
        uuid = record.get("uuid")
        if isinstance(uuid, str):
            if uuid in known:
                continue
            known.add(uuid)
        new.append(record)
    return new
