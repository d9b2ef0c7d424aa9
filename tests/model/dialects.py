"""The protocols of the fake model server: an answer as the events of each protocol."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

Body: TypeAlias = dict[str, Any]
Call: TypeAlias = tuple[str, str, Any]
"""Id, name and arguments: an object, or a text that is sent unchanged."""


@dataclass(frozen=True)
class Answer:
    text: str = ""
    thinking: str = ""
    calls: tuple[Call, ...] = ()
    usage: dict[str, Any] | None = field(default_factory=lambda: {"prompt_tokens": 12, "completion_tokens": 5})
    """With the field names of the protocol, by default those of OpenAI. `None` sends no usage."""
    finish: str | None = None
    """The finish reason in the words of the protocol. `None` chooses a suitable one; an empty one is not sent."""
    piece: int = 4
    """Characters per fragment."""
    pause: float = 0
    """Seconds before the first fragment and after each one."""
    cut: bool = False
    """Whether the connection is closed before the answer is complete."""
    signature: str = ""
    """The signature of the thinking, if the protocol has one."""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    error: dict[str, Any] = field(default_factory=dict)
    """The error, if the status is not 200."""


class Dialect(NamedTuple):
    """The events of an answer: its content, and its end. A text is sent unchanged."""

    begin: Callable[[Answer, Body], Iterator[Any]]
    end: Callable[[Answer, Body], Iterator[Any]]


def find_dialect(path: str) -> Dialect:
    """Return the protocol of the requests to a path."""
    if path.endswith("/messages"):
        return Dialect(_stream_anthropic, _end_anthropic)
    if path.endswith("/responses"):
        return Dialect(_stream_response, _end_response)
    if ":streamGenerateContent" in path:
        return Dialect(_stream_google, _end_google)
    return Dialect(_stream_completion, _end_completion)


def split_pieces(text: str, size: int) -> Iterator[str]:
    return (text[start : start + size] for start in range(0, len(text), size))


def encode_arguments(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


# OpenAI's chat completions


def _stream_completion(answer: Answer, body: Body) -> Iterator[Any]:
    for delta in _iter_deltas(answer):
        yield _build_chunk(body, [{"index": 0, "delta": delta, "finish_reason": None}])


def _end_completion(answer: Answer, body: Body) -> Iterator[Any]:
    if answer.finish != "":
        reason = answer.finish or ("tool_calls" if answer.calls else "stop")
        yield _build_chunk(body, [{"index": 0, "delta": {}, "finish_reason": reason}])
    if answer.usage is not None:
        total = sum(answer.usage.get(key, 0) for key in ("prompt_tokens", "completion_tokens"))
        yield {**_build_chunk(body, []), "usage": {"total_tokens": total, **answer.usage}}
    yield "[DONE]"


def _iter_deltas(answer: Answer) -> Iterator[Body]:
    yield {"role": "assistant", "content": ""}
    for piece in split_pieces(answer.thinking, answer.piece):
        yield {"reasoning_content": piece}
    for piece in split_pieces(answer.text, answer.piece):
        yield {"content": piece}
    for index, (id, name, arguments) in enumerate(answer.calls):
        start = {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}
        yield {"tool_calls": [start]}
        for piece in split_pieces(encode_arguments(arguments), answer.piece):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _build_chunk(body: Body, choices: list[Any]) -> Body:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_767_346_200,
        "model": body.get("model", "scripted"),
        "choices": choices,
    }


# OpenAI's responses


def _stream_response(answer: Answer, body: Body) -> Iterator[Any]:
    yield {"type": "response.created", "sequence_number": 0, "response": _build_response(body, "in_progress", [])}
    for index, (item, events) in enumerate(_iter_items(answer)):
        at = {"output_index": index, "sequence_number": 0}
        empty: Body = {"summary": [], "content": [], "arguments": ""}
        bare = {key: empty.get(key, value) for key, value in item.items()}
        yield {"type": "response.output_item.added", "item": {**bare, "status": "in_progress"}, **at}
        for event in events:
            yield {"item_id": item["id"], **at, **event}
        yield {"type": "response.output_item.done", "item": item, **at}


def _end_response(answer: Answer, body: Body) -> Iterator[Any]:
    if answer.finish == "":
        return
    items = [item for item, _ in _iter_items(answer)]
    response = {**_build_response(body, "completed", items), "usage": answer.usage}
    if answer.finish == "length":
        response |= {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    yield {"type": f"response.{response['status']}", "sequence_number": 0, "response": response}


def _iter_items(answer: Answer) -> Iterator[tuple[Body, list[Body]]]:
    if answer.thinking:
        summary = {"type": "summary_text", "text": answer.thinking}
        part = {"summary_index": 0, "part": {"type": "summary_text", "text": ""}}
        deltas = [
            {"type": "response.reasoning_summary_text.delta", "summary_index": 0, "delta": piece}
            for piece in split_pieces(answer.thinking, answer.piece)
        ]
        item = {"type": "reasoning", "id": "rs_1", "summary": [summary], "encrypted_content": answer.signature}
        yield item, [{"type": "response.reasoning_summary_part.added", **part}, *deltas]
    if answer.text:
        content = [{"type": "output_text", "text": answer.text, "annotations": []}]
        deltas = [
            {"type": "response.output_text.delta", "content_index": 0, "delta": piece, "logprobs": []}
            for piece in split_pieces(answer.text, answer.piece)
        ]
        yield {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}, deltas
    for index, (id, name, arguments) in enumerate(answer.calls, 1):
        item = {"type": "function_call", "id": f"fc_{index}", "call_id": id, "name": name, "status": "completed"}
        deltas = [
            {"type": "response.function_call_arguments.delta", "delta": piece}
            for piece in split_pieces(encode_arguments(arguments), answer.piece)
        ]
        yield {**item, "arguments": encode_arguments(arguments)}, deltas


def _build_response(body: Body, status: str, output: list[Body]) -> Body:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_767_346_200,
        "model": body.get("model"),
        "status": status,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


# Anthropic's messages


def _stream_anthropic(answer: Answer, body: Body) -> Iterator[Any]:
    message = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": body["model"]}
    message |= {"stop_reason": None, "stop_sequence": None, "usage": {**(answer.usage or {}), "output_tokens": 1}}
    yield {"type": "message_start", "message": message}
    for index, (block, deltas) in enumerate(_iter_anthropic_blocks(answer)):
        yield {"type": "content_block_start", "index": index, "content_block": block}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}


def _end_anthropic(answer: Answer, body: Body) -> Iterator[Any]:
    if answer.finish == "":
        return
    reason = answer.finish or ("tool_use" if answer.calls else "end_turn")
    delta = {"stop_reason": reason, "stop_sequence": None}
    yield {"type": "message_delta", "delta": delta, "usage": answer.usage or {"output_tokens": 1}}
    yield {"type": "message_stop"}


def _iter_anthropic_blocks(answer: Answer) -> Iterator[tuple[Body, list[Body]]]:
    if answer.thinking:
        thoughts = [
            {"type": "thinking_delta", "thinking": piece} for piece in split_pieces(answer.thinking, answer.piece)
        ]
        signed = {"type": "signature_delta", "signature": answer.signature}
        yield {"type": "thinking", "thinking": "", "signature": ""}, [*thoughts, signed]
    if answer.text:
        words = [{"type": "text_delta", "text": piece} for piece in split_pieces(answer.text, answer.piece)]
        yield {"type": "text", "text": ""}, words
    for id, name, arguments in answer.calls:
        block = {"type": "tool_use", "id": id, "name": name, "input": {}}
        deltas = split_pieces(encode_arguments(arguments), answer.piece)
        yield block, [{"type": "input_json_delta", "partial_json": piece} for piece in deltas]


# Google's


def _stream_google(answer: Answer, body: Body) -> Iterator[Any]:
    for piece in split_pieces(answer.thinking, answer.piece):
        yield _build_candidate({"text": piece, "thought": True})
    for piece in split_pieces(answer.text, answer.piece):
        yield _build_candidate({"text": piece})
    for id, name, arguments in answer.calls:
        signed = {"thoughtSignature": answer.signature} if answer.signature else {}
        yield _build_candidate({"functionCall": {"id": id, "name": name, "args": arguments}, **signed})


def _end_google(answer: Answer, body: Body) -> Iterator[Any]:
    if answer.finish == "":
        return
    candidate = {"content": {"role": "model", "parts": [{"text": ""}]}, "finishReason": answer.finish or "STOP"}
    yield {"candidates": [candidate], "usageMetadata": answer.usage, "responseId": "g1"}


def _build_candidate(part: Body) -> Body:
    return {"candidates": [{"content": {"role": "model", "parts": [part]}}], "responseId": "g1"}
