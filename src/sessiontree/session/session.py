"""Sessions and branches: one tree kept in step with one store.

`Session` has no leaf of its own: branches have. A `Branch` is a named handle that whoever
works holds; two agents on one session hold two branches. Everything is written before it is
true in memory, and every write names its parent, so nothing that is still running can end up
on the wrong branch because somebody moved.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, NoReturn, TypeAlias
from weakref import WeakSet

import msgspec
from msgspec import UNSET, Struct, UnsetType

from sessiontree.core.context import Context, Explanation, State, build_context, explain, find_context_path, read_state
from sessiontree.core.entries import (
    Body,
    BranchPoint,
    Custom,
    Entry,
    EntryId,
    Header,
    JsonObject,
    Label,
    Message,
    Problem,
    SessionInfo,
)
from sessiontree.core.heads import MAIN, Heads, describe_move
from sessiontree.core.places import (
    BRANCH_PREFIX,
    check_branch_name,
    check_new_branch,
    find_branch,
    looks_like_id,
    resolve_place,
)
from sessiontree.core.plan import NavigatePlan, plan_move, plan_navigate
from sessiontree.core.problems import find_problems
from sessiontree.core.timestamps import format_timestamp
from sessiontree.core.tree import NAME_WHITESPACE, Tree
from sessiontree.errors import (
    BranchMoved,
    Conflict,
    FormatError,
    InvalidOperation,
    NotFound,
    ReadOnly,
    StoreError,
    format_names,
)
from sessiontree.format.codec import VERSION, write_entry, write_header
from sessiontree.format.session_reader import SessionReader
from sessiontree.format.tail import read_tail_context
from sessiontree.session.state import SessionState
from sessiontree.session.writer import (
    MAX_LINES_BEFORE_RECORD,
    EntryBatch,
    EntryBuilder,
    NewEntry,
    find_write_parent,
    generate_id,
    has_branch_move,
)
from sessiontree.store.base import Cursor, IndexedStore, LineChunk, Store
from sessiontree.store.files import format_os_error
from sessiontree.store.jsonl import JsonlStore, read_lines
from sessiontree.store.memory import MemoryStore

if TYPE_CHECKING:
    from pathlib import Path

    from sessiontree.comparison import Comparison, Diff

HEADER_READ_SIZE = 1 << 16
"""How much is read at once for the header, in bytes."""

MAX_REWRITE_ATTEMPTS = 10
"""How often an old file is rewritten while another program goes on with it."""

Place: TypeAlias = str | Entry | None
"""A place by name, an entry, or `None`, which is before everything."""


class BranchInfo(Struct, frozen=True, kw_only=True):
    """A branch as listings show it."""

    name: str
    head: EntryId | None
    entry_count: int
    """How many entries its path has."""
    created_at: str
    description: str | None
    archived: bool
    current: bool


class Session:
    def __init__(
        self,
        store: Store,
        *,
        read_only: str | None = None,
        now: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        new_id: Callable[[], EntryId] = generate_id,
    ) -> None:
        self._store = store
        self._builder = EntryBuilder(new_id, now)
        self._read_only = read_only
        self._mutex = threading.RLock()
        self._has_written = False
        self._requires_unchanged = False
        """Whether what is written holds only for what was read."""
        self._is_closed = False
        self._state: SessionState | None = None
        self._writable_state: SessionState | None = None
        """The same once it is known that it may be written to, unless it is in doubt."""
        self._pending_lines: Sequence[bytes] | None = None
        """The lines that are being written, or none while those of others are taken in, until all is in memory."""
        self._is_uncertain = False
        """Whether something broke in on that, so that nobody knows how far it came."""
        self._is_rewriting = False
        _sessions.add(self)
        self._unnamed_branch: Branch | None = None
        """The current branch, while nobody has asked what it is called."""
        self._opened_end = store.read_end()
        """Where the lines ended when the session was opened: what others write later is taken in by `refresh`."""
        self.header: Header = self._read_header()
        if self.header.version > VERSION:
            self._read_only = f"it was written as version {self.header.version}, which is newer than this program"
        elif self.header.redacted:
            self._read_only = "it was redacted when it was exported, and a model would take the gaps for what was said"

    @classmethod
    def create(
        cls,
        store: Store,
        *,
        id: str,
        cwd: str = "",
        name: str | None = None,
        now: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        new_id: Callable[[], EntryId] = generate_id,
    ) -> Session:
        """A new session in `store`, on disk from the start."""
        stamp = format_timestamp(now())
        lines = [write_header(id=id, timestamp=stamp, cwd=cwd)]
        label = clean_name(name)
        if label is not None:
            named = write_entry(SessionInfo(label), id=new_id(), parent=None, timestamp=stamp, branch=MAIN)
            lines.append(named.raw)
        store.create(lines)
        return cls(store, now=now, new_id=new_id)

    def _read_header(self) -> Header:
        """The header, without reading further than it takes."""
        reader = SessionReader(self._store.location)
        cursor = None
        while True:
            chunk = self._store.read(cursor, before=self._opened_end.cursor, limit=HEADER_READ_SIZE)
            reader.feed(chunk.data)
            if not (reader.line_count or chunk.data) and self._opened_end.unfinished:
                raise FormatError(self.location, "its first line is not whole")
            if reader.has_header or not chunk.data:
                return reader.header
            cursor = chunk.cursor

    # The whole file is read when something is asked that its end cannot tell.

    def _load(self) -> SessionState:
        if self._state is not None and not self._is_uncertain:
            return self._state
        with self._mutex:
            known = self._state
            if known is None or self._is_uncertain:
                loaded = self._load_first() if known is None else self._reload(known)
                if self._state is not known:  # by a signal handler, which was quicker
                    return self._load()
                self.header = loaded.reader.header
                if self._unnamed_branch is not None:
                    self._unnamed_branch.set_name(loaded.heads.current)
                    self._unnamed_branch = None
                self._state, self._writable_state, self._pending_lines = loaded, None, None
                self._is_uncertain = self._is_rewriting = False
                return loaded
            return known

    def _load_first(self) -> SessionState:
        try:
            return SessionState(self._store, self._opened_end)
        except Conflict:
            end = self._find_cursor_after_rollback(self._opened_end.cursor)
            if end is None:
                raise
        self._opened_end = LineChunk(b"", end)
        return SessionState(self._store, self._opened_end)

    def _find_cursor_after_rollback(self, cursor: Cursor) -> Cursor | None:
        """The same place after a writer has taken its last lines back, if that is all that happened."""
        return self._store.find_cursor_after_rollback(cursor) if isinstance(self._store, JsonlStore) else None

    def _reload(self, known: SessionState) -> SessionState:
        """What was known before something broke in, and what we were writing, if it is there: nothing of others."""
        ours = b"".join([line + b"\n" for line in self._pending_lines or ()])
        if ours and self._is_rewriting:
            end = self._store.read_end()
            there = self._store.read(before=end.cursor, limit=len(ours) - 1)
            if there.data == ours:
                return SessionState(self._store, LineChunk(b"", there.cursor))
        try:
            loaded = SessionState(self._store, LineChunk(b"", known.cursor, known.unfinished))
        except Conflict:
            recovered = self._read_after_rollback(known)
            if recovered is None:
                raise
            return recovered
        if ours and not self._is_rewriting:
            with suppress(Conflict):  # the next write tells
                there = self._store.read(known.cursor, limit=len(ours) - 1)
                if there.data == ours:
                    loaded.apply_chunk(there)
        return loaded

    def _check_not_writing(self) -> None:
        """Refuse what a signal handler asks that interrupts a write in its own thread."""
        if self._pending_lines is not None and not self._is_uncertain:
            raise InvalidOperation(
                f"a write to {self.location} is under way in this thread, and what interrupts it waits"
            )

    @property
    def tree(self) -> Tree:
        return self._load().tree

    @property
    def heads(self) -> Heads:
        return self._load().heads

    @property
    def _reader(self) -> SessionReader:
        return self._load().reader

    # What it is

    @property
    def id(self) -> str:
        return self.header.id

    @property
    def file(self) -> Path | None:
        """The session's file; `None` when it is in memory."""
        from pathlib import Path

        return Path(self._store.path) if isinstance(self._store, JsonlStore) else None

    @property
    def address(self) -> str | None:
        """What `open` takes to open it again: a path or an address; `None` when it is in memory."""
        return None if isinstance(self._store, MemoryStore) else self._store.location

    @property
    def store(self) -> Store:
        """Where the session's lines are kept."""
        return self._store

    @property
    def location(self) -> str:
        """How messages name the session's place."""
        return self._store.location

    @property
    def cwd(self) -> str:
        return self.header.cwd

    @property
    def forked_from(self) -> EntryId | None:
        """The entry of the parent session that this one was forked at."""
        return self.header.forked_from

    @property
    def name(self) -> str | None:
        return self.tree.name if self.tree.has_been_named else (self._reader.title or None)

    @property
    def read_only(self) -> str | None:
        """Why nothing can be written; `None` when it can."""
        return self._read_only

    @property
    def dialect(self) -> str | None:
        """The older dialect that the file is in: it is rewritten before the first append."""
        return self._reader.dialect if self.needs_migration else None

    @property
    def needs_migration(self) -> bool:
        return self.header.version < VERSION

    @property
    def problems(self) -> list[Problem]:
        """Everything wrong with the session or worth knowing; nothing is hidden or repaired."""
        unfinished = self._load().unfinished
        found = [*self._reader.problems, *find_problems(self.tree, self.heads)]
        if unfinished:
            message = f"the last line is unfinished ({len(unfinished)} bytes): cut by a crash, or being written"
            line = self._reader.line_count + 1
            found.append(
                Problem(
                    kind="torn_tail", severity="fault", message=message, line=line, offset=self._reader.get_offset(line)
                )
            )
        return [
            msgspec.structs.replace(problem, offset=self._reader.get_offset(problem.line))
            if problem.line and problem.offset is None
            else problem
            for problem in found
        ]

    @property
    def unreadable_lines(self) -> int:
        """How many lines could not be read: no model sees what they say. `problems` tells more, and takes longer."""
        return self._reader.unreadable_count

    @property
    def torn_files(self) -> list[str]:
        """Files that unfinished last lines were moved to, since they were in the way of what was appended."""
        return self._store.torn_files if isinstance(self._store, JsonlStore) else []

    def read_lines(self) -> list[bytes]:
        """The lines of the whole session, as version 3 has them, the header first."""
        return self._reader.read_all_lines()

    def stream_lines(self) -> Iterator[bytes]:
        """The lines of the whole session as its file has them, of whatever version, one after another.

        Nothing of them is kept, and the session is not loaded for it.
        """
        try:
            if self.file is not None:
                return read_lines(self.file.open("rb"))
        except FileNotFoundError:
            pass  # what another program deleted is still known here
        except OSError as error:
            raise StoreError(self.location, format_os_error(error)) from error
        return iter(self.read_lines())

    def iter_entry_lines(self) -> Iterator[bytes]:
        """The lines behind the header."""
        return self._reader.iter_lines()

    # Places and branches

    def resolve_place(self, place: Place) -> EntryId | None:
        """The entry that `place` names: see `docs/place.md`. Raises `NotFound` or `Ambiguous`."""
        if place is None:
            return None
        if isinstance(place, Entry):
            return self.tree[place.id].id
        return resolve_place(place, self.tree, self.heads)

    @property
    def head(self) -> Branch:
        """The current branch."""
        if self._state is not None:
            return Branch(self, self.heads.current)
        # Its name may take reading the whole file; its context need not.
        if self._unnamed_branch is None:
            self._unnamed_branch = Branch(self, None)
        return self._unnamed_branch

    def context(self, place: Place = "HEAD") -> Context:
        """What the model sees from a place. From the head of a branch, only the end of the file is read."""
        unread = self._state is None and self.header.version == VERSION
        if unread and isinstance(place, str) and place != "root" and not _is_entry_like(place):
            branch = None if place == "HEAD" else place.removeprefix(BRANCH_PREFIX)
            store, end = self._store, self._opened_end.cursor
            above = partial(store.find_ancestors, end) if isinstance(store, IndexedStore) else None
            context = read_tail_context(store.read_backward(end), branch, above)
            if context is not None:
                return context
        return build_context(self.tree, self.resolve_place(place))

    def branch(self, name: str) -> Branch:
        """The branch called `name`. Raises `NotFound`."""
        self._check_branch(name)
        return Branch(self, name)

    @property
    def branches(self) -> list[BranchInfo]:
        """All branches, in the order they were made."""
        heads = self.heads.heads
        lengths = self.tree.measure_paths(head for head in heads.values() if head is not None and head in self.tree)
        return [self._build_branch_info(name, lengths) for name in heads]

    def _build_branch_info(self, name: str, lengths: dict[EntryId, int]) -> BranchInfo:
        head = self.heads.heads[name]
        info = self.heads.info.get(name)
        return BranchInfo(
            name=name,
            head=head,
            entry_count=0 if head is None else lengths.get(head, 0),
            created_at=info.created if info else self.header.timestamp,
            description=info.description if info else None,
            archived=name in self.heads.archived,
            current=name == self.heads.current,
        )

    def _check_branch(self, name: str) -> None:
        self._get_head(name)

    def _get_head(self, branch: str) -> EntryId | None:
        return _find_head(self._load().heads.heads, branch)

    # Writing

    def append(
        self,
        body: Body,
        *,
        parent: Place | UnsetType = UNSET,
        branch: str | UnsetType | None = UNSET,
        extra: JsonObject | None = None,
        expected: EntryId | UnsetType | None = UNSET,
    ) -> Entry:
        """Write one entry and return it.

        It goes to the head of `branch`, the current one by default, or under an explicit `parent`, and
        advances the branch. With `branch=None` and a parent it is a late result, which moves nobody.
        `extra` has further fields of the line, in wire form.
        Raises `BranchMoved` if another writer has moved the branch, or if its head is not the `expected`
        one, with nothing written.
        """
        if extra is not None or parent is not UNSET or expected is not UNSET or not isinstance(body, Message):
            return self._write((body if extra is None else NewEntry(body, extra),), parent, branch, expected)[0]
        # A message at the head of a branch, as nearly all are, takes fewer steps.
        with self._mutex:
            loaded = self._writable_state
            if loaded is None or self._pending_lines is not None:
                loaded = self._prepare_write()
            while True:
                heads, before = loaded.heads, loaded.cursor
                on, said = heads.current, None
                if branch is not UNSET and branch != on:
                    on, said = branch, on
                head = None if on is None else heads.heads.get(on)
                if (
                    on is None
                    or head is None
                    or loaded.has_missing_heads
                    or heads.lines_since_record > MAX_LINES_BEFORE_RECORD
                ):
                    return self._write((body,), parent, branch, expected)[0]
                id, line = self._builder.build_message(body.message, head, on, said, loaded.tree)
                cursor = None
                try:
                    lines = self._pending_lines = (line,)
                    cursor = self._store.append(lines, after=before)
                    self._has_written = True
                    if cursor is before:
                        entry = self._find_written(loaded, {id})[0]
                    else:
                        entry = loaded.add_written_message(id, head, on, said, line, cursor)
                    self._pending_lines = None
                    return entry
                # Something more may break in when something has: nothing is called here.
                except StoreError as error:
                    if cursor is not None:
                        self._is_uncertain = True
                        raise
                    self._pending_lines = None
                    refusal = error
                except BaseException:
                    self._is_uncertain = True
                    raise
                self._read_conflicting(loaded, before, refusal)
                del refusal  # it holds this frame
                branch = on
                self._check_head(on, head)

    def extend(
        self,
        bodies: Iterable[Body | NewEntry],
        *,
        parent: Place | UnsetType = UNSET,
        branch: str | UnsetType | None = UNSET,
        expected: EntryId | UnsetType | None = UNSET,
    ) -> Sequence[Entry]:
        """Write entries as a chain, all or none: `append` for several. An `Item` has more than a body."""
        return self._write(list(bodies), parent, branch, expected)

    def generate_id(self) -> EntryId:
        """An id for an `Item` that others written with it name."""
        return self._builder.generate_id()

    def _write(
        self,
        items: Sequence[Body | NewEntry],
        parent: Place | UnsetType,
        branch: str | UnsetType | None,
        expected: EntryId | UnsetType | None,
    ) -> Sequence[Entry]:
        with self._mutex:
            loaded = self._prepare_write()
            heads = loaded.heads
            on = heads.current if isinstance(branch, UnsetType) else branch
            if on is None and parent is UNSET:
                raise InvalidOperation("an entry without a branch needs a parent")
            head = None if on is None else _find_head(heads.heads, on)
            was = head if isinstance(expected, UnsetType) else expected
            above = UNSET if parent is UNSET else self.resolve_place(parent)
            while True:
                if on is not None and head != was and (expected is not UNSET or has_branch_move(items)):
                    raise BranchMoved(on, was, head)
                before, under = loaded.cursor, head if isinstance(above, UnsetType) else above
                self._check_entry_exists(under)
                entries = self._try_append(loaded, before, self._builder.build_chain(loaded, items, under, on))
                if entries is not None:
                    break
                head = None if on is None else self._get_head(on)
            return entries if len(entries) == len(items) else [entry for entry in entries if not entry.is_head_record]

    def _check_entry_exists(self, head: EntryId | None) -> None:
        """Refuse to go on from an entry that damage took away."""
        if head is not None and head not in self.tree:
            names = [name for name, leaf in self.heads.heads.items() if leaf == head]
            raise NotFound(
                "entry", head, f"damage took it away: move {format_names(names)} elsewhere first" if names else ""
            )

    def _check_head(self, branch: str, expected: EntryId | None) -> None:
        head = self._get_head(branch)
        if head != expected:
            raise BranchMoved(branch, expected, head)

    def _commit(self, build: Callable[[], EntryBatch]) -> Sequence[Entry]:
        """Write what `build` makes of the state of things; when others wrote first, build anew."""
        loaded = self._load()
        while True:
            before = loaded.cursor
            entries = self._try_append(loaded, before, build())
            if entries is not None:
                return entries

    def _try_append(self, loaded: SessionState, before: Cursor, drafted: EntryBatch) -> Sequence[Entry] | None:
        """Write entries that were drafted at `before`, unless others wrote first: then that is taken in instead."""
        cursor = None
        try:
            self._pending_lines = drafted.lines
            cursor = self._store.append(drafted.lines, after=before)
            self._has_written = True
            if cursor is not before:
                entries = loaded.add_written(*drafted, cursor)
            else:
                entries = self._find_written(loaded, {entry.id for entry in drafted.iter_backward()})
            self._pending_lines = None
            return entries
        # Something more may break in when something has: nothing is called here.
        except StoreError as error:
            if cursor is not None:
                self._is_uncertain = True
                raise
            self._pending_lines = None
            refusal = error
        except BaseException:
            self._is_uncertain = True
            raise
        self._read_conflicting(loaded, before, refusal)
        del refusal  # it holds this frame
        return None

    def _read_conflicting(self, loaded: SessionState, before: Cursor, refusal: StoreError) -> None:
        """Take in what others wrote since `before`. Raises what refused a write, if it is something else."""
        if isinstance(refusal, Conflict) and not self._requires_unchanged:
            self._read_appended(loaded)
        if loaded.cursor == before:
            raise refusal

    def _read_appended(self, loaded: SessionState) -> Sequence[Entry]:
        """Take in what others have appended."""
        chunk = self._writable_state = None
        try:
            self._pending_lines = ()
            try:
                chunk = loaded.read_appended()
            except Conflict:
                recovered = self._read_after_rollback(loaded)
                if recovered is None:
                    raise
                entries = loaded.replace_state(recovered)
            else:
                entries = loaded.apply_chunk(chunk)
            self._pending_lines = None
            return entries
        except StoreError:
            if chunk is None:  # nothing was taken in
                self._pending_lines = None
            else:
                self._is_uncertain = True
            raise
        except BaseException:
            self._is_uncertain = True
            raise

    def _read_after_rollback(self, known: SessionState) -> SessionState | None:
        """The session read anew, where a writer took back the last lines that were read, since its write failed.

        They are not there then, and what was appended since is. `None` where something else happened to the file.
        """
        for cursor in (self._find_cursor_after_rollback(known.cursor), known.cursor_before_others):
            if cursor is not None:
                with suppress(Conflict):
                    loaded = SessionState(self._store, LineChunk(b"", cursor))
                    loaded.apply_chunk(loaded.read_appended())
                    return loaded
        return None

    def _find_written(self, loaded: SessionState, ids: set[EntryId]) -> list[Entry]:
        """Entries that were just written behind lines that nobody here has seen."""
        found = [entry for entry in self._read_appended(loaded) if entry.id in ids]
        if len(found) < len(ids):
            raise StoreError(self.location, "what was written cannot be found again")
        return found

    def _prepare_write(self) -> SessionState:
        """All of the session, if something can be appended: an older file is rewritten first."""
        if self._is_closed:
            raise InvalidOperation(f"{self.location} is closed")
        if self._read_only is not None:
            raise ReadOnly(self.location, self._read_only)
        self._check_not_writing()
        if self.header.version < VERSION:
            branch, was = self.heads.current, self.heads.leaf
            self.migrate()
            self._check_head(branch, was)
        self._writable_state = self._load()
        return self._writable_state

    def migrate(self) -> bool:
        """Rewrite a file of an older version, at once and with a backup. Says whether there was anything to do."""
        with self._mutex:
            self._check_not_writing()
            loaded = self._load()
            if not self.needs_migration:
                return False
            if self._read_only is not None:
                raise ReadOnly(self.location, self._read_only)
            for tries in range(MAX_REWRITE_ATTEMPTS):
                before = loaded.cursor
                try:
                    self._rewrite(loaded)
                    break
                except Conflict:
                    self._read_appended(loaded)  # a peer that keeps that version goes on with it
                    if loaded.cursor == before or tries == MAX_REWRITE_ATTEMPTS - 1:
                        raise
            self._load()
            return True

    def _rewrite(self, loaded: SessionState) -> None:
        """Put all lines, as version 3 has them, in the place of the file, which is then read anew."""
        lines = loaded.reader.read_all_lines()
        try:
            self._pending_lines, self._is_rewriting = lines, True
            self._store.replace(lines, after=loaded.cursor)
        finally:  # whatever comes out, which of the two files it is now is looked up
            self._is_uncertain = True

    def hold_lock(self) -> AbstractContextManager[object]:
        """While it is entered, other threads neither write nor take anything in: all that is read is of one moment."""
        return self._mutex

    @contextmanager
    def require_unchanged(self) -> Generator[None]:
        """`held`, and a write is refused with `Conflict` if others have written since what was read, wherever."""
        with self._mutex:
            before, self._requires_unchanged = self._requires_unchanged, True
            try:
                yield
            finally:
                self._requires_unchanged = before

    def refresh(self) -> Sequence[Entry]:
        """Take in what other writers have appended, and return it."""
        with self._mutex:
            self._check_not_writing()
            return self._read_appended(self._load())

    def _reset_after_fork(self) -> None:
        """In a process that was forked: another thread may have been at work, and is not here to end it."""
        if not self._mutex._is_owned():  # type: ignore[attr-defined]  # as `threading.Condition` asks
            self._mutex, self._requires_unchanged = threading.RLock(), False
        self._is_uncertain = self._state is not None
        if not self._is_rewriting:
            self._pending_lines = None
        self._writable_state = None

    def close(self) -> None:
        """Let go of the file. If the last line is not at the current place, a head record says where that is."""
        with self._mutex:
            if self._is_closed:
                return
            self._check_not_writing()
            try:
                if self._has_written and not self.heads.is_at_last_line(self.tree):
                    self._commit(
                        lambda: EntryBatch.build_single(
                            self._builder.build_head_record(self.tree, self.heads.build_record())
                        )
                    )
            finally:
                self._is_closed, self._writable_state = True, None
                self._store.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise InvalidOperation("a session cannot be copied or pickled: open it anew where it is needed, or fork it")

    # Labels and names

    def label(self, place: Place, text: str | None) -> Entry:
        """Put a label on a place; `None` or nothing but blanks takes it away."""
        target = self.resolve_place(place)
        if target is None:
            raise InvalidOperation("the place before everything cannot have a label")
        return self.append(Label(target=target, text=(text or "").strip() or None))

    def rename(self, name: str | None) -> Entry:
        """Name the session; `None` takes the name away."""
        return self.append(SessionInfo(clean_name(name) or ""))

    # Branches and moves

    def create_branch(
        self, name: str, *, at: Place = "HEAD", description: str | None = None, current: bool = True
    ) -> Branch:
        """A new branch at a place. It becomes current, unless `current=False`; the old one stays where it was."""
        check_branch_name(name)
        with self._mutex:
            self._prepare_write()
            start = self.resolve_place(at)
            self._check_entry_exists(start)

            def build() -> EntryBatch:
                check_new_branch(name, self.tree, self.heads)
                body = BranchPoint(name=name, description=description)
                now_current = name if current else self.heads.current
                return EntryBatch.build_single(
                    self._builder.build_entry(body, find_write_parent(self.tree, start), name, now_current)
                )

            self._commit(build)
            return Branch(self, name)

    def switch(self, place: Place) -> Branch:
        """Make another branch current. A place that is no branch's head: the current branch moves there."""
        with self._mutex:
            name = find_branch(place, self.tree, self.heads) if isinstance(place, str) else None
            if name is None:
                target = self.tree.skip_annotations(self.resolve_place(place))
                there = [branch for branch, head in self.heads.heads.items() if head == target]
                if self.heads.current not in there and len(there) != 1:
                    if there:
                        raise InvalidOperation(f"several branches are there: {', '.join(there)}")
                    self.move(self._get_entry(target))
                    return self.head
                name = self.heads.current if self.heads.current in there else there[0]
            if name != self.heads.current:
                was = self.heads.current

                def build_record() -> Custom:
                    self._check_branch(name)
                    self._check_current(was)
                    return self.heads.build_record(moved=True, current=name, archived=self.heads.archived - {name})

                self._write_heads(build_record)
            return self.head

    def plan_navigate(self, place: Place, *, start: Place = "HEAD") -> NavigatePlan:
        """What `navigate` would do, from the current place or another one."""
        old = self._get_readable_leaf() if start == "HEAD" else self.resolve_place(start)
        return plan_navigate(self.tree, old, self.resolve_place(place))

    def navigate(self, place: Place) -> NavigatePlan:
        """Move the current branch's head by the rules of selection, durably, and return what was done.

        Choosing a user's or a custom message goes to its parent, and `editor_text` has its text.
        """
        with self._mutex:
            plan = plan_navigate(self.tree, self._get_readable_leaf(), self.resolve_place(place))
            if plan.is_move:
                self.move(self._get_entry(plan.new_leaf))
            return plan

    def move(
        self,
        place: Place,
        bodies: Iterable[Body | NewEntry] = (),
        *,
        branch: str | None = None,
        expected: EntryId | UnsetType | None = UNSET,
        archive: Iterable[str] = (),
    ) -> list[Entry]:
        """Move a branch, the current one by default, to the place itself and write entries there, all or none.

        The branches in `archive` are hidden with it; if the current one is among them, the one that moves becomes
        current. A hidden branch that moves is shown again. Raises `BranchMoved` if its head is not the `expected` one
        any more.
        """
        items = list(bodies)
        with self._mutex:
            loaded = self._prepare_write()
            begun = self.heads.current
            name = begun if branch is None else branch
            was = self._get_head(name) if isinstance(expected, UnsetType) else expected
            leaf = self.tree.skip_annotations(self.resolve_place(place))
            hidden = {self.branch(other).name for other in archive} - {name}

            def build() -> EntryBatch:
                self._check_head(name, was)
                if branch is None:
                    self._check_current(begun)
                current = self.heads.current
                for other in hidden:
                    self._check_branch(other)
                # Entries below another place than the head are a move by themselves; others need a record for that.
                by_itself = name == current and name not in self.heads.archived
                if has_branch_move(items) and leaf != was and not hidden and by_itself:
                    return self._builder.build_chain(loaded, items, leaf, name)
                body = self.heads.build_record(
                    moved=True,
                    mover=current if current in hidden else name,
                    current=name if current in hidden else current,
                    heads={**self.heads.heads, name: leaf},
                    archived=(self.heads.archived | hidden) - {name},
                )
                record, after = self._builder.build_head_record(loaded.tree, body), Heads()
                after.apply(record, loaded.tree)
                there = self._builder.build_chain(loaded, items, leaf, name, heads=after)
                return EntryBatch([record, *there.items], [record.raw, *there.lines])

            return [entry for entry in self._commit(build) if not entry.is_head_record]

    def undo(self) -> NavigatePlan:
        """Take back the last move, switch, merge or promotion that was not taken back yet, of any branch.

        What moved or was hidden along with it is put back too, and `undone` of the plan says what it was. Nothing is
        lost by it.
        """
        with self._mutex:
            move = self.heads.undoable
            if move is None:
                raise InvalidOperation("there is no move to undo")
            if move.branch not in self.heads.heads:
                raise NotFound("branch", move.branch)
            stays = move.switched or move.is_other_branch
            back = self.heads.heads[move.branch] if stays else move.leaf
            plan = msgspec.structs.replace(
                plan_move(self.tree, self._get_readable_leaf(), back),
                undo_description=describe_move(move, self.heads, self.tree),
            )
            others = {name: leaf for name, leaf in move.other_heads if name in self.heads.heads}
            was = self.heads.current

            def build_record() -> Custom:
                self._check_current(was)
                heads = {**self.heads.heads, **others, move.branch: plan.new_leaf}
                shown = self.heads.archived - {move.branch, *move.newly_archived}
                return self.heads.build_record(undo=True, current=move.branch, heads=heads, archived=shown)

            self._write_heads(build_record, move.branch, *others)
            return plan

    def rename_branch(self, name: str, new: str) -> Branch:
        check_branch_name(new)
        with self._mutex:

            def build_record() -> Custom:
                def rename(old: str) -> str:
                    return new if old == name else old

                self._check_branch(name)
                check_new_branch(new, self.tree, self.heads)
                return self.heads.build_record(
                    current=rename(self.heads.current),
                    heads={rename(branch): head for branch, head in self.heads.heads.items()},
                    archived={rename(branch) for branch in self.heads.archived},
                    renamed=(name, new),
                )

            self._write_heads(build_record)
            return Branch(self, new)

    def archive_branch(self, name: str, *, archived: bool = True) -> None:
        """Hide a branch from listings, or show it again. Nothing is removed."""
        with self._mutex:
            self._check_branch(name)

            def build_record() -> Custom:
                self._check_branch(name)
                if archived and name == self.heads.current:
                    raise InvalidOperation(f"branch {name!r} is the current one: switch to another first")
                hidden = self.heads.archived
                return self.heads.build_record(archived=hidden | {name} if archived else hidden - {name})

            if archived != (name in self.heads.archived):
                self._write_heads(build_record)

    def restore_heads(self, heads: Mapping[str, EntryId | None]) -> None:
        """Put branches where they are said to be, by a head record that is no move: for heads that damage took away.

        Those that are there already are left to whoever writes on them.
        """
        with self._mutex:
            for head in heads.values():
                if head is not None and head not in self.tree:
                    raise NotFound("entry", head)
            changed = {name: head for name, head in heads.items() if self._get_head(name) != head}
            if changed:
                self._write_heads(lambda: self.heads.build_record(heads={**self.heads.heads, **changed}), *changed)

    def _get_entry(self, id: EntryId | None) -> Entry | None:
        """A place by its id alone: names of branches and labels may be spelled like ids."""
        return None if id is None else self.tree[id]

    def _get_readable_leaf(self) -> EntryId | None:
        """The current leaf, or `None` where damage took it away, so that one can go elsewhere."""
        leaf = self.heads.leaf
        return leaf if leaf in self.tree else None

    def _write_heads(self, record: Callable[[], Custom], *branches: str) -> None:
        """Write a head record, unless another writer has moved one of the branches in the meantime."""
        record()  # what is refused is refused before an older file is rewritten
        self._prepare_write()
        expected = {branch: self.heads.heads[branch] for branch in branches}

        def build() -> EntryBatch:
            for branch, head in expected.items():
                self._check_head(branch, head)
            return EntryBatch.build_single(self._builder.build_head_record(self.tree, record()))

        self._commit(build)

    def _check_current(self, branch: str) -> None:
        if self.heads.current != branch:
            raise Conflict(self.location, f"another writer made {self.heads.current!r} the current branch meanwhile")


class Branch:
    """A named place in a session that moves as entries are appended. All handles of one name share its head."""

    def __init__(self, session: Session, name: str | None) -> None:
        self.session = session
        self._name = name

    @property
    def name(self) -> str:
        if self._name is None:
            self.session.heads  # noqa: B018 - the whole file tells the name
        assert self._name is not None
        return self._name

    def set_name(self, name: str) -> None:
        """Told by the session once it knows what its current branch is called."""
        self._name = name

    def __repr__(self) -> str:
        return f"<Branch {self.name} of {self.session.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Branch) and (other.session, other.name) == (self.session, self.name)

    def __hash__(self) -> int:
        return hash((id(self.session), self.name))

    @property
    def leaf(self) -> EntryId | None:
        """The branch's head; `None` is before everything."""
        self.session.branch(self.name)
        return self.session.heads.heads[self.name]

    @property
    def info(self) -> BranchInfo:
        name = self.session.branch(self.name).name
        return next(info for info in self.session.branches if info.name == name)

    def append(self, body: Body) -> Entry:
        """Write an entry at the head and move on to it."""
        return self.session.append(body, branch=self.name)

    def extend(self, bodies: Iterable[Body]) -> Sequence[Entry]:
        """Write entries as a chain, all or none."""
        return self.session.extend(bodies, branch=self.name)

    def path(self) -> list[Entry]:
        """Entries from the root to the head."""
        return self.session.tree.path(self.leaf)

    def context(self) -> Context:
        """What the model sees from here."""
        return self.session.context() if self._name is None else build_context(self.session.tree, self.leaf)

    @property
    def state(self) -> State:
        """What holds here: model, thinking level, mode and rules. It takes less than the context."""
        return (
            self.session.context().state
            if self._name is None
            else read_state(find_context_path(self.session.tree, self.leaf))
        )

    def explain(self) -> Explanation:
        """For every entry on the path, whether it reaches the model and why not."""
        return explain(self.session.tree, self.leaf)


_sessions: WeakSet[Session] = WeakSet()


def _reset_sessions_after_fork() -> None:
    for session in _sessions:
        session._reset_after_fork()  # pyright: ignore[reportPrivateUsage]


os.register_at_fork(after_in_child=_reset_sessions_after_fork)


def _find_head(heads: dict[str, EntryId | None], branch: str) -> EntryId | None:
    if branch not in heads:
        raise NotFound("branch", branch, f"there are {format_names(list(heads))}")
    return heads[branch]


def clean_name(name: str | None) -> str | None:
    """A session's name on one line, as peers write it; `None` when nothing is left."""
    return re.sub(r"[\r\n]+", " ", name or "").strip(NAME_WHITESPACE) or None


def compare(session: Session, branches: Sequence[str], metric: str = "cost") -> Comparison:
    """What branches cost and did after they parted, and which one is ahead, if the figures tell."""
    from sessiontree.comparison import compare as compare_branches

    return compare_branches(session.tree, [(name, session.branch(name).leaf) for name in branches], metric)


def diff(session: Session, a: Place, b: Place) -> Diff:
    """Two places, from where their paths part."""
    from sessiontree.comparison import diff as diff_places

    return diff_places(
        session.tree, (_format_place(a), session.resolve_place(a)), (_format_place(b), session.resolve_place(b))
    )


def _is_entry_like(place: str) -> bool:
    """Whether only the whole tree tells what entry is meant."""
    return place.startswith("HEAD@") or looks_like_id(place)


def _format_place(place: Place) -> str:
    return "root" if place is None else place.id if isinstance(place, Entry) else place
