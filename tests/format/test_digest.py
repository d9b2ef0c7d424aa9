"""The facts of a listing, from one pass over the lines."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiontree.core.entries import Message
from sessiontree.core.heads import Heads
from sessiontree.core.problems import find_problems
from sessiontree.core.tree import Tree
from sessiontree.errors import FormatError
from sessiontree.format import digest as module
from sessiontree.format.digest import Digest, UnsoundSession, start_digest
from sessiontree.format.nesting import NESTING_LIMIT
from tests.builders import build_file, header, limit_stack, nest_lists, raises_if_stack_is_shared, read
from tests.strategies import damaged_sessions, reflowed_sessions, sessions


def build_digest(data: bytes) -> Digest:
    first, _, rest = data.partition(b"\n")
    made = start_digest(read(first + b"\n")[0])
    made.feed(rest)
    made.check_heads()
    return made


def make_line(id: str, parent: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"type": "message", "id": id, "parentId": parent, "message": {"role": "user", "content": id}, **fields}


def make_usage_line(id: str, parent: str | None, usage: Any, **fields: Any) -> dict[str, Any]:
    return make_line(id, parent, message={"role": "assistant", "content": [], "usage": usage}, **fields)


def replay(data: bytes) -> tuple[Tree, Heads, bool]:
    reader, entries = read(data)
    tree, heads = Tree(entries), Heads()
    heads.replay(entries, tree)
    problems = [*reader.problems, *find_problems(tree, heads)]
    return tree, heads, any(problem.severity == "fault" for problem in problems)


@given(st.one_of(sessions(), damaged_sessions(), reflowed_sessions()))
def test_a_digest_agrees_with_the_replay_and_accepts_only_sound_files(data: bytes) -> None:
    tree, heads, faulty = replay(data)

    try:
        tally = build_digest(data).totals
    except UnsoundSession:
        return
    assert not faulty
    assert (tally.entries, tally.current) == (len(tree), heads.current)
    assert tally.heads == heads.heads
    assert tally.branch_count == len(heads.heads.keys() - heads.archived)
    assert tally.messages == sum(isinstance(entry.body, Message) for entry in tree)
    assert (tally.named, tally.name) == (tree.has_been_named, tree.name)


@given(sessions())
def test_a_sound_file_needs_no_opening(data: bytes) -> None:
    build_digest(data)


@given(sessions(), st.data())
def test_a_digest_continues_where_another_one_stopped(data: bytes, choice: st.DataObject) -> None:
    first, *lines = data.splitlines(keepends=True)
    cut = choice.draw(st.integers(0, len(lines)))
    whole = build_digest(data)

    half = start_digest(read(first)[0])
    half.feed(b"".join(lines[:cut]))
    rest = Digest(half.totals, [half.get_links_since(0)])
    before = rest.totals.entries
    rest.feed(b"".join(lines[cut:]))

    assert rest.totals == whole.totals
    assert rest.get_links_since(before) == whole.get_links_since(before)


def test_consecutive_messages_move_their_branch_to_the_last_one() -> None:
    label = {"type": "label", "id": "l", "parentId": "d", "targetId": "a", "label": "x", "branch": "main"}
    main = [make_line(id, branch="main") for id in "ab"]
    side = [make_line(id, branch="side") for id in "uv"]

    tally = build_digest(
        build_file(header(), *main, *side, make_line("c", branch="main"), make_line("d", branch="main"), label)
    ).totals

    assert tally.heads == {"main": "d", "side": "v"}
    assert tally.current == "main"


def test_ids_that_do_not_match_the_totals_are_detected() -> None:
    made = build_digest(build_file(header(), make_line("a")))

    with pytest.raises(ValueError, match="do not match"):
        Digest(made.totals, [made.get_links_since(0), made.get_links_since(0)])


def test_a_digest_finds_the_branch_of_an_entry() -> None:
    made = build_digest(
        build_file(
            header(),
            make_line("a", branch="main"),
            make_line("b", "a", branch="main"),
            make_line("c", "a", branch="side"),
            {"type": "label", "id": "l", "parentId": "c", "targetId": "a", "label": "x", "branch": "side"},
            make_line("d", "b", branch=None),
        )
    )

    assert made.find_branches("abcdl?") == {"a": "side", "b": "main", "c": "side", "d": None, "l": None}
    assert made.find_branches([]) == {}


@given(sessions())
def test_the_branches_of_a_digest_are_those_of_the_tree(data: bytes) -> None:
    tree, heads, _ = replay(data)
    made = build_digest(data)

    found = made.find_branches(entry.id for entry in tree)

    paths = {name: {entry.id for entry in tree.path(leaf)} for name, leaf in heads.heads.items()}
    for id, name in found.items():
        leading = {name for name, path in paths.items() if id in path}
        assert name in leading if leading else name is None
        assert name == heads.current or heads.current not in leading
        assert name not in heads.archived or leading <= heads.archived
    assert len(found) == len(tree)


def test_names_costs_and_the_first_message_are_collected() -> None:
    tally = build_digest(
        build_file(
            header(title="old"),
            make_line("0", None, message={"role": "user", "content": [{"type": "image"}]}),
            make_line("a", None, message={"role": "user", "content": [{"type": "text", "text": " hello\n there "}]}),
            make_line("b", "a", message={"role": "user", "content": "", "usage": {"cost": 9}}),
            make_usage_line("c", "b", {"cost": {"total": 0.25}}),
            make_usage_line("d", "c", {"cost": 0.5}),
            make_usage_line("e", "d", {}),
            {"type": "compaction", "id": "f", "parentId": "e", "summary": "s", "usage": {"cost": 1}},
            {"type": "usage", "id": "g", "parentId": "f", "kind": "k", "usage": {"cost": {"total": 2}}},
            {"type": "session_info", "id": "h", "parentId": "g", "name": "  new \u2028"},
        )
    ).totals

    assert (tally.first_message, tally.session_name, tally.cost) == ("hello there", "new", 3.75)
    assert (tally.messages, tally.entries) == (6, 9)


def test_an_annotation_does_not_start_a_branch() -> None:
    label = {"type": "label", "id": "b", "parentId": "a", "targetId": "a", "label": "x"}

    tally = build_digest(build_file(header(), make_line("a", branch="main"), {**label, "branch": "nobody"})).totals

    assert (tally.heads, tally.current, tally.line_branch) == ({"main": "a"}, "main", "nobody")


def test_the_name_in_the_header_applies_until_another_is_set() -> None:
    named = {"type": "session_info", "id": "a", "parentId": None, "name": ""}

    assert build_digest(build_file(header(title="old"))).totals.session_name == "old"
    assert build_digest(build_file(header(title="old"), named)).totals.session_name is None


@pytest.mark.parametrize(
    "odd",
    [
        make_line("b", None, parentId=7),
        make_line("b", "a", message=7),
        {"type": "message", "id": "b", "parentId": "a"},
        {"type": "compaction", "id": "b", "parentId": "a", "firstKeptEntryId": 7},
        {"type": "custom", "id": "b", "customType": "sessiontree.head", "data": {"heads": {"main": 7}}},
    ],
    ids=["parent", "message", "no message", "anchor", "head"],
)
def test_a_file_with_faults_is_refused(odd: dict[str, Any]) -> None:
    data = build_file(header(), make_line("a"), odd)

    assert replay(data)[2]
    with pytest.raises(UnsoundSession):
        build_digest(data)


def make_head_record(data: object, id: str = "r") -> dict[str, object]:
    return {"type": "custom", "id": id, "parentId": None, "customType": "sessiontree.head", "data": data}


def test_values_of_a_wrong_type_are_ignored() -> None:
    empty = make_line("y", None, message={"role": "user"})
    cut = '{"type":"message","id":"z","parentId":null,"message":{"role":"user","content":"half \\ud83d"}}'
    data = {"current": "b", "heads": {"main": "a", "b": None}, "archived": ["main", 7, "gone"], "x": "\ud800"}
    tally = build_digest(
        build_file(
            header(),
            empty,
            cut,
            make_usage_line("a", None, {"cost": True}),
            make_usage_line("b", "a", {"cost": "x"}),
            make_usage_line("c", "b", {"cost": {"total": 10**400}}),
            make_line("d", None, branch=7, current=7, customType=7, branchName=7, firstKeptEntryId=7, usage=7),
            make_line("e", "d", data={"x": "\ud800"}),
            make_line("f", "e", message={"role": 7, "x": "\ud800"}),
            make_head_record(data),
            make_head_record({**data, "archived": 7, "heads": {"main": None, "b": "a"}}, id="r2"),
            "",
        )
    ).totals

    assert tally.first_message == "half ?"
    assert (tally.cost, tally.messages, tally.entries) == (0, 8, 10)
    assert (tally.current, tally.heads, tally.archived) == ("b", {"main": None, "b": "a"}, [])


@pytest.mark.parametrize(
    "lines",
    [
        [make_line("a", "gone")],
        [make_line("a", "a")],
        [make_line("a"), make_line("a")],
        [make_line("a", "b"), make_line("b")],
        ["nonsense"],
        ["[]"],
        ['{"type":"message"}'],
        ['{"type":7,"id":"a"}'],
        ['{"type":"message","id":"\\ud800"}'],
        ['{"type":"message","id":"a","branch":"\\ud800"}'],
        [make_head_record("\ud800")],
        [make_head_record({"current": "main", "heads": 7, "x": "\ud800"})],
        [make_head_record({"current": "main", "heads": {}})],
        [make_head_record({"current": "nobody", "heads": {"main": None}})],
        [make_head_record({"heads": {"main": None}})],
        [make_head_record({"current": "main", "heads": {"main": "gone"}})],
        [make_line("a"), {"type": "compaction", "id": "b", "parentId": "a", "firstKeptEntryId": "gone"}],
        [make_line("a"), make_line("b"), {"type": "compaction", "id": "c", "parentId": "b", "firstKeptEntryId": "a"}],
        [make_line("a"), {"type": "compaction", "id": "b", "parentId": None, "firstKeptEntryId": "a"}],
        [make_line("a", message={"role": "user", "content": nest_lists(NESTING_LIMIT - 1)})],
        [make_line("a", message={"role": "user", "content": nest_lists(700)})],
        [make_line("a"), make_line("b", "a", message=nest_lists(NESTING_LIMIT), data="\ud800")],
        [{"type": "custom", "id": "a", "customType": "sessiontree.head", "data": nest_lists(NESTING_LIMIT)}],
        [{"type": "custom", "id": "a", "customType": "sessiontree.head", "data": nest_lists(700)}],
        [{"type": "future", "id": "a", "field": nest_lists(NESTING_LIMIT)}],
        [
            {
                "type": "custom",
                "customType": "sessiontree.head",
                "id": "a",
                "parentId": None,
                "data": {"heads": {"main": "gone"}},
            }
        ],
    ],
)
def test_every_fault_is_detected(lines) -> None:
    with pytest.raises(UnsoundSession):
        build_digest(build_file(header(), *lines))


@pytest.mark.parametrize(
    "harm",
    [
        lambda raw: raw.replace(b"}\n{", b"}{", 1),
        lambda raw: raw.replace(b"}\n{", b"} {", 1),
        lambda raw: raw.replace(b",", b",\n", 1),
        lambda raw: raw.replace(b"{", b"{\n", 1),
        lambda raw: raw.replace(b",", b",\n", 1).replace(b"}\n{", b"}{", 1),
    ],
    ids=["glued", "glued with a blank", "split", "split at once", "as many lines as entries"],
)
def test_a_line_is_one_entry_and_an_entry_one_line(harm: Callable[[bytes], bytes]) -> None:
    lines = build_file(make_line("a"), make_line("b", "a"), make_line("c", "b"))

    assert replay(build_file(header()) + harm(lines))[2]
    with pytest.raises(UnsoundSession):
        build_digest(build_file(header()) + harm(lines))


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\n\n", b" \n\t\n"])
def test_white_space_between_lines_makes_no_difference(end: bytes) -> None:
    data = build_file(header(), make_line("a"), make_line("b", "a"))[:-1] + end

    assert build_digest(data).totals == build_digest(build_file(header(), make_line("a"), make_line("b", "a"))).totals
    assert build_digest(data.replace(b"}\n{", b"}\r\n{")).totals.entries == 2


def make_ladder(depth: int) -> str:
    """Return a deeply nested line with a value after every closing bracket."""
    value = '{"x":' + "[" * (depth - 2) + "7" + ",7]" * (depth - 2) + "}"
    return '{"type":"future","id":"a","parentId":null,"field":' + value + "}"


def test_a_line_too_deep_for_decoders_is_unsound_in_any_form() -> None:
    with pytest.raises(UnsoundSession):
        build_digest(build_file(header(), make_line("b"), make_ladder(100_000)))


def test_an_exhausted_stack_is_not_a_fault_of_the_file() -> None:
    data = build_file(header(), make_ladder(NESTING_LIMIT))

    assert build_digest(data).totals.entries == 1
    with limit_stack(100), raises_if_stack_is_shared():
        build_digest(data)


def test_a_line_at_the_nesting_limit_is_sound() -> None:
    said = make_line("a", message={"role": "user", "content": nest_lists(NESTING_LIMIT - 2)})

    assert build_digest(build_file(header(), said, make_line("b", "a"))).totals.first_message == "b"


def test_invalid_utf8_in_unread_strings_is_left_to_the_caller() -> None:
    said = b'{"type":"message","id":"a","parentId":null,"message":{"role":"user","content":"caf\xe9"}}'

    assert build_digest(build_file(header(), said)).totals.first_message == "caf\ufffd"


def test_older_dialects_and_unreadable_starts_need_a_full_open() -> None:
    for data in (build_file(header(version=2)), build_file("nonsense", header())):
        with pytest.raises(UnsoundSession):
            start_digest(read(data)[0])
    with pytest.raises(FormatError):
        start_digest(read(b"\n")[0])


def test_a_header_keeps_encodable_characters() -> None:
    tally = start_digest(read(build_file(header(cwd="/\udcff", parentSession="/p.jsonl")))[0]).totals

    assert (tally.cwd, tally.parent_session) == ("/?", "/p.jsonl")


# Large files


class CountedParents(list[int]):
    """The parents of entries, with a count of lookups."""

    lookups = 0

    def __getitem__(self, number: Any) -> Any:
        self.lookups += 1
        return super().__getitem__(number)


class CountedName(str):
    """A name that counts comparisons."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        CountedName.compared += 1
        return super().__eq__(other)


def count_lookups(*lines: dict[str, Any]) -> float:
    """Return how often parents are looked up for each line of a file."""
    made = start_digest(read(build_file(header()))[0])
    parents = made._parents = made._ancestors._parents = CountedParents()
    made.feed(build_file(*lines))
    return parents.lookups / len(lines)


def make_compaction(id: str, parent: str, anchor: str) -> dict[str, Any]:
    return {"type": "compaction", "id": id, "parentId": parent, "firstKeptEntryId": anchor, "branch": "main"}


@pytest.mark.parametrize("back", [lambda number: 0, lambda number: number // 2, lambda number: max(0, number - 700)])
@pytest.mark.parametrize("step", [1, 2])
def test_distant_anchors_do_not_slow_down_a_listing(back: Any, step: int) -> None:
    first = [make_line(f"{number}", branch="main") for number in range(step)]
    lines = [
        make_compaction(f"{number}", f"{number - step}", f"{number % step + back(number // step) * step}")
        for number in range(step, 3000)
    ]

    assert count_lookups(*first, *lines) < 100


@given(st.lists(st.integers(1, 4), min_size=70, max_size=300), st.data())
def test_ancestors_are_found_at_any_distance(steps: list[int], choice: st.DataObject) -> None:
    parents = [max(-1, number - step) for number, step in enumerate(steps)]
    above, at = module._Ancestors(parents), len(parents) - 1
    way = set[int]()
    number = at
    while number >= 0:
        way.add(number)
        number = parents[number]

    for asked in choice.draw(st.lists(st.integers(0, at), max_size=20)):
        assert above.contains(asked, at) is (asked in way)


def test_a_chain_of_labels_does_not_slow_down_a_listing() -> None:
    labels = [
        {"type": "label", "id": f"{number}", "parentId": f"{number - 1}", "targetId": "0", "label": "x"}
        for number in range(1, 2000)
    ]

    assert count_lookups(make_line("0"), *labels) < 5


def test_many_archived_branches_do_not_slow_down_a_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [CountedName(f"b{number}") for number in range(2000)]
    heads = {CountedName(name): None for name in names}
    said = {"current": names[0], "heads": heads, "archived": [*names, ["odd"], None]}
    monkeypatch.setattr(module, "_decode_value", lambda raw: said)
    record = {"type": "custom", "id": "r", "parentId": None, "customType": "sessiontree.head", "data": {}}
    CountedName.compared = 0

    made = build_digest(build_file(header(), make_line("a", branch=None), record))

    assert (made.totals.branch_count, made.find_branches("a")) == (0, {"a": None})
    assert len(made.totals.archived) == len(names)
    assert CountedName.compared < 20 * len(names)


@pytest.mark.parametrize("heads", [{"main": "\ud800"}, {"main": "a", "\udfff": "a"}])
def test_a_head_record_with_a_lone_surrogate_needs_a_full_open(heads: dict[str, str]) -> None:
    record = {"type": "custom", "customType": "sessiontree.head", "id": "b", "parentId": "a"}
    data = build_file(header(), make_line("a"), {**record, "data": {"current": "main", "heads": heads}})

    with pytest.raises(UnsoundSession):
        build_digest(data)
