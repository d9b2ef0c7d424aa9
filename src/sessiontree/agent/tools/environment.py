"""The environment of commands: an allow list, so that no key of a model and no password is among it.

What a command prints goes into the session, and from there to the model. The user's configuration names further
variables in `tools.environment`; `Config.secret_variable` says which ones no configuration can name.
"""

from __future__ import annotations

import os

from sessiontree.config import Config

PASSED_VARIABLES = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "COLORTERM", "NO_COLOR", "TZ", "TMPDIR"),
        *("LANG", "LANGUAGE", "SESSIONTREE_HOME"),
        # Where programs keep their files, and where they are: paths.
        *("XDG_CONFIG_HOME", "XDG_CONFIG_DIRS", "XDG_DATA_HOME", "XDG_DATA_DIRS", "XDG_CACHE_HOME", "XDG_STATE_HOME"),
        *("XDG_RUNTIME_DIR", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "PYENV_ROOT", "PYTHONPATH"),
        *("NVM_DIR", "NODE_PATH", "GOPATH", "GOROOT", "CARGO_HOME", "RUSTUP_HOME", "JAVA_HOME", "ANDROID_HOME"),
        *("HOMEBREW_PREFIX", "MANPATH", "INFOPATH", "PKG_CONFIG_PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"),
        # Certificates, so that programs reach servers that the machine trusts.
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
        *("NO_PROXY", "no_proxy"),
    }
)
"""Variables that every command gets. `SSH_AUTH_SOCK` is not one of them: whoever has it can sign in as the user."""
PROXY_VARIABLES = frozenset(f"{name}_PROXY" for name in ("HTTP", "HTTPS", "FTP", "ALL"))
"""Addresses of proxies, in capitals or not: given to commands unless there is a password in them."""


def clean_environment(settings: Config | None = None) -> dict[str, str]:
    """Return the variables of this process that a command gets."""
    settings = Config() if settings is None else settings
    return {name: value for name, value in os.environ.items() if _is_passed(name, value, settings)}


def _is_passed(name: str, value: str, settings: Config) -> bool:
    if settings.find_secret_reason(name) is not None:
        return False
    if name.upper() in PROXY_VARIABLES:
        return "@" not in value
    return name in PASSED_VARIABLES or name.startswith("LC_") or name in settings.tools.environment
