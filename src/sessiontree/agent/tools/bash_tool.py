"""The `bash` tool: run a shell command in the working folder."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from sessiontree.agent.tool import Tool, ToolContext, ToolOutput
from sessiontree.agent.tools.command_runner import CommandResult, run_command
from sessiontree.agent.tools.environment import clean_environment
from sessiontree.agent.tools.output_limits import MAX_BYTES, MAX_LINES

DEFAULT_TIMEOUT = 120.0
"""The default time limit of a command, in seconds."""


class BashArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    command: Annotated[str, Meta(description="The command, for bash -c.")]
    timeout: Annotated[float, Meta(gt=0, description=f"Time limit in seconds; default {DEFAULT_TIMEOUT:g}.")] = (
        DEFAULT_TIMEOUT
    )


async def run_bash(context: ToolContext) -> ToolOutput:
    arguments: BashArguments = context.arguments
    ran = await run_command(
        arguments.command,
        cwd=context.cwd,
        environment=clean_environment(context.settings),
        confinement=context.confinement,
        timeout=arguments.timeout,
        update=context.update,
    )
    ended = _describe_exit(ran, arguments.timeout)
    details: dict[str, Any] = {"exitCode": ran.exit_code}
    if ran.full_output is not None:
        details["fullOutputPath"] = ran.full_output
    parts = (ran.output or ("" if ended else "(no output)"), ran.note, ended)
    return ToolOutput(content="\n\n".join(part for part in parts if part), details=details, is_error=bool(ended))


def _describe_exit(ran: CommandResult, timeout: float) -> str:
    """Describe how a command failed; empty if it succeeded."""
    if ran.aborted:
        return "The command was aborted."
    if ran.timed_out:
        return f"The command was stopped after {timeout:g} seconds."
    return f"The command exited with code {ran.exit_code}." if ran.exit_code else ""


bash = Tool(
    name="bash",
    description="Run a shell command in the working folder and return what it prints, errors included. "
    f"Of long output the last {MAX_LINES} lines or {MAX_BYTES} bytes are shown, "
    "with the path of a file that has all of it.",
    run=run_bash,
    arguments=BashArguments,
    does="runs",
    command="command",
)
