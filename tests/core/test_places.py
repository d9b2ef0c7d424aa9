import pytest

from sessiontree.core.entries import HEAD_RECORD, Custom, Label, Usage
from sessiontree.core.heads import Heads
from sessiontree.core.places import branch_named, check_branch_name, check_new_branch, free_name, resolve, shortened
from sessiontree.errors import Ambiguous, InvalidOperation, NotFound
from tests.builders import entry, grow


def at(place, tree):
    heads = Heads()
    heads.replay(tree, tree)
    return resolve(place, tree, heads)


TREE = grow("aaaaaaaa1>aaaaaaaa2>bbbbbbbbb>c")
"""A chain whose head is c."""


def test_head_and_root_are_places():
    assert at("HEAD", TREE) == "c"
    assert at("root", TREE) is None
    assert at("main", TREE) == "c"


def test_an_id_or_its_first_eight_characters_name_an_entry():
    assert at("c", TREE) == "c"
    assert at("bbbbbbbb", TREE) == "bbbbbbbbb"


def test_an_id_of_ours_is_shown_by_its_beginning_and_any_other_in_full():
    assert shortened("0123456789abcdef") == "01234567"
    assert [shortened(id) for id in ("message-00000001", "0123456789ABCDEF", "short", "")] == [
        "message-00000001", "0123456789ABCDEF", "short", "",
    ]  # fmt: skip


def test_a_prefix_of_several_ids_is_ambiguous_and_names_them():
    with pytest.raises(Ambiguous, match="aaaaaaaa1, aaaaaaaa2"):
        at("aaaaaaaa", TREE)


def test_of_very_many_candidates_the_sentence_names_the_first():
    with pytest.raises(Ambiguous) as error:
        at("aaaaaaaa", grow(">".join(f"aaaaaaaa{number:04}" for number in range(1000))))

    assert str(error.value).endswith("aaaaaaaa0009 and 990 more")
    assert len(error.value.candidates) == 1000


@pytest.mark.parametrize("place", ["bbbbbbb", "zzzzzzzzz", "", "~", "HEAD@{x}", "nobody~1"])
def test_what_names_nothing_is_an_error(place):
    with pytest.raises(NotFound, match="no place"):
        at(place, TREE)


def test_a_place_may_go_up_by_real_entries():
    tree = grow("a>b>n>c", n=Usage(kind="warm"))

    assert at("HEAD~0", tree) == "c"
    assert at("HEAD~", tree) == "b"
    assert at("HEAD~2", tree) == "a"
    assert at("HEAD~1~1", tree) == "a"
    assert at("HEAD~3", tree) is None
    assert at("root~0", tree) is None


def test_going_up_past_everything_is_an_error():
    with pytest.raises(NotFound, match="HEAD~9"):
        at("HEAD~9", TREE)
    with pytest.raises(NotFound):
        at("root~1", TREE)


def test_going_up_from_an_annotation_comes_first_to_the_entry_above_it():
    tree = grow("a>b>n", n=Usage(kind="warm"))

    assert at("n", tree) == "n"
    assert at("n~0", tree) == "n"
    assert at("n~1", tree) == "b"
    assert at("n~2", tree) == "a"


def test_an_annotation_with_nothing_above_it_is_one_step_from_the_root():
    tree = grow("n", n=Usage(kind="warm"))

    assert at("n~0", tree) == "n"
    assert at("n~1", tree) is None
    with pytest.raises(NotFound):
        at("n~2", tree)


def test_a_label_names_the_entry_it_is_on_unless_several_have_it():
    tree = grow("a>b>c", c=Label(target="a", text="here~1"))
    assert at("here~1", tree) == "a"

    tree.add(entry("d", "c", Label(target="b", text="here~1")))

    with pytest.raises(Ambiguous, match="a, b"):
        at("here~1", tree)


def test_a_branch_goes_before_a_label_and_a_label_before_an_id():
    tree = grow("a>b>c>d", c=Label(target="a", text="main"), d=Label(target="a", text="b"))

    assert at("main", tree) == "b"
    assert at("b", tree) == "a"


def test_earlier_heads_are_counted_in_moves():
    tree = grow("a>b>c a>d a>e")

    assert at("HEAD@{0}", tree) == "e"
    assert at("HEAD@{1}", tree) == "d"
    assert at("HEAD@{2}", tree) == "c"
    assert at("HEAD@{2}~1", tree) == "b"
    with pytest.raises(NotFound, match="2 moves"):
        at("HEAD@{3}", tree)


def test_a_head_that_is_not_in_the_file_has_nothing_above_it():
    record = Custom(custom_type=HEAD_RECORD, data={"current": "main", "heads": {"main": "lost"}})

    with pytest.raises(NotFound, match="lost"):
        at("HEAD~1", grow("a>b", b=record))


@pytest.mark.parametrize("name", ["main", "approach-a", "été", "a b", "HEAD2"])
def test_ordinary_names_are_fine_for_branches(name):
    check_branch_name(name)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "empty"),
        *((name, "means something else") for name in ("HEAD", "root", "@", "HEAD@{1}")),
        ("-x", "option"),
        ("a~1", "counts entries"),
        (" a", "space"),
        ("a ", "space"),
        *((name, "cannot be shown") for name in ("a\nb", "\x1b[0m", "\x85")),
        ("x" * 201, "more than 200 characters"),
    ],
)
def test_names_that_mean_something_else_or_cannot_be_shown_are_refused(name, why):
    with pytest.raises(InvalidOperation, match=f"cannot be the name of a branch: .*{why}"):
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
def test_a_free_name_has_the_first_number_that_no_other_has(taken, first, name):
    assert free_name("branch", taken, first) == name


@pytest.mark.parametrize(
    "id", ["0123abcd", "0123456789abcdef", "0123456789ABCDEF", "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"]
)
def test_an_id_that_a_branch_is_named_like_is_still_the_id_and_the_branch_has_a_form_of_its_own(id):
    tree = grow(f"{id}>b>c")
    heads = Heads()
    heads.replay([*tree], tree)
    heads.heads[id] = "b"

    assert resolve(id, tree, heads) == id
    assert resolve(f"branch:{id}", tree, heads) == "b"
    assert resolve(f"branch:{id}~1", tree, heads) == id
    assert branch_named(id, tree, heads) is None
    assert branch_named(f"branch:{id}", tree, heads) == id


def test_an_id_that_a_label_is_spelled_like_is_still_the_id():
    tree = grow("0123abcd>b>l", l=Label(target="b", text="0123abcd"))

    assert at("0123abcd", tree) == "0123abcd"


def test_a_branch_may_be_named_by_its_explicit_form_whatever_it_is_called():
    tree = grow("a>b")
    heads = Heads()
    heads.replay([*tree], tree)
    heads.heads["branch:main"] = "a"

    assert resolve("branch:main", tree, heads) == "b"
    assert resolve("branch:branch:main", tree, heads) == "a"
    assert branch_named("main", tree, heads) == "main"
    assert branch_named("branch:nobody", tree, heads) is None
    with pytest.raises(NotFound):
        resolve("branch:nobody", tree, heads)


@pytest.mark.parametrize("name", ["0123abcd", "0123456789abcdef", "ABCDEF0123456789", "20261118", "a"])
def test_a_new_branch_cannot_be_named_like_an_entry_or_have_the_shape_of_an_id(name):
    with pytest.raises(InvalidOperation, match="entry id"):
        check_new_branch(name, grow("a>b"), Heads())


def test_a_new_branch_cannot_have_the_name_of_another():
    check_new_branch("cache", grow("a>b"), Heads())
    with pytest.raises(InvalidOperation, match="there is a branch 'main' already"):
        check_new_branch("main", grow("a>b"), Heads())
