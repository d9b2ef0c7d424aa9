"""Operations are methods of a branch, with hooks and model optional."""

import pytest

import sessiontree as st
from sessiontree.model.scripted import ScriptedModel


@pytest.fixture
def session() -> st.Session:
    session = st.memory()
    session.head.extend([st.user("Cache or dict?"), st.assistant("Both work.")])
    session.label("HEAD", "two-ways")
    for name in ("cache", "dict"):
        session.create_branch(name, at="main").extend([st.user(f"Try a {name}."), st.assistant(f"The {name} is fast.")])
    return session


async def test_a_branch_navigates_with_its_own_summary(session: st.Session) -> None:
    outcome = await session.branch("dict").navigate("two-ways", summarize="The dict was fast.")

    assert outcome.summary_entry is not None
    assert outcome.summary_entry.text.endswith("The dict was fast.")
    assert session.branch("dict").leaf == outcome.new_leaf


async def test_a_model_writes_the_summary(session: st.Session) -> None:
    model = ScriptedModel(["The dict was fast, says the model."])

    outcome = await session.branch("dict").navigate("two-ways", summarize=True, model=model)

    assert outcome.summary_entry is not None
    assert "says the model" in outcome.summary_entry.text


async def test_a_branch_moves_without_a_summary_by_default(session: st.Session) -> None:
    outcome = await session.branch("dict").navigate("two-ways")

    assert outcome.summary_entry is None
    assert session.branch("dict").leaf == session.resolve_place("two-ways")


async def test_a_branch_merges_another_by_name_or_handle(session: st.Session) -> None:
    main, cache = session.branch("main"), session.branch("cache")

    first = await main.merge("dict", "The dict won.")
    second = await main.merge(cache, "The cache lost.")

    assert first.summary_entry is not None
    assert second.summary_entry is not None
    assert main.leaf == second.new_leaf


async def test_a_branch_is_compacted_rebased_and_takes_copies(session: st.Session) -> None:
    dict_branch, cache = session.branch("dict"), session.branch("cache")
    session.branch("main").append(st.user("Go on."))

    compacted = await dict_branch.compact("All about dicts.")
    rebased = await cache.rebase("main")
    copied = await session.branch("main").cherry_pick(cache)

    assert compacted.entry is not None
    assert compacted.entry.text == "All about dicts."
    assert rebased.new_leaf == cache.leaf
    assert len(copied.entries) == 1


async def test_a_handler_can_cancel_a_method(session: st.Session) -> None:
    hooks = st.Hooks()
    hooks.on("before_navigate", lambda event, ctx: {"cancel": True})
    before = session.branch("dict").leaf

    outcome = await session.branch("dict").navigate("two-ways", hooks=hooks)

    assert outcome.cancelled
    assert session.branch("dict").leaf == before


async def test_a_summary_needs_a_model_or_a_text() -> None:
    session = st.memory()
    session.head.extend([st.user("one"), st.user("two")])

    with pytest.raises(st.InvalidOperation, match="a summary needs a model; pass model="):
        await session.head.navigate("root", summarize=True)
    with pytest.raises(st.InvalidOperation, match="a place is a name, an entry, a branch or None, not int"):
        await session.head.merge(3)  # type: ignore[arg-type]


def test_a_branch_is_a_place(session: st.Session) -> None:
    dict_branch = session.branch("dict")

    assert session.resolve_place(dict_branch) == dict_branch.leaf
    assert session.create_branch("more", at=dict_branch).leaf is not None
    assert session.switch(dict_branch) == dict_branch
    assert st.compare(session, [dict_branch, "cache"]).winner is None
    assert st.diff(session, dict_branch, "cache") is not None
    with pytest.raises(st.InvalidOperation, match="belongs to another session"):
        st.memory().resolve_place(dict_branch)
    with pytest.raises(st.InvalidOperation, match="a place is a name, an entry, a branch or None, not int"):
        session.resolve_place(3)  # type: ignore[arg-type]
    with pytest.raises(st.InvalidOperation, match="compare needs a list of branches"):
        st.compare(session, "dict")


def test_a_label_is_not_a_branch(session: st.Session) -> None:
    with pytest.raises(st.InvalidOperation, match="'two-ways' is a label, not a branch"):
        session.switch("two-ways")


def test_the_repr_of_a_session_shows_its_location(session: st.Session, tmp_path) -> None:
    assert repr(session) == f"<Session {session.id} in memory>"
    made = st.create(name="auth", file=tmp_path / "a.jsonl")
    assert repr(made.head) == f"<Branch main of {made.id}>"
    assert repr(made) == f"<Session {made.id} 'auth' at {tmp_path / 'a.jsonl'}>"


async def test_a_branch_is_promoted_by_name_over_the_named_ones(session: st.Session) -> None:
    main = session.switch("main")
    heads = {name: session.branch(name).leaf for name in ("cache", "dict")}

    outcome = await st.promote(session, "dict", "A cache grows.", over=["cache"])

    assert outcome.summary_entry is not None
    assert outcome.summary_entry.parent == heads["dict"]
    assert outcome.summary_entry.text == "A cache grows."
    assert main.leaf == outcome.new_leaf
    assert [info.name for info in session.branches if info.archived] == ["cache", "dict"]


async def test_a_winner_without_rivals_needs_no_summary_and_no_model() -> None:
    session = st.memory()
    session.append(st.user("q"))
    session.create_branch("only", current=False).append(st.assistant("a"))

    outcome = await session.head.promote("only")

    assert (outcome.summary_entry, session.head.path()[-1].text) == (None, "a")


async def test_promote_needs_branches(session: st.Session) -> None:
    with pytest.raises(st.InvalidOperation, match="over needs a list of branches, not 'cache'"):
        await session.head.promote("dict", "x", over="cache")
    with pytest.raises(st.NotFound, match="branch 'gone' not found; branches: main, cache, dict"):
        await session.head.promote("gone", "x")


async def test_a_compaction_is_undone_as_a_method_and_as_a_function() -> None:
    session = st.memory()
    session.head.extend([st.user("one"), st.assistant("1"), st.user("two"), st.assistant("2")])
    leaf = session.head.leaf
    for uncompact in (st.uncompact, st.Branch.uncompact):
        await session.head.compact("One and two.")
        assert session.head.leaf != leaf
        outcome = await uncompact(session.head)
        assert (outcome.new_leaf, session.head.leaf) == (leaf, leaf)


def test_a_session_exports_itself() -> None:
    session = st.memory(name="auth")
    session.append(st.user("My key is sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789."))
    redactor = st.Redactor()

    assert session.export("md").content.startswith(b"# auth")
    redacted = session.export("jsonl", redactor=redactor)
    assert b"abcdefghijklmnopqrstuvwxyz" not in redacted.content
    assert redacted.report == redactor.report
    assert session.export("jsonl").content.splitlines() == session.read_lines()
    with pytest.raises(st.InvalidOperation, match="no format 'docx'"):
        session.export("docx")
