"""Sanitizing: makes untrusted text safe to print in a terminal and to encode.

Control characters, direction marks, invisible characters and lone surrogates are replaced by escapes. Joiners (U+200C,
U+200D) stay, because people write with them.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar, cast

# C0 and C1 controls, DEL, direction marks, line and paragraph separators, lone surrogates, zero-width spaces, invisible
# operators, annotation marks, and tag characters that can spell hidden text.
_UNSAFE = (
    "\x00-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f"
)
UNSAFE_IN_LINES = _UNSAFE.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f")
"""The characters that are escaped in multi-line text, as a regular expression class without brackets."""
_UNSAFE_IN_JSON = _UNSAFE.replace("\x00-\x1f", "")

Text = TypeVar("Text", str, str | None)


def escape_line(text: str) -> str:
    """Escape `text` for one line of a terminal."""
    return _escape_class(text, _UNSAFE)


def escape_lines(text: str) -> str:
    """Escape `text` for a terminal, keeping newlines and tabs."""
    return _escape_class(text, UNSAFE_IN_LINES)


def escape_json(text: str) -> str:
    """Escape JSON text without changing its value."""
    return _escape_class(text, _UNSAFE_IN_JSON, json=True)


def escape_raw(text: str) -> str:
    """Escape a raw line of a session, keeping everything that is safe to print."""
    return _escape_class(text, UNSAFE_IN_LINES, json=True)


def replace_unencodable(text: Text) -> Text:
    """Replace characters that UTF-8 cannot encode."""
    return text if text is None or text.isascii() else text.encode("utf-8", "replace").decode()


def replace_unencodable_texts(value: Any) -> Any:
    """Return a JSON value with `replace_unencodable` applied to every text in it."""
    match value:
        case str():
            return replace_unencodable(value)
        case dict():
            items = cast("dict[str, Any]", value).items()
            return {replace_unencodable(key): replace_unencodable_texts(item) for key, item in items}
        case list():
            return [replace_unencodable_texts(item) for item in cast("list[Any]", value)]
        case _:
            return value


def is_utf8(raw: bytes) -> bool:
    """Return whether the bytes are valid UTF-8, so every reader gets the same text."""
    try:
        return raw.isascii() or bool(raw.decode())
    except UnicodeDecodeError:
        return False


def _escape_class(text: str, unsafe: str, *, json: bool = False) -> str:
    """Replace the characters of a class by escapes. Nearly all text has none."""
    if text.isprintable():
        return text

    def escape_match(match: re.Match[str]) -> str:
        code = ord(match[0])
        if code > 0xFFFF:
            return "".join(f"\\u{half:04x}" for half in _split_surrogates(code)) if json else f"\\U{code:08x}"
        return f"\\u{code:04x}" if json or code > 0xFF else f"\\x{code:02x}"

    return re.sub(f"[{unsafe}]", escape_match, text)


def _split_surrogates(code: int) -> tuple[int, int]:
    """Return the surrogate pair of a character outside the basic plane, as JSON spells it."""
    return 0xD800 + ((code - 0x10000) >> 10), 0xDC00 + ((code - 0x10000) & 0x3FF)
