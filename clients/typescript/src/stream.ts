/**
 * One generation: an iterable of events that survives routers.
 *
 *     generate ──break before any event──▶ generate again: the same requestId, so nothing is done twice
 *         ├─────break after an event─────▶ resume: session + 1 and the tokens received, on any router
 *         │     or the router is leaving
 *         └─────an earlier caller resumed──▶ resume: its session + 1 and no tokens, which takes the request back
 *
 * Every call after a break has the next session number, so that a router which wakes late is refused. A router
 * that takes the request back from an earlier caller counts on, and `retrying` says so. Events that a resumed
 * session repeats are not passed to the caller again.
 */

import type { GenerateRequest, GenerationEvent } from "../gen/baton/v1/inference_pb.js";
import {
  BatonError,
  GenerationFailed,
  Internal,
  StreamCorrupt,
  Superseded,
  TimedOut,
  Unavailable,
} from "./errors.ts";
import { type CheckedTimeout, Limits } from "./limits.ts";
import { EventParser, type ParsedEvent } from "./parsing.ts";
import { completionOf, Progress } from "./progress.ts";
import type { Routers } from "./routers.ts";
import type { Completion, Event } from "./types.ts";
import { eventOf } from "./wire/events.ts";
import { resumeOf } from "./wire/requests.ts";
import type { Router } from "./wire/router.ts";
import { CallCrashed } from "./wire/status.ts";

/** After this many crashed calls without a token between, the generation itself is assumed to crash routers. */
const MAX_CRASHES = 3;
/** The rest before the last of these: a machine without memory or descriptors may have them again in a moment. */
const CRASH_REST_MS = 3000;
/** Errors of this side, after which the fleet still runs the generation. All others come from the fleet. */
const STILL_RUNNING = [TimedOut, StreamCorrupt, Internal, Unavailable];

/** What a stream needs of its client. */
export interface StreamContext {
  routers: Routers;
  timeout: CheckedTimeout;
  signal: AbortSignal | undefined;
  abandon(requestId: string): void;
}

/**
 * The events of one generation, to be iterated once. Leaving the loop early ends the generation on the fleet.
 */
export class GenerationStream implements AsyncIterable<Event> {
  readonly requestId: string;
  /** The breaks that the generation survived. */
  resumes = 0;
  /** The calls sent again before any event. */
  retries = 0;
  readonly #request: GenerateRequest;
  readonly #numChoices: number;
  readonly #context: StreamContext;
  #begun = false;

  constructor(request: GenerateRequest, context: StreamContext) {
    this.requestId = request.requestId;
    this.#request = request;
    this.#numChoices = Math.max(1, request.sampling?.n ?? 1);
    this.#context = context;
  }

  [Symbol.asyncIterator](): AsyncGenerator<Event, void, undefined> {
    if (this.#begun) throw new TypeError("a generation can be iterated only once");
    this.#begun = true;
    return this.#events();
  }

  /**
   * Return the events with what the model says in place of its tokens: content, reasoning and calls.
   *
   * To be iterated instead of the stream itself.
   */
  async *parsed(): AsyncGenerator<ParsedEvent, void, undefined> {
    const parser = new EventParser();
    for await (const event of this) yield* parser.feed(event);
  }

  /** Return the whole generation. Throws `GenerationFailed` if the fleet could not complete it. */
  async collect(): Promise<Completion> {
    const events: Event[] = [];
    for await (const event of this) events.push(event);
    const completion = completionOf(events, this.#numChoices, this.resumes);
    if (completion.choices.some(({ finishReason }) => finishReason === "failed")) {
      throw new GenerationFailed(completion);
    }
    return completion;
  }

  async *#events(): AsyncGenerator<Event, void, undefined> {
    const { timeout, signal, abandon } = this.#context;
    const limits = new Limits(timeout, signal);
    let isOver = false;
    try {
      for await (const event of this.#sessions(limits)) {
        isOver = event.type === "finished";
        yield event;
      }
    } catch (error) {
      isOver = error instanceof BatonError && !STILL_RUNNING.some((kind) => error instanceof kind);
      throw error;
    } finally {
      limits.clear();
      if (!isOver) abandon(this.requestId);
    }
  }

  async *#sessions(limits: Limits): AsyncGenerator<Event, void, undefined> {
    const { routers, timeout } = this.#context;
    const progress = new Progress(this.#numChoices);
    const backoff = routers.backoff(timeout.connectS);
    let crashes = 0;
    for (;;) {
      limits.signal.throwIfAborted();
      const router = routers.next();
      try {
        for await (const event of this.#session(router, progress, limits)) {
          if (event.type !== "accepted") backoff.reset();
          if (event.type === "tokens") crashes = 0;
          yield event;
          if (event.type === "finished") return;
        }
        throw new Unavailable("the stream ended before the generation did", router.address);
      } catch (error) {
        limits.signal.throwIfAborted();
        if (error instanceof Superseded && progress.takeBack(error.session)) continue;
        if (error instanceof CallCrashed) crashes += 1;
        if (crashes === MAX_CRASHES) throw new Internal(String(error), { cause: error });
        const away = breakOf(error, router);
        routers.failed(router);
        const restMs = error instanceof CallCrashed && crashes === MAX_CRASHES - 1 ? CRASH_REST_MS : 0;
        if (away !== undefined) await backoff.waitAfter(away, limits.signal, restMs);
      }
      progress.nextSession();
      if (!progress.started) this.retries += 1;
    }
  }

  async *#session(
    router: Router,
    progress: Progress,
    limits: Limits,
  ): AsyncGenerator<Event, void, undefined> {
    let isContinued = progress.session === 0;
    for await (const message of this.#call(router, progress, limits.signal)) {
      if (!isContinued) {
        isContinued = true;
        this.resumes += 1;
      }
      if (message.event.case === "leaving") {
        if (this.#context.routers.hasOther(router)) throw new RouterLeaves();
        continue; // the only router serves on for as long as it can
      }
      if (message.event.case === "retrying") {
        progress.failedAttempts = message.event.value.failedAttempts;
        progress.session = Math.max(progress.session, message.event.value.session);
        continue;
      }
      const event = eventOf(message);
      if (event === undefined) continue;
      if (!progress.admit(event)) {
        if (event.type === "accepted" && progress.lacksDeltas(event)) {
          const why = "the router does not read tool calls and reasoning, as the one before did";
          throw new Unavailable(why, router.address);
        }
        continue;
      }
      if (event.type === "tokens") limits.tokensCame();
      yield event;
    }
  }

  #call(
    router: Router,
    progress: Progress,
    signal: AbortSignal,
  ): AsyncGenerator<GenerationEvent, void, undefined> {
    if (progress.session === 0) return router.generate(this.#request, signal);
    return router.resume(resumeOf(this.#request, progress), signal);
  }
}

/** The router asked to resume the generation at another router. */
class RouterLeaves extends Error {}

/** Return what to wait after; undefined if the next router can be called at once. Throws any other error. */
function breakOf(error: unknown, router: Router): Unavailable | undefined {
  if (error instanceof RouterLeaves) return undefined;
  if (error instanceof Unavailable) return error;
  if (error instanceof CallCrashed) return new Unavailable(error.message, router.address, { cause: error });
  throw error;
}
