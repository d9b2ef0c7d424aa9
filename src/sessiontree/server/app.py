"""The application: all routes behind the door, with errors told in one form, and the page.

`create_app` makes it, for `sessiontree serve` and for tests. What happens before a route is in `door`, how one listens
to a port is in `listening`.
"""

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
from starlette.staticfiles import StaticFiles

from sessiontree._version import __version__
from sessiontree.commands.models import Models
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
from sessiontree.server.routes import branches, events, experiments, exports, runs, sessions, swarms, tree

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
    """The application that answers to the names `hosts`, for whoever has one of the `tokens`.

    Agents run only with `allow_run`; `models` finds what they ask, by default as the configuration says.
    `permission_mode` and the rules in `allow` say what they may do beside reading. They work in the folder `cwd` and in
    `projects`: see `workplace`.
    """
    serving = AppState(
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
        tidying = asyncio.create_task(_clean_up_periodically(serving))
        try:
            yield
        finally:
            tidying.cancel()
            await serving.close()

    app = FastAPI(
        title="sessiontree",
        version=__version__,
        description=DESCRIPTION,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
        # What is asked here is told to nobody, whatever the environment says.
        telemetry={
            "tracing": False,
            "metrics": False,
            "logs": False,
            "operation_spans": False,
            "auto_configure": False,
        },
    )
    app.state.app_state = serving
    for module in (sessions, exports, tree, branches, runs, events, swarms, experiments):
        app.include_router(module.router)
    app.get("/api/openapi.json", include_in_schema=False)(_get_openapi)
    _serve_page(app)
    for kind, handler in HANDLERS.items():
        app.add_exception_handler(kind, handler)
    app.add_middleware(RequestMiddleware, state=serving)  # pyright: ignore[reportArgumentType] - its maps are mutable
    return app


async def _clean_up_periodically(state: AppState) -> None:
    while True:
        await asyncio.sleep(CLEANUP_SECONDS)
        await state.clean_up()


# The document


async def _get_openapi(request: Request, call: ReadContext) -> JsonResponse:
    return JsonResponse(build_openapi_document(request.app))


def build_openapi_document(app: FastAPI) -> JsonObject:
    """The OpenAPI document of an application."""
    shapes = [
        shape
        for shape in vars(schemas).values()
        if isinstance(shape, type) and issubclass(shape, schemas.ResponseModel | schemas.RequestModel)
    ]
    return complete_document(app.openapi(), shapes)


# The page


def _serve_page(app: FastAPI) -> None:
    """The page at `/` and its files. They hold no data."""
    if not (STATIC / "index.html").is_file():
        return

    @app.get("/", include_in_schema=False)
    async def get_page() -> FileResponse:
        return FileResponse(STATIC / "index.html")

    app.mount("/static", StaticFiles(directory=STATIC))


# Errors, in one form


async def _handle_api_error(request: Request, error: Exception) -> JsonResponse:
    assert isinstance(error, ApiError)
    return JsonResponse(error.payload, error.status)


async def _handle_library_error(request: Request, error: Exception) -> JsonResponse:
    assert isinstance(error, SessionTreeError)
    told = convert_error(error)
    return JsonResponse(told.payload, told.status)


async def _handle_http_error(request: Request, error: Exception) -> JsonResponse:
    assert isinstance(error, HTTPException)
    message = {404: "there is nothing at this address", 405: "this address does not take that method"}
    status = error.status_code if error.status_code in ERROR_CODES else 400
    answer = JsonResponse(ApiError(status, message.get(status, str(error.detail))).payload, status)
    for name, value in (error.headers or {}).items():
        answer.headers[name] = value
    return answer


async def _handle_validation_error(request: Request, error: Exception) -> JsonResponse:
    assert isinstance(error, RequestValidationError)
    wrong = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
    return JsonResponse(ApiError(422, "; ".join(wrong)).payload, 422)


HANDLERS: dict[type[Exception], Any] = {
    ApiError: _handle_api_error,
    SessionTreeError: _handle_library_error,
    HTTPException: _handle_http_error,
    RequestValidationError: _handle_validation_error,
}
