"""Safe text: what session files say, unable to control a terminal, and such that it can be written. It is not trusted.

Control characters, marks that turn the direction of writing, what takes no room and can hide words, and lone surrogates
are shown as escapes. What joins letters and signs (U+200C, U+200D) stays: people write with it.
"""

from __future__ import annotations

import re
from typing import TypeVar

# C0 and C1 controls, DEL, marks that turn the direction of writing, line and paragraph separators, lone surrogates;
# spaces without width, invisible operators, marks of annotations, and the tags that spell hidden words.
_UNSAFE = (
    "\x00-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f"
)
UNSAFE_IN_LINES = _UNSAFE.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f")
"""Characters that are shown as something else, as a class of a regular expression without its brackets."""
_UNSAFE_IN_JSON = _UNSAFE.replace("\x00-\x1f", "")

Text = TypeVar("Text", str, str | None)


def escape_line(text: str) -> str:
    """`text` on one line, unable to control a terminal."""
    return _escape_class(text, _UNSAFE)


def escape_lines(text: str) -> str:
    """`text` with its lines and tabs, unable to control a terminal."""
    return _escape_class(text, UNSAFE_IN_LINES)


def escape_json(text: str) -> str:
    """The text of a JSON value, which is the same value still."""
    return _escape_class(text, _UNSAFE_IN_JSON, json=True)


def escape_raw(text: str) -> str:
    """A line of a session as it is, but for what a terminal would obey."""
    return _escape_class(text, UNSAFE_IN_LINES, json=True)


def replace_unencodable(text: Text) -> Text:
    """`text` without what UTF-8 cannot hold."""
    return text if text is None or text.isascii() else text.encode("utf-8", "replace").decode()


def _escape_class(text: str, unsafe: str, *, json: bool = False) -> str:
    """`text` with the characters of a class as escapes; nearly all text has none."""
    if text.isprintable():
        return text

    def escape_match(match: re.Match[str]) -> str:
        code = ord(match[0])
        if code > 0xFFFF:
            return "".join(f"\\u{half:04x}" for half in _split_surrogates(code)) if json else f"\\U{code:08x}"
        return f"\\u{code:04x}" if json or code > 0xFF else f"\\x{code:02x}"

    return re.sub(f"[{unsafe}]", escape_match, text)


def _split_surrogates(code: int) -> tuple[int, int]:
    """A character beyond the first plane as JSON spells it."""
    return 0xD800 + ((code - 0x10000) >> 10), 0xDC00 + ((code - 0x10000) & 0x3FF)
