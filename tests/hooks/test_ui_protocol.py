from sessiontree.hooks.ui_protocol import NoUi


async def test_without_a_user_nothing_is_selected_and_defaults_are_returned() -> None:
    ui = NoUi()

    assert ui.has_person is False
    assert await ui.select("Which?", ["a", "b"]) is None
    assert await ui.confirm("Sure?") is False
    assert await ui.confirm("Sure?", default=True) is True
    assert await ui.input("Name?") is None
    assert await ui.editor("Text?", "draft") is None
    assert await ui.custom(object()) is None


def test_notifications_without_a_user_are_recorded() -> None:
    ui = NoUi()

    ui.notify("hello")
    ui.notify("careful", "warning")
    ui.status("job", "running")

    assert ui.notices == [("info", "hello"), ("warning", "careful")]
