/** The limits of one generation: the caller's `Timeout` and `AbortSignal`, as one signal. */

import { TimedOut } from "./errors.ts";
import type { Timeout } from "./types.ts";

const PHASES = ["connectS", "firstTokenS", "totalS"];
const DEFAULT_CONNECT_S = 10;
/** What a timer of Node.js can wait. */
const LONGEST_S = (2 ** 31 - 1) / 1000;

/** A timeout whose values are known to be accepted. */
export type CheckedTimeout = Timeout & { connectS: number };

/** Fill in the default. Throws `RangeError` for a value that is not accepted. */
export function checkedTimeout(timeout: Timeout = {}): CheckedTimeout {
  const checked = { ...timeout, connectS: timeout.connectS ?? DEFAULT_CONNECT_S };
  for (const [name, value] of Object.entries(checked)) {
    if (!PHASES.includes(name)) throw new RangeError(`timeout.${name}: accepted: ${PHASES.join(", ")}`);
    if (value !== undefined && !(value > 0 && value <= LONGEST_S)) {
      throw new RangeError(
        `${name} is ${value}: it must be over 0 seconds, at most ${Math.floor(LONGEST_S)}`,
      );
    }
  }
  return checked;
}

/** From its creation on, aborts with `TimedOut` when a timeout runs out, or with the reason of `signal`. */
export class Limits {
  readonly signal: AbortSignal;
  readonly #ended = new AbortController();
  readonly #firstToken: NodeJS.Timeout | undefined;
  readonly #total: NodeJS.Timeout | undefined;

  constructor(timeout: Timeout, signal: AbortSignal | undefined) {
    this.signal = AbortSignal.any(signal === undefined ? [this.#ended.signal] : [signal, this.#ended.signal]);
    this.#firstToken = this.#timer("firstTokenS", timeout.firstTokenS);
    this.#total = this.#timer("totalS", timeout.totalS);
  }

  /** End the wait for the first token. */
  tokensCame(): void {
    clearTimeout(this.#firstToken);
  }

  clear(): void {
    clearTimeout(this.#firstToken);
    clearTimeout(this.#total);
  }

  #timer(phase: keyof Timeout, limitS: number | undefined): NodeJS.Timeout | undefined {
    if (limitS === undefined) return undefined;
    return setTimeout(() => this.#ended.abort(new TimedOut(phase, limitS)), limitS * 1000);
  }
}
