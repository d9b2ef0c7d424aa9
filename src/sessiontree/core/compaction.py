"""Compaction: when a context is too long, where to cut it, and what the summary is to stand for.

Pure. Asking hooks and a model, and writing the entry, are in `ops.compact`; how the summary is asked for is in
`core.summaries`.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from sessiontree.core.context import build_path_context
from sessiontree.core.entries import Compaction, Entry, EntryId, JsonObject
from sessiontree.core.messages import (
    convert_for_model,
    get_answered_call,
    get_role,
    get_tool_calls,
    is_failed_turn,
    sum_usage,
)
from sessiontree.core.summary_prompts import TouchedFiles, collect_files, strip_file_lists
from sessiontree.core.token_estimate import estimate_tokens

RESERVE, KEEP_RECENT = 16_384, 20_000
"""Tokens, in windows that are large enough."""


class WindowBudget(Struct, frozen=True, kw_only=True):
    """How a model's window is shared, in tokens."""

    window: int
    reserve: int
    """Room for the next answer, or for a summary."""
    keep_recent: int
    """How much of the newest messages a compaction keeps as they are."""

    @property
    def limit(self) -> int:
        """A context longer than this is compacted."""
        return self.window - self.reserve

    @property
    def max_kept(self) -> int:
        """What a compaction never keeps more than, whatever was said last: what leaves room for its summary."""
        return max(self.limit - self.reserve, self.keep_recent)


def split_window(window: int, reserve: int | None = None, keep_recent: int | None = None) -> WindowBudget:
    """The shares of a window of so many tokens.

    By default a quarter of it is in reserve, at most 16,384, and a quarter is kept, at most 20,000. What is set
    by hand holds as long as a compaction still makes room: at most half the window in reserve, and at most half
    of the rest kept.
    """
    reserved = min(RESERVE, window // 4) if reserve is None else min(reserve, window // 2)
    kept = min(KEEP_RECENT, window // 4) if keep_recent is None else min(keep_recent, (window - reserved) // 2)
    return WindowBudget(window=window, reserve=reserved, keep_recent=kept)


def count_context_tokens(path: Sequence[Entry], unseen: int = 0) -> int:
    """Tokens of the request at the end of `path`.

    What the provider counted for the last answer, and an estimate of what came after it. A count from before the
    last compaction, reset or context edit says nothing of this request; where there is none, all of it is
    estimated, and `unseen` is what the request has beside its messages: instructions and tools.
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
    """What a compaction would put in a summary, and what it would keep."""

    entries: tuple[Entry, ...]
    """What the summary is to stand for, oldest first, without what earlier compactions stand for."""
    messages: tuple[JsonObject, ...]
    """What these entries say, in wire form, as context edits have left it."""
    turn_prefix: tuple[Entry, ...] = ()
    """The beginning of a turn that is cut in two; its end is kept."""
    prefix_messages: tuple[JsonObject, ...] = ()
    first_kept: EntryId | None
    """`None` keeps nothing."""
    tokens_before: int
    previous_summary: str | None = None
    """What the last compaction said, without its lists of files."""
    read_files: tuple[str, ...] = ()
    modified_files: tuple[str, ...] = ()

    @property
    def is_split_turn(self) -> bool:
        return bool(self.turn_prefix)

    @property
    def files(self) -> TouchedFiles:
        return TouchedFiles(read=self.read_files, modified=self.modified_files)


def plan_compaction(
    path: Sequence[Entry], keep_recent: int, *, most: int | None = None, at_most_half: bool = False
) -> CompactionPreparation | None:
    """What to summarize at the end of `path` so that about `keep_recent` tokens are kept; `None` if nothing is.

    Never more than `most` are, if that means that nothing is. With `at_most_half` no more than half of what is there
    is kept, so that a short conversation is compacted too.
    """
    by_id = {entry.id: entry for entry in path}
    context = build_path_context(list(path))
    said = [
        (by_id[id], message)
        for id, message in zip(context.sources, context.messages, strict=True)
        if get_role(message) not in ("compactionSummary", "system")
    ]
    if not said or _get_last_type(path) == "compaction":
        return None
    sizes = [_estimate_size(message) for _, message in said]
    messages = [message for _, message in said]
    cut = _find_cut(messages, sizes, min(keep_recent, sum(sizes) // 2) if at_most_half else keep_recent)
    if most is not None and sum(sizes[cut:]) > most:
        fitting = (place for place in _find_cut_places(messages) if place > cut and sum(sizes[place:]) <= most)
        cut = next(fitting, len(said))
    if cut == 0:
        return None
    turn = _find_turn_start(messages, cut)
    summarized, opening = (
        said[:cut],
        [entry for entry in path if entry.type == "compaction" and entry.id in context.sources],
    )
    files = collect_files((message for _, message in summarized), [*opening, *(entry for entry, _ in summarized)])
    return CompactionPreparation(
        entries=tuple(entry for entry, _ in said[:turn]),
        messages=tuple(message for _, message in said[:turn]),
        turn_prefix=tuple(entry for entry, _ in said[turn:cut]),
        prefix_messages=tuple(message for _, message in said[turn:cut]),
        first_kept=said[cut][0].id if cut < len(said) else None,
        tokens_before=count_context_tokens(path),
        previous_summary=next(
            (strip_file_lists(entry.body.summary) for entry in opening if isinstance(entry.body, Compaction)), None
        ),
        read_files=files.read,
        modified_files=files.modified,
    )


def find_compactions(path: Sequence[Entry]) -> tuple[Entry, ...]:
    """The compactions on `path`, newest first."""
    return tuple(entry for entry in reversed(path) if entry.type == "compaction")


def _get_last_type(path: Sequence[Entry]) -> str | None:
    return next((entry.type for entry in reversed(path) if not entry.is_annotation), None)


def _estimate_size(message: JsonObject) -> int:
    sent = convert_for_model(message)
    return 0 if sent is None or is_failed_turn(message) else estimate_tokens(sent)


def _find_cut(messages: Sequence[JsonObject], sizes: Sequence[int], keep: int) -> int:
    """The first message to keep: so that at least `keep` tokens are, but not twice as many if that can be helped.

    A cut never stands before a tool result or between a call and its result. Where no place is left after the
    one that the sizes ask for, it is the last one before it, and where there is none at all, nothing is kept.
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
    """Where the messages may be cut."""
    places: list[int] = []
    open_until = -1
    last_result = _find_last_results(messages)
    for index, message in enumerate(messages):
        if index > open_until and get_answered_call(message) is None:
            places.append(index)
        open_until = max([open_until, *(last_result.get((index, call.id), -1) for call in get_tool_calls(message))])
    return places


def _find_last_results(messages: Sequence[JsonObject]) -> dict[tuple[int, str], int]:
    """For each message and call that it made, where the call's last result stands. Failed turns are not sent."""
    made: dict[str, int] = {}
    found: dict[tuple[int, str], int] = {}
    for index, message in enumerate(messages):
        call = get_answered_call(message)
        if call is not None and call in made:
            found[made[call], call] = index
        for new in () if is_failed_turn(message) else get_tool_calls(message):
            made[new.id] = index
    return found


TURN_STARTS = frozenset({"user", "custom", "hookMessage", "bashExecution", "pythonExecution", "branchSummary"})


def _find_turn_start(messages: Sequence[JsonObject], cut: int) -> int:
    """Where the turn begins that a cut goes through; the cut itself where it goes through none."""
    if cut == len(messages) or get_role(messages[cut]) in TURN_STARTS:
        return cut
    return next((index for index in range(cut - 1, -1, -1) if get_role(messages[index]) in TURN_STARTS), cut)
