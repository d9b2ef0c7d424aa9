"""A repaired session is sound and keeps every readable entry in its position."""

import itertools

import pytest
from hypothesis import given

from sessiontree.core.entries import Entry
from sessiontree.core.heads import Heads
from sessiontree.core.problems import find_problems
from sessiontree.core.tree import Tree
from sessiontree.errors import FormatError
from sessiontree.format.line_repair import UNREADABLE_LINE, Repair, encode_repair, repair_heads, repair_lines
from sessiontree.format.session_reader import SessionReader
from tests.builders import TIME, build_file, count_calls, entry, header, read, replay
from tests.strategies import damaged_sessions, sessions


def build_tree(data: bytes) -> Tree:
    return Tree(read(data)[1])


def repair_tree(tree: Tree) -> tuple[Tree, list[str]]:
    """Return the tree of the repaired lines, and the kinds of repairs."""
    ids = (f"new{number}" for number in itertools.count())
    lines, done = repair_lines(tree, lambda: next(ids))
    return build_tree(build_file(header(), *lines)), [repair.kind for repair in done]


def make_line(id: str, parent: str | None, **keys) -> bytes:
    return entry(id, parent, **keys).raw


def test_a_sound_session_is_not_changed() -> None:
    tree = build_tree(build_file(header(), make_line("a", None), make_line("b", "a")))

    lines, done = repair_lines(tree, lambda: "new")

    assert lines == [entry.raw for entry in tree.entries]
    assert done == []


def test_every_entry_keeps_its_effective_parent() -> None:
    tree = build_tree(
        build_file(
            header(),
            make_line("a", "gone"),
            make_line("s", "s"),
            make_line("x", "y"),
            make_line("y", "x"),
            make_line("b", "a"),
        )
    )

    sound, kinds = repair_tree(tree)

    assert kinds == ["orphan", "self_parent", "cycle"]
    assert {entry.id: entry.parent for entry in sound} == {"a": None, "s": None, "x": None, "y": "x", "b": "a"}


def test_entries_with_a_shared_id_are_all_preserved() -> None:
    tree = build_tree(
        build_file(header(), make_line("a", None), make_line("d", "a"), make_line("d", None), make_line("c", "d"))
    )

    sound, kinds = repair_tree(tree)

    assert kinds == ["duplicate_id"]
    assert {entry.id: entry.parent for entry in sound} == {"a": None, "new0": "a", "d": None, "c": "d"}


def test_a_truncated_line_keeps_its_position_and_its_text() -> None:
    broken = b'{"type":"message","id":"b","parentId":"a","timestamp":"%s","message":{"role":"us"er"}}' % TIME.encode()
    tree = build_tree(build_file(header(), make_line("a", None), broken, make_line("c", "b")))

    sound, kinds = repair_tree(tree)

    assert kinds == ["malformed_line"]
    assert [entry.id for entry in sound.path("c")] == ["a", "b", "c"]
    body = sound["b"].body
    assert (body.custom_type, body.data) == (UNREADABLE_LINE, {"line": 3, "text": broken.decode()})


def test_a_message_line_without_a_message_keeps_its_position_and_its_text() -> None:
    tree = build_tree(
        build_file(
            header(), make_line("a", None), make_line("b", "a", message=5), make_line("c", "b"), make_line("d", 5)
        )
    )

    sound, kinds = repair_tree(tree)

    assert kinds == ["malformed_line", "orphan"]
    assert [entry.id for entry in sound.path("c")] == ["a", "b", "c"]
    assert sound["d"].parent is None
    assert '"message":5' in sound["b"].body.data["text"]


def test_an_invalid_head_record_keeps_its_text_and_moves_no_head() -> None:
    fields = {"type": "custom", "customType": "sessiontree.head", "data": 5}
    tree = build_tree(
        build_file(
            header(),
            make_line("a", None, branch="main"),
            entry("r", "a", fields, branch="main").raw,
            make_line("b", "a", branch="main"),
        )
    )

    sound, kinds = repair_tree(tree)

    assert kinds == ["malformed_line"]
    body = sound["r"].body
    assert (body.custom_type, body.data["line"]) == (UNREADABLE_LINE, 3)
    assert '"data":5' in body.data["text"]
    assert replay(*sound.entries).moves == replay(*tree.entries).moves == []


def test_ignored_keys_are_removed() -> None:
    begun = b'{"type":"message","id":"a","parentId":null,"timestamp":"t","message":{"role":"user"}'
    hidden = b',"parentId":"gone","more":1,"branch":"side","type":"custom","meta":{}}'
    tree = build_tree(build_file(header(), begun + hidden))

    lines, done = repair_lines(tree, lambda: "new")

    assert [(repair.kind, repair.message) for repair in done] == [
        ("hidden_key", "type, parentId, branch after the message was removed")
    ]
    assert lines == [begun + b',"more":1,"meta":{}}']


def test_invalid_utf8_is_replaced() -> None:
    raw = make_line("a", None).replace(b'"content":"a"', b'"content":"\xff"')
    sound, kinds = repair_tree(build_tree(build_file(header(), raw)))

    assert kinds == ["not_utf8"]
    assert sound["a"].body.message["content"] == "\ufffd"


def test_only_invalid_utf8_is_changed() -> None:
    raw = b'{"type":"custom","id":"a","n":1e400,"k":1.10,"k":-0, "t":"\xff\\u0041/"}'

    lines, _ = repair_lines(build_tree(build_file(header(), raw)), lambda: "new")

    assert lines == [raw.replace(b"\xff", "\ufffd".encode())]


@pytest.mark.parametrize(
    ("text", "kind"), [(b"\0" * 100, "malformed_line"), (b"\xff" * 200, "not_utf8")], ids=["no JSON", "no UTF-8"]
)
def test_a_line_that_would_be_too_long_keeps_only_its_position(monkeypatch, text: bytes, kind: str) -> None:
    monkeypatch.setattr("sessiontree.format.line_repair.LINE_LIMIT", 500)
    bad = b'{"type":"message","id":"b","parentId":"a","timestamp":"","message":{"role":"user","content":"%b"}}' % text
    assert len(bad) < 500
    tree = build_tree(build_file(header(), make_line("a", None), bad, make_line("c", "b")))

    lines, done = repair_lines(tree, lambda: "new")

    assert [(repair.kind, "too long" in repair.message) for repair in done] == [(kind, True)]
    sound = build_tree(build_file(header(), *lines))
    assert [entry.id for entry in sound.path("c")] == ["a", "b", "c"]
    assert sound["b"].body.data == {"line": 3}


def test_a_compaction_with_a_missing_anchor_keeps_nothing() -> None:
    compaction = {"type": "compaction", "id": "c", "parentId": "a", "summary": "s", "firstKeptEntryId": "gone"}
    sound, kinds = repair_tree(build_tree(build_file(header(), make_line("a", None), compaction)))

    assert kinds == ["missing_anchor"]
    assert sound["c"].body.first_kept == "c"


def test_a_missing_head_moves_to_the_last_entry_of_its_branch() -> None:
    data = {"heads": {"main": "gone", "b": "gone too", "c": "a"}, "current": "main"}
    record = {"type": "custom", "id": "r", "parentId": "a", "customType": "sessiontree.head", "data": data}
    entries = read(build_file(header(), make_line("a", None, branch="main"), record))[1]
    tree, heads = Tree(entries), Heads()
    heads.replay(entries, tree)

    found, done = repair_heads(tree, heads)

    assert found == {"main": "a", "b": None, "c": "a"}
    assert [repair.kind for repair in done] == ["missing_head", "missing_head"]


@pytest.mark.parametrize("keys", [{"branch": "main"}, {}], ids=["ours", "a peer's"])
def test_a_missing_head_is_found_across_renames_of_its_branch(keys) -> None:
    def make_record(id: str, **data) -> Entry:
        return entry(id, "b", {"type": "custom", "customType": "sessiontree.head", "data": data}, branch="trunk")

    entries = [
        entry("a", None, **keys),
        entry("b", "a", **keys),
        make_record("r", heads={"trunk": "b"}, current="trunk", renamed={"from": "main", "to": "trunk"}),
        make_record("s", heads={"trunk": "gone", "new": "gone"}, current="trunk", renamed={"from": "no", "to": "body"}),
    ]

    assert repair_heads(Tree(entries), replay(*entries))[0] == {"trunk": "b", "new": None}


def test_many_missing_anchors_do_not_slow_down_a_repair() -> None:
    def make_chain(count: int) -> Tree:
        fields = {"type": "compaction", "summary": "s", "firstKeptEntryId": "gone"}
        return Tree([entry(f"{number}", f"{number - 1}" if number else None, fields) for number in range(count)])

    few, many = make_chain(300), make_chain(600)

    assert len(repair_lines(many, lambda: "new")[1]) == 600
    assert count_calls(lambda: repair_lines(many, lambda: "new")) < 2.5 * count_calls(
        lambda: repair_lines(few, lambda: "new")
    )


def test_many_missing_heads_do_not_slow_down_a_repair() -> None:
    def count_missing(count: int) -> tuple[Tree, Heads]:
        heads = {f"b{number}": f"gone{number}" for number in range(count)}
        lines = [entry(f"{number}", branch=f"b{number}") for number in range(count)]
        record = {"type": "custom", "customType": "sessiontree.head", "data": {"heads": heads}}
        lines.append(entry("r", None, record))
        tree, replay = Tree(lines), Heads()
        replay.replay(lines, tree)
        return tree, replay

    few, many = count_missing(300), count_missing(600)

    assert repair_heads(*many)[0] == {f"b{number}": f"{number}" for number in range(600)}
    assert count_calls(lambda: repair_heads(*many)) < 2.5 * count_calls(lambda: repair_heads(*few))


@given(damaged_sessions())
def test_any_damaged_session_is_sound_after_a_repair_and_loses_no_entry(data) -> None:
    reader = SessionReader()
    try:
        tree = Tree(reader.feed(data))
    except FormatError:
        return

    sound, _ = repair_tree(tree)

    problems = [problem for problem in find_problems(sound, Heads()) if problem.severity == "fault"]
    assert problems == []
    assert len(sound) == len(tree.entries)


@given(sessions())
def test_a_well_formed_session_needs_no_repair(data) -> None:
    reader = SessionReader()
    tree = Tree(reader.feed(data))

    lines, done = repair_lines(tree, lambda: "new")

    assert {repair.kind for repair in done} <= {"missing_anchor"}
    assert len(lines) == len(tree.entries)


def test_a_repair_is_encoded_with_all_fields() -> None:
    repair = Repair(kind="orphan", message="it is a root", entry="a", line=2)

    assert encode_repair(repair) == {"kind": "orphan", "message": "it is a root", "entry": "a", "line": 2}
