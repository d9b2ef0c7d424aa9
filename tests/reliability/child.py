"""Code for child processes that are killed, whose system calls fail, or that run out of resources.

`python -m tests.reliability.child SCENARIO FILE [PLANT…]` runs a scenario step by step and prints a line of JSON
after each: what the step wrote, and its error, if any. `harness.start_child` runs the functions with a pipe, to which
they write the acknowledged entries.
"""

from __future__ import annotations

import json
import os
import pathlib
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import sessiontree as st
from sessiontree.errors import SessionTreeError
from sessiontree.store import file_operations, jsonl
from tests.reliability.planted import PLANTS

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

Step = tuple[str, Callable[[], Any]]


def plant(names: Sequence[str]) -> None:
    for name in names:
        PLANTS[name]()


# A program that does not lock


def write_large_lines(file: str, count: int, size: int, pipe: Connection) -> None:
    """Append lines as a peer does: each with one `write`, without a lock, and at the lowest priority."""
    os.nice(19)
    for number in range(count):
        line = json.dumps({"type": "peer", "id": f"peer-{number}", "text": "x" * size}).encode() + b"\n"
        fd = os.open(file, os.O_WRONLY | os.O_APPEND)
        written = os.write(fd, line)
        os.close(fd)
        assert written == len(line)
        os.write(pipe.fileno(), f"peer-{number}\n".encode())


# Scenarios, for the harnesses that make calls fail. The name of a step is the text it writes.


def run(steps: Iterator[Step]) -> None:
    for name, step in steps:
        outcome: dict[str, Any] = {"step": name}
        try:
            step()
        except SessionTreeError as error:
            outcome["error"] = str(error)
        except Exception as error:  # noqa: BLE001 - reported, and checked by the test
            outcome["error"] = outcome["untyped"] = repr(error)
        os.write(1, json.dumps(outcome).encode() + b"\n")


class LazySession:
    """The session of a scenario, opened on demand."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._session: st.Session | None = None

    def __call__(self) -> st.Session:
        if self._session is None:
            self._session = st.open(self.file)
        return self._session

    def reopen(self) -> None:
        self.close()
        self()

    def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            session.close()

    def put(self, session: st.Session) -> None:
        self._session = session


def append(file: str) -> Iterator[Step]:
    session = LazySession(file)
    yield "one", lambda: session().append(st.user("one" + "." * 700))
    yield "two three four", lambda: session().extend([st.user(f"{n}{'.' * 300}") for n in ("two", "three", "four")])
    yield "five", lambda: session().append(st.user("five"))
    yield "reopen", session.reopen
    yield "six", lambda: session().append(st.user("six"))
    yield "close", session.close
    yield "seven", lambda: session().append(st.user("seven"))


def torn(file: str) -> Iterator[Step]:
    session = LazySession(file)
    yield "one", lambda: session().append(st.user("one"))
    yield "two", lambda: session().append(st.user("two"))
    yield "reopen", session.reopen
    yield "six", lambda: session().append(st.user("six"))


def aside(file: str) -> Iterator[Step]:
    from sessiontree.library import catalog

    path, folder = pathlib.Path(file), os.path.dirname(file)
    yield "list", lambda: st.sessions(dir=folder)
    yield "search", lambda: st.search("needle", dir=folder)
    yield "archive", lambda: catalog.archive(path)
    yield "show", lambda: catalog.archive(path, archived=False)
    yield "repair", lambda: st.repair(st.open(path), file=f"{file}.sound")
    yield "delete", lambda: catalog.delete(path)


def flush(file: str) -> Iterator[Step]:
    session = LazySession(file)
    yield "open", lambda: session.put(st.open(file, durability="flush"))
    yield "one", lambda: session().append(st.user("one"))
    yield "close", session.close
    yield "two", lambda: session().append(st.user("two"))


def create(file: str) -> Iterator[Step]:
    session = LazySession(file)
    yield "create", lambda: session.put(st.create(name="made", file=file))
    yield "create again", lambda: None if os.path.exists(file) else session.put(st.create(name="made", file=file))
    yield "one", lambda: session().append(st.user("one"))
    yield "reopen", session.reopen
    yield "two", lambda: session().append(st.user("two"))


def fork(file: str) -> Iterator[Step]:
    session = LazySession(file)
    to = os.path.join(os.path.dirname(file), "deep", "forked.jsonl")
    held = LazySession(to)
    yield "fork", lambda: held.put(session().fork(file=to))
    yield "fork again", lambda: None if os.path.exists(to) else held.put(session().fork(file=to))
    yield "one", lambda: held().append(st.user("one"))
    yield "reopen", held.reopen
    yield "two", lambda: held().append(st.user("two"))


def migrate(file: str) -> Iterator[Step]:
    session = LazySession(file)
    yield "migrate", lambda: session().migrate()
    yield "reopen", session.reopen
    yield "migrate again", lambda: session().migrate()
    yield "one", lambda: session().append(st.user("one"))


def index(file: str) -> Iterator[Step]:
    """The index is a cache: whatever fails in it, listing and search are correct."""
    from sessiontree.library import catalog

    def check_listing() -> None:
        assert [summary.name for summary in catalog.sessions(dir=os.path.dirname(file))] == ["indexed"]

    def check_search() -> None:
        assert len(catalog.search("needle", dir=os.path.dirname(file))) == 1

    yield "list", check_listing
    yield "search", check_search
    yield "one", lambda: LazySession(file)().append(st.user("one needle"))
    yield "list again", check_listing


SCENARIOS: dict[str, Callable[[str], Iterator[Step]]] = {
    "append": append,
    "torn": torn,
    "aside": aside,
    "flush": flush,
    "create": create,
    "fork": fork,
    "migrate": migrate,
    "index": index,
}


def fill(file: str, *, room: Callable[[], None]) -> None:
    """Append until the disk is full, free space, append again, and print the result as JSON."""
    told: dict[str, Any] = {"acks": [], "errors": [], "untyped": []}
    session = st.create(file=file)
    for number in range(2000):
        if len(told["errors"]) == 9:
            break
        text = f"{number}:" + "x" * (997 * (number % 5))
        bodies = [st.user(f"{text}{part}") for part in range(1 + number % 3)]
        try:
            told["acks"] += [[entry.id, entry.body.message["content"]] for entry in session.extend(bodies)]
        except SessionTreeError as error:
            told["errors"].append(str(error))
            with open(file, "rb") as written:
                told.setdefault("ends", []).append(written.read()[-1:].decode())
            told.setdefault("memory", []).append(len(session.tree))
        except Exception as error:  # noqa: BLE001 - reported, and checked by the test
            told["untyped"].append(repr(error))
            break
    told["memory_after"] = len(session.tree)
    room()
    try:
        last = session.append(st.user("room again"))
        told["acks"].append([last.id, "room again"])
        session.close()
    except Exception as error:  # noqa: BLE001
        told["untyped"].append(repr(error))
    with open(file, "rb") as written:
        told["lines"] = written.read().decode().split("\n")
    print(json.dumps(told))


def fill_a_small_disk(folder: str) -> None:
    """Run in a private mount namespace, where only this process sees the small disk."""
    import subprocess

    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", folder], check=True)
    ballast = os.path.join(folder, "ballast")
    with open(ballast, "wb") as file:
        file.write(bytes(16384))
    fill(os.path.join(folder, "s.jsonl"), room=lambda: os.unlink(ballast))


def fill_up_to_a_limit(folder: str) -> None:
    """Run under `prlimit --fsize`, whose soft limit can be raised again."""
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    fill(os.path.join(folder, "s.jsonl"), room=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard)))


def read_a_hostile_file(file: str) -> None:
    """Open a file and read it as programs do, with little memory, and print the result as JSON."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (512 << 20, 512 << 20))
    told: dict[str, Any] = {}
    start = time.monotonic()
    try:
        with st.open(file, durability="none") as session:
            session.context()
            told["entries"] = len(session.tree)
            told["problems"] = sorted({problem.kind for problem in session.problems})
            session.append(st.user("continue"))
    except SessionTreeError as error:
        told["error"] = str(error)
    except BaseException as error:  # noqa: BLE001 - reported, and checked by the test
        told["untyped"] = repr(error)[:200]
    told["seconds"] = round(time.monotonic() - start, 2)
    told["megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(json.dumps(told))


class Witness:
    """Records, outside the disk, the acknowledged entries and the length of the disk's log at that time."""

    def __init__(self) -> None:
        self._log = os.environ["POWER_LOG"]
        self._acks = open(os.environ["POWER_ACKS"], "a")  # noqa: SIM115 - open to the end of the process

    def __call__(self, kind: str, session: st.Session, *entries: st.Entry) -> None:
        assert session.file is not None
        for id in [entry.id for entry in entries] or [""]:
            print(os.path.getsize(self._log), kind, f"{session.file.name}:{id}", file=self._acks, flush=True)


def append_on_a_disk(folder: str) -> None:
    """New sessions in new folders, appends, batches and forks, all synced."""
    tell = Witness()
    for number in range(4):
        file = os.path.join(folder, f"{number}", "deep", f"s{number}.jsonl")
        session = st.create(name="power", file=file)
        tell("made", session)
        for turn in range(20):
            tell("appended", session, session.append(st.user(f"{turn}" * (1 + 50 * turn))))
            tell("appended", session, *session.extend([st.user("x" * 100 * turn) for _ in range(3)]))
        forked = session.fork(file=os.path.join(folder, "forks", f"f{number}.jsonl"))
        tell("forked", forked)
        tell("appended", forked, forked.append(st.user("on")))
        session.close()


def rewrite_on_a_disk(folder: str) -> None:
    """Files of an old version that are migrated, and torn tails that are repaired."""
    tell = Witness()
    data = pathlib.Path(__file__).parents[1] / "conformance" / "data" / "pi-v1" / "large-session.jsonl"
    old = b"".join(data.read_bytes().splitlines(keepends=True)[:20])
    for number in range(12):
        file = os.path.join(folder, f"m{number}.jsonl")
        fd = os.open(file, os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(fd, old)
        os.fsync(fd)
        os.close(fd)
        file_operations.sync_directory(folder)
        session = st.open(file)
        session.migrate()
        tell("migrated", session)
        tell("appended", session, session.append(st.user("one")))
        session.close()
        with open(file, "ab") as end:
            end.write(b'{"type":"message","id":"torn')
        session = st.open(file)
        tell("appended", session, session.append(st.user("two")))
        session.close()


def append_on_a_disk_unsynced(folder: str, durability: Any) -> None:
    """Appends without sync. From time to time the whole disk is synced, as the operating system does."""
    import subprocess

    tell = Witness()
    session = st.create(file=os.path.join(folder, "s.jsonl"), durability=durability)
    for turn in range(600):
        tell("appended", session, session.append(st.user("y" * (turn * 37 % 3000))))
        if turn % 40 == 39:
            subprocess.run(["sync", "-f", folder], check=True)
    session.close()


# Writers, for the harnesses that kill


def make_text(writer: str, number: int, batch: int, size: int) -> str:
    """Return a text whose start determines the rest and the size of its batch."""
    start = f"{writer}/{number}/{batch}/{size}/"
    return start + "é" * max(0, size - len(start))


def tell(acks: Connection, *entries: st.Entry) -> None:
    os.write(acks.fileno(), b"".join(b"%s\n" % entry.id.encode() for entry in entries))


def append_until_killed(file: str, durability: Any, seed: int, plants: Sequence[str], acks: Connection) -> None:
    plant(plants)
    choose = random.Random(seed)
    writer = f"w{seed}"
    session = st.open(file, durability=durability)
    for number in range(150):
        size = choose.choice((10, 10, 300, 5_000, 100_000))
        if number % 4 == 3:
            tell(acks, *session.extend([st.user(make_text(writer, number, 3, size)) for _ in range(3)]))
        else:
            tell(acks, session.append(st.user(make_text(writer, number, 1, size))))
    time.sleep(30)


def append_once(file: str, plants: Sequence[str], acks: Connection) -> None:
    plant(plants)
    with st.open(file, durability="flush") as session:
        tell(acks, session.append(st.user("after")))


def die_in_a_write(file: str, sizes: Sequence[int], at: int, plants: Sequence[str], acks: Connection) -> None:
    """Append, and die after exactly `at` bytes of the write reached the operating system."""
    plant(plants)

    def write_and_die(fd: int, data: bytes) -> None:
        os.write(fd, data[:at])
        os.kill(os.getpid(), signal.SIGKILL)

    session = st.open(file, durability="flush")
    tell(acks, session.append(st.user("before")))
    jsonl.write = write_and_die
    session.extend([st.user("x" * size) for size in sizes])


def write_among_others(
    file: str, writer: str, count: int, seed: int, largest: int, plants: Sequence[str], acks: Connection
) -> None:
    """Append `count` times to a private branch and to a shared one."""
    plant(plants)
    choose = random.Random(seed)
    session = st.open(file, durability="fsync" if seed % 4 == 0 else "flush")
    own = session.create_branch(writer, at=None, current=False)
    for number in range(count):
        size = choose.choice((10, 100, 100, 1_000, 10_000, largest))
        batch = choose.choice((1, 1, 1, 3))
        bodies = [st.user(make_text(writer, number, batch, size))] * batch
        if choose.random() < 0.7:
            tell(acks, *own.extend(bodies))
            continue
        for _ in range(1000):
            session.refresh()
            try:
                tell(acks, *session.extend(bodies, branch="main"))
                break
            except st.BranchMoved:
                continue
    session.close()
    os.write(acks.fileno(), b"done\n")


def write_in_threads(file: str, threads: int, count: int, plants: Sequence[str], acks: Connection) -> None:
    """Threads on one session, each with a private branch and all with a shared one."""
    import threading

    plant(plants)
    session = st.open(file, durability="flush")
    failed: list[str] = []

    def work(number: int) -> None:
        try:
            own = session.create_branch(f"t{number}", at=None, current=False)
            for n in range(count):
                body = st.user(make_text(f"t{number}", n, 1, 100))
                tell(acks, own.append(body) if n % 2 else session.append(body, branch="main"))
        except Exception as error:  # noqa: BLE001 - reported, and checked by the test
            failed.append(repr(error))

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    session.close()
    os.write(acks.fileno(), "".join(f"failed {error}\n" for error in failed).encode() or b"done\n")


def append_after_a_change(file: str, plants: Sequence[str], acks: Connection) -> None:
    """Open, wait for a file `go` above the folder, append, close, and print the result."""
    plant(plants)
    session = st.open(file, durability="flush")
    assert len(session.tree) > 0
    os.write(acks.fileno(), b"ready\n")
    go = os.path.join(os.path.dirname(file), "..", "go")
    for _ in range(4000):
        if os.path.exists(go):
            break
        time.sleep(0.005)
    try:
        session.append(st.user("mine"))
    except st.StoreError:
        os.write(acks.fileno(), b"refused\n")
        session.close()
        os.write(acks.fileno(), b"closed\n")
    else:
        os.write(acks.fileno(), b"written\n")


def main() -> None:
    os.umask(0)
    scenario, file, *plants = sys.argv[1:]
    plant(plants)
    if scenario in SCENARIOS:
        run(SCENARIOS[scenario](file))
    else:
        OTHERS[scenario](file)


OTHERS: dict[str, Callable[[str], None]] = {
    "small-disk": fill_a_small_disk,
    "limit": fill_up_to_a_limit,
    "hostile": read_a_hostile_file,
    "power-append": append_on_a_disk,
    "power-rewrite": rewrite_on_a_disk,
    "power-flush": lambda folder: append_on_a_disk_unsynced(folder, "flush"),
    "power-none": lambda folder: append_on_a_disk_unsynced(folder, "none"),
}

if __name__ == "__main__":
    main()
