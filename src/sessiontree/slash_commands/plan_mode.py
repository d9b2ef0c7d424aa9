"""Plan mode: the agent may only read until the user approves its plan."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from sessiontree.agent.permission_rules import RuleSet
from sessiontree.agent.system_prompt import SystemPart
from sessiontree.errors import InvalidOperation
from sessiontree.slash_commands.registry import Argument, Command, CommandOutcome

if TYPE_CHECKING:
    from sessiontree.slash_commands.controller import SessionController  # cycle: it has the plan mode

PLAN_PROMPT = """\
You are in plan mode. Do not change anything: you may read and search, and calls that edit files or run commands are
refused. Answer with a short plan of numbered steps that names the files to change and how you will check the result.
The user approves the plan before you carry it out."""
APPROVAL_PROMPT = "The plan is approved. Carry it out."
QUESTION = "Plan mode: what next?"
APPROVE, APPROVE_EDITS, KEEP, LEAVE = (
    "Approve the plan and carry it out",
    "Approve it, and allow edits without asking",
    "Keep planning",
    "Leave plan mode",
)

SelectAnswer: TypeAlias = "Callable[[str, Sequence[str]], Awaitable[str | None]]"


class PlanMode:
    """Whether the agent of a controller only plans."""

    def __init__(self, controller: SessionController) -> None:
        self._controller = controller
        self.select_answer: SelectAnswer | None = None
        """Asks the question about the plan in a front end that has no other questions."""
        self._undo: list[Callable[[], None]] = []

    @property
    def is_active(self) -> bool:
        return bool(self._undo)

    def start(self) -> None:
        """Restrict the agent to reading, and tell the model. Raises `InvalidOperation` without permissions."""
        permissions = self._controller.permissions
        if permissions is None:
            raise InvalidOperation("plan mode needs permissions, which are off")
        if not self._undo:
            part = SystemPart(name="plan mode", text=PLAN_PROMPT)
            self._undo = [permissions.restrict("read-only", RuleSet()), self._controller.add_system_part(part)]

    def stop(self) -> None:
        while self._undo:
            self._undo.pop()()

    async def review(self) -> CommandOutcome:
        """Ask the user about the plan, and return the prompt that carries it out."""
        select = self.select_answer or self._controller.ui.select
        answer = await select(QUESTION, [APPROVE, APPROVE_EDITS, KEEP, LEAVE])
        if answer in (None, KEEP):
            return CommandOutcome()
        self.stop()
        if answer == LEAVE:
            return CommandOutcome(text="Left plan mode.")
        permissions = self._controller.permissions
        if answer == APPROVE_EDITS and permissions is not None and permissions.mode in ("read-only", "ask"):
            permissions.mode = "allow-edits"
        return CommandOutcome(prompt=APPROVAL_PROMPT)


async def _run_plan(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    plan = controller.plan_mode
    if plan.is_active and not args:
        if controller.ui.has_person or plan.select_answer is not None:
            return await plan.review()
        plan.stop()
        return CommandOutcome(text="Left plan mode.")
    plan.start()
    text = "Plan mode: the agent only reads until you approve its plan. /plan approves it or leaves plan mode."
    return CommandOutcome(prompt=args[0]) if args else CommandOutcome(text=text)


COMMANDS = (
    Command(
        name="plan",
        help="Let the agent plan without changing anything, until you approve",
        run=_run_plan,
        arguments=(Argument(name="TASK", rest=True),),
    ),
)
