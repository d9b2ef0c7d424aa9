// Requests to the server: JSON, files and errors.

/** A refusal or a failure; its message is one sentence for people. */
export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }

  /** Whether the same may be answered a little later. */
  get passes() {
    return this.status === 0 || this.status === 429 || this.status >= 500;
  }
}

const PAGE = 2000; // items of a list: the most that the server gives at once

const PAGE_ID = crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`; // of this tab, for as long as it is open

const query = (values) => {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(values ?? {})) {
    if (value !== undefined && value !== null && value !== "") words.set(name, value);
  }
  return words.size ? `?${words}` : "";
};

const refusal = async (answer) => {
  const told = await answer.json().catch(() => null);
  const error = told?.error;
  return new ApiError(answer.status, error?.code ?? "unknown", error?.message ?? `the server answered with ${answer.status}`);
};

export class Api {
  /** `refused` is called when the server does not know this browser: its cookie is missing, expired or revoked. */
  constructor(refused) {
    this.refused = refused;
  }

  /** The bare answer, of which only the status has been looked at. */
  async fetch(path, { method = "GET", values, body, headers, signal } = {}) {
    try {
      return await this.ask(`/api${path}${query(values)}`, { method, body, headers, signal });
    } catch (error) {
      if (error.status === 401) this.refused(error);
      throw error;
    }
  }

  async ask(address, { method, body, headers, signal }) {
    let answer;
    try {
      answer = await fetch(address, {
        method,
        signal,
        cache: "no-store",
        credentials: "same-origin",
        headers: {
          "Sessiontree-Page": PAGE_ID,
          ...(body === undefined ? {} : { "Content-Type": "application/json" }),
          ...headers,
        },
        body: body === undefined ? undefined : JSON.stringify(body),
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, "unreachable", "cannot reach the server; is sessiontree serve running?");
    }
    if (answer.ok) return answer;
    throw await refusal(answer);
  }

  /** Get the cookie of this browser for a code or a token; it is out of reach for scripts, this one too. */
  signIn(credential) {
    return this.ask("/sign-in", { method: "POST", body: credential });
  }

  signOut() {
    return this.ask("/sign-out", { method: "POST", body: {} });
  }

  async get(path, values, options) {
    return (await this.fetch(path, { values, ...options })).json();
  }

  /** A write. It carries a key of its own, so that a repetition by the network does nothing twice. */
  async send(method, path, body = {}) {
    const headers = { "Idempotency-Key": crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}` };
    const answer = await this.fetch(path, { method, body, headers });
    const text = await answer.text();
    return text ? JSON.parse(text) : {};
  }

  post(path, body) {
    return this.send("POST", path, body);
  }

  /** Pages of a list, one after another. */
  async *pages(path, values, options) {
    let cursor;
    do {
      const page = await this.get(path, { ...values, cursor }, options);
      yield page;
      cursor = page.next;
    } while (cursor);
  }

  /** All items of a list that is paged: those under `name` of each page, with the last page. */
  async all(path, name) {
    const found = [];
    let last;
    for await (const page of this.pages(path, { limit: PAGE })) {
      found.push(...page[name]);
      last = page;
    }
    return { ...last, [name]: found };
  }

  /** Have a session exported, tell how far that is, and hand the file to the browser's downloads; gives what was redacted. */
  async exportSession(base, body, name, tell) {
    let job = await this.post(`${base}/exports`, body);
    const path = `/exports${at(job.id)}`;
    try {
      for (let wait = 100; job.state === "queued" || job.state === "running"; wait = Math.min(wait * 1.5, 2000)) {
        tell(progressOf(job));
        await new Promise((resolve) => setTimeout(resolve, wait));
        job = await this.get(path);
      }
      return await this.download(`${path}/file`, {}, name);
    } finally {
      this.send("DELETE", path).catch(() => {});
    }
  }

  /** Hand a file of the server to the browser's downloads; gives what was redacted in it, if that was asked for. */
  async download(path, values, name) {
    const answer = await this.fetch(path, { values });
    const report = answer.headers.get("Redaction-Report");
    const address = URL.createObjectURL(await answer.blob());
    const link = document.createElement("a");
    link.href = address;
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 10_000);
    return report && JSON.parse(report);
  }
}

/** How far an export is, in a few words. */
const progressOf = ({ state, lines, redacted, written }) => {
  const count = (number) => number.toLocaleString("en");
  if (state === "queued") return "Waiting for other exports…";
  if (written) return `Writing: ${(written / 1e6).toFixed(1)} MB`;
  if (redacted) return `Redacting: ${count(redacted)} of ${count(lines)} lines`;
  return lines ? `Reading: ${count(lines)} lines` : "Reading…";
};

export const at = (...parts) => parts.map((part) => `/${encodeURIComponent(part)}`).join("");
