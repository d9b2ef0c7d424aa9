"""Drafts: what was typed and not said yet, kept on disk so that a crash loses none of it, and what was said before.

Both are private files in the home. They are conveniences: one that cannot be read or written is as good as empty.
"""

from __future__ import annotations

import os
from contextlib import suppress

import msgspec
from msgspec import Struct

from sessiontree.catalog import folder_of
from sessiontree.errors import StoreError
from sessiontree.home import home
from sessiontree.session import Session
from sessiontree.store.files import make_private_directory

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


class Drafts:
    """The draft of one session. While nothing is in the session, it is the draft of its folder."""

    def __init__(self, session: Session, *, beside: bool = False) -> None:
        """The draft of a session; with `beside`, that of whoever came while another process had it open."""
        self.session = session
        self._end = ".beside" if beside else ""
        self._of_folder: str | None = None
        """The file that it was in while nothing was in the session."""

    @property
    def file(self) -> str:
        of = self.session.id if self.session.tree.real_count else folder_of(self.session.cwd)
        name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in of)[:200]
        return os.path.join(home(), "drafts", f"{name}{self._end}.json")

    def read(self) -> Draft:
        try:
            with open(self._file(), "rb") as file:
                return msgspec.json.decode(file.read(), type=Draft)
        except (OSError, msgspec.MsgspecError, UnicodeError):
            return Draft()

    def write(self, draft: Draft) -> None:
        with suppress(*UNWRITABLE):
            path = self._file()
            if draft.empty:
                os.unlink(path)
            else:
                make_private_directory(os.path.dirname(path))
                _write(path, msgspec.json.encode(draft))

    def _file(self) -> str:
        """Where it is now. It moves with the first entry: the next session of the folder does not begin with it."""
        path = self.file
        if not self.session.tree.real_count:
            self._of_folder = path
        elif self._of_folder is not None:
            with suppress(OSError):
                os.unlink(self._of_folder)
            self._of_folder = None
        return path


class History:
    """What was said, oldest first, in all sessions."""

    def __init__(self) -> None:
        self._file = os.path.join(home(), "history.jsonl")
        self.lines: list[str] = self._read()

    def _read(self) -> list[str]:
        try:
            with open(self._file, "rb") as file:
                return msgspec.json.Decoder(str).decode_lines(file.read())[-REMEMBERED:]
        except (OSError, msgspec.MsgspecError, UnicodeError):
            return []

    def add(self, line: str) -> None:
        if self.lines[-1:] == [line]:
            return
        self.lines.append(line)
        with suppress(*UNWRITABLE):
            make_private_directory(os.path.dirname(self._file))
            if len(self.lines) > 2 * REMEMBERED:
                self.lines = self.lines[-REMEMBERED:]
                _write(self._file, b"".join(msgspec.json.encode(said) + b"\n" for said in self.lines))
            else:
                with open(os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
                    file.write(msgspec.json.encode(line) + b"\n")


def _write(path: str, data: bytes) -> None:
    """Put a private file in place, whole."""
    beside = f"{path}.{os.getpid()}"
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
    os.replace(beside, path)
