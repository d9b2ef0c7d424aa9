"""Forking: a new session from a part of another, with the hooks asked and told. The source is not touched.

`catalog.fork` is the bare copy. Going over to the new session is the business of whoever works in the old one.
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
    session: Session | None = None
    """The new session; `None` if a handler cancelled."""
    editor_text: str | None = None
    """The user's message that it was forked before, to be said anew."""
    cancelled: bool = False


async def fork(
    session: Session,
    place: Place = "HEAD",
    *,
    hooks: Hooks,
    position: Literal["before", "at"] = "at",
    name: str | None = None,
    dir: str | os.PathLike[str] | None = None,
    file: str | os.PathLike[str] | None = None,
) -> ForkOutcome:
    """A new session with the path to a place; `before` a user's message, its text is given back for the editor.

    A session in memory is forked in memory, unless a folder or a file is given.
    """
    entry = session.resolve_place(place)
    end, words = entry, None
    if position == "before":
        end, words = _find_fork_point(session, entry)
    _, answer = await hooks.ask(BeforeFork(entry=entry, position=position))
    if answer.cancel:
        return ForkOutcome(cancelled=True)
    at = None if end is None else session.tree[end]
    made = catalog.fork(session, at=at, name=name, dir=dir, file=file)
    await hooks.emit(Forked(entry=entry, previous_session_file=session.address, session_file=made.address))
    return ForkOutcome(session=made, editor_text=words)


def _find_fork_point(session: Session, entry: str | None) -> tuple[str | None, str]:
    body = None if entry is None else session.tree[entry].body
    if entry is None or not isinstance(body, Message) or get_role(body.message) != "user":
        raise InvalidOperation(f"one can fork before a message of the user, and {entry or 'root'} is none")
    return session.tree.skip_annotations(session.tree.parent(entry)), extract_text(body.message.get("content"))
