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
from sessiontree.library.session_files import list_folders, resolve_folder
from sessiontree.session.session import Session
from sessiontree.store.postgres.address import is_database_address

if TYPE_CHECKING:
    from sessiontree.library.repair import RepairReport


@app.command(epilog="\b\nExamples:\n  sessiontree doctor @\n  sessiontree doctor ~/.sessiontree/sessions --repair")
@click.argument("session", metavar="SESSION|DIR|DATABASE")
@click.option("--repair", "mend", is_flag=True, help="Write a sound copy beside each damaged file; the file stays.")
@json_option
@click.pass_context
def doctor(ctx: click.Context, session: str, mend: bool, as_json: bool) -> None:
    """List what is wrong with a session, or with all in a folder or database; exit with 1 when there is a fault."""
    count, faulty = 0, False
    for examined in _examine_all(session, mend):
        count, faulty = count + 1, faulty or examined.is_faulty
        if as_json:
            echo_json(_examination_to_wire(examined))
        else:
            _print_examination(examined)
    if not count and not as_json:
        echo("no sessions there")
    ctx.exit(1 if faulty else 0)


class _Examination(NamedTuple):
    """What is wrong with a session, and what was done about it."""

    name: str
    """Of one among many; the only one needs none."""
    problems: list[Problem]
    report: RepairReport | None = None
    repair_error: str | None = None
    """Why it was not repaired."""

    @property
    def is_faulty(self) -> bool:
        return any(problem.severity == "fault" for problem in self.problems)


def _examine_all(place: str, mend: bool) -> Iterator[_Examination]:
    """The one session, or every session of a database, or in a folder and below it."""
    place = catalog.locate(place)
    if not catalog.is_container(place):
        yield _examine(place, mend)
    elif os.path.isdir(place):
        yield from _examine_folder(place, mend)
    else:
        for address in catalog.list_addresses(place):
            with suppress(NotFound):  # it was taken away meanwhile
                yield _examine(address, mend)._replace(name=address)


def _examine_folder(folder: str, mend: bool) -> Iterator[_Examination]:
    """What cannot be opened is a fault of its own, and stops nothing."""
    closed: list[OSError] = []
    for file in _iter_session_files(folder, closed):
        if os.path.islink(file):
            yield _Examination(file, [_build_unreadable_problem("a link, which is not followed")])
        else:
            with suppress(NotFound):  # it was taken away meanwhile
                yield _examine(file, mend)._replace(name=file)
    for error in closed:
        yield _Examination(str(error.filename), [_build_unreadable_problem(error.strerror or str(error))])


def _iter_session_files(folder: str, errors: list[OSError]) -> Iterator[str]:
    """What is called like a session in a folder and below it, and in those that links right in it lead to."""
    resolve_folder(folder)  # which says so where the current folder was deleted
    inside = os.path.join(os.path.realpath(folder), "")
    links = [below for below in list_folders(folder) if os.path.islink(below)]
    linked = [link for link in links if not os.path.join(os.path.realpath(link), "").startswith(inside)]
    for top in (folder, *linked):
        for at, folders, names in os.walk(top, onerror=errors.append):
            for name in sorted([*names, *folders]):
                if name.endswith(catalog.SESSION_SUFFIX) and not name.startswith("."):
                    yield os.path.join(at, name)
            if top in linked:
                folders.clear()  # it may lead to where everything is
            folders.sort()


def _examine(session: str, mend: bool) -> _Examination:
    """Raises `NotFound`, and `StoreError` when a database cannot be reached any more: then no other can be read."""
    from sessiontree.library.index.session_summary import check_size

    try:
        if not is_database_address(session):
            check_size(session)
        with isolate_errors(session), open_session(session, read_only=not mend) as examined:
            found = _Examination("", examined.problems)
            return _repair_session(found, examined) if mend and found.is_faulty else found
    except FormatError as error:
        found = _Examination("", [_build_unreadable_problem(error.reason)])
        return _repair_session(found, session) if mend and not is_database_address(session) else found
    except StoreError as error:
        catalog.check_reachable(session)
        return _Examination("", [_build_unreadable_problem(error.reason)])


def _repair_session(found: _Examination, damaged: Session | str) -> _Examination:
    """What is left of a session, or of a file whose header is gone, repaired."""
    from sessiontree.library.repair import repair, rescue

    try:
        return found._replace(report=rescue(damaged) if isinstance(damaged, str) else repair(damaged))
    except SessionTreeError as error:
        return found._replace(repair_error=str(error))


def _build_unreadable_problem(reason: str) -> Problem:
    return Problem(kind="no_session", severity="fault", message=reason)


def _examination_to_wire(examined: _Examination) -> JsonObject:
    wire: JsonObject = {"file": examined.name} if examined.name else {}
    wire["problems"] = [encode_problem(problem) for problem in examined.problems]
    if examined.report is not None:
        from sessiontree.format.line_repair import encode_repair

        wire["repairs"] = [encode_repair(item) for item in examined.report.repairs]
        wire["repaired"] = examined.report.file
    if examined.repair_error is not None:
        wire["refused"] = examined.repair_error
    return wire


def _print_examination(examined: _Examination) -> None:
    if examined.name:
        echo(bold(escape_line(examined.name)))
    for problem in examined.problems:
        color = "red" if problem.severity == "fault" else "yellow"
        place = f"line {problem.line}" if problem.line else ""
        echo(colorize(problem.severity, color), dim(f"{problem.kind} {place}"), shorten(problem.message))
    if not examined.problems:
        echo("nothing is wrong")
    if examined.repair_error is not None:
        echo(colorize("not repaired", "red"), escape_line(examined.repair_error))
    report = examined.report
    for item in report.repairs if report is not None else ():
        place = f"line {item.line}" if item.line else ""
        echo(colorize("repaired", "green"), dim(f"{item.kind} {place}"), escape_line(item.message))
    if report is not None:
        where = f"the sound copy is {report.file}" if report.file else "a line was appended"
        echo(bold(escape_line(where)))
