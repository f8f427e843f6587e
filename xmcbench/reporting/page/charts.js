"use strict";
// Charts, drawn by Plotly. It reads markup in texts, so every text that comes from a record is escaped before it gets there.

const COLOURS = {
  light: ["#1d5fa8", "#d1531b", "#2a8a57", "#8a4fb0", "#b8860b", "#c2376f", "#3a8fa3", "#6b6f76"],
  dark: ["#6fb0f2", "#f2935c", "#63c794", "#c295e6", "#e2bd57", "#f080ab", "#72c7d9", "#a5abb3"],
};
const LABELLED = 18; // names beside points; more would cover each other
const LARGEST = 40; // pixels across the largest blob
const CROWD = 150; // points that are drawn smaller and fainter
const HEIGHT = 340; // pixels, without the names below

const dark = () => matchMedia("(prefers-color-scheme: dark)").matches;
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colour = (at) => COLOURS[dark() ? "dark" : "light"][at % COLOURS.dark.length];
const faded = (hex, alpha) => hex + Math.round(alpha * 255).toString(16).padStart(2, "0");
// What tells cells of a sweep apart is at the end of their names.
const cut = (text, length) =>
  text.length > length ? `${text.slice(0, Math.ceil(length / 2) - 1)}…${text.slice(-Math.floor(length / 2))}` : text;
const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const NARROW = 500; // pixels: a legend breaks its names
// What a trial is called beside others: with its budget, where they had several.
const called = (trial, all) => {
  const several = all.some(({ budget }) => budget !== trial.budget);
  const name = escaped(cut(several ? `${trial.budget}: ${trial.method}` : trial.method, 50));
  return innerWidth < NARROW ? name.replaceAll(",", ",<br>") : name;
};

// 20400000 -> "20.4M"
function short(number) {
  for (const [unit, size] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (Math.abs(number) >= size) return `${+(number / size).toPrecision(3)}${unit}`;
  }
  return String(+number.toPrecision(3));
}

function axis(title, settings) {
  return { title: { text: title, font: { size: 12.5 }, standoff: 8 }, automargin: true, gridcolor: css("--grid"), linecolor: css("--line"), zeroline: false,
    fixedrange: true, tickfont: { size: 12, color: css("--soft") }, ...settings };
}

// The ends of an axis around some values, as Plotly wants them: logarithms on a logarithmic axis.
function around(values, share, scale = (value) => value) {
  const [least, most] = [scale(Math.min(...values)), scale(Math.max(...values))];
  const room = (most - least) * share || Math.abs(least) * 0.1 || 1;
  return [least - room, most + room];
}

// Logarithmic, unless the values lie close together.
function costAxis(title, values) {
  const [least, most] = [Math.min(...values), Math.max(...values)];
  if (most / least < 4) return axis(title, { type: "linear", range: around(values, 0.16), tickformat: "~s", nticks: 7 });
  const steps = most / least > 1000 ? [1] : [1, 2, 5];
  const ticks = [];
  for (let power = Math.floor(Math.log10(least)) - 1; power <= Math.log10(most) + 1; power += 1) ticks.push(...steps.map((step) => step * 10 ** power));
  return axis(title, { type: "log", range: around(values, 0.08, Math.log10), tickvals: ticks, ticktext: ticks.map(short) });
}

// A chart below which `entries` names stand, as wide as its card.
function draw(id, traces, layout, description, entries = 0) {
  const plot = document.querySelector(`#${id} .plot`);
  plot.setAttribute("aria-label", description);
  const legend = { orientation: "h", x: 0.5, xanchor: "center", y: 0, yref: "container", yanchor: "bottom", itemclick: false, itemdoubleclick: false };
  const rows = Math.ceil(entries / Math.max(1, Math.floor(plot.clientWidth / 240)));
  const whole = {
    width: plot.clientWidth, height: HEIGHT + 20 * rows, margin: { l: 54, r: 10, t: 12, b: 50 + 20 * rows }, dragmode: false, hovermode: "closest",
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { family: css("--sans"), size: 12.5, color: css("--ink") },
    hoverlabel: { bgcolor: css("--card"), bordercolor: css("--line"), font: { color: css("--ink"), family: css("--sans"), size: 13 }, align: "left" },
    showlegend: true, legend, ...layout,
  };
  Plotly.react(plot, traces, whole, { displayModeBar: false });
}

// Shows the charts that there is something for, all of them before the first is drawn: a card is as wide as others let it.
function drawAll(plans) {
  for (const [id, plan] of Object.entries(plans)) {
    const figure = document.getElementById(id);
    if (plan === null && !figure.hidden) Plotly.purge(figure.querySelector(".plot"));
    figure.hidden = plan === null;
  }
  document.getElementById("charts").classList.toggle("three", Object.values(plans).every((plan) => plan !== null));
  for (const plan of Object.values(plans)) plan?.();
}

// Names beside points, the best first, where they cover nothing that is there already.
function names(points, size, x, y, margin) {
  const place = (range, value, length) => ((value - range[0]) / (range[1] - range[0])) * length;
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = `12px ${css("--sans")}`;
  const [width, height] = [size.width - margin.l - margin.r, size.height - margin.t - margin.b];
  const spots = points.map((point) => ({
    ...point, left: place(x.range, x.type === "log" ? Math.log10(point.x) : point.x, width), up: place(y.range, point.y, height), r: point.size / 2,
  }));
  const taken = spots.map(({ left, up, r }) => [left - r, up - r, left + r, up + r]);
  const written = new Map();
  for (const spot of spots.sort((first, second) => second.y - first.y)) {
    const named = [...written.values()].some(({ spot: other }) => Math.hypot(other.left - spot.left, other.up - spot.up) < 3);
    if (written.size >= LABELLED || written.has(spot.name) || named) continue;
    const text = cut(spot.name, 30);
    const long = pen.measureText(text).width;
    for (const [side, left] of [["left", spot.left + spot.r + 4], ["right", spot.left - spot.r - 4 - long]]) {
      const box = [left, spot.up - 7, left + long, spot.up + 7];
      const inside = box[0] >= 0 && box[2] <= width;
      if (!inside || !taken.every((other) => box[2] < other[0] || box[0] > other[2] || box[3] < other[1] || box[1] > other[3])) continue;
      const shift = (side === "left" ? 1 : -1) * (spot.r + 4);
      const at = { x: x.type === "log" ? Math.log10(spot.x) : spot.x, y: spot.y, xshift: shift };
      written.set(spot.name, { spot, note: { ...at, text: escaped(text), xanchor: side, showarrow: false, font: { size: 12 }, borderpad: 0 } });
      taken.push(box);
      break;
    }
  }
  return [...written.values()].map(({ note }) => note);
}

// PRIME's Figure 1: what a row costs against how good it is; a blob is as large as its batch.
function planCost(rows, x, y) {
  const known = rows.filter((row) => row.costs[x] > 0 && row.figure(y) !== null);
  // Papers repeat one another's rows: what is the same in all that is drawn is drawn once.
  const same = (row) => [row.source, row.method, row.costs[x], row.figure(y), row.costs.batch_size].join();
  const found = [...new Map(known.map((row) => [same(row), row])).values()];
  if (!found.length) return null;
  const largest = Math.max(...found.map((row) => row.costs.batch_size ?? 0));
  const across = (row) => (row.costs.batch_size ? 10 + (LARGEST - 10) * Math.sqrt(row.costs.batch_size / largest) : 10);
  const points = found.map((row) => ({ x: row.costs[x], y: 100 * row.figure(y), size: across(row), name: row.method, row }));
  const missing = rows.length - known.length;
  const notes = [largest ? "A blob’s area grows with the batch size; small: not known." : "", missing ? `${missing} rows do not say what they cost here.` : ""];
  return () => {
    const xaxis = costAxis(PAGE.costs[x], points.map((point) => point.x));
    const yaxis = axis(`${y} (%)`, { range: around(points.map((point) => point.y), 0.16) });
    const margin = { l: 54, r: 10, t: 34, b: 50 };
    const size = { width: document.querySelector("#cost .plot").clientWidth, height: HEIGHT };
    const legend = { orientation: "h", x: 1, xanchor: "right", y: 1.02, yanchor: "bottom", itemsizing: "constant", itemclick: false, itemdoubleclick: false };
    const annotations = names(points, size, xaxis, yaxis, margin);
    draw("cost", costTraces(points, x, y), { xaxis, yaxis, margin, legend, annotations },
      `${y} against ${PAGE.costs[x]} of ${found.length} rows; the tables below hold the same figures`);
    document.querySelector("#cost .remark").textContent = notes.filter(Boolean).join(" ");
  };
}

function costTraces(points, x, y) {
  const told = ({ name, row, y: figure, x: cost }) => [
    `<b>${escaped(cut(name, 80))}</b>`, `${y} ${figure.toFixed(2)}`, `${PAGE.costs[x]} ${short(cost)}`,
    row.costs.batch_size ? `batch ${short(row.costs.batch_size)}` : "batch not known",
  ].join("<br>");
  const traces = ["measured", "published"].map((source, at) => {
    const own = points.filter(({ row }) => row.source === source);
    const crowd = own.length > CROWD;
    const fill = faded(colour(at), (source === "measured" ? 0.5 : 0.12) * (crowd ? 0.3 : 1));
    const line = { color: faded(colour(at), crowd ? 0.3 : 1), width: crowd ? 0.5 : 1.5 };
    const marker = { size: own.map(({ size }) => size / (crowd ? 3 : 1)), color: fill, opacity: 1, line };
    const [xs, ys] = [own.map((point) => point.x), own.map((point) => point.y)];
    return { type: "scatter", mode: "markers", name: source, x: xs, y: ys, marker, text: own.map(({ name }) => escaped(name)), hovertext: own.map(told), hoverinfo: "text" };
  });
  return traces.filter((trace) => trace.x.length);
}

// Figures on held-out queries along what was spent, a line a trial.
function planCurve(curves, x, y) {
  const found = curves.filter((curve) => curve.points.some((point) => x in point && y in point)).slice(0, COLOURS.dark.length);
  if (!found.length) return null;
  const traces = found.map((curve, at) => {
    const points = curve.points.filter((point) => x in point && y in point);
    const name = called(curve, found);
    const line = { color: colour(at), width: 2 };
    const hovertext = points.map((point) => `<b>${name}</b><br>${escaped(y)} ${(100 * point[y]).toFixed(2)} at ${short(point[x])}`);
    return { type: "scatter", mode: "lines+markers", name, x: points.map((point) => point[x]), y: points.map((point) => 100 * point[y]), line, marker: { size: 6 }, hovertext, hoverinfo: "text" };
  });
  const layout = { xaxis: axis(PAGE.spent[x], { tickformat: x === "fraction" ? ".0%" : "~s", nticks: 7 }), yaxis: axis(`${escaped(y)} (%)`, {}) };
  return () => draw("curve", traces, layout, `${y} along ${PAGE.spent[x]} of ${found.length} trials`, found.length);
}

// DEXML's Figure 7: what labels of each decile add to P@k; and which share of their true pairs is found.
const DECILE_FIGURES = {
  contribution: (k) => `added to P@${k} (%)`,
  recall: (k) => `true pairs among the best ${k} (%)`,
};

function planDeciles(analyses, y) {
  if (!analyses.length) return null;
  const found = analyses.slice(0, COLOURS.dark.length);
  const title = DECILE_FIGURES[y](found[0].k);
  const deciles = found[0][y].map((_, at) => String(at + 1));
  const traces = found.map((each, at) => {
    const name = called(each, found);
    const shares = each[y].map((share) => (share === null ? null : 100 * share));
    const hovertext = shares.map((share, decile) => `<b>${name}</b><br>decile ${decile + 1}: ${share?.toFixed(2)}`);
    return { type: "bar", name, x: deciles, y: shares, marker: { color: colour(at) }, hovertext, hoverinfo: "text" };
  });
  const xaxis = axis("decile of the labels, 1 the most frequent", { type: "category", showgrid: false });
  const layout = { xaxis, yaxis: axis(title, { rangemode: "tozero" }), bargap: 0.22, bargroupgap: 0.05 };
  const rest = analyses.length > found.length ? `The best ${found.length} of ${analyses.length} trials. ` : "";
  return () => {
    draw("deciles", traces, layout, `${title} by decile of the labels, for ${found.length} trials`, found.length);
    document.querySelector("#deciles .remark").textContent = rest + (y === "contribution" ? "The bars of a method add up to its figure." : "");
  };
}
