"""Tokens: made, kept by their hash, found, and revoked at once."""

from __future__ import annotations

import fcntl
import os
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from sessiontree.errors import InvalidOperation, NotFound, StoreError
from sessiontree.home import home
from sessiontree.web.tokens import Token, Tokens, address_file, addresses, make


def kept() -> Path:
    return Path(home(), "tokens.json")


def test_a_token_has_256_random_bits_and_no_two_are_the_same() -> None:
    secrets = {make(["read"]).secret for _ in range(100)}

    assert len(secrets) == 100
    assert all(len(secret) >= 46 and secret.startswith("st_") for secret in secrets)


def test_the_file_of_tokens_lets_nobody_in() -> None:
    made = make(["read", "write"], ["/project"])
    Tokens().add(made.token)

    assert made.secret not in kept().read_text()
    assert stat.S_IMODE(kept().stat().st_mode) == 0o600
    assert stat.S_IMODE(kept().parent.stat().st_mode) == 0o700


def test_a_token_is_found_by_its_secret_alone() -> None:
    made = make(["read"])
    tokens = Tokens()
    tokens.add(made.token)

    assert tokens.find(made.secret) == made.token
    for wrong in (made.token.hash, made.token.id, made.secret[:-1], made.secret + "x", "", "\ud800"):
        assert tokens.find(wrong) is None


def test_what_others_add_and_revoke_is_noticed_at_once() -> None:
    watching, made = Tokens(), make(["read"])
    assert watching.find(made.secret) is None

    Tokens().add(made.token)
    assert watching.find(made.secret) == made.token
    assert watching.has(made.token)

    Tokens().revoke(made.token.id)
    assert watching.find(made.secret) is None
    assert not watching.has(made.token)


def test_of_many_who_change_the_tokens_at_once_none_undoes_another() -> None:
    """Each has its own descriptor of the lock, as processes have."""
    revoked = [make(["read"]).token for _ in range(15)]
    added = [make(["read"]).token for _ in range(30)]
    for token in revoked:
        Tokens().add(token)
    start = threading.Barrier(3)

    def change(deeds: list[Callable[[], object]]) -> None:
        start.wait()
        for deed in deeds:
            deed()

    with ThreadPoolExecutor(3) as pool:
        done = [
            pool.submit(change, [partial(Tokens().add, token) for token in added[:15]]),
            pool.submit(change, [partial(Tokens().add, token) for token in added[15:]]),
            pool.submit(change, [partial(Tokens().revoke, token.id) for token in revoked]),
        ]
        for one in done:
            one.result()

    assert set(Tokens().kept()) == set(added)


def test_a_servers_own_token_is_in_no_file() -> None:
    made = make(["read"])

    assert Tokens([made.token]).find(made.secret) == made.token
    assert Tokens().find(made.secret) is None
    assert not kept().exists()


def test_revoking_what_is_not_there_says_so() -> None:
    with pytest.raises(NotFound):
        Tokens().revoke("nothing")


def test_a_file_that_does_not_tell_is_an_error_and_not_no_tokens() -> None:
    kept().parent.mkdir(parents=True)
    kept().write_bytes(b"{")

    with pytest.raises(StoreError, match="which tokens"):
        Tokens().find("x")


def test_a_token_needs_a_scope() -> None:
    with pytest.raises(InvalidOperation, match="scope"):
        make([])


@pytest.mark.parametrize(
    ("cwd", "sees"),
    [
        ("/a/project", True),
        ("/a/project/", True),
        ("/a/project/inner", True),
        ("/a/project-2", False),
        ("/a", False),
        ("/a/project/../other", False),
        ("", False),
        ("project", False),
    ],
)
def test_a_token_sees_its_projects_and_what_is_below_them(cwd: str, sees: bool) -> None:
    token = Token(id="x", hash="", scopes=("read",), projects=("/a/project",))

    assert token.sees(cwd) is sees
    assert Token(id="x", hash="", scopes=("read",)).sees(cwd)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_the_file_of_tokens_and_its_folder_are_the_users_alone_whatever_the_umask(umask: int) -> None:
    before = os.umask(umask)
    try:
        Tokens().add(make(["read"]).token)
    finally:
        os.umask(before)

    assert stat.S_IMODE(kept().stat().st_mode) == 0o600
    assert stat.S_IMODE(kept().parent.stat().st_mode) == 0o700


def test_what_is_no_file_with_an_address_is_not_waited_for() -> None:
    os.makedirs(home(), exist_ok=True)
    os.mkfifo(address_file(1))
    for port, content in ((2, b"\xff"), (3, b"http://127.0.0.1:3\n")):
        with open(address_file(port), "wb") as file:
            file.write(content)

    with open(address_file(2)) as odd, open(address_file(3)) as living:
        for file in (odd, living):  # as a server does that runs
            fcntl.flock(file, fcntl.LOCK_EX)
        assert addresses() == ["http://127.0.0.1:3"]
