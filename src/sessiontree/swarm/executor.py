"""The executor: where the work of agents is carried out. This is the seam: here it is this process.

What an executor is given is a plain value, so that it can be sent to another process. What came of it is not returned:
it stands in the session, where whoever asked for it looks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from msgspec import Struct


class SwarmJob(Struct, frozen=True, kw_only=True):
    """A stretch of an agent's work: until it is done, fails, or has to wait."""

    session: str
    """The session's id."""
    swarm: str
    agent: str
    prompt: str
    """What the agent is told, if it has not been told yet."""
    model: str | None = None
    may_split: bool = False
    """Whether the agent may have parts of its task done by others."""


RunJob: TypeAlias = Callable[[SwarmJob], Awaitable[None]]


class Executor(Protocol):
    async def run(self, job: SwarmJob, run_locally: RunJob) -> None:
        """Have the work carried out, and return when that is over. Cancelling it gives the work up.

        `carry_out` does it in this process; another one opens the swarm, `Swarm.open(session, work.swarm)`, and calls
        its `carry_out`. Work that was carried out before is found done in the session, so it may be run again.
        """
        ...

    def hand_over(self, swarm: str) -> None:
        """Another process works on this swarm now: when its work is cancelled here, it is not given up."""
        ...


class LocalExecutor:
    """Carries out work in this process, beside all else in its event loop."""

    async def run(self, job: SwarmJob, run_locally: RunJob) -> None:
        await run_locally(job)

    def hand_over(self, swarm: str) -> None:
        pass  # agents of this process see to it themselves
