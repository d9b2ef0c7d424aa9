"""Repair damaged sessions: write a repaired copy, or append one line, but never change lines in place.

`format.line_repair` decides what a repaired session contains. Here it is written. The damaged file stays.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from hashlib import sha256
from itertools import count
from typing import NamedTuple

from msgspec import Struct

from sessiontree.core.entries import Entry, EntryId, Problem
from sessiontree.core.timestamps import format_timestamp
from sessiontree.core.tree import Tree
from sessiontree.errors import Conflict, FormatError, InvalidOperation, NotFound, StoreError
from sessiontree.format.codec import read_entry, write_entry, write_header
from sessiontree.format.json_line import NotJson
from sessiontree.format.line_repair import Repair, repair_heads, repair_lines
from sessiontree.library.catalog import check_copyable, generate_session_id, get_session_location
from sessiontree.library.folder_repository import FolderRepository, encode_folder_name
from sessiontree.library.locations import find_repository, is_address, open_folder_of
from sessiontree.library.session_files import list_session_files, resolve_folder
from sessiontree.session import Session
from sessiontree.session.entry_builder import find_write_parent
from sessiontree.store.base import Store
from sessiontree.store.file_operations import format_os_error
from sessiontree.store.memory import MemoryStore
from sessiontree.store.range_reader import RangeReader


class RepairReport(Struct, frozen=True, kw_only=True):
    """What `repair` did."""

    repairs: tuple[Repair, ...]
    file: str | None
    """The new file; `None` if nothing was wrong, or if appending a line to the session was enough."""


def repair(session: Session, *, file: str | os.PathLike[str] | None = None) -> RepairReport:
    """Repair a damaged session: write a repaired copy, or append a line if that is enough.

    The copy is next to the old file unless `file` is given. Lines that are not entries are left out. An earlier copy
    that still contains everything is used again. Raises `ReadOnly` if a copy would not be equivalent, and
    `InvalidOperation` for a session in memory without a `file`.
    """
    check_copyable(session, "a repaired copy")
    try:
        session.refresh()
    except Conflict:  # its file was replaced or removed: a copy elsewhere can still be written from memory
        if file is None:
            raise
    sound = _build_repaired(session, session.id)
    if not sound.needs_copy:
        if sound.repairs:
            session.restore_heads(sound.heads)
        return RepairReport(repairs=sound.repairs, file=None)
    id, stamp = generate_session_id(), format_timestamp(time.time_ns() // 1_000_000)
    if file is not None:
        store = open_folder_of(os.fspath(file)).get_store(os.fspath(file))
    elif session.address is None:
        raise InvalidOperation("a session in memory has no folder for a repaired copy; name a file")
    else:
        repository, location = find_repository(session.address)
        before = _find_first_with(sound, repository.iter_copies(location))
        if before is not None:
            return RepairReport(repairs=sound.repairs, file=before)
        store = repository.get_store(repository.build_copy_location(location, id))
    header = write_header(
        id=id, timestamp=stamp, cwd=session.cwd, parent_session=get_session_location(session), title=session.name
    )
    return _write_copy(store, header, sound)


def rescue(file: str) -> RepairReport | None:
    """Write a repaired copy of a file whose header cannot be read, next to it. The content of the header is lost.

    Return `None` for a session in a database. Raises `FormatError` if the file has no messages, and `StoreError`.
    """
    if is_address(file):
        return None  # a database has no file to read lines from
    lines = _read_without_header(file)
    entries = (_parse_entry(raw) for raw in lines if b'"message"' in raw)
    first = next((entry for entry in entries if entry is not None and entry.type == "message"), None)
    if first is None:
        raise FormatError(file, "it contains no messages")
    id, path = generate_session_id(), os.path.abspath(file)
    stamp = first.timestamp or format_timestamp(time.time_ns() // 1_000_000)
    header = write_header(id=id, timestamp=stamp, cwd=_guess_cwd(path), parent_session=path)
    held = MemoryStore(file)
    held.create([header, *lines])
    sound = _build_repaired(Session(held), path)
    made_up = Repair(kind="no_session", message="a new header was written; the content of the old one is lost", line=1)
    sound = sound._replace(repairs=(made_up, *sound.repairs))
    folder = FolderRepository(os.path.dirname(path), layout="folder")
    before = _find_first_with(sound, folder.iter_copies(file))
    if before is not None:
        return RepairReport(repairs=sound.repairs, file=before)
    return _write_copy(folder.get_store(folder.build_copy_location(file, id)), header, sound)


class _RepairedSession(NamedTuple):
    """A session without its faults, ready to be written."""

    lines: list[bytes]
    heads: dict[str, EntryId | None]
    repairs: tuple[Repair, ...]
    needs_copy: bool
    """Whether a copy is needed. Otherwise appending one line to the damaged session is enough."""


def _build_repaired(session: Session, seed: str) -> _RepairedSession:
    tree, ids = session.tree, _generate_ids(session.tree, seed)
    heads, done = repair_heads(tree, session.heads)
    lines, changed = repair_lines(tree, ids.__next__)
    if tree.count:  # end with a record of all heads: no repaired line moves a branch
        record, current = session.heads.build_record(heads=heads), session.heads.current
        parent, stamp = find_write_parent(tree, heads[current]), tree.entries[-1].timestamp
        lines.append(write_entry(record, id=next(ids), parent=parent, timestamp=stamp, branch=current).raw)
    outside = [
        Repair(kind=problem.kind, message=_describe_repair(problem), line=problem.line)
        for problem in session.problems
        if problem.severity == "fault" and problem.entry is None
    ]
    rewritten = session.needs_migration and done  # which would have to happen before an append
    return _RepairedSession(lines, heads, (*outside, *changed, *done), bool(changed or outside or rewritten))


def _describe_repair(problem: Problem) -> str:
    """Describe the repair of a line that is not an entry."""
    if problem.kind == "not_utf8":
        return "bytes that are not UTF-8 are replaced in the new header"
    if problem.line is None:
        return f"{problem.message}: left out of the copy; they stay in the damaged file"
    return "left out of the copy; it stays in the damaged file"


def _generate_ids(tree: Tree, seed: str) -> Iterator[EntryId]:
    """Generate ids from a seed: a second repair produces the same lines."""
    made = (sha256(f"{seed}:repaired:{number}".encode("utf-8", "replace")).hexdigest()[:16] for number in count())
    return (id for id in made if id not in tree)


def _write_copy(store: Store, header: bytes, sound: _RepairedSession) -> RepairReport:
    store.create([header, *sound.lines])
    return RepairReport(repairs=sound.repairs, file=store.location)


def _read_without_header(file: str) -> list[bytes]:
    """Return the lines of a file after its first one, or with it if it is an entry. Oversized lines are replaced."""
    try:
        with RangeReader(file) as reader:
            read = [raw for raw, _ in reader.iter_lines(0, reader.size)]
    except OSError as error:
        raise StoreError(file, format_os_error(error)) from error
    lines = [b"a line that is too long" if raw is None else raw for raw in read]
    return lines if lines and _parse_entry(lines[0]) is not None else lines[1:]


def _parse_entry(raw: bytes) -> Entry | None:
    try:
        return read_entry(raw, 0)
    except NotJson:
        return None


def _guess_cwd(path: str) -> str:
    """Return the project that the other sessions in a file's folder belong to, or an empty string if it is unknown."""
    folder, here = os.path.dirname(path), resolve_folder(".")
    repository = FolderRepository(folder, layout="folder")
    others = [repository.read_cwd(file.path) for file in list_session_files(folder) if file.fault is None]
    return next((cwd for cwd in (here, *others) if cwd and encode_folder_name(cwd) == os.path.basename(folder)), "")


def _find_first_with(sound: _RepairedSession, copies: Iterable[Store]) -> str | None:
    """Return the first session that starts with these lines, whatever was appended since."""
    wanted = b"\n".join([*sound.lines, b""])
    for store in copies:
        with suppress(NotFound, StoreError):  # removed by another process, or damaged itself
            if store.read().data.partition(b"\n")[2].startswith(wanted):
                return store.location
    return None
