"""The configuration: what a file says, what holds without one, and what a wrong one is told."""

from pathlib import Path

import pytest

from sessiontree import config
from sessiontree.config import CompactionSettings, Config, ConfigError, ModelSettings, Prices

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


def written(home: Path, text: str) -> Path:
    file = home / ".sessiontree" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return file


def test_without_a_file_the_defaults_hold() -> None:
    assert config.load() == Config()
    assert config.load().sessions is None


def test_every_setting_is_read(home: Path) -> None:
    written(home, WHOLE)

    loaded = config.load()

    assert loaded.sessions == str(home / "talks")
    assert (loaded.model, loaded.thinking, loaded.double_escape) == ("openai:gpt-5", "high", "fork")
    assert loaded.compaction == CompactionSettings(reserve_tokens=9000)
    assert loaded.summary.skip_prompt
    assert (loaded.retry.attempts, loaded.retry.base_delay) == (2, 0.5)
    assert loaded.keys == {"quit": "ctrl+q", "submit": ["enter", "ctrl+j"]}
    settings = loaded.model_settings("vllm:qwen")
    assert (settings.base_url, settings.key_variable) == ("http://127.0.0.1:9000/v1", "QWEN_KEY")
    assert (settings.context_window, settings.output_limit, settings.images) == (4096, 1024, True)
    assert settings.prices == Prices(input=1, output=2.5)


def test_a_model_may_have_its_own_compaction_and_shares_the_rest(home: Path) -> None:
    written(home, WHOLE)

    loaded = config.load()

    assert loaded.compaction_of("vllm:qwen") == CompactionSettings(enabled=False, reserve_tokens=9000)
    assert loaded.compaction_of("another:model") == loaded.compaction
    assert loaded.model_settings("another:model") == ModelSettings()


def test_a_folder_of_sessions_is_relative_to_the_file(home: Path) -> None:
    file = written(home, 'sessions = "talks"')

    assert config.load().sessions == str(file.parent / "talks")


@pytest.mark.parametrize(
    ("text", "key", "reason"),
    [
        ("modl = 1", "modl", "there is no such setting"),
        ("[compaction]\nreserve = 1", "compaction.reserve", "there is no such setting"),
        ("[compaction]\nreserve_tokens = 0", "compaction.reserve_tokens", "expected int >= 1"),
        ('[models."a:b"]\nurl = "x"', 'models."a:b".url', "there is no such setting"),
        ('[models."a:b".prices]\ninput = "x"', 'models."a:b".prices.input', "expected float, got str"),
        ('[models."a:b"]\nbase_url = "localhost"', 'models."a:b".base_url', "expected str matching regex '^https?://'"),
        ('[models."a:b"]\nthinking = "x"', 'models."a:b".thinking', "expected bool | null, got str"),
        ("[models.gpt]", 'models."gpt"', "a model is named provider:model"),
        ("models = 1", "models", "expected object, got int"),
        ("[keys]\nquit = 1", 'keys."quit"', "expected str | array, got int"),
        ('double_escape = "x"', "double_escape", "choose one of tree, fork, none"),
        ('thinking = "much"', "thinking", "choose one of off, minimal, low, medium, high, xhigh"),
        ("[retry]\nbase_delay = nan", "retry.base_delay", "expected float >= 0.0"),
    ],
)
def test_a_wrong_setting_is_told_with_its_file_and_key(home: Path, text: str, key: str, reason: str) -> None:
    file = written(home, text)

    with pytest.raises(ConfigError) as caught:
        config.load()

    assert (caught.value.file, caught.value.key, caught.value.reason) == (str(file), key, reason)
    assert str(caught.value) == f"{file}: {key}: {reason}"


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"a = = 1", "it is no TOML: Invalid value"),
        (b'a = "\xff"', "it is no UTF-8"),
        (b"a = " + b"[" * 9000, "nested"),
    ],
)
def test_a_file_that_is_no_toml_is_told_as_a_whole(home: Path, raw: bytes, reason: str) -> None:
    written(home, "").write_bytes(raw)

    with pytest.raises(ConfigError, match=reason) as caught:
        config.load()

    assert caught.value.key is None


def test_a_file_that_cannot_be_read_is_no_missing_file(home: Path) -> None:
    (home / ".sessiontree" / "config.toml").mkdir(parents=True)

    with pytest.raises(ConfigError, match="it cannot be read: Is a directory"):
        config.load()
