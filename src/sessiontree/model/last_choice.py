"""Stores the model that the user chose last, in `state.json` in the home folder.

The configuration file is never written. The stored choice is ignored when the configured model has changed since.
"""

from __future__ import annotations

import os
import stat

import msgspec
from msgspec import Struct

from sessiontree.home import get_home
from sessiontree.store.files import make_private_directory, write_private

STATE_FILE = "state.json"
MAX_STATE_BYTES = 1 << 16
"""The maximum size of the file in bytes. A longer file is ignored."""


class _StoredChoice(Struct, frozen=True, kw_only=True):
    model: str
    configured: str | None = None
    """The configured model at the time of the choice."""


def remember_model(model: str, configured: str | None) -> None:
    """Store the model that the user chose, together with the configured model. Raises `StoreError`."""
    make_private_directory(get_home())
    data = msgspec.json.encode(_StoredChoice(model=model, configured=configured))
    write_private(os.path.join(get_home(), STATE_FILE), data + b"\n")


def recall_model(configured: str | None) -> str | None:
    """Return the name of the model that was chosen last.

    Return `None` without a stored choice, or if the configured model has changed.
    """
    try:
        choice = msgspec.json.decode(_read_state(), type=_StoredChoice)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return choice.model if choice.configured == configured and choice.model else None


def _read_state() -> bytes:
    # Open without blocking, in case a named pipe has this name.
    fd = os.open(os.path.join(get_home(), STATE_FILE), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return b""
        return os.read(fd, MAX_STATE_BYTES)
    finally:
        os.close(fd)
