"""Sessions for tests of exports."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from typing import Any

import sessiontree as st
from sessiontree.core.entries import BranchSummary, Compaction, CustomMessage, Message, ModelChange, ThinkingLevelChange
from sessiontree.session import Session
from sessiontree.store.memory import MemoryStore

SECRET = "sk-ant-api03-" + "Zx9" * 12


def make_picture(width: int = 24, height: int = 9) -> str:
    """Return a PNG in base64."""
    pixels = b"".join(b"\0" + bytes((90, 140, 190)) * width for _ in range(height))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return base64.b64encode(
        b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")
    ).decode()


def make_story() -> st.Session:
    """Return a fixed session with every kind of entry of a conversation, on three branches."""
    numbers = iter(range(1, 1000))
    ticks = iter(range(1_767_600_000_000, 1_767_700_000_000, 17_000))
    session = Session.create(
        MemoryStore(),
        id="01a1e124-ed0f-716a-8e85-0f0bb57fa47d",
        cwd="/project",
        name="Make the report fast",
        now=lambda: next(ticks),
        new_id=lambda: f"{next(numbers):04x}" * 4,
    )
    model = {"provider": "anthropic", "model": "sonnet"}
    session.append(ModelChange(provider="anthropic", model="sonnet"))
    session.append(ThinkingLevelChange("high"))
    session.append(st.user("The report takes **40 seconds**.\nWhere does the time go?"))
    session.append(
        st.assistant(
            [
                {"type": "thinking", "thinking": "Measure before guessing."},
                {"type": "text", "text": "I will read it first."},
                st.tool_call("c1", "read", {"path": "report.py"}),
            ],
            usage={"input": 1900, "output": 160, "cost": 0.0081},
            **model,
        )
    )
    session.append(st.tool_result("c1", "read", "\n".join(f"line {number}" for number in range(60))))
    parting = session.append(
        st.assistant(
            "# Two ways\n\n```python\nfirst = {}  # a dict\n```\n\nSee [docs](https://example.org) or `cache`.",
            usage={"input": 3100, "output": 420, "cost": 0.0157},
            **model,
        )
    )
    session.label(parting, "two ways")
    session.create_branch("cache", at="two ways", description="remember results")
    session.append(st.user("Try the cache."))
    session.append(st.assistant("A second run takes 40 ms.", usage={"input": 900, "output": 60, "cost": 0.05}, **model))
    session.create_branch("dict", at="two ways")
    session.append(
        st.user(
            [
                {"type": "text", "text": "Take the dict."},
                {"type": "image", "data": make_picture(), "mimeType": "image/png"},
            ]
        )
    )
    session.append(
        st.assistant(
            [st.tool_call("c4", "edit", {"path": "report.py", "oldText": "found = []", "newText": "first = {}"})],
            usage={"input": 3500, "output": 210, "cost": 0.0136},
            **model,
        )
    )
    edited = st.tool_result("c4", "edit", "Edited report.py.")
    edited.message["details"] = {"diff": "@@ -1 +1 @@\n-found = []\n+first = {}\n"}
    session.append(edited)
    session.append(
        Message({"role": "bashExecution", "command": "pytest -q", "output": "\x1b[31m1 failed\x1b[0m", "exitCode": 1})
    )
    session.append(st.assistant([], stop_reason="error", error="overloaded", **model))
    session.append(CustomMessage(custom_type="reviewer", content="Are cents `Decimal`?"))
    session.append(Compaction(summary="It was **quadratic**.", first_kept=parting.id, tokens_before=48_210))
    session.append(
        BranchSummary(
            summary="A cache was tried.",
            abandoned_leaf=session.resolve_place("cache"),
            details={"kind": "merge", "sources": [session.resolve_place("cache")]},
        )
    )
    session.append(st.user("Write the note."))
    session.append(st.assistant("25 ms instead of 40 s.", usage={"input": 2100, "output": 40, "cost": 0.007}, **model))
    return session


def make_long_session(count: int) -> list[bytes]:
    """Return a chain of `count` messages."""
    lines: list[dict[str, Any]] = [
        {"type": "session", "version": 3, "id": "long", "timestamp": "2026-01-01T00:00:00.000Z", "cwd": "/p"}
    ]
    for number in range(count):
        role = "assistant" if number % 2 else "user"
        text = f"**{role}** number {number} " + "says something of some length, as people and models do. " * 8
        lines.append(
            {
                "type": "message",
                "id": f"{number:016x}",
                "parentId": f"{number - 1:016x}" if number else None,
                "timestamp": "2026-01-01T00:00:00.000Z",
                "message": {"role": role, "content": [{"type": "text", "text": text}]},
            }
        )
    return [json.dumps(line, separators=(",", ":")).encode() for line in lines]
