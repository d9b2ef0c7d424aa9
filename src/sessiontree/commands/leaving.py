"""What becomes of what one leaves by going elsewhere in the tree: the question, and what can be answered.

Going there is not here: see `Desk.navigate`, which takes what was answered.
"""

from __future__ import annotations

from msgspec import Struct

from sessiontree.hooks.ui import Ui

QUESTION = "Summarize the branch you're leaving?"
NO_SUMMARY, SUMMARIZE, FOCUSED, WRITTEN = ANSWERS = (
    "No summary",
    "Summarize",
    "Summarize with a focus",
    "Write the summary myself",
)
FOCUS = "What should the summary pay attention to?"
SUMMARY = "The summary of what you leave"


class Leaving(Struct, frozen=True, kw_only=True):
    """What is to become of what is left."""

    summarize: bool = False
    """Whether a model is to summarize it."""
    instructions: str | None = None
    """What the summary should pay attention to."""
    summary: str | None = None
    """The summary in the person's own words."""


async def asked(ui: Ui) -> Leaving | None:
    """What the person wants to become of it; `None` when that was not said."""
    answer = await ui.select(QUESTION, ANSWERS)
    if answer == FOCUSED:
        return focused(await ui.editor(FOCUS))
    if answer == WRITTEN:
        return written(await ui.editor(SUMMARY))
    return None if answer is None else Leaving(summarize=answer == SUMMARIZE)


def focused(focus: str | None) -> Leaving | None:
    """A summary that pays attention to something; to nothing in particular, where nothing was written."""
    return None if focus is None else Leaving(summarize=True, instructions=focus.strip() or None)


def written(words: str | None) -> Leaving | None:
    """A summary in the person's words; where there are none, nothing was said."""
    return Leaving(summary=words.strip()) if words and words.strip() else None
