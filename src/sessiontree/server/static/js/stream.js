// Server-sent events with fetch, because an EventSource cannot send headers. After a disconnect the stream resumes
// after the last event. If the server answers 410, the page reloads the data. A hidden page disconnects, because a
// browser opens at most six connections to a server.

const FIRST_PAUSE = 500, LONGEST_PAUSE = 15_000;
const UNSEEN = 3_000; // milliseconds that a page is hidden until it lets go of its connection

/** Lines of an event stream in, events `{id, type, data}` out. */
export async function* events(body) {
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
  /** `heard(event)`; `resync()` when the place is lost; `state("live" | "waiting" | "ended", error)`,
   * where a waiting stream has an error only when the server has too many streams to open this one. */
  constructor(api, path, { heard, resync, state = () => {}, after = null }) {
    Object.assign(this, { api, path, heard, resync, state, last: after });
    this.pause = FIRST_PAUSE;
    document.addEventListener("visibilitychange", this.look);
    this.look();
    this.run();
  }

  stop() {
    this.stopped = true;
    document.removeEventListener("visibilitychange", this.look);
    clearTimeout(this.leaving);
    this.connection?.abort();
    this.wake?.();
  }

  look = () => {
    clearTimeout(this.leaving);
    this.unseen = false;
    if (!document.hidden) this.wake?.();
    else {
      this.leaving = setTimeout(() => {
        this.unseen = true;
        this.connection.abort();
      }, UNSEEN);
    }
  };

  /** Until it is time to try again; a page that is hidden waits until it is seen. */
  async rest() {
    const pause = this.pause * (0.75 + Math.random() / 2);
    this.pause = Math.min(this.pause * 2, LONGEST_PAUSE);
    do {
      await new Promise((wake) => {
        this.wake = wake;
        if (!this.unseen) setTimeout(wake, pause);
      });
    } while (this.unseen && !this.stopped);
  }

  async run() {
    while (!this.stopped) {
      const { signal } = (this.connection = new AbortController());
      let refused = null;
      try {
        const headers = { Accept: "text/event-stream", ...(this.last === null ? {} : { "Last-Event-ID": String(this.last) }) };
        const answer = await this.api.fetch(this.path, { headers, signal });
        this.state("live");
        for await (const event of events(answer.body)) {
          if (signal.aborted) break;
          this.pause = FIRST_PAUSE;
          if (event.id !== null) this.last = event.id;
          if (event.type === "resync") return this.lost();
          this.heard(event);
        }
      } catch (error) {
        if (!signal.aborted) {
          if (error.status === 410) return this.lost();
          if (error.status >= 400 && error.status < 500 && error.status !== 429) {
            this.stop();
            return this.state("ended", error);
          }
          if (error.code === "too_many_streams") refused = error;
        }
      }
      if (this.stopped) return undefined;
      this.state("waiting", refused);
      await this.rest();
    }
    return undefined;
  }

  lost() {
    this.stop();
    return this.resync();
  }
}
