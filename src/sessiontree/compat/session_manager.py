"""`SessionManager` of pi and oh-my-pi: one session with one leaf, over `Session`."""

from __future__ import annotations

import os
from typing import Any

from msgspec import UNSET, UnsetType

from sessiontree.compat.session_entry import (
    SessionEntry,
    SessionTreeNode,
    build_nodes,
    find_entry,
    list_children,
    list_path,
    translate_entry,
    use_short_ids,
)
from sessiontree.core.context import Context
from sessiontree.core.entries import (
    Body,
    BranchSummary,
    Compaction,
    Custom,
    CustomMessage,
    EntryId,
    JsonObject,
    Message,
    ModelChange,
    ThinkingLevelChange,
)
from sessiontree.core.messages import Content
from sessiontree.errors import InvalidOperation
from sessiontree.library import catalog
from sessiontree.session import Branch, Session
from sessiontree.slash_commands.controller import SessionController


class SessionManager:
    """A session with one leaf: the head of its current branch. Every append returns the id of the new entry."""

    def __init__(self, session: Session | None = None) -> None:
        """Manage `session`; by default a new one in memory."""
        self._session = use_short_ids(catalog.memory() if session is None else session)
        self._controller: SessionController | None = None

    @classmethod
    def create(
        cls, cwd: str | os.PathLike[str] = ".", session_dir: str | os.PathLike[str] | None = None
    ) -> SessionManager:
        """Create a session for the folder `cwd`, in the default place or in the folder `session_dir`."""
        return cls(catalog.create(cwd=cwd, dir=session_dir))

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> SessionManager:
        """Open a session file. A file of an older version is rewritten."""
        return cls(_open_migrated(path))

    @classmethod
    def in_memory(cls, cwd: str = "") -> SessionManager:
        return cls(catalog.memory(cwd=cwd))

    @classmethod
    def continue_recent(cls, cwd: str | os.PathLike[str] = ".") -> SessionManager:
        """Open the most recent session of the folder `cwd`, or create one."""
        return cls(catalog.recent(cwd) or catalog.create(cwd=cwd))

    @classmethod
    def follow_controller(cls, controller: SessionController) -> SessionManager:
        """Return a manager of whatever session and branch a controller works on."""
        manager = cls(controller.session)
        manager._controller = controller
        return manager

    def __repr__(self) -> str:
        return f"SessionManager({self.session!r})"

    @property
    def session(self) -> Session:
        """The session, for all that this class does not have."""
        return self._session if self._controller is None else self._controller.session

    @property
    def _current(self) -> Branch:
        return self.session.head if self._controller is None else self._controller.branch

    # Sessions

    def get_session_file(self) -> str | None:
        """Return the session's file, or its address in a database; `None` if it is in memory."""
        return get_location(self.session)

    def set_session_file(self, path: str | os.PathLike[str]) -> None:
        """Change to another session file. A missing file is created, and one of an older version is rewritten."""
        self._change_session(_open_migrated(path, create=True))

    def new_session(self, *, parent_session: str | os.PathLike[str] | None = None) -> str | None:
        """Change to a new, empty session next to this one, and return its file. `parent_session` goes in its header."""
        before = self.session
        if parent_session is not None:
            with catalog.open(parent_session, read_only=True) as parent:
                new = parent.fork("root")
        elif before.file is None:
            new = catalog.create_near(before, cwd=before.cwd or ".")
        else:
            new = catalog.create(cwd=before.cwd or ".", dir=before.file.parent)
        self._change_session(new)
        return self.get_session_file()

    def create_branched_session(self, leaf_id: EntryId) -> str | None:
        """Change to a new session with the path to `leaf_id`, and return its file; `None` if it is in memory.

        Labels of entries on the path are kept.
        """
        self._change_session(self.session.fork(self.session.tree[leaf_id]))
        return self.get_session_file()

    def _change_session(self, session: Session) -> None:
        if self._controller is not None:
            session.close()
            raise InvalidOperation("an agent is using this session; use AgentSession.branch to change the session")
        self._session.close()
        self._session = use_short_ids(session)

    # Appending

    def append_message(self, message: JsonObject | Message, parent_id: EntryId | UnsetType | None = UNSET) -> EntryId:
        """Append a message below the leaf, or below `parent_id`. The leaf moves to it."""
        body = message if isinstance(message, Message) else Message(message)
        if isinstance(parent_id, UnsetType):
            return self.append_entry(body)
        return self._move(parent_id, body)

    def append_entry(self, entry: Body) -> EntryId:
        """Append an entry of any type."""
        return self._current.append(entry).id

    def append_compaction(
        self,
        summary: str,
        first_kept_entry_id: EntryId | None,
        tokens_before: int = 0,
        details: Any = None,
        from_hook: bool | None = None,
    ) -> EntryId:
        return self.append_entry(
            Compaction(
                summary=summary,
                first_kept=first_kept_entry_id,
                tokens_before=tokens_before,
                details=details,
                from_hook=from_hook,
            )
        )

    def append_custom_entry(self, custom_type: str, data: Any = None) -> EntryId:
        """Append the state of a hook, which the model does not see."""
        return self.append_entry(Custom(custom_type=custom_type, data=data))

    def append_custom_message_entry(
        self, custom_type: str, content: Content, display: bool = True, details: Any = None
    ) -> EntryId:
        """Append a message of a hook, which the model sees as a user message."""
        return self.append_entry(
            CustomMessage(custom_type=custom_type, content=content, display=display, details=details)
        )

    def append_label_change(self, target_id: EntryId, label: str | None = None) -> EntryId:
        """Set the label of an entry; `None` removes it. The leaf does not move."""
        return self.session.label(self.session.tree[target_id], label).id

    def append_model_change(self, provider: str, model_id: str) -> EntryId:
        return self.append_entry(ModelChange(provider=provider, model=model_id))

    def append_thinking_level_change(self, level: str) -> EntryId:
        return self.append_entry(ThinkingLevelChange(level))

    # Reading

    def get_leaf_id(self) -> EntryId | None:
        """Return the id of the current leaf; `None` if it is before the first entry."""
        return self._current.leaf

    get_leaf_uuid = get_leaf_id

    def get_leaf_entry(self) -> SessionEntry | None:
        leaf = self.get_leaf_id()
        return None if leaf is None else translate_entry(self.session.tree[leaf])

    get_current_leaf = get_leaf_entry

    def get_entry(self, id: EntryId) -> SessionEntry | None:
        return find_entry(self.session.tree, id)

    def get_entries(self) -> list[SessionEntry]:
        """Return all entries, in the order of the file."""
        return [translate_entry(entry) for entry in self.session.tree if not entry.is_head_record]

    def get_branch(self, from_id: EntryId | None = None) -> list[SessionEntry]:
        """Return the path from the root to an entry, by default to the leaf."""
        return list_path(self.session.tree, self.get_leaf_id() if from_id is None else from_id)

    get_path = get_branch

    def get_tree(self) -> list[SessionTreeNode]:
        """Return the roots of the tree, each with its nested children."""
        return build_nodes(self.session.tree)

    def get_children(self, parent_id: EntryId | None) -> list[SessionEntry]:
        """Return the entries directly below an entry, oldest first; below `None` are the roots."""
        return list_children(self.session.tree, parent_id)

    def get_label(self, id: EntryId) -> str | None:
        return self.session.tree.label(id)

    def build_session_context(self) -> Context:
        """Return what the model is sent at the leaf: messages, model, thinking level, mode and rules."""
        return self._current.context()

    # The leaf

    def branch(self, branch_from_id: EntryId) -> EntryId:
        """Move the leaf to an entry, and return its id. The next append starts a new branch there.

        Use `reset_leaf` for the place before the first entry.
        """
        if branch_from_id is None:  # pyright: ignore[reportUnnecessaryComparison] - callers may not check types
            raise InvalidOperation("branch needs the id of an entry; use reset_leaf to go before the first entry")
        self.session.move(self.session.tree[branch_from_id], branch=self._current.name)
        return branch_from_id

    def reset_leaf(self) -> None:
        """Move the leaf before the first entry. The next append creates a new root."""
        self.session.move(None, branch=self._current.name)

    def branch_with_summary(
        self,
        branch_from_id: EntryId | None,
        summary: str,
        details: Any = None,
        from_extension: bool | None = None,
    ) -> EntryId:
        """Move the leaf to an entry, or before the first one, and append a summary of the branch that it leaves.

        The summary has the id of the leaf that was left; at the root it has `"root"`.
        """
        left = None if branch_from_id is None else self.get_leaf_id()
        body = BranchSummary(summary=summary, abandoned_leaf=left, details=details, from_hook=from_extension)
        return self._move(branch_from_id, body)

    def _move(self, parent: EntryId | None, body: Body) -> EntryId:
        to = None if parent is None else self.session.tree[parent]
        return self.session.move(to, [body], branch=self._current.name)[-1].id


def _open_migrated(path: str | os.PathLike[str], *, create: bool = False) -> Session:
    session = catalog.open(path, create=create)
    session.migrate()
    return session


def get_location(session: Session) -> str | None:
    """Return the file of a session, or its address in a database; `None` if it is in memory."""
    return session.address if session.file is None else str(session.file)
