// Colors and layout of plotly's figures in the reader's theme, shared by pages that are written and the live one.
"use strict";

const dark = window.matchMedia("(prefers-color-scheme: dark)");
const narrow = window.matchMedia("(max-width: 600px)");
const coarse = window.matchMedia("(pointer: coarse)");

const channels = (name) => {
  const hex = getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  return [hex, [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16))];
};

// "@s0/0.2" is the color of the CSS variable --s0 with opacity 0.2, "@s0~0.2" its opaque mixture with the background
function color(token) {
  const [, name, how, share] = token.match(/^@(\w+)(?:([/~])([\d.]+))?$/);
  const [hex, parts] = channels(name);
  if (!how) return hex;
  if (how === "/") return `rgba(${parts.join(", ")}, ${share})`;
  const [, paper] = channels("paper");
  return `rgb(${parts.map((part, at) => Math.round(share * part + (1 - share) * paper[at])).join(", ")})`;
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
  legend: { orientation: "h", traceorder: "normal", x: 0, y: 1.02, yanchor: "bottom" },
  hoverlabel: { bgcolor: "@raised", bordercolor: "@line", font: { color: "@ink" } },
  xaxis: { ...AXIS, exponentformat: "power", minexponent: 5 },
  yaxis: AXIS,
};

