"""Options of commands that move files with the conversation, and how they print a restore."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from sessiontree.cli.app import F
from sessiontree.cli.output import dim, escape_line, escape_lines
from sessiontree.core.entries import FILES_RECORD, Entry, EntryId, JsonObject

if TYPE_CHECKING:
    from sessiontree.files.private_folder import PrivateFolder
    from sessiontree.files.restore import RestoreOutcome
    from sessiontree.files.restore_plan import PathConflict, RestorePlan
    from sessiontree.ops.merge import MergeOutcome
    from sessiontree.ops.move_files import FileMover, FilesChoice
    from sessiontree.session import Branch, Session

MAX_SHOWN = 50
"""Paths that a preview lists."""

_with_files_option = click.option("--files", is_flag=True, help="Restore the files of the new place as well.")
_files_only_option = click.option("--files-only", is_flag=True, help="Restore the files and leave the conversation.")
_take_option = click.option(
    "--take", metavar="PATH", multiple=True, help="Restore this file although it is a conflict; repeatable."
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Show which files would change, and change nothing.")
diff_option = click.option("--diff", is_flag=True, help="With --dry-run: show the changes of the files as a diff.")


def files_options(function: F) -> F:
    for option in (_take_option, _files_only_option, _with_files_option):
        function = option(function)
    return function


def choose_files(
    files: bool, files_only: bool, take: Sequence[str], *, dry_run: bool, diff: bool, shows_plan: bool = False
) -> FilesChoice:
    """Return what a move changes. Raises `UsageError` for options that do not fit together.

    `shows_plan` is true for commands that preview the move of the conversation as well.
    """
    if dry_run and not (files or files_only or shows_plan):
        raise click.UsageError("--dry-run requires --files or --files-only")
    if diff and not (dry_run and (files or files_only)):
        raise click.UsageError("--diff requires --dry-run, with --files or --files-only")
    if files and files_only:
        raise click.UsageError("--files and --files-only are mutually exclusive")
    if take and not (files or files_only):
        raise click.UsageError("--take requires --files or --files-only")
    return "files" if files_only else "both" if files else "conversation"


def count_changed_files(session: Session) -> Mapping[EntryId, int]:
    """Return how many files each entry changed, for the entries that changed any."""
    tree = session.tree
    records = [item for item in tree.items if isinstance(item, Entry) and item.custom_type == FILES_RECORD]
    if not records:
        return {}
    from sessiontree.files.file_records import count_changed_files

    return count_changed_files(records, tree)


def find_files(branch: Branch) -> FileMover:
    """Return what restores the files of a branch."""
    from sessiontree.config import load_config
    from sessiontree.ops.move_files import FileMover

    return FileMover.find(branch, load_config().files, os.getcwd())


def plan_files(branch: Branch, place: EntryId | None, take: Sequence[str]) -> RestorePlan:
    """Return the preview of a restore."""
    return find_files(branch).plan(place).take(take)


def print_restore_plan(plan: RestorePlan, *, with_diff: bool) -> None:
    """Print the preview of a restore."""
    click.echo(escape_line(plan.summary))
    for change in plan.changes[:MAX_SHOWN]:
        click.echo(f"  {change.action:6} {escape_line(change.path)}")
    if len(plan.changes) > MAX_SHOWN:
        click.echo(dim(f"  and {len(plan.changes) - MAX_SHOWN} more"))
    _print_conflicts(plan.conflicts)
    if plan.others:
        click.echo(dim(f"also working in this folder: {escape_line(', '.join(plan.others))}"))
    if with_diff:
        click.echo(escape_lines(_read_diff(plan)), nl=False)


def _read_diff(plan: RestorePlan) -> str:
    from sessiontree.files.file_history import read_restore_diff

    return "" if plan.is_empty else read_restore_diff(plan)


def print_restored(outcome: RestoreOutcome, *, err: bool = False) -> None:
    """Print what a restore did."""
    click.echo(escape_line(outcome.summary), err=err)
    if not err:
        _print_conflicts(outcome.conflicts)


def _print_conflicts(conflicts: Sequence[PathConflict]) -> None:
    for conflict in conflicts:
        click.echo(f"  keep   {escape_line(conflict.path)} {dim(f'({conflict.reason})')}")


def encode_restore_plan(plan: RestorePlan, *, with_diff: bool) -> JsonObject:
    return {
        "folder": plan.folder,
        "changes": [{"path": change.path, "action": change.action} for change in plan.changes],
        "conflicts": _encode_conflicts(plan.conflicts),
        "missing": plan.missing,
        "others": list(plan.others),
        **({"diff": _read_diff(plan)} if with_diff else {}),
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


def print_folder(session: Session, branch: str) -> None:
    """Print the path of the private folder of a branch, if it has one."""
    folder = find_folder(session, branch)
    if folder is not None:
        click.echo(dim(f"private folder: {escape_line(folder.path)}"), err=True)


def remove_folders(session: Session, branches: Iterable[str]) -> None:
    """Remove the private folders of archived branches."""
    from sessiontree.config import load_config
    from sessiontree.ops.merge_files import remove_branch_folders

    _print_removed(remove_branch_folders(session, branches, load_config().files))


def _print_removed(branches: Iterable[str]) -> None:
    for name in branches:
        click.echo(
            dim(f"removed the private folder of {escape_line(name)}; its files are in the last snapshot"), err=True
        )


def print_merged_files(outcome: MergeOutcome) -> None:
    """Print what a merge or a promotion did to files."""
    if outcome.files is not None:
        click.echo(escape_line(outcome.files.summary), err=True)
    _print_removed(outcome.removed_folders)
