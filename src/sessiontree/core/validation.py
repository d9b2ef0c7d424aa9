"""Misfits: what is said of a value that does not have its shape. Pure; which exception it becomes is for others."""

from __future__ import annotations

import re

import msgspec


def describe_validation_error(error: msgspec.ValidationError, part: str) -> tuple[str, str]:
    """Where a value is wrong, with dots, and why; `part` is the word for what it is made of.

    The place is empty where it is the value as a whole.
    """
    said, _, place = str(error).partition(" - at ")
    inside = place.strip("`").removeprefix("$").removeprefix(".")
    named = re.fullmatch(r"Object (contains unknown|missing required) field `(.*)`", said)
    if named is None:
        return inside, said[:1].lower() + said[1:].replace("`", "")
    where = f"{inside}.{named[2]}" if inside else named[2]
    return where, f"there is no such {part}" if "unknown" in named[1] else "it is not given"
