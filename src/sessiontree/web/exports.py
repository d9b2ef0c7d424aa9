"""Routes over exports: one request that waits for the file, or a job that tells how far it is."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterator
from typing import IO, Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response, StreamingResponse

from sessiontree.export import default_name
from sessiontree.home import user_homes
from sessiontree.store.files import read_pieces
from sessiontree.web import wire
from sessiontree.web.export_jobs import ExportJob
from sessiontree.web.export_process import ExportOrder
from sessiontree.web.refusals import Refused, no_session
from sessiontree.web.schema import told
from sessiontree.web.serving import Call, Json, Reads, Said

router = APIRouter(prefix="/api")

MEDIA = {
    "html": "text/html; charset=utf-8",
    "md": "text/markdown; charset=utf-8",
    "jsonl": "application/x-ndjson",
    "json": "application/json",
    "text": "text/plain; charset=utf-8",
}
FILES = tuple(kind.partition(";")[0] for kind in MEDIA.values())
REPORT = "redaction-report"
"""The header of an export that says what was redacted."""
LOOK_SECONDS = 0.05
"""How often a request that waits looks whether its file is there, and its client too."""

Form = Literal["html", "md", "jsonl", "json", "text"]


@router.get("/sessions/{id}/export", **told(*FILES))
async def export_session(
    request: Request,
    call: Reads,
    id: str,
    form: Annotated[Form, Query(alias="format")] = "html",
    branch: Annotated[str | None, Query(min_length=1, max_length=300)] = None,
    subtree: Annotated[str | None, Query(min_length=1, max_length=300)] = None,
    redact: bool = False,
) -> Response:
    """A session, the path to a place of it, or an entry with what hangs below it, as a file.

    With `redact`, the header `Redaction-Report` says what was taken out, as JSON.
    """
    if form == "jsonl" and branch is None and subtree is None and not redact:
        return await run_in_threadpool(_whole_session, call, id)
    job = await run_in_threadpool(_start, call, id, form, branch, subtree, redact)
    try:
        while not job.ended.is_set():
            await asyncio.sleep(LOOK_SECONDS)
            if await request.is_disconnected():
                break
        return _file(job)
    finally:
        await run_in_threadpool(call.serving.exports.discard, job)  # what is being sent is open


@router.post("/sessions/{id}/exports", **told(wire.ExportProgress, status=202, takes=wire.NewExport, empty=True))
def start_export(
    call: Reads, id: str, said: Annotated[wire.NewExport, Depends(Said(wire.NewExport, empty=True))]
) -> Json:
    """Begin an export. `GET /exports/{job}` says how far it is."""
    return Json(_progress(_start(call, id, said.format, said.branch, said.subtree, said.redact)), 202)


@router.get("/exports/{job}", **told(wire.ExportProgress))
def get_export(call: Reads, job: str) -> Json:
    """How far an export is."""
    return Json(_progress(call.serving.exports.find(job, call.token.id)))


@router.get("/exports/{job}/file", **told(*FILES))
def get_export_file(call: Reads, job: str) -> Response:
    """The file of an export that is done."""
    return _file(call.serving.exports.find(job, call.token.id))


@router.delete("/exports/{job}", **told(wire.ExportProgress))
def cancel_export(call: Reads, job: str) -> Json:
    """Cancel an export, or throw its file away."""
    found = call.serving.exports.find(job, call.token.id)
    call.serving.exports.discard(found)
    return Json(_progress(found))


def _start(call: Call, id: str, form: str, branch: str | None, subtree: str | None, redact: bool) -> ExportJob:
    if branch is not None and subtree is not None:
        raise Refused(422, "branch and subtree do not go together")
    homes = tuple(user_homes()) if redact else ()
    order = ExportOrder(form=form, branch=branch, subtree=subtree, redact=redact, homes=homes, memory=0, size=0)
    with call.reading(id) as opened:
        session = opened.session

        def lines() -> IO[bytes]:
            if session.file is not None:
                try:
                    return session.file.open("rb")
                except FileNotFoundError:
                    raise no_session(id) from None
            given = tempfile.TemporaryFile()  # noqa: SIM115 - it is handed on
            given.writelines(line + b"\n" for line in session.stream_lines())
            given.seek(0)
            return given

        return call.serving.exports.start(call.token.id, default_name(session.id, form), order, lines)


def _file(job: ExportJob) -> Response:
    size, pieces = job.open_file()
    report = None
    if job.order.redact:
        report = json.dumps({"counts": job.status.counts or {}, "linesLeftOut": job.status.left_out})
    return _download(job.name, job.order.form, pieces, size, report)


def _download(
    name: str, form: str, pieces: Iterator[bytes], size: int | None = None, report: str | None = None
) -> Response:
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    if size is not None:
        headers["content-length"] = str(size)
    if report is not None:
        headers[REPORT] = report
    return StreamingResponse(pieces, media_type=MEDIA[form], headers=headers)


def _whole_session(call: Call, id: str) -> Response:
    """The whole session as it is: byte for byte the file."""
    with call.reading(id) as opened:
        session = opened.session
        name = default_name(session.id, "jsonl")
        if session.file is None:
            return _download(name, "jsonl", (line + b"\n" for line in session.lines()))
        try:
            file = session.file.open("rb")
        except FileNotFoundError:
            raise no_session(id) from None
    return _download(name, "jsonl", read_pieces(file))


def _progress(job: ExportJob) -> wire.ExportProgress:
    status = job.status
    return wire.ExportProgress(
        id=job.id,
        state=job.state,
        file=job.name,
        lines=status.lines,
        redacted=status.redacted,
        written=status.written,
        taken_out=status.counts,
        lines_left_out=status.left_out,
        error=None if job.refusal is None else job.refusal.message,
    )
