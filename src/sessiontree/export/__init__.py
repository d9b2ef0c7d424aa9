"""Exports a session or a part of it: as HTML, Markdown, text, JSON or JSONL, and as data for training and evaluation.

Pure functions from session lines to bytes: the same input always gives the same output. `snapshot` reads
a session and selects a part, and `redact` removes secrets. Nothing here writes files or uses the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from msgspec import Struct

from sessiontree.core.place_names import resolve_place
from sessiontree.errors import InvalidOperation
from sessiontree.export.redact import RedactionReport, Redactor
from sessiontree.export.snapshot import Snapshot, read_snapshot, select_path, select_subtree

FORMATS = ("html", "md", "jsonl", "json", "text")
DATASET_FORMATS = {"sft": ".jsonl", "preference": ".jsonl", "atif": ".json", "inspect": ".json"}
"""Formats for training and evaluation, with their suffixes. A file name alone does not choose them."""
FORMAT_BY_SUFFIX = {".html": "html", ".htm": "html", ".md": "md", ".jsonl": "jsonl", ".json": "json", ".txt": "text"}
"""Formats by file name suffix."""


class ExportResult(Struct, frozen=True, kw_only=True):
    """The content of an export, and its redactions."""

    content: bytes
    report: RedactionReport | None
    """The redactions, if a redactor was given."""


def detect_format(file: str) -> str | None:
    """Return the format of a file name, or `None`."""
    return next((form for ending, form in FORMAT_BY_SUFFIX.items() if file.lower().endswith(ending)), None)


def build_file_name(session: str, form: str) -> str:
    """Return a file name for the export of a session, given by its id."""
    ending = DATASET_FORMATS.get(form) or next(ending for ending, named in FORMAT_BY_SUFFIX.items() if named == form)
    known = "".join(letter for letter in session if letter.isascii() and letter.isalnum())
    return f"session-{known[-12:] or 'unnamed'}{ending}"


def export(
    lines: Iterable[bytes],
    form: str = "html",
    *,
    branch: str | None = None,
    subtree: str | None = None,
    redactor: Redactor | None = None,
    prefer: str | None = None,
) -> ExportResult:
    """Export a session, given by its lines, in one of `FORMATS` or `DATASET_FORMATS`.

    `branch` exports only the path to a place. `subtree` exports an entry and everything below it. For the format
    `preference`, `prefer` decides which branch of a pair is better. Raises `NotFound`, `Ambiguous`, or
    `InvalidOperation` for invalid arguments.
    """
    content = b"".join(stream_export(lines, form, branch=branch, subtree=subtree, redactor=redactor, prefer=prefer))
    return ExportResult(content=content, report=None if redactor is None else redactor.report)


class SessionWithLines(Protocol):
    """A session, or anything else that has its lines."""

    def stream_lines(self) -> Iterable[bytes]: ...


def stream_export(
    lines: SessionWithLines | Iterable[bytes],
    form: str = "html",
    *,
    branch: str | None = None,
    subtree: str | None = None,
    redactor: Redactor | None = None,
    prefer: str | None = None,
    report: Callable[[str], None] | None = None,
) -> Iterator[bytes]:
    """Yield the result of `export`, of a session or of its lines, in pieces. It is never in memory as a whole.

    Invalid arguments raise before the first piece. The redactor's report is complete after the last piece. `report` is
    called with a sentence for what a format for training leaves out.
    """
    if form not in FORMATS and form not in DATASET_FORMATS:
        raise InvalidOperation(f"no format {form!r}: choose one of {', '.join((*FORMATS, *DATASET_FORMATS))}")
    if branch is not None and subtree is not None:
        raise InvalidOperation("choose either a path or a subtree, not both")
    if prefer is not None and form != "preference":
        raise InvalidOperation(f"the format {form} has no preferences; choose the format preference")
    if form == "html" and not can_export_html():
        raise InvalidOperation("HTML export needs `pip install 'sessiontree[export]'`")
    whole = read_snapshot(lines if isinstance(lines, Iterable) else lines.stream_lines())
    chosen = _select_lines(whole, branch, subtree)
    if redactor is not None:
        chosen = redactor.redact_lines(whole.lines if chosen is None else chosen)
    if form == "jsonl":
        left = whole.lines if chosen is None else chosen
        return _join_into_blocks(line + b"\n" for line in left)
    if chosen is None:
        shown = whole
    else:
        del whole  # free the memory of the first snapshot
        shown = read_snapshot(chosen)
    return _join_into_blocks(piece.encode("utf-8", "replace") for piece in _render(shown, form, prefer, report))


def can_export_html() -> bool:
    """Whether the packages of the extra `export` are installed."""
    from importlib.util import find_spec

    try:
        return all(find_spec(module) is not None for module in ("jinja2", "markdown_it", "nh3", "pygments"))
    except ValueError:  # a module is blocked in `sys.modules`
        return False


BLOCK_SIZE = 1 << 16
"""The minimum size of a yielded block in bytes."""


def _join_into_blocks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    block = bytearray()
    for piece in pieces:
        block += piece
        if len(block) >= BLOCK_SIZE:
            yield bytes(block)
            block.clear()
    if block:
        yield bytes(block)


def _select_lines(whole: Snapshot, branch: str | None, subtree: str | None) -> list[bytes] | None:
    """Return the lines of the selected part, or `None` for the whole session."""
    if branch is None and subtree is None:
        return None
    place = resolve_place(branch or subtree or "", whole.tree, whole.heads)
    if branch is not None:
        return select_path(whole, place)
    if place is None:
        raise InvalidOperation("root is not an entry and has no subtree; export the whole session instead")
    return select_subtree(whole, place)


def _render(whole: Snapshot, form: str, prefer: str | None, report: Callable[[str], None] | None) -> Iterator[str]:
    match form:
        case "html":
            from sessiontree.export.html_page import render_html

            return render_html(whole)
        case "sft":
            from sessiontree.export.training_lists import render_sft

            return render_sft(whole)
        case "preference":
            from sessiontree.export.training_lists import render_pairs

            return render_pairs(whole, prefer, report)
        case "atif":
            from sessiontree.export.atif_trajectory import render_atif

            return render_atif(whole)
        case "inspect":
            from sessiontree.export.inspect_log import render_inspect

            return render_inspect(whole)
        case _:
            from sessiontree.export.text_export import render_json, render_markdown, render_plain_text

            return {"json": render_json, "md": render_markdown, "text": render_plain_text}[form](whole)
