"""Sessions in a database are found, listed, searched, archived and deleted like files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import psycopg
import pytest

import sessiontree as st
from sessiontree.cli.app import run
from sessiontree.library import catalog, transfer
from sessiontree.library.postgres_repository import PostgresRepository
from sessiontree.library.session_files import get_sessions_folder
from sessiontree.store.postgres.address import parse_address
from tests.surrogates import write_hostile_files


@pytest.fixture
def store(database: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """`SESSIONTREE_STORE` names an empty database."""
    monkeypatch.setenv("SESSIONTREE_STORE", database)
    monkeypatch.chdir(tmp_path)
    return database


def test_a_new_session_is_in_the_database_and_opens_by_every_name(store: str) -> None:
    with st.create(name="auth") as session:
        session.append(st.user("How?"))

    for name in (session.id, session.id[:12], "auth", "@", f"{store}#auth", f"{store}#{session.id[:8]}", f"{store}#@"):
        again = st.open(name)
        assert (again.id, again.name, again.file) == (session.id, "auth", None)
    assert again.location == f"{store}#{session.id}"
    assert st.recent() is not None
    assert not os.path.exists(get_sessions_folder())


def test_a_deleted_current_folder_is_reported_as_for_files(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()

    for work in (st.sessions, st.recent, lambda: st.open("@"), lambda: st.search("x")):
        with pytest.raises(st.NotFound, match="the current folder was deleted"):
            work()
    assert st.sessions(all=True) == []


def test_a_path_means_a_file_even_if_sessions_are_in_a_database(store: str, tmp_path: Path) -> None:
    with st.create(file=tmp_path / "own.jsonl") as session:
        session.append(st.user("here"))

    assert st.open("./own.jsonl").id == session.id
    assert st.sessions(all=True) == []


def test_an_unknown_name_is_not_found_and_a_duplicate_name_is_ambiguous(store: str) -> None:
    first, second = st.create(name="same"), st.create(name="same")

    with pytest.raises(st.NotFound):
        st.open("nonsense")
    with pytest.raises(st.NotFound):
        st.open("postgres")
    with pytest.raises(st.Ambiguous) as refused:
        st.open("same")
    assert set(refused.value.candidates) == {first.id, second.id}


def test_a_phrase_matches_within_one_text_block(store: str) -> None:
    blocks = [{"type": "text", "text": text} for text in ("here it ends", "and here begins")]
    st.create().append(st.user(blocks))

    assert st.search('"ends and"') == []
    assert len(st.search('"here begins" ends')) == 1


def test_a_name_takes_precedence_over_a_part_of_an_id(store: str) -> None:
    other = st.create()
    named = st.create(name=other.id[-8:])

    assert st.open(other.id[-8:]).id == named.id
    assert st.open(other.id).id == other.id


def test_a_database_address_is_never_treated_as_a_session(store: str) -> None:
    session = st.create(name="auth")

    for act in (st.open, catalog.archive, catalog.delete, catalog.restore, catalog.purge):
        with pytest.raises(st.InvalidOperation, match="has no session"):
            act(store)
    assert [summary.id for summary in st.sessions()] == [session.id]


def create_busy_session(name: str, **where: object) -> st.Session:
    """Create a session with branches, costs, an archived branch and a label."""
    session = st.create(name=name, **where)  # type: ignore[arg-type]
    session.append(st.user("Find the\nCache  bug, Straße"))
    session.append(st.assistant("A dict, 100% _sure_.", usage={"input": 900, "output": 60, "cost": 0.004}))
    session.create_branch("try", description="another way")
    session.append(st.user("two ways"))
    session.create_branch("gone", at="main", current=False)
    session.archive_branch("gone")
    session.label("main", "good")
    session.switch("main")
    session.append(st.assistant("done", usage={"cost": 0.001}))
    return session


def get_compared_fields(summary: st.SessionSummary) -> dict[str, object]:
    return {
        name: getattr(summary, name)
        for name in summary.__struct_fields__
        if name not in ("id", "file", "created", "modified")
    }


def test_a_listing_equals_a_listing_of_files(store: str, tmp_path: Path) -> None:
    create_busy_session("deep")
    (listed,) = st.sessions()
    create_busy_session("deep", dir=tmp_path / "files")
    (of_files,) = st.sessions(dir=tmp_path / "files")

    assert get_compared_fields(listed) == get_compared_fields(of_files)
    assert (listed.branch_count, listed.branch, listed.cost) == (2, "main", 0.005)
    assert listed.created <= listed.modified


def test_a_listing_is_up_to_date_without_opening_sessions(store: str) -> None:
    session = create_busy_session("deep")
    before = st.sessions()[0]

    session.rename("deeper")
    session.append(st.user("more"))

    after = st.sessions()[0]
    assert (after.name, after.entry_count, after.message_count) == (
        "deeper",
        before.entry_count + 2,
        before.message_count + 1,
    )
    assert after.first_message == before.first_message == "Find the Cache bug, Straße"


def test_an_address_in_a_header_is_never_opened(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    place = PostgresRepository(parse_address(store))
    for number, parent in enumerate(
        ("postgresql://[bad", f"{store}?sslmode=disable&service=evil#x", "postgresql://h/d#")
    ):
        header = {
            "type": "session",
            "version": 3,
            "id": f"s{number}",
            "timestamp": "",
            "cwd": "/p",
            "parentSession": parent,
        }
        place.get_store(f"s{number}").create([json.dumps(header).encode()])

    assert run(["ls", "--all"]) == 0

    assert "fork of x" in capsys.readouterr().out
    assert parse_address(store).url == store


def test_sessions_of_this_folder_are_listed_newest_first_and_others_on_request(store: str) -> None:
    old, new = st.create(name="old"), st.create(name="new")
    st.create(name="elsewhere", cwd="/somewhere/else")
    old.append(st.user("again"))

    assert [summary.name for summary in st.sessions()] == ["old", "new"]
    assert {summary.name for summary in st.sessions(all=True)} == {"old", "new", "elsewhere"}
    assert new.id in set(map(catalog.get_session_id, catalog.list_locations()))


def test_lines_of_other_programs_and_damaged_lines_are_examined_once(store: str) -> None:
    place = PostgresRepository(parse_address(store))
    header = b'{"type":"session","version":3,"id":"%s","timestamp":"2026-01-02T09:30:00.000Z","cwd":"/p"}'
    line = (
        b'{"type":"message","id":"%s","parentId":%s,"timestamp":"2026-01-02T09:30:01.000Z",'
        b'"message":{"role":"user","content":"hello pi"}}'
    )
    sound = [line % (b"a1", b"null"), line % (b"a2", b'"a1"')]
    place.get_store("sound").create([header % b"sound", *sound])
    place.get_store("damaged").create([header % b"damaged", line % (b"a1", b'"nowhere"'), b"{nonsense"])
    place.get_store("none").create([b"no header"])

    for _ in range(2):
        listed = {summary.id: summary for summary in st.sessions(all=True)}
        assert (listed["sound"].entry_count, listed["sound"].damage) == (2, None)
        assert listed["damaged"].is_damaged
        assert listed["none"].is_damaged
        assert listed["sound"].first_message == "hello pi"

    with st.open("sound") as session:
        session.append(st.user("ours"))
    assert {summary.id: summary.entry_count for summary in st.sessions(all=True)}["sound"] == 3


QUERIES = [
    "cache", "CACHE bug", '"the cache"', "strasse", "cach*", "ache*", "100%", "_sure_", "two ways", "role:user",
    "role:assistant done", "since:7d", "nothing-of-this", "good", "another way", "role:label,branch_point",
]  # fmt: skip


def test_a_search_finds_the_same_as_a_search_of_files(store: str, tmp_path: Path) -> None:
    def found(hits: list[st.Hit]) -> list[tuple[object, ...]]:
        return sorted((hit.type, hit.role, hit.branch, hit.in_context, hit.snippet, hit.name) for hit in hits)

    create_busy_session("deep").close()
    create_busy_session("deep", dir=tmp_path / "files").close()

    for query in QUERIES:
        expected = found(st.search(query, dir=tmp_path / "files"))
        assert found(st.search(query, all=True)) == expected, query
        assert expected or query in ("ache*", "nothing-of-this")


def test_matching_sessions_are_the_same_as_for_a_search(store: str) -> None:
    for name in ("deep", "deeper"):
        create_busy_session(name).close()
    with st.create(name="apart") as session:
        session.append(st.user("cache"))
        apart = st.user([{"type": "text", "text": text} for text in ("it ends", "and here begins")])
        session.head.extend([apart, st.user("it ends and goes on"), apart])

    for query in (*QUERIES, '"ends and"', '"here begins"', '"begins ends"'):
        expected = {hit.file for hit in st.search(query, all=True, limit=1000)}
        assert set(catalog.find_matching_sessions(query, all=True)) == expected, query
    assert len(catalog.find_matching_sessions("cache")) > 1
    assert catalog.find_matching_sessions("cache", cwd="/nowhere") == []


def test_a_search_returns_the_newest_hits_of_a_folder(store: str) -> None:
    with st.create(name="here") as here, st.create(name="there", cwd="/there") as there:
        for number in range(5):
            here.append(st.user(f"word {number}"))
        there.append(st.user("word there"))

    assert [hit.snippet for hit in st.search("word", limit=2)] == ["word 4", "word 3"]
    assert [hit.name for hit in st.search("word", all=True, only=lambda summary: summary.name == "there")] == ["there"]
    assert len(st.search("word", all=True)) == 6
    hit = st.search("word there", all=True)[0]
    assert st.open(hit.file).resolve_place(hit.entry) == hit.entry


def test_abandoned_entries_are_found_on_no_branch(store: str) -> None:
    session = st.create()
    session.append(st.user("kept"))
    session.append(st.user("left behind"))
    session.move("HEAD~1", [st.user("instead")])

    (hit,) = st.search("left behind")

    assert (hit.branch, hit.in_context) == (None, False)
    assert st.search("instead")[0].in_context


def test_texts_too_long_for_the_index_are_found(store: str) -> None:
    session = st.create()
    session.append(st.user("needle " + "hay " * 80_000))

    assert len(st.search("needle")) == 1
    assert st.search("needles") == []


def test_an_unreadable_line_does_not_break_a_search(store: str) -> None:
    session = st.create(name="deep")
    deep, sound = session.append(st.user("needle here")), session.append(st.user("needle there"))
    nested = b'{"type":"message","id":"%s","message":%s' % (deep.id.encode(), b"[" * 300 + b"]" * 300 + b"}")
    with psycopg.connect(store) as connection:
        connection.execute("SET session_replication_role = replica")  # only a superuser can bypass the trigger
        change = connection.execute("UPDATE sessiontree.entry SET line = %s WHERE line = %s", (nested, deep.raw))
        assert change.rowcount == 1

    assert [hit.entry for hit in st.search("needle")] == [sound.id]


def test_archived_sessions_are_searched_but_not_listed(store: str) -> None:
    session = st.create(name="auth")
    session.append(st.user("word"))

    assert catalog.archive("auth") == session.location
    assert st.sessions() == []
    assert st.sessions(archived=True)[0].archived
    assert st.search("word")
    catalog.archive(session.location, archived=False)
    assert st.sessions()[0].name == "auth"


def test_deleted_sessions_are_in_the_trash_until_they_are_purged(store: str) -> None:
    session = st.create(name="auth")
    session.append(st.user("word"))
    catalog.delete("auth")

    assert st.sessions() == st.search("word") == []
    assert [summary.name for summary in catalog.list_trash()] == ["auth"]
    with pytest.raises(st.NotFound):
        st.open(session.id)
    with pytest.raises(st.StoreError):
        session.append(st.user("too late"))
    catalog.restore("auth")
    assert st.open("auth").name == "auth"
    catalog.delete("auth")
    catalog.purge(session.id)
    assert catalog.list_trash() == []
    with pytest.raises(st.NotFound):
        catalog.purge("auth")


def test_a_name_used_twice_in_the_trash_does_not_purge_the_existing_session(store: str) -> None:
    for _ in range(2):
        st.create(name="auth")
        catalog.delete("auth")
    living = st.create(name="auth")

    with pytest.raises(st.Ambiguous):
        catalog.purge("auth")

    assert [summary.id for summary in st.sessions()] == [living.id]
    assert len(catalog.list_trash()) == 2


def test_an_unused_session_is_removed_unless_others_have_used_it(store: str) -> None:
    unused, used = st.create(), st.create()
    seen = used.store.read_end().cursor
    st.open(used.id).append(st.user("appended in between"))

    for session in (unused, used):
        catalog.purge_unused(session, lambda tree: not len(tree))
    with pytest.raises(st.Conflict):
        catalog.purge(used.id, at=seen)

    assert [summary.first_message for summary in st.sessions()] == ["appended in between"]


def test_an_older_dialect_is_read_searched_and_migrated(store: str) -> None:
    lines = [
        b'{"type":"session","id":"old-one","timestamp":"2026-01-02T09:30:00.000Z","cwd":"/p"}',
        b'{"type":"message","timestamp":"2026-01-02T09:30:01.000Z",'
        b'"message":{"role":"user","content":"ancient words"}}',
    ]
    PostgresRepository(parse_address(store)).get_store("old-one").create(lines)

    assert st.sessions(all=True)[0].message_count == 1
    assert [hit.session for hit in st.search("ancient", all=True)] == ["old-one"]
    assert catalog.find_matching_sessions("ancient", all=True) == [f"{store}#old-one"]
    with st.open("old-one") as session:
        session.append(st.user("new words"))
    assert len(st.search("words", all=True)) == 2
    assert not st.open("old-one").needs_migration


def test_lone_surrogates_in_one_session_do_not_affect_the_listing_of_others(store: str, tmp_path: Path) -> None:
    with st.create("good") as good:
        good.append(st.user("hello"))
    (tmp_path / "hostile").mkdir()
    files = write_hostile_files(tmp_path / "hostile", tmp_path)
    for file in files:
        list(transfer.copy(str(file), store))

    for _ in range(2):  # the first result is cached
        listed = st.sessions(all=True)
        assert len(listed) == len(files) + 1
        assert [summary.damage for summary in listed if summary.id == good.id] == [None]
        assert not [summary.damage for summary in listed if "internal error" in str(summary.damage)]
        assert good.id in {hit.session for hit in st.search("hello", all=True, limit=1000)}
        assert st.open("good").id == good.id
