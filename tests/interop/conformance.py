"""Recorded sessions of real programs, and what a conversation says in the plain form of their `expected.json`.

A message in plain form has a `role` (`user`, `assistant`, `tool`, `summary`, `error`, `aborted`) and, where there are
any, `text`, `thinking`, `calls`, `id` (of the call that a result answers) and `images` (how many).
"""

import json
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from glob import glob
from pathlib import Path
from typing import Any

from sessiontree.core.context import build_context
from sessiontree.core.entries import Compaction, CustomMessage, Entry, Message
from sessiontree.export.snapshot import Snapshot, read_snapshot
from sessiontree.interop.base import HEAD_SIZE, Conversation, FileHead, ForeignFile, ForeignFormat, MemoryFile
from sessiontree.interop.formats import detect_format

FIXTURES = Path(__file__).parent / "fixtures"
Plain = dict[str, Any]

OWN_TEXT = re.compile(
    r"^\s*(# AGENTS\.md instructions|\[Image: source: |<(system-reminder|environment_context|local-command-\w+|"
    r"command-\w+|session_context|skills_instructions|permissions instructions|user_instructions|turn_aborted|"
    r"task-notification|subagent_notification|bash-\w+)[ >])"
)
"""Texts that the programs put into the conversation themselves. `expected.json` leaves them out."""
SUMMARY_TEXT = re.compile(r"^(This session is being continued|Another language model started)")
IMAGE_TAG = re.compile(r"^</?image[^>]*>$")
COMPARED = ("role", "text", "thinking", "calls", "id", "images")


def list_fixtures(*programs: str) -> list[Path]:
    """Return the folders of recorded sessions, each with an `expected.json`."""
    return [path.parent for path in sorted(FIXTURES.glob("*/*/expected.json")) if path.parts[-3] in programs]


def load_expected(folder: Path) -> Any:
    return json.loads((folder / "expected.json").read_text())


def open_file(path: Path) -> ForeignFile:
    """Open a recorded file: JSON or lines as they are, SQL as the tables that it creates."""
    return MemoryFile(str(path), path.read_bytes(), load_tables(path) if path.suffix == ".sql" else None)


def load_tables(path: Path) -> dict[str, list[dict[str, Any]]]:
    with sqlite3.connect(":memory:") as database:
        database.row_factory = sqlite3.Row
        database.executescript(path.read_text())
        names = [row[0] for row in database.execute("select name from sqlite_master where type = 'table'")]
        return {name: [dict(row) for row in database.execute(f'select * from "{name}"')] for name in names}


def build_head(path: Path) -> FileHead:
    if path.suffix == ".sql":
        return FileHead(
            name=str(path), tables={name: list(rows[0]) for name, rows in load_tables(path).items() if rows}
        )
    data = path.read_bytes()
    return FileHead(name=str(path), data=data[:HEAD_SIZE], is_whole=len(data) <= HEAD_SIZE)


def detect(path: Path) -> ForeignFormat:
    format = detect_format(build_head(path))
    assert format is not None, path
    return format


def read_file(path: Path) -> list[Conversation]:
    """Read a recorded file with the files that belong to it."""
    format, file = detect(path), open_file(path)
    found = {path}
    todo = [path]
    while todo:
        current = todo.pop()
        names = (glob(pattern, root_dir=current.parent) for pattern in format.find_related(open_file(current)))
        more = {Path(os.path.normpath(current.parent / name)) for several in names for name in several} - found
        found |= more
        todo += [other for other in more if other.suffix == ".jsonl"]
    return list(format.read(file, [open_file(other) for other in sorted(found - {path})]))


def read_one(path: Path) -> Snapshot:
    """Return the only conversation of a recorded file."""
    [conversation] = read_file(path)
    return read_snapshot(conversation.lines)


def describe_branch(snapshot: Snapshot, branch: str) -> list[Plain]:
    """Return the conversation of a branch, with what no model sees."""
    leaf = snapshot.heads.heads[branch]
    entries = [entry for entry in snapshot.tree.path(leaf) if "copiedFrom" not in entry.extra]
    start = max((index for index, entry in enumerate(entries) if entry.type == "reset_boundary"), default=-1)
    return merge(simplify(message for entry in entries[start + 1 :] for message in get_messages(entry)))


def get_messages(entry: Entry) -> Iterator[Plain]:
    match entry.body:
        case Message(message):
            yield message
        case CustomMessage(content=content):
            yield {"role": "user", "content": content}
        case Compaction(summary=summary):
            yield {"role": "compactionSummary", "summary": summary}
        case _:
            pass


def describe_context(snapshot: Snapshot) -> list[Plain]:
    """Return what a model gets at the end of the current branch."""
    context = build_context(snapshot.tree, snapshot.leaf)
    sent = {id for id, _ in context.build_request()}
    messages = zip(context.sources, context.messages, strict=True)
    return merge(simplify(message for id, message in messages if id in sent))


def simplify(messages: Iterable[Plain]) -> Iterator[Plain]:
    for message in messages:
        content: Any = message.get("content")
        blocks: list[Plain] = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
        images = sum(block["type"] == "image" for block in blocks)
        texts = [block["text"] for block in blocks if block["type"] == "text" and not IMAGE_TAG.match(block["text"])]
        match message["role"]:
            case "assistant" if message.get("stopReason") == "error":
                yield {"role": "error", "text": message["errorMessage"]}
            case "assistant" if message.get("stopReason") == "aborted" and not blocks:
                yield {"role": "aborted"}
            case "assistant":
                yield from map(describe_block, blocks)
            case "toolResult":
                yield drop_empty(role="tool", text="\n".join(texts), id=message["toolCallId"], images=images)
            case "compactionSummary" | "branchSummary":
                yield {"role": "summary", "text": message["summary"]}
            case "user" | "custom":
                texts = [text.rstrip("\n") for text in texts if not OWN_TEXT.match(text)]
                for index, text in enumerate(texts or [""] * bool(images)):
                    role = "summary" if SUMMARY_TEXT.match(text) else "user"
                    yield drop_empty(role=role, text=text, images=images if index == len(texts) - 1 else 0)
            case _:
                pass


def describe_block(block: Plain) -> Plain:
    match block["type"]:
        case "text":
            return {"role": "assistant", "text": block["text"]}
        case "thinking":
            return {"role": "assistant", "thinking": block["thinking"]}
        case _:
            call = {key: block[key] for key in ("id", "name", "arguments")}
            return {"role": "assistant", "calls": [call]}


def drop_empty(**fields: Any) -> Plain:
    return {key: value for key, value in fields.items() if value}


def merge(messages: Iterable[Plain]) -> list[Plain]:
    """Join the pieces of an answer, as `expected.json` does, and keep only what is compared."""
    merged: list[Plain] = []
    for message in messages:
        piece = drop_empty(**{key: message.get(key) for key in COMPARED})
        if merged and can_join(merged[-1], piece):
            for key, value in piece.items():
                if key != "role":
                    merged[-1][key] = merged[-1][key] + value if key in merged[-1] else value
        else:
            merged.append(piece)
    return merged


def can_join(above: Plain, piece: Plain) -> bool:
    return above["role"] == piece["role"] == "assistant" and not (
        ("text" in piece and ("text" in above or "calls" in above))
        or ("thinking" in piece and ("text" in above or "calls" in above))
    )


def expect_messages(messages: Sequence[Plain]) -> list[Plain]:
    """Return the messages of an `expected.json` as they are compared."""
    return merge({key: message[key] for key in COMPARED if key in message} for message in messages)
