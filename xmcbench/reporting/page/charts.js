"use strict";
// Charts as SVG. Colours come from classes (c0 to c7), so that they follow the colour scheme and print.

const SERIES = 8; // lines or bars of a chart; more could not be distinguished
const DRAWN = 400; // points of a chart: the Pareto front and the best others
const NAMED = 16; // points that all have names; of more points only those of the Pareto front
const HEIGHT = 360;
const MARGIN = { left: 58, right: 14, top: 14, bottom: 46 };

// 20400000 -> "20.4M"
function short(number) {
  for (const [unit, size] of [["P", 1e15], ["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (Math.abs(number) >= size) return `${+(number / size).toPrecision(3)}${unit}`;
  }
  return number !== 0 && Math.abs(number) < 0.001 ? number.toExponential(0) : String(+number.toPrecision(3));
}

// What distinguishes points of a sweep is at the end of their names.
const cut = (text, length) =>
  text.length > length ? `${text.slice(0, Math.ceil(length / 2) - 1)}…${text.slice(-Math.floor(length / 2))}` : text;

function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const title = (text) => svg("title", {}, text);

// Round values between two ends, about `count` of them.
function roundTicks(least, most, count) {
  const rough = (most - least) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const ticks = [];
  for (let value = Math.ceil(least / step) * step; value <= most + step * 1e-9; value += step) ticks.push(value);
  return ticks;
}

// A scale from values to pixels: logarithmic where the values span more than a factor of four and `log` allows it.
function scale(values, pixels, { log = false, room = 0.06, zero = false } = {}) {
  const logarithmic = log && Math.max(...values) / Math.min(...values) > 4;
  const of = logarithmic ? Math.log10 : (value) => value;
  let [least, most] = [of(Math.min(...values)), of(Math.max(...values))];
  const pad = (most - least) * room || Math.abs(least) * 0.1 || 1;
  [least, most] = [zero ? 0 : least - pad, most + pad];
  const place = (value) => pixels[0] + ((of(value) - least) / (most - least)) * (pixels[1] - pixels[0]);
  if (!logarithmic) return { place, ticks: roundTicks(least, most, 6) };
  const steps = most - least > 3 ? [1] : [1, 2, 5];
  const ticks = [];
  for (let power = Math.floor(least); power <= Math.ceil(most); power += 1) ticks.push(...steps.map((step) => step * 10 ** power));
  const inside = ticks.filter((tick) => of(tick) >= least && of(tick) <= most);
  const every = Math.ceil(inside.length / Math.max(2, Math.floor(Math.abs(pixels[1] - pixels[0]) / 48)));
  return { place, ticks: inside.filter((_, at) => at % every === 0) };
}

// The axes of a chart; `x` and `y` are scales, `names` replace the ticks of a bar chart.
function frame(width, x, y, labels, names = null) {
  const root = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img" });
  const [left, right, top, bottom] = [MARGIN.left, width - MARGIN.right, MARGIN.top, HEIGHT - MARGIN.bottom];
  for (const tick of y.ticks) {
    const at = y.place(tick);
    root.append(svg("line", { class: "grid", x1: left, x2: right, y1: at, y2: at }), svg("text", { class: "tick", x: left - 8, y: at + 4, "text-anchor": "end" }, short(tick)));
  }
  for (const [at, text] of names ?? x.ticks.map((tick) => [x.place(tick), short(tick)])) {
    if (!names) root.append(svg("line", { class: "grid", x1: at, x2: at, y1: top, y2: bottom }));
    root.append(svg("text", { class: "tick", x: at, y: bottom + 18, "text-anchor": "middle" }, text));
  }
  root.append(
    svg("text", { class: "axis", x: (left + right) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, labels.x),
    svg("text", { class: "axis", transform: `translate(14 ${(top + bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, labels.y),
  );
  return root;
}

function show(id, root, description, legend, remarks) {
  const figure = document.getElementById(id);
  root.setAttribute("aria-label", description);
  figure.querySelector(".plot").replaceChildren(root);
  figure.querySelector(".legend").replaceChildren(...legend.map(([style, text]) => element("li", {}, element("span", { class: `swatch ${style}` }), text)));
  figure.querySelector(".remark").textContent = remarks.filter(Boolean).join(" ");
}

const plotWidth = (id) => Math.max(300, document.querySelector(`#${id} .plot`).clientWidth);
const xPixels = (width) => [MARGIN.left, width - MARGIN.right];
const yPixels = [HEIGHT - MARGIN.bottom, MARGIN.top];

// The points that no other point beats in both cost and metric, cheapest first.
function paretoFront(points) {
  const front = [];
  for (const point of [...points].sort((a, b) => a.x - b.x || b.y - a.y)) {
    if (!front.length || point.y > front[front.length - 1].y) front.push(point);
  }
  return front;
}

// Labels beside points: at the first free place around each point, else above it with a line to it.
function placeLabels(points, width) {
  const taken = points.map(({ px, py }) => [px - 6, py - 6, px + 6, py + 6]);
  const overlaps = (box) => taken.some((other) => box[0] < other[2] && other[0] < box[2] && box[1] < other[3] && other[1] < box[3]);
  return points.map((point) => {
    const text = cut(point.name, 34);
    const length = 6.6 * text.length;
    const shifts = [[9, 4], [-9 - length, 4], [-length / 2, -11], [-length / 2, 20]];
    for (let away = 26; away < 160; away += 13) shifts.push([12, -away], [12, away], [-12 - length, -away], [-12 - length, away]);
    const boxes = shifts.map(([dx, dy]) => [point.px + dx, point.py + dy - 11, point.px + dx + length, point.py + dy + 3]);
    const inside = (box) => box[0] > MARGIN.left && box[2] < width - 2 && box[1] > 0 && box[3] < HEIGHT - MARGIN.bottom;
    const at = Math.max(0, boxes.findIndex((box) => inside(box) && !overlaps(box)));
    taken.push(boxes[at]);
    return { text, x: boxes[at][0], y: boxes[at][3] - 3, px: point.px, py: point.py, far: at > 3 };
  });
}

// PRIME's Figure 1: what a row costs against how good it is, with the Pareto front of all that is shown.
function planCost(rows, x, y) {
  const known = rows.filter((row) => row.costs[x] > 0 && row.metric(y) !== null && row.rank !== null);
  if (known.length < 2) return null;
  const all = known.map((row) => ({ x: row.costs[x], y: 100 * row.metric(y), name: row.kind ? `${row.method}, ${row.kind}` : nameOf(row), source: row.from }));
  const front = paretoFront(all);
  const others = all.filter((point) => !front.includes(point)).sort((a, b) => b.y - a.y).slice(0, DRAWN);
  return () => {
    const width = plotWidth("cost");
    const points = [...others, ...front];
    const [across, up] = [scale(points.map((p) => p.x), xPixels(width), { log: true }), scale(points.map((p) => p.y), yPixels)];
    const root = frame(width, across, up, { x: PAGE.costs[x], y: `${y} (%)` });
    for (const point of points) Object.assign(point, { px: across.place(point.x), py: up.place(point.y) });
    root.append(svg("polyline", { class: "front", points: front.map(({ px, py }) => `${px},${py}`).join(" ") }));
    for (const point of points) {
      const circle = svg("circle", { class: `point ${point.source}`, cx: point.px, cy: point.py, r: points.length > 100 ? 3 : 5 });
      circle.append(title(`${point.name}: ${y} ${point.y.toFixed(2)}, ${PAGE.costs[x]} ${short(point.x)}`));
      root.append(circle);
    }
    const named = points.length <= NAMED ? [...front, ...others] : front;
    for (const label of placeLabels(named, width)) {
      if (label.far) root.append(svg("line", { class: "leader", x1: label.px, y1: label.py, x2: label.x, y2: label.y - 4 }));
      root.append(svg("text", { class: "label", x: label.x, y: label.y }, label.text));
    }
    const sources = unique(points.map((point) => point.source)).sort();
    show("cost", root, `${y} against ${PAGE.costs[x]} of ${points.length} rows; the table above holds the same values`,
      [...sources.map((source) => [source, source]), ["front-swatch", "Pareto front: no row is better at the same cost or less"]], [
      named === front ? "Names are those of the Pareto front; the other points show theirs on hover." : "",
      all.length > points.length ? `${all.length - points.length} of ${all.length} rows below the best are not drawn.` : "",
      rows.length > known.length ? `${rows.length - known.length} rows without this cost or without a rank are left out.` : "",
    ]);
  };
}

const called = (trial, all) => cut(all.some(({ budget }) => budget !== trial.budget) ? `${trial.budget}: ${trial.method}` : trial.method, 60);

// Metrics on held-out queries along what was spent, a line for each trial.
function planCurve(curves, x, y) {
  const found = curves.filter((curve) => curve.points.some((point) => x in point && y in point)).slice(0, SERIES);
  if (!found.length) return null;
  return () => {
    const width = plotWidth("curve");
    const lines = found.map((curve) => curve.points.filter((point) => x in point && y in point).map((point) => [point[x], 100 * point[y]]));
    const [across, up] = [scale(lines.flat().map(([value]) => value), xPixels(width)), scale(lines.flat().map(([, value]) => value), yPixels)];
    const root = frame(width, across, up, { x: PAGE.spent[x], y: `${y} (%)` });
    lines.forEach((line, at) => {
      const places = line.map(([a, b]) => [across.place(a), up.place(b)]);
      root.append(svg("polyline", { class: `line c${at}`, points: places.map((place) => place.join()).join(" ") }));
      places.forEach(([px, py], i) => root.append(svg("circle", { class: `dot c${at}`, cx: px, cy: py, r: 3.5 }, title(`${found[at].method}: ${y} ${line[i][1].toFixed(2)} at ${short(line[i][0])}`))));
    });
    show("curve", root, `${y} along ${PAGE.spent[x]} of ${found.length} trials`, found.map((curve, at) => [`c${at}`, called(curve, found)]),
      ["On held-out training queries, while training.", curves.length > found.length ? `The first ${found.length} of ${curves.length} trials.` : ""]);
  };
}

// DEXML's Figure 7: what labels of each decile add to P@k; and which share of their true pairs is found.
const DECILE_VALUES = {
  contribution: (k) => `added to P@${k} (%)`,
  recall: (k) => `true pairs among the best ${k} (%)`,
};

function planDeciles(analyses, y) {
  if (!analyses.length) return null;
  const found = analyses.slice(0, SERIES);
  const label = DECILE_VALUES[y](found[0].k);
  return () => {
    const width = plotWidth("deciles");
    const up = scale([0, ...found.flatMap((each) => each[y].map((share) => 100 * (share ?? 0)))], yPixels, { zero: true });
    const slot = (width - MARGIN.left - MARGIN.right) / found[0][y].length;
    const names = found[0][y].map((_, at) => [MARGIN.left + (at + 0.5) * slot, String(at + 1)]);
    const root = frame(width, null, up, { x: "decile of the labels, 1 the most frequent", y: label }, names);
    found.forEach((each, series) => each[y].forEach((share, at) => {
      const top = up.place(100 * (share ?? 0));
      const bar = svg("rect", { class: `fill c${series}`, x: MARGIN.left + (at + 0.1 + (0.8 * series) / found.length) * slot, y: top, width: (0.76 * slot) / found.length, height: Math.max(0, up.place(0) - top) });
      bar.append(title(`${each.method}, decile ${at + 1}: ${share === null ? "no pairs" : (100 * share).toFixed(2)}`));
      root.append(bar);
    }));
    show("deciles", root, `${label} by decile of the labels, for ${found.length} trials`, found.map((each, at) => [`c${at}`, called(each, found)]),
      [analyses.length > found.length ? `The best ${found.length} of ${analyses.length} trials.` : "", y === "contribution" ? "The bars of a method add up to its metric." : ""]);
  };
}

// First decides which figures there are, so that each is drawn at the width it has among them.
function drawAll(plans) {
  for (const [id, plan] of Object.entries(plans)) document.getElementById(id).hidden = plan === null;
  for (const plan of Object.values(plans)) plan?.();
}
