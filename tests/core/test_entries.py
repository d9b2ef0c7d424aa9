import pytest

from sessiontree.core.entries import HEAD_RECORD, Custom, CustomMessage, Entry, Label, SessionInfo, Usage
from sessiontree.core.messages import user
from tests.builders import entry


def test_a_body_is_decoded_when_somebody_looks_and_only_once():
    looked = []

    def decode(raw):
        looked.append(raw)
        return user("hello")

    lazy = Entry(raw=b"the line", id="a", parent=None, type="message", timestamp="", line=2, decode=decode)

    assert looked == []
    assert lazy.body is lazy.body
    assert looked == [b"the line"]


def test_a_body_that_is_given_needs_no_decoding():
    said = user("hello")

    assert Entry(raw=b"", id="a", parent=None, type="message", timestamp="", line=2, body=said).body is said


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
