"""Drafts: what was typed and not said yet, kept on disk so that a crash loses none of it, and what was said before.

Both are private files in the home. They are conveniences: one that cannot be read or written is as good as empty.
"""

from __future__ import annotations

import os
from contextlib import suppress

import msgspec
from msgspec import Struct

from sessiontree.commands.command import is_words
from sessiontree.errors import LockTimeout, StoreError
from sessiontree.home import home
from sessiontree.regular_file import read_regular
from sessiontree.session import Session
from sessiontree.store.files import make_private_directory, open_private
from sessiontree.store.waiting import take
from sessiontree.tui.presence import is_open

LOCK_SECONDS = 1.0
"""How long the folder of drafts is waited for: the app starts without one as well."""
REMEMBERED = 1000
"""How many lines the history has."""

UNWRITABLE = (OSError, StoreError, UnicodeEncodeError)


class Draft(Struct, frozen=True, kw_only=True, omit_defaults=True):
    text: str = ""
    pastes: dict[str, str] = {}
    """Long texts that were pasted, by what stands for them in the text."""
    queued: tuple[str, ...] = ()
    """What waited to be said."""

    @property
    def empty(self) -> bool:
        return not (self.text or self.queued)


class _Kept(Draft, frozen=True, kw_only=True, omit_defaults=True):
    """A draft as it is in its file."""

    place: str = ""
    """Where its session is."""
    new_in: str | None = None
    """The folder, while nothing is in the session."""


class Drafts:
    """The draft of one session.

    A session that was left before anything was said in it is no more, and its draft is for the next new one of the
    same folder: that takes over one whose session nobody has open.
    """

    def __init__(self, session: Session, *, beside: bool = False) -> None:
        """The draft of a session; with `beside`, that of whoever came while another process had it open."""
        self.session = session
        self._beside = beside

    @property
    def file(self) -> str:
        name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in self.session.id)[:200]
        return os.path.join(home(), "drafts", f"{name}{'.beside' if self._beside else ''}.json")

    def read(self) -> Draft:
        """The draft as it was kept, or the one that the session takes over."""
        kept = _read(self.file)
        if kept is None and self._is_new and not self._beside:
            with suppress(*UNWRITABLE):
                kept = self._taken_over()
        return Draft() if kept is None else Draft(text=kept.text, pastes=kept.pastes, queued=kept.queued)

    def write(self, draft: Draft) -> None:
        with suppress(*UNWRITABLE):
            if draft.empty:
                os.unlink(self.file)
            else:
                make_private_directory(os.path.dirname(self.file))
                self._write(draft)

    @property
    def _is_new(self) -> bool:
        return not self.session.tree.real_count

    def _write(self, draft: Draft) -> None:
        new_in = self.session.cwd if self._is_new else None
        place = self.session.kept_at or ""
        kept = _Kept(text=draft.text, pastes=draft.pastes, queued=draft.queued, place=place, new_in=new_in)
        _write(self.file, msgspec.json.encode(kept))

    def _taken_over(self) -> _Kept | None:
        """The newest draft that a new session of this folder has left, which is of this one from now on."""
        folder = os.path.dirname(self.file)
        fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            take(fd, folder, LOCK_SECONDS)  # two who come at once do not both take it
            names = [entry for entry in os.scandir(folder) if entry.name.endswith(".json")]
            for entry in sorted(names, key=lambda entry: entry.stat().st_mtime_ns, reverse=True):
                kept = _read(entry.path)
                if kept is not None and kept.new_in == self.session.cwd and not is_open(kept.place):
                    self._write(kept)
                    os.unlink(entry.path)
                    return kept
            return None
        except LockTimeout:  # the draft stays where it is
            return None
        finally:
            os.close(fd)


def _read(path: str) -> _Kept | None:
    try:
        return msgspec.json.decode(read_regular(path), type=_Kept)
    except (OSError, msgspec.MsgspecError, UnicodeError):
        return None


class Words(Struct, frozen=True):
    """What was said to the model though it begins like a command, or like something for the shell."""

    words: str


Line = str | Words
"""What was said: if it is a text, it is typed again to say it again."""


def said_to_model(text: str) -> Line:
    return text if is_words(text) else Words(text)


class History:
    """What was said, oldest first, in all sessions."""

    def __init__(self) -> None:
        self._file = os.path.join(home(), "history.jsonl")
        self.lines: list[Line] = self._read()

    def _read(self) -> list[Line]:
        try:
            return msgspec.json.Decoder(Line).decode_lines(read_regular(self._file))[-REMEMBERED:]
        except (OSError, msgspec.MsgspecError, UnicodeError):
            return []

    def add(self, line: Line) -> None:
        if self.lines[-1:] == [line]:
            return
        self.lines.append(line)
        with suppress(*UNWRITABLE):
            make_private_directory(os.path.dirname(self._file))
            if len(self.lines) > 2 * REMEMBERED:
                self.lines = self.lines[-REMEMBERED:]
                _write(self._file, b"".join(msgspec.json.encode(said) + b"\n" for said in self.lines))
            else:
                with open(open_private(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as file:
                    file.write(msgspec.json.encode(line) + b"\n")


def _write(path: str, data: bytes) -> None:
    """Put a private file in place, whole."""
    beside = f"{path}.{os.getpid()}"
    with open(open_private(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
        file.write(data)
    os.replace(beside, path)
