"""Branch names for conversations of other programs, which have no names for their branches."""

from __future__ import annotations

import re
from collections.abc import Container

from sessiontree.core.places import check_branch_name
from sessiontree.errors import InvalidOperation

MAX_LENGTH = 40


def choose_branch_name(wanted: str, taken: Container[str]) -> str:
    """Return a valid name close to `wanted` that is not in `taken`."""
    name = re.sub(r"[^\w.]+", "-", wanted).strip("-.")[:MAX_LENGTH].rstrip("-.")
    try:
        check_branch_name(name)
    except InvalidOperation:
        name = f"branch-{name}".rstrip("-")
    number, unique = 1, name
    while unique in taken:
        number += 1
        unique = f"{name}-{number}"
    return unique
