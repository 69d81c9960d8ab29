/* A run: its rounds as columns of numbers, and what can be asked of them. Times are microseconds; -1 is not known. */

class Run {
  constructor(packed, words) {
    Object.assign(this, packed, words);
    for (const [name, differences] of Object.entries(packed.columns)) {
      const column = (this[name] = new Float64Array(differences.length));
      let sum = 0;
      for (let i = 0; i < column.length; i++) column[i] = sum += differences[i];
    }
    delete this.columns;
    this.size = this.worker.length;
    this.times = this.stamps.map((name) => this[name]);
    this.join = this.events.indexOf("join");
    this.#findLanes();
    this.#findServer();
  }

  /** Rows of each worker, from lanes[k] up to lanes[k + 1]; where each begins and ends. */
  #findLanes() {
    this.lanes = new Int32Array(this.workers + 1);
    for (const k of this.worker) this.lanes[k + 1]++;
    for (let k = 0; k < this.workers; k++) this.lanes[k + 1] += this.lanes[k];
    this.starts = new Float64Array(this.size);
    this.ends = new Float64Array(this.size);
    this.end = 0;
    for (let k = 0; k < this.workers; k++) {
      let latest = -1; // the end of the round before; ends never fall, so that they can be searched
      for (let row = this.lanes[k]; row < this.lanes[k + 1]; row++) {
        const known = this.times.map((column) => column[row]).filter((time) => time >= 0);
        const first = Math.min(...known);
        const whole = this.begun[row] >= 0 || latest < 0 || this.event[row] === this.join;
        this.starts[row] = whole ? first : Math.min(first, latest);
        latest = this.ends[row] = Math.max(latest, ...known);
      }
      this.end = Math.max(this.end, latest);
    }
  }

  /** The rows in the order in which they came to the ps, and the version of the center after each. */
  #findServer() {
    const rows = Array.from({ length: this.size }, (_, i) => i).filter((i) => this.version[i] >= 0 && this.arrived[i] >= 0);
    rows.sort((a, b) => this.arrived[a] - this.arrived[b] || this.version[a] - this.version[b]);
    this.server = Int32Array.from(rows);
    this.serverTimes = Float64Array.from(rows, (i) => this.arrived[i]);
  }

  /** Calls draw(first, last, from, to) for each part of a round that is known: what is between two stamps. */
  parts(row, draw) {
    let before = -1;
    let from = this.starts[row];
    for (let stamp = 0; stamp < this.times.length; stamp++) {
      const time = this.times[stamp][row];
      if (time < 0) continue;
      if (time > from) draw(Math.max(before, 0), before < 0 ? this.times.length - 1 : stamp, from, time);
      before = stamp;
      from = Math.max(from, time);
    }
  }

  /** What a part is called: "compute", or "wait + pull" where the stamp between them is not known. */
  named(first, last) {
    return last - first === this.partNames.length ? "round" : this.partNames.slice(first, last).join(" + ");
  }

  /** The rows of worker k that are seen between two times, [from, to). */
  visible(k, from, to) {
    const low = search(this.ends, this.lanes[k], this.lanes[k + 1], from);
    return [low, Math.max(low, search(this.starts, low, this.lanes[k + 1], to))];
  }

  /** How many rounds are seen between two times. */
  count(from, to) {
    let sum = 0;
    for (let k = 0; k < this.workers; k++) {
      const [low, high] = this.visible(k, from, to);
      sum += high - low;
    }
    return sum;
  }

  /** The row of worker k at a time, or -1. */
  at(k, time) {
    const row = search(this.ends, this.lanes[k], this.lanes[k + 1], time);
    return row < this.lanes[k + 1] && this.starts[row] <= time ? row : -1;
  }

  /** The part that worker k is in at a time, or "". */
  doing(k, time) {
    const row = this.at(k, time);
    let found = "";
    if (row >= 0) {
      this.parts(row, (first, last, from, to) => {
        if (from <= time && time <= to && !found) found = this.named(first, last);
      });
    }
    return found;
  }

  /** What the run is like at a time, in words. */
  now(time) {
    const messages = search(this.serverTimes, 0, this.serverTimes.length, time + 1e-3);
    const doing = {};
    for (let k = 0; k < this.workers; k++) {
      const part = this.doing(k, time);
      if (part) doing[part] = (doing[part] ?? 0) + 1;
    }
    const order = [...this.partNames, ...Object.keys(doing).filter((part) => !this.partNames.includes(part))];
    const words = order.filter((part) => doing[part]).map((part) => `${part} ${inWords(doing[part])}`);
    const version = messages ? this.version[this.server[messages - 1]] : 0;
    return [`${inWords(messages)} messages`, `version ${inWords(version)}`, ...words].join("  ·  ");
  }
}

/** The first of values[low:high], which never fall, that is at least `wanted`. */
function search(values, low, high, wanted) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low;
}

const UNITS = [["s", 1e6], ["ms", 1e3], ["µs", 1]];

/** The unit in which a span is written: the largest that it has at least one of. */
function unitOf(span) {
  return UNITS.find(([, size]) => span >= size) ?? UNITS.at(-1);
}

/** A time in words, in the unit and as exact as a span asks for: it itself, unless another is given. */
function written(time, span = time) {
  const [name, size] = unitOf(span);
  const digits = Math.min(3, Math.max(0, 2 - Math.floor(Math.log10(Math.max(span, 1) / size))));
  return `${inWords(time / size, digits)} ${name}`;
}

function inWords(number, digits = 0) {
  return number.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}
