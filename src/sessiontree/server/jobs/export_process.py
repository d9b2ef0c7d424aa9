"""The export process: makes one export for the server, in a process of its own with limits of its own.

Standard input has the lines of the session, standard output gets the file, standard error lines of JSON that say how
far it is and how it ended. It is told nothing else: no token, no address, no configuration.
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
    """What is to be made, and within which limits."""

    form: str
    branch: str | None = None
    subtree: str | None = None
    redact: bool = False
    homes: tuple[str, ...] = ()
    """Home folders that a redaction takes out."""
    memory: int
    """Bytes of memory that the process may have."""
    size: int
    """Bytes of the file."""


class ExportStatus(Struct, kw_only=True, omit_defaults=True):
    """How far an export is."""

    lines: int = 0
    """Lines of the session."""
    redacted: int = 0
    """Lines of which secrets were taken out."""
    written: int = 0
    """Bytes of the file."""
    done: bool = False
    counts: dict[str, int] | None = None
    """What a redaction took out."""
    left_out: int = 0
    """Lines that a redaction could not read."""
    error: str = ""
    """The kind of error that ended it."""
    message: str = ""


TOO_LARGE = "TooLarge"
"""The kind of error of an export that needs more than it may have."""


def main() -> None:
    order = msgspec.json.decode(sys.argv[1], type=ExportOrder)
    _limit_memory(order.memory)
    status = ExportStatus()
    ended = threading.Event()
    telling = threading.Thread(target=_report_periodically, args=(status, ended, sys.stderr), daemon=True)
    telling.start()
    try:
        _write_export(order, status, sys.stdin.buffer, sys.stdout.buffer)
    except SessionTreeError as error:
        status.error, status.message = type(error).__name__, str(error)
    except MemoryError:
        status.error, status.message = TOO_LARGE, f"the export needs more than {order.memory >> 20} MB of memory"
    ended.set()
    telling.join()
    status.done = True
    _report_status(status, sys.stderr)


def _limit_memory(size: int) -> None:
    try:
        import resource
    except ModuleNotFoundError:  # there are systems without limits
        return
    resource.setrlimit(resource.RLIMIT_AS, (size, size))


def _write_export(order: ExportOrder, status: ExportStatus, given: BinaryIO, file: BinaryIO) -> None:
    from sessiontree.export import Redactor, stream_export
    from sessiontree.store.jsonl import read_lines

    def count_lines() -> Iterator[bytes]:
        for line in read_lines(given):
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
            status.message = f"the export has more than {order.size >> 20} MB"
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
