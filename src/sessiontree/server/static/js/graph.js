// The tree as a graph on a canvas that pans and zooms. layout.js computes positions; only visible entries are drawn.
// Selections are reported to `onSelect`.
import { findMembers, findPath } from "./layout.js";
import { pluralize } from "./format.js";
import { Component, createRef, html } from "./html.js";
import { onThemeChange, readPalette } from "./palette.js";
import { makeVisible } from "./sanitize.js";

const ROW = 30, DOT = 5, TEXT = 14, MARGIN = 28;
const PILL = 26; // around the name of a branch: the gaps before and after it, and its padding
const MIN_LANE = 160, MAX_LANE = 420, LANE_GAP = 16; // pixels between lanes: limits at full scale, and the minimum at any scale
const MAX_SCALE = 2.5;
const TEXT_SCALE = 0.55; // text is drawn from this scale on
const DOT_SCALE = 0.16; // dots are drawn from this scale on; below it, only heads are marked
const MAX_MARKS = 400; // heads that are marked at small scales
const MAX_CHARACTERS = 200; // of a text; more never fit

export class Graph extends Component {
  canvas = createRef();
  view = { x: MARGIN, y: MARGIN, scale: 1 };
  pointers = new Map();
  drawn = [];
  isPlaced = false;

  componentDidMount() {
    this.colours = readPalette();
    this.resizeObserver = new ResizeObserver(() => this.resize());
    this.resizeObserver.observe(this.canvas.current);
    this.stopThemeListener = onThemeChange(() => {
      this.colours = readPalette();
      this.drawSoon();
    });
    this.canvas.current.addEventListener("wheel", this.onWheel, { passive: false });
    this.resize();
  }

  componentDidUpdate(before) {
    const { props } = this;
    this.pendingSelection = undefined;
    if (before.layout !== props.layout && !this.isVisible()) this.isPlaced = false;
    if (before.layout !== props.layout && props.follow) this.reveal(props.leaf);
    else if (before.selected !== props.selected && props.selected) this.reveal(props.selected);
    else if (before.leaf !== props.leaf && !props.selected) this.reveal(props.leaf);
    if (!this.isPlaced) this.showLeaf();
    this.drawSoon();
  }

  componentWillUnmount() {
    this.resizeObserver.disconnect();
    this.stopThemeListener();
    cancelAnimationFrame(this.frame);
    this.frame = undefined;
  }

  // Positions: from lanes and rows of the layout to pixels

  /** Pixels between two lanes at a scale. At small scales, rows shrink more than lanes to keep branches apart. */
  getLaneWidth(scale = this.view.scale) {
    const lanes = Math.max(1, this.props.layout.lanes);
    const full = Math.min(MAX_LANE, Math.max(MIN_LANE, (this.width - MARGIN) / lanes));
    return Math.max(full * scale, Math.min(LANE_GAP, (this.width - 2 * MARGIN) / lanes));
  }

  getRowHeight(scale = this.view.scale) {
    return ROW * scale;
  }

  locate(node) {
    return { x: this.view.x + node.chain.lane * this.getLaneWidth(), y: this.view.y + node.depth * this.getRowHeight() };
  }

  /** The scale at which the whole tree is visible. */
  computeFitScale() {
    const { lanes, depth } = this.props.layout;
    const high = (this.height - 2 * MARGIN) / (Math.max(1, depth) * ROW);
    const wide = (this.width - 2 * MARGIN) / (Math.max(1, lanes) * this.getLaneWidth(1));
    return Math.min(1, Math.max(0.001, lanes * this.getLaneWidth(high) > this.width ? Math.min(high, wide) : high));
  }

  resize() {
    const canvas = this.canvas.current;
    const ratio = devicePixelRatio || 1;
    this.width = canvas.clientWidth;
    this.height = canvas.clientHeight;
    canvas.width = Math.round(this.width * ratio);
    canvas.height = Math.round(this.height * ratio);
    if (!this.isPlaced && this.width) this.showLeaf();
    this.draw();
  }

  /** Whether a part of the tree is visible: a filter may remove that part. */
  isVisible() {
    const { lanes, depth } = this.props.layout, { x, y } = this.view;
    const across = x < this.width - MARGIN && x + lanes * this.getLaneWidth() > MARGIN;
    return across && y < this.height - MARGIN && y + depth * this.getRowHeight() > MARGIN;
  }

  /** Show the leaf near the bottom at full scale, or the root if there is no leaf. */
  showLeaf = () => {
    const { layout, leaf } = this.props;
    if (!this.width || !layout.nodes.length) return;
    this.isPlaced = true;
    this.view = { scale: 1, x: MARGIN, y: MARGIN };
    const { x, y } = this.locate(layout.nodes[layout.index.get(leaf) ?? 0]);
    if (x + this.getLaneWidth() > this.width) this.view.x += this.width - MARGIN - x - this.getLaneWidth();
    if (layout.depth * ROW + 2 * MARGIN > this.height) this.view.y += Math.min(0, this.height * 0.7 - y);
    this.drawSoon();
  };

  fit = () => {
    const { lanes, depth } = this.props.layout;
    const scale = this.computeFitScale();
    this.view = { scale, x: MARGIN, y: MARGIN };
    if (scale < TEXT_SCALE) {
      this.view.x = Math.max(MARGIN, (this.width - lanes * this.getLaneWidth()) / 2);
      this.view.y = Math.max(MARGIN, (this.height - depth * this.getRowHeight()) / 2);
    }
    this.drawSoon();
  };

  reveal(id) {
    const node = this.props.layout.nodes[this.props.layout.index.get(id) ?? -1];
    if (!node || !this.width) return;
    const { x, y } = this.locate(node);
    const words = Math.min(this.getLaneWidth(), this.width * 0.6);
    if (x < MARGIN) this.view.x += MARGIN - x;
    else if (x + words > this.width) this.view.x -= x + words - this.width;
    if (y < MARGIN) this.view.y += MARGIN - y;
    else if (y > this.height - 2 * MARGIN) this.view.y -= y - (this.height - 2 * MARGIN);
  }

  zoom = (factor, x = this.width / 2, y = this.height / 2) => {
    const lane = (x - this.view.x) / this.getLaneWidth(), row = (y - this.view.y) / this.getRowHeight();
    const scale = Math.min(MAX_SCALE, Math.max(Math.min(0.5, this.computeFitScale()), this.view.scale * factor));
    this.view = { scale, x: x - lane * this.getLaneWidth(scale), y: y - row * this.getRowHeight(scale) };
    this.drawSoon();
  };

  pan(x, y) {
    const { lanes, depth } = this.props.layout;
    const clamp = (value, size, window) => Math.min(window - MARGIN, Math.max(MARGIN - size, value));
    this.view.x = clamp(this.view.x + x, lanes * this.getLaneWidth(), this.width);
    this.view.y = clamp(this.view.y + y, depth * this.getRowHeight(), this.height);
    this.drawSoon();
  }

  // Drawing

  drawSoon() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.draw();
    });
  }

  draw() {
    const canvas = this.canvas.current;
    const pen = canvas?.getContext("2d");
    if (!pen || !this.width) return;
    const { layout, leaf, selected } = this.props;
    const { x, y, scale } = this.view;
    const ratio = devicePixelRatio || 1;
    const shown = this.getPath();
    const visible = {
      top: -y / this.getRowHeight() - 1,
      bottom: (this.height - y) / this.getRowHeight() + 1,
      left: -x / this.getLaneWidth() - 1,
      right: (this.width - x) / this.getLaneWidth(),
    };
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    const near = layout.chains.filter((chain) => chain.top - 1 <= visible.bottom && chain.top + chain.members.length >= visible.top);
    this.drawLines(pen, near, visible, shown);
    if (scale >= DOT_SCALE) {
      const inSight = near.filter((chain) => chain.lane >= visible.left && chain.lane <= visible.right);
      this.drawn = inSight.flatMap((chain) => findMembers(chain, visible.top, visible.bottom)).map((number) => layout.nodes[number]);
    } else {
      const marked = [...this.props.heads.keys(), leaf, selected].slice(-MAX_MARKS);
      this.drawn = [...new Set(marked)].map((id) => layout.nodes[layout.index.get(id) ?? -1]).filter(Boolean);
    }
    this.computeWidths();
    for (const node of this.drawn) this.drawEntry(pen, node, shown.has(node.number));
    canvas.dataset.drawn = this.drawn.length;
    canvas.dataset.scale = scale.toFixed(4);
    const here = layout.nodes[layout.index.get(leaf) ?? -1];
    canvas.dataset.here = here?.row.id ?? "";
    canvas.dataset.pathEnd = this.pathCache.last?.row.id ?? "";
    canvas.dataset.hereAt = here ? Object.values(this.locate(here)).map(Math.round).join(" ") : "";
  }

  /** Return the shown path, cached until the layout or its end changes. */
  getPath() {
    const { layout, end } = this.props;
    if (this.pathCache?.layout !== layout || this.pathCache.end !== end) {
      this.pathCache = { layout, end, numbers: new Set(findPath(layout, end)), last: layout.nodes[layout.index.get(end) ?? -1] };
    }
    return this.pathCache.numbers;
  }

  /** Compute the width of each entry: up to the next entry in its row. */
  computeWidths() {
    const lanesByRow = new Map();
    this.widths = new Map();
    for (const { depth, chain } of this.drawn) lanesByRow.set(depth, [...(lanesByRow.get(depth) ?? []), chain.lane]);
    for (const { number, depth, chain } of this.drawn) {
      const next = Math.min(...lanesByRow.get(depth).filter((lane) => lane > chain.lane), Infinity);
      const visible = Math.max(this.getLaneWidth(), this.width - this.view.x - chain.lane * this.getLaneWidth());
      this.widths.set(number, Math.min(MAX_LANE * this.view.scale, (next - chain.lane) * this.getLaneWidth(), visible));
    }
  }

  drawLines(pen, chains, visible, shown) {
    const { nodes } = this.props.layout, { x: left, y: top, scale } = this.view;
    const lane = this.getLaneWidth(), row = this.getRowHeight();
    const half = row / 2, corner = Math.min(9 * scale, half, lane / 2);
    const painted = new Set(); // at small scales, chains on the same pixels are drawn once
    for (const bright of [false, true]) {
      pen.beginPath();
      for (const chain of chains) {
        if (bright && !shown.has(chain.first)) continue;
        const x = left + chain.lane * lane;
        const begin = Math.max(chain.top, visible.top), end = Math.min(chain.top + chain.members.length - 1, visible.bottom);
        if (!bright && scale < DOT_SCALE) {
          const pixel = `${Math.round(x)} ${Math.round(begin * row)} ${Math.round(end * row)}`;
          if (painted.has(pixel)) continue;
          painted.add(pixel);
        }
        const parent = nodes[nodes[chain.first].parent];
        if (parent && parent.chain.lane <= visible.right && chain.lane >= visible.left) {
          const from = left + parent.chain.lane * lane, y = top + parent.depth * row;
          pen.moveTo(from, y);
          pen.lineTo(from, y + half - corner);
          pen.quadraticCurveTo(from, y + half, from + corner, y + half);
          pen.lineTo(x - corner, y + half);
          pen.quadraticCurveTo(x, y + half, x, y + half + corner);
          pen.lineTo(x, y + row);
        }
        if (chain.lane < visible.left || chain.lane > visible.right) continue;
        const last = bright ? Math.min(end, this.findLastShown(chain, shown)) : end;
        if (last >= begin) {
          pen.moveTo(x, top + begin * row);
          pen.lineTo(x, Math.max(top + last * row, top + begin * row + 2));
        }
      }
      pen.lineWidth = bright ? 2.4 : scale < DOT_SCALE ? 1 : 1.5;
      pen.strokeStyle = bright ? this.colours.accent : this.colours.edge;
      pen.stroke();
    }
  }

  /** Return the row where the shown path leaves a chain. A path contains the first members of a chain. */
  findLastShown(chain, shown) {
    let low = 0, high = chain.members.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (shown.has(chain.members[middle])) low = middle;
      else high = middle - 1;
    }
    return chain.top + low;
  }

  drawEntry(pen, node, onPath) {
    const { leaf, selected, heads, running, isLeafHidden } = this.props;
    const { row } = node, { scale } = this.view, c = this.colours;
    const { x, y } = this.locate(node);
    const chosen = row.id === selected, here = row.id === leaf;
    const names = heads.get(row.id) ?? [];
    const size = Math.min(1.4, Math.max(0.5, scale));
    if (chosen) {
      pen.fillStyle = c.tint;
      pen.beginPath();
      pen.roundRect(x - 12 * size, y - 12.5 * size, scale >= TEXT_SCALE ? this.widths.get(node.number) - 10 : 24 * size, 25 * size, 8 * size);
      pen.fill();
    }
    const radius = (here || chosen ? DOT + 1.5 : DOT) * size;
    drawDisc(pen, x, y, radius, pickColour(row, c));
    if (!onPath && !here) drawDisc(pen, x, y, Math.max(0.5, radius - 1.6 * size), c.panel);
    if (here || names.some((name) => running.has(name))) {
      pen.beginPath();
      pen.arc(x, y, radius + 3 * size, 0, 2 * Math.PI);
      pen.lineWidth = 1.5;
      pen.strokeStyle = c.green;
      if (here && isLeafHidden) pen.setLineDash([2.5, 2.5]); // the leaf is further down
      pen.stroke();
      pen.setLineDash([]);
    }
    if (scale >= TEXT_SCALE) this.drawText(pen, node, names, onPath, x, y);
    else if (names.length && this.getLaneWidth() > 60) this.drawPill(pen, names[0], x + 10, y, c.green, c["green-tint"], 0.9, this.getLaneWidth() - 30);
  }

  drawText(pen, { row, number }, names, onPath, x, y) {
    const { scale } = this.view, c = this.colours;
    let left = x + TEXT * scale;
    const end = x + this.widths.get(number) - 22;
    if (row.label) left = this.drawPill(pen, row.label, left, y, c.amber, c["amber-tint"], scale, 110) + 6;
    const taken = names.reduce((sum, name) => sum + Math.min(100 * scale, this.measure(pen, name, 11 * scale)) + PILL * scale, 0);
    const room = Math.max(36 * scale, end - left - Math.min(taken, (end - left) * 0.6));
    pen.textBaseline = "middle";
    pen.fillStyle = pickTextColour(row, c);
    pen.font = `${row.role === "user" ? 600 : 400} ${12.5 * scale}px ${c.sans}`;
    pen.globalAlpha = onPath ? 1 : 0.92; // a lower contrast is hard to read
    const files = row.files ? ` · ${pluralize(row.files, "file")}` : "";
    const text = row.failed ? `✗ ${getText(row)}` : getText(row);
    const words = shorten(pen, text, Math.max(0, room - pen.measureText(files).width)) + files;
    pen.fillText(words, left, y + 0.5);
    left += pen.measureText(words).width + 8 * scale;
    pen.globalAlpha = 1;
    for (const name of names) {
      if (left > end - 16) break;
      left = this.drawPill(pen, name, left, y, c.green, c["green-tint"], scale, Math.max(30, Math.min(100, (end - left) / scale - 14))) + 4;
    }
  }

  drawPill(pen, text, x, y, ink, paper, size, most) {
    pen.font = `500 ${11 * size}px ${this.colours.sans}`;
    const words = shorten(pen, text, most * size);
    const width = pen.measureText(words).width + 14 * size;
    pen.fillStyle = paper;
    pen.beginPath();
    pen.roundRect(x, y - 9 * size, width, 18 * size, 9 * size);
    pen.fill();
    pen.fillStyle = ink;
    pen.textBaseline = "middle";
    pen.fillText(words, x + 7 * size, y + 0.5);
    return x + width;
  }

  measure(pen, text, size) {
    pen.font = `500 ${size}px ${this.colours.sans}`;
    return pen.measureText(text).width;
  }

  // Input: one finger or the mouse pans; two fingers or Ctrl+wheel zoom

  onWheel = (event) => {
    event.preventDefault();
    const unit = event.deltaMode === 1 ? 16 : 1;
    const box = this.canvas.current.getBoundingClientRect();
    if (event.ctrlKey || event.metaKey) this.zoom(Math.exp(-event.deltaY * unit * 0.004), event.clientX - box.left, event.clientY - box.top);
    else this.pan(-(event.shiftKey ? event.deltaY : event.deltaX) * unit, event.shiftKey ? 0 : -event.deltaY * unit);
  };

  onPointerDown = (event) => {
    this.canvas.current.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
    this.dragged = this.pointers.size > 1 ? 99 : 0;
  };

  onPointerMove = (event) => {
    const before = this.pointers.get(event.pointerId);
    if (!before) {
      this.canvas.current.style.cursor = this.findNodeAt(event) ? "pointer" : "grab";
      return;
    }
    const now = { x: event.offsetX, y: event.offsetY };
    this.pointers.set(event.pointerId, now);
    if (this.pointers.size === 1) {
      this.dragged += Math.hypot(now.x - before.x, now.y - before.y);
      if (this.dragged > 4) this.pan(now.x - before.x, now.y - before.y);
      return;
    }
    const other = [...this.pointers].find(([id]) => id !== event.pointerId)[1];
    const getDistance = (point) => Math.max(1, Math.hypot(point.x - other.x, point.y - other.y));
    this.zoom(getDistance(now) / getDistance(before), (now.x + other.x) / 2, (now.y + other.y) / 2);
  };

  onPointerUp = (event) => {
    if (!this.pointers.delete(event.pointerId)) return;
    if (event.type === "pointerup" && this.dragged <= 4) {
      const node = this.findNodeAt(event);
      if (node) this.select(node.row.id);
    }
  };

  /** Return the entry under the pointer. */
  findNodeAt({ offsetX, offsetY }) {
    const getWidth = (node) => (this.view.scale >= TEXT_SCALE ? this.widths.get(node.number) - 18 : 12);
    const high = Math.max(this.getRowHeight() / 2, 9);
    let best = null, least = Infinity;
    for (const node of this.drawn) {
      const { x, y } = this.locate(node);
      const away = Math.abs(offsetY - y);
      if (offsetX >= x - 14 && offsetX <= x + getWidth(node) && away <= high && away < least) [best, least] = [node, away];
    }
    return best;
  }

  /** Keys may arrive faster than frames are drawn, so remember the selection until the next frame. */
  select(id) {
    this.pendingSelection = id;
    this.props.onSelect(id);
  }

  onKeyDown = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { layout, selected, leaf, onOpen } = this.props;
    const node = layout.nodes[layout.index.get(this.pendingSelection ?? selected ?? leaf) ?? layout.nodes.length - 1];
    if (!node) return;
    const siblings = node.parent < 0 ? layout.roots : layout.nodes[node.parent].children;
    const findSibling = (step) => siblings[siblings.indexOf(node.number) + step] ?? this.findInNextLane(node, step);
    const targets = {
      ArrowUp: () => node.parent,
      ArrowDown: () => node.children[0],
      ArrowLeft: () => findSibling(-1),
      ArrowRight: () => findSibling(1),
      Home: () => findPath(layout, node.row.id)[0],
      End: () => node.chain.members.at(-1),
    };
    if (event.key in targets) {
      const number = targets[event.key]();
      if (number !== undefined && number >= 0) this.select(layout.nodes[number].row.id);
    } else if (event.key === "Enter") onOpen(node.row.id);
    else if (event.key === "+" || event.key === "=") this.zoom(1.25);
    else if (event.key === "-") this.zoom(0.8);
    else if (event.key === "0") this.fit();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };

  /** Return the nearest entry of the same depth in the next lane on one side. */
  findInNextLane(node, direction) {
    const { chains } = this.props.layout;
    let best;
    for (const chain of chains) {
      const number = findMembers(chain, node.depth, node.depth)[0];
      if (number === undefined || (chain.lane - node.chain.lane) * direction <= 0) continue;
      if (!best || Math.abs(chain.lane - node.chain.lane) < Math.abs(best.lane - node.chain.lane)) best = chain;
    }
    return best && findMembers(best, node.depth, node.depth)[0];
  }

  render({ layout, selected, leaf, heads, isLeafHidden }) {
    const node = layout.nodes[layout.index.get(selected ?? leaf) ?? -1];
    return html`<div class="graph">
      <canvas
        ref=${this.canvas}
        id="graph"
        tabindex="0"
        role="application"
        aria-label="Session tree. Arrow keys to move, Enter to open the conversation."
        onPointerDown=${this.onPointerDown}
        onPointerMove=${this.onPointerMove}
        onPointerUp=${this.onPointerUp}
        onPointerCancel=${this.onPointerUp}
        onKeyDown=${this.onKeyDown}
      ></canvas>
      <div class="zoom" role="group" aria-label="Zoom">
        <button type="button" aria-label="Zoom in" title="Zoom in (+)" onClick=${() => this.zoom(1.25)}>+</button>
        <button type="button" aria-label="Zoom out" title="Zoom out (−)" onClick=${() => this.zoom(0.8)}>−</button>
        <button type="button" aria-label="Fit tree" title="Fit tree (0)" onClick=${this.fit}>⤢</button>
        <button type="button" aria-label="Go to the current entry" title="Go to the current entry" onClick=${this.showLeaf}>◎</button>
      </div>
      ${isLeafHidden && html`<p class="hint" role="status">${
        leaf
          ? "The filter hides the current entry. The dashed ring marks its nearest visible ancestor."
          : "The filter hides the current entry and all its ancestors."
      }</p>`}
      <div class="unseen" role="status">${node ? describe(layout, node, heads, leaf) : ""}</div>
    </div>`;
  }
}

const drawDisc = (pen, x, y, radius, colour) => {
  pen.beginPath();
  pen.arc(x, y, radius, 0, 2 * Math.PI);
  pen.fillStyle = colour;
  pen.fill();
};

const getText = (row) => row.text || `(${row.role ?? row.type})`;

/** Return the branches whose end is at an entry, or else below it in the same line. */
const findBranches = (nodes, { chain, depth }, heads) => {
  const end = chain.members.slice(depth - chain.top).find((number) => heads.get(nodes[number].row.id)?.length);
  return end === undefined ? [] : heads.get(nodes[end].row.id);
};

/** Return what a screen reader says about an entry: its text, its place in the tree, its branches and its marks. */
const describe = ({ nodes, roots }, node, heads, leaf) => {
  const { row, depth, parent, children, number } = node;
  const siblings = parent < 0 ? roots : nodes[parent].children, branches = findBranches(nodes, node, heads);
  return [
    `${row.role ?? row.type}: ${getText(row).slice(0, 160)}`,
    `depth ${depth + 1}`,
    branches.length ? `branch ${branches.join(", ")}` : "no branch",
    heads.get(row.id)?.length && "end of the branch",
    siblings.length > 1 && `${siblings.indexOf(number) + 1} of ${siblings.length} siblings`,
    children.length > 1 && `splits into ${children.length}`,
    row.label && `label ${row.label}`,
    row.failed && "failed",
    row.files && `changed ${pluralize(row.files, "file")}`,
    row.id === leaf && "current",
  ].filter(Boolean).join("; ");
};

const shorten = (pen, source, room) => {
  const text = makeVisible(source.slice(0, MAX_CHARACTERS));
  if (pen.measureText(text).width <= room) return text;
  let low = 0, high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (pen.measureText(`${text.slice(0, middle)}…`).width <= room) low = middle;
    else high = middle - 1;
  }
  return low ? `${text.slice(0, low).trimEnd()}…` : "";
};

const SUMMARIES = new Set(["compaction", "branch_summary"]);
const pickColour = (row, c) => {
  if (row.failed) return c.red;
  if (row.role === "user") return c.accent;
  if (row.role === "assistant") return c.ink;
  if (SUMMARIES.has(row.type)) return c.violet;
  if (row.type === "custom_message") return c.green;
  return c.soft;
};
const SPEAKERS = new Set(["user", "assistant"]);
const pickTextColour = (row, c) => (row.failed || SPEAKERS.has(row.role) || SUMMARIES.has(row.type) ? pickColour(row, c) : c.soft);
