"""Sessions put aside, thrown away, and brought back."""

import os
import stat
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree import catalog, shelf
from sessiontree.store.batch import note
from sessiontree.store.files import identity_of


@pytest.fixture
def session() -> st.Session:
    session = st.create(name="auth", cwd="/p")
    session.append(st.user("apple"))
    return session


def file_of(session: st.Session) -> Path:
    assert session.file is not None
    return session.file


def listed(**options) -> list[str]:
    return [summary.id for summary in st.sessions(all=True, **options)]


def test_an_archived_session_is_out_of_the_listing_and_stays_where_it_is(session: st.Session) -> None:
    other = st.create(cwd="/p")

    shelf.archive("auth")

    assert (listed(), listed(archived=True)) == ([other.id], [session.id])
    assert st.open("auth").id == st.open(session.id[:20]).id == session.id
    assert [hit.session for hit in st.search("apple", all=True)] == [session.id]
    session.append(st.user("still open elsewhere"))
    recent = st.recent("/p")
    assert recent is not None
    assert recent.id == other.id

    shelf.archive(session.id, archived=False)
    shelf.archive(session.id, archived=False)

    assert (set(listed()), listed(archived=True)) == ({session.id, other.id}, [])


def test_being_archived_does_not_depend_on_the_index(session: st.Session, home: Path) -> None:
    shelf.archive("auth")
    assert listed() == []

    (home / ".sessiontree" / "index.db").unlink()

    assert (listed(), listed(archived=True)) == ([], [session.id])


def test_what_a_dead_writer_left_of_a_batch_is_none_of_it_in_the_trash_and_back(session: st.Session) -> None:
    file, data = file_of(session), file_of(session).read_bytes()
    with open(f"{file}.lock", "wb", buffering=0) as lock:
        note(lock.fileno(), identity_of(file.stat()), len(data), [b'{"n":1}', b'{"n":2}'])
    with file.open("ab") as end:
        end.write(b'{"n":1}\n')
    count = len(st.open(file).tree)

    shelf.delete(session.id)
    shelf.restore(session.id)

    assert len(st.open(file).tree) == count
    st.open(file).append(st.user("on"))
    assert file.read_bytes().startswith(data + b'{"type":"message"')


def test_a_deleted_session_is_in_the_trash_with_all_that_belongs_to_it(session: st.Session, home: Path) -> None:
    file, data = file_of(session), file_of(session).read_bytes()
    for suffix in (".bak", ".torn-99"):
        Path(f"{file}{suffix}").write_text(suffix)
    shelf.archive("auth")

    there = Path(shelf.delete("auth"))

    assert (listed(), listed(archived=True)) == ([], [])
    assert there.parent.parent == home / ".sessiontree" / "trash"
    assert there.read_bytes() == data
    assert list(file.parent.iterdir()) == []
    assert {path.name for path in there.parent.iterdir()} == {
        file.name,
        "origin",
        *(f"{file.name}{suffix}" for suffix in (".bak", ".torn-99", ".archived", ".lock")),
    }
    for path in (there.parent.parent, there.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    with pytest.raises(st.NotFound):
        st.open("auth")
    assert st.search("apple", all=True) == []

    assert shelf.restore(session.id[:20]) == str(file)

    assert file.read_bytes() == data
    assert Path(f"{file}.bak").read_text() == ".bak"
    assert listed(archived=True) == [session.id]
    assert list((home / ".sessiontree" / "trash").iterdir()) == []


def test_two_deleted_sessions_of_one_name_are_told_apart(session: st.Session) -> None:
    other = st.create(name="auth", cwd="/q")
    shelf.delete(session.id)
    shelf.delete(other.id)

    with pytest.raises(st.Ambiguous):
        shelf.restore("auth")
    shelf.restore(other.id)
    shelf.restore("auth")

    assert set(listed()) == {session.id, other.id}


def test_nothing_is_written_over_by_restoring(session: st.Session) -> None:
    file = file_of(session)
    there = shelf.delete("auth")
    file.write_text("something new")

    with pytest.raises(st.InvalidOperation, match="not written over"):
        shelf.restore("auth")

    assert file.read_text() == "something new"
    assert Path(there).exists()


@pytest.mark.parametrize("origin", ["", "elsewhere.jsonl", "/etc/passwd", "../../x.jsonl"])
def test_a_note_that_does_not_fit_its_session_leads_nowhere(session: st.Session, origin: str) -> None:
    there = Path(shelf.delete("auth"))
    (there.parent / "origin").write_text(origin)

    with pytest.raises(st.InvalidOperation, match="does not say"):
        shelf.restore("auth")

    assert there.exists()


def test_a_session_whose_note_is_gone_stays_in_the_trash(session: st.Session) -> None:
    there = Path(shelf.delete("auth"))
    (there.parent / "origin").unlink()

    with pytest.raises(st.StoreError):
        shelf.restore("auth")

    assert there.exists()


def test_purging_removes_for_good_from_the_trash_or_from_its_place(session: st.Session, home: Path) -> None:
    other = st.create(name="other", cwd="/p")
    Path(f"{other.file}.bak").write_text("old")
    shelf.delete("auth")

    shelf.purge("auth")
    shelf.purge("other")

    assert list((home / ".sessiontree" / "trash").iterdir()) == []
    assert [path.suffix for path in file_of(session).parent.iterdir()] == []
    with pytest.raises(st.NotFound):
        shelf.purge("auth")
    with pytest.raises(st.NotFound):
        shelf.restore("auth")


def test_a_session_on_another_disk_is_copied_into_the_trash_and_back(session: st.Session, monkeypatch) -> None:
    monkeypatch.setattr(shelf, "AT_ONCE", 7)
    file, data = file_of(session), file_of(session).read_bytes()
    modified = file.stat().st_mtime_ns

    def no_link(*_: object, **__: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", no_link)
    there = Path(shelf.delete("auth"))

    assert (there.read_bytes(), there.stat().st_mtime_ns, file.exists()) == (data, modified, False)
    assert stat.S_IMODE(there.stat().st_mode) == 0o600
    shelf.restore("auth")
    assert (file.read_bytes(), file.stat().st_mtime_ns) == (data, modified)


@pytest.mark.parametrize("call", ["link", "unlink"])
def test_a_session_that_cannot_be_moved_stays_where_it_is_and_nothing_is_in_the_trash(
    session: st.Session, monkeypatch, home: Path, call: str
) -> None:
    file, data, real = file_of(session), file_of(session).read_bytes(), getattr(os, call)

    def refused(path: str, *more: object, **options: object) -> None:
        if path == str(file):
            raise PermissionError(13, "Permission denied")
        real(path, *more, **options)

    monkeypatch.setattr(os, call, refused)
    with pytest.raises(st.StoreError, match="Permission denied"):
        shelf.delete("auth")

    assert file.read_bytes() == data
    assert list((home / ".sessiontree" / "trash").iterdir()) == []


def test_a_file_anywhere_can_be_deleted_if_it_is_a_session(tmp_path: Path) -> None:
    session = st.create(file=tmp_path / "mine.jsonl")
    (tmp_path / "notes.jsonl").write_text("not a session\n")

    shelf.delete(tmp_path / "mine.jsonl")

    assert session.file is not None
    assert not session.file.exists()
    with pytest.raises(st.FormatError):
        shelf.delete(tmp_path / "notes.jsonl")
    assert (tmp_path / "notes.jsonl").exists()


def test_a_damaged_file_in_the_catalog_can_be_deleted(session: st.Session) -> None:
    bad = file_of(session).parent / "x_bad.jsonl"
    bad.write_bytes(b"\0garbage")

    shelf.delete(bad)

    assert not bad.exists()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/etc/passwd", path)])
def test_what_is_no_regular_file_is_refused(tmp_path: Path, make) -> None:
    path = tmp_path / "odd.jsonl"
    make(path)

    for act in (shelf.archive, shelf.delete, shelf.purge):
        with pytest.raises(st.StoreError, match="not a regular file"):
            act(path)

    assert os.path.lexists(path)


@pytest.mark.parametrize("source", ["pi", "omp"])
def test_sessions_of_other_programs_are_theirs(source: str) -> None:
    folder = Path(catalog.sources()[source]) / "--p--"
    session = st.create(dir=folder)

    for act in (shelf.archive, shelf.delete, shelf.purge):
        with pytest.raises(st.ReadOnly, match=source):
            act(str(session.file))

    assert [path.name for path in folder.iterdir() if path.suffix != ".lock"] == [file_of(session).name]


@pytest.mark.parametrize("name", ["..", "../../x", "/etc", "a\0b", ".", "origin", "*", "%2e%2e", "", "x" * 300])
def test_names_cannot_leave_the_trash_or_the_catalog(session: st.Session, tmp_path: Path, name: str) -> None:
    shelf.delete("auth")
    before = sorted(tmp_path.rglob("*"))

    for act in (shelf.restore, shelf.purge, shelf.delete, shelf.archive):
        with pytest.raises(st.SessionTreeError):
            act(name)

    assert sorted(path for path in tmp_path.rglob("*") if "index.db" not in path.name) == [
        path for path in before if "index.db" not in path.name
    ]
