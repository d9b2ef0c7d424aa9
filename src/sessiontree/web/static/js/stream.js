// Server-sent events read with fetch, since an EventSource cannot send the token. Every event once and in order: after a
// break the stream goes on behind the last event it saw; where the server cannot do that it says 410, and the page
// loads anew.

const FIRST_PAUSE = 500, LONGEST_PAUSE = 15_000;

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
  /** `heard(event)`; `resync()` when the place is lost; `state("live" | "waiting" | "ended", error)`. */
  constructor(api, path, { heard, resync, state = () => {}, after = null }) {
    Object.assign(this, { api, path, heard, resync, state, last: after });
    this.stopper = new AbortController();
    this.pause = FIRST_PAUSE;
    this.run();
  }

  stop() {
    this.stopper.abort();
  }

  async run() {
    const { signal } = this.stopper;
    while (!signal.aborted) {
      try {
        const headers = { Accept: "text/event-stream", ...(this.last === null ? {} : { "Last-Event-ID": String(this.last) }) };
        const answer = await this.api.fetch(this.path, { headers, signal });
        this.state("live");
        for await (const event of events(answer.body)) {
          if (signal.aborted) return;
          this.pause = FIRST_PAUSE;
          if (event.id !== null) this.last = event.id;
          if (event.type === "resync") return this.resync();
          this.heard(event);
        }
      } catch (error) {
        if (signal.aborted) return;
        if (error.status === 410) return this.resync();
        if (error.status >= 400 && error.status < 500 && error.status !== 429) return this.state("ended", error);
      }
      if (signal.aborted) return;
      this.state("waiting");
      await new Promise((wake) => setTimeout(wake, this.pause * (0.75 + Math.random() / 2)));
      this.pause = Math.min(this.pause * 2, LONGEST_PAUSE);
    }
  }
}
