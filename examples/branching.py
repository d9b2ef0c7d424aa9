"""Try two approaches from one place, and read both after reopening the file.

Run it with `python examples/branching.py`; it works in a temporary folder.
"""

import tempfile
from pathlib import Path

import sessiontree as st


def check(session: st.Session) -> None:
    """Check the session, both before and after reopening the file."""
    main, a, b = (session.branch(name) for name in ("main", "approach-a", "approach-b"))
    assert main.path()[-1].body.message["content"][0]["text"] == "I have several approaches..."
    assert a.path()[:-2] == b.path()[:-2] == main.path()  # siblings: each has its branch point and its answer
    assert session.head == b


with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "optimise.jsonl"
    with st.create("optimise", cwd=folder, file=file) as session:
        main = session.head
        main.append(st.user("How do I optimise this?"))
        main.append(st.assistant("I have several approaches..."))

        a = session.create_branch("approach-a", description="a better algorithm")
        a.append(st.assistant("Approach A: use memoization", usage={"input": 1500, "output": 300, "cost": 0.05}))

        session.switch("main")
        b = session.create_branch("approach-b", description="a better data structure")
        b.append(st.assistant("Approach B: use a map", usage={"input": 1200, "output": 200, "cost": 0.03}))
        check(session)

    with st.open(file) as session:
        check(session)
        for info in session.branches:
            print(f"{'*' if info.current else ' '} {info.name}: {info.entry_count} entries")
