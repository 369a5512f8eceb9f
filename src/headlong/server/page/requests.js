/** The table of recent requests. */

import { getJson } from "./api.js";
import { byId, make } from "./dom.js";
import { count, decimal, duration, factor, rate, timeOfDay } from "./format.js";

const COLUMNS = [
  ["Time", (one) => timeOfDay(one.created_s)],
  ["Route", (one) => make("span", { title: one.route }, one.route.replace("/v1/", "").replace("/completions", ""))],
  ["MTP", (one) => make("span", { class: "chip" }, asked(one.mtp))],
  ["Prompt", (one) => count(one.num_prompt_tokens), "number"],
  ["Cached", (one) => count(one.num_cached_tokens), "number"],
  ["Tokens", (one) => count(one.num_completion_tokens), "number"],
  ["First token", (one) => duration(one.ttft_s), "number"],
  ["Tokens/s", (one) => rate(one.tokens_per_second), "number"],
  ["Per pass", (one) => decimal(one.report.acceptance_length), "number"],
  ["Speed-up", (one) => gain(one.report.measured_speedup), "number"],
  ["End", (one) => one.finish_reason ?? "–"],
  ["Status", (one) => make("span", { class: one.status < 400 ? "good" : "bad" }, String(one.status))],
];

/** Fetch and show the recent requests. */
export async function refreshRequests() {
  const { requests } = await getJson("headlong/requests");
  const box = byId("request-table");
  if (!requests.length) {
    box.replaceChildren(make("p", { class: "empty" }, "No request yet. Whatever comes in, from this page or any client, is listed here."));
    return;
  }
  const head = make("tr", {}, ...COLUMNS.map(([name, , kind]) => make("th", { scope: "col", class: kind }, name)));
  const rows = requests.map((one) =>
    make("tr", {}, ...COLUMNS.map(([name, show, kind]) => make("td", { "data-name": name, class: kind }, show(one)))));
  box.replaceChildren(make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)));
}

function asked(mtp) {
  return typeof mtp === "number" ? `K = ${mtp}` : (mtp ?? "–");
}

function gain(value) {
  return value ? make("span", { class: value >= 1 ? "gain" : "" }, factor(value)) : "–";
}
