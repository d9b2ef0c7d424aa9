"""Rows that fit on a line of the terminal."""

import pytest

import sessiontree as st
from sessiontree.cli.output import count_cells, cut_to_cells
from tests.cli.conftest import Run


@pytest.mark.parametrize(
    ("text", "room", "cut"),
    [
        ("ten cells.", 10, "ten cells."),
        ("ten cells.", 9, "ten cell…"),
        ("日本語", 6, "日本語"),
        ("日本語", 5, "日本…"),
        ("e\u0301e", 2, "e\u0301e"),
    ],
)
def test_a_text_is_cut_to_cells(text: str, room: int, cut: str) -> None:
    assert cut_to_cells(text, room) == cut
    assert count_cells(cut) <= room


def test_rows_of_the_tree_fit_the_terminal(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessiontree.cli.tree.get_terminal_width", lambda: 60)
    cli("new")
    with st.open("@") as session:
        session.append(st.user("A question of many words " * 9))
        session.create_branch("another")

    rows = cli("tree", "@").splitlines()[1:]

    assert rows == [
        "• user: A question of many words A question of many… (main)",
        "• [branch another] (another) ← active",
    ]
    monkeypatch.setattr("sessiontree.cli.tree.get_terminal_width", lambda: None)
    assert len(cli("tree", "@").splitlines()[1]) > 200
