// Changes: each is asked for in a dialog, which names what is lost before anything is.

import { send } from "./api.js";
import { at, node } from "./dom.js";
import { bytes, size } from "./format.js";

const path = (...parts) => `/v1/${parts.map(encodeURIComponent).join("/")}`;

/** Asks in a dialog. `fields` are inputs (`name`, `label`, and what an input or a select has); `lost` are sentences on what
 *  is lost; `typed` is a word that has to be typed first. `act` gets the values; what it throws is shown. */
function ask({ title, lines = [], lost = [], fields = [], typed, button, act }) {
  const inputs = new Map(fields.map(({ name, label, options, hint, ...rest }) => {
    const id = `field-${name}`;
    const input = options
      ? node("select", { id, ...rest }, ...options.map(([value, text]) => node("option", { value }, text)))
      : node("input", { id, autocomplete: "off", spellcheck: "false", ...rest });
    return [name, { input, whole: node("p", {}, node("label", { for: id }, label), input, hint ? node("small", { class: "quiet" }, hint) : "") }];
  }));
  const word = node("input", { id: "field-typed", autocomplete: "off", spellcheck: "false" });
  const wrong = node("p", { class: "bad", role: "alert" });
  const go = node("button", { type: "submit", class: lost.length > 0 ? "danger" : "main", disabled: Boolean(typed) }, button);
  const stop = node("button", { type: "button" }, "Cancel");
  const form = node("form", {},
    node("h2", { id: "dialog-title" }, title),
    ...lines.map((line) => node("p", {}, line)),
    lost.length > 0 ? node("div", { class: "lost" }, node("strong", {}, "What is lost"), node("ul", {}, ...lost.map((line) => node("li", {}, line)))) : "",
    ...[...inputs.values()].map(({ whole }) => whole),
    typed ? node("p", {}, node("label", { for: "field-typed" }, `Type ${typed} to go on`), word) : "",
    wrong, node("p", { class: "buttons" }, stop, go));
  const dialog = node("dialog", { "aria-labelledby": "dialog-title" }, form);
  word.addEventListener("input", () => { go.disabled = word.value !== typed; });
  stop.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (go.disabled) return;
    go.disabled = true;
    wrong.textContent = "";
    try {
      await act(Object.fromEntries([...inputs].map(([name, { input }]) => [name, input.value])));
      dialog.close();
    } catch (error) {
      wrong.textContent = error.message;
      go.disabled = false;
    }
  });
  document.body.append(dialog);
  dialog.showModal();
}

const SIZE = { label: "Size", required: true, placeholder: "100G", hint: "Binary units: K, M, G, T" };
const places = (subsystems) => [...subsystems.map((it) => [it, it])];

export function createVolume(subsystems) {
  ask({
    title: "New volume", button: "Create",
    fields: [
      { name: "name", label: "Name", required: true, maxlength: 64, hint: "Up to 64 of a-z A-Z 0-9 . _ -" },
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
      shrinkVolume(volume, wanted);
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
    ask({ title: `Attach ${volume.name}`, button: "Close", lines: ["Every subsystem shows it already."], act: () => {} });
    return;
  }
  ask({
    title: `Attach ${volume.name}`, button: "Attach",
    lines: ["Hosts of the subsystem see it at once."],
    fields: [{ name: "subsystem", label: "Subsystem", options: places(free) }],
    act: ({ subsystem }) => send("POST", path("subsystems", subsystem, "namespaces"), { volume: volume.name }),
  });
}

export function deleteVolume(volume, hosts) {
  const shown = new Set(volume.namespaces.map((place) => place.subsystem));
  const users = [...new Set(hosts.filter((it) => shown.has(it.subsystem)).map((it) => it.hostnqn))];
  const named = users.length > 5 ? `${users.slice(0, 5).join(", ")} and ${users.length - 5} more` : users.join(", ");
  ask({
    title: `Delete ${volume.name}`, button: "Delete it for good", typed: volume.name,
    lost: [
      `The volume ${volume.name} of ${bytes(volume.size_bytes)}, with ${bytes(volume.logical_bytes)} of data. Nobody can bring it back.`,
      ...(users.length > 0 ? [`These hosts are attached where it is shown, and lose it while they run: ${named}.`] : []),
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

/** Shows what the caller's role may do. */
export function allow(role) {
  document.body.dataset.role = role;
  at("create").hidden = role === "read";
}
