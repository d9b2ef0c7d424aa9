"""Stores the trusted content of projects. The file is in the home folder: a project cannot trust itself."""

from __future__ import annotations

import os

import msgspec

from sessiontree.errors import StoreError
from sessiontree.extensions.source_files import ExtensionFiles
from sessiontree.regular_file import read_regular_file
from sessiontree.store.files import make_private_directory, write_private

FILE = "trust.json"


class TrustStore:
    def __init__(self, home: str) -> None:
        self._file = os.path.join(home, FILE)

    def is_trusted(self, content: ExtensionFiles) -> bool:
        """Whether exactly this content of the project is trusted."""
        return self._read().get(_get_key(content)) == content.digest

    def add(self, content: ExtensionFiles) -> None:
        """Trust this content. It replaces the project's content that was trusted before."""
        self._write({**self._read(), _get_key(content): content.digest})

    def _read(self) -> dict[str, str]:
        try:
            return msgspec.json.decode(read_regular_file(self._file), type=dict[str, str])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StoreError(self._file, f"cannot read the list of trusted projects: {error}") from error

    def _write(self, trusted: dict[str, str]) -> None:
        make_private_directory(os.path.dirname(self._file))
        write_private(self._file, msgspec.json.format(msgspec.json.encode(trusted)) + b"\n")


def _get_key(content: ExtensionFiles) -> str:
    return os.path.realpath(content.root)
