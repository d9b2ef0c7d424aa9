// Server-sent events with fetch, because an EventSource cannot send headers. After a disconnect the stream resumes
// after the last event. If the server answers 410, the page reloads the data. A hidden page disconnects, because a
// browser opens at most six connections to a server.

const FIRST_PAUSE = 500, MAX_PAUSE = 15_000;
const HIDDEN_DELAY = 3_000; // milliseconds after which a hidden page disconnects

/** Parse an event stream and yield its events as `{id, type, data}`. */
async function* parseEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", event = { id: null, type: "message", data: [] };
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (event.data.length) yield { ...event, data: JSON.parse(event.data.join("\n")) };
          event = { id: null, type: "message", data: [] };
          continue;
        }
        const [, name, text] = /^([^:]*):? ?(.*)$/s.exec(line);
        if (name === "data") event.data.push(text);
        else if (name === "event") event.type = text;
        else if (name === "id") event.id = text;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

export class Stream {
  /** Calls `onEvent(event)`, `onResync()` when the position is lost, and `onState("live" | "waiting" | "ended", error)`.
   * A waiting stream has an error only if the server has too many streams. */
  constructor(api, path, { onEvent, onResync, onState = () => {}, after = null }) {
    Object.assign(this, { api, path, onEvent, onResync, onState, last: after });
    this.pause = FIRST_PAUSE;
    document.addEventListener("visibilitychange", this.checkVisibility);
    window.addEventListener("pagehide", this.disconnect);
    window.addEventListener("pageshow", this.checkVisibility);
    this.checkVisibility();
    this.run();
  }

  stop() {
    this.stopped = true;
    document.removeEventListener("visibilitychange", this.checkVisibility);
    window.removeEventListener("pagehide", this.disconnect);
    window.removeEventListener("pageshow", this.checkVisibility);
    clearTimeout(this.hideTimer);
    this.connection?.abort();
    this.wake?.();
  }

  checkVisibility = () => {
    clearTimeout(this.hideTimer);
    this.isHidden = false;
    if (!document.hidden) this.wake?.();
    else this.hideTimer = setTimeout(this.disconnect, HIDDEN_DELAY);
  };

  /** Disconnect until the page is visible. A page that the browser keeps for "back" has no timers, but connections. */
  disconnect = () => {
    clearTimeout(this.hideTimer);
    this.isHidden = true;
    this.connection?.abort();
  };

  /** Wait before a retry. A hidden page waits until it is visible. */
  async waitForRetry() {
    const pause = this.pause * (0.75 + Math.random() / 2);
    this.pause = Math.min(this.pause * 2, MAX_PAUSE);
    do {
      await new Promise((wake) => {
        this.wake = wake;
        if (!this.isHidden) setTimeout(wake, pause);
      });
    } while (this.isHidden && !this.stopped);
  }

  async run() {
    while (!this.stopped) {
      const { signal } = (this.connection = new AbortController());
      let streamError = null;
      try {
        const headers = { Accept: "text/event-stream", ...(this.last === null ? {} : { "Last-Event-ID": String(this.last) }) };
        const response = await this.api.fetch(this.path, { headers, signal });
        this.onState("live");
        for await (const event of parseEvents(response.body)) {
          if (signal.aborted) break;
          this.pause = FIRST_PAUSE;
          if (event.id !== null) this.last = event.id;
          if (event.type === "resync") return this.requestResync();
          this.onEvent(event);
        }
      } catch (error) {
        if (!signal.aborted) {
          if (error.status === 410) return this.requestResync();
          if (error.status >= 400 && error.status < 500 && error.status !== 429) {
            this.stop();
            return this.onState("ended", error);
          }
          if (error.code === "too_many_streams") streamError = error;
        }
      }
      if (this.stopped) return undefined;
      this.onState("waiting", streamError);
      await this.waitForRetry();
    }
    return undefined;
  }

  requestResync() {
    this.stop();
    return this.onResync();
  }
}
