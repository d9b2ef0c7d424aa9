"""Codex: `~/.codex/sessions/Y/M/D/rollout-TIME-THREAD.jsonl`, a list of lines in the order in which things happened.

What the model sees is in `response_item` lines, in the form of the Responses API. `event_msg` lines repeat it for a
screen; only failures and aborts are read from them.

- A file can continue another one: `history_base` names the thread and the first ordinal that it does not share. Forks
  and reverts are such files. They join into one tree, with the turns that were left as branches.
- Older files mark a revert in place, with the event `thread_rolled_back`.
- `compacted` replaces the whole history, by `replacement_history`. Its messages follow the compaction as copies.
- A subagent has a separate file. It becomes a branch under the call that started it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from sessiontree.convert.base import count
from sessiontree.convert.openai_responses import from_openai_responses
from sessiontree.core.entries import (
    Compaction,
    ContextEdit,
    Custom,
    CustomMessage,
    EntryId,
    JsonObject,
    Message,
    Opaque,
)
from sessiontree.core.heads import MAIN
from sessiontree.core.messages import coerce_string, complete_usage, extract_text, get_tool_calls, is_list, is_object
from sessiontree.errors import FormatError, InvalidOperation
from sessiontree.interop.base import (
    Conversation,
    ConversationBuilder,
    FileHead,
    ForeignFile,
    ForeignFormat,
    get_object,
    read_record,
)
from sessiontree.interop.codex_writer import write_codex_session

NAME = "codex"
NOTE = "codex.note"
"""The custom type of user messages that the program wrote."""
HISTORY = "codex.history"
"""The custom type of messages of the user before a compaction, which Codex repeats after it."""
PROGRAM_TEXT = re.compile(
    r"\s*(# AGENTS\.md instructions|<(environment_context|turn_aborted|subagent_notification|user_instructions|"
    r"skills_instructions|permissions instructions|user_shell_command)[ >])"
)
ANSWER_ITEMS = frozenset({"reasoning", "function_call", "custom_tool_call", "local_shell_call", "web_search_call"})
RESULT_ITEMS = frozenset({"function_call_output", "custom_tool_call_output"})
KEPT_FIELDS = {
    "message": ("type", "role", "content", "phase"),
    "reasoning": ("type", "id", "summary", "content", "encrypted_content"),
    "function_call": ("type", "name", "arguments", "call_id", "namespace"),
    "custom_tool_call": ("type", "name", "input", "call_id"),
    "function_call_output": ("type", "call_id", "output"),
    "custom_tool_call_output": ("type", "call_id", "output"),
}
"""The fields of items that mean something to a model. The rest is bookkeeping."""
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
MAX_BASES = 100
"""How many files one conversation can build on."""


def detect(head: FileHead) -> bool:
    """Return whether a file starts with the facts of a Codex session."""
    records = head.read_records()
    if not records:
        return False
    first = records[0]
    if first.get("type") == "session_meta":
        return is_object(first.get("payload"))
    is_wrapped = any(record.get("type") in ("response_item", "event_msg") and "payload" in record for record in records)
    return is_wrapped or ("instructions" in first and "timestamp" in first and isinstance(first.get("id"), str))


def find_related(file: ForeignFile) -> Iterable[str]:
    """Return the files of the thread, of its subagents and of threads that it builds on, and the index of names."""
    ids: set[str] = set(_UUID.findall(file.name.rpartition("/")[2])[:1])
    for line in file.iter_lines():
        if b"history_base" in line or b"forked_from_id" in line or b"agent_id" in line or b"thread_spawn" in line:
            ids.update(_find_thread_ids(read_record(line) or {}))
    found = [f"{folder}rollout-*{id}*.jsonl" for id in sorted(ids) for folder in ("", "../../../*/*/*/")]
    return [*found, "../../../../session_index.jsonl"]


def _find_thread_ids(record: JsonObject) -> Iterator[str]:
    payload = get_object(record, "payload")
    values = [get_object(payload, "history_base").get("thread_id"), payload.get("forked_from_id")]
    if coerce_string(payload.get("type")) in RESULT_ITEMS:
        found = _UUID.findall(_find_agent(payload.get("output")))
        values += found[:1]
    yield from (value for value in values if isinstance(value, str) and _UUID.fullmatch(value))


def _find_agent(output: object) -> str:
    """Return the part of a result that names the subagent that the call started."""
    text = output if isinstance(output, str) else ""
    return text[text.find('"agent_id"') :] if '"agent_id"' in text else ""


def select_sessions(paths: Sequence[str]) -> Sequence[str]:
    """Return the newest file of each thread. Names start with the time."""
    newest: dict[str, str] = {}
    for path in sorted(paths, key=lambda path: path.rpartition("/")[2]):
        ids = _UUID.findall(path.rpartition("/")[2])
        newest[ids[0] if ids else path] = path
    return list(newest.values())


def read(file: ForeignFile, related: Sequence[ForeignFile]) -> Iterator[Conversation]:
    """Yield the conversation of a rollout file, with the files that it builds on and its subagents."""
    main = _Rollout(file)
    if main.is_empty:
        raise FormatError(file.name, "no line of a Codex session")
    others = [_Rollout(other) for other in related if not other.name.endswith("session_index.jsonl")]
    names: dict[str, str] = {}
    for index in (other for other in related if other.name.endswith("session_index.jsonl")):
        for line in index.iter_lines():
            record = read_record(line) or {}
            if isinstance(record.get("id"), str) and isinstance(record.get("thread_name"), str):
                names[record["id"]] = record["thread_name"]
    yield _ThreadWriter(main, [other for other in others if not other.is_empty], names).build()


class _Item(Struct):
    """One line of a rollout."""

    kind: str
    payload: JsonObject
    time: object
    ordinal: int
    is_summary: bool = False
    """Whether it is the answer of the model that wrote a summary for a compaction."""


class _Rollout:
    """The lines of one rollout file."""

    def __init__(self, file: ForeignFile) -> None:
        self.name = file.name.rpartition("/")[2]
        ids = _UUID.findall(self.name)
        self.file = file
        self.meta: JsonObject = {}
        self.problems: list[tuple[str, int]] = []
        """The findings while the items are read."""
        self.has_items = next(self.iter_items(), None) is not None
        self.problems.clear()
        self.thread = coerce_string(self.meta.get("id")) or (ids[0] if ids else self.name)
        self.key: str = ids[-1] if ids else self.thread
        """The id by which other files refer to this one: the last one in its name."""
        base = get_object(self.meta, "history_base")
        self.base = coerce_string(base.get("thread_id")) or None
        self.base_end = count(base.get("end_ordinal_exclusive"))
        source = self.meta.get("source")
        spawn = get_object(get_object(source, "subagent"), "thread_spawn")
        self.spawned_by = coerce_string(spawn.get("parent_thread_id")) or None
        self.nickname = coerce_string(spawn.get("agent_nickname"))

    @property
    def is_empty(self) -> bool:
        return not self.has_items and not self.meta

    def iter_items(self) -> Iterator[_Item]:
        """Yield the items. They are read each time, since a rollout can have a million of them."""
        for number, line in enumerate(self.file.iter_lines(), 1):
            item = self._read_line(line, number) if line.strip() else None
            if item is not None:
                yield item

    def _read_line(self, line: bytes, number: int) -> _Item | None:
        record = read_record(line)
        if record is None:
            self.problems.append(("not a JSON object", number))
            return None
        kind, payload = record.get("type"), record.get("payload")
        ordinal = record.get("ordinal")
        if not is_object(payload):
            # The first versions wrote items as they are, below a line with the facts of the session.
            if isinstance(record.get("id"), str) and "instructions" in record and self.meta in ({}, record):
                self.meta = self.meta or record
                return None
            kind, payload = ("response_item", record) if isinstance(kind, str) and kind in KEPT_FIELDS else (None, {})
        if not isinstance(kind, str):
            self.problems.append(("not a line of a Codex session", number))
        elif kind == "session_meta":
            self.meta = self.meta or payload
        else:
            return _Item(
                kind,
                payload,
                record.get("timestamp"),
                ordinal if isinstance(ordinal, int) and not isinstance(ordinal, bool) else number - 1,
                get_object(record, "metadata").get("compaction_output") is True,
            )
        return None


class _ThreadWriter:
    """Writes the rollouts of a thread as one tree."""

    def __init__(self, main: _Rollout, others: list[_Rollout], names: dict[str, str]) -> None:
        self._main = main
        self._others = others
        self._builder = ConversationBuilder(
            NAME,
            main.thread,
            cwd=coerce_string(main.meta.get("cwd")),
            version=coerce_string(main.meta.get("cli_version")) or None,
            started=main.meta.get("timestamp"),
            lines=main.file.create_line_buffer(),
        )
        self._builder.title = names.get(main.thread)
        self._builder.part_of = main.spawned_by
        self._heads: dict[str, EntryId | None] = {}
        self._written: dict[str, _RolloutWriter] = {}
        self._reverts = 0

    def build(self) -> Conversation:
        main = self._write(self._main, MAIN)
        self._heads[MAIN] = main.tail
        for other in self._others:
            if other.spawned_by is None and other.key not in self._written and self._is_connected(other):
                writer = self._write(other, self.name_revert())
                self._heads[writer.branch] = writer.tail
        for agent in (other for other in self._others if other.spawned_by is not None):
            if agent.key not in self._written:
                self._write_agent(agent)
        self._heads = {MAIN: self._heads.pop(MAIN), **self._heads}
        return self._builder.build(self._heads)

    def name_revert(self) -> str:
        self._reverts += 1
        return f"revert-{self._reverts}"

    def leave_branch(self, name: str, leaf: EntryId | None) -> None:
        self._heads[name] = leaf

    def _is_connected(self, other: _Rollout) -> bool:
        """Return whether a file is of the same thread, or builds on one that is in the tree."""
        return other.thread == self._main.thread

    def _write(self, rollout: _Rollout, branch: str, parent: EntryId | None = None) -> _RolloutWriter:
        """Write a file below the files that it builds on."""
        chain = [rollout]
        while (base := self._find_base(chain[-1])) is not None and base not in chain and len(chain) < MAX_BASES:
            if base.key in self._written:
                break
            chain.append(base)
        for current in reversed(chain):
            start, base = parent, self._find_base(current)
            if current.base is not None:
                if base is None or base.key not in self._written:
                    text = (
                        f"{current.name} continues thread {current.base}, which is missing; only the new part was read"
                    )
                    self._builder.report("orphan", text, severity="fault")
                else:
                    start = self._written[base.key].find_tail(current.base_end)
            name = branch if current is rollout else self._name_base(current)
            limit = None
            if current is not rollout:
                follower = chain[chain.index(current) - 1]
                limit = follower.base_end
            writer = _RolloutWriter(self, self._builder, current, name, start)
            self._written[current.key] = writer
            writer.write(shared_until=limit, shared_branch=branch)
            for message, number in current.problems:
                self._builder.report("malformed_line", f"line {number} of {current.name}: {message}", line=number)
            if current is not rollout and writer.has_own_talk:
                self._heads[name] = writer.tail
        return self._written[rollout.key]

    def _name_base(self, base: _Rollout) -> str:
        return self.name_revert() if base.thread == self._main.thread else f"thread-{base.key[-12:]}"

    def _find_base(self, rollout: _Rollout) -> _Rollout | None:
        if rollout.base is None:
            return None
        return next((other for other in (self._main, *self._others) if other.key == rollout.base), None)

    def _write_agent(self, agent: _Rollout) -> None:
        found = next((at for writer in self._written.values() if (at := writer.agents.get(agent.thread))), None)
        if found is None:
            return
        caller, call = found
        name = f"agent-{agent.nickname or agent.key[-12:]}"
        if name in self._heads:
            name = f"agent-{agent.key[-12:]}"
        start = self._builder.start_subagent(
            name, id=agent.key, parent=caller, call=call, time=agent.meta.get("timestamp")
        )
        self._heads[name] = self._write(agent, name, start).tail


class _RolloutWriter:
    """Writes the lines of one rollout below an entry."""

    def __init__(
        self,
        thread: _ThreadWriter,
        builder: ConversationBuilder,
        rollout: _Rollout,
        branch: str,
        parent: EntryId | None,
    ) -> None:
        self.branch = branch
        self.tail = parent
        self.agents: dict[str, tuple[EntryId, str]] = {}
        """The entries with the calls that started subagents, and the ids of the calls, by thread."""
        self.has_own_talk = False
        """Whether messages follow the part that another file shares."""
        self._thread = thread
        self._builder = builder
        self._rollout = rollout
        self._current = branch
        self._tails: list[tuple[int, EntryId | None]] = []
        self._start = parent
        self._pending: list[_Item] = []
        self._model: str | None = None
        self._provider = coerce_string(rollout.meta.get("model_provider")) or "openai"
        self._turns: list[EntryId | None] = []
        """Where each turn of the user began."""
        self._questions: list[tuple[EntryId, EntryId]] = []
        """Messages of the user, for a compaction that keeps them: the first entry of each, and the last one."""
        self._callers: dict[str, EntryId] = {}
        self._tools: dict[str, str] = {}
        self._summary_usage: JsonObject | None = None
        self._is_summary_next = False

    def find_tail(self, end: int) -> EntryId | None:
        """Return the last entry of the lines before an ordinal."""
        tail = self._start
        for ordinal, id in self._tails:
            if ordinal >= end:
                break
            tail = id
        return tail

    def write(self, *, shared_until: int | None, shared_branch: str) -> None:
        last = 0
        for item in self._rollout.iter_items():
            last = item.ordinal
            is_shared = shared_until is not None and item.ordinal < shared_until
            if shared_until is not None and self._pending and not is_shared and self._current != self.branch:
                self._end_answer()
                self._tails.append((shared_until - 1, self.tail))
            self._current = shared_branch if is_shared else self.branch
            before = self.tail
            self._write_item(item)
            if not self._tails or self._tails[-1][1] != self.tail:
                self._tails.append((item.ordinal, self.tail))
            if not is_shared and self.tail != before:
                self.has_own_talk = True
        self._end_answer()
        self._tails.append((last, self.tail))

    def _write_item(self, item: _Item) -> None:
        match item.kind:
            case "response_item":
                self._write_response_item(item)
            case "event_msg":
                self._write_event(item)
            case "turn_context":
                self._model = coerce_string(item.payload.get("model")) or self._model
            case "token_usage_record":
                self._note_usage(_read_usage(item.payload.get("usage")))
            case "compacted":
                self._write_compaction(item)
            case _:
                pass

    def _note_usage(self, usage: JsonObject | None) -> None:
        if self._is_summary_next:
            self._summary_usage, self._is_summary_next = usage, False
        else:
            self._end_answer(usage)

    def _write_response_item(self, item: _Item) -> None:
        payload = item.payload
        kind, role = coerce_string(payload.get("type")), payload.get("role")
        if item.is_summary:
            self._end_answer()
            self._is_summary_next = True
            self._builder.add_alias(self._get_id(item), self.tail)
        elif kind in ANSWER_ITEMS or (kind == "message" and role == "assistant"):
            self._pending.append(item)
        elif kind == "message" and role in ("developer", "system"):
            self._end_answer()
            self._add(Custom(custom_type="codex.instructions", data=payload.get("content")), item)
        else:
            self._end_answer()
            self._write_input(item)

    def _write_input(self, item: _Item) -> None:
        """Write a message of the user or the result of a call."""
        for body in self._convert([item]):
            message = body.message
            if message["role"] == "toolResult":
                call = message["toolCallId"]
                self._add(Message({**message, "toolName": self._tools.get(call, message["toolName"])}), item)
                for agent in _UUID.findall(_find_agent(item.payload.get("output")))[:1]:
                    if call in self._callers:
                        self.agents[agent] = (self._callers[call], call)
            elif PROGRAM_TEXT.match(extract_text(message["content"])):
                self._add(CustomMessage(custom_type=NOTE, content=message["content"], display=False), item)
            else:
                self._turns.append(self.tail)
                self._add(body, item)
                if self.tail is not None:
                    self._questions.append((self.tail, self.tail))

    def _convert(self, items: Sequence[_Item]) -> list[Message]:
        """Return items as messages. Unknown items are kept as an entry that no model sees."""
        cleaned = [_clean_item(item.payload) for item in items]
        try:
            return list(from_openai_responses(cleaned, provider=self._provider))
        except InvalidOperation as error:
            id = self._get_id(items[-1])
            self._builder.report("malformed_line", f"entry {id!r} is not understood: {error}", entry=id)
            self._add(Opaque(type="codex.items", fields={"items": [item.payload for item in items]}), items[-1])
            return []

    def _end_answer(self, usage: JsonObject | None = None) -> None:
        """Write the items of an answer as one message, with the id of the last item."""
        items, self._pending = self._pending, []
        if not items:
            return
        for body in self._convert(items):
            message: JsonObject = {**body.message, "provider": self._provider, "model": self._model or "unknown"}
            calls = list(get_tool_calls(message))
            message["usage"] = complete_usage(usage)
            message["stopReason"] = "toolUse" if calls else "stop"
            self._add(Message(message), items[-1])
            for call in calls:
                self._tools[call.id] = call.name
                if self.tail is not None:
                    self._callers[call.id] = self.tail
        for item in items[:-1]:
            self._builder.add_alias(self._get_id(item), self.tail)

    def _write_event(self, item: _Item) -> None:
        match item.payload.get("type"):
            case "task_complete" if is_object(item.payload.get("error")):
                self._end_answer()
                text = coerce_string(item.payload["error"].get("message")) or "the request failed"
                self._add_failure(item, "error", text)
            case "turn_aborted":
                self._end_answer()
                self._add_failure(item, "aborted", None)
            case "token_count" if self._pending:
                usage = get_object(item.payload, "info").get("last_token_usage")
                self._note_usage(_read_usage(usage))
            case "thread_rolled_back":
                self._end_answer()
                self._roll_back(count(item.payload.get("num_turns")))
            case _:
                pass

    def _add_failure(self, item: _Item, reason: str, text: str | None) -> None:
        message: JsonObject = {
            "role": "assistant",
            "content": [],
            "api": "openai-responses",
            "provider": self._provider,
            "model": self._model or "unknown",
            "usage": complete_usage(None),
            "stopReason": reason,
        }
        if text is not None:
            message["errorMessage"] = text
        self._add(Message(message), item)

    def _roll_back(self, turns: int) -> None:
        """Go back before the last turns of the user. They stay as a branch."""
        if not turns or not self._turns:
            return
        turns = min(turns, len(self._turns))
        self._thread.leave_branch(self._thread.name_revert(), self.tail)
        self.tail = self._turns[-turns]
        del self._turns[-turns:]
        del self._questions[-turns:]

    def _write_compaction(self, item: _Item) -> None:
        self._end_answer()
        summary = coerce_string(item.payload.get("message"))
        id = self._get_id(item)
        usage = self._summary_usage or {}
        tokens = sum(count(usage.get(name)) for name in ("input", "cacheRead", "cacheWrite"))
        self._add(Compaction(summary=summary, first_kept=id, tokens_before=tokens, usage=self._summary_usage), item)
        self._summary_usage, self._is_summary_next = None, False
        # The summary comes last here. A compaction would put it first, so its place is taken by the messages below.
        self._add(ContextEdit(target=id), item, id=f"{id}-edit")
        history = item.payload.get("replacement_history")
        if not is_list(history):
            copies: list[tuple[Message | CustomMessage, EntryId]] = [
                (self._read_question(id), copied) for copied, id in self._questions
            ]
            copies.append((_build_note(summary), id))
        else:
            copies = list(self._read_history(history, item, summary, id))
        self._questions = []
        for number, (body, copied) in enumerate(copies, 1):
            if isinstance(body, Message) and body.message["role"] == "user":
                self._questions.append((copied, f"{id}-{number}"))
                body = CustomMessage(custom_type=HISTORY, content=body.message["content"], display=False)
            self._add(body, item, id=f"{id}-{number}", extra={"copiedFrom": copied})

    def _read_question(self, id: EntryId) -> Message:
        body = self._builder.get_body(id) if id in self._builder else None
        content = body.content if isinstance(body, CustomMessage) else None
        return body if isinstance(body, Message) else Message({"role": "user", "content": content or ""})

    def _read_history(
        self, history: list[Any], item: _Item, summary: str, id: EntryId
    ) -> Iterator[tuple[Message | CustomMessage, EntryId]]:
        """Yield the messages with which a compaction replaces the conversation, each with its original."""
        for value in history:
            if not is_object(value) or value.get("role") in ("developer", "system"):
                continue
            for body in self._convert([_Item("response_item", value, item.time, item.ordinal)]):
                text = extract_text(body.message["content"])
                if text == summary:
                    yield _build_note(summary), id
                elif PROGRAM_TEXT.match(text):
                    yield CustomMessage(custom_type=NOTE, content=body.message["content"], display=False), id
                else:
                    yield body, coerce_string(value.get("id")) or id

    def _add(
        self,
        body: Message | CustomMessage | Custom | Compaction | ContextEdit | Opaque,
        item: _Item,
        *,
        id: EntryId | None = None,
        extra: JsonObject | None = None,
    ) -> None:
        self.tail = self._builder.add(
            body,
            id=id or self._get_id(item),
            parent=self.tail,
            time=item.time,
            branch=self._current,
            extra=extra,
        )

    def _get_id(self, item: _Item) -> EntryId:
        """Return the id of an item, or one made of the thread and the ordinal."""
        id = item.payload.get("id") if item.kind == "response_item" else None
        return id if isinstance(id, str) and id else f"{self._rollout.key}-{item.ordinal}"


def _build_note(summary: str) -> CustomMessage:
    return CustomMessage(custom_type=NOTE, content=summary, display=False)


def _clean_item(payload: JsonObject) -> JsonObject:
    kept = KEPT_FIELDS.get(coerce_string(payload.get("type")))
    if kept is None:
        return payload
    item = {key: payload[key] for key in kept if key in payload}
    if item["type"] == "reasoning":
        item["id"] = coerce_string(item.get("id"))
    return item


def _read_usage(usage: Any) -> JsonObject | None:
    if not is_object(usage):
        return None
    read, written = count(usage.get("cached_input_tokens")), count(usage.get("cache_write_input_tokens"))
    return {
        "input": max(0, count(usage.get("input_tokens")) - read - written),
        "output": count(usage.get("output_tokens")),
        "cacheRead": read,
        "cacheWrite": written,
    }


FORMAT = ForeignFormat(
    name=NAME,
    title="Codex",
    detect=detect,
    read=read,
    find_related=find_related,
    select_sessions=select_sessions,
    write=write_codex_session,
)
