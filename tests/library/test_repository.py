"""One suite for every kind of repository. A new kind joins by adding a line to `REPOSITORIES`."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.cli.app import run
from sessiontree.errors import Ambiguous, Conflict, InvalidOperation, NotFound
from sessiontree.library import catalog, locations
from sessiontree.library.locations import find_repository, open_repository, register_scheme, set_file_store
from sessiontree.library.repository import find_most_recent
from sessiontree.library.transfer import copy, verify
from sessiontree.session import Session
from sessiontree.store.jsonl import JsonlStore
from sessiontree.store.memory import MemoryStore
from tests.library.dict_repository import SCHEME, open_dict
from tests.store.encrypted_store import EncryptedStore


def folder(request: pytest.FixtureRequest) -> None:
    """The default: files below the home."""


def encrypted_folder(request: pytest.FixtureRequest) -> None:
    set_file_store(EncryptedStore)
    request.addfinalizer(lambda: set_file_store(JsonlStore))


def postgres(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue("database")


def dictionary(request: pytest.FixtureRequest) -> str:
    register_scheme(SCHEME, open_dict)
    request.addfinalizer(lambda: locations._schemes.pop(SCHEME))
    return f"{SCHEME}{request.node.name}"


REPOSITORIES: dict[str, Callable[[pytest.FixtureRequest], str | None]] = {
    "folder": folder,
    "encrypted folder": encrypted_folder,
    "postgres": postgres,
    "dictionary": dictionary,
}


@pytest.fixture(params=REPOSITORIES, autouse=True)
def kind(request: pytest.FixtureRequest, home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    address = REPOSITORIES[request.param](request)
    if address is not None:
        monkeypatch.setenv("SESSIONTREE_STORE", address)
    return request.param


def create(name: str, *texts: str, **options: str) -> st.Session:
    session = st.create(name=name, **options)
    for text in texts:
        session.append(st.user(text))
    return session


def list_names(**options: bool) -> list[str | None]:
    return [summary.name for summary in st.sessions(**options)]


def test_a_session_is_opened_by_location_id_part_of_an_id_name_and_as_the_most_recent() -> None:
    session = create("auth", "hello")

    for name in (session.location, session.id, session.id[:13], "auth", "@"):
        assert st.open(name).id == session.id
    assert [entry.id for entry in st.open("auth").tree] == [entry.id for entry in session.tree]
    recent = st.recent()
    assert recent is not None
    assert recent.id == session.id


def test_an_unknown_name_is_not_found_and_a_name_that_two_sessions_have_is_ambiguous() -> None:
    create("twice"), create("twice")

    with pytest.raises(Ambiguous):
        st.open("twice")
    with pytest.raises(NotFound):
        st.open("nowhere")
    with pytest.raises(InvalidOperation):
        st.open("")


def test_a_listing_summarizes_the_sessions_of_the_folder_newest_first(tmp_path: Path) -> None:
    create("first", "one", "two")
    create("elsewhere", cwd=str(tmp_path))
    second = create("second")
    second.create_branch("side")
    second.append(st.assistant("answer", usage={"input": 10, "output": 2, "cost": 0.25}))

    listed = st.sessions()

    assert [summary.name for summary in listed] == ["second", "first"]
    assert [summary.message_count for summary in listed] == [1, 2]
    assert (listed[0].branch, listed[0].branch_count, listed[0].cost) == ("side", 2, 0.25)
    assert (listed[1].first_message, listed[1].damage) == ("one", None)
    assert sorted(list_names(all=True)) == ["elsewhere", "first", "second"]
    assert {catalog.find(summary.file) for summary in listed} == {summary.file for summary in listed}


def test_a_search_finds_entries_in_all_sessions_newest_first() -> None:
    create("one", "an apple", "a pear")
    create("two", "apple pie")

    assert [(hit.name, hit.role) for hit in st.search("apple")] == [("two", "user"), ("one", "user")]
    assert [hit.snippet for hit in st.search("pear")] == ["a pear"]
    assert st.search("plum") == []
    assert len(st.search("apple", limit=1)) == 1
    assert len(catalog.find_matching_sessions("apple")) == 2


def test_an_archived_session_is_hidden_from_listings_and_still_found() -> None:
    create("old", "apple")

    location = catalog.archive("old")

    assert (list_names(), list_names(archived=True)) == ([], ["old"])
    assert st.open("old").location == location
    assert len(st.search("apple")) == 1
    catalog.archive("old", archived=False)
    assert list_names() == ["old"]


def test_a_deleted_session_is_in_the_trash_until_it_is_restored_or_purged() -> None:
    session = create("gone", "text")

    catalog.delete("gone")

    assert list_names() == []
    assert [summary.name for summary in catalog.list_trash()] == ["gone"]
    with pytest.raises(NotFound):
        st.open("gone")
    catalog.restore("gone")
    assert [entry.id for entry in st.open("gone").tree] == [entry.id for entry in session.tree]
    catalog.delete("gone")
    catalog.purge("gone")
    assert catalog.list_trash() == []


def test_a_session_with_new_entries_is_not_purged() -> None:
    session = create("used", "text")
    end = session.store.read_end().cursor
    session.append(st.user("more"))

    with pytest.raises(Conflict):
        catalog.purge("used", at=end)

    assert list_names() == ["used"]


@pytest.mark.parametrize("whole", [False, True])
def test_a_fork_stays_in_the_repository_and_has_the_context_of_its_source(whole: bool) -> None:
    session = create("source", "one", "two")

    forked = session.fork(whole=whole, name="forked")

    assert sorted(list_names()) == ["forked", "source"]
    assert forked.context().messages == session.context().messages
    assert st.open("forked").header.parent_session == session.location


def test_every_session_is_listed_with_its_location_archived_ones_too() -> None:
    made = {create("a").location, create("b").location}
    catalog.archive("a")

    stored = open_repository().list_stored()

    assert {session.location for session in stored} == made
    assert [session.archived for session in stored if session.location == st.open("a").location] == [True]
    assert all(catalog.has_session(location) for location in made)


def test_a_change_by_another_writer_ends_the_wait() -> None:
    session = create("watched", "one")
    place, location = find_repository(session.location)
    end = session.store.read_end().cursor

    assert not place.wait_for_change(location, end, 0.01)
    writer = threading.Timer(0.1, lambda: st.open("watched").append(st.user("two")))
    writer.start()
    try:
        assert place.wait_for_change(location, end, 30)
    finally:
        writer.join()


def test_a_byte_scan_finds_only_existing_text(kind: str) -> None:
    location = create("scanned", "apple").location

    assert catalog.may_contain(location, b"apple")
    if kind != "postgres":  # which does not search
        assert not catalog.may_contain(location, b"plum")


def test_sessions_are_copied_out_byte_for_byte(tmp_path: Path) -> None:
    location = create("copied", "one", "two").location
    target = str(tmp_path / "out.jsonl")

    assert [result.state for result in copy(location, target)] == ["copied"]
    assert [result.state for result in verify(location, target)] == ["same"]
    assert st.open(target).context().messages == st.open("copied").context().messages


def test_commands_work_on_every_repository(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    create("talk", "an apple")
    page = tmp_path / "page.html"

    for arguments in (
        ["ls"],
        ["search", "apple"],
        ["tree", "talk"],
        ["context", "talk"],
        ["append", "talk", "--role", "user", "more"],
        ["branch", "talk", "side"],
        ["doctor", "talk"],
        ["fork", "talk", "--name", "other"],
        ["export", "talk", "-o", str(page)],
        ["export", "talk", "-o", str(tmp_path / "talk.jsonl")],
        ["delete", "other", "--yes"],
    ):
        assert run(arguments) == 0, (arguments, capfd.readouterr())

    assert "an apple" in page.read_text()
    assert '"an apple"' in (tmp_path / "talk.jsonl").read_text()
    assert [message["role"] for message in st.open("talk").context().to_llm()] == ["user", "user"]


# The most recent session when times are close: entries have milliseconds, stores microseconds or less


MS = 1_000_000
START = 1_767_225_600_000


def write_session(name: str, *times: int) -> MemoryStore:
    """Create a session, append a message and, if there is a third time, rename it. Times are in ms after the start."""
    clock: Iterator[int] = iter(times)
    store = MemoryStore(name)
    session = Session.create(store, id=name, new_id=lambda: st.memory().id[-16:], now=lambda: START + next(clock))
    session.append(st.user("hello"))
    if len(times) > 2:
        session.rename("another name")
    return store


def find_recent(*written: tuple[MemoryStore, float]) -> str | None:
    """Find the most recent of these sessions, given their modification times in ms after the start."""
    stores = {store.location: store for store, _ in written}
    times = [(store.location, START * MS + round(modified * MS)) for store, modified in written]
    return find_most_recent(sorted(times, key=lambda item: -item[1]), lambda location: stores[location])


def test_a_renamed_session_stays_the_most_recent_if_another_was_written_in_the_same_millisecond() -> None:
    written_slowly = write_session("other", 0, 8)
    continued = write_session("continued", 0, 10, 15)

    assert find_recent((written_slowly, 10.7), (continued, 15.2)) == "continued"


def test_a_renamed_session_is_not_the_most_recent_if_another_was_continued_a_millisecond_later() -> None:
    renamed = write_session("renamed", 0, 10, 15)
    continued = write_session("continued", 0, 11)

    assert find_recent((renamed, 15.2), (continued, 11.0)) == "continued"


def test_of_two_sessions_continued_in_the_same_millisecond_the_one_written_last_is_the_most_recent() -> None:
    first = write_session("first", 0, 10)
    second = write_session("second", 0, 10)

    assert find_recent((first, 10.2), (second, 10.7)) == "second"
