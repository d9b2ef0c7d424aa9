"""What the user can choose in the editor for a session: permission mode, model, thinking level and commands."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from sessiontree.agent.permission_rules import PERMISSION_MODES
from sessiontree.config import CHOICES, PermissionMode
from sessiontree.core.compaction import count_context_tokens
from sessiontree.core.entries import JsonObject
from sessiontree.core.sanitize import escape_line
from sessiontree.errors import InvalidOperation
from sessiontree.slash_commands.controller import SessionController
from sessiontree.slash_commands.registry import Command

MODE, MODEL, THINKING = "mode", "model", "thinking"
MODE_TEXTS: dict[PermissionMode, tuple[str, str]] = {
    "read-only": ("Read only", "The agent may read files in the folder and nothing else"),
    "ask": ("Ask", "The agent may read files in the folder and asks about everything else"),
    "allow-edits": ("Allow edits", "The agent may read and edit files in the folder and asks about everything else"),
    "allow-all": ("Allow all", "The agent may do everything that no rule denies"),
}


class SessionOptions:
    """The options of one session in the wire form of the protocol, and which of them the editor knows."""

    def __init__(self, controller: SessionController) -> None:
        self._controller = controller
        self._models: list[str] = []
        self._sent: dict[str, Any] = {}
        """The last values that the editor got, by kind of update."""

    async def load_models(self) -> None:
        """List the available models. Local servers are asked, so it takes a moment."""
        self._models = await asyncio.to_thread(self._controller.models.list_names)

    def build_state(self) -> JsonObject:
        """Return the modes and options for the answer to a request that opens a session."""
        state = {"modes": self._build_modes(), "configOptions": self.build_config()}
        self._sent |= {"current_mode_update": self._get_mode(), "config_option_update": state["configOptions"]}
        return state

    def build_config(self) -> list[JsonObject]:
        controller = self._controller
        modes = [(mode, *MODE_TEXTS[mode]) for mode in PERMISSION_MODES]
        options = [_build_select(MODE, "Permissions", MODE, self._get_mode(), modes)]
        if controller.model is not None:
            current = controller.model.info.name
            names = dict.fromkeys([current, *self._models])
            options.append(_build_select(MODEL, "Model", MODEL, current, [(name, name, "") for name in names]))
            levels = [(level, level.capitalize(), "") for level in CHOICES["thinking"]]
            options.append(
                _build_select(THINKING, "Thinking level", "thought_level", controller.agent.thinking, levels)
            )
        return options

    def _build_modes(self) -> JsonObject:
        listed = [{"id": mode, "name": name, "description": text} for mode, (name, text) in MODE_TEXTS.items()]
        return {"currentModeId": self._get_mode(), "availableModes": listed}

    def _get_mode(self) -> PermissionMode:
        permissions = self._controller.permissions
        return "allow-all" if permissions is None else permissions.effective_mode

    # Changing

    def set_mode(self, wanted: str) -> None:
        """Change the permission mode. Raises `InvalidOperation`."""
        mode: PermissionMode | None = next((mode for mode in PERMISSION_MODES if mode == wanted), None)
        if mode is None or self._controller.permissions is None:
            raise InvalidOperation(f"no permission mode {wanted!r}: choose one of {', '.join(PERMISSION_MODES)}")
        self._controller.permissions.mode = mode

    async def set_option(self, id: str, value: object) -> None:
        """Change an option. Raises `InvalidOperation`, and `NoModel` or `NotFound` for a model."""
        if not isinstance(value, str) or id not in (MODE, MODEL, THINKING):
            raise InvalidOperation(f"no option {id!r} with such a value; options: {MODE}, {MODEL}, {THINKING}")
        if id == MODE:
            self.set_mode(value)
        elif id == MODEL:
            model = await asyncio.to_thread(self._controller.models.find, value)
            await self._controller.set_model(model)
        elif value in CHOICES["thinking"]:
            await self._controller.agent.set_thinking(value)
        else:
            raise InvalidOperation(f"no thinking level {value!r}: choose one of {', '.join(CHOICES['thinking'])}")

    # Updates

    def list_changes(self) -> list[JsonObject]:
        """Return an update for each value that the editor does not know yet."""
        updates: list[JsonObject] = []
        for kind, value, fields in self._list_values():
            if self._sent.get(kind) != value:
                self._sent[kind] = value
                updates.append({"sessionUpdate": kind, **fields})
        return updates

    def _list_values(self) -> Iterator[tuple[str, Any, JsonObject]]:
        """Yield the kind of update, the value to compare, and the fields of the update."""
        controller = self._controller
        commands = [_describe_command(command) for command in controller.commands]
        yield "available_commands_update", commands, {"availableCommands": commands}
        mode = self._get_mode()
        yield "current_mode_update", mode, {"currentModeId": mode}
        config = self.build_config()
        yield "config_option_update", config, {"configOptions": config}
        if title := controller.session.name:
            yield "session_info_update", title, {"title": title}
        if controller.model is not None and controller.branch.leaf is not None:
            used = count_context_tokens(controller.branch.path())
            usage = {"used": max(0, int(used)), "size": controller.model.info.context_window}
            yield "usage_update", usage, usage


def _build_select(id: str, name: str, category: str, current: str, values: list[tuple[str, str, str]]) -> JsonObject:
    options = [
        {"value": value, "name": label, **({"description": text} if text else {})} for value, label, text in values
    ]
    return {
        "id": id,
        "name": name,
        "category": category,
        "type": "select",
        "currentValue": current,
        "options": options,
    }


def _describe_command(command: Command) -> JsonObject:
    described = {"name": command.name, "description": escape_line(command.help)}
    hint = escape_line(" ".join(argument.usage for argument in command.arguments))
    return {**described, "input": {"hint": hint}} if hint else described
