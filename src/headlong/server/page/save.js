/** A conversation as a file: Markdown to read, JSON to go on with in another program. */

import { make } from "./dom.js";

const NAMES = { user: "You", assistant: "Answer" };

/** Save a conversation under its title; `kind` is "md" or "json". */
export function saveConversation(conversation, kind) {
  const text = kind === "json" ? asJson(conversation) : asMarkdown(conversation);
  const url = URL.createObjectURL(new Blob([text], { type: kind === "json" ? "application/json" : "text/markdown" }));
  const name = conversation.title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 40);
  make("a", { href: url, download: `${name || "conversation"}.${kind}` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** The title, then each message under a heading; thoughts as a quote before their answer. */
function asMarkdown({ title, messages }) {
  const parts = messages.map(({ role, content, reasoning }) => {
    const thoughts = reasoning ? `${reasoning.trim().replace(/^/gm, "> ")}\n\n` : "";
    return `## ${NAMES[role]}\n\n${thoughts}${content.trim()}\n`;
  });
  return `# ${title}\n\n${parts.join("\n")}`;
}

/** The messages in the API's own form, and what each answer took. */
function asJson({ title, changedMs, messages }) {
  const told = messages.map(({ role, content, reasoning, run }) => ({
    role,
    content,
    ...(reasoning && { reasoning_content: reasoning }),
    ...(run && { finish_reason: run.end?.finishReason ?? "stopped", usage: run.end?.usage, mtp: run.end?.mtp }),
  }));
  const changed = changedMs ? new Date(changedMs).toISOString() : undefined;
  return `${JSON.stringify({ title, changed, messages: told }, null, 2)}\n`;
}
