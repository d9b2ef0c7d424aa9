"""The `models` commands."""

import json
import os
from pathlib import Path

import pytest

from sessiontree.model import local_model
from tests.cli.conftest import Run, run_process
from tests.model.fake_server import FakeServer
from tests.model.test_selection import remove_all_models  # noqa: F401 - a fixture that is always used


def test_without_configuration_the_list_explains_what_each_model_needs(cli: Run) -> None:
    lines = cli("models").splitlines()

    assert lines[0].split() == ["model", "reason"]
    assert any(
        line.startswith("-  anthropic:claude-sonnet-5-5") and line.endswith("ANTHROPIC_API_KEY is not set")
        for line in lines
    )
    assert any("no server answers at http://127.0.0.1:" in line for line in lines)
    assert not any(line.startswith("*  ") for line in lines)


def test_usable_models_come_first_and_the_default_is_marked(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeServer(models=["llama3.2"]) as server:
        monkeypatch.setenv("OLLAMA_HOST", f"127.0.0.1:{server.port}")
        monkeypatch.setenv("OPENAI_API_KEY", "x")

        first, second, third, *_ = cli("models").splitlines()[1:]

    assert first.split() == ["*", "openai:gpt-5.5", "OPENAI_API_KEY", "is", "set"]
    assert second.split()[:2] == ["ollama:llama3.2", "served"]
    assert third.startswith("-  ")


def test_an_unavailable_default_has_both_marks(cli: Run, home: Path) -> None:
    (home / ".sessiontree").mkdir(parents=True)
    (home / ".sessiontree" / "config.toml").write_text('model = "openai:gpt-5.5"')

    assert any(line.split()[:2] == ["*-", "openai:gpt-5.5"] for line in cli("models").splitlines())


def test_the_list_is_an_object_in_json(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROQ_API_KEY", "x")

    result = json.loads(cli("models", "--json"))

    assert result["default"] == "groq:openai/gpt-oss-120b"
    assert result["models"][0] == {"name": result["default"], "usable": True, "reason": "GROQ_API_KEY is set"}
    assert {model["usable"] for model in result["models"][1:]} == {False}


def test_model_names_of_a_server_cannot_control_the_terminal(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeServer(models=["a\x1b[2Jb"]) as server:
        monkeypatch.setenv("OLLAMA_HOST", f"127.0.0.1:{server.port}")

        assert "\x1b" not in cli("models", "--json") + cli("models")


def test_an_invalid_configuration_is_reported_on_one_line(fails: Run, home: Path) -> None:
    (home / ".sessiontree").mkdir(parents=True)
    (home / ".sessiontree" / "config.toml").write_text("modl = 1")

    assert "config.toml: modl: unknown setting" in fails("models")


def test_get_prints_the_path_of_a_downloaded_model(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    file = Path(local_model.get_weights_path())
    file.parent.mkdir(parents=True)
    file.write_bytes(b"x")
    monkeypatch.setattr(local_model, "SIZE", 1)

    assert cli("models", "get", "local") == f"local:smollm2-135m {file}\n"
    assert json.loads(cli("models", "get", "local", "--json")) == {"model": "local:smollm2-135m", "file": str(file)}


def test_get_without_a_network_is_reported_on_one_line(
    fails: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)

    assert "its weights cannot be downloaded: " in fails("models", "get", "local")


def test_other_models_cannot_be_downloaded(fails: Run) -> None:
    assert "is not one of 'local'" in fails("models", "get", "gpt-5", code=2)


def test_the_list_does_not_import_the_model_adapter() -> None:
    done = run_process("models", env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1"})

    assert done.returncode == 0
    assert "sessiontree.model.selection" in done.stderr
    assert "pydantic_ai" not in done.stderr
    assert "xllamacpp" not in done.stderr
