/** The conversation: sends messages, shows answers as they stream, can be stopped at any token. */

import { streamChat } from "./api.js";
import { ConversationList } from "./conversation_list.js";
import { currentConversation, keepConversation, listConversations, newConversation, setCurrent } from "./conversations.js";
import { announce, byId, make } from "./dom.js";
import { wireFiles } from "./files.js";
import { rate } from "./format.js";
import { AnswerMessage, renderKeptAnswer, renderQuestion } from "./message.js";
import { tokensPerSecond } from "./report.js";
import { renderSamples } from "./samples.js";
import { saveConversation } from "./save.js";
import { readSettings } from "./settings.js";

const NEAR_END = 80;

/** Wires the chat view; `modelName()` is what requests ask for. */
export class Chat {
  constructor(modelName) {
    this.modelName = modelName;
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
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !document.querySelector("dialog[open]")) this.abort?.abort();
    });
    byId("stop").addEventListener("click", () => this.abort?.abort());
    byId("new-chat").addEventListener("click", () => {
      this.open(newConversation());
      this.input.focus();
    });
    wireFiles((text) => this.addText(text));
    for (const kind of ["md", "json"]) {
      byId(`export-${kind}`).addEventListener("click", () => this.save(kind));
    }
    document.addEventListener("pointerdown", (event) => {
      if (!byId("export").contains(event.target)) byId("export").open = false;
    });
    byId("export").addEventListener("keydown", (event) => event.key === "Escape" && this.closeMenu());
    renderSamples(document.querySelector('[data-samples="chat"]'), (prompt, fields) => this.send(prompt, fields));
    new ConversationList({
      open: (conversation) => this.open(conversation),
      changed: () => this.refresh(),
    });
    this.open(currentConversation() ?? newConversation());
  }

  get messages() {
    return this.conversation.messages;
  }

  /** Show a conversation and go on in it. */
  open(conversation) {
    this.conversation = conversation;
    this.isKept = conversation.title !== "";
    setCurrent(conversation.id);
    byId("chat-note").textContent = "";
    for (const message of this.log.querySelectorAll(".message")) message.remove();
    for (const message of this.messages) {
      this.log.append(message.role === "user" ? this.question(message) : renderKeptAnswer(message, () => this.again(message)));
    }
    this.isFollowing = true;
    this.follow();
    this.showBar();
  }

  /** Put text behind what is being written. */
  addText(text) {
    const before = this.input.value.trimEnd();
    this.input.value = before ? `${before}\n\n${text}` : text;
    this.growInput();
    this.input.focus();
  }

  save(kind) {
    saveConversation(this.conversation, kind);
    this.closeMenu();
  }

  closeMenu() {
    byId("export").open = false;
    byId("export").querySelector("summary").focus();
  }

  /** Follow the list: the open conversation may have another title, or be gone. */
  refresh() {
    const kept = currentConversation();
    if (kept || this.isKept) this.open(kept ?? newConversation());
  }

  /** Send a message; `fields` go into this one request only. */
  async send(text, fields = {}) {
    const content = text.trim();
    if (!content || this.abort) return;
    this.input.value = "";
    this.growInput();
    const message = { role: "user", content, ...(Object.keys(fields).length && { fields }) };
    this.messages.push(message);
    this.log.append(this.question(message));
    await this.answer();
  }

  question(message) {
    return renderQuestion(message, (text) => {
      if (this.abort) return;
      this.backTo(message);
      this.send(text, message.fields);
    });
  }

  /** Answer once more what this message answered. */
  again(message) {
    if (this.abort) return;
    this.backTo(message);
    this.answer();
  }

  /** Take the conversation back to where this message was about to come. */
  backTo(message) {
    const at = this.messages.indexOf(message);
    if (at >= 0) this.messages.length = at;
    this.open(this.conversation);
  }

  /** Ask for the answer to the conversation as it stands. */
  async answer() {
    const { body, system } = readSettings(byId("settings"));
    const fields = this.messages.at(-1).fields ?? {};
    const messages = [...(system ? [{ role: "system", content: system }] : []), ...this.messages.flatMap(toSend)];
    const shown = new AnswerMessage();
    this.log.append(shown.element);
    this.setBusy(true);
    this.isFollowing = true;
    this.follow();
    try {
      const run = await this.receive(shown, { ...body, ...fields, model: this.modelName() || undefined, messages });
      shown.finish();
      const message = shown.toMessage(run);
      shown.addFoot(run, () => this.again(message));
      if (run.tokens.length) this.messages.push(message);
      this.keep();
      announce(`Answer complete, ${run.tokens.length} tokens, ${rate(tokensPerSecond(run))} tokens per second.`);
    } catch (error) {
      shown.finish();
      this.showError(shown.element, error);
    }
    this.setBusy(false);
    this.follow();
  }

  keep() {
    this.isKept = keepConversation(this.conversation);
    byId("chat-note").textContent = this.isKept ? "" : "Too long to be kept in this browser: it is gone with this tab.";
  }

  /** Stream one answer into its view; a stop by the user is an end like any other. */
  async receive(shown, body) {
    const run = { tokens: [], end: null, firstTokenMs: 0, decodeMs: 0 };
    const started = performance.now();
    const speed = shown.element.appendChild(make("div", { class: "speed", "aria-hidden": "true" }, "reading the prompt…"));
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
        shown.push(event.tokens);
        if (run.decodeMs > 0) speed.textContent = `${rate(tokensPerSecond(run))} tokens/s`;
        this.follow();
      }
    } catch (error) {
      if (!this.abort.signal.aborted) throw error;
    } finally {
      speed.remove();
    }
    return run;
  }

  showError(article, error) {
    const retry = () => {
      article.remove();
      this.answer();
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
    this.showBar();
    if (!isBusy) this.input.focus({ preventScroll: true });
  }

  /** The line above a conversation; nothing in it may change one that is being answered. */
  showBar() {
    const isBusy = this.abort !== null;
    const isBegun = this.messages.length > 0;
    this.log.dataset.busy = String(isBusy);
    byId("chat-welcome").hidden = isBegun;
    byId("conversation-title").textContent = this.conversation.title;
    byId("conversations-open").hidden = !listConversations().length;
    byId("conversations-open").disabled = isBusy;
    byId("export").hidden = !isBegun || isBusy;
    byId("new-chat").hidden = !isBegun;
    byId("new-chat").disabled = isBusy;
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

/** A message as the server takes it; thoughts that led to no answer stay here. */
function toSend({ role, content, reasoning }) {
  if (!content) return [];
  return [{ role, content, ...(reasoning && { reasoning_content: reasoning }) }];
}
