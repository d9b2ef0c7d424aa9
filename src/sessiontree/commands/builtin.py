"""The built-in commands in the order of the help."""

from __future__ import annotations

from sessiontree.commands import info, navigation, sessions
from sessiontree.commands.registry import Command

ORDER = (
    "help", "tree", "branch-here", "branches", "switch", "pop", "undo", "retry", "clear", "label",
    "fork", "branch", "clone", "new", "resume", "session", "name", "search", "export", "export-branch",
    "merge", "cherry-pick", "rebase", "compact", "uncompact", "context", "diff", "compare",
    "model", "thinking", "permissions", "copy", "save-unsaved", "reload", "quit",
)  # fmt: skip


def get_builtin_commands() -> list[Command]:
    commands = {command.name: command for command in (*navigation.COMMANDS, *sessions.COMMANDS, *info.COMMANDS)}
    return [commands[name] for name in ORDER]
