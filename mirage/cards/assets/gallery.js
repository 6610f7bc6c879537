"use strict";
// Every string of the data is put on the page as text, never as markup: it comes from strangers.
const data = JSON.parse(document.getElementById("data").textContent);
const find = (id) => document.getElementById(id);

function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-")) element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

// Rows travel as arrays; the columns name their places.
function unpack({ columns, rows }) {
  return rows.map((row) => Object.fromEntries(columns.map((name, place) => [name, row[place]])));
}

// A filtered list shown page by page. `fields` get a menu each; `searched` are looked through as text.
function list({ id, rows, fields, searched, size, show }) {
  const form = find(`${id}-filters`);
  const pager = find(`${id}-pager`);
  const wanted = {};
  let found = rows;
  let page = 0;

  const status = make("span", { role: "status" });
  const before = make("button", { type: "button", textContent: "Previous page" });
  const after = make("button", { type: "button", textContent: "Next page" });
  pager.append(before, after, status);
  before.addEventListener("click", () => turn(page - 1));
  after.addEventListener("click", () => turn(page + 1));
  form.addEventListener("submit", (event) => event.preventDefault());

  function turn(to) {
    const last = Math.max(0, Math.ceil(found.length / size) - 1);
    page = Math.min(Math.max(to, 0), last);
    before.disabled = page === 0;
    after.disabled = page === last;
    status.textContent = `${found.length} of ${rows.length}, page ${page + 1} of ${last + 1}`;
    show(found.slice(page * size, (page + 1) * size), found);
  }

  function filter() {
    const text = (wanted.text || "").toLowerCase();
    found = rows.filter(
      (row) =>
        fields.every((field) => wanted[field] === undefined || String(row[field]) === wanted[field]) &&
        (!text || searched.some((field) => String(row[field]).toLowerCase().includes(text)))
    );
    turn(0);
  }

  for (const field of fields) {
    const tally = new Map();
    for (const row of rows) tally.set(row[field], (tally.get(row[field]) || 0) + 1);
    const menu = make("select", { name: field }, make("option", { value: "*", textContent: "all" }));
    const values = [...tally].sort((left, right) => (left[0] < right[0] ? -1 : 1));
    values.forEach(([value, count], place) =>
      menu.append(make("option", { value: String(place), textContent: `${value || "not told"} (${count})` }))
    );
    menu.addEventListener("change", () => {
      wanted[field] = menu.value === "*" ? undefined : String(values[Number(menu.value)][0]);
      filter();
    });
    form.append(make("label", {}, field.replaceAll("_", " "), menu));
  }
  const search = make("input", { type: "search", name: "text", autocomplete: "off" });
  search.addEventListener("input", () => {
    wanted.text = search.value;
    filter();
  });
  form.append(make("label", {}, "search", search));
  filter();
}

const pictures = unpack(data.pictures);
const byFile = new Map(pictures.map((row) => [`${row.source}\n${row.path}`, row]));
let listed = pictures;
let open = 0;

function image(row) {
  if (!row.thumbnail) return make("span", { className: "none", textContent: "no thumbnail" });
  const alt = `${row.label === "ai" ? "AI" : "real"}: ${row.generator}, ${row.domain}`;
  return make("img", { src: `thumbnails/${row.thumbnail}`, alt, loading: "lazy", decoding: "async" });
}

function showPictures(rows, found) {
  listed = found;
  const tiles = rows.map((row) => {
    const name = row.generator || "not told";
    const caption = make("span", { className: `caption ${row.label}`, textContent: name });
    const button = make("button", { type: "button" }, image(row), caption);
    button.addEventListener("click", () => showDetail(found.indexOf(row)));
    return make("li", {}, button);
  });
  find("grid").replaceChildren(...tiles);
}

function showDetail(place) {
  open = Math.min(Math.max(place, 0), listed.length - 1);
  const row = listed[open];
  find("detail-title").textContent = `${row.source}: ${row.path}`;
  find("detail-picture").replaceChildren(image(row));
  const told = ([name, value]) => name !== "thumbnail" && value !== "" && value !== null;
  const facts = Object.entries(row).filter(told);
  find("detail-facts").replaceChildren(
    ...facts.flatMap(([name, value]) => [
      make("dt", { textContent: name.replaceAll("_", " ") }),
      make("dd", { textContent: value }),
    ])
  );
  find("detail-before").disabled = open === 0;
  find("detail-after").disabled = open === listed.length - 1;
  if (!find("detail").open) find("detail").showModal();
}

find("detail-before").addEventListener("click", () => showDetail(open - 1));
find("detail-after").addEventListener("click", () => showDetail(open + 1));
find("detail-close").addEventListener("click", () => find("detail").close());
find("detail").addEventListener("keydown", (event) => {
  if (event.key === "ArrowLeft") showDetail(open - 1);
  if (event.key === "ArrowRight") showDetail(open + 1);
});

function showTable(id, columns, cells) {
  const names = columns.map((name) => make("th", { scope: "col", textContent: name }));
  const head = make("thead", {}, make("tr", {}, ...names));
  return (rows) => {
    const lines = rows.map((row) => make("tr", {}, ...cells(row).map((cell) => make("td", {}, cell))));
    find(id).replaceChildren(head, make("tbody", {}, ...lines));
  };
}

list({
  id: "picture",
  rows: pictures,
  fields: ["split", "label", "domain", "generator", "source"],
  searched: ["path", "prompt", "key"],
  size: 120,
  show: showPictures,
});

list({
  id: "rejected",
  rows: unpack(data.rejected),
  fields: ["kind", "source"],
  searched: ["path", "reason"],
  size: 100,
  show: showTable("rejected-table", ["source", "path", "reason"], (row) => [
    row.source,
    row.path,
    row.reason,
  ]),
});

function side(label, source, path) {
  const word = label === "ai" ? "AI" : label;
  return make("span", {}, make("span", { className: label, textContent: word }), ` ${source}: ${path}`);
}

list({
  id: "repeated",
  rows: unpack(data.repeated),
  fields: ["kind", "source", "other_source"],
  searched: ["path", "other_path", "reason"],
  size: 100,
  show: showTable("repeated-table", ["left out", "kept", "picture kept", "how they are alike"], (row) => {
    const kept = byFile.get(`${row.other_source}\n${row.other_path}`);
    return [
      side(row.label, row.source, row.path),
      side(row.other_label, row.other_source, row.other_path),
      kept ? image(kept) : "",
      row.reason,
    ];
  }),
});
