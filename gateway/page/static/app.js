// The beginning of the page: its views, the key, and the stream of the fleet while somebody looks at it.

import { call, key, model, setKey, whenKeyIsNeeded } from "./api.js";
import { Feed } from "./events.js";
import { FleetView } from "./fleet.js";
import { element, setText, sleep } from "./parts.js";
import { startPlayground } from "./playground.js";
import { TimelineView } from "./timeline.js";

const VIEWS = ["playground", "fleet", "timeline"];
const LOOKED_AT = `page/fleet?model=${encodeURIComponent(model)}`;
const PATHS = { playground: null, fleet: LOOKED_AT, timeline: `${LOOKED_AT}&steps=true` };
const QUESTIONS = ["What is a generator?", "How do I open a file?", "What is a list?", "How do I sort a dictionary?"];

const byId = (id) => document.getElementById(id);
const fleet = new FleetView(byId("fleet-view"));
const timeline = new TimelineView(byId("timeline-view"));
let view = "playground";

const feed = new Feed(
  (kind, value) => {
    if (kind === "facts") fleet.describe(value);
    else if (kind === "steps") timeline.add(value);
    else if (kind === "fleet") {
      if (view === "fleet") fleet.show(value);
      timeline.follow(value);
    }
  },
  (state, text) => {
    for (const shown of document.querySelectorAll(".feed")) {
      shown.className = `feed ${state}`;
      setText(shown, state === "live" ? "Live" : state === "refused" ? `Not shown: ${text}` : `${text} Trying again.`);
    }
    fleet.stale(state !== "live");
  },
);

function look() {
  feed.want(document.hidden ? null : PATHS[view]);
}

function choose(name, { focus = false } = {}) {
  view = name;
  for (const each of VIEWS) {
    const tab = byId(`tab-${each}`);
    const isChosen = each === name;
    tab.setAttribute("aria-selected", String(isChosen));
    tab.tabIndex = isChosen ? 0 : -1;
    byId(each).hidden = !isChosen;
    if (isChosen && focus) tab.focus();
  }
  history.replaceState(null, "", `#${name}`);
  timeline.show(name === "timeline");
  look();
}

function startTabs() {
  const tabs = document.querySelector('[role="tablist"]');
  tabs.addEventListener("click", (event) => {
    const tab = event.target.closest('[role="tab"]');
    if (tab) choose(tab.getAttribute("aria-controls"));
  });
  tabs.addEventListener("keydown", (event) => {
    const at = VIEWS.indexOf(view);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: VIEWS.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    choose(VIEWS[(to + VIEWS.length) % VIEWS.length], { focus: true });
  });
  document.addEventListener("visibilitychange", look);
  const [asked] = VIEWS.filter((name) => location.hash === `#${name}`);
  choose(asked ?? "playground");
}

function startKey() {
  const form = byId("key-form");
  const showForget = () => { byId("forget-key").hidden = !key(); };
  whenKeyIsNeeded((problem) => {
    form.hidden = false;
    byId("key-problem").textContent = problem;
    if (!form.contains(document.activeElement)) byId("key").focus();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    setKey(byId("key").value.trim());
    byId("key").value = "";
    form.hidden = true;
    showForget();
    nameModel();
    feed.again();
  });
  byId("forget-key").addEventListener("click", () => {
    setKey("");
    location.reload();
  });
  showForget();
}

/** Name the model, or have one of several chosen, for which the page begins anew. */
function showModels(names) {
  const all = [...new Set([...names, model])].filter(Boolean);
  const open = (name) => { location.search = new URLSearchParams({ model: name }); };
  if (all.length === 1) return setText(byId("model"), all[0]);
  if (!model) return open(all[0]);
  const choice = element("select", { ariaLabel: "Model" }, ...all.map((name) => element("option", {}, name)));
  choice.value = model;
  choice.addEventListener("input", () => open(choice.value));
  byId("model").replaceChildren(choice);
}

/** Ask for the models; again until a router responds. */
async function nameModel() {
  for (let pauseMs = 1000; ; pauseMs = Math.min(2 * pauseMs, 15_000)) {
    try {
      const models = await (await call("v1/models")).json();
      return showModels(models.data.map(({ id }) => id));
    } catch (error) {
      if (error.status === 401 || error.status === 403) return;
      setText(byId("model"), "no router responds");
    }
    await sleep(pauseMs);
  }
}

/** Send several prompts of unlike lengths at once, for the timeline to show. */
async function burst() {
  const button = byId("burst");
  button.disabled = true;
  setText(byId("burst-doing"), "The answers come");
  const asked = Array.from({ length: 8 }, (_, place) => {
    const question = QUESTIONS[place % QUESTIONS.length];
    const content = Array(1 + 3 * (place % 4)).fill(question).join(" ");
    const body = { model, messages: [{ role: "user", content }], max_tokens: 24 + 24 * (place % 5), ignore_eos: true };
    return call("v1/chat/completions", { body }).then((response) => response.json());
  });
  const ended = await Promise.allSettled(asked);
  const refused = ended.filter((each) => each.status === "rejected");
  const why = refused.length ? `; ${refused.length} were not: ${refused[0].reason.message}` : "";
  setText(byId("burst-doing"), `${ended.length - refused.length} were answered${why}`);
  button.disabled = false;
}

byId("pause").addEventListener("click", () => {
  const isPaused = byId("pause").getAttribute("aria-pressed") !== "true";
  byId("pause").setAttribute("aria-pressed", String(isPaused));
  setText(byId("pause"), isPaused ? "Go on" : "Pause");
  timeline.pause(isPaused);
});
byId("burst").addEventListener("click", burst);

startKey();
startPlayground();
startTabs();
nameModel();
