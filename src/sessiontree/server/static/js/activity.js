// The audit log in words: what a request did, by its method and the nouns of its path.
const ACTIONS = {
  "POST /sign-in": "Sign in",
  "POST /sign-out": "Sign out",
  "POST sessions": "Create session",
  "PATCH sessions": "Change session",
  "POST sessions/archive": "Archive or restore session",
  "POST sessions/exports": "Export",
  "GET sessions/export": "Export",
  "DELETE exports": "Remove export",
  "POST sessions/shares": "Create share link",
  "DELETE sessions/shares": "Revoke share link",
  "open share link": "Open share link",
  "POST sessions/entries": "Add entry",
  "POST sessions/branches": "Create branch",
  "PATCH sessions/branches": "Change branch",
  "POST sessions/switch-branch": "Switch branch",
  "POST sessions/undo": "Undo",
  "POST sessions/label": "Label entry",
  "POST sessions/navigate": "Go to entry",
  "POST sessions/fork": "Fork session",
  "POST sessions/merge": "Merge branch",
  "POST sessions/promote": "Promote branch",
  "POST sessions/cherry-pick": "Copy entries",
  "POST sessions/prompt": "Prompt",
  "POST sessions/steer": "Steer agent",
  "POST sessions/abort": "Stop agent",
  "POST sessions/permissions": "Answer permission question",
  "POST sessions/experiments": "Start A/B run",
  "POST experiments/stop": "Stop A/B run",
  "POST swarms": "Start swarm",
  "DELETE swarms": "Destroy swarm",
  "POST swarms/pause": "Pause swarm",
  "POST swarms/resume": "Resume swarm",
  "POST swarms/stop": "Stop swarm",
  "POST swarms/scale": "Scale swarm",
  "POST swarms/steer": "Steer swarm agent",
  "POST swarms/branches": "Create branch",
  "POST swarms/switch-branch": "Switch branch",
};

/** Return an action of the audit log in words, such as `Create share link`; an unknown one unchanged. */
export const describeAction = (action) => {
  const [method, path] = action.split(" /api/");
  const nouns = path?.split("/").filter((_, index) => index % 2 === 0).slice(0, 2).join("/");
  const key = path === undefined ? action : `${method} ${nouns}`;
  return Object.hasOwn(ACTIONS, key) ? ACTIONS[key] : action;
};
