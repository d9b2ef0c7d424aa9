"""Shared by the reliability tests: children to kill, and checks that must hold for a file whatever happened to it."""

from __future__ import annotations

import json
import multiprocessing
import os
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import sessiontree as st
from tests.reliability.child import make_text

ROOT = Path(__file__).parents[2]
TORTURE = bool(os.environ.get("SESSIONTREE_TORTURE"))
"""Set by `make torture`, which runs the same harnesses many more times."""

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["tests.reliability.child", "tests.reliability.remote", "sessiontree.library.catalog"])


def times(count: int, *, torture: int) -> int:
    return torture if TORTURE else count


class Child:
    """A process that writes acknowledged entries to a pipe."""

    def __init__(self, process: BaseProcess, pipe: Connection) -> None:
        self._process, self._pipe = process, pipe
        self._told = b""

    def wait_for(self, acks: int, *, seconds: float = 10) -> None:
        """Wait until the child has written `acks` lines, or has ended."""
        while self._told.count(b"\n") < acks and self._pipe.poll(seconds) and self._read():
            pass

    def _read(self) -> bool:
        more = os.read(self._pipe.fileno(), 1 << 16)
        self._told += more
        return bool(more)

    def read_acks(self) -> list[str]:
        """Return everything the child wrote until now."""
        while self._pipe.poll(0) and self._read():
            pass
        return self._told.decode().splitlines()

    def kill(self) -> list[str]:
        """Kill the child, and return everything it wrote."""
        self._process.kill()
        return self.rest()

    def rest(self, seconds: float = 120) -> list[str]:
        """Return everything the child wrote until its end."""
        while self._pipe.poll(seconds) and self._read():
            pass
        self._process.join(seconds)
        assert not self._process.is_alive(), "the child hangs"
        self._pipe.close()
        return self._told.decode().splitlines()

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()


@contextmanager
def start_child(work: Callable[..., None], *args: Any) -> Iterator[Child]:
    """Start a child that runs `work(*args, pipe)`. It is killed when the block ends."""
    mine, theirs = _forks.Pipe(duplex=False)
    process = _forks.Process(target=work, args=(*args, theirs))
    process.start()
    theirs.close()
    try:
        yield Child(process, mine)
    finally:
        process.kill()
        process.join()
        process.close()


def run_child(
    *args: str, before: Sequence[str] = (), seconds: float = 60, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `child.py` to its end, under a command `before` it that injects faults or limits."""
    command = [*before, sys.executable, "-m", "tests.reliability.child", *args]
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def read_lines(file: Path) -> list[bytes]:
    """Return the lines of a file that must consist of whole lines."""
    data = file.read_bytes()
    assert data.endswith(b"\n"), f"the last line has no newline: {data[-80:]!r}"
    return data[:-1].split(b"\n")


def decode_lines(lines: Iterable[bytes], *, torn: bool = False) -> list[dict[str, Any]]:
    """Decode lines. With `torn`, lines that a killed writer left unfinished are skipped, and no others."""
    wires: list[dict[str, Any]] = []
    for line in lines:
        try:
            wires.append(json.loads(line))
        except ValueError:
            if not torn:
                raise
    return wires


def check_acks(file: Path, acks: Iterable[str], *, torn: bool = False) -> st.Session:
    """Check that every acknowledged entry is present once and unchanged, every line is whole, and ids are unique.

    With `torn`, there may be lines between them that a killed writer left unfinished.
    """
    wires = decode_lines(read_lines(file), torn=torn)
    count = Counter(wire["id"] for wire in wires[1:])
    acked = Counter(acks)
    assert not {id for id, number in acked.items() if number > 1}, "acknowledged twice"
    lost = [id for id in acked if count[id] == 0]
    assert not lost, f"{len(lost)} of {len(acked)} acknowledged entries are lost"
    assert not [id for id, number in count.items() if number > 1], "an entry is duplicated"
    check_texts([wire["message"]["content"] for wire in wires[1:] if wire["type"] == "message"])
    session = st.open(file, read_only=True)
    faults = [problem for problem in session.problems if problem.severity == "fault"]
    assert not [problem for problem in faults if not torn or problem.kind != "malformed_line"], faults
    assert {entry.id for entry in session.tree} == {wire["id"] for wire in wires[1:]}
    return session


def check_texts(texts: list[str]) -> None:
    """Check that every entry is unchanged, and every batch complete."""
    batches: Counter[tuple[str, str, str]] = Counter()
    for text in texts:
        if text.count("/") >= 4:
            writer, number, batch, size = text.split("/")[:4]
            said = make_text(writer, int(number), int(batch), int(size))
            assert text == said, f"an entry was changed: {text[:80]}"
            batches[writer, number, batch] += 1
    parts = {said: count for said, count in batches.items() if count != int(said[2])}
    assert not parts, f"incomplete batches: {parts}"


def torn_files(file: Path) -> list[Path]:
    return sorted(file.parent.glob(f"{file.name}.torn-*"))


def read_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def find_accessible_paths(folder: Path) -> dict[str, str]:
    """Return the paths in a folder that other users may access, with their modes."""
    found: dict[str, str] = {}
    for path in folder.rglob("*"):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if mode & ~(0o700 if path.is_dir() else 0o600):
            found[str(path.relative_to(folder))] = oct(mode)
    return found


@contextmanager
def suspend_lock_holder(lock: Path) -> Iterator[int]:
    """Start a process that is suspended while it holds a lock file, and yield its id."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    code = (
        "import fcntl, os, signal, sys\n"
        "fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)\n"
        "fcntl.flock(fd, fcntl.LOCK_EX)\n"
        "os.kill(os.getpid(), signal.SIGSTOP)\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(lock)])
    try:
        _, status = os.waitpid(holder.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        yield holder.pid
    finally:
        holder.kill()
        holder.wait()
