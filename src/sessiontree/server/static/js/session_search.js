// Search within a session: a field, the matches of all branches, and highlighted words in the conversation.
import { Button, Component, html } from "./html.js";
import { pluralize } from "./format.js";

const PAUSE = 180; // milliseconds after a key
const MAX_HITS = 100;
const MAX_RANGES = 2000; // highlighted places

/** Highlight the words of a query in an element. Browsers without highlights show the matches only in the list. */
export function highlightWords(element, query) {
  if (!globalThis.CSS?.highlights) return;
  CSS.highlights.delete("found");
  const words = readWords(query);
  if (!element || !words.length) return;
  const ranges = [];
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  while (walker.nextNode() && ranges.length < MAX_RANGES) {
    const text = walker.currentNode.data.toLowerCase();
    for (const word of words) {
      for (let at = text.indexOf(word); at >= 0 && ranges.length < MAX_RANGES; at = text.indexOf(word, at + word.length)) {
        if (text.length !== walker.currentNode.data.length) break; // the lower case has other positions
        const range = new Range();
        range.setStart(walker.currentNode, at);
        range.setEnd(walker.currentNode, at + word.length);
        ranges.push(range);
      }
    }
  }
  if (ranges.length) CSS.highlights.set("found", new Highlight(...ranges));
}

/** Return the words and quoted phrases of a query, without filters such as `role:user`. */
const readWords = (query) =>
  [...query.toLowerCase().matchAll(/"([^"]+)"|(\S+)/g)]
    .map(([, phrase, word]) => phrase ?? (/^-?[a-z]+:/.test(word) || word.startsWith("-") ? "" : word))
    .filter((word) => word.length > 1);

export class SessionSearch extends Component {
  state = { query: this.props.query ?? "", hits: null, more: false, error: null };

  componentDidMount() {
    if (this.state.query) this.load();
  }

  componentWillUnmount() {
    clearTimeout(this.timer);
    this.request = null;
    highlightWords(null, "");
  }

  onInput = (event) => {
    this.setState({ query: event.target.value });
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.load(), PAUSE);
  };

  async load() {
    const request = (this.request = {});
    const { session, onQuery } = this.props, query = this.state.query.trim();
    onQuery(query);
    if (!query) return this.setState({ hits: null, error: null });
    try {
      const found = await session.api.get("/search", { q: query, session: session.info.id, limit: MAX_HITS });
      if (this.request === request) this.setState({ hits: found.hits, more: Boolean(found.next), error: null });
    } catch (error) {
      if (this.request === request) this.setState({ hits: null, error: error.message });
    }
    return undefined;
  }

  onKeyDown = (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    this.props.close();
  };

  render({ show, close }, { query, hits, more, error }) {
    const focus = (field) => field && !this.hasFocus && (this.hasFocus = true) && field.focus();
    return html`<section class="find" aria-label="Search in this session" onKeyDown=${this.onKeyDown}>
      <div class="row">
        <input ref=${focus} type="search" aria-label="Search in this session" placeholder="Search all branches" value=${query}
          onInput=${this.onInput} autocomplete="off" spellcheck=${false} />
        <span class="fact" role="status">${error ?? (hits && (hits.length ? `${pluralize(hits.length, "match", "matches")}${more ? " or more" : ""}` : "No matches"))}</span>
        <${Button} kind="small" label="Close search" keys="Esc" onClick=${close} />
      </div>
      ${hits?.length > 0 && html`<ol class="matches">${hits.map((hit) => html`<li key=${hit.entry}>
        <button type="button" class="quiet" onClick=${() => show(hit.entry)}>
          <span class="snippet">${hit.snippet}</span>
          <span class="facts"><span>${hit.role.replaceAll("_", " ")}</span><span>${hit.branch ?? "no branch"}</span></span>
        </button>
      </li>`)}</ol>`}
    </section>`;
  }
}
