/** What a model thinks before it answers: a block that stays closed until somebody opens it. */

import { AnswerView } from "./answer.js";
import { make } from "./dom.js";
import { attachHints } from "./hints.js";

export class Thinking {
  /** `answer` is the element that the block stands before, once there is a thought. */
  constructor(answer) {
    this.answer = answer;
    this.view = null;
  }

  /** Take tokens of the reasoning in. */
  push(tokens) {
    if (!tokens.length) return;
    if (!this.view) this.begin();
    this.view.push(tokens);
  }

  /** The answer begins, or nothing more comes. */
  finish() {
    this.view?.finish();
    if (this.view) this.title.textContent = "Thoughts";
  }

  /** The reasoning as plain text. */
  get text() {
    return this.view?.text ?? "";
  }

  begin() {
    const element = make("div", { class: "thought" });
    this.title = make("summary", {}, "Thinking…");
    this.answer.before(make("details", { class: "thinking" }, this.title, element));
    this.view = new AnswerView(element);
    attachHints(this.view);
  }
}
