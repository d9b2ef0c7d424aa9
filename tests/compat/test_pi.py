"""The examples and rules of the documentation of pi and oh-my-pi, with the names in snake_case."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import sessiontree as st
from sessiontree.compat import pi as compat
from sessiontree.compat import session_entry
from sessiontree.compat.pi import (
    CURRENT_SESSION_VERSION,
    AgentSession,
    HookAPI,
    HookMessage,
    SessionEntry,
    SessionManager,
    migrate_entries,
)
from sessiontree.core.messages import extract_text
from sessiontree.errors import InvalidOperation, NotFound
from sessiontree.ops.summarize import SummaryFailed


def say(manager: SessionManager, *texts: str) -> list[str]:
    """Append user and assistant messages in turns, and return their ids."""
    roles = ["user", "assistant"]
    return [
        manager.append_message({"role": roles[turn % 2], "content": [{"type": "text", "text": text}]})
        for turn, text in enumerate(texts)
    ]


def read_texts(messages: Sequence[dict[str, Any]]) -> list[str]:
    return [message["summary"] if "summary" in message else extract_text(message["content"]) for message in messages]


@pytest.fixture
def manager() -> SessionManager:
    return SessionManager.in_memory()


# The format and its examples


def write_lines(file: Path, *lines: dict[str, Any]) -> Path:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def write_message(uuid: str, parent: str, role: str, content: str) -> dict[str, Any]:
    return {"type": "message", "uuid": uuid, "parentUuid": parent, "message": {"role": role, "content": content}}


def test_the_full_session_of_the_document_has_the_context_that_it_lists(tmp_path: Path) -> None:
    file = write_lines(
        tmp_path / "full.jsonl",
        {"type": "session", "version": 2, "uuid": "ses1", "parentUuid": None, "id": "abc", "cwd": "/project"},
        write_message("m1", "ses1", "user", "Build a CLI"),
        write_message("m2", "m1", "assistant", "I'll create..."),
        write_message("m3", "m2", "user", "Add --verbose flag"),
        write_message("m4", "m3", "assistant", "Here's the flag..."),
        write_message("m5", "m4", "user", "Actually use Python"),
        write_message("m6", "m5", "assistant", "Converting to Python..."),
        {
            "type": "branch_summary",
            "uuid": "bs1",
            "parentUuid": "m2",
            "summary": "Attempted Node.js CLI with --verbose flag",
        },
        write_message("m7", "bs1", "user", "Use Rust instead"),
        write_message("m8", "m7", "assistant", "Creating Rust CLI..."),
    )

    manager = SessionManager.open(file)

    assert [entry.id for entry in manager.get_path()] == ["m1", "m2", "bs1", "m7", "m8"]
    messages = manager.build_session_context().messages
    assert [message["role"] for message in messages] == ["user", "assistant", "branchSummary", "user", "assistant"]
    assert read_texts(messages) == [
        "Build a CLI",
        "I'll create...",
        "Attempted Node.js CLI with --verbose flag",
        "Use Rust instead",
        "Creating Rust CLI...",
    ]
    assert manager.get_entry("m6") is not None  # preserved but not in context
    assert compat.build_context(manager.get_entries()) == list(messages)


def test_branching_from_the_first_answer_gives_the_branched_context(tmp_path: Path) -> None:
    file = write_lines(
        tmp_path / "branch.jsonl",
        {"type": "session", "version": 2, "uuid": "a1b2c3", "parentUuid": None, "id": "s", "cwd": "/project"},
        write_message("d4e5f6", "a1b2c3", "user", "hello"),
        write_message("g7h8i9", "d4e5f6", "assistant", "hi"),
        write_message("j0k1l2", "g7h8i9", "user", "A"),
        write_message("m3n4o5", "j0k1l2", "assistant", "asst A"),
        write_message("p6q7r8", "g7h8i9", "user", "B"),
        write_message("s9t0u1", "p6q7r8", "assistant", "asst B"),
    )

    manager = SessionManager.open(file)

    assert manager.get_leaf_uuid() == "s9t0u1"  # the last entry is the current leaf
    assert [entry.id for entry in manager.get_path("s9t0u1")] == ["d4e5f6", "g7h8i9", "p6q7r8", "s9t0u1"]
    assert [entry.id for entry in manager.get_children("g7h8i9")] == ["j0k1l2", "p6q7r8"]
    assert read_texts(compat.build_context(manager.get_entries())) == ["hello", "hi", "B", "asst B"]


def test_loading_a_linear_file_rewrites_it_once(tmp_path: Path) -> None:
    file = write_lines(
        tmp_path / "linear.jsonl",
        {"type": "session", "id": "s", "timestamp": "2025-01-01T00:00:00.000Z", "cwd": "/project"},
        {"type": "message", "timestamp": "2025-01-01T00:00:01.000Z", "message": {"role": "user", "content": "one"}},
        {
            "type": "message",
            "timestamp": "2025-01-01T00:00:02.000Z",
            "message": {"role": "assistant", "content": [{"type": "text", "text": "two"}]},
        },
        {
            "type": "compaction",
            "timestamp": "2025-01-01T00:00:03.000Z",
            "summary": "what was said",
            "firstKeptEntryIndex": 2,
            "tokensBefore": 50000,
        },
        {"type": "message", "timestamp": "2025-01-01T00:00:04.000Z", "message": {"role": "user", "content": "three"}},
    )
    before = file.read_bytes()

    assert len(compat.load_entries_from_file(file)) == 4
    assert file.read_bytes() == before
    entries = compat.load_session(file)

    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines[0]["version"] == compat.CURRENT_SESSION_VERSION
    assert [line["parentId"] for line in lines[1:]] == [None, *(line["id"] for line in lines[1:-1])]
    compaction = lines[3]
    assert "firstKeptEntryIndex" not in compaction
    assert compaction["firstKeptEntryId"] == lines[2]["id"]
    assert read_texts(compat.build_context(entries)) == ["what was said", "two", "three"]
    rewritten = file.read_bytes()
    compat.load_session(file)
    assert file.read_bytes() == rewritten


def test_set_session_file_migrates_an_old_file_and_creates_a_missing_one(tmp_path: Path, manager) -> None:
    old = write_lines(
        tmp_path / "old.jsonl",
        {"type": "session", "id": "s", "timestamp": "2025-01-01T00:00:00.000Z", "cwd": "/project"},
        {"type": "message", "timestamp": "2025-01-01T00:00:01.000Z", "message": {"role": "user", "content": "one"}},
    )

    manager.set_session_file(old)
    assert json.loads(old.read_text().splitlines()[0])["version"] == compat.CURRENT_SESSION_VERSION
    assert manager.get_session_file() == str(old)
    manager.set_session_file(tmp_path / "new.jsonl")

    assert manager.get_leaf_id() is None
    assert (tmp_path / "new.jsonl").exists()


# `SessionManager`


def test_every_append_returns_its_id_and_advances_the_leaf(manager: SessionManager) -> None:
    appended = [
        *say(manager, "Hello"),
        manager.append_model_change("anthropic", "claude"),
        manager.append_thinking_level_change("high"),
        manager.append_custom_entry("my-hook", {"count": 1}),
        manager.append_custom_message_entry("my-hook", "Look at this", True, {"from": "hook"}),
        manager.append_entry(st.ModeChange(mode="plan")),
        manager.append_entry(st.RuleInjection(("no-secrets",))),
    ]

    assert [entry.id for entry in manager.get_branch()] == appended
    assert manager.get_leaf_uuid() == appended[-1]
    leaf = manager.get_leaf_entry()
    assert leaf is not None
    assert leaf == manager.get_current_leaf()
    context = manager.build_session_context()
    assert context.model == {"provider": "anthropic", "modelId": "claude"}
    assert (context.thinking_level, context.state.mode, context.state.rules) == ("high", "plan", ("no-secrets",))
    assert [message["role"] for message in context.to_llm()] == ["user", "user"]


def test_the_compaction_of_the_document_keeps_m6_to_m10(manager: SessionManager) -> None:
    ids = say(manager, *(f"m{number}" for number in range(1, 11)))

    manager.append_compaction("...", ids[5], 50000, {"artifacts": []})

    assert read_texts(manager.build_session_context().messages) == ["...", "m6", "m7", "m8", "m9", "m10"]
    body = manager.get_leaf_entry().body
    assert (body.tokens_before, body.details) == (50000, {"artifacts": []})


def test_each_pop_creates_a_branch(manager: SessionManager) -> None:
    *_, c, _, _, _, _, _ = say(manager, *"abcdefgh")
    i = manager.branch_with_summary(c, "i")
    _, k, _ = say(manager, *"jkl")
    manager.branch_with_summary(k, "m")
    say(manager, "n")

    assert read_texts(manager.build_session_context().messages) == [*"abc", "i", *"jk", "m", "n"]
    assert manager.get_entry(i).parent == c


def test_branch_moves_the_leaf_and_writes_no_entry(manager: SessionManager) -> None:
    first, second, _ = say(manager, "one", "two", "three")
    before = manager.get_entries()

    assert manager.branch(second) == second

    assert manager.get_leaf_id() == second
    assert manager.get_entries() == before
    (other,) = say(manager, "other")
    assert manager.get_entry(other).parent == second
    with pytest.raises(NotFound, match="missing"):
        manager.branch("missing")
    with pytest.raises(InvalidOperation, match="reset_leaf"):
        manager.branch(None)  # type: ignore[arg-type]
    assert manager.get_branch(first)[0].id == first


def test_the_append_after_reset_leaf_is_a_new_root(manager: SessionManager) -> None:
    (first, _) = say(manager, "one", "two")

    manager.reset_leaf()
    assert manager.get_leaf_uuid() is None
    assert manager.get_leaf_entry() is None
    assert manager.get_branch() == []
    (again,) = say(manager, "again")

    assert manager.get_entry(again).parent is None
    assert [node.entry.id for node in manager.get_tree()] == [first, again]


def test_a_summary_at_the_root_records_root(manager: SessionManager) -> None:
    _, last = say(manager, "one", "two")

    summary = manager.branch_with_summary(None, "It did not work.", {"files": []}, True)

    entry = manager.get_entry(summary)
    assert (entry.parent, manager.get_leaf_id()) == (None, summary)
    wire = json.loads(entry.raw)
    assert (wire["fromId"], wire["details"], wire["fromHook"]) == ("root", {"files": []}, True)
    back = manager.branch_with_summary(last, "Back.")
    assert json.loads(manager.get_entry(back).raw)["fromId"] == summary  # the leaf that was left


def test_a_message_can_be_appended_below_another_parent(manager: SessionManager) -> None:
    first, _ = say(manager, "one", "two")

    other = manager.append_message({"role": "assistant", "content": [{"type": "text", "text": "other"}]}, first)
    root = manager.append_message(st.user("root"), None)

    assert manager.get_entry(other).parent == first
    assert (manager.get_entry(root).parent, manager.get_leaf_id()) == (None, root)


def test_the_tree_has_sorted_children_labels_and_orphans_as_roots(tmp_path: Path) -> None:
    def write(id: str, parent: str | None, second: int) -> dict[str, Any]:
        timestamp = f"2025-01-01T00:00:{second:02}.000Z"
        return {
            "type": "message",
            "id": id,
            "parentId": parent,
            "timestamp": timestamp,
            "message": {"role": "user", "content": id, "timestamp": 0},
        }

    file = write_lines(
        tmp_path / "tree.jsonl",
        {"type": "session", "version": 3, "id": "s", "timestamp": "2025-01-01T00:00:00.000Z", "cwd": "/project"},
        write("root", None, 1),
        write("newer", "root", 3),
        write("older", "root", 2),
        write("orphan", "gone", 4),
    )
    manager = SessionManager.open(file)
    manager.append_label_change("older", "checkpoint")

    roots = manager.get_tree()

    assert [node.entry.id for node in roots] == ["root", "orphan"]
    assert [(node.entry.id, node.label) for node in roots[0].children] == [("older", "checkpoint"), ("newer", None)]


def test_a_label_is_set_and_cleared_on_the_leaf_chain(manager: SessionManager) -> None:
    first, second = say(manager, "one", "two")

    label = manager.append_label_change(first, "start")

    assert manager.get_entry(label).parent == second
    assert manager.get_label(first) == "start"
    manager.append_label_change(first)
    assert manager.get_label(first) is None
    assert len(manager.build_session_context().messages) == 2


def test_a_branched_session_has_the_path_and_its_labels(tmp_path: Path) -> None:
    manager = SessionManager.create(tmp_path, tmp_path / "sessions")
    first, second, third = say(manager, "one", "two", "three")
    manager.append_label_change(first, "start")
    manager.append_label_change(third, "end")
    before = manager.get_session_file()

    file = manager.create_branched_session(second)

    assert file is not None
    assert file == manager.get_session_file() != before
    assert Path(file).parent == tmp_path / "sessions"
    assert [entry.id for entry in manager.get_branch()] == [first, second]
    assert (manager.get_label(first), manager.get_label(third)) == ("start", None)
    assert manager.session.header.parent_session == before
    with pytest.raises(NotFound):
        manager.create_branched_session("missing")


def test_a_branched_session_in_memory_has_no_file(manager: SessionManager) -> None:
    first, _ = say(manager, "one", "two")

    assert manager.create_branched_session(first) is None

    assert manager.get_session_file() is None
    assert [entry.id for entry in manager.get_entries()] == [first]


def test_a_new_session_names_its_parent(tmp_path: Path) -> None:
    manager = SessionManager.create(tmp_path, tmp_path / "sessions")
    say(manager, "one")
    before = manager.get_session_file()

    file = manager.new_session(parent_session=before)

    assert manager.get_entries() == []
    assert manager.session.header.parent_session == before
    assert manager.new_session() != file
    assert manager.session.header.parent_session is None
    assert compat.find_most_recent_session(tmp_path / "sessions") is not None
    assert compat.find_most_recent_session(tmp_path) is None


def test_the_most_recent_session_is_continued(tmp_path: Path) -> None:
    manager = SessionManager.continue_recent(tmp_path)
    (first,) = say(manager, "one")
    manager.session.close()

    again = SessionManager.continue_recent(tmp_path)

    assert again.get_leaf_id() == first
    assert compat.find_most_recent_session(Path(again.get_session_file()).parent) == again.get_session_file()


def test_a_compaction_is_prepared_with_its_first_kept_entry(manager: SessionManager) -> None:
    ids = say(manager, *("word " * 200 for _ in range(6)))

    preparation = compat.prepare_compaction(manager.get_branch())

    assert preparation is not None
    assert preparation.first_kept_entry_id in ids
    assert compat.prepare_compaction([]) is None


def test_entries_for_a_summary_are_those_after_the_common_ancestor(manager: SessionManager) -> None:
    _, b, c, *_ = say(manager, *"abc")
    manager.branch(b)
    def_ = say(manager, *"def")

    found = compat.collect_entries_for_branch_summary(manager, def_[-1], c)

    assert [entry.text for entry in found.entries] == [*"def"]
    assert found.common_ancestor_id == b


def test_a_summary_of_abandoned_entries_stops_at_a_compaction(manager: SessionManager) -> None:
    (a,) = say(manager, "a")
    _, c = say(manager, "b", "c")
    compaction = manager.append_compaction("b was said", c, 10)
    (last,) = say(manager, "d")

    found = compat.collect_entries_for_branch_summary(manager, last, a)

    assert [entry.id for entry in found.entries] == [c, compaction, last]


# `AgentSession`


def make_session(*answers: Any) -> AgentSession:
    return AgentSession(model=st.ScriptedModel(list(answers)))


def read_said(session: AgentSession) -> list[str]:
    return [entry.text for entry in session.session_manager.get_branch() if entry.text]


async def test_selecting_a_user_message_moves_before_it_and_returns_its_text() -> None:
    session = make_session()
    _, second, third, _ = say(session.session_manager, "one", "two", "three", "four")

    result = await session.navigate_tree(third)

    assert (result.editor_text, result.cancelled) == ("three", False)
    assert session.session_manager.get_leaf_id() == second


async def test_selecting_the_first_message_starts_from_scratch() -> None:
    session = make_session()
    first, _ = say(session.session_manager, "one", "two")

    result = await session.navigate_tree(first)

    assert result.editor_text == "one"
    assert session.session_manager.get_leaf_uuid() is None


async def test_selecting_a_custom_message_moves_before_it() -> None:
    session = make_session()
    (first,) = say(session.session_manager, "one")
    custom = session.session_manager.append_custom_message_entry("my-hook", "look")
    say(session.session_manager, "two")

    result = await session.navigate_tree(custom)

    assert result.editor_text == "look"
    assert session.session_manager.get_leaf_id() == first


async def test_selecting_another_entry_moves_to_it() -> None:
    session = make_session()
    _, second, _ = say(session.session_manager, "one", "two", "three")

    result = await session.navigate_tree(second, label="retry")

    assert result.editor_text is None
    assert session.session_manager.get_leaf_id() == second
    assert session.session_manager.get_label(second) == "retry"


async def test_selecting_the_current_leaf_does_nothing() -> None:
    session = make_session()
    seen: list[str] = []
    HookAPI(session).on("session_before_tree", lambda event, ctx: seen.append(event.type))
    _, second = say(session.session_manager, "one", "two")

    await session.navigate_tree(second)

    assert seen == []


async def test_a_summary_of_the_abandoned_branch_is_at_the_new_position() -> None:
    prompts: list[str] = []

    def summarize(request):
        prompts.append(extract_text(request.messages[-1]["content"]))
        return "D, E and F were tried."

    session = make_session(summarize)
    _, b = say(session.session_manager, "a", "b")
    *_, f = say(session.session_manager, "d", "e", "f")

    result = await session.navigate_tree(b, summarize=True, custom_instructions="Mention E.", label="tried")

    entry = session.session_manager.get_leaf_entry()
    assert result.summary_entry is not None
    assert entry.id == result.summary_entry.id
    assert (entry.type, entry.parent) == ("branch_summary", b)
    assert json.loads(entry.raw)["fromId"] == f  # the old leaf
    assert "D, E and F were tried." in entry.text
    assert session.session_manager.get_label(entry.id) == "tried"
    assert "Mention E." in prompts[0]
    assert len(prompts[0]) > 300  # appended to the default prompt


async def test_instructions_can_replace_the_prompt_of_a_summary() -> None:
    prompts: list[str] = []

    def summarize(request):
        prompts.append(extract_text(request.messages[-1]["content"]))
        return "Summary."

    session = make_session(summarize, summarize)
    _, b, c = say(session.session_manager, "a", "b", "c")
    await session.navigate_tree(b, summarize=True, custom_instructions="In one word.")
    session.session_manager.branch(c)
    await session.navigate_tree(b, summarize=True, custom_instructions="In one word.", replace_instructions=True)

    assert len(prompts[1]) < len(prompts[0])
    assert all("In one word." in prompt for prompt in prompts)


async def test_a_summary_without_a_model_fails_fast() -> None:
    session = AgentSession()
    _, b, last = say(session.session_manager, "a", "b", "c")

    with pytest.raises(InvalidOperation, match="model"):
        await session.navigate_tree(b, summarize=True)
    with pytest.raises(InvalidOperation, match="model"):
        await session.branch_in_place(b, summarize=True)
    assert session.session_manager.get_leaf_id() == last


async def test_a_failed_summary_cancels_the_navigation() -> None:
    session = make_session("")
    _, b, last = say(session.session_manager, "a", "b", "c")

    with pytest.raises(SummaryFailed):
        await session.navigate_tree(b, summarize=True)
    assert session.session_manager.get_leaf_id() == last


async def test_abort_cancels_a_navigation_and_the_leaf_stays() -> None:
    session = make_session(lambda request: session.abort() or "too late")
    _, b, last = say(session.session_manager, "a", "b", "c")

    result = await session.navigate_tree(b, summarize=True)

    assert result.cancelled
    assert session.session_manager.get_leaf_id() == last


async def test_a_hook_cancels_a_navigation_silently() -> None:
    session = make_session()
    _, b, last = say(session.session_manager, "a", "b", "c")
    HookAPI(session).on("session_before_tree", lambda event, ctx: {"cancel": True})

    result = await session.navigate_tree(b)

    assert result.cancelled
    assert session.session_manager.get_leaf_id() == last


async def test_the_custom_summarizer_of_the_document_works() -> None:
    summarized: list[list[str]] = []

    async def my_custom_summarizer(entries):
        summarized.append([entry.text for entry in entries])
        return "my summary"

    def set_up(pi: HookAPI) -> None:
        async def summarize(event, ctx):
            if not event.preparation.user_wants_summary:
                return None
            if len(event.preparation.entries_to_summarize) == 0:
                return None
            summary = await my_custom_summarizer(event.preparation.entries_to_summarize)
            return {"summary": {"summary": summary, "details": {"custom": True}}}

        pi.on("session_before_tree", summarize)

    session = make_session()
    set_up(HookAPI(session))
    _, b, *_ = say(session.session_manager, "a", "b", "c", "d")

    await session.navigate_tree(b, summarize=True)

    body = session.session_manager.get_leaf_entry().body
    assert (body.summary, body.details, body.from_hook) == ("my summary", {"custom": True}, True)
    assert summarized == [["c", "d"]]
    assert (await session.navigate_tree(b)).summary_entry is None
    assert len(summarized) == 1


async def test_tree_events_have_the_names_of_the_document() -> None:
    session = make_session("Summary.", "Summary.")
    pi, seen = HookAPI(session), list[Any]()
    _, b, last = say(session.session_manager, "a", "b", "c")

    async def prepare(event, ctx):
        seen.append((event, [entry.text for entry in ctx.current_path], len(ctx.entries)))
        return {"custom_instructions": "Be brief.", "replace_instructions": True, "label": "from-hook"}

    pi.on("session_before_tree", prepare)
    pi.on("session_tree", lambda event, ctx: seen.append(event))

    await session.navigate_tree(b, summarize=True)

    (before, path, count), after = seen
    preparation = before.preparation
    assert (preparation.target_id, preparation.old_leaf_id, preparation.common_ancestor_id) == (b, last, b)
    assert [entry.text for entry in preparation.entries_to_summarize] == ["c"]
    assert (preparation.user_wants_summary, before.type, before.signal.aborted) == (True, "session_before_tree", False)
    assert (path, count) == (["a", "b", "c"], 3)
    leaf = session.session_manager.get_leaf_id()
    assert (after.type, after.new_leaf_id, after.old_leaf_id) == ("session_tree", leaf, last)
    assert (after.summary_entry.id, after.from_hook, after.from_extension) == (leaf, False, False)
    assert session.session_manager.get_label(leaf) == "from-hook"


async def test_branch_starts_a_session_before_a_user_message(tmp_path: Path) -> None:
    session = AgentSession(SessionManager.create(tmp_path, tmp_path / "sessions"))
    manager, seen = session.session_manager, list[str]()
    pi = HookAPI(session)
    pi.on("session_before_branch", lambda event, ctx: seen.append("before"))
    pi.on("session_branch", lambda event, ctx: seen.append("after"))
    first, second, third, _ = say(manager, "one", "two", "three", "four")
    before = manager.get_session_file()

    result = await session.branch(third)

    assert (result.selected_text, result.cancelled, result.in_place) == ("three", False, False)
    assert result.new_session_file == manager.get_session_file() != before
    assert [entry.id for entry in manager.get_branch()] == [first, second]
    assert seen == ["before", "after"]
    with pytest.raises(InvalidOperation, match="not a user message"):
        await session.branch(second)


async def test_branch_at_the_first_message_starts_an_empty_session(tmp_path: Path) -> None:
    session = AgentSession(SessionManager.create(tmp_path, tmp_path / "sessions"))
    first, _ = say(session.session_manager, "one", "two")
    before = session.session_manager.get_session_file()

    result = await session.branch(first)

    assert result.selected_text == "one"
    assert session.session_manager.get_entries() == []
    assert session.session_manager.session.header.parent_session == before


async def test_branch_in_memory_returns_no_file() -> None:
    session = make_session()
    *_, third = say(session.session_manager, "one", "two", "three")

    result = await session.branch(third)

    assert result.new_session_file is None
    assert len(session.session_manager.get_entries()) == 2


async def test_a_hook_cancels_a_branch() -> None:
    session = make_session()
    (first,) = say(session.session_manager, "one")
    HookAPI(session).on("session_before_branch", lambda event, ctx: {"cancel": True})

    result = await session.branch(first)

    assert (result.cancelled, result.new_session_file) == (True, None)
    assert session.session_manager.get_leaf_id() == first


async def test_branching_in_place_moves_to_the_entry_itself() -> None:
    session = make_session("C was tried.")
    manager = session.session_manager
    a, b, _ = say(manager, "a", "b", "c")

    result = await session.branch_in_place(b, summarize=True)

    assert (result.in_place, result.cancelled, result.new_session_file) == (True, False, None)
    entry = manager.get_leaf_entry()
    assert (entry.type, entry.parent) == ("branch_summary", b)
    await session.branch_in_place(a)
    assert manager.get_leaf_id() == a  # a user message, but not for the editor
    assert (await session.branch_in_place(a)).in_place


async def test_a_manager_of_an_agent_cannot_leave_its_session() -> None:
    session = make_session()
    (first,) = say(session.session_manager, "one")

    with pytest.raises(InvalidOperation, match=r"AgentSession\.branch"):
        session.session_manager.create_branched_session(first)
    assert session.session_manager.get_leaf_id() == first


async def test_compact_returns_the_compaction() -> None:
    session = make_session(*["What was said before."] * 2)
    ids = say(session.session_manager, *("word " * 200 for _ in range(6)))

    result = await session.compact("Be brief.")

    assert result is not None
    assert "What was said before." in result.summary
    assert result.first_kept_entry_id in ids
    assert result.tokens_before > 0
    assert session.session_manager.get_leaf_entry().type == "compaction"
    assert await session.compact() is None


async def test_a_hook_supplies_a_compaction() -> None:
    session = make_session()
    ids = say(session.session_manager, *("word " * 200 for _ in range(6)))

    def compact(event, ctx):
        assert event.type == "session_before_compact"
        assert event.previous_compactions == ()
        kept = event.preparation.first_kept_entry_id
        tokens = event.preparation.tokens_before
        return {
            "compaction": {
                "summary": "mine",
                "first_kept_entry_id": kept,
                "tokens_before": tokens,
                "details": {"version": 1},
            }
        }

    HookAPI(session).on("session_before_compact", compact)

    result = await session.compact()

    assert result is not None
    assert (result.summary, result.details) == ("mine", {"version": 1})
    assert result.first_kept_entry_id in ids


async def test_the_tree_of_a_session_is_that_of_its_manager() -> None:
    session = make_session("Hello.")
    await session.prompt("Hi")

    (root,) = session.get_session_tree()

    assert root.entry.type == "model_change"
    assert [node.entry.text for node in root.children] == ["Hi"]
    assert session.session_manager.get_leaf_entry().text == "Hello."


# `HookAPI`


async def test_a_message_of_a_hook_is_appended_without_a_turn() -> None:
    session = make_session()
    message = HookMessage(custom_type="my-hook", content="Note this", display=False, details={"count": 1})

    await HookAPI(session).send_message(message)

    entry = session.session_manager.get_leaf_entry()
    assert (entry.type, entry.body) == ("custom_message", message)


async def test_a_message_of_a_hook_triggers_a_turn_when_idle() -> None:
    session = make_session("Noted.")

    await HookAPI(session).send_message(HookMessage(custom_type="my-hook", content="Note this"), trigger_turn=True)
    await session.controller.wait_until_idle()

    assert read_said(session) == ["Note this", "Noted."]


async def test_a_message_of_a_hook_waits_for_the_end_of_the_turn() -> None:
    def answer(request):
        return "Working."

    session = make_session(answer)
    pi = HookAPI(session)

    async def interrupt(event, ctx) -> None:
        await pi.send_message(HookMessage(custom_type="my-hook", content="By the way"), trigger_turn=True)

    pi.on("context", interrupt)

    await session.prompt("Go")

    assert read_said(session) == ["Go", "Working.", "By the way"]


def test_a_hook_keeps_state_that_the_model_does_not_see() -> None:
    session = make_session()

    id = HookAPI(session).append_entry("my-hook", {"count": 1})

    assert session.session_manager.get_entry(id).body == st.Custom(custom_type="my-hook", data={"count": 1})
    assert session.session_manager.build_session_context().messages == ()


async def test_a_command_runs_and_its_text_is_sent_as_a_prompt() -> None:
    session = make_session("Hello, Ada.")
    pi, seen = HookAPI(session), list[Any]()

    async def greet(ctx) -> str:
        ran = await ctx.exec("echo", ["hi"])
        seen.append((ctx.args, ran.output.strip(), hasattr(ctx.session, "prompt"), await ctx.ui.confirm("Sure?")))
        return f"Greet {ctx.args}"

    pi.register_command("greet", description="Greet somebody", handler=greet)
    outcome = await session.prompt("/greet Ada")

    assert seen == [("Ada", "hi", False, False)]
    assert outcome is not None
    assert outcome.text == "Hello, Ada."
    assert [(command.name, command.help) for command in session.get_registered_commands()] == [
        ("greet", "Greet somebody")
    ]
    assert session.get_command("greet") is not None
    assert session.get_command("tree") is None  # not of a hook


async def test_a_command_navigates_and_branches() -> None:
    session = make_session()
    manager = session.session_manager
    a, b, c = say(manager, "a", "b", "c")
    pi, seen = HookAPI(session), list[Any]()

    async def go(ctx) -> None:
        seen.append((await ctx.navigate_tree(c)).editor_text)
        await ctx.branch_in_place(a, "b was tried")
        seen.append(read_texts((await ctx.rebuild_context()).messages))
        seen.append((await ctx.branch(a)).selected_text)

    pi.register_command("go", handler=go)

    assert await session.prompt("/go") is None
    assert seen == ["c", ["a", "b was tried"], "a"]
    assert manager.get_entries() == []
    assert b not in manager.session.tree


def test_a_renderer_of_custom_messages_is_registered() -> None:
    session = make_session()

    HookAPI(session).register_custom_message_renderer("my-hook", lambda entry: entry.text.upper())

    assert list(session.ui_registry.renderers) == ["my-hook"]


async def test_a_hook_works_in_an_extension() -> None:
    from sessiontree.extensions.api import ExtensionApi, UiRegistry

    session = make_session()
    api = ExtensionApi("mine", session.controller, UiRegistry())
    pi, seen = HookAPI(api), list[str]()
    pi.on("session_tree", lambda event, ctx: seen.append(ctx.session_manager.get_leaf_id()))
    _, b, _ = say(session.session_manager, "a", "b", "c")

    await session.navigate_tree(b)
    api.close()
    await session.navigate_tree(session.session_manager.get_branch()[0].id)

    assert seen == [b]


async def test_an_agent_session_closes_with_its_session(tmp_path: Path) -> None:
    async with AgentSession(SessionManager.create(tmp_path, tmp_path), st.ScriptedModel(["Hello."])) as session:
        await session.prompt("Hi")
        assert session.agent.branch.name == "main"

    with pytest.raises(InvalidOperation, match="closed"):
        session.session_manager.append_message(st.user("more"))


# Names of fields


async def test_entries_have_the_fields_of_the_document() -> None:
    session = AgentSession(SessionManager.in_memory())
    manager = session.session_manager
    a, b = say(manager, "one", "two")
    seen: list[SessionEntry] = []

    def supply(event, ctx):
        seen.extend(event.preparation.entries_to_summarize)
        return {"summary": {"summary": "Two.", "details": {"custom": True}}}

    HookAPI(session).on("session_before_tree", supply)
    result = await session.branch_in_place(a, summary="Two was tried.")
    label = manager.append_label_change(a, "start")
    compaction = manager.append_compaction("All of it.", a, 100)

    assert not result.cancelled
    assert [(entry.id, entry.parent_id, entry.parent_uuid) for entry in seen] == [(b, a, a)]
    (summary, *_) = [entry for entry in manager.get_entries() if entry.type == "branch_summary"]
    assert (summary.parent_id, summary.from_id, summary.summary) == (a, b, "Two was tried.")
    entry = manager.get_entry(label)
    assert entry is not None
    assert (entry.target_id, entry.label) == (a, "start")
    entry = manager.get_entry(compaction)
    assert entry is not None
    assert (entry.uuid, entry.first_kept_entry_id, entry.tokens_before) == (compaction, a, 100)
    assert all(re.fullmatch("[0-9a-f]{8}", entry.id) for entry in manager.get_entries())


def test_an_id_is_never_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = SessionManager.in_memory()
    numbers = iter([1, 1, 2, 1, 2, 3])
    monkeypatch.setattr(session_entry.os, "urandom", lambda size: next(numbers).to_bytes(size, "big"))

    assert say(manager, "one", "two", "three") == ["00000001", "00000002", "00000003"]


def test_lines_are_migrated_in_place() -> None:
    lines: list[dict[str, Any]] = [
        {"type": "session", "id": "abc", "timestamp": "2025-01-01T00:00:00.000Z", "cwd": "/project"},
        {"type": "message", "timestamp": "2025-01-01T00:00:01.000Z", "message": {"role": "user", "content": "hi"}},
        {
            "type": "compaction",
            "timestamp": "2025-01-01T00:00:02.000Z",
            "summary": "hi",
            "firstKeptEntryIndex": 1,
            "tokensBefore": 5,
        },
    ]

    migrate_entries(lines, 1)

    header, message, compaction = lines
    assert header["version"] == CURRENT_SESSION_VERSION
    assert message["parentId"] is None
    assert (compaction["parentId"], compaction["firstKeptEntryId"]) == (message["id"], message["id"])
    assert "firstKeptEntryIndex" not in compaction
    again = [dict(line) for line in lines]
    migrate_entries(lines, CURRENT_SESSION_VERSION)
    assert lines == again


def test_an_agent_session_says_what_it_takes():
    with pytest.raises(InvalidOperation, match=r"takes a SessionManager, as SessionManager\(session\), not <Session"):
        AgentSession(st.memory())
