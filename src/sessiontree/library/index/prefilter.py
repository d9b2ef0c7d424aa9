"""The prefilter: exclude lines that cannot match a query, or are too old, by their bytes alone.

Most lines then need not be decoded. It works on one line or on many at once. Every line that may match passes, and few
others do. No files are read here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache

from sessiontree.core.entry_text import fold, normalize_case
from sessiontree.core.query import Term
from sessiontree.core.timestamps import parse_timestamp

# A word here is a run of letters, digits, underscores and everything that is not ASCII.
WORD_BYTES = bytes(code if code >= 128 or chr(code).isalnum() or code == 95 else 32 for code in range(256))

_WHITESPACE = rb"(?:\\[bfnrt]|[\x00-\x20\x7f-\xff])+"
"""All characters that count as white space."""
_ESCAPE_BEFORE_MARK = re.compile(rb"\\[bfnrt][\x80-\xff]")
"""Where one composed letter may be two in the file: at the end of an escape, and at a stray combining mark."""
FOLDED_LETTERS = {letter: fold(letter) for letter in "ßẞſ\u212aİŉǰẖẗẘẙẚﬀﬁﬂﬃﬄﬅﬆ\u037e\u1fef"}
"""Characters that fold to something that contains ASCII."""

_ESCAPED = re.compile(rb"\\u")  # a pattern finds this faster than `in` does: backslashes are common
_TIMESTAMP = re.compile(rb'"timestamp"\s*:\s*"([^"]*)"')
_STANDARD_TIMESTAMP = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
_ASCII = bytes(range(128))


@cache
def list_combining_marks() -> frozenset[str]:
    """Return all characters that may combine with the one before them."""
    import unicodedata

    parts = (unicodedata.decomposition(chr(code)).split() for code in range(0xC0, 0x20000))
    seconds = {chr(int(part[1], 16)) for part in parts if len(part) == 2 and not part[0].startswith("<")}
    return frozenset(seconds | {chr(code) for code in (*range(0x1161, 0x1176), *range(0x11A8, 0x11C3))})


def extract_words(terms: Iterable[Term]) -> set[str]:
    """Return the words that must occur inside words of a matching text."""
    return {
        piece.decode() for term in terms for piece in term.text.encode("utf-8", "replace").translate(WORD_BYTES).split()
    }


class Prefilter:
    def __init__(self, terms: Sequence[Term]) -> None:
        plain = [term for term in terms if term.text.isascii() and not re.search(r'["\\/\x00-\x1f\x7f]', term.text)]
        others = extract_words(term for term in terms if term not in plain)
        words = [term.text for term in plain if " " not in term.text] + [word for word in others if word.isascii()]
        phrases = [term.text.split() for term in plain if " " in term.text]
        self._words = [word.encode() for word in words]
        self._phrases = [
            re.compile(_WHITESPACE.join(re.escape(word.encode()) for word in phrase)) for phrase in phrases
        ]
        self._letters = [word for word in others if not word.isascii()]
        self._runs = [run for word in self._letters for run in re.findall(r"[^\x00-\x7f]+", word)]
        sought = set("".join([*words, *(word for phrase in phrases for word in phrase)]))
        self._folded_patterns = _build_letter_patterns(
            letter for letter, folded in FOLDED_LETTERS.items() if sought & set(folded)
        )

    def can_match(self, lines: bytes) -> bool:
        """Return whether one of these lines may match."""
        return self._has_terms(lines) or _ESCAPED.search(lines) is not None

    def _has_terms(self, lines: bytes) -> bool:
        plain = lines.isascii()
        if self._letters and (plain or not self._has_letters(lines)):
            return False
        if not plain and any(letters.search(lines) for letters in self._folded_patterns):
            return True
        lower = lines.lower()
        return all(word in lower for word in self._words) and all(phrase.search(lower) for phrase in self._phrases)

    def _has_letters(self, lines: bytes) -> bool:
        rest = lines.translate(None, _ASCII).decode("utf-8", "replace")
        if list_combining_marks().isdisjoint(rest):
            # Each letter is encoded separately, so non-ASCII letters can be matched one by one.
            text = normalize_case(rest)
            return all(run in text for run in self._runs)
        text = normalize_case(lines.decode("utf-8", "replace"))
        return all(word in text for word in self._letters) or _ESCAPE_BEFORE_MARK.search(lines) is not None


def _build_letter_patterns(letters: Iterable[str]) -> list[re.Pattern[bytes]]:
    """Build patterns for non-ASCII letters: one for all letters with the same first two bytes, which is fast."""
    ends: dict[bytes, list[bytes]] = {}
    for letter in letters:
        code = letter.encode()
        ends.setdefault(code[:2], []).append(re.escape(code[2:]))
    return [re.compile(re.escape(start) + b"(?:%b)" % b"|".join(rest)) for start, rest in ends.items()]


def is_older(lines: bytes, than: int) -> bool:
    """Return whether all of these lines were certainly written before a time, in milliseconds since the epoch."""
    stamps: list[bytes] = _TIMESTAMP.findall(lines)
    if not all(map(_STANDARD_TIMESTAMP.fullmatch, stamps)) or _ESCAPED.search(lines) is not None:
        return False
    newest = parse_timestamp(max(stamps).decode()) if stamps else 0
    return newest is not None and newest < than
