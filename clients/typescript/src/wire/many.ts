/**
 * Many generations over one call: a message for all tokens that arrive together, in place of one for each.
 *
 *     generate ──▶ a call of its own while there are few, as `Sharing` says
 *         └──────▶ generateMany: each call takes new generations for a while, and then ends with its last one
 *     resume   ──▶ a call of its own, and so are all others
 *
 * A generation alone on its call cannot suffer from what others do, so whatever goes wrong with a shared call leads
 * there: a generation that has begun is resumed, and one that has not is sent again.
 */

import { create, type MessageInitShape, toBinary } from "@bufbuild/protobuf";
import {
  type GenerateManyRequest,
  GenerateManyRequestSchema,
  type GenerateManyResponse,
  type GenerateRequest,
  GenerateRequestSchema,
  type GenerationEvent,
} from "../../gen/baton/v1/inference_pb.js";
import { BatonError, Internal, NotAllowed, Unavailable, Unsupported } from "../errors.ts";
import { type Heard, heardIn } from "./rows.ts";
import { placeOf, type Sharing } from "./sharing.ts";
import { errorOf, errorOfStatus } from "./status.ts";

/**
 * So long a call takes new generations, and stays open without any, since opening one costs as much as a generation's
 * messages. Where a proxy spreads calls over routers, it so spreads these too.
 */
const TAKES_NEW_MS = 10_000;
/** A larger request has a call of its own: one that is too large for a router ends the call that it is on. */
const MAX_SHARED_BYTES = 64 * 1024;
/** Beyond this many unread tokens a generation leaves the call, as a router ends a call that is not read. */
const MAX_UNREAD_TOKENS = 8192;
/** The router accepts no more generations on a call; one with a call of its own may be accepted. */
const BUSY = "ROUTER_BUSY";

/** Opens a GenerateMany call, which ends when the signal aborts. */
export type OpenMany = (
  requests: AsyncIterable<GenerateManyRequest>,
  signal: AbortSignal,
) => AsyncIterable<GenerateManyResponse>;

/** The shared calls to one router. */
export class SharedCalls {
  readonly #address: string;
  readonly #sharing: Sharing;
  readonly #open: OpenMany;
  /** The open ones, oldest first. */
  readonly #calls = new Set<SharedCall>();
  #isSupported = true;

  constructor(address: string, sharing: Sharing, open: OpenMany) {
    this.#address = address;
    this.#sharing = sharing;
    this.#open = open;
  }

  /**
   * Begin a generation on a shared call; return undefined if it gets a call of its own.
   *
   * `numAlone` generations have calls of their own now. `headers` are those of such a call.
   */
  begin(
    request: GenerateRequest,
    headers: Record<string, string>,
    numAlone: number,
  ): SharedGeneration | undefined {
    const { authorization = "", ...others } = headers;
    if (!this.#isSupported || Object.keys(others).length > 0) return undefined;
    const taking = [...this.#calls].filter((call) => call.takesNew);
    const place = placeOf(
      this.#sharing,
      numAlone,
      taking.map(({ load }) => load),
    );
    if (place === undefined) return undefined;
    if (toBinary(GenerateRequestSchema, request).length > MAX_SHARED_BYTES) return undefined;
    const call = taking[place] ?? this.#opened();
    return call.begin(request, authorization.replace(/^Bearer /, ""));
  }

  /**
   * Yield the events of a generation. Return true if it has to be sent again, over a call of its own.
   *
   * Closing the generator ends the generation, and so does the signal, whose reason is thrown.
   */
  async *events(
    generation: SharedGeneration,
    signal: AbortSignal,
  ): AsyncGenerator<GenerationEvent, boolean, undefined> {
    const abort = () => generation.abort(signal.reason);
    signal.addEventListener("abort", abort, { once: true });
    if (signal.aborted) abort();
    try {
      for (;;) {
        const item = await generation.next();
        if (!(item instanceof Over)) {
          yield item;
          continue;
        }
        if (item.error !== undefined) throw item.error;
        if (item.isRefused) this.#isSupported = false;
        return item.isUnsent;
      }
    } finally {
      signal.removeEventListener("abort", abort);
      generation.leave();
    }
  }

  #opened(): SharedCall {
    const call = new SharedCall(this.#address, this.#open);
    this.#calls.add(call);
    void call.ended.then(() => this.#calls.delete(call));
    return call;
  }
}

/** A generation's end on its call. */
class Over {
  readonly error: unknown;
  /** The call failed for a reason that need not be this generation's: it has to have one of its own. */
  readonly isUnsent: boolean;
  /** The router, or a proxy before it, accepts no such calls. */
  readonly isRefused: boolean;

  constructor(error?: unknown, unsent?: { isRefused: boolean }) {
    this.error = error;
    this.isUnsent = unsent !== undefined;
    this.isRefused = unsent?.isRefused === true;
  }
}

/** The events of one generation that have arrived and are unread. */
export class SharedGeneration {
  readonly id: bigint;
  /** Receive nothing more of it; it may have ended. */
  readonly leave: () => void;
  hasBegun = false;
  readonly #unread: (GenerationEvent | Over)[] = [];
  #unreadTokens = 0;
  /** Set while the next event is awaited, until the caller goes on with it. */
  #wake: (() => void) | undefined;

  constructor(id: bigint, leave: (id: bigint) => void) {
    this.id = id;
    this.leave = () => leave(id);
  }

  /**
   * Add an event. Return false if the caller was too far behind already.
   *
   * What arrives at once for a caller who waits does not count: a router sends one who attaches to a request, or
   * asked for its prompt's log-probabilities, any number of tokens together.
   */
  put(event: GenerationEvent): boolean {
    this.hasBegun = true;
    const hasRoom = this.#wake !== undefined || this.#unreadTokens <= MAX_UNREAD_TOKENS;
    this.#unreadTokens += numTokens(event);
    this.#add(event);
    return hasRoom;
  }

  end(over: Over): void {
    this.#add(over);
  }

  /** End it at once: what has arrived is not read. */
  abort(reason: unknown): void {
    this.#unread.length = 0;
    this.#add(new Over(reason));
  }

  async next(): Promise<GenerationEvent | Over> {
    if (this.#unread.length === 0) {
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
      this.#wake = undefined;
    }
    const item = this.#unread.shift() as GenerationEvent | Over;
    if (!(item instanceof Over)) this.#unreadTokens -= numTokens(item);
    return item;
  }

  #add(item: GenerationEvent | Over): void {
    this.#unread.push(item);
    this.#wake?.();
  }
}

function numTokens({ event }: GenerationEvent): number {
  if (event.case === "tokens") return event.value.tokenIds.length;
  return event.case === "promptLogprobs" ? event.value.logprobs.length : 0;
}

/** One GenerateMany call. Once it takes no new generations, it ends with its last one. */
class SharedCall {
  readonly ended: Promise<void>;
  readonly #address: string;
  readonly #byId = new Map<bigint, SharedGeneration>();
  #lastId = 0n;
  readonly #commands: GenerateManyRequest[] = [];
  #wake: (() => void) | undefined;
  #isOpen = true;
  #isYoung = true;

  constructor(address: string, open: OpenMany) {
    this.#address = address;
    this.ended = this.#read(open);
  }

  get takesNew(): boolean {
    return this.#isOpen && this.#isYoung;
  }

  /** How many generations it carries. */
  get load(): number {
    return this.#byId.size;
  }

  begin(request: GenerateRequest, credential: string): SharedGeneration {
    this.#lastId += 1n;
    const generation = new SharedGeneration(this.#lastId, (id) => this.#leave(id));
    this.#byId.set(generation.id, generation);
    this.#send({ id: generation.id, command: { case: "generate", value: request }, credential });
    return generation;
  }

  #leave(id: bigint): void {
    if (!this.#byId.has(id)) return;
    this.#send({ id, command: { case: "leave", value: {} } });
    this.#forget(id);
  }

  #send(command: MessageInitShape<typeof GenerateManyRequestSchema>): void {
    this.#commands.push(create(GenerateManyRequestSchema, command));
    this.#wake?.();
  }

  async *#written(): AsyncGenerator<GenerateManyRequest, void, undefined> {
    for (;;) {
      const command = this.#commands.shift();
      if (command !== undefined) yield command;
      else if (!this.#isOpen) return;
      else {
        await new Promise<void>((resolve) => {
          this.#wake = resolve;
        });
      }
    }
  }

  async #read(open: OpenMany): Promise<void> {
    const over = new AbortController();
    const timer = setTimeout(() => {
      this.#isYoung = false;
      this.#endUnlessUsed();
    }, TAKES_NEW_MS);
    let failure: unknown;
    try {
      for await (const response of open(this.#written(), over.signal)) {
        for (const heard of heardIn(response)) this.#hear(heard);
      }
    } catch (error) {
      failure =
        error instanceof RangeError || error instanceof TypeError
          ? new Internal(`${this.#address}: a message of GenerateMany is malformed: ${error.message}`)
          : errorOf(error, this.#address);
    }
    clearTimeout(timer);
    over.abort();
    this.#close();
    for (const generation of this.#byId.values()) generation.end(this.#overOf(generation, failure));
    this.#byId.clear();
  }

  #hear(heard: Heard): void {
    const generation = this.#byId.get(heard.id);
    if (generation === undefined) return; // it has left, and this was on its way
    if (heard.status !== undefined) {
      const error = errorOfStatus(heard.status, this.#address);
      const isFull = error.reason === BUSY && !generation.hasBegun;
      generation.end(isFull ? new Over(undefined, { isRefused: false }) : new Over(error));
      this.#forget(heard.id);
    } else if (!generation.put(heard.event)) {
      const slow = `${MAX_UNREAD_TOKENS} tokens of a generation were unread`;
      generation.end(new Over(new Unavailable(slow, this.#address)));
      this.#leave(heard.id);
    } else if (heard.event.event.case === "finished") {
      generation.end(new Over());
      this.#forget(heard.id);
    }
  }

  #forget(id: bigint): void {
    this.#byId.delete(id);
    this.#endUnlessUsed();
  }

  #endUnlessUsed(): void {
    if (!this.#isYoung && this.#byId.size === 0) this.#close();
  }

  #close(): void {
    this.#isOpen = false;
    this.#wake?.();
  }

  /** Return how a generation ends when the call does. */
  #overOf(generation: SharedGeneration, failure: unknown): Over {
    if (failure instanceof Unavailable || !(failure instanceof BatonError)) return new Over(failure);
    if (generation.hasBegun) {
      const why = `a call of many generations failed: ${failure.message}`;
      return new Over(new Unavailable(why, this.#address, { cause: failure }));
    }
    // Generations bring credentials of their own, so whoever demands one of the call is no router.
    const isRefused = failure instanceof Unsupported || failure instanceof NotAllowed;
    return new Over(undefined, { isRefused });
  }
}
