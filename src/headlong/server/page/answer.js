/**
 * An answer on the page: one element per token, coloured by source, line by line.
 * Headings, lists, bold and code get their looks; their signs are marked, and seen in the raw view
 * alone (class "raw"). No character is dropped, and model text only ever becomes text nodes.
 */

import { copyButton } from "./clipboard.js";
import { make } from "./dom.js";
import { colourKey } from "./sources.js";

const FENCE = /^\s*(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^#{1,6}\s+/;
const ITEM = /^\s*([-*+]|\d+[.)])\s/;
const INLINE = /(\*\*)(?=\S)(.+?)(\*\*)|(`)([^`]+)(`)/g;

/** Number the rounds of a stream: a round is its accepted drafts and the model's own token behind them. */
export function makeRoundCounter() {
  let round = 0;
  return (token) => {
    const own = round;
    if (token.depth === 0) round += 1;
    return own;
  };
}

/** Shows tokens as they come. */
export class AnswerView {
  constructor(element) {
    this.element = element;
    this.tokens = [];
    this.roundOf = makeRoundCounter();
    this.pending = [];
    this.frame = 0;
    this.block = element; // where lines go: the answer, or an open code block in it
    this.fence = ""; // what opened the code block
    this.code = []; // its lines
    this.line = null;
    this.pieces = [];
  }

  /** Take tokens in; they appear with the next frame. */
  push(tokens) {
    this.pending.push(...tokens);
    this.frame ||= requestAnimationFrame(() => this.flush());
  }

  /** Show everything and settle the last line. */
  finish() {
    this.flush();
    if (this.line) this.settleLine();
  }

  /** The answer as plain text. */
  get text() {
    return [...this.tokens, ...this.pending].map((token) => token.text).join("");
  }

  flush() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    for (const token of this.pending.splice(0)) this.show(token);
  }

  show(token) {
    const previous = this.tokens.at(-1);
    const shown = { ...token, round: this.roundOf(token), isFirst: token.depth === 1 };
    if (token.depth === 0 && previous?.depth > 0) previous.spans.at(-1)?.classList.add("last");
    shown.spans = [];
    this.tokens.push(shown);
    const parts = token.text.split("\n");
    parts.forEach((part, i) => {
      if (part) this.addPiece(shown, part);
      if (i < parts.length - 1) {
        if (token.depth > 0 && i === 0) this.addPiece(shown, "", "break");
        this.settleLine();
      }
    });
  }

  addPiece(token, text, extra = "") {
    this.line ??= this.block.appendChild(make("div", { class: "line" }));
    const first = token.isFirst && !token.spans.length ? "first" : "";
    const span = make("span", { class: `tok s-${colourKey(token)} ${first} ${extra}` }, text);
    span.dataset.token = String(this.tokens.length - 1);
    token.spans.push(span);
    this.line.append(span);
    this.pieces.push({ span, text });
  }

  /** A line is complete: give it its looks and begin the next. */
  settleLine() {
    const line = this.line ?? this.block.appendChild(make("div", { class: "line" }));
    const text = this.pieces.map((piece) => piece.text).join("");
    const [, fence, info] = FENCE.exec(text) ?? [];
    if (!this.fence && fence) this.beginCode(line, fence, info.trim());
    else if (fence?.startsWith(this.fence) && !info.trim()) this.endCode(line);
    else if (this.fence) this.code.push(text);
    else decorate(line, text, this.pieces);
    this.line = null;
    this.pieces = [];
  }

  beginCode(line, fence, info) {
    const lines = [];
    const language = info.split(/\s/)[0];
    const copy = copyButton("Copy", () => lines.join("\n"));
    copy.ariaLabel = "Copy this code";
    const bar = make("div", { class: "code-bar" }, make("span", {}, language || "code"), copy);
    const label = language ? `Code, ${language}` : "Code";
    this.block = make("div", { class: "code", role: "group", "aria-label": label, tabindex: 0 }, bar);
    this.fence = fence;
    this.code = lines;
    line.classList.add("fence");
    line.replaceWith(this.block);
    this.block.append(line);
  }

  endCode(line) {
    line.classList.add("fence");
    this.fence = "";
    this.block = this.element;
  }
}

function decorate(line, text, pieces) {
  if (HEADING.test(text)) line.classList.add("heading");
  if (ITEM.test(text)) line.classList.add("item");
  const looks = inlineLooks(text);
  if (!looks) return;
  let start = 0;
  for (const { span, text: own } of pieces) {
    if (own) span.replaceChildren(...styledRuns(own, looks.slice(start, start + own.length)));
    start += own.length;
  }
}

/** One look per character of a line: "" plain, "mark" for the signs themselves, "b" or "code". */
function inlineLooks(text) {
  const heading = HEADING.exec(text);
  let looks = heading && new Array(text.length).fill("").fill("mark", 0, heading[0].length);
  for (const match of text.matchAll(INLINE)) {
    looks ??= new Array(text.length).fill("");
    const sign = (match[1] ?? match[4]).length;
    const end = match.index + match[0].length;
    looks.fill("mark", match.index, end);
    looks.fill(match[1] ? "b" : "code", match.index + sign, end - sign);
  }
  return looks;
}

function styledRuns(text, looks) {
  const runs = [];
  let start = 0;
  for (let i = 1; i <= text.length; i += 1) {
    if (i < text.length && looks[i] === looks[start]) continue;
    const run = text.slice(start, i);
    if (!looks[start]) runs.push(document.createTextNode(run));
    else if (looks[start] === "mark") runs.push(make("span", { class: "mark" }, run));
    else runs.push(make(looks[start], {}, run));
    start = i;
  }
  return runs;
}
