"""Merging: bringing back what came of other branches, as a summary or as copies of entries.

`merge` writes a summary of another branch at the head of this one; `promote` makes one of several branches the way on
and writes a summary of the others. `cherry_pick` copies chosen messages, `rebase` moves a branch to another place by
copying its entries there. Nothing is taken away: originals stay in the tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from sessiontree.config import RetrySettings, SummarySettings
from sessiontree.core.compaction import split_window
from sessiontree.core.context import build_shared_context
from sessiontree.core.entries import BranchSummary, Entry, EntryId, JsonObject
from sessiontree.core.merge_plan import (
    build_merge_details,
    copy_body,
    plan_cherry_pick,
    plan_merge,
    plan_rebase,
    rebase_bodies,
)
from sessiontree.core.messages import is_object
from sessiontree.core.plan import SummaryInput, collect_summary_input
from sessiontree.core.summary_prompts import MERGE_PREAMBLE, PROMOTE_PREAMBLE, TouchedFiles, merge_files
from sessiontree.errors import BranchMoved, InvalidOperation
from sessiontree.format.codec import build_copy_fields
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import BeforeCopy, BeforeMerge, Copied, Merged, Notice, Signal
from sessiontree.model.base import Model
from sessiontree.ops.hook_requests import (
    OperationStopped,
    ask_hooks,
    check_summary_text,
    emit_event,
    find_grown_head,
    get_supplied_summary,
)
from sessiontree.ops.summarize import Summarizer
from sessiontree.session import Branch, NewEntry, Place, Session

DEFAULT = SummarySettings()
DEFAULT_RETRY = RetrySettings()


class MergeOutcome(Struct, frozen=True, kw_only=True):
    summary_entry: Entry | None = None
    """The summary; `None` if it was cancelled, or if there was nothing to promote over."""
    new_leaf: EntryId | None
    """Where the branch is now that was merged into."""
    cancelled: bool = False
    """By a handler, or by the signal."""
    aborted: bool = False
    """By the signal."""


class CopyOutcome(Struct, frozen=True, kw_only=True):
    entries: tuple[Entry, ...] = ()
    """The copies."""
    old_leaf: EntryId | None
    new_leaf: EntryId | None
    cancelled: bool = False


class _Source(Struct, frozen=True):
    """A branch that is merged, and what it has to say."""

    branch: Branch
    leaf: EntryId | None
    entries: tuple[Entry, ...]
    conversation: SummaryInput


# Summaries


async def merge(
    source: Branch,
    into: Branch,
    *,
    hooks: Hooks,
    model: Model | None = None,
    summary: str | None = None,
    custom_instructions: str | None = None,
    settings: SummarySettings = DEFAULT,
    retry: RetrySettings = DEFAULT_RETRY,
    signal: Signal | None = None,
) -> MergeOutcome:
    """Write a summary of `source` at the head of `into`: of what it has that `into` has not.

    The summary is made by a handler or by `model`, or is the user's own text. What was merged before is not merged
    again. Cancelled, aborted or failed, it leaves the session as it was. Raises `ModelError` or `SummaryFailed`, and
    `BranchMoved` if `into` was moved elsewhere meanwhile, or has come to have what is merged; that it grew is no harm.
    """
    _check_mergeable(source, into)
    start = into.leaf
    found = _build_source(source, start)
    if not found.conversation.messages:
        raise InvalidOperation(f"branch {source.name!r} has nothing that {into.name!r} does not have")
    maker = _SummaryBuilder("merge", into, [found], hooks, model, settings, retry, signal or Signal())
    try:
        body = await maker.build(summary, custom_instructions, MERGE_PREAMBLE.format(name=source.name))
    except OperationStopped as stopped:
        return MergeOutcome(new_leaf=into.leaf, cancelled=True, aborted=stopped.aborted)
    assert body is not None, "there is something to summarize"
    head = find_grown_head(into, start)
    still = plan_merge(into.session.tree, found.leaf, head)
    if [entry.id for entry in still] != [entry.id for entry in found.entries]:
        raise BranchMoved(into.name, start, head)
    entry = into.session.append(body, branch=into.name, expected=head)
    await maker.emit_merged(entry, body)
    return MergeOutcome(summary_entry=entry, new_leaf=entry.id)


async def promote(
    winner: Branch,
    into: Branch,
    over: Sequence[Branch] | None = None,
    *,
    hooks: Hooks,
    model: Model | None = None,
    summary: str | None = None,
    custom_instructions: str | None = None,
    settings: SummarySettings = DEFAULT,
    retry: RetrySettings = DEFAULT_RETRY,
    signal: Signal | None = None,
) -> MergeOutcome:
    """Move `into` to the head of `winner`, with a summary of the branches that it was chosen `over`.

    These are by default all that go on from the head of `into`. They and the winner are archived with it; where one
    of them was current, `into` is. Cancelled, aborted or failed, it leaves the session as it was. Raises
    `ModelError` or `SummaryFailed`, and `BranchMoved` if `into` was moved or grew meanwhile.
    """
    session, tree = into.session, into.session.tree
    start, end = into.leaf, winner.leaf
    if winner.session is not session or not _is_descendant(session, end, start):
        raise InvalidOperation(
            f"branch {winner.name!r} does not go on from the head of {into.name!r}: merge it instead"
        )
    rest = (
        find_other_branches(into, winner)
        if over is None
        else [branch for branch in over if branch not in (winner, into)]
    )
    for branch in rest:
        _check_mergeable(branch, into)
    sources = [found for branch in rest if (found := _build_source(branch, end)).conversation.messages]
    maker = _SummaryBuilder("promote", into, sources, hooks, model, settings, retry, signal or Signal())
    try:
        body = await maker.build(summary, custom_instructions, PROMOTE_PREAMBLE.format(name=winner.name))
    except OperationStopped as stopped:
        return MergeOutcome(new_leaf=start, cancelled=True, aborted=stopped.aborted)
    written = session.move(
        None if end is None else tree[end],
        [] if body is None else [body],
        branch=into.name,
        expected=start,
        archive=[branch.name for branch in (*rest, winner)],
    )
    entry = written[0] if written else None
    await maker.emit_merged(entry, body)
    return MergeOutcome(summary_entry=entry, new_leaf=into.leaf)


def find_other_branches(into: Branch, winner: Branch) -> list[Branch]:
    """What a winner is promoted over by default: all that go on from the head of `into` and were not put away."""
    session, start = into.session, into.leaf
    return [
        session.branch(info.name)
        for info in session.branches
        if info.name not in (into.name, winner.name)
        and not info.archived
        and info.head in session.tree
        and _is_descendant(session, info.head, start)
    ]


def _is_descendant(session: Session, leaf: EntryId | None, start: EntryId | None) -> bool:
    return start is None or any(entry.id == start for entry in session.tree.walk_up(leaf))


def _check_mergeable(source: Branch, into: Branch) -> None:
    if source.session is not into.session:
        raise InvalidOperation(f"branch {source.name!r} is of another session")
    if source == into:
        raise InvalidOperation(f"branch {source.name!r} cannot be merged into itself")


def _build_source(branch: Branch, into: EntryId | None) -> _Source:
    tree, leaf = branch.session.tree, branch.leaf
    entries = plan_merge(tree, leaf, into)
    return _Source(branch, leaf, entries, collect_summary_input(tree, leaf, entries))


class _SummaryBuilder(Struct, frozen=True):
    """Has a handler or the model make the summary of some branches."""

    kind: Literal["merge", "promote"]
    into: Branch
    sources: Sequence[_Source]
    hooks: Hooks
    model: Model | None
    settings: SummarySettings
    retry: RetrySettings
    signal: Signal

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(source.branch.name for source in self.sources)

    async def build(self, own: str | None, instructions: str | None, preamble: str) -> BranchSummary | None:
        """The summary, or the user's `own` text as one; `None` if there is nothing to summarize. Raises `Stopped`."""
        check_summary_text(own)
        if self.sources and own is None and self.model is None:
            raise InvalidOperation("a summary needs a model, and there is none")
        event = BeforeMerge(
            kind=self.kind,
            branch=self.into.name,
            sources=self.names,
            entries=tuple(entry for source in self.sources for entry in source.entries),
            user_wants_summary=own is None,
            custom_instructions=instructions,
            signal=self.signal,
        )
        asked, answer = await ask_hooks(self.hooks, event, self.signal)
        if not self.sources:
            return None
        files = merge_files(source.conversation.files for source in self.sources)
        if own is not None:
            return self._build_body(own, files.to_wire())
        given = get_supplied_summary(self.hooks, answer)
        if given is not None:
            details: JsonObject = {}
            if is_object(given.details):
                details = given.details
            elif given.details is not None:
                self.hooks.notify_listeners(Notice(level="error", text="a handler supplied details that are no object"))
            return self._build_body(given.summary, details, usage=given.usage, from_hook=True)
        return await self._generate(files, asked.custom_instructions, preamble)

    async def _generate(self, files: TouchedFiles, instructions: str | None, preamble: str) -> BranchSummary:
        assert self.model is not None, "asked for at the start"
        thinking = build_shared_context(self.into.session.tree, self.into.leaf).thinking_level
        shares = split_window(self.model.info.context_window, self.settings.reserve_tokens)
        summarizer = Summarizer(self.model, self.signal, shares, hooks=self.hooks, retry=self.retry, thinking=thinking)
        parts = [preamble]
        for source in self.sources:
            words = await summarizer.summarize_branch(
                source.conversation.messages, merged=True, instructions=instructions
            )
            parts += [words] if self.kind == "merge" else [f"# Branch {source.branch.name}", words]
        return self._build_body(files.append_to_summary("\n\n".join(parts)), files.to_wire(), usage=summarizer.usage)

    def _build_body(
        self, words: str, details: JsonObject, *, usage: JsonObject | None = None, from_hook: bool | None = None
    ) -> BranchSummary:
        heads = [source.leaf for source in self.sources]
        return BranchSummary(
            summary=words,
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
    """Copy messages from anywhere in the session to the head of `into`, calls and their results together.

    Raises `BranchMoved` if `into` was moved elsewhere while the hooks were asked; that it grew is no harm.
    """
    session, leaf = into.session, into.leaf
    chosen: list[EntryId] = []
    for place in places:
        id = session.resolve_place(place)
        if id is None:
            raise InvalidOperation("there is nothing to copy at root")
        chosen.append(id)
    entries = plan_cherry_pick(session.tree, chosen)
    if not entries:
        raise InvalidOperation("there is nothing to copy")
    event = BeforeCopy(kind="cherry_pick", branch=into.name, onto=leaf, entries=entries)
    _, answer = await hooks.ask(event)
    if answer.cancel:
        return CopyOutcome(old_leaf=leaf, new_leaf=leaf, cancelled=True)
    items = [NewEntry(copy_body(entry.body), build_copy_fields(entry)) for entry in entries]
    head = find_grown_head(into, leaf)
    at = None if head is None else session.tree[head]
    copies = tuple(session.move(at, items, branch=into.name, expected=head))  # a move, so that it can be undone
    await hooks.emit(Copied(kind="cherry_pick", branch=into.name, entries=copies))
    return CopyOutcome(entries=copies, old_leaf=leaf, new_leaf=into.leaf)


async def rebase(branch: Branch, onto: Place, *, hooks: Hooks) -> CopyOutcome:
    """Have the branch go on from another place: copy what it has beyond the common path there, and move its head.

    Raises `InvalidOperation` where a compaction or an edit names an entry that would not be on the new path, and
    `BranchMoved` if the branch was moved or grew meanwhile.
    """
    session, leaf = branch.session, branch.leaf
    target = session.tree.skip_annotations(session.resolve_place(onto))
    entries = plan_rebase(session.tree, leaf, target)
    event = BeforeCopy(kind="rebase", branch=branch.name, onto=target, entries=entries)
    _, answer = await hooks.ask(event)
    if answer.cancel:
        return CopyOutcome(old_leaf=leaf, new_leaf=leaf, cancelled=True)
    ids = {entry.id: session.generate_id() for entry in entries}
    bodies = rebase_bodies(session.tree, entries, target, ids)
    items = [
        NewEntry(body, build_copy_fields(entry), ids[entry.id]) for entry, body in zip(entries, bodies, strict=True)
    ]
    to = None if target is None else session.tree[target]
    copies = tuple(session.move(to, items, branch=branch.name, expected=leaf))
    await hooks.emit(Copied(kind="rebase", branch=branch.name, entries=copies))
    return CopyOutcome(entries=copies, old_leaf=leaf, new_leaf=branch.leaf)
