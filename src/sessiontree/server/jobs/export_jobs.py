"""Exports that run in their own processes, with limits on their number, time, memory and size.

A large export needs minutes and much memory, which the operating system gets back when the process ends.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import IO, BinaryIO, Literal, TextIO, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from sessiontree.errors import SessionTreeError
from sessiontree.home import build_self_command
from sessiontree.server.http_errors import ApiError
from sessiontree.server.request_checks import ServerLimits

ExportState: TypeAlias = Literal["queued", "running", "done", "failed"]

REPORT_SECONDS = 0.25
"""How often the process reports its progress."""
TOO_LARGE = "TooLarge"
"""The error of an export that exceeds its limits."""
CHUNK_SIZE = 1 << 16
"""Bytes of a file that are sent in one piece."""
ERROR_STATUSES = {
    "NotFound": (404, "not_found"),
    "Ambiguous": (409, "ambiguous"),
    "FormatError": (409, "unreadable"),
    TOO_LARGE: (413, "too_large"),
}
"""The status and code of each kind of error; all others are conflicts."""


class ExportOrder(Struct, frozen=True, kw_only=True):
    """What to export, and the limits."""

    form: str
    branch: str | None = None
    subtree: str | None = None
    redact: bool = False
    homes: tuple[str, ...] = ()
    """Home folders to redact."""
    memory: int
    """Maximum bytes of memory."""
    size: int
    """Maximum bytes of the file."""


class ExportStatus(Struct, kw_only=True, omit_defaults=True):
    """The progress of an export."""

    lines: int = 0
    """Lines of the session."""
    redacted: int = 0
    """Redacted lines."""
    written: int = 0
    """Bytes of the file."""
    done: bool = False
    counts: dict[str, int] | None = None
    """How often each kind of secret was redacted."""
    left_out: int = 0
    """Lines that were left out because the redaction could not read them."""
    error: str = ""
    """The class name of the error that ended the export."""
    message: str = ""


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
                build_self_command(__name__, msgspec.json.encode(self.order).decode()),
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

    @property
    def is_usable(self) -> bool:
        """Whether it is still running, or its file is available."""
        return not self.ended.is_set() or (self.state == "done" and self._file is not None)

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


# The process


def main() -> None:
    """Run one export in this process.

    It reads the lines of the session from standard input and writes the file to standard output. It writes its progress
    and result to standard error, as lines of JSON. It has no access to tokens, addresses or the configuration.
    """
    order = msgspec.json.decode(sys.argv[1], type=ExportOrder)
    _limit_memory(order.memory)
    status = ExportStatus()
    ended = threading.Event()
    reporter = threading.Thread(target=_report_periodically, args=(status, ended, sys.stderr), daemon=True)
    reporter.start()
    is_out_of_memory = False
    try:
        _write_export(order, status, sys.stdin.buffer, sys.stdout.buffer)
    except SessionTreeError as error:
        status.error, status.message = type(error).__name__, str(error)
    except MemoryError:
        is_out_of_memory = True  # allocates nothing: the memory is free again only after this block
    if is_out_of_memory:
        status.error, status.message = TOO_LARGE, f"the export exceeds {order.memory >> 20} MB of memory"
    ended.set()
    reporter.join()
    status.done = True
    _report_status(status, sys.stderr)


def _limit_memory(size: int) -> None:
    try:
        import resource
    except ModuleNotFoundError:  # not available on this system
        return
    resource.setrlimit(resource.RLIMIT_AS, (size, size))


def _write_export(order: ExportOrder, status: ExportStatus, lines: BinaryIO, file: BinaryIO) -> None:
    from sessiontree.export import Redactor, stream_export
    from sessiontree.store.jsonl_file import read_lines

    def count_lines() -> Iterator[bytes]:
        for line in read_lines(lines):
            status.lines += 1
            yield line

    def update_redacted(count: int) -> None:
        status.redacted = count

    redactor = Redactor((), homes=order.homes, progress=update_redacted) if order.redact else None
    for piece in stream_export(
        count_lines(), order.form, branch=order.branch, subtree=order.subtree, redactor=redactor
    ):
        if status.written + len(piece) > order.size:
            status.error = TOO_LARGE
            status.message = f"the export exceeds {order.size >> 20} MB"
            return
        file.write(piece)
        status.written += len(piece)
    file.flush()
    if redactor is not None:
        status.counts, status.left_out = redactor.report.counts, redactor.report.skipped_lines


def _report_periodically(status: ExportStatus, ended: threading.Event, out: TextIO) -> None:
    while not ended.wait(REPORT_SECONDS):
        _report_status(status, out)


def _report_status(status: ExportStatus, out: TextIO) -> None:
    out.write(f"{msgspec.json.encode(status).decode()}\n")
    out.flush()
