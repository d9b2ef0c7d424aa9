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

from sessiontree.core.context import Context, Explanation, State, build_context, explain, reach, state_of
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
from sessiontree.core.places import BRANCH, branch_named, check_branch_name, check_new_branch, looks_like_id, resolve
from sessiontree.core.plan import NavigatePlan, plan_move, plan_navigate
from sessiontree.core.problems import find_problems
from sessiontree.core.times import iso
from sessiontree.core.tree import BLANKS, Tree
from sessiontree.draft import ALONE, Draft, Drafted, Item, moves, random_id, under
from sessiontree.errors import (
    BranchMoved,
    Conflict,
    FormatError,
    InvalidOperation,
    NotFound,
    ReadOnly,
    StoreError,
    few,
)
from sessiontree.format.codec import VERSION, write_entry, write_header
from sessiontree.format.jsonl import Reader
from sessiontree.format.tail import tail_context
from sessiontree.loaded import Loaded
from sessiontree.store.base import Chunk, Cursor, Indexed, Store
from sessiontree.store.files import reason_of
from sessiontree.store.jsonl import JsonlStore, read_lines
from sessiontree.store.memory import MemoryStore

if TYPE_CHECKING:
    from pathlib import Path

    from sessiontree.comparison import Comparison, Diff

PEEK = 1 << 16
"""How much is read at once for the header, in bytes."""

TRIES = 10
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
        new_id: Callable[[], EntryId] = random_id,
    ) -> None:
        self._store = store
        self._draft = Draft(new_id, now)
        self._read_only = read_only
        self._mutex = threading.RLock()
        self._wrote = False
        self._unmoved = False
        """Whether what is written holds only for what was read."""
        self._closed = False
        self._loaded: Loaded | None = None
        self._ready: Loaded | None = None
        """The same once it is known that it may be written to, unless it is in doubt."""
        self._under_way: Sequence[bytes] | None = None
        """The lines that are being written, or none while those of others are taken in, until all is in memory."""
        self._in_doubt = False
        """Whether something broke in on that, so that nobody knows how far it came."""
        self._rewriting = False
        _sessions.add(self)
        self._unnamed: Branch | None = None
        """The current branch, while nobody has asked what it is called."""
        self._end = store.end()
        """Where the lines ended when the session was opened: what others write later is taken in by `refresh`."""
        self.header: Header = self._peek()
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
        new_id: Callable[[], EntryId] = random_id,
    ) -> Session:
        """A new session in `store`, on disk from the start."""
        stamp = iso(now())
        lines = [write_header(id=id, timestamp=stamp, cwd=cwd)]
        label = clean_name(name)
        if label is not None:
            named = write_entry(SessionInfo(label), id=new_id(), parent=None, timestamp=stamp, branch=MAIN)
            lines.append(named.raw)
        store.create(lines)
        return cls(store, now=now, new_id=new_id)

    def _peek(self) -> Header:
        """The header, without reading further than it takes."""
        reader = Reader(self._store.where)
        cursor = None
        while True:
            chunk = self._store.read(cursor, before=self._end.cursor, limit=PEEK)
            reader.feed(chunk.data)
            if not (reader.number or chunk.data) and self._end.unfinished:
                raise FormatError(self.where, "its first line is not whole")
            if reader.has_header or not chunk.data:
                return reader.header
            cursor = chunk.cursor

    # The whole file is read when something is asked that its end cannot tell.

    def _load(self) -> Loaded:
        if self._loaded is not None and not self._in_doubt:
            return self._loaded
        with self._mutex:
            known = self._loaded
            if known is None or self._in_doubt:
                loaded = self._first_loaded() if known is None else self._reloaded(known)
                if self._loaded is not known:  # by a signal handler, which was quicker
                    return self._load()
                self.header = loaded.reader.header
                if self._unnamed is not None:
                    self._unnamed.is_called(loaded.heads.current)
                    self._unnamed = None
                self._loaded, self._ready, self._under_way = loaded, None, None
                self._in_doubt = self._rewriting = False
                return loaded
            return known

    def _first_loaded(self) -> Loaded:
        try:
            return Loaded(self._store, self._end)
        except Conflict:
            end = self._after_take_back(self._end.cursor)
            if end is None:
                raise
        self._end = Chunk(b"", end)
        return Loaded(self._store, self._end)

    def _after_take_back(self, cursor: Cursor) -> Cursor | None:
        """The same place after a writer has taken its last lines back, if that is all that happened."""
        return self._store.after_take_back(cursor) if isinstance(self._store, JsonlStore) else None

    def _reloaded(self, known: Loaded) -> Loaded:
        """What was known before something broke in, and what we were writing, if it is there: nothing of others."""
        ours = b"".join([line + b"\n" for line in self._under_way or ()])
        if ours and self._rewriting:
            end = self._store.end()
            there = self._store.read(before=end.cursor, limit=len(ours) - 1)
            if there.data == ours:
                return Loaded(self._store, Chunk(b"", there.cursor))
        try:
            loaded = Loaded(self._store, Chunk(b"", known.cursor, known.unfinished))
        except Conflict:
            recovered = self._recovered(known)
            if recovered is None:
                raise
            return recovered
        if ours and not self._rewriting:
            with suppress(Conflict):  # the next write tells
                there = self._store.read(known.cursor, limit=len(ours) - 1)
                if there.data == ours:
                    loaded.take(there)
        return loaded

    def _check_idle(self) -> None:
        """Refuse what a signal handler asks that interrupts a write in its own thread."""
        if self._under_way is not None and not self._in_doubt:
            raise InvalidOperation(f"a write to {self.where} is under way in this thread, and what interrupts it waits")

    @property
    def tree(self) -> Tree:
        return self._load().tree

    @property
    def heads(self) -> Heads:
        return self._load().heads

    @property
    def _reader(self) -> Reader:
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
    def kept_at(self) -> str | None:
        """What `open` takes to open it again: a path or an address; `None` when it is in memory."""
        return None if isinstance(self._store, MemoryStore) else self._store.where

    @property
    def store(self) -> Store:
        """Where the session's lines are kept."""
        return self._store

    @property
    def where(self) -> str:
        """How messages name the session's place."""
        return self._store.where

    @property
    def cwd(self) -> str:
        return self.header.cwd

    @property
    def forked_from(self) -> EntryId | None:
        """The entry of the parent session that this one was forked at."""
        return self.header.forked_from

    @property
    def name(self) -> str | None:
        return self.tree.name if self.tree.named else (self._reader.title or None)

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
            line = self._reader.number + 1
            found.append(
                Problem(
                    kind="torn_tail", severity="fault", message=message, line=line, offset=self._reader.offset(line)
                )
            )
        return [
            msgspec.structs.replace(problem, offset=self._reader.offset(problem.line))
            if problem.line and problem.offset is None
            else problem
            for problem in found
        ]

    @property
    def unread(self) -> int:
        """How many lines could not be read: no model sees what they say. `problems` tells more, and takes longer."""
        return self._reader.unread

    @property
    def set_aside(self) -> list[str]:
        """Files that unfinished last lines were moved to, since they were in the way of what was appended."""
        return self._store.set_aside if isinstance(self._store, JsonlStore) else []

    def lines(self) -> list[bytes]:
        """The lines of the whole session, as version 3 has them, the header first."""
        return self._reader.all_lines()

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
            raise StoreError(self.where, reason_of(error)) from error
        return iter(self.lines())

    def entry_lines(self) -> Iterator[bytes]:
        """The lines behind the header."""
        return self._reader.lines()

    # Places and branches

    def place(self, place: Place) -> EntryId | None:
        """The entry that `place` names: see `docs/place.md`. Raises `NotFound` or `Ambiguous`."""
        if place is None:
            return None
        if isinstance(place, Entry):
            return self.tree[place.id].id
        return resolve(place, self.tree, self.heads)

    @property
    def head(self) -> Branch:
        """The current branch."""
        if self._loaded is not None:
            return Branch(self, self.heads.current)
        # Its name may take reading the whole file; its context need not.
        if self._unnamed is None:
            self._unnamed = Branch(self, None)
        return self._unnamed

    def context(self, place: Place = "HEAD") -> Context:
        """What the model sees from a place. From the head of a branch, only the end of the file is read."""
        unread = self._loaded is None and self.header.version == VERSION
        if unread and isinstance(place, str) and place != "root" and not _may_be_entry(place):
            branch = None if place == "HEAD" else place.removeprefix(BRANCH)
            store, end = self._store, self._end.cursor
            above = partial(store.above, end) if isinstance(store, Indexed) else None
            context = tail_context(store.backward(end), branch, above)
            if context is not None:
                return context
        return build_context(self.tree, self.place(place))

    def branch(self, name: str) -> Branch:
        """The branch called `name`. Raises `NotFound`."""
        self._check_branch(name)
        return Branch(self, name)

    @property
    def branches(self) -> list[BranchInfo]:
        """All branches, in the order they were made."""
        heads = self.heads.heads
        lengths = self.tree.path_lengths(head for head in heads.values() if head is not None and head in self.tree)
        return [self._info(name, lengths) for name in heads]

    def _info(self, name: str, lengths: dict[EntryId, int]) -> BranchInfo:
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
        self._head_of(name)

    def _head_of(self, branch: str) -> EntryId | None:
        return _head_among(self._load().heads.heads, branch)

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
            return self._write((body if extra is None else Item(body, extra),), parent, branch, expected)[0]
        # A message at the head of a branch, as nearly all are, takes fewer steps.
        with self._mutex:
            loaded = self._ready
            if loaded is None or self._under_way is not None:
                loaded = self._prepared()
            while True:
                heads, before = loaded.heads, loaded.cursor
                on, said = heads.current, None
                if branch is not UNSET and branch != on:
                    on, said = branch, on
                head = None if on is None else heads.heads.get(on)
                if on is None or head is None or loaded.has_lost or heads.lines_since_record > ALONE:
                    return self._write((body,), parent, branch, expected)[0]
                id, line = self._draft.message(body.message, head, on, said, loaded.tree)
                cursor = None
                try:
                    lines = self._under_way = (line,)
                    cursor = self._store.append(lines, after=before)
                    self._wrote = True
                    if cursor is before:
                        entry = self._found(loaded, {id})[0]
                    else:
                        entry = loaded.wrote_message(id, head, on, said, line, cursor)
                    self._under_way = None
                    return entry
                # Something more may break in when something has: nothing is called here.
                except StoreError as error:
                    if cursor is not None:
                        self._in_doubt = True
                        raise
                    self._under_way = None
                    refusal = error
                except BaseException:
                    self._in_doubt = True
                    raise
                self._take_in(loaded, before, refusal)
                del refusal  # it holds this frame
                branch = on
                self._check_unmoved(on, head)

    def extend(
        self,
        bodies: Iterable[Body | Item],
        *,
        parent: Place | UnsetType = UNSET,
        branch: str | UnsetType | None = UNSET,
        expected: EntryId | UnsetType | None = UNSET,
    ) -> Sequence[Entry]:
        """Write entries as a chain, all or none: `append` for several. An `Item` has more than a body."""
        return self._write(list(bodies), parent, branch, expected)

    def new_id(self) -> EntryId:
        """An id for an `Item` that others written with it name."""
        return self._draft.new_id()

    def _write(
        self,
        items: Sequence[Body | Item],
        parent: Place | UnsetType,
        branch: str | UnsetType | None,
        expected: EntryId | UnsetType | None,
    ) -> Sequence[Entry]:
        with self._mutex:
            loaded = self._prepared()
            heads = loaded.heads
            on = heads.current if isinstance(branch, UnsetType) else branch
            if on is None and parent is UNSET:
                raise InvalidOperation("an entry without a branch needs a parent")
            head = None if on is None else _head_among(heads.heads, on)
            was = head if isinstance(expected, UnsetType) else expected
            above = UNSET if parent is UNSET else self.place(parent)
            while True:
                if on is not None and head != was and (expected is not UNSET or moves(items)):
                    raise BranchMoved(on, was, head)
                before, under = loaded.cursor, head if isinstance(above, UnsetType) else above
                self._check_there(under)
                entries = self._put(loaded, before, self._draft.chain(loaded, items, under, on))
                if entries is not None:
                    break
                head = None if on is None else self._head_of(on)
            return entries if len(entries) == len(items) else [entry for entry in entries if not entry.is_head_record]

    def _check_there(self, head: EntryId | None) -> None:
        """Refuse to go on from an entry that damage took away."""
        if head is not None and head not in self.tree:
            names = [name for name, leaf in self.heads.heads.items() if leaf == head]
            raise NotFound("entry", head, f"damage took it away: move {few(names)} elsewhere first" if names else "")

    def _check_unmoved(self, branch: str, expected: EntryId | None) -> None:
        head = self._head_of(branch)
        if head != expected:
            raise BranchMoved(branch, expected, head)

    def _commit(self, build: Callable[[], Drafted]) -> Sequence[Entry]:
        """Write what `build` makes of the state of things; when others wrote first, build anew."""
        loaded = self._load()
        while True:
            before = loaded.cursor
            entries = self._put(loaded, before, build())
            if entries is not None:
                return entries

    def _put(self, loaded: Loaded, before: Cursor, drafted: Drafted) -> Sequence[Entry] | None:
        """Write entries that were drafted at `before`, unless others wrote first: then that is taken in instead."""
        cursor = None
        try:
            self._under_way = drafted.lines
            cursor = self._store.append(drafted.lines, after=before)
            self._wrote = True
            if cursor is not before:
                entries = loaded.wrote(*drafted, cursor)
            else:
                entries = self._found(loaded, {entry.id for entry in drafted.upwards()})
            self._under_way = None
            return entries
        # Something more may break in when something has: nothing is called here.
        except StoreError as error:
            if cursor is not None:
                self._in_doubt = True
                raise
            self._under_way = None
            refusal = error
        except BaseException:
            self._in_doubt = True
            raise
        self._take_in(loaded, before, refusal)
        del refusal  # it holds this frame
        return None

    def _take_in(self, loaded: Loaded, before: Cursor, refusal: StoreError) -> None:
        """Take in what others wrote since `before`. Raises what refused a write, if it is something else."""
        if isinstance(refusal, Conflict) and not self._unmoved:
            self._take(loaded)
        if loaded.cursor == before:
            raise refusal

    def _take(self, loaded: Loaded) -> Sequence[Entry]:
        """Take in what others have appended."""
        chunk = self._ready = None
        try:
            self._under_way = ()
            try:
                chunk = loaded.unseen()
            except Conflict:
                recovered = self._recovered(loaded)
                if recovered is None:
                    raise
                entries = loaded.replace_with(recovered)
            else:
                entries = loaded.take(chunk)
            self._under_way = None
            return entries
        except StoreError:
            if chunk is None:  # nothing was taken in
                self._under_way = None
            else:
                self._in_doubt = True
            raise
        except BaseException:
            self._in_doubt = True
            raise

    def _recovered(self, known: Loaded) -> Loaded | None:
        """The session read anew, where a writer took back the last lines that were read, since its write failed.

        They are not there then, and what was appended since is. `None` where something else happened to the file.
        """
        for cursor in (self._after_take_back(known.cursor), known.before_others):
            if cursor is not None:
                with suppress(Conflict):
                    loaded = Loaded(self._store, Chunk(b"", cursor))
                    loaded.take(loaded.unseen())
                    return loaded
        return None

    def _found(self, loaded: Loaded, ids: set[EntryId]) -> list[Entry]:
        """Entries that were just written behind lines that nobody here has seen."""
        found = [entry for entry in self._take(loaded) if entry.id in ids]
        if len(found) < len(ids):
            raise StoreError(self.where, "what was written cannot be found again")
        return found

    def _prepared(self) -> Loaded:
        """All of the session, if something can be appended: an older file is rewritten first."""
        if self._closed:
            raise InvalidOperation(f"{self.where} is closed")
        if self._read_only is not None:
            raise ReadOnly(self.where, self._read_only)
        self._check_idle()
        if self.header.version < VERSION:
            branch, was = self.heads.current, self.heads.leaf
            self.migrate()
            self._check_unmoved(branch, was)
        self._ready = self._load()
        return self._ready

    def migrate(self) -> bool:
        """Rewrite a file of an older version, at once and with a backup. Says whether there was anything to do."""
        with self._mutex:
            self._check_idle()
            loaded = self._load()
            if not self.needs_migration:
                return False
            if self._read_only is not None:
                raise ReadOnly(self.where, self._read_only)
            for tries in range(TRIES):
                before = loaded.cursor
                try:
                    self._rewrite(loaded)
                    break
                except Conflict:
                    self._take(loaded)  # a peer that keeps that version goes on with it
                    if loaded.cursor == before or tries == TRIES - 1:
                        raise
            self._load()
            return True

    def _rewrite(self, loaded: Loaded) -> None:
        """Put all lines, as version 3 has them, in the place of the file, which is then read anew."""
        lines = loaded.reader.all_lines()
        try:
            self._under_way, self._rewriting = lines, True
            self._store.replace(lines, after=loaded.cursor)
        finally:  # whatever comes out, which of the two files it is now is looked up
            self._in_doubt = True

    def held(self) -> AbstractContextManager[object]:
        """While it is entered, other threads neither write nor take anything in: all that is read is of one moment."""
        return self._mutex

    @contextmanager
    def unchanged(self) -> Generator[None]:
        """`held`, and a write is refused with `Conflict` if others have written since what was read, wherever."""
        with self._mutex:
            before, self._unmoved = self._unmoved, True
            try:
                yield
            finally:
                self._unmoved = before

    def refresh(self) -> Sequence[Entry]:
        """Take in what other writers have appended, and return it."""
        with self._mutex:
            self._check_idle()
            return self._take(self._load())

    def _after_fork(self) -> None:
        """In a process that was forked: another thread may have been at work, and is not here to end it."""
        if not self._mutex._is_owned():  # type: ignore[attr-defined]  # as `threading.Condition` asks
            self._mutex, self._unmoved = threading.RLock(), False
        self._in_doubt = self._loaded is not None
        if not self._rewriting:
            self._under_way = None
        self._ready = None

    def close(self) -> None:
        """Let go of the file. If the last line is not at the current place, a head record says where that is."""
        with self._mutex:
            if self._closed:
                return
            self._check_idle()
            try:
                if self._wrote and not self.heads.ends_here(self.tree):
                    self._commit(lambda: Drafted.of(self._draft.record(self.tree, self.heads.record())))
            finally:
                self._closed, self._ready = True, None
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
        target = self.place(place)
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
            self._prepared()
            start = self.place(at)
            self._check_there(start)

            def build() -> Drafted:
                check_new_branch(name, self.tree, self.heads)
                body = BranchPoint(name=name, description=description)
                now_current = name if current else self.heads.current
                return Drafted.of(self._draft.entry(body, under(self.tree, start), name, now_current))

            self._commit(build)
            return Branch(self, name)

    def switch(self, place: Place) -> Branch:
        """Make another branch current. A place that is no branch's head: the current branch moves there."""
        with self._mutex:
            name = branch_named(place, self.tree, self.heads) if isinstance(place, str) else None
            if name is None:
                target = self.tree.real(self.place(place))
                there = [branch for branch, head in self.heads.heads.items() if head == target]
                if self.heads.current not in there and len(there) != 1:
                    if there:
                        raise InvalidOperation(f"several branches are there: {', '.join(there)}")
                    self.move(self._at(target))
                    return self.head
                name = self.heads.current if self.heads.current in there else there[0]
            if name != self.heads.current:
                was = self.heads.current

                def record() -> Custom:
                    self._check_branch(name)
                    self._check_current(was)
                    return self.heads.record(moved=True, current=name, archived=self.heads.archived - {name})

                self._write_heads(record)
            return self.head

    def plan_navigate(self, place: Place, *, start: Place = "HEAD") -> NavigatePlan:
        """What `navigate` would do, from the current place or another one."""
        old = self._known_leaf() if start == "HEAD" else self.place(start)
        return plan_navigate(self.tree, old, self.place(place))

    def navigate(self, place: Place) -> NavigatePlan:
        """Move the current branch's head by the rules of selection, durably, and return what was done.

        Choosing a user's or a custom message goes to its parent, and `editor_text` has its text.
        """
        with self._mutex:
            plan = plan_navigate(self.tree, self._known_leaf(), self.place(place))
            if plan.moves:
                self.move(self._at(plan.new_leaf))
            return plan

    def move(
        self,
        place: Place,
        bodies: Iterable[Body | Item] = (),
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
            loaded = self._prepared()
            begun = self.heads.current
            name = begun if branch is None else branch
            was = self._head_of(name) if isinstance(expected, UnsetType) else expected
            leaf = self.tree.real(self.place(place))
            hidden = {self.branch(other).name for other in archive} - {name}

            def build() -> Drafted:
                self._check_unmoved(name, was)
                if branch is None:
                    self._check_current(begun)
                current = self.heads.current
                for other in hidden:
                    self._check_branch(other)
                # Entries below another place than the head are a move by themselves; others need a record for that.
                by_itself = name == current and name not in self.heads.archived
                if moves(items) and leaf != was and not hidden and by_itself:
                    return self._draft.chain(loaded, items, leaf, name)
                body = self.heads.record(
                    moved=True,
                    mover=current if current in hidden else name,
                    current=name if current in hidden else current,
                    heads={**self.heads.heads, name: leaf},
                    archived=(self.heads.archived | hidden) - {name},
                )
                record, after = self._draft.record(loaded.tree, body), Heads()
                after.apply(record, loaded.tree)
                there = self._draft.chain(loaded, items, leaf, name, heads=after)
                return Drafted([record, *there.items], [record.raw, *there.lines])

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
            stays = move.switched or move.beside
            back = self.heads.heads[move.branch] if stays else move.leaf
            plan = msgspec.structs.replace(
                plan_move(self.tree, self._known_leaf(), back), undone=describe_move(move, self.heads, self.tree)
            )
            others = {name: leaf for name, leaf in move.others if name in self.heads.heads}
            was = self.heads.current

            def record() -> Custom:
                self._check_current(was)
                heads = {**self.heads.heads, **others, move.branch: plan.new_leaf}
                shown = self.heads.archived - {move.branch, *move.hid}
                return self.heads.record(undo=True, current=move.branch, heads=heads, archived=shown)

            self._write_heads(record, move.branch, *others)
            return plan

    def rename_branch(self, name: str, new: str) -> Branch:
        check_branch_name(new)
        with self._mutex:

            def record() -> Custom:
                def called(old: str) -> str:
                    return new if old == name else old

                self._check_branch(name)
                check_new_branch(new, self.tree, self.heads)
                return self.heads.record(
                    current=called(self.heads.current),
                    heads={called(branch): head for branch, head in self.heads.heads.items()},
                    archived={called(branch) for branch in self.heads.archived},
                    renamed=(name, new),
                )

            self._write_heads(record)
            return Branch(self, new)

    def archive_branch(self, name: str, *, archived: bool = True) -> None:
        """Hide a branch from listings, or show it again. Nothing is removed."""
        with self._mutex:
            self._check_branch(name)

            def record() -> Custom:
                self._check_branch(name)
                if archived and name == self.heads.current:
                    raise InvalidOperation(f"branch {name!r} is the current one: switch to another first")
                hidden = self.heads.archived
                return self.heads.record(archived=hidden | {name} if archived else hidden - {name})

            if archived != (name in self.heads.archived):
                self._write_heads(record)

    def restore_heads(self, heads: Mapping[str, EntryId | None]) -> None:
        """Put branches where they are said to be, by a head record that is no move: for heads that damage took away.

        Those that are there already are left to whoever writes on them.
        """
        with self._mutex:
            for head in heads.values():
                if head is not None and head not in self.tree:
                    raise NotFound("entry", head)
            changed = {name: head for name, head in heads.items() if self._head_of(name) != head}
            if changed:
                self._write_heads(lambda: self.heads.record(heads={**self.heads.heads, **changed}), *changed)

    def _at(self, id: EntryId | None) -> Entry | None:
        """A place by its id alone: names of branches and labels may be spelled like ids."""
        return None if id is None else self.tree[id]

    def _known_leaf(self) -> EntryId | None:
        """The current leaf, or `None` where damage took it away, so that one can go elsewhere."""
        leaf = self.heads.leaf
        return leaf if leaf in self.tree else None

    def _write_heads(self, record: Callable[[], Custom], *branches: str) -> None:
        """Write a head record, unless another writer has moved one of the branches in the meantime."""
        record()  # what is refused is refused before an older file is rewritten
        self._prepared()
        expected = {branch: self.heads.heads[branch] for branch in branches}

        def build() -> Drafted:
            for branch, head in expected.items():
                self._check_unmoved(branch, head)
            return Drafted.of(self._draft.record(self.tree, record()))

        self._commit(build)

    def _check_current(self, branch: str) -> None:
        if self.heads.current != branch:
            raise Conflict(self.where, f"another writer made {self.heads.current!r} the current branch meanwhile")


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

    def is_called(self, name: str) -> None:
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
        return self.session.context().state if self._name is None else state_of(reach(self.session.tree, self.leaf))

    def explain(self) -> Explanation:
        """For every entry on the path, whether it reaches the model and why not."""
        return explain(self.session.tree, self.leaf)


_sessions: WeakSet[Session] = WeakSet()


def _forked() -> None:
    for session in _sessions:
        session._after_fork()  # pyright: ignore[reportPrivateUsage]


os.register_at_fork(after_in_child=_forked)


def _head_among(heads: dict[str, EntryId | None], branch: str) -> EntryId | None:
    if branch not in heads:
        raise NotFound("branch", branch, f"there are {few(list(heads))}")
    return heads[branch]


def clean_name(name: str | None) -> str | None:
    """A session's name on one line, as peers write it; `None` when nothing is left."""
    return re.sub(r"[\r\n]+", " ", name or "").strip(BLANKS) or None


def compare(session: Session, branches: Sequence[str], metric: str = "cost") -> Comparison:
    """What branches cost and did after they parted, and which one is ahead, if the figures tell."""
    from sessiontree.comparison import compare as compare_branches

    return compare_branches(session.tree, [(name, session.branch(name).leaf) for name in branches], metric)


def diff(session: Session, a: Place, b: Place) -> Diff:
    """Two places, from where their paths part."""
    from sessiontree.comparison import diff as diff_places

    return diff_places(session.tree, (_named(a), session.place(a)), (_named(b), session.place(b)))


def _may_be_entry(place: str) -> bool:
    """Whether only the whole tree tells what entry is meant."""
    return place.startswith("HEAD@") or looks_like_id(place)


def _named(place: Place) -> str:
    return "root" if place is None else place.id if isinstance(place, Entry) else place
