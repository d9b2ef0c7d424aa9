"""The command line. This module imports almost nothing to keep `--version` fast."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> None:
    """Run the command and exit with one of the codes in `app`."""
    if sys.argv[1:] == ["--version"] and _write_version():
        return
    import gc

    gc.disable()  # imports make hardly any garbage, and looking for it takes a tenth of their time
    _import_msgspec()
    from sessiontree.cli.app import run

    gc.freeze()
    gc.enable()
    _exit(run(sys.argv[1:]))


def _import_msgspec() -> None:
    """Import msgspec without `typing_extensions`, which takes an eighth of a short command to import.

    msgspec takes the same functions from `typing` if it is missing.
    """
    name = "typing_extensions"
    if name not in sys.modules:
        sys.modules[name] = None  # type: ignore[assignment]  # so that an import fails
        try:
            import msgspec as msgspec
        finally:
            del sys.modules[name]


def _write_version() -> bool:
    """Return whether the version was written. If not, `run` reports the error."""
    import os

    from sessiontree._version import __version__

    try:
        return os.write(1, f"sessiontree {__version__}\n".encode()) > 0
    except OSError:
        return False


def _exit(code: int) -> NoReturn:
    """Exit without freeing every object first, which takes as long as a short command. Exit handlers still run."""
    import atexit
    import os
    import threading

    if threading.active_count() == 1:  # Python waits for the others
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (OSError, ValueError):
            sys.exit(code)
        os._exit(code)
    sys.exit(code)
