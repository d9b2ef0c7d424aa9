"""Formats: all foreign formats, and which one a file has."""

from __future__ import annotations

from collections.abc import Sequence

from sessiontree.errors import NotFound
from sessiontree.interop import (
    chatgpt_export,
    claude_code,
    claude_export,
    codex,
    gemini_cli,
    llm_logs,
    message_lists,
    openai_agents,
    opencode,
)
from sessiontree.interop.base import FileHead, ForeignFormat

FORMATS: tuple[ForeignFormat, ...] = (
    claude_code.FORMAT,
    codex.FORMAT,
    opencode.FORMAT,
    gemini_cli.FORMAT,
    chatgpt_export.FORMAT,
    claude_export.FORMAT,
    llm_logs.FORMAT,
    openai_agents.FORMAT,
    message_lists.FORMAT,
)
"""In the order in which `detect_format` asks them: the most specific first."""


def detect_format(head: FileHead) -> ForeignFormat | None:
    """Return the format of a file by its content, or `None`."""
    return next((format for format in FORMATS if format.detect(head)), None)


def find_format(name: str) -> ForeignFormat:
    """Return a format by name. Raises `NotFound`."""
    for format in FORMATS:
        if format.name == name:
            return format
    raise NotFound("format", name, f"formats: {', '.join(format.name for format in FORMATS)}")


def select_sessions(paths: Sequence[str]) -> set[str]:
    """Return the files of a program that are complete sessions, by their paths."""
    selected = paths
    for format in FORMATS:
        selected = format.select_sessions(selected)
    return set(selected)


def list_written_formats() -> list[str]:
    """Return the names of the formats that can be written."""
    return [format.name for format in FORMATS if format.write is not None]
