"""Sessions of hostile shapes, each of `count` steps. A small file must not need much memory."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

from sessiontree.core.tree import Tree
from sessiontree.format.session_reader import SessionReader

HEADER = {"type": "session", "version": 3, "id": "shape", "timestamp": "2026-01-01T00:00:00.000Z", "cwd": "/project"}


def _line(number: int, id: str, parent: str | None, type: str = "message", **fields: Any) -> bytes:
    seconds = number % 86_400
    time = f"2026-01-{1 + number // 86_400:02}T{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.000Z"
    wire = {"type": type, "id": id, "parentId": parent, "timestamp": time, **fields}
    return json.dumps(wire, separators=(",", ":")).encode()


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _assistant(text: str, **more: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": text}] if text else []
    return {"role": "assistant", "content": content, "stopReason": "stop", "provider": "p", "model": "m", **more}


def chain(count: int) -> Iterator[bytes]:
    """One path without branches."""
    for n in range(count):
        said = _assistant(f"answer {n}") if n % 2 else _user(f"question {n}")
        yield _line(n, f"m{n}", f"m{n - 1}" if n else None, message=said)


def comb(count: int) -> Iterator[bytes]:
    """A path with a side answer at every step."""
    for n in range(count):
        above = f"m{n - 1}" if n else None
        yield _line(2 * n, f"s{n}", above, message=_assistant(f"side answer {n}"))
        yield _line(2 * n + 1, f"m{n}", above, message=_user(f"question {n}"))


def wide(count: int) -> Iterator[bytes]:
    """Answers to one question."""
    yield _line(0, "m", None, message=_user("question"))
    for n in range(count):
        yield _line(n + 1, f"a{n}", "m", message=_assistant(f"answer {n}"))


def labels(count: int) -> Iterator[bytes]:
    """A path whose steps are each labeled right after they are written, as programs do."""
    for n in range(count):
        yield _line(2 * n, f"m{n}", f"m{n - 1}" if n else None, message=_user(f"question {n}"))
        yield _line(2 * n + 1, f"l{n}", f"m{n}", "label", targetId=f"m{n}", label=f"label {n}")


def labels_in_a_row(count: int) -> Iterator[bytes]:
    """One message, and a chain of labels below it."""
    yield _line(0, "l-1", None, message=_user("question"))
    for n in range(count):
        yield _line(n + 1, f"l{n}", f"l{n - 1}", "label", targetId=f"l{n - 1}", label=f"label {n}")


def calls(count: int) -> Iterator[bytes]:
    """One message that calls tools, and their results one after another."""
    yield _line(0, "q", None, message=_user("question"))
    made = [
        {"type": "toolCall", "id": f"c{n}", "name": "read", "arguments": {"path": f"file-{n}.txt"}}
        for n in range(count)
    ]
    yield _line(1, "a", "q", message=_assistant("", content=made, stopReason="toolUse"))
    above = "a"
    for n in range(count):
        said = {"role": "toolResult", "toolCallId": f"c{n}", "toolName": "read", "isError": False}
        said["content"] = [{"type": "text", "text": f"result {n}"}]
        yield _line(n + 2, f"r{n}", above, message=said)
        above = f"r{n}"


def wide_calls(count: int) -> Iterator[bytes]:
    """One message that calls tools, and all results right below it."""
    for line in calls(count):
        wire = json.loads(line)
        wire["parentId"] = "a" if wire["id"].startswith("r") else wire["parentId"]
        yield json.dumps(wire, separators=(",", ":")).encode()


def branches(count: int) -> Iterator[bytes]:
    """Named branches, all from one entry, each with an answer."""
    yield _line(0, "m", None, message=_user("question"))
    for n in range(count):
        yield _line(2 * n + 1, f"b{n}", "m", "branch_point", branchName=f"try-{n}", description="", branch=f"try-{n}")
        yield _line(2 * n + 2, f"a{n}", f"b{n}", message=_assistant(f"answer {n}"), branch=f"try-{n}")


def nested_branches(count: int) -> Iterator[bytes]:
    """Named branches, each from the end of the one before, and each with its own model."""
    above = None
    for n in range(count):
        yield _line(2 * n, f"b{n}", above, "branch_point", branchName=f"try-{n}", description="", branch=f"try-{n}")
        said = _assistant(f"answer {n}", model=f"model-{n}")
        yield _line(2 * n + 1, f"a{n}", f"b{n}", message=said, branch=f"try-{n}")
        above = f"a{n}"


def compactions(count: int) -> Iterator[bytes]:
    """A path where every second entry is a compaction that keeps only the message before it."""
    for n in range(count):
        yield _line(2 * n, f"m{n}", f"k{n - 1}" if n else None, message=_user(f"question {n}"))
        kept = {"summary": f"summary {n}", "firstKeptEntryId": f"m{n}", "tokensBefore": 100}
        yield _line(2 * n + 1, f"k{n}", f"m{n}", "compaction", **kept)


def far_compactions(count: int) -> Iterator[bytes]:
    """Compactions that each keep all messages."""
    yield _line(0, "k-1", None, message=_user("question"))
    for n in range(count):
        kept = {"summary": f"summary {n}", "firstKeptEntryId": "k-1", "tokensBefore": 100}
        yield _line(n + 1, f"k{n}", f"k{n - 1}", "compaction", **kept)


def renames(count: int) -> Iterator[bytes]:
    """A session that is renamed many times."""
    yield _line(0, "n-1", None, message=_user("question"))
    for n in range(count):
        yield _line(n + 1, f"n{n}", f"n{n - 1}", "session_info", name=f"name {n}")


def models(count: int) -> Iterator[bytes]:
    """A path on which every answer is from another model."""
    for n in range(count):
        above = f"a{n - 1}" if n else None
        yield _line(2 * n, f"c{n}", above, "model_change", provider="p", modelId=f"model-{n}")
        yield _line(2 * n + 1, f"a{n}", f"c{n}", message=_assistant(f"answer {n}", model=f"model-{n}"))


def roots(count: int) -> Iterator[bytes]:
    """Entries without a parent."""
    for n in range(count):
        yield _line(n, f"m{n}", None, message=_user(f"question {n}"))


def orphans(count: int) -> Iterator[bytes]:
    """Entries whose parents are missing."""
    for n in range(count):
        yield _line(n, f"m{n}", f"gone-{n}", message=_user(f"question {n}"))


def edits(count: int) -> Iterator[bytes]:
    """Edits of one message, one after another."""
    yield _line(0, "e-1", None, message=_user("question"))
    for n in range(count):
        new = {"content": f"question {n}"}
        yield _line(n + 1, f"e{n}", f"e{n - 1}", "context_edit", targetId="e-1", replacement=new)


SHAPES: dict[str, Callable[[int], Iterator[bytes]]] = {
    make.__name__: make
    for make in (
        chain, comb, wide, labels, labels_in_a_row, calls, wide_calls, branches, nested_branches, compactions,
        far_compactions, renames, models, roots, orphans, edits,
    )
}  # fmt: skip


def build_lines(shape: str, count: int) -> list[bytes]:
    """Return the lines of a session, with its header."""
    return [json.dumps(HEADER).encode(), *SHAPES[shape](count)]


def build_content(shape: str, count: int) -> bytes:
    """Return the file of a session."""
    return b"".join(line + b"\n" for line in build_lines(shape, count))


def build_tree(shape: str, count: int) -> Tree:
    """Return the tree of a session."""
    tree = Tree()
    tree.extend(SessionReader().feed(build_content(shape, count)))
    return tree


def measure_peak(work: Callable[[], object]) -> int:
    """Return the peak of the memory that `work` allocates, in bytes."""
    gc.collect()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
