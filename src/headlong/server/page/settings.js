/** The settings form: policy and sampling, kept in this browser; the values are read at every send. */

import { make } from "./dom.js";
import { MAX_DEPTH } from "./sources.js";

const STORE = "headlong.settings";
const MODES = [
  ["auto", "Auto", "Draft as long as it pays, by measurement"],
  ["off", "Off", "Plain decoding"],
  ["k", "Fixed K", "Always draft K tokens"],
];

/** Build the form inside `form`. */
export function renderSettings(form) {
  const kOutput = make("output", { for: "set-k" }, "4");
  const temperatureOutput = make("output", { for: "set-temperature" }, "0");
  form.append(
    make("h2", {}, "Settings"),
    make(
      "fieldset",
      { class: "segments" },
      make("legend", {}, "Multi-token prediction"),
      ...MODES.map(([value, name, title]) =>
        make(
          "label",
          { title },
          make("input", { type: "radio", name: "mode", value, checked: value === "auto" }),
          make("span", {}, name),
        ),
      ),
    ),
    make(
      "label",
      { class: "field slider k-field", for: "set-k" },
      make("span", {}, "K, tokens per draft "),
      kOutput,
      make("input", { type: "range", id: "set-k", name: "k", min: 1, max: MAX_DEPTH, step: 1, value: 4 }),
    ),
    make(
      "label",
      { class: "field slider", for: "set-temperature" },
      make("span", {}, "Temperature "),
      temperatureOutput,
      make("input", {
        type: "range", id: "set-temperature", name: "temperature", min: 0, max: 1.5, step: 0.1, value: 0,
      }),
    ),
    make(
      "div",
      { class: "pair" },
      numberField("max_tokens", "Max tokens", { min: 1, max: 100000, value: 256, required: true }),
      numberField("seed", "Seed", { min: 0, placeholder: "random" }),
    ),
    make(
      "label",
      { class: "field check think-field", for: "set-think" },
      make("input", { type: "checkbox", id: "set-think", name: "think", checked: true }),
      make("span", {}, "Let it think first"),
    ),
    make(
      "label",
      { class: "field", for: "set-system" },
      make("span", {}, "System prompt"),
      make("textarea", { id: "set-system", name: "system", rows: 1, placeholder: "The model’s default" }),
    ),
  );
  restore(form);
  const refresh = () => {
    kOutput.textContent = form.elements.k.value;
    temperatureOutput.textContent = Number(form.elements.temperature.value).toFixed(1);
    form.dataset.mode = form.elements.mode.value;
  };
  refresh();
  form.addEventListener("input", () => {
    refresh();
    store(form);
  });
  form.addEventListener("submit", (event) => event.preventDefault());
}

/** Read the settings as fields of a request, and the system prompt beside them. */
export function readSettings(form) {
  const values = form.elements;
  const body = {
    mtp: values.mode.value === "k" ? Number(values.k.value) : values.mode.value,
    temperature: Number(values.temperature.value),
    max_tokens: Math.max(1, Math.floor(Number(values.max_tokens.value) || 256)),
  };
  if (values.seed.value !== "") body.seed = Math.max(0, Math.floor(Number(values.seed.value)));
  if (!values.think.checked) body.reasoning_effort = "none";
  return { body, system: values.system.value.trim() };
}

function numberField(name, title, attributes) {
  const id = `set-${name}`;
  const input = make("input", { type: "number", id, name, step: 1, inputmode: "numeric", ...attributes });
  return make("label", { class: "field", for: id }, make("span", {}, title), input);
}

function store(form) {
  const kept = { ...Object.fromEntries(new FormData(form)), think: form.elements.think.checked };
  localStorage.setItem(STORE, JSON.stringify(kept));
}

function restore(form) {
  let kept = {};
  try {
    kept = JSON.parse(localStorage.getItem(STORE)) ?? {};
  } catch {
    localStorage.removeItem(STORE); // another version's, or damaged: start afresh
  }
  for (const [name, value] of Object.entries(kept)) {
    if (name === "think") form.elements.think.checked = value;
    else if (form.elements[name]) form.elements[name].value = value;
  }
}
