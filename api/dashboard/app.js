// The page: asks the daemon again and again while somebody looks, and shows what it says.

import { Refused, follow, get, token } from "./api.js";
import {
  allow, attachVolume, cancelTask, countNow, createVolume, deleteVolume, detachVolume, renameVolume, resizeVolume, setPolicy,
} from "./changes.js";
import { Chart, POWERS } from "./chart.js";
import { Table, at, node, say } from "./dom.js";
import { bytes, duration, latency, number, percent, rate, share, time } from "./format.js";
import { between, percentiles, sum } from "./rates.js";

// What a range of the pool's history is made of.
const RANGES = {
  hour: { step: "second", seconds: 3600, every: 10 },
  day: { step: "minute", seconds: 86400, every: 60 },
  week: { step: "minute", seconds: 7 * 86400, every: 60 },
  year: { step: "hour", seconds: 366 * 86400, every: 600 },
};
const INTERVAL_MS = 2000;
const POINTS_MAX = 300;
const EVENTS_MAX = 200;
// Events that a page begins with; those who were refused are looked for in more of them.
const EVENTS_FIRST = 50;
const EVENTS_SEARCHED = 1000;
const REFUSED_MAX = 20;
// What changes seldom is asked for so often, and when something happened.
const LISTS_MS = 10000;
const SNAPSHOTS_MAX = 200;
const STATES = { "ok": "good", "degraded": "warn", "takes no writes": "bad" };

const live = Array.from({ length: 9 }, () => []);
let last = null;
let stream = null;
let timer = null;

/** A button of a row, for those who may. */
function act(text, needs, of, run) {
  const button = node("button", { type: "button", "data-needs": needs, "data-act": text.toLowerCase() }, text);
  button.renew = () => button.setAttribute("aria-label", `${text} ${of().name ?? of().kind}`);
  button.addEventListener("click", () => attempt(() => run(of())));
  return button;
}

/** Does what somebody asked for; why it cannot be done is shown. */
async function attempt(run) {
  try {
    await run();
  } catch (error) {
    notice(error instanceof Refused ? error.message : "The daemon does not answer.");
  }
}

const subsystems = async () => (await get("/v1/subsystems")).map((it) => it.nqn);

/** The namespaces that show a volume. */
const namespacesOf = async (volume) =>
  (await get("/v1/subsystems")).flatMap((it) => it.namespaces).filter((it) => it.uuid === volume.uuid);

const charts = {
  throughput: new Chart(at("throughput"), [
    { label: "Read", colour: "read", fill: true }, { label: "Written", colour: "write", fill: true },
  ], rate, { steps: POWERS, least: 1024 }),
  commands: new Chart(at("commands"), [
    { label: "Reads", colour: "read", fill: true }, { label: "Writes", colour: "write", fill: true },
  ], number, { least: 10 }),
  latency: new Chart(at("latency"), [
    { label: "Reads, half", colour: "read" }, { label: "Reads, 99 %", colour: "read", dash: [6, 4] },
    { label: "Writes, half", colour: "write" }, { label: "Writes, 99 %", colour: "write", dash: [6, 4] },
  ], latency, { least: 100 }),
  pool: new Chart(at("history"), [
    { label: "Without savings", colour: "dedup", fill: true }, { label: "Stored", colour: "stored", fill: true },
  ], bytes, { steps: POWERS, least: 1024 }),
};

const tables = {
  volumes: new Table(at("volumes"), [
    { head: "Volume", kind: "name", show: (it) => [it.name, it.places] },
    { head: "Size", kind: "number", show: (it) => bytes(it.size_bytes) },
    { head: "Mapped", kind: "number", show: (it) => [bytes(it.logical_bytes), share(it.logical_bytes, it.size_bytes)] },
    { head: "Own", kind: "number", show: (it) => counted(it.shares?.unique_bytes) },
    { head: "Shared", kind: "number", show: (it) => counted(it.shares?.shared_bytes) },
    { head: "Reads", kind: "number", show: (it) => [`${number(it.rates.read_commands)} /s`, rate(it.rates.read_bytes)] },
    { head: "Read p99", kind: "number", show: (it) => latency(it.read_p99) },
    { head: "Writes", kind: "number", show: (it) => [`${number(it.rates.write_commands)} /s`, rate(it.rates.written_bytes)] },
    { head: "Write p99", kind: "number", show: (it) => latency(it.write_p99) },
    { head: "", kind: "acts", make: (of) => [
      act("Attach", "operate", of, async (it) => attachVolume(it, await subsystems())),
      act("Detach", "admin", of, async (it) => detachVolume(it, await namespacesOf(it), last.status.hosts)),
      act("Resize", "admin", of, resizeVolume),
      act("Policy", "admin", of, async (it) => setPolicy(await get(`/v1/volumes/${encodeURIComponent(it.name)}`))),
      act("Rename", "admin", of, renameVolume),
      act("Delete", "admin", of, async (it) => deleteVolume(it, await namespacesOf(it), last.status.hosts)),
    ] },
  ], "There is no volume."),
  snapshots: new Table(at("snapshots"), [
    { head: "Snapshot", kind: "name", show: (it) => [it.own_name, it.places] },
    { head: "Volume", kind: "name long", show: (it) => it.volume },
    { head: "Taken", show: (it) => time(it.created) },
    { head: "Size", kind: "number", show: (it) => bytes(it.size_bytes) },
    { head: "Own", kind: "number", show: (it) => counted(it.unique_bytes) },
    { head: "Shared", kind: "number", show: (it) => counted(it.shared_bytes) },
  ], "There is no snapshot."),
  exports: new Table(at("exports"), [
    { head: "Export", kind: "name long", show: (it) => [it.address, it.read_only ? "read-only" : ""] },
    { head: "Volume", kind: "name", show: (it) => it.volume },
    { head: "Kind", show: (it) => it.kind },
    { head: "State", show: (it) => exportState(it) },
  ], "No volume is exported."),
  hosts: new Table(at("hosts"), [
    { head: "Host", kind: "name long", show: (it) => [it.hostnqn, it.subsystem] },
    { head: "Path", show: (it) => [`${it.transport}${it.tls ? ", TLS" : ""}`, it.address] },
    { head: "Queues", kind: "number", show: (it) => String(it.queues) },
    { head: "Read", kind: "number", show: (it) => rate(it.rates.read_bytes) },
    { head: "Written", kind: "number", show: (it) => rate(it.rates.written_bytes) },
  ], "No host is attached."),
  refused: new Table(at("turned-last"), [
    { head: "Host", kind: "name long", show: (it) => it.who },
    { head: "Address", show: (it) => it.from },
    { head: "Why", kind: "why", show: (it) => [it.message, it.reason] },
    { head: "When", show: (it) => time(it.at) },
  ], "No event says that somebody was refused."),
  drives: new Table(at("drives"), [
    { head: "Drive", kind: "name long", show: (it) => it.name },
    { head: "State", show: driveState },
    { head: "In use", kind: "number", show: (it) => [bytes(it.used_bytes), share(it.used_bytes, it.capacity_bytes)] },
    { head: "Size", kind: "number", show: (it) => bytes(it.capacity_bytes) },
  ], "There is no drive."),
  tasks: new Table(at("tasks"), [
    { head: "Task", kind: "name", show: (it) => [`${it.kind}${it.object ? ` of ${it.object}` : ""}`, it.error ?? ""] },
    { head: "Began", show: (it) => time(it.began) },
    { head: "State", show: (it) => (it.state === "running" && it.percent != null ? `${it.percent} %` : it.state) },
    { head: "", kind: "acts", make: (of) => [act("Cancel", "operate", of, cancelTask)] },
  ], "Nothing is being worked at."),
};

function driveState({ state, rebuild, trouble, emptying }) {
  if (emptying) return ["emptying", "its data move to the other drives; then it is removed"];
  if (state === "rebuilding") return [state, rebuild ? `${bytes(rebuild.done_bytes)} of ${bytes(rebuild.total_bytes)}` : "it waits for its turn"];
  if (state === "offline") return [state, "others have its data; `onefold drive replace` puts another one in its place"];
  return trouble ? ["failing", `${trouble.errors} commands failed; the last one: ${trouble.last_error}`] : "works";
}

/** Space that a survey counted. */
function counted(size) { return size == null ? "–" : bytes(size); }

function exportState({ served, kind, connections }) {
  if (!served) return ["not served", "the log says why"];
  const who = kind === "nbd" ? "client" : "front-end";
  return connections > 0 ? ["in use", `a ${who} is connected`] : ["waiting", `no ${who} is connected`];
}

const placesOf = (namespaces, none) => namespaces.map((place) => `${place.subsystem} (${place.nsid})`).join(", ") || none;

function showSnapshots(snapshots) {
  const latest = [...snapshots].sort((one, other) => other.created_at - one.created_at);
  tables.snapshots.show(latest.slice(0, SNAPSHOTS_MAX).map((it) => ({
    ...it, key: it.uuid, own_name: it.name.slice(it.volume.length + 1), places: placesOf(it.namespaces, ""),
  })));
  const notes = [];
  if (latest.length > SNAPSHOTS_MAX) notes.push(`The latest ${SNAPSHOTS_MAX} of ${latest.length}; onefold snapshot list shows all.`);
  if (latest.some((it) => it.unique_bytes == null)) notes.push("Own and shared space are counted by Count now, or onefold status --survey.");
  say(at("snapshots-note"), notes.join(" "));
}

let listed = 0;

/** Snapshots and exports: they change seldom, and there can be many. */
async function showLists(now) {
  if (now - listed < LISTS_MS) return;
  listed = now;
  const [snapshots, exports, scrub] = await Promise.all([get("/v1/snapshots"), get("/v1/exports"), get("/v1/scrub")]);
  showSnapshots(snapshots);
  showScrub(scrub);
  tables.exports.show(exports.map((it) => ({ ...it, key: it.id })));
}

/** How many losses of data a year are to be expected, and whether that is few enough. */
function lossTile({ losses_per_year, wanted_losses_per_year, is_met }) {
  const wanted = wanted_losses_per_year == null ? "nobody said how few" : `wanted ${wanted_losses_per_year.toExponential()}: ${is_met ? "met" : "not met"}`;
  return ["Losses a year", losses_per_year.toExponential(1), wanted];
}

function showPool({ pool, reliability, health, hosts, volumes }) {
  const saved = Math.max(0, pool.logical_bytes - pool.used_bytes);
  const deduped = Math.max(0, saved - pool.compression_saved_bytes);
  const tiles = [
    ["Saved", bytes(saved), `${share(saved, pool.logical_bytes)} of what hosts wrote`],
    ["Stored", bytes(pool.used_bytes), `instead of ${bytes(pool.logical_bytes)}`],
    ["Deduplication", `${pool.dedup_ratio.toFixed(2)} ×`, `${bytes(deduped)} saved`],
    ["Compression", bytes(pool.compression_saved_bytes), "saved"],
    ["Pool in use", share(pool.used_bytes, pool.capacity_bytes), `${bytes(pool.free_bytes)} free of ${bytes(pool.capacity_bytes)}`],
    lossTile(reliability),
    ["Attached", String(hosts.length), `${hosts.length === 1 ? "path" : "paths"} to ${volumes.length} ${volumes.length === 1 ? "volume" : "volumes"}`],
  ];
  const place = at("tiles");
  if (place.children.length === 0) {
    place.append(...tiles.map(([name]) => node("div", {}, node("dt", {}, name), node("dd", {}, node("span"), node("small")))));
  }
  tiles.forEach(([, value, detail], index) => {
    const [figure, small] = place.children[index].lastChild.children;
    say(figure, value);
    say(small, detail);
  });
  const parts = [["stored", "Stored", pool.used_bytes], ["dedup", "Saved by deduplication", deduped], ["packed", "Saved by compression", pool.compression_saved_bytes]];
  const bar = at("share");
  if (bar.children.length === 0) {
    bar.append(...parts.map(([kind]) => node("span", { class: kind })));
    at("share-legend").append(...parts.map(([kind]) => node("li", {}, node("i", { class: kind }), node("span"))));
  }
  parts.forEach(([, name, size], index) => {
    bar.children[index].style.width = `${percent(size, pool.logical_bytes)}%`;
    say(at("share-legend").children[index].lastChild, `${name}: ${bytes(size)} (${share(size, pool.logical_bytes)})`);
  });
  bar.setAttribute("aria-label", `Of ${bytes(pool.logical_bytes)} that hosts wrote: ${parts.map(([, name, size]) => `${name} ${bytes(size)}`).join(", ")}`);
  const reasons = health.reasons.map((reason) => reason.what);
  at("reasons").hidden = reasons.length === 0;
  if (at("reasons").shown !== reasons.join("\n")) {
    at("reasons").shown = reasons.join("\n");
    at("reasons").replaceChildren(...reasons.map((reason) => node("li", {}, reason)));
  }
}

function showTurned({ transports, authentication, tls }) {
  const refused = (name) => transports.reduce((count, it) => count + it.refused[name], 0);
  const counts = [
    ["not on the list", refused("host")], ["other Connect errors", refused("connect") - refused("host")],
    ["wrong secret", authentication.failed], ["TLS failed", tls.failed + tls.refused],
    ["held off", authentication.held_off + tls.held_off], ["too many", refused("too_many")],
    ["broke the protocol", refused("violation") + refused("digest") + refused("handshake")], ["stalled", refused("stalled")],
  ].filter(([, count]) => count > 0);
  const shown = counts.map(([name, count]) => `${name}: ${count}`);
  const place = at("turned");
  const texts = shown.length > 0 ? shown : ["nobody"];
  if (place.shown === texts.join()) return;
  place.shown = texts.join();
  place.replaceChildren(...texts.map((text) => node("li", {}, text)));
}

/** The scrub that runs, or the last one that the pool remembers, and when one begins by itself. */
function showScrub({ phase, checked_blocks, total_blocks, bad_blocks, damage, history, schedule }) {
  const ended = history.at(-1);
  const texts = [];
  if (phase === "running") texts.push(`A scrub runs: ${percent(checked_blocks, total_blocks).toFixed(0)} %, ${bad_blocks} damaged blocks.`);
  else if (!ended) texts.push("No scrub has run yet.");
  else if (ended.phase === "finished") texts.push(`The last scrub ended ${time(ended.ended)} and found ${ended.bad_blocks} damaged blocks.`);
  else texts.push(`The last scrub was stopped ${time(ended.ended)}.`);
  texts.push(schedule ? `One begins every ${schedule.every_days} days.` : "None begins by itself.");
  if (damage.damaged_blocks > 0) texts.push(`${damage.damaged_blocks} damaged blocks are known.`);
  say(at("scrub"), texts.join(" "));
}

/** When own and shared space were counted. */
function showSurvey({ survey, volumes }) {
  if (!survey) return say(at("survey-note"), volumes.length > 0 ? "Own and shared space have not been counted yet." : "");
  const ago = survey.age_seconds < 60 ? "just now" : `${duration(survey.age_seconds)} ago`;
  const sampled = survey.sampled_one_in > 1 ? `, estimated from one block in ${survey.sampled_one_in}` : "";
  say(at("survey-note"), `Own space is what deleting the volume would free; it was counted ${ago}${sampled}.`);
}

function showStatus(status, now) {
  const seconds = last ? (now - last.now) / 1000 : 0;
  const before = new Map((last?.status.volumes ?? []).map((it) => [it.uuid, it]));
  const shares = new Map((status.survey?.volumes ?? []).map((it) => [it.name, it]));
  // Of a volume that was not there at the last look everything is new.
  const slowest = (it, operation) => (last ? percentiles([before.get(it.uuid) ?? {}], [it], operation).p99 : null);
  const volumes = status.volumes.map((it) => ({
    ...it, key: it.uuid, rates: between(before.get(it.uuid)?.io, it.io, seconds), shares: shares.get(it.name),
    read_p99: slowest(it, "read"), write_p99: slowest(it, "write"), places: placesOf(it.namespaces, "attached nowhere"),
  }));
  // A new count is of snapshots too.
  if ((status.survey?.age_seconds ?? Infinity) < (last?.status.survey?.age_seconds ?? Infinity)) listed = 0;
  const key = (it) => `${it.hostnqn} ${it.subsystem} ${it.transport} ${it.address}`;
  const paths = new Map((last?.status.hosts ?? []).map((it) => [key(it), it.io]));
  const hosts = status.hosts.map((it, index) => ({ ...it, key: `${key(it)} ${index}`, rates: between(paths.get(key(it)), it.io, seconds) }));
  const [reads, writes] = ["read", "write"].map((operation) => percentiles([...before.values()], status.volumes, operation));
  const troubles = new Map(status.health.drives.map((it) => [it.drive, it]));
  last = { status, now };

  const state = at("health");
  say(state, status.health.state);
  state.className = `pill ${STATES[status.health.state] ?? "warn"}`;
  say(at("about"), `${status.version}, up ${duration(status.uptime_seconds)}`);
  showPool(status);
  tables.volumes.show(volumes);
  tables.hosts.show(hosts);
  tables.drives.show(status.drives.map((it) => ({ ...it, key: it.name, trouble: troubles.get(it.name) })));
  showTurned(status);
  showSurvey(status);
  if (seconds > 0) {
    const all = sum(volumes.map((it) => it.rates));
    const figures = [all.read_bytes, all.written_bytes, all.read_commands, all.write_commands, reads.p50, reads.p99, writes.p50, writes.p99];
    [now / 1000, ...figures].forEach((figure, index) => {
      live[index].push(figure);
      if (live[index].length > POINTS_MAX) live[index].shift();
    });
    charts.throughput.show([live[0], live[1], live[2]]);
    charts.commands.show([live[0], live[3], live[4]]);
    charts.latency.show([live[0], ...live.slice(5)]);
  }
}

function showTasks(tasks) {
  // A deletion runs to its end: the volume is gone already.
  const canEnd = (it) => (it.kind === "delete" && it.state === "running" ? "bound" : it.state);
  tables.tasks.show(tasks.slice(-20).reverse().map((it) => ({ ...it, key: it.id, phase: canEnd(it) })));
}

let refused = [];

/** Shows who was refused last: a host or somebody with a token, from where, and why. */
function showRefused(events) {
  const found = events.filter((it) => it.kind === "refused").map(({ id, at: when, message, fields = {} }) => ({
    key: id, at: when, message, who: fields.host ?? fields.who ?? "not named", from: fields.peer ?? fields.from ?? "–", reason: fields.reason ?? "",
  }));
  if (found.length === 0) return;
  refused = [...found.reverse(), ...refused].slice(0, REFUSED_MAX);
  tables.refused.show(refused);
}

function showEvent(event) {
  const fields = Object.entries(event.fields ?? {}).map(([name, value]) => `${name}: ${value}`).join(", ");
  const place = at("events");
  place.prepend(node("li", { "data-kind": event.kind }, node("time", { datetime: event.at }, time(event.at)), node("b", {}, event.kind),
    event.message, fields ? node("small", {}, fields) : ""));
  while (place.children.length > EVENTS_MAX) place.lastChild.remove();
}

/** Shows events as they happen, for as long as somebody is let in. */
async function followEvents() {
  const own = new AbortController();
  stream = own;
  at("events").replaceChildren();
  refused = [];
  tables.refused.show(refused);
  let seen = null;
  while (!own.signal.aborted) {
    try {
      if (seen === null) {
        const page = await get(`/v1/events?limit=${EVENTS_SEARCHED}`);
        page.events.slice(-EVENTS_FIRST).forEach(showEvent);
        showRefused(page.events);
        seen = page.latest;
      }
      await follow(seen, own.signal, (event) => {
        seen = event.id;
        listed = 0;
        showEvent(event);
        showRefused([event]);
      });
    } catch (error) {
      if (error instanceof Refused && error.status === 401) return;
    }
    await new Promise((later) => setTimeout(later, INTERVAL_MS));
  }
}

let drawn = { range: null, at: 0 };

/** Shows how the pool came to be as it is, over the range that is chosen. */
async function showHistory() {
  const range = document.querySelector("input[name=range]:checked").value;
  const { step, seconds, every } = RANGES[range];
  const now = Date.now() / 1000;
  if (drawn.range === range && now - drawn.at < every) return;
  drawn = { range, at: now };
  const page = await get(`/v1/history?step=${step}&since=${Math.floor(now - seconds)}`);
  charts.pool.show(withGaps([page.at, page.logical_bytes, page.used_bytes], page.step_seconds));
}

/** The live charts begin with what the daemon has seen before somebody looked. */
async function showBefore() {
  const page = await get(`/v1/history?step=second&since=${Math.floor(Date.now() / 1000 - POINTS_MAX * INTERVAL_MS / 1000)}`);
  const times = [page.read_p50_us, page.read_p99_us, page.write_p50_us, page.write_p99_us].map((column) => column.map((us) => us || null));
  const columns = [page.at, page.read_bytes, page.written_bytes, page.read_commands, page.write_commands, ...times];
  columns.forEach((column, index) => { live[index].splice(0, live[index].length, ...column.slice(0, -1).filter((_, row) => row % 2 === 0)); });
}

/** Columns with a hole where there are no rows, so that no line is drawn across it. */
function withGaps(columns, step) {
  const shown = columns.map(() => []);
  columns[0].forEach((moment, row) => {
    const before = shown[0].at(-1);
    if (before !== undefined && moment - before > 3 * step) {
      shown[0].push(before + step);
      for (const column of shown.slice(1)) column.push(null);
    }
    columns.forEach((column, index) => shown[index].push(column[row]));
  });
  return shown;
}

function notice(text) {
  say(at("notice"), text);
  at("notice").hidden = text === "";
  at("figures").classList.toggle("stale", text !== "");
}

/** One look at the daemon, and the next one when it is due. */
async function look() {
  clearTimeout(timer);
  if (document.hidden) return;
  try {
    const [status, tasks] = await Promise.all([get("/v1/status"), get("/v1/tasks")]);
    await enter();
    notice("");
    showStatus(status, Date.now());
    showTasks(tasks);
    await showHistory();
    await showLists(Date.now());
  } catch (error) {
    if (error instanceof Refused && (error.status === 401 || error.status === 403)) {
      leave(token.get() ? error.message : "");
      return;
    }
    notice(error instanceof Refused ? error.message : "The daemon does not answer. Trying again.");
  }
  timer = setTimeout(look, INTERVAL_MS);
}

async function enter() {
  if (!at("figures").hidden) return;
  allow((await get("/v1/caller")).role);
  at("login").hidden = true;
  at("figures").hidden = false;
  at("leave").hidden = false;
  Object.values(charts).forEach((chart) => chart.fit());
  drawn = { range: null, at: 0 };
  listed = 0;
  await showBefore();
  followEvents();
}

function leave(why) {
  clearTimeout(timer);
  token.forget();
  stream?.abort();
  last = null;
  live.forEach((column) => column.splice(0));
  notice("");
  at("figures").hidden = true;
  at("leave").hidden = true;
  at("login").hidden = false;
  at("health").textContent = at("about").textContent = "";
  say(at("refused"), why);
  at("token").focus();
}

const dark = matchMedia("(prefers-color-scheme: dark)");
function scheme(chosen) {
  if (chosen) document.documentElement.dataset.theme = chosen;
  const is = document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");
  say(at("theme"), is === "dark" ? "Light" : "Dark");
  at("theme").setAttribute("aria-label", is === "dark" ? "Use light colours" : "Use dark colours");
  Object.values(charts).forEach((chart) => chart.draw());
  return is;
}

at("login").addEventListener("submit", (event) => {
  event.preventDefault();
  token.set(at("token").value.trim());
  at("token").value = "";
  look();
});
document.querySelectorAll("input[name=range]").forEach((it) => it.addEventListener("change", look));
at("create").addEventListener("click", () => attempt(async () => createVolume(await subsystems())));
at("survey").addEventListener("click", () => attempt(async () => { await countNow(); await look(); }));
at("leave").addEventListener("click", () => leave(""));
at("theme").addEventListener("click", () => scheme(scheme() === "dark" ? "light" : "dark"));
dark.addEventListener("change", () => scheme());
document.addEventListener("visibilitychange", look);
scheme();
if (token.get()) look(); else leave("");
