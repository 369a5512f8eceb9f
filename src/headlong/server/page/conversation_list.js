/** The list of kept conversations: open, rename, delete. A dialog, so that it suits every width and Esc closes it. */

import { listConversations, removeAllConversations, removeConversation, renameConversation } from "./conversations.js";
import { announce, byId, make } from "./dom.js";
import { dayAndTime, plural } from "./format.js";

export class ConversationList {
  /** `open(conversation)` gets the one chosen, `changed()` is called when some were renamed or deleted. */
  constructor({ open, changed }) {
    this.open = open;
    this.changed = changed;
    this.dialog = byId("conversations");
    this.list = byId("conversation-list");
    byId("conversations-open").addEventListener("click", () => this.show());
    byId("conversations-close").addEventListener("click", () => this.dialog.close());
    askTwice(byId("conversations-clear"), () => {
      removeAllConversations();
      this.settle("All conversations deleted.");
      this.dialog.close();
    });
  }

  show() {
    this.render();
    this.dialog.showModal();
    (this.list.querySelector(".open") ?? byId("conversations-close")).focus();
  }

  render() {
    this.list.replaceChildren(...listConversations().map((one) => this.row(one)));
  }

  row(conversation) {
    const { id, title, messages, changedMs } = conversation;
    const open = () => {
      this.dialog.close();
      this.open(conversation);
    };
    const facts = `${plural(messages.length, "message")}, ${dayAndTime(changedMs)}`;
    const row = make("li", {}, make("button", { type: "button", class: "open", onclick: open },
      make("span", { class: "title" }, title), make("small", {}, facts)));
    const rename = make("button", { type: "button", class: "act", "aria-label": `Rename ${title}` }, "Rename");
    rename.addEventListener("click", () => this.rename(row, conversation));
    const remove = make("button", { type: "button", class: "act", "aria-label": `Delete ${title}` }, "Delete");
    askTwice(remove, () => {
      const next = row.nextElementSibling ?? row.previousElementSibling;
      removeConversation(id);
      row.remove();
      this.settle("Conversation deleted.");
      (next?.querySelector(".open") ?? byId("conversations-close")).focus();
    });
    row.append(rename, remove);
    return row;
  }

  /** Put a field in the place of the title: Enter keeps what it says, Esc does not. */
  rename(row, conversation) {
    const input = make("input", { type: "text", value: conversation.title, maxlength: 60, "aria-label": "New title" });
    const end = (isKept) => {
      if (isKept) renameConversation(conversation.id, input.value);
      this.settle("");
      const position = [...this.list.children].indexOf(row);
      this.render();
      this.list.children[position]?.querySelector(".open").focus();
    };
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.preventDefault();
      end(event.key === "Enter");
    });
    const keep = make("button", { type: "button", class: "act", onclick: () => end(true) }, "Keep");
    row.replaceChildren(input, keep);
    input.select();
  }

  settle(news) {
    if (news) announce(news);
    this.changed();
  }
}

/** A button that does something final asks by its own text, and acts on the second click. */
function askTwice(button, act) {
  const name = button.textContent;
  const label = button.ariaLabel;
  const reset = () => {
    delete button.dataset.sure;
    button.textContent = name;
    button.ariaLabel = label;
  };
  button.addEventListener("blur", reset);
  button.addEventListener("click", () => {
    if (button.dataset.sure) {
      reset();
      act();
      return;
    }
    button.dataset.sure = "true";
    button.textContent = "Really delete?";
    button.ariaLabel = null;
  });
}
