"""Writers of a session in a database. These processes report acknowledged entries. Run by `test_postgres`."""

from __future__ import annotations

import os
import time
from multiprocessing.connection import Connection

import psycopg  # noqa: F401 - imported before the children are forked

import sessiontree as st
from sessiontree.session.entry_builder import Item
from sessiontree.store.postgres.store import PostgresStore


def write(address: str, name: str, count: int, patience: float, acks: Connection) -> None:
    """Append to a private branch and to a shared one, and report the id of each acknowledged entry."""
    os.environ.pop("SESSIONTREE_STORE", None)
    session: st.Session | None = None
    for number in range(count):
        own = number % 3 > 0
        id = f"{name}-{number}"
        while True:
            try:
                if session is None:
                    session = open_with_retry(address, patience)
                    if name not in session.heads.heads:
                        session.create_branch(name, at="main", current=False)
                if id not in session.tree:
                    branch = name if own else "main"
                    session.extend([Item(st.user(f"{id} says something"), id=id)], branch=branch)
                break
            except (st.BranchMoved, st.InvalidOperation):
                continue  # another writer was first, or our own append whose response was lost
            except st.StoreError:
                session = None  # the test checks the stored entries
        os.write(acks.fileno(), f"{id}\n".encode())


def open_with_retry(address: str, patience: float) -> st.Session:
    store = PostgresStore(address)
    store.database.retry_seconds = patience
    return st.Session(store)


def write_until(url: str, address: str, name: str, stop_file: str, acks: Connection) -> None:
    """Append to a private branch until a file exists, and report each acknowledged entry. Errors end it."""
    os.environ["SESSIONTREE_STORE"] = url
    session = st.open(address)
    session.create_branch(name, at="main", current=False)
    number = 0
    while not os.path.exists(stop_file):
        try:
            entry = session.append(st.user(f"{name} says {number}"), branch=name)
        except st.OutcomeUnknown:
            for entry in session.refresh():
                if entry.branch == name:
                    os.write(acks.fileno(), f"{entry.id}\n".encode())
        else:
            os.write(acks.fileno(), f"{entry.id}\n".encode())
        number += 1
        time.sleep(0.05)
