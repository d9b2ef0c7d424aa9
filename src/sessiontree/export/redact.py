"""Redacts secrets in the lines of a session and reports the redactions. Pure.

Every string of every line is searched, including field names and unknown fields. An id
or a branch name with a secret has the same replacement everywhere, and the tree stays valid. An unreadable line
cannot be searched, so it is omitted. `secret_patterns` defines what counts as a secret.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

from msgspec import Struct

from sessiontree.core.entries import HEAD_RECORD
from sessiontree.core.messages import is_list, is_object
from sessiontree.errors import InvalidOperation
from sessiontree.export.secret_patterns import (
    REDACTED_PREFIX,
    RULES,
    SecretRule,
    build_rule,
    find_secret_span,
    is_random,
    rate_name,
)
from sessiontree.format.codec import HEAD_KEYS, WIRE
from sessiontree.format.json_line import LINE_LIMIT, NotJson, read_object, write_object, write_value
from sessiontree.format.splice import set_value

_REPLACEMENTS = {"home path": "~"}
_MAX_RESCAN = 500
"""The maximum length of a value that is searched again. It bounds the time."""
_MAX_CACHED_LENGTH, _MAX_CACHED_TEXTS = 100, 20_000
"""The maximum length of a text in the cache of clean texts, and the size of that cache."""
_SCHEMA_TYPES = ("string", "object", "array", "number", "integer", "boolean")
_VOCABULARY = frozenset(
    {"session", "title", "version", "cwd", "redacted", *HEAD_KEYS, *WIRE}
    | {field.wire for _, fields in WIRE.values() for field in fields.values()}
    | {"role", "content", "text", "thinking", "image", "data", "mimeType", "toolCall", "toolCallId", "toolName"}
    | {"arguments", "user", "assistant", "toolResult", "system", "bashExecution", "stopReason", "model", "api"}
    | {"heads", "from", "leaf", "main", "reset", HEAD_RECORD}
)
"""Words of the file format. A user's pattern that matches one of them must not make the session unreadable."""


_rate_name = lru_cache(maxsize=4096)(rate_name)
"""Field names repeat on every line."""


class RedactionReport(Struct, frozen=True, kw_only=True):
    """The redactions of an export."""

    counts: dict[str, int]
    """The number of redactions, by kind."""
    skipped_lines: int
    """Unreadable lines that were omitted."""

    @property
    def total(self) -> int:
        return sum(self.counts.values())


class Redactor:
    """Redacts secrets in text. Raises `InvalidOperation` for an invalid regular expression."""

    def __init__(
        self,
        patterns: Sequence[str] = (),
        *,
        homes: Sequence[str] = (),
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Create a redactor.

        `patterns` are the user's regular expressions. `homes` are home folders in unusual places. `progress` is called
        with the number of finished lines.
        """
        self._rules = [*RULES]
        self._rules += [build_rule("home path", re.compile(rf"{re.escape(home)}(?![A-Za-z0-9_.-])")) for home in homes]
        self._rules += [
            build_rule(f"pattern {number}", _compile_pattern(text)) for number, text in enumerate(patterns, 1)
        ]
        self._counts: Counter[str] = Counter()
        self._renamed: dict[str, str] = {}
        """Ids and branch names that contain a secret, and their replacements."""
        self._used_names: set[str] = set()
        self._skipped_lines = 0
        self._progress = progress
        self._clean_texts: dict[str, None] = {}
        """Short texts without a secret. Field names, roles and model names repeat."""

    @property
    def report(self) -> RedactionReport:
        """The redactions so far."""
        return RedactionReport(counts=dict(sorted(self._counts.items())), skipped_lines=self._skipped_lines)

    def redact_text(self, text: str) -> str:
        if text in self._clean_texts:
            return text
        lower, size = text.lower(), len(text)
        clean = text
        found: dict[tuple[str, ...], bool] = {(): True}
        for rule in self._rules:
            if size < rule.min_length:
                continue
            needs = rule.keywords
            if needs not in found:
                found[needs] = any(word in lower for word in needs)
            if found[needs]:
                clean = self._apply_rule(rule, clean)
        if size <= _MAX_CACHED_LENGTH and clean is text:
            if len(self._clean_texts) >= _MAX_CACHED_TEXTS:
                self._clean_texts.clear()
            self._clean_texts[text] = None
        return clean

    def _apply_rule(self, rule: SecretRule, text: str) -> str:
        pieces: list[str] = []
        kept = at = 0
        while found := rule.pattern.search(text, at):
            start, stop = find_secret_span(found)
            if start == stop or not rule.is_secret(found):  # the rejected value may contain another secret
                within = found.start() < start and stop - start <= _MAX_RESCAN
                at = start if within else max(found.end(), found.start() + 1)
                continue
            self._counts[rule.kind] += 1
            pieces += text[kept:start], _REPLACEMENTS.get(rule.kind, f"{REDACTED_PREFIX} {rule.kind}]")
            kept = at = stop
        return "".join((*pieces, text[kept:])) if pieces else text

    def redact_lines(self, lines: Iterable[bytes]) -> list[bytes]:
        """Return the lines of a session, including the header, without secrets. The header is marked as redacted."""
        readable: list[bytes] = []
        for raw in lines:
            try:
                if raw.strip() and (wire := _read_line(raw)).get("type") != "original":  # compressed, with all secrets
                    self._collect_names(wire)
                    readable.append(raw)
            except NotJson:
                self._skipped_lines += 1
        redacted: list[bytes] = []
        for raw in readable:
            wire = _read_line(raw)  # parse again: all lines as objects would take ten times the memory
            clean = self.redact_value(wire)
            line = raw if clean == wire and _is_canonical(raw, wire) else write_object(clean)
            redacted.append(set_value(line, "redacted", write_value(True)) if wire.get("type") == "session" else line)
            if self._progress is not None:
                self._progress(len(redacted))
        return redacted

    def _collect_names(self, wire: dict[str, Any]) -> None:
        """Assign unique replacements to ids and branch names that contain a secret."""
        names = [wire.get(key) for key in ("id", "branch", "branchName")]
        record = wire.get("data")
        if wire.get("customType") == HEAD_RECORD and is_object(record):
            heads = record.get("heads")
            names += [record.get("current"), *(heads if is_object(heads) else ())]
        for name in names:
            if isinstance(name, str) and name not in self._renamed and name not in self._used_names:
                counts = self._counts.copy()
                clean = self.redact_text(name)
                self._counts = counts  # it is counted where it occurs
                if clean != name:
                    clean = clean if clean not in self._used_names else f"{clean} {len(self._renamed) + 1}"
                    self._renamed[name] = clean
                self._used_names.add(clean)

    def _redact_string(self, text: str) -> str:
        if text in _VOCABULARY:
            return text
        clean = self.redact_text(text)
        return clean if clean == text else self._renamed.get(text, clean)

    def redact_value(self, value: Any) -> Any:
        """Return a JSON value with every string in it redacted, at any depth."""
        if isinstance(value, str):
            return self._redact_string(value)
        holder: list[Any] = [value]
        waiting: list[tuple[Any, Any, str | None]] = [(holder, 0, None)]
        while waiting:
            place, key, named = waiting.pop()
            at = place[key]
            if is_object(at):
                redacted: dict[str, Any] = {}
                place[key] = redacted
                named = None if at.get("type") in _SCHEMA_TYPES else named
                sibling = _rate_sibling(at)
                holds = ("data", "stringData") if at.get("kind") == "Secret" else ()
                for name, inner in at.items():
                    new = self._redact_string(name)
                    new = new if new not in redacted else f"{new} {len(redacted)}"
                    redacted[new] = inner
                    of_name = sibling if name == "value" else "certain" if name in holds else None
                    waiting.append((redacted, new, named or _rate_name(name) or of_name))
            elif is_list(at):
                place[key] = list(at)
                for index in range(len(at)):
                    waiting.append(
                        (place[key], index, named or (_rate_previous_item(at[index - 1]) if index else None))
                    )
            elif named is not None and self._is_named_secret(at, named):
                self._counts["named secret"] += 1
                place[key] = f"{REDACTED_PREFIX} named secret]"
            elif isinstance(at, str):
                place[key] = self._redact_string(at)
        return holder[0]

    def _is_named_secret(self, value: Any, named: str) -> bool:
        """Whether the value of a field with a suspicious name is a secret."""
        if isinstance(value, str):
            if (
                not value or value in self._used_names or value in self._renamed
            ):  # for example the head of a branch called `auth`
                return False
            return not value.startswith(REDACTED_PREFIX) and (named == "certain" or is_random(value))
        return named == "certain" and isinstance(value, int | float) and not isinstance(value, bool)


def _rate_sibling(at: dict[str, Any]) -> str | None:
    """Rate `value` by the `name` or `key` in the same object."""
    name = at.get("name") or at.get("key")
    return _rate_name(name) if isinstance(name, str) else None


def _rate_previous_item(item: Any) -> str | None:
    """Rate an item of a list by the item before it, such as `--password` or the name of a header."""
    return "likely" if isinstance(item, str) and len(item) < 80 and _rate_name(item) else None


def _read_line(raw: bytes) -> dict[str, Any]:
    return read_object(raw if len(raw) <= LINE_LIMIT else b"")


def _is_canonical(raw: bytes, wire: dict[str, Any]) -> bool:
    """Whether the bytes of a line hold nothing but the parsed values: no duplicate keys, no unusual bytes."""
    try:
        return write_object(wire) == raw
    except NotJson:
        return False


def _compile_pattern(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise InvalidOperation(f"{pattern!r} is not a regular expression: {error}") from None
