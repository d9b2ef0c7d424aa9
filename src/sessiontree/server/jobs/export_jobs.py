"""Export jobs: exports that the server makes, each in a process of its own, few at once and within limits.

A large export takes minutes and much memory. Here it takes neither from the server: what a process took is given back
when it ends. What waits is bounded too, and who asks for more is refused.
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
"""Bytes of a file that are sent at once."""
ERROR_STATUSES = {
    "NotFound": (404, "not_found"),
    "Ambiguous": (409, "ambiguous"),
    "FormatError": (409, "unreadable"),
    TOO_LARGE: (413, "too_large"),
}
"""The status and the code of what ends an export; all else is a conflict."""


class ExportJob:
    """One export, from its order to the end of its file."""

    def __init__(self, id: str, token: str, name: str, order: ExportOrder, given: IO[bytes]) -> None:
        self.id = id
        self.token = token
        """The token that it was ordered with; no other sees it."""
        self.name = name
        """What the file is called."""
        self.order = order
        self.state: ExportState = "queued"
        self.status = ExportStatus()
        self.failure: ApiError | None = None
        """Why there is no file."""
        self.ended = threading.Event()
        self.ended_at = 0.0
        self._input = given
        self._file: IO[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._is_cancelled = False

    def run(self, seconds: float) -> None:
        """Make the file. Returns when the process has ended."""
        try:
            self._run(seconds)
        except OSError as error:
            self._fail(ApiError(500, f"the export could not be made: {error.strerror or error}"))
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
        late = threading.Timer(seconds, process.kill)
        late.start()
        try:
            assert process.stderr is not None
            with process.stderr:
                for line in process.stderr:
                    self._read_status(line)
            process.wait()
        finally:
            expired = not late.is_alive()
            late.cancel()
        if self.status.error:
            status, code = ERROR_STATUSES.get(self.status.error, (409, "conflict"))
            self._fail(ApiError(status, self.status.message, code=code))
        elif self.status.done and process.returncode == 0:
            self.state = "done"
        elif expired:
            self._fail(ApiError(413, f"the export took more than {seconds:g} seconds; use `sessiontree export`"))
        else:
            self._fail(ApiError(413, "the export needs more memory than it may have; use `sessiontree export`"))

    def _read_status(self, line: bytes) -> None:
        try:
            self.status = msgspec.json.decode(line, type=ExportStatus)
        except msgspec.DecodeError:
            return  # a warning of a library

    def _fail(self, refusal: ApiError) -> None:
        self.failure = refusal
        self.state = "failed"
        self._discard_file()

    def cancel(self) -> None:
        """End the process, and give the file up."""
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
        """The size of the file, and its bytes. Raises `Refused`."""
        if self.failure is not None:
            raise self.failure
        with self._lock:
            if self.state != "done" or self._file is None:
                raise ApiError(409, "the export is not done yet")
            fd = os.dup(self._file.fileno())
        return os.fstat(fd).st_size, _read_chunks(fd)


def _read_chunks(fd: int) -> Iterator[bytes]:
    """A file from its beginning; several may read it at once."""
    at = 0
    try:
        while piece := os.pread(fd, CHUNK_SIZE, at):
            yield piece
            at += len(piece)
    finally:
        os.close(fd)


class ExportJobs:
    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._slots = threading.Semaphore(limits.exports)
        self._jobs: dict[str, ExportJob] = {}

    def start(self, token: str, name: str, order: ExportOrder, open_lines: Callable[[], IO[bytes]]) -> ExportJob:
        """Begin an export, or have it wait. Raises `Refused` where too many wait already.

        `order` has no limits yet. `open_lines` gives the session as a file, once it is sure that it is taken on.
        """
        order = replace(order, memory=self._limits.export_memory, size=self._limits.export_size)
        with self._lock:
            self._check_capacity(token)
            given = open_lines()
            job = ExportJob(secrets.token_hex(16), token, name, order, given)
            self._jobs[job.id] = job
        threading.Thread(target=self._run, args=(job,), name="sessiontree-export", daemon=True).start()
        return job

    def _check_capacity(self, token: str) -> None:
        waiting = Counter(job.token for job in self._jobs.values() if not job.ended.is_set())
        most = self._limits.exports + self._limits.export_queue
        if waiting.total() >= most or waiting[token] >= max(1, most // 2):
            raise ApiError(
                429, "too many exports are being made; try again when one has ended", code="too_many_exports"
            )
        kept = [job for job in self._jobs.values() if job.token == token and job.ended.is_set()]
        for job in kept[: max(0, len(kept) + 1 - self._limits.export_queue)]:
            self._remove(job)

    def _run(self, job: ExportJob) -> None:
        with self._slots:
            job.run(self._limits.export_seconds)

    def _remove(self, job: ExportJob) -> None:
        self._jobs.pop(job.id, None)
        job.cancel()

    def find(self, id: str, token: str) -> ExportJob:
        """Raises `Refused` where there is none, or where it is another token's."""
        with self._lock:
            job = self._jobs.get(id)
        if job is None or job.token != token:
            raise ApiError(
                404, f"no export {id!r}: exports are kept for {self._limits.export_retention_seconds:g} seconds"
            )
        return job

    def discard(self, job: ExportJob) -> None:
        """Cancel an export, or throw its file away."""
        with self._lock:
            self._remove(job)

    def remove_expired(self) -> None:
        """Throw away files that nobody has fetched for long."""
        late = time.monotonic() - self._limits.export_retention_seconds
        with self._lock:
            for job in [job for job in self._jobs.values() if job.ended.is_set() and job.ended_at < late]:
                self._remove(job)

    def close(self) -> None:
        with self._lock:
            for job in list(self._jobs.values()):
                self._remove(job)
