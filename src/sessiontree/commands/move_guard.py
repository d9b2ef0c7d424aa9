"""Guards a move or a merge. Until it is written, it can be aborted, and no other activity may start."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator

from sessiontree.errors import InvalidOperation
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import Merged, Navigated, Signal


class MoveGuard:
    """Tracks the move or merge in progress. There is at most one that is not written yet."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._signal: Signal | None = None
        """Aborts the move in progress. `None` once it is written."""
        self._written = asyncio.Event()
        """Set while no move is in progress."""
        self._written.set()
        self._notifying: list[Signal] = []
        """The signals of written moves whose handlers still run."""

    @property
    def is_active(self) -> bool:
        """Whether a move is in progress and not written yet."""
        return self._signal is not None

    def ensure_inactive(self) -> None:
        """Raise `InvalidOperation` while a move is in progress."""
        if self.is_active:
            raise InvalidOperation("a move or a merge is in progress: abort it, or wait until it is done")

    async def wait(self) -> None:
        """Wait until no move is in progress."""
        await self._written.wait()

    @contextlib.contextmanager
    def begin(self) -> Generator[Signal]:
        """Start a move and yield the signal that aborts it.

        The move counts as written as soon as `Navigated` or `Merged` is emitted. The handlers of these events may
        already start the next move.
        """
        signal = self._signal = Signal()
        self._written.clear()

        def finish() -> None:
            if self._signal is signal:
                self._signal = None
                self._written.set()
                self._notifying.append(signal)

        stop_listening = self._hooks.listen(lambda event: finish() if isinstance(event, Navigated | Merged) else None)
        try:
            yield signal
        finally:
            stop_listening()
            finish()
            self._notifying.remove(signal)

    def abort(self) -> None:
        """Abort the move in progress, and stop waiting for the handlers of written moves."""
        for signal in self._notifying:
            signal.abort()
        self.abort_unwritten()

    def abort_unwritten(self) -> None:
        """Abort the move in progress."""
        if self._signal is not None:
            self._signal.abort()
