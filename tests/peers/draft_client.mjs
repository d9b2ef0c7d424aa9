// A client of version 2 of the Agent Client Protocol, built with the npm SDK, which checks every message.
// node draft_client.mjs SDK FOLDER COMMAND...   Prints the updates and the results as JSON.
import { spawn } from "node:child_process";
import { Readable, Writable } from "node:stream";
import { pathToFileURL } from "node:url";

const [sdk, folder, command, ...args] = process.argv.slice(2);
const acp = await import(pathToFileURL(sdk));
const agent = spawn(command, args, { cwd: folder, stdio: ["pipe", "pipe", "inherit"] });
const ended = new Promise((resolve) => agent.once("exit", resolve));
const stream = acp.ndJsonStream(Writable.toWeb(agent.stdin), Readable.toWeb(agent.stdout));
const { agent: methods, client: own } = { agent: acp.AGENT_METHODS, client: acp.CLIENT_METHODS };
const seen = [];
let isIdle = () => {};

const app = acp
  .client({ name: "test" })
  .onRequest(own.session_request_permission, () => ({ outcome: { outcome: "selected", optionId: "once" } }))
  .onNotification(own.session_update, ({ params }) => {
    seen.push(params.update);
    if (params.update.sessionUpdate === "state_update" && params.update.state === "idle") isIdle();
  });

await app.connectWith(stream, async (context) => {
  const started = await context.request(methods.initialize, {
    protocolVersion: acp.PROTOCOL_VERSION,
    info: { name: "test", version: "1" },
  });
  const { sessionId } = await context.request(methods.session_new, { cwd: folder });
  const idle = new Promise((resolve) => (isIdle = resolve));
  const accepted = await context.request(methods.session_prompt, {
    sessionId,
    prompt: [{ type: "text", text: "Edit a.txt" }],
  });
  await idle;
  await context.request(methods.session_close, { sessionId });
  console.log(JSON.stringify({ started, accepted, seen }));
});
agent.stdin.end();
await ended;
