"""The commands that are built in, in the order that help lists them."""

from __future__ import annotations

from sessiontree.commands import moving, seeing, sessions
from sessiontree.commands.command import Command

ORDER = (
    "help", "tree", "branch-here", "branches", "switch", "pop", "undo", "retry", "clear", "label",
    "fork", "branch", "clone", "new", "resume", "session", "name", "search", "export", "export-branch",
    "merge", "cherry-pick", "rebase", "compact", "uncompact", "context", "diff", "compare",
    "model", "thinking", "permissions", "copy", "save-unsaved", "reload", "quit",
)  # fmt: skip


def get_builtin_commands() -> list[Command]:
    made = {command.name: command for command in (*moving.COMMANDS, *sessions.COMMANDS, *seeing.COMMANDS)}
    return [made[name] for name in ORDER]
