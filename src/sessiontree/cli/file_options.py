"""Options of commands that move files with the conversation, and how they print a restore."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from sessiontree.cli.app import F
from sessiontree.cli.output import dim, escape_line
from sessiontree.config import load_config
from sessiontree.core.entries import EntryId, JsonObject

if TYPE_CHECKING:
    from sessiontree.files.private_folder import PrivateFolder
    from sessiontree.files.restore import RestoreOutcome
    from sessiontree.files.restore_plan import PathConflict, RestorePlan
    from sessiontree.ops.move_files import FileMover, FilesChoice
    from sessiontree.session import Branch, Session

MAX_SHOWN = 50
"""Paths that a preview lists."""

with_files_option = click.option("--files", is_flag=True, help="Restore the files of the new place as well.")
_files_only_option = click.option("--files-only", is_flag=True, help="Restore the files and leave the conversation.")
_take_option = click.option(
    "--take", metavar="PATH", multiple=True, help="Restore this file although it is a conflict; repeatable."
)


def files_options(function: F) -> F:
    for option in (_take_option, _files_only_option, with_files_option):
        function = option(function)
    return function


def choose_files(files: bool, files_only: bool, take: Sequence[str]) -> FilesChoice:
    """Return what a move changes. Raises `UsageError` for options that do not fit together."""
    if files and files_only:
        raise click.UsageError("--files and --files-only are mutually exclusive")
    if take and not (files or files_only):
        raise click.UsageError("--take requires --files or --files-only")
    return "files" if files_only else "both" if files else "conversation"


def find_files(branch: Branch) -> FileMover:
    """Return what restores the files of a branch."""
    from sessiontree.ops.move_files import FileMover

    return FileMover.find(branch, load_config().files, os.getcwd())


def plan_files(branch: Branch, place: EntryId | None, take: Sequence[str]) -> RestorePlan:
    """Return the preview of a restore."""
    return find_files(branch).plan(place).take(take)


def print_restore_plan(plan: RestorePlan) -> None:
    """Print the preview of a restore."""
    click.echo(escape_line(plan.summary))
    for change in plan.changes[:MAX_SHOWN]:
        click.echo(f"  {change.action:6} {escape_line(change.path)}")
    if len(plan.changes) > MAX_SHOWN:
        click.echo(dim(f"  and {len(plan.changes) - MAX_SHOWN} more"))
    _print_conflicts(plan.conflicts)
    if plan.others:
        click.echo(dim(f"also at work in this folder: {escape_line(', '.join(plan.others))}"))


def print_restored(outcome: RestoreOutcome, *, err: bool = False) -> None:
    """Print what a restore did."""
    click.echo(escape_line(outcome.summary), err=err)
    if not err:
        _print_conflicts(outcome.conflicts)


def _print_conflicts(conflicts: Sequence[PathConflict]) -> None:
    for conflict in conflicts:
        click.echo(f"  keep   {escape_line(conflict.path)} {dim(f'({conflict.reason})')}")


def encode_restore_plan(plan: RestorePlan) -> JsonObject:
    return {
        "folder": plan.folder,
        "changes": [{"path": change.path, "action": change.action} for change in plan.changes],
        "conflicts": _encode_conflicts(plan.conflicts),
        "missing": plan.missing,
        "others": list(plan.others),
    }


def encode_restored(outcome: RestoreOutcome) -> JsonObject:
    return {
        "written": list(outcome.written),
        "deleted": list(outcome.deleted),
        "conflicts": _encode_conflicts(outcome.conflicts),
        "missing": outcome.missing,
    }


def _encode_conflicts(conflicts: Sequence[PathConflict]) -> list[JsonObject]:
    return [{"path": conflict.path, "reason": conflict.reason} for conflict in conflicts]


# Private folders


def find_folder(session: Session, branch: str) -> PrivateFolder | None:
    """Return the private folder of a branch; `None` if it has none."""
    from sessiontree.files.private_folder import find_private_folder

    return find_private_folder(session.id, branch)


def create_folder(branch: Branch) -> None:
    """Create the private folder of a branch from the current folder, and print where it is."""
    from sessiontree.files.private_folder import create_branch_folder

    folder = create_branch_folder(branch, os.getcwd(), load_config().files)
    click.echo(dim(f"private folder: {escape_line(folder.path)}"), err=True)


def remove_folders(session: Session, branches: Iterable[str]) -> None:
    """Remove the private folders of archived branches."""
    from sessiontree.ops.merge_files import remove_branch_folders

    for name in remove_branch_folders(session, branches, load_config().files):
        click.echo(
            dim(f"removed the private folder of {escape_line(name)}; its files are in the last snapshot"), err=True
        )


def merge_files(source: Branch, into: Branch) -> bool:
    """Merge the files of a private folder, and print what happened. Return whether there were no conflicts."""
    from sessiontree.ops.merge_files import merge_branch_files

    merged = merge_branch_files(source, into, load_config().files)
    if merged is None:
        return True
    click.echo(escape_line(merged.summary), err=True)
    return not merged.conflicts
