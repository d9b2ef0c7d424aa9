"""Branches of a session: handles to read, append and navigate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from sessiontree.core.context import Context, State, build_context, find_context_path, read_state
from sessiontree.core.context_explanation import Explanation, explain
from sessiontree.core.entries import Body, Entry, EntryId
from sessiontree.core.late_imports import load
from sessiontree.session.entry_builder import (
    Item,
)
from sessiontree.session.session_base import BranchPosition, Place

if TYPE_CHECKING:
    # A branch and its session refer to each other.
    # Types of the methods that `core.late_imports` loads.
    from sessiontree.config import CompactionSettings
    from sessiontree.hooks.bus import Hooks
    from sessiontree.model.base import Model
    from sessiontree.ops.compact import CompactOutcome  # cycle: see above
    from sessiontree.ops.merge import CopyOutcome, MergeOutcome  # cycle: see above
    from sessiontree.ops.move_files import FilesChoice  # cycle: see above
    from sessiontree.ops.navigate import NavigateOutcome  # cycle: see above
    from sessiontree.session.session import Session  # cycle: a branch is a handle on its session


class BranchInfo(Struct, frozen=True, kw_only=True):
    """A branch in a listing."""

    name: str
    leaf: EntryId | None
    entry_count: int
    """The number of entries on its path."""
    created_at: str
    description: str | None
    archived: bool
    current: bool


class UnnamedLeaf(Struct, frozen=True, kw_only=True):
    """A leaf that no branch has its head at, in a listing."""

    leaf: EntryId
    suggested_name: str
    """The name that `/branch-here` gives a branch at it."""
    entry_count: int
    """The number of entries on its path."""


class Branch(BranchPosition):
    """A named position in a session that moves as entries are appended. All handles of one name share its head."""

    session: Session

    def __init__(self, session: Session, name: str | None) -> None:
        """Without a name, the handle is for the branch that is current when the session is loaded."""
        self.session = session
        self._name = name

    @property
    def name(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride] - it is only read
        if self._name is None:
            self.session.heads  # noqa: B018 - loads the session, which sets `loaded_branch`
            self._name = self.session.loaded_branch
        assert self._name is not None
        return self._name

    @property
    def _is_loaded(self) -> bool:
        """Whether the name is known without loading the session."""
        return self._name is not None or self.session.loaded_branch is not None

    def __repr__(self) -> str:
        return f"<Branch {self.name} of {self.session.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Branch) and (other.session, other.name) == (self.session, self.name)

    def __hash__(self) -> int:
        return hash((id(self.session), self.name))

    @property
    def leaf(self) -> EntryId | None:  # pyright: ignore[reportIncompatibleVariableOverride] - it is only read
        """The branch's head; `None` if the branch is before the first entry."""
        return self.session._get_head(self.name)  # pyright: ignore[reportPrivateUsage]

    @property
    def info(self) -> BranchInfo:
        name = self.session.branch(self.name).name
        return next(info for info in self.session.branches if info.name == name)

    def append(self, body: Body) -> Entry:
        """Write an entry at the head and move the head to it."""
        return self.session.append(body, branch=self.name)

    def extend(self, bodies: Iterable[Body | Item]) -> Sequence[Entry]:
        """Write entries as a chain, all or none. See `Session.extend`."""
        return self.session.extend(bodies, branch=self.name)

    def path(self) -> list[Entry]:
        """Return the entries from the root to the head."""
        return self.session.tree.path(self.leaf)

    def context(self) -> Context:
        """Return what the model is sent at the head."""
        return build_context(self.session.tree, self.leaf) if self._is_loaded else self.session.context()

    @property
    def state(self) -> State:
        """The model, thinking level, mode and rules at the head. Cheaper than the context."""
        if not self._is_loaded:
            return self.session.context().state
        return read_state(find_context_path(self.session.tree, self.leaf))

    def explain(self) -> Explanation:
        """Explain for every entry on the path whether the model is sent it, and why not."""
        return explain(self.session.tree, self.leaf)

    # Operations with hooks and summaries. `ops` implements them.

    async def navigate(
        self,
        place: Place,
        *,
        summarize: bool | str = False,
        instructions: str | None = None,
        model: Model | str | None = None,
        label: str | None = None,
        hooks: Hooks | None = None,
        files: FilesChoice = "conversation",
    ) -> NavigateOutcome:
        """Move this branch to the place that selecting `place` leads to.

        `summarize=True` asks the model for a summary of the entries that the branch leaves, and a string is your own
        summary. The model is by default the one of the branch. `files` is `"both"` to restore the files of the place
        too, and `"files"` to restore only them.
        """
        return await load("navigate")(
            self,
            place,
            summarize=summarize,
            instructions=instructions,
            model=model,
            label=label,
            hooks=hooks,
            files=files,
        )

    async def compact(
        self,
        summary: str | None = None,
        *,
        instructions: str | None = None,
        model: Model | str | None = None,
        settings: CompactionSettings | None = None,
        hooks: Hooks | None = None,
    ) -> CompactOutcome:
        """Replace the older part of this branch's context with a summary: yours, or one that the model writes."""
        return await load("compact")(
            self, summary, instructions=instructions, model=model, settings=settings, hooks=hooks
        )

    async def merge(
        self,
        source: Place,
        summary: str | None = None,
        *,
        instructions: str | None = None,
        model: Model | str | None = None,
        hooks: Hooks | None = None,
    ) -> MergeOutcome:
        """Append a summary of another branch or place to this one: yours, or one that the model writes."""
        return await load("merge")(self, source, summary, instructions=instructions, model=model, hooks=hooks)

    async def promote(
        self,
        winner: Branch | str,
        summary: str | None = None,
        *,
        over: Iterable[Branch | str] | None = None,
        instructions: str | None = None,
        model: Model | str | None = None,
        hooks: Hooks | None = None,
    ) -> MergeOutcome:
        """Continue this branch from the head of `winner`, with a summary of the branches it was chosen `over`.

        By default these are all branches that continue from this one. They and the winner are archived.
        """
        return await load("promote")(
            self, winner, summary, over=over, instructions=instructions, model=model, hooks=hooks
        )

    async def uncompact(self, *, hooks: Hooks | None = None) -> NavigateOutcome:
        """Move this branch to before its last compaction. Entries after it stay in the tree."""
        return await load("uncompact")(self, hooks=hooks)

    async def rebase(self, onto: Place, *, hooks: Hooks | None = None) -> CopyOutcome:
        """Copy the entries of this branch after the common path to another place, and move its head there."""
        return await load("rebase")(self, onto, hooks=hooks)

    async def cherry_pick(self, *places: Place, hooks: Hooks | None = None) -> CopyOutcome:
        """Append copies of messages from anywhere in the session. A tool call is copied with its result."""
        return await load("cherry_pick")(self, places, hooks=hooks)
