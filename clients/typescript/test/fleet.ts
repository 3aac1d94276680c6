/** The fleet that the driver (`tests/clients/test_typescript.py`) has started. */

import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import {
  Client,
  type ClientOptions,
  type Credentials,
  type Event,
  type GenerationStream,
} from "../src/index.ts";

export const addresses: string[] = process.env.BATON_ADDRESSES?.split(",") ?? [];
export const credentials: Credentials = JSON.parse(process.env.BATON_CREDENTIALS ?? "{}");
/** The path of a file with the ids of its processes, which the driver writes anew when one has returned. */
const pidsFile = process.env.BATON_PIDS_FILE ?? "";
const killed = new Map<string, number>();

/** Sampling and stop rules of a generation that is the same each time. */
export const SAMPLED = { sampling: { temperature: 1, seed: 7 }, stop: { maxTokens: 40, ignoreEos: true } };

/** Return SAMPLED for so many tokens. */
export function sampled(maxTokens: number): typeof SAMPLED {
  return { ...SAMPLED, stop: { ...SAMPLED.stop, maxTokens } };
}

export function clientOf(routers: readonly string[] = addresses, options: ClientOptions = {}): Client {
  return new Client(routers, { credentials, ...options });
}

function pidOf(name: string): number {
  const pids: Record<string, number> = JSON.parse(readFileSync(pidsFile, "utf8"));
  const pid = pids[name];
  if (pid === undefined) throw new Error(`there is no ${name}`);
  return pid;
}

export function kill(name: string, signal: NodeJS.Signals = "SIGKILL"): void {
  const pid = pidOf(name);
  process.kill(pid, signal);
  if (signal === "SIGKILL") killed.set(name, pid);
}

/** Wait until a process that was killed serves again. */
export async function returned(name: string): Promise<void> {
  await eventually(async () => pidOf(name) !== killed.get(name), `${name} serves again`);
}

/** A stream's events as they come. */
export class Reader {
  readonly tokenIds: number[] = [];
  text = "";
  readonly events: Event[] = [];
  readonly stream: GenerationStream;
  readonly #events: AsyncGenerator<Event, void, undefined>;

  constructor(stream: GenerationStream) {
    this.stream = stream;
    this.#events = stream[Symbol.asyncIterator]();
  }

  /** Read on until so many tokens of the first choice have come, or to the end. */
  async until(numTokens: number = Number.POSITIVE_INFINITY): Promise<this> {
    while (this.tokenIds.length < numTokens) {
      const { done, value } = await this.#events.next();
      if (done) break;
      this.events.push(value);
      if (value.type !== "tokens" || value.choice !== 0) continue;
      this.tokenIds.push(...value.tokenIds);
      this.text += value.text;
    }
    return this;
  }
}

/** Only a failure takes this long. */
const PATIENCE_S = 60;

/** Wait for a condition of the fleet. */
export async function eventually(condition: () => Promise<boolean>, what: string): Promise<void> {
  for (const giveUpAt = Date.now() + 1000 * PATIENCE_S; Date.now() < giveUpAt; await sleep(50)) {
    if (await condition()) return;
  }
  throw new Error(`${what}: not within ${PATIENCE_S} s`);
}
