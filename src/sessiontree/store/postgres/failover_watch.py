"""Ends statements that wait for a server which is no longer the primary.

A server that is suspended or cut off does not end its connections: a statement there would wait until the server is
back. So while a statement takes long, a thread looks which server the address leads to now. If it is another one, the
socket of the statement is closed, and the statement fails like with any lost connection.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from sessiontree.store.postgres.driver import get_driver_error

if TYPE_CHECKING:
    from sessiontree.store.postgres.driver import Connection

SLOW_SECONDS = 5.0
"""Seconds after which a statement counts as slow."""
CHECK_SECONDS = 1.0
"""Seconds between two looks at the statements."""
LINGER_SECONDS = 10.0
"""Seconds that the thread stays after the last statement."""


class FailoverWatch:
    """Watches the statements of a process on a database whose address names several servers."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        """`connect` opens a connection to the server that is the primary now."""
        self._connect = connect
        self._lock = threading.Lock()
        self._started: dict[Connection, float] = {}
        """When the work on each connection began."""
        self._thread: threading.Thread | None = None

    @contextmanager
    def watch(self, connection: Connection) -> Generator[None]:
        with self._lock:
            self._started[connection] = time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sessiontree-failover", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                del self._started[connection]

    def _run(self) -> None:
        idle_since = time.monotonic()
        while True:
            time.sleep(CHECK_SECONDS)
            now = time.monotonic()
            with self._lock:
                slow = [connection for connection, since in self._started.items() if now - since > SLOW_SECONDS]
                if self._started:
                    idle_since = now
                elif now - idle_since > LINGER_SECONDS:
                    self._thread = None
                    return
            if slow:
                self._end_stranded(slow)

    def _end_stranded(self, slow: list[Connection]) -> None:
        """Close the sockets of these connections if they lead to another server than the address does now."""
        with suppress(get_driver_error()), self._connect() as probe:
            current = _find_server(probe)
            with self._lock:
                for connection in slow:
                    if connection in self._started and not connection.closed and _find_server(connection) != current:
                        _close_socket(connection)


def _find_server(connection: Connection) -> tuple[str, int]:
    return connection.info.hostaddr or connection.info.host, connection.info.port


def _close_socket(connection: Connection) -> None:
    """Make the statement that waits on this connection, in another thread, fail."""
    with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as copy:
        copy.shutdown(socket.SHUT_RDWR)
