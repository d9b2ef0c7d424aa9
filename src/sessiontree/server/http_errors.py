"""API errors: one status and one code for each kind of error, and one sentence that describes what happened."""

from __future__ import annotations

from html import escape

from sessiontree.config import ConfigError
from sessiontree.errors import (
    Ambiguous,
    BranchMoved,
    Conflict,
    FormatError,
    InvalidOperation,
    LockTimeout,
    NotFound,
    ReadOnly,
    SessionTreeError,
    StoreError,
)

ERROR_CODES = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "too_slow",
    409: "conflict",
    410: "resync",
    412: "changed",
    413: "too_large",
    415: "not_json",
    422: "invalid",
    429: "too_many",
    500: "internal",
    502: "model_failed",
    503: "closing",
}
"""The default code of each status."""

INTERNAL_ERROR = "internal error; see the server log"


class ApiError(Exception):
    """An error response."""

    def __init__(self, status: int, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = ERROR_CODES[status] if code is None else code

    @property
    def payload(self) -> dict[str, dict[str, str]]:
        return {"error": {"code": self.code, "message": self.message}}


def make_session_not_found(id: str) -> ApiError:
    """Return the same error for a missing session and for one that the token may not see."""
    return ApiError(404, f"session {id!r} not found")


SHARE_GONE = "nothing is shared here; the link is wrong, has expired or was revoked; ask for a new one"
PAGE_TYPE = "text/html; charset=utf-8"


def build_error_page(message: str) -> bytes:
    """Return a page for a person who opened a link that does not work. It keeps the policy of the dashboard."""
    title, _, rest = escape(message[:1].upper() + message[1:]).partition("; ")
    detail = f"<p>{rest[:1].upper()}{rest[1:]}.</p>" if rest else ""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        '<meta name="color-scheme" content="light dark">'
        f'<title>{title}</title><link rel="stylesheet" href="/static/base.css">'
        f'<main class="plain"><h1>{title}</h1>{detail}</main></html>'
    ).encode()


def make_insufficient_rights() -> ApiError:
    """Return the error for a limited token that addresses an agent without limits."""
    return ApiError(403, "the agent has more rights than this token", code="more_rights")


def convert_error(error: SessionTreeError) -> ApiError:
    """Return the API error for an error of the library."""
    from sessiontree.model.base import ModelError
    from sessiontree.model.selection import NoModel
    from sessiontree.ops.summarize import SummaryFailed

    kinds: tuple[tuple[type[SessionTreeError], int, str], ...] = (
        (Ambiguous, 409, "ambiguous"),
        (NotFound, 404, "not_found"),
        (ReadOnly, 409, "read_only"),
        (BranchMoved, 409, "branch_moved"),
        (Conflict, 409, "conflict"),
        (LockTimeout, 503, "locked"),
        (FormatError, 409, "unreadable"),
        (NoModel, 409, "no_model"),
        (ConfigError, 409, "configuration"),
        (ModelError, 502, "model_failed"),
        (SummaryFailed, 502, "model_failed"),
        (InvalidOperation, 409, "conflict"),
        (StoreError, 500, "store_failed"),
    )
    for kind, status, code in kinds:
        if isinstance(error, kind):
            return ApiError(status, str(error), code=code)
    return ApiError(409, str(error))
