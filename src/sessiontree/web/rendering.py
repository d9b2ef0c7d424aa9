"""Rendering: what was said as clean HTML. It may take seconds, so it is done while no session is held.

What a text looks like follows from the text alone: it is kept by it, within bounds, for whoever asks next.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from msgspec import UNSET, UnsetType

LONGEST = 100_000
"""Characters of a text that are made HTML; a longer one is shown plain."""
KEPT = 4 << 20
"""Characters of texts and their HTML that are kept of one session."""


class Rendered:
    """Texts of a session as HTML. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, str] = OrderedDict()
        self._size = 0

    def html(self, words: str) -> str | UnsetType:
        """A text as clean HTML, unless it is too long for that."""
        if len(words) > LONGEST:
            return UNSET
        with self._lock:
            known = self._kept.get(words)
            if known is not None:
                self._kept.move_to_end(words)
                return known
        made = _rendered(words)
        with self._lock:
            if words not in self._kept:
                self._kept[words] = made
                self._size += len(words) + len(made)
            while self._size > KEPT:
                self._size -= sum(map(len, self._kept.popitem(last=False)))
        return made


def _rendered(words: str) -> str:
    from sessiontree.export.prose import prose
    from sessiontree.export.view import visible

    return prose(visible(words))
