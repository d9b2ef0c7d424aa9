"""Save a checkpoint of the files after each turn, and restore it when you navigate in the tree.

After each turn, all files are saved as a commit outside of your branches, and an entry maps the message to the commit.
After you navigate, you are asked whether to restore the files of that place. This removes newer files, but first
saves the current state as a commit too. Your branches, your index and files that git ignores are not changed.
"""

STATE = "git-checkpoint"
AUTHOR = ("-c", "user.name=sessiontree", "-c", "user.email=sessiontree@localhost")


def setup(api):
    async def git(*arguments, index=None):
        instead = () if index is None else ("env", f"GIT_INDEX_FILE={index}")
        ran = await api.exec(*instead, "git", *arguments, timeout=30)
        if ran.exit_code != 0:
            raise RuntimeError(f"git {arguments[0]}: {ran.output}")
        return ran.output.strip()

    async def create_commit(index, message):
        await git("add", "--all", index=index)
        commit = await git(*AUTHOR, "commit-tree", "-m", message, await git("write-tree", index=index))
        await git("update-ref", f"refs/sessiontree/{commit}", commit)  # keeps git from deleting it
        return commit

    async def find_index():
        return await git("rev-parse", "--path-format=absolute", "--git-path", "sessiontree-index")

    async def save_checkpoint(entry):
        api.append_entry(STATE, {"after": entry, "commit": await create_commit(await find_index(), f"after {entry}")})

    @api.on("run_start")
    async def save_at_start(event, ctx):
        if not api.path(STATE):
            await save_checkpoint(ctx.branch.leaf)

    @api.on("turn_end")
    async def save_after_turn(event, ctx):
        await save_checkpoint(event.message.id)

    @api.on("session_tree")
    async def restore(event, ctx):
        commits = {entry.body.data["after"]: entry.body.data["commit"] for entry in api.entries(STATE)}
        above = [entry.id for entry in ctx.session.tree.walk_up(event.new_leaf)]
        commit = next((commits[id] for id in [*above, None] if id in commits), None)
        if commit and await ctx.ui.confirm("Restore the files of this place?", f"checkpoint {commit[:8]}"):
            index = await find_index()
            before = await create_commit(index, f"before going back to {commit}")
            await git("restore", "--source", commit, "--worktree", "--", ".", index=index)
            ctx.ui.notify(f"Restored the files; previous state: commit {before[:8]}")
