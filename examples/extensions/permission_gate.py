"""A gate before commands that destroy something: the person is asked, and where nobody is there, the answer is no.

The model is told why. A gate that fails counts as closed.
"""

import re

DANGEROUS = re.compile(
    r"\brm\s+(-\w*[rf]|--recursive|--force)|\bsudo\b|\bgit\s+(push\b.*--force|reset\s+--hard|clean\b)"
)


def setup(api):
    @api.on("tool_call")
    async def gate(event, ctx):
        command = str(event.call.arguments.get("command", "")) if event.call.name == "bash" else ""
        if not DANGEROUS.search(command):
            return None
        if await ctx.ui.confirm("Let it run?", command):
            return None
        return {"cancel": True, "reason": "the user does not want this command to be run"}
