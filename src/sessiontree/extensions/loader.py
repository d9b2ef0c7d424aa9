"""Finds, loads, unloads and reloads extensions.

Extensions come from installed packages, the home folder, the command line and the project, in this order. Their
handlers run in the same order. An extension that fails to load is reported, and the others still load.

Each extension is imported under a unique module name and compiled from its source. Existing compiled files are
ignored, because the user has not reviewed them.
"""

from __future__ import annotations

import inspect
import itertools
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import FileFinder, ModuleSpec, SourceFileLoader
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from types import CodeType, ModuleType
from typing import Any

from msgspec import Struct

from sessiontree.agent.mcp_client.server_specs import (
    MAX_PROJECT_FILE_BYTES,
    describe_all_settings,
    find_project_file,
    parse_project_file,
)
from sessiontree.agent.permission_rules import RuleSet, parse_project_rules
from sessiontree.agent.tools.file_access import find_project_folders
from sessiontree.config import ConfigError
from sessiontree.core.sanitize import escape_line
from sessiontree.errors import FormatError, SessionTreeError
from sessiontree.extensions.api import ExtensionApi, UiRegistry
from sessiontree.extensions.project_trust import (
    EXTENSIONS,
    PROMPTS,
    RULES,
    ExtensionError,
    ExtensionFiles,
    TrustStore,
    find_project_root,
    locate_extension,
    read_extension_files,
    wrap_server_file,
)
from sessiontree.extensions.prompt_files import build_prompt_command
from sessiontree.extensions.skills import (
    Skill,
    SkillFiles,
    build_skill_list,
    build_skill_tool,
    list_project_folders,
    list_user_folders,
    parse_skill,
    read_skill_files,
)
from sessiontree.home import get_home
from sessiontree.hooks.events import Notice, SessionShutdown, SessionStart
from sessiontree.regular_file import read_regular_file
from sessiontree.slash_commands.controller import SessionController

_numbers = itertools.count(1)


class ExtensionModule:
    """The modules of one extension."""

    def __init__(self, name: str, path: str, files: Mapping[str, bytes] | None = None) -> None:
        self._path = path
        self._files = files
        plain = re.sub(r"\W", "_", name)
        self._name = f"sessiontree_extension_{next(_numbers)}_{plain}"

    def load(self) -> ModuleType:
        """Import the extension. Raises whatever its code raises."""
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
        """Remove its modules from `sys.modules`. Existing references stay valid."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)  # pyright: ignore[reportArgumentType]
        for name in [name for name in sys.modules if name == self._name or name.startswith(f"{self._name}.")]:
            del sys.modules[name]

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        """Find modules inside the extension's own folder. Python's import system calls this."""
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
            raise OSError(f"{path} did not exist when this content was trusted")
        return self._files[path]


class TrustQuestion(Struct, frozen=True, kw_only=True):
    """What the user is asked to trust."""

    items: list[str]
    what: str = "extensions"
    title: str = "Trust this project and run its extensions?"

    @property
    def more(self) -> str:
        return " and prompts" if self.what == "extensions" else ""


GROUP = "sessiontree.extensions"
"""The entry point group of installed packages."""


class LoadedExtension(Struct, frozen=True, kw_only=True):
    """An extension that is loaded."""

    name: str
    path: str
    """Where it comes from."""
    api: ExtensionApi
    unit: ExtensionModule | None
    """`None` for an installed package, which Python imports itself."""


class ExtensionLoader:
    """Loads extensions and prompt files for a session controller."""

    def __init__(
        self,
        controller: SessionController,
        files: Sequence[str] = (),
        *,
        installed: bool = True,
        content: ExtensionFiles | None = None,
    ) -> None:
        """Create a loader for `controller`, with the extensions in `files` and of `installed` packages.

        If `content` has the bytes of a file, they are used instead of the file on disk. Raises `NotFound` if a file
        does not exist.
        """
        self.loaded: list[LoadedExtension] = []
        self.ui_registry = UiRegistry()
        self._controller = controller
        self._named_sources = [locate_extension(path) for path in files]
        self._installed = installed
        self._named_files = {} if content is None else content.files
        self._prompt_removers: dict[str, Callable[[], None]] = {}
        self._server_removers: list[Callable[[], None]] = []
        self._skill_removers: list[Callable[[], None]] = []
        self._remove_restriction: Callable[[], None] = lambda: None
        self._reported_untrusted: set[str] = set()
        """Digests of content that was already reported as untrusted."""
        controller.reload = self.reload

    async def load(self) -> list[str]:
        """Load all extensions and prompt files, report failures, and return the loaded names."""
        for point in entry_points(group=GROUP) if self._installed else ():
            await self._set_up(point.name, str(point.value), None, point)
        await self._load_files(self._read_files(get_home()))
        for found in self._named_sources:
            files = self._named_files if found.path in self._named_files else None
            await self._set_up(found.name, found.path, ExtensionModule(found.name, found.path, files))
        await self._load_project()
        await self._load_project_servers()
        await self._load_skills()
        return [*(extension.name for extension in self.loaded), *(f"/{name}" for name in self._prompt_removers)]

    @property
    def failed_files(self) -> list[str]:
        """Files from the command line that failed to load."""
        paths = {extension.path for extension in self.loaded}
        return [found.path for found in self._named_sources if found.path not in paths]

    def unload(self) -> None:
        """Remove all handlers, commands, tools and restrictions."""
        while self.loaded:
            extension = self.loaded.pop()
            extension.api.close()
            if extension.unit is not None:
                extension.unit.unload()
        for off in self._prompt_removers.values():
            off()
        self._prompt_removers.clear()
        while self._server_removers:
            self._server_removers.pop()()
        for off in self._skill_removers:
            off()
        self._skill_removers.clear()
        self._remove_restriction()

    async def reload(self) -> list[str]:
        """Unload everything and load it again."""
        await self._controller.hooks.emit(SessionShutdown(reason="reload"))
        self.unload()
        names = await self.load()
        await self._controller.hooks.emit(SessionStart(reason="reload"))
        return names

    async def watch(self) -> None:
        """Reload whenever a file changes, as soon as the agent is idle. Runs until it is cancelled."""
        project = find_project_root(self._controller.project_folder, get_home())
        folders = [
            os.path.join(root, folder) for root in (get_home(), project) if root for folder in (EXTENSIONS, PROMPTS)
        ]
        existing = [path for path in (*folders, *(found.path for found in self._named_sources)) if os.path.exists(path)]
        if not existing:
            return
        from watchfiles import awatch  # pyright: ignore[reportUnknownVariableType]

        async for _ in awatch(*existing, debounce=200):
            if self._controller.has_agent:
                await self._controller.agent.wait_until_idle()
            await self.reload()

    # Sources

    def _read_files(self, root: str) -> ExtensionFiles:
        """Read the extension files of a folder and report the ones that cannot be read."""
        try:
            content = read_extension_files(root)
        except ExtensionError as error:
            content = ExtensionFiles(root=root, files={}, problems=(str(error),))
        for problem in content.problems:
            self._report(problem)
        return content

    async def _load_project(self) -> None:
        root = find_project_root(self._controller.project_folder, get_home())
        if root is not None:
            content = self._read_files(root)
            if content.files and await self._check_trust(content):
                self._restrict(content)
                await self._load_files(content)

    def _restrict(self, content: ExtensionFiles) -> None:
        """Apply the permission rules of a project. If they are invalid, allow reading only."""
        path, permissions = os.path.join(content.root, RULES), self._controller.permissions
        if permissions is None or path not in content.files:
            return
        try:
            mode, rules, allows = parse_project_rules(path, content.files[path])
        except ConfigError as error:
            self._report(f"{error}; until you fix it, agents are read-only here")
            mode, rules, allows = "read-only", RuleSet(), False
        if allows:
            self._report(f"{path}: a project can only restrict permissions; its `allow` rules are ignored", "warning")
        self._remove_restriction = permissions.restrict(mode, rules)

    async def _load_project_servers(self) -> None:
        """Add the MCP servers of the project's `.mcp.json`, if the user trusts exactly these."""
        pool, path = self._controller.options.mcp, find_project_file(self._controller.project_folder)
        if pool is None or path is None:
            return
        try:
            raw = read_regular_file(path, MAX_PROJECT_FILE_BYTES)
            found = parse_project_file(path, raw)
        except OSError as error:
            self._report(f"{path}: {error.strerror or error}")
            return
        except ConfigError as error:
            self._report(f"{error}; its MCP servers are not used")
            return
        servers = found.servers
        for problem in found.problems:
            self._report(f"{problem}; this MCP server is not used", "warning")
        content = wrap_server_file(path, raw)
        question = TrustQuestion(
            what="MCP servers",
            title="Trust this project and start its MCP servers?",
            items=[f"{server.name}: {describe_all_settings(server)}" for server in servers],
        )
        if servers and await self._check_trust(content, question):
            for server in servers:
                try:
                    self._server_removers.append(pool.add(server))
                except SessionTreeError as error:
                    self._report(f"{path}: {error}", "warning")

    async def _check_trust(self, content: ExtensionFiles, question: TrustQuestion | None = None) -> bool:
        question = question or TrustQuestion(items=[os.path.relpath(path, content.root) for path in content.files])
        trust = TrustStore(get_home())
        try:
            if trust.is_trusted(content):
                return True
            if not self._controller.ui.has_person:
                if content.digest not in self._reported_untrusted:
                    self._reported_untrusted.add(content.digest)
                    why = "you have not trusted it; run `sessiontree` in that project to review it"
                    self._report(f"{question.what} in {escape_line(content.root)} are not loaded: {why}", "warning")
                return False
            names = "\n".join(f"  {escape_line(item)}" for item in question.items)
            text = f"{escape_line(content.root)} has new or changed {question.what}{question.more}:\n{names}"
            if not await self._controller.ui.confirm(question.title, text):
                return False
            trust.add(content)
        except SessionTreeError as error:
            self._report(str(error))
            return False
        return True

    async def _load_files(self, content: ExtensionFiles) -> None:
        """Load the extensions and prompt files of a folder from the bytes that were read."""
        for found in content.extensions:
            await self._set_up(found.name, found.path, ExtensionModule(found.name, found.path, content.files))
        for name, path in content.prompts:
            try:
                self._prompt_removers[name] = self._controller.commands.add(
                    build_prompt_command(name, path, content.files[path])
                )
            except SessionTreeError as error:
                self._report(f"{path}: {str(error).removeprefix(f'{path}: ')}", "warning")

    # Skills

    async def _load_skills(self) -> None:
        """List the skills of the user and of the project to the model, and add the tool that loads them."""
        if not self._controller.tools:  # without tools, the model cannot load any
            return
        found = read_skill_files(list_user_folders(get_home()))
        top = find_project_folders(self._controller.project_folder)[0]
        project = SkillFiles(files={})
        if os.path.realpath(top) != os.path.realpath(os.path.expanduser("~")):  # those are skills of the user
            project = read_skill_files(list_project_folders(top), within=top)
        for problem in (*found.problems, *project.problems):
            self._report(problem, "warning")
        files = dict(found.files)
        content = ExtensionFiles(root=top, files=project.files, kind="skills")
        question = TrustQuestion(
            what="skills",
            title="Trust this project and use its skills?",
            items=[os.path.relpath(path, top) for path in project.files],
        )
        if project.files and await self._check_trust(content, question):
            files |= project.files
        skills: dict[str, Skill] = {}
        for path, data in files.items():
            try:
                skill = parse_skill(path, data)
            except FormatError as error:
                self._report(f"the skill is not loaded: {error}", "warning")
                continue
            known = skills.setdefault(skill.name, skill)
            if known is not skill and known.text != skill.text:
                self._report(f"{path} is not loaded: {known.path} has the same name", "warning")
        if skills:
            listed = list(skills.values())
            try:
                self._skill_removers.append(self._controller.add_tool(build_skill_tool(listed)))
            except SessionTreeError as error:  # an extension has a tool of this name
                self._report(f"skills are not loaded: {error}", "warning")
                return
            self._skill_removers.append(self._controller.add_system_part(build_skill_list(listed)))

    # Setup

    async def _set_up(
        self, name: str, path: str, unit: ExtensionModule | None, point: EntryPoint | None = None
    ) -> None:
        api = ExtensionApi(name, self._controller, self.ui_registry)
        try:
            if any(extension.name == name for extension in self.loaded):
                raise ExtensionError(name, f"{path} is not loaded: another extension has the same name")
            module = unit.load() if unit is not None else point.load() if point is not None else None
            setup = module if point is not None and callable(module) else getattr(module, "setup", None)
            if not callable(setup):
                raise ExtensionError(name, f"{path} has no function `setup`")
            result: Any = setup(api)
            if inspect.isawaitable(result):
                await result
        except (Exception, SystemExit) as error:  # noqa: BLE001 - an extension may raise anything
            api.close()
            if unit is not None:
                unit.unload()
            own = isinstance(error, ExtensionError)
            self._report(str(error) if own else f"extension {name} is not loaded: {type(error).__name__}: {error}")
            return
        self.loaded.append(LoadedExtension(name=name, path=path, api=api, unit=unit))

    def _report(self, text: str, level: Any = "error") -> None:
        self._controller.hooks.notify_listeners(Notice(level=level, text=text))
