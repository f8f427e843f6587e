"use strict";
// What is shown, kept in the address after # so that a view can be linked to; every change redraws the page.

const PAGE = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const unique = (values) => [...new Set(values)];
const state = { dataset: "", track: "", source: "", budget: "", method: "", sort: null, columns: new Set(), costX: "", costY: "", curveX: "", curveY: "", decilesY: "contribution" };
const KEPT = ["dataset", "track", "source", "budget", "method"];

function readAddress() {
  const kept = new URLSearchParams(location.hash.slice(1));
  for (const name of KEPT) state[name] = kept.get(name) ?? "";
  const column = kept.get("sort");
  state.sort = column ? { column, ascending: kept.get("order") === "ascending" } : null;
}

function writeAddress() {
  const kept = new URLSearchParams(KEPT.filter((name) => state[name]).map((name) => [name, state[name]]));
  if (state.sort) {
    kept.set("sort", state.sort.column);
    kept.set("order", state.sort.ascending ? "ascending" : "descending");
  }
  history.replaceState(null, "", `#${kept}`);
}

// Fills a list with choices, keeps the wanted one where it is among them, and answers which is chosen.
function fill(list, choices, wanted) {
  list.replaceChildren(...choices.map(([value, text]) => element("option", { value }, text)));
  list.value = choices.some(([value]) => value === wanted) ? wanted : (choices[0]?.[0] ?? "");
  list.closest("label").hidden = choices.length < 2;
  return list.value;
}

const matches = (group, without) => (name) => name === without || !state[name] || group[name] === state[name];
const groupsWithout = (without) => PAGE.groups.filter((group) => ["dataset", "track", "source", "budget"].every(matches(group, without)));

function fillFilters() {
  const datasets = unique(PAGE.groups.map((group) => group.dataset)).sort();
  state.dataset = fill(byId("dataset"), datasets.map((name) => [name, name]), state.dataset || PAGE.dataset);
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
}

function fillColumns(groups) {
  const known = unique(groups.flatMap((group) => group.columns));
  const place = byId("columns").querySelector("fieldset");
  const boxes = known.map((column) => {
    const box = element("input", { type: "checkbox", value: column });
    box.checked = state.columns.has(column);
    box.addEventListener("change", () => {
      state.columns[box.checked ? "add" : "delete"](column);
      redrawTables();
    });
    return element("label", { title: PAGE.columns[column].help }, box, PAGE.columns[column].heading);
  });
  place.replaceChildren(place.querySelector("legend"), ...boxes);
}

function chosen() {
  const wanted = state.method.toLowerCase();
  return groupsWithout("")
    .map((group) => [group, wanted ? group.rows.filter((row) => row.method.toLowerCase().includes(wanted)) : group.rows])
    .filter(([, rows]) => rows.length);
}

function choose(column, number) {
  const again = state.sort?.column === column;
  state.sort = column === "#" ? null : { column, ascending: again ? !state.sort.ascending : !number };
  writeAddress();
  const table = document.activeElement?.closest("table")?.getAttribute("aria-label");
  redrawTables();
  const tables = [...document.querySelectorAll("table")];
  const buttons = [...(tables.find((each) => each.getAttribute("aria-label") === table)?.querySelectorAll("button") ?? [])];
  buttons.find((button) => button.dataset.column === column)?.focus();
}

function redrawTables() {
  const groups = chosen();
  const order = unique(groups.flatMap(([group]) => group.columns));
  drawTables(byId("tables"), groups, order.filter((column) => state.columns.has(column)), state.sort, choose);
  const rows = groups.reduce((sum, [, some]) => sum + some.length, 0);
  const counted = `${rows.toLocaleString("en")} ${rows === 1 ? "row" : "rows"}`;
  byId("count").textContent = groups.length < 2 ? counted : `${counted} in ${groups.length} tables, each ranked by itself`;
}

// Plotly is the last script and a large one: the tables are there before it.
function redrawCharts() {
  if (!window.Plotly) return;
  const groups = chosen();
  const rows = groups.flatMap(([group, some]) => some.map((row) => ({ ...row, source: group.source, figure: (name) => valueOf(group, row, name) })));
  const figures = PAGE.metrics.filter((name) => rows.some((row) => row.figure(name) !== null));
  const costs = Object.keys(PAGE.costs).filter((name) => rows.some((row) => row.costs[name] > 0));
  const known = (name) => rows.filter((row) => row.costs[name] > 0).length;
  const usual = costs.filter((name) => name !== "batch_size").reduce((best, name) => (known(name) > known(best) ? name : best), costs[0]);
  state.costX = fill(byId("cost-x"), costs.map((name) => [name, PAGE.costs[name]]), costs.includes(state.costX) ? state.costX : usual);
  state.costY = fill(byId("cost-y"), figures.map((name) => [name, name]), state.costY || PAGE.sort);

  const keys = new Set(rows.flatMap((row) => row.keys));
  const curves = PAGE.curves.filter((curve) => keys.has(curve.key));
  const points = curves.flatMap((curve) => curve.points);
  const has = (name) => points.some((point) => name in point);
  state.curveX = fill(byId("curve-x"), Object.entries(PAGE.spent).filter(([name]) => has(name)), state.curveX);
  const looked = unique(points.flatMap(Object.keys)).filter((name) => name.includes("@"));
  state.curveY = fill(byId("curve-y"), looked.map((name) => [name, name]), state.curveY || PAGE.sort);
  const analysed = PAGE.deciles.filter((each) => keys.has(each.key));
  const shares = Object.entries(DECILE_FIGURES).map(([name, title]) => [name, title(analysed[0]?.k ?? "k")]);
  state.decilesY = fill(byId("deciles-y"), shares, state.decilesY);
  drawAll({
    cost: costs.length ? planCost(rows, state.costX, state.costY) : null,
    curve: planCurve(curves, state.curveX, state.curveY),
    deciles: planDeciles(analysed, state.decilesY),
  });
}

function redraw() {
  fillFilters();
  const groups = groupsWithout("");
  state.columns = new Set(groups.flatMap((group) => group.shown));
  fillColumns(groups);
  writeAddress();
  redrawTables();
  redrawCharts();
}

// The function, called once things have come to rest.
function later(call) {
  let waiting = 0;
  return () => {
    clearTimeout(waiting);
    waiting = setTimeout(call, 150);
  };
}

function listen() {
  const chartsLater = later(redrawCharts);
  for (const name of ["dataset", "track", "budget"]) {
    byId(name).addEventListener("change", (event) => {
      state[name] = event.target.value;
      if (name === "dataset") Object.assign(state, { budget: "", track: "" });
      redraw();
    });
  }
  byId("source").addEventListener("change", (event) => {
    state.source = event.target.value;
    redraw();
  });
  byId("method").addEventListener("input", (event) => {
    state.method = event.target.value;
    writeAddress();
    redrawTables();
    chartsLater();
  });
  for (const [id, name] of [["cost-x", "costX"], ["cost-y", "costY"], ["curve-x", "curveX"], ["curve-y", "curveY"], ["deciles-y", "decilesY"]]) {
    byId(id).addEventListener("change", (event) => {
      state[name] = event.target.value;
      redrawCharts();
    });
  }
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("click", (event) => {
    if (!byId("columns").contains(event.target)) byId("columns").open = false;
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !byId("columns").open) return;
    byId("columns").open = false;
    byId("columns").querySelector("summary").focus();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawCharts);
  addEventListener("load", redrawCharts);
  addEventListener("resize", later(redrawCharts));
  addEventListener("hashchange", () => {
    readAddress();
    redraw();
  });
}

byId("notes").replaceChildren(...PAGE.notes.map((note) => element("li", {}, note)));
readAddress();
listen();
redraw();
