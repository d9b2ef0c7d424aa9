"""Encoding: values as JSON, whatever texts and numbers an untrusted session has put in them."""

from __future__ import annotations

from typing import Any

import msgspec

from sessiontree.web.refusals import Refused


def encoded(value: Any) -> bytes:
    """A value as JSON. A text that is no Unicode stays as it is, in escapes; a number that JSON cannot name is null."""
    try:
        return msgspec.json.encode(value)
    except (UnicodeEncodeError, ValueError, OverflowError):
        import json

        plain = json.dumps(msgspec.to_builtins(value))
        return json.dumps(json.loads(plain, parse_constant=lambda _: None), separators=(",", ":")).encode()
    except RecursionError:
        raise Refused(409, "the session holds something that is nested too deeply", code="unreadable") from None
