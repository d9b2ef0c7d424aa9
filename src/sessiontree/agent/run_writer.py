"""Write the entries of a run, and keep messages that do not fit into an entry or cannot be written.

A run appends to its branch. If the branch was moved, it writes late entries: children of the entry where the run was,
which are on no branch and move no branch. Writes wait for the disk, so a thread does them, one after the other. If a
message is too long for an entry, the entry has the first part and names a file with the rest. Messages that cannot be
written at all are saved in the temporary folder, and stay in memory until they can be written.
"""

from __future__ import annotations

import asyncio
import copy
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, TypeVar, cast

from sessiontree.agent.tool import limit_depth
from sessiontree.agent.tools.output_limits import MAX_BYTES
from sessiontree.core.entries import Body, Entry, EntryId, JsonObject, Message
from sessiontree.core.message_input import check_message
from sessiontree.core.messages import build_text_blocks, coerce_string, get_role, is_list, is_object
from sessiontree.core.normalize import check_body
from sessiontree.errors import BranchMoved, InvalidOperation, LockTimeout, NotFound, SessionTreeError, StoreError
from sessiontree.format.codec import encode_body
from sessiontree.format.json_line import LINE_LIMIT, write_value
from sessiontree.format.nesting import is_deep
from sessiontree.home import get_home
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import Notice
from sessiontree.session import Branch, Session
from sessiontree.session.write_queue import run_write
from sessiontree.store.file_operations import (
    discard,
    format_os_error,
    iter_numbered_paths,
    make_private_directory,
    sync_directory,
    write_all,
    write_private,
)
from sessiontree.store.lock import get_configured_limit, limit_wait

B = TypeVar("B", bound=Body)

CONVERSATION_TYPES = frozenset({"message", "custom_message", "branch_summary", "compaction", "reset_boundary"})
"""Entries of the conversation. Other entries, such as settings and context edits, may be appended by other writers
during a run; the next request includes them."""

LOCK_WAIT_SECONDS = 1.0
"""How long a writer thread waits for the lock, in seconds. It blocks readers of the session while it waits."""

MAX_MESSAGE_BYTES = LINE_LIMIT - (1 << 16)
"""The largest message, in bytes. Its line also needs space for the other fields of the entry."""
OVERFLOW_FOLDER = "answers"
"""The folder in the home for long messages of sessions without a file."""
OVERFLOW_SUFFIX = ".rest"
"""Follows the name of the session in the names of such files."""
NOTE_BYTES = 1 << 13
"""Bytes reserved for the note that names the file."""
CHUNK_CHARS = 1 << 20
"""Characters that are measured in one step."""


async def _write_in_thread(
    session: Session, write: Callable[[Sequence[Body]], list[Entry]], bodies: Sequence[Body]
) -> list[Entry]:
    """Write in a thread. While another process holds the lock, wait without a thread and without blocking readers."""

    def write_with_limit(seconds: float) -> list[Entry]:
        with limit_wait(seconds):
            return write(bodies)

    started = time.monotonic()
    try:
        # The lock is nearly always free. Asking first would take as long as the write itself.
        return await run_write(session, partial(write_with_limit, 0.0))
    except LockTimeout:
        pass
    seconds = get_configured_limit()
    while True:
        await _wait_for_lock(session)
        try:
            return await run_write(session, partial(write_with_limit, LOCK_WAIT_SECONDS))
        except LockTimeout:
            if time.monotonic() - started >= seconds:
                raise


async def _wait_for_lock(session: Session) -> None:
    """Wait until no other process writes to the session. Raises `LockTimeout`."""
    store = session.store
    for pause in store.get_lock_wait() or ():
        await asyncio.sleep(pause)
        if store.get_lock_wait() is None:
            return


class RunWriter:
    def __init__(self, branch: Branch) -> None:
        self.branch = branch
        self.leaf: EntryId | None = branch.leaf
        """The last entry of the run."""
        self.moved_error: SessionTreeError | None = None
        """Set once the branch has moved elsewhere; from then on all entries are late."""
        self._lock = asyncio.Lock()

    def follow_head(self) -> EntryId | None:
        """Return the position of the run, after annotations that other writers have appended."""
        if self.moved_error is None:
            try:
                self.leaf = self._find_head()
            except (BranchMoved, NotFound) as error:
                self.moved_error = error
        return self.leaf

    def has_branch_moved(self) -> bool:
        """Return whether the branch has moved elsewhere."""
        self.follow_head()
        return self.moved_error is not None

    def detach(self, reason: SessionTreeError) -> None:
        """Write all further entries as late entries."""
        self.moved_error = self.moved_error or reason

    async def extend(self, bodies: Sequence[Body]) -> list[Entry]:
        """Append entries to the branch. Raises `BranchMoved` and writes nothing if it was moved."""
        async with self._lock:
            if self.moved_error is not None:
                raise self.moved_error
            return await self._write(self._extend_branch, bodies)

    async def extend_or_append_late(self, bodies: Sequence[Body]) -> list[Entry]:
        """Append entries to the branch, or as late entries if it was moved."""
        async with self._lock:
            if self.moved_error is None:
                try:
                    return await self._write(self._extend_branch, bodies)
                except (BranchMoved, NotFound) as error:
                    self.moved_error = error
            return await self._write(self._append_late, bodies)

    async def _write(self, write: Callable[[Sequence[Body]], list[Entry]], bodies: Sequence[Body]) -> list[Entry]:
        entries = await _write_in_thread(self.branch.session, write, bodies)
        self.leaf = entries[-1].id
        return entries

    def _extend_branch(self, bodies: Sequence[Body]) -> list[Entry]:
        session, name = self.branch.session, self.branch.name
        while True:
            head = self._find_head()
            try:
                if len(bodies) == 1:  # takes fewer steps
                    return [session.append(bodies[0], branch=name, expected=head)]
                return list(session.extend(bodies, branch=name, expected=head))
            except BranchMoved:
                self._find_head()  # raises again, unless the new entries are annotations

    def _append_late(self, bodies: Sequence[Body]) -> list[Entry]:
        session = self.branch.session
        parent = None if self.leaf is None else session.tree[self.leaf]
        return list(session.extend(bodies, parent=parent, branch=None))

    def _find_head(self) -> EntryId | None:
        """Return the head of the branch. Raises `BranchMoved` if it is not where the run left it."""
        head = self.branch.leaf
        if head == self.leaf:
            return head
        tree, moved_by = self.branch.session.tree, self._build_move_check()
        for entry in tree.walk_up(head):
            if entry.id == self.leaf:
                return head
            if moved_by(entry):
                break
        else:
            if self.leaf is None:
                return head
        raise BranchMoved(self.branch.name, self.leaf, head)

    def _build_move_check(self) -> Callable[[Entry], bool]:
        """Return a function that tests whether an entry after the run's position means that the branch has moved."""
        return lambda entry: entry.type in CONVERSATION_TYPES


class BackgroundWriter(RunWriter):
    """A writer for background work, such as a command of the user: it appends after messages that came since."""

    def __init__(self, branch: Branch) -> None:
        super().__init__(branch)
        self._initial_end = branch.session.tree.end
        """The position after the last entry at the start."""

    def _build_move_check(self) -> Callable[[Entry], bool]:
        since = {entry.id for entry in self.branch.session.tree.get_entries_since(self._initial_end)}
        return lambda entry: not entry.is_annotation and entry.id not in since


# Messages that fit into an entry


def make_message_jsonable(message: JsonObject) -> JsonObject:
    """Return `message` with parts that are nested too deeply as text."""
    if not is_deep({"message": message}):
        return message
    content = message.get("content")
    converted = {key: limit_depth(value) for key, value in message.items()}
    if is_list(content):
        converted["content"] = [
            {key: limit_depth(value) for key, value in block.items()} if is_object(block) else limit_depth(block)
            for block in content
        ]
    return converted


def find_write_problem(message: JsonObject, limit: float = MAX_MESSAGE_BYTES) -> str | None:
    """Return why a message cannot be written; `None` if it can."""
    try:
        size = len(write_value(message))
    except (SessionTreeError, TypeError, ValueError, RecursionError) as error:
        return str(error)
    return None if size <= limit else f"its {size} bytes exceed the {limit} bytes that an entry can hold"


def find_message_problem(message: JsonObject) -> str | None:
    """Return why a new message would be refused; `None` if it can be written and sent to a model."""
    try:
        check_message(message)
    except InvalidOperation as error:
        return str(error)
    return find_write_problem(message)


def copy_writable(body: B) -> B:
    """Return a copy of an entry body, to be written later. Raises `InvalidOperation` if it would be refused."""
    checked = cast("B", check_body(body))  # which keeps the type
    problem = find_write_problem(encode_body(checked))
    if problem is not None:
        raise InvalidOperation(f"the entry cannot be written: {problem}")
    return copy.deepcopy(checked)


async def write_message(writer: RunWriter, message: JsonObject, hooks: Hooks) -> Entry:
    """Write a message, late if necessary. If it is too long for an entry, write the rest to a file and name the file.

    Raises `StoreError`.
    """
    fitted = fit_message(message)
    if fitted.overflow:
        path, size = await asyncio.to_thread(_write_overflow, writer.branch.session, fitted.overflow)
        message = _add_overflow_note(fitted, path, size)
        text = f"a message is too long for one entry; its remaining {size} bytes are in {path}"
        hooks.notify_listeners(Notice(level="warning", text=text))
    (entry,) = await writer.extend_or_append_late([Message(message)])
    return entry


class FittedMessage(NamedTuple):
    """A message that fits into an entry, and the blocks that do not fit."""

    message: JsonObject
    overflow: list[JsonObject]


def fit_message(message: JsonObject, limit: int = MAX_MESSAGE_BYTES) -> FittedMessage:
    """Split a message: as much as fits into `limit` bytes, and the rest from the first block that does not fit.

    A tool result that is too long is cut to the size that built-in tools show to a model.
    """
    try:
        if len(write_value(message)) <= limit:
            return FittedMessage(message, [])
    except (SessionTreeError, TypeError, ValueError, RecursionError):
        return FittedMessage(message, [])  # it cannot be encoded at all
    if get_role(message) == "toolResult":
        limit = min(limit, MAX_BYTES + NOTE_BYTES)
    rest: list[JsonObject] = []
    kept: list[JsonObject] = []
    bare = {key: value for key, value in message.items() if key != "content"}
    if "details" in bare and len(write_value(bare)) > limit // 2:
        rest.append({"type": "details", "details": bare.pop("details")})
    space = limit - NOTE_BYTES - len(write_value(bare))
    cut = False
    content = message.get("content")
    for block in content if is_list(content) else build_text_blocks(coerce_string(content)):
        size = len(write_value(block)) + 1
        if not cut and size <= space:
            kept.append(block)
            space -= size
        elif not cut and is_object(block) and (parts := _split_block(block, space)) is not None:
            cut = True
            kept.append(parts[0])
            rest.append(parts[1])
        else:
            cut = True
            rest.append(block)
    return FittedMessage({**bare, "content": kept}, rest)


def _split_block(block: JsonObject, space: int) -> tuple[JsonObject, JsonObject] | None:
    """Split a text block so the first part fits; `None` for other blocks."""
    kind = coerce_string(block.get("type"))
    text = block.get(kind) if kind in ("text", "thinking") else None
    if not isinstance(text, str):
        return None
    at = _count_fitting_chars(text, space - len(write_value({"type": kind, kind: ""})))
    # A signature is dropped: it is only valid for the complete block.
    return {"type": kind, kind: text[:at]}, {"type": kind, kind: text[at:]}


def _count_fitting_chars(text: str, space: int) -> int:
    """Return how many characters of a text fit into `space` bytes of JSON."""
    at, step = 0, CHUNK_CHARS
    while step and at < len(text):
        size = len(write_value(text[at : at + step])) - 2
        if size <= space:
            at, space = min(at + step, len(text)), space - size
        else:
            step //= 2
    return at


def _add_overflow_note(fitted: FittedMessage, path: str, size: int) -> JsonObject:
    """Return the message with a note that names the file with the rest."""
    what = "result" if get_role(fitted.message) == "toolResult" else "answer"
    note = f"[This {what} is too long for one entry. The remaining {size} bytes are in {path}]"
    content = [*fitted.message["content"], {"type": "text", "text": note}]
    return {**fitted.message, "content": content, "restPath": path}


def _write_overflow(session: Session, overflow: Sequence[JsonObject]) -> tuple[str, int]:
    """Write the rest of a message to a new file. Return its path and size in bytes. Raises `StoreError`.

    The file is next to the session file, or in the home for a session without a file, or in the temporary folder if
    that fails. Text is written as it is, other blocks as JSON.
    """
    if len(overflow) == 1 and overflow[0].get("type") == "text":
        data, suffix = coerce_string(overflow[0].get("text")).encode("utf-8", "surrogatepass"), ".txt"
    else:
        data, suffix = write_value(list(overflow)) + b"\n", ".json"
    failure: StoreError | None = None
    for place in _list_overflow_paths(session):
        try:
            return _write_new_file(place, suffix, data), len(data)
        except StoreError as error:
            failure = failure or error
    assert failure is not None
    raise failure


def _list_overflow_paths(session: Session) -> Iterator[str]:
    if session.file is not None:
        yield f"{os.path.abspath(session.file)}{OVERFLOW_SUFFIX}"
    else:
        yield os.path.join(get_home(), OVERFLOW_FOLDER, f"{session.id}{OVERFLOW_SUFFIX}")
    yield os.path.join(tempfile.gettempdir(), f"sessiontree-{session.id}{OVERFLOW_SUFFIX}")


def _write_new_file(place: str, suffix: str, data: bytes) -> str:
    """Write a new private file with a number in its name, and sync it. Remove it if writing fails."""
    folder = os.path.dirname(place)
    make_private_directory(folder)
    try:
        for path in (f"{name}{suffix}" for name in iter_numbered_paths(place)):
            try:
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except FileExistsError:
                continue
            try:
                with open(fd, "wb", buffering=0):
                    os.fchmod(fd, 0o600)
                    write_all(fd, data)
                    os.fsync(fd)
            except BaseException:
                discard(path)
                raise
            sync_directory(folder)
            return path
    except OSError as error:
        raise StoreError(place, format_os_error(error)) from error
    raise AssertionError


# Messages that cannot be written


class PendingWrite(NamedTuple):
    """A message that could not be written, and the writer that it belongs to."""

    writer: RunWriter
    message: JsonObject


class UnsavedMessages(StoreError):
    """Messages could not be written to the session."""

    def __init__(self, cause: StoreError, messages: Sequence[JsonObject], path: str | None) -> None:
        what = "answer" if any(get_role(message) == "assistant" for message in messages) else "tool result"
        advice = "free some disk space and send the next prompt, or save it with /save-unsaved FILE"
        kept = f"it is only in memory: {advice}" if path is None else f"it is saved in {path}"
        super().__init__(cause.location, f"{cause.reason}; the {what} could not be written: {kept}")
        self.cause = cause
        """The error of the store."""
        self.messages = tuple(messages)
        self.path = path
        """The file with the messages; `None` if it could not be written."""
        self._description = what

    def build_exit_error(self, remaining_copy: str) -> StoreError:
        """Return the error for a program that exits now: only `remaining_copy` still has the messages."""
        if self.path is not None:
            return self
        reason = f"{self.cause.reason}; the {self._description} could not be saved: it is only in {remaining_copy}"
        return StoreError(self.cause.location, reason)


def save_messages(path: str | os.PathLike[str], messages: Iterable[JsonObject]) -> None:
    """Write messages to a new private file, one JSON object per line. Raises `StoreError`."""
    write_private(os.path.abspath(path), _encode_lines(messages), overwrite=False)


def save_to_temporary_file(messages: Sequence[JsonObject]) -> str | None:
    """Write messages to a new temporary file. Return its path, or `None` if it cannot be written."""
    place = os.path.join(tempfile.gettempdir(), f"sessiontree-unsaved-{os.getpid()}")
    try:
        return _write_new_file(place, ".jsonl", _encode_lines(messages))
    except StoreError:
        return None


def _encode_lines(messages: Iterable[JsonObject]) -> bytes:
    return b"".join(write_value(message) + b"\n" for message in messages)
