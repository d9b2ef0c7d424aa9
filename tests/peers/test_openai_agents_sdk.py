"""The OpenAI Agents SDK's own tests of sessions, with `TreeSession` in the place of `SQLiteSession`.

Run by `make test-peers`. The tests are in the source distribution of the SDK.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

import pytest

pytestmark = pytest.mark.peers

SCRATCH = Path(__file__).parents[2] / ".peers"
PLUGINS = Path(__file__).parent / "plugins"
SECONDS = 280
TESTS = [
    "tests/memory/test_session.py",
    "tests/memory/test_session_limit.py",
    "tests/memory/test_session_context_wrapper.py",
    "tests/memory/test_openai_responses_compaction_session.py",
    "tests/sandbox/test_memory.py",
    "tests/deferred_session_writes",
    "tests/test_agent_runner.py",
    "tests/test_agent_runner_streamed.py",
    "tests/test_max_turns.py",
    "tests/test_native_tool_failure_history.py",
    "tests/test_programmatic_tool_calling.py",
    "tests/test_run_impl_resume_paths.py",
    "tests/test_soft_cancel.py",
    "tests/test_tool_batch_failure_history.py",
    "tests/test_tool_failure_boundaries.py",
]
"""Every file of its tests that uses `SQLiteSession`, except `FILES_LEFT_OUT`."""
FILES_LEFT_OUT = {
    "tests/extensions/memory/test_advanced_sqlite_session.py": "subclasses SQLiteSession and reads its tables",
    "tests/extensions/memory/test_async_sqlite_session.py": "is about AsyncSQLiteSession",
    "tests/extensions/memory/test_encrypt_session.py": "encrypts items, which docs/adapters/openai-agents.md excludes",
    "tests/memory/test_compaction_model_visibility.py": "encrypts items, and expects a private snapshot",
    "tests/memory/test_compaction_suffix.py": "encrypts items, and expects a private snapshot",
    "tests/tracing/test_import_side_effects.py": "is about what an import of the SDK does",
}
LEFT_OUT = {
    "close_closes_worker_thread_connections": "looks at the connections of SQLite",
    "reaps_connections_from_exited_worker_threads": "looks at the connections of SQLite",
    "closes_retired_connections_before_the_next_allocation": "looks at the connections of SQLite",
    "keeps_connections_of_live_worker_threads": "looks at the connections of SQLite",
    "file_lock_is_shared_across_instances": "looks at the locks of SQLiteSession",
    "closed_rejects_empty_add_items": "expects a RuntimeError with the name SQLiteSession; ours is a UserError",
    "pop_item_skips_corrupt_most_recent": "writes a damaged row into a table",
    "returns_none_after_dropping_only_corrupt_rows": "writes a damaged row into a table",
    "limit_skips_corrupt_newest_rows": "writes a damaged row into a table",
    "session_settings_limit_skips_corrupt_rows": "writes a damaged row into a table",
    "failed_add_items_releases_write_lock": "expects a TypeError, and locks the table",
    "failed_clear_session_rolls_back": "makes statements of SQLite fail",
    "failed_pop_item_releases_write_lock": "makes statements of SQLite fail",
    "rollback_failure_evicts_connection": "makes statements of SQLite fail",
    "close_retries_quarantined_connection": "makes statements of SQLite fail",
    "post_commit_cancellation_propagates": "replaces a private method of SQLiteSession",
    "handoff_resume_after_cancelled_compaction_commits": "replaces a private method of SQLiteSession",
    "settled_pop_failure": "looks at the locks of SQLiteSession",
    "settled_clear_failure": "looks at the locks of SQLiteSession",
    "rollback_does_not_revive_items_expired": "encrypts items, which docs/adapters/openai-agents.md excludes",
    "rollback_budget[True]": "expects the private snapshot of SQLiteSession, which has no limit",
    "pep695": "needs the syntax of Python 3.12",
}
"""The tests that look inside of `SQLiteSession`, and why they cannot be about another session."""


@pytest.fixture(scope="module")
def source() -> Path:
    """The source distribution of the installed SDK, fetched once."""
    name = f"openai_agents-{version('openai-agents')}"
    final = SCRATCH / name
    if not final.is_dir():
        SCRATCH.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=SCRATCH) as work:
            options = [
                "--no-deps",
                "--no-binary",
                ":all:",
                "--dest",
                work,
                f"openai-agents=={version('openai-agents')}",
            ]
            done = subprocess.run(
                [sys.executable, "-m", "pip", "download", "--quiet", *options], capture_output=True, check=False
            )
            if done.returncode != 0:
                lacking = pytest.fail if os.environ.get("CI") else pytest.skip
                lacking("The source distribution of the OpenAI Agents SDK could not be fetched.")
            with tarfile.open(Path(work) / f"{name}.tar.gz") as archive:
                archive.extractall(work, filter="data")
            (Path(work) / name).rename(final)
    return final


def test_no_file_that_uses_the_session_is_forgotten(source: Path) -> None:
    files = (source / "tests").rglob("*.py")
    using = {str(file.relative_to(source)) for file in files if "SQLiteSession" in file.read_text()}

    covered = {file for file in using if any(file.startswith(tests) for tests in TESTS)}
    assert using - covered == set(FILES_LEFT_OUT)


@pytest.mark.parametrize("tests", TESTS)
def test_the_tests_of_the_sdk_pass_with_our_session(tests: str, source: Path, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(PLUGINS), "TMPDIR": str(tmp_path)}
    left_out = f"not ({' or '.join(LEFT_OUT)})"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tree_sessions", "-p", "no:cacheprovider", "-k", left_out]

    done = subprocess.run(
        [*command, tests], cwd=source, env=env, capture_output=True, text=True, timeout=SECONDS, check=False
    )

    assert done.returncode == 0, done.stdout[-4000:]
    assert re.search(r"\d+ passed", done.stdout)
    assert "skipped" not in done.stdout
