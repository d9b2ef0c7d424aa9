"""Blocks: the conversation cut into what is drawn, folded and copied as one.

A user's words are a block, each thought of the model, each part of its answer, each tool call together with its
result. Texts are raw here; `drawing` makes them safe. `Blocks` makes them of entries, and of events while they come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from sessiontree.core.entries import (
    TRANSCRIPT_TYPES,
    BranchSummary,
    Compaction,
    Custom,
    CustomMessage,
    Entry,
    EntryId,
    JsonObject,
    Message,
)
from sessiontree.core.entry_text import format_entry
from sessiontree.core.merge_plan import is_merge
from sessiontree.core.messages import (
    ToolCall,
    coerce_number,
    coerce_string,
    extract_text,
    get_answered_call,
    get_role,
    is_object,
    iter_blocks,
)
from sessiontree.core.number_text import format_count, format_tokens, pluralize

BlockKind: TypeAlias = Literal["user", "answer", "thought", "tool", "summary", "custom", "note", "told", "error"]
"""`note` is a line about the conversation, `told` what a command has to say."""
BlockState: TypeAlias = Literal["live", "done", "failed"]

EntryRenderer: TypeAlias = Callable[[Entry], Any]
"""What an extension shows of its own entries: Markdown, or something that Rich can draw."""

FOLDABLE_KINDS = frozenset({"thought", "tool", "summary"})


@dataclass(eq=False)
class TranscriptBlock:
    kind: BlockKind
    head: str = ""
    """One line that says what it is."""
    text: str = ""
    state: BlockState = "done"
    is_diff: bool = False
    """Whether the text is a diff, which is not hidden when folded."""
    file_content: str = ""
    """The content of a file that a call writes: shown with its result, unless that has a diff."""
    shows_tail: bool = False
    """Whether the end of the text tells more than its beginning."""
    is_unfolded: bool | None = None
    """As it was set by hand; `None` is as all are."""
    entry_id: EntryId | None = None
    component: Any = None
    """What an extension made for Rich to draw, in the place of the text."""
    render_cache: dict[Any, Any] = field(default_factory=dict[Any, Any])
    """What drawing remembers of it."""

    @property
    def is_foldable(self) -> bool:
        return self.kind in FOLDABLE_KINDS

    def invalidate(self) -> None:
        """Have it drawn anew."""
        self.render_cache.pop("lines", None)


class BlockBuilder:
    """Makes blocks, and finds those that more is to be said of."""

    def __init__(self, renderers: Mapping[str, EntryRenderer] | None = None) -> None:
        self.renderers: Mapping[str, EntryRenderer] = {} if renderers is None else renderers
        self._calls: dict[str, TranscriptBlock] = {}
        """Blocks of calls by the call's id."""

    def build_all(self, entries: Iterable[Entry]) -> list[TranscriptBlock]:
        """The blocks of entries that follow one another; results go to the calls that came before."""
        made = [block for entry in entries for block in self.build_entry(entry)]
        for block in made:
            if block.state == "live":
                block.state = "failed"
                block.text = "\n\n".join(filter(None, ["(there is no result)", block.file_content]))
        return made

    def build_entry(self, entry: Entry) -> list[TranscriptBlock]:
        """The blocks that an entry adds; none for a result, which goes to its call, and for bookkeeping."""
        made = list(self._build_body(entry))
        for block in made:
            block.entry_id = entry.id
        return made

    def _build_body(self, entry: Entry) -> Iterator[TranscriptBlock]:
        match entry.body:
            case Message(message):
                yield from self._build_message(message)
            case CustomMessage(display=False):
                pass
            case CustomMessage(custom_type=kind, content=content):
                yield self._apply_renderer(entry, TranscriptBlock("custom", head=kind, text=_format_content(content)))
            case Custom(custom_type=kind) if kind in self.renderers:
                yield self._apply_renderer(entry, TranscriptBlock("custom", head=kind))
            case Compaction(summary=summary, tokens_before=tokens):
                yield TranscriptBlock("summary", head=f"compacted, {format_tokens(tokens)} before", text=summary)
            case BranchSummary(summary=summary) as body:
                what = "merged from another branch" if is_merge(body) else "summary of a branch that was left"
                yield TranscriptBlock("summary", head=what, text=summary)
            case _ if entry.type in TRANSCRIPT_TYPES:
                yield TranscriptBlock("note", text=format_entry(entry))
            case _:
                pass

    def _apply_renderer(self, entry: Entry, block: TranscriptBlock) -> TranscriptBlock:
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

    def _build_message(self, message: JsonObject) -> Iterator[TranscriptBlock]:
        match get_role(message):
            case "user":
                yield TranscriptBlock("user", text=_format_content(message.get("content")))
            case "assistant":
                yield from self._build_answer(message)
            case "toolResult":
                yield from self._apply_result(message)
            case "bashExecution" | "pythonExecution":
                yield _build_execution(message)
            case "system" | "developer":
                pass
            case other:
                said = (
                    _format_content(message.get("content"))
                    or coerce_string(message.get("summary"))
                    or coerce_string(message.get("text"))
                )
                if said:
                    yield TranscriptBlock("custom", head=other or "message", text=said)

    def _build_answer(self, message: JsonObject) -> Iterator[TranscriptBlock]:
        failed = coerce_string(message.get("stopReason"))
        for block in iter_blocks(message.get("content")):
            match block.get("type"):
                case "text" if coerce_string(block.get("text")).strip():
                    yield TranscriptBlock("answer", text=coerce_string(block.get("text")))
                case "thinking" if coerce_string(block.get("thinking")).strip():
                    yield TranscriptBlock("thought", text=coerce_string(block.get("thinking")))
                case "toolCall":
                    call = ToolCall(
                        coerce_string(block.get("id")), coerce_string(block.get("name")), block.get("arguments")
                    )
                    yield self.build_call(call, "failed" if failed in ("error", "aborted") else "live")
                case "image":
                    yield TranscriptBlock("note", text=_format_image(block))
                case _:
                    pass
        if failed == "aborted":
            yield TranscriptBlock("note", text="aborted")
        elif failed == "error":
            yield TranscriptBlock("error", text=coerce_string(message.get("errorMessage")) or "the model failed")
        elif failed == "length":
            yield TranscriptBlock("note", text="cut off: the answer reached its limit")

    # Tool calls

    def build_call(self, call: ToolCall, state: BlockState = "live") -> TranscriptBlock:
        """The block of a call, as it is before anything has come of it."""
        block = TranscriptBlock(
            "tool", head=format_call(call.name, call.arguments), state=state, shows_tail=call.name == "bash"
        )
        block.text = block.file_content = _read_file_content(call.name, call.arguments)
        self._calls[call.id] = block
        return block

    def find_call(self, id: str) -> TranscriptBlock | None:
        return self._calls.get(id)

    def _apply_result(self, message: JsonObject) -> Iterator[TranscriptBlock]:
        block = self._calls.get(get_answered_call(message) or "")
        if block is None:
            block = TranscriptBlock("tool", head=coerce_string(message.get("toolName")) or "tool result")
            yield block
        details = message.get("details")
        diff = coerce_string(details.get("diff")) if is_object(details) else ""
        failed = message.get("isError") is True
        said = _format_content(message.get("content"))
        if block.file_content and not diff:
            said = f"{said}\n\n{block.file_content}" if failed else block.file_content
        block.text = diff or said
        block.is_diff = bool(diff)
        block.state = "failed" if failed else "done"
        block.invalidate()


def format_call(name: str, arguments: Any) -> str:
    """A call in one line: the tool, and what it is about."""
    given: JsonObject = arguments if is_object(arguments) else {}
    if name == "bash" and isinstance(given.get("command"), str):
        return f"$ {given['command']}"
    told = next(
        (coerce_string(given[key]) for key in ("path", "file_path", "pattern", "query", "url") if given.get(key)), ""
    )
    written = given.get("content")
    if name == "write" and isinstance(written, str):
        return f"{name} {told}, {pluralize(_count_lines(written), 'line') if written else 'empty'}"
    others = [f"{key}={value}" for key, value in given.items() if _is_short(value) and value != told]
    if given.get("old_text") is not None:
        others = []
    return " ".join([name, *filter(None, [told]), *others]) if given else name


def _read_file_content(name: str, arguments: Any) -> str:
    """The content of a file that a call writes."""
    return coerce_string(arguments.get("content")) if name == "write" and is_object(arguments) else ""


def _count_lines(text: str) -> int:
    return text.removesuffix("\n").count("\n") + 1


def _is_short(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, str) and 0 < len(value) <= 40 and "\n" not in value)


def _build_execution(message: JsonObject) -> TranscriptBlock:
    code, command = message.get("exitCode"), coerce_string(message.get("command")) or coerce_string(message.get("code"))
    unseen = " (the model does not see this)" if message.get("excludeFromContext") is True else ""
    ended = "" if code in (None, 0) else f"\n(exit code {coerce_number(code):g})"
    cancelled = message.get("cancelled") is True
    return TranscriptBlock(
        "tool",
        head=f"! {command}{unseen}",
        text=f"{coerce_string(message.get('output')).rstrip()}{ended}{'(cancelled)' if cancelled else ''}".strip("\n"),
        state="failed" if cancelled or code not in (None, 0) else "done",
        shows_tail=True,
    )


def _format_content(content: object) -> str:
    """The text of a message, with its images noted."""
    images = [_format_image(block) for block in iter_blocks(content) if block.get("type") == "image"]
    return "\n".join(part for part in (extract_text(content), *images) if part)


def _format_image(block: JsonObject) -> str:
    kind = coerce_string(block.get("mimeType")).removeprefix("image/") or "?"
    size = len(coerce_string(block.get("data")).rstrip("=")) * 3 // 4
    return f"[image: {kind}, {pluralize(size, 'byte', shown=format_count(size))}]"
