/** The routers of a client: which one to call next, and how long to retry. */

import { setTimeout as sleep } from "node:timers/promises";
import { Unavailable } from "./errors.ts";
import type { Router } from "./wire/router.ts";

const FIRST_PAUSE_MS = 50;
const LONGEST_PAUSE_MS = 1_000;
/** For this long after a failure, a router is called only if all others have failed too. */
const SHUNNED_MS = 1_000;

/** Calls go to the routers in turn. */
export class Routers {
  readonly all: readonly Router[];
  readonly #failedAt = new Map<Router, number>();
  #turn = 0;

  constructor(routers: readonly Router[]) {
    this.all = routers;
  }

  /** Return the next one that has not failed within the last second, else the one that failed first. */
  next(): Router {
    const turn = this.all.map((_, step) => this.all[(this.#turn + step) % this.all.length] as Router);
    const byFailure = turn.toSorted((one, other) => this.#failure(one) - this.#failure(other));
    const router = (turn.find((candidate) => this.#serves(candidate)) ?? byFailure[0]) as Router;
    this.#turn = this.all.indexOf(router) + 1;
    return router;
  }

  /** Return whether another one has not failed within the last second. */
  hasOther(router: Router): boolean {
    return this.all.some((other) => other !== router && this.#serves(other));
  }

  failed(router: Router): void {
    this.#failedAt.set(router, performance.now());
  }

  /** Return the backoff of one call, which gives up after `limitS` of failures. */
  backoff(limitS: number): Backoff {
    return new Backoff(limitS * 1000, this.all.length);
  }

  /**
   * Return the result of `call` on any router; it may be repeated without harm.
   *
   * Throws `Unavailable` if no router responded for `limitS`.
   */
  async callAny<T>(call: (router: Router) => Promise<T>, limitS: number, signal?: AbortSignal): Promise<T> {
    const backoff = this.backoff(limitS);
    for (;;) {
      const router = this.next();
      try {
        return await call(router);
      } catch (error) {
        signal?.throwIfAborted();
        if (!(error instanceof Unavailable)) throw error;
        this.failed(router);
        await backoff.waitAfter(error, signal);
      }
    }
  }

  close(): void {
    for (const router of this.all) router.close();
  }

  #serves(router: Router): boolean {
    return performance.now() - this.#failure(router) > SHUNNED_MS;
  }

  #failure(router: Router): number {
    return this.#failedAt.get(router) ?? Number.NEGATIVE_INFINITY;
  }
}

/** Pauses between attempts: none until every router has failed once, then longer and longer ones. */
export class Backoff {
  readonly #limitMs: number;
  readonly #numRouters: number;
  #failures = 0;
  #failingSince: number | undefined;

  constructor(limitMs: number, numRouters: number) {
    this.#limitMs = limitMs;
    this.#numRouters = numRouters;
  }

  /** Start again after a success. */
  reset(): void {
    this.#failures = 0;
    this.#failingSince = undefined;
  }

  /**
   * Wait until the next attempt, `leastMs` or longer. Throw `error` once the limit is reached, and the signal's
   * reason if it aborts.
   */
  async waitAfter(error: Unavailable, signal?: AbortSignal, leastMs = 0): Promise<void> {
    const now = performance.now();
    this.#failingSince ??= now;
    const leftMs = this.#failingSince + this.#limitMs - now;
    this.#failures += 1;
    let pauseMs = leastMs;
    if (this.#failures % this.#numRouters === 0) {
      if (leftMs <= 0) throw error;
      const rounds = this.#failures / this.#numRouters;
      const longestMs = Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** Math.min(rounds - 1, 10));
      pauseMs = Math.max(leastMs, Math.min(leftMs, longestMs * (0.5 + Math.random() / 2)));
    }
    if (pauseMs === 0) return;
    try {
      await sleep(pauseMs, undefined, signal && { signal });
    } catch (aborted) {
      signal?.throwIfAborted();
      throw aborted;
    }
  }
}
