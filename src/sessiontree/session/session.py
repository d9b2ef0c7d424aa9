"""Sessions: one tree kept in sync with one store.

Positions belong to branches, not to the session. Two agents on one session hold two `Branch` handles. Everything
is written to the store before it changes in memory, and every write names its parent. So work that is still running
cannot end up on the wrong branch because another writer moved.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, NoReturn

import msgspec
from msgspec import UNSET, UnsetType

from sessiontree.core.context import Context, build_context
from sessiontree.core.entries import Body, Entry, EntryId, Label, Problem, SessionInfo
from sessiontree.core.heads import MAIN
from sessiontree.core.late_imports import load
from sessiontree.core.place_names import BRANCH_PREFIX, looks_like_id
from sessiontree.core.problems import ProblemScan, find_problems
from sessiontree.core.timestamps import format_timestamp
from sessiontree.core.tree import NAME_WHITESPACE
from sessiontree.errors import InvalidOperation, NotFound
from sessiontree.format.codec import VERSION, write_entry, write_header
from sessiontree.format.session_reader import SessionReader
from sessiontree.format.tail import read_tail_context
from sessiontree.session.branch import Branch
from sessiontree.session.branch_operations import BranchOperations
from sessiontree.session.entry_builder import Item, generate_id
from sessiontree.session.session_base import BranchPosition, Place
from sessiontree.store.base import Store, get_index

if TYPE_CHECKING:
    from pathlib import Path

    from sessiontree.branch_comparison import Comparison, Diff
    from sessiontree.export import ExportResult
    from sessiontree.export.redact import Redactor


class Session(BranchOperations):
    """A session: reading, appending, branches and moves."""

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
        """Create a session in `store`. Its header is written at once."""
        stamp = format_timestamp(now())
        lines = [write_header(id=id, timestamp=stamp, cwd=cwd)]
        label = clean_name(name)
        if label is not None:
            info = write_entry(SessionInfo(label), id=new_id(), parent=None, timestamp=stamp, branch=MAIN)
            lines.append(info.raw)
        store.create(lines)
        return cls(store, now=now, new_id=new_id)

    def __repr__(self) -> str:
        name = "" if self._state is None or self.name is None else f" {self.name!r}"
        where = "in memory" if self.address is None else f"at {self.location}"
        return f"<Session {self.id}{name} {where}>"

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *_: object) -> None:
        import asyncio

        await asyncio.shield(asyncio.to_thread(self.close))

    def __reduce__(self) -> NoReturn:
        raise InvalidOperation("a session cannot be copied or pickled; open it again, or fork it")

    @property
    def _reader(self) -> SessionReader:
        return self._load_whole().reader

    # Properties

    @property
    def id(self) -> str:
        return self.header.id

    @property
    def file(self) -> Path | None:
        """The session's file; `None` if the session is in memory or in a database."""
        from pathlib import Path

        return None if self._store.path is None else Path(os.path.abspath(self._store.path))

    @property
    def address(self) -> str | None:
        """The path or address to open the session again with; `None` if it is in memory."""
        return self._store.location if self._store.is_persistent else None

    @property
    def store(self) -> Store:
        """The store that holds the session's lines."""
        return self._store

    @property
    def cwd(self) -> str:
        return self.header.cwd

    @property
    def forked_from(self) -> EntryId | None:
        """The entry of the parent session that this session was forked at."""
        return self.header.forked_from

    @property
    def name(self) -> str | None:
        tree = self.tree
        return tree.name if tree.has_been_named else (self._reader.title or None)

    @property
    def dialect(self) -> str | None:
        """The older dialect of the file, if it has to be rewritten before the first append."""
        return self._reader.dialect if self.needs_migration else None

    @property
    def problems(self) -> list[Problem]:
        """Everything wrong with the session, and everything worth knowing about it. Nothing is repaired."""
        return self.list_problems()

    def list_problems(self, scan: ProblemScan | None = None) -> list[Problem]:
        """Return `problems`. With `scan`, the bodies that were added to it are not read again, and no others are."""
        unfinished = self._load_whole().unfinished
        found = [*self._reader.problems, *find_problems(self.tree, self.heads, scan)]
        if unfinished:
            message = (
                f"the last line is unfinished ({len(unfinished)} bytes): cut off by a crash, or still being written"
            )
            line = self._reader.line_count + 1
            found.append(Problem(kind="torn_tail", severity="fault", message=message, line=line))
        located = [
            msgspec.structs.replace(problem, offset=self._reader.get_offset(problem.line))
            if problem.line and problem.offset is None
            else problem
            for problem in found
        ]
        return [*self._store.problems, *located]

    @property
    def unreadable_lines(self) -> int:
        """The number of lines that could not be read. `problems` has the details, and takes longer."""
        return self._reader.unreadable_count

    @property
    def torn_files(self) -> list[str]:
        """Files that incomplete last lines were moved to, before new lines were appended."""
        return list(self._store.torn_files)

    # Lines

    def read_lines(self) -> list[bytes]:
        """Return all lines of the session as version 3 has them, the header first."""
        return self._reader.read_all_lines()

    def stream_lines(self) -> Iterator[bytes]:
        """Return an iterator over all lines as they are stored, in whatever version, without loading the session."""
        try:
            return self._store.stream_lines()
        except NotFound:  # deleted by another program; the lines may still be in memory
            return iter(self.read_lines())

    def iter_entry_lines(self) -> Iterator[bytes]:
        """Yield the lines after the header."""
        return self._reader.iter_lines()

    # Context and branches

    def context(self, place: Place = "HEAD") -> Context:
        """Return what the model is sent at a place. For the head of a branch, only the tail of the file is read."""
        is_unloaded = self._state is None and self.header.version == VERSION
        if is_unloaded and isinstance(place, str) and place != "root" and not _is_entry_like(place):
            branch = None if place == "HEAD" else place.removeprefix(BRANCH_PREFIX)
            store, end = self._store, self._opened_end.cursor
            index = get_index(store)
            find_ancestors = None if index is None else partial(index.find_ancestors, end)
            context = read_tail_context(store.read_backward(end), branch, find_ancestors)
            if context is not None:
                return context
        return build_context(self.tree, self.resolve_place(place))

    @property
    def head(self) -> Branch:
        """The current branch."""
        # The name of the current branch may require loading the session; its context does not.
        return Branch(self, None if self._state is None else self.heads.current)

    def branch(self, name: str) -> Branch:
        """Return a handle of the branch `name`. Raises `NotFound`."""
        self._get_head(name)
        return Branch(self, name)

    def create_branch(
        self,
        name: str,
        *,
        at: Place = "HEAD",
        description: str | None = None,
        current: bool = True,
        bodies: Iterable[Body | Item] = (),
        folder: Literal["shared", "private"] = "shared",
    ) -> Branch:
        """Create a branch at a place. It becomes current, unless `current=False`; the previous one does not move.

        `bodies` are written on the new branch in the same step, such as a summary of the branch you leave. With
        `folder="private"`, agents on the branch work in a private folder, made from the current one. Raises
        `SnapshotError` if there can be none.
        """
        if folder not in ("shared", "private"):
            raise InvalidOperation(f'folder must be "shared" or "private", not {folder!r}')
        self._create_branch(name, at, description, current, bodies)
        branch = Branch(self, name)
        if folder == "private":
            load("create_private_folder")(branch)
        return branch

    def switch(self, place: Place) -> Branch:
        """Make another branch current. If no branch has its head at an entry, the current branch moves there.

        Raises `InvalidOperation` for a label, which is not a branch.
        """
        with self._mutex:
            self._switch(place)
            return self.head

    def rename_branch(self, name: str, new: str) -> Branch:
        """Rename a branch. Handles with the old name no longer work."""
        self._rename_branch(name, new)
        return Branch(self, new)

    def fork(
        self,
        at: Place = "HEAD",
        *,
        whole: bool = False,
        name: str | None = None,
        dir: str | os.PathLike[str] | None = None,
        file: str | os.PathLike[str] | None = None,
    ) -> Session:
        """Create a session with the path to `at`, or with the whole tree. This session is not changed.

        The new session is in the folder of this one, unless you name another folder or a file.
        """
        return load("fork")(self, at=at, whole=whole, name=name, dir=dir, file=file)

    def export(
        self,
        form: str = "html",
        *,
        branch: str | None = None,
        subtree: str | None = None,
        redactor: Redactor | None = None,
        prefer: str | None = None,
    ) -> ExportResult:
        """Return the session as a page or as text: `html`, `md`, `text`, `json` or `jsonl`.

        For training and evaluation: `sft`, `preference`, `atif` or `inspect`. `branch` exports only the path to a
        place, and `subtree` an entry and everything below it. `prefer` decides which branch of a pair is better.
        """
        from sessiontree.export import export

        return export(self.stream_lines(), form, branch=branch, subtree=subtree, redactor=redactor, prefer=prefer)

    # Labels and names

    def label(self, place: Place, text: str | UnsetType | None = UNSET) -> Entry:
        """Set the label of an entry; `None` or whitespace removes it."""
        if isinstance(text, UnsetType):
            raise InvalidOperation('label needs a place and a text, such as session.label("HEAD", "start")')
        if text is not None and not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not check types
            raise InvalidOperation(f"a label is text, not {type(text).__name__}")
        target = self.resolve_place(place)
        if target is None:
            raise InvalidOperation("the place before the first entry cannot have a label")
        return self.append(Label(target=target, text=(text or "").strip() or None))

    def rename(self, name: str | None) -> Entry:
        """Set the name of the session; `None` removes it."""
        return self.append(SessionInfo(clean_name(name) or ""))


def clean_name(name: str | None) -> str | None:
    """Return a session's name on one line; `None` if nothing is left."""
    if name is not None and not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not check types
        raise InvalidOperation(f"the name of a session is text, not {type(name).__name__}")
    return re.sub(r"[\r\n]+", " ", name or "").strip(NAME_WHITESPACE) or None


def compare(session: Session, branches: Sequence[Place], metric: str = "cost") -> Comparison:
    """Compare what branches cost and did since they diverged, and find the better one, if the numbers allow it.

    Any other place can be compared like a branch.
    """
    from sessiontree.branch_comparison import compare as compare_branches

    if not isinstance(session, Session):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not check types
        raise InvalidOperation(f"compare needs a session, not {type(session).__name__}; open one with st.open")
    if isinstance(branches, str) or not isinstance(branches, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidOperation(f"compare needs a list of branches, not {branches!r}")
    return compare_branches(
        session.tree, [(format_place(place), session.resolve_place(place)) for place in branches], metric
    )


def diff(session: Session, a: Place, b: Place) -> Diff:
    """Compare two places, from the entry where their paths diverge."""
    from sessiontree.branch_comparison import diff as diff_places

    return diff_places(
        session.tree, (format_place(a), session.resolve_place(a)), (format_place(b), session.resolve_place(b))
    )


def _is_entry_like(place: str) -> bool:
    """Return whether resolving `place` requires the whole tree."""
    return place.startswith("HEAD@") or looks_like_id(place)


def format_place(place: Place) -> str:
    """Return the name of a place: of a branch, the name; of an entry, the id."""
    if isinstance(place, BranchPosition):
        return place.name
    return "root" if place is None else place.id if isinstance(place, Entry) else place
