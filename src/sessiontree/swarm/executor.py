"""The executor interface: where the jobs of a swarm's agents run. `LocalExecutor` runs them in this process.

A job is a plain value that can be sent to another process. Executors return no result: the outcome of a job is written
to the session.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from msgspec import Struct


class SwarmJob(Struct, frozen=True, kw_only=True):
    """One run of an agent, until it completes, fails or has to wait."""

    session: str
    """The session's id."""
    swarm: str
    agent: str
    prompt: str
    """The prompt, for an agent that has not started yet."""
    model: str | None = None
    may_split: bool = False
    """Whether the agent may delegate parts of its task to other agents."""


RunJob: TypeAlias = Callable[[SwarmJob], Awaitable[None]]


class Executor(Protocol):
    """Runs the jobs of a swarm's agents."""

    async def run(self, job: SwarmJob, run_locally: RunJob) -> None:
        """Run a job and return when it is over. Cancelling this coroutine cancels the job.

        `run_locally` runs the job in this process. To run it in another process, open the swarm there with
        `Swarm.open(session, job.swarm)` and call its `run_job`. A job may run twice: finished work is found in the
        session and not repeated.
        """
        ...

    def hand_over(self, swarm: str) -> None:
        """Another process runs this swarm now: do not cancel its jobs when they are cancelled here."""
        ...


class LocalExecutor:
    """Runs jobs in the event loop of this process."""

    async def run(self, job: SwarmJob, run_locally: RunJob) -> None:
        await run_locally(job)

    def hand_over(self, swarm: str) -> None:
        pass  # `AgentRunner.hand_over` stops the agents of this process
