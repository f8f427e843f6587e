"use strict";
// Charts as SVG. Colours come from classes (c0 to c7): of a point that of its method's family, of each line its own.

const SERIES = 8; // lines of a chart, each with its name and its own colour; more could not be distinguished
const DRAWN = 400; // points of a chart: the Pareto front and the best others
const DIRECT = 8; // names beside points
const HEIGHT = 360;
const NARROW = 560; // pixels of a chart with little room for names
const SPAN = 1e4; // of a logarithmic axis of costs: what costs less is drawn at its end
const MARGIN = { left: 58, right: 14, top: 14, bottom: 46 };

// 20400000 -> "20.4M"
function short(number) {
  for (const [unit, size] of [["P", 1e15], ["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (Math.abs(number) >= size) return `${+(number / size).toPrecision(3)}${unit}`;
  }
  return number !== 0 && Math.abs(number) < 0.001 ? number.toExponential(0) : String(+number.toPrecision(3));
}

function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// The width of a text of a chart in pixels.
const PEN = document.createElement("canvas").getContext("2d");
function widthOf(text) {
  PEN.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  return PEN.measureText(text).width;
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
function frame(width, height, x, y, labels, { names = null, room = 0 } = {}) {
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img" });
  const [left, right, top, bottom] = [MARGIN.left, width - MARGIN.right - room, MARGIN.top, height - MARGIN.bottom];
  for (const tick of y.ticks) {
    const at = y.place(tick);
    root.append(svg("line", { class: "grid", x1: left, x2: right, y1: at, y2: at }), svg("text", { class: "tick", x: left - 8, y: at + 4, "text-anchor": "end" }, short(tick)));
  }
  for (const [at, text] of names ?? x.ticks.map((tick) => [x.place(tick), short(tick)])) {
    if (!names) root.append(svg("line", { class: "grid", x1: at, x2: at, y1: top, y2: bottom }));
    root.append(svg("text", { class: "tick", x: at, y: bottom + 18, "text-anchor": "middle" }, text));
  }
  root.append(
    svg("text", { class: "axis", x: (left + right) / 2, y: height - 6, "text-anchor": "middle" }, labels.x),
    svg("text", { class: "axis", transform: `translate(14 ${(top + bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, labels.y),
  );
  return root;
}

function show(id, root, description, { families = [], legend = [], remarks = [] }) {
  const figure = document.getElementById(id);
  root.setAttribute("aria-label", description);
  figure.querySelector(".plot").replaceChildren(root);
  const entries = [...unique(families).sort().map((family) => [`c${family}`, PAGE.families[family]]), ...legend];
  figure.querySelector(".legend").replaceChildren(...entries.map(([style, text]) => element("li", {}, element("span", { class: `swatch ${style}` }), text)));
  figure.querySelector(".remark").textContent = remarks.filter(Boolean).join(" ");
}

const plotWidth = (id) => Math.max(260, document.querySelector(`#${id} .plot`).clientWidth);
const xPixels = (width, room = 0) => [MARGIN.left, width - MARGIN.right - room];
const yPixels = (height) => [height - MARGIN.bottom, MARGIN.top];

// The points that no other point beats in both cost and metric, cheapest first.
function paretoFront(points, sign) {
  const front = [];
  for (const point of [...points].sort((a, b) => a.x - b.x || sign * (b.y - a.y))) {
    if (!front.length || sign * (point.y - front[front.length - 1].y) > 0) front.push(point);
  }
  return front;
}

// The front as steps: between two points the cheaper one is the best for its cost.
function steps(front, right) {
  const corners = front.flatMap(({ px, py }, at) => (at ? [[px, front[at - 1].py], [px, py]] : [[px, py]]));
  return [...corners, [right, front[front.length - 1].py]].map((corner) => corner.join()).join(" ");
}

// Labels beside points: at the first free place around each point, else above it with a line to it.
function placeLabels(points, all, width, height) {
  const taken = all.map(({ px, py }) => [px - 6, py - 6, px + 6, py + 6]);
  const overlaps = (box) => taken.some((other) => box[0] < other[2] && other[0] < box[2] && box[1] < other[3] && other[1] < box[3]);
  return points.map((point) => {
    const length = widthOf(point.text) + 2;
    const shifts = [[9, 4], [-9 - length, 4], [-length / 2, -11], [-length / 2, 20]];
    for (let away = 20; away < 200; away += 13) shifts.push([12, -away], [12, away], [-12 - length, -away], [-12 - length, away]);
    const boxes = shifts.map(([dx, dy]) => [point.px + dx, point.py + dy - 11, point.px + dx + length, point.py + dy + 3]);
    const inside = (box) => box[0] > MARGIN.left && box[2] < width - 2 && box[1] > 0 && box[3] < height - MARGIN.bottom;
    const at = Math.max(0, boxes.findIndex((box) => inside(box) && !overlaps(box)));
    taken.push(boxes[at]);
    return { text: point.text, x: boxes[at][0], y: boxes[at][3] - 3, px: point.px, py: point.py, far: at > 3 };
  });
}

// Names as they stand beside points and lines, cut where a chart has little room; a title has each in full.
function cutNames(things, width) {
  const most = width < NARROW ? 18 : 34; // characters
  return things.map(({ name }) => (name.length > most ? `${name.slice(0, most - 1)}…` : name));
}

// PRIME's Figure 1: what a row costs against how good it is, with the Pareto front of all that is shown.
function planCost(rows, x, y) {
  const known = rows.filter((row) => row.costs[x] > 0 && row.metric(y) !== null && row.rank !== null);
  if (known.length < 2) return null;
  const least = Math.max(...known.map((row) => row.costs[x])) / SPAN;
  const all = known.map((row) => ({ x: Math.max(least, row.costs[x]), cost: row.costs[x], y: 100 * row.metric(y), ends: row.intervals[y]?.map((end) => Math.max(0, Number(end))), name: row.kind ? `${row.method}, ${row.kind}` : row.name, source: row.source, family: row.family }));
  const front = paretoFront(all, signOf(y));
  const others = all.filter((point) => !front.includes(point)).sort((a, b) => signOf(y) * (b.y - a.y)).slice(0, DRAWN);
  return () => {
    const width = plotWidth("cost");
    const points = [...others, ...front];
    const ends = points.flatMap((point) => (points.length > 100 ? [point.y] : [point.y, ...(point.ends ?? [])]));
    const [across, up] = [scale(points.map((p) => p.x), xPixels(width), { log: true }), scale(ends, yPixels(HEIGHT))];
    const root = frame(width, HEIGHT, across, up, { x: PAGE.costs[x], y: `${y} (%)` });
    for (const point of points) Object.assign(point, { px: across.place(point.x), py: up.place(point.y) });
    root.append(svg("polyline", { class: "front", points: steps(front, width - MARGIN.right) }));
    for (const point of points) {
      if (point.ends && points.length <= 100) root.append(svg("line", { class: `error c${point.family}`, x1: point.px, x2: point.px, y1: up.place(point.ends[0]), y2: up.place(point.ends[1]) }));
      const circle = svg("circle", { class: `point ${point.source} c${point.family}`, cx: point.px, cy: point.py, r: points.length > 100 ? 3 : 5 });
      circle.append(title(`${point.name}: ${y} ${point.y.toFixed(2)}, ${PAGE.costs[x]} ${short(point.cost)}`));
      root.append(circle);
    }
    const named = [...front, ...others].slice(0, DIRECT);
    const texts = cutNames(named, width);
    named.forEach((point, at) => { point.text = texts[at]; });
    for (const label of placeLabels(named, points, width, HEIGHT)) {
      if (label.far) root.append(svg("line", { class: "leader", x1: label.px, y1: label.py, x2: label.x, y2: label.y - 4 }));
      root.append(svg("text", { class: "label", x: label.x, y: label.y }, label.text));
    }
    const kinds = unique(points.map((point) => point.source)).length > 1 ? [["hollow", "published"], ["filled", "measured"]] : [];
    show("cost", root, `${y} against ${PAGE.costs[x]} of ${points.length} rows; the table above holds the same values`, {
      families: points.map((point) => point.family),
      legend: [...kinds, ["front-swatch", "Pareto front: no row is better at the same cost or less"]],
      remarks: [
        points.some((point) => point.cost < least) ? "Rows at the left end cost less than the axis shows." : "",
        named.length < points.length ? "The front and the best others are named; the other points show their names on hover." : "",
        all.length > points.length ? `${all.length - points.length} of ${all.length} rows below the best are not drawn.` : "",
        rows.length > known.length ? `${rows.length - known.length} rows without this cost or without a rank are left out.` : "",
      ],
    });
  };
}

const roomFor = (texts) => Math.max(...texts.map(widthOf)) + 10;

// The texts beside the last points of lines where they hide no point, else to the right of the chart; none over another.
function nameEnds(root, lines, texts, width, room) {
  const right = width - MARGIN.right - room;
  const points = lines.flat();
  const [beside, outside] = [[], []];
  lines.forEach((line, at) => {
    const [px, last] = line[line.length - 1];
    const end = px + 12 + widthOf(texts[at]);
    const free = (y) => points.every((other) => other[0] <= px || other[0] > end || Math.abs(other[1] - y) > 9) && beside.every((other) => Math.abs(other.py - y) > 13 || other.end < px || end < other.px);
    const py = end < right ? [0, -8, 8, -16, 16].map((shift) => last + shift).find(free) : undefined;
    (py === undefined ? outside : beside).push({ px, py: py ?? last, end, text: texts[at] });
  });
  for (const { px, py, text } of beside) root.append(svg("text", { class: "label", x: px + 8, y: py + 4 }, text));
  const bottom = Number(root.getAttribute("height")) - MARGIN.bottom;
  spread(outside.map(({ py }) => py), 14, bottom).forEach((place, at) => {
    const { px, py, text } = outside[at];
    root.append(svg("line", { class: "leader", x1: px, y1: py, x2: right + 4, y2: place }), svg("text", { class: "label", x: right + 6, y: place + 4 }, text));
  });
}

// Metrics on held-out queries along what was spent, a line for each row, with the interval over its seeds.
function planCurve(id, rows, x, y) {
  const last = (row) => row.curve[y][row.curve[y].length - 1];
  const known = rows.filter((row) => row.curve?.[x]?.length > 1 && row.curve[y]).sort((a, b) => signOf(y) * (last(b) - last(a)));
  const found = known.slice(0, SERIES);
  if (!found.length) return null;
  return () => {
    const width = plotWidth(id);
    const texts = cutNames(found, width);
    const room = roomFor(texts);
    const across = scale(found.flatMap((row) => row.curve[x].filter((value) => value > 0)), xPixels(width, room), { room: 0.02 });
    const up = scale(found.flatMap((row) => row.curve[y]), yPixels(HEIGHT));
    const root = frame(width, HEIGHT, across, up, { x: PAGE.spent[x], y: `${y} (%)` }, { room });
    const lines = found.map((row, number) => {
      const at = row.curve[x].map((value, i) => [value, row.curve[y][i], row.curve[`${y} ±`]?.[i] ?? 0]).filter(([value]) => value > 0);
      const places = at.map(([a, b]) => [across.place(a), up.place(b)]);
      root.append(svg("polyline", { class: `line c${number}`, points: places.map((place) => place.join()).join(" ") }, title(row.name)));
      at.forEach(([spent, value, half], i) => {
        const [px, py] = places[i];
        if (half) root.append(svg("line", { class: `error c${number}`, x1: px, x2: px, y1: up.place(value - half), y2: up.place(value + half) }));
        root.append(svg("circle", { class: `dot c${number}`, cx: px, cy: py, r: 3 }, title(`${row.name}: ${y} ${value.toFixed(2)}${half ? ` ± ${half.toFixed(1)}` : ""} at ${short(spent)}`)));
      });
      return places;
    });
    nameEnds(root, lines, texts, width, room);
    show(id, root, `${y} along ${PAGE.spent[x]} of ${found.length} rows`, {
      remarks: [`On held-out training queries, while training${found.some((row) => row.keys.length > 1) ? "; means over seeds with 95 % intervals" : ""}.`, known.length > found.length ? `The best ${found.length} of ${known.length} rows.` : ""],
    });
  };
}

// Places in the order of `wanted`, `gap` apart where there is room and above `bottom`, each near where it would be.
function spread(wanted, most, bottom) {
  const gap = Math.min(most, bottom / wanted.length);
  const order = wanted.map((place, at) => [place, at]).sort(([a], [b]) => a - b);
  let last = -Infinity;
  const placed = order.map(([place]) => (last = Math.max(place, last + gap)));
  for (let at = placed.length - 1, end = bottom; at >= 0; at -= 1, end = placed[at + 1] - gap) placed[at] = Math.min(placed[at], end);
  const found = [];
  order.forEach(([, at], i) => { found[at] = placed[i]; });
  return found;
}

// DEXML's Figure 7: what labels of each decile add to P@k; and which share of their true pairs is found.
const DECILE_VALUES = {
  contribution: (k) => `added to P@${k} (%)`,
  recall: (k) => `true pairs among the best ${k} (%)`,
};

function planDeciles(rows, y) {
  if (!rows.length) return null;
  const found = rows.slice(0, DIRECT);
  const label = DECILE_VALUES[y](found[0].deciles.k);
  return () => {
    const width = plotWidth("deciles");
    const texts = cutNames(found, width);
    const room = roomFor(texts);
    const up = scale([0, ...found.flatMap(({ deciles }) => deciles[y].map((share) => 100 * (share ?? 0)))], yPixels(HEIGHT), { zero: true });
    const slot = (width - MARGIN.left - MARGIN.right - room) / found[0].deciles[y].length;
    const place = (at) => MARGIN.left + (at + 0.5) * slot;
    const names = found[0].deciles[y].map((_, at) => [place(at), String(at + 1)]);
    const root = frame(width, HEIGHT, null, up, { x: "decile of the labels, 1 the most frequent", y: label }, { names, room });
    const lines = found.map((row, number) => {
      const places = row.deciles[y].map((share, at) => [place(at), up.place(100 * (share ?? 0)), share]);
      root.append(svg("polyline", { class: `line c${number}`, points: places.map(([px, py]) => `${px},${py}`).join(" ") }, title(row.name)));
      places.forEach(([px, py, share], at) => root.append(svg("circle", { class: `dot c${number}`, cx: px, cy: py, r: 3 }, title(`${row.name}, decile ${at + 1}: ${share === null ? "no pairs" : (100 * share).toFixed(2)}`))));
      return places;
    });
    nameEnds(root, lines, texts, width, room);
    show("deciles", root, `${label} by decile of the labels, for ${found.length} rows`, {
      remarks: [rows.length > found.length ? `The best ${found.length} of ${rows.length} rows; tick rows to choose others.` : "", y === "contribution" ? "The points of a method add up to its metric." : ""],
    });
  };
}

// Where methods stand: those with the best mean ranks, a panel for each dataset and one for the mean rank. Right is better.
const LINE = 25; // pixels of a method

// A text in lines of at most so many pixels, where its words allow it.
function wrapped(text, most) {
  const lines = [];
  for (const word of text.split(" ")) {
    const longer = lines.length ? `${lines[lines.length - 1]} ${word}` : word;
    if (lines.length && widthOf(longer) <= most) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

function planStandings(metric) {
  const { places, methods, by } = PAGE.standings;
  if (!by[metric]) return null;
  const found = methods.map(([name, ...rows], at) => ({ name, rows, rank: by[metric][at] })).sort((a, b) => a.rank[0] - b.rank[0]).slice(0, DIRECT);
  const groups = places.map(([at]) => PAGE.groups[at]);
  for (const method of found) method.family = groups[0].rows[method.rows[0]].family;
  const datasets = groups.map((group, at) => ({
    title: titleOf(group.dataset),
    of: ({ rows }) => { const row = group.rows[rows[at]]; const value = 100 * valueOf(group, row, metric); return [value, ...(row.intervals[metric] ?? [value, value]).map(Number)]; },
    text: ([value, low, high]) => `${metric} ${value.toFixed(2)} (${low} to ${high})`,
  }));
  const ranks = { title: "mean rank", of: ({ rank }) => [-rank[0], -rank[2], -rank[1]], text: ([value, low, high]) => `mean rank ${-value} (${-high} to ${-low})`, tick: (value) => String(-value) };
  return () => {
    const width = plotWidth("found-figure");
    const panels = width < NARROW ? [ranks] : [...datasets, ranks];
    const left = Math.max(...found.map(({ name }) => widthOf(name))) + 16;
    const each = (width - left) / panels.length;
    const heads = panels.map((panel) => wrapped(panel.title, each - 8));
    const top = 14 * Math.max(...heads.map((lines) => lines.length)) + 10;
    const bottom = top + LINE * found.length;
    const root = svg("svg", { viewBox: `0 0 ${width} ${bottom + 22}`, width, height: bottom + 22, role: "img" });
    found.forEach(({ name }, at) => root.append(svg("text", { class: "label", x: left - 12, y: top + LINE * (at + 0.5) + 4, "text-anchor": "end" }, name)));
    panels.forEach((panel, place) => {
      const from = left + place * each;
      const values = found.map(panel.of);
      const { place: x, ticks } = scale(values.flat(), [from + 8, from + each - 12], { room: 0.04 });
      heads[place].forEach((text, at) => root.append(svg("text", { class: "axis", x: from + each / 2, y: 12 + 14 * at, "text-anchor": "middle" }, text)));
      const rare = Math.ceil(ticks.length / Math.max(2, Math.floor(each / 44)));
      for (const tick of ticks.filter((_, at) => at % rare === 0)) {
        root.append(svg("line", { class: "grid", x1: x(tick), x2: x(tick), y1: top, y2: bottom }), svg("text", { class: "tick", x: x(tick), y: bottom + 15, "text-anchor": "middle" }, panel.tick?.(tick) ?? short(tick)));
      }
      found.forEach((method, at) => {
        const [value, low, high] = values[at];
        const y = top + LINE * (at + 0.5);
        root.append(svg("line", { class: `error c${method.family}`, x1: x(low), x2: x(high), y1: y, y2: y }), svg("circle", { class: `dot c${method.family}`, cx: x(value), cy: y, r: 4 }, title(`${method.name}, ${panel.title}: ${panel.text(values[at])}`)));
      });
    });
    show("found-figure", root, `${metric} and mean rank of ${found.length} methods on ${places.length} datasets; the table below holds the values`, {
      families: found.map(({ family }) => family),
      remarks: [`${panels.length > 1 ? `${metric} in per cent with 95 % intervals` : `By ${metric}`}; ${signOf(metric) > 0 ? "right" : "left"} is better. The ${found.length} best of ${methods.length} methods that all ${places.length} real datasets have, by mean rank, whose interval is over resamples of the datasets.`],
    });
  };
}

// First decides which figures there are, so that each is drawn at the width it has among them.
function drawAll(plans) {
  for (const [id, plan] of Object.entries(plans)) document.getElementById(id).hidden = plan === null;
  for (const plan of Object.values(plans)) plan?.();
}
