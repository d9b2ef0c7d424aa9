"""Commands that navigate, label, merge and compact."""

from __future__ import annotations

import pytest

from sessiontree.core.entries import BranchSummary, Compaction
from sessiontree.core.messages import user
from sessiontree.errors import Conflict, InvalidOperation, NotFound
from sessiontree.hooks.events import BeforeNavigate, Navigated
from sessiontree.session import Session
from tests.slash_commands.conftest import FakeHost, MakeController, ScriptedUser, record_events, run, talk


def list_messages(session: Session) -> list[str]:
    return [str(message.get("content")) for message in session.head.context().to_llm()]


async def test_without_a_user_the_tree_is_printed(make_controller: MakeController, session: Session) -> None:
    talk(session, "hello", "hi")

    drawn = await run(make_controller(), "/tree")

    assert "user: hello" in drawn
    assert "assistant: hi (main) ← active" in drawn


async def test_the_tree_command_navigates_to_the_chosen_entry(
    make_controller: MakeController, session: Session
) -> None:
    first, answer, *_ = talk(session, "one", "1", "two", "2")
    screen = FakeHost(choice=first)
    at = make_controller(ui=ScriptedUser("No summary"), host=screen)

    await run(at, "/tree")

    assert session.head.leaf is None
    assert screen.editor == "one"
    assert screen.refreshes

    await run(at, f"/tree {answer}")

    assert session.head.leaf == answer


async def test_an_abandoned_branch_can_be_summarized_with_a_focus(
    make_controller: MakeController, session: Session
) -> None:
    _, answer, *_ = talk(session, "one", "1", "two", "2")
    at = make_controller("We tried two.", ui=ScriptedUser("focus", "the numbers"))

    await run(at, f"/tree {answer}")

    summary = session.head.path()[-1].body
    assert isinstance(summary, BranchSummary)
    assert "We tried two." in summary.summary
    assert at.model.requests[0].messages[0]["content"].count("the numbers") == 1


async def test_the_user_can_write_the_summary_of_an_abandoned_branch(
    make_controller: MakeController, session: Session
) -> None:
    _, answer, *_ = talk(session, "one", "1", "two", "2")
    at = make_controller(ui=ScriptedUser("myself", " Two was no good.\n"))

    assert "with a summary" in await run(at, f"/tree {answer}")

    summary = session.head.path()[-1].body
    assert isinstance(summary, BranchSummary)
    assert summary.summary == "Two was no good."
    assert at.model.requests == []


@pytest.mark.parametrize(("way", "words"), [("focus", None), ("myself", None), ("myself", " \n")])
async def test_an_empty_summary_cancels_the_move(
    make_controller: MakeController, session: Session, way: str, words: str | None
) -> None:
    *_, last = talk(session, "one", "1")

    await run(make_controller(ui=ScriptedUser(way, words)), "/tree root")

    assert session.head.leaf == last


async def test_cancelling_the_summary_dialog_cancels_the_move(
    make_controller: MakeController, session: Session
) -> None:
    *_, last = talk(session, "one", "1")

    await run(make_controller(ui=ScriptedUser(None)), "/tree root")

    assert session.head.leaf == last


async def test_pop_goes_before_the_last_message_of_the_user_with_a_summary(
    make_controller: MakeController, session: Session
) -> None:
    *_, before, _, _ = talk(session, "one", "1", "two", "2")
    at = make_controller("Two was tried.")

    assert "with a summary" in await run(at, "/pop")

    entry = session.head.path()[-1]
    assert isinstance(entry.body, BranchSummary)
    assert entry.parent == before
    assert at.host.editor == "two"


async def test_pop_without_a_model_is_refused_with_a_reason(make_controller: MakeController, session: Session) -> None:
    *_, last = talk(session, "one", "1")

    with pytest.raises(InvalidOperation, match="needs a model"):
        await run(make_controller(model=None), "/pop")

    assert session.head.leaf == last


async def test_a_move_is_undone(make_controller: MakeController, session: Session) -> None:
    _, answer, _, last = talk(session, "one", "1", "two", "2")
    at = make_controller()
    await run(at, f"/switch {answer}")
    assert session.head.leaf == answer

    done = await run(at, "/undo")

    assert session.head.leaf == last
    assert at.agent.branch.leaf == last
    assert done.startswith("Undid the move of main; main is at ")


async def test_retry_adds_a_second_answer_to_the_same_message(
    make_controller: MakeController, session: Session
) -> None:
    at = make_controller("First.", "Second.")
    await at.submit("hello")
    prompt = session.head.path()[-2]

    done = await at.submit("/retry")

    assert done.outcome is not None
    assert done.outcome.text == "Second."
    assert [child.id for child in session.tree.children(prompt.id)][-1] == session.head.leaf
    assert at.model.requests[0].messages == at.model.requests[1].messages


async def test_clear_empties_the_context_and_deletes_nothing(make_controller: MakeController, session: Session) -> None:
    talk(session, "one", "1")
    at = make_controller("Fresh.")

    await run(at, "/clear")
    await at.submit("two")

    assert [message["content"] for message in at.model.requests[0].messages] == ["two"]
    assert "user: one" in await run(at, "/tree")


async def test_the_agent_continues_on_a_new_branch(make_controller: MakeController, session: Session) -> None:
    _, answer = talk(session, "one", "1")
    at = make_controller("On the side.")
    events = record_events(at)

    assert "side" in await run(at, "/branch-here side")
    await at.submit("two")

    assert session.heads.current == "side"
    assert session.branch("main").leaf == answer
    assert list_messages(session)[-1].count("On the side.")
    assert any(isinstance(event, Navigated) for event in events)


async def test_a_branch_at_a_user_message_starts_before_it(make_controller: MakeController, session: Session) -> None:
    first, *_ = talk(session, "one", "1")
    at = make_controller()

    await run(at, f"/branch-here again {first}")

    assert [entry.type for entry in session.head.path()] == ["branch_point"]
    assert at.host.editor == "one"


async def test_branches_without_a_name_are_numbered(make_controller: MakeController, session: Session) -> None:
    at = make_controller()

    await run(at, "/branch-here")
    await run(at, "/branch-here")

    assert list(session.heads.heads) == ["main", "branch-2", "branch-3"]
    listing = await run(at, "/branches")
    assert [line.split()[0] for line in listing.splitlines()[1:]] == ["main", "branch-2", "*"]


async def test_switch_takes_a_branch_or_an_entry_or_asks(make_controller: MakeController, session: Session) -> None:
    _, answer = talk(session, "one", "1")
    session.create_branch("side")
    at = make_controller(ui=ScriptedUser("side"))

    await run(at, "/switch main")
    assert session.head.leaf == answer
    await run(at, "/switch")
    assert session.heads.current == "side"
    await run(at, "/switch main~1")
    assert session.heads.current == "side"
    assert session.head.leaf == session.tree.parent(answer)
    with pytest.raises(NotFound):
        await run(at, "/switch nowhere")


async def test_a_handler_that_cancels_a_move_changes_nothing(make_controller: MakeController, session: Session) -> None:
    *_, last = talk(session, "one", "1")
    at = make_controller("unused")
    at.hooks.on(BeforeNavigate, lambda event, context: {"cancel": True})

    for line in ("/pop", "/clear", "/retry", "/tree root", "/switch root"):
        assert "Cancelled" in await run(at, line)
        assert session.head.leaf == last


async def test_a_handler_can_veto_a_switch_an_undo_and_a_new_branch(
    make_controller: MakeController, session: Session
) -> None:
    _, answer, *_ = talk(session, "one", "1", "two", "2")
    session.create_branch("side", at=answer)
    at = make_controller()
    asked: list[tuple[str | None, str | None]] = []

    def guard(event: BeforeNavigate, context: object) -> dict[str, bool]:
        asked.append((event.preparation.old_leaf, event.preparation.target))
        return {"cancel": True}

    remove = at.hooks.on(BeforeNavigate, guard)
    here, lines = session.head.leaf, len(session.read_lines())
    for line in ("/switch main", "/undo", "/branch-here", "/branch-here other root"):
        assert await run(at, line) == "Cancelled by guard. Nothing changed."
    assert (at.branch.name, at.branch.leaf, len(session.read_lines())) == ("side", here, lines)
    main = session.branch("main").leaf
    assert asked == [(here, main), (here, main), (here, here), (here, None)]

    remove()
    events = record_events(at)
    assert "On branch main" in await run(at, "/switch main")
    assert "Undid the switch from side to main" in await run(at, "/undo")
    assert "On new branch other" in await run(at, "/branch-here other")
    moves = [(event.old_leaf, event.new_leaf) for event in events if isinstance(event, Navigated)]
    assert moves == [(here, main), (main, here), (here, session.branch("other").leaf)]


async def test_a_handler_can_label_the_place_of_a_switch_and_of_a_new_branch(
    make_controller: MakeController, session: Session
) -> None:
    _, last = talk(session, "one", "1")
    side = session.create_branch("side").leaf
    at = make_controller()
    labels = iter(["visited", "start"])
    at.hooks.on(BeforeNavigate, lambda event, context: {"label": next(labels)})

    await run(at, "/switch main")
    await run(at, f"/branch-here other {side}")

    assert dict(session.tree.labels) == {last: "visited", side: "start"}


async def test_a_move_since_the_question_is_not_undone(make_controller: MakeController, session: Session) -> None:
    first, answer, *_ = talk(session, "one", "1", "two", "2")
    session.switch(session.tree[answer])
    at = make_controller()

    def move_meanwhile(event: object, context: object) -> None:
        session.switch(session.tree[first])

    at.hooks.on(BeforeNavigate, move_meanwhile)
    with pytest.raises(Conflict, match="another writer moved the head; undo again"):
        await run(at, "/undo")

    assert session.head.leaf == first


async def test_a_label_is_not_switched_to(make_controller: MakeController, session: Session) -> None:
    first, last = talk(session, "one", "1")
    session.label(session.tree[first], "start")

    with pytest.raises(InvalidOperation, match="'start' is a label, not a branch; use /tree to go to a label"):
        await run(make_controller(), "/switch start")

    assert session.head.leaf == last


@pytest.mark.parametrize("words", ["Two failed.", "--summarize"])
async def test_a_new_branch_starts_with_a_summary_of_what_it_lacks(
    make_controller: MakeController, session: Session, words: str
) -> None:
    _, answer, *_, last = talk(session, "one", "1", "two", "2")
    at = make_controller("Two failed.")

    assert "with a summary" in await run(at, f"/branch-here other {answer} {words}")

    path = session.branch("other").path()
    assert [entry.type for entry in path[-2:]] == ["branch_point", "branch_summary"]
    assert path[-2].parent == answer
    summary = path[-1].body
    assert isinstance(summary, BranchSummary)
    assert "Two failed." in summary.summary
    assert summary.abandoned_leaf == last
    assert session.branch("main").leaf == last
    assert session.head == at.branch == session.branch("other")
    assert len(at.model.requests) == (words == "--summarize")


async def test_a_branch_that_lacks_nothing_takes_no_summary(make_controller: MakeController, session: Session) -> None:
    talk(session, "one", "1")

    with pytest.raises(InvalidOperation, match="nothing to summarize: the new branch has every entry of this one"):
        await run(make_controller(), "/branch-here other HEAD All of it.")

    assert list(session.heads.heads) == ["main"]


async def test_leaves_without_a_branch_are_listed_with_the_name_they_would_get(
    make_controller: MakeController, session: Session
) -> None:
    first, answer, _, last = talk(session, "one", "1", "two", "2")
    at = make_controller()
    await run(at, f"/tree {answer}")
    talk(session, "three", "3")
    await run(at, f"/tree {first}")

    listing = (await run(at, "/branches")).splitlines()
    assert [line.split()[:3] for line in listing[2:4]] == [
        ["(branch-2)", last[:8], "5"],
        ["(branch-3)", session.unnamed_leaves[1].leaf[:8], "5"],
    ]
    assert "assistant: 3" in listing[3]

    await run(at, f'/branch-here "" {session.unnamed_leaves[1].leaf}')
    assert at.branch.name == "branch-3"
    assert [found.suggested_name for found in session.unnamed_leaves] == ["branch-2"]


async def test_moves_are_refused_while_the_agent_runs(make_controller: MakeController, session: Session) -> None:
    talk(session, "one", "1")
    at = make_controller()
    refused: list[str] = []

    async def answer(request: object) -> str:
        for line in ("/pop", "/clear", "/undo", "/switch main", "/branch-here", "/fork", "/new", "/merge main"):
            with pytest.raises(InvalidOperation, match="running"):
                await run(at, line)
            refused.append(line)
        return "Done."

    at.model.add(answer)
    await at.submit("two")

    assert len(refused) == 8


async def test_labels_are_set_listed_and_cleared(make_controller: MakeController, session: Session) -> None:
    first, last = talk(session, "one", "1")
    at = make_controller()

    await run(at, "/label here")
    await run(at, f'/label "the start" {first}')
    assert dict(session.tree.labels) == {last: "here", first: "the start"}
    assert "[the start]" in await run(at, "/label")

    await run(at, "/label --clear")
    assert dict(session.tree.labels) == {first: "the start"}

    assert "Removed the label" in await run(at, '/label "" HEAD~1')
    assert dict(session.tree.labels) == {}


async def test_a_merge_adds_a_summary_of_the_other_branch(make_controller: MakeController, session: Session) -> None:
    talk(session, "one", "1")
    session.create_branch("side")
    talk(session, "try it", "it works")
    session.switch("main")
    at = make_controller("It was tried, and works.", "Good.")

    await run(at, "/merge side what came of it")
    await at.submit("go on")

    assert "It was tried, and works." in str(at.model.requests[1].messages)
    assert "what came of it" in str(at.model.requests[0].messages)


async def test_an_entry_without_a_branch_can_be_merged_and_compared(
    make_controller: MakeController, session: Session
) -> None:
    _, answer, *_, left = talk(session, "one", "1", "two", "2")
    at = make_controller("Two was tried.")
    await run(at, f"/tree {answer}")
    talk(session, "three")

    compared = await run(at, f"/compare {left}")
    assert [line.split()[:2] for line in compared.splitlines()[1:3]] == [["main", "1"], [left, "2"]]
    assert await run(at, f"/merge {left[:8]}") == f"Merged {left[:8]} into main"

    assert "Two was tried." in list_messages(session)[-1]
    with pytest.raises(InvalidOperation, match=f"place '{left}' has no entries to merge into 'main'"):
        await run(at, f"/merge {left}")


async def test_messages_are_cherry_picked_and_a_branch_is_rebased(
    make_controller: MakeController, session: Session
) -> None:
    talk(session, "one", "1")
    session.create_branch("side")
    talk(session, "try it", "it works")
    session.switch("main")
    talk(session, "two", "2")
    at = make_controller()

    assert (await run(at, "/cherry-pick side~1 side")).startswith("Copied 2 entries;")
    assert session.head.path()[-2].body.message["content"] == "try it"

    await run(at, "/switch side")
    before = session.head.leaf
    await run(at, "/rebase main")
    assert session.head.leaf != before
    assert "two" in str(list_messages(session))


async def test_one_copied_message_uses_the_singular(make_controller: MakeController, session: Session) -> None:
    talk(session, "one", "1")
    session.create_branch("side")
    session.append(user("try it"))
    session.switch("main")

    assert (await run(make_controller(), "/cherry-pick side")).startswith("Copied 1 entry;")


async def test_compact_accepts_a_focus_and_uncompact_undoes_it(
    make_controller: MakeController, session: Session
) -> None:
    talk(session, *["word " * 400] * 12)
    last = session.head.leaf
    at = make_controller("A lot of words.")

    assert "Compacted" in await run(at, "/compact how many")
    assert isinstance(session.head.path()[-1].body, Compaction)
    assert "how many" in str(at.model.requests[0].messages)

    await run(at, "/uncompact")
    assert session.head.leaf == last
    with pytest.raises(InvalidOperation, match="no compaction"):
        await run(at, "/uncompact")


async def test_an_empty_conversation_cannot_be_compacted_or_answered(make_controller: MakeController) -> None:
    at = make_controller()

    assert await run(at, "/compact") == "Nothing to compact."
    with pytest.raises(InvalidOperation, match="no message to retry"):
        await run(at, "/retry")
    with pytest.raises(InvalidOperation, match="nothing to undo"):
        await run(at, "/undo")
