"""Commands that list, search, archive and delete sessions."""

from __future__ import annotations

import click

from sessiontree.cli.app import app, can_answer, format_id, json_option, session_argument
from sessiontree.cli.output import bold, colorize, create_progress, dim, echo, echo_json, escape_line, shorten, warn
from sessiontree.core.number_text import format_dollars, pluralize
from sessiontree.errors import SessionTreeError
from sessiontree.library import catalog
from sessiontree.library.folder_repository import get_sources
from sessiontree.library.index.session_search import Hit, encode_hit
from sessiontree.library.index.session_summary import SessionSummary, encode_summary
from sessiontree.library.session_files import parse_session_id
from sessiontree.slash_commands.formatting import format_local_time

all_option = click.option("--all", "everywhere", is_flag=True, help="Include sessions of all folders.")
source_option = click.option(
    "--source", type=click.Choice(list(get_sources())), help="Sessions of another program, read-only."
)
dir_option = click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False),
    help="Session files in this folder, regardless of their working folder.",
)


@app.command(
    epilog="\b\nExamples:\n  sessiontree ls\n  sessiontree ls --all --json\n  sessiontree ls --source pi --all"
)
@all_option
@click.option("--archived", is_flag=True, help="List archived sessions instead.")
@click.option("--trash", "in_trash", is_flag=True, help="List deleted sessions of all folders instead.")
@source_option
@dir_option
@json_option
def ls(everywhere: bool, archived: bool, in_trash: bool, source: str | None, folder: str | None, as_json: bool) -> None:
    """List the sessions of this folder, newest first."""
    _check_source_options(source, folder)
    if in_trash and (archived or source or folder):
        raise click.UsageError("--trash excludes --archived, --source and --dir")
    if in_trash:
        listed = catalog.list_trash()
    else:
        listed = catalog.sessions(
            all=everywhere,
            archived=archived,
            source=source,
            dir=folder,
            others=True,
            progress=create_progress("reading sessions"),
        )
    if as_json:
        for summary in listed:
            more = {"messages": summary.message_count, "branch": summary.branch, "file": summary.file}
            if summary.source is not None:
                more["source"] = summary.source
            echo_json({**encode_summary(summary), **more})
        return
    shown = {(summary.id, summary.file) for summary in listed}
    by_file = _find_ambiguous_files(shown, outside=bool(source or folder), in_trash=in_trash)
    by_file |= {summary.file for summary in listed if summary.source is not None}
    for summary in listed:
        with_folder = everywhere or in_trash or folder is not None
        _print_summary(summary, with_folder=with_folder, with_file=summary.file in by_file)
    if not listed:
        echo(dim("no sessions" if everywhere or in_trash or folder is not None else "no sessions in this folder"))


def _check_source_options(source: str | None, folder: str | None) -> None:
    if source and folder:
        raise click.UsageError("--source and --dir are mutually exclusive")


def _print_summary(summary: SessionSummary, *, with_folder: bool, with_file: bool) -> None:
    echo(
        bold(shorten(summary.id)),
        shorten(summary.name or ""),
        colorize(summary.source or "", "cyan") if summary.source else "",
        colorize("damaged", "red") if summary.is_damaged else "",
    )
    counts = [
        pluralize(summary.message_count, "message"),
        pluralize(summary.entry_count, "entry", "entries"),
        pluralize(summary.branch_count, "branch", "branches"),
        format_dollars(summary.cost),
    ]
    times = [
        f"modified {_format_time(summary.modified)}",
        f"created {_format_time(summary.created)}" if summary.created else "",
    ]
    fork = f"fork of {shorten(parse_session_id(summary.parent_session))}" if summary.parent_session else ""
    where = shorten(summary.cwd) if with_folder else ""
    echo(
        "  " + dim(", ".join(part for part in (*times, *(counts if summary.entry_count else []), fork, where) if part))
    )
    if summary.first_message:
        echo("  " + escape_line(summary.first_message[:100]))
    if summary.damage:
        echo("  " + colorize(shorten(summary.damage), "red"))
    if with_file:  # the id is ambiguous
        echo("  " + dim(escape_line(summary.file)))


def _find_ambiguous_files(shown: set[tuple[str, str]], *, outside: bool, in_trash: bool = False) -> set[str]:
    """Return the files whose session ids are ambiguous. From `outside` the catalog, return all files."""
    return {file for _, file in shown} if outside else catalog.find_ambiguous(shown, in_trash=in_trash)


def _format_time(timestamp: str) -> str:
    return escape_line(format_local_time(timestamp))


@app.command(
    epilog="\b\nExamples:\n  sessiontree search cache\n"
    "  sessiontree search 'cach* \"two ways\" role:user since:7d' --all\n  sessiontree search 缓存 --all --json"
)
@click.argument("query", nargs=-1, required=True)
@all_option
@source_option
@dir_option
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1), help="Maximum number of matches.")
@json_option
def search(
    query: tuple[str, ...], everywhere: bool, source: str | None, folder: str | None, limit: int, as_json: bool
) -> None:
    """Search all entries of all branches, newest first.

    An entry matches if it contains all terms of QUERY. A term is a text, also inside a word, "a phrase", or the
    beginning of a word such as begin*.
    Filter by role with role:user, and by age with since:7d (12h, 2w, 2026-01-31).
    """
    _check_source_options(source, folder)
    unread: set[str] = set()
    hits = catalog.search(
        " ".join(query),
        all=everywhere,
        source=source,
        dir=folder,
        others=True,
        limit=limit,
        on_unreadable=unread.add,
        progress=create_progress("indexing"),
    )
    if unread:
        warn(f"cannot read {pluralize(len(unread), 'file')}; run `sessiontree ls` for details")
    if as_json:
        for hit in hits:
            echo_json(encode_hit(hit))
        return
    before = None
    by_file = _find_ambiguous_files({(hit.session, hit.file) for hit in hits}, outside=bool(source or folder))
    for hit in hits:
        if hit.file != before:
            echo(bold(escape_line(hit.file) if hit.file in by_file else shorten(hit.session)), shorten(hit.name or ""))
            before = hit.file
        _print_hit(hit)
    if not hits:
        echo(dim("no matches" if everywhere or folder is not None else "no matches in sessions of this folder"))
    elif len(hits) == limit:
        echo(dim(f"showing the newest {limit}; use --limit for more"))


def _print_hit(hit: Hit) -> None:
    seen = colorize("in context", "green") if hit.in_context else dim("not in context")
    branch = shorten(hit.branch) if hit.branch is not None else "no branch"
    echo(
        f"  {shorten(format_id(hit.entry))}",
        dim(_format_time(hit.timestamp)),
        colorize(branch, "cyan"),
        seen,
        dim(shorten(hit.role)),
    )
    echo("    " + escape_line(hit.snippet))


@app.command(epilog="\b\nExamples:\n  sessiontree archive @\n  sessiontree archive auth --undo")
@session_argument
@click.option("--undo", is_flag=True, help="Show it in listings again.")
@json_option
def archive(session: str, undo: bool, as_json: bool) -> None:
    """Hide a session from listings. The file stays where it is."""
    file = catalog.archive(session, archived=not undo)
    if as_json:
        echo_json({"archived": not undo, "file": file})
    else:
        echo("unarchived" if undo else "archived", dim(escape_line(file)))


@app.command(epilog="\b\nExamples:\n  sessiontree delete auth\n  sessiontree delete auth --restore")
@session_argument
@click.option("--restore", is_flag=True, help="Restore it from the trash.")
@click.option("--purge", is_flag=True, help="Delete it permanently, from the trash or its folder.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
def delete(session: str, restore: bool, purge: bool, yes: bool, as_json: bool) -> None:
    """Move a session to the trash, restore it, or delete it permanently."""
    if restore and purge:
        raise click.UsageError("--restore and --purge are mutually exclusive")
    if restore:
        file, done = catalog.restore(session), "restored"
    else:
        if not yes:
            session = _confirm_deletion(session, purge)
        file, done = (catalog.purge(session), "removed") if purge else (catalog.delete(session), "deleted")
    if as_json:
        echo_json({"done": done, "file": file})
    else:
        echo(done, dim(escape_line(file)))


def _confirm_deletion(session: str, purge: bool) -> str:
    """Ask for confirmation and return the location: `@` may mean another session when the user has answered."""
    if not can_answer():
        raise click.UsageError("no terminal to ask for confirmation; use --yes")
    place = catalog.resolve_session(session, in_trash=purge)
    description = _describe_session(place)
    click.confirm(
        f"Permanently delete {description}?" if purge else f"Move {description} to the trash?", abort=True, err=True
    )
    return place


def _describe_session(place: str) -> str:
    """Return the name or id of a session and its first message, or its location if it cannot be read."""
    from sessiontree.library.index.session_summary import build_tally

    try:
        with catalog.open(place, read_only=True) as session:
            first = build_tally(session).first_message
            quoted = f'"{first[:60]}{"…" if first[60:] else ""}"' if first else "(empty)"
            return f"{shorten(session.name or session.id)} {shorten(quoted)}"
    except SessionTreeError:
        return escape_line(place)  # not shortened: paths of one folder differ at the end
