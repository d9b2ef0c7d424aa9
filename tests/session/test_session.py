"""Sessions and branches: appending, branching, moving, reopening, and more than one writer."""

import copy
import errno
import itertools
import os
import pickle
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

import sessiontree as st
from sessiontree.core.entries import HEAD_RECORD
from sessiontree.core.heads import SKIP_LIMIT
from sessiontree.format.codec import WIRE
from sessiontree.format.nesting import NESTING_LIMIT
from sessiontree.session import Session
from sessiontree.session.entry_builder import RECORD_INTERVAL, EntryBuilder, Item
from sessiontree.store import jsonl
from sessiontree.store.base import Cursor
from sessiontree.store.jsonl import JsonlStore
from sessiontree.store.memory import MemoryStore
from tests.builders import nest_lists
from tests.shapes import build_content, build_lines
from tests.simulation import Simulation

steps = some.lists(some.tuples(some.integers(0, 99), some.integers(0, 99), some.integers(0, 99)), max_size=40)


@pytest.fixture
def session() -> Session:
    return st.memory(name="auth", cwd="/project")


def append_texts(session: Session, *texts: str) -> list[str]:
    """Append user and assistant messages in turn, and return their ids."""
    speakers = itertools.cycle([st.user, st.assistant])
    return [session.append(speak(text)).id for speak, text in zip(speakers, texts, strict=False)]


def read_texts(branch: st.Branch) -> list[str]:
    return [st.core.messages.extract_text(message["content"]) for message in branch.context().messages]


def reopen(session: Session) -> Session:
    return Session(session._store)


# Histories


@given(steps)
def test_replaying_the_file_equals_the_live_session(history) -> None:
    simulation = Simulation()
    for step in history:
        simulation.step(*step)
        simulation.check()


@given(steps)
def test_replay_is_right_with_peers_in_between(history) -> None:
    simulation = Simulation(peers=True)
    for step in history:
        simulation.step(*step)
        simulation.check()


@given(steps, some.integers(2, 4))
def test_replay_is_right_with_several_writers_and_peers(history, writers) -> None:
    simulation = Simulation(writers=writers, peers=True)
    for step in history:
        simulation.step(*step)
    simulation.check()


def test_replay_is_right_on_files_too(tmp_path: Path) -> None:
    simulation = Simulation(writers=3, peers=True, store=lambda: JsonlStore(str(tmp_path / "s.jsonl")))
    for number in range(300):
        simulation.step(number * 7919 % 101, number * 104729 % 97, number * 1299709 % 89)
    simulation.check()


# Appending


def test_appended_entries_are_on_disk_at_once(tmp_path: Path) -> None:
    session = st.create(file=tmp_path / "s.jsonl", cwd="/project")

    entry = session.head.append(st.user("hello"))

    assert session.file is not None
    assert session.file.read_bytes().splitlines()[-1] == entry.raw
    assert st.open(tmp_path / "s.jsonl").head.leaf == entry.id


def test_entries_form_a_chain_on_the_current_branch(session: Session) -> None:
    first, second, third = append_texts(session, "one", "two", "three")

    assert [entry.id for entry in session.head.path()][-3:] == [first, second, third]
    assert session.tree.parent(third) == second
    assert read_texts(session.head) == ["one", "two", "three"]


def test_a_batch_is_a_chain_written_as_one(session: Session) -> None:
    entries = session.extend([st.user("a"), st.assistant("b"), st.ModelChange(provider="p", model="m")])

    assert [entry.parent for entry in entries[1:]] == [entries[0].id, entries[1].id]
    assert session.head.leaf == entries[-1].id


def test_annotations_before_the_first_entry_are_its_ancestors(session: Session) -> None:
    session.rename("another name")
    [first] = append_texts(session, "hello")

    assert [entry.type for entry in session.tree.path(first)] == ["session_info", "session_info", "message"]
    assert len(session.tree.roots()) == 1


def test_annotations_are_children_of_the_leaf_and_move_no_branch(session: Session) -> None:
    [leaf] = append_texts(session, "hello")

    label = session.label("HEAD", "here")
    usage = session.append(st.Usage(kind="cache_warm"))

    assert {label.parent, usage.parent} == {leaf}
    assert session.head.leaf == leaf


def test_every_kind_of_entry_goes_through_append(session: Session) -> None:
    [first] = append_texts(session, "hello")
    bodies = [
        st.ModelChange(provider="openai", model="gpt"),
        st.ThinkingLevelChange("high"),
        st.Custom(custom_type="todo", data={"items": []}),
        st.CustomMessage(custom_type="note", content="remember"),
        st.BranchSummary(summary="tried", abandoned_leaf=first),
        st.ContextEdit(target=first, replacement={"content": "hi"}),
        st.AgentAction(action="spawn", agent="a1", data={"n": 1}),
        st.ModeChange(mode="plan"),
        st.RuleInjection(("be brief",)),
        st.ResetBoundary(),
        st.Opaque(type="later_type", fields={"x": 1.0}),
        st.Usage(kind="cache_warm", usage={"input": 1}),
        st.SessionInfo("named"),
        st.Label(target=first, text="start"),
    ]

    written = [session.append(body) for body in bodies]

    assert [entry.body for entry in written] == bodies
    assert [reopen(session).tree[entry.id].body for entry in written] == bodies


def test_a_compaction_records_the_state_and_keeps_no_messages_by_default(session: Session) -> None:
    session.extend([st.ModelChange(provider="p", model="m"), st.ThinkingLevelChange("low"), st.ModeChange(mode="plan")])
    session.append(st.RuleInjection(("r",)))

    entry = session.append(st.Compaction(summary="all of it", tokens_before=10))

    assert isinstance(entry.body, st.Compaction)
    assert entry.body.first_kept == entry.id
    assert entry.body.state == {
        "model": {"provider": "p", "modelId": "m"},
        "thinkingLevel": "low",
        "mode": "plan",
        "rules": ["r"],
    }


def test_a_compaction_in_a_batch_knows_the_entries_before_it_in_the_batch(session: Session) -> None:
    *_, compaction = session.extend([st.ModelChange(provider="p", model="m"), st.Compaction(summary="s")])

    assert isinstance(compaction.body, st.Compaction)
    assert compaction.body.state is not None
    assert compaction.body.state["model"] == {"provider": "p", "modelId": "m"}


def test_a_compaction_carries_the_system_messages_it_removes(session: Session) -> None:
    session.append(st.Message({"role": "system", "content": "be kind", "sections": {"a": "1", "b": None}}))
    session.append(st.Message({"role": "system", "content": "be brief"}))

    entry = session.append(st.Compaction(summary="s"))

    assert isinstance(entry.body, st.Compaction)
    assert entry.body.system_message is not None
    assert entry.body.system_message["content"] == "be kind\n\nbe brief"
    assert entry.body.system_message["sections"] == {"a": "1"}
    assert [message["role"] for message in session.head.context().messages] == ["system", "compactionSummary"]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (st.Label(target="nope", text="x"), st.NotFound),
        (st.ContextEdit(target="nope"), st.NotFound),
        (st.ContextEdit(target="first", replacement={"content": None}), st.InvalidOperation),
        (st.Compaction(summary="s", first_kept="nope"), st.InvalidOperation),
        (st.BranchPoint(name="b"), st.InvalidOperation),
        (st.Custom(custom_type="sessiontree.head", data={}), st.InvalidOperation),
        (st.Custom(custom_type="x", data=nest_lists(NESTING_LIMIT)), st.InvalidOperation),
        (st.Message({"role": "user", "content": nest_lists(990)}), st.InvalidOperation),
    ],
)
def test_invalid_entries_are_refused_and_nothing_is_written(session, body, error) -> None:
    [first] = append_texts(session, "one")
    if getattr(body, "target", None) == "first":
        body = msgspec.structs.replace(body, target=first)
    before = session.read_lines()

    with pytest.raises(error):
        session.append(body)

    assert session.read_lines() == before == reopen(session).read_lines()


def test_a_summary_without_an_abandoned_branch_names_root(session: Session) -> None:
    entry = session.append(st.BranchSummary(summary="s"))

    assert isinstance(entry.body, st.BranchSummary)
    assert entry.body.abandoned_leaf == "root"


def test_an_assistant_message_gets_the_fields_that_peers_expect(session: Session) -> None:
    session.append(st.ModelChange(provider="openai", model="gpt"))

    entry = session.append(st.Message({"role": "assistant", "content": "hi"}))

    assert isinstance(entry.body, st.Message)
    message = entry.body.message
    assert message["content"] == [{"type": "text", "text": "hi"}]
    assert (message["provider"], message["model"], message["stopReason"]) == ("openai", "gpt", "stop")
    assert message["usage"]["totalTokens"] == 0
    assert message["usage"]["cost"]["total"] == 0
    assert isinstance(message["timestamp"], int)


def test_a_late_result_moves_no_branch(session: Session) -> None:
    call, _ = append_texts(session, "one", "two")
    session.create_branch("other")

    late = session.append(st.tool_result("c1", "bash", "done"), parent=call, branch=None)

    assert late.parent == call
    assert session.head.name == "other"
    assert late.id not in session.heads.heads.values()
    assert reopen(session).heads.heads == session.heads.heads
    with pytest.raises(st.InvalidOperation, match="needs a parent"):
        session.append(st.user("x"), branch=None)


def test_fields_of_a_line_can_be_added(session: Session) -> None:
    entry = session.append(st.user("copy"), extra={"copiedFrom": "abc"})

    assert b'"copiedFrom":"abc"' in entry.raw
    assert entry.id in session.tree


def test_text_that_utf8_cannot_hold_is_written_and_read_back(session: Session) -> None:
    entry = session.append(st.user("half a \ud83d pair"))

    assert reopen(session).tree[entry.id].body == entry.body
    assert b"\\ud83d" in entry.raw


# Branches


def test_the_branching_example_survives_reopening(tmp_path: Path) -> None:
    session = st.create(name="auth", cwd="/project", file=tmp_path / "s.jsonl")
    append_texts(session, "How do I optimize this?", "I have several approaches...")
    stayed = session.head.leaf
    session.create_branch("approach-a", description="Using algorithm optimization")
    session.head.append(st.assistant("Approach A: Use memoization", usage={"input": 100, "output": 50, "cost": 0.05}))
    session.switch("main")
    session.create_branch("approach-b", description="Using data structure changes")
    session.head.append(st.assistant("Approach B: Use a Map", usage={"input": 60, "output": 30, "cost": 0.03}))
    session.close()

    for shown in (session, st.open(tmp_path / "s.jsonl")):
        a, b = shown.branch("approach-a").path(), shown.branch("approach-b").path()
        assert a[-2].parent == b[-2].parent == stayed
        assert [entry.type for entry in a[-2:]] == ["branch_point", "message"]
        assert shown.branch("main").leaf == stayed
        assert shown.head.name == "approach-b"
        comparison = st.compare(shown, ["approach-a", "approach-b"])
        assert [stats.cost for stats in comparison.branches] == [0.05, 0.03]
        assert [stats.entries for stats in comparison.branches] == [2, 2]
        assert comparison.winner == "approach-b"
        assert [(d.metric, d.diff, d.percent) for d in comparison.differences][:1] == [("cost", -0.02, -40.0)]


def test_a_branch_has_its_creation_time_and_description(session: Session) -> None:
    append_texts(session, "one")

    branch = session.create_branch("b", description="try")

    assert branch.info.description == "try"
    assert branch.info.created_at == session.tree[branch.leaf or ""].timestamp
    assert branch.info.entry_count == len(branch.path())
    assert session.branch("main").info.created_at == session.header.timestamp


def test_appends_on_an_agents_branch_do_not_move_the_current_branch(session: Session) -> None:
    append_texts(session, "one")
    agent = session.create_branch("agent", current=False)

    agent.append(st.assistant("working"))

    assert session.head.name == "main"
    assert reopen(session).head.name == "main"
    assert reopen(session).branch("agent").leaf == agent.leaf


def test_a_branch_can_be_created_at_any_place(session: Session) -> None:
    first, *_ = append_texts(session, "one", "two", "three")

    branch = session.create_branch("old", at=first)
    other = session.create_branch("start", at=None)

    assert session.tree.parent(branch.leaf or "") == first
    assert session.tree.parent(other.leaf or "") is None


@pytest.mark.parametrize("name", ["main", "", "HEAD", "root", "HEAD@{1}", "a\nb", "x~1", " b", "n" * 201])
def test_taken_and_ambiguous_branch_names_are_refused(session: Session, name: str) -> None:
    with pytest.raises(st.InvalidOperation):
        session.create_branch(name)


def test_an_unknown_branch_is_an_error_that_lists_the_branches(session: Session) -> None:
    with pytest.raises(st.NotFound, match="main"):
        session.branch("nope")
    with pytest.raises(st.NotFound):
        session.append(st.user("x"), branch="nope")
    with pytest.raises(st.NotFound):
        st.compare(session, ["main", "nope"])


def test_a_branch_can_be_renamed_and_keeps_its_history(session: Session) -> None:
    append_texts(session, "one")
    leaf = session.create_branch("b", description="try").leaf

    renamed = session.rename_branch("b", "c")

    for shown in (session, reopen(session)):
        assert list(shown.heads.heads) == ["main", "c"]
        assert shown.head.name == "c"
        assert shown.branch("c").leaf == leaf
        assert shown.branch("c").info.description == "try"
    assert renamed.name == "c"
    with pytest.raises(st.InvalidOperation):
        session.rename_branch("c", "main")


def test_an_archived_branch_is_hidden_and_can_be_restored(session: Session) -> None:
    append_texts(session, "one")
    session.create_branch("b")
    session.switch("main")

    session.archive_branch("b")

    assert [info.archived for info in reopen(session).branches] == [False, True]
    with pytest.raises(st.InvalidOperation, match="current"):
        session.archive_branch("main")
    session.switch("b")
    assert [info.archived for info in reopen(session).branches] == [False, False]


def test_handles_of_one_name_share_the_head(session: Session) -> None:
    one, two = session.branch("main"), session.branch("main")

    entry = one.append(st.user("hi"))

    assert two.leaf == entry.id
    assert one == two
    assert len({one, two}) == 1


# Moving


def test_navigation_survives_reopening(session: Session) -> None:
    _, answer, *_ = append_texts(session, "one", "two", "three", "four")

    session.navigate_sync(answer)

    assert reopen(session).head.leaf == answer
    assert read_texts(reopen(session).head) == ["one", "two"]


def test_selecting_a_user_message_returns_its_text(session: Session) -> None:
    _, answer, question, _ = append_texts(session, "one", "two", "three", "four")

    plan = session.navigate_sync(question)

    assert plan.editor_text == "three"
    assert session.head.leaf == answer


def test_selecting_the_first_message_moves_before_the_first_entry(session: Session) -> None:
    first, *_ = append_texts(session, "one", "two")

    plan = session.navigate_sync(first)
    again = session.append(st.user("afresh"))

    assert (plan.new_leaf, plan.editor_text) == (None, "one")
    assert session.tree.parent(again.id) is None
    assert read_texts(session.head) == ["afresh"]


def test_selecting_the_current_leaf_does_nothing_unless_it_is_a_user_message(session: Session) -> None:
    _, answer = append_texts(session, "one", "two")
    lines = session.read_lines()
    assert session.navigate_sync("HEAD").is_move is False
    assert session.read_lines() == lines

    question = session.append(st.user("three"))
    plan = session.navigate_sync("HEAD")

    assert plan.editor_text == "three"
    assert session.head.leaf == answer
    assert question.id in session.tree


def test_a_plan_changes_nothing(session: Session) -> None:
    first, answer, _ = append_texts(session, "one", "two", "three")
    lines = session.read_lines()

    plan = session.plan_navigate(answer)
    other = session.plan_navigate(first, start=answer)

    assert [entry.id for entry in plan.abandoned] == [session.head.leaf]
    assert (other.old_leaf, other.new_leaf, other.editor_text) == (answer, None, "one")
    assert session.read_lines() == lines


def test_undo_reverts_one_move_at_a_time(session: Session) -> None:
    one, two, three, four = append_texts(session, "one", "two", "three", "four")
    session.navigate_sync(two)
    session.append(st.user("another way"))
    session.switch(one)

    session.undo()
    assert session.head.leaf not in (one, two, three, four)
    session.undo()
    assert session.head.leaf == four
    assert reopen(session).head.leaf == four
    with pytest.raises(st.InvalidOperation, match="nothing to undo"):
        session.undo()


def test_undoing_a_switch_keeps_entries_appended_since(session: Session) -> None:
    append_texts(session, "one")
    session.create_branch("b")
    session.switch("main")
    grown = session.append(st.user("meanwhile"), branch="b")

    session.undo()

    assert session.head.name == "b"
    assert session.head.leaf == grown.id


def test_head_at_n_is_the_nth_previous_place(session: Session) -> None:
    one, two, _, four = append_texts(session, "one", "two", "three", "four")
    session.navigate_sync(two)
    session.switch(one)

    assert [session.resolve_place(f"HEAD@{{{n}}}") for n in range(3)] == [one, two, four]
    with pytest.raises(st.NotFound):
        session.resolve_place("HEAD@{3}")


def test_switching_to_the_head_of_another_branch_switches_to_that_branch(session: Session) -> None:
    append_texts(session, "one")
    branch = session.create_branch("b")
    session.switch("main")

    session.switch(branch.leaf)

    assert session.head.name == "b"


def test_switching_to_a_place_where_several_branches_are_is_refused(session: Session) -> None:
    append_texts(session, "one", "two", "three")
    for name in ("a", "b"):
        session.create_branch(name, at="main")
        session.navigate_sync("HEAD~2")
    session.switch("main")

    with pytest.raises(st.InvalidOperation, match="a, b"):
        session.switch(session.branch("a").leaf)
    with pytest.raises(st.NotFound):
        session.switch("nowhere")

    assert session.head.name == "main"


def test_a_move_and_its_entries_are_written_together(session: Session) -> None:
    ids = append_texts(session, "one", "two", "three", "four")

    summary = st.BranchSummary(summary="left", abandoned_leaf=ids[3])
    written = session.move(
        ids[1], [Item(summary, id="5" * 16, extra={"why": 1}), st.Label(target="5" * 16, text="here")]
    )

    assert written[0].id == session.head.leaf == "5" * 16
    assert session.tree.parent("5" * 16) == ids[1]
    assert session.tree.label("5" * 16) == "here"
    assert b'"why":1' in written[0].raw
    assert reopen(session).head.leaf == "5" * 16
    session.undo()
    assert session.head.leaf == ids[3]


def test_an_archived_branch_that_moves_is_no_longer_archived(session: Session) -> None:
    ids = append_texts(session, "one", "two")
    for name, bodies in (("a", []), ("b", [st.user("on")])):
        session.create_branch(name, current=False)
        session.archive_branch(name)

        session.move(ids[0], bodies, branch=name)

        assert not session.branch(name).info.archived
        assert not reopen(session).branch(name).info.archived


def test_a_renamed_branch_is_not_found_under_its_old_name(session: Session) -> None:
    append_texts(session, "one")
    branch = session.create_branch("a", current=False)
    session.rename_branch("a", "b")

    for ask in (lambda: branch.info, lambda: branch.leaf):
        with pytest.raises(st.NotFound, match="branch 'a' not found"):
            ask()


def test_a_missing_branch_is_reported_with_the_first_few_branches(session: Session) -> None:
    append_texts(session, "one")
    for number in range(20):
        session.create_branch(f"b{number}", current=False)

    with pytest.raises(st.NotFound, match="b8 and 11 more") as refused:
        session.branch("c")
    assert "b9" not in str(refused.value)


def test_a_label_that_looks_like_an_id_does_not_misdirect_a_move(session: Session) -> None:
    ids = append_texts(session, "one", "two", "three", "four")
    session.label(ids[0], ids[1])

    session.navigate_sync(session.tree[ids[1]])

    assert session.head.leaf == ids[1]


def test_annotations_written_with_a_move_are_at_the_new_place(session: Session) -> None:
    ids = append_texts(session, "one", "two", "three", "four")

    (label,) = session.move(ids[1], [st.Label(target=ids[1], text="back")])

    assert (session.head.leaf, label.parent) == (ids[1], ids[1])
    assert reopen(session).head.leaf == ids[1]
    assert session.undo().new_leaf == ids[3]


def test_a_branch_that_is_not_current_can_be_moved(session: Session) -> None:
    ids = append_texts(session, "one", "two", "three", "four")
    session.create_branch("side")

    session.move(ids[1], branch="main")

    assert (session.head.name, session.branch("main").leaf) == ("side", ids[1])
    assert reopen(session).branch("main").leaf == ids[1]


def test_branches_can_be_archived_with_a_move_and_the_moved_branch_becomes_current(session: Session) -> None:
    ids = append_texts(session, "one", "two")
    session.create_branch("a").append(st.user("a"))
    side = session.create_branch("b", at=ids[1])
    side.append(st.user("b"))

    session.move(side.path()[-1], [st.user("on")], branch="main", archive=["a", "b", "main"])

    for seen in (session, reopen(session)):
        assert {info.name for info in seen.branches if info.archived} == {"a", "b"}
        assert seen.head.name == "main"
        assert [m["content"] for m in seen.head.context().messages][-2:] == ["b", "on"]
    with pytest.raises(st.NotFound):
        session.move(ids[0], archive=["c"])


def test_a_move_from_an_unexpected_head_is_refused_and_nothing_is_written(session: Session) -> None:
    ids = append_texts(session, "one", "two", "three", "four")
    before = session.read_lines()

    for write in (
        lambda: session.move(ids[0], expected=ids[1]),
        lambda: session.append(st.user("five"), expected=ids[1]),
        lambda: session.extend([st.user("five"), st.user("six")], expected=None),
    ):
        with pytest.raises(st.BranchMoved, match=ids[3]):
            write()

    assert session.read_lines() == before


# Head records


def test_head_records_are_written_at_regular_intervals(session: Session) -> None:
    session.extend([st.user(str(number)) for number in range(700)])
    for number in range(300):
        session.append(st.user(str(number)))

    records = [index for index, entry in enumerate(session.tree.entries) if entry.is_head_record]

    assert max(b - a for a, b in itertools.pairwise([-1, *records, len(session.tree.entries)])) <= RECORD_INTERVAL
    assert reopen(session).heads.heads == session.heads.heads
    assert len(session.head.path()) == 1001


def test_head_records_in_a_batch_of_annotations_keep_one_root() -> None:
    session = st.memory()
    session.extend([st.Usage(kind=str(number)) for number in range(300)])
    session.append(st.user("first"))

    assert len(session.tree.roots()) == 1


def test_closing_writes_a_head_record_if_the_last_line_is_elsewhere(tmp_path: Path) -> None:
    session = st.create(file=tmp_path / "s.jsonl", cwd="/project")
    [leaf] = append_texts(session, "one")
    session.create_branch("agent", current=False).append(st.assistant("working"))
    lines = len(session.read_lines())

    session.close()

    last = st.open(tmp_path / "s.jsonl").tree.entries[-1]
    assert last.is_head_record
    assert last.parent == leaf
    assert len(st.open(tmp_path / "s.jsonl").read_lines()) == lines + 1


def test_closing_writes_nothing_if_the_last_line_is_at_the_head(tmp_path: Path) -> None:
    with st.create(file=tmp_path / "s.jsonl", cwd="/project") as session:
        append_texts(session, "one")
        before = session.read_lines()
    with st.open(tmp_path / "s.jsonl") as opened:
        opened.close()

    assert st.open(tmp_path / "s.jsonl").read_lines() == before
    with pytest.raises(st.InvalidOperation, match="closed"):
        session.append(st.user("late"))


# More than one writer


def two_writers() -> tuple[Session, Session]:
    session = st.memory()
    append_texts(session, "one", "two")
    return session, reopen(session)


def test_appends_on_other_branches_do_not_conflict() -> None:
    mine, theirs = two_writers()
    theirs.create_branch("agent", current=False).append(st.assistant("working"))

    entry = mine.head.append(st.user("three"))

    assert mine.head.leaf == entry.id
    assert "agent" in mine.heads.heads
    theirs.refresh()
    assert theirs.head.leaf == entry.id


def test_an_append_reads_what_others_wrote_first_and_succeeds_at_the_second_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine, theirs = two_writers()
    theirs.create_branch("agent", current=False)
    tries: list[object] = []
    real = mine.store.append

    def counted(lines: Sequence[bytes], *, after: Cursor) -> Cursor:
        tries.append(lines)
        return real(lines, after=after)

    monkeypatch.setattr(mine.store, "append", counted)
    mine.head.append(st.user("three"))

    assert len(tries) == 2


def test_a_head_record_that_became_due_by_other_writers_is_written() -> None:
    mine, theirs = two_writers()
    agent = theirs.create_branch("agent", current=False)
    while theirs.heads.lines_since_record < RECORD_INTERVAL - 2:
        agent.append(st.user("working"))

    entry = mine.head.append(st.user("three"))

    assert mine.tree.entries[-2].id == entry.id
    assert mine.tree.entries[-1].is_head_record
    assert mine.heads.lines_since_record == 0


def test_a_branch_renamed_by_another_writer_is_not_found() -> None:
    mine, theirs = two_writers()
    main = mine.head
    theirs.rename_branch("main", "trunk")

    with pytest.raises(st.NotFound, match="main"):
        main.append(st.user("three"))

    assert mine.read_lines() == theirs.read_lines()


def test_append_is_refused_after_another_writer_moved_the_branch() -> None:
    mine, theirs = two_writers()
    known = mine.head.leaf
    moved = theirs.head.append(st.user("theirs"))

    with pytest.raises(st.BranchMoved) as caught:
        mine.head.append(st.user("mine"))

    assert (caught.value.branch, caught.value.expected, caught.value.head) == ("main", known, moved.id)
    assert mine.read_lines() == theirs.read_lines()


def test_append_at_head_retries_at_the_head_another_writer_moved_to() -> None:
    mine, theirs = two_writers()
    other = theirs.head.append(st.user("theirs"))
    heads: list[str | None] = []

    def build() -> Item:
        heads.append(mine.head.leaf)
        return Item(st.user("mine"))

    entry = mine.append_at_head(build, branch="main")

    assert entry.parent == other.id == heads[1]
    assert read_texts(mine.head) == ["one", "two", "theirs", "mine"]


def test_append_at_head_stops_retrying_when_the_branch_moves_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, theirs = two_writers()
    monkeypatch.setattr("sessiontree.session.writer.MAX_APPEND_ATTEMPTS", 3)
    attempts: list[str] = []

    def build() -> Item:
        attempts.append(theirs.append_at_head(lambda: Item(st.user("theirs"))).id)
        return Item(st.user("mine"))

    with pytest.raises(st.BranchMoved) as caught:
        mine.append_at_head(build)

    assert (len(attempts), caught.value.head) == (3, attempts[-1])


def test_after_branch_moved_the_writer_can_continue_on_a_new_branch() -> None:
    mine, theirs = two_writers()
    theirs.head.append(st.user("theirs"))
    try:
        mine.head.append(st.user("mine"))
    except st.BranchMoved as moved:
        branch = mine.create_branch("mine", at=moved.expected)

    branch.append(st.user("mine"))

    assert read_texts(branch) == ["one", "two", "mine"]
    assert read_texts(mine.branch("main")) == ["one", "two", "theirs"]


def test_a_move_by_another_writer_is_not_overwritten() -> None:
    mine, theirs = two_writers()
    theirs.navigate_sync("HEAD~1")

    with pytest.raises(st.BranchMoved):
        mine.navigate_sync("root")

    assert mine.head.leaf == theirs.head.leaf


def test_two_writers_cannot_create_branches_of_one_name() -> None:
    mine, theirs = two_writers()
    mine.create_branch("work", current=False)
    theirs.refresh()
    mine.rename_branch("work", "x")

    with pytest.raises(st.InvalidOperation, match="branch 'x' already exists"):
        theirs.rename_branch("main", "x")
    with pytest.raises(st.NotFound):
        theirs.rename_branch("work", "y")

    assert set(theirs.heads.heads) == {"main", "x"}


def test_two_writers_can_archive_or_restore_the_same_branch() -> None:
    mine, theirs = two_writers()
    mine.create_branch("work", current=False)
    theirs.refresh()

    mine.archive_branch("work")
    theirs.archive_branch("work")
    assert theirs.heads.archived == {"work"}

    mine.refresh()
    theirs.archive_branch("work", archived=False)
    mine.archive_branch("work", archived=False)
    assert mine.heads.archived == set()


def test_a_switch_does_not_disturb_an_agent_on_its_branch() -> None:
    person, agent = two_writers()
    person.create_branch("agent", current=False)
    person.create_branch("other", current=False)
    agent.refresh()

    person.switch("other")
    [written] = agent.move("root", [st.user("anew")], branch="agent")
    person.refresh()
    person.switch("main")
    agent.archive_branch("agent")
    person.refresh()
    person.switch("other")
    agent.rename_branch("agent", "done")

    person.refresh()
    assert person.heads.heads["done"] == written.id
    assert (person.heads.archived, person.heads.current) == ({"done"}, "other")


def test_switching_to_a_branch_that_others_append_to_works() -> None:
    mine, theirs = two_writers()
    mine.create_branch("work", current=False)
    theirs.refresh()
    written = theirs.append(st.user("more"), branch="work")

    assert mine.switch("work").leaf == written.id


def test_restoring_heads_does_not_touch_other_branches() -> None:
    mine, theirs = two_writers()
    agent = theirs.create_branch("agent", current=False)
    mine.refresh()
    theirs.create_branch("later", current=False)
    grown = theirs.append(st.assistant("more"), branch="agent")

    mine.restore_heads({**mine.heads.heads, "main": mine.resolve_place("HEAD~1")})

    assert (read_texts(mine.branch("main")), mine.heads.heads["agent"]) == (["one"], grown.id)
    assert "later" in mine.heads.heads
    assert agent.name == "agent"
    with pytest.raises(st.InvalidOperation, match="nothing to undo"):
        mine.undo()
    with pytest.raises(st.NotFound):
        mine.restore_heads({"main": "nowhere"})
    with pytest.raises(st.NotFound):
        mine.restore_heads({"nobody": None})


def test_a_refused_operation_does_not_rewrite_an_older_file(tmp_path: Path) -> None:
    file = tmp_path / "old.jsonl"
    file.write_text(
        '{"type":"session","version":2,"id":"s"}\n'
        '{"type":"message","id":"a","parentId":null,"message":{"role":"user","content":"hi"}}\n'
    )
    before = file.read_bytes()
    with st.open(file) as session:
        with pytest.raises(st.NotFound):
            session.rename_branch("nobody", "x")
        with pytest.raises(st.InvalidOperation):
            session.rename_branch("main", "main")
        with pytest.raises(st.InvalidOperation):
            session.archive_branch("main")

    assert [(path, path.read_bytes()) for path in tmp_path.iterdir()] == [(file, before)]


def test_the_expected_head_is_checked_for_labels_too() -> None:
    mine, theirs = two_writers()
    known = mine.head.leaf
    theirs.head.append(st.user("more"))

    with pytest.raises(st.BranchMoved):
        mine.append(st.Label(target=known, text="here"), expected=known)


@pytest.mark.parametrize("ids", [("a", "a"), ("known",), ("",), (5,)])
def test_existing_and_invalid_ids_are_refused(session: Session, ids) -> None:
    session.extend([Item(st.user("one"), None, "known")])
    before = session.read_lines()

    with pytest.raises(st.InvalidOperation):
        session.extend([Item(st.user("two"), None, id) for id in ids])

    assert session.read_lines() == before


def test_a_head_record_does_not_revert_what_others_appended() -> None:
    mine, theirs = two_writers()
    agent = mine.create_branch("agent", current=False)
    theirs.refresh()
    grown = theirs.append(st.assistant("more"), branch="agent")

    mine.navigate_sync("HEAD~1")

    assert agent.leaf == grown.id


# Older files, newer files, damage


LINEAR = b"""{"type":"session","id":"old","timestamp":"2025-01-01T00:00:00.000Z","cwd":"/p"}
{"type":"message","timestamp":"2025-01-01T00:00:01.000Z","message":{"role":"user","content":"one"}}
{"type":"message","timestamp":"2025-01-01T00:00:02.000Z","message":{"role":"assistant","content":[],"x":1.0}}
"""


def test_reading_an_old_file_changes_nothing_and_the_first_append_rewrites_it_with_a_backup(tmp_path: Path) -> None:
    path = tmp_path / "old.jsonl"
    path.write_bytes(LINEAR)
    session = st.open(path)
    leaf = session.head.leaf
    assert session.needs_migration
    assert path.read_bytes() == LINEAR

    session.append(st.user("more"))

    assert path.with_name("old.jsonl.bak").read_bytes() == LINEAR
    again = st.open(path)
    assert (again.header.version, again.needs_migration) == (3, False)
    assert again.tree.parent(again.head.leaf or "") == leaf
    assert b'"x":1.0' in path.read_bytes()


def test_migrate_returns_whether_it_was_necessary(tmp_path: Path) -> None:
    path = tmp_path / "old.jsonl"
    path.write_bytes(LINEAR)
    session = st.open(path)

    assert (session.dialect, session.migrate(), session.migrate(), session.dialect) == ("linear", True, False, None)


def test_a_newer_version_opens_read_only(tmp_path: Path) -> None:
    path = tmp_path / "new.jsonl"
    path.write_bytes(
        b'{"type":"session","version":4,"id":"n"}\n'
        b'{"type":"message","id":"a","parentId":null,"message":{"role":"user","content":"hi"}}\n'
    )
    session = st.open(path)

    assert session.head.leaf == "a"
    assert [problem.kind for problem in session.problems] == ["newer_version"]
    for write in (
        lambda: session.append(st.user("x")),
        lambda: session.create_branch("b"),
        lambda: session.navigate_sync("root"),
    ):
        with pytest.raises(st.ReadOnly, match="version 4"):
            write()


def test_a_session_opened_for_reading_cannot_be_written_or_migrated(tmp_path: Path) -> None:
    path = tmp_path / "old.jsonl"
    path.write_bytes(LINEAR)
    session = st.open(path, read_only=True)

    with pytest.raises(st.ReadOnly):
        session.append(st.user("x"))
    with pytest.raises(st.ReadOnly):
        session.migrate()

    assert path.read_bytes() == LINEAR


def test_an_unfinished_last_line_is_reported_and_moved_away_by_the_next_append(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    with st.create(file=path, cwd="/p") as session:
        append_texts(session, "one")
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"type":"mess')
    session = st.open(path)
    assert [(problem.kind, problem.line, problem.offset) for problem in session.problems] == [
        ("torn_tail", 3, len(whole))
    ]

    session.append(st.user("two"))

    assert session.problems == []
    assert path.with_name(f"s.jsonl.torn-{len(whole)}").read_bytes() == b'{"type":"mess'
    assert session.torn_files == [f"{path}.torn-{len(whole)}"]
    assert st.memory().torn_files == []


def test_an_unfinished_last_line_stays_as_a_damaged_line_while_others_have_the_session_open(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    with st.create(file=path, cwd="/p") as session:
        append_texts(session, "one")
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"type":"mess')
    session, other = st.open(path), st.open(path)

    two = session.append(st.user("two"))

    assert [(problem.kind, problem.line) for problem in session.problems] == [("malformed_line", 3)]
    assert path.read_bytes() == whole + b'{"type":"mess\n' + two.raw + b"\n"
    assert session.torn_files == []
    assert read_texts(session.head) == ["one", "two"]
    assert [entry.id for entry in other.refresh()] == [two.id]


def test_a_head_lost_by_damage_is_reported_and_can_be_left() -> None:
    session = st.memory()
    [one] = append_texts(session, "one")
    record = b'{"type":"custom","id":"r","parentId":null,"customType":"sessiontree.head","data":%s}'
    lost = record % b'{"current":"main","heads":{"main":"gone"}}'
    session._store.append([lost], after=session._load().cursor)
    session.refresh()
    assert [problem.kind for problem in session.problems] == ["missing_head"]
    with pytest.raises(st.NotFound):
        session.head.path()
    assert session.branches[0].entry_count == 0

    session.navigate_sync(one)
    session.switch(one)

    assert session.problems == []


def test_a_file_that_is_not_a_session_is_an_error_and_never_overwritten(tmp_path: Path) -> None:
    for content in (b"", b"hello\n", b'{"type":"message","id":"a","parentId":null}\n'):
        path = tmp_path / "x.jsonl"
        path.write_bytes(content)
        with pytest.raises(st.FormatError):
            st.open(path)
        assert path.read_bytes() == content


def test_names_are_one_line_and_can_be_removed(session: Session) -> None:
    session.rename("  two\r\nlines ")
    assert session.name == "two lines"

    session.rename(None)

    assert session.name is None
    assert reopen(session).name is None


def test_a_label_is_set_changed_and_cleared(session: Session) -> None:
    [one] = append_texts(session, "one")

    session.label("HEAD", "a")
    session.label("a", " b ")
    assert session.tree.labels == {one: "b"}
    session.label(one, "  ")

    assert session.tree.labels == {}
    with pytest.raises(st.InvalidOperation):
        session.label("root", "x")


def test_a_branch_explains_its_context(session: Session) -> None:
    append_texts(session, "one", "two")

    explanation = session.head.explain()

    assert [item.reaches_model for item in explanation.entries] == [False, True, True]
    assert explanation.tokens == session.head.context().tokens()
    assert session.resolve_place(session.tree.entries[-1]) == session.head.leaf


def test_the_store_can_be_memory() -> None:
    session = Session.create(MemoryStore("here"), id="x", cwd="/p")

    assert (session.file, session.location, session.cwd, session.forked_from) == (None, "here", "/p", None)


def test_a_peers_line_after_a_late_result_goes_to_the_current_branch() -> None:
    session = st.memory()
    [one] = append_texts(session, "one")
    session.create_branch("agent", current=False)
    session.append(st.tool_result("c", "bash", "late"), parent=one, branch=None)
    session._store.append([b'{"type":"message","id":"p","parentId":"%s"}' % one.encode()], after=session._load().cursor)

    session.refresh()

    assert (session.head.name, session.head.leaf) == ("main", "p")
    assert session.branch("agent").leaf != "p"


def test_a_line_that_starts_like_a_message_but_is_not_json_is_not_a_head(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    with st.create(file=path, cwd="/p") as session:
        [one] = append_texts(session, "one")
    with path.open("ab") as file:
        file.write(session.tree[one].raw.replace(one.encode(), b"bad") + b"}\n")
    session = st.open(path)
    assert [problem.kind for problem in session.problems][:1] == ["malformed_line"]
    assert session.context().leaf == session.head.leaf == one

    entry = session.append(st.user("two"))

    assert entry.parent == one
    other = Session(JsonlStore(str(path)))
    with path.open("ab") as file:
        file.write(entry.raw.replace(entry.id.encode(), b"worse") + b"}\n")
    other.refresh()
    assert other.head.leaf == entry.id


def test_undoing_a_switch_restores_an_archived_branch(session: Session) -> None:
    append_texts(session, "one")
    session.create_branch("b")
    session.switch("main")
    session.archive_branch("b")

    session.undo()

    assert session.head.name == "b"
    assert not session.heads.archived


def test_the_state_of_a_branch_is_that_of_its_context(session: Session) -> None:
    session.append(st.ThinkingLevelChange(level="high"))
    session.append(st.assistant("yes", provider="anthropic", model="claude"))

    for branch in (session.head, reopen(session).head):
        state = branch.state
        assert (state.thinking_level, state.provider, state.model) == ("high", "anthropic", "claude")
        assert state == branch.context().state
    assert reopen(session).head.state == session.head.state


def test_undo_restores_all_branches_of_a_move_unless_another_writer_moved_one(session: Session) -> None:
    one, two = append_texts(session, "one", "two")
    session.create_branch("a", at=session.tree[one]).append(st.user("a"))
    session.move("a", [st.user("on")], branch="main", archive=["a"])
    assert session.head.name == "main"
    reopen(session).branch("main").append(st.user("meanwhile"))

    with pytest.raises(st.BranchMoved, match="'main'"):
        session.undo()
    session.undo()

    assert (session.head.name, session.branch("main").leaf) == ("a", two)
    assert not session.heads.archived


@pytest.mark.parametrize("type", ["session", "title", "", *WIRE])
def test_ambiguous_entries_are_refused(session: Session, type: str) -> None:
    before = list(session.tree)

    with pytest.raises(st.InvalidOperation):
        session.append(st.Opaque(type=type, fields={"customType": HEAD_RECORD, "data": {"current": "x", "heads": {}}}))
    assert list(session.tree) == before


@pytest.mark.parametrize("field", ["type", "id", "parentId", "timestamp", "branch", "current", "customType", "data"])
def test_further_fields_cannot_replace_fields_of_the_entry(session: Session, field: str) -> None:
    before = list(session.tree)

    with pytest.raises(st.InvalidOperation, match=f"'{field}'"):
        session.append(st.Custom(custom_type="note"), extra={field: HEAD_RECORD})
    assert list(session.tree) == before


def test_only_messages_on_the_path_can_be_edited(session: Session) -> None:
    [one, two] = append_texts(session, "one", "two")
    level = session.append(st.ThinkingLevelChange("high"))
    session.switch(one)
    session.append(st.ThinkingLevelChange("low"))

    for target in (two, level.id):
        with pytest.raises(st.InvalidOperation, match="cannot edit the context"):
            session.append(st.ContextEdit(target=target))
    with pytest.raises(st.InvalidOperation, match="cannot edit the context"):
        session.append(st.ContextEdit(target=session.head.leaf or ""))
    session.append(st.ContextEdit(target=one))

    assert session.head.context().messages == ()


def test_reading_the_current_branch_repeatedly_is_cheap(tmp_path: Path) -> None:
    with st.create(file=tmp_path / "s.jsonl", cwd="/p") as session:
        append_texts(session, "one")
    session = st.open(tmp_path / "s.jsonl")

    heads = {id(session.head) for _ in range(5)}

    assert len(heads) == 1
    assert session.head.name == "main"


def test_require_unchanged_refuses_a_write_after_another_writer(tmp_path: Path) -> None:
    with st.create(file=tmp_path / "s.jsonl", cwd="/p") as session, st.open(tmp_path / "s.jsonl") as other:
        other.create_branch("elsewhere", current=False)
        with session.require_unchanged(), pytest.raises(st.Conflict):
            session.append(st.user("too late"))
        session.refresh()
        with session.require_unchanged():
            session.append(st.user("in time"))
        other.append(st.user("more"), branch="elsewhere")
        session.append(st.user("behind it"))

    with st.open(tmp_path / "s.jsonl") as read:
        said = [entry.body.message["content"] for entry in read.tree.entries if isinstance(entry.body, st.Message)]
    assert said == ["in time", "more", "behind it"]


def test_there_is_a_head_record_within_every_256_lines() -> None:
    session = st.memory()
    for number in range(600):
        session.append(st.user(str(number)))

    records = [index for index, entry in enumerate(session.tree.entries) if entry.is_head_record]

    assert max(b - a for a, b in itertools.pairwise([-1, *records, len(session.tree.entries)])) <= 256


# Damage and other programs


def damage_message(path: Path, text: str) -> Path:
    """Change one byte of the line of a message, which is then not valid JSON."""
    data = path.read_bytes()
    path.write_bytes(data.replace(f'"{text}"'.encode(), f'?{text}"'.encode()))
    return path


def test_a_head_record_that_names_an_unreadable_line_means_the_nearest_above(tmp_path: Path) -> None:
    with st.create(file=tmp_path / "s.jsonl") as session:
        one = session.append(st.user("one"))
        session.append(st.user("two"))
        session.create_branch("other", at="root")
        session.switch("main")
        session.append(st.user("three"), branch="other")

    with st.open(damage_message(tmp_path / "s.jsonl", "two")) as session:
        assert session.branch("main").leaf == one.id
        assert [problem.kind for problem in session.problems] == ["malformed_line"]
        session.append(st.user("four"), branch="main")
        assert read_texts(session.branch("main")) == ["one", "four"]
        assert reopen(session).heads.heads == session.heads.heads


def test_a_place_takes_precedence_over_a_branch_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    with st.create(file=path) as session:
        one = session.append(st.user("one"))
        session.create_branch("other", at="root")
        session.append(st.user("two"))
        session.switch("main")
    path.write_bytes(path.read_bytes().replace(b'"other"', b'"HEAD@{2}"'))

    assert st.open(path).resolve_place("HEAD@{2}") == one.id
    assert st.open(path).context("HEAD@{2}").leaf == one.id


def test_consecutive_unreadable_lines_move_no_branch(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    with st.create(file=path) as session:
        one = session.append(st.user("one"))
        for count in range(3 * SKIP_LIMIT):
            session.append(st.user(f"lost {count}"), parent=one)
    for count in range(3 * SKIP_LIMIT):
        damage_message(path, f"lost {count}")

    with st.open(path) as session:
        assert session.head.leaf == one.id


def test_following_and_opening_agree_around_unreadable_lines(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    with st.create(file=path) as session:
        one = session.append(st.user("one"))
    with st.open(path) as follower:
        assert follower.head.leaf == one.id
        line = one.raw.replace(one.id.encode(), b"lost").replace(
            b'"parentId":null', b'"parentId":"%s"' % one.id.encode()
        )
        with path.open("ab") as file:
            file.write(line.replace(b'"one"', b'?one"') + b"\n")
        assert [entry.id for entry in follower.refresh()] == ["lost"]
        assert follower.head.leaf == one.id
        for _ in range(2):
            with st.open(path) as other:
                other.append(st.user("more"))
            follower.refresh()
            anew = reopen(follower)
            assert (follower.heads.heads, follower.heads.moves) == (anew.heads.heads, anew.heads.moves)


def test_lines_another_program_writes_at_the_same_moment_are_read(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "s.jsonl"
    session = st.create(file=path)
    one = session.append(st.user("one"))
    line = {"type": "message", "id": "theirs", "parentId": one.id, "timestamp": "", "message": st.user("hm").message}

    def late(fd: int, data: bytes) -> int:
        with path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
        return os.write(fd, data)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(jsonl, "write", late)
        two = session.append(st.user("two"))

    assert two.parent == one.id
    assert "theirs" in session.tree
    assert read_texts(session.head) == ["one", "two"] == read_texts(reopen(session).head)
    session.append(st.user("three"))
    session.close()


def test_an_older_file_that_a_peer_appends_to_is_rewritten_with_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    said = '{"type":"message","timestamp":"2025-01-01T00:00:00.000Z","message":{"role":"user","content":"%s"}}\n'
    path.write_text('{"type":"session","id":"s","timestamp":"2025-01-01T00:00:00.000Z","cwd":"/"}\n' + said % "one")
    with st.open(path) as session:
        assert len(session.tree) == 1
        with path.open("a") as file:
            file.write(said % "two")

        with pytest.raises(st.BranchMoved):
            session.append(st.user("three"))
        session.append(st.user("three"))

        assert read_texts(session.head) == ["one", "two", "three"]


def test_a_forked_process_can_use_the_session_whatever_other_threads_did(tmp_path: Path) -> None:
    session = st.create(file=tmp_path / "s.jsonl", durability="none")
    session.append(st.user("one"))
    held, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with session.hold_lock():
            held.set()
            forked.wait(60)

    other = threading.Thread(target=hold)
    other.start()
    held.wait(60)
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)
            session.append(st.user("two"))
            session.close()
        finally:
            os._exit(len(session.tree))
    forked.set()
    other.join(60)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert len(session.refresh()) == 1


def run_in_fork(work: Callable[[], object]) -> int:
    """Run `work` in a forked process, and return its exit code: 1 if it raised an error."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(60)
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def interrupt_append(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt an append before anything is written."""

    def interrupt_write(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(jsonl, "flock", interrupt_write)
        with pytest.raises(KeyboardInterrupt):
            session.append(st.user("never said"))


def in_this_process(work: Callable[[], object]) -> int:
    work()
    return 0


@pytest.fixture(params=["forked", "interrupted"])
def reload_and_run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    """Make a session reload its state, then run `work` with it."""

    def reload_session(session: Session, work: Callable[[], object]) -> int:
        if request.param == "forked":
            return run_in_fork(work)
        interrupt_append(session, monkeypatch)
        return in_this_process(work)

    return reload_session


def test_a_reloaded_session_still_gets_branch_moved(tmp_path: Path, reload_and_run) -> None:
    session = st.create(file=tmp_path / "s.jsonl", durability="none")
    one = session.append(st.user("one"))
    with st.open(session.file) as other:
        two = other.append(st.user("two"))

    def work() -> None:
        with pytest.raises(st.BranchMoved) as caught:
            session.append(st.user("three"))
        assert (caught.value.expected, caught.value.head) == (one.id, two.id)
        assert session.append(st.user("three")).parent == two.id

    assert reload_and_run(session, work) == 0
    assert read_texts(reopen(session).head) == ["one", "two", "three"]


def test_a_reloaded_session_does_not_write_to_a_file_that_replaced_its_own(tmp_path: Path, reload_and_run) -> None:
    session = st.create(file=tmp_path / "s.jsonl", durability="none")
    session.append(st.user("one"))
    with st.create(file=tmp_path / "other.jsonl") as other:
        other.append(st.user("hello"))
    (tmp_path / "other.jsonl").replace(tmp_path / "s.jsonl")

    def work() -> None:
        with pytest.raises(st.Conflict, match="replaced"):
            session.append(st.user("two"))
        assert read_texts(session.head) == ["one"]

    assert reload_and_run(session, work) == 0
    assert read_texts(reopen(session).head) == ["hello"]


def test_a_reloaded_session_keeps_what_it_had_read(tmp_path: Path, reload_and_run) -> None:
    session = st.create(file=tmp_path / "s.jsonl", durability="none")
    one = session.append(st.user("one"))

    def work() -> None:
        with pytest.raises(st.Conflict):
            session.append(st.user("two"))

    with session.require_unchanged():
        with st.open(session.file) as other:
            other.append(st.user("elsewhere"), parent=one, branch=None)

        assert reload_and_run(session, work) == 0


def test_a_branch_handle_survives_reloading(tmp_path: Path, reload_and_run) -> None:
    with st.create(file=tmp_path / "s.jsonl", durability="none") as made:
        made.append(st.user("one"))
    session = st.open(tmp_path / "s.jsonl", durability="none")
    main = session.head
    main.append(st.user("two"))
    session.create_branch("side")

    def work() -> None:
        assert [main.append(st.user("three")).branch for _ in range(2)] == ["main", "main"]

    assert reload_and_run(session, work) == 0


def old_file(path: Path) -> st.Session:
    said = '{"type":"message","timestamp":"2025-01-01T00:00:00.000Z","message":{"role":"user","content":"one"}}\n'
    path.write_text('{"type":"session","id":"s","timestamp":"2025-01-01T00:00:00.000Z","cwd":"/"}\n' + said)
    return st.open(path, durability="none")


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError, st.InvalidOperation("from a handler")])
@pytest.mark.parametrize("done", [False, True])
def test_an_interrupted_rewrite_keeps_what_was_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, done: bool
) -> None:
    session = old_file(tmp_path / "s.jsonl")
    [one] = [entry.id for entry in session.tree]
    real = os.replace

    def interrupt_write(*names: str) -> None:
        if done:
            real(*names)
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(os, "replace", interrupt_write)
        with pytest.raises(type(error) if isinstance(error, Exception) else error):
            session.append(st.user("two"))
    if done:
        with st.open(session.file) as other:
            other.append(st.user("theirs"))
        with pytest.raises(st.BranchMoved):
            session.append(st.user("two"))
    session.append(st.user("two"))

    assert read_texts(session.head) == (["one", "theirs", "two"] if done else ["one", "two"])
    assert [entry.raw for entry in session.tree] == [entry.raw for entry in st.open(session.file).tree]
    assert session.head.path()[0].id == one


@pytest.mark.parametrize("how", ["append", "extend", "archive"])
def test_entries_a_signal_handler_writes_while_a_batch_is_built_are_kept(
    session: Session, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    append_texts(session, "one")
    session.create_branch("side", current=False)
    written: list[str] = []

    def interrupt_after(real: Callable[..., object]) -> Callable[..., object]:
        def draft(*given: object, **named: object) -> object:
            drafted = real(*given, **named)
            if not written:
                written.append("")
                written[0] = session.append(st.user("in between")).id
            return drafted

        return draft

    for name in ("build_message", "build_chain", "build_head_record"):
        monkeypatch.setattr(EntryBuilder, name, interrupt_after(getattr(EntryBuilder, name)))
    if how == "archive":
        session.archive_branch("side")
    else:
        with pytest.raises(st.BranchMoved):
            session.append(st.user("two")) if how == "append" else session.extend([st.user("two"), st.user("three")])

    assert read_texts(session.head) == ["one", "in between"]
    assert session.heads.leaf == reopen(session).heads.leaf == written[0]


def test_a_branch_with_a_lost_head_cannot_be_appended_to(tmp_path: Path) -> None:
    with st.create(file=tmp_path / "s.jsonl") as session:
        one, two = append_texts(session, "one", "two")
        session.create_branch("side", current=False)
    lines = session.file.read_bytes().split(b"\n")
    lines = [b"\0" * len(line) if b'"id":"%s"' % two.encode() in line else line for line in lines]
    session.file.write_bytes(b"\n".join(lines))

    with st.open(session.file) as damage_message:
        for write in (
            damage_message.append,
            lambda body: damage_message.extend([body]),
            lambda body: damage_message.append(body, parent="HEAD"),
            lambda body: damage_message.label(one, "here"),
            lambda body: damage_message.create_branch("more"),
        ):
            with pytest.raises(st.NotFound, match=f"{two}.*main"):
                write(st.user("three"))
        assert session.file.read_bytes() == b"\n".join(lines)

        damage_message.move(one)
        damage_message.append(st.user("three"))

        assert read_texts(damage_message.head) == ["one", "three"]


@pytest.mark.parametrize(
    ("data", "reason"), [(b"", "the file is empty"), (b'{"type":"sess', "the first line is incomplete")]
)
def test_a_file_without_a_complete_line_is_reported(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "s.jsonl"
    path.write_bytes(data)

    with pytest.raises(st.FormatError, match=reason):
        st.open(path)


@pytest.mark.parametrize("said", [3, RECORD_INTERVAL - 3])
def test_a_retried_message_stays_on_the_branch_that_was_current(tmp_path: Path, said: int) -> None:
    session = st.create(file=tmp_path / "s.jsonl", durability="none")
    while session.heads.lines_since_record < said:
        session.append(st.user("more"))
    with st.open(session.file) as other:
        other.create_branch("elsewhere")

    entry = session.append(st.user("said"))

    assert (entry.branch, session.heads.current) == ("main", "elsewhere")
    assert session.branch("main").leaf == entry.id == reopen(session).branch("main").leaf


def test_lines_whose_position_the_system_does_not_report_are_read_again(tmp_path: Path, monkeypatch) -> None:
    session = st.create(file=tmp_path / "s.jsonl")

    def report_no_position(*_: int) -> int:
        raise OSError(errno.ESPIPE, "")

    with monkeypatch.context() as silent:
        silent.setattr(os, "lseek", report_no_position)
        session.append(st.user("one"))
        session.append(st.user("two"))

    assert read_texts(session.head) == ["one", "two"] == read_texts(reopen(session).head)


def test_an_append_that_cannot_be_read_back_is_an_error(tmp_path: Path, monkeypatch) -> None:
    session = st.create(file=tmp_path / "s.jsonl")
    monkeypatch.setattr(jsonl, "write", lambda fd, data: len(data))

    with pytest.raises(st.StoreError, match="are not in the session"):
        session.append(st.user("one"))


# Copies


def test_a_copied_or_pickled_entry_includes_its_bytes(tmp_path: Path) -> None:
    session = st.create(file=tmp_path / "s.jsonl")
    session.extend([st.user("one"), st.Custom(custom_type="mine", data={"n": 1}), st.assistant("two")])
    entries = list(st.open(tmp_path / "s.jsonl", read_only=True).tree)
    copies = [copy.deepcopy(entries), pickle.loads(pickle.dumps(entries))]
    (tmp_path / "s.jsonl").unlink()

    for made in copies:
        assert [entry.raw for entry in made] == [entry.raw for entry in session.tree]
        assert [entry.body for entry in made] == [entry.body for entry in session.tree]
        assert [entry.id for entry in made] == [entry.id for entry in session.tree]


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_session_is_not_copied_or_pickled(session: Session, again: Callable[[object], object]) -> None:
    with pytest.raises(st.InvalidOperation, match="a session cannot be copied or pickled; open it again"):
        again(session)


def test_a_branch_is_not_pickled_since_its_session_is_not(session: Session) -> None:
    with pytest.raises(st.InvalidOperation, match="a session cannot be copied or pickled"):
        pickle.dumps(session.head)


def test_a_branch_name_that_looks_like_an_entry_id_is_refused() -> None:
    session = st.memory()
    first = session.append(st.user("one"))
    session.append(st.assistant("two"))
    session.create_branch("side")
    before = session.read_lines()

    for name in (first.id, first.id[:8], "0123abcd", "branch:x"):
        with pytest.raises(st.InvalidOperation, match="invalid branch name"):
            session.create_branch(name)
        with pytest.raises(st.InvalidOperation, match="invalid branch name"):
            session.rename_branch("side", name)
    assert session.read_lines() == before


@pytest.mark.parametrize("is_read", [True, False])
def test_in_an_older_session_an_id_means_the_entry_not_a_branch_of_that_name(is_read: bool, tmp_path: Path) -> None:
    with st.create(file=tmp_path / "s.jsonl") as session:
        first = session.append(st.user("one"))
        second = session.append(st.assistant("two"))
        session.create_branch("BRANCH")
        third = session.append(st.user("three"))
        session.switch("main")
    (tmp_path / "s.jsonl").write_bytes((tmp_path / "s.jsonl").read_bytes().replace(b"BRANCH", first.id.encode()))

    old = st.open(tmp_path / "s.jsonl")
    if is_read:
        assert old.resolve_place(first.id) == first.id

    assert len(old.context(first.id).messages) == 1
    assert len(old.context(f"branch:{first.id}").messages) == 3
    assert old.resolve_place(f"branch:{first.id}") == old.branch(first.id).leaf == third.id
    old.label(first.id, "start")
    assert old.tree.label(first.id) == "start"
    late = old.append(st.user("late"), parent=first.id, branch=None)
    assert late.parent == first.id
    assert old.switch(f"branch:{first.id}").name == first.id
    old.rename_branch(first.id, "other")
    assert old.resolve_place("other") == third.id
    old.switch(first.id)
    assert (old.head.name, old.head.leaf) == ("other", first.id)
    assert old.branch("main").leaf == second.id


def test_bytes_that_are_not_utf8_are_reported_and_survive_a_migration(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    line = b'{"type":"message","id":"a","parentId":null,"timestamp":"","role":"%b","content":"a \xff b"}\n'
    file.write_bytes(b'{"type":"session","version":1,"id":"sess_1","timestamp":"","cwd":"/p"}\n' + line % b"user")

    session = st.open(file)
    assert [problem.kind for problem in session.problems] == ["not_utf8"]
    assert session.migrate()

    assert b"a \xff b" in file.read_bytes()
    assert "\ufffd".encode() not in file.read_bytes()
    assert [problem.kind for problem in st.open(file).problems] == ["not_utf8"]


# Rolled back writes


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return a session whose last entry others read before its writer rolled it back after a disk error."""

    def make(*meanwhile: Callable[[], object]) -> Path:
        file = tmp_path / "s.jsonl"
        writer = st.open(file)

        def fail(fd: int) -> None:
            for look in meanwhile:
                look()
            raise OSError(errno.EIO, "")

        with monkeypatch.context() as patch:
            patch.setattr(jsonl, "sync_data", fail)
            with pytest.raises(st.StoreError, match="Input/output error"):
                writer.append(st.user("taken back"))
        return file

    with st.create(file=tmp_path / "s.jsonl") as session:
        session.append(st.user("one"))
    return make


def test_a_reader_drops_an_entry_that_its_writer_rolled_back(tmp_path: Path, shared) -> None:
    follower = st.open(tmp_path / "s.jsonl")
    seen: list[st.Entry] = []
    file = shared(lambda: seen.extend(follower.refresh()))
    assert len(seen) == 1

    assert list(follower.refresh()) == []
    assert read_texts(follower.head) == ["one"]
    assert follower.problems == []
    two = follower.append(st.user("two"))
    assert [entry.id for entry in st.open(file).tree] == [entry.id for entry in follower.tree]
    assert follower.tree[two.id].parent == follower.tree.get_entry_at(0).id


def test_an_append_after_a_rolled_back_entry_is_refused_once(tmp_path: Path, shared) -> None:
    follower = st.open(tmp_path / "s.jsonl")
    shared(follower.refresh)

    with pytest.raises(st.BranchMoved):
        follower.append(st.user("an answer to it"))
    follower.append(st.user("two"))
    assert read_texts(follower.head) == read_texts(st.open(follower.location).head) == ["one", "two"]


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_session_opened_before_a_rollback_is_loaded_without_the_entry(
    tmp_path: Path, shared, is_loaded: bool
) -> None:
    opened: list[Session] = []

    def look() -> None:
        session = st.open(tmp_path / "s.jsonl")
        if is_loaded:
            assert len(session.tree) == 2
        opened.append(session)

    shared(look)
    [session] = opened
    session.refresh()
    assert read_texts(session.head) == ["one"]
    session.append(st.user("two"))
    assert read_texts(session.head) == ["one", "two"]


def test_a_write_interrupted_after_its_last_byte_is_not_rolled_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "s.jsonl"
    writer = st.create(file=file)
    writer.append(st.user("one"))
    follower = st.open(file)
    write = os.write

    def interrupt_after(fd: int, data: bytes) -> int:
        write(fd, data)
        follower.refresh()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(jsonl, "write", interrupt_after)
        with pytest.raises(KeyboardInterrupt):
            writer.append(st.user("two"))

    writer.append(st.user("three"))
    follower.refresh()
    assert read_texts(writer.head) == read_texts(follower.head) == ["one", "two", "three"]


def test_lines_that_version_0_1_rolls_back_by_truncating_are_dropped(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    with st.create(file=file) as session:
        session.append(st.user("one"))
    follower, size = st.open(file), file.stat().st_size
    assert len(follower.tree) == 1
    with st.open(file) as writer:
        writer.append(st.user("two"))
    assert len(follower.refresh()) == 1

    os.truncate(file, size)

    assert list(follower.refresh()) == []
    follower.append(st.user("three"))
    assert read_texts(follower.head) == ["one", "three"]


def test_streamed_lines_are_those_of_the_file_and_load_nothing(tmp_path: Path) -> None:
    file = tmp_path / "session.jsonl"
    file.write_bytes(build_content("comb", 20) + b'{"type":"message","id":"torn')
    session = st.open(file)

    streamed = list(session.stream_lines())

    assert session._state is None
    assert streamed == session.read_lines() == build_lines("comb", 20)


def test_a_last_line_without_its_newline_is_streamed_and_a_deleted_file_too(tmp_path: Path) -> None:
    file = tmp_path / "session.jsonl"
    file.write_bytes(build_content("comb", 20).removesuffix(b"\n"))
    session = st.open(file)

    assert list(session.stream_lines()) == session.read_lines() == build_lines("comb", 20)

    file.unlink()

    assert list(session.stream_lines()) == build_lines("comb", 20)
