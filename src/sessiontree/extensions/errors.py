"""What goes wrong with extensions."""

from __future__ import annotations

from sessiontree.errors import SessionTreeError


class ExtensionError(SessionTreeError):
    """An extension could not be loaded, or failed at what it was asked for."""

    def __init__(self, extension: str, reason: str) -> None:
        super().__init__(f"extension {extension}: {reason}")
        self.extension = extension
        self.reason = reason
