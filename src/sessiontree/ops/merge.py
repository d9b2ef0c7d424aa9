"""Merge: bring the results of other branches into a branch, as a summary or as copies of entries.

`merge` appends a summary of another branch. `promote` continues from one of several branches and appends a summary of
the others. `cherry_pick` copies selected messages; `rebase` copies the entries of a branch to another place. The
originals stay in the tree.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from sessiontree.config import FileSettings
from sessiontree.core.context import build_shared_context
from sessiontree.core.entries import BranchSummary, Entry, EntryId, JsonObject
from sessiontree.core.messages import is_object
from sessiontree.core.operation_plans import (
    SummaryInput,
    build_merge_details,
    collect_summary_input,
    copy_body,
    plan_cherry_pick,
    plan_merge,
    plan_rebase,
    rebase_bodies,
)
from sessiontree.core.place_names import find_branch
from sessiontree.core.summary_prompts import MERGE_PREAMBLE, PROMOTE_PREAMBLE, TouchedFiles, merge_files
from sessiontree.errors import BranchMoved, InvalidOperation
from sessiontree.files.git_command import SnapshotError
from sessiontree.files.private_folder import find_private_folder
from sessiontree.format.codec import build_copy_fields
from sessiontree.hooks.abort import OperationStopped, ask_hooks, emit_event
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import BeforeCopy, BeforeMerge, Copied, Merged, Notice, Signal
from sessiontree.ops.merge_files import FilesMerged, merge_branch_files, remove_branch_folders
from sessiontree.ops.navigate import find_grown_head
from sessiontree.ops.summarize import SummaryRequest, get_supplied_summary
from sessiontree.session import Branch, Item, Place, Session, format_place

DEFAULT_REQUEST = SummaryRequest()


class MergeOutcome(Struct, frozen=True, kw_only=True):
    """The result of a merge or a promotion."""

    summary_entry: Entry | None = None
    """The summary; `None` if it was cancelled or there was nothing to summarize."""
    new_leaf: EntryId | None
    """The head of the branch that was merged into."""
    cancelled: bool = False
    """Whether a handler or the signal cancelled it."""
    cancelled_by: str | None = None
    """The handler or extension that cancelled it."""
    aborted: bool = False
    """Whether the signal cancelled it."""
    files: FilesMerged | None = None
    """What it did to files; `None` if the merged branch has no private folder."""
    removed_folders: tuple[str, ...] = ()
    """The branches whose private folder was removed, with their files in a snapshot."""


class CopyOutcome(Struct, frozen=True, kw_only=True):
    """The result of a cherry-pick or a rebase."""

    entries: tuple[Entry, ...] = ()
    """The copies."""
    old_leaf: EntryId | None
    new_leaf: EntryId | None
    cancelled: bool = False
    cancelled_by: str | None = None
    """The handler or extension that cancelled it."""


class _Source(Struct, frozen=True):
    """A branch or another place to merge, with its entries and their messages."""

    name: str
    leaf: EntryId | None
    entries: tuple[Entry, ...]
    conversation: SummaryInput


# Summaries


async def merge(
    source: Place,
    into: Branch,
    *,
    hooks: Hooks,
    summary: SummaryRequest | str = DEFAULT_REQUEST,
    signal: Signal | None = None,
    with_files: bool = True,
    file_settings: FileSettings | None = None,
) -> MergeOutcome:
    """Append a summary of `source`, a branch or any other place, to `into`. It covers the entries that `into` lacks.

    If `source` is a branch with a private folder, its changes are merged into the folder of `into`, all or none.

    A handler or the model writes the summary; a string is your own text. Entries that were merged before are not merged
    again. If it is cancelled, aborted or fails, the session does not change. Raises `ModelError`, `SummaryFailed`, or
    `BranchMoved` if another writer moved `into` or merged the same entries; appending to it is fine.
    """
    session, name = into.session, format_place(source)
    branch = find_branch(source, session.tree, session.heads) if isinstance(source, str) else None
    if branch is not None:
        source = session.branch(branch)
    if isinstance(source, Branch):
        _check_mergeable(source, into)
    start = into.leaf
    found = _build_source(session, source, start)
    if not found.conversation.messages:
        if with_files and isinstance(source, Branch) and find_private_folder(session.id, source.name) is not None:
            # The conversation was merged before, and only the files are left, such as after a conflict.
            return MergeOutcome(new_leaf=start, files=await _merge_folders(source, into, start, file_settings))
        kind = "branch" if isinstance(source, Branch) else "place"
        raise InvalidOperation(f"{kind} {name!r} has no entries to merge into {into.name!r}")
    builder = _SummaryBuilder("merge", into, [found], hooks, SummaryRequest.from_value(summary), signal or Signal())
    try:
        body = await builder.build(MERGE_PREAMBLE.format(name=name))
    except OperationStopped as stopped:
        return MergeOutcome(
            new_leaf=into.leaf, cancelled=True, aborted=stopped.aborted, cancelled_by=stopped.by or None
        )
    assert body is not None, "there is something to summarize"
    head = find_grown_head(into, start)
    still = plan_merge(into.session.tree, found.leaf, head)
    if [entry.id for entry in still] != [entry.id for entry in found.entries]:
        raise BranchMoved(into.name, start, head)
    entry = into.session.append(body, branch=into.name, expected=head)
    await builder.emit_merged(entry, body)
    outcome = MergeOutcome(summary_entry=entry, new_leaf=entry.id)
    if not isinstance(source, Branch) or not with_files:
        return outcome
    return replace(outcome, files=await _merge_folders(source, into, start, file_settings))


async def promote(
    winner: Branch,
    into: Branch,
    over: Sequence[Branch] | None = None,
    *,
    hooks: Hooks,
    summary: SummaryRequest | str = DEFAULT_REQUEST,
    signal: Signal | None = None,
    file_settings: FileSettings | None = None,
) -> MergeOutcome:
    """Move `into` to the head of `winner`, and append a summary of the branches it was chosen `over`.

    By default these are all branches that continue from the head of `into`. They and the winner are archived in the
    same batch; if one of them was current, `into` becomes current. If it is cancelled, aborted or fails, the session
    does not change. Raises `ModelError`, `SummaryFailed`, or `BranchMoved` if another writer moved or extended
    `into`.

    The changes in the private folder of the winner are merged into the folder of `into`, all or none. The private
    folders of archived branches are removed, except that of a winner whose files conflict.
    """
    session, tree = into.session, into.session.tree
    start, end = into.leaf, winner.leaf
    if winner.session is not session or not _is_descendant(session, end, start):
        raise InvalidOperation(
            f"branch {winner.name!r} does not continue from the head of {into.name!r}; merge it instead"
        )
    rest = (
        find_other_branches(into, winner)
        if over is None
        else [branch for branch in over if branch not in (winner, into)]
    )
    for branch in rest:
        _check_mergeable(branch, into)
    sources = [found for branch in rest if (found := _build_source(session, branch, end)).conversation.messages]
    builder = _SummaryBuilder("promote", into, sources, hooks, SummaryRequest.from_value(summary), signal or Signal())
    try:
        body = await builder.build(PROMOTE_PREAMBLE.format(name=winner.name))
    except OperationStopped as stopped:
        return MergeOutcome(new_leaf=start, cancelled=True, aborted=stopped.aborted, cancelled_by=stopped.by or None)
    written = session.move(
        None if end is None else tree[end],
        [] if body is None else [body],
        branch=into.name,
        expected=start,
        archive=[branch.name for branch in (*rest, winner)],
    )
    entry = written[0] if written else None
    await builder.emit_merged(entry, body)
    files = await _merge_folders(winner, into, start, file_settings)
    unneeded = rest if files is not None and files.conflicts else [*rest, winner]
    names = [branch.name for branch in unneeded]
    removed = await asyncio.to_thread(remove_branch_folders, session, names, file_settings or FileSettings())
    return MergeOutcome(summary_entry=entry, new_leaf=into.leaf, files=files, removed_folders=tuple(removed))


async def _merge_folders(
    source: Branch, into: Branch, old_leaf: EntryId | None, settings: FileSettings | None
) -> FilesMerged | None:
    """Merge the files of a private folder after the conversation. Errors mention that the conversation is merged."""
    try:
        return await asyncio.to_thread(merge_branch_files, source, into, settings or FileSettings(), old_leaf=old_leaf)
    except SnapshotError as error:
        raise SnapshotError(f"the conversation was merged, but its files were not: {error}; merge again") from error


def find_other_branches(into: Branch, winner: Branch) -> list[Branch]:
    """Return the branches that continue from the head of `into` and are not archived, without `winner`."""
    session, start = into.session, into.leaf
    return [
        session.branch(info.name)
        for info in session.branches
        if info.name not in (into.name, winner.name)
        and not info.archived
        and info.leaf in session.tree
        and _is_descendant(session, info.leaf, start)
    ]


def _is_descendant(session: Session, leaf: EntryId | None, start: EntryId | None) -> bool:
    return start is None or any(entry.id == start for entry in session.tree.walk_up(leaf))


def _check_mergeable(source: Branch, into: Branch) -> None:
    if source.session is not into.session:
        raise InvalidOperation(f"branch {source.name!r} belongs to another session")
    if source == into:
        raise InvalidOperation(f"branch {source.name!r} cannot be merged into itself")


def _build_source(session: Session, place: Place, into: EntryId | None) -> _Source:
    tree, leaf = session.tree, session.tree.skip_annotations(session.resolve_place(place))
    entries = plan_merge(tree, leaf, into)
    return _Source(format_place(place), leaf, entries, collect_summary_input(tree, leaf, entries))


class _SummaryBuilder(Struct, frozen=True):
    """Builds the summary of one or more branches."""

    kind: Literal["merge", "promote"]
    into: Branch
    sources: Sequence[_Source]
    hooks: Hooks
    request: SummaryRequest
    signal: Signal

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(source.name for source in self.sources)

    async def build(self, preamble: str) -> BranchSummary | None:
        """Return the summary; `None` if there is nothing to summarize. Raises `OperationStopped`."""
        if self.sources:
            self.request.check_model()
        text = self.request.text
        event = BeforeMerge(
            kind=self.kind,
            branch=self.into.name,
            sources=self.names,
            entries=tuple(entry for source in self.sources for entry in source.entries),
            user_wants_summary=text is None,
            custom_instructions=self.request.instructions,
            signal=self.signal,
        )
        event, answer = await ask_hooks(self.hooks, event, self.signal)
        if not self.sources:
            return None
        files = merge_files(source.conversation.files for source in self.sources)
        if text is not None:
            return self._build_body(text, files.to_wire())
        given = get_supplied_summary(self.hooks, answer)
        if given is not None:
            details: JsonObject = {}
            if is_object(given.details):
                details = given.details
            elif given.details is not None:
                self.hooks.notify_listeners(
                    Notice(level="error", text="a handler supplied details that are not an object")
                )
            return self._build_body(given.summary, details, usage=given.usage, from_hook=True)
        return await self._generate(files, event.custom_instructions, preamble)

    async def _generate(self, files: TouchedFiles, instructions: str | None, preamble: str) -> BranchSummary:
        thinking = build_shared_context(self.into.session.tree, self.into.leaf).thinking_level
        summarizer = self.request.create_summarizer(self.hooks, self.signal, thinking=thinking)
        parts = [preamble]
        for source in self.sources:
            text = await summarizer.summarize_branch(
                source.conversation.messages, merged=True, instructions=instructions
            )
            parts += [text] if self.kind == "merge" else [f"# Branch {source.name}", text]
        return self._build_body(files.append_to_summary("\n\n".join(parts)), files.to_wire(), usage=summarizer.usage)

    def _build_body(
        self, text: str, details: JsonObject, *, usage: JsonObject | None = None, from_hook: bool | None = None
    ) -> BranchSummary:
        heads = [source.leaf for source in self.sources]
        return BranchSummary(
            summary=text,
            abandoned_leaf=heads[0],
            details=build_merge_details(heads, details),
            usage=usage,
            from_hook=from_hook,
        )

    async def emit_merged(self, entry: Entry | None, body: BranchSummary | None) -> None:
        from_hook = body is not None and body.from_hook is True
        merged = Merged(
            kind=self.kind, branch=self.into.name, sources=self.names, summary_entry=entry, from_hook=from_hook
        )
        await emit_event(self.hooks, merged, self.signal)


# Copies


async def cherry_pick(into: Branch, places: Sequence[Place], *, hooks: Hooks) -> CopyOutcome:
    """Append copies of messages from anywhere in the session to `into`. A tool call is copied with its result.

    Raises `BranchMoved` if another writer moved `into`; appending to it is fine.
    """
    session, leaf = into.session, into.leaf
    chosen: list[EntryId] = []
    for place in places:
        id = session.resolve_place(place)
        if id is None:
            raise InvalidOperation("cannot copy root: it is not an entry")
        chosen.append(id)
    entries = plan_cherry_pick(session.tree, chosen)
    if not entries:
        raise InvalidOperation("these places have no messages to copy")
    event = BeforeCopy(kind="cherry_pick", branch=into.name, onto=leaf, entries=entries)
    _, answer = await hooks.ask(event)
    if answer.cancel:
        return CopyOutcome(old_leaf=leaf, new_leaf=leaf, cancelled=True, cancelled_by=answer.cancelled_by)
    items = [Item(copy_body(entry.body), build_copy_fields(entry), is_copy=True) for entry in entries]
    head = find_grown_head(into, leaf)
    at = None if head is None else session.tree[head]
    copies = tuple(session.move(at, items, branch=into.name, expected=head))  # a move, because `undo` reverts moves
    await hooks.emit(Copied(kind="cherry_pick", branch=into.name, entries=copies))
    return CopyOutcome(entries=copies, old_leaf=leaf, new_leaf=into.leaf)


async def rebase(branch: Branch, onto: Place, *, hooks: Hooks) -> CopyOutcome:
    """Copy the entries of the branch after the common path to another place, and move its head there.

    Raises `InvalidOperation` if a compaction or a context edit refers to an entry that is not on the new path, and
    `BranchMoved` if another writer moved the branch or appended to it.
    """
    session, leaf = branch.session, branch.leaf
    target = session.tree.skip_annotations(session.resolve_place(onto))
    entries = plan_rebase(session.tree, leaf, target)
    event = BeforeCopy(kind="rebase", branch=branch.name, onto=target, entries=entries)
    _, answer = await hooks.ask(event)
    if answer.cancel:
        return CopyOutcome(old_leaf=leaf, new_leaf=leaf, cancelled=True, cancelled_by=answer.cancelled_by)
    ids = {entry.id: session.generate_id() for entry in entries}
    bodies = rebase_bodies(session.tree, entries, target, ids)
    items = [
        Item(body, build_copy_fields(entry), ids[entry.id], is_copy=True)
        for entry, body in zip(entries, bodies, strict=True)
    ]
    to = None if target is None else session.tree[target]
    copies = tuple(session.move(to, items, branch=branch.name, expected=leaf))
    await hooks.emit(Copied(kind="rebase", branch=branch.name, entries=copies))
    return CopyOutcome(entries=copies, old_leaf=leaf, new_leaf=branch.leaf)
