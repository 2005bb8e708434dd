// The list of runs, the comparison of runs, and studies.
"use strict";

const chosen = new Set(); // ids of the runs to compare

function forecastCell(run) {
  const tasks = Object.entries(run.tasks);
  if (!tasks.length) return [el("span", { class: "muted" }, "no evaluation yet")];
  return tasks.map(([task, found]) => {
    const label = tasks.length > 1 ? `${task}: ` : "";
    if (!found.fit) return el("span", { class: "muted block" }, `${label}fitting …`);
    if (found.fit.problem) return el("span", { class: "muted block" }, `${label}${tooEarly(found)}`);
    const [mean, low, high] = found.fit.twice;
    return el("span", { class: "block" }, `${label}${level(mean)}`, el("small", {}, `${level(low)} to ${level(high)}`));
  });
}

const tooEarly = (found) => (found.evaluations < 5 ? `starts at the 5th evaluation (${found.evaluations} so far)` : found.fit.problem);

function passCell(run) {
  const tasks = Object.entries(run.tasks);
  if (!tasks.length) return ["–"];
  return tasks.map(([task, found]) =>
    el("span", { class: "block" }, (tasks.length > 1 ? `${task}: ` : "") + level(found.pass_rate), found.stderr === null ? "" : el("small", {}, `± ${level(found.stderr)}`)));
}

function adviceCell(run) {
  const words = Object.values(run.tasks).map((found) => found.fit?.action).filter(Boolean);
  const warned = run.warnings.length ? el("span", { class: "flag" }, run.warnings.length === 1 ? "1 warning" : `${run.warnings.length} warnings`) : null;
  return [[...new Set(words)].join(", ") || "–", " ", warned];
}

function runTable(runs) {
  const ids = [...chosen].filter((id) => known.runs.has(id));
  const heads = ["Compare", "Run", "State", "Step", "Pass rate", "Forecast at 2×", "Advice"];
  const rows = runs.map((run) =>
    el("tr", { "data-key": run.id },
      el("td", { class: "tick" }, el("input", { type: "checkbox", "data-compare": run.id, "aria-label": `Compare ${run.name}` })),
      el("th", { scope: "row" }, el("a", { href: `#/run/${run.id}`, "data-arrow": true, title: run.path }, run.name)),
      el("td", { "data-label": "State" }, badge(run), run.detail ? el("small", { class: "clip" }, run.detail) : null),
      el("td", { class: "whole", "data-label": "Step" }, `${run.step}/${run.steps}`, run.left_s !== null ? el("small", {}, `${lasting(run.left_s)} left`) : null),
      el("td", { "data-label": "Pass rate" }, passCell(run)),
      el("td", { "data-label": "Forecast at 2×" }, forecastCell(run)),
      el("td", { "data-label": "Advice" }, adviceCell(run)),
    ));
  return [
    el("div", { class: "scroll" }, el("table", { class: "runs", "data-arrows": true },
      el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col" }, head)))), el("tbody", {}, rows))),
    known.runs.size > 1 ? el("p", { class: "tools" }, ids.length > 1
      ? el("a", { class: "button", href: `#/compare/${ids.join(",")}` }, `Compare ${ids.length} runs`)
      : el("span", { class: "muted" }, "Select two or more runs to compare them.")) : null,
    el("p", { class: "muted" }, "The pass rate is the share of correct answers to held-out prompts, ± one standard error. The forecast is the pass rate expected at twice the compute of the last evaluation, with its 90% interval."),
  ];
}

const ORDER = [...ALIVE, "failed", "dead", "stopped", "unreadable", "finished"];

// a run keeps its position while its state changes between training, evaluating and saving
const rank = (run) => (ALIVE.includes(run.state) ? 0 : ORDER.indexOf(run.state));

const sorted = (runs) =>
  runs.sort((a, b) => rank(a) - rank(b) || a.name.localeCompare(b.name, "en", { numeric: true }));

const counted = (runs) =>
  ORDER.map((state) => [runs.filter((run) => run.state === state).length, state]).filter(([count]) => count)
    .map(([count, state]) => `${count} ${state}`).join(", ");

const runsOf = (study) => sorted([...known.runs.values()].filter((run) => run.study === study.id));

const listPage = {
  title: () => "Runs",
  render() {
    const runs = sorted([...known.runs.values()]);
    const alone = runs.filter((run) => !run.study);
    const words = runs.length ? `${runs.length === 1 ? "1 run" : `${runs.length} runs`}: ${counted(runs)}` + (alone.length < runs.length ? `; ${runs.length - alone.length} of them belong to studies` : "") : "No runs yet. Type in another terminal, in the same directory: scalerl train. The run appears here when it starts, in a few seconds.";
    return [
      el("h1", {}, "Runs"),
      el("p", { class: "muted" }, words),
      alone.length ? runTable(alone) : null,
      known.studies.size ? [
        el("h2", {}, "Studies"),
        el("div", { class: "cards", "data-arrows": true }, [...known.studies.values()].map((study) =>
          el("article", { class: "card", "data-key": study.id },
            el("h3", {}, el("a", { href: `#/study/${study.id}`, "data-arrow": true }, study.name)),
            el("p", {}, study.sentence || study.problem || "comparing …"),
            el("p", { class: "muted" }, `Runs: ${counted(runsOf(study)) || "none yet"}.`)))),
      ] : null,
      known.problems.map((text) => el("p", { class: "warnings" }, text)),
    ];
  },
};

function comparePage(ids, parameters) {
  const runs = () => ids.map((id) => known.runs.get(id)).filter(Boolean);
  const name = parameters.get("metric") || "pass_rate";
  const [curves, series] = [new Map(), new Map()];
  let configs = null;
  let metrics = [];
  return {
    title: () => "Comparison of runs",
    async load() {
      const own = runs();
      if (!configs) configs = await Promise.all(own.map((run) => ask(`/api/runs/${run.id}/config`).then((found) => found.fields)));
      if (!metrics.length && own.length) metrics = (await ask(`/api/runs/${own[0].id}/metrics`)).metrics;
      await Promise.all(own.map(async (run) => {
        if (series.get(run.id)?.version === run.version) return;
        const task = Object.keys(run.tasks)[0];
        const [curve, found] = await Promise.all([
          task === undefined ? null : ask(`/api/runs/${run.id}/curve`, { task }),
          ask(`/api/runs/${run.id}/series`, { name }),
        ]);
        if (curve) curves.set(run.id, curve);
        series.set(run.id, { ...found, name: run.name, version: run.version });
      }));
    },
    render() {
      const metric = metrics.find((one) => one.name === name);
      const options = metrics.map((one) => el("option", { value: one.name, selected: one.name === name }, `${one.group}: ${one.label}`));
      return [
        el("h1", {}, "Comparison of runs"),
        el("ul", { class: "legend" }, runs().map((run, number) =>
          el("li", {}, el("span", { class: `swatch s${number % 8}`, "aria-hidden": "true" }), el("a", { href: `#/run/${run.id}` }, run.name), " ", badge(run)))),
        el("figure", {}, el("figcaption", {}, el("h2", {}, "Curves and forecasts"),
          el("p", {}, "Dots are held-out evaluations with one standard error. Lines are fits with 90% bands; dashed parts are forecasts.")),
          el("div", { class: "plot", id: "curves", "data-keep": true, role: "img", "aria-label": "Curves and forecasts" })),
        el("figure", {}, el("figcaption", {}, el("h2", {}, "One metric of all runs"), el("p", {}, metric ? sentence(metric) : "")),
          el("p", { class: "choices" }, el("label", { for: "metric" }, "Metric "), el("select", { id: "metric", "data-metric": ids.join(",") }, options)),
          el("div", { class: "plot", id: "metrics", "data-keep": true, role: "img", "aria-label": "One metric of all runs" })),
        el("h2", {}, "Differences between their configurations"),
        configs ? differences(runs(), configs) : null,
      ];
    },
    draw() {
      const own = runs();
      const found = own.filter((run) => curves.has(run.id)).map((run) => ({ found: curves.get(run.id), name: run.name }));
      if (found.length) curveFigure(document.getElementById("curves"), found, true);
      const metric = metrics.find((one) => one.name === name);
      const all = own.map((run) => series.get(run.id)).filter(Boolean);
      if (metric && all.length) seriesFigure(document.getElementById("metrics"), all, metric, false);
    },
  };
}

function differences(runs, configs) {
  const names = [...new Set(configs.flatMap(Object.keys))];
  const rows = names.map((name) => [name, configs.map((fields) => fields[name] ?? "–")]).filter(([, values]) => new Set(values).size > 1);
  if (!rows.length) return el("p", {}, "None: the configurations are equal.");
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Differences" }, el("table", {},
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Field"), runs.map((run) => el("th", { scope: "col" }, run.name)))),
    el("tbody", {}, rows.map(([name, values]) => el("tr", {}, el("th", { scope: "row" }, name), values.map((value) => el("td", { class: "value" }, value)))))));
}

function studyPage(id) {
  const arm = (one) => el("li", {},
    el("span", { class: `swatch ${one.color.slice(1)}`, "aria-hidden": "true" }), el("b", {}, one.name),
    one.sentence.startsWith(one.name) ? one.sentence.slice(one.name.length) : one.sentence,
    el("small", {}, [
      one.ceiling ? `ceiling ${interval(one.ceiling)}` : "no ceiling yet",
      `${one.done} of ${one.seeds} seeds done`,
      `steps ${one.steps.map(([step, steps]) => `${step}/${steps}`).join(", ")}`,
    ].join(" · ")),
    one.about ? el("small", {}, one.about) : null,
    one.problems.map((text) => el("small", {}, text)));
  return {
    title: () => known.studies.get(id)?.name ?? "Study",
    render() {
      const study = known.studies.get(id);
      if (!study) return [el("h1", {}, "No such study")];
      const runs = runsOf(study);
      return [
        el("h1", {}, `Study: ${study.name}`),
        study.about ? el("p", { class: "muted" }, study.about) : null,
        study.problem ? el("p", { class: "warnings" }, study.problem) : null,
        el("div", { class: "card verdict" }, el("p", { class: "sentence" }, study.sentence || "The verdicts are being computed …")),
        study.notes.length ? el("ul", { class: "warnings" }, study.notes.map((note) => el("li", {}, note))) : null,
        study.figure ? el("figure", {}, el("figcaption", {}, el("h2", {}, study.figure.title), el("p", {}, study.figure.caption)),
          el("div", { class: "plot", id: "frontier", "data-keep": true, role: "img", "aria-label": study.figure.title })) : null,
        el("div", { class: "cards groups" }, study.groups.map((group) => el("article", { class: "card" }, el("h3", {}, group.title),
          group.excluded ? el("p", { class: "word" }, group.excluded) : null, el("ul", { class: "verdicts" }, group.arms.map(arm))))),
        runs.length ? [el("h2", {}, "Runs of the study"), runTable(runs)] : null,
      ];
    },
    draw() {
      const shown = known.studies.get(id)?.figure;
      if (!shown) return;
      figure(document.getElementById("frontier"), shown.data, merged(shown.layout, shown.choices["Compute axis"].logarithmic.layout));
    },
  };
}
