"""Plans: what navigation and forks will do, computed from the tree before anything is written.

A plan is a frozen value that hooks receive. `session` and `ops` carry it out.
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
    """A move of a head."""

    target: EntryId | None
    """The selected entry; `None` is the place before the first entry."""
    old_leaf: EntryId | None
    new_leaf: EntryId | None
    """The new head: the target, or its parent if the target will be edited."""
    common_ancestor: EntryId | None
    abandoned: tuple[Entry, ...]
    """The entries that a summary of the abandoned branch covers, oldest first."""
    editor_text: str | None
    """Text for the editor if a user message or a custom message was selected."""
    undo_description: str | None = None
    """What an undo reverts, in words: `the merge of cache into main`."""

    @property
    def is_move(self) -> bool:
        return self.new_leaf != self.old_leaf


def plan_navigate(tree: Tree, old_leaf: EntryId | None, target: EntryId | None) -> NavigatePlan:
    """Plan the selection of `target` in the tree while the head is at `old_leaf`."""
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
    """Plan a move to `target` itself, even if it is a message that could be edited."""
    return NavigatePlan(
        target=target,
        old_leaf=old_leaf,
        new_leaf=tree.skip_annotations(target),
        common_ancestor=tree.find_common_ancestor(old_leaf, target),
        abandoned=select_for_summary(tree, tree.find_abandoned(old_leaf, target)),
        editor_text=None,
    )


def get_editable_text(entry: Entry, *, own_leaf: bool = False) -> str | None:
    """Return the text for the editor when `entry` is selected, or `None` if it cannot be edited.

    User messages can be edited, and custom messages unless they are the leaf.
    """
    match entry.body:
        case Message(message) if get_role(message) == "user":
            return extract_text(message.get("content"))
        case CustomMessage(content=content) if not own_leaf:
            return extract_text(content)
        case _:
            return None


def select_for_summary(tree: Tree, abandoned: list[Entry]) -> tuple[Entry, ...]:
    """Return the part of `abandoned` that a summary covers: from the last compaction on, plus what that keeps."""
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
    """Return the body of a compaction. Other entries are not decoded."""
    body = entry.body if entry.type == "compaction" else None
    return body if isinstance(body, Compaction) else None


class SummaryInput(Struct, frozen=True, kw_only=True):
    """What a summary is made from."""

    messages: tuple[JsonObject, ...]
    files: TouchedFiles


def collect_summary_input(tree: Tree, leaf: EntryId | None, entries: Sequence[Entry]) -> SummaryInput:
    """Collect the messages of `entries` in the context at `leaf`, after context edits, and the files they touched."""
    ids = {entry.id for entry in entries}
    context = build_shared_context(tree, leaf)
    messages = tuple(
        message
        for id, message in zip(context.sources, context.messages, strict=True)
        if id in ids and get_role(message) != "system"
    )
    return SummaryInput(messages=messages, files=collect_files(messages, entries))


def find_last_prompt(path: Sequence[Entry]) -> Entry | None:
    """Return the last user message on a path."""
    for entry in reversed(path):
        if isinstance(entry.body, Message) and get_role(entry.body.message) == "user":
            return entry
    return None


class ForkPlan(Struct, frozen=True, kw_only=True):
    """The path to one entry as a new session."""

    entries: tuple[Entry, ...]
    """The copied entries, root first."""
    parents: dict[EntryId, EntryId | None]
    """Entries whose parent changes because entries in between are left out."""
    anchors: dict[EntryId, EntryId]
    """Compactions whose first kept entry changes for the same reason."""
    labels: tuple[Entry, ...]
    """The entries that set the current labels, to be written again."""

    @property
    def leaf(self) -> EntryId | None:
        """The head of the new session."""
        return next((entry.id for entry in reversed(self.entries) if not entry.is_annotation), None)


NOT_FORKED = frozenset({"label", "branch_point"})


def plan_fork(tree: Tree, leaf: EntryId | None) -> ForkPlan:
    """Plan a copy of the path to `leaf` without labels, head records and branch points."""
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
