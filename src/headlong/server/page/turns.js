/** The turns of a race: each is one plain run and one with MTP. What they say together, and how surely. */

const TOO_FAR_APART = 1.25;

/** How much sooner a turn's run with MTP had the same number of tokens. */
export function speedupOf({ plain, fast }) {
  const [before, after] = [plain, fast].map((run) => run.decodeMs / Math.max(1, run.tokens.length - 1));
  return after > 0 ? before / after : null;
}

/**
 * Judge turns by the middle one; of two, by the slower. No gain of MTP is above its tokens per pass, since a pass with
 * drafts takes no less time than a plain one: what is measured beyond, the machine's other work did.
 */
export function judge(turns) {
  const sorted = [...turns].sort((one, other) => speedupOf(one) - speedupOf(other));
  const shown = sorted[Math.floor((sorted.length - 1) / 2)];
  const [least, speedup, most] = [sorted[0], shown, sorted.at(-1)].map(speedupOf);
  const tokensPerPass = shown.fast.end?.mtp?.acceptance_length ?? null;
  return {
    shown,
    speedup,
    least,
    most,
    tokensPerPass,
    isTooFast: tokensPerPass !== null && speedup > tokensPerPass,
    isUnsteady: most > TOO_FAR_APART * least,
  };
}
