"""The asynchronous methods of `Branch` as functions. They take a session, too, for its current branch."""

from __future__ import annotations

from collections.abc import Iterable

from sessiontree.config import CompactionSettings
from sessiontree.errors import InvalidOperation
from sessiontree.hooks.bus import Hooks
from sessiontree.model.base import Model
from sessiontree.ops.compact import CompactOutcome
from sessiontree.ops.merge import MergeOutcome
from sessiontree.ops.move_files import FilesChoice
from sessiontree.ops.navigate import NavigateOutcome
from sessiontree.session import Branch, Place, Session


async def navigate(
    branch: Branch | Session,
    place: Place,
    *,
    summarize: bool | str = False,
    instructions: str | None = None,
    model: Model | str | None = None,
    label: str | None = None,
    hooks: Hooks | None = None,
    files: FilesChoice = "conversation",
) -> NavigateOutcome:
    """Move a branch to the place that selecting `place` leads to. The same as `Branch.navigate`."""
    return await _get_branch(branch).navigate(
        place, summarize=summarize, instructions=instructions, model=model, label=label, hooks=hooks, files=files
    )


async def compact(
    branch: Branch | Session,
    summary: str | None = None,
    *,
    instructions: str | None = None,
    model: Model | str | None = None,
    settings: CompactionSettings | None = None,
    hooks: Hooks | None = None,
) -> CompactOutcome:
    """Replace the older part of a branch's context with a summary. The same as `Branch.compact`."""
    return await _get_branch(branch).compact(
        summary, instructions=instructions, model=model, settings=settings, hooks=hooks
    )


async def merge(
    branch: Branch | Session,
    source: Place,
    summary: str | None = None,
    *,
    instructions: str | None = None,
    model: Model | str | None = None,
    hooks: Hooks | None = None,
) -> MergeOutcome:
    """Append a summary of `source` to a branch. The same as `Branch.merge`."""
    return await _get_branch(branch).merge(source, summary, instructions=instructions, model=model, hooks=hooks)


async def promote(
    branch: Branch | Session,
    winner: Branch | str,
    summary: str | None = None,
    *,
    over: Iterable[Branch | str] | None = None,
    instructions: str | None = None,
    model: Model | str | None = None,
    hooks: Hooks | None = None,
) -> MergeOutcome:
    """Continue a branch from the head of `winner`, with a summary of the others. The same as `Branch.promote`."""
    return await _get_branch(branch).promote(
        winner, summary, over=over, instructions=instructions, model=model, hooks=hooks
    )


async def uncompact(branch: Branch | Session, *, hooks: Hooks | None = None) -> NavigateOutcome:
    """Move a branch to before its last compaction. The same as `Branch.uncompact`."""
    return await _get_branch(branch).uncompact(hooks=hooks)


def _get_branch(branch: object) -> Branch:
    if isinstance(branch, Session):
        return branch.head
    if isinstance(branch, Branch):
        return branch
    raise InvalidOperation(f"expected a branch or a session, not {type(branch).__name__}")
