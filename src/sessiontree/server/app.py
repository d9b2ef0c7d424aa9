"""The FastAPI application: its routes, its error responses and the dashboard page."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from sessiontree._version import __version__
from sessiontree.config import PermissionMode
from sessiontree.core.entries import JsonObject
from sessiontree.errors import SessionTreeError
from sessiontree.server import schemas
from sessiontree.server.app_state import AppState, JsonResponse, ReadContext
from sessiontree.server.auth import TokenStore
from sessiontree.server.http_errors import ERROR_CODES, ApiError, convert_error
from sessiontree.server.middleware import RequestMiddleware
from sessiontree.server.openapi import complete_document
from sessiontree.server.request_checks import AllowedHosts, ServerLimits
from sessiontree.server.routes import branches, events, exports, health, overview, runs, sessions, shares, swarms, tree
from sessiontree.slash_commands.models import Models

STATIC = Path(__file__).parent / "static"
CLEANUP_SECONDS = 30.0

DESCRIPTION = """\
Sessions, their trees and branches, agents and swarms. Every request carries `Authorization: Bearer TOKEN`.
"""


def create_app(
    *,
    hosts: AllowedHosts,
    tokens: TokenStore,
    limits: ServerLimits | None = None,
    allow_run: bool = False,
    models: Models | None = None,
    cwd: str | None = None,
    projects: Iterable[str] = (),
    permission_mode: PermissionMode | None = None,
    allow: tuple[str, ...] = (),
) -> FastAPI:
    """Create the application. It accepts requests to the host names in `hosts` that carry one of the `tokens`.

    Agents run only with `allow_run`. `models` finds their models, by default the configured ones.
    `permission_mode` and the rules in `allow` set what agents may do besides reading. They work in the folder `cwd` and
    in `projects`; see `WorkspaceResolver`.
    """
    state = AppState(
        hosts=hosts,
        tokens=tokens,
        limits=limits,
        allow_run=allow_run,
        models=models,
        cwd=cwd,
        projects=projects,
        permission_mode=permission_mode,
        allow=allow,
    )

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        cleanup = asyncio.create_task(_clean_up_periodically(state))
        try:
            yield
        finally:
            cleanup.cancel()
            await state.close()

    app = FastAPI(
        title="sessiontree",
        version=__version__,
        description=DESCRIPTION,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
        # Never send telemetry, whatever the environment configures.
        telemetry={
            "tracing": False,
            "metrics": False,
            "logs": False,
            "operation_spans": False,
            "auto_configure": False,
        },
    )
    app.state.app_state = state
    for module in (health, sessions, overview, exports, shares, tree, branches, runs, events, swarms):
        app.include_router(module.router)
    app.include_router(shares.page_router)
    app.get("/api/openapi.json", include_in_schema=False)(_get_openapi)
    _serve_page(app)
    for kind, handler in HANDLERS.items():
        app.add_exception_handler(kind, handler)
    app.add_middleware(CompressionMiddleware, minimum_size=1000, compresslevel=5)
    app.add_middleware(RequestMiddleware, state=state)  # pyright: ignore[reportArgumentType] - its maps are mutable
    return app


class CompressionMiddleware(GZipMiddleware):
    """Compresses responses, except downloads: with their length, a browser can show the progress."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_download = scope["type"] == "http" and scope["path"].endswith(("/export", "/file"))
        await (self.app if is_download else super().__call__)(scope, receive, send)


async def _clean_up_periodically(state: AppState) -> None:
    while True:
        await asyncio.sleep(CLEANUP_SECONDS)
        await state.clean_up()


# The OpenAPI document


async def _get_openapi(request: Request, call: ReadContext) -> JsonResponse:
    return JsonResponse(build_openapi_document(request.app))


def build_openapi_document(app: FastAPI) -> JsonObject:
    """Return the OpenAPI document of an application."""
    shapes = [
        shape
        for shape in vars(schemas).values()
        if isinstance(shape, type) and issubclass(shape, schemas.ResponseModel | schemas.RequestModel)
    ]
    return complete_document(app.openapi(), shapes)


# The page


def _serve_page(app: FastAPI) -> None:
    """Serve the dashboard at `/` and its static files. They contain no session data."""
    if not (STATIC / "index.html").is_file():
        return

    @app.get("/", include_in_schema=False)
    async def get_page() -> FileResponse:
        return FileResponse(STATIC / "index.html")

    app.mount("/static", StaticFiles(directory=STATIC))


# Error responses


async def _handle_api_error(request: Request, error: Exception) -> JsonResponse:
    assert isinstance(error, ApiError)
    return JsonResponse(error.payload, error.status)


async def _handle_library_error(request: Request, error: Exception) -> JsonResponse:
    assert isinstance(error, SessionTreeError)
    api_error = convert_error(error)
    return JsonResponse(api_error.payload, api_error.status)


async def _handle_http_error(request: Request, error: Exception) -> JsonResponse:
    assert isinstance(error, HTTPException)
    message = {404: "no such address", 405: "method not allowed at this address"}
    status = error.status_code if error.status_code in ERROR_CODES else 400
    answer = JsonResponse(ApiError(status, message.get(status, str(error.detail))).payload, status)
    for name, value in (error.headers or {}).items():
        answer.headers[name] = value
    return answer


async def _handle_validation_error(request: Request, error: Exception) -> JsonResponse:
    assert isinstance(error, RequestValidationError)
    problems = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
    return JsonResponse(ApiError(422, "; ".join(problems)).payload, 422)


HANDLERS: dict[type[Exception], Any] = {
    ApiError: _handle_api_error,
    SessionTreeError: _handle_library_error,
    HTTPException: _handle_http_error,
    RequestValidationError: _handle_validation_error,
}
