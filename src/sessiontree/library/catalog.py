"""The catalog: create, open, find, list, search and fork sessions, wherever they live.

Sessions are in a folder of files by default, or in the repository that `SESSIONTREE_STORE` names. They are found by
location, id, part of an id or name, or as the most recent one of the current folder.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from operator import attrgetter
from typing import TYPE_CHECKING

from msgspec.structs import replace

from sessiontree.core.late_imports import load
from sessiontree.core.operation_plans import plan_fork
from sessiontree.core.timestamps import format_timestamp
from sessiontree.errors import (
    Ambiguous,
    InvalidOperation,
    LockTimeout,
    NotFound,
    ReadOnly,
    SessionTreeError,
    StoreError,
)
from sessiontree.format.codec import VERSION, write_header
from sessiontree.home import get_home
from sessiontree.library.folder_repository import get_sources
from sessiontree.library.locations import find_repository, is_address, open_folder, open_folder_of, open_repository
from sessiontree.library.repository import RECENT_ALIAS, Layout, Progress, Repository, SharedLock
from sessiontree.library.session_files import is_id_match, is_path, resolve_folder
from sessiontree.session import Place, Session, clean_name
from sessiontree.session.entry_builder import generate_id
from sessiontree.store.file_operations import make_private_directory
from sessiontree.store.jsonl import Durability
from sessiontree.store.lock import MAX_PAUSE, FileLock, get_wait_limit
from sessiontree.store.memory import MemoryStore

if TYPE_CHECKING:
    from sessiontree.core.tree import Tree
    from sessiontree.library.index.session_search import Hit
    from sessiontree.library.index.session_summary import SessionSummary
    from sessiontree.store.base import Cursor, Store

CREATION_LOCK = ".create.lock"
"""A file in a folder of sessions that is locked while a session is created unless its name exists."""


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
    """Create a session for the folder `cwd`: in the default place, in the folder or repository `dir`, or as `file`.

    Warns if another session there has the name, because `open` cannot choose between them.
    """
    if name is not None and file is None and _is_name_taken(name, dir):
        warnings.warn(
            f"another session is named {name!r}, so the name alone opens neither of them: use the id or the file."
            f" To continue the other one instead, write st.open({name!r}, create=True) in place of st.create",
            stacklevel=2,
        )
    return create_session(name, cwd=cwd, dir=dir, file=file, durability=durability)


def create_session(
    name: str | None = None,
    *,
    cwd: str | os.PathLike[str] = ".",
    dir: str | os.PathLike[str] | None = None,
    file: str | os.PathLike[str] | None = None,
    durability: Durability = "fsync",
) -> Session:
    """Create a session as `create` does, without looking for others of the same name."""
    where = resolve_folder(cwd)
    id = generate_session_id()
    return Session.create(build_store(id, where, dir, file, durability), id=id, cwd=where, name=name)


def memory(name: str | None = None, *, cwd: str = "") -> Session:
    """Create a session that lives only in memory."""
    return Session.create(MemoryStore(), id=generate_session_id(), cwd=cwd, name=name)


def open(
    session: str | os.PathLike[str],
    *,
    create: bool = False,
    read_only: bool = False,
    durability: Durability = "fsync",
) -> Session:
    """Open a session by path, id, part of an id, name, or address. Reading changes nothing.

    With `create=True`, a session that is not found is created: with this name, or as this file. If several processes
    do this at the same time, one creates the session and the others open it.
    """
    if not isinstance(session, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not check types
        raise InvalidOperation(f"open needs the path, name or id of a session, not {type(session).__name__}")
    if create and read_only:
        raise InvalidOperation("a session that is opened read-only cannot be created; omit read_only or create")
    try:
        location = _find_own(session) if create else find(session)
        return Session(
            get_store(location, durability),
            read_only="it was opened for reading" if read_only else None,
        )
    except Ambiguous:
        raise
    except NotFound:
        if not create:
            raise
    if is_path(session) and not is_address(session):
        return _open_or_create_file(os.fspath(session), durability)
    return _open_or_create_name(os.fspath(session), durability)


def _open_or_create_file(file: str, durability: Durability) -> Session:
    try:
        return create_session(file=file, durability=durability)
    except StoreError:
        if not os.path.lexists(file):
            raise
    return Session(get_store(file, durability))  # another process was first


def _open_or_create_name(session: str, durability: Durability) -> Session:
    repository, _ = find_repository(session)
    text = repository.get_id(session) if is_address(session) else session
    name = None if text == RECENT_ALIAS else clean_name(text)
    if name is not None and name != text:
        raise InvalidOperation(f"{text!r} cannot be the name of a session: a name has one line and no spaces around it")
    where = resolve_folder(".")
    with hold_creation_lock(repository, where, name or where):
        try:
            location = repository.find(session)
        except Ambiguous:
            raise
        except NotFound:
            address = session if is_address(session) else None
            return create_session(name, cwd=where, dir=address, durability=durability)
        return Session(repository.get_store(location, durability))


@contextmanager
def hold_creation_lock(repository: Repository, cwd: str, name: str) -> Generator[None]:
    """Hold a lock that everyone takes who creates a session of this name unless it exists."""
    lock = repository.open_shared_lock(repository.build_location("", cwd=cwd, timestamp=""), f"create {name}")
    if lock is not None:
        started = time.monotonic()
        while not lock.acquire():
            waited = time.monotonic() - started
            if waited >= get_wait_limit():
                raise LockTimeout(repository.location, waited)
            time.sleep(MAX_PAUSE)
        try:
            yield
        finally:
            lock.release()
    elif is_address(repository.location):  # it is in this process alone
        yield
    else:
        make_private_directory(repository.location)
        file_lock = FileLock(os.path.join(repository.location, CREATION_LOCK))
        try:
            with file_lock:
                yield
        finally:
            file_lock.close()


def _is_name_taken(name: str, dir: str | os.PathLike[str] | None) -> bool:
    """Return whether a session has this name. A failure is not reported: creating the session reports it better."""
    repository, clean = open_repository(dir), clean_name(name)
    if clean is None or clean == RECENT_ALIAS:
        return False
    with suppress(SessionTreeError):
        try:
            location = repository.find(clean)
        except Ambiguous as error:
            location = repository.find(error.candidates[0])
        except NotFound:
            return False
        # `find` also finds parts of ids.
        return Session(repository.get_store(location), read_only="it was opened for reading").name == clean
    return False


def create_near(session: Session, name: str | None = None, *, cwd: str | os.PathLike[str] = ".") -> Session:
    """Create a session where another one lives: in memory, in the same database, or in the default folder."""
    if session.address is None:
        return memory(name, cwd=session.cwd)
    return create_session(name, cwd=cwd, dir=session.address if is_address(session.address) else None)


def recent(cwd: str | os.PathLike[str] = ".") -> Session | None:
    """Open the session of the folder `cwd` that was continued last; `None` if there is none.

    Renaming or labeling a session does not make it the most recent one.
    """
    location = open_repository().find_recent(resolve_folder(cwd))
    return None if location is None else open(location)


def fork(
    session: Session,
    *,
    at: Place = "HEAD",
    whole: bool = False,
    name: str | None = None,
    dir: str | os.PathLike[str] | None = None,
    file: str | os.PathLike[str] | None = None,
    cwd: str | None = None,
) -> Session:
    """Create a session with the path to `at`, or with the whole tree. The source is not changed.

    `cwd` is the project folder of the new session; by default that of the source.
    """
    check_copyable(session, "a fork")
    from sessiontree.format.fork_lines import build_fork_parts, read_parts

    id, stamp = generate_session_id(), format_timestamp(time.time_ns() // 1_000_000)
    leaf = session.resolve_place(at)
    title = clean_name(name)
    header = write_header(
        id=id,
        timestamp=stamp,
        cwd=session.cwd if cwd is None else cwd,
        parent_session=get_session_location(session),
        forked_from=leaf,
        title=session.name if whole and not session.tree.has_been_named else None,
    )
    source_repository = None if session.address is None else find_repository(session.address)[0]
    if session.address is None and dir is None and file is None:
        store: Store = MemoryStore()
    else:
        if dir is None and file is None and is_address(session.address):
            dir = session.address  # stay in the same database
        elif dir is None and file is None and session.file is not None:
            dir = session.file.parent
        store = build_store(id, session.cwd, dir, file)
    parts = None
    if not whole:
        parts = build_fork_parts(plan_fork(session.tree, leaf), name=title, now=stamp, new_id=generate_id)
    shared = (
        source_repository is not None
        and not session.needs_migration
        and source_repository.share_lines(session.store, store, header, parts)
    )
    if not shared:
        store.create([header, *(session.iter_entry_lines() if parts is None else read_parts(parts))])
    forked = Session(store)
    if whole and title is not None:
        forked.rename(title)
    if whole and at != "HEAD":
        forked.switch(None if leaf is None else forked.tree[leaf])
    return forked


def check_copyable(session: Session, copy: str) -> None:
    """Raise `ReadOnly` if a copy would lose what the header records: a newer version, or that secrets were removed."""
    if session.header.version > VERSION:
        raise ReadOnly(
            session.location, f"it has version {session.header.version}; {copy} would have version {VERSION}"
        )
    if session.header.redacted:
        raise ReadOnly(session.location, f"it was redacted; {copy} would not be marked as redacted")


def get_session_location(session: Session) -> str | None:
    """Return the location of a session, valid from any folder; `None` if it is in memory."""
    address = session.address
    return address if address is None or is_address(address) else os.path.abspath(address)


def build_store(
    id: str,
    cwd: str,
    dir: str | os.PathLike[str] | None,
    file: str | os.PathLike[str] | None,
    durability: Durability = "fsync",
) -> Store:
    """Return the store for a new session. Nothing is created yet."""
    if file is not None:
        return open_folder_of(os.fspath(file)).get_store(os.fspath(file), durability)
    repository = open_repository(dir)
    stamp = format_timestamp(time.time_ns() // 1_000_000)
    return repository.get_store(repository.build_location(id, cwd=cwd, timestamp=stamp), durability)


def get_store(location: str, durability: Durability = "fsync") -> Store:
    """Return the store of the session at a location, as `find` returns it."""
    repository = _open_address_or_folder(location)
    return repository.get_store(location, durability)


def get_session_id(location: str) -> str:
    """Return the session id that a location contains. Nothing is opened."""
    return _open_address_or_folder(location).get_id(location)


def has_session(location: str) -> bool:
    """Return whether a session may still be at this location. A file is checked; a database is not queried."""
    return _open_address_or_folder(location).exists(location)


def check_size(location: str) -> None:
    """Raise `StoreError` if opening the session would take too much memory."""
    _open_address_or_folder(location).check_size(location)


def normalize_location(location: str) -> str:
    """Return the canonical form of a location."""
    return location if is_address(location) else os.path.realpath(location)


def build_worker_location(session: Session) -> str:
    """Return the name that workers on other machines open a session by. They may use another address of the database.

    Raises `InvalidOperation` for a session in memory.
    """
    location = get_session_location(session)
    if location is None:
        raise InvalidOperation("a worker cannot open a session in memory: use a file or a database")
    if is_address(location) and open_repository().location == open_repository(location).location:
        return session.id
    return location


def open_shared_lock(location: str, name: str) -> SharedLock | None:
    """Return a lock for work on a session that holds across machines; `None` if a lock file is enough."""
    return _open_address_or_folder(location).open_shared_lock(location, name)


def may_contain(location: str, text: bytes) -> bool:
    """Return whether a session may contain these bytes. A cheap test that can return false positives."""
    return _open_address_or_folder(location).may_contain(location, text)


def check_reachable(*places: str) -> None:
    """Check that the repositories among these places can be reached. Raises `StoreError`."""
    for place in places:
        if is_address(place):
            open_repository(place).check_reachable()


def check_store_reachable() -> None:
    """Check that the place where new sessions go can be reached. Raises `StoreError`."""
    open_repository().check_reachable()


def _open_address_or_folder(location: str) -> Repository:
    return open_repository(location) if is_address(location) else open_folder_of(location)


# Finding


def list_locations(repository: str | None = None) -> Iterator[str]:
    """Yield the location of every session, archived ones too, most recently written first."""
    for stored in open_repository(repository).list_stored():
        yield stored.location


def is_container(place: str) -> bool:
    """Return whether this place, as `locate` returns it, is a folder or a repository and not one session."""
    return "#" not in place if is_address(place) else os.path.isdir(place)


def locate(place: str) -> str:
    """Return the location of a session, or the folder or repository itself.

    Raises `NotFound`, and `Ambiguous` if a word names both a session and a folder.
    """
    if place == RECENT_ALIAS or not is_container(place):
        return find(place)
    if is_address(place) or is_path(place) or place in (os.curdir, os.pardir):
        return place
    try:
        sessions = [find(place)]
    except Ambiguous as error:
        sessions = error.candidates
    except (NotFound, StoreError):  # a folder needs no database
        return place
    raise Ambiguous("session or folder", place, [os.path.join(os.curdir, place), *sessions])


def find(session: str | os.PathLike[str]) -> str:
    """Return the location of a session. Raises `NotFound` or `Ambiguous`.

    A session of a program that `sources.show` of the configuration names is found by its id too.
    """
    try:
        return _find_own(session)
    except Ambiguous:
        raise
    except NotFound:
        found = None if is_path(session) or is_address(session) else find_in_sources(os.fspath(session))
        if found is None:
            raise
        return found


def _find_own(session: str | os.PathLike[str]) -> str:
    repository, name = find_repository(session)
    if isinstance(session, os.PathLike) and not os.path.lexists(session):
        raise NotFound("session file", name)
    return repository.find(name)


def find_in_sources(id: str) -> str | None:
    """Return the session of a shown program with this id, or with an id that starts or ends like this."""
    if id == RECENT_ALIAS:
        return None
    listed = [summary for program in _get_shown_sources() for summary in sessions(all=True, source=program)]
    meant = [one for one in listed if one.id == id] or [one for one in listed if is_id_match(id, one.id)]
    if len(meant) > 1:
        raise Ambiguous("session", id, [one.file for one in meant])
    return meant[0].file if meant else None


def find_ambiguous(sessions: Iterable[tuple[str, str]], *, in_trash: bool = False) -> set[str]:
    """Return the locations among these pairs of id and location whose id a copy shares, so `find` is ambiguous."""
    return open_repository().find_ambiguous(sessions, in_trash=in_trash)


# Listing and searching


def sessions(
    cwd: str | os.PathLike[str] | None = None,
    *,
    all: bool = False,
    archived: bool = False,
    source: str | None = None,
    dir: str | os.PathLike[str] | None = None,
    others: bool = False,
    progress: Progress | None = None,
) -> list[SessionSummary]:
    """List the sessions of the folder `cwd`, by default the current one, or of all folders, newest first.

    `archived` lists the archived ones instead. `source` is another program, such as `"pi"` or `"claude"`, for its
    sessions; `dir` lists the files in any folder, and with `all` in its subfolders too. With `others`, the sessions of
    the programs that the configuration names are listed with your own. Sessions that cannot be read are listed with
    the reason.
    """
    scope = _get_scope(cwd, all, dir)
    listed = _open_listed(source, dir, all).list_sessions(scope, archived=archived, progress=progress)
    if not others or source is not None or dir is not None or archived:
        return listed
    for program in _get_shown_sources():
        found = _open_listed(program, None, all).list_sessions(scope, progress=progress)
        listed += [replace(summary, source=program) for summary in found]
    return sorted(listed, key=attrgetter("modified"), reverse=True)


def _get_shown_sources() -> tuple[str, ...]:
    """Return the programs whose sessions are listed with our own. Raises `ConfigError`."""
    from sessiontree.config import load_config

    return load_config().sources.show


def search(
    query: str,
    *,
    cwd: str | os.PathLike[str] | None = None,
    all: bool = False,
    source: str | None = None,
    dir: str | os.PathLike[str] | None = None,
    others: bool = False,
    limit: int = 50,
    only: Callable[[SessionSummary], bool] | None = None,
    on_unreadable: Callable[[str], None] | None = None,
    progress: Progress | None = None,
) -> list[Hit]:
    """Return the newest entries that match the query, in all branches of the sessions that `sessions` lists.

    Archived sessions are searched too, and `only` chooses among all, your own first. `on_unreadable` is called with
    each location that could not be read. See `docs/catalog.md` for the query language.
    """
    from sessiontree.core.query import parse_query

    if not isinstance(query, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not check types
        raise InvalidOperation(f'a query is text such as "cache role:user", not {type(query).__name__}')
    parsed = parse_query(query, now=time.time_ns() // 1_000_000)
    places = [source]
    if others and source is None and dir is None:
        places += _get_shown_sources()
    hits: list[Hit] = []
    for place in places:
        chosen = None if only is None else _choose_with_source(only, place)
        hits += _open_listed(place, dir, all).search(
            parsed,
            cwd=_get_scope(cwd, all, dir),
            limit=max(1, limit),
            only=chosen,
            on_unreadable=on_unreadable,
            progress=progress,
        )
    return hits if len(places) == 1 else sorted(hits, key=attrgetter("timestamp"), reverse=True)[: max(1, limit)]


def _choose_with_source(only: Callable[[SessionSummary], bool], source: str | None) -> Callable[[SessionSummary], bool]:
    return lambda summary: only(replace(summary, source=source))


def find_matching_sessions(
    query: str, *, cwd: str | os.PathLike[str] | None = None, all: bool = False, progress: Progress | None = None
) -> list[str]:
    """Return the locations of the sessions in which `search` would find something, at less cost."""
    from sessiontree.core.query import parse_query

    return open_repository().find_matching_sessions(
        parse_query(query, now=time.time_ns() // 1_000_000), cwd=_get_scope(cwd, all, None), progress=progress
    )


def _open_listed(source: str | None, dir: str | os.PathLike[str] | None, all: bool) -> Repository:
    """Return the repository that a listing is about."""
    if dir is not None and is_address(os.fspath(dir)):
        return open_repository(dir)
    if dir is not None:
        root = resolve_folder(dir)
        if not os.path.isdir(root):
            raise NotFound("folder", os.fspath(dir))
        return open_folder(root, "tree" if all else "folder")
    if source is None:
        return open_repository()
    sources = get_sources()
    if source not in sources:
        raise InvalidOperation(f"source {source!r} not found; sources: {', '.join(sources)}")
    layouts: dict[str, Layout] = {"codex": "deep", "gemini": "deep", "opencode": "database"}
    return open_folder(os.path.abspath(sources[source]), layouts.get(source, "tree"))


def _get_scope(cwd: str | os.PathLike[str] | None, all: bool, dir: str | os.PathLike[str] | None) -> str | None:
    """Return the project to list; `None` for all. An explicit folder of files is listed completely."""
    if all or (dir is not None and not is_address(os.fspath(dir))):
        return None
    return os.fspath(cwd or ".")


# Archiving and deleting


def archive(session: str | os.PathLike[str], *, archived: bool = True) -> str:
    """Hide a session from listings, or show it again. Nothing in it changes. Returns its location."""
    repository, name = _find_own_repository(session)
    return repository.archive(name, archived=archived)


def delete(session: str | os.PathLike[str]) -> str:
    """Move a session to the trash. Returns its location there."""
    repository, name = _find_own_repository(session)
    return repository.delete(name)


def restore(session: str | os.PathLike[str]) -> str:
    """Move a session from the trash back to where it was. Returns its location."""
    repository, name = _find_own_repository(session)
    return repository.restore(name)


def resolve_session(session: str | os.PathLike[str], *, in_trash: bool = False) -> str:
    """Return the location that the other functions here would act on. Prefers the trash with `in_trash`."""
    repository, name = _find_own_repository(session)
    return repository.resolve(name, in_trash=in_trash)


def purge(session: str | os.PathLike[str], *, at: Cursor | None = None) -> str:
    """Remove a session for good, from the trash or from where it lives. Returns its former location.

    The snapshots of its files are deleted too, unless a copy or a fork of the session may name them. Raises `Conflict`
    if the session does not end at `at`: another process has written to it since.
    """
    repository, name = _find_own_repository(session)
    owner = _find_snapshot_owner(repository.resolve(name, in_trash=True))
    location = repository.purge(name, at=at)
    if owner is not None and not _has_relatives(owner):
        try:
            load("forget_files")(owner)
        except SessionTreeError as error:
            warnings.warn(f"the snapshots of {owner} could not be deleted: {error}", stacklevel=2)
    return location


def _find_snapshot_owner(location: str) -> str | None:
    """Return the id of a session if snapshots of files exist at all; `None` if there is nothing to delete."""
    if not os.path.isdir(os.path.join(get_home(), "files")):
        return None
    with suppress(SessionTreeError, OSError):
        return open(location, read_only=True).id
    return None


def _has_relatives(id: str) -> bool:
    """Return whether a copy or a fork of a session is left, also in the archive and in the trash."""
    listed = [*sessions(all=True), *sessions(all=True, archived=True), *list_trash()]
    parents = [summary.parent_session for summary in listed if summary.parent_session is not None]
    return any(summary.id == id for summary in listed) or any(id in parent for parent in parents)


def purge_unused(session: Session, is_unused: Callable[[Tree], bool]) -> bool:
    """Remove a session for good if nothing useful was written to it. A damaged session is kept.

    Returns whether it is gone.
    """
    end = session.store.read_end().cursor
    session.refresh()
    if not is_unused(session.tree) or session.problems:
        return False
    repository, name = _find_own_repository(session.location)
    repository.purge(name, at=end)
    return True


def list_trash() -> list[SessionSummary]:
    """Summarize the deleted sessions, newest first."""
    return open_repository().list_trash()


def _find_own_repository(session: str | os.PathLike[str]) -> tuple[Repository, str]:
    """Like `find_repository`, but a bare word never means a file in the current folder."""
    if is_path(session) or is_address(os.fspath(session)):
        return find_repository(session)
    return open_repository(), os.fspath(session)
