"""Gemini CLI: its chat logs, the single-document chats of older versions, and the checkpoints of `/chat save`.

A chat is a log of events. Replaying it gives the list of messages that Gemini resumes. Messages that a rewind, a cancel
or a compression took off the list are still in the log, so they become branches.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence

from sessiontree.convert.base import ApiKind, count
from sessiontree.convert.gemini import from_gemini
from sessiontree.core.entries import Custom, EntryId, JsonObject, Message
from sessiontree.core.heads import MAIN
from sessiontree.core.messages import coerce_string, complete_usage, is_list, is_object
from sessiontree.errors import FormatError, InvalidOperation
from sessiontree.format.codec import COPIED_FROM
from sessiontree.interop.base import (
    Conversation,
    ConversationBuilder,
    FileHead,
    ForeignFile,
    ForeignFormat,
    LineBuffer,
    get_object,
    read_record,
)
from sessiontree.interop.foreign_branches import choose_branch_name, divide_branches
from sessiontree.interop.gemini_replay import ChatMessage, ChatReplay
from sessiontree.interop.gemini_writer import PROJECT_ROOT, PROJECTS, write_gemini_session

NAME = "gemini"
NOTICES = frozenset({"info", "error", "warning"})
"""Messages that Gemini shows and never sends."""

_DOCUMENT = re.compile(rb'\s*\{\s*"sessionId"\s*:')
_CHECKPOINT = re.compile(rb'\s*\{\s*"history"\s*:\s*\[\s*\{')


def detect(head: FileHead) -> bool:
    """Return whether a file is a chat or a checkpoint of Gemini CLI."""
    first = next(iter(head.read_records()), None)
    if first is not None and "projectHash" in first and "sessionId" in first:
        return True
    if _DOCUMENT.match(head.data):
        return b'"projectHash"' in head.data
    return _CHECKPOINT.match(head.data) is not None and b'"parts"' in head.data


def find_related(file: ForeignFile) -> Iterable[str]:
    """Return the chats of subagents, in a folder named by the session, and the file that names the working folder."""
    first = next((record for line in file.iter_lines() if (record := read_record(line))), None)
    session = "" if first is None else coerce_string(first.get("sessionId"))
    patterns = [f"{session}/*.jsonl"] if re.fullmatch(r"[\w-]+", session) else []
    return [*patterns, f"../{PROJECT_ROOT}"]


def select_sessions(paths: Sequence[str]) -> Sequence[str]:
    """Return the chats without chats of subagents, which are one folder further down."""
    return [path for path in paths if posixpath.basename(posixpath.dirname(posixpath.dirname(path))) != "chats"]


def read(file: ForeignFile, related: Sequence[ForeignFile]) -> Iterator[Conversation]:
    """Yield the conversation of a chat or a checkpoint."""
    first = next((line for line in file.iter_lines() if line.strip()), b"")
    if read_record(first) is None or "messages" in (read_record(first) or {}):
        document = file.read_document()
        if is_object(document) and is_list(document.get("history")):
            yield _read_checkpoint(file, document)
            return
        if not is_object(document) or not is_list(document.get("messages")):
            raise FormatError(file.name, "not a chat of Gemini CLI")
        header = {name: value for name, value in document.items() if name != "messages"}
        records: Iterator[tuple[int, JsonObject | None]] = iter(
            [(1, header), (1, {"$set": {"messages": document["messages"]}})]
        )
    else:
        records = _iter_records(file)
    roots = [other for other in related if posixpath.basename(other.name) == PROJECT_ROOT]
    chats = [other for other in related if posixpath.basename(other.name) != PROJECT_ROOT]
    replay = ChatReplay(records, file.create_line_buffer())
    replays = (ChatReplay(_iter_records(other), other.create_line_buffer()) for other in chats)
    subagents = {chat.id: chat for chat in replays if chat.id}
    cwd = next((line.decode("utf-8", "replace").strip() for root in roots for line in root.iter_lines()), "")
    yield _ChatReader(replay, subagents, cwd, file.create_line_buffer()).build()


def _iter_records(file: ForeignFile) -> Iterator[tuple[int, JsonObject | None]]:
    for number, line in enumerate(file.iter_lines(), 1):
        if line.strip():
            yield number, read_record(line)


def _read_checkpoint(file: ForeignFile, document: JsonObject) -> Conversation:
    """Return the history that `/chat save` wrote, which has neither ids nor times."""
    name = posixpath.basename(file.name).removesuffix(".json")
    builder = ConversationBuilder(NAME, name)
    builder.title = name.removeprefix("checkpoint-")
    leaf: EntryId | None = None
    for number, content in enumerate(document["history"]):
        parts = content.get("parts") if is_object(content) else None
        role = "model" if is_object(content) and content.get("role") == "model" else "user"
        kept: list[JsonObject] = []
        for index, message in enumerate(_convert_parts(role, parts if is_list(parts) else [], kept)):
            leaf = builder.add(Message(message), id=f"{name}-{number}-{index}", parent=leaf)
        for part in kept:
            builder.report("unsent", f"message {number} has a part that is not understood: {sorted(part)}")
    return builder.build({MAIN: leaf}, original=None)


def _convert_parts(role: str, parts: Sequence[object], kept: list[JsonObject]) -> list[JsonObject]:
    """Return the messages that the parts of a message make. Parts that cannot be read go to `kept`."""
    try:
        return [body.message for body in from_gemini([{"role": role, "parts": list(parts)}])]
    except InvalidOperation:
        readable: list[object] = []
        for part in parts:
            try:
                from_gemini([{"role": role, "parts": [part]}])
            except InvalidOperation:
                kept.append(part if is_object(part) else {"part": part})
            else:
                readable.append(part)
        return [body.message for body in from_gemini([{"role": role, "parts": readable}])]


class _ChatReader:
    """Builds the tree of one chat from its replay."""

    def __init__(self, replay: ChatReplay, subagents: dict[str, ChatReplay], cwd: str, lines: LineBuffer) -> None:
        header = replay.header
        folders = header.get("directories")
        named = next((path for path in folders if isinstance(path, str)), "") if is_list(folders) else ""
        self._replay = replay
        self._subagents = subagents
        self._builder = ConversationBuilder(
            NAME, replay.id, cwd=named or cwd, started=header.get("startTime"), lines=lines
        )
        self._builder.title = coerce_string(header.get("summary")).strip() or None
        self._heads: dict[str, EntryId | None] = {MAIN: None}
        self._ends: dict[str, EntryId | None] = {}
        """The last entry of each message: the result of its last call, if it has any."""

    def build(self) -> Conversation:
        for problem, line in self._replay.problems:
            self._builder.report("malformed_line", problem, line=line, severity="fault")
        self._add_chat(self._replay, MAIN, None)
        for id in list(self._subagents):  # those whose call is not in the chat
            self._add_subagent(id, None)
        return self._builder.build(self._heads)

    def _add_chat(self, replay: ChatReplay, main: str, root: EntryId | None) -> None:
        branches = divide_branches(
            {message.id: message.parent for message in replay.messages.values()},
            replay.live[-1] if replay.live else None,
            main=main,
            other="dropped",
            taken=self._heads,
            silent={message.id for message in replay.messages.values() if message.is_echo or message.is_context},
        )
        for message in replay.messages.values():
            above = root if message.parent is None else self._ends.get(message.parent)
            self._ends[message.id] = self._add_message(replay, message, above, branches[message.id])
        for message in replay.messages.values():
            self._heads[branches[message.id]] = self._ends[message.id]
        live = [id for id in replay.live if id in self._ends]
        self._heads[main] = self._ends[live[-1]] if live else root

    def _add_message(
        self, replay: ChatReplay, message: ChatMessage, parent: EntryId | None, branch: str
    ) -> EntryId | None:
        """Add a message with the results of its calls, and return the last entry."""
        record = replay.read_record(message)
        kind, id, time = coerce_string(record.get("type")), message.id, record.get("timestamp")
        if message.is_echo:
            self._builder.add_alias(id, parent)
            return parent
        kept: list[JsonObject] = []
        if message.is_context or kind not in ("user", "gemini"):
            if kind not in NOTICES and not message.is_context:
                self._builder.report("unsent", f"message {id!r} has the unknown type {kind!r}", entry=id)
            name = f"gemini.{'context' if message.is_context else kind or 'message'}"
            data = {key: value for key, value in record.items() if key not in ("id", "timestamp", "type")}
            return self._builder.add(
                Custom(custom_type=name, data=data), id=id, parent=parent, time=time, branch=branch
            )
        bodies = _convert_parts("model" if kind == "gemini" else "user", _list_parts(record), kept)
        if kind == "gemini":
            bodies = [_describe_answer(record, bodies[0])]
        extra = {key: value for key, value in record.items() if key not in _KNOWN_KEYS}
        extra |= {"parts": kept} if kept else {}
        if kept:
            self._builder.report("unsent", f"message {id!r} has parts that are only kept", entry=id)
        end = parent
        for index, body in enumerate(bodies):
            # The last entry has the id of the message.
            last = index == len(bodies) - 1
            fields: JsonObject = {NAME: extra} if extra and last else {}
            fields |= {COPIED_FROM: message.copy_of} if message.copy_of and last else {}
            name = id if last else f"{id}-{index}"
            end = self._builder.add(Message(body), id=name, parent=end, time=time, branch=branch, extra=fields or None)
        for call in (part for part in _list_calls(record) if kind == "gemini"):
            end = self._add_result(replay, message, call, end, branch)
        for call in _list_calls(record):
            started = get_object(call, "resultDisplay").get("agentId", call.get("agentId"))
            if isinstance(started, str):
                self._add_subagent(started, id, coerce_string(call.get("id")))
        return end

    def _add_result(
        self, replay: ChatReplay, message: ChatMessage, call: JsonObject, parent: EntryId | None, branch: str
    ) -> EntryId | None:
        """Add the result of a call, which the log has in the call, in a user message, or in both."""
        listed = call.get("result")
        id = coerce_string(call.get("id"))
        parts = listed if is_list(listed) and listed else replay.list_responses(id)
        results = [part for part in parts if is_object(part) and is_object(part.get("functionResponse"))]
        kept: list[JsonObject] = []
        extra = {key: value for key, value in call.items() if key not in ("id", "name", "args", "result")}
        for number, result in enumerate(_convert_parts("user", results[:1], kept)):
            name = f"{message.id}-{id or number}"
            parent = self._builder.add(
                Message(result),
                id=name,
                parent=parent,
                time=call.get("timestamp"),
                branch=branch,
                extra={NAME: extra} if extra else None,
            )
        return parent

    def _add_subagent(self, id: str, parent: EntryId | None, call: str = "") -> None:
        """Add the chat of a subagent as a branch below the call that started it. Its model saw nothing above."""
        chat = self._subagents.pop(id, None)
        if chat is None:
            return
        branch = choose_branch_name(f"agent-{id[:8]}", self._heads)
        started = chat.header.get("startTime")
        self._heads[branch] = self._builder.start_subagent(
            branch, id=id, parent=parent, call=call, start=id, time=started
        )
        self._add_chat(chat, branch, self._heads[branch])


_KNOWN_KEYS = frozenset({"id", "timestamp", "type", "content", "thoughts", "tokens", "model", "toolCalls"})


def _list_parts(record: JsonObject) -> list[object]:
    """Return the content of a message as parts: its thoughts first, and its calls last."""
    content = record.get("content")
    parts: list[object] = []
    if isinstance(content, str):
        parts = [{"text": content}] if content else []
    elif is_list(content):
        parts = [{"text": part} if isinstance(part, str) else part for part in content]
    elif is_object(content):
        parts = [content]
    if record.get("type") != "gemini":
        return parts
    thoughts = record.get("thoughts")
    has_thoughts = any(is_object(part) and part.get("thought") is True for part in parts)
    for thought in reversed(thoughts if is_list(thoughts) and not has_thoughts else []):
        if is_object(thought):
            subject, text = coerce_string(thought.get("subject")), coerce_string(thought.get("description"))
            parts.insert(0, {"text": f"**{subject}** {text}" if subject else text, "thought": True})
    said = {coerce_string(get_object(part, "functionCall").get("id")) for part in parts if is_object(part)}
    for call in _list_calls(record):
        if coerce_string(call.get("id")) not in said:
            function = {"id": call.get("id"), "name": call.get("name"), "args": get_object(call, "args")}
            parts.append({"functionCall": function})
    return parts


def _list_calls(record: JsonObject) -> list[JsonObject]:
    """Return the tool calls of an answer. Calls that are only in its content have no results."""
    calls, content = record.get("toolCalls"), record.get("content")
    listed = [call for call in calls if is_object(call)] if is_list(calls) else []
    known = {coerce_string(call.get("id")) for call in listed}
    for part in content if is_list(content) else ():
        call = get_object(part, "functionCall")
        if call and coerce_string(call.get("id")) not in known:
            listed.append(call)
    return listed


def _describe_answer(record: JsonObject, message: JsonObject) -> JsonObject:
    """Add model, usage and stop reason to an answer."""
    tokens = get_object(record, "tokens")
    cached = count(tokens.get("cached"))
    usage = {
        "input": max(0, count(tokens.get("input")) - cached),
        "output": count(tokens.get("output")) + count(tokens.get("thoughts")),
        "cacheRead": cached,
        "cacheWrite": 0,
    }
    has_calls = any(block.get("type") == "toolCall" for block in message["content"])
    return {
        **message,
        "api": ApiKind.GOOGLE,
        "provider": "google",
        "model": coerce_string(record.get("model")) or "unknown",
        "usage": complete_usage(usage),
        "stopReason": "toolUse" if has_calls else "stop",
    }


FORMAT = ForeignFormat(
    name=NAME,
    title="Gemini CLI",
    detect=detect,
    read=read,
    find_related=find_related,
    select_sessions=select_sessions,
    write=write_gemini_session,
    settings_file=PROJECTS,
)
