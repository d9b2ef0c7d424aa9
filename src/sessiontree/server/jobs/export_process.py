"""The process that runs one export.

It reads the lines of the session from standard input and writes the file to standard output. It writes its progress and
result to standard error, as lines of JSON. It has no access to tokens, addresses or the configuration.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import BinaryIO, TextIO

import msgspec
from msgspec import Struct

from sessiontree.errors import SessionTreeError

REPORT_SECONDS = 0.25


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
    """Bytes of the file."""


class ExportStatus(Struct, kw_only=True, omit_defaults=True):
    """The progress of an export."""

    lines: int = 0
    """Lines of the session."""
    redacted: int = 0
    """Redacted lines."""
    written: int = 0
    """Maximum bytes of the file."""
    done: bool = False
    counts: dict[str, int] | None = None
    """How often each kind of secret was redacted."""
    left_out: int = 0
    """Lines that were left out because the redaction could not read them."""
    error: str = ""
    """The class name of the error that ended the export."""
    message: str = ""


TOO_LARGE = "TooLarge"
"""The error of an export that exceeds its limits."""


def main() -> None:
    order = msgspec.json.decode(sys.argv[1], type=ExportOrder)
    _limit_memory(order.memory)
    status = ExportStatus()
    ended = threading.Event()
    reporter = threading.Thread(target=_report_periodically, args=(status, ended, sys.stderr), daemon=True)
    reporter.start()
    try:
        _write_export(order, status, sys.stdin.buffer, sys.stdout.buffer)
    except SessionTreeError as error:
        status.error, status.message = type(error).__name__, str(error)
    except MemoryError:
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
    from sessiontree.store.jsonl import read_lines

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
