import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from sessiontree.core.entries import HEAD_RECORD, Compaction, ContextEdit, Custom, Label
from sessiontree.core.heads import Heads
from sessiontree.core.messages import assistant, tool_call, tool_result
from sessiontree.core.problems import ProblemScan, encode_problem, find_problems
from sessiontree.core.tree import Tree
from tests.builders import build_file, count_calls, entry, grow, hang, header, read
from tests.strategies import damaged_entry_lists, entry_lists


def list_problems(tree):
    heads = Heads()
    heads.replay(tree.entries, tree)
    return find_problems(tree, heads)


def list_problem_facts(tree):
    return [(problem.kind, problem.severity, problem.entry, problem.line) for problem in list_problems(tree)]


def make_calls(*ids, stop="toolUse"):
    return assistant([tool_call(id, "read", {}) for id in ids], stop_reason=stop)


def make_compaction(first_kept):
    return Compaction(summary="S", first_kept=first_kept)


def test_a_sound_session_has_no_problems():
    assert (
        list_problem_facts(
            grow("a>b>c b>d", b=make_calls("c1"), c=tool_result("c1", "read", "x"), d=tool_result("c1", "read", "y"))
        )
        == []
    )


def test_a_shadowed_entry_is_reported_with_the_line_that_counts():
    [problem] = list_problems(hang("a", "b<a", "a"))

    assert (problem.kind, problem.severity, problem.entry, problem.line) == ("duplicate_id", "fault", "a", 2)
    assert "line 4" in problem.message


@pytest.mark.parametrize(
    ("lines", "kind", "line"),
    [("a b<gone", "orphan", 3), ("a b<b", "self_parent", 3), ("a b<c c<b", "cycle", 3)],
)
def test_an_entry_without_a_valid_parent_is_reported(lines, kind, line):
    tree = hang(*lines.split())

    assert list_problem_facts(tree) == [(kind, "fault", "b", line)]
    assert "'b'" in list_problems(tree)[0].message


@pytest.mark.parametrize("anchor", ["gone", "x", "c"])
def test_an_anchor_that_is_not_above_its_compaction_is_a_fault(anchor):
    tree = grow("a>b>K>c a>x", K=make_compaction(anchor))

    assert list_problem_facts(tree) == [("missing_anchor", "fault", "K", 4)]
    assert repr(anchor) in list_problems(tree)[0].message


@pytest.mark.parametrize("anchor", ["a", "b", "K", None])
def test_an_anchor_above_its_compaction_is_not_a_problem(anchor):
    assert list_problem_facts(grow("a>b>K>c a>x", K=make_compaction(anchor))) == []


def test_an_anchor_that_is_not_an_id_is_a_fault():
    assert list_problem_facts(grow("a", a={"type": "compaction", "firstKeptEntryId": 5})) == [
        ("missing_anchor", "fault", "a", 2)
    ]


@pytest.mark.parametrize("parent", [5, False, [], {}])
def test_a_parent_that_is_not_an_id_is_a_fault(parent):
    assert list_problem_facts(Tree([entry("a", parent, line=2)])) == [("orphan", "fault", "a", 2)]


@pytest.mark.parametrize("fields", [{"message": 5}, {"message": None}, {"message": "x"}, {}])
def test_a_message_line_without_a_message_is_a_fault(fields):
    assert list_problem_facts(grow("a", a={"type": "message", **fields})) == [("malformed_line", "fault", "a", 2)]
    assert list_problem_facts(grow("a", a={"type": "message", "message": {}})) == [("unsent", "note", "a", 2)]


def test_a_second_header_is_a_note():
    assert list_problem_facts(Tree([entry("a"), entry("s", None, header(), line=3)])) == [
        ("second_header", "note", "s", 3)
    ]


def test_a_label_on_a_missing_entry_is_a_note():
    assert list_problem_facts(grow("a>b", b=Label(target="gone", text="x"))) == [("unknown_target", "note", "b", 3)]


def test_an_edit_of_a_missing_entry_is_a_note():
    tree = grow("a>b>c", b=ContextEdit(target="gone"), c=ContextEdit(target="a"))

    assert list_problem_facts(tree) == [("unknown_target", "note", "b", 3)]
    assert list_problems(tree)[0].message == "context edit of 'gone', which is not in the file"


def test_an_unanswered_call_is_a_note_not_a_fault():
    tree = grow("a>b>c", a=make_calls("c1", "c2"), b=tool_result("c1", "read", "x"))

    assert list_problem_facts(tree) == [("unanswered_call", "note", "a", 2)]
    assert "'c2' (read)" in list_problems(tree)[0].message


def test_a_result_on_another_branch_answers_nothing():
    tree = grow("r>a>x r>b", a=make_calls("c1"), b=tool_result("c1", "read", "x"))

    assert list_problem_facts(tree) == [("unanswered_call", "note", "a", 3)]


def test_a_failed_turn_needs_no_result():
    assert list_problem_facts(grow("a", a=make_calls("c1", stop="aborted"))) == []


def test_a_head_that_is_not_in_the_file_is_a_fault():
    record = Custom(custom_type=HEAD_RECORD, data={"current": "main", "heads": {"main": "lost", "side": None}})

    [problem] = list_problems(grow("a>b", b=record))

    assert (problem.kind, problem.severity, problem.entry) == ("missing_head", "fault", "lost")
    assert "'main'" in problem.message


@pytest.mark.parametrize(
    "data",
    [5, None, [], {}, {"current": "main"}, {"heads": {"main": "a"}}]
    + [{"current": "main", "heads": heads} for heads in (5, ["main"], {})]
    + [{"current": current, "heads": {"main": "a"}} for current in (5, ["main"], "gone")],
)
def test_a_head_record_without_all_heads_is_a_fault(data):
    assert list_problem_facts(grow("a>b", b=Custom(custom_type=HEAD_RECORD, data=data))) == [
        ("malformed_line", "fault", "b", 3)
    ]


@given(entry_lists())
def test_a_well_formed_session_has_no_fault(entries):
    assert [problem for problem in list_problems(Tree(entries)) if problem.severity == "fault"] == []


@given(damaged_entry_lists())
def test_every_misplaced_entry_is_reported(entries):
    tree = Tree(entries)

    found = list_problems(tree)

    lost = {entry.id for entry in tree if entry.parent is not None and tree.parent(entry.id) is None}
    assert {problem.entry for problem in found if problem.kind in ("orphan", "self_parent", "cycle")} == lost
    assert sum(problem.kind == "duplicate_id" for problem in found) == len(entries) - len(tree)


def test_a_line_that_starts_like_an_entry_but_is_not_json_is_a_fault():
    [torn] = read(build_file(header(), '{"type":"message","id":"a","parentId":null,"timestamp":"t","message":{]}}'))[1]

    assert list_problem_facts(Tree([torn])) == [("malformed_line", "fault", "a", 2)]


def test_a_line_that_is_not_utf_8_is_a_fault():
    [odd] = read(
        build_file(header(), b'{"type":"message","id":"a","parentId":null,"message":{"role":"user","content":"\xff"}}')
    )[1]

    assert list_problem_facts(Tree([odd])) == [("not_utf8", "fault", "a", 2)]


def test_an_ignored_key_after_the_message_is_a_fault():
    line = '{"type":"message","id":"%s","parentId":null,"timestamp":"t","message":{"role":"user"},%s}'
    behind = ['"branch":"side","id":"c","meta":{}', '"meta":{}', '"meta":{},"branch":"side"']
    entries = read(build_file(header(), *(line % pair for pair in zip("abd", behind, strict=True))))[1]

    assert [entry.branch for entry in entries] == [UNSET, UNSET, "side"]
    [problem] = list_problems(Tree(entries))
    assert (problem.kind, problem.severity, problem.entry, problem.line) == ("hidden_key", "fault", "a", 2)
    assert problem.message.startswith("id, branch after the message")


def test_fields_of_a_wrong_type_do_not_raise():
    tree = Tree([entry("a", None, {"type": "message", "message": {"role": [1]}}), entry("b", "a", {"type": "label"})])

    assert [problem.kind for problem in list_problems(tree)] == ["unsent", "unknown_target"]


def test_a_problem_is_encoded_with_all_fields():
    [problem] = list_problems(Tree([entry("a", "gone")]))

    assert encode_problem(problem) == {
        "kind": "orphan",
        "severity": "fault",
        "message": problem.message,
        "entry": "a",
        "line": problem.line,
        "offset": problem.offset,
    }


@given(st.one_of(entry_lists(), damaged_entry_lists()), st.integers(0, 40))
def test_a_scan_that_continues_after_growth_finds_the_same_problems_as_a_new_one(entries, first):
    tree = Tree(entries[:first])
    scan = ProblemScan(tree)
    for item in tree.entries:
        scan.add(item, item.raw)
    find_problems(tree, Heads(), scan)

    tree.extend(entries[first:])

    if scan.is_current:
        for item in tree.entries[scan.added :]:
            scan.add(item, item.raw)
        if scan.is_current:
            heads = Heads()
            heads.replay(tree.entries, tree)
            assert find_problems(tree, heads, scan) == list_problems(tree)


@pytest.mark.parametrize(("later", "current"), [("d<b", True), ("a<b", False), ("d<gone", False)])
def test_a_scan_is_outdated_if_new_entries_change_the_places_of_others(later, current):
    lines = hang("a", "b<a", later).entries
    tree = Tree(lines[:2])
    scan = ProblemScan(tree)

    tree.extend(lines[2:])

    assert scan.is_current is current


def test_a_scan_is_outdated_if_new_entries_can_be_the_target_of_a_label():
    whole = grow("a>b>gone", b=Label(target="gone", text="x")).entries
    tree = Tree(whole[:2])
    scan = ProblemScan(tree)
    scan.add(whole[1], whole[1].raw)
    assert scan.is_current

    tree.extend(whole[2:])

    assert not scan.is_current


def test_one_id_for_all_tool_calls_does_not_slow_down_the_check():
    def make_turns(count):
        tree, above = Tree(), None
        for number in range(count):
            tree.add(entry(f"a{number}", above, make_calls("call"), line=2 * number + 2))
            above = f"b{number}"
            tree.add(entry(above, f"a{number}", tool_result("call", "read", "x"), line=2 * number + 3))
        return tree

    few, many = make_turns(300), make_turns(600)

    assert list_problems(many) == []
    assert count_calls(lambda: list_problems(many)) < 2.5 * count_calls(lambda: list_problems(few))
