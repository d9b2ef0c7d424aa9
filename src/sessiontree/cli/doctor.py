"""The `doctor` command: check sessions for damage and repair copies of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import click

from sessiontree.cli.app import (
    app,
    json_option,
    open_session,
)
from sessiontree.cli.output import (
    bold,
    colorize,
    dim,
    echo,
    echo_json,
    escape_line,
    shorten,
)
from sessiontree.core.entries import JsonObject, Problem
from sessiontree.core.problems import encode_problem
from sessiontree.errors import FormatError, NotFound, SessionTreeError, StoreError, isolate_errors
from sessiontree.library import catalog
from sessiontree.library.session_files import SESSION_SUFFIX, list_folders, resolve_folder
from sessiontree.session import Session

if TYPE_CHECKING:
    from sessiontree.library.repair import RepairReport


@app.command(epilog="\b\nExamples:\n  sessiontree doctor @\n  sessiontree doctor ~/.sessiontree/sessions --repair")
@click.argument("session", metavar="SESSION|DIR|DATABASE")
@click.option("--repair", "repair", is_flag=True, help="Write a repaired copy next to each damaged file.")
@json_option
@click.pass_context
def doctor(ctx: click.Context, session: str, repair: bool, as_json: bool) -> None:
    """Check a session, or all sessions of a folder or database. The exit code is 1 if there is a fault."""
    count, faulty = 0, False
    for examination in _examine_all(session, repair):
        count, faulty = count + 1, faulty or examination.is_faulty
        if as_json:
            echo_json(_encode_examination(examination))
        else:
            _print_examination(examination)
    if not count and not as_json:
        echo("no sessions found")
    ctx.exit(1 if faulty else 0)


class _Examination(NamedTuple):
    """The problems of a session and the result of its repair."""

    name: str
    """Path or address of the session; empty if it is the only one."""
    problems: list[Problem]
    report: RepairReport | None = None
    repair_error: str | None = None
    """Why the repair failed."""

    @property
    def is_faulty(self) -> bool:
        return any(problem.severity == "fault" for problem in self.problems)


def _examine_all(place: str, repair: bool) -> Iterator[_Examination]:
    """Examine one session, or every session of a database or a folder tree."""
    place = catalog.locate(place)
    if not catalog.is_container(place):
        yield _examine(place, repair)
    elif os.path.isdir(place):
        yield from _examine_folder(place, repair)
    else:
        for address in catalog.list_locations(place):
            with suppress(NotFound):  # deleted since it was listed
                yield _examine(address, repair)._replace(name=address)


def _examine_folder(folder: str, repair: bool) -> Iterator[_Examination]:
    """Examine all files in a folder tree. Report files and folders that cannot be read as faults."""
    errors: list[OSError] = []
    for file in _iter_session_files(folder, errors):
        if os.path.islink(file):
            yield _Examination(file, [_build_unreadable_problem("symbolic link, not followed")])
        else:
            with suppress(NotFound):  # deleted since it was listed
                yield _examine(file, repair)._replace(name=file)
    for error in errors:
        yield _Examination(str(error.filename), [_build_unreadable_problem(error.strerror or str(error))])


def _iter_session_files(folder: str, errors: list[OSError]) -> Iterator[str]:
    """Yield session files in a folder tree, and in folders that links directly in `folder` point to."""
    resolve_folder(folder)  # raises if the current folder was deleted
    inside = os.path.join(os.path.realpath(folder), "")
    links = [below for below in list_folders(folder) if os.path.islink(below)]
    linked = [link for link in links if not os.path.join(os.path.realpath(link), "").startswith(inside)]
    for top in (folder, *linked):
        for at, folders, names in os.walk(top, onerror=errors.append):
            for name in sorted([*names, *folders]):
                if name.endswith(SESSION_SUFFIX) and not name.startswith("."):
                    yield os.path.join(at, name)
            if top in linked:
                folders.clear()  # a link may point to a large tree, so do not descend
            folders.sort()


def _examine(session: str, repair: bool) -> _Examination:
    """Examine one session. Raises `NotFound`, and `StoreError` if the database cannot be reached any more."""
    try:
        catalog.check_size(session)
        with isolate_errors(session), open_session(session, read_only=not repair) as opened:
            examination = _Examination("", opened.problems)
            return _repair_session(examination, opened) if repair and examination.is_faulty else examination
    except FormatError as error:
        examination = _Examination("", [_build_unreadable_problem(error.reason)])
        return _repair_session(examination, session) if repair else examination
    except StoreError as error:
        catalog.check_reachable(session)
        return _Examination("", [_build_unreadable_problem(error.reason)])


def _repair_session(examination: _Examination, damaged: Session | str) -> _Examination:
    """Repair a session, or a file that has lost its header."""
    from sessiontree.library.repair import repair, rescue

    try:
        return examination._replace(report=rescue(damaged) if isinstance(damaged, str) else repair(damaged))
    except SessionTreeError as error:
        return examination._replace(repair_error=str(error))


def _build_unreadable_problem(reason: str) -> Problem:
    return Problem(kind="no_session", severity="fault", message=reason)


def _encode_examination(examination: _Examination) -> JsonObject:
    wire: JsonObject = {"file": examination.name} if examination.name else {}
    wire["problems"] = [encode_problem(problem) for problem in examination.problems]
    if examination.report is not None:
        from sessiontree.format.line_repair import encode_repair

        wire["repairs"] = [encode_repair(item) for item in examination.report.repairs]
        wire["repaired"] = examination.report.file
    if examination.repair_error is not None:
        wire["refused"] = examination.repair_error
    return wire


def _print_examination(examination: _Examination) -> None:
    if examination.name:
        echo(bold(escape_line(examination.name)))
    for problem in examination.problems:
        color = "red" if problem.severity == "fault" else "yellow"
        place = f"line {problem.line}" if problem.line else ""
        echo(colorize(problem.severity, color), dim(f"{problem.kind} {place}"), shorten(problem.message))
    if not examination.problems:
        echo("no problems found")
    if examination.repair_error is not None:
        echo(colorize("not repaired", "red"), escape_line(examination.repair_error))
    report = examination.report
    for item in report.repairs if report is not None else ():
        place = f"line {item.line}" if item.line else ""
        echo(colorize("repaired", "green"), dim(f"{item.kind} {place}"), escape_line(item.message))
    if report is not None:
        where = f"repaired copy: {report.file}" if report.file else "a line was appended"
        echo(bold(escape_line(where)))
