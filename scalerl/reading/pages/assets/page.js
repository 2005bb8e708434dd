// Draws a page from its JSON (reading/pages/page.py), one function for each kind of block. All text becomes text nodes.
"use strict";

const GROUPS = {
  learning: "Learning",
  staleness: "Staleness and mismatch",
  lengths: "Lengths",
  speed: "Speed and cost",
  occupancy: "Occupancy and failures",
};

const capital = (text) => text.slice(0, 1).toUpperCase() + text.slice(1);
const idOf = (text) => text.toLowerCase().replace(/[^a-z0-9]+/g, "-");
const swatch = (color) => (color ? el("span", { class: `swatch ${color.slice(1)}`, "aria-hidden": "true" }) : null);
const warnings = (texts, label) => (texts?.length ? el("ul", { class: "warnings", "aria-label": label }, texts.map((text) => el("li", {}, text))) : null);

function card(one) {
  return el("article", { class: "card" }, el("h3", {}, swatch(one.color), one.title),
    one.big ? el("p", { class: `big ${one.words ? "words" : ""}` }, one.big) : null,
    one.lines.map((line, at) => el("p", { class: one.big ? "muted" : null }, at === 0 && one.strong ? [el("span", { class: "word" }, one.strong), " "] : null, line)),
    warnings(one.notes, `Notes about ${one.title}`));
}

function group(one) {
  const items = one.items.map((item) => el("li", {}, swatch(item.color), el("b", {}, item.name), item.text, item.details.map((text) => el("small", {}, text))));
  return el("article", { class: "card" }, el("h3", {}, one.title), one.text ? el("p", { class: "word" }, one.text) : null,
    el("ul", { class: "verdicts" }, items.length ? items : el("li", {}, "No arm.")));
}

// unknown keys come last in both directions
function sorted(rows, [column, ascending]) {
  const direction = ascending ? 1 : -1;
  return [...rows].sort((a, b) => {
    const [one, two] = [a[column].key, b[column].key];
    if (one === null || two === null) return (one === null) - (two === null);
    return direction * (typeof one === "number" && typeof two === "number" ? one - two : String(one).localeCompare(String(two), "en", { numeric: true }));
  });
}

function tableOf(block, view) {
  const id = `table-${idOf(block.title)}`;
  const order = view.orders.get(block.title);
  const cell = (tag, one) => el(tag, tag === "th" ? { scope: "row" } : {}, swatch(one.color), el("span", { class: one.words ? "words" : null }, one.text), one.small ? el("small", {}, one.small) : null);
  const heads = block.columns.map((name, at) => {
    const state = order?.[0] === at ? (order[1] ? "ascending" : "descending") : null;
    return el("th", { scope: "col", "aria-sort": state }, el("button", { type: "button", "data-sort": block.title, "data-column": at }, name));
  });
  const rows = order ? sorted(block.rows, order) : block.rows;
  return el("section", {}, el("h2", { id }, block.title),
    el("p", { class: "muted" }, block.about || `${block.rows.length > 1 ? "Click a heading to sort by it. " : ""}Small figures are 90% intervals.`),
    el("div", { class: "scroll", role: "region", "aria-labelledby": id, tabindex: "0" },
      el("table", { class: "sortable" }, el("thead", {}, el("tr", {}, heads)),
        el("tbody", {}, rows.map(([first, ...rest]) => el("tr", {}, cell("th", first), rest.map((one) => cell("td", one))))))));
}

function figureOf(one, view, heading) {
  const open = Object.entries(one.choices).filter(([, options]) => Object.keys(options).length > 1);
  const choices = open.map(([choice, options], number) => {
    const id = `choose-${one.name}-${number}`;
    const chosen = view.chosen(one, choice);
    return el("span", {}, el("label", { for: id }, choice), " ",
      el("select", { id, "data-figure": one.name, "data-choice": choice }, Object.keys(options).map((option) => el("option", { value: option, selected: option === chosen }, option))));
  });
  return el("figure", { class: one.wide ? "wide" : null, "aria-labelledby": `title-${one.name}`, "data-key": one.name },
    el("figcaption", {}, el(heading, { id: `title-${one.name}` }, one.title), el("p", {}, one.caption)),
    choices.length ? el("p", { class: "choices" }, choices) : null,
    el("div", { class: "plot", id: `plot-${one.name}`, "data-keep": true, role: "img", "aria-labelledby": `title-${one.name}` }));
}

function tile(metric) {
  return el("button", { type: "button", class: `tile ${metric.level}`, "data-large": metric.name, "data-key": metric.name, "data-arrow": true },
    el("span", { class: "label" }, metric.label),
    el("span", { class: "value" }, shown(metric.last, metric), metric.unit && metric.last !== null ? el("small", {}, ` ${metric.unit}`) : null),
    spark(metric),
    metric.level ? el("span", { class: "flag" }, metric.level === "bad" ? "unstable" : "caution") : null,
    el("span", { class: "meaning" }, metric.meaning));
}

// The metrics that matter first, with those that need attention, and the others in groups that can be opened
function metricsOf({ metrics }) {
  if (!metrics.length) return el("p", { class: "muted" }, "No metrics yet; the first step writes some.");
  const tiles = (some) => el("div", { class: "tiles", "data-arrows": true }, some.map(tile));
  const first = metrics.filter((one) => one.main || one.level);
  const others = metrics.filter((one) => !first.includes(one));
  const closed = metrics.some((one) => one.main);
  return [
    first.length ? el("section", { "data-key": "first" }, el("h2", {}, "Training at a glance"), tiles(first)) : null,
    [...new Set(others.map((one) => one.group))].map((name) => {
      const some = others.filter((one) => one.group === name);
      return el("details", { class: "metrics", "data-key": name, open: !closed },
        el("summary", {}, GROUPS[name] ?? capital(name), el("small", {}, ` ${some.length}`)), tiles(some));
    }),
  ];
}

function stateOf({ run }) {
  return [
    el("p", { class: "stateline" }, badge(run), " ", el("span", {}, [MEANINGS[run.state], capital(run.detail)].filter(Boolean).join(" "))),
    el("div", { class: "progress" },
      el("progress", { max: Math.max(run.steps, 1), value: run.step, "aria-label": "Steps done" }), el("span", {}, progress(run))),
    el("p", { class: "tools" }, frozen ? null : [el("a", { class: "button", href: `#/run/${run.id}/rollouts` }, "Browse rollouts"), " "], el("span", { class: "muted path" }, run.path)),
  ];
}

const BLOCKS = {
  state: stateOf,
  notes: (block) => warnings(block.notes, "Warnings"),
  text: (block) => [block.title ? el("h2", {}, block.title) : null, el("p", {}, block.text)],
  verdict: (block) => el("div", { class: "card verdict" }, el("p", { class: "sentence" }, block.sentence),
    (block.legend ?? []).map((one) => el("p", {}, swatch(one.color), one.text)),
    (block.lines ?? []).map((line) => el("p", {}, line)),
    warnings(block.notes, "Notes")),
  cards: (block) => el("div", { class: `cards ${block.size}` }, block.cards.map(card)),
  groups: (block) => el("div", { class: "cards groups" }, block.groups.map(group)),
  table: tableOf,
  figures: (block, view) => el("section", {}, el("h2", {}, block.title), el("div", { class: "figures" }, block.figures.map((one) => figureOf(one, view, "h3")))),
  metrics: metricsOf,
  runs: (block, view) => {
    const runs = frozen ? [] : runsOf(view.id);
    return runs.length ? [el("h2", {}, "Runs of the study"), runTable(runs)] : null;
  },
  terms: (block) => [el("h2", {}, "How to read the numbers"),
    el("dl", { class: "terms" }, Object.entries(block.terms).flatMap(([term, meaning]) => [el("dt", {}, term), el("dd", {}, `${meaning}.`)]))],
  fields: (block) => Object.keys(block.fields).length ? [el("h2", {}, block.title),
    el("details", {}, el("summary", {}, block.about),
      el("table", {}, el("tbody", {}, Object.entries(block.fields).map(([name, value]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", { class: "value" }, value))))))] : null,
};

// kind: run, compare, study or log; versionOf returns what changes with its data
function documentPage(kind, id, versionOf) {
  let page = null;
  let version = null;
  const choices = new Map();
  const view = {
    id,
    orders: new Map(), // title of a table -> [column, ascending]
    title: () => page?.title ?? "",
    async load() {
      const now = versionOf();
      if (page && now === version) return; // changes of other runs need no request
      version = now;
      try {
        page = frozen ? frozen.page : await ask(`/api/page/${kind}/${id}`);
      } catch (error) {
        if (!error.message.startsWith("404")) throw error;
        page = { title: "No such page", subtitle: "It may have been removed.", blocks: [] };
      }
    },
    render() {
      if (!page) return [el("p", { class: "muted" }, "loading …")];
      return [
        el("h1", {}, page.title),
        page.subtitle ? el("p", { class: "muted about" }, page.subtitle) : null,
        page.blocks.map((block, at) => el("div", { class: "block", "data-key": `${at}-${block.kind}` }, BLOCKS[block.kind](block, view))),
      ];
    },
    draw() {
      for (const block of page?.blocks ?? [])
        if (block.kind === "figures") for (const one of block.figures) drawFigure(one, view);
    },
    chosen: (one, choice) => choices.get(`${one.name} ${choice}`) ?? Object.keys(one.choices[choice])[0],
    choose(name, choice, option) {
      choices.set(`${name} ${choice}`, option);
      if (name === "large") drawFigure(view.large, view);
      else view.draw();
    },
    sort(title, column) {
      const before = view.orders.get(title);
      view.orders.set(title, [column, !(before?.[0] === column && before[1])]);
    },
    async figure(name, from, to) {
      return frozen ? frozen.series[name] : ask(`/api/runs/${id}/series`, { name, from, to });
    },
  };
  return view;
}

// One metric in a dialog; zooming requests the visible steps at full resolution.
async function showLarge(view, name) {
  const dialog = document.getElementById("large");
  const close = el("button", { type: "button", class: "plain", "data-close": true }, "Close");
  view.large = await view.figure(name, null, null);
  dialog.replaceChildren(figureOf(view.large, view, "h2"), el("p", { class: "tools" }, close));
  if (!dialog.open) dialog.showModal();
  await plotly(); // without it `place.on` does not exist yet
  drawFigure(view.large, view);
  if (frozen) return;
  let asked = "";
  document.getElementById("plot-large").on("plotly_relayout", async (change) => {
    const [from, to] = [change["xaxis.range[0]"] ?? null, change["xaxis.range[1]"] ?? null];
    if ((from === null && !change["xaxis.autorange"]) || asked === `${from} ${to}`) return;
    asked = `${from} ${to}`;
    try {
      view.large = await view.figure(name, from, to);
      drawFigure(view.large, view);
    } catch (error) {
      complain(error);
    }
  });
}
