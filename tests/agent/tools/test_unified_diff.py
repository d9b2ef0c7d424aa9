"""Unified diffs of edits."""

from __future__ import annotations

import difflib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiontree.agent.tools import unified_diff
from sessiontree.agent.tools.unified_diff import TextChange, build_unified_diff, truncate_diff

HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@\n")


def apply_changes(text: str, changes: list[TextChange]) -> str:
    for start, end, new in reversed(changes):
        text = text[:start] + new + text[end:]
    return text


def apply_diff(text: str, difference: str) -> str:
    """Apply a diff to `text` like `patch`. Fail if it does not match."""
    old = re.findall(r"[^\n]*\n|[^\n]+", text)
    new: list[str] = []
    lines = difference.replace("\n\\ No newline at end of file\n", "\0").replace("\n", "\n\1").replace("\0", "\1")
    _, _, *marked = lines.split("\1")[:-1]
    at, left = 0, (0, 0)
    for line in marked:
        if (hunk := HUNK.fullmatch(line)) is not None:
            assert left == (0, 0)
            first, count, begin, more = (1 if said is None else int(said) for said in hunk.groups())
            here = first - 1 if count else first
            new += old[at:here]
            assert len(new) == (begin - 1 if more else begin)
            at, left = here, (count, more)
            continue
        if line[0] != "+":
            assert old[at] == line[1:]
            at, left = at + 1, (left[0] - 1, left[1])
        if line[0] != "-":
            new.append(line[1:])
            left = (left[0], left[1] - 1)
    assert left == (0, 0)
    return "".join([*new, *old[at:]])


@given(
    text=st.lists(st.sampled_from(("a", "b", "ab", "\n", "\n" * 4, "\n" * 10)), min_size=1, max_size=20).map("".join),
    old=st.text("ab\n", min_size=1, max_size=3),
    new=st.text("ab\n", max_size=6),
    fine=st.sampled_from((0, unified_diff.MAX_FINE_LINES)),
)
def test_a_diff_applied_to_the_old_text_gives_the_new_text(text: str, old: str, new: str, fine: int) -> None:
    changes = [TextChange(*found.span(), new) for found in re.finditer(re.escape(old), text)]
    if not changes or old == new:
        return

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unified_diff, "MAX_FINE_LINES", fine)
        made = build_unified_diff(text, changes, "x")

    assert apply_diff(text, made) == apply_changes(text, changes)


def test_unchanged_lines_are_shown_as_context() -> None:
    text = "".join(f"{number}\n" for number in range(40))
    changes = [
        TextChange(text.index(f"\n{at}\n") + 1, text.index(f"\n{at}\n") + 3, new) for at, new in ((12, "x"), (30, ""))
    ]

    assert build_unified_diff(text, changes, "a.txt") == "".join(
        difflib.unified_diff(text.splitlines(True), apply_changes(text, changes).splitlines(True), "a/a.txt", "b/a.txt")
    )


def test_a_diff_ignores_repeated_lines_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    class Watched(difflib.SequenceMatcher[str]):
        def __init__(self, isjunk: None, a: list[str], b: list[str], autojunk: bool) -> None:
            seen.append(len(a) + len(b))
            super().__init__(isjunk, a, b, autojunk)

    monkeypatch.setattr(unified_diff, "SequenceMatcher", Watched)
    text = "same\n" * 5_000 + "one\n" + "same\n" * 5_000
    at = text.index("one")

    made = build_unified_diff(text, [TextChange(at, at + 3, "two")], "x")

    assert made.count("\n") == 2 + 1 + 8
    assert seen == [2]
    every = [TextChange(found.start(), found.end(), "other") for found in re.finditer("same", text)]
    assert build_unified_diff(text, every, "x").count("\n+other") == 10_000
    assert seen == [2]


def test_the_diff_of_a_rewritten_file_has_only_the_changed_lines() -> None:
    old = "".join(f"line {number}\n" for number in range(5_000))
    new = old.replace("line 10\n", "ten\n").replace("line 4000\n", "").replace("line 4990\n", "line 4990\nmore\n")

    made = build_unified_diff(old, [TextChange(0, len(old), new)], "x")

    assert apply_diff(old, made) == new
    assert [line for line in made.split("\n")[2:] if line[:1] in "+-" and line] == [
        "-line 10",
        "+ten",
        "-line 4000",
        "+more",
    ]


def test_the_diff_of_a_completely_changed_file_has_all_lines() -> None:
    old = "".join(f"{number % 7}\n" for number in range(20_000))
    new = "".join(f"{number % 11} \n" for number in range(20_000))

    assert apply_diff(old, build_unified_diff(old, [TextChange(0, len(old), new)], "x")) == new


def test_a_long_diff_is_cut_after_a_line_and_counts_the_omitted_lines() -> None:
    made = "".join(f"+line {number}\n" for number in range(10_000))

    cut = truncate_diff(made)
    kept, note = cut.removesuffix("\n").rsplit("\n", 1)

    assert len(cut) <= unified_diff.MAX_DIFF_CHARS + 100
    assert made.startswith(f"{kept}\n")
    assert note == f"\\ {10_000 - len(kept.splitlines())} more lines omitted"
    assert truncate_diff(made[:1000]) == made[:1000]
    assert len(truncate_diff("+" + "x" * 10_000_000 + "\n")) <= unified_diff.MAX_DIFF_CHARS + 100
