/** A run of one prompt as it really went: every token with the moment it arrived. */

import { makeRoundCounter } from "./answer.js";
import { streamChat } from "./api.js";

const SAME_READ_MS = 0.5;

/**
 * Run a request and keep what came when. Times are in ms since the first token; `onProgress(number)`
 * hears how many tokens there are.
 */
export async function record(body, signal, onProgress) {
  const roundOf = makeRoundCounter();
  const run = { tokens: [], end: null, firstTokenMs: 0, decodeMs: 0 };
  const started = performance.now();
  let first = 0;
  for await (const event of streamChat(body, signal)) {
    if (event.end) {
      run.end = event.end;
      continue;
    }
    first ||= event.at;
    for (const token of event.tokens) {
      run.tokens.push({ ...token, at: event.at - first, round: roundOf(token) });
    }
    onProgress(run.tokens.length);
  }
  run.firstTokenMs = first - started;
  spreadReads(run.tokens);
  run.decodeMs = run.tokens.at(-1)?.at ?? 0;
  return run;
}

/**
 * Compare two runs token by token. `differsAt` is the first place where they part, null when every
 * token and the end are the same.
 */
export function compareRuns(one, other) {
  const length = Math.max(one.tokens.length, other.tokens.length);
  for (let i = 0; i < length; i += 1) {
    if (!isSameToken(one.tokens[i], other.tokens[i])) return { differsAt: i, length };
  }
  const hasSameEnd = one.end?.finishReason === other.end?.finishReason;
  return { differsAt: hasSameEnd ? null : length, length };
}

function isSameToken(one, other) {
  return one?.id === other?.id && one?.text === other?.text;
}

/**
 * The network may hand over several rounds in one read, as if they had been made at once. Spread such
 * rounds evenly over the time since the read before; first and last stay where they were.
 */
function spreadReads(tokens) {
  let start = 0;
  let before = 0;
  for (let i = 1; i <= tokens.length; i += 1) {
    if (i < tokens.length && tokens[i].at - tokens[start].at < SAME_READ_MS) continue;
    const read = tokens.slice(start, i);
    const at = read.at(-1).at;
    const rounds = [...new Set(read.map((token) => token.round))];
    for (const token of read) {
      token.at = before + ((rounds.indexOf(token.round) + 1) / rounds.length) * (at - before);
    }
    before = at;
    start = i;
  }
}
