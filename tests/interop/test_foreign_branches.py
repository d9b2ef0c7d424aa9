"""Order and names of foreign branches."""

from sessiontree.interop.foreign_branches import choose_branch_name, divide_branches, order_parents_first


def test_names_are_valid_and_unique() -> None:
    assert choose_branch_name("a small task (@general)", ()) == "a-small-task-general"
    assert choose_branch_name("HEAD", ()) == "branch-HEAD"
    assert choose_branch_name("", ()) == "branch"
    assert choose_branch_name("try", {"try", "try-2"}) == "try-3"
    assert len(choose_branch_name("x" * 500, ())) == 40


def test_parents_come_first_and_cycles_are_cut() -> None:
    assert order_parents_first({"c": "b", "b": "a", "a": None}) == ["a", "b", "c"]
    assert sorted(order_parents_first({"a": "b", "b": "a"})) == ["a", "b"]
    assert order_parents_first({"a": "gone"}) == ["a"]


def test_every_leaf_other_than_the_current_one_is_a_branch() -> None:
    parents = {"a": None, "b": "a", "c": "a", "d": "a"}

    branches = divide_branches(parents, "c", main="main", other="other", silent={"d"})

    assert branches == {"a": "main", "b": "other", "c": "main", "d": "main"}
