"""Drafts of unsent messages and the input history, saved as private files in the home directory.

Errors are ignored: an unreadable file counts as empty, and a failed write is skipped.
"""

from __future__ import annotations

import os
from contextlib import suppress

import msgspec
from msgspec import Struct

from sessiontree.commands.registry import is_prompt_line
from sessiontree.errors import LockTimeout, StoreError
from sessiontree.home import get_home
from sessiontree.regular_file import read_regular_file
from sessiontree.session import Session
from sessiontree.store.files import make_private_directory, open_private
from sessiontree.store.lock_wait import lock_file
from sessiontree.tui.services.other_processes import is_session_open

LOCK_SECONDS = 1.0
"""Maximum time to wait for the lock of the drafts folder. The app can start without a draft."""
MAX_HISTORY = 1000
"""Number of inputs in the history."""

WRITE_ERRORS = (OSError, StoreError, UnicodeEncodeError)


class EditorDraft(Struct, frozen=True, kw_only=True, omit_defaults=True):
    text: str = ""
    pastes: dict[str, str] = {}
    """Long pastes by their placeholder in the text."""
    queued: tuple[str, ...] = ()
    """Prompts that were waiting to be sent."""

    @property
    def is_empty(self) -> bool:
        return not (self.text or self.queued)


class _StoredDraft(EditorDraft, frozen=True, kw_only=True, omit_defaults=True):
    """The content of a draft file."""

    place: str = ""
    """Path or address of the session."""
    new_in: str | None = None
    """Working directory of the session, while the session is empty."""


class DraftFile:
    """The draft of one session.

    An empty session is deleted on exit. Its draft is adopted by the next new session in the same directory, unless
    the old session is still open.
    """

    def __init__(self, session: Session, *, second: bool = False) -> None:
        """With `second`, use a separate file, because another process has the session open."""
        self.session = session
        self._is_second = second

    @property
    def path(self) -> str:
        name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in self.session.id)[:200]
        return os.path.join(get_home(), "drafts", f"{name}{'.beside' if self._is_second else ''}.json")

    def read(self) -> EditorDraft:
        """Return the saved draft, or adopt one for a new session."""
        stored = _read_draft(self.path)
        if stored is None and self._is_new and not self._is_second:
            with suppress(*WRITE_ERRORS):
                stored = self._adopt_orphan()
        return (
            EditorDraft()
            if stored is None
            else EditorDraft(text=stored.text, pastes=stored.pastes, queued=stored.queued)
        )

    def write(self, draft: EditorDraft) -> None:
        with suppress(*WRITE_ERRORS):
            if draft.is_empty:
                os.unlink(self.path)
            else:
                make_private_directory(os.path.dirname(self.path))
                self._write(draft)

    @property
    def _is_new(self) -> bool:
        return not self.session.tree.real_count

    def _write(self, draft: EditorDraft) -> None:
        new_in = self.session.cwd if self._is_new else None
        place = self.session.address or ""
        stored = _StoredDraft(text=draft.text, pastes=draft.pastes, queued=draft.queued, place=place, new_in=new_in)
        _write_private_file(self.path, msgspec.json.encode(stored))

    def _adopt_orphan(self) -> _StoredDraft | None:
        """Take over the newest draft of a deleted empty session in the same directory."""
        folder = os.path.dirname(self.path)
        fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            lock_file(fd, folder, LOCK_SECONDS)  # only one process may adopt it
            names = [entry for entry in os.scandir(folder) if entry.name.endswith(".json")]
            for entry in sorted(names, key=lambda entry: entry.stat().st_mtime_ns, reverse=True):
                stored = _read_draft(entry.path)
                if stored is not None and stored.new_in == self.session.cwd and not is_session_open(stored.place):
                    self._write(stored)
                    os.unlink(entry.path)
                    return stored
            return None
        except LockTimeout:  # leave the draft to a later session
            return None
        finally:
            os.close(fd)


def _read_draft(path: str) -> _StoredDraft | None:
    try:
        return msgspec.json.decode(read_regular_file(path), type=_StoredDraft)
    except (OSError, msgspec.MsgspecError, UnicodeError):
        return None


class LiteralPrompt(Struct, frozen=True):
    """A prompt for the model that looks like a slash command or a shell command."""

    words: str


HistoryItem = str | LiteralPrompt
"""An input as typed. A prompt that would be read as a command is a `LiteralPrompt`."""


def to_history_item(text: str) -> HistoryItem:
    return text if is_prompt_line(text) else LiteralPrompt(text)


class History:
    """The inputs of all sessions, oldest first."""

    def __init__(self) -> None:
        self._file = os.path.join(get_home(), "history.jsonl")
        self.items: list[HistoryItem] = self._read()

    def _read(self) -> list[HistoryItem]:
        try:
            return msgspec.json.Decoder(HistoryItem).decode_lines(read_regular_file(self._file))[-MAX_HISTORY:]
        except (OSError, msgspec.MsgspecError, UnicodeError):
            return []

    def add(self, line: HistoryItem) -> None:
        if self.items[-1:] == [line]:
            return
        self.items.append(line)
        with suppress(*WRITE_ERRORS):
            make_private_directory(os.path.dirname(self._file))
            if len(self.items) > 2 * MAX_HISTORY:
                self.items = self.items[-MAX_HISTORY:]
                _write_private_file(self._file, b"".join(msgspec.json.encode(item) + b"\n" for item in self.items))
            else:
                with open(open_private(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as file:
                    file.write(msgspec.json.encode(line) + b"\n")


def _write_private_file(path: str, data: bytes) -> None:
    """Replace a private file atomically."""
    temporary = f"{path}.{os.getpid()}"
    with open(open_private(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
        file.write(data)
    os.replace(temporary, path)
