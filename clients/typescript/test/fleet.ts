/** The fleet that the driver (`tests/clients/test_typescript.py`) has started. */

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
const pids: Record<string, number> = JSON.parse(process.env.BATON_PIDS ?? "{}");

/** Sampling and stop rules of a generation that is the same each time. */
export const SAMPLED = { sampling: { temperature: 1, seed: 7 }, stop: { maxTokens: 40, ignoreEos: true } };

/** Return SAMPLED for so many tokens. */
export function sampled(maxTokens: number): typeof SAMPLED {
  return { ...SAMPLED, stop: { ...SAMPLED.stop, maxTokens } };
}

export function clientOf(routers: readonly string[] = addresses, options: ClientOptions = {}): Client {
  return new Client(routers, { credentials, ...options });
}

export function kill(name: string, signal: NodeJS.Signals = "SIGKILL"): void {
  const pid = pids[name];
  if (pid === undefined) throw new Error(`there is no ${name}`);
  process.kill(pid, signal);
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

/** Wait for a condition of the fleet. */
export async function eventually(condition: () => Promise<boolean>, what: string): Promise<void> {
  for (const giveUpAt = Date.now() + 20_000; Date.now() < giveUpAt; await sleep(50)) {
    if (await condition()) return;
  }
  throw new Error(`${what}: not within 20 s`);
}
