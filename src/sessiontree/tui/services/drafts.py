"""Drafts: what was typed and not said yet, kept on disk so that a crash loses none of it, and what was said before.

Both are private files in the home. They are conveniences: one that cannot be read or written is as good as empty.
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
"""How long the folder of drafts is waited for: the app starts without one as well."""
MAX_HISTORY = 1000
"""How many lines the history has."""

WRITE_ERRORS = (OSError, StoreError, UnicodeEncodeError)


class EditorDraft(Struct, frozen=True, kw_only=True, omit_defaults=True):
    text: str = ""
    pastes: dict[str, str] = {}
    """Long texts that were pasted, by what stands for them in the text."""
    queued: tuple[str, ...] = ()
    """What waited to be said."""

    @property
    def is_empty(self) -> bool:
        return not (self.text or self.queued)


class _StoredDraft(EditorDraft, frozen=True, kw_only=True, omit_defaults=True):
    """A draft as it is in its file."""

    place: str = ""
    """Where its session is."""
    new_in: str | None = None
    """The folder, while nothing is in the session."""


class DraftFile:
    """The draft of one session.

    A session that was left before anything was said in it is no more, and its draft is for the next new one of the
    same folder: that takes over one whose session nobody has open.
    """

    def __init__(self, session: Session, *, second: bool = False) -> None:
        """The draft of a session; with `beside`, that of whoever came while another process had it open."""
        self.session = session
        self._is_second = second

    @property
    def path(self) -> str:
        name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in self.session.id)[:200]
        return os.path.join(get_home(), "drafts", f"{name}{'.beside' if self._is_second else ''}.json")

    def read(self) -> EditorDraft:
        """The draft as it was kept, or the one that the session takes over."""
        kept = _read_draft(self.path)
        if kept is None and self._is_new and not self._is_second:
            with suppress(*WRITE_ERRORS):
                kept = self._adopt_orphan()
        return EditorDraft() if kept is None else EditorDraft(text=kept.text, pastes=kept.pastes, queued=kept.queued)

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
        kept = _StoredDraft(text=draft.text, pastes=draft.pastes, queued=draft.queued, place=place, new_in=new_in)
        _write_private_file(self.path, msgspec.json.encode(kept))

    def _adopt_orphan(self) -> _StoredDraft | None:
        """The newest draft that a new session of this folder has left, which is of this one from now on."""
        folder = os.path.dirname(self.path)
        fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            lock_file(fd, folder, LOCK_SECONDS)  # two who come at once do not both take it
            names = [entry for entry in os.scandir(folder) if entry.name.endswith(".json")]
            for entry in sorted(names, key=lambda entry: entry.stat().st_mtime_ns, reverse=True):
                kept = _read_draft(entry.path)
                if kept is not None and kept.new_in == self.session.cwd and not is_session_open(kept.place):
                    self._write(kept)
                    os.unlink(entry.path)
                    return kept
            return None
        except LockTimeout:  # the draft stays where it is
            return None
        finally:
            os.close(fd)


def _read_draft(path: str) -> _StoredDraft | None:
    try:
        return msgspec.json.decode(read_regular_file(path), type=_StoredDraft)
    except (OSError, msgspec.MsgspecError, UnicodeError):
        return None


class LiteralPrompt(Struct, frozen=True):
    """What was said to the model though it begins like a command, or like something for the shell."""

    words: str


HistoryItem = str | LiteralPrompt
"""What was said: if it is a text, it is typed again to say it again."""


def to_history_item(text: str) -> HistoryItem:
    return text if is_prompt_line(text) else LiteralPrompt(text)


class History:
    """What was said, oldest first, in all sessions."""

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
                _write_private_file(self._file, b"".join(msgspec.json.encode(said) + b"\n" for said in self.items))
            else:
                with open(open_private(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as file:
                    file.write(msgspec.json.encode(line) + b"\n")


def _write_private_file(path: str, data: bytes) -> None:
    """Put a private file in place, whole."""
    beside = f"{path}.{os.getpid()}"
    with open(open_private(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
        file.write(data)
    os.replace(beside, path)
