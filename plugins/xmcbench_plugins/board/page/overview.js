"use strict";
// The overview: methods with their recommended settings by datasets, each dataset at one budget; variants folded behind each.

const FEW = 15; // methods of a matrix that are shown at once
const MANY = 4; // methods of a dataset that is shown at once
// What is in the address: of each source the dataset that sorts it; by source and dataset the budget; names of what is open.
const overview = { metric: "", search: "", budgets: {}, sorts: {}, open: new Set(), all: new Set() };
const BETWEEN = "|"; // the parts of a name in the address

function readOverview(stored) {
  const pairs = (name) => Object.fromEntries(stored.getAll(name).map((text) => { const [value, ...key] = text.split(BETWEEN).reverse(); return [key.reverse().join(" "), value]; }));
  Object.assign(overview, { metric: stored.get("metric") ?? "", search: stored.get("find") ?? "", budgets: pairs("at"), sorts: pairs("by"), open: new Set(stored.getAll("open")), all: new Set(stored.getAll("all")) });
}

function overviewAddress() {
  const { metric, search, budgets, sorts, open, all } = overview;
  const keyed = (name, values) => Object.entries(values).map(([key, value]) => [name, [...key.split(" "), value].join(BETWEEN)]);
  const listed = (name, values) => [...values].map((value) => [name, value]);
  return new URLSearchParams([...(metric ? [["metric", metric]] : []), ...(search ? [["find", search]] : []), ...keyed("at", budgets), ...keyed("by", sorts), ...listed("open", open), ...listed("all", all)]);
}


// What can be shown of a source: by dataset the settings, the first one first.
function choices(source) {
  const found = {};
  PAGE.groups.forEach((group, at) => {
    if (sourceOf(group) !== source) return;
    for (const setting of group.settings) (found[group.dataset] ??= []).push({ ...setting, group, at });
  });
  for (const settings of Object.values(found)) settings.sort((a, b) => b.heads.length - a.heads.length || seeds(b) - seeds(a));
  return found;
}

const seeds = (setting) => setting.heads.reduce((sum, [, row]) => sum + setting.group.rows[row].keys.length, 0);
const settingName = (setting) => [setting.group.limits || "as printed", setting.encoder].filter(Boolean).join(" · ");
const sourceOf = (group) => `${group.source}${group.track === "supervised" ? "" : `, ${group.track}`}`;
const sources = () => unique(PAGE.groups.filter((group) => group.settings.length).map(sourceOf)).sort((a, b) => a.includes(",") - b.includes(",") || compare(a, b));

// The columns of a source's matrix: real datasets first, then those with the most methods at their usual budget, so that
// another budget moves no column.
function columnsOf(source) {
  const columns = Object.entries(choices(source)).map(([dataset, settings]) => {
    const wanted = overview.budgets[`${source} ${dataset}`];
    return { dataset, settings, setting: settings.find((each) => settingName(each) === wanted) ?? settings[0] };
  });
  return columns.sort((a, b) => isMade(a) - isMade(b) || b.settings[0].heads.length - a.settings[0].heads.length || compare(a.dataset, b.dataset));
}

const isMade = ({ dataset }) => Boolean(byId(`card-${dataset}`)?.querySelector(".badge"));

// The methods of the columns: name, family, and for each column its row and the rows of its variants.
function linesOf(columns) {
  const lines = new Map();
  columns.forEach(({ setting }, at) => {
    for (const [name, row, ...variants] of setting.heads) {
      const line = lines.get(name) ?? { name, family: setting.group.rows[row].family, heads: [], variants: [] };
      line.heads[at] = row;
      line.variants[at] = variants;
      lines.set(name, line);
    }
  });
  return [...lines.values()];
}

const valueIn = (column, row) => (row === undefined ? null : valueOf(column.setting.group, column.setting.group.rows[row], metricOf(column)));
// How good a value is: more is better, and null is below all others.
const worthIn = (column, value) => (value === null ? -2 : signOf(metricOf(column)) * value);
// The metric of chart and table: the one that ranks at first; a table without it has the one that ranks there.
const usualMetric = () => overview.metric || PAGE.sort;
const metricOf = ({ setting: { group } }) => (group.columns.includes(usualMetric()) ? usualMetric() : overview.metric ? "" : group.sort);
const titleOf = (dataset) => PAGE.titles[dataset] ?? dataset;

// A method's mean rank over the real datasets, each at its usual budget; null where it is not on all of them.
function standingOf(name) {
  const at = PAGE.standings?.methods.findIndex(([own]) => own === name) ?? -1;
  return PAGE.standings?.by[usualMetric()]?.[at] ?? null;
}

function standingCell(name) {
  const found = standingOf(name);
  if (!found) return element("td", { class: "standing none" }, "–");
  const [rank, low, high, ...wins] = found;
  return element("td", { class: "standing", "data-tip": `win rate: above ${(100 * wins[0]).toFixed(0)} % of the other methods (${wins.slice(1).map((one) => (100 * one).toFixed(0)).join("–")})` }, rank.toFixed(1), element("small", {}, `${low.toFixed(1)}–${high.toFixed(1)}`));
}


function matrixCell(column, at, best) {
  const group = column.setting.group;
  const row = group.rows[at];
  const value = valueIn(column, at);
  if (value === null) return element("td", { class: "none" }, "–");
  const metric = metricOf(column);
  const text = textOf(group, row, metric);
  const cell = element("td", {}, group.source === "published" || !row.keys.length ? text : element("a", { class: "quiet", href: `records/${encodeURIComponent(row.keys[0])}.html`, "data-tip": `${nameOf(row)}, ${plural(row.keys.length, "seed")}: the record of the first` }, text));
  const first = value === best;
  if (first) {
    cell.className = "best";
    cell.append(hidden(", best of the column"));
  } else if (best !== null && column.setting.tied[metric]?.includes(at)) cell.append(...sign("≈", "not significantly different from the best of the column"));
  const interval = row.intervals[metric];
  const about = interval ? `${interval[0]}–${interval[1]}` : group.source === "published" ? row.kind : "";
  if (about) cell.append(element("small", {}, about, interval && row.keys.length === 1 ? "¹" : ""));
  return cell;
}

function matrixHead(source, columns, sort, redraw) {
  const head = element("tr", {}, element("th", { scope: "col", class: "method text" }, element("span", { class: "plain" }, "method")));
  if (hasStandings(source)) head.append(element("th", { scope: "col", class: "standing" }, element("span", { class: "plain", "data-tip": `Mean of the ranks on ${PAGE.standings.places.length} real datasets, each at its usual budget, among the methods that all of them have; 95 % interval over resamples of the datasets` }, "mean rank")));
  columns.forEach((column, at) => {
    const { dataset, settings, setting } = column;
    const button = element("button", { type: "button", class: "order", "aria-label": `Sort by ${dataset}`, onclick: () => redraw({ sort: dataset, focus: `.order[aria-label="Sort by ${dataset}"]` }) }, at === sort ? "↓" : "↕");
    const pick = element("select", { "aria-label": `Budget of ${dataset}` }, ...settings.map((each) => element("option", {}, settingName(each))));
    pick.value = settingName(setting);
    pick.addEventListener("change", () => {
      overview.budgets[`${source} ${dataset}`] = pick.value;
      redraw({ focus: `[aria-label="Budget of ${dataset}"]` });
    });
    const budget = settings.length > 1 ? pick : element("small", {}, settingName(setting));
    const cell = element("th", { scope: "col" }, element("span", { class: "plain" }, element("span", {}, element("a", { href: `#dataset=${encodeURIComponent(dataset)}`, "data-tip": dataset }, titleOf(dataset)), isMade(column) ? element("span", { class: "badge" }, "made") : null), button, isMeasured(setting) ? budget : null));
    if (at === sort) cell.setAttribute("aria-sort", "descending");
    head.append(cell);
  });
  return head;
}

const hasStandings = (source) => source === "measured" && Boolean(PAGE.standings);
const isMeasured = (setting) => setting.group.source !== "published";

// The rows of variants of a line, best known first: each in the columns that have it.
function variantRows(source, line, columns) {
  const names = new Map();
  columns.forEach((column, at) => (line.variants[at] ?? []).forEach((row) => {
    const variant = column.setting.group.rows[row];
    const name = [calledOf(variant), variant.kind].filter(Boolean).join(", ");
    names.set(name, [...(names.get(name) ?? []), [at, row]]);
  }));
  return [...names].map(([name, cells]) => element("tr", { class: "variant" }, element("th", { scope: "row", class: "method text" }, name), hasStandings(source) ? element("td", { class: "standing" }) : null,
    ...columns.map((column, at) => matrixCell(column, cells.find(([place]) => place === at)?.[1], null))));
}

function matrix(source) {
  const place = element("section", { class: "matrix-of" });
  const draw = ({ sort, focus } = {}) => {
    if (sort !== undefined) overview.sorts[source] = sort;
    if (focus) writeAddress();
    const every = columnsOf(source);
    const wide = every.filter(({ dataset, settings }) => settings[0].heads.length >= MANY && !dataset.includes("+"));
    const columns = overview.all.has(`${source} datasets`) || !wide.length ? every : wide;
    const by = Math.max(0, columns.findIndex(({ dataset }) => dataset === overview.sorts[source]));
    const wanted = words(overview.search);
    const known = linesOf(columns);
    const lines = known.filter((line) => wanted.every((word) => words(line.name).some((own) => own.startsWith(word))));
    const value = (line, at) => valueIn(columns[at], line.heads[at]);
    const order = (line) => columns.map((_, at) => value(line, (by + at) % columns.length)).map((own, i) => worthIn(columns[(by + i) % columns.length], own));
    lines.sort((a, b) => { const [x, y] = [order(a), order(b)]; const at = x.findIndex((own, i) => own !== y[i]); return at < 0 ? compare(a.name, b.name) : y[at] - x[at]; });
    const best = columns.map((column, at) => known.map((line) => value(line, at)).reduce((most, own) => (worthIn(column, own) > worthIn(column, most) ? own : most), null));
    const shown = overview.all.has(source) || wanted.length ? lines : lines.slice(0, FEW);
    const body = element("tbody");
    for (const line of shown) {
      const id = `${source} ${line.name}`;
      const count = new Set(line.variants.flat()).size && variantRows(source, line, columns).length;
      const name = element("th", { scope: "row", class: "method text" }, element("span", { class: `dot c${line.family}`, "aria-hidden": "true" }), line.name);
      if (count) name.append(element("button", { type: "button", class: "fold", "aria-expanded": String(overview.open.has(id)), "aria-label": `${count} variants of ${line.name}`, onclick: () => {
        overview.open[overview.open.has(id) ? "delete" : "add"](id);
        draw({ focus: `[aria-label="${count} variants of ${line.name}"]` });
      } }, `+${count}`));
      body.append(element("tr", {}, name, hasStandings(source) ? standingCell(line.name) : null, ...columns.map((column, at) => matrixCell(column, line.heads[at], known.length > 1 ? best[at] : null))));
      if (overview.open.has(id)) body.append(...variantRows(source, line, columns));
    }
    const metrics = PAGE.metrics.filter((name) => columns.some(({ setting }) => setting.group.columns.includes(name)));
    const title = `${source[0].toUpperCase()}${source.slice(1)} results`;
    const table = element("table", { class: "matrix" }, element("caption", { class: "hidden" }, `${title}: methods by datasets, per cent`), element("thead", {}, matrixHead(source, columns, by, draw)), body);
    const families = unique(lines.map((line) => line.family)).sort();
    const about = source.startsWith("published") ? "As papers print them; best of encoder, classifier and both." : `${metricOf(columns[0])} in per cent with 95 % intervals, each dataset at one budget, recommended settings; +N opens variants, ≈ is a tie with the best.`;
    place.replaceChildren(
      element("div", { class: "heading" }, element("h2", {}, title), controls(source, metrics, draw), element("span", { class: "about" }, about)),
      element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title }, table),
    );
    if (!lines.length) place.append(element("p", { class: "empty" }, "No method matches."));
    if (shown.length < lines.length) place.append(element("button", { type: "button", class: "button more", onclick: () => { overview.all.add(source); draw({ focus: ".scroll" }); } }, `Show all ${lines.length} methods`));
    const hiddenOnes = every.length - columns.length;
    if (hiddenOnes) place.append(element("button", { type: "button", class: "button more", onclick: () => { overview.all.add(`${source} datasets`); draw({ focus: ".scroll" }); } }, `Show ${plural(hiddenOnes, "dataset")} of tracks, or with fewer than ${MANY} methods`));
    place.append(element("ul", { class: "legend" }, ...families.map((family) => element("li", {}, element("span", { class: `swatch c${family}` }), PAGE.families[family]))));
    if (focus) place.querySelector(focus)?.focus();
  };
  draw();
  return { place, draw };
}

// Metric, search and download, once for all matrices: at the first.
function controls(source, metrics, draw) {
  if (source !== sources()[0]) return null;
  const pick = element("select", { id: "metric" }, ...metrics.map((name) => element("option", {}, name)));
  pick.value = metrics.includes(usualMetric()) ? usualMetric() : PAGE.sort;
  const change = (name, value) => {
    overview[name] = value;
    writeAddress();
    MATRICES.forEach((each) => each.draw());
    drawFound();
  };
  pick.addEventListener("change", () => {
    change("metric", pick.value);
    byId("metric").focus();
  });
  const search = element("input", { id: "find", type: "search", placeholder: "method", autocomplete: "off", spellcheck: "false", "aria-label": "Search methods" });
  search.value = overview.search;
  search.addEventListener("input", () => {
    change("search", search.value);
    byId("find").focus();
  });
  const csv = element("button", { type: "button", class: "button small", onclick: () => download(csvOf(overviewRows()), "text/csv", "xmcbench-overview.csv") }, "CSV");
  return element("span", { class: "controls" }, element("label", {}, element("span", { class: "hidden" }, "Metric"), pick), search, csv);
}

// Every cell of the overview as a record, variants included.
function overviewRows() {
  return sources().flatMap((source) => columnsOf(source).flatMap(({ dataset, setting }) => setting.heads.flatMap(([name, ...rows]) => rows.map((at, place) => {
    const row = setting.group.rows[at];
    const metrics = Object.fromEntries(setting.group.columns.filter((column) => PAGE.columns[column].metric).map((column) => [column, valueOf(setting.group, row, column)]));
    return { source, dataset, budget: setting.group.budget, encoder: setting.encoder, method: name, row: nameOf(row), recommended: place === 0 ? "yes" : "no", ...metrics, ...endsOf(row), date: row.date, ...row.origin, keys: row.keys.join(" ") };
  }))));
}

const MATRICES = [];

function drawOverview() {
  if (MATRICES.length) return MATRICES.forEach((each) => each.draw());
  MATRICES.push(...sources().map(matrix));
  MATRICES.forEach(({ place }, at) => byId(at ? "matrices" : "first-matrix").append(place));
}
