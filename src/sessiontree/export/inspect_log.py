"""Renders a session as an evaluation log of Inspect, the JSON form that its reader and its viewer open. Pure.

Each branch is a sample with its conversation, its usage, and the scores that experiments gave it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from sessiontree._version import __version__
from sessiontree.core.entries import EntryId, JsonObject
from sessiontree.core.messages import (
    coerce_string,
    extract_text,
    get_model,
    get_role,
    get_stop_reason,
    get_tool_calls,
    is_failed_turn,
    is_object,
    iter_blocks,
    sum_usage,
)
from sessiontree.core.timestamps import format_timestamp, parse_timestamp
from sessiontree.export.conversation_log import SpokenMessage, count_tokens, get_usage, read_transcript
from sessiontree.export.snapshot import Snapshot
from sessiontree.export.training_lists import build_image_url, read_scores

VERSION = 2
"""The version of the log format."""
STOP_REASONS = {"stop": "stop", "toolUse": "tool_calls", "length": "max_tokens"}


def render_inspect(whole: Snapshot) -> Iterator[str]:
    """Yield the branches of a session as one JSON document."""
    scores = read_scores(whole.tree)
    branches = [(name, leaf) for leaf, names in whole.get_branch_names().items() for name in names]
    branches.sort(key=lambda branch: branch[0] != whole.heads.current)
    samples = [_write_sample(whole, name, leaf, scores) for name, leaf in branches]
    usage = [sample["model_usage"] for sample in samples]
    models = [model for each in usage for model in each]
    created = _format_time(whole.header.timestamp) or format_timestamp(0)
    log: JsonObject = {
        "version": VERSION,
        "status": "success",
        "eval": {
            "eval_id": whole.header.id,
            "run_id": whole.header.id,
            "task_id": whole.header.id,
            "created": created,
            "task": whole.name or "session",
            "task_display_name": whole.name or "session",
            "dataset": {"name": "branches", "samples": len(samples), "sample_ids": [each["id"] for each in samples]},
            "model": models[0] if models else "none/none",
            "config": {},
            "packages": {"sessiontree": __version__},
            "metadata": {"session": whole.header.id, "cwd": whole.header.cwd, "origin": whole.header.origin},
        },
        "results": {"total_samples": len(samples), "completed_samples": len(samples)},
        "stats": {
            "started_at": created,
            "completed_at": max((each["completed_at"] for each in samples if "completed_at" in each), default=created),
            "model_usage": _add_usages(usage),
        },
        "samples": samples,
    }
    yield json.dumps(log, ensure_ascii=False, indent=2) + "\n"


def _write_sample(whole: Snapshot, branch: str, leaf: EntryId, scores: dict[EntryId, dict[str, float]]) -> JsonObject:
    spoken = read_transcript(whole.tree, leaf)
    first = next((index for index, each in enumerate(spoken) if get_role(each.message) == "assistant"), len(spoken))
    messages = [_write_message(each) for each in spoken]
    times = [time for each in spoken if (time := _format_time(each.timestamp)) is not None]
    sample: JsonObject = {
        "id": branch,
        "epoch": 1,
        "input": messages[:first],
        "target": "",
        "messages": messages,
        "output": _write_output(spoken, messages),
        "model_usage": _sum_usage(spoken),
        "metadata": {"leaf": leaf},
    }
    given = {name: value for each in spoken for name, value in scores.get(each.entry, {}).items()}
    if given:
        sample["scores"] = {name: {"value": value} for name, value in given.items()}
    if times:
        sample["started_at"], sample["completed_at"] = times[0], times[-1]
    return sample


def _write_message(each: SpokenMessage) -> JsonObject:
    message, role = each.message, get_role(each.message)
    written: JsonObject = {"id": each.entry, "content": _write_content(message.get("content"))}
    match role:
        case "assistant":
            written |= {"role": "assistant", "source": "generate"}
            model = get_model(message)
            if model is not None:
                written["model"] = "/".join(model)
            calls = [
                {
                    "id": call.id,
                    "function": call.name,
                    "arguments": call.arguments if is_object(call.arguments) else {"input": call.arguments},
                    "type": "function",
                }
                for call in get_tool_calls(message)
            ]
            if calls:
                written["tool_calls"] = calls
        case "toolResult":
            written |= {
                "role": "tool",
                "tool_call_id": coerce_string(message.get("toolCallId")),
                "function": coerce_string(message.get("toolName")),
            }
            if message.get("isError") is True:
                written["error"] = {"type": "unknown", "message": extract_text(message.get("content"))}
        case _:
            written["role"] = "system" if role == "system" else "user"
    if each.kind != "message":
        written["metadata"] = {"type": each.kind}
    return written


def _write_content(content: object) -> str | list[JsonObject]:
    blocks = list(iter_blocks(content))
    if all(block.get("type") not in ("image", "thinking") for block in blocks):
        return extract_text(content)
    parts: list[JsonObject] = []
    for block in blocks:
        match block.get("type"):
            case "text":
                parts.append({"type": "text", "text": coerce_string(block.get("text"))})
            case "image":
                parts.append({"type": "image", "image": build_image_url(block)})
            case "thinking":
                signature = coerce_string(block.get("thinkingSignature"))
                parts.append(
                    {
                        "type": "reasoning",
                        "reasoning": coerce_string(block.get("thinking")),
                        **({"signature": signature} if signature else {}),
                    }
                )
            case _:
                pass
    return parts


def _write_output(spoken: Sequence[SpokenMessage], messages: Sequence[JsonObject]) -> JsonObject:
    """Return the last answer as the output of the sample."""
    found = next((index for index in range(len(spoken) - 1, -1, -1) if messages[index]["role"] == "assistant"), None)
    if found is None:
        return {"model": "none/none", "choices": []}
    answer = spoken[found].message
    reason = STOP_REASONS.get(get_stop_reason(answer), "unknown")
    output: JsonObject = {
        "model": messages[found].get("model", "none/none"),
        "choices": [{"message": messages[found], "stop_reason": reason}],
    }
    if is_failed_turn(answer):
        output["error"] = coerce_string(answer.get("errorMessage")) or get_stop_reason(answer)
    usage = get_usage(answer)
    if usage is not None:
        output["usage"] = _write_usage(usage)
    return output


def _write_usage(usage: JsonObject) -> JsonObject:
    total = sum_usage(usage)
    return {
        "input_tokens": count_tokens(usage, "input"),
        "output_tokens": count_tokens(usage, "output"),
        "total_tokens": count_tokens(usage, "input", "output", "cacheRead", "cacheWrite"),
        "input_tokens_cache_read": count_tokens(usage, "cacheRead"),
        "input_tokens_cache_write": count_tokens(usage, "cacheWrite"),
        "total_cost": 0.0 if total is None else float(total.cost),
    }


def _sum_usage(spoken: Sequence[SpokenMessage]) -> JsonObject:
    used: list[JsonObject] = []
    for each in spoken:
        model, usage = get_model(each.message), get_usage(each.message)
        if model is not None and usage is not None:
            used.append({"/".join(model): _write_usage(usage)})
    return _add_usages(used)


def _add_usages(usages: Sequence[JsonObject]) -> JsonObject:
    """Add usages by model."""
    summed: JsonObject = {}
    for model, usage in (item for each in usages for item in each.items()):
        before = summed.get(model, {})
        summed[model] = {name: before.get(name, 0) + value for name, value in usage.items()}
    return summed


def _format_time(timestamp: str) -> str | None:
    moment = parse_timestamp(timestamp)
    return None if moment is None else format_timestamp(moment)
