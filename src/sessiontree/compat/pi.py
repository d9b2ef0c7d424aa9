"""The names of pi and oh-my-pi for this library, in snake_case.

from sessiontree.compat.pi import SessionManager

manager = SessionManager.create()
manager.append_message({"role": "user", "content": "Hello"})
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from msgspec import Struct

from sessiontree.compat.agent_session import (
    AgentSession,
    BranchResult,
    HookMessage,
    LimitedAgentSession,
    NavigateTreeResult,
    SessionCompaction,
)
from sessiontree.compat.hook_api import (
    CommandContext,
    ExtensionCommandContext,
    HookAPI,
    HookEventContext,
    SessionBeforeCompactEvent,
    SessionBeforeTreeEvent,
    SessionCompactPreparation,
    SessionTreeEvent,
    SessionTreePreparation,
    translate_preparation,
)
from sessiontree.compat.session_entry import SessionEntry, SessionTreeNode, translate_entry
from sessiontree.compat.session_manager import SessionManager
from sessiontree.config import CompactionSettings
from sessiontree.core.compaction import plan_compaction
from sessiontree.core.context import build_context as build_tree_context
from sessiontree.core.entries import Entry, EntryId, JsonObject
from sessiontree.core.tree import Tree
from sessiontree.format.codec import VERSION
from sessiontree.format.json_line import read_object, write_object
from sessiontree.format.session_reader import SessionReader
from sessiontree.library import catalog
from sessiontree.ops.compact import compute_token_budget

__all__ = [
    "CURRENT_SESSION_VERSION",
    "AgentSession",
    "BranchResult",
    "CollectedEntries",
    "CommandContext",
    "ExtensionCommandContext",
    "HookAPI",
    "HookEventContext",
    "HookMessage",
    "LimitedAgentSession",
    "NavigateTreeResult",
    "SessionBeforeCompactEvent",
    "SessionBeforeTreeEvent",
    "SessionCompactPreparation",
    "SessionCompaction",
    "SessionEntry",
    "SessionManager",
    "SessionTreeEvent",
    "SessionTreeNode",
    "SessionTreePreparation",
    "build_context",
    "collect_entries_for_branch_summary",
    "find_most_recent_session",
    "load_entries_from_file",
    "load_session",
    "migrate_entries",
    "prepare_compaction",
]

CURRENT_SESSION_VERSION = VERSION


class CollectedEntries(Struct, frozen=True, kw_only=True):
    """The entries that a summary of an abandoned branch covers."""

    entries: tuple[SessionEntry, ...]
    common_ancestor_id: EntryId | None


def build_context(entries: Iterable[Entry]) -> list[JsonObject]:
    """Return the messages that the model is sent at the last of `entries`."""
    tree = Tree(entries)
    leaf: EntryId | None = None
    for entry in tree:
        leaf = entry.id
    return list(build_tree_context(tree, tree.skip_annotations(leaf)).messages)


def load_entries_from_file(path: str | os.PathLike[str]) -> list[SessionEntry]:
    """Return the entries of a session file. Nothing is changed, whatever the version of the file."""
    return SessionManager(catalog.open(path, read_only=True)).get_entries()


def load_session(path: str | os.PathLike[str]) -> list[SessionEntry]:
    """Return the entries of a session file. A file of an older version is rewritten first."""
    return SessionManager.open(path).get_entries()


def migrate_entries(entries: list[JsonObject], from_version: int) -> None:
    """Change the lines of a session file, the header first, to the current version, in place."""
    if from_version < CURRENT_SESSION_VERSION:
        reader = SessionReader()
        reader.feed(b"".join(write_object(entry) + b"\n" for entry in entries))
        entries[:] = [read_object(line) for line in reader.read_all_lines()]


def find_most_recent_session(session_dir: str | os.PathLike[str]) -> str | None:
    """Return the session file in a folder that was written last; `None` if there is none."""
    return next((os.path.abspath(found.file) for found in catalog.sessions(dir=session_dir)), None)


def collect_entries_for_branch_summary(
    session_manager: SessionManager, old_leaf_id: EntryId | None, target_id: EntryId
) -> CollectedEntries:
    """Return the entries between a leaf and the common ancestor with a target, or from the last compaction on."""
    session = session_manager.session
    start = None if old_leaf_id is None else session.tree[old_leaf_id]
    plan = session.plan_navigate(session.tree[target_id], start=start)
    return CollectedEntries(
        entries=tuple(map(translate_entry, plan.abandoned)), common_ancestor_id=plan.common_ancestor
    )


def prepare_compaction(
    path_entries: Sequence[Entry], settings: CompactionSettings | None = None
) -> SessionCompactPreparation | None:
    """Plan a compaction at the end of a path; `None` if there is nothing to compact."""
    budget = compute_token_budget(None, settings or CompactionSettings())
    preparation = plan_compaction(path_entries, budget.keep_recent, most=budget.max_kept, at_most_half=True)
    return None if preparation is None else translate_preparation(preparation)
