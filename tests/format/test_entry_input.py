"""Complete entries are accepted; incomplete ones are refused with the missing field."""

from __future__ import annotations

from typing import Any

import pytest

from sessiontree.core.entries import Message, ModelChange, Opaque, ThinkingLevelChange
from sessiontree.errors import InvalidOperation
from sessiontree.format.entry_input import IncompleteEntry, parse_entry


def test_a_complete_entry_is_accepted_with_its_extra_fields() -> None:
    message = {"role": "user", "content": "hi", "mood": "calm"}

    assert parse_entry({"type": "message", "message": message, "x": 1}) == (Message(message), {"x": 1})


def test_a_model_may_be_given_in_either_spelling() -> None:
    body, _ = parse_entry({"type": "model_change", "model": "openai/gpt-5"})

    assert isinstance(body, ModelChange)
    assert body.model == "gpt-5"


def test_an_entry_of_an_unknown_type_needs_nothing_more() -> None:
    body, extra = parse_entry({"type": "mood", "calm": True})

    assert isinstance(body, Opaque)
    assert extra == {}


@pytest.mark.parametrize(
    ("wire", "lacks"),
    [
        ({}, "a type"),
        ({"type": 7}, "a type"),
        ({"type": "session", "id": "x"}, "a type"),
        ({"type": "message"}, "message"),
        ({"type": "compaction", "summary": ""}, "summary"),
        ({"type": "model_change"}, "modelId"),
    ],
)
def test_the_error_names_the_missing_field(wire: dict[str, Any], lacks: str) -> None:
    with pytest.raises(IncompleteEntry) as error:
        parse_entry(wire)

    assert str(error.value) == lacks


def test_a_message_that_is_not_sent_to_models_is_refused() -> None:
    with pytest.raises(InvalidOperation, match="no role"):
        parse_entry({"type": "message", "message": {"content": "x"}})


def test_a_custom_message_that_is_not_sent_to_models_is_refused() -> None:
    content = [{"type": "video"}]

    with pytest.raises(InvalidOperation, match='blocks of type "video" are not sent to models'):
        parse_entry({"type": "custom_message", "customType": "note", "content": content, "display": True})


def test_null_is_accepted_for_a_field_where_it_has_a_meaning() -> None:
    body, extra = parse_entry({"type": "thinking_level_change", "thinkingLevel": None})

    assert (body, extra) == (ThinkingLevelChange(None), {})
