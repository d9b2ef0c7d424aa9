"""Sandboxes: keep commands of agents from reading the secrets of the server, in files or in the environment.

There are two kinds. Bubblewrap (`bwrap`) gives a command its own view of the file system and of processes. If the
server runs as root, commands can run as another user who cannot read its files. Each kind is tested before it is used:
it may be installed and not work. With or without a sandbox, commands get no variables with API keys and passwords: the
output of commands goes to the session and to the model.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec import json as msgspec_json

import sessiontree
from sessiontree.config import Config
from sessiontree.errors import SessionTreeError
from sessiontree.home import get_home, is_below
from sessiontree.library.session_files import get_sessions_folder

BWRAP = "bwrap"
PROBE_TIMEOUT = 20.0
"""How long the test of a sandbox may take, in seconds."""
SOCKET_FOLDERS = ("/run", "/var/run")
"""Folders with sockets of programs that could read files for a command, such as container engines."""
REQUIRED_FOLDERS = ("/run/systemd/resolve",)
"""Parts of these folders that name resolution needs."""


class SandboxUnavailable(SessionTreeError):
    """No sandbox works on this machine."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"cannot run commands in a sandbox: {reason}. Install bubblewrap (`bwrap`), or run the server as root and "
            "set a user for commands in config.toml: [tools] user"
        )
        self.reason = reason


class ProcessSpec(NamedTuple):
    """How to start a process."""

    arguments: list[str]
    environment: dict[str, str]
    cwd: str
    options: dict[str, Any]
    """For `subprocess`."""


class Confinement(Struct, frozen=True, kw_only=True):
    """What the tools of an agent can access."""

    folder: str
    """The real path of the project, or of the private folder of the branch; commands can write there."""
    is_limited: bool
    """Whether tools are limited to the folder: other files are read-only for commands and hidden from file tools.
    Otherwise only the secrets are hidden."""
    hidden: tuple[str, ...]
    """Folders and files that tools cannot read."""
    user: str | None = None
    """Run commands as this user; `None` uses bubblewrap."""

    def wrap_command(self, arguments: Sequence[str], environment: Mapping[str, str], cwd: str) -> ProcessSpec:
        """Return how to start a program in the sandbox."""
        if self.user is not None:
            return _build_user_command(self.user, arguments, environment, cwd)
        at = cwd if os.path.isdir(cwd) else self.folder
        variables = dict(environment)
        if self.is_limited:
            variables["TMPDIR"] = "/tmp"
        return ProcessSpec([*self._build_bwrap_command(), "--chdir", at, "--", *arguments], variables, "/", {})

    def _build_bwrap_command(self) -> list[str]:
        command = [shutil.which(BWRAP) or BWRAP, "--die-with-parent", "--unshare-pid", "--unshare-ipc"]
        mounts: list[tuple[str, list[str]]] = [(path, _build_hiding_mount(path)) for path in self.hidden]
        if self.is_limited:
            # Root keeps its capabilities in a sandbox unless they are dropped.
            command += ["--cap-drop", "ALL", "--ro-bind", "/", "/", "--dev", "/dev"]
            mounts += [("/tmp", ["--tmpfs", "/tmp"])]
            mounts += [(path, ["--tmpfs", path]) for path in SOCKET_FOLDERS if os.path.realpath(path) == path]
            mounts += [(path, ["--ro-bind", path, path]) for path in REQUIRED_FOLDERS if os.path.isdir(path)]
            mounts += [
                (path, ["--ro-bind", path, path]) for path in _find_own_code() if path.startswith(("/tmp/", "/run/"))
            ]
        else:
            command += ["--cap-drop", "CAP_SYS_ADMIN", "--cap-drop", "CAP_SYS_PTRACE", "--bind", "/", "/"]
            command += ["--dev-bind", "/dev", "/dev"]
        if self.is_limited or any(is_below(self.folder, path) for path in self.hidden):  # a private folder is hidden
            mounts += [(self.folder, ["--bind", self.folder, self.folder])]
        command += ["--proc", "/proc"]
        if os.geteuid() == 0:  # root could change kernel settings here
            command += ["--ro-bind", "/proc/sys", "/proc/sys"]
        # Mount outer folders first; inner mounts would be hidden otherwise.
        for _, mount in sorted(mounts, key=lambda item: item[0].count(os.sep) if item[0] != os.sep else 0):
            command += mount
        return command


def confine(folder: str, *, limited: bool, user: str | None = None) -> Confinement:
    """Return the confinement for tools in `folder`. Raises `SandboxUnavailable`."""
    real = os.path.realpath(folder)
    if not os.path.isdir(real):
        raise SandboxUnavailable(f"folder {folder} not found")
    if any(is_below(real, path) for path in _list_protected_paths()):
        raise SandboxUnavailable(f"{folder} belongs to sessiontree; choose another folder")
    found = find_sandbox(user)
    return Confinement(folder=real, is_limited=limited, hidden=find_secret_paths(), user=found)


def find_secret_paths() -> tuple[str, ...]:
    """Return the paths that tools of the server must not read: its home, its sessions, passwords of databases."""
    return tuple(path for path in _list_protected_paths() if os.path.exists(path))


def _list_protected_paths() -> list[str]:
    files = (os.environ.get("PGPASSFILE"), os.environ.get("PGSERVICEFILE"), "~/.pgpass", "~/.pg_service.conf")
    paths = [get_home(), get_sessions_folder(), *(os.path.expanduser(file) for file in files if file)]
    return list(dict.fromkeys(map(os.path.realpath, paths)))


def find_sandbox(user: str | None = None) -> str | None:
    """Return the user that commands run as, or `None` for bubblewrap. Raises `SandboxUnavailable`."""
    if user is not None:
        _try_user(user, get_home())
        return user
    _try_bwrap(shutil.which(BWRAP))
    return None


# Tests of sandboxes


@lru_cache(maxsize=8)
def _try_bwrap(program: str | None) -> None:
    """Raise `SandboxUnavailable` unless bubblewrap hides a file and this process from a command."""
    if program is None:
        raise SandboxUnavailable("bubblewrap is not installed")
    with tempfile.TemporaryDirectory(prefix="sessiontree-") as scratch:
        scratch = os.path.realpath(scratch)
        project, secrets = os.path.join(scratch, "project"), os.path.join(scratch, "secrets")
        os.mkdir(project)
        os.mkdir(secrets)
        with open(os.path.join(secrets, "secret"), "w") as file:
            file.write("secret")
        confinement = Confinement(folder=project, is_limited=True, hidden=(secrets,))
        script = 'echo works >worked; cat "$1/secret" 2>&1 || cat "/proc/$2/environ" 2>&1 && echo leaks >leaked; true'
        started = confinement.wrap_command(
            ["/bin/sh", "-c", script, "sh", secrets, str(os.getpid())], {"PATH": os.defpath}, confinement.folder
        )
        done = _run_probe(started, "bubblewrap does not work here")
        if done.returncode or not os.path.exists(os.path.join(project, "worked")):
            detail = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise SandboxUnavailable(
                f"bubblewrap does not work here: {detail or f'it ended with code {done.returncode}'}"
            )
        if os.path.exists(os.path.join(project, "leaked")):
            raise SandboxUnavailable("bubblewrap does not hide files here")


@lru_cache(maxsize=8)
def _try_user(user: str, secrets: str) -> None:
    """Raise `SandboxUnavailable` unless commands can run as `user` without access to the home and this process."""
    if os.geteuid() != 0:
        raise SandboxUnavailable(f"commands can run as {user} only if the server runs as root")
    try:
        found = pwd.getpwnam(user)
    except KeyError:
        raise SandboxUnavailable(f"user {user} not found") from None
    if found.pw_uid == 0:
        raise SandboxUnavailable(f"{user} is root and can read everything")
    script = 'test -r "$1" || test -x "$1" || test -r "/proc/$2/environ" || exit 7'
    started = _build_user_command(
        user, ["/bin/sh", "-c", script, "sh", secrets, str(os.getpid())], {"PATH": os.defpath}, "/"
    )
    done = _run_probe(started, f"commands cannot run as {user}")
    if done.returncode != 7:
        raise SandboxUnavailable(f"the user {user} can read {secrets}")


def _run_probe(spec: ProcessSpec, failed: str) -> subprocess.CompletedProcess[bytes]:
    """Run the test program of a sandbox. Raises `SandboxUnavailable` if it cannot be started."""
    run: Callable[..., Any] = subprocess.run  # not all of its options are typed
    try:
        return run(
            spec.arguments,
            env=spec.environment,
            cwd=spec.cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_TIMEOUT,
            check=False,
            **spec.options,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxUnavailable(f"{failed}: {error}") from error


def switch_user(user: str) -> None:
    """Switch this process from root to another user."""
    found = pwd.getpwnam(user)
    os.setgroups(os.getgrouplist(user, found.pw_gid))
    os.setgid(found.pw_gid)
    os.setuid(found.pw_uid)


def _build_user_command(user: str, arguments: Sequence[str], environment: Mapping[str, str], cwd: str) -> ProcessSpec:
    try:
        found = pwd.getpwnam(user)
    except KeyError:
        raise SandboxUnavailable(f"user {user} not found") from None
    variables = {**environment, "HOME": found.pw_dir, "USER": user, "LOGNAME": user, "SHELL": found.pw_shell}
    groups = os.getgrouplist(user, found.pw_gid)
    return ProcessSpec(
        list(arguments), variables, cwd, {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": groups}
    )


def resolve_project_folder(folder: str, projects: Iterable[str]) -> str | None:
    """Return the real path of a session's folder if it exists and is in a project, otherwise `None`."""
    real = os.path.realpath(folder) if folder else ""
    inside = any(is_below(real, os.path.realpath(project)) for project in projects)
    return real if inside and os.path.isdir(real) else None


def _find_own_code() -> set[str]:
    """Return the folders of Python, of this package, and of the packages that it needs, which may be elsewhere."""
    packages = [
        os.path.dirname(os.path.dirname(os.path.abspath(file)))
        for file in (sessiontree.__file__, msgspec_json.__file__)
    ]
    return {os.path.realpath(path) for path in (sys.prefix, sys.base_prefix, *packages)}


def _build_hiding_mount(path: str) -> list[str]:
    return ["--tmpfs", path] if os.path.isdir(path) else ["--ro-bind", "/dev/null", path]


PASSED_VARIABLES = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "COLORTERM", "NO_COLOR", "TZ", "TMPDIR"),
        *("LANG", "LANGUAGE", "SESSIONTREE_HOME"),
        # Paths of programs and of their files.
        *("XDG_CONFIG_HOME", "XDG_CONFIG_DIRS", "XDG_DATA_HOME", "XDG_DATA_DIRS", "XDG_CACHE_HOME", "XDG_STATE_HOME"),
        *("XDG_RUNTIME_DIR", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "PYENV_ROOT", "PYTHONPATH"),
        *("NVM_DIR", "NODE_PATH", "GOPATH", "GOROOT", "CARGO_HOME", "RUSTUP_HOME", "JAVA_HOME", "ANDROID_HOME"),
        *("HOMEBREW_PREFIX", "MANPATH", "INFOPATH", "PKG_CONFIG_PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"),
        # Certificates of trusted servers.
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
        *("NO_PROXY", "no_proxy"),
    }
)
"""Variables that every command gets. `SSH_AUTH_SOCK` is not one of them: it allows signing in as the user."""
PROXY_VARIABLES = frozenset(f"{name}_PROXY" for name in ("HTTP", "HTTPS", "FTP", "ALL"))
"""Proxy variables, in upper or lower case. Commands get them unless they contain a password."""


def clean_environment(settings: Config | None = None) -> dict[str, str]:
    """Return the environment variables for a command."""
    settings = Config() if settings is None else settings
    return {name: value for name, value in os.environ.items() if _is_passed(name, value, settings)}


def _is_passed(name: str, value: str, settings: Config) -> bool:
    if settings.find_secret_reason(name) is not None:
        return False
    if name.upper() in PROXY_VARIABLES:
        return "@" not in value
    return name in PASSED_VARIABLES or name.startswith("LC_") or name in settings.tools.environment
