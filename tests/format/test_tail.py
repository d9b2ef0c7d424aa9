"""The context read from the end of a file equals the one that the whole file gives."""

import json
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from sessiontree.core.context import Context, build_context
from sessiontree.core.entries import HEAD_RECORD, UNREADABLE, iter_entries
from sessiontree.core.heads import Heads
from sessiontree.core.messages import user
from sessiontree.core.tree import Tree
from sessiontree.format import codec, session_reader, tail
from sessiontree.format.tail import FindAncestors, TailBlock, find_last_activity, read_tail_context, read_tail_heads
from sessiontree.session.state import SessionState
from sessiontree.store.memory import MemoryStore
from tests.builders import TIME, build_file, entry, header
from tests.strategies import damaged_sessions, marred_sessions, sessions

RECORDED = sorted((Path(__file__).parents[1] / "conformance" / "data" / "pi-1.5.0").glob("*.jsonl"))


def read_heads(data: bytes) -> tuple[Tree, Heads]:
    """Return the result of reading the whole file."""
    store = MemoryStore()
    store.create(data.split(b"\n")[:-1])
    loaded = SessionState(store, store.read_end())
    return loaded.tree, loaded.heads


def read_whole_context(data: bytes, branch: str | None = None) -> Context | None:
    """Return the context from the whole file; `None` if the leaf is damaged."""
    tree, heads = read_heads(data)
    leaf = heads.heads[heads.current if branch is None else branch]
    return build_context(tree, leaf) if leaf is None or leaf in tree else None


def split_blocks(data: bytes, size: int) -> list[tuple[bytes, int]]:
    """Split the file into blocks of whole lines of about `size` bytes, the last first."""
    found, end = [], len(data)
    while end > 0:
        start = data.rfind(b"\n", 0, max(0, end - size)) + 1
        found.append((data[start:end], start))
        end = start
    return found


def build_index(data: bytes) -> FindAncestors:
    """Return an index of the file's lines by id, including the header."""
    found = {entry.id: entry for entry in iter_entries(TailBlock(data).items)}

    def find_above(id: str, count: int) -> list[tuple[int, bytes]]:
        path: list[tuple[int, bytes]] = []
        at: str | None = id
        while at in found and len(path) < count:
            path.append((found[at].line, found[at].raw))
            at = found[at].parent
        return path

    return find_above


def find_readable(tree: Tree, head: str | None) -> str | None:
    """Return the nearest readable entry at or above a head."""
    above = tree.walk_up(head) if head in tree else []
    return next((entry.id for entry in above if entry.body is not UNREADABLE), None if above else head)


def check_tail(data: bytes, size: int) -> bool:
    """Assert that the tail agrees with the whole file or gives no answer, also with an index. Return which."""
    tree, heads = read_heads(data)
    for branch in (*heads.heads, "nowhere"):
        for above in (None, build_index(data)):
            other = read_tail_context(split_blocks(data, size), branch, above)
            assert other is None or other == read_whole_context(data, branch)
    told = read_tail_context(split_blocks(data, size))
    assert told is None or told == read_whole_context(data)
    by_index = read_tail_context(split_blocks(data, size), None, build_index(data))
    assert by_index is None or by_index == read_whole_context(data)
    ends = read_tail_heads(split_blocks(data, size))
    if ends is not None:
        assert (ends.current, ends.archived, list(ends.heads)) == (heads.current, heads.archived, list(heads.heads))
        assert heads.heads == {name: find_readable(tree, head) for name, head in ends.heads.items()}
    return told is not None


def test_a_path_is_fetched_from_an_index_in_few_requests_and_no_further_than_needed() -> None:
    lines = [entry(f"e{number}", f"e{number - 1}" if number else None, branch="main").raw for number in range(1000)]
    data = build_file(header(), *lines)
    asked: list[int] = []

    def find_above(id: str, count: int) -> list[tuple[int, bytes]]:
        asked.append(count)
        return build_index(data)(id, count)

    assert read_tail_context(split_blocks(data, 4000), None, find_above) == read_whole_context(data)
    assert asked == [64, 128, 256, 512, 1024]


def test_if_the_index_is_not_enough_the_whole_file_is_needed() -> None:
    data = build_file(header(), entry("a", branch="main").raw, entry("b", "a", branch="main").raw)

    assert read_tail_context(split_blocks(data, 4000), None, lambda id, count: None) is None
    assert read_tail_context(split_blocks(data, 4000), None, lambda id, count: []) is None
    assert read_tail_context(split_blocks(data, 4000), None, lambda id, count: [(1, b"no entry")]) is None


def test_all_heads_are_read_from_the_end_of_a_file() -> None:
    data = build_file(header(), entry("a", branch="main").raw, entry("b", "a", branch="try").raw)
    peers = build_file(header(), entry("a").raw)

    heads = read_tail_heads(split_blocks(data, 4000))

    assert heads is not None
    assert (heads.heads, heads.current) == ({"main": "a", "try": "b"}, "try")
    assert read_tail_heads(split_blocks(peers, 4000)) is None


@given(some.one_of(sessions(), damaged_sessions()), some.integers(1, 4000))
def test_the_tail_never_contradicts_the_whole_file(data, size) -> None:
    check_tail(data, size)


@given(marred_sessions(), some.integers(1, 4000))
def test_the_tail_never_contradicts_a_file_with_unreadable_or_incomplete_lines(data, size) -> None:
    check_tail(data, size)


@contextmanager
def line_limit(limit: int):
    with pytest.MonkeyPatch.context() as patch:
        for module in (codec, session_reader, tail):
            patch.setattr(module, "LINE_LIMIT", limit)
        yield


@given(marred_sessions(), some.integers(1, 4000), some.integers(150, 400))
def test_lines_over_the_limit_are_skipped_as_in_the_whole_file(data, size, limit) -> None:
    with line_limit(limit):
        check_tail(data, size)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_every_prefix_of_a_peers_file_can_be_read_from_its_end(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)

    told = [check_tail(b"".join(lines[: count + 1]), 700) for count in range(1, len(lines))]

    # Files that end in a peer's annotation are the exception.
    types = [json.loads(line)["type"] for line in lines[1:]]
    assert told == [type not in ("label", "session_info", "usage") for type in types]


def make_line(id: str, parent: str | None, **keys) -> bytes:
    return entry(id, parent, **keys).raw


def make_compaction(id: str, parent: str, kept: str, **fields) -> dict:
    body = {"type": "compaction", "id": id, "parentId": parent, "timestamp": TIME, "summary": "s"}
    return {**body, "firstKeptEntryId": kept, **fields}


STATE = {"model": {"provider": "p", "modelId": "m"}, "thinkingLevel": "high"}


def test_reading_stops_at_the_entries_that_a_compaction_with_state_keeps() -> None:
    old = [make_line(str(n), str(n - 1) if n else None) for n in range(200)]
    new = [make_compaction("c", "199", "199", state=STATE), make_line("after", "c")]
    data = build_file(header(), *old, *new)
    read = []

    def count_blocks():
        for block in split_blocks(data, 300):
            read.append(block)
            yield block

    context = read_tail_context(count_blocks())

    assert context == read_whole_context(data)
    assert context is not None
    assert (context.model, context.thinking_level) == ({"provider": "p", "modelId": "m"}, "high")
    assert len(context.messages) == 3
    assert sum(len(block) for block, _ in read) < 1500 < len(data)


def test_without_state_reading_continues_to_the_last_model_and_thinking_level() -> None:
    lines = [
        {"type": "model_change", "id": "m", "parentId": None, "provider": "p", "modelId": "big"},
        {"type": "thinking_level_change", "id": "t", "parentId": "m", "thinkingLevel": "low"},
        {"type": "model_change", "id": "m2", "parentId": "t", "model": "p/small", "role": "smol"},
        make_line("a", "m2"),
        make_compaction("c", "a", "c"),
        make_line("b", "c"),
    ]
    data = build_file(header(), *lines)

    context = read_tail_context(split_blocks(data, 50))

    assert context == read_whole_context(data)
    assert context is not None
    assert (context.model, context.thinking_level) == ({"provider": "p", "modelId": "big"}, "low")


def test_a_line_on_another_branch_requires_the_last_head_record() -> None:
    record = {"current": "main", "heads": {"main": "a", "agent": "b"}}
    lines = [
        make_line("a", None, branch="main"),
        make_line("b", "a", branch="agent"),
        {
            "type": "custom",
            "id": "r",
            "parentId": "a",
            "customType": "sessiontree.head",
            "data": record,
            "branch": "main",
        },
        make_line("c", "b", branch="agent", current="main"),
        make_line("d", "b", branch=None),
    ]

    for count in (3, 4, 5):
        data = build_file(header(), *lines[:count])
        context = read_tail_context(split_blocks(data, 10))
        assert context is not None
        assert context == read_whole_context(data)
        assert context.leaf == "a"


def test_other_branches_are_read_from_the_end_too() -> None:
    record = {"current": "main", "heads": {"main": "a", "agent": "b"}}
    lines = [
        make_line("a", None, branch="main"),
        make_line("b", "a", branch="agent"),
        {"type": "custom", "id": "r", "customType": "sessiontree.head", "data": record, "branch": "main"},
        make_line("c", "b", branch="agent", current="main"),
    ]
    data = build_file(header(), *lines)

    contexts = {name: read_tail_context(split_blocks(data, 10), name) for name in ("main", "agent", "nope")}

    assert contexts == {
        "main": read_whole_context(data, "main"),
        "agent": read_whole_context(data, "agent"),
        "nope": None,
    }
    assert contexts["agent"] is not None
    assert contexts["agent"].leaf == "c"


def test_if_the_end_is_not_enough_the_whole_file_is_needed() -> None:
    late = build_file(header(), make_line("a", None), make_line("b", "a", branch=None))
    cycle = build_file(header(), make_line("a", "b"), make_line("b", "a"))
    empty = build_file(header())
    peers = build_file(header(), make_line("a", None), make_line("l", "a", branch="x", type="label", targetId="a"))
    gone = build_file(header(), {"type": "custom", "id": "r", "customType": "sessiontree.head", "branch": "main",
                              "data": {"heads": {"main": "gone"}}})  # fmt: skip

    for data in (late, cycle, empty, peers, gone):
        assert read_tail_context(split_blocks(data, 100)) is None


def test_a_compaction_without_state_ends_mode_and_rules() -> None:
    before = [
        {"type": "mode_change", "id": "m", "parentId": None, "mode": "plan"},
        {"type": "ttsr_injection", "id": "r", "parentId": "m", "injectedRules": ["old"]},
    ]
    after = [{"type": "ttsr_injection", "id": "n", "parentId": "c", "injectedRules": ["new", "new"]}]
    data = build_file(header(), *before, make_compaction("c", "r", "r"), *after)

    context = read_tail_context(split_blocks(data, 10))

    assert context is not None
    assert context == read_whole_context(data)
    assert (context.state.mode, context.state.rules) == (None, ("new",))


def test_a_label_at_the_end_uses_the_lines_before_it() -> None:
    label = {"type": "label", "id": "l", "parentId": "a", "targetId": "a", "label": "x", "branch": "main"}
    data = build_file(header(), make_line("a", None, branch="main"), label)

    context = read_tail_context(split_blocks(data, 10))

    assert context is not None
    assert context == read_whole_context(data)
    assert context.leaf == "a"


def test_a_parent_after_its_child_needs_the_whole_file() -> None:
    data = build_file(
        header(),
        make_line("l", "y"),
        make_line("y", "m"),
        make_line("m", "x"),
        make_line("x", "y"),
        make_line("c", "l"),
    )

    assert read_tail_context(split_blocks(data, 60)) is None


def test_duplicate_keys_are_read_as_in_every_reader() -> None:
    twice = make_line("b", "a")[:-1] + b',"parentId":null}'
    data = build_file(header(), make_line("a", None), twice)

    context = read_tail_context(split_blocks(data, 60))

    assert context == read_whole_context(data)
    assert [entry.id for entry in read_heads(data)[0].path("b")] == ["b"]


def test_too_many_lines_since_the_last_record_need_the_whole_file(monkeypatch) -> None:
    monkeypatch.setattr("sessiontree.format.tail.REPLAY_LIMIT", 3)
    lines = [make_line(str(n), None, branch="agent", current="main") for n in range(9)]

    assert read_tail_context(split_blocks(build_file(header(), *lines), 10)) is None


def test_a_line_over_the_limit_is_not_a_leaf() -> None:
    lines = [make_line("a", None, branch="main"), make_line("b", "a", branch="main", text="x" * 500)]
    data = build_file(header(), *lines)

    with line_limit(400):
        context = read_tail_context(split_blocks(data, 100))

        assert context == read_whole_context(data)
    assert context is not None
    assert context.leaf == "a"


def test_lines_with_invalid_json_are_skipped() -> None:
    data = build_file(header(), make_line("a", None), "junk", make_line("b", "a"), "", "{broken", make_line("c", "b"))

    assert read_tail_context(split_blocks(data, 60)) == read_whole_context(data)


BROKEN = b'{"type":"message","id":"%s","parentId":"%s","timestamp":"","branch":"%s","message":{"role":oops}}'
"""A line that starts like a message but is not valid JSON."""


def make_record(id: str, data: object, **keys) -> dict:
    return {"type": "custom", "id": id, "parentId": "a", "customType": HEAD_RECORD, "data": data, **keys}


def test_an_unreadable_leaf_needs_the_whole_file() -> None:
    lines = [make_line("a", None, branch="main"), make_line("b", "a", branch="side")]
    last = build_file(header(), *lines, BROKEN % (b"c", b"b", b"side"))
    of_a_branch = build_file(header(), *lines, BROKEN % (b"c", b"b", b"side"), make_line("d", "a", branch="main"))
    by_a_record = build_file(
        header(),
        *lines,
        BROKEN % (b"c", b"b", b"side"),
        make_record("r", {"current": "side", "heads": {"main": "a", "side": "c"}}, branch="side"),
    )

    assert read_tail_context(split_blocks(last, 100)) is None
    assert read_tail_context(split_blocks(of_a_branch, 100), "side") is None
    for above in (None, build_index(by_a_record)):
        assert read_tail_context(split_blocks(by_a_record, 100), None, above) is None
        assert read_tail_context(split_blocks(by_a_record, 100), "main", above) == read_whole_context(
            by_a_record, "main"
        )
    assert read_tail_heads(split_blocks(last, 100)) is None


def test_an_unreadable_line_does_not_set_the_current_branch() -> None:
    broken = (BROKEN % (b"c", b"b", b"other")).replace(b',"message"', b',"current":"main","message"')
    data = build_file(header(), make_line("a", None, branch="main"), make_line("b", "a", branch="side"), broken)

    assert read_tail_context(split_blocks(data, 100)) is None
    assert read_heads(data)[1].current == "side"


@pytest.mark.parametrize("data", [None, {"heads": {"main": "a", "side": "b"}}, {"current": "side", "heads": {}}])
def test_an_incomplete_record_requires_an_earlier_one(data) -> None:
    lines = [
        make_line("a", None, branch="main"),
        make_line("b", "a", branch="side"),
        make_record("r", data, branch="side"),
    ]
    after = make_line("c", "a", branch="other", current="side")

    for data in (build_file(header(), *lines), build_file(header(), *lines, after)):
        context = read_tail_context(split_blocks(data, 100))
        assert context is not None
        assert context == read_whole_context(data)
        assert context.leaf == "b"


def test_a_header_after_many_lines_is_not_an_entry() -> None:
    title = {"type": "title", "title": "t", "id": "t"}
    alone = build_file(*["junk"] * 100, header())
    named = build_file(title, *["junk"] * 100, header(), make_record("r", {"current": "main", "heads": {"main": "t"}}))

    for data in (alone, named):
        assert read_tail_context(split_blocks(data, 100)) is None
        assert read_tail_context(split_blocks(data, 100), None, build_index(data)) is None


LABEL = {"type": "label", "id": "l", "parentId": "a", "timestamp": "later", "targetId": "a", "label": "x"}
SAID = entry("a", None, branch="main").raw


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([SAID], (0, TIME)),
        ([SAID, LABEL, {**LABEL, "id": "m"}], (2, TIME)),
        ([LABEL], None),
        ([], None),
    ],
)
def test_the_last_activity_is_found_with_the_number_of_notes_after_it(lines, expected):
    assert find_last_activity([(build_file(header(), *lines), 0)]) == expected


def test_the_search_for_the_last_activity_stops_at_a_limit_and_at_a_header(monkeypatch):
    monkeypatch.setattr(tail, "REPLAY_LIMIT", 1)

    assert find_last_activity([(build_file(LABEL, {**LABEL, "id": "m"}), 90), (build_file(header(), SAID), 0)]) is None
    assert find_last_activity([(build_file(header(), LABEL), 90), (build_file(header(), SAID), 0)]) is None


def test_the_last_line_with_an_id_is_found_by_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    first, other, last = entry("a").raw, entry("b", "a").raw, entry("a", "b").raw
    long = entry("a", "b", user("x" * 5000)).raw
    data = b"".join(line + b"\n" for line in (first, other, last, b'{"id":"a" damaged', long))
    monkeypatch.setattr(tail, "LINE_LIMIT", 4000)

    found = tail.find_entry([(data, 500), (first + b"\n", 0)], "a")

    assert found is not None
    assert (found.raw, found.parent) == (last, "b")
    assert tail.find_entry([(data, 500)], "c") is None


def test_a_header_is_not_the_entry_with_its_id() -> None:
    assert tail.find_entry([(build_file({**header(), "id": "a"}), 0)], "a") is None


def test_a_session_without_lines_has_no_tail() -> None:
    assert tail.find_tail([], 0) is None


def test_whether_an_entry_has_an_id_is_known_from_the_bytes_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = build_file(header(), entry("a").raw, {"type": "message", "id": "b", "parentId": "a", "branch": "c/d"})
    blocks = [(lines, 0)]

    assert tail.has_id(blocks, "a") is True
    assert tail.has_id(blocks, "c/d") is False  # the name of a branch
    assert tail.has_id(blocks, "x") is False
    assert tail.has_id([(lines + b'{"text":"\\u001b[1m"}\n', 0)], "x") is False
    assert tail.has_id([(lines + b'{"text":"\\/"}\n', 0)], "x") is False
    monkeypatch.setattr(tail, "LINE_LIMIT", 10)
    assert tail.has_id(blocks, "a") is None


@pytest.mark.parametrize(
    ("id", "line"),
    [
        ("x", b'{"type":"message","id":"\\u0078","parentId":null}\n'),
        ("x/y", b'{"type":"message","id":"x\\/y","parentId":null}\n'),
        ("x\ny", b""),
        ("x", b'{"type":"message","id":"x" damaged\n'),
        ("x", b'{"type":"title","id":"x"}\n'),
    ],
)
def test_all_lines_are_read_if_an_id_may_be_escaped_or_damaged(id: str, line: bytes) -> None:
    assert tail.has_id([(build_file(header()) + line, 0)], id) is None
