"""Rescue: an answer was paid for and a tool has run, so what a session cannot take of them is kept elsewhere.

A message that is too long for an entry keeps what fits; the rest is in a file that the message names. Messages that
cannot be written at all are saved in the temporary folder, and stay in memory until they can be.
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
"""The folder in the home with the rests of answers of sessions that have no file."""
OVERFLOW_SUFFIX = ".rest"
"""Stands behind a session's name in the names of files with rests of its messages."""
NOTE_BYTES = 1 << 13
"""Bytes kept free for what is said of the rest: paths may be long."""
CHUNK_CHARS = 1 << 20
"""Characters that are measured at once."""


class UnsavedMessages(StoreError):
    """Something arrived that could not be written in the session."""

    def __init__(self, cause: StoreError, messages: Sequence[JsonObject], path: str | None) -> None:
        what = "answer" if any(get_role(message) == "assistant" for message in messages) else "result of a tool"
        advice = "make room and prompt again, which writes it first, or save it with /save-unsaved FILE"
        kept = f"it is in memory only: {advice}" if path is None else f"it is saved in {path}"
        super().__init__(cause.location, f"{cause.reason}; the {what} could not be written: {kept}")
        self.cause = cause
        """Why the session did not take them."""
        self.messages = tuple(messages)
        self.path = path
        """The file that has them instead; `None` where none could be written."""
        self._description = what

    def build_exit_error(self, remaining_copy: str) -> StoreError:
        """The same error for a program that keeps nothing in memory: `left` is all that still has the messages."""
        if self.path is not None:
            return self
        reason = f"{self.cause.reason}; the {self._description} could not be saved: only {remaining_copy} has it"
        return StoreError(self.cause.location, reason)


class FittedMessage(NamedTuple):
    """A message as an entry can hold it, and the blocks that are left over."""

    message: JsonObject
    overflow: list[JsonObject]


def fit_message(message: JsonObject, limit: int = MAX_MESSAGE_BYTES) -> FittedMessage:
    """As much of a message as fits into `limit` bytes. What is left over begins in the block that did not fit.

    Of a tool's result that does not fit, only as much is kept as a model is shown of the output of built-in tools.
    """
    try:
        if len(write_value(message)) <= limit:
            return FittedMessage(message, [])
    except (SessionTreeError, TypeError, ValueError, RecursionError):
        return FittedMessage(message, [])  # not for its length
    if get_role(message) == "toolResult":
        limit = min(limit, MAX_BYTES + NOTE_BYTES)
    rest: list[JsonObject] = []
    kept: list[JsonObject] = []
    bare = {key: value for key, value in message.items() if key != "content"}
    if "details" in bare and len(write_value(bare)) > limit // 2:
        rest.append({"type": "details", "details": bare.pop("details")})
    room = limit - NOTE_BYTES - len(write_value(bare))
    cut = False
    content = message.get("content")
    for block in content if is_list(content) else build_text_blocks(coerce_string(content)):
        size = len(write_value(block)) + 1
        if not cut and size <= room:
            kept.append(block)
            room -= size
        elif not cut and is_object(block) and (parts := _split_block(block, room)) is not None:
            cut = True
            kept.append(parts[0])
            rest.append(parts[1])
        else:
            cut = True
            rest.append(block)
    return FittedMessage({**bare, "content": kept}, rest)


def _split_block(block: JsonObject, room: int) -> tuple[JsonObject, JsonObject] | None:
    """A block of words in two, the first of which fits; `None` for one of another kind."""
    kind = coerce_string(block.get("type"))
    words = block.get(kind) if kind in ("text", "thinking") else None
    if not isinstance(words, str):
        return None
    at = _count_fitting_chars(words, room - len(write_value({"type": kind, kind: ""})))
    # A signature is one of the whole.
    return {"type": kind, kind: words[:at]}, {"type": kind, kind: words[at:]}


def _count_fitting_chars(words: str, room: int) -> int:
    """How many characters of a text take no more than so many bytes in JSON."""
    at, step = 0, CHUNK_CHARS
    while step and at < len(words):
        size = len(write_value(words[at : at + step])) - 2
        if size <= room:
            at, room = min(at + step, len(words)), room - size
        else:
            step //= 2
    return at


def add_overflow_note(fitted: FittedMessage, path: str, size: int) -> JsonObject:
    """A message that names the file with its rest."""
    what = "result" if get_role(fitted.message) == "toolResult" else "answer"
    note = f"[This {what} is too long for one entry. The remaining {size} bytes are in {path}]"
    content = [*fitted.message["content"], {"type": "text", "text": note}]
    return {**fitted.message, "content": content, "restPath": path}


def write_overflow(session: Session, overflow: Sequence[JsonObject]) -> tuple[str, int]:
    """Write the rest of a message to a new file, and say which and how long it is. Raises `StoreError`.

    It stands beside the session's file; where there is none, in the user's folder; where neither takes it, in the
    temporary one. A text is written as it is, anything else as JSON.
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
    """A new file of this name, with a number in it, for this user alone; whole and on the disk, or not there."""
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
    """Write messages to a new file, one a line as JSON, for this user alone. Raises `StoreError`."""
    data = b"".join(write_value(message) + b"\n" for message in messages)
    write_private(os.path.abspath(path), data, overwrite=False)


def save_to_temporary_file(messages: Sequence[JsonObject]) -> str | None:
    """Write messages to a new file in the temporary folder; its path, or `None` where it cannot be written."""
    data = b"".join(write_value(message) + b"\n" for message in messages)
    place = os.path.join(tempfile.gettempdir(), f"sessiontree-unsaved-{os.getpid()}")
    try:
        return _write_new_file(place, ".jsonl", data)
    except StoreError:
        return None
