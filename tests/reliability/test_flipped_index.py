"""Flipped bytes in the index are noticed: it is rebuilt, and listing and search match the files."""

from __future__ import annotations

import os
import random
import sqlite3
from pathlib import Path
from typing import Any

import sessiontree as st
from sessiontree.library.catalog import find_matching_sessions
from tests.reliability.harness import times

FLIPS = times(150, torture=2000)
WORDS = ("apple", "berry", "cherry", "damson", "elder", "fig", "grape", "hazel", "iris", "juniper")
QUERIES = ("apple", "berry cherry", "fi", "zebra", "role:user grape", "juniper", "xylophone")


def make_sessions(folder: Path) -> None:
    """Create sessions with branches, names and several chunks of words each."""
    chance = random.Random(1)
    for number in range(8):
        with st.create(f"session {number}", file=folder / f"s{number}.jsonl", durability="none") as session:
            for turn in range(30):
                words = " ".join(chance.choice(WORDS) + str(chance.randrange(500)) for _ in range(600))
                session.append(st.user(words) if turn % 2 else st.assistant(words))
            session.create_branch("side", at="HEAD~5")
            session.append(st.user(f"xylophone {number}"))


def ask_all(folder: Path) -> list[Any]:
    """Return the listing and the search results."""
    return [
        st.sessions(dir=folder),
        *(st.search(query, dir=folder, limit=20) for query in QUERIES),
        *(sorted(find_matching_sessions(query, all=True)) for query in QUERIES[:2]),
    ]


def test_a_flipped_byte_in_the_index_changes_no_answer(home: Path, tmp_path: Path) -> None:
    folder = home / ".sessiontree" / "sessions" / "--p--"
    folder.mkdir(parents=True)
    make_sessions(folder)
    index = home / ".sessiontree" / "index.db"
    expected = ask_all(folder)
    while ask_all(folder) and not _is_complete(index):
        pass
    with sqlite3.connect(index) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    sound = index.read_bytes()
    assert ask_all(folder) == expected
    chance = random.Random(int(os.environ.get("SESSIONTREE_SEED", "18")))
    wrong: list[int] = []

    for _ in range(FLIPS):
        flipped = bytearray(sound)
        place = chance.randrange(len(sound))
        flipped[place] ^= 1 << chance.randrange(8)
        for suffix in ("-wal", "-shm"):
            (index.parent / f"index.db{suffix}").unlink(missing_ok=True)
        index.write_bytes(flipped)
        if ask_all(folder) != expected:
            wrong.append(place)

    assert wrong == []


def _is_complete(index: Path) -> bool:
    """Return whether all words are indexed."""
    with sqlite3.connect(index) as connection:
        return connection.execute("SELECT count(*) FROM files WHERE text_to < read_to").fetchone() == (0,)
