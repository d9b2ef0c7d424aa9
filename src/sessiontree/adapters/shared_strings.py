"""Store JSON data of a framework next to the messages made from it, without storing long texts twice.

A string that a message has too is replaced by a reference to the place in the message. Restoring gives equal data,
whatever the data is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sessiontree.core.entries import JsonObject
from sessiontree.core.messages import is_list, is_object
from sessiontree.errors import FormatError

REFERENCE = "$shared"
"""The only key of an object that replaces a string. Its value is a path: the number of the message, then keys."""
MIN_LENGTH = 64
"""Shorter strings stay where they are: a reference takes about as much space."""


def share_strings(value: Any, messages: Sequence[JsonObject]) -> Any:
    """Return `value` with references instead of long strings that are in `messages`."""
    paths: dict[str, list[Any]] = {}
    for number, message in enumerate(messages):
        for path, text in _iter_strings(message, (number,)):
            paths.setdefault(text, list(path))
    return _share(value, paths)


def _iter_strings(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], str]]:
    if isinstance(value, str):
        if len(value) >= MIN_LENGTH:
            yield path, value
    elif is_object(value):
        for key, item in value.items():
            yield from _iter_strings(item, (*path, key))
    elif is_list(value):
        for index, item in enumerate(value):
            yield from _iter_strings(item, (*path, index))


def _share(value: Any, paths: dict[str, list[Any]]) -> Any:
    if isinstance(value, str):
        path = paths.get(value) if len(value) >= MIN_LENGTH else None
        return value if path is None else {REFERENCE: path}
    if is_object(value):
        shared = {key: _share(item, paths) for key, item in value.items()}
        # Data that looks like a reference is wrapped, because it would be read as one.
        return {REFERENCE: shared} if REFERENCE in value else shared
    if is_list(value):
        return [_share(item, paths) for item in value]
    return value


def restore_strings(value: Any, messages: Sequence[JsonObject]) -> Any:
    """Return what `share_strings` was given. Raises `FormatError` if a reference leads nowhere."""
    if is_object(value):
        target = value.get(REFERENCE)
        if is_list(target):
            return _follow(target, messages)
        if is_object(target):
            return {key: restore_strings(item, messages) for key, item in target.items()}
        return {key: restore_strings(item, messages) for key, item in value.items()}
    if is_list(value):
        return [restore_strings(item, messages) for item in value]
    return value


def _follow(path: list[Any], messages: Sequence[JsonObject]) -> str:
    found: Any = list(messages)
    try:
        for step in path:
            found = found[step]
    except (KeyError, IndexError, TypeError) as error:
        raise FormatError("shared string", f"no text at {path!r}") from error
    if not isinstance(found, str):
        raise FormatError("shared string", f"no text at {path!r}")
    return found
