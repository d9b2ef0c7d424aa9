"""JSON of one line: bytes to values and back, within the limits of the format.

msgspec and orjson do the work. The standard library handles JSON that they reject, such as lone surrogates.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from sessiontree.core.entries import JsonObject
from sessiontree.errors import InvalidOperation
from sessiontree.format.nesting import NESTING_LIMIT, is_deep, is_too_deep

LINE_LIMIT = 64 << 20
"""The maximum length of a line that is written or decoded, in bytes."""

_object_decoder = msgspec.json.Decoder(dict[str, Any])
_encode = msgspec.json.Encoder().encode

DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError)
"""What msgspec raises for lines that may still be valid JSON."""
ENCODE_ERRORS = (ValueError, OverflowError, RecursionError)
"""What msgspec raises for values that may still be encodable."""


NOT_AN_OBJECT = "not a JSON object"


class NotJson(ValueError):
    """A line that is not a JSON object, or is nested too deeply."""


def read_object(raw: bytes) -> JsonObject:
    """Read a line as a dict. Raises `NotJson`."""
    if not raw.lstrip().startswith(b"{"):
        raise NotJson(NOT_AN_OBJECT)
    if is_too_deep(raw):
        raise NotJson(f"nested too deeply: more than {NESTING_LIMIT} levels")
    return _decode_object(raw)  # raises `RecursionError` if the caller used up the stack


def _decode_object(raw: bytes) -> JsonObject:
    try:
        return _object_decoder.decode(raw)
    except DECODE_ERRORS:
        pass
    import json

    try:
        return json.loads(raw.decode("utf-8", "replace"), parse_int=_parse_integer, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        reason = error.msg.removesuffix(" at")  # some messages of the decoder end with it
        raise NotJson(f"{reason[:1].lower()}{reason[1:]} at character {error.pos + 1}") from None
    except ValueError as error:
        raise NotJson(str(error)) from None


def _parse_integer(digits: str) -> int | float:
    try:
        return int(digits)
    except ValueError:  # more digits than Python converts
        return float(digits)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def write_flat_object(wire: JsonObject) -> bytes:
    """Encode one line of JSON like `write_object`, but do not check how deeply tuples are nested."""
    try:
        return _dumps(wire, None, _options)
    except TypeError:
        return write_object(wire)


def write_object(wire: JsonObject) -> bytes:
    """Encode one line of JSON without a newline. Lone surrogates are escaped; NaN and infinity become null.

    Raises `InvalidOperation` for values that are nested too deeply or integers that are too long.
    """
    try:
        line = _dumps(wire, None, _options)
    except TypeError:  # an unknown type, or nested too deeply
        try:
            line = _encode(wire)
        except ENCODE_ERRORS:
            line = _encode_with_json(wire)
    if is_too_deep(line):
        raise _build_depth_error()
    return line


def _import_and_dump(wire: JsonObject, default: None, options: int) -> bytes:
    """Import orjson on the first write. It takes a third less time than msgspec and has the same nesting limit.

    Values that the two encode differently are left to msgspec.
    """
    global _dumps, _options
    import orjson

    _options = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
    deep: list[Any] = []
    for _ in range(NESTING_LIMIT):
        deep = [deep]
    try:
        orjson.dumps(deep)
    except TypeError:
        _dumps = orjson.dumps
    else:
        _dumps = _refuse_dump  # a version with another limit
    return _dumps(wire, None, _options)


def _refuse_dump(wire: JsonObject, default: None, options: int) -> bytes:
    raise TypeError


_dumps: Callable[[JsonObject, None, int], bytes] = _import_and_dump


_options = 0


def _encode_with_json(wire: JsonObject) -> bytes:
    """Encode a line that msgspec rejects."""
    import json

    dumps = partial(json.dumps, separators=(",", ":"), check_circular=False)
    try:
        try:
            text = dumps(wire, allow_nan=False)
        except ValueError:
            text = dumps(json.loads(dumps(wire), parse_constant=lambda _: None))
    except RecursionError:
        if not is_deep(wire):
            raise  # the caller used up the stack
        raise _build_depth_error() from None
    except ValueError:  # the second attempt allows NaN, so an integer is too long
        raise InvalidOperation("an entry cannot hold an integer of more than 4300 digits") from None
    return text.encode("ascii")


def _build_depth_error() -> InvalidOperation:
    return InvalidOperation(f"an entry cannot be nested more than {NESTING_LIMIT} levels deep")


def write_value(value: Any) -> bytes:
    """Encode one value as JSON text, to splice it into a line."""
    return write_object({"": value})[4:-1]
