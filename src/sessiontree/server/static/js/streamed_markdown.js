// Renders the text that an agent is streaming: the server turns it into sanitized HTML, one request at a time.
const PAUSE = 120; // milliseconds between two requests
const MAX_LENGTH = 50_000; // longer texts stay plain until they are complete

export class StreamedMarkdown {
  constructor(api, onChange) {
    Object.assign(this, { api, onChange, active: new Set() });
  }

  /** Render the text of a run, again while it grows. */
  async update(run) {
    if (this.active.has(run)) return;
    this.active.add(run);
    let rendered = null;
    while (run.text && run.text !== rendered && run.text.length <= MAX_LENGTH) {
      rendered = run.text;
      try {
        const answer = await this.api.fetch("/markdown", { method: "POST", body: { text: rendered } });
        const { html } = await answer.json();
        if (!run.text.startsWith(rendered)) continue; // it is the text of another answer now
        run.html = html;
        this.onChange();
      } catch {
        run.html = ""; // shows the plain text
        break;
      }
      await new Promise((resolve) => setTimeout(resolve, PAUSE));
    }
    if (run.text.length > MAX_LENGTH) run.html = "";
    this.active.delete(run);
  }
}
