// Draws the figures in the colours of the reader's theme, sorts the table, and saves raw data.
"use strict";

const figures = JSON.parse(document.getElementById("figures").textContent);
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const narrow = window.matchMedia("(max-width: 600px)");
const coarse = window.matchMedia("(pointer: coarse)");

// "@s0/0.2" is the colour of the CSS variable --s0 with opacity 0.2
function color(token) {
  const [, name, opacity] = token.match(/^@(\w+)(?:\/([\d.]+))?$/);
  const hex = getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  if (!opacity) return hex;
  const [red, green, blue] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  return `rgba(${red}, ${green}, ${blue}, ${opacity})`;
}

function colored(value) {
  if (typeof value === "string") return value.startsWith("@") ? color(value) : value;
  if (Array.isArray(value)) return typeof value[0] === "number" ? value : value.map(colored);
  if (value && typeof value === "object")
    return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, colored(inner)]));
  return value;
}

function merged(base, changes) {
  const both = { ...base };
  for (const [key, value] of Object.entries(changes ?? {})) {
    const nested = value && typeof value === "object" && !Array.isArray(value);
    both[key] = nested ? merged(base[key] ?? {}, value) : value;
  }
  return both;
}

const AXIS = { automargin: true, gridcolor: "@line", linecolor: "@line", zeroline: false, ticks: "outside", tickcolor: "@line" };
const LAYOUT = {
  autosize: true,
  paper_bgcolor: "rgba(0,0,0,0)",
  plot_bgcolor: "rgba(0,0,0,0)",
  margin: { l: 12, r: 12, t: 12, b: 12 },
  legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
  hoverlabel: { bgcolor: "@raised", bordercolor: "@line", font: { color: "@ink" } },
  xaxis: { ...AXIS, exponentformat: "power", minexponent: 5 },
  yaxis: AXIS,
};

function draw(id) {
  const figure = figures[id];
  const selects = [...document.querySelectorAll(`select[data-figure="${id}"]`)];
  const chosen = selects.map((select) => figure.choices[select.dataset.choice][select.value]);
  const font = { family: getComputedStyle(document.body).fontFamily, color: "@ink", size: narrow.matches ? 11 : 13 };
  const layout = [figure, ...chosen].map((part) => part.layout).reduce(merged, { ...LAYOUT, font });
  const data = [figure, ...chosen].flatMap((part) => part.data ?? []);
  // a finger must be able to scroll past a figure
  layout.dragmode = coarse.matches ? false : "zoom";
  const node = document.getElementById("plot-" + id);
  if (layout.height) node.style.height = layout.height + "px";
  const config = { responsive: true, displaylogo: false, displayModeBar: coarse.matches ? false : "hover" };
  // not Plotly.react: given a fresh layout that changes no data, it forgets the ranges of the axes
  return Plotly.newPlot(node, colored(data), colored(layout), config);
}

function drawAll() {
  return Promise.all(Object.keys(figures).map(draw));
}

function sortBy(header) {
  const table = header.closest("table");
  const column = [...header.parentNode.children].indexOf(header);
  const ascending = header.getAttribute("aria-sort") !== "ascending";
  const direction = ascending ? 1 : -1;
  for (const other of header.parentNode.children) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  const key = (row) => row.children[column].dataset.key;
  const compared = (a, b) => {
    const [one, two] = [key(a), key(b)];
    if (one === "" || two === "") return direction * ((one === "") - (two === "")); // not known: last either way
    const numbers = [Number(one), Number(two)];
    return numbers.some(Number.isNaN) ? one.localeCompare(two) : numbers[0] - numbers[1];
  };
  const body = table.tBodies[0];
  body.append(...[...body.rows].sort((a, b) => direction * compared(a, b)));
}

// not a data: address in the page, which would hold everything twice
function save(button) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([document.getElementById(button.dataset.saves).textContent]));
  link.download = button.dataset.name;
  link.click();
  URL.revokeObjectURL(link.href);
}

for (const select of document.querySelectorAll("select[data-figure]"))
  select.addEventListener("change", () => draw(select.dataset.figure));
for (const button of document.querySelectorAll("thead button"))
  button.addEventListener("click", () => sortBy(button.closest("th")));
for (const button of document.querySelectorAll("button[data-saves]"))
  button.addEventListener("click", () => save(button));
for (const query of [dark, narrow]) query.addEventListener("change", drawAll);
drawAll();
