"""Exports that run in their own processes, with limits on their number, time, memory and size.

A large export needs minutes and much memory, which the operating system gets back when the process ends.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import IO, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from sessiontree.self_process import build_self_command
from sessiontree.server.http_errors import ApiError
from sessiontree.server.jobs.export_process import TOO_LARGE, ExportOrder, ExportStatus
from sessiontree.server.request_checks import ServerLimits

ExportState: TypeAlias = Literal["queued", "running", "done", "failed"]

PROCESS_MODULE = "sessiontree.server.jobs.export_process"
CHUNK_SIZE = 1 << 16
"""Bytes of a file that are sent in one piece."""
ERROR_STATUSES = {
    "NotFound": (404, "not_found"),
    "Ambiguous": (409, "ambiguous"),
    "FormatError": (409, "unreadable"),
    TOO_LARGE: (413, "too_large"),
}
"""The status and code of each kind of error; all others are conflicts."""


class ExportJob:
    """An export and its file."""

    def __init__(self, id: str, token: str, name: str, order: ExportOrder, given: IO[bytes]) -> None:
        self.id = id
        self.token = token
        """The id of the token that started the export. Other tokens cannot see it."""
        self.name = name
        """The file name for the download."""
        self.order = order
        self.state: ExportState = "queued"
        self.status = ExportStatus()
        self.failure: ApiError | None = None
        """Why the export failed."""
        self.ended = threading.Event()
        self.ended_at = 0.0
        self._input = given
        self._file: IO[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._is_cancelled = False

    def run(self, seconds: float) -> None:
        """Run the export process and wait until it ends."""
        try:
            self._run(seconds)
        except OSError as error:
            self._fail(ApiError(500, f"the export failed: {error.strerror or error}"))
        finally:
            self._input.close()
            self.ended_at = time.monotonic()
            self.ended.set()

    def _run(self, seconds: float) -> None:
        file = tempfile.TemporaryFile()  # noqa: SIM115 - it is handed on
        with self._lock:
            if self._is_cancelled:
                file.close()
                return
            self._file = file
            self.state = "running"
            process = self._process = subprocess.Popen(
                build_self_command(PROCESS_MODULE, msgspec.json.encode(self.order).decode()),
                stdin=self._input,
                stdout=file,
                stderr=subprocess.PIPE,
                env={"LANG": "C.UTF-8", "PATH": os.defpath},
                cwd=os.sep,
                start_new_session=True,
            )
        timeout = threading.Timer(seconds, process.kill)
        timeout.start()
        try:
            assert process.stderr is not None
            with process.stderr:
                for line in process.stderr:
                    self._read_status(line)
            process.wait()
        finally:
            expired = not timeout.is_alive()
            timeout.cancel()
        if self.status.error:
            status, code = ERROR_STATUSES.get(self.status.error, (409, "conflict"))
            self._fail(ApiError(status, self.status.message, code=code))
        elif self.status.done and process.returncode == 0:
            self.state = "done"
        elif expired:
            self._fail(ApiError(413, f"the export took longer than {seconds:g} s; use `sessiontree export`"))
        else:
            self._fail(ApiError(413, "the export exceeded its memory limit; use `sessiontree export`"))

    def _read_status(self, line: bytes) -> None:
        try:
            self.status = msgspec.json.decode(line, type=ExportStatus)
        except msgspec.DecodeError:
            return  # a warning of a library, not a status

    def _fail(self, refusal: ApiError) -> None:
        self.failure = refusal
        self.state = "failed"
        self._discard_file()

    def cancel(self) -> None:
        """Kill the process and delete the file."""
        with self._lock:
            self._is_cancelled = True
            process = self._process
        if process is not None and process.poll() is None:
            process.kill()
        if self.ended.is_set():
            self._discard_file()
        elif process is None:
            self._fail(ApiError(409, "the export was cancelled"))

    def _discard_file(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def open_file(self) -> tuple[int, Iterator[bytes]]:
        """Return the size of the file and an iterator over its bytes. Raises `ApiError`."""
        if self.failure is not None:
            raise self.failure
        with self._lock:
            if self.state != "done" or self._file is None:
                raise ApiError(409, "the export has not finished")
            fd = os.dup(self._file.fileno())
        return os.fstat(fd).st_size, _read_chunks(fd)


def _read_chunks(fd: int) -> Iterator[bytes]:
    """Yield the bytes of a file from its start. Several readers may share the descriptor."""
    at = 0
    try:
        while piece := os.pread(fd, CHUNK_SIZE, at):
            yield piece
            at += len(piece)
    finally:
        os.close(fd)


class ExportJobs:
    """The exports of this server."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._slots = threading.Semaphore(limits.exports)
        self._jobs: dict[str, ExportJob] = {}

    def start(self, token: str, name: str, order: ExportOrder, open_lines: Callable[[], IO[bytes]]) -> ExportJob:
        """Start or queue an export. Raises `ApiError` if too many are queued.

        The limits of `order` are set here. `open_lines` opens the session as a file; it is called only if the export is
        accepted.
        """
        order = replace(order, memory=self._limits.export_memory, size=self._limits.export_size)
        with self._lock:
            self._check_capacity(token)
            lines = open_lines()
            job = ExportJob(secrets.token_hex(16), token, name, order, lines)
            self._jobs[job.id] = job
        threading.Thread(target=self._run, args=(job,), name="sessiontree-export", daemon=True).start()
        return job

    def _check_capacity(self, token: str) -> None:
        unfinished = Counter(job.token for job in self._jobs.values() if not job.ended.is_set())
        limit = self._limits.exports + self._limits.export_queue
        if unfinished.total() >= limit or unfinished[token] >= max(1, limit // 2):
            raise ApiError(429, "too many exports are running; try again later", code="too_many_exports")
        finished = [job for job in self._jobs.values() if job.token == token and job.ended.is_set()]
        for job in finished[: max(0, len(finished) + 1 - self._limits.export_queue)]:
            self._remove(job)

    def _run(self, job: ExportJob) -> None:
        with self._slots:
            job.run(self._limits.export_seconds)

    def _remove(self, job: ExportJob) -> None:
        self._jobs.pop(job.id, None)
        job.cancel()

    def find(self, id: str, token: str) -> ExportJob:
        """Return an export. Raises `ApiError` if it does not exist or belongs to another token."""
        with self._lock:
            job = self._jobs.get(id)
        if job is None or job.token != token:
            raise ApiError(
                404, f"export {id!r} not found; exports are kept for {self._limits.export_retention_seconds:g} s"
            )
        return job

    def discard(self, job: ExportJob) -> None:
        """Cancel an export and delete its file."""
        with self._lock:
            self._remove(job)

    def remove_expired(self) -> None:
        """Delete expired files."""
        oldest = time.monotonic() - self._limits.export_retention_seconds
        with self._lock:
            for job in [job for job in self._jobs.values() if job.ended.is_set() and job.ended_at < oldest]:
                self._remove(job)

    def close(self) -> None:
        with self._lock:
            for job in list(self._jobs.values()):
                self._remove(job)
