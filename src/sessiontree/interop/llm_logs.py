"""The `logs.db` of the `llm` command.

Newer versions store a tree of messages by hash, and threads that point into it. Threads that were forked from each
other are branches of one session. Older versions log requests and responses, in order.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence

from sessiontree.convert.base import count
from sessiontree.core.entries import Body, Custom, EntryId, JsonObject, Message
from sessiontree.core.heads import MAIN
from sessiontree.core.messages import coerce_string, complete_usage, is_list, is_object
from sessiontree.interop.base import (
    Conversation,
    ConversationBuilder,
    FileHead,
    ForeignFile,
    ForeignFormat,
    get_object,
    read_json,
)
from sessiontree.interop.foreign_branches import choose_branch_name
from sessiontree.interop.row_recorder import RowRecorder

NAME = "llm"


def detect(head: FileHead) -> bool:
    """Return whether a file is a database of `llm`, of any version with conversations."""
    responses, threads = set(head.tables.get("responses", ())), set(head.tables.get("threads", ()))
    return {"conversation_id", "prompt", "response"} <= responses or "tip_message_hash" in threads


def read(file: ForeignFile, related: Sequence[ForeignFile]) -> Iterator[Conversation]:
    """Yield the threads of a database, then the conversations that older versions logged."""
    threads = {coerce_string(row.get("id")): row for row in file.iter_rows("threads")}
    families: dict[str, list[str]] = {}
    for id in threads:
        families.setdefault(_find_origin(id, threads), []).append(id)
    for origin, members in families.items():
        ordered = [origin, *(id for id in members if id != origin)]
        yield _ThreadReader(file, [threads[id] for id in ordered]).build()
    for row in list(file.iter_rows("conversations")):
        yield _ResponseReader(file, row).build()


def _find_origin(id: str, threads: dict[str, JsonObject]) -> str:
    """Return the thread that a thread was forked from, at the end of the chain."""
    seen = {id}
    while (above := coerce_string(threads[id].get("forked_from"))) in threads and above not in seen:
        seen.add(above)
        id = above
    return min(seen) if above in seen else id


class _LogReader:
    """What both kinds of logs share."""

    def __init__(self, file: ForeignFile, id: str, name: object, started: object) -> None:
        self._file = RowRecorder(file)
        self._builder = ConversationBuilder(NAME, id, started=started)
        self._builder.title = coerce_string(name).strip() or None

    def _load_attachment(self, id: object, entry: EntryId, kept: list[JsonObject]) -> list[JsonObject]:
        """Return an image as a block. Other attachments, and attachments without content, go to `kept`."""
        row = next(self._file.iter_rows("attachments", id=coerce_string(id)), None) or {"id": id}
        content, kind = row.get("content"), coerce_string(row.get("type"))
        if isinstance(content, bytes) and content and kind.startswith("image/"):
            return [{"type": "image", "data": b64encode(content).decode(), "mimeType": kind}]
        data = {"content": b64encode(content).decode()} if isinstance(content, bytes) else {}
        kept.append({name: value for name, value in {**row, **data}.items() if value is not None})
        where = coerce_string(row.get("path")) or coerce_string(row.get("url")) or "an attachment"
        self._builder.report("unsent", f"entry {entry!r} has {where}, which is only kept", entry=entry)
        return []

    def _add(
        self,
        body: Body,
        id: EntryId,
        parent: EntryId | None,
        time: object,
        branch: str,
        kept: JsonObject | None = None,
    ) -> EntryId | None:
        extra = {NAME: kept} if kept else None
        return self._builder.add(body, id=id, parent=parent, time=time, branch=branch, extra=extra)


def _describe_answer(content: list[JsonObject], row: JsonObject) -> JsonObject:
    """Return an answer with the model and the usage of a turn or a response."""
    has_calls = any(block["type"] == "toolCall" for block in content)
    details = read_json(coerce_string(row.get("token_details")))
    cached = count(get_object(details, "prompt_tokens_details").get("cached_tokens"))
    usage = {
        "input": max(0, count(row.get("input_tokens")) - cached),
        "output": count(row.get("output_tokens")),
        "cacheRead": cached,
        "cacheWrite": 0,
    }
    return {
        "role": "assistant",
        "content": content,
        "api": "unknown",
        "provider": "unknown",
        "model": coerce_string(row.get("resolved_model")) or coerce_string(row.get("model")) or "unknown",
        "usage": complete_usage(usage),
        "stopReason": "toolUse" if has_calls else "stop",
    }


def _build_call(id: str, name: object, arguments: object) -> JsonObject:
    given = read_json(arguments) if isinstance(arguments, str) else arguments
    return {
        "type": "toolCall",
        "id": id,
        "name": coerce_string(name),
        "arguments": given if is_object(given) else {},
    }


def _build_result(call: str, name: object, output: object, images: list[JsonObject], *, failed: bool) -> JsonObject:
    text = output if isinstance(output, str) else ""
    return {
        "role": "toolResult",
        "toolCallId": call,
        "toolName": coerce_string(name),
        "content": [*([{"type": "text", "text": text}] if text else []), *images],
        "isError": failed,
    }


def _list_kept(row: JsonObject, names: Sequence[str]) -> JsonObject:
    return {name: row[name] for name in names if row.get(name) not in (None, "")}


class _ThreadReader(_LogReader):
    """Builds one session from threads that share messages."""

    def __init__(self, file: ForeignFile, threads: list[JsonObject]) -> None:
        first = threads[0]
        super().__init__(file, coerce_string(first.get("id")), first.get("name"), first.get("datetime_utc"))
        self._threads = threads
        self._turns: dict[str, JsonObject] = {}
        """The model call that ended with each message."""
        for thread in threads:
            for turn in self._file.iter_rows("turns", thread_id=coerce_string(thread.get("id"))):
                self._turns.setdefault(coerce_string(turn.get("tip_message_hash")), turn)

    def build(self) -> Conversation:
        heads: dict[str, EntryId | None] = {}
        for number, thread in enumerate(self._threads):
            name = choose_branch_name(coerce_string(thread.get("name")), heads) if number else MAIN
            heads[name] = self._add_thread(thread, name)
        for turn in self._turns.values():
            self._builder.add_alias(coerce_string(turn.get("id")), coerce_string(turn.get("tip_message_hash")))
        original = self._file.dump("threads", self._threads[0])
        return self._builder.build(heads, original=original)

    def _add_thread(self, thread: JsonObject, branch: str) -> EntryId | None:
        """Add the messages of a thread that no earlier thread has, and return its leaf."""
        chain: list[tuple[JsonObject, object]] = []
        seen: set[str] = set()
        time: object = thread.get("datetime_utc")
        hash = coerce_string(thread.get("tip_message_hash"))
        while hash and hash not in self._builder and hash not in seen:
            seen.add(hash)
            row = next(self._file.iter_rows("messages", hash=hash), None)
            if row is None:
                self._builder.report("orphan", f"message {hash!r} is not in the database", entry=hash)
                break
            time = self._turns.get(hash, {}).get("datetime_utc", time)
            chain.append((row, time))
            hash = coerce_string(row.get("parent_hash"))
        parent = hash if hash in self._builder else None
        for row, moment in reversed(chain):
            parent = self._add_message(row, parent, moment, branch)
        return parent

    def _add_message(self, row: JsonObject, parent: EntryId | None, time: object, branch: str) -> EntryId | None:
        id, role = coerce_string(row.get("hash")), coerce_string(row.get("role"))
        parts = sorted(self._file.iter_rows("parts", message_hash=id), key=lambda part: count(part.get("position")))
        content: list[JsonObject] = []
        results: list[JsonObject] = []
        kept: list[JsonObject] = []
        for part in parts:
            payload = read_json(coerce_string(part.get("payload")))
            fields: JsonObject = payload if is_object(payload) else {}
            match part.get("type"):
                case "text":
                    content.append({"type": "text", "text": self._read_text(part, fields)})
                case "reasoning":
                    thinking = self._read_text(part, fields)
                    content += [{"type": "thinking", "thinking": thinking}] if thinking else []
                    kept += [fields] if fields else []
                case "tool_call":
                    call = coerce_string(fields.get("tool_call_id")) or f"{id}-{len(content)}"
                    content.append(_build_call(call, part.get("tool_name"), fields.get("arguments")))
                case "tool_result":
                    results.append(self._read_result(id, part, fields, kept))
                case "attachment":
                    content += self._load_attachment(get_object(fields, "attachment").get("id"), id, kept)
                case kind:
                    kept.append({"type": kind, **fields})
                    self._builder.report("unsent", f"message {id!r} has a part of type {kind!r}, which is only kept")
        messages = results
        if content or not results:
            messages = [*results, *self._build_messages(role, content, id)]
        turn = self._turns.get(id, {})
        extra = _list_kept(turn, ("options_json", "schema_id", "duration_ms")) | ({"parts": kept} if kept else {})
        for number, message in enumerate(messages, 1):
            is_last = number == len(messages)
            body = Message(message) if "role" in message else Custom(custom_type="llm.message", data=message)
            name = id if is_last else f"{id}-{number}"
            parent = self._add(body, name, parent, time, branch, extra if is_last else None)
        return parent

    def _build_messages(self, role: str, content: list[JsonObject], id: str) -> list[JsonObject]:
        match role:
            case "system":
                return [{"role": "system", "content": "\n\n".join(coerce_string(b.get("text")) for b in content)}]
            case "assistant":
                return [_describe_answer(content, self._turns.get(id, {}))]
            case "user" | "tool":
                is_text = len(content) == 1 and content[0]["type"] == "text"
                return [{"role": "user", "content": content[0]["text"] if is_text else content}]
            case _:
                self._builder.report("unsent", f"message {id!r} has the unknown role {role!r}", entry=id)
                return [{"name": role, "content": content}]

    def _read_text(self, part: JsonObject, payload: JsonObject) -> str:
        """Return the text of a part, of which pieces may be stored as fragments."""
        pieces = payload.get("text_ref")
        if not is_list(pieces):
            text = part.get("text")
            return text if isinstance(text, str) else coerce_string(payload.get("text"))
        texts: list[str] = []
        for piece in filter(is_object, pieces):
            fragment = piece.get("fragment")
            if isinstance(fragment, int):
                row = next(self._file.iter_rows("fragments", id=fragment), None) or {}
                texts.append(coerce_string(row.get("content")))
            else:
                texts.append(coerce_string(piece.get("literal")))
        return "".join(texts)

    def _read_result(self, id: str, part: JsonObject, payload: JsonObject, kept: list[JsonObject]) -> JsonObject:
        attachments = payload.get("attachments")
        images: list[JsonObject] = []
        for attachment in filter(is_object, attachments if is_list(attachments) else ()):
            images += self._load_attachment(attachment.get("id"), id, kept)
        call, failed = coerce_string(payload.get("tool_call_id")), payload.get("exception") is not None
        return _build_result(call, part.get("tool_name"), payload.get("output"), images, failed=failed)


class _ResponseReader(_LogReader):
    """Builds one session from the responses that an older version logged for a conversation."""

    def __init__(self, file: ForeignFile, row: JsonObject) -> None:
        id = coerce_string(row.get("id"))
        first = next(file.iter_rows("responses", conversation_id=id), None)
        super().__init__(file, id, row.get("name"), None if first is None else first.get("datetime_utc"))
        self._row = row
        rows = list(self._file.iter_rows("responses", conversation_id=id))
        self._responses = sorted(rows, key=lambda row: coerce_string(row.get("id")))
        self._system = ""

    def build(self) -> Conversation:
        leaf: EntryId | None = None
        for row in self._responses:
            leaf = self._add_response(row, leaf)
        return self._builder.build({MAIN: leaf}, original=self._file.dump("conversations", self._row))

    def _add_response(self, row: JsonObject, parent: EntryId | None) -> EntryId | None:
        """Add a request, which has a system prompt, results and a prompt, and its response."""
        id, time = coerce_string(row.get("id")), row.get("datetime_utc")
        system = self._join_fragments("system_fragments", id, row.get("system"))
        if system and system != self._system:
            self._system = system
            message: JsonObject = {"role": "system", "content": system}
            parent = self._add(Message(message), f"{id}-system", parent, time, MAIN)
        for result in self._file.iter_rows("tool_results", response_id=id):
            images: list[JsonObject] = []
            kept: list[JsonObject] = []
            for link in self._file.iter_rows("tool_results_attachments", tool_result_id=count(result.get("id"))):
                images += self._load_attachment(link.get("attachment_id"), id, kept)
            call, failed = coerce_string(result.get("tool_call_id")), result.get("exception") is not None
            message = _build_result(call, result.get("name"), result.get("output"), images, failed=failed)
            name = f"{id}-result-{count(result.get('id'))}"
            parent = self._add(Message(message), name, parent, time, MAIN, {"attachments": kept} if kept else None)
        parent = self._add_prompt(row, id, parent)
        reasoning, text = coerce_string(row.get("reasoning")), coerce_string(row.get("response"))
        content: list[JsonObject] = [{"type": "thinking", "thinking": reasoning}] if reasoning else []
        content += [{"type": "text", "text": text}] if text else []
        for call in self._file.iter_rows("tool_calls", response_id=id):
            stored = coerce_string(call.get("tool_call_id")) or f"{id}-call-{count(call.get('id'))}"
            content.append(_build_call(stored, call.get("name"), call.get("arguments")))
        extra = _list_kept(row, ("options_json", "schema_id", "duration_ms"))
        return self._add(Message(_describe_answer(content, row)), id, parent, time, MAIN, extra)

    def _add_prompt(self, row: JsonObject, id: str, parent: EntryId | None) -> EntryId | None:
        name = f"{id}-prompt"
        kept: list[JsonObject] = []
        text = self._join_fragments("prompt_fragments", id, row.get("prompt"))
        content: list[JsonObject] = [{"type": "text", "text": text}] if text else []
        links = list(self._file.iter_rows("prompt_attachments", response_id=id))
        for link in sorted(links, key=lambda link: count(link.get("order"))):
            content += self._load_attachment(link.get("attachment_id"), name, kept)
        if not content and not kept:
            return parent
        is_text = len(content) == 1 and content[0]["type"] == "text"
        message: JsonObject = {"role": "user", "content": text if is_text else content}
        extra = {"attachments": kept} if kept else None
        return self._add(Message(message), name, parent, row.get("datetime_utc"), MAIN, extra)

    def _join_fragments(self, table: str, id: str, text: object) -> str:
        """Return a prompt with its fragments before it, as `llm` sends it."""
        links = sorted(self._file.iter_rows(table, response_id=id), key=lambda link: count(link.get("order")))
        rows = [next(self._file.iter_rows("fragments", id=count(link.get("fragment_id"))), None) for link in links]
        texts = [coerce_string(row.get("content")) for row in rows if row is not None]
        return "\n".join([*texts, coerce_string(text)]) if texts else coerce_string(text)


FORMAT = ForeignFormat(name=NAME, title="llm", detect=detect, read=read)
