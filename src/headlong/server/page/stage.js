/** The stage of a race: two recordings played side by side in measured time, then the verdict. */

import { AnswerView } from "./answer.js";
import { announce, make } from "./dom.js";
import { count, decimal, duration, factor, plural, rate } from "./format.js";
import { attachHints } from "./hints.js";
import { tokensPerSecond } from "./report.js";
import { Timeline } from "./timeline.js";

const PACES = [
  ["1", "real time"],
  ["0.5", "½ speed"],
  ["0.25", "¼ speed"],
  ["0.1", "1/10 speed"],
];

/** Plays `runs`, a list of `{ name, run }` with the plain one first, inside `element`. */
export class Stage {
  constructor(element, runs, verdict) {
    this.runs = runs;
    this.verdict = verdict;
    this.frame = 0;
    this.lanes = runs.map(({ name, run }) => makeLane(name, run));
    this.pace = make(
      "select",
      { id: "race-pace", "aria-label": "Pace of the replay" },
      ...PACES.map(([value, name]) => make("option", { value }, name)),
    );
    this.result = make("div", { class: "verdict", role: "status" });
    const canvas = make("canvas", { role: "img", "aria-label": describeTimeline(runs) });
    element.replaceChildren(
      this.result,
      make("figure", { class: "timeline" }, make("div", {}, canvas), make("figcaption", {},
        "One column is one pass of the model; its cells are the tokens that pass gave, in the colours of their sources.")),
      make("div", { class: "lanes" }, ...this.lanes.map((lane) => lane.element)),
      make("div", { class: "replay" },
        make("button", { class: "button quiet", type: "button", onclick: () => this.play() }, "Replay"), this.pace,
        make("button", { class: "button quiet", type: "button", onclick: () => this.finish() }, "Show the end")),
    );
    element.hidden = false;
    this.timeline = new Timeline(canvas, runs);
  }

  /** Stop playing and forget the canvas. */
  close() {
    cancelAnimationFrame(this.frame);
    this.timeline.close();
  }

  /** Play both recordings from the first token; resolves when they have ended. */
  play() {
    cancelAnimationFrame(this.frame);
    this.result.replaceChildren(make("span", { class: "note" }, "Replaying both recordings…"));
    for (const lane of this.lanes) lane.rewind();
    const started = performance.now();
    const next = () => {
      const moment = (performance.now() - started) * Number(this.pace.value);
      this.timeline.drawAt(moment);
      for (const lane of this.lanes) lane.showUntil(moment);
      if (moment >= this.timeline.end) this.finish();
      else this.frame = requestAnimationFrame(next);
    };
    this.frame = requestAnimationFrame(next);
  }

  /** Show the end at once. */
  finish() {
    cancelAnimationFrame(this.frame);
    this.timeline.drawAt(this.timeline.end);
    for (const lane of this.lanes) lane.showUntil(Infinity);
    this.result.replaceChildren(...renderVerdict(this.runs, this.verdict));
    announce(this.result.textContent);
  }
}

/** What a race has shown: the factor, whether the texts are the same, and how sure the factor is. */
export function renderVerdict(runs, verdict) {
  const [plain, fast] = runs.map(({ run }) => run);
  const isSame = verdict.differsAt === null;
  const check = isSame
    ? `✓ identical text, ${plural(verdict.length, "token")} compared one by one`
    : `✗ the texts part at token ${count(verdict.differsAt + 1)}; please report this, it must not happen`;
  const { speedup, tokensPerPass } = verdict;
  const facts = [`${duration(plain.decodeMs / 1000)} plain, ${duration(fast.decodeMs / 1000)} with MTP`];
  if (tokensPerPass) facts.push(`${decimal(tokensPerPass)} tokens per pass`);
  facts.push(verdict.numTurns > 1
    ? `${verdict.numTurns} turns from ${decimal(verdict.least)} to ${factor(verdict.most)}, the middle one shown`
    : "a single turn, since it took long");
  const isWeak = speedup < 1 || verdict.isTooFast || verdict.isUnsteady;
  return [
    make("strong", { class: `factor ${isWeak ? "weak" : ""}`, id: "race-factor" }, factor(speedup)),
    make("div", {},
      make("p", { class: isSame ? "same" : "different", id: "race-same" }, check),
      make("p", { class: "note" }, `${facts.join("; ")}.`),
      ...doubts(verdict).map((words) => make("p", { class: "doubt" }, words))),
  ];
}

function doubts({ isShared, isTooFast, isUnsteady }) {
  const words = [];
  if (isTooFast) {
    words.push("More than its tokens per pass, so this is not the gain of MTP alone: the machine was busier during the plain run.");
  } else if (isUnsteady) {
    words.push("The turns differ widely: the machine was busy with other work.");
  }
  if (isShared) words.push("Others used the server meanwhile.");
  if (words.length) words.push("Race again when it is quiet.");
  return words;
}

function describeTimeline(runs) {
  return runs.map(({ name, run }) => `${name}: ${run.tokens.length} tokens in ${duration(run.decodeMs / 1000)}`).join("; ");
}

function makeLane(name, run) {
  const text = make("div", { class: "answer raw" }); // every sign is a part of the time it took
  const clock = make("b", { class: "clock" });
  const speed = make("span", {});
  const bar = make("progress", { max: run.tokens.length, value: 0, "aria-label": `${name}, tokens` });
  const element = make("section", { class: "lane" },
    make("header", {}, make("h3", {}, name), clock, speed), bar, text);
  let view = null;
  let isSettled = false;
  return {
    element,
    rewind() {
      text.replaceChildren();
      view = null;
      isSettled = false;
      bar.value = 0;
    },
    showUntil(moment) {
      if (!view) {
        view = new AnswerView(text);
        attachHints(view);
      }
      const already = view.tokens.length + view.pending.length;
      let until = already;
      while (until < run.tokens.length && run.tokens[until].at <= moment) until += 1;
      view.push(run.tokens.slice(already, until));
      const isOver = until === run.tokens.length;
      const seconds = Math.min(moment, run.decodeMs) / 1000;
      clock.textContent = `${seconds.toFixed(2)} s`;
      speed.textContent = isOver
        ? `${rate(tokensPerSecond({ ...run, end: null }))} tokens/s`
        : `${rate(seconds > 0 ? until / seconds : null)} tokens/s`;
      bar.value = until;
      element.classList.toggle("over", isOver);
      if (isOver && !isSettled) view.finish();
      isSettled = isOver;
      text.scrollTop = text.scrollHeight;
    },
  };
}
