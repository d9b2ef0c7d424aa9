"""Validation: turns msgspec validation errors into a location and a reason."""

from __future__ import annotations

import re

import msgspec


def describe_validation_error(error: msgspec.ValidationError, part: str) -> tuple[str, str]:
    """Return the dotted path of the invalid value and the reason. `part` is the noun for an unknown field.

    The path is empty if the value as a whole is invalid.
    """
    reason, _, location = str(error).partition(" - at ")
    inside = location.strip("`").removeprefix("$").removeprefix(".")
    match = re.fullmatch(r"Object (contains unknown|missing required) field `(.*)`", reason)
    if match is None:
        return inside, reason[:1].lower() + reason[1:].replace("`", "")
    where = f"{inside}.{match[2]}" if inside else match[2]
    return where, f"unknown {part}" if "unknown" in match[1] else "required, but missing"
