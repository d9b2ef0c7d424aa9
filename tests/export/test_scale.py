"""The time and memory of an export are linear in the size of the session, whatever its shape."""

from __future__ import annotations

import time
from typing import Any

import pytest

from sessiontree.errors import InvalidOperation
from sessiontree.export import FORMATS, Redactor, export, stream_export
from sessiontree.export.snapshot import read_snapshot, select_subtree
from tests.builders import count_calls
from tests.shapes import SHAPES, build_lines, measure_peak

SMALL = 60
"""Steps of the smaller session. It is so deep that the drawing omits levels."""


def consume(pieces: Any) -> int:
    return sum(map(len, pieces))


@pytest.mark.parametrize("form", ["html", "md", "json"])
@pytest.mark.parametrize("shape", SHAPES)
def test_an_export_of_twice_the_session_is_twice_as_long(shape: str, form: str) -> None:
    small, large = (len(export(build_lines(shape, count), form).content) for count in (4 * SMALL, 8 * SMALL))

    assert large < 2.2 * small


@pytest.mark.parametrize("form", ["html", "md", "json"])
@pytest.mark.parametrize("shape", SHAPES)
def test_an_export_of_twice_the_session_takes_twice_the_memory(shape: str, form: str) -> None:
    def measure_memory(count: int) -> int:
        lines = build_lines(shape, count)
        return measure_peak(lambda: consume(stream_export(lines, form)))

    measure_memory(SMALL)  # warm up: load and cache

    assert measure_memory(8 * SMALL) < 2.5 * measure_memory(4 * SMALL)


@pytest.mark.parametrize("form", ["html", "md", "json", "atif"])
@pytest.mark.parametrize("shape", SHAPES)
def test_an_export_of_twice_the_session_is_twice_the_work(shape: str, form: str) -> None:
    def count_work(count: int) -> int:
        lines = build_lines(shape, count)
        return count_calls(lambda: consume(stream_export(lines, form)))

    count_work(SMALL)

    assert count_work(8 * SMALL) < 2.5 * count_work(4 * SMALL)


@pytest.mark.parametrize("form", ["atif", "inspect", "sft"])
def test_a_message_with_four_times_the_calls_takes_four_times_as_long(form: str) -> None:
    def measure_seconds(count: int) -> float:
        lines = build_lines("calls", count)
        start = time.process_time()
        consume(stream_export(lines, form))
        return time.process_time() - start

    measure_seconds(100)
    small = min(measure_seconds(2000) for _ in range(3))
    large = min(measure_seconds(8000) for _ in range(2))

    assert large < 8 * small  # 16 times if each result looks at all calls


@pytest.mark.parametrize("shape", ["far_compactions", "compactions", "labels_in_a_row"])
def test_a_subtree_of_twice_the_session_is_twice_the_work(shape: str) -> None:
    def count_work(count: int) -> int:
        lines = build_lines(shape, count)
        whole = read_snapshot(lines)
        root = next(iter(whole.tree.get_child_ids(whole.tree.get_child_ids(None)[0])))
        return count_calls(lambda: select_subtree(whole, root))

    count_work(SMALL)

    assert count_work(8 * SMALL) < 2.5 * count_work(4 * SMALL)


def test_pages_and_texts_are_rendered_in_pieces() -> None:
    lines = build_lines("wide", 2000)

    for form in FORMATS:
        pieces = list(stream_export(lines, form))
        assert len(pieces) > 1
        assert b"".join(pieces) == export(lines, form).content


def test_a_redacted_export_in_pieces_is_the_same_and_reports_the_same() -> None:
    lines = [*build_lines("comb", 50), build_lines("chain", 2)[1].replace(b"question 0", b"sk-" + b"a1b2c3d4" * 4)]
    for form in FORMATS:
        one, other = Redactor(), Redactor()

        assert b"".join(stream_export(lines, form, redactor=one)) == export(lines, form, redactor=other).content
        assert one.report == other.report
        assert one.report.total == 1


def test_preferences_of_twice_the_branches_take_twice_the_memory() -> None:
    def measure_memory(count: int) -> int:
        lines = build_lines("wide", count)

        def export_pairs() -> None:
            with pytest.raises(InvalidOperation, match="a tie"):
                stream_export(lines, "preference", prefer="entries")

        return measure_peak(export_pairs)

    measure_memory(SMALL)

    assert measure_memory(8 * SMALL) < 2.5 * measure_memory(4 * SMALL)
