"""Transcript blocks: the units of the conversation that are rendered, folded and copied.

A block is a user message, a thought, a part of an answer, or a tool call with its result. Texts are raw here;
`block_rendering` escapes them.
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
from sessiontree.core.entry_text import (
    NOT_SENT,
    describe_execution,
    describe_stop,
    describe_summary,
    format_call_head,
    format_content,
    format_entry,
    format_image,
    get_message_text,
    get_result_diff,
)
from sessiontree.core.foreign_markup import format_program_text
from sessiontree.core.messages import (
    ToolCall,
    coerce_string,
    get_answered_call,
    get_role,
    is_failed_turn,
    is_object,
    iter_blocks,
)

BlockKind: TypeAlias = Literal["user", "answer", "thought", "tool", "summary", "custom", "note", "output", "error"]
"""A `note` is a remark about the conversation, such as a model change. An `output` is the output of a command."""
BlockState: TypeAlias = Literal["live", "done", "failed"]

EntryRenderer: TypeAlias = Callable[[Entry], Any]
"""A function of an extension that turns an entry into Markdown or a Rich renderable."""

FOLDABLE_KINDS = frozenset({"thought", "tool", "summary"})


@dataclass(eq=False)
class TranscriptBlock:
    kind: BlockKind
    head: str = ""
    """The title, one line."""
    text: str = ""
    state: BlockState = "done"
    is_diff: bool = False
    """Whether the text is a diff. A collapsed diff still shows its first lines."""
    file_content: str = ""
    """The file content that a call writes. Shown with the result, unless that has a diff."""
    shows_tail: bool = False
    """Whether a collapsed block shows the end of its text instead of the start."""
    is_unfolded: bool | None = None
    """Set by the user for this block; `None` follows the transcript."""
    entry_id: EntryId | None = None
    component: Any = None
    """A Rich renderable of an extension, shown instead of the text."""
    render_cache: dict[Any, Any] = field(default_factory=dict[Any, Any])
    """Cached rendering."""

    @property
    def is_foldable(self) -> bool:
        return self.kind in FOLDABLE_KINDS

    def invalidate(self) -> None:
        """Drop the cached rendering."""
        self.render_cache.pop("lines", None)


class BlockBuilder:
    """Builds blocks from entries, and finds the block of a tool call to update it."""

    def __init__(self, renderers: Mapping[str, EntryRenderer] | None = None) -> None:
        self.renderers: Mapping[str, EntryRenderer] = {} if renderers is None else renderers
        self._calls: dict[str, TranscriptBlock] = {}
        """Blocks of tool calls by call id."""

    def build_all(self, entries: Iterable[Entry]) -> list[TranscriptBlock]:
        """Build the blocks of consecutive entries. Results are added to the blocks of their calls."""
        built = [block for entry in entries for block in self.build_entry(entry)]
        for block in built:
            if block.state == "live":
                block.state = "failed"
                block.text = "\n\n".join(filter(None, ["(no result)", block.file_content]))
        return built

    def build_entry(self, entry: Entry) -> list[TranscriptBlock]:
        """Build the blocks of an entry. Tool results and bookkeeping entries have none."""
        built = list(self._build_body(entry))
        for block in built:
            block.entry_id = entry.id
        return built

    def _build_body(self, entry: Entry) -> Iterator[TranscriptBlock]:
        match entry.body:
            case Message(message):
                yield from self._build_message(message)
            case CustomMessage(display=False):
                pass
            case CustomMessage(custom_type=kind, content=content):
                text = format_program_text(format_content(content), with_results=True)
                yield self._apply_renderer(entry, TranscriptBlock("custom", head=kind, text=text))
            case Custom(custom_type=kind) if kind in self.renderers:
                yield self._apply_renderer(entry, TranscriptBlock("custom", head=kind))
            case Compaction() | BranchSummary() as body:
                title, facts = describe_summary(body)
                yield TranscriptBlock("summary", head=" · ".join([title, *facts]), text=body.summary)
            case _ if entry.type in TRANSCRIPT_TYPES:
                yield TranscriptBlock("note", text=format_entry(entry))
            case _:
                pass

    def _apply_renderer(self, entry: Entry, block: TranscriptBlock) -> TranscriptBlock:
        """Apply the renderer of an extension. Without one, or if it fails, keep the block as it is."""
        renderer = self.renderers.get(block.head)
        if renderer is not None:
            try:
                rendered = renderer(entry)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - an extension may raise anything
                rendered = f"{block.text}\n\n(renderer failed: {type(error).__name__}: {error})"
            if isinstance(rendered, str):
                block.text = rendered
            elif rendered is not None:
                block.component = rendered
        return block

    def _build_message(self, message: JsonObject) -> Iterator[TranscriptBlock]:
        match get_role(message):
            case "user":
                yield TranscriptBlock("user", text=format_content(message.get("content")))
            case "assistant":
                yield from self._build_answer(message)
            case "toolResult":
                yield from self._apply_result(message)
            case "bashExecution" | "pythonExecution":
                yield _build_execution(message)
            case "system" | "developer":
                pass
            case other:
                text = format_content(message.get("content")) or get_message_text(message)
                if text:
                    yield TranscriptBlock("custom", head=other or "message", text=text)

    def _build_answer(self, message: JsonObject) -> Iterator[TranscriptBlock]:
        failed = is_failed_turn(message)
        for block in iter_blocks(message.get("content")):
            match block.get("type"):
                case "text" if coerce_string(block.get("text")).strip():
                    yield TranscriptBlock("answer", text=coerce_string(block.get("text")))
                case "thinking" if coerce_string(block.get("thinking")).strip():
                    yield TranscriptBlock("thought", text=coerce_string(block.get("thinking")))
                case "toolCall":
                    yield self.build_call(ToolCall.wrap(block), "failed" if failed else "live")
                case "image":
                    yield TranscriptBlock("note", text=format_image(block))
                case _:
                    pass
        if message.get("stopReason") == "error":
            yield TranscriptBlock("error", text=coerce_string(message.get("errorMessage")) or "the model failed")
        elif stopped := describe_stop(message):
            yield TranscriptBlock("note", text=stopped)

    # Tool calls

    def build_call(self, call: ToolCall, state: BlockState = "live") -> TranscriptBlock:
        """Build the block of a call that has no result yet."""
        head = format_call_head(call.name, call.arguments)
        block = TranscriptBlock("tool", head=head, state=state, shows_tail=call.name == "bash")
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
        diff = get_result_diff(message)
        failed = message.get("isError") is True
        output = format_content(message.get("content"))
        if block.file_content and not diff:
            output = f"{output}\n\n{block.file_content}" if failed else block.file_content
        block.text = diff or output
        block.is_diff = bool(diff)
        block.state = "failed" if failed else "done"
        block.invalidate()


def _read_file_content(name: str, arguments: Any) -> str:
    """Return the file content that a call writes."""
    return coerce_string(arguments.get("content")) if name == "write" and is_object(arguments) else ""


def _build_execution(message: JsonObject) -> TranscriptBlock:
    command, output, facts, failed = describe_execution(message)
    ended = ", ".join(fact for fact in facts if fact not in (NOT_SENT, "exit code 0"))
    return TranscriptBlock(
        "tool",
        head=f"! {command} ({NOT_SENT})" if NOT_SENT in facts else f"! {command}",
        text="\n".join(filter(None, [output.strip("\n"), f"({ended})" if ended else ""])),
        state="failed" if failed else "done",
        shows_tail=True,
    )
