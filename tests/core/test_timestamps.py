import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiontree.core.timestamps import format_timestamp, parse_timestamp


def test_a_time_is_milliseconds_since_the_epoch():
    assert parse_timestamp("1970-01-02T00:00:01.500Z") == 86_401_500


def test_an_offset_is_applied_and_no_offset_means_utc():
    assert parse_timestamp("2026-01-01T02:00:00+02:00") == parse_timestamp("2026-01-01T00:00:00Z")
    assert parse_timestamp("2026-01-01T00:00:00") == parse_timestamp("2026-01-01T00:00:00Z")


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01T00:00:00Z", "\ud800"])
def test_an_invalid_time_is_none(text):
    assert parse_timestamp(text) is None


def test_a_time_before_the_epoch_keeps_its_milliseconds():
    assert format_timestamp(-1) == "1969-12-31T23:59:59.999Z"
    assert parse_timestamp("1969-12-31T23:59:59.999Z") == -1


@given(st.integers(0, 253_402_300_799_999))
def test_a_time_survives_a_round_trip(moment):
    assert parse_timestamp(format_timestamp(moment)) == moment


@pytest.mark.parametrize("seconds", [253_402_300_800, 1 << 40, 1 << 62])
def test_a_time_outside_the_calendar_is_clamped(seconds):
    assert format_timestamp(seconds * 1000) == "9999-12-31T23:59:59.000Z"
    assert format_timestamp(-seconds * 1000) == "0001-01-01T00:00:00.000Z"
