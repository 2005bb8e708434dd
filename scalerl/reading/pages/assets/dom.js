// Makes elements from data. All text from runs, tasks and rollouts becomes text nodes, never HTML.
"use strict";

// The JSON of a page that was written as a file; null on a page that `scalerl watch` serves
const frozen = JSON.parse(document.getElementById("frozen")?.textContent ?? "null");

// el("p", {class: "muted"}, "text", child): attributes that are null or false are omitted
function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {}))
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  node.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

// Changes `old` to match `fresh` and keeps existing nodes with their focus, selection and scroll position. Elements with
// data-keep belong to a figure or a form once they have content: plotly's styles need the class that it adds to them.
function morph(old, fresh) {
  if (fresh.hasAttribute("data-keep") && old.childNodes.length) return;
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  if (old.tagName === "PROGRESS") old.value = fresh.value;
  const [before, after] = [[...old.childNodes], [...fresh.childNodes]];
  after.forEach((node, at) => {
    const there = before[at];
    if (!there) old.append(node);
    else if (there.nodeType !== node.nodeType || there.nodeName !== node.nodeName || there.dataset?.key !== node.dataset?.key)
      there.replaceWith(node);
    else if (node.nodeType === Node.TEXT_NODE) {
      if (there.data !== node.data) there.data = node.data;
    } else morph(there, node);
  });
  before.slice(after.length).forEach((node) => node.remove());
  if (old.tagName === "SELECT" && document.activeElement !== old)
    for (const option of old.options) if (option.hasAttribute("selected")) option.selected = true;
}

function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

async function ask(path, parameters) {
  const query = new URLSearchParams(Object.entries(parameters ?? {}).filter(([, value]) => value !== "" && value !== null));
  const answer = await fetch(path + (String(query) ? "?" + query : ""));
  if (!answer.ok) throw new Error(`${answer.status}: ${await answer.text()}`);
  return answer.json();
}

function shown(value, metric) {
  if (value === null || value === undefined) return "–";
  if (metric?.share) return (100 * value).toFixed(Math.abs(value) < 0.01 && value !== 0 ? 2 : 1) + "%";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e7 || size < 1e-3) {
    const [digits, power] = value.toExponential(2).replace("+", "").split("e");
    return `${digits.replace("-", "−")} × 10${[...power].map((sign) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(sign)]).join("")}`;
  }
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(3))).replace("-", "−");
}

function lasting(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86400).toFixed(1)} days`;
}

const level = (value) => (value === null || value === undefined ? "–" : value.toFixed(3));

const MEANINGS = {
  starting: "Loads the model and starts the generators.",
  "warm start": "Supervised training of the lab's tiny model before RL begins, once per machine.",
  training: "Makes training steps.",
  evaluating: "Measures the pass rate on held-out prompts; training continues afterwards.",
  saving: "Writes a checkpoint or the final model.",
  waiting: "The process is alive, but no step has finished for a while.",
  finished: "The run is complete.",
  stopped: "Stopped with a checkpoint; scalerl resume continues it.",
  failed: "Ended by an error.",
  dead: "No sign of life; scalerl resume continues it.",
  unreadable: "Its files cannot be read.",
};

const ALIVE = ["starting", "warm start", "training", "evaluating", "saving", "waiting"];

const badge = (run) => el("span", { class: `badge ${run.state in MEANINGS ? run.state : "dead"}`, title: MEANINGS[run.state] ?? "" }, run.state);

function progress(run) {
  const words = [`step ${run.step} of ${run.steps}`];
  if (run.step_s !== null && ALIVE.includes(run.state)) {
    words.push(`${shown(run.step_s)} s per step`);
    if (run.left_s !== null) words.push(`${lasting(run.left_s)} left`);
  }
  return words.join(" · ");
}
