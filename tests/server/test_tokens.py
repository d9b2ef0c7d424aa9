"""Tokens: created, stored as hashes, found, and revoked at once."""

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
from sessiontree.home import get_home
from sessiontree.server.auth import Token, TokenStore, get_address_path, issue_token, list_server_addresses


def get_tokens_path() -> Path:
    return Path(get_home(), "tokens.json")


def test_a_token_has_256_random_bits_and_no_two_are_the_same() -> None:
    secrets = {issue_token(["read"]).secret for _ in range(100)}

    assert len(secrets) == 100
    assert all(len(secret) >= 46 and secret.startswith("st_") for secret in secrets)


def test_the_tokens_file_contains_no_secrets() -> None:
    made = issue_token(["read", "write"], ["/project"])
    TokenStore().add(made.token)

    assert made.secret not in get_tokens_path().read_text()
    assert stat.S_IMODE(get_tokens_path().stat().st_mode) == 0o600
    assert stat.S_IMODE(get_tokens_path().parent.stat().st_mode) == 0o700


def test_a_token_is_found_only_by_its_secret() -> None:
    made = issue_token(["read"])
    tokens = TokenStore()
    tokens.add(made.token)

    assert tokens.find(made.secret) == made.token
    for wrong in (made.token.hash, made.token.id, made.secret[:-1], made.secret + "x", "", "\ud800"):
        assert tokens.find(wrong) is None


def test_tokens_changed_by_other_processes_apply_at_once() -> None:
    watching, made = TokenStore(), issue_token(["read"])
    assert watching.find(made.secret) is None

    TokenStore().add(made.token)
    assert watching.find(made.secret) == made.token
    assert watching.is_valid(made.token)

    TokenStore().revoke(made.token.id)
    assert watching.find(made.secret) is None
    assert not watching.is_valid(made.token)


def test_concurrent_token_changes_are_all_kept() -> None:
    """Each thread has its own lock descriptor, like a process."""
    revoked = [issue_token(["read"]).token for _ in range(15)]
    added = [issue_token(["read"]).token for _ in range(30)]
    for token in revoked:
        TokenStore().add(token)
    start = threading.Barrier(3)

    def change(deeds: list[Callable[[], object]]) -> None:
        start.wait()
        for deed in deeds:
            deed()

    with ThreadPoolExecutor(3) as pool:
        done = [
            pool.submit(change, [partial(TokenStore().add, token) for token in added[:15]]),
            pool.submit(change, [partial(TokenStore().add, token) for token in added[15:]]),
            pool.submit(change, [partial(TokenStore().revoke, token.id) for token in revoked]),
        ]
        for one in done:
            one.result()

    assert set(TokenStore().read_stored()) == set(added)


def test_the_token_of_a_server_is_not_stored() -> None:
    made = issue_token(["read"])

    assert TokenStore([made.token]).find(made.secret) == made.token
    assert TokenStore().find(made.secret) is None
    assert not get_tokens_path().exists()


def test_revoking_an_unknown_token_is_an_error() -> None:
    with pytest.raises(NotFound):
        TokenStore().revoke("nothing")


def test_an_unreadable_tokens_file_is_an_error() -> None:
    get_tokens_path().parent.mkdir(parents=True)
    get_tokens_path().write_bytes(b"{")

    with pytest.raises(StoreError, match="cannot read the tokens"):
        TokenStore().find("x")


def test_a_token_needs_a_scope() -> None:
    with pytest.raises(InvalidOperation, match="scope"):
        issue_token([])


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
def test_a_token_sees_its_projects_and_their_subfolders(cwd: str, sees: bool) -> None:
    token = Token(id="x", hash="", scopes=("read",), projects=("/a/project",))

    assert token.can_see(cwd) is sees
    assert Token(id="x", hash="", scopes=("read",)).can_see(cwd)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_the_tokens_file_and_its_folder_are_private_with_any_umask(umask: int) -> None:
    before = os.umask(umask)
    try:
        TokenStore().add(issue_token(["read"]).token)
    finally:
        os.umask(before)

    assert stat.S_IMODE(get_tokens_path().stat().st_mode) == 0o600
    assert stat.S_IMODE(get_tokens_path().parent.stat().st_mode) == 0o700


def test_an_address_that_is_not_a_regular_file_is_ignored() -> None:
    os.makedirs(get_home(), exist_ok=True)
    os.mkfifo(get_address_path(1))
    for port, content in ((2, b"\xff"), (3, b"http://127.0.0.1:3\n")):
        with open(get_address_path(port), "wb") as file:
            file.write(content)

    with open(get_address_path(2)) as odd, open(get_address_path(3)) as living:
        for file in (odd, living):  # like a running server
            fcntl.flock(file, fcntl.LOCK_EX)
        assert list_server_addresses() == ["http://127.0.0.1:3"]
