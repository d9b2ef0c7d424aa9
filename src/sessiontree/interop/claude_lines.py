"""Lines of Claude Code: joins the lines of a session file into nodes, each of which becomes one entry."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from sessiontree.core.entries import EntryId, JsonObject
from sessiontree.core.messages import coerce_number, coerce_string, is_list, is_object
from sessiontree.interop.base import ForeignFile, get_object, read_record

TREE_TYPES = ("user", "assistant", "system", "attachment", "progress")
"""Types of lines that have a place in the tree."""
BULKY = (b'{"type":"api-request', b'{"type":"file-history')
"""The starts of long lines that are not part of the conversation."""


class LineNode(Struct, gc=False):
    """What becomes one entry: a user line, all lines of an answer, or a compaction.

    A session can have a million lines, so their records are read again when they are written.
    """

    id: EntryId
    kind: str
    """`user`, `assistant` or `compaction`."""
    positions: tuple[int, ...]
    """Where its lines are in the file."""
    parent: str | None
    """The foreign id of the parent, from the first line."""
    is_sidechain: bool = False
    boundary: JsonObject | None = None
    """The line of a compaction that has its facts."""

    calls: tuple[str, ...] = ()
    """The calls that it makes or answers."""


def list_calls(kind: str, record: JsonObject) -> tuple[str, ...]:
    """Return the calls that a line makes, if it is of an answer, or that it answers."""
    key, block_type = ("id", "tool_use") if kind == "assistant" else ("tool_use_id", "tool_result")
    return tuple(coerce_string(block.get(key)) for block in get_blocks(record) if block.get("type") == block_type)


def get_blocks(record: JsonObject) -> list[JsonObject]:
    content = get_object(record, "message").get("content")
    return [block for block in content if is_object(block)] if is_list(content) else []


def list_preserved(facts: JsonObject) -> list[str]:
    """Return the lines that a compaction keeps, oldest first."""
    uuids = get_object(facts, "preservedMessages").get("uuids")
    if is_list(uuids):
        return [uuid for uuid in uuids if isinstance(uuid, str)]
    head = get_object(facts, "preservedSegment").get("headUuid")
    return [head] if isinstance(head, str) else []


class SessionLines:
    """The lines of one file, joined into nodes."""

    def __init__(self, file: ForeignFile) -> None:
        self.file = file
        self.nodes: dict[EntryId, LineNode] = {}
        """In the order of the file."""
        self.links: dict[str, str | None] = {}
        """The parents of lines that are not nodes: attachments, notices, and the first lines of an answer."""
        self.problems: list[tuple[str, str, int]] = []
        self.session = self.agent = self.cwd = self.version = ""
        self.started: object = None
        self.title: str | None = None
        self.leaf: str | None = None
        """The leaf that the program noted last."""
        self.last: str | None = None
        """The last line of the tree."""
        self.cost = 0.0
        self.has_bookkeeping = False
        self._answers: dict[str, LineNode] = {}
        self._boundaries: dict[str, JsonObject] = {}
        self._seen: set[str] = set()
        for number, (position, line) in enumerate(file.iter_placed_lines(), 1):
            if not line.startswith(BULKY) and line.strip():
                self._read_line(line, number, position)
        self._place_compactions()
        self.chain_results()

    def read_records(self, node: LineNode) -> list[JsonObject]:
        """Return the lines of a node. A line that was changed since is empty."""
        return [read_record(self.file.read_line(position)) or {} for position in node.positions]

    def _read_line(self, line: bytes, number: int, position: int) -> None:
        record = read_record(line)
        if record is None:
            self.problems.append(("malformed_line", "not a JSON object", number))
            return
        kind, uuid = record.get("type"), record.get("uuid")
        self.session = coerce_string(record.get("sessionId")) or self.session
        self.version = coerce_string(record.get("version")) or self.version
        if kind not in TREE_TYPES or not isinstance(uuid, str):
            self._read_bookkeeping(record, kind, number)
            return
        if uuid in self._seen:
            self.problems.append(("duplicate_id", f"line {uuid!r} is there twice; the first one is used", number))
            return
        self._seen.add(uuid)
        self.cwd = self.cwd or coerce_string(record.get("cwd"))
        self.agent = self.agent or coerce_string(record.get("agentId"))
        self.started = self.started or record.get("timestamp")
        self.last = uuid
        self._add_tree_line(record, kind, uuid, position)

    def _read_bookkeeping(self, record: JsonObject, kind: Any, number: int) -> None:
        match kind:
            case "last-prompt":
                self.leaf = get_text(record, "leafUuid")
            case "custom-title":
                self.title = get_text(record, "customTitle") or self.title
            case "summary" if self.title is None:  # older versions
                self.title = get_text(record, "summary")
            case "cost-state":
                self.cost = max(0.0, float(coerce_number(record.get("totalCostUSD"))))
            case "user" | "assistant":
                self.problems.append(("malformed_line", f"a line of type {kind!r} without a uuid", number))
            case str():
                pass
            case _:
                self.problems.append(("malformed_line", "a line without a type", number))
                return
        self.has_bookkeeping = True

    def _add_tree_line(self, record: JsonObject, kind: str, uuid: str, position: int) -> None:
        parent = get_text(record, "parentUuid")
        is_sidechain = record.get("isSidechain") is True
        message = record.get("message")
        if kind == "system" and record.get("subtype") == "compact_boundary":
            self._boundaries[uuid] = record
            self.links[uuid] = get_text(record, "logicalParentUuid")
        elif kind == "assistant" and is_object(message):
            answer = self._answers.get(coerce_string(message.get("id")))
            if answer is not None:
                self._extend_answer(answer, record, uuid, position)
                return
            node = LineNode(uuid, kind, (position,), parent, is_sidechain, calls=list_calls(kind, record))
            self.nodes[uuid] = node
            if isinstance(message.get("id"), str):
                self._answers[message["id"]] = node
        elif kind == "user" and is_object(message):
            boundary = self._boundaries.pop(parent or "", None) if record.get("isCompactSummary") is True else None
            if boundary is not None:
                self.links[parent or ""] = uuid
                self.nodes[uuid] = LineNode(uuid, "compaction", (position,), None, is_sidechain, boundary)
            else:
                calls = list_calls(kind, record)
                self.nodes[uuid] = LineNode(uuid, kind, (position,), parent, is_sidechain, calls=calls)
        else:
            self.links[uuid] = parent

    def _extend_answer(self, answer: LineNode, record: JsonObject, uuid: str, position: int) -> None:
        """Add a line to an answer, which gets the id of the line."""
        self.links[answer.id] = uuid
        del self.nodes[answer.id]
        answer.id = uuid
        answer.positions += (position,)
        answer.calls += list_calls(answer.kind, record)
        self.nodes[uuid] = answer

    def _place_compactions(self) -> None:
        for node in self.nodes.values():
            if node.boundary is not None:
                node.parent = self._find_compaction_parent(node.id, node.boundary)
        for uuid, boundary in self._boundaries.items():
            # A boundary without a summary below it. The summary was never written, or is below the kept messages.
            self.links[uuid] = self._find_compaction_parent(uuid, boundary)

    def _find_compaction_parent(self, id: str, boundary: JsonObject) -> str | None:
        """Return the last line that a compaction keeps; without such lines, the line that its boundary names.

        In a fork the kept lines are below the compaction, which then has no parent.
        """
        kept = [uuid for uuid in list_preserved(get_object(boundary, "compactMetadata")) if self.is_known(uuid)]
        named = get_text(boundary, "logicalParentUuid") or get_text(boundary, "parentUuid")
        above = last = kept[-1] if kept else named
        waiting, passed = set(kept), set[str]()
        while waiting and above is not None and above != id and above not in passed:
            passed.add(above)
            if above in self.nodes and above not in waiting:
                break
            waiting.discard(above)
            above = self.nodes[above].parent if above in self.nodes else self.links.get(above)
        return None if above == id else last

    def chain_results(self) -> None:
        """Link the results of parallel calls one below the other, and what follows any of them below the last."""
        last: dict[EntryId, LineNode] = {}
        answered: dict[EntryId, set[str]] = {}
        chains: dict[EntryId, EntryId] = {}
        for node in self.nodes.values():
            above = self.find(node.parent)
            if node.kind != "user" or above is None or self.nodes[above].kind != "assistant" or not node.calls:
                continue
            calls = set(self.nodes[above].calls)
            if not calls.issuperset(node.calls):
                continue
            if above in last and not answered[above].intersection(node.calls):
                node.parent = chains[last[above].id] = last[above].id
                chains[last[above].id] = node.id
                answered[above].update(node.calls)
            else:
                answered[above] = set(node.calls)
            last[above] = node
        for node in self.nodes.values():
            above = self.find(node.parent)
            while above is not None and above in chains and chains[above] != node.id:
                above = chains[above]
                node.parent = above

    def find(self, uuid: str | None) -> EntryId | None:
        """Return the node that a line belongs to or hangs below; `None` if there is none."""
        seen: set[str] = set()
        while uuid is not None and uuid not in self.nodes:
            if uuid in seen:
                uuid = None
                break
            seen.add(uuid)
            uuid = self.links.get(uuid)
        for passed in seen & self.links.keys():
            self.links[passed] = uuid  # shorten the way: a program may link thousands of notices
        return uuid

    def is_known(self, uuid: str) -> bool:
        return uuid in self.nodes or uuid in self.links

    def list_leaves(self) -> list[EntryId]:
        """Return the nodes without children, in the order of the file. The current one is the last."""
        parents = {self.find(node.parent) for node in self.nodes.values()}
        inside = [node for node in self.nodes.values() if not node.is_sidechain] or list(self.nodes.values())
        leaves = [node.id for node in inside if node.id not in parents]
        current = self.find(self.leaf)
        if current is None or current not in leaves:
            current = self.find(self.last)
        if current is None or current not in {node.id for node in inside}:
            current = leaves[-1] if leaves else None
        return [leaf for leaf in leaves if leaf != current] + ([] if current is None else [current])


def get_text(record: JsonObject, key: str) -> str | None:
    value = record.get(key)
    return value if isinstance(value, str) else None
