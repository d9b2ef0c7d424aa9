"""Keep messages that do not fit into an entry or cannot be written.

If a message is too long for an entry, the entry has the first part and names a file with the rest. Messages that cannot
be written at all are saved in the temporary folder, and stay in memory until they can be written.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from sessiontree.agent.jsonable import MAX_MESSAGE_BYTES
from sessiontree.agent.tools.output_limits import MAX_BYTES
from sessiontree.core.entries import JsonObject
from sessiontree.core.messages import build_text_blocks, coerce_string, get_role, is_list, is_object
from sessiontree.errors import SessionTreeError, StoreError
from sessiontree.format.codec import write_value
from sessiontree.home import get_home
from sessiontree.session import Session
from sessiontree.store.files import (
    discard,
    format_os_error,
    iter_numbered_paths,
    make_private_directory,
    sync_directory,
    write_all,
    write_private,
)

OVERFLOW_FOLDER = "answers"
"""The folder in the home for long messages of sessions without a file."""
OVERFLOW_SUFFIX = ".rest"
"""Follows the name of the session in the names of such files."""
NOTE_BYTES = 1 << 13
"""Bytes reserved for the note that names the file."""
CHUNK_CHARS = 1 << 20
"""Characters that are measured in one step."""


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
        reason = f"{self.cause.reason}; the {self._description} could not be saved: only {remaining_copy} has it"
        return StoreError(self.cause.location, reason)


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


def add_overflow_note(fitted: FittedMessage, path: str, size: int) -> JsonObject:
    """Return the message with a note that names the file with the rest."""
    what = "result" if get_role(fitted.message) == "toolResult" else "answer"
    note = f"[This {what} is too long for one entry. The remaining {size} bytes are in {path}]"
    content = [*fitted.message["content"], {"type": "text", "text": note}]
    return {**fitted.message, "content": content, "restPath": path}


def write_overflow(session: Session, overflow: Sequence[JsonObject]) -> tuple[str, int]:
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


def save_messages(path: str | os.PathLike[str], messages: Iterable[JsonObject]) -> None:
    """Write messages to a new private file, one JSON object per line. Raises `StoreError`."""
    data = b"".join(write_value(message) + b"\n" for message in messages)
    write_private(os.path.abspath(path), data, overwrite=False)


def save_to_temporary_file(messages: Sequence[JsonObject]) -> str | None:
    """Write messages to a new temporary file. Return its path, or `None` if it cannot be written."""
    data = b"".join(write_value(message) + b"\n" for message in messages)
    place = os.path.join(tempfile.gettempdir(), f"sessiontree-unsaved-{os.getpid()}")
    try:
        return _write_new_file(place, ".jsonl", data)
    except StoreError:
        return None
