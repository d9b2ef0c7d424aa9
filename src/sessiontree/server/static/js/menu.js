// A button that opens a list of actions. It closes after an action, with Escape, and when the focus leaves it.
import { Component, createRef, html } from "./html.js";

export class Menu extends Component {
  details = createRef();

  close = (focus) => {
    const details = this.details.current;
    if (!details?.open) return;
    details.open = false;
    if (focus) details.querySelector("summary").focus();
  };

  onKeyDown = (event) => {
    if (event.key !== "Escape" || !this.details.current.open) return;
    event.stopPropagation();
    this.close(true);
  };

  onFocusOut = (event) => this.details.current?.contains(event.relatedTarget) || this.close();

  /** Keep the list inside the window. */
  onToggle = () => {
    const details = this.details.current;
    if (!details.open) return;
    const list = details.querySelector(".menu-list"), box = details.getBoundingClientRect();
    list.classList.toggle("up", box.bottom + list.offsetHeight > innerHeight - 8);
    list.classList.toggle("start", box.right - list.offsetWidth < 8);
  };

  render({ label, text = "⋯", kind = "", children }) {
    return html`<details class="menu ${kind}" ref=${this.details} onKeyDown=${this.onKeyDown} onFocusOut=${this.onFocusOut} onToggle=${this.onToggle}>
      <summary class="button small" role="button" aria-haspopup="true" aria-label=${label} title=${label}>${text}</summary>
      <div class="menu-list" role="group" aria-label=${label} onClick=${() => this.close()}>${children}</div>
    </details>`;
  }
}
