"""Head rules: how one line of a session moves the heads of branches.

| line | branch it is on | head of that branch | current branch |
|---|---|---|---|
| `"branch": NAME` | NAME | the line, unless it is an annotation | `current` of the line, or NAME |
| `"branch": null` | none | unchanged | unchanged |
| no `branch` key (a peer) | that of the line before, or the current one | the line or the entry above | the same |
| no `branch` key, a branch point | the branch that it names | the line | the same |
| head record | the current branch | listed in the record, for all branches | named in the record |

A peer has one leaf, so its line belongs to the branch of the line before. `core.heads` applies these rules and keeps
every move. `format.digest`, `format.tail` and `store.postgres.rows` apply them without building a tree.
"""

from __future__ import annotations

from collections.abc import Container
from functools import lru_cache

from msgspec import UNSET, Struct, UnsetType

from sessiontree.core.entries import EntryId, JsonObject, parse_entry_id
from sessiontree.core.messages import is_list, is_object


class LineEffect(Struct, frozen=True):
    """What a line that is not a head record does to the heads."""

    branch: str | None
    """The branch that the line is on; `None` for a line outside all branches."""
    moves_head: bool
    """Whether the head of the branch moves to the line, or above it if the line is an annotation."""
    current: str | None
    """The branch that becomes current if it exists; `None` changes nothing."""


@lru_cache(maxsize=64)
def get_effect(
    branch: str | UnsetType | None, current: str | None, is_annotation: bool, peer_branch: str = ""
) -> LineEffect:
    """Return what a line does to the heads, given the values of its `branch` and `current` keys.

    `peer_branch` is the branch of a line without a `branch` key; see `choose_peer_branch`. The result is cached: most
    lines of a session are on few branches.
    """
    if branch is UNSET:
        return LineEffect(peer_branch, True, peer_branch)
    if branch is None:
        return LineEffect(None, False, None)
    return LineEffect(branch, not is_annotation, branch if current is None else current)


def choose_peer_branch(
    line_branch: str | None, branches: Container[str], current: str, branch_point: str | None
) -> str:
    """Return the branch of a line without a `branch` key.

    `line_branch` is the branch of the line before, `branch_point` the name that a branch point gives.
    """
    if branch_point is not None:
        return branch_point
    return line_branch if line_branch is not None and line_branch in branches else current


class BranchOrigin(Struct, frozen=True, kw_only=True):
    """When and why a branch was created."""

    created: str = ""
    description: str | None = None


class HeadRecord(Struct, frozen=True):
    """The content of a head record, as far as it is valid."""

    heads: dict[str, EntryId | None] | None
    """The head of every branch; `None` if the record does not list any."""
    current: str | None
    archived: list[str]
    renamed: tuple[str, str] | None
    """The old and the new name of a branch that the record renames."""
    origins: dict[str, BranchOrigin] | None
    """When and why branches were created; `None` if it is not in the record."""

    @property
    def is_full(self) -> bool:
        """Whether the record alone determines all heads and the current branch."""
        return self.heads is not None and self.current is not None and self.current in self.heads


def parse_head_record(data: JsonObject) -> HeadRecord:
    """Read the data of a head record. Values of a wrong type count as missing."""
    heads, current, archived, renamed = (data.get(key) for key in ("heads", "current", "archived", "renamed"))
    old, new = (renamed.get("from"), renamed.get("to")) if is_object(renamed) else (None, None)
    return HeadRecord(
        heads={name: parse_entry_id(leaf) for name, leaf in heads.items()} if is_object(heads) and heads else None,
        current=current if isinstance(current, str) else None,
        archived=[name for name in archived if isinstance(name, str)] if is_list(archived) else [],
        renamed=(old, new) if isinstance(old, str) and isinstance(new, str) else None,
        origins=_parse_origins(data["origins"]) if "origins" in data else None,
    )


def _parse_origins(value: object) -> dict[str, BranchOrigin] | None:
    """Read the origins of a head record; `None` unless all are valid."""
    origins: dict[str, BranchOrigin] = {}
    for name, origin in value.items() if is_object(value) else (("", None),):
        created, description = (origin.get("created"), origin.get("description")) if is_object(origin) else (None, None)
        if not isinstance(created, str) or not isinstance(description, str | None):
            return None
        origins[name] = BranchOrigin(created=created, description=description)
    return origins
