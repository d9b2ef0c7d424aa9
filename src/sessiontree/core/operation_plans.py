"""Plans: what navigating, forking, merging, cherry-picking and rebasing will do, computed before anything is written.

A plan is a frozen value that hooks receive. `session` and `ops` carry it out. A merge is a summary of another branch.
References between copied entries (the first entry that a compaction keeps, the target of a context edit) are updated to
the copies. A copy has no usage, because the original already counts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from sessiontree.core.context import build_shared_context
from sessiontree.core.entries import (
    Body,
    BranchSummary,
    Compaction,
    ContextEdit,
    CustomMessage,
    Entry,
    EntryId,
    JsonObject,
    Message,
)
from sessiontree.core.messages import (
    complete_usage,
    extract_text,
    get_answered_call,
    get_role,
    get_tool_calls,
    is_list,
    is_object,
)
from sessiontree.core.tree import Tree
from sessiontree.errors import InvalidOperation

if TYPE_CHECKING:
    from sessiontree.core.summary_prompts import TouchedFiles

# Navigating


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
    from sessiontree.core.summary_prompts import collect_files

    return SummaryInput(messages=messages, files=collect_files(messages, entries))


def find_last_prompt(path: Sequence[Entry]) -> Entry | None:
    """Return the last user message on a path."""
    for entry in reversed(path):
        if isinstance(entry.body, Message) and get_role(entry.body.message) == "user":
            return entry
    return None


def find_prompt_text(tree: Tree, leaf: EntryId | None) -> str:
    """Return the text of the last user message at an entry or above it; empty if there is none."""
    prompt = find_last_prompt(tree.path(leaf))
    body = None if prompt is None else prompt.body
    return extract_text(body.message.get("content")) if isinstance(body, Message) else ""


# Forking


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


# Merging


def plan_merge(tree: Tree, source: EntryId | None, into: EntryId | None) -> tuple[Entry, ...]:
    """Return the entries on the path to `source` that `into` lacks, since they split or since the last merge.

    Merges whose sources are all known to `into` are left out.
    """
    merged = {id for entry in tree.walk_up(into) for id in get_merge_sources(entry)}
    known = merged.union(tree.walk_up_ids(into))
    new = tree.find_abandoned(source, into)
    for index in range(len(new) - 1, -1, -1):
        if new[index].id in merged:
            new = new[index + 1 :]
            break
    return tuple(entry for entry in select_for_summary(tree, new) if not _is_known_merge(entry, known))


def _is_known_merge(entry: Entry, known: set[EntryId]) -> bool:
    """Return whether an entry is a merge of known entries only."""
    sources = get_merge_sources(entry)
    return bool(sources) and known.issuperset(sources)


def build_merge_details(sources: Sequence[EntryId | None], details: JsonObject | None = None) -> JsonObject:
    """Return the details that mark a summary as a merge of these heads, combined with other `details`."""
    return {**(details or {}), "kind": "merge", "sources": list(sources)}


def is_merge(body: Body) -> bool:
    details = body.details if isinstance(body, BranchSummary) else None
    return is_object(details) and details.get("kind") == "merge"


def get_merge_sources(entry: Entry) -> list[EntryId]:
    """Return the heads that a merge combines; empty for other entries."""
    body = entry.body if entry.type == "branch_summary" else None
    sources = body.details.get("sources") if isinstance(body, BranchSummary) and is_merge(body) else None
    return [id for id in sources if isinstance(id, str)] if is_list(sources) else []


# Copying


def copy_body(body: Body) -> Body:
    """Return the body of a copy: the same content without usage, which was paid once."""
    match body:
        case Message(message) if "usage" in message:
            if get_role(message) == "assistant":  # peers expect a usage object
                return Message({**message, "usage": complete_usage(None)})
            return Message({key: value for key, value in message.items() if key != "usage"})
        case Compaction() | BranchSummary():
            return replace(body, usage=None)
        case _:
            return body


# Cherry-picking


def plan_cherry_pick(tree: Tree, chosen: Sequence[EntryId]) -> tuple[Entry, ...]:
    """Plan to copy the chosen messages in file order. Calls include their results, and results their calls."""
    order = {entry.id: index for index, entry in enumerate(tree)}
    groups: dict[EntryId, list[Entry]] = {}
    for id in sorted(dict.fromkeys(chosen), key=order.__getitem__):
        entry = tree[id]
        if not isinstance(entry.body, Message | CustomMessage | BranchSummary):
            raise InvalidOperation(f"entry {id!r} has type {entry.type!r}; only messages can be cherry-picked")
        answered = _get_answered_call(entry)
        turn = entry if answered is None else _find_caller(tree, entry, answered)
        group = groups.setdefault(turn.id, [turn])
        if answered is not None and all(_get_answered_call(other) != answered for other in group[1:]):
            group.append(entry)
    for group in groups.values():
        known = {_get_answered_call(result) for result in group[1:]}
        group += [result for call, result in _find_results(tree, group[0]).items() if call not in known]
        group[1:] = sorted(group[1:], key=lambda result: order[result.id])
    return tuple(entry for turn in sorted(groups, key=order.__getitem__) for entry in groups[turn])


def _get_answered_call(entry: Entry) -> str | None:
    return get_answered_call(entry.body.message) if isinstance(entry.body, Message) else None


def _get_call_ids(entry: Entry) -> set[str]:
    return {call.id for call in get_tool_calls(entry.body.message)} if isinstance(entry.body, Message) else set()


def _find_caller(tree: Tree, result: Entry, call: str) -> Entry:
    for entry in tree.walk_up(tree.parent(result.id)):
        if call in _get_call_ids(entry):
            return entry
    raise InvalidOperation(f"entry {result.id!r} is the result of a tool call that is not on its path")


def _find_results(tree: Tree, turn: Entry) -> dict[str, Entry]:
    """Return the first result of each call of a turn, on any branch below it, up to the next turn."""
    calls = _get_call_ids(turn)
    found: dict[str, Entry] = {}
    waiting = tree.children(turn.id)[::-1] if calls else []
    while waiting and len(found) < len(calls):
        entry = waiting.pop()
        answered = _get_answered_call(entry)
        if answered in calls:
            found.setdefault(answered or "", entry)
        if not (isinstance(entry.body, Message) and get_role(entry.body.message) == "assistant"):
            waiting += tree.children(entry.id)[::-1]
    return found


# Rebasing

NOT_COPIED = frozenset({"branch_point"})


def plan_rebase(tree: Tree, leaf: EntryId | None, onto: EntryId | None) -> tuple[Entry, ...]:
    """Plan to copy entries so the path to `leaf` continues from `onto`. Raises `InvalidOperation`."""
    base = tree.find_common_ancestor(leaf, onto)
    if base == onto:
        raise InvalidOperation(f"the branch already continues from {onto or 'root'}")
    entries = tuple(
        entry for entry in tree.find_abandoned(leaf, onto) if not entry.is_annotation and entry.type not in NOT_COPIED
    )
    if not entries:
        raise InvalidOperation(f"nothing to rebase: the path to entry {onto!r} already has every entry of the branch")
    rebase_bodies(tree, entries, onto, {entry.id: entry.id for entry in entries})
    return entries


def rebase_bodies(
    tree: Tree, entries: Sequence[Entry], onto: EntryId | None, copies: dict[EntryId, EntryId]
) -> list[Body]:
    """Return the bodies of copies of `entries` below `onto`; `copies` maps each original id to the id of its copy.

    Raises `InvalidOperation` if a body refers to an entry that would not be on its path.
    """
    above = set(tree.walk_up_ids(onto))
    bodies: list[Body] = []
    for entry in entries:
        body = copy_body(entry.body)
        match body:
            case Compaction():
                kept = _find_copied_anchor(tree, entry, body.first_kept, copies, above)
                bodies.append(replace(body, first_kept=kept, state=None, system_message=None))
            case ContextEdit(target=target):
                if target not in copies and target not in above:
                    raise _build_unreachable_error(entry, "edits", target)
                bodies.append(replace(body, target=copies.get(target, target)))
            case _:
                bodies.append(body)
    return bodies


def _find_copied_anchor(
    tree: Tree, entry: Entry, anchor: EntryId | None, copies: dict[EntryId, EntryId], above: set[EntryId]
) -> EntryId | None:
    """Return the first entry that the copy of a compaction keeps, or `None`."""
    if anchor is None or anchor == entry.id:
        return None
    following: EntryId | None = None
    for up in tree.walk_up(tree.parent(entry.id)):
        if up.id in copies:
            following = copies[up.id]
        if up.id == anchor:
            return anchor if anchor in above else following
    raise _build_unreachable_error(entry, "keeps entries from", anchor)


def _build_unreachable_error(entry: Entry, does: str, target: EntryId) -> InvalidOperation:
    return InvalidOperation(f"entry {entry.id!r} {does} {target!r}, which would not be on its path")
