"""opencode: the files of `opencode export`, and its database.

A session is a flat list of messages, in the order of their ids. Undoing a prompt hides the messages from there on, and
the next prompt deletes them. The database still has their texts in its event log, so they become branches.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from sessiontree.convert.base import count, parse_data_url
from sessiontree.core.entries import (
    Body,
    Compaction,
    ContextEdit,
    Custom,
    EntryId,
    JsonObject,
    Message,
)
from sessiontree.core.heads import MAIN
from sessiontree.core.messages import coerce_number, coerce_string, complete_usage, is_list, is_object
from sessiontree.errors import FormatError
from sessiontree.interop.base import (
    Conversation,
    ConversationBuilder,
    FileHead,
    ForeignFile,
    ForeignFormat,
    ListedConversation,
    get_object,
)
from sessiontree.interop.foreign_branches import choose_branch_name
from sessiontree.interop.opencode_database import OpencodeSession, get_id, iter_text_rows, load_session
from sessiontree.interop.opencode_writer import write_opencode_session

NAME = "opencode"
KNOWN_VERSIONS = ("0", "1")
ABORTED = "MessageAbortedError"
CLEARED = "[Old tool result content cleared]"
"""What opencode sends for a result that it pruned."""
STOP_REASONS = {"stop": "stop", "tool-calls": "toolUse", "length": "length"}
BOOKKEEPING = frozenset({"step-start", "step-finish", "patch", "snapshot"})
"""Parts that record work, and are never sent."""

_EXPORT = re.compile(rb'\s*\{\s*"info"\s*:\s*\{')
_SESSION_ID = re.compile(rb'"id"\s*:\s*"ses_')
_TABLES = {
    "session": {"id", "directory", "title"},
    "message": {"id", "session_id", "data"},
    "part": {"id", "message_id", "session_id", "data"},
}


def detect(head: FileHead) -> bool:
    """Return whether a file is an export or a database of opencode."""
    if head.tables:
        return all(columns <= set(head.tables.get(table, ())) for table, columns in _TABLES.items())
    return _EXPORT.match(head.data) is not None and _SESSION_ID.search(head.data) is not None


def read(file: ForeignFile, related: Sequence[ForeignFile]) -> Iterator[Conversation]:
    """Yield the session of an export, or every session of a database with its subagents."""
    rows = list(iter_text_rows(file, "session"))
    if not rows:
        if not next(file.iter_lines(), b"").startswith(b"SQLite format 3"):  # a database may be empty
            yield _SessionReader(_parse_export(file), {}).build()
        return
    for row, below in _group_sessions(rows):
        yield _read_session(file, row, below)


def _group_sessions(rows: Sequence[JsonObject]) -> Iterator[tuple[JsonObject, list[JsonObject]]]:
    """Yield each session that no other one started, with those below it."""
    known = {get_id(row) for row in rows}
    children: dict[str, list[JsonObject]] = {}
    for row in rows:
        parent = coerce_string(row.get("parent_id"))
        if parent in known and parent != get_id(row):
            children.setdefault(parent, []).append(row)
    read: set[str] = set()
    started = {get_id(row) for group in children.values() for row in group}
    # Sessions that started each other have no root: the first of them is read as one.
    for row in sorted(rows, key=lambda row: get_id(row) in started):
        if get_id(row) in read:
            continue
        below = [child for child in _list_below(row, children) if get_id(child) not in read]
        read.update(map(get_id, (row, *below)))
        yield row, below


def list_conversations(file: ForeignFile) -> Iterator[ListedConversation]:
    """Yield the sessions of a database that no other session started, each with the times of those below it."""
    counts = {
        coerce_string(row.get("aggregate_id")): count(row.get("seq")) for row in iter_text_rows(file, "event_sequence")
    }
    for row, below in _group_sessions(list(iter_text_rows(file, "session"))):
        group = [row, *below]
        yield ListedConversation(
            id=get_id(row),
            modified=max(count(one.get("time_updated")) for one in group),
            changes=sum(counts.get(get_id(one), 0) for one in group),
            archived=row.get("time_archived") is not None,
        )


def read_one(file: ForeignFile, id: str) -> Conversation | None:
    """Return one session of a database with its subagents; `None` if the database does not have it."""
    row = next(iter_text_rows(file, "session", id=id), None)
    if row is None:
        return None
    below: list[JsonObject] = []
    seen, waiting = {id}, [id]
    while waiting:
        for child in iter_text_rows(file, "session", parent_id=waiting.pop()):
            if get_id(child) not in seen:
                seen.add(get_id(child))
                below.append(child)
                waiting.append(get_id(child))
    return _read_session(file, row, below)


def _read_session(file: ForeignFile, row: JsonObject, below: Sequence[JsonObject]) -> Conversation:
    """Return a session with the sessions that it started."""
    session = load_session(file, row)
    subagents = {get_id(child): load_session(file, child) for child in below}
    document = {"info": session.info, "messages": session.messages}
    original = json.dumps(document, ensure_ascii=False, indent=2).encode("utf-8", "surrogatepass")
    return _SessionReader(session, subagents).build(original)


def _list_below(row: JsonObject, children: Mapping[str, list[JsonObject]]) -> list[JsonObject]:
    """Return the sessions that a session started, directly or through others."""
    found: list[JsonObject] = []
    seen, waiting = {get_id(row)}, [get_id(row)]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if get_id(child) not in seen:
                seen.add(get_id(child))
                found.append(child)
                waiting.append(get_id(child))
    return found


def _parse_export(file: ForeignFile) -> OpencodeSession:
    document = file.read_document()
    info, messages = get_object(document, "info"), document.get("messages") if is_object(document) else None
    if not info or not is_list(messages):
        raise FormatError(file.name, "not an opencode export, which has `info` and `messages`")
    known = [message for message in messages if is_object(message)]
    known.sort(key=lambda message: get_id(get_object(message, "info")))
    return OpencodeSession(info, known, unread=len(messages) - len(known))


class _SessionReader:
    """Builds the tree of one session: its messages, undone ones too, and the sessions of its subagents."""

    def __init__(self, session: OpencodeSession, subagents: Mapping[str, OpencodeSession]) -> None:
        self._session = session
        self._subagents = dict(subagents)
        info = session.info
        self._builder = ConversationBuilder(
            NAME,
            get_id(info),
            cwd=coerce_string(info.get("directory")),
            version=coerce_string(info.get("version")) or None,
            started=get_object(info, "time").get("created"),
        )
        self._builder.title = coerce_string(info.get("title")) or None
        self._builder.part_of = coerce_string(info.get("parentID")) or None
        self._heads: dict[str, EntryId | None] = {MAIN: None}
        self._ends: dict[str, EntryId | None] = {}
        """The last entry of each message: the result of its last call, if it has any."""
        self._anchors: dict[str, EntryId] = {}
        """For a request to compact, the first message that is still sent."""

    def build(self, original: bytes | None = None) -> Conversation:
        version = self._builder.version or "1"
        if version.partition(".")[0] not in KNOWN_VERSIONS:
            self._builder.report("newer_version", f"written by opencode {version}; known versions are 0 and 1")
        if self._session.unread:
            self._builder.report("malformed_line", f"{self._session.unread} messages are not objects and are left out")
        self._add_session(self._session, MAIN, None)
        for id in list(self._subagents):  # those whose call is not in the session
            self._add_subagent(id, None)
        return self._builder.build(self._heads, original=original)

    def _add_session(self, session: OpencodeSession, branch: str, parent: EntryId | None) -> None:
        """Add all messages of a session. Messages that were undone get separate branches."""
        revert = get_object(session.info, "revert")
        undone_from = coerce_string(revert.get("messageID"))
        if undone_from and revert.get("partID") is not None:
            text = f"only a part of message {undone_from!r} is undone; here all of it is"
            self._builder.report("unsent", text, entry=undone_from)
        for message in session.messages:
            if undone_from and get_id(get_object(message, "info")) == undone_from:
                branch = self._start_branch("undone", parent)
            parent = self._heads[branch] = self._add_message(message, parent, branch)
        branches: dict[str | None, str] = {}
        for id, message in sorted(session.removed.items()):
            above = session.parents.get(id)
            parent = None if above is None else self._ends.get(above)
            name = branches.pop(above, None) or self._start_branch("undone", parent)
            self._heads[name] = self._add_message(message, parent, name)
            branches[id] = name

    def _start_branch(self, name: str, leaf: EntryId | None) -> str:
        unique = choose_branch_name(name, self._heads)
        self._heads[unique] = leaf
        return unique

    def _add_subagent(self, id: str, parent: EntryId | None, call: str = "") -> None:
        """Add the session of a subagent as a branch below the call that started it. Its model saw nothing above."""
        session = self._subagents.pop(id, None)
        if session is None:
            return
        kind, title = coerce_string(session.info.get("agent")), coerce_string(session.info.get("title"))
        branch = self._start_branch(f"agent-{kind or id}", parent)
        time = get_object(session.info, "time").get("created")
        self._heads[branch] = self._builder.start_subagent(
            branch, id=id, parent=parent, call=call, start=id, description=title or None, time=time
        )
        self._add_session(session, branch, self._heads[branch])

    def _add(
        self,
        body: Body,
        id: EntryId,
        parent: EntryId | None,
        branch: str,
        info: JsonObject,
        kept: JsonObject | None = None,
    ) -> EntryId | None:
        times = get_object(info, "time")
        extra = {NAME: kept} if kept else None
        time = times.get("created", times.get("end"))
        return self._builder.add(body, id=id, parent=parent, time=time, branch=branch, extra=extra)

    def _add_message(self, message: JsonObject, parent: EntryId | None, branch: str) -> EntryId | None:
        """Add a message with the results of its calls, and return the last entry."""
        info, listed = get_object(message, "info"), message.get("parts")
        parts = [part for part in listed if is_object(part)] if is_list(listed) else []
        id = get_id(info) or f"{self._builder.id}-message-{len(self._ends)}"
        match info.get("role"):
            case "user":
                end = self._add_prompt(info, parts, id, parent, branch)
            case "assistant":
                end = self._add_answer(info, parts, id, parent, branch)
            case role:
                self._builder.report("unsent", f"message {id!r} has the unknown role {role!r}", entry=id)
                end = self._add(Custom(custom_type="opencode.message", data=message), id, parent, branch, info)
        self._ends[id] = end
        return end

    def _add_prompt(
        self, info: JsonObject, parts: list[JsonObject], id: EntryId, parent: EntryId | None, branch: str
    ) -> EntryId | None:
        requests = [part for part in parts if part.get("type") == "compaction"]
        if requests:
            anchor = requests[0].get("tail_start_id")
            if isinstance(anchor, str) and anchor in self._builder:
                self._anchors[id] = anchor
            data = {"info": info, "parts": parts}
            return self._add(Custom(custom_type="opencode.compaction", data=data), id, parent, branch, info)
        content: list[JsonObject] = []
        kept: list[JsonObject] = []
        for part in parts:
            image = parse_data_url(coerce_string(part.get("url"))) if part.get("type") == "file" else None
            text = part.get("text")
            if part.get("type") == "text" and isinstance(text, str) and part.get("ignored") is not True:
                content.append({"type": "text", "text": text})
                kept += [] if part.keys() <= _TEXT_KEYS else [_without(part, "text")]
            elif image is not None and image["mimeType"].startswith("image/"):
                content.append(image)
                kept.append(_without(part, "url"))
            else:
                kept.append(part)
                self._check_kept_part(part, id)
        message: JsonObject = {"role": "user", "content": content}
        if len(content) == 1 and content[0]["type"] == "text":
            message["content"] = content[0]["text"]
        return self._add(Message(message), id, parent, branch, info, _keep(info, kept, _PROMPT_KEYS))

    def _check_kept_part(self, part: JsonObject, id: EntryId) -> None:
        """Report a part that opencode sends and that has no form here."""
        kind = coerce_string(part.get("type"))
        is_text_file = kind == "file" and part.get("mime") in ("text/plain", "application/x-directory")
        if kind not in BOOKKEEPING and kind != "text" and not is_text_file:
            self._builder.report("unsent", f"message {id!r} has a part of type {kind!r}, which is only kept", entry=id)

    def _add_answer(
        self, info: JsonObject, parts: list[JsonObject], id: EntryId, parent: EntryId | None, branch: str
    ) -> EntryId | None:
        error = get_object(info, "error")
        content: list[JsonObject] = []
        kept: list[JsonObject] = []
        for part in parts:
            block = _read_block(part)
            if block is not None:
                content.append(block)
                kept += [_without(part, "text", "state")] if part.keys() - _TEXT_KEYS else []
            else:
                kept.append(part)
                self._check_kept_part(part, id)
        usage = _read_usage(info)
        text = "".join(block["text"] for block in content if block["type"] == "text")
        extra = _keep(info, kept, _ANSWER_KEYS)
        if info.get("summary") is True and not error and text:
            anchor = self._anchors.get(coerce_string(info.get("parentID")))
            size = int(coerce_number(usage["input"]) + coerce_number(usage["cacheRead"]))
            body: Body = Compaction(summary=text, first_kept=anchor or id, tokens_before=size, usage=usage)
            return self._add(body, id, parent, branch, info, extra)
        message: JsonObject = {
            "role": "assistant",
            "content": content,
            "api": "unknown",
            "provider": coerce_string(info.get("providerID")) or "unknown",
            "model": coerce_string(info.get("modelID")) or "unknown",
            "usage": usage,
            **_read_stop(info, content),
        }
        end = self._add(Message(message), id, parent, branch, info, extra)
        for part in parts:
            if part.get("type") == "tool":
                end = self._add_result(part, end, branch)
        for part in parts:
            started = get_object(get_object(part, "state"), "metadata").get("sessionId")
            if part.get("type") == "tool" and isinstance(started, str):
                self._add_subagent(started, id, coerce_string(part.get("callID")))
        return end

    def _add_result(self, part: JsonObject, parent: EntryId | None, branch: str) -> EntryId | None:
        """Add the result of a tool call. A call that was cut off has none."""
        state = get_object(part, "state")
        status = state.get("status")
        if status not in ("completed", "error"):
            if status not in ("pending", "running"):
                self._builder.report("unsent", f"a tool call has the unknown status {status!r}", entry=parent)
            return parent
        partial = get_object(state, "metadata").get("output")
        is_partial = get_object(state, "metadata").get("interrupted") is True and isinstance(partial, str)
        output = partial if status == "error" and is_partial else state.get("error" if status == "error" else "output")
        content: list[JsonObject] = [{"type": "text", "text": output}] if isinstance(output, str) and output else []
        attachments = state.get("attachments")
        unsent: list[JsonObject] = []
        for attachment in filter(is_object, attachments if is_list(attachments) else ()):
            image = parse_data_url(coerce_string(attachment.get("url")))
            if image is not None and image["mimeType"].startswith("image/"):
                content.append(image)
            else:
                unsent.append(attachment)
        message: JsonObject = {
            "role": "toolResult",
            "toolCallId": coerce_string(part.get("callID")),
            "toolName": coerce_string(part.get("tool")),
            "content": content,
            "isError": status == "error" and not is_partial,
        }
        kept = {name: value for name, value in state.items() if name not in _RESULT_KEYS}
        kept |= {"attachments": unsent} if unsent else {}
        id = get_id(part) or f"{parent}-{message['toolCallId']}"
        end = self._add(Message(message), id, parent, branch, state, kept)
        if get_object(state, "time").get("compacted") is not None:
            edit = ContextEdit(target=id, replacement={"content": CLEARED})
            end = self._add(edit, f"{id}-cleared", end, branch, state)
        return end


_TEXT_KEYS = frozenset({"type", "text", "id", "sessionID", "messageID", "time"})
_PROMPT_KEYS = frozenset({"id", "sessionID", "role", "time"})
_ANSWER_KEYS = _PROMPT_KEYS | {"parentID", "modelID", "providerID", "tokens", "cost", "finish"}
_RESULT_KEYS = frozenset({"status", "input", "output", "error", "attachments"})


def _keep(info: JsonObject, parts: list[JsonObject], known: frozenset[str]) -> JsonObject:
    """Return the fields of a message that have no meaning here, which the entry keeps."""
    kept = {name: value for name, value in info.items() if name not in known}
    return {**kept, **({"parts": parts} if parts else {})}


def _without(part: JsonObject, *names: str) -> JsonObject:
    return {name: value for name, value in part.items() if name not in names}


def _read_block(part: JsonObject) -> JsonObject | None:
    """Return a part of an answer as a block; `None` if it is not part of the conversation."""
    text = part.get("text")
    match part.get("type"):
        case "text" if isinstance(text, str):
            return {"type": "text", "text": text}
        case "reasoning" if isinstance(text, str):
            signature = get_object(get_object(part, "metadata"), "anthropic").get("signature")
            signed = {"thinkingSignature": signature} if isinstance(signature, str) else {}
            return {"type": "thinking", "thinking": text, **signed}
        case "tool":
            given = get_object(part, "state").get("input")
            return {
                "type": "toolCall",
                "id": coerce_string(part.get("callID")),
                "name": coerce_string(part.get("tool")),
                "arguments": given if is_object(given) else {},
            }
        case _:
            return None


def _read_usage(info: JsonObject) -> JsonObject:
    tokens = get_object(info, "tokens")
    cache = get_object(tokens, "cache")
    return complete_usage(
        {
            "input": count(tokens.get("input")),
            "output": count(tokens.get("output")) + count(tokens.get("reasoning")),
            "cacheRead": count(cache.get("read")),
            "cacheWrite": count(cache.get("write")),
            "cost": coerce_number(info.get("cost")),
        }
    )


def _read_stop(info: JsonObject, content: list[JsonObject]) -> JsonObject:
    """Return why an answer ended. opencode sends an aborted answer again, unless it has only thinking."""
    error = get_object(info, "error")
    if not error:
        has_calls = any(block["type"] == "toolCall" for block in content)
        finish = coerce_string(info.get("finish"))
        return {"stopReason": STOP_REASONS.get(finish, "toolUse" if has_calls else "stop")}
    said = get_object(error, "data").get("message")
    text = said if isinstance(said, str) and said else coerce_string(error.get("name")) or "the request failed"
    if error.get("name") != ABORTED:
        return {"stopReason": "error", "errorMessage": text}
    if all(block["type"] == "thinking" for block in content):
        return {"stopReason": "aborted", "errorMessage": text}
    return {"stopReason": "length", "errorMessage": text}


FORMAT = ForeignFormat(
    name=NAME,
    title="opencode",
    detect=detect,
    read=read,
    list_conversations=list_conversations,
    read_one=read_one,
    write=write_opencode_session,
)
