"""The host: what a front end does for commands beside asking and telling, which is its `Ui`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from sessiontree.core.entries import EntryId

if TYPE_CHECKING:
    from sessiontree.commands.controller import SessionController
    from sessiontree.session import Branch, Session


class Host(Protocol):
    async def choose_entry(self, controller: SessionController) -> EntryId | None:
        """Show the tree and have the person choose an entry; `None` when none was chosen."""
        ...

    async def choose_branch(self, session: Session) -> Branch | None:
        """The branch to be on in a session that one goes over to; it may be one of the same session opened anew.

        `None` when one stays where one is.
        """
        ...

    def is_open_elsewhere(self, place: str) -> bool:
        """Whether another program has the session at this path or address open, which one has left here."""
        ...

    def refresh(self) -> None:
        """The conversation is another one now, or at another place: draw it anew."""
        ...

    def set_editor_text(self, text: str) -> None: ...

    def copy(self, text: str) -> str | None:
        """Send a text to the clipboard. Returns what to tell the person; `None` where there is no clipboard."""
        ...

    def quit(self) -> None: ...


class HeadlessHost:
    """No front end: nothing is drawn and nothing chosen, and what would be in the editor is kept."""

    def __init__(self) -> None:
        self.editor = ""
        self.has_quit = False

    async def choose_entry(self, controller: SessionController) -> EntryId | None:
        return None

    async def choose_branch(self, session: Session) -> Branch:
        return session.head

    def is_open_elsewhere(self, place: str) -> bool:
        return False

    def refresh(self) -> None:
        pass

    def set_editor_text(self, text: str) -> None:
        self.editor = text

    def copy(self, text: str) -> str | None:
        return None

    def quit(self) -> None:
        self.has_quit = True
