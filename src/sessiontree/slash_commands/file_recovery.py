"""Ask the user at the start what to do with restores of files that were killed half way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from sessiontree.config import FileSettings
from sessiontree.errors import SessionTreeError
from sessiontree.files.restore import HOW_TO_RECOVER, RecoveryChoice, RestoreOutcome, has_journals
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import Notice
from sessiontree.hooks.ui_protocol import Ui
from sessiontree.ops.move_files import FileMover, find_interrupted_restores, recover_restore
from sessiontree.session import Branch

QUESTION = "Restoring files was interrupted. What should happen to them?"
QUESTION_ELSEWHERE = "Another session was interrupted while it restored files here. What should happen to them?"
FINISH, REVERT, KEEP_FOR_LATER = "Finish the restore", "Revert the restore", "Decide later"


async def offer_recovery(branch: Branch, settings: FileSettings, cwd: str, ui: Ui, hooks: Hooks) -> None:
    """Ask whether to finish or revert restores that were killed half way, and report killed calls.

    A restore of another session in the folder counts too: its files are half way between two states.
    """
    if not await asyncio.to_thread(has_journals):
        return
    try:
        mover = await asyncio.to_thread(FileMover.find, branch, settings, cwd)
        for text in await asyncio.to_thread(mover.record_interrupted_calls):
            hooks.notify_listeners(Notice(level="warning", text=text))
        own = await asyncio.to_thread(mover.find_interrupted)
        for interrupted in own:
            await _offer(QUESTION, partial(mover.recover, interrupted), ui, hooks)
        for interrupted in await asyncio.to_thread(find_interrupted_restores, cwd):
            if interrupted.journal not in {item.journal for item in own}:
                work = partial(recover_restore, interrupted, settings=settings)
                await _offer(QUESTION_ELSEWHERE, work, ui, hooks)
    except SessionTreeError as error:
        hooks.notify_listeners(Notice(level="warning", text=str(error)))


async def _offer(question: str, recover: Callable[[RecoveryChoice], RestoreOutcome], ui: Ui, hooks: Hooks) -> None:
    answer = await ui.select(question, (FINISH, REVERT, KEEP_FOR_LATER)) if ui.has_person else None
    if answer not in (FINISH, REVERT):
        text = f"restoring files was interrupted; {HOW_TO_RECOVER}"
        hooks.notify_listeners(Notice(level="warning", text=text))
        return
    outcome = await asyncio.to_thread(recover, "finish" if answer == FINISH else "revert")
    hooks.notify_listeners(Notice(level="info", text=outcome.summary))
