"""The catalog: where sessions live, and how they are made, found, listed and searched.

Sessions live in `$SESSIONTREE_HOME/sessions/<encoded cwd>/`, by default under `~/.sessiontree`, or where
the configuration says; or in the database that `SESSIONTREE_STORE` names. They are found by path, by id or the
beginning of one, by name, or as the most recent one here.
The folders of pi and oh-my-pi are listed and searched when asked, and never written to. What makes
listing and searching fast is in `index`; archiving and deleting are in `shelf`, repairs in `repairing`.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from sessiontree.core.plan import plan_fork
from sessiontree.core.sanitize import replace_unencodable
from sessiontree.core.timestamps import format_timestamp
from sessiontree.errors import (
    Ambiguous,
    InvalidOperation,
    NotFound,
    ReadOnly,
    SessionTreeError,
    StoreError,
    isolate_errors,
)
from sessiontree.format.codec import VERSION, write_header
from sessiontree.format.session_reader import PREAMBLE_LIMIT, SessionReader
from sessiontree.home import CONFIG_NAME, get_home
from sessiontree.library.recent import find_most_recent
from sessiontree.library.session_files import (
    SESSION_SUFFIX,
    SessionFile,
    is_id_match,
    list_folders,
    list_session_files,
    parse_session_id,
    pause_gc,
    resolve_folder,
)
from sessiontree.session import Place, Session, clean_name
from sessiontree.session.writer import generate_id
from sessiontree.store.base import Store
from sessiontree.store.files import open_nonblocking
from sessiontree.store.jsonl import Durability, JsonlStore
from sessiontree.store.memory import MemoryStore
from sessiontree.store.postgres.address import get_default_address, is_database_address, parse_address

if TYPE_CHECKING:
    from sessiontree.core.entries import Entry, Header
    from sessiontree.library.index.listing import Progress
    from sessiontree.library.index.session_search import Hit
    from sessiontree.library.index.session_summary import SessionSummary
    from sessiontree.library.index.sqlite import IndexDatabase
    from sessiontree.library.postgres_repository import PostgresRepository
    from sessiontree.store.postgres.store import PostgresStore

T = TypeVar("T")

RECENT_ALIAS = "@"
"""Stands for the most recent session of this folder."""
_UUID_PATTERN = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""The ids that we and most others make."""


def get_sessions_folder() -> str:
    """Where sessions live. Raises `ConfigError` when the configuration cannot be understood."""
    if os.path.lexists(os.path.join(get_home(), CONFIG_NAME)):
        from sessiontree.config import load

        folder = load().sessions
        if folder is not None:
            return folder
    return os.path.join(get_home(), "sessions")


def encode_folder_name(cwd: str) -> str:
    """The name of the folder for sessions of `cwd`, which a header may say to be anything."""
    try:
        os.fsencode(cwd)
    except UnicodeEncodeError:
        cwd = replace_unencodable(cwd)
    flat = cwd.removeprefix("/").translate(str.maketrans({"/": "-", "\\": "-", ":": "-", "\0": "-"}))
    if len(os.fsencode(flat)) > 200:
        import hashlib

        flat = f"{flat[:58]}-{hashlib.sha256(os.fsencode(cwd)).hexdigest()[:16]}"  # at most 249 bytes
    return f"--{flat}--"


def generate_session_id() -> str:
    import uuid_utils

    return str(uuid_utils.uuid7())


def create(
    name: str | None = None,
    *,
    cwd: str | os.PathLike[str] = ".",
    dir: str | os.PathLike[str] | None = None,
    file: str | os.PathLike[str] | None = None,
    durability: Durability = "fsync",
) -> Session:
    """A new session for the folder `cwd`, in its place under the home, in `dir`, or as `file`.

    In the database instead, where `SESSIONTREE_STORE` names one, or `dir` is the address of one.
    """
    where = resolve_folder(cwd)
    id = generate_session_id()
    return Session.create(build_store(id, where, dir, file, durability), id=id, cwd=where, name=name)


def memory(name: str | None = None, *, cwd: str = "") -> Session:
    """A new session that lives in memory alone."""
    return Session.create(MemoryStore(), id=generate_session_id(), cwd=cwd, name=name)


def open(session: str | os.PathLike[str], *, read_only: bool = False, durability: Durability = "fsync") -> Session:
    """Open a session by path, id, the beginning of an id, name, or address. Reading changes nothing."""
    return Session(get_store(find(session), durability), read_only="it was opened for reading" if read_only else None)


def recent(cwd: str | os.PathLike[str] = ".") -> Session | None:
    """The session of the folder `cwd` in which somebody went on last; `None` when there is none.

    Renaming or labeling a session does not make it the most recent one.
    """
    where = resolve_folder(cwd)
    database = get_postgres_repository()
    if database is not None:
        id = database.find_recent(where)
        return None if id is None else open(database.address.format_session_address(id))
    file = _find_recent_file(where)
    return None if file is None else open(file)


def fork(
    session: Session,
    *,
    at: Place = "HEAD",
    whole: bool = False,
    name: str | None = None,
    dir: str | os.PathLike[str] | None = None,
    file: str | os.PathLike[str] | None = None,
) -> Session:
    """A new session with the path to `at`, or with the whole tree. The source is not touched."""
    check_copyable(session, "a fork")
    from sessiontree.format.fork_lines import build_fork_parts, read_parts

    id, stamp = generate_session_id(), format_timestamp(time.time_ns() // 1_000_000)
    leaf = session.resolve_place(at)
    title = clean_name(name)
    header = write_header(
        id=id,
        timestamp=stamp,
        cwd=session.cwd,
        parent_session=get_session_path(session),
        forked_from=leaf,
        title=session.name if whole and not session.tree.has_been_named else None,
    )
    if dir is None and file is None and is_database_address(session.location):
        dir = session.location
    if session.file is None and dir is None and file is None:
        store = MemoryStore()
    else:
        store = build_store(id, session.cwd, dir, file)
    parts = None
    if not whole:
        plan = plan_fork(session.tree, leaf)
        parts = build_fork_parts(plan, name=title, now=stamp, new_id=generate_id)
    if not _try_share_lines(session, store, header, parts):
        store.create([header, *(session.iter_entry_lines() if parts is None else read_parts(parts))])
    forked = Session(store)
    if whole and title is not None:
        forked.rename(title)
    if whole and at != "HEAD":
        forked.switch(None if leaf is None else forked.tree[leaf])
    return forked


def check_copyable(session: Session, copy: str) -> None:
    """Refuse to copy entries under a header of ours that would say less of them than the one they have."""
    if session.header.version > VERSION:
        raise ReadOnly(session.location, f"it is of version {session.header.version}, and {copy} would not be")
    if session.header.redacted:
        raise ReadOnly(session.location, f"it was redacted when it was exported, and {copy} would not say so")


def _try_share_lines(session: Session, store: Store, header: bytes, parts: Sequence[Entry | bytes] | None) -> bool:
    """Make a fork that has its lines by reference, all of them or these parts; whether that can be."""
    if session.needs_migration or not (is_database_address(store.location) and is_database_address(session.location)):
        return False
    from sessiontree.store.postgres.shared_lines import create_shared_fork

    return create_shared_fork(session.store, store, header, parts)


def get_session_path(session: Session) -> str | None:
    """Where it is, from anywhere; `None` when it is in memory."""
    if is_database_address(session.location):
        return session.location
    return None if session.file is None else str(session.file.absolute())


def build_store(
    id: str,
    cwd: str,
    dir: str | os.PathLike[str] | None,
    file: str | os.PathLike[str] | None,
    durability: Durability = "fsync",
) -> Store:
    """Where a new session goes."""
    database = get_postgres_repository(dir) if file is None and (dir is None or is_database_address(dir)) else None
    if database is not None:
        return database.get_store(id)
    return JsonlStore(_build_file_path(id, cwd, dir, file), durability=durability)


def get_postgres_repository(where: object = None) -> PostgresRepository | None:
    """The database that sessions are in: that of an address, or else the one that `SESSIONTREE_STORE` names."""
    address = parse_address(where) if is_database_address(where) else get_default_address()
    if address is None:
        return None
    from sessiontree.library.postgres_repository import PostgresRepository

    return PostgresRepository(address)


def list_addresses(database: str) -> list[str]:
    """The addresses of all sessions of a database, archived ones too, newest first."""
    found = get_postgres_repository(database)
    return [] if found is None else [found.address.format_session_address(id) for id in found.list_ids()]


def check_reachable(*places: str) -> None:
    """See that the databases among these places can be reached. Raises `StoreError`."""
    for place in places:
        if is_database_address(place):
            from sessiontree.store.postgres.connection import get_database

            get_database(parse_address(place)).run(lambda connection: None)


def get_store(place: str, durability: Durability = "fsync") -> JsonlStore | PostgresStore:
    """The store of the session at a path or an address, as `find` gives it."""
    if not is_database_address(place):
        return JsonlStore(place, durability=durability)
    from sessiontree.store.postgres.store import PostgresStore

    return PostgresStore(place)


def _build_file_path(id: str, cwd: str, dir: str | os.PathLike[str] | None, file: str | os.PathLike[str] | None) -> str:
    if file is not None:
        return os.fspath(file)
    stamp = format_timestamp(time.time_ns() // 1_000_000).replace(":", "-").replace(".", "-")
    folder = os.path.join(get_sessions_folder(), encode_folder_name(cwd)) if dir is None else os.fspath(dir)
    return os.path.join(folder, f"{stamp}_{id}{SESSION_SUFFIX}")


# Finding


def iter_session_paths() -> Iterator[str]:
    """Every session file under the home, archived ones too, the one written to last first; or every address."""
    database = get_postgres_repository()
    if database is not None:
        yield from map(database.address.format_session_address, database.list_ids())
        return
    for file in _sort_newest_first(_filter_regular(_list_files_below(get_sessions_folder()))):
        yield file.path


def is_container(place: str) -> bool:
    """Whether this place, as `locate` gives it, is a folder or a database, where sessions are, and not one session."""
    return parse_address(place).session is None if is_database_address(place) else os.path.isdir(place)


def locate(place: str) -> str:
    """The file or address of the session that is meant, or else the folder or database.

    Raises `NotFound`, and `Ambiguous` where a word is both a session and a folder here.
    """
    if place == RECENT_ALIAS or not is_container(place):
        return find(place)
    if is_database_address(place) or is_path(place) or place in (os.curdir, os.pardir):
        return place
    try:
        sessions = [find(place)]
    except Ambiguous as error:
        sessions = error.candidates
    except (NotFound, StoreError):  # a folder needs no database
        return place
    raise Ambiguous("session or folder", place, [os.path.join(os.curdir, place), *sessions])


def find(session: str | os.PathLike[str]) -> str:
    """The file of a session, or its address. Raises `NotFound` or `Ambiguous`."""
    text = os.fspath(session)
    if is_database_address(text):
        found = get_postgres_repository(text)
        assert found is not None
        return found.address.format_session_address(found.find(parse_address(text).session_name))
    if text == RECENT_ALIAS and (database := get_postgres_repository()) is not None:
        return database.address.format_session_address(database.find(text))
    if text == RECENT_ALIAS:
        file = _find_recent_file(resolve_folder("."))
        if file is None:
            hint = "this folder has none, or archived ones only, which `sessiontree ls --archived` shows"
            raise NotFound("session", RECENT_ALIAS, hint)
        return file
    if is_file(session):
        return text
    if not is_path(session) and (database := get_postgres_repository()) is not None:
        return database.address.format_session_address(database.find(text))
    found = None if isinstance(session, os.PathLike) else pick(text, _list_files_below(get_sessions_folder()))
    if found is None and is_path(session):
        raise NotFound("session file", text)
    if found is None:
        what = "it is a folder; a session" if os.path.isdir(text) else "a session"
        raise NotFound("session", text, f"{what} is a path, an id, a name, or @ for the most recent here")
    return found


def is_path(session: str | os.PathLike[str]) -> bool:
    """Whether it looks like a path, and not like an id or a name."""
    text = os.fspath(session)
    return isinstance(session, os.PathLike) or text.endswith(SESSION_SUFFIX) or os.sep in text


def is_file(session: str | os.PathLike[str]) -> bool:
    """Whether it is the path of something that is there."""
    return os.path.lexists(session) and (is_path(session) or os.path.isfile(session))


def pick(text: str, files: Sequence[SessionFile]) -> str | None:
    """The one of these files whose session has this id, or else this name, or else an id that begins or ends so.

    Raises `Ambiguous`. `text` is only compared, never made part of a path.
    """
    if not text:
        raise InvalidOperation("a session needs a path, an id or a name")
    files = _sort_newest_first(_filter_regular(files))
    matches: list[tuple[str, str]] = []
    if "-" in text:  # part of an id like ours, as next to no name is: these are found without the index
        matches = [(id, path) for id, path in _iter_ids(files) if is_id_match(text, id) and _UUID_PATTERN.fullmatch(id)]
    if not matches:
        listed = load_summaries(files, wait_for_lock=False)
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


def find_ambiguous(sessions: Iterable[tuple[str, str]], among: Iterable[SessionFile] | None = None) -> set[str]:
    """Which of these files, given with the ids of their sessions, are not what `find` takes their ids for.

    There may be copies, which no listing shows; `among` are the files to look for them, by default all in the catalog.
    """
    if get_postgres_repository() is not None:
        return set()
    files_of: dict[str, list[str]] = {}
    for id, path in _iter_ids(_filter_regular(_list_files_below(get_sessions_folder()) if among is None else among)):
        files_of.setdefault(id, []).append(path)
    return {path for id, path in sessions if files_of.get(id) != [path]}


def _iter_ids(files: Iterable[SessionFile]) -> Iterator[tuple[str, str]]:
    """The id of each session, with its file: one called after an id like ours has that id; of others the header tells.

    So hardly any file is looked into, whose number may be thousands.
    """
    for file in files:
        id = parse_session_id(file.path)
        if not _UUID_PATTERN.fullmatch(id):
            header = _read_header(file.path)
            id = replace_unencodable(id if header is None else header.id)
        yield id, file.path


def _list_files_below(root: str) -> list[SessionFile]:
    return [file for folder in list_folders(root) for file in list_session_files(folder, hidden=False)]


def _filter_regular(files: Iterable[SessionFile]) -> Iterator[SessionFile]:
    return (file for file in files if file.fault is None)


def _sort_newest_first(files: Iterable[SessionFile]) -> list[SessionFile]:
    # The clock of files is coarse; their names begin with the time they were made.
    return sorted(files, key=attrgetter("mtime", "name", "path"), reverse=True)


def _find_recent_file(cwd: str) -> str | None:
    files = _sort_newest_first(
        _filter_regular(list_session_files(os.path.join(get_sessions_folder(), encode_folder_name(cwd)), hidden=False))
    )
    here = ((file.path, file.mtime) for file in files if not file.archived and read_cwd(file.path) == cwd)
    return find_most_recent(here, JsonlStore)


def read_cwd(path: str) -> str | None:
    """The folder in a file's header: two folders may share one name in the catalog."""
    header = _read_header(path)
    return None if header is None else header.cwd


def _read_header(path: str) -> Header | None:
    reader = SessionReader(path)
    try:
        fd = open_nonblocking(path, os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(fd, "rb") as file, isolate_errors(path):
            while not reader.has_header and (raw := file.readline(PREAMBLE_LIMIT)):
                reader.feed(raw)
            return reader.header
    except (OSError, SessionTreeError):
        return None


# Listing and searching


def get_sources() -> dict[str, str]:
    """Where other programs keep their sessions; nothing is ever written there."""
    pi = os.environ.get("PI_CODING_AGENT_DIR") or "~/.pi/agent"
    own = os.environ.get("PI_CODING_AGENT_SESSION_DIR")
    return {
        "pi": os.path.expanduser(own or os.path.join(pi, "sessions")),
        "omp": os.path.expanduser("~/.omp/agent/sessions"),
    }


class _ListingScope(Struct, frozen=True):
    """Where to look for sessions."""

    paths: list[str]
    root: str | None = None
    """All folders below it are among `paths`."""
    cwd: str | None = None
    """Only sessions of this folder count."""
    own_folder: str = ""
    """Where the sessions of `cwd` are put: files there that do not tell their folder count too."""

    def contains(self, summary: SessionSummary) -> bool:
        if self.cwd in (None, summary.cwd):
            return True
        if summary.cwd or not summary.is_damaged:
            return False
        # What cannot be looked into may also be that place itself, or the folder that it is in.
        return (
            self.own_folder in (summary.file, os.path.dirname(summary.file))
            or os.path.dirname(self.own_folder) == summary.file
        )


def _build_scope(
    cwd: str | os.PathLike[str] | None, all: bool, source: str | None, dir: str | os.PathLike[str] | None
) -> _ListingScope:
    if dir is not None:
        root = resolve_folder(dir)
        if not os.path.isdir(root):
            raise NotFound("folder", os.fspath(dir))
        return _ListingScope(_list_with_subfolders(root), root) if all else _ListingScope([root])
    here = None if all else resolve_folder(cwd or ".")
    where = None if here is None else replace_unencodable(here)
    if source is not None:
        if source not in get_sources():
            raise InvalidOperation(f"no source {source!r}: choose one of {', '.join(get_sources())}")
        root = os.path.abspath(get_sources()[source])
        return _ListingScope(
            _list_with_subfolders(root),
            root,
            where,
            "" if here is None else os.path.join(root, encode_folder_name(here)),
        )
    root = get_sessions_folder()
    if here is None:
        return _ListingScope(list_folders(root), root)
    own = os.path.join(root, encode_folder_name(here))
    return _ListingScope([own], None, where, own)


def _list_with_subfolders(root: str) -> list[str]:
    return list(dict.fromkeys([root, *list_folders(root)]))


def _get_listed_repository(source: str | None, dir: str | os.PathLike[str] | None) -> PostgresRepository | None:
    """The database whose sessions are wanted; `None` where files are."""
    return get_postgres_repository(dir) if source is None and (dir is None or is_database_address(dir)) else None


def sessions(
    cwd: str | os.PathLike[str] | None = None,
    *,
    all: bool = False,
    archived: bool = False,
    source: str | None = None,
    dir: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> list[SessionSummary]:
    """The sessions of the folder `cwd`, this one by default, or of all, newest first.

    `archived` gives the archived ones instead. `source` is `"pi"` or `"omp"`, for the sessions of those
    programs; `dir` lists the files in any folder, and with `all` in the folders right below it. What
    cannot be read is in the list too, and says why.
    """
    database = _get_listed_repository(source, dir)
    if database is not None:
        return database.list_sessions(None if all else os.fspath(cwd or "."), archived=archived)
    there = _build_scope(cwd, all, source, dir)
    with pause_gc():
        found = _sort_newest_first(file for folder in there.paths for file in list_session_files(folder, hidden=False))
        listed = load_summaries(found, there.paths, root=there.root, progress=progress)
        return [summary for summary in listed if summary.archived == archived and there.contains(summary)]


def search(
    query: str,
    *,
    cwd: str | os.PathLike[str] | None = None,
    all: bool = False,
    source: str | None = None,
    dir: str | os.PathLike[str] | None = None,
    limit: int = 50,
    only: Callable[[SessionSummary], bool] | None = None,
    on_unreadable: Callable[[str], None] | None = None,
    progress: Progress | None = None,
) -> list[Hit]:
    """The newest entries that the query matches, in all branches of the sessions that `sessions` gives.

    Archived sessions are searched too, and `only` chooses among all. `unread` is called with each file that could not
    be read. See `docs/catalog.md` for what a query may say.
    """
    from sessiontree.core.query import parse_query
    from sessiontree.library.index.session_search import search_sessions as search_files

    wanted = parse_query(query, now=time.time_ns() // 1_000_000)
    database = _get_listed_repository(source, dir)
    if database is not None:
        return database.search(wanted, cwd=None if all else os.fspath(cwd or "."), only=only, limit=max(1, limit))

    def work(db: IndexDatabase, listed: list[SessionSummary]) -> list[Hit]:
        listed = [summary for summary in listed if only is None or only(summary)]
        if on_unreadable is not None:
            for path in [summary.file for summary in listed if summary.branch is None]:
                on_unreadable(path)
        return search_files(db, listed, wanted, limit=max(1, limit), progress=progress)

    return _run_on_summaries(_build_scope(cwd, all, source, dir), progress, work)


def find_matching_sessions(
    query: str, *, cwd: str | os.PathLike[str] | None = None, all: bool = False, progress: Progress | None = None
) -> list[str]:
    """The files, or addresses, of all sessions of the folder `cwd`, or of all, in which `search` would find something.

    This is cheaper than a search: no more is read of a session when something is found in it.
    """
    from sessiontree.core.query import parse_query
    from sessiontree.library.index.session_search import find_matching_files

    wanted = parse_query(query, now=time.time_ns() // 1_000_000)
    database = get_postgres_repository()
    if database is not None:
        return database.find_matching_sessions(wanted, cwd=None if all else os.fspath(cwd or "."))
    there = _build_scope(cwd, all, None, None)
    return _run_on_summaries(
        there, progress, lambda db, listed: find_matching_files(db, listed, wanted, progress=progress)
    )


def _run_on_summaries(
    there: _ListingScope, progress: Progress | None, work: Callable[[IndexDatabase, list[SessionSummary]], list[T]]
) -> list[T]:
    """What `work` finds in the sessions there, with the summaries of them all."""
    from sessiontree.library.index.listing import list_summaries
    from sessiontree.library.index.sqlite import run_with_index

    found = [file for folder in there.paths for file in list_session_files(folder, hidden=False)]

    def run(db: IndexDatabase) -> list[T]:
        with pause_gc():
            listed = list_summaries(db, found, there.paths, root=there.root, progress=progress)
            return work(db, [summary for summary in listed if there.contains(summary)])

    return run_with_index(get_home(), run) if found else []


def load_summaries(
    files: Sequence[SessionFile],
    folders: Iterable[str] | None = None,
    *,
    root: str | None = None,
    progress: Progress | None = None,
    wait_for_lock: bool = True,
) -> list[SessionSummary]:
    """A summary of each of these files, in the same order, by way of the index.

    Unless it `waits`, what is new in them is not kept there while others write to it.
    """
    from sessiontree.library.index.listing import list_summaries
    from sessiontree.library.index.sqlite import run_with_index

    if not files:
        return []
    folders = {os.path.dirname(file.path) for file in files} if folders is None else folders
    return run_with_index(
        get_home(),
        lambda db: list_summaries(db, files, folders, root=root, progress=progress),
        wait_for_lock=wait_for_lock,
    )
