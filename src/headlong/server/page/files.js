/** Files as text in a message: dropped on the chat or chosen. They are read here and sent with the message. */

import { byId } from "./dom.js";
import { count } from "./format.js";

const MAX_BYTES = 256 * 1024; // about sixty thousand tokens of prose

/** Wire the chat for files; `add(text)` gets each as a block to put into the message. */
export function wireFiles(add) {
  const area = byId("view-chat");
  const chosen = byId("file-input");
  const take = async (files) => {
    for (const file of files) await takeFile(file, add);
  };
  const mark = (event, isOver) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault(); // else the browser leaves the page and opens the file
    area.classList.toggle("dropping", isOver);
  };
  area.addEventListener("dragover", (event) => mark(event, true));
  area.addEventListener("dragleave", (event) => area.contains(event.relatedTarget) || mark(event, false));
  area.addEventListener("drop", (event) => {
    mark(event, false);
    take([...event.dataTransfer.files]);
  });
  byId("add-file").addEventListener("click", () => chosen.click());
  chosen.addEventListener("change", async () => {
    await take([...chosen.files]);
    chosen.value = ""; // the same file can be chosen again
  });
}

async function takeFile(file, add) {
  const note = byId("chat-note");
  note.textContent = "";
  if (file.size > MAX_BYTES) {
    note.textContent = `${file.name} has ${count(file.size)} bytes; a file in a message has ${count(MAX_BYTES)} at most.`;
    return;
  }
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (text.includes("\0")) throw new TypeError("a zero byte");
    add(asBlock(file.name, text));
  } catch {
    note.textContent = `${file.name} is not text in UTF-8, so it cannot be put into a message.`;
  }
}

/** A file as a code block whose fence is longer than any in it. */
function asBlock(name, text) {
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map(([run]) => run.length));
  const fence = "`".repeat(longest + 1);
  const kind = /\.(\w+)$/.exec(name)?.[1] ?? "";
  return `${name}:\n${fence}${kind}\n${text.replace(/\n$/, "")}\n${fence}\n`;
}
