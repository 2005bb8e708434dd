// Follows the server's stream, selects the page by the address, and redraws it after changes. A frozen page has no
// server: its JSON is in the file.
"use strict";

const known = { runs: new Map(), studies: new Map(), logs: new Map(), problems: [] };
const main = document.getElementById("main");
const live = document.getElementById("live");
const LOAD_MS = 900; // minimum time between two requests of a page that changes all the time
let view = null;
let [loading, again, loaded] = [false, false, 0];

function viewOf(address) {
  if (frozen) return documentPage("", "", () => 0);
  const [path, query] = address.replace(/^#\/?/, "").split("?");
  const [kind, ids, part] = path.split("/");
  const parameters = new URLSearchParams(query ?? "");
  if (kind === "run" && part === "rollouts") return rolloutsPage(ids, parameters);
  const versions = () => ids.split(",").map((id) => (known.runs.get(id) ?? known.studies.get(id) ?? known.logs.get(id))?.version).join();
  if (["run", "compare", "study", "log"].includes(kind)) return documentPage(kind, ids, versions);
  return listPage;
}

function complain(error) {
  console.error(error);
  live.textContent = `something went wrong: ${error.message}`;
  live.className = "lost";
}

function render() {
  const fresh = el("main", { id: "main", tabindex: "-1" }, view.render());
  const link = document.activeElement?.getAttribute("href");
  morph(main, fresh);
  if (link && document.activeElement === document.body) // its row has moved
    main.querySelector(`[href="${CSS.escape(link)}"]`)?.focus({ preventScroll: true });
  for (const box of document.querySelectorAll("[data-compare]")) box.checked = chosen.has(box.dataset.compare);
  if (!frozen) document.title = `${view.title()} · scalerl watch`;
  view.draw?.();
}

// one request at a time; changes during a request lead to one more request afterwards
async function refresh() {
  if (loading) {
    again = true;
    return;
  }
  loading = true;
  try {
    do {
      again = false;
      const own = view;
      const wait = LOAD_MS - (performance.now() - loaded);
      if (wait > 0 && own.seen) await new Promise((done) => setTimeout(done, wait));
      if (own.load) await own.load();
      own.seen = true;
      loaded = performance.now();
      if (own === view) render();
      else again = true;
    } while (again);
  } catch (error) {
    complain(error);
  } finally {
    loading = false;
  }
}

function go() {
  if (location.hash === "#main") return; // the link that skips the navigation
  const before = view;
  view = viewOf(location.hash);
  const stays = before && before.title() === view.title();
  if (view.load && stays && !frozen) {
    refresh(); // another rollout of the same list: the page stays until the rollout has loaded
    return;
  }
  document.getElementById("large").close();
  main.replaceChildren();
  if (known.ready) {
    if (view.load) render();
    refresh();
    if (before) main.focus();
    window.scrollTo(0, 0);
  }
}

let points = "";

function take(found) {
  for (const run of found.runs) known.runs.set(run.id, run);
  const listed = found.known && new Set(found.known);
  for (const id of listed ? [...known.runs.keys()] : []) if (!listed.has(id)) known.runs.delete(id);
  for (const study of found.studies) known.studies.set(study.id, study);
  for (const log of found.logs) known.logs.set(log.id, log);
  known.problems = found.problems;
  const first = !known.ready;
  known.ready = true;
  if (first && !location.hash && !known.runs.size && !known.studies.size && known.logs.size === 1) {
    location.replace(`#/log/${[...known.logs.keys()][0]}`); // nothing else is watched
    return;
  }
  // rollouts are written with evaluations: a page of rollouts reloads only after a new evaluation
  const now = JSON.stringify([...known.runs.values()].map((run) => run.points));
  if (view.slow && view.seen && now === points) return;
  points = now;
  refresh();
}

function follow() {
  const stream = new EventSource("/api/stream");
  stream.onopen = () => {
    live.textContent = "live";
    live.className = "on";
  };
  stream.onmessage = (event) => take(JSON.parse(event.data));
  stream.onerror = () => {
    const ended = stream.readyState === EventSource.CLOSED; // a new server has a new token
    live.textContent = ended ? "open the address that scalerl watch prints" : "connection lost, retrying …";
    live.className = "lost";
  };
}

// ------------------------------------------------------------------------------------------------------------- user events

document.addEventListener("click", (event) => {
  const large = event.target.closest("[data-large]");
  if (large) showLarge(view, large.dataset.large).catch(complain);
  if (event.target.closest("[data-close]")) document.getElementById("large").close();
  const heading = event.target.closest("[data-sort]");
  if (heading) {
    view.sort(heading.dataset.sort, Number(heading.dataset.column));
    render();
  }
});

document.addEventListener("change", (event) => {
  const { compare, figure, choice, by, filter } = event.target.dataset;
  if (compare !== undefined) {
    if (event.target.checked) chosen.add(compare);
    else chosen.delete(compare);
    render();
  }
  if (figure !== undefined) view.choose(figure, choice, event.target.value);
  if (by !== undefined) view.color(event.target.value);
  if (filter !== undefined) view.filter(event.target.form);
});

document.addEventListener("submit", (event) => {
  event.preventDefault();
  if (event.target.dataset.filters) view.filter(event.target);
});

const STEPS = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1, Home: -Infinity, End: Infinity };

document.addEventListener("keydown", (event) => {
  const list = event.target.closest("[data-arrows]");
  if (!(event.key in STEPS) || !list || !event.target.matches("[data-arrow]")) return;
  const all = [...list.querySelectorAll("[data-arrow]")];
  const next = Math.min(all.length - 1, Math.max(0, all.indexOf(event.target) + STEPS[event.key]));
  all[next].focus();
  event.preventDefault();
});

function start() {
  window.addEventListener("hashchange", go);
  if (frozen) {
    document.querySelector("header.top").remove();
    known.ready = true;
    go();
    return;
  }
  go();
  follow();
  setTimeout(() => plotly().catch(complain), 1500); // preloaded for the first figure, after the list has been drawn
}
start();
