"""The sieve passes every line that may match."""

from __future__ import annotations

import json
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as hs

from sessiontree.core.entry_text import fold
from sessiontree.core.query import parse_query
from sessiontree.core.timestamps import parse_timestamp
from sessiontree.errors import InvalidOperation
from sessiontree.library.index import prefilter
from sessiontree.library.index.prefilter import Prefilter, is_older

LETTERS = 'aKsStT \n\t"\\/.éÉe\u0301ßﬁẗ\u212aſ缓存\uf900がか\u3099각\u1100\u1161\u11a8Жж\u1c80'


@given(
    said=hs.lists(hs.text(hs.sampled_from(LETTERS), max_size=10), min_size=1, max_size=4),
    start=hs.integers(0, 10),
    size=hs.integers(1, 5),
    escaped=hs.booleans(),
)
def test_matching_lines_pass_the_prefilter_alone_and_among_others(
    said: list[str], start: int, size: int, escaped: bool
) -> None:
    for words in (said[0][start : start + size], fold(said[0])[start : start + size]):
        try:
            query = parse_query(f'"{words.replace(chr(34), "")}"', now=0)
        except InvalidOperation:
            continue
        made = Prefilter(query.terms)
        lines = [json.dumps({"content": text}, ensure_ascii=escaped).encode() for text in said]

        for text, line in zip(said, lines, strict=True):
            if query.matches(fold(text)):
                assert made.can_match(line)
                assert made.can_match(b"\n".join(lines))


@pytest.mark.parametrize("query", ["pear", "缓", "ü", '"two ways"', "é", "각"])
def test_unrelated_lines_do_not_pass_the_prefilter(query: str) -> None:
    lines = json.dumps({"content": "an apple, two of them, or 存 と ö e\u0300 \u1100\u1161\u11a9"}, ensure_ascii=False)

    assert not Prefilter(parse_query(query, now=0).terms).can_match(lines.encode())


def test_all_that_may_become_one_letter_with_another_is_known() -> None:
    seconds = {
        unicodedata.normalize("NFD", chr(code))[-1]
        for code in range(0xC0, sys.maxunicode + 1)
        if len(unicodedata.normalize("NFD", chr(code))) > 1
    }

    assert {
        letter for letter in seconds if unicodedata.is_normalized("NFC", letter)
    } <= prefilter.list_combining_marks()


@pytest.mark.parametrize(
    ("line", "older"),
    [
        (b'{"timestamp":"2026-01-01T00:00:00.000Z"}', True),
        (b'{"timestamp" : "2026-01-01T00:00:00.000Z"}\n{"timestamp":"2026-01-02T00:00:00.000Z"}', True),
        (b'{"timestamp":"2026-01-01T00:00:00.000Z"}\n{"timestamp":"2026-01-03T00:00:00.000Z"}', False),
        (b'{"timestamp":"2026-01-01"}', False),
        (b'{"timestamp":"2026-01-01T00:00:00.000-24"}', False),
        (b'{"timestamp":"2025-99-99T00:00:00.000Z"}', False),
        (b'{"timestamp":"2025-W01-1T00:00:00.000Z"}', False),
        (b'{"timestam\\u0070":"2027-01-01T00:00:00.000Z"}', False),
        (b"{}", True),
    ],
)
def test_lines_are_older_only_when_that_is_certain(line: bytes, older: bool) -> None:
    assert is_older(line, parse_timestamp("2026-01-03T00:00:00.000Z") or 0) is older


def test_the_letters_that_the_sieve_lets_pass_are_all_that_fold_to_ascii() -> None:
    alike = {
        chr(code)
        for code in range(128, 0x30000)
        if not 0xD800 <= code < 0xE000 and any(letter.isascii() for letter in fold(chr(code)))
    }

    assert alike <= prefilter.FOLDED_LETTERS.keys()
