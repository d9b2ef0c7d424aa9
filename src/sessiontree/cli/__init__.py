"""The command line. Nothing but the entry point here, so that `--version` answers at once."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command; the exit code is 0, 1 for an error, 2 for wrong usage."""
    if sys.argv[1:] == ["--version"]:
        from sessiontree._version import __version__

        try:
            print(f"sessiontree {__version__}", flush=True)  # noqa: T201 - the one line that needs no click
            return
        except OSError:
            pass  # told by the way that all other output goes
    from sessiontree.cli.app import run

    sys.exit(run(sys.argv[1:]))
