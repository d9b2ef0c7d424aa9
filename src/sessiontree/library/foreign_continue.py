"""Continue: writes a session where another program looks for its own and resumes it.

The file is always a new one. An existing conversation is never changed.
"""

from __future__ import annotations

import json
import os
import time

from msgspec import Struct

from sessiontree.core.context import build_context
from sessiontree.core.conversion_result import Omission
from sessiontree.core.entries import EntryId, Original
from sessiontree.core.heads import MAIN
from sessiontree.core.messages import is_object
from sessiontree.errors import InvalidOperation, StoreError
from sessiontree.interop.base import ForeignFormat, read_json
from sessiontree.interop.formats import find_format, list_written_formats
from sessiontree.interop.originals import read_originals
from sessiontree.interop.resume import JsonEntry, ResumableSession, ResumeFile, ResumeRequest
from sessiontree.library import catalog
from sessiontree.library.folder_repository import encode_folder_name, get_sources
from sessiontree.library.foreign_files import ForeignStore, split_conversation
from sessiontree.regular_file import open_regular_file, read_regular_file
from sessiontree.session import Place, Session
from sessiontree.store.file_operations import format_os_error, make_private_directory, write_private

PI = "pi"


class ContinuedSession(Struct, frozen=True, kw_only=True):
    """A session that was written for another program."""

    id: str
    file: str
    command: list[str]
    import_command: list[str]
    """The command to run before, if the program does not find the file by itself."""
    cwd: str
    """The folder in which to run the command."""
    omitted: list[Omission]


def list_targets() -> list[str]:
    """Return the programs that a session can be continued in."""
    return [*list_written_formats(), PI]


def get_program_home(program: str) -> str:
    """Return the folder of a program, in which the paths of its session files start."""
    variables = {"claude": "CLAUDE_CONFIG_DIR", "codex": "CODEX_HOME"}
    found = os.environ.get(variables.get(program, ""))
    if program == "opencode":
        return os.curdir  # it imports a file from anywhere
    return found or os.path.expanduser(f"~/.{program}")


def continue_session(session: Session, program: str, *, at: Place = "HEAD", cwd: str | None = None) -> ContinuedSession:
    """Write the conversation up to `at` as a new session of another program. `cwd` is the project to continue in.

    Raises `InvalidOperation` if the program is unknown, and `StoreError` if the file cannot be written.
    """
    if program not in list_targets():
        raise InvalidOperation(f"program {program!r} not found; programs: {', '.join(list_targets())}")
    leaf = session.resolve_place(at)
    where = os.path.abspath(cwd or session.cwd or os.curdir)
    if program == PI:
        return _continue_in_pi(session, leaf, where)
    written = write_session(session, program, leaf, catalog.generate_session_id(), where)
    home = get_program_home(program)
    files = [os.path.join(home, file.path) for file in written.files]
    for path, file in zip(files, written.files, strict=True):
        make_private_directory(os.path.dirname(os.path.abspath(path)))
        write_private(path, file.content, overwrite=False)
    for entry in written.json_entries:
        _add_json_entry(os.path.join(home, entry.path), entry)
    return ContinuedSession(
        id=written.id,
        file=files[0],
        command=list(written.command),
        import_command=[*written.import_command, os.path.abspath(files[0])] if written.import_command else [],
        cwd=where,
        omitted=list(written.omitted),
    )


def write_session(session: Session, program: str, leaf: EntryId | None, id: str, cwd: str) -> ResumableSession:
    """Return the conversation up to an entry in the format of a program. Raises `InvalidOperation`."""
    format = find_format(program)
    if format.write is None:
        raise InvalidOperation(f"sessions of {format.title} can only be read")
    original, end = _find_original(session, format)
    is_unchanged = original is not None and leaf == end
    if original is not None and is_unchanged and id == session.id:
        return ResumableSession(id=id, files=[ResumeFile(path=f"{id}.jsonl", content=original)], command=[])
    request = ResumeRequest(
        context=build_context(session.tree, leaf),
        path=session.tree.path(leaf),
        id=id,
        cwd=cwd,
        now=time.time_ns() // 1_000_000,
        title=session.name,
        original=original,
        is_unchanged=is_unchanged,
        settings=_read_settings(format),
    )
    return format.write(request)


def _read_settings(format: ForeignFormat) -> object:
    """Return the settings of a program that its writer needs; `None` if there are none."""
    if format.settings_file is None:
        return None
    try:
        return read_json(read_regular_file(os.path.join(get_program_home(format.name), format.settings_file)))
    except OSError:
        return None


def _find_original(session: Session, format: ForeignFormat) -> tuple[bytes | None, EntryId | None]:
    """Return the file that a session was read or imported from, if it is of this format, and where it ended."""
    store = session.store
    if isinstance(store, ForeignStore):
        path, id = split_conversation(store.location)
        end = session.heads.heads.get(MAIN)
        if store.format.name != format.name:
            return None, None
        if id is not None or store.original is not None:
            return store.original, end
        try:
            with open_regular_file(path) as file:
                return file.read(), end
        except OSError as error:
            raise StoreError(path, format_os_error(error)) from error
    if session.header.origin is None or session.header.origin.get("program") != format.name:
        return None, None
    bodies = [
        body for entry in session.tree if entry.type == "original" and isinstance(body := entry.decode(), Original)
    ]
    if not bodies:
        return None, None
    return read_originals(bodies)[bodies[-1].file], (bodies[-1].heads or {}).get(MAIN)


def _continue_in_pi(session: Session, leaf: EntryId | None, cwd: str) -> ContinuedSession:
    """Write a fork to the folder in which pi looks for the sessions of a project. Its format is our own."""
    folder = os.path.join(get_sources()[PI], encode_folder_name(cwd))
    make_private_directory(folder)
    with catalog.fork(session, at=None if leaf is None else session.tree[leaf], dir=folder, cwd=cwd) as forked:
        file = forked.location
        return ContinuedSession(
            id=forked.id, file=file, command=["pi", "--session", file], import_command=[], cwd=cwd, omitted=[]
        )


def _add_json_entry(path: str, entry: JsonEntry) -> None:
    """Set a value in a JSON file, unless it has one there. The file is replaced atomically."""
    try:
        value: object = read_json(read_regular_file(path))
    except FileNotFoundError:
        value = {}
    except OSError as error:
        raise StoreError(path, format_os_error(error)) from error
    if not is_object(value):
        raise StoreError(path, "it is not a JSON object; nothing was added to it")
    inner = value
    for key in entry.keys[:-1]:
        child = inner.setdefault(key, {})
        if not is_object(child):
            raise StoreError(path, f"{key!r} is not a JSON object; nothing was added to it")
        inner = child
    if entry.keys[-1] in inner:
        return
    inner[entry.keys[-1]] = entry.value
    make_private_directory(os.path.dirname(os.path.abspath(path)))
    write_private(os.path.realpath(path), json.dumps(value, ensure_ascii=False, indent=2).encode())
