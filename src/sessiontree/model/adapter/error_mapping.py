"""Converts the exceptions of pydantic_ai, the providers' libraries and the network to `ModelError`."""

from __future__ import annotations

import re
from typing import Any

from pydantic_ai import exceptions

from sessiontree.convert.cleanup import clean_text
from sessiontree.core.messages import coerce_string, is_object
from sessiontree.model.base import FailureKind, ModelError, build_cut_off_error
from sessiontree.model.providers import PROVIDERS, ModelTarget

OVERFLOW = re.compile(
    r"context.{0,12}(length|window|size|limit)|maximum.{0,20}(context|tokens)|prompt is too long|input.{0,20}too long"
    r"|too many (input )?tokens|exceeds.{0,40}(tokens|token limit)|reduce the length|token limit exceeded",
    re.IGNORECASE,
)
"""Error messages for a conversation that is too long."""

KINDS: tuple[tuple[type[Exception], FailureKind], ...] = (
    (exceptions.ModelContextWindowExceededError, "overflow"),
    (exceptions.ModelAuthenticationError, "auth"),
    (exceptions.ModelQuotaExceededError, "rejected"),
    (exceptions.ModelRateLimitError, "rate"),
    (exceptions.ModelUnavailableError, "server"),
    (exceptions.ModelServerError, "server"),
    (exceptions.ModelTimeoutError, "timeout"),
    (exceptions.ModelRequestTimeout, "timeout"),
    (exceptions.ModelConnectionError, "network"),
    (exceptions.ModelRequestRejectedError, "rejected"),
    (exceptions.UnexpectedModelBehavior, "server"),
    (exceptions.UserError, "rejected"),
    (TimeoutError, "timeout"),
    (OSError, "network"),
)

BY_STATUS: dict[int | None, FailureKind] = {408: "timeout", 413: "overflow", 504: "timeout"}
"""Statuses that are more precise than the exception raised for them."""

MIN_KEY_LENGTH = 8
"""The minimum length of an API key that must be redacted. Local servers accept any key, for example `none`."""

TRANSPORTS = frozenset({"httpx", "httpx2", "httpcore", "httpcore2", "h11", "anyio"})
"""Libraries whose exceptions pydantic_ai does not wrap."""


def convert_error(
    target: ModelTarget, error: Exception, key_variable: str | None = None, *, has_started: bool = False
) -> ModelError:
    """Return the `ModelError` for an exception. The message is stored and shown, so it must not contain the API key.

    `key_variable` is the environment variable of the key, if the configuration names one. `has_started` is
    true if part of the answer arrived.
    """
    status: int | None = getattr(error, "status_code", None)
    message = clean_sentence(_redact_key(target.key, _extract_reason(error))) or type(error).__name__
    kind = _classify(error, status)
    if kind in ("rejected", "server") and status != 429 and _is_overflow(message):
        kind = "overflow"
    if kind == "network" and has_started:
        return build_cut_off_error(f"{target.provider}:{target.model}", message)
    reason = _format_reason(target, kind, message, status, key_variable)
    return ModelError(
        f"{target.provider}:{target.model}", kind, reason, status=status, retry_after=_read_retry_after(error)
    )


def _format_reason(
    target: ModelTarget, kind: FailureKind, message: str, status: int | None, key_variable: str | None
) -> str:
    """Return what happened in the provider's words, the status, and what to do about it."""
    message = re.sub(rf"\A(error code: |http )?{status}\b[ :-]*", "", message, flags=re.IGNORECASE) or message
    shown = "" if status is None or re.search(rf"\b{status}\b", message) else f" ({status})"
    match kind:
        case "auth" if status == 403:
            advice = "check the permissions of the API key, or choose another model"
            return f"{target.provider} denied access{shown}: {message}; {advice}"
        case "auth":
            known = PROVIDERS.get(target.provider)
            variable = key_variable or (known.keys[0] if known else None)
            advice = (
                "enter a valid one with /login in the app"
                if target.has_stored_key
                else f"set {variable} to a valid key"
                if variable
                else "set `key_variable` to the environment variable of the key"
            )
            return f"{target.provider} refused the API key{shown}: {message}; {advice}"
        case "rate":
            return f"{message}{shown}; wait a while, or choose another model"
        case "network" if status is None:
            where = target.base_url or target.provider
            return f"cannot reach {where}: {message}; check the connection"
        case "rejected" if status == 404:
            return f"{message}{shown}; `/model` and `sessiontree models` list the available models"
        case _:
            return f"{message}{shown}"


def _read_retry_after(error: Exception) -> float | None:
    """Return how long the provider asks to wait. pydantic_ai ignores headers with a fraction, so parse those here."""
    delay: float | None = getattr(error, "retry_after", None)
    headers: Any = getattr(error, "headers", None) or {}
    if delay is None and re.fullmatch(r"\d+\.\d+", message := coerce_string(headers.get("retry-after"))):
        return float(message)
    return delay


def _classify(error: Exception, status: int | None) -> FailureKind:
    if status in BY_STATUS:
        return BY_STATUS[status]
    for raised, kind in KINDS:
        if isinstance(error, raised):
            return kind
    return "network" if type(error).__module__.partition(".")[0] in TRANSPORTS else "rejected"


def _is_overflow(reason: str) -> bool:
    # A `max_tokens` above the model's limit is a different error.
    of_answer = re.search(r"max_(completion_|output_)?tokens", reason) and "context" not in reason
    return not of_answer and OVERFLOW.search(reason) is not None


def _extract_reason(error: Exception) -> str:
    """Return the provider's message without the wrapping."""
    body: Any = getattr(error, "body", None)
    while is_object(body) and is_object(body.get("error")):
        body = body["error"]
    for message in (body.get("message"), body.get("detail"), body.get("error")) if is_object(body) else (body,):
        if isinstance(message, str) and message.strip():
            return message
    cause = error.__cause__
    deepest = str(cause.__cause__ or cause) if cause is not None else ""
    return f"{error} {deepest if deepest not in str(error) else ''}"


def _redact_key(key: str | None, message: str) -> str:
    """Remove the API key from a message: some servers repeat it there."""
    return message if key is None or len(key) < MIN_KEY_LENGTH else message.replace(key, "[key]")


def clean_sentence(message: str) -> str:
    return clean_text(" ".join(message.split()))[:500].rstrip(".")
