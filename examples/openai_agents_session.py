"""Keep the history of the OpenAI Agents SDK as a tree: branch at the end, go on there, and undo.

Run it with `python examples/openai_agents_session.py`; it works in a temporary folder and asks no model. In a program,
pass the session to `Runner.run(agent, "…", session=session)`.
"""

import asyncio
import tempfile

from sessiontree.adapters.openai_agents import TreeSession


async def main(folder: str) -> None:
    async with TreeSession("trip", folder) as session:
        await session.add_items([{"role": "user", "content": "Weather?"}, {"role": "assistant", "content": "Rain."}])
        await session.branch("tomorrow")
        await session.add_items([{"role": "user", "content": "And tomorrow?"}])
        assert len(await session.get_items()) == 3
        assert len(await session.get_items(branch="main")) == 2

        await session.clear_session()
        assert await session.get_items() == []
        await session.undo()
        print([item.get("content") for item in await session.get_items()])


with tempfile.TemporaryDirectory() as folder:
    asyncio.run(main(folder))
