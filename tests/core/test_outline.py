import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiontree.core.entries import (
    HEAD_RECORD,
    AgentAction,
    BranchPoint,
    BranchSummary,
    Compaction,
    ContextEdit,
    Custom,
    CustomMessage,
    Label,
    ModeChange,
    ModelChange,
    SessionInfo,
    ThinkingLevelChange,
)
from sessiontree.core.messages import ToolCall, assistant, tool_call, tool_result, user
from sessiontree.core.outline import FILTERS, calls_of_results, one_line, outline, plain_text, row_text, short_count
from sessiontree.core.tree import Tree
from tests.builders import entry, grow, ids, say
from tests.strategies import damaged_entry_lists, places


def drawing(tree, leaf=None, filter="default"):
    return [row.prefix + row.entry.id for row in outline(tree, leaf, filter)]


def shown(tree, filter, leaf=None):
    return ids(row.entry for row in outline(tree, leaf, filter))


# Drawing


def test_a_chain_stays_flat():
    assert drawing(grow("a>b>c")) == ["a", "b", "c"]


def test_children_of_a_branch_point_go_in_and_their_chains_once_more():
    assert drawing(grow("a>b>c>d a>e")) == ["a", "├─ b", "│     c", "│     d", "└─ e"]


def test_a_branch_below_a_branch_keeps_the_rails_of_its_elders():
    assert drawing(grow("a>b>c a>d b>e d>f d>g>h>i")) == [
        "a",
        "├─ b",
        "│  ├─ c",
        "│  └─ e",
        "└─ d",
        "   ├─ f",
        "   └─ g",
        "         h",
        "         i",
    ]


def test_several_roots_stand_at_the_left():
    assert drawing(grow("a>b>c d>e")) == ["a", "b", "c", "d", "e"]


def test_the_active_branch_comes_first_and_is_marked():
    rows = outline(grow("a>b a>c"), "c")

    assert [(row.entry.id, row.on_path, row.active) for row in rows] == [
        ("a", True, False),
        ("c", True, True),
        ("b", False, False),
    ]


def test_before_everything_nothing_is_active():
    assert not any(row.active or row.on_path for row in outline(grow("a>b"), None))


def test_a_hidden_leaf_makes_the_nearest_row_above_it_active():
    [a, b] = outline(grow("a>b>c", c=ModelChange(model="m")), "c")

    assert (a.active, b.active) == (False, True)


def test_children_of_a_hidden_entry_hang_from_the_nearest_row_above():
    tree = grow("a>m>b m>c", m=ModelChange(model="m"))

    assert drawing(tree) == ["a", "├─ b", "└─ c"]
    assert drawing(tree, filter="all") == ["a", "m", "├─ b", "└─ c"]


# Filters

CALL = assistant([tool_call("c1", "read", {"path": "x"})], stop_reason="toolUse")
FILTERED = grow(
    "a>b>c>d>e>f",
    b=CALL,
    c=tool_result("c1", "read", "x"),
    d=assistant("done"),
    e=Label(target="d", text="here"),
    f=Custom(custom_type="x"),
)


@pytest.mark.parametrize(
    ("filter", "visible"),
    [("all", "abcdef"), ("default", "acd"), ("no-tools", "ad"), ("user-only", "a"), ("labeled-only", "d")],
)
def test_a_filter_shows_what_it_is_for(filter, visible):
    assert shown(FILTERED, filter) == visible


def test_a_turn_that_only_calls_tools_is_shown_when_it_is_the_leaf_or_failed():
    failed = assistant([tool_call("c1", "read", {})], stop_reason="error")

    assert shown(grow("a>b", b=CALL), "default", leaf="b") == "ab"
    assert shown(grow("a>b", b=failed), "default") == "ab"


# Rows


@pytest.mark.parametrize(
    ("body", "row"),
    [
        (user("hello\n  there"), "user: hello there"),
        (user(""), "user: (no content)"),
        (say("", "x"), "message: x"),
        (assistant("hi"), "assistant: hi"),
        (assistant("", stop_reason="aborted"), "assistant: (aborted)"),
        (assistant(""), "assistant: (no content)"),
        (
            assistant([tool_call("c", "read", {"path": "a.py"}), tool_call("d", "ls", {})]),
            "assistant: [read: a.py], [ls]",
        ),
        (assistant([tool_call("c", "bash", {"command": "x" * 99})]), f"assistant: [bash: {'x' * 80}]"),
        (assistant([tool_call("c", "odd", ["path"])]), "assistant: [odd]"),
        (tool_result("c", "read", "x"), "[read]"),
        (say("toolResult"), "[tool result]"),
        (say("bashExecution", command="ls\n-l"), "[run: ls -l]"),
        (say("pythonExecution", code="1+1"), "[run: 1+1]"),
        (CustomMessage(custom_type="note", content="see"), "[note]: see"),
        (BranchSummary(summary="tried it"), "[branch summary]: tried it"),
        (BranchSummary(summary="took it", details={"kind": "merge"}), "[merge]: took it"),
        (Compaction(summary="S", tokens_before=12_345), "[compaction: 12k tokens]"),
        (ModelChange(model="m"), "[model: m]"),
        (ModelChange(), "[model: ?]"),
        (ThinkingLevelChange("high"), "[thinking: high]"),
        (ThinkingLevelChange(None), "[thinking: off]"),
        (Label(target="a", text="x"), "[label: x]"),
        (Label(target="a"), "[label: (cleared)]"),
        (SessionInfo("n"), "[name: n]"),
        (SessionInfo(None), "[name: (cleared)]"),
        (Custom(custom_type=HEAD_RECORD), "[heads]"),
        (Custom(custom_type="mine"), "[custom: mine]"),
        (ContextEdit(target="a"), "[edit of a]"),
        (BranchPoint(name="side"), "[branch side]"),
        (BranchPoint(name="side", description="two\nlines"), "[branch side: two lines]"),
        (AgentAction(action="spawn", agent="a1"), "[agent a1: spawn]"),
        (ModeChange(mode="plan"), "[mode: plan]"),
        ({"type": "from_the_future"}, "[from_the_future]"),
    ],
)
def test_a_row_says_what_its_entry_is(body, row):
    assert row_text(entry("a", None, body)) == row


def test_a_result_is_shown_by_the_call_it_answers():
    tree = grow("a>b>c", a=CALL, b=tool_result("c1", "read", "x"), c=ModelChange())
    calls = calls_of_results(tree)

    assert calls == {"b": ToolCall("c1", "read", {"path": "x"})}
    assert row_text(tree["b"], calls) == "[read: x]"


def test_a_call_id_that_is_used_again_names_the_call_on_the_results_own_path():
    other = assistant([tool_call("c1", "write", {"path": "y"})])
    result = tool_result("c1", "?", "x")
    tree = grow("r>a>b r>c>d e", a=CALL, b=result, c=other, d=result, e=tool_result("c1", "?", "x"))

    calls = calls_of_results(tree)

    assert {id: call.name for id, call in calls.items()} == {"b": "read", "d": "write"}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (user("hi"), "hi"),
        (say("bashExecution", command="ls"), "ls"),
        (say("pythonExecution", code="1+1"), "1+1"),
        (CALL, "[read: x]"),
        (Compaction(summary="so far"), "so far"),
    ],
)
def test_plain_text_leaves_the_role_out(body, words):
    assert plain_text(entry("a", None, body)) == words


def test_one_line_has_single_blanks_and_an_end():
    assert one_line(" a\t\nb ") == "a b"
    assert len(one_line("word " * 1000)) == 200
    assert one_line(" " * 10_000 + "late") == ""


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0"), (999, "999"), (1000, "1k"), (12_345, "12k"), (999_499, "999k"), (999_500, "1.0M"), ("odd", "0")],
)
def test_counts_are_short(count, words):
    assert short_count(count) == words


@given(damaged_entry_lists(), st.sampled_from(FILTERS), st.data())
def test_any_session_can_be_drawn_in_any_filter(entries, filter, data):
    tree = Tree(entries)
    leaf = data.draw(places(entries))

    rows = outline(tree, leaf, filter)

    assert len({row.entry.id for row in rows}) == len(rows)
    assert [row.entry for row in outline(tree, leaf, "all")] == [entry for entry, _ in tree.walk(leaf)]
    assert sum(row.active for row in rows) <= 1
    assert all("\n" not in row_text(row.entry, calls_of_results(tree)) or row.entry.type != "message" for row in rows)
