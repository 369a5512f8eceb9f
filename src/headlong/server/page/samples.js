/** Prompts to click on a first visit; one of each kind that drafting treats differently. */

import { make } from "./dom.js";

const TEXT = { type: "string" };
const CUSTOMER = record({
  name: TEXT,
  email: TEXT,
  age: { type: "integer", minimum: 18, maximum: 99 },
  address: record({ street: TEXT, city: TEXT, country: TEXT }),
  languages: { type: "array", items: { enum: ["English", "French", "German", "Spanish"] }, minItems: 2, maxItems: 3 },
  is_member: { type: "boolean" },
});

const SAMPLES = [
  {
    kind: "Code",
    title: "A stack in Python",
    prompt: "Write a Python class for a stack with push, pop and peek, with docstrings.",
  },
  {
    kind: "JSON, by a schema",
    title: "Invent a customer",
    prompt: "Invent a customer and describe them as JSON.",
    fields: { response_format: { type: "json_schema", json_schema: { name: "customer", schema: CUSTOMER } } },
  },
  {
    kind: "Chat",
    title: "What is Paris known for?",
    prompt: "What is the capital of France, and what is it known for?",
  },
  {
    kind: "Story",
    title: "A letter in a bottle",
    prompt: "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
  },
];

/** Fill a container with the samples; `choose(prompt, fields)` gets the one clicked and what its request adds. */
export function renderSamples(container, choose) {
  for (const { kind, title, prompt, fields = {} } of SAMPLES) {
    const attributes = { type: "button", class: "sample", onclick: () => choose(prompt, fields) };
    container.append(make("button", attributes, make("small", {}, kind), make("span", {}, title)));
  }
}

function record(properties) {
  return { type: "object", properties, required: Object.keys(properties), additionalProperties: false };
}
