"""A plugin for pytest that makes `agents.SQLiteSession` a `TreeSession`, for the own tests of the OpenAI Agents SDK."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import agents
import agents.memory

from sessiontree.adapters.openai_agents import TreeSession


class SQLiteSession(TreeSession):
    """Takes the arguments of the original. The path of a database is the name of a folder."""

    def __init__(self, session_id: str, db_path: str | Path = ":memory:", **options: Any) -> None:
        in_memory = str(db_path) == ":memory:"
        folder = tempfile.mkdtemp(prefix="sessions-") if in_memory else f"{db_path}.sessions"
        super().__init__(session_id, folder, **options)


agents.SQLiteSession = SQLiteSession  # type: ignore[assignment,misc]
agents.memory.SQLiteSession = SQLiteSession  # type: ignore[assignment,misc]
