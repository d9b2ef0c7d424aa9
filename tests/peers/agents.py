"""The real coding agents, from npm, in a network namespace whose only way out is a model on the loopback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from sessiontree.convert.anthropic_messages import from_anthropic
from sessiontree.convert.gemini import from_gemini
from sessiontree.convert.openai_chat import from_openai
from sessiontree.convert.openai_responses import from_openai_responses
from tests.interop.conformance import Plain, merge, simplify
from tests.peers.fetch_pi import NPM_SECONDS, FetchError, NodeMissing
from tests.peers.loopback_model import COMMAND_SECONDS, PORT

PACKAGES = {
    "@anthropic-ai/claude-code": "2.1.326",
    "@openai/codex": "0.169.0",
    "opencode-ai": "1.18.33",
    "@google/gemini-cli": "0.61.0",
}
CODEX_CONFIG = f"""\
model = "loop"
model_provider = "loop"
approval_policy = "never"
sandbox_mode = "read-only"
[model_providers.loop]
name = "loop"
base_url = "http://127.0.0.1:{PORT}/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
"""


SYSTEM_ROLES = ("developer", "system")
OPENCODE_IMPORT = ["opencode", "import"]
OPENCODE_CONFIG = {
    "autoupdate": False,
    "share": "disabled",
    "model": "loop/loop",
    "small_model": "loop/loop",
    "provider": {
        "loop": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "loop",
            "options": {"baseURL": f"http://127.0.0.1:{PORT}/v1", "apiKey": "none"},
            "models": {
                "loop": {
                    "name": "loop",
                    "attachment": True,
                    "tool_call": True,
                    "modalities": {"input": ["text", "image"], "output": ["text"]},
                    "limit": {"context": 200000, "output": 8000},
                }
            },
        }
    },
}
PI_MODELS = {
    "providers": {
        "loop": {
            "baseUrl": f"http://127.0.0.1:{PORT}",
            "api": "anthropic-messages",
            "apiKey": "none",
            "models": [{"id": "loop", "input": ["text", "image"]}],
        }
    }
}
GEMINI_SETTINGS = {
    "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
    "general": {"disableAutoUpdate": True, "enableAutoUpdate": False},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
}


def fetch_agents(scratch: Path) -> Path:
    """Return the folder of the installed programs, fetched on the first call. Raises `NodeMissing` or `FetchError`."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        raise NodeMissing("The real programs cannot run: Node and npm were not found.")
    final = scratch.resolve() / ("agents-" + "-".join(PACKAGES.values()))
    if final.is_dir():
        return final
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=scratch) as name:
        work = Path(name) / "all"
        work.mkdir()
        specs = [f"{package}@{version}" for package, version in PACKAGES.items()]
        env = {**os.environ, "HOME": name}  # the scripts of the packages write to the home
        command = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(work), *specs]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=NPM_SECONDS, check=False, env=env)
        except subprocess.TimeoutExpired:
            raise FetchError(f"npm install took longer than {NPM_SECONDS} s.") from None
        if done.returncode != 0:
            raise FetchError(f"npm install of {', '.join(specs)} failed.")
        for folder, script in (("@anthropic-ai/claude-code", "install.cjs"), ("opencode-ai", "postinstall.mjs")):
            place = work / "node_modules" / folder  # the script selects the program for this machine
            subprocess.run([node, script], cwd=place, capture_output=True, timeout=NPM_SECONDS, check=False, env=env)
        work.rename(final)
    return final


class Agents:
    """Runs the programs with a home and a project of their own."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs = programs / "node_modules/.bin"
        self._folder = folder
        self.home = folder / "home"
        self.project = (folder / "project").resolve()
        (self.home / ".codex").mkdir(parents=True, exist_ok=True)
        self.project.mkdir()
        trusted = f'[projects."{self.project}"]\ntrust_level = "trusted"\n'
        (self.home / ".codex/config.toml").write_text(CODEX_CONFIG + trusted)
        accepted = {"hasTrustDialogAccepted": True}
        settings = {"hasCompletedOnboarding": True, "projects": {str(self.project): accepted}}
        (self.home / ".claude.json").write_text(json.dumps(settings))
        for name, config in (
            (".config/opencode/opencode.json", OPENCODE_CONFIG),
            (".gemini/settings.json", GEMINI_SETTINGS),
            (".pi/agent/models.json", PI_MODELS),
        ):
            (self.home / name).parent.mkdir(parents=True, exist_ok=True)
            (self.home / name).write_text(json.dumps(config))

    def run(self, commands: list[tuple[str, list[str]]]) -> list[list[Plain]]:
        """Run commands, each of a program, and return what each of them sent to the model, in plain form."""
        results = self.run_raw([argv for _, argv in commands])
        return [
            describe_requests(program, result)
            for (program, argv), result in zip(commands, results, strict=True)
            if argv[:2] != OPENCODE_IMPORT
        ]

    def run_raw(self, commands: list[list[str]]) -> list[Any]:
        """Run commands, and return what each of them printed and the requests that it made."""
        env = {
            "HOME": str(self.home),
            "PATH": f"{self._programs}:{os.environ['PATH']}",
            "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{PORT}",
            "ANTHROPIC_API_KEY": "none",
            "OPENAI_API_KEY": "none",
            "GEMINI_API_KEY": "none",
            "GOOGLE_GEMINI_BASE_URL": f"http://127.0.0.1:{PORT}",
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "NO_BROWSER": "1",
            "DISABLE_AUTOUPDATER": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "ENABLE_TOOL_SEARCH": "false",  # Claude Code: send the schemas of all tools
        }
        jobs = [{"argv": argv, "cwd": str(self.project), "env": env} for argv in commands]
        script, log = self._folder / "commands.json", self._folder / "log.json"
        script.write_text(json.dumps(jobs))
        namespace = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]
        server = str(Path(__file__).with_name("loopback_model.py"))
        subprocess.run(
            [*namespace, sys.executable, server, str(log), str(script)],
            check=True,
            timeout=COMMAND_SECONDS * (len(jobs) + 1),
        )
        return json.loads(log.read_text())


def describe_requests(program: str, result: Any) -> list[Plain]:
    """Return the messages of the first request of a conversation."""
    path = {
        "claude": "/messages",
        "codex": "/responses",
        "opencode": "/chat/completions",
        "gemini": "enerateContent",
        "pi": "/messages",
    }
    requests = [one["body"] for one in result["requests"] if path[program] in one["path"]]
    bodies = [body for body in requests if program == "codex" or body.get("tools")]  # others make titles
    assert bodies, result["said"]
    match program:
        case "claude" | "pi":
            messages = from_anthropic(bodies[0]["messages"])
        case "codex":
            items = [item for item in bodies[0]["input"] if item.get("role") not in SYSTEM_ROLES]
            messages = from_openai_responses([{key: item[key] for key in item if key != "id"} for item in items])
        case "opencode":
            messages = from_openai(message for message in bodies[0]["messages"] if message["role"] not in SYSTEM_ROLES)
            for body in messages:  # `opencode run` puts quotes around its argument
                content = body.message["content"]
                body.message["content"] = content.strip('"') if isinstance(content, str) else content
        case _:
            messages = from_gemini(bodies[0]["contents"])
    return merge(simplify(body.message for body in messages))


def build_prompt_command(program: str, prompt: str, session: str | None = None) -> list[str]:
    """Return the command that asks a program, in a new session or in one that it resumes."""
    if program == "claude":
        return ["claude", *(["--resume", session] if session else []), "-p", prompt]
    if program == "opencode":
        return ["opencode", "run", "--model", "loop/loop", *(["--session", session] if session else []), prompt]
    if program == "gemini":
        resume = ["--resume", session] if session else []
        return ["gemini", "-m", "gemini-2.5-flash", "-y", *resume, "-p", prompt]
    resume = ["resume", session] if session else []
    return ["codex", "exec", "--skip-git-repo-check", *resume, prompt]
