"""The footer: where one is, what it took, how full the model's window is, and what runs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec import Struct
from rich.text import Text
from textual.app import RenderResult
from textual.widget import Widget

from sessiontree.core.number_text import format_count, format_dollars, format_tokens
from sessiontree.core.sanitize import escape_line
from sessiontree.tui.tally import CountedUsage, UsageCount

if TYPE_CHECKING:
    from sessiontree.commands.controller import SessionController

WARNING_SHARE = 0.8
"""A window that is fuller is shown in the colour of a warning."""


class FooterState(Struct, frozen=True, kw_only=True):
    """What the footer says."""

    folder: str = ""
    name: str = ""
    branch: str = ""
    read_only: bool = False
    model: str = ""
    thinking: str = "off"
    window: int = 0
    context_tokens: int | None = None
    """Tokens of the window; `None` while that is not known."""
    usage: CountedUsage = CountedUsage()


def build_footer_state(desk: SessionController, count: UsageCount) -> FooterState:
    session, model = desk.session, desk.model
    home = os.path.expanduser("~")
    folder = desk.cwd
    if folder == home or folder.startswith(home + os.sep):
        folder = "~" + folder[len(home) :]
    return FooterState(
        folder=folder,
        name=session.name or session.id[-8:],
        branch=desk.branch.name,
        read_only=session.read_only is not None,
        model="" if model is None else model.info.model,
        thinking=desk.agent.thinking if desk.has_agent else "off",
        window=0 if model is None else model.info.context_window,
        context_tokens=count.context_tokens,
        usage=count.usage,
    )


class Footer(Widget):
    DEFAULT_CSS = """
    Footer { height: 2; padding: 0 1; color: $muted; background: $background; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.state: FooterState | None = None
        self.statuses: dict[str, str] = {}
        self.model_note = ""
        """What is said in the place of a model while there is none."""

    def show_state(self, facts: FooterState) -> None:
        self.state = facts
        self.refresh()

    def render(self) -> RenderResult:
        facts, width = self.state, self.content_size.width
        if facts is None:
            return Text("")
        here = [escape_line(facts.name), f"on {escape_line(facts.branch)}"]
        here += ["read-only"] if facts.read_only else []
        here += [escape_line(facts.folder)]
        told = "  ".join(escape_line(text) for text in self.statuses.values())
        share = (facts.context_tokens or 0) / facts.window if facts.window else 0
        fill = (
            f"{share:.0%} of {format_count(facts.window)}" if facts.window and facts.context_tokens is not None else ""
        )
        took = [format_tokens(facts.usage.tokens)] if facts.usage.tokens else []
        took += [format_dollars(facts.usage.cost)] if facts.usage.cost else []
        thinking = f" · thinking {facts.thinking}" if facts.thinking != "off" else ""
        model = Text(f"{escape_line(facts.model) or self.model_note}{thinking}")
        below = Text(" · ".join(took))
        if fill:
            below.append(" · " if took else "")
            below.append(fill, "bold" if share > WARNING_SHARE else "")
        return Text("\n").join([_justify(Text(" · ".join(here)), Text(told), width), _justify(below, model, width)])


def _justify(left: Text, right: Text, width: int) -> Text:
    """Two texts at both ends of a line; the left one gives way."""
    right.truncate(max(width - 8, 0), overflow="ellipsis")
    room = width - right.cell_len - (2 if right.cell_len else 0)
    left.truncate(max(room, 0), overflow="ellipsis")
    return left + Text(" " * max(width - left.cell_len - right.cell_len, 0)) + right
