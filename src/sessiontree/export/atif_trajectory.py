"""Renders a branch as a trajectory in the Agent Trajectory Interchange Format, ATIF 1.8. Pure.

Each question, answer and program message is a step. The results of tool calls are the observation of the answer that
made them. Subagents are embedded trajectories, which the result of the call that started them refers to.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from sessiontree._version import __version__
from sessiontree.core.entries import BranchPoint, EntryId, JsonObject
from sessiontree.core.messages import (
    coerce_string,
    extract_text,
    get_answered_call,
    get_model,
    get_role,
    get_stop_reason,
    get_tool_calls,
    is_failed_turn,
    is_object,
    iter_blocks,
    sum_usage,
)
from sessiontree.core.timestamps import parse_timestamp
from sessiontree.core.tree import Tree
from sessiontree.export.conversation_log import SpokenMessage, count_tokens, get_usage, read_transcript
from sessiontree.export.snapshot import Snapshot
from sessiontree.export.training_lists import build_image_url
from sessiontree.format.codec import STARTING_CALL

SCHEMA = "ATIF-v1.8"
IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
MAX_DEPTH = 20
"""How many levels of subagents are embedded."""


def render_atif(whole: Snapshot) -> Iterator[str]:
    """Yield the current branch as one JSON document."""
    trajectory = _TrajectoryWriter(whole).write(whole.heads.current, whole.leaf, 0)
    yield json.dumps(trajectory, ensure_ascii=False, indent=2) + "\n"


class _TrajectoryWriter:
    def __init__(self, whole: Snapshot) -> None:
        self._whole = whole
        self._subagents = _find_subagents(whole)

    def write(self, branch: str, leaf: EntryId | None, depth: int) -> JsonObject:
        spoken = read_transcript(self._whole.tree, leaf)
        steps = _write_steps(spoken)
        header = self._whole.header
        origin = header.origin or {}
        models = [step["model_name"] for step in steps if "model_name" in step]
        trajectory: JsonObject = {
            "schema_version": SCHEMA,
            "session_id": header.id,
            "trajectory_id": branch,
            "agent": {
                "name": coerce_string(origin.get("program")) or "sessiontree",
                "version": coerce_string(origin.get("version")) or ("unknown" if origin else __version__),
                **({"model_name": models[-1]} if models else {}),
            },
            "steps": steps,
            "final_metrics": _sum_metrics(steps),
            "extra": {"branch": branch, "cwd": header.cwd, **({"name": self._whole.name} if self._whole.name else {})},
        }
        embedded = [self._embed(step, *agent, depth) for step in steps for agent in self._list_agents(step, depth)]
        if embedded:
            trajectory["subagent_trajectories"] = embedded
        for step in steps:
            del step["extra"]["entries"]
        return trajectory

    def _list_agents(self, step: JsonObject, depth: int) -> Sequence[tuple[str, EntryId, str]]:
        entries = step["extra"]["entries"] if depth < MAX_DEPTH else ()
        return [agent for id in entries for agent in self._subagents.get(id, ())]

    def _embed(self, step: JsonObject, branch: str, leaf: EntryId, call: str, depth: int) -> JsonObject:
        """Return the trajectory of a subagent, and refer to it where its call is answered."""
        results = step.setdefault("observation", {"results": []})["results"]
        found: JsonObject | None = next((each for each in results if each.get("source_call_id") == call), None)
        if found is None:
            known = {each["tool_call_id"] for each in step.get("tool_calls", ())}
            found = {"source_call_id": call} if call in known else {}
            results.append(found)
        found.setdefault("subagent_trajectory_ref", []).append({"trajectory_id": branch})
        return self.write(branch, leaf, depth + 1)


def _find_subagents(whole: Snapshot) -> dict[EntryId, list[tuple[str, EntryId, str]]]:
    """Return the branches of subagents, by the entry of the call that started them: name, leaf and call."""
    tree = whole.tree
    found: dict[EntryId, list[tuple[str, EntryId, str]]] = {}
    starts: dict[EntryId, EntryId | None] = {}
    for leaf, names in whole.get_branch_names().items():
        start = _find_start(tree, leaf, starts)
        point = None if start is None else tree.parent(start)
        caller = None if point is None else tree.parent(point)
        if point is None or caller is None or not isinstance(tree.peek(point).decode(), BranchPoint):
            continue
        call = coerce_string(tree.peek(point).extra.get(STARTING_CALL)) or _find_only_call(tree, caller)
        found.setdefault(caller, []).append((names[0], leaf, call))
    return found


def _find_start(tree: Tree, leaf: EntryId, known: dict[EntryId, EntryId | None]) -> EntryId | None:
    """Return the last reset of the context on the path to `leaf`. `known` has the results for entries so far."""
    passed: list[EntryId] = []
    start: EntryId | None = None
    for id in tree.walk_up_ids(leaf):
        if id in known:
            start = known[id]
            break
        passed.append(id)
        if tree.peek(id).type == "reset_boundary":
            start = id
            break
    known |= dict.fromkeys(passed, start)
    return start


def _find_only_call(tree: Tree, id: EntryId) -> str:
    calls = [call for spoken in read_transcript(tree, id)[-1:] for call in get_tool_calls(spoken.message)]
    return calls[0].id if len(calls) == 1 else ""


def _write_steps(spoken: Sequence[SpokenMessage]) -> list[JsonObject]:
    steps: list[JsonObject] = []
    made: set[str] = set()
    """The ids of the calls of the last step."""
    for each in spoken:
        call = get_answered_call(each.message)
        if call is not None and steps and steps[-1]["source"] == "agent":
            _add_result(steps[-1], each, call if call in made else None)
        else:
            steps.append(_write_step(each, len(steps) + 1))
            made = {written["tool_call_id"] for written in steps[-1].get("tool_calls", ())}
    return steps


def _write_step(each: SpokenMessage, number: int) -> JsonObject:
    message, role = each.message, get_role(each.message)
    is_typed = role == "user" and each.kind == "message"
    step: JsonObject = {
        "step_id": number,
        "source": "agent" if role == "assistant" else "user" if is_typed else "system",
        "message": _write_content(message.get("content")),
        "extra": {"entry": each.entry, "entries": [each.entry]},
    }
    if parse_timestamp(each.timestamp) is not None:
        step["timestamp"] = each.timestamp
    if each.kind != "message":
        step["extra"]["type"] = each.kind
    if role == "toolResult":  # its call is not in the transcript
        step["message"], step["observation"] = "", {"results": [{"content": step["message"]}]}
    elif role == "assistant":
        _add_answer(step, message)
    return step


def _add_answer(step: JsonObject, message: JsonObject) -> None:
    thinking = [coerce_string(block.get("thinking")) for block in iter_blocks(message.get("content"))]
    if any(thinking):
        step["reasoning_content"] = "\n\n".join(filter(None, thinking))
    model = get_model(message)
    if model is not None:
        step["model_name"] = model[1]
    calls = [
        {
            "tool_call_id": call.id,
            "function_name": call.name,
            "arguments": call.arguments if is_object(call.arguments) else {"input": call.arguments},
        }
        for call in get_tool_calls(message)
    ]
    if calls:
        step["tool_calls"] = calls
    usage = get_usage(message)
    if usage is not None:
        step["metrics"] = _write_metrics(usage)
    if is_failed_turn(message):
        step["extra"]["stop_reason"] = get_stop_reason(message)
        step["extra"]["error"] = coerce_string(message.get("errorMessage"))


def _add_result(step: JsonObject, each: SpokenMessage, call: str | None) -> None:
    """Add the result of `call`, or of an unknown call, to a step."""
    result: JsonObject = {"content": _write_content(each.message.get("content"))}
    if call is not None:
        result["source_call_id"] = call
    if each.message.get("isError") is True:
        result["extra"] = {"is_error": True}
    step.setdefault("observation", {"results": []})["results"].append(result)
    step["extra"]["entries"].append(each.entry)


def _write_content(content: object) -> str | list[JsonObject]:
    """Return content as text, or as parts if there is an image. The schema knows images by type."""
    blocks = list(iter_blocks(content))
    if not any(block.get("type") == "image" for block in blocks):
        return extract_text(content)
    parts: list[JsonObject] = []
    for block in blocks:
        media = coerce_string(block.get("mimeType"))
        if block.get("type") == "text":
            parts.append({"type": "text", "text": coerce_string(block.get("text"))})
        elif block.get("type") == "image" and media in IMAGE_TYPES:
            parts.append({"type": "image", "source": {"media_type": media, "path": build_image_url(block)}})
        elif block.get("type") == "image":
            parts.append({"type": "text", "text": f"[image of type {media or 'unknown'}]"})
    return parts


def _write_metrics(usage: JsonObject) -> JsonObject:
    total = sum_usage(usage)
    return {
        "prompt_tokens": count_tokens(usage, "input", "cacheRead", "cacheWrite"),
        "completion_tokens": count_tokens(usage, "output"),
        "cached_tokens": count_tokens(usage, "cacheRead"),
        **({"cost_usd": total.cost} if total is not None and total.cost else {}),
    }


def _sum_metrics(steps: Sequence[JsonObject]) -> JsonObject:
    metrics = [step["metrics"] for step in steps if "metrics" in step]
    summed: JsonObject = {"total_steps": len(steps)}
    if metrics:
        for name in ("prompt_tokens", "completion_tokens", "cached_tokens"):
            summed[f"total_{name}"] = sum(each[name] for each in metrics)
    costs = [each["cost_usd"] for each in metrics if "cost_usd" in each]
    if costs:
        summed["total_cost_usd"] = sum(costs)
    return summed
