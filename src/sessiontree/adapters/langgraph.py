"""Threads of LangGraph: `TreeSaver` is a checkpoint saver.

Each thread is a session, with the id of the thread as its name. A checkpoint whose parent has another child already
starts a branch, and so does a subgraph; see `langgraph_checkpoints`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple, TypeVar

try:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import (
        WRITES_IDX_MAP,
        BaseCheckpointSaver,
        ChannelVersions,
        Checkpoint,
        CheckpointMetadata,
        CheckpointTuple,
        DeltaChannelHistory,
        PendingWrite,
        get_serializable_checkpoint_metadata,
        writes_sort_key,
    )
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
except ImportError as error:
    raise ImportError(f"TreeSaver needs `pip install 'sessiontree[langgraph]'` ({error})") from error

from sessiontree.adapters.langgraph_checkpoints import (
    BOOKKEEPING,
    CHECKPOINT,
    DELETED,
    THREAD,
    WRITES,
    CheckpointIndex,
    CheckpointKey,
    CheckpointNode,
    read_data,
)
from sessiontree.adapters.langgraph_values import ListItem, ValueCodec, ValueWriter, is_editable
from sessiontree.adapters.session_pool import IndexedSession, SessionPlace, SessionPool, write_on_new_branch
from sessiontree.core.entries import ContextEdit, Custom, EntryId, JsonObject
from sessiontree.core.messages import is_object
from sessiontree.core.place_names import find_free_name
from sessiontree.errors import BranchMoved, FormatError, InvalidOperation
from sessiontree.interop.base import get_object
from sessiontree.library.session_files import resolve_folder
from sessiontree.session import Session
from sessiontree.session.writer import MAX_APPEND_ATTEMPTS, Item
from sessiontree.store.jsonl import Durability

T = TypeVar("T")
OpenThread = IndexedSession[CheckpointIndex]

PROGRAM = "langgraph"


class CheckpointDraft(NamedTuple):
    """A checkpoint to store."""

    key: CheckpointKey
    parent: str | None
    checkpoint: Checkpoint
    metadata: CheckpointMetadata
    new_versions: ChannelVersions


class TreeSaver(BaseCheckpointSaver[int]):
    """Keeps the checkpoints of LangGraph in sessions.

    `place` is a folder, an address such as `postgresql://host/database`, or a repository; by default the usual place.
    Types that LangGraph does not know need to be in `allowed_types`; otherwise their values are read as the data that
    they were made of. This is why a session from somewhere else cannot run code when it is read.
    """

    def __init__(
        self, place: SessionPlace = None, *, allowed_types: Iterable[type] = (), durability: Durability = "fsync"
    ) -> None:
        # An empty list would allow all types.
        super().__init__(serde=JsonPlusSerializer(allowed_msgpack_modules=list(allowed_types) or None))
        self._pool = SessionPool(place, self._build_index, durability)

    def _build_index(self) -> CheckpointIndex:
        return CheckpointIndex(self._codec)

    @property
    def _codec(self) -> ValueCodec:
        assert isinstance(self.serde, JsonPlusSerializer)
        return ValueCodec(self.serde)

    def close(self) -> None:
        """Close all open sessions."""
        self._pool.close()

    # Reading

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint of a thread, by default the latest one; `None` if there is none."""
        thread, namespace, id = _split_config(config)
        with self._pool.use((PROGRAM, thread)) as opened:
            node = None if opened is None else opened.index.find(namespace, id)
            return None if opened is None or node is None else self._build_tuple(opened, node, _get_thread(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield the checkpoints of a thread, or of all threads, the latest first."""
        earlier = None if before is None else before.get("configurable", {}).get("checkpoint_id")
        wanted = {} if config is None else config.get("configurable", {})
        namespace, only = wanted.get("checkpoint_ns"), wanted.get("checkpoint_id")
        for use in self._iter_threads(config):
            with use() as opened:
                keys = [] if opened is None else opened.index.list_keys()
            for key in keys:
                if (
                    (namespace is not None and key[0] != namespace)
                    or (only and key[1] != only)
                    or (earlier and key[1] >= earlier)
                ):
                    continue
                if limit is not None and limit <= 0:
                    return
                with use() as opened:
                    node = None if opened is None else opened.index.nodes.get(key)
                    if opened is None or node is None or not self._has_metadata(node, filter):
                        continue
                    thread = opened.index.thread if config is None else _get_thread(config)
                    found = self._build_tuple(opened, node, thread)
                limit = None if limit is None else limit - 1
                yield found

    def _iter_threads(
        self, config: RunnableConfig | None
    ) -> Iterator[Callable[[], AbstractContextManager[OpenThread | None]]]:
        """Yield for each thread what opens it."""
        if config is not None:
            thread, _, _ = _split_config(config)
            yield partial(self._pool.use, (PROGRAM, thread))
            return
        for stored in self._pool.list_group((PROGRAM,)):
            yield partial(self._pool.use_stored, stored)

    def _has_metadata(self, node: CheckpointNode, filter: dict[str, Any] | None) -> bool:
        if not filter:
            return True
        metadata = self._codec.decode(read_data(node.entry).get("metadata"))
        return is_object(metadata) and all(metadata.get(name) == value for name, value in filter.items())

    def _build_tuple(self, opened: OpenThread, node: CheckpointNode, thread: Any) -> CheckpointTuple:
        data, codec = read_data(node.entry), self._codec
        rest, metadata = codec.decode(data.get("checkpoint")), codec.decode(data.get("metadata"))
        if not is_object(rest) or not is_object(metadata):
            raise FormatError(opened.location, f"the checkpoint {node.key[1]!r} is damaged")
        values = {channel: self._read_value(opened, node, channel) for channel in node.sources}
        checkpoint: Any = {**rest, "id": node.key[1], "channel_values": values}
        namespace = node.key[0]
        return CheckpointTuple(
            config=_build_config(thread, namespace, node.key[1]),
            checkpoint=checkpoint,
            metadata=metadata,  # pyright: ignore[reportArgumentType] - as it was stored
            parent_config=None if node.parent is None else _build_config(thread, namespace, node.parent),
            pending_writes=self._read_writes(opened.index, node.key),
        )

    def _read_value(self, opened: OpenThread, node: CheckpointNode, channel: str) -> Any:
        if opened.index.has_list(node, channel):
            index, tree, decode = opened.index, opened.session.tree, self._codec.decode
            items = [(item.entry, item) for item in index.read_list(node, channel)]
            return [decode(item.form) if id is None else index.read_message(tree, id) for id, item in items]
        return self._codec.decode(get_object(read_data(node.sources[channel].entry), "values").get(channel))

    def _read_writes(self, index: CheckpointIndex, key: CheckpointKey) -> list[PendingWrite]:
        writes = index.writes.get(key, {})
        ordered = sorted(writes, key=lambda place: writes_sort_key(writes[place].path, *place))
        read: dict[EntryId, list[Any]] = {}
        found: list[PendingWrite] = []
        for place in ordered:
            write = writes[place]
            if write.entry.id not in read:
                read[write.entry.id] = read_data(write.entry)["writes"]
            found.append((place[0], write.channel, self._codec.decode(read[write.entry.id][write.number][2])))
        return found

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return the writes to channels since their last stored values, and these values.

        Deleted checkpoints count: the remaining ones may need their writes.
        """
        thread, namespace, id = _split_config(config)
        found: dict[str, DeltaChannelHistory] = {channel: {"writes": []} for channel in channels}
        with self._pool.use((PROGRAM, thread)) as opened:
            node = None if opened is None else opened.index.find(namespace, id)
            remaining = set(channels)
            while opened is not None and node is not None and node.parent is not None and remaining:
                node = opened.index.nodes.get((namespace, node.parent))
                if node is None:
                    break
                for write in reversed(self._read_writes(opened.index, node.key)):
                    if write[1] in remaining:
                        found[write[1]]["writes"].insert(0, write)
                for channel in [channel for channel in remaining if channel in node.sources]:
                    found[channel]["seed"] = self._read_value(opened, node, channel)
                    remaining.discard(channel)
        return found

    # Writing

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint below the one that `config` names."""
        thread, namespace, parent = _split_config(config)
        facts = get_serializable_checkpoint_metadata(config, metadata)

        def write(opened: OpenThread) -> None:
            above = opened.index.nodes.get((namespace, parent or ""))
            base = above or self._find_outer(opened.index, namespace, facts)
            draft = CheckpointDraft((namespace, checkpoint["id"]), parent, checkpoint, facts, new_versions)
            items = self._build_items(opened, draft, base)
            self._write_items(opened, items, namespace, base, is_first=above is None)

        self._write(thread, write)
        return _build_config(_get_thread(config), namespace, checkpoint["id"])

    def _write(self, thread: str, write: Callable[[OpenThread], None]) -> None:
        """Write to a thread, and write again if another process was first."""

        def try_write(opened: OpenThread) -> None:
            for _ in range(MAX_APPEND_ATTEMPTS):
                try:
                    if opened.index.thread is None:
                        named = Custom(custom_type=THREAD, data={"thread": thread})
                        opened.session.append_at_head(lambda named=named: Item(named))
                        opened.update()
                    write(opened)
                    opened.update()
                    return
                except BranchMoved:
                    opened.update()
            raise InvalidOperation(f"other processes keep writing to thread {thread!r}; retry later")

        self._pool.write((PROGRAM, thread), resolve_folder("."), try_write)

    def _find_outer(
        self, index: CheckpointIndex, namespace: str, metadata: CheckpointMetadata
    ) -> CheckpointNode | None:
        """Return the checkpoint of the graph that started a subgraph."""
        parents = metadata.get("parents", {})
        outer = [ns for ns in parents if namespace.startswith(ns) and ns != namespace]
        return next((index.nodes.get((ns, parents[ns])) for ns in sorted(outer, key=len, reverse=True)), None)

    def _build_items(self, opened: OpenThread, draft: CheckpointDraft, base: CheckpointNode | None) -> list[Item]:
        index, checkpoint, values = opened.index, draft.checkpoint, draft.checkpoint["channel_values"]
        inherited: dict[str, CheckpointNode] = {} if base is None or base.key[0] != draft.key[0] else base.sources
        unchanged = set[str]() if base is None or not inherited else self._find_unchanged(draft, base)
        lists: dict[str, list[ListItem]] = {}
        if base is not None:
            named = [name for name in values if type(values[name]) is list and index.has_list(base, name)]
            lists = {name: index.read_list(base, name) for name in named if name not in unchanged}
        others = [item for items in lists.values() for item in items] if len(lists) > 1 else []
        writer = ValueWriter(self._codec, others, index.tools)
        forms: JsonObject = {}
        for name, value in values.items():
            if name in unchanged:
                continue
            form = writer.encode(value, lists.get(name))
            if form is None and name not in inherited:
                form = {"list": [len(lists[name]), 0], "items": []}
            if form is not None:
                forms[name] = form
        rest = {name: value for name, value in checkpoint.items() if name not in ("id", "channel_values")}
        run = draft.metadata.get("run_id")
        data: JsonObject = {
            "ns": draft.key[0],
            "id": draft.key[1],
            "parent": draft.parent,
            "run": run if isinstance(run, str) else None,
            "base": None if base is None else list(base.key),
            "checkpoint": self._codec.encode(rest),
            "metadata": self._codec.encode(draft.metadata),
            "values": forms,
            "absent": [name for name in inherited if name not in values],
        }
        data = {name: value for name, value in data.items() if value is not None and value != []}
        tree = opened.session.tree
        edits = [Item(ContextEdit(target=id)) for id in writer.list_dropped() if id in tree and is_editable(tree[id])]
        return [*writer.items, *edits, Item(Custom(custom_type=CHECKPOINT, data=data))]

    def _find_unchanged(self, draft: CheckpointDraft, base: CheckpointNode) -> set[str]:
        """Return the channels with the same version, and therefore the same value, as in the parent."""
        versions = draft.checkpoint["channel_versions"]
        before = get_object(self._codec.decode(read_data(base.entry).get("checkpoint")), "channel_versions")
        return {
            name
            for name in draft.checkpoint["channel_values"]
            if name in base.sources
            and name not in draft.new_versions
            and name in versions
            and versions[name] == before.get(name)
        }

    def _write_items(
        self, opened: OpenThread, items: list[Item], namespace: str, base: CheckpointNode | None, *, is_first: bool
    ) -> None:
        """Write a checkpoint after its parent: on the branch of the parent, if nothing follows it, or on a new one."""
        session, heads = opened.session, opened.session.heads
        if not opened.index.nodes:
            session.extend(items, branch=heads.current, expected=heads.leaf)
            return
        if base is not None and not is_first and _is_last(session, base):
            session.extend(items, branch=base.branch, expected=heads.heads[base.branch])
            return
        stem = _clean_branch_name(namespace) if is_first and namespace else "fork"
        name = find_free_name(stem, heads.heads)
        start = None if base is None else base.entry.id
        write_on_new_branch(session, name, start, items, is_current=not namespace)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store writes of a task that belong to a checkpoint. A write that is stored already stays as it is."""
        thread, namespace, id = _split_config(config)
        if id is None:
            raise InvalidOperation("pending writes need the checkpoint_id that they belong to")
        key = namespace, id
        forms: Sequence[Any] = [
            [WRITES_IDX_MAP.get(channel, number), channel, self._codec.encode_write(value)]
            for number, (channel, value) in enumerate(writes)
        ]

        def write(opened: OpenThread) -> None:
            known = opened.index.writes.get(key, {})
            new = [form for form in forms if form[0] < 0 or (task_id, form[0]) not in known]
            if not new:
                return
            node = opened.index.nodes.get(key)
            branch = opened.index.last_branch if node is None else node.branch
            heads = opened.session.heads
            branch = branch if branch in heads.heads else heads.current
            data = {"ns": namespace, "id": id, "task": task_id, "path": task_path, "writes": new}
            custom = Custom(custom_type=WRITES, data=data)
            opened.session.extend([custom], branch=branch, expected=heads.heads[branch])

        self._write(thread, write)

    # Deleting and copying

    def delete_thread(self, thread_id: str) -> None:
        """Move the session of a thread to the trash."""
        self._pool.delete((PROGRAM, str(thread_id)))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of runs, in all threads. Their entries stay in the tree."""
        runs = {str(run) for run in run_ids}
        for stored in self._pool.list_group((PROGRAM,)):
            if not any(self._pool.repository.may_contain(stored.location, run.encode()) for run in runs):
                continue
            with self._pool.use_stored(stored) as opened:
                if opened is not None:
                    self._mark_deleted(opened, [key for key, node in opened.index.nodes.items() if node.run in runs])

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete all checkpoints of threads, or with `keep_latest` all but the latest of each namespace."""
        if strategy not in ("keep_latest", "delete"):
            raise InvalidOperation(f"no strategy {strategy!r}; choose keep_latest or delete")
        for thread in thread_ids:
            if strategy == "delete":
                self.delete_thread(thread)
                continue
            with self._pool.use((PROGRAM, str(thread))) as opened:
                if opened is not None:
                    latest = dict(reversed(opened.index.list_keys()))  # the first one of each namespace
                    self._mark_deleted(opened, [key for key in opened.index.nodes if latest.get(key[0]) != key[1]])

    def _mark_deleted(self, opened: OpenThread, keys: Sequence[CheckpointKey]) -> None:
        new = [list(key) for key in keys if key not in opened.index.deleted]
        if new:
            opened.session.append_at_head(lambda: Item(Custom(custom_type=DELETED, data={"checkpoints": new})))
            opened.update()

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread with its whole tree. Raises `InvalidOperation` if the target exists."""
        source, target = str(source_thread_id), str(target_thread_id)
        with self._pool.use((PROGRAM, source)) as opened:
            if opened is None:
                return
            named = Custom(custom_type=THREAD, data={"thread": target})
            self._pool.copy(opened, (PROGRAM, target), named)

    # Asynchronous methods

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await asyncio.to_thread(self.get_tuple, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        found = self.list(config, filter=filter, before=before, limit=limit)
        while (each := await asyncio.to_thread(next, found, None)) is not None:
            yield each

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await asyncio.to_thread(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        await asyncio.to_thread(self.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        await asyncio.to_thread(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await asyncio.to_thread(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await asyncio.to_thread(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await asyncio.to_thread(lambda: self.prune(thread_ids, strategy=strategy))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return await asyncio.to_thread(lambda: self.get_delta_channel_history(config=config, channels=channels))


def _get_thread(config: RunnableConfig) -> Any:
    return config.get("configurable", {}).get("thread_id")


def _split_config(config: RunnableConfig) -> tuple[str, str, str | None]:
    """Return the thread, the namespace and the checkpoint that a config names."""
    configurable = config.get("configurable", {})
    thread = configurable.get("thread_id")
    if thread is None or thread == "":
        raise InvalidOperation('the config needs a thread_id, such as {"configurable": {"thread_id": "1"}}')
    return str(thread), configurable.get("checkpoint_ns") or "", configurable.get("checkpoint_id") or None


def _build_config(thread: Any, namespace: str, id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": id}}


def _is_last(session: Session, node: CheckpointNode) -> bool:
    """Return whether only bookkeeping follows a checkpoint on its branch."""
    at = session.heads.heads.get(node.branch)
    while at is not None and at != node.entry.id:
        entry = session.tree[at]
        if entry.custom_type not in BOOKKEEPING:
            return False
        at = session.tree.parent(at)
    return at is not None


def _clean_branch_name(namespace: str) -> str:
    """Return the name of the node that runs a subgraph, as a branch may be named."""
    node = namespace.rpartition("|")[2].partition(":")[0]
    return re.sub(r"[^\w.-]+", "-", node).strip("-.")[:64] or "subgraph"
