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
from sessiontree.web import events, experiments, exports, moving, prompts, sessions, swarms, tree, wire
from sessiontree.web.door import Door
from sessiontree.web.guard import Hosts, Limits
from sessiontree.web.refusals import CODES, Refused, refusal
from sessiontree.web.schema import completed
from sessiontree.web.serving import Json, Reads, Serving
from sessiontree.web.tokens import Tokens

STATIC = Path(__file__).parent / "static"
TIDY_SECONDS = 30.0

DESCRIPTION = """\
Sessions, their trees and branches, agents and swarms. Every request carries `Authorization: Bearer TOKEN`.
"""


def create_app(
    *,
    hosts: Hosts,
    tokens: Tokens,
    limits: Limits | None = None,
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
    serving = Serving(
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
        tidying = asyncio.create_task(_tidy(serving))
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
    app.state.serving = serving
    for module in (sessions, exports, tree, moving, prompts, events, swarms, experiments):
        app.include_router(module.router)
    app.get("/api/openapi.json", include_in_schema=False)(_document)
    _serve_page(app)
    for kind, handler in HANDLERS.items():
        app.add_exception_handler(kind, handler)
    app.add_middleware(Door, serving=serving)  # pyright: ignore[reportArgumentType] - its maps are mutable
    return app


async def _tidy(serving: Serving) -> None:
    while True:
        await asyncio.sleep(TIDY_SECONDS)
        await serving.tidy()


# The document


async def _document(request: Request, call: Reads) -> Json:
    return Json(document(request.app))


def document(app: FastAPI) -> JsonObject:
    """The OpenAPI document of an application."""
    shapes = [
        shape
        for shape in vars(wire).values()
        if isinstance(shape, type) and issubclass(shape, wire.Answer | wire.Asked)
    ]
    return completed(app.openapi(), shapes)


# The page


def _serve_page(app: FastAPI) -> None:
    """The page at `/` and its files. They hold no data."""
    if not (STATIC / "index.html").is_file():
        return

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(STATIC / "index.html")

    app.mount("/static", StaticFiles(directory=STATIC))


# Errors, in one form


async def _refused(request: Request, error: Exception) -> Json:
    assert isinstance(error, Refused)
    return Json(error.wire, error.status)


async def _own(request: Request, error: Exception) -> Json:
    assert isinstance(error, SessionTreeError)
    told = refusal(error)
    return Json(told.wire, told.status)


async def _http(request: Request, error: Exception) -> Json:
    assert isinstance(error, HTTPException)
    message = {404: "there is nothing at this address", 405: "this address does not take that method"}
    status = error.status_code if error.status_code in CODES else 400
    answer = Json(Refused(status, message.get(status, str(error.detail))).wire, status)
    for name, value in (error.headers or {}).items():
        answer.headers[name] = value
    return answer


async def _invalid(request: Request, error: Exception) -> Json:
    assert isinstance(error, RequestValidationError)
    wrong = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
    return Json(Refused(422, "; ".join(wrong)).wire, 422)


HANDLERS: dict[type[Exception], Any] = {
    Refused: _refused,
    SessionTreeError: _own,
    HTTPException: _http,
    RequestValidationError: _invalid,
}
