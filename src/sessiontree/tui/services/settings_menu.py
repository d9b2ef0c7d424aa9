"""The settings that can be changed inside the app. Every change is written to `config.toml`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from msgspec import Struct

from sessiontree.config import Config, DoubleEscape, PermissionMode, ThemeName, ThinkingLevel
from sessiontree.config_editing import set_setting
from sessiontree.home import CONFIG_NAME

if TYPE_CHECKING:
    from sessiontree.tui.app import SessionApp  # cycle: the app calls this module

ON_OFF = {"on": True, "off": False}
LABEL_WIDTH = 40


class Setting(Struct, frozen=True, kw_only=True):
    label: str
    key: tuple[str, ...]
    choices: dict[str, Any]
    """The values, as they are shown."""
    needs_restart: bool = False

    def read(self, settings: Config) -> str:
        """Return the current value as it is shown."""
        value: Any = settings
        for name in self.key:
            value = getattr(value, name)
        return next((shown for shown, choice in self.choices.items() if choice == value), str(value))


def _list_choices(kind: Any) -> dict[str, Any]:
    return {name: name for name in get_args(kind)}


SETTINGS = (
    Setting(label="Theme", key=("app", "theme"), choices=_list_choices(ThemeName)),
    Setting(label="Notify when a long run ends", key=("app", "notify"), choices=ON_OFF),
    Setting(label="Vi keys in the editor", key=("app", "vi_keys"), choices=ON_OFF),
    Setting(label="Esc twice opens", key=("double_escape",), choices=_list_choices(DoubleEscape)),
    Setting(
        label="Permission mode at the start",
        key=("permissions", "mode"),
        choices=_list_choices(PermissionMode),
        needs_restart=True,
    ),
    Setting(label="Thinking level of new sessions", key=("thinking",), choices=_list_choices(ThinkingLevel)),
    Setting(label="Compact long conversations automatically", key=("compaction", "enabled"), choices=ON_OFF),
    Setting(
        label="Ask for a summary when leaving a branch",
        key=("summary", "skip_prompt"),
        choices={"yes": False, "no": True},
    ),
    Setting(
        label="Attempts of a failed request",
        key=("retry", "attempts"),
        choices={str(count): count for count in (1, 2, 4, 8)},
        needs_restart=True,
    ),
    Setting(label="Snapshots of files for undo", key=("files", "snapshots"), choices=ON_OFF, needs_restart=True),
)


async def open_settings(app: SessionApp) -> None:
    """Show the settings until the user closes them. Raises `ConfigError` if the file cannot be changed."""
    at: str | None = None
    while True:
        rows = {f"{setting.label:<{LABEL_WIDTH}}  {_show(setting, app)}": setting for setting in SETTINGS}
        at = next((row for row, setting in rows.items() if setting.label == at), None)
        chosen = await app.ui.select(f"Settings · saved in {CONFIG_NAME}", list(rows), at=at)
        if chosen is None:
            return
        setting = rows[chosen]
        at = setting.label
        value = await app.ui.select(setting.label, list(setting.choices), at=_show(setting, app))
        if value is not None:
            set_setting(setting.key, setting.choices[value])
            app.reload_settings()
            if setting.needs_restart:
                app.ui.notify(f"{setting.label}: {value}, from the next start")


def _show(setting: Setting, app: SessionApp) -> str:
    shown = setting.read(app.options.settings)
    return "ask" if setting.key == ("permissions", "mode") and shown == "None" else shown
