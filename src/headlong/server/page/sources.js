/**
 * Where a token came from: names, classes, colours and words for each source.
 * Colours are custom properties of tokens.css, so that light and dark have their own.
 */

import { make } from "./dom.js";

export const MAX_DEPTH = 8;

const NAMES = {
  backbone: "the model itself",
  head: "head",
  ngram: "n-gram lookup",
  grammar: "grammar",
  "draft-model": "draft model",
  engine: "its engine",
};

/** The key of a token's colour: "head-3", "ngram", "backbone"; unknown sources look like the model's. */
export function colourKey(token) {
  if (token.source === "head" || token.source === "engine") return `head-${Math.min(Math.max(token.depth, 1), MAX_DEPTH)}`;
  return token.source in NAMES ? token.source : "backbone";
}

/** The colour itself, as the current theme has it. */
export function colourOf(token) {
  const property = `--source-${colourKey(token)}`;
  return getComputedStyle(document.documentElement).getPropertyValue(property).trim();
}

/** A token's origin in words. */
export function describeSource(token) {
  if (token.source === "backbone") return "Written by the model itself";
  const name = NAMES[token.source] ?? token.source;
  return `Drafted by ${name === "head" ? "the head" : name}, depth ${token.depth}`;
}

/** Say how many tokens came from where, the largest share first. */
export function describeShares(tokens) {
  const shares = new Map();
  for (const token of tokens) shares.set(token.source, (shares.get(token.source) ?? 0) + 1);
  return [...shares]
    .sort((a, b) => b[1] - a[1])
    .map(([source, number]) => `${number} by ${NAMES[source] === "head" ? "the head" : (NAMES[source] ?? source)}`)
    .join(", ");
}

/** Fill the legend. */
export function renderLegend(container) {
  const ramp = make("div", { class: "ramp", "aria-hidden": "true" });
  for (let depth = 1; depth <= MAX_DEPTH; depth += 1) {
    ramp.append(make("i", { class: `cell s-head-${depth}` }, String(depth)));
  }
  const row = (key, name, text) =>
    make("div", { class: "legend-row" }, make("span", { class: `tok s-${key}` }, name), make("span", {}, text));
  container.replaceChildren(
    make("div", { class: "legend-row wide" }, make("span", {}, "Head, by depth in the draft"), ramp),
    row("ngram", "n-gram", "seen before, copied"),
    row("grammar", "grammar", "the only one allowed"),
    row("draft-model", "draft model", "a second model’s"),
    row("backbone", "plain", "the model’s own token"),
  );
}
