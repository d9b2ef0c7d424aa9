"""Renders branches as data for training: message lists, and pairs of a better and a worse branch. Pure.

Both are JSON Lines in the conversational form that TRL and most other trainers read. A message list is what the model
saw and answered until the end of a branch, or until a compaction replaced it. A pair has the messages that two branches
share as its `prompt`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence

from sessiontree.branch_comparison import METRICS, find_winner
from sessiontree.core.context import build_context
from sessiontree.core.entries import EXPERIMENT_RECORD, Custom, EntryId, JsonObject, Message
from sessiontree.core.messages import (
    coerce_string,
    extract_text,
    get_role,
    get_tool_calls,
    is_failed_turn,
    is_object,
    iter_blocks,
)
from sessiontree.core.number_text import pluralize
from sessiontree.core.tree import Tree
from sessiontree.errors import InvalidOperation
from sessiontree.export.snapshot import Snapshot

DEFAULT_RULE = "label:chosen"
RULES = f"label:GOOD, label:GOOD/BAD, score:NAME, {', '.join(METRICS)}"
Report = Callable[[str], None]


def render_sft(whole: Snapshot) -> Iterator[str]:
    """Yield a JSON line with `messages` for each branch, and one more for what each compaction replaced.

    Raises `InvalidOperation` if no branch has an answer.
    """
    ends = _find_ends(whole.tree, _list_leaves(whole))
    if not ends:
        raise InvalidOperation("no branch has an answer to train on")
    return (_dump({"messages": _list_messages(whole.tree, end)}) for end in ends)


def render_pairs(whole: Snapshot, rule: str | None = None, report: Report | None = None) -> Iterator[str]:
    """Yield a JSON line with `prompt`, `chosen` and `rejected` for each pair of branches that part at an answer.

    `rule` decides which one is better, see `RULES`. Partings without a pair are counted for `report`. Raises
    `InvalidOperation` if there is no pair.
    """
    choose = _build_rule(whole.tree, rule or DEFAULT_RULE)
    skipped: dict[str, int] = {}
    """The partings without a pair, by reason."""

    def find_pairs() -> Iterator[JsonObject]:
        for parting, groups in _find_partings(whole.tree, _list_leaves(whole)):
            chosen, rejected, reason = choose(parting, groups)
            for good in chosen:
                for bad in rejected:
                    pair = _build_pair(whole.tree, good, bad)
                    if pair is None:
                        reason = reason or "the branches part at a question or a tool result, not at an answer"
                    else:
                        yield pair
            if reason:
                skipped[reason] = skipped.get(reason, 0) + 1

    def describe_skipped() -> list[str]:
        return [f"{pluralize(count, 'parting')} without a pair: {reason}" for reason, count in skipped.items()]

    def write(pairs: Iterable[JsonObject]) -> Iterator[str]:
        yield from map(_dump, pairs)
        for line in describe_skipped() if report is not None else ():
            assert report is not None
            report(line)

    pairs = find_pairs()
    first = next(pairs, None)
    if first is None:
        raise InvalidOperation("; ".join(["no pair of branches", *describe_skipped()]))
    return write(itertools.chain([first], pairs))


def _dump(value: JsonObject) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"


# Messages


def _list_messages(tree: Tree, end: EntryId | None) -> list[JsonObject]:
    return [write_chat_message(message) for message in build_context(tree, end).to_llm()]


def write_chat_message(message: JsonObject) -> JsonObject:
    """Return a message that is sent to a model in the form of chat templates.

    That is the form of OpenAI Chat with arguments as objects, images inside the content, and thinking as
    `reasoning_content`.
    """
    content = _write_content(message.get("content"))
    match get_role(message):
        case "assistant":
            return _write_answer(message, content)
        case "toolResult":
            return {
                "role": "tool",
                "tool_call_id": coerce_string(message.get("toolCallId")),
                "name": coerce_string(message.get("toolName")),
                "content": content,
            }
        case role:
            return {"role": "system" if role == "system" else "user", "content": content}


def _write_answer(message: JsonObject, content: str | list[JsonObject]) -> JsonObject:
    written: JsonObject = {"role": "assistant", "content": content}
    thinking = [
        coerce_string(block.get("thinking"))
        for block in iter_blocks(message.get("content"))
        if block.get("type") == "thinking"
    ]
    if any(thinking):
        written["reasoning_content"] = "\n\n".join(filter(None, thinking))
    calls = get_tool_calls(message)
    if calls:
        written["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
    return written


def _write_content(content: object) -> str | list[JsonObject]:
    """Return content as text, or as parts if there is an image: many chat templates accept only text."""
    blocks = list(iter_blocks(content))
    if not any(block.get("type") == "image" for block in blocks):
        return extract_text(content)
    parts: list[JsonObject] = []
    for block in blocks:
        if block.get("type") == "text":
            parts.append({"type": "text", "text": coerce_string(block.get("text"))})
        elif block.get("type") == "image":
            parts.append({"type": "image", "image": build_image_url(block)})
    return parts


def build_image_url(block: JsonObject) -> str:
    """Return an image block as a `data:` URL."""
    return f"data:{coerce_string(block.get('mimeType'))};base64,{coerce_string(block.get('data'))}"


# Branches


def _list_leaves(whole: Snapshot) -> list[EntryId]:
    """Return the ends of all branches, oldest first. Archived branches are left out."""
    archived = {whole.heads.heads.get(name) for name in whole.heads.archived} - set(whole.get_branch_names())
    leaves = dict.fromkeys(whole.tree.skip_annotations(leaf) for leaf in whole.tree.find_leaves())
    return [leaf for leaf in leaves if leaf is not None and leaf not in archived]


def _is_answer(tree: Tree, id: EntryId) -> bool:
    body = tree.peek(id).decode() if tree.peek(id).type == "message" else None
    return isinstance(body, Message) and get_role(body.message) == "assistant" and not is_failed_turn(body.message)


def _find_ends(tree: Tree, leaves: Iterable[EntryId]) -> list[EntryId]:
    """Return the last answers of all branches and those before compactions, without answers that others lead to."""
    ends: dict[EntryId, None] = {}
    visited: set[EntryId] = set()
    for leaf in leaves:
        is_end_found = False
        for id in tree.walk_up_ids(leaf):
            if is_end_found:
                ends.pop(id, None)  # another end leads through it
            if id in visited and (is_end_found or id in ends):
                break
            if not is_end_found and _is_answer(tree, id):
                if id in visited:
                    break
                ends[id] = None
                is_end_found = True
            if tree.peek(id).type == "compaction":
                is_end_found = False
            visited.add(id)
    return sorted(ends, key=tree.get_index)


def _find_partings(tree: Tree, leaves: Sequence[EntryId]) -> Iterator[tuple[EntryId | None, list[list[EntryId]]]]:
    """Yield each entry at which branches part, with the leaves below each of its children."""
    below: dict[EntryId | None, dict[EntryId, list[EntryId]]] = {}
    parents = {id: tree.parent(id) for leaf in leaves for id in tree.walk_up_ids(leaf)}
    counts: dict[EntryId | None, int] = {}
    for parent in parents.values():
        counts[parent] = counts.get(parent, 0) + 1
    for leaf in leaves:
        id: EntryId | None = leaf
        while id is not None:
            parent = parents[id]
            if counts[parent] > 1:
                below.setdefault(parent, {}).setdefault(id, []).append(leaf)
            id = parent
    for parting, children in below.items():
        yield parting, list(children.values())


# Preference

Choice = tuple[list[EntryId], list[EntryId], str | None]
"""The ends of the better and of the worse branches, or why there are none."""
ChooseBranches = Callable[[EntryId | None, list[list[EntryId]]], Choice]


def _build_rule(tree: Tree, rule: str) -> ChooseBranches:
    kind, _, name = rule.partition(":")
    if rule in METRICS:
        return _MetricRule(tree, rule).choose
    if kind == "label":
        good, _, bad = (name or DEFAULT_RULE.partition(":")[2]).partition("/")
        return _LabelRule(tree, good, bad).choose
    if kind == "score" and name:
        return _ScoreRule(tree, name).choose
    raise InvalidOperation(f"no rule {rule!r} for preferences: choose one of {RULES}")


class _LabelRule:
    """A branch with the label is better than one without it, or than one with the other label."""

    def __init__(self, tree: Tree, good: str, bad: str) -> None:
        self._tree = tree
        self._bad = bad
        self._good_ids = {id for id, text in tree.labels.items() if text == good}
        self._bad_ids = {id for id, text in tree.labels.items() if bad and text == bad}
        if not self._good_ids:
            raise InvalidOperation(f"no entry has the label {good!r}; set it with `sessiontree label`")

    def choose(self, parting: EntryId | None, groups: list[list[EntryId]]) -> Choice:
        chosen: list[EntryId] = []
        rejected: list[EntryId] = []
        for leaves in groups:
            good = self._find_labelled(leaves, parting, self._good_ids)
            bad = self._find_labelled(leaves, parting, self._bad_ids)
            if good is not None:
                chosen.append(good)
            elif not self._bad:
                rejected.append(leaves[-1])
            elif bad is not None:
                rejected.append(bad)
        return chosen, rejected, None

    def _find_labelled(self, leaves: list[EntryId], parting: EntryId | None, labelled: set[EntryId]) -> EntryId | None:
        """Return the last labelled entry between a parting and the leaves below it."""
        for leaf in reversed(leaves) if labelled else ():
            for id in self._tree.walk_up_ids(leaf):
                if id == parting:
                    break
                if id in labelled:
                    return id
        return None


class _MetricRule:
    """The winner of a comparison is better than the other branches."""

    def __init__(self, tree: Tree, metric: str) -> None:
        self._tree = tree
        self._metric = metric

    def choose(self, parting: EntryId | None, groups: list[list[EntryId]]) -> Choice:
        leaves = [self._find_winner(several)[0] or several[-1] for several in groups]
        winner, reason = self._find_winner(leaves)
        return ([winner], [leaf for leaf in leaves if leaf != winner], None) if winner else ([], [], reason)

    def _find_winner(self, leaves: list[EntryId]) -> tuple[EntryId | None, str]:
        if len(leaves) == 1:
            return leaves[0], ""
        winner, reason = find_winner(self._tree, [(leaf, leaf) for leaf in leaves], self._metric)
        return winner, f"{reason.partition(':')[0]} by {self._metric}"  # what follows names the leaves


class _ScoreRule:
    """The branch with the best score of an experiment is better than those with worse scores."""

    def __init__(self, tree: Tree, name: str) -> None:
        self._tree = tree
        self._scores: dict[EntryId, float] = {}
        """Scores by the entry of the answer; higher is better."""
        scores = read_scores(tree)
        is_lower_better = name in {metric for metric, better in _read_directions(tree) if better == "lower"}
        for answer, values in scores.items():
            if name in values:
                self._scores[answer] = -values[name] if is_lower_better else values[name]
        if not self._scores:
            known = sorted({metric for values in scores.values() for metric in values})
            raise InvalidOperation(f"no score {name!r}; scores: {', '.join(known) or 'none'}")

    def choose(self, parting: EntryId | None, groups: list[list[EntryId]]) -> Choice:
        found = [best for leaves in groups if (best := self._find_best(leaves, parting)) is not None]
        if len(found) < 2:
            return [], [], "fewer than two branches have the score"
        top, best = max(found)
        rejected = [answer for score, answer in found if score < top]
        return [best], rejected, None if rejected else "all branches have the same score"

    def _find_best(self, leaves: list[EntryId], parting: EntryId | None) -> tuple[float, EntryId] | None:
        scored: list[tuple[float, EntryId]] = []
        for leaf in leaves:
            for id in self._tree.walk_up_ids(leaf):
                if id == parting:
                    break
                if id in self._scores:
                    scored.append((self._scores[id], id))
                    break
        return max(scored, default=None)


def _read_records(tree: Tree) -> Iterator[JsonObject]:
    for entry in tree:
        body = entry.decode() if entry.custom_type == EXPERIMENT_RECORD else None
        if isinstance(body, Custom) and is_object(body.data):
            yield body.data


def read_scores(tree: Tree) -> dict[EntryId, dict[str, float]]:
    """Return the scores that experiments gave, by the entry of the answer and the name of the scorer."""
    found: dict[EntryId, dict[str, float]] = {}
    for record in _read_records(tree):
        made, scores = record.get("made"), record.get("scores")
        answer = made.get("answer") if is_object(made) else None
        if isinstance(answer, str) and answer in tree and is_object(scores):
            values = {name: value for name, value in scores.items() if isinstance(value, int | float)}
            found.setdefault(answer, {}).update(values)
    return found


def _read_directions(tree: Tree) -> Iterator[tuple[str, str]]:
    """Yield the metrics of experiments, each with `lower` or `higher`."""
    for record in _read_records(tree):
        if record.get("kind") == "plan":
            yield coerce_string(record.get("metric")), coerce_string(record.get("better"))


def _build_pair(tree: Tree, good: EntryId, bad: EntryId) -> JsonObject | None:
    """Return a pair; `None` if the branches do not part at an answer."""
    first, second = _list_messages(tree, good), _list_messages(tree, bad)
    shared = 0
    while shared < min(len(first), len(second)) and first[shared] == second[shared]:
        shared += 1
    chosen, rejected = _cut_after_answer(first[shared:]), _cut_after_answer(second[shared:])
    if not shared or any(not part or part[0]["role"] != "assistant" for part in (chosen, rejected)):
        return None
    return {"prompt": first[:shared], "chosen": chosen, "rejected": rejected}


def _cut_after_answer(messages: list[JsonObject]) -> list[JsonObject]:
    """Return messages without those after the last answer."""
    while messages and messages[-1]["role"] != "assistant":
        messages = messages[:-1]
    return messages
