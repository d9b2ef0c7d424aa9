"""The extensions of a desk: finding them, setting them up, and loading them anew.

They come from installed packages, the home, the command line and the project, in this order, which is the order in
which their handlers are asked: a project's come last. One that fails is told of, and leaves the others whole.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from msgspec import Struct

from sessiontree.agent.rule_files import project_rules
from sessiontree.agent.rules import RuleSet
from sessiontree.commands.desk import Desk
from sessiontree.commands.prompt_file import prompt_command
from sessiontree.config import ConfigError
from sessiontree.core.safe import safe
from sessiontree.errors import SessionTreeError
from sessiontree.extensions.api import Api, Fittings
from sessiontree.extensions.content import EXTENSIONS, PROMPTS, RULES, Content, given, project_root, read_content
from sessiontree.extensions.errors import ExtensionError
from sessiontree.extensions.modules import Unit
from sessiontree.extensions.trust import Trust
from sessiontree.home import home
from sessiontree.hooks.events import Notice, SessionShutdown, SessionStart

GROUP = "sessiontree.extensions"
"""The entry points of installed packages."""


class Extension(Struct, frozen=True, kw_only=True):
    """One that is loaded."""

    name: str
    path: str
    """Where it comes from."""
    api: Api
    unit: Unit | None
    """`None` for one of an installed package, which Python has imported in its own way."""


class Extensions:
    def __init__(
        self, desk: Desk, files: Sequence[str] = (), *, installed: bool = True, content: Content | None = None
    ) -> None:
        """The extensions of `desk`: also those in `files`, and those of `installed` packages.

        Of files that `content` has, the bytes there are what runs, whatever is on the disk by then.
        Raises `NotFound` for a file that is not there.
        """
        self.loaded: list[Extension] = []
        self.fittings = Fittings()
        self._desk = desk
        self._given = [given(path) for path in files]
        self._installed = installed
        self._content_given = {} if content is None else content.files
        self._prompts: dict[str, Callable[[], None]] = {}
        self._unrestrict: Callable[[], None] = lambda: None
        self._passed_over: set[str] = set()
        """Content that was not loaded since nobody was there to trust it: said once."""
        desk.reload = self.reload

    async def load(self) -> list[str]:
        """Find and set up everything. Returns the names of what was loaded; what was not is told of."""
        for point in entry_points(group=GROUP) if self._installed else ():
            await self._set_up(point.name, str(point.value), None, point)
        await self._take(self._content(home()))
        for found in self._given:
            files = self._content_given if found.path in self._content_given else None
            await self._set_up(found.name, found.path, Unit(found.name, found.path, files))
        await self._take_project()
        return [*(extension.name for extension in self.loaded), *(f"/{name}" for name in self._prompts)]

    @property
    def lacking(self) -> list[str]:
        """Files that were given and could not be set up."""
        paths = {extension.path for extension in self.loaded}
        return [found.path for found in self._given if found.path not in paths]

    def unload(self) -> None:
        """Take off all handlers, commands, tools and the rest."""
        while self.loaded:
            extension = self.loaded.pop()
            extension.api.close()
            if extension.unit is not None:
                extension.unit.unload()
        for off in self._prompts.values():
            off()
        self._prompts.clear()
        self._unrestrict()

    async def reload(self) -> list[str]:
        """Unload everything and load it anew."""
        await self._desk.hooks.tell(SessionShutdown(reason="reload"))
        self.unload()
        names = await self.load()
        await self._desk.hooks.tell(SessionStart(reason="reload"))
        return names

    async def watch(self) -> None:
        """Load anew whenever a file changes, and nothing runs, until this is cancelled."""
        project = project_root(self._desk.cwd, home())
        folders = [os.path.join(root, folder) for root in (home(), project) if root for folder in (EXTENSIONS, PROMPTS)]
        there = [path for path in (*folders, *(found.path for found in self._given)) if os.path.exists(path)]
        if not there:
            return
        from watchfiles import awatch  # pyright: ignore[reportUnknownVariableType]

        async for _ in awatch(*there, debounce=200):
            if self._desk.has_agent:
                await self._desk.agent.idle()
            await self.reload()

    # Where they come from

    def _content(self, root: str) -> Content:
        """What is in a folder; what of it cannot be read is told."""
        try:
            content = read_content(root)
        except ExtensionError as error:
            content = Content(root=root, files={}, problems=(str(error),))
        for problem in content.problems:
            self._tell(problem)
        return content

    async def _take_project(self) -> None:
        root = project_root(self._desk.cwd, home())
        if root is not None:
            content = self._content(root)
            if content.files and await self._trusted(content):
                self._restrict(content)
                await self._take(content)

    def _restrict(self, content: Content) -> None:
        """Have the rules of a project count. Where they cannot be understood, nothing but reading is allowed."""
        path, permissions = os.path.join(content.root, RULES), self._desk.permissions
        if permissions is None or path not in content.files:
            return
        try:
            mode, rules, allows = project_rules(path, content.files[path])
        except ConfigError as error:
            self._tell(f"{error}; until it is right, agents may only read here")
            mode, rules, allows = "read-only", RuleSet(), False
        if allows:
            self._tell(f"{path}: a project can only restrict, so what it allows is ignored", "warning")
        self._unrestrict = permissions.restrict(mode, rules)

    async def _trusted(self, content: Content) -> bool:
        trust = Trust(home())
        try:
            if trust.has(content):
                return True
            if not self._desk.ui.has_person:
                if content.digest not in self._passed_over:
                    self._passed_over.add(content.digest)
                    why = "nobody has trusted it; the app, `sessiontree`, asks when it is opened in that project"
                    self._tell(f"what is in {safe(content.root)} is not loaded: {why}", "warning")
                return False
            names = "\n".join(f"  {safe(os.path.relpath(path, content.root))}" for path in content.files)
            text = f"{safe(content.root)} has extensions and prompts that you have not seen in this form:\n{names}"
            if not await self._desk.ui.confirm("Trust this project, and run its extensions?", text):
                return False
            trust.add(content)
        except SessionTreeError as error:
            self._tell(str(error))
            return False
        return True

    async def _take(self, content: Content) -> None:
        """Set up the extensions and prompt files of a folder, from the bytes that were read."""
        for found in content.extensions:
            await self._set_up(found.name, found.path, Unit(found.name, found.path, content.files))
        for name, path in content.prompts:
            try:
                self._prompts[name] = self._desk.commands.add(prompt_command(name, path, content.files[path]))
            except SessionTreeError as error:
                self._tell(f"{path}: {str(error).removeprefix(f'{path}: ')}", "warning")

    # Setting up

    async def _set_up(self, name: str, path: str, unit: Unit | None, point: EntryPoint | None = None) -> None:
        api = Api(name, self._desk, self.fittings)
        try:
            if any(extension.name == name for extension in self.loaded):
                raise ExtensionError(name, f"{path} is not loaded: there is an extension of this name already")
            module = unit.load() if unit is not None else point.load() if point is not None else None
            setup = module if point is not None and callable(module) else getattr(module, "setup", None)
            if not callable(setup):
                raise ExtensionError(name, f"{path} has no function `setup`")
            made: Any = setup(api)
            if inspect.isawaitable(made):
                await made
        except (Exception, SystemExit) as error:  # noqa: BLE001 - an extension may raise anything
            api.close()
            if unit is not None:
                unit.unload()
            own = isinstance(error, ExtensionError)
            self._tell(str(error) if own else f"extension {name} is not loaded: {type(error).__name__}: {error}")
            return
        self.loaded.append(Extension(name=name, path=path, api=api, unit=unit))

    def _tell(self, text: str, level: Any = "error") -> None:
        self._desk.hooks.show(Notice(level=level, text=text))
