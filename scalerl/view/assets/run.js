// One run: state, curve with forecast, and all metrics.
"use strict";

const GROUPS = {
  learning: "Learning",
  staleness: "Staleness and mismatch",
  lengths: "Lengths",
  speed: "Speed and cost",
  occupancy: "Occupancy and failures",
};

const TERMS = {
  "prompt, rollout, group": "a task, one sampled answer to it with its reasoning, and all rollouts of one prompt",
  "pass rate": "share of rollouts whose answer the verifier accepts",
  "held-out": "measured on prompts that the model is not trained on",
  "generator, trainer": "the process that samples rollouts, and the one that updates the weights with them, at the same time",
  "staleness": "number of updates between sampling a token and training on it",
  "forecast": "expected pass rate with more compute; its interval contains the later value in nine of ten cases",
  "ceiling": "pass rate that the fitted curve approaches with unlimited compute",
};

const capital = (text) => text.slice(0, 1).toUpperCase() + text.slice(1);
const sentence = (metric) => capital(metric.meaning) + (metric.unit ? ` (${metric.unit}).` : ".");

function forecastCards(task, found, several) {
  const fit = found.fit;
  const of = several ? ` of ${task}` : "";
  const now = el("article", { class: "card" }, el("h3", {}, `Pass rate${of}`), el("p", { class: "big" }, level(found.pass_rate)),
    el("p", { class: "muted" }, `${found.stderr === null ? "" : `± ${level(found.stderr)} (one standard error), `}held-out, at step ${found.step}; ${found.evaluations} evaluations`));
  if (!fit) return [now, el("article", { class: "card" }, el("h3", {}, `Forecast${of}`), el("p", {}, "fitting …"))];
  if (fit.problem)
    return [now, el("article", { class: "card" }, el("h3", {}, `Forecast${of}`), el("p", {}, `None yet: ${fit.problem}.`))];
  return [
    now,
    el("article", { class: "card" }, el("h3", {}, `Forecast${of} at twice the compute`), el("p", { class: "big" }, level(fit.twice[0])),
      el("p", { class: "muted" }, `${level(fit.twice[1])} to ${level(fit.twice[2])} with 90% probability; at four times ${interval(fit.four)}`)),
    el("article", { class: "card" }, el("h3", {}, `Ceiling${of}`), el("p", { class: "big" }, fit.identified ? level(fit.ceiling[0]) : "not known yet"),
      el("p", { class: "muted" }, fit.identified
        ? `${level(fit.ceiling[1])} to ${level(fit.ceiling[2])} with 90% probability: the limit of the fitted curve. Forecasts are wider, because a run may leave its curve.`
        : `Only a range: ${level(fit.ceiling[1])} to ${level(fit.ceiling[2])}, because ${fit.reason}`)),
    el("article", { class: "card" }, el("h3", {}, `Advice${of}`), el("p", { class: "big words" }, fit.advice.split(": ")[0]), el("p", { class: "muted" }, capital(fit.advice.slice(fit.advice.indexOf(": ") + 2)))),
  ];
}

function tile(metric) {
  return el("button", { type: "button", class: `tile ${metric.level}`, "data-large": metric.name, "data-key": metric.name, "data-arrow": true },
    el("span", { class: "label" }, metric.label),
    el("span", { class: "value" }, shown(metric.last, metric), metric.unit && metric.last !== null ? el("small", {}, ` ${metric.unit}`) : null),
    spark(metric),
    metric.level ? el("span", { class: "flag" }, metric.level === "bad" ? "unstable" : "caution") : null,
    el("span", { class: "meaning" }, metric.meaning));
}

function runPage(id) {
  const curves = new Map();
  let metrics = null;
  let version = -1; // version requested last: changes of other runs need no request
  let logarithmic = false;
  const run = () => known.runs.get(id);
  const place = (task) => `curve-${Object.keys(run().tasks).indexOf(task)}`;
  return {
    title: () => run()?.name ?? "Run",
    async load() {
      if (!run() || run().version === version) return;
      version = run().version;
      const [found, ...rest] = await Promise.all([
        ask(`/api/runs/${id}/metrics`),
        ...Object.keys(run().tasks).map((task) => ask(`/api/runs/${id}/curve`, { task }).then((curve) => curves.set(task, curve))),
      ]);
      metrics = found.metrics;
    },
    render() {
      const own = run();
      if (!own) return [el("h1", {}, "No such run")];
      const tasks = Object.entries(own.tasks);
      const fallen = own.warnings.some((text) => text.includes("has fallen by"));
      const ofFits = tasks.flatMap(([, found]) => found.fit?.warnings ?? []).filter((text) => !(fallen && text.startsWith("decline:")));
      const warned = [...own.warnings, ...ofFits];
      return [
        el("h1", {}, own.name),
        el("p", { class: "stateline" }, badge(own), " ", el("span", {}, [MEANINGS[own.state], capital(own.detail)].filter(Boolean).join(" "))),
        el("div", { class: "progress" },
          el("progress", { max: Math.max(own.steps, 1), value: own.step, "aria-label": "Steps done" }), el("span", {}, progress(own))),
        own.about ? el("p", { class: "muted about" }, own.about) : null,
        el("p", { class: "tools" }, el("a", { class: "button", href: `#/run/${id}/rollouts` }, "Browse rollouts"), " ", el("span", { class: "muted path" }, own.path)),
        warned.length ? el("ul", { class: "warnings", "aria-label": "Warnings" }, warned.map((text) => el("li", {}, text))) : null,
        el("div", { class: "cards four" }, tasks.flatMap(([task, found]) => forecastCards(task, found, tasks.length > 1))),
        tasks.map(([task]) => el("figure", { "data-key": task },
          el("figcaption", {}, el("h2", {}, tasks.length > 1 ? `Curve and forecast of ${task}` : "Curve and forecast"),
            el("p", {}, "Dots are held-out evaluations with one standard error. " + (run().tasks[task].fit?.twice
              ? "The line is the fitted curve with its 90% band; the dashed part is the forecast. The mark on the right is the ceiling."
              : "A curve is fitted and continued as a forecast from the fifth evaluation on."))),
          el("p", { class: "choices" }, el("label", {}, el("input", { type: "checkbox", "data-log": true }), " logarithmic compute")),
          el("div", { class: "plot", id: place(task), "data-keep": true, role: "img", "aria-label": `Curve and forecast of ${task}` }))),
        metrics === null ? el("p", { class: "muted" }, "loading metrics …")
          : metrics.length === 0 ? el("p", { class: "muted" }, "No metrics yet; the first step writes some.")
          : [...new Set(metrics.map((one) => one.group))].map((group) => el("section", { "data-key": group }, el("h2", {}, GROUPS[group] ?? capital(group)),
              el("div", { class: "tiles", "data-arrows": true }, metrics.filter((one) => one.group === group).map(tile)))),
        el("h2", {}, "Terms"),
        el("dl", { class: "terms" }, Object.entries(TERMS).flatMap(([term, meaning]) => [el("dt", {}, term), el("dd", {}, meaning)])),
        el("h2", {}, "Configuration"),
        el("details", { "data-config": id }, el("summary", {}, "All fields of config.toml"), el("div", { id: "config", "data-keep": true }, "")),
      ];
    },
    draw() {
      if (!run()) return;
      for (const task of Object.keys(run().tasks))
        if (curves.has(task)) curveFigure(document.getElementById(place(task)), [{ found: curves.get(task), name: run().name }], logarithmic);
    },
    scale(on) {
      logarithmic = on;
      this.draw();
    },
    metric: (name) => metrics.find((one) => one.name === name),
    id,
  };
}

async function showConfig(id) {
  const place = document.getElementById("config");
  const { fields } = await ask(`/api/runs/${id}/config`);
  place.replaceChildren(el("table", {}, el("tbody", {}, Object.entries(fields).map(([name, value]) =>
    el("tr", {}, el("th", { scope: "row" }, name), el("td", { class: "value" }, value))))));
}

// One metric in a dialog; zooming requests the visible steps at full resolution.
async function showLarge(view, name, logarithmic) {
  const dialog = document.getElementById("large");
  const metric = view.metric(name);
  const close = el("button", { type: "button", class: "plain", "data-close": true }, "Close");
  const scale = el("label", {}, el("input", { type: "checkbox", "data-large-log": name }), " logarithmic");
  const place = el("div", { class: "plot" });
  const title = el("h2", { id: "large-title" }, `${metric.label}: ${shown(metric.last, metric)} ${metric.unit}`);
  dialog.replaceChildren(title, el("p", {}, sentence(metric) + " The band is the range over neighboring steps. Drag to zoom in, double-click to zoom out."), el("p", { class: "tools" }, scale, " ", close), place);
  if (!dialog.open) dialog.showModal();
  await plotly(); // without it `place.on` does not exist yet
  const draw = async (from, to) => {
    const found = await ask(`/api/runs/${view.id}/series`, { name, from, to });
    seriesFigure(place, [{ ...found, name: metric.label }], metric, scale.firstChild.checked);
  };
  scale.firstChild.addEventListener("change", () => draw(null, null));
  await draw(null, null);
  let asked = "";
  place.on("plotly_relayout", (change) => {
    const [from, to] = [change["xaxis.range[0]"] ?? null, change["xaxis.range[1]"] ?? null];
    if ((from === null && !change["xaxis.autorange"]) || asked === `${from} ${to}`) return;
    asked = `${from} ${to}`;
    draw(from, to).catch(complain);
  });
}
