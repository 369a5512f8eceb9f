/** The hint at a token: where it came from, and its round lit up. By pointer or by tap. */

import { byId, make } from "./dom.js";
import { plural } from "./format.js";
import { colourKey, describeSource } from "./sources.js";

const MARGIN = 8;

/** Show hints for the tokens of an answer; hovering goes from token to token. */
export function attachHints(view) {
  const show = (event) => {
    const span = event.target.closest(".tok");
    if (span) showHint(view, view.tokens[Number(span.dataset.token)], span);
  };
  view.element.addEventListener("pointerover", show);
  view.element.addEventListener("click", show);
  view.element.addEventListener("pointerout", hideHint);
}

let lit = [];
document.addEventListener("pointerdown", hideHint); // a tap elsewhere puts the hint away
document.addEventListener("scroll", hideHint, { capture: true, passive: true });

function showHint(view, token, span) {
  hideHint();
  const round = view.tokens.filter((other) => other.round === token.round);
  lit = round.flatMap((other) => other.spans);
  for (const one of lit) one.classList.add("same-round");
  const hint = byId("tooltip");
  hint.replaceChildren(
    make("span", { class: `swatch s-${colourKey(token)}` }),
    make("b", {}, describeSource(token)),
    make("span", {}, `round ${token.round + 1}: ${plural(round.length, "token")} from one pass`),
  );
  hint.hidden = false;
  place(hint, span.getClientRects()[0] ?? span.getBoundingClientRect());
}

function hideHint() {
  for (const one of lit) one.classList.remove("same-round");
  lit = [];
  byId("tooltip").hidden = true;
}

function place(hint, target) {
  const { width, height } = hint.getBoundingClientRect();
  const left = target.left + target.width / 2 - width / 2;
  const above = target.top - height - MARGIN;
  hint.style.left = `${Math.max(MARGIN, Math.min(left, innerWidth - width - MARGIN))}px`;
  hint.style.top = `${above > MARGIN ? above : target.bottom + MARGIN}px`;
}
