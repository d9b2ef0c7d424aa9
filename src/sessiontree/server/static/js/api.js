// Requests to the server: JSON, files and errors.

/** A failed request. Its message is one sentence for the user. */
class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }

  /** Whether a retry may succeed. */
  get isTemporary() {
    return this.status === 0 || this.status === 429 || this.status >= 500;
  }
}

const PAGE = 2000; // the maximum that the server returns at once

const MAX_KEPT = 40; // responses that may be used again

const PAGE_ID = crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`; // identifies this tab until it is closed

const buildQuery = (values) => {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(values ?? {})) {
    if (value !== undefined && value !== null && value !== "") params.set(name, value);
  }
  return params.size ? `?${params}` : "";
};

const readError = async (response) => {
  const error = (await response.json().catch(() => null))?.error;
  return new ApiError(response.status, error?.code ?? "unknown", error?.message ?? `the server responded with status ${response.status}`);
};

export class Api {
  /** Calls `onSignedOut` if the server rejects this browser: its cookie is missing, expired or revoked. */
  constructor(onSignedOut) {
    this.onSignedOut = onSignedOut;
    this.unchanged = new Map(); // responses with their ETags, by address
  }

  /** Send a request to the API and return the response. Throws `ApiError` if it failed. */
  async fetch(path, { method = "GET", values, body, headers, signal } = {}) {
    try {
      return await this.request(`/api${path}${buildQuery(values)}`, { method, body, headers, signal });
    } catch (error) {
      if (error.status === 401) this.onSignedOut(error);
      throw error;
    }
  }

  async request(address, { method, body, headers, signal }) {
    let response;
    try {
      response = await fetch(address, {
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
    if (response.ok || response.status === 304) return response;
    throw await readError(response);
  }

  /** Exchange a code or a token for a cookie. Scripts cannot read the cookie, not even this one. */
  signIn(credential) {
    return this.request("/sign-in", { method: "POST", body: credential });
  }

  signOut() {
    return this.request("/sign-out", { method: "POST", body: {} });
  }

  /** Return the JSON at a path. An unchanged response is not sent again; callers do not change the value. */
  async get(path, values, options = {}) {
    const address = `${path}${buildQuery(values)}`, known = this.unchanged.get(address);
    const headers = known ? { "If-None-Match": known.tag } : {};
    const response = await this.fetch(path, { values, ...options, headers: { ...options.headers, ...headers } });
    if (response.status === 304) return known.value;
    const tag = response.headers.get("ETag"), value = await response.json();
    this.unchanged.delete(address);
    if (tag) this.unchanged.set(address, { tag, value });
    if (this.unchanged.size > MAX_KEPT) this.unchanged.delete(this.unchanged.keys().next().value);
    return value;
  }

  /** Send a write. Its idempotency key keeps a repeated request from running twice. */
  async send(method, path, body = {}) {
    const headers = { "Idempotency-Key": crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}` };
    const response = await this.fetch(path, { method, body, headers });
    const text = await response.text();
    return text ? JSON.parse(text) : {};
  }

  post(path, body) {
    return this.send("POST", path, body);
  }

  /** Yield the pages of a list. */
  async *iteratePages(path, values, options) {
    let cursor;
    do {
      const page = await this.get(path, { ...values, cursor }, options);
      yield page;
      cursor = page.next;
    } while (cursor);
  }

  /** Return the last page of a list, with the items of all pages under `name`. */
  async getAll(path, name) {
    const items = [];
    let last;
    for await (const page of this.iteratePages(path, { limit: PAGE })) {
      items.push(...page[name]);
      last = page;
    }
    return { ...last, [name]: items };
  }

  /** Export a session, report progress, and download the file. Returns the redaction report. */
  async exportSession(base, body, name, onProgress) {
    let job = await this.post(`${base}/exports`, body);
    const path = `/exports${joinPath(job.id)}`;
    try {
      for (let wait = 100; job.state === "queued" || job.state === "running"; wait = Math.min(wait * 1.5, 2000)) {
        onProgress(describeProgress(job));
        await new Promise((resolve) => setTimeout(resolve, wait));
        job = await this.get(path);
      }
      return await this.download(`${path}/file`, {}, name);
    } finally {
      this.send("DELETE", path).catch(() => {});
    }
  }

  /** Download a file. Returns the redaction report if there is one. */
  async download(path, values, name) {
    const response = await this.fetch(path, { values });
    const report = response.headers.get("Redaction-Report");
    const address = URL.createObjectURL(await response.blob());
    const link = document.createElement("a");
    link.href = address;
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 10_000);
    return report && JSON.parse(report);
  }
}

const describeProgress = ({ state, lines, redacted, written }) => {
  const count = (number) => number.toLocaleString("en");
  if (state === "queued") return "Waiting for other exports…";
  if (written) return `Writing: ${(written / 1e6).toFixed(1)} MB`;
  if (redacted) return `Redacting: ${count(redacted)} of ${count(lines)} lines`;
  return lines ? `Reading: ${count(lines)} lines` : "Reading…";
};

export const joinPath = (...parts) => parts.map((part) => `/${encodeURIComponent(part)}`).join("");
