import json
import tracemalloc
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiontree.core.entries import UNREADABLE
from sessiontree.format import nesting
from sessiontree.format.codec import is_readable, read_body, read_preview
from sessiontree.format.nesting import NESTING_LIMIT, can_be_deep, is_deep, is_deep_text, is_too_deep, looks_deep
from sessiontree.format.tail import read_tail_context
from sessiontree.store.postgres.rows import build_rows
from tests.builders import build_file, header, nest_lists, read


@st.composite
def draw_nested_value(draw):
    """A value nested near the limit in alternating objects and lists, and its depth."""
    depth = draw(st.integers(NESTING_LIMIT - 3, NESTING_LIMIT + 3))
    kinds = draw(st.lists(st.booleans(), min_size=1, max_size=5))
    beside = draw(st.sampled_from([[], ["[{"], [["x"]], [{"]": '"'}], ["\\", {'\\"': '\\\\"['}]]))
    value = []
    for level in range(depth - 1):
        value = {"a": value} if kinds[level % len(kinds)] else [*beside, value]
    return value, depth


@given(draw_nested_value(), st.sampled_from([None, 1]), st.sampled_from([0, nesting.LONG_LINE]))
def test_text_and_value_are_nested_too_deeply_at_the_same_depth(given, indent, long):
    value, depth = given
    raw = json.dumps(value, indent=indent).encode()

    with patch.object(nesting, "LONG_LINE", long):
        assert is_deep(value) is is_deep_text(raw) is (depth > NESTING_LIMIT)
    assert can_be_deep(raw) or depth <= NESTING_LIMIT


def test_brackets_in_strings_and_side_by_side_nest_nothing():
    value = {"a": ["[" * 1000, '\\"{' * 1000, *[{"b": [1]} for _ in range(1000)]]}

    assert can_be_deep(json.dumps(value).encode())
    assert not is_deep(value)
    assert not is_deep_text(json.dumps(value).encode())


def test_wide_lines_take_little_memory_to_check():
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


def test_most_lines_pass_the_quick_nesting_check():
    assert not can_be_deep(b"[" * NESTING_LIMIT)
    assert not can_be_deep(json.dumps({"text": "a long line " * 1000, "b": nest_lists(50), "c": [{}] * 50}).encode())


@pytest.mark.parametrize("around", [b"[%s]", b'{"a":%s}', b'[{"a":%s}]', b'{"a":[%s]}'])
def test_lines_that_close_many_brackets_at_once_look_deep(around):
    deep = b"1"
    for _ in range(NESTING_LIMIT):
        deep = around % deep

    assert looks_deep(b'{"a":1}\n{"b":%s}\n{"c":1}' % deep)
    assert not looks_deep(b'{"a":[[[[{"b":[{}]}]]]]}\n' * 100)


def test_an_unterminated_deep_line_is_too_deep():
    assert is_deep_text(b'{"x":' + b"[" * 100_000)
    assert not is_deep_text(b'{"x":"' + b"[" * 100_000)
    assert not is_deep_text(b'{"x":"' + b'\\"[' * 1_000_000 + b"\\")


@pytest.mark.parametrize("width", [1, 2, 50])
def test_a_value_that_contains_itself_is_deep(width):
    value = []
    value.extend([value] * width)

    assert is_deep(value)


@st.composite
def draw_deep_line(draw):
    """A line, and whether it is nested too deeply, possibly under a key that is repeated later."""
    depth = draw(st.integers(NESTING_LIMIT - 2, NESTING_LIMIT + 2))
    within = draw(st.sampled_from([b"message", b"other"]))
    kinds = draw(st.lists(st.sampled_from([(b"[", b"]"), (b'{"k":', b"}"), (b'{"k":', b',"z":1}'), (b"[", b",1]")])))
    kinds = kinds or [(b"[", b"]")]
    levels = [kinds[level % len(kinds)] for level in range(depth - 2)]
    deep = b"".join(opening for opening, _ in levels) + b'"plum"' + b"".join(end for _, end in reversed(levels))
    repeated = draw(st.sampled_from([b"", b',"x":1', b',"x":"apple"']))
    message = b'{"role":"user","content":"apple"}'
    if within == b"message":
        message = b'{"role":"user","content":"apple","x":' + deep + repeated + b"}"
    line = b'{"type":"message","id":"b","parentId":"a","timestamp":"","branch":"main","message":' + message
    if within == b"other":
        line += b',"y":{"x":' + deep + repeated + b"}"
    line += draw(st.sampled_from([b"}", b" }", b',"end":{}}']))
    if draw(st.booleans()):
        line = b'{"odd":1,' + line[1:]
    return line, depth > NESTING_LIMIT


@given(draw_deep_line())
def test_all_readers_agree_on_which_line_is_nested_too_deeply(given):
    line, expected = given
    first = b'{"type":"message","id":"a","parentId":null,"timestamp":"","branch":"main","message":%b}'
    first %= b'{"role":"user","content":"apple"}'
    file = build_file(header(), first, line)
    bodies = [entry.body for entry in read(file)[1] if entry.id == "b"]
    context = read_tail_context([(file, True)])
    rows, gain = build_rows([first, line])

    assert is_too_deep(line) is expected
    assert is_readable(line) is not expected
    assert (read_body(line) is UNREADABLE) is expected
    assert (read_preview(line) is None) is expected
    assert (bodies in ([], [UNREADABLE])) is expected
    assert context is None or (context.leaf == "a") is expected
    assert (not rows[1].text) is expected
    assert gain.messages == (1 if expected else 2)
