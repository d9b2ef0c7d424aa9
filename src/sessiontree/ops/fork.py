"""Fork: create a new session from a part of another, with hooks. The source does not change.

`catalog.fork` copies without hooks. The caller decides whether to switch to the new session.
"""

from __future__ import annotations

import os
from typing import Literal

from msgspec import Struct

from sessiontree.core.entries import Message
from sessiontree.core.messages import extract_text, get_role
from sessiontree.errors import InvalidOperation
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import BeforeFork, Forked
from sessiontree.library import catalog
from sessiontree.session import Place, Session


class ForkOutcome(Struct, frozen=True, kw_only=True):
    """The result of a fork."""

    session: Session | None = None
    """The new session; `None` if a handler cancelled."""
    editor_text: str | None = None
    """If the fork is before a user message: the text of that message, for the editor."""
    cancelled: bool = False
    cancelled_by: str | None = None
    """The handler or extension that cancelled it."""


async def fork_session(
    session: Session,
    place: Place = "HEAD",
    *,
    hooks: Hooks | None = None,
    position: Literal["before", "at"] = "at",
    name: str | None = None,
    dir: str | os.PathLike[str] | None = None,
    file: str | os.PathLike[str] | None = None,
) -> ForkOutcome:
    """Create a session with the path to a place. `before` a user message, return its text for the editor.

    A fork of a session in memory is in memory too, unless you pass a folder or a file.
    """
    entry = session.resolve_place(place)
    end, text = entry, None
    if position == "before":
        end, text = _find_fork_point(session, entry)
    hooks = hooks or Hooks()
    _, answer = await hooks.ask(BeforeFork(entry=entry, position=position))
    if answer.cancel:
        return ForkOutcome(cancelled=True, cancelled_by=answer.cancelled_by)
    at = None if end is None else session.tree[end]
    forked = catalog.fork(session, at=at, name=name, dir=dir, file=file)
    await hooks.emit(Forked(entry=entry, previous_session_file=session.address, session_file=forked.address))
    return ForkOutcome(session=forked, editor_text=text)


def _find_fork_point(session: Session, entry: str | None) -> tuple[str | None, str]:
    body = None if entry is None else session.tree[entry].body
    if entry is None or not isinstance(body, Message) or get_role(body.message) != "user":
        place = "root" if entry is None else f"entry {entry!r}"
        raise InvalidOperation(f"cannot fork before {place}: it is not a user message")
    return session.tree.skip_annotations(session.tree.parent(entry)), extract_text(body.message.get("content"))
