// The steps of each worker, as they come: what continuous batching looks like.

import { element, setText } from "./parts.js";

const WINDOW_S = 8;
const MOST_STEPS = 2000; // of one worker
const LANES = 16;
const TOP = 56; // pixels of the bars above the lanes
const GAP = 8;
const FORGET_S = 0.5; // a sequence that has drawn nothing for so long gives its lane to another
const TELL_MS = 5000;

const calm = window.matchMedia("(prefers-reduced-motion: reduce)");
const dark = window.matchMedia("(prefers-color-scheme: dark)");

export class TimelineView {
  constructor(root) {
    this.root = root;
    this.strips = new Map();
    this.clock = null; // [the router's time, the page's time]
    this.router = "";
    this.isPaused = false;
    this.isShown = false;
    this.frame = 0;
    this.none = element("p", { className: "quiet" }, "No step yet. Send prompts, and watch.");
    root.append(this.none);
  }

  /** Take a snapshot's clock, and forget workers that are gone. */
  follow(snapshot) {
    if (snapshot.router_id !== this.router || (this.clock && snapshot.uptime_s < this.clock[0])) {
      this.router = snapshot.router_id; // its clock is another one
      for (const strip of this.strips.values()) strip.clear();
    }
    this.clock = [snapshot.uptime_s, performance.now()];
    const present = new Map(snapshot.workers.map((worker) => [worker.worker_id, worker.role]));
    for (const [name, strip] of this.strips) {
      if (present.has(name)) strip.role = present.get(name);
      else if (!strip.isRecent(snapshot.uptime_s)) {
        strip.node.remove();
        this.strips.delete(name);
      }
    }
    this.draw();
  }

  add(steps) {
    if (this.isPaused) return;
    for (const step of steps) {
      let strip = this.strips.get(step.worker_id);
      if (!strip) {
        strip = new Strip(step.worker_id);
        this.strips.set(step.worker_id, strip);
        const names = [...this.strips.keys()].sort();
        const next = this.strips.get(names[names.indexOf(step.worker_id) + 1]);
        this.root.insertBefore(strip.node, next?.node ?? null);
      }
      strip.add(step);
    }
    this.none.hidden = this.strips.size > 0;
  }

  pause(isPaused) {
    this.isPaused = isPaused;
    this.pausedAt = this.now();
  }

  show(isShown) {
    this.isShown = isShown;
    if (isShown) this.run();
  }

  run() {
    cancelAnimationFrame(this.frame);
    if (!this.isShown) return;
    if (!calm.matches) this.draw();
    this.frame = requestAnimationFrame(() => this.run());
  }

  now() {
    if (!this.clock) return 0;
    // A little late, so that what is reported every 200 ms moves evenly.
    return this.clock[0] + Math.min(1, (performance.now() - this.clock[1]) / 1000) - 0.25;
  }

  draw() {
    if (!this.isShown) return;
    const now = this.isPaused ? this.pausedAt : this.now();
    for (const strip of this.strips.values()) strip.draw(now);
  }
}

/** The steps of one worker. */
class Strip {
  constructor(name) {
    this.name = name;
    this.role = "";
    this.steps = [];
    this.lanes = []; // for each: the sequence that has it, and when it last drew a token
    this.toldAt = -Infinity;
    this.about = element("span", { className: "quiet" });
    this.canvas = element("canvas");
    this.canvas.setAttribute("role", "img");
    this.node = element("article", { className: "steps" },
      element("div", { className: "head" }, element("h3", {}, name), this.about), this.canvas);
    this.tell();
  }

  clear() {
    this.steps = [];
    this.lanes = [];
  }

  isRecent(now) {
    const last = this.steps.at(-1);
    return last !== undefined && last.reported_at_s > now - WINDOW_S;
  }

  add(step) {
    step.lanes = step.sequences.map((sequence) => this.laneOf(sequence, step.reported_at_s));
    this.steps.push(step);
    if (this.steps.length > MOST_STEPS) this.steps.splice(0, MOST_STEPS / 4);
    this.tell();
  }

  laneOf(sequence, now) {
    let lane = this.lanes.findIndex((held) => held.sequence === sequence);
    if (lane < 0) lane = this.lanes.findIndex((held) => held.at < now - FORGET_S);
    if (lane < 0) lane = this.lanes.length;
    if (lane < LANES) this.lanes[lane] = { sequence, at: now };
    return lane;
  }

  tell() {
    const last = this.steps.at(-1);
    if (!last) return;
    const chunks = last.num_chunks ? `, ${last.chunk_tokens} prompt tokens in ${last.num_chunks} chunk${last.num_chunks > 1 ? "s" : ""}` : "";
    const ms = (1000 * last.step_seconds).toFixed(1);
    const said = `step ${last.step}: ${ms} ms, ${last.num_decodes} decode${last.num_decodes === 1 ? "" : "s"}${chunks}`;
    setText(this.about, this.role ? `${this.role}; ${said}` : said);
    if (performance.now() > this.toldAt + TELL_MS) {
      this.toldAt = performance.now();
      this.canvas.setAttribute("aria-label", `Steps of ${this.name}; ${said}`);
    }
  }

  draw(now) {
    const { canvas } = this;
    const scale = window.devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (!width) return;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
    }
    const context = canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    const colours = getComputedStyle(document.documentElement);
    const [chunk, decode, free] = ["--chunk", "--decode", "--free"].map((name) => colours.getPropertyValue(name));
    const rowHeight = (height - TOP - GAP) / LANES;
    context.fillStyle = free;
    for (let lane = 0; lane < LANES; lane += 1) context.fillRect(0, TOP + GAP + lane * rowHeight + rowHeight - 1, width, 0.5);
    context.fillRect(0, TOP, width, 1);
    const perS = width / WINDOW_S;
    const shown = this.steps.filter((step) => step.reported_at_s > now - WINDOW_S && step.reported_at_s - step.step_seconds <= now);
    const most = Math.max(8, ...shown.map((step) => step.num_decodes + step.chunk_tokens));
    for (const step of shown) {
      const end = width - (now - step.reported_at_s) * perS;
      const length = Math.max(1, step.step_seconds * perS - 0.5);
      // The square root leaves decodes visible beside chunks of hundreds of tokens.
      const all = TOP * Math.sqrt((step.num_decodes + step.chunk_tokens) / most);
      const decodes = step.chunk_tokens ? Math.min(all, TOP * Math.sqrt(step.num_decodes / most)) : all;
      context.fillStyle = chunk;
      context.fillRect(end - length, TOP - all, length, all - decodes);
      context.fillStyle = decode;
      context.fillRect(end - length, TOP - decodes, length, decodes);
      step.lanes.forEach((lane, place) => {
        if (lane >= LANES) return;
        context.fillStyle = colourOf(step.sequences[place]);
        context.fillRect(end - length, TOP + GAP + lane * rowHeight, length, rowHeight - 1.5);
      });
    }
  }
}

function colourOf(sequence) {
  const hue = (sequence * 137.5) % 360; // the golden angle: neighbours differ most
  return `hsl(${hue} 60% ${dark.matches ? 62 : 46}%)`;
}
