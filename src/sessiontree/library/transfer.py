"""Copying: sessions from files to a database and back, byte for byte, and comparing both sides.

A copy is made some lines at a time, and each part is a session that can be read. So whatever stops it, the next copy
goes on where it ended: what is there already is compared, and the rest is appended. A session that is there and is no
beginning of the source is left as it is and told; so is one that others write to meanwhile. Damage is copied as it
stands, an unfinished last line too. A batch that is cut short is not copied: there nobody could tell that it is one.

A session is known by its id on the other side, and where several files have one id, by the name of its file. A copy was
written to when its source was, so that the most recent session is the same on both sides.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from operator import attrgetter
from typing import Literal, NamedTuple, TypeAlias

from msgspec import Struct

from sessiontree.core.entries import JsonObject
from sessiontree.errors import InvalidOperation, NotFound, SessionTreeError, StoreError
from sessiontree.format.session_reader import is_complete_line
from sessiontree.library import catalog, trash
from sessiontree.library.session_files import SESSION_SUFFIX, list_folders, list_session_files, parse_session_id
from sessiontree.store.base import LineChunk, Store
from sessiontree.store.jsonl import JsonlStore
from sessiontree.store.postgres.address import is_database_address, parse_address
from sessiontree.store.postgres.rows import filter_storable, read_preamble

PART_SIZE = 1 << 20
"""How much is copied at once, in bytes."""

Progress: TypeAlias = Callable[[int, int], None]
"""Told bytes done and bytes in all."""
CountBytes: TypeAlias = Callable[[int], None]
"""Told bytes of a session that were done since it was told last."""
TransferState: TypeAlias = Literal["copied", "resumed", "same", "different", "missing", "extra", "failed"]


class TransferResult(Struct, frozen=True, kw_only=True):
    """What became of one session."""

    session: str
    """Its id."""
    source: str | None
    target: str | None
    state: TransferState
    bytes: int = 0
    """How many were written, or are the same on both sides."""
    reason: str | None = None

    @property
    def is_ok(self) -> bool:
        return self.state in ("copied", "resumed", "same")


class _SessionPlace(NamedTuple):
    """A session on one side."""

    id: str
    address: str
    """Its path or address."""
    archived: bool = False


def copy(source: str, target: str, *, progress: Progress | None = None) -> Iterator[TransferResult]:
    """Copy one session, or all of a folder or database, to a file, a folder or a database.

    Gives what became of each, as it is done. Raises `NotFound` and `InvalidOperation` before anything is done, and
    `StoreError` when a database cannot be reached, at the start or any more.
    """
    catalog.check_reachable(source, target)
    source = catalog.locate(source)
    yield from _run_each(_list_places(source), source, target, progress, _copy_session)


def verify(source: str, target: str, *, progress: Progress | None = None) -> Iterator[TransferResult]:
    """Compare every session of one side with that of the other, byte for byte. Raises as `copy` does."""
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
            known = place.id in ids if is_database_address(target) else os.path.abspath(place.address) in compared
            if not known:
                yield TransferResult(session=place.id, source=None, target=place.address, state="extra")


def _run_each(
    places: list[_SessionPlace],
    source: str,
    target: str,
    progress: Progress | None,
    work: Callable[[_SessionPlace, str, CountBytes], TransferResult],
) -> Iterator[TransferResult]:
    """What becomes of each session. One that cannot be read is told, and the others go on."""
    target_of = _build_target_finder(places, source, target)
    tell = _build_byte_counter(places, progress)
    for place in places:
        side = None
        try:
            side = target_of(place)
            yield work(place, side, tell)
        except SessionTreeError as error:
            yield _build_failure(place, side, error)
            catalog.check_reachable(source, target)  # the others would fail in the same way, each after a long wait


def _build_failure(place: _SessionPlace, target: str | None, error: SessionTreeError) -> TransferResult:
    shown = target or place.address
    reason = error.reason if isinstance(error, StoreError) and error.location == shown else str(error)
    return TransferResult(session=place.id, source=place.address, target=target, state="failed", reason=reason)


def encode_transfer_result(copied: TransferResult) -> JsonObject:
    """As commands give it."""
    return {
        "session": copied.session,
        "source": copied.source,
        "target": copied.target,
        "state": copied.state,
        "bytes": copied.bytes,
        "reason": copied.reason,
    }


# Which sessions


def _list_places(side: str) -> list[_SessionPlace]:
    """The sessions of a side, those written to last at the end: so copies are in order where they cannot be dated."""
    if not catalog.is_container(side):
        return [_SessionPlace(_read_id(side), side)]
    if is_database_address(side):
        database = catalog.get_postgres_repository(side)
        assert database is not None
        return [
            _SessionPlace(id, database.address.format_session_address(id), archived)
            for id, archived in reversed(database.list_archive_states())
        ]
    found = [
        file for folder in (side, *list_folders(side)) for file in list_session_files(folder) if file.fault is None
    ]
    found.sort(key=attrgetter("mtime", "path"))
    return [_SessionPlace(_read_id(file.path), file.path, file.archived) for file in found]


def _read_id(where: str) -> str:
    """The id of a session: as its header says, or its name where that cannot be read."""
    if is_database_address(where):
        return parse_address(where).session or ""
    header = None
    with suppress(StoreError, NotFound):  # told when it is copied
        header = read_preamble(JsonlStore(where).read(limit=PART_SIZE).data.split(b"\n")).header
    return header.id if header is not None and filter_storable(header.id) else parse_session_id(where)


def _build_target_finder(places: list[_SessionPlace], source: str, target: str) -> Callable[[_SessionPlace], str]:
    """Tells where a session goes, or is; that may need its header. Raises `InvalidOperation`."""
    if is_database_address(target):
        address = parse_address(target)
        if address.session is not None and catalog.is_container(source):
            raise InvalidOperation("several sessions cannot become one: name a database or a folder")
        return lambda place: address.format_session_address(address.session or place.id)
    if target.endswith(SESSION_SUFFIX) and not os.path.isdir(target):
        if catalog.is_container(source):
            raise InvalidOperation("several sessions cannot become one: name a database or a folder")
        return lambda place: target
    there = _list_places(target) if os.path.isdir(target) else []
    named = {(place.id, os.path.basename(place.address)): place.address for place in there}
    alone = _find_unique(places).keys() & (found := _find_unique(there)).keys()
    taken: dict[str, str] = {}

    def find_target(place: _SessionPlace) -> str:
        file = found[place.id] if place.id in alone else named.get((place.id, os.path.basename(place.address)))
        file = file or _build_file_path(place, target)
        other = taken.setdefault(os.path.abspath(file), place.address)
        if other != place.address:
            raise InvalidOperation(f"{file} is the place of {other}, which has the same name")
        return file

    return find_target


def _find_unique(places: list[_SessionPlace]) -> dict[str, str]:
    """Where the sessions are that share their id with no other."""
    several = Counter(place.id for place in places)
    return {place.id: place.address for place in places if several[place.id] == 1}


def _build_file_path(place: _SessionPlace, folder: str) -> str:
    """A file for a session: by the folder that it is about where sessions live, else right in the folder."""
    header = read_preamble(catalog.get_store(place.address).read(limit=PART_SIZE).data.split(b"\n")).header
    if os.path.realpath(folder) == os.path.realpath(catalog.get_sessions_folder()):
        folder = os.path.join(folder, catalog.encode_folder_name("" if header is None else header.cwd))
    if not is_database_address(place.address):
        return os.path.join(folder, os.path.basename(place.address))
    made = "".join(letter if letter.isalnum() else "-" for letter in (header.timestamp if header else "")[:40])
    name = "".join(letter if letter.isalnum() or letter in "-." else "-" for letter in place.id).lstrip(".")
    return os.path.join(folder, f"{made}_{name}{SESSION_SUFFIX}" if made else f"{name}{SESSION_SUFFIX}")


# One session


def _copy_session(place: _SessionPlace, target: str, tell: CountBytes) -> TransferResult:
    source, copy = catalog.get_store(place.address), catalog.get_store(target)
    there = _read_end(copy)
    rest = _iter_missing(source, copy, there, tell)
    if rest is None:
        return TransferResult(
            session=place.id, source=place.address, target=target, state="different", reason="what is there is no copy"
        )
    # What is written goes behind what was compared: another copy that is under way is a conflict.
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
        trash.archive(target)
    state: TransferState = "copied" if there is None else "resumed" if written else "same"
    return TransferResult(session=place.id, source=place.address, target=target, state=state, bytes=written)


def _iter_missing(source: Store, copy: Store, there: LineChunk | None, tell: CountBytes) -> Iterator[bytes] | None:
    """What of the source is not in the copy yet, whole lines at a time; `None` where the copy cannot become one."""
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
        return None  # behind a line that is not ended nothing can be put without changing it
    if there is not None and (torn := _get_torn_tail(there)):
        while len(begun) <= len(torn) and (more := next(data, b"")):
            begun += more
        if begun == torn:
            tell(len(torn))
            return iter(())
        if b"\n" not in begun:
            return None  # only lines can be put where it is: it is set aside for them
    return chain([begun] if begun else [], data)


def _verify_session(place: _SessionPlace, target: str, tell: CountBytes) -> TransferResult:
    source, copy = catalog.get_store(place.address), catalog.get_store(target)
    there = _read_end(copy)
    if there is None:
        return TransferResult(session=place.id, source=place.address, target=None, state="missing")
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
        return TransferResult(session=place.id, source=place.address, target=target, state="same", bytes=same)
    at = same + next(
        (index for index, (one, two) in enumerate(zip(a, b, strict=False)) if one != two), min(len(a), len(b))
    )
    return TransferResult(
        session=place.id, source=place.address, target=target, state="different", bytes=at, reason=f"from byte {at} on"
    )


def _iter_bytes(store: Store, end: LineChunk) -> Iterator[bytes]:
    """All bytes of a session up to there, some whole lines at a time, and then its unfinished last line."""
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
    """The last line of a session that is not whole; nothing of a batch that is cut short or still being written."""
    return b"" if b"\n" in end.unfinished or is_complete_line(end.unfinished) else end.unfinished


def _read_end(store: Store) -> LineChunk | None:
    """Where a session ends, and what stands behind that; `None` when there is none."""
    try:
        return store.read_end()
    except NotFound:
        return None


def _measure_session(where: str) -> int:
    """How many bytes a session has; none where it cannot be read, which is told when it is copied."""
    try:
        end = _read_end(catalog.get_store(where))
    except StoreError:
        catalog.check_reachable(where)
        return 0
    return 0 if end is None else end.cursor.value[1] + len(_get_torn_tail(end))


def _build_byte_counter(places: list[_SessionPlace], progress: Progress | None) -> CountBytes:
    """Adds up what is told of single sessions."""
    if progress is None:
        return lambda done: None
    total = sum(_measure_session(place.address) for place in places)
    so_far = 0

    def count_bytes(done: int) -> None:
        nonlocal so_far
        so_far += done
        progress(min(so_far, total), total)

    return count_bytes
