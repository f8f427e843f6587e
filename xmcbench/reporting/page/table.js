"use strict";
// Tables: one a group of comparable rows. Whatever comes from a record is put in with textContent, never as markup.

const ROWS_A_PAGE = 50;
const GROUPS_AT_ONCE = 12;

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

// The value a row is sorted by; null where it has none.
function valueOf(group, row, column) {
  if (column === "#") return row.rank;
  if (column === "method") return row.method;
  const at = group.columns.indexOf(column);
  if (at < 0) return null;
  return PAGE.columns[column].number ? row.values[at] : row.texts[at];
}

function compare(first, second) {
  if (typeof first === "number" && typeof second === "number") return first - second;
  return String(first).localeCompare(String(second), "en", { numeric: true });
}

// Rows without a value end last, whichever way the others go; rows that tie stay in the order of the ranking.
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
  if (info.help) button.title = info.help;
  button.addEventListener("click", () => choose(column, info.number));
  cell.append(button);
  return cell;
}

function classesOf(column, info) {
  if (column === "#") return "rank";
  if (column === "method") return "method text";
  return info.number ? "" : "text";
}

// The two highest of what ranked rows show in each column of figures: papers print them bold and underlined.
function leaders(group, columns, info) {
  const found = {};
  for (const column of columns.filter((name) => info[name].metric)) {
    const ranked = group.rows.filter((row) => row.rank !== null);
    const values = ranked.map((row) => valueOf(group, row, column)).filter((value) => value !== null);
    const best = [...new Set(values)].sort((first, second) => second - first);
    if (ranked.length > 1) found[column] = best.slice(0, 2);
  }
  return found;
}

function bodyCell(group, row, column, info, leading, sort) {
  const at = group.columns.indexOf(column);
  const text = at < 0 ? null : row.texts[at];
  const cell = element("td", { class: info.number ? "" : "text" }, text === null ? "–" : text);
  if (!info.number && text !== null && text.length > 24) cell.className = "long";
  if (info.metric && row.rank !== null && leading[column]) {
    const place = leading[column].indexOf(row.values[at]);
    if (place >= 0) cell.classList.add(place === 0 ? "best" : "second");
  }
  const interval = row.intervals[column];
  if (interval && (sort === null ? column === PAGE.sort : column === sort.column)) {
    const [low, high] = interval;
    cell.append(element("span", { class: "interval" }, `${low}–${high}${row.tied.includes(column) ? " ≈" : ""}`));
    cell.title = "95 % interval" + (row.tied.includes(column) ? "; not told apart from the best (paired bootstrap)" : "");
  }
  return cell;
}

function methodCell(row) {
  const cell = element("th", { scope: "row", class: "method text" }, row.method);
  if (row.status !== "ok") cell.append(element("span", { class: "status" }, row.status));
  if (row.problem) cell.append(element("span", { class: "problem" }, row.problem));
  return cell;
}

function linkCell(row) {
  const cell = element("td", { class: "text links" });
  if (row.source) {
    const safe = /^https?:\/\//.test(row.url);
    const attributes = { href: row.url, rel: "noopener noreferrer", target: "_blank" };
    cell.append(safe ? element("a", attributes, row.source) : row.source);
  }
  row.keys.forEach((key, at) => {
    const label = row.keys.length > 1 ? `record ${at + 1}` : "record";
    cell.append(element("a", { href: `records/${encodeURIComponent(key)}.html`, title: `trial ${key}` }, label));
  });
  return cell;
}

function pageButtons(state, total, redraw) {
  const pages = Math.ceil(total / ROWS_A_PAGE);
  const turn = (by) => () => {
    state.page += by;
    redraw(by < 0 ? "previous" : "next");
  };
  const first = state.page * ROWS_A_PAGE;
  const bar = element("div", { class: "pages" });
  bar.append(
    `${first + 1}–${Math.min(total, first + ROWS_A_PAGE)} of ${total.toLocaleString("en")}`,
    element("button", { type: "button", class: "button previous", onclick: turn(-1) }, "Previous"),
    element("button", { type: "button", class: "button next", onclick: turn(1) }, "Next"),
  );
  bar.querySelector(".previous").disabled = state.page === 0;
  bar.querySelector(".next").disabled = state.page >= pages - 1;
  return bar;
}

function heading(group) {
  const about = [group.budget, group.protocol, group.by].filter(Boolean).join(" · ");
  const title = element("h3", {}, group.dataset);
  const line = element("div", { class: "heading" }, title, element("span", { class: `badge ${group.source}` }, group.source));
  if (group.track !== "supervised") line.append(element("span", { class: "badge" }, group.track));
  if (about) line.append(element("span", { class: "about" }, about));
  return line;
}

// A section that draws its rows anew when a page is turned, and keeps the focus where it was.
function section(group, rows, columns, sort, choose) {
  const state = { page: 0 };
  const info = PAGE.columns;
  const shown = columns.filter((column) => group.columns.includes(column));
  const leading = leaders(group, shown, info);
  const order = sorted(group, rows, sort);
  const body = element("tbody");
  const head = element("tr", {}, ...["#", "method", ...shown].map((column) => headerCell(column, info[column], sort, choose)));
  head.append(element("th", { scope: "col", class: "text" }, element("span", { class: "plain" }, "Source")));
  const name = `${group.dataset}, ${group.source}${group.budget ? `, ${group.budget}` : ""}`;
  const table = element("table", { "aria-label": name }, element("thead", {}, head), body);
  const scroll = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": name }, table);
  const made = element("section", {}, heading(group), scroll);
  const draw = (focus) => {
    body.replaceChildren();
    for (const row of order.slice(state.page * ROWS_A_PAGE, (state.page + 1) * ROWS_A_PAGE)) {
      const cells = shown.map((column) => bodyCell(group, row, column, info[column], leading, sort));
      const rank = element("td", { class: "rank" }, row.rank === null ? "–" : String(row.rank));
      body.append(element("tr", {}, rank, methodCell(row), ...cells, linkCell(row)));
    }
    made.querySelector(".pages")?.remove();
    if (order.length > ROWS_A_PAGE) {
      const bar = pageButtons(state, order.length, draw);
      made.append(bar);
      if (focus) (bar.querySelector(`.${focus}:enabled`) ?? bar.querySelector("button:enabled")).focus();
    }
  };
  draw("");
  return made;
}

// Redraws all tables: `chosen` holds pairs of a group and those of its rows that are shown.
function drawTables(place, chosen, columns, sort, choose) {
  const sections = chosen.map(([group, rows]) => () => section(group, rows, columns, sort, choose));
  place.replaceChildren(...sections.slice(0, GROUPS_AT_ONCE).map((make) => make()));
  if (!chosen.length) place.append(element("p", { class: "empty" }, "No row is like that. Widen the filters above."));
  const rest = sections.slice(GROUPS_AT_ONCE);
  if (!rest.length) return;
  const more = element("button", { type: "button", class: "button more" }, `Show ${rest.length} more tables`);
  more.addEventListener("click", () => more.replaceWith(...rest.map((make) => make())));
  place.append(more);
}
