/**
 * Conversations, kept in this browser and nowhere else. They are bounded in number and in size: the
 * ones longest untouched go first. Every write reads what is there, so that two tabs keep both of theirs.
 */

const STORE = "headlong.conversations";
const CURRENT = "headlong.conversation"; // of this tab: a reload goes on where it was
const MAX_CONVERSATIONS = 50;
const MAX_CHARACTERS = 2_000_000; // browsers give an origin about five million
const TITLE_LENGTH = 60;

/** Begin a conversation; it is kept from its first message on. */
export function newConversation() {
  const words = crypto.getRandomValues(new Uint32Array(2));
  return { id: [...words].map((word) => word.toString(36)).join("-"), title: "", changedMs: 0, messages: [] };
}

/** List what is kept, the latest first. */
export function listConversations() {
  return read().sort((one, other) => other.changedMs - one.changedMs);
}

/** Find the conversation this tab had open. */
export function currentConversation() {
  const id = sessionStorage.getItem(CURRENT);
  return read().find((one) => one.id === id) ?? null;
}

/** Remember which conversation this tab has open. */
export function setCurrent(id) {
  sessionStorage.setItem(CURRENT, id);
}

/** Keep a conversation as it stands; false where it does not fit. */
export function keepConversation(conversation) {
  const kept = read().find((one) => one.id === conversation.id);
  conversation.title = kept?.title || conversation.title || titleOf(conversation.messages);
  conversation.changedMs = Date.now();
  return write([conversation, ...listConversations().filter((one) => one.id !== conversation.id)]);
}

/** Give a conversation another title; an empty one changes nothing. */
export function renameConversation(id, title) {
  const name = title.trim().slice(0, TITLE_LENGTH);
  if (name) write(listConversations().map((one) => (one.id === id ? { ...one, title: name } : one)));
}

/** Forget a conversation. */
export function removeConversation(id) {
  write(listConversations().filter((one) => one.id !== id));
}

/** Forget all. */
export function removeAllConversations() {
  localStorage.removeItem(STORE);
}

function titleOf(messages) {
  const words = messages.find((one) => one.role === "user")?.content.replace(/\s+/g, " ").trim() ?? "";
  return words.length > TITLE_LENGTH ? `${words.slice(0, TITLE_LENGTH - 1)}…` : words;
}

function read() {
  try {
    const kept = JSON.parse(localStorage.getItem(STORE)) ?? [];
    return kept.filter((one) => one.id && one.messages.every(isMessage));
  } catch {
    return []; // another version's, or damaged: the next write replaces it
  }
}

function isMessage({ role, content, run }) {
  return typeof content === "string" && (role === "user" || Array.isArray(run.tokens));
}

/** Write as many as fit, the first ones first; when not even the first does, nothing changes. */
function write(conversations) {
  const texts = [];
  let length = 2;
  for (const text of conversations.slice(0, MAX_CONVERSATIONS).map((one) => JSON.stringify(one))) {
    length += text.length + 1;
    if (length > MAX_CHARACTERS) break;
    texts.push(text);
  }
  const isEmptied = conversations.length === 0;
  while (isEmptied || texts.length) {
    try {
      localStorage.setItem(STORE, `[${texts.join(",")}]`);
      return true;
    } catch (error) {
      if (error.name !== "QuotaExceededError") throw error;
      texts.pop();
    }
  }
  return false;
}
