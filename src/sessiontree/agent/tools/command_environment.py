"""The environment of the commands that agents run: without API keys and passwords.

The output of commands goes to the session and to the model.
"""

from __future__ import annotations

import os

from sessiontree.config import Config

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
