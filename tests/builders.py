"""Small things to build sessions from, so that a test shows its shape and not its JSON."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any

from sessiontree.core.entries import Body, Entry, Message, iter_entries
from sessiontree.core.heads import Heads
from sessiontree.core.messages import user
from sessiontree.core.tree import Tree
from sessiontree.format.codec import encode_body, get_type, read_entry, write_object
from sessiontree.format.session_reader import SessionReader

TIME = "2026-01-01T00:00:00.000Z"
TIME_MS = 1_767_225_600_000


def entry(
    id: str, parent: str | None = None, body: Body | dict[str, Any] | None = None, *, line: int = 0, **keys: Any
) -> Entry:
    """An entry as a peer writes it; `keys` are further keys of the line, such as `branch`."""
    said = user(id) if body is None else body
    fields = said if isinstance(said, dict) else {"type": get_type(said), **encode_body(said)}
    return read_entry(write_object({"id": id, "parentId": parent, "timestamp": TIME, **fields, **keys}), line)


def grow(shape: str, **bodies: Body | dict[str, Any]) -> Tree:
    """`"a>b>c b>d"`: a chain a-b-c and a second child d of b; each is a user's message unless a body is given."""
    tree = Tree()
    for chain in shape.split():
        parent = None
        for id in chain.split(">"):
            if id not in tree:
                tree.add(entry(id, parent, bodies.get(id), line=len(tree) + 2))
            parent = id
    return tree


def hang(*pairs: str) -> Tree:
    """`"b<a"`: an entry b that names a as its parent, in this order, however wrong; `"a"` alone names none."""
    tree = Tree()
    for line, pair in enumerate(pairs, start=2):
        id, _, parent = pair.partition("<")
        tree.add(entry(id, parent or None, line=line))
    return tree


def nested(depth: int) -> list[Any]:
    """A list in a list in a list, so many of them."""
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


@contextmanager
def stack(frames: int) -> Generator[None]:
    """Only so many more calls within one another."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + frames)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def work(act: Callable[[], object]) -> int:
    """How many calls Python makes to do something, generators that go on included."""
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


def interrupted(act: Callable[[], object], call: int) -> None:
    """Do something, with Ctrl-C right behind so many calls that Python makes for it."""
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


def replayed(*entries: Entry) -> Heads:
    """The heads after these lines."""
    heads = Heads()
    heads.replay(entries, Tree(entries))
    return heads


def say(role: str, content: Any = None, **fields: Any) -> Message:
    """A message of any role, as odd as you like."""
    return Message({"role": role, **({} if content is None else {"content": content}), **fields})


def header(**fields: Any) -> dict[str, Any]:
    return {"type": "session", "version": 3, "id": "s", "timestamp": TIME, "cwd": "/project", **fields}


def file_of(*lines: bytes | str | dict[str, Any], spaced: bool = True) -> bytes:
    """The bytes of a file with these lines; without blanks they are spelled as pi and we write them."""
    separators = (", ", ": ") if spaced else (",", ":")
    raw = [json.dumps(line, separators=separators) if isinstance(line, dict) else line for line in lines]
    return b"".join((line.encode() if isinstance(line, str) else line) + b"\n" for line in raw)


def read(data: bytes) -> tuple[SessionReader, list[Entry]]:
    reader = SessionReader("test.jsonl")
    return reader, list(iter_entries(reader.feed(data)))
