import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiontree.core import outline as outline_module
from sessiontree.core.entries import (
    HEAD_RECORD,
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
)
from sessiontree.core.fulltext import speaker, unify
from sessiontree.core.heads import Heads
from sessiontree.core.messages import ToolCall, answered_call, assistant, role, tool_call, tool_calls, tool_result, user
from sessiontree.core.outline import (
    FILTERS,
    REACH,
    TEXT_LENGTH,
    WIDEST,
    Calls,
    calls_of_results,
    finish,
    lay_out,
    one_line,
    outline,
    plain_text,
    row_text,
    survey,
    tell_hidden,
)
from sessiontree.core.tree import Tree
from sessiontree.format.codec import Held
from tests.builders import entry, grow, ids, say
from tests.shapes import tree_of
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


def test_several_roots_stand_at_the_left_and_what_follows_each_further_in():
    assert drawing(grow("a>b>c d>e")) == ["a", "   b", "   c", "d", "   e"]
    assert drawing(grow("a>b a>c d>e>f e>g")) == ["a", "├─ b", "└─ c", "d", "   e", "   ├─ f", "   └─ g"]
    assert drawing(grow("m>a>b m>c>d", m=ModelChange(model="m"))) == ["a", "   b", "c", "   d"]


def test_one_root_alone_leaves_its_chain_at_the_left():
    assert drawing(grow("a>b>c")) == ["a", "b", "c"]


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


def heads_at(**places: str | None) -> Heads:
    heads = Heads()
    heads.heads.update(places)
    return heads


def test_a_branch_is_named_at_its_head_or_at_the_nearest_row_above_a_hidden_one():
    tree = grow("m>a>b>n a>c", m=ModelChange(model="m"), n=ModelChange(model="m"))
    heads = heads_at(main="n", other="c", also="c", first="m", empty=None, lost="unknown", old="b")
    heads.archived.add("old")

    rows = outline(tree, "n", heads=heads)

    assert [(row.entry.id, list(row.branches)) for row in rows] == [
        ("a", []),
        ("b", ["main"]),
        ("c", ["other", "also"]),
    ]
    everything = {row.entry.id: list(row.branches) for row in outline(tree, "n", "all", heads)}
    assert everything == {"m": ["first"], "a": [], "b": [], "n": ["main"], "c": ["other", "also"]}
    assert not any(row.branches for row in outline(tree, "n"))


def test_a_head_that_a_filter_hides_is_told_at_the_nearest_row_above_and_not_as_its_head():
    tree = grow("a>b>m>n a>c", b=assistant("b"), c=assistant("c"), m=ModelChange(model="m"), n=ModelChange(model="m"))
    heads = heads_at(main="n", other="c", note="m", first="a", lost="unknown", empty=None)

    [a] = outline(tree, "n", "user-only", heads)

    assert (a.active, list(a.branches)) == (False, ["first"])
    assert (a.active_hidden, list(a.branches_hidden)) == (True, ["main", "other", "note"])
    [a, b, c] = outline(tree, "n", "default", heads)
    assert [(row.active, list(row.branches)) for row in (a, b, c)] == [
        (False, ["first"]),
        (True, ["main", "note"]),
        (False, ["other"]),
    ]
    assert not any(row.active_hidden or row.branches_hidden for row in (a, b, c))


def test_a_head_above_all_rows_that_are_shown_is_told_nowhere():
    tree = grow("a>b", a=assistant("a"))

    [b] = outline(tree, "a", "user-only", heads_at(main="a"))

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
def test_hidden_heads_in_words(branches: tuple[str, ...], active: bool, words: str):
    assert tell_hidden(branches, active) == words


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


@given(damaged_entry_lists(), st.sampled_from(FILTERS), st.data())
def test_any_session_can_be_drawn_in_any_filter(entries, filter, data):
    tree = Tree(entries)
    leaf = data.draw(places(entries))

    rows = outline(tree, leaf, filter)

    assert len({row.entry.id for row in rows}) == len(rows)
    assert [row.entry for row in outline(tree, leaf, "all")] == [entry for entry, _ in tree.walk(leaf)]
    assert sum(row.active for row in rows) <= 1
    assert all("\n" not in row_text(row.entry, calls_of_results(tree)) or row.entry.type != "message" for row in rows)


# Rows of a tree of any size


def rows_of(tree, leaf=None, filter="default", *words):
    return finish(lay_out(finish(survey(tree, leaf)), filter, words))


def shown_rows(rows):
    return "".join(map(rows.id, range(len(rows))))


BRANCHED = grow("a>b>c>d a>e>f e>g>h")


def test_rows_that_follow_one_another_without_a_parting_are_a_segment():
    rows = rows_of(BRANCHED)

    assert shown_rows(rows) == "abcdefgh"
    assert [shown_rows(rows)[first] for first in rows.firsts] == ["a", "b", "e", "f", "g"]
    assert (rows.segment(2), rows.segment(7)) == (range(1, 4), range(6, 8))
    assert (rows.above(7), rows.above(4), rows.above(0)) == (4, 0, None)


def test_what_can_be_folded_is_all_that_is_below_the_first_of_a_segment():
    rows = rows_of(BRANCHED)

    assert [rows.below(row) for row in (0, 1, 4)] == [range(1, 8), range(2, 4), range(5, 8)]
    assert not rows.below(2), "not the first of its segment"
    assert not rows.below(5), "nothing is below it"


def test_of_a_wide_prefix_only_the_end_can_be_asked_for():
    rows = rows_of(BRANCHED)

    assert rows.prefix(7) == "         "
    assert rows.prefix(5) == "   ├─ "
    assert (rows.width(5), rows.prefix(5, 4), rows.prefix(5, 0)) == (6, " ├─ ", "")


@given(damaged_entry_lists(), st.sampled_from(FILTERS))
def test_a_guide_is_the_prefix_as_long_as_that_is_not_wide(entries, filter):
    rows = rows_of(Tree(entries), None, filter)

    for row in range(len(rows)):
        assert rows.width(row) > WIDEST or rows.guide(row) == rows.prefix(row)


def test_a_guide_of_a_deep_row_is_bounded_and_tells_how_many_levels_it_leaves_out():
    rows = rows_of(tree_of("comb", 40), "m39")

    guides = {rows.id(row): rows.guide(row) for row in range(len(rows))}

    assert guides["m16"] == "│  " * 15 + "├─ "
    assert guides["m17"] == "8… " + "│  " * 8 + "├─ "
    assert guides["m24"] == "8… " + "│  " * 15 + "├─ "
    assert guides["m25"] == "16… " + "│  " * 8 + "├─ "
    assert guides["s25"] == "16… " + "│  " * 8 + "└─ "
    assert max(map(len, guides.values())) <= WIDEST + len("24… ")
    assert rows.is_deep
    assert not rows_of(tree_of("comb", 16), "m15").is_deep


def test_a_hidden_entry_is_found_by_the_nearest_row_above_it():
    rows = rows_of(grow("m>a>n>b", m=ModelChange(model="m"), n=ModelChange(model="m")), "n")

    assert (rows.nearest("b"), rows.nearest("n"), rows.active) == (1, 0, 0)
    assert (rows.nearest("m"), rows.nearest("unknown"), rows.nearest(None)) == (None, None, None)


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
def test_a_search_finds_rows_that_say_all_words_by_text_role_label_or_call(words, found):
    assert shown_rows(rows_of(SAID, None, "default", *words)) == found


@given(damaged_entry_lists(), st.data())
def test_a_search_finds_what_the_row_and_the_text_of_any_entry_say(entries, data):
    tree = Tree(entries)
    shape = finish(survey(tree, None))
    finish(shape.read())

    calls = Calls(tree)
    for position, id in enumerate(shape.ids):
        words = f"{speaker(tree[id])} {row_text(tree[id], calls)}"
        assert set(unify(words).replace(":", " ").split()) <= set(shape.text(position).replace(":", " ").split())


def test_a_search_that_was_given_up_is_gone_on_with_where_it_was():
    tree = Tree([entry(f"e{number}", f"e{number - 1}" if number else None, line=number + 2) for number in range(2000)])
    shape = finish(survey(tree, None))
    begun = shape.read()
    done = [next(begun), next(begun), next(begun)]
    begun.close()

    assert next(shape.read()) > done[-1]
    assert shown_rows(finish(lay_out(shape, "default", ("e1999",)))) == "e1999"


def test_a_search_looks_only_through_what_the_filter_shows():
    assert shown_rows(rows_of(SAID, None, "user-only", "fix")) == "a"


def test_turns_are_where_the_user_or_the_assistant_speaks():
    assert list(rows_of(SAID).turns) == [0, 2]


def test_a_tree_that_grew_is_surveyed_again_without_reading_the_old_entries():
    tree = grow("a>b")
    before = finish(survey(tree, "b"))
    tree["a"].source = None
    tree.add(entry("c", "b", line=4))

    after = finish(survey(tree, "c", before))

    assert shown_rows(finish(lay_out(after))) == "abc"


def test_the_work_of_looking_at_a_row_does_not_grow_with_the_tree():
    deep = Tree()
    for number in range(3000):
        deep.add(entry(f"s{number}", f"s{number - 1}" if number else None, line=2 * number + 2))
        deep.add(entry(f"t{number}", f"s{number - 1}" if number else None, line=2 * number + 3))
    rows = rows_of(deep)
    deepest = max(range(len(rows)), key=rows.width)

    assert rows.width(deepest) > 8000
    assert len(rows.prefix(deepest, 80)) == 80


def test_work_on_a_large_tree_can_be_paused():
    tree = Tree([entry(f"e{number}", f"e{number - 1}" if number else None, line=number + 2) for number in range(2000)])

    steps = list(survey(tree, None))

    assert len(steps) >= 2 * 2000 // 512
    assert all(0 <= done <= 1 for done in steps)
    assert steps == sorted(steps)


def test_what_the_user_says_ends_the_search_for_a_call():
    tree = grow("a>b>c", a=CALL, b=user("stop"), c=tool_result("c1", "read", "late"))

    assert row_text(tree["c"], Calls(tree)) == "[read]"
    assert shown_rows(rows_of(tree, None, "default", "read:")) == ""


def test_a_call_is_looked_for_only_so_far_above_its_result():
    said = [entry("call", body=CALL, line=2)]
    said += [
        entry(f"r{number}", said[-1].id if number == 0 else f"r{number - 1}", tool_result("other", "ls", ""), line=3)
        for number in range(300)
    ]
    said.append(entry("result", "r299", tool_result("c1", "read", ""), line=400))
    tree = Tree(said)

    calls = Calls(tree)
    assert row_text(tree["result"], calls) == "[read]"
    assert row_text(tree["r0"], calls) == "[ls]"
    assert shown_rows(rows_of(tree, None, "default", "read:")) == ""


def test_a_label_on_what_is_not_there_shows_nothing():
    tree = grow("a>b", b=Label(target="gone", text="lost"))

    assert outline(tree, "a", "labeled-only") == []


def test_what_is_added_while_a_tree_is_surveyed_is_left_for_the_next_time():
    tree = Tree([entry(f"e{number}", f"e{number - 1}" if number else None, line=number + 2) for number in range(600)])
    steps = survey(tree, None)
    while next(steps) == 0:
        pass
    tree.add(entry("late", "e0", line=700))  # where the survey was already
    first = finish(steps)

    assert "late" not in first.positions
    assert "late" in finish(survey(tree, None, first)).positions


def test_a_message_that_is_no_json_makes_a_row_and_can_be_searched_for():
    tree = grow("a")
    raw = b'{"type":"message","id":"b","parentId":"a","timestamp":"","message":{"role":"user"'
    tree.add(Entry(id="b", parent="a", type="message", line=3, source=Held(raw)))

    assert shown_rows(rows_of(tree)) == "ab"
    assert shown_rows(rows_of(tree, None, "user-only")) == "a"
    assert shown_rows(rows_of(tree, None, "default", "message")) == "b"


def test_a_row_names_as_many_calls_as_it_can_hold():
    made = assistant([tool_call(f"c{number}", "read", {"path": f"{number}.txt"}) for number in range(20_000)])

    row = row_text(entry("a", None, made))

    assert row.startswith("assistant: [read: 0.txt], [read: 1.txt]")
    assert row.endswith(" more")
    assert len(row) < TEXT_LENGTH * 2


def calls_by_search(tree):
    """The call that each result answers, by a plain search of all that is above it."""
    found = {}
    for id in tree.ids():
        message = message_of(tree, id)
        for above in list(tree.up_ids(id))[1 : outline_module.REACH] if answered_call(message) is not None else ():
            made = [call for call in tool_calls(message_of(tree, above)) if call.id == answered_call(message)]
            if made:
                found[id] = made[0]
            if made or role(message_of(tree, above)) == "user":
                break
    return found


def message_of(tree, id):
    body = tree[id].body
    return body.message if isinstance(body, Message) else {}


def talk(length):
    """Messages by one letter each: `a` calls, `r` answers a call, `x` answers none, `u` is the user, `n` a note."""
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


@given(talk(40))
def test_calls_are_those_that_a_search_upwards_finds(tree):
    assert calls_of_results(tree) == calls_by_search(tree)


@pytest.mark.parametrize("seed", range(6))
def test_calls_are_found_as_well_when_what_was_looked_at_is_forgotten(monkeypatch, seed):
    monkeypatch.setattr(outline_module, "REACH", 4)
    chance = random.Random(seed)
    tree = Tree()
    for number in range(600):
        above = str(max(0, number - chance.choice([1, 1, 1, 2, 3, 30]))) if number else None
        made = assistant([tool_call(f"c{chance.randrange(3)}", "read", {"path": str(number)})])
        answer = tool_result(f"c{chance.randrange(3)}", "read", "text")
        tree.add(entry(str(number), above, chance.choice([made, answer, answer, answer, user("text")])))

    assert calls_of_results(tree) == calls_by_search(tree)


def test_a_row_says_the_same_of_an_entry_that_was_decoded_before():
    said = entry("a", None, user("hello"))
    row, words = row_text(said), plain_text(said)

    assert isinstance(said.body, Message)
    assert (row_text(said), plain_text(said)) == (row, words) == ("user: hello", "hello")


@pytest.mark.parametrize("between", [REACH - 3, REACH - 2, REACH - 1, REACH, REACH * 3])
def test_a_call_is_found_within_reach_whatever_was_asked_before(between):
    tree = Tree([entry("u", None), entry("a", "u", assistant([tool_call("c", "read", {"path": "x"})]))])
    above = "a"
    for number in range(between):
        tree.add(entry(f"n{number}", above, ModelChange(model="m")))
        tree.add(entry(f"r{number}", f"n{number}", tool_result("c", "read", "text")))
        above = f"n{number}"

    upwards, downwards = Calls(tree), Calls(tree)
    results = [f"r{number}" for number in range(between)]
    expected = calls_by_search(tree)

    assert [downwards.get(id) for id in results] == [expected.get(id) for id in results]
    assert [upwards.get(id) for id in reversed(results)] == [expected.get(id) for id in reversed(results)]


@pytest.mark.parametrize("shape", ["calls", "wide_calls"])
def test_a_message_is_not_decoded_again_for_every_result_that_answers_it(shape):
    def decoded(count):
        tree, seen = tree_of(shape, count), 0
        source = tree["a"].source
        body = source.body

        def counted(raw):
            nonlocal seen
            seen += len(raw)
            return body(raw)

        source.body = counted
        assert len(calls_of_results(tree)) == (count if shape == "wide_calls" else REACH - 1)
        return seen

    assert decoded(2000) < 2.5 * decoded(1000)
