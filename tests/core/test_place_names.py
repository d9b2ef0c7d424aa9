import pytest

from sessiontree.core.entries import HEAD_RECORD, BranchPoint, Custom, Label, Opaque, Usage
from sessiontree.core.heads import Heads
from sessiontree.core.place_names import (
    check_branch_name,
    check_new_branch,
    find_branch,
    find_free_name,
    find_unnamed_leaves,
    resolve_place,
    shorten_id,
)
from sessiontree.errors import Ambiguous, InvalidOperation, NotFound
from tests.builders import entry, grow


def resolve_in(place, tree):
    heads = Heads()
    heads.replay(tree, tree)
    return resolve_place(place, tree, heads)


TREE = grow("aaaaaaaa1>aaaaaaaa2>bbbbbbbbb>c")
"""A chain whose head is c."""


def test_head_and_root_are_places():
    assert resolve_in("HEAD", TREE) == "c"
    assert resolve_in("root", TREE) is None
    assert resolve_in("main", TREE) == "c"


def test_an_id_or_its_first_eight_characters_name_an_entry():
    assert resolve_in("c", TREE) == "c"
    assert resolve_in("bbbbbbbb", TREE) == "bbbbbbbbb"


def test_an_alias_names_the_entry_above_it():
    tree = grow("aaaaaaaa1>aaaaaaaa2")
    for id in ("bbbbbbbb1", "other"):
        tree.add(entry(id, "aaaaaaaa2", Opaque(type="alias", fields={})))

    assert resolve_in("bbbbbbbb1", tree) == "aaaaaaaa2"
    assert resolve_in("bbbbbbbb", tree) == "aaaaaaaa2"
    assert resolve_in("other", tree) == "aaaaaaaa2"
    assert resolve_in("HEAD", tree) == "aaaaaaaa2"


def test_an_own_id_is_shortened_and_any_other_shown_in_full():
    assert shorten_id("0123456789abcdef") == "01234567"
    assert [shorten_id(id) for id in ("message-00000001", "0123456789ABCDEF", "short", "")] == [
        "message-00000001", "0123456789ABCDEF", "short", "",
    ]  # fmt: skip


def test_a_prefix_of_several_ids_is_ambiguous_and_names_them():
    with pytest.raises(Ambiguous, match="aaaaaaaa1, aaaaaaaa2"):
        resolve_in("aaaaaaaa", TREE)


def test_of_many_candidates_the_error_names_the_first():
    with pytest.raises(Ambiguous) as error:
        resolve_in("aaaaaaaa", grow(">".join(f"aaaaaaaa{number:04}" for number in range(1000))))

    assert str(error.value).endswith("aaaaaaaa0009 and 990 more")
    assert len(error.value.candidates) == 1000


@pytest.mark.parametrize("place", ["bbbbbbb", "zzzzzzzzz", "", "~", "HEAD@{x}", "nobody~1"])
def test_an_unknown_place_is_an_error(place):
    with pytest.raises(NotFound, match=r"place .* not found"):
        resolve_in(place, TREE)


def test_a_place_can_go_up_by_real_entries():
    tree = grow("a>b>n>c", n=Usage(kind="warm"))

    assert resolve_in("HEAD~0", tree) == "c"
    assert resolve_in("HEAD~", tree) == "b"
    assert resolve_in("HEAD~2", tree) == "a"
    assert resolve_in("HEAD~1~1", tree) == "a"
    assert resolve_in("HEAD~3", tree) is None
    assert resolve_in("root~0", tree) is None


def test_going_up_past_the_root_is_an_error():
    with pytest.raises(NotFound, match="HEAD~9"):
        resolve_in("HEAD~9", TREE)
    with pytest.raises(NotFound):
        resolve_in("root~1", TREE)


def test_going_up_from_an_annotation_first_reaches_the_entry_above_it():
    tree = grow("a>b>n", n=Usage(kind="warm"))

    assert resolve_in("n", tree) == "n"
    assert resolve_in("n~0", tree) == "n"
    assert resolve_in("n~1", tree) == "b"
    assert resolve_in("n~2", tree) == "a"


def test_an_annotation_without_a_parent_is_one_step_from_the_root():
    tree = grow("n", n=Usage(kind="warm"))

    assert resolve_in("n~0", tree) == "n"
    assert resolve_in("n~1", tree) is None
    with pytest.raises(NotFound):
        resolve_in("n~2", tree)


def test_a_label_names_its_entry_unless_several_entries_have_it():
    tree = grow("a>b>c", c=Label(target="a", text="here~1"))
    assert resolve_in("here~1", tree) == "a"

    tree.add(entry("d", "c", Label(target="b", text="here~1")))

    with pytest.raises(Ambiguous, match="a, b"):
        resolve_in("here~1", tree)


def test_a_branch_takes_precedence_over_a_label_and_a_label_over_an_id():
    tree = grow("a>b>c>d", c=Label(target="a", text="main"), d=Label(target="a", text="b"))

    assert resolve_in("main", tree) == "b"
    assert resolve_in("b", tree) == "a"


def test_earlier_heads_are_counted_in_moves():
    tree = grow("a>b>c a>d a>e")

    assert resolve_in("HEAD@{0}", tree) == "e"
    assert resolve_in("HEAD@{1}", tree) == "d"
    assert resolve_in("HEAD@{2}", tree) == "c"
    assert resolve_in("HEAD@{2}~1", tree) == "b"
    with pytest.raises(NotFound, match="2 moves"):
        resolve_in("HEAD@{3}", tree)


def test_a_head_that_is_not_in_the_file_has_nothing_above_it():
    record = Custom(custom_type=HEAD_RECORD, data={"current": "main", "heads": {"main": "lost"}})

    with pytest.raises(NotFound, match="lost"):
        resolve_in("HEAD~1", grow("a>b", b=record))


@pytest.mark.parametrize("name", ["main", "approach-a", "été", "a b", "HEAD2"])
def test_ordinary_names_are_fine_for_branches(name):
    check_branch_name(name)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "empty"),
        *((name, "is reserved") for name in ("HEAD", "root", "@", "HEAD@{1}")),
        ("-x", "option"),
        ("a~1", "is reserved"),
        (" a", "space"),
        ("a ", "space"),
        *((name, "cannot be displayed") for name in ("a\nb", "\x1b[0m", "\x85")),
        ("x" * 201, "more than 200 characters"),
    ],
)
def test_reserved_and_unprintable_branch_names_are_refused(name, why):
    with pytest.raises(InvalidOperation, match=f"invalid branch name .*: .*{why}"):
        check_branch_name(name)


@pytest.mark.parametrize(
    ("taken", "first", "name"),
    [
        (set(), 1, "branch-1"),
        (set(), 2, "branch-2"),
        ({"branch-1", "branch-3"}, 1, "branch-2"),
        ({"branch"}, 1, "branch-1"),
    ],
)
def test_a_free_name_has_the_first_unused_number(taken, first, name):
    assert find_free_name("branch", taken, first) == name


@pytest.mark.parametrize(
    "id", ["0123abcd", "0123456789abcdef", "0123456789ABCDEF", "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"]
)
def test_an_id_takes_precedence_over_a_branch_of_the_same_name(id):
    tree = grow(f"{id}>b>c")
    heads = Heads()
    heads.replay([*tree], tree)
    heads.heads[id] = "b"

    assert resolve_place(id, tree, heads) == id
    assert resolve_place(f"branch:{id}", tree, heads) == "b"
    assert resolve_place(f"branch:{id}~1", tree, heads) == id
    assert find_branch(id, tree, heads) is None
    assert find_branch(f"branch:{id}", tree, heads) == id


def test_an_id_takes_precedence_over_a_label_of_the_same_name():
    tree = grow("0123abcd>b>l", l=Label(target="b", text="0123abcd"))

    assert resolve_in("0123abcd", tree) == "0123abcd"


def test_the_explicit_form_names_any_branch():
    tree = grow("a>b")
    heads = Heads()
    heads.replay([*tree], tree)
    heads.heads["branch:main"] = "a"

    assert resolve_place("branch:main", tree, heads) == "b"
    assert resolve_place("branch:branch:main", tree, heads) == "a"
    assert find_branch("main", tree, heads) == "main"
    assert find_branch("branch:nobody", tree, heads) is None
    with pytest.raises(NotFound):
        resolve_place("branch:nobody", tree, heads)


@pytest.mark.parametrize("name", ["0123abcd", "0123456789abcdef", "ABCDEF0123456789", "20261118", "a"])
def test_a_new_branch_cannot_have_the_name_or_form_of_an_entry_id(name):
    with pytest.raises(InvalidOperation, match="entry id"):
        check_new_branch(name, grow("a>b"), Heads())


def test_a_new_branch_cannot_reuse_a_name():
    check_new_branch("cache", grow("a>b"), Heads())
    with pytest.raises(InvalidOperation, match="branch 'main' already exists"):
        check_new_branch("main", grow("a>b"), Heads())


def test_leaves_that_no_branch_is_at_get_the_next_free_names():
    tree = grow("a>b>c b>d a>e>f")
    heads = Heads()
    heads.heads = {"main": "c", "branch-3": "f"}

    assert find_unnamed_leaves(tree, heads) == {"branch-2": "d"}

    heads.heads = {"main": "a", "branch-3": "missing", "branch-2": None}
    assert find_unnamed_leaves(tree, heads) == {"branch-4": "c", "branch-5": "d", "branch-6": "f"}


def test_an_empty_branch_point_is_no_leaf_without_a_name():
    point = entry("p", "a", BranchPoint(name="side"))
    tree = grow("a>b")
    tree.add(point)
    heads = Heads()
    heads.heads = {"main": "b"}

    assert find_unnamed_leaves(tree, heads) == {}
