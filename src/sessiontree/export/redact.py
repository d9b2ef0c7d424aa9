"""Redaction: the lines of a session without its secrets, and a report of what was taken out. Pure.

Every string of every line is looked at, names of fields included: what is not known cannot slip through by standing in
a field that nobody thought of. Ids and names of branches that hold a secret are changed everywhere alike, so that the
tree stays whole. A line that cannot be read cannot be searched either, and is left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from sessiontree.core.entries import HEAD_RECORD
from sessiontree.core.messages import is_list, is_object
from sessiontree.errors import InvalidOperation
from sessiontree.format.codec import HEAD_KEYS, LINE_LIMIT, WIRE, NotJson, read_object, write_object, write_value
from sessiontree.format.splice import set_value

_WORD = r"(?<![A-Za-z0-9])"
_TOKENS = (
    r"sk-[A-Za-z0-9_-]{16,}",  # OpenAI, Anthropic and those who follow them
    r"(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{10,}",  # Stripe
    r"gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}",
    r"glpat-[A-Za-z0-9_-]{16,}",
    r"xox[abeprs]-[A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{10,}",  # Slack
    r"hf_[A-Za-z0-9]{20,}|gsk_[A-Za-z0-9]{20,}|r8_[A-Za-z0-9]{20,}|nvapi-[A-Za-z0-9_-]{20,}|xai-[A-Za-z0-9]{20,}",
    r"pypi-[A-Za-z0-9_-]{16,}|npm_[A-Za-z0-9]{20,}|dop_v1_[a-f0-9]{32,}",
    r"AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{20,}",  # Google
    r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}",  # AWS
    r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",
    r"(?<![_-])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",  # JSON web tokens
)
_SECRET_NAME = (
    r"(?:pass(?:word|wd|phrase)|secret(?:[_-]?(?:access[_-]?)?key)?|(?:api|access|private|signing|encryption)[_-]?key"
    r"|(?:access|auth|bearer|refresh|session|id|api)[_-]?token|client[_-]?secret|authorization|credentials?|cookie)"
)
_RULES: tuple[tuple[str, str], ...] = (
    (
        "private key",
        r"-----BEGIN (?P<what>[A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,20})-----.*?(?:-----END (?P=what)-----|\Z)",
    ),
    ("token", _WORD + "(?:" + "|".join(_TOKENS) + ")"),
    ("password in an address", r"(?<=://)[^\s/:@'\"]+:[^\s/@'\"]+(?=@)"),
    ("authorization", r"(?i)\b(?<=bearer )[A-Za-z0-9._~+/=-]{12,}|\b(?<=basic )[A-Za-z0-9+/=]{12,}"),
    (
        "named secret",
        rf"(?i)(?P<keep>{_SECRET_NAME}\\?[\"']?\s*[:=]\s*\\?[\"']?)(?!\[redacted)(?:(?:bearer|basic)\s+)?[^\s\"'\\,;&<>{{}}]{{4,}}",
    ),
    ("home path", r"(?<![A-Za-z0-9_.-])(?:/(?:home|Users)/[^/\s\"'`:;,<>|\\]+|/root(?![A-Za-z0-9_.-]))"),
    ("home path", r"(?i)\b[A-Z]:\\{1,4}Users\\{1,4}[^\\/\s\"'`:;,<>|]+"),
    ("home path", r"(?i)(?<![A-Za-z0-9])--?(?:home|Users)-[^-/\s\"'`:;,<>|]+"),
)
_PUT_INSTEAD = {"home path": "~"}
_SECRET_KEY = re.compile(rf"(?i)(?:.*[_-])?{_SECRET_NAME}")
_VOCABULARY = frozenset(
    {"session", "title", "version", "cwd", "redacted", *HEAD_KEYS, *WIRE}
    | {field.wire for _, fields in WIRE.values() for field in fields.values()}
    | {"role", "content", "text", "thinking", "image", "data", "mimeType", "toolCall", "toolCallId", "toolName"}
    | {"arguments", "user", "assistant", "toolResult", "system", "bashExecution", "stopReason", "model", "api"}
    | {"heads", "from", "leaf", "main", "reset", HEAD_RECORD}
)
"""Words of the format itself: a pattern that matches one of them shall not make the session unreadable."""


class Report(Struct, frozen=True, kw_only=True):
    """What a redaction took out."""

    counts: dict[str, int]
    """How often, by what it was."""
    lines_left_out: int
    """Lines that could not be read."""

    @property
    def total(self) -> int:
        return sum(self.counts.values())


class Redactor:
    """Takes secrets out of text. Raises `InvalidOperation` for a pattern that is no regular expression."""

    def __init__(self, patterns: Sequence[str] = (), *, homes: Sequence[str] = ()) -> None:
        """`patterns` are the user's own; `homes` are home folders that do not look like one."""
        self._rules = [(what, re.compile(rule, re.DOTALL)) for what, rule in _RULES]
        self._rules += [("home path", re.compile(rf"{re.escape(home)}(?![A-Za-z0-9_.-])")) for home in homes]
        self._rules += [(f"pattern {number}", _compiled(text)) for number, text in enumerate(patterns, 1)]
        self._counts: Counter[str] = Counter()
        self._names: dict[str, str] = {}
        """Ids and names of branches that hold a secret, and what stands for each."""
        self._taken: set[str] = set()
        self._left_out = 0

    @property
    def report(self) -> Report:
        """What was taken out so far."""
        return Report(counts=dict(sorted(self._counts.items())), lines_left_out=self._left_out)

    def text(self, text: str) -> str:
        for what, rule in self._rules:

            def put(found: re.Match[str], what: str = what) -> str:
                if not found[0]:
                    return ""
                self._counts[what] += 1
                return found.groupdict().get("keep", "") + _PUT_INSTEAD.get(what, f"[redacted {what}]")

            text = rule.sub(put, text)
        return text

    def lines(self, lines: Iterable[bytes]) -> list[bytes]:
        """The lines of a session, header included, without secrets; the header says that they were taken out."""
        wires: list[tuple[bytes, dict[str, Any]]] = []
        for raw in lines:
            try:
                if raw.strip():
                    wires.append((raw, read_object(raw if len(raw) <= LINE_LIMIT else b"")))
            except NotJson:
                self._left_out += 1
        for _, wire in wires:
            self._learn(wire)
        redacted: list[bytes] = []
        for raw, wire in wires:
            clean = self._value(wire)
            line = raw if clean == wire and _is_plain(raw) else write_object(clean)
            redacted.append(set_value(line, "redacted", write_value(True)) if wire.get("type") == "session" else line)
        return redacted

    def _learn(self, wire: dict[str, Any]) -> None:
        """Note what stands for an id or the name of a branch that holds a secret: no two may become the same."""
        for key in ("id", "branch", "branchName"):
            name = wire.get(key)
            if isinstance(name, str) and name not in self._names and name not in self._taken:
                counts = self._counts.copy()
                clean = self.text(name)
                self._counts = counts  # it is counted where it stands
                if clean != name:
                    clean = clean if clean not in self._taken else f"{clean} {len(self._names) + 1}"
                    self._names[name] = clean
                self._taken.add(clean)

    def _string(self, text: str) -> str:
        if text in _VOCABULARY:
            return text
        clean = self.text(text)
        return clean if clean == text else self._names.get(text, clean)

    def _value(self, value: Any) -> Any:
        """A JSON value with every string in it redacted, however deep."""
        if isinstance(value, str):
            return self._string(value)
        holder: list[Any] = [value]
        waiting: list[tuple[Any, Any]] = [(holder, 0)]
        while waiting:
            place, key = waiting.pop()
            at = place[key]
            if is_object(at):
                made: dict[str, Any] = {}
                for name, inner in at.items():
                    new = self._string(name)
                    new = new if new not in made else f"{new} {len(made)}"
                    made[new] = self._named(inner) if isinstance(inner, str) and _SECRET_KEY.fullmatch(name) else inner
                    waiting.append((made, new))
                place[key] = made
            elif is_list(at):
                place[key] = list(at)
                waiting.extend((place[key], index) for index in range(len(at)))
            elif isinstance(at, str):
                place[key] = self._string(at)
        return holder[0]

    def _named(self, value: str) -> str:
        """The value of a field whose name says that it is a secret."""
        if not value or value.startswith("[redacted"):
            return value
        self._counts["named secret"] += 1
        return "[redacted named secret]"


def _is_plain(raw: bytes) -> bool:
    """Whether the line's bytes hold nothing but what was read from them: no key twice, no odd bytes."""
    try:
        return write_object(read_object(raw)) == raw
    except NotJson:
        return False


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise InvalidOperation(f"{pattern!r} is no regular expression: {error}") from None
