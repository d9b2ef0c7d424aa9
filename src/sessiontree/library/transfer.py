"""Transfer: copy sessions between files, folders and databases, byte for byte, and compare both sides.

A session is copied in parts, and after each part the copy is a session that can be read. If a copy is interrupted, the
next one resumes it: it compares the existing lines and appends the rest. If the target is not a prefix of the
source, or another process writes to it, the target is left alone and the result says so. Damage is copied unchanged,
an unfinished last line too. An incomplete batch is not copied, because the copy would not be recognized as incomplete.

The target of a session is found by its id, or by its file name if several files have the same id. A copy gets the
modification time of its source, so the most recent session is the same on both sides.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from operator import attrgetter
from typing import Literal, TypeAlias

from msgspec import Struct

from sessiontree.core.entries import JsonObject
from sessiontree.errors import InvalidOperation, NotFound, SessionTreeError, StoreError
from sessiontree.format.session_reader import is_complete_line
from sessiontree.library import catalog
from sessiontree.library.folder_repository import encode_folder_name
from sessiontree.library.locations import is_address, open_repository
from sessiontree.library.repository import Progress, StoredSession
from sessiontree.library.session_files import (
    SESSION_SUFFIX,
    get_sessions_folder,
    list_folders,
    list_session_files,
    parse_session_id,
)
from sessiontree.store.base import LineChunk, Store
from sessiontree.store.postgres.rows import filter_storable, read_preamble

PART_SIZE = 1 << 20
"""How many bytes are copied at a time."""

CountBytes: TypeAlias = Callable[[int], None]
"""Called with the number of bytes that were done since the last call."""
TransferState: TypeAlias = Literal["copied", "resumed", "same", "different", "missing", "extra", "failed"]


class TransferResult(Struct, frozen=True, kw_only=True):
    """The result for one session."""

    session: str
    """Its id."""
    source: str | None
    target: str | None
    state: TransferState
    bytes: int = 0
    """How many bytes were written, or are equal on both sides."""
    reason: str | None = None

    @property
    def is_ok(self) -> bool:
        return self.state in ("copied", "resumed", "same")


def copy(source: str, target: str, *, progress: Progress | None = None) -> Iterator[TransferResult]:
    """Copy one session, or all sessions of a folder or database, to a file, a folder or a database.

    Yields a result for each session when it is done. Raises `NotFound` or `InvalidOperation` before anything is
    written, and `StoreError` when a database cannot be reached.
    """
    catalog.check_reachable(source, target)
    source = catalog.locate(source)
    yield from _run_each(_list_places(source), source, target, progress, _copy_session)


def verify(source: str, target: str, *, progress: Progress | None = None) -> Iterator[TransferResult]:
    """Compare every session of one side with its copy on the other, byte for byte. Raises what `copy` raises."""
    catalog.check_reachable(source, target)
    source = catalog.locate(source)
    places = _list_places(source)
    compared: set[str] = set()
    for copied in _run_each(places, source, target, progress, _verify_session):
        compared.add(os.path.abspath(copied.target or ""))
        yield copied
    if catalog.is_container(source) and catalog.is_container(target):
        ids = {place.id for place in places}
        for place in _list_places(target):
            known = place.id in ids if is_address(target) else os.path.abspath(place.location) in compared
            if not known:
                yield TransferResult(session=place.id, source=None, target=place.location, state="extra")


def _run_each(
    places: list[StoredSession],
    source: str,
    target: str,
    progress: Progress | None,
    work: Callable[[StoredSession, str, CountBytes], TransferResult],
) -> Iterator[TransferResult]:
    """Run `work` on each session. A failure becomes a result, and the next session follows."""
    target_of = _build_target_finder(places, source, target)
    tell = _build_byte_counter(places, progress)
    for place in places:
        side = None
        try:
            side = target_of(place)
            yield work(place, side, tell)
        except SessionTreeError as error:
            yield _build_failure(place, side, error)
            catalog.check_reachable(source, target)  # otherwise every other session would fail too, after a long wait


def _build_failure(place: StoredSession, target: str | None, error: SessionTreeError) -> TransferResult:
    shown = target or place.location
    reason = error.reason if isinstance(error, StoreError) and error.location == shown else str(error)
    return TransferResult(session=place.id, source=place.location, target=target, state="failed", reason=reason)


def encode_transfer_result(copied: TransferResult) -> JsonObject:
    """Return the JSON that commands print."""
    return {
        "session": copied.session,
        "source": copied.source,
        "target": copied.target,
        "state": copied.state,
        "bytes": copied.bytes,
        "reason": copied.reason,
    }


# Which sessions


def _list_places(side: str) -> list[StoredSession]:
    """List the sessions of a side, the most recently written last, for targets that cannot keep the time."""
    if not catalog.is_container(side):
        return [StoredSession(_read_id(side), side)]
    if is_address(side):
        return open_repository(side).list_stored()[::-1]
    found = [
        file for folder in (side, *list_folders(side)) for file in list_session_files(folder) if file.fault is None
    ]
    found.sort(key=attrgetter("mtime", "path"))
    return [StoredSession(_read_id(file.path), file.path, file.archived) for file in found]


def _read_id(location: str) -> str:
    """Return the id of a session: from its header, or from its name if the header cannot be read."""
    if is_address(location):
        return catalog.get_session_id(location)
    header = None
    with suppress(StoreError, NotFound):  # copying it reports the problem
        header = read_preamble(catalog.get_store(location).read(limit=PART_SIZE).data.split(b"\n")).header
    return header.id if header is not None and filter_storable(header.id) else parse_session_id(location)


def _build_target_finder(places: list[StoredSession], source: str, target: str) -> Callable[[StoredSession], str]:
    """Return a function that finds the target of a session. It may read the header. Raises `InvalidOperation`."""
    is_one = not catalog.is_container(target) if is_address(target) else _is_file_name(target)
    if is_one and catalog.is_container(source):
        raise InvalidOperation("cannot copy several sessions to one file; name a folder or a database")
    if is_address(target):
        repository = open_repository(target)
        id = repository.get_id(target) if is_one else None
        return lambda place: repository.build_location(id or place.id, cwd="", timestamp="")
    if is_one:
        return lambda place: target
    there = _list_places(target) if os.path.isdir(target) else []
    named = {(place.id, os.path.basename(place.location)): place.location for place in there}
    unique_there = _find_unique(there)
    unique = _find_unique(places).keys() & unique_there.keys()
    taken: dict[str, str] = {}

    def find_target(place: StoredSession) -> str:
        file = unique_there[place.id] if place.id in unique else named.get((place.id, os.path.basename(place.location)))
        file = file or _build_file_path(place, target)
        other = taken.setdefault(os.path.abspath(file), place.location)
        if other != place.location:
            raise InvalidOperation(f"{file} is already the target of {other}, which has the same name")
        return file

    return find_target


def _is_file_name(target: str) -> bool:
    return target.endswith(SESSION_SUFFIX) and not os.path.isdir(target)


def _find_unique(places: list[StoredSession]) -> dict[str, str]:
    """Return the locations of the sessions whose id no other session has, by id."""
    several = Counter(place.id for place in places)
    return {place.id: place.location for place in places if several[place.id] == 1}


def _build_file_path(place: StoredSession, folder: str) -> str:
    """Return the file for a session: in the project's subfolder of the user's sessions, or right in another folder."""
    header = read_preamble(catalog.get_store(place.location).read(limit=PART_SIZE).data.split(b"\n")).header
    if os.path.realpath(folder) == os.path.realpath(get_sessions_folder()):
        folder = os.path.join(folder, encode_folder_name("" if header is None else header.cwd))
    if not is_address(place.location):
        return os.path.join(folder, os.path.basename(place.location))
    made = "".join(letter if letter.isalnum() else "-" for letter in (header.timestamp if header else "")[:40])
    name = "".join(letter if letter.isalnum() or letter in "-." else "-" for letter in place.id).lstrip(".")
    return os.path.join(folder, f"{made}_{name}{SESSION_SUFFIX}" if made else f"{name}{SESSION_SUFFIX}")


# One session


def _copy_session(place: StoredSession, target: str, tell: CountBytes) -> TransferResult:
    source, copy = catalog.get_store(place.location), catalog.get_store(target)
    there = _read_end(copy)
    rest = _iter_missing(source, copy, there, tell)
    if rest is None:
        return TransferResult(
            session=place.id,
            source=place.location,
            target=target,
            state="different",
            reason="the target is not a copy of it",
        )
    # Append after the compared lines: a second copy that runs at the same time is a conflict.
    cursor = None if there is None else there.cursor
    written = 0
    tail = b""
    for data in rest:
        lines, newline, tail = data.rpartition(b"\n")
        if newline:
            several = lines.split(b"\n")
            cursor = copy.create(several) if cursor is None else copy.append(several, after=cursor)
        written += len(data)
        tell(len(data))
    if cursor is None:
        cursor = copy.create([])
    if tail:
        copy.write_tail(tail, after=cursor)
    copy.backdate(source.get_modified_time())
    if place.archived:
        catalog.archive(target)
    state: TransferState = "copied" if there is None else "resumed" if written else "same"
    return TransferResult(session=place.id, source=place.location, target=target, state=state, bytes=written)


def _iter_missing(source: Store, copy: Store, there: LineChunk | None, tell: CountBytes) -> Iterator[bytes] | None:
    """Return the missing bytes of a copy, complete lines at a time; `None` if it is not a prefix of the source."""
    data = _iter_bytes(source, source.read_end())
    begun = kept = b""
    for kept in () if there is None else _iter_lines(copy, there):
        while len(begun) < len(kept) and (more := next(data, b"")):
            begun += more
        if not begun.startswith(kept):
            return None
        begun = begun[len(kept) :]
        tell(len(kept))
    begun = begun or next(data, b"")
    if begun and kept and not kept.endswith(b"\n"):
        return None  # nothing can be appended after a line without newline
    if there is not None and (torn := _get_torn_tail(there)):
        while len(begun) <= len(torn) and (more := next(data, b"")):
            begun += more
        if begun == torn:
            tell(len(torn))
            return iter(())
        if b"\n" not in begun:
            return None  # the unfinished line can only be replaced by complete lines
    return chain([begun] if begun else [], data)


def _verify_session(place: StoredSession, target: str, tell: CountBytes) -> TransferResult:
    source, copy = catalog.get_store(place.location), catalog.get_store(target)
    there = _read_end(copy)
    if there is None:
        return TransferResult(session=place.id, source=place.location, target=None, state="missing")
    ours, theirs = _iter_bytes(source, source.read_end()), _iter_bytes(copy, there)
    a = b = b""
    same = 0
    while True:
        a, b = a or next(ours, b""), b or next(theirs, b"")
        size = min(len(a), len(b))
        if not size or a[:size] != b[:size]:
            break
        a, b, same = a[size:], b[size:], same + size
        tell(size)
    if not a and not b:
        return TransferResult(session=place.id, source=place.location, target=target, state="same", bytes=same)
    at = same + next(
        (index for index, (one, two) in enumerate(zip(a, b, strict=False)) if one != two), min(len(a), len(b))
    )
    return TransferResult(
        session=place.id, source=place.location, target=target, state="different", bytes=at, reason=f"from byte {at} on"
    )


def _iter_bytes(store: Store, end: LineChunk) -> Iterator[bytes]:
    """Yield all bytes of a session up to `end`, complete lines at a time, and its unfinished last line."""
    yield from _iter_lines(store, end)
    if torn := _get_torn_tail(end):
        yield torn


def _iter_lines(store: Store, end: LineChunk) -> Iterator[bytes]:
    cursor = None
    while cursor != end.cursor:
        chunk = store.read(cursor, before=end.cursor, limit=PART_SIZE)
        if chunk.data:
            yield chunk.data
        cursor = chunk.cursor


def _get_torn_tail(end: LineChunk) -> bytes:
    """Return the unfinished last line of a session. An incomplete batch does not count."""
    return b"" if b"\n" in end.unfinished or is_complete_line(end.unfinished) else end.unfinished


def _read_end(store: Store) -> LineChunk | None:
    """Return the end of a session; `None` if it does not exist."""
    try:
        return store.read_end()
    except NotFound:
        return None


def _measure_session(where: str) -> int:
    """Return the size of a session in bytes; 0 if it cannot be read, which copying it reports."""
    try:
        end = _read_end(catalog.get_store(where))
    except StoreError:
        catalog.check_reachable(where)
        return 0
    return 0 if end is None else end.cursor.value[1] + len(_get_torn_tail(end))


def _build_byte_counter(places: list[StoredSession], progress: Progress | None) -> CountBytes:
    """Return a function that adds up the bytes of all sessions and reports the progress."""
    if progress is None:
        return lambda done: None
    total = sum(_measure_session(place.location) for place in places)
    so_far = 0

    def count_bytes(done: int) -> None:
        nonlocal so_far
        so_far += done
        progress(min(so_far, total), total)

    return count_bytes
