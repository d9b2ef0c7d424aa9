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

from sessiontree.store.postgres.connection import MAX_PAUSE, MIN_PAUSE, PostgresDatabase, get_driver_error
from sessiontree.store.postgres.schema import CHANNEL

if TYPE_CHECKING:
    from sessiontree.store.postgres.connection import Connection

POLL_SECONDS = 1.0
"""So many seconds at most a lost notice goes unnoticed."""
LINGER_SECONDS = 10.0
"""So many seconds the connection is kept when nobody waits any more."""


class ChangeListener:
    """The listener of one database."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._subscribers: dict[int, set[threading.Event]] = {}
        self._thread: threading.Thread | None = None

    def subscribe(self, key: int) -> threading.Event:
        """From now on the event is set whenever the session may have grown."""
        event = threading.Event()
        with self._lock:
            self._subscribers.setdefault(key, set()).add(event)
            if self._thread is None:
                self._thread = threading.Thread(target=self._listen, name="sessiontree-watch", daemon=True)
                self._thread.start()
        return event

    def unsubscribe(self, key: int, event: threading.Event) -> None:
        with self._lock:
            waiting = self._subscribers[key]
            waiting.discard(event)
            if not waiting:
                del self._subscribers[key]

    def _listen(self) -> None:
        pause = MIN_PAUSE
        idle_since: float | None = None
        while True:
            with suppress(get_driver_error()), self._database.connect() as connection:
                connection.execute(f"LISTEN {CHANNEL}".encode())
                pause = MIN_PAUSE
                self._notify()  # for what came before
                while not self._is_idle_too_long(idle_since):
                    idle_since = self._get_idle_start(idle_since)
                    self._receive(connection)
            idle_since = self._get_idle_start(idle_since)
            self._notify()
            with self._lock:
                if not self._subscribers and self._is_idle_too_long(idle_since):
                    self._thread = None
                    return
            time.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE)

    def _receive(self, connection: Connection) -> None:
        for notice in connection.notifies(timeout=POLL_SECONDS, stop_after=1):
            if notice.payload.isdecimal():
                self._notify(int(notice.payload))

    def _get_idle_start(self, since: float | None) -> float | None:
        with self._lock:
            return None if self._subscribers else since or time.monotonic()

    @staticmethod
    def _is_idle_too_long(idle_since: float | None) -> bool:
        return idle_since is not None and time.monotonic() - idle_since > LINGER_SECONDS

    def _notify(self, key: int | None = None) -> None:
        """Wake those who wait for a session, or all."""
        with self._lock:
            events = [
                event for number, several in self._subscribers.items() if key in (None, number) for event in several
            ]
        for event in events:
            event.set()
