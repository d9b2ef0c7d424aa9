"""Durable swarms: agents run in worker processes, on this machine or others, and survive crashes.

database         the SQLite or PostgreSQL database, and its tables
job_queue        jobs, stored answers and workers in that database
provider_limits  limits of providers that all workers share
exactly_once     a session that never writes an entry twice, and a store for model answers that are not written yet
executor         the swarm's side: sends jobs to workers and waits for them
worker           the worker's side: takes jobs and runs them

Results are in the session. The database only bridges the time until they are written there.
"""

from __future__ import annotations

from sessiontree.errors import InvalidOperation


def check_not_with_workers(swarm: str, name: str) -> None:
    """Raise `InvalidOperation` if workers run agents of the swarm with this id, which must not run twice."""
    from sessiontree.swarm.durable.executor import has_active_jobs

    if has_active_jobs(swarm):
        command = f"sessiontree swarm resume {name} --durable"
        raise InvalidOperation(f"workers are running agents of swarm {name}; resume it with `{command}`, or stop it")
