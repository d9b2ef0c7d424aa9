"""Sessions are copied from files to a database and back, byte for byte."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

import sessiontree as st
from sessiontree.library import catalog
from sessiontree.library.locations import open_repository
from sessiontree.library.session_files import SessionFile, get_sessions_folder, list_session_files
from sessiontree.library.transfer import TransferResult, copy, verify
from sessiontree.store.batch_journal import write_note
from sessiontree.store.postgres import connection
from sessiontree.store.postgres.address import parse_address
from tests.postgres import Proxy, Server, lose_a_line

RECORDED = Path(__file__).parents[1] / "conformance" / "data"
HEADER = b'{"type":"session","version":3,"id":"%s","timestamp":"2026-01-02T09:30:00.000Z","cwd":"/p"}\n'


def map_states(several: list[TransferResult]) -> dict[str, str]:
    return {copied.session: copied.state for copied in several}


def read_all_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.rglob("*.jsonl"))}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder of sessions, sound and damaged."""
    folder = tmp_path / "files"
    with st.create(name="ours", dir=folder) as session:
        for number in range(300):
            session.append(st.user(f"number {number} é " + "x" * 50))
    odd = {
        "cut": HEADER % b"cut" + b'{"type":"message","id":"a"',
        "unended": HEADER % b"unended" + b'{"type":"custom","id":"a","parentId":null,"timestamp":"","customType":"x"}',
        "noise": HEADER % b"noise" + b"\n\nnot json\n\xff\xfe\x00\n   \n{}\n",
        "empty": b"",
        "nothing": b"no newline and no header",
        "crlf": HEADER % b"crlf" + b'{"type":"label"}\r\n\r\n',
    }
    for name, data in odd.items():
        (folder / f"{name}.jsonl").write_bytes(data)
    return folder


def test_files_go_to_a_database_and_back_byte_for_byte(database: str, files: Path, tmp_path: Path) -> None:
    there = list(copy(str(files), database))
    back = list(copy(database, str(tmp_path / "back")))

    assert {copied.state for copied in (*there, *back)} == {"copied"}
    assert sorted(read_all_files(files).values()) == sorted(read_all_files(tmp_path / "back").values())
    for one, other in ((str(files), database), (database, str(tmp_path / "back"))):
        assert {copied.state for copied in verify(one, other)} == {"same"}


def test_recorded_files_of_other_programs_are_copied_unchanged(database: str, tmp_path: Path) -> None:
    recorded = sorted(RECORDED.glob("*/*.jsonl"))[:12]
    assert recorded
    for path in recorded:
        (copied,) = copy(str(path), database)
        assert copied.is_ok, copied
        (back,) = copy(f"{database}#{copied.session}", str(tmp_path / f"{path.parent.name}-{path.name}"))
        assert back.target is not None
        assert Path(back.target).read_bytes() == path.read_bytes()


def test_a_second_copy_writes_only_new_entries(database: str, files: Path) -> None:
    list(copy(str(files), database))
    with st.open(next(files.glob("*_*.jsonl"))) as session:
        session.append(st.user("one more"))

    again = list(copy(str(files), database))

    assert [copied.state for copied in again if copied.session == session.id] == ["resumed"]
    assert {copied.state for copied in again if copied.session != session.id} == {"same"}
    assert {copied.state for copied in verify(str(files), database)} == {"same"}


def test_an_interrupted_copy_resumes_where_it_stopped(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sessiontree.library.transfer as copying

    monkeypatch.setattr(copying, "PART_SIZE", 4000)
    with st.create(file=tmp_path / "s.jsonl") as session:
        session.extend([st.user("x" * 500) for _ in range(100)])
    reported: list[int] = []

    class Stopped(Exception):
        pass

    def stop(done: int, total: int) -> None:
        reported.append(done)
        if len(reported) == 5:
            raise Stopped

    with pytest.raises(Stopped):
        list(copy(str(tmp_path / "s.jsonl"), database, progress=stop))
    half = st.open(f"{database}#{session.id}")
    assert 10 < len(half.tree) < 100
    (copied,) = copy(
        str(tmp_path / "s.jsonl"), database, progress=lambda done, total: reported.append(done * 100 // total)
    )

    assert copied.state == "resumed"
    assert reported[-1] == 100
    assert next(iter(verify(str(tmp_path / "s.jsonl"), database))).state == "same"
    assert st.open(half.location).head.context() == session.head.context()


def begin_batch(file: Path, lines: list[bytes], size: int) -> None:
    """Write `size` bytes of a batch with its note, as a writer that crashed does."""
    data = file.read_bytes()
    with open(f"{file}.lock", "wb", buffering=0) as lock:
        write_note(lock.fileno(), len(data), lines)
    file.write_bytes(data + b"\n".join(lines)[:size])


def build_lines(*numbers: int) -> list[bytes]:
    return [b'{"type":"custom","id":"%d","parentId":null,"timestamp":"","customType":"x"}' % n for n in numbers]


@pytest.fixture(params=["file", "database"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The target of a copy."""
    return str(tmp_path / "t.jsonl") if request.param == "file" else request.getfixturevalue("database")


@pytest.mark.parametrize("cut", [1, 0, -1, -30], ids=["behind", "at its newline", "before", "within"])
def test_an_incomplete_batch_is_not_copied(tmp_path: Path, target: str, cut: int) -> None:
    source, batch = tmp_path / "s.jsonl", build_lines(1, 2, 3)
    source.write_bytes(HEADER % b"s")
    begin_batch(source, batch, len(batch[0]) + cut)

    (copied,) = copy(str(source), target)
    assert copied.target is not None
    assert (copied.state, len(st.open(copied.target).tree)) == ("copied", 0)
    assert [copied.state for copied in verify(str(source), target)] == ["same"]
    st.open(source).append(st.user("on"))

    assert [copied.state for copied in copy(str(source), target)] == ["resumed"]
    assert [copied.state for copied in verify(str(source), target)] == ["same"]


@pytest.mark.parametrize("end", [b"", b'{"cut'], ids=["whole", "cut"])
@pytest.mark.parametrize("size", [1, 100, 2 * len(build_lines(1)[0]) + 2])
def test_a_copy_that_died_within_a_batch_loses_no_line(tmp_path: Path, size: int, end: bytes) -> None:
    source, target, batch = tmp_path / "s.jsonl", tmp_path / "t.jsonl", build_lines(1, 2, 3)
    source.write_bytes(HEADER % b"s" + b"\n".join([*batch, *build_lines(4), end]))
    target.write_bytes(HEADER % b"s")
    begin_batch(target, batch, size)

    assert [copied.state for copied in copy(str(source), str(target))] == ["resumed"]

    assert target.read_bytes() == source.read_bytes()


def test_a_copy_with_an_unfinished_line_resumes_when_the_source_continues(tmp_path: Path, target: str) -> None:
    source = tmp_path / "s.jsonl"
    source.write_bytes(HEADER % b"s" + build_lines(1)[0] + b'\n{"cut')
    list(copy(str(source), target))
    assert [copied.state for copied in copy(str(source), target)] == ["same"]
    st.open(source).append(st.user("on"))

    assert [copied.state for copied in copy(str(source), target)] == ["resumed"]

    assert [copied.state for copied in verify(str(source), target)] == ["same"]


def test_a_copy_with_a_different_unfinished_line_is_not_changed(tmp_path: Path) -> None:
    source, target = tmp_path / "s.jsonl", tmp_path / "t.jsonl"
    target.write_bytes(HEADER % b"s" + b'{"cut')
    for end in (b"", b'{"cu', b'{"cut and more'):
        source.write_bytes(HEADER % b"s" + end)
        assert [copied.state for copied in copy(str(source), str(target))] == ["different"]
        assert [copied.state for copied in verify(str(source), str(target))] == ["different"]

    assert target.read_bytes() == HEADER % b"s" + b'{"cut'


def test_files_that_share_an_id_have_a_copy_each(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    with st.create(file=source / "now.jsonl") as session:
        session.append(st.user("one"))
        (source / "before.jsonl").write_bytes((source / "now.jsonl").read_bytes())
        session.append(st.user("two"))

    for state in ("copied", "same"):
        assert [copied.state for copied in copy(str(source), str(target))] == [state] * 2
        assert read_all_files(target) == read_all_files(source)
    with st.open(source / "now.jsonl") as session:
        session.append(st.user("three"))
    assert [copied.state for copied in copy(str(source), f"{target}/")] == ["same", "resumed"]
    assert read_all_files(target) == read_all_files(source)

    (source / "before.jsonl").unlink()
    verified = {Path(copied.target or "").name: copied.state for copied in verify(str(source), str(target))}
    assert verified == {"now.jsonl": "same", "before.jsonl": "extra"}


def test_a_copy_is_recognized_by_its_id_even_if_its_file_name_differs(tmp_path: Path) -> None:
    for side, name in (("a", "s"), ("b", "t")):
        (tmp_path / side).mkdir()
        (tmp_path / side / f"{name}.jsonl").write_bytes(HEADER % b"s")

    (copied,) = copy(str(tmp_path / "a"), str(tmp_path / "b"))

    assert (copied.state, copied.target) == ("same", str(tmp_path / "b" / "t.jsonl"))


def test_files_with_the_same_name_from_several_folders_stay_separate(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    for folder, more in ((source, b""), (source / "under", build_lines(1)[0] + b"\n")):
        folder.mkdir()
        (folder / "s.jsonl").write_bytes(HEADER % b"s" + more)

    for act, state in ((copy, "copied"), (copy, "same"), (verify, "same")):
        one, other = act(str(source), str(target))
        assert (one.state, other.state, other.target) == (state, "failed", None)
        assert other.reason == f"{target}/s.jsonl is already the target of {source}/s.jsonl, which has the same name"

    assert (target / "s.jsonl").read_bytes() == HEADER % b"s"


@pytest.mark.parametrize("to_files", [False, True])
@pytest.mark.parametrize("end", [b"", b'{"cut'], ids=["whole", "cut"])
def test_two_concurrent_copies_do_not_mix(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to_files: bool, end: bytes
) -> None:
    monkeypatch.setattr("sessiontree.library.transfer.PART_SIZE", 200)
    source, target = str(tmp_path / "s.jsonl"), str(tmp_path / "t.jsonl") if to_files else database
    lines = [b'{"type":"custom","id":"%d","parentId":null,"timestamp":"","customType":"x"}\n' % n for n in range(20)]
    Path(source).write_bytes(HEADER % b"s" + b"".join(lines) + end)
    steps = copy_with_another(source, target)

    for step in range(steps):
        if to_files:
            Path(target).unlink()
        else:
            catalog.purge(f"{database}#s")
        copy_with_another(source, target, at=step)
        assert [copied.state for copied in verify(source, target)] == ["same"], f"second copy at step {step}"


def copy_with_another(source: str, target: str, *, at: int | None = None) -> int:
    """Copy, and run a complete second copy at step `at`. Return the number of steps."""
    steps = 0

    def copy_in_between(done: int, total: int) -> None:
        nonlocal steps
        steps += 1
        if steps - 1 == at:
            assert all(copied.is_ok for copied in copy(source, target))

    list(copy(source, target, progress=copy_in_between))
    return steps


def test_a_target_with_other_content_is_not_changed(database: str, tmp_path: Path) -> None:
    for name, text in (("one", b"mine"), ("two", b"yours")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "s.jsonl").write_bytes(HEADER % b"s" + b'{"said":"%s"}\n' % text)
    list(copy(str(tmp_path / "one"), database))

    (copied,) = copy(str(tmp_path / "two"), database)
    (verified,) = verify(str(tmp_path / "two"), database)

    assert (copied.state, copied.is_ok) == ("different", False)
    assert verified.state == "different"
    assert verified.bytes == len(HEADER % b"s" + b'{"said":"')
    assert next(iter(verify(str(tmp_path / "one"), database))).is_ok


def test_copying_to_a_session_in_the_trash_is_reported(database: str, tmp_path: Path) -> None:
    (tmp_path / "s.jsonl").write_bytes(HEADER % b"s")
    (copied,) = copy(str(tmp_path / "s.jsonl"), database)
    assert copied.target is not None
    catalog.delete(copied.target)

    (again,) = copy(str(tmp_path / "s.jsonl"), database)

    assert (again.state, again.reason) == ("failed", "the session exists already, in the trash")


@pytest.mark.parametrize("compare_or_copy", [copy, verify])
def test_an_unreadable_session_is_reported_and_the_others_are_copied(
    database: str, tmp_path: Path, compare_or_copy: Callable[[str, str], Iterator[TransferResult]]
) -> None:
    made = [st.create(name, dir=database).id for name in ("one", "two", "three")]
    list(copy(f"{database}#{made[0]}", str(tmp_path)))
    lose_a_line(f"{database}#{made[1]}")

    several = {copied.session: copied for copied in compare_or_copy(database, str(tmp_path))}

    assert [several[id].state for id in made] == ["same", "failed", "copied" if compare_or_copy is copy else "missing"]
    lost = several[made[1]]
    assert (lost.source, lost.target, lost.reason) == (f"{database}#{made[1]}", None, "lines are missing")


def test_a_session_whose_name_begins_with_a_dot_is_copied_too(tmp_path: Path) -> None:
    sides = str(tmp_path / "files"), str(tmp_path / "copies")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / ".hidden.jsonl").write_bytes(HEADER % b"hidden")

    assert map_states(list(copy(*sides))) == {"hidden": "copied"}
    assert map_states(list(verify(*sides))) == {"hidden": "same"}


def test_a_file_removed_during_a_copy_is_reported_and_the_others_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("gone", "here"):
        (tmp_path / f"{name}.jsonl").write_bytes(HEADER % name.encode())

    def list_and_delete(folder: str) -> list[SessionFile]:
        found = list_session_files(folder)
        (tmp_path / "gone.jsonl").unlink(missing_ok=True)
        return found

    monkeypatch.setattr("sessiontree.library.transfer.list_session_files", list_and_delete)

    assert map_states(list(copy(str(tmp_path), str(tmp_path / "copies")))) == {"gone": "failed", "here": "copied"}


def test_a_path_that_is_not_a_file_fails_the_same_with_progress(database: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")

    (copied,) = copy(str(tmp_path / "pipe.jsonl"), database)
    (reported,) = copy(str(tmp_path / "pipe.jsonl"), database, progress=lambda done, total: None)

    assert (copied.state, copied.target) == ("failed", f"{database}#pipe")
    assert "not a regular file" in (copied.reason or "")
    assert reported == copied


@pytest.mark.parametrize("compare_or_copy", [copy, verify])
def test_an_unreachable_database_is_reported_once(
    files: Path, monkeypatch: pytest.MonkeyPatch, compare_or_copy: Callable[[str, str], Iterator[TransferResult]]
) -> None:
    monkeypatch.setattr("sessiontree.store.postgres.connection.FIRST_RETRY_SECONDS", 0.05)

    with pytest.raises(st.StoreError, match="cannot be reached"):
        next(compare_or_copy(str(files), "postgresql://nobody@127.0.0.1:1/none"))


def test_a_copy_ends_when_the_database_is_lost_and_the_next_one_resumes(
    server: Server, database: str, files: Path
) -> None:
    proxy = Proxy(server.port)
    far = f"postgresql://postgres@127.0.0.1:{proxy.port}/{database.rpartition('/')[2]}"
    several = copy(str(files), far)
    assert next(several).state == "copied"
    proxy.is_down = True
    proxy.cut_all()
    connection.get_database(parse_address(far)).retry_seconds = 0.1

    assert next(several).state == "failed"
    with pytest.raises(st.StoreError, match="cannot be reached"):
        next(several)
    proxy.close()

    assert {copied.state for copied in copy(str(files), database)} == {"same", "copied"}
    assert {copied.state for copied in verify(str(files), database)} == {"same"}


def test_verify_reports_sessions_that_exist_on_one_side_only(database: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / "a" / name).mkdir(parents=True)
        (tmp_path / "a" / name / f"{name}.jsonl").write_bytes(HEADER % name.encode())
    list(copy(str(tmp_path / "a"), database))
    (tmp_path / "a" / "one" / "one.jsonl").rename(tmp_path / "a" / "one" / "three.jsonl")
    (tmp_path / "a" / "one" / "three.jsonl").write_bytes(HEADER % b"three")

    assert map_states(list(verify(str(tmp_path / "a"), database))) == {
        "two": "same",
        "three": "missing",
        "one": "extra",
    }


def test_sessions_return_to_the_folder_of_their_project(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with st.create(name="here", dir=database) as session:
        session.append(st.user("word"))
    catalog.archive(session.location)

    list(copy(database, get_sessions_folder() + os.sep))

    (listed,) = st.sessions(archived=True)
    assert (listed.id, listed.name) == (session.id, "here")
    assert st.open(session.id).file is not None


def test_archived_sessions_are_archived_on_the_other_side(database: str, files: Path) -> None:
    catalog.archive(next(files.glob("*_*.jsonl")))

    list(copy(str(files), database))

    assert [summary.name for summary in open_repository(database).list_sessions(archived=True)] == ["ours"]


def create_aged_sessions(folder: Path) -> dict[str, int]:
    """Create sessions whose modification times are not in creation order. Return the times in microseconds."""
    moments = {"b": 1_700_000_000_000_001, "c": 1_600_000_000_123_456, "a": 1_500_000_000_999_999}
    for name in sorted(moments):
        with st.create(name=name, dir=folder) as session:
            session.append(st.user("word"))
        os.utime(session.location, ns=(0, moments[name] * 1000))
    return moments


def list_modified_times(side: str) -> dict[str | None, str]:
    return {summary.name: summary.modified for summary in st.sessions(dir=side)}


def test_a_copy_has_the_modification_time_of_its_source(database: str, tmp_path: Path) -> None:
    moments = create_aged_sessions(tmp_path / "files")
    list(copy(str(tmp_path / "files"), database))

    assert list(list_modified_times(database)) == ["b", "c", "a"]
    assert list_modified_times(database) == list_modified_times(str(tmp_path / "files"))
    assert st.open(f"{database}#@").name == "b"

    list(copy(database, str(tmp_path / "back")))
    list(copy(str(tmp_path / "back"), str(tmp_path / "again")))

    for folder in ("back", "again"):
        assert list_modified_times(str(tmp_path / folder)) == list_modified_times(database)
        assert sorted(path.stat().st_mtime_ns // 1000 for path in (tmp_path / folder).glob("*.jsonl")) == sorted(
            moments.values()
        )


@pytest.mark.parametrize("target", ["files", "database"])
def test_an_existing_copy_keeps_its_time(target: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    source, side = tmp_path / "s.jsonl", str(tmp_path / "copies")
    if target == "database":
        side = request.getfixturevalue("database")
    with st.create(name="one", file=source) as session:
        session.append(st.user("word"))
    os.utime(source, ns=(0, 1_500_000_000 * 10**9))
    list(copy(str(source), side + os.sep if target == "files" else side))
    before = list_modified_times(side)

    source.touch()  # as `cp` would
    assert [copied.state for copied in copy(str(source), side)] == ["same"]

    assert list_modified_times(side) == before == {"one": "2017-07-14T02:40:00.000Z"}
    with st.open(source) as session:
        session.append(st.user("more"))
    os.utime(source, ns=(0, 1_600_000_000 * 10**9))
    assert [copied.state for copied in copy(str(source), side)] == ["resumed"]
    assert list_modified_times(side) == {"one": "2020-09-13T12:26:40.000Z"}


@pytest.mark.parametrize("moment", [-(1 << 62), 0, (1 << 62) + 1, 1 << 63])
def test_a_file_of_any_year_is_copied(database: str, tmp_path: Path, moment: int) -> None:
    source = tmp_path / "s.jsonl"
    with st.create(name="one", file=source) as session:
        session.append(st.user("word"))
    os.utime(source, ns=(0, moment))

    assert [copied.state for copied in copy(str(source), database)] == ["copied"]
    assert list(list_modified_times(database)) == ["one"]


def test_copies_without_their_own_time_keep_the_order_of_their_sources(server: Server, tmp_path: Path) -> None:
    create_aged_sessions(tmp_path / "files")
    url = server.new_database()
    st.sessions(dir=url)  # makes the tables
    role = "eve"
    with psycopg.connect(url, autocommit=True) as owner:
        for statement in (
            f"CREATE ROLE {role} LOGIN",
            f"GRANT USAGE ON SCHEMA sessiontree TO {role}",
            f"GRANT SELECT ON ALL TABLES IN SCHEMA sessiontree TO {role}",
            f"GRANT INSERT ON sessiontree.session TO {role}",
            f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA sessiontree TO {role}",
        ):
            owner.execute(statement.encode())

    copied = list(copy(str(tmp_path / "files"), url.replace("postgres@", f"{role}@")))

    assert {one.state for one in copied} == {"copied"}
    assert list(list_modified_times(url)) == ["b", "c", "a"]


def test_several_sessions_are_not_copied_to_one_file(database: str, files: Path, tmp_path: Path) -> None:
    for target in (f"{database}#one", str(tmp_path / "one.jsonl")):
        with pytest.raises(st.InvalidOperation):
            list(copy(str(files), target))
    with pytest.raises(st.NotFound):
        list(copy("nowhere", database))
