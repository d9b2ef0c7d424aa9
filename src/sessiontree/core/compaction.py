"""Compaction plans: when a context is too long, where to cut it, and what to summarize.

`ops.compact` calls hooks and the model and writes the entry. The prompts are in `core.summary_prompts`.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from sessiontree.core.context import build_path_context
from sessiontree.core.entries import Compaction, Entry, EntryId, JsonObject
from sessiontree.core.messages import (
    convert_for_model,
    estimate_tokens,
    get_answered_call,
    get_role,
    get_tool_calls,
    is_failed_turn,
    sum_usage,
)
from sessiontree.core.summary_prompts import TouchedFiles, collect_files, strip_file_lists

RESERVE, KEEP_RECENT = 16_384, 20_000
"""Defaults for large windows, in tokens."""


class WindowBudget(Struct, frozen=True, kw_only=True):
    """How the window of a model is divided, in tokens."""

    window: int
    reserve: int
    """Room for the next answer, or for a summary."""
    keep_recent: int
    """How much of the newest messages a compaction keeps."""

    @property
    def limit(self) -> int:
        """A context longer than this is compacted."""
        return self.window - self.reserve

    @property
    def max_kept(self) -> int:
        """The most that a compaction keeps. More would leave no room for its summary."""
        return max(self.limit - self.reserve, self.keep_recent)


def split_window(window: int, reserve: int | None = None, keep_recent: int | None = None) -> WindowBudget:
    """Divide a window of that many tokens.

    By default a quarter is reserved, at most 16,384 tokens, and a quarter is kept, at most 20,000 tokens. Explicit
    values are limited to what lets a compaction make room: half the window in reserve, and half of the rest kept.
    """
    reserved = min(RESERVE, window // 4) if reserve is None else min(reserve, window // 2)
    kept = min(KEEP_RECENT, window // 4) if keep_recent is None else min(keep_recent, (window - reserved) // 2)
    return WindowBudget(window=window, reserve=reserved, keep_recent=kept)


def count_context_tokens(path: Sequence[Entry], unseen: int = 0) -> int:
    """Return the tokens of the request at the end of `path`.

    This is the provider's count for the last answer plus an estimate of the messages after it. A count from before the
    last compaction, reset or context edit is not used. Without a count, everything is estimated, and `unseen` is added
    for instructions and tools.
    """
    request = build_path_context(list(path)).build_request()
    trusted = _find_ids_since_change(path)
    for index in range(len(request) - 1, -1, -1):
        id, message = request[index]
        counted = _get_counted_tokens(message) if id in trusted else 0
        if counted:
            return counted + sum(estimate_tokens(later) for _, later in request[index + 1 :])
    return unseen + sum(estimate_tokens(message) for _, message in request)


def _find_ids_since_change(path: Sequence[Entry]) -> set[EntryId]:
    ids: set[EntryId] = set()
    for entry in reversed(path):
        if entry.type in ("compaction", "context_edit", "reset_boundary"):
            break
        ids.add(entry.id)
    return ids


def _get_counted_tokens(message: JsonObject) -> int:
    if get_role(message) != "assistant" or is_failed_turn(message):
        return 0
    usage = sum_usage(message.get("usage"))
    return 0 if usage is None else int(usage.tokens)


class CompactionPreparation(Struct, frozen=True, kw_only=True):
    """What a compaction summarizes and keeps."""

    entries: tuple[Entry, ...]
    """The entries to summarize, oldest first, except entries that earlier compactions cover."""
    messages: tuple[JsonObject, ...]
    """The messages of these entries in wire form, after context edits."""
    turn_prefix: tuple[Entry, ...] = ()
    """The first part of a turn that the cut splits. The rest of the turn is kept."""
    prefix_messages: tuple[JsonObject, ...] = ()
    first_kept: EntryId | None
    """The first entry that is kept; `None` keeps nothing."""
    tokens_before: int
    previous_summary: str | None = None
    """The summary of the last compaction, without its file lists."""
    read_files: tuple[str, ...] = ()
    modified_files: tuple[str, ...] = ()

    @property
    def files(self) -> TouchedFiles:
        return TouchedFiles(read=self.read_files, modified=self.modified_files)


def plan_compaction(
    path: Sequence[Entry], keep_recent: int, *, most: int | None = None, at_most_half: bool = False
) -> CompactionPreparation | None:
    """Plan a compaction at the end of `path` that keeps about `keep_recent` tokens; `None` if there is nothing to
    compact.

    At most `most` tokens are kept, even if nothing remains. With `at_most_half`, at most half of the context is kept,
    so a short conversation can be compacted too.
    """
    by_id = {entry.id: entry for entry in path}
    context = build_path_context(list(path))
    spoken = [
        (by_id[id], message)
        for id, message in zip(context.sources, context.messages, strict=True)
        if get_role(message) not in ("compactionSummary", "system")
    ]
    if not spoken or _get_last_type(path) == "compaction":
        return None
    sizes = [_estimate_size(message) for _, message in spoken]
    messages = [message for _, message in spoken]
    cut = _find_cut(messages, sizes, min(keep_recent, sum(sizes) // 2) if at_most_half else keep_recent)
    if most is not None and sum(sizes[cut:]) > most:
        fitting = (place for place in _find_cut_places(messages) if place > cut and sum(sizes[place:]) <= most)
        cut = next(fitting, len(spoken))
    if cut == 0:
        return None
    turn = _find_turn_start(messages, cut)
    summarized, opening = (
        spoken[:cut],
        [entry for entry in path if entry.type == "compaction" and entry.id in context.sources],
    )
    files = collect_files((message for _, message in summarized), [*opening, *(entry for entry, _ in summarized)])
    return CompactionPreparation(
        entries=tuple(entry for entry, _ in spoken[:turn]),
        messages=tuple(message for _, message in spoken[:turn]),
        turn_prefix=tuple(entry for entry, _ in spoken[turn:cut]),
        prefix_messages=tuple(message for _, message in spoken[turn:cut]),
        first_kept=spoken[cut][0].id if cut < len(spoken) else None,
        tokens_before=count_context_tokens(path),
        previous_summary=next(
            (strip_file_lists(entry.body.summary) for entry in opening if isinstance(entry.body, Compaction)), None
        ),
        read_files=files.read,
        modified_files=files.modified,
    )


def find_compactions(path: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return the compactions on `path`, newest first."""
    return tuple(entry for entry in reversed(path) if entry.type == "compaction")


def _get_last_type(path: Sequence[Entry]) -> str | None:
    return next((entry.type for entry in reversed(path) if not entry.is_annotation), None)


def _estimate_size(message: JsonObject) -> int:
    sent = convert_for_model(message)
    return 0 if sent is None or is_failed_turn(message) else estimate_tokens(sent)


def _find_cut(messages: Sequence[JsonObject], sizes: Sequence[int], keep: int) -> int:
    """Return the index of the first message to keep, so at least `keep` tokens remain but preferably not twice as many.

    A cut is never before a tool result or between a call and its result. If no valid cut follows the preferred one, the
    last valid cut before it is used. If the messages have no valid cut, nothing is kept.
    """
    places = _find_cut_places(messages)
    wanted = len(messages)
    kept = 0
    while wanted > 0 and kept < keep:
        wanted -= 1
        kept += sizes[wanted]
    if kept < keep:
        return 0
    after = [place for place in places if place >= wanted]
    if kept > 2 * keep and len(after) > 1 and after[0] == wanted:
        return after[1]
    before = [place for place in places if place < wanted]
    return after[0] if after else before[-1] if before else len(messages)


def _find_cut_places(messages: Sequence[JsonObject]) -> list[int]:
    """Return the indices where the messages may be cut."""
    places: list[int] = []
    open_until = -1
    last_result = _find_last_results(messages)
    for index, message in enumerate(messages):
        if index > open_until and get_answered_call(message) is None:
            places.append(index)
        open_until = max([open_until, *(last_result.get((index, call.id), -1) for call in get_tool_calls(message))])
    return places


def _find_last_results(messages: Sequence[JsonObject]) -> dict[tuple[int, str], int]:
    """Map each message and call to the index of the call's last result. Failed turns are not sent."""
    callers: dict[str, int] = {}
    found: dict[tuple[int, str], int] = {}
    for index, message in enumerate(messages):
        call = get_answered_call(message)
        if call is not None and call in callers:
            found[callers[call], call] = index
        for new in () if is_failed_turn(message) else get_tool_calls(message):
            callers[new.id] = index
    return found


TURN_STARTS = frozenset({"user", "custom", "hookMessage", "bashExecution", "pythonExecution", "branchSummary"})


def _find_turn_start(messages: Sequence[JsonObject], cut: int) -> int:
    """Return the start of the turn that a cut splits, or the cut itself if it splits no turn."""
    if cut == len(messages) or get_role(messages[cut]) in TURN_STARTS:
        return cut
    return next((index for index in range(cut - 1, -1, -1) if get_role(messages[index]) in TURN_STARTS), cut)
