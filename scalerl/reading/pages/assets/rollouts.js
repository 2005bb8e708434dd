// Rollouts: search, tokens with their values, and groups side by side.
"use strict";

const FILTERS = [
  ["kind", "From", { evaluation: "evaluations", training: "training" }],
  ["step", "Step", "steps"],
  ["task", "Task", "tasks"],
  ["passed", "Verdict", { "": "any", true: "passed", false: "failed" }],
  ["truncated", "Truncated", { "": "any", true: "yes", false: "no" }],
  ["interrupted", "Interrupted", { "": "any", true: "yes", false: "no" }],
  ["ended", "Ended by", { "": "any", stop: "stop token", tokens: "length limit", turns: "limit of turns", environment: "environment", problem: "problem" }],
  ["least_reward", "Reward from", "number"],
  ["most_reward", "Reward to", "number"],
  ["least_tokens", "Tokens from", "number"],
  ["most_tokens", "Tokens to", "number"],
  ["text", "Text", "search"],
];

function control(name, label, kind, value, found) {
  const id = `filter-${name}`;
  let input;
  if (kind === "number" || kind === "search")
    input = el("input", { id, type: kind, name, value, step: "any", "data-filter": true, placeholder: kind === "search" ? "in prompt, text or reason" : "any" });
  else {
    const options = typeof kind === "string" ? Object.fromEntries([["", "any"], ...(found?.[kind] ?? []).map((one) => [one, one])]) : kind;
    // objects order numeric keys first, so "any" is removed and put back in front
    const entries = Object.entries(options).filter(([key]) => key !== "");
    if (kind === "steps") entries.reverse();
    if ("" in options) entries.unshift(["", options[""]]);
    input = el("select", { id, name, "data-filter": true }, entries.map(([key, words]) => el("option", { value: key, selected: key === value }, String(words))));
  }
  return el("span", { class: `filter ${kind === "search" ? "wide" : ""}` }, el("label", { for: id }, label), input);
}

const verdict = (row) => row.passed === null ? el("span", { class: "badge" }, "no reward")
  : el("span", { class: `badge ${row.passed ? "passed" : "wrong"}` }, row.passed ? "passed" : "failed");
const marks = (row) => [row.truncated && "truncated", row.interrupted && "interrupted",
  row.environment && `${row.environment.turns} turns, ${row.environment.calls} calls, ended by: ${row.ended}`].filter(Boolean).map((word) => el("span", { class: "flag" }, word));

function injected(text) {
  return text.split(/(⟦[^⟧]*⟧)/).map((part) =>
    part.startsWith("⟦") ? el("mark", { class: "injected", title: "inserted, not sampled" }, part.slice(1, -1)) : part);
}

function tint(by, staleness, ratio, oldest) {
  if (by === "staleness" && staleness !== null) return staleness === 0 ? "" : `age${Math.max(1, Math.ceil((5 * staleness) / Math.max(oldest, 1)))}`;
  if (by === "ratio" && ratio !== null && Math.abs(ratio) >= 0.01)
    return `${ratio > 0 ? "more" : "less"}${Math.min(5, Math.max(1, Math.ceil(Math.log2(Math.abs(ratio) / 0.01) / 1.5)))}`;
  return "";
}

function tokens(row, by) {
  const detail = row.token_detail;
  if (!detail) return el("div", { class: "text" }, injected(row.completion ?? ""));
  const oldest = Math.max(...detail.staleness.filter((age) => age !== null), 1);
  const gap = detail.left_out ? detail.text.length / 2 : -1;
  return el("div", { class: "text" }, detail.text.flatMap((text, at) => {
    const [age, ratio] = [detail.staleness[at], detail.log_ratio[at]];
    const words = age === null ? "inserted, not sampled"
      : `token ${at < gap || gap < 0 ? at + 1 : at + 1 + detail.left_out}: staleness ${age}` + (ratio === null ? "" : `, log ratio ${ratio.toFixed(3)}`);
    const node = age === null ? el("mark", { class: "injected", title: words }, text) : el("span", { class: tint(by, age, ratio, oldest) || null, title: words }, text);
    return at === gap ? [el("span", { class: "gap" }, ` … ${detail.left_out} tokens omitted … `), node] : [node];
  }));
}

function facts(row) {
  const words = [`reward ${shown(row.reward)}`, `${row.tokens} tokens`, `weights of ${row.versions?.[0] === row.versions?.[1] ? `step ${row.versions?.[0]}` : `steps ${row.versions?.join(" to ")}`}`, `staleness ${row.staleness}`];
  if (row.log_ratio_min !== null && row.log_ratio_min !== undefined) words.push(`log ratio ${row.log_ratio_min.toFixed(3)} to ${row.log_ratio_max.toFixed(3)}`);
  return words.join(" · ");
}

function legendOf(by) {
  const key = (name, words) => el("span", { class: "key" }, el("span", { class: `chip ${name}`, "aria-hidden": "true" }, "a"), words);
  const own = by === "staleness" ? [key("age1", "sampled by fresh weights"), key("age5", "sampled by the oldest weights of this rollout")]
    : by === "ratio" ? [key("less5", "less likely under the trainer than under the generator"), key("more5", "more likely under the trainer")] : [];
  const meaning = by === "staleness" ? "Staleness is the number of updates between sampling a token and training on it."
    : by === "ratio" ? "The log ratio compares the probability of a token under trainer and generator (nats)." : "";
  return el("p", { class: "keys" }, key("injected", "inserted, not sampled"), own, el("span", {}, meaning));
}

function rolloutsPage(id, parameters) {
  const asked = Object.fromEntries(parameters);
  const [kind, row, by] = [asked.kind || "evaluation", asked.row ?? "", asked.by || "staleness"];
  const search = Object.fromEntries(FILTERS.map(([name]) => [name, asked[name] ?? ""]));
  let [found, group, problem] = [null, null, ""];
  const address = (changes) => `#/run/${id}/rollouts?${new URLSearchParams(Object.entries({ ...search, kind, row, by, start: asked.start ?? "", ...changes }).filter(([, value]) => value !== ""))}`;

  const item = (one) => el("li", { "data-key": String(one.row) },
    el("a", { href: address({ row: one.row }), "data-arrow": true, "aria-current": String(one.row) === row ? "true" : null },
      el("span", { class: "head" }, verdict(one), ` step ${one.step} · reward ${shown(one.reward)} · ${one.tokens} tokens `, marks(one)),
      el("span", { class: "excerpt" }, one.question.replaceAll("\n", " ")),
      el("span", { class: "excerpt muted" }, one.completion.replaceAll("\n", " ").slice(-90)),
      one.passed || !one.reason ? null : el("span", { class: "excerpt reason" }, one.reason)));

  const one = (own, alone) => el("article", { class: `rollout ${String(own.row) === row ? "this" : ""}`, "data-key": String(own.row) },
    el("p", { class: "head" }, verdict(own), ` ${alone ? "" : `#${own.sample ?? ""} `}`, marks(own)),
    el("p", { class: "why" }, own.reason || (own.passed ? "The verifier accepted it." : "The verifier gave no reason.")),
    el("p", { class: "muted" }, facts(own)),
    tokens(own, by));

  const reading = () => {
    const own = group?.find((other) => String(other.row) === row);
    if (!own) return el("p", { class: "muted" }, row === "" ? "Choose a rollout to read it." : "This rollout no longer exists, because the run was resumed from an earlier checkpoint.");
    const choices = { staleness: "staleness", ratio: "log ratio", none: "nothing" };
    return el("div", {},
      el("h2", {}, `Step ${own.step}, ${own.task}`),
      el("h3", {}, "Prompt"), el("div", { class: "text prompt" }, own.prompt),
      el("p", {}, el("b", {}, "Reference answer: "), el("span", { class: "answer" }, own.answer)),
      el("p", { class: "tools" }, el("label", { for: "by" }, "Color tokens by "),
        el("select", { id: "by", "data-by": true }, Object.entries(choices).map(([key, words]) => el("option", { value: key, selected: key === by }, words)))),
      legendOf(by),
      own.token_detail ? null : el("p", { class: "muted" }, "This rollout has no values per token; only rollouts that the trainer replayed have them."),
      el("h3", {}, group.length > 1 ? `Group: ${group.filter((other) => other.passed).length} of ${group.filter((other) => other.passed !== null).length} passed` : "Completion"),
      el("div", { class: "group", tabindex: "0", role: "region", "aria-label": "Rollouts of the group, side by side" },
        [own, ...group.filter((other) => other !== own)].map((other) => one(other, group.length === 1))));
  };

  return {
    title: () => `Rollouts of ${known.runs.get(id)?.name ?? "run"}`,
    slow: true, // rollouts are only written with evaluations
    async load() {
      if (!known.runs.has(id)) return;
      try {
        found = await ask(`/api/runs/${id}/rollouts`, { ...search, kind, start: asked.start ?? "" });
        group = row === "" ? null : (await ask(`/api/runs/${id}/group`, { kind, row })).rows;
        problem = "";
      } catch (error) {
        if (!/^4/.test(error.message)) throw error;
        problem = error.message.replace(/^\d+: /, "");
      }
    },
    render() {
      const run = known.runs.get(id);
      if (!run) return [el("h1", {}, "No such run")];
      const start = Number(asked.start ?? 0);
      return [
        el("h1", {}, "Rollouts of ", el("a", { href: `#/run/${id}` }, run.name)),
        run.about ? el("p", { class: "muted about" }, run.about) : null,
        el("form", { class: "filters", "data-filters": id, role: "search" }, FILTERS.map(([name, label, type]) => control(name, label, type, name === "kind" ? kind : search[name], found))),
        problem ? el("p", { class: "warnings" }, problem) : null,
        found === null ? el("p", { class: "muted" }, "loading …") : el("div", { class: "browse" },
          el("div", {}, el("p", { class: "muted", role: "status" }, found.all === 0 ? "No rollouts yet; the first evaluation writes some." : `${found.total} of ${found.all} rollouts`),
            el("ul", { class: "found", "data-arrows": true, "aria-label": "Rollouts" }, found.rows.map(item)),
            el("p", { class: "tools" }, start > 0 ? el("a", { class: "button", href: address({ start: Math.max(0, start - 50) || "" }) }, "Previous") : null, " ",
              start + found.rows.length < found.total ? el("a", { class: "button", href: address({ start: start + 50 }) }, "Next") : null)),
          el("div", { class: "reading", id: "reading" }, reading())),
      ];
    },
    filter(form) {
      const values = Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, value.trim()]));
      location.hash = address({ ...values, row: values.kind === kind ? row : "", start: "" });
    },
    color(value) {
      location.hash = address({ by: value });
    },
  };
}
