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

from sessiontree import catalog, shelf
from sessiontree.core.entries import JsonObject
from sessiontree.errors import InvalidOperation, NotFound, SessionTreeError, StoreError
from sessiontree.format.jsonl import is_whole_line
from sessiontree.index.folder import SUFFIX, files_in, folders_in, id_of
from sessiontree.store.base import Chunk, Store
from sessiontree.store.jsonl import JsonlStore
from sessiontree.store.postgres.address import is_address, parse
from sessiontree.store.postgres.rows import beginning_of, storable

PART = 1 << 20
"""How much is copied at once, in bytes."""

Progress: TypeAlias = Callable[[int, int], None]
"""Told bytes done and bytes in all."""
Tell: TypeAlias = Callable[[int], None]
"""Told bytes of a session that were done since it was told last."""
State: TypeAlias = Literal["copied", "resumed", "same", "different", "missing", "extra", "failed"]


class Copied(Struct, frozen=True, kw_only=True):
    """What became of one session."""

    session: str
    """Its id."""
    source: str | None
    target: str | None
    state: State
    bytes: int = 0
    """How many were written, or are the same on both sides."""
    reason: str | None = None

    @property
    def good(self) -> bool:
        return self.state in ("copied", "resumed", "same")


class _Place(NamedTuple):
    """A session on one side."""

    id: str
    where: str
    """Its path or address."""
    archived: bool = False


def copy(source: str, target: str, *, progress: Progress | None = None) -> Iterator[Copied]:
    """Copy one session, or all of a folder or database, to a file, a folder or a database.

    Gives what became of each, as it is done. Raises `NotFound` and `InvalidOperation` before anything is done, and
    `StoreError` when a database cannot be reached, at the start or any more.
    """
    catalog.reach(source, target)
    source = catalog.locate(source)
    yield from _each(_places(source), source, target, progress, _copied)


def verify(source: str, target: str, *, progress: Progress | None = None) -> Iterator[Copied]:
    """Compare every session of one side with that of the other, byte for byte. Raises as `copy` does."""
    catalog.reach(source, target)
    source = catalog.locate(source)
    places = _places(source)
    compared: set[str] = set()
    for copied in _each(places, source, target, progress, _verified):
        compared.add(os.path.abspath(copied.target or ""))
        yield copied
    if catalog.is_many(source) and catalog.is_many(target):
        ids = {place.id for place in places}
        for place in _places(target):
            known = place.id in ids if is_address(target) else os.path.abspath(place.where) in compared
            if not known:
                yield Copied(session=place.id, source=None, target=place.where, state="extra")


def _each(
    places: list[_Place],
    source: str,
    target: str,
    progress: Progress | None,
    work: Callable[[_Place, str, Tell], Copied],
) -> Iterator[Copied]:
    """What becomes of each session. One that cannot be read is told, and the others go on."""
    target_of = _targets(places, source, target)
    tell = _told(places, progress)
    for place in places:
        side = None
        try:
            side = target_of(place)
            yield work(place, side, tell)
        except SessionTreeError as error:
            yield _failed(place, side, error)
            catalog.reach(source, target)  # the others would fail in the same way, each after a long wait


def _failed(place: _Place, target: str | None, error: SessionTreeError) -> Copied:
    shown = target or place.where
    reason = error.reason if isinstance(error, StoreError) and error.where == shown else str(error)
    return Copied(session=place.id, source=place.where, target=target, state="failed", reason=reason)


def copied_to_wire(copied: Copied) -> JsonObject:
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


def _places(side: str) -> list[_Place]:
    """The sessions of a side, those written to last at the end: so copies are in order where they cannot be dated."""
    if not catalog.is_many(side):
        return [_Place(_id_at(side), side)]
    if is_address(side):
        database = catalog.in_database(side)
        assert database is not None
        return [_Place(id, database.address.of(id), archived) for id, archived in reversed(database.all())]
    found = [file for folder in (side, *folders_in(side)) for file in files_in(folder) if file.fault is None]
    found.sort(key=attrgetter("mtime", "path"))
    return [_Place(_id_at(file.path), file.path, file.archived) for file in found]


def _id_at(where: str) -> str:
    """The id of a session: as its header says, or its name where that cannot be read."""
    if is_address(where):
        return parse(where).session or ""
    header = None
    with suppress(StoreError, NotFound):  # told when it is copied
        header = beginning_of(JsonlStore(where).read(limit=PART).data.split(b"\n")).header
    return header.id if header is not None and storable(header.id) else id_of(where)


def _targets(places: list[_Place], source: str, target: str) -> Callable[[_Place], str]:
    """Tells where a session goes, or is; that may need its header. Raises `InvalidOperation`."""
    if is_address(target):
        address = parse(target)
        if address.session is not None and catalog.is_many(source):
            raise InvalidOperation("several sessions cannot become one: name a database or a folder")
        return lambda place: address.of(address.session or place.id)
    if target.endswith(SUFFIX) and not os.path.isdir(target):
        if catalog.is_many(source):
            raise InvalidOperation("several sessions cannot become one: name a database or a folder")
        return lambda place: target
    there = _places(target) if os.path.isdir(target) else []
    named = {(place.id, os.path.basename(place.where)): place.where for place in there}
    alone = _alone(places).keys() & (found := _alone(there)).keys()
    taken: dict[str, str] = {}

    def target_of(place: _Place) -> str:
        file = found[place.id] if place.id in alone else named.get((place.id, os.path.basename(place.where)))
        file = file or _new_file(place, target)
        other = taken.setdefault(os.path.abspath(file), place.where)
        if other != place.where:
            raise InvalidOperation(f"{file} is the place of {other}, which has the same name")
        return file

    return target_of


def _alone(places: list[_Place]) -> dict[str, str]:
    """Where the sessions are that share their id with no other."""
    several = Counter(place.id for place in places)
    return {place.id: place.where for place in places if several[place.id] == 1}


def _new_file(place: _Place, folder: str) -> str:
    """A file for a session: by the folder that it is about where sessions live, else right in the folder."""
    header = beginning_of(catalog.store_at(place.where).read(limit=PART).data.split(b"\n")).header
    if os.path.realpath(folder) == os.path.realpath(catalog.sessions_dir()):
        folder = os.path.join(folder, catalog.folder_of("" if header is None else header.cwd))
    if not is_address(place.where):
        return os.path.join(folder, os.path.basename(place.where))
    made = "".join(letter if letter.isalnum() else "-" for letter in (header.timestamp if header else "")[:40])
    name = "".join(letter if letter.isalnum() or letter in "-." else "-" for letter in place.id).lstrip(".")
    return os.path.join(folder, f"{made}_{name}{SUFFIX}" if made else f"{name}{SUFFIX}")


# One session


def _copied(place: _Place, target: str, tell: Tell) -> Copied:
    source, copy = catalog.store_at(place.where), catalog.store_at(target)
    there = _end(copy)
    rest = _rest(source, copy, there, tell)
    if rest is None:
        return Copied(
            session=place.id, source=place.where, target=target, state="different", reason="what is there is no copy"
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
        copy.leave(tail, after=cursor)
    copy.predate(source.modified())
    if place.archived:
        shelf.archive(target)
    state: State = "copied" if there is None else "resumed" if written else "same"
    return Copied(session=place.id, source=place.where, target=target, state=state, bytes=written)


def _rest(source: Store, copy: Store, there: Chunk | None, tell: Tell) -> Iterator[bytes] | None:
    """What of the source is not in the copy yet, whole lines at a time; `None` where the copy cannot become one."""
    data = _all(source, source.end())
    begun = kept = b""
    for kept in () if there is None else _lines(copy, there):
        while len(begun) < len(kept) and (more := next(data, b"")):
            begun += more
        if not begun.startswith(kept):
            return None
        begun = begun[len(kept) :]
        tell(len(kept))
    begun = begun or next(data, b"")
    if begun and kept and not kept.endswith(b"\n"):
        return None  # behind a line that is not ended nothing can be put without changing it
    if there is not None and (torn := _torn(there)):
        while len(begun) <= len(torn) and (more := next(data, b"")):
            begun += more
        if begun == torn:
            tell(len(torn))
            return iter(())
        if b"\n" not in begun:
            return None  # only lines can be put where it is: it is set aside for them
    return chain([begun] if begun else [], data)


def _verified(place: _Place, target: str, tell: Tell) -> Copied:
    source, copy = catalog.store_at(place.where), catalog.store_at(target)
    there = _end(copy)
    if there is None:
        return Copied(session=place.id, source=place.where, target=None, state="missing")
    ours, theirs = _all(source, source.end()), _all(copy, there)
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
        return Copied(session=place.id, source=place.where, target=target, state="same", bytes=same)
    at = same + next(
        (index for index, (one, two) in enumerate(zip(a, b, strict=False)) if one != two), min(len(a), len(b))
    )
    return Copied(
        session=place.id, source=place.where, target=target, state="different", bytes=at, reason=f"from byte {at} on"
    )


def _all(store: Store, end: Chunk) -> Iterator[bytes]:
    """All bytes of a session up to there, some whole lines at a time, and then its unfinished last line."""
    yield from _lines(store, end)
    if torn := _torn(end):
        yield torn


def _lines(store: Store, end: Chunk) -> Iterator[bytes]:
    cursor = None
    while cursor != end.cursor:
        chunk = store.read(cursor, before=end.cursor, limit=PART)
        if chunk.data:
            yield chunk.data
        cursor = chunk.cursor


def _torn(end: Chunk) -> bytes:
    """The last line of a session that is not whole; nothing of a batch that is cut short or still being written."""
    return b"" if b"\n" in end.unfinished or is_whole_line(end.unfinished) else end.unfinished


def _end(store: Store) -> Chunk | None:
    """Where a session ends, and what stands behind that; `None` when there is none."""
    try:
        return store.end()
    except NotFound:
        return None


def _size(where: str) -> int:
    """How many bytes a session has; none where it cannot be read, which is told when it is copied."""
    try:
        end = _end(catalog.store_at(where))
    except StoreError:
        catalog.reach(where)
        return 0
    return 0 if end is None else end.cursor.value[1] + len(_torn(end))


def _told(places: list[_Place], progress: Progress | None) -> Tell:
    """Adds up what is told of single sessions."""
    if progress is None:
        return lambda done: None
    total = sum(_size(place.where) for place in places)
    so_far = 0

    def tell(done: int) -> None:
        nonlocal so_far
        so_far += done
        progress(min(so_far, total), total)

    return tell
