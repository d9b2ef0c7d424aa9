"""Query: the parser for search queries.

    cache "two ways"     an entry must contain both: a word anywhere, a phrase verbatim
    cach*                a word with this prefix; in scripts without spaces, such as Chinese, a match anywhere
    role:user            the role of a message or the type of an entry; several separated by commas
    since:7d             at most 7 days old; also 12h, 2w, or a date such as 2026-01-31

The caller passes the current time as `now`. Case, accents and white space are compared as in `core.entry_text`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from sessiontree.core.search_text import fold
from sessiontree.core.timestamps import parse_timestamp
from sessiontree.errors import InvalidOperation

_TOKEN = re.compile(r'"([^"]*)(?:"|$)|(\S+)')
_AGO = re.compile(r"([0-9]{1,6})([hdw])")
_HOURS = {"h": 1, "d": 24, "w": 7 * 24}
_UNSPACED_SCRIPT = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
"""Letters of scripts without spaces between words: Thai, Lao, Burmese, Khmer, kana, Chinese characters."""
_ROLES = {"tool": "toolresult"}


class Term(Struct, frozen=True, kw_only=True):
    """A word or a phrase, folded."""

    text: str
    is_word_start: bool = False
    """Whether it matches only at the start of a word."""

    def find_position(self, text: str) -> int:
        """Return the position of the first match in the folded `text`, or -1."""
        if not self.is_word_start:
            return text.find(self.text)
        last = -1
        for at in _iter_occurrences(text, self.text):
            if not _continues_word(text, at, last):
                return at
            last = at
        return -1


def _iter_occurrences(text: str, part: str) -> Iterator[int]:
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + 1)


def _continues_word(text: str, at: int, last: int) -> bool:
    """Return whether the character at `at` continues a word. `last` is the previous match inside a word, or -1."""
    while at > max(last, 0) and not text[at - 1].isascii() and _is_mark(text[at - 1]):
        at -= 1  # vowel signs and accents belong to the letter before them
    if at == last:
        return True
    before = text[at - 1 : at]
    return (before.isalnum() or before == "_") and not _UNSPACED_SCRIPT.match(before)


def _is_mark(letter: str) -> bool:
    import unicodedata

    return unicodedata.category(letter).startswith("M")


class Query(Struct, frozen=True, kw_only=True):
    terms: tuple[Term, ...]
    roles: frozenset[str]
    """In lower case; an empty set matches all roles."""
    since: int | None
    """Milliseconds since the epoch."""

    def accepts_role(self, role: str) -> bool:
        return not self.roles or role.lower() in self.roles

    def matches(self, text: str) -> bool:
        """Return whether the folded `text` contains all terms."""
        return all(term.find_position(text) >= 0 for term in self.terms)


def parse_query(text: str, *, now: int) -> Query:
    """Parse a query. Raises `InvalidOperation` if it is empty."""
    terms: list[Term] = []
    roles: set[str] = set()
    since: int | None = None
    for token in _TOKEN.finditer(text):
        phrase, word = token[1] or "", token[2] or ""
        key, colon, value = word.partition(":")
        if colon and value and key.lower() == "role":
            roles.update(_ROLES.get(role, role) for role in value.lower().split(","))
        elif colon and value and key.lower() == "since":
            since = _parse_since(value, now)
        elif word.endswith("*") and (start := fold(word[:-1])):
            terms.append(Term(text=start, is_word_start=not _UNSPACED_SCRIPT.match(start)))
        elif folded := fold(phrase or word):
            terms.append(Term(text=folded))
    if not (terms or roles or since is not None):
        raise InvalidOperation("the search query is empty")
    return Query(terms=tuple(terms), roles=frozenset(roles), since=since)


def _parse_since(value: str, now: int) -> int:
    ago = _AGO.fullmatch(value)
    if ago is not None:
        return now - int(ago[1]) * _HOURS[ago[2]] * 3_600_000
    moment = parse_timestamp(value)
    if moment is None:
        raise InvalidOperation(f"invalid since: {value!r}; use 12h, 7d, 2w or a date such as 2026-01-31")
    return moment
