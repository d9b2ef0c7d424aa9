"""The chosen model: which one a person chose last, kept in `state.json` in the home.

The configuration is never written. What it names is used again as soon as it names another model than it did when the
person chose.
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
"""Bytes of the file; what is longer is not ours."""


class _StoredChoice(Struct, frozen=True, kw_only=True):
    model: str
    configured: str | None = None
    """The `model` of the configuration at that time."""


def remember_model(model: str, configured: str | None) -> None:
    """Keep the name of the model that a person chose, beside what the configuration names. Raises `StoreError`."""
    make_private_directory(get_home())
    data = msgspec.json.encode(_StoredChoice(model=model, configured=configured))
    write_private(os.path.join(get_home(), STATE_FILE), data + b"\n")


def recall_model(configured: str | None) -> str | None:
    """The name of the model that was chosen last; `None` where none was, or the configuration has changed since."""
    try:
        choice = msgspec.json.decode(_read_state(), type=_StoredChoice)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return choice.model if choice.configured == configured and choice.model else None


def _read_state() -> bytes:
    # A pipe of this name must not hold anybody up.
    fd = os.open(os.path.join(get_home(), STATE_FILE), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return b""
        return os.read(fd, MAX_STATE_BYTES)
    finally:
        os.close(fd)
