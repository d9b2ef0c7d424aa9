"""Comparing branches and diffing two places."""

from typing import Any

import pytest
from hypothesis import given
from msgspec.structs import replace

import sessiontree as st
from sessiontree import branch_comparison
from sessiontree.branch_comparison import MAX_NAMES, METRICS, PathStats, comparison_to_wire, compute_stats, diff_to_wire
from sessiontree.export import export
from sessiontree.export.snapshot import read_snapshot
from sessiontree.session import Session
from sessiontree.store.memory import MemoryStore
from tests.shapes import build_tree
from tests.strategies import damaged_sessions, sessions


@pytest.fixture
def session() -> st.Session:
    session = st.memory()
    session.extend([st.user("start"), st.assistant("shared", usage={"input": 1000, "cost": 9})])
    return session


def branch(session: st.Session, name: str, *bodies: st.Body) -> None:
    session.create_branch(name, at="main", current=False)
    session.extend(bodies, branch=name)


def build_answer(cost: float, tokens: int = 10, **given) -> st.Message:
    return st.assistant("answer", usage={"input": tokens, "cost": cost}, **given)


def test_only_entries_after_the_common_ancestor_count(session: st.Session) -> None:
    branch(session, "a", build_answer(0.05))
    branch(session, "b", build_answer(0.03))

    result = st.compare(session, ["a", "b"])

    assert result.common_ancestor == session.branch("main").leaf
    assert [(stats.entries, stats.messages, stats.cost, stats.tokens) for stats in result.branches] == [
        (2, 1, 0.05, 10),
        (2, 1, 0.03, 10),
    ]


def test_the_lowest_cost_wins(session: st.Session) -> None:
    branch(session, "a", build_answer(0.05))
    branch(session, "b", build_answer(0.03))

    result = st.compare(session, ["a", "b"])

    assert (result.winner, result.reason) == ("b", "lowest cost")


@pytest.mark.parametrize(("metric", "winner"), [("cost", "a"), ("tokens", "b"), ("entries", "a")])
def test_another_metric_can_decide(session: st.Session, metric: str, winner: str) -> None:
    branch(session, "a", build_answer(0.01, tokens=500))
    branch(session, "b", build_answer(0.02, tokens=10), st.user("more"))

    assert st.compare(session, ["a", "b"], metric).winner == winner


def test_a_tie_has_no_winner_and_a_reason(session: st.Session) -> None:
    branch(session, "a", build_answer(0.05))
    branch(session, "b", build_answer(0.05))
    branch(session, "c", build_answer(0.06))

    result = st.compare(session, ["a", "b", "c"])

    assert result.winner is None
    assert result.reason == "a tie: a, b have the same cost"


def test_a_branch_without_recorded_cost_does_not_win_by_it(session: st.Session) -> None:
    branch(session, "a", build_answer(0.05))
    branch(session, "b", st.assistant("no usage known"))

    result = st.compare(session, ["a", "b"])

    assert result.winner is None
    assert "b has no recorded cost" in result.reason
    assert [stats.measured for stats in result.branches] == [("cost", "tokens"), ()]


def test_a_branch_with_only_tokens_does_not_win_by_cost_and_the_reverse(session: st.Session) -> None:
    branch(session, "a", st.assistant("x", usage={"input": 1500}))
    branch(session, "b", st.assistant("x", usage={"cost": 0.03}))

    assert "a has no recorded cost" in st.compare(session, ["a", "b"]).reason
    assert "b has no recorded tokens" in st.compare(session, ["a", "b"], "tokens").reason


def test_the_time_of_a_branch_is_from_its_first_entry_to_its_last() -> None:
    clock = iter(range(1_700_000_000_000, 1_800_000_000_000, 1500))
    session = Session.create(MemoryStore(), id="s", now=lambda: next(clock))
    session.append(st.user("start"))
    branch(session, "a", st.user("x"))
    branch(session, "b", st.user("y"))
    session.append(st.user("z"), branch="b")

    result = st.compare(session, ["a", "b"], "time")

    assert all(stats.seconds >= 1.5 for stats in result.branches)
    assert result.branches[1].seconds > result.branches[0].seconds
    change = next(item for item in result.differences if item.metric == "time")
    assert change.diff == result.branches[1].seconds - result.branches[0].seconds
    wire = comparison_to_wire(result)
    assert [branch["durationMs"] for branch in wire["branches"]] == [
        round(stats.seconds * 1000) for stats in result.branches
    ]
    assert [item["diff"] for item in wire["differences"] if item["metric"] == "time"] == [round(change.diff, 3)]
    assert result.winner == "a"


def test_branches_without_separate_entries_have_no_winner(session: st.Session) -> None:
    branch(session, "a", build_answer(0.05))

    result = st.compare(session, ["main", "a"], "entries")

    assert (result.winner, result.reason) == (None, "not enough data: main has no entries after the common ancestor")


def test_differences_are_given_for_every_pair_and_metric(session: st.Session) -> None:
    branch(session, "a", build_answer(0.05))
    branch(session, "b", build_answer(0.03))
    branch(session, "c", build_answer(0.06))

    differences = st.compare(session, ["a", "b", "c"]).differences

    assert [(d.a, d.b) for d in differences[::4]] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert [d.metric for d in differences[:4]] == list(METRICS)
    assert (differences[0].diff, differences[0].percent) == (-0.02, -40.0)


def test_unrecorded_metrics_have_no_difference(session: st.Session) -> None:
    branch(session, "a", st.user("no cost"))
    branch(session, "b", build_answer(0.03))

    assert [difference.metric for difference in st.compare(session, ["a", "b"]).differences] == ["entries", "time"]


def test_a_percentage_of_zero_is_none(session: st.Session) -> None:
    branch(session, "b", build_answer(0.03))

    difference = st.compare(session, ["main", "b"]).differences[0]

    assert (difference.metric, difference.diff, difference.percent) == ("entries", 2, None)


def test_tools_files_errors_models_and_other_spending_count(session: st.Session) -> None:
    calls = [
        st.tool_call("1", "edit", {"path": "a.py"}),
        st.tool_call("2", "read", {"file_path": "b.py"}),
        st.tool_call("3", "edit", {"path": "a.py"}),
        {"type": "toolCall", "id": "4", "name": "odd", "arguments": "none"},
    ]
    branch(
        session,
        "a",
        st.assistant(calls, provider="p", model="m", usage={"input": 5, "cost": 0.01}, stop_reason="toolUse"),
        st.tool_result("1", "edit", "no", error=True),
        st.assistant("", stop_reason="aborted"),
        st.Compaction(summary="s", usage={"totalTokens": 7, "cost": {"total": 0.02}}),
        st.BranchSummary(summary="s", usage={"input": 1, "output": 2}),
        st.Opaque(type="service", fields={"usage": {"input": 99}}),
    )
    branch(session, "b", build_answer(1))

    stats = st.compare(session, ["a", "b"]).branches[0]

    assert (stats.tool_calls, stats.errors, stats.files) == (4, 2, ("a.py", "b.py"))
    assert stats.models == ("p/m",)
    assert (stats.tokens, stats.cost) == (15, 0.03)
    assert stats.tools == ("edit", "read", "edit", "odd")
    assert stats.last_activity == session.tree[session.branch("a").leaf or ""].timestamp
    assert stats.seconds >= 0


def test_side_calls_of_peers_count() -> None:
    session = st.memory()
    session.append(st.user("x"))
    branch(session, "a", st.user("y"))
    [place] = [session.branch("a").leaf]
    entry = session.append(
        st.Opaque(type="model_usage", fields={"usage": {"input": 5, "cost": {"total": 0.5}}}), parent=place, branch="a"
    )
    session.create_branch("c", at=entry)

    stats = st.compare(session, ["main", "c"]).branches[1]

    assert (stats.tokens, stats.cost) == (5, 0.5)


@pytest.mark.parametrize(("branches", "metric"), [(["main"], "cost"), ([], "cost"), (["main", "a"], "beauty")])
def test_an_invalid_comparison_is_refused(session: st.Session, branches, metric) -> None:
    branch(session, "a", build_answer(1))

    with pytest.raises(st.InvalidOperation):
        st.compare(session, branches, metric)


def test_the_wire_form_has_the_names_of_the_field(session: st.Session) -> None:
    branch(session, "a", build_answer(0.05))
    branch(session, "b", build_answer(0.03))

    wire = comparison_to_wire(st.compare(session, ["a", "b"]))

    assert wire["winner"] == "b"
    assert {"name", "entryCount", "totalCost", "totalTokens"} <= set(wire["branches"][0])
    assert wire["differences"][0] == {
        "metric": "cost",
        "branchA": "a",
        "branchB": "b",
        "diff": -0.02,
        "percentDiff": -40.0,
    }


def test_a_diff_shows_both_sides_after_the_common_ancestor(session: st.Session) -> None:
    branch(session, "a", st.assistant([st.tool_call("1", "edit", {"path": "a.py"})]), st.tool_result("1", "edit", "ok"))
    branch(session, "b", build_answer(0.03))

    result = st.diff(session, "a", "b")

    assert result.common_ancestor == session.branch("main").leaf
    assert result.first == tuple(session.branch(name).path()[3 - 1].id for name in ("a", "b"))
    assert [len(side) for side in result.entries] == [3, 2]
    assert result.stats[0].tools == ("edit",)
    assert diff_to_wire(result)["b"]["totalCost"] == 0.03


def test_a_place_differs_from_its_ancestor_on_one_side_only(session: st.Session) -> None:
    leaf = session.tree[session.head.leaf or ""]

    result = st.diff(session, None, leaf)

    assert (result.common_ancestor, result.first[0], len(result.entries[1])) == (None, None, 2)
    assert [stats.name for stats in result.stats] == ["root", leaf.id]


@given(sessions() | damaged_sessions())
def test_totals_along_the_tree_equal_those_of_each_path(raw: bytes) -> None:
    tree = read_snapshot(raw.split(b"\n")).tree
    paths = PathStats(tree)

    for entry in reversed(list(tree)):
        alone = compute_stats("a", entry.id, tree.path(entry.id))
        assert paths.compute("a", entry.id) == replace(alone, tools=())
    assert paths.compute("a", "no such entry") == compute_stats("a", "no such entry", [])


def test_only_the_first_models_and_files_of_a_path_are_listed() -> None:
    tree = build_tree("models", MAX_NAMES + 5)
    stats = PathStats(tree).compute("a", f"a{MAX_NAMES + 4}")

    assert stats.models == tuple(f"p/model-{number}" for number in range(MAX_NAMES))
    assert PathStats(build_tree("calls", MAX_NAMES + 5)).compute("a", "a").files == tuple(
        f"file-{number}.txt" for number in range(MAX_NAMES)
    )


def test_shared_entries_of_branches_are_visited_once(session: st.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[st.Body] = []
    usages = branch_comparison.list_usages

    def counting(body: st.Body) -> list[Any]:
        looked_at.append(body)
        return usages(body)

    monkeypatch.setattr(branch_comparison, "list_usages", counting)
    for number in range(30):
        branch(session, f"b{number}", build_answer(0.01))

    export(session.read_lines(), "json")

    assert len(looked_at) == len(session.tree)
