// The list of runs, logs and studies.
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

const inOrder = (runs) =>
  runs.sort((a, b) => rank(a) - rank(b) || a.name.localeCompare(b.name, "en", { numeric: true }));

const counted = (runs) =>
  ORDER.map((state) => [runs.filter((run) => run.state === state).length, state]).filter(([count]) => count)
    .map(([count, state]) => `${count} ${state}`).join(", ");

const runsOf = (study) => inOrder([...known.runs.values()].filter((run) => run.study === study));

const listPage = {
  title: () => "Runs",
  render() {
    const runs = inOrder([...known.runs.values()]);
    const alone = runs.filter((run) => !run.study);
    const none = known.logs.size ? "No runs." : "No runs yet. Type in another terminal, in the same directory: scalerl train. The run appears here when it starts, in a few seconds.";
    const words = runs.length ? `${runs.length === 1 ? "1 run" : `${runs.length} runs`}: ${counted(runs)}` + (alone.length < runs.length ? `; ${runs.length - alone.length} of them belong to studies` : "") : none;
    return [
      el("h1", {}, "Runs"),
      el("p", { class: "muted" }, words),
      known.problems.map((text) => el("p", { class: "warnings" }, text)),
      alone.length ? runTable(alone) : null,
      known.logs.size ? [
        el("h2", {}, "Logs"),
        el("div", { class: "cards", "data-arrows": true }, [...known.logs.values()].map((log) =>
          el("article", { class: "card", "data-key": log.id },
            el("h3", {}, el("a", { href: `#/log/${log.id}`, "data-arrow": true, title: log.path }, log.name)),
            log.sentence ? el("p", {}, log.sentence) : null,
            log.detail ? el("p", { class: "muted" }, `${capital(log.state)}: ${log.detail}.`) : null))),
      ] : null,
      known.studies.size ? [
        el("h2", {}, "Studies"),
        el("div", { class: "cards", "data-arrows": true }, [...known.studies.values()].map((study) =>
          el("article", { class: "card", "data-key": study.id },
            el("h3", {}, el("a", { href: `#/study/${study.id}`, "data-arrow": true }, study.name)),
            el("p", {}, study.sentence || study.problem || "comparing …"),
            el("p", { class: "muted" }, `Runs: ${counted(runsOf(study.id)) || "none yet"}.`)))),
      ] : null,
    ];
  },
};
