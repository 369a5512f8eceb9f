/** The line under an answer: its speed and its gain; opened, what the policy did, in numbers and in words. */

import { draw, make } from "./dom.js";
import { decimal, duration, factor, plural, rate } from "./format.js";
import { describeShares } from "./sources.js";

const BAR = 9;
const HEIGHT = 22;

/**
 * Show what an answer took. `run` has `tokens`, `end` (null when it was stopped), `firstTokenMs` and
 * `decodeMs` as measured here.
 */
export function renderReport(run) {
  const mtp = run.end?.mtp;
  const facts = [fact(rate(tokensPerSecond(run)), "tokens/s")];
  if (mtp?.rounds) facts.push(fact(decimal(mtp.acceptance_length), "tokens per pass"));
  const speedup = mtp?.measured_speedup;
  if (speedup) facts.push(fact(factor(speedup), "against plain", speedup >= 1 ? "gain" : ""));
  const early = ending(run);
  if (early) facts.push(make("span", { class: "fact" }, early));
  const length = plural(run.tokens.length, "token");
  const words = `${length}, the first after ${duration(run.firstTokenMs / 1000)}. ${explain(run)}`;
  return make("details", { class: "report" },
    make("summary", { title: "More figures" }, ...facts),
    make("div", { class: "more" }, make("p", { class: "words" }, words), mtp?.k_histogram ? histogram(mtp.k_histogram) : null));
}

/** Decode speed: the server's own clock where it told, else the one of this page. */
export function tokensPerSecond(run) {
  const told = run.end?.timings?.predicted_per_second;
  if (told) return told;
  return run.decodeMs > 0 ? ((run.tokens.length - 1) / run.decodeMs) * 1000 : null;
}

function fact(value, name, extra = "") {
  return make("span", { class: `fact ${extra}` }, make("b", {}, value), ` ${name}`);
}

function ending(run) {
  if (!run.end) return "stopped";
  return run.end.finishReason === "length" ? "cut by the limit" : "";
}

function explain(run) {
  const mtp = run.end?.mtp;
  const sentences = [];
  if (run.tokens.length) sentences.push(`By source: ${describeShares(run.tokens)}.`);
  if (mtp?.bound_reason) sentences.push(mtp.bound_reason);
  if (mtp?.explanation) sentences.push(mtp.explanation);
  else if (mtp?.off_reason) sentences.push(mtp.off_reason);
  return sentences.join(" ");
}

/** Rounds by draft length, as small columns. */
function histogram(rounds) {
  const longest = Math.max(...Object.keys(rounds).map(Number));
  const most = Math.max(...Object.values(rounds));
  const words = Object.entries(rounds).map(([k, n]) => `K = ${k}: ${plural(n, "round")}`);
  const picture = draw("svg", {
    class: "histogram",
    width: (longest + 1) * BAR,
    height: HEIGHT + 11,
    role: "img",
    "aria-label": `Draft lengths. ${words.join(", ")}`,
  });
  for (let k = 0; k <= longest; k += 1) {
    const height = rounds[k] ? Math.max(2, (rounds[k] / most) * HEIGHT) : 1;
    const bar = { x: k * BAR, y: HEIGHT - height, width: BAR - 2, height, rx: 1 };
    const label = { x: k * BAR + (BAR - 2) / 2, y: HEIGHT + 10 };
    picture.append(draw("rect", bar), draw("text", label, String(k)));
  }
  picture.append(draw("title", {}, `Rounds by draft length K. ${words.join(", ")}`));
  return make("div", { class: "histogram-box" }, picture, make("small", {}, "K"));
}
