"""Places: resolves the names that people use for an entry of the tree.

In this order: `HEAD` and `root` (before the first entry); `HEAD@{n}`, the head n moves ago; `branch:NAME`; an entry id
of the usual form; a branch; a label; any other entry id; a unique prefix of an id, at least eight characters. A suffix
`~n` goes up n entries, not counting annotations.
"""

from __future__ import annotations

import re
from collections.abc import Container
from itertools import count, islice

from sessiontree.core.entries import EntryId
from sessiontree.core.heads import Heads
from sessiontree.core.number_text import pluralize
from sessiontree.core.tree import Tree
from sessiontree.errors import Ambiguous, InvalidOperation, NotFound

ID_PREFIX_LENGTH = 8
"""The length of displayed ids, and the minimum length of a prefix."""

BRANCH_PREFIX = "branch:"
"""Marks the rest of a place as the name of a branch."""

_OWN_ID = re.compile(r"[0-9a-f]{16}")
# The other patterns are compiled on first use, because every command imports this module.
_ID_SHAPE = r"(?ai)[0-9a-f]{8,}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_UP_SUFFIX = r"(?s)(.+?)((?:~[0-9]{0,9})+)$"
_MOVES_AGO = r"HEAD@\{([0-9]{1,9})\}"
MAX_NAME_LENGTH = 200
"""The maximum length of a branch name, in characters."""


BRANCH_STEM, FIRST_BRANCH_NUMBER = "branch", 2
"""New branches without a name are `branch-2`, `branch-3` and so on: the first branch is `main`."""


def shorten_id(id: EntryId) -> str:
    """Return an id as it is displayed: the first characters of a generated id, any other id in full."""
    return id[:ID_PREFIX_LENGTH] if _OWN_ID.fullmatch(id) else id


def looks_like_id(text: str) -> bool:
    """Return whether `text` looks like an entry id of this program or a peer, or like a prefix of one."""
    return re.fullmatch(_ID_SHAPE, text) is not None


def find_branch(place: str, tree: Tree, heads: Heads) -> str | None:
    """Return the branch that `place` names, or `None` if it names something else, such as an entry by its id."""
    if place.startswith(BRANCH_PREFIX) and place.removeprefix(BRANCH_PREFIX) in heads.heads:
        return place.removeprefix(BRANCH_PREFIX)
    return place if place in heads.heads and not (looks_like_id(place) and place in tree) else None


def is_label(place: str, tree: Tree) -> bool:
    """Return whether `place` names an entry by its label."""
    return place not in ("HEAD", "root") and place not in tree and place in tree.labels.values()


def resolve_place(place: str, tree: Tree, heads: Heads) -> EntryId | None:
    """Return the entry that `place` names; `None` is the place before the first entry."""
    suffixed = re.fullmatch(_UP_SUFFIX, place)
    if suffixed is None or not _is_head(suffixed[1], tree, heads):
        try:
            return _resolve_exact(place, tree, heads)
        except Ambiguous:
            raise
        except NotFound:
            if suffixed is None:
                raise
    start = _resolve_exact(suffixed[1], tree, heads)
    for step in suffixed[2].split("~")[1:]:
        start = _walk_up(tree, start, int(step or 1), place)
    return start


def _is_head(place: str, tree: Tree, heads: Heads) -> bool:
    """Return whether `place` names the head of a branch, now or in the past. Then no label can be meant."""
    return place == "HEAD" or re.fullmatch(_MOVES_AGO, place) is not None or find_branch(place, tree, heads) is not None


def _resolve_exact(place: str, tree: Tree, heads: Heads) -> EntryId | None:
    if place == "HEAD":
        return heads.leaf
    if place == "root":
        return None
    ago = re.fullmatch(_MOVES_AGO, place)
    if ago is not None:
        count = int(ago[1])
        if count == 0:
            return heads.leaf
        move = heads.find_move(count)
        if move is None:
            raise NotFound("place", place, f"{pluralize(len(heads.moves), 'move')} so far")
        return move.leaf
    branch = find_branch(place, tree, heads)
    if branch is not None:
        return heads.heads[branch]
    if looks_like_id(place) and place in tree:
        return _follow_alias(place, tree)
    labeled = [id for id, text in tree.labels.items() if text == place]
    if len(labeled) > 1:
        raise Ambiguous("label", place, labeled)
    if labeled:
        return labeled[0]
    if place in tree:
        return _follow_alias(place, tree)
    if len(place) >= ID_PREFIX_LENGTH:
        matches = tree.find_by_prefix(place)
        if len(matches) > 1:
            raise Ambiguous("prefix", place, matches)
        if matches:
            return _follow_alias(matches[0], tree)
    raise NotFound("place", place, "a place is HEAD, root, a branch, a label, an entry id or its first 8 characters")


def _follow_alias(id: EntryId, tree: Tree) -> EntryId | None:
    """Return the entry that an alias refers to, its parent; every other entry is itself."""
    return tree.parent(id) if tree[id].type == "alias" else id


def _walk_up(tree: Tree, start: EntryId | None, count: int, place: str) -> EntryId | None:
    real = (entry.id for entry in tree.walk_up(start) if not entry.is_annotation)
    above = list(islice(real, count + 1))
    if start is not None and start not in above[:1]:
        count -= 1
    if count < 0:
        return start
    if count > len(above):
        raise NotFound("place", place, f"at most ~{len(above)} from there")
    return None if count == len(above) else above[count]


def find_free_name(stem: str, taken: Container[str], first: int = 1) -> str:
    """Return the first unused branch name made of `stem` and a number."""
    return next(name for number in count(first) if (name := f"{stem}-{number}") not in taken)


def find_unnamed_leaves(tree: Tree, heads: Heads) -> dict[str, EntryId]:
    """Return the leaves that no branch has its head at, each with the name that a new branch there would get.

    A branch point that nothing was written after is not listed.
    """
    named = {tree.skip_annotations(head) for head in heads.heads.values() if head in tree}
    unnamed: dict[str, EntryId] = {}
    number = FIRST_BRANCH_NUMBER
    for leaf in tree.find_leaves():
        if leaf not in named and tree.peek(leaf).type != "branch_point":
            name = find_free_name(BRANCH_STEM, heads.heads, number)
            unnamed[name] = leaf
            number = int(name.removeprefix(f"{BRANCH_STEM}-")) + 1
    return unnamed


def find_recent_leaves(tree: Tree, heads: Heads, last: int) -> list[EntryId]:
    """Return the leaves among the last entries that `find_unnamed_leaves` lists, in file order."""
    named = {tree.skip_annotations(head) for head in heads.heads.values() if head is not None and tree.has_loaded(head)}
    return [leaf for leaf in tree.find_leaves(last) if leaf not in named and tree.peek(leaf).type != "branch_point"]


def check_branch_name(name: str) -> None:
    """Raise `InvalidOperation` for a name that is ambiguous or cannot be displayed."""
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not check types
        raise InvalidOperation(f"the name of a branch is text, not {type(name).__name__}")
    fault = _find_name_fault(name)
    if fault is not None:
        raise InvalidOperation(f"invalid branch name {name[:MAX_NAME_LENGTH]!r}: {fault}")


def check_new_branch(name: str, tree: Tree, heads: Heads) -> None:
    """Raise `InvalidOperation` for an invalid name, an existing branch, or the id of an entry."""
    check_branch_name(name)
    if name in heads.heads:
        raise InvalidOperation(f"branch {name!r} already exists")
    if name in tree:
        raise InvalidOperation(f"invalid branch name {name!r}: it is an entry id in this session")


def _find_name_fault(name: str) -> str | None:
    if not name:
        return "it is empty"
    if len(name) > MAX_NAME_LENGTH:
        return f"it has more than {MAX_NAME_LENGTH} characters"
    if name in ("HEAD", "root", "@") or name.startswith(("HEAD@{", BRANCH_PREFIX)):
        return "it is reserved"
    if looks_like_id(name):
        return "it looks like an entry id; add a dash or a letter after f"
    if name.startswith("-"):
        return "it looks like an option"
    if "~" in name:
        return "'~' is reserved"
    if not name.isprintable():
        return "it has characters that cannot be displayed"
    return "it starts or ends with a space" if name != name.strip() else None
