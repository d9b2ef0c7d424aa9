import copy
import pickle
from typing import ClassVar

import pytest
from msgspec.structs import asdict

from sessiontree.core.entries import (
    HEAD_RECORD,
    Custom,
    CustomMessage,
    Entry,
    Label,
    Original,
    SessionInfo,
    Usage,
    sort_by_line,
)
from sessiontree.core.messages import user
from tests.builders import entry


def test_a_body_is_decoded_once_on_first_access():
    class Source:
        decoded: ClassVar[list[bytes]] = []

        def read_raw(self, line):
            return b"line %d" % line

        def decode_timestamp(self, raw):
            return raw.decode()

        def decode_body(self, raw):
            self.decoded.append(raw)
            return user("hello")

    lazy = Entry(id="a", parent=None, type="message", number=2, source=Source())

    assert Source.decoded == []
    assert lazy.body is lazy.body
    assert lazy.decode() is lazy.body
    assert Source.decoded == [b"line 2"]
    assert lazy.timestamp == "line 2"


def test_a_body_can_be_decoded_without_being_cached():
    original = entry("a")

    assert original.decode() == original.decode()
    assert original.cached_body is None


@pytest.mark.parametrize(
    "body",
    [
        Label(target="a", text="x"),
        SessionInfo("named"),
        Usage(kind="warm"),
        Custom(custom_type=HEAD_RECORD),
        Custom(custom_type="session_exit"),
        {"type": "title_change"},
        {"type": "model_usage"},
        {"type": "credential_pin"},
    ],
)
def test_entries_about_the_session_are_annotations(body):
    assert entry("b", "a", body).is_annotation


@pytest.mark.parametrize(
    "body",
    [user("hello"), Custom(custom_type="mine"), CustomMessage(custom_type=HEAD_RECORD, content="x"), {"type": "new"}],
)
def test_entries_of_the_conversation_are_not_annotations(body):
    assert not entry("b", "a", body).is_annotation


def test_only_a_custom_entry_of_our_type_is_a_head_record():
    assert entry("b", "a", Custom(custom_type=HEAD_RECORD)).is_head_record
    assert not entry("b", "a", Custom(custom_type="mine")).is_head_record
    assert not entry("b", "a", CustomMessage(custom_type=HEAD_RECORD, content="x")).is_head_record


def test_the_repr_of_an_entry_shows_its_role_its_text_and_its_parent():
    assert repr(entry("b", "a", user("Why?"))) == "<Entry b user 'Why?' under a>"
    assert repr(entry("b", None, Custom(custom_type="mine"))) == "<Entry b custom under None>"


def test_a_copy_or_a_pickle_of_an_entry_carries_its_bytes():
    original = Entry(
        **{**asdict(entry("b", "a", Custom(custom_type="mine", data=[1]))), "number": 7, "current": "side"}
    )

    for copied in (copy.deepcopy(original), pickle.loads(pickle.dumps(original))):
        assert copied.source is not original.source
        assert (copied.raw, copied.timestamp, copied.body) == (original.raw, original.timestamp, original.body)
        assert {**asdict(copied), "source": None, "cached_body": None} == {
            **asdict(original),
            "source": None,
            "cached_body": None,
        }


def test_an_original_is_described_by_its_file_and_not_by_its_bytes():
    described = Original(program="claude", file="/a.jsonl", content="eA==").describe()

    assert described.line == "original: /a.jsonl"
    assert described.facts == ("claude",)
    assert described.data is None
    assert described.texts == ()


def test_entries_of_several_sources_are_sorted_by_their_lines_in_the_file():
    class Source:
        def __init__(self, first):
            self.first = first

        def get_line(self, number):
            return self.first + number

    late, early = Source(10), Source(1)
    entries = [
        Entry(id=str(number), parent=None, type="message", number=number, source=source)
        for source, number in [(late, 1), (late, 0), (early, 3)]
    ]

    assert sort_by_line(entries) == [2, 1, 0]
    assert sort_by_line(entries[:2]) == [1, 0]
