/**
 * An answer on the page: one element per token, coloured by source, line by line.
 * Markdown is shown the way an editor shows it: headings, lists, bold and code get their looks, but
 * no character is hidden, since every token should be seen. Model text only ever becomes text nodes.
 */

import { make } from "./dom.js";
import { colourKey } from "./sources.js";

const FENCE = /^\s*(```|~~~)/;
const HEADING = /^#{1,6}\s/;
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
    if (FENCE.test(text)) this.toggleCode(line);
    else if (this.block === this.element) decorate(line, text, this.pieces);
    this.line = null;
    this.pieces = [];
  }

  toggleCode(fence) {
    fence.classList.add("fence");
    if (this.block !== this.element) {
      this.block = this.element;
      return;
    }
    this.block = make("div", { class: "code" });
    fence.replaceWith(this.block);
    this.block.append(fence);
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
  let looks = null;
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
