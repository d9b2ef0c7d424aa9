"""The configuration: reading the file, defaults, and errors."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sessiontree import config
from sessiontree.config import CompactionSettings, Config, ConfigError, ModelSettings, Prices
from sessiontree.model.providers import PROVIDERS, Provider

WHOLE = """
sessions = "~/talks"
model = "openai:gpt-5"
thinking = "high"
double_escape = "fork"

[compaction]
reserve_tokens = 9000

[summary]
skip_prompt = true

[retry]
attempts = 2
base_delay = 0.5

[models."vllm:qwen"]
base_url = "http://127.0.0.1:9000/v1"
key_variable = "QWEN_KEY"
context_window = 4096
output_limit = 1024
images = true
prices = { input = 1, output = 2.5 }
compaction = { enabled = false }

[keys]
quit = "ctrl+q"
submit = ["enter", "ctrl+j"]
"""


def write_config(home: Path, text: str) -> Path:
    file = home / ".sessiontree" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return file


def test_without_a_file_the_defaults_apply() -> None:
    assert config.load_config() == Config()
    assert config.load_config().sessions is None


def test_every_setting_is_read(home: Path) -> None:
    write_config(home, WHOLE)

    loaded = config.load_config()

    assert loaded.sessions == str(home / "talks")
    assert (loaded.model, loaded.thinking, loaded.double_escape) == ("openai:gpt-5", "high", "fork")
    assert loaded.compaction == CompactionSettings(reserve_tokens=9000)
    assert loaded.summary.skip_prompt
    assert (loaded.retry.attempts, loaded.retry.base_delay) == (2, 0.5)
    assert loaded.keys == {"quit": "ctrl+q", "submit": ["enter", "ctrl+j"]}
    settings = loaded.get_model_settings("vllm:qwen")
    assert (settings.base_url, settings.key_variable) == ("http://127.0.0.1:9000/v1", "QWEN_KEY")
    assert (settings.context_window, settings.output_limit, settings.images) == (4096, 1024, True)
    assert settings.prices == Prices(input=1, output=2.5)


def test_a_model_may_have_its_own_compaction_and_shares_the_rest(home: Path) -> None:
    write_config(home, WHOLE)

    loaded = config.load_config()

    assert loaded.get_compaction_settings("vllm:qwen") == CompactionSettings(enabled=False, reserve_tokens=9000)
    assert loaded.get_compaction_settings("another:model") == loaded.compaction
    assert loaded.get_model_settings("another:model") == ModelSettings()


def test_a_folder_of_sessions_is_relative_to_the_file(home: Path) -> None:
    file = write_config(home, 'sessions = "talks"')

    assert config.load_config().sessions == str(file.parent / "talks")


@pytest.mark.parametrize(
    ("text", "key", "reason"),
    [
        ("modl = 1", "modl", "unknown setting"),
        ("[compaction]\nreserve = 1", "compaction.reserve", "unknown setting"),
        ("[compaction]\nreserve_tokens = 0", "compaction.reserve_tokens", "expected int >= 1"),
        ('[models."a:b"]\nurl = "x"', 'models."a:b".url', "unknown setting"),
        ('[models."a:b".prices]\ninput = "x"', 'models."a:b".prices.input', "expected float, got str"),
        ('[models."a:b"]\nbase_url = "localhost"', 'models."a:b".base_url', "expected str matching regex '^https?://'"),
        ('[models."a:b"]\nthinking = "x"', 'models."a:b".thinking', "expected bool | null, got str"),
        ("[models.gpt]", 'models."gpt"', "the name of a model has the form provider:model"),
        ("models = 1", "models", "expected object, got int"),
        ("[keys]\nquit = 1", 'keys."quit"', "expected str | array, got int"),
        ('double_escape = "x"', "double_escape", "choose one of tree, fork, none"),
        ('thinking = "much"', "thinking", "choose one of off, minimal, low, medium, high, xhigh"),
        ("[retry]\nbase_delay = nan", "retry.base_delay", "expected float >= 0.0"),
    ],
)
def test_an_invalid_setting_is_reported_with_its_file_and_key(home: Path, text: str, key: str, reason: str) -> None:
    file = write_config(home, text)

    with pytest.raises(ConfigError) as caught:
        config.load_config()

    assert (caught.value.file, caught.value.key, caught.value.reason) == (str(file), key, reason)
    assert str(caught.value) == f"{file}: {key}: {reason}"


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"a = = 1", "not valid TOML: Invalid value"),
        (b'a = "\xff"', "not valid UTF-8"),
        (b"a = " + b"[" * 9000, "nested"),
    ],
)
def test_a_file_that_is_not_toml_is_reported_as_a_whole(home: Path, raw: bytes, reason: str) -> None:
    write_config(home, "").write_bytes(raw)

    with pytest.raises(ConfigError, match=reason) as caught:
        config.load_config()

    assert caught.value.key is None


def test_an_unreadable_file_is_not_treated_as_missing(home: Path) -> None:
    (home / ".sessiontree" / "config.toml").mkdir(parents=True)

    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        config.load_config()


# The environment of commands


def test_commands_get_the_variables_that_the_file_names(home: Path) -> None:
    write_config(home, '[tools]\nenvironment = ["NODE_ENV", "SSH_AUTH_SOCK"]\n')

    assert config.load_config().tools.environment == ("NODE_ENV", "SSH_AUTH_SOCK")


@pytest.mark.parametrize("provider", PROVIDERS.values(), ids=lambda provider: provider.name)
def test_no_setting_gives_commands_the_key_of_a_provider(provider: Provider, home: Path) -> None:
    for at, name in enumerate(provider.keys):
        folder = home / str(at)
        write_config(folder, f'[tools]\nenvironment = ["{name}"]\n')

        with pytest.raises(ConfigError, match=rf"tools.environment: {name} is never passed to commands: .*provider"):
            config.load_config(folder / ".sessiontree" / "config.toml")


@pytest.mark.parametrize("name", ["QWEN_KEY", "SESSIONTREE_STORE", "PGPASSWORD"])
def test_no_setting_gives_commands_another_secret(name: str, home: Path) -> None:
    write_config(home, f'[tools]\nenvironment = ["{name}"]\n[models."a:b"]\nkey_variable = "QWEN_KEY"\n')

    with pytest.raises(ConfigError, match=f"{name} is never passed to commands"):
        config.load_config()


# Files that are not a configuration


def test_a_fifo_instead_of_the_file_is_refused_without_blocking(home: Path) -> None:
    file = write_config(home, "")
    file.unlink()
    os.mkfifo(file)

    done = subprocess.run(
        [sys.executable, "-c", "from sessiontree import config; config.load_config()"], capture_output=True, timeout=60
    )

    assert b"config.toml: cannot be read: not a regular file" in done.stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('sessions = "\\u0000"', "sessions: must not contain a NUL character"),
        ('sessions = "a\\u0000b"', "sessions: must not contain a NUL character"),
        (f"[retry]\nattempts = {'9' * 10_000}", "not valid TOML: "),
        (f"[retry]\nattempts = {'9' * 4000}", "retry.attempts: "),
        (f"[retry]\nbase_delay = {'9' * 400}", "retry.base_delay: "),
        ("[retry]\nbase_delay = 1e400", "retry.base_delay: "),
        ("[retry]\nbase_delay = nan", "retry.base_delay: "),
        (f"[retry]\nbase_delay = 0x{'f' * 10_000}", "retry.base_delay: "),
        ('[models."a:b"]\nprices = { input = nan }', 'models."a:b".prices.input: '),
        ('[models."a:b"]\nkey_variable = "\\u0000"', 'models."a:b".key_variable: '),
        ('[models."a:b"]\nbase_url = "http://\\u0000"', 'models."a:b".base_url: '),
        ('model = "a:\\u0000"', "model: "),
        ("[retry]\nattempts = 2020-01-01", "retry.attempts: "),
        ('[tools]\nuser = "\\u0000"', "tools.user: "),
        (f"a{'.a' * 20_000} = 1\n", "nested too deeply"),
    ],
)
def test_impossible_values_are_reported_as_errors_of_the_file(text: str, told: str, home: Path) -> None:
    write_config(home, text)

    with pytest.raises(ConfigError, match=f"config.toml: {re.escape(told)}"):
        config.load_config()
