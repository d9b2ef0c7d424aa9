"""Damaged foreign files never raise anything unexpected: they open as far as they are understood, or are refused."""

from __future__ import annotations

import json
import random
import resource
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sessiontree.core.context import build_context
from sessiontree.core.entries import Message
from sessiontree.core.message_input import check_message
from sessiontree.errors import FormatError
from sessiontree.export.snapshot import read_snapshot
from sessiontree.interop.base import FileHead, ForeignFile, MemoryFile
from sessiontree.interop.formats import detect_format
from tests.interop.conformance import FIXTURES, load_tables

FILES = sorted(
    path
    for path in FIXTURES.rglob("*")
    if path.is_file() and path.suffix in (".jsonl", ".json", ".sql") and path.name != "expected.json"
)
VALUES: list[Any] = [None, True, 0, -1, 1.5, 10**30, "", "x", "\ud800", [], [None], {}, {"type": "text"}, [{}], [[[]]]]


def mutate_bytes(data: bytes, chance: random.Random) -> bytes:
    """Change bytes, cut, repeat or swap lines."""
    lines = data.split(b"\n")
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(lines))
        match chance.randrange(6):
            case 0:
                lines[at] = lines[at][: chance.randint(0, len(lines[at]))]
            case 1:
                del lines[at]
                lines = lines or [b""]
            case 2:
                lines.insert(at, chance.choice(lines))
            case 3:
                other = chance.randrange(len(lines))
                lines[at], lines[other] = lines[other], lines[at]
            case 4 if lines[at]:
                spot = chance.randrange(len(lines[at]))
                lines[at] = lines[at][:spot] + bytes([chance.randrange(256)]) + lines[at][spot + 1 :]
            case _:
                lines.insert(at, chance.choice([b"", b"null", b"[]", b"{}", b"\xff\xfe", b'{"type":7}', b"[" * 300]))
    return b"\n".join(lines)


def mutate_json(data: bytes, chance: random.Random) -> bytes:
    """Change values inside JSON: of a line, or of the whole file."""
    lines = data.split(b"\n")
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(lines))
        try:
            value = json.loads(lines[at])
        except ValueError:
            continue
        change_value(value, chance, load_pool(lines, chance))
        lines[at] = json.dumps(value).encode()
    return b"\n".join(lines)


def load_pool(lines: list[bytes], chance: random.Random) -> list[Any]:
    """Return values of another line: a wrong id that exists does more harm than one that does not."""
    try:
        other = json.loads(chance.choice(lines))
    except ValueError:
        return VALUES
    return [*VALUES, *(other.values() if isinstance(other, dict) else [])]


def change_value(value: Any, chance: random.Random, pool: list[Any]) -> None:
    for _ in range(8):
        if not isinstance(value, dict | list) or not value:
            return
        key: Any = chance.choice(list(value)) if isinstance(value, dict) else chance.randrange(len(value))
        if isinstance(value[key], dict | list) and value[key] and chance.random() < 0.6:
            value = value[key]
            continue
        if chance.random() < 0.2:
            del value[key]
        else:
            value[key] = chance.choice(pool)
        return


def mutate_rows(path: Path, chance: random.Random) -> dict[str, list[dict[str, Any]]]:
    tables = load_tables(path)
    rows = [row for several in tables.values() for row in several]
    for _ in range(chance.randint(1, 6)):
        row = chance.choice(rows)
        key = chance.choice(list(row))
        if isinstance(row[key], str) and chance.random() < 0.7:
            row[key] = mutate_json(row[key].encode(), chance).decode("utf-8", "replace")
        else:
            row[key] = chance.choice([None, 0, -1, 1.5, "", "x", b"\xff"])
    return tables


def read_all(head: FileHead, file: ForeignFile, related: list[ForeignFile]) -> None:
    """Read a file as everything above this layer does. Only `FormatError` may be raised."""
    format = detect_format(head)
    if format is None:
        return
    list(format.find_related(file))
    try:
        for conversation in format.read(file, related):
            snapshot = read_snapshot(conversation.lines)
            for entry in snapshot.tree:
                if isinstance(entry.body, Message):
                    assert check_message(entry.body.message) == entry.body.message  # the rule for every new message
            for leaf in snapshot.heads.heads.values():
                if leaf is None or leaf in snapshot.tree:
                    build_context(snapshot.tree, leaf).to_llm()
            assert [problem.message for problem in snapshot.problems if problem.kind == "missing_head"] == []
    except FormatError:
        pass


def check_one(path: Path, seed: int) -> None:
    chance = random.Random(seed)
    if path.suffix == ".sql":
        tables = mutate_rows(path, chance)
        columns = {name: list(rows[0]) for name, rows in tables.items() if rows}
        read_all(FileHead(name=str(path), tables=columns), MemoryFile(str(path), tables=tables), [])
        return
    mutate: Callable[[bytes, random.Random], bytes] = chance.choice([mutate_bytes, mutate_json])
    data = mutate(path.read_bytes(), chance)
    head = FileHead(name=str(path), data=data, is_whole=True)
    others = [MemoryFile(str(other), other.read_bytes()) for other in path.parent.glob("*.jsonl") if other != path]
    read_all(head, MemoryFile(str(path), data), [*others])


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parts[-3]}-{path.stem[-12:]}")
def test_a_damaged_file_opens_or_is_refused(path: Path) -> None:
    for seed in range(12):
        check_one(path, seed)


@contextmanager
def limit_memory(size: int) -> Generator[None]:
    """Let this process take only so much more memory inside this context."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.torture
def test_a_hundred_thousand_damaged_files_open_or_are_refused() -> None:
    with limit_memory(1 << 30):
        for seed in range(100_000):
            signal.alarm(60)  # a file that takes longer hangs
            check_one(FILES[seed % len(FILES)], seed)
            signal.alarm(0)
