"""One measurement of sessiontree, in a separate process: `python ours.py TASK '{"file": ...}'`.

Imports are not timed. Prints one line of JSON; times are in seconds.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter, time_ns
from typing import Any

import msgspec

import sessiontree as st
from sessiontree.core.outline import lay_out, run_steps, survey_tree
from sessiontree.core.timestamps import format_timestamp
from sessiontree.core.tree_rows import build_window
from sessiontree.library import catalog
from sessiontree.store.jsonl import JsonlStore

BATCH = 16
"""The number of appends timed together: few enough that other programs rarely interrupt a batch."""


def context(file: str) -> dict[str, Any]:
    """Open a session and build the context of the current leaf."""
    start = perf_counter()
    with st.open(file, read_only=True) as session:
        found = session.context()
        seconds = perf_counter() - start
    return {"seconds": seconds, "messages": len(found.messages)}


def open_tree(file: str) -> dict[str, Any]:
    """Open a session with the whole tree indexed, and measure the memory."""
    gc.collect()
    before = memory("VmRSS")
    start = perf_counter()
    session = st.open(file, read_only=True)
    entries, leaf = len(session.tree), session.heads.leaf
    seconds = perf_counter() - start
    added = memory("VmHWM") - before
    return {"seconds": seconds, "entries": entries, "leaf": leaf, "peak": added, "kept": memory("VmRSS") - before}


def tree_window(file: str) -> dict[str, Any]:
    """Build the rows around the leaf, and lay out the whole tree, of a session that is loaded."""
    tree, leaf = (session := st.open(file, read_only=True)).tree, session.heads.leaf
    tree.load()
    start = perf_counter()
    rows = len(build_window(tree, leaf, "default", leaf, 1000).rows)
    middle = perf_counter()
    whole = len(run_steps(lay_out(run_steps(survey_tree(tree, leaf)), "default")))
    return {"seconds": middle - start, "whole": perf_counter() - middle, "rows": rows, "of": whole}


def append(file: str, count: int, durability: str, group: int, scratch: str) -> dict[str, Any]:
    """Append messages and write the same bytes with plain `os.write`, in turn."""
    bodies = messages(file, count)
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        target = os.path.join(folder, "session.jsonl")
        session = st.create(file=target, durability=durability)  # type: ignore[arg-type]
        raw = os.open(os.path.join(folder, "raw"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        synced = os.open(os.path.join(folder, "synced"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        safely = SafeFile(os.path.join(folder, "safe"))
        flatly = SafeFile(os.path.join(folder, "flat"))
        store = JsonlStore(os.path.join(folder, "store"), durability=durability)  # type: ignore[arg-type]
        end = store.create([b"{}"])
        ours, bare, bare_synced, bare_safe, bare_flat, bare_store = [], [], [], [], [], []
        run_appends(session, bodies[:group], group)  # the first one opens the file
        for at in range(0, len(bodies), max(BATCH, group)):
            batch = copy_messages(bodies[at : at + max(BATCH, group)])
            before = os.path.getsize(target)
            ours.append(run_appends(session, batch, group) / len(batch))
            with open(target, "rb") as written:
                written.seek(before)
                lines = written.readlines()
            start = perf_counter()
            for line in lines:
                os.write(raw, line)
            bare.append((perf_counter() - start) / len(batch))
            start = perf_counter()
            for line in lines:
                safely.write(line)
            bare_safe.append((perf_counter() - start) / len(batch))
            start = perf_counter()
            for body in batch:
                flatly.append(body.message)
            bare_flat.append((perf_counter() - start) / len(batch))
            whole = [line[:-1] for line in lines]
            start = perf_counter()
            for at_line in range(0, len(whole), group):
                end = store.append(whole[at_line : at_line + group], after=end)
            bare_store.append((perf_counter() - start) / len(batch))
            if durability == "fsync":
                start = perf_counter()
                for at_line in range(0, len(lines), group):
                    for line in lines[at_line : at_line + group]:
                        os.write(synced, line)
                    os.fdatasync(synced)
                bare_synced.append((perf_counter() - start) / len(batch))
        session.close()
        store.close()
        disk = sum(entry.stat().st_size for entry in os.scandir(folder) if entry.name.startswith("session"))
    payload = sum(map(encode_payload, [*bodies, *bodies[:group]]))
    took = {"ours": ours, "raw": bare, "synced": bare_synced, "safe": bare_safe, "flat": bare_flat, "store": bare_store}
    return {**took, "disk": disk / payload}


class SafeFile:
    """The system calls that a safe append with several writers needs, and nothing else."""

    def __init__(self, path: str) -> None:
        self.folder = os.open(os.path.dirname(path), os.O_RDONLY)
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self.size = 0
        self.lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT)
        self.encode = msgspec.json.Encoder().encode
        self.leaf = ""
        self.ids: dict[str, int] = {}

    def write(self, line: bytes) -> None:
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        os.fstat(self.folder)  # names in it are what they were, so it is the lock that others take, and the file
        start = max(0, self.size - 64)
        os.pread(self.fd, self.size - start + 1, start)  # which ends where it did, in the same way
        os.write(self.fd, line)
        self.size = os.lseek(self.fd, 0, os.SEEK_CUR)  # and nobody without a lock wrote in between
        fcntl.flock(self.lock, fcntl.LOCK_UN)

    def append(self, message: dict[str, Any]) -> None:
        """Do the least that makes an entry of a message, without checks or defaults."""
        id = os.urandom(8).hex()
        wire = {
            "type": "message",
            "id": id,
            "parentId": self.leaf,
            "timestamp": format_timestamp(time_ns() // 1_000_000),
        }
        wire["branch"], wire["message"] = "main", message
        self.write(self.encode(wire) + b"\n")
        self.ids[id] = len(self.ids)
        self.leaf = id


def copy_messages(bodies: Sequence[st.Message]) -> list[st.Message]:
    """Return new copies of the messages, as an agent creates them."""
    return [st.Message(msgspec.json.decode(msgspec.json.encode(body.message))) for body in bodies]


def encode_payload(body: st.Message) -> int:
    """Return the payload of a message as compact JSON."""
    return len(json.dumps(body.message, separators=(",", ":"), ensure_ascii=False).encode())


def run_appends(session: st.Session, bodies: Sequence[st.Message], group: int) -> float:
    start = perf_counter()
    if group == 1:
        for body in bodies:
            session.append(body)
    else:
        for at in range(0, len(bodies), group):
            session.extend(bodies[at : at + group])
    return perf_counter() - start


def append_far(large: str, small: str, source: str) -> dict[str, Any]:
    """Append to a long and to a short session, in turn, and cut off the written lines."""
    bodies = messages(source, 1000)
    sizes = {file: os.path.getsize(file) for file in (large, small)}
    try:
        far, near = (st.open(file, durability="none") for file in (large, small))
        counts = len(far.tree), len(near.tree)
        times: tuple[list[float], list[float]] = ([], [])
        run_appends(far, bodies[:1], 1), run_appends(near, bodies[:1], 1)
        for at in range(0, len(bodies), BATCH):
            batch = bodies[at : at + BATCH]
            for session, seconds in zip((far, near), times, strict=True):
                seconds.append(run_appends(session, batch, 1) / len(batch))
        return {"far": times[0], "near": times[1], "entries": counts}
    finally:
        for file, size in sizes.items():
            os.truncate(file, size)
            Path(f"{file}.lock").unlink(missing_ok=True)


def first_prompt(file: str) -> dict[str, Any]:
    """Open a session and run an agent until its first request leaves, and measure the memory."""
    import asyncio

    return asyncio.run(_first_prompt(file))


async def _first_prompt(file: str) -> dict[str, Any]:
    from sessiontree.model.base import ModelInfo, Request
    from sessiontree.model.scripted import ScriptedModel

    class WatchedModel(ScriptedModel):
        left = 0.0

        def stream(self, request: Request) -> Any:
            self.left = perf_counter()
            return super().stream(request)

    # A window that no context of the corpus fills: otherwise the agent compacts first, which needs the whole path.
    info = ModelInfo(provider="bench", model="scripted", context_window=100_000_000)
    await st.Agent(st.memory().head, ScriptedModel(["ready"])).run("imports are not counted")
    gc.collect()
    before = memory("VmRSS")
    model = WatchedModel(["fine"], info=info)
    start = perf_counter()
    session = st.open(file, durability="none")
    outcome = await st.Agent(session.head, model).run("What is next?")
    added = memory("VmHWM") - before
    session.close()
    return {"seconds": model.left - start, "peak": added, "ok": outcome.ok}


def fork(file: str, scratch: str) -> dict[str, Any]:
    """Fork the path of the current leaf, with and without opening the source."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        start = perf_counter()
        session = st.open(file, read_only=True)
        loaded = len(session.tree)
        opened = perf_counter()
        forked = session.fork(dir=folder)
        done = perf_counter()
        forked.close()
        size = sum(entry.stat().st_size for entry in os.scandir(folder))
    return {"seconds": done - opened, "with_open": done - start, "entries": loaded, "bytes": size}


def sessions(agent: str, scratch: str) -> dict[str, Any]:
    """List all sessions, first without an index and then with it."""
    listing: Callable[..., Any] | None = getattr(st, "sessions", None)
    if listing is None:
        return {"skipped": "there is no st.sessions yet"}
    with tempfile.TemporaryDirectory(dir=scratch) as home:
        os.symlink(os.path.join(os.path.abspath(agent), "sessions"), os.path.join(home, "sessions"))
        os.environ["SESSIONTREE_HOME"] = home
        start = perf_counter()
        found = len(list(listing(all=True)))
        cold = perf_counter() - start
        warm: list[float] = []
        for _ in range(5):
            start = perf_counter()
            list(listing(all=True))
            warm.append(perf_counter() - start)
    return {"cold": cold, "warm": warm, "sessions": found}


def agent_turns(count: int, scratch: str) -> dict[str, Any]:
    """Turns of an agent with one tool call each, and the same model asked and the same entries appended without one.

    All synced, by turns. The model answers from a script, so what is left is the agent and its events.
    """
    import asyncio

    return asyncio.run(_agent_turns(count, scratch))


async def _agent_turns(count: int, scratch: str) -> dict[str, Any]:
    from sessiontree.core.messages import ToolCall
    from sessiontree.model.base import complete
    from sessiontree.model.scripted import ScriptedModel

    @st.tool
    async def look() -> str:
        """Look."""
        return "seen " * 100

    answers = [["I will look at it. ", ToolCall("c1", "look", {})], "This is what I have found there. " * 5]
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        session, bare_session = (st.create(file=os.path.join(folder, name)) for name in ("agent.jsonl", "bare.jsonl"))
        model, bare_model = ScriptedModel(), ScriptedModel()
        agent = st.Agent(session.head, model, [look], system="Be brief.")
        events = 0

        def listen(event: Any) -> None:
            nonlocal events
            events += 1

        agent.hooks.listen(listen)

        async def turn() -> float:
            model.add(*answers)
            start = perf_counter()
            outcome = await agent.run("What is there?")
            seconds = perf_counter() - start
            assert outcome.ok
            return seconds

        async def bare_turn(bodies: Sequence[Any], requests: Sequence[Any]) -> float:
            bare_model.add(*answers)
            start = perf_counter()
            bare_session.append(bodies[0])
            await complete(bare_model, requests[0])
            bare_session.append(bodies[1])
            bare_session.append(bodies[2])
            await complete(bare_model, requests[1])
            bare_session.append(bodies[3])
            return perf_counter() - start

        await turn()
        ours, bare = [], []
        for number in range(count):
            known = [entry.body for entry in session.head.path()[-4:]], model.requests[-2:]
            if number % 2:  # the first one pays for the pending writes of the other
                ours.append(await turn())
                bare.append(await bare_turn(*known))
            else:
                bare.append(await bare_turn(*known))
                ours.append(await turn())
        session.close()
        bare_session.close()
    return {"ours": ours, "bare": bare, "events": events}


def messages(file: str, count: int) -> list[st.Message]:
    """Return the first messages of a session of the corpus."""
    found: list[st.Message] = []
    with open(file, "rb") as lines:
        for line in lines:
            wire = json.loads(line)
            if wire["type"] == "message":
                found.append(st.Message(wire["message"]))
            if len(found) == count:
                break
    return found


def memory(key: str) -> float:
    """A figure of this process in MB: `VmRSS` is the memory it has now, `VmHWM` the most it ever had."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(key))


TASKS: dict[str, Callable[..., dict[str, Any]]] = {
    task.__name__: task
    for task in (context, open_tree, tree_window, append, append_far, first_prompt, agent_turns, fork, sessions)
}

if __name__ == "__main__":
    _ = catalog.open, catalog.fork, st.Session, st.Message
    print(json.dumps(TASKS[sys.argv[1]](**json.loads(sys.argv[2]))))
