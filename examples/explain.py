"""Show the context of a place before you navigate to it.

Run it with `python examples/explain.py`.
"""

import sessiontree as st

session = st.memory()
session.append(st.user("Read the whole log and tell me what failed."))
before = session.append(st.assistant("It failed in the parser. " * 40))
kept = session.append(st.user("Then fix the parser."))
session.append(st.Compaction(summary="The parser fails on empty lines.", first_kept=kept.id, tokens_before=12_000))
session.label(kept, "fix")
session.append(st.assistant("Fixed."))


def show(place: st.Place) -> st.Explanation:
    explanation = st.explain(session.tree, session.resolve_place(place))
    for item in explanation.entries:
        mark = "✓" if item.reaches_model else "·"
        print(f"{mark} {item.tokens:4}  {item.entry.type:12} {item.reason}")
    print(f"  {explanation.tokens:4}  tokens, estimated\n")
    return explanation


now, earlier = show("HEAD"), show(before)
assert [item.reaches_model for item in now.entries] == [False, False, True, True, True]
assert all(item.reaches_model for item in earlier.entries)
assert now.tokens < earlier.tokens
