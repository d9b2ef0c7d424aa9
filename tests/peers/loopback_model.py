"""A model on the loopback interface that answers every request with a short text, and logs the requests.

It speaks the protocols of Anthropic Messages, OpenAI Responses, OpenAI Chat and Gemini, streamed and whole. Run it in a
network namespace: `python loopback_model.py LOG COMMANDS.json` brings the loopback interface up, runs the commands one
after the other, and writes to LOG, as JSON, the bodies of the requests that each of them made.
"""

from __future__ import annotations

import fcntl
import json
import re
import socket
import struct
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PORT = 8799
COMMAND_SECONDS = 120
REQUESTS: list[dict[str, Any]] = []


class ModelHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_body(b'{"data":[],"models":[]}', "application/json")

    def do_POST(self) -> None:
        raw = self.read_body()
        try:
            body = json.loads(raw)
        except ValueError:
            body = {}
        REQUESTS.append({"path": self.path, "body": body})
        if "count_tokens" in self.path:
            self.send_body(b'{"input_tokens":1}', "application/json")
        elif "/messages" in self.path:
            call = find_requested_call(body)
            self.answer(body, build_anthropic_message(call), build_anthropic_events(call))
        elif "/responses" in self.path:
            call = find_requested_call(body)
            self.answer(body, build_response(call), build_response_events(call))
        elif "/chat/completions" in self.path:
            self.send_chat(bool(body.get("stream")))
        elif "enerateContent" in self.path:
            self.send_gemini("stream" in self.path)
        else:
            self.send_body(b"{}", "application/json")

    def read_body(self) -> bytes:
        if self.headers.get("transfer-encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        chunks: list[bytes] = []
        while size := int(self.rfile.readline().strip() or b"0", 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def answer(self, body: dict[str, Any], whole: dict[str, Any], events: list[dict[str, Any]]) -> None:
        if not body.get("stream"):
            self.send_body(json.dumps(whole).encode(), "application/json")
            return
        lines = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]
        self.send_body("".join(lines).encode(), "text/event-stream")

    def send_chat(self, is_streamed: bool) -> None:
        choice = {"index": 0, "finish_reason": "stop"}
        answer = {"role": "assistant", "content": get_answer()}
        whole = {
            "id": "chat",
            "object": "chat.completion.chunk" if is_streamed else "chat.completion",
            "created": 1,
            "model": "loop",
            "choices": [{**choice, "delta" if is_streamed else "message": answer}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
        if is_streamed:
            self.send_body(f"data: {json.dumps(whole)}\n\ndata: [DONE]\n\n".encode(), "text/event-stream")
        else:
            self.send_body(json.dumps(whole).encode(), "application/json")

    def send_gemini(self, is_streamed: bool) -> None:
        content = {"role": "model", "parts": [{"text": get_answer()}]}
        usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
        whole = {"candidates": [{"content": content, "index": 0, "finishReason": "STOP"}], "usageMetadata": usage}
        if is_streamed:
            self.send_body(f"data: {json.dumps(whole)}\n\n".encode(), "text/event-stream")
        else:
            self.send_body(json.dumps(whole).encode(), "application/json")

    def send_body(self, data: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


def get_answer() -> str:
    return f"Answer {len(REQUESTS)}"


ToolCall = dict[str, Any]
CALL = re.compile(r"call tool (\w+) with query (\w+)")
"""A prompt with these words makes the model call that tool once."""


def find_requested_call(body: dict[str, Any]) -> ToolCall | None:
    """Return the call that the prompt asks for, if the tool is offered and was not called yet."""
    text = json.dumps(body.get("messages") or body.get("input") or [])
    asked = CALL.search(text)
    if asked is None or "tool_result" in text or "function_call_output" in text:
        return None
    for tool in body.get("tools") or []:
        inner = tool.get("tools") if tool.get("type") == "namespace" else [tool]
        for one in inner or []:
            if str(one.get("name", "")).endswith(asked[1]):
                call = {"name": one["name"], "input": {"query": asked[2]}}
                return {**call, "namespace": tool["name"]} if one is not tool else call
    return None


def build_anthropic_message(call: ToolCall | None = None) -> dict[str, Any]:
    text: dict[str, Any] = {"type": "text", "text": get_answer()}
    use = (
        None if call is None else {"type": "tool_use", "id": "toolu_loop", "name": call["name"], "input": call["input"]}
    )
    return {
        "id": f"msg_{len(REQUESTS):020d}",
        "type": "message",
        "role": "assistant",
        "model": "claude-opus-5-5",
        "content": [text if use is None else use],
        "stop_reason": "end_turn" if use is None else "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }


def build_anthropic_events(call: ToolCall | None = None) -> list[dict[str, Any]]:
    whole = build_anthropic_message(call)
    message = {**whole, "content": [], "stop_reason": None}
    block: dict[str, Any] = {"type": "text", "text": ""}
    delta: dict[str, Any] = {"type": "text_delta", "text": get_answer()}
    if call is not None:
        block = {**whole["content"][0], "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(call["input"])}
    ending = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    return [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": ending, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]


def build_response(call: ToolCall | None = None) -> dict[str, Any]:
    item: dict[str, Any] = {
        "type": "message",
        "id": f"msg_{len(REQUESTS)}",
        "status": "completed",
        "role": "assistant",
        "content": [{"type": "output_text", "text": get_answer(), "annotations": []}],
    }
    if call is not None:
        item = {"type": "function_call", "id": "fc_loop", "call_id": "call_loop", "status": "completed"}
        item |= {key: value for key, value in call.items() if key != "input"}
        item["arguments"] = json.dumps(call["input"])
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    id = f"resp_{len(REQUESTS)}"
    return {"id": id, "object": "response", "status": "completed", "output": [item], "usage": usage}


def build_response_events(call: ToolCall | None = None) -> list[dict[str, Any]]:
    response = build_response(call)
    started = {**response, "status": "in_progress", "output": []}
    return [
        {"type": "response.created", "response": started},
        {"type": "response.output_item.done", "output_index": 0, "item": response["output"][0]},
        {"type": "response.completed", "response": response},
    ]


def raise_loopback() -> None:
    """Bring the loopback interface up, as `ip link set lo up` does."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))  # SIOCSIFFLAGS, IFF_UP | IFF_RUNNING


def main(log: str, commands: str) -> None:
    raise_loopback()
    server = ThreadingHTTPServer(("127.0.0.1", PORT), ModelHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    results: list[dict[str, Any]] = []
    with open(commands) as file:
        todo = json.load(file)
    for command in todo:
        REQUESTS.clear()
        try:
            done = subprocess.run(
                command["argv"],
                cwd=command["cwd"],
                env=command["env"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=COMMAND_SECONDS,
                check=False,
            )
            said = f"{done.returncode}: {done.stdout[-500:]} {done.stderr[-1500:]}"
        except subprocess.TimeoutExpired:
            said = "timeout"
        results.append({"said": said, "requests": list(REQUESTS)})
    with open(log, "w") as file:
        json.dump(results, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
