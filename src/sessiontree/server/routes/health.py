"""Routes for monitoring: `/livez` and `/readyz`, which need no token, and the metrics.

A server is ready if it can reach the place of its sessions. Requests share one check a second.
"""

from __future__ import annotations

import time

from fastapi import APIRouter, Request
from starlette.responses import Response

from sessiontree._version import __version__
from sessiontree.server import schemas
from sessiontree.server.app_state import AppState, JsonResponse, ReadContext
from sessiontree.server.http_errors import ApiError
from sessiontree.server.openapi import describe_route

router = APIRouter()


@router.get("/livez", include_in_schema=False)
async def get_liveness() -> JsonResponse:
    """Return that the process answers."""
    return JsonResponse({"status": "ok"})


@router.get("/readyz", include_in_schema=False)
async def get_readiness(request: Request) -> JsonResponse:
    """Return whether the server can work, with status 503 if it cannot."""
    state: AppState = request.app.state.app_state
    if state.is_closing or not await state.readiness.check():
        return JsonResponse({"status": "unavailable"}, 503)
    return JsonResponse({"status": "ok"})


@router.get("/api/health", **describe_route(schemas.HealthResponse))
async def get_health(call: ReadContext) -> JsonResponse:
    """Return the health of the server."""
    is_ready = await call.state.readiness.check()
    uptime = round(time.monotonic() - call.state.started_at, 3)
    status = "ok" if is_ready else "unavailable"
    return JsonResponse(schemas.HealthResponse(status=status, version=__version__, uptime=uptime))


@router.get("/api/metrics", **describe_route("text/plain"))
async def get_metrics(call: ReadContext) -> Response:
    """Return figures for Prometheus. They are of the whole server, so a token for projects does not get them."""
    if call.token.projects is not None:
        raise ApiError(403, "the metrics need a token that is not limited to projects")
    state = call.state
    is_ready = await state.readiness.check()
    lines: list[str] = []

    def add(name: str, kind: str, help: str, *samples: tuple[str, float]) -> None:
        lines.extend((f"# HELP sessiontree_{name} {help}", f"# TYPE sessiontree_{name} {kind}"))
        lines.extend(f"sessiontree_{name}{labels} {value:g}" for labels, value in samples)

    add("info", "gauge", "The version of the server.", (f'{{version="{__version__}"}}', 1))
    add("uptime_seconds", "gauge", "Seconds since the server started.", ("", time.monotonic() - state.started_at))
    add("ready", "gauge", "Whether the place of the sessions can be reached.", ("", float(is_ready)))
    counts = [(f'{{status="{status}"}}', count) for status, count in sorted(state.response_counts.items())]
    add("http_responses_total", "counter", "Responses by status.", *counts)
    add("event_streams", "gauge", "Open event streams.", ("", len(state.streams)))
    return Response("\n".join([*lines, ""]), media_type="text/plain; version=0.0.4")
