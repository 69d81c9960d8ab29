/* A run as a drawing: the ps above, a lane for each worker, and the time below. It draws only what is in the window. */

const GUTTER = 92; // pixels: names of lanes
const MARGIN = 14; // on the right
const SERVER = 34; // height of the lane of the ps
const AXIS = 36;
const [LOWEST, HIGHEST] = [3, 48]; // height of a lane, unless the reader wants another
const NEAR = 5; // pixels: how near to a message on the ps the pointer must be
const DETAILED = 3000; // rounds in the window: more are drawn as shares of each pixel
const ARROWS = 260; // rounds in the window: with more, only the arrows of the chosen one are drawn

const INK = "#1c2430", PALE = "#667080", LINE = "#eceef1", CHOSEN = "#d1410c";

class Panel {
  constructor(run, { scale, colours }, view) {
    Object.assign(this, { run, scale, colours, view, chosen: -1 });
    this.element = document.createElement("section");
    const heading = this.element.appendChild(document.createElement("div"));
    const add = (tag, text, kind) => Object.assign(heading.appendChild(document.createElement(tag)), { textContent: text, className: kind });
    add("h2", run.algorithm, "");
    const about = add("p", `${run.about}  ·  ${shares(run)}`, "about");
    about.title = `${run.name}: ${about.textContent}`;
    this.words = add("p", "", "now");
    for (const note of run.notes) add("p", note, "note");
    this.box = this.element.appendChild(Object.assign(document.createElement("div"), { className: "view" }));
    this.canvas = this.box.appendChild(document.createElement("canvas"));
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", `Timeline of ${run.algorithm}, ${run.about}`);
    this.space = this.box.appendChild(document.createElement("div")); // as high as all lanes are
    this.context = this.canvas.getContext("2d");
    this.image = document.createElement("canvas");
    this.hatch = hatching();
  }

  /** Take the size that the page gives. */
  resize(laneHeight) {
    const ratio = devicePixelRatio || 1;
    this.width = this.box.clientWidth;
    this.height = this.box.clientHeight;
    const room = this.height - SERVER - AXIS;
    this.lane = laneHeight ?? Math.min(HIGHEST, Math.max(LOWEST, room / this.run.workers));
    this.canvas.width = this.width * ratio;
    this.canvas.height = this.height * ratio;
    Object.assign(this.canvas.style, { width: `${this.width}px`, height: `${this.height}px` });
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const hidden = Math.max(0, Math.ceil(this.lane * this.run.workers - room));
    this.space.style.height = `${hidden}px`; // below the canvas: what can be scrolled
    this.scrolls = hidden > 0;
  }

  get plot() {
    return Math.max(1, this.width - GUTTER - MARGIN);
  }

  x(time) {
    return GUTTER + ((time - this.view.from) / (this.view.to - this.view.from)) * this.plot;
  }

  time(x) {
    return this.view.from + ((x - GUTTER) / this.plot) * (this.view.to - this.view.from);
  }

  /** The top of the lane of worker k. */
  y(k) {
    return SERVER + k * this.lane - this.box.scrollTop;
  }

  /** The lanes that are seen, [first, last). */
  get seen() {
    const first = Math.floor(this.box.scrollTop / this.lane);
    const last = Math.ceil((this.box.scrollTop + this.height - SERVER - AXIS) / this.lane);
    return [Math.max(0, first), Math.min(this.run.workers, last)];
  }

  /** The row that is drawn at a place, or -1. */
  hit(x, y) {
    if (x < GUTTER || x > this.width - MARGIN || y < 0 || y > this.height - AXIS) return -1;
    if (y < SERVER) return this.#hitServer(x);
    const k = Math.floor((y - SERVER + this.box.scrollTop) / this.lane);
    if (k >= this.run.workers) return -1;
    const row = this.run.at(k, this.time(x));
    return row >= 0 ? row : this.run.at(k, this.time(x + NEAR)); // a point in time is hard to meet
  }

  #hitServer(x) {
    const { serverTimes, server } = this.run;
    const next = search(serverTimes, 0, server.length, this.time(x));
    const far = (i) => (i in serverTimes ? Math.abs(this.x(serverTimes[i]) - x) : Infinity);
    const i = far(next - 1) < far(next) ? next - 1 : next;
    return far(i) <= NEAR ? server[i] : -1;
  }

  draw() {
    const { context, view } = this;
    context.clearRect(0, 0, this.width, this.height);
    this.many = this.run.count(view.from, view.to);
    this.#drawLanes();
    this.#clip(() => {
      if (this.many > DETAILED || this.lane < 6) this.#drawShares();
      else this.#drawRounds();
      if (this.chosen >= 0) this.#drawChosen();
    });
    this.#drawServer();
    this.#drawArrows();
    this.#drawCursor();
    this.#drawAxis();
    this.words.textContent = this.run.now(view.cursor);
  }

  #clip(draw) {
    const { context } = this;
    context.save();
    context.beginPath();
    context.rect(GUTTER, SERVER, this.plot, this.height - SERVER - AXIS);
    context.clip();
    draw();
    context.restore();
  }

  /** Names of the lanes, as many as there is room for, and lines between them. */
  #drawLanes() {
    const { context } = this;
    const [first, last] = this.seen;
    const each = [1, 2, 5, 10, 20, 50, 100, 200].find((n) => n * this.lane >= 14) ?? 500;
    const bottom = this.height - AXIS;
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "right";
    context.fillStyle = PALE;
    context.strokeStyle = LINE;
    context.beginPath();
    for (let k = first; k < last; k++) {
      if (k % each) continue;
      const middle = this.y(k) + this.lane / 2;
      if (middle >= SERVER && middle < bottom - 3) context.fillText(`worker ${k}`, GUTTER - 10, middle);
      if (this.y(k) > SERVER) line(context, GUTTER, this.y(k), this.width - MARGIN, this.y(k));
    }
    context.stroke();
  }

  /** Each round by itself: compute in the colour of its staleness, transfer as a thin bar, wait in grey. */
  #drawRounds() {
    const { context, run, view } = this;
    const [first, last] = this.seen;
    const height = this.lane * (this.lane > 9 ? 0.68 : 0.9);
    for (let k = first; k < last; k++) {
      const top = this.y(k) + (this.lane - height) / 2;
      const [low, high] = run.visible(k, view.from, view.to);
      for (let row = low; row < high; row++) {
        if (run.event[row] === run.join) this.#drawJoin(row);
        run.parts(row, (a, b, from, to) => this.#drawPart(row, a, b, from, to, top, height));
      }
    }
    context.globalAlpha = 1;
  }

  #drawPart(row, first, last, from, to, top, height) {
    const { context } = this;
    const [x, end] = [Math.max(this.x(from), GUTTER - 2), Math.min(this.x(to), this.width)];
    const width = Math.max(end - x - (end - x > 4 ? 0.6 : 0), 0.6); // a hair between neighbours
    if (first === 0) {
      context.globalAlpha = last > 1 ? 0.45 : 1; // more than compute: paler
      context.fillStyle = this.scale.colour(this.run.staleness[row]);
      context.fillRect(x, top, width, height);
      context.globalAlpha = 1;
      if (this.run.accepted[row] === 0) {
        context.fillStyle = this.hatch;
        context.fillRect(x, top, width, height);
      }
    } else {
      const wait = first === 2 && last === 3;
      context.fillStyle = wait ? this.colours.wait : this.colours.transfer;
      if (wait) context.fillRect(x, top, width, height);
      else context.fillRect(x, top + height * 0.36, width, height * 0.28);
    }
  }

  /** A worker takes its slot again. */
  #drawJoin(row) {
    const { context, run } = this;
    const [x, y] = [this.x(run.arrived[row]), this.y(run.worker[row])];
    context.fillStyle = INK;
    context.fillRect(x - 1, y + 1, 2, this.lane - 2);
  }

  /** So many rounds that they share pixels: in each, from below, the part of compute, transfer and wait. */
  #drawShares() {
    const { run, view } = this;
    const [first, last] = this.seen;
    const ratio = devicePixelRatio || 1;
    const [width, height] = [Math.round(this.plot * ratio), Math.round((this.height - SERVER - AXIS) * ratio)];
    if (width < 1 || height < 1) return;
    Object.assign(this.image, { width, height });
    const context = this.image.getContext("2d");
    const image = context.createImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    const perPixel = (view.to - view.from) / width;
    const kinds = [0, 1, 2, 3].map(() => new Float64Array(width)); // compute, transfer, wait; staleness · compute
    const [transfer, wait] = [pixel(this.colours.transfer), pixel(this.colours.wait)];
    let above = -1;
    for (let k = first; k < last; k++) {
      const gap = this.lane > 9 ? 0.16 * this.lane : this.lane > 4 ? 0.5 : 0;
      const top = Math.round((this.y(k) - SERVER + gap) * ratio);
      const bottom = Math.max(top + 1, Math.round((this.y(k) - SERVER + this.lane - gap) * ratio));
      if (top === above) continue; // several lanes share a pixel: the first is seen
      above = top;
      kinds.forEach((kind) => kind.fill(0));
      const [low, high] = run.visible(k, view.from, view.to);
      for (let row = low; row < high; row++) {
        run.parts(row, (a, b, from, to) => {
          const kind = a === 0 ? 0 : a === 2 && b === 3 ? 2 : 1;
          spread(kinds[kind], (from - view.from) / perPixel, (to - view.from) / perPixel, 1);
          if (!kind) spread(kinds[3], (from - view.from) / perPixel, (to - view.from) / perPixel, Math.max(0, run.staleness[row]));
        });
      }
      for (let x = 0; x < width; x++) {
        const [compute, moving, waiting] = [kinds[0][x], kinds[1][x], kinds[2][x]];
        if (compute + moving + waiting < 0.02) continue;
        const colour = compute > 0 ? this.scale.pixel(kinds[3][x] / compute) : transfer;
        const up = (share) => bottom - Math.round((bottom - top) * Math.min(1, share));
        column(pixels, width, height, x, up(compute + moving + waiting), up(compute + moving), wait);
        column(pixels, width, height, x, up(compute + moving), up(compute), transfer);
        column(pixels, width, height, x, up(compute), bottom, colour);
      }
    }
    context.putImageData(image, 0, 0);
    this.context.drawImage(this.image, GUTTER, SERVER, this.plot, this.height - SERVER - AXIS);
  }

  /** A frame around the round that the pointer is on. */
  #drawChosen() {
    const { context, run, chosen } = this;
    const [x, end] = [this.x(run.starts[chosen]), this.x(run.ends[chosen])];
    context.strokeStyle = CHOSEN;
    context.lineWidth = 1.5;
    context.strokeRect(x, this.y(run.worker[chosen]) + this.lane * 0.1, Math.max(2, end - x), this.lane * 0.8);
    context.lineWidth = 1;
  }

  /** Messages on the ps, each where it arrives; where there are too many, how many come, as a height. */
  #drawServer() {
    const { context, run, view } = this;
    const low = search(run.serverTimes, 0, run.server.length, view.from);
    const high = search(run.serverTimes, low, run.server.length, view.to);
    const bottom = SERVER - 9;
    context.fillStyle = INK;
    context.font = "600 12px system-ui, sans-serif";
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillText("ps", GUTTER - 10, bottom - 4);
    context.fillStyle = "#aab2bd";
    context.fillRect(GUTTER, bottom, this.plot, 1);
    if (high - low > this.plot / 4) return this.#drawServerShares(low, high, bottom);
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "center";
    let free = 0; // where the next number has room
    for (let i = low; i < high; i++) {
      const [row, x] = [run.server[i], this.x(run.serverTimes[i])];
      context.beginPath();
      context.arc(x, bottom, row === this.chosen ? 5.5 : 4, 0, 2 * Math.PI);
      context.fillStyle = run.accepted[row] ? this.scale.colour(run.staleness[row]) : "#fff";
      context.fill();
      context.lineWidth = row === this.chosen ? 2 : 1;
      context.strokeStyle = row === this.chosen ? CHOSEN : run.accepted[row] ? "#fff" : this.scale.colour(run.staleness[row]);
      context.stroke();
      const text = String(run.version[row]);
      const half = context.measureText(text).width / 2 + 5;
      const news = i === low || run.version[row] !== run.version[run.server[i - 1]];
      if (news && x - half > free && x + half < this.width) {
        context.fillStyle = PALE;
        context.fillText(text, x, bottom - 15);
        free = x + half;
      }
    }
    context.lineWidth = 1;
  }

  #drawServerShares(low, high, bottom) {
    const { context, run } = this;
    const [counts, sums] = [new Float64Array(this.plot + 1), new Float64Array(this.plot + 1)];
    for (let i = low; i < high; i++) {
      const x = Math.floor(this.x(run.serverTimes[i]) - GUTTER);
      counts[x]++;
      sums[x] += Math.max(0, run.staleness[run.server[i]]);
    }
    const most = counts.reduce((a, b) => Math.max(a, b), 1);
    for (let x = 0; x < counts.length; x++) {
      if (!counts[x]) continue;
      const height = 2 + ((bottom - 6) * counts[x]) / most;
      context.fillStyle = this.scale.colour(sums[x] / counts[x]);
      context.fillRect(GUTTER + x, bottom - height, 1, height);
    }
  }

  /** A push goes from a lane to the ps, its reply back. */
  #drawArrows() {
    const { context, run, view } = this;
    const [first, last] = this.seen;
    context.save();
    context.beginPath();
    context.rect(GUTTER, SERVER - 9, this.plot, this.height - SERVER - AXIS + 9);
    context.clip();
    if (this.many <= ARROWS && this.lane >= 8) {
      context.globalAlpha = this.many < 60 ? 0.9 : 0.6;
      for (let k = first; k < last; k++) {
        const [low, high] = run.visible(k, view.from, view.to);
        for (let row = low; row < high; row++) this.#drawArrow(row, 1.1);
      }
    }
    context.globalAlpha = 1;
    if (this.chosen >= 0) this.#drawArrow(this.chosen, 2.2);
    context.restore();
  }

  #drawArrow(row, width) {
    const { context, run } = this;
    const [arrived, lane] = [run.arrived[row], this.y(run.worker[row]) + this.lane * 0.16];
    if (arrived < 0 || run.event[row] === run.join) return;
    const sent = run.ready[row] >= 0 ? run.ready[row] : arrived;
    const pulls = run.events[run.event[row]] !== "push" && run.replied[row] >= 0;
    const freed = run.released[row] >= 0 ? run.released[row] : arrived;
    if (run.events[run.event[row]] !== "pull") {
      context.setLineDash(run.accepted[row] === 0 ? [4, 3] : []);
      arrow(context, this.x(sent), lane, this.x(arrived), SERVER - 4, this.scale.colour(run.staleness[row]), width);
    }
    context.setLineDash([]);
    if (pulls) arrow(context, this.x(freed), SERVER - 9, this.x(run.replied[row]), lane, "#98a0ab", width * 0.9);
  }

  #drawCursor() {
    const { context, view } = this;
    const x = Math.min(Math.max(this.x(view.cursor), GUTTER), this.width - MARGIN);
    context.fillStyle = "#ffffffb8"; // what is still to come
    context.fillRect(x, 0, this.width - MARGIN - x, this.height - AXIS);
    if (view.cursor < view.from || view.cursor > view.to) return;
    context.fillStyle = CHOSEN;
    context.fillRect(x - 0.75, 0, 1.5, this.height - AXIS);
  }

  #drawAxis() {
    const { context, view } = this;
    const [unit, size] = unitOf(view.to - view.from);
    const span = (view.to - view.from) / size;
    const rough = (span * 110) / this.plot;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((n) => n * power >= rough);
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    const y = this.height - AXIS;
    context.clearRect(0, y, this.width, AXIS);
    context.fillStyle = "#aab2bd";
    context.fillRect(GUTTER, y, this.plot, 1);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "top";
    context.textAlign = "center";
    for (let i = Math.ceil(view.from / size / step); i * step * size <= view.to; i++) {
      const x = this.x(i * step * size);
      context.fillStyle = "#aab2bd";
      context.fillRect(x - 0.5, y, 1, 5);
      context.fillStyle = PALE;
      context.fillText(inWords(i * step, digits), x, y + 7);
    }
    context.textAlign = "right";
    context.fillStyle = INK;
    context.fillText(`time since the start (${unit})`, this.width - MARGIN, y + 21);
  }
}

/** What rounds were spent on, and how stale messages were, in words. */
function shares(run) {
  const known = run.staleness.filter((value, row) => value >= 0 && run.event[row] !== run.join);
  const mean = known.reduce((a, b) => a + b, 0) / Math.max(1, known.length);
  const most = known.reduce((a, b) => Math.max(a, b), 0);
  const spent = run.shares ?? {};
  const parts = ["compute", "waiting", "communication"].filter((name) => spent[name] >= 0).map((name) => `${name} ${Math.round(100 * spent[name])} %`);
  return [`${inWords(run.size)} rounds`, `staleness ${inWords(mean, 2)} (max ${inWords(most)})`, parts.join(", ")].filter(Boolean).join("  ·  ");
}
