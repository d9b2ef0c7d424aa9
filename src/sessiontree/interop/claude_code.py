"""Claude Code: `~/.claude/projects/FOLDER/SESSION.jsonl`, a tree of lines linked by `parentUuid`.

Talk is in `user` and `assistant` lines. Other lines that take part in the tree become aliases of the talk above them,
so every `uuid` names a place.

- An answer has one line per content block, all with the same `message.id`. They become one entry, which has the id of
  the last line.
- The results of parallel calls hang below the lines of their calls. They become a chain, not branches.
- A compaction is a `compact_boundary`, which has no parent but a `logicalParentUuid`, and a line with the summary.
- Each subagent has a separate file. It becomes a branch under the call that started it.
- A fork is a copy of the lines with the same uuids. Files that are passed as related join into one tree.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sessiontree.convert.anthropic_messages import from_anthropic
from sessiontree.core.entries import (
    Compaction,
    ContextEdit,
    CustomMessage,
    EntryId,
    JsonObject,
    Message,
    Opaque,
    Usage,
)
from sessiontree.core.foreign_markup import has_only_program_text
from sessiontree.core.heads import MAIN
from sessiontree.core.messages import coerce_number, coerce_string, complete_usage, extract_text, is_list, is_object
from sessiontree.errors import FormatError, InvalidOperation
from sessiontree.interop.base import (
    Conversation,
    ConversationBuilder,
    FileHead,
    ForeignFile,
    ForeignFormat,
    get_object,
)
from sessiontree.interop.claude_code_writer import write_claude_session
from sessiontree.interop.claude_lines import TREE_TYPES, LineNode, SessionLines, get_blocks, list_preserved
from sessiontree.interop.foreign_branches import choose_branch_name

NAME = "claude"
SUBAGENTS = "subagents"
PROGRAM_TEXT = re.compile(r"\s*(\[Request interrupted by user|\[Image: source: |Caveat: )")
"""User text without marks that the program wrote, and not the user."""
NOTE = "claude.note"
"""The custom type of such text."""


def detect(head: FileHead) -> bool:
    """Return whether a file has lines with `uuid` and `parentUuid`, or bookkeeping lines of Claude Code."""
    records = head.read_records()
    return any(map(_is_tree_line, records)) or any(
        record.get("type") in ("last-prompt", "queue-operation", "custom-title", "file-history-snapshot", "summary")
        and ("sessionId" in record or "leafUuid" in record or "messageId" in record)
        for record in records
    )


def _is_tree_line(record: JsonObject) -> bool:
    return (
        record.get("type") in TREE_TYPES
        and isinstance(record.get("uuid"), str)
        and "parentUuid" in record
        and "parts" not in get_object(record, "message")  # Qwen Code links its lines in the same way
    )


def find_related(file: ForeignFile) -> Iterable[str]:
    """Return where the subagents of a session are."""
    stem = file.name.rpartition("/")[2].removesuffix(".jsonl")
    return (f"{stem}/{SUBAGENTS}/*.jsonl", f"{stem}/{SUBAGENTS}/*.meta.json")


def select_sessions(paths: Sequence[str]) -> Sequence[str]:
    """Return the files without the files of subagents."""
    return [path for path in paths if f"/{SUBAGENTS}/" not in path]


def read(file: ForeignFile, related: Sequence[ForeignFile]) -> Iterator[Conversation]:
    """Yield the conversation of a session file, its subagents, and forks that are passed as related files."""
    main = SessionLines(file)
    if not main.nodes and not main.has_bookkeeping:
        raise FormatError(file.name, "no line of a Claude Code session")
    forks = [SessionLines(other) for other in related if other.name.endswith(".jsonl") and not _is_subagent(other)]
    agents = [SessionLines(other) for other in related if other.name.endswith(".jsonl") and _is_subagent(other)]
    details = {other.name: _read_details(other) for other in related if other.name.endswith(".meta.json")}
    yield _TreeWriter(main).build(forks, agents, details)


def _is_subagent(file: ForeignFile) -> bool:
    return f"/{SUBAGENTS}/" in f"/{file.name}"


def _read_details(file: ForeignFile) -> JsonObject:
    try:
        value = file.read_document()
    except FormatError:
        return {}
    return value if is_object(value) else {}


class _TreeWriter:
    """Writes the nodes of a session, its forks and its subagents as entries."""

    def __init__(self, main: SessionLines) -> None:
        self._main = main
        id = f"agent-{main.agent}" if main.agent else main.session
        self._builder = ConversationBuilder(
            NAME,
            id or main.file.name.rpartition("/")[2].removesuffix(".jsonl"),
            cwd=main.cwd,
            version=main.version or None,
            started=main.started,
            lines=main.file.create_line_buffer(),
        )
        self._builder.title = main.title
        self._builder.part_of = main.session if main.agent else None
        self._heads: dict[str, EntryId | None] = {}
        self._tools: dict[str, str] = {}
        """The names of tools by call id."""
        self._callers: dict[str, EntryId] = {}
        """The entries that made calls, by call id."""
        self._prompts: dict[str, list[tuple[EntryId, str, str]]] | None = None
        """The entries that called a subagent, with the ids of their calls and the tasks, by prompt."""
        self._sidechains: dict[EntryId, str] = {}
        """The branches of subagents whose lines are in the file of the session, by entry."""

    def build(
        self, forks: list[SessionLines], agents: list[SessionLines], details: dict[str, JsonObject]
    ) -> Conversation:
        for lines in (self._main, *forks, *agents):
            for kind, message, number in lines.problems:
                place = "" if lines is self._main else f" of {lines.file.name.rpartition('/')[2]}"
                self._builder.report(kind, f"line {number}{place}: {message}", line=number)
        self._add_session(self._main, MAIN, "rewind")
        for fork in forks:
            self._add_session(fork, f"fork-{fork.session[:8]}", f"fork-{fork.session[:8]}")
        self._add_agents(agents, details)
        if self._main.cost:
            usage = complete_usage({"cost": self._main.cost})
            self._builder.add(
                Usage(kind="session total", usage=usage, note="cost that Claude Code noted for the whole session"),
                id=f"{self._builder.id}-cost",
                parent=self._heads.get(MAIN),
            )
        return self._builder.build(self._heads)

    def _add_session(self, lines: SessionLines, current: str, other: str) -> None:
        """Add all branches of a file: the current one under one name, the others numbered."""
        leaves = lines.list_leaves()
        branches: dict[EntryId, str] = {}
        names = [*(f"{other}-{number}" for number in range(1, len(leaves))), current]
        for name, leaf in reversed(list(zip(names, leaves, strict=False))):
            own = self._claim_path(lines, leaf, name, branches)
            if name == current or any(_is_talk(lines, lines.nodes[id]) for id in own):
                self._heads[name] = leaf
        self._heads.setdefault(current, None)
        self._add_nodes(lines, branches, current)

    def _claim_path(self, lines: SessionLines, leaf: EntryId, name: str, branches: dict[EntryId, str]) -> list[EntryId]:
        """Put the nodes up from a leaf on a branch, unless another branch has them. Returns those nodes."""
        own: list[EntryId] = []
        id: EntryId | None = leaf
        while id is not None and id not in branches:
            branches[id] = name
            own.append(id)
            id = lines.find(lines.nodes[id].parent)
        return [id for id in own if id not in self._builder]

    def _add_nodes(
        self, lines: SessionLines, branches: dict[EntryId, str], branch: str, root: EntryId | None = None
    ) -> None:
        """Add all nodes of a file, parents first. Nodes without a parent go below `root`."""
        for start in lines.nodes:
            chain: list[LineNode] = []
            visited: set[EntryId] = set()
            id: EntryId | None = start
            while id is not None and id not in self._builder and id not in visited:
                visited.add(id)
                chain.append(lines.nodes[id])
                id = lines.find(lines.nodes[id].parent)
            if id is not None and id in visited:
                self._builder.report("cycle", f"entry {id!r} is its own ancestor", entry=id)
            for node in reversed(chain):
                parent = lines.find(node.parent)
                self._check_parent(lines, node)
                if parent is None or parent not in self._builder:
                    parent = root or self._find_caller(lines, node)
                elif parent in self._sidechains and node.is_sidechain:
                    self._sidechains[node.id] = self._sidechains[parent]
                name = self._sidechains.get(node.id)
                if name is not None:
                    self._heads[name] = node.id
                self._add_node(lines, node, parent, name or branches.get(node.id, branch))
        for uuid in lines.links:
            self._builder.add_alias(uuid, lines.find(uuid))

    def _check_parent(self, lines: SessionLines, node: LineNode) -> None:
        if node.parent is not None and not lines.is_known(node.parent):
            self._builder.report(
                "orphan", f"entry {node.id!r} names a parent {node.parent!r} that is not in the file", entry=node.id
            )

    def _find_caller(self, lines: SessionLines, node: LineNode) -> EntryId | None:
        """Return the call that started a subagent whose lines are in the file of the session, as older versions did."""
        if not node.is_sidechain or self._main.agent:
            return None
        if self._prompts is None:
            self._prompts = self._list_prompts()
        prompt = extract_text(get_object(lines.read_records(node)[-1], "message").get("content"))
        waiting = self._prompts.get(prompt, [])
        started = next((each for each in reversed(waiting) if each[0] in self._builder), None)
        if started is None:
            return None
        waiting.remove(started)
        caller, call, task = started
        name = choose_branch_name(f"agent-{task or node.id[:8]}", self._heads)
        self._sidechains[node.id] = name
        return self._builder.start_subagent(name, id=node.id, parent=caller, call=call, description=task or None)

    def _list_prompts(self) -> dict[str, list[tuple[EntryId, str, str]]]:
        found: dict[str, list[tuple[EntryId, str, str]]] = {}
        for node in self._main.nodes.values():
            is_caller = node.kind == "assistant" and node.calls and not node.is_sidechain
            for record in self._main.read_records(node) if is_caller else ():
                for block in get_blocks(record):
                    given = get_object(block, "input")
                    prompt, task = given.get("prompt"), coerce_string(given.get("description"))
                    if isinstance(prompt, str) and prompt:
                        found.setdefault(prompt, []).append((node.id, coerce_string(block.get("id")), task))
        return found

    def _add_agents(self, agents: list[SessionLines], details: dict[str, JsonObject]) -> None:
        """Add each subagent below the call that started it, which may be in another subagent."""
        added: set[str] = set()
        waiting = sorted(agents, key=lambda agent: (coerce_string(agent.started), agent.file.name))
        while waiting:
            ready = [agent for agent in waiting if self._get_call(agent, details) in self._callers] or waiting
            for agent in ready:
                facts = details.get(f"{agent.file.name.removesuffix('.jsonl')}.meta.json", {})
                parent = self._callers.get(self._get_call(agent, details))
                leaves = agent.list_leaves()
                id = f"agent-{agent.agent or agent.file.name.rpartition('/')[2]}"
                if not leaves or id in added:
                    continue
                added.add(id)
                if parent is None:
                    self._builder.report("orphan", f"no call started subagent {agent.agent!r}")
                description = coerce_string(facts.get("description")) or coerce_string(facts.get("agentType")) or None
                name = choose_branch_name(f"agent-{description}" if description else id, self._heads)
                root = self._builder.start_subagent(
                    name,
                    id=id,
                    parent=parent,
                    call=self._get_call(agent, details),
                    description=description,
                    time=agent.started,
                )
                self._heads[name] = leaves[-1]
                self._add_nodes(agent, {}, name, root)
            waiting = [agent for agent in waiting if agent not in ready]

    def _get_call(self, agent: SessionLines, details: dict[str, JsonObject]) -> str:
        facts = details.get(f"{agent.file.name.removesuffix('.jsonl')}.meta.json", {})
        return coerce_string(facts.get("toolUseId"))

    def _add_node(self, lines: SessionLines, node: LineNode, parent: EntryId | None, branch: str) -> None:
        if node.kind == "compaction":
            self._add_compaction(lines, node, parent, branch)
            return
        records = lines.read_records(node)
        record = records[-1]
        message = join_answer(records) if node.kind == "assistant" else dict(get_object(record, "message"))
        try:
            bodies = list(from_anthropic([message]))
        except InvalidOperation as error:
            self._builder.report("malformed_line", f"entry {node.id!r} is not understood: {error}", entry=node.id)
            self._builder.add(
                Opaque(type="claude.line", fields={"lines": records}),
                id=node.id,
                parent=parent,
                time=record.get("timestamp"),
                branch=branch,
            )
            return
        for number, body in enumerate(bodies, 1):
            id = node.id if number == len(bodies) else f"{node.id}-{number}"
            if node.kind == "assistant":
                stored: Message | CustomMessage = Message(describe_answer(body.message, record))
            else:
                stored = build_user_body(body.message, record, self._tools)
            parent = self._builder.add(stored, id=id, parent=parent, time=record.get("timestamp"), branch=branch)
        for block in (block for each in records for block in get_blocks(each)):
            if block.get("type") == "tool_use" and isinstance(block.get("id"), str):
                self._tools[block["id"]] = coerce_string(block.get("name"))
                self._callers[block["id"]] = node.id

    def _add_compaction(self, lines: SessionLines, node: LineNode, parent: EntryId | None, branch: str) -> None:
        record = lines.read_records(node)[-1]
        summary = extract_text(get_object(record, "message").get("content"))
        facts = get_object(node.boundary, "compactMetadata")
        kept = [id for uuid in list_preserved(facts) if (id := lines.find(uuid)) is not None and id in self._builder]
        tokens = max(0, int(coerce_number(facts.get("preTokens"))))
        time = record.get("timestamp")
        if get_object(record, "summarizeMetadata").get("direction") != "from":
            body = Compaction(summary=summary, first_kept=kept[0] if kept else node.id, tokens_before=tokens)
            self._builder.add(body, id=node.id, parent=parent, time=time, branch=branch)
            return
        # Kept messages are sent before the summary. A compaction cannot do that: copies of them follow it.
        id = f"{node.id}-compaction"
        above = self._builder.add(
            Compaction(summary=summary, first_kept=id, tokens_before=tokens),
            id=id, parent=parent, time=time, branch=branch,
        )  # fmt: skip
        above = self._builder.add(ContextEdit(target=id), id=f"{node.id}-edit", parent=above, branch=branch)
        for number, copied in enumerate(dict.fromkeys(kept), 1):
            body = self._builder.get_body(copied)
            above = self._builder.add(
                body, id=f"{node.id}-kept-{number}", parent=above, branch=branch, extra={"copiedFrom": copied}
            )
        self._builder.add(
            CustomMessage(custom_type=NOTE, content=summary, display=False),
            id=node.id, parent=above, branch=branch, extra={"copiedFrom": id},
        )  # fmt: skip


def _is_talk(lines: SessionLines, node: LineNode) -> bool:
    """Return whether a node is more than a note of the program."""
    if node.kind != "user":
        return True
    record = lines.read_records(node)[-1]
    text = extract_text(get_object(record, "message").get("content"))
    return not (record.get("isMeta") is True or is_program_text(text))


def build_user_body(message: JsonObject, record: JsonObject, tools: Mapping[str, str]) -> Message | CustomMessage:
    """Return the body for one message of a user line: a message, or a note if the program wrote it.

    `tools` has the names of tools by call id.
    """
    if message["role"] == "toolResult":
        return Message({**message, "toolName": tools.get(message["toolCallId"], message["toolName"])})
    content = message["content"]
    is_meta = record.get("isMeta") is True
    kind = get_object(record, "origin").get("kind")
    is_summary = record.get("isCompactSummary") is True
    if is_meta or is_summary or kind not in (None, "human") or is_program_text(extract_text(content)):
        return CustomMessage(custom_type=NOTE, content=content, display=not is_meta)
    return Message(message)


def is_program_text(text: str) -> bool:
    """Return whether the program wrote the text of a user line, and not the user."""
    return PROGRAM_TEXT.match(text) is not None or has_only_program_text(text)


def join_answer(records: Sequence[JsonObject]) -> JsonObject:
    """Return the message of an answer with the content of all its lines."""
    message = dict(get_object(records[-1], "message"))
    blocks: list[Any] = []
    for record in records:
        content = get_object(record, "message").get("content")
        blocks += (
            [{"type": "text", "text": content}] if isinstance(content, str) else content if is_list(content) else []
        )
    message["content"] = [
        {**block, "signature": coerce_string(block.get("signature"))}
        if is_object(block) and block.get("type") == "thinking"
        else block
        for block in blocks
    ]
    message.setdefault("stop_reason", None)
    return {**message, "type": "message", "role": "assistant"}


def describe_answer(message: JsonObject, record: JsonObject) -> JsonObject:
    """Return the message of an answer with the stop reason of its last line."""
    if record.get("isApiErrorMessage") is True:
        text = extract_text(message["content"])
        return {**message, "content": [], "stopReason": "error", "errorMessage": text or "the request failed"}
    if record.get("isAbortedMidStream") is True:
        return {**message, "stopReason": "length"}  # cut off, but the program sends it again
    return message


FORMAT = ForeignFormat(
    name=NAME,
    title="Claude Code",
    detect=detect,
    read=read,
    find_related=find_related,
    select_sessions=select_sessions,
    write=write_claude_session,
)
