/** Copying text: by the browser's clipboard, or by a selection where plain http from another machine has none. */

import { announce, make } from "./dom.js";

const SHOWN_MS = 1500;

/** Make a button that copies what `text()` says when it is pressed, and says so. */
export function copyButton(name, text) {
  const button = make("button", { type: "button", class: "act" }, name);
  button.addEventListener("click", async () => {
    const news = (await copy(text())) ? "Copied" : "Not copied";
    button.textContent = news;
    announce(news);
    setTimeout(() => (button.textContent = name), SHOWN_MS);
  });
  return button;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copySelection(text); // no clipboard here, or not allowed
  }
}

function copySelection(text) {
  const focused = document.activeElement;
  const field = document.body.appendChild(make("textarea", { class: "hidden-text", "aria-hidden": "true" }));
  field.value = text;
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  focused?.focus();
  return isCopied;
}
