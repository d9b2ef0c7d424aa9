"""Archiving, deleting, restoring and purging sessions."""

import errno
import fcntl
import os
import stat
import threading
from contextlib import suppress
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.library import catalog, trash
from sessiontree.store.batch_journal import write_note


@pytest.fixture
def session() -> st.Session:
    session = st.create(name="auth", cwd="/p")
    session.append(st.user("apple"))
    return session


@pytest.fixture(params=[False, True], ids=["same disk", "another disk"])
def disks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the trash on the same disk as the sessions, or on another one."""
    if request.param:
        link = os.link

        def link_on_same_disk(source: str, target: str, **options: bool) -> None:
            if os.path.dirname(source) != os.path.dirname(target):
                raise OSError(18, "Invalid cross-device link")
            link(source, target, **options)

        monkeypatch.setattr(os, "link", link_on_same_disk)


def raise_not_permitted(*_: object, **__: object) -> None:
    raise OSError(1, "Operation not permitted")


def get_file(session: st.Session) -> Path:
    assert session.file is not None
    return session.file


def list_ids(**options) -> list[str]:
    return [summary.id for summary in st.sessions(all=True, **options)]


def test_an_archived_session_is_not_listed_and_is_not_moved(session: st.Session) -> None:
    other = st.create(cwd="/p")

    catalog.archive("auth")

    assert (list_ids(), list_ids(archived=True)) == ([other.id], [session.id])
    assert st.open("auth").id == st.open(session.id[:20]).id == session.id
    assert [hit.session for hit in st.search("apple", all=True)] == [session.id]
    session.append(st.user("still open elsewhere"))
    recent = st.recent("/p")
    assert recent is not None
    assert recent.id == other.id

    catalog.archive(session.id, archived=False)
    catalog.archive(session.id, archived=False)

    assert (set(list_ids()), list_ids(archived=True)) == ({session.id, other.id}, [])


def test_the_archived_state_does_not_depend_on_the_index(session: st.Session, home: Path) -> None:
    catalog.archive("auth")
    assert list_ids() == []

    (home / ".sessiontree" / "index.db").unlink()

    assert (list_ids(), list_ids(archived=True)) == ([], [session.id])


def write_half_a_batch(file: Path) -> bytes:
    """Append half of a batch, as a writer that crashed does. Return the data before it."""
    data = file.read_bytes()
    with open(f"{file}.lock", "wb", buffering=0) as lock:
        write_note(lock.fileno(), len(data), [b'{"n":1}', b'{"n":2}'])
    with file.open("ab") as end:
        end.write(b'{"n":1}\n')
    return data


@pytest.mark.usefixtures("disks")
def test_an_unfinished_batch_of_a_dead_writer_does_not_survive_delete_and_restore(session: st.Session) -> None:
    session.close()  # the batch is blanked while a process has the file open
    file = get_file(session)
    data = write_half_a_batch(file)

    there = Path(catalog.delete(session.id))

    assert there.read_bytes() == data
    assert Path(f"{there}.torn-{len(data)}").read_bytes() == b'{"n":1}\n'
    catalog.restore(session.id)
    assert file.read_bytes() == data
    assert Path(f"{file}.torn-{len(data)}").read_bytes() == b'{"n":1}\n'


@pytest.mark.usefixtures("disks")
def test_an_unfinished_batch_in_the_trash_is_not_restored(session: st.Session) -> None:
    session.close()  # the batch is blanked while a process has the file open
    file = get_file(session)
    data = write_half_a_batch(Path(catalog.delete(session.id)))

    catalog.restore(session.id)

    assert file.read_bytes() == data


@pytest.mark.usefixtures("disks")
def test_acknowledged_entries_are_in_the_trash_and_the_next_append_is_refused(session: st.Session) -> None:
    session = st.open(get_file(session), durability="none")
    session.extend([st.user("y" * 1000) for _ in range(2000)])
    written: list[str] = []
    begun = threading.Event()

    def write() -> None:
        with suppress(st.Conflict):
            for _ in range(500):
                written.append(session.append(st.user("more")).id)
                begun.set()

    writer = threading.Thread(target=write)
    writer.start()
    begun.wait()
    there = catalog.delete(session.id)
    writer.join()

    tree = st.open(there).tree
    assert [id for id in written if id not in tree] == []
    with pytest.raises(st.Conflict, match="another program deleted the file"):
        session.append(st.user("more"))


@pytest.mark.usefixtures("disks")
def test_writers_wait_while_a_session_is_moved_or_removed(session: st.Session, monkeypatch) -> None:
    file, turns = get_file(session), []

    def watch_call(call: str) -> None:
        real = getattr(os, call)

        def watch(path: str, *more: object, **options: object) -> None:
            if os.path.basename(path) == file.name:
                with open(f"{file}.lock", "wb") as lock:
                    try:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        turns.append("free")
                    except BlockingIOError:
                        turns.append("taken")
            real(path, *more, **options)

        monkeypatch.setattr(os, call, watch)

    watch_call("link")
    watch_call("unlink")
    for act in (catalog.delete, catalog.restore, catalog.purge):
        act(session.id)
        assert set(turns) == {"taken"}, act
        turns.clear()


@pytest.mark.parametrize("act", [catalog.delete, catalog.restore])
def test_lines_of_a_program_that_does_not_lock_survive_a_delete(session: st.Session, monkeypatch, act) -> None:
    file = get_file(session) if act is catalog.delete else Path(catalog.delete("auth"))
    before, rename = sorted(file.parent.iterdir()), os.rename
    data = file.read_bytes()

    def append_and_rename(source: str, target: str) -> None:
        with file.open("ab") as end:
            end.write(b'{"n":1}\n')
        rename(source, target)

    monkeypatch.setattr(os, "link", raise_not_permitted)
    monkeypatch.setattr(os, "rename", append_and_rename)
    with pytest.raises(st.Conflict, match="another program wrote to it while it was moved"):
        act("auth")

    assert file.read_bytes() == data + b'{"n":1}\n'
    assert [path for path in sorted(file.parent.iterdir()) if path.suffix != ".lock" or path in before] == before
    monkeypatch.setattr(os, "rename", rename)
    assert Path(act("auth")).read_bytes() == data + b'{"n":1}\n'


def test_a_file_that_another_program_replaced_is_not_deleted(session: st.Session, monkeypatch, home: Path) -> None:
    file, link = get_file(session), os.link
    data = file.read_bytes()

    def link_and_replace(source: str, target: str, **options: bool) -> None:
        link(source, target, **options)
        os.unlink(source)
        Path(source).write_text("something new")

    monkeypatch.setattr(os, "link", link_and_replace)
    with pytest.raises(st.Conflict):
        catalog.delete("auth")

    assert file.read_text() == "something new"
    assert [path.read_bytes() for path in home.rglob(file.name) if path != file] == [data]


@pytest.mark.parametrize("act", [catalog.delete, catalog.purge])
def test_sessions_with_a_common_name_prefix_are_not_deleted_together(tmp_path: Path, act) -> None:
    ends = (".kept.jsonl", ".bak.jsonl", ".bak-of-mine", ".torn-1x", "2")
    names = [f"work.jsonl{end}" for end in ends]
    st.create(file=tmp_path / "work.jsonl")
    for name in names:
        st.create(file=tmp_path / name)
    for suffix in (".bak", ".bak-12", ".torn-7", ".torn-7-1", ".new", ".tmp-3", ".archived"):
        (tmp_path / f"work.jsonl{suffix}").write_text("")

    act(tmp_path / "work.jsonl")

    assert {path.name for path in tmp_path.glob("work*") if not path.name.endswith(".lock")} == set(names)
    assert not (tmp_path / "work.jsonl.lock").exists()


@pytest.mark.usefixtures("disks")
def test_a_session_is_restored_while_a_refused_writer_has_it_open(session: st.Session) -> None:
    data = get_file(session).read_bytes()
    others = session, st.open(session.id)
    catalog.delete("auth")
    for other in others:
        with pytest.raises(st.Conflict, match="deleted"):
            other.append(st.user("more"))

    catalog.restore("auth")

    assert get_file(session).read_bytes() == data
    st.open(session.id).append(st.user("on"))


def test_a_deleted_session_is_in_the_trash_with_its_companion_files(session: st.Session, home: Path) -> None:
    file, data = get_file(session), get_file(session).read_bytes()
    for suffix in (".bak", ".torn-99"):
        Path(f"{file}{suffix}").write_text(suffix)
    catalog.archive("auth")

    there = Path(catalog.delete("auth"))

    assert (list_ids(), list_ids(archived=True)) == ([], [])
    assert there.parent.parent == home / ".sessiontree" / "trash"
    assert there.read_bytes() == data
    assert list(file.parent.iterdir()) == []
    assert {path.name for path in there.parent.iterdir()} == {
        file.name,
        "origin",
        *(f"{file.name}{suffix}" for suffix in (".bak", ".torn-99", ".archived")),
    }
    for path in (there.parent.parent, there.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    with pytest.raises(st.NotFound):
        st.open("auth")
    assert st.search("apple", all=True) == []

    assert catalog.restore(session.id[:20]) == str(file)

    assert file.read_bytes() == data
    assert Path(f"{file}.bak").read_text() == ".bak"
    assert list_ids(archived=True) == [session.id]
    assert list((home / ".sessiontree" / "trash").iterdir()) == []


def test_two_deleted_sessions_with_the_same_name_are_ambiguous(session: st.Session) -> None:
    other = st.create(name="auth", cwd="/q")
    catalog.delete(session.id)
    catalog.delete(other.id)

    with pytest.raises(st.Ambiguous):
        catalog.restore("auth")
    catalog.restore(other.id)
    catalog.restore("auth")

    assert set(list_ids()) == {session.id, other.id}


def test_a_session_that_is_twice_in_the_trash_is_restored_by_its_path_there(session: st.Session) -> None:
    file = get_file(session)
    data = file.read_bytes()
    first = catalog.delete("auth")
    file.write_bytes(data + b"\n")  # restored from a backup
    second = catalog.delete("auth")

    for name in (session.id, str(file)):
        with pytest.raises(st.Ambiguous) as raise_error:
            catalog.restore(name)
        assert set(raise_error.value.candidates) == {first, second}

    assert catalog.restore(first) == str(file)
    assert file.read_bytes() == data
    catalog.purge(second)
    assert catalog.list_trash() == []
    assert file.read_bytes() == data


@pytest.mark.parametrize("name", ["talk.session", ".talk.jsonl", "talk"])
def test_a_session_with_any_file_name_can_be_in_the_trash(tmp_path: Path, monkeypatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    session = st.create(file=name)

    for again in (name, f"./{name}", session.id):
        there = catalog.delete(name)
        assert [(summary.id, summary.file) for summary in catalog.list_trash()] == [(session.id, there)]
        assert catalog.restore(again) == str(tmp_path / name)

    assert catalog.list_trash() == []
    catalog.delete(name)
    catalog.purge(name)
    assert catalog.list_trash() == []


def test_a_path_to_an_existing_session_purges_it_and_nothing_in_the_trash(session: st.Session) -> None:
    there, file = catalog.delete("auth"), get_file(session)
    file.write_bytes(Path(there).read_bytes())

    catalog.purge(str(file))

    assert (file.exists(), Path(there).exists()) == (False, True)


def test_links_in_the_trash_are_not_followed(session: st.Session, home: Path) -> None:
    (home / ".sessiontree" / "trash").mkdir()
    (home / ".sessiontree" / "trash" / "link").symlink_to(get_file(session).parent)

    assert catalog.list_trash() == []
    with pytest.raises(st.NotFound):
        catalog.restore("auth")


def test_a_session_can_be_restored_if_the_current_folder_was_removed(
    session: st.Session, tmp_path: Path, monkeypatch
) -> None:
    catalog.delete("auth")
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()

    assert catalog.restore("auth") == str(get_file(session))


def test_restoring_overwrites_nothing(session: st.Session) -> None:
    file = get_file(session)
    there = catalog.delete("auth")
    file.write_text("something new")

    with pytest.raises(st.InvalidOperation, match="not overwritten"):
        catalog.restore("auth")

    assert file.read_text() == "something new"
    assert Path(there).exists()


def test_a_restore_is_refused_if_one_of_its_files_exists(session: st.Session) -> None:
    file = get_file(session)
    Path(f"{file}.bak").write_text("old")
    there = Path(catalog.delete("auth"))
    Path(f"{file}.bak").write_text("something new")

    with pytest.raises(st.InvalidOperation, match=r"\.bak exists and is not overwritten"):
        catalog.restore("auth")

    assert (Path(f"{file}.bak").read_text(), Path(f"{there}.bak").read_text()) == ("something new", "old")
    assert there.exists()
    Path(f"{file}.bak").unlink()
    catalog.restore("auth")
    assert Path(f"{file}.bak").read_text() == "old"


@pytest.mark.parametrize("origin", ["", "elsewhere.jsonl", "/etc/passwd", "../../x.jsonl"])
def test_a_session_with_an_invalid_origin_note_is_not_restored(session: st.Session, origin: str) -> None:
    there = Path(catalog.delete("auth"))
    (there.parent / "origin").write_text(origin)

    with pytest.raises(st.InvalidOperation, match="does not contain the original path"):
        catalog.restore("auth")

    assert there.exists()


def test_a_session_without_its_origin_note_stays_in_the_trash(session: st.Session) -> None:
    there = Path(catalog.delete("auth"))
    (there.parent / "origin").unlink()

    with pytest.raises(st.StoreError):
        catalog.restore("auth")

    assert there.exists()


def test_a_session_that_grew_since_it_was_read_is_not_purged(session: st.Session) -> None:
    seen = session.store.read_end().cursor
    with st.open(session.location) as other:
        other.append(st.user("appended in between"))

    with pytest.raises(st.Conflict):
        catalog.purge(session.location, at=seen)
    assert list_ids() == [session.id]

    catalog.purge(session.location, at=session.store.read_end().cursor)
    assert list_ids() == []


def test_an_unused_session_is_removed_unless_others_have_used_it_or_it_is_damaged() -> None:
    unused, used, damaged = st.create(), st.create(), st.create()
    with st.open(used.location) as other:
        other.append(st.user("appended in between"))
    with get_file(damaged).open("ab") as file:
        file.write(b"half of a li")

    gone = [catalog.purge_unused(session, lambda tree: not len(tree)) for session in (unused, used, damaged)]

    assert gone == [True, False, False]
    assert set(list_ids()) == {used.id, damaged.id}
    assert not Path(f"{unused.file}.lock").exists()


def test_purging_deletes_permanently_from_the_trash_or_the_folder(session: st.Session, home: Path) -> None:
    other = st.create(name="other", cwd="/p")
    Path(f"{other.file}.bak").write_text("old")
    catalog.delete("auth")

    catalog.purge("auth")
    catalog.purge("other")

    assert list((home / ".sessiontree" / "trash").iterdir()) == []
    assert [path.suffix for path in get_file(session).parent.iterdir()] == []
    with pytest.raises(st.NotFound):
        catalog.purge("auth")
    with pytest.raises(st.NotFound):
        catalog.restore("auth")


def test_a_name_used_twice_in_the_trash_does_not_purge_the_existing_session() -> None:
    for _ in range(2):
        st.create(name="auth", cwd="/p")
        catalog.delete("auth")
    living = st.create(name="auth", cwd="/p")

    with pytest.raises(st.Ambiguous):
        catalog.purge("auth")

    assert list_ids() == [living.id]
    assert len(catalog.list_trash()) == 2


@pytest.mark.parametrize("code", ["EPERM", "EOPNOTSUPP", "ENOSYS", "EMLINK"])
def test_a_session_is_copied_to_the_trash_and_back_without_hard_links(
    session: st.Session, monkeypatch, code: str
) -> None:
    def raise_error(*_: object, **__: object) -> None:
        raise OSError(getattr(errno, code), code)

    monkeypatch.setattr(trash, "COPY_SIZE", 7)
    file, data = get_file(session), get_file(session).read_bytes()
    modified = file.stat().st_mtime_ns
    monkeypatch.setattr(os, "link", raise_error)
    there = Path(catalog.delete("auth"))

    assert (there.read_bytes(), there.stat().st_mtime_ns, file.exists()) == (data, modified, False)
    assert stat.S_IMODE(there.stat().st_mode) == 0o600
    catalog.restore("auth")
    assert (file.read_bytes(), file.stat().st_mtime_ns) == (data, modified)


@pytest.mark.parametrize("call", ["link", "unlink"])
def test_a_session_that_cannot_be_moved_stays_where_it_is_and_nothing_is_in_the_trash(
    session: st.Session, monkeypatch, home: Path, call: str
) -> None:
    file, data, real = get_file(session), get_file(session).read_bytes(), getattr(os, call)

    def raise_error(path: str, *more: object, **options: object) -> None:
        if path == str(file):
            raise PermissionError(13, "Permission denied")
        real(path, *more, **options)

    monkeypatch.setattr(os, call, raise_error)
    with pytest.raises(st.StoreError, match="Permission denied"):
        catalog.delete("auth")

    assert file.read_bytes() == data
    assert list((home / ".sessiontree" / "trash").iterdir()) == []


@pytest.mark.usefixtures("disks")
def test_if_a_companion_file_cannot_be_moved_nothing_is_moved(session: st.Session, monkeypatch, home: Path) -> None:
    file, unlink = get_file(session), os.unlink
    for suffix in (".bak", ".torn-9"):
        Path(f"{file}{suffix}").write_text(suffix)
    before = {path.name: path.read_bytes() for path in file.parent.iterdir()}

    def raise_error(path: str) -> None:
        if path == f"{file}.torn-9":
            raise PermissionError(13, "Permission denied")
        unlink(path)

    monkeypatch.setattr(os, "unlink", raise_error)
    with pytest.raises(st.StoreError, match="Permission denied"):
        catalog.delete("auth")

    assert {path.name: path.read_bytes() for path in file.parent.iterdir()} == before
    assert list((home / ".sessiontree" / "trash").iterdir()) == []


@pytest.mark.usefixtures("disks")
@pytest.mark.parametrize("act", [catalog.delete, catalog.restore])
@pytest.mark.parametrize("failure", [FileNotFoundError(2, "No such file or directory"), KeyboardInterrupt()])
def test_a_session_survives_an_unlink_that_succeeds_but_reports_an_error(
    session: st.Session, monkeypatch, act, failure: BaseException
) -> None:
    file = get_file(session) if act is catalog.delete else Path(catalog.delete("auth"))
    data, unlink = file.read_bytes(), os.unlink

    def unlink_and_raise(path: str) -> None:
        unlink(path)
        if path == str(file):
            raise failure

    monkeypatch.setattr(os, "unlink", unlink_and_raise)
    with pytest.raises((st.StoreError, KeyboardInterrupt)):
        act("auth")

    assert file.read_bytes() == data
    monkeypatch.setattr(os, "unlink", unlink)
    assert Path(act("auth")).read_bytes() == data


@pytest.mark.usefixtures("disks")
@pytest.mark.parametrize("act", [catalog.delete, catalog.restore])
def test_a_session_survives_if_another_program_replaces_it_and_the_move_fails(
    session: st.Session, monkeypatch, home: Path, act
) -> None:
    Path(f"{get_file(session)}.bak").write_text("backup")
    file = get_file(session) if act is catalog.delete else Path(catalog.delete("auth"))
    data, unlink = file.read_bytes(), os.unlink

    def unlink_and_replace(path: str) -> None:
        if path == f"{file}.bak":
            raise OSError(5, "Input/output error")
        unlink(path)
        if path == str(file):
            file.write_text("something new")

    monkeypatch.setattr(os, "unlink", unlink_and_replace)
    with pytest.raises(st.StoreError, match="Input/output error"):
        act("auth")

    assert file.read_text() == "something new"
    assert [path.read_bytes() for path in home.rglob(file.name) if path != file] == [data]
    assert [path.read_text() for path in home.rglob(f"{file.name}.bak")] == ["backup"]


def test_a_file_anywhere_can_be_deleted_if_it_is_a_session(tmp_path: Path) -> None:
    session = st.create(file=tmp_path / "mine.jsonl")
    (tmp_path / "notes.jsonl").write_text("not a session\n")

    catalog.delete(tmp_path / "mine.jsonl")

    assert session.file is not None
    assert not session.file.exists()
    with pytest.raises(st.FormatError):
        catalog.delete(tmp_path / "notes.jsonl")
    assert (tmp_path / "notes.jsonl").exists()


def test_a_damaged_file_in_the_catalog_can_be_deleted(session: st.Session) -> None:
    bad = get_file(session).parent / "x_bad.jsonl"
    bad.write_bytes(b"\0garbage")

    catalog.delete(bad)

    assert not bad.exists()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/etc/passwd", path)])
def test_only_regular_files_are_opened(tmp_path: Path, make) -> None:
    path = tmp_path / "odd.jsonl"
    make(path)

    for act in (catalog.archive, catalog.delete, catalog.purge):
        with pytest.raises(st.StoreError, match="not a regular file"):
            act(path)

    assert os.path.lexists(path)


@pytest.mark.parametrize("source", ["pi", "omp"])
def test_sessions_of_other_programs_are_not_deleted(source: str) -> None:
    folder = Path(catalog.get_sources()[source]) / "--p--"
    session = st.create(dir=folder)

    for act in (catalog.archive, catalog.delete, catalog.purge):
        with pytest.raises(st.ReadOnly, match=source):
            act(str(session.file))

    assert [path.name for path in folder.iterdir() if path.suffix != ".lock"] == [get_file(session).name]


@pytest.mark.parametrize("name", ["..", "../../x", "/etc", "a\0b", ".", "origin", "*", "%2e%2e", "", "x" * 300])
def test_names_cannot_escape_the_trash_or_the_catalog(session: st.Session, tmp_path: Path, name: str) -> None:
    catalog.delete("auth")
    before = sorted(tmp_path.rglob("*"))

    for act in (catalog.restore, catalog.purge, catalog.delete, catalog.archive):
        with pytest.raises(st.SessionTreeError):
            act(name)

    assert sorted(path for path in tmp_path.rglob("*") if "index.db" not in path.name) == [
        path for path in before if "index.db" not in path.name
    ]
