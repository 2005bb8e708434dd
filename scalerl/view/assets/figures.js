// Figures with plotly in the colors of the theme, and small figures of metrics. Needs theme.js and dom.js.
"use strict";

const drawn = new Map(); // place -> its data, to redraw it in another theme
const SERIES = ["@s0", "@s1", "@s2", "@s3", "@s4", "@s5", "@s6", "@s7"];
const DASHES = ["solid", "dash", "dot", "dashdot"];

// plotly interprets some tags in texts, so that texts from runs must be escaped
const escaped = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

let arriving = null;

// loaded on demand: 5 MB that the list of runs does not need
function plotly() {
  arriving ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = "/plotly.js";
    script.onload = resolve;
    script.onerror = () => reject(new Error("plotly.js could not be loaded"));
    document.head.append(script);
  });
  return arriving;
}

function figure(place, data, layout) {
  if (!place) return;
  const said = JSON.stringify([data, layout]);
  if (drawn.get(place)?.said === said && place.childNodes.length) return; // other parts of the page have changed
  drawn.set(place, { said, data, layout });
  if (!window.Plotly) {
    plotly().then(drawAgain).catch(complain);
    return;
  }
  const font = { family: getComputedStyle(document.body).fontFamily, color: "@ink", size: narrow.matches ? 11 : 13 };
  const whole = merged({ ...LAYOUT, font }, layout);
  whole.uirevision = layout.uirevision ?? "kept"; // new points keep the user's zoom
  whole.dragmode = coarse.matches ? false : "zoom";
  const config = { responsive: true, displaylogo: false, displayModeBar: coarse.matches ? false : "hover" };
  Plotly.react(place, colored(data), colored(whole), config);
}

function drawAgain() {
  for (const [place, { data, layout }] of [...drawn]) {
    drawn.delete(place);
    if (place.isConnected) figure(place, data, layout);
  }
}
for (const query of [dark, narrow]) query.addEventListener("change", drawAgain);

// The traces of a run's curve in the run's color, with the current points.
function curveTraces(found, name, number) {
  const color = SERIES[number % SERIES.length];
  const own = JSON.parse(JSON.stringify(found.traces).replaceAll('"@s0', `"${color}`));
  const shift = 1 + 0.04 * number;
  const points = {
    mode: "markers", cliponaxis: false, name: escaped(name), x: found.x, y: found.y, marker: { color, size: 7 }, legendgroup: String(number),
    error_y: { array: found.stderr, width: 0, thickness: 1, color: `${color}/0.5` }, showlegend: true,
    text: found.step.map((step) => `step ${step}`), hovertemplate: "%{text}: %{y:.3f}<extra></extra>",
  };
  if (!own.length) return [points];
  own[4] = points;
  own[5].x = own[5].x.map((x) => x * shift);
  return own.map((trace) => ({ ...trace, legendgroup: String(number) }));
}

const UNITS = { device_hours: "device-hours", flops: "FLOPs", tokens: "tokens", step: "steps" };

function curveFigure(place, curves, logarithmic) {
  const data = curves.flatMap(({ found, name }, number) => curveTraces(found, name, number));
  const positive = curves.flatMap(({ found }) => found.x.filter((x) => x > 0));
  const last = Math.max(...positive);
  const ahead = curves.some(({ found }) => found.traces.length) ? 4.5 : 1.1;
  const axis = UNITS[curves[0]?.found.axis] ?? "compute";
  const x = logarithmic && positive.length
    ? { type: "log", dtick: "D2", range: [Math.log10(0.6 * Math.min(...positive)), Math.log10(ahead * last)] }
    : { type: "linear", rangemode: "tozero" };
  figure(place, data, {
    xaxis: { ...x, title: { text: `training compute (${axis})` } },
    yaxis: { title: { text: "held-out pass rate" } },
    showlegend: curves.length > 1,
    uirevision: `${logarithmic}`,
  });
}

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

// series: [{name, color, x, low, mean, high}]
function seriesFigure(place, series, metric, logarithmic) {
  const unit = metric.unit ? ` (${metric.unit})` : "";
  const data = series.flatMap((one, number) => {
    const color = SERIES[number % SERIES.length];
    const group = { legendgroup: String(number), name: escaped(one.name), mode: "lines" };
    const quiet = { ...group, x: one.x, line: { width: 0 }, showlegend: false, hoverinfo: "skip" };
    return [
      { ...quiet, y: one.low },
      { ...quiet, y: one.high, fill: "tonexty", fillcolor: `${color}/0.18` },
      { ...group, x: one.x, y: one.mean, line: { color, width: 1.7, dash: DASHES[Math.floor(number / SERIES.length) % 4] },
        hovertemplate: `step %{x:.0f}: %{y:.4g}<extra>${series.length > 1 ? escaped(one.name) : ""}</extra>` },
    ];
  });
  const shapes = (metric.bounds ?? []).filter((bound) => bound > 0).map((bound) => ({
    type: "line", xref: "paper", x0: 0, x1: 1, y0: bound, y1: bound, line: { color: "@s1", width: 1, dash: "dot" },
  }));
  figure(place, data, {
    xaxis: { title: { text: "step" } },
    yaxis: { title: { text: `${metric.label}${unit}` }, type: logarithmic ? "log" : "linear", rangemode: metric.share ? "nonnegative" : "normal", tickformat: metric.share ? ".1%" : "" },
    shapes: logarithmic ? [] : shapes,
    showlegend: series.length > 1,
    uirevision: metric.name,
  });
}
