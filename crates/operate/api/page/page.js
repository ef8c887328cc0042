// The live page. It follows /v1/stream and draws what comes: nothing is asked for twice, nothing is kept for ever, and
// whatever comes is set as text, never as markup.
"use strict";

const MINUTES = 15;          // what charts show
const WINDOW_MS = MINUTES * 60000;
const SAMPLES = MINUTES * 60 + 1; // one a second
const EVENTS = 200;          // events that are kept
const DECISIONS = 50;        // scaling decisions that are shown
const COLOURS = 8;
const SVG = "http://www.w3.org/2000/svg";

const at = (id) => document.getElementById(id);

/** What is known. `samples` and `events` are bounded, oldest first. */
const state = { snapshot: null, samples: [], events: [], chosen: null, pid: null };

// ---- words

/** A figure for people: 12.3M, 980k, 17. */
function short(number) {
  if (number === null || number === undefined || !isFinite(number)) return "-";
  for (const [factor, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(number) >= factor) {
      const scaled = number / factor;
      return scaled.toFixed(Math.abs(scaled) < 10 ? 2 : Math.abs(scaled) < 100 ? 1 : 0) + unit;
    }
  }
  return Number.isInteger(number) || Math.abs(number) >= 100 ? number.toFixed(0) : number.toFixed(1);
}

const percent = (share) => share === null || share === undefined ? "-" : (share * 100).toFixed(1) + "%";

function span(ms) {
  if (ms < 1000) return ms.toFixed(0) + " ms";
  if (ms < 60000) return (ms / 1000).toFixed(1) + " s";
  const minutes = Math.floor(ms / 60000);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/* Watts, those of a model with its band. */
function watts(of) {
  if (!of) return "watts unknown";
  const word = (value) => value.toFixed(1);
  return of.source === "model" ? `${word(of.expected)} W (MODEL, ${word(of.low)} to ${word(of.high)})` : `${word(of.expected)} W (${of.source})`;
}

/* A time in microseconds. */
const micros = (us) => us < 1000 ? us.toFixed(1) + " µs" : span(us / 1000);

/* Percentiles in microseconds. */
function within(of) {
  return of ? `${micros(of.p50)} and ${micros(of.p99)}` : "(not known)";
}

/* Bytes. */
function size(bytes) {
  if (bytes === null || bytes === undefined) return "-";
  for (const [factor, unit] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (bytes >= factor) return `${(bytes / factor).toFixed(1)} ${unit}`;
  }
  return `${bytes} B`;
}

const clock = (ms) => new Date(ms).toLocaleTimeString([], { hour12: false });

/** What happened, in a sentence. Kinds that this page does not know are told by their fields. */
function sentence(event) {
  const about = event.service && event.instance !== null && event.instance !== undefined
    ? `${event.service}/${event.instance}: `
    : event.service ? `${event.service}: ` : "";
  switch (event.event) {
    case "started": return about + "inco started" + (event.adopted ? ` and adopted ${event.adopted} containers` : "")
      + (event.flows ? ` and took over ${event.flows} flows` : "");
    case "upgraded": return about + `inco ${event.to} took over from ${event.from} after ${event.pause_ms} ms`;
    case "stopping": return about + (event.keep ? "inco stops; the containers keep running" : "inco stops");
    case "state": return about + `${event.from} → ${event.to} (${event.reason})`;
    case "scaled": return about + `${event.from} → ${event.to} instances wanted by ${event.policy} (${event.reason})`;
    case "shadowed": return about + `dry-run decision: ${event.would} instances instead of ${event.wanted} (${event.policy}: ${event.reason})`;
    case "relocated": return about + `${event.from_place} → ${event.to_place} wanted by ${event.policy} (${event.reason})`;
    case "resized": return about + `${event.to_cpus.toFixed(3)} CPUs wanted by ${event.policy} (${event.reason})`;
    case "unpinned": return about + `its flows are unpinned; they are rescheduled (${event.reason})`;
    case "health": return about + (event.takes ? event.weight < 100 ? `takes ${event.weight} % of its share of new flows` : "healthy" : "takes no new flows") + ` (${event.reason})`;
    case "hot": return about + `ring ${percent(event.occupancy)} full`;
    case "picked": return about + `${event.policy} picked it for ${event.flow}`;
    case "overcommitted": return about + `${event.flows} new flow${event.flows === 1 ? "" : "s"} beyond the capacity of every instance; given to the least loaded one`;
    case "stayed": {
      const reasons = [[event.at_limit, "at a limit"], [event.refused, "refused by a function"], [event.without_room, "without room for a message"], [event.gone, "with the end of an instance or of the flow"]];
      return about + "moves of flows with their state were cancelled: " + reasons.filter(([moves]) => moves > 0).map(([moves, why]) => `${moves} ${why}`).join(", ");
    }
    case "function": {
      const change = { reloaded: "takes another configuration", refused: "keeps its configuration, because the changed one is wrong", ended: "ends" };
      const drops = Object.entries(event.drops).map(([reason, packets]) => `${packets} ${reason}`).join(", ") || "0";
      return about + `${event.function} ${change[event.change] || event.change}; packets so far: ${event.packets} in, ${event.originated} made, dropped: ${drops}`;
    }
    case "actor": {
      const there = event.side === "card" ? "host" : "card";
      const changes = {
        move_begun: `moves from the ${event.side} to the ${there}`, move_ended: `is on the ${there} now`, move_failed: `stays on the ${event.side}`,
        downgraded: "is served in turns from now on", upgraded: "is served first come, first served again",
        paused: "is paused", resumed: "goes on", stopped: `is stopped on the ${event.side}`, lost: "is lost",
      };
      const took = event.took_us === undefined ? "" : ` after ${(event.took_us / 1000).toFixed(1)} ms`;
      const lost = event.lost === undefined ? "" : `, with ${event.lost} messages`;
      return about + `actor ${event.actor} ${changes[event.change] || event.change}${took}${lost} (${event.reason})`;
    }
    case "actor_side": {
      const changes = {
        started: "runs", ended: "has ended", broken: "is ended by inco",
        core_to_round: "has one more core that serves in turns", core_to_line: "has one core less that serves in turns",
      };
      return about + `the ${event.side} ${changes[event.change] || event.change} (${event.reason})`;
    }
    case "uplink": return about + `uplink ${event.uplink} is ${event.up ? "up" : "down"}: ${event.detail}`;
    case "rollout": return about + `rollout ${event.state}: ${event.replaced} of ${event.total} replaced (${event.reason})`;
    case "failure": return about + `${event.what} failed: ${event.reason}`;
    case "recovered": return about + `${event.what} recovered after ${span(event.after_ms)}`;
    case "action": return about + `${event.action}: ${event.result}`;
    default: {
      const rest = Object.entries(event).filter(([key, value]) =>
        !["sequence", "at", "unix_ms", "service", "instance", "event", "case"].includes(key) && typeof value !== "object");
      return about + event.event + " " + rest.map(([key, value]) => `${key} ${value}`).join(", ");
    }
  }
}

// ---- elements

/** Makes the children of a parent be these; those that are there already stay as they are. */
function fill(parent, children) {
  children.forEach((child, index) => {
    if (parent.children[index] !== child) parent.insertBefore(child, parent.children[index] || null);
  });
  while (parent.children.length > children.length) parent.lastElementChild.remove();
}

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function shape(tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function set(node, text, className) {
  if (node.textContent !== text) node.textContent = text;
  if (className !== undefined && node.className !== className) node.className = className;
}

/**
 * A table whose rows are kept by key, so that focus and scroll stay where they are.
 * Columns are {head, cell(row) -> text or node, className}.
 */
function table(node, columns, rows, key) {
  if (!node.tHead) {
    const head = node.createTHead().insertRow();
    for (const column of columns) {
      const cell = element("th", column.className || "", column.head);
      cell.scope = "col";
      head.append(cell);
    }
    node.append(element("tbody"));
    node.rowsByKey = new Map();
  }
  const seen = new Set();
  const wanted = rows.map((row) => {
    const id = key(row);
    seen.add(id);
    let made = node.rowsByKey.get(id);
    if (!made) {
      made = element("tr");
      for (const column of columns) made.append(element("td", column.className || ""));
      node.rowsByKey.set(id, made);
    }
    columns.forEach((column, index) => {
      const cell = made.cells[index];
      const value = column.cell(row, cell);
      if (typeof value === "string") {
        set(cell, value);
      } else if (value && cell.firstChild !== value) {
        cell.replaceChildren(value);
      }
      if (column.style) cell.className = `${column.className || ""} ${column.style(row)}`.trim();
    });
    return made;
  });
  for (const id of node.rowsByKey.keys()) if (!seen.has(id)) node.rowsByKey.delete(id);
  fill(node.tBodies[0], wanted);
}

// ---- charts

const HEIGHT = 180, LEFT = 48, RIGHT = 8, BOTTOM = 20, TOP = 8;

/** A round number that is not below `most`. */
function ceiling(most) {
  if (!(most > 0)) return 1;
  const unit = 10 ** Math.floor(Math.log10(most));
  return unit * [1, 2, 5, 10].find((step) => step * unit >= most);
}

/** The frame of a chart: lines, figures and times. A unit is a pixel, so that text has its size on any screen. */
function frame(svg, now, most) {
  const width = Math.max(240, svg.clientWidth || 640);
  svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  const x = (ms) => LEFT + (width - LEFT - RIGHT) * (1 - (now - ms) / WINDOW_MS);
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / most);
  const shapes = [];
  for (const share of [0, 0.5, 1]) {
    const level = y(most * share);
    shapes.push(shape("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: level, y2: level }));
    shapes.push(shape("text", { x: LEFT - 6, y: level + 4, "text-anchor": "end" }, short(most * share)));
  }
  for (const minutes of [MINUTES, 10, 5, 0]) {
    const anchor = minutes === MINUTES ? "start" : minutes ? "middle" : "end";
    const words = minutes ? `-${minutes} min` : "now";
    shapes.push(shape("text", { x: x(now - minutes * 60000), y: HEIGHT - 5, "text-anchor": anchor }, words));
  }
  return { x, y, shapes };
}

/** Lines over time: each {colour, className, value(sample)}. */
function lines(svg, series, least) {
  const now = state.samples.length ? state.samples.at(-1).ms : 0;
  let most = least;
  for (const { value } of series) for (const sample of state.samples) most = Math.max(most, value(sample) || 0);
  const { x, y, shapes } = frame(svg, now, ceiling(most));
  for (const { colour, className, value } of series) {
    let path = "", pen = "M";
    for (const sample of state.samples) {
      const figure = value(sample);
      if (figure === undefined) { pen = "M"; continue; }
      path += `${pen}${x(sample.ms).toFixed(1)} ${y(figure).toFixed(1)}`;
      pen = "L";
    }
    shapes.push(shape("path", { class: `line s${colour} ${className || ""}`, d: path }));
  }
  svg.replaceChildren(...shapes);
}

/** Areas on top of each other, one for each instance. */
function stacked(svg, ids) {
  const now = state.samples.length ? state.samples.at(-1).ms : 0;
  const sum = (sample) => ids.reduce((all, id) => all + (sample.flows.get(id) || 0), 0);
  const most = state.samples.reduce((most, sample) => Math.max(most, sum(sample)), 4);
  const { x, y, shapes } = frame(svg, now, ceiling(most));
  const below = state.samples.map(() => 0);
  for (const id of ids) {
    const lower = state.samples.map((sample, index) => `${x(sample.ms).toFixed(1)} ${y(below[index]).toFixed(1)}`);
    state.samples.forEach((sample, index) => { below[index] += sample.flows.get(id) || 0; });
    const upper = state.samples.map((sample, index) => `${x(sample.ms).toFixed(1)} ${y(below[index]).toFixed(1)}`);
    const path = shape("path", { class: `area f${id % COLOURS}`, d: `M${upper.join("L")}L${lower.reverse().join("L")}Z` });
    path.append(shape("title", {}, `instance ${id}`));
    shapes.push(path);
  }
  svg.replaceChildren(...shapes);
}

/** A small line of an instance's figures, on a scale from 0 to `most`. */
function spark(svg, id, figures, most) {
  const samples = state.samples.slice(-60);
  const path = samples
    .map((sample, index) => [index, sample[figures].get(id)])
    .filter(([, value]) => value !== undefined)
    .map(([index, value]) => `${(index * 100 / 59).toFixed(1)} ${(23 - 21 * value / most).toFixed(1)}`);
  if (!svg.firstChild) {
    svg.setAttribute("viewBox", "0 0 100 24");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    svg.append(shape("path", { class: `line s${id % COLOURS}`, "vector-effect": "non-scaling-stroke" }));
  }
  svg.firstChild.setAttribute("d", path.length ? "M" + path.join("L") : "");
}

function key(parent, entries) {
  fill(parent, entries.flatMap(([colour, words], index) => {
    const [mark, text] = [parent.children[2 * index], parent.children[2 * index + 1]];
    const made = mark && text ? [mark, text] : [element("i"), element("span")];
    set(made[0], "", `k${colour}`);
    set(made[1], words);
    return made;
  }));
}

// ---- what is shown

const tone = (state) => ({ active: "good", failed: "bad", draining: "note", stopping: "note" })[state] || "";

function drawFigures({ status }, sample) {
  const figures = [
    ["offered", short(sample.offered) + "/s"], ["returned", short(sample.returned) + "/s"],
    ["lost", short(sample.lost) + "/s", sample.lost >= 1 ? "bad" : ""],
    ["flows", short(status.live_flows)], ["in flight", short(status.accounting.in_flight)],
    ["dropped so far", short(status.accounting.dropped)],
  ];
  const list = at("figures");
  if (!list.firstElementChild) {
    for (const [name] of figures) {
      const pair = element("div");
      pair.append(element("dt", "", name), element("dd"));
      list.append(pair);
    }
  }
  figures.forEach(([, words, className], index) => set(list.children[index].lastElementChild, words, className || ""));
}

function drawServices({ services }) {
  table(at("services"), [
    { head: "service", className: "left", cell: (row) => row.name },
    { head: "active", cell: (row) => `${row.active} of ${row.desired}${row.fixed ? " (manual)" : ""}` },
    { head: "limits", cell: (row) => `${row.min}-${row.max}` },
    { head: "load", cell: (row) => percent(row.highest_utilisation) },
    { head: "offered/s", cell: (row) => short(row.offered_pps) },
    { head: "returned/s", cell: (row) => short(row.returned_pps) },
    { head: "flows", cell: (row) => short(row.live_flows) },
    { head: "scheduler", className: "left", cell: (row) => row.scheduler },
    { head: "autoscaler", className: "left", cell: (row) => row.autoscaler },
  ], services, (row) => row.name);
}

function drawInstances({ instances }) {
  const most = (figures) => Math.max(1, ...state.samples.slice(-60).flatMap((sample) => [...sample[figures].values()]));
  const scale = { rates: most("rates"), flows: most("flows") };
  const chart = (figures) => (row, cell) => {
    const svg = cell.firstChild || shape("svg", { class: "spark" });
    spark(svg, row.id, figures, scale[figures]);
    return svg;
  };
  table(at("instance-rows"), [
    { head: "instance", className: "left", cell: (row, cell) => {
      if (cell.firstChild) { set(cell.firstChild, String(row.id)); return cell.firstChild; }
      const button = element("button", "", String(row.id));
      button.type = "button";
      button.setAttribute("aria-label", `instance ${row.id}: show its largest flows`);
      button.addEventListener("click", () => choose(row.id));
      return button;
    } },
    { head: "service", className: "left", cell: (row) => row.place ? `${row.service} at ${row.place}` : row.service },
    { head: "state", className: "left", cell: (row) => row.state, style: (row) => tone(row.state) },
    { head: "for", cell: (row) => span(row.state_ms) },
    { head: "rate/s", cell: (row) => short(row.to_pps) },
    { head: "", cell: chart("rates") },
    { head: "flows", cell: (row) => short(row.live_flows) },
    { head: "", cell: chart("flows") },
    { head: "ring", cell: (row) => percent(row.ring_occupancy), style: (row) => row.ring_occupancy >= 0.5 ? "bad" : "" },
    { head: "dropped", cell: (row) => short(row.dropped_packets) },
  ], instances, (row) => row.id);
}

function drawActors({ actors }) {
  const services = actors || [];
  at("actors").hidden = services.length === 0;
  const sides = services.flatMap((row) => row.sides.map((side) => ({ service: row.service, ...side })));
  const list = at("actor-sides");
  fill(list, sides.map((side, index) => {
    const line = list.children[index] || element("li");
    const where = side.place ? ` at ${side.place}` : "";
    set(line, `${side.service}, ${side.side}${where}: ${side.runs ? "runs" : "does not run"}; ${side.cores} cores ${percent(side.busy)} busy; ` +
      `requests ${short(side.requests)}, answers ${short(side.answers)}`, side.runs ? "" : "bad");
    return line;
  }));
  const rows = services.flatMap((row) => row.actors.map((actor) => ({ service: row.service, ...actor })));
  const time = (us) => us < 1000 ? us.toFixed(0) + " µs" : span(us / 1000);
  table(at("actor-rows"), [
    { head: "actor", className: "left", cell: (row) => `${row.service}/${row.actor}` },
    { head: "side", className: "left", cell: (row) => row.side || "-" },
    { head: "mode", className: "left", cell: (row) => row.mode },
    { head: "state", className: "left", cell: (row) => row.state, style: (row) => ({ runs: "good", lost: "bad", stopped: "bad" })[row.state] || "note" },
    { head: "mailbox", cell: (row) => short(row.mailbox) },
    { head: "mean", cell: (row) => time(row.mean_us) },
    { head: "tail", cell: (row) => time(row.tail_us) },
    { head: "requests/s", cell: (row) => short(row.requests_per_s) },
    { head: "load", cell: (row) => row.load.toFixed(2) },
    { head: "objects", cell: (row) => short(row.objects) },
    { head: "moves", cell: (row) => short(row.migrations) },
  ], rows, (row) => `${row.service}/${row.actor}`);
}

function drawScaling({ services }) {
  const series = services.flatMap((row, index) => [
    { colour: index % COLOURS, value: (sample) => sample.active.get(row.name) },
    { colour: index % COLOURS, className: "thin", value: (sample) => sample.desired.get(row.name) },
  ]);
  lines(at("scaling"), series, 4);
  key(at("scaling-legend"), services.map((row, index) => [index % COLOURS, `${row.name}: active, and wanted (dashed)`]));
  const reasons = at("reasons");
  fill(reasons, services.map((row, index) => {
    const line = reasons.children[index] || element("li");
    set(line, `${row.name} now: ${row.failing || row.reason || "nothing decided yet"}`);
    return line;
  }));
}

/** Uplinks at the left, services in the middle, instances at the right; a link is as wide as its share of the rate. */
function drawTopology({ status, services, instances }) {
  const svg = at("topology");
  const step = 34, height = Math.max(status.uplinks.length, services.length, instances.length, 1) * step + 10;
  svg.setAttribute("viewBox", `0 0 640 ${height}`);
  const place = (index, count) => (index + 0.5) * (height / count);
  const total = Math.max(1, ...services.map((row) => row.offered_pps));
  const received = Math.max(1, status.uplinks.reduce((all, row) => all + row.received_pps, 0));
  const wide = (rate) => rate > 0 ? 1 + 9 * Math.min(1, rate / total) : 1;
  const links = [], boxes = [];
  const link = (x1, y1, x2, y2, width, className) => {
    const middle = (x1 + x2) / 2;
    links.push(shape("path", { class: `link ${className}`, "stroke-width": width.toFixed(1), d: `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}` }));
  };
  const box = (x, y, width, name, words, className) => {
    boxes.push(shape("rect", { class: `box ${className}`, x, y: y - 13, width, height: 26, rx: 4 }));
    boxes.push(shape("text", { class: "name", x: x + 7, y: y + 4 }, name));
    boxes.push(shape("text", { x: x + width - 7, y: y + 4, "text-anchor": "end" }, words));
  };
  status.uplinks.forEach((row, index) => {
    const y = place(index, status.uplinks.length);
    box(6, y, 150, row.name.slice(0, 12), row.up ? short(row.received_pps) + "/s" : row.device.startsWith("memif:") ? "waiting for peer" : "down", row.up ? "s2" : "s1");
    const share = row.received_pps / received;
    services.forEach((service, number) => link(156, y, 230, place(number, services.length), wide(service.offered_pps * share), row.up ? "" : "thin"));
  });
  services.forEach((row, index) => {
    box(230, place(index, services.length), 150, row.name.slice(0, 12), short(row.offered_pps) + "/s", `s${index % COLOURS}`);
  });
  instances.forEach((row, index) => {
    const y = place(index, instances.length);
    const service = services.findIndex((service) => service.name === row.service);
    if (service >= 0) link(380, place(service, services.length), 454, y, wide(row.to_pps), `s${service % COLOURS}`);
    box(454, y, 180, `${row.id} ${row.state}`, `${short(row.to_pps)}/s, ${short(row.live_flows)} fl.`, `s${row.id % COLOURS}`);
  });
  svg.replaceChildren(...links, ...boxes);
}

function logLine(event) {
  if (!event.line) {
    const line = element("li");
    line.append(element("time", "", clock(event.unix_ms)), document.createTextNode(sentence(event)));
    // Not enumerable: it is no field of the event.
    Object.defineProperty(event, "line", { value: {}, enumerable: false });
    event.line.log = line;
    event.line.decision = line.cloneNode(true);
  }
  return event.line;
}

function drawEvents() {
  const newest = state.events.slice().reverse();
  fill(at("events"), newest.map((event) => logLine(event).log));
  const decisions = newest.filter((event) => ["scaled", "shadowed", "resized", "relocated"].includes(event.event)).slice(0, DECISIONS);
  fill(at("decisions"), decisions.map((event) => logLine(event).decision));
  const moves = newest.filter((event) => ["actor", "actor_side"].includes(event.event)).slice(0, DECISIONS);
  fill(at("actor-events"), moves.map((event) => logLine(event).decision));
}

function draw() {
  const { snapshot } = state;
  if (!snapshot || document.hidden) return;
  const { status, instances } = snapshot;
  const engine = status.engine.up ? `engine ${status.engine.driver}` : `engine ${status.engine.driver} DOES NOT ANSWER`;
  set(at("about"), `${status.version}, ${status.file}, up ${span(status.uptime_s * 1000)}, ${engine}`);
  drawFigures(snapshot, state.samples.at(-1));
  lines(at("traffic"), [
    { colour: 0, value: (sample) => sample.offered },
    { colour: 2, value: (sample) => sample.returned },
    { colour: 1, value: (sample) => sample.lost },
  ], 10);
  drawServices(snapshot);
  drawInstances(snapshot);
  drawActors(snapshot);
  const ids = instances.map((row) => row.id);
  stacked(at("flows"), ids);
  key(at("flows-legend"), instances.filter((row) => row.live_flows > 0).map((row) => [row.id % COLOURS, `${row.id}: ${short(row.live_flows)}`]));
  drawScaling(snapshot);
  drawTopology(snapshot);
}

// ---- what comes

/** What happened before this page was opened: the samples of /v1/history. */
function remember(history) {
  const rows = history.unix_ms.map((ms, index) => ({
    ms, offered: history.offered_pps[index], returned: history.returned_pps[index], lost: history.dropped_pps[index],
    rates: new Map(), flows: new Map(), active: new Map(), desired: new Map(),
  }));
  const spread = (of, figures, name, id) => of[figures].forEach((value, index) => rows[of.first + index][name].set(id, value));
  for (const of of history.instances) {
    spread(of, "to_pps", "rates", of.id);
    spread(of, "live_flows", "flows", of.id);
  }
  for (const of of history.services) {
    spread(of, "active", "active", of.name);
    spread(of, "desired", "desired", of.name);
  }
  state.samples = rows;
  state.pid = history.pid;
  state.snapshot = null;
}

function take(snapshot) {
  const { status, services, instances } = snapshot;
  const before = state.snapshot;
  const isOther = state.pid !== status.pid;
  if (isOther) {
    // Another process counts from 0 and numbers its instances anew.
    state.samples = [];
    state.pid = status.pid;
  }
  const seconds = before && !isOther ? status.uptime_s - before.status.uptime_s : 0;
  const lost = seconds > 0 ? Math.max(0, status.accounting.dropped - before.status.accounting.dropped) / seconds : 0;
  const sum = (figure) => status.uplinks.reduce((all, row) => all + row[figure], 0);
  const by = (rows, name, figure) => new Map(rows.map((row) => [row[name], row[figure]]));
  state.snapshot = snapshot;
  // The history may end with this very moment.
  if (state.samples.length && state.samples.at(-1).ms >= snapshot.unix_ms) state.samples.pop();
  state.samples.push({
    ms: snapshot.unix_ms, offered: sum("received_pps"), returned: sum("sent_pps"), lost,
    rates: by(instances, "id", "to_pps"), flows: by(instances, "id", "live_flows"),
    active: by(services, "name", "active"), desired: by(services, "name", "desired"),
  });
  while (state.samples.length > SAMPLES || state.samples[0].ms < snapshot.unix_ms - WINDOW_MS) state.samples.shift();
  draw();
}

function happened(event) {
  // All that a decision rested on: kilobytes that nothing here shows.
  delete event.case;
  state.events.push(event);
  if (state.events.length > EVENTS) state.events.shift();
}

/** Server-sent events as they come in a response's body. */
async function follow(response, onMessage) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "", message = { event: "message", data: "" };
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    let end;
    while ((end = text.indexOf("\n")) >= 0) {
      const line = text.slice(0, end).replace(/\r$/, "");
      text = text.slice(end + 1);
      if (line === "") {
        if (message.data) onMessage(message);
        message = { event: "message", data: "" };
      } else if (line.startsWith("event:")) {
        message.event = line.slice(6).trim();
      } else if (line.startsWith("data:")) {
        message.data += line.slice(5).trim();
      }
    }
  }
}

/** Asks this inco, with the token where it wants one. */
function ask(path, options) {
  const token = sessionStorage.getItem("token");
  return fetch(path, { cache: "no-store", headers: token ? { Authorization: `Bearer ${token}` } : {}, ...options });
}

function connection(words, className) {
  set(at("connection"), words, className);
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function stay() {
  let pause = 500;
  for (;;) {
    try {
      const response = await ask("v1/stream?last=100");
      if (response.status === 401) {
        await tokenGiven();
        continue;
      }
      if (!response.ok) throw new Error(`status ${response.status}`);
      // The newest events come again after each connection, and so does what happened meanwhile.
      state.events = [];
      const history = await ask("v1/history");
      if (history.ok) remember(await history.json());
      pause = 500;
      connection("live", "live");
      let waits = false;
      await follow(response, ({ event, data }) => {
        if (event === "snapshot") take(JSON.parse(data));
        if (event === "happened") {
          happened(JSON.parse(data));
          if (!waits) {
            waits = true;
            requestAnimationFrame(() => { waits = false; drawEvents(); });
          }
        }
      });
      connection("ended; looking for it again", "gone");
    } catch (error) {
      connection("no answer; looking for it again", "gone");
    }
    await sleep(pause);
    pause = Math.min(5000, pause * 2);
  }
}

function tokenGiven() {
  const form = at("token");
  form.hidden = false;
  connection("waits for a token", "gone");
  at("token-text").focus();
  return new Promise((resolve) => {
    form.onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem("token", at("token-text").value.trim());
      at("token-text").value = "";
      form.hidden = true;
      resolve();
    };
  });
}

// ---- one instance and its largest flows

async function choose(id) {
  const isSame = state.chosen === id;
  state.chosen = id;
  at("detail").hidden = false;
  if (!isSame) at("detail-flows").rowsByKey?.clear();
  await look();
}

/* What is seen of an instance, in sentences. */
function seen(row) {
  const hasPackets = row.gap_us !== null && row.gap_us !== undefined;
  return `${row.state} for ${span(row.state_ms)} (${row.reason}); process ${row.pid ?? "-"}, ` +
    `capacity ${short(row.capacity_pps)}/s, CPU ${percent(row.cpu)} of ${row.cpu_quota ?? "1, not limited"}, ` +
    `busy ${percent(row.busy)} and held up ${percent(row.held_up)} of the time, memory ${size(row.memory_bytes)}, ` +
    `${watts(row.watts)}. ` +
    (hasPackets ? `A packet comes each ${micros(row.gap_us)} on average. ` : "No packet comes now. ") +
    `Half and 99 % of its packets wait ${within(row.ring_wait_us)} in its ring and take ${within(row.function_us)} ` +
    "in the function. Its largest flows:";
}

async function look() {
  const id = state.chosen;
  if (id === null || document.hidden || !state.snapshot) return;
  const row = state.snapshot.instances.find((row) => row.id === id);
  set(at("detail-title"), row ? `Instance ${id} of ${row.service}${row.place ? ` at ${row.place}` : ""}` : `Instance ${id} is gone`);
  set(at("detail-words"), row ? seen(row) : "");
  let flows = [];
  try {
    const response = row ? await ask(`v1/flows?instance=${id}&top=10`) : null;
    if (response && response.ok) flows = (await response.json()).flows;
  } catch (error) {
    // The connection's own state says it already.
  }
  if (state.chosen !== id) return;
  table(at("detail-flows"), [
    { head: "flow", className: "left", cell: (row) => row.flow },
    { head: "packets/s", cell: (row) => short(row.pps) },
    { head: "packets", cell: (row) => short(row.packets[0] + row.packets[1]) },
    { head: "state", className: "left", cell: (row) => row.state },
  ], flows, (row) => row.flow);
}

at("detail-close").addEventListener("click", () => {
  state.chosen = null;
  at("detail").hidden = true;
});
document.addEventListener("visibilitychange", draw);
window.addEventListener("resize", draw);
setInterval(look, 2000);
stay();
