"""Shared helpers of tool tests: call a tool like the agent loop does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from sessiontree.agent.tool import Tool, ToolContext, ToolOutput, normalize_output
from sessiontree.core.messages import ToolCall
from sessiontree.hooks.events import Signal

Call = Callable[..., Awaitable[ToolOutput]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def call(folder: Path) -> Call:
    """Call a tool in `folder`."""
    return create_caller(folder)


def create_caller(folder: Path) -> Call:
    async def called(tool: Tool, *, update: Callable[[str], None] = lambda text: None, **arguments: Any) -> ToolOutput:
        context = ToolContext(
            call=ToolCall("c1", tool.name, arguments),
            arguments=tool.parse(arguments),
            cwd=str(folder),
            signal=Signal(),
            update=update,
        )
        return normalize_output(await tool.run(context))

    return called


def get_text(output: ToolOutput) -> str:
    assert isinstance(output.content, str)
    return output.content
