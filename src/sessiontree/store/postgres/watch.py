"""Watching: waiting until others have written, by LISTEN and NOTIFY, and by asking now and then where that fails.

A notice carries the number of a session's row and no more; whoever is woken asks how far the session is. So a notice
that is lost, doubled or late does no harm: it costs at most `POLL` seconds. One connection listens for all who wait in
this process.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from sessiontree.store.postgres.connection import LONGEST_PAUSE, PAUSE, Database, psycopg_error
from sessiontree.store.postgres.schema import CHANNEL

if TYPE_CHECKING:
    from sessiontree.store.postgres.connection import Connection

POLL = 1.0
"""So many seconds at most a lost notice goes unnoticed."""
LINGER = 10.0
"""So many seconds the connection is kept when nobody waits any more."""


class Watch:
    """The listener of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._waiting: dict[int, set[threading.Event]] = {}
        self._thread: threading.Thread | None = None

    def enter(self, key: int) -> threading.Event:
        """From now on the event is set whenever the session may have grown."""
        event = threading.Event()
        with self._lock:
            self._waiting.setdefault(key, set()).add(event)
            if self._thread is None:
                self._thread = threading.Thread(target=self._listen, name="sessiontree-watch", daemon=True)
                self._thread.start()
        return event

    def leave(self, key: int, event: threading.Event) -> None:
        with self._lock:
            waiting = self._waiting[key]
            waiting.discard(event)
            if not waiting:
                del self._waiting[key]

    def _listen(self) -> None:
        pause = PAUSE
        idle_since: float | None = None
        while True:
            with suppress(psycopg_error()), self._database.connect() as connection:
                connection.execute(f"LISTEN {CHANNEL}".encode())
                pause = PAUSE
                self._wake()  # for what came before
                while not self._is_over(idle_since):
                    idle_since = self._idle_since(idle_since)
                    self._hear(connection)
            idle_since = self._idle_since(idle_since)
            self._wake()
            with self._lock:
                if not self._waiting and self._is_over(idle_since):
                    self._thread = None
                    return
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _hear(self, connection: Connection) -> None:
        for notice in connection.notifies(timeout=POLL, stop_after=1):
            if notice.payload.isdecimal():
                self._wake(int(notice.payload))

    def _idle_since(self, since: float | None) -> float | None:
        with self._lock:
            return None if self._waiting else since or time.monotonic()

    @staticmethod
    def _is_over(idle_since: float | None) -> bool:
        return idle_since is not None and time.monotonic() - idle_since > LINGER

    def _wake(self, key: int | None = None) -> None:
        """Wake those who wait for a session, or all."""
        with self._lock:
            events = [event for number, several in self._waiting.items() if key in (None, number) for event in several]
        for event in events:
            event.set()
