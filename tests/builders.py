"""Build sessions in few words: a test shows their shape instead of JSON."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import pytest

from sessiontree.core.entries import Body, Entry, Message, iter_entries
from sessiontree.core.heads import Heads
from sessiontree.core.messages import user
from sessiontree.core.tree import Tree
from sessiontree.format.codec import encode_body, get_type, read_entry
from sessiontree.format.json_line import write_object
from sessiontree.format.session_reader import SessionReader

TIME = "2026-01-01T00:00:00.000Z"
TIME_MS = 1_767_225_600_000


def entry(
    id: str, parent: str | None = None, body: Body | dict[str, Any] | None = None, *, line: int = 0, **keys: Any
) -> Entry:
    """Return an entry as a peer writes it; `keys` are further keys of the line, such as `branch`."""
    said = user(id) if body is None else body
    fields = said if isinstance(said, dict) else {"type": get_type(said), **encode_body(said)}
    return read_entry(write_object({"id": id, "parentId": parent, "timestamp": TIME, **fields, **keys}), line)


def grow(shape: str, **bodies: Body | dict[str, Any]) -> Tree:
    """Build a tree from `"a>b>c b>d"`: a chain a-b-c and a second child d of b. The default is user messages."""
    tree = Tree()
    for chain in shape.split():
        parent = None
        for id in chain.split(">"):
            if id not in tree:
                tree.add(entry(id, parent, bodies.get(id), line=len(tree) + 2))
            parent = id
    return tree


def hang(*pairs: str) -> Tree:
    """Build a tree from pairs such as `"b<a"`, an entry b with the parent a, in any order; `"a"` has no parent."""
    tree = Tree()
    for line, pair in enumerate(pairs, start=2):
        id, _, parent = pair.partition("<")
        tree.add(entry(id, parent or None, line=line))
    return tree


def nest_lists(depth: int) -> list[Any]:
    """Return a list nested `depth` levels deep."""
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


@contextmanager
def limit_stack(frames: int) -> Generator[None]:
    """Limit the depth of the call stack to `frames` more."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + frames)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def raises_if_stack_is_shared() -> AbstractContextManager[object]:
    """Expect a `RecursionError` on Python 3.11. Later, calls of C code do not count against the limit of Python."""
    return pytest.raises(RecursionError) if sys.version_info < (3, 12) else nullcontext()


def count_calls(act: Callable[[], object]) -> int:
    """Count the calls that Python makes during `act`, including resumed generators."""
    made = 0

    def count(*_: object) -> None:
        nonlocal made
        made += 1

    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(None)
    return made


def interrupt_after(act: Callable[[], object], call: int) -> None:
    """Run `act` and interrupt it with Ctrl+C after `call` calls."""
    made = 0

    def count(*_: object) -> None:
        nonlocal made
        made += 1
        if made > call:
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        sys.setprofile(count)
        try:
            act()
        finally:
            sys.setprofile(None)


def ids(entries: Any) -> str:
    return "".join(entry.id for entry in entries)


def replay(*entries: Entry) -> Heads:
    """Return the heads after these lines."""
    heads = Heads()
    heads.replay(entries, Tree(entries))
    return heads


def say(role: str, content: Any = None, **fields: Any) -> Message:
    """Return a message of any role, valid or not."""
    return Message({"role": role, **({} if content is None else {"content": content}), **fields})


MESSAGES_AND_FAILURES = [
    (say("user", "hi"), False),
    (say("assistant", "fine", stopReason="stop"), False),
    (say("assistant", "cut", stopReason="length"), False),
    (say("assistant", "half", stopReason="aborted"), True),
    (say("assistant", "", stopReason="error"), True),
    (say("assistant", "", stopReason="error", errorMessage="overloaded"), True),
    (say("assistant", "", errorMessage="overloaded"), True),
    (say("toolResult", "text", toolCallId="c1", toolName="read"), False),
    (say("toolResult", "text", toolCallId="c1", toolName="read", isError=False), False),
    (say("toolResult", "gone", toolCallId="c1", toolName="read", isError=True), True),
    (say("bashExecution", command="make", output="", exitCode=0), False),
    (say("bashExecution", command="make", output="", exitCode=2), True),
    (say("bashExecution", command="make", output="", cancelled=True), True),
    (say("bashExecution", command="make", output=""), False),
    (say("pythonExecution", code="1 / 0", output="", exitCode=1), True),
]
"""Messages, and whether every reader shows them as failed."""


def header(**fields: Any) -> dict[str, Any]:
    return {"type": "session", "version": 3, "id": "s", "timestamp": TIME, "cwd": "/project", **fields}


def build_file(*lines: bytes | str | dict[str, Any], spaced: bool = True) -> bytes:
    """Return a file with these lines. Without spaces it is spelled as pi and we write it."""
    separators = (", ", ": ") if spaced else (",", ":")
    raw = [json.dumps(line, separators=separators) if isinstance(line, dict) else line for line in lines]
    return b"".join((line.encode() if isinstance(line, str) else line) + b"\n" for line in raw)


def read(data: bytes) -> tuple[SessionReader, list[Entry]]:
    reader = SessionReader("test.jsonl")
    return reader, list(iter_entries(reader.feed(data)))
