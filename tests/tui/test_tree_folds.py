from hypothesis import given
from hypothesis import strategies as st

from sessiontree.core.outline import finish, lay_out, survey
from sessiontree.core.tree import Tree
from sessiontree.tui.tree_folds import Folds
from tests.builders import entry, grow

TREE = grow("a>b>c>d a>e>f e>g>h")  # rows a b c d e f g h


def outline(tree):
    return finish(lay_out(finish(survey(tree, None))))


def lines(tree, folds):
    rows = outline(tree)
    return "".join(rows.id(folds.row(line)) for line in range(len(folds)))


def test_a_fold_hides_all_that_is_below():
    folds = Folds(outline(TREE))

    assert folds.fold(4)
    assert lines(TREE, folds) == "abcde"
    assert 4 in folds


def test_what_is_no_beginning_or_has_nothing_below_cannot_be_folded():
    folds = Folds(outline(TREE))

    assert not folds.fold(2)
    assert not folds.fold(5)
    assert len(folds) == 8


def test_a_fold_inside_a_fold_stays_when_the_outer_one_is_opened():
    folds = Folds(outline(TREE))
    folds.fold(1)
    folds.fold(0)
    assert lines(TREE, folds) == "a"

    assert folds.unfold(0)
    assert lines(TREE, folds) == "abefgh"
    assert not folds.unfold(0), "it is open already"


def test_a_row_that_is_folded_away_is_on_the_line_of_what_hides_it():
    folds = Folds(outline(TREE))
    folds.fold(1)

    assert [folds.line(row) for row in range(8)] == [0, 1, 1, 1, 2, 3, 4, 5]


def test_folds_are_kept_when_the_tree_grows():
    tree = grow("a>b>c>d a>e>f e>g>h")
    before = outline(tree)
    folds = Folds(before)
    folds.fold(4)
    tree.add(entry("x", "c", line=20))

    after = Folds(outline(tree))
    after.take_over(folds, before)

    assert lines(tree, after) == "abcdxe"


@given(st.lists(st.integers(0, 30), max_size=30), st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=12))
def test_lines_are_the_rows_that_nothing_hides(parents, doings):
    tree = Tree()
    for number, parent in enumerate([0, *parents]):
        tree.add(entry(f"e{number}", f"e{parent % number}" if number else None, line=number + 2))
    rows = outline(tree)
    folds = Folds(rows)
    folded = set()
    for folding, row in doings:
        if row < len(rows) and folding and folds.fold(row):
            folded.add(row)
        elif row < len(rows) and not folding and folds.unfold(row):
            folded.discard(row)

    seen = [row for row in range(len(rows)) if not any(row in rows.below(at) for at in folded)]

    assert [folds.row(line) for line in range(len(folds))] == seen
    assert [folds.line(row) for row in seen] == list(range(len(seen)))
