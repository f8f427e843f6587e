"use strict";
// The state of the view is in the address after #, so that a view can be linked to; every change redraws the page.

const PAGE = JSON.parse(document.getElementById("data").textContent);
const EMPTY = { variant: "", called: "", family: 0, kind: "", rank: null, status: "ok", problem: "", intervals: [], tied: [], misprints: {}, older: "", codes: 0, below_popular: false, unbounded: false, stated: false, reproduced: null, idle: [], claims: [], folded_claims: [], costs: {}, keys: [], source: 0, url: 0, origin: 0, date: 0, papers: 0, curve: null, deciles: null };
for (const group of PAGE.groups) {
  group.shown = group.shown.map((at) => group.columns[at]);
  for (const list of [group.rows, group.printed]) {
    list.forEach((row, at) => {
      list[at] = { ...EMPTY, ...PAGE.shared[row.shared ?? 0], ...row, at, group };
      decode(group, list[at]);
    });
  }
}
const byId = (id) => document.getElementById(id);
const unique = (values) => [...new Set(values)];
const state = { dataset: "", track: "", source: "", budget: "", method: "", variants: "", sort: null, columns: new Set(), added: new Set(), charted: "", costX: "", costY: "", curveX: "", curveY: "", decilesY: "contribution" };
const STORED = ["dataset", "track", "source", "budget", "method", "variants"];
const DATASETS = unique(PAGE.groups.map((group) => group.dataset)).sort();

function readAddress() {
  if (/^#claim-[a-z0-9-]+$/.test(location.hash)) location.replace(`claims.html${location.hash}`);
  const stored = new URLSearchParams(location.hash.slice(1));
  for (const name of STORED) state[name] = stored.get(name) ?? "";
  const column = stored.get("sort");
  state.sort = column ? { column, ascending: stored.get("order") === "ascending" } : null;
  const known = DATASETS.find((name) => name.toLowerCase() === state.dataset.toLowerCase());
  byId("problem").hidden = !state.dataset || Boolean(known);
  byId("problem").textContent = `No dataset is called “${state.dataset}”. Choose one from the list or the overview.`;
  state.dataset = known ?? "";
  if (!state.dataset) readOverview(stored);
}

// A new entry of the history for another dataset, so that the back button returns; otherwise the entry is replaced.
function writeAddress(navigated = false) {
  const stored = !state.dataset ? overviewAddress() : new URLSearchParams(STORED.filter((name) => state[name]).map((name) => [name, state[name]]));
  if (state.dataset && state.sort) {
    stored.set("sort", state.sort.column);
    stored.set("order", state.sort.ascending ? "ascending" : "descending");
  }
  if (location.hash.slice(1) === stored.toString()) return;
  history[navigated ? "pushState" : "replaceState"](null, "", `#${stored}`);
}

// Fills a list with choices, keeps the wanted one where it is among them, and returns the chosen one.
function fill(list, choices, wanted) {
  list.replaceChildren(...choices.map(([value, text]) => element("option", { value }, text)));
  list.value = choices.some(([value]) => value === wanted) ? wanted : (choices[0]?.[0] ?? "");
  list.closest("label").hidden = choices.length < 2;
  return list.value;
}

const matches = (group, without) => (name) => name === without || !state[name] || group[name] === state[name];
const groupsWithout = (without) => PAGE.groups.filter((group) => ["dataset", "track", "source", "budget"].every(matches(group, without)));

function fillFilters() {
  const any = (name, words) => [["", words], ...unique(groupsWithout(name).map((group) => group[name])).filter(Boolean).sort(compare).map((value) => [value, value])];
  for (const [name, words] of [["track", "All tracks"], ["budget", "All budgets"]]) {
    const choices = any(name, words);
    state[name] = fill(byId(name), choices, state[name]);
    byId(name).closest("label").hidden = choices.length < 3;
  }
  const sources = unique(groupsWithout("source").map((group) => group.source));
  if (!sources.includes(state.source)) state.source = "";
  for (const input of document.querySelectorAll("[name=source]")) {
    input.checked = input.value === state.source;
    input.disabled = input.value !== "" && !sources.includes(input.value);
  }
  if (byId("method").value !== state.method) byId("method").value = state.method;
  byId("variants").checked = Boolean(state.variants);
  byId("variants").closest("label").hidden = !groupsWithout("").some((group) => group.printed.length);
}

function fillColumns(groups) {
  const known = unique(groups.flatMap((group) => group.columns));
  const place = byId("columns").querySelector("fieldset");
  const boxes = known.map((column) => {
    const box = element("input", { type: "checkbox", value: column });
    box.checked = state.columns.has(column);
    box.addEventListener("change", () => {
      state.columns[box.checked ? "add" : "delete"](column);
      state.added[box.checked ? "add" : "delete"](column);
      redrawTables();
    });
    box.dataset.tip = PAGE.columns[column].help;
    return element("label", { "data-tip": PAGE.columns[column].help }, box, PAGE.columns[column].heading);
  });
  place.replaceChildren(place.querySelector("legend"), ...boxes);
}

// Letters and digits without case and accents, by word: "PRIME-lite (encoder)" -> ["prime", "lite", "encoder"].
const words = (text) => text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [];

// Every word that is searched for begins a word of the row's name.
function found(row, wanted) {
  const own = words(`${nameOf(row)} ${calledOf(row)} ${row.kind}`);
  return wanted.every((word) => own.some((other) => other.startsWith(word)));
}

// The groups and rows that are shown: first the groups with the most methods, so that a sweep comes after a comparison.
function chosen() {
  const wanted = words(state.method);
  const methods = (group) => (group.source === "published" ? 0 : Math.max(0, ...group.settings.map(({ heads }) => heads.length)));
  return groupsWithout("")
    .sort((a, b) => methods(b) - methods(a))
    .map((group) => [group, state.variants && group.printed.length ? group.printed : group.rows])
    .map(([group, rows]) => [group, wanted.length ? rows.filter((row) => found(row, wanted)) : rows])
    .filter(([, rows]) => rows.length);
}

function choose(column, number) {
  const again = state.sort?.column === column;
  state.sort = column === "#" ? null : { column, ascending: again ? !state.sort.ascending : !number || signOf(column) < 0 };
  writeAddress();
  const table = document.activeElement?.closest("table")?.dataset.name;
  redrawTables();
  const tables = [...document.querySelectorAll("#tables table")];
  const buttons = [...(tables.find((each) => each.dataset.name === table)?.querySelectorAll("button") ?? [])];
  buttons.find((button) => button.dataset.column === column)?.focus();
}

const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

function redrawTables() {
  const groups = chosen();
  const order = unique(groups.flatMap(([group]) => group.columns));
  drawTables(byId("tables"), groups, order.filter((column) => state.columns.has(column)), state.added, state.sort, choose);
  const rows = groups.reduce((sum, [, some]) => sum + some.length, 0);
  byId("count").textContent = groups.length < 2 ? plural(rows, "row") : `${plural(rows, "row")} in ${groups.length} tables, each ranked on its own`;
}

// The table that the charts draw, all of whose rows have one budget: that of ticked rows, the chosen one, or the first.
function charted(groups) {
  const names = groups.map(([group]) => [String(PAGE.groups.indexOf(group)), [group.source, group.budget, group.protocol, group.by].filter(Boolean).join(" · ")]);
  if (ticked.size) state.charted = String(PAGE.groups.indexOf([...ticked][0].group));
  state.charted = fill(byId("charted"), names, state.charted);
  return groups.filter(([group]) => group === PAGE.groups[state.charted]);
}

const named = (rows) => rows.map((row) => ({ ...row, name: calledOf(row) }));

// What the budget limits, then operations, which compare methods of all kinds, then what rows differ in most.
function usualCost(costs, different, group) {
  const limited = costs.filter((name) => group?.limited.includes(name));
  return limited[0] ?? (costs.includes("flops") ? "flops" : costs.reduce((best, name) => (different(name) > different(best) ? name : best), costs[0]));
}

function redrawCharts() {
  if (!state.dataset) return;
  const groups = charted(chosen());
  const all = groups.flatMap(([group, some]) => some.map((row) => ({ ...row, source: group.source, group, metric: (name) => valueOf(group, row, name) })));
  const rows = ticked.size > 1 ? all.filter((row) => [...ticked].some((own) => own.at === row.at && own.group === row.group)) : all;
  const metrics = PAGE.metrics.filter((name) => rows.some((row) => row.metric(name) !== null));
  const different = (name) => unique(rows.map((row) => row.costs[name]).filter((cost) => cost > 0)).length;
  const costs = Object.keys(PAGE.costs).filter((name) => different(name) > 1);
  const usual = usualCost(costs, different, groups[0]?.[0]);
  state.costX = fill(byId("cost-x"), costs.map((name) => [name, PAGE.costs[name]]), costs.includes(state.costX) ? state.costX : usual);
  state.costY = fill(byId("cost-y"), metrics.map((name) => [name, name]), state.costY || groups[0]?.[0].sort);

  const curves = rows.filter((row) => row.curve);
  const measured = unique(curves.flatMap((row) => Object.keys(row.curve)));
  state.curveX = fill(byId("curve-x"), Object.entries(PAGE.spent).filter(([name]) => measured.includes(name)), state.curveX);
  state.curveY = fill(byId("curve-y"), measured.filter((name) => name.includes("@") && !name.endsWith("±")).map((name) => [name, name]), state.curveY || PAGE.sort);
  const analysed = rows.filter((row) => row.deciles);
  const values = Object.entries(DECILE_VALUES).map(([name, label]) => [name, label(analysed[0]?.deciles.k ?? "k")]);
  state.decilesY = fill(byId("deciles-y"), values, state.decilesY);
  drawAll({
    cost: costs.length ? planCost(named(rows), state.costX, state.costY) : null,
    curve: planCurve("curve", named(curves.filter((row) => row.curve[state.curveY])), state.curveX, state.curveY),
    deciles: planDeciles(named(analysed), state.decilesY),
  });
}

function drawFound() {
  if (byId("found") && !state.dataset) drawAll({ "found-figure": planStandings(usualMetric()) });
}

function redraw(navigated = false) {
  byId("overview").hidden = Boolean(state.dataset);
  byId("view").hidden = !state.dataset;
  byId("dataset").value = state.dataset;
  if (!state.dataset) {
    drawOverview();
    return drawFound();
  }
  const card = byId(`card-${state.dataset}`) ?? byId(`card-${state.dataset.split("+")[0]}`); // of the dataset that a track is of
  const facts = card?.querySelector("dl").cloneNode(true);
  byId("card").hidden = !facts;
  if (facts) byId("card").querySelector("dl").replaceWith(facts);
  byId("title").textContent = titleOf(state.dataset);
  byId("identity").textContent = PAGE.titles[state.dataset] ? state.dataset : "";
  fillFilters();
  const groups = groupsWithout("");
  state.columns = new Set(groups.flatMap((group) => group.shown));
  state.added = new Set();
  fillColumns(groups);
  writeAddress(navigated);
  redrawTables();
  drawComparison();
  redrawCharts();
  byId("bibtex").hidden = !groups.some((group) => group.rows.some((row) => row.papers.length));
  byId("notes").replaceChildren(...(PAGE.notes[state.dataset] ?? []).map((note) => element("li", {}, PAGE.texts[note])));
}

// The ends of a row's 95 % intervals by column, fractions as the metrics are, to a tenth of a per cent.
const endsOf = (row) => Object.fromEntries(Object.entries(row.intervals).flatMap(([name, ends]) => ["low", "high"].map((end, at) => [`${name} ${end}`, Number((ends[at] / 100).toFixed(3))])));

// What is shown, as records: every text as in the tables, every number with all its digits.
function shownRows() {
  return chosen().flatMap(([group, rows]) => rows.map((row) => {
    const values = Object.fromEntries(group.columns.map((name, at) => [name, row.values[at] ?? row.texts[at]]).filter(([, value]) => value !== null));
    return { dataset: group.dataset, source: group.source, track: group.track, budget: group.budget, protocol: group.protocol, rank: row.rank, method: row.method, variant: row.variant, status: row.status, ...values, ...endsOf(row), date: row.date, ...row.origin, sources: row.source, keys: row.keys.join(" ") };
  }));
}

function csvOf(rows) {
  const columns = unique(rows.flatMap(Object.keys)).filter((name) => rows.some((row) => ![null, undefined, ""].includes(row[name])));
  // Text that a spreadsheet would take for a formula gets an apostrophe, as in xmcbench/files/csv_text.py.
  const cell = (value) => (typeof value === "string" && /^[=+\-@\t\r]/.test(value) && isNaN(value) ? `'${value}` : String(value ?? ""));
  const field = (value) => (/[",\n\r]/.test(cell(value)) ? `"${cell(value).replaceAll('"', '""')}"` : cell(value));
  return [columns, ...rows.map((row) => columns.map((name) => row[name]))].map((line) => line.map(field).join(",")).join("\n") + "\n";
}

function download(content, type, name) {
  const link = element("a", { href: URL.createObjectURL(new Blob([content], { type })), download: name });
  link.click();
  URL.revokeObjectURL(link.href);
}

// The citation of this page, with its address where it has one.
function citation() {
  const text = byId("cite").textContent;
  const [address] = location.href.split("#");
  return /^https?:/.test(address) ? text.replace(/\n}\s*$/, `,\n  url    = {${address}}\n}\n`) : text;
}

const bibtex = () => unique(chosen().flatMap(([, rows]) => rows.flatMap((row) => row.papers))).map((paper) => PAGE.bibtex[paper]).filter(Boolean).join("\n");

// The function, called once nothing has changed for a moment.
function later(call) {
  let waiting = 0;
  return () => {
    clearTimeout(waiting);
    waiting = setTimeout(call, 150);
  };
}

function listenToFilters() {
  const chartsLater = later(redrawCharts);
  for (const name of ["dataset", "track", "budget"]) {
    byId(name).addEventListener("change", (event) => {
      state[name] = event.target.value;
      if (name === "dataset") {
        Object.assign(state, { budget: "", track: "", sort: null, charted: "", costX: "", costY: "" });
        ticked.clear();
      }
      if (name === "dataset" && !state.dataset) location.hash = "";
      redraw(name === "dataset");
    });
  }
  byId("source").addEventListener("change", (event) => {
    state.source = event.target.value;
    redraw();
  });
  byId("variants").addEventListener("change", (event) => {
    state.variants = event.target.checked ? "all" : "";
    redraw();
  });
  byId("method").addEventListener("input", (event) => {
    state.method = event.target.value;
    writeAddress();
    redrawTables();
    chartsLater();
  });
  for (const [id, name] of [["charted", "charted"], ["cost-x", "costX"], ["cost-y", "costY"], ["curve-x", "curveX"], ["curve-y", "curveY"], ["deciles-y", "decilesY"]]) {
    byId(id).addEventListener("change", (event) => {
      state[name] = event.target.value;
      redrawCharts();
    });
  }
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
}

function listen() {
  byId("csv").addEventListener("click", () => download(csvOf(shownRows()), "text/csv", `xmcbench-${state.dataset}.csv`));
  byId("json").addEventListener("click", () => download(JSON.stringify(shownRows(), null, 1), "application/json", `xmcbench-${state.dataset}.json`));
  byId("cite-this").addEventListener("click", () => copy(citation(), "Citation"));
  byId("link").addEventListener("click", () => copy(location.href, "Link"));
  byId("bibtex").addEventListener("click", () => copy(bibtex(), "BibTeX"));
  document.addEventListener("click", (event) => {
    if (!byId("columns").contains(event.target)) byId("columns").open = false;
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !byId("columns").open) return;
    byId("columns").open = false;
    byId("columns").querySelector("summary").focus();
  });
  addEventListener("resize", later(() => {
    redrawCharts();
    drawFound();
  }));
  addEventListener("hashchange", () => {
    readAddress();
    redraw();
  });
  addEventListener("beforeprint", () => SECTIONS.forEach((section) => {
    Object.assign(section.state, { page: 0, size: section.total });
    section.draw("");
  }));
}

byId("dataset").append(...DATASETS.map((name) => element("option", { value: name }, PAGE.titles[name] ? `${titleOf(name)} (${name})` : name)));
readAddress();
listenToFilters();
listen();
redraw();
