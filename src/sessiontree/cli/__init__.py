"""The command line. This module imports almost nothing to keep `--version` fast."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NoReturn


def main() -> None:
    """Run the command and exit with one of the codes in `app`."""
    if sys.argv[1:] == ["--version"] and _write_version():
        return
    import gc

    gc.disable()  # imports make hardly any garbage, and looking for it takes a tenth of their time
    _import_libraries()
    from sessiontree.cli.app import run

    gc.freeze()
    gc.enable()
    _exit(run(sys.argv[1:]))


def _import_libraries() -> None:
    """Import msgspec and click without modules that they rarely use, which would take a fifth of a short command."""
    import os
    from types import SimpleNamespace

    # uuid only asks for the name of the system; platform compiles fifteen regular expressions.
    with _replace_modules({"platform": SimpleNamespace(system=lambda: os.uname().sysname)}):
        import uuid as uuid
    # msgspec takes the same functions from `typing` if `typing_extensions` is missing.
    deferred = {name: _DeferredModule(name) for name in ("textwrap", "msgspec.inspect")}
    with _replace_modules({"typing_extensions": None, **deferred}):
        import msgspec as msgspec
    inspect = _DeferredModule("inspect")
    inspect.__dict__["cleandoc"] = _clean_help
    # click looks for translations of its messages. This command has none.
    english = SimpleNamespace(gettext=str, ngettext=_choose_plural)
    with _replace_modules({"inspect": inspect, "gettext": english}):
        import click as click


def _choose_plural(singular: str, plural: str, count: int) -> str:
    return singular if count == 1 else plural


def _clean_help(text: str) -> str:
    """Do what `inspect.cleandoc` does. click calls it for the help of every option."""
    if "\n" not in text:
        return text.expandtabs().lstrip()
    from inspect import cleandoc

    return cleandoc(text)


class _DeferredModule(ModuleType):
    """Imports the module of its name when one of its attributes is used."""

    def __getattr__(self, name: str) -> Any:
        from importlib import import_module

        return getattr(import_module(self.__name__), name)


@contextmanager
def _replace_modules(modules: dict[str, Any]) -> Generator[None]:
    """Let imports find these objects instead of modules that are not imported yet. `None` makes an import fail."""
    added = {name: module for name, module in modules.items() if name not in sys.modules}
    sys.modules.update(added)
    try:
        yield
    finally:
        for name in added:
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
