"""Sessions in a folder of files, found by path, id or name.

The user's own sessions are in `$SESSIONTREE_HOME/sessions/<encoded cwd>/`, one folder for each project. The folders of
other programs are listed and searched on request, and never written to. The index, a cache, makes listing and
searching fast.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from sessiontree.core.sanitize import replace_unencodable
from sessiontree.errors import Ambiguous, InvalidOperation, NotFound, SessionTreeError, isolate_errors
from sessiontree.format.session_reader import PREAMBLE_LIMIT, SessionReader
from sessiontree.home import get_home
from sessiontree.library.repository import RECENT_ALIAS, Layout, Progress, StoredSession, find_most_recent
from sessiontree.library.session_files import (
    SESSION_SUFFIX,
    OpenStore,
    SessionFile,
    get_sessions_folder,
    is_file,
    is_id_match,
    is_path,
    list_folders,
    list_session_files,
    parse_session_id,
    pause_gc,
    resolve_folder,
    starts_like_session,
)
from sessiontree.store.jsonl import Durability, JsonlStore
from sessiontree.store.range_reader import RangeReader

if TYPE_CHECKING:
    from sessiontree.core.entries import Entry, Header
    from sessiontree.core.query import Query
    from sessiontree.library.index.index_database import IndexDatabase
    from sessiontree.library.index.session_search import Hit
    from sessiontree.library.index.session_summary import SessionSummary
    from sessiontree.store.base import Cursor, Store

T = TypeVar("T")

POLL_SECONDS = 0.1
_OUR_ID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
"""The form of ids that sessiontree and most other programs generate."""
DEEP = 3
"""How many levels of subfolders a program has that sorts its sessions by date."""
SCAN_BLOCK = 1 << 20
"""How many new bytes `may_contain` reads at a time."""


def encode_folder_name(cwd: str) -> str:
    """Return the name of the subfolder for the sessions of `cwd`, which a header may claim to be anything."""
    try:
        os.fsencode(cwd)
    except UnicodeEncodeError:
        cwd = replace_unencodable(cwd)
    flat = cwd.removeprefix("/").translate(str.maketrans({"/": "-", "\\": "-", ":": "-", "\0": "-"}))
    if len(os.fsencode(flat)) > 200:
        import hashlib

        flat = f"{flat[:58]}-{hashlib.sha256(os.fsencode(cwd)).hexdigest()[:16]}"  # at most 249 bytes
    return f"--{flat}--"


SOURCE_LAYOUTS = ("tree", "deep")
"""The layouts of folders in which other programs keep their sessions."""


def get_sources() -> dict[str, str]:
    """Return where other programs keep their sessions, by name: a folder, or a database.

    Nothing is ever written there.
    """
    pi = os.environ.get("PI_CODING_AGENT_DIR") or "~/.pi/agent"
    own = os.environ.get("PI_CODING_AGENT_SESSION_DIR")
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return {
        "pi": os.path.expanduser(own or os.path.join(pi, "sessions")),
        "omp": os.path.expanduser("~/.omp/agent/sessions"),
        "claude": os.path.join(os.path.expanduser(os.environ.get("CLAUDE_CONFIG_DIR") or "~/.claude"), "projects"),
        "codex": os.path.join(os.path.expanduser(os.environ.get("CODEX_HOME") or "~/.codex"), "sessions"),
        "gemini": os.path.expanduser("~/.gemini/tmp"),
        "opencode": os.path.join(data, "opencode", "opencode.db"),
    }


class FolderRepository:
    """Sessions in files below one folder."""

    def __init__(self, root: str, *, layout: Layout = "projects", open_store: OpenStore = JsonlStore) -> None:
        self.location = root
        self._layout = layout
        self._open_store = open_store
        self._scanned: dict[tuple[str, bytes], _ScanState] = {}
        self._scan_lock = threading.Lock()

    # Stores and locations

    def get_store(self, location: str, durability: Durability = "fsync") -> Store:
        if self._layout == "folder" and not starts_like_session(location):
            from sessiontree.library.foreign_files import open_foreign

            foreign = open_foreign(location)
            if foreign is not None:
                return foreign
        if self._open_store is JsonlStore:
            return JsonlStore(location, durability=durability)
        return self._open_store(location)

    def build_location(self, id: str, *, cwd: str, timestamp: str) -> str:
        stamp = timestamp.replace(":", "-").replace(".", "-")
        folder = os.path.join(self.location, encode_folder_name(cwd)) if self._layout == "projects" else self.location
        return os.path.join(folder, f"{stamp}_{id}{SESSION_SUFFIX}")

    def get_id(self, location: str) -> str:
        return parse_session_id(location)

    def exists(self, location: str) -> bool:
        return os.path.lexists(location) or is_file(location)

    # Finding

    def find(self, name: str) -> str:
        if name == RECENT_ALIAS:
            recent = self.find_recent(resolve_folder("."))
            if recent is None:
                hint = "this folder has none, or only archived ones, which `sessiontree ls --archived` shows"
                raise NotFound("session", RECENT_ALIAS, hint)
            return recent
        if is_file(name):
            return name
        found = self._pick(name, self._list_files())
        if found is None and is_path(name):
            raise NotFound("session file", name)
        if found is None:
            what = "it is a folder; a session" if os.path.isdir(name) else "a session"
            raise NotFound("session", name, f"{what} is a path, an id, a name, or @ for the most recent here")
        return found

    def find_recent(self, cwd: str) -> str | None:
        folder = os.path.join(self.location, encode_folder_name(cwd)) if self._layout == "projects" else self.location
        files = _sort_newest_first(_filter_regular(list_session_files(folder, hidden=False)))
        here = ((file.path, file.mtime) for file in files if not file.archived and self.read_cwd(file.path) == cwd)
        return find_most_recent(here, self._open_store)

    def _pick(self, text: str, files: Sequence[SessionFile]) -> str | None:
        """Return the file whose session has this id, or else this name, or else an id that starts or ends like this.

        Raises `Ambiguous`. `text` is only compared, never made part of a path.
        """
        if not text:
            raise InvalidOperation("a session needs a path, an id or a name")
        files = _sort_newest_first(_filter_regular(files))
        matches: list[tuple[str, str]] = []
        if "-" in text:  # likely part of an id in our form: these are found without the index
            matches = [
                (id, path) for id, path in self._iter_ids(files) if is_id_match(text, id) and re.fullmatch(_OUR_ID, id)
            ]
        if not matches:
            listed = self._load_summaries(files, wait_for_lock=False)
            meant = (
                [summary for summary in listed if summary.id == text]
                or [summary for summary in listed if summary.name == text]
                or [summary for summary in listed if is_id_match(text, summary.id)]
                or [summary for summary in listed if parse_session_id(summary.file) == text]
            )
            matches = [(summary.id, summary.file) for summary in meant]
        if len(matches) > 1:
            files_of = Counter(id for id, _ in matches)
            raise Ambiguous("session", text, [id if files_of[id] == 1 else path for id, path in matches])
        return matches[0][1] if matches else None

    def find_ambiguous(self, sessions: Iterable[tuple[str, str]], *, in_trash: bool = False) -> set[str]:
        from sessiontree.library import trash

        files_of: dict[str, list[str]] = {}
        among = trash.list_trash() if in_trash else self._list_files()
        for id, path in self._iter_ids(_filter_regular(among)):
            files_of.setdefault(id, []).append(path)
        return {path for id, path in sessions if files_of.get(id) != [path]}

    def _iter_ids(self, files: Iterable[SessionFile]) -> Iterator[tuple[str, str]]:
        """Yield the id of each session and its file. Only a file whose name has no id in our form is opened."""
        for file in files:
            id = parse_session_id(file.path)
            if not re.fullmatch(_OUR_ID, id):
                header = self._read_header(file.path)
                id = replace_unencodable(id if header is None else header.id)
            yield id, file.path

    def read_cwd(self, path: str) -> str | None:
        """Return the project folder from a file's header: two projects may share one subfolder."""
        header = self._read_header(path)
        return None if header is None else header.cwd

    def _read_header(self, path: str) -> Header | None:
        parser = SessionReader(path)
        try:
            with self._open_store.reader_class(path) as reader, isolate_errors(path):
                start = 0
                while not parser.has_header and (raw := _read_line(reader, start)):
                    parser.feed(raw)
                    start += len(raw)
                return parser.header
        except (OSError, SessionTreeError):
            return None

    # Listing and searching

    def _list_files(self) -> list[SessionFile]:
        folders = [self.location] if self._layout in ("folder", "database") else list_folders(self.location)
        if self._layout in SOURCE_LAYOUTS:
            folders = _list_with_subfolders(self.location, DEEP if self._layout == "deep" else 1)
        return self._find_files(folders)

    def _find_files(self, folders: Iterable[str]) -> list[SessionFile]:
        """Return the sessions in folders. Files of another program that are parts of a session are left out."""
        if self._layout == "database":
            from sessiontree.library.foreign_files import list_conversations

            return list_conversations(self.location)
        found = [file for folder in folders for file in list_session_files(folder, hidden=False)]
        if self._layout not in SOURCE_LAYOUTS:
            return found
        from sessiontree.interop.formats import select_sessions

        selected = select_sessions([file.path for file in found])
        return [file for file in found if file.path in selected]

    def _drop_subagents(self, listed: list[SessionSummary]) -> list[SessionSummary]:
        """Leave out sessions that are branches of others: another program has a file for each subagent."""
        if self._layout not in SOURCE_LAYOUTS:
            return listed
        ids = {summary.id for summary in listed}
        return [summary for summary in listed if summary.parent_session not in ids]

    def list_stored(self) -> list[StoredSession]:
        files = _sort_newest_first(_filter_regular(self._list_files()))
        return [StoredSession(parse_session_id(file.path), file.path, file.archived) for file in files]

    def list_sessions(
        self, cwd: str | None = None, *, archived: bool = False, progress: Progress | None = None
    ) -> list[SessionSummary]:
        scope = self._build_scope(cwd)
        with pause_gc():
            found = _sort_newest_first(self._find_files(scope.paths))
            listed = self._drop_subagents(self._load_summaries(found, scope.paths, root=scope.root, progress=progress))
            return [summary for summary in listed if summary.archived == archived and scope.contains(summary)]

    def search(
        self,
        query: Query,
        *,
        cwd: str | None = None,
        limit: int = 50,
        only: Callable[[SessionSummary], bool] | None = None,
        on_unreadable: Callable[[str], None] | None = None,
        progress: Progress | None = None,
    ) -> list[Hit]:
        from sessiontree.library.index.session_search import search_sessions

        def work(db: IndexDatabase, listed: list[SessionSummary]) -> list[Hit]:
            listed = [summary for summary in listed if only is None or only(summary)]
            if on_unreadable is not None:
                for path in [summary.file for summary in listed if summary.branch is None]:
                    on_unreadable(path)
            return search_sessions(db, listed, query, limit=limit, progress=progress)

        return self._run_on_summaries(cwd, progress, work)

    def find_matching_sessions(
        self, query: Query, *, cwd: str | None = None, progress: Progress | None = None
    ) -> list[str]:
        from sessiontree.library.index.session_search import find_matching_files

        return self._run_on_summaries(
            cwd, progress, lambda db, listed: find_matching_files(db, listed, query, progress=progress)
        )

    def _run_on_summaries(
        self, cwd: str | None, progress: Progress | None, work: Callable[[IndexDatabase, list[SessionSummary]], list[T]]
    ) -> list[T]:
        """Return what `work` finds, given the summaries of all sessions in scope."""
        from sessiontree.library.index.listing import list_summaries

        scope = self._build_scope(cwd)
        found = self._find_files(scope.paths)

        def run(db: IndexDatabase) -> list[T]:
            with pause_gc():
                listed = self._drop_subagents(
                    list_summaries(db, found, scope.paths, root=scope.root, progress=progress)
                )
                return work(db, [summary for summary in listed if scope.contains(summary)])

        return self._run_with_index(run) if found else []

    def _load_summaries(
        self,
        files: Sequence[SessionFile],
        folders: Iterable[str] | None = None,
        *,
        root: str | None = None,
        progress: Progress | None = None,
        wait_for_lock: bool = True,
    ) -> list[SessionSummary]:
        """Return a summary of each file, in the same order, from the index where it is up to date.

        Without `wait_for_lock`, the index is not updated while another process writes to it.
        """
        from sessiontree.library.index.listing import list_summaries

        if not files:
            return []
        folders = {os.path.dirname(file.path) for file in files} if folders is None else folders
        return self._run_with_index(
            lambda db: list_summaries(db, files, folders, root=root, progress=progress), wait_for_lock=wait_for_lock
        )

    def _run_with_index(self, work: Callable[[IndexDatabase], T], *, wait_for_lock: bool = True) -> T:
        from sessiontree.library.index.index_database import run_with_index

        def run(db: IndexDatabase) -> T:
            db.open_store = self._open_store
            return work(db)

        return run_with_index(get_home(), run, wait_for_lock=wait_for_lock)

    def _build_scope(self, cwd: str | None) -> _ListingScope:
        here = None if cwd is None else resolve_folder(cwd)
        shown = None if here is None else replace_unencodable(here)
        if self._layout == "folder":
            return _ListingScope([self.location], None, shown)
        if self._layout == "database":
            return _ListingScope([os.path.dirname(self.location)], None, shown)
        if self._layout in ("tree", "deep"):
            own = "" if here is None else os.path.join(self.location, encode_folder_name(here))
            folders = _list_with_subfolders(self.location, DEEP if self._layout == "deep" else 1)
            return _ListingScope(folders, self.location, shown, own)
        if here is None:
            return _ListingScope(list_folders(self.location), self.location)
        own = os.path.join(self.location, encode_folder_name(here))
        return _ListingScope([own], None, shown, own)

    def may_contain(self, location: str, text: bytes) -> bool:
        try:
            with self._scan_lock, self._open_store.reader_class(location) as reader:
                state = self._scanned.get((location, text))
                if state is None or state.inode != reader.status.st_ino or state.size > reader.size:
                    state = self._scanned[location, text] = _ScanState(reader.status.st_ino)
                while not state.found and state.size < reader.size:
                    start = max(0, state.size - len(text) + 1)
                    block = reader.read(start, len(text) + SCAN_BLOCK)
                    if not block:
                        break
                    state.found = text in block
                    state.size = start + len(block)
                return state.found
        except OSError:
            return False

    # Archiving and deleting

    def resolve(self, name: str, *, in_trash: bool = False) -> str:
        from sessiontree.library import trash

        deleted = trash.find_in_trash(name, self._pick) if in_trash and not is_file(name) else None
        return deleted or self._find_own(name)

    def archive(self, name: str, *, archived: bool = True) -> str:
        from sessiontree.library import trash

        file = self._find_own(name)
        trash.archive_file(file, archived=archived)
        return file

    def delete(self, name: str) -> str:
        from sessiontree.library import trash

        return trash.delete_file(self._find_own(name))

    def restore(self, name: str) -> str:
        from sessiontree.library import trash

        file = trash.find_in_trash(name, self._pick)
        if file is None:
            raise NotFound("session in the trash", name)
        return trash.restore_file(file)

    def purge(self, name: str, *, at: Cursor | None = None) -> str:
        from sessiontree.library import trash

        file = self.resolve(name, in_trash=True)
        trash.purge_file(file, at=at, open_store=self._open_store)
        return file

    def list_trash(self) -> list[SessionSummary]:
        from sessiontree.library import trash

        listed = self._load_summaries(trash.list_trash())
        return sorted(listed, key=lambda summary: summary.modified, reverse=True)

    def _find_own(self, name: str) -> str:
        from sessiontree.library import trash

        file = self.find(name)
        trash.check_own_session(file, (get_home(), get_sessions_folder()), get_sources(), self._open_store)
        return file

    # Copies and forks

    def build_copy_location(self, location: str, id: str) -> str:
        return f"{_build_copy_prefix(location)}{id}{SESSION_SUFFIX}"

    def iter_copies(self, location: str) -> Iterator[Store]:
        folder, name = os.path.split(_build_copy_prefix(location))
        copies = [file for file in list_session_files(folder or ".") if file.name.startswith(name)]
        for file in sorted(copies, key=attrgetter("mtime", "name"), reverse=True):
            yield self._open_store(os.path.join(folder, file.name))

    def share_lines(self, source: Store, target: Store, header: bytes, parts: Sequence[Entry | bytes] | None) -> bool:
        return False  # files have no lines in common

    # Watching

    def wait_for_change(self, location: str, after: Cursor, timeout: float) -> bool:
        store = self._open_store(location)
        deadline = time.monotonic() + timeout
        while store.read_end().cursor == after:
            if time.monotonic() >= deadline:
                return False
            time.sleep(min(POLL_SECONDS, timeout))
        return True

    def check_size(self, location: str) -> None:
        from sessiontree.library.index.session_summary import check_size

        check_size(location, self._open_store)

    def open_shared_lock(self, location: str, name: str) -> None:
        return None

    def check_reachable(self) -> None:
        """A folder is always reachable: a missing one has no sessions."""


class _ScanState(Struct):
    """How far a file was searched for a text."""

    inode: int
    size: int = 0
    found: bool = False


class _ListingScope(Struct, frozen=True):
    """Which folders to list, and which of their sessions count."""

    paths: list[str]
    root: str | None = None
    """All folders below it are among `paths`."""
    cwd: str | None = None
    """Only sessions of this project count."""
    own_folder: str = ""
    """Where the sessions of `cwd` are stored: files there whose project cannot be read count too."""

    def contains(self, summary: SessionSummary) -> bool:
        if self.cwd in (None, summary.cwd):
            return True
        if summary.cwd or not summary.is_damaged:
            return False
        # An unreadable item may also be the project's folder itself, or the folder above it.
        return (
            self.own_folder in (summary.file, os.path.dirname(summary.file))
            or os.path.dirname(self.own_folder) == summary.file
        )


def _list_with_subfolders(root: str, depth: int) -> list[str]:
    folders, level = [root], [root]
    for _ in range(depth):
        level = [folder for parent in level for folder in list_folders(parent) if folder != parent]
        folders += level
    return list(dict.fromkeys(folders))


def _read_line(reader: RangeReader, start: int) -> bytes:
    """Return the line at an offset with its newline, or as much of it as may come before a header."""
    for size in (1 << 13, PREAMBLE_LIMIT):
        line, newline, _ = reader.read(start, size).partition(b"\n")
        if newline:
            return line + newline
    return line


def _filter_regular(files: Iterable[SessionFile]) -> Iterator[SessionFile]:
    return (file for file in files if file.fault is None)


def _sort_newest_first(files: Iterable[SessionFile]) -> list[SessionFile]:
    # File times are coarse; names start with the time of creation.
    return sorted(files, key=attrgetter("mtime", "name", "path"), reverse=True)


def _build_copy_prefix(damaged: str) -> str:
    """Return what the names of repaired copies of a file start with; an id follows."""
    return f"{damaged.removesuffix(SESSION_SUFFIX)}.repaired_"
