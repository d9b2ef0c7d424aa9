"""The parser for search queries."""

import pytest

from sessiontree.core import query
from sessiontree.core.query import Term, parse_query
from sessiontree.core.search_text import fold, fold_parts
from sessiontree.errors import InvalidOperation
from tests.builders import TIME_MS

DAY = 86_400_000


def parse_now(text: str):
    return parse_query(text, now=TIME_MS)


def test_words_phrases_and_prefixes_are_distinguished() -> None:
    query = parse_now('Cache "two  Ways" beg* "open end')

    assert query.terms == (
        Term(text="cache"),
        Term(text="two ways"),
        Term(text="beg", is_word_start=True),
        Term(text="open end"),
    )


@pytest.mark.parametrize(
    ("query", "text", "found"),
    [
        ("ache", "the Cache", True),
        ("ache*", "the Cache", False),
        ("cach*", "(caches)", True),
        ("*", "a * b", True),
        ("cache dict", "a dict, or a CACHE", True),
        ("cache dict", "a cache", False),
        ('"two ways"', "two\n   ways", True),
        ('"two ways"', "two other ways", False),
        ("缓存", "用缓存吧", True),
        ("缓*", "用缓存吧", True),
        ("カフ*", "駅のカフェで", True),
        ("кэ*", "мой кэш", True),
        ("эш*", "мой кэш", False),
        ("काम*", "नाकाम", False),
        ("काम*", "नाकाम काम", True),
        ("x\u0302y*", "ax\u0302y", False),
        ("docker*", "我们用docker部署", True),
        ("docker*", "ใช้docker", True),
        ("docker*", "\u2764\ufe0fdocker", True),
        ("docker*", "\u0301docker", True),
        ("docker*", "a_docker", False),
        ("\u0302*", "x\u0302\u0302\u0302", False),
        ("\u0302*", "x\u0302\u0302 \u0302", True),
        ("\u0302*", "\u0302\u0302", True),
        ("docker*", "dockerdocker", True),
        ("é", "CAFE\u0301", True),
        ("C++", "in c++ it is", True),
        ("key:value", "a key:value pair", True),
    ],
)
def test_all_terms_must_match(query: str, text: str, found: bool) -> None:
    assert parse_now(query).matches(fold(text)) is found


def test_each_combining_mark_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at, is_mark = 0, query._is_mark

    def count_mark(letter: str) -> bool:
        nonlocal looked_at
        looked_at += 1
        return is_mark(letter)

    monkeypatch.setattr(query, "_is_mark", count_mark)
    text = "x" + "\u0302" * 500

    assert not parse_now("\u0302*").matches(text)
    assert looked_at <= len(text)


def test_a_phrase_does_not_match_across_parts() -> None:
    query = parse_now('"two ways" out')

    assert query.matches(fold_parts(["Two\nways", "out"]))
    assert not query.matches(fold_parts(["out of two", "ways"]))


def test_roles_are_compared_without_case_and_several_are_alternatives() -> None:
    query = parse_now("x role:User,tool role:compaction")

    assert [query.accepts_role(role) for role in ("user", "toolResult", "compaction", "assistant")] == [True] * 3 + [
        False
    ]
    assert parse_now("x").accepts_role("anybody")


def test_since_takes_hours_days_weeks_and_dates() -> None:
    assert parse_now("since:7d").since == TIME_MS - 7 * DAY
    assert parse_now("since:12h").since == TIME_MS - DAY // 2
    assert parse_now("since:2w").since == TIME_MS - 14 * DAY
    assert parse_now("since:2026-01-01").since == TIME_MS
    assert parse_now("x").since is None
    with pytest.raises(InvalidOperation, match="'yesterday'"):
        parse_now("since:yesterday")


def test_filters_alone_are_a_query_and_an_empty_filter_is_a_word() -> None:
    assert parse_now("role:user").terms == ()
    assert parse_now("role:").terms == (Term(text="role:"),)


@pytest.mark.parametrize("text", ["", "  ", '""', '" "'])
def test_an_empty_query_is_an_error(text: str) -> None:
    with pytest.raises(InvalidOperation):
        parse_now(text)
