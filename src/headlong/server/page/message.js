/** One message on the page: a question as it was sent, an answer while it comes and afterwards. */

import { AnswerView } from "./answer.js";
import { copyButton } from "./clipboard.js";
import { make } from "./dom.js";
import { attachHints } from "./hints.js";
import { renderReport } from "./report.js";
import { Thinking } from "./thinking.js";

/** Show what the user sent; `resend(text)` is called when it was edited. */
export function renderQuestion({ content, fields }, resend) {
  const note = fields?.response_format ? make("small", {}, "with a JSON schema") : null;
  const question = make("div", { class: "question" }, content, note);
  const edit = act("Edit", () => editQuestion(message, content, resend));
  const message = make("article", { class: "message asked", "aria-label": "Your message" },
    question, make("div", { class: "acts" }, copyButton("Copy", () => content), edit));
  edit.classList.add("changes");
  return message;
}

/** Put a form in the place of a question. Enter sends, Esc goes back. */
function editQuestion(message, content, resend) {
  const shown = [...message.childNodes];
  const input = make("textarea", { rows: Math.min(12, content.split("\n").length + 1), "aria-label": "Edit your message" });
  input.value = content;
  const cancel = () => {
    message.replaceChildren(...shown);
    message.querySelector(".changes").focus();
  };
  const form = make("form", { class: "edit" }, input,
    make("p", { class: "note" }, "The answer to this and all that followed will be replaced."),
    make("button", { type: "button", class: "button quiet", onclick: cancel }, "Cancel"),
    make("button", { type: "submit", class: "button" }, "Send"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (input.value.trim()) resend(input.value);
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape") cancel();
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    form.requestSubmit();
  });
  message.replaceChildren(form);
  input.focus();
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

  /** Nothing more comes: settle the text. */
  finish() {
    this.view.finish();
    this.thinking.finish();
  }

  /** Say what it took, and offer what can be done with it. */
  addFoot(run, regenerate) {
    const raw = act("Raw", () => {
      const isRaw = this.answer.classList.toggle("raw");
      raw.setAttribute("aria-pressed", String(isRaw));
    });
    raw.setAttribute("aria-pressed", "false");
    raw.title = "Show every sign as the model wrote it";
    const again = act("Regenerate", regenerate);
    again.classList.add("changes");
    const acts = make("div", { class: "acts" }, copyButton("Copy", () => this.view.text), raw, again);
    this.element.append(make("footer", { class: "foot" }, renderReport(run), acts));
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
export function renderKeptAnswer({ run }, regenerate) {
  const answer = new AnswerMessage();
  const tokens = run.tokens.map(unpackToken);
  answer.push(tokens);
  answer.finish();
  answer.addFoot({ ...run, tokens }, regenerate);
  return answer.element;
}

function act(name, onclick) {
  return make("button", { type: "button", class: "act", onclick }, name);
}

/** Tokens are most of what a conversation holds, so they are kept without names. */
function packToken({ text, source, depth, isThought }) {
  return isThought ? [text, source, depth, 1] : [text, source, depth];
}

function unpackToken([text, source, depth, isThought]) {
  return { text, source, depth, isThought: Boolean(isThought) };
}
