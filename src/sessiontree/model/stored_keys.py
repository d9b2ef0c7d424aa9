"""API keys that the user entered in the app: `keys.json` in the home folder, readable by its owner alone.

Tools of agents cannot read the file, because it is private; see `home.is_private`.
"""

from __future__ import annotations

import os

import msgspec

from sessiontree.errors import StoreError
from sessiontree.home import get_home
from sessiontree.regular_file import read_regular_file
from sessiontree.store.file_operations import make_private_directory, write_private

KEYS_NAME = "keys.json"
MAX_KEYS_BYTES = 1 << 20
"""The maximum size of the file, in bytes."""
MAX_KEY_CHARACTERS = 4096


def get_keys_path() -> str:
    return os.path.join(get_home(), KEYS_NAME)


def read_stored_keys() -> dict[str, str]:
    """Return the stored keys by provider. Raises `StoreError` if the file is damaged."""
    path = get_keys_path()
    try:
        return msgspec.json.decode(read_regular_file(path, MAX_KEYS_BYTES), type=dict[str, str])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreError(path, f"the stored keys cannot be read: {error}") from error


def check_key(key: str) -> str:
    """Return a key without surrounding whitespace. Raise `ValueError` if it cannot be sent in a header."""
    stripped = key.strip()
    if not stripped:
        raise ValueError("the key is empty")
    if len(stripped) > MAX_KEY_CHARACTERS or not (stripped.isascii() and stripped.isprintable()) or " " in stripped:
        raise ValueError("an API key is one word of ASCII characters")
    return stripped


def store_key(provider: str, key: str) -> None:
    """Store the key of a provider. Raises `StoreError`, or `ValueError` if it is not a key."""
    _write({**read_stored_keys(), provider: check_key(key)})


def remove_key(provider: str) -> bool:
    """Remove the key of a provider. Return whether there was one. Raises `StoreError`."""
    keys = read_stored_keys()
    found = keys.pop(provider, None)
    if found is not None:
        _write(keys)
    return found is not None


def _write(keys: dict[str, str]) -> None:
    make_private_directory(get_home())
    write_private(get_keys_path(), msgspec.json.format(msgspec.json.encode(keys)) + b"\n")
