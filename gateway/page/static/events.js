// Streams of server-sent events over fetch, which takes a key in a header as EventSource does not.

import { call, Refusal } from "./api.js";
import { sleep } from "./parts.js";

const MOST_CHARACTERS = 4_000_000; // of one event
const SILENT_MS = 30_000; // the gateway fills a silence with a comment every ten seconds
const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 15_000;

/** Yield `{kind, data}` for each event of a response. `onData` is called whenever anything has come. */
export async function* events(response, onData = () => {}) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      onData();
      rest += value;
      const whole = rest.split("\n\n");
      rest = whole.pop();
      if (rest.length > MOST_CHARACTERS) throw new Error("an event of the stream is too long");
      for (const text of whole) {
        const event = parsed(text);
        if (event) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parsed(text) {
  let kind = "message";
  const data = [];
  for (const line of text.split("\n")) {
    if (line.startsWith("event: ")) kind = line.slice(7);
    else if (line.startsWith("data: ")) data.push(line.slice(6));
  }
  return data.length ? { kind, data: data.join("\n") } : null;
}

/**
 * The stream of what the fleet does, opened again whenever it ends, while somebody looks.
 *
 * `onEvent(kind, value)` gets what comes. `onState(state, text)` hears "live", "away" or "refused".
 */
export class Feed {
  constructor(onEvent, onState) {
    this.onEvent = onEvent;
    this.onState = onState;
    this.wanted = null; // the path of the stream that is open
    this.abort = null;
  }

  /** Open the stream at `path`, or none for null. */
  want(path) {
    if (path === this.wanted) return;
    this.wanted = path;
    this.abort?.abort();
    this.abort = null;
    if (path === null) return;
    this.abort = new AbortController();
    this.run(path, this.abort.signal);
  }

  /** Open the stream once more, for another key. */
  again() {
    const path = this.wanted;
    this.want(null);
    this.want(path);
  }

  async run(path, signal) {
    let pauseMs = FIRST_PAUSE_MS;
    while (!signal.aborted) {
      let least = 0;
      try {
        for await (const { kind, value } of this.values(path, signal)) {
          if (signal.aborted) return;
          if (kind === "away") this.onState("away", `The fleet is away: ${value.message}`);
          else if (kind === "refused") this.onState("refused", value.message);
          else {
            pauseMs = FIRST_PAUSE_MS;
            if (kind === "fleet") this.onState("live", "");
            this.onEvent(kind, value);
          }
        }
      } catch (error) {
        if (signal.aborted) return;
        const refused = error instanceof Refusal && (error.status === 401 || error.status === 403);
        this.onState(refused ? "refused" : "away", refused ? error.message : `No connection: ${error.message}`);
        least = error.retryAfterMs ?? 0;
        if (refused) least = LONGEST_PAUSE_MS;
      }
      const jitter = 0.75 + Math.random() / 2;
      await sleep(Math.max(least, pauseMs * jitter), signal);
      pauseMs = Math.min(2 * pauseMs, LONGEST_PAUSE_MS);
    }
  }

  async *values(path, signal) {
    const silence = new AbortController();
    const giveUp = () => silence.abort(new Error("the gateway has been silent for too long"));
    let timer = setTimeout(giveUp, SILENT_MS);
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(giveUp, SILENT_MS);
    };
    try {
      const response = await call(path, { signal: AbortSignal.any([signal, silence.signal]) });
      for await (const { kind, data } of events(response, heard)) yield { kind, value: JSON.parse(data) };
    } finally {
      clearTimeout(timer);
    }
    throw new Error("the stream has ended");
  }
}
