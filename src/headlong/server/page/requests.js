/** The table of recent requests. */

import { getJson } from "./api.js";
import { byId, make } from "./dom.js";
import { count, decimal, duration, factor, plural, rate, timeOfDay } from "./format.js";

const FEW = 20;

/* Name, content, class. Columns of class "spare" give way on a narrow screen until all are asked for. */
const COLUMNS = [
  ["Time", (one) => timeOfDay(one.created_s)],
  ["Route", (one) => make("span", { title: one.route }, one.route.replace("/v1/", "").replace("/completions", "")), "spare"],
  ["MTP", (one) => make("span", { class: "chip" }, asked(one.mtp)), "spare"],
  ["Prompt", (one) => count(one.num_prompt_tokens), "number spare"],
  ["Cached", (one) => count(one.num_cached_tokens), "number spare"],
  ["Tokens", (one) => count(one.num_completion_tokens), "number"],
  ["First token", (one) => duration(one.ttft_s), "number spare"],
  ["Tokens/s", (one) => rate(one.tokens_per_second), "number"],
  ["Per pass", (one) => decimal(one.report.acceptance_length), "number spare"],
  ["Speed-up", (one) => gain(one.report.measured_speedup), "number"],
  ["End", (one) => one.finish_reason ?? "–", "spare"],
  ["Status", (one) => make("span", { class: one.status < 400 ? "good" : "bad" }, String(one.status))],
];

/** Wire the switches of the table: all columns, all rows. */
export function wireRequests() {
  const box = byId("request-table");
  byId("request-columns").addEventListener("change", (event) => box.classList.toggle("full", event.target.checked));
  byId("request-rows").addEventListener("click", () => {
    showsAll = !showsAll;
    render();
  });
}

/** Fetch and show the recent requests. */
export async function refreshRequests() {
  requests = (await getJson("headlong/requests")).requests;
  render();
}

let requests = [];
let showsAll = false;

function render() {
  const box = byId("request-table");
  const more = byId("request-rows");
  more.hidden = requests.length <= FEW;
  more.textContent = showsAll ? `Show the latest ${FEW}` : `Show all ${plural(requests.length, "request")}`;
  if (!requests.length) {
    box.replaceChildren(make("p", { class: "empty" }, "No request yet. Whatever comes in, from this page or any client, is listed here."));
    return;
  }
  const head = make("tr", {}, ...COLUMNS.map(([name, , kind]) => make("th", { scope: "col", class: kind }, name)));
  const rows = requests.slice(0, showsAll ? requests.length : FEW).map((one) =>
    make("tr", {}, ...COLUMNS.map(([name, show, kind]) => make("td", { "data-name": name, class: kind }, show(one)))));
  box.replaceChildren(make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)));
}

function asked(mtp) {
  return typeof mtp === "number" ? `K = ${mtp}` : (mtp ?? "–");
}

function gain(value) {
  return value ? make("span", { class: value >= 1 ? "gain" : "" }, factor(value)) : "–";
}
