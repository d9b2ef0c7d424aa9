"""Branches of foreign trees: messages that name their parents, put in order and divided into named branches."""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Mapping

from sessiontree.core.place_names import check_branch_name, find_free_name
from sessiontree.errors import InvalidOperation

MAX_LENGTH = 40


def choose_branch_name(wanted: str, taken: Container[str]) -> str:
    """Return a valid name close to `wanted` that is not in `taken`."""
    name = re.sub(r"[^\w.]+", "-", wanted).strip("-.")[:MAX_LENGTH].rstrip("-.")
    try:
        check_branch_name(name)
    except InvalidOperation:
        name = f"branch-{name}".rstrip("-")
    return name if name not in taken else find_free_name(name, taken, first=2)


def order_parents_first(parents: Mapping[str, str | None]) -> list[str]:
    """Return the keys in their order, but each after its parent. A cycle is cut at its first member."""
    ordered: dict[str, None] = {}
    for start in parents:
        chain: dict[str, None] = {}
        id: str | None = start
        while id is not None and id in parents and id not in ordered and id not in chain:
            chain[id] = None
            id = parents[id]
        ordered.update(dict.fromkeys(reversed(chain)))
    return list(ordered)


def divide_branches(
    parents: Mapping[str, str | None],
    current: str | None,
    *,
    main: str,
    other: str,
    taken: Collection[str] = (),
    silent: Container[str] = (),
) -> dict[str, str]:
    """Return the branch of each message: `main` up from `current`, and a new one for every other leaf.

    A leaf in `silent` gets no separate branch.
    """
    branches: dict[str, str] = {}
    names = {*taken, main}

    def claim(leaf: str | None, name: str) -> None:
        while leaf is not None and leaf in parents and leaf not in branches:
            branches[leaf] = name
            leaf = parents[leaf]

    claim(current, main)
    inner = set(parents.values())
    for id in parents:
        if id not in inner and id not in branches:
            name = main if id in silent else choose_branch_name(other, names)
            names.add(name)
            claim(id, name)
    for id in parents:  # members of a cycle have children only
        claim(id, main)
    return branches
