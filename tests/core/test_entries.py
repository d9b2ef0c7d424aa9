import copy
import pickle
from typing import ClassVar

import pytest
from msgspec.structs import asdict

from sessiontree.core.entries import HEAD_RECORD, Custom, CustomMessage, Entry, Label, SessionInfo, Usage
from sessiontree.core.messages import user
from tests.builders import entry


def test_a_body_is_decoded_when_somebody_looks_and_only_once():
    class Source:
        looked: ClassVar[list[bytes]] = []

        def read_raw(self, line):
            return b"line %d" % line

        def decode_timestamp(self, raw):
            return raw.decode()

        def decode_body(self, raw):
            self.looked.append(raw)
            return user("hello")

    lazy = Entry(id="a", parent=None, type="message", line=2, source=Source())

    assert Source.looked == []
    assert lazy.body is lazy.body
    assert lazy.decode() is lazy.body
    assert Source.looked == [b"line 2"]
    assert lazy.timestamp == "line 2"


def test_a_body_can_be_looked_at_without_being_kept():
    said = entry("a")

    assert said.decode() == said.decode()
    assert said.cached_body is None


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
def test_what_is_said_about_the_session_is_an_annotation(body):
    assert entry("b", "a", body).is_annotation


@pytest.mark.parametrize(
    "body",
    [user("hello"), Custom(custom_type="mine"), CustomMessage(custom_type=HEAD_RECORD, content="x"), {"type": "new"}],
)
def test_what_is_part_of_the_conversation_is_no_annotation(body):
    assert not entry("b", "a", body).is_annotation


def test_only_a_custom_entry_of_our_type_is_a_head_record():
    assert entry("b", "a", Custom(custom_type=HEAD_RECORD)).is_head_record
    assert not entry("b", "a", Custom(custom_type="mine")).is_head_record
    assert not entry("b", "a", CustomMessage(custom_type=HEAD_RECORD, content="x")).is_head_record


def test_an_entry_shows_what_it_is_and_where_it_hangs():
    assert repr(entry("b", "a")) == "<Entry b message under a>"


def test_a_copy_or_a_pickle_of_an_entry_says_the_same_and_has_its_bytes_with_it():
    said = Entry(**{**asdict(entry("b", "a", Custom(custom_type="mine", data=[1]))), "line": 7, "current": "side"})

    for made in (copy.deepcopy(said), pickle.loads(pickle.dumps(said))):
        assert made.source is not said.source
        assert (made.raw, made.timestamp, made.body) == (said.raw, said.timestamp, said.body)
        assert {**asdict(made), "source": None, "kept": None} == {**asdict(said), "source": None, "kept": None}
