import pytest

import sessiontree as st
from sessiontree.errors import InvalidOperation, NotFound
from sessiontree.hooks.events import BeforeFork, Forked
from sessiontree.ops.fork import ForkOutcome, fork_session
from sessiontree.session import Session
from tests.ops.conftest import append_messages


def list_texts(session: Session) -> list[str]:
    return [st.core.messages.extract_text(message["content"]) for message in session.context().messages]


@pytest.fixture
def ids(session: Session) -> list[str]:
    return append_messages(session, "one", "two", "three", "four")


async def test_a_fork_at_an_entry_ends_there(session, hooks, events, ids) -> None:
    outcome = await fork_session(session, ids[1], hooks=hooks, name="other")

    assert outcome.session is not None
    assert list_texts(outcome.session) == ["one", "two"]
    assert (outcome.session.name, outcome.session.forked_from, outcome.editor_text) == ("other", ids[1], None)
    assert events == [BeforeFork(entry=ids[1], position="at"), Forked(entry=ids[1])]


async def test_a_fork_of_the_head_is_a_clone(session, hooks, ids) -> None:
    outcome = await fork_session(session, hooks=hooks)

    assert outcome.session is not None
    assert list_texts(outcome.session) == ["one", "two", "three", "four"]


async def test_a_fork_before_a_user_message_returns_its_text(session, hooks, events, ids) -> None:
    outcome = await fork_session(session, ids[2], hooks=hooks, position="before")

    assert outcome.session is not None
    assert (list_texts(outcome.session), outcome.editor_text) == (["one", "two"], "three")
    assert events[0] == BeforeFork(entry=ids[2], position="before")


async def test_a_fork_before_the_first_message_is_empty_and_records_its_origin(tmp_path, hooks, events) -> None:
    with st.create(file=tmp_path / "s.jsonl") as session:
        ids = append_messages(session, "one", "two")

        outcome = await fork_session(session, ids[0], hooks=hooks, position="before", dir=tmp_path)

    assert outcome.session is not None
    assert (list_texts(outcome.session), outcome.editor_text) == ([], "one")
    assert outcome.session.header.parent_session == str(tmp_path / "s.jsonl")
    assert isinstance(events[-1], Forked)
    assert events[-1].previous_session_file == str(tmp_path / "s.jsonl")
    assert events[-1].session_file == str(outcome.session.file)


async def test_a_session_in_memory_is_forked_in_memory(session, hooks, ids) -> None:
    outcome = await fork_session(session, ids[1], hooks=hooks)

    assert outcome.session is not None
    assert outcome.session.file is None


@pytest.mark.parametrize("place", ["root", 1, 3])
async def test_forking_before_is_possible_only_for_user_messages(session, hooks, events, ids, place) -> None:
    with pytest.raises(InvalidOperation, match="is not a user message"):
        await fork_session(session, ids[place] if isinstance(place, int) else place, hooks=hooks, position="before")

    assert events == []


async def test_an_unknown_place_is_an_error(session, hooks, ids) -> None:
    with pytest.raises(NotFound):
        await fork_session(session, "nowhere", hooks=hooks)


async def test_a_handler_may_cancel_before_anything_is_created(tmp_path, hooks, events) -> None:
    hooks.on("session_before_branch", lambda event, ctx: {"cancel": True})
    with st.create(file=tmp_path / "s.jsonl") as session:
        append_messages(session, "one", "two")
        files = list(tmp_path.iterdir())

        outcome = await fork_session(session, hooks=hooks, dir=tmp_path)

    assert outcome == ForkOutcome(cancelled=True, cancelled_by="<lambda>")
    assert list(tmp_path.iterdir()) == files
    assert len(events) == 1


async def test_the_source_is_not_touched(session, hooks, ids) -> None:
    before = session.read_lines()

    await fork_session(session, ids[2], hooks=hooks, position="before")

    assert session.read_lines() == before
