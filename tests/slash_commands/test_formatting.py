"""Formatting of command output."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from sessiontree.slash_commands.formatting import format_local_time, format_table


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Sets the time zone."""

    def set_to(zone: str) -> None:
        monkeypatch.setenv("TZ", zone)
        time.tzset()

    yield set_to
    set_to("UTC")


def test_times_are_shown_in_local_time(clocks: Callable[[str], None]) -> None:
    for zone, shown in (("UTC", "2026-01-02 23:30"), ("CET-1CEST", "2026-01-03 00:30"), ("EST5", "2026-01-02 18:30")):
        clocks(zone)
        assert format_local_time("2026-01-02T23:30:15.678Z") == shown
        assert format_local_time("2026-01-03T01:30:15+02:00", seconds=True) == f"{shown}:15"
    clocks("CET-1CEST,M3.5.0,M10.5.0/3")
    assert format_local_time("2026-07-02T12:00:00.000Z") == "2026-07-02 14:00"


@pytest.mark.parametrize("text", ["", "soon", "t" * 99, "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
def test_an_invalid_timestamp_is_shown_unchanged(text: str, clocks: Callable[[str], None]) -> None:
    clocks("XST-23" if text.startswith("9999") else "XST+23")

    assert format_local_time(text) == text[:16].replace("T", " ")


def test_columns_are_aligned_with_wide_and_combining_characters() -> None:
    table = format_table([["漢字", "1"], ["e\u0301", "2"], ["plain", "3"]])

    assert table == "漢字   1\ne\u0301      2\nplain  3"
