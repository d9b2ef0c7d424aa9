"""Hostile files: generated sessions with any damage, then with bytes and lines changed at random.

`python -m tests.reliability.fuzz COUNT [PLANT…]` reads COUNT files in this process, which has a memory limit, and exits
with 1 at the first one that causes anything but one of our errors. With `--atheris` as its first argument, the test is
guided by coverage, with the time limit of libFuzzer's options.
"""

from __future__ import annotations

import itertools
import os
import resource
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as hs

import sessiontree as st
from sessiontree.errors import SessionTreeError
from tests.reliability.planted import PLANTS
from tests.strategies import damaged_sessions, json_texts, sessions

MEMORY = 768 << 20

TOKENS = [
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b'"',
        b":",
        b",",
        b"\n",
        b"\r",
        b"\0",
        b"\xff",
        b"\xc3",
        b"\\",
        b"null",
        b"true",
        b"-",
        b"1e9",
    ),
    *(
        b'{"type":"session"',
        b'"version":1,',
        b'"version":2,',
        b'"version":99,',
        b'"parentId":',
        b'"id":',
        b'"branch":null,',
    ),
    *(
        b'"customType":"sessiontree.head",',
        b"\xe2\x80\xa8",
        b"\\ud800",
        b"\\u0000",
        b"[" * 3000,
        b'{"a":' * 3000,
        b"9" * 5000,
    ),
]
"""Fragments that are hard for a parser of these files."""


def mutate(data: bytes, changes: list[tuple[int, int, int]]) -> bytes:
    """Flip, insert and remove bytes, and duplicate, drop and swap lines."""
    for kind, number, other in changes:
        place = number % (len(data) + 1)
        lines = data.split(b"\n")
        a, b = number % len(lines), other % len(lines)
        match kind:
            case 0:
                data = data[:place] + bytes([other % 256]) + data[place + 1 :]
            case 1:
                data = data[:place] + TOKENS[other % len(TOKENS)] + data[place:]
            case 2:
                data = data[:place] + data[place + other % 40 :]
            case 3:
                data = b"\n".join([*lines[:a], lines[b], *lines[a:]])
            case 4:
                data = b"\n".join([*lines[:a], *lines[a + 1 :]])
            case 5:
                lines[a], lines[b] = lines[b], lines[a]
                data = b"\n".join(lines)
            case 6:
                data = data[:place]
            case _:
                data = data.replace(b'"version": 3', TOKENS[18 + other % 3].rstrip(b","))
    return data


changes = hs.lists(hs.tuples(hs.integers(0, 7), hs.integers(0, 1 << 20), hs.integers(0, 1 << 16)), max_size=6)
lines = hs.lists(json_texts, max_size=5).map(lambda texts: "\n".join(texts).encode("utf-8", "surrogatepass"))
hostile_files = (
    hs.builds(mutate, sessions(12) | damaged_sessions(12), changes)
    | hs.builds(bytes.__add__, sessions(3), lines)
    | hs.binary(max_size=300)
)


def read_everything(file: Path) -> None:
    """Call every reading operation on a file."""
    with st.open(file, read_only=True) as session:
        with suppress(SessionTreeError):
            session.context()
        assert session.problems is not None
        for entry in itertools.islice(session.tree, 50):
            assert entry.body is not None
            with suppress(SessionTreeError):
                st.build_context(session.tree, entry.id)
        for branch in session.branches:
            with suppress(SessionTreeError):
                st.explain(session.tree, branch.leaf)
        assert session.read_lines()
    with st.open(file, durability="none") as session:
        session.append(st.user("and on"))
    with st.open(file) as session:
        assert session.head.path()[-1].body is not None


def exercise(data: bytes, folder: Path) -> None:
    file = folder / "s.jsonl"
    file.write_bytes(data)
    try:
        with suppress(SessionTreeError):
            read_everything(file)
    finally:
        for path in folder.iterdir():
            path.unlink()


def run_in_fuzzer(count: int, folder: Path) -> Callable[[], None]:
    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(hostile_files)
    def read_until_failure(data: bytes) -> None:
        exercise(data, folder)

    return read_until_failure


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def main() -> None:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        if sys.argv[1] == "--atheris":
            import atheris

            atheris.instrument_imports(include=["sessiontree"])
            test = run_in_fuzzer(1, Path(folder))
            atheris.Setup([sys.argv[0], *sys.argv[2:]], test.hypothesis.fuzz_one_input)  # type: ignore[attr-defined]
            atheris.Fuzz()
        for plant in sys.argv[2:]:
            PLANTS[plant]()
        limit_memory()
        run_in_fuzzer(int(sys.argv[1]), Path(folder))()


if __name__ == "__main__":
    main()
