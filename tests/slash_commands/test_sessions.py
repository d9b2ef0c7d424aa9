"""Commands for whole sessions, and switching between sessions."""

from __future__ import annotations

import sys
import tracemalloc
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.errors import InvalidOperation, NotFound, StoreError
from sessiontree.export import build_file_name
from sessiontree.hooks.events import BeforeFork, BeforeSwitch, Forked, SessionShutdown, SessionStart, Switched
from sessiontree.session import Session
from tests.slash_commands.conftest import (
    MakeController,
    ScriptedModels,
    ScriptedUser,
    make_scripted_model,
    record_events,
    run,
    talk,
)
from tests.store.test_file_operations import limit_file_size


async def test_a_fork_at_another_entry_includes_it(make_controller: MakeController, session: Session) -> None:
    _, answer, *_ = talk(session, "one", "1", "two", "2")
    at = make_controller("Two again.")

    await run(at, f"/fork {answer}")

    assert at.session.header.parent_session == str(session.file)
    assert at.session.head.leaf == answer
    assert at.host.editor == ""


@pytest.mark.parametrize("command", ["/fork", "/branch"])
async def test_a_fork_before_a_chosen_message_is_a_new_session_file(
    make_controller: MakeController, session: Session, command: str
) -> None:
    *_, last = talk(session, "one", "1", "two", "2")
    at = make_controller("Two again.", ui=ScriptedUser("two"))
    events = record_events(at)

    await run(at, command)

    assert at.session is not session
    assert at.session.file != session.file
    assert at.session.header.parent_session == str(session.file)
    assert at.host.editor == "two"
    assert [type(event) for event in events] == [BeforeFork, Forked, SessionShutdown, SessionStart]
    await at.submit("two, please")
    assert [str(message["content"]) for message in at.model.requests[0].messages][-1] == "two, please"
    assert len(at.session.head.path()) > 2
    assert st.open(session.file).head.leaf == last


async def test_without_a_user_the_message_must_be_named(make_controller: MakeController, session: Session) -> None:
    first, *_ = talk(session, "one", "1")
    at = make_controller()
    with pytest.raises(InvalidOperation, match=f"name a message to fork before: {first[:8]}"):
        await run(at, "/fork")

    await run(at, f"/fork {first}")

    assert at.session.head.leaf is None


async def test_a_clone_is_a_new_session_at_the_same_place(make_controller: MakeController, session: Session) -> None:
    talk(session, "one", "1")
    at = make_controller()

    await run(at, "/clone")

    assert at.session.id != session.id
    assert at.session.head.context().messages == st.open(session.file).head.context().messages


async def test_a_new_session_replaces_the_current_one(make_controller: MakeController, session: Session) -> None:
    talk(session, "one", "1")
    at = make_controller("Fresh.")
    events = record_events(at)

    await run(at, "/new other work")

    assert at.session.name == "other work"
    assert at.session.cwd == session.cwd
    assert [type(event) for event in events] == [BeforeSwitch, SessionShutdown, SessionStart, Switched]
    assert isinstance(events[-1], Switched)
    assert events[-1].previous_session_file == str(session.file)
    await at.submit("two")
    assert len(at.model.requests[0].messages) == 1


async def test_another_session_is_resumed_with_its_model(make_controller: MakeController, session: Session) -> None:
    other = st.create("other", cwd=session.cwd)
    other.append(st.user("what?"))
    other.append(st.assistant("that", provider="scripted", model="large"))
    other.close()
    large = make_scripted_model("large", "Still that.")
    at = make_controller(models=ScriptedModels(large=large), ui=ScriptedUser("other"))

    await run(at, "/resume")

    assert at.session.name == "other"
    assert at.hooks.context.session is at.session
    done = await at.submit("sure?")
    assert done.outcome is not None
    assert done.outcome.text == "Still that."
    await run(at, "/resume auth")
    assert at.session.id == session.id


async def test_a_session_with_an_unavailable_model_uses_the_current_one(
    make_controller: MakeController, session: Session
) -> None:
    other = st.create("other", cwd=session.cwd)
    other.append(st.assistant("that", provider="scripted", model="gone"))
    other.close()
    at = make_controller("Here I am.")
    events = record_events(at)

    await run(at, "/resume other")
    done = await at.submit("sure?")

    assert done.outcome is not None
    assert done.outcome.text == "Here I am."
    assert any("scripted:gone" in getattr(event, "text", "") for event in events)


async def test_an_unknown_session_changes_nothing(make_controller: MakeController, session: Session) -> None:
    at = make_controller()
    events = record_events(at)

    with pytest.raises(NotFound):
        await run(at, "/resume nowhere")

    assert at.session is session
    assert not events


async def test_a_handler_can_cancel_a_session_switch(make_controller: MakeController, session: Session) -> None:
    first, *_ = talk(session, "one", "1")
    at = make_controller()
    at.hooks.on("session_before_switch", lambda event, context: {"cancel": True})
    at.hooks.on("session_before_fork", lambda event, context: {"cancel": True})

    for line in ("/new", "/clone", f"/fork {first}"):
        assert "Cancelled" in await run(at, line)
        assert at.session is session


async def test_a_session_in_memory_stays_there(make_controller: MakeController) -> None:
    session = st.memory()
    first, *_ = talk(session, "one", "1")
    at = make_controller(session=session)

    await run(at, f"/fork {first}")
    assert at.session.file is None
    await run(at, "/new")
    assert at.session.file is None


async def test_session_shows_information_about_the_session(make_controller: MakeController, session: Session) -> None:
    talk(session, "one", "1")

    told = await run(make_controller(), "/session")

    assert session.id in told
    assert str(session.file) in told
    assert "2 messages" in told
    assert "scripted:usual, thinking off" in told
    assert "tokens unknown, cost unknown" in told
    session.append(st.assistant("2", usage={"input": 900, "output": 100, "cost": 0.01}))
    assert "1k tokens, $0.0100" in await run(make_controller(), "/session")


async def test_one_message_uses_the_singular(make_controller: MakeController, session: Session) -> None:
    session.append(st.user("one"))

    assert "1 message, 0 tool calls" in await run(make_controller(), "/session")


async def test_a_session_name_is_set_shown_and_cleared(make_controller: MakeController, session: Session) -> None:
    at = make_controller()

    assert await run(at, "/name make it fast") == "make it fast"
    assert await run(at, "/name") == "make it fast"
    await run(at, "/name --clear")
    assert session.name is None


async def test_search_covers_the_sessions_of_this_folder(make_controller: MakeController, session: Session) -> None:
    _, answer = talk(session, "where is the needle?", "in the haystack")
    at = make_controller()

    assert answer[:8] in await run(at, "/search haystack")
    assert await run(at, "/search elephant") == 'No matches for "elephant".'


async def test_an_export_is_a_copy_byte_for_byte_and_never_overwrites(
    make_controller: MakeController, session: Session
) -> None:
    talk(session, "one", "1")
    at = make_controller()
    target = Path(session.cwd) / "copy.jsonl"

    await run(at, "/export copy.jsonl")

    assert session.file is not None
    assert target.read_bytes() == session.file.read_bytes()
    assert target.stat().st_mode & 0o777 == 0o600
    with pytest.raises(StoreError, match="exists"):
        await run(at, "/export copy.jsonl")
    with pytest.raises(InvalidOperation, match=r"use one of \.html"):
        await run(at, "/export copy.pdf")


async def test_a_large_session_is_exported_without_loading_it_into_memory(
    make_controller: MakeController, session: Session
) -> None:
    for _ in range(80):
        session.append(st.user("word " * 20_000))
    at = make_controller()
    target = Path(session.cwd) / "copy.jsonl"
    tracemalloc.start()
    try:
        await run(at, "/export copy.jsonl")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < target.stat().st_size / 2


async def test_a_failed_export_leaves_no_file_and_can_be_retried(
    make_controller: MakeController, session: Session
) -> None:
    talk(session, "one", "1")
    at = make_controller()

    with limit_file_size(100), pytest.raises(StoreError, match="too large"):
        await run(at, "/export copy.jsonl")

    assert list(Path(session.cwd).iterdir()) == []
    await run(at, "/export copy.jsonl")


async def test_a_session_whose_file_was_deleted_can_still_be_exported(
    make_controller: MakeController, session: Session
) -> None:
    talk(session, "one", "1")
    at, lines = make_controller(), session.read_lines()
    assert session.file is not None
    session.file.unlink()

    await run(at, "/export rescued.jsonl")

    assert (Path(session.cwd) / "rescued.jsonl").read_bytes().splitlines() == lines


@pytest.mark.parametrize(("name", "begins"), [("talk.html", "<!doctype html>"), ("talk.md", "# "), ("talk.txt", "")])
async def test_the_file_name_chooses_the_export_format(
    make_controller: MakeController, session: Session, name: str, begins: str
) -> None:
    talk(session, "where is the needle?", "in the haystack")

    await run(make_controller(), f"/export {name}")

    text = (Path(session.cwd) / name).read_text()
    assert text.startswith(begins)
    assert "in the haystack" in text


async def test_an_export_without_a_file_is_a_page_with_an_unused_name(
    make_controller: MakeController, session: Session
) -> None:
    talk(session, "where is the needle?", "in the haystack")
    at, folder = make_controller(), Path(session.cwd)

    first, second = [(await run(at, "/export")).split(" to ")[1] for _ in range(2)]

    name = build_file_name(session.id, "html")
    assert [first, second] == [str(folder / name), str(folder / name.replace(".html", "-2.html"))]
    assert "in the haystack" in Path(first).read_text()
    assert Path(first).read_bytes() == Path(second).read_bytes()


async def test_without_the_html_extra_an_export_is_markdown(
    make_controller: MakeController, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk(session, "one", "1")
    monkeypatch.setitem(sys.modules, "jinja2", None)

    await run(make_controller(), "/export")

    assert [path.suffix for path in Path(session.cwd).iterdir()] == [".md"]


@pytest.mark.parametrize("given", ["cache", "", "part.md", "HEAD", "cache part.txt"])
async def test_an_exported_branch_has_its_whole_path(
    make_controller: MakeController, session: Session, given: str
) -> None:
    talk(session, "first of all", "1")
    session.create_branch("cache")
    talk(session, "on the branch", "2")
    session.branch("main").append(st.user("on the other one"))

    told = await run(make_controller(), f"/export-branch {given}")

    (written,) = Path(session.cwd).iterdir()
    text = written.read_text()
    assert told.endswith(f" to {written}")
    assert "first of all" in text
    assert "on the branch" in text
    assert "on the other one" not in text


async def test_an_exported_place_without_a_file_is_named_after_the_place(
    make_controller: MakeController, session: Session
) -> None:
    _, answer, *_ = talk(session, "one", "1", "two", "2")

    told = await run(make_controller(), f"/export-branch {answer}")

    (written,) = Path(session.cwd).iterdir()
    assert told.endswith(f" to {written}")
    assert f"-{answer}." in written.name
    assert "two" in written.read_text()


async def test_an_exported_branch_without_a_file_is_named_after_the_branch(
    make_controller: MakeController, session: Session
) -> None:
    talk(session, "one", "1")
    session.create_branch("a/b c", current=False)

    for _ in range(2):
        await run(make_controller(), '/export-branch "a/b c"')

    stem = build_file_name(session.id, "html").removesuffix(".html")
    assert {path.name for path in Path(session.cwd).iterdir()} == {f"{stem}-a-b-c.html", f"{stem}-a-b-c-2.html"}


async def test_a_branch_that_is_named_like_a_file_is_exported_as_a_branch(
    make_controller: MakeController, session: Session
) -> None:
    talk(session, "one", "1")
    session.create_branch("notes.md", current=False)

    await run(make_controller(), "/export-branch notes.md")

    assert not (Path(session.cwd) / "notes.md").exists()


async def test_an_exported_subtree_is_a_session_with_that_root(
    make_controller: MakeController, session: Session
) -> None:
    _, answer, *_ = talk(session, "one", "1", "two", "2")

    await run(make_controller(), f"/export-branch {answer} part.jsonl")

    part = st.open(Path(session.cwd) / "part.jsonl")
    below = [entry.id for entry in session.head.path()]
    assert [entry.id for entry in part.head.path()] == below[below.index(answer) :]
    assert not part.problems


async def test_an_export_off_head_has_the_controllers_branch(make_controller: MakeController, session: Session) -> None:
    talk(session, "one", "1")
    session.create_branch("aside", current=False)
    session.append(st.user("on main"))
    session.branch("aside").append(st.user("on aside"))

    await run(make_controller(branch=session.branch("aside")), "/export-branch HEAD part.md")

    text = (Path(session.cwd) / "part.md").read_text()
    assert "on aside" in text
    assert "on main" not in text


async def test_quit_calls_the_front_end(make_controller: MakeController) -> None:
    at = make_controller()

    await run(at, "/quit")

    assert at.host.has_quit
