/**
 * The server's HTTP interface: one place that knows addresses, the key and how errors look.
 * The key lives in sessionStorage: it is gone with the tab and never leaves for another host.
 */

import { readEvents } from "./sse.js";

const KEY = "headlong.api-key";
const listeners = new Set();
let needsKey = false;

/** A refusal by the server, in its own words. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The key in use; empty when there is none. */
export function apiKey() {
  return sessionStorage.getItem(KEY) ?? "";
}

/** Use this key from now on. */
export function setApiKey(key) {
  sessionStorage.setItem(KEY, key);
  needsKey = false;
}

/** Whether the server has refused us for want of a good key, and no other was given since. */
export function isLockedOut() {
  return needsKey;
}

/** Call `listener(problem)` whenever the server wants a key, or another one. */
export function onKeyProblem(listener) {
  listeners.add(listener);
}

/** Fetch a JSON document. */
export async function getJson(path) {
  const response = await call(path, {});
  return response.json();
}

/**
 * Ask for an answer and yield what arrives: `{ tokens, at }` with tokens of `{ text, isThought, source, depth, id }`
 * and the moment of arrival in ms, and last `{ end: { finishReason, mtp, usage, timings } }`.
 */
export async function* streamChat(body, signal) {
  const response = await call("v1/chat/completions", {
    method: "POST",
    body: JSON.stringify({
      ...body,
      stream: true,
      return_sources: true,
      return_token_ids: true,
      stream_options: { include_usage: true },
    }),
    headers: { "content-type": "application/json" },
    signal,
  });
  const end = { finishReason: null, mtp: null, usage: null, timings: null };
  for await (const data of readEvents(response.body)) {
    if (data === "[DONE]") break;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(500, chunk.error.message);
    const choice = chunk.choices?.[0];
    end.finishReason = choice?.finish_reason ?? end.finishReason;
    end.mtp = chunk.mtp ?? end.mtp;
    end.usage = chunk.usage ?? end.usage;
    end.timings = chunk.timings ?? end.timings;
    if (!choice?.sources?.length) continue;
    const tokens = choice.sources.map((token, i) => ({
      ...token,
      text: token.reasoning ?? token.text,
      isThought: Boolean(token.reasoning),
      id: choice.token_ids?.[i],
    }));
    yield { tokens, at: performance.now() };
  }
  yield { end };
}

async function call(path, options) {
  const key = apiKey();
  const headers = { ...options.headers, ...(key && { authorization: `Bearer ${key}` }) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server cannot be reached. Is it still running?");
  }
  if (response.ok) return response;
  const problem = new ApiError(response.status, await messageOf(response));
  if (response.status === 401) {
    needsKey = true;
    problem.message = key
      ? "The server does not accept this API key. Check it and try again."
      : "This server asks for an API key.";
    for (const listener of listeners) listener(problem.message);
  }
  throw problem;
}

/** Read the sentence out of an error body in OpenAI's form. */
async function messageOf(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return `The server answered ${response.status}: ${text.slice(0, 200) || response.statusText}`;
  }
}
