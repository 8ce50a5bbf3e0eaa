// Changes: each is asked for in a dialog, which names what is lost before anything is.

import { send } from "./api.js";
import { at, node } from "./dom.js";
import { bytes, size } from "./format.js";

const path = (...parts) => `/v1/${parts.map(encodeURIComponent).join("/")}`;

/** Asks in a dialog. `fields` are inputs (`name`, `label`, and what an input or a select has); `lost` and `affected` are
 *  sentences on what is lost and on what notices it; `typed` is a word that has to be typed first. `act` gets the values;
 *  what it throws is shown, and a function that it gives asks the next question. Without it the dialog only tells. */
function ask({ title, lines = [], lost = [], affected = [], fields = [], typed, button, act }) {
  const inputs = new Map(fields.map(({ name, label, options, hint, ...rest }) => {
    const id = `field-${name}`;
    const input = options
      ? node("select", { id, ...rest }, ...options.map(([value, text]) => node("option", { value }, text)))
      : node("input", { id, autocomplete: "off", spellcheck: "false", ...rest });
    return [name, { input, whole: node("p", {}, node("label", { for: id }, label), input, hint ? node("small", { class: "quiet" }, hint) : "") }];
  }));
  const word = node("input", { id: "field-typed", autocomplete: "off", spellcheck: "false" });
  const wrong = node("p", { class: "bad", role: "alert" });
  const go = act ? node("button", { type: "submit", class: lost.length > 0 ? "danger" : "main", disabled: Boolean(typed) }, button) : "";
  const stop = node("button", { type: "button" }, act ? "Cancel" : "Close");
  const told = (kind, head, facts) => (facts.length > 0
    ? node("div", { class: kind }, node("strong", {}, head), node("ul", {}, ...facts.map((fact) => node("li", {}, fact)))) : "");
  const form = node("form", {},
    node("h2", { id: "dialog-title" }, title),
    ...lines.map((line) => node("p", {}, line)),
    told("lost", "What is lost", lost),
    told("affected", "What is affected", affected),
    ...[...inputs.values()].map(({ whole }) => whole),
    typed ? node("p", {}, node("label", { for: "field-typed" }, `Type ${typed} to go on`), word) : "",
    wrong, node("p", { class: "buttons" }, stop, go));
  const dialog = node("dialog", { "aria-labelledby": "dialog-title" }, form);
  word.addEventListener("input", () => { go.disabled = word.value !== typed; });
  stop.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (!act || go.disabled) return;
    go.disabled = true;
    wrong.textContent = "";
    try {
      const next = await act(Object.fromEntries([...inputs].map(([name, { input }]) => [name, input.value])));
      dialog.close();
      if (typeof next === "function") next();
    } catch (error) {
      wrong.textContent = error.message;
      go.disabled = false;
    }
  });
  document.body.append(dialog);
  dialog.showModal();
  // What is there already is replaced by what is typed.
  const [first] = inputs.values();
  first?.input.select?.();
}

const SIZE = { label: "Size", required: true, placeholder: "100G", hint: "Binary units: K, M, G, T" };
const NAME = { name: "name", required: true, maxlength: 64, hint: "Up to 64 of a-z A-Z 0-9 . _ -" };
const places = (subsystems) => subsystems.map((it) => [it, it]);

/** The attached hosts that see one of these namespaces, as a sentence names them; "" if there is none. */
function users(namespaces, hosts) {
  const sees = (host) => namespaces.some((it) => it.subsystem === host.subsystem && (it.hosts?.includes(host.hostnqn) ?? true));
  const names = [...new Set(hosts.filter(sees).map((it) => it.hostnqn))];
  return names.length > 5 ? `${names.slice(0, 5).join(", ")} and ${names.length - 5} more` : names.join(", ");
}

export function createVolume(subsystems) {
  ask({
    title: "New volume", button: "Create",
    fields: [
      { label: "Name", ...NAME },
      { name: "size", ...SIZE },
      { name: "subsystem", label: "Attach it to", options: [...places(subsystems), ["none", "nothing"]] },
      { name: "compression", label: "Compression", options: [["off", "off"], ["lz4", "lz4"], ["zstd", "zstd"]] },
    ],
    act: ({ name, size: text, subsystem, compression }) =>
      send("POST", "/v1/volumes", { name, size_bytes: size(text), subsystem, compression }),
  });
}

export function resizeVolume(volume) {
  ask({
    title: `Resize ${volume.name}`, button: "Resize",
    lines: [`It has ${bytes(volume.size_bytes)}.`],
    fields: [{ name: "size", ...SIZE }],
    act: async ({ size: text }) => {
      const wanted = size(text);
      if (wanted >= volume.size_bytes) return send("PATCH", path("volumes", volume.name), { size_bytes: wanted });
      return () => shrinkVolume(volume, wanted);
    },
  });
}

function shrinkVolume(volume, wanted) {
  ask({
    title: `Make ${volume.name} smaller`, button: "Make it smaller", typed: volume.name,
    lost: [`Everything behind the first ${bytes(wanted)} of ${volume.name}: the last ${bytes(volume.size_bytes - wanted)}.`],
    act: () => send("PATCH", path("volumes", volume.name), { size_bytes: wanted, shrink: true }),
  });
}

export function attachVolume(volume, subsystems) {
  const free = subsystems.filter((it) => !volume.namespaces.some((place) => place.subsystem === it));
  if (free.length === 0) {
    ask({ title: `Attach ${volume.name}`, lines: ["Every subsystem shows it already."] });
    return;
  }
  ask({
    title: `Attach ${volume.name}`, button: "Attach",
    lines: ["Hosts of the subsystem see it at once."],
    fields: [{ name: "subsystem", label: "Subsystem", options: places(free) }],
    act: ({ subsystem }) => send("POST", path("subsystems", subsystem, "namespaces"), { volume: volume.name }),
  });
}

/** Changes how a volume stores what is written from now on. */
export function setPolicy(volume) {
  const choices = (is, ...all) => [is, ...all.filter((it) => it !== is)].map((it) => [it, it]);
  ask({
    title: `How ${volume.name} stores`, button: "Change",
    lines: ["It counts for what is written from now on. What was written stays as it is stored, and hosts see no difference."],
    fields: [
      { name: "dedup", label: "Deduplication", options: choices(volume.dedup ? "on" : "off", "on", "off") },
      { name: "compression", label: "Compression", options: choices(volume.compression, "off", "lz4", "zstd") },
      { name: "verify", label: "Duplicates", options: choices(volume.verify, "trust", "compare", "background") },
    ],
    act: ({ dedup, compression, verify }) =>
      send("PATCH", path("volumes", volume.name, "policy"), { dedup: dedup === "on", compression, verify }),
  });
}

/** Renames a volume. */
export function renameVolume(volume) {
  ask({
    title: `Rename ${volume.name}`, button: "Rename",
    lines: ["Hosts see no difference: data, identity and namespaces stay."],
    affected: [
      `Scripts that name ${volume.name}: they find it no longer.`,
      `A configuration file that names ${volume.name}: the next start would make a new, empty volume of that name.`,
    ],
    fields: [{ label: "New name", value: volume.name, ...NAME }],
    act: ({ name }) => send("POST", path("volumes", volume.name, "rename"), { name }),
  });
}

/** Detaches a volume from one of the subsystems that show it: `namespaces` are those of the volume. */
export function detachVolume(volume, namespaces, hosts) {
  if (namespaces.length === 0) {
    ask({ title: `Detach ${volume.name}`, lines: ["No subsystem shows it."] });
  } else if (namespaces.length === 1) {
    detachFrom(volume, namespaces[0], hosts);
  } else {
    ask({
      title: `Detach ${volume.name}`, button: "Go on",
      fields: [{ name: "subsystem", label: "Subsystem", options: places(namespaces.map((it) => it.subsystem)) }],
      act: ({ subsystem }) => () => detachFrom(volume, namespaces.find((it) => it.subsystem === subsystem), hosts),
    });
  }
}

function detachFrom(volume, place, hosts) {
  const named = users([place], hosts);
  ask({
    title: `Detach ${volume.name}`, button: "Detach",
    lines: [`${place.subsystem} shows it no longer. Its data stay; Attach shows it there again.`],
    affected: [
      named ? `These hosts are attached, and lose it while they run: ${named}.` : "No host that sees it there is attached.",
      ...(place.write_protect === "permanent" ? ["It is write protected there for good. Attached again, it is not."] : []),
    ],
    act: () => send("DELETE", path("subsystems", place.subsystem, "namespaces", String(place.nsid))),
  });
}

export function deleteVolume(volume, namespaces, hosts) {
  const named = users(namespaces, hosts);
  ask({
    title: `Delete ${volume.name}`, button: "Delete it for good", typed: volume.name,
    lost: [
      `The volume ${volume.name} of ${bytes(volume.size_bytes)}, with ${bytes(volume.logical_bytes)} of data. Nobody can bring it back.`,
      ...(named ? [`These hosts are attached, and lose it while they run: ${named}.`] : []),
    ],
    act: () => send("DELETE", path("volumes", volume.name)),
  });
}

export function cancelTask(task) {
  ask({
    title: `Cancel ${task.kind}`, button: "Cancel the task",
    lines: [`Task ${task.id} stops where it is. It can be started again.`],
    act: () => send("DELETE", path("tasks", String(task.id))),
  });
}

/** Counts own and shared space, as a task. Nothing is lost by it, so nobody is asked. */
export const countNow = () => send("POST", path("tasks"), { kind: "survey" });

/** Shows what the caller's role may do. */
export function allow(role) {
  document.body.dataset.role = role;
  at("create").hidden = role === "read";
}
