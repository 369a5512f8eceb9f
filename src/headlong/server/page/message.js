/** One message on the page: a question as it was sent, an answer while it comes and afterwards. */

import { AnswerView } from "./answer.js";
import { make } from "./dom.js";
import { attachHints } from "./hints.js";
import { renderReport } from "./report.js";
import { Thinking } from "./thinking.js";

/** Show what the user sent. */
export function renderQuestion({ content, fields }) {
  const note = fields?.response_format ? make("small", {}, "with a JSON schema") : null;
  return make("article", { class: "message asked", "aria-label": "Your message" },
    make("div", { class: "question" }, content, note));
}

/** An answer and the thoughts before it. */
export class AnswerMessage {
  constructor() {
    this.answer = make("div", { class: "answer" });
    this.element = make("article", { class: "message", "aria-label": "Answer" }, this.answer);
    this.view = new AnswerView(this.answer);
    this.thinking = new Thinking(this.answer);
    attachHints(this.view);
  }

  /** Take tokens in. */
  push(tokens) {
    this.thinking.push(tokens.filter((token) => token.isThought));
    this.view.push(tokens.filter((token) => !token.isThought));
  }

  /** Nothing more comes: settle the text, and say what it took. */
  finish(run) {
    this.view.finish();
    this.thinking.finish();
    if (run) this.element.append(renderReport(run));
  }

  /** The answer as a message to send and to keep. */
  toMessage(run) {
    return {
      role: "assistant",
      content: this.view.text,
      ...(this.thinking.text && { reasoning: this.thinking.text }),
      run: { ...run, tokens: run.tokens.map(packToken) },
    };
  }
}

/** Show a kept answer as it was. */
export function renderKeptAnswer({ run }) {
  const answer = new AnswerMessage();
  const tokens = run.tokens.map(unpackToken);
  answer.push(tokens);
  answer.finish({ ...run, tokens });
  return answer;
}

/** Tokens are most of what a conversation holds, so they are kept without names. */
function packToken({ text, source, depth, isThought }) {
  return isThought ? [text, source, depth, 1] : [text, source, depth];
}

function unpackToken([text, source, depth, isThought]) {
  return { text, source, depth, isThought: Boolean(isThought) };
}
