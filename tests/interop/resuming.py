"""What the tests of writers share: sessions that were continued here, and what every format can say of a context."""

from sessiontree.core.entries import Message
from sessiontree.core.messages import assistant, user
from sessiontree.export.snapshot import Snapshot, read_snapshot
from sessiontree.format.codec import write_entry
from tests.interop.conformance import Plain


def build_snapshot(snapshot: Snapshot, question: str, answer: str) -> Snapshot:
    """Return a session with a question and an answer added at its leaf, on a branch of their own."""
    parent = snapshot.leaf
    lines = snapshot.lines
    for number, body in enumerate((user(question), assistant(answer, provider="p", model="m", stop_reason="stop"))):
        entry = write_entry(
            Message({**body.message, "timestamp": 1800000000000}),
            id=f"ours-{number}",
            parent=parent,
            timestamp="2027-01-15T08:00:00.000Z",
            branch="ours",
        )
        lines.append(entry.raw)
        parent = entry.id
    return read_snapshot(lines)


def strip(context: list[Plain]) -> list[Plain]:
    """Return a context without what a format may change: thinking, the ids of calls, the frame of a summary."""
    stripped: list[Plain] = []
    for message in context:
        plain = {key: value for key, value in message.items() if key not in ("thinking", "id", "calls")}
        if "calls" in message:
            plain["calls"] = [{key: call[key] for key in ("name", "arguments")} for call in message["calls"]]
        if message["role"] == "summary" or "<summary>" in message.get("text", ""):
            plain = {"role": "summary"}
        if len(plain) > 1 or plain["role"] == "summary":
            stripped.append(plain)
    return stripped
