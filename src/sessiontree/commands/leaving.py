"""What becomes of what one leaves by going elsewhere in the tree: the question, and what can be answered.

Going there is not here: see `Desk.navigate`, which takes what was answered.
"""

from __future__ import annotations

from msgspec import Struct

from sessiontree.hooks.ui_protocol import Ui

SUMMARY_CHOICE_QUESTION = "Summarize the branch you're leaving?"
NO_SUMMARY, SUMMARIZE, SUMMARIZE_WITH_FOCUS, WRITE_SUMMARY = SUMMARY_CHOICES = (
    "No summary",
    "Summarize",
    "Summarize with a focus",
    "Write the summary myself",
)
FOCUS_QUESTION = "What should the summary pay attention to?"
SUMMARY_QUESTION = "The summary of what you leave"


class SummaryChoice(Struct, frozen=True, kw_only=True):
    """What is to become of what is left."""

    summarize: bool = False
    """Whether a model is to summarize it."""
    instructions: str | None = None
    """What the summary should pay attention to."""
    summary: str | None = None
    """The summary in the person's own words."""


async def ask_summary_choice(ui: Ui) -> SummaryChoice | None:
    """What the person wants to become of it; `None` when that was not said."""
    answer = await ui.select(SUMMARY_CHOICE_QUESTION, SUMMARY_CHOICES)
    if answer == SUMMARIZE_WITH_FOCUS:
        return build_focused_choice(await ui.editor(FOCUS_QUESTION))
    if answer == WRITE_SUMMARY:
        return build_written_choice(await ui.editor(SUMMARY_QUESTION))
    return None if answer is None else SummaryChoice(summarize=answer == SUMMARIZE)


def build_focused_choice(focus: str | None) -> SummaryChoice | None:
    """A summary that pays attention to something; to nothing in particular, where nothing was written."""
    return None if focus is None else SummaryChoice(summarize=True, instructions=focus.strip() or None)


def build_written_choice(words: str | None) -> SummaryChoice | None:
    """A summary in the person's words; where there are none, nothing was said."""
    return SummaryChoice(summary=words.strip()) if words and words.strip() else None
