"""Commands that export a session to a file, and copy sessions between folders and databases: export, copy, verify."""

from __future__ import annotations

import gc
import os
import sys
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from sessiontree.cli.app import app, fail, json_option, open_session, place_option, session_argument
from sessiontree.cli.output import (
    bold,
    colorize,
    create_progress,
    dim,
    echo,
    echo_json,
    escape_line,
    escape_lines,
    warn,
)
from sessiontree.core.number_text import pluralize
from sessiontree.export import (
    DATASET_FORMATS,
    FORMAT_BY_SUFFIX,
    FORMATS,
    RedactionReport,
    Redactor,
    build_file_name,
    detect_format,
    stream_export,
)
from sessiontree.export.training_lists import DEFAULT_RULE, RULES
from sessiontree.home import list_user_homes
from sessiontree.interop.formats import list_written_formats
from sessiontree.library.foreign_continue import write_session
from sessiontree.library.transfer import Progress, TransferResult, encode_transfer_result
from sessiontree.library.transfer import copy as copy_sessions
from sessiontree.library.transfer import verify as verify_sessions
from sessiontree.store.file_operations import write_private

if TYPE_CHECKING:
    from sessiontree.session import Session

STDOUT = "-"
OWN_FORMATS = (*FORMATS, *DATASET_FORMATS)
READABLE_FORMATS = ("html", "md", "text")


@app.command(
    "export",
    epilog="\b\nExamples:\n  sessiontree export @ -o page.html\n"
    "  sessiontree export @ --format md --branch cache -o -\n"
    "  sessiontree export @ --format preference --prefer label:good/bad -o pairs.jsonl\n"
    "  sessiontree export @ --format atif --redact -o trajectory.json",
)
@session_argument
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="File to write, or - for standard output. Default: a name with the id of the session.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice([*OWN_FORMATS, *list_written_formats()]),
    help="Format. Default: from the file name, else html.",
)
@place_option("--branch", help="Export only the path to this place.")
@place_option("--subtree", help="Export only this entry and its descendants.")
@click.option(
    "--prefer",
    metavar="RULE",
    help=f"With --format preference: how the better branch is found, one of {RULES}. Default: {DEFAULT_RULE}.",
)
@click.option(
    "--files", "with_files", is_flag=True, help="With html, md and text: show what each call did to files as a diff."
)
@click.option("--redact", is_flag=True, help="Redact keys, tokens, private keys and home paths.")
@click.option(
    "--pattern",
    "patterns",
    multiple=True,
    metavar="RE",
    help="With --redact: also redact matches of this pattern; repeatable.",
)
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def export_command(
    session: str,
    output: str | None,
    form: str | None,
    branch: str | None,
    subtree: str | None,
    prefer: str | None,
    with_files: bool,
    redact: bool,
    patterns: tuple[str, ...],
    force: bool,
) -> None:
    """Export a session, or a part of it, to one file. Nothing is uploaded."""
    if patterns and not redact:
        raise click.UsageError("--pattern requires --redact")
    if branch is not None and subtree is not None:
        raise click.UsageError("--branch and --subtree are mutually exclusive")
    chosen = form or _detect_format(output or "")
    if prefer is not None and chosen != "preference":
        raise click.UsageError("--prefer requires --format preference")
    if with_files and chosen not in READABLE_FORMATS:
        raise click.UsageError(
            f"--files requires --format {', '.join(READABLE_FORMATS[:-1])} or {READABLE_FORMATS[-1]}"
        )
    with open_session(session, read_only=True) as source:
        redactor = Redactor(patterns, homes=list_user_homes()) if redact else None
        target = output or build_file_name(source.id, chosen if chosen in OWN_FORMATS else "jsonl")
        if source.file is not None and os.path.exists(target) and os.path.samefile(source.file, target):
            raise click.ClickException(f"{target} is the session file itself; choose another file")
        if chosen not in OWN_FORMATS:
            if subtree is not None or redactor is not None:
                raise click.UsageError(f"--format {chosen} cannot be combined with --subtree or --redact")
            leaf = source.resolve_place(branch or "HEAD")
            written = write_session(source, chosen, leaf, source.id, source.cwd)
            for omission in written.omitted:
                warn(f"not the same in {chosen}: {omission}")
            pieces = iter([written.files[0].content])
        elif chosen == "jsonl" and branch is None and subtree is None and redactor is None:
            pieces = source.store.stream_bytes()
        else:
            pieces = stream_export(
                _add_files(source) if with_files else source.stream_lines(),
                chosen,
                branch=branch,
                subtree=subtree,
                redactor=redactor,
                prefer=prefer,
                report=warn,
            )
            gc.freeze()  # the entries stay until the end, so do not look for garbage among them
        if target == STDOUT:
            _print_pieces(pieces)
        else:
            _write_file(target, pieces, force=force)
            click.echo(f"{escape_line(target)}  {_format_size(os.path.getsize(target))}")
    if redactor is not None:
        _print_redactions(redactor.report)


def _add_files(source: Session) -> Iterator[bytes]:
    from sessiontree.ops.export_files import add_call_diffs, read_call_diffs

    return add_call_diffs(source.stream_lines(), read_call_diffs(source))


def _detect_format(file: str) -> str:
    """Return the format for a file name. Default: html, if the name has no suffix."""
    form = detect_format(file)
    if form is None and os.path.splitext(file)[1]:
        raise click.UsageError(f"{file!r}: unknown suffix; use one of {', '.join(FORMAT_BY_SUFFIX)}, or --format")
    return form or "html"


def _write_file(target: str, pieces: Iterable[bytes], *, force: bool) -> None:
    if os.path.lexists(target):
        if not force:
            raise click.ClickException(f"{target} already exists (--force overwrites it)")
        if not os.path.isfile(target):
            raise click.ClickException(f"{target} is not a regular file (-o - prints to standard output)")
    write_private(os.path.realpath(target), pieces, overwrite=force)


def _print_pieces(pieces: Iterable[bytes]) -> None:
    """Print the bytes unchanged, or with control characters escaped on a terminal."""
    if not sys.stdout.isatty() and hasattr(sys.stdout, "buffer"):
        for piece in pieces:
            click.echo(piece, nl=False)
        return
    decode = getincrementaldecoder("utf-8")("replace").decode
    for piece in pieces:
        click.echo(escape_lines(decode(piece)), nl=False)
    click.echo(escape_lines(decode(b"", final=True)), nl=False)


def _format_size(count: int) -> str:
    return pluralize(count, "byte", shown=f"{count:,}") if count < 10_000 else f"{count / 1000:,.0f} kB"


def _print_redactions(report: RedactionReport) -> None:
    """Print a list of redactions on standard error, because standard output may be the export."""
    counts = ", ".join(f"{count} {kind}" for kind, count in report.counts.items())
    skipped = f"; skipped {pluralize(report.skipped_lines, 'unreadable line')}" if report.skipped_lines else ""
    click.echo(f"redacted: {counts or 'nothing'}{skipped}", err=True)


# Copies

ENDPOINTS_HELP = (
    "SRC and DST are a session, a folder of session files, or a database such as postgresql://host/database."
)


@app.command(
    epilog=f"{ENDPOINTS_HELP}\n\n\b\nExamples:\n  sessiontree copy auth postgresql://db/talks\n"
    "  sessiontree copy ~/.sessiontree/sessions postgresql://db/talks\n"
    "  sessiontree copy postgresql://db/talks ./backup"
)
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@json_option
@click.pass_context
def copy(ctx: click.Context, source: str, target: str, as_json: bool) -> None:
    """Copy a session, or all sessions of a folder or database, unchanged. Resumes an interrupted copy."""
    bar = create_progress("copying")
    ctx.exit(_print_copies(copy_sessions(source, target, progress=bar), as_json, bar))


@app.command(
    epilog=f"{ENDPOINTS_HELP}\n\n\b\nExample:\n  sessiontree verify ~/.sessiontree/sessions postgresql://db/talks"
)
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@json_option
@click.pass_context
def verify(ctx: click.Context, source: str, target: str, as_json: bool) -> None:
    """Compare sessions with their copies byte for byte. The exit code is 1 if any differ."""
    bar = create_progress("comparing")
    ctx.exit(_print_copies(verify_sessions(source, target, progress=bar), as_json, bar))


def _print_copies(copies: Iterable[TransferResult], as_json: bool, bar: Progress | None) -> int:
    failed = count = 0
    for copied in copies:
        if bar is not None:
            click.echo("\r\x1b[K", nl=False, err=True)  # erase the progress line
        count += 1
        failed += not copied.is_ok
        if as_json:
            echo_json(encode_transfer_result(copied))
            continue
        state = copied.state if copied.is_ok else colorize(copied.state, "red")
        location = copied.target or copied.source or ""
        echo(bold(escape_line(copied.session)), state, escape_line(copied.reason or ""), dim(escape_line(location)))
    if not count:
        return fail("no sessions found")
    return 1 if failed else 0
