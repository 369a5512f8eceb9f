/** The race: the same prompt and seed, plain and with MTP, in turns, each run alone; then one turn on stage. */

import { getJson } from "./api.js";
import { byId } from "./dom.js";
import { plural } from "./format.js";
import { compareRuns, record } from "./recording.js";
import { renderSamples } from "./samples.js";
import { readSettings } from "./settings.js";
import { Stage } from "./stage.js";
import { judge } from "./turns.js";

const PROGRESS_MS = 200;
const TURNS = 3;
const ENOUGH_MS = 30_000; // no further turn begins after this time

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
    const { turns, isShared } = await this.takeTurns({ plain: { ...shared, mtp: "off" }, fast: { ...shared, mtp } });
    const name = mtp === "auto" ? "MTP, auto" : `MTP, K = ${mtp}`;
    const judged = judge(turns);
    const { plain, fast } = judged.shown;
    const runs = [{ name: "Plain", run: plain }, { name, run: fast }];
    const compared = turns.flatMap((turn) => [turn.plain, turn.fast]).map((run) => compareRuns(plain, run));
    const same = compared.find(({ differsAt }) => differsAt !== null) ?? compared[0];
    this.stage = new Stage(byId("race-stage"), runs, { ...same, ...judged, numTurns: turns.length, isShared });
    this.stage.play();
  }

  /** Run both sides in turns. They change places, since the machine may grow busier or quieter meanwhile. */
  async takeTurns(bodies) {
    const turns = [];
    const started = performance.now();
    let isShared = false;
    while (turns.length < TURNS && (!turns.length || performance.now() - started < ENOUGH_MS)) {
      const sides = turns.length % 2 ? ["fast", "plain"] : ["plain", "fast"];
      const turn = {};
      for (const side of sides) {
        isShared = (await isBusy()) || isShared;
        const name = `turn ${turns.length + 1} of ${TURNS} · ${side === "plain" ? "plain" : "MTP"}`;
        turn[side] = await this.take(name, bodies[side]);
      }
      turns.push(turn);
    }
    return { turns, isShared };
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
