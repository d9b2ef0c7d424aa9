"""The audit log: which token changed, exported or shared what, and when. It has no content of sessions.

A thread writes it to `audit.jsonl` in the home, readable only by the user. A full file is kept as `audit.jsonl.1`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import re
import threading
from typing import Any

import msgspec
from msgspec import Struct, structs

from sessiontree.core.sanitize import escape_line
from sessiontree.home import get_home
from sessiontree.server.auth import SHARE_PREFIX, Token, get_time_now

AUDIT_FILE = "audit.jsonl"
OLDER_SUFFIX = ".1"
MAX_BYTES = 4 << 20
SESSION_PATH = re.compile(r"/api/sessions/([^/]+)")
UNRECORDED = ("/markdown", "/compare", "/files-diff")
"""Ends of paths that use POST and change nothing."""

log = logging.getLogger("sessiontree.server")


class AuditEvent(Struct, frozen=True, kw_only=True):
    """Something that a token did."""

    time: str
    token: str
    name: str
    kind: str
    action: str
    """The method and the path, without the secret of a link."""
    session: str | None
    status: int

    def as_fields(self) -> dict[str, Any]:
        return structs.asdict(self)


def build_event(token: Token, method: str, path: str, status: int) -> AuditEvent | None:
    """Return the event of a request, or `None` for a request that is not recorded."""
    if path.startswith(SHARE_PREFIX):
        action, session = "open share link", token.session
    elif method == "GET":
        if not path.endswith("/export"):
            return None
        action, session = f"{method} {path}", _find_session(path)
    elif path.endswith(UNRECORDED):
        return None
    else:
        action, session = f"{method} {path}", _find_session(path)
    return AuditEvent(
        time=get_time_now(),
        token=token.root if token.kind != "share" else token.id,
        name=token.name,
        kind=token.kind,
        action=escape_line(action)[:500],
        session=session,
        status=status,
    )


def _find_session(path: str) -> str | None:
    found = SESSION_PATH.match(path)
    return None if found is None else found[1][:200]


class AuditLog:
    """The audit log of a server. For any thread."""

    def __init__(self, file: str | None = None, max_bytes: int = MAX_BYTES) -> None:
        self._file = os.path.join(get_home(), AUDIT_FILE) if file is None else file
        self._max_bytes = max_bytes
        self._queue: queue.SimpleQueue[AuditEvent | threading.Event | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def record(self, event: AuditEvent) -> None:
        """Write an event soon."""
        self._queue.put(event)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_events, name="sessiontree-audit", daemon=True)
                self._thread.start()

    def _write_events(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()
                continue
            try:
                self._append(msgspec.json.encode(item) + b"\n")
            except OSError as error:
                log.error("cannot write the audit log: %s", escape_line(str(error)))

    def _append(self, line: bytes) -> None:
        with contextlib.suppress(FileNotFoundError):
            if os.stat(self._file).st_size + len(line) > self._max_bytes:
                os.replace(self._file, self._file + OLDER_SUFFIX)
        os.makedirs(os.path.dirname(self._file), mode=0o700, exist_ok=True)
        fd = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            os.write(fd, line)
        finally:
            os.close(fd)

    def read(self) -> list[AuditEvent]:
        """Return the recorded events, newest first. Unreadable lines are left out."""
        self._flush()
        events: list[AuditEvent] = []
        for file in (self._file + OLDER_SUFFIX, self._file):
            try:
                with open(file, "rb") as lines:
                    for line in lines:
                        with contextlib.suppress(msgspec.DecodeError):
                            events.append(msgspec.json.decode(line, type=AuditEvent))
            except OSError:
                continue
        return events[::-1]

    def _flush(self) -> None:
        if self._thread is not None:
            written = threading.Event()
            self._queue.put(written)
            written.wait(5)

    def close(self) -> None:
        """Write the remaining events, and end the thread."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            thread.join(5)
