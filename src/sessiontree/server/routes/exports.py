"""Routes for exports: a request that waits for the file, or a job with progress."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import IO, Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response, StreamingResponse

from sessiontree.errors import NotFound
from sessiontree.export import build_file_name
from sessiontree.home import list_user_homes
from sessiontree.server import schemas
from sessiontree.server.app_state import JsonResponse, ReadContext, RequestBody, RequestContext
from sessiontree.server.http_errors import ApiError, make_session_not_found
from sessiontree.server.jobs.export_jobs import ExportJob, ExportOrder
from sessiontree.server.openapi import describe_route

router = APIRouter(prefix="/api")

MEDIA = {
    "html": "text/html; charset=utf-8",
    "md": "text/markdown; charset=utf-8",
    "jsonl": "application/x-ndjson",
    "json": "application/json",
    "text": "text/plain; charset=utf-8",
}
FILES = tuple(kind.partition(";")[0] for kind in MEDIA.values())
REPORT_HEADER = "redaction-report"
"""The header with the redaction report."""
POLL_SECONDS = 0.05
"""How often a waiting request checks its export and its connection."""

ExportFormat = Literal["html", "md", "jsonl", "json", "text"]


@router.get("/sessions/{id}/export", **describe_route(*FILES))
async def export_session(
    request: Request,
    call: ReadContext,
    id: str,
    form: Annotated[ExportFormat, Query(alias="format")] = "html",
    branch: Annotated[str | None, Query(min_length=1, max_length=300)] = None,
    subtree: Annotated[str | None, Query(min_length=1, max_length=300)] = None,
    redact: bool = False,
) -> Response:
    """Export a session, the path to a place, or a subtree as a file.

    With `redact`, the header `Redaction-Report` contains the redacted secrets by kind, as JSON.
    """
    if form == "jsonl" and branch is None and subtree is None and not redact:
        return await run_in_threadpool(_export_whole_session, call, id)
    job = await run_in_threadpool(_start_job, call, id, form, branch, subtree, redact)
    try:
        while not job.ended.is_set():
            await asyncio.sleep(POLL_SECONDS)
            if await request.is_disconnected():
                break
        return _build_file_response(job)
    finally:
        await run_in_threadpool(call.state.exports.discard, job)  # the response keeps the file open


@router.post(
    "/sessions/{id}/exports",
    **describe_route(schemas.ExportResponse, status=202, request=schemas.ExportRequest, allow_empty=True),
)
def start_export(
    call: ReadContext,
    id: str,
    request: Annotated[schemas.ExportRequest, Depends(RequestBody(schemas.ExportRequest, allow_empty=True))],
) -> JsonResponse:
    """Start an export. `GET /exports/{job}` returns its progress."""
    return JsonResponse(
        _build_progress(_start_job(call, id, request.format, request.branch, request.subtree, request.redact)), 202
    )


@router.get("/exports/{job}", **describe_route(schemas.ExportResponse))
def get_export(call: ReadContext, job: str) -> JsonResponse:
    """Return the progress of an export."""
    return JsonResponse(_build_progress(call.state.exports.find(job, call.token.id)))


@router.get("/exports/{job}/file", **describe_route(*FILES))
def get_export_file(call: ReadContext, job: str) -> Response:
    """Download the file of a finished export."""
    return _build_file_response(call.state.exports.find(job, call.token.id))


@router.delete("/exports/{job}", **describe_route(schemas.ExportResponse))
def cancel_export(call: ReadContext, job: str) -> JsonResponse:
    """Cancel an export or delete its file."""
    found = call.state.exports.find(job, call.token.id)
    call.state.exports.discard(found)
    return JsonResponse(_build_progress(found))


def _start_job(
    call: RequestContext, id: str, form: str, branch: str | None, subtree: str | None, redact: bool
) -> ExportJob:
    if branch is not None and subtree is not None:
        raise ApiError(422, "branch and subtree cannot be combined")
    homes = tuple(list_user_homes()) if redact else ()
    order = ExportOrder(form=form, branch=branch, subtree=subtree, redact=redact, homes=homes, memory=0, size=0)
    with call.read_session(id) as opened:
        session = opened.session

        def open_lines() -> IO[bytes]:
            try:
                return session.store.open_file()
            except NotFound:
                raise make_session_not_found(id) from None

        return call.state.exports.start(call.token.id, build_file_name(session.id, form), order, open_lines)


def _build_file_response(job: ExportJob) -> Response:
    size, pieces = job.open_file()
    report = None
    if job.order.redact:
        report = json.dumps({"counts": job.status.counts or {}, "linesLeftOut": job.status.left_out})
    return _build_download(job.name, job.order.form, pieces, size, report)


def _build_download(
    name: str, form: str, pieces: Iterator[bytes], size: int | None = None, report: str | None = None
) -> Response:
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    if size is not None:
        headers["content-length"] = str(size)
    if report is not None:
        headers[REPORT_HEADER] = report
    return StreamingResponse(pieces, media_type=MEDIA[form], headers=headers)


def _export_whole_session(call: RequestContext, id: str) -> Response:
    """Return the session file unchanged."""
    with call.read_session(id) as opened:
        session = opened.session
        try:
            pieces = session.store.stream_bytes()
        except NotFound:
            raise make_session_not_found(id) from None
        return _build_download(build_file_name(session.id, "jsonl"), "jsonl", pieces)


def _build_progress(job: ExportJob) -> schemas.ExportResponse:
    status = job.status
    return schemas.ExportResponse(
        id=job.id,
        state=job.state,
        file=job.name,
        lines=status.lines,
        redacted=status.redacted,
        written=status.written,
        taken_out=status.counts,
        lines_left_out=status.left_out,
        error=None if job.failure is None else job.failure.message,
    )
