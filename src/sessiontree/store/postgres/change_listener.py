"""Waiting for changes of sessions with LISTEN and NOTIFY, and by polling where that fails.

A notification carries only the key of a session's row. The waiter then queries where the session ends. So a lost,
duplicate or late notification is harmless: it costs at most `POLL_SECONDS`. One connection listens for all waiters of
this process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from sessiontree.store.postgres.driver import MAX_PAUSE, MIN_PAUSE, get_driver_error
from sessiontree.store.postgres.schema import CHANNEL

if TYPE_CHECKING:
    from sessiontree.store.postgres.driver import Connection

POLL_SECONDS = 1.0
"""Seconds between two polls."""
LINGER_SECONDS = 10.0
"""Seconds that the connection is kept open after the last waiter left."""


class ChangeListener:
    """Listens for changes in one database."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._subscribers: dict[int, set[threading.Event]] = {}
        self._thread: threading.Thread | None = None

    def subscribe(self, key: int) -> threading.Event:
        """Return an event that is set from now on whenever the session may have grown."""
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
            with suppress(get_driver_error()), self._connect() as connection:
                connection.execute(f"LISTEN {CHANNEL}".encode())
                pause = MIN_PAUSE
                self._notify()  # for changes before LISTEN
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
        """Wake the waiters of one session, or all."""
        with self._lock:
            events = [
                event for number, several in self._subscribers.items() if key in (None, number) for event in several
            ]
        for event in events:
            event.set()
