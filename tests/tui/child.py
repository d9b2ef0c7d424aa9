"""Run the app in a separate process with a slow scripted model. The argument is a session file."""

from __future__ import annotations

import os
import sys

import sessiontree as st
from sessiontree.model.base import Model
from sessiontree.model.scripted import Delay, ScriptedModel
from sessiontree.tui.app import AppOptions, SessionApp

MODEL = ScriptedModel([["The beginning of it. ", Delay(60), "The end."], "Second."])


class Models:
    def find(self, name: str | None = None) -> Model:
        return MODEL

    def list_names(self) -> list[str]:
        return [MODEL.info.name]


if __name__ == "__main__":
    SessionApp(AppOptions(session=st.open(sys.argv[1]), cwd=os.getcwd()), models=Models()).run()
