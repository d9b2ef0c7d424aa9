"""Sessions of the OpenAI Agents SDK as trees: an implementation of its `Session` protocol.

The id of a session is its name. All items of one answer are one message, and every other item is one. What a stored
message does not give back exactly is in a field of its line. Removing items moves the branch, so nothing is lost.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from itertools import groupby
from typing import Any, NamedTuple, TypeVar, cast

import orjson

try:
    from agents import RunContextWrapper, SessionSettings, TResponseInputItem
    from agents.exceptions import UserError
    from agents.memory.session_settings import coerce_session_settings, resolve_session_limit
    from agents.usage import Usage
except ImportError as error:
    raise ImportError(f"TreeSession needs `pip install 'sessiontree[openai-agents]'` ({error})") from error

from sessiontree.adapters.named_sessions import NamedSessions, walk_up_messages
from sessiontree.adapters.session_pool import SessionPlace
from sessiontree.convert.openai_responses import restore_items, store_items
from sessiontree.core.context import build_shared_context
from sessiontree.core.entries import Body, Entry, EntryId, JsonObject, Message
from sessiontree.core.messages import (
    complete_usage,
    convert_for_model,
    extract_text,
    get_role,
    is_list,
    is_object,
)
from sessiontree.errors import BranchMoved, Conflict, InvalidOperation, NotFound
from sessiontree.session import Item, Session
from sessiontree.session.branch import BranchInfo
from sessiontree.store.jsonl import Durability

T = TypeVar("T")

EXTRA_KEY = "openaiAgents"
"""The field of a line for `items` that the stored message does not give back, `None` for one that it does."""
STORED_ROLES = frozenset({"user", "assistant", "toolResult", "system"})
MAX_KEPT = 8 << 20
"""How many bytes of restored items a session keeps in memory for the next turn."""


class SessionTurn(NamedTuple):
    """A message of the user on a branch."""

    number: int
    """Its number on the branch, from 1."""
    entry: EntryId
    text: str


class TreeSession:
    """A session of the OpenAI Agents SDK, kept as a tree with branches.

    It lives in a folder, in a database, or in the usual place. Several processes may use it at the same time. `model`
    is the name of the model for the answers of the agent, such as `gpt-5.5`. With it, costs are known.
    """

    session_settings: SessionSettings | None = None

    def __init__(
        self,
        session_id: str,
        place: SessionPlace = None,
        *,
        branch: str | None = None,
        model: str | None = None,
        provider: str = "openai",
        session_settings: SessionSettings | dict[str, Any] | None = None,
        durability: Durability = "fsync",
    ) -> None:
        self.session_id = session_id
        self.session_settings = (
            SessionSettings() if session_settings is None else coerce_session_settings(session_settings)
        )
        self._sessions = NamedSessions(place, durability)
        self._branch = branch
        """The branch of this object; `None` until it is known which one is current."""
        self._model, self._provider = model, provider
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="sessiontree-agents")
        self._is_closed = False
        self._kept = _KeptItems()
        self._counted: dict[int, tuple[weakref.ref[Usage], list[int]]] = {}
        """What of the usage of each run is already stored."""

    # The protocol of the SDK

    async def get_items(
        self,
        limit: int | None = None,
        *,
        branch: str | None = None,
        wrapper: RunContextWrapper[Any] | None = None,
    ) -> list[TResponseInputItem]:
        """Return the items of this branch or another one, or its last `limit` items, oldest first."""
        count = resolve_session_limit(limit, self.session_settings)

        def read() -> list[JsonObject]:
            session = self._open()
            if session is None:
                return []
            with session.hold_lock():
                return _read_items(session, self._get_head(session, branch), count, self._kept)

        return cast("list[TResponseInputItem]", await self._run(read))

    async def add_items(
        self, items: list[TResponseInputItem], *, wrapper: RunContextWrapper[Any] | None = None
    ) -> None:
        """Append items to this branch, all or none. Raises `UserError` if an item is not an item of the SDK."""
        self._check_open()
        if not items:
            return
        given: list[Any] = list(items)
        usage = None if wrapper is None else wrapper.usage
        await self._run(lambda: self._add_items_sync(given, usage))

    async def pop_item(self, *, wrapper: RunContextWrapper[Any] | None = None) -> TResponseInputItem | None:
        """Remove the last item from this branch and return it. It stays in the tree, and `undo` brings it back."""
        return cast("TResponseInputItem | None", await self._run(self._pop_item_sync))

    async def clear_session(self, *, wrapper: RunContextWrapper[Any] | None = None) -> None:
        """Move this branch to before its first item. Everything stays in the tree, and `undo` brings it back."""

        def clear() -> None:
            session = self._open()
            while session is not None:
                head = self._get_head(session)
                try:
                    session.move(None, branch=self._get_branch(session), expected=head)
                    return
                except (BranchMoved, Conflict):
                    session.refresh()

        await self._run(clear)

    # Branches

    async def branch(self, name: str, at: int | str | None = None) -> None:
        """Create a branch and continue there: at the end of this one, before a turn, or at any other place.

        `at` is the number of a turn as in `turns`, or an entry, a label or a branch.
        """

        def create() -> None:
            session = self._sessions.open_or_create(self.session_id)
            place = at if isinstance(at, str) else self._find_turn_start(session, at)
            session.create_branch(name, at=place)
            self._branch = name

        await self._run(create)

    async def switch(self, name: str) -> None:
        """Continue on another branch. It is also the one that other programs open the session on."""

        def switch() -> None:
            session = self._require()
            session.switch(session.branch(name))
            self._branch = name

        await self._run(switch)

    async def undo(self) -> str:
        """Undo the last move, such as `pop_item`, `clear_session` or `switch`, and return a description of it."""

        def undo() -> str:
            session = self._require()
            plan = session.undo()
            self._branch = session.heads.current
            return plan.undo_description or ""

        return await self._run(undo)

    async def branches(self) -> list[BranchInfo]:
        """Return all branches, in the order they were created."""

        def read() -> list[BranchInfo]:
            session = self._open()
            return [] if session is None else session.branches

        return await self._run(read)

    async def archive_branch(self, name: str) -> None:
        """Hide a branch from listings. Nothing is removed."""
        await self._run(lambda: self._require().archive_branch(name))

    async def turns(self, text: str = "", *, branch: str | None = None) -> list[SessionTurn]:
        """Return the messages of the user on this branch or another one that contain `text`."""

        def read() -> list[SessionTurn]:
            session = self._open()
            found = [] if session is None else _read_turns(session, self._get_head(session, branch))
            return [turn for turn in found if text.lower() in turn.text.lower()]

        return await self._run(read)

    async def usage(self, *, branch: str | None = None) -> Usage:
        """Return what the answers on this branch or another one used together."""

        def read() -> Usage:
            session = self._open()
            total = Usage()
            for message in () if session is None else _iter_messages(session, self._get_head(session, branch)):
                used = message.get("usage")
                if is_object(used) and get_role(message) == "assistant" and used.get("totalTokens"):
                    total.add(_restore_usage(used))
            return total

        return await self._run(read)

    async def open_session(self) -> Session:
        """Return the session itself, to compare, search or export it. It is created if it does not exist."""
        return await self._run(lambda: self._sessions.open_or_create(self.session_id))

    def close(self) -> None:
        """Close the session after all calls that were made before. A second call does nothing."""
        self._is_closed = True
        self._worker.shutdown(wait=True)
        self._sessions.close()

    async def __aenter__(self) -> TreeSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    # In the worker thread, which runs one call after the other

    def _check_open(self) -> None:
        if self._is_closed:
            raise UserError(f"the session {self.session_id!r} is closed")

    async def _run(self, function: Callable[[], T]) -> T:
        """Call a function in the worker thread. One that has started ends, even if this task is cancelled."""
        self._check_open()
        try:
            return await asyncio.wrap_future(self._worker.submit(function))
        except (InvalidOperation, NotFound) as error:
            raise UserError(str(error)) from error

    def _open(self) -> Session | None:
        return self._sessions.open(self.session_id)

    def _require(self) -> Session:
        session = self._open()
        if session is None:
            raise UserError(f"the session {self.session_id!r} has no items yet")
        return session

    def _get_branch(self, session: Session, branch: str | None = None) -> str:
        if branch is None and self._branch is None:
            self._branch = session.heads.current
        return branch or self._branch or session.heads.current

    def _get_head(self, session: Session, branch: str | None = None) -> EntryId | None:
        name = self._get_branch(session, branch)
        if name not in session.heads.heads:
            raise NotFound("branch", name)
        return session.heads.heads[name]

    def _find_turn_start(self, session: Session, turn: int | None) -> Entry | None:
        """Return the entry before a turn, or the end of this branch."""
        head = self._get_head(session)
        if turn is None:
            return None if head is None else session.tree[head]
        turns = _read_turns(session, head)
        if not 1 <= turn <= len(turns):
            raise UserError(f"turn {turn} not found; the branch has {len(turns)} turns")
        parent = session.tree.skip_annotations(session.tree[turns[turn - 1].entry].parent)
        return None if parent is None else session.tree[parent]

    def _add_items_sync(self, items: list[Any], usage: Usage | None) -> None:
        session = self._open()
        if session is None:
            store_items(items, ())  # nothing is created if an item is malformed
            session = self._sessions.open_or_create(self.session_id)
        while True:
            head = self._get_head(session)
            stored = store_items(items, walk_up_messages(session, head))
            answers = [message for message, _ in stored if get_role(message) == "assistant"]
            if answers and usage is not None:
                self._describe_answer(answers[-1], usage)
            try:
                session.extend([_build_item(*pair) for pair in stored], branch=self._get_branch(session), expected=head)
                break
            except BranchMoved:
                pass  # another program appended: the items go after its items
        if answers and usage is not None:
            self._counted = {key: kept for key, kept in self._counted.items() if kept[0]() is not None}
            self._counted[id(usage)] = (weakref.ref(usage), _count_tokens(usage))

    def _describe_answer(self, message: JsonObject, usage: Usage) -> None:
        """Add the model, and what the run used since its last answer was stored."""
        known = self._counted.get(id(usage))
        before = known[1] if known is not None and known[0]() is usage else [0] * 4
        input, output, read, written = (now - then for now, then in zip(_count_tokens(usage), before, strict=True))
        if self._model is not None:
            message["model"], message["provider"] = self._model, self._provider
        if input or output:
            counts: JsonObject = {
                "input": max(0, input - read - written),
                "output": output,
                "cacheRead": read,
                "cacheWrite": written,
            }
            cost = {} if self._model is None else _look_up_cost(self._model, self._provider, counts)
            message["usage"] = complete_usage({**counts, "cost": cost})

    def _pop_item_sync(self) -> JsonObject | None:
        session = self._open()
        while session is not None:
            head = self._get_head(session)
            found = _find_last_items(session, head)
            if found is None:
                return None
            entry, items = found
            body = entry.body
            rest = [_build_item(*pair) for pair in store_items(items[:-1], ())]
            if rest and isinstance(body, Message) and isinstance(rest[-1].body, Message):
                described = {key: body.message[key] for key in ("usage", "model", "provider") if key in body.message}
                rest[-1].body.message.update(described)
            above = None if entry.parent is None else session.tree[entry.parent]
            try:
                session.move(above, cast("list[Body | Item]", rest), branch=self._get_branch(session), expected=head)
                return deepcopy(items[-1])  # the entry may share it
            except (BranchMoved, Conflict):
                session.refresh()
        return None


class _ItemGroup(NamedTuple):
    """The items of one message: as JSON without the brackets, or as they are if JSON cannot hold them."""

    length: int
    text: bytes | None
    items: list[JsonObject]


class _KeptItems:
    """The items of messages that were read before. They are kept as JSON because every caller gets new objects."""

    def __init__(self) -> None:
        self._texts: dict[EntryId, tuple[JsonObject, bytes, int]] = {}
        self._size = 0

    def read(self, entry: Entry, message: JsonObject) -> _ItemGroup:
        """Return the items of a message of the context, which may be another one than that of its entry."""
        kept = self._texts.get(entry.id)
        if kept is not None and kept[0] is message:
            return _ItemGroup(kept[2], kept[1], [])
        items = _restore_message(entry, message)
        text = _dump_items(items)
        if text is None:
            return _ItemGroup(len(items), None, deepcopy(items))
        if len(text) <= MAX_KEPT:
            self._size += len(text)
            if self._size > MAX_KEPT:
                self._texts, self._size = {}, len(text)
            self._texts[entry.id] = message, text, len(items)
        return _ItemGroup(len(items), text, [])


def _dump_items(items: list[JsonObject]) -> bytes | None:
    """Return items as JSON without the brackets, or `None` if reading it would not give equal items."""
    try:
        text = orjson.dumps(items)
        return text[1:-1] if orjson.loads(text) == items else None
    except (TypeError, ValueError):
        return None


def _read_items(session: Session, head: EntryId | None, limit: int | None, kept: _KeptItems) -> list[JsonObject]:
    """Return the items of what the model sees at an entry. No limit and a negative one mean all of them."""
    wanted = None if limit is None or limit < 0 else limit
    context = build_shared_context(session.tree, head)
    groups: list[_ItemGroup] = []
    size = 0
    for source, message in zip(reversed(context.sources), reversed(context.messages), strict=True):
        if wanted is not None and size >= wanted:
            break
        groups.append(kept.read(session.tree[source], message))
        size += groups[-1].length
    items: list[JsonObject] = []
    for is_text, run in groupby(reversed(groups), lambda group: group.text is not None):
        if is_text:
            items += orjson.loads(b"[" + b",".join(group.text or b"" for group in run if group.length) + b"]")
        else:
            items += (item for group in run for item in group.items)
    return items if wanted is None else items[max(0, size - wanted) :]


def _restore_message(entry: Entry, message: JsonObject) -> list[JsonObject]:
    """Return the items of a message exactly as they were added, or the items that other messages are sent as."""
    sent = message if get_role(message) in STORED_ROLES else convert_for_model(message)
    restored = [] if sent is None else restore_items(sent)
    kept = (entry.extra or {}).get(EXTRA_KEY)
    items = kept.get("items") if is_object(kept) else None
    if not is_list(items):
        return restored
    return [restored[index] if item is None else item for index, item in enumerate(items)]


def _build_item(message: JsonObject, items: list[JsonObject]) -> Item:
    restored = restore_items(message)
    if restored == items:
        return Item(Message(message))
    is_aligned = len(restored) == len(items)
    kept = [None if is_aligned and item == restored[index] else item for index, item in enumerate(items)]
    return Item(Message(message), {EXTRA_KEY: {"items": kept}})


def _iter_messages(session: Session, head: EntryId | None) -> Iterator[JsonObject]:
    for entry in session.tree.path(head):
        body = entry.body if entry.type == "message" else None
        if isinstance(body, Message):
            yield body.message


def _read_turns(session: Session, head: EntryId | None) -> list[SessionTurn]:
    turns: list[SessionTurn] = []
    for entry in session.tree.path(head):
        body = entry.body if entry.type == "message" else None
        if isinstance(body, Message) and get_role(body.message) == "user":
            turns.append(SessionTurn(len(turns) + 1, entry.id, extract_text(body.message.get("content"))))
    return turns


def _find_last_items(session: Session, head: EntryId | None) -> tuple[Entry, list[JsonObject]] | None:
    """Return the last entry with items, and its items."""
    for entry in session.tree.walk_up(head):
        context = build_shared_context(session.tree, entry.id)
        for source, message in zip(context.sources, context.messages, strict=True):
            items = _restore_message(entry, message) if source == entry.id else []
            if items:
                return entry, items
    return None


def _count_tokens(usage: Usage) -> list[int]:
    details = usage.input_tokens_details
    written = getattr(details, "cache_write_tokens", 0) or 0
    return [usage.input_tokens, usage.output_tokens, details.cached_tokens or 0, written]


def _restore_usage(used: JsonObject) -> Usage:
    read, written = int(used.get("cacheRead") or 0), int(used.get("cacheWrite") or 0)
    input, output = int(used.get("input") or 0) + read + written, int(used.get("output") or 0)
    usage = Usage(requests=1, input_tokens=input, output_tokens=output, total_tokens=input + output)
    usage.input_tokens_details.cached_tokens = read
    return usage


def _look_up_cost(model: str, provider: str, counts: JsonObject) -> JsonObject:
    """Return the cost from the list of prices, or nothing if it does not have the model."""
    from genai_prices import Usage as PricedUsage
    from genai_prices import calc_price

    used = PricedUsage(
        input_tokens=counts["input"] + counts["cacheRead"] + counts["cacheWrite"],
        output_tokens=counts["output"],
        cache_read_tokens=counts["cacheRead"],
        cache_write_tokens=counts["cacheWrite"],
    )
    try:
        price = calc_price(used, model_ref=model, provider_id=provider)
    except (LookupError, ValueError):
        return {}
    return {
        "input": float(price.input_price),
        "output": float(price.output_price),
        "total": float(price.total_price),
    }
