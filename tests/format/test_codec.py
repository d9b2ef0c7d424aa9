import json
import tracemalloc
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sessiontree
from sessiontree.core import entries as e
from sessiontree.core.messages import extract_text, get_tool_calls, preview_message, user
from sessiontree.core.tree import Tree
from sessiontree.errors import InvalidOperation
from sessiontree.format import json_line
from sessiontree.format.codec import (
    HEAD_KEYS,
    WIRE,
    ChainWriter,
    MemoryLine,
    build_copy_fields,
    encode_body,
    find_hidden_keys,
    find_unknown_fields,
    get_type,
    is_readable,
    parse_body,
    read_body,
    read_entry,
    read_header,
    read_line_preview,
    read_preview,
    write_entry,
    write_header,
    write_message,
)
from sessiontree.format.json_line import NotJson, read_object, write_object
from sessiontree.format.nesting import NESTING_LIMIT
from sessiontree.format.session_reader import SessionReader
from tests.builders import TIME, entry, limit_stack, nest_lists, raises_if_stack_is_shared
from tests.strategies import json_values, object_texts

BODIES = [
    user("hi"),
    e.ModelChange(provider="p", model="m", role="default"),
    e.ThinkingLevelChange("high"),
    e.Compaction(
        summary="S",
        first_kept="a",
        tokens_before=9,
        details={"x": 1},
        from_hook=True,
        usage={"input": 1},
        system_message={"role": "system"},
        state={"mode": "plan"},
    ),
    e.BranchSummary(summary="S", abandoned_leaf="root", details=[1], from_hook=False, usage={}),
    e.Custom(custom_type="x", data=[None]),
    e.CustomMessage(custom_type="x", content="c", display=False, details=0),
    e.Label(target="a", text="x"),
    e.SessionInfo("n"),
    e.Usage(kind="warm", provider="p", model="m", usage={"input": 1}, note="why"),
    e.ContextEdit(target="a", replacement={"content": "x"}),
    e.BranchPoint(name="side", description="why"),
    e.AgentAction(action="spawn", agent="a1", data=1.5),
    e.ModeChange(mode="plan", data={}),
    e.RuleInjection(("r1", "r2")),
    e.ResetBoundary(),
    e.Original(program="claude", file="/a.jsonl", offset=1, size=2, content="eA==", heads={"main": "a"}),
    e.Opaque(type="from_the_future", fields={"b": 1, "a": [2]}),
]
"""Every body type with every field set."""


def write_default_entry(body, **fields):
    return write_entry(body, **{"id": "b", "parent": "a", "timestamp": TIME, "branch": "main", **fields})


# The table


def test_every_field_of_every_type_has_a_wire_name():
    for body, fields in WIRE.values():
        assert set(fields) == set(body.__struct_fields__)


def test_every_body_but_the_unknown_one_has_one_type():
    assert {body for body, _ in WIRE.values()} | {e.Opaque} == set(e.Body.__args__)


def test_no_field_has_the_name_of_a_head_key():
    for _, fields in WIRE.values():
        assert not {field.wire for field in fields.values()} & set(HEAD_KEYS)


@pytest.mark.parametrize("name", ["parentId", "firstKeptEntryId", "targetId"])
def test_wire_names_appear_only_in_the_codec(name):
    source = Path(sessiontree.__file__).parent

    spelling = [path.relative_to(source).as_posix() for path in source.rglob("*.py") if name in path.read_text()]

    assert spelling == ["format/codec.py"]


# Round trips of bodies


@pytest.mark.parametrize("body", BODIES, ids=get_type)
def test_every_body_survives_a_round_trip(body):
    line = write_default_entry(body)

    again = read_entry(line.raw, 7)

    assert again.body == line.body == body
    assert (again.id, again.parent, again.type, again.line) == ("b", "a", get_type(body), 7)
    assert (again.timestamp, again.branch, again.current) == (TIME, "main", None)
    assert (again.custom_type, again.is_annotation) == (line.custom_type, line.is_annotation)


@pytest.mark.parametrize("body", BODIES, ids=get_type)
def test_an_object_in_wire_form_gives_the_same_body_as_its_line(body):
    wire = json.loads(write_default_entry(body).raw)

    assert parse_body(wire) == body
    assert find_unknown_fields({**wire, "extra": 1}) == ({"extra": 1} if get_type(body) in WIRE else {})


def test_a_line_starts_with_the_head_keys():
    line = write_default_entry(e.SessionInfo("n"), current="side", extra={"copiedFrom": "z"})

    assert list(json.loads(line.raw)) == [
        "type",
        "id",
        "parentId",
        "timestamp",
        "branch",
        "current",
        "name",
        "copiedFrom",
    ]
    assert (line.current, read_entry(line.raw, 1).current) == ("side", "side")


def test_unset_fields_are_not_written_but_meaningful_nulls_are():
    assert encode_body(e.Label(target="a")) == {"targetId": "a"}
    assert encode_body(e.ContextEdit(target="a")) == {"targetId": "a", "replacement": None}
    assert encode_body(e.SessionInfo(None)) == {"name": None}
    assert encode_body(e.ThinkingLevelChange(None)) == {"thinkingLevel": None}


def test_an_unknown_body_cannot_overwrite_head_keys():
    wire = encode_body(e.Opaque(type="new", fields={"id": "stolen", "parentId": "x", "a": 1}))

    assert wire == {"a": 1}


@pytest.mark.parametrize(
    ("fields", "provider", "model"),
    [
        ({"provider": "p", "modelId": "m"}, "p", "m"),
        ({"model": "p/m"}, "p", "m"),
        ({"model": "p/m/x"}, "p", "m/x"),
        ({"model": "m"}, None, "m"),
        ({"provider": "p", "model": "m"}, "p", "m"),
        ({"model": 5}, None, None),
        ({}, None, None),
    ],
)
def test_a_model_change_names_its_model_in_one_field_or_in_two(fields, provider, model):
    body = parse_body({"type": "model_change", **fields})

    assert body == e.ModelChange(provider=provider, model=model)


@given(st.sampled_from(sorted(WIRE)), st.data())
def test_any_json_in_any_field_can_be_read(type, data):
    cls, fields = WIRE[type]
    wire = {"type": type, **{field.wire: data.draw(json_values) for field in fields.values()}}

    body = parse_body(wire)

    assert isinstance(body, cls)
    assert parse_body(read_object(write_object({"type": type, **encode_body(body)}))) == body


@pytest.mark.parametrize("count", ["1" * 400, "1e999", "-1e999", '"5"', "true", "null"])
def test_an_invalid_count_is_zero(count):
    line = read_entry(b'{"type":"compaction","id":"a","tokensBefore":%s}' % count.encode(), 1)

    assert line.body.tokens_before == 0


def test_a_number_with_fifty_digits_is_read_exactly():
    assert read_object(b'{"n":%s}' % (b"7" * 50)) == {"n": int("7" * 50)}


# Lines


def test_a_peers_line_has_no_branch_and_a_late_result_has_none():
    assert entry("a").branch is e.UNSET
    assert entry("a", branch=None).branch is None
    assert entry("a", branch="side").branch == "side"
    assert entry("a", branch=5).branch is e.UNSET


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "not a JSON object"),
        (b"{", "expecting property name"),
        (b"[]", "not a JSON object"),
        (b"5", "not a JSON object"),
        (b'{"id":"a"}', "no type"),
        (b'{"type":5,"id":"a"}', "no type"),
        (b'{"type":"message"}', "no id"),
        (b'{"type":"message","id":5}', "no id"),
        (b'{"type":"message","id":"a","x":NaN}', "NaN is not JSON"),
        (b'{"type":"message","id":"a","x":-Infinity}', "-Infinity is not JSON"),
        (b'{"type":"message","id":"a"} {}', "extra data at character 29"),
        (b'{"type":"message","id":"a', "unterminated string starting at character 24"),
        (b'{"type":"message","id":"a","x":"\x01"}', "control character at character 33"),
        (b'{"x":' + b"[" * 100_000, "nested too deeply: more than 254 levels"),
    ],
)
def test_a_line_that_is_not_an_entry_has_a_reason(raw, reason):
    with pytest.raises(NotJson, match=reason):
        read_entry(raw, 1)


@pytest.mark.parametrize(
    ("raw", "id"),
    [
        (b'{"type":"message","id":"\\ud800","message":{}}', "\ud800"),
        (b'{"type":"message","id":"\xff","message":{}}', "\ufffd"),
        (b'{"type":"message","id":"a","message":{},"x":"\\udfff"}', "a"),
        (b'{"type":"message","id":"a","message":{},"x":"\xff"}', "a"),
        (b'{"type":"message","id":"a","message":{},"x":1e999}', "a"),
        (b'{"type":"message","id":"a","message":{},"x":%s}' % (b"7" * 5000), "a"),
        (b' {"type":"message","id":"a","message":{}}\r', "a"),
        (b'{"type":"x","id":"z","id":"a","type":"message","message":{}}', "a"),
        (b'{"t\\u0079pe":"message","\\u0069d":"a","message":{}}', "a"),
    ],
)
def test_unusual_lines_are_read_and_keep_their_bytes(raw, id):
    line = read_entry(raw, 1)

    assert (line.id, line.raw) == (id, raw)
    assert line.body == e.Message({})


def test_a_head_that_only_the_standard_library_reads_is_read_in_full():
    raw = (
        b'{"type":"custom","id":"a","parentId":"\\ud800","timestamp":"t","branch":null,"current":"c","customType":"k"}'
    )

    line = read_entry(raw, 1)

    assert (line.parent, line.timestamp, line.branch, line.current, line.custom_type) == ("\ud800", "t", None, "c", "k")


@pytest.mark.parametrize("given", [{"role": "user", "content": "Hello"}, "Hello", None])
def test_a_value_that_is_not_a_body_is_refused_with_an_example(given):
    with pytest.raises(InvalidOperation, match=r'an entry needs a body such as st.user\("hi"\), not '):
        get_type(given)


def test_an_entry_that_cannot_be_read_cannot_be_copied():
    raw = b'{"type":"message","id":"a","parentId":null,"timestamp":"t","message":{"role":oops}}\n'
    tree = Tree(SessionReader().feed(write_header(id="s", timestamp=TIME, cwd="/") + b"\n" + raw))

    with pytest.raises(InvalidOperation, match="cannot copy entry 'a': expecting value"):
        build_copy_fields(tree["a"])


def make_nested_line(depth, inmost=b""):
    """Return a line with a message that is nested that deep, not counting the content of the innermost list."""
    return write_object({"type": "message", "id": "a", "message": {"role": "user"}})[:-2] + (
        b',"details":' + b"[" * (depth - 2) + inmost + b"]" * (depth - 2) + b"}}"
    )


def test_a_line_is_read_up_to_the_nesting_limit():
    whole, deeper = make_nested_line(NESTING_LIMIT), make_nested_line(NESTING_LIMIT + 1)

    assert read_entry(whole, 1).body == e.Message(json.loads(whole)["message"])
    assert read_preview(whole) is not None
    with pytest.raises(NotJson, match="nested too deeply: more than 254 levels"):
        read_entry(deeper, 1)
    assert read_body(deeper) is e.UNREADABLE
    assert read_preview(make_nested_line(100_000)) is None


def test_readability_is_checked_without_building_objects():
    wide = b'{"a":[' + b"{}," * 100_000 + b"1]}"

    tracemalloc.start()
    try:
        assert is_readable(wide)
        assert tracemalloc.get_traced_memory()[1] < 5 * len(wide)
    finally:
        tracemalloc.stop()
    assert not is_readable(wide[:-2] + b"@}")


@pytest.mark.parametrize(
    "raw",
    [
        make_nested_line(NESTING_LIMIT),
        make_nested_line(NESTING_LIMIT + 1),
        b'{"x":' + b"[" * 100_000,
        b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        *(
            b'{"x":%b}' % value
            for value in (b'"\\ud800"', b'"\\x"', b'"\0"', b'"\xff"', b"01", b"1e400", b"NaN", b"[1,]")
        ),
        b"[1]",
    ],
)
def test_a_line_can_be_read_if_it_has_a_body(raw):
    assert is_readable(raw) is (read_body(raw) is not e.UNREADABLE)
    assert read_entry(b'{"type":"x","id":"a"}', 1, MemoryLine(raw)).is_readable is is_readable(raw)


def test_the_nesting_limit_does_not_depend_on_the_caller():
    for depth in (NESTING_LIMIT + 1, 500, 2000):
        with limit_stack(100):
            assert read_body(make_nested_line(depth)) is e.UNREADABLE
    for line in (make_nested_line(NESTING_LIMIT), make_nested_line(NESTING_LIMIT - 1, b",".join([b"{}"] * 300))):
        assert read_body(line) == e.Message(json.loads(line)["message"])
        with limit_stack(100), raises_if_stack_is_shared():
            read_body(line)


@pytest.mark.parametrize("depth", [NESTING_LIMIT, 500, 990, 5000])
@pytest.mark.parametrize("more", [{}, {"id": "\ud800"}])
def test_a_value_that_could_not_be_read_back_is_not_written(depth, more):
    with pytest.raises(InvalidOperation, match="cannot be nested more than 254 levels"):
        write_object({"a": nest_lists(depth), **more})


def test_too_deep_values_are_refused_even_if_the_encoder_accepts_them(monkeypatch):
    monkeypatch.setattr(orjson, "dumps", lambda value, *_: json.dumps(value).encode())
    monkeypatch.setattr(json_line, "_dumps", json_line._import_and_dump)

    with pytest.raises(InvalidOperation, match="cannot be nested more than 254 levels"):
        write_object({"a": nest_lists(NESTING_LIMIT)})
    assert write_object({"a": nest_lists(2)}) == b'{"a":[[]]}'


def test_a_value_that_contains_itself_is_not_written():
    value = []
    value.append(value)

    for wire in ({"a": value}, {"a": "\ud800", "b": value}):
        with pytest.raises(InvalidOperation, match="nested"):
            write_object(wire)


def test_a_value_at_the_nesting_limit_is_written_from_any_stack_depth():
    wire = {"a": nest_lists(NESTING_LIMIT - 1)}

    with limit_stack(100):
        line = write_object(wire)

    assert read_object(line) == wire


def test_the_slow_encoder_needs_free_stack():
    wire = {"a": nest_lists(NESTING_LIMIT - 1), "b": "\ud800"}

    assert read_object(write_object(wire)) == wire
    with limit_stack(100), raises_if_stack_is_shared():
        write_object(wire)


def test_tuples_count_as_lists():
    def nest_tuples(depth, inmost):
        for _ in range(depth):
            inmost = (inmost,)
        return inmost

    for inmost, within in ((), 1), (nest_lists(200), 200), ({"b": {}}, 2):
        most = NESTING_LIMIT - 1 - within
        assert is_readable(write_object({"a": nest_tuples(most, inmost)}))
        with pytest.raises(InvalidOperation, match="cannot be nested"):
            write_object({"a": nest_tuples(most + 1, inmost)})


def write_message_line(message):
    return write_message(message, "a", None, TIME, "main", None)


@dataclass
class CachedValue:
    _secret: int
    open: str


class CustomString(str):
    pass


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (CachedValue(1, "x"), b'{"_secret":1,"open":"x"}'),
        (datetime(2026, 1, 2, tzinfo=UTC), b'"2026-01-02T00:00:00Z"'),
        (OrderedDict(a=1), b'{"a":1}'),
        ({1: 2}, b'{"1":2}'),
        ({"b"}, b'["b"]'),
    ],
)
def test_values_outside_json_are_written_as_before(value, text):
    assert write_object({"a": value}) == b'{"a":' + text + b"}"
    assert text in write_message_line({"a": value})


def test_string_subclasses_are_refused():
    with pytest.raises(TypeError):
        write_message_line({"a": CustomString("x")})


@given(object_texts)
def test_a_line_reads_like_json_or_is_refused_without_a_head(raw):
    assert read_object(raw) == json.loads(raw)
    with pytest.raises(NotJson, match="no type"):
        read_entry(raw, 1)


@given(st.dictionaries(st.text(st.characters(codec=None), min_size=1), json_values))
def test_every_value_is_written_as_one_line_and_reads_back(wire):
    raw = write_object(wire)

    assert b"\n" not in raw
    assert read_object(raw) == wire


def test_lone_surrogates_and_large_integers_survive_a_round_trip():
    assert write_object({"a": "\ud800"}) == b'{"a":"\\ud800"}'
    assert write_object({"a": 10**30}) == b'{"a":1000000000000000000000000000000}'


@pytest.mark.parametrize(("branch", "current"), [("main", None), ("side", "main"), (None, None)])
def test_a_chain_of_messages_is_written_as_its_entries_are(branch, current):
    writer = ChainWriter(TIME, branch, current)
    for message, id, parent in ((user("a"), "1", None), (user("b"), "2", "1")):
        given = {"id": id, "parent": parent, "timestamp": TIME, "branch": branch, "current": current}
        line = writer.write(message.message, id, parent)
        assert line == write_message(message.message, **given) == write_entry(message, **given).raw


@pytest.mark.parametrize("odd", ["\ud800", 10**30, "plain"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinity_become_null_next_to_any_value(odd, value):
    assert read_object(write_object({"a": odd, "b": [value, 1.5]})) == {"a": odd, "b": [None, 1.5]}


@pytest.mark.parametrize("beside", [1.5, float("nan"), "\ud800"])
def test_an_integer_with_too_many_digits_is_refused(beside):
    with pytest.raises(InvalidOperation, match="an integer of more than 4300 digits"):
        write_object({"a": beside, "b": [10**5000]})
    with pytest.raises(InvalidOperation, match="an integer of more than 4300 digits"):
        write_message({"role": "user", "content": beside, "more": {"b": -(10**5000)}}, "a", None, TIME, "main", None)


@pytest.mark.parametrize(
    "body", [e.Custom(custom_type="a", data=10**5000), e.Message({"role": "user", "content": "x", "n": [10**5000]})]
)
def test_an_entry_with_a_refused_integer_is_not_written(tmp_path, body):
    file = tmp_path / "s.jsonl"
    with sessiontree.create(file=file) as session:
        session.append(user("one"))
        before = file.read_bytes()

        with pytest.raises(InvalidOperation, match="an integer of more than 4300 digits"):
            session.append(body)

        assert file.read_bytes() == before
        assert session.append(user("two")).parent == session.tree.entries[0].id


# Lines of the standard form

BEGUN = b'{"type":"message","id":"b","parentId":"a","timestamp":"t","branch":"main","message":{"role":"user"}'


@pytest.mark.parametrize(
    ("behind", "keys"),
    [
        (b"", []),
        (b',"meta":{}', []),
        (b',"meta":{},"branch":"side"', []),
        (b',"branch":"side","meta":{}', ["branch"]),
        (b',"\\u0062ranch":null, "meta":{"x":{}}', ["branch"]),
        (
            b',"current":"side","id":"c","timestamp":"u","parentId":5,"type":"custom","meta":{}',
            {*HEAD_KEYS} - {"branch"},
        ),
        (b',"branch":"main","id":"b","customType":"x","meta":{}', []),
        (b',"branch":"side","meta":{]}', []),
    ],
)
def test_keys_after_the_message_are_ignored_in_lines_of_the_standard_form(behind, keys):
    assert {*find_hidden_keys(BEGUN + behind + b"}")} == {*keys}


def test_a_timestamp_after_the_message_counts_except_in_the_standard_form():
    assert read_entry(BEGUN + b',"timestamp":"u","meta":{}}', 1).timestamp == "t"
    assert read_entry(BEGUN + b',"timestamp":"u","meta":1}', 1).timestamp == "u"


# The header


def test_a_header_survives_a_round_trip():
    fields = {"timestamp": TIME, "cwd": "/x", "parent_session": "/old", "forked_from": "a", "title": "t"}
    raw = write_header(id="s", **fields, origin={"program": "claude"})

    header = read_header(raw, json.loads(raw))

    assert header == e.Header(raw=raw, id="s", version=3, **fields, origin={"program": "claude"})
    assert header.origin_name == "claude"


def test_unset_header_fields_are_not_written():
    assert json.loads(write_header(id="s", timestamp=TIME, cwd="/x")) == {
        "type": "session",
        "version": 3,
        "id": "s",
        "timestamp": TIME,
        "cwd": "/x",
    }


@pytest.mark.parametrize(
    "wire", [{}, {"type": "message", "id": "a"}, {"type": "session"}, {"type": "session", "id": 5}]
)
def test_a_line_that_is_not_a_header_gives_none(wire):
    assert read_header(b"", wire) is None


@pytest.mark.parametrize(
    ("said", "version"), [({}, 1), ({"version": 2}, 2), ({"version": 9}, 9), ({"version": True}, 3)]
)
def test_a_missing_version_is_1_and_an_invalid_one_is_the_current(said, version):
    assert read_header(b"", {"type": "session", "id": "s", **said}).version == version


def test_the_title_of_a_header_is_its_title_or_its_name():
    assert read_header(b"", {"type": "session", "id": "s", "name": "n"}).title == "n"
    assert read_header(b"", {"type": "session", "id": "s", "name": "n", "title": "t"}).title == "t"


GLANCED = ("role", "content", "stopReason", "toolCallId", "toolName", "command", "code")
BLOCKED = ("type", "text", "id", "name", "arguments")
glanced_values = (
    json_values
    | st.sampled_from(["assistant", "toolResult", "aborted"])
    | st.lists(
        st.dictionaries(
            st.sampled_from(BLOCKED), st.sampled_from(["text", "toolCall", "hi", 1, {"path": "x"}]), max_size=5
        ),
        max_size=3,
    )
)


@given(st.dictionaries(st.sampled_from(GLANCED), glanced_values))
def test_a_preview_agrees_with_the_full_message(message):
    seen = read_preview(write_object({"type": "message", "id": "a", "message": message}))

    assert seen is not None
    read = preview_message(message)
    assert (seen.role, seen.text, seen.calls) == (read.role, read.text, read.calls)
    assert (seen.stop_reason, seen.tool_call_id, seen.tool_name) == (
        read.stop_reason,
        read.tool_call_id,
        read.tool_name,
    )
    assert (seen.command, seen.code, seen.is_failed_turn) == (read.command, read.code, read.is_failed_turn)
    assert seen.text == extract_text(message.get("content"))
    # A preview has no other fields of a call, so the calls are compared by the fields that it has.
    assert [(call.id, call.name, call.arguments) for call in seen.calls] == [
        (call.id, call.name, call.arguments) for call in get_tool_calls(message)
    ]


def test_the_preview_of_an_unreadable_line_is_none():
    assert read_preview(b'{"type":"message","id":"a","message":{"role"}}') is None


# Lines for listings

LINE = b'{"type":"message","id":"a","parentId":%s,"timestamp":"T"%s,"message":{"role":"user","content":"hi"}%s}'


@pytest.mark.parametrize("parent", [b"null", b'"p"'])
@pytest.mark.parametrize("keys", [b"", b',"branch":null', b',"branch":"main"', b',"branch":"main","current":"b"'])
def test_a_line_in_the_usual_form_is_sound(parent, keys):
    line = read_line_preview(LINE % (parent, keys, b""))

    assert line is not None
    assert (line.is_sound, line.timestamp, line.message.text) == (True, "T", "hi")


@pytest.mark.parametrize(
    "raw",
    [
        LINE % (b"null", b"", b',"id":"b"'),
        LINE % (b"null", b"", b',"timestamp":"U"'),
        LINE % (b"null", b"", b',"branch":"b"'),
        LINE % (b"null", b"", b',"x":"\xff"'),
        b" " + LINE % (b"null", b"", b""),
    ],
    ids=["id", "timestamp", "branch", "not UTF-8", "another form"],
)
def test_a_line_with_a_repeated_key_another_form_or_wrong_bytes_is_not_sound(raw):
    line = read_line_preview(raw)

    assert line is not None
    assert not line.is_sound


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b'{"type":"message","id":"a"}',
        LINE % (b"null", b"", b',"x":' + b"[" * 300 + b"]" * 300),
    ],
    ids=["not JSON", "no message", "too deep"],
)
def test_a_line_that_only_the_whole_decoder_can_judge_has_no_preview(raw):
    assert read_line_preview(raw) is None
