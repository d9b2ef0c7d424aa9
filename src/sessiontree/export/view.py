"""Views: what an entry shows to a reader, the same on the page, in Markdown and in plain text.

A view is a heading, a few facts, and parts in order. Texts are as they were said, but for characters that no reader
can see or that would turn a terminal or a line of text round: those are shown as signs. How a part looks is the
business of each form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from sessiontree.core.entries import (
    AgentAction,
    BranchPoint,
    BranchSummary,
    Compaction,
    ContextEdit,
    Custom,
    CustomMessage,
    Entry,
    JsonObject,
    Label,
    Message,
    ModeChange,
    ModelChange,
    Opaque,
    ResetBoundary,
    RuleInjection,
    SessionInfo,
    ThinkingLevelChange,
    Usage,
)
from sessiontree.core.figures import dollars, tell_tokens
from sessiontree.core.merge import is_merge
from sessiontree.core.messages import (
    ToolCall,
    blocks,
    is_list,
    is_object,
    number,
    role,
    spent,
    stopped_abnormally,
    string,
)
from sessiontree.core.outline import one_line
from sessiontree.core.safe import UNSAFE_IN_LINES
from sessiontree.export.picture import Picture, read_picture

Kind: TypeAlias = Literal[
    "user", "assistant", "tool", "run", "system", "custom", "compaction", "summary", "merge", "setting", "note"
]
PartKind: TypeAlias = Literal["prose", "thinking", "code", "output", "diff", "data", "call", "image", "error"]


class Part(Struct, frozen=True, kw_only=True):
    """A piece of what an entry shows."""

    kind: PartKind
    text: str = ""
    name: str = ""
    """Of a call: the tool. Of data: what it is."""
    language: str = ""
    """Of code: a language, or the ending of a file's name."""
    picture: Picture | None = None
    inner: tuple[Part, ...] = ()
    """Of a call: its arguments."""


class View(Struct, frozen=True, kw_only=True):
    kind: Kind
    title: str
    facts: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    failed: bool = False


def view_of(entry: Entry, call: ToolCall | None = None) -> View:
    """What `entry` shows; `call` is the one that a tool result answers."""
    match entry.decoded():
        case Message(message):
            return message_view(message, call)
        case Compaction() as body:
            facts = (f"{tell_tokens(body.tokens_before)} before",) if body.tokens_before else ()
            return View(
                kind="compaction",
                title="Compaction",
                facts=(*facts, *_spent(body.usage)),
                parts=(Part(kind="prose", text=visible(body.summary)), *_data(details=body.details)),
            )
        case BranchSummary() as body:
            merged = is_merge(body)
            left = body.abandoned_leaf or ""
            return View(
                kind="merge" if merged else "summary",
                title="Merge" if merged else "Branch summary",
                facts=(*((f"of {visible(left)}",) if left and left != "root" else ()), *_spent(body.usage)),
                parts=(Part(kind="prose", text=visible(body.summary)), *_data(details=body.details)),
            )
        case CustomMessage() as body:
            hidden = () if body.display else ("hidden in the terminal",)
            return View(
                kind="custom",
                title=_name(body.custom_type) or "custom message",
                facts=hidden,
                parts=(*_content(body.content), *_data(details=body.details)),
            )
        case ModelChange(provider=provider, model=model, role=purpose):
            named = "/".join(filter(None, (provider, model))) or "?"
            return _setting("Model", f"{named}{f' for {purpose}' if purpose and purpose != 'default' else ''}")
        case ThinkingLevelChange(level):
            return _setting("Thinking level", level or "off")
        case ModeChange(mode=mode, data=data):
            return _setting("Mode", mode, data=data)
        case RuleInjection(rules):
            return _setting("Rules", ", ".join(rules))
        case ResetBoundary():
            return View(kind="setting", title="Reset", facts=("nothing above reaches the model",))
        case Label(target=target, text=words):
            return _setting(f"Label on {_name(target)}", words or "(cleared)")
        case SessionInfo(name):
            return _setting("Name", name or "(cleared)")
        case BranchPoint(name=name, description=description):
            return _setting(f"Branch {_name(name)}", description or "")
        case AgentAction(action=action, agent=agent, data=data):
            return _setting(f"Agent {_name(agent)}", action, data=data)
        case ContextEdit(target=target, replacement=replacement):
            done = "left out" if replacement is None else "replaced"
            parts = () if replacement is None else tuple(_content(replacement.get("content")))
            return View(kind="note", title=f"Context edit: {_name(target)} {done}", parts=parts)
        case Custom(custom_type=kind, data=data):
            return View(kind="note", title=f"custom: {_name(kind)}", parts=tuple(_data(data=data)))
        case Usage() as body:
            named = "/".join(filter(None, (body.provider, body.model)))
            facts = (body.kind, named, *_spent(body.usage), body.note or "")
            return View(kind="note", title="Usage", facts=tuple(visible(fact) for fact in facts if fact))
        case Opaque(fields=fields):
            return View(kind="note", title=_name(entry.type), parts=tuple(_data(fields=fields)))


def _setting(title: str, value: str, *, data: Any = None) -> View:
    facts = (visible(one_line(value)),) if value else ()
    return View(kind="setting", title=title, facts=facts, parts=tuple(_data(data=data)))


def message_view(message: JsonObject, call: ToolCall | None = None) -> View:
    """What a message shows."""
    match role(message):
        case "user":
            return View(kind="user", title="User", parts=tuple(_content(message.get("content"))))
        case "assistant":
            return _assistant(message)
        case "toolResult":
            return _result(message, call)
        case "bashExecution" | "pythonExecution" as kind:
            return _run(message, "bash" if kind == "bashExecution" else "python")
        case "system" | "developer" as kind:
            told = _data(sections=message.get("sections"), tools=message.get("toolsAdded"))
            return View(kind="system", title=kind.capitalize(), parts=(*_content(message.get("content")), *told))
        case kind:
            known = ("role", "content", "timestamp", "customType", "text", "summary")
            others = {key: value for key, value in message.items() if key not in known}
            words = string(message.get("text")) or string(message.get("summary"))
            parts = [*_content(message.get("content")), *_prose(words), *_data(fields=others or None)]
            title = string(message.get("customType")) or kind or "message"
            return View(kind="custom", title=_name(title), parts=tuple(parts))


def _assistant(message: JsonObject) -> View:
    failed = stopped_abnormally(message)
    stopped = string(message.get("stopReason"))
    facts = [
        "/".join(filter(None, (string(message.get("provider")), string(message.get("model"))))),
        *_spent(message.get("usage")),
        {"length": "cut at the limit"}.get(stopped, stopped if failed else ""),
    ]
    parts = list(_content(message.get("content")))
    error = string(message.get("errorMessage"))
    if error:
        parts.append(Part(kind="error", text=visible(error)))
    known = tuple(visible(fact) for fact in facts if fact and fact != "unknown/unknown")
    return View(kind="assistant", title="Assistant", facts=known, parts=tuple(parts), failed=failed)


def _result(message: JsonObject, call: ToolCall | None) -> View:
    name = call.name if call is not None else string(message.get("toolName"))
    subject = _subject(call.arguments) if call is not None else ""
    failed = message.get("isError") is True
    parts: list[Part] = []
    details = message.get("details")
    diff = ""
    if is_object(details) and isinstance(details.get("diff"), str):
        diff = details["diff"]
        details = {key: value for key, value in details.items() if key != "diff"} or None
    for part in _content(message.get("content")):
        parts.append(Part(kind="error" if failed else "output", text=part.text) if part.kind == "prose" else part)
    if diff:
        parts.append(Part(kind="diff", text=visible(diff)))
    parts.extend(_data(details=details))
    return View(
        kind="tool",
        title=f"{_name(name) or 'tool'} {subject}".strip(),
        facts=("failed",) if failed else (),
        parts=tuple(parts),
        failed=failed,
    )


def _cut(message: JsonObject) -> str:
    """What is said of a run whose output is not all there."""
    if message.get("truncated") is not True:
        return ""
    path = string(message.get("fullOutputPath"))
    return f"cut; more of it in {path}" if path else "cut"


def _run(message: JsonObject, language: str) -> View:
    command = string(message.get("command")) or string(message.get("code"))
    code = message.get("exitCode")
    failed = message.get("cancelled") is True or (code is not None and number(code) != 0)
    facts = [
        f"exit code {number(code):g}" if code is not None else "",
        "cancelled" if message.get("cancelled") is True else "",
        _cut(message),
        "not sent to the model" if message.get("excludeFromContext") is True else "",
    ]
    parts = [Part(kind="code", text=visible(command), language=language)]
    output = string(message.get("output"))
    if output:
        parts.append(Part(kind="output", text=visible(output)))
    return View(
        kind="run",
        title=f"Run {_name(command)}".strip(),
        facts=tuple(visible(fact) for fact in facts if fact),
        parts=tuple(parts),
        failed=failed,
    )


def _content(content: Any) -> Iterator[Part]:
    for block in blocks(content):
        match block.get("type"):
            case "text":
                yield from _prose(string(block.get("text")))
            case "thinking":
                words = string(block.get("thinking"))
                hidden = "(redacted by the provider)" if block.get("redacted") is True else ""
                if words or hidden:
                    yield Part(kind="thinking", text=visible(words) or hidden)
            case "toolCall":
                yield _call(ToolCall(string(block.get("id")), string(block.get("name")), block.get("arguments")))
            case "image":
                yield Part(kind="image", picture=read_picture(block))
            case _:
                yield from _data(block=block)
    if content is not None and not isinstance(content, str) and not is_list(content):
        yield from _data(content=content)


def _prose(words: str) -> Iterator[Part]:
    if words.strip():
        yield Part(kind="prose", text=visible(words))


OLD_AND_NEW = (("oldText", "newText"), ("old_text", "new_text"), ("old_string", "new_string"))


def _call(call: ToolCall) -> Part:
    """A call with its arguments: commands and files as code, edits as differences, the rest as data."""
    arguments: Any = call.arguments
    inner: list[Part] = []
    rest = arguments
    if is_object(arguments):
        rest = dict(arguments)
        path = string(rest.get("path")) or string(rest.get("file_path"))
        if path:
            rest.pop("path" if string(rest.get("path")) else "file_path")
        if isinstance(rest.get("command"), str):
            inner.append(Part(kind="code", text=visible(rest.pop("command")), language="bash"))
        if isinstance(rest.get("content"), str):
            inner.append(Part(kind="code", text=visible(rest.pop("content")), language=_ending(path)))
        inner.extend(_edits(rest))
        rest = rest or None
    inner.extend(_data(arguments=rest))
    return Part(kind="call", name=_name(call.name) or "tool", text=_subject(arguments), inner=tuple(inner))


def _edits(arguments: JsonObject) -> Iterator[Part]:
    """The edits that a call asks for, taken out of its arguments."""
    several = arguments.get("edits")
    if is_list(several) and several and all(is_object(edit) and _old_and_new(edit) for edit in several):
        del arguments["edits"]
        for edit in several:
            yield from _edits(dict(edit))
    keys = _old_and_new(arguments)
    if keys is not None:
        old, new = arguments.pop(keys[0]), arguments.pop(keys[1])
        yield Part(kind="diff", text=visible(_difference(old, new)))


def _old_and_new(arguments: JsonObject) -> tuple[str, str] | None:
    return next(
        (
            (old, new)
            for old, new in OLD_AND_NEW
            if isinstance(arguments.get(old), str) and isinstance(arguments.get(new), str)
        ),
        None,
    )


LONG = 400
"""Texts of more lines are not compared, which takes time with the square of them."""


def _difference(old: str, new: str) -> str:
    import difflib

    before, after = old.split("\n"), new.split("\n")
    if len(before) + len(after) > LONG:
        return "\n".join([*(f"-{line}" for line in before), *(f"+{line}" for line in after)])
    made = list(difflib.unified_diff(before, after, n=3, lineterm=""))[2:]
    return "\n".join(line for line in made if not line.startswith("@@"))


def _subject(arguments: Any) -> str:
    """The argument that says most of a call."""
    if not is_object(arguments):
        return ""
    keys = ("path", "file_path", "command", "pattern", "query", "url")
    return next((_name(string(arguments[key])) for key in keys if string(arguments.get(key))), "")


def _ending(path: str) -> str:
    name = path.rsplit("/", 1)[-1]
    return name.rsplit(".", 1)[-1].lower() if "." in name else ""


def _data(**values: Any) -> Iterator[Part]:
    """JSON values under a name each; those that are `None` are left out."""
    for name, value in values.items():
        if value is not None:
            yield Part(kind="data", name=name, text=visible(json_text(value)))


def json_text(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, indent=2)
    except RecursionError:
        return "(nested too deeply)"


def _spent(usage: Any) -> tuple[str, ...]:
    sum = spent(usage)
    if sum is None:
        return ()
    return tuple(
        fact for fact in (tell_tokens(sum.tokens) if sum.tokens else "", money(sum.cost) if sum.cost else "") if fact
    )


def money(cost: float) -> str:
    """0.05 as `$0.05`, with as many digits as it takes."""
    return f"${cost:.2f}" if cost >= 1 else dollars(cost).rstrip("0").ljust(5, "0")


def _name(words: str) -> str:
    return visible(one_line(words))[:120]


_COLOURS = re.compile("\x1b\\[[0-9;:]*m")
_UNSEEN = re.compile(f"[{UNSAFE_IN_LINES}]")


def visible(words: str) -> str:
    """`words` without colours of a terminal, line ends as `\\n`, and with signs for characters that act unseen."""
    if words.isprintable():
        return words
    words = _COLOURS.sub("", words).replace("\r\n", "\n")
    return _UNSEEN.sub(_sign, words)


def _sign(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    return "\ufffd" if 0xD800 <= code <= 0xDFFF else f"⟨U+{code:04X}⟩"
