/* The page: what is seen of which time, and what the mouse, the keys and the buttons do with it. */

const data = JSON.parse(document.getElementById("data").textContent);
const get = (id) => document.getElementById(id);
const words = { events: data.events, stamps: data.stamps, partNames: data.parts };
const runs = data.runs.map((packed) => new Run(packed, words));
const scale = new Scale(data.scale);
const whole = Math.max(1, ...runs.map((run) => run.end)) * 1.01;
const shortest = 20; // microseconds: no nearer
const seconds = 15; // that it takes to play what is in the window

const view = { from: 0, to: whole, cursor: whole }; // the same for all runs
const panels = runs.map((run) => new Panel(run, { scale, colours: data.colours }, view));
let laneHeight; // unless it is given, as high as there is room
let playing = null; // the moment of the last frame
let asked = false;

function redraw() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    panels.forEach((panel) => panel.draw());
    get("time").value = (view.cursor / whole) * 10000;
    get("clock").textContent = written(view.cursor, whole);
  });
}

function resize() {
  panels.forEach((panel) => panel.resize(laneHeight));
  redraw();
}

/** Show the time from `from` on, `span` microseconds of it, as far as there is any. */
function show(from, span) {
  span = Math.min(whole, Math.max(shortest, span));
  view.from = Math.min(Math.max(0, from), whole - span);
  view.to = view.from + span;
  redraw();
}

function zoom(factor, around = (view.from + view.to) / 2) {
  const span = Math.min(whole, Math.max(shortest, (view.to - view.from) * factor));
  show(around - ((around - view.from) * span) / (view.to - view.from), span);
}

function setTime(time) {
  view.cursor = Math.min(Math.max(0, time), whole);
  const span = view.to - view.from;
  if (view.cursor < view.from || view.cursor > view.to) show(view.cursor - span / 10, span);
  redraw();
}

function play(on) {
  if (on && view.cursor >= whole) setTime(0);
  playing = on ? performance.now() : null;
  get("play").innerHTML = on ? '<span aria-hidden="true">❚❚</span> stop' : '<span aria-hidden="true">▶</span> play';
  if (on) requestAnimationFrame(frame);
}

function frame(now) {
  if (playing === null) return;
  const passed = Math.max(0, now - playing) / 1000;
  playing = now;
  setTime(view.cursor + (passed * Number(get("speed").value) * (view.to - view.from)) / seconds);
  if (view.cursor >= whole) play(false);
  else requestAnimationFrame(frame);
}

/** So near that a worker does about six rounds in the window: those at the time that is set, or in the middle. */
function few() {
  const lengths = runs.flatMap((run) => Array.from(run.starts, (start, row) => run.ends[row] - start).filter((length) => length > 0));
  lengths.sort((a, b) => a - b);
  const span = 6 * (lengths[lengths.length >> 1] ?? whole / 6);
  show((view.cursor < whole ? view.cursor : (view.from + view.to) / 2) - span / 2, span);
}

function tell(panel, row, event) {
  const tip = get("tip");
  tip.hidden = row < 0;
  if (row < 0) return;
  const run = panel.run;
  const joined = run.event[row] === run.join;
  const lines = [];
  if (run.version[row] >= 0 && !joined) {
    lines.push(["read version", run.version[row] - run.staleness[row]], ["arrived at version", run.version[row]]);
    lines.push(["staleness", run.staleness[row]]);
  }
  run.parts(row, (first, last, from, to) => lines.push([run.named(first, last), written(to - from)]));
  const exact = Math.max(1, run.ends[row] - run.starts[row]);
  lines.push(["from", written(run.starts[row], exact)], ["to", written(run.ends[row], exact)]);
  const round = run.round[row] >= 0 && !joined ? `, round ${inWords(run.round[row])}` : "";
  const what = run.version[row] < 0 ? "not on record" : run.accepted[row] ? run.events[run.event[row]] : "dropped";
  tip.replaceChildren(Object.assign(document.createElement("b"), { textContent: `worker ${run.worker[row]}${round}: ${what}` }));
  const table = tip.appendChild(document.createElement("table"));
  for (const line of lines) {
    const cells = table.insertRow();
    for (const text of line) cells.insertCell().textContent = typeof text === "number" ? inWords(text) : text;
  }
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.min(event.clientX + 14, innerWidth - width - 8)}px`;
  tip.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 12 : event.clientY + 18}px`;
}

function choose(panel, row, event) {
  const changed = panels.some((other) => other.chosen !== (other === panel ? row : -1));
  panels.forEach((other) => (other.chosen = other === panel ? row : -1));
  tell(panel, row, event);
  if (changed) redraw();
}

function listen(panel) {
  const { canvas } = panel;
  let held = null;
  const inside = (event) => [event.clientX - canvas.getBoundingClientRect().left, event.clientY - canvas.getBoundingClientRect().top];
  canvas.addEventListener("pointerdown", (event) => {
    held = { x: event.clientX, from: view.from, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = inside(event);
    if (!held) return choose(panel, panel.hit(x, y), event);
    held.moved ||= Math.abs(event.clientX - held.x) > 3;
    canvas.classList.toggle("moving", held.moved);
    const span = view.to - view.from;
    if (held.moved) show(held.from - ((event.clientX - held.x) / panel.plot) * span, span);
  });
  canvas.addEventListener("pointerup", (event) => {
    const [x] = inside(event);
    if (held && !held.moved && x >= GUTTER) setTime(panel.time(x));
    held = null;
    canvas.classList.remove("moving");
  });
  canvas.addEventListener("pointerleave", (event) => choose(panel, -1, event));
  panel.box.addEventListener("scroll", redraw);
  const wheel = (event) => {
    if (panel.scrolls && !event.ctrlKey && !event.metaKey && !event.shiftKey && !event.deltaX) return; // the lanes scroll
    event.preventDefault();
    const span = view.to - view.from;
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      show(view.from + ((event.deltaX || event.deltaY) / panel.plot) * span, span);
    } else zoom(Math.exp(event.deltaY * 0.0016), panel.time(inside(event)[0]));
  };
  canvas.addEventListener("wheel", wheel, { passive: false });
}

function legend() {
  const item = (style, text, kind = "") => {
    const entry = get("legend").appendChild(document.createElement("li"));
    const mark = entry.appendChild(Object.assign(document.createElement("i"), { className: kind, textContent: kind === "arrow" ? style : "" }));
    if (kind !== "arrow" && style) mark.style.background = style;
    entry.append(text);
    return entry;
  };
  const colours = `linear-gradient(to right, ${scale.colours.join(",")})`;
  item(colours, `${scale.last}${runs.some((run) => run.staleness.some((value) => value > scale.last)) ? " or more" : ""}`, "scale").prepend("compute, by staleness:  0");
  item(data.colours.transfer, "push, pull", "thin");
  item(data.colours.wait, "wait");
  if (runs.some((run) => run.accepted.includes(0))) item("", "dropped", "dropped");
  item("↗", "push to the ps, and reply", "arrow");
}

function higher(factor) {
  laneHeight = Math.min(80, Math.max(0.2, Math.max(...panels.map((panel) => panel.lane)) * factor));
  resize();
}

const keys = {
  " ": () => play(playing === null),
  "+": () => zoom(1 / 1.5),
  "=": () => zoom(1 / 1.5),
  "-": () => zoom(1.5),
  0: () => show(0, whole),
  ArrowLeft: () => show(view.from - (view.to - view.from) / 10, view.to - view.from),
  ArrowRight: () => show(view.from + (view.to - view.from) / 10, view.to - view.from),
};

get("title").textContent = runs.map((run) => run.algorithm).join(" and ");
document.title = `Timeline: ${get("title").textContent}`;
get("speed").append(...[0.1, 0.3, 1, 3, 10].map((times) => new Option(`${times}×`, times, times === 1, times === 1)));
get("panels").append(...panels.map((panel) => panel.element));
panels.forEach(listen);
legend();
get("play").addEventListener("click", () => play(playing === null));
get("time").addEventListener("input", (event) => setTime((event.target.value / 10000) * whole));
get("in").addEventListener("click", keys["+"]);
get("out").addEventListener("click", keys["-"]);
get("all").addEventListener("click", keys[0]);
get("few").addEventListener("click", few);
get("lower").addEventListener("click", () => higher(1 / 1.4));
get("higher").addEventListener("click", () => higher(1.4));
addEventListener("keydown", (event) => {
  if (!keys[event.key] || event.ctrlKey || event.metaKey || /SELECT|INPUT|BUTTON/.test(event.target.tagName)) return;
  event.preventDefault();
  keys[event.key]();
});
resize();
const sizes = new ResizeObserver(resize); // of the window, or since words above a drawing have taken another line
panels.forEach((panel) => sizes.observe(panel.box));
