"""Arguments of slash commands and their completion."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from sessiontree.agent.permission_rules import PERMISSION_MODES
from sessiontree.commands.registry import Argument
from sessiontree.config import CHOICES
from sessiontree.core.entries import Message
from sessiontree.core.messages import get_role
from sessiontree.library import catalog

if TYPE_CHECKING:
    from sessiontree.commands.controller import SessionController

LEVELS = CHOICES["thinking"]


def complete_branches(controller: SessionController, prefix: str) -> Iterable[str]:
    return [name for name in controller.session.heads.heads if name not in controller.session.heads.archived]


def complete_places(controller: SessionController, prefix: str) -> Iterable[str]:
    """Complete names first, and entry ids after four characters."""
    names = ["HEAD", "root", *complete_branches(controller, prefix), *controller.session.tree.labels.values()]
    return [*names, *(controller.session.tree.find_by_prefix(prefix) if len(prefix) >= 4 else ())]


def complete_prompts(controller: SessionController, prefix: str) -> Iterable[str]:
    """Complete the user's messages on the path, the last one first."""
    return [
        entry.id
        for entry in reversed(controller.branch.path())
        if isinstance(entry.body, Message) and get_role(entry.body.message) == "user"
    ]


def complete_labels(controller: SessionController, prefix: str) -> Iterable[str]:
    return controller.session.tree.labels.values()


def complete_models(controller: SessionController, prefix: str) -> Iterable[str]:
    return controller.models.list_names()


def complete_levels(controller: SessionController, prefix: str) -> Iterable[str]:
    return LEVELS


def complete_modes(controller: SessionController, prefix: str) -> Iterable[str]:
    """Complete permission modes."""
    return PERMISSION_MODES


def complete_sessions(controller: SessionController, prefix: str) -> Iterable[str]:
    """Complete names and ids of the sessions of this folder."""
    known = catalog.sessions(controller.cwd)
    return [word for summary in known for word in (summary.name, summary.id) if word]


def complete_commands(controller: SessionController, prefix: str) -> Iterable[str]:
    return [command.name for command in controller.commands]


def complete_files(controller: SessionController, prefix: str) -> Iterable[str]:
    """Complete files and folders in the working folder."""
    folder, _, _ = prefix.rpartition("/")
    where = os.path.join(controller.cwd, os.path.expanduser(f"{folder}/" if "/" in prefix else ""))
    try:
        with os.scandir(where) as found:
            listed = sorted((entry.name, entry.is_dir()) for entry in found if not entry.name.startswith("."))
    except OSError:
        return []
    lead = f"{folder}/" if "/" in prefix else ""
    return [f"{lead}{name}{'/' if is_folder else ''}" for name, is_folder in listed]


PLACE = Argument(name="PLACE", complete=complete_places)
PROMPT = Argument(name="MESSAGE", complete=complete_prompts)
BRANCH = Argument(name="BRANCH", complete=complete_branches)
FOCUS = Argument(name="FOCUS", rest=True)
FILE = Argument(name="FILE", complete=complete_files)
