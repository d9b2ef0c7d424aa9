"""The command line. This module imports almost nothing to keep `--version` fast."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command and exit with one of the codes in `app`."""
    if sys.argv[1:] == ["--version"] and _write_version():
        return
    from sessiontree.cli.app import run

    sys.exit(run(sys.argv[1:]))


def _write_version() -> bool:
    """Return whether the version was written. If not, `run` reports the error."""
    import os

    from sessiontree._version import __version__

    try:
        return os.write(1, f"sessiontree {__version__}\n".encode()) > 0
    except OSError:
        return False
