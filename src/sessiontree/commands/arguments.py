"""Arguments: what commands take, and how each is completed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from sessiontree import catalog
from sessiontree.agent.rules import MODES
from sessiontree.commands.command import Argument
from sessiontree.config import CHOICES
from sessiontree.core.entries import Message
from sessiontree.core.messages import role

if TYPE_CHECKING:
    from sessiontree.commands.desk import Desk

LEVELS = CHOICES["thinking"]


def branches(desk: Desk, begun: str) -> Iterable[str]:
    return [name for name in desk.session.heads.heads if name not in desk.session.heads.archived]


def places(desk: Desk, begun: str) -> Iterable[str]:
    """Names first; ids of entries once a few letters of one are there."""
    named = ["HEAD", "root", *branches(desk, begun), *desk.session.tree.labels.values()]
    return [*named, *(desk.session.tree.starting_with(begun) if len(begun) >= 4 else ())]


def prompts(desk: Desk, begun: str) -> Iterable[str]:
    """The user's messages on the path, the last one first."""
    return [
        entry.id
        for entry in reversed(desk.branch.path())
        if isinstance(entry.body, Message) and role(entry.body.message) == "user"
    ]


def labels(desk: Desk, begun: str) -> Iterable[str]:
    return desk.session.tree.labels.values()


def models(desk: Desk, begun: str) -> Iterable[str]:
    return desk.models.names()


def levels(desk: Desk, begun: str) -> Iterable[str]:
    return LEVELS


def modes(desk: Desk, begun: str) -> Iterable[str]:
    """Permission modes."""
    return MODES


def sessions(desk: Desk, begun: str) -> Iterable[str]:
    """Names and ids of the sessions of this folder."""
    known = catalog.sessions(desk.cwd)
    return [word for summary in known for word in (summary.name, summary.id) if word]


def commands(desk: Desk, begun: str) -> Iterable[str]:
    return [command.name for command in desk.commands]


def files(desk: Desk, begun: str) -> Iterable[str]:
    """Files and folders below the folder that the session is about."""
    folder, _, _ = begun.rpartition("/")
    where = os.path.join(desk.cwd, os.path.expanduser(f"{folder}/" if "/" in begun else ""))
    try:
        with os.scandir(where) as found:
            listed = sorted((entry.name, entry.is_dir()) for entry in found if not entry.name.startswith("."))
    except OSError:
        return []
    lead = f"{folder}/" if "/" in begun else ""
    return [f"{lead}{name}{'/' if is_folder else ''}" for name, is_folder in listed]


PLACE = Argument(name="PLACE", complete=places)
PROMPT = Argument(name="MESSAGE", complete=prompts)
BRANCH = Argument(name="BRANCH", complete=branches)
FOCUS = Argument(name="FOCUS", rest=True)
FILE = Argument(name="FILE", complete=files)
