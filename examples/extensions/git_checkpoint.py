"""A checkpoint of the files for each turn, so that going back in the tree can bring back the files too.

After each turn all files are kept as a commit that no branch names, and an entry says which commit belongs to which
message. After going somewhere, one is asked whether the files are to be put back to how they were there. Files that
were made since are gone then; what there was is kept as a commit too. Your own branches, your index and files that
git ignores are not touched.
"""

STATE = "git-checkpoint"
WHO = ("-c", "user.name=sessiontree", "-c", "user.email=sessiontree@localhost")


def setup(api):
    async def git(*arguments, index=None):
        instead = () if index is None else ("env", f"GIT_INDEX_FILE={index}")
        ran = await api.exec(*instead, "git", *arguments, timeout=30)
        if ran.exit_code != 0:
            raise RuntimeError(f"git {arguments[0]}: {ran.output}")
        return ran.output.strip()

    async def committed(index, message):
        await git("add", "--all", index=index)
        commit = await git(*WHO, "commit-tree", "-m", message, await git("write-tree", index=index))
        await git("update-ref", f"refs/sessiontree/{commit}", commit)  # so that git does not throw it away
        return commit

    async def own_index():
        return await git("rev-parse", "--path-format=absolute", "--git-path", "sessiontree-index")

    async def keep(entry):
        api.append_entry(STATE, {"after": entry, "commit": await committed(await own_index(), f"after {entry}")})

    @api.on("run_start")
    async def keep_the_beginning(event, ctx):
        if not api.path(STATE):
            await keep(ctx.branch.leaf)

    @api.on("turn_end")
    async def keep_the_turn(event, ctx):
        await keep(event.message.id)

    @api.on("session_tree")
    async def put_back(event, ctx):
        commits = {entry.body.data["after"]: entry.body.data["commit"] for entry in api.entries(STATE)}
        above = [entry.id for entry in ctx.session.tree.walk_up(event.new_leaf)]
        commit = next((commits[id] for id in [*above, None] if id in commits), None)
        if commit and await ctx.ui.confirm("Put the files back to how they were here?", f"checkpoint {commit[:8]}"):
            index = await own_index()
            before = await committed(index, f"before going back to {commit}")
            await git("restore", "--source", commit, "--worktree", "--", ".", index=index)
            ctx.ui.notify(f"the files are as they were here; what there was before is in commit {before[:8]}")
