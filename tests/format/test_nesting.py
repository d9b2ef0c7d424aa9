import json
import tracemalloc
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiontree.format import nesting
from sessiontree.format.nesting import NESTING_LIMIT, is_deep, is_deep_text, looks_deep, may_be_deep
from tests.builders import nested


@st.composite
def nestings(draw):
    """A value nested about as deep as may be, in objects and lists by turns, and how deep that is."""
    depth = draw(st.integers(NESTING_LIMIT - 3, NESTING_LIMIT + 3))
    kinds = draw(st.lists(st.booleans(), min_size=1, max_size=5))
    beside = draw(st.sampled_from([[], ["[{"], [["x"]], [{"]": '"'}], ["\\", {'\\"': '\\\\"['}]]))
    value = []
    for level in range(depth - 1):
        value = {"a": value} if kinds[level % len(kinds)] else [*beside, value]
    return value, depth


@given(nestings(), st.sampled_from([None, 1]), st.sampled_from([0, nesting.LONG]))
def test_text_and_value_are_nested_too_deeply_at_the_same_depth(given, indent, long):
    value, depth = given
    raw = json.dumps(value, indent=indent).encode()

    with patch.object(nesting, "LONG", long):
        assert is_deep(value) is is_deep_text(raw) is (depth > NESTING_LIMIT)
    assert may_be_deep(raw) or depth <= NESTING_LIMIT


def test_brackets_in_strings_and_side_by_side_nest_nothing():
    value = {"a": ["[" * 1000, '\\"{' * 1000, *[{"b": [1]} for _ in range(1000)]]}

    assert may_be_deep(json.dumps(value).encode())
    assert not is_deep(value)
    assert not is_deep_text(json.dumps(value).encode())


def test_what_is_wide_takes_little_memory_to_look_through():
    raw = b'{"a":[' + b'{"b":[1]},' * 20_000 + b"1]}"
    value = json.loads(raw)

    tracemalloc.start()
    try:
        assert not is_deep(value)
        assert tracemalloc.get_traced_memory()[1] < len(raw)
        assert not is_deep_text(raw)
        assert tracemalloc.get_traced_memory()[1] < 10 * len(raw)
    finally:
        tracemalloc.stop()


def test_most_lines_need_no_closer_look():
    assert not may_be_deep(b"[" * NESTING_LIMIT)
    assert not may_be_deep(json.dumps({"text": "a long line " * 1000, "b": nested(50), "c": [{}] * 50}).encode())


@pytest.mark.parametrize("around", [b"[%s]", b'{"a":%s}', b'[{"a":%s}]', b'{"a":[%s]}'])
def test_lines_that_close_many_brackets_at_once_look_deep(around):
    deep = b"1"
    for _ in range(NESTING_LIMIT):
        deep = around % deep

    assert looks_deep(b'{"a":1}\n{"b":%s}\n{"c":1}' % deep)
    assert not looks_deep(b'{"a":[[[[{"b":[{}]}]]]]}\n' * 100)


def test_what_no_decoder_gets_to_the_end_of_is_deep_all_the_same():
    assert is_deep_text(b'{"x":' + b"[" * 100_000)
    assert not is_deep_text(b'{"x":"' + b"[" * 100_000)
    assert not is_deep_text(b'{"x":"' + b'\\"[' * 1_000_000 + b"\\")


@pytest.mark.parametrize("width", [1, 2, 50])
def test_a_value_that_holds_itself_is_deep(width):
    value = []
    value.extend([value] * width)

    assert is_deep(value)
