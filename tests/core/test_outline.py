import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiontree.core import call_lookup
from sessiontree.core import outline as outline_module
from sessiontree.core.call_lookup import CALL_SEARCH_LIMIT, CallLookup
from sessiontree.core.entries import (
    HEAD_RECORD,
    TEXT_LENGTH,
    AgentAction,
    BranchPoint,
    BranchSummary,
    Compaction,
    ContextEdit,
    Custom,
    CustomMessage,
    Entry,
    Label,
    Message,
    ModeChange,
    ModelChange,
    SessionInfo,
    ThinkingLevelChange,
    shorten_to_line,
)
from sessiontree.core.entry_text import format_entry, format_entry_row, get_speaker
from sessiontree.core.heads import Heads
from sessiontree.core.messages import (
    ToolCall,
    assistant,
    get_answered_call,
    get_role,
    get_tool_calls,
    tool_call,
    tool_result,
    user,
)
from sessiontree.core.outline import (
    FILTERS,
    MAX_GUIDE_WIDTH,
    build_outline,
    format_hidden,
    lay_out,
    run_steps,
    survey_tree,
)
from sessiontree.core.search_text import normalize_case
from sessiontree.core.tree import Tree
from sessiontree.format.codec import MemoryLine
from tests.builders import entry, grow, ids, say
from tests.shapes import build_tree
from tests.strategies import damaged_entry_lists, places


def draw_ids(tree, leaf=None, filter="default"):
    return [row.prefix + row.entry.id for row in build_outline(tree, leaf, filter)]


def list_shown(tree, filter, leaf=None):
    return ids(row.entry for row in build_outline(tree, leaf, filter))


# Drawing


def test_a_chain_stays_flat():
    assert draw_ids(grow("a>b>c")) == ["a", "b", "c"]


def test_children_of_a_split_are_indented_and_their_chains_once_more():
    assert draw_ids(grow("a>b>c>d a>e")) == ["a", "├─ b", "│     c", "│     d", "└─ e"]


def test_a_nested_branch_keeps_the_rails_of_its_ancestors():
    assert draw_ids(grow("a>b>c a>d b>e d>f d>g>h>i")) == [
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


def test_several_roots_are_at_the_left_and_their_children_indented():
    assert draw_ids(grow("a>b>c d>e")) == ["a", "   b", "   c", "d", "   e"]
    assert draw_ids(grow("a>b a>c d>e>f e>g")) == ["a", "├─ b", "└─ c", "d", "   e", "   ├─ f", "   └─ g"]
    assert draw_ids(grow("m>a>b m>c>d", m=ModelChange(model="m"))) == ["a", "   b", "c", "   d"]


def test_a_single_root_leaves_its_chain_at_the_left():
    assert draw_ids(grow("a>b>c")) == ["a", "b", "c"]


def test_the_active_branch_comes_first_and_is_marked():
    rows = build_outline(grow("a>b a>c"), "c")

    assert [(row.entry.id, row.on_path, row.active) for row in rows] == [
        ("a", True, False),
        ("c", True, True),
        ("b", False, False),
    ]


def test_before_the_first_entry_no_row_is_active():
    assert not any(row.active or row.on_path for row in build_outline(grow("a>b"), None))


def test_a_hidden_leaf_makes_the_nearest_row_above_it_active():
    [a, b] = build_outline(grow("a>b>c", c=ModelChange(model="m")), "c")

    assert (a.active, b.active) == (False, True)


def make_heads(**places: str | None) -> Heads:
    heads = Heads()
    heads.heads.update(places)
    return heads


def test_a_branch_is_named_at_its_head_or_at_the_nearest_row_above_a_hidden_one():
    tree = grow("m>a>b>n a>c", m=ModelChange(model="m"), n=ModelChange(model="m"))
    heads = make_heads(main="n", other="c", also="c", first="m", empty=None, lost="unknown", old="b")
    heads.archived.add("old")

    rows = build_outline(tree, "n", heads=heads)

    assert [(row.entry.id, list(row.branches)) for row in rows] == [
        ("a", []),
        ("b", ["main"]),
        ("c", ["other", "also"]),
    ]
    everything = {row.entry.id: list(row.branches) for row in build_outline(tree, "n", "all", heads)}
    assert everything == {"m": ["first"], "a": [], "b": [], "n": ["main"], "c": ["other", "also"]}
    assert not any(row.branches for row in build_outline(tree, "n"))


def test_a_hidden_head_is_noted_at_the_nearest_row_above():
    tree = grow("a>b>m>n a>c", b=assistant("b"), c=assistant("c"), m=ModelChange(model="m"), n=ModelChange(model="m"))
    heads = make_heads(main="n", other="c", note="m", first="a", lost="unknown", empty=None)

    [a] = build_outline(tree, "n", "user-only", heads)

    assert (a.active, list(a.branches)) == (False, ["first"])
    assert (a.active_hidden, list(a.branches_hidden)) == (True, ["main", "other", "note"])
    [a, b, c] = build_outline(tree, "n", "default", heads)
    assert [(row.active, list(row.branches)) for row in (a, b, c)] == [
        (False, ["first"]),
        (True, ["main", "note"]),
        (False, ["other"]),
    ]
    assert not any(row.active_hidden or row.branches_hidden for row in (a, b, c))


def test_a_head_above_all_shown_rows_is_not_noted():
    tree = grow("a>b", a=assistant("a"))

    [b] = build_outline(tree, "a", "user-only", make_heads(main="a"))

    assert (b.active, b.active_hidden) == (False, False)
    assert not [*b.branches, *b.branches_hidden]


@pytest.mark.parametrize(
    ("branches", "active", "words"),
    [
        ((), False, ""),
        (("main",), False, "(main: hidden below)"),
        (("main", "cache"), True, "(main, cache: hidden below) ↓ active"),
        ((), True, "↓ active: hidden below"),
    ],
)
def test_hidden_heads_are_described(branches: tuple[str, ...], active: bool, words: str):
    assert format_hidden(branches, active) == words


def test_children_of_a_hidden_entry_move_to_the_nearest_row_above():
    tree = grow("a>m>b m>c", m=ModelChange(model="m"))

    assert draw_ids(tree) == ["a", "├─ b", "└─ c"]
    assert draw_ids(tree, filter="all") == ["a", "m", "├─ b", "└─ c"]


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
def test_each_filter_shows_its_kinds_of_entries(filter, visible):
    assert list_shown(FILTERED, filter) == visible


def test_a_turn_that_only_calls_tools_is_shown_when_it_is_the_leaf_or_failed():
    failed = assistant([tool_call("c1", "read", {})], stop_reason="error")

    assert list_shown(grow("a>b", b=CALL), "default", leaf="b") == "ab"
    assert list_shown(grow("a>b", b=failed), "default") == "ab"


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
        (BranchPoint(name="agent-Check-it-2", description="Check it"), "[branch agent-Check-it-2]"),
        (AgentAction(action="spawn", agent="a1"), "[agent a1: spawn]"),
        (ModeChange(mode="plan"), "[mode: plan]"),
        ({"type": "from_the_future"}, "[from_the_future]"),
    ],
)
def test_a_row_describes_its_entry(body, row):
    assert format_entry_row(entry("a", None, body)) == row


def test_a_result_is_shown_by_the_call_it_answers():
    tree = grow("a>b>c", a=CALL, b=tool_result("c1", "read", "x"), c=ModelChange())
    calls = map_results_to_calls(tree)

    assert calls == {"b": ToolCall("c1", "read", {"path": "x"})}
    assert format_entry_row(tree["b"], calls) == "[read: x]"


def test_a_reused_call_id_refers_to_the_call_on_the_path_of_the_result():
    other = assistant([tool_call("c1", "write", {"path": "y"})])
    result = tool_result("c1", "?", "x")
    tree = grow("r>a>b r>c>d e", a=CALL, b=result, c=other, d=result, e=tool_result("c1", "?", "x"))

    calls = map_results_to_calls(tree)

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
    assert format_entry(entry("a", None, body)) == words


def test_one_line_has_single_spaces_and_a_maximum_length():
    assert shorten_to_line(" a\t\nb ") == "a b"
    assert len(shorten_to_line("word " * 1000)) == 200
    assert shorten_to_line(" " * 10_000 + "late") == ""


@given(damaged_entry_lists(), st.sampled_from(FILTERS), st.data())
def test_any_session_can_be_drawn_in_any_filter(entries, filter, data):
    tree = Tree(entries)
    leaf = data.draw(places(entries))

    rows = build_outline(tree, leaf, filter)

    assert len({row.entry.id for row in rows}) == len(rows)
    assert [row.entry for row in build_outline(tree, leaf, "all")] == [entry for entry, _ in tree.walk(leaf)]
    assert sum(row.active for row in rows) <= 1
    assert all(
        "\n" not in format_entry_row(row.entry, map_results_to_calls(tree)) or row.entry.type != "message"
        for row in rows
    )


# Rows of a tree of any size


def build_rows(tree, leaf=None, filter="default", *words):
    return run_steps(lay_out(run_steps(survey_tree(tree, leaf)), filter, words))


def join_row_ids(rows):
    return "".join(map(rows.get_id, range(len(rows))))


BRANCHED = grow("a>b>c>d a>e>f e>g>h")


def test_consecutive_rows_without_a_split_are_a_segment():
    rows = build_rows(BRANCHED)

    assert join_row_ids(rows) == "abcdefgh"
    assert [join_row_ids(rows)[first] for first in rows.firsts] == ["a", "b", "e", "f", "g"]
    assert (rows.get_segment(2), rows.get_segment(7)) == (range(1, 4), range(6, 8))
    assert (rows.find_segment_above(7), rows.find_segment_above(4), rows.find_segment_above(0)) == (4, 0, None)


def test_folding_the_first_row_of_a_segment_hides_everything_below_it():
    rows = build_rows(BRANCHED)

    assert [rows.get_foldable(row) for row in (0, 1, 4)] == [range(1, 8), range(2, 4), range(5, 8)]
    assert not rows.get_foldable(2), "not the first of its segment"
    assert not rows.get_foldable(5), "nothing is below it"


def test_a_wide_prefix_can_be_cut_to_its_end():
    rows = build_rows(BRANCHED)

    assert rows.draw_prefix(7) == "         "
    assert rows.draw_prefix(5) == "   ├─ "
    assert (rows.get_width(5), rows.draw_prefix(5, 4), rows.draw_prefix(5, 0)) == (6, " ├─ ", "")


@given(damaged_entry_lists(), st.sampled_from(FILTERS))
def test_a_narrow_guide_is_the_full_prefix(entries, filter):
    rows = build_rows(Tree(entries), None, filter)

    for row in range(len(rows)):
        assert rows.get_width(row) > MAX_GUIDE_WIDTH or rows.draw_guide(row) == rows.draw_prefix(row)


def test_the_guide_of_a_deep_row_is_bounded_and_counts_the_missing_levels():
    rows = build_rows(build_tree("comb", 40), "m39")

    guides = {rows.get_id(row): rows.draw_guide(row) for row in range(len(rows))}

    assert guides["m16"] == "│  " * 15 + "├─ "
    assert guides["m17"] == "8… " + "│  " * 8 + "├─ "
    assert guides["m24"] == "8… " + "│  " * 15 + "├─ "
    assert guides["m25"] == "16… " + "│  " * 8 + "├─ "
    assert guides["s25"] == "16… " + "│  " * 8 + "└─ "
    assert max(map(len, guides.values())) <= MAX_GUIDE_WIDTH + len("24… ")
    assert rows.is_deep
    assert not build_rows(build_tree("comb", 16), "m15").is_deep


def test_a_hidden_entry_is_found_by_the_nearest_row_above_it():
    rows = build_rows(grow("m>a>n>b", m=ModelChange(model="m"), n=ModelChange(model="m")), "n")

    assert (rows.find_row("b"), rows.find_row("n"), rows.active) == (1, 0, 0)
    assert (rows.find_row("m"), rows.find_row("unknown"), rows.find_row(None)) == (None, None, None)


SAID = grow(
    "a>b>c>d>e",
    a=user("Fix the Café"),
    b=assistant([tool_call("c1", "read", {"path": "menu.py"})]),
    c=tool_result("c1", "read", "espresso = 2"),
    d=assistant("fixed"),
    e=Label(target="d", text="Good one"),
)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("fix",), "ad"),
        (("café", "fix"), "a"),
        (("user",), "a"),
        (("good",), "d"),
        (("menu",), "c"),
        (("espresso",), "c"),
        (("toolresult",), "c"),
        (("nothing",), ""),
    ],
)
def test_a_search_finds_all_words_in_text_role_label_or_call(words, found):
    assert join_row_ids(build_rows(SAID, None, "default", *words)) == found


@given(damaged_entry_lists(), st.data())
def test_a_search_finds_the_row_and_the_text_of_any_entry(entries, data):
    tree = Tree(entries)
    shape = run_steps(survey_tree(tree, None))
    run_steps(shape.read_texts())

    calls = CallLookup(tree)
    for position, id in enumerate(shape.ids):
        words = f"{get_speaker(tree[id])} {format_entry_row(tree[id], calls)}"
        assert set(normalize_case(words).replace(":", " ").split()) <= set(
            shape.get_search_text(position).replace(":", " ").split()
        )


def test_an_abandoned_search_continues_where_it_stopped():
    tree = Tree([entry(f"e{number}", f"e{number - 1}" if number else None, line=number + 2) for number in range(2000)])
    shape = run_steps(survey_tree(tree, None))
    begun = shape.read_texts()
    done = [next(begun), next(begun), next(begun)]
    begun.close()

    assert next(shape.read_texts()) > done[-1]
    assert join_row_ids(run_steps(lay_out(shape, "default", ("e1999",)))) == "e1999"


def test_a_search_covers_only_entries_that_the_filter_shows():
    assert join_row_ids(build_rows(SAID, None, "user-only", "fix")) == "a"


def test_turns_are_user_and_assistant_messages():
    assert list(build_rows(SAID).turns) == [0, 2]


def test_a_tree_that_grew_is_surveyed_again_without_reading_the_old_entries():
    tree = grow("a>b")
    before = run_steps(survey_tree(tree, "b"))
    tree["a"].source = None
    tree.add(entry("c", "b", line=4))

    after = run_steps(survey_tree(tree, "c", before))

    assert join_row_ids(run_steps(lay_out(after))) == "abc"


def test_the_cost_of_a_row_does_not_grow_with_the_tree():
    deep = Tree()
    for number in range(3000):
        deep.add(entry(f"s{number}", f"s{number - 1}" if number else None, line=2 * number + 2))
        deep.add(entry(f"t{number}", f"s{number - 1}" if number else None, line=2 * number + 3))
    rows = build_rows(deep)
    deepest = max(range(len(rows)), key=rows.get_width)

    assert rows.get_width(deepest) > 8000
    assert len(rows.draw_prefix(deepest, 80)) == 80


def test_work_on_a_large_tree_can_be_paused():
    tree = Tree([entry(f"e{number}", f"e{number - 1}" if number else None, line=number + 2) for number in range(2000)])

    steps = list(survey_tree(tree, None))

    assert len(steps) >= 2 * 2000 // 512
    assert all(0 <= done <= 1 for done in steps)
    assert steps == sorted(steps)


def test_a_user_message_ends_the_search_for_a_call():
    tree = grow("a>b>c", a=CALL, b=user("stop"), c=tool_result("c1", "read", "late"))

    assert format_entry_row(tree["c"], CallLookup(tree)) == "[read]"
    assert join_row_ids(build_rows(tree, None, "default", "read:")) == ""


def test_the_search_for_a_call_has_a_limit():
    said = [entry("call", body=CALL, line=2)]
    said += [
        entry(f"r{number}", said[-1].id if number == 0 else f"r{number - 1}", tool_result("other", "ls", ""), line=3)
        for number in range(300)
    ]
    said.append(entry("result", "r299", tool_result("c1", "read", ""), line=400))
    tree = Tree(said)

    calls = CallLookup(tree)
    assert format_entry_row(tree["result"], calls) == "[read]"
    assert format_entry_row(tree["r0"], calls) == "[ls]"
    assert join_row_ids(build_rows(tree, None, "default", "read:")) == ""


def test_a_label_on_a_missing_entry_shows_nothing():
    tree = grow("a>b", b=Label(target="gone", text="lost"))

    assert build_outline(tree, "a", "labeled-only") == []


def test_entries_added_during_a_survey_are_left_for_the_next_one():
    tree = Tree([entry(f"e{number}", f"e{number - 1}" if number else None, line=number + 2) for number in range(600)])
    steps = survey_tree(tree, None)
    while next(steps) == 0:
        pass
    tree.add(entry("late", "e0", line=700))  # the survey was already past this
    first = run_steps(steps)

    assert "late" not in first.positions
    assert "late" in run_steps(survey_tree(tree, None, first)).positions


def test_a_message_with_invalid_json_has_a_row_and_can_be_found():
    tree = grow("a")
    raw = b'{"type":"message","id":"b","parentId":"a","timestamp":"","message":{"role":"user"'
    tree.add(Entry(id="b", parent="a", type="message", number=3, source=MemoryLine(raw)))

    assert join_row_ids(build_rows(tree)) == "ab"
    assert join_row_ids(build_rows(tree, None, "user-only")) == "a"
    assert join_row_ids(build_rows(tree, None, "default", "message")) == "b"


def test_a_row_names_as_many_calls_as_it_can_hold():
    made = assistant([tool_call(f"c{number}", "read", {"path": f"{number}.txt"}) for number in range(20_000)])

    row = format_entry_row(entry("a", None, made))

    assert row.startswith("assistant: [read: 0.txt], [read: 1.txt]")
    assert row.endswith(" more")
    assert len(row) < TEXT_LENGTH * 2


def map_results_to_calls(tree):
    """Return the call that each tool result answers, by the result's id."""
    calls = CallLookup(tree)
    return {id: call for id in tree.iter_ids() if (call := calls.get(id)) is not None}


def search_calls(tree):
    """Find the call of each result by a plain search of all entries above it."""
    found = {}
    for id in tree.iter_ids():
        message = get_message(tree, id)
        for above in (
            list(tree.walk_up_ids(id))[1 : outline_module.CALL_SEARCH_LIMIT]
            if get_answered_call(message) is not None
            else ()
        ):
            made = [call for call in get_tool_calls(get_message(tree, above)) if call.id == get_answered_call(message)]
            if made:
                found[id] = made[0]
            if made or get_role(get_message(tree, above)) == "user":
                break
    return found


def get_message(tree, id):
    body = tree[id].body
    return body.message if isinstance(body, Message) else {}


def make_talk(length):
    """Return messages by letter: `a` calls, `r` answers a call, `x` answers none, `u` is the user, `n` a note."""
    bodies = {
        "a": lambda n: assistant([tool_call(f"c{n % 3}", "read", {"path": str(n)}), tool_call("same", str(n), {})]),
        "r": lambda n: tool_result(f"c{n % 3}", "read", "text"),
        "s": lambda n: tool_result("same", "read", "text"),
        "x": lambda n: tool_result("other", "read", "text"),
        "u": lambda n: user("text"),
        "n": lambda n: ModelChange(model="m"),
    }
    return st.lists(st.tuples(st.sampled_from("arsxun"), st.integers(0, 3)), max_size=length).map(
        lambda said: Tree(
            entry(str(n), str(n - 1 - back) if n > back else None, bodies[letter](n), line=n + 2)
            for n, (letter, back) in enumerate(said)
        )
    )


@given(make_talk(40))
def test_call_lookup_matches_a_plain_upward_search(tree):
    assert map_results_to_calls(tree) == search_calls(tree)


@pytest.mark.parametrize("seed", range(6))
def test_calls_are_found_after_the_cache_was_cleared(monkeypatch, seed):
    for module in (outline_module, call_lookup):  # both read the limit
        monkeypatch.setattr(module, "CALL_SEARCH_LIMIT", 4)
    chance = random.Random(seed)
    tree = Tree()
    for number in range(600):
        above = str(max(0, number - chance.choice([1, 1, 1, 2, 3, 30]))) if number else None
        made = assistant([tool_call(f"c{chance.randrange(3)}", "read", {"path": str(number)})])
        answer = tool_result(f"c{chance.randrange(3)}", "read", "text")
        tree.add(entry(str(number), above, chance.choice([made, answer, answer, answer, user("text")])))

    assert map_results_to_calls(tree) == search_calls(tree)


def test_the_row_of_a_decoded_entry_is_the_same():
    said = entry("a", None, user("hello"))
    row, words = format_entry_row(said), format_entry(said)

    assert isinstance(said.body, Message)
    assert (format_entry_row(said), format_entry(said)) == (row, words) == ("user: hello", "hello")


@pytest.mark.parametrize(
    "between",
    [CALL_SEARCH_LIMIT - 3, CALL_SEARCH_LIMIT - 2, CALL_SEARCH_LIMIT - 1, CALL_SEARCH_LIMIT, CALL_SEARCH_LIMIT * 3],
)
def test_a_call_within_the_limit_is_found_after_any_earlier_lookup(between):
    tree = Tree([entry("u", None), entry("a", "u", assistant([tool_call("c", "read", {"path": "x"})]))])
    above = "a"
    for number in range(between):
        tree.add(entry(f"n{number}", above, ModelChange(model="m")))
        tree.add(entry(f"r{number}", f"n{number}", tool_result("c", "read", "text")))
        above = f"n{number}"

    upwards, downwards = CallLookup(tree), CallLookup(tree)
    results = [f"r{number}" for number in range(between)]
    expected = search_calls(tree)

    assert [downwards.get(id) for id in results] == [expected.get(id) for id in results]
    assert [upwards.get(id) for id in reversed(results)] == [expected.get(id) for id in reversed(results)]


def add_all_calls(tree):
    calls = CallLookup(tree)
    for id in tree.iter_ids():
        message = get_message(tree, id)
        calls.add(id, get_role(message), get_tool_calls(message))
    return calls


@given(damaged_entry_lists())
def test_a_call_that_was_added_is_found_like_one_that_is_read(entries):
    tree = Tree(entries)
    calls = add_all_calls(tree)

    assert {id: call for id in tree.iter_ids() if (call := calls.get(id)) is not None} == map_results_to_calls(tree)


def test_added_calls_take_bounded_memory_and_are_read_again():
    tree = Tree([entry("u", None)])
    for number in range(CALL_SEARCH_LIMIT * 9):
        tree.add(entry(f"a{number}", f"r{number - 1}" if number else "u", assistant([tool_call("c", "read", {})])))
        tree.add(entry(f"r{number}", f"a{number}", tool_result("c", "read", "text")))

    calls = add_all_calls(tree)

    assert calls.get("r0") == calls.get(f"r{CALL_SEARCH_LIMIT * 9 - 1}") == ToolCall("c", "read", {})
    assert len(calls._calls) <= CALL_SEARCH_LIMIT


@pytest.mark.parametrize("shape", ["calls", "wide_calls"])
def test_a_message_is_not_decoded_again_for_every_result_that_answers_it(shape):
    def count_decoded(count):
        tree, seen = build_tree(shape, count), 0
        source = tree["a"].source
        preview = source.decode_preview

        def count_and_read(raw):
            nonlocal seen
            seen += len(raw)
            return preview(raw)

        source.decode_preview = count_and_read
        assert len(map_results_to_calls(tree)) == (count if shape == "wide_calls" else CALL_SEARCH_LIMIT - 1)
        return seen

    assert 0 < count_decoded(2000) < 2.5 * count_decoded(1000)


def test_a_tree_is_printed_as_a_drawing():
    tree = grow("a>b a>c", a=user("Why?"), b=assistant("Because."), c=assistant("So."))

    assert str(tree).splitlines()[0] == "• user: Why?"
    rows = {line.split("─ ")[-1].lstrip("• ") for line in str(tree).splitlines()[1:]}
    assert rows == {"assistant: Because.", "assistant: So."}
    assert str(Tree()) == "(no entries)"
    assert repr(tree) == "<Tree of 3 entries>"
