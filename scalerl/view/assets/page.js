// Draws the figures in the colors of the reader's theme, and sorts the table. theme.js stands before it.

const figures = JSON.parse(document.getElementById("figures").textContent);

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

for (const select of document.querySelectorAll("select[data-figure]"))
  select.addEventListener("change", () => draw(select.dataset.figure));
for (const button of document.querySelectorAll("thead button"))
  button.addEventListener("click", () => sortBy(button.closest("th")));
for (const query of [dark, narrow]) query.addEventListener("change", drawAll);
drawAll();
