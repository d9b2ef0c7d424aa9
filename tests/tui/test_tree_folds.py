from hypothesis import given
from hypothesis import strategies as st

from sessiontree.core.outline import lay_out, run_steps, survey_tree
from sessiontree.core.tree import Tree
from sessiontree.tui.widgets.tree_folds import TreeFolds
from tests.builders import entry, grow

TREE = grow("a>b>c>d a>e>f e>g>h")  # rows a b c d e f g h


def build_outline(tree):
    return run_steps(lay_out(run_steps(survey_tree(tree, None))))


def list_lines(tree, folds):
    rows = build_outline(tree)
    return "".join(rows.get_id(folds.get_row(line)) for line in range(len(folds)))


def test_a_fold_hides_all_descendants():
    folds = TreeFolds(build_outline(TREE))

    assert folds.fold(4)
    assert list_lines(TREE, folds) == "abcde"
    assert 4 in folds


def test_rows_without_descendants_cannot_be_folded():
    folds = TreeFolds(build_outline(TREE))

    assert not folds.fold(2)
    assert not folds.fold(5)
    assert len(folds) == 8


def test_a_nested_fold_stays_when_the_outer_one_is_unfolded():
    folds = TreeFolds(build_outline(TREE))
    folds.fold(1)
    folds.fold(0)
    assert list_lines(TREE, folds) == "a"

    assert folds.unfold(0)
    assert list_lines(TREE, folds) == "abefgh"
    assert not folds.unfold(0), "it is open already"


def test_a_hidden_row_has_the_line_of_its_fold():
    folds = TreeFolds(build_outline(TREE))
    folds.fold(1)

    assert [folds.get_line(row) for row in range(8)] == [0, 1, 1, 1, 2, 3, 4, 5]


def test_folds_are_kept_when_the_tree_grows():
    tree = grow("a>b>c>d a>e>f e>g>h")
    before = build_outline(tree)
    folds = TreeFolds(before)
    folds.fold(4)
    tree.add(entry("x", "c", line=20))

    after = TreeFolds(build_outline(tree))
    after.copy_folds(folds, before)

    assert list_lines(tree, after) == "abcdxe"


@given(st.lists(st.integers(0, 30), max_size=30), st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=12))
def test_lines_are_the_visible_rows(parents, doings):
    tree = Tree()
    for number, parent in enumerate([0, *parents]):
        tree.add(entry(f"e{number}", f"e{parent % number}" if number else None, line=number + 2))
    rows = build_outline(tree)
    folds = TreeFolds(rows)
    folded = set()
    for folding, row in doings:
        if row < len(rows) and folding and folds.fold(row):
            folded.add(row)
        elif row < len(rows) and not folding and folds.unfold(row):
            folded.discard(row)

    seen = [row for row in range(len(rows)) if not any(row in rows.get_foldable(at) for at in folded)]

    assert [folds.get_row(line) for line in range(len(folds))] == seen
    assert [folds.get_line(row) for row in seen] == list(range(len(seen)))
