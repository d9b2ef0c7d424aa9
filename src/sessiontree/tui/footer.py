"""The footer: where one is, what it took, how full the model's window is, and what runs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec import Struct
from rich.text import Text
from textual.app import RenderResult
from textual.widget import Widget

from sessiontree.core.figures import dollars, short_count, tell_tokens
from sessiontree.core.safe import safe
from sessiontree.tui.tally import Count, Taken

if TYPE_CHECKING:
    from sessiontree.commands.desk import Desk

FULL = 0.8
"""A window that is fuller is shown in the colour of a warning."""


class Facts(Struct, frozen=True, kw_only=True):
    """What the footer says."""

    folder: str = ""
    name: str = ""
    branch: str = ""
    read_only: bool = False
    model: str = ""
    thinking: str = "off"
    window: int = 0
    filled: int | None = None
    """Tokens of the window; `None` while that is not known."""
    taken: Taken = Taken()


def facts_of(desk: Desk, count: Count) -> Facts:
    session, model = desk.session, desk.model
    home = os.path.expanduser("~")
    folder = desk.cwd
    if folder == home or folder.startswith(home + os.sep):
        folder = "~" + folder[len(home) :]
    return Facts(
        folder=folder,
        name=session.name or session.id[-8:],
        branch=desk.branch.name,
        read_only=session.read_only is not None,
        model="" if model is None else model.info.model,
        thinking=desk.agent.thinking if desk.has_agent else "off",
        window=0 if model is None else model.info.context_window,
        filled=count.filled,
        taken=count.taken,
    )


class Footer(Widget):
    DEFAULT_CSS = """
    Footer { height: 2; padding: 0 1; color: $muted; background: $background; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.facts: Facts | None = None
        self.statuses: dict[str, str] = {}
        self.model_note = ""
        """What is said in the place of a model while there is none."""

    def show(self, facts: Facts) -> None:
        self.facts = facts
        self.refresh()

    def render(self) -> RenderResult:
        facts, width = self.facts, self.content_size.width
        if facts is None:
            return Text("")
        here = [safe(facts.name), f"on {safe(facts.branch)}"]
        here += ["read-only"] if facts.read_only else []
        here += [safe(facts.folder)]
        told = "  ".join(safe(text) for text in self.statuses.values())
        share = (facts.filled or 0) / facts.window if facts.window else 0
        fill = f"{share:.0%} of {short_count(facts.window)}" if facts.window and facts.filled is not None else ""
        took = [tell_tokens(facts.taken.tokens)] if facts.taken.tokens else []
        took += [dollars(facts.taken.cost)] if facts.taken.cost else []
        thinking = f" · thinking {facts.thinking}" if facts.thinking != "off" else ""
        model = Text(f"{safe(facts.model) or self.model_note}{thinking}")
        below = Text(" · ".join(took))
        if fill:
            below.append(" · " if took else "")
            below.append(fill, "bold" if share > FULL else "")
        return Text("\n").join([_spread(Text(" · ".join(here)), Text(told), width), _spread(below, model, width)])


def _spread(left: Text, right: Text, width: int) -> Text:
    """Two texts at both ends of a line; the left one gives way."""
    right.truncate(max(width - 8, 0), overflow="ellipsis")
    room = width - right.cell_len - (2 if right.cell_len else 0)
    left.truncate(max(room, 0), overflow="ellipsis")
    return left + Text(" " * max(width - left.cell_len - right.cell_len, 0)) + right
