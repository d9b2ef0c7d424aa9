"""The catalog: where sessions are stored, how they are found, and forks."""

import os
import sqlite3
import stat
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import sessiontree as st
from sessiontree.core.timestamps import format_timestamp
from sessiontree.export import export
from sessiontree.format.json_line import write_object
from sessiontree.home import get_home
from sessiontree.library import catalog, transfer
from sessiontree.library.folder_repository import encode_folder_name
from sessiontree.library.index import listing
from sessiontree.library.repair import repair
from sessiontree.library.session_files import SessionFile, get_sessions_folder
from tests.builders import build_file, header


def test_a_new_session_is_stored_in_the_home_in_a_folder_for_its_cwd(home: Path) -> None:
    session = st.create(name="auth", cwd="/some/project")

    assert session.file is not None
    assert session.file.parent == home / ".sessiontree" / "sessions" / "--some-project--"
    assert session.file.name.endswith(f"_{session.id}.jsonl")
    assert (session.name, session.cwd) == ("auth", "/some/project")
    for path in (session.file.parent, session.file.parent.parent, home / ".sessiontree"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_the_home_is_in_the_users_home_by_default(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SESSIONTREE_HOME")
    assert get_home() == str(home / ".sessiontree")

    monkeypatch.setenv("SESSIONTREE_HOME", "~/elsewhere")
    assert get_home() == str(home / "elsewhere")


def test_the_configuration_sets_the_folder_of_sessions(home: Path) -> None:
    config = home / ".sessiontree" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('sessions = "../talks"\n')

    session = st.create(name="auth", cwd="/p")
    session.append(st.user("apple"))

    assert session.file is not None
    assert session.file.parent == home / "talks" / "--p--"
    assert st.open("auth").id == st.open(session.id[:20]).id == session.id
    assert [summary.id for summary in st.sessions("/p")] == [summary.id for summary in st.sessions(all=True)]
    assert [hit.session for hit in st.search("apple", all=True)] == [session.id]
    assert (home / ".sessiontree" / "index.db").exists()

    session.file.write_text("damaged")
    catalog.delete(session.id)
    assert st.sessions(all=True) == []
    assert catalog.restore(session.id) == str(session.file)


def test_a_configuration_without_a_folder_for_sessions_changes_nothing(home: Path) -> None:
    config = home / ".sessiontree" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('thinking = "high"\n')

    assert get_sessions_folder() == str(home / ".sessiontree" / "sessions")


def test_an_invalid_configuration_is_an_error_only_where_it_is_needed(home: Path) -> None:
    session = st.create(cwd="/p")
    (home / ".sessiontree" / "config.toml").write_text("sessions = 7")

    with pytest.raises(st.SessionTreeError, match="sessions"):
        st.sessions(all=True)
    with pytest.raises(st.SessionTreeError, match="sessions"):
        st.create(cwd="/p")
    assert session.file is not None
    assert st.open(session.file).id == session.id


def test_a_folder_name_is_never_too_long_for_the_disk() -> None:
    names = {encode_folder_name("/" + letter * 150 + end) for letter in "ü漢😀" for end in ("a", "b")}

    assert len(names) == 6
    assert all(len(os.fsencode(name)) <= 255 for name in names)


def test_a_cwd_with_a_lone_surrogate_has_a_folder_name() -> None:
    assert encode_folder_name("/half \ud83d") == "--half ?--"


def test_a_fork_is_in_the_folder_of_its_source(tmp_path: Path) -> None:
    session = st.create(file=tmp_path / "a.jsonl")
    session.append(st.user("hi"))

    forked = session.fork()

    assert forked.file is not None
    assert forked.file.parent == tmp_path


def test_a_relative_home_is_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SESSIONTREE_HOME", "talks")

    assert get_home() == str(tmp_path / "talks")
    st.create(file="elsewhere/s.jsonl")
    assert len(st.sessions(dir="elsewhere")) == 1
    assert (tmp_path / "talks" / "index.db").exists()


def test_a_deleted_current_folder_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()

    for work in (st.sessions, st.create, st.recent, lambda: st.open("@"), lambda: st.search("x")):
        with pytest.raises(st.NotFound, match="the current folder was deleted"):
            work()
    assert st.sessions(all=True) == st.sessions(dir=tmp_path) == []


def test_a_session_is_found_by_path_id_its_beginning_or_end_and_name() -> None:
    session = st.create(name="auth", cwd="/p")

    for name in (session.file, str(session.file), session.id, session.id[:20], session.id[-8:], "auth"):
        assert name is not None
        assert st.open(name).id == session.id


def test_a_session_is_found_by_its_listed_id_whatever_its_file_name() -> None:
    session = st.create(cwd="/p")
    assert session.file is not None
    other = session.file.with_name("notes.jsonl")
    session.file.rename(other)

    (listed,) = st.sessions("/p")

    for name in (listed.id, listed.id[:20], listed.id[-8:]):
        assert catalog.find(name) == str(other)
    catalog.delete("notes")
    assert catalog.restore(session.id) == str(other)


def test_a_name_takes_precedence_over_an_id_prefix_in_a_header() -> None:
    named = st.create(name="auth", cwd="/p")
    other = st.create(cwd="/p")
    assert other.file is not None
    other.file.write_text('{"type":"session","version":3,"id":"auth-of-others","cwd":"/p"}\n')

    assert st.open("auth").id == named.id
    assert st.open("auth-of").id == "auth-of-others"


def test_a_name_takes_precedence_over_a_file_name_prefix() -> None:
    named, other = st.create(name="auth", cwd="/p"), st.create(name="login page", cwd="/p")
    assert other.file is not None
    other.file.rename(other.file.with_name("authors.jsonl"))

    assert st.open("auth").id == named.id
    assert st.open("authors").id == other.id
    with pytest.raises(st.NotFound):
        st.open("author")


def test_a_name_takes_precedence_over_a_part_of_an_id() -> None:
    other = st.create(cwd="/p")
    by_start, by_end = st.create(name=other.id[:8], cwd="/p"), st.create(name=other.id[-8:], cwd="/p")

    assert st.open(other.id[:8]).id == by_start.id
    assert st.open(other.id[-8:]).id == by_end.id
    assert st.open(other.id).id == other.id


def test_a_part_of_an_id_with_a_dash_takes_precedence_over_a_name() -> None:
    other = st.create(cwd="/p")
    st.create(name=other.id[:13], cwd="/p")

    assert st.open(other.id[:13]).id == other.id


def test_a_session_is_found_at_once_while_others_write_to_the_index(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, kept, session = (st.create(cwd="/p") for _ in range(3))
    assert len(st.sessions(all=True)) == 3
    assert gone.file is not None
    gone.file.unlink()
    session.rename("just now")
    anew: list[SessionFile] = []
    monkeypatch.setattr(listing, "scan_file", lambda found, *_: anew.append(found))

    with closing(sqlite3.connect(home / ".sessiontree" / "index.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert catalog.find(session.id[-8:]) == catalog.find("just now") == str(session.file)
        assert catalog.find(kept.id[-8:]) == str(kept.file)

    assert anew == []  # the index was used
    assert [summary.name for summary in st.sessions(all=True)] == ["just now", None]


@pytest.mark.parametrize("name", ["copy_{id}.jsonl", "backup.jsonl", "{id} (copy).jsonl", "../--q--/backup.jsonl"])
def test_files_with_the_same_id_are_distinguished_by_path(name: str) -> None:
    session = st.create(cwd="/p")
    st.create(cwd="/q")
    assert session.file is not None
    copy = Path(os.path.normpath(session.file.parent / name.format(id=session.id)))
    copy.write_bytes(b"\n" + session.file.read_bytes())

    for text in (session.id, session.id[:-2], session.id[-13:], session.id[-12:]):
        with pytest.raises(st.Ambiguous) as error:
            st.open(text)
        assert set(error.value.candidates) == {str(session.file), str(copy)}
    catalog.archive(copy)
    with pytest.raises(st.Ambiguous):
        st.open(session.id)
    assert st.open(copy).id == session.id


def test_an_ambiguous_id_lists_copies_by_path_and_other_sessions_by_id() -> None:
    session, other = st.create(name="twin", cwd="/p"), st.create(name="twin", cwd="/p")
    assert session.file is not None
    copy = session.file.with_name("backup.jsonl")
    copy.write_bytes(session.file.read_bytes())

    for text in ("twin", session.id[:4]):
        with pytest.raises(st.Ambiguous) as error:
            st.open(text)
        assert set(error.value.candidates) == {str(session.file), str(copy), other.id}


def test_files_that_are_not_sessions_do_not_make_an_id_ambiguous() -> None:
    session = st.create(cwd="/p")
    assert session.file is not None
    for name, data in (("empty", b""), ("garbage", b"\0"), (session.id[:20], b""), (f"{session.id}x", b"{}\n")):
        session.file.with_name(f"{name}.jsonl").write_bytes(data)

    for text in (session.id, session.id[:20], session.id[-13:]):
        assert st.open(text).file == session.file


def test_an_ambiguous_name_is_an_error_that_lists_the_candidates() -> None:
    list_ids = {st.create(name="twin", cwd="/p").id, st.create(name="twin", cwd="/q").id}

    with pytest.raises(st.Ambiguous) as caught:
        st.open("twin")
    assert set(caught.value.candidates) == list_ids
    with pytest.raises(st.Ambiguous):
        st.open(min(list_ids)[:8])


@pytest.mark.parametrize("name", ["nope", "no/such.jsonl", "missing.jsonl", "@", "../x"])
def test_an_unknown_session_is_an_error_and_nothing_is_created(name: str, home: Path) -> None:
    with pytest.raises(st.NotFound):
        st.open(name)

    assert not home.exists()


def test_an_empty_name_is_an_error() -> None:
    with pytest.raises(st.InvalidOperation):
        st.open("")


def test_one_bad_file_does_not_break_a_search() -> None:
    session = st.create(name="good", cwd="/p")
    assert session.file is not None
    (session.file.parent / "x_bad.jsonl").write_bytes(b"\0garbage session_info")

    assert st.open("good").id == session.id


def test_the_most_recent_session_is_the_one_written_to_last_in_this_folder(tmp_path, monkeypatch) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a-b").mkdir()
    older, newer = st.create(cwd=tmp_path / "a" / "b"), st.create(cwd=tmp_path / "a" / "b")
    other = st.create(cwd=tmp_path / "a-b")
    for age, session in enumerate((newer, older, other)):
        assert session.file is not None
        os.utime(session.file, (1_000_000 - age, 1_000_000 - age))
    assert other.file is not None
    os.utime(other.file, (2_000_000, 2_000_000))

    recent = st.recent(tmp_path / "a" / "b")
    monkeypatch.chdir(tmp_path / "a" / "b")

    assert recent is not None
    assert recent.id == st.open("@").id == newer.id
    assert st.recent(tmp_path) is None


@pytest.mark.parametrize(
    "before", [b"\xef\xbb\xbf", b'{"type":"title","title":"talk"}\n', b"\n\n"], ids=["mark", "title", "blanks"]
)
def test_the_most_recent_session_is_found_despite_lines_before_its_header(monkeypatch, tmp_path, before: bytes) -> None:
    monkeypatch.chdir(tmp_path)
    session = st.create()
    assert session.file is not None
    session.file.write_bytes(before + session.file.read_bytes())

    recent = st.recent()

    assert [summary.id for summary in st.sessions()] == [session.id]
    assert recent is not None
    assert recent.id == st.open("@").id == session.id


def test_a_session_can_be_created_in_a_folder_or_as_a_file(tmp_path: Path) -> None:
    in_folder = st.create(dir=tmp_path / "mine")
    as_file = st.create(file=tmp_path / "one.jsonl")

    assert in_folder.file is not None
    assert in_folder.file.parent == tmp_path / "mine"
    assert as_file.file == tmp_path / "one.jsonl"
    with pytest.raises(st.StoreError, match="exists"):
        st.create(file=tmp_path / "one.jsonl")


@pytest.mark.parametrize("name", ["..", "a\0b", "x" * 300, "%2e%2e", "\u202ename", "*", "--p--"])
def test_a_name_is_only_compared_and_never_part_of_a_path(name: str) -> None:
    session = st.create(name="auth", cwd="/p")
    assert session.file is not None

    with pytest.raises((st.NotFound, st.StoreError)):
        st.open(name)


def test_a_folder_of_the_catalog_may_be_a_link_to_one_elsewhere(home: Path, tmp_path: Path) -> None:
    inside = st.create(name="inside", cwd="/p")
    assert inside.file is not None
    catalog_folder = inside.file.parent.parent
    (tmp_path / "elsewhere").mkdir()
    (catalog_folder / "--q--").symlink_to(tmp_path / "elsewhere")
    outside = st.create(name="outside", cwd="/q")
    (catalog_folder / "--again--").symlink_to(inside.file.parent)
    (catalog_folder / "--r--").symlink_to("--q--")
    (catalog_folder / "--up--").symlink_to(".")
    (catalog_folder / "--loop--").symlink_to("--loop--")
    (catalog_folder / "--gone--").symlink_to("nowhere")

    assert list((tmp_path / "elsewhere").glob(f"*{outside.id}.jsonl"))
    assert list_ids(cwd="/q") == [outside.id]
    assert list_ids(all=True) == [outside.id, inside.id]
    assert [hit.session for hit in st.search("outside", all=True)] == [outside.id]
    for name in (outside.id, "outside", outside.id[-8:]):
        assert st.open(name).id == outside.id
    assert st.open("inside").file == inside.file
    catalog.delete("outside")
    assert list_ids(all=True) == [inside.id]
    assert catalog.restore("outside") == str(outside.file)


def test_links_to_files_in_the_catalog_are_not_followed(home: Path, tmp_path: Path) -> None:
    outside = st.create(name="outside", dir=tmp_path / "elsewhere" / "--x--")
    inside = st.create(name="inside", cwd="/p")
    assert inside.file is not None
    assert outside.file is not None
    (inside.file.parent / f"x_{outside.id}.jsonl").symlink_to(outside.file)
    (inside.file.parent / "x_loop.jsonl").symlink_to("x_loop.jsonl")
    os.mkfifo(inside.file.parent / "x_pipe.jsonl")

    for name in ("outside", outside.id, "loop", "pipe"):
        with pytest.raises(st.NotFound):
            st.open(name)
    assert st.open("inside").id == inside.id
    assert [summary.id for summary in st.sessions(all=True) if not summary.is_damaged] == [inside.id]


def test_finding_by_id_or_path_needs_no_index(home: Path) -> None:
    session = st.create(name="auth", cwd="/p")
    assert session.file is not None

    for name in (session.id, session.id[:20], str(session.file)):
        assert st.open(name).id == session.id
    assert not (home / ".sessiontree" / "index.db").exists()


# Listing and searching


def list_ids(**options: Any) -> list[str]:
    return [summary.id for summary in st.sessions(**options)]


def test_sessions_of_this_folder_are_listed_newest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    made = [st.create(cwd=tmp_path / "a" / "b") for _ in range(3)]
    other, same_folder_name = st.create(cwd="/q"), st.create(cwd=tmp_path / "a-b")
    for age, session in enumerate([*made, other, same_folder_name]):
        assert session.file is not None
        os.utime(session.file, (1_000_000 - age, 1_000_000 - age))
    monkeypatch.chdir(tmp_path / "a" / "b")

    assert list_ids() == list_ids(cwd=tmp_path / "a" / "b") == [session.id for session in made]
    assert list_ids(all=True) == [*(session.id for session in made), other.id, same_folder_name.id]
    assert list_ids(cwd="/nowhere") == []


def test_a_file_without_a_project_is_listed_in_its_folder() -> None:
    session = st.create(cwd="/p")
    assert session.file is not None
    (session.file.parent / "x_bad.jsonl").write_bytes(b"garbage")

    assert set(list_ids(cwd="/p")) == {"bad", session.id}


def test_any_folder_can_be_listed_with_or_without_its_subfolders(tmp_path: Path) -> None:
    top, below = st.create(dir=tmp_path / "mine"), st.create(dir=tmp_path / "mine" / "more")
    st.create(dir=tmp_path / "mine" / "more" / "deep")

    assert list_ids(dir=tmp_path / "mine") == [top.id]
    assert set(list_ids(dir=tmp_path / "mine", all=True)) == {top.id, below.id}
    with pytest.raises(st.NotFound):
        st.sessions(dir=tmp_path / "nowhere")


@pytest.mark.parametrize(("source", "folder"), [("pi", ".pi/agent/sessions"), ("omp", ".omp/agent/sessions")])
def test_sessions_of_other_programs_are_listed_and_searched_and_never_changed(
    home: Path, source: str, folder: str
) -> None:
    theirs, others = st.create(dir=home / folder / "--p--", cwd="/p"), st.create(dir=home / folder / "-q", cwd="/q")
    theirs.append(st.user("apple"))
    st.create(cwd="/p")
    before = {path: path.stat().st_mtime_ns for path in (home / folder).rglob("*")}

    assert list_ids(source=source, cwd="/p") == [theirs.id]
    assert set(list_ids(source=source, all=True)) == {theirs.id, others.id}
    assert [hit.session for hit in st.search("apple", source=source, cwd="/p")] == [theirs.id]
    assert st.search("apple", all=True) == []
    assert {path: path.stat().st_mtime_ns for path in (home / folder).rglob("*")} == before


def test_the_environment_of_pi_sets_the_folder_of_its_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = st.create(dir=tmp_path / "agent" / "sessions" / "--p--")
    flat = st.create(dir=tmp_path / "flat")

    monkeypatch.setenv("PI_CODING_AGENT_DIR", str(tmp_path / "agent"))
    assert list_ids(source="pi", all=True) == [agent.id]
    monkeypatch.setenv("PI_CODING_AGENT_SESSION_DIR", str(tmp_path / "flat"))
    assert list_ids(source="pi", all=True) == [flat.id]
    with pytest.raises(st.InvalidOperation, match="'emacs'"):
        st.sessions(source="emacs")


def test_a_search_covers_this_folder_or_all_folders() -> None:
    here, there = st.create(cwd="/p"), st.create(cwd="/q")
    for session in (here, there):
        session.append(st.user("apple"))

    assert [hit.session for hit in st.search("apple", cwd="/p")] == [here.id]
    assert {hit.session for hit in st.search("apple", all=True)} == {here.id, there.id}
    with pytest.raises(st.InvalidOperation):
        st.search("")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_an_unreadable_folder_is_listed_as_damaged(home: Path) -> None:
    session = st.create(cwd="/p")
    assert session.file is not None
    session.file.parent.chmod(0)

    assert [summary.damage for summary in st.sessions(all=True)] == ["Permission denied"]


def refuse(monkeypatch: pytest.MonkeyPatch, call: str, *paths: Path) -> None:
    real = getattr(os, call)

    def raise_refused(path: Any, *more: Any, **options: Any) -> Any:
        if path in [str(path) for path in paths]:
            raise PermissionError(13, "Permission denied")
        return real(path, *more, **options)

    monkeypatch.setattr(os, call, raise_refused)


@pytest.mark.parametrize("above", [0, 1])
def test_an_unreadable_folder_is_reported_and_not_treated_as_empty(
    home: Path, monkeypatch: pytest.MonkeyPatch, above: int
) -> None:
    session = st.create(cwd="/p")
    assert session.file is not None
    folder = session.file.parents[above]
    refuse(monkeypatch, "open", session.file.parent, folder)
    refuse(monkeypatch, "scandir", folder)
    unread: list[str] = []

    assert [(summary.file, summary.damage) for summary in st.sessions(all=True)] == [(str(folder), "Permission denied")]
    assert [summary.damage for summary in st.sessions("/p")] == ["Permission denied"]
    assert st.search("x", all=True, on_unreadable=unread.append) == []
    assert unread == [str(folder)]
    assert len(st.sessions(dir=folder, all=True)) == 1


@pytest.mark.parametrize("source", ["pi", "omp"])
@pytest.mark.parametrize("above", [0, 1])
def test_an_unreadable_folder_of_another_program_is_reported(
    monkeypatch: pytest.MonkeyPatch, source: str, above: int
) -> None:
    folder = Path(catalog.get_sources()[source]) / "--p--"
    st.create(dir=folder, cwd="/p")
    raise_refused = [folder, folder.parent][above]
    refuse(monkeypatch, "open", raise_refused)
    refuse(monkeypatch, "scandir", raise_refused)

    assert [summary.damage for summary in st.sessions("/p", source=source)] == ["Permission denied"]


def test_unreadable_files_are_listed_and_removed_ones_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("good", "gone", "kept"):
        st.create(file=tmp_path / f"{name}.jsonl")
    scandir = os.scandir
    failures = {"gone.jsonl": FileNotFoundError(2, "gone"), "kept.jsonl": PermissionError(13, "Permission denied")}

    class Seen:
        def __init__(self, entry: os.DirEntry[str]) -> None:
            self.entry, self.name = entry, entry.name

        def stat(self, **options: bool) -> os.stat_result:
            if self.name in failures:
                raise failures[self.name]
            return self.entry.stat(**options)

    class Folder:
        def __init__(self, path: int) -> None:
            with scandir(path) as entries:
                self.entries = [Seen(entry) for entry in entries]

        def __enter__(self) -> list[Seen]:
            return self.entries

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(os, "scandir", Folder)

    damage = {Path(summary.file).stem: summary.damage for summary in st.sessions(dir=tmp_path)}
    assert damage == {"good": None, "kept": "Permission denied"}


def test_an_error_while_reading_a_folder_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    st.create(file=tmp_path / "s.jsonl")

    def broken(_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "scandir", broken)

    assert [summary.damage for summary in st.sessions(dir=tmp_path)] == ["Input/output error"]


def test_temporary_files_of_other_programs_are_not_sessions() -> None:
    session = st.create(name="auth", cwd="/p")
    assert session.file is not None
    session.file.with_name(f"._{session.file.name}").write_bytes(b"\0\5\x16\7")
    session.file.with_name(f".#{session.file.name}").symlink_to("me@here.1234")

    assert list_ids(cwd="/p") == list_ids(all=True) == [session.id]
    assert st.open(session.id).id == session.id


def test_a_damaged_file_of_another_program_is_listed_for_its_project() -> None:
    for folder in ("--p--", "--q--"):
        place = Path(catalog.get_sources()["pi"]) / folder
        place.mkdir(parents=True)
        (place / f"x_{folder}.jsonl").write_bytes(b"garbage")

    assert list_ids(source="pi", cwd="/p") == ["--p--"]
    assert set(list_ids(source="pi", all=True)) == {"--p--", "--q--"}


# Forks


@pytest.fixture
def source() -> st.Session:
    session = st.create(name="auth", cwd="/p")
    session.extend([st.user("one"), st.assistant("two")])
    session.label("HEAD", "here")
    session.create_branch("b")
    session.extend([st.user("three"), st.assistant("four")])
    return session


def test_a_path_fork_is_a_separate_session_with_the_same_context(source: st.Session) -> None:
    before = source.read_lines()

    fork = source.fork(at="b", name="copy")

    assert fork.id != source.id
    assert fork.head.context().messages == source.branch("b").context().messages
    assert [info.name for info in fork.branches] == ["main"]
    assert (fork.name, fork.cwd, fork.forked_from) == ("copy", "/p", source.branch("b").leaf)
    assert fork.header.parent_session == str(source.file)
    assert list(fork.tree.labels.values()) == ["here"]
    assert "branch_point" not in {entry.type for entry in fork.tree}
    assert fork.problems == []
    assert source.read_lines() == before == st.open(source.id).read_lines()


def write_damaged_file(tmp_path: Path, first: str = "a") -> Path:
    """Three messages with a label between the first two. The newline after the second message is missing."""

    def message(id: str, parent: str | None) -> bytes:
        wire = {"type": "message", "id": id, "parentId": parent, "timestamp": "", "message": st.user(id).message}
        return write_object(wire)

    label = {"type": "label", "id": "l", "parentId": first, "timestamp": "", "targetId": first, "label": "x"}
    file = tmp_path / "damaged.jsonl"
    lines = [message(first, None), label, message("b", "l") + message("c", "b"), message("d", "b")]
    file.write_bytes(build_file(header(), *lines))
    return file


@pytest.mark.parametrize("to", ["file", "database"])
def test_a_path_fork_across_a_damaged_line_has_the_context_of_its_source(
    to: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    source = st.open(write_damaged_file(tmp_path))
    if to == "database":
        database = request.getfixturevalue("database")
        list(transfer.copy(str(source.file), f"{database}#s"))
        source = st.open(f"{database}#s")

    fork = source.fork(dir=None if to == "database" else tmp_path)

    assert [message["content"] for message in source.context().messages] == ["a", "d"]
    assert st.open(fork.location).context().messages == source.context().messages
    part = export(source.read_lines(), "jsonl", branch="HEAD").content
    (tmp_path / "part.jsonl").write_bytes(part)
    assert st.open(tmp_path / "part.jsonl").context().messages == source.context().messages


def test_a_path_fork_blocked_by_a_damaged_line_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    source = st.open(write_damaged_file(tmp_path, first="an odd id"))

    for work in (
        lambda: source.fork(file=tmp_path / "fork.jsonl"),
        lambda: export(source.read_lines(), "jsonl", branch="HEAD"),
    ):
        with pytest.raises(st.InvalidOperation, match=r"'b' on line 4 is damaged.*doctor --repair"):
            work()
    assert not (tmp_path / "fork.jsonl").exists()
    mended = repair(source).file
    assert mended is not None
    assert st.open(mended).fork(file=tmp_path / "fork.jsonl").context().messages == source.context().messages


def test_a_fork_works_without_its_source(source: st.Session) -> None:
    fork = source.fork(at="here")

    fork.append(st.user("another way"))

    assert len(fork.head.context().messages) == 3
    assert st.open(fork.id).head.leaf == fork.head.leaf
    with pytest.raises(st.InvalidOperation, match="nothing to undo"):
        fork.undo()


def test_copied_lines_keep_their_bytes_except_a_changed_parent(source: st.Session) -> None:
    fork = source.fork(at="b")

    lines = set(source.read_lines())
    changed = [entry for entry in fork.tree if entry.raw not in lines and not entry.is_annotation]

    assert len(changed) == 1
    original = source.tree[changed[0].id]
    assert changed[0].raw == original.raw.replace(f'"{original.parent}"'.encode(), f'"{changed[0].parent}"'.encode())


def test_a_whole_fork_has_every_line_and_every_branch(source: st.Session) -> None:
    fork = source.fork(whole=True)
    elsewhere = source.fork(whole=True, at="here", name="copy")

    assert fork.read_lines()[1:] == source.read_lines()[1:]
    assert [(b.name, b.leaf) for b in fork.branches] == [(b.name, b.leaf) for b in source.branches]
    assert fork.head.leaf == source.head.leaf
    assert (elsewhere.head.leaf, elsewhere.name) == (source.resolve_place("here"), "copy")


def test_a_fork_at_root_is_empty(source: st.Session) -> None:
    fork = source.fork(at="root")

    assert (len(fork.tree), fork.head.leaf, fork.forked_from) == (0, None, None)


def test_a_session_in_memory_forks_into_memory() -> None:
    session = st.memory(name="m")
    session.append(st.user("one"))

    fork = session.fork()

    assert (fork.file, fork.header.parent_session) == (None, None)
    assert fork.head.context().messages == session.head.context().messages


def test_a_whole_fork_has_the_requested_head_even_if_a_label_has_its_name(
    source: st.Session,
) -> None:
    *_, one, two = source.tree.path(source.head.leaf)
    source.label(two.id, one.id)

    assert source.fork(at=one, whole=True).head.leaf == one.id


def test_a_file_with_a_title_slot_keeps_its_name_in_a_whole_fork(tmp_path: Path) -> None:
    path = tmp_path / "omp.jsonl"
    path.write_bytes(
        b'{"type":"title","v":1,"title":"their name","pad":"   "}\n{"type":"session","version":3,"id":"o","cwd":"/p"}\n'
        b'{"type":"message","id":"a","parentId":null,"message":{"role":"user","content":"x"}}\n'
    )
    session = st.open(path)

    fork = session.fork(whole=True)

    assert session.name == fork.name == "their name"
    assert fork.read_lines()[1:] == session.read_lines()[2:]


def test_sessions_written_at_the_same_time_are_ordered_by_creation_time() -> None:
    older, newer = st.create(cwd="/z"), st.create(cwd="/a")
    for session in (older, newer):
        assert session.file is not None
        os.utime(session.file, (1_000_000, 1_000_000))

    made = [session.id for session in sorted((older, newer), key=lambda s: s.file.name if s.file else "", reverse=True)]

    assert [catalog.get_session_id(file) for file in catalog.list_locations()] == made


# The most recent session


@pytest.fixture(params=["files", "database"])
def two(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[st.Session, st.Session]:
    """Create an older and a newer session of this folder, in files and in a database."""
    monkeypatch.chdir(tmp_path)
    if request.param == "database":
        monkeypatch.setenv("SESSIONTREE_STORE", request.getfixturevalue("database"))
    sessions: list[st.Session] = []
    for name in ("older", "newer"):
        session = st.create(name)
        session.extend([st.user("one"), st.assistant("two")])
        session.create_branch("side", current=False)
        wait_for_clocks(session, tmp_path / "clock")
        sessions.append(session)
    return sessions[0], sessions[1]


def wait_for_clocks(session: st.Session, clock: Path) -> None:
    """Wait until the next write has a later time, both in entries and in files, whose clock is coarse."""
    written = session.tree.entries[-1].timestamp
    clock.write_text("")
    before = clock.stat().st_mtime_ns
    while format_timestamp(time.time_ns() // 1_000_000) <= written or clock.stat().st_mtime_ns <= before:
        clock.write_text("x")


@pytest.mark.parametrize(
    "annotate",
    [
        lambda session: session.rename("another name"),
        lambda session: session.label("HEAD", "here"),
        lambda session: session.rename_branch("side", "aside"),
        lambda session: session.archive_branch("side"),
    ],
)
def test_a_session_that_was_only_renamed_or_labeled_is_not_the_most_recent(two, annotate) -> None:
    older, newer = two

    annotate(older)

    assert st.open("@").id == newer.id
    recent = st.recent()
    assert recent is not None
    assert recent.id == newer.id


@pytest.mark.parametrize(
    "act",
    [
        lambda session: session.append(st.user("more")),
        lambda session: session.navigate_sync("HEAD~1"),
        lambda session: session.switch("side"),
        lambda session: session.create_branch("new"),
    ],
)
def test_a_continued_session_stays_the_most_recent_after_a_rename(two, act) -> None:
    older, _ = two

    act(older)
    assert st.open("@").id == older.id
    older.rename("another name")

    assert st.open("@").id == older.id


def test_the_most_recent_session_may_have_no_entries_or_be_damaged(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    older = st.create("older")
    older.append(st.user("one"))
    named = st.create("named")
    assert older.file is not None
    assert named.file is not None
    os.utime(older.file, ns=(0, 10**18))

    assert st.open("@").id == named.id
    named.file.write_bytes(named.file.read_bytes() + b"garbage")
    assert st.open("@").id == named.id
