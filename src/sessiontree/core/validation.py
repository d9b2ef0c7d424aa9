"""Validation: turns msgspec validation errors into a location and a reason."""

from __future__ import annotations

import re

import msgspec


def describe_validation_error(error: msgspec.ValidationError, part: str) -> tuple[str, str]:
    """Return the dotted path of the invalid value and the reason. `part` is the noun for an unknown field.

    The path is empty if the value as a whole is invalid.
    """
    said, _, place = str(error).partition(" - at ")
    inside = place.strip("`").removeprefix("$").removeprefix(".")
    named = re.fullmatch(r"Object (contains unknown|missing required) field `(.*)`", said)
    if named is None:
        return inside, said[:1].lower() + said[1:].replace("`", "")
    where = f"{inside}.{named[2]}" if inside else named[2]
    return where, f"there is no such {part}" if "unknown" in named[1] else "it is not given"
