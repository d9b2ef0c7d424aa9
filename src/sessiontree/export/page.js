// Draws the tree, shows paths, filters, searches and compares. Entries come as safe HTML in the data. All other text is
// inserted as text. The tree follows the rules of core/outline.py, and the model's view those of core/context.py.
"use strict";
// Let the browser paint the page first, because the rest takes longer. A hidden tab paints nothing, so start at once.
((start) => (document.hidden ? start() : requestAnimationFrame(() => setTimeout(start))))(() => {
  const $ = (id) => document.getElementById(id);
  const data = JSON.parse($("data").textContent);
  const columns = ["id", "parent", "row", "kind", "speaker", "filters", "tokens", "cost", "counts", "time", "quiet"];
  for (const name of columns) data[name] = [];
  data.html = {};
  for (const block of document.querySelectorAll("script.data")) {
    const part = JSON.parse(block.textContent);
    for (const name of columns) for (const value of part[name]) data[name].push(value);
    Object.assign(data.html, part.html);
    block.remove();
  }
  const size = data.id.length;
  const numbers = new Map(data.id.map((id, number) => [id, number]));
  const root = document.documentElement;
  const reading = $("reading"), path = $("path"), versus = $("versus"), tree = $("tree"), rows = $("rows");
  const state = { leaf: data.leaf, entry: -1, filter: 0, terms: [], folded: new Set(), model: false, compare: null };
  const small = matchMedia("(max-width: 760px)");

  // Shape

  const findPath = (number) => {
    const found = [];
    for (; number >= 0; number = data.parent[number]) found.push(number);
    return found.reverse();
  };

  // As in core/outline.py: a deep row shows only its last levels, after the number of hidden levels.
  const WIDEST = 48, PAN = 24;
  const buildPrefix = (rails, width) => {
    const hidden = width <= WIDEST ? 0 : Math.ceil((width - WIDEST) / PAN) * PAN;
    return { prefix: hidden ? rails.slice(hidden - width) : rails, hidden: hidden / 3 };
  };

  const formatDepth = (hidden) => `${hidden}… `;

  const layOut = (shown) => {
    const kids = new Map([[-1, []]]);
    const nearest = new Int32Array(size);
    // Whether an entry has a row, or is a bookkeeping entry that belongs to the row above it.
    const hasRow = new Uint8Array(size);
    const bookkept = 1 << $("filter").options.length;
    for (let number = 0; number < size; number++) {
      const parent = data.parent[number];
      const anchor = parent < 0 ? -1 : nearest[parent];
      nearest[number] = anchor;
      hasRow[number] = data.filters[number] & bookkept && parent >= 0 ? hasRow[parent] : 0;
      if (!shown(number)) continue;
      kids.get(anchor).push(number);
      kids.set(number, []);
      nearest[number] = number;
      hasRow[number] = 1;
    }
    const drawn = [];
    const roots = kids.get(-1);
    const waiting = roots.map((number) => ({ number, rails: "", width: 0, fresh: roots.length > 1, connector: "" })).reverse();
    while (waiting.length) {
      const at = waiting.pop();
      const below = kids.get(at.number);
      const width = at.width + at.connector.length;
      const folds = below.length > 1 || (at.connector && below.length);
      drawn.push({ number: at.number, width, folds, ...buildPrefix(at.rails + at.connector, width) });
      if (state.folded.has(at.number)) continue;
      const rails = at.rails + ({ "├─ ": "│  ", "└─ ": "   " }[at.connector] || "");
      const hasForks = below.length > 1;
      const inner = !hasForks && at.fresh;
      const left = (inner ? rails + "   " : rails).slice(-WIDEST);
      for (let index = below.length - 1; index >= 0; index--) {
        waiting.push({
          number: below[index],
          rails: left,
          width: width + (inner ? 3 : 0),
          fresh: hasForks,
          connector: hasForks ? (index === below.length - 1 ? "└─ " : "├─ ") : "",
        });
      }
    }
    const heads = {}, hiddenHeads = {};
    for (const [number, names] of Object.entries(data.heads)) {
      ((hasRow[number] ? heads : hiddenHeads)[nearest[number]] ||= []).push(...names);
    }
    return { rows: drawn, heads, hiddenHeads, active: data.leaf < 0 ? -1 : nearest[data.leaf], activeShown: hasRow[data.leaf] };
  };

  // Search: all words and "phrases" must match; word* matches a prefix; role:user filters by role

  const normalize = (text) => text.normalize("NFC").toLowerCase().replace(/\s+/g, " ").trim();
  const entities = { lt: "<", gt: ">", amp: "&", quot: '"', "#34": '"', "#39": "'", "#x27": "'", nbsp: " " };
  let texts = null;
  const getText = (number) => {
    texts = texts || new Array(size);
    if (texts[number] === undefined) {
      const html = data.html[number] || articles.get(number).outerHTML;
      const stripped = html.slice(html.indexOf("</header>")).replace(/<summary>.*?<\/summary>|<[^>]*>/g, " ");
      const plain = stripped.replace(/&(#?\w+);/g, (all, name) => entities[name] || all);
      texts[number] = normalize(`${data.speaker[number]} ${data.row[number]} ${data.label[number] || ""} ${(data.heads[number] || []).join(" ")} ${plain}`);
    }
    return texts[number];
  };
  const parseQuery = (query) => {
    const terms = [];
    for (const [, phrase, word] of query.matchAll(/"([^"]*)(?:"|$)|(\S+)/g)) {
      const role = /^role:(.+)$/i.exec(word || "");
      const text = normalize(phrase || (word || "").replace(/(.)\*$/, "$1"));
      if (role) {
        const roles = role[1].toLowerCase().split(",").map((name) => (name === "tool" ? "toolresult" : name));
        terms.push((number) => roles.includes(data.speaker[number]));
      } else if (text && /.\*$/.test(word || "")) {
        const begins = new RegExp(`(?<![\\p{L}\\p{N}_])${text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}`, "u");
        terms.push((number) => begins.test(getText(number)));
      } else if (text) {
        terms.push((number) => getText(number).includes(text));
      }
    }
    return terms;
  };

  // The tree: only visible rows are in the document

  const ROW = 26;
  const COLUMN = 7.5; // the approximate width of a connector character in pixels
  let drawn = { rows: [], heads: {}, hiddenHeads: {}, active: -1 };
  let onPath = new Set();
  let cursor = 0;

  const draw = () => {
    drawn = layOut((number) => data.filters[number] >> state.filter & 1 && state.terms.every((term) => term(number)));
    onPath = new Set(findPath(state.leaf));
    const at = drawn.rows.findIndex((row) => row.number === state.leaf);
    if (at >= 0) cursor = at;
    cursor = Math.min(cursor, Math.max(0, drawn.rows.length - 1));
    rows.style.height = `${drawn.rows.length * ROW}px`;
    $("count").textContent = `${drawn.rows.length.toLocaleString("en")} of ${size.toLocaleString("en")}`;
    $("fold").textContent = state.folded.size ? "Unfold all" : "Fold all";
    paint();
  };

  const createSpan = (name, text) => {
    const element = document.createElement("span");
    element.className = name;
    element.textContent = text;
    return element;
  };

  const paint = () => {
    const first = Math.max(0, Math.floor(tree.scrollTop / ROW) - 8);
    const last = Math.min(drawn.rows.length, Math.ceil((tree.scrollTop + tree.clientHeight) / ROW) + 8);
    // In a wide tree, scroll the connectors out of view and keep the text visible, as in the app.
    const room = Math.floor(tree.clientWidth / 2 / COLUMN);
    const getRoom = ({ hidden }) => Math.max(0, room - (hidden ? formatDepth(hidden).length : 0));
    const pan = drawn.rows.length ? Math.max(0, drawn.rows[cursor].prefix.length - getRoom(drawn.rows[cursor])) : 0;
    const getRailWidth = (row) => Math.min(Math.max(0, row.prefix.length - pan), getRoom(row));
    rows.replaceChildren(...drawn.rows.slice(first, last).map((row, index) => createRow(row, first + index, getRailWidth(row))));
    tree.setAttribute("aria-activedescendant", drawn.rows.length ? `r${drawn.rows[cursor].number}` : "");
  };

  const createRow = ({ number, prefix, hidden, width, folds }, index, rails) => {
    const row = document.createElement("div");
    const isHere = number === state.leaf;
    row.className = `row ${data.kind[number]}${isHere ? " at" : ""}${index === cursor ? " cursor" : ""}`;
    row.id = `r${number}`;
    row.dataset.index = index;
    row.style.top = `${index * ROW}px`;
    row.setAttribute("role", "treeitem");
    row.setAttribute("aria-level", width / 3 + 1);
    row.setAttribute("aria-selected", isHere);
    row.setAttribute("aria-posinset", index + 1);
    row.setAttribute("aria-setsize", drawn.rows.length);
    const closed = state.folded.has(number);
    if (folds) row.setAttribute("aria-expanded", !closed);
    const rail = createSpan("rail", prefix);
    if (rails < prefix.length) {
      rail.classList.add("cut");
      rail.style.width = `${rails}ch`;
    }
    if (hidden) row.append(createSpan("depth", formatDepth(hidden)));
    row.append(rail, createSpan("fold", folds ? (closed ? "▸" : "▾") : ""));
    if (onPath.has(number)) row.append(createSpan("dot", "• "));
    if (data.label[number]) row.append(createSpan("label", data.label[number]));
    row.append(createSpan("words", data.row[number]));
    for (const name of drawn.heads[number] || []) row.append(createSpan("branch", name));
    const below = drawn.hiddenHeads[number];
    if (below) row.append(createSpan("below", `(${below.join(", ")}: hidden below)`));
    if (number === drawn.active && drawn.activeShown) row.append(createSpan("here", "← active"));
    else if (number === drawn.active) row.append(createSpan("below", below ? "↓ active" : "↓ active: hidden below"));
    return row;
  };

  const revealCursor = () => {
    const top = cursor * ROW;
    if (top < tree.scrollTop) tree.scrollTop = top - ROW;
    else if (top + 2 * ROW > tree.scrollTop + tree.clientHeight) tree.scrollTop = top + 2 * ROW - tree.clientHeight;
    paint();
  };

  const fold = (number, closed) => {
    if (closed) state.folded.add(number);
    else state.folded.delete(number);
    draw();
  };

  const foldAll = () => {
    if (state.folded.size) state.folded.clear();
    else for (const { number, prefix, folds } of drawn.rows) if (folds && prefix && !onPath.has(number)) state.folded.add(number);
    draw();
  };

  // Entries: the active path is in the page; other entries are created from their HTML when they are shown

  const articles = new Map();
  for (const article of path.querySelectorAll("article")) articles.set(+article.id.slice(1), article);
  const waiting = [...path.querySelectorAll("noscript")].map((holder) => {
    const parts = holder.textContent.split(/(?=<article )/).map((html) => [+/ id="e(\d+)"/.exec(html)[1], html]);
    parts.forEach(([number, html]) => (data.html[number] = html));
    return [holder.parentElement, parts.map(([number]) => ({ number }))];
  });

  const parseHtml = (html) => {
    const template = document.createElement("template");
    template.innerHTML = html;
    return template.content.firstElementChild;
  };
  const getArticle = ({ number, html }) => {
    if (html) return parseHtml(html);
    if (!articles.has(number)) articles.set(number, parseHtml(data.html[number]));
    return articles.get(number);
  };

  const UNFOLDABLE = { thinking: "details.thinking", outputs: "details.fold" };
  const unfolded = new Set();
  const unfold = (holder) => unfolded.forEach((id) => holder.querySelectorAll(UNFOLDABLE[id]).forEach((element) => (element.open = true)));
  let isInitial = true; // the path is still the one in the page
  let empty = new Map(waiting);
  const fill = (chunk) => {
    const items = empty.get(chunk);
    if (!items) return;
    empty.delete(chunk);
    observer.unobserve(chunk);
    chunk.replaceChildren(...items.map(getArticle));
    unfold(chunk);
  };
  const observer = new IntersectionObserver((changes) => changes.forEach(({ target, isIntersecting }) => isIntersecting && fill(target)), {
    root: reading,
    rootMargin: "1500px 0px",
  });
  const fillIdly = () => {
    const chunk = empty.keys().next().value;
    if (!chunk) return;
    fill(chunk);
    runIdly(fillIdly);
  };
  empty.forEach((_, chunk) => observer.observe(chunk));
  const runIdly = window.requestIdleCallback || ((work) => setTimeout(work, 50));

  const show = (holder, items) => {
    const chunks = [];
    for (let start = 0; start < items.length; start += data.chunk) {
      const chunk = document.createElement("div");
      const part = items.slice(start, start + data.chunk);
      chunk.className = "chunk";
      chunk.style.containIntrinsicSize = `auto ${part.length * 160}px`;
      empty.set(chunk, part);
      chunks.push(chunk);
    }
    holder.replaceChildren(...chunks);
    if (!items.length) holder.append(createSpan("missing", "No entries."));
    chunks.forEach((chunk, index) => (index < 2 ? fill(chunk) : observer.observe(chunk)));
  };

  const render = () => {
    const isComparing = state.compare !== null;
    root.classList.toggle("comparing", isComparing);
    versus.hidden = !isComparing;
    path.hidden = isComparing;
    const isDefault = state.leaf === data.leaf && !state.model && !isComparing;
    if (!(isDefault && isInitial)) {
      isInitial = false;
      empty.forEach((_, chunk) => observer.unobserve(chunk));
      empty = new Map();
      path.replaceChildren();
      versus.replaceChildren();
      if (isComparing) renderComparison();
      else show(path, state.model ? buildModelView(findPath(state.leaf)) : hideBookkeeping(findPath(state.leaf)));
    }
    runIdly(fillIdly);
    $("reset").hidden = isDefault;
    for (const [id, on] of [["model", state.model], ["compare", isComparing]]) $(id)?.setAttribute("aria-pressed", on);
    $("where").textContent = isComparing ? "Comparison" : describe(state.leaf);
    draw();
  };

  // Hide bookkeeping entries unless the reader selected one.
  const quiet = new Set(data.quiet);
  const hideBookkeeping = (list) => list.filter((number) => !quiet.has(number) || number === state.leaf).map((number) => ({ number }));

  const countEntries = (count) => `${count.toLocaleString("en")} ${count === 1 ? "entry" : "entries"}`;

  const describe = (leaf) => {
    if (leaf < 0) return "Root";
    const names = data.heads[leaf];
    const steps = countEntries(findPath(leaf).length);
    return names ? `${names.join(", ")} · ${steps}` : `${data.label[leaf] || data.id[leaf].slice(0, 8)} · ${steps}`;
  };

  const markTarget = () => {
    document.querySelectorAll(".entry.target").forEach((element) => element.classList.remove("target"));
    const chunk = [...empty].find(([, items]) => items.some(({ number }) => number === state.entry));
    if (chunk) fill(chunk[0]);
    const target = state.entry >= 0 && $(`e${state.entry}`);
    if (!target) return;
    target.classList.add("target");
    target.scrollIntoView({ block: state.entry === state.leaf ? "nearest" : "start" });
    focus(target);
  };
  const focus = (element) => {
    element.tabIndex = -1;
    element.focus({ preventScroll: true });
  };

  // The model's view: the entries of a path that are sent to the model, in order

  const known = Object.fromEntries(["speaks", "editable", "system", "failed", "resets"].map((name) => [name, new Set(data.model[name])]));
  const isCompaction = (number) => number in data.model.anchors;
  const findLastIndex = (list, test) => list.reduce((found, number, index) => (test(number) ? index : found), -1);

  const selectForModel = (list) => {
    const compaction = findLastIndex(list, isCompaction), reset = findLastIndex(list, (number) => known.resets.has(number));
    if (compaction <= reset) return list.slice(reset + 1);
    const anchor = list.slice(0, compaction).indexOf(data.model.anchors[list[compaction]]);
    const from = anchor < 0 ? compaction : Math.max(anchor, reset + 1);
    const kept = list.slice(from, compaction).filter((number) => !isCompaction(number) && !known.system.has(number));
    return [list[compaction], ...kept, ...list.slice(compaction + 1)];
  };

  const buildModelView = (list) => {
    const chosen = selectForModel(list);
    const edits = new Map();
    for (const number of chosen) {
      const edit = data.model.edits[number];
      if (edit) edits.set(edit[0], edit);
    }
    const items = [];
    for (const number of chosen) {
      const edit = edits.get(number);
      if (edit && edit[1] === null) continue;
      const edited = edit && known.editable.has(number);
      const calls = (edited ? edit[2] : data.model.calls[number]) || [];
      items.push({ number, html: edited ? edit[1] : null, calls, answers: data.model.answers[number] });
    }
    const madeCalls = new Set(items.flatMap(({ calls }) => calls));
    const turns = [];
    const waiting = new Map();
    for (const item of items) {
      if (!known.speaks.has(item.number) || known.failed.has(item.number)) continue;
      if (item.answers === undefined || (!item.answers && !madeCalls.has(""))) {
        const turn = [item];
        turns.push(turn);
        for (const call of item.calls) {
          if (!waiting.has(call) || waiting.get(call).turn !== turn) waiting.set(call, { turn, places: [] });
          waiting.get(call).places.push(turn.length);
          turn.push(null);
        }
      } else if (waiting.get(item.answers)?.places.length) {
        const { turn, places } = waiting.get(item.answers);
        turn[places.shift()] = item;
      }
    }
    return turns.flat().filter(Boolean);
  };

  // Two branches side by side

  const listChoices = () => data.branches.filter(([, head]) => head >= 0);
  const renderComparison = () => {
    const sides = state.compare.map((name) => listChoices().find((choice) => choice[0] === name));
    const paths = sides.map(([, head]) => findPath(head));
    let shared = 0;
    while (shared < paths[0].length && paths[0][shared] === paths[1][shared]) shared++;
    const rest = paths.map((list) => list.slice(shared));
    const choose = document.createElement("div");
    choose.className = "choose";
    choose.append("Compare ", createChooser(0, "First branch"), " with ", createChooser(1, "Second branch"));
    const ancestor = paths[0][shared - 1];
    choose.append(createSpan("", ancestor === undefined ? "No common ancestor." : `They diverge after ${countEntries(shared)}, at “${shorten(data.row[ancestor], 60)}”.`));
    const both = document.createElement("div");
    both.className = "sides";
    sides.forEach(([name], index) => {
      const side = document.createElement("section");
      const title = document.createElement("h2");
      const holder = document.createElement("div");
      side.className = "side";
      side.setAttribute("aria-label", `Branch ${name}`);
      title.textContent = name;
      side.append(title, holder);
      both.append(side);
      show(holder, hideBookkeeping(rest[index]));
    });
    versus.append(choose, createStatsTable(sides.map(([name]) => name), rest), both);
  };

  const shorten = (text, length) => (text.length > length ? `${text.slice(0, length).trimEnd()}…` : text);

  const createChooser = (side, name) => {
    const select = document.createElement("select");
    select.setAttribute("aria-label", name);
    for (const [branch] of listChoices()) select.add(new Option(branch, branch, false, branch === state.compare[side]));
    select.addEventListener("change", () => {
      state.compare[side] = select.value;
      writeHash();
      render();
      versus.querySelectorAll("select")[side].focus();
    });
    return select;
  };

  // Four digits, or the first two significant ones of a smaller value, as in core/number_text.py.
  const formatDollars = (value) => {
    const digits = value > 0 && value < 1e-4 ? Math.min(1 - Math.floor(Math.log10(value)), 12) : 4;
    return `$${value.toFixed(digits)}`;
  };

  const createStatsTable = (names, sides) => {
    const sum = (list, value) => list.reduce((total, number) => total + value(number), 0);
    const lines = [
      ["Entries", (list) => list.length],
      ["Messages", (list) => sum(list, (number) => data.counts[number][0])],
      ["Tool calls", (list) => sum(list, (number) => data.counts[number][1])],
      ["Errors", (list) => sum(list, (number) => data.counts[number][2])],
      ["Tokens", (list) => sum(list, (number) => data.tokens[number])],
      ["Cost", (list) => sum(list, (number) => data.cost[number]), formatDollars],
      ["Seconds", (list) => {
        const times = list.map((number) => data.time[number]).filter(Boolean);
        return times.length ? Math.round((times.reduce((a, b) => Math.max(a, b)) - times.reduce((a, b) => Math.min(a, b))) / 1000) : 0;
      }],
    ];
    const table = document.createElement("table");
    const addCell = (row, name, text) => {
      const element = document.createElement(name);
      element.textContent = text;
      row.append(element);
      return element;
    };
    const head = table.createTHead().insertRow();
    ["After the common ancestor", ...names].forEach((text) => (addCell(head, "th", text).scope = "col"));
    for (const [name, value, format = (number) => number.toLocaleString("en")] of lines) {
      const row = (table.tBodies[0] || table.createTBody()).insertRow();
      addCell(row, "th", name).scope = "row";
      const values = sides.map(value);
      values.forEach((number, index) => addCell(row, "td", format(number)).classList.toggle("less", number > 0 && number < values[1 - index]));
    }
    return table;
  };

  // The URL holds the current position, so that it can be linked

  let lastHash = null;
  const writeHash = () => {
    const params = new URLSearchParams();
    if (state.compare) params.set("compare", state.compare.join("\n"));
    else if (state.leaf !== data.leaf) params.set("leaf", data.id[state.leaf]);
    if (state.entry >= 0 && state.entry !== state.leaf) params.set("entry", data.id[state.entry]);
    if (state.model) params.set("view", "model");
    lastHash = params.size ? `#${params}` : "#";
    if (location.hash !== lastHash && (location.hash || params.size)) location.hash = lastHash;
  };
  const readHash = () => {
    if (location.hash === lastHash || (lastHash === "#" && !location.hash)) return;
    const params = new URLSearchParams(location.hash.slice(1));
    const findEntry = (name) => (numbers.has(params.get(name)) ? numbers.get(params.get(name)) : -1);
    const compared = (params.get("compare") || "").split("\n");
    const entry = findEntry("entry");
    let leaf = findEntry("leaf");
    if (leaf < 0) leaf = entry < 0 || articles.has(entry) && findPath(data.leaf).includes(entry) ? data.leaf : entry;
    state.compare = compared.length === 2 && compared.every((name) => listChoices().some(([branch]) => branch === name)) ? compared : null;
    state.leaf = leaf;
    state.entry = entry < 0 && params.has("leaf") ? leaf : entry;
    state.model = params.get("view") === "model";
    lastHash = location.hash;
    render();
    revealCursor();
    markTarget();
  };
  addEventListener("hashchange", readHash);

  // Actions

  const select = (leaf, entry = leaf) => {
    Object.assign(state, { leaf, entry, compare: null });
    writeHash();
    render();
    markTarget();
  };
  const reset = () => {
    Object.assign(state, { leaf: data.leaf, entry: -1, model: false, compare: null });
    writeHash();
    render();
    revealCursor();
    reading.scrollTop = 0;
  };
  const setSidebar = (open) => {
    root.classList.toggle("closed", !open);
    $("unhide").setAttribute("aria-expanded", open);
    if (open) paint();
  };
  const toggleModel = () => {
    Object.assign(state, { model: !state.model, compare: null });
    writeHash();
    render();
    reading.scrollTop = 0;
  };
  const toggleCompare = () => {
    const known = listChoices().map(([name]) => name);
    if (known.length < 2) return;
    const here = listChoices().find(([, head]) => head === state.leaf)?.[0] ?? known[0];
    const above = new Set(findPath(state.leaf));
    const aside = listChoices().find(([name, head]) => name !== here && !above.has(head))?.[0];
    state.compare = state.compare ? null : [here, aside ?? known.find((name) => name !== here)];
    state.model = false;
    writeHash();
    render();
    reading.scrollTop = 0;
  };
  const toggleUnfold = (id) => {
    if (unfolded.has(id)) unfolded.delete(id);
    else unfolded.add(id);
    const open = unfolded.has(id);
    $(id).setAttribute("aria-pressed", open);
    document.querySelectorAll(UNFOLDABLE[id]).forEach((element) => (element.open = open));
  };
  const toggleTheme = () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  };
  const notify = (text) => {
    $("toast").textContent = text;
    $("toast").classList.add("on");
    setTimeout(() => $("toast").classList.remove("on"), 1600);
  };
  const copy = async (text, what) => {
    try {
      await navigator.clipboard.writeText(text);
      notify(`${what} copied`);
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      notify(document.execCommand("copy") ? `${what} copied` : "Cannot copy: the browser does not allow it");
      area.remove();
    }
  };
  const step = (direction) => {
    const all = [...document.querySelectorAll("#main article")];
    const from = all.indexOf(document.activeElement?.closest?.("article"));
    const top = reading.getBoundingClientRect().top + 70;
    const at = from >= 0 ? from + direction : Math.max(0, all.findIndex((element) => element.getBoundingClientRect().bottom > top));
    const target = all[Math.min(Math.max(at, 0), all.length - 1)];
    if (!target) return;
    target.scrollIntoView({ block: "start" });
    focus(target);
  };

  // Event handlers

  tree.addEventListener("scroll", () => requestAnimationFrame(paint), { passive: true });
  new ResizeObserver(paint).observe(tree);
  tree.addEventListener("click", (event) => {
    const row = event.target.closest(".row");
    if (!row) return;
    const { number, folds } = drawn.rows[+row.dataset.index];
    cursor = +row.dataset.index;
    if (folds && event.target.classList.contains("fold")) return fold(number, !state.folded.has(number));
    select(number);
    if (small.matches) setSidebar(false);
  });
  tree.addEventListener("keydown", (event) => {
    const row = drawn.rows[cursor];
    const page = Math.max(1, Math.floor(tree.clientHeight / ROW) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -size, End: size };
    if (!row || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in steps) {
      cursor = Math.min(Math.max(cursor + steps[event.key], 0), drawn.rows.length - 1);
      revealCursor();
    } else if (event.key === "Enter" || event.key === " ") {
      select(row.number);
      tree.focus();
    } else if (event.key === "ArrowLeft" && row.folds && !state.folded.has(row.number)) fold(row.number, true);
    else if (event.key === "ArrowRight" && row.folds && state.folded.has(row.number)) fold(row.number, false);
    else if (event.key === "ArrowLeft") {
      const above = new Set(findPath(data.parent[row.number]));
      for (let index = cursor - 1; index >= 0; index--) {
        if (!drawn.rows[index].folds || !above.has(drawn.rows[index].number)) continue;
        cursor = index;
        break;
      }
      revealCursor();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  });

  const keys = {
    "/": () => { setSidebar(true); $("search").focus(); },
    Escape: reset, b: () => setSidebar(root.classList.contains("closed")), m: toggleModel, c: toggleCompare,
    t: () => toggleUnfold("thinking"), o: () => toggleUnfold("outputs"), j: () => step(1), k: () => step(-1),
  };
  addEventListener("keydown", (event) => {
    const isTyping = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && event.key !== "Escape";
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping || !Object.hasOwn(keys, event.key)) return;
    event.preventDefault();
    keys[event.key]();
  });
  let searchTimer = 0;
  $("search").addEventListener("input", () => {
    clearTimeout(searchTimer);
    searchTimer = setTimeout(() => {
      state.terms = parseQuery($("search").value);
      tree.scrollTop = 0;
      cursor = 0;
      draw();
    }, 80);
  });
  $("search").addEventListener("keydown", (event) => {
    if (event.key !== "Escape" && event.key !== "ArrowDown" && event.key !== "Enter") return;
    if (event.key === "Escape") {
      $("search").value = "";
      state.terms = [];
      draw();
    }
    tree.focus();
    revealCursor();
    event.preventDefault();
    event.stopPropagation();
  });
  $("filter").addEventListener("change", () => {
    state.filter = +$("filter").value;
    draw();
    revealCursor();
  });
  for (const [id, work] of [
    ["fold", foldAll], ["reset", reset], ["model", toggleModel], ["compare", toggleCompare], ["theme", toggleTheme],
    ["thinking", keys.t], ["outputs", keys.o], ["hide", () => { setSidebar(false); $("unhide").focus(); }], ["unhide", () => { setSidebar(true); $("search").focus(); }],
  ]) $(id)?.addEventListener("click", work);

  const setWidth = (width) => {
    const side = Math.round(Math.min(Math.max(width, 200), Math.min(800, innerWidth - 240)));
    root.style.setProperty("--side", `${side}px`);
    $("grip").setAttribute("aria-valuenow", side);
  };
  $("grip").addEventListener("pointerdown", (event) => {
    const move = (moved) => setWidth(moved.clientX);
    $("grip").setPointerCapture(event.pointerId);
    $("grip").addEventListener("pointermove", move);
    $("grip").addEventListener("lostpointercapture", () => $("grip").removeEventListener("pointermove", move), { once: true });
    event.preventDefault();
  });
  $("grip").addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -20, ArrowRight: 20 };
    if (!(event.key in steps)) return;
    setWidth($("sidebar").offsetWidth + steps[event.key]);
    event.preventDefault();
  });

  // Copy: a button appears on the element under the pointer or with the focus
  const createButton = (name, text) => {
    const element = document.createElement("button");
    element.type = "button";
    element.className = name;
    element.textContent = text;
    return element;
  };
  const addCopyButton = (event) => {
    const block = event.target.closest?.(".block, .prose pre");
    if (block && !block.querySelector(".copy")) block.append(createButton("copy", "Copy"));
    const header = event.target.closest?.(".entry")?.querySelector("header");
    if (header && !header.querySelector(".copy-entry") && header.parentElement.children.length > 1) header.append(createButton("copy-entry", "Copy"));
  };
  $("main").addEventListener("pointerover", addCopyButton);
  $("main").addEventListener("focusin", addCopyButton);
  $("main").addEventListener("click", (event) => {
    const entry = event.target.closest(".entry");
    if (event.target.classList.contains("copy")) {
      const block = event.target.parentElement;
      copy((block.querySelector("pre > code, code") || block.querySelector("pre") || block).textContent, "Code");
    } else if (event.target.classList.contains("copy-entry")) {
      copy([...entry.children].slice(1).map((part) => part.innerText.replace(/\nCopy$/, "")).join("\n\n"), "Entry");
    } else if (event.target.classList.contains("link")) {
      event.preventDefault();
      state.entry = +entry.id.slice(1);
      if (state.compare) {
        state.compare = null;
        state.leaf = state.entry;
      }
      writeHash();
      render();
      markTarget();
      copy(location.href, "Link");
    }
  });
  addEventListener("beforeprint", () => [...empty.keys()].forEach(fill));

  setSidebar(!small.matches);
  small.addEventListener("change", () => setSidebar(!small.matches));
  render();
  cursor = Math.max(0, drawn.rows.findIndex(({ number }) => number === drawn.active));
  revealCursor();
  if (location.hash.includes("=")) readHash();
  root.dataset.ready = "true";
});
