"""SQLite sessions of the OpenAI Agents SDK: items of OpenAI Responses, and branches where the database has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sessiontree.convert.base import ApiKind, count
from sessiontree.core.entries import Custom, EntryId, JsonObject, Message
from sessiontree.core.heads import MAIN
from sessiontree.core.messages import coerce_string, complete_usage, is_object
from sessiontree.format.codec import COPIED_FROM
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
from sessiontree.interop.message_lists import ApiMessages, group_items
from sessiontree.interop.row_recorder import RowRecorder

NAME = "openai-agents"
FAKE_ID = "__fake_id__"
"""The id of every item that did not come from OpenAI Responses."""


def detect(head: FileHead) -> bool:
    """Return whether a file is a database with sessions of the SDK."""
    messages = set(head.tables.get("agent_messages", ()))
    return "agent_sessions" in head.tables and {"id", "session_id", "message_data"} <= messages


def read(file: ForeignFile, related: Sequence[ForeignFile]) -> Iterator[Conversation]:
    """Yield every session of a database."""
    for row in list(file.iter_rows("agent_sessions")):
        yield _SessionItems(file, row).build()


class _SessionItems:
    """Builds the tree of one session. Branches of the database share the rows before they part."""

    def __init__(self, source: ForeignFile, row: JsonObject) -> None:
        self._row = row
        self._file = file = RowRecorder(source)
        self._id = coerce_string(row.get("session_id"))
        self._builder = ConversationBuilder(NAME, self._id, started=row.get("created_at"))
        self._rows = {item.get("id"): item for item in file.iter_rows("agent_messages", session_id=self._id)}
        structure = list(file.iter_rows("message_structure", session_id=self._id))
        structure.sort(key=lambda place: count(place.get("sequence_number")))
        self._paths: dict[str, list[object]] = {}
        self._turns: dict[tuple[str, object], object] = {}
        """The turn of each row, by branch."""
        for place in structure:
            branch = coerce_string(place.get("branch_id")) or MAIN
            self._paths.setdefault(branch, []).append(place.get("message_id"))
            self._turns[branch, place.get("message_id")] = place.get("user_turn_number")
        self._paths = self._paths or {MAIN: list(self._rows)}
        self._usages = {
            (coerce_string(usage.get("branch_id")), usage.get("user_turn_number")): _read_usage(usage)
            for usage in file.iter_rows("turn_usage", session_id=self._id)
        }
        self._parents: dict[EntryId, EntryId | None] = {}

    def build(self) -> Conversation:
        heads: dict[str, EntryId | None] = {}
        for name, rows in self._paths.items():
            branch = name if name == MAIN else choose_branch_name(name, heads)
            heads[branch] = self._add_path(name, branch, [row for row in rows if row in self._rows])
        return self._builder.build(heads, original=self._file.dump("agent_sessions", self._row))

    def _add_path(self, name: str, branch: str, rows: list[object]) -> EntryId | None:
        items = [self._read_item(row) for row in rows]
        converter = ApiMessages(ApiKind.OPENAI_RESPONSES)
        leaf: EntryId | None = None
        groups = group_items(items)
        last_in_turn = self._find_last_answers(name, rows, groups)
        for number, group in enumerate(groups):
            members = [items[index] for index in group]
            known = [_drop_provider_data(item) for item in members]
            model = get_object(members[-1], "provider_data").get("model")
            messages = converter.convert(known, model=model if isinstance(model, str) else None)
            if converter.problem:
                self._builder.report("unsent", f"row {rows[group[0]]!r} is only kept: {converter.problem}")
            usage = self._usages.get((name, last_in_turn[number])) if number in last_in_turn else None
            if usage is not None and messages:
                messages[-1] = {**messages[-1], "usage": usage}
            bodies = [Message(message) for message in messages]
            leaf = self._add_group(
                bodies or [Custom(custom_type="openai-agents.item", data=members)],
                [(rows[index], items[index]) for index in group],
                leaf,
                branch,
            )
        return leaf

    def _read_item(self, row: object) -> JsonObject:
        value = read_json(coerce_string(self._rows[row].get("message_data")))
        return value if is_object(value) else {"value": value}

    def _find_last_answers(self, name: str, rows: list[object], groups: list[list[int]]) -> Mapping[int, object]:
        """Return the groups that end a turn, whose usage they get, with the number of the turn."""
        turns: dict[object, int] = {}
        for number, group in enumerate(groups):
            turn = self._turns.get((name, rows[group[-1]]))
            if turn is not None:
                turns[turn] = number
        return {number: turn for turn, number in turns.items()}

    def _add_group(
        self,
        bodies: Sequence[Message | Custom],
        rows: Sequence[tuple[object, JsonObject]],
        parent: EntryId | None,
        branch: str,
    ) -> EntryId | None:
        """Add the message of some rows, unless another branch has the same one at the same place."""
        ids = [_name_item(self._id, row, item) for row, item in rows]
        original, id, number = ids[-1], ids[-1], 1
        while id in self._parents and self._parents[id] != parent:
            number += 1
            id = f"{original}-{number}"
        if id in self._parents:
            return id
        self._parents[id] = parent
        above = parent
        time = self._rows[rows[-1][0]].get("created_at")
        for index, body in enumerate(bodies):
            name = id if index == len(bodies) - 1 else f"{id}.{index}"
            extra: JsonObject | None = {COPIED_FROM: original} if id != original and name == id else None
            above = self._builder.add(body, id=name, parent=above, time=time, branch=branch, extra=extra)
        for other in ids[:-1]:
            self._builder.add_alias(other, id)
        return above


def _name_item(session: str, row: object, item: JsonObject) -> EntryId:
    """Return the id of an item: its own, or else one from the row."""
    id = item.get("id")
    return id if isinstance(id, str) and id and id != FAKE_ID else f"{session}-{row}"


def _drop_provider_data(item: JsonObject) -> JsonObject:
    """Return an item in the form of the API, without what the SDK adds: its origin, and an id if it had none."""
    own = {name: value for name, value in item.items() if name != "provider_data"}
    if own.get("id") == FAKE_ID:
        del own["id"]
    return own


def _read_usage(row: JsonObject) -> JsonObject:
    details = read_json(coerce_string(row.get("input_tokens_details")))
    cached = count(details.get("cached_tokens")) if is_object(details) else 0
    return complete_usage(
        {
            "input": max(0, count(row.get("input_tokens")) - cached),
            "output": count(row.get("output_tokens")),
            "cacheRead": cached,
            "cacheWrite": 0,
        }
    )


FORMAT = ForeignFormat(name=NAME, title="OpenAI Agents SDK", detect=detect, read=read)
