"""Keep the conversations of a pydantic-ai agent as trees: ask, go back, ask again.

Run it with `python examples/pydantic_ai_store.py`; it works in a temporary folder, with a model that needs no key.
"""

import asyncio
import tempfile

from pydantic_ai import Agent, Conversation
from pydantic_ai.models.test import TestModel

import sessiontree as st
from sessiontree.adapters.pydantic_ai import TreeConversationStore

agent = Agent(TestModel(custom_output_text="Rain."))


async def main(folder: str) -> None:
    store = TreeConversationStore(folder)
    for prompt in ("Weather in Ulm?", "And tomorrow?"):
        conversation = await store.load("trip") or Conversation(conversation_id="trip")
        await store.save(await agent.run(prompt, conversation=conversation))

    loaded = await store.load("trip")
    assert loaded is not None
    branched = await store.branch("trip", at=2, expected_revision=loaded.revision)
    await store.save(await agent.run("And in Bonn?", conversation=branched))

    session = st.open(st.sessions(dir=folder)[0].file)
    assert [leaf.entry_count > 0 for leaf in session.unnamed_leaves] == [True]
    print(session.tree)


with tempfile.TemporaryDirectory() as folder:
    asyncio.run(main(folder))
