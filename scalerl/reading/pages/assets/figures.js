// Draws figures with plotly in the colors of the theme, and small figures of metrics. Needs theme.js and dom.js.
"use strict";

const drawn = new Map(); // place -> what it shows, to redraw it in another theme

let arriving = null;

// loaded on demand: 5 MB that the list of runs does not need
function plotly() {
  arriving ??= window.Plotly ? Promise.resolve() : new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = "/plotly.js";
    script.onload = resolve;
    script.onerror = () => reject(new Error("plotly.js could not be loaded"));
    document.head.append(script);
  });
  return arriving;
}

// A figure of a page's JSON, with the options that the reader has chosen
function drawFigure(one, view) {
  const place = document.getElementById(`plot-${one.name}`);
  if (!place) return;
  const options = Object.keys(one.choices).map((choice) => [choice, view.chosen(one, choice)]);
  const parts = [one, ...options.map(([choice, option]) => one.choices[choice][option] ?? {})];
  const layout = parts.map((part) => part.layout).reduce(merged, {});
  place.style.height = layout.height ? `${layout.height}px` : "";
  plot(place, { data: parts.flatMap((part) => part.data ?? []), layout, options: JSON.stringify(options) });
}

function plot(place, wanted) {
  const text = JSON.stringify([wanted.data, wanted.layout]);
  const before = drawn.get(place);
  if (before?.text === text && place.childNodes.length) return; // other parts of the page have changed
  drawn.set(place, { ...wanted, text });
  if (!window.Plotly) {
    plotly().then(drawAgain).catch(complain);
    return;
  }
  const font = { family: getComputedStyle(document.body).fontFamily, color: "@ink", size: narrow.matches ? 11 : 13 };
  const layout = merged({ ...LAYOUT, font, uirevision: "kept" }, wanted.layout); // new points keep the user's zoom
  layout.dragmode = coarse.matches ? false : "zoom"; // a finger must be able to scroll past a figure
  const config = { responsive: true, displaylogo: false, displayModeBar: coarse.matches ? false : "hover" };
  const same = before?.options === wanted.options && place.childNodes.length;
  // not always react: given a fresh layout that changes no data, it forgets the ranges of the axes
  (same ? Plotly.react : Plotly.newPlot)(place, colored(wanted.data), colored(layout), config);
}

function drawAgain() {
  for (const [place, wanted] of [...drawn]) {
    drawn.delete(place);
    if (place.isConnected) plot(place, wanted);
  }
}
for (const query of [dark, narrow]) query.addEventListener("change", drawAgain);

// A band from minimum to maximum with the mean as a line, as SVG without plotly
function spark(metric) {
  const [width, height] = [220, 44];
  const known = metric.x.map((x, at) => [x, metric.low[at], metric.mean[at], metric.high[at]]).filter((p) => p.every((v) => v !== null));
  const node = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "spark", "aria-hidden": "true", preserveAspectRatio: "none" });
  if (known.length < 2) return node;
  const least = Math.min(...known.map((p) => p[1]));
  const most = Math.max(...known.map((p) => p[3]));
  const [first, last] = [known[0][0], known.at(-1)[0]];
  const right = (x) => (((x - first) / (last - first)) * width).toFixed(1);
  const up = (y) => (most === least ? height / 2 : height - 3 - ((y - least) / (most - least)) * (height - 6)).toFixed(1);
  const path = (column, points) => points.map((p) => `${right(p[0])},${up(p[column])}`).join(" ");
  node.append(
    svg("polygon", { points: `${path(3, known)} ${path(1, [...known].reverse())}`, class: "band" }),
    svg("polyline", { points: path(2, known), class: "line" }),
  );
  for (const bound of metric.bounds)
    if (bound >= least && bound <= most && bound > 0)
      node.append(svg("line", { x1: 0, x2: width, y1: up(bound), y2: up(bound), class: "bound" }));
  return node;
}
