"""Blocks: the conversation cut into what is drawn, folded and copied as one.

A user's words are a block, each thought of the model, each part of its answer, each tool call together with its
result. Texts are raw here; `drawing` makes them safe. `Blocks` makes them of entries, and of events while they come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from sessiontree.core.entries import (
    BranchPoint,
    BranchSummary,
    Compaction,
    Custom,
    CustomMessage,
    Entry,
    EntryId,
    JsonObject,
    Message,
    ModelChange,
    ThinkingLevelChange,
)
from sessiontree.core.figures import pluralize, short_count, tell_tokens
from sessiontree.core.merge import is_merge
from sessiontree.core.messages import (
    ToolCall,
    answered_call,
    blocks,
    is_object,
    number,
    role,
    string,
    text,
)
from sessiontree.core.outline import plain_text

Kind: TypeAlias = Literal["user", "answer", "thought", "tool", "summary", "custom", "note", "told", "error"]
"""`note` is a line about the conversation, `told` what a command has to say."""
State: TypeAlias = Literal["live", "done", "failed"]

Renderer: TypeAlias = Callable[[Entry], Any]
"""What an extension shows of its own entries: Markdown, or something that Rich can draw."""

FOLDS = frozenset({"thought", "tool", "summary"})


@dataclass(eq=False)
class Block:
    kind: Kind
    head: str = ""
    """One line that says what it is."""
    text: str = ""
    state: State = "done"
    diff: bool = False
    """Whether the text is a diff, which is not hidden when folded."""
    written: str = ""
    """The content of a file that a call writes: shown with its result, unless that has a diff."""
    tail: bool = False
    """Whether the end of the text tells more than its beginning."""
    unfolded: bool | None = None
    """As it was set by hand; `None` is as all are."""
    entry: EntryId | None = None
    component: Any = None
    """What an extension made for Rich to draw, in the place of the text."""
    drawn: dict[Any, Any] = field(default_factory=dict[Any, Any])
    """What drawing remembers of it."""

    @property
    def folds(self) -> bool:
        return self.kind in FOLDS

    def changed(self) -> None:
        """Have it drawn anew."""
        self.drawn.pop("lines", None)


class Blocks:
    """Makes blocks, and finds those that more is to be said of."""

    def __init__(self, renderers: Mapping[str, Renderer] | None = None) -> None:
        self.renderers: Mapping[str, Renderer] = {} if renderers is None else renderers
        self._calls: dict[str, Block] = {}
        """Blocks of calls by the call's id."""

    def of(self, entries: Iterable[Entry]) -> list[Block]:
        """The blocks of entries that follow one another; results go to the calls that came before."""
        made = [block for entry in entries for block in self.of_entry(entry)]
        for block in made:
            if block.state == "live":
                block.state = "failed"
                block.text = "\n\n".join(filter(None, ["(there is no result)", block.written]))
        return made

    def of_entry(self, entry: Entry) -> list[Block]:
        """The blocks that an entry adds; none for a result, which goes to its call, and for bookkeeping."""
        made = list(self._made(entry))
        for block in made:
            block.entry = entry.id
        return made

    def _made(self, entry: Entry) -> Iterator[Block]:
        match entry.body:
            case Message(message):
                yield from self._of_message(message)
            case CustomMessage(display=False):
                pass
            case CustomMessage(custom_type=kind, content=content):
                yield self._rendered(entry, Block("custom", head=kind, text=_content(content)))
            case Custom(custom_type=kind) if kind in self.renderers:
                yield self._rendered(entry, Block("custom", head=kind))
            case Compaction(summary=summary, tokens_before=tokens):
                yield Block("summary", head=f"compacted, {tell_tokens(tokens)} before", text=summary)
            case BranchSummary(summary=summary) as body:
                what = "merged from another branch" if is_merge(body) else "summary of a branch that was left"
                yield Block("summary", head=what, text=summary)
            case ModelChange(model=model):
                yield Block("note", text=f"model: {model or '?'}")
            case ThinkingLevelChange(level):
                yield Block("note", text=f"thinking: {level or 'off'}")
            case BranchPoint():
                yield Block("note", text=plain_text(entry))
            case _:
                pass

    def _rendered(self, entry: Entry, block: Block) -> Block:
        """A block as its extension wants it shown; as it is, where there is none or it fails."""
        renderer = self.renderers.get(block.head)
        if renderer is not None:
            try:
                given = renderer(entry)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - an extension may raise anything
                given = f"{block.text}\n\n(its renderer failed with {type(error).__name__}: {error})"
            if isinstance(given, str):
                block.text = given
            elif given is not None:
                block.component = given
        return block

    def _of_message(self, message: JsonObject) -> Iterator[Block]:
        match role(message):
            case "user":
                yield Block("user", text=_content(message.get("content")))
            case "assistant":
                yield from self._of_answer(message)
            case "toolResult":
                yield from self._of_result(message)
            case "bashExecution" | "pythonExecution":
                yield _of_execution(message)
            case "system" | "developer":
                pass
            case other:
                said = _content(message.get("content")) or string(message.get("summary")) or string(message.get("text"))
                if said:
                    yield Block("custom", head=other or "message", text=said)

    def _of_answer(self, message: JsonObject) -> Iterator[Block]:
        failed = string(message.get("stopReason"))
        for block in blocks(message.get("content")):
            match block.get("type"):
                case "text" if string(block.get("text")).strip():
                    yield Block("answer", text=string(block.get("text")))
                case "thinking" if string(block.get("thinking")).strip():
                    yield Block("thought", text=string(block.get("thinking")))
                case "toolCall":
                    call = ToolCall(string(block.get("id")), string(block.get("name")), block.get("arguments"))
                    yield self.called(call, "failed" if failed in ("error", "aborted") else "live")
                case "image":
                    yield Block("note", text=_image(block))
                case _:
                    pass
        if failed == "aborted":
            yield Block("note", text="aborted")
        elif failed == "error":
            yield Block("error", text=string(message.get("errorMessage")) or "the model failed")
        elif failed == "length":
            yield Block("note", text="cut off: the answer reached its limit")

    # Tool calls

    def called(self, call: ToolCall, state: State = "live") -> Block:
        """The block of a call, as it is before anything has come of it."""
        block = Block("tool", head=call_line(call.name, call.arguments), state=state, tail=call.name == "bash")
        block.text = block.written = _written(call.name, call.arguments)
        self._calls[call.id] = block
        return block

    def of_call(self, id: str) -> Block | None:
        return self._calls.get(id)

    def _of_result(self, message: JsonObject) -> Iterator[Block]:
        block = self._calls.get(answered_call(message) or "")
        if block is None:
            block = Block("tool", head=string(message.get("toolName")) or "tool result")
            yield block
        details = message.get("details")
        diff = string(details.get("diff")) if is_object(details) else ""
        failed = message.get("isError") is True
        said = _content(message.get("content"))
        if block.written and not diff:
            said = f"{said}\n\n{block.written}" if failed else block.written
        block.text = diff or said
        block.diff = bool(diff)
        block.state = "failed" if failed else "done"
        block.changed()


def call_line(name: str, arguments: Any) -> str:
    """A call in one line: the tool, and what it is about."""
    given: JsonObject = arguments if is_object(arguments) else {}
    if name == "bash" and isinstance(given.get("command"), str):
        return f"$ {given['command']}"
    told = next((string(given[key]) for key in ("path", "file_path", "pattern", "query", "url") if given.get(key)), "")
    written = given.get("content")
    if name == "write" and isinstance(written, str):
        return f"{name} {told}, {pluralize(_lines(written), 'line') if written else 'empty'}"
    others = [f"{key}={value}" for key, value in given.items() if _short(value) and value != told]
    if given.get("old_text") is not None:
        others = []
    return " ".join([name, *filter(None, [told]), *others]) if given else name


def _written(name: str, arguments: Any) -> str:
    """The content of a file that a call writes."""
    return string(arguments.get("content")) if name == "write" and is_object(arguments) else ""


def _lines(text: str) -> int:
    return text.removesuffix("\n").count("\n") + 1


def _short(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, str) and 0 < len(value) <= 40 and "\n" not in value)


def _of_execution(message: JsonObject) -> Block:
    code, command = message.get("exitCode"), string(message.get("command")) or string(message.get("code"))
    unseen = " (the model does not see this)" if message.get("excludeFromContext") is True else ""
    ended = "" if code in (None, 0) else f"\n(exit code {number(code):g})"
    cancelled = message.get("cancelled") is True
    return Block(
        "tool",
        head=f"! {command}{unseen}",
        text=f"{string(message.get('output')).rstrip()}{ended}{'(cancelled)' if cancelled else ''}".strip("\n"),
        state="failed" if cancelled or code not in (None, 0) else "done",
        tail=True,
    )


def _content(content: object) -> str:
    """The text of a message, with its images noted."""
    images = [_image(block) for block in blocks(content) if block.get("type") == "image"]
    return "\n".join(part for part in (text(content), *images) if part)


def _image(block: JsonObject) -> str:
    kind = string(block.get("mimeType")).removeprefix("image/") or "?"
    size = len(string(block.get("data")).rstrip("=")) * 3 // 4
    return f"[image: {kind}, {pluralize(size, 'byte', shown=short_count(size))}]"
