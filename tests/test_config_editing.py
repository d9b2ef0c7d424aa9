"""Changing `config.toml` as text: one setting changes, and everything else stays as it is."""

from pathlib import Path

import pytest

from sessiontree.config import ConfigError, load_config
from sessiontree.config_editing import set_setting


@pytest.fixture
def file(home: Path) -> Path:
    folder = home / ".sessiontree"
    folder.mkdir(parents=True)
    return folder / "config.toml"


def test_the_first_setting_creates_the_file(file: Path) -> None:
    set_setting(("servers", "lab", "base_url"), "http://127.0.0.1:8000/v1")
    set_setting(("thinking",), "low")

    assert load_config().servers["lab"].base_url == "http://127.0.0.1:8000/v1"
    assert load_config().thinking == "low"


def test_comments_order_and_other_settings_stay(file: Path) -> None:
    text = """\
# mine
thinking = "low"  # enough

[keys]
unfold = "ctrl+e"

[models."a:b"]
context_window = 10 # small
"""
    file.write_text(text)

    set_setting(("thinking",), "high")
    set_setting(("double_escape",), "fork")
    set_setting(("keys", "browse"), [])
    set_setting(("models", "a:b", "context_window"), 20)

    changed = text.replace('"low"', '"high"').replace("10", "20").replace('"ctrl+e"\n', '"ctrl+e"\nbrowse = []\n')
    assert file.read_text() == changed.replace("# enough\n", '# enough\ndouble_escape = "fork"\n')


def test_a_file_without_a_final_newline_is_extended(file: Path) -> None:
    file.write_text("[files]\nsnapshots = true")

    set_setting(("files", "max_files"), 5)
    set_setting(("model",), "openai")

    assert (load_config().files.max_files, load_config().model) == (5, "openai")


def test_an_invalid_value_is_refused_and_nothing_is_written(file: Path) -> None:
    file.write_text('thinking = "low"\n')

    with pytest.raises(ConfigError, match="choose one of"):
        set_setting(("thinking",), "loud")
    assert file.read_text() == 'thinking = "low"\n'


def test_a_setting_that_is_written_in_another_way_is_left_to_the_user(file: Path) -> None:
    text = "files = { snapshots = true }\n"
    file.write_text(text)

    with pytest.raises(ConfigError):
        set_setting(("files", "snapshots"), False)
    assert file.read_text() == text


def test_a_link_to_the_file_stays_a_link(file: Path, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.toml"
    real.write_text("")
    file.symlink_to(real)

    set_setting(("thinking",), "low")

    assert file.is_symlink()
    assert real.read_text() == 'thinking = "low"\n'
