"""The catalog: where sessions live, and how they are made and found.

Sessions live in `$SESSIONTREE_HOME/sessions/<encoded cwd>/`, by default under `~/.sessiontree`.
They are found by path, by id or the beginning of one, by name, or as the most recent one here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from msgspec import Struct

from sessiontree.core.plan import plan_fork
from sessiontree.core.times import iso
from sessiontree.errors import Ambiguous, InvalidOperation, NotFound, SessionTreeError
from sessiontree.format.codec import NotJson, read_header, read_object, write_header
from sessiontree.format.fork import path_fork_lines
from sessiontree.format.repair import Repair, found_heads, repaired
from sessiontree.session import Place, Session, clean_name
from sessiontree.store.jsonl import Durability, JsonlStore
from sessiontree.store.memory import MemoryStore

SUFFIX = ".jsonl"
RECENT = "@"
"""Stands for the most recent session of this folder."""


def home() -> str:
    """Where sessiontree keeps its files."""
    return os.path.expanduser(os.environ.get("SESSIONTREE_HOME") or "~/.sessiontree")


def sessions_dir() -> str:
    return os.path.join(home(), "sessions")


def folder_of(cwd: str) -> str:
    """The name of the folder for sessions of `cwd`."""
    flat = cwd.removeprefix("/").translate(str.maketrans({"/": "-", "\\": "-", ":": "-", "\0": "-"}))
    if len(flat.encode("utf-8", "surrogateescape")) > 200:
        import hashlib

        flat = f"{flat[:60]}-{hashlib.sha256(os.fsencode(cwd)).hexdigest()[:16]}"
    return f"--{flat}--"


def new_session_id() -> str:
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
    """A new session for the folder `cwd`, in its place under the home, in `dir`, or as `file`."""
    where = os.path.abspath(cwd)
    id = new_session_id()
    store = JsonlStore(_new_file(id, where, dir, file), durability=durability)
    return Session.create(store, id=id, cwd=where, name=name)


def memory(name: str | None = None, *, cwd: str = "") -> Session:
    """A new session that lives in memory alone."""
    return Session.create(MemoryStore(), id=new_session_id(), cwd=cwd, name=name)


def open(session: str | os.PathLike[str], *, read_only: bool = False, durability: Durability = "fsync") -> Session:
    """Open a session by path, id, the beginning of an id, or name. Reading changes nothing."""
    store = JsonlStore(find(session), durability=durability)
    return Session(store, read_only="it was opened for reading" if read_only else None)


def recent(cwd: str | os.PathLike[str] = ".") -> Session | None:
    """The session of the folder `cwd` that was written to last; `None` when there is none."""
    file = _recent_file(os.path.abspath(cwd))
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
    id, stamp = new_session_id(), iso(time.time_ns() // 1_000_000)
    leaf = session.place(at)
    title = clean_name(name)
    header = write_header(
        id=id,
        timestamp=stamp,
        cwd=session.cwd,
        parent_session=_absolute(session),
        forked_from=leaf,
        title=session.name if whole and not session.tree.named else None,
    )
    if whole:
        lines = session.entry_lines()
    else:
        lines = path_fork_lines(
            plan_fork(session.tree, leaf), name=title, now=stamp, new_id=lambda: os.urandom(8).hex()
        )
    if session.file is None and dir is None and file is None:
        store = MemoryStore()
    else:
        store = JsonlStore(_new_file(id, session.cwd, dir, file))
    store.create([header, *lines])
    forked = Session(store)
    if whole and title is not None:
        forked.rename(title)
    if whole and at != "HEAD":
        forked.switch(leaf)
    return forked


class RepairReport(Struct, frozen=True, kw_only=True):
    """What `repair` did."""

    repairs: tuple[Repair, ...]
    file: str | None
    """The new file; `None` when nothing had to be done, or a line appended to the session was enough."""


def repair(session: Session, *, file: str | os.PathLike[str] | None = None) -> RepairReport:
    """Make a damaged session sound, as a new file or by appending, never in place.

    The new file is beside the old one unless `file` is given; lines that are no entries are left out of it.
    """
    heads, done = found_heads(session.tree, session.heads)
    lines, changed = repaired(session.tree, lambda: os.urandom(8).hex())
    left_out = [
        Repair(kind=problem.kind, message="it is left out, and stays in the damaged file", line=problem.line)
        for problem in session.problems
        if problem.severity == "fault" and problem.entry is None
    ]
    repairs = (*left_out, *changed, *done)
    if not changed and not left_out:
        if done:
            session.restore_heads(heads)
        return RepairReport(repairs=repairs, file=None)
    id, stamp = new_session_id(), iso(time.time_ns() // 1_000_000)
    header = write_header(
        id=id, timestamp=stamp, cwd=session.cwd, parent_session=_absolute(session), title=session.name
    )
    target = os.fspath(file) if file is not None else f"{session.where.removesuffix(SUFFIX)}.repaired-{id[-8:]}{SUFFIX}"
    store = JsonlStore(target)
    store.create([header, *lines])
    with Session(store) as sound:
        sound.restore_heads(heads)
    return RepairReport(repairs=repairs, file=target)


def _absolute(session: Session) -> str | None:
    return None if session.file is None else str(session.file.absolute())


def _new_file(id: str, cwd: str, dir: str | os.PathLike[str] | None, file: str | os.PathLike[str] | None) -> str:
    if file is not None:
        return os.fspath(file)
    stamp = iso(time.time_ns() // 1_000_000).replace(":", "-").replace(".", "-")
    folder = os.path.join(sessions_dir(), folder_of(cwd)) if dir is None else os.fspath(dir)
    return os.path.join(folder, f"{stamp}_{id}{SUFFIX}")


# Finding


def session_files() -> Iterator[str]:
    """Every session file under the home, the one written to last first."""
    try:
        folders = [entry.path for entry in os.scandir(sessions_dir()) if entry.is_dir()]
    except FileNotFoundError:
        return
    files = [
        (entry.stat().st_mtime_ns, entry.path)
        for folder in folders
        for entry in os.scandir(folder)
        if entry.name.endswith(SUFFIX) and entry.is_file()
    ]
    for _, path in sorted(files, reverse=True):
        yield path


def find(session: str | os.PathLike[str]) -> str:
    """The file of a session. Raises `NotFound` or `Ambiguous`."""
    text = os.fspath(session)
    if text == RECENT:
        file = _recent_file(os.getcwd())
        if file is None:
            raise NotFound("session", RECENT, "no session was started in this folder")
        return file
    if isinstance(session, os.PathLike) or text.endswith(SUFFIX) or os.sep in text or os.path.isfile(text):
        if not os.path.lexists(text):
            raise NotFound("session file", text)
        return text
    if not text:
        raise InvalidOperation("a session needs a path, an id or a name")
    files = list(session_files())
    by_id = [file for file in files if id_of(file).startswith(text)]
    exact = [file for file in by_id if id_of(file) == text]
    matches = exact or by_id if len(text) >= 4 else []
    matches = matches or [file for file in files if _is_named(file, text)]
    if len(matches) > 1:
        raise Ambiguous("session", text, [id_of(file) for file in matches])
    if not matches:
        raise NotFound("session", text, "a session is a path, an id, a name, or @ for the most recent here")
    return matches[0]


def id_of(file: str) -> str:
    """The session id in a file's name."""
    return os.path.basename(file).removesuffix(SUFFIX).rpartition("_")[2]


def _is_named(file: str, name: str) -> bool:
    """Whether a session has this name; one bad file spoils nothing."""
    try:
        return open(file, read_only=True).name == name
    except (OSError, SessionTreeError):
        return False


def _recent_file(cwd: str) -> str | None:
    try:
        files = [
            (entry.stat().st_mtime_ns, entry.path)
            for entry in os.scandir(os.path.join(sessions_dir(), folder_of(cwd)))
            if entry.name.endswith(SUFFIX) and entry.is_file()
        ]
    except FileNotFoundError:
        return None
    return next((path for _, path in sorted(files, reverse=True) if _cwd_of(path) == cwd), None)


def _cwd_of(path: str) -> str | None:
    """The folder in a file's header: two folders may share one name in the catalog."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC), "rb") as file:
            raw = file.readline(1 << 20)
        header = read_header(raw, read_object(raw))
    except (OSError, NotJson):
        return None
    return None if header is None else header.cwd
