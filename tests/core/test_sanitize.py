"""Text of session files cannot control a terminal and can be encoded."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from sessiontree.core.sanitize import (
    escape_json,
    escape_line,
    escape_lines,
    escape_raw,
    replace_unencodable,
    replace_unencodable_texts,
)

HOSTILE = "\x1b]0;title\x07 \x1b[2J \x9b31m \x7f \u202e \u2066 \ufeff \ud800 \u2028"


def test_one_line_of_text_has_no_line_ends_and_no_tabs() -> None:
    assert escape_line("a\tb\nc\r") == "a\\x09b\\x0ac\\x0d"


def test_lines_keep_their_ends_and_tabs() -> None:
    assert escape_lines("a\tb\nc\r\x1b[0m") == "a\tb\nc\\x0d\\x1b[0m"


def test_ordinary_text_is_not_changed() -> None:
    assert escape_line("café 漢字 🌳 <b> \\x1b") == "café 漢字 🌳 <b> \\x1b"


def test_invisible_characters_are_escaped() -> None:
    assert escape_line("a\u200bb\u2060c\U000e0041") == "a\\u200bb\\u2060c\\U000e0041"


def test_joiners_are_kept() -> None:
    assert escape_line("👩\u200d💻 می\u200cخواهم") == "👩\u200d💻 می\u200cخواهم"


def test_escapes_in_json_are_json() -> None:
    written = escape_json(json.dumps("a\u202eb\x7f", ensure_ascii=False))

    assert written == '"a\\u202eb\\u007f"'
    assert json.loads(written) == "a\u202eb\x7f"
    assert json.loads(escape_json('"\U000e0041"')) == "\U000e0041"


def test_a_raw_line_keeps_its_tabs() -> None:
    assert escape_raw('{"a":\t1}\x1b') == '{"a":\t1}\\u001b'


@given(st.text(max_size=40) | st.just(HOSTILE))
def test_no_terminal_control_character_passes(text: str) -> None:
    for shown in (escape_line(text), escape_lines(text).replace("\n", "").replace("\t", "")):
        assert not any(ord(letter) < 0x20 or 0x7F <= ord(letter) <= 0x9F for letter in shown)
        assert not set(shown) & set("\u202a\u202b\u202d\u202e\u2066\u2067\u2068\u2028\u2029\ufeff")
        shown.encode()


def test_unencodable_characters_are_replaced_and_others_kept() -> None:
    assert [replace_unencodable(text) for text in ("a", "é😀", "a\ud800b", None)] == ["a", "é😀", "a?b", None]


def test_every_text_of_a_value_can_be_encoded() -> None:
    value = {"a\ud800": ["b\udfff", {"c": "é"}], "n": 1, "none": None}

    assert replace_unencodable_texts(value) == {"a?": ["b?", {"c": "é"}], "n": 1, "none": None}
