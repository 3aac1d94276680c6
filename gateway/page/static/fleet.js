// The fleet: what the newest snapshot says of the queue, of promises and of each worker.

import { bar, duration, element, rows, setBar, setText, whole } from "./parts.js";

const RATE_MS = 2000; // rates are over about this long

/** Return a worker's state in a word. */
function stateOf(worker) {
  if (!worker.connected) return "lost";
  if (worker.draining) return "draining";
  return worker.running || worker.waiting ? "busy" : "idle";
}

export class FleetView {
  constructor(root) {
    this.root = root;
    this.facts = element("p", { className: "quiet" });
    this.tiles = element("dl", { className: "tiles" });
    this.workers = element("div", { className: "workers" });
    this.byName = {};
    this.byWorker = new Map();
    this.past = []; // [time of the page, tokens relayed by this router]
    this.router = "";
    root.append(this.facts, element("h2", {}, "Requests"), this.tiles, element("h2", {}, "Workers"), this.workers);
  }

  describe(facts) {
    const same = facts.deterministic ? ", deterministic" : "";
    setText(this.facts, `${facts.model_name} (${facts.architecture}), ${facts.placement}${same}; version ${facts.version}`);
  }

  tile(name, value, more = "") {
    let tile = this.byName[name];
    if (!tile) {
      tile = this.byName[name] = { value: document.createTextNode(""), more: element("span", { className: "more" }) };
      this.tiles.append(element("div", {}, element("dt", {}, name), element("dd", {}, tile.value, tile.more)));
    }
    setText(tile.value, value);
    setText(tile.more, more);
  }

  show(snapshot) {
    const { queue, counters } = snapshot;
    const judged = counters.ttft_promises_kept + counters.ttft_promises_broken;
    const share = judged ? `${((100 * counters.ttft_promises_kept) / judged).toFixed(1)} % of ${whole(judged)}` : "none asked for yet";
    this.tile("Running", whole(queue.running_sessions), "requests of this router");
    this.tile("Waiting", whole(queue.waiting), `of ${whole(queue.capacity)}; ${whole(queue.waiting_tokens)} prompt tokens`);
    this.tile("Waiting, by class", `${queue.waiting_interactive} / ${queue.waiting_standard} / ${queue.waiting_batch}`,
      "interactive / standard / batch, at this router");
    this.tile("Promises kept", whole(counters.ttft_promises_kept), share);
    this.tile("Promises broken", whole(counters.ttft_promises_broken), "first tokens that came late");
    this.tile("Refused", whole(counters.refused), `${whole(counters.accepted)} accepted`);
    this.tile("Finished", whole(counters.finished), `${whole(counters.failed)} failed, ${whole(counters.cancelled)} cancelled`);
    this.tile("Handed over", whole(counters.handed_over), `${whole(counters.retried_attempts)} attempts taken up again`);
    this.tile("Tokens a second", whole(this.rate(snapshot.router_id, counters.relayed_tokens)), `${whole(counters.relayed_tokens)} in all`);
    this.tile("Redis", queue.redis_reachable ? "reachable" : "away", `${snapshot.router_id}, up ${duration(1000 * snapshot.uptime_s)}`);
    this.showWorkers(snapshot);
  }

  rate(router, tokens) {
    const now = performance.now();
    if (router !== this.router || (this.past.length && tokens < this.past[0][1])) this.past = [];
    this.router = router;
    this.past.push([now, tokens]);
    while (this.past.length > 2 && this.past[1][0] <= now - RATE_MS) this.past.shift();
    const [since, before] = this.past[0];
    return now > since ? (1000 * (tokens - before)) / (now - since) : 0;
  }

  showWorkers(snapshot) {
    const present = new Set();
    for (const worker of snapshot.workers) {
      present.add(worker.worker_id);
      this.card(worker.worker_id).show(worker);
    }
    for (const worker of snapshot.starting) {
      if (present.has(worker.worker_id)) continue;
      present.add(worker.worker_id);
      this.card(worker.worker_id).showStarting(worker);
    }
    for (const [name, card] of this.byWorker) {
      if (present.has(name)) continue;
      card.node.remove();
      this.byWorker.delete(name);
    }
  }

  card(name) {
    let card = this.byWorker.get(name);
    if (!card) {
      card = new WorkerCard(name);
      this.byWorker.set(name, card);
      const names = [...this.byWorker.keys()].sort();
      const next = this.byWorker.get(names[names.indexOf(name) + 1]);
      this.workers.insertBefore(card.node, next?.node ?? null);
    }
    return card;
  }

  /** Fade what was shown last while nothing new comes. */
  stale(isStale) {
    for (const card of this.byWorker.values()) card.node.classList.toggle("stale", isStale);
  }
}

class WorkerCard {
  constructor(name) {
    this.state = element("span", { className: "state" });
    this.role = element("span", { className: "quiet" });
    this.values = Object.fromEntries(
      ["Sequences", "Prompt tokens to do", "Contexts", "Step", "KV blocks"].map((row) => [row, element("span")]));
    this.blocks = bar("", []);
    this.node = element("article", { className: "worker" },
      element("div", { className: "head" }, element("h3", {}, name), this.state, this.role),
      rows(...Object.entries(this.values)), this.blocks);
    this.node.setAttribute("aria-label", `Worker ${name}`);
  }

  setState(state) {
    setText(this.state, state);
    this.state.className = `state ${state.split(":")[0]}`;
  }

  show(worker) {
    const used = worker.num_blocks - worker.free_blocks;
    const free = worker.free_blocks - worker.cached_blocks;
    const tiers = [["in host memory", worker.host_blocks], ["on disk", worker.disk_blocks]]
      .filter(([, blocks]) => blocks !== null).map(([where, blocks]) => `, ${whole(blocks)} ${where}`).join("");
    this.setState(stateOf(worker));
    setText(this.role, `${worker.role}, ${worker.address}${worker.dtype ? `, ${worker.dtype}` : ""}`);
    setText(this.values.Sequences, `${worker.running} running, ${worker.waiting} waiting`);
    setText(this.values["Prompt tokens to do"], whole(worker.pending_prefill_tokens));
    setText(this.values.Contexts, `${whole(worker.context_tokens)} tokens`);
    setText(this.values.Step, `${whole(worker.step)}, about ${duration(1000 * worker.step_seconds)} each`);
    const blocks = `${whole(used)} used, ${whole(worker.cached_blocks)} cached, ${whole(free)} free`;
    setText(this.values["KV blocks"], blocks + tiers);
    setBar(this.blocks, `KV blocks: ${blocks}`, [["used", used], ["cached", worker.cached_blocks], ["free", free]]);
  }

  showStarting(worker) {
    this.setState("starting");
    setText(this.role, worker.role ?? "");
    const done = worker.total ? ` (${Math.round((100 * worker.done) / worker.total)} %)` : "";
    setText(this.values.Sequences, `${worker.phase}${done}`);
    for (const row of ["Prompt tokens to do", "Contexts", "Step", "KV blocks"]) setText(this.values[row], "–");
    setBar(this.blocks, "no KV blocks yet", [["free", 1]]);
  }
}
