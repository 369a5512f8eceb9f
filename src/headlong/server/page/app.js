/** The page's front door: views, key, model card, and the clock that keeps them fresh. */

import { apiKey, getJson, isLockedOut, onKeyProblem, setApiKey } from "./api.js";
import { Chat } from "./chat.js";
import { byId, fillList } from "./dom.js";
import { count, rate } from "./format.js";
import { LiveView, poll } from "./live.js";
import { Race } from "./race.js";
import { refreshRequests, wireRequests } from "./requests.js";
import { renderSettings } from "./settings.js";
import { renderLegend } from "./sources.js";

const VIEWS = ["chat", "race", "live", "requests"];
const REFRESH_REQUESTS_MS = 2000;

let modelName = "";

function currentView() {
  const named = location.hash.slice(1);
  return VIEWS.includes(named) ? named : "chat";
}

function showView() {
  const current = currentView();
  for (const name of VIEWS) {
    const tab = byId(`tab-${name}`);
    byId(`view-${name}`).hidden = name !== current;
    tab.setAttribute("aria-selected", String(name === current));
    tab.tabIndex = name === current ? 0 : -1;
  }
  document.body.dataset.view = current;
  byId("totals-panel").hidden = current !== "live";
  setRail(false);
  if (current === "requests") updateRequests();
}

function wireTabs() {
  VIEWS.forEach((name, i) => {
    const tab = byId(`tab-${name}`);
    tab.addEventListener("click", () => (location.hash = name));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = VIEWS[(i + step + VIEWS.length) % VIEWS.length];
      location.hash = next;
      byId(`tab-${next}`).focus();
    });
  });
  addEventListener("hashchange", showView);
}

function setRail(isOpen) {
  document.body.classList.toggle("rail-open", isOpen);
  byId("rail-toggle").setAttribute("aria-expanded", String(isOpen));
}

function wireKey() {
  const form = byId("key-form");
  onKeyProblem((problem) => {
    byId("key-message").textContent = problem;
    form.classList.toggle("wrong", apiKey() !== "");
    form.hidden = false;
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    setApiKey(byId("key-input").value.trim());
    loadCard();
  });
}

async function loadCard() {
  try {
    const card = await getJson("headlong/model");
    modelName = card.id;
    byId("key-form").hidden = true;
    byId("card-name").textContent = card.name;
    document.body.dataset.reasons = String(card.reasons);
    document.title = `${card.name} · Headlong`;
    fillList(byId("card"), [
      ["Weights", card.weights],
      ["Head", card.head],
      ["Drafter", card.drafter],
      ["Context", `${count(card.context_length)} tokens`],
      ["Backend", card.backend],
      ["Version", card.version],
      ...card.replicas.map((one) => [one.name, `${one.words}${one.wrong && ` · ${one.wrong}`}`]),
    ]);
  } catch (error) {
    setPulse(error.message, "");
  }
}

async function updateRequests() {
  try {
    await refreshRequests();
  } catch (error) {
    setPulse(error.message, "");
  }
}

/** The dot in the bar: green while the server answers, with its speed. */
function setPulse(problem, text) {
  const pulse = byId("pulse");
  pulse.classList.toggle("on", !problem);
  pulse.title = problem || "The server is up";
  byId("pulse-text").textContent = text;
}

function watchServer() {
  const live = new LiveView();
  poll(
    (news) => {
      if (!modelName) loadCard();
      setPulse("", news.now.tokens_per_second ? `${rate(news.now.tokens_per_second)} tokens/s` : "ready");
      if (currentView() === "live") live.update(news);
    },
    (error) => setPulse(error.message, error.status === 401 ? "key needed" : "offline"),
  );
  const isWatched = () => currentView() === "requests" && !document.hidden && !isLockedOut();
  setInterval(() => isWatched() && updateRequests(), REFRESH_REQUESTS_MS);
}

function start() {
  wireTabs();
  wireKey();
  wireRequests();
  renderSettings(byId("settings"));
  renderLegend(byId("legend"));
  byId("rail-toggle").addEventListener("click", () => setRail(!document.body.classList.contains("rail-open")));
  byId("colour-switch").addEventListener("change", (event) => {
    document.body.dataset.colours = event.target.checked ? "on" : "off";
  });
  new Chat(() => modelName);
  new Race(() => modelName);
  showView();
  loadCard();
  watchServer();
}

start();
