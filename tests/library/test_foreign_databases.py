"""Databases of other programs are read as they are, live or not, and nothing is created next to them."""

import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.errors import SessionTreeError, StoreError
from sessiontree.library.foreign_databases import open_database
from sessiontree.library.foreign_files import detect_file, read_conversations
from sessiontree.library.foreign_import import import_sessions
from tests.interop.conformance import FIXTURES


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A database in WAL mode that a program has open."""
    with closing(sqlite3.connect(tmp_path / "live.db")) as connection:
        connection.execute("pragma journal_mode = wal")
        connection.execute("create table t (x)")
        connection.execute("insert into t values ('first')")
        connection.commit()
        yield connection


def list_rows(path: Path) -> list[object]:
    with closing(open_database(str(path))) as connection:
        return [row[0] for row in connection.execute("select x from t")]


def list_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_live_database_is_read_with_its_log(database: sqlite3.Connection, tmp_path: Path) -> None:
    before = list_names(tmp_path)
    assert "live.db-wal" in before

    assert list_rows(tmp_path / "live.db") == ["first"]
    database.execute("insert into t values ('second')")
    database.commit()
    assert list_rows(tmp_path / "live.db") == ["first", "second"]
    assert list_names(tmp_path) == before


def test_a_closed_database_gets_no_files_next_to_it(database: sqlite3.Connection, tmp_path: Path) -> None:
    database.close()
    assert list_names(tmp_path) == ["live.db"]

    assert list_rows(tmp_path / "live.db") == ["first"]
    assert list_names(tmp_path) == ["live.db"]


def test_a_log_that_a_crash_left_is_read(database: sqlite3.Connection, tmp_path: Path) -> None:
    folder = tmp_path / "crashed"
    folder.mkdir()
    shutil.copy(tmp_path / "live.db", folder / "live.db")
    shutil.copy(tmp_path / "live.db-wal", folder / "live.db-wal")
    content = (folder / "live.db").read_bytes()

    assert list_rows(folder / "live.db") == ["first"]
    assert list_names(folder) == ["live.db", "live.db-wal"]
    assert (folder / "live.db").read_bytes() == content


def test_a_database_without_a_log_is_read(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        connection.execute("create table t (x)")
        connection.execute("insert into t values (cast(x'ff41' as text))")
        connection.commit()

    assert list_rows(tmp_path / "a.db") == ["\ufffdA"]
    assert list_names(tmp_path) == ["a.db"]


def test_nothing_can_be_written(database: sqlite3.Connection, tmp_path: Path) -> None:
    with closing(open_database(str(tmp_path / "live.db"))) as connection, pytest.raises(sqlite3.OperationalError):
        connection.execute("insert into t values (1)")


def test_a_missing_database_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        open_database(str(tmp_path / "gone.db"))
    assert list_names(tmp_path) == []


@pytest.mark.parametrize("name", ["llm/threads", "openai-agents/branches", "opencode/subagent/opencode.db"])
def test_a_database_is_imported_once_and_stays_alone(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "program"
    folder.mkdir()
    with closing(sqlite3.connect(folder / "x.db")) as connection:
        connection.executescript((FIXTURES / f"{name}.sql").read_text())
        connection.execute("pragma journal_mode = wal")

    first, second = (list(import_sessions(str(folder / "x.db"), into=str(tmp_path / "own"))) for _ in range(2))

    assert {result.state for result in first} == {"imported"}
    assert {result.state for result in second} == {"same"}
    assert list_names(folder) == ["x.db"]
    with st.open(f"{folder / 'x.db'}#{first[0].session}") as session:
        assert session.id == first[0].session


def read_damaged(script: Path, folder: Path, seeds: range) -> None:
    """Read a database with changed bytes. Only our own errors may be raised."""
    path = folder / "damaged.db"
    with closing(sqlite3.connect(path)) as database:
        database.executescript(script.read_text())
    whole = path.read_bytes()
    for seed in seeds:
        chance = random.Random(seed)
        data = bytearray(whole)
        for _ in range(chance.randint(1, 30)):
            data[chance.randrange(16, len(data))] = chance.randrange(256)
        path.write_bytes(data[: chance.randrange(len(data))] if seed % 5 == 0 else data)
        format = detect_file(str(path))
        try:
            found = [] if format is None else list(read_conversations(str(path), format))
        except SessionTreeError:
            continue
        assert all(len(conversation.lines) > 1 for conversation in found)


SCRIPTS = sorted(FIXTURES.rglob("*.sql"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parts[-3]}-{path.stem}")
def test_a_database_with_changed_bytes_opens_or_is_refused(script: Path, tmp_path: Path) -> None:
    read_damaged(script, tmp_path, range(6))


@pytest.mark.torture
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parts[-3]}-{path.stem}")
def test_many_databases_with_changed_bytes_open_or_are_refused(script: Path, tmp_path: Path) -> None:
    read_damaged(script, tmp_path, range(2000))
