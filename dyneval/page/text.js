// The text itself, coloured by what each token gained. Only what is near the window is coloured,
// so that a long text opens and scrolls at once; the rest stands there as plain text.

const STEPS = [0.125, 0.25, 0.5, 1, 2, 4];  // bits, the same for every report
const STEP_NAMES = ["⅛", "¼", "½", "1", "2", "4"];
const CHUNK = 900;  // cells, and up to twice as many where no line ends

class Reader {
  constructor(root, given) {
    this.root = root;
    this.given = given;
    this.nats = given.nats.map(unpacked);
    this.ids = unpacked(given.text.ids);
    this.pieces = given.text.pieces;
    this.marked = new Set(given.text.marked);
    this.starts = new Uint32Array(this.ids.length + 1);
    const sizes = given.text.sizes ? unpacked(given.text.sizes) : null;
    for (let k = 0; k < this.ids.length; k++) this.starts[k + 1] = this.starts[k] + (sizes ? sizes[k] : 1);
    this.cut();
    this.build();
    this.compare(...(given.pair ?? [0, null]));
    this.show(0, false);
  }

  cut() {  // at ends of lines where there are some, else between words
    this.bounds = [0];
    let start = 0, space = 0;
    for (let k = 0; k < this.ids.length; k++) {
      const piece = this.pieces[this.ids[k]], long = k + 1 - start;
      if (/\s$/.test(piece)) space = k + 1;
      else if (/^\s/.test(piece)) space = k;
      if ((piece.endsWith("\n") && long >= CHUNK / 2) || long >= 2 * CHUNK) {
        start = piece.endsWith("\n") || space <= start ? k + 1 : space;
        this.bounds.push(start);
      }
    }
    if (start < this.ids.length || !start) this.bounds.push(this.ids.length);
  }

  build() {
    const {given} = this, others = given.predictors.slice(1);
    this.select = make("select", others.map((name, k) => make("option", `${name} over ${given.predictors[0]}`, {value: k + 1})));
    const label = make("label", ["Gain of ", this.select]);
    if (others.length < 2) label.hidden = true;
    this.select.addEventListener("change", () => this.compare(0, Number(this.select.value)));
    const buttons = [["Strongest gain", "gain", "g"], ["Strongest loss", "loss", "l"]].map(([text, kind, key]) => {
      const button = make("button", [text, " ", make("kbd", key)], {type: "button", class: kind});
      button.addEventListener("click", () => this.next(kind, 1));
      return button;
    });
    this.moves = buttons;
    const steps = [["‹", "Previous token", -1], ["›", "Next token", 1]].map(([text, name, step]) => {
      const button = make("button", text, {type: "button", "aria-label": name});
      button.addEventListener("click", () => this.show(this.at + step));
      return button;
    });
    const help = make("p", ["In the text: ", make("kbd", "←"), " ", make("kbd", "→"), " by token, ",
      make("kbd", "↑"), " ", make("kbd", "↓"), " by line, ", make("kbd", "g"), " ", make("kbd", "l"),
      " to the next strongest gain or loss (with Shift back), ", make("kbd", "Home"), " ", make("kbd", "End"), "."],
      {class: "note", id: `help-${this.root.closest("article").id}`});
    this.page = make("div", "", {class: `page ${given.kind}`, tabindex: 0, role: "group",
      "aria-label": "The text, coloured by gain", "aria-describedby": help.id});
    this.card = make("div", "", {class: "card", role: "status", "aria-live": "polite"});
    this.lists = make("div", "", {class: "lists"});
    const tools = make("div", [label, make("span", buttons), make("span", steps, {class: "steps"})], {class: "tools"});
    this.root.replaceChildren(legendOf(), tools, make("div", [this.page, this.card], {class: "sheet"}), help, this.lists);
    this.chunks = this.bounds.slice(1).map((end, k) => {
      const chunk = make("div", this.plain(this.bounds[k], end), {class: "chunk"});
      chunk.number = k;
      return chunk;
    });
    this.page.append(...this.chunks);
    this.listen();
  }

  plain(from, to) {
    let text = "";
    for (let k = from; k < to; k++) text += this.pieces[this.ids[k]];
    return text;
  }

  listen() {
    const near = new IntersectionObserver(entries => {
      for (const {target, isIntersecting} of entries) {
        if (isIntersecting) this.colour(target);
        else if (target.coloured) this.fade(target);
      }
    }, {root: this.page, rootMargin: "600px 0px"});
    this.chunks.forEach(chunk => near.observe(chunk));
    this.page.addEventListener("pointerover", event => {
      if (event.target.cell !== undefined) this.show(event.target.cell, false);
    });
    this.page.addEventListener("click", event => {
      if (event.target.cell !== undefined) this.show(event.target.cell, true, false);
    });
    this.page.addEventListener("keydown", event => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const keys = {
        ArrowLeft: () => this.show(this.at - 1), ArrowRight: () => this.show(this.at + 1),
        ArrowUp: () => this.line(-1), ArrowDown: () => this.line(1),
        Home: () => this.show(0), End: () => this.show(this.ids.length - 1),
        g: () => this.next("gain", 1), l: () => this.next("loss", 1),
        G: () => this.next("gain", -1), L: () => this.next("loss", -1),
      };
      if (!(event.key in keys)) return;
      event.preventDefault();
      keys[event.key]();
    });
    this.page.addEventListener("focus", () => this.mark());
  }

  compare(first, second) {  // numbers of two predictors; null where there is but one
    [this.first, this.second] = [first, second];
    const before = this.nats[first], after = second === null ? [] : this.nats[second];
    this.scored = Math.min(before?.length ?? 0, after.length);
    const saved = new Float64Array(this.scored + 1);
    for (let k = 0; k < this.scored; k++) saved[k + 1] = saved[k] + (before[k] - after[k]) / Math.LN2;
    this.saved = saved;
    this.gains = new Float64Array(this.ids.length);
    for (let k = 0; k < this.ids.length && this.starts[k + 1] <= this.scored; k++) {
      for (let t = this.starts[k]; t < this.starts[k + 1]; t++) this.gains[k] += (before[t] - after[t]) / Math.LN2;
    }
    const order = Uint32Array.from(this.gains, (_, k) => k).sort((a, b) => this.gains[b] - this.gains[a] || a - b);
    this.ranked = {gain: order.filter(k => this.gains[k] > 0), loss: order.filter(k => this.gains[k] < 0).reverse()};
    this.rank = {gain: -1, loss: -1};
    this.moves.forEach((button, k) => button.disabled = !this.ranked[["gain", "loss"][k]].length);
    if (second !== null) this.select.value = second;
    this.list();
    for (const chunk of this.chunks) if (chunk.coloured) this.colour(chunk, true);
    if (this.at !== undefined) this.show(this.at, false);
  }

  list() {
    const lists = [["Strongest gains", "gain"], ["Strongest losses", "loss"]].map(([title, kind]) => {
      const items = [...this.ranked[kind].subarray(0, 10)].map((cell, rank) => {
        const bits = written(this.gains[cell], 2, true);
        const button = make("button", [make("span", this.around(cell), {class: "around"}), make("b", bits)], {type: "button"});
        button.addEventListener("click", () => {
          this.rank[kind] = rank;
          this.page.focus({preventScroll: true});
          this.page.scrollIntoView({block: "nearest"});
          this.show(cell);
        });
        return make("li", button);
      });
      return make("div", [make("h4", title + ", in bits"), make("ol", items)]);
    });
    this.lists.replaceChildren(...(this.ranked.gain.length + this.ranked.loss.length ? lists :
      [make("p", "No token gained or lost anything.", {class: "note"})]));
  }

  around(cell) {  // what stands before and behind it, on one line
    const reach = this.given.kind === "words" ? 5 : 18;
    const line = text => text.replace(/[\n\t]/g, "");
    const own = line(this.pieces[this.ids[cell]]);
    return [make("bdi", [line(this.plain(Math.max(0, cell - reach), cell)), own.startsWith(" ") ? " " : "",
      make("mark", own.trim() || own), line(this.plain(cell + 1, Math.min(this.ids.length, cell + 1 + reach)))])];
  }

  next(kind, step) {
    const ranked = this.ranked[kind];
    if (!ranked.length) return;
    this.rank[kind] = (this.rank[kind] + step + ranked.length) % ranked.length;
    this.show(ranked[this.rank[kind]]);
  }

  line(step) {  // to the cell above or below
    const here = this.span(this.at)?.getBoundingClientRect();
    if (!here) return;
    let best = null, distance = Infinity, row = null;
    for (let k = this.at + step; k >= 0 && k < this.ids.length && Math.abs(k - this.at) < 2 * CHUNK; k += step) {
      const there = this.span(k)?.getBoundingClientRect();
      if (!there) break;
      if (Math.abs(there.bottom - here.bottom) < here.height / 2) continue;
      if (row !== null && Math.abs(there.bottom - row) > here.height / 2) break;
      row = there.bottom;
      if (Math.abs(there.left - here.left) < distance) [best, distance] = [k, Math.abs(there.left - here.left)];
    }
    if (best !== null) this.show(best);
  }

  colour(chunk, again = false) {
    if (chunk.coloured && !again) return;
    const from = this.bounds[chunk.number], to = this.bounds[chunk.number + 1];
    const spans = [];
    for (let k = from; k < to; k++) {
      const piece = this.pieces[this.ids[k]], span = document.createElement("span");
      const spaced = piece.length > 1 && piece[0] === " ";
      if (spaced) spans.push(" ");
      span.textContent = spaced ? piece.slice(1) : piece;
      span.className = tone(this.gains[k]) + (this.marked.has(this.ids[k]) ? " shown" : "");
      span.cell = k;
      spans.push(span);
    }
    chunk.replaceChildren(...spans);
    chunk.coloured = true;
    if (this.at >= from && this.at < to) this.mark();
  }

  fade(chunk) {
    chunk.textContent = this.plain(this.bounds[chunk.number], this.bounds[chunk.number + 1]);
    chunk.coloured = false;
  }

  chunkOf(cell) {
    let low = 0, high = this.chunks.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.bounds[middle] <= cell) low = middle; else high = middle - 1;
    }
    return this.chunks[low];
  }

  span(cell) {
    const chunk = this.chunkOf(cell);
    if (!chunk) return null;
    this.colour(chunk);
    return chunk.children[cell - this.bounds[chunk.number]];
  }

  mark() {
    this.marker?.classList.remove("at");
    this.marker = this.span(this.at);
    this.marker?.classList.add("at");
  }

  show(cell, tell = true, scroll = tell) {  // what is known of a cell; told where a key asked for it
    if (!this.ids.length) return;
    this.at = Math.max(0, Math.min(this.ids.length - 1, cell));
    this.card.setAttribute("aria-live", tell ? "polite" : "off");
    const from = this.starts[this.at], to = this.starts[this.at + 1];
    const which = to - from > 1 ? `Tokens ${written(from + 1, 0)}–${written(to, 0)}` : `Token ${written(to, 0)}`;
    const shown = this.pieces[this.ids[this.at]].replace(/[\n\t]/g, "");
    const parts = [make("div", [make("dt", `${which} of ${written(this.given.tokens, 0)}`),
      make("dd", make("bdi", make("code", shown.trim() || "␠")))], {class: "token"})];
    for (const k of [this.first, this.second]) {
      if (k === null || !this.nats[k] || to > this.nats[k].length) continue;
      let nats = 0;
      for (let t = from; t < to; t++) nats += this.nats[k][t];
      const bar = make("i", "", {class: `swatch chance c${k}`});
      bar.style.width = `${100 * Math.exp(-nats)}%`;
      parts.push(make("div", [make("dt", this.given.predictors[k]), make("dd", chance(Math.exp(-nats))),
        make("span", bar, {class: "track"})], {class: "chances", "data-predictor": this.given.predictors[k]}));
    }
    if (this.second !== null && to <= this.scored) {
      const gain = this.gains[this.at];
      parts.push(make("div", [make("dt", "gain"), make("dd", [make("span", written(gain, 3, true), {class: tone(gain)}), " bits"])], {class: "gained"}),
        make("div", [make("dt", "saved so far"), make("dd", `${written(this.saved[to], 1, true)} bits`)], {class: "saved"}));
    } else parts.push(make("div", [make("dt", "gain"), make("dd", "not scored by both")]));
    this.card.replaceChildren(make("dl", parts));
    this.mark();
    if (scroll) this.reveal();
  }

  reveal() {
    const within = () => {
      const page = this.page.getBoundingClientRect(), here = this.marker.getBoundingClientRect();
      if (here.top < page.top + 24 || here.bottom > page.bottom - 24) {
        this.page.scrollTop += here.top - page.top - page.height / 2;
      }
    };
    within();
    requestAnimationFrame(within);  // once what stands above is laid out, too
  }

  open(token) {  // where a figure points to
    let low = 0, high = this.ids.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.starts[middle] < token) low = middle; else high = middle - 1;
    }
    this.page.scrollIntoView({block: "center"});
    this.page.focus({preventScroll: true});
    this.show(low);
  }
}

function tone(gain) {
  let step = 0;
  while (step < STEPS.length && Math.abs(gain) >= STEPS[step]) step++;
  return step ? (gain > 0 ? "g" : "l") + step : "";
}

function legendOf() {
  const swatch = (sign, kind) => STEPS.map((_, k) => make("span", sign + STEP_NAMES[k], {class: `${kind}${k + 1}`}));
  return make("div", [make("span", "lost"), ...swatch("−", "l").reverse(), make("span", "0", {class: "none"}),
    ...swatch("+", "g"), make("span", "gained, in bits")],
    {class: "scale", role: "img", "aria-label": "Colours, in bits: from −4 or less to +4 or more, in steps at ⅛, ¼, ½, 1, 2 and 4, the same in every report"});
}
