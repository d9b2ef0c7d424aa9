"""Encoding: values as JSON, whatever texts and numbers an untrusted session has put in them."""

from __future__ import annotations

from typing import Any

import msgspec

from sessiontree.server.http_errors import ApiError


def encode_json(value: Any) -> bytes:
    """A value as JSON. What of a text is no Unicode is a sign in its place; a number that JSON cannot name is null."""
    try:
        return msgspec.json.encode(value)
    except (UnicodeEncodeError, ValueError, OverflowError):
        import json

        plain = json.loads(json.dumps(msgspec.to_builtins(value)), parse_constant=lambda _: None)
        text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
    except RecursionError:
        raise ApiError(409, "the session holds something that is nested too deeply", code="unreadable") from None
