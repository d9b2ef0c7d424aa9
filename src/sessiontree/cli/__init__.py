"""The command line. Nothing but the entry point here, so that `--version` answers at once."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command; the exit codes are in `app`."""
    if sys.argv[1:] == ["--version"] and _write_version():
        return
    from sessiontree.cli.app import run

    sys.exit(run(sys.argv[1:]))


def _write_version() -> bool:
    """Whether it could be written; if not, the command tells why."""
    import os

    from sessiontree._version import __version__

    try:
        return os.write(1, f"sessiontree {__version__}\n".encode()) > 0
    except OSError:
        return False
