"""The footer: session, branch, folder, token usage, cost, context size and model."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from rich.text import Text
from textual.app import RenderResult
from textual.widget import Widget

from sessiontree.core.compaction import count_context_tokens
from sessiontree.core.context import find_context_path
from sessiontree.core.entries import Entry, EntryId
from sessiontree.core.messages import list_usages, sum_usage
from sessiontree.core.number_text import format_count, list_usage
from sessiontree.core.sanitize import escape_line
from sessiontree.regular_file import read_regular_file
from sessiontree.session import Branch, Session

if TYPE_CHECKING:
    from sessiontree.slash_commands.controller import SessionController

THREAD_ENTRIES = 2000
"""Sessions with at least this many entries are counted in a thread."""
USAGE_TYPES = frozenset({"message", "usage", "model_usage", "compaction", "branch_summary"})
"""Types of entries that may contain usage."""


class CountedUsage(Struct, frozen=True):
    """Tokens and cost of a session."""

    tokens: float = 0
    cost: float = 0

    def add_entries(self, entries: Iterable[Entry]) -> CountedUsage:
        """Return the sum of this usage and the usage of more entries."""
        tokens, cost = self.tokens, self.cost
        for entry in entries:
            if entry.type in USAGE_TYPES:
                for used in filter(None, map(sum_usage, list_usages(entry.decode()))):
                    tokens, cost = tokens + used.tokens, cost + used.cost
        return CountedUsage(tokens, cost)


class UsageCount(Struct, frozen=True, kw_only=True):
    """A usage count and the state of the session it belongs to."""

    session: Session | None = None
    leaf: EntryId | None = None
    entries: int = 0
    """Number of entries counted."""
    usage: CountedUsage = CountedUsage()
    context_tokens: int | None = None
    """Tokens of a request at the leaf; `None` until counted."""


class UsageCounter:
    """Counts usage incrementally. A large session is counted in a thread while the last count stays visible."""

    def __init__(self, widget: Widget, changed: Callable[[], Any]) -> None:
        """Run threads as workers of `widget`, and call `changed` after a count in a thread."""
        self.count = UsageCount()
        self._owner = widget
        self._on_change = changed
        self._is_counting = False

    def update(self, branch: Branch) -> None:
        """Count the entries added since the last call, or everything if the session changed."""
        session, leaf, known = branch.session, branch.leaf, self.count
        if known.session is not session:
            self.count = known = UsageCount(session=session)
        elif known.context_tokens is not None and (known.leaf, known.entries) == (leaf, session.tree.count):
            return
        if not session.tree.is_partial and session.tree.count < THREAD_ENTRIES:
            self.count = _count_usage(known, session, leaf)
        elif not self._is_counting:
            self._is_counting = True
            self._owner.run_worker(self._count_in_thread(known, session, leaf), group="count", exit_on_error=False)

    async def _count_in_thread(self, known: UsageCount, session: Session, leaf: EntryId | None) -> None:
        try:
            count = await asyncio.to_thread(_count_usage, known, session, leaf)
            if self.count is known:  # the session has not changed since
                self.count = count
        finally:
            self._is_counting = False
        self._on_change()


def _count_usage(known: UsageCount, session: Session, leaf: EntryId | None) -> UsageCount:
    with session.hold_lock():
        new = session.tree.get_entries_from(known.entries)
        path = find_context_path(session.tree, leaf)
    return UsageCount(
        session=session,
        leaf=leaf,
        entries=known.entries + len(new),
        usage=known.usage.add_entries(new),
        context_tokens=count_context_tokens(path),
    )


WARNING_SHARE = 0.8
"""A context window filled above this share is shown in bold."""


class FooterState(Struct, frozen=True, kw_only=True):
    """The values shown in the footer."""

    folder: str = ""
    git_branch: str = ""
    permission_mode: str = ""
    name: str = ""
    branch: str = ""
    read_only: bool = False
    model: str = ""
    thinking: str = "off"
    window: int = 0
    context_tokens: int | None = None
    """Tokens of the current context; `None` until counted."""
    usage: CountedUsage = CountedUsage()


def build_footer_state(controller: SessionController, count: UsageCount) -> FooterState:
    session, model = controller.session, controller.model
    home = os.path.expanduser("~")
    folder = controller.cwd
    if folder == home or folder.startswith(home + os.sep):
        folder = "~" + folder[len(home) :]
    return FooterState(
        folder=folder,
        git_branch=read_git_branch(controller.cwd),
        permission_mode=_name_mode(controller),
        name=session.name or session.id[-8:],
        branch=controller.branch.name,
        read_only=session.read_only is not None,
        model="" if model is None else model.info.model,
        thinking=controller.agent.thinking if controller.has_agent else "off",
        window=0 if model is None else model.info.context_window,
        context_tokens=count.context_tokens,
        usage=count.usage,
    )


MAX_HEAD_BYTES = 1000


def read_git_branch(folder: str) -> str:
    """Return the branch of the repository that contains a folder, a short commit id, or nothing outside of one."""
    while True:
        marker = os.path.join(folder, ".git")
        if os.path.lexists(marker):
            break
        folder, name = os.path.split(folder)
        if not name:
            return ""
    try:
        if not os.path.isdir(marker):  # a worktree or a submodule
            marker = os.path.join(folder, read_regular_file(marker, MAX_HEAD_BYTES).decode()[len("gitdir: ") :].strip())
        head = read_regular_file(os.path.join(marker, "HEAD"), MAX_HEAD_BYTES).decode().strip()
    except (OSError, ValueError):
        return ""
    return head.removeprefix("ref: refs/heads/") if head.startswith("ref: ") else head[:8]


def _name_mode(controller: SessionController) -> str:
    if controller.plan_mode.is_active:
        return "plan mode"
    return "" if controller.permissions is None else controller.permissions.effective_mode


class Footer(Widget):
    DEFAULT_CSS = """
    Footer { height: 2; padding: 0 1; color: $muted; background: $background; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.state: FooterState | None = None
        self.statuses: dict[str, str] = {}
        self.model_note = ""
        """Shown in place of the model while there is none."""

    def show_state(self, facts: FooterState) -> None:
        self.state = facts
        self.refresh()

    def render(self) -> RenderResult:
        facts, width = self.state, self.content_size.width
        if facts is None:
            return Text("")
        here = [escape_line(facts.name), f"on {escape_line(facts.branch)}"]
        here += ["read-only"] if facts.read_only else []
        here += [escape_line(facts.folder) + (f" (git: {escape_line(facts.git_branch)})" if facts.git_branch else "")]
        told = "  ".join(escape_line(text) for text in self.statuses.values())
        share = (facts.context_tokens or 0) / facts.window if facts.window else 0
        fill = (
            f"{share:.0%} of {format_count(facts.window)}" if facts.window and facts.context_tokens is not None else ""
        )
        took = list_usage(facts.usage.tokens, facts.usage.cost)
        thinking = f"thinking {facts.thinking}" if facts.thinking != "off" else ""
        shown = (facts.permission_mode, escape_line(facts.model) or self.model_note, thinking)
        model = Text(" · ".join(filter(None, shown)))
        below = Text(" · ".join(took))
        if fill:
            below.append(" · " if took else "")
            below.append(fill, "bold" if share > WARNING_SHARE else "")
        return Text("\n").join([_justify(Text(" · ".join(here)), Text(told), width), _justify(below, model, width)])


def _justify(left: Text, right: Text, width: int) -> Text:
    """Put two texts at both ends of a line. The left one is truncated if there is not enough space."""
    right.truncate(max(width - 8, 0), overflow="ellipsis")
    room = width - right.cell_len - (2 if right.cell_len else 0)
    left.truncate(max(room, 0), overflow="ellipsis")
    return left + Text(" " * max(width - left.cell_len - right.cell_len, 0)) + right
