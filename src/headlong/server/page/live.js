/** The live view: asks the server once a second what it is doing, and draws it. */

import { getJson, isLockedOut } from "./api.js";
import { DepthChart, LineChart } from "./chart.js";
import { byId, fillList, make } from "./dom.js";
import { bytes, count, decimal, duration, factor, percent, rate } from "./format.js";

const whole = (value) => (value === null ? "–" : count(Math.round(value * 10) / 10));

/** Wires the live view; `update(live)` takes each answer of /headlong/live. */
export class LiveView {
  constructor() {
    const line = (options) => new LineChart(options);
    this.lines = [
      line({
        title: "Tokens per second", note: "All streams together, counted as they leave.", format: (v, axis) => (axis ? whole(v) : rate(v)),
        series: [{ key: "tokens_per_second", name: "", kind: "k-teal" }], least: 10,
      }),
      line({
        title: "Speed-up", note: "Against the measured cost of plain passes for the same tokens.", format: (v, axis) => (axis ? decimal(v) : factor(v)),
        series: [{ key: "speedup", name: "", kind: "k-green" }], base: 1, least: 2,
      }),
      line({
        title: "Rows per pass", note: "Newest tokens of all streams and their drafts; the largest pass of each second.", format: whole,
        series: [{ key: "rows", name: "", kind: "k-blue" }], least: 4,
      }),
      line({
        title: "Streams", note: "Running together and waiting for a place, at most in each second.", format: whole,
        series: [{ key: "running", name: "running", kind: "k-teal" }, { key: "waiting", name: "waiting", kind: "k-orange" }], least: 4,
      }),
    ];
    this.depths = new DepthChart({
      title: "Acceptance by depth", note: "", format: (v) => percent(v),
    });
    const [speed, gain, rows, streams] = this.lines.map((chart) => chart.element);
    byId("live-charts").append(speed, gain, this.depths.element, rows, streams);
  }

  update(live) {
    for (const chart of this.lines) chart.update(live.samples, live.window_s);
    this.depths.update(live.recent.acceptance_at_depth);
    this.depths.element.querySelector(".note").textContent = live.recent.rounds
      ? `Share of ${count(live.recent.rounds)} rounds in which each depth stood.`
      : "Share of rounds in which each depth stood. None lately: send a message in Chat and watch.";
    this.renderTiles(live);
    this.renderTotals(live);
  }

  renderTiles({ now, recent }) {
    const limit = now.kv_limit_bytes ? ` of ${bytes(now.kv_limit_bytes)}` : "";
    const tiles = [
      [rate(now.tokens_per_second), "tokens/s", "now"],
      [factor(recent.speedup), "speed-up", "last 2 minutes"],
      [recent.rounds ? decimal(recent.acceptance_length) : "–", "tokens per pass", "acceptance length"],
      [`${count(now.running)} / ${count(now.waiting)}`, "running / waiting", `${count(now.prefilling)} reading prompts`],
      [bytes(now.kv_bytes), "caches", limit ? `${limit.trim()}` : "no limit set"],
    ];
    byId("live-tiles").replaceChildren(
      ...tiles.map(([value, name, note]) =>
        make("div", { class: "tile" }, make("b", {}, value), make("span", {}, name), make("small", {}, note))),
    );
  }

  renderTotals({ totals, uptime_s }) {
    const hits = totals.prefix_lookup_tokens ? totals.prefix_hit_tokens / totals.prefix_lookup_tokens : null;
    fillList(byId("totals"), [
      ["Running for", duration(uptime_s)],
      ["Requests", count(totals.requests)],
      ["Failed", totals.failed ? count(totals.failed) : null],
      ["Tokens out", count(totals.tokens)],
      ["Prompt tokens", count(totals.prefix_lookup_tokens)],
      ["Found in cache", hits === null ? null : percent(hits)],
      ["Preemptions", count(totals.preemptions)],
    ]);
  }
}

/** Call `onLive` with each answer, once a second while the page is visible, and `onProblem` with errors. */
export function poll(onLive, onProblem) {
  const next = async () => {
    if (!document.hidden && !isLockedOut()) {
      try {
        onLive(await getJson("headlong/live"));
      } catch (error) {
        onProblem(error);
      }
    }
    setTimeout(next, 1000);
  };
  next();
}
