"""Durable swarms: agents at work in other processes, on this machine or others, that may die. The one place with DBOS.

database   which database the work is in, SQLite or PostgreSQL, and how it is reached
roster     which workers there are, what they do, and which of them are dead
order      a piece of work as it is sent, and what comes back
once       a session in which nothing is written twice
steps      answers of models, kept before they are written, so that no model is asked twice
relay      events of agents on other machines, from what they have written
executor   the side of the swarm: sends work, and waits for it
worker     the side of the worker: takes work, and carries it out

What was done is in the session, as ever; what is here only bridges the time until it is written there.
"""

from __future__ import annotations

from sessiontree.errors import InvalidOperation


def check_not_with_workers(swarm: str, name: str) -> None:
    """Raises `InvalidOperation` where agents of a swarm, by its id, are with workers: two would do the same work."""
    try:
        from sessiontree.swarm.durable.executor import has_active_jobs
    except ModuleNotFoundError:  # without DBOS there are no workers
        return
    if has_active_jobs(swarm):
        command = f"sessiontree swarm resume {name} --durable"
        raise InvalidOperation(f"workers have agents of swarm {name}: `{command}` goes on with it, or stop it")
