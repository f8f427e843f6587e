"use strict";
// Tables: one for each group of comparable rows. Texts of records are set with textContent, never as markup.

const ROWS_A_PAGE = 50;
const GROUPS_AT_ONCE = 12;
const ORIGIN = ["paper", "paper_url", "code", "code_url", "licence"]; // of a row

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") made.className = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

// The texts and the values of a row's cells, which the data hold as texts, and as pairs where a text has fewer digits.
// Those of columns without numbers are places in a list of texts. Rows of several tables have columns of their own.
function decode(group, row) {
  const places = new Map((row.columns ?? group.columns).map((name, at) => [name, at]));
  const cells = group.columns.map((name) => {
    const cell = row.cells?.[places.get(name)] ?? "";
    return PAGE.columns[name].number || cell === "" ? cell : PAGE.texts[cell];
  });
  row.texts = cells.map((cell) => (typeof cell === "number" ? (100 * cell).toFixed(2) : Array.isArray(cell) ? cell[0] : cell) || null);
  row.values = cells.map((cell, at) => {
    const info = PAGE.columns[group.columns[at]];
    if (typeof cell === "number") return cell;
    if (Array.isArray(cell)) return cell[1];
    return cell === "" || !info.number ? null : Number(cell.replaceAll(",", "")) / (info.metric ? 100 : 1);
  });
  delete row.cells;
  const intervals = (row.columns ?? group.columns).map((name, at) => [name, row.intervals[at]]).filter(([, ends]) => ends?.length);
  row.intervals = Object.fromEntries(intervals.map(([name, ends]) => [name, ends.map((end) => (end / 10).toFixed(1))]));
  row.source = PAGE.texts[row.source];
  row.papers = PAGE.papers[row.papers];
  row.date = PAGE.texts[row.date] || PAGE.years[row.papers[0]] || "";
  row.origin = Object.fromEntries(ORIGIN.map((name, at) => [name, PAGE.texts[PAGE.origins[row.origin][at]]]));
  row.kind ||= textOf(group, row, "kind") ?? "";
  const costs = Object.keys(PAGE.costs).map((name) => [name, row.costs[name] ?? valueOf(group, row, name)]);
  row.costs = Object.fromEntries(costs.filter(([, cost]) => cost > 0));
}

// A row's name in its suite, and its method's name in papers with what the row adds to it.
const nameOf = (row) => (row.variant ? `${row.method} (${row.variant})` : row.method);
const calledOf = (row) => row.called || nameOf(row);

// The value a row is sorted by; null where it has none.
function valueOf(group, row, column) {
  if (column === "#") return row.rank;
  if (column === "method") return calledOf(row);
  if (column === "date") return row.date || null;
  const at = group.columns.indexOf(column);
  if (at < 0) return null;
  return PAGE.columns[column].number ? row.values[at] : row.texts[at];
}

const textOf = (group, row, column) => row.texts[group.columns.indexOf(column)] ?? null;

function compare(first, second) {
  if (typeof first === "number" && typeof second === "number") return first - second;
  return String(first).localeCompare(String(second), "en", { numeric: true });
}

// Rows without a value come last in either direction; rows with equal values keep the order of the ranking.
function sorted(group, rows, sort) {
  if (sort === null) return rows;
  const valued = rows.map((row) => [valueOf(group, row, sort.column), row]);
  const known = valued.filter(([value]) => value !== null);
  known.sort(([first], [second]) => (sort.ascending ? 1 : -1) * compare(first, second));
  return [...known, ...valued.filter(([value]) => value === null)].map(([, row]) => row);
}

function headerCell(column, info, sort, choose) {
  const active = sort === null ? column === "#" : sort.column === column;
  const ascending = sort === null || sort.ascending;
  const cell = element("th", { scope: "col", class: classesOf(column, info) });
  if (active) cell.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  const button = element("button", { type: "button", "data-column": column }, info.heading);
  if (info.help) button.dataset.tip = info.help;
  button.addEventListener("click", () => choose(column, info.number));
  cell.append(button);
  return cell;
}

function classesOf(column, info) {
  if (column === "#") return "rank";
  if (column === "method") return "method text";
  return info.number ? "" : "text";
}

// 1 for a metric that is better the higher it is, -1 for one that is better the lower.
const signOf = (metric) => (PAGE.lower.includes(metric) ? -1 : 1);

// The two best values of ranked rows in each metric column: papers print them bold and underlined.
function leaders(group, columns, info) {
  const found = {};
  for (const column of columns.filter((name) => info[name].metric)) {
    const ranked = group.rows.filter((row) => row.rank !== null);
    const values = ranked.map((row) => valueOf(group, row, column)).filter((value) => value !== null);
    const best = [...new Set(values)].sort((first, second) => signOf(column) * (second - first));
    if (ranked.length > 2) found[column] = best.slice(0, 2); // of two rows, bold says nothing
  }
  return found;
}

const hidden = (text) => element("span", { class: "hidden" }, text);

// A mark, with its meaning as a tooltip and for screen readers.
const sign = (mark, meaning) => [element("span", { class: "sign", "aria-hidden": "true", "data-tip": meaning }, mark), hidden(`, ${meaning}`)];

// A claim that was looked at, with a link to what was found at which scale.
const claimLink = (id) => element("a", { class: "sign claim", href: `claims.html#claim-${id}`, "data-tip": PAGE.claims[id], "aria-label": PAGE.claims[id] }, "○");

function bodyCell(group, row, column, info, leading) {
  const at = group.columns.indexOf(column);
  const text = at < 0 ? null : row.texts[at];
  const cell = element("td", { class: info.number ? "" : "text" }, text === null ? "–" : text);
  if (!info.number && text !== null && text.length > 24) cell.className = "long";
  if (column === "variants") cell.append(...row.folded_claims.map(claimLink));
  if (!info.metric || text === null) return cell;
  const place = row.rank === null || !leading[column] ? -1 : leading[column].indexOf(row.values[at]);
  if (place >= 0) {
    cell.classList.add(place === 0 ? "best" : "second");
    cell.append(hidden(place === 0 ? ", best" : ", second best"));
  }
  if (row.tied.includes(column)) cell.append(...sign("≈", "not significantly different from the best"));
  if (row.misprints[column]) cell.append(...sign("†", `misprint: ${row.misprints[column]}`));
  const interval = row.intervals[column];
  if (interval) cell.append(element("br"), element("span", { class: "interval", "data-tip": `95 % interval over test queries${row.keys.length > 1 ? " and seeds" : ""}` }, `${interval[0]}–${interval[1]}`, ...(row.keys.length > 1 ? [] : sign("¹", "one seed"))));
  return cell;
}

function methodCell(row) {
  const cell = element("th", { scope: "row", class: "method text" }, calledOf(row));
  if (row.codes) cell.append(...sign("§", `its trials noted ${row.codes} digests of code in an older form, which changed with comments too`));
  if (row.older) cell.append(...sign("‡", `a result of older code: ${row.older}`));
  if (row.unbounded) cell.append(...sign("◇", "its training is not limited by this budget, which counts nothing of what it spends"));
  if (row.stated) cell.append(...sign("□", "not recomputed: its predictions are not here, or its dataset is unknown here"));
  if (row.reproduced) cell.append(...sign(...row.reproduced));
  if (row.idle.length) cell.append(...sign("∅", `never ran: ${row.idle.join(", ")}`));
  if (row.below_popular) cell.append(...sign("↓", "trained, yet not better than the most frequent labels"));
  cell.append(...row.claims.map(claimLink));
  if (row.status !== "ok") cell.append(element("span", { class: "status" }, row.status));
  if (row.problem) cell.append(element("span", { class: "problem" }, row.problem));
  return cell;
}

// A row's rank, with the ranks that its differences from the others leave open.
function rankCell(group, row) {
  const cell = element("td", { class: "rank" }, row.rank === null ? "–" : String(row.rank));
  const ends = group.rows[row.at] === row && row.rank !== null ? group.ranks[row.at] : null;
  if (ends) cell.append(element("br"), element("span", { class: "interval", "data-tip": "ranks that no significant difference rules out: 95 %, Holm over all pairs of rows" }, ends[0] === ends[1] ? String(ends[0]) : `${ends[0]}–${ends[1]}`));
  return cell;
}

// What the marks of a row mean: its box says it to the keyboard.
function meanings(cell) {
  return [...cell.querySelectorAll(".sign[data-tip]:not(a)")].map((mark) => `${mark.textContent} ${mark.dataset.tip}`).join("; ");
}

function tickCell(group, row, marked) {
  const cell = element("td", { class: "tick" });
  if (!row.keys.length) return cell;
  const box = element("input", { type: "checkbox", "aria-label": `Compare ${calledOf(row)}` });
  box.checked = ticked.has(row);
  const tip = [row.called ? `in its suite: ${nameOf(row)}` : "", meanings(marked)].filter(Boolean).join("; ");
  if (tip) box.dataset.tip = tip;
  box.addEventListener("change", () => tick(group, row, box.checked));
  cell.append(box);
  return cell;
}

// A link to another site; its text alone where the address is none of the web.
function outward(url, text, tip = null) {
  if (!/^https?:\/\//.test(url)) return tip ? element("span", { "data-tip": tip }, text) : text;
  return element("a", { href: url, rel: "noopener noreferrer", target: "_blank", "data-tip": tip }, text);
}

function dateCell(row) {
  const cell = element("td", { class: "text date" }, row.date || "–");
  if (row.origin.licence) cell.append(element("br"), element("span", { class: "interval" }, row.origin.licence));
  return cell;
}

// The paper of a row's method, unless its source is that paper, and the code that made the row, where they are known.
function originLinks(row) {
  const { paper, paper_url, code, code_url } = row.origin;
  const links = [];
  if (paper_url && paper_url !== PAGE.urls[row.url]) links.push(outward(paper_url, "paper", paper));
  if (code_url) links.push(outward(code_url, "code", code));
  else if (code) links.push(element("span", {}, code.split(/[ ,]/)[0]));
  const listed = links.flatMap((link, at) => (at ? [" · ", link] : [link]));
  return links.length ? [row.keys.length ? element("br") : " ", element("span", { class: "interval" }, ...listed)] : [];
}

function linkCell(row) {
  const cell = element("td", { class: "text links" });
  if (row.source) {
    const [first, ...others] = row.source.split("; ");
    cell.append(outward(PAGE.urls[row.url], first));
    if (others.length) cell.append(element("span", { class: "sign", "aria-hidden": "true", "data-tip": row.source }, `+${others.length}`), hidden(`, also ${others.join("; ")}`));
  }
  row.keys.forEach((key, at) => {
    const label = at ? String(at + 1) : "record";
    cell.append(element("a", { href: `records/${encodeURIComponent(key)}.html`, "aria-label": at ? `record ${at + 1}` : "record", "data-tip": `trial ${key}` }, label));
  });
  cell.append(...originLinks(row));
  return cell;
}

function pageButtons(state, total, redraw) {
  const turn = (by) => () => {
    state.page += by;
    redraw(by < 0 ? "previous" : "next");
  };
  const all = () => {
    Object.assign(state, { page: 0, size: state.size === ROWS_A_PAGE ? total : ROWS_A_PAGE });
    redraw("all");
  };
  const first = state.page * state.size;
  const bar = element("div", { class: "pages" });
  bar.append(
    `${first + 1}–${Math.min(total, first + state.size)} of ${total.toLocaleString("en")}`,
    element("button", { type: "button", class: "button previous", onclick: turn(-1) }, "Previous"),
    element("button", { type: "button", class: "button next", onclick: turn(1) }, "Next"),
    element("button", { type: "button", class: "button all", onclick: all }, state.size === ROWS_A_PAGE ? "Show all" : `Show ${ROWS_A_PAGE}`),
  );
  bar.querySelector(".previous").disabled = state.page === 0;
  bar.querySelector(".next").disabled = first + state.size >= total;
  return bar;
}

function heading(group) {
  const about = [group.budget, group.protocol, group.by].filter(Boolean).join(" · ");
  const line = element("div", { class: "heading" }, element("h3", {}, `${group.source[0].toUpperCase()}${group.source.slice(1)} results`));
  if (group.track !== "supervised") line.append(element("span", { class: "badge" }, group.track));
  if (about) line.append(element("span", { class: "about" }, about));
  return line;
}

// The sections on the page, so that all rows can be drawn before printing.
const SECTIONS = [];

// A section that redraws its rows when a page is turned, and keeps the focus.
function section(group, rows, columns, added, sort, choose) {
  const state = { page: 0, size: ROWS_A_PAGE };
  const info = PAGE.columns;
  const shown = columns.filter((column) => group.shown.includes(column) || (added.has(column) && group.columns.includes(column)));
  const leading = leaders(group, shown, info);
  const order = sorted(group, rows, sort);
  const body = element("tbody");
  const compared = group.source !== "published";
  const head = element("tr", {}, compared ? element("th", { scope: "col", class: "tick" }, hidden("compare")) : null, ...["#", "method", ...shown].map((column) => headerCell(column, info[column], sort, choose)));
  head.append(headerCell("date", info.date, sort, choose), element("th", { scope: "col", class: "text" }, element("span", { class: "plain" }, "Source")));
  const name = [group.dataset, group.source, group.budget, group.track === "supervised" ? "" : group.track, group.protocol, group.by].filter(Boolean).join(", ");
  const sorting = sort === null ? "sorted by rank" : `sorted by ${info[sort.column]?.heading ?? sort.column}, ${sort.ascending ? "ascending" : "descending"}`;
  const caption = element("caption", { class: "hidden" }, `${name}, per cent, ${sorting}`);
  const table = element("table", { "data-name": name }, caption, element("thead", {}, head), body);
  const scroll = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": name }, table);
  const made = element("section", {}, heading(group), scroll);
  const draw = (focus) => {
    body.replaceChildren();
    for (const row of order.slice(state.page * state.size, (state.page + 1) * state.size)) {
      const cells = shown.map((column) => bodyCell(group, row, column, info[column], leading));
      const rank = rankCell(group, row);
      const name = methodCell(row);
      body.append(element("tr", {}, compared ? tickCell(group, row, name) : null, rank, name, ...cells, dateCell(row), linkCell(row)));
    }
    made.querySelector(".pages")?.remove();
    if (order.length > ROWS_A_PAGE) {
      const bar = pageButtons(state, order.length, draw);
      made.append(bar);
      if (focus) (bar.querySelector(`.${focus}:enabled`) ?? bar.querySelector("button:enabled")).focus();
    }
  };
  draw("");
  SECTIONS.push({ state, draw, total: order.length });
  return made;
}

// Rows that are ticked, all of one group.
const ticked = new Set();

function tick(group, row, on) {
  if (on && [...ticked].some((other) => other.group !== group)) {
    ticked.clear();
    SECTIONS.forEach((each) => each.draw(""));
  }
  ticked[on ? "add" : "delete"](row);
  drawComparison();
  redrawCharts();
}

// Half the 95 % interval of the paired difference of two rows of a group, in points; null where it is not known.
function halfWidth(group, metric, first, second) {
  const [low, high] = [group.compared.indexOf(first.at), group.compared.indexOf(second.at)].sort((a, b) => a - b);
  if (low < 0 || !group.halves[metric]) return null;
  const before = low * group.compared.length - (low * (low + 1)) / 2; // pairs of the rows before `low`
  const half = group.halves[metric][before + high - low - 1];
  return half === null ? null : half / 100;
}

// The ticked rows against the first of them: values and paired differences.
function drawComparison() {
  const place = byId("comparison");
  place.hidden = ticked.size < 2;
  if (place.hidden) return;
  const [first, ...others] = ticked;
  const { group } = first;
  const metrics = group.columns.filter((name) => name in group.halves);
  const shown = metrics.length ? metrics : [group.sort];
  const head = element("tr", {}, ...["method", ...shown].map((name) => element("th", { scope: "col", class: name === "method" ? "method text" : "" }, element("span", { class: "plain" }, name))));
  const line = (row) => element("tr", {}, element("th", { scope: "row", class: "method text" }, calledOf(row)), ...shown.map((metric) => {
    const [value, base] = [valueOf(group, row, metric), valueOf(group, first, metric)];
    const cell = element("td", {}, value === null ? "–" : (100 * value).toFixed(2));
    if (row === first || value === null || base === null) return cell;
    const [difference, half] = [100 * (value - base), halfWidth(group, metric, first, row)];
    const text = `${difference >= 0 ? "+" : "−"}${Math.abs(difference).toFixed(2)}${half === null ? "" : ` ± ${half.toFixed(2)}`}`;
    cell.append(element("small", { class: half !== null && Math.abs(difference) > half ? "clear" : "" }, text));
    return cell;
  }));
  const table = element("table", {}, element("caption", { class: "hidden" }, "Ticked rows compared"), element("thead", {}, head), element("tbody", {}, line(first), ...others.map(line)));
  const without = [...ticked].filter((row) => !group.compared.includes(row.at)).map(calledOf);
  const about = `Small print: difference from ${calledOf(first)}, paired over test queries and seeds, ± half the 95 % interval of each; bold where it excludes 0. Not corrected for the number of rows.`;
  const clear = element("button", { type: "button", class: "button small", onclick: () => {
    ticked.clear();
    SECTIONS.forEach((each) => each.draw(""));
    drawComparison();
    redrawCharts();
  } }, "Clear");
  place.replaceChildren(element("div", { class: "heading" }, element("h3", {}, `${ticked.size} rows compared`), clear), element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Comparison" }, table),
    element("p", { class: "remark" }, about, without.length ? ` No interval for ${without.join(", ")}: metrics on resamples are missing, or the row is not ranked.` : ""));
}

// Redraws all tables: `chosen` holds pairs of a group and those of its rows that are shown. A table has those of the
// `columns` that it shows by default or that the reader `added`.
function drawTables(place, chosen, columns, added, sort, choose) {
  const sections = chosen.map(([group, rows]) => () => section(group, rows, columns, added, sort, choose));
  SECTIONS.length = 0;
  place.replaceChildren(...sections.slice(0, GROUPS_AT_ONCE).map((make) => make()));
  if (!chosen.length) place.append(element("p", { class: "empty" }, "No row matches. Widen the filters above."));
  const rest = sections.slice(GROUPS_AT_ONCE);
  if (!rest.length) return;
  const more = element("button", { type: "button", class: "button more" }, `Show ${rest.length} more tables`);
  more.addEventListener("click", () => more.replaceWith(...rest.map((make) => make())));
  place.append(more);
}
