/** The race: the same prompt and seed, plain and with MTP, each alone; then both on one stage. */

import { getJson } from "./api.js";
import { byId } from "./dom.js";
import { plural } from "./format.js";
import { compareRuns, record } from "./recording.js";
import { renderSamples } from "./samples.js";
import { readSettings } from "./settings.js";
import { Stage } from "./stage.js";

const PROGRESS_MS = 200;

/** Wires the race view; `modelName()` is what requests ask for. */
export class Race {
  constructor(modelName) {
    this.modelName = modelName;
    this.abort = null;
    this.stage = null;
    this.prompt = byId("race-prompt");
    this.status = byId("race-status");
    byId("race-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.start();
    });
    byId("race-stop").addEventListener("click", () => this.abort?.abort());
    renderSamples(document.querySelector('[data-samples="race"]'), (prompt, fields) => {
      this.prompt.value = prompt;
      this.start(fields);
    });
  }

  /** Race the prompt in the form; `fields` go into these requests only. */
  async start(fields = {}) {
    const prompt = this.prompt.value.trim();
    if (!prompt || this.abort) return;
    this.setBusy(true);
    try {
      await this.run(prompt, fields);
      this.status.textContent = "";
    } catch (error) {
      this.status.textContent = this.abort.signal.aborted ? "Stopped." : error.message;
    }
    this.setBusy(false);
  }

  async run(prompt, fields) {
    const { body, system } = readSettings(byId("settings"));
    const messages = [...(system ? [{ role: "system", content: system }] : []), { role: "user", content: prompt }];
    const seed = body.seed ?? Math.floor(Math.random() * 2 ** 31);
    const shared = { ...body, ...fields, model: this.modelName() || undefined, messages, seed };
    const mtp = body.mtp === "off" ? "auto" : body.mtp;
    this.stage?.close();
    byId("race-stage").hidden = true;
    this.status.textContent = "Reading the prompt…";
    // Both shall find the prompt in the prefix cache: whoever runs first would else pay for reading it.
    await record({ ...shared, mtp, max_tokens: 1 }, this.abort.signal, () => {});
    const isShared = [await isBusy()];
    const plain = await this.take("1 of 2 · plain", { ...shared, mtp: "off" });
    isShared.push(await isBusy());
    const fast = await this.take("2 of 2 · MTP", { ...shared, mtp });
    const name = mtp === "auto" ? "MTP, auto" : `MTP, K = ${mtp}`;
    const runs = [{ name: "Plain", run: plain }, { name, run: fast }];
    const verdict = { ...compareRuns(plain, fast), isShared: isShared.includes(true) };
    this.stage = new Stage(byId("race-stage"), runs, verdict);
    this.stage.play();
  }

  /** Record one run. Nothing is drawn but a number now and then: painting would cost it time. */
  async take(name, body) {
    let shown = 0;
    const onProgress = (number) => {
      const now = performance.now();
      if (now - shown < PROGRESS_MS) return;
      shown = now;
      this.status.textContent = `${name}, by itself: ${plural(number, "token")}`;
    };
    return record(body, this.abort.signal, onProgress);
  }

  setBusy(isBusy) {
    this.abort = isBusy ? new AbortController() : null;
    byId("race-start").hidden = isBusy;
    byId("race-stop").hidden = !isBusy;
    for (const button of document.querySelectorAll('[data-samples="race"] button')) button.disabled = isBusy;
  }
}

/** Whether somebody else's requests run on the server now; ours do not, between the runs. */
async function isBusy() {
  const { now } = await getJson("headlong/live");
  return now.running + now.waiting > 0;
}
