"""The host protocol: actions of a front end that commands need, besides the dialogs of `Ui`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from sessiontree.core.entries import EntryId

if TYPE_CHECKING:
    from sessiontree.commands.controller import (
        SessionController,  # cycle: a host serves the controller that it is given to
    )
    from sessiontree.session import Branch, Session


class Host(Protocol):
    async def choose_entry(self, controller: SessionController) -> EntryId | None:
        """Show the tree and return the entry that the user chooses, or `None`."""
        ...

    async def choose_branch(self, session: Session) -> Branch | None:
        """Return the branch to use in a session that the controller is about to enter.

        It may belong to the same session, opened again. Return `None` to stay in the current session.
        """
        ...

    def is_open_elsewhere(self, place: str) -> bool:
        """Whether another program has the session open."""
        ...

    def refresh(self) -> None:
        """Redraw the conversation after a change of the session or the branch."""
        ...

    def set_editor_text(self, text: str) -> None: ...

    def copy(self, text: str) -> str | None:
        """Copy a text to the clipboard. Return a message for the user, or `None` without a clipboard."""
        ...

    def quit(self) -> None: ...


class HeadlessHost:
    """A host without a front end. It keeps the text that would be in the editor."""

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
