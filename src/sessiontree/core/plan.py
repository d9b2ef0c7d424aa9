"""Plans: what an operation would do, worked out from the tree before anything is done.

A plan is a frozen value. Hooks are shown it, tests compare it; carrying it out is the
business of `session` and `ops`.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from sessiontree.core.context import build_shared_context
from sessiontree.core.entries import Compaction, CustomMessage, Entry, EntryId, JsonObject, Message
from sessiontree.core.messages import extract_text, get_role
from sessiontree.core.summary_prompts import TouchedFiles, collect_files
from sessiontree.core.tree import Tree


class NavigatePlan(Struct, frozen=True, kw_only=True):
    """Moving a head from one place to another."""

    target: EntryId | None
    """The entry that was chosen; `None` is the place before everything."""
    old_leaf: EntryId | None
    new_leaf: EntryId | None
    """Where the head will be: the target, or its parent if that is to be edited."""
    common_ancestor: EntryId | None
    abandoned: tuple[Entry, ...]
    """What a summary of the branch that is left covers, oldest first."""
    editor_text: str | None
    """Text to put back in the editor, when a user's or custom message was chosen."""
    undo_description: str | None = None
    """What an undo takes back, in words: `the merge of cache into main`."""

    @property
    def is_move(self) -> bool:
        return self.new_leaf != self.old_leaf


def plan_navigate(tree: Tree, old_leaf: EntryId | None, target: EntryId | None) -> NavigatePlan:
    """The plan for choosing `target` in the tree while the head is at `old_leaf`."""
    new_leaf, editor_text = tree.skip_annotations(target), None
    if target is not None:
        editable = get_editable_text(tree[target], own_leaf=target == old_leaf)
        if editable is not None:
            new_leaf, editor_text = tree.skip_annotations(tree.parent(target)), editable
    return NavigatePlan(
        target=target,
        old_leaf=old_leaf,
        new_leaf=new_leaf,
        common_ancestor=tree.find_common_ancestor(old_leaf, target),
        abandoned=select_for_summary(tree, tree.find_abandoned(old_leaf, target)),
        editor_text=editor_text,
    )


def plan_move(tree: Tree, old_leaf: EntryId | None, target: EntryId | None) -> NavigatePlan:
    """The plan for going to `target` itself, without the rules of selection."""
    return NavigatePlan(
        target=target,
        old_leaf=old_leaf,
        new_leaf=tree.skip_annotations(target),
        common_ancestor=tree.find_common_ancestor(old_leaf, target),
        abandoned=select_for_summary(tree, tree.find_abandoned(old_leaf, target)),
        editor_text=None,
    )


def get_editable_text(entry: Entry, *, own_leaf: bool = False) -> str | None:
    """The text that goes back to the editor when `entry` is chosen, if it is one to edit.

    A user's message is, and a custom message, unless it is the leaf itself.
    """
    match entry.body:
        case Message(message) if get_role(message) == "user":
            return extract_text(message.get("content"))
        case CustomMessage(content=content) if not own_leaf:
            return extract_text(content)
        case _:
            return None


def select_for_summary(tree: Tree, abandoned: list[Entry]) -> tuple[Entry, ...]:
    """What stands for `abandoned` in a summary: from its last compaction on, only that and what it keeps."""
    for index in range(len(abandoned) - 1, -1, -1):
        body = _get_compaction(abandoned[index])
        if body is not None:
            left = [entry.id for entry in abandoned[:index]]
            if body.first_kept in left:
                kept = left.index(body.first_kept)
            elif any(entry.id == body.first_kept for entry in tree.walk_up(tree.parent(abandoned[0].id))):
                kept = 0
            else:
                kept = index
            return tuple(
                entry
                for place, entry in enumerate(abandoned)
                if place >= kept and (place >= index or _get_compaction(entry) is None)
            )
    return tuple(abandoned)


def _get_compaction(entry: Entry) -> Compaction | None:
    """What a compaction says; of anything else nothing is decoded."""
    body = entry.body if entry.type == "compaction" else None
    return body if isinstance(body, Compaction) else None


class SummaryInput(Struct, frozen=True, kw_only=True):
    """What entries said to the model, for a summary of them."""

    messages: tuple[JsonObject, ...]
    files: TouchedFiles


def collect_summary_input(tree: Tree, leaf: EntryId | None, entries: Sequence[Entry]) -> SummaryInput:
    """What `entries` say in the context at `leaf`, as context edits have left it, and the files that were touched."""
    ids = {entry.id for entry in entries}
    context = build_shared_context(tree, leaf)
    messages = tuple(
        message
        for id, message in zip(context.sources, context.messages, strict=True)
        if id in ids and get_role(message) != "system"
    )
    return SummaryInput(messages=messages, files=collect_files(messages, entries))


def find_last_prompt(path: Sequence[Entry]) -> Entry | None:
    """The user's last message on a path."""
    for entry in reversed(path):
        if isinstance(entry.body, Message) and get_role(entry.body.message) == "user":
            return entry
    return None


class ForkPlan(Struct, frozen=True, kw_only=True):
    """The path of one entry as a session of its own."""

    entries: tuple[Entry, ...]
    """What is copied, root first."""
    parents: dict[EntryId, EntryId | None]
    """Parents that change, since entries in between are left out."""
    anchors: dict[EntryId, EntryId]
    """First kept entries of compactions that change for the same reason."""
    labels: tuple[Entry, ...]
    """The entries that set labels which are still live, to be set again."""

    @property
    def leaf(self) -> EntryId | None:
        """The head of the new session."""
        return next((entry.id for entry in reversed(self.entries) if not entry.is_annotation), None)


NOT_FORKED = frozenset({"label", "branch_point"})


def plan_fork(tree: Tree, leaf: EntryId | None) -> ForkPlan:
    """The path to `leaf` without labels, head records and branch points, chained anew."""
    path = tree.path(leaf)
    kept = [entry for entry in path if not (entry.type in NOT_FORKED or entry.is_head_record)]
    ids = {entry.id for entry in kept}
    parents: dict[EntryId, EntryId | None] = {}
    above: EntryId | None = None
    for entry in kept:
        if entry.parent != above:
            parents[entry.id] = above
        above = entry.id
    anchors: dict[EntryId, EntryId] = {}
    next_kept: dict[EntryId, EntryId] = {}
    following: EntryId | None = None
    for entry in reversed(path):
        if entry.id in ids:
            following = entry.id
        elif following is not None:
            next_kept[entry.id] = following
    for entry in kept:
        body = _get_compaction(entry)
        if body is not None and body.first_kept in next_kept:
            anchors[entry.id] = next_kept[body.first_kept]
    labels = [setter for id in tree.labels if id in ids and (setter := tree.get_label_entry(id)) is not None]
    return ForkPlan(entries=tuple(kept), parents=parents, anchors=anchors, labels=tuple(labels))
