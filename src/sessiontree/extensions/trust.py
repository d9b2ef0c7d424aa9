"""Trust: which content of which project may run. Kept in the home, so that no project can vouch for itself."""

from __future__ import annotations

import contextlib
import os
import tempfile

import msgspec

from sessiontree.errors import StoreError
from sessiontree.extensions.content import Content
from sessiontree.store.files import make_private_directory

FILE = "trust.json"


class Trust:
    def __init__(self, home: str) -> None:
        self._file = os.path.join(home, FILE)

    def has(self, content: Content) -> bool:
        """Whether exactly this content of this project is trusted."""
        return self._read().get(_key(content)) == content.digest

    def add(self, content: Content) -> None:
        """Trust this content, in the place of what was trusted of this project before."""
        self._write({**self._read(), _key(content): content.digest})

    def _read(self) -> dict[str, str]:
        try:
            with open(self._file, "rb") as file:
                return msgspec.json.decode(file.read(), type=dict[str, str])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StoreError(self._file, f"it does not tell which projects are trusted: {error}") from error

    def _write(self, trusted: dict[str, str]) -> None:
        folder = os.path.dirname(self._file)
        try:
            make_private_directory(folder)
            fd, made = tempfile.mkstemp(dir=folder, prefix=f".{FILE}-")  # for this user alone
            try:
                with open(fd, "wb") as file:
                    file.write(msgspec.json.format(msgspec.json.encode(trusted)) + b"\n")
                    file.flush()
                    os.fsync(fd)
                os.replace(made, self._file)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(made)
                raise
        except OSError as error:
            raise StoreError(self._file, error.strerror or str(error)) from error


def _key(content: Content) -> str:
    return os.path.realpath(content.root)
