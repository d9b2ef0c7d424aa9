"""Program text: the marks that other agent programs put into the messages of a user, as people read them.

Claude Code writes a slash command as `<command-name>/model</command-name> …`, and adds reminders to questions.
Rows and titles show such text without its marks. The stored message, and what a model gets, stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from sessiontree.core.entries import shorten_to_line

MARK_LIMIT = 32
"""How many marks at the start of a text are looked at."""
SCAN_LIMIT = 16_384
"""How many characters inside and after the marks are looked at: a row holds much less."""
_CONTEXT = r"system-reminder|ide_\w+|environment_context|session_context|user_instructions|[\w-]+-caveat"
"""Tags of text that a program adds for the model. A row shows it only if there is nothing else."""
_TAGS = (
    rf"{_CONTEXT}|task-notification|command-\w+|local-command-\w+|bash-\w+|[\w-]+-hook|turn_aborted|"
    "subagent_notification|image"
)
# Few texts have marks, so these patterns are compiled when they are first used. `re` keeps them.
_OPENING = rf"\s*<({_TAGS})(\s[^>]{{0,500}})?>"
_REMINDER = r"(?s)<system-reminder>.*?(?:</system-reminder>|\Z)"
_SUMMARY = r"(?s)<summary>(.*?)</summary>"
_RESULT = r"(?s)<result>(.*?)(?:</result>|\Z)"
_NAME = r"\bname=(\[[^\]]*\]|\"[^\"]*\"|\S+)"
_ANY_MARK = r"</?[a-z][\w-]{0,60}>"
_COLOR = r"\x1b\[[\d;]{0,40}m"


def shorten_user_text(text: str) -> str:
    """Return the words of the user or the program in a message of the user, as a line of a listing."""
    return shorten_to_line(format_program_text(text))


def format_program_text(text: str, *, with_results: bool = False) -> str:
    """Return `text` without the marks at its start, and without reminders. Text without marks is returned as it is.

    A notification about a subagent is one line, followed by what the subagent answered if `with_results`.
    """
    if "<" not in text[:SCAN_LIMIT]:
        return text
    marks, end = _split_marks(text)
    if not marks and "<system-reminder>" not in text[:SCAN_LIMIT]:
        return text
    rest = _remove_reminders(text, end)
    said = " ".join(filter(None, [*_describe_marks(marks, with_results), rest]))
    return said or (_describe_context(marks[0]) if marks else text)


def has_only_program_text(text: str) -> bool:
    """Return whether `text` consists of marks alone. A reminder may precede a question."""
    marks, end = _split_marks(text)
    if any(mark.tag == "image" for mark in marks):
        return False  # a picture that the user attached
    is_context = all(re.fullmatch(_CONTEXT, mark.tag) for mark in marks)
    return bool(marks) and (not is_context or not _remove_reminders(text, end))


class _Mark(Struct, frozen=True):
    tag: str
    attributes: str
    inner: str


def _split_marks(text: str) -> tuple[list[_Mark], int]:
    """Return the marks at the start of `text`, and where they end."""
    marks: list[_Mark] = []
    end = 0
    if not text.lstrip().startswith("<"):
        return marks, end
    find_opening = re.compile(_OPENING).match
    while len(marks) < MARK_LIMIT and (opening := find_opening(text, end)) is not None:
        start, closing = opening.end(), f"</{opening[1]}>"
        stop = text.find(closing, start)
        if stop < 0:  # the text was cut off
            stop = len(text)
        marks.append(_Mark(opening[1], opening[2] or "", text[start : min(stop, start + SCAN_LIMIT)]))
        end = min(stop + len(closing), len(text))
    return marks, end


def _remove_reminders(text: str, start: int) -> str:
    return re.sub(_REMINDER, "", text[start : start + SCAN_LIMIT]).strip()


def _describe_marks(marks: list[_Mark], with_results: bool) -> Iterator[str]:
    for mark in marks:
        inner = mark.inner
        match mark.tag:
            case "bash-input":
                yield f"! {_clean(inner)}"
            case "command-message":
                pass  # repeats the name
            case "task-notification":
                found, result = re.search(_SUMMARY, inner), re.search(_RESULT, inner)
                line = _clean(found[1] if found else inner)
                yield f"{line}:\n\n{result[1].strip()}" if found and result and with_results else line
            case "image":
                name = re.search(_NAME, mark.attributes)
                yield _clean(inner) if name is None else name[1]
            case "turn_aborted" | "subagent_notification":
                yield _describe_context(mark)
            case tag if re.fullmatch(_CONTEXT, tag):
                pass
            case _:
                yield _clean(inner)


def _describe_context(mark: _Mark) -> str:
    """Return text that a program added for the model, with what it is."""
    return f"{re.sub('[-_]', ' ', mark.tag)}: {_clean(mark.inner)}"


def _clean(text: str) -> str:
    """Return text without marks, character references and colors."""
    import html  # loads a table of all character references, which few texts need

    return html.unescape(re.sub(_ANY_MARK, " ", re.sub(_COLOR, "", text))).strip()
