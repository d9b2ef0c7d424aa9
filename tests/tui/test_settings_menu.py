"""`/settings`: what is shown, what is written, and what applies at once."""

from __future__ import annotations

import pytest
from msgspec.structs import fields

from sessiontree.config import AppSettings, Config, load_config
from sessiontree.tui.services.settings_menu import SETTINGS, Setting

from .conftest import Running


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.label)
def test_every_value_of_every_setting_can_be_configured(setting: Setting) -> None:
    from sessiontree.config_editing import set_setting

    for shown, value in setting.choices.items():
        set_setting(setting.key, value)
        assert setting.read(load_config()) == shown


def test_all_settings_of_the_app_are_in_the_menu() -> None:
    assert {("app", field.name) for field in fields(AppSettings)} <= {setting.key for setting in SETTINGS}


async def test_a_theme_is_chosen_written_and_applied_at_once(running: Running) -> None:
    async with running("Hello.") as app:
        await app.submit_and_wait("Hi")
        assert app.app.theme == "sessiontree-dark"
        await app.submit("/settings")
        await app.wait_for_text("Settings · saved in config.toml", "Theme", "auto")
        await app.press("enter")
        await app.wait_for_text("paper")
        await app.press(*"paper", "enter")
        await app.wait_until(lambda: app.app.theme == "sessiontree-paper")

        assert load_config().app.theme == "paper"
        await app.wait_for_text("Settings", "paper")
        await app.press("escape")
        await app.wait_for_text("Hello.")


async def test_a_setting_that_needs_a_restart_says_so(running: Running) -> None:
    async with running(settings=Config()) as app:
        await app.submit("/settings")
        await app.wait_for_text("Snapshots of files for undo")
        await app.press(*"snapshots", "enter")
        await app.wait_for_text("on", "off")
        await app.press("down", "enter")
        await app.wait_for_text("Snapshots of files for undo: off, from the next start")

        assert load_config().files.snapshots is False
