"""Modules: how the Python of an extension is imported, and let go of again.

Each extension is a module of its own name, which no other import finds. It is compiled from its source every time:
compiled code that lies beside it is never run, since nobody has seen what it says. Where files are given, their bytes
are what runs, whatever is on the disk by then.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import FileFinder, ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from types import CodeType, ModuleType
from typing import Any

from sessiontree.regular_file import read_regular_file

_numbers = itertools.count(1)


class ExtensionModule:
    """The modules of one extension."""

    def __init__(self, name: str, path: str, files: Mapping[str, bytes] | None = None) -> None:
        self._path = path
        self._files = files
        plain = re.sub(r"\W", "_", name)
        self._name = f"sessiontree_extension_{next(_numbers)}_{plain}"

    def load(self) -> ModuleType:
        """Import it. Raises whatever its code raises."""
        within = [os.path.dirname(self._path)] if os.path.basename(self._path) == "__init__.py" else None
        loader = self._create_loader(self._name, self._path)
        spec = spec_from_file_location(self._name, self._path, loader=loader, submodule_search_locations=within)
        if spec is None:
            raise ImportError(f"{self._path} cannot be imported")
        module = module_from_spec(spec)
        sys.modules[self._name] = module
        sys.meta_path.insert(0, self)  # pyright: ignore[reportArgumentType] - a finder needs no more than find_spec
        loader.exec_module(module)
        return module

    def unload(self) -> None:
        """Let go of its modules; whoever still holds something of them keeps that."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)  # pyright: ignore[reportArgumentType]
        for name in [name for name in sys.modules if name == self._name or name.startswith(f"{self._name}.")]:
            del sys.modules[name]

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        """For Python's import: the modules inside the extension's own folder."""
        if not name.startswith(f"{self._name}."):
            return None
        for folder in path or ():
            finder = FileFinder(folder, (self._create_loader, [".py"]))  # pyright: ignore[reportArgumentType] - it makes one
            spec = finder.find_spec(name)
            if spec is not None:
                return spec
        return None

    def _create_loader(self, name: str, path: str) -> SourceFileLoader:
        return _Loader(name, path, self._files)


class _Loader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, files: Mapping[str, bytes] | None) -> None:
        super().__init__(fullname, path)
        self._files = files

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)

    def get_data(self, path: str) -> bytes:
        if self._files is None:
            return read_regular_file(path)
        if path not in self._files:
            raise OSError(f"{path} was not there when this content was trusted")
        return self._files[path]
