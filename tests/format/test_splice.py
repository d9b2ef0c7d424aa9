import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiontree.format.splice import drop_after, drop_key, find_members, get_value, rename_key, set_value
from tests.strategies import json_texts, object_texts

KEYS = st.sampled_from(["id", "a", "é", "new", ""])


def parse(text):
    """Parse `text` with numbers as spelled and objects as lists of members."""
    return json.loads(text, object_pairs_hook=lambda pairs: {"members": pairs}, parse_int=str, parse_float=str)


def parse_pairs(raw):
    return parse(raw)["members"]


# Setting


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'{"id":"x"}', b'{"id":7}'),
        (b'{ "a" : 1.0 ,\t"id" :  null , "b":[ 2 ]}\r', b'{ "a" : 1.0 ,\t"id" :  7 , "b":[ 2 ]}\r'),
        (b'{"id":1,"id":2}', b'{"id":1,"id":7}'),
        (b'{"m":{"id":1},"id":2,"n":["id"]}', b'{"m":{"id":1},"id":7,"n":["id"]}'),
        (b'{"s":"\\"id\\":1,{[","id":2}', b'{"s":"\\"id\\":1,{[","id":7}'),
        (b'{"\\u0069d":1}', b'{"\\u0069d":7}'),
        (b'{"a":"id","id":{"b":[{}]}}', b'{"a":"id","id":7}'),
    ],
)
def test_only_the_value_changes(before, after):
    assert set_value(before, "id", b"7") == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'{"type":"x","b":1}', b'{"type":"x","id":7,"b":1}'),
        (b'{"type" : [1] }', b'{"type" : [1],"id":7 }'),
        (b" {} ", b' {"id":7} '),
        (b"{ }", b'{"id":7 }'),
    ],
)
def test_a_new_member_is_inserted_after_the_first(before, after):
    assert set_value(before, "id", b"7") == after


@given(object_texts, KEYS, json_texts)
def test_setting_a_value_agrees_with_a_parser(raw, key, value):
    expected = parse_pairs(raw)
    places = [place for place, (name, _) in enumerate(expected) if name == key]
    if places:
        expected[places[-1]] = (key, parse(value))
    else:
        expected.insert(1, (key, parse(value)))

    assert parse_pairs(set_value(raw, key, value.encode())) == expected


@given(object_texts, KEYS, json_texts)
def test_setting_a_value_back_restores_every_byte(raw, key, value):
    before = get_value(raw, key)
    changed = set_value(raw, key, value.encode())

    assert get_value(changed, key) == value.strip(" \t\r").encode()
    if before is not None:
        assert set_value(changed, key, before) == raw


# Reading


def test_of_members_with_one_name_the_last_counts():
    assert get_value(b'{"a": 1.0 , "a":\t[ 2 ] }', "a") == b"[ 2 ]"
    assert get_value(b'{"b":{"a":1}}', "a") is None


@given(object_texts)
def test_members_are_those_a_parser_finds(raw):
    found = [(member.name, parse(raw[member.value : member.end])) for member in find_members(raw)]

    assert found == parse_pairs(raw)


# Dropping and renaming


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'{"a":1, "id":2, "b":3}', b'{"a":1, "b":3}'),
        (b'{"id":2 , "b":3}', b'{"b":3}'),
        (b'{"a":1 , "id":2 }', b'{"a":1 }'),
        (b'{ "id":2 }', b"{  }"),
        (b'{"id":1,"id":2}', b"{}"),
        (b'{"a":1}', b'{"a":1}'),
    ],
)
def test_a_member_is_dropped_with_its_comma(before, after):
    assert drop_key(before, "id") == after


@given(object_texts, KEYS)
def test_dropping_a_key_agrees_with_a_parser(raw, key):
    assert parse_pairs(drop_key(raw, key)) == [(name, value) for name, value in parse_pairs(raw) if name != key]


def test_only_members_after_the_given_one_are_dropped():
    raw = b'{"a":1,"m":{"a":2}, "b":3,"a":4 ,"c":5,"m":{},"b":6}'

    assert drop_after(raw, "m", ["a", "b"]) == b'{"a":1,"m":{"a":2}, "c":5,"m":{}}'


def test_renaming_changes_only_the_name():
    assert rename_key(b'{ "uuid" : "uuid", "m":{"uuid":1} }', "uuid", "id") == b'{ "id" : "uuid", "m":{"uuid":1} }'


@given(object_texts, KEYS)
def test_renaming_a_key_agrees_with_a_parser(raw, key):
    expected = [("other" if name == key else name, value) for name, value in parse_pairs(raw)]

    assert parse_pairs(rename_key(raw, key, "other")) == expected


# Long lines


class CountedLine(bytes):
    """A line that counts how much of it is copied."""

    copied_bytes = 0

    def __getitem__(self, place):
        part = CountedLine(super().__getitem__(place))
        CountedLine.copied_bytes += len(part)
        return part

    def __add__(self, more):
        return CountedLine(super().__add__(more))


@pytest.mark.parametrize(
    "change", [lambda raw: drop_key(raw, "id"), lambda raw: rename_key(raw, "id", "other")], ids=["drop", "rename"]
)
def test_a_repeated_name_does_not_copy_the_line_repeatedly(change):
    raw = CountedLine(b"{%s}" % b",".join([b'"id":1'] * 1000))
    CountedLine.copied_bytes = 0

    change(raw)

    assert CountedLine.copied_bytes < 4 * len(raw)


@pytest.mark.parametrize("text", ["x", '"', "\n", "long \n lines \n"])
def test_a_long_string_takes_no_more_memory_than_the_line(text):
    raw = json.dumps({"type": "message", "text": text * (1_000_000 // len(text)), "id": 1}).encode()
    tracemalloc.start()

    changed = set_value(raw, "id", b"7")

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert changed.endswith(b'"id": 7}')
    assert peak < 3 * len(raw)
