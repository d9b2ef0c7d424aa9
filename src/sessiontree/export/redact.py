"""Redaction: the lines of a session without its secrets, and a report of what was taken out. Pure.

Every string of every line is looked at, names of fields included: what is not known cannot slip through by standing in
a field that nobody thought of. Ids and names of branches that hold a secret are changed everywhere alike, so that the
tree stays whole. A line that cannot be read cannot be searched either, and is left out. What a secret looks like is
told by the tables of `secrets`.
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
from sessiontree.export.secrets import RULES, TAKEN_OUT, Rule, made_up, own, secret_of, strength
from sessiontree.format.codec import HEAD_KEYS, LINE_LIMIT, WIRE, NotJson, read_object, write_object, write_value
from sessiontree.format.splice import set_value

_PUT_INSTEAD = {"home path": "~"}
_LONGEST_WITHIN = 500
"""Characters that are looked at once more, so that the time stays within bounds."""
_LONGEST_KEPT, _MOST_KEPT = 100, 20_000
"""Characters of a text that is remembered as clean, and how many are."""
_SCHEMA_TYPES = ("string", "object", "array", "number", "integer", "boolean")
_VOCABULARY = frozenset(
    {"session", "title", "version", "cwd", "redacted", *HEAD_KEYS, *WIRE}
    | {field.wire for _, fields in WIRE.values() for field in fields.values()}
    | {"role", "content", "text", "thinking", "image", "data", "mimeType", "toolCall", "toolCallId", "toolName"}
    | {"arguments", "user", "assistant", "toolResult", "system", "bashExecution", "stopReason", "model", "api"}
    | {"heads", "from", "leaf", "main", "reset", HEAD_RECORD}
)
"""Words of the format itself: a pattern that matches one of them shall not make the session unreadable."""


_strength = lru_cache(maxsize=4096)(strength)
"""Names of fields repeat on every line."""


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

    def __init__(
        self,
        patterns: Sequence[str] = (),
        *,
        homes: Sequence[str] = (),
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """`patterns` are the user's own; `homes` are home folders that do not look like one.

        `progress` is told how many lines are done.
        """
        self._rules = [*RULES]
        self._rules += [own("home path", re.compile(rf"{re.escape(home)}(?![A-Za-z0-9_.-])")) for home in homes]
        self._rules += [own(f"pattern {number}", _compiled(text)) for number, text in enumerate(patterns, 1)]
        self._counts: Counter[str] = Counter()
        self._names: dict[str, str] = {}
        """Ids and names of branches that hold a secret, and what stands for each."""
        self._taken: set[str] = set()
        self._left_out = 0
        self._progress = progress
        self._clean: dict[str, None] = {}
        """Short texts that were found to hold no secret: names of fields, roles and models repeat."""

    @property
    def report(self) -> Report:
        """What was taken out so far."""
        return Report(counts=dict(sorted(self._counts.items())), lines_left_out=self._left_out)

    def text(self, text: str) -> str:
        if text in self._clean:
            return text
        lower, size = text.lower(), len(text)
        clean = text
        found: dict[tuple[str, ...], bool] = {(): True}
        for rule in self._rules:
            if size < rule.shortest:
                continue
            needs = rule.needs
            if needs not in found:
                found[needs] = any(word in lower for word in needs)
            if found[needs]:
                clean = self._without(rule, clean)
        if size <= _LONGEST_KEPT and clean is text:
            if len(self._clean) >= _MOST_KEPT:
                self._clean.clear()
            self._clean[text] = None
        return clean

    def _without(self, rule: Rule, text: str) -> str:
        pieces: list[str] = []
        kept = at = 0
        while found := rule.pattern.search(text, at):
            start, stop = secret_of(found)
            if start == stop or not rule.told(found):  # what was taken for its value may hold a secret
                within = found.start() < start and stop - start <= _LONGEST_WITHIN
                at = start if within else max(found.end(), found.start() + 1)
                continue
            self._counts[rule.what] += 1
            pieces += text[kept:start], _PUT_INSTEAD.get(rule.what, f"{TAKEN_OUT} {rule.what}]")
            kept = at = stop
        return "".join((*pieces, text[kept:])) if pieces else text

    def lines(self, lines: Iterable[bytes]) -> list[bytes]:
        """The lines of a session, header included, without secrets; the header says that they were taken out."""
        readable: list[bytes] = []
        for raw in lines:
            try:
                if raw.strip():
                    self._learn(_read(raw))
                    readable.append(raw)
            except NotJson:
                self._left_out += 1
        redacted: list[bytes] = []
        for raw in readable:
            wire = _read(raw)  # once more: all lines as objects would take ten times their size
            clean = self._value(wire)
            line = raw if clean == wire and _is_plain(raw, wire) else write_object(clean)
            redacted.append(set_value(line, "redacted", write_value(True)) if wire.get("type") == "session" else line)
            if self._progress is not None:
                self._progress(len(redacted))
        return redacted

    def _learn(self, wire: dict[str, Any]) -> None:
        """Note what stands for an id or the name of a branch that holds a secret: no two may become the same."""
        names = [wire.get(key) for key in ("id", "branch", "branchName")]
        record = wire.get("data")
        if wire.get("customType") == HEAD_RECORD and is_object(record):
            heads = record.get("heads")
            names += [record.get("current"), *(heads if is_object(heads) else ())]
        for name in names:
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
        waiting: list[tuple[Any, Any, str | None]] = [(holder, 0, None)]
        while waiting:
            place, key, named = waiting.pop()
            at = place[key]
            if is_object(at):
                made: dict[str, Any] = {}
                place[key] = made
                named = None if at.get("type") in _SCHEMA_TYPES else named
                told = _told_beside(at)
                holds = ("data", "stringData") if at.get("kind") == "Secret" else ()
                for name, inner in at.items():
                    new = self._string(name)
                    new = new if new not in made else f"{new} {len(made)}"
                    made[new] = inner
                    of_name = told if name == "value" else "certain" if name in holds else None
                    waiting.append((made, new, named or _strength(name) or of_name))
            elif is_list(at):
                place[key] = list(at)
                for index in range(len(at)):
                    waiting.append((place[key], index, named or (_told_before(at[index - 1]) if index else None)))
            elif named is not None and self._is_named_secret(at, named):
                self._counts["named secret"] += 1
                place[key] = f"{TAKEN_OUT} named secret]"
            elif isinstance(at, str):
                place[key] = self._string(at)
        return holder[0]

    def _is_named_secret(self, value: Any, named: str) -> bool:
        """Whether the value of a field whose name speaks of a secret is one."""
        if isinstance(value, str):
            if not value or value in self._taken or value in self._names:  # the head of a branch called `auth`
                return False
            return not value.startswith(TAKEN_OUT) and (named == "certain" or made_up(value))
        return named == "certain" and isinstance(value, int | float) and not isinstance(value, bool)


def _told_beside(at: dict[str, Any]) -> str | None:
    """What `name` or `key` says of `value` in the same object."""
    name = at.get("name") or at.get("key")
    return _strength(name) if isinstance(name, str) else None


def _told_before(item: Any) -> str | None:
    """What one item of a list says of the next: `--password`, or the name of a header."""
    return "likely" if isinstance(item, str) and len(item) < 80 and _strength(item) else None


def _read(raw: bytes) -> dict[str, Any]:
    return read_object(raw if len(raw) <= LINE_LIMIT else b"")


def _is_plain(raw: bytes, wire: dict[str, Any]) -> bool:
    """Whether the line's bytes hold nothing but what was read from them: no key twice, no odd bytes."""
    try:
        return write_object(wire) == raw
    except NotJson:
        return False


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise InvalidOperation(f"{pattern!r} is no regular expression: {error}") from None
