"""Let two agents answer the same question on separate branches, and compare their costs.

Run it with `python examples/ab.py`. The session is in memory; `st.create` would store it in a file.
"""

import sessiontree as st

session = st.memory("A/B")
session.append(st.user("Make the lookup faster."))

# The branches of the agents do not become current, so a user of the session stays on main.
agents = {name: session.create_branch(name, current=False) for name in ("careful", "quick")}

agents["careful"].extend(
    [
        st.assistant(
            [st.tool_call("1", "read", {"path": "lookup.py"})],
            usage={"input": 900, "output": 40, "cost": 0.02},
        ),
        st.tool_result("1", "read", "def lookup(): ..."),
        st.assistant("A dict, with a test.", usage={"input": 1400, "output": 300, "cost": 0.04}),
    ]
)
agents["quick"].append(st.assistant("A dict.", usage={"input": 900, "output": 20, "cost": 0.015}))
assert session.head.name == "main"

for metric in ("cost", "entries"):
    result = st.compare(session, list(agents), metric=metric)
    print(f"{metric}: {result.winner}, {result.reason}")
    assert result.winner == "quick"

careful, quick = result.branches
assert (careful.cost, quick.cost) == (0.06, 0.015)
assert careful.files == ("lookup.py",)

# Nothing was recorded on main, so there is no winner.
assert st.compare(session, ["main", "quick"]).winner is None
