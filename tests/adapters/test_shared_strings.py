"""Framework data beside messages, without long texts twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as hs

from sessiontree.adapters.shared_strings import REFERENCE, restore_strings, share_strings
from sessiontree.errors import FormatError

LONG = "a long text " * 20

JSON = hs.recursive(
    hs.none() | hs.booleans() | hs.integers() | hs.sampled_from([LONG, LONG.upper(), "short"]),
    lambda inner: hs.lists(inner) | hs.dictionaries(hs.sampled_from([REFERENCE, "a", "b"]), inner),
)


@given(JSON, hs.lists(hs.dictionaries(hs.sampled_from([REFERENCE, "a", "b"]), JSON)))
def test_restored_data_is_equal(value: object, messages: list[dict[str, object]]) -> None:
    assert restore_strings(share_strings(value, messages), messages) == value


def test_a_long_string_of_a_message_is_stored_once() -> None:
    shared = share_strings({"text": LONG, "other": "b" * 100}, [{}, {"content": [{"text": LONG}]}])

    assert shared == {"text": {REFERENCE: [1, "content", 0, "text"]}, "other": "b" * 100}


@pytest.mark.parametrize("path", [[0], [1, "a"], [0, "a", "b"], ["a"], [], [0, ["x"]]])
def test_a_broken_reference_is_an_error(path: list[object]) -> None:
    with pytest.raises(FormatError, match="no text"):
        restore_strings([{REFERENCE: path}], [{"a": "text"}])
