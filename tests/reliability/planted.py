"""Faults to plant in a child process, which prove that every harness finds them.

Each function patches the store of the process it is called in, which is always a child for this purpose. `pieces` is
not a fault: it slows down writes, and a kill is then more likely to hit one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from sessiontree.session import session as sessions
from sessiontree.store import batch_journal, file_operations, jsonl, lock, sibling_files
from sessiontree.store.base import Cursor
from sessiontree.store.jsonl import JsonlStore

PIECE = 512


def pieces() -> None:
    """Write piece by piece, as the kernel may do."""

    def write_all(fd: int, data: bytes) -> None:
        for start in range(0, len(data), PIECE):
            os.write(fd, data[start : start + PIECE])

    jsonl.write = lambda fd, data: os.write(fd, data[:PIECE])
    jsonl.write_all = sibling_files.write_all = write_all


def late_write() -> None:
    """Acknowledge appends while they are only in memory."""
    append = JsonlStore.append
    pending: list[bytes] = []
    begun: list[Cursor] = []

    def write_later(self: JsonlStore, lines: Sequence[bytes], *, after: Cursor) -> Cursor:
        begun[:] = begun or [after]
        pending.extend(lines)
        if len(pending) < 4:
            identity, start, seen = after.value
            data = b"".join(line + b"\n" for line in lines)
            return Cursor((identity, start + len(data), (seen + data)[-jsonl.CURSOR_CONTEXT_SIZE :]))
        cursor = append(self, pending, after=begun.pop())
        pending.clear()
        return cursor

    JsonlStore.append = write_later


def no_mending() -> None:
    """Append to an unfinished last line without ending it."""

    def at(self: JsonlStore, after: Cursor) -> tuple[int, int]:
        return self._open_current_file()[0], after.value[1]

    JsonlStore._check_at_end = at


def drop_tail() -> None:
    """Cut off an unfinished last line without saving it."""
    JsonlStore._save_torn_tail = lambda self, start, tail: None
    JsonlStore._move_tail = lambda self, fd, start, size: os.ftruncate(fd, start) is None


def no_roll_back() -> None:
    """Do not roll back a failed write."""
    JsonlStore._roll_back = lambda self, fd, data, start: None


def no_poison() -> None:
    """Continue after a failed sync as if it had succeeded."""
    JsonlStore._poison = lambda self, reason: None


def raw_errors() -> None:
    """Raise errors of the operating system unconverted."""

    def fail(self: JsonlStore, error: OSError) -> NoReturn:
        raise error

    JsonlStore._raise_store_error = fail


def rewrite_in_place() -> None:
    """Rewrite by truncating the file and writing it again."""

    def replace(self: JsonlStore, lines: Sequence[bytes], *, after: Cursor) -> Cursor:
        fd = self._open_current_file()[0]
        os.ftruncate(fd, 0)
        for line in lines:
            os.write(fd, line + b"\n")
        os.fsync(fd)
        return self.read().cursor

    JsonlStore.replace = replace


def write_header_later() -> None:
    """Create a session empty, and write its header afterwards."""

    def create(self: JsonlStore, lines: Sequence[bytes]) -> Cursor:
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        for line in lines:
            os.write(fd, line + b"\n")
        os.fsync(fd)
        os.close(fd)
        return self.read().cursor

    JsonlStore.create = create


def no_lock() -> None:
    """Do not lock."""
    jsonl.flock = lock.flock = lambda *_: None


def no_notes() -> None:
    """Do not write notes of batches."""
    lock.batch_journal = _Without(batch_journal, "write_note")


def write_newline_separately() -> None:
    """Write text and newline separately, without lock and without a check for other writers."""
    no_lock()

    def append(self: JsonlStore, lines: Sequence[bytes], *, after: Cursor) -> Cursor:
        fd = self._open_current_file()[0]
        for line in lines:
            os.write(fd, line)
            os.write(fd, b"\n")
        return self.read(after).cursor

    JsonlStore.append = append


def no_sync() -> None:
    """Do not sync anything."""
    jsonl.os = file_operations.os = sibling_files.os = _Without(os, "fsync", "fdatasync")


class _Without:
    """A module some of whose functions do nothing."""

    def __init__(self, module: Any, *names: str) -> None:
        self._module, self._names = module, names

    def __getattr__(self, name: str) -> Any:
        return (lambda *_: None) if name in self._names else getattr(self._module, name)


def skip_checks() -> None:
    """Do not check whether the file is still the one that was read."""

    def append(self: JsonlStore, lines: Sequence[bytes], *, after: Cursor) -> Cursor:
        with open(self.path, "ab") as file:
            file.write(b"".join(line + b"\n" for line in lines))
        return self.read().cursor

    JsonlStore.append = append


def wide_modes() -> None:
    """Create files with the mode that the umask allows."""
    made = os.open

    def open_widely(path: str, flags: int, mode: int = 0o777, **more: Any) -> int:
        return made(path, flags, 0o666, **more)

    module = _Without(os, "fchmod", "chmod")
    module.open = open_widely  # pyright: ignore
    jsonl.os = file_operations.os = lock.os = sibling_files.os = module


def run_code() -> None:
    """Run the `conftest.py` of the folder when a session is opened."""
    load = sessions.Session.__init__

    def loaded(self: Any, store: Any, **more: Any) -> None:
        load(self, store, **more)
        script = os.path.join(os.path.dirname(store.location), "conftest.py")
        with open(script) as file:
            exec(compile(file.read(), script, "exec"))

    sessions.Session.__init__ = loaded


def connect_to_network() -> None:
    """Connect to the network when a session is opened."""
    import socket

    load = sessions.Session.__init__

    def loaded(self: Any, *args: Any, **more: Any) -> None:
        load(self, *args, **more)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            asking.connect(("127.0.0.1", 9))

    sessions.Session.__init__ = loaded


def break_on_odd_labels() -> None:
    """Fail on a label of an entry whose parent is `null`, which only structured fuzzing finds."""
    load = sessions.Session._load

    def fail_on_odd_label(self: Any) -> Any:
        loaded = load(self)
        for entry in loaded.tree:
            target = getattr(entry.body, "target", None)
            if entry.type == "label" and target in loaded.tree and loaded.tree[target].parent is None:
                raise ZeroDivisionError("an odd label")
        return loaded

    sessions.Session._load = fail_on_odd_label


def hang_on_empty_file() -> None:
    """Hang on a file without entries."""
    load = sessions.Session._load

    def hang(self: Any) -> Any:
        loaded = load(self)
        while not len(loaded.tree):
            pass
        return loaded

    sessions.Session._load = hang


def exhaust_memory() -> None:
    """Allocate a gigabyte for a file without entries."""
    load = sessions.Session._load

    def allocate(self: Any) -> Any:
        loaded = load(self)
        return loaded if len(loaded.tree) else [bytes(1 << 20) for _ in range(1 << 10)]

    sessions.Session._load = allocate


PLANTS: dict[str, Callable[[], None]] = {
    plant.__name__: plant
    for plant in (
        pieces,
        late_write,
        no_mending,
        drop_tail,
        no_roll_back,
        no_poison,
        raw_errors,
        rewrite_in_place,
        write_header_later,
        no_lock,
        no_notes,
        write_newline_separately,
        no_sync,
        skip_checks,
        wide_modes,
        run_code,
        connect_to_network,
        break_on_odd_labels,
        hang_on_empty_file,
        exhaust_memory,
    )
}
