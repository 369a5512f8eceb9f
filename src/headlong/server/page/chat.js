/** The conversation: sends messages, shows answers as they stream, can be stopped at any token. */

import { AnswerView } from "./answer.js";
import { streamChat } from "./api.js";
import { announce, byId, make } from "./dom.js";
import { rate } from "./format.js";
import { attachHints } from "./hints.js";
import { renderReport, tokensPerSecond } from "./report.js";
import { renderSamples } from "./samples.js";
import { readSettings } from "./settings.js";
import { Thinking } from "./thinking.js";

const NEAR_END = 80;

/** Wires the chat view; `modelName()` is what requests ask for. */
export class Chat {
  constructor(modelName) {
    this.modelName = modelName;
    this.messages = [];
    this.abort = null;
    this.isFollowing = true;
    this.log = byId("conversation");
    this.input = byId("message");
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send(this.input.value);
    });
    this.input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.send(this.input.value);
    });
    this.input.addEventListener("input", () => this.growInput());
    this.log.addEventListener("scroll", () => {
      const rest = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight;
      this.isFollowing = rest < NEAR_END;
    });
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.abort?.abort());
    byId("stop").addEventListener("click", () => this.abort?.abort());
    byId("new-chat").addEventListener("click", () => this.reset());
    renderSamples(document.querySelector('[data-samples="chat"]'), (prompt, fields) => this.send(prompt, fields));
  }

  /** Send a message; `fields` go into this one request only. */
  async send(text, fields = {}) {
    const question = text.trim();
    if (!question || this.abort) return;
    this.input.value = "";
    this.growInput();
    byId("chat-welcome").hidden = true;
    const note = fields.response_format ? make("small", {}, "with a JSON schema") : null;
    this.log.append(make("div", { class: "message question" }, question, note));
    this.messages.push({ role: "user", content: question });
    await this.answer(fields);
  }

  /** Ask for the answer to the conversation as it stands. */
  async answer(fields) {
    const { body, system } = readSettings(byId("settings"));
    const messages = system ? [{ role: "system", content: system }, ...this.messages] : this.messages;
    const element = make("div", { class: "answer" });
    const article = make("article", { class: "message" }, element);
    const view = new AnswerView(element);
    const thinking = new Thinking(element);
    attachHints(view);
    this.log.append(article);
    this.setBusy(true);
    this.isFollowing = true;
    this.follow();
    try {
      const run = await this.receive({ view, thinking }, article, { ...body, ...fields, model: this.modelName() || undefined, messages });
      const thought = thinking.text && { reasoning_content: thinking.text };
      if (view.text) this.messages.push({ role: "assistant", content: view.text, ...thought });
      article.append(renderReport(run));
      announce(`Answer complete, ${run.tokens.length} tokens, ${rate(tokensPerSecond(run))} tokens per second.`);
    } catch (error) {
      this.showError(article, error, fields);
    }
    this.setBusy(false);
    this.follow();
  }

  /** Stream one answer into its view; a stop by the user is an end like any other. */
  async receive({ view, thinking }, article, body) {
    const run = { tokens: [], end: null, firstTokenMs: 0, decodeMs: 0 };
    const started = performance.now();
    const speed = article.appendChild(make("div", { class: "speed", "aria-hidden": "true" }, "reading the prompt…"));
    let first = 0;
    try {
      for await (const event of streamChat(body, this.abort.signal)) {
        if (event.end) {
          run.end = event.end;
          break;
        }
        first ||= event.at;
        run.tokens.push(...event.tokens);
        run.firstTokenMs = first - started;
        run.decodeMs = event.at - first;
        thinking.push(event.tokens.filter((token) => token.isThought));
        view.push(event.tokens.filter((token) => !token.isThought));
        if (run.decodeMs > 0) speed.textContent = `${rate(tokensPerSecond(run))} tokens/s`;
        this.follow();
      }
    } catch (error) {
      if (!this.abort.signal.aborted) throw error;
    } finally {
      view.finish();
      thinking.finish();
      speed.remove();
    }
    return run;
  }

  showError(article, error, fields) {
    const retry = () => {
      article.remove();
      this.answer(fields);
    };
    article.append(
      make(
        "div",
        { class: "error", role: "alert" },
        make("span", {}, error.message),
        make("button", { class: "button quiet", type: "button", onclick: retry }, "Try again"),
      ),
    );
  }

  setBusy(isBusy) {
    this.abort = isBusy ? new AbortController() : null;
    byId("send").hidden = isBusy;
    byId("stop").hidden = !isBusy;
    byId("new-chat").hidden = isBusy;
    if (!isBusy) this.input.focus({ preventScroll: true });
  }

  reset() {
    this.messages = [];
    for (const message of this.log.querySelectorAll(".message")) message.remove();
    byId("chat-welcome").hidden = false;
    byId("new-chat").hidden = true;
  }

  /** Keep the newest text in sight, unless the reader has scrolled up. */
  follow() {
    if (this.isFollowing) this.log.scrollTop = this.log.scrollHeight;
  }

  growInput() {
    this.input.style.height = "auto";
    this.input.style.height = `${Math.min(this.input.scrollHeight, 180)}px`;
  }
}
