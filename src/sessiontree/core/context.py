"""Context: what the model sees at an entry of the tree.

`build_context` turns a path into messages in wire form. `Context.to_llm` turns these into the messages of a request.
`context_explanation` uses the same projection to explain it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from sessiontree.core.conversion_result import ConvertedMessages
from sessiontree.core.entries import (
    Body,
    BranchSummary,
    Compaction,
    ContextEdit,
    CustomMessage,
    Entry,
    EntryId,
    JsonObject,
    Message,
    ModeChange,
    ModelChange,
    RuleInjection,
)
from sessiontree.core.late_imports import load
from sessiontree.core.messages import (
    build_text_blocks,
    coerce_string,
    convert_for_model,
    estimate_tokens,
    extract_text,
    get_answered_call,
    get_model,
    get_role,
    get_tool_calls,
    is_failed_turn,
    is_list,
    is_object,
)
from sessiontree.core.timestamps import parse_timestamp
from sessiontree.core.tree import Tree
from sessiontree.errors import InvalidOperation

NO_RESULT = "The tool was interrupted: no result was recorded."


class State(Struct, frozen=True, kw_only=True):
    """The settings in effect at an entry: model, thinking level, mode and rules."""

    provider: str | None = None
    model: str | None = None
    thinking_level: str = "off"
    mode: str | None = None
    mode_data: Any = None
    rules: tuple[str, ...] = ()

    def to_wire(self) -> JsonObject:
        """Return the state in the form that compactions store."""
        wire: JsonObject = {"model": self.model_wire, "thinkingLevel": self.thinking_level}
        if self.mode is not None:
            wire["mode"] = self.mode
        if self.mode_data is not None:
            wire["modeData"] = self.mode_data
        if self.rules:
            wire["rules"] = list(self.rules)
        return wire

    @property
    def model_wire(self) -> JsonObject | None:
        return None if self.model is None else {"provider": self.provider, "modelId": self.model}

    @property
    def model_name(self) -> str | None:
        """The model as `provider:model`; `None` if no entry names one, as after an answer that a person typed."""
        known = self.provider not in (None, "", "unknown") and self.model not in (None, "", "unknown")
        return f"{self.provider}:{self.model}" if known else None


class Context(Struct, frozen=True, kw_only=True):
    """What the model sees at `leaf`."""

    leaf: EntryId | None
    state: State
    messages: tuple[JsonObject, ...]
    """In wire form, oldest first."""
    sources: tuple[EntryId, ...]
    """The id of the entry that each message comes from."""

    @property
    def model(self) -> JsonObject | None:
        """Provider and model id in wire form, or `None` if no entry names a model."""
        return self.state.model_wire

    @property
    def thinking_level(self) -> str:
        return self.state.thinking_level

    def convert_messages(self) -> list[JsonObject]:
        """Return the messages in the roles that a model accepts, including failed turns."""
        calls = {call.id for message in self.messages for call in get_tool_calls(message)}
        return [sent for message in self.messages if (sent := _convert_message(message, calls)) is not None]

    def to_llm(self) -> list[JsonObject]:
        """Return the messages of a request: every tool call has a result, every result a call, and failed turns are
        removed.
        """
        return self.pair_results().messages

    @property
    def awaits_answer(self) -> bool:
        """Whether the last message needs an answer from the model."""
        sent = self.to_llm()
        return bool(sent) and get_role(sent[-1]) != "assistant"

    def build_request(self) -> list[tuple[EntryId, JsonObject]]:
        """Return the messages of `to_llm`, each with its entry. A placeholder result has the entry of its call."""
        paired = self.pair_results()
        return list(zip(paired.sources, paired.messages, strict=True))

    def pair_results(self) -> ResultPairing:
        """Return the messages of `to_llm` as something that further messages can be added to."""
        calls = {call.id for message in self.messages for call in get_tool_calls(message)}
        paired = ResultPairing()
        for id, message in zip(self.sources, self.messages, strict=True):
            converted = _convert_message(message, calls)
            if converted is not None and not is_failed_turn(converted):
                paired.add(id, converted)
        return paired

    def find_failed_calls(self) -> set[str]:
        """Return the ids of tool calls that only failed turns made."""
        failed = {call.id for message in self.messages if is_failed_turn(message) for call in get_tool_calls(message)}
        succeeded = {
            call.id for message in self.messages if not is_failed_turn(message) for call in get_tool_calls(message)
        }
        return failed - succeeded

    def list_withheld(self) -> list[tuple[EntryId, JsonObject, str]]:
        """Return the messages that `build_request` leaves out, each with its entry and the reason."""
        sent = {id for id, _ in self.build_request()}
        calls = {call.id for message in self.messages for call in get_tool_calls(message)}
        failed = self.find_failed_calls()
        return [
            (id, message, explain_withheld(message, calls, failed))
            for id, message in zip(self.sources, self.messages, strict=True)
            if id not in sent
        ]

    def tokens(self) -> int:
        """Return the estimated tokens of the whole request."""
        return sum(map(estimate_tokens, self.to_llm()))

    def to_openai(self) -> ConvertedMessages:
        """Return the messages of a request for `chat.completions.create` of the OpenAI SDK."""
        return load("to_openai")(self)

    def to_openai_responses(self) -> ConvertedMessages:
        """Return the items of a request for `responses.create` of the OpenAI SDK, its `input`."""
        return load("to_openai_responses")(self)

    def to_anthropic(self) -> ConvertedMessages:
        """Return the messages of a request for `messages.create` of the Anthropic SDK. Pass `system` as well."""
        return load("to_anthropic")(self)

    def to_gemini(self) -> ConvertedMessages:
        """Return the contents of a request for `models.generate_content` of the Google SDK. Pass `system` as well."""
        return load("to_gemini")(self)

    def to_pydantic_ai(self) -> ConvertedMessages:
        """Return the messages of a request as `ModelMessage` objects, for `message_history` of pydantic-ai."""
        return load("to_pydantic_ai")(self)


def _convert_message(message: JsonObject, calls: set[str]) -> JsonObject | None:
    call = get_answered_call(message)
    if call is None or call in calls:
        return convert_for_model(message)
    if call:
        return None  # providers reject a result whose call is not in the context
    name = coerce_string(message.get("toolName")) or "a tool"
    return {
        "role": "user",
        "content": [{"type": "text", "text": f"Output of {name}:\n{extract_text(message.get('content'))}"}],
        **({"timestamp": message["timestamp"]} if "timestamp" in message else {}),
    }


def explain_withheld(message: JsonObject, calls: set[str], failed: set[str]) -> str:
    """Return why a message of the context is not in the request."""
    call = get_answered_call(message)
    if call is not None:
        if call in failed:
            return "the turn of its tool call failed"
        return "its tool call is answered by another result" if call in calls else "its tool call is not in the context"
    if is_failed_turn(message):
        return f"the turn ended with {coerce_string(message.get('stopReason'))}"
    if message.get("excludeFromContext") is True:
        return "a shell command excluded from the context"
    return f"messages of role {get_role(message)!r} are not sent"


class ResultPairing:
    """Puts the results of each turn directly after it, one for every call, with placeholders for missing results.

    Providers reuse call ids, so a result answers the last turn before it that made a call with its id.
    """

    def __init__(self) -> None:
        self.messages: list[JsonObject] = []
        self.sources: list[EntryId] = []
        """The entry of each message. A placeholder has the entry of its call."""
        self._waiting: dict[str, tuple[int, deque[int]]] = {}
        """For each call id, where its turn starts and where the placeholders of its results are."""

    def add(self, id: EntryId, message: JsonObject) -> None:
        """Add the next message of the context."""
        answered = get_answered_call(message)
        if answered is None:
            start = len(self.messages)
            self._append(id, message)
            for call in get_tool_calls(message):
                if call.id not in self._waiting or self._waiting[call.id][0] != start:
                    self._waiting[call.id] = start, deque()
                self._waiting[call.id][1].append(len(self.messages))
                self._append(id, _build_missing_result(call.id, call.name, message))
        elif answered in self._waiting and self._waiting[answered][1]:
            place = self._waiting[answered][1].popleft()
            self.messages[place], self.sources[place] = message, id

    def _append(self, id: EntryId, message: JsonObject) -> None:
        self.messages.append(message)
        self.sources.append(id)


def _build_missing_result(call: str, name: str, message: JsonObject) -> JsonObject:
    return {
        "role": "toolResult",
        "toolCallId": call,
        "toolName": name,
        "content": [{"type": "text", "text": NO_RESULT}],
        "isError": True,
        **({"timestamp": message["timestamp"]} if "timestamp" in message else {}),
    }


def build_context(tree: Tree, leaf: EntryId | None) -> Context:
    """Return what the model sees at `leaf`; `None` is the place before the first entry. Raises `NotFound`."""
    check_tree(tree, "build_context")
    return copy_messages(build_shared_context(tree, leaf))


def check_tree(tree: object, function: str) -> None:
    if not isinstance(tree, Tree):
        raise InvalidOperation(f"{function} needs a tree such as session.tree, not {type(tree).__name__}")


def build_shared_context(tree: Tree, leaf: EntryId | None) -> Context:
    """Return what `build_context` returns, without copying: do not change the messages, the entries share them."""
    return build_path_context(find_context_path(tree, leaf))


def copy_messages(context: Context) -> Context:
    """Return the context with copies of the messages, which callers may change."""
    return replace(context, messages=to_builtins(context.messages))


def find_context_path(tree: Tree, leaf: EntryId | None) -> list[Entry]:
    """Return the end of the path to `leaf` that the context needs. Entries before a compaction are not visited."""
    end: list[Entry] = []
    need = ContextNeeds()
    for entry in tree.walk_up(leaf):
        end.append(entry)
        need.visit(entry)
        if need.is_met:
            break
    end.reverse()
    return end


class ContextNeeds:
    """Tracks, while walking up from a leaf, what the context still needs."""

    def __init__(self) -> None:
        self._has_compaction = False
        self._pending_anchor: EntryId | None = None
        self._has_model = False
        self._has_thinking = False

    @property
    def is_met(self) -> bool:
        return self._has_compaction and self._pending_anchor is None and self._has_model and self._has_thinking

    def visit(self, entry: Entry) -> None:
        if entry.id == self._pending_anchor:
            self._pending_anchor = None
        match entry.type:
            case "compaction":
                self._visit_compaction(entry)
            case "thinking_level_change":
                self._has_thinking = True
            case "model_change":
                body = entry.body
                if isinstance(body, ModelChange) and body.model is not None and body.role in (None, "default"):
                    self._has_model = True
            case "message" if not self._has_model:
                body = entry.body
                self._has_model = isinstance(body, Message) and get_model(body.message) is not None
            case _:
                pass

    def _visit_compaction(self, entry: Entry) -> None:
        anchor: EntryId | None = getattr(entry.body, "first_kept", None)
        if not self._has_compaction and anchor != entry.id:
            self._pending_anchor = anchor
        self._has_compaction = True
        if getattr(entry.body, "state", None) is not None:
            self._has_model = self._has_thinking = True


def build_path_context(path: list[Entry]) -> Context:
    """Return what the model sees at the end of `path`, which starts at a root or where `find_context_path` starts.

    Do not change the messages: the entries share them.
    """
    projection = ContextProjection(path)
    built = [
        (entry.id, message) for entry in projection.select_entries() for message in projection.build_messages(entry)
    ]
    return Context(
        leaf=path[-1].id if path else None,
        state=read_state(path),
        messages=tuple(message for _, message in built),
        sources=tuple(id for id, _ in built),
    )


class GrowingContext:
    """The settings and the request messages at a leaf, kept up to date while the leaf moves down its path.

    Building them again for each request of a run takes time that grows with the conversation.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Release the messages. The next call of `follow` builds the context again."""
        self.state = State()
        self._tree: Tree | None = None
        self._leaf: EntryId | None = None
        self._history_changes = 0
        self._projection = ContextProjection([])
        self._request = ResultPairing()
        self._has_empty_ids = False
        """Whether a call or a result has an empty id. Then a later call decides how an earlier result is sent."""

    def get_messages(self) -> list[JsonObject]:
        """Return what `to_llm` returns. Do not change the messages: the entries share them."""
        return list(self._request.messages)

    def follow(self, tree: Tree, leaf: EntryId | None) -> None:
        """Go to a leaf. If it is below the last one, only the entries in between are read. Raises `NotFound`."""
        added = self._find_added(tree, leaf)
        self._tree = None  # in case of an error
        if added is None or not all(map(self._add, added)):
            self._rebuild(find_context_path(tree, leaf))
        self._tree, self._leaf, self._history_changes = tree, leaf, tree.history_changes

    def _find_added(self, tree: Tree, leaf: EntryId | None) -> list[Entry] | None:
        """Return the entries of the path since the last leaf; `None` if the context has to be built again."""
        is_known = self._tree is tree and self._history_changes == tree.history_changes and tree.is_sound
        if not is_known or self._leaf is None or self._has_empty_ids:
            return None
        added: list[Entry] = []
        for entry in tree.walk_up(leaf):
            if entry.id == self._leaf:
                added.reverse()
                return added
            if entry.type in REBUILD_TYPES:
                break
            added.append(entry)
        return None

    def _rebuild(self, path: list[Entry]) -> None:
        context = build_path_context(path)
        self.state, self._request = context.state, context.pair_results()
        self._projection = ContextProjection([])  # without the path, which would keep its entries in memory
        self._projection.edits = ContextProjection(path).edits
        self._has_empty_ids = any(map(_has_empty_ids, context.messages))

    def _add(self, entry: Entry) -> bool:
        """Add the next entry. Return `False` if the context has to be built again."""
        messages = self._projection.build_messages(entry)
        if any(map(_has_empty_ids, messages)):
            return False
        for message in messages:
            converted = convert_for_model(message)
            if converted is not None and not is_failed_turn(converted):
                self._request.add(entry.id, converted)
        if entry.type == "thinking_level_change":
            self.state = replace(self.state, thinking_level=getattr(entry.body, "level", None) or "off")
        elif entry.type in ("model_change", "message"):
            known = _read_model(entry.body)
            if known:
                self.state = replace(self.state, **known)
        return True


REBUILD_TYPES = frozenset({"compaction", "reset_boundary", "context_edit", "mode_change", "ttsr_injection"})
"""Entries that change more than the last settings and messages of a context."""


def _has_empty_ids(message: JsonObject) -> bool:
    return get_answered_call(message) == "" or any(not call.id for call in get_tool_calls(message))


def fold_system(messages: Sequence[JsonObject]) -> JsonObject | None:
    """Combine the system messages of a context into one for a compaction to store; `None` if there are none.

    Contents are joined. Later messages override sections and tools of earlier ones.
    """
    system = [message for message in messages if get_role(message) == "system"]
    if not system:
        return None
    sections: JsonObject = {}
    tools: dict[str, Any] = {}
    for message in system:
        patch = message.get("sections")
        sections.update(patch if is_object(patch) else {})
        for key, is_added in (("toolsRemoved", False), ("toolsAdded", True)):
            listed = message.get(key)
            for tool in filter(is_object, listed if is_list(listed) else ()):
                tools.pop(coerce_string(tool.get("name")), None)
                if is_added:
                    tools[coerce_string(tool.get("name"))] = tool
    folded: JsonObject = {
        "role": "system",
        "content": "\n\n".join(text for message in system if (text := extract_text(message.get("content")))),
    }
    sections = {name: text for name, text in sections.items() if text is not None}
    if sections:
        folded["sections"] = sections
    if tools:
        folded["toolsAdded"] = list(tools.values())
    return folded


def read_state(path: Sequence[Entry]) -> State:
    """Return the settings at the end of `path`, read from the end.

    A compaction with `state` replaces everything before it. One without `state` ends mode and rules, because the
    entries that set them have left the context.
    """
    known: dict[str, Any] = {}
    rules: list[tuple[str, ...]] = []
    for entry in reversed(path):
        compacted = "mode" in known and "rules" in known
        if compacted and "model" in known and "thinking_level" in known:
            break
        match entry.type:
            case "compaction":
                carried = entry.body.state if isinstance(entry.body, Compaction) else None
                if carried is not None:
                    known = {**_parse_state(carried), **known}
                    break
                known = {"mode": None, "mode_data": None, "rules": (), **known}
            case "thinking_level_change" if "thinking_level" not in known:
                known["thinking_level"] = getattr(entry.body, "level", None) or "off"
            case "model_change" | "message" if "model" not in known:
                known.update(_read_model(entry.body))
            case "mode_change" if "mode" not in known and isinstance(entry.body, ModeChange):
                left = entry.body.mode == "none"
                known["mode"], known["mode_data"] = (None, None) if left else (entry.body.mode, entry.body.data)
            case "ttsr_injection" if "rules" not in known and isinstance(entry.body, RuleInjection):
                rules.append(entry.body.rules)
            case _:
                pass
    injected = [*known.pop("rules", ()), *(rule for several in reversed(rules) for rule in several)]
    known["mode_data"] = to_builtins(known.get("mode_data"))  # a copy, because the entry keeps the original
    return State(**known, rules=tuple(dict.fromkeys(injected)))


def find_model_above(up: Iterable[Entry]) -> tuple[str | None, str | None]:
    """Return the provider and model in effect below the entries of `up`, nearest first. Stops at the first that sets
    them.
    """
    for entry in up:
        if entry.type in ("model_change", "message"):
            known = _read_model(entry.decode())
            if known:
                return known["provider"], known["model"]
        elif entry.type == "compaction" and isinstance(entry.body, Compaction) and entry.body.state is not None:
            carried = _parse_state(entry.body.state)
            return carried["provider"], carried["model"]
    return None, None


def _read_model(body: Body) -> dict[str, str | None]:
    """Return the provider and model that an entry sets, or an empty dict."""
    match body:
        case ModelChange(provider=provider, model=str(model), role=None | "default"):
            return {"provider": provider, "model": model}
        case Message(message) if (wrote := get_model(message)) is not None:
            return {"provider": wrote[0], "model": wrote[1]}
        case _:
            return {}


def _parse_state(wire: JsonObject) -> dict[str, Any]:
    model, rules = wire.get("model"), wire.get("rules")
    model_wire: JsonObject = model if is_object(model) and isinstance(model.get("modelId"), str) else {}
    return {
        "thinking_level": coerce_string(wire.get("thinkingLevel")) or "off",
        "provider": model_wire["provider"] if isinstance(model_wire.get("provider"), str) else None,
        "model": model_wire.get("modelId"),
        "mode": wire["mode"] if isinstance(wire.get("mode"), str) else None,
        "mode_data": wire.get("modeData") if isinstance(wire.get("mode"), str) else None,
        "rules": [rule for rule in rules if isinstance(rule, str)] if is_list(rules) else [],
    }


class ContextProjection:
    """Selects the entries of a path that contribute to the context, and builds their messages."""

    def __init__(self, path: list[Entry]) -> None:
        self.path = path
        self.compaction, self.boundary = self._find_last("compaction"), self._find_last("reset_boundary")
        self.first_kept = self._find_first_kept()
        self.edits: dict[EntryId, ContextEdit] = {}
        for entry in self.select_entries():
            if entry.type == "context_edit" and isinstance(entry.body, ContextEdit):
                self.edits[entry.body.target] = entry.body

    def _find_last(self, type: str) -> int:
        return next((index for index in range(len(self.path) - 1, -1, -1) if self.path[index].type == type), -1)

    @property
    def is_compacted(self) -> bool:
        """Whether the context starts with a compaction and no reset boundary follows it."""
        return self.compaction > self.boundary

    def _find_first_kept(self) -> int:
        """Return the index where the kept entries start; the index of the compaction if it keeps none."""
        if not self.is_compacted:
            return -1
        body = self.path[self.compaction].body
        anchor = body.first_kept if isinstance(body, Compaction) else None
        for index in range(self.compaction):
            if self.path[index].id == anchor:
                return max(index, self.boundary + 1)
        return self.compaction

    def select_entries(self) -> list[Entry]:
        """Return the entries that may contribute, in the order of their messages."""
        if not self.is_compacted:
            return self.path[self.boundary + 1 :]
        kept = [entry for entry in self.path[self.first_kept : self.compaction] if self.is_kept(entry)]
        return [self.path[self.compaction], *kept, *self.path[self.compaction + 1 :]]

    @staticmethod
    def is_kept(entry: Entry) -> bool:
        """Return whether an entry before the compaction is kept: system messages and older compactions are not."""
        if entry.type == "compaction":
            return False
        return not (
            entry.type == "message" and isinstance(entry.body, Message) and get_role(entry.body.message) == "system"
        )

    def build_messages(self, entry: Entry) -> list[JsonObject]:
        edit = self.edits.get(entry.id)
        match entry.body:
            case Message(message):
                return _apply_edit(_fill_content(message), edit)
            case CustomMessage() as body:
                message: JsonObject = {
                    "role": "custom",
                    "customType": body.custom_type,
                    "content": [] if body.content is None else body.content,
                    "display": body.display,
                }
                if body.details is not None:
                    message["details"] = body.details
                return _apply_edit({**message, "timestamp": parse_timestamp(entry.timestamp)}, edit)
            case BranchSummary(summary=summary) as body if summary:
                summarized: JsonObject = {
                    "role": "branchSummary",
                    "summary": summary,
                    "fromId": body.abandoned_leaf,
                    "timestamp": parse_timestamp(entry.timestamp),
                }
                return _apply_edit(summarized, edit)
            case Compaction() as body:
                compacted: JsonObject = {
                    "role": "compactionSummary",
                    "summary": body.summary,
                    "tokensBefore": body.tokens_before,
                    "timestamp": parse_timestamp(entry.timestamp),
                }
                system = [] if body.system_message is None else [body.system_message]
                return [] if edit is not None and edit.replacement is None else [*system, compacted]
            case _:
                return []


EMPTY_CONTENT: dict[str, type[Any]] = {"user": list, "assistant": list, "toolResult": list, "system": str}
EDITABLE = frozenset({"user", "assistant", "toolResult", "custom"})


def _fill_content(message: JsonObject) -> JsonObject:
    """Return `message` with empty content if the content is missing."""
    if message.get("content") is None and get_role(message) in EMPTY_CONTENT:
        return {**message, "content": EMPTY_CONTENT[get_role(message)]()}
    return message or {}  # a new dict, because all messages without content share `NO_MESSAGE`


def _apply_edit(message: JsonObject, edit: ContextEdit | None) -> list[JsonObject]:
    if edit is not None and edit.replacement is None:
        return []
    if edit is None or edit.replacement is None or get_role(message) not in EDITABLE:
        return [message]
    content = edit.replacement.get("content")
    if isinstance(content, str) and get_role(message) in ("assistant", "toolResult"):
        content = build_text_blocks(content)
    return [_fill_content({**message, "content": content})]
