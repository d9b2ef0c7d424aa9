"""Import: copies sessions of other programs into a repository, and later only new entries.

An imported session has the id of its original, the entries of `interop`, and the original bytes. When it is imported
again, new entries are appended. A branch that was continued here keeps its head; what the other program added to it
goes to a separate branch, named after the program.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Literal, TypeAlias

from msgspec import Struct

from sessiontree.core.entries import HEAD_RECORD, Custom, EntryId, JsonObject, Original
from sessiontree.core.place_names import find_free_name
from sessiontree.errors import NotFound, SessionTreeError
from sessiontree.format.codec import read_head, read_header, write_entry
from sessiontree.format.json_line import read_object
from sessiontree.interop.base import Conversation, ForeignFormat
from sessiontree.interop.formats import FORMATS, find_format
from sessiontree.interop.originals import build_originals, decode_piece
from sessiontree.library import catalog
from sessiontree.library.folder_repository import get_sources
from sessiontree.library.foreign_changes import ConversationChanges
from sessiontree.library.foreign_files import detect_file, find_related_files, read_conversations, split_conversation
from sessiontree.library.locations import open_repository
from sessiontree.library.repository import Progress, Repository
from sessiontree.library.session_files import is_path
from sessiontree.regular_file import open_regular_file
from sessiontree.session import Session
from sessiontree.session.entry_builder import generate_id
from sessiontree.store.base import Cursor

ImportState: TypeAlias = Literal["imported", "updated", "same", "failed"]
BLOCK_SIZE = 1 << 20
SUFFIXES = (".jsonl", ".json", ".db", ".sqlite", ".sqlite3", ".zip")
"""How the names of files end that a folder is searched for."""
_SAFE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


class ImportResult(Struct, frozen=True, kw_only=True):
    """The result for one conversation."""

    session: str
    source: str
    target: str | None
    state: ImportState
    entries: int = 0
    """How many entries were added."""
    problems: int = 0
    """How many problems the file has."""
    reason: str | None = None

    @property
    def is_ok(self) -> bool:
        return self.state != "failed"


def get_program_folders() -> dict[str, str]:
    """Return where each program keeps its sessions, by the name of its format."""
    home = os.path.expanduser
    config = os.environ.get("XDG_CONFIG_HOME") or home("~/.config")
    return {
        **{name: folder for name, folder in get_sources().items() if name not in ("pi", "omp")},
        "llm": os.path.join(os.environ.get("LLM_USER_PATH") or f"{config}/io.datasette.llm", "logs.db"),
    }


def list_importable() -> list[str]:
    """Return the programs that `import_sessions` knows by name."""
    known = {format.name for format in FORMATS}
    return [name for name in get_program_folders() if name in known]


def import_sessions(
    place: str,
    *,
    into: str | None = None,
    cwd: str | None = None,
    join: bool = False,
    progress: Progress | None = None,
) -> Iterator[ImportResult]:
    """Import a file, all files below a folder, or all sessions of a program, and yield a result for each conversation.

    `place` can also be one conversation of a file, such as `opencode.db#ID`, or the id of a session that listings show.

    `into` is the folder or database to import to; by default that of the user. `cwd` restricts the import to the
    sessions of one project. With `join`, files of one folder that share entries become one session. Raises `NotFound`
    if the place does not exist.
    """
    path, id = split_conversation(place)
    if id is None and not os.path.lexists(path) and path not in list_importable() and not is_path(path):
        path, id = split_conversation(catalog.find_in_sources(path) or path)
    groups = _group_files(path, join)
    sizes = [sum(map(_get_size, group.files)) for group in groups]
    done, total = 0, sum(sizes)
    repository = open_repository(into)
    imported: set[str] = set()
    for group, size in zip(groups, sizes, strict=True):
        yield from _import_group(group, repository, cwd, imported, only=id)
        done += size
        if progress is not None:
            progress(done, total)


class _FileGroup(Struct, frozen=True):
    """Files that are read as one."""

    format: ForeignFormat
    files: list[str]
    """The first one is the session; the others are forks of it."""


def _group_files(place: str, join: bool) -> list[_FileGroup]:
    path = get_program_folders().get(place, place) if place in list_importable() else place
    if not os.path.exists(path):
        if path is not place:
            raise NotFound("folder", path, f"{find_format(place).title} has no sessions there")
        raise NotFound("file or folder", place, f"programs: {', '.join(list_importable())}")
    if os.path.isfile(path):
        format = detect_file(path)
        if format is None:
            raise NotFound("session of another program", place, "unknown format")
        return [_FileGroup(format, [path, *(_find_forks(path, format) if join else ())])]
    by_format: dict[str, list[str]] = {}
    for found in _walk_files(path):
        format = detect_file(found)
        if format is not None:
            by_format.setdefault(format.name, []).append(found)
    groups: list[_FileGroup] = []
    for name, paths in by_format.items():
        format = find_format(name)
        selected = format.select_sessions(paths)
        joined = _join_forks(selected) if join else [[one] for one in selected]
        groups += [_FileGroup(format, files) for files in joined]
    return groups


def _walk_files(folder: str) -> Iterator[str]:
    for root, folders, names in os.walk(folder):
        folders.sort()
        yield from (os.path.join(root, name) for name in sorted(names) if name.endswith(SUFFIXES))


def _find_forks(path: str, format: ForeignFormat) -> list[str]:
    """Return the other files in a folder that share lines with a file, directly or through others."""
    folder = os.path.dirname(path)
    names = [os.path.join(folder, name) for name in sorted(os.listdir(folder or os.curdir)) if name.endswith(SUFFIXES)]
    found = [name for name in names if name != path and detect_file(name) is format]
    groups = _join_forks([path, *format.select_sessions(found)])
    return [name for files in groups if path in files for name in files if name != path]


def _join_forks(paths: Sequence[str]) -> list[list[str]]:
    """Group the files of each folder that share lines: a fork repeats the lines of its origin."""
    groups: list[tuple[set[str], list[str]]] = []
    for path in sorted(paths, key=_get_size, reverse=True):
        uuids = {f"{os.path.dirname(path)} {uuid}" for uuid in _read_uuids(path)}
        for known, files in groups:
            if known & uuids:
                known |= uuids
                files.append(path)
                break
        else:
            groups.append((uuids, [path]))
    return [files for _, files in groups]


def _read_uuids(path: str) -> set[str]:
    pattern = re.compile(rb'"uuid"\s*:\s*"([^"\\]{1,100})"')
    try:
        with open_regular_file(path) as file:
            return {found[1].decode() for line in file if (found := pattern.search(line)) is not None}
    except OSError:
        return set()


def _get_size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def _import_group(
    group: _FileGroup, repository: Repository, cwd: str | None, imported: set[str], *, only: str | None
) -> Iterator[ImportResult]:
    path, *forks = group.files
    try:
        for conversation in read_conversations(path, group.format, forks, id=only):
            header = read_header(conversation.lines[0], read_object(conversation.lines[0]))
            assert header is not None
            is_part = conversation.part_of is not None and conversation.part_of in imported
            if is_part or (cwd is not None and header.cwd != cwd) or only not in (None, conversation.id):
                continue
            imported.add(conversation.id)
            target = repository.build_location(
                _build_safe_id(conversation.id), cwd=header.cwd or os.path.expanduser("~"), timestamp=header.timestamp
            )
            try:
                files = [path, *forks, *find_related_files(path, group.format)]
                yield _Importer(group.format, conversation, files, path, target).run(repository)
            except SessionTreeError as error:
                yield ImportResult(
                    session=conversation.id, source=path, target=target, state="failed", reason=str(error)
                )
    except SessionTreeError as error:
        id = os.path.splitext(os.path.basename(path))[0]
        yield ImportResult(session=id, source=path, target=None, state="failed", reason=str(error))


def _build_safe_id(id: str) -> str:
    """Return an id that can be part of a file name."""
    return id if _SAFE_ID.fullmatch(id) else hashlib.sha256(id.encode("utf-8", "surrogatepass")).hexdigest()[:32]


class _Importer:
    """Imports one conversation."""

    def __init__(
        self, format: ForeignFormat, conversation: Conversation, files: Sequence[str], source: str, target: str
    ) -> None:
        self._format = format
        self._conversation = conversation
        self._files = files
        self._source = source
        self._target = target

    def run(self, repository: Repository) -> ImportResult:
        store = repository.get_store(self._target)
        try:
            cursor = store.read_end().cursor
        except NotFound:
            lines = self._conversation.lines
            count = lines.count_entries()
            for line in self._build_originals({}, self._conversation.heads):
                lines.append(line)
            store.create(lines)
            return self._build_result("imported", count)
        with Session(store) as session:
            return self._update(session, cursor)

    def _update(self, session: Session, cursor: Cursor) -> ImportResult:
        """Append the new entries. Raises `Conflict` if another process writes to the session at the same time."""
        kept: dict[str, Original] = {}
        heads: JsonObject = {}
        for entry in session.tree:
            if entry.type == "original" and isinstance(body := entry.decode(), Original):
                kept[body.file] = body
                heads = heads if body.heads is None else body.heads
        changes = ConversationChanges(session.tree, islice(self._conversation.lines, 1, None), self._conversation.heads)
        new = changes.lines
        if not new and heads == changes.heads:
            if self._has_grown(kept):
                session.store.append(list(self._build_originals(kept, changes.heads)), after=cursor)
            return self._build_result("same", 0)
        final = self._merge_heads(session, heads, changes.heads)
        record = {"current": session.heads.current, "heads": final, "archived": sorted(session.heads.archived)}
        leaf = final.get(session.heads.current)
        stamp = session.header.timestamp if not new else read_head(new[-1]).timestamp
        timestamp = stamp if isinstance(stamp, str) else session.header.timestamp
        head_line = write_entry(
            Custom(custom_type=HEAD_RECORD, data=record),
            id=generate_id(),
            parent=leaf,
            timestamp=timestamp,
            branch=session.heads.current,
        ).raw
        session.store.append([*new, *self._build_originals(kept, changes.heads), head_line], after=cursor)
        return self._build_result("updated", len(new))

    def _has_grown(self, kept: dict[str, Original]) -> bool:
        """Return whether a file has another size than its bytes that the session has."""
        original = self._conversation.original
        for name in self._files:
            size = _get_size(name) if original is None or name != self._source else len(original)
            if name in kept and size != kept[name].offset + kept[name].size:
                return True
        return False

    def _merge_heads(
        self, session: Session, before: JsonObject, after: dict[str, EntryId | None]
    ) -> dict[str, EntryId | None]:
        """Return where all branches are: moved by the other program, unless they were continued here."""
        heads = dict(session.heads.heads)
        for name, leaf in after.items():
            if before.get(name) == leaf and name in before:
                continue
            if name not in heads or heads[name] == before.get(name):
                heads[name] = leaf
                continue
            own = f"{name}-{self._format.name}"
            if own in heads and heads[own] != before.get(name):
                own = find_free_name(own, heads, 2)
            heads[own] = leaf
        return heads

    def _build_originals(self, kept: dict[str, Original], heads: dict[str, EntryId | None]) -> Iterator[bytes]:
        """Yield the lines that keep the bytes of the files. `kept` are the last pieces that the session has of them."""
        leaf = next(iter(heads.values()), None)
        found = read_head(self._conversation.lines[-1]).timestamp
        for name in (*(name for name in self._files if name != self._source), self._source):
            data = self._conversation.original if name == self._source else None
            offset = 0 if data is not None else _find_new_part(name, kept.get(name))
            blocks = _read_blocks(name, offset) if data is None else [data]
            for body in build_originals(self._format.name, name, blocks, heads, offset):
                timestamp = found if isinstance(found, str) else ""
                yield write_entry(body, id=generate_id(), parent=leaf, timestamp=timestamp, branch=None).raw

    def _build_result(self, state: ImportState, entries: int) -> ImportResult:
        return ImportResult(
            session=self._conversation.id,
            source=self._source,
            target=self._target,
            state=state,
            entries=entries,
            problems=len(self._conversation.problems),
        )


def _find_new_part(path: str, kept: Original | None) -> int:
    """Return where the part of a file begins that is not kept: its end, or 0 if the program has rewritten it."""
    if kept is None:
        return 0
    try:
        with open_regular_file(path) as file:
            file.seek(kept.offset)
            is_same = file.read(kept.size) == decode_piece(kept)
    except OSError:
        return 0
    return kept.offset + kept.size if is_same else 0


def _read_blocks(path: str, offset: int) -> Iterator[bytes]:
    try:
        with open_regular_file(path) as file:
            file.seek(offset)
            while block := file.read(BLOCK_SIZE):
                yield block
    except OSError:
        return
